//! The material of segments and their end: memory, seglets, slots, and the map of those that exist.
//!
//! [`Storage`] joins the owners, each with its lock inside. [`SegmentTable`] has ids, slots and the
//! segments on disk, [`Seglets`] free memory and its reserves, [`RetiredList`] memory that readers
//! may still see. Logs open and close their segments through it (`append`), and the cleaner takes
//! survivors from it. It knows no log: which segments a log consists of is in `append`.

mod compare;
#[allow(unsafe_code)] // copies bytes out of log memory
mod contents;
mod disk_filter;
mod naming;
mod retired;
mod seglets;
mod segment;
pub(crate) mod state;
mod table;
mod tombstones;

pub(crate) use compare::{compare_checksums, compare_piece};
pub(crate) use retired::Retired;
pub use seglets::SegletGate;
pub(crate) use seglets::Seglets;
pub use segment::Segment;
pub(crate) use segment::{NewSegment, Purpose};
pub(crate) use state::{Claim, Departure, SegmentState, Use};
pub(crate) use table::SegmentTable;
pub(crate) use tombstones::TombstoneTargets;

use crate::clock::LogClock;
use crate::error::OpenError;
use crate::geometry::{Geometry, part_seglets};
use crate::memory::LogMemory;
use crate::options::LogOptions;
use pluvio_format::{Entry, FORMAT_VERSION, SegmentHeader, SegmentKind};
use pluvio_memory::{PartIndex, SegletClass};
use pluvio_units::{LogId, SegmentId};
use retired::RetiredList;
use std::sync::Arc;

/// The room that segments out of the log take until they are gone for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct OnTheirWay {
    pub seglets: usize,
    pub slots: usize,
    /// Bytes of the log on disk: of those that a durable digest lists.
    pub disk_bytes: u64,
}

/// See the module.
pub(crate) struct Storage {
    pub(crate) options: LogOptions,
    pub(crate) geometry: Geometry,
    pub(crate) memory: Arc<LogMemory>,
    pub(crate) clock: LogClock,
    pub(crate) seglets: Seglets,
    pub(crate) table: SegmentTable,
    retired: RetiredList,
}

impl Storage {
    pub(crate) fn new(options: LogOptions) -> Result<Self, OpenError> {
        let geometry = Geometry::of(&options)?;
        let parts = part_seglets(&options, geometry.seglets);
        let memory = LogMemory::new(&geometry, &options, &parts)?;
        let seglets = Seglets::new(&geometry, &parts);
        seglets.fetch_reserves(&memory)?;
        Ok(Self {
            memory: Arc::new(memory),
            clock: LogClock::new(options.now_s),
            seglets,
            table: SegmentTable::new(geometry.slots.all),
            retired: RetiredList::default(),
            geometry,
            options,
        })
    }

    /// Takes seglets for a log from the default pool and leaves at least `leave` behind. Reclaims
    /// what no reader sees any more before it gives up.
    pub(crate) fn take_default(
        &self,
        part: PartIndex,
        count: usize,
        leave: usize,
    ) -> Option<Vec<u32>> {
        self.seglets.note_growth(count, leave);
        let class = SegletClass::Default;
        let take = || (self.seglets).take(class, count, leave, part, &self.memory);
        take().or_else(|| {
            self.reclaim();
            take()
        })
    }

    /// Takes seglets for a log from a reserve, and then from the default pool: for survivors and
    /// compactions all but what deletes need there.
    pub(crate) fn take_reserved(
        &self,
        part: PartIndex,
        class: SegletClass,
        count: usize,
    ) -> Option<Vec<u32>> {
        let leave = match class {
            SegletClass::Cleaner => self.geometry.reserves.delete,
            SegletClass::Default | SegletClass::Emergency => 0,
        };
        (self.seglets).take(class, count, leave, part, &self.memory)
    }

    /// A slot for a segment of appends, which has to fit the disks of the backups as well
    /// [LSM-DRAM §5.2]. Survivors and emergency heads may go beyond: they make the log shorter
    /// again.
    pub(crate) fn slot_for_appends(&self) -> Option<u32> {
        let with_it = self.table.disk_bytes() + u64::from(self.geometry.segment_bytes());
        if with_it > self.geometry.limits.disk_bytes {
            return None;
        }
        let slot = self.table.take_slots(1, self.geometry.slots.reserve);
        slot.map(|slots| slots[0])
    }

