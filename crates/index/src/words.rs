//! The memory under an index, as lines of eight words. It is a trait, so that the model checker
//! (`model`) runs the same protocol code on its own words.

use crate::slot;
use core::sync::atomic::{AtomicU64, Ordering};
use pluvio_memory::{CACHE_LINE_BYTES, REGION_GRANULE_BYTES, WordRegion, words_with_top};

/// Number of spins before a waiter gives its processor away. A bucket is locked for less than a
/// microsecond, unless its holder was preempted. Then spinning is in the holder's way.
const SPINS: u32 = 100;

/// An atomic word. Loads acquire and stores release throughout: on x86 both are plain moves.
pub(crate) trait Word {
    /// Acquire: earlier actions of the storing thread are visible, and later loads stay behind this
    /// one.
    fn get(&self) -> u64;
    /// Release: pairs with `get`.
    fn set(&self, value: u64);
    /// Replaces `old` by `new`, with acquire; false when the word was not `old`. May fail
    /// spuriously.
    fn try_swap(&self, old: u64, new: u64) -> bool;
}

impl Word for AtomicU64 {
    #[inline]
    fn get(&self) -> u64 {
        AtomicU64::load(self, Ordering::Acquire)
    }

    #[inline]
    fn set(&self, value: u64) {
        AtomicU64::store(self, value, Ordering::Release);
    }

    #[inline]
    fn try_swap(&self, old: u64, new: u64) -> bool {
        self.compare_exchange_weak(old, new, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }
}

/// Zeroed lines of eight words.
pub(crate) trait Lines {
    /// The word.
    type Word: Word;
    /// Slots of a line: eight; fewer in models.
    const SLOTS: usize;
    /// Slots of an overflow line, behind its link.
    const OVERFLOW_SLOTS: usize;
    /// A block has `1 << BLOCK_LOG` lines, or more, but less than twice as many. Eight: the
    /// displacements of 15 lines fit one word.
    const BLOCK_LOG: u32;
    /// Memory is given back in pieces of this many lines.
    const GRANULE: u64;
    /// The lines of the index begin at a multiple of this: a possible border of a huge page.
    const ALIGN: u64;
    /// The number of lines.
    fn count(&self) -> u64;
    /// One line.
    fn line(&self, number: u64) -> &[Self::Word; 8];
    /// Gives back the memory of whole granules, which then reads as zero; false if the system
    /// refuses. The lines are unused meanwhile.
    fn give_back(&self, lines: core::ops::Range<u64>) -> bool;
    /// Asks for pages under whole granules, before the first of their lines is stored to; false if
    /// the system has none. Only lines that other processes read need that (R4).
    fn allocate(&self, _lines: core::ops::Range<u64>) -> bool {
        true
    }
    /// Asks for huge pages under these lines, or for small ones. They are whole granules.
    fn prefer_huge_pages(&self, _lines: core::ops::Range<u64>, _huge: bool) {}
    /// Asks for a line to come near.
    fn prefetch(&self, number: u64);
    /// The slots of a line that seem to have the tag, as bits by their place in the line.
    ///
    /// This is a glimpse: a caller that acts upon a bit loads the slot and looks again, and a zero
    /// bit proves nothing. It is without branches. No processor foresees the place of the tag in
    /// the line. A wrong guess would keep it from going on with the next lookup while this one
    /// waits for memory.
    fn glimpse(line: &[Self::Word; 8], tag: u64) -> u32 {
        let slots = line[..Self::SLOTS].iter().rev();
        slots.fold(0, |mask, word| {
            mask << 1 | u32::from(slot::has_tag(word.get(), tag))
        })
    }
    /// A waiter's pause between attempts.
    fn wait(attempt: u32);
    /// An acquire fence.
    fn fence_acquire();
    /// A release fence.
    fn fence_release();
}

impl Lines for WordRegion {
    type Word = AtomicU64;
    const SLOTS: usize = 8;
    const OVERFLOW_SLOTS: usize = 7;
    const BLOCK_LOG: u32 = 3;
    const GRANULE: u64 = REGION_GRANULE_BYTES / CACHE_LINE_BYTES;
    const ALIGN: u64 = (2 << 20) / CACHE_LINE_BYTES;

    #[inline]
    fn count(&self) -> u64 {
        self.len() / CACHE_LINE_BYTES
    }

    #[inline(always)]
    fn line(&self, number: u64) -> &[AtomicU64; 8] {
        WordRegion::line(self, number * CACHE_LINE_BYTES)
    }

    fn give_back(&self, lines: core::ops::Range<u64>) -> bool {
        let bytes = (lines.end - lines.start) * CACHE_LINE_BYTES;
        self.discard(lines.start * CACHE_LINE_BYTES, bytes).is_ok()
    }

    fn allocate(&self, lines: core::ops::Range<u64>) -> bool {
        let bytes = (lines.end - lines.start) * CACHE_LINE_BYTES;
        WordRegion::allocate(self, lines.start * CACHE_LINE_BYTES, bytes).is_ok()
    }

    fn prefer_huge_pages(&self, lines: core::ops::Range<u64>, huge: bool) {
        let offset = lines.start * CACHE_LINE_BYTES;
        let len = (lines.end - lines.start) * CACHE_LINE_BYTES;
        if huge {
            WordRegion::prefer_huge_pages(self, offset, len);
        } else {
            self.prefer_small_pages(offset, len);
        }
    }

    #[inline]
    fn prefetch(&self, number: u64) {
        WordRegion::prefetch(self, number * CACHE_LINE_BYTES);
    }

    #[inline(always)]
    fn glimpse(line: &[AtomicU64; 8], tag: u64) -> u32 {
        words_with_top::<{ slot::TAG_BITS as i32 }>(line, tag)
    }

    #[inline]
    fn wait(attempt: u32) {
        if attempt < SPINS {
            core::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }

    #[inline]
    fn fence_acquire() {
        core::sync::atomic::fence(Ordering::Acquire);
    }

    #[inline]
    fn fence_release() {
        core::sync::atomic::fence(Ordering::Release);
    }
}
