//! Changing objects: the way of every mutation on a master.
//!
//! 1. The tablet of the key must be served here, and changes of it are noted while it is copied.
//! 2. An operation that was executed before is answered with its outcome (COMP-1).
//! 3. The engine judges, computes and appends.
//! 4. The outcome is told once it is durable ([`Replies`]).

use super::Replies;
use super::get::{GROUP, REST_OF_BATCH};
use crate::master::{BACKUPS_RETRY, Master, Served};
use crate::tablets::Snapshot;
use pluvio_log::Awaited;
use pluvio_mutation::{Mutation, Outcome};
use pluvio_store::{Admission, Applied, EngineError, Execution, Site};
use pluvio_units::{KeyHash, LogId, TableId};
use pluvio_wire::{Answer, FatalKind, Header, MULTI_BYTES_MAX, Refusal, Results, RetryReason};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

/// How long the sender of a duplicate should wait for the original to end: it runs on another core
/// right now.
const DUPLICATE_RETRY: Duration = Duration::from_micros(500);
/// When to send the rest of an ordered batch: its beginning is durable when this is told.
const AFTER_OTHERS_RETRY: Duration = Duration::ZERO;
/// How long to wait for others' results to be acknowledged.
const RESULTS_RETRY: Duration = Duration::from_millis(5);

impl Master {
    /// Changes objects; answers when that is durable, one result an item. Each item succeeds or
    /// fails by itself. An `ordered` batch ends with the first item that is refused, and has one
    /// result for each item that was looked at. All of its items that wait rest on one log: logs
    /// become durable in any order, so an item of another log comes again later. Items behind
    /// [`MULTI_BYTES_MAX`] of outputs are to come again, but never the first.
    pub fn mutate<'m>(
        self: &Arc<Self>,
        log: LogId,
        header: &Header,
        mutations: impl ExactSizeIterator<Item = Mutation<'m>>,
        ordered: bool,
    ) -> Answer<Results> {
        if let Err(refusal) = self.check_target(header) {
            return Answer::Now(Err(refusal));
        }
        // Held until the changes are noted (TAB-2).
        let snapshot = self.tablets().snapshot();
        let mut replies = Replies::default();
        // A single one may have its identity from the header.
        let alone = (mutations.len() == 1).then_some(header.operation);
        let mut mutations = mutations.map(|mutation| {
            let hash = self.hash_of(&snapshot, mutation.table, mutation.key, mutation.hash);
            let id = alone
                .filter(|_| !mutation.id.is_some())
                .unwrap_or(mutation.id);
            Mutation {
                id,
                hash,
                ..mutation
            }
        });
        loop {
            let group: SmallVec<[Mutation<'m>; 1]> = mutations.by_ref().take(GROUP).collect();
            if group.is_empty() {
                return replies.into_answer(self);
            }
            self.prefetch(&snapshot, group.iter().map(|m| (m.table, m.hash)));
            for mutation in &group {
                if ordered && replies.last_rests_elsewhere(log) {
                    // After a crash this item could be there, and the one before it be gone.
                    pluvio_units::mark("ordered-batch-waits-for-another-log");
                    replies.refused(Refusal::retry(AFTER_OTHERS_RETRY, RetryReason::InProgress));
                    return replies.into_answer(self);
                }
                if replies.bytes() >= MULTI_BYTES_MAX {
                    replies.refused(Refusal::retry(REST_OF_BATCH, RetryReason::Busy));
                    match ordered {
                        true => return replies.into_answer(self),
                        false => continue,
                    }
                }
                let only_this_log = ordered && replies.is_waiting();
                let site = (log, only_this_log);
                match self.mutate_one(site, &snapshot, mutation) {
                    Ok(outcome) => replies.awaited(self, outcome),
                    Err(refusal) => {
                        replies.refused(refusal);
                        if ordered {
                            pluvio_units::mark("ordered-batch-ends-early");
                            return replies.into_answer(self);
                        }
                    }
                }
            }
        }
    }

    /// Changes one object at once. The outcome must not be told before it is durable.
    ///
    /// # Errors
    /// See [`Master::mutate`]; nothing changed.
    pub fn mutate_at_once(
        &self,
        log: LogId,
        header: &Header,
        mutation: &Mutation<'_>,
    ) -> Result<Awaited<Outcome>, Refusal> {
        self.check_target(header)?;
        let snapshot = self.tablets().snapshot();
        self.mutate_one((log, false), &snapshot, mutation)
    }

    fn mutate_one(
        &self,
        (log, only_this_log): (LogId, bool),
        snapshot: &Snapshot,
        mutation: &Mutation<'_>,
    ) -> Result<Awaited<Outcome>, Refusal> {
        let Served { table, hash, phase } =
            self.serving(snapshot, mutation.table, mutation.hash)?;
        Self::must_take_changes(phase)?;
        let copying = self.leaving.of(phase, table, hash)?;
        let execution = match self.admit(mutation, (table.id(), hash)) {
            None => None,
            Some(Admission::Execute(execution)) => Some(execution),
            Some(Admission::Answer(outcome)) => {
                pluvio_units::mark("completion-answers-retry");
                if outcome.pending().output().bulk_len() > 0 {
                    pluvio_units::mark("completion-answers-with-value");
                }
                if !mutation.change.gives(outcome.pending()) {
                    return Err(reused());
                }
                return Ok(outcome);
            }
            Some(other) => return Err(not_executed(&other)),
        };
        self.writes_possible()?;
        let site = Site {
            log,
            table,
            hash,
            now_s: self.now_s(),
            only_this_log,
        };
        let applied = self.apply(&site, mutation, execution)?;
        if let Some(leaving) = copying {
            leaving.note(mutation.key, applied.pending().outcome());
        }
        Ok(self.told(table, applied))
    }

    fn apply(
        &self,
        site: &Site<'_>,
        mutation: &Mutation<'_>,
        execution: Option<Execution>,
    ) -> Result<Awaited<Applied>, Refusal> {
        let applied = self.store().apply(site, mutation, execution);
        applied.map_err(|error| refusal_of(&error))
    }

    /// Looks whether an operation was executed before; `None` when it has no identity.
    fn admit(&self, mutation: &Mutation<'_>, place: (TableId, KeyHash)) -> Option<Admission> {
        let id = mutation.id;
        id.is_some()
            .then(|| self.store().admit(id, place, self.monotonic()))
    }
}

