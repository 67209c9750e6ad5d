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

use crate::dead_bits::DeadBits;
use crate::durable::Durability;
use crate::options::{Geometry, LogOptions};
use crate::stats::MemoryBinding;
use crate::writer::Packing;
use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use pluvio_format::Check;
use pluvio_memory::{
    CopyMethod, EpochGuard, REGION_GRANULE_BYTES, RacingBytes, ReclaimEpochs, Region, RegionError,
};
use pluvio_units::{EntryRef, LogId, LogPosition, SEGLET_BYTES, SegmentId};

const WORDS_PER_SEGLET: u64 = 4;
const SEGMENT_WORD: u64 = 0;
const PLACE_WORD: u64 = 1;
const NEXT_WORD: u64 = 2;
/// Where the slot begins in the second word.
const PLACE_SLOT_SHIFT: u32 = 32;

/// Live object bytes as counted by those who append to one log: each core has counters of its own,
/// so that no line of them bounces between cores. Only sums mean something: what one core appended,
/// another one may count as dead. Signed: the dead may be counted before the living when threads
/// race.
#[repr(align(64))]
struct Counts {
    total: AtomicI64,
    of_slot: Box<[AtomicI64]>,
}

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
    dead: DeadBits,
    epochs: ReclaimEpochs,
    /// One for each log; and behind those one more for each, which is changed under the lock of the
    /// log's head only, and so without locked instructions.
    live: Box<[Counts]>,
    /// Logs.
    logs: usize,
    /// Whether entries have checksums: without replicas there is nothing to compare them for.
    check: Check,
    /// Whether values may be overwritten.
    in_place: bool,
    packing: Packing,
    copy: CopyMethod,
    binding: MemoryBinding,
}

impl LogMemory {
    /// `parts`: the seglets of each part of the options.
    pub(crate) fn new(
        geometry: &Geometry,
        options: &LogOptions,
        parts: &[u32],
    ) -> Result<Self, RegionError> {
        let counters = |n: usize| (0..n).map(|_| AtomicI64::default()).collect();
        let counts = || Counts {
            total: AtomicI64::default(),
            of_slot: counters(geometry.slots),
        };
        let seglets = geometry.seglets as u64;
        let region = Region::anonymous((seglets + 1) * SEGLET_BYTES as u64, options.huge_pages)?;
        let dead = DeadBits::new(region.len(), options.huge_pages)?;
        Ok(Self {
            binding: bind(&region, options, parts),
            region,
            dead,
            table: Region::anonymous(seglets * WORDS_PER_SEGLET * 8, false)?,
            epochs: ReclaimEpochs::with_clock(geometry.epoch_slots, options.epoch_clock)?,
            live: (0..2 * usize::from(options.logs))
                .map(|_| counts())
                .collect(),
            logs: usize::from(options.logs),
            check: match options.durability {
                Durability::Volatile => Check::Structure,
                Durability::Replicated => Check::Checksum,
            },
            in_place: options.in_place,
            packing: Packing::new(options.in_place),
            copy: options.copy,
        })
    }

    /// Whether the parts lie on their nodes.
    pub(crate) fn binding(&self) -> MemoryBinding {
        self.binding
    }

    /// The memory node on which the page of an entry lies, if the system tells.
    pub(crate) fn node_of(&self, entry: EntryRef) -> Option<u32> {
        self.region.node_of_page(entry.offset())
    }

    pub(crate) fn epochs(&self) -> &ReclaimEpochs {
        &self.epochs
    }

    /// Region offset of the first byte of a seglet.
    #[inline]
    pub(crate) fn base(seglet: u32) -> u64 {
        (u64::from(seglet) + 1) * SEGLET_BYTES as u64
    }

    #[inline]
    fn seglet_of(entry: EntryRef) -> u32 {
        let seglet = (entry.offset() / SEGLET_BYTES as u64)
            .checked_sub(1)
            .expect("no entry lies in the unused first seglet");
        u32::try_from(seglet).expect("seglets are counted in 32 bits")
    }

