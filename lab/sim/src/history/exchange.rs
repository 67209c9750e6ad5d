//! Operations on keys whose values checkers know byte by byte: any mutation, any read.
//!
//! An [`Exchange`] is a request and its answer, both whole. It stands in the history beside a
//! [`Record`](crate::history::Record) of the same operation. [`Request::action`] and
//! [`Answer::outcome`] make that one, for the checkers that look at versions only.
//!
//! Not here: what a mutation makes of a value (crate `mutation`).

use crate::condition::Condition;
use crate::history::{Action, Content, Outcome};
use bytes::Bytes;
use core::fmt;
use core::time::Duration;
use pluvio_mutation::{
    self as mutation, Addend, BitStep, Get, Lifetime, Mutation, Output, Projection, Span, TouchIf,
};
use pluvio_units::{ObjectVersion, TableId};

/// [`mutation::Change`] with bytes of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// The value is this from now on.
    Put(Bytes),
    /// There is no object any more.
    Delete,
    /// An integer is added.
    AddInteger(i64),
    /// A decimal number is added.
    AddDecimal(&'static str),
    /// These bytes are put behind it.
    Append(Bytes),
    /// These bytes replace some.
    SetRange {
        /// The first byte replaced.
        offset: u64,
        /// The new bytes.
        bytes: Bytes,
    },
    /// Steps on fields of bits.
    Bits(Vec<BitStep>),
    /// The lifetime changes alone.
    Touch(TouchIf),
    /// The value is this from now on, and the version at least that.
    PutVersion(Bytes, u64),
}

/// [`Projection`] with steps of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Want {
    /// The whole value.
    Value,
    /// Whether there is an object.
    Nothing,
    /// Its length.
    Length,
    /// Some of its bytes.
    Range(Span),
    /// Fields of bits.
    Bits(Vec<BitStep>),
    /// How many bits are set.
    BitCount(Span),
    /// Where the first such bit is.
    BitPosition {
        /// The bit looked for.
        bit: bool,
        /// Where to look.
        span: Span,
    },
    /// When it expires.
    Deadline,
    /// How long it still lives.
    TimeLeft,
}

/// What a client asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Change the object.
    Mutate {
        /// What its version must be.
        condition: Condition,
        /// What its value must be.
        value_is: Option<Bytes>,
        /// Whether the old value is to be answered.
        returns_old: bool,
        /// What to do.
        change: Change,
        /// How long the object lives afterwards; `None`: as usual for such a change.
        lifetime: Option<Lifetime>,
    },
    /// Read the object, or a part of it.
    Get {
        /// What its version must be.
        condition: Condition,
        /// What of it.
        want: Want,
    },
}

impl Request {
    /// A mutation that always goes ahead.
    #[must_use]
    pub fn mutate(change: Change) -> Self {
        Self::Mutate {
            condition: Condition::default(),
            value_is: None,
            returns_old: false,
            change,
            lifetime: None,
        }
    }

    /// A read of the whole value.
    #[must_use]
    pub fn read() -> Self {
        Self::Get {
            condition: Condition::default(),
            want: Want::Value,
        }
    }

    /// The condition on the version.
    #[must_use]
    pub fn condition(&self) -> Condition {
        match self {
            Self::Mutate { condition, .. } | Self::Get { condition, .. } => *condition,
        }
    }

    /// Whether it changes nothing, whatever it meets.
    #[must_use]
    pub fn is_read(&self) -> bool {
        matches!(self, Self::Get { .. })
    }

    /// The mutation of `key` that it asks for, in no table; `None`: it is a read.
    #[must_use]
    pub fn mutation<'a>(&'a self, key: &'a [u8]) -> Option<Mutation<'a>> {
        let Self::Mutate {
            condition,
            value_is,
            returns_old,
            change,
            lifetime,
        } = self
        else {
            return None;
        };
        let change = match change {
            Change::Put(value) => mutation::Change::Put(value.into()),
            Change::Delete => mutation::Change::Delete,
            Change::AddInteger(by) => mutation::Change::Add(Addend::Integer(*by)),
            Change::AddDecimal(by) => mutation::Change::Add(Addend::Decimal(by)),
            Change::Append(bytes) => mutation::Change::Append(bytes.into()),
            Change::SetRange { offset, bytes } => mutation::Change::SetRange {
                offset: *offset,
                bytes: bytes.into(),
            },
            Change::Bits(steps) => mutation::Change::Bits(steps),
            Change::Touch(when) => mutation::Change::Touch(*when),
            Change::PutVersion(value, version) => mutation::Change::PutVersion {
                value: value.into(),
                version: ObjectVersion(*version),
            },
        };
        let usual = Lifetime::of_change(&change);
        Some(Mutation {
            lifetime: lifetime.unwrap_or(usual),
            rules: condition.rules(),
            value_is: value_is.as_deref(),
            returns_old: *returns_old,
            ..Mutation::new(TableId(0), key, change)
        })
    }

