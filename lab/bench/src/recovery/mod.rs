//! The cost of recovering a crashed server, part by part: a recovery master's replay of
//! entries, and the time that Redis takes to load as much from its files.
//!
//! - RECB-1: what is measured did its work: a round whose objects are not all there afterwards is
//!   an error, not a row.
//!
//! Not here: clusters of processes, which the binary starts; the model of large clusters
//! (`recovery_model`).

mod backups;
mod redis;
mod replay;

pub use redis::{RedisLoads, RedisOptions, redis};
pub use replay::{ReplayOptions, replay};

use core::time::Duration;

/// Processor time that the calling thread has taken; zero where the system does not tell.
fn thread_cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split_whitespace().next();
    Duration::from_nanos(first.and_then(|n| n.parse().ok()).unwrap_or(0))
}
