//! Which segments exist on disk, the slots that bound their number, and what the log on disk takes.
//!
//! Owns the map of all segments, the free slots and the ids. Its locks are `map` and, under none of
//! them, `free_slots`. Nothing is done under `map` for every segment, since heads are opened under
//! it: which segments name one that goes is known (`naming`).
//!
//! - LOG-3: segment ids ascend over all logs of the master and are never used twice.
//! - LOG-4: a segment exists on disk from its opening until a digest without it is durable and all
//!   older heads are durably closed. Only then are its replicas and its memory freed.

use super::disk_filter::DiskFilter;
use super::naming::Naming;
use super::segment::Segment;
use core::sync::atomic::{AtomicU64, Ordering};
use pluvio_units::SegmentId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[derive(Default)]
struct Map {
    /// Every segment on disk, or that would be there if there were replicas, by its id.
    on_disk: BTreeMap<SegmentId, Arc<Segment>>,
    /// Which closed segments have tombstones that name others.
    naming: Naming,
}

/// See the module.
pub(crate) struct SegmentTable {
    next_id: AtomicU64,
    free_slots: Mutex<Vec<u32>>,
    map: RwLock<Map>,
    /// The ids of the map, for those that have no time for its lock.
    filter: DiskFilter,
    /// Bytes that the map takes on disk, open segments counted as full.
    disk_bytes: AtomicU64,
}

impl SegmentTable {
    pub(crate) fn new(slots: usize) -> Self {
        let count = u32::try_from(slots).expect("slots are counted in 32 bits");
        Self {
            next_id: AtomicU64::new(1),
            free_slots: Mutex::new((0..count).rev().collect()),
            map: RwLock::default(),
            filter: DiskFilter::new(slots),
            disk_bytes: AtomicU64::new(0),
        }
    }

