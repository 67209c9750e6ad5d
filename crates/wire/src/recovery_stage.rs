//! How far a recovery is: a value that programs compare and people read.

use core::fmt;
use pluvio_units::ServerId;
use serde::{Deserialize, Serialize};

/// How far the recovery of a crashed server is, in the order of an attempt. A stage that waits says
/// for what; the next attempt begins with [`RecoveryStage::Collecting`].
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum RecoveryStage {
    /// It has not begun.
    #[default]
    Queued,
    /// The crashed server kept no replicas: only the end of its lease proves that it serves nothing
    /// any more.
    AwaitingLease,
    /// The tablets that are left hold nothing; other servers are getting them.
    Reassigning,
    /// Backups are asked which replicas they have, and fence the crashed server.
    Collecting,
    /// The log is not complete on the backups that answered.
    AwaitingBackups {
        /// What is missing, for people.
        missing: String,
    },
    /// No server that is up can recover.
    AwaitingMaster {
        /// Servers are up that keep no replicas, and therefore cannot.
        volatile: bool,
    },
    /// Backups are sent the partitions.
    Announcing,
    /// Recovery masters replay their partitions.
    Replaying {
        /// How many.
        masters: u32,
        /// Failures of earlier attempts.
        failures: RecoveryFailures,
    },
    /// The partitions that failed are tried again after a pause.
    AwaitingRetry {
        /// Failures so far.
        failures: RecoveryFailures,
    },
    /// All tablets are back.
    Done,
}

impl RecoveryStage {
    /// A short name, for metrics and traces.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::AwaitingLease => "awaiting_lease",
            Self::Reassigning => "reassigning",
            Self::Collecting => "collecting",
            Self::AwaitingBackups { .. } => "awaiting_backups",
            Self::AwaitingMaster { .. } => "awaiting_master",
            Self::Announcing => "announcing",
            Self::Replaying { .. } => "replaying",
            Self::AwaitingRetry { .. } => "awaiting_retry",
            Self::Done => "done",
        }
    }
}

impl fmt::Display for RecoveryStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queued => f.write_str("waiting for its turn"),
            Self::AwaitingLease => f.write_str("waiting for its lease to end"),
            Self::Reassigning => f.write_str("giving tablets that hold nothing to other servers"),
            Self::Collecting => f.write_str("collecting replicas"),
            Self::AwaitingBackups { missing } => f.write_str(missing),
            Self::AwaitingMaster { volatile: false } => {
                f.write_str("waiting for a server that can recover")
            }
            Self::AwaitingMaster { volatile: true } => {
                f.write_str("waiting for a server that can recover; one with --replicas 0 cannot")
            }
            Self::Announcing => f.write_str("telling backups the partitions"),
            Self::Replaying {
                masters: 1,
                failures,
            } => write!(f, "replaying on 1 server{failures}"),
            Self::Replaying { masters, failures } => {
                write!(f, "replaying on {masters} servers{failures}")
            }
            Self::AwaitingRetry { failures } => {
                write!(
                    f,
                    "waiting to try again what could not be recovered{failures}"
                )
            }
            Self::Done => f.write_str("done"),
        }
    }
}

/// Which recovery masters failed, and why: a few of them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RecoveryFailures {
    /// By reason.
    pub reasons: Vec<RecoveryFailure>,
    /// Others failed for reasons that are left out.
    pub others: bool,
}

/// Recovery masters that failed for one reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RecoveryFailure {
    /// The reason, for people.
    pub why: String,
    /// Some of the masters.
    pub servers: Vec<ServerId>,
    /// How many masters are left out.
    pub more: u32,
}

/// Behind what is going on, with the punctuation that takes; empty when nothing failed.
impl fmt::Display for RecoveryFailures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = "; failed on ";
        for reason in &self.reasons {
            write!(f, "{before}{reason}")?;
            before = ", ";
        }
        match self.others {
            true => write!(f, "{before}others for other reasons"),
            false => Ok(()),
        }
    }
}

impl fmt::Display for RecoveryFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.servers.iter().map(ToString::to_string).collect();
        write!(f, "server {}", names.join(", "))?;
        if self.more > 0 {
            write!(f, " and {} more", self.more)?;
        }
        write!(f, " ({})", self.why)
    }
}
