//! The transports behind `env::Network`: requests and replies as frames, and plain byte streams.
//!
//! [`OsNetwork`] owns, per core, one connection to each peer that the core has called, and the
//! ports it listens on. `docs/transport.md` draws the frame and lists every bound.
//!
//! Invariants
//! - NET-1: a connection lives on one core. One task there reads it, writes it, and drives the
//!   handlers of its requests (rule D).
//! - NET-2: bytes from the other side are checked before they cost memory. An announced length
//!   allocates nothing, and no input makes a panic.
//! - NET-3: everything has a bound. The sizes are those of a frame, and of the calls and bytes that
//!   wait to be sent. The numbers are those of requests in the hands of the service, of replies for
//!   a slow reader, and of connections. The times are those for a handshake, for the rest of a
//!   frame, and for a peer that takes no bytes. All connections of the ports have one of bytes.
//! - NET-4: a request is given to the service at most once, and each call ends exactly once.
//!   [`pluvio_env::CallError::Unreachable`] means that no byte of it was sent.
//! - NET-5: a request that the service has begun to answer is driven to its end even when its
//!   connection breaks. Only closing the port, or the runtime, drops it.
//!
//! Threads: calls may come from any thread. They use the connection of the calling thread's core,
//! or that of core 0 for a thread without a core. Locks are held for a few operations on maps and
//! queues, never over an await point or a system call. A thread that holds the lock of the map of
//! connections takes no other lock.
//!
//! Limits: no retries; the content of a frame is opaque. Encryption and certificates are those of
//! [`Tls`], for TCP alone.

mod accept;
mod client;
mod client_io;
mod counters;
mod datagram;
#[cfg(feature = "fabric")]
mod fabric;
#[cfg(not(feature = "fabric"))]
#[path = "no_fabric.rs"]
mod fabric;
mod frame;
mod handshake;
mod link;
mod memory;
mod network;
mod options;
mod reader;
mod ring;
mod serve;
mod socket;
mod spare;
mod streams;
mod tls;
mod watch;
mod window;
mod writer;

pub use counters::{Counters, Totals};
#[cfg(feature = "machines")]
pub use datagram::machines;
pub use frame::{FRAME_VERSION, HEADER_BYTES};
pub use handshake::PROTOCOL_VERSION;
pub use network::{ConnectionsMemory, OsNetwork};
pub use options::NetOptions;
pub use tls::{ClientCertificates, Tls, TlsError, TlsOptions};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The data under the locks of this crate is valid after every statement, so also after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
