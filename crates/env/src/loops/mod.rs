//! The event loops' half of the door: the traits of [`Env`], and what their users share.

mod address;
mod backoff;
pub mod buffers;
mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod disk;
mod mapped;
mod network;
mod rng;
mod streams;
mod tasks;
pub mod watch;

use std::sync::Arc;

pub use address::{Address, Endpoint, Transport};
pub use backoff::Backoff;
pub use clock::{Clock, Moment, TimedOut, timeout};
pub use disk::{Disk, DiskError, File, FileAt, OpenMode};
pub use mapped::{DoorOf, MappedMemory, MappedRead, MappedReader, NotMapped};
pub use network::{
    CallError, Frame, Handled, HeldReply, Listening, Network, NetworkError, NoConnection, Peer,
    Replies, Service, Traffic, waiting_party,
};
pub use rng::Rng;
pub use streams::{ByteStream, ReadSome, StreamError, StreamService, WriteAll};
pub use tasks::{TaskHandle, Tasks};

/// A boxed future, as the trait objects of this crate return them.
pub type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The services of the operating system for one process, real or simulated. Cheap to clone.
#[derive(Clone)]
pub struct Env {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub rng: Arc<dyn Rng>,
    /// The process's data directory.
    pub disk: Arc<dyn Disk>,
    /// Messages to and from other processes.
    pub network: Arc<dyn Network>,
    /// Concurrent work.
    pub tasks: Arc<dyn Tasks>,
    /// Memory of servers on this machine, where processes may map it.
    pub mapped: Option<Arc<dyn MappedMemory>>,
}
