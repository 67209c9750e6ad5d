//! The metadata stores of coordinators: etcd and ZooKeeper outside of the process, and the choice
//! between them and the embedded one.
//!
//! Invariants
//! - META-1: the stores keep the promises of `pluvio_coordinator::conformance`, checked against
//!   real servers by `crates/cli/tests`.
//! - META-2: every request has a limit of its own. A store that does not answer gives an error that
//!   names the place and the request.
//! - META-3: an error never tells whether a batch was applied. The coordinator's numbered batches
//!   make it safe to give one again.
//! - META-4: passwords never appear in an error, in a trace or in a shown place.
//!
//! Threads: everything runs on the event loop that calls it.
//!
//! This crate opens connections itself, beside `env::Network`, which carries only messages of
//! Pluvio. The simulator uses `MemoryStore` instead of this crate.

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
