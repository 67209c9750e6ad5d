//! Transactions of which this master has all keys.
//!
//! 1. The tablet of every key must be served here. Each that is changed must take changes.
//! 2. A transaction that was executed before is answered with its outcome (COMP-1). It is kept with
//!    its first key.
//! 3. The engine does all steps at one moment, or none.
//! 4. The outcome is told once it is durable ([`Replies`]).
//!
//! Of a transaction of several owners, step 3 locks the keys instead. Where others have locked
//! them, those who wait get them in the order in which they came ([`Waiters`](super::Waiters)).
//!
//! Where entries of the keys are pending in several logs, the transaction is to come again. Until
//! then other changes of these keys are held back ([`HeldBack`](super::HeldBack)). The same is done
//! for a read that asks for it.

use super::Replies;
use super::mutate::{Executed, refusal_of, reused};
use crate::cut::Noting;
use crate::master::{Master, Served};
use crate::quotas::give_back;
use crate::tablets::Snapshot;
use crate::top_keys::Use;
use pluvio_log::Awaited;
use pluvio_mutation::{Outcome, TransactionStep};
use pluvio_store::{EngineError, NotTransacted, Prepare, StepAt, Transacted};
use pluvio_units::{ClientId, KeyPlace, LogId, OperationId};
use pluvio_wire::{
    Answer, FatalKind, Header, Refusal, Results, RetryReason, TRANSACTION_STEPS_MAX, Whole,
};
use std::sync::Arc;
use std::time::Duration;

/// When a transaction is to come again whose keys have pending entries in several logs: about when
/// these are durable.
const SCATTERED_RETRY: Duration = Duration::from_micros(500);
/// When a change that is held back is to come again.
const HELD_BACK_RETRY: Duration = Duration::from_micros(500);
/// When a read is to come again whose keys cannot be kept for it yet.
const KEEP_RETRY: Duration = Duration::from_micros(500);

