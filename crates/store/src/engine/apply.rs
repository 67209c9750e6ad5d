//! Applying a mutation: the one way of every change of one object.
//!
//! 1. Lock the bucket of the key, and look at what its slot refers to.
//! 2. Refuse where the log may not be appended to: a pending entry of the key is in another log, or
//!    the log is stalled.
//! 3. Judge: the rules, and what the change makes of the value ([`judge`]). An object counts as
//!    absent when its deadline is past.
//! 4. Make room for the outcome, if it is kept for retries and holds a value (COMP-7). A delete
//!    raises the safe version, before it appends.
//! 5. Append the new entry and the record of the operation in one group, and let the slot point to
//!    the entry. Each kind of store has its own way: [`replicated`](super::replicated),
//!    [`volatile`](super::volatile), [`in_place`](super::in_place).
//! 6. Unlock. The outcome is [`Awaited`]: it must not be told before it is durable.
//! 7. Once it is, [`Engine::settle`] takes the pending mark off the slot.
//!
//! No object changes unless step 5 succeeds. Any thread may apply mutations at any time.

use super::prepared::{counted_bytes, current_of};
use super::read::{Pending, Seen};
use super::{Engine, EngineError, StoreKind};
use crate::completions::Execution;
use crate::table::{EngineTable, Growth};
use core::ops::{Deref, DerefMut};
use pluvio_format::{Entry, Graves, ObjectState};
use pluvio_index::{BucketGuard, Room};
use pluvio_log::{Appended, Awaited, Durable};
use pluvio_memory::EpochGuard;
use pluvio_mutation::{Current, Mutation, Now, Outcome, Output, Verdict, judge};
use pluvio_units::{Deadline, EntryRef, KEY_MAX, KeyHash, LogId, ObjectVersion};

/// Where a mutation is applied.
#[derive(Clone, Copy)]
pub struct Site<'t> {
    /// The log to append to, unless the key has a pending entry in another one.
    pub log: LogId,
    /// The table.
    pub table: &'t EngineTable,
    /// The hash of the key in that table.
    pub hash: KeyHash,
    /// Seconds for the timestamps of entries.
    pub now_s: u32,
    /// Whether to refuse a key with a pending entry in another log ([`EngineError::OtherLog`]).
    /// Logs become durable in any order; the mutations of an ordered batch must not.
    pub only_this_log: bool,
}

/// What a mutation came to, with the slot that it left marked as pending.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Applied {
    pub(crate) outcome: Outcome,
    pub(crate) marked: Option<MarkedSlot>,
}

impl Applied {
    /// The outcome, before it is durable: not to be told to a client.
    #[must_use]
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }
}

/// A slot that is marked as pending, to be settled once that is durable: the half of [`Applied`]
/// that stays here.
#[derive(Debug)]
pub struct Unsettled(MarkedSlot);

impl Unsettled {
    pub(super) fn new(slot: MarkedSlot) -> Self {
        Self(slot)
    }

    /// The hash of the slot's key.
    #[must_use]
    pub fn hash(&self) -> KeyHash {
        self.0.hash
    }
}

impl Applied {
    /// Separates the slot, which stays here, from the outcome, which is told.
    #[must_use]
    pub fn split(self) -> (Option<Unsettled>, Outcome) {
        (self.marked.map(Unsettled), self.outcome)
    }
}

/// An index slot that is marked as pending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MarkedSlot {
    pub(crate) hash: KeyHash,
    pub(crate) entry: EntryRef,
    pub(crate) is_tombstone: bool,
}

/// The entry that a mutation replaces.
pub(crate) struct Old<'o> {
    pub(crate) entry: EntryRef,
    /// Bytes in the log.
    pub(crate) len: u32,
    /// Bytes of key and value; 0 for a tombstone.
    pub(crate) object_bytes: usize,
    /// 0 for a tombstone.
    pub(crate) version: ObjectVersion,
    /// The version by which clients know it: not the same where a lock was taken back.
    pub(crate) known: ObjectVersion,
    /// Where dead versions of it lie.
    pub(crate) graves: Graves<'o>,
    /// When it expires, if it does.
    pub(crate) deadline: Option<Deadline>,
    /// Whether its deadline is past, so that nobody is told of it.
    pub(crate) is_gone: bool,
}

/// The key of a write under way, and the entry that it has.
pub(crate) struct Target<'w> {
    pub(crate) log: LogId,
    pub(crate) table: &'w EngineTable,
    pub(crate) hash: KeyHash,
    pub(crate) key: &'w [u8],
    pub(crate) now_s: u32,
    /// What the slot of the key refers to: an object, or a tombstone that is not durable yet.
    pub(crate) old: Option<Old<'w>>,
    /// The deadline of the object that is written.
    pub(crate) deadline: Option<Deadline>,
    /// The least version of the object that is written; 0: the next one.
    pub(crate) least: ObjectVersion,
    /// What the value is that is written.
    pub(crate) state: ObjectState,
    pub(crate) guard: &'w EpochGuard<'w>,
}

