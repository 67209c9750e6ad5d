//! Changing objects: the way of every mutation on a master.
//!
//! 1. The tablet of the key must be served here, and changes of it are noted while it is copied.
//! 2. An operation that was executed before is answered with its outcome (COMP-1).
//! 3. The engine judges, computes and appends.
//! 4. The outcome is told once it is durable ([`Replies`]).

use super::Replies;
use super::get::{GROUP, REST_OF_BATCH};
use crate::cut::Noting;
use crate::master::{BACKUPS_RETRY, Master};
use crate::quotas::over_quota;
use crate::tablets::Snapshot;
use crate::top_keys::Use;
use core::ops::ControlFlow;
use pluvio_log::Awaited;
use pluvio_mutation::{Change, Mutation, Outcome};
use pluvio_store::{Admission, Applied, EngineError, EngineTable, Execution, Item, Taken};
use pluvio_units::{KeyPlace, LogId, LogPosition, OperationId};
use pluvio_wire::{
    Answer, FatalKind, Header, MULTI_BYTES_MAX, Outcomes, Refusal, Results, RetryReason,
};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

/// How long the sender of a duplicate should wait for the original to end: it runs on another core
/// right now.
const DUPLICATE_RETRY: Duration = Duration::from_micros(500);
/// When to send the rest of an ordered batch: its beginning is durable when this is told.
const AFTER_OTHERS_RETRY: Duration = Duration::ZERO;
/// When to come again for a key that a transaction of several owners has locked: its decision takes
/// some round trips.
pub(super) const LOCKED_RETRY: Duration = Duration::from_micros(300);
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
        match self.mutate_all(log, header, mutations, ordered) {
            Ok(replies) => replies.into_answer(self),
            Err(refusal) => Answer::Now(Err(refusal)),
        }
    }

    /// [`Master::mutate`] of an ordered batch that answers at once. Nobody may be told of it before
    /// what it rests on is durable ([`Master::await_durable`]).
    ///
    /// # Errors
    /// As there.
    pub fn mutate_early<'m>(
        &self,
        log: LogId,
        header: &Header,
        mutations: impl ExactSizeIterator<Item = Mutation<'m>>,
    ) -> Result<Outcomes, Refusal> {
        let replies = self.mutate_all(log, header, mutations, true)?;
        Ok(replies.into_early())
    }

    /// Answers when these positions are durable, on which early answers of this life rest.
    pub fn await_durable(
        self: &Arc<Self>,
        header: &Header,
        positions: &[(LogId, LogPosition)],
    ) -> Answer<()> {
        let space = self.store().space();
        if !self.is_meant(header) {
            return Answer::Now(Err(Refusal::Refresh));
        }
        let logs = space.logs().count();
        // A position beyond the end of the log might never be durable.
        let is_known = |&(log, position): &(LogId, LogPosition)| {
            usize::from(log.0) < logs && position <= space.end_position(log)
        };
        if positions.len() > logs || !positions.iter().all(is_known) {
            let what = "an early answer that this server has not given";
            return Answer::Now(Err(Refusal::malformed(what)));
        }
        let is_durable = |&(log, position): &(LogId, LogPosition)| space.is_durable(log, position);
        let waits: Vec<_> = positions
            .iter()
            .filter(|at| !is_durable(at))
            .copied()
            .collect();
        if waits.is_empty() {
            return Answer::Now(Ok(()));
        }
        let master = Arc::clone(self);
        Answer::Later(Box::pin(async move {
            for (log, position) in waits {
                master.replication().synced(log, position).await;
            }
            Ok(())
        }))
    }

    pub(crate) fn mutate_all<'m>(
        &self,
        log: LogId,
        header: &Header,
        mutations: impl ExactSizeIterator<Item = Mutation<'m>>,
        ordered: bool,
    ) -> Result<Replies, Refusal> {
        self.check_target(header)?;
        // Held until the changes are noted (TAB-2).
        let snapshot = self.tablets().snapshot();
        let mut replies = Replies::of_items(mutations.len());
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
        // That of the latest items.
        let mut latest = log;
        loop {
            let group: SmallVec<[Mutation<'m>; 1]> = mutations.by_ref().take(GROUP).collect();
            if group.is_empty() {
                return Ok(replies);
            }
            self.prefetch(&snapshot, group.iter().map(|m| (m.table, m.hash)));
            let mut batch = Batch {
                master: self,
                of_core: log,
                log: latest,
                ordered,
                replies,
                items: SmallVec::with_capacity(group.len()),
                under_way: SmallVec::with_capacity(group.len()),
            };
            let flow = group.iter().try_for_each(|m| batch.take(&snapshot, m));
            let ends = flow.is_break() || batch.apply().is_break();
            (replies, latest) = (batch.replies, batch.log);
            if ends {
                return Ok(replies);
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
        let (item, under_way) = match self.prepare(log, &snapshot, mutation)? {
            Prepared::Answer(outcome) => return Ok(outcome),
            Prepared::Execute(item, under_way) => (item, under_way),
        };
        match self.store().apply(&item.site, mutation, item.execution) {
            Ok(applied) => Ok(self.applied(&under_way, applied)),
            Err(error) => Err(under_way.refused(&error)),
        }
    }

    /// Looks whether a mutation is to be executed here, or has been executed before.
    fn prepare<'p>(
        &self,
        log: LogId,
        snapshot: &'p Snapshot,
        mutation: &'p Mutation<'p>,
    ) -> Result<Prepared<'p>, Refusal> {
        let served = self.serving(snapshot, mutation.table, mutation.hash)?;
        self.must_be_changeable(&served)?;
        self.not_held_for_transaction(served.place())?;
        let noting = self.noting(&served)?;
        let execution = match self.executed(mutation.id, served.place())? {
            Executed::NotYet(execution) => execution,
            Executed::Before(outcome) => {
                pluvio_units::mark("completion-answers-retry");
                if outcome.pending().bulk_len() > 0 {
                    pluvio_units::mark("completion-answers-with-value");
                }
                if !mutation.change.gives(outcome.pending()) {
                    return Err(reused());
                }
                return Ok(Prepared::Answer(outcome));
            }
        };
        self.writes_possible()?;
        let taken = self.take_operation(served.table, matches!(mutation.change, Change::Delete))?;
        let moved = mutation.change.bulk_len();
        self.sample(&served, mutation.key, Use::Write, Some(moved));
        self.notice(served.place(), mutation);
        let item = Item {
            site: self.site(log, &served),
            mutation,
            execution,
        };
        let under_way = UnderWay {
            table: served.table,
            noting,
            key: mutation.key,
            taken,
        };
        Ok(Prepared::Execute(item, under_way))
    }

    /// The outcome of an applied mutation; a tablet that leaves takes note.
    fn applied(&self, under_way: &UnderWay<'_>, applied: Awaited<Applied>) -> Awaited<Outcome> {
        let outcome = applied.pending().outcome();
        under_way.noting.note(under_way.key, outcome);
        self.outcome_of(under_way.table, applied)
    }

    /// Looks whether an operation was executed before (COMP-1). One without an identity never was.
    ///
    /// # Errors
    /// It is neither to be executed now nor to be answered.
    #[inline]
    pub(super) fn executed(&self, id: OperationId, place: KeyPlace) -> Result<Executed, Refusal> {
        if !id.is_some() {
            return Ok(Executed::NotYet(None));
        }
        match self.store().admit(id, place, self.monotonic()) {
            Admission::Execute(execution) => Ok(Executed::NotYet(Some(execution))),
            Admission::Answer(outcome) => Ok(Executed::Before(outcome)),
            Admission::InProgress => {
                pluvio_units::mark("completion-in-progress");
                Err(Refusal::retry(DUPLICATE_RETRY, RetryReason::InProgress))
            }
            Admission::Busy => Err(Refusal::retry(RESULTS_RETRY, RetryReason::Busy)),
            Admission::Forgotten => Err(Refusal::fatal(
                FatalKind::ResultForgotten,
                "the client has this operation's result already",
            )),
            Admission::OtherKey => Err(reused()),
        }
    }
}

