//! Where coordinators keep what they know: the metadata stores outside of the process, etcd and
//! ZooKeeper, and the choice between them and the embedded one.
//!
//! Invariants
//! - META-1: the stores keep the promises of `pluvio_coordinator::conformance`, checked against
//!   real servers by `crates/cli/tests`.
//! - META-2: every request has a limit of its own; a store that does not answer gives an error that
//!   names the place and what was asked of it.
//! - META-3: an error never tells whether a batch was applied. The coordinator's numbered batches
//!   make it safe to give one again.
//! - META-4: passwords are in no error, no trace and no place that is shown.
//!
//! Threads: everything runs on the event loop that calls it.
//!
//! This crate opens connections itself, beside `env::Network`, which carries only messages of
//! Pluvio. The simulator uses `MemoryStore` in place of all of this.

mod embedded;
mod etcd;
mod http;
mod login;
mod place;
mod zookeeper;

pub use etcd::EtcdStore;
pub use login::Login;
pub use place::{BadPlace, Place};
pub use zookeeper::ZooKeeperStore;
