//! Applying a transaction whose keys are all here: every step of it, or nothing.
//!
//! 1. Lock the buckets of all keys, each once: by table, by index, by block. The resizer locks
//!    blocks in that order, too, and nobody else waits for a second lock; so no two wait for each
//!    other.
//! 2. Refuse where pending entries of the keys lie in more than one log (STORE-5).
//! 3. Do the steps on drafts, one after the other ([`Draft`]). A step that must hold and does not
//!    ends it: nothing changes.
//! 4. Append what the drafts have become, and the record of the transaction, in one group. After a
//!    crash all of it is there or nothing is.
//! 5. Swing all slots, and unlock.
//!
//! Step 1 is in `transaction/buckets.rs`, steps 4 and 5 are in `transaction/append.rs`.
//!
//! - TX-1: all steps take effect at one moment, that of step 5: every key is locked from before the
//!   first read until then.
//! - TX-2: what is read is durable when the outcome is. Pending entries that were read lie in the
//!   log of the group, before it.
//!
//! Any thread. Keys of several owners are locked instead of step 4: see
//! [`prepared`](super::prepared).

mod append;
mod buckets;
mod growth;

use buckets::{LockedBuckets, Tables, lock_all};

use super::apply::{Old, Target, Unsettled};
use super::in_place::ValueHead;
use super::prepared::{Prepare, counted_bytes, current_of};
use super::read::{Pending, Seen};
use super::{Engine, EngineError, StoreKind};
use crate::completions::Execution;
use crate::table::EngineTable;
use core::cmp::Ordering;
use pluvio_format::{Graves, Object, ObjectState, PreparedChange};
use pluvio_index::Slot;
use pluvio_log::{Appended, Awaited, Burial};
use pluvio_memory::EpochGuard;
use pluvio_mutation::{Current, Draft, DraftChange, Now, Outcome, TransactionStep};
use pluvio_units::{KEY_MAX, KeyHash, LogId, LogPosition, ObjectVersion, VALUE_MAX};
use std::borrow::Cow;

/// Most bytes that the outcome of a transaction without an identity holds. One with an identity,
/// whose outcome is kept, holds at most [`VALUE_MAX`].
const OUTPUT_MAX: usize = 4 << 20;

/// A step of a transaction, and where its key is.
#[derive(Clone, Copy)]
pub struct StepAt<'i> {
    /// The table.
    pub table: &'i EngineTable,
    /// The hash of the key in that table.
    pub hash: KeyHash,
    /// What is to be done.
    pub step: TransactionStep<'i>,
}

impl<'i> StepAt<'i> {
    fn key(&self) -> &'i [u8] {
        self.step.operation.key()
    }

    fn is_of_same_key(&self, other: &Self) -> bool {
        self.order(other) == Ordering::Equal
    }

    fn order(&self, other: &Self) -> Ordering {
        let place = |step: &Self| (step.table.id(), step.hash);
        place(self)
            .cmp(&place(other))
            .then_with(|| self.key().cmp(other.key()))
    }
}

/// What a transaction did.
pub struct Transacted {
    /// Its outcome.
    pub outcome: Awaited<Outcome>,
    /// One for each object that was changed.
    pub changed: Vec<Changed>,
}

/// An object that a transaction changed.
pub struct Changed {
    /// A step with its key.
    pub step: usize,
    /// What became of it: written or deleted.
    pub outcome: Outcome,
    /// Its slot, if that is to be settled.
    pub slot: Option<Appended<Unsettled>>,
}

/// Why a transaction was not done.
#[derive(Debug)]
pub enum NotTransacted {
    /// See there. Nothing changed.
    Engine(EngineError),
    /// Entries of the keys are pending in several logs. Nothing changed. Retryable once all but
    /// those of one log are durable.
    Scattered(Vec<(LogId, LogPosition)>),
    /// Not retryable: it has more entries or bytes than one group may have, or gives too much.
    TooLarge,
}

impl From<EngineError> for NotTransacted {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

/// An object of a transaction, with its bucket locked.
struct Found<'g> {
    slot: Option<Slot>,
    seen: Option<Seen<'g>>,
    pending: Option<Pending>,
}