impl<'w> Target<'w> {
    /// The object that is there.
    pub(crate) fn replaced(&self) -> Option<&Old<'w>> {
        self.old
            .as_ref()
            .filter(|old| old.version > ObjectVersion(0))
    }

    /// The version of the object that is there; 0 when there is none.
    pub(crate) fn replaced_version(&self) -> ObjectVersion {
        self.replaced().map_or(ObjectVersion(0), |old| old.version)
    }

    /// The replaced version that clients are told: 0 when there was no object, or it has expired.
    pub(crate) fn told_version(&self) -> ObjectVersion {
        let told = self.replaced().filter(|old| !old.is_gone);
        told.map_or(ObjectVersion(0), |old| old.known)
    }

    /// What the slot of the key refers to.
    pub(super) fn slot(&self) -> Option<EntryRef> {
        self.old.as_ref().map(|old| old.entry)
    }

    pub(crate) fn marked(&self, entry: EntryRef, is_tombstone: bool) -> MarkedSlot {
        MarkedSlot {
            hash: self.hash,
            entry,
            is_tombstone,
        }
    }
}

/// A write under way, with the bucket of its key locked.
pub(crate) struct Write<'w, 'b> {
    pub(crate) target: Target<'w>,
    pub(crate) bucket: BucketGuard<'b>,
}

impl<'w> Deref for Write<'w, '_> {
    type Target = Target<'w>;

    #[inline]
    fn deref(&self) -> &Target<'w> {
        &self.target
    }
}

impl<'w> DerefMut for Write<'w, '_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Target<'w> {
        &mut self.target
    }
}

impl<'b> Write<'_, 'b> {
    /// Room for a slot, if the key has none. Taken before the append, which cannot be taken back:
    /// replicas may have the entry at once.
    pub(crate) fn room(&self) -> Result<Option<Room<'b>>, EngineError> {
        match self.old {
            Some(_) => Ok(None),
            None => Ok(Some(self.bucket.room()?)),
        }
    }

    /// Lets the slot of the key refer to `entry`.
    pub(crate) fn swing(&mut self, room: Option<Room<'b>>, entry: EntryRef, pending: bool) {
        swing(&mut self.bucket, self.target.slot(), room, entry, pending);
    }
}

/// By how many bytes a value of this length makes its table larger.
#[inline]
pub(super) fn growth_of(write: &Target<'_>, value_len: usize) -> i64 {
    let old = write.replaced().map_or(0, |old| old.object_bytes);
    bytes_of(write.key.len() + value_len) - bytes_of(old)
}

/// A number of bytes that may be subtracted.
#[inline]
pub(super) fn bytes_of(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

/// Lets the slot of `old`, or the room there is for one, refer to `entry`.
pub(super) fn swing<'b>(
    bucket: &mut BucketGuard<'b>,
    old: Option<EntryRef>,
    room: Option<Room<'b>>,
    entry: EntryRef,
    pending: bool,
) {
    match room {
        Some(room) => bucket.fill(room, entry, pending),
        None => assert!(
            old.is_some_and(|old| bucket.replace(old, entry, pending)),
            "the bucket is locked since the slot was found"
        ),
    }
}

