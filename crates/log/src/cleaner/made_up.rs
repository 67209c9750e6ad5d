//! Segments that are made up: tables and counters, and no byte of log memory. For measuring what a
//! choice among very many costs, and what it is worth. No product code calls it.

use super::{Cleaner, CleanerOptions, Liveness, Shared, Stage, TableLiveness};
use crate::append::LogState;
use crate::error::OpenError;
use crate::options::LogOptions;
use crate::segments::{Departure, NewSegment, Purpose, Segment, Use};
use crate::space::LogSpace;
use core::sync::atomic::Ordering;
use pluvio_format::{Completion, SegmentKind};
use pluvio_memory::SegletClass;
use pluvio_units::{EntryRef, LogId, SEGLET_BYTES, SegmentId, TableId};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

/// A space whose segments were made up, and a cleaner that chooses among them.
pub struct MadeUp {
    cleaner: Cleaner,
    segments: Vec<Arc<Segment>>,
    places: BTreeMap<SegmentId, usize>,
}

/// The segments of a pass that has not begun.
pub struct Chosen {
    segments: Vec<Arc<Segment>>,
    /// What would be copied.
    pub live_bytes: u64,
}

/// Nobody asks about entries: there are none.
struct Nobody;

impl Liveness for Nobody {
    fn table(&self, _: TableId) -> Option<Arc<dyn TableLiveness>> {
        None
    }

    fn needs_completion(&self, _: &Completion, _: EntryRef) -> bool {
        false
    }

    fn relocate_completion(&self, _: &Completion, _: EntryRef, _: EntryRef) -> bool {
        false
    }
}

impl Chosen {
    /// Whether it is a compaction.
    #[must_use]
    pub fn is_compaction(&self) -> bool {
        let compacted = |segment: &Arc<Segment>| segment.uses().get() == Use::Compacting;
        self.segments.iter().all(compacted)
    }

    /// The segments.
    pub fn ids(&self) -> impl Iterator<Item = SegmentId> {
        self.segments.iter().map(|segment| segment.id())
    }
}

impl MadeUp {
    /// A space without segments but for its heads.
    ///
    /// # Errors
    /// As of [`LogSpace::new`].
    pub fn new(options: LogOptions, cleaner: CleanerOptions) -> Result<Self, OpenError> {
        let space = LogSpace::new(options)?;
        Ok(Self {
            cleaner: Cleaner::new(space, Arc::new(Nobody), cleaner),
            segments: Vec::new(),
            places: BTreeMap::new(),
        })
    }

    fn shared(&self) -> &Shared {
        &self.cleaner.shared
    }

    /// The space.
    #[must_use]
    pub fn space(&self) -> &LogSpace {
        &self.shared().space
    }

    /// How many segments were made up and are there still.
    #[must_use]
    pub fn count(&self) -> usize {
        self.segments.len()
    }

    /// The segment at this place.
    #[must_use]
    pub fn id(&self, place: usize) -> SegmentId {
        self.segments[place].id()
    }

    /// At how many segments choices have looked, the same ones again among them.
    #[must_use]
    pub fn looks(&self) -> u64 {
        self.shared().turn.looks.load(Ordering::Relaxed)
    }

    /// Makes up a closed segment that every replica has: of `len` bytes on disk, of which
    /// `live_bytes` live, in this number of seglets. False where slots or seglets are missing.
    pub fn add(&mut self, log: LogId, len: u32, live_bytes: u64, seglets: usize) -> bool {
        let storage = self.shared().storage();
        let state = self.shared().space.heads.log(log);
        let Some(slots) = storage.table.take_slots(1, storage.geometry.slots.reserve) else {
            return false;
        };
        let class = SegletClass::Default;
        let Some(seglets) = storage.take_reserved(state.part, class, seglets) else {
            storage.table.give_back_slots(slots);
            return false;
        };
        let segment = Arc::new(Segment::new(
            Arc::clone(&storage.memory),
            NewSegment {
                id: storage.table.next_id(),
                log,
                kind: SegmentKind::Side,
                created_s: storage.clock.now_s(),
                purpose: Purpose::Entries,
                slot: slots[0],
                durability: storage.options.durability,
                disk_len: storage.geometry.segment_bytes(),
            },
        ));
        for seglet in seglets {
            segment.contents().push(seglet);
        }
        segment.set_appended(len);
        storage.table.add(&segment);
        let live = i64::try_from(live_bytes).expect("a segment is small");
        storage.memory.live().add(segment.slot(), log, live);
        storage.close_segment(&segment);
        segment.mark_durable();
        segment.release_bytes();
        let before = state
            .members()
            .in_log
            .insert(segment.id(), Arc::clone(&segment));
        assert!(before.is_none(), "LOG-3: ids are used once");
        self.places.insert(segment.id(), self.segments.len());
        self.segments.push(segment);
        true
    }

