//! Load generators and experiments.
//!
//! - `network`: loads against running servers.
//! - `experiment`: what every experiment reports: one object, a table, a picture.
//! - `workload`: keys, sizes and their distributions.
//! - `lfs`: a simulator of a log's cleaner, independent of the storage engine.
//!
//! Not here: command lines, and judging results.

pub mod experiment;
pub mod lfs;
mod machine;
pub mod network;
mod random;
pub mod workload;

pub use machine::Machine;
pub use random::Random;
