//! Which segments exist on disk, the slots that bound their number, and what the log on disk takes.
//!
//! Owns the map of all segments, the free slots and the ids. Its locks are `on_disk` and, under
//! none of them, `free_slots`.
//!
//! - LOG-3: segment ids ascend over all logs of the master and are never used twice.
//! - LOG-4: a segment exists on disk from its opening until a digest without it is durable and all
//!   older heads are durably closed. Only then are its replicas and its memory freed.

use super::disk_filter::DiskFilter;
use super::segment::Segment;
use core::sync::atomic::{AtomicU64, Ordering};
use pluvio_units::SegmentId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

/// Every segment on disk, or that would be there if there were replicas, by its id.
pub(crate) type OnDisk = BTreeMap<SegmentId, Arc<Segment>>;

/// See the module.
pub(crate) struct SegmentTable {
    next_id: AtomicU64,
    free_slots: Mutex<Vec<u32>>,
    on_disk: RwLock<OnDisk>,
    /// The ids of `on_disk`, for those that have no time for its lock.
    filter: DiskFilter,
    /// Bytes that `on_disk` takes on disk, open segments counted as full.
    disk_bytes: AtomicU64,
}

impl SegmentTable {
    pub(crate) fn new(slots: usize) -> Self {
        let count = u32::try_from(slots).expect("slots are counted in 32 bits");
        Self {
            next_id: AtomicU64::new(1),
            free_slots: Mutex::new((0..count).rev().collect()),
            on_disk: RwLock::default(),
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
        let mut on_disk = self.on_disk.write().unwrap_or_else(PoisonError::into_inner);
        let before = on_disk.insert(segment.id(), Arc::clone(segment));
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

    /// The segment is gone from disk, and the tombstones that name it are dead.
    pub(crate) fn remove(&self, segment: &Segment) {
        let mut on_disk = self.on_disk.write().unwrap_or_else(PoisonError::into_inner);
        let was_there = on_disk.remove(&segment.id()).is_some();
        assert!(was_there, "LOG-4: segment {} is freed twice", segment.id());
        self.filter.remove(segment.id(), || on_disk.keys().copied());
        for other in on_disk.values() {
            other.tombstones().forget(segment.id());
        }
        drop(on_disk);
        self.disk_bytes
            .fetch_sub(u64::from(segment.disk_len()), Ordering::Relaxed);
    }

    /// Counts the segment's tombstones by what is on disk now; from here on, [`Self::remove`] keeps
    /// the counts right.
    pub(crate) fn forget_gone_targets(&self, segment: &Segment) {
        let on_disk = self.read();
        segment.tombstones().keep(|id| on_disk.contains_key(&id));
    }

    /// Whether the segment is on disk. Never false for one that is and whose id the caller has from
    /// an object.
    pub(crate) fn contains(&self, id: SegmentId) -> bool {
        self.filter
            .has(id)
            .unwrap_or_else(|| self.read().contains_key(&id))
    }

    /// The map as long as the guard lives: the caller takes no other lock meanwhile.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, OnDisk> {
        self.on_disk.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every segment that exists on disk now.
    pub(crate) fn snapshot(&self) -> OnDisk {
        self.read().clone()
    }

    /// Bytes of the log on disk.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.disk_bytes.load(Ordering::Relaxed)
    }
}