    #[inline]
    pub(crate) fn prefetch(&self, entry: EntryRef, lines: u64) {
        for line in 0..lines {
            self.region.prefetch(entry.offset() + line * 64);
        }
    }

    #[inline(always)]
    fn word(&self, seglet: u32, word: u64) -> &AtomicU64 {
        self.table
            .word((u64::from(seglet) * WORDS_PER_SEGLET + word) * 8)
    }

    /// Writes the table for a seglet that was just taken from the pool; `previous` is the seglet
    /// before it in the segment.
    pub(crate) fn assign(&self, seglet: u32, place: Place, previous: Option<u32>) {
        let packed = u64::from(place.slot) << PLACE_SLOT_SHIFT
            | u64::from(place.log.0) << 16
            | u64::from(place.index);
        // Relaxed: a reader comes here with an EntryRef that was published after these stores,
        // by a lock or a release store of whoever published it.
        self.dead.clear(Self::base(seglet));
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
        let place = self.place(Self::seglet_of(entry));
        let within = entry.offset() % SEGLET_BYTES as u64;
        let position = LogPosition {
            segment: place.segment,
            offset: u32::from(place.index) * SEGLET_BYTES as u32 + within as u32,
        };
        (place, position)
    }

    /// Seglet of an entry and the entry's offset in it.
    #[inline]
    pub(crate) fn split(entry: EntryRef) -> (u32, usize) {
        let within = entry.offset() % SEGLET_BYTES as u64;
        (Self::seglet_of(entry), within as usize)
    }

    /// The slot of the segment that an entry lies in.
    #[inline(always)]
    pub(crate) fn slot_of(&self, entry: EntryRef) -> u32 {
        let place = self.word(Self::seglet_of(entry), PLACE_WORD);
        (place.load(Ordering::Relaxed) >> PLACE_SLOT_SHIFT) as u32
    }

    /// The bytes of a piece of one seglet.
    ///
    /// # Safety
    /// The bytes lie below the appended length of the seglet's segment, and `_guard` was taken
    /// before the segment was freed (LOG-1).
    #[inline]
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

