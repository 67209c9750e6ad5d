//! CONFIG: parameters that clients ask for and set. Most come from the configuration of the server
//! and stay as they are; `docs/redis.md` says what stands for what.

use super::CommandResult;
use crate::database::DATABASES;
use crate::failure;
use crate::glob;
use crate::number::integer;
use crate::parameters::{Number, Parameters};
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::shared::Core;
use crate::users::denials::ENTRIES_MAX as DENIALS_MAX;
use std::collections::BTreeMap;

pub(super) const NO_FILE: Failure =
    Failure::fixed("ERR The server is running without a config file");

/// All parameters and their values now, by name.
fn parameters(core: &Core) -> BTreeMap<&'static str, String> {
    let options = core.options();
    let status = core.shared.status();
    let durable = if status.replicas_wanted > 0 {
        "yes"
    } else {
        "no"
    };
    let clustered = match options.cluster {
        Some(_) => "yes",
        None => "no",
    };
    let shared = &options.parameters;
    let number = |number| shared.number(number).to_string();
    let text = |name, default: &str| shared.text(name).unwrap_or_else(|| default.to_owned());
    let protected = match shared.number(Number::IsProtected) {
        0 => "no",
        _ => "yes",
    };
    let keeps_times = match shared.number(Number::KeepsTimes) {
        0 => "no",
        _ => "yes",
    };
    BTreeMap::from([
        (
            "appendfsync",
            if core.shared.is_synced() {
                "always"
            } else {
                "no"
            }
            .to_owned(),
        ),
        ("appendonly", durable.to_owned()),
        ("cluster-enabled", clustered.to_owned()),
        ("databases", DATABASES.to_string()),
        ("hz", "10".to_owned()),
        ("lazyfree-lazy-user-del", "yes".to_owned()),
        ("lazyfree-lazy-user-flush", "yes".to_owned()),
        ("maxclients", options.connections_max.to_string()),
        ("maxmemory", status.memory_total.to_string()),
        ("maxmemory-clients", options.memory.bound().to_string()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("min-replicas-to-write", status.replicas_needed.to_string()),
        (NOTIFICATIONS, text(NOTIFICATIONS, "")),
        ("port", core.shared.port().to_string()),
        (
            "proto-max-bulk-len",
            options.limits.bulk_bytes_max.to_string(),
        ),
        ("acllog-max-len", DENIALS_MAX.to_string()),
        ("protected-mode", protected.to_owned()),
        // The password itself is kept nowhere.
        (
            "requirepass",
            match options.users.default_user().needs_none {
                true => String::new(),
                false => "(redacted)".to_owned(),
            },
        ),
        ("save", String::new()),
        (
            "commandlog-execution-slower-than",
            number(Number::SlowMicros),
        ),
        (
            "commandlog-slow-execution-max-len",
            number(Number::SlowLength),
        ),
        (
            "commandlog-request-larger-than",
            number(Number::RequestBytes),
        ),
        (
            "commandlog-large-request-max-len",
            number(Number::RequestLength),
        ),
        ("commandlog-reply-larger-than", number(Number::ReplyBytes)),
        (
            "commandlog-large-reply-max-len",
            number(Number::ReplyLength),
        ),
        ("latency-monitor-threshold", number(Number::EventMillis)),
        ("latency-tracking", keeps_times.to_owned()),
        (
            "latency-tracking-info-percentiles",
            text("latency-tracking-info-percentiles", Parameters::PERCENTILES),
        ),
        ("rdbcompression", "yes".to_owned()),
        ("slowlog-log-slower-than", number(Number::SlowMicros)),
        ("slowlog-max-len", number(Number::SlowLength)),
        ("stop-writes-on-bgsave-error", "yes".to_owned()),
        ("tcp-keepalive", number(Number::KeepAliveSeconds)),
        ("timeout", number(Number::IdleSeconds)),
    ])
}

/// Names are answered as they were asked for, in that order; patterns after them by name.
pub(super) fn get(core: &Core, command: &Command) -> Reply {
    let mut left = parameters(core);
    let mut pairs = Vec::new();
    for name in command.from(2) {
        let lower = String::from_utf8_lossy(name).to_ascii_lowercase();
        if let Some(value) = left.remove(lower.as_str()) {
            pairs.push((Reply::copy(name), Reply::Bulk(value.into())));
        }
    }
    let wanted = |name: &str| {
        let mut patterns = command.from(2);
        patterns.any(|pattern| glob::matches_any_case(pattern, name.as_bytes()))
    };
    let found = left.into_iter().filter(|(name, _)| wanted(name));
    pairs.extend(found.map(|(name, value)| (Reply::Text(name), Reply::Bulk(value.into()))));
    Reply::Map(pairs)
}

