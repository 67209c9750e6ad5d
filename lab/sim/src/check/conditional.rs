//! Conditions: at most one change wins per version, and only when its condition held.

use crate::check::{Check, Subject, Violation};
use crate::history::{Outcome, Record};
use std::collections::BTreeMap;

/// At most one acknowledged change follows a version, conditional or not.
pub(super) fn one_winner(subject: &Subject<'_>) -> Vec<Violation> {
    let mut followers: BTreeMap<u64, &Record> = BTreeMap::new();
    for record in subject.records() {
        let condition = record.action.condition();
        let followed = match record.outcome {
            Outcome::Wrote { replaced, .. } => replaced,
            Outcome::Deleted { version } => version,
            Outcome::Rejected { version } => {
                if condition.is_none_or(|c| c.holds(version)) {
                    let message = "rejected although nothing speaks against it";
                    return vec![subject.violation(Check::OneWinner, message, &[record])];
                }
                continue;
            }
            Outcome::Found { version, .. } | Outcome::Seen { version } => version,
            Outcome::Missing => 0,
            Outcome::Added { .. } | Outcome::Plain(_) | Outcome::NotDone | Outcome::Unknown => {
                continue;
            }
        };
        if condition.is_some_and(|c| !c.holds(followed)) {
            let message = format!("it went ahead at version {followed} against its condition");
            return vec![subject.violation(Check::OneWinner, message, &[record])];
        }
        if followed == 0 || !record.may_change() {
            continue;
        }
        if let Some(other) = followers.insert(followed, record) {
            let message = format!("two changes followed version {followed}");
            return vec![subject.violation(Check::OneWinner, message, &[other, record])];
        }
    }
    Vec::new()
}
