//! Experiments of the storage engine and of recovery, and models.
//!
//! - `experiment`: what every experiment reports: one object, a table, a picture.
//! - `workload`: keys, sizes, their distributions, and streams of operations.
//! - `contestant`: who takes part: our store, maps of others, allocators, servers; each in its
//!   process.
//! - `run`: runs a workload on a contestant.
//! - `suite`: the experiments of the storage engine, put together from these.
//! - `peer`: servers of others, measured over TCP.
//! - `recovery`: what the recovery of a crashed server costs: replay here, and Redis loading its
//!   files.
//! - `recovery_model`: a model of recovery in large clusters, independent of servers and
//!   coordinator.
//! - `lfs`: a simulator of a log's cleaner, independent of the storage engine.
//!
//! Not here: loads against running servers (crate `load`), command lines, and judging results.

mod clock;
pub mod contestant;
mod error;
pub mod experiment;
pub mod lfs;
pub mod peer;
mod processor;
pub mod recovery;
pub mod recovery_model;
pub mod run;
pub mod suite;
pub mod workload;

pub use error::ExperimentError;
pub use processor::processor_us;
