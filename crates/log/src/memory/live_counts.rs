//! Live object bytes, by segment slot and in all.

use core::sync::atomic::{AtomicI64, Ordering};
use pluvio_units::LogId;

/// Live object bytes as counted by the threads that append to one log. Each core has counters of
/// its own, so that no line of them bounces between cores. Only sums mean something: what one core
/// appended, another one may count as dead. Signed: the dead may be counted before the living when
/// threads race.
#[repr(align(64))]
struct Counts {
    total: AtomicI64,
    of_slot: Box<[AtomicI64]>,
}

/// See the module.
pub(crate) struct LiveCounts {
    /// One for each log. Without replicas, behind those one more for each, which changes only under
    /// the lock of the log's head, and so without locked instructions.
    counts: Box<[Counts]>,
    logs: usize,
}

impl LiveCounts {
    /// With `locked`, counters that change under the locks of heads as well.
    pub(crate) fn new(logs: u16, slots: usize, locked: bool) -> Self {
        let counts = || Counts {
            total: AtomicI64::default(),
            of_slot: (0..slots).map(|_| AtomicI64::default()).collect(),
        };
        let logs = usize::from(logs);
        Self {
            counts: (0..logs * (1 + usize::from(locked)))
                .map(|_| counts())
                .collect(),
            logs,
        }
    }

    /// Counts `bytes` more live object bytes in a slot; `by` is the log that the counting thread
    /// appends to.
    #[inline]
    pub(crate) fn add(&self, slot: u32, by: LogId, bytes: i64) {
        let counts = &self.counts[usize::from(by.0)];
        // Relaxed: statistics; decisions by them tolerate being a little behind.
        counts.of_slot[slot as usize].fetch_add(bytes, Ordering::Relaxed);
        counts.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts `new` bytes more in one slot and `old` bytes fewer in another. The caller has the
    /// lock of the head of `by`. Nobody can clear the slots: one is open, and a guard of the caller
    /// is older than the end of the other.
    #[inline(always)]
    pub(crate) fn exchange_locked(&self, by: LogId, new: (u32, u32), old: (u32, u32)) {
        let counts = &self.counts[self.logs + usize::from(by.0)];
        // Relaxed, and in two steps: nobody else stores to these.
        let add = |count: &AtomicI64, more: i64| {
            count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        };
        let (more, less) = (i64::from(new.1), i64::from(old.1));
        add(&counts.of_slot[new.0 as usize], more);
        add(&counts.of_slot[old.0 as usize], -less);
        if more != less {
            add(&counts.total, more - less);
        }
    }

    /// Counts `bytes` more in a slot. As [`Self::exchange_locked`].
    #[inline(always)]
    pub(crate) fn add_locked(&self, by: LogId, slot: u32, bytes: i64) {
        let counts = &self.counts[self.logs + usize::from(by.0)];
        for count in [&counts.of_slot[slot as usize], &counts.total] {
            count.store(count.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
        }
    }

    /// Counts live object bytes that came to, or went from, another segment; `by` is the log of the
    /// counting cleaner.
    pub(crate) fn add_moved(&self, slot: u32, by: LogId, bytes: i64) {
        self.counts[usize::from(by.0)].of_slot[slot as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Live object bytes of a segment.
    pub(crate) fn of_slot(&self, slot: u32) -> u64 {
        let of_slot = |counts: &Counts| counts.of_slot[slot as usize].load(Ordering::Relaxed);
        let live: i64 = self.counts.iter().map(of_slot).sum();
        u64::try_from(live).unwrap_or(0)
    }

    /// Live object bytes of all logs.
    pub(crate) fn of_logs(&self) -> u64 {
        let totals = self.counts.iter().map(|c| c.total.load(Ordering::Relaxed));
        u64::try_from(totals.sum::<i64>()).unwrap_or(0)
    }

    /// Forgets what is still counted as live in a slot that will be used again, and gives it.
    /// Nobody has a reference into it any more.
    pub(crate) fn clear_slot(&self, slot: u32, log: LogId) -> i64 {
        let of_slot = |counts: &Counts| counts.of_slot[slot as usize].swap(0, Ordering::Relaxed);
        let left = self.counts.iter().map(of_slot).sum();
        self.counts[usize::from(log.0)]
            .total
            .fetch_sub(left, Ordering::Relaxed);
        left
    }

    /// Bytes they take.
    pub(crate) fn bytes(&self) -> u64 {
        let slots = self.counts.iter().map(|counts| counts.of_slot.len());
        (slots.sum::<usize>() * size_of::<AtomicI64>()) as u64
    }
}
