//! What must hold, each thing in a checker of its own.
//!
//! [`check_history`] judges what clients did and saw; [`ownership`], [`accounts`], [`running`] and
//! [`expected`] judge what the cluster says of itself. Every checker reads its material by itself
//! and knows no other, so that an error in one does not hide what another would find. The
//! linearizability checker alone would find most of it; the others say in plain words what is
//! wrong.
//!
//! Invariants
//! - CHECK-1: a history that some correct cluster could give has no violations.
//! - CHECK-2: every checker has a test in which a planted error makes it, by name, complain.

pub mod accounts;
mod conditional;
mod counters;
pub mod cycles;
mod enumeration;
mod exchanges;
pub mod expected;
mod expiry;
mod going_back;
mod linear;
mod not_done;
pub mod ownership;
mod register;
pub mod running;
#[cfg(test)]
mod tests;
pub mod tokens;
pub mod transfers;
mod versions;

use crate::history::{Clocks, History, KeyHistory, KeyId, KeyKind, Record};
use core::fmt;
use serde::{Deserialize, Serialize};

pub use exchanges::ValueObject;
pub use expiry::{Mortal, Timed, Window};
pub use linear::{End, Linear, Operation, linearize};
pub use register::Object;

/// What is checked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// An acknowledged write is readable with its value or a later one.
    AcknowledgedWriteIsReadable,
    /// A value that was read is never lost afterwards.
    ReadsNeverGoBack,
    /// What was deleted stays deleted.
    DeletedStaysDeleted,
    /// Versions of a key grow in real-time order, and a version has one content.
    VersionsGrow,
    /// No write takes effect twice.
    ExactlyOnce,
    /// What failed as not executed has no effect; nothing is read that nobody wrote.
    NotDoneHasNoEffect,
    /// At most one conditional change wins per version.
    OneWinner,
    /// A counter lies between what is acknowledged and what was tried.
    CountersAddUp,
    /// An enumeration finds each stable key exactly once.
    EnumerationFindsEachOnce,
    /// Objects expire when their deadlines are past: no later, and no earlier.
    ExpiresInTime,
    /// Transactions take effect at one moment, whole or not at all, in real-time order.
    StrictlySerializable,
    /// Items of an ordered batch take effect in its order.
    BatchesInOrder,
    /// There is an order of all operations on a key that explains every answer.
    Linearizable,
    /// Each key has one owner at any time.
    OneOwner,
    /// The log of every living master is complete on the backups.
    LogsComplete,
    /// What servers hold is what clients find.
    Accounts,
    /// Only expected WARN and ERROR traces.
    OnlyExpectedTraces,
    /// When faults have stopped, the cluster is healthy again in time.
    Progress,
    /// The code under test did not panic, hang, or refuse to start.
    KeepsRunning,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AcknowledgedWriteIsReadable => "an acknowledged write is readable",
            Self::ReadsNeverGoBack => "a value that was read is never lost",
            Self::DeletedStaysDeleted => "what was deleted stays deleted",
            Self::VersionsGrow => "versions grow, and each has one content",
            Self::ExactlyOnce => "no write takes effect twice",
            Self::NotDoneHasNoEffect => "what was not executed has no effect",
            Self::OneWinner => "one conditional change wins per version",
            Self::CountersAddUp => "counters add up",
            Self::EnumerationFindsEachOnce => "an enumeration finds each stable key exactly once",
            Self::ExpiresInTime => "objects expire at their deadlines",
            Self::StrictlySerializable => "transactions are strictly serializable",
            Self::BatchesInOrder => "an ordered batch takes effect in its order",
            Self::Linearizable => "operations on a key are linearizable",
            Self::OneOwner => "each key has one owner",
            Self::LogsComplete => "every log could be recovered",
            Self::Accounts => "servers hold what is found, and nothing else",
            Self::OnlyExpectedTraces => "only expected warnings are traced",
            Self::Progress => "the cluster recovers when faults stop",
            Self::KeepsRunning => "nothing panics or hangs",
        })
    }
}

/// Something that does not hold.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Violation {
    /// What.
    pub check: Check,
    /// How, for people.
    pub message: String,
    /// The records or lines that show it.
    pub evidence: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.message)?;
        for line in &self.evidence {
            write!(f, "\n    {line}")?;
        }
        Ok(())
    }
}

/// What came of checking a history.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Verdict {
    /// What does not hold; of each key and checker the first.
    pub violations: Vec<Violation>,
    /// Keys whose histories have an order.
    pub linearizable: u64,
    /// Keys for which the search for an order reached its limit.
    pub undecided: u64,
}

/// One key's history.
struct Subject<'a> {
    key: &'a KeyHistory,
}

