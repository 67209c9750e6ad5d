//! The short cut of a server that embeds the client.

use pluvio_units::{CoreId, ServerId};
use pluvio_wire::{
    Answer, CountObjects, CountObjectsReply, Enumerate, EnumerateReply, Get, Header, Mutation,
    Results,
};

/// The master in the caller's own process. Operations on tablets that the client's map places
/// there run in place, without encoding and without the network.
///
/// Called on the event loop of `core`; must not block. The semantics are those of the messages:
/// one result an item, and a tablet that is not here is refused with
/// [`Refusal::Refresh`](pluvio_wire::Refusal::Refresh).
pub trait LocalMaster: Send + Sync {
    /// The server's id; 0 while it is not enlisted.
    fn owns(&self) -> ServerId;
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
