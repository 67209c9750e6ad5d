//! Transactions over several keys, with what each of their steps saw.
//!
//! Every write has a token, a number that is used once in the whole history. A **register** holds
//! the token that was set last, or none. A **list** holds all tokens that were appended to it, so
//! that one read shows the order of all writes. An operation on one key is a transaction of one
//! step.
//!
//! - TRANS-1: no token is written by two steps of a history.
//! - TRANS-2: steps on a register are reads, sets and deletes; steps on a list are reads and
//!   appends.

use core::fmt;
use core::time::Duration;
use serde::{Deserialize, Serialize};

/// What a key holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Holds {
    /// The token of the last set.
    Register,
    /// The tokens of all appends, in their order.
    List,
}

/// What a step does to its key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum What {
    /// Reads it. In a transaction of unknown outcome: had to be so, or nothing was done.
    Read {
        /// The tokens, none where there is no object. `None`: nobody was told.
        saw: Option<Vec<u64>>,
    },
    /// Makes this the only token.
    Set {
        /// It.
        token: u64,
    },
    /// Puts a token behind the others.
    Append {
        /// It.
        token: u64,
        /// How many tokens there were then, if that was told.
        length: Option<u64>,
    },
    /// Deletes the object.
    Delete {
        /// Whether there was one, if that was told.
        found: Option<bool>,
    },
}

/// A step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// Its key, by its place in [`Transactions::keys`].
    pub key: u32,
    /// What it does.
    pub what: What,
}

/// How a transaction ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ended {
    /// It was done, and its steps saw what they say.
    Done,
    /// Nothing was done.
    NotDone,
    /// It was or will be done, or not.
    Unknown,
}

/// A transaction of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transaction {
    /// Whose.
    pub client: u16,
    /// What it does, in this order.
    pub steps: Vec<Step>,
    /// When it began (a tick, HIST-1).
    pub invoked: u64,
    /// When its answer was there; `u64::MAX`: there is none.
    pub returned: u64,
    /// How it ended.
    pub ended: Ended,
    /// Time of the beginning, for people.
    pub at: Duration,
    /// Time of the end, for people.
    pub until: Duration,
}

/// A key of transactions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransactionKey {
    /// The key, for people.
    pub name: String,
    /// What it holds.
    pub holds: Holds,
}

/// All transactions of a history.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Transactions {
    /// Their keys.
    pub keys: Vec<TransactionKey>,
    /// They, in the order of their beginnings.
    pub all: Vec<Transaction>,
}

impl Transactions {
    /// Adds a key. Gives its place.
    ///
    /// # Panics
    /// At the 2^32nd key.
    pub fn key(&mut self, name: impl Into<String>, holds: Holds) -> u32 {
        let place = u32::try_from(self.keys.len()).expect("a run has fewer than 2^32 keys");
        let name = name.into();
        self.keys.push(TransactionKey { name, holds });
        place
    }

    /// A transaction begins. Gives its place. Until it has ended, nobody knows what came of it.
    pub fn begin(&mut self, client: u16, steps: Vec<Step>, tick: u64, now: Duration) -> usize {
        self.all.push(Transaction {
            client,
            steps,
            invoked: tick,
            returned: u64::MAX,
            ended: Ended::Unknown,
            at: now,
            until: now,
        });
        self.all.len() - 1
    }

    /// It has ended. `steps` say what they saw.
    pub fn end(&mut self, place: usize, ended: Ended, steps: Vec<Step>, tick: u64, now: Duration) {
        let transaction = &mut self.all[place];
        transaction.steps = steps;
        transaction.ended = ended;
        transaction.until = now;
        // One that nobody knows of may still be done later.
        if ended != Ended::Unknown {
            transaction.returned = tick;
        }
    }

    /// A transaction in words.
    #[must_use]
    pub fn in_words(&self, place: usize) -> String {
        let transaction = &self.all[place];
        let steps = transaction.steps.iter().map(|step| {
            let name = self.keys.get(step.key as usize);
            let name = name.map_or("?", |key| key.name.as_str());
            format!("{name}: {}", step.what)
        });
        let steps: Vec<String> = steps.collect();
        let (at, until) = (transaction.at, transaction.until);
        format!(
            "[{:.6}s {:.6}s] client {}: {} -> {}",
            at.as_secs_f64(),
            until.as_secs_f64(),
            transaction.client,
            steps.join(", "),
            transaction.ended
        )
    }
}

impl What {
    /// Whether it changes nothing.
    #[must_use]
    pub fn is_read(&self) -> bool {
        match self {
            Self::Read { .. } => true,
            Self::Set { .. } | Self::Append { .. } | Self::Delete { .. } => false,
        }
    }

    /// Whether TRANS-2 allows it.
    #[must_use]
    pub fn fits(&self, holds: Holds) -> bool {
        match (self, holds) {
            (Self::Read { .. }, _) | (Self::Append { .. }, Holds::List) => true,
            (Self::Set { .. } | Self::Delete { .. }, Holds::Register) => true,
            (Self::Append { .. }, Holds::Register)
            | (Self::Set { .. } | Self::Delete { .. }, Holds::List) => false,
        }
    }

    /// The token that it writes.
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        match self {
            Self::Set { token } | Self::Append { token, .. } => Some(*token),
            Self::Read { .. } | Self::Delete { .. } => None,
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { saw: None } => f.write_str("read"),
            Self::Read { saw: Some(saw) } => write!(f, "read {saw:?}"),
            Self::Set { token } => write!(f, "set {token}"),
            Self::Append {
                token,
                length: None,
            } => write!(f, "append {token}"),
            Self::Append {
                token,
                length: Some(length),
            } => write!(f, "append {token} as number {length}"),
            Self::Delete { found: None } => f.write_str("delete"),
            Self::Delete { found: Some(true) } => f.write_str("delete what was there"),
            Self::Delete { found: Some(false) } => f.write_str("delete nothing"),
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "done",
            Self::NotDone => "not done",
            Self::Unknown => "unknown",
        })
    }
}

/// Tokens as values of objects: eight hexadecimal digits each.
pub mod tokens {
    /// Bytes of a token.
    pub const WIDTH: usize = 8;

    /// The bytes of a token.
    #[must_use]
    pub fn bytes(token: u64) -> Vec<u8> {
        format!("{token:0WIDTH$x}").into_bytes()
    }

    /// The tokens of a value; `None`: nobody writes such a value.
    #[must_use]
    pub fn read(value: &[u8]) -> Option<Vec<u64>> {
        let (tokens, rest) = value.as_chunks::<WIDTH>();
        if !rest.is_empty() || tokens.is_empty() {
            return None;
        }
        let token = |digits: &[u8; WIDTH]| {
            let text = core::str::from_utf8(digits).ok()?;
            u64::from_str_radix(text, 16).ok()
        };
        tokens.iter().map(token).collect()
    }

    /// The number of tokens that this number of bytes is.
    #[must_use]
    pub fn count(bytes: u64) -> Option<u64> {
        let width = WIDTH as u64;
        bytes.is_multiple_of(width).then_some(bytes / width)
    }
}
