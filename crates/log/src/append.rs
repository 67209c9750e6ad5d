//! Appending to the head of a log.
//!
//! - LOG-6: a group lies in one segment, its entries one behind the other, and becomes visible to
//!   replication as a whole.
//! - LOG-7: an append never waits. What does not fit is refused with a delay.
//! - LOG-8: objects leave the last seglets to tombstones, so a delete works when objects are
//!   refused.

use crate::durable::Appended;
use crate::error::{AppendError, FullReason};
use crate::log_state::{HeadGuard, LogState};
use crate::space::LogSpace;
use crate::writer::SegmentWriter;
use core::ops::Deref;
use core::sync::atomic::Ordering;
use core::time::Duration;
use pluvio_format::{Check, Encoded, Entry, EntryKind, GROUP_MAX, Object, PlainLayout};
use pluvio_memory::EpochGuard;
use pluvio_units::{EntryRef, LogId, LogPosition};

/// After this the cleaner has usually finished a pass over a few segments.
const RETRY_AFTER_CLEANING: Duration = Duration::from_millis(2);
/// Only somebody's delete helps; there is no use in asking often.
const RETRY_AFTER_DELETING: Duration = Duration::from_millis(100);

/// What an append is for; decides by which limit it may be refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AppendClass {
    /// New objects: live objects must stay below their limit.
    Normal,
    /// Objects that take the place of others with `old_bytes` in the log. Refused for the limit of
    /// live objects only when they are larger than those.
    Replace {
        /// Bytes of the objects replaced, as they would be with the versions of the new ones
        /// (`Encoded::object_len_at`): what grows by its version alone is not refused.
        old_bytes: u32,
        /// Bytes of the graves of the new ones. What grows by these alone may go beyond the limit,
        /// as far as there is memory beside the reserves, and leaves others no more than what does
        /// not grow.
        graves_bytes: u32,
    },
    /// Objects of a crashed master's log of which it is known that they live: as replacements that
    /// are no larger. They lived in as much memory before.
    Replay,
    /// Tombstones without objects: may use seglets that objects may not.
    Delete,
    /// What the master itself needs (completion records, ...): as `Delete`.
    Internal,
}

impl AppendClass {
    fn graves_bytes(self) -> u32 {
        match self {
            Self::Replace { graves_bytes, .. } => graves_bytes,
            Self::Normal | Self::Replay | Self::Delete | Self::Internal => 0,
        }
    }
}

/// References of the entries of one group, in their order. Up to four need no heap.
#[derive(Clone, Debug)]
pub struct EntryRefs {
    few: [EntryRef; 4],
    len: usize,
    many: Vec<EntryRef>,
}

impl EntryRefs {
    fn new() -> Self {
        Self {
            few: [EntryRef::new(0); 4],
            len: 0,
            many: Vec::new(),
        }
    }

    fn push(&mut self, entry: EntryRef) {
        if self.len < self.few.len() {
            self.few[self.len] = entry;
        } else {
            if self.many.is_empty() {
                self.many.extend_from_slice(&self.few);
            }
            self.many.push(entry);
        }
        self.len += 1;
    }
}

impl Deref for EntryRefs {
    type Target = [EntryRef];

    fn deref(&self) -> &[EntryRef] {
        if self.len <= self.few.len() {
            &self.few[..self.len]
        } else {
            &self.many
        }
    }
}