/// A change to be appended.
struct Change<'c> {
    object: usize,
    kind: ChangeKind<'c>,
    /// Its first entry in the group.
    first: usize,
    /// Bytes of the object in the log.
    len: u32,
}

enum ChangeKind<'c> {
    Put {
        value: Cow<'c, [u8]>,
        /// Bytes of the value as clients know it.
        value_len: usize,
        burial: Burial,
    },
    Delete(Burial),
}

impl Engine {
    /// Does all steps at one moment, or none. `execution` is there for a transaction with an
    /// identity: its outcome is kept for retries.
    ///
    /// # Errors
    /// See [`NotTransacted`]; nothing changed, and a retry is executed.
    pub fn transact(
        &self,
        (log, now_s): (LogId, u32),
        steps: &[StepAt<'_>],
        execution: Option<Execution>,
    ) -> Result<Transacted, NotTransacted> {
        self.transact_or_prepare((log, now_s), steps, execution, None)
    }

    pub(super) fn transact_or_prepare(
        &self,
        (log, now_s): (LogId, u32),
        steps: &[StepAt<'_>],
        execution: Option<Execution>,
        prepare: Option<Prepare<'_>>,
    ) -> Result<Transacted, NotTransacted> {
        if let Some(step) = steps.iter().find(|step| step.key().len() > KEY_MAX) {
            return Err(EngineError::KeyTooLong(step.key().len()).into());
        }
        let guard = self.space.pin();
        let (objects, object_of) = objects_of(steps);
        let tables = Tables::load(steps)?;
        let indexes = objects
            .iter()
            .map(|&step| tables.index_of(&steps[step]))
            .collect::<Result<Vec<_>, _>>()?;
        let mut locks = lock_all(steps, &objects, &indexes);
        if steps.iter().any(|step| step.table.indexes.is_closed()) {
            return Err(EngineError::NotHere.into());
        }
        let found = self.find_all(steps, &objects, &mut locks, &guard);
        let pending = one_log(&found)?;
        let wanted = match prepare {
            Some(_) => self.most_durable_log(log),
            None => self.log_of_all(log, steps.iter().map(|step| step.table)),
        };
        // STORE-5.
        let log = pending.map_or(wanted, |pending| pending.log);
        if self.rank(log) < self.rank(wanted) {
            // CLASS-1.
            pluvio_units::mark("transaction-waits-for-weaker-log");
            let ends = found.iter().filter_map(|found| found.pending);
            return Err(NotTransacted::Scattered(ends.map(Pending::end).collect()));
        }
        if self.space.is_stalled(log) {
            return Err(EngineError::Stalled.into());
        }
        let transaction = Transaction {
            engine: self,
            log,
            now_s,
            steps,
            objects: &objects,
            object_of: &object_of,
            brings_versions: steps.iter().any(|step| least_of(step) > ObjectVersion(0)),
            pending,
            prepare,
            guard: &guard,
        };
        let transacted = transaction.run(&found, &mut locks, execution)?;
        drop(locks);
        for change in &transacted.changed {
            let (table, index) = (steps[change.step].table, &indexes[object_of[change.step]]);
            index.resize(&guard, |entry| self.hash_of(table, entry, &guard));
        }
        if self.expiry.take_new() {
            self.tend_horizon(log);
        }
        Ok(transacted)
    }

    fn find_all<'g>(
        &'g self,
        steps: &[StepAt<'_>],
        objects: &[usize],
        locks: &mut LockedBuckets<'_>,
        guard: &'g EpochGuard<'_>,
    ) -> Vec<Found<'g>> {
        let mut all: Vec<Option<Found<'g>>> = objects.iter().map(|_| None).collect();
        for (object, at, approach) in &locks.order {
            let bucket = &mut locks.guards[*at];
            assert!(bucket.turn_to(*approach), "its block is locked");
            let key = steps[objects[*object]].key();
            let mut seen = None;
            let slot = bucket.find(|entry| {
                seen = self.see_key(entry, key, guard);
                seen.is_some()
            });
            let pending = slot.zip(seen.as_ref()).and_then(|(slot, seen)| {
                self.check_seen(slot.entry, seen, guard);
                self.pending(slot, seen.total_len(), guard)
            });
            all[*object] = Some(Found {
                slot,
                seen,
                pending,
            });
        }
        let all = all.into_iter().map(|found| found.expect("all are locked"));
        all.collect()
    }
}

/// The least version of what a step writes.
fn least_of(step: &StepAt<'_>) -> ObjectVersion {
    let mutation = step.step.operation.mutation();
    mutation.map_or(ObjectVersion(0), |mutation| mutation.change.least_version())
}

/// The first step of each object, and the object of each step.
fn objects_of(steps: &[StepAt<'_>]) -> (Vec<usize>, Vec<usize>) {
    let mut by_key: Vec<usize> = (0..steps.len()).collect();
    // Stable: the first step of a key comes first.
    by_key.sort_by(|a, b| steps[*a].order(&steps[*b]));
    let (mut objects, mut object_of) = (Vec::<usize>::new(), vec![0; steps.len()]);
    for step in by_key {
        let is_known = |last: &usize| steps[*last].is_of_same_key(&steps[step]);
        if !objects.last().is_some_and(is_known) {
            objects.push(step);
        }
        object_of[step] = objects.len() - 1;
    }
    (objects, object_of)
}

/// The last of the pending entries, which all lie in one log.
fn one_log(found: &[Found<'_>]) -> Result<Option<Pending>, NotTransacted> {
    let mut pending = found.iter().filter_map(|found| found.pending);
    let Some(first) = pending.next() else {
        return Ok(None);
    };
    let mut last = first;
    for next in pending {
        if next.log != first.log {
            let ends = found.iter().filter_map(|found| found.pending);
            pluvio_units::mark("transaction-scattered");
            return Err(NotTransacted::Scattered(ends.map(Pending::end).collect()));
        }
        last.position = last.position.max(next.position);
    }
    Ok(Some(last))
}

/// A transaction whose keys are locked.
struct Transaction<'t> {
    engine: &'t Engine,
    log: LogId,
    now_s: u32,
    steps: &'t [StepAt<'t>],
    objects: &'t [usize],
    object_of: &'t [usize],
    /// Whether a step brings the version that it writes.
    brings_versions: bool,
    pending: Option<Pending>,
    prepare: Option<Prepare<'t>>,
    guard: &'t EpochGuard<'t>,
}

impl<'t> Transaction<'t> {
    fn run(
        &self,
        found: &[Found<'t>],
        locks: &mut LockedBuckets<'_>,
        mut execution: Option<Execution>,
    ) -> Result<Transacted, NotTransacted> {
        let objects: Vec<Option<Object<'_>>> = found
            .iter()
            .map(|found| found.seen.as_ref().and_then(Seen::object))
            .collect();
        let now = self.time(&objects);
        let mut targets = Vec::with_capacity(objects.len());
        let mut drafts = Vec::with_capacity(objects.len());
        for ((found, object), step) in found.iter().zip(&objects).zip(self.objects) {
            let current = current_of(object.as_ref())?;
            let mut target = self.target(&self.steps[*step], found, (object.as_ref(), current));
            target.least = self.least(targets.len());
            let next = self.engine.next_version(&target);
            // The prepared object comes between.
            let next = self.prepare.map_or(next, |_| next.next());
            drafts.push(Draft::new(current, now, next));
            targets.push(target);
        }
        let most = match execution {
            Some(_) => VALUE_MAX,
            None => OUTPUT_MAX,
        };
        let outcome = match &self.prepare {
            Some(prepare) if self.engine.is_decided(prepare) => Outcome::Together {
                committed: false,
                steps: Vec::new().into(),
            },
            Some(_) | None => together(self.each_step(&mut drafts), most)?,
        };
        let bytes = outcome.bulk_len();
        if let Some(execution) = &mut execution
            && bytes > 0
        {
            execution.reserve(bytes)?;
        }
        let is_committed = matches!(
            outcome,
            Outcome::Together {
                committed: true,
                ..
            }
        );
        let (changes, told) = match is_committed {
            true => {
                growth::may_grow(&drafts, &targets)?;
                let changes = self.changes(&drafts, (&objects, now), &mut targets)?;
                (changes, self.safe_version_of(&drafts))
            }
            false => (Vec::new(), None),
        };
        if changes.is_empty() {
            return self.keep(&targets, outcome, execution, told);
        }
        let all = (&targets[..], changes, &drafts[..]);
        match self.engine.kind {
            StoreKind::Replicated => self.append_replicated(locks, all, (outcome, told), execution),
            StoreKind::Volatile | StoreKind::InPlace => {
                self.append_volatile(locks, all, outcome, execution)
            }
        }
    }

    fn time(&self, objects: &[Option<Object<'_>>]) -> Now {
        let is_volatile = objects.iter().flatten().any(|o| o.deadline.is_some());
        let is_bounded = |step: &StepAt<'_>| {
            let mutation = step.step.operation.mutation();
            mutation.is_some_and(|mutation| mutation.lifetime.is_bounded())
        };
        match is_volatile || self.steps.iter().any(is_bounded) {
            true => self.engine.time(),
            false => Now::default(),
        }
    }

    fn target<'f>(
        &self,
        step: &StepAt<'f>,
        found: &Found<'f>,
        (object, current): (Option<&Object<'f>>, Option<Current<'f>>),
    ) -> Target<'f>
    where
        't: 'f,
    {
        let key = step.key();
        let old = found.slot.zip(found.seen.as_ref()).map(|(slot, seen)| Old {
            entry: slot.entry,
            len: seen.total_len(),
            object_bytes: object.map_or(0, counted_bytes),
            version: object.map_or(ObjectVersion(0), |object| object.version),
            known: current.map_or(ObjectVersion(0), |current| current.version),
            graves: object.map_or(Graves::NONE, |object| object.graves),
            deadline: object.and_then(|object| object.deadline),
            is_gone: false,
        });
        Target {
            log: self.log,
            table: step.table,
            hash: step.hash,
            key,
            now_s: self.now_s,
            old,
            deadline: None,
            least: ObjectVersion(0),
            state: ObjectState::Plain,
            guard: self.guard,
        }
    }

