//! Counters: the number lies between what is acknowledged and what was tried.

use crate::check::{Check, Subject, Violation};
use crate::history::{Action, Content, KeyKind, Outcome, Plain, Record, in_wholes};

/// Every number read, and every sum answered, lies between the sum of what had been acknowledged
/// before and the sum of all that may have been executed until then.
pub(super) fn counters_add_up(subject: &Subject<'_>) -> Vec<Violation> {
    if subject.key.kind != KeyKind::Counter {
        return Vec::new();
    }
    for record in subject.records() {
        let number = match record.outcome {
            Outcome::Found {
                content: Content::Number(number),
                ..
            }
            | Outcome::Plain(Plain::Found {
                content: Content::Number(number),
            }) => number,
            Outcome::Added { sum, .. } | Outcome::Plain(Plain::Added { sum }) => sum,
            Outcome::Missing | Outcome::Rejected { version: 0 } => 0,
            Outcome::Found { .. } | Outcome::Plain(Plain::Found { .. }) => {
                let message = "a counter holds something else than a number";
                return vec![subject.violation(Check::CountersAddUp, message, &[record])];
            }
            Outcome::Seen { .. }
            | Outcome::Wrote { .. }
            | Outcome::Deleted { .. }
            | Outcome::Rejected { .. }
            | Outcome::Plain(_)
            | Outcome::NotDone
            | Outcome::Unknown => continue,
        };
        let (low, high) = bounds(subject, record);
        if number < low || number > high {
            let [number, low, high] = [number, low, high].map(in_wholes);
            let message = format!("the number is {number}, not from {low} to {high}");
            return vec![subject.violation(Check::CountersAddUp, message, &[record])];
        }
    }
    Vec::new()
}

/// The least and the most that the counter can be for `at`; additions are of any sign.
fn bounds(subject: &Subject<'_>, at: &Record) -> (i64, i64) {
    let (mut low, mut high) = (0, 0);
    for record in subject.records() {
        let Action::Add { by, .. } = record.action else {
            continue;
        };
        if record.invoked > at.returned || !record.may_change() {
            continue;
        }
        let is_own = record.invoked == at.invoked;
        let is_done = matches!(
            record.outcome,
            Outcome::Added { .. } | Outcome::Plain(Plain::Added { .. })
        );
        let certain = is_done && (is_own || record.is_before(at));
        if certain {
            low += by;
            high += by;
        } else {
            low += by.min(0);
            high += by.max(0);
        }
    }
    (low, high)
}