    /// The first bytes of an entry, within its seglet.
    ///
    /// # Safety
    /// As of [`Self::bytes`].
    #[inline(always)]
    pub(crate) unsafe fn piece<'g>(
        &'g self,
        entry: EntryRef,
        len: usize,
        _guard: &'g EpochGuard<'_>,
    ) -> &'g [u8] {
        const { assert!(SEGLET_BYTES as u64 == REGION_GRANULE_BYTES) };
        // SAFETY: nobody writes there while the guard lives, as the caller promises.
        unsafe { self.region.bytes_in_granule(entry.offset(), len) }
    }

    /// Writes a piece of one seglet.
    ///
    /// # Safety
    /// The caller is the seglet's only writer and the bytes lie at or above the appended length of
    /// its segment (LOG-2).
    #[inline]
    pub(crate) unsafe fn write(&self, seglet: u32, within: usize, bytes: &[u8]) {
        assert!(
            within + bytes.len() <= SEGLET_BYTES,
            "a piece ends in its seglet"
        );
        // SAFETY: nobody else reads or writes there, as the caller promises.
        unsafe {
            self.region
                .write_by(self.copy, Self::base(seglet) + within as u64, bytes);
        }
    }

    /// Whether entries are copied by `memcpy`, and not by another method that is compared with it.
    #[inline]
    pub(crate) fn copies_as_usual(&self) -> bool {
        self.copy == CopyMethod::Library
    }

    /// The `len` bytes of one seglet to be written, whatever the method of copying.
    ///
    /// # Safety
    /// As of [`Self::write`], as long as what this gives lives.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)] // as the caller promises, nobody else has these bytes
    pub(crate) unsafe fn room(&self, seglet: u32, within: usize, len: usize) -> &mut [u8] {
        // SAFETY: nobody else reads or writes there, as the caller promises.
        unsafe {
            self.region
                .room_in_granule(Self::base(seglet) + within as u64, len)
        }
    }

    /// Turns a bit over, counted from the first byte of an entry on. Nobody has a view of the
    /// entry.
    pub(crate) fn flip_bit(&self, entry: EntryRef, bit: u32) {
        let at = entry.offset() + u64::from(bit / 8);
        let mut mask = [0; 8];
        mask[(at % 8) as usize] = 1 << (bit % 8);
        let word = self.region.word(at - at % 8);
        word.fetch_xor(u64::from_ne_bytes(mask), Ordering::Relaxed);
    }

    /// Gives the pages of a seglet back to the system, which nobody has: it was taken from the pool
    /// for this, and no guard that could see what it held is left (LOG-5).
    pub(crate) fn discard(&self, seglet: u32) {
        // SAFETY: the caller alone has the seglet, and readers of its former entries are gone.
        let done = unsafe { self.region.discard(Self::base(seglet), SEGLET_BYTES as u64) };
        // Refused, it stays resident: memory is lost to the system, not to us.
        let _stays_resident = done;
    }

    /// Gives the page with the bits of a seglet back to the system, none of whose seglets
    /// ([`DeadBits::beside`]) is used. (One that is used by now loses its bits, which costs the
    /// cleaner a look at the index.)
    pub(crate) fn discard_dead(&self, seglet: u32) {
        self.dead.discard(Self::base(seglet));
    }

    /// Loses the bits of all that is known to be dead.
    pub(crate) fn lose_dead(&self) {
        for seglet in 0..(self.region.len() / SEGLET_BYTES as u64 - 1) as u32 {
            self.dead.clear(Self::base(seglet));
        }
    }

    /// Has the system not join what is resident with what was given back to huge pages: it would
    /// give all of it pages again.
    pub(crate) fn prefer_small_pages(&self) {
        self.region.prefer_small_pages(0, self.region.len());
        self.dead.prefer_small_pages();
    }

    /// Asks for huge pages.
    pub(crate) fn prefer_huge_pages(&self) -> Result<(), RegionError> {
        self.dead.prefer_huge_pages();
        self.region.prefer_huge_pages(0, self.region.len())
    }

    /// Fetches the pages of all of it.
    pub(crate) fn populate(&self) -> Result<(), RegionError> {
        self.region.populate(0, self.region.len())
    }

    /// How entries are laid into its seglets.
    #[inline]
    pub(crate) fn packing(&self) -> Packing {
        self.packing
    }

    #[inline]
    pub(crate) fn is_in_place(&self) -> bool {
        self.in_place
    }

    /// The bytes of an entry within its seglet, to be accessed as what others change.
    #[inline(always)]
    pub(crate) fn racing(&self, entry: EntryRef, len: usize) -> RacingBytes<'_> {
        assert!(self.in_place, "LOG-12: values do not change here");
        self.region.racing_in_granule(entry.offset(), len)
    }

    /// How much of an entry can be checked.
    #[inline]
    pub(crate) fn check(&self) -> Check {
        self.check
    }

    /// What of `wanted` can be checked.
    pub(crate) fn possible(&self, wanted: Check) -> Check {
        match self.check {
            Check::Structure => Check::Structure,
            Check::Checksum => wanted,
        }
    }

    /// Notes that nothing points to the object at `entry` any more; it was found under `_guard`
    /// (LOG-15).
    #[inline(always)]
    pub(crate) fn set_dead(&self, entry: EntryRef, _guard: &EpochGuard<'_>) {
        self.dead.set(entry);
    }

    /// Whether the object at `entry` is known to be dead (LOG-15).
    #[inline(always)]
    pub(crate) fn is_dead(&self, entry: EntryRef) -> bool {
        self.dead.is_set(entry)
    }

    /// Asks for what [`Self::set_dead`] will change.
    #[inline(always)]
    pub(crate) fn prefetch_dead(&self, entry: EntryRef) {
        self.dead.prefetch(entry);
    }

    /// Counts `bytes` more live object bytes in a slot; `by` is the log that the counting thread
    /// appends to.
    #[inline]
    pub(crate) fn add_live(&self, slot: u32, by: LogId, bytes: i64) {
        let counts = &self.live[usize::from(by.0)];
        // Relaxed: statistics; whoever decides by them tolerates being a little behind.
        counts.of_slot[slot as usize].fetch_add(bytes, Ordering::Relaxed);
        counts.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts `new` bytes more in one slot and `old` bytes fewer in another. The caller has the
    /// lock of the head of `by`, and nobody can clear the slots: the one is open, and a guard of
    /// the caller's is older than the other one's end.
    #[inline(always)]
    pub(crate) fn exchange_live_locked(&self, by: LogId, new: (u32, u32), old: (u32, u32)) {
        let counts = &self.live[self.logs + usize::from(by.0)];
        // Relaxed, and in two steps: nobody else stores to these.
        let add = |count: &AtomicI64, more: i64| {
            count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        };
        let (more, less) = (i64::from(new.1), i64::from(old.1));
        add(&counts.of_slot[new.0 as usize], more);
        add(&counts.of_slot[old.0 as usize], -less);
        if more != less {
            add(&counts.total, more - less);
        }
    }

    /// Counts live object bytes that came to, or went from, another segment; `by` is the log of the
    /// counting cleaner.
    pub(crate) fn move_live(&self, slot: u32, by: LogId, bytes: i64) {
        self.live[usize::from(by.0)].of_slot[slot as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Live object bytes of a segment.
    pub(crate) fn live_of_slot(&self, slot: u32) -> u64 {
        let of_slot = |counts: &Counts| counts.of_slot[slot as usize].load(Ordering::Relaxed);
        let live: i64 = self.live.iter().map(of_slot).sum();
        u64::try_from(live).unwrap_or(0)
    }

    /// Live object bytes of all logs.
    pub(crate) fn live_of_logs(&self) -> u64 {
        let totals = self.live.iter().map(|c| c.total.load(Ordering::Relaxed));
        u64::try_from(totals.sum::<i64>()).unwrap_or(0)
    }

    /// Forgets what is still counted as live in a slot that will be used again, and gives it.
    /// Nobody has a reference into it any more.
    pub(crate) fn clear_live(&self, slot: u32, log: LogId) -> i64 {
        let of_slot = |counts: &Counts| counts.of_slot[slot as usize].swap(0, Ordering::Relaxed);
        let left = self.live.iter().map(of_slot).sum();
        self.live[usize::from(log.0)]
            .total
            .fetch_sub(left, Ordering::Relaxed);
        left
    }

    /// Bytes the tables take beside the log itself, of which so many seglets are resident.
    pub(crate) fn table_bytes(&self, resident_seglets: usize) -> u64 {
        let slots = self.live.iter().map(|counts| counts.of_slot.len());
        let counters = (slots.sum::<usize>() * size_of::<AtomicI64>()) as u64;
        self.table.len() + counters + DeadBits::bytes_of(resident_seglets)
    }
}

/// Has the pages of each part come from its node. What is refused works as well, with pages from
/// elsewhere.
fn bind(region: &Region, options: &LogOptions, parts: &[u32]) -> MemoryBinding {
    let mut binding = MemoryBinding::NoNodes;
    let mut first = 0;
    for (part, &len) in options.parts.iter().zip(parts) {
        let (from, bytes) = (LogMemory::base(first), u64::from(len) * SEGLET_BYTES as u64);
        first += len;
        let Some(node) = part.node else {
            continue;
        };
        match (region.prefer_node(from, bytes, node), binding) {
            (Ok(()), MemoryBinding::NoNodes) => binding = MemoryBinding::Bound,
            // The first refusal stays: others have the same cause.
            (Ok(()), _) | (Err(_), MemoryBinding::Refused(_)) => {}
            (Err(why), MemoryBinding::NoNodes | MemoryBinding::Bound) => {
                binding = MemoryBinding::Refused(why);
            }
        }
    }
    binding
}
