//! One server: a master and a backup, its place in the cluster, and its front ends.
//!
//! What it owns: the order in which things start, who answers which request, and what happens when
//! the cluster declares this server dead. Everything else belongs to the crates it joins.
//!
//! The life of a server:
//! 1. Read the identity of the data directory, and look at the frames.
//! 2. Open the ports.
//! 3. Enlist, again and again until the coordinator answers.
//! 4. Write the new identity. It is durable before anything is served, so that the next life can
//!    say whose place it takes.
//! 5. Make log, replication and master, and serve.
//! 6. In a planned stop: have the tablets moved away, and leave the cluster in order.
//!
//! - SRV-1: a server that the cluster has declared dead never serves again in this life (MEM-2).
//! - SRV-2: nothing is served or stored under an id that is not in the identity file. (Pings are
//!   answered: they only say who is there.)

mod directories;
mod identity;
mod lease;
mod leave;
mod limits;
mod local;
mod membership;
mod options;
mod server;
mod service;
mod status;
mod traced;

pub use directories::DirectoriesError;
pub use identity::{FORMAT_VERSION, Identity, IdentityError};
pub use lease::LEASE;
pub use leave::NotLeft;
pub use membership::{Membership, PingOptions, Standing};
pub use options::{FurtherDirectory, MissingData, OnCorruption, ServerOptions};
pub use pluvio_log::Tombstones;
pub use pluvio_master::Master;
pub use pluvio_redis::{
    ClientMemory, CommandTotals, Latencies, MachineFn, MachineUse, Password, Totals as RedisTotals,
};
pub use server::{Server, ServerError};
pub use status::Readiness;
