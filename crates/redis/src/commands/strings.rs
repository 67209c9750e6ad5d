//! Commands on one value. Each is one read or one change at the owner of its key, in one round
//! trip.

use super::{CommandResult, is_rejected};
use crate::database::{DatabaseId, mutation};
use crate::failure;
use crate::number::integer;
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::shared::Core;
use bytes::Bytes;
use pluvio_client::{Addend, Change, DECIMAL_BYTES_MAX, Mutation, Projection, RejectRules, Span};

/// Makes a change and replies with its output.
pub(super) async fn change(
    core: &Core,
    db: DatabaseId,
    command: &Command,
    change: Change<'_>,
) -> CommandResult {
    let outcome = core.databases.mutate(db, mutation(command.get(1), change));
    Ok(outcome.await?.into_output().into())
}

/// Reads a value or a part of it, and replies with that.
pub(super) async fn read(
    core: &Core,
    db: DatabaseId,
    command: &Command,
    projection: Projection<'_>,
) -> CommandResult {
    let outcome = core.databases.get(db, command.get(1), projection);
    Ok(outcome.await?.into_output().into())
}

pub(super) async fn get(core: &Core, db: DatabaseId, command: &Command) -> CommandResult {
    read(core, db, command, Projection::Value).await
}

/// SET without options.
pub(super) async fn put(core: &Core, db: DatabaseId, command: &Command) -> CommandResult {
    let value = command.share(2);
    let put = mutation(command.get(1), Change::Put((&value).into()));
    core.databases.mutate(db, put).await?;
    Ok(Reply::OK)
}

pub(super) async fn set_new(core: &Core, db: DatabaseId, command: &Command) -> CommandResult {
    let value = command.share(2);
    let put = Mutation {
        rules: RejectRules::EXISTS,
        ..mutation(command.get(1), Change::Put((&value).into()))
    };
    let outcome = core.databases.mutate(db, put).await?;
    Ok(Reply::flag(!is_rejected(&outcome)))
}

/// The options of SET.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct SetOptions {
    if_missing: bool,
    if_there: bool,
    if_equal: Option<Bytes>,
    get: bool,
    keep_expiry: bool,
    expiry: Option<&'static str>,
}

/// Reads the options of SET as Redis does, expiry times included, so that what Redis takes for a
/// mistake is one here too.
fn set_options(command: &Command) -> Result<SetOptions, Failure> {
    let mut options = SetOptions::default();
    let mut time = None;
    let mut at = 3;
    while at < command.len() {
        let expiry = EXPIRY_OPTIONS.into_iter().find(|word| command.is(at, word));
        let conditional = options.if_missing || options.if_there || options.if_equal.is_some();
        let expires = options.expiry.is_some() || options.keep_expiry;
        let has_next = at + 1 < command.len();
        if command.is(at, "NX") && !options.if_there && options.if_equal.is_none() {
            options.if_missing = true;
        } else if command.is(at, "XX") && !options.if_missing && options.if_equal.is_none() {
            options.if_there = true;
        } else if command.is(at, "GET") {
            options.get = true;
        } else if command.is(at, "KEEPTTL") && options.expiry.is_none() {
            options.keep_expiry = true;
        } else if command.is(at, "IFEQ") && !conditional && has_next {
            at += 1;
            options.if_equal = Some(command.share(at));
        } else if let Some(word) = expiry
            && !expires
            && has_next
        {
            at += 1;
            options.expiry = Some(word);
            time = Some(command.get(at));
        } else {
            return Err(failure::SYNTAX);
        }
        at += 1;
    }
    if let (Some(word), Some(time)) = (options.expiry, time) {
        check_expiry("set", word, time)?;
    }
    Ok(options)
}

const EXPIRY_OPTIONS: [&str; 4] = ["EX", "PX", "EXAT", "PXAT"];

/// Checks an expiry time as Redis does.
fn check_expiry(command: &str, unit: &str, time: &[u8]) -> Result<(), Failure> {
    let time = integer(time).ok_or(failure::NOT_INTEGER)?;
    let seconds = matches!(unit, "EX" | "EXAT");
    let too_late = (seconds && time > i64::MAX / 1000) || (unit == "PX" && time > i64::MAX / 2);
    if time <= 0 || too_late {
        return Err(failure::bad_expiry(command));
    }
    Ok(())
}

/// SETEX and PSETEX.
pub(super) fn no_expiry_set(name: &str, command: &Command) -> Failure {
    let unit = if name == "setex" { "EX" } else { "PX" };
    match check_expiry(name, unit, command.get(2)) {
        Err(failure) => failure,
        Ok(()) => failure::no_expiry(&name.to_uppercase()),
    }
}

pub(super) async fn set(core: &Core, db: DatabaseId, command: &Command) -> CommandResult {
    let options = set_options(command)?;
    if let Some(word) = options.expiry {
        return Err(failure::no_expiry(&format!("SET with {word}")));
    }
    let value = command.share(2);
    let put = Mutation {
        rules: RejectRules {
            exists: options.if_missing,
            does_not_exist: options.if_there,
            ..RejectRules::NONE
        },
        value_is: options.if_equal.as_deref(),
        returns_old: options.get,
        ..mutation(command.get(1), Change::Put((&value).into()))
    };
    let outcome = core.databases.mutate(db, put).await?;
    Ok(match (options.get, is_rejected(&outcome)) {
        (true, _) => outcome.into_output().into(),
        (false, false) => Reply::OK,
        (false, true) => Reply::Nil,
    })
}

