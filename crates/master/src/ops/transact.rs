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
use super::held_back::Afterwards;
use super::mutate::{Executed, refusal_of, reused};
use crate::cut::Noting;
use crate::master::{Master, Served};
use crate::quotas::give_back;
use crate::tablets::Snapshot;
use crate::top_keys::Use;
use pluvio_log::Awaited;
use pluvio_mutation::{Outcome, TransactionStep};
use pluvio_store::{EngineError, Execution, NotTransacted, Prepare, StepAt, Transacted};
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

/// What a transaction does with its keys here.
#[derive(Clone, Copy)]
enum Kind<'w> {
    /// It reads all of them.
    Reads,
    /// It changes some of them.
    Changes,
    /// It locks all of them, as its share of a whole of several owners.
    Locks(&'w Whole),
}

impl<'w> Kind<'w> {
    fn of(steps: &[TransactionStep<'_>], whole: Option<&'w Whole>) -> Self {
        match whole {
            Some(whole) => Self::Locks(whole),
            None if steps.iter().any(changes) => Self::Changes,
            None => Self::Reads,
        }
    }
}

/// A transaction whose tablets are here, one item of each list for a step.
struct Placed<'s, 'm> {
    steps: Vec<TransactionStep<'m>>,
    keys: Vec<Served<'s>>,
    /// Where its change is to be noted.
    notings: Vec<Noting>,
}

impl Placed<'_, '_> {
    fn places(&self) -> impl Iterator<Item = KeyPlace> + Clone {
        self.keys.iter().map(Served::place)
    }

