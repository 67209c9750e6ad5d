//! The owner's part in transactions of several owners (`docs/transactions.md`).
//!
//! 1. [`Engine::prepare`] does the steps as a transaction of one owner does. Then it appends each
//!    key as a *prepared* object: what it was, and what it is to become. That is its lock. The
//!    outcome is the owner's vote, kept for retries as any other.
//! 2. [`Engine::decide`] records the decision with the home key, the first key of the first share.
//! 3. [`Engine::release`] makes of a prepared object what was decided.
//! 4. [`Engine::vote`] is for those who look after a transaction whose client is silent.
//!
//! - PREP-1: a key is locked while its slot refers to a prepared object. Nobody is told anything of
//!   it, and no other change is made, until that is released. A lock is an object for the log, the
//!   cleaner, recovery and migration: it survives and moves with its key.
//! - PREP-2: of a transaction there is one decision: the first that is recorded with the home key
//!   under [`DECISION`]. It is "committed" only while the home key is locked. Where the decision
//!   came first, its home key is prepared no more.
//! - PREP-3: a vote that was not given is "no" for good once somebody has asked for it.
//! - PREP-4: a release finds room where live objects are at their limit: it is shorter than the
//!   prepared object that it replaces.
//! - PREP-5: locks of an owner that has only keys to be read or deleted may go beyond the limit of
//!   live objects, as graves may. They leave deletes their room. So transactions that make nothing
//!   more are done in full memory, as far as there is room for their locks.
//!
//! Any thread. Not here: who asks whom (crate `client`).

use super::apply::{Applied, Old, Site, Target, Write};
use super::read::Pending;
use super::transaction::{NotTransacted, StepAt, Transacted};
use super::{Engine, EngineError, StoreKind};
use crate::completions::{Admission, Execution};
use crate::table::EngineTable;
use core::time::Duration;
use pluvio_format::{Object, ObjectState, OldObject, Prepared, PreparedChange, Restored};
use pluvio_index::Slot;
use pluvio_log::{Awaited, EntryView};
use pluvio_memory::EpochGuard;
use pluvio_mutation::{Current, Outcome, Output};
use pluvio_units::{
    ClientId, DECISION, EntryRef, KeyPlace, LogId, LogPosition, ObjectVersion, OperationId,
    SequenceNumber, Share, VOTES_KEPT,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most keys that are locked on a server; more are refused until some are released.
const LOCKS_MAX: usize = 256 << 10;
/// When to try again at that bound.
const LOCKS_RETRY: Duration = Duration::from_millis(5);

/// What [`Engine::release`] found under a hash.
pub enum Released {
    /// A prepared object of the transaction. It has become what was decided, and there may be more.
    Object(Awaited<Applied>),
    /// No prepared object of the transaction. Wait for this: an earlier release may not be durable
    /// yet.
    NoneLeft(Awaited<()>),
}

/// The part of a transaction that an owner is asked to prepare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prepare<'p> {
    /// The client of the transaction.
    pub client: ClientId,
    /// The key with which the decision is kept.
    pub home: KeyPlace,
    /// All shares, for the owner of the home key. Nobody else needs them.
    pub shares: &'p [Share],
}

impl Prepare<'_> {
    /// The value of the prepared object of a key.
    pub(super) fn value(
        &self,
        place: KeyPlace,
        old: Option<Current<'_>>,
        change: PreparedChange<'_>,
    ) -> Vec<u8> {
        let prepared = Prepared {
            client: self.client,
            home: self.home,
            old: old.map(|old| OldObject {
                version: old.version,
                deadline: old.deadline,
                value: old.value,
            }),
            change,
            shares: match place == self.home {
                true => self.shares.to_vec(),
                false => Vec::new(),
            },
        };
        prepared.encode()
    }
}

/// What is known of a decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decided {
    /// Whether the transaction is committed; `None`: that is not decided.
    pub committed: Option<bool>,
    /// All its keys, as long as its home key is locked.
    pub shares: Vec<Share>,
}

/// A key that is locked for long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Locked {
    /// The key.
    pub place: KeyPlace,
    /// The client of the transaction.
    pub client: ClientId,
    /// The key with which the decision is kept.
    pub home: KeyPlace,
}

/// When keys were locked, by the caller's clock. Some may have been released since.
#[derive(Default)]
pub(crate) struct Locks(Mutex<Noted>);

