//! TCP behind `env::Network`: requests and replies as frames, and plain byte streams.
//!
//! [`TcpNetwork`] owns, per core, one connection to each peer that the core has called, and the
//! ports it listens on. `docs/transport.md` draws the frame and lists every bound.
//!
//! Invariants
//! - NET-1: a connection lives on one core: one task there reads it, writes it, and drives the
//!   handlers of its requests (rule D).
//! - NET-2: bytes from the other side are checked before they cost memory: nothing is allocated for
//!   a length that was only announced, and no input makes a panic.
//! - NET-3: everything has a bound: size of a frame, calls and bytes that wait to be sent, requests
//!   in the hands of the service, replies that wait for a slow reader, connections, and the time
//!   for a handshake, for the rest of a frame, and for a peer that takes no bytes.
//! - NET-4: a request is given to the service at most once; each call ends exactly once, and
//!   [`pluvio_env::CallError::Unreachable`] is only said when no byte of it was sent.
//! - NET-5: a request that the service has begun to answer is driven to its end even when its
//!   connection breaks; only closing the port (or the runtime) drops it.
//!
//! Threads: calls may come from any thread; the connection they use is that of the calling thread's
//! core, or of core 0 when it has none. Locks are held for a few operations on maps and queues,
//! never over an await point or a system call. Order: the map of connections, then nothing else.
//!
//! What it does not do: encryption, authentication, retries, knowing what is in a frame.

mod accept;
mod client;
mod client_io;
mod counters;
mod frame;
mod handshake;
mod network;
mod options;
mod reader;
mod serve;
mod socket;
mod spare;
mod streams;
mod watch;
mod writer;

pub use counters::{Counters, Totals};
pub use frame::{FRAME_VERSION, HEADER_BYTES};
pub use handshake::PROTOCOL_VERSION;
pub use network::TcpNetwork;
pub use options::TcpOptions;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the locks of this crate guard is valid after every statement, so also after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