/// What a parameter that can be set takes.
#[derive(Clone, Copy)]
enum Takes {
    /// A number between two others.
    Number(Number, i64, i64),
    /// `yes` or `no`, kept as a number.
    Switch(Number),
    /// A text, which a function reads and writes anew.
    Text(fn(&[u8]) -> Result<String, &'static str>),
    /// Anything that the function reads; the server goes on as it is.
    Nothing(fn(&[u8]) -> Result<String, &'static str>),
}

/// What can be set. Redis's ranges and texts.
const SETTABLE: [(&str, Takes); 19] = [
    ("appendonly", Takes::Nothing(yes_or_no)),
    ("commandlog-execution-slower-than", SLOWER_THAN),
    (
        "commandlog-large-reply-max-len",
        Takes::Number(Number::ReplyLength, 0, i64::MAX),
    ),
    (
        "commandlog-large-request-max-len",
        Takes::Number(Number::RequestLength, 0, i64::MAX),
    ),
    (
        "commandlog-reply-larger-than",
        Takes::Number(Number::ReplyBytes, -1, i64::MAX),
    ),
    (
        "commandlog-request-larger-than",
        Takes::Number(Number::RequestBytes, -1, i64::MAX),
    ),
    ("commandlog-slow-execution-max-len", SLOW_LENGTH),
    (
        "latency-monitor-threshold",
        Takes::Number(Number::EventMillis, 0, i64::MAX),
    ),
    ("latency-tracking", Takes::Switch(Number::KeepsTimes)),
    (
        "latency-tracking-info-percentiles",
        Takes::Text(percentiles),
    ),
    ("notify-keyspace-events", Takes::Text(events)),
    ("protected-mode", Takes::Switch(Number::IsProtected)),
    ("rdbcompression", Takes::Nothing(yes_or_no)),
    ("save", Takes::Nothing(save_points)),
    ("slowlog-log-slower-than", SLOWER_THAN),
    ("slowlog-max-len", SLOW_LENGTH),
    ("stop-writes-on-bgsave-error", Takes::Nothing(yes_or_no)),
    (
        "tcp-keepalive",
        Takes::Number(Number::KeepAliveSeconds, 0, i32::MAX as i64),
    ),
    (
        "timeout",
        Takes::Number(Number::IdleSeconds, 0, i32::MAX as i64),
    ),
];

const SLOWER_THAN: Takes = Takes::Number(Number::SlowMicros, -1, i64::MAX);
const SLOW_LENGTH: Takes = Takes::Number(Number::SlowLength, 0, i64::MAX);

/// A value that was read.
enum Value {
    Number(Number, i64),
    Text(&'static str, String),
    Nothing,
}

fn yes_or_no(text: &[u8]) -> Result<String, &'static str> {
    let is = |word: &str| text.eq_ignore_ascii_case(word.as_bytes());
    match (is("yes"), is("no")) {
        (true, _) => Ok("yes".to_owned()),
        (_, true) => Ok("no".to_owned()),
        _ => Err("argument must be 'yes' or 'no'"),
    }
}

/// Pairs of seconds and of changes.
fn save_points(text: &[u8]) -> Result<String, &'static str> {
    let bad = "Invalid save parameters";
    let words: Vec<_> = text
        .split(|b| *b == b' ')
        .filter(|word| !word.is_empty())
        .collect();
    let (pairs, rest) = words.as_chunks::<2>();
    let is_good = |pair: &[&[u8]; 2]| {
        let [seconds, changes] = pair.map(integer);
        seconds.is_some_and(|n| n > 0) && changes.is_some_and(|n| n >= 0)
    };
    match rest.is_empty() && pairs.iter().all(is_good) {
        true => Ok(String::new()),
        false => Err(bad),
    }
}

/// The letters of keyspace notifications, in Redis's order. `A` stands for all but the last ones.
fn events(text: &[u8]) -> Result<String, &'static str> {
    const CLASSES: &[u8] = b"g$lshzxetd";
    const OTHERS: &[u8] = b"KEmn";
    let bad = "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.";
    let is_known = |b: &u8| *b == b'A' || CLASSES.contains(b) || OTHERS.contains(b);
    if !text.iter().all(is_known) {
        return Err(bad);
    }
    let all = text.contains(&b'A');
    let has = |b: &&u8| (all && CLASSES.contains(b)) || text.contains(b);
    let mut letters: Vec<u8> = CLASSES.iter().filter(has).copied().collect();
    if letters.len() == CLASSES.len() {
        letters = b"A".to_vec();
    }
    letters.extend(OTHERS.iter().filter(has));
    Ok(String::from_utf8_lossy(&letters).into_owned())
}