    /// That number of bytes of the segment at this place die, as far as they live. The thread that
    /// kills them appends to `by`. Gives how many did.
    pub fn kill(&self, place: usize, by: LogId, bytes: u64) -> u64 {
        let segment = &self.segments[place];
        let live = self.shared().memory().live();
        let dying = bytes.min(live.of_slot(segment.slot()));
        let less = i64::try_from(dying).expect("a segment is small");
        live.add(segment.slot(), by, -less);
        dying
    }

    /// Bytes of objects that live in the segment at this place.
    #[must_use]
    pub fn live_bytes(&self, place: usize) -> u64 {
        let slot = self.segments[place].slot();
        self.shared().memory().live().of_slot(slot)
    }

    /// The first step of a pass, with all that it leaves to be dropped at its end.
    pub fn choose(&mut self) -> Option<Chosen> {
        let state = &self.cleaner.states[0];
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let (stage, _) = self.cleaner.choose(&mut state);
        let segments = match stage {
            Stage::Scan(pass) => pass.into_victims(&self.cleaner.shared),
            Stage::CompactScan(compaction) => compaction.into_victims(&self.cleaner.shared),
            Stage::Choose | Stage::Relocate(_) | Stage::AwaitDurable(_) | Stage::CompactCopy(_) => {
                return None;
            }
        };
        let live = segments.iter().map(|s| self.cleaner.shared.live_bytes(s));
        Some(Chosen {
            live_bytes: live.sum(),
            segments,
        })
    }

    /// Does to the segments as a pass would. Gives the bytes of memory that it frees.
    pub fn clean(&mut self, chosen: Chosen) -> u64 {
        if chosen.is_compaction() {
            let segments = chosen.segments.iter();
            return segments.map(|segment| self.compact(segment)).sum();
        }
        let log = chosen.segments[0].log();
        let before: u64 = chosen.segments.iter().map(|s| s.memory_bytes()).sum();
        let mut live = 0;
        for segment in &chosen.segments {
            live += self.drop_segment(segment);
        }
        self.shared().storage().reclaim();
        let mut taken = 0;
        let most = u64::from(self.shared().storage().geometry.segment_bytes());
        while live > 0 {
            let now = live.min(most - SEGLET_BYTES as u64);
            let seglets = (now as usize).div_ceil(SEGLET_BYTES);
            let added = self.add(log, now as u32, now, seglets);
            assert!(added, "survivors take no more than was freed");
            taken += (seglets * SEGLET_BYTES) as u64;
            live -= now;
        }
        before - taken.min(before)
    }

    fn compact(&self, segment: &Arc<Segment>) -> u64 {
        let live = self.shared().live_bytes(segment);
        let mut seglets = segment.contents().take();
        let needed = (live as usize).div_ceil(SEGLET_BYTES).min(seglets.len());
        let freed = seglets.split_off(needed);
        let count = freed.len();
        let end = segment.appended_len().min((needed * SEGLET_BYTES) as u32);
        segment.contents().exchange(seglets, end);
        if count == 0 {
            segment.note_barren(live);
        }
        segment.uses().end_pass();
        self.shared().storage().seglets.give_back(freed);
        (count * SEGLET_BYTES) as u64
    }

    /// Takes a segment out of the log, and off the disk. Gives what lived in it.
    fn drop_segment(&mut self, segment: &Arc<Segment>) -> u64 {
        let shared = &self.cleaner.shared;
        let state: &LogState = shared.space.heads.log(segment.log());
        let live = shared.memory().live().of_slot(segment.slot());
        let less = i64::try_from(live).expect("a segment is small");
        let counts = shared.memory().live();
        counts.add(segment.slot(), segment.log(), -less);
        let mut members = state.members();
        members.in_log.remove(&segment.id());
        segment.leave(Departure::Cleaned);
        shared
            .space
            .heads
            .drop_segment(&mut members, Arc::clone(segment));
        members.freeable.clear();
        drop(members);
        let place = self.places.remove(&segment.id()).expect("it was made up");
        self.segments.swap_remove(place);
        if let Some(moved) = self.segments.get(place) {
            self.places.insert(moved.id(), place);
        }
        live
    }
}

impl core::fmt::Debug for MadeUp {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MadeUp")
            .field("segments", &self.segments.len())
            .finish_non_exhaustive()
    }
}

impl core::fmt::Debug for Chosen {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Chosen")
            .field("segments", &self.segments)
            .field("live_bytes", &self.live_bytes)
            .finish()
    }
}
