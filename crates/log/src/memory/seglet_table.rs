//! The seglet table: for each seglet its segment, log, offset and the next seglet, found without a
//! lock and without a pointer (rule B).
//!
//! ```text
//! 32 bytes for each seglet:  segment id u64 │ slot u32, log u16, index u16 │ next seglet + 1 │ -
//! ```

use super::LogMemory;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use pluvio_memory::{Interleaving, NodeSet, Region, RegionError};
use pluvio_units::{EntryRef, LogId, LogPosition, SEGLET_BYTES, SegmentId};

pub(super) const WORDS_PER_SEGLET: u64 = 4;
const SEGMENT_WORD: u64 = 0;
const PLACE_WORD: u64 = 1;
pub(super) const NEXT_WORD: u64 = 2;
/// Where the slot begins in the second word.
const PLACE_SLOT_SHIFT: u32 = 32;

/// Where a seglet belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub segment: SegmentId,
    pub slot: u32,
    pub log: LogId,
    /// Which seglet of its segment it is.
    pub index: u16,
}

/// See the module.
pub(crate) struct SegletTable(Region);

impl SegletTable {
    /// Interleaved over `nodes`. `is_read`: other processes may read it.
    pub(crate) fn new(
        seglets: usize,
        is_read: bool,
        nodes: &NodeSet,
    ) -> Result<(Self, Interleaving), RegionError> {
        let bytes = seglets as u64 * WORDS_PER_SEGLET * 8;
        let region = match is_read {
            true => Region::for_readers("pluvio-seglets", bytes, false)?,
            false => Region::anonymous(bytes, false)?,
        };
        // Before it has pages.
        let interleaving = region.interleave(nodes);
        // A two-thousandth of the log.
        region.allocate(0, region.len())?;
        Ok((Self(region), interleaving))
    }

    /// The memory.
    pub(super) fn region(&self) -> &Region {
        &self.0
    }

    /// Bytes it takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.len()
    }

    #[inline(always)]
    fn word(&self, seglet: u32, word: u64) -> &AtomicU64 {
        self.0
            .word((u64::from(seglet) * WORDS_PER_SEGLET + word) * 8)
    }

    /// Writes the row of a seglet that was just taken from the pool; `previous` is the seglet
    /// before it in the segment.
    pub(crate) fn assign(&self, seglet: u32, place: Place, previous: Option<u32>) {
        let packed = u64::from(place.slot) << PLACE_SLOT_SHIFT
            | u64::from(place.log.0) << 16
            | u64::from(place.index);
        // Readers of other processes were told that the seglet is used again. All that is stored
        // into it, and here, comes after that for them (M4).
        fence(Ordering::Release);
        // Relaxed: a reader comes here with an EntryRef that was published after these stores. Its
        // thread published it by a lock or a release store.
        self.word(seglet, SEGMENT_WORD)
            .store(place.segment.0, Ordering::Relaxed);
        self.word(seglet, PLACE_WORD)
            .store(packed, Ordering::Relaxed);
        self.word(seglet, NEXT_WORD).store(0, Ordering::Relaxed);
        if let Some(previous) = previous {
            self.word(previous, NEXT_WORD)
                .store(u64::from(seglet) + 1, Ordering::Relaxed);
        }
    }

    #[inline]
    fn place(&self, seglet: u32) -> Place {
        let packed = self.word(seglet, PLACE_WORD).load(Ordering::Relaxed);
        Place {
            segment: SegmentId(self.word(seglet, SEGMENT_WORD).load(Ordering::Relaxed)),
            slot: (packed >> PLACE_SLOT_SHIFT) as u32,
            log: LogId((packed >> 16) as u16),
            index: packed as u16,
        }
    }

    /// The seglet that follows in the same segment.
    pub(crate) fn next_seglet(&self, seglet: u32) -> Option<u32> {
        let next = self.word(seglet, NEXT_WORD).load(Ordering::Relaxed);
        next.checked_sub(1).map(|next| next as u32)
    }

    /// Segment and slot of an entry, and the position of its first byte.
    #[inline]
    pub(crate) fn locate(&self, entry: EntryRef) -> (Place, LogPosition) {
        let place = self.place(LogMemory::seglet_of(entry));
        let within = entry.offset() % SEGLET_BYTES as u64;
        let position = LogPosition {
            segment: place.segment,
            offset: u32::from(place.index) * SEGLET_BYTES as u32 + within as u32,
        };
        (place, position)
    }

    /// The slot of the segment that an entry lies in.
    #[inline(always)]
    pub(crate) fn slot_of(&self, entry: EntryRef) -> u32 {
        let place = self.word(LogMemory::seglet_of(entry), PLACE_WORD);
        (place.load(Ordering::Relaxed) >> PLACE_SLOT_SHIFT) as u32
    }
}
