//! The state that all parts of the cleaner share: the log space, its owner's view of live entries,
//! and the options. Also the work of passes on heads and digests.

use super::balance::Balance;
use super::entries::{Mover, Scanner};
use super::lists::Lists;
use super::looks::Turn;
use super::pages::PagesGivenBack;
use super::{CleanerCounters, CleanerOptions, Liveness};
use crate::append::{LogState, SIDE_HEADER_BYTES, current};
use crate::durable::Durability;
use crate::geometry::HEAD_DEAD_SEGLETS;
use crate::memory::LogMemory;
use crate::segments::{Segment, Storage};
use crate::space::LogSpace;
use core::sync::atomic::{AtomicU64, Ordering};
use pluvio_units::{LogId, LogPosition, SEGLET_BYTES};
use std::sync::Arc;

/// See the module.
pub(super) struct Shared {
    pub(super) space: Arc<LogSpace>,
    pub(super) liveness: Arc<dyn Liveness>,
    pub(super) options: CleanerOptions,
    pub(super) lists: Lists,
    pub(super) turn: Turn,
    pub(super) given_back: PagesGivenBack,
}

impl Shared {
    pub(super) fn storage(&self) -> &Storage {
        self.space.storage()
    }

    pub(super) fn memory(&self) -> &LogMemory {
        self.space.memory()
    }

    /// How the store stands now.
    pub(super) fn balance(&self) -> Balance<'_> {
        Balance::of(self)
    }

    /// Reads segments.
    pub(super) fn scanner(&self) -> Scanner<'_> {
        Scanner::new(self.memory(), &*self.liveness)
    }

    /// Copies what lives.
    pub(super) fn mover(&self) -> Mover<'_> {
        Mover::new(self.memory(), &*self.liveness)
    }

    pub(super) fn add(&self, counter: impl FnOnce(&CleanerCounters) -> &AtomicU64, by: u64) {
        counter(&self.space.cleaner_counters).fetch_add(by, Ordering::Relaxed);
    }

    pub(super) fn live_bytes(&self, segment: &Segment) -> u64 {
        let objects = self.memory().live().of_slot(segment.slot());
        objects + segment.tombstones().live_bytes() + SIDE_HEADER_BYTES as u64
    }

    /// Opens a head in every log with a digest to be published.
    pub(super) fn publish(&self) {
        for log in self.space.heads.logs() {
            let due = {
                let members = log.members();
                members.unpublished && !members.leaving.is_empty()
            };
            if due {
                // Refused when both emergency heads of this log are in use. The digest of one of
                // them must become durable first; then a later step comes here again.
                let _tried_again_later = self.space.roll(log.id);
            }
        }
    }

    /// Dead entries in a head cannot be collected. When nothing else is left, the head with most of
    /// them is closed, if these are some seglets and `percent` of what it takes. Returns whether
    /// one was.
    pub(super) fn close_emptiest_head(&self, percent: u32) -> bool {
        let dead_of = |log: &LogState| {
            let segment = Arc::clone(current(&mut log.head()).segment());
            // Open segments are not told what leaves.
            self.storage().table.forget_gone_targets(&segment);
            let (all, live) = (segment.memory_bytes(), self.live_bytes(&segment));
            let dead = all.saturating_sub(live);
            let is_enough = dead >= (HEAD_DEAD_SEGLETS * SEGLET_BYTES) as u64
                && dead * 100 >= all * u64::from(percent);
            is_enough.then_some((dead, log.id))
        };
        let best = self.space.heads.logs().iter().filter_map(dead_of).max();
        // Refused when both emergency heads of this log are in use, or when the last slots are
        // kept: a later step comes here again.
        best.is_some_and(|(_, log)| self.space.roll(log).is_ok())
    }

    /// The ends of all logs. Whatever made an entry dead whose liveness was decided before lies
    /// before them (CLEAN-2).
    pub(super) fn end_positions(&self) -> Vec<(LogId, LogPosition)> {
        let logs = self.space.logs();
        logs.map(|log| (log, self.space.end_position(log)))
            .collect()
    }

    /// Whether all logs are durable up to these positions.
    pub(super) fn are_durable(&self, positions: &[(LogId, LogPosition)]) -> bool {
        match self.storage().options.durability {
            Durability::Volatile => true,
            Durability::Replicated => positions
                .iter()
                .all(|(log, position)| self.space.is_durable(*log, *position)),
        }
    }
}