    /// The least version of an object, by the steps that bring one.
    fn least(&self, object: usize) -> ObjectVersion {
        if !self.brings_versions {
            return ObjectVersion(0);
        }
        let steps = self.steps.iter().zip(self.object_of);
        let of_it = steps.filter(|(_, of)| **of == object);
        let least = of_it.map(|(step, _)| least_of(step));
        least.max().unwrap_or(ObjectVersion(0))
    }

    /// Does a step each time that it is asked for the next one. Gives its outcome, and whether that
    /// ends the transaction.
    fn each_step<'m>(&self, drafts: &mut [Draft<'_, 'm>]) -> impl Iterator<Item = (Outcome, bool)>
    where
        't: 'm,
    {
        let steps = self.steps.iter().zip(self.object_of);
        steps.map(move |(step, object)| {
            let outcome = drafts[*object].apply(&step.step.operation);
            let ends = step.step.must_hold && outcome.is_failure();
            (outcome, ends)
        })
    }

    /// The safe version above all versions that steps told of objects which are not there in the
    /// end (STORE-6).
    fn safe_version_of(&self, drafts: &[Draft<'_, '_>]) -> Option<ObjectVersion> {
        if self.prepare.is_some() || self.engine.kind != StoreKind::Replicated {
            return None;
        }
        let came_and_went =
            |draft: &&Draft<'_, '_>| draft.is_changed() && draft.change() == DraftChange::Nothing;
        let told = drafts.iter().filter(came_and_went);
        told.map(|draft| draft.next_version().next()).max()
    }

