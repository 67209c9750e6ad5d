//! Time does not run backwards: what was acknowledged or read stays, what was deleted stays away.

use crate::check::{Check, Subject, Violation};
use crate::history::{KeyKind, Outcome, Plain, Record};

/// An acknowledged write is readable with its value or a later one.
pub(super) fn acknowledged_write_is_readable(subject: &Subject<'_>) -> Vec<Violation> {
    let lost = lost(subject, |record| record.made());
    let Some((write, later)) = lost else {
        return Vec::new();
    };
    let message = "an acknowledged write is lost";
    vec![subject.violation(Check::AcknowledgedWriteIsReadable, message, &[write, later])]
}

/// What was read is never lost afterwards.
pub(super) fn reads_never_go_back(subject: &Subject<'_>) -> Vec<Violation> {
    let lost = lost(subject, |record| match record.outcome {
        Outcome::Found { version, .. }
        | Outcome::Seen { version }
        | Outcome::Rejected { version } => Some(version),
        Outcome::Missing
        | Outcome::Wrote { .. }
        | Outcome::Deleted { .. }
        | Outcome::Added { .. }
        | Outcome::Plain(_)
        | Outcome::NotDone
        | Outcome::Unknown => None,
    });
    let Some((read, later)) = lost else {
        return Vec::new();
    };
    let message = "a version that was read is lost afterwards";
    vec![subject.violation(Check::ReadsNeverGoBack, message, &[read, later])]
}

/// The first record that shows less than an earlier one which `source` takes as proof of a
/// version.
fn lost<'a>(
    subject: &'a Subject<'_>,
    source: impl Fn(&Record) -> Option<u64>,
) -> Option<(&'a Record, &'a Record)> {
    let records = subject.records();
    let mut proofs: Vec<(u64, u64, &Record)> = records
        .iter()
        .filter_map(|r| source(r).filter(|v| *v > 0).map(|v| (r.returned, v, r)))
        .collect();
    proofs.sort_by_key(|(returned, _, _)| *returned);
    let mut proofs = proofs.into_iter().peekable();
    let mut best: Option<(u64, &Record)> = None;
    // Records are in the order of their beginnings.
    for later in records {
        while let Some((_, version, record)) =
            proofs.next_if(|(returned, _, _)| *returned < later.invoked)
        {
            if best.is_none_or(|(highest, _)| version > highest) {
                best = Some((version, record));
            }
        }
        let (Some((version, proof)), Some(seen)) = (best, found(later)) else {
            continue;
        };
        let explained =
            seen == 0 && (expires(subject) || subject.deletion_between(proof, later, version));
        if seen < version && !explained {
            return Some((proof, later));
        }
    }
    None
}

/// Whether objects of this key may be gone without a delete (`expiry` judges when).
fn expires(subject: &Subject<'_>) -> bool {
    subject.key.kind == KeyKind::Volatile
}

/// The version that was there when the operation took effect; `Some(0)`: no object.
fn found(record: &Record) -> Option<u64> {
    match record.outcome {
        Outcome::Found { version, .. }
        | Outcome::Seen { version }
        | Outcome::Rejected { version } => Some(version),
        Outcome::Missing => Some(0),
        Outcome::Wrote { replaced, .. } => Some(replaced),
        Outcome::Deleted { version } => Some(version),
        Outcome::Plain(_) => record.found_nothing().then_some(0),
        Outcome::Added { .. } | Outcome::NotDone | Outcome::Unknown => None,
    }
}

/// Once an object was missing or deleted, nothing that was there before is seen again.
pub(super) fn deleted_stays_deleted(subject: &Subject<'_>) -> Vec<Violation> {
    let records = subject.records();
    // Versions known before a record began, by the end of the record that shows them.
    let mut known: Vec<(u64, u64)> = records
        .iter()
        .filter_map(|r| r.seen().map(|v| (r.returned, v)))
        .collect();
    known.sort_unstable();
    let mut known = known.into_iter().peekable();
    let mut highest = 0;
    // (end of the record that shows the absence, no version up to this may come back, record)
    let mut absences: Vec<(u64, u64, &Record)> = Vec::new();
    for record in records {
        while let Some((_, version)) = known.next_if(|(returned, _)| *returned < record.invoked) {
            highest = highest.max(version);
        }
        let gone = match record.outcome {
            Outcome::Deleted { version } => Some(version.max(highest)),
            Outcome::Missing
            | Outcome::Rejected { version: 0 }
            | Outcome::Wrote { replaced: 0, .. }
            | Outcome::Plain(Plain::Deleted) => Some(highest),
            Outcome::Plain(_) => record.found_nothing().then_some(highest),
            Outcome::Found { .. }
            | Outcome::Seen { .. }
            | Outcome::Wrote { .. }
            | Outcome::Added { .. }
            | Outcome::Rejected { .. }
            | Outcome::NotDone
            | Outcome::Unknown => None,
        };
        if let Some(version) = gone.filter(|v| *v > 0) {
            absences.push((record.returned, version, record));
        }
    }
    absences.sort_by_key(|(returned, _, _)| *returned);
    let mut absences = absences.into_iter().peekable();
    let mut barrier: Option<(u64, &Record)> = None;
    for record in records {
        while let Some((_, version, absence)) =
            absences.next_if(|(returned, _, _)| *returned < record.invoked)
        {
            if barrier.is_none_or(|(highest, _)| version > highest) {
                barrier = Some((version, absence));
            }
        }
        let Some((version, absence)) = barrier else {
            continue;
        };
        let seen = [record.seen(), found(record)];
        if seen
            .into_iter()
            .flatten()
            .any(|seen| seen > 0 && seen <= version)
        {
            let message = format!("it was gone, and a version up to {version} came back");
            let evidence = [absence, record];
            return vec![subject.violation(Check::DeletedStaysDeleted, message, &evidence)];
        }
    }
    Vec::new()
}
