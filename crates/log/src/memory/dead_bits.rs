//! Which objects of log memory are known to be dead: a bit for every eight bytes of it.
//!
//! ```text
//! log memory   | object ........ | object ... | object ............. |        one bit for each 8 bytes, that of an entry's
//! bits          0 0 0 0 0 0 0 0   1 0 0 0 0 0  0 0 0 0 0 0 0 0 0 0 0          first byte is its own (no entry has fewer than 13)
//! ```
//!
//! A thread that takes an object out of the index sets its bit, behind that. So the cleaner sees
//! from the bits alone which objects it may leave behind. It asks the index only about objects that
//! it moves, and reads neither keys nor index lines of dead ones.
//!
//! - LOG-15: a bit is set only after nothing points to its object any more, by a thread that has
//!   held a guard since before. All bits of a seglet are cleared when a segment gets it. So a set
//!   bit tells of a death that is final. A clear bit leaves it open: the bit of a dead object may
//!   come in a moment, or was lost.
//!
//! What does not set bits: tombstones, which die by what they name, and what a segment has for
//! itself. Memory that the system has not been asked for, or has back, reads as no bit set.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use pluvio_memory::{CACHE_LINE_BYTES, Interleaving, NodeSet, RegionError, WordRegion, page_bytes};
use pluvio_units::{EntryRef, SEGLET_BYTES};

/// Bytes of log memory for a bit. Less than the shortest entry has, and more would save little: it
/// is a 64th of the memory.
const BYTES_PER_BIT: u64 = 8;
/// Bytes of log memory for a word of bits.
const BYTES_PER_WORD: u64 = 64 * BYTES_PER_BIT;
/// Bytes of log memory for a cache line of bits.
const BYTES_PER_LINE: u64 = 8 * BYTES_PER_WORD;
/// Lines of bits of a seglet.
const LINES_PER_SEGLET: u64 = SEGLET_BYTES as u64 / BYTES_PER_LINE;

/// See the module.
pub(crate) struct DeadBits(WordRegion);

impl DeadBits {
    /// For `log_bytes` of log memory, interleaved over `nodes`.
    pub(crate) fn new(
        log_bytes: u64,
        huge_pages: bool,
        nodes: &NodeSet,
    ) -> Result<(Self, Interleaving), RegionError> {
        let lines = log_bytes.div_ceil(BYTES_PER_LINE);
        let region = WordRegion::anonymous(lines * CACHE_LINE_BYTES)?;
        let interleaving = region.interleave(nodes);
        let bits = Self(region);
        if huge_pages {
            bits.prefer_huge_pages();
        }
        Ok((bits, interleaving))
    }

    /// The nodes over which they are interleaved, if the system tells.
    #[cfg(test)]
    pub(super) fn interleaved_over(&self) -> Option<NodeSet> {
        self.0.interleaved_over(0)
    }

    /// Asks for the bit of an entry that is going to die.
    #[inline(always)]
    pub(crate) fn prefetch(&self, entry: EntryRef) {
        self.0
            .prefetch(entry.offset() / BYTES_PER_LINE * CACHE_LINE_BYTES);
    }

    /// Sets the bit of an object (LOG-15).
    #[inline(always)]
    pub(crate) fn set(&self, entry: EntryRef) {
        let (word, bit) = self.word(entry);
        // Acquire and release: a thread that sees a bit also sees the entry that took its object's
        // place (CLEAN-2). That holds for this bit and for others that were taken along. In two
        // steps, of which another thread's may take place between: then its bit is lost. A locked
        // instruction instead would wait until the stores before it are out, and hold back whatever
        // follows.
        word.store(word.load(Ordering::Acquire) | bit, Ordering::Release);
    }

    /// Whether the object at `entry` is dead for certain.
    #[inline(always)]
    pub(crate) fn is_set(&self, entry: EntryRef) -> bool {
        let (word, bit) = self.word(entry);
        // Acquire: pairs with the release in `set`.
        word.load(Ordering::Acquire) & bit != 0
    }

