//! A model of recovery in clusters larger than the one at hand ([RAMCloud §7.12], figures 16 and
//! 17). It runs event by event, from constants, without the code of servers or coordinator.
//!
//! - [`recover`]: how long a crashed server's data takes to come back, by servers and data.
//! - [`read_times`]: how evenly ways of placing primary replicas load the disks.
//!
//! - MODEL-1: a run is a function of its options.
//! - MODEL-2: nothing is quicker than its parts. A recovery takes at least as long as its slowest
//!   disk reads, and as its recovery masters, links and processors need together.

mod cluster;
mod options;
mod placement;
mod queue;

pub use cluster::{Recovered, recover};
pub use options::{Costs, LostData, ModelOptions};
pub use placement::{Disks, Placement, PlacementOptions, ideal_read_time, read_times};
