//! Durability classes: tables whose objects are kept otherwise than the cluster's settings say
//! (`docs/classes.md`).

use crate::control::ServerList;
use crate::settings::ClusterSettings;
use core::fmt;
use serde::{Deserialize, Serialize};

/// The first version of a cluster in which tables may have a durability of their own: earlier
/// programs would keep their objects as all others.
pub const CLASSES_SINCE: u16 = 8;

/// A durability class. At most [`CLASS_LOGS`](pluvio_units::CLASS_LOGS) are in use at a time,
/// beside what the cluster's settings say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TableClass {
    /// Its number, from 1 on.
    pub number: u16,
    /// Replicas of every segment of its logs. 0: its tablets are empty after their server died.
    pub replicas: u32,
    /// A write is acknowledged when its replicas are on their devices, instead of with the
    /// operating systems of their servers.
    pub synced: bool,
    /// It is less durable than what the cluster's settings say. Otherwise it is at least as
    /// durable: in replicas as well as in what an acknowledgement waits for.
    pub weaker: bool,
}

impl TableClass {
    /// Whether there are no replicas: a write is acknowledged once its server has it in memory.
    #[must_use]
    pub fn is_volatile(&self) -> bool {
        self.replicas == 0
    }

    /// The settings of its logs, in a cluster with these. As many replicas are needed as elsewhere,
    /// and never more than there are to be.
    #[must_use]
    pub fn settings(&self, cluster: &ClusterSettings) -> ClusterSettings {
        ClusterSettings {
            replicas: self.replicas,
            min_replicas: cluster
                .min_replicas
                .clamp(self.replicas.min(1), self.replicas),
            synced: self.synced,
            strict_racks: cluster.strict_racks,
        }
    }

    /// Orders classes on the same side of the cluster's settings: the larger is more durable.
    #[must_use]
    pub fn degree(&self) -> u32 {
        2 * self.replicas + u32::from(self.synced)
    }
}

impl fmt::Display for TableClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.synced { "synced" } else { "buffered" };
        match self.replicas {
            0 => write!(f, "volatile"),
            1 => write!(f, "{word}, 1 replica"),
            replicas => write!(f, "{word}, {replicas} replicas"),
        }
    }
}

impl ServerList {
    /// The durability class with this number, if there is one.
    #[must_use]
    pub fn class(&self, number: u16) -> Option<&TableClass> {
        self.classes.iter().find(|class| class.number == number)
    }
}

/// How the objects of a new table are to be kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DurabilityWish {
    /// Replicas of every segment; 0 for a volatile table. `None`: as many as the cluster's settings
    /// say now, if anything else is wished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// Whether a write is acknowledged only when its replicas are on their devices. `None`: as the
    /// cluster's settings say now, if anything else is wished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub synced: Option<bool>,
}

impl DurabilityWish {
    /// Whether nothing is wished: the table is kept as the cluster's settings say, also after they
    /// have changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
