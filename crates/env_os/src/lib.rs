//! The real operating system behind the `env` traits: event loops, clock, randomness, files,
//! signals.
//!
//! An [`OsRuntime`] owns one event loop (a thread with a single-threaded tokio runtime) per core
//! (rule D). A binary makes one, gives it its main future with [`OsRuntime::block_on`], and ends
//! it with [`OsRuntime::shutdown`]. The network is a crate of its own (`net`); binaries join the
//! two: `OsNetwork::new(options, runtime.tasks(), runtime.clock(), pluvio_env_os::current_core)`.
//!
//! Invariants
//! - ENVOS-1: a task runs only on the event loop of the core it was spawned on.
//! - ENVOS-2: an event loop makes no system call that waits for a device. The one exception is a
//!   small write to a file, where the file system cannot say that it would wait (FILE-3).
//! - ENVOS-3: at most one [`OsDisk`] on this machine holds a data directory. It holds it for as
//!   long as the disk or a file of it lives.
//! - ENVOS-4: after [`OsRuntime::shutdown`] tasks and background workers run no more. Work that was
//!   given to the blocking threads may still run, up to the limit given.
//! - ENVOS-5: files are made only in the directory that was opened. Where its name belongs to
//!   another one later, or to none, nothing is written there: nobody would look for it. The same
//!   holds for a directory in it that must stay (`Disk::same_directory`).
//!
//! Limits: sockets are in `net`, memory regions in `memory`.

mod affinity;
mod clock;
mod disk;
mod file;
mod limits;
mod manager;
#[cfg(target_os = "linux")]
mod mapped;
mod no_disk;
mod parent;
mod rng;
mod runtime;
mod signals;
mod small_writes;
mod spin;
mod tasks;

pub use clock::OsClock;
pub use disk::{OsDisk, make_directory};
pub use limits::raise_open_files;
pub use manager::{Phase, tell_manager};
pub use no_disk::NoDisk;
pub use parent::die_with_parent;
pub use rng::OsRng;
pub use runtime::{DiskOpener, OsOptions, OsRuntime, StartError, current_core};
pub use signals::{StopSignal, StopSignals};
pub use tasks::OsTasks;
