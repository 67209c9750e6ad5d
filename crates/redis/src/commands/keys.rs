//! Commands on several keys, and on keys whatever their values.

use super::one_key::is_deleted;
use super::{CommandResult, Data, EachKey, is_there, transaction};
use crate::database::{DatabaseId, mutation};
use crate::failure;
use crate::give_way::give_way;
use crate::memory::MemoryAccount;
use crate::number::integer;
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::shared::Core;
use crate::table::wrong_arity;
use bytes::Bytes;
use futures_util::future::join_all;
use pluvio_client::{Change, Output, Projection, Span};
use std::collections::BTreeMap;

/// Memory of a value in a reply that is being built, beside its bytes.
const VALUE_OVERHEAD: usize = 64;

/// Bytes of an object in the log besides its key and value: 14 to about 25, by the size of its
/// numbers (docs/log-format.md, kind 1).
const OBJECT_OVERHEAD: usize = 20;

fn different<'a>(keys: impl Iterator<Item = &'a [u8]>) -> Vec<&'a [u8]> {
    let mut keys: Vec<_> = keys.collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// DEL and UNLINK: at one moment where that is possible, else each by itself. In full memory there
/// may be no room to do it at one moment, and deleting is what helps then.
pub(super) async fn delete(core: &Core, db: DatabaseId, command: &Command) -> CommandResult {
    match transaction::at_one_moment(core, db, Data::EachKey(EachKey::Del), command).await {
        Ok(Some(reply)) => return Ok(reply),
        Ok(None) => {}
        // Nothing was done: where that is not known, the failure says so.
        Err(failure) if failure.is_of_full_memory() => {}
        Err(failure) => return Err(failure),
    }
    let keys = different(command.from(1));
    let deletes: Vec<_> = keys
        .iter()
        .map(|key| mutation(key, Change::Delete))
        .collect();
    let outcomes = core.databases.multi_mutate(db, &deletes).await?;
    let deleted = outcomes.iter().filter(|outcome| is_deleted(outcome));
    Ok(Reply::count(deleted.count() as u64))
}

/// EXISTS and TOUCH: a key counts as often as it is given.
pub(super) async fn exist(core: &Core, db: DatabaseId, command: &Command) -> CommandResult {
    let keys: Vec<_> = command.from(1).collect();
    let outcomes = core.databases.multi_get(db, &keys, Projection::Nothing);
    let outcomes = outcomes.await?;
    let there = outcomes.iter().filter(|outcome| is_there(outcome));
    Ok(Reply::count(there.count() as u64))
}

/// MGET. It reads some keys at a time. The size of its reply is known after each step, so it may
/// exceed its limit by the values of one.
pub(super) async fn get_all(
    core: &Core,
    account: &MemoryAccount,
    db: DatabaseId,
    command: &Command,
) -> CommandResult {
    let keys: Vec<_> = command.from(1).collect();
    let limit = core.options().reply_bytes_max;
    let (clock, patience) = (
        &core.databases.parts().clock,
        core.databases.client().timeout(),
    );
    let mut building = account.build();
    let mut replies = Vec::with_capacity(keys.len());
    let mut rest = &keys[..];
    while !rest.is_empty() {
        if !replies.is_empty() {
            give_way().await;
        }
        let (step, others) = rest.split_at(core.step_keys().min(rest.len()));
        rest = others;
        let expected = step.len() * core.value_bytes();
        building.room(expected, &**clock, patience).await?;
        let before = building.bytes();
        let values = core.databases.multi_get(db, step, Projection::Value);
        for value in values.await? {
            let reply = Reply::from(value.into_output());
            building.grow(reply.size() + VALUE_OVERHEAD, limit)?;
            replies.push(reply);
        }
        core.note_values((building.bytes() - before) / step.len());
    }
    Ok(Reply::Array(replies))
}

/// Keys and values; of a key that is given twice the last value counts.
fn pairs(command: &Command, name: &str) -> Result<BTreeMap<Bytes, Bytes>, Failure> {
    if command.len().is_multiple_of(2) {
        return Err(wrong_arity(name));
    }
    let at = (1..command.len()).step_by(2);
    Ok(at
        .map(|i| (command.share(i), command.share(i + 1)))
        .collect())
}

/// MSET: at one moment where that is possible, else each by itself.
pub(super) async fn set_all(core: &Core, db: DatabaseId, command: &Command) -> CommandResult {
    if let Some(reply) =
        transaction::at_one_moment(core, db, Data::EachKey(EachKey::MSet), command).await?
    {
        return Ok(reply);
    }
    let pairs = pairs(command, "mset")?;
    let puts = pairs
        .iter()
        .map(|(k, v)| mutation(k, Change::Put(v.into())));
    let puts: Vec<_> = puts.collect();
    core.databases.multi_mutate(db, &puts).await?;
    Ok(Reply::OK)
}

