//! The master of this process, as the client library sees it.

use pluvio_client::LocalMaster;
use pluvio_master::Master;
use pluvio_units::{CoreId, LOGS_PER_MASTER_MAX, LogId, ServerId};
use pluvio_wire::{
    Answer, CountObjects, CountObjectsReply, Enumerate, EnumerateReply, Get, Header, Mutation,
    Refusal, Results,
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

    fn get(&self, _core: CoreId, header: &Header, gets: &[Get<'_>]) -> Answer<Results> {
        self.with(|master| master.get(header, gets.iter().copied()))
    }

    fn mutate(
        &self,
        core: CoreId,
        header: &Header,
        mutations: &[Mutation<'_>],
        ordered: bool,
    ) -> Answer<Results> {
        let items = mutations.iter().copied();
        self.with(|master| master.mutate(log_of(core), header, items, ordered))
    }

    fn enumerate(
        &self,
        _core: CoreId,
        header: &Header,
        request: &Enumerate,
    ) -> Answer<EnumerateReply> {
        self.with(|master| master.enumerate(header, request))
    }

    fn count(
        &self,
        _core: CoreId,
        header: &Header,
        request: &CountObjects,
    ) -> Answer<CountObjectsReply> {
        self.with(|master| master.count(header, request))
    }
}