/// Numbers from 0 to 100.
fn percentiles(text: &[u8]) -> Result<String, &'static str> {
    let bad = "Invalid latency-tracking-info-percentiles parameters";
    let words = text.split(|b| *b == b' ').filter(|word| !word.is_empty());
    let mut numbers = Vec::new();
    for word in words {
        let number = core::str::from_utf8(word).ok();
        let number = number.and_then(|word| word.parse::<f64>().ok());
        let number = number
            .filter(|number| (0.0..=100.0).contains(number))
            .ok_or(bad)?;
        numbers.push(number.to_string());
    }
    match numbers.len() <= PERCENTILES_MAX {
        true => Ok(numbers.join(" ")),
        false => Err(bad),
    }
}

/// Most percentiles of INFO latencystats.
const PERCENTILES_MAX: usize = 16;

fn read(name: &'static str, takes: Takes, text: &[u8]) -> Result<Value, String> {
    match takes {
        Takes::Number(number, least, most) => {
            let value = integer(text).ok_or("argument couldn't be parsed into an integer")?;
            match (least..=most).contains(&value) {
                true => Ok(Value::Number(number, value)),
                false => Err(format!(
                    "argument must be between {least} and {most} inclusive"
                )),
            }
        }
        Takes::Switch(number) => {
            let is_on = yes_or_no(text)? == "yes";
            Ok(Value::Number(number, i64::from(is_on)))
        }
        Takes::Text(read) => Ok(Value::Text(name, read(text)?)),
        Takes::Nothing(read) => {
            read(text)?;
            Ok(Value::Nothing)
        }
    }
}

/// CONFIG SET: all parameters, or none.
pub(super) fn set(core: &Core, command: &Command) -> CommandResult {
    if !command.len().is_multiple_of(2) {
        return Err(failure::SYNTAX);
    }
    let known = parameters(core);
    let mut values = Vec::new();
    let mut names = Vec::new();
    for at in (2..command.len()).step_by(2) {
        let name = command.get(at).to_ascii_lowercase();
        let found = known.iter().find(|(known, _)| known.as_bytes() == name);
        let Some((name, current)) = found else {
            let text = "ERR Unknown option or number of arguments for CONFIG SET - '";
            return Err(Failure::new(
                [text.as_bytes(), command.get(at), b"'"].concat(),
            ));
        };
        let failed = |why: &str| {
            let given = String::from_utf8_lossy(command.get(at)).into_owned();
            Failure::new(format!(
                "ERR CONFIG SET failed (possibly related to argument '{given}') - {why}"
            ))
        };
        if names.contains(name) {
            return Err(failed("duplicate parameter"));
        }
        names.push(*name);
        let text = command.get(at + 1);
        let settable = SETTABLE.iter().find(|(settable, _)| settable == name);
        match settable {
            Some((name, takes)) => {
                values.push(read(name, *takes, text).map_err(|why| failed(&why))?);
            }
            // Clients set what they need; where that is so, there is nothing to change.
            None if current.as_bytes() == text => {}
            None => return Err(failed("can't set immutable config")),
        }
    }
    let shared = &core.options().parameters;
    for value in values {
        match value {
            Value::Number(number, value) => shared.set_number(number, value),
            Value::Text(name, text) => {
                if name == NOTIFICATIONS && !text.is_empty() {
                    shared.warn_of_notifications();
                }
                shared.set_text(name, text);
            }
            Value::Nothing => {}
        }
    }
    Ok(Reply::OK)
}

const NOTIFICATIONS: &str = "notify-keyspace-events";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_written_in_the_order_of_redis() {
        for (text, written) in [
            ("", ""),
            ("KEA", "AKE"),
            ("xEg", "gxE"),
            ("Kg$lshzxetd", "AK"),
        ] {
            assert_eq!(events(text.as_bytes()).as_deref(), Ok(written));
        }
        assert!(events(b"Q").is_err());
    }

    #[test]
    fn save_points_are_pairs() {
        for (text, is_good) in [
            ("", true),
            ("900 1 300  10", true),
            ("900", false),
            ("0 1", false),
        ] {
            assert_eq!(save_points(text.as_bytes()).is_ok(), is_good, "{text}");
        }
    }
}
