//! Which segments exist, from their opening until their memory is used again.
//!
//! - LOG-3: segment ids ascend over all logs of the master and are never used twice.
//! - LOG-4: a segment exists on disk from its opening until a digest that does not list it is
//!   durable and all older heads are durably closed; only then are its replicas and its memory
//!   freed.
//! - LOG-5: freed memory is used again only when every guard taken before has been dropped.

use super::LogSpace;
use crate::durable::Durability;
use crate::log_state::Members;
use crate::segment::Segment;
use core::sync::atomic::Ordering;
use pluvio_memory::ReclaimStamp;
use pluvio_units::SegmentId;
use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};

/// What segments that are out of the log take until they are gone for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct OnTheirWay {
    pub seglets: usize,
    pub slots: usize,
    /// Bytes of the log on disk: of those that a durable digest lists.
    pub disk_bytes: u64,
}

/// Memory out of the log that a guard may still protect.
pub(super) enum Retired {
    /// All of a segment.
    Segment(Arc<Segment>),
    /// What a segment was made of before it was compacted.
    Seglets(Vec<u32>),
}

impl Retired {
    fn add_to(&self, way: &mut OnTheirWay) {
        match self {
            Self::Segment(segment) => {
                way.seglets += segment.seglet_count();
                way.slots += 1;
            }
            Self::Seglets(seglets) => way.seglets += seglets.len(),
        }
    }
}

impl LogSpace {
    pub(crate) fn next_segment_id(&self) -> SegmentId {
        SegmentId(self.next_segment.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn register(&self, segment: &Arc<Segment>) {
        self.disk_bytes
            .fetch_add(u64::from(segment.disk_len()), Ordering::Relaxed);
        let mut on_disk = self.on_disk.write().unwrap_or_else(PoisonError::into_inner);
        let before = on_disk.insert(segment.id(), Arc::clone(segment));
        assert!(
            before.is_none(),
            "LOG-3: two segments have the id {}",
            segment.id()
        );
        self.presence.add(segment.id());
    }

    /// Nothing more is appended to the segment; the log on disk is charged with what it has.
    pub(crate) fn close_segment(&self, segment: &Segment) {
        let (charged, len) = (segment.disk_len(), segment.appended_len());
        segment.set_disk_len(len);
        self.disk_bytes
            .fetch_sub(u64::from(charged - len), Ordering::Relaxed);
        segment.close();
        self.forget_gone_targets(segment);
    }

    /// Counts the segment's tombstones by what is on disk now; from here on, [`Self::drop_segment`]
    /// keeps the counts right.
    pub(crate) fn forget_gone_targets(&self, segment: &Segment) {
        let on_disk = self.on_disk.read().unwrap_or_else(PoisonError::into_inner);
        segment.tombstones().keep(|id| on_disk.contains_key(&id));
    }

    /// Bytes of the log on disk.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.disk_bytes.load(Ordering::Relaxed)
    }

    /// Every segment that exists on disk now.
    pub(crate) fn on_disk(&self) -> BTreeMap<SegmentId, Arc<Segment>> {
        self.on_disk
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Frees what the digests up to `head` dropped.
    pub(crate) fn drop_published(&self, members: &mut Members, head: SegmentId) {
        while members
            .dropped_by
            .front()
            .is_some_and(|(id, _)| *id <= head)
        {
            let (_, dropped) = members.dropped_by.pop_front().expect("looked at");
            for segment in dropped {
                self.drop_segment(members, segment);
            }
        }
    }

    /// The segment is gone from disk: its replicas are freeable and its memory is retired.
    pub(crate) fn drop_segment(&self, members: &mut Members, segment: Arc<Segment>) {
        assert!(
            segment.is_leaving() && !members.in_log.contains_key(&segment.id()),
            "LOG-4: segment {} is freed although the next digest lists it",
            segment.id()
        );
        match self.options.durability {
            Durability::Volatile => {}
            Durability::Replicated => members.freeable.push(segment.id()),
        }
        {
            let mut on_disk = self.on_disk.write().unwrap_or_else(PoisonError::into_inner);
            let was_there = on_disk.remove(&segment.id()).is_some();
            assert!(was_there, "LOG-4: segment {} is freed twice", segment.id());
            self.presence.remove(segment.id(), on_disk.keys().copied());
            for other in on_disk.values() {
                other.tombstones().forget(segment.id());
            }
        }
        self.disk_bytes
            .fetch_sub(u64::from(segment.disk_len()), Ordering::Relaxed);
        segment.set_freed();
        self.retire(Retired::Segment(segment));
    }

    /// Seglets whose entries the index does not refer to any more.
    pub(crate) fn retire_seglets(&self, seglets: Vec<u32>) {
        self.retire(Retired::Seglets(seglets));
    }

    fn retire(&self, retired: Retired) {
        let stamp = self.memory.epochs().retire_epoch();
        self.retired().push((stamp, retired));
    }

    fn retired(&self) -> MutexGuard<'_, Vec<(ReclaimStamp, Retired)>> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives back the memory of dropped segments that nobody can see any more (LOG-5). Returns the
    /// number of seglets.
    pub(crate) fn reclaim(&self) -> usize {
        let ready: Vec<Retired> = {
            let mut retired = self.retired();
            if retired.is_empty() {
                return 0;
            }
            let frontier = self.memory.epochs().frontier();
            let (ready, waiting) = retired
                .drain(..)
                .partition::<Vec<_>, _>(|(stamp, _)| frontier.covers(*stamp));
            *retired = waiting;
            ready.into_iter().map(|(_, retired)| retired).collect()
        };
        let mut count = 0;
        for retired in ready {
            let seglets = match retired {
                Retired::Segment(segment) => {
                    assert!(
                        segment.is_freed(),
                        "LOG-5: segment {} is in the log, and its memory is to be used again",
                        segment.id()
                    );
                    let left = self.memory.clear_live(segment.slot(), segment.log());
                    assert!(
                        left == 0 || !segment.is_cleaned(),
                        "CLEAN-7: {left} bytes of segment {} are counted as live although it was cleaned",
                        segment.id()
                    );
                    self.give_back_slots([segment.slot()]);
                    segment.take_seglets()
                }
                Retired::Seglets(seglets) => seglets,
            };
            count += seglets.len();
            self.give_back(seglets);
        }
        count
    }

    /// What is out of the log but not free yet.
    pub(crate) fn on_their_way(&self) -> OnTheirWay {
        let mut way = OnTheirWay::default();
        for (_, retired) in self.retired().iter() {
            retired.add_to(&mut way);
        }
        for log in &self.logs {
            let members = log.members();
            let dropped = members.dropped_by.iter().flat_map(|(_, segments)| segments);
            for segment in members.leaving.iter().chain(dropped) {
                way.seglets += segment.seglet_count();
                way.slots += 1;
                way.disk_bytes += u64::from(segment.disk_len());
            }
        }
        way
    }
}
