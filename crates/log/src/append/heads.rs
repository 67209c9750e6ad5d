//! The heads of all logs, and appending to them.
//!
//! - LOG-6: a group lies in one segment, its entries one behind the other, and becomes visible to
//!   replication as a whole.

use super::admission::{Admission, seglets_left_by};
use super::first_group::FirstGroup;
use super::log_state::{LogState, Members};
use super::open_head::OpenHead;
use super::writer::SegmentWriter;
use super::{AppendClass, EntryRefs, timestamp, with_encoded};
use crate::durable::{Appended, Durability};
use crate::error::{AppendError, FullReason, OpenError};
use crate::options::LogOptions;
use crate::segments::{OnTheirWay, Segment, Storage};
use core::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use pluvio_format::{Check, Encoded, Entry, Object};
use pluvio_memory::{EpochGuard, PartIndex};
use pluvio_units::{EntryRef, LogId, LogPosition, SegmentId};
use std::sync::{Arc, Mutex, PoisonError};

/// See the module.
pub(crate) struct Heads {
    pub(crate) storage: Storage,
    pub(crate) admission: Admission,
    logs: Box<[LogState]>,
    /// How many of them have a head. The others are spare.
    opened: AtomicU16,
    /// Held while one is opened.
    opening: Mutex<()>,
    pub(crate) first_group: FirstGroup,
    pub(crate) counters: HeadCounters,
}

/// Heads that were opened since the start.
#[derive(Default)]
pub(crate) struct HeadCounters {
    /// By appends: how busy the log is.
    pub filled: AtomicU64,
    /// Only to publish a digest.
    pub forced_digests: AtomicU64,
    /// Of these, emergency heads.
    pub emergency_heads: AtomicU64,
}

impl Heads {
    /// A head in every log.
    pub(crate) fn new(options: LogOptions) -> Result<Self, OpenError> {
        let storage = Storage::new(options)?;
        let options = &storage.options;
        let logs = (0..options.all_logs())
            .map(|id| LogState::new(LogId(id), part_of(options, LogId(id)), options.durability))
            .collect();
        let first = options.logs;
        let heads = Self {
            storage,
            admission: Admission::default(),
            logs,
            opened: AtomicU16::new(first),
            opening: Mutex::default(),
            first_group: FirstGroup::new(first),
            counters: HeadCounters::default(),
        };
        heads.open_first_heads();
        Ok(heads)
    }

    /// The log with this id.
    ///
    /// # Panics
    /// When the master has no such log: ids come from
    /// [`LogSpace::logs`](crate::LogSpace::logs).
    #[inline]
    pub(crate) fn log(&self, id: LogId) -> &LogState {
        &self.logs[usize::from(id.0)]
    }

    /// Those that have a head.
    pub(crate) fn logs(&self) -> &[LogState] {
        &self.logs[..usize::from(self.opened.load(Ordering::Acquire))]
    }

    /// Opens a head in the next spare log; `None` when there is none left.
    ///
    /// # Errors
    /// [`AppendError::Full`]; nothing was opened.
    pub(crate) fn open_log(&self) -> Result<Option<LogId>, AppendError> {
        let _alone = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = self.opened.load(Ordering::Acquire);
        let Some(log) = self.logs.get(usize::from(opened)) else {
            return Ok(None);
        };
        let leave = self.storage.geometry.reserves_of_growth();
        self.roll_for_append(log, &mut log.head(), leave)
            .map_err(|why| self.admission.full(why))?;
        self.opened.store(opened + 1, Ordering::Release);
        LogState::call(&log.append_hook);
        Ok(Some(log.id))
    }

    /// Appends a group of entries to the head of `log`: all of them, in one segment, or none. Opens
    /// a new head when the group does not fit the old one. Never waits.
    ///
    /// `guard` must be held until the index points to the entries: before that, only the guard
    /// keeps the cleaner from taking them for dead. It cleans no segment before every guard from
    /// the time when that was closed is gone.
    ///
    /// # Errors
    /// See [`AppendError`]; nothing was appended. Drop the guard before trying again: while it is
    /// held, no memory is freed.
    pub(crate) fn append(
        &self,
        log: LogId,
        entries: &[Entry<'_>],
        class: AppendClass,
        guard: &EpochGuard<'_>,
    ) -> Result<Appended<EntryRefs>, AppendError> {
        for entry in entries {
            self.storage.clock.set(timestamp(entry));
        }
        with_encoded(entries, |encoded| {
            self.append_encoded(log, entries, encoded, class, guard)
        })
    }

    /// Appends one object: [`Self::append`] for a group of one, by the fast path when it fits the
    /// seglet that the head is in.
    ///
    /// # Errors
    /// As of [`Self::append`].
    #[inline]
    pub(crate) fn append_object(
        &self,
        log: LogId,
        object: &Object<'_>,
        class: AppendClass,
        guard: &EpochGuard<'_>,
    ) -> Result<Appended<EntryRef>, AppendError> {
        self.storage.clock.set(object.timestamp_s);
        let encoded = Encoded::object(object, false, self.storage.memory.check())?;
        if self.admission.is_at_live_limit() {
            return self.append_object_slow(log, object, &encoded, class, guard);
        }
        let state = self.log(log);
        let mut head = state.head();
        let writer = current(&mut head);
        let Some(entry) = writer.put_within(&encoded.parts()) else {
            drop(head);
            return self.append_object_slow(log, object, &encoded, class, guard);
        };
        let slot = writer.segment().slot();
        writer.publish();
        let position = writer.position();
        drop(head);
        self.storage
            .memory
            .live()
            .add(slot, log, encoded.len() as i64);
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
    pub(crate) fn open_head(&self, log: LogId) -> Option<OpenHead<'_>> {
        assert!(
            self.storage.memory.check() == Check::Structure,
            "replicas need checksums"
        );
        let at_limit = self.admission.is_at_live_limit();
        (!at_limit).then(|| OpenHead::new(self, log))
    }

    /// [`Self::open_head`] whether or not live objects are at their limit.
    ///
    /// # Panics
    /// As of [`Self::open_head`].
    pub(crate) fn lock_head(&self, log: LogId) -> OpenHead<'_> {
        assert!(
            self.storage.memory.check() == Check::Structure,
            "replicas need checksums"
        );
        OpenHead::new(self, log)
    }

