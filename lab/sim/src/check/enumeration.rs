//! Enumeration: each key that is there all along is found exactly once, and nothing else twice.

use crate::check::{Check, Violation, name_of};
use crate::history::{History, KeyId, KeyKind, Outcome, Plain, Record, Scan};
use std::collections::BTreeMap;

/// Whether a key is there during a whole enumeration.
enum Presence<'a> {
    /// It is, as this record shows.
    There(&'a Record),
    /// It is not: the record shows that it had gone, or nobody had ever used it.
    Away(Option<&'a Record>),
    /// Somebody changes it at that time, or nobody knows.
    Open,
}

/// Checks one enumeration.
pub(super) fn finds_each_once(history: &History, scan: &Scan) -> Vec<Violation> {
    let complain = |message: String, evidence: Vec<String>| Violation {
        check: Check::EnumerationFindsEachOnce,
        message,
        evidence,
    };
    let mut violations = Vec::new();
    if !scan.strangers.is_empty() {
        let message = "it found keys that nobody ever used".to_owned();
        violations.push(complain(message, scan.strangers.clone()));
    }
    let mut times: BTreeMap<KeyId, u32> = BTreeMap::new();
    for key in &scan.found {
        *times.entry(*key).or_default() += 1;
    }
    let known = scan.keys.iter().copied();
    let mut keys: Vec<KeyId> = known.chain(times.keys().copied()).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        let count = times.get(&key).copied().unwrap_or(0);
        let name = name_of(history, key);
        if count > 1 {
            let message = format!("key {name} was found {count} times");
            violations.push(complain(message, Vec::new()));
            continue;
        }
        let expires = history.of(key).kind == KeyKind::Volatile;
        match presence(&history.of(key).records, scan) {
            Presence::There(_) if expires => {}
            Presence::There(record) if count == 0 => {
                let message = format!("key {name} was there all along and was not found");
                violations.push(complain(message, vec![record.to_string()]));
            }
            Presence::Away(record) if count == 1 => {
                let message = format!("key {name} was found and had been gone all along");
                let evidence = record.map(ToString::to_string);
                violations.push(complain(message, evidence.into_iter().collect()));
            }
            Presence::There(_) | Presence::Away(_) | Presence::Open => {}
        }
    }
    violations
}

/// Looks for the last record before the enumeration that says whether the key is there, such that
/// no change may have come since, until the enumeration ended.
fn presence<'a>(records: &'a [Record], scan: &Scan) -> Presence<'a> {
    let last = records
        .iter()
        .filter(|r| r.returned < scan.invoked && r.seen().is_some())
        .max_by_key(|r| r.invoked);
    let since = last.map_or(0, |r| r.invoked);
    let changed = records.iter().any(|r| {
        let is_last = last.is_some_and(|l| l.invoked == r.invoked);
        !is_last && r.may_change() && r.effect_end() > since && r.invoked < scan.returned
    });
    if changed {
        return Presence::Open;
    }
    match last {
        None => Presence::Away(None),
        Some(record) => match record.outcome {
            Outcome::Missing
            | Outcome::Deleted { .. }
            | Outcome::Rejected { version: 0 }
            | Outcome::Plain(Plain::Deleted) => Presence::Away(Some(record)),
            Outcome::Found { .. }
            | Outcome::Seen { .. }
            | Outcome::Wrote { .. }
            | Outcome::Added { .. }
            | Outcome::Rejected { .. } => Presence::There(record),
            Outcome::Plain(_) | Outcome::NotDone | Outcome::Unknown => Presence::Open,
        },
    }
}
