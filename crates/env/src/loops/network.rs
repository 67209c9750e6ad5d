//! Messages between processes: a request and its reply.

use crate::{Address, BoxFuture, StreamService};
use bytes::Bytes;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::Waker;
use core::time::Duration;
use pluvio_units::{CoreId, LogId, LogPosition, Waits};
use std::sync::Arc;

/// One message. `wire` says what is in it; a network carries the three parts unchanged.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Frame {
    /// The kind of message (`wire::Opcode`); a reply has the opcode of its request.
    pub opcode: u16,
    /// The small structured part.
    pub meta: Bytes,
    /// Bulk bytes that no station on the way parses.
    pub payload: Bytes,
}

impl Frame {
    /// Bytes of both parts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.meta.len() + self.payload.len()
    }

    /// Whether both parts are empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why no connection could be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoConnection {
    /// The other machine says that nothing listens on the port: the process is gone, or has not
    /// opened it yet.
    #[error("connection refused: nothing listens there")]
    Refused,
    /// Anything else, for people. It says nothing about the other process. The network between may
    /// be gone, or this process may have too many connections.
    #[error("{0}")]
    Other(String),
}

impl From<String> for NoConnection {
    fn from(words: String) -> Self {
        Self::Other(words)
    }
}

/// Why a call has no reply.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// No connection could be made. The request was not executed. Retryable.
    #[error("cannot reach {0}: {1}")]
    Unreachable(Address, NoConnection),
    /// The connection broke. The request may have been executed. Retryable if that does no harm.
    #[error("lost the connection to {0}")]
    Lost(Address),
    /// No reply in time. The request may have been executed, or still be. Retryable likewise.
    #[error("no reply from {0} within {1:?}")]
    TimedOut(Address, Duration),
    /// The request is larger than the network carries. Not executed, not retryable.
    #[error("a message of {0} bytes is over the limit of {1}")]
    TooLarge(usize, usize),
}

/// Why a process cannot listen.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot listen on {address}: {message}")]
pub struct NetworkError {
    /// Where it tried to.
    pub address: Address,
    /// The operating system's words, with advice.
    pub message: String,
}

/// The sender of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The other end, as the network knows it. For traces.
    pub address: Address,
    /// The core whose event loop received the request and runs its handler.
    pub core: CoreId,
}

/// A handler's answer.
pub enum Handled {
    /// The reply is ready: nothing was waited for.
    Now(Frame),
    /// The reply comes later; the caller drives the future on the same core.
    Later(BoxFuture<'static, Frame>),
}

/// A reply that is ready, and may leave once all that it rests on is durable. It is a record, not a
/// task: nothing is set up for it.
pub struct HeldReply {
    /// Positions in logs of the service.
    pub waits: Waits,
    /// The reply.
    pub reply: Frame,
    /// Bytes that its request is charged with.
    pub charge: usize,
}

/// Numbers a party that waits for positions, in the whole process. The top bit is set.
#[must_use]
pub fn waiting_party() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(1 << 63);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// How a request is treated while the memory of a port's connections is short.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Traffic {
    /// Only servers send it to each other. Their connections share memory with no client's.
    pub is_of_servers: bool,
    /// It is answered also while requests wait for room for replies. Its reply must be small.
    pub never_waits: bool,
}

/// Answers requests. Called on the event loop of the core that received the request. Requests of
/// one connection come in the order of their arrival. A handler must not block.
pub trait Service: Send + Sync {
    /// Handles one request.
    fn handle(&self, peer: Peer, request: Frame) -> Handled;

    /// How requests of this kind are treated while the memory of connections is short. `begun` is
    /// what has come of the request: an envelope tells there what is in it. By default they are a
    /// client's, and wait.
    fn traffic(&self, opcode: u16, begun: &[u8]) -> Traffic {
        let _all_are_alike = (opcode, begun);
        Traffic::default()
    }

    /// Handles one request of a caller that can hold replies. By default none is held.
    ///
    /// # Errors
    /// A reply to be held. The caller says when it has left, or will never leave
    /// ([`Service::held_left`]).
    fn handle_or_hold(&self, peer: Peer, request: Frame) -> Result<Handled, HeldReply> {
        Ok(self.handle(peer, request))
    }

    /// Whether a held reply that rests on this may leave.
    fn may_leave(&self, waits: &Waits) -> bool {
        let _nothing_is_held = waits;
        true
    }

    /// Lets `waker` be woken when the position is durable, in place of an earlier one of the same
    /// `party` ([`waiting_party`]) for it. False: it is durable already.
    fn wake_when_durable(&self, wait: (LogId, LogPosition), party: u64, waker: &Waker) -> bool {
        let _nothing_is_held = (wait, party, waker);
        false
    }

    /// Takes back [`Service::wake_when_durable`].
    fn give_up_waiting(&self, wait: (LogId, LogPosition), party: u64) {
        let _nothing_is_held = (wait, party);
    }

    /// A held reply that was charged so has left, or never will.
    fn held_left(&self, charge: usize) {
        let _nothing_is_held = charge;
    }
}

/// A port that is open; closes when dropped.
pub struct Listening {
    /// The address with the port that was taken (for port 0).
    pub address: Address,
    /// Closes the port when dropped.
    pub guard: Box<dyn Send + Sync>,
}

/// Takes the outcomes of requests that were posted ([`Network::post`]), each with the number of its
/// request. On any thread; it must not block.
pub trait Replies: Send + Sync {
    /// The request of this number has ended.
    fn replied(&self, number: u64, outcome: Result<Frame, CallError>);
}

/// Sends requests to other processes and receives theirs.
///
/// A network delivers a request at most once per [`Network::call`]. It may lose, delay and reorder
/// requests; those of different calls may overtake each other.
pub trait Network: Send + Sync {
    /// Sends `request` to the process at `to` and waits for its reply, at most for `limit`.
    fn call<'a>(
        &'a self,
        to: &'a Address,
        request: Frame,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>>;

    /// Sends `request` as [`Network::call`] does. Its outcome goes to `replies`, perhaps before
    /// this returns. There is no limit of time: the caller gives up by itself
    /// ([`Network::give_up`]). Requests that one core posts to one address mostly arrive in their
    /// order. Gives the request back if this network knows only calls.
    fn post(
        &self,
        to: &Address,
        request: Frame,
        number: u64,
        replies: &Arc<dyn Replies>,
    ) -> Option<Frame> {
        let _known_by_calls_only = (to, number, replies);
        Some(request)
    }

    /// Waits no longer for a request that the same core has posted. It may have been executed, or
    /// still be; `replies` may still get its outcome.
    fn give_up(&self, to: &Address, number: u64, replies: &Arc<dyn Replies>) {
        let _known_by_calls_only = (to, number, replies);
    }

    /// Opens `address` and gives every request that arrives there to `service`. Other processes
    /// must be able to reach this process by that address.
    fn listen(
        &self,
        address: &Address,
        service: Arc<dyn Service>,
    ) -> BoxFuture<'_, Result<Listening, NetworkError>>;

    /// Opens `address` for byte streams, at most `connections_max` at a time. A further connection
    /// gets `refusal` and is closed.
    fn listen_streams(
        &self,
        address: &Address,
        connections_max: usize,
        refusal: Bytes,
        service: Arc<dyn StreamService>,
    ) -> BoxFuture<'_, Result<Listening, NetworkError>>;
}