    fn in_tables(&self) -> Vec<StepAt<'_>> {
        let steps = self.steps.iter().zip(&self.keys);
        let at = steps.map(|(step, key)| StepAt {
            table: key.table,
            hash: key.hash,
            step: *step,
        });
        at.collect()
    }
}

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
        let kind = Kind::of(&steps, whole);
        let id = header.operation;
        let placed = self.place(&snapshot, steps, kind, id)?;
        let Some(first) = placed.keys.first() else {
            return Err(Refusal::malformed("a transaction without steps"));
        };
        let execution = match self.executed(id, first.place())? {
            Executed::NotYet(execution) => execution,
            Executed::Before(outcome) => {
                return match outcome.pending() {
                    Outcome::Together { .. } => Ok(outcome),
                    _ => Err(reused()),
                };
            }
        };
        let afterwards = self.may_begin(&placed, kind, id)?;
        let taken = self.take_operations_of(&placed.steps, &placed.keys)?;
        self.sample_steps(&placed);
        let done = self.do_or_lock(log, &placed, kind, id.client, execution);
        if let Kind::Locks(_) = kind {
            self.tend_waiters(id.client, &placed, done.as_ref().err());
        }
        match done {
            Ok(transacted) => {
                let outcome = self.note_changes(&placed, transacted);
                let now = self.monotonic();
                self.held_back.release(placed.places(), afterwards, now);
                Ok(outcome)
            }
            Err(error) => {
                give_back(&taken, &placed.keys);
                Err(self.not_transacted(&placed, &error))
            }
        }
    }

    /// Whether a transaction that is not executed yet may be executed now. Gives what becomes then
    /// of keys that are held back.
    ///
    /// # Errors
    /// It has to come again, or never may.
    fn may_begin(
        &self,
        placed: &Placed<'_, '_>,
        kind: Kind<'_>,
        id: OperationId,
    ) -> Result<Afterwards, Refusal> {
        if placed.steps.iter().any(changes) {
            self.goes_together(placed.keys.iter().map(|key| &**key.table))?;
        }
        match kind {
            Kind::Reads => self.keep_if_asked(id, placed),
            Kind::Changes => {
                self.writes_possible()?;
                self.not_kept_from(id.client, placed)?;
                Ok(Afterwards::Free)
            }
            Kind::Locks(_) => {
                self.writes_possible()?;
                if !id.is_some() {
                    return Err(Refusal::malformed("a share without an identity"));
                }
                self.wait_behind_others(id.client, placed)?;
                // Keys that are kept for another client are locked all the same (KEEP-2).
                Ok(Afterwards::Free)
            }
        }
    }

    /// Lets the engine do all steps, or lock their keys.
    fn do_or_lock(
        &self,
        log: LogId,
        placed: &Placed<'_, '_>,
        kind: Kind<'_>,
        client: ClientId,
        execution: Option<Execution>,
    ) -> Result<Transacted, NotTransacted> {
        let steps = placed.in_tables();
        let place = (log, self.now_s());
        let whole = match kind {
            Kind::Reads | Kind::Changes => {
                return self.store().transact(place, &steps, execution);
            }
            Kind::Locks(whole) => whole,
        };
        let prepare = Prepare {
            client,
            home: whole.home,
            shares: &whole.shares,
        };
        let execution = execution.expect("a share without an identity may not begin");
        let prepare = (prepare, self.monotonic());
        self.store().prepare(place, &steps, execution, prepare)
    }

    /// After an attempt to lock keys: does its client wait for those who have locked them?
    fn tend_waiters(
        &self,
        client: ClientId,
        placed: &Placed<'_, '_>,
        error: Option<&NotTransacted>,
    ) {
        match error {
            Some(NotTransacted::Engine(EngineError::Locked) | NotTransacted::Scattered(_)) => {
                let now = self.monotonic();
                self.waiters.refused(client, placed.places(), now);
            }
            // Room may come late, or never: a client that lacks it keeps nothing for itself.
            Some(NotTransacted::Engine(_) | NotTransacted::TooLarge) | None => {
                self.waiters.ended(client);
            }
        }
    }

    /// Notes what a transaction has changed: for copies of its tablets, and for its slots to be
    /// settled. Gives its outcome.
    fn note_changes(&self, placed: &Placed<'_, '_>, transacted: Transacted) -> Awaited<Outcome> {
        for change in transacted.changed {
            let key = placed.steps[change.step].operation.key();
            placed.notings[change.step].note(key, &change.outcome);
            if let Some(slot) = change.slot {
                let table = placed.keys[change.step].table;
                self.settlements.note(self.store(), table, slot);
            }
        }
        transacted.outcome
    }

    /// The refusal of a transaction that the engine has not done. The keys of one that can only be
    /// done while others do not change them are held back for it.
    fn not_transacted(&self, placed: &Placed<'_, '_>, error: &NotTransacted) -> Refusal {
        match error {
            NotTransacted::Engine(error) => refusal_of(error),
            NotTransacted::TooLarge => too_large(),
            NotTransacted::Scattered(_) => {
                let now = self.monotonic();
                self.held_back.hold_scattered(placed.places(), now);
                Refusal::retry(SCATTERED_RETRY, RetryReason::InProgress)
            }
        }
    }

    /// Keeps the keys of a read as they are, if its client wants that. The client says so by a name
    /// without a number, and by a time. With no time it gives up what was kept.
    ///
    /// # Errors
    /// They cannot be kept yet.
    fn keep_if_asked(
        &self,
        id: OperationId,
        placed: &Placed<'_, '_>,
    ) -> Result<Afterwards, Refusal> {
        if id.client == ClientId(0) || id.is_some() {
            return Ok(Afterwards::AsBefore);
        }
        let (time, now) = (id.retry(), self.monotonic());
        if time.is_zero() {
            return Ok(Afterwards::Free);
        }
        if !self.held_back.keep(id.client, placed.places(), time, now) {
            return Err(Refusal::retry(KEEP_RETRY, RetryReason::Locked));
        }
        pluvio_units::mark("keys-are-kept-for-who-was-overtaken");
        Ok(Afterwards::AsBefore)
    }

    /// # Errors
    /// A key is kept for another client.
    fn not_kept_from(&self, client: ClientId, placed: &Placed<'_, '_>) -> Result<(), Refusal> {
        if !self.held_back.is_any() {
            return Ok(());
        }
        let now = self.monotonic();
        match self.held_back.is_kept_from(client, placed.places(), now) {
            false => Ok(()),
            true => Err(Refusal::retry(HELD_BACK_RETRY, RetryReason::Locked)),
        }
    }

    /// Lets those lock their keys first that have waited longer for any of these.
    fn wait_behind_others(&self, client: ClientId, placed: &Placed<'_, '_>) -> Result<(), Refusal> {
        let now = self.monotonic();
        let Some(again) = self.waiters.come_again(client, placed.places(), now) else {
            return Ok(());
        };
        pluvio_units::mark("locks-are-kept-for-who-waits");
        self.waiters.refused(client, placed.places(), now);
        Err(Refusal::retry(again, RetryReason::Locked))
    }

    /// Finds the keys of a transaction. With an identity, its outcome is kept with the first key.
    /// That is a change of its tablet, also if the key is only read: a tablet that is not durable
    /// here would be recovered without.
    ///
    /// # Errors
    /// A tablet is not here, or takes no changes.
    fn place<'s, 'm>(
        &self,
        snapshot: &'s Snapshot,
        steps: Vec<TransactionStep<'m>>,
        kind: Kind<'_>,
        id: OperationId,
    ) -> Result<Placed<'s, 'm>, Refusal> {
        // A lock is a change, too.
        let locks = matches!(kind, Kind::Locks(_));
        let mut keys = Vec::with_capacity(steps.len());
        let mut notings = Vec::with_capacity(steps.len());
        for step in &steps {
            let (table, key) = (step.operation.table(), step.operation.key());
            let hash = self.hash_of(snapshot, table, key, step.operation.hash());
            let served = self.serving(snapshot, table, hash)?;
            if locks || changes(step) || id.is_some() && keys.is_empty() {
                self.must_be_changeable(&served)?;
            }
            // Also of a read: another step may change its key.
            notings.push(self.noting(&served)?);
            keys.push(served);
        }
        Ok(Placed {
            steps,
            keys,
            notings,
        })
    }

    fn sample_steps(&self, placed: &Placed<'_, '_>) {
        for (step, served) in placed.steps.iter().zip(&placed.keys) {
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

fn changes(step: &TransactionStep<'_>) -> bool {
    step.operation.mutation().is_some()
}

fn too_large() -> Refusal {
    Refusal::fatal(
        FatalKind::TransactionTooLarge,
        "the transaction changes or reads more than fits into one group of a log: use several",
    )
}
