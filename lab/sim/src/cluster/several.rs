//! Parts of transactions over registers and lists, as clients ask for them, as the client library
//! has them, and as the history has them. Simulations and tortures share them.
//!
//! Every write has a token of its own ([`crate::history::transactions`]).

use crate::history::transactions::{Holds, Step, What, tokens};
use pluvio_client::{
    Change, Client, ClientError, Get, Mutation, Operation, Outcome, Output, Table, Transacted,
    TransactionStep,
};

/// A key of transactions.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Its number in the history.
    pub id: u32,
    /// What it holds.
    pub holds: Holds,
    /// Its bytes.
    pub key: Vec<u8>,
    /// Which of the tables it lies in.
    pub table: usize,
}

impl Shared {
    /// The table of these that it lies in. There has to be one; where there are few, more keys lie
    /// in each.
    #[must_use]
    pub fn table<'t, T>(&self, tables: &'t [T]) -> &'t T {
        &tables[self.table % tables.len()]
    }
}

/// What is to be done to a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// Read it.
    Read,
    /// Make this its token.
    Set(u64),
    /// The same, and learn the one from before.
    Swap(u64),
    /// Put a token behind the others.
    Append(u64),
    /// Delete it.
    Delete,
    /// The same, and learn the token from before.
    Take,
}

/// A part of a transaction.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The key.
    pub key: Shared,
    /// What is to be done to it.
    pub wish: Wish,
}

/// What was answered to a part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// The tokens, or those from before.
    Value(Vec<u64>),
    /// Done.
    Done,
    /// It is done, and there are this many tokens.
    Length(u64),
    /// It is done, and whether there was an object.
    Found(bool),
}

impl Told {
    /// What a value says; `None`: nobody writes such a value.
    #[must_use]
    pub fn value(value: Option<&[u8]>) -> Option<Self> {
        let tokens = value.map_or_else(|| Some(Vec::new()), tokens::read);
        tokens.map(Self::Value)
    }

    /// What a length in bytes says.
    #[must_use]
    pub fn length(bytes: u64) -> Option<Self> {
        tokens::count(bytes).map(Self::Length)
    }
}

impl Wish {
    /// The wish of the dice, a number below 100, for a key. `token` gives a new one.
    #[must_use]
    pub fn of(holds: Holds, dice: u64, token: impl FnOnce() -> u64) -> Self {
        match (holds, dice) {
            (_, 0..40) => Self::Read,
            (Holds::List, _) => Self::Append(token()),
            (Holds::Register, 40..65) => Self::Set(token()),
            (Holds::Register, 65..86) => Self::Swap(token()),
            (Holds::Register, 86..93) => Self::Delete,
            (Holds::Register, _) => Self::Take,
        }
    }
}

/// The parts as the history has them. `told`: what was answered to each, if anything was.
#[must_use]
pub fn steps(parts: &[Wanted], told: Option<&[Told]>) -> Vec<Step> {
    let mut steps = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let told = told.and_then(|told| told.get(at));
        let mut add = |what| {
            let key = part.key.id;
            steps.push(Step { key, what });
        };
        let saw = match told {
            Some(Told::Value(saw)) => Some(saw.clone()),
            Some(Told::Done | Told::Length(_) | Told::Found(_)) | None => None,
        };
        let (length, mut found) = match told {
            Some(Told::Length(length)) => (Some(*length), None),
            Some(Told::Found(found)) => (None, Some(*found)),
            Some(Told::Done | Told::Value(_)) | None => (None, None),
        };
        match part.wish {
            Wish::Read => add(What::Read { saw }),
            Wish::Set(token) => add(What::Set { token }),
            Wish::Swap(token) => {
                add(What::Read { saw });
                add(What::Set { token });
            }
            Wish::Append(token) => add(What::Append { token, length }),
            Wish::Delete => add(What::Delete { found }),
            Wish::Take => {
                found = saw.as_ref().map(|saw| !saw.is_empty());
                add(What::Read { saw });
                add(What::Delete { found });
            }
        }
    }
    steps
}

/// A condition that a key holds these tokens.
#[must_use]
pub fn holds(key: &Shared, saw: &[u64]) -> Step {
    let saw = Some(saw.to_vec());
    Step {
        key: key.id,
        what: What::Read { saw },
    }
}

