//! Identifiers and counters.

use core::fmt;
use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($raw:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $raw);

        impl $name {
            /// The id or counter that follows this one.
            ///
            /// # Panics
            /// When the number space is used up: the next id would be used twice.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.checked_add(1).expect("a 64-bit counter does not run out in practice; a smaller one is bounded by its owner"))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// One cluster, drawn at random when its coordinator first starts. Data directories, frames
    /// and every connection carry it, so that two clusters cannot mix their data.
    ClusterId(u64)
}
id! {
    /// One life of one server process. The coordinator gives it at enlistment and never uses it
    /// again: a server that comes back has a new id [RAMCloud §7.3]. Zero means "not enlisted yet".
    ServerId(u64)
}
id! {
    /// A table. Given by the coordinator, never used again.
    TableId(u64)
}
id! {
    /// A segment of one master. Unique and ascending over all logs of that master.
    SegmentId(u64)
}
id! {
    /// One of the logs of a master: logs are numbered from 0, one per core.
    LogId(u16)
}
id! {
    /// A core of one server: one event loop, one log.
    CoreId(u16)
}
id! {
    /// The version of an object. Only grows for a key, also over delete and re-create, crash and
    /// migration [RAMCloud §3.1]. The first version of an object is at least 1; 0 means "no
    /// object".
    ObjectVersion(u64)
}
id! {
    /// The version of the coordinator's server list. Every change adds one.
    ServerListVersion(u64)
}
id! {
    /// The version of everything the coordinator has stored. Every stored change adds one, under
    /// any leader. Zero stands for the metadata of a program that did not count: then the age of a
    /// copy is unknown.
    MetadataVersion(u64)
}
id! {
    /// Counts the times a segment lost a replica while it was open. Replicas of an open segment
    /// with a smaller number are stale: recovery must not use them [RAMCloud §8].
    ReplicationEpoch(u32)
}
id! {
    /// A client, drawn at random when it starts; together with a [`SequenceNumber`] it names one
    /// operation for ever.
    ClientId(u64)
}
id! {
    /// The number of an operation within its client.
    SequenceNumber(u64)
}
id! {
    /// One attempt to recover one crashed master.
    RecoveryId(u64)
}
id! {
    /// One attempt to move a tablet to another server. Given by the coordinator, never used again.
    MigrationId(u64)
}
