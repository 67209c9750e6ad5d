//! Systems under load: clusters of ours and servers of others, started for an experiment and ended
//! with it; their callers; and how they are driven.
//!
//! - SYS-1: an experiment tells only operations that the system answered. A refusal ends the
//!   experiment with its text, and a read that finds nothing is counted.
//!
//! Threads: everything runs on the experiment's event loops; processes are of others.

pub mod batches;
mod caller;
pub mod drive;
mod ours;
pub mod pipeline;
pub mod turns;

pub use caller::Way;
pub use ours::{Keeps, Ours};

use pluvio_bench::peer::{Peer, Product, Promise};

/// A system that answers.
pub struct System {
    /// What it is called.
    pub name: String,
    /// Its version.
    pub version: String,
    /// When it answers a write, in words.
    pub durability: &'static str,
    /// How it is asked.
    pub way: Way,
    /// Its processes.
    pub pids: Vec<u32>,
}

impl System {
    /// A server of others.
    pub fn of_peer(peer: &Peer, promise: Promise, version: String) -> Self {
        let address = peer.address().to_owned();
        let way = match peer.product() {
            Product::Redis | Product::Valkey => Way::Redis(address),
            Product::Memcached => Way::Memcached(address),
            Product::Etcd => Way::Etcd(address),
        };
        Self {
            name: peer.product().name().to_owned(),
            version,
            durability: match promise {
                Promise::Volatile => Keeps::Nothing.name(),
                Promise::Synced => Keeps::Synced.name(),
            },
            way,
            pids: vec![peer.pid()],
        }
    }
}
