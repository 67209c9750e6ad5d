//! `pluvio expire`, `persist`: when an object expires; and the options of others that say so.
//!
//! A lifetime counts from the moment at which the owner of the object judges it, by its clock. A
//! deadline is a time of the wall clock, in milliseconds since 1970.

use crate::args::Place;
use crate::cmd::objects::{key_of, outcome_of, strange};
use clap::Args;
use pluvio_client::{Change, Deadline, Lifetime, Mutation, Outcome, RejectRules, TouchIf};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::print_json;
use pluvio_console::session::{Session, with_session};
use pluvio_units::ObjectVersion;
use serde_json::{Map, Value, json};
use std::process::ExitCode;

/// The field that has an object's deadline: in the output of commands, and in files of
/// `pluvio export`.
pub const DEADLINE_FIELD: &str = "expires_at_ms";

/// How long an object lives.
#[derive(Args, Clone, Copy, Debug)]
pub struct Life {
    /// Expire after this time: a whole number with ms, s, m, h or d
    #[arg(long, value_name = "TIME", value_parser = time_to_live, allow_hyphen_values = true, conflicts_with = "expires_at")]
    ttl: Option<u64>,
    /// Expire at this time: milliseconds since 1970
    #[arg(long, value_name = "MS", value_parser = deadline, allow_hyphen_values = true)]
    expires_at: Option<Deadline>,
}

impl Life {
    /// The lifetime, if one is given.
    pub fn lifetime(self) -> Option<Lifetime> {
        match (self.ttl, self.expires_at) {
            (Some(ms), _) => Some(Lifetime::For(ms)),
            (None, Some(deadline)) => Some(Lifetime::Until(deadline)),
            (None, None) => None,
        }
    }
}

/// `pluvio expire`.
#[derive(Args, Clone, Debug)]
pub struct Expire {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    life: Life,
    /// Change it only if the object has this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
}

/// `pluvio persist`.
#[derive(Args, Clone, Debug)]
pub struct Persist {
    #[command(flatten)]
    place: Place,
    /// Change it only if the object has this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
}

/// Gives an object another deadline. A missing one is exit code 1 and `not found`.
pub fn expire(global: &Global, expire: &Expire) -> Result<ExitCode, Failure> {
    let Some(lifetime) = expire.life.lifetime() else {
        return Err(Failure::usage("give --ttl or --expires-at"));
    };
    touch(global, &expire.place, expire.if_version, lifetime)
}

/// Lets an object live for ever. One that does so is left as it is.
pub fn persist(global: &Global, persist: &Persist) -> Result<ExitCode, Failure> {
    touch(
        global,
        &persist.place,
        persist.if_version,
        Lifetime::Endless,
    )
}

fn touch(
    global: &Global,
    place: &Place,
    if_version: Option<u64>,
    lifetime: Lifetime,
) -> Result<ExitCode, Failure> {
    let (key, name, json) = (key_of(place)?, place.table.clone(), global.json);
    let rules = if_version.map_or(RejectRules::NONE, |version| {
        RejectRules::unless_version(ObjectVersion(version))
    });
    with_session(global, 1, move |Session { client, .. }| async move {
        let table = client.table(&name).await?;
        let touch = Mutation {
            rules,
            lifetime,
            ..Mutation::new(table.id(), &key, Change::Touch(TouchIf::Always))
        };
        let (version, changed) = match outcome_of(client.mutate(&table, touch).await?)? {
            Outcome::Unchanged {
                version: ObjectVersion(0),
                ..
            } => return Err(Failure::new("not found")),
            Outcome::Unchanged { version, .. } => (version, false),
            Outcome::Written { version, .. } | Outcome::Deleted { version, .. } => (version, true),
            other => return Err(strange(&other)),
        };
        if json {
            print_json(&json!({ "changed": changed, "version": version }))?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Adds the deadline of an object to what is shown of it, if it has one.
pub fn put_deadline(object: &mut Map<String, Value>, deadline: Option<Deadline>) {
    if let Some(deadline) = deadline {
        object.insert(DEADLINE_FIELD.into(), deadline.ms().into());
    }
}

/// Milliseconds of a time as people write it: `1500ms`, `10s`, `7d`.
fn time_to_live(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if unit.is_empty() && !number.is_empty() {
        return Err(format!(
            "a time without a unit: {text}s is {text} seconds; ms, m, h and d are the others"
        ));
    }
    let factor = match unit.trim() {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" | "min" => Some(60_000),
        "h" => Some(3_600_000),
        "d" => Some(86_400_000),
        _ => None,
    };
    let (Some(factor), false) = (factor, number.is_empty()) else {
        return Err(
            "not a time: give a whole number with ms, s, m, h or d, for example 90m".into(),
        );
    };
    let ms = number.parse().ok().and_then(|n: u64| n.checked_mul(factor));
    match ms {
        Some(0) => Err("an object lives 1 ms at least; `pluvio delete` deletes it".into()),
        Some(ms) if ms <= Deadline::MAX.ms() => Ok(ms),
        Some(_) | None => Err(format!(
            "too long: {} ms are the most; without a deadline an object lives for ever",
            Deadline::MAX.ms()
        )),
    }
}

/// A deadline as it is written in options and files.
pub fn deadline(text: &str) -> Result<Deadline, String> {
    let ms = text.bytes().all(|c| c.is_ascii_digit()).then_some(text);
    let ms = ms.and_then(|digits| digits.parse().ok());
    ms.and_then(Deadline::new).ok_or_else(|| {
        format!(
            "not a deadline: give whole milliseconds since 1970, from 1 to {}",
            Deadline::MAX.ms()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_to_live_is_exact_and_bounded() {
        for (text, ms) in [
            ("1ms", 1),
            ("90s", 90_000),
            ("90m", 5_400_000),
            ("24h", 86_400_000),
            ("7d", 604_800_000),
            ("9223372036854775807ms", i64::MAX as u64),
        ] {
            assert_eq!(time_to_live(text), Ok(ms), "{text}");
        }
        for (text, why) in [
            ("", "not a time"),
            ("s", "not a time"),
            ("-5s", "not a time"),
            ("1.5h", "not a time"),
            ("1e3s", "not a time"),
            ("10us", "not a time"),
            ("soon", "not a time"),
            ("10", "10s is 10 seconds"),
            ("0", "0s is 0 seconds"),
            ("0d", "1 ms at least"),
            ("9223372036854775808ms", "too long"),
            ("9223372036854775807s", "too long"),
            ("99999999999999999999999d", "too long"),
        ] {
            let refused = time_to_live(text).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }

    #[test]
    fn what_is_no_deadline_is_refused() {
        assert_eq!(deadline("1"), Ok(Deadline::new(1).unwrap()));
        assert_eq!(deadline("9223372036854775807"), Ok(Deadline::MAX));
        for text in [
            "",
            "0",
            "-1",
            "+1",
            "1.5",
            "1e9",
            " 1",
            "9223372036854775808",
            "18446744073709551616",
            "tomorrow",
        ] {
            assert!(deadline(text).is_err(), "{text}");
        }
    }
}