/// Whether an operation was executed before.
pub(super) enum Executed {
    /// It is to be executed: with an identity under this record.
    NotYet(Option<Execution>),
    /// It was, and this came of it.
    Before(Awaited<Outcome>),
}

/// A mutation that may be executed, or the outcome that it had before.
enum Prepared<'p> {
    Execute(Item<'p>, UnderWay<'p>),
    Answer(Awaited<Outcome>),
}

/// The part of a mutation that is kept until it was applied.
struct UnderWay<'p> {
    table: &'p Arc<EngineTable>,
    /// Where the change is noted.
    noting: Noting,
    key: &'p [u8],
    /// Of its table's quota.
    taken: Taken,
}

impl UnderWay<'_> {
    /// The refusal of a mutation that the engine has not applied.
    fn refused(&self, error: &EngineError) -> Refusal {
        self.table.give_back(self.taken);
        refusal_of(error)
    }
}

/// Mutations of a request that are applied together.
struct Batch<'b> {
    master: &'b Master,
    of_core: LogId,
    /// The log of the latest items.
    log: LogId,
    ordered: bool,
    replies: Replies,
    items: SmallVec<[Item<'b>; 1]>,
    /// The rest of each item.
    under_way: SmallVec<[UnderWay<'b>; 1]>,
}

impl<'b> Batch<'b> {
    /// Takes the next mutation up, or replies to it. Breaks where the request ends.
    fn take(&mut self, snapshot: &'b Snapshot, mutation: &'b Mutation<'b>) -> ControlFlow<()> {
        if let Some(refusal) = self.must_wait() {
            return self.put_off(refusal);
        }
        self.go_to_log_of(snapshot, mutation)?;
        let only_this_log = self.ordered && (self.replies.is_waiting() || !self.items.is_empty());
        match self.master.prepare(self.of_core, snapshot, mutation) {
            Ok(Prepared::Execute(mut item, under_way)) => {
                item.site.only_this_log = only_this_log;
                self.items.push(item);
                self.under_way.push(under_way);
                ControlFlow::Continue(())
            }
            Ok(Prepared::Answer(outcome)) => {
                self.apply()?;
                match self.must_wait() {
                    Some(refusal) => self.put_off(refusal),
                    None => {
                        self.replies.awaited(self.master, outcome);
                        ControlFlow::Continue(())
                    }
                }
            }
            Err(refusal) => {
                self.apply()?;
                self.refuse(refusal)
            }
        }
    }

    /// The next item may be of a table with another durability, and so of another log. Of an
    /// ordered batch it comes again when those before it are durable: logs become so in any order.
    fn go_to_log_of(&mut self, snapshot: &'b Snapshot, mutation: &Mutation<'_>) -> ControlFlow<()> {
        if !self.ordered {
            return ControlFlow::Continue(());
        }
        let table = snapshot.get(&mutation.table).map(|local| &local.table);
        let log = table.map_or(self.log, |table| {
            self.master.store().log_of(self.of_core, table)
        });
        if log == self.log {
            return ControlFlow::Continue(());
        }
        self.apply()?;
        if self.replies.is_waiting() {
            pluvio_units::mark("ordered-batch-waits-for-another-class");
            let refusal = Refusal::retry(AFTER_OTHERS_RETRY, RetryReason::InProgress);
            return self.put_off(refusal);
        }
        self.log = log;
        match self.must_wait() {
            Some(refusal) => self.put_off(refusal),
            None => ControlFlow::Continue(()),
        }
    }

    /// Applies what was taken up.
    fn apply(&mut self) -> ControlFlow<()> {
        let mut items = core::mem::take(&mut self.items);
        let under_way = core::mem::take(&mut self.under_way);
        let mut next = under_way.iter();
        let mut refused = ControlFlow::Continue(());
        let done = self.master.store().apply_batch(&mut items, |applied| {
            let of_item = next.next().expect("one for each item");
            match applied {
                Ok(applied) => {
                    let outcome = self.master.applied(of_item, applied);
                    self.replies.awaited(self.master, outcome);
                    match self.must_wait() {
                        Some(_) => ControlFlow::Break(()),
                        None => ControlFlow::Continue(()),
                    }
                }
                Err(error) => {
                    refused = self.refuse(of_item.refused(&error));
                    refused
                }
            }
        });
        for of_item in under_way.iter().skip(done) {
            of_item.table.give_back(of_item.taken);
        }
        refused?;
        for _ in done..items.len() {
            let refusal = self.must_wait();
            self.put_off(refusal.expect("that is why the batch was left"))?;
        }
        ControlFlow::Continue(())
    }

    /// Why the next item may not be executed behind the last one now.
    fn must_wait(&self) -> Option<Refusal> {
        if self.ordered && self.replies.last_rests_elsewhere(self.log) {
            // After a crash the next item could be there, and this one be gone.
            return Some(Refusal::retry(AFTER_OTHERS_RETRY, RetryReason::InProgress));
        }
        let is_full = self.replies.bytes() >= MULTI_BYTES_MAX;
        is_full.then(|| Refusal::retry(REST_OF_BATCH, RetryReason::Busy))
    }

    /// Replies to an item that [must wait](Self::must_wait): it comes again later, and so does
    /// everything behind it in an ordered batch.
    fn put_off(&mut self, refusal: Refusal) -> ControlFlow<()> {
        if self.ordered && self.replies.last_rests_elsewhere(self.log) {
            pluvio_units::mark("ordered-batch-waits-for-another-log");
        }
        self.replies.refused(refusal);
        self.after_refusal()
    }

    fn refuse(&mut self, refusal: Refusal) -> ControlFlow<()> {
        self.replies.refused(refusal);
        if self.ordered {
            pluvio_units::mark("ordered-batch-ends-early");
        }
        self.after_refusal()
    }

    /// An ordered batch ends with its first refusal.
    fn after_refusal(&self) -> ControlFlow<()> {
        match self.ordered {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

pub(super) fn reused() -> Refusal {
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
        EngineError::Locked => Refusal::retry(LOCKED_RETRY, RetryReason::Locked),
        EngineError::Quota(over) => over_quota(over),
        EngineError::NoLocks => Refusal::fatal(FatalKind::Unsupported, error.to_string()),
        EngineError::Stalled => Refusal::retry(BACKUPS_RETRY, RetryReason::NoSpace),
        EngineError::NotHere => Refusal::Refresh,
        EngineError::NoDeadlines => Refusal::fatal(FatalKind::Other, error.to_string()),
        EngineError::KeyTooLong(_) => Refusal::fatal(FatalKind::KeyTooLong, error.to_string()),
        EngineError::ValueTooLong(..) => Refusal::fatal(FatalKind::ValueTooLong, error.to_string()),
    }
}
