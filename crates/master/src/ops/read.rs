//! Reading one object.

use crate::master::Master;
use bytes::Bytes;
use pluvio_units::ObjectVersion;
use pluvio_wire::{Answer, Header, Read, ReadReply, Refusal};
use std::sync::Arc;

impl Master {
    /// Reads one object. Waits only for an update of that very object that is not yet durable.
    pub fn read(self: &Arc<Self>, header: &Header, request: &Read) -> Answer<ReadReply> {
        self.read_sized(header, request).0
    }

    /// As [`Self::read`]; also tells the bytes of the value, which may come later.
    pub(crate) fn read_sized(
        self: &Arc<Self>,
        header: &Header,
        request: &Read,
    ) -> (Answer<ReadReply>, usize) {
        let snapshot = self.tablets().snapshot();
        let table = match self.serving_table(&snapshot, header, request.table, &request.key) {
            Ok((table, _)) => table,
            Err(refusal) => return (Answer::Now(Err(refusal)), 0),
        };
        let found = self.store().read(table, &request.key);
        let version = found.object.as_ref().map(|(version, _)| *version);
        let result = if request.rules.reject(version) {
            Err(Refusal::Rejected {
                version: version.unwrap_or(ObjectVersion(0)),
            })
        } else {
            let (version, value) = found.object.unwrap_or_default();
            Ok(ReadReply {
                version,
                value: Bytes::from(value),
            })
        };
        let bytes = result.as_ref().map_or(0, |reply| reply.value.len());
        (self.answer_when_durable(found.pending, result), bytes)
    }
}
