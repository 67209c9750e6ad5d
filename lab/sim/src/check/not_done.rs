//! What was not executed has no effect, and nothing is read that nobody wrote.

use crate::check::{Check, Subject, Violation};
use crate::history::{Action, Content, KeyKind, Record};
use std::collections::BTreeMap;

/// Every value that is read was written by an operation that began before the read ended, and
/// that did not fail as "not executed".
pub(super) fn not_done_has_no_effect(subject: &Subject<'_>) -> Vec<Violation> {
    if subject.key.kind.has_exchanges() {
        // Which values there may be follows from the changes of parts: the search for an order
        // knows it.
        return Vec::new();
    }
    let mut writers: BTreeMap<u64, &Record> = BTreeMap::new();
    let mut empty_written = u64::MAX;
    for record in subject.records() {
        let possible = record.may_change();
        match record.action {
            Action::Write { content, .. } => match content {
                Content::Bytes(id) => {
                    writers.insert(id, record);
                }
                Content::Empty if possible => empty_written = empty_written.min(record.invoked),
                Content::Empty | Content::Number(_) | Content::Hash(_) | Content::Damaged(_) => {}
            },
            Action::Read
            | Action::ReadIf { .. }
            | Action::Delete { .. }
            | Action::Add { .. }
            | Action::Mutate { .. } => {}
        }
    }
    for record in subject.records() {
        let Some(content) = record.shows() else {
            continue;
        };
        let wrong = |message: &str, evidence: &[&Record]| {
            vec![subject.violation(Check::NotDoneHasNoEffect, message, evidence)]
        };
        match content {
            Content::Bytes(id) => match writers.get(&id) {
                None => return wrong("a value was read that nobody wrote to this key", &[record]),
                Some(writer) if writer.invoked > record.returned => {
                    return wrong("a value was read before it was written", &[record, writer]);
                }
                Some(writer) if !writer.may_change() => {
                    return wrong("a write that was not executed shows", &[writer, record]);
                }
                Some(_) => {}
            },
            Content::Empty if empty_written > record.returned => {
                return wrong("the empty value was read and nobody wrote it", &[record]);
            }
            Content::Number(_) if subject.key.kind == KeyKind::Register => {
                return wrong("a number was read that nobody wrote to this key", &[record]);
            }
            Content::Empty | Content::Number(_) => {}
            Content::Hash(_) | Content::Damaged(_) => {
                return wrong("a value was read that nobody wrote", &[record]);
            }
        }
    }
    Vec::new()
}