pub(super) async fn db_size(core: &Core, db: DatabaseId) -> CommandResult {
    let count = core.databases.count(db).await?;
    Ok(Reply::count(count.objects))
}

/// FLUSHDB and FLUSHALL take one word, which changes nothing here: tables are dropped at once and
/// their memory is cleaned later.
fn check_flush(command: &Command) -> Result<(), Failure> {
    let known = command.is(1, "SYNC") || command.is(1, "ASYNC");
    if command.len() == 1 || (command.len() == 2 && known) {
        return Ok(());
    }
    Err(failure::SYNTAX)
}

pub(super) async fn flush_db(core: &Core, db: DatabaseId, command: &Command) -> CommandResult {
    check_flush(command)?;
    core.databases.flush(db).await?;
    Ok(Reply::OK)
}

pub(super) async fn flush_all(core: &Core, command: &Command) -> CommandResult {
    check_flush(command)?;
    // Also those that seem to be gone: others may be dropping them, and servers serve them until
    // that is done.
    let all = match core.options().cluster {
        Some(_) => vec![DatabaseId::default()],
        None => DatabaseId::all().collect(),
    };
    let flushes = all.into_iter().map(|db| core.databases.flush(db));
    let results = join_all(flushes).await;
    let is_any_done = results.iter().any(Result::is_ok);
    match results.into_iter().find_map(Result::err) {
        None => Ok(Reply::OK),
        Some(failure) if is_any_done => Err(failure::in_part(failure)),
        Some(failure) => Err(failure),
    }
}

pub(super) async fn memory_usage(core: &Core, db: DatabaseId, command: &Command) -> CommandResult {
    let mut at = 3;
    while at < command.len() {
        if !command.is(at, "SAMPLES") || at + 1 >= command.len() {
            return Err(failure::SYNTAX);
        }
        let samples = integer(command.get(at + 1)).ok_or(failure::NOT_INTEGER)?;
        if samples < 0 {
            return Err(failure::SYNTAX);
        }
        at += 2;
    }
    let key = command.get(2);
    let outcome = core.databases.get(db, key, Projection::Length).await?;
    let there = is_there(&outcome);
    Ok(match outcome.into_output() {
        Output::Integer(length) if there => {
            Reply::Integer(length + (OBJECT_OVERHEAD + key.len()) as i64)
        }
        _ => Reply::Nil,
    })
}

/// Longest value that Redis keeps beside its header.
const EMBEDDED_MAX: usize = 44;

pub(super) async fn encoding(core: &Core, db: DatabaseId, command: &Command) -> CommandResult {
    // One byte more tells whether the value is longer.
    let span = Span {
        end: Some(EMBEDDED_MAX as i64),
        ..Span::ALL
    };
    let start = core
        .databases
        .get(db, command.get(2), Projection::Range(span));
    Ok(match start.await?.into_output() {
        Output::Bytes(start) => Reply::Text(encoding_of(&start)),
        Output::Nothing | Output::Integer(_) | Output::Integers(_) => Reply::Nil,
    })
}

/// The encoding Redis would choose for a value, of which the start is enough.
pub(super) fn encoding_of(value: &[u8]) -> &'static str {
    match value.len() {
        _ if integer(value).is_some() => "int",
        ..=EMBEDDED_MAX => "embstr",
        _ => "raw",
    }
}

/// OBJECT REFCOUNT: values are not shared.
pub(super) async fn references(core: &Core, db: DatabaseId, command: &Command) -> CommandResult {
    Ok(match super::exists(core, db, command.get(2)).await? {
        true => Reply::Integer(1),
        false => Reply::Nil,
    })
}

const NO_IDLE_TIME: Failure =
    Failure::fixed("ERR the time of the last access of keys is not kept here");

/// OBJECT IDLETIME.
pub(super) async fn idle_time(core: &Core, db: DatabaseId, command: &Command) -> CommandResult {
    match super::exists(core, db, command.get(2)).await? {
        true => Err(NO_IDLE_TIME),
        false => Ok(Reply::Nil),
    }
}

const NO_FREQUENCY: Failure = Failure::fixed(
    "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that \
     when switching between policies at runtime LRU and LFU data will take some time to adjust.",
);

pub(super) async fn frequency(core: &Core, db: DatabaseId, command: &Command) -> CommandResult {
    if super::exists(core, db, command.get(2)).await? {
        Err(NO_FREQUENCY)
    } else {
        Ok(Reply::Nil)
    }
}
