//! DUMP and RESTORE: a value with its encoding in Redis's files, to and from other servers.
//!
//! RESTORE is one change of one key. As in Redis, an object in its way is told before a mistake in
//! its arguments. So a RESTORE with a mistake reads its key.

use super::one_key::{OneKey, Scratch, Shape};
use crate::database::mutation;
use crate::failure;
use crate::number::integer;
use crate::parser::Command;
use crate::rdb::{self, Bad};
use crate::reply::Failure;
use pluvio_client::{Change, Deadline, Lifetime, Mutation, Projection, RejectRules};
use std::sync::LazyLock;

static NOT_INTEGER: Failure = failure::NOT_INTEGER;
static BAD_TTL: Failure = Failure::fixed("ERR Invalid TTL value, must be >= 0");
static BAD_FOOTER: Failure = failure::BAD_FOOTER;
static BAD_FORMAT: Failure = Failure::fixed("ERR Bad data format");
static TOO_LONG: LazyLock<Failure> = LazyLock::new(failure::too_long);
const BAD_IDLE_TIME: Failure = Failure::fixed("ERR Invalid IDLETIME value, must be >= 0");
const BAD_FREQUENCY: Failure = Failure::fixed("ERR Invalid FREQ value, must be >= 0 and <= 255");

pub(super) fn dump(command: &Command) -> OneKey<'_> {
    OneKey::read(command.get(1), Projection::Value).shaped(Shape::Dump)
}

struct Options {
    replaces: bool,
    is_absolute: bool,
}

fn options(command: &Command) -> Result<Options, Failure> {
    let mut options = Options {
        replaces: false,
        is_absolute: false,
    };
    let (mut has_idle, mut has_frequency) = (false, false);
    let mut at = 4;
    while at < command.len() {
        let has_next = at + 1 < command.len();
        if command.is(at, "REPLACE") {
            options.replaces = true;
        } else if command.is(at, "ABSTTL") {
            options.is_absolute = true;
        } else if command.is(at, "IDLETIME") && has_next && !has_frequency {
            at += 1;
            let idle = integer(command.get(at)).ok_or(failure::NOT_INTEGER)?;
            if idle < 0 {
                return Err(BAD_IDLE_TIME);
            }
            has_idle = true;
        } else if command.is(at, "FREQ") && has_next && !has_idle {
            at += 1;
            let frequency = integer(command.get(at)).ok_or(failure::NOT_INTEGER)?;
            if !(0..=255).contains(&frequency) {
                return Err(BAD_FREQUENCY);
            }
            has_frequency = true;
        } else {
            return Err(failure::SYNTAX);
        }
        at += 1;
    }
    Ok(options)
}

fn lifetime(text: &[u8], is_absolute: bool) -> Result<Lifetime, &'static Failure> {
    let ms = integer(text).ok_or(&NOT_INTEGER)?;
    let ms = u64::try_from(ms).map_err(|_| &BAD_TTL)?;
    match (ms, is_absolute) {
        (0, _) => Ok(Lifetime::Endless),
        (_, true) => Ok(Deadline::new(ms).map_or(Lifetime::Endless, Lifetime::Until)),
        (_, false) => Ok(Lifetime::For(ms)),
    }
}

pub(super) fn restore<'c>(
    command: &'c Command,
    scratch: &'c mut Scratch,
) -> Result<OneKey<'c>, Failure> {
    let options = options(command)?;
    let key = command.get(1);
    let wrong = |failure: &'static Failure| match options.replaces {
        true => Err(failure.clone()),
        false => Ok(OneKey::read(key, Projection::Nothing).shaped(Shape::BusyOr(failure))),
    };
    let lifetime = match lifetime(command.get(2), options.is_absolute) {
        Ok(lifetime) => lifetime,
        Err(failure) => return wrong(failure),
    };
    scratch.value = match rdb::restore(&command.share(3)) {
        Ok(value) => value,
        Err(Bad::Footer) => return wrong(&BAD_FOOTER),
        Err(Bad::Format) => return wrong(&BAD_FORMAT),
        Err(Bad::TooLong) => return wrong(&TOO_LONG),
    };
    let put = Mutation {
        rules: match options.replaces {
            true => RejectRules::NONE,
            false => RejectRules::EXISTS,
        },
        lifetime,
        ..mutation(key, Change::Put((&scratch.value).into()))
    };
    Ok(OneKey::change(put).shaped(Shape::Restored))
}
