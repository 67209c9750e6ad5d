//! Why an operation failed.

use core::time::Duration;
use pluvio_units::ObjectVersion;
use pluvio_wire::{FatalKind, Refusal, RetryReason};

/// What kind of failure; see [`ClientError::kind`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A reject rule fired; nothing was changed.
    Rejected,
    /// The time was up before the cluster could do it.
    TimedOut,
    /// The reply was lost and the options forbid to try again: the operation may have been
    /// executed.
    MaybeExecuted,
    /// There is no such table.
    NoSuchTable,
    /// A key or a value is too long, or a table name is not allowed.
    BadArgument,
    /// The object is not a number, or the increment's result does not fit.
    BadNumber,
    /// No coordinator address was given.
    NoCoordinator,
    /// The table has as many bytes as its quota allows, and the change would make it larger;
    /// nothing was changed.
    OverQuota,
    /// The cluster refused for good for another reason.
    Refused,
    /// A reply could not be understood: client and cluster do not fit together.
    Protocol,
}

/// Why an operation failed. The text says what to do about it.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// A reject rule fired. Nothing was changed. Not retryable as it is: read the object again.
    #[error("a reject rule fired; the object's version is {version}")]
    Rejected {
        /// The object's version, 0 when there is no object.
        version: ObjectVersion,
    },
    /// The time was up. Retryable.
    #[error(
        "not done within {limit:?}{}: {last}",
        if *maybe_executed { ", but it may have been executed" } else { "" }
    )]
    TimedOut {
        /// The time that was given.
        limit: Duration,
        /// Why the cluster asked to wait, when it did.
        reason: Option<RetryReason>,
        /// What went wrong last, for people.
        last: String,
        /// Whether an operation that changes data may have been executed nevertheless.
        maybe_executed: bool,
    },
    /// The reply was lost: the operation may have been executed. Read before trying again.
    #[error("the operation may have been executed, its reply was lost: {0}")]
    MaybeExecuted(String),
    /// The cluster refused for good. Nothing was changed (except for
    /// [`FatalKind::ResultForgotten`]). Not retryable.
    #[error("{message}")]
    Refused {
        /// What kind.
        kind: FatalKind,
        /// What is wrong and what to do.
        message: String,
    },
    /// [`ClientOptions::coordinators`](crate::ClientOptions::coordinators) is empty.
    #[error("no coordinator: give the address of at least one")]
    NoCoordinator,
    /// A reply could not be understood. The operation may have been executed. Not retryable: client
    /// and cluster have versions that do not fit together.
    #[error("{0}")]
    Protocol(String),
}

impl ClientError {
    /// What kind of failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Rejected { .. } => ErrorKind::Rejected,
            Self::TimedOut { .. } => ErrorKind::TimedOut,
            Self::MaybeExecuted(_) => ErrorKind::MaybeExecuted,
            Self::Refused { kind, .. } => match kind {
                FatalKind::NoSuchTable => ErrorKind::NoSuchTable,
                FatalKind::KeyTooLong
                | FatalKind::ValueTooLong
                | FatalKind::TransactionTooLarge
                | FatalKind::BadTableName => ErrorKind::BadArgument,
                FatalKind::NotANumber | FatalKind::Overflow => ErrorKind::BadNumber,
                FatalKind::QuotaFull => ErrorKind::OverQuota,
                _ => ErrorKind::Refused,
            },
            Self::NoCoordinator => ErrorKind::NoCoordinator,
            Self::Protocol(_) => ErrorKind::Protocol,
        }
    }

    /// Whether the same call may succeed later. Mind [`ClientError::maybe_executed`].
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::TimedOut { .. } | Self::MaybeExecuted(_))
    }

    /// The same error, where it is known by now that nothing was done.
    #[must_use]
    pub fn into_not_executed(self) -> Self {
        match self {
            Self::TimedOut {
                limit,
                reason,
                last,
                maybe_executed: _,
            } => Self::TimedOut {
                limit,
                reason,
                last,
                maybe_executed: false,
            },
            other => other,
        }
    }

    /// Whether the operation may have been executed although it failed.
    #[must_use]
    pub fn maybe_executed(&self) -> bool {
        match self {
            Self::TimedOut { maybe_executed, .. } => *maybe_executed,
            Self::MaybeExecuted(_) | Self::Protocol(_) => true,
            Self::Refused { kind, .. } => *kind == FatalKind::ResultForgotten,
            Self::Rejected { .. } | Self::NoCoordinator => false,
        }
    }

    /// Why the cluster asked to wait until the time was up, when it did: a full memory, say.
    #[must_use]
    pub fn retry_reason(&self) -> Option<RetryReason> {
        match self {
            Self::TimedOut { reason, .. } => *reason,
            Self::Rejected { .. }
            | Self::MaybeExecuted(_)
            | Self::Refused { .. }
            | Self::NoCoordinator
            | Self::Protocol(_) => None,
        }
    }

    /// Why there was no room until the time was up, also in words.
    pub(crate) fn full(&self) -> Option<(RetryReason, String)> {
        match self {
            Self::TimedOut {
                reason: Some(reason),
                last,
                ..
            } if reason.is_full() => Some((*reason, last.clone())),
            _ => None,
        }
    }

    /// The final refusal's kind, when the cluster (or the client in its place) refused for good.
    #[must_use]
    pub fn fatal_kind(&self) -> Option<FatalKind> {
        match self {
            Self::Refused { kind, .. } => Some(*kind),
            Self::Rejected { .. }
            | Self::TimedOut { .. }
            | Self::MaybeExecuted(_)
            | Self::NoCoordinator
            | Self::Protocol(_) => None,
        }
    }

    /// The error of a refusal that no retry helps against.
    pub(crate) fn from_final(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Rejected { version } => Self::Rejected { version },
            Refusal::Fatal { kind, message } => Self::Refused { kind, message },
            Refusal::Retry { .. } | Refusal::Refresh => Self::Protocol(format!(
                "a refusal that should have been retried: {refusal}"
            )),
        }
    }
}