impl Engine {
    /// Applies a mutation. `execution` is there for operations with an identity. Their outcome is
    /// appended with the change, or alone when nothing changes, and is kept for retries.
    ///
    /// # Errors
    /// See [`EngineError`]; nothing changed, and a retry is executed.
    pub fn apply(
        &self,
        site: &Site<'_>,
        mutation: &Mutation<'_>,
        mut execution: Option<Execution>,
    ) -> Result<Awaited<Applied>, EngineError> {
        let (table, key) = (site.table, mutation.key);
        if key.len() > KEY_MAX {
            return Err(EngineError::KeyTooLong(key.len()));
        }
        debug_assert_eq!(site.hash, table.hash(key), "the hash belongs to the key");
        let guard = self.space.pin();
        let index = table.indexes.of(site.hash).ok_or(EngineError::NotHere)?;
        let bucket = index.lock(site.hash);
        if table.indexes.is_closed() {
            return Err(EngineError::NotHere);
        }
        let mut seen = None;
        let slot = bucket.find(|entry| {
            seen = self.see_key(entry, key, &guard);
            seen.is_some()
        });
        let found = slot.zip(seen.as_ref());
        if let Some((slot, seen)) = found {
            self.check_seen(slot.entry, seen, &guard);
            self.space.prefetch_mark(slot.entry);
        }
        let object = seen.as_ref().and_then(Seen::object);
        let current = current_of(object.as_ref())?;
        let now = self.time_for(mutation, current);
        let pending = found.and_then(|(slot, seen)| self.pending(slot, seen.total_len(), &guard));
        if site.only_this_log && pending.is_some_and(|pending| pending.log != site.log) {
            return Err(EngineError::OtherLog);
        }
        // STORE-5.
        let log = pending.map_or(site.log, |pending| pending.log);
        self.check_class(log, table);
        if self.space.is_stalled(log) {
            return Err(EngineError::Stalled);
        }
        let old = found.map(|(slot, seen)| Old {
            entry: slot.entry,
            len: seen.total_len(),
            object_bytes: object.as_ref().map_or(0, counted_bytes),
            version: object.map_or(ObjectVersion(0), |o| o.version),
            known: current.map_or(ObjectVersion(0), |c| c.version),
            graves: object.as_ref().map_or(Graves::NONE, |object| object.graves),
            deadline: current.and_then(|current| current.deadline),
            is_gone: current.is_some_and(|current| current.is_gone(now)),
        });
        let target = Target {
            log,
            table,
            hash: site.hash,
            key,
            now_s: site.now_s,
            old,
            deadline: None,
            least: mutation.change.least_version(),
            state: ObjectState::Plain,
            guard: &guard,
        };
        let mut write = Write { target, bucket };
        let applied = match judge(mutation, current, now) {
            Verdict::Keep(outcome) => {
                reserve(&mut execution, outcome.output())?;
                return self.keep(&write, outcome, pending, execution);
            }
            Verdict::Put(value, deadline, output) => {
                self.check_put(value.len(), deadline)?;
                let grows = growth_of(&write, value.len());
                table.may_grow(grows).map_err(EngineError::Quota)?;
                write.deadline = deadline;
                reserve(&mut execution, &output)?;
                self.put(&mut write, &value, output, execution)?
            }
            Verdict::Delete(output) => {
                reserve(&mut execution, &output)?;
                self.delete(&mut write, output, execution)?
            }
        };
        drop(write);
        index.resize(&guard, |entry| self.hash_of(table, entry, &guard));
        if self.expiry.take_new() {
            self.tend_horizon(site.log);
        }
        Ok(applied)
    }

    /// The time by which a mutation of this object is judged; 0 where it does not matter.
    #[inline]
    pub(super) fn time_for(&self, mutation: &Mutation<'_>, current: Option<Current<'_>>) -> Now {
        let is_volatile = current.is_some_and(|current| current.deadline.is_some());
        match is_volatile || mutation.lifetime.is_bounded() {
            true => self.time(),
            false => Now::default(),
        }
    }

    /// Whether an object may have a value of this length and this deadline.
    pub(super) fn check_put(
        &self,
        value_len: usize,
        deadline: Option<Deadline>,
    ) -> Result<(), EngineError> {
        let value_max = self.kind.value_max();
        if value_len > value_max {
            return Err(EngineError::ValueTooLong(value_len, value_max));
        }
        match self.kind {
            StoreKind::InPlace if deadline.is_some() => Err(EngineError::NoDeadlines),
            StoreKind::InPlace | StoreKind::Replicated | StoreKind::Volatile => Ok(()),
        }
    }

    fn put(
        &self,
        write: &mut Write<'_, '_>,
        value: &[u8],
        output: Output,
        execution: Option<Execution>,
    ) -> Result<Awaited<Applied>, EngineError> {
        match self.kind {
            StoreKind::Replicated => self.put_replicated(write, value, output, execution),
            StoreKind::Volatile => self.put_volatile(write, value, output, execution),
            StoreKind::InPlace => self.put_in_place(write, value, output, execution),
        }
    }

    pub(super) fn delete(
        &self,
        write: &mut Write<'_, '_>,
        output: Output,
        execution: Option<Execution>,
    ) -> Result<Awaited<Applied>, EngineError> {
        let version = write.replaced_version();
        // Raised first: the head that this append may open must record it (STORE-1).
        self.space.raise_safe_version(version.next());
        debug_assert!(
            self.space.safe_version() > version,
            "STORE-1: the safe version is above every version deleted"
        );
        let outcome = Outcome::Deleted { version, output };
        match self.kind {
            StoreKind::Replicated => self.delete_replicated(write, outcome, execution),
            StoreKind::Volatile | StoreKind::InPlace => {
                Ok(self.delete_volatile(write, outcome, execution))
            }
        }
    }

