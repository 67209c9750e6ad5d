//! Commands on one key as values: what its owner is asked, and the reply that the outcome becomes.
//!
//! Such a command is one read or one change, in one round trip. So the connection can execute it at
//! once where the key is here, and hold its outcome until that is durable. Where it has to wait,
//! the same value is asked by a future ([`run_one`]).

use super::expiry::{Unit, WallClock};
use super::{Commands, Data, EachKey, Single, bits, dump, expiry, is_rejected, is_there, strings};
use crate::database::{DatabaseId, InOrder, of_nothing, reading};
use crate::failure::{BUSY_KEY, of_unfit};
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::shared::Core;
use bytes::Bytes;
use pluvio_client::{BitStep, Change, Mutation, Operation, Outcome, Output, Projection};
use pluvio_mutation::{Now, look};
use pluvio_units::ObjectVersion;
use smallvec::SmallVec;

/// The outcome of an operation where there is no object, unless it makes one.
pub(crate) fn without_object(operation: &Operation<'_>) -> Option<Outcome> {
    match operation {
        Operation::Get(get) => Some(look(get, None, Now::default())),
        Operation::Mutate(mutation) => of_nothing(mutation),
    }
}

/// A command on one key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OneKey<'c> {
    /// What is asked.
    pub(crate) request: Operation<'c>,
    /// What the outcome becomes.
    pub(crate) shape: Shape,
}

impl<'c> OneKey<'c> {
    /// A read whose output is the reply.
    pub(super) fn read(key: &'c [u8], projection: Projection<'c>) -> Self {
        Self {
            request: Operation::Get(reading(key, projection)),
            shape: Shape::Output,
        }
    }

    /// A change whose output is the reply.
    pub(super) fn change(mutation: Mutation<'c>) -> Self {
        Self {
            request: Operation::Mutate(mutation),
            shape: Shape::Output,
        }
    }

    /// With another reply.
    pub(super) fn shaped(self, shape: Shape) -> Self {
        Self { shape, ..self }
    }

    /// Whether all it asks for is the value of its key.
    pub(crate) fn is_plain_get(&self) -> bool {
        matches!(&self.request, Operation::Get(get) if matches!(get.projection, Projection::Value))
            && self.shape == Shape::Output
    }
}

/// The reply that an outcome becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// Its output.
    Output,
    /// Its output; where the change does not fit the value, in the words for decimal numbers.
    Decimal,
    /// The first number of its output.
    First,
    /// Its output; of a missing key the empty value.
    Part,
    /// `+OK`.
    Ok,
    /// `+OK`, or nil when a condition did not hold; with `old`, the output in either case.
    Set {
        /// Whether the old value is the reply.
        old: bool,
    },
    /// 1, or 0 when a condition did not hold.
    IsDone,
    /// 1, or 0 when there was no object to delete.
    IsDeleted,
    /// 1, or 0 when there is no object.
    IsThere,
    /// Nil, or this error where there is an object.
    Wrong(&'static Failure),
    /// `BUSYKEY`, or this error where there is no object.
    BusyOr(&'static Failure),
    /// `+OK`, or `BUSYKEY` when there was an object.
    Restored,
    /// The value as DUMP gives it; nil when there is no object.
    Dump,
    /// 1, or 0 when the deadline stayed as it was.
    IsTouched,
    /// The number of milliseconds, or of seconds; -2 when there is no object.
    Time {
        /// Whether seconds are told.
        seconds: bool,
    },
    /// The type of the value.
    Type,
    /// A list without anything, whatever came of it.
    EmptyList,
}

impl Shape {
    /// The reply.
    pub(crate) fn reply(self, outcome: Outcome) -> Reply {
        if let Outcome::Refused(unfit) = outcome {
            return Reply::Error(of_unfit(self == Self::Decimal, unfit));
        }
        match self {
            Self::Output | Self::Decimal => outcome.into_output().into(),
            Self::First => match outcome.into_output().into() {
                Reply::Array(mut numbers) => numbers.pop().unwrap_or(Reply::Nil),
                other => other,
            },
            Self::Part => match outcome.into_output().into() {
                Reply::Nil => Reply::Bulk(Bytes::new()),
                part => part,
            },
            Self::Ok => Reply::OK,
            Self::Set { old: true } => outcome.into_output().into(),
            Self::Set { old: false } if is_rejected(&outcome) => Reply::Nil,
            Self::Set { old: false } => Reply::OK,
            Self::IsDone => Reply::flag(!is_rejected(&outcome)),
            Self::IsDeleted => Reply::flag(is_deleted(&outcome)),
            Self::IsThere => Reply::flag(is_there(&outcome)),
            Self::Wrong(failure) if is_there(&outcome) => Reply::Error(failure.clone()),
            Self::Wrong(_) => Reply::Nil,
            Self::BusyOr(_) if is_there(&outcome) => Reply::Error(BUSY_KEY),
            Self::BusyOr(failure) => Reply::Error(failure.clone()),
            Self::Restored if is_rejected(&outcome) => Reply::Error(BUSY_KEY),
            Self::Restored => Reply::OK,
            Self::Dump => match outcome.into_output() {
                Output::Bytes(value) => Reply::Bulk(crate::rdb::dump(&value).into()),
                other => other.into(),
            },
            Self::IsTouched => Reply::flag(!matches!(outcome, Outcome::Unchanged { .. })),
            Self::Time { seconds } => match outcome.into_output() {
                // Redis rounds to the nearest second.
                Output::Integer(ms) if seconds && ms >= 0 => {
                    Reply::Integer(ms.saturating_add(500) / 1000)
                }
                Output::Integer(ms) => Reply::Integer(ms),
                Output::Nothing | Output::Bytes(_) | Output::Integers(_) => Reply::Integer(-2),
            },
            Self::Type => Reply::Status(if is_there(&outcome) { "string" } else { "none" }),
            Self::EmptyList => Reply::Array(Vec::new()),
        }
    }
}

/// Whether a delete found something.
pub(super) fn is_deleted(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Deleted { version, .. } if *version != ObjectVersion(0))
}