impl Master {
    /// Does all steps of a transaction at one moment, or none; answers when that is durable. The
    /// one result is an [`Outcome::Together`]. The steps of a part of a `whole` are not done yet:
    /// their keys are locked, and the result is this owner's vote.
    pub fn transact<'m>(
        self: &Arc<Self>,
        log: LogId,
        header: &Header,
        whole: Option<&Whole>,
        steps: impl ExactSizeIterator<Item = TransactionStep<'m>>,
    ) -> Answer<Results> {
        match self.transact_all(log, header, whole, steps) {
            Ok(replies) => replies.into_answer(self),
            Err(refusal) => Answer::Now(Err(refusal)),
        }
    }

    pub(crate) fn transact_all<'m>(
        &self,
        log: LogId,
        header: &Header,
        whole: Option<&Whole>,
        steps: impl ExactSizeIterator<Item = TransactionStep<'m>>,
    ) -> Result<Replies, Refusal> {
        let mut replies = Replies::default();
        replies.awaited(self, self.transact_at_once(log, header, whole, steps)?);
        Ok(replies)
    }

    /// [`Master::transact`] that answers at once. The outcome must not be told before it is
    /// durable.
    ///
    /// # Errors
    /// As there; nothing changed.
    pub fn transact_at_once<'m>(
        &self,
        log: LogId,
        header: &Header,
        whole: Option<&Whole>,
        steps: impl ExactSizeIterator<Item = TransactionStep<'m>>,
    ) -> Result<Awaited<Outcome>, Refusal> {
        self.check_target(header)?;
        if steps.len() > TRANSACTION_STEPS_MAX {
            return Err(too_large());
        }
        // Held until the changes are noted (TAB-2).
        let snapshot = self.tablets().snapshot();
        let steps: Vec<_> = steps.collect();
        let has_outcome = header.operation.is_some();
        let (keys, notings) = self.place(&snapshot, &steps, (whole.is_some(), has_outcome))?;
        let Some(first) = keys.first() else {
            return Err(Refusal::malformed("a transaction without steps"));
        };
        let execution = match self.executed(header.operation, first.place())? {
            Executed::NotYet(execution) => execution,
            Executed::Before(outcome) => {
                return match outcome.pending() {
                    Outcome::Together { .. } => Ok(outcome),
                    _ => Err(reused()),
                };
            }
        };
        let changes_some = steps.iter().any(changes);
        if changes_some {
            self.goes_together(keys.iter().map(|key| &**key.table))?;
        }
        let only_reads = whole.is_none() && !changes_some;
        if !only_reads {
            self.writes_possible()?;
        }
        let client = header.operation.client;
        if whole.is_some() {
            if execution.is_none() {
                return Err(Refusal::malformed("a share without an identity"));
            }
            self.wait_behind_others(client, &keys)?;
        }
        let frees = match (only_reads, whole) {
            (true, _) => self.keep_if_asked(header.operation, &keys)?,
            // Locks are above that (KEEP-2).
            (false, Some(_)) => true,
            (false, None) => {
                self.not_kept_from(client, &keys)?;
                true
            }
        };
        let taken = self.take_operations_of(&steps, &keys)?;
        self.sample_steps(&steps, &keys);
        let at: Vec<StepAt<'_>> = steps
            .iter()
            .zip(&keys)
            .map(|(step, key)| StepAt {
                table: key.table,
                hash: key.hash,
                step: *step,
            })
            .collect();
        let place = (log, self.now_s());
        let done = match (whole, execution) {
            (Some(whole), Some(execution)) => {
                let prepare = Prepare {
                    client,
                    home: whole.home,
                    shares: &whole.shares,
                };
                let prepare = (prepare, self.monotonic());
                self.store().prepare(place, &at, execution, prepare)
            }
            (_, execution) => self.store().transact(place, &at, execution),
        };
        if done.is_err() {
            give_back(&taken, &keys);
        }
        if whole.is_some() {
            match &done {
                // Room may come late, or never: who lacks that keeps nothing for himself.
                Err(NotTransacted::Engine(EngineError::Locked) | NotTransacted::Scattered(_)) => {
                    self.waiters
                        .refused(client, places(&keys), self.monotonic());
                }
                Ok(_) | Err(_) => self.waiters.ended(client),
            }
        }
        match done {
            Ok(Transacted { outcome, changed }) => {
                for change in changed {
                    let key = steps[change.step].operation.key();
                    notings[change.step].note(key, &change.outcome);
                    if let Some(slot) = change.slot {
                        let table = keys[change.step].table;
                        self.settlements.note(self.store(), table, slot);
                    }
                }
                let now = self.monotonic();
                self.held_back.release(places(&keys), frees, now);
                Ok(outcome)
            }
            Err(NotTransacted::Engine(error)) => Err(refusal_of(&error)),
            Err(NotTransacted::TooLarge) => Err(too_large()),
            Err(NotTransacted::Scattered(_)) => {
                let now = self.monotonic();
                self.held_back.hold_scattered(places(&keys), now);
                Err(Refusal::retry(SCATTERED_RETRY, RetryReason::InProgress))
            }
        }
    }

    /// Keeps the keys of a read as they are, if its client wants that. Gives whether they are to be
    /// free behind it.
    ///
    /// # Errors
    /// They cannot be kept yet.
    fn keep_if_asked(&self, id: OperationId, keys: &[Served<'_>]) -> Result<bool, Refusal> {
        if id.client == ClientId(0) || id.is_some() {
            return Ok(false);
        }
        let (time, now) = (id.retry(), self.monotonic());
        if time.is_zero() {
            return Ok(true);
        }
        if !self.held_back.keep(id.client, places(keys), time, now) {
            return Err(Refusal::retry(KEEP_RETRY, RetryReason::Locked));
        }
        pluvio_units::mark("keys-are-kept-for-who-was-overtaken");
        Ok(false)
    }

    /// # Errors
    /// A key is kept for another client.
    fn not_kept_from(&self, client: ClientId, keys: &[Served<'_>]) -> Result<(), Refusal> {
        if !self.held_back.is_any() {
            return Ok(());
        }
        let now = self.monotonic();
        match self.held_back.is_kept_from(client, places(keys), now) {
            false => Ok(()),
            true => Err(Refusal::retry(HELD_BACK_RETRY, RetryReason::Locked)),
        }
    }

    /// Lets those lock their keys first that have waited longer for any of these.
    fn wait_behind_others(&self, client: ClientId, keys: &[Served<'_>]) -> Result<(), Refusal> {
        let now = self.monotonic();
        let Some(again) = self.waiters.come_again(client, places(keys), now) else {
            return Ok(());
        };
        pluvio_units::mark("locks-are-kept-for-who-waits");
        self.waiters.refused(client, places(keys), now);
        Err(Refusal::retry(again, RetryReason::Locked))
    }

    /// The keys of a transaction's steps, and where its changes are to be noted.
    /// With an identity, its outcome is kept with the first key. That is a change of its tablet,
    /// also if the key is only read: a tablet that is not durable here would be recovered without.
    ///
    /// # Errors
    /// A tablet is not here, or takes no changes.
    fn place<'s>(
        &self,
        snapshot: &'s Snapshot,
        steps: &[TransactionStep<'_>],
        (locks, has_outcome): (bool, bool),
    ) -> Result<(Vec<Served<'s>>, Vec<Noting>), Refusal> {
        let mut keys = Vec::with_capacity(steps.len());
        let mut notings = Vec::with_capacity(steps.len());
        for step in steps {
            let (table, key) = (step.operation.table(), step.operation.key());
            let hash = self.hash_of(snapshot, table, key, step.operation.hash());
            let served = self.serving(snapshot, table, hash)?;
            // A lock is a change, too.
            if locks || changes(step) || has_outcome && keys.is_empty() {
                self.must_be_changeable(&served)?;
            }
            // Also of a read: another step may change its key.
            notings.push(self.noting(&served)?);
            keys.push(served);
        }
        Ok((keys, notings))
    }

    fn sample_steps(&self, steps: &[TransactionStep<'_>], keys: &[Served<'_>]) {
        for (step, served) in steps.iter().zip(keys) {
            match step.operation.mutation() {
                Some(mutation) => {
                    let moved = mutation.change.bulk_len();
                    self.sample(served, mutation.key, Use::Write, Some(moved));
                    self.notice(served.place(), &mutation);
                }
                None => self.sample(served, step.operation.key(), Use::Read, None),
            }
        }
    }

    /// The refusal of a change of a key that is held back for a transaction.
    pub(super) fn not_held_for_transaction(&self, place: KeyPlace) -> Result<(), Refusal> {
        if !self.held_back.is_any() || !self.held_back.holds(place, self.monotonic()) {
            return Ok(());
        }
        Err(Refusal::retry(HELD_BACK_RETRY, RetryReason::Locked))
    }
}

fn places(keys: &[Served<'_>]) -> impl Iterator<Item = KeyPlace> + Clone {
    keys.iter().map(Served::place)
}

fn changes(step: &TransactionStep<'_>) -> bool {
    step.operation.mutation().is_some()
}

fn too_large() -> Refusal {
    Refusal::fatal(
        FatalKind::TransactionTooLarge,
        "the transaction changes or reads more than fits into one group of a log: use several",
    )
}
