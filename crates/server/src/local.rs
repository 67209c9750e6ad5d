//! The master of this process, as the client library sees it.

use crate::traced::execute_traced;
use core::task::Waker;
use core::time::Duration;
use pluvio_client::{AtOnce, HeldOutcome, LocalMaster};
use pluvio_log::Awaited;
use pluvio_master::{Current, Master, TableTraffic};
use pluvio_redis::{HotKeys, HotSession, HotTable};
use pluvio_units::{
    CORE_LOGS_MAX, ClusterId, CoreId, KeyHash, LogId, LogPosition, ServerId, TableId, Waits,
};
use pluvio_wire::{
    Answer, CountObjects, CountObjectsReply, Decide, Decided, Enumerate, EnumerateReply, Get,
    Header, Mutation, Outcome, Outcomes, Refusal, Release, Results, TransactionStep, Vote, Voted,
    Whole,
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

    /// [`Local::with`] of an operation that may append to the log of this core.
    fn changing<T: Send + 'static>(
        &self,
        core: CoreId,
        operation: impl FnOnce(&Arc<Master>, LogId) -> Answer<T>,
    ) -> Answer<T> {
        let log = log_of(core);
        self.with(|master| match pluvio_trace::current() {
            None => operation(master, log),
            Some(context) => execute_traced(Some(master), log, context, || operation(master, log)),
        })
    }
}

/// A core appends to the log of its own number; cores beyond the most logs share with others.
pub(crate) fn log_of(core: CoreId) -> LogId {
    LogId(core.0 % CORE_LOGS_MAX)
}

/// An outcome as a front end holds it. A refused operation was not executed and takes the long way,
/// which knows what to do about the refusal.
fn at_once(master: &Master, outcome: Result<Awaited<Outcome>, Refusal>) -> AtOnce {
    match outcome {
        Ok(Awaited::Now(durable)) => AtOnce::Done(durable.into_value()),
        Ok(Awaited::Later(appended)) => match master.store().space().confirm(appended) {
            Ok(durable) => AtOnce::Done(durable.into_value()),
            Err(appended) => {
                let (waits, outcome) = appended.into_parts();
                AtOnce::Held(HeldOutcome::new(waits, outcome))
            }
        },
        Err(_) => AtOnce::Later,
    }
}

impl HotKeys for Local {
    fn start(&self, count: usize, lasts: Option<Duration>) -> bool {
        self.0
            .get()
            .is_some_and(|master| master.start_traffic(count, lasts))
    }

    fn stop(&self) -> bool {
        self.0.get().is_some_and(|master| master.stop_traffic())
    }

    fn reset(&self) -> bool {
        self.0.get().is_none_or(|master| master.reset_traffic())
    }

    fn session(&self) -> Option<HotSession> {
        let (seen, one_in) = self.0.get()?.traffic()?;
        let tables = seen.tables.into_iter().map(|(id, traffic)| {
            let TableTraffic { bytes, keys } = traffic;
            (id, HotTable { bytes, keys })
        });
        Some(HotSession {
            is_active: seen.is_active,
            count: seen.wanted,
            since_start: seen.since_start,
            lasted: seen.lasted,
            one_in,
            tables: tables.collect(),
        })
    }
}

impl LocalMaster for Local {
    fn owns(&self) -> ServerId {
        self.0.get().map_or(ServerId(0), |master| master.id())
    }

    fn cluster(&self) -> ClusterId {
        self.0.get().map_or(ClusterId(0), |master| master.cluster())
    }

    fn get(&self, core: CoreId, header: &Header, gets: &[Get<'_>]) -> Answer<Results> {
        self.with(|master| {
            let get = || master.get(header, gets.iter().copied());
            match pluvio_trace::current() {
                None => get(),
                Some(context) => execute_traced(None, log_of(core), context, get),
            }
        })
    }

    fn mutate(
        &self,
        core: CoreId,
        header: &Header,
        mutations: &[Mutation<'_>],
        ordered: bool,
    ) -> Answer<Results> {
        let items = mutations.iter().copied();
        self.changing(core, |master, log| {
            master.mutate(log, header, items, ordered)
        })
    }

    fn transact(
        &self,
        core: CoreId,
        header: &Header,
        whole: Option<&Whole>,
        steps: &[TransactionStep<'_>],
    ) -> Answer<Results> {
        let steps = steps.iter().copied();
        self.changing(core, |master, log| {
            master.transact(log, header, whole, steps)
        })
    }

    fn decide(&self, core: CoreId, header: &Header, request: &Decide) -> Answer<Decided> {
        self.changing(core, |master, log| master.decide(log, header, request))
    }

    fn vote(&self, core: CoreId, header: &Header, request: &Vote) -> Answer<Voted> {
        self.changing(core, |master, log| master.vote(log, header, request))
    }

    fn release(&self, core: CoreId, header: &Header, request: &Release) -> Answer<()> {
        self.changing(core, |master, log| master.release(log, header, request))
    }

    fn mutate_early(
        &self,
        core: CoreId,
        header: &Header,
        mutations: &[Mutation<'_>],
    ) -> Option<Result<Outcomes, Refusal>> {
        let items = mutations.iter().copied();
        let master = self.0.get()?;
        Some(master.mutate_early(log_of(core), header, items))
    }

    fn show_at_once(
        &self,
        _core: CoreId,
        header: &Header,
        get: &Get<'_>,
        show: &mut dyn FnMut(Option<Current<'_>>),
    ) -> bool {
        self.0
            .get()
            .is_some_and(|master| matches!(master.show_at_once(header, get, show), Ok(Some(_))))
    }

    fn get_at_once(&self, _core: CoreId, header: &Header, get: &Get<'_>) -> AtOnce {
        match self.0.get() {
            Some(master) => at_once(master, master.get_at_once(header, get)),
            None => AtOnce::Later,
        }
    }

    fn mutate_at_once(&self, core: CoreId, header: &Header, mutation: &Mutation<'_>) -> AtOnce {
        match self.0.get() {
            Some(master) => {
                let outcome = master.mutate_at_once(log_of(core), header, mutation);
                at_once(master, outcome)
            }
            None => AtOnce::Later,
        }
    }

    fn prefetch(&self, table: TableId, hashes: &[KeyHash]) {
        if let Some(master) = self.0.get() {
            master.prefetch_table(table, hashes.iter().copied());
        }
    }

    fn is_durable(&self, waits: &Waits) -> bool {
        self.0.get().is_some_and(|master| {
            let space = master.store().space();
            waits
                .iter()
                .all(|(log, position)| space.is_durable(log, position))
        })
    }

    fn wake_when_durable(
        &self,
        (log, position): (LogId, LogPosition),
        party: u64,
        waker: &Waker,
    ) -> bool {
        self.0.get().is_none_or(|master| {
            let replication = master.replication();
            replication.wake_when_durable(log, position, party, waker)
        })
    }

    fn give_up_waiting(&self, (log, position): (LogId, LogPosition), party: u64) {
        if let Some(master) = self.0.get() {
            master.replication().give_up_waiting(log, position, party);
        }
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
