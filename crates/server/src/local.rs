//! This server's own master, for the client library inside its front ends.

use pluvio_client::LocalMaster;
use pluvio_master::Master;
use pluvio_units::{CoreId, LOGS_PER_MASTER_MAX, LogId, ServerId};
use pluvio_wire::{
    Answer, CountObjects, CountObjectsReply, Delete, DeleteReply, Enumerate, EnumerateReply,
    Header, Increment, IncrementReply, MultiDelete, MultiDeleteReply, MultiRead, MultiReadReply,
    MultiWrite, MultiWriteReply, Read, ReadReply, Refusal, Write, WriteReply,
};
use std::sync::{Arc, OnceLock};

/// There is no master before the server is enlisted.
#[derive(Clone, Default)]
pub(crate) struct Local(pub(crate) Arc<OnceLock<Arc<Master>>>);

impl Local {
    fn with<T>(&self, operation: impl FnOnce(&Arc<Master>) -> Answer<T>) -> Answer<T> {
        match self.0.get() {
            Some(master) => operation(master),
            None => Answer::Now(Err(Refusal::Refresh)),
        }
    }
}

/// A core appends to the log of its own number; cores beyond the most logs share with others.
pub(crate) fn log_of(core: CoreId) -> LogId {
    LogId(core.0 % LOGS_PER_MASTER_MAX)
}

impl LocalMaster for Local {
    fn owns(&self) -> ServerId {
        self.0.get().map_or(ServerId(0), |master| master.id())
    }
    fn read(&self, _core: CoreId, header: &Header, request: Read) -> Answer<ReadReply> {
        self.with(|master| master.read(header, &request))
    }
    fn write(&self, core: CoreId, header: &Header, request: Write) -> Answer<WriteReply> {
        self.with(|master| master.write(log_of(core), header, &request))
    }
    fn delete(&self, core: CoreId, header: &Header, request: Delete) -> Answer<DeleteReply> {
        self.with(|master| master.delete(log_of(core), header, &request))
    }
    fn increment(
        &self,
        core: CoreId,
        header: &Header,
        request: Increment,
    ) -> Answer<IncrementReply> {
        self.with(|master| master.increment(log_of(core), header, &request))
    }
    fn multi_read(
        &self,
        _core: CoreId,
        header: &Header,
        request: MultiRead,
    ) -> Answer<MultiReadReply> {
        self.with(|master| master.multi_read(header, request))
    }
    fn multi_write(
        &self,
        core: CoreId,
        header: &Header,
        request: MultiWrite,
    ) -> Answer<MultiWriteReply> {
        self.with(|master| master.multi_write(log_of(core), header, request))
    }
    fn multi_delete(
        &self,
        core: CoreId,
        header: &Header,
        request: MultiDelete,
    ) -> Answer<MultiDeleteReply> {
        self.with(|master| master.multi_delete(log_of(core), header, request))
    }
    fn enumerate(
        &self,
        _core: CoreId,
        header: &Header,
        request: Enumerate,
    ) -> Answer<EnumerateReply> {
        self.with(|master| master.enumerate(header, &request))
    }
    fn count(
        &self,
        _core: CoreId,
        header: &Header,
        request: CountObjects,
    ) -> Answer<CountObjectsReply> {
        self.with(|master| master.count(header, &request))
    }
}
