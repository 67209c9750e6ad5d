//! Commands on one value. Each is one read or one change at the owner of its key ([`OneKey`]).

use super::CommandResult;
use super::one_key::{OneKey, Scratch, Shape};
use crate::database::{DatabaseId, mutation};
use crate::failure;
use crate::number::integer;
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::shared::Core;
use pluvio_client::{Addend, Change, DECIMAL_BYTES_MAX, Mutation, Projection, RejectRules, Span};

/// A change that puts the part at `at` into the key.
fn putting<'c>(command: &'c Command, at: usize, scratch: &'c mut Scratch) -> Mutation<'c> {
    scratch.value = command.share(at);
    mutation(command.get(1), Change::Put((&scratch.value).into()))
}

pub(super) fn set_new<'c>(command: &'c Command, scratch: &'c mut Scratch) -> OneKey<'c> {
    let put = Mutation {
        rules: RejectRules::EXISTS,
        ..putting(command, 2, scratch)
    };
    OneKey::change(put).shaped(Shape::IsDone)
}

/// The options of SET.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct SetOptions {
    if_missing: bool,
    if_there: bool,
    /// Where the value that is expected stands.
    if_equal: Option<usize>,
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
            options.if_equal = Some(at);
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

pub(super) fn set<'c>(
    command: &'c Command,
    scratch: &'c mut Scratch,
) -> Result<OneKey<'c>, Failure> {
    if command.len() == 3 {
        return Ok(OneKey::change(putting(command, 2, scratch)).shaped(Shape::Ok));
    }
    let options = set_options(command)?;
    if let Some(word) = options.expiry {
        return Err(failure::no_expiry(&format!("SET with {word}")));
    }
    let put = Mutation {
        rules: RejectRules {
            exists: options.if_missing,
            does_not_exist: options.if_there,
            ..RejectRules::NONE
        },
        value_is: options.if_equal.map(|at| command.get(at)),
        returns_old: options.get,
        ..putting(command, 2, scratch)
    };
    Ok(OneKey::change(put).shaped(Shape::Set { old: options.get }))
}

pub(super) fn get_and_set<'c>(command: &'c Command, scratch: &'c mut Scratch) -> OneKey<'c> {
    OneKey::change(Mutation {
        returns_old: true,
        ..putting(command, 2, scratch)
    })
}

pub(super) fn get_and_delete(command: &Command) -> OneKey<'_> {
    OneKey::change(Mutation {
        returns_old: true,
        ..mutation(command.get(1), Change::Delete)
    })
}

pub(super) fn delete_if_equal(command: &Command) -> OneKey<'_> {
    let delete = Mutation {
        value_is: Some(command.get(2)),
        ..mutation(command.get(1), Change::Delete)
    };
    OneKey::change(delete).shaped(Shape::IsDone)
}

/// GETEX with options.
pub(super) async fn get_with_expiry(
    core: &Core,
    db: DatabaseId,
    command: &Command,
) -> CommandResult {
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

pub(super) fn append<'c>(command: &'c Command, scratch: &'c mut Scratch) -> OneKey<'c> {
    scratch.value = command.share(2);
    let more = Change::Append((&scratch.value).into());
    OneKey::change(mutation(command.get(1), more))
}

pub(super) fn get_range(command: &Command) -> Result<OneKey<'_>, Failure> {
    let start = integer(command.get(2)).ok_or(failure::NOT_INTEGER)?;
    let end = integer(command.get(3)).ok_or(failure::NOT_INTEGER)?;
    let span = Span {
        start,
        end: Some(end),
        bits: false,
    };
    Ok(OneKey::read(command.get(1), Projection::Range(span)).shaped(Shape::Part))
}

pub(super) fn set_range<'c>(
    command: &'c Command,
    scratch: &'c mut Scratch,
) -> Result<OneKey<'c>, Failure> {
    let offset = integer(command.get(2)).ok_or(failure::NOT_INTEGER)?;
    let offset = u64::try_from(offset).map_err(|_| failure::OFFSET)?;
    scratch.value = command.share(3);
    let bytes = (&scratch.value).into();
    let patch = Change::SetRange { offset, bytes };
    Ok(OneKey::change(mutation(command.get(1), patch)))
}

pub(super) fn add(key: &[u8], by: i64) -> OneKey<'_> {
    OneKey::change(mutation(key, Change::Add(Addend::Integer(by))))
}

pub(super) fn increment_by(command: &Command) -> Result<OneKey<'_>, Failure> {
    let by = integer(command.get(2)).ok_or(failure::NOT_INTEGER)?;
    Ok(add(command.get(1), by))
}

pub(super) fn decrement_by(command: &Command) -> Result<OneKey<'_>, Failure> {
    let by = integer(command.get(2)).ok_or(failure::NOT_INTEGER)?;
    let by = by.checked_neg().ok_or(failure::DECREMENT_OVERFLOW)?;
    Ok(add(command.get(1), by))
}

pub(super) fn increment_by_float(command: &Command) -> Result<OneKey<'_>, Failure> {
    let by = Some(command.get(2)).filter(|by| by.len() <= DECIMAL_BYTES_MAX);
    // The owner tells whether this text is a number.
    let by = by.and_then(|by| core::str::from_utf8(by).ok());
    let by = by.ok_or(failure::NOT_FLOAT)?;
    let sum = Change::Add(Addend::Decimal(by));
    Ok(OneKey::change(mutation(command.get(1), sum)).shaped(Shape::Decimal))
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
