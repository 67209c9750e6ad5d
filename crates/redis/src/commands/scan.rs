//! Going through all keys: SCAN, KEYS, RANDOMKEY.
//!
//! A cursor of SCAN is a place in the table, as a decimal number below 2^53: some clients keep it
//! in a double. It means the same on every server, for ever. A complete scan gives each key that
//! was there all along exactly once.

use super::CommandResult;
use crate::database::{DatabaseId, ScanFrom};
use crate::failure;
use crate::give_way::give_way;
use crate::glob::Pattern;
use crate::memory::{Building, MemoryAccount};
use crate::number::integer;
use crate::parser::Command;
use crate::reply::{Bulks, Failure, Reply};
use crate::shared::Core;
use bytes::Bytes;
use pluvio_units::{KeyHash, Rank};

/// Keys looked at by a SCAN without COUNT, as in Redis.
const COUNT_DEFAULT: usize = 10;
/// Most keys looked at by one SCAN, whatever its COUNT, so that it does not hold up its connection.
const COUNT_MAX: usize = 16 << 10;
/// No cursor is as large as this.
const CURSORS: u64 = 1 << 53;
/// Keys fetched at a time by KEYS.
const STEP_KEYS: usize = 1024;
/// Keys among which RANDOMKEY draws.
const DRAW_KEYS: usize = 16;

struct Filter<'a> {
    pattern: Option<Pattern<'a>>,
    /// Whether keys of type string are wanted; there are no others.
    strings: bool,
}

impl Filter<'_> {
    async fn wants(&mut self, key: &[u8]) -> bool {
        match &mut self.pattern {
            _ if !self.strings => false,
            Some(pattern) => pattern.matches(key).await,
            None => true,
        }
    }
}

/// A pattern that every key matches needs no look; so the empty key matches `*`, too.
fn pattern(text: &[u8]) -> Option<Pattern<'_>> {
    (text != b"*").then(|| Pattern::new(text))
}

/// Reads a cursor as Redis does, which takes what C's `strtoul` takes, without blanks before it.
fn cursor(text: &[u8]) -> Option<u64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return text.is_empty().then_some(0);
    }
    let mut value: u64 = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value
            .checked_mul(10)?
            .checked_add(u64::from(digit - b'0'))?;
    }
    Some(if negative {
        value.wrapping_neg()
    } else {
        value
    })
}

pub(super) async fn scan(
    core: &Core,
    account: &MemoryAccount,
    db: DatabaseId,
    command: &Command,
) -> CommandResult {
    let from = cursor(command.get(1)).ok_or(failure::BAD_CURSOR)?;
    let mut count = COUNT_DEFAULT;
    let mut filter = Filter {
        pattern: None,
        strings: true,
    };
    let mut at = 2;
    while at < command.len() {
        let value = (at + 1 < command.len()).then(|| command.get(at + 1));
        match value {
            Some(value) if command.is(at, "COUNT") => {
                let wanted = integer(value).ok_or(failure::NOT_INTEGER)?;
                let wanted = usize::try_from(wanted).ok().filter(|n| *n > 0);
                count = wanted.ok_or(failure::SYNTAX)?.min(COUNT_MAX);
            }
            Some(value) if command.is(at, "MATCH") => filter.pattern = pattern(value),
            Some(value) if command.is(at, "TYPE") => {
                filter.strings = value.eq_ignore_ascii_case(b"string");
            }
            Some(_) | None => return Err(failure::SYNTAX),
        }
        at += 2;
    }
    let limit = account.left(core.options().reply_bytes_max);
    let mut found = Found {
        filter,
        keys: Bulks::default(),
        building: account.build(),
        limit,
    };
    // As in Redis, a number that is no cursor is an end, and not an error.
    let next = match from {
        0..CURSORS => some_keys(core, db, from, count, &mut found).await?,
        CURSORS.. => None,
    };
    let next = next.unwrap_or(0);
    Ok(Reply::Array(vec![
        Reply::copy(next.to_string()),
        Reply::Bulks(found.keys),
    ]))
}

/// Keys that were found.
struct Found<'a> {
    filter: Filter<'a>,
    keys: Bulks,
    building: Building<'a>,
    /// Most bytes of them.
    limit: usize,
}

/// Looks at about `count` keys from a place on for those that are wanted. Gives where to go on.
async fn some_keys(
    core: &Core,
    db: DatabaseId,
    from: u64,
    count: usize,
    found: &mut Found<'_>,
) -> Result<Option<u64>, Failure> {
    let (clock, patience) = (
        &core.databases.parts().clock,
        core.databases.client().timeout(),
    );
    if found.limit == 0 {
        // The place would stay the same for ever.
        return Err(failure::reply_too_long(core.options().reply_bytes_max));
    }
    let mut next = Some(from);
    let mut seen = 0;
    // Large empty stretches of hashes count, too: each is a request.
    while let Some(place) = next
        && seen < count
        && found.keys.bytes() < found.limit
    {
        if seen > 0 {
            give_way().await;
        }
        found.building.room(0, &**clock, patience).await?;
        let (objects, after) = core
            .databases
            .stretch(db, ScanFrom::Number(place), count - seen)
            .await?;
        seen += objects.len().max(1);
        next = after;
        let before = found.keys.bytes();
        for object in objects {
            if found.filter.wants(&object.key).await {
                found.keys.push(&object.key);
            }
        }
        // One stretch may go beyond the limit.
        let more = found.keys.bytes() - before;
        found.building.grow(more, usize::MAX)?;
    }
    Ok(next)
}

pub(super) async fn keys(
    core: &Core,
    account: &MemoryAccount,
    db: DatabaseId,
    command: &Command,
) -> CommandResult {
    let limit = core.options().reply_bytes_max;
    let mut found = Found {
        filter: Filter {
            pattern: pattern(command.get(1)),
            strings: true,
        },
        keys: Bulks::default(),
        building: account.build(),
        limit: account.left(limit),
    };
    let mut next = Some(0);
    while let Some(place) = next {
        next = some_keys(core, db, place, STEP_KEYS, &mut found).await?;
        // Without room nothing more is looked at.
        let bytes = found.keys.bytes();
        if bytes > found.limit || bytes == found.limit && next.is_some() {
            return Err(failure::reply_too_long(limit));
        }
        if next.is_some() {
            give_way().await;
        }
    }
    Ok(Reply::Bulks(found.keys))
}

pub(super) async fn random_key(core: &Core, db: DatabaseId) -> CommandResult {
    let rng = &core.databases.parts().rng;
    let start = ScanFrom::Drawn(KeyHash(rng.next_u64()), Rank(rng.next_u64()));
    // From a random place to the end, then from the beginning.
    for from in [start, ScanFrom::Number(0)] {
        let mut next = Some(from);
        while let Some(place) = next {
            let (mut objects, after) = core.databases.stretch(db, place, DRAW_KEYS).await?;
            if !objects.is_empty() {
                let drawn = rng.below(objects.len() as u64);
                let drawn = usize::try_from(drawn).expect("below the length of a list");
                let key = objects.swap_remove(drawn).key;
                return Ok(Reply::Bulk(Bytes::from(key)));
            }
            next = after.map(ScanFrom::Number);
            give_way().await;
        }
    }
    Ok(Reply::Nil)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_what_redis_takes() {
        assert_eq!(cursor(b"0"), Some(0));
        assert_eq!(cursor(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(cursor(b"-1"), Some(u64::MAX));
        for text in ["x", "1x", " 1", "18446744073709551616", "-", "1.0"] {
            assert_eq!(cursor(text.as_bytes()), None, "{text:?}");
        }
    }
}
