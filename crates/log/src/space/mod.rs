//! The log space of one master: all of its logs over one memory. What callers see of it.
//!
//! A facade: it owns [`Heads`] (append, head roll), through these [`Storage`] (memory, seglets,
//! segments), and the cleaner's counters. `entries` has the methods for entries that a caller found
//! or appended, `replication` those for reports about durability. `corruption` acts when memory
//! does not hold what was written to it. `populate` has memory fetched before it is used.
//! `fault_injection` breaks memory, for tests and simulations; the feature of its name compiles it.

mod corruption;
mod entries;
#[cfg(any(test, feature = "fault-injection"))]
mod fault_injection;
mod populate;
mod replication;

pub use populate::Populating;

use crate::append::{AppendClass, EntryRefs, Heads, Hook, OpenHead, TableStatsSource};
use crate::cleaner::CleanerCounters;
use crate::durable::{Appended, Durability};
use crate::error::{AppendError, CorruptionHook, OpenError};
use crate::memory::{LogMemory, ReadableLog};
use crate::options::LogOptions;
use crate::segments::{SegletGate, Storage};
use crate::stats::{CleanerStats, LogStats};
use core::sync::atomic::{AtomicBool, Ordering};
use pluvio_format::{Entry, Object};
use pluvio_memory::{EpochGuard, RegionError, SharedGuard};
use pluvio_units::{
    EntryRef, LOGS_PER_MASTER_MAX, LogId, LogPosition, ObjectVersion, SEGLET_BYTES, UnixMs,
};
use std::sync::{Arc, OnceLock};

/// See the module.
pub struct LogSpace {
    pub(crate) heads: Heads,
    pub(crate) cleaner_counters: CleanerCounters,
    corruption_hook: OnceLock<CorruptionHook>,
    /// Whether the pending marks have an owner.
    marks_given: AtomicBool,
}

impl LogSpace {
    /// Reserves the memory and opens a head in every log.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing was kept.
    pub fn new(options: LogOptions) -> Result<Arc<Self>, OpenError> {
        Ok(Arc::new(Self {
            heads: Heads::new(options)?,
            cleaner_counters: CleanerCounters::default(),
            corruption_hook: OnceLock::new(),
            marks_given: AtomicBool::new(false),
        }))
    }

    /// What segments are made of.
    #[inline(always)]
    pub(crate) fn storage(&self) -> &Storage {
        &self.heads.storage
    }

    #[inline(always)]
    pub(crate) fn memory(&self) -> &LogMemory {
        &self.heads.storage.memory
    }

    /// The logs that have a head, in the order of their ids.
    pub fn logs(&self) -> impl Iterator<Item = LogId> + use<> {
        let count = self.heads.logs().len();
        (0..LOGS_PER_MASTER_MAX).map(LogId).take(count)
    }

    /// All logs that there may be: those that have a head, then spare ones.
    pub fn all_logs(&self) -> impl Iterator<Item = LogId> + use<> {
        (0..self.storage().options.all_logs()).map(LogId)
    }

    /// How many logs have a head from the beginning. Spare ones come behind them.
    #[must_use]
    #[inline]
    pub fn first_logs(&self) -> u16 {
        self.storage().options.logs
    }

    /// Opens a head in the next spare log, and gives its id; `None` when there is none left. Once
    /// that head is durable, [`Self::raise_logs`] is to be called, and a head of another log be
    /// opened. Nothing may be appended to the new log before that one is durable (LOG-17).
    ///
    /// # Errors
    /// [`AppendError::Full`]; retryable, nothing was opened.
    pub fn open_log(&self) -> Result<Option<LogId>, AppendError> {
        self.heads.open_log()
    }

    /// Heads that are opened from now on say that there is this number of logs: recovery then looks
    /// for all of them. The heads of all of them must be durable.
    pub fn raise_logs(&self, to: u16) {
        self.heads.first_group.raise_logs(to);
    }

    /// The number of logs that heads tell ([`Self::raise_logs`]).
    #[must_use]
    pub fn counted_logs(&self) -> u16 {
        self.heads.first_group.logs()
    }

    /// How appends become durable.
    #[must_use]
    #[inline]
    pub fn durability(&self) -> Durability {
        self.storage().options.durability
    }

