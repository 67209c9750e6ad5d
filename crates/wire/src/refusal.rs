//! The reason why a request was not done, and what its caller can do about it.

use core::fmt;
use core::time::Duration;
use pluvio_units::ObjectVersion;
use serde::{Deserialize, Serialize};

/// Why to come again later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RetryReason {
    /// The master's log memory is at its limit; deleting objects or adding servers helps.
    MemoryFull,
    /// Fewer backups are up than the minimum number of replicas.
    TooFewBackups,
    /// The tablet is being recovered or moved.
    TabletNotReady,
    /// The server is not yet, or perhaps no longer, a member of the cluster.
    NotServing,
    /// The same operation is still running.
    InProgress,
    /// A queue is full.
    Busy,
    /// The backup has no room on its disk or in its buffers.
    NoSpace,
    /// The data is not ready yet, or changes stand still for a moment.
    NotReady,
    /// This coordinator does not lead, or not for sure: another one may.
    NotLeader,
    /// The coordinator's metadata store takes no changes at the moment. One that was begun before
    /// is stored when it can be.
    MetadataTrouble,
    /// A transaction of several servers has locked the key, and is not decided yet.
    Locked,
    /// The server has used up its share of the bytes that the table may have. It gets more soon,
    /// if the table has some left. Since version 8.
    QuotaShare,
    /// The table has had more operations than it may have in a second. Since version 8.
    QuotaOperations,
    /// Another backup is at work. Since version 8.
    OtherBackup,
}

impl RetryReason {
    /// Whether there is no room for more at the moment: in memory, or in a quota.
    #[must_use]
    pub fn is_full(self) -> bool {
        matches!(
            self,
            Self::MemoryFull | Self::QuotaShare | Self::QuotaOperations
        )
    }
}

impl fmt::Display for RetryReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MemoryFull => "the server's memory is full: delete objects or add servers",
            Self::TooFewBackups => "too few backups are up for the minimum number of replicas",
            Self::TabletNotReady => "the tablet is being recovered or moved",
            Self::NotServing => "the server is not serving",
            Self::InProgress => "the same operation is still running",
            Self::Busy => "the server is busy",
            Self::NoSpace => "the backup has no space left",
            Self::NotReady => "not ready yet",
            Self::NotLeader => "this coordinator does not lead",
            Self::MetadataTrouble => "the coordinator's metadata store takes no changes",
            Self::Locked => "a transaction of several servers has locked the key",
            Self::QuotaShare => "the server's share of the table's quota of bytes is used up",
            Self::QuotaOperations => "the table has its quota of operations a second",
            Self::OtherBackup => "another backup is at work",
        })
    }
}

/// What kind of final refusal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FatalKind {
    /// The message could not be decoded, or breaks a rule of the protocol.
    Malformed,
    /// An unknown operation, or one this process does not answer.
    Unsupported,
    /// The key is longer than `KEY_MAX`.
    KeyTooLong,
    /// The value is longer than `VALUE_MAX`.
    ValueTooLong,
    /// A transaction with more steps or bytes than one may have.
    TransactionTooLarge,
    /// The keys of a transaction belong to several servers.
    SeveralOwners,
    /// There is no such table.
    NoSuchTable,
    /// A table name that is empty or too long.
    BadTableName,
    /// The value is not a number of the wanted kind.
    NotANumber,
    /// The result of an increment does not fit, or is not finite.
    Overflow,
    /// The caller is not, or no longer, a member of this cluster.
    NotInCluster,
    /// The caller or its data belongs to another cluster.
    WrongCluster,
    /// The caller speaks another version of the protocol.
    WrongVersion,
    /// The data directory belongs to a server that is still alive.
    AlreadyRunning,
    /// There is no such replica, segment, recovery or tablet.
    NotFound,
    /// The replica is damaged on disk.
    Corrupt,
    /// A replica that the request would write to is closed, newer, or being recovered from.
    Stale,
    /// The operation was executed, but its result is no longer kept.
    ResultForgotten,
    /// The table has as many bytes as its quota allows, and the change would make it larger. Since
    /// version 8.
    QuotaFull,
    /// A transaction that changes something, over volatile tables and others. Since version 8.
    VolatileWithOthers,
    /// Something else.
    Other,
}

/// Why a request was not done. Nothing was changed, unless a variant says otherwise.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Refusal {
    /// Come again after this many microseconds.
    Retry {
        /// When to come again.
        after_us: u32,
        /// Why.
        why: RetryReason,
    },
    /// This server does not have the tablet, or is another one than the caller means: ask the
    /// coordinator where it is now.
    Refresh,
    /// A reject rule fired.
    Rejected {
        /// The object's version, 0 when there is no object.
        version: ObjectVersion,
    },
    /// Trying again gives the same answer.
    Fatal {
        /// What kind.
        kind: FatalKind,
        /// The fault and its cure, for people.
        message: String,
    },
}

impl Refusal {
    /// Come again after `after`.
    #[must_use]
    pub fn retry(after: Duration, why: RetryReason) -> Self {
        Self::Retry {
            after_us: u32::try_from(after.as_micros()).unwrap_or(u32::MAX),
            why,
        }
    }

    /// A final refusal.
    #[must_use]
    pub fn fatal(kind: FatalKind, message: impl Into<String>) -> Self {
        Self::Fatal {
            kind,
            message: message.into(),
        }
    }

    /// The message could not be understood.
    #[must_use]
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::fatal(FatalKind::Malformed, message)
    }

    /// The kind, when final.
    #[must_use]
    pub fn fatal_kind(&self) -> Option<FatalKind> {
        match self {
            Self::Fatal { kind, .. } => Some(*kind),
            Self::Retry { .. } | Self::Refresh | Self::Rejected { .. } => None,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retry { why, .. } => write!(f, "{why}"),
            Self::Refresh => f.write_str("the tablet is on another server"),
            Self::Rejected { version } => {
                write!(f, "a reject rule fired; the object's version is {version}")
            }
            Self::Fatal { message, .. } => f.write_str(message),
        }
    }
}

impl std::error::Error for Refusal {}