/// The bytes that a part writes.
#[must_use]
pub fn written(wish: Wish) -> Vec<u8> {
    match wish {
        Wish::Set(token) | Wish::Swap(token) | Wish::Append(token) => tokens::bytes(token),
        Wish::Read | Wish::Delete | Wish::Take => Vec::new(),
    }
}

/// A part as the library has it.
#[must_use]
pub fn operation<'a>(part: &'a Wanted, value: &'a [u8], table: &Table) -> Operation<'a> {
    let key = &part.key.key;
    let change = match part.wish {
        Wish::Read => return Operation::Get(Get::new(table.id(), key)),
        Wish::Set(_) | Wish::Swap(_) => Change::Put(value.into()),
        Wish::Append(_) => Change::Append(value.into()),
        Wish::Delete | Wish::Take => Change::Delete,
    };
    Operation::Mutate(Mutation {
        returns_old: matches!(part.wish, Wish::Swap(_) | Wish::Take),
        ..Mutation::new(table.id(), key, change)
    })
}

/// What an outcome says; `None`: no server may give such an answer.
#[must_use]
pub fn told(part: &Wanted, outcome: &Outcome) -> Option<Told> {
    let value = |output: &Output| match output {
        Output::Nothing => Told::value(None),
        Output::Bytes(value) => Told::value(Some(value)),
        Output::Integer(_) | Output::Integers(_) => None,
    };
    match (part.wish, outcome) {
        (Wish::Read, Outcome::Unchanged { output, .. }) => value(output),
        (Wish::Set(_), Outcome::Written { .. }) => Some(Told::Done),
        (Wish::Swap(_), Outcome::Written { output, .. }) => value(output),
        (Wish::Append(_), Outcome::Written { output, .. }) => match output {
            Output::Integer(bytes) => Told::length(u64::try_from(*bytes).ok()?),
            Output::Nothing | Output::Bytes(_) | Output::Integers(_) => None,
        },
        (Wish::Delete, Outcome::Deleted { version, .. } | Outcome::Unchanged { version, .. }) => {
            Some(Told::Found(version.0 > 0))
        }
        (Wish::Take, Outcome::Deleted { output, .. } | Outcome::Unchanged { output, .. }) => {
            value(output)
        }
        _ => None,
    }
}

/// Does parts at one moment. Gives what was told of each; `None`: no server may answer so.
///
/// # Errors
/// They were not done, or nobody knows.
pub async fn by_library(
    client: &Client,
    tables: &[Table],
    parts: &[Wanted],
) -> Result<Option<Vec<Told>>, ClientError> {
    let values: Vec<Vec<u8>> = parts.iter().map(|part| written(part.wish)).collect();
    let both = parts.iter().zip(&values);
    let steps: Vec<_> = both
        .map(|(part, value)| {
            let table = part.key.table(tables);
            let operation = operation(part, value, table);
            (table, TransactionStep::new(operation))
        })
        .collect();
    Ok(match client.transact(&steps).await? {
        Transacted::Committed(outcomes) => {
            let told = parts.iter().zip(&outcomes).map(|(part, o)| told(part, o));
            told.collect()
        }
        Transacted::Refused { .. } => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_in_the_steps() {
        let key = |id, holds| Shared {
            id,
            holds,
            key: Vec::new(),
            table: 0,
        };
        let part = |id, holds, wish| Wanted {
            key: key(id, holds),
            wish,
        };
        let parts = [
            part(0, Holds::Register, Wish::Swap(7)),
            part(0, Holds::Register, Wish::Take),
            part(1, Holds::List, Wish::Append(8)),
        ];
        let told = [
            Told::value(None).unwrap(),
            Told::value(Some(&tokens::bytes(7))).unwrap(),
            Told::length(16).unwrap(),
        ];
        let whats = |steps: Vec<Step>| -> Vec<String> {
            let texts = steps
                .iter()
                .map(|step| format!("{} {}", step.key, step.what));
            texts.collect()
        };
        assert_eq!(
            whats(steps(&parts, Some(&told))),
            [
                "0 read []",
                "0 set 7",
                "0 read [7]",
                "0 delete what was there",
                "1 append 8 as number 2"
            ]
        );
        let unknown = ["0 read", "0 set 7", "0 read", "0 delete", "1 append 8"];
        assert_eq!(whats(steps(&parts, None)), unknown);
        assert_eq!(Told::value(Some(b"nonsense")), None);
        assert_eq!(Told::length(9), None);
    }
}