/// Parts that a command on one key borrows, beside the command.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Steps on bits.
    pub(super) steps: Vec<BitStep>,
    /// The value, which shares the command's memory.
    pub(super) value: Bytes,
}

impl Scratch {
    /// Lets go of what the last command left.
    pub(crate) fn clear(&mut self) {
        self.value = Bytes::new();
        self.steps.clear();
    }
}

/// The command as a value; `None` when it is no single read or change of one key.
///
/// # Errors
/// Its arguments make no sense; nobody is asked.
pub(crate) fn one_key<'c>(
    what: Data,
    command: &'c Command,
    scratch: &'c mut Scratch,
    now: WallClock<'_>,
) -> Option<Result<OneKey<'c>, Failure>> {
    let is_one = command.len() == 2;
    match what {
        Data::Single(single) => Some(single_key(single, command, scratch, now)),
        Data::EachKey(EachKey::Del) if is_one => {
            let delete = crate::database::mutation(command.get(1), Change::Delete);
            Some(Ok(OneKey::change(delete).shaped(Shape::IsDeleted)))
        }
        Data::EachKey(EachKey::Exists | EachKey::Touch) if is_one => {
            let read = OneKey::read(command.get(1), Projection::Nothing);
            Some(Ok(read.shaped(Shape::IsThere)))
        }
        Data::EachKey(_)
        | Data::ReadsFirst(_)
        | Data::Script(_)
        | Data::Survey(_)
        | Data::Exec
        | Data::LogIn
        | Data::Watch
        | Data::Other(_) => None,
    }
}