    /// The read of `key` that it asks for, in no table; `None`: it is a mutation.
    #[must_use]
    pub fn get<'a>(&'a self, key: &'a [u8]) -> Option<Get<'a>> {
        let Self::Get { condition, want } = self else {
            return None;
        };
        let projection = match want {
            Want::Value => Projection::Value,
            Want::Nothing => Projection::Nothing,
            Want::Length => Projection::Length,
            Want::Range(span) => Projection::Range(*span),
            Want::Bits(steps) => Projection::Bits(steps),
            Want::BitCount(span) => Projection::BitCount(*span),
            Want::BitPosition { bit, span } => Projection::BitPosition {
                bit: *bit,
                span: *span,
            },
            Want::Deadline => Projection::Deadline,
            Want::TimeLeft => Projection::TimeLeft,
        };
        Some(Get {
            rules: condition.rules(),
            projection,
            ..Get::new(TableId(0), key)
        })
    }

    /// The request for checkers that do not look at values.
    #[must_use]
    pub fn action(&self) -> Action {
        let condition = Some(self.condition()).filter(|c| *c != Condition::default());
        match self {
            Self::Get { .. } => {
                condition.map_or(Action::Read, |condition| Action::ReadIf { condition })
            }
            Self::Mutate {
                change: Change::Delete,
                ..
            } => Action::Delete { condition },
            Self::Mutate { .. } => Action::Mutate { condition },
        }
    }
}

/// What came of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// This.
    Given(mutation::Outcome),
    /// It failed, and was not executed.
    NotDone,
    /// Whether it was or will be executed is not known.
    Unknown,
}

impl Answer {
    /// The answer for checkers that do not look at values.
    #[must_use]
    pub fn outcome(&self, request: &Request) -> Outcome {
        let given = match self {
            Self::Given(given) => given,
            Self::NotDone => return Outcome::NotDone,
            Self::Unknown => return Outcome::Unknown,
        };
        match given {
            mutation::Outcome::Written {
                version, replaced, ..
            } => Outcome::Wrote {
                version: version.0,
                replaced: replaced.0,
            },
            mutation::Outcome::Deleted { version, .. } => Outcome::Deleted { version: version.0 },
            mutation::Outcome::Rejected { version, .. }
                if !request.condition().holds(version.0) =>
            {
                Outcome::Rejected { version: version.0 }
            }
            // It has another value than was expected.
            mutation::Outcome::Rejected { version, .. } => seen(version.0),
            mutation::Outcome::Unchanged { version, output } => match (request, output) {
                (
                    Request::Get {
                        want: Want::Value, ..
                    },
                    Output::Bytes(value),
                ) => Outcome::Found {
                    version: version.0,
                    content: Content::of_bytes(value),
                },
                _ => seen(version.0),
            },
            // It tells no version.
            mutation::Outcome::Refused(_) | mutation::Outcome::Together { .. } => Outcome::NotDone,
        }
    }
}

fn seen(version: u64) -> Outcome {
    match version {
        0 => Outcome::Missing,
        version => Outcome::Seen { version },
    }
}

/// One operation on one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// Who asked.
    pub client: u16,
    /// What for.
    pub request: Request,
    /// When it began (a tick, HIST-1).
    pub invoked: u64,
    /// When the client had its answer or gave up. `u64::MAX`: it still waits.
    pub returned: u64,
    /// What came of it.
    pub answer: Answer,
    /// Time of the beginning, for people.
    pub at: Duration,
    /// Time of the end, for people.
    pub until: Duration,
}

impl Exchange {
    /// The whole value that the operation found, when it tells; empty when there was no object.
    #[must_use]
    pub fn shows(&self) -> Option<&[u8]> {
        let Answer::Given(outcome) = &self.answer else {
            return None;
        };
        let is_whole = match &self.request {
            Request::Mutate { returns_old, .. } => *returns_old,
            Request::Get { want, .. } => {
                *want == Want::Value && matches!(outcome, mutation::Outcome::Unchanged { .. })
            }
        };
        match outcome.output() {
            Output::Bytes(value) if is_whole => Some(value),
            Output::Nothing if is_whole => Some(&[]),
            Output::Nothing | Output::Bytes(_) | Output::Integer(_) | Output::Integers(_) => None,
        }
    }

    /// Whether it may have changed the object, or may still.
    #[must_use]
    pub fn may_change(&self) -> bool {
        !self.request.is_read()
            && matches!(
                self.answer,
                Answer::Unknown
                    | Answer::Given(
                        mutation::Outcome::Written { .. } | mutation::Outcome::Deleted { .. }
                    )
            )
    }

    /// The last tick at which it may take effect.
    #[must_use]
    pub fn effect_end(&self) -> u64 {
        match self.answer {
            Answer::Unknown => u64::MAX,
            Answer::Given(_) | Answer::NotDone => self.returned,
        }
    }
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, until) = (self.at.as_secs_f64(), self.until.as_secs_f64());
        write!(
            f,
            "[{at:.6}s {until:.6}s] client {}: {:?} -> {:?}",
            self.client, self.request, self.answer
        )
    }
}
