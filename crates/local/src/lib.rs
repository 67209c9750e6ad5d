//! A cluster of child processes on this machine, each of them the program `pluvio`.
//!
//! - `cluster`: all of them: start, readiness, deaths, stop; `child`: one of them.
//! - `program`: the file they are started from; `options`, `announcement`: what they are told, and
//!   what they tell.
//! - `data`: whether a data directory has all that belongs to it.
//! - `ports`: those that a child has again when it is started again.
//! - `temporary`: where a cluster lives that is there for a while.
//! - `stamps`: what a child notes of its requests, when it is asked to.
//!
//! - LOC-1: no child outlives this process: each is told to die with its parent, and is killed when
//!   its [`Child`](child::Child) is dropped.
//! - LOC-2: the coordinators are stopped before the servers, so that they do not recover servers
//!   that are stopped on purpose.

mod announcement;
pub mod child;
pub mod cluster;
mod data;
mod options;
mod ports;
mod program;
pub mod stamps;
pub mod temporary;

pub use announcement::{Announcement, Role};
pub use cluster::{Carrier, Change, Home, LocalCluster, LocalOptions, SECOND_DIRECTORY, Which};
pub use data::{LostMetadata, lost_metadata};
pub use options::{Durability, METADATA_PASSWORD, MetadataLogin, REDIS_PASSWORD, SERVERS_MAX};
pub use program::Program;

use std::time::Duration;

/// How long killed children may take to be gone, before their files are removed.
pub const KILL_PAUSE: Duration = Duration::from_millis(200);
