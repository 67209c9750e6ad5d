//! Loads over the network: they fill a cluster, or any server that speaks the Redis protocol, and
//! measure its latency and throughput.
//!
//! The same loads run over the Redis protocol and over the native client, so that rows can be
//! compared. A [`Report`] says what was measured: command, parameters, machine, and a row for each
//! combination of parameters.
//!
//! - BENCH-1: what is reported was answered: operations count when their reply has arrived and was
//!   no error.
//! - BENCH-2: time is that of the environment's monotonic clock. The latency of an operation begins
//!   when its pipeline of requests is handed to the network, and ends when its reply was read.
//!
//! Threads: each connection is one task on one event loop.
//!
//! Not here: starting servers, and judging results.

mod driver;
mod error;
mod machine;
mod plan;
mod random;
mod redis;
mod report;
pub mod resp;
mod target;

pub use driver::{Progress, latency, load, round_trips, throughput};
pub use error::BenchError;
pub use machine::Machine;
pub use plan::{KEY_BYTES, Sweep, Workload, key};
pub use random::Random;
pub use report::{LatencyUs, Report, Row};
pub use target::Target;
