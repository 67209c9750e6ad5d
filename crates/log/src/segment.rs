//! One segment as replication, cleaner and side logs see it.
//!
//! A segment is opened, appended to by its one writer, closed, and later dropped from the log and
//! freed. Its seglets are taken one by one while it grows, so that a head that is closed early or
//! a survivor that is not full wastes less than one seglet.

use crate::memory::LogMemory;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use pluvio_format::SegmentKind;
use pluvio_memory::ReclaimStamp;
use pluvio_units::{LogId, LogPosition, SEGLET_BYTES, SegmentId};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

/// Tombstones of a segment are counted exactly for up to this many segments that they name; what
/// names others is estimated to be alive in the same share. 4 KiB for each segment.
const TARGETS_MAX: usize = 256;

/// How many bytes of tombstones name which segment: so the cleaner knows, without reading them,
/// how many died when that segment left the log.
#[derive(Default, Debug)]
pub(crate) struct TombstoneTargets {
    /// Ascending by segment.
    exact: Vec<(SegmentId, u32)>,
    other: u64,
}

impl TombstoneTargets {
    pub(crate) fn add(&mut self, target: SegmentId, bytes: u32) {
        match self.exact.binary_search_by_key(&target, |t| t.0) {
            Ok(at) => self.exact[at].1 += bytes,
            Err(at) if self.exact.len() < TARGETS_MAX => self.exact.insert(at, (target, bytes)),
            Err(_) => self.other += u64::from(bytes),
        }
    }

    /// Estimated bytes of those whose segment `still_there` knows.
    pub(crate) fn live_bytes(&self, still_there: impl Fn(SegmentId) -> bool) -> u64 {
        let (mut live, mut all) = (0u64, 0u64);
        for &(target, bytes) in &self.exact {
            all += u64::from(bytes);
            if still_there(target) {
                live += u64::from(bytes);
            }
        }
        if all == 0 {
            return self.other;
        }
        live + (u128::from(self.other) * u128::from(live) / u128::from(all)) as u64
    }
}

/// See the module. Shared; the log owns its state.
pub struct Segment {
    id: SegmentId,
    log: LogId,
    kind: SegmentKind,
    created_s: u32,
    /// Opened only to publish a digest: takes no entries and leaves with the next head.
    emergency: bool,
    slot: u32,
    memory: Arc<LogMemory>,
    seglets: RwLock<Vec<u32>>,
    appended: AtomicU32,
    opening: AtomicU32,
    closed: AtomicBool,
    durable: AtomicBool,
    leaving: AtomicBool,
    held: AtomicBool,
    freed: AtomicBool,
    settled: OnceLock<ReclaimStamp>,
    tombstones: Mutex<TombstoneTargets>,
}

/// What a segment is made from.
pub(crate) struct NewSegment {
    pub id: SegmentId,
    pub log: LogId,
    pub kind: SegmentKind,
    pub created_s: u32,
    pub emergency: bool,
    pub slot: u32,
}

impl Segment {
    pub(crate) fn new(memory: Arc<LogMemory>, new: NewSegment) -> Self {
        Self {
            id: new.id,
            log: new.log,
            kind: new.kind,
            created_s: new.created_s,
            emergency: new.emergency,
            slot: new.slot,
            memory,
            seglets: RwLock::new(Vec::new()),
            appended: AtomicU32::new(0),
            opening: AtomicU32::new(0),
            closed: AtomicBool::new(false),
            durable: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            held: AtomicBool::new(false),
            freed: AtomicBool::new(false),
            settled: OnceLock::new(),
            tombstones: Mutex::default(),
        }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> SegmentId {
        self.id
    }

    /// The log it belongs to.
    #[must_use]
    pub fn log(&self) -> LogId {
        self.log
    }

    /// Head or side segment.
    #[must_use]
    pub fn kind(&self) -> SegmentKind {
        self.kind
    }

    /// Seconds of the cluster's time when it was opened.
    #[must_use]
    pub fn created_s(&self) -> u32 {
        self.created_s
    }

    /// Bytes appended. Only grows, always from the end of one group to the end of another, so that
    /// every value is one to certify.
    #[must_use]
    pub fn appended_len(&self) -> u32 {
        // Acquire: pairs with `set_appended`; the bytes below are there.
        self.appended.load(Ordering::Acquire)
    }

    /// Bytes of the first group: for a head its header, digest, statistics and safe version. Until
    /// the head before it is durably closed, replication writes no more of a new head than this.
    #[must_use]
    pub fn opening_len(&self) -> u32 {
        // Set before anybody else has the segment.
        self.opening.load(Ordering::Relaxed)
    }

    /// The position behind everything appended.
    #[must_use]
    pub fn end(&self) -> LogPosition {
        LogPosition {
            segment: self.id,
            offset: self.appended_len(),
        }
    }

    /// Whether nothing more will be appended. Once true, [`Self::appended_len`] is final.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        // Acquire: pairs with `close`; the last appended length is visible.
        self.closed.load(Ordering::Acquire)
    }

