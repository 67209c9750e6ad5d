//! Emptying a server before its process ends: `docs/migration.md` tells the whole way.

use crate::codec::{Fields, Request};
use crate::data::request;
use crate::opcode::Opcode;
use pluvio_units::{ClusterId, ServerId};
use serde::{Deserialize, Serialize};

/// What is to become of a server's tablets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrainWish {
    /// They all move to other servers, and it gets no new ones.
    Drain,
    /// Those that it has stay, and it gets new ones as others do.
    Cancel,
}

/// Begins a drain, or takes it back. Answered when that is stored; [`GetDrain`] tells how far it
/// is. A drain that has begun already is no error, and neither is one that is taken back twice.
///
/// Refused as [`NotFound`](crate::FatalKind::NotFound) when the server is not up. Refused as
/// [`Other`](crate::FatalKind::Other) when no other server can have its tablets, or all others
/// together have no room for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DrainServer {
    /// The server.
    pub server: ServerId,
    /// What is to become of its tablets.
    pub wish: DrainWish,
}
impl Fields for DrainServer {}
request!(DrainServer => DrainStatus);

/// How far is the drain of a server?
///
/// Refused as [`NotFound`](crate::FatalKind::NotFound) when the server is not up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GetDrain {
    /// The server.
    pub server: ServerId,
}
impl Fields for GetDrain {}
request!(GetDrain => DrainStatus);

/// How far the drain of a server is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DrainStatus {
    /// The server.
    pub server: ServerId,
    /// Whether it is drained. False after the drain was taken back.
    pub draining: bool,
    /// Tablets that it owns.
    pub tablets: u64,
    /// Migrations from it or to it that have not ended for everybody.
    pub moving: u64,
    /// Why its tablets do not move at the moment, for people.
    #[serde(default)]
    pub waits: Option<String>,
    /// No other server can have its tablets: all are drained, too, or keep no replicas.
    #[serde(default)]
    pub alone: bool,
}
impl Fields for DrainStatus {}

impl DrainStatus {
    /// Whether the server may leave: nothing is lost by its end.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tablets == 0 && self.moving == 0
    }
}

/// A server leaves the cluster, and will not serve any more. Answered when it is stored that it is
/// no member; asked again after that, it is answered in the same way.
///
/// Refused: with "come again" while it owns a tablet or one moves from it or to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeaveCluster {
    /// The cluster.
    pub cluster: ClusterId,
    /// The server.
    pub server: ServerId,
}
impl Fields for LeaveCluster {}
request!(LeaveCluster => ());
