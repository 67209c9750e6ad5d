//! Commands about when keys expire. Each is one read or one change at the owner of its key, which
//! judges it by its own clock: relative times travel as such.

use super::one_key::{OneKey, Scratch, Shape};
use super::strings::putting;
use crate::database::mutation;
use crate::failure;
use crate::number::integer;
use crate::parser::Command;
use crate::reply::Failure;
use pluvio_client::{Change, Deadline, Lifetime, Mutation, Projection, TouchIf};
use pluvio_units::UnixMs;

static NOT_INTEGER: Failure = failure::NOT_INTEGER;
static BAD_EXPIRY: Failure = failure::BAD_EXPIRY_OF_GETEX;

/// Redis adds relative times to the milliseconds since 1970, and refuses a sum beyond this number.
const LAST_MS: u64 = i64::MAX.unsigned_abs();
/// Relative times up to this one need no look at the clock: their sum is smaller for ages.
const SHORT_MS: u64 = LAST_MS / 2;

/// The wall clock of the server that reads a command.
pub(crate) type WallClock<'a> = &'a dyn Fn() -> UnixMs;

/// The meaning of a number that says when a key expires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unit {
    /// The option of SET that has it.
    word: &'static str,
    seconds: bool,
    /// Whether it is a time since 1970.
    absolute: bool,
}

impl Unit {
    pub(super) const EX: Self = Self::of("EX", true, false);
    pub(super) const PX: Self = Self::of("PX", false, false);
    pub(super) const EXAT: Self = Self::of("EXAT", true, true);
    pub(super) const PXAT: Self = Self::of("PXAT", false, true);
    const ALL: [Self; 4] = [Self::EX, Self::PX, Self::EXAT, Self::PXAT];

    const fn of(word: &'static str, seconds: bool, absolute: bool) -> Self {
        Self {
            word,
            seconds,
            absolute,
        }
    }

    /// The one whose option stands at this place of a command.
    pub(super) fn at(command: &Command, at: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| command.is(at, unit.word))
    }

    /// The lifetime that a number says, in milliseconds as Redis computes them; those below 1 are
    /// over at once.
    ///
    /// # Errors
    /// It is no number, or Redis has no milliseconds for it, or for the time of its end.
    fn lifetime(self, name: &str, number: &[u8], now: WallClock<'_>) -> Result<Lifetime, Failure> {
        let number = integer(number).ok_or(failure::NOT_INTEGER)?;
        let bad = || failure::bad_expiry(name);
        let ms = match self.seconds {
            true => number.checked_mul(1000).ok_or_else(bad)?,
            false => number,
        };
        let ms = u64::try_from(ms).unwrap_or(0);
        match self.absolute {
            // The first millisecond is past like those before it.
            true => Ok(Lifetime::Until(Deadline::new(ms.max(1)).ok_or_else(bad)?)),
            false if ms > SHORT_MS && ms.saturating_add(now().0) > LAST_MS => Err(bad()),
            false => Ok(Lifetime::For(ms)),
        }
    }

    /// [`Self::lifetime`], which must be above 0.
    ///
    /// # Errors
    /// It is not.
    pub(super) fn positive(
        self,
        name: &str,
        number: &[u8],
        now: WallClock<'_>,
    ) -> Result<Lifetime, Failure> {
        match integer(number) {
            Some(number) if number <= 0 => Err(failure::bad_expiry(name)),
            Some(_) | None => self.lifetime(name, number, now),
        }
    }
}

/// SETEX and PSETEX.
pub(super) fn set<'c>(
    command: &'c Command,
    scratch: &'c mut Scratch,
    unit: Unit,
    now: WallClock<'_>,
) -> Result<OneKey<'c>, Failure> {
    let name = if unit.seconds { "setex" } else { "psetex" };
    let put = Mutation {
        lifetime: unit.positive(name, command.get(2), now)?,
        ..putting(command, 3, scratch)
    };
    Ok(OneKey::change(put).shaped(Shape::Ok))
}

/// EXPIRE and its like. A time that is past deletes the key.
pub(super) fn expire<'c>(
    command: &'c Command,
    unit: Unit,
    now: WallClock<'_>,
) -> Result<OneKey<'c>, Failure> {
    let name = match unit {
        Unit::EX => "expire",
        Unit::PX => "pexpire",
        Unit::EXAT => "expireat",
        _ => "pexpireat",
    };
    let when = touch_if(command)?;
    let touch = Mutation {
        lifetime: unit.lifetime(name, command.get(2), now)?,
        ..mutation(command.get(1), Change::Touch(when))
    };
    Ok(OneKey::change(touch).shaped(Shape::IsTouched))
}

