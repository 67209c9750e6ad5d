//! What unit tests of several modules begin with.

use pluvio_env::Rng;
use pluvio_units::ServerId;
use pluvio_wire::ServerInfo;

/// A server that is up and has a disk; one that asks to be enlisted has the id 0.
pub(crate) fn server(id: u64, address: impl Into<String>) -> ServerInfo {
    ServerInfo::plain(ServerId(id), address)
}

/// Chance that always says the same.
pub(crate) struct NoChoice;

impl Rng for NoChoice {
    fn next_u64(&self) -> u64 {
        0
    }
}