    /// Clears all bits of a seglet of which nobody has a reference.
    pub(crate) fn clear(&self, seglet_base: u64) {
        let first = seglet_base / BYTES_PER_LINE;
        for line in first..first + LINES_PER_SEGLET {
            for word in self.0.line(line * CACHE_LINE_BYTES) {
                // Relaxed: references to what will lie here are published later. What is zero
                // already stays untouched memory.
                if word.load(Ordering::Relaxed) != 0 {
                    word.store(0, Ordering::Relaxed);
                }
            }
        }
    }

    /// Asks for huge pages.
    pub(crate) fn prefer_huge_pages(&self) {
        self.0.prefer_huge_pages(0, self.0.len());
    }

    /// Asks for no more huge pages.
    pub(crate) fn prefer_small_pages(&self) {
        self.0.prefer_small_pages(0, self.0.len());
    }

    /// The seglets, this one among them, whose bits lie in one page.
    pub(crate) fn beside(seglet: u32) -> Range<u32> {
        let each = (page_bytes() / (LINES_PER_SEGLET * CACHE_LINE_BYTES)).max(1) as u32;
        // The first seglet of the memory has no number.
        let first = (seglet + 1) / each * each;
        first.saturating_sub(1)..first + each - 1
    }

    /// Gives the page with the bits of a seglet back to the system.
    pub(crate) fn discard(&self, seglet_base: u64) {
        self.0
            .discard_page(seglet_base / BYTES_PER_LINE * CACHE_LINE_BYTES);
    }

    /// Bytes of memory for the bits of this many seglets.
    pub(crate) fn bytes_of(seglets: usize) -> u64 {
        seglets as u64 * LINES_PER_SEGLET * CACHE_LINE_BYTES
    }

    #[inline(always)]
    fn word(&self, entry: EntryRef) -> (&AtomicU64, u64) {
        let offset = entry.offset();
        let line = self.0.line(offset / BYTES_PER_LINE * CACHE_LINE_BYTES);
        let word = &line[(offset / BYTES_PER_WORD % 8) as usize];
        (word, 1 << (offset / BYTES_PER_BIT % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGLET: u64 = SEGLET_BYTES as u64;

    fn bits(seglets: u64) -> DeadBits {
        let nodes = NodeSet::EMPTY;
        let made = DeadBits::new((seglets + 1) * SEGLET, false, &nodes);
        made.expect("enough memory").0
    }

    #[test]
    fn each_entry_has_a_bit_of_its_own_however_short_its_neighbours_are() {
        const SHORTEST: u64 = pluvio_format::PlainFront::SHORT as u64;
        let bits = bits(2);
        let all = || (SEGLET..3 * SEGLET).step_by(SHORTEST as usize);
        for dead in all().step_by(3) {
            bits.set(EntryRef::new(dead));
        }
        for (number, offset) in all().enumerate() {
            let is_dead = bits.is_set(EntryRef::new(offset));
            assert_eq!(is_dead, number % 3 == 0, "entry {number}");
        }
    }

    #[test]
    fn a_seglet_begins_without_dead_entries_and_its_neighbours_keep_theirs() {
        let bits = bits(3);
        let ends = |seglet: u64| [seglet * SEGLET, (seglet + 1) * SEGLET - 8].map(EntryRef::new);
        (1..4).flat_map(ends).for_each(|entry| bits.set(entry));
        bits.clear(2 * SEGLET);
        for seglet in 1..4 {
            for entry in ends(seglet) {
                assert_eq!(bits.is_set(entry), seglet != 2, "seglet {seglet}");
            }
        }
    }

    #[test]
    fn a_page_of_bits_goes_back_with_all_its_seglets() {
        let bits = bits(200);
        for seglet in 0..200 {
            let beside = DeadBits::beside(seglet);
            assert!(beside.contains(&seglet));
            assert!(
                beside
                    .clone()
                    .all(|other| DeadBits::beside(other) == beside)
            );
        }
        let entry = |seglet: u32| EntryRef::new((u64::from(seglet) + 1) * SEGLET);
        let beside = DeadBits::beside(100);
        (0..200).for_each(|seglet| bits.set(entry(seglet)));
        bits.discard((100 + 1) * SEGLET);
        if page_bytes() <= SEGLET {
            for seglet in 0..200 {
                assert_eq!(bits.is_set(entry(seglet)), !beside.contains(&seglet));
            }
        }
    }
}
