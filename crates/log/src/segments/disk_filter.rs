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
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Several segments on disk share the cell.
const SEVERAL: u64 = u64::MAX;
/// Cells for each segment that may be on disk: ids of segments that live long are scattered, and
/// few meet in a cell.
const CELLS_PER_SEGMENT: usize = 4;

/// See the module.
pub(crate) struct DiskFilter {
    /// The id of the one segment on disk with these last bits, 0 for none, or [`SEVERAL`].
    cells: Box<[AtomicU64]>,
    /// The ids of the cells with several, for [`Self::remove`].
    shared: Mutex<BTreeMap<usize, Vec<SegmentId>>>,
}

impl DiskFilter {
    pub(crate) fn new(segments_max: usize) -> Self {
        let cells = (segments_max * CELLS_PER_SEGMENT).next_power_of_two();
        Self {
            cells: (0..cells).map(|_| AtomicU64::new(0)).collect(),
            shared: Mutex::default(),
        }
    }

    fn number(&self, id: SegmentId) -> usize {
        id.0 as usize & (self.cells.len() - 1)
    }

    /// `id` is on disk. Under the map's lock.
    pub(crate) fn add(&self, id: SegmentId) {
        let number = self.number(id);
        let cell = &self.cells[number];
        // Relaxed here and below: see the module. A reader finds no value older than the one its id
        // was registered with: the object that names the id was published after that.
        match cell.load(Ordering::Relaxed) {
            0 => return cell.store(id.0, Ordering::Relaxed),
            SEVERAL => {}
            one => {
                self.shared().insert(number, vec![SegmentId(one)]);
                cell.store(SEVERAL, Ordering::Relaxed);
            }
        }
        self.shared().entry(number).or_default().push(id);
    }

    /// `id` is gone. Under the map's lock.
    pub(crate) fn remove(&self, id: SegmentId) {
        let number = self.number(id);
        let cell = &self.cells[number];
        if cell.load(Ordering::Relaxed) == id.0 {
            // It was alone there.
            cell.store(0, Ordering::Relaxed);
            return;
        }
        let mut shared = self.shared();
        let Some(sharing) = shared.get_mut(&number) else {
            return;
        };
        sharing.retain(|other| *other != id);
        if let [one] = sharing.as_slice() {
            cell.store(one.0, Ordering::Relaxed);
            shared.remove(&number);
        }
    }

    fn shared(&self) -> MutexGuard<'_, BTreeMap<usize, Vec<SegmentId>>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
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
            filter.remove(SegmentId(id));
            check(&map);
        }
        assert!((1..30).all(|id| filter.has(SegmentId(id)) == Some(false)));
        assert!(filter.shared().is_empty());
    }
}
