//! Log memory: the region with the seglets, the seglet table, live-byte counters and epochs.
//!
//! Owns all bytes of the log space. Seglet *i* lies at region offset `(i + 1) * SEGLET_BYTES`: the
//! first seglet's worth of addresses stays unused, so that no entry ever has offset 0, which means
//! "empty" in the index.
//!
//! The seglet table is a region as well (rule B): whoever holds an [`EntryRef`] finds segment, log,
//! offset and the next seglet there, without a lock and without a pointer.
//!
//! ```text
//! 32 bytes for each seglet:  segment id u64 │ slot u32, log u16, index u16 │ next seglet + 1 │ -
//! ```
//!
//! - LOG-1: bytes below a segment's appended length are never written until the segment was freed
//!   and every guard that could see it is gone. So readers need no lock.
//! - LOG-2: only the one [`SegmentWriter`](crate::writer::SegmentWriter) of a segment writes at or
//!   above its appended length.

use crate::options::{Geometry, LogOptions};
use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use pluvio_memory::{EpochGuard, ReclaimEpochs, Region, RegionError};
use pluvio_units::{EntryRef, LogId, LogPosition, SEGLET_BYTES, SegmentId};

const WORDS_PER_SEGLET: u64 = 4;
const SEGMENT_WORD: u64 = 0;
const PLACE_WORD: u64 = 1;
const NEXT_WORD: u64 = 2;

/// A counter with a cache line of its own, so that two segments' counters do not bounce together.
/// Signed: the dead may be counted before the living when threads race.
#[repr(align(64))]
#[derive(Default)]
struct Counter(AtomicI64);

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
pub(crate) struct LogMemory {
    region: Region,
    table: Region,
    epochs: ReclaimEpochs,
    /// Live object bytes of each segment slot.
    live_of_slot: Box<[Counter]>,
    /// Live object bytes of each log.
    live_of_log: Box<[Counter]>,
}

impl LogMemory {
    pub(crate) fn new(geometry: &Geometry, options: &LogOptions) -> Result<Self, RegionError> {
        let counters = |n: usize| (0..n).map(|_| Counter::default()).collect();
        let seglets = geometry.seglets as u64;
        Ok(Self {
            region: Region::anonymous((seglets + 1) * SEGLET_BYTES as u64, options.huge_pages)?,
            table: Region::anonymous(seglets * WORDS_PER_SEGLET * 8, false)?,
            epochs: ReclaimEpochs::new(geometry.epoch_slots)?,
            live_of_slot: counters(geometry.slots),
            live_of_log: counters(usize::from(options.logs)),
        })
    }

    pub(crate) fn epochs(&self) -> &ReclaimEpochs {
        &self.epochs
    }

    /// Region offset of the first byte of a seglet.
    pub(crate) fn base(seglet: u32) -> u64 {
        (u64::from(seglet) + 1) * SEGLET_BYTES as u64
    }

    fn seglet_of(entry: EntryRef) -> u32 {
        let seglet = (entry.offset() / SEGLET_BYTES as u64)
            .checked_sub(1)
            .expect("no entry lies in the unused first seglet");
        u32::try_from(seglet).expect("seglets are counted in 32 bits")
    }

    pub(crate) fn prefetch(&self, entry: EntryRef) {
        self.region.prefetch(entry.offset());
    }

    fn word(&self, seglet: u32, word: u64) -> &AtomicU64 {
        self.table
            .word((u64::from(seglet) * WORDS_PER_SEGLET + word) * 8)
    }