/// The refusal of an operation that is neither executed nor answered.
fn not_executed(admission: &Admission) -> Refusal {
    match admission {
        Admission::InProgress => {
            pluvio_units::mark("completion-in-progress");
            Refusal::retry(DUPLICATE_RETRY, RetryReason::InProgress)
        }
        Admission::Busy => Refusal::retry(RESULTS_RETRY, RetryReason::Busy),
        Admission::Forgotten => Refusal::fatal(
            FatalKind::ResultForgotten,
            "the client has this operation's result already",
        ),
        Admission::OtherKey | Admission::Execute(_) | Admission::Answer(_) => reused(),
    }
}

fn reused() -> Refusal {
    Refusal::malformed("the number of this operation belongs to another one of the same client")
}

pub(crate) fn refusal_of(error: &EngineError) -> Refusal {
    match error {
        EngineError::Full { retry_after } => Refusal::retry(*retry_after, RetryReason::MemoryFull),
        EngineError::OutcomesFull { retry_after } => {
            Refusal::retry(*retry_after, RetryReason::Busy)
        }
        EngineError::OtherLog => {
            pluvio_units::mark("ordered-batch-waits-for-another-log");
            Refusal::retry(AFTER_OTHERS_RETRY, RetryReason::InProgress)
        }
        EngineError::Stalled => Refusal::retry(BACKUPS_RETRY, RetryReason::NoSpace),
        EngineError::NotHere => Refusal::Refresh,
        EngineError::KeyTooLong(_) => Refusal::fatal(FatalKind::KeyTooLong, error.to_string()),
        EngineError::ValueTooLong(..) => Refusal::fatal(FatalKind::ValueTooLong, error.to_string()),
    }
}
