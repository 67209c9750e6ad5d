//! Load generators and experiments.
//!
//! - `network`: loads against running servers.
//! - `experiment`: what every experiment reports: one object, a table, a picture.
//! - `workload`: keys, sizes, their distributions, and streams of operations.
//! - `contestant`: who takes part: our store, maps of others, allocators, servers; each in its process.
//! - `run`: runs a workload on a contestant.
//! - `suite`: the experiments of the storage engine, put together from these.
//! - `lfs`: a simulator of a log's cleaner, independent of the storage engine.
//!
//! Not here: command lines, and judging results.

mod clock;
pub mod contestant;
mod error;
pub mod experiment;
pub mod lfs;
mod machine;
pub mod network;
mod random;
pub mod run;
pub mod suite;
pub mod workload;

pub use error::ExperimentError;
pub use machine::Machine;
pub use random::Random;