#[derive(Default)]
struct Noted {
    since: BTreeMap<(KeyPlace, ClientId), Duration>,
    /// The last one that was looked at.
    last: Option<(KeyPlace, ClientId)>,
}

impl Locks {
    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a key that is locked. It is in the index already.
    fn note(&self, place: KeyPlace, client: ClientId, now: Duration) {
        self.lock().since.insert((place, client), now);
    }

    fn released(&self, place: KeyPlace, client: ClientId) {
        self.lock().since.remove(&(place, client));
    }

    /// The slot of a key refers to `new` now, and no more to `old`.
    pub(crate) fn replayed(
        &self,
        place: KeyPlace,
        old: Option<&Object<'_>>,
        new: Option<&Object<'_>>,
    ) {
        let client = |object: Option<&Object<'_>>| {
            let object = object.filter(|object| object.state == ObjectState::Prepared)?;
            Prepared::client_of(object.value)
        };
        if let Some(client) = client(old) {
            self.released(place, client);
        }
        if let Some(client) = client(new) {
            self.note(place, client, Duration::ZERO);
        }
    }
}

/// An object as clients know it.
///
/// # Errors
/// [`EngineError::Locked`] (PREP-1).
#[inline]
pub(crate) fn current_of<'o>(
    object: Option<&Object<'o>>,
) -> Result<Option<Current<'o>>, EngineError> {
    let Some(object) = object else {
        return Ok(None);
    };
    let (version, value) = match object.state {
        ObjectState::Plain => (object.version, object.value),
        ObjectState::Restored => {
            let restored = Restored::decode(object.value).unwrap_or(Restored {
                version: object.version,
                value: object.value,
            });
            (restored.version, restored.value)
        }
        ObjectState::Prepared => return Err(EngineError::Locked),
    };
    Ok(Some(Current {
        version,
        value,
        deadline: object.deadline,
    }))
}

/// Bytes of a value that are counted for users.
#[inline]
pub(crate) fn counted_len(state: ObjectState, value: &[u8]) -> usize {
    match state {
        // A lock counts for all it holds.
        ObjectState::Plain | ObjectState::Prepared => value.len(),
        ObjectState::Restored => {
            Restored::decode(value).map_or(value.len(), |restored| restored.value.len())
        }
    }
}

/// Bytes of an object that are counted for users.
#[inline]
pub(crate) fn counted_bytes(object: &Object<'_>) -> usize {
    object.key.len() + counted_len(object.state, object.value)
}

/// The vote or decision that an outcome is.
fn is_yes(outcome: &Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Together {
            committed: true,
            ..
        }
    )
}

fn verdict(committed: bool) -> Outcome {
    Outcome::Together {
        committed,
        steps: Vec::new().into(),
    }
}