    pub(crate) fn next_id(&self) -> SegmentId {
        SegmentId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    // --- slots -----------------------------------------------------------------------------------

    /// Takes `count` segment slots and leaves at least `leave` behind.
    pub(crate) fn take_slots(&self, count: usize, leave: usize) -> Option<Vec<u32>> {
        let mut free = self.free_slots();
        let keep = free.len().checked_sub(count)?;
        // Nothing is left over by a call that takes nothing.
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

    // --- the map ---------------------------------------------------------------------------------

    /// The segment exists on disk from now on.
    pub(crate) fn add(&self, segment: &Arc<Segment>) {
        self.disk_bytes
            .fetch_add(u64::from(segment.disk_len()), Ordering::Relaxed);
        let mut map = self.write();
        let before = map.on_disk.insert(segment.id(), Arc::clone(segment));
        assert!(
            before.is_none(),
            "LOG-3: two segments have the id {}",
            segment.id()
        );
        self.filter.add(segment.id());
    }

    /// The log on disk is charged with what a closed segment has, and no longer with a full one.
    pub(crate) fn charge_closed(&self, segment: &Segment) {
        let (charged, len) = (segment.disk_len(), segment.appended_len());
        segment.set_disk_len(len);
        self.disk_bytes
            .fetch_sub(u64::from(charged - len), Ordering::Relaxed);
    }

    /// The segment is gone from disk, and the tombstones of closed segments that name it are dead.
    pub(crate) fn remove(&self, segment: &Segment) {
        let mut map = self.write();
        let was_there = map.on_disk.remove(&segment.id()).is_some();
        assert!(was_there, "LOG-4: segment {} is freed twice", segment.id());
        self.filter.remove(segment.id());
        for id in map.naming.take(segment.id()) {
            if let Some(other) = map.on_disk.get(&id) {
                other.tombstones().forget(segment.id());
            }
        }
        drop(map);
        self.disk_bytes
            .fetch_sub(u64::from(segment.disk_len()), Ordering::Relaxed);
    }

    /// Counts the tombstones of a segment by what is on disk now.
    pub(crate) fn forget_gone_targets(&self, segment: &Segment) {
        if segment.tombstones().live_bytes() > 0 {
            let map = self.read();
            let is_there = |id| map.on_disk.contains_key(&id);
            segment.tombstones().keep(is_there, |_| ());
        }
    }

    /// [`Self::forget_gone_targets`] for a segment that gets no more tombstones, or has others now:
    /// from here on, [`Self::remove`] keeps the counts right.
    pub(crate) fn follow_targets(&self, segment: &Segment) {
        if segment.tombstones().live_bytes() == 0 {
            return;
        }
        let mut map = self.write();
        let Map { on_disk, naming } = &mut *map;
        let is_there = |id| on_disk.contains_key(&id);
        segment.tombstones().keep(is_there, |target| {
            naming.add(target, segment.id(), is_there);
        });
    }

    /// Whether the segment is on disk. Never false for one that is and whose id the caller has from
    /// an entry.
    pub(crate) fn contains(&self, id: SegmentId) -> bool {
        self.filter
            .has(id)
            .unwrap_or_else(|| self.read().on_disk.contains_key(&id))
    }

    /// Whether the segment is on disk and `is_so`, which takes no lock. As [`Self::contains`].
    pub(crate) fn has_that(&self, id: SegmentId, is_so: impl FnOnce(&Segment) -> bool) -> bool {
        self.filter.has(id) != Some(false)
            && self
                .read()
                .on_disk
                .get(&id)
                .is_some_and(|found| is_so(found))
    }

    /// How many segments there are on disk, and the bytes that were appended to them.
    pub(crate) fn count(&self) -> (usize, u64) {
        let map = self.read();
        let lens = map.on_disk.values().map(|s| u64::from(s.appended_len()));
        (map.on_disk.len(), lens.sum())
    }

    /// How many segments were opened ever.
    pub(crate) fn opened(&self) -> u64 {
        self.next_id.load(Ordering::Relaxed) - 1
    }

    fn read(&self) -> RwLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the log on disk.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.disk_bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::Durability;
    use crate::options::LogOptions;
    use crate::segments::{Departure, NewSegment, Purpose, Storage};
    use pluvio_format::SegmentKind;
    use pluvio_units::{LogId, Size};

    fn open(storage: &Storage) -> Arc<Segment> {
        let slot = storage.slot_for_appends().expect("there are slots");
        let segment = Arc::new(Segment::new(
            Arc::clone(&storage.memory),
            NewSegment {
                id: storage.table.next_id(),
                log: LogId(0),
                kind: SegmentKind::Side,
                created_s: 0,
                purpose: Purpose::Entries,
                slot,
                durability: Durability::Replicated,
                disk_len: storage.geometry.segment_bytes(),
            },
        ));
        storage.table.add(&segment);
        segment
    }

    #[test]
    fn tombstones_die_when_the_segment_they_name_leaves() {
        let options = LogOptions {
            durability: Durability::Replicated,
            ..LogOptions::new(Size::mib(32))
        };
        let storage = Storage::new(options).expect("enough memory");
        let [first, second, third, fourth] = [(); 4].map(|()| open(&storage));
        for (names, of) in [(&first, &third), (&second, &third), (&first, &fourth)] {
            of.tombstones().add(names.id(), 100);
        }
        let live = |segment: &Segment| segment.tombstones().live_bytes();
        let leave = |segment: &Arc<Segment>| {
            storage.close_segment(segment);
            segment.leave(Departure::Dropped);
            storage.free_segment(Arc::clone(segment));
        };
        storage.close_segment(&third);
        leave(&first);
        assert_eq!((live(&third), live(&fourth)), (100, 100));
        storage.table.forget_gone_targets(&fourth);
        assert_eq!(live(&fourth), 0, "it is open, and was not told");
        fourth.tombstones().add(second.id(), 100);
        storage.close_segment(&fourth);
        let table = &storage.table;
        assert!(table.contains(second.id()) && table.has_that(second.id(), |_| true));
        leave(&second);
        assert!(!table.contains(second.id()) && !table.has_that(second.id(), |_| true));
        assert_eq!((live(&third), live(&fourth)), (0, 0));
    }
}