    /// Writes the table for a seglet that was just taken from the pool; `previous` is the seglet
    /// before it in the segment.
    pub(crate) fn assign(&self, seglet: u32, place: Place, previous: Option<u32>) {
        let packed =
            u64::from(place.slot) << 32 | u64::from(place.log.0) << 16 | u64::from(place.index);
        // Relaxed: a reader comes here with an EntryRef that was published after these stores,
        // by a lock or a release store of whoever published it.
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

    fn place(&self, seglet: u32) -> Place {
        let packed = self.word(seglet, PLACE_WORD).load(Ordering::Relaxed);
        Place {
            segment: SegmentId(self.word(seglet, SEGMENT_WORD).load(Ordering::Relaxed)),
            slot: (packed >> 32) as u32,
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
    pub(crate) fn locate(&self, entry: EntryRef) -> (Place, LogPosition) {
        let place = self.place(Self::seglet_of(entry));
        let within = entry.offset() % SEGLET_BYTES as u64;
        let position = LogPosition {
            segment: place.segment,
            offset: u32::from(place.index) * SEGLET_BYTES as u32 + within as u32,
        };
        (place, position)
    }

    /// Seglet of an entry and the entry's offset in it.
    pub(crate) fn split(entry: EntryRef) -> (u32, usize) {
        let within = entry.offset() % SEGLET_BYTES as u64;
        (Self::seglet_of(entry), within as usize)
    }

    /// The bytes of a piece of one seglet.
    ///
    /// # Safety
    /// The bytes lie below the appended length of the seglet's segment, and `_guard` was taken
    /// before the segment was freed (LOG-1).
    pub(crate) unsafe fn bytes<'g>(
        &'g self,
        seglet: u32,
        within: usize,
        len: usize,
        _guard: &'g EpochGuard<'_>,
    ) -> &'g [u8] {
        assert!(within + len <= SEGLET_BYTES, "a piece ends in its seglet");
        // SAFETY: nobody writes there while the guard lives, as the caller promises.
        unsafe { self.region.bytes(Self::base(seglet) + within as u64, len) }
    }

    /// Writes a piece of one seglet.
    ///
    /// # Safety
    /// The caller is the seglet's only writer and the bytes lie at or above the appended length of
    /// its segment (LOG-2).
    pub(crate) unsafe fn write(&self, seglet: u32, within: usize, bytes: &[u8]) {
        assert!(
            within + bytes.len() <= SEGLET_BYTES,
            "a piece ends in its seglet"
        );
        // SAFETY: nobody else reads or writes there, as the caller promises.
        unsafe {
            self.region.write(Self::base(seglet) + within as u64, bytes);
        }
    }

    /// Gives the pages of a seglet back to the system, which nobody has: it was taken from the pool for
    /// this, and no guard that could see what it held is left (LOG-5).
    pub(crate) fn discard(&self, seglet: u32) {
        // SAFETY: the caller alone has the seglet, and readers of its former entries are gone.
        let done = unsafe { self.region.discard(Self::base(seglet), SEGLET_BYTES as u64) };
        // Refused, it stays resident: memory is lost to the system, not to us.
        let _stays_resident = done;
    }

    /// Counts `bytes` more live object bytes.
    pub(crate) fn add_live(&self, slot: u32, log: LogId, bytes: i64) {
        // Relaxed: statistics; whoever decides by them tolerates being a little behind.
        self.live_of_slot[slot as usize]
            .0
            .fetch_add(bytes, Ordering::Relaxed);
        self.live_of_log[usize::from(log.0)]
            .0
            .fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts live object bytes that came to, or went from, another segment of the same log.
    pub(crate) fn move_live(&self, slot: u32, bytes: i64) {
        self.live_of_slot[slot as usize]
            .0
            .fetch_add(bytes, Ordering::Relaxed);
    }

    /// Live object bytes of a segment.
    pub(crate) fn live_of_slot(&self, slot: u32) -> u64 {
        let live = self.live_of_slot[slot as usize].0.load(Ordering::Relaxed);
        u64::try_from(live).unwrap_or(0)
    }

    /// Live object bytes of all logs.
    pub(crate) fn live_of_logs(&self) -> u64 {
        let live: i64 = self
            .live_of_log
            .iter()
            .map(|log| log.0.load(Ordering::Relaxed))
            .sum();
        u64::try_from(live).unwrap_or(0)
    }

    /// Forgets what is still counted as live in a slot that will be used again, and gives it. Nobody
    /// has a reference into it any more.
    pub(crate) fn clear_live(&self, slot: u32, log: LogId) -> i64 {
        let left = self.live_of_slot[slot as usize]
            .0
            .swap(0, Ordering::Relaxed);
        self.live_of_log[usize::from(log.0)]
            .0
            .fetch_sub(left, Ordering::Relaxed);
        left
    }

    /// Bytes the tables take beside the log itself.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.table.len() + (self.live_of_slot.len() * size_of::<Counter>()) as u64
    }
}
