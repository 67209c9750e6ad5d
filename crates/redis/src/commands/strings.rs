//! Commands on one value.
//!
//! Those that read and then write do so in a loop: read, compute, write if the object is still the
//! one read (DB-4). So they are atomic among all clients of all servers; [`Contest`] bounds the
//! loop.

use super::Outcome;
use crate::database::{DatabaseId, Seen};
use crate::failure;
use crate::number::{NoSum, add_floats, integer};
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::shared::Core;
use bytes::Bytes;
use core::time::Duration;
use pluvio_client::{Number, RejectRules};
use pluvio_units::{ObjectVersion, VALUE_MAX};

/// How often a value is read again because another client changed it. Each failure is another's
/// success, so a key that fails so often is changed some hundred times a millisecond.
const TRIES_MAX: u32 = 64;
/// Tries before the first pause.
const TRIES_AT_ONCE: u32 = 3;
/// The longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// Counts the tries of a loop that reads and writes.
#[derive(Default)]
pub(super) struct Contest {
    tries: u32,
}

impl Contest {
    /// Another client was faster: waits a little, at random.
    ///
    /// # Errors
    /// It was so too often.
    pub(super) async fn lost(&mut self, core: &Core) -> Result<(), Failure> {
        self.tries += 1;
        if self.tries >= TRIES_MAX {
            return Err(failure::CONTENDED);
        }
        if self.tries > TRIES_AT_ONCE {
            let parts = core.databases.parts();
            let longest = Duration::from_micros(50) * (1 << self.tries.min(12));
            let longest = longest.min(PAUSE_MAX).as_micros();
            let pause = parts.rng.below(u64::try_from(longest).unwrap_or(1).max(1));
            parts.clock.sleep(Duration::from_micros(pause)).await;
        }
        Ok(())
    }
}

fn value_of(seen: Option<Seen>) -> Reply {
    Reply::bulk_or_nil(seen.map(|s| s.value))
}

fn length_of(bytes: &[u8]) -> Reply {
    Reply::count(bytes.len() as u64)
}

pub(super) async fn get(core: &Core, db: DatabaseId, command: &Command) -> Outcome {
    let object = core.databases.read(db, command.get(1)).await?;
    Ok(Reply::bulk_or_nil(object.map(|o| o.value)))
}

pub(super) async fn put(core: &Core, db: DatabaseId, command: &Command) -> Outcome {
    let (key, value) = (command.get(1), command.share(2));
    let written = core.databases.write(db, key, value, RejectRules::default());
    // Without rules nothing is rejected.
    let _ = written.await?;
    Ok(Reply::OK)
}

