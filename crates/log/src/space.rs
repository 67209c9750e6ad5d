//! The log space of one master: all of its logs over one memory.
//!
//! Owns the memory, the free seglets and segment slots, and which segments exist. Appending is in
//! `append`, opening heads in `roll`, cleaning in `cleaner`.
//!
//! - LOG-3: segment ids ascend over all logs of the master and are never used twice.
//! - LOG-4: a segment exists on disk from its opening until a digest that does not list it is durable
//!   and all older heads are durably closed; only then are its replicas and its memory freed.
//! - LOG-5: freed memory is used again only when every guard taken before has been dropped.

use crate::cleaner::CleanerCounters;
use crate::durable::{Appended, Durability, Durable};
use crate::error::{Corruption, CorruptionHook, OpenError};
use crate::log_state::{Hook, LogState, Members};
use crate::memory::LogMemory;
use crate::options::{Geometry, LogOptions, part_seglets};
use crate::presence::Presence;
use crate::segment::Segment;
use crate::stats::LogStats;
use crate::view::EntryView;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use pluvio_format::{Check, Object, TableStats};
use pluvio_memory::{
    EpochGuard, PartIndex, ReclaimStamp, RegionError, Reserves, SegletClass, SegletIndex,
    SegletPool,
};
use pluvio_units::{EntryRef, LogId, LogPosition, ObjectVersion, SEGLET_BYTES, SegmentId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

/// By so many seconds entries of other servers, whose clocks differ, may be ahead of ours. What is further ahead is a clock that
/// was set back.
const CLOCK_AHEAD_MAX_S: u32 = 60;

/// Tells the sizes of the tables; see [`LogSpace::set_table_stats_source`].
pub type TableStatsSource = Box<dyn Fn() -> TableStats + Send + Sync>;

/// Asked before seglets are taken, for whom and how many; see [`LogSpace::set_seglet_gate`].
pub type SegletGate = Box<dyn Fn(SegletClass, usize) -> bool + Send + Sync>;

/// Memory out of the log that a guard may still protect.
enum Retired {
    /// All of a segment.
    Segment(Arc<Segment>),
    /// What a segment was made of before it was compacted.
    Seglets(Vec<u32>),
}

impl Retired {
    fn seglet_count(&self) -> usize {
        match self {
            Self::Segment(segment) => segment.seglet_count(),
            Self::Seglets(seglets) => seglets.len(),
        }
    }
}

/// See the module.
pub struct LogSpace {
    pub(crate) options: LogOptions,
    pub(crate) geometry: Geometry,
    pub(crate) memory: Arc<LogMemory>,
    pub(crate) pool: SegletPool,
    logs: Box<[LogState]>,
    next_segment: AtomicU64,
    free_slots: Mutex<Vec<u32>>,
    /// Every segment that exists on disk, or would if there were replicas (LOG-4).
    pub(crate) on_disk: RwLock<BTreeMap<SegmentId, Arc<Segment>>>,
    /// The ids of `on_disk`.
    pub(crate) presence: Presence,
    retired: Mutex<Vec<(ReclaimStamp, Retired)>>,
    /// Bytes of the log on disk: what `on_disk` takes there (LOG-4), open segments counted as full.
    disk_bytes: AtomicU64,
    /// Seglets that passes under way will free beyond those they take.
    pub(crate) gains: AtomicUsize,
    /// Live objects were at their limit when a seglet was taken last: what makes them more is looked at each time.
    pub(crate) at_live_limit: AtomicBool,
    /// Heads opened by appends: how busy the log is.
    pub(crate) heads_filled: AtomicU64,
    safe_version: AtomicU64,
    /// The newest time seen, in seconds; new segments are created "then".
    newest_s: AtomicU32,
    /// By so much the clock was set back, in all.
    clock_behind_s: AtomicU32,
    table_stats: OnceLock<TableStatsSource>,
    seglet_gate: OnceLock<SegletGate>,
    pub(crate) corruption_hook: OnceLock<CorruptionHook>,
    /// For so many seglets more that other appends take, memory is kept free for those that make live data more.
    growth_seglets: AtomicUsize,
    /// An append failed for want of seglets or slots since the last pass began.
    pub(crate) cleaning_wanted: AtomicBool,
    pub(crate) cleaner_counters: CleanerCounters,
}

impl LogSpace {
    /// Reserves the memory and opens a head in every log.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing was kept.
    pub fn new(options: LogOptions) -> Result<Arc<Self>, OpenError> {
        let geometry = Geometry::of(&options)?;
        let count = |n: usize| u32::try_from(n).expect("seglets are counted in 32 bits");
        let parts = part_seglets(&options, geometry.seglets);
        let memory = LogMemory::new(&geometry, &options, &parts)?;
        let reserves = Reserves {
            cleaner: count(geometry.cleaner_reserve),
            emergency: count(geometry.emergency_reserve),
        };
        let pool = SegletPool::divided(&parts, reserves)
            .expect("the geometry leaves seglets beside the reserves");
        let logs = (0..options.logs)
            .map(|id| LogState::new(LogId(id), part_of(&options, LogId(id)), options.durability))
            .collect();
        let space = Arc::new(Self {
            geometry,
            memory: Arc::new(memory),
            pool,
            logs,
            next_segment: AtomicU64::new(1),
            free_slots: Mutex::new((0..count(geometry.slots)).rev().collect()),
            on_disk: RwLock::default(),
            presence: Presence::new(geometry.slots),
            retired: Mutex::default(),
            disk_bytes: AtomicU64::new(0),
            gains: AtomicUsize::new(0),
            at_live_limit: AtomicBool::new(false),
            heads_filled: AtomicU64::new(0),
            safe_version: AtomicU64::new(1),
            newest_s: AtomicU32::new(options.now_s),
            clock_behind_s: AtomicU32::new(0),
            table_stats: OnceLock::new(),
            seglet_gate: OnceLock::new(),
            corruption_hook: OnceLock::new(),
            growth_seglets: AtomicUsize::new(0),
            cleaning_wanted: AtomicBool::new(false),
            cleaner_counters: CleanerCounters::default(),
            options,
        });
        for log in &space.logs {
            space.open_first_head(log);
        }
        Ok(space)
    }

    /// The logs, in the order of their ids.
    pub fn logs(&self) -> impl Iterator<Item = LogId> + use<> {
        (0..self.options.logs).map(LogId)
    }

    /// How appends become durable.
    #[must_use]
    #[inline]
    pub fn durability(&self) -> Durability {
        self.options.durability
    }

    /// Begins an operation: what is read or appended under the guard stays where it is until the guard is dropped.
    /// Hold it for microseconds: it stops the reuse of memory.
    #[must_use]
    #[inline(always)]
    pub fn pin(&self) -> EpochGuard<'_> {
        self.memory.epochs().pin()
    }

    /// Tells the log the time, in seconds of the cluster; an earlier one than it knows changes nothing. Appends tell it as
    /// well, by their timestamps.
    #[inline]
    pub fn set_time(&self, now_s: u32) {
        // The load keeps the line shared; the time changes once a second.
        if self.newest_s.load(Ordering::Relaxed) < now_s {
            self.newest_s.fetch_max(now_s, Ordering::Relaxed);
        }
    }

    /// Tells the log what the clock of this machine shows. When that was set back, the log's time goes on from where it was:
    /// otherwise all segments would be equally young, and no time would pass, until the clock has caught up.
    pub(crate) fn follow_clock(&self, now_s: u32) {
        let behind_s = self.clock_behind_s.load(Ordering::Relaxed);
        let time_s = now_s.saturating_add(behind_s);
        let more_s = self.newest_s().saturating_sub(time_s);
        if more_s > CLOCK_AHEAD_MAX_S {
            // Another cleaner may have seen it first.
            let _first = self.clock_behind_s.compare_exchange(
                behind_s,
                behind_s.saturating_add(more_s),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        } else {
            self.set_time(time_s);
        }
    }

    /// The time it knows.
    #[must_use]
    #[inline]
    pub fn time_s(&self) -> u32 {
        self.newest_s()
    }

    pub(crate) fn newest_s(&self) -> u32 {
        self.newest_s.load(Ordering::Relaxed)
    }

    /// Versions of objects that are new to this master must be at least this. Written to every
    /// head, so that versions grow over delete and re-create even when all traces of the deleted
    /// object are cleaned away.
    #[must_use]
    #[inline]
    pub fn safe_version(&self) -> ObjectVersion {
        ObjectVersion(self.safe_version.load(Ordering::Acquire))
    }

    /// Raises the safe version to at least `to`: after a delete, to one more than the deleted version.
    /// Call it before the tombstone is appended.
    pub fn raise_safe_version(&self, to: ObjectVersion) {
        self.safe_version.fetch_max(to.0, Ordering::AcqRel);
    }

    /// Sets who tells the table statistics for new heads; only the first call counts. The source is
    /// called while a head is locked: it must not call the log.
    pub fn set_table_stats_source(&self, source: TableStatsSource) {
        let _first_one_counts = self.table_stats.set(source);
    }

    /// Sets who may refuse seglets to appends, heads and the cleaner as if there were none; only the first call counts. For
    /// tests: memory can run out at any moment, and with a gate it does so at a chosen one. The gate is called while a head or
    /// the members of a log are locked: it must not call the log.
    pub fn set_seglet_gate(&self, gate: SegletGate) {
        let _first_one_counts = self.seglet_gate.set(gate);
    }

    /// Whether the gate lets seglets be taken.
    fn may_take(&self, class: SegletClass, count: usize) -> bool {
        self.seglet_gate.get().is_none_or(|gate| gate(class, count))
    }

    pub(crate) fn table_stats(&self) -> TableStats {
        self.table_stats
            .get()
            .map_or_else(TableStats::default, |s| s())
    }

    /// Sets what is called after every append to `log`, and after a new segment is in its queue: it should wake
    /// the replicator. Only the first call counts.
    pub fn set_append_hook(&self, log: LogId, hook: Hook) {
        let _first_one_counts = self.log(log).append_hook.set(hook);
    }

    /// Sets what is called when more of `log` became durable: it should wake those who wait for
    /// [`LogSpace::confirm`], and the cleaner. Only the first call counts.
    pub fn set_durable_hook(&self, log: LogId, hook: Hook) {
        let _first_one_counts = self.log(log).durable_hook.set(hook);
    }

    /// The log with this id.
    ///
    /// # Panics
    /// When the master has no such log: ids come from [`LogSpace::logs`].
    #[inline]
    pub(crate) fn log(&self, id: LogId) -> &LogState {
        &self.logs[usize::from(id.0)]
    }

    pub(crate) fn log_states(&self) -> &[LogState] {
        &self.logs
    }

    // --- reading -----------------------------------------------------------------------------

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

    /// [`Self::entry`] for who writes down elsewhere what it reads, with a checksum of its own: compares the checksum too,
    /// where entries have one (not without replicas).
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

    /// The object at `entry`, which was found or appended under `guard`, and its length in the log: the short
    /// way for what is an object in one piece. [`Self::entry`] tells what anything else is.
    #[must_use]
    #[inline]
    pub fn object<'g>(
        &'g self,
        entry: EntryRef,
        guard: &'g EpochGuard<'_>,
    ) -> Option<(Object<'g>, u32)> {
        self.memory.object(entry, guard)
    }

    /// Version and value of the object at `entry`, which was found or appended under `guard`, and its length in the log, if
    /// it has this key, lies in one piece and has no graves. [`Self::entry`] tells what anything else is.
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

    /// Asks the system for huge pages for all of the log memory; once more, if the options did.
    ///
    /// # Errors
    /// It refuses. The log works without, slower.
    pub fn prefer_huge_pages(&self) -> Result<(), RegionError> {
        self.memory.prefer_huge_pages()
    }

    /// The memory node on which the page of an entry lies that was found under `guard`, if the system tells. A system
    /// call: for tests and for people.
    #[must_use]
    pub fn node_of(&self, entry: EntryRef, _guard: &EpochGuard<'_>) -> Option<u32> {
        self.memory.node_of(entry)
    }

    /// Counts an object or a completion record as dead: nothing points to it any more. `bytes` is its
    /// [`EntryView::total_len`]. Not for tombstones: they die by themselves. The reference was
    /// found under `guard`.
    pub fn mark_dead(&self, entry: EntryRef, bytes: u32, _guard: &EpochGuard<'_>) {
        let (place, _) = self.memory.locate(entry);
        self.memory
            .add_live(place.slot, place.log, -i64::from(bytes));
    }

    /// [`Self::mark_dead`] for a thread that appends to `by`: cheaper, since it counts where no other core does.
    #[inline]
    pub fn mark_dead_by(&self, by: LogId, entry: EntryRef, bytes: u32, _guard: &EpochGuard<'_>) {
        let slot = self.memory.slot_of(entry);
        self.memory.add_live(slot, by, -i64::from(bytes));
    }

    // --- durability --------------------------------------------------------------------------

    /// Whether `log` is durable up to `position`.
    #[must_use]
    pub fn is_durable(&self, log: LogId, position: LogPosition) -> bool {
        self.log(log).durable.covers(position)
    }

    /// The durable position of a log; `None` when everything is durable at once.
    #[must_use]
    pub fn durable_position(&self, log: LogId) -> Option<LogPosition> {
        self.log(log).durable.get()
    }

    /// The proof that `appended` is durable.
    ///
    /// # Errors
    /// Gives `appended` back when it is not durable yet: try again after the durable hook.
    pub fn confirm<T>(&self, appended: Appended<T>) -> Result<Durable<T>, Appended<T>> {
        if self.is_durable(appended.log(), appended.position()) {
            Ok(appended.into_durable())
        } else {
            Err(appended)
        }
    }

    /// Replication: everything in the heads of `log` before `position` is on all replicas. Never
    /// moves back. A position in a head may be reported only after the digest of that head is
    /// durable and all older heads are durably closed.
    pub fn advance_durable(&self, log: LogId, position: LogPosition) {
        let log = self.log(log);
        if log.durable.advance(position) {
            LogState::call(&log.durable_hook);
        }
    }

    /// Replication: head `head` of `log` is open with its digest on all replicas, and the head
    /// before it is durably closed. So recovery will go by this digest: what it does not list any
    /// more is freed (LOG-4). To be called once for each head, in their order.
    pub fn digest_durable(&self, log: LogId, head: SegmentId) {
        let log = self.log(log);
        self.drop_published(&mut log.members(), head);
        LogState::call(&log.durable_hook);
    }

    /// Replication: the segments opened since the last call, heads and side segments, in the order
    /// of their ids. Those that were freed meanwhile are left out.
    #[must_use]
    pub fn take_new_segments(&self, log: LogId) -> Vec<Arc<Segment>> {
        let mut queue = self.log(log).queue();
        queue.drain(..).filter(|s| !s.is_freed()).collect()
    }

    /// Replication: segments that left `log` for good since the last call; their replicas are to be
    /// freed.
    #[must_use]
    pub fn take_freeable(&self, log: LogId) -> Vec<SegmentId> {
        core::mem::take(&mut self.log(log).members().freeable)
    }

    /// The segments of `log` at this moment, oldest id first: what the next digest would list. A
    /// segment may be freed while the caller holds it; its bytes are then gone.
    #[must_use]
    pub fn segments(&self, log: LogId) -> Vec<Arc<Segment>> {
        self.log(log).members().in_log.values().cloned().collect()
    }

    /// Gives the pages of up to `count` free seglets back to the system; returns of how many.
    pub(crate) fn give_pages_back(&self, count: usize) -> usize {
        self.discard(self.pool.take_with_pages(count))
    }

    /// The same for seglets of the cleaners' reserve.
    pub(crate) fn give_reserve_pages_back(&self, count: usize) -> usize {
        self.discard(self.pool.take_reserve_with_pages(count))
    }

    fn discard(&self, seglets: Vec<SegletIndex>) -> usize {
        if seglets.is_empty() {
            return 0;
        }
        for seglet in &seglets {
            self.memory.discard(seglet.0);
        }
        let given = seglets.len();
        self.pool.give_back_blank(seglets);
        given
    }

    // --- segments, slots and seglets -----------------------------------------------------------

    pub(crate) fn next_segment_id(&self) -> SegmentId {
        SegmentId(self.next_segment.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes `count` segment slots and leaves at least `leave` behind.
    pub(crate) fn take_slots(&self, count: usize, leave: usize) -> Option<Vec<u32>> {
        let mut free = self.free_slots();
        let keep = free.len().checked_sub(count)?;
        (keep >= leave).then(|| free.split_off(keep))
    }

    pub(crate) fn give_back_slots(&self, slots: impl IntoIterator<Item = u32>) {
        self.free_slots().extend(slots);
    }

    pub(crate) fn free_slot_count(&self) -> usize {
        self.free_slots().len()
    }

    fn free_slots(&self) -> MutexGuard<'_, Vec<u32>> {
        self.free_slots
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes seglets for a log from the default pool and leaves at least `leave` behind. Reclaims what is
    /// quiesced before it gives up.
    pub(crate) fn take_default(&self, log: LogId, count: usize, leave: usize) -> Option<Vec<u32>> {
        let part = self.log(log).part;
        self.note_growth(count, leave);
        let take = || {
            let class = SegletClass::Default;
            self.may_take(class, count)
                .then(|| self.pool.take_leaving(class, count, leave, part))
                .flatten()
        };
        let seglets = take().or_else(|| {
            self.reclaim();
            take()
        })?;
        Some(seglets.into_iter().map(|s| s.0).collect())
    }

    /// Notes, for the cleaner, whether the appends of late make live data more.
    fn note_growth(&self, count: usize, leave: usize) {
        // The loads keep the line shared: this is once for each seglet.
        let seglets = self.growth_seglets.load(Ordering::Relaxed);
        let now = if leave > self.geometry.delete_reserve {
            self.geometry.segment_seglets
        } else {
            seglets.saturating_sub(count)
        };
        if now != seglets {
            self.growth_seglets.store(now, Ordering::Relaxed);
        }
    }

    /// Whether some of the last seglets, as many as a segment has, were wanted by appends that make live data more: they have to
    /// leave the overwrite reserve alone.
    pub(crate) fn is_growing(&self) -> bool {
        self.growth_seglets.load(Ordering::Relaxed) > 0
    }

    /// Takes seglets for a log from a reserve, and then from the default pool.
    pub(crate) fn take_reserved(
        &self,
        log: LogId,
        class: SegletClass,
        count: usize,
    ) -> Option<Vec<u32>> {
        if !self.may_take(class, count) {
            return None;
        }
        let seglets = self.pool.take(class, count, self.log(log).part)?;
        Some(seglets.into_iter().map(|s| s.0).collect())
    }

    pub(crate) fn give_back(&self, seglets: impl IntoIterator<Item = u32>) {
        self.pool.give_back(seglets.into_iter().map(SegletIndex));
    }

    pub(crate) fn register(&self, segment: &Arc<Segment>) {
        self.disk_bytes
            .fetch_add(u64::from(segment.disk_len()), Ordering::Relaxed);
        let mut on_disk = self.on_disk.write().unwrap_or_else(PoisonError::into_inner);
        let before = on_disk.insert(segment.id(), Arc::clone(segment));
        assert!(
            before.is_none(),
            "LOG-3: two segments have the id {}",
            segment.id()
        );
        self.presence.add(segment.id());
    }

    /// Nothing more is appended to the segment; the log on disk is charged with what it has.
    pub(crate) fn close_segment(&self, segment: &Segment) {
        let (charged, len) = (segment.disk_len(), segment.appended_len());
        segment.set_disk_len(len);
        self.disk_bytes
            .fetch_sub(u64::from(charged - len), Ordering::Relaxed);
        segment.close();
        self.forget_gone_targets(segment);
    }

    /// Counts the segment's tombstones by what is on disk now; from here on, [`Self::drop_segment`] keeps
    /// the counts right.
    pub(crate) fn forget_gone_targets(&self, segment: &Segment) {
        let on_disk = self.on_disk.read().unwrap_or_else(PoisonError::into_inner);
        segment.tombstones().keep(|id| on_disk.contains_key(&id));
    }

    /// Bytes of the log on disk.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.disk_bytes.load(Ordering::Relaxed)
    }

    /// Every segment that exists on disk now.
    pub(crate) fn on_disk(&self) -> BTreeMap<SegmentId, Arc<Segment>> {
        self.on_disk
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Frees what the digests up to `head` dropped.
    pub(crate) fn drop_published(&self, members: &mut Members, head: SegmentId) {
        while members
            .dropped_by
            .front()
            .is_some_and(|(id, _)| *id <= head)
        {
            let (_, dropped) = members.dropped_by.pop_front().expect("looked at");
            for segment in dropped {
                self.drop_segment(members, segment);
            }
        }
    }

    /// The segment is gone from disk: its replicas are freeable and its memory is retired.
    pub(crate) fn drop_segment(&self, members: &mut Members, segment: Arc<Segment>) {
        assert!(
            segment.is_leaving() && !members.in_log.contains_key(&segment.id()),
            "LOG-4: segment {} is freed although the next digest lists it",
            segment.id()
        );
        match self.options.durability {
            Durability::Volatile => {}
            Durability::Replicated => members.freeable.push(segment.id()),
        }
        {
            let mut on_disk = self.on_disk.write().unwrap_or_else(PoisonError::into_inner);
            let was_there = on_disk.remove(&segment.id()).is_some();
            assert!(was_there, "LOG-4: segment {} is freed twice", segment.id());
            self.presence.remove(segment.id(), on_disk.keys().copied());
            for other in on_disk.values() {
                other.tombstones().forget(segment.id());
            }
        }
        self.disk_bytes
            .fetch_sub(u64::from(segment.disk_len()), Ordering::Relaxed);
        segment.set_freed();
        self.retire(Retired::Segment(segment));
    }

    /// Seglets whose entries the index does not refer to any more.
    pub(crate) fn retire_seglets(&self, seglets: Vec<u32>) {
        self.retire(Retired::Seglets(seglets));
    }

    fn retire(&self, retired: Retired) {
        let stamp = self.memory.epochs().retire_epoch();
        self.retired().push((stamp, retired));
    }

    fn retired(&self) -> MutexGuard<'_, Vec<(ReclaimStamp, Retired)>> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives back the memory of dropped segments that nobody can see any more (LOG-5). Returns the
    /// number of seglets.
    pub(crate) fn reclaim(&self) -> usize {
        let ready: Vec<Retired> = {
            let mut retired = self.retired();
            if retired.is_empty() {
                return 0;
            }
            let frontier = self.memory.epochs().frontier();
            let (ready, waiting) = retired
                .drain(..)
                .partition::<Vec<_>, _>(|(stamp, _)| frontier.covers(*stamp));
            *retired = waiting;
            ready.into_iter().map(|(_, retired)| retired).collect()
        };
        let mut count = 0;
        for retired in ready {
            let seglets = match retired {
                Retired::Segment(segment) => {
                    assert!(
                        segment.is_freed(),
                        "LOG-5: segment {} is in the log, and its memory is to be used again",
                        segment.id()
                    );
                    let left = self.memory.clear_live(segment.slot(), segment.log());
                    assert!(
                        left == 0 || !segment.is_cleaned(),
                        "CLEAN-7: {left} bytes of segment {} are counted as live although it was cleaned",
                        segment.id()
                    );
                    self.give_back_slots([segment.slot()]);
                    segment.take_seglets()
                }
                Retired::Seglets(seglets) => seglets,
            };
            count += seglets.len();
            self.give_back(seglets);
        }
        count
    }

    /// Seglets of segments that are out of the log but not free yet.
    pub(crate) fn seglets_on_their_way(&self) -> usize {
        let mut count: usize = self.retired().iter().map(|(_, r)| r.seglet_count()).sum();
        for log in &self.logs {
            let members = log.members();
            let dropped = members.dropped_by.iter().flat_map(|(_, segments)| segments);
            count += members
                .leaving
                .iter()
                .chain(dropped)
                .map(|s| s.seglet_count())
                .sum::<usize>();
        }
        count
    }

    /// Live object bytes of the whole space.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.memory.live_of_logs()
    }

    /// Numbers for metrics.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        let on_disk = self.on_disk();
        let free = self.pool.free();
        let bytes = |seglets: usize| (seglets * SEGLET_BYTES) as u64;
        LogStats {
            memory_bytes: bytes(self.geometry.seglets),
            table_bytes: self.memory.table_bytes(),
            live_bytes: self.live_bytes(),
            live_bytes_max: self.geometry.live_bytes_max,
            log_bytes: on_disk.values().map(|s| u64::from(s.appended_len())).sum(),
            disk_bytes: self.disk_bytes(),
            disk_bytes_max: self.geometry.disk_bytes_max,
            free_bytes: bytes(free.default as usize),
            reserve_free_bytes: bytes((free.cleaner + free.emergency) as usize),
            resident_bytes: bytes(self.geometry.seglets - self.pool.blank() as usize),
            freeing_bytes: bytes(self.seglets_on_their_way()),
            segments: on_disk.len() as u64,
            segments_max: self.geometry.slots as u64,
            memory_parts: self.options.parts.len().max(1) as u16,
            binding: self.memory.binding(),
            seglets_away: self.pool.taken_away(),
            pins_without_slot: self.memory.epochs().pins_without_slot(),
            cleaner: self.cleaner_counters.read(),
        }
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

impl core::fmt::Debug for LogSpace {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("LogSpace")
            .field("options", &self.options)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
