//! Entries that callers found or appended: reading them, asking for them ahead, where they lie, and
//! counting them as dead.

use super::LogSpace;
use crate::error::Corruption;
use crate::view::EntryView;
use pluvio_format::{Check, Object};
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
        self.memory.view(entry, Check::Structure, guard)
    }

    /// [`Self::entry`] for who writes down elsewhere what it reads, with a checksum of its own:
    /// compares the checksum too, where entries have one (not without replicas).
    ///
    /// # Errors
    /// [`Corruption`]: log memory is broken; the process must stop.
    pub fn entry_checked<'g>(
        &'g self,
        entry: EntryRef,
        guard: &'g EpochGuard<'_>,
    ) -> Result<EntryView<'g>, Corruption> {
        self.memory.view(entry, Check::Checksum, guard)
    }

    /// The object at `entry`, which was found or appended under `guard`, and its length in the log:
    /// the short way for what is an object in one piece. [`Self::entry`] tells what anything else
    /// is.
    #[must_use]
    #[inline]
    pub fn object<'g>(
        &'g self,
        entry: EntryRef,
        guard: &'g EpochGuard<'_>,
    ) -> Option<(Object<'g>, u32)> {
        self.memory.object(entry, guard)
    }

    /// Version and value of the object at `entry`, which was found or appended under `guard`, and
    /// its length in the log, if it has this key, lies in one piece and has no graves.
    /// [`Self::entry`] tells what anything else is.
    #[must_use]
    #[inline(always)]
    pub fn value_of<'g>(
        &'g self,
        entry: EntryRef,
        key: &[u8],
        guard: &'g EpochGuard<'_>,
    ) -> Option<(ObjectVersion, &'g [u8], u32)> {
        self.memory.value_of(entry, key, guard)
    }

    /// Asks the processor to bring the first `lines` cache lines of an entry near.
    #[inline]
    pub fn prefetch(&self, entry: EntryRef, lines: u64) {
        self.memory.prefetch(entry, lines);
    }

    /// Log, segment and offset of the first byte of an entry that was found under `guard`.
    #[must_use]
    pub fn position_of(&self, entry: EntryRef, _guard: &EpochGuard<'_>) -> (LogId, LogPosition) {
        let (place, position) = self.memory.locate(entry);
        (place.log, position)
    }

    /// The memory node on which the page of an entry lies that was found under `guard`, if the
    /// system tells. A system call: for tests and for people.
    #[must_use]
    pub fn node_of(&self, entry: EntryRef, _guard: &EpochGuard<'_>) -> Option<u32> {
        self.memory.node_of(entry)
    }

    /// Counts an object or a completion record as dead: nothing points to it any more. `bytes` is
    /// its [`EntryView::total_len`]. Not for tombstones: they die by themselves. The reference was
    /// found under `guard`.
    pub fn mark_dead(&self, entry: EntryRef, bytes: u32, guard: &EpochGuard<'_>) {
        let (place, _) = self.memory.locate(entry);
        self.memory.set_dead(entry, guard);
        self.memory
            .add_live(place.slot, place.log, -i64::from(bytes));
    }

    /// [`Self::mark_dead`] for a thread that appends to `by`: cheaper, since it counts where no
    /// other core does.
    #[inline]
    pub fn mark_dead_by(&self, by: LogId, entry: EntryRef, bytes: u32, guard: &EpochGuard<'_>) {
        let slot = self.memory.slot_of(entry);
        self.memory.set_dead(entry, guard);
        self.memory.add_live(slot, by, -i64::from(bytes));
    }

    /// The rest of [`Self::mark_dead`] for what [`crate::OpenHead::exchange`] has counted as dead,
    /// once nothing points to it.
    #[inline(always)]
    pub fn mark_overwritten(&self, entry: EntryRef, guard: &EpochGuard<'_>) {
        self.memory.set_dead(entry, guard);
    }

    /// Asks the processor for what marking an entry as dead will change.
    #[inline(always)]
    pub fn prefetch_mark(&self, entry: EntryRef) {
        self.memory.prefetch_dead(entry);
    }
}