impl Engine {
    /// Does all steps on drafts, and locks their keys; or does nothing. The outcome is this owner's
    /// vote: whether all steps hold that must. `now` is the clock of [`Engine::admit`].
    ///
    /// # Errors
    /// See [`NotTransacted`]; nothing is locked, and a retry is executed.
    pub fn prepare(
        &self,
        (log, now_s): (LogId, u32),
        steps: &[StepAt<'_>],
        execution: Execution,
        (prepare, now): (Prepare<'_>, Duration),
    ) -> Result<Transacted, NotTransacted> {
        if self.kind == StoreKind::InPlace {
            return Err(EngineError::NoLocks.into());
        }
        if self.locks.lock().since.len() + steps.len() > LOCKS_MAX {
            let retry_after = LOCKS_RETRY;
            return Err(EngineError::OutcomesFull { retry_after }.into());
        }
        let done = self.transact_or_prepare((log, now_s), steps, Some(execution), Some(prepare))?;
        for changed in &done.changed {
            let step = &steps[changed.step];
            let place = (step.table.id(), step.hash);
            self.locks.note(place, prepare.client, now);
        }
        Ok(done)
    }

    /// Whether the transaction is decided, as far as is known here.
    pub(super) fn is_decided(&self, prepare: &Prepare<'_>) -> bool {
        self.completions().knows(prepare.client, DECISION)
    }

    /// The decision about a transaction whose home key is that of `site`. Where there is none yet,
    /// it is what is wished; without a wish it stays open. Where the home key is not locked, the
    /// decision is "aborted" (PREP-2).
    ///
    /// # Errors
    /// See [`EngineError`]; nothing was decided.
    pub fn decide(
        &self,
        site: &Site<'_>,
        client: ClientId,
        (wish, now): (Option<bool>, Duration),
    ) -> Result<Awaited<Decided>, EngineError> {
        let guard = self.space.pin();
        let table = site.table;
        let index = table.indexes.of(site.hash).ok_or(EngineError::NotHere)?;
        // Held until the decision is recorded: nobody prepares the key meanwhile.
        let bucket = index.lock(site.hash);
        if table.indexes.is_closed() {
            return Err(EngineError::NotHere);
        }
        let mut view = None;
        let _slot = bucket.find(|entry| {
            view = self.prepared_by(table, entry, (site, client), &guard);
            view.is_some()
        });
        let shares = view.as_ref().and_then(|view| {
            let object = view.object()?;
            Some(Prepared::decode(object.value)?.shares)
        });
        let is_locked = shares.is_some();
        let shares = shares.unwrap_or_default();
        let decided = |committed| Decided { committed, shares };
        let id = of_transaction(client, DECISION);
        match self.admit(id, (table.id(), site.hash), now) {
            Admission::Answer(outcome) => {
                Ok(outcome.map(|outcome| decided(Some(is_yes(&outcome)))))
            }
            Admission::Execute(_) if is_locked && wish.is_none() => {
                Ok(Awaited::Now(self.marks.unmarked(decided(None))))
            }
            Admission::Execute(execution) => {
                let committed = is_locked && wish == Some(true);
                let recorded = self.record(site, verdict(committed), execution, &guard)?;
                Ok(recorded.map(|_| decided(Some(committed))))
            }
            other => Err(not_admitted(&other)),
        }
    }

    /// The vote of the owner of a share, whose first key is that of `site`. From now on it is "no"
    /// where it was not given yet (PREP-3).
    ///
    /// # Errors
    /// See [`EngineError`]; no vote was made.
    pub fn vote(
        &self,
        site: &Site<'_>,
        (client, sequence): (ClientId, SequenceNumber),
        now: Duration,
    ) -> Result<Awaited<bool>, EngineError> {
        let guard = self.space.pin();
        let table = site.table;
        let id = of_transaction(client, sequence);
        {
            // Whoever has locked the key has voted, be that forgotten.
            let index = table.indexes.of(site.hash).ok_or(EngineError::NotHere)?;
            let bucket = index.lock(site.hash);
            let mut lock = None;
            let slot = bucket.find(|entry| {
                lock = self.prepared_by(table, entry, (site, client), &guard);
                lock.is_some()
            });
            if let Some((slot, view)) = slot.zip(lock) {
                let pending = self.pending(slot, view.total_len(), &guard);
                return Ok(self.marks.marked(pending.map(Pending::end), true));
            }
        }
        match self.admit(id, (site.table.id(), site.hash), now) {
            Admission::Answer(outcome) => Ok(outcome.map(|outcome| is_yes(&outcome))),
            Admission::Execute(execution) => {
                let recorded = self.record(site, verdict(false), execution, &guard)?;
                Ok(recorded.map(|_| false))
            }
            other => Err(not_admitted(&other)),
        }
    }

    /// Keeps an outcome that nothing was changed for.
    fn record(
        &self,
        site: &Site<'_>,
        outcome: Outcome,
        execution: Execution,
        guard: &EpochGuard<'_>,
    ) -> Result<Awaited<Outcome>, EngineError> {
        let log = self.most_durable_log(site.log);
        match self.kind {
            StoreKind::Replicated if self.space.is_stalled(log) => Err(EngineError::Stalled),
            StoreKind::Replicated => {
                let target = Target {
                    log,
                    table: site.table,
                    hash: site.hash,
                    key: &[],
                    now_s: site.now_s,
                    old: None,
                    deadline: None,
                    least: ObjectVersion(0),
                    state: ObjectState::Plain,
                    guard,
                };
                let appended = self.append_outcome(&target, &outcome, execution)?;
                Ok(appended.map(|()| outcome).into())
            }
            StoreKind::Volatile | StoreKind::InPlace => {
                execution.complete(outcome.clone(), None, None);
                Ok(Awaited::Now(self.marks.unmarked(outcome)))
            }
        }
    }

    /// Makes of one prepared object of a transaction, with the site's hash, what was decided.
    /// `each` gets its key, under the lock.
    ///
    /// # Errors
    /// See [`EngineError`]; nothing changed.
    pub fn release(
        &self,
        site: &Site<'_>,
        (client, committed): (ClientId, bool),
        each: impl FnOnce(&[u8], &Applied),
    ) -> Result<Released, EngineError> {
        let table = site.table;
        let guard = self.space.pin();
        let index = table.indexes.of(site.hash).ok_or(EngineError::NotHere)?;
        let bucket = index.lock(site.hash);
        if table.indexes.is_closed() {
            return Err(EngineError::NotHere);
        }
        let mut found = None;
        let mut others: BTreeMap<LogId, LogPosition> = BTreeMap::new();
        let slot = bucket.find(|entry| {
            found = self.prepared_by(table, entry, (site, client), &guard);
            if found.is_none() && self.is_durable_store() {
                self.rests_on(entry, &guard, &mut others);
            }
            found.is_some()
        });
        let Some((slot, view)) = slot.zip(found.as_ref()) else {
            drop(bucket);
            self.locks.released((table.id(), site.hash), client);
            return Ok(Released::NoneLeft(self.marks.marked(others, ())));
        };
        let pending = self.pending(slot, view.total_len(), &guard);
        // STORE-5.
        let log = pending.map_or(site.log, |pending| pending.log);
        self.check_class(log, table);
        if self.space.is_stalled(log) {
            return Err(EngineError::Stalled);
        }
        let object = view.object().expect("it was one a moment ago");
        let prepared = Prepared::decode(object.value).expect("it was one a moment ago");
        let target = Target {
            log,
            table,
            hash: site.hash,
            key: object.key,
            now_s: site.now_s,
            old: Some(old_of(slot, view, &object)),
            deadline: None,
            least: ObjectVersion(0),
            state: ObjectState::Plain,
            guard: &guard,
        };
        let mut write = Write { target, bucket };
        let applied = self.release_as(&mut write, &prepared, committed)?;
        each(object.key, applied.pending());
        drop(write);
        index.resize(&guard, |entry| self.hash_of(table, entry, &guard));
        if self.expiry.take_new() {
            self.tend_horizon(site.log);
        }
        Ok(Released::Object(applied))
    }

    fn release_as(
        &self,
        write: &mut Write<'_, '_>,
        prepared: &Prepared<'_>,
        committed: bool,
    ) -> Result<Awaited<Applied>, EngineError> {
        let put = |write: &mut Write<'_, '_>, value: &[u8]| match self.kind {
            StoreKind::Replicated => self.put_replicated(write, value, Output::Nothing, None),
            StoreKind::Volatile | StoreKind::InPlace => {
                self.put_volatile(write, value, Output::Nothing, None)
            }
        };
        match (prepared.change, prepared.old) {
            (PreparedChange::Put(value, deadline), _) if committed => {
                write.deadline = deadline;
                put(write, value)
            }
            (PreparedChange::Delete, _) if committed => self.delete(write, Output::Nothing, None),
            (_, None) => self.delete(write, Output::Nothing, None),
            (_, Some(old)) => {
                write.deadline = old.deadline;
                write.state = ObjectState::Restored;
                let restored = Restored {
                    version: old.version,
                    value: old.value,
                };
                put(write, &restored.encode())
            }
        }
    }

    /// The entry, if it is a prepared object of this transaction with the site's hash.
    fn prepared_by<'g>(
        &'g self,
        table: &EngineTable,
        entry: EntryRef,
        (site, client): (&Site<'_>, ClientId),
        guard: &'g EpochGuard<'_>,
    ) -> Option<EntryView<'g>> {
        let view = self.view(entry, guard);
        let is_it = view.object().is_some_and(|object| {
            object.state == ObjectState::Prepared
                && Prepared::client_of(object.value) == Some(client)
                && table.hash(object.key) == site.hash
        });
        is_it.then_some(view)
    }

    /// Notes the end of an entry that is not durable.
    fn rests_on(
        &self,
        entry: EntryRef,
        guard: &EpochGuard<'_>,
        on: &mut BTreeMap<LogId, LogPosition>,
    ) {
        let slot = Slot {
            entry,
            pending: true,
        };
        let len = self.view(entry, guard).total_len();
        if let Some(Pending { log, position }) = self.pending(slot, len, guard) {
            let known = on.entry(log).or_insert(position);
            *known = position.max(*known);
        }
    }

    /// Up to `most` keys that are locked since `before` or longer, by the clock of
    /// [`Engine::prepare`]. The next call goes on behind them.
    #[must_use]
    pub fn locked_since(&self, before: Duration, most: usize) -> Vec<Locked> {
        let noted: Vec<(KeyPlace, ClientId)> = {
            let mut locks = self.locks.lock();
            let is_old = |(_, since): &(_, &Duration)| **since <= before;
            let from = locks.last.map_or(Bound::Unbounded, Bound::Excluded);
            let behind = locks.since.range((from, Bound::Unbounded)).filter(is_old);
            let noted: Vec<_> = behind.map(|(lock, _)| *lock).take(most).collect();
            locks.last = noted.last().copied().filter(|_| noted.len() == most);
            noted
        };
        let mut found = Vec::new();
        for (place, client) in noted {
            let before = found.len();
            self.locks_at(place, client, &mut found);
            if found.len() == before {
                self.locks.released(place, client);
            }
        }
        found
    }

    /// How many keys are locked, and since when the one that was locked first. A lock that left
    /// with its tablet or table counts until it is looked at the next time.
    #[must_use]
    pub fn locked_now(&self) -> (u64, Option<Duration>) {
        let locks = self.locks.lock();
        (
            locks.since.len() as u64,
            locks.since.values().min().copied(),
        )
    }

    /// Whether a transaction has locked one of the keys that are `wanted`.
    #[must_use]
    pub fn is_locked_among(&self, wanted: impl Fn(KeyPlace) -> bool) -> bool {
        let noted: Vec<(KeyPlace, ClientId)> = {
            let locks = self.locks.lock();
            let noted = locks.since.keys().filter(|(place, _)| wanted(*place));
            noted.copied().collect()
        };
        let mut found = Vec::new();
        for (place, client) in noted {
            self.locks_at(place, client, &mut found);
            if !found.is_empty() {
                return true;
            }
        }
        false
    }

    /// Keeps votes and decisions of transactions that have locked keys since `before`, at least
    /// until `until`.
    pub fn keep_locked(&self, before: Duration, until: Duration) {
        let locks = self.locks.lock();
        let old = locks.since.iter().filter(|(_, since)| **since <= before);
        let clients: BTreeSet<ClientId> = old.map(|((_, client), _)| *client).collect();
        drop(locks);
        for client in clients {
            self.completions().keep(client, until);
        }
    }

    fn locks_at(&self, (table, hash): KeyPlace, client: ClientId, found: &mut Vec<Locked>) {
        let guard = self.space.pin();
        let Some(known) = self.tables.get(table) else {
            return;
        };
        let Some(index) = known.indexes.of(hash) else {
            return;
        };
        let bucket = index.lock(hash);
        let _all = bucket.find(|entry| {
            let view = self.view(entry, &guard);
            let prepared = view
                .object()
                .filter(|object| object.state == ObjectState::Prepared)
                .filter(|object| known.hash(object.key) == hash)
                .and_then(|object| Prepared::decode(object.value))
                .filter(|prepared| prepared.client == client);
            found.extend(prepared.map(|prepared| Locked {
                place: (table, hash),
                client: prepared.client,
                home: prepared.home,
            }));
            false
        });
    }
}

/// An operation of a transaction. Its client acknowledges nothing: what it no longer needs is said
/// with the release.
fn of_transaction(client: ClientId, sequence: SequenceNumber) -> OperationId {
    OperationId {
        client,
        sequence,
        acknowledged_below: SequenceNumber(1),
        retry_ms: VOTES_KEPT.as_millis() as u32,
    }
}

fn not_admitted(admission: &Admission) -> EngineError {
    match admission {
        Admission::Busy => EngineError::OutcomesFull {
            retry_after: LOCKS_RETRY,
        },
        Admission::Execute(_)
        | Admission::Answer(_)
        | Admission::InProgress
        | Admission::Forgotten
        | Admission::OtherKey => EngineError::Locked,
    }
}

fn old_of<'o>(slot: Slot, view: &EntryView<'_>, object: &Object<'o>) -> Old<'o> {
    Old {
        entry: slot.entry,
        len: view.total_len(),
        object_bytes: counted_bytes(object),
        version: object.version,
        known: ObjectVersion(0),
        graves: object.graves,
        deadline: object.deadline,
        is_gone: false,
    }
}

#[cfg(test)]
mod tests;
