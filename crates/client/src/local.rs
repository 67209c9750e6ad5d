//! The short cut of a server that embeds the client.

use pluvio_units::{CoreId, ServerId};
use pluvio_wire::{
    Answer, CountObjects, CountObjectsReply, Delete, DeleteReply, Enumerate, EnumerateReply,
    Header, Increment, IncrementReply, MultiDelete, MultiDeleteReply, MultiRead, MultiReadReply,
    MultiWrite, MultiWriteReply, Read, ReadReply, Write, WriteReply,
};

/// The master in the caller's own process. Operations on tablets that the client's map places
/// there run in place, without encoding and without the network.
///
/// Called on the event loop of `core`; must not block. The semantics are those of the messages:
/// a tablet that is not here is refused with [`Refusal::Refresh`](pluvio_wire::Refusal::Refresh).
pub trait LocalMaster: Send + Sync {
    /// The server's id; 0 while it is not enlisted.
    fn owns(&self) -> ServerId;
    /// See [`Read`].
    fn read(&self, core: CoreId, header: &Header, request: Read) -> Answer<ReadReply>;
    /// See [`Write`].
    fn write(&self, core: CoreId, header: &Header, request: Write) -> Answer<WriteReply>;
    /// See [`Delete`].
    fn delete(&self, core: CoreId, header: &Header, request: Delete) -> Answer<DeleteReply>;
    /// See [`Increment`].
    fn increment(
        &self,
        core: CoreId,
        header: &Header,
        request: Increment,
    ) -> Answer<IncrementReply>;
    /// See [`MultiRead`].
    fn multi_read(
        &self,
        core: CoreId,
        header: &Header,
        request: MultiRead,
    ) -> Answer<MultiReadReply>;
    /// See [`MultiWrite`].
    fn multi_write(
        &self,
        core: CoreId,
        header: &Header,
        request: MultiWrite,
    ) -> Answer<MultiWriteReply>;
    /// See [`MultiDelete`].
    fn multi_delete(
        &self,
        core: CoreId,
        header: &Header,
        request: MultiDelete,
    ) -> Answer<MultiDeleteReply>;
    /// See [`Enumerate`].
    fn enumerate(
        &self,
        core: CoreId,
        header: &Header,
        request: Enumerate,
    ) -> Answer<EnumerateReply>;
    /// See [`CountObjects`].
    fn count(
        &self,
        core: CoreId,
        header: &Header,
        request: CountObjects,
    ) -> Answer<CountObjectsReply>;
}
