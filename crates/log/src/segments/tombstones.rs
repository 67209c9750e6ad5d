//! How many bytes of a segment are tombstones that are needed: those that name a segment on disk.
//!
//! The cleaner knows so, without reading them, how many died when a segment left the log.

use core::sync::atomic::{AtomicU64, Ordering};
use pluvio_units::SegmentId;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tombstones of a segment are counted exactly for up to this many segments that they name. Those
/// that name others are estimated to be alive in the same share. 4 KiB for each segment.
const TARGETS_MAX: usize = 256;

/// How many bytes of tombstones name which segment that is on disk.
#[derive(Default, Debug)]
pub(crate) struct TombstoneTargets {
    /// Ascending by segment.
    exact: Vec<(SegmentId, u32)>,
    /// The sum of what `exact` has counted since the segment was opened.
    exact_ever: u64,
    /// What it counts.
    exact_live: u64,
    other: u64,
}

impl TombstoneTargets {
    pub(crate) fn add(&mut self, target: SegmentId, bytes: u32) {
        let Err(at) = self.exact.binary_search_by_key(&target, |t| t.0).map(|at| {
            self.exact[at].1 += bytes;
        }) else {
            self.count(bytes);
            return;
        };
        if self.exact.len() < TARGETS_MAX {
            self.exact.insert(at, (target, bytes));
            self.count(bytes);
        } else {
            self.other += u64::from(bytes);
        }
    }

    fn count(&mut self, bytes: u32) {
        self.exact_ever += u64::from(bytes);
        self.exact_live += u64::from(bytes);
    }

    /// Segment `target` has left the disk.
    fn forget(&mut self, target: SegmentId) {
        if let Ok(at) = self.exact.binary_search_by_key(&target, |t| t.0) {
            let (_, bytes) = self.exact.remove(at);
            self.exact_live -= u64::from(bytes);
        }
    }

    /// Forgets what names segments that are not there, and gives the others to `kept`.
    fn keep(&mut self, is_there: impl Fn(SegmentId) -> bool, kept: impl FnMut(SegmentId)) {
        self.exact.retain(|(target, _)| is_there(*target));
        self.exact.iter().map(|(target, _)| *target).for_each(kept);
        self.exact_live = self.exact.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
    }

    /// Bytes of tombstones whose segment is there, partly estimated.
    fn live_bytes(&self) -> u64 {
        if self.other == 0 || self.exact_ever == 0 {
            return self.exact_live + self.other;
        }
        let share = u128::from(self.other) * u128::from(self.exact_live);
        self.exact_live + (share / u128::from(self.exact_ever)) as u64
    }
}

/// The tombstones of a segment, changed under a lock. Their live bytes are read without it, since
/// each choice of the cleaner reads those of all segments.
#[derive(Default, Debug)]
pub(crate) struct Tombstones {
    targets: Mutex<TombstoneTargets>,
    live_bytes: AtomicU64,
}

impl Tombstones {
    /// Counts a tombstone that was appended.
    pub(crate) fn add(&self, target: SegmentId, bytes: u32) {
        self.change(|targets| targets.add(target, bytes));
    }

    /// Segment `target` has left the disk.
    pub(crate) fn forget(&self, target: SegmentId) {
        if self.live_bytes() > 0 {
            self.change(|targets| targets.forget(target));
        }
    }

    /// Forgets what names segments that are not there, and gives the segments that others name to
    /// `kept`. Those beyond the limit are not among them.
    pub(crate) fn keep(&self, is_there: impl Fn(SegmentId) -> bool, kept: impl FnMut(SegmentId)) {
        self.change(|targets| targets.keep(is_there, kept));
    }

    /// The segment has these after a compaction.
    pub(crate) fn replace(&self, by: TombstoneTargets) {
        self.change(|targets| *targets = by);
    }

    /// Bytes of tombstones whose segment is there, partly estimated.
    pub(crate) fn live_bytes(&self) -> u64 {
        // Relaxed: statistics; a choice tolerates being a little behind.
        self.live_bytes.load(Ordering::Relaxed)
    }

    fn change(&self, change: impl FnOnce(&mut TombstoneTargets)) {
        let mut targets = self.lock();
        change(&mut targets);
        // Relaxed: stored under the lock, so by one thread after the other.
        self.live_bytes
            .store(targets.live_bytes(), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, TombstoneTargets> {
        // Only counts: after a panic elsewhere they are a little wrong at worst.
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tombstones_die_with_the_segment_they_name() {
        let tombstones = Tombstones::default();
        for id in 1..=300u64 {
            tombstones.add(SegmentId(id), 100);
            tombstones.add(SegmentId(id), 20);
        }
        assert_eq!(tombstones.live_bytes(), 300 * 120);
        for id in (1..=300u64).step_by(2) {
            tombstones.forget(SegmentId(id));
        }
        assert_eq!(
            tombstones.live_bytes(),
            150 * 120,
            "those beyond the limit are estimated by the others"
        );
        tombstones.keep(|_| false, |_| ());
        assert_eq!(tombstones.live_bytes(), 0);
    }
}
