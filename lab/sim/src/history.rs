//! What clients did and saw, per key: the material of every checker.
//!
//! A [`History`] is filled while a simulation runs ([`History::invoke`], [`History::finish`]) and
//! read afterwards. It is not tied to simulations: whoever records real processes can use the
//! same checkers.
//!
//! Invariants
//! - HIST-1: ticks are unique and ascending: `a.returned < b.invoked` exactly when `a` had ended
//!   before `b` began.
//! - HIST-2: every write of bytes has a content of its own ([`Content::Bytes`] with a number used
//!   once), except for empty values.
//!
//! Not here: judging what was recorded (`check`).

use core::fmt;
use core::time::Duration;
use serde::{Deserialize, Serialize};

mod clocks;
mod exchange;
pub mod transactions;
mod whole;

pub use crate::condition::Condition;
pub use clocks::Clocks;
pub use exchange::{Answer, Change, Exchange, Request, Want};
pub use whole::{Begun, History, KeyHistory, KeyId, KeyKind, OrderedBatch, Scan};

/// How many parts a whole has: histories count numbers in quarters, which floating-point sums give
/// exactly.
pub const WHOLE: i64 = 4;

/// A number of quarters, for people.
#[expect(clippy::cast_precision_loss, reason = "numbers of tests are small")]
pub(crate) fn in_wholes(number: i64) -> f64 {
    number as f64 / WHOLE as f64
}

/// A value, as far as checkers need to know it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Content {
    /// The empty value.
    Empty,
    /// The bytes that the write with this number made; no other write makes them.
    Bytes(u64),
    /// A number in decimal text, in quarters ([`WHOLE`]).
    Number(i64),
    /// A value of a key of kind [`KeyKind::Value`] or [`KeyKind::Tokens`]; its hash.
    Hash(u64),
    /// Something that no client ever wrote; its hash.
    Damaged(u64),
}

impl Content {
    /// The value of a key whose bytes checkers know.
    #[must_use]
    pub fn of_bytes(value: &[u8]) -> Self {
        Self::Hash(twox_hash::XxHash3_64::oneshot(value))
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the empty value"),
            Self::Bytes(id) => write!(f, "value #{id}"),
            Self::Number(number) => write!(f, "number {}", in_wholes(*number)),
            Self::Hash(hash) => write!(f, "value {hash:016x}"),
            Self::Damaged(hash) => write!(f, "DAMAGED value {hash:016x}"),
        }
    }
}

/// What a client asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Action {
    /// Read the object.
    Read,
    /// Read it, under a condition.
    ReadIf {
        /// When to go ahead.
        condition: Condition,
    },
    /// Write it.
    Write {
        /// The new value.
        content: Content,
        /// When to go ahead; `None`: always.
        condition: Option<Condition>,
    },
    /// Delete it.
    Delete {
        /// When to go ahead; `None`: always.
        condition: Option<Condition>,
    },
    /// Add to the number in it.
    Add {
        /// What to add, in quarters.
        by: i64,
        /// When to go ahead; `None`: always.
        #[serde(default)]
        condition: Option<Condition>,
    },
    /// Change it as its [`Exchange`] says.
    Mutate {
        /// When to go ahead; `None`: always.
        condition: Option<Condition>,
    },
}

impl Action {
    /// The condition of the operation.
    #[must_use]
    pub fn condition(&self) -> Option<Condition> {
        match self {
            Self::Write { condition, .. }
            | Self::Delete { condition }
            | Self::Add { condition, .. }
            | Self::Mutate { condition } => *condition,
            Self::ReadIf { condition } => Some(*condition),
            Self::Read => None,
        }
    }

    /// Whether it changes nothing, whatever it meets.
    #[must_use]
    pub fn is_read(&self) -> bool {
        matches!(self, Self::Read | Self::ReadIf { .. })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read | Self::ReadIf { .. } => f.write_str("read"),
            Self::Write { content, .. } => write!(f, "write {content}"),
            Self::Delete { .. } => f.write_str("delete"),
            Self::Add { by, .. } => write!(f, "add {}", in_wholes(*by)),
            Self::Mutate { .. } => f.write_str("mutate"),
        }?;
        match self.condition() {
            Some(condition) => write!(f, " if {condition}"),
            None => Ok(()),
        }
    }
}

