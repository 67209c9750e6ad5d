//! The fake master of the caller's own process.

use super::{FakeCluster, State};
use crate::{AtOnce, HeldOutcome, LocalMaster};
use core::task::Waker;
use pluvio_mutation::Current;
use pluvio_units::{ClusterId, CoreId, LogId, LogPosition, SegmentId, ServerId, Waits};
use pluvio_wire::{
    Answer, CountObjects, CountObjectsReply, Decide, Decided, Enumerate, EnumerateReply, Get,
    Header, Mutation, Refusal, Release, Results, TransactionStep, Vote, Voted, Whole,
};

pub(super) struct FakeLocal {
    pub(super) cluster: FakeCluster,
    pub(super) server: ServerId,
}

impl FakeLocal {
    fn answer<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut State, ServerId) -> Result<T, Refusal>,
    ) -> Answer<T> {
        let mut state = self.cluster.state();
        let result = act(&mut state, self.server);
        let Some(wait) = state.local_waits else {
            return Answer::Now(result);
        };
        drop(state);
        let sleep = self.cluster.parts().clock.sleep(wait);
        Answer::Later(Box::pin(async move {
            sleep.await;
            result
        }))
    }
}

impl FakeLocal {
    /// Executes at once, if the cluster wants that, and holds the outcome.
    fn at_once(
        &self,
        act: impl FnOnce(&mut State, ServerId) -> Result<Results, Refusal>,
    ) -> AtOnce {
        let mut state = self.cluster.state();
        let Some((all, durable)) = state.held else {
            return AtOnce::Later;
        };
        let Ok(mut results) = act(&mut state, self.server) else {
            return AtOnce::Later;
        };
        let Some(Ok(outcome)) = results.pop() else {
            return AtOnce::Later;
        };
        state.held = Some((all + 1, durable));
        let position = LogPosition {
            segment: SegmentId(1),
            offset: all + 1,
        };
        AtOnce::Held(HeldOutcome::new(Waits::new(LogId(0), position), outcome))
    }
}

impl LocalMaster for FakeLocal {
    fn owns(&self) -> ServerId {
        self.server
    }
    fn cluster(&self) -> ClusterId {
        self.cluster.state().cluster
    }
    fn get(&self, _: CoreId, h: &Header, gets: &[Get<'_>]) -> Answer<Results> {
        self.answer(|state, server| state.get(server, *h, gets.iter().copied()))
    }
    fn mutate(
        &self,
        _: CoreId,
        h: &Header,
        mutations: &[Mutation<'_>],
        ordered: bool,
    ) -> Answer<Results> {
        let items = mutations.iter().copied();
        self.answer(|state, server| state.mutate(server, *h, items, ordered))
    }
    fn transact(
        &self,
        _: CoreId,
        h: &Header,
        whole: Option<&Whole>,
        steps: &[TransactionStep<'_>],
    ) -> Answer<Results> {
        self.answer(|state, server| state.transact(server, *h, whole, steps))
    }
    fn decide(&self, _: CoreId, h: &Header, r: &Decide) -> Answer<Decided> {
        self.answer(|state, server| state.decide(server, *h, r))
    }
    fn vote(&self, _: CoreId, h: &Header, r: &Vote) -> Answer<Voted> {
        self.answer(|state, server| state.vote(server, *h, r))
    }
    fn release(&self, _: CoreId, h: &Header, r: &Release) -> Answer<()> {
        self.answer(|state, server| state.release(server, *h, r))
    }
    fn show_at_once(
        &self,
        _: CoreId,
        h: &Header,
        get: &Get<'_>,
        show: &mut dyn FnMut(Option<Current<'_>>),
    ) -> bool {
        let state = self.cluster.state();
        state.shows && state.show(self.server, *h, get, show)
    }
    fn get_at_once(&self, _: CoreId, h: &Header, get: &Get<'_>) -> AtOnce {
        self.at_once(|state, server| state.get(server, *h, core::iter::once(*get)))
    }
    fn mutate_at_once(&self, _: CoreId, h: &Header, mutation: &Mutation<'_>) -> AtOnce {
        self.at_once(|state, server| state.mutate(server, *h, core::iter::once(*mutation), false))
    }
    fn is_durable(&self, waits: &Waits) -> bool {
        let (_, durable) = self.cluster.state().held.unwrap_or_default();
        waits.iter().all(|(_, position)| position.offset <= durable)
    }
    fn wake_when_durable(
        &self,
        (_, position): (LogId, LogPosition),
        _: u64,
        waker: &Waker,
    ) -> bool {
        let mut state = self.cluster.state();
        let (_, durable) = state.held.unwrap_or_default();
        state.held_wakers.push(waker.clone());
        position.offset > durable
    }
    fn enumerate(&self, _: CoreId, h: &Header, r: &Enumerate) -> Answer<EnumerateReply> {
        self.answer(|state, server| state.enumerate(server, *h, r))
    }
    fn count(&self, _: CoreId, h: &Header, r: &CountObjects) -> Answer<CountObjectsReply> {
        self.answer(|state, server| state.count(server, *h, r))
    }
}