    /// Bytes of memory it takes, in whole seglets.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        (self.seglet_count() * SEGLET_BYTES) as u64
    }

    /// Replication: this side segment is closed and every replica has all of it. Nothing for heads,
    /// whose progress is [`LogSpace::advance_durable`](crate::LogSpace::advance_durable).
    pub fn mark_durable(&self) {
        assert!(
            self.is_closed(),
            "segment {} became durable while open",
            self.id
        );
        // Release: pairs with `is_marked_durable`.
        self.durable.store(true, Ordering::Release);
    }

    /// Copies bytes out for a backup. `None` when the segment was freed meanwhile: then nobody
    /// needs them any more.
    ///
    /// # Panics
    /// When the range is not below [`Self::appended_len`].
    #[must_use]
    pub fn copy_out(&self, range: Range<u32>) -> Option<Vec<u8>> {
        assert!(
            range.start <= range.end && range.end <= self.appended_len(),
            "{range:?} of segment {} is not appended yet",
            self.id
        );
        let guard = self.memory.epochs().pin();
        // SeqCst: the flag was set before the epoch was retired; a guard that does not see it was
        // taken before, so the memory stays while the guard lives.
        if self.freed.load(Ordering::SeqCst) {
            return None;
        }
        let seglets = self.seglets_locked();
        let mut copy = Vec::with_capacity((range.end - range.start) as usize);
        let mut at = range.start as usize;
        while at < range.end as usize {
            let within = at % SEGLET_BYTES;
            let len = (SEGLET_BYTES - within).min(range.end as usize - at);
            // SAFETY: below the appended length, not freed when the guard was taken.
            let bytes = unsafe {
                self.memory
                    .bytes(seglets[at / SEGLET_BYTES], within, len, &guard)
            };
            copy.extend_from_slice(bytes);
            at += len;
        }
        Some(copy)
    }

    pub(crate) fn is_marked_durable(&self) -> bool {
        self.durable.load(Ordering::Acquire)
    }

    pub(crate) fn is_emergency(&self) -> bool {
        self.emergency
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    fn seglets_locked(&self) -> std::sync::RwLockReadGuard<'_, Vec<u32>> {
        // The list is only pushed to: after a panic elsewhere it is still right.
        self.seglets.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn seglet_count(&self) -> usize {
        self.seglets_locked().len()
    }

    pub(crate) fn push_seglet(&self, seglet: u32) {
        self.seglets
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(seglet);
    }

    /// Takes the seglets away, when nobody can see the segment's memory any more.
    pub(crate) fn take_seglets(&self) -> Vec<u32> {
        core::mem::take(&mut *self.seglets.write().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_appended(&self, len: u32) {
        self.appended.store(len, Ordering::Release);
    }

    pub(crate) fn set_opening(&self, len: u32) {
        self.opening.store(len, Ordering::Relaxed);
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// The next digest will not list it.
    pub(crate) fn set_leaving(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// The cleaner must leave it alone, or no longer.
    pub(crate) fn set_held(&self, held: bool) {
        // Set before the segment becomes a member, so whoever finds it among them sees it.
        self.held.store(held, Ordering::Release);
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    pub(crate) fn set_freed(&self) {
        self.freed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_freed(&self) -> bool {
        self.freed.load(Ordering::SeqCst)
    }

    /// The seglets, in their order.
    pub(crate) fn seglet_list(&self) -> Vec<u32> {
        self.seglets_locked().clone()
    }

    pub(crate) fn tombstones(&self) -> MutexGuard<'_, TombstoneTargets> {
        self.tombstones
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The epoch after which no writer can be between append and index update in this segment.
    /// The first call, after the segment was closed, asks `stamp` for it.
    pub(crate) fn settled(&self, stamp: impl FnOnce() -> ReclaimStamp) -> ReclaimStamp {
        *self.settled.get_or_init(stamp)
    }
}

impl core::fmt::Debug for Segment {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Segment")
            .field("id", &self.id)
            .field("log", &self.log)
            .field("kind", &self.kind)
            .field("appended", &self.appended_len())
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tombstones_die_with_the_segment_they_name() {
        let mut targets = TombstoneTargets::default();
        for id in 1..=300u64 {
            targets.add(SegmentId(id), 100);
            targets.add(SegmentId(id), 20);
        }
        assert_eq!(targets.live_bytes(|_| true), 300 * 120);
        assert_eq!(targets.live_bytes(|_| false), 0);
        let half = targets.live_bytes(|id| id.0 % 2 == 0);
        assert_eq!(
            half,
            150 * 120,
            "those beyond the limit are estimated by the others"
        );
    }
}