/// The conditions of EXPIRE.
fn touch_if(command: &Command) -> Result<TouchIf, Failure> {
    let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
    for at in 3..command.len() {
        let words = [
            ("NX", &mut nx),
            ("XX", &mut xx),
            ("GT", &mut gt),
            ("LT", &mut lt),
        ];
        match words.into_iter().find(|(word, _)| command.is(at, word)) {
            Some((_, given)) => *given = true,
            None => return Err(failure::unsupported_option(command.get(at))),
        }
    }
    if nx && (xx || gt || lt) {
        return Err(failure::NX_AND_OTHERS);
    }
    match (gt, lt) {
        (true, true) => Err(failure::GT_AND_LT),
        // A key without a deadline is later than all: nothing is later than that.
        (true, false) => Ok(TouchIf::Later),
        (false, true) if xx => Ok(TouchIf::BoundedAndEarlier),
        (false, true) => Ok(TouchIf::Earlier),
        (false, false) if nx => Ok(TouchIf::Endless),
        (false, false) if xx => Ok(TouchIf::Bounded),
        (false, false) => Ok(TouchIf::Always),
    }
}

pub(super) fn persist(command: &Command) -> OneKey<'_> {
    let touch = Mutation {
        lifetime: Lifetime::Endless,
        ..mutation(command.get(1), Change::Touch(TouchIf::Always))
    };
    OneKey::change(touch).shaped(Shape::IsTouched)
}

/// The arguments of MSETEX behind the number of its keys.
pub(super) struct SetAllOptions {
    /// The place behind the last value.
    pub(super) end: usize,
    /// Whether all keys must be there, or none.
    pub(super) if_there: Option<bool>,
    pub(super) lifetime: Lifetime,
}

/// The options of MSETEX.
///
/// # Errors
/// They make no sense.
pub(super) fn set_all_options(
    command: &Command,
    now: WallClock<'_>,
) -> Result<SetAllOptions, Failure> {
    let count = integer(command.get(1)).filter(|count| *count > 0);
    let count = count.and_then(|count| usize::try_from(count).ok());
    let count = count.ok_or(Failure::fixed("ERR invalid numkeys value"))?;
    let end = count.checked_mul(2).and_then(|parts| parts.checked_add(2));
    let end = end.filter(|end| *end <= command.len());
    let mut options = SetAllOptions {
        end: end.ok_or_else(|| crate::table::wrong_arity("msetex"))?,
        if_there: None,
        lifetime: Lifetime::Endless,
    };
    let (mut at, mut has_lifetime) = (options.end, false);
    while at < command.len() {
        let is_free = options.if_there.is_none();
        if is_free && (command.is(at, "NX") || command.is(at, "XX")) {
            options.if_there = Some(command.is(at, "XX"));
        } else if !has_lifetime && command.is(at, "KEEPTTL") {
            (options.lifetime, has_lifetime) = (Lifetime::Keep, true);
        } else if !has_lifetime
            && at + 1 < command.len()
            && let Some(unit) = Unit::at(command, at)
        {
            at += 1;
            options.lifetime = unit.positive("msetex", command.get(at), now)?;
            has_lifetime = true;
        } else {
            return Err(failure::SYNTAX);
        }
        at += 1;
    }
    Ok(options)
}

/// TTL and its like.
pub(super) fn time<'c>(key: &'c [u8], projection: Projection<'c>, seconds: bool) -> OneKey<'c> {
    OneKey::read(key, projection).shaped(Shape::Time { seconds })
}

/// GETEX.
pub(super) fn get<'c>(command: &'c Command, now: WallClock<'_>) -> Result<OneKey<'c>, Failure> {
    let key = command.get(1);
    let unit = Unit::at(command, 2);
    // One option may be given again; the last one counts.
    let is_repeated = |pair: usize| Unit::at(command, pair) == unit;
    let lifetime = match (command.len(), unit) {
        (2, _) => return Ok(OneKey::read(key, Projection::Value)),
        (_, None) if (2..command.len()).all(|at| command.is(at, "PERSIST")) => Lifetime::Endless,
        (len @ 4.., Some(unit)) if len % 2 == 0 && (4..len).step_by(2).all(is_repeated) => {
            match unit.positive("getex", command.get(len - 1), now) {
                Ok(lifetime) => lifetime,
                // Redis looks at the time only when there is something to expire.
                Err(failure) => {
                    let is_number = failure != failure::NOT_INTEGER;
                    let wrong = if is_number { &BAD_EXPIRY } else { &NOT_INTEGER };
                    let read = OneKey::read(key, Projection::Nothing);
                    return Ok(read.shaped(Shape::Wrong(wrong)));
                }
            }
        }
        _ => return Err(failure::SYNTAX),
    };
    Ok(OneKey::change(Mutation {
        lifetime,
        returns_old: true,
        ..mutation(key, Change::Touch(TouchIf::Always))
    }))
}
