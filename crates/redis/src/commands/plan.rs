//! Commands as steps of a transaction: the operations on their keys, and what the outcomes become.
//!
//! A command has a plan if its operations do not depend on each other's outcomes. Others read first
//! and then decide; those run on an [overlay](super::overlay).

use super::expiry::WallClock;
use super::one_key::{Scratch, Shape, is_deleted, one_key};
use super::{Data, EachKey, is_there};
use crate::database::{mutation, reading};
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::table::wrong_arity;
use pluvio_client::{Change, Operation, Outcome, Projection};
use smallvec::{SmallVec, smallvec};

/// What the outcomes of a command become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gather {
    /// The one outcome, in this shape.
    One(Shape),
    /// How many objects were deleted.
    Deleted,
    /// How many objects are there.
    There,
    /// All values.
    Values,
    /// `+OK`.
    Ok,
}

/// A command whose operations are known.
#[derive(Debug)]
pub(crate) struct Plan<'c> {
    pub(crate) operations: SmallVec<[Operation<'c>; 1]>,
    pub(crate) gather: Gather,
}

impl Gather {
    /// The reply. There is an outcome for each operation.
    pub(crate) fn reply(self, outcomes: impl IntoIterator<Item = Outcome>) -> Reply {
        let mut outcomes = outcomes.into_iter();
        match self {
            Self::One(shape) => match outcomes.next() {
                Some(outcome) => shape.reply(outcome),
                None => Reply::Nil,
            },
            Self::Deleted => Reply::count(outcomes.filter(is_deleted).count() as u64),
            Self::There => Reply::count(outcomes.filter(is_there).count() as u64),
            Self::Values => Reply::Array(
                outcomes
                    .map(|outcome| outcome.into_output().into())
                    .collect(),
            ),
            Self::Ok => Reply::OK,
        }
    }
}

/// The command as operations; `None` when it has to be run another way.
///
/// # Errors
/// Its arguments make no sense; nobody is asked.
pub(crate) fn plan<'c>(
    what: Data,
    command: &'c Command,
    scratch: &'c mut Scratch,
    now: WallClock<'_>,
) -> Option<Result<Plan<'c>, Failure>> {
    if let Some(one) = one_key(what, command, scratch, now) {
        return Some(one.map(|one| Plan {
            operations: smallvec![one.request],
            gather: Gather::One(one.shape),
        }));
    }
    let each = |operation: fn(&'c [u8]) -> Operation<'c>, gather| {
        Ok(Plan {
            operations: command.from(1).map(operation).collect(),
            gather,
        })
    };
    let Data::EachKey(which) = what else {
        return None;
    };
    Some(match which {
        EachKey::Del => each(
            |key| Operation::Mutate(mutation(key, Change::Delete)),
            Gather::Deleted,
        ),
        EachKey::Exists | EachKey::Touch => each(
            |key| Operation::Get(reading(key, Projection::Nothing)),
            Gather::There,
        ),
        EachKey::MGet => each(
            |key| Operation::Get(reading(key, Projection::Value)),
            Gather::Values,
        ),
        EachKey::MSet if command.len().is_multiple_of(2) => Err(wrong_arity("mset")),
        EachKey::MSet => {
            let put = |at: usize| {
                let put = Change::Put(command.get(at + 1).into());
                Operation::Mutate(mutation(command.get(at), put))
            };
            Ok(Plan {
                operations: (1..command.len()).step_by(2).map(put).collect(),
                gather: Gather::Ok,
            })
        }
    })
}