pub(super) async fn set_new(core: &Core, db: DatabaseId, command: &Command) -> Outcome {
    let rules = RejectRules::unless_version(ObjectVersion(0));
    let written = core
        .databases
        .write(db, command.get(1), command.share(2), rules);
    Ok(Reply::flag(written.await?.is_ok()))
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

pub(super) async fn set(core: &Core, db: DatabaseId, command: &Command) -> Outcome {
    let options = set_options(command)?;
    if let Some(word) = options.expiry {
        return Err(failure::no_expiry(&format!("SET with {word}")));
    }
    let (key, value) = (command.get(1), command.share(2));
    if !options.get && options.if_equal.is_none() {
        let rules = RejectRules {
            exists: options.if_missing,
            does_not_exist: options.if_there,
            ..RejectRules::default()
        };
        let written = core.databases.write(db, key, value, rules).await?;
        return Ok(written.map_or(Reply::Nil, |_| Reply::OK));
    }
    let mut contest = Contest::default();
    loop {
        let old = core.databases.see(db, key).await?;
        let same = |expected: &Bytes| old.as_ref().is_some_and(|o| o.value == expected);
        let go = match &options.if_equal {
            Some(expected) => same(expected),
            None if old.is_some() => !options.if_missing,
            None => !options.if_there,
        };
        if go {
            let replaced = core.databases.replace(db, key, value.clone(), old.as_ref());
            if !replaced.await? {
                contest.lost(core).await?;
                continue;
            }
        }
        return Ok(match (options.get, go) {
            (true, _) => value_of(old),
            (false, true) => Reply::OK,
            (false, false) => Reply::Nil,
        });
    }
}

pub(super) async fn get_and_set(core: &Core, db: DatabaseId, command: &Command) -> Outcome {
    let (key, value) = (command.get(1), command.share(2));
    let mut contest = Contest::default();
    loop {
        let old = core.databases.see(db, key).await?;
        let replaced = core.databases.replace(db, key, value.clone(), old.as_ref());
        if replaced.await? {
            return Ok(value_of(old));
        }
        contest.lost(core).await?;
    }
}

pub(super) async fn get_and_delete(core: &Core, db: DatabaseId, command: &Command) -> Outcome {
    let key = command.get(1);
    let mut contest = Contest::default();
    loop {
        let Some(old) = core.databases.see(db, key).await? else {
            return Ok(Reply::Nil);
        };
        if core.databases.remove(db, key, &old).await? {
            return Ok(Reply::Bulk(old.value));
        }
        contest.lost(core).await?;
    }
}

pub(super) async fn delete_if_equal(core: &Core, db: DatabaseId, command: &Command) -> Outcome {
    let (key, expected) = (command.get(1), command.get(2));
    let mut contest = Contest::default();
    loop {
        let old = core.databases.see(db, key).await?;
        let Some(old) = old.filter(|o| o.value == expected) else {
            return Ok(Reply::Integer(0));
        };
        if core.databases.remove(db, key, &old).await? {
            return Ok(Reply::Integer(1));
        }
        contest.lost(core).await?;
    }
}

pub(super) async fn get_with_expiry(core: &Core, db: DatabaseId, command: &Command) -> Outcome {
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
    if !core.databases.exists(db, command.get(1)).await? {
        return Ok(Reply::Nil);
    }
    if word != "PERSIST" {
        check_expiry("getex", word, command.get(3))?;
    }
    Err(failure::no_expiry(&format!("GETEX with {word}")))
}

pub(super) async fn length(core: &Core, db: DatabaseId, command: &Command) -> Outcome {
    let object = core.databases.read(db, command.get(1)).await?;
    Ok(object.map_or(Reply::Integer(0), |o| length_of(&o.value)))
}

pub(super) async fn append(core: &Core, db: DatabaseId, command: &Command) -> Outcome {
    let (key, more) = (command.get(1), command.get(2));
    let mut contest = Contest::default();
    loop {
        let old = core.databases.see(db, key).await?;
        let before = old.as_ref().map_or(&b""[..], |o| &o.value);
        if old.is_some() && more.is_empty() {
            return Ok(length_of(before));
        }
        if before.len() + more.len() > VALUE_MAX {
            return Err(failure::too_long());
        }
        let value = Bytes::from([before, more].concat());
        let reply = length_of(&value);
        let replaced = core.databases.replace(db, key, value, old.as_ref());
        if replaced.await? {
            return Ok(reply);
        }
        contest.lost(core).await?;
    }
}

pub(super) async fn get_range(core: &Core, db: DatabaseId, command: &Command) -> Outcome {
    let start = integer(command.get(2)).ok_or(failure::NOT_INTEGER)?;
    let end = integer(command.get(3)).ok_or(failure::NOT_INTEGER)?;
    let object = core.databases.read(db, command.get(1)).await?;
    let value = object.map_or_else(Bytes::new, |o| o.value);
    Ok(Reply::Bulk(part(&value, start, end)))
}

/// The bytes from `start` to `end`, both included; negative places count from the end.
fn part(value: &Bytes, start: i64, end: i64) -> Bytes {
    let length = i64::try_from(value.len()).unwrap_or(i64::MAX);
    if start < 0 && end < 0 && start > end {
        return Bytes::new();
    }
    let place = |at: i64| {
        if at < 0 {
            (length.saturating_add(at)).max(0)
        } else {
            at
        }
    };
    let (start, end) = (place(start), place(end).min(length - 1));
    match (usize::try_from(start), usize::try_from(end)) {
        (Ok(start), Ok(end)) if start <= end => value.slice(start..=end),
        _ => Bytes::new(),
    }
}

pub(super) async fn set_range(core: &Core, db: DatabaseId, command: &Command) -> Outcome {
    let offset = integer(command.get(2)).ok_or(failure::NOT_INTEGER)?;
    let offset = usize::try_from(offset).map_err(|_| failure::OFFSET)?;
    let (key, patch) = (command.get(1), command.get(3));
    let mut contest = Contest::default();
    loop {
        let old = core.databases.see(db, key).await?;
        let before = old.as_ref().map_or(&b""[..], |o| &o.value);
        if patch.is_empty() {
            return Ok(length_of(before));
        }
        let end = offset.saturating_add(patch.len());
        if end > VALUE_MAX {
            return Err(failure::too_long());
        }
        let mut value = before.to_vec();
        value.resize(value.len().max(end), 0);
        value[offset..end].copy_from_slice(patch);
        let reply = length_of(&value);
        let replaced = core.databases.replace(db, key, value.into(), old.as_ref());
        if replaced.await? {
            return Ok(reply);
        }
        contest.lost(core).await?;
    }
}

pub(super) async fn add(core: &Core, db: DatabaseId, command: &Command, by: i64) -> Outcome {
    let reply = core.databases.increment(db, command.get(1), by).await?;
    match reply.value {
        Number::Integer(value) => Ok(Reply::Integer(value)),
        Number::Float(_) => Err(failure::NOT_INTEGER),
    }
}

pub(super) async fn increment_by(core: &Core, db: DatabaseId, command: &Command) -> Outcome {
    let by = integer(command.get(2)).ok_or(failure::NOT_INTEGER)?;
    add(core, db, command, by).await
}

pub(super) async fn decrement_by(core: &Core, db: DatabaseId, command: &Command) -> Outcome {
    let by = integer(command.get(2)).ok_or(failure::NOT_INTEGER)?;
    let by = by.checked_neg().ok_or(failure::DECREMENT_OVERFLOW)?;
    add(core, db, command, by).await
}

pub(super) async fn increment_by_float(core: &Core, db: DatabaseId, command: &Command) -> Outcome {
    let (key, by) = (command.get(1), command.get(2));
    let mut contest = Contest::default();
    loop {
        let old = core.databases.see(db, key).await?;
        let before = old.as_ref().map_or(&b"0"[..], |o| &o.value);
        let sum = add_floats(before, by).map_err(|why| match why {
            NoSum::NotANumber => failure::NOT_FLOAT,
            NoSum::NotFinite => failure::NOT_FINITE,
        })?;
        let value = Bytes::from(sum);
        let replaced = core.databases.replace(db, key, value.clone(), old.as_ref());
        if replaced.await? {
            return Ok(Reply::Bulk(value));
        }
        contest.lost(core).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_as_in_redis() {
        let value = Bytes::from_static(b"Hello");
        for (start, end, expected) in [
            (0, -1, "Hello"),
            (1, 2, "el"),
            (-3, -2, "ll"),
            (-2, -3, ""),
            (3, 1, ""),
            (-100, 100, "Hello"),
            (5, 9, ""),
            (i64::MIN, i64::MAX, "Hello"),
            (0, i64::MIN, "H"),
            (i64::MAX, i64::MAX, ""),
        ] {
            assert_eq!(part(&value, start, end), expected, "{start} {end}");
        }
        assert_eq!(part(&Bytes::new(), 0, -1), "");
    }

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