/// Encodes a group and hands it on; the common groups of one to three need no heap.
pub(crate) fn with_encoded<'a, R>(
    entries: &[Entry<'a>],
    f: impl FnOnce(&[Encoded<'a>]) -> Result<R, AppendError>,
) -> Result<R, AppendError> {
    match entries {
        [one] => f(&[Encoded::new(one, false)?]),
        [one, two] => f(&[Encoded::new(one, true)?, Encoded::new(two, false)?]),
        [one, two, three] => f(&[
            Encoded::new(one, true)?,
            Encoded::new(two, true)?,
            Encoded::new(three, false)?,
        ]),
        more if (1..=GROUP_MAX).contains(&more.len()) => {
            let last = more.len() - 1;
            let encoded = more
                .iter()
                .enumerate()
                .map(|(i, entry)| Encoded::new(entry, i < last))
                .collect::<Result<Vec<_>, _>>()?;
            f(&encoded)
        }
        other => Err(AppendError::GroupLength(other.len())),
    }
}

/// Seconds at which an entry says it was written.
fn timestamp(entry: &Entry<'_>) -> u32 {
    match entry {
        Entry::Object(object) => object.timestamp_s,
        Entry::Tombstone(tombstone) => tombstone.timestamp_s,
        Entry::SegmentHeader(header) => header.created_s,
        Entry::LogDigest(_)
        | Entry::SafeVersion(_)
        | Entry::TableStats(_)
        | Entry::Completion(_) => 0,
    }
}

impl LogSpace {
    /// Appends a group of entries to the head of `log`: all of them, in one segment, or none. Opens
    /// a new head when the group does not fit the old one. Never waits.
    ///
    /// `guard` must be held until the index points to the entries: before that, only the guard
    /// keeps the cleaner from taking them for dead.
    ///
    /// # Errors
    /// See [`AppendError`]; nothing was appended. Drop the guard before trying again: while it is
    /// held, no memory is freed.
    pub fn append(
        &self,
        log: LogId,
        entries: &[Entry<'_>],
        class: AppendClass,
        guard: &EpochGuard<'_>,
    ) -> Result<Appended<EntryRefs>, AppendError> {
        for entry in entries {
            self.set_time(timestamp(entry));
        }
        with_encoded(entries, |encoded| {
            self.append_encoded(log, entries, encoded, class, guard)
        })
    }

    /// Appends one object: [`Self::append`] for a group of one, by the short way when it fits the
    /// seglet that the head is in.
    ///
    /// # Errors
    /// As of [`Self::append`].
    #[inline]
    pub fn append_object(
        &self,
        log: LogId,
        object: &Object<'_>,
        class: AppendClass,
        guard: &EpochGuard<'_>,
    ) -> Result<Appended<EntryRef>, AppendError> {
        self.set_time(object.timestamp_s);
        let encoded = Encoded::object(object, false, self.memory.check())?;
        if self.at_live_limit.load(Ordering::Relaxed) {
            return self.append_object_slowly(log, object, &encoded, class, guard);
        }
        let state = self.log(log);
        let mut head = state.head();
        let writer = current(&mut head);
        let Some(entry) = writer.put_within(&encoded.parts()) else {
            drop(head);
            return self.append_object_slowly(log, object, &encoded, class, guard);
        };
        let slot = writer.segment().slot();
        writer.publish();
        let position = writer.position();
        drop(head);
        self.memory.add_live(slot, log, encoded.len() as i64);
        LogState::call(&state.append_hook);
        Ok(Appended::new(log, position, entry))
    }

    /// The head of a log of a store without replicas, for appends that need nothing but room in the
    /// seglet that it is in ([`OpenHead::exchange`]). `None` when live objects are at their limit,
    /// which others than these look at.
    ///
    /// # Panics
    /// When the store has replicas: such entries have no checksum, and nobody is told of them.
    #[inline(always)]
    pub fn open_head(&self, log: LogId) -> Option<OpenHead<'_>> {
        assert!(
            self.memory.check() == Check::Structure,
            "replicas need checksums"
        );
        let at_limit = self.at_live_limit.load(Ordering::Relaxed);
        (!at_limit).then(|| OpenHead {
            space: self,
            log,
            head: self.log(log).head(),
        })
    }

    #[cold]
    fn append_object_slowly(
        &self,
        log: LogId,
        object: &Object<'_>,
        encoded: &Encoded<'_>,
        class: AppendClass,
        guard: &EpochGuard<'_>,
    ) -> Result<Appended<EntryRef>, AppendError> {
        let (entry, encoded) = (Entry::Object(*object), core::slice::from_ref(encoded));
        let appended =
            self.append_encoded(log, core::slice::from_ref(&entry), encoded, class, guard)?;
        Ok(appended.map(|refs| refs[0]))
    }

    fn append_encoded(
        &self,
        log: LogId,
        entries: &[Entry<'_>],
        encoded: &[Encoded<'_>],
        class: AppendClass,
        _guard: &EpochGuard<'_>,
    ) -> Result<Appended<EntryRefs>, AppendError> {
        let state = self.log(log);
        let mut head = state.head();
        let lens = || encoded.iter().map(Encoded::len);
        let capacity = self.geometry.segment_bytes();
        let mut end = current(&mut head).end_after(lens());
        if end > capacity || current(&mut head).segment().is_emergency() {
            self.check_group_fits(state, lens())?;
            let leave = self.seglets_left_by(class, encoded);
            self.roll_for_append(state, &mut head, leave)
                .map_err(|why| self.full(why))?;
            end = current(&mut head).end_after(lens());
            if end > capacity {
                return Err(self.too_large(current(&mut head).at(), lens()));
            }
        }
        let writer = current(&mut head);
        let missing = writer.missing_seglets(end);
        if missing > 0 || self.at_live_limit.load(Ordering::Relaxed) {
            self.check_live_limit(class, encoded)?;
        }
        if missing > 0 {
            let seglets = self
                .take_default(log, missing, self.seglets_left_by(class, encoded))
                .ok_or_else(|| self.full(FullReason::Seglets))?;
            writer.extend(seglets);
        }
        debug_assert!(
            !writer.segment().is_emergency(),
            "LOG-10: an append to an emergency head"
        );
        let refs = self.put_group(writer, entries, encoded);
        debug_assert_eq!(
            writer.at(),
            end,
            "LOG-6: a group ends in its segment, where it was planned to"
        );
        let position = writer.position();
        drop(head);
        LogState::call(&state.append_hook);
        Ok(Appended::new(log, position, refs))
    }

    /// Writes a group for which there is room, counts it, and shows it to replication.
    pub(crate) fn put_group(
        &self,
        writer: &mut SegmentWriter,
        entries: &[Entry<'_>],
        encoded: &[Encoded<'_>],
    ) -> EntryRefs {
        let mut refs = EntryRefs::new();
        for (entry, bytes) in entries.iter().zip(encoded) {
            refs.push(writer.put(&bytes.parts()));
            self.count(writer, entry, bytes.len());
        }
        writer.publish();
        refs
    }

    /// Counts an entry as live in the segment of `writer`.
    pub(crate) fn count(&self, writer: &SegmentWriter, entry: &Entry<'_>, len: usize) {
        let segment = writer.segment();
        match entry {
            Entry::Object(_) | Entry::Completion(_) => {
                self.memory
                    .add_live(segment.slot(), segment.log(), len as i64)
            }
            Entry::Tombstone(tombstone) => {
                segment.tombstones().add(tombstone.segment, len as u32);
            }
            // Every head has its own: they are dead as soon as there is a newer one.
            Entry::SegmentHeader(_)
            | Entry::LogDigest(_)
            | Entry::SafeVersion(_)
            | Entry::TableStats(_) => {}
        }
    }

    /// Seglets of the default pool that an append has to leave to others.
    pub(crate) fn seglets_left_by(&self, class: AppendClass, encoded: &[Encoded<'_>]) -> usize {
        let geometry = &self.geometry;
        match class {
            AppendClass::Normal => geometry.reserves_of_growth(),
            AppendClass::Replace { .. }
                if growth(class, encoded) > u64::from(class.graves_bytes()) =>
            {
                geometry.reserves_of_growth()
            }
            AppendClass::Replace { .. } | AppendClass::Replay => geometry.delete_reserve,
            AppendClass::Delete | AppendClass::Internal => 0,
        }
    }

    /// Live objects are looked at only when a seglet is taken, or when they were at the limit at
    /// the last look: the limit holds to 64 KiB a log, and the usual append does not read every
    /// log's counter.
    pub(crate) fn check_live_limit(
        &self,
        class: AppendClass,
        encoded: &[Encoded<'_>],
    ) -> Result<(), AppendError> {
        let live = self.live_bytes();
        let at_limit = live >= self.geometry.live_bytes_max;
        // The load keeps the line shared.
        if self.at_live_limit.load(Ordering::Relaxed) != at_limit {
            self.at_live_limit.store(at_limit, Ordering::Relaxed);
        }
        let growth = growth(class, encoded);
        let limit = if growth <= u64::from(class.graves_bytes()) {
            self.geometry.live_bytes_with_graves_max
        } else {
            self.geometry.live_bytes_max
        };
        if growth == 0 || live + growth <= limit {
            return Ok(());
        }
        // What is left in dropped segments (an aborted side log's) counts until they are freed.
        if self.reclaim() > 0 && self.live_bytes() + growth <= limit {
            return Ok(());
        }
        Err(self.full(FullReason::LiveObjects))
    }

    /// An error for a full memory; tells the cleaner when it can help.
    pub(crate) fn full(&self, why: FullReason) -> AppendError {
        let retry_after = match why {
            FullReason::LiveObjects => RETRY_AFTER_DELETING,
            FullReason::Seglets | FullReason::Segments => {
                self.cleaning_wanted.store(true, Ordering::Relaxed);
                RETRY_AFTER_CLEANING
            }
        };
        AppendError::Full { retry_after, why }
    }

    /// Refuses a group that would not even fit a new head, before one is opened for it.
    fn check_group_fits(
        &self,
        state: &LogState,
        lens: impl Iterator<Item = usize>,
    ) -> Result<(), AppendError> {
        let own = self.head_entries_bound(state);
        let lens: Vec<usize> = lens.collect();
        let end = self.memory.packing().end_after(own, lens.iter().copied());
        if end > self.geometry.segment_bytes() {
            return Err(self.too_large(own, lens.into_iter()));
        }
        Ok(())
    }

    pub(crate) fn too_large(&self, own: u32, lens: impl Iterator<Item = usize>) -> AppendError {
        AppendError::GroupTooLarge {
            bytes: lens.sum(),
            limit: (self.geometry.segment_bytes() - own) as usize,
        }
    }

    /// The end of a log: everything appended before the call is before it.
    #[must_use]
    pub fn end_position(&self, log: LogId) -> LogPosition {
        current(&mut self.log(log).head()).position()
    }
}

/// Bytes by which an append makes live objects more, at most.
fn growth(class: AppendClass, encoded: &[Encoded<'_>]) -> u64 {
    let replaced = match class {
        AppendClass::Normal => 0,
        AppendClass::Replace { old_bytes, .. } => old_bytes as usize,
        AppendClass::Replay | AppendClass::Delete | AppendClass::Internal => return 0,
    };
    let added: usize = encoded
        .iter()
        .filter(|e| e.kind() == EntryKind::Object)
        .map(Encoded::len)
        .sum();
    added.saturating_sub(replaced) as u64
}

/// The writer of a head. A head that this thread alone appends to as long as this lives. Nothing
/// else of the log can be called meanwhile.
pub struct OpenHead<'a> {
    space: &'a LogSpace,
    log: LogId,
    head: HeadGuard<'a>,
}

impl core::fmt::Debug for OpenHead<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("OpenHead").field(&self.log).finish()
    }
}

impl OpenHead<'_> {
    /// Appends one object that takes the place of the one at `old` of so many bytes, if that needs
    /// no seglet, and counts the new one as live and the old one as dead; gives the new one with
    /// its length in the log. Once nothing points to the old one, [`LogSpace::mark_overwritten`] is
    /// to be called for it. `None`, and nothing has changed, when it needs
    /// [`LogSpace::append_object`]. `guard`: as for [`LogSpace::append`]; `old` was found under it.
    #[inline(always)]
    pub fn exchange(
        &mut self,
        object: Object<'_>,
        old: (EntryRef, u32),
        guard: &EpochGuard<'_>,
    ) -> Option<(EntryRef, u32)> {
        let space = self.space;
        space.set_time(object.timestamp_s);
        let layout = match PlainLayout::of(&object) {
            Some(layout) if space.memory.copies_as_usual() => layout,
            _ => return self.exchange_encoded(object, old, guard),
        };
        let writer = current(&mut self.head);
        let len = layout.total_len();
        let (entry, to) = writer.room_within(len)?;
        layout.write(&object, to);
        self.publish(len, old);
        Some((entry, len as u32))
    }

    /// [`Self::exchange`] of what is laid out in another way, or copied by another method.
    #[inline(never)]
    fn exchange_encoded(
        &mut self,
        object: Object<'_>,
        old: (EntryRef, u32),
        _guard: &EpochGuard<'_>,
    ) -> Option<(EntryRef, u32)> {
        let encoded = Encoded::object(&object, false, Check::Structure).ok()?;
        let entry = current(&mut self.head).put_within(&encoded.parts())?;
        self.publish(encoded.len(), old);
        Some((entry, encoded.len() as u32))
    }

    /// Shows the entry of `len` bytes that was just put, and counts it as live and the old one as
    /// dead.
    #[inline(always)]
    fn publish(&mut self, len: usize, (old, old_len): (EntryRef, u32)) {
        let memory = &self.space.memory;
        let writer = current(&mut self.head);
        writer.publish();
        let new = (writer.segment().slot(), len as u32);
        memory.exchange_live_locked(self.log, new, (memory.slot_of(old), old_len));
    }
}

#[inline]
pub(crate) fn current(head: &mut Option<SegmentWriter>) -> &mut SegmentWriter {
    head.as_mut()
        .expect("every log has a head since its log space was made")
}
