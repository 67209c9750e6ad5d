//! Versions: they grow in real-time order, each has one content, and a write makes one.

use crate::check::{Check, Subject, Violation};
use crate::history::{Action, Content, Outcome, Record};
use std::collections::BTreeMap;

/// The version and content that a record shows together.
fn shown(record: &Record) -> Option<(u64, Content)> {
    match (record.action, record.outcome) {
        (_, Outcome::Found { version, content }) => Some((version, content)),
        (Action::Write { content, .. }, Outcome::Wrote { version, .. }) => Some((version, content)),
        (_, Outcome::Added { version, sum }) => Some((version, Content::Number(sum))),
        (
            Action::Read
            | Action::ReadIf { .. }
            | Action::Write { .. }
            | Action::Delete { .. }
            | Action::Add { .. }
            | Action::Mutate { .. },
            Outcome::Seen { .. }
            | Outcome::Missing
            | Outcome::Wrote { .. }
            | Outcome::Deleted { .. }
            | Outcome::Rejected { .. }
            | Outcome::Plain(_)
            | Outcome::NotDone
            | Outcome::Unknown,
        ) => None,
    }
}

/// Versions of a key grow in real-time order, and a version has one content.
pub(super) fn versions_grow(subject: &Subject<'_>) -> Vec<Violation> {
    let found = one_content(subject).or_else(|| grow(subject));
    found.into_iter().collect()
}

fn one_content(subject: &Subject<'_>) -> Option<Violation> {
    let mut contents: BTreeMap<u64, (Content, &Record)> = BTreeMap::new();
    let mut makers: BTreeMap<u64, &Record> = BTreeMap::new();
    for record in subject.records() {
        if let Some(version) = record.made() {
            if version == 0 {
                let message = "a write has version 0, which means that there is no object";
                return Some(subject.violation(Check::VersionsGrow, message, &[record]));
            }
            if let Some(other) = makers.insert(version, record) {
                let message = format!("two operations made version {version}");
                return Some(subject.violation(Check::VersionsGrow, message, &[other, record]));
            }
        }
        if let Some((version, content)) = shown(record) {
            let (known, first) = *contents.entry(version).or_insert((content, record));
            if known != content {
                let message = format!("version {version} has two contents");
                return Some(subject.violation(Check::VersionsGrow, message, &[first, record]));
            }
        }
    }
    None
}

fn grow(subject: &Subject<'_>) -> Option<Violation> {
    let mut ends: Vec<(u64, u64, &Record)> = subject
        .records()
        .iter()
        .filter_map(|r| {
            let version = match r.outcome {
                Outcome::Deleted { version } => version,
                _ => r.seen()?,
            };
            Some((r.returned, version, r))
        })
        .collect();
    ends.sort_by_key(|(returned, _, _)| *returned);
    let mut ends = ends.into_iter().peekable();
    let mut highest: Option<(u64, &Record)> = None;
    for record in subject.records() {
        while let Some((_, version, ended)) =
            ends.next_if(|(returned, _, _)| *returned < record.invoked)
        {
            if highest.is_none_or(|(v, _)| version > v) {
                highest = Some((version, ended));
            }
        }
        let Some(made) = record.made() else { continue };
        if let Outcome::Wrote { version, replaced } = record.outcome
            && version <= replaced
        {
            let message = "a write has a version no higher than the one it replaced";
            return Some(subject.violation(Check::VersionsGrow, message, &[record]));
        }
        if let Some((version, earlier)) = highest
            && made <= version
        {
            let message = format!("version {made} was made after version {version} was known");
            return Some(subject.violation(Check::VersionsGrow, message, &[earlier, record]));
        }
    }
    None
}

/// No write takes effect twice: its bytes appear with one version.
pub(super) fn exactly_once(subject: &Subject<'_>) -> Vec<Violation> {
    let mut versions: BTreeMap<u64, Vec<(u64, &Record)>> = BTreeMap::new();
    for record in subject.records() {
        let Some((version, Content::Bytes(id))) = shown(record) else {
            continue;
        };
        let known = versions.entry(id).or_default();
        if known.iter().any(|(v, _)| *v == version) {
            continue;
        }
        known.push((version, record));
        if known.len() > 1 {
            let message = format!("value #{id} was written {} times", known.len());
            let evidence: Vec<&Record> = known.iter().map(|(_, r)| *r).collect();
            return vec![subject.violation(Check::ExactlyOnce, message, &evidence)];
        }
    }
    Vec::new()
}
