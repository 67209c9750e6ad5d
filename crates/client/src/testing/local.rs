//! The fake master of the caller's own process.

use super::{FakeCluster, State};
use crate::LocalMaster;
use pluvio_units::{CoreId, ServerId};
use pluvio_wire::{
    Answer, CountObjects, CountObjectsReply, Delete, DeleteReply, Enumerate, EnumerateReply,
    Header, Increment, IncrementReply, MultiDelete, MultiDeleteReply, MultiRead, MultiReadReply,
    MultiWrite, MultiWriteReply, Read, ReadReply, Refusal, Write, WriteReply,
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
    fn read(&self, _: CoreId, h: &Header, r: Read) -> Answer<ReadReply> {
        self.answer(|state, server| state.read(server, *h, &r))
    }
    fn write(&self, _: CoreId, h: &Header, r: Write) -> Answer<WriteReply> {
        self.answer(|state, server| state.write(server, *h, &r))
    }
    fn delete(&self, _: CoreId, h: &Header, r: Delete) -> Answer<DeleteReply> {
        self.answer(|state, server| state.delete(server, *h, &r))
    }
    fn increment(&self, _: CoreId, h: &Header, r: Increment) -> Answer<IncrementReply> {
        self.answer(|state, server| state.increment(server, *h, &r))
    }
    fn multi_read(&self, _: CoreId, h: &Header, r: MultiRead) -> Answer<MultiReadReply> {
        self.answer(|state, server| state.multi_read(server, *h, &r))
    }
    fn multi_write(&self, _: CoreId, h: &Header, r: MultiWrite) -> Answer<MultiWriteReply> {
        self.answer(|state, server| state.multi_write(server, *h, &r))
    }
    fn multi_delete(&self, _: CoreId, h: &Header, r: MultiDelete) -> Answer<MultiDeleteReply> {
        self.answer(|state, server| state.multi_delete(server, *h, &r))
    }
    fn enumerate(&self, _: CoreId, h: &Header, r: Enumerate) -> Answer<EnumerateReply> {
        self.answer(|state, server| state.enumerate(server, *h, &r))
    }
    fn count(&self, _: CoreId, h: &Header, r: CountObjects) -> Answer<CountObjectsReply> {
        self.answer(|state, server| state.count(server, *h, &r))
    }
}
