//! The fake master of the caller's own process.

use super::{FakeCluster, State};
use crate::LocalMaster;
use pluvio_units::{CoreId, ServerId};
use pluvio_wire::{
    Answer, CountObjects, CountObjectsReply, Enumerate, EnumerateReply, Get, Header, Mutation,
    Refusal, Results,
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

impl LocalMaster for FakeLocal {
    fn owns(&self) -> ServerId {
        self.server
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
    fn enumerate(&self, _: CoreId, h: &Header, r: &Enumerate) -> Answer<EnumerateReply> {
        self.answer(|state, server| state.enumerate(server, *h, r))
    }
    fn count(&self, _: CoreId, h: &Header, r: &CountObjects) -> Answer<CountObjectsReply> {
        self.answer(|state, server| state.count(server, *h, r))
    }
}
