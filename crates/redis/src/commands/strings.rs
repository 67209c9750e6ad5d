//! Commands on one value. Each is one read or one change at the owner of its key ([`OneKey`]).

use super::expiry::{Unit, WallClock};
use super::one_key::{OneKey, Scratch, Shape};
use crate::database::mutation;
use crate::failure;
use crate::number::integer;
use crate::parser::Command;
use crate::reply::Failure;
use pluvio_client::{
    Addend, Change, DECIMAL_BYTES_MAX, Lifetime, Mutation, Projection, RejectRules, Span,
};

/// A change that puts the part at `at` into the key.
pub(super) fn putting<'c>(
    command: &'c Command,
    at: usize,
    scratch: &'c mut Scratch,
) -> Mutation<'c> {
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SetOptions {
    if_missing: bool,
    if_there: bool,
    /// Where the value that is expected stands.
    if_equal: Option<usize>,
    get: bool,
    lifetime: Lifetime,
}

/// Reads the options of SET as Redis does, so that what Redis takes for a mistake is one here too.
fn set_options(command: &Command, now: WallClock<'_>) -> Result<SetOptions, Failure> {
    let mut options = SetOptions {
        if_missing: false,
        if_there: false,
        if_equal: None,
        get: false,
        lifetime: Lifetime::Endless,
    };
    let mut time = None;
    let mut at = 3;
    while at < command.len() {
        let expiry = Unit::at(command, at);
        let conditional = options.if_missing || options.if_there || options.if_equal.is_some();
        // The same unit may be given again; the last number counts.
        let is_other = |unit| time.is_some_and(|(known, _)| known != unit);
        let has_next = at + 1 < command.len();
        if command.is(at, "NX") && !options.if_there && options.if_equal.is_none() {
            options.if_missing = true;
        } else if command.is(at, "XX") && !options.if_missing && options.if_equal.is_none() {
            options.if_there = true;
        } else if command.is(at, "GET") {
            options.get = true;
        } else if command.is(at, "KEEPTTL") && time.is_none() {
            options.lifetime = Lifetime::Keep;
        } else if command.is(at, "IFEQ") && !conditional && has_next {
            at += 1;
            options.if_equal = Some(at);
        } else if let Some(unit) = expiry
            && !is_other(unit)
            && options.lifetime != Lifetime::Keep
            && has_next
        {
            at += 1;
            time = Some((unit, at));
        } else {
            return Err(failure::SYNTAX);
        }
        at += 1;
    }
    if let Some((unit, at)) = time {
        options.lifetime = unit.positive("set", command.get(at), now)?;
    }
    Ok(options)
}

pub(super) fn set<'c>(
    command: &'c Command,
    scratch: &'c mut Scratch,
    now: WallClock<'_>,
) -> Result<OneKey<'c>, Failure> {
    if command.len() == 3 {
        return Ok(OneKey::change(putting(command, 2, scratch)).shaped(Shape::Ok));
    }
    let options = set_options(command, now)?;
    let put = Mutation {
        rules: RejectRules {
            exists: options.if_missing,
            does_not_exist: options.if_there,
            ..RejectRules::NONE
        },
        value_is: options.if_equal.map(|at| command.get(at)),
        returns_old: options.get,
        lifetime: options.lifetime,
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
    use pluvio_units::UnixMs;

    #[test]
    fn options_of_set_exclude_each_other_as_in_redis() {
        let options = |text: &str| {
            let parts: Vec<_> = text.split(' ').collect();
            set_options(&Command::from_parts(&parts), &|| UnixMs(1000))
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
            "px 9223372036854774808",
            "exat 9223372036854775807",
        ] {
            let got = options(&format!("set k v {time}"));
            assert_eq!(got, Err(failure::bad_expiry("set")), "{time}");
        }
        let longest = options("set k v px 9223372036854774807").unwrap();
        assert_eq!(longest.lifetime, Lifetime::For(9_223_372_036_854_774_807));
        let all = options("SET k v get Nx keepttl").unwrap();
        assert!(all.get && all.if_missing && all.lifetime == Lifetime::Keep);
    }
}
