//! Segment slots and seglets: taking them for segments, giving them back, and giving pages of free
//! ones back to the system.

use super::LogSpace;
use crate::dead_bits::DeadBits;
use core::sync::atomic::Ordering;
use pluvio_memory::{SegletClass, SegletIndex};
use pluvio_units::LogId;
use std::sync::{MutexGuard, PoisonError};

impl LogSpace {
    /// Takes `count` segment slots and leaves at least `leave` behind.
    pub(crate) fn take_slots(&self, count: usize, leave: usize) -> Option<Vec<u32>> {
        let mut free = self.free_slots();
        let keep = free.len().checked_sub(count)?;
        // Who needs none leaves what there is.
        (count == 0 || keep >= leave).then(|| free.split_off(keep))
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

    /// Takes seglets for a log from the default pool and leaves at least `leave` behind. Reclaims
    /// what is quiesced before it gives up.
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

    /// Whether some of the last seglets, as many as a segment has, were wanted by appends that make
    /// live data more: they have to leave the overwrite reserve alone.
    pub(crate) fn is_growing(&self) -> bool {
        self.growth_seglets.load(Ordering::Relaxed) > 0
    }

    /// Takes seglets for a log from a reserve, and then from the default pool: for survivors and
    /// compactions but what deletes need there.
    pub(crate) fn take_reserved(
        &self,
        log: LogId,
        class: SegletClass,
        count: usize,
    ) -> Option<Vec<u32>> {
        if !self.may_take(class, count) {
            return None;
        }
        let leave = match class {
            SegletClass::Cleaner => self.geometry.delete_reserve,
            SegletClass::Default | SegletClass::Emergency => 0,
        };
        let part = self.log(log).part;
        let seglets = self.pool.take_leaving(class, count, leave, part)?;
        Some(seglets.into_iter().map(|s| s.0).collect())
    }

    pub(crate) fn give_back(&self, seglets: impl IntoIterator<Item = u32>) {
        self.pool.give_back(seglets.into_iter().map(SegletIndex));
    }

    /// Whether the gate lets seglets be taken.
    fn may_take(&self, class: SegletClass, count: usize) -> bool {
        self.seglet_gate.get().is_none_or(|gate| gate(class, count))
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
        let given: Vec<u32> = seglets.iter().map(|seglet| seglet.0).collect();
        self.pool.give_back_blank(seglets);
        for &seglet in &given {
            if self.pool.are_blank(DeadBits::beside(seglet)) {
                self.memory.discard_dead(seglet);
            }
        }
        given.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::Durability;
    use crate::options::LogOptions;
    use pluvio_units::Size;

    #[test]
    fn the_cleaner_leaves_deletes_their_seglets() {
        let options = LogOptions {
            logs: 2,
            durability: Durability::Replicated,
            ..LogOptions::new(Size::mib(64))
        };
        let space = LogSpace::new(options).expect("enough memory");
        let log = LogId(0);
        let (own, kept) = (
            space.geometry.cleaner_reserve,
            space.geometry.delete_reserve,
        );
        let free = space.pool.free().default as usize;
        assert!(space.take_default(log, free - kept, kept).is_some());
        let for_cleaner = |count| space.take_reserved(log, SegletClass::Cleaner, count);
        assert!(for_cleaner(own + 1).is_none());
        assert!(for_cleaner(own).is_some(), "its reserve is its own");
        assert!(for_cleaner(1).is_none());
        assert!(space.take_default(log, kept, 0).is_some(), "deletes");
    }
}
