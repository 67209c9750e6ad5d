//! The short cut of a server that embeds the client.

use crate::at_once::AtOnce;
use core::task::Waker;
use pluvio_mutation::Current;
use pluvio_units::{ClusterId, CoreId, KeyHash, LogId, LogPosition, ServerId, TableId, Waits};
use pluvio_wire::{
    Answer, CountObjects, CountObjectsReply, Decide, Decided, Enumerate, EnumerateReply, Get,
    Header, Mutation, Outcomes, Refusal, Release, Results, TransactionStep, Vote, Voted, Whole,
};

/// The master in the caller's own process. Operations on tablets that the client's map places
/// there run in place, without encoding and without the network.
///
/// Called on the event loop of `core`; must not block. The semantics are those of the messages:
/// one result an item, and a tablet that is not here is refused with
/// [`Refusal::Refresh`].
pub trait LocalMaster: Send + Sync {
    /// The server's id; 0 while it is not enlisted.
    fn owns(&self) -> ServerId;
    /// The cluster that the server belongs to; 0 while it is not enlisted. Coordinators of others
    /// are not asked.
    fn cluster(&self) -> ClusterId;
    /// Reads objects.
    fn get(&self, core: CoreId, header: &Header, gets: &[Get<'_>]) -> Answer<Results>;
    /// Changes objects. A single mutation without identity has that of the header. An `ordered`
    /// batch ends with the first item that is refused.
    fn mutate(
        &self,
        core: CoreId,
        header: &Header,
        mutations: &[Mutation<'_>],
        ordered: bool,
    ) -> Answer<Results>;
    /// Does all steps of a transaction, or none. It has the identity of the header. Where the steps
    /// are a part of a `whole`, it locks their keys, and votes.
    fn transact(
        &self,
        core: CoreId,
        header: &Header,
        whole: Option<&Whole>,
        steps: &[TransactionStep<'_>],
    ) -> Answer<Results>;
    /// See [`Decide`].
    fn decide(&self, core: CoreId, header: &Header, request: &Decide) -> Answer<Decided>;
    /// See [`Vote`].
    fn vote(&self, core: CoreId, header: &Header, request: &Vote) -> Answer<Voted>;
    /// See [`Release`].
    fn release(&self, core: CoreId, header: &Header, request: &Release) -> Answer<()>;
    /// [`LocalMaster::mutate`] of an ordered batch, answered before it is durable. `None`: nothing
    /// was done. By default nothing is.
    fn mutate_early(
        &self,
        core: CoreId,
        header: &Header,
        mutations: &[Mutation<'_>],
    ) -> Option<Result<Outcomes, Refusal>> {
        let _ = (core, header, mutations);
        None
    }
    /// Lets `show` look at an object where it lies, or at its absence. False: `show`
    /// was not called; [`LocalMaster::get_at_once`] or [`LocalMaster::get`] reads the object.
    fn show_at_once(
        &self,
        core: CoreId,
        header: &Header,
        get: &Get<'_>,
        show: &mut dyn FnMut(Option<Current<'_>>),
    ) -> bool {
        let _ = (core, header, get, show);
        false
    }
    /// Reads an object without waiting. By default nothing is.
    fn get_at_once(&self, core: CoreId, header: &Header, get: &Get<'_>) -> AtOnce {
        let _ = (core, header, get);
        AtOnce::Later
    }
    /// Changes an object without waiting. By default nothing is.
    fn mutate_at_once(&self, core: CoreId, header: &Header, mutation: &Mutation<'_>) -> AtOnce {
        let _ = (core, header, mutation);
        AtOnce::Later
    }
    /// Asks for the memory of keys that are read or changed next.
    fn prefetch(&self, table: TableId, hashes: &[KeyHash]) {
        let _ = (table, hashes);
    }
    /// Whether all of this is durable.
    fn is_durable(&self, waits: &Waits) -> bool {
        let _ = waits;
        false
    }
    /// Has `waker` woken when the position is durable, in place of an earlier one of the same
    /// `party` for it. False: it is durable already.
    fn wake_when_durable(&self, wait: (LogId, LogPosition), party: u64, waker: &Waker) -> bool {
        let _ = (wait, party, waker);
        true
    }
    /// Takes back [`LocalMaster::wake_when_durable`].
    fn give_up_waiting(&self, wait: (LogId, LogPosition), party: u64) {
        let _ = (wait, party);
    }
    /// See [`Enumerate`].
    fn enumerate(
        &self,
        core: CoreId,
        header: &Header,
        request: &Enumerate,
    ) -> Answer<EnumerateReply>;
    /// See [`CountObjects`].
    fn count(
        &self,
        core: CoreId,
        header: &Header,
        request: &CountObjects,
    ) -> Answer<CountObjectsReply>;
}