impl Subject<'_> {
    fn violation(
        &self,
        check: Check,
        message: impl fmt::Display,
        evidence: &[&Record],
    ) -> Violation {
        Violation {
            check,
            message: format!("key {}: {message}", self.key.name),
            evidence: evidence.iter().map(ToString::to_string).collect(),
        }
    }

    fn records(&self) -> &[Record] {
        &self.key.records
    }

    /// Whether a delete may explain that an object that was there at `before` is missing at
    /// `after`.
    fn deletion_between(&self, before: &Record, after: &Record, version: u64) -> bool {
        self.records().iter().any(|record| {
            let deletes = matches!(record.action, crate::history::Action::Delete { .. })
                && record.may_change();
            let late_enough = match record.outcome {
                // An acknowledged delete tells which version it deleted, if any.
                crate::history::Outcome::Deleted { version: deleted } => deleted >= version,
                _ => true,
            };
            deletes
                && late_enough
                && record.effect_end() > before.invoked
                && record.invoked < after.returned
        })
    }
}

/// A checker of one key.
type KeyChecker = fn(&Subject<'_>) -> Vec<Violation>;

const KEY_CHECKERS: [KeyChecker; 9] = [
    going_back::acknowledged_write_is_readable,
    going_back::reads_never_go_back,
    going_back::deleted_stays_deleted,
    versions::versions_grow,
    versions::exactly_once,
    not_done::not_done_has_no_effect,
    conditional::one_winner,
    counters::counters_add_up,
    tokens::each_once,
];

/// Runs all checkers of histories. `steps_max` bounds the search for an order, per key.
#[must_use]
pub fn check_history(history: &History, steps_max: u64) -> Verdict {
    let mut verdict = Verdict::default();
    for (_, key) in history.keys() {
        let subject = Subject { key };
        for checker in KEY_CHECKERS {
            verdict.violations.extend(checker(&subject));
        }
        let late = expiry::expires_in_time(&subject, history.clocks());
        verdict.violations.extend(late);
        let violation = ordered(&mut verdict, &subject, history.clocks(), steps_max);
        verdict.violations.extend(violation);
    }
    let reads = tokens::Reads::new(history);
    let batches = history.batches().iter();
    verdict
        .violations
        .extend(batches.filter_map(|batch| reads.in_order(batch)));
    for scan in history.scans() {
        verdict
            .violations
            .extend(enumeration::finds_each_once(history, scan));
    }
    verdict
}

/// Searches an order for the operations on a key, as they stand for its kind.
fn ordered(
    verdict: &mut Verdict,
    subject: &Subject<'_>,
    clocks: &Clocks,
    steps_max: u64,
) -> Option<Violation> {
    let key = subject.key;
    match key.kind {
        KeyKind::Register | KeyKind::Counter => {
            judged(verdict, subject, &key.records, steps_max, describe)
        }
        KeyKind::Value | KeyKind::Tokens => {
            judged(verdict, subject, &key.exchanges, steps_max, describe_value)
        }
        KeyKind::Volatile => {
            let exchanges = key.exchanges.iter();
            let timed: Vec<Timed<'_>> = exchanges.map(|e| Timed::new(e, clocks)).collect();
            judged(verdict, subject, &timed, steps_max, describe_mortal)
        }
    }
}

/// Searches an order for the operations on a key, and counts what came of it.
fn judged<P: Operation + fmt::Display>(
    verdict: &mut Verdict,
    subject: &Subject<'_>,
    operations: &[P],
    steps_max: u64,
    describe: impl Fn(&P::Object) -> String,
) -> Option<Violation> {
    match linearize(operations, steps_max) {
        Linear::Yes => verdict.linearizable += 1,
        Linear::Undecided => verdict.undecided += 1,
        Linear::No {
            placed,
            object,
            due,
        } => {
            let message = format!(
                "after {placed} operations ({}) none of {} that are due fits",
                describe(&object),
                due.len(),
            );
            return Some(Violation {
                check: Check::Linearizable,
                message: format!("key {}: {message}", subject.key.name),
                evidence: around(operations, &due),
            });
        }
    }
    None
}

/// The evidence: what could not be placed, and what overlaps or precedes it closely.
fn around<P: fmt::Display>(operations: &[P], due: &[usize]) -> Vec<String> {
    /// Records that say what happened just before, at most.
    const BEFORE: usize = 12;
    let first = due.iter().min().copied().unwrap_or(0);
    let last = due.iter().max().copied().unwrap_or(0);
    let shown =
        &operations[first.saturating_sub(BEFORE)..=last.min(operations.len().saturating_sub(1))];
    shown.iter().map(ToString::to_string).collect()
}

fn describe(object: &Object) -> String {
    let content = object
        .content
        .map_or("no object".to_owned(), |content| content.to_string());
    format!("{content}, {}", version_of(object))
}

fn describe_value(object: &ValueObject) -> String {
    match &object.content {
        Some(value) => format!("{value:?}, {}", version_of(object)),
        None => format!("no object, {}", version_of(object)),
    }
}

fn describe_mortal(mortal: &Mortal) -> String {
    let Mortal { object, window } = mortal;
    let deadline = match *window {
        Window::NEVER => "no deadline".to_owned(),
        Window { first, last } => format!("deadline {first} to {last}"),
    };
    format!("{}, {deadline}", describe_value(object))
}

fn version_of<C>(object: &Object<C>) -> String {
    let or_more = if object.exact { "" } else { " or more" };
    format!("version {}{or_more}", object.version)
}

/// Names a key in messages.
fn name_of(history: &History, key: KeyId) -> &str {
    &history.of(key).name
}
