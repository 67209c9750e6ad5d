//! Giving memory back to the system: when the store is quiet and its log takes much more than what lives.
//!
//! Nothing here happens on the way of a write, or while memory is short. A store that is being
//! written keeps its memory: what it gave back it would soon have to fetch again, a page fault for
//! every 4 KiB.

use super::{Cleaner, CleanerOptions};
use core::sync::atomic::Ordering;
use pluvio_units::SEGLET_BYTES;

/// Most seglets given back by one step: 4 MiB take some 100 µs.
const SEGLETS_PER_STEP: usize = 64;
/// Steps without anything to clean after which it is looked whether the store is quiet: some 0.2 s of
/// a cleaner that is asked every 2 ms.
const WINDOW_STEPS: u32 = 100;

/// What a cleaner remembers about how busy the store is.
#[derive(Default)]
pub(super) struct PagePolicy {
    steps: u32,
    heads_before: u64,
    /// In the last window no log filled more than a segment.
    quiet: bool,
    /// The log takes too much, and is cleaned until it does not.
    shrinking: bool,
}

impl PagePolicy {
    /// Whether the log is to be cleaned although there is memory.
    pub(super) fn is_shrinking(&self) -> bool {
        self.shrinking
    }
}

/// Bytes of memory for which an action begins or ends.
struct Limits {
    /// Cleaning begins when the log takes more.
    begin: u64,
    /// It ends when it takes no more than this.
    end: u64,
    /// So much free memory is kept.
    keep: u64,
}

impl Limits {
    /// The log may take `waste_percent` more than what lives; a quarter of that again is kept free.
    /// Beside that the open heads, which cannot be cleaned.
    fn of(options: &CleanerOptions, live: u64, heads: u64) -> Option<Self> {
        let waste = live / 100 * u64::from(options.waste_percent?);
        Some(Self {
            begin: live + waste + heads,
            end: live + waste / 2 + heads,
            keep: waste / 4,
        })
    }
}

impl Cleaner {
    /// Looks at the store in a step in which memory was not short.
    pub(super) fn look_at_waste(&self, policy: &mut PagePolicy) {
        let space = &self.space;
        let logs = u64::from(space.options.logs);
        policy.steps += 1;
        if policy.steps >= WINDOW_STEPS {
            let heads = space.heads_filled.load(Ordering::Relaxed);
            policy.quiet = heads - policy.heads_before <= logs;
            (policy.heads_before, policy.steps) = (heads, 0);
        }
        let heads = logs * u64::from(space.geometry.segment_bytes());
        let live = space.live_bytes();
        let Some(limits) = Limits::of(&self.options, live, heads).filter(|_| policy.quiet) else {
            policy.shrinking = false;
            return;
        };
        let free = space.pool.free().total() as usize;
        let taken = ((space.geometry.seglets - free) * SEGLET_BYTES) as u64;
        policy.shrinking = if policy.shrinking {
            taken > limits.end
        } else {
            taken > limits.begin
        };
        let pages = u64::from(space.pool.free_with_pages()) * SEGLET_BYTES as u64;
        if let Some(spare) = pages.checked_sub(limits.keep) {
            let count = (spare as usize / SEGLET_BYTES).min(SEGLETS_PER_STEP);
            let given = (space.give_pages_back(count) * SEGLET_BYTES) as u64;
            self.add(|c| &c.bytes_given_back, given);
        }
    }
}
