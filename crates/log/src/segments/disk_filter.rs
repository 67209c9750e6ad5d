//! Which segments are on disk, for writers: without a lock.
//!
//! A table of cells, each for the ids that are equal in their last bits. It is written under the
//! lock of the map of all segments, which it follows. A reader needs no lock, and asks the map when
//! a cell cannot tell.
//!
//! - A segment that is on disk is never taken for gone. A caller that asks for one has its id from
//!   an object that was appended after the segment was registered. From then on until it is
//!   dropped, its cell holds its id or `SEVERAL`. The other error, for a moment after it was
//!   dropped, does no harm.

use core::sync::atomic::{AtomicU64, Ordering};
use pluvio_units::SegmentId;

/// Several segments on disk share the cell.
const SEVERAL: u64 = u64::MAX;
/// Cells for each segment that may be on disk: ids of segments that live long are scattered, and
/// few meet in a cell.
const CELLS_PER_SEGMENT: usize = 4;

/// See the module.
pub(crate) struct DiskFilter {
    /// The id of the one segment on disk with these last bits, 0 for none, or [`SEVERAL`].
    cells: Box<[AtomicU64]>,
}

impl DiskFilter {
    pub(crate) fn new(segments_max: usize) -> Self {
        let cells = (segments_max * CELLS_PER_SEGMENT).next_power_of_two();
        Self {
            cells: (0..cells).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn number(&self, id: SegmentId) -> usize {
        id.0 as usize & (self.cells.len() - 1)
    }

    /// `id` is on disk. Under the map's lock.
    pub(crate) fn add(&self, id: SegmentId) {
        let cell = &self.cells[self.number(id)];
        // Relaxed here and below: see the module. A reader finds no value older than the one its id
        // was registered with: the object that names the id was published after that.
        let alone = cell.load(Ordering::Relaxed) == 0;
        cell.store(if alone { id.0 } else { SEVERAL }, Ordering::Relaxed);
    }

    /// `id` is gone; `left` gives what is on disk. Under the map's lock.
    pub(crate) fn remove<I>(&self, id: SegmentId, left: impl FnOnce() -> I)
    where
        I: Iterator<Item = SegmentId>,
    {
        let number = self.number(id);
        let cell = &self.cells[number];
        if cell.load(Ordering::Relaxed) == id.0 {
            // It was alone there.
            cell.store(0, Ordering::Relaxed);
            return;
        }
        let mut sharing = left().filter(|other| self.number(*other) == number);
        let now = match (sharing.next(), sharing.next()) {
            (None, _) => 0,
            (Some(one), None) => one.0,
            (Some(_), Some(_)) => SEVERAL,
        };
        cell.store(now, Ordering::Relaxed);
    }

    /// Whether `id` is on disk; `None` when only the map can tell.
    #[inline]
    pub(crate) fn has(&self, id: SegmentId) -> Option<bool> {
        match self.cells[self.number(id)].load(Ordering::Relaxed) {
            SEVERAL => None,
            one => Some(one == id.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn cells_follow_the_map_through_collisions() {
        let filter = DiskFilter::new(2);
        assert_eq!(filter.cells.len(), 8);
        let mut map = BTreeSet::new();
        let steps = [1, 9, 17, 2, 10, 3];
        let check = |map: &BTreeSet<u64>| {
            for id in 1..30 {
                let expected = map.contains(&id);
                let told = filter.has(SegmentId(id));
                assert_eq!(told.unwrap_or(expected), expected, "{id}");
            }
        };
        for id in steps {
            map.insert(id);
            filter.add(SegmentId(id));
            check(&map);
        }
        assert_eq!(filter.has(SegmentId(9)), None);
        assert_eq!(filter.has(SegmentId(3)), Some(true));
        for id in [9, 1, 2, 17, 3, 10] {
            map.remove(&id);
            filter.remove(SegmentId(id), || map.iter().copied().map(SegmentId));
            check(&map);
        }
        assert!((1..30).all(|id| filter.has(SegmentId(id)) == Some(false)));
    }
}