    /// Keeps the outcome of an operation that changed nothing. Its record goes to the log of
    /// `pending`, if there is one: what the outcome rests on is durable when the record is
    /// (STORE-5).
    fn keep(
        &self,
        write: &Write<'_, '_>,
        outcome: Outcome,
        pending: Option<Pending>,
        execution: Option<Execution>,
    ) -> Result<Awaited<Applied>, EngineError> {
        let applied = |outcome| Applied {
            outcome,
            marked: None,
        };
        match (self.kind, execution) {
            (StoreKind::Replicated, Some(execution)) => {
                let appended = self.append_outcome(write, &outcome, execution)?;
                Ok(appended.map(|()| applied(outcome)).into())
            }
            (StoreKind::Volatile | StoreKind::InPlace, Some(execution)) => {
                execution.complete(outcome.clone(), None, None);
                Ok(Awaited::Now(self.marks.unmarked(applied(outcome))))
            }
            (_, None) => Ok(self
                .marks
                .marked(pending.map(Pending::end), applied(outcome))),
        }
    }

    /// The version that a write gives the object (STORE-1).
    pub(crate) fn next_version(&self, write: &Target<'_>) -> ObjectVersion {
        let replaced = write.replaced_version();
        let next = match replaced {
            ObjectVersion(0) => self.space.safe_version(),
            replaced => replaced.next(),
        };
        let version = next.max(write.least);
        debug_assert!(
            replaced < version,
            "STORE-1: {version} is the next version of {replaced}"
        );
        version
    }

    /// Counts an object that was written, and the one that it replaces as dead: the index points to
    /// that one no more. Notes when the object expires.
    pub(crate) fn count_written(&self, write: &Target<'_>, value_len: usize, entry_len: u32) {
        let mut growth = Growth::by(write.key.len() + value_len, entry_len).until(write.deadline);
        if let Some(old) = write.replaced() {
            growth = growth.without(self.count_dead(write, old));
        }
        write.table.count(write.log, growth);
        let old = write.replaced().and_then(|old| old.deadline);
        let place = (write.table.id(), write.hash);
        self.expiry.renote(place, old, write.deadline);
    }

    /// The log counts an object as dead that the index does not point to any more. Gives what the
    /// table is to count.
    #[inline]
    pub(crate) fn count_dead(&self, write: &Target<'_>, old: &Old<'_>) -> Growth {
        let guard = write.guard;
        self.space
            .mark_dead_by(write.log, old.entry, old.len, guard);
        Growth::by(old.object_bytes, old.len).until(old.deadline)
    }

    /// Takes the pending mark off the slot that a mutation left marked; the slot of a tombstone is
    /// emptied. Does nothing to the slot when the key was changed again since.
    pub fn settle(&self, table: &EngineTable, applied: Durable<Applied>) -> Durable<Outcome> {
        if let Some(slot) = applied.value().marked {
            self.unmark(table, slot);
        }
        applied.map(|applied| applied.outcome)
    }

    /// [`Engine::settle`] of a slot whose outcome went elsewhere ([`Applied::split`]).
    pub fn settle_slot(&self, table: &EngineTable, slot: Durable<Unsettled>) {
        self.unmark(table, slot.into_value().0);
    }

    fn unmark(&self, table: &EngineTable, marked: MarkedSlot) {
        let MarkedSlot {
            hash,
            entry,
            is_tombstone,
        } = marked;
        let guard = self.space.pin();
        let Some(index) = table.indexes.of(hash) else {
            return;
        };
        {
            let mut bucket = index.lock(hash);
            let Some(slot) = bucket.find(|found| found == entry) else {
                return;
            };
            // The mutation's guard is gone: its entry may have been cleaned, and another one lie in
            // its place.
            let view = self.view(entry, &guard);
            if self.pending(slot, view.total_len(), &guard).is_some() {
                return;
            }
            match view.entry() {
                Entry::Tombstone(_) if is_tombstone => {
                    bucket.remove(entry);
                }
                Entry::Object(_) if !is_tombstone => {
                    bucket.replace(entry, entry, false);
                }
                _ => {}
            }
        }
        if is_tombstone {
            index.resize(&guard, |entry| self.hash_of(table, entry, &guard));
        }
    }

    /// Confirms what can be: an outcome that is durable by now, with its mark taken off.
    ///
    /// # Errors
    /// What is to be waited for.
    pub fn confirm(
        &self,
        table: &EngineTable,
        applied: Awaited<Applied>,
    ) -> Result<Durable<Outcome>, Appended<Applied>> {
        match applied {
            Awaited::Now(durable) => Ok(self.settle(table, durable)),
            Awaited::Later(appended) => {
                let durable = self.space.confirm(appended)?;
                Ok(self.settle(table, durable))
            }
        }
    }
}

/// Makes room for an outcome that holds a value, before anything changes (COMP-7).
fn reserve(execution: &mut Option<Execution>, output: &Output) -> Result<(), EngineError> {
    match execution {
        Some(execution) if output.bulk_len() > 0 => execution.reserve(output.bulk_len()),
        Some(_) | None => Ok(()),
    }
}
