//! The next objects of a table in the order of their hashes.

use crate::master::Master;
use bytes::Bytes;
use pluvio_store::Scan;
use pluvio_units::{HashRange, KeyHash};
use pluvio_wire::{
    Answer, Enumerate, EnumerateReply, EnumeratedObject, Header, MULTI_BYTES_MAX, MULTI_ITEMS_MAX,
    Refusal,
};
use std::sync::Arc;

impl Master {
    /// Gives the objects from a hash on, at most to the end of the tablet that contains it.
    pub fn enumerate(
        self: &Arc<Self>,
        header: &Header,
        request: &Enumerate,
    ) -> Answer<EnumerateReply> {
        if let Err(refusal) = self.check_target(header) {
            return Answer::Now(Err(refusal));
        }
        let snapshot = self.tablets().snapshot();
        let tablet = snapshot
            .get(&request.table)
            .and_then(|t| Some((&t.table, t.tablet_of(request.from)?)));
        let Some((table, tablet)) = tablet else {
            return Answer::Now(Err(Refusal::Refresh));
        };
        if let Err(refusal) = Self::must_serve(tablet.phase) {
            return Answer::Now(Err(refusal));
        }
        let range = HashRange::new(request.from, tablet.range.last);
        let items = (request.items as usize).clamp(1, MULTI_ITEMS_MAX);
        let scan = self
            .store()
            .scan(table, range, items, MULTI_BYTES_MAX, request.values);
        self.answer_awaited(scan.map(reply))
    }
}

fn reply(scan: Scan) -> EnumerateReply {
    let objects = scan.items.into_iter().map(|item| EnumeratedObject {
        key: item.key,
        version: item.version,
        value: Bytes::from(item.value),
    });
    let next = scan.last.0.checked_add(1).map(KeyHash);
    EnumerateReply::new(objects.collect(), next)
}