pub(super) async fn get_and_set(core: &Core, db: DatabaseId, command: &Command) -> CommandResult {
    let value = command.share(2);
    let put = Mutation {
        returns_old: true,
        ..mutation(command.get(1), Change::Put((&value).into()))
    };
    Ok(core.databases.mutate(db, put).await?.into_output().into())
}

pub(super) async fn get_and_delete(
    core: &Core,
    db: DatabaseId,
    command: &Command,
) -> CommandResult {
    let delete = Mutation {
        returns_old: true,
        ..mutation(command.get(1), Change::Delete)
    };
    let outcome = core.databases.mutate(db, delete).await?;
    Ok(outcome.into_output().into())
}

pub(super) async fn delete_if_equal(
    core: &Core,
    db: DatabaseId,
    command: &Command,
) -> CommandResult {
    let delete = Mutation {
        value_is: Some(command.get(2)),
        ..mutation(command.get(1), Change::Delete)
    };
    let outcome = core.databases.mutate(db, delete).await?;
    Ok(Reply::flag(!is_rejected(&outcome)))
}

pub(super) async fn get_with_expiry(
    core: &Core,
    db: DatabaseId,
    command: &Command,
) -> CommandResult {
    if command.len() == 2 {
        return get(core, db, command).await;
    }
    let word = if command.len() == 3 && command.is(2, "PERSIST") {
        "PERSIST"
    } else {
        let word = EXPIRY_OPTIONS.into_iter().find(|word| command.is(2, word));
        word.filter(|_| command.len() == 4).ok_or(failure::SYNTAX)?
    };
    // Redis looks at the time only when there is something to expire.
    if !super::exists(core, db, command.get(1)).await? {
        return Ok(Reply::Nil);
    }
    if word != "PERSIST" {
        check_expiry("getex", word, command.get(3))?;
    }
    Err(failure::no_expiry(&format!("GETEX with {word}")))
}

pub(super) async fn append(core: &Core, db: DatabaseId, command: &Command) -> CommandResult {
    let more = command.share(2);
    change(core, db, command, Change::Append((&more).into())).await
}

pub(super) async fn get_range(core: &Core, db: DatabaseId, command: &Command) -> CommandResult {
    let start = integer(command.get(2)).ok_or(failure::NOT_INTEGER)?;
    let end = integer(command.get(3)).ok_or(failure::NOT_INTEGER)?;
    let span = Span {
        start,
        end: Some(end),
        bits: false,
    };
    let part = read(core, db, command, Projection::Range(span)).await?;
    Ok(match part {
        // A part of nothing is an empty value.
        Reply::Nil => Reply::Bulk(Bytes::new()),
        part => part,
    })
}

pub(super) async fn set_range(core: &Core, db: DatabaseId, command: &Command) -> CommandResult {
    let offset = integer(command.get(2)).ok_or(failure::NOT_INTEGER)?;
    let offset = u64::try_from(offset).map_err(|_| failure::OFFSET)?;
    let patch = command.share(3);
    let bytes = (&patch).into();
    change(core, db, command, Change::SetRange { offset, bytes }).await
}

pub(super) async fn add(core: &Core, db: DatabaseId, command: &Command, by: i64) -> CommandResult {
    change(core, db, command, Change::Add(Addend::Integer(by))).await
}

pub(super) async fn increment_by(core: &Core, db: DatabaseId, command: &Command) -> CommandResult {
    let by = integer(command.get(2)).ok_or(failure::NOT_INTEGER)?;
    add(core, db, command, by).await
}

pub(super) async fn decrement_by(core: &Core, db: DatabaseId, command: &Command) -> CommandResult {
    let by = integer(command.get(2)).ok_or(failure::NOT_INTEGER)?;
    let by = by.checked_neg().ok_or(failure::DECREMENT_OVERFLOW)?;
    add(core, db, command, by).await
}

pub(super) async fn increment_by_float(
    core: &Core,
    db: DatabaseId,
    command: &Command,
) -> CommandResult {
    let by = Some(command.get(2)).filter(|by| by.len() <= DECIMAL_BYTES_MAX);
    // The owner tells whether this text is a number.
    let by = by.and_then(|by| core::str::from_utf8(by).ok());
    let by = by.ok_or(failure::NOT_FLOAT)?;
    change(core, db, command, Change::Add(Addend::Decimal(by))).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_set_exclude_each_other_as_in_redis() {
        let options = |text: &str| {
            let parts: Vec<_> = text.split(' ').collect();
            set_options(&Command::from_parts(&parts))
        };
        for wrong in [
            "set k v nx xx",
            "set k v xx ifeq a",
            "set k v ifeq",
            "set k v ex",
            "set k v foo",
            "set k v keepttl ex 1",
            "set k v ex 1 px 1",
            "set k v ifeq a ifeq b",
        ] {
            assert_eq!(options(wrong), Err(failure::SYNTAX), "{wrong}");
        }
        assert_eq!(options("set k v ex x"), Err(failure::NOT_INTEGER));
        for time in [
            "ex 0",
            "px -1",
            "px 9223372036854775807",
            "exat 9223372036854775807",
        ] {
            let got = options(&format!("set k v {time}"));
            assert_eq!(got, Err(failure::bad_expiry("set")), "{time}");
        }
        let all = options("SET k v get Nx keepttl").unwrap();
        assert!(all.get && all.if_missing && all.keep_expiry && all.expiry.is_none());
    }
}
