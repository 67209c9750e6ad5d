//! Entries that callers found or appended: reading them, asking for them ahead, where they lie, and
//! counting them as dead.

use super::LogSpace;
use crate::append::graves::{DeadIn, KEY_WITH_GRAVES_MAX, Tombstones};
use crate::durable::Durability;
use crate::error::Corruption;
use crate::memory::{CutObject, EntryView, MutableObject, Overwritable, ScatteredObject};
use pluvio_format::{Check, Graves, Object};
use pluvio_memory::EpochGuard;
use pluvio_units::{EntryRef, LogId, LogPosition, ObjectVersion};

impl LogSpace {
    /// Reads an entry. `entry` was found in the index, or appended, under `guard`.
    ///
    /// # Errors
    /// [`Corruption`]: log memory is broken; the process must stop. Only the layout is checked
    /// here; the cleaner and [`Self::entry_checked`] compare checksums.
    pub fn entry<'g>(
        &'g self,
        entry: EntryRef,
        guard: &'g EpochGuard<'_>,
    ) -> Result<EntryView<'g>, Corruption> {
        self.memory().entries().view(entry, Check::Structure, guard)
    }

    /// [`Self::entry`] for a caller that writes the entry elsewhere, with a checksum of its own. It
    /// compares the checksum too, where entries have one (not without replicas).
    ///
    /// # Errors
    /// [`Corruption`]: log memory is broken; the process must stop.
    pub fn entry_checked<'g>(
        &'g self,
        entry: EntryRef,
        guard: &'g EpochGuard<'_>,
    ) -> Result<EntryView<'g>, Corruption> {
        self.memory().entries().view(entry, Check::Checksum, guard)
    }

    /// The object at `entry`, which was found or appended under `guard`, and its length in the log.
    /// The fast path for an object in one piece. [`Self::entry`] tells what anything else is.
    #[must_use]
    #[inline]
    pub fn object<'g>(
        &'g self,
        entry: EntryRef,
        guard: &'g EpochGuard<'_>,
    ) -> Option<(Object<'g>, u32)> {
        self.memory().entries().object(entry, guard)
    }

    /// Version, value and length in the log of the object at `entry`. It must have this key, lie in
    /// one piece, and have neither graves nor a deadline. `entry` was found or appended under
    /// `guard`. [`Self::entry`] reads anything else.
    #[must_use]
    #[inline(always)]
    pub fn value_of<'g>(
        &'g self,
        entry: EntryRef,
        key: &[u8],
        guard: &'g EpochGuard<'_>,
    ) -> Option<(ObjectVersion, &'g [u8], u32)> {
        self.memory().entries().value_of(entry, key, guard)
    }

    /// The object at `entry`, if its value cannot change and all that lies before the value is in
    /// one seglet. The value may be in many seglets. `entry` was found or appended under `guard`.
    #[must_use]
    pub fn cut_object<'g>(
        &'g self,
        entry: EntryRef,
        guard: &'g EpochGuard<'_>,
    ) -> Option<CutObject<'g>> {
        self.memory().entries().cut_object(entry, guard)
    }

    /// Asks the processor to bring the first `lines` cache lines of an entry near.
    #[inline]
    pub fn prefetch(&self, entry: EntryRef, lines: u64) {
        self.memory().raw().prefetch(entry, lines);
    }

    /// Log, segment and offset of the first byte of an entry that was found under `guard`.
    #[must_use]
    pub fn position_of(&self, entry: EntryRef, _guard: &EpochGuard<'_>) -> (LogId, LogPosition) {
        let (place, position) = self.memory().locate(entry);
        (place.log, position)
    }

    /// The memory node on which the page of an entry lies that was found under `guard`, if the
    /// system tells. A system call: for tests and for people.
    #[must_use]
    pub fn node_of(&self, entry: EntryRef, _guard: &EpochGuard<'_>) -> Option<u32> {
        self.memory().raw().node_of(entry)
    }

    /// Counts an object or a completion record as dead: nothing points to it any more. `bytes` is
    /// its [`EntryView::total_len`]. Not for tombstones: they die by themselves. The reference was
    /// found under `guard`.
    pub fn mark_dead(&self, entry: EntryRef, bytes: u32, guard: &EpochGuard<'_>) {
        let (place, _) = self.memory().locate(entry);
        self.memory().set_dead(entry, guard);
        self.memory()
            .live()
            .add(place.slot, place.log, -i64::from(bytes));
    }

    /// [`Self::mark_dead`] for a thread that appends to `by`: cheaper, since it counts where no
    /// other core does.
    #[inline]
    pub fn mark_dead_by(&self, by: LogId, entry: EntryRef, bytes: u32, guard: &EpochGuard<'_>) {
        let slot = self.memory().table().slot_of(entry);
        self.memory().set_dead(entry, guard);
        self.memory().live().add(slot, by, -i64::from(bytes));
    }

    /// The rest of [`Self::mark_dead`] for what [`crate::OpenHead::exchange`] has counted as dead,
    /// once nothing points to it.
    #[inline(always)]
    pub fn mark_overwritten(&self, entry: EntryRef, guard: &EpochGuard<'_>) {
        self.memory().set_dead(entry, guard);
    }

    /// Asks the processor for what marking an entry as dead will change.
    #[inline(always)]
    pub fn prefetch_mark(&self, entry: EntryRef) {
        self.memory().prefetch_dead(entry);
    }

    /// The object at `entry`, which was found or appended under `guard`, if its value may be
    /// overwritten.
    #[must_use]
    #[inline]
    pub fn mutable_object<'g>(
        &'g self,
        entry: EntryRef,
        guard: &'g EpochGuard<'_>,
    ) -> Option<MutableObject<'g>> {
        self.memory().entries().mutable_object(entry, guard)
    }

    /// The object at `entry`, which was found or appended under `guard`, if its value may be
    /// overwritten, wherever it lies.
    #[must_use]
    pub fn scattered_object<'g>(
        &'g self,
        entry: EntryRef,
        guard: &'g EpochGuard<'_>,
    ) -> Option<ScatteredObject<'g>> {
        self.memory().entries().scattered_object(entry, guard)
    }

    /// [`Self::mutable_object`] for one with this key that is laid out as nearly all are; `None`
    /// says nothing of others.
    #[must_use]
    #[inline(always)]
    pub fn plain_mutable_object<'g>(
        &'g self,
        entry: EntryRef,
        key: &[u8],
        guard: &'g EpochGuard<'_>,
    ) -> Option<MutableObject<'g>> {
        let object = self.memory().entries().plain_mutable_object(entry, guard)?;
        object.has_key(key).then_some(object)
    }

    /// Whether values may be overwritten.
    #[must_use]
    #[inline]
    pub fn is_in_place(&self) -> bool {
        self.memory().is_in_place()
    }

    /// Takes the value of `old` once more into its copy `new`, which the index does not point to
    /// yet. The caller has the lock of the object's bucket (LOG-13). Does nothing where values do
    /// not change.
    pub fn copy_value_again(&self, old: EntryRef, new: EntryRef, guard: &EpochGuard<'_>) {
        self.memory().entries().copy_value_again(old, new, guard);
    }

    /// The segments with dead versions of an object when the one at `entry` dies, which has these
    /// graves. They are its own segment and those of its graves that are on disk. `entry` was found
    /// under `guard`, and its bucket is locked.
    #[must_use]
    pub fn dead_with(&self, entry: EntryRef, graves: Graves<'_>, guard: &EpochGuard<'_>) -> DeadIn {
        let own = self.position_of(entry, guard).1.segment;
        DeadIn::of(own, graves, |id| self.storage().table.contains(id))
    }

    /// How an overwrite of an object with a key of this length is recorded.
    #[must_use]
    #[inline]
    pub fn uses_graves(&self, key_len: usize) -> bool {
        match (
            self.storage().options.durability,
            self.storage().options.tombstones,
        ) {
            (Durability::Replicated, Tombstones::Deletes) => key_len <= KEY_WITH_GRAVES_MAX,
            (Durability::Volatile, _) | (_, Tombstones::Every) => false,
        }
    }
}