    #[cold]
    fn append_object_slow(
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
        let capacity = self.storage.geometry.segment_bytes();
        let mut end = current(&mut head).end_after(lens());
        if end > capacity || current(&mut head).segment().is_emergency() {
            self.check_group_fits(state, lens())?;
            let leave = seglets_left_by(&self.storage.geometry, class, encoded);
            self.roll_for_append(state, &mut head, leave)
                .map_err(|why| self.admission.full(why))?;
            end = current(&mut head).end_after(lens());
            if end > capacity {
                return Err(self.too_large(current(&mut head).at(), lens()));
            }
        }
        let writer = current(&mut head);
        let missing = writer.missing_seglets(end);
        if missing > 0 || self.admission.is_at_live_limit() {
            self.admission
                .check_live_limit(&self.storage, class, encoded)?;
        }
        if missing > 0 {
            let leave = seglets_left_by(&self.storage.geometry, class, encoded);
            let seglets = self
                .storage
                .take_default(state.part, missing, leave)
                .ok_or_else(|| self.admission.full(FullReason::Seglets))?;
            writer.extend(seglets);
        }
        debug_assert!(
            !writer.segment().is_emergency(),
            "LOG-10: an append to an emergency head"
        );
        let refs = writer.put_group(entries, encoded);
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

    /// Refuses a group that would not even fit a new head, before one is opened for it.
    fn check_group_fits(
        &self,
        state: &LogState,
        lens: impl Iterator<Item = usize>,
    ) -> Result<(), AppendError> {
        let stats = self.first_group.table_stats();
        let own = self.head_bytes(state, &state.members(), &stats) as u32;
        let lens: Vec<usize> = lens.collect();
        let end = self
            .storage
            .memory
            .packing()
            .end_after(own, lens.iter().copied());
        if end > self.storage.geometry.segment_bytes() {
            return Err(self.too_large(own, lens.into_iter()));
        }
        Ok(())
    }

    pub(crate) fn too_large(&self, own: u32, lens: impl Iterator<Item = usize>) -> AppendError {
        AppendError::GroupTooLarge {
            bytes: lens.sum(),
            limit: (self.storage.geometry.segment_bytes() - own) as usize,
        }
    }

    /// The end of a log: everything appended before the call is before it.
    pub(crate) fn end_position(&self, log: LogId) -> LogPosition {
        current(&mut self.log(log).head()).position()
    }

    /// Frees what the digests up to `head` dropped.
    pub(crate) fn drop_published(&self, members: &mut Members, head: SegmentId) {
        for segment in members.take_dropped(head) {
            self.drop_segment(members, segment);
        }
    }

    /// The segment is gone from disk: its replicas are freeable and its memory is retired.
    pub(crate) fn drop_segment(&self, members: &mut Members, segment: Arc<Segment>) {
        assert!(
            !members.in_log.contains_key(&segment.id()),
            "LOG-4: segment {} is freed although the next digest lists it",
            segment.id()
        );
        match self.storage.options.durability {
            Durability::Volatile => {}
            Durability::Replicated => members.freeable.push(segment.id()),
        }
        self.storage.free_segment(segment);
    }

    /// The memory, slots and disk that are out of the log but not free yet.
    pub(crate) fn on_their_way(&self) -> OnTheirWay {
        let mut way = self.storage.retired();
        for log in &self.logs {
            log.members().add_to(&mut way);
        }
        way
    }
}

/// The part of the memory that a log appends to.
fn part_of(options: &LogOptions, log: LogId) -> PartIndex {
    let part = options
        .parts
        .iter()
        .position(|part| part.logs.contains(&log));
    PartIndex(part.unwrap_or(0) as u16)
}

/// The writer of a head.
#[inline]
pub(crate) fn current(head: &mut Option<SegmentWriter>) -> &mut SegmentWriter {
    head.as_mut()
        .expect("every log has a head since its log space was made")
}