/// An answer that tells no version, as the Redis protocol gives it. That nothing was there to read
/// or to delete needs none: those are [`Outcome::Missing`] and [`Outcome::Deleted`] with version 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Plain {
    /// The read gave this value.
    Found {
        /// It.
        content: Content,
    },
    /// The write is acknowledged.
    Wrote,
    /// The write is acknowledged, and gave the value that it replaced, if there was an object. Or
    /// the delete is, and gave the value that it deleted.
    Replaced {
        /// That value.
        old: Option<Content>,
    },
    /// There was an object, and the delete of it is acknowledged.
    Deleted,
    /// The addition is acknowledged.
    Added {
        /// The new number, in quarters.
        sum: i64,
    },
    /// The condition did not hold.
    Refused,
}

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Found { content } => write!(f, "{content}"),
            Self::Wrote => f.write_str("written"),
            Self::Replaced { old: None } => f.write_str("written, there was no object"),
            Self::Replaced { old: Some(old) } => write!(f, "written, replaced {old}"),
            Self::Deleted => f.write_str("deleted"),
            Self::Added { sum } => write!(f, "sum {}", in_wholes(*sum)),
            Self::Refused => f.write_str("rejected"),
        }
    }
}

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// The read gave an object of this version.
    Found {
        /// Its version.
        version: u64,
        /// Its value.
        content: Content,
    },
    /// There was an object of this version; its value is not told here, and did not change.
    Seen {
        /// Its version.
        version: u64,
    },
    /// There was no object, and still is none.
    Missing,
    /// The write is acknowledged.
    Wrote {
        /// The new version.
        version: u64,
        /// The version it replaced; 0 when there was no object.
        replaced: u64,
    },
    /// The delete is acknowledged.
    Deleted {
        /// The version that was deleted; 0 when there was no object.
        version: u64,
    },
    /// The addition is acknowledged.
    Added {
        /// The new version.
        version: u64,
        /// The new number, in quarters.
        sum: i64,
    },
    /// The condition did not hold.
    Rejected {
        /// The object's version; 0 when there is no object.
        version: u64,
    },
    /// An answer without a version.
    Plain(Plain),
    /// It failed, and was not executed.
    NotDone,
    /// Whether it was or will be executed is not known.
    Unknown,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Found { version, content } => write!(f, "version {version} with {content}"),
            Self::Seen { version } => write!(f, "version {version}"),
            Self::Missing => f.write_str("no object"),
            Self::Wrote { version, replaced } => {
                write!(f, "version {version}, replaced {replaced}")
            }
            Self::Deleted { version } => write!(f, "deleted version {version}"),
            Self::Added { version, sum } => {
                write!(f, "version {version}, sum {}", in_wholes(*sum))
            }
            Self::Rejected { version } => write!(f, "rejected, the version is {version}"),
            Self::Plain(plain) => plain.fmt(f),
            Self::NotDone => f.write_str("failed, not executed"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// One operation on one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Who asked.
    pub client: u16,
    /// What for.
    pub action: Action,
    /// When it began (a tick, HIST-1).
    pub invoked: u64,
    /// When the client had its answer or gave up. `u64::MAX`: it still waits.
    pub returned: u64,
    /// What came of it.
    pub outcome: Outcome,
    /// Former lives of servers that got the operation and never answered, after which it was sent
    /// to another life. Without completion records, each might be one execution more.
    pub repeats: u8,
    /// Time of the beginning, for people.
    pub at: Duration,
    /// Time of the end, for people.
    pub until: Duration,
}

impl Record {
    /// Whether it had ended before `other` began.
    #[must_use]
    pub fn is_before(&self, other: &Self) -> bool {
        self.returned < other.invoked
    }

