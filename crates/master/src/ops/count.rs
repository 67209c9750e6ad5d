//! Counting a table's objects.

use crate::master::Master;
use crate::tablets::Tablet;
use pluvio_wire::{Answer, CountObjects, CountObjectsReply, Header, Refusal};
use std::sync::Arc;

impl Master {
    /// Counts the objects of a table on this server. The count is that of the index: it may include
    /// objects that are not yet durable.
    pub fn count(
        self: &Arc<Self>,
        header: &Header,
        request: &CountObjects,
    ) -> Answer<CountObjectsReply> {
        Answer::Now(self.count_now(header, request))
    }

    fn count_now(
        &self,
        header: &Header,
        request: &CountObjects,
    ) -> Result<CountObjectsReply, Refusal> {
        self.check_target(header)?;
        let snapshot = self.tablets().snapshot();
        let local = snapshot.get(&request.table).ok_or(Refusal::Refresh)?;
        // A tablet that is being replayed is not here yet, and may never be. One that has left is
        // still counted.
        let served = |t: &Tablet| t.phase.is_served();
        if !local.tablets.iter().all(served) {
            return Err(Self::not_ready());
        }
        Ok(CountObjectsReply {
            objects: local.table.objects(),
            bytes: local.table.object_bytes(),
            bounded: local.table.bounded(),
        })
    }
}
