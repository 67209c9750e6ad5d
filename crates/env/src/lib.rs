//! The only door to the operating system (rule A): clock, randomness, disk, network and tasks
//! behind small traits. `env_os` and `net` implement them for production, `sim` for whole
//! clusters in one thread from one seed. Beside them lie [`buffers`], which all of these fill.
//!
//! Invariants
//! - ENV-1: code outside the implementations reaches time, randomness, files, sockets and threads
//!   only through an [`Env`]; clippy's disallowed methods and `xtask tidy` check it.
//! - ENV-2: with the simulated implementations, a run is a function of its seed. Protocol code
//!   therefore keeps no state whose order depends on addresses or hash seeds.
//!
//! Every future is `Send`. That is not for moving work between cores (rule D: it stays on its
//! core) but so that the compiler refuses to hold a reclaim guard over an await point.

pub mod buffers;
mod clock;
mod disk;
mod network;
mod rng;
mod tasks;
pub mod watch;

use std::sync::Arc;

pub use clock::{Clock, Moment, TimedOut, timeout};
pub use disk::{Disk, DiskError, File, OpenMode};
pub use network::{
    Address, ByteStream, CallError, Frame, Handled, Listening, Network, NetworkError, NoConnection,
    Peer, Service, StreamError, StreamService,
};
pub use rng::Rng;
pub use tasks::{Pace, TaskHandle, Tasks};

/// A boxed future, as the trait objects of this crate return them.
pub type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What one process (or one simulated process) may use of the operating system. Cheap to clone.
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
}
