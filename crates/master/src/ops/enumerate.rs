//! The next objects of a table in the order of their ranks.

use super::mutate::LOCKED_RETRY;
use crate::master::Master;
use bytes::Bytes;
use pluvio_log::Awaited;
use pluvio_store::{Scan, ScanOptions};
use pluvio_units::{HashRange, KeyHash, Rank};
use pluvio_wire::{
    Answer, Enumerate, EnumerateReply, EnumeratedObject, Header, MULTI_BYTES_MAX, MULTI_ITEMS_MAX,
    Refusal, RetryReason, Seen,
};
use std::sync::Arc;

impl Master {
    /// Gives the objects of a stretch from a rank on, at most to the end of the tablet in which it
    /// begins.
    pub fn enumerate(
        self: &Arc<Self>,
        header: &Header,
        request: &Enumerate,
    ) -> Answer<EnumerateReply> {
        self.answer_awaited(self.enumerate_now(header, request))
    }

    fn enumerate_now(
        &self,
        header: &Header,
        request: &Enumerate,
    ) -> Result<Awaited<EnumerateReply>, Refusal> {
        self.check_target(header)?;
        let snapshot = self.tablets().snapshot();
        let local = snapshot.get(&request.table).ok_or(Refusal::Refresh)?;
        let tablet = local.tablet_of(request.from).ok_or(Refusal::Refresh)?;
        Self::must_serve(tablet.phase)?;
        if request.to < request.from {
            let why = "a stretch that ends before it begins";
            return Err(Refusal::malformed(why));
        }
        let last = request.to.min(tablet.range.last);
        let range = HashRange::new(request.from, last);
        let options = ScanOptions {
            from: request.rank,
            items: (request.items as usize).clamp(1, MULTI_ITEMS_MAX),
            bytes: MULTI_BYTES_MAX,
            values: request.values,
        };
        let scan = self.store().scan(&local.table, range, options);
        if scan.pending().is_locked {
            return Err(Refusal::retry(LOCKED_RETRY, RetryReason::Locked));
        }
        Ok(scan.map(move |scan| reply(scan, last)))
    }
}

fn reply(scan: Scan, last: KeyHash) -> EnumerateReply {
    let objects = scan.items.into_iter().map(|item| EnumeratedObject {
        key: item.key,
        version: item.version,
        deadline: item.deadline,
        value: Bytes::from(item.value),
    });
    let next = (!scan.is_end).then(|| Rank(scan.last.0 + 1));
    EnumerateReply::new(objects.collect(), Seen { last, next })
}