    /// The version that the operation left or found: `Some(0)` says that there was no object,
    /// `None` that it tells nothing.
    #[must_use]
    pub fn seen(&self) -> Option<u64> {
        match self.outcome {
            Outcome::Found { version, .. }
            | Outcome::Seen { version }
            | Outcome::Wrote { version, .. }
            | Outcome::Added { version, .. }
            | Outcome::Rejected { version } => Some(version),
            Outcome::Missing | Outcome::Deleted { .. } | Outcome::Plain(Plain::Deleted) => Some(0),
            Outcome::Plain(_) | Outcome::NotDone | Outcome::Unknown => None,
        }
    }

    /// The version that this operation made, when it is known.
    #[must_use]
    pub fn made(&self) -> Option<u64> {
        match self.outcome {
            Outcome::Wrote { version, .. } | Outcome::Added { version, .. } => Some(version),
            Outcome::Found { .. }
            | Outcome::Seen { .. }
            | Outcome::Missing
            | Outcome::Deleted { .. }
            | Outcome::Rejected { .. }
            | Outcome::Plain(_)
            | Outcome::NotDone
            | Outcome::Unknown => None,
        }
    }

    /// The value that the operation found, when it tells.
    #[must_use]
    pub fn shows(&self) -> Option<Content> {
        match self.outcome {
            Outcome::Found { content, .. } | Outcome::Plain(Plain::Found { content }) => {
                Some(content)
            }
            Outcome::Plain(Plain::Replaced { old }) => old,
            Outcome::Missing
            | Outcome::Seen { .. }
            | Outcome::Wrote { .. }
            | Outcome::Deleted { .. }
            | Outcome::Added { .. }
            | Outcome::Rejected { .. }
            | Outcome::Plain(_)
            | Outcome::NotDone
            | Outcome::Unknown => None,
        }
    }

    /// Whether the operation tells that there was no object when it took effect.
    #[must_use]
    pub fn found_nothing(&self) -> bool {
        match self.outcome {
            Outcome::Missing
            | Outcome::Rejected { version: 0 }
            | Outcome::Wrote { replaced: 0, .. }
            | Outcome::Deleted { version: 0 }
            | Outcome::Plain(Plain::Replaced { old: None }) => true,
            Outcome::Plain(Plain::Wrote) => self.action.condition().is_some_and(|c| c.absent),
            Outcome::Found { .. }
            | Outcome::Seen { .. }
            | Outcome::Wrote { .. }
            | Outcome::Deleted { .. }
            | Outcome::Added { .. }
            | Outcome::Rejected { .. }
            | Outcome::Plain(_)
            | Outcome::NotDone
            | Outcome::Unknown => false,
        }
    }

    /// Whether it may have changed the object, or may still.
    #[must_use]
    pub fn may_change(&self) -> bool {
        if self.action.is_read() {
            return false;
        }
        match self.outcome {
            Outcome::Found { .. }
            | Outcome::Seen { .. }
            | Outcome::Missing
            | Outcome::Rejected { .. }
            | Outcome::Plain(Plain::Found { .. } | Plain::Refused)
            | Outcome::NotDone => false,
            Outcome::Wrote { .. }
            | Outcome::Deleted { .. }
            | Outcome::Added { .. }
            | Outcome::Plain(
                Plain::Wrote | Plain::Replaced { .. } | Plain::Deleted | Plain::Added { .. },
            )
            | Outcome::Unknown => true,
        }
    }

    /// The last tick at which it may take effect.
    #[must_use]
    pub fn effect_end(&self) -> u64 {
        if self.outcome == Outcome::Unknown {
            u64::MAX
        } else {
            self.returned
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, until) = (self.at.as_secs_f64(), self.until.as_secs_f64());
        write!(
            f,
            "[{at:.6}s {until:.6}s] client {}: {} -> {}",
            self.client, self.action, self.outcome
        )?;
        if self.repeats > 0 {
            write!(f, " (sent again to another server {} times)", self.repeats)?;
        }
        Ok(())
    }
}
