//! Connections that carry bytes without frames, for protocols from elsewhere (Redis).
//!
//! [`ByteStream`] has methods to poll, so that a wait for bytes allocates nothing. [`ReadSome`] and
//! [`WriteAll`] are futures over them, as small as their arguments.

use crate::{Address, BoxFuture, Peer};
use bytes::BytesMut;
use core::pin::Pin;
use core::task::{Context, Poll};

/// A connection that carries bytes without frames. A `dyn ByteStream` also has `read` and
/// `write_all`, which give futures.
pub trait ByteStream: Send {
    /// Appends the bytes that have arrived to `into`; 0 means the peer has closed. While there are
    /// none, nothing is appended, and the latest waker is woken when there are some.
    ///
    /// # Errors
    /// The connection broke.
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        into: &mut BytesMut,
    ) -> Poll<Result<usize, StreamError>>;
    /// Takes the bytes that have arrived, without waiting. `None` if there are none, 0 if the peer
    /// has closed.
    ///
    /// # Errors
    /// The connection broke.
    fn try_read(&mut self, into: &mut BytesMut) -> Result<Option<usize>, StreamError>;
    /// Waits until the connection is known to be broken. A peer that only stops sending is still
    /// there: it may take what it is sent.
    fn gone(&mut self) -> BoxFuture<'_, ()>;
    /// Writes as much of `rest` as the connection takes, and cuts that off `rest`. It is ready when
    /// nothing is left, here or in a buffer of the stream. Until then the caller polls with what is
    /// left, also if that is nothing; the latest waker is woken when more is taken.
    ///
    /// # Errors
    /// The connection broke.
    fn poll_write_all(
        &mut self,
        context: &mut Context<'_>,
        rest: &mut &[u8],
    ) -> Poll<Result<(), StreamError>>;
    /// The other end.
    fn peer(&self) -> Peer;
    /// This end.
    fn local(&self) -> Address;
}

impl dyn ByteStream + '_ {
    /// Waits for bytes and appends those that have arrived to `into`; 0 means the peer has closed.
    /// Dropping the future loses no bytes: the next read gives them.
    pub fn read<'a>(&'a mut self, into: &'a mut BytesMut) -> ReadSome<'a> {
        ReadSome { stream: self, into }
    }

    /// Writes all of `data`. A future that is dropped may have written a first part of it, of
    /// unknown length. Bytes that are written after that make no sense to the peer.
    pub fn write_all<'a>(&'a mut self, data: &'a [u8]) -> WriteAll<'a> {
        WriteAll {
            stream: self,
            rest: data,
        }
    }
}

/// A wait for bytes, of `read`.
#[must_use = "futures do nothing unless polled"]
pub struct ReadSome<'a> {
    stream: &'a mut dyn ByteStream,
    into: &'a mut BytesMut,
}

impl Future for ReadSome<'_> {
    type Output = Result<usize, StreamError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.stream.poll_read(context, this.into)
    }
}

/// A write, of `write_all`.
#[must_use = "futures do nothing unless polled"]
pub struct WriteAll<'a> {
    stream: &'a mut dyn ByteStream,
    rest: &'a [u8],
}

impl Future for WriteAll<'_> {
    type Output = Result<(), StreamError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.stream.poll_write_all(context, &mut this.rest)
    }
}

/// A byte stream broke. Not retryable on this connection.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("connection broken: {0}")]
pub struct StreamError(pub String);

/// Serves byte streams.
pub trait StreamService: Send + Sync {
    /// Serves one connection until it ends; runs on the event loop of the core that accepted it.
    fn serve(&self, stream: Box<dyn ByteStream>) -> BoxFuture<'static, ()>;
}
