//! The only door to the operating system (rule A), in two halves.
//!
//! - The event loops' half is [`Env`]: clock, randomness, disk, network and tasks behind small
//!   traits. `env_os` and `net` implement them for production, and `sim` for whole clusters in one
//!   thread from one seed. It is the Cargo feature `async`, which is on by default.
//! - The threads' half is [`host`]: a few workers, the date and the processors, for the embedded
//!   store. That runs inside another program, so it goes without `async` and links no event loop.
//!
//! Both drive work that is done in steps, and both speak of its [`Pace`]. The type lies in `units`,
//! because the log has such work too and must know no door (rule C).
//!
//! Beside the traits lie [`buffers`], for the network, the disk, replication and backups, and
//! [`watch`], for five crates. This is the lowest crate that all of them know.
//!
//! Invariants
//! - ENV-1: code outside the implementations reaches time, randomness, files, sockets and threads
//!   only through an [`Env`] or a [`host::Host`]. Clippy's disallowed methods and `xtask tidy`
//!   check it.
//! - ENV-2: with the simulated implementations, a run is a function of its seed. Protocol code
//!   therefore keeps no state whose order depends on addresses or hash seeds.
//!
//! Every future is `Send`, although work stays on its core (rule D). The compiler then refuses to
//! hold a reclaim guard over an await point.

pub mod host;
#[cfg(feature = "async")]
mod loops;

#[cfg(feature = "async")]
pub use loops::*;
pub use pluvio_units::Pace;