    /// What is to be appended. Raises the safe version for what is deleted (STORE-1).
    fn changes<'d>(
        &self,
        drafts: &'d [Draft<'_, '_>],
        (objects, now): (&[Option<Object<'_>>], Now),
        targets: &mut [Target<'_>],
    ) -> Result<Vec<Change<'d>>, EngineError> {
        if let Some(prepare) = &self.prepare {
            return self.prepared(prepare, drafts, (objects, now), targets);
        }
        let engine = self.engine;
        let mut changes = Vec::new();
        for (object, (draft, target)) in drafts.iter().zip(targets).enumerate() {
            let kind = match draft.change() {
                DraftChange::Nothing => {
                    // A version that a step told belongs to no later object.
                    if draft.is_changed() {
                        engine.space.raise_safe_version(draft.next_version().next());
                    }
                    continue;
                }
                DraftChange::Put(value, deadline) => {
                    engine.check_put(value.len(), deadline)?;
                    target.deadline = deadline;
                    ChangeKind::Put {
                        value: match engine.kind {
                            StoreKind::Replicated | StoreKind::Volatile => Cow::Borrowed(value),
                            StoreKind::InPlace => {
                                Cow::Owned(ValueHead::with(draft.next_version(), value))
                            }
                        },
                        value_len: value.len(),
                        burial: self.burial(target, false),
                    }
                }
                DraftChange::Delete => {
                    let version = draft.next_version();
                    engine.space.raise_safe_version(version.next());
                    ChangeKind::Delete(self.burial(target, true))
                }
            };
            changes.push(Change {
                object,
                kind,
                first: 0,
                len: 0,
            });
        }
        Ok(changes)
    }

    /// The prepared objects that are to be appended: one for each key, be it only read.
    fn prepared<'d>(
        &self,
        prepare: &Prepare<'_>,
        drafts: &'d [Draft<'_, '_>],
        (objects, now): (&[Option<Object<'_>>], Now),
        targets: &mut [Target<'_>],
    ) -> Result<Vec<Change<'d>>, EngineError> {
        let engine = self.engine;
        let mut changes = Vec::with_capacity(drafts.len());
        for (object, (draft, target)) in drafts.iter().zip(targets).enumerate() {
            let step = &self.steps[self.objects[object]];
            let place = (step.table.id(), step.hash);
            let old = current_of(objects[object].as_ref())?;
            let change = match draft.change() {
                DraftChange::Nothing => PreparedChange::Nothing,
                DraftChange::Put(value, deadline) => {
                    engine.check_put(value.len(), deadline)?;
                    PreparedChange::Put(value, deadline)
                }
                DraftChange::Delete => PreparedChange::Delete,
            };
            if draft.is_changed() {
                // A version that a step told belongs to no later object.
                engine.space.raise_safe_version(draft.next_version().next());
            }
            let value = prepare.value(place, old.filter(|old| !old.is_gone(now)), change);
            target.state = ObjectState::Prepared;
            changes.push(Change {
                object,
                kind: ChangeKind::Put {
                    value_len: value.len(),
                    value: Cow::Owned(value),
                    burial: self.burial(target, false),
                },
                first: 0,
                len: 0,
            });
        }
        Ok(changes)
    }

    /// Keeps the object dead that is replaced or deleted (STORE-3).
    fn burial(&self, target: &Target<'_>, is_delete: bool) -> Burial {
        let engine = self.engine;
        match target.replaced() {
            Some(old) if engine.kind == StoreKind::Replicated => {
                let dead = engine.dead_with(target, old);
                match !is_delete && engine.space.uses_graves(target.key.len()) {
                    true => dead.in_graves(),
                    false => dead.all_tombstones(),
                }
            }
            Some(_) | None => Burial::NOTHING,
        }
    }
}

/// The outcome of steps that are done one after the other, up to one that ends them. It holds at
/// most `most` bytes: behind those nothing is done, because the buckets of all keys are locked.
///
/// # Errors
/// It would hold more.
fn together(
    each_step: impl Iterator<Item = (Outcome, bool)>,
    most: usize,
) -> Result<Outcome, NotTransacted> {
    let mut steps = Vec::new();
    let (mut bytes, mut committed) = (0, true);
    for (outcome, ends) in each_step {
        bytes += outcome.bulk_len_as_step();
        if bytes > most {
            return Err(NotTransacted::TooLarge);
        }
        steps.push(outcome);
        if ends {
            committed = false;
            break;
        }
    }
    Ok(Outcome::Together {
        committed,
        steps: steps.into(),
    })
}

#[cfg(test)]
mod tests;
