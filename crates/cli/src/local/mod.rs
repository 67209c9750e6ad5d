//! A cluster of child processes on this machine: `pluvio dev`, the demo, the measurement of
//! recovery, and the torture.
//!
//! - LOC-1: no child outlives this process: each is told to die with its parent, and is killed when
//!   its [`Child`](child::Child) is dropped.
//! - LOC-2: the coordinators are stopped before the servers, so that they do not recover servers
//!   that are stopped on purpose.

use std::time::Duration;

/// How long killed children may take to be gone, before their files are removed.
pub const KILL_PAUSE: Duration = Duration::from_millis(200);

pub mod child;
pub mod cluster;
pub mod temporary;

pub use cluster::{Change, Home, LocalCluster, LocalOptions, Which};
