//! The log space of one master: all of its logs over one memory.
//!
//! Owns the memory, the free seglets and segment slots, and which segments exist. Appending is in
//! `append`, opening heads in `roll`, cleaning in `cleaner`; of the space itself, `reading` has
//! what callers do with entries, `seglets` how memory is taken and given back, and `segments` which
//! segments exist.

mod reading;
mod seglets;
mod segments;

pub(crate) use segments::OnTheirWay;

use crate::cleaner::CleanerCounters;
use crate::durable::{Appended, Durability, Durable, PendingMarks};
use crate::error::{CorruptionHook, OpenError};
use crate::log_state::{Hook, LogState};
use crate::memory::LogMemory;
use crate::options::{Geometry, LogOptions, part_seglets};
use crate::presence::Presence;
use crate::segment::Segment;
use crate::stats::LogStats;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use pluvio_format::TableStats;
use pluvio_memory::{
    EpochGuard, PartIndex, ReclaimStamp, RegionError, Reserves, SegletClass, SegletPool,
};
use pluvio_units::{LogId, LogPosition, ObjectVersion, SEGLET_BYTES, SegmentId};
use segments::Retired;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, RwLock};

/// By so many seconds entries of other servers, whose clocks differ, may be ahead of ours. What is
/// further ahead is a clock that was set back.
const CLOCK_AHEAD_MAX_S: u32 = 60;

/// Tells the sizes of the tables; see [`LogSpace::set_table_stats_source`].
pub type TableStatsSource = Box<dyn Fn() -> TableStats + Send + Sync>;

/// Asked before seglets are taken, for whom and how many; see [`LogSpace::set_seglet_gate`].
pub type SegletGate = Box<dyn Fn(SegletClass, usize) -> bool + Send + Sync>;

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
    /// Live objects were at their limit when a seglet was taken last: what makes them more is
    /// looked at each time.
    pub(crate) at_live_limit: AtomicBool,
    /// Heads opened by appends: how busy the log is.
    pub(crate) heads_filled: AtomicU64,
    safe_version: AtomicU64,
    /// The newest time seen, in seconds; new segments are created "then".
    newest_s: AtomicU32,
    /// By so much the clock was set back, in all.
    clock_behind_s: AtomicU32,
    table_stats: OnceLock<TableStatsSource>,
    marks_given: AtomicBool,
    seglet_gate: OnceLock<SegletGate>,
    pub(crate) corruption_hook: OnceLock<CorruptionHook>,
    /// For so many seglets more that other appends take, memory is kept free for those that make
    /// live data more.
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
            marks_given: AtomicBool::new(false),
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

    /// Begins an operation: what is read or appended under the guard stays where it is until the
    /// guard is dropped. Hold it for microseconds: it stops the reuse of memory.
    #[must_use]
    #[inline(always)]
    pub fn pin(&self) -> EpochGuard<'_> {
        self.memory.epochs().pin()
    }

    /// Whether what is found in this space stays readable under that guard.
    #[must_use]
    #[inline]
    pub fn is_pinned_by(&self, guard: &EpochGuard<'_>) -> bool {
        guard.is_of(self.memory.epochs())
    }

    /// Tells the log the time, in seconds of the cluster; an earlier one than it knows changes
    /// nothing. Appends tell it as well, by their timestamps.
    #[inline]
    pub fn set_time(&self, now_s: u32) {
        // The load keeps the line shared; the time changes once a second.
        if self.newest_s.load(Ordering::Relaxed) < now_s {
            self.newest_s.fetch_max(now_s, Ordering::Relaxed);
        }
    }

    /// Tells the log what the clock of this machine shows. When that was set back, the log's time
    /// goes on from where it was: otherwise all segments would be equally young, and no time would
    /// pass, until the clock has caught up.
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

    /// Raises the safe version to at least `to`: after a delete, to one more than the deleted
    /// version. Call it before the tombstone is appended.
    pub fn raise_safe_version(&self, to: ObjectVersion) {
        self.safe_version.fetch_max(to.0, Ordering::AcqRel);
    }

    /// Sets who tells the table statistics for new heads; only the first call counts. The source is
    /// called while a head is locked: it must not call the log.
    pub fn set_table_stats_source(&self, source: TableStatsSource) {
        let _first_one_counts = self.table_stats.set(source);
    }

    /// Sets who may refuse seglets to appends, heads and the cleaner as if there were none; only
    /// the first call counts. For tests: memory can run out at any moment, and with a gate it does
    /// so at a chosen one. The gate is called while a head or the members of a log are locked: it
    /// must not call the log.
    pub fn set_seglet_gate(&self, gate: SegletGate) {
        let _first_one_counts = self.seglet_gate.set(gate);
    }

    pub(crate) fn table_stats(&self) -> TableStats {
        self.table_stats
            .get()
            .map_or_else(TableStats::default, |s| s())
    }

    /// Sets what is called after every append to `log`, and after a new segment is in its queue: it
    /// should wake the replicator. Only the first call counts.
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

    /// Asks the system for huge pages for all of the log memory; once more, if the options did.
    ///
    /// # Errors
    /// It refuses. The log works without, slower.
    pub fn prefer_huge_pages(&self) -> Result<(), RegionError> {
        self.memory.prefer_huge_pages()
    }

    /// Has the system fetch all of the log memory now, and not page by page as it is used first.
    /// What is never used stays counted as not resident, and is not given back.
    ///
    /// # Errors
    /// It refuses: too little memory, or Linux older than 5.14. The log works without.
    pub fn populate(&self) -> Result<(), RegionError> {
        self.memory.populate()
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
            table_bytes: self
                .memory
                .table_bytes(self.geometry.seglets - self.pool.blank() as usize),
            live_bytes: self.live_bytes(),
            live_bytes_max: self.geometry.live_bytes_max,
            log_bytes: on_disk.values().map(|s| u64::from(s.appended_len())).sum(),
            disk_bytes: self.disk_bytes(),
            disk_bytes_max: self.geometry.disk_bytes_max,
            free_bytes: bytes(free.default as usize),
            reserve_free_bytes: bytes((free.cleaner + free.emergency) as usize),
            resident_bytes: bytes(self.geometry.seglets - self.pool.blank() as usize),
            freeing_bytes: bytes(self.on_their_way().seglets),
            segments: on_disk.len() as u64,
            segments_max: self.geometry.slots as u64,
            memory_parts: self.options.parts.len().max(1) as u16,
            binding: self.memory.binding(),
            seglets_away: self.pool.taken_away(),
            pins_without_slot: self.memory.epochs().pins_without_slot(),
            cleaner: self.cleaner_counters.read(),
        }
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

    /// The right to say what pending marks mean, for the owner of the index over this space; `None`
    /// when it was given away before (DURABLE-1).
    #[must_use]
    pub fn pending_marks(&self) -> Option<PendingMarks> {
        let given = self.marks_given.swap(true, Ordering::Relaxed);
        (!given).then(PendingMarks::new)
    }

    /// The proof that `appended` is durable.
    ///
    /// # Errors
    /// Gives `appended` back when it is not durable yet: try again after the durable hook.
    pub fn confirm<T>(&self, appended: Appended<T>) -> Result<Durable<T>, Appended<T>> {
        if appended
            .waits()
            .all(|(log, position)| self.is_durable(log, position))
        {
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
