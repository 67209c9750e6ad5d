//! What unit tests of several modules begin with.

use pluvio_env::Rng;
use pluvio_units::ServerId;
use pluvio_wire::{ServerInfo, ServerState};

/// A server that is up and has a disk; one that asks to be enlisted has the id 0.
pub(crate) fn server(id: u64, address: impl Into<String>) -> ServerInfo {
    ServerInfo {
        id: ServerId(id),
        address: address.into(),
        redis: None,
        redis_cluster: None,
        admin: None,
        rack: None,
        pid: 0,
        cores: 1,
        volatile: false,
        draining: false,
        disk_mb_per_s: 0,
        versions: pluvio_wire::Versions::OWN,
        state: ServerState::Up,
    }
}

/// Chance that always says the same.
pub(crate) struct NoChoice;

impl Rng for NoChoice {
    fn next_u64(&self) -> u64 {
        0
    }
}