    /// The header of any segment.
    pub(crate) fn segment_header(
        &self,
        log: LogId,
        kind: SegmentKind,
        segment: SegmentId,
        created_s: u32,
    ) -> Entry<'static> {
        Entry::SegmentHeader(SegmentHeader {
            format_version: FORMAT_VERSION,
            cluster: self.options.cluster,
            server: self.options.server,
            log,
            segment,
            kind,
            created_s,
        })
    }

    /// Nothing more is appended to the segment; the log on disk is charged with what it has.
    pub(crate) fn close_segment(&self, segment: &Segment) {
        self.table.charge_closed(segment);
        segment.close(|| self.memory.epochs().retire_epoch());
        self.table.follow_targets(segment);
    }

    /// The segment is gone from disk: its memory is retired.
    pub(crate) fn free_segment(&self, segment: Arc<Segment>) {
        self.table.remove(&segment);
        segment.free();
        self.retire(Retired::Segment(segment));
    }

    /// Nothing points into this memory any more, but readers may see it.
    pub(crate) fn retire(&self, retired: Retired) {
        self.retired.push(retired, self.memory.epochs());
    }

    /// Gives back the memory of dropped segments that nobody can see any more (LOG-5). Returns the
    /// number of seglets.
    pub(crate) fn reclaim(&self) -> usize {
        let mut count = 0;
        for retired in self.retired.take_ready(self.memory.epochs()) {
            let seglets = match retired {
                Retired::Segment(segment) => self.take_apart(&segment),
                Retired::Seglets(seglets) => seglets,
            };
            count += seglets.len();
            self.seglets.give_back(seglets);
        }
        count
    }

    /// Gives the slot of a freed segment back, and takes its seglets.
    fn take_apart(&self, segment: &Segment) -> Vec<u32> {
        let state = segment.state();
        let SegmentState::Freed(why) = state else {
            panic!(
                "LOG-5: segment {} is {state}, and its memory is to be used again",
                segment.id()
            );
        };
        let left = self.memory.live().clear_slot(segment.slot(), segment.log());
        assert!(
            left == 0 || why == Departure::Dropped,
            "CLEAN-7: {left} bytes of segment {} are counted as live although it was cleaned",
            segment.id()
        );
        self.table.give_back_slots([segment.slot()]);
        segment.contents().take()
    }

    /// The room of segments that are out of every digest, but not free yet.
    pub(crate) fn retired(&self) -> OnTheirWay {
        let mut way = OnTheirWay::default();
        self.retired.add_to(&mut way);
        way
    }

    /// Live object bytes of the whole space.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.memory.live().of_logs()
    }

    /// Gives the pages of up to `count` free seglets back to the system; returns of how many.
    pub(crate) fn give_pages_back(&self, count: usize) -> usize {
        self.seglets.give_pages_back(count, &self.memory)
    }

    /// The same for seglets of the cleaners' reserve.
    pub(crate) fn give_reserve_pages_back(&self, count: usize) -> usize {
        self.seglets.give_reserve_pages_back(count, &self.memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::Durability;
    use pluvio_units::Size;

    #[test]
    fn the_cleaner_leaves_deletes_their_seglets() {
        let options = LogOptions {
            logs: 2,
            durability: Durability::Replicated,
            ..LogOptions::new(Size::mib(64))
        };
        let storage = Storage::new(options).expect("enough memory");
        let part = PartIndex(0);
        let (own, kept) = (
            storage.geometry.reserves.cleaner,
            storage.geometry.reserves.delete,
        );
        let free = storage.seglets.free().default as usize;
        assert!(storage.take_default(part, free - kept, kept).is_some());
        let for_cleaner = |count| storage.take_reserved(part, SegletClass::Cleaner, count);
        assert!(for_cleaner(own + 1).is_none());
        assert!(for_cleaner(own).is_some(), "its reserve is its own");
        assert!(for_cleaner(1).is_none());
        assert!(storage.take_default(part, kept, 0).is_some(), "deletes");
    }
}