fn single_key<'c>(
    single: Single,
    command: &'c Command,
    scratch: &'c mut Scratch,
    now: WallClock<'_>,
) -> Result<OneKey<'c>, Failure> {
    let key = command.get(1);
    match single {
        Single::Dump => Ok(dump::dump(command)),
        Single::Restore => dump::restore(command, scratch),
        Single::Get => Ok(OneKey::read(key, Projection::Value)),
        Single::GetEx => expiry::get(command, now),
        Single::StrLen => Ok(OneKey::read(key, Projection::Length)),
        Single::GetRange => strings::get_range(command),
        Single::Set => strings::set(command, scratch, now),
        Single::SetNx => Ok(strings::set_new(command, scratch)),
        Single::SetEx => expiry::set(command, scratch, Unit::EX, now),
        Single::PSetEx => expiry::set(command, scratch, Unit::PX, now),
        Single::Expire => expiry::expire(command, Unit::EX, now),
        Single::PExpire => expiry::expire(command, Unit::PX, now),
        Single::ExpireAt => expiry::expire(command, Unit::EXAT, now),
        Single::PExpireAt => expiry::expire(command, Unit::PXAT, now),
        Single::Persist => Ok(expiry::persist(command)),
        Single::Ttl => Ok(expiry::time(key, Projection::TimeLeft, true)),
        Single::PTtl => Ok(expiry::time(key, Projection::TimeLeft, false)),
        Single::ExpireTime => Ok(expiry::time(key, Projection::Deadline, true)),
        Single::PExpireTime => Ok(expiry::time(key, Projection::Deadline, false)),
        Single::GetSet => Ok(strings::get_and_set(command, scratch)),
        Single::GetDel => Ok(strings::get_and_delete(command)),
        Single::DelIfEq => Ok(strings::delete_if_equal(command)),
        Single::Append => Ok(strings::append(command, scratch)),
        Single::SetRange => strings::set_range(command, scratch),
        Single::Incr => Ok(strings::add(key, 1)),
        Single::Decr => Ok(strings::add(key, -1)),
        Single::IncrBy => strings::increment_by(command),
        Single::DecrBy => strings::decrement_by(command),
        Single::IncrByFloat => strings::increment_by_float(command),
        Single::GetBit => bits::get(command, scratch),
        Single::SetBit => bits::set(command, scratch),
        Single::BitCount => bits::count(command),
        Single::BitPos => bits::position(command),
        Single::BitField => bits::fields(command, scratch, false),
        Single::BitFieldRo => bits::fields(command, scratch, true),
        Single::Type => Ok(OneKey::read(key, Projection::Nothing).shaped(Shape::Type)),
    }
}

/// Counts whether a read found its key.
fn note_found(core: &Core, one: &OneKey<'_>, outcome: &Outcome) {
    if let Operation::Get(_) = one.request {
        core.counters.found(is_there(outcome));
    }
}

/// Asks the owner of the key, wherever it is, and waits for the outcome.
pub(super) async fn run_one(core: &Core, db: DatabaseId, one: OneKey<'_>) -> Reply {
    let outcome = match one.request {
        Operation::Get(get) => core.databases.get(db, get.key, get.projection).await,
        Operation::Mutate(mutation) => core.databases.mutate(db, mutation).await,
    };
    match outcome {
        Ok(outcome) => {
            note_found(core, &one, &outcome);
            one.shape.reply(outcome)
        }
        Err(failure) => Reply::Error(failure),
    }
}

/// [`run_one`] for several commands, one after the other. The first that fails ends it: those
/// behind it fail as it does. They are read by the time at which the run was put together, so they
/// are of the kind that they were then.
pub(super) async fn run_in_order(
    core: &Core,
    db: DatabaseId,
    run: &Commands,
) -> SmallVec<[Reply; 1]> {
    let commands = &run.all[..];
    let mut scratches: Vec<Scratch> = commands.iter().map(|_| Scratch::default()).collect();
    let ones = commands.iter().zip(&mut scratches);
    let now = || run.read_at;
    let ones = ones.map(|((what, command), scratch)| one_key(*what, command, scratch, &now));
    let ones: Option<Result<Vec<OneKey<'_>>, Failure>> = ones.collect();
    let ones = match ones {
        Some(Ok(ones)) => ones,
        Some(Err(failure)) => return commands.iter().map(|_| failed(&failure)).collect(),
        None => unreachable!("a run has only commands on one key"),
    };
    let requests = InOrder::of(ones.iter().map(|one| one.request));
    let requests = requests.expect("a run has commands of one kind");
    let (outcomes, failure) = core.databases.in_order(db, &requests).await;
    let done = outcomes.len();
    let replies = ones.iter().zip(outcomes);
    let replies = replies.map(|(one, outcome)| {
        note_found(core, one, &outcome);
        one.shape.reply(outcome)
    });
    let rest = failure.iter().flat_map(|failure| {
        let rest = commands.len() - done;
        core::iter::repeat_with(|| failed(failure)).take(rest)
    });
    replies.chain(rest).collect()
}

fn failed(failure: &Failure) -> Reply {
    Reply::Error(failure.clone())
}