    /// Begins an operation: what is read or appended under the guard stays where it is until the
    /// guard is dropped. Hold it for microseconds: it stops the reuse of memory.
    #[must_use]
    #[inline(always)]
    pub fn pin(&self) -> EpochGuard<'_> {
        self.memory().epochs().pin()
    }

    /// [`Self::pin`] for what outlives an operation, or goes to another thread. It takes a mutex.
    #[must_use]
    pub fn pin_shared(&self) -> SharedGuard {
        self.memory().epochs().pin_shared()
    }

    /// The parts that other processes map to read it, if the options allow that.
    #[must_use]
    pub fn for_readers(&self) -> Option<ReadableLog<'_>> {
        self.memory().for_readers()
    }

    /// Whether other processes read: retired memory then rests for some milliseconds.
    pub fn foreign_readers(&self, are_there: bool) {
        self.memory().epochs().foreign_readers(are_there);
    }

    /// Whether what is found in this space stays readable under that guard.
    #[must_use]
    #[inline]
    pub fn is_pinned_by(&self, guard: &EpochGuard<'_>) -> bool {
        guard.is_of(self.memory().epochs())
    }

    /// Tells the log the time, in seconds of the cluster; an earlier one than it knows changes
    /// nothing. Appends tell it as well, by their timestamps.
    #[inline]
    pub fn set_time(&self, now_s: u32) {
        self.storage().clock.set(now_s);
    }

    /// The time it knows.
    #[must_use]
    #[inline]
    pub fn time_s(&self) -> u32 {
        self.storage().clock.now_s()
    }

    /// Versions of objects that are new to this master must be at least this. Written to every
    /// head, so that versions grow over delete and re-create even when all traces of the deleted
    /// object are cleaned away.
    #[must_use]
    #[inline]
    pub fn safe_version(&self) -> ObjectVersion {
        self.heads.first_group.safe_version()
    }

    /// Raises the safe version to at least `to`: after a delete, to one more than the deleted
    /// version. Call it before the tombstone is appended.
    #[inline]
    pub fn raise_safe_version(&self, to: ObjectVersion) {
        self.heads.first_group.raise_safe_version(to);
    }

    /// No deadline is judged by a later time, unless this is raised before. 0 where none ever was.
    /// Written to every head.
    #[must_use]
    pub fn horizon(&self) -> UnixMs {
        self.heads.first_group.horizon()
    }

    /// Raises the horizon to at least `to`. Heads that are opened from now on record it.
    pub fn raise_horizon(&self, to: UnixMs) {
        self.heads.first_group.raise_horizon(to);
    }

    /// Sets the source of the table statistics for new heads; only the first call counts. It is
    /// called while a head is locked: it must not call the log.
    pub fn set_table_stats_source(&self, source: TableStatsSource) {
        self.heads.first_group.set_table_stats_source(source);
    }

    /// Sets a gate that may refuse seglets to appends, heads and the cleaner as if there were none;
    /// only the first call counts. For tests: memory can run out at any moment, and with a gate it
    /// does so at a chosen one. The gate is called while a head or the members of a log are locked:
    /// it must not call the log.
    pub fn set_seglet_gate(&self, gate: SegletGate) {
        self.storage().seglets.set_gate(gate);
    }

    /// Sets what is called after every append to `log`, and after a new segment is in its queue: it
    /// should wake the replicator. Only the first call counts.
    pub fn set_append_hook(&self, log: LogId, hook: Hook) {
        let _first_one_counts = self.heads.log(log).append_hook.set(hook);
    }

    /// Sets what is called when more of `log` became durable: it should wake those that wait for
    /// [`LogSpace::confirm`], and the cleaner. Only the first call counts.
    pub fn set_durable_hook(&self, log: LogId, hook: Hook) {
        let _first_one_counts = self.heads.log(log).durable_hook.set(hook);
    }

    /// Replication says whether `log` is stalled ([`LogSpace::is_stalled`]). No log is at first.
    pub fn set_stalled(&self, log: LogId, stalled: bool) {
        let state = self.heads.log(log);
        state.is_stalled.store(stalled, Ordering::Relaxed);
    }

    /// Whether nothing that is appended to `log` becomes durable before a backup has space again.
    /// While so, nothing new should be appended: it would fill the memory. One load.
    #[must_use]
    #[inline]
    pub fn is_stalled(&self, log: LogId) -> bool {
        self.heads.log(log).is_stalled.load(Ordering::Relaxed)
    }

    /// Asks the system for huge pages for all of the log memory; once more, if the options did.
    ///
    /// # Errors
    /// It refuses. The log works without, slower.
    pub fn prefer_huge_pages(&self) -> Result<(), RegionError> {
        self.memory().prefer_huge_pages()
    }

    // --- appending -------------------------------------------------------------------------------

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
    pub fn append(
        &self,
        log: LogId,
        entries: &[Entry<'_>],
        class: AppendClass,
        guard: &EpochGuard<'_>,
    ) -> Result<Appended<EntryRefs>, AppendError> {
        self.heads.append(log, entries, class, guard)
    }

    /// Appends one object: [`Self::append`] for a group of one, by the fast path when it fits the
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
        self.heads.append_object(log, object, class, guard)
    }

    /// The head of a log of a store without replicas, for appends that need nothing but room in the
    /// seglet that it is in ([`OpenHead::exchange`]). `None` when live objects are at their limit,
    /// which other appends than these look at.
    ///
    /// # Panics
    /// When the store has replicas: such entries have no checksum, and nobody is told of them.
    #[inline(always)]
    pub fn open_head(&self, log: LogId) -> Option<OpenHead<'_>> {
        self.heads.open_head(log)
    }

    /// [`Self::open_head`] for a caller that counts and appends nothing. It does not matter whether
    /// live objects are at their limit.
    ///
    /// # Panics
    /// As of [`Self::open_head`].
    #[must_use]
    pub fn lock_head(&self, log: LogId) -> OpenHead<'_> {
        self.heads.lock_head(log)
    }

    /// The end of a log: everything appended before the call is before it.
    #[must_use]
    pub fn end_position(&self, log: LogId) -> LogPosition {
        self.heads.end_position(log)
    }

    /// Opens a new head now, so that its digest tells of every change, even when memory is full.
    /// The commit of a side log and the cleaner need it. So do callers that want a position after
    /// which everything lies in a new segment [RAMCloud §7]. Returns the end of the new head's
    /// first group.
    ///
    /// # Errors
    /// [`AppendError::Full`] when even the emergency reserve is in use; it comes back when the
    /// digest before is durable. Or when nothing leaves with this digest, and the last slots are
    /// kept for those by which segments leave.
    pub fn roll(&self, log: LogId) -> Result<LogPosition, AppendError> {
        self.heads.roll(log)
    }

    // --- numbers ---------------------------------------------------------------------------------

    /// Numbers for metrics.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        let storage = self.storage();
        let (geometry, seglets) = (&storage.geometry, &storage.seglets);
        let (segments, log_bytes) = storage.table.count();
        let (free, resident) = (seglets.free(), geometry.seglets - seglets.blank() as usize);
        let bytes = |seglets: usize| (seglets * SEGLET_BYTES) as u64;
        LogStats {
            memory_bytes: bytes(geometry.seglets),
            table_bytes: storage.memory.table_bytes(resident),
            live_bytes: storage.live_bytes(),
            live_bytes_max: geometry.limits.live_bytes,
            log_bytes,
            disk_bytes: storage.table.disk_bytes(),
            disk_bytes_max: geometry.limits.disk_bytes,
            free_bytes: bytes(free.default as usize),
            reserve_free_bytes: bytes((free.cleaner + free.emergency) as usize),
            resident_bytes: bytes(resident),
            freeing_bytes: bytes(self.heads.on_their_way().seglets),
            segments: segments as u64,
            segments_max: geometry.slots.all as u64,
            memory_parts: storage.options.parts.len().max(1) as u16,
            binding: storage.memory.raw().binding(),
            interleaving: storage.memory.interleaving(),
            seglets_away: seglets.taken_away(),
            pins_without_slot: storage.memory.epochs().pins_without_slot(),
            cleaner: self.cleaner_stats(),
        }
    }

    pub(crate) fn cleaner_stats(&self) -> CleanerStats {
        let heads = &self.heads.counters;
        CleanerStats {
            forced_digests: heads.forced_digests.load(Ordering::Relaxed),
            emergency_heads: heads.emergency_heads.load(Ordering::Relaxed),
            ..self.cleaner_counters.read()
        }
    }
}

impl core::fmt::Debug for LogSpace {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("LogSpace")
            .field("options", &self.storage().options)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
