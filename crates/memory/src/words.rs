//! A region that is only used as atomic words, so that giving its pages back is safe. Also a quick
//! look at a line of words.

use crate::binding::{Interleaving, NodeSet};
use crate::region::{Region, RegionError};
use core::sync::atomic::AtomicU64;

/// Memory whose plain bytes are never borrowed.
#[derive(Debug)]
pub struct WordRegion(Region);

impl WordRegion {
    /// See [`Region::anonymous`].
    ///
    /// # Errors
    /// As there.
    pub fn anonymous(len: u64) -> Result<Self, RegionError> {
        Region::anonymous(len, false).map(Self)
    }

    /// See [`Region::for_readers`].
    ///
    /// # Errors
    /// As there.
    pub fn for_readers(name: &str, len: u64) -> Result<Self, RegionError> {
        Ok(Self(Region::for_readers(name, len, false)?))
    }

    /// The memory file, if it is one for readers.
    #[must_use]
    pub fn memfd(&self) -> Option<rustix::fd::BorrowedFd<'_>> {
        self.0.memfd()
    }

    /// See [`Region::interleave`].
    pub fn interleave(&self, nodes: &NodeSet) -> Interleaving {
        self.0.interleave(nodes)
    }

    /// See [`Region::interleaved_over`].
    ///
    /// # Panics
    /// As there.
    #[must_use]
    pub fn interleaved_over(&self, offset: u64) -> Option<NodeSet> {
        self.0.interleaved_over(offset)
    }

    /// See [`Region::allocate`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub fn allocate(&self, offset: u64, len: u64) -> Result<(), RegionError> {
        self.0.allocate(offset, len)
    }

    /// See [`Region::prefer_huge_pages`]; a refusal costs speed only.
    ///
    /// # Panics
    /// As there.
    pub fn prefer_huge_pages(&self, offset: u64, len: u64) {
        let _works_without = self.0.prefer_huge_pages(offset, len);
    }

    /// See [`Region::prefer_small_pages`].
    ///
    /// # Panics
    /// As there.
    pub fn prefer_small_pages(&self, offset: u64, len: u64) {
        self.0.prefer_small_pages(offset, len);
    }

    /// Bytes in the region.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Always false.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The cache line of eight words at `offset`.
    ///
    /// # Panics
    /// When `offset` is no multiple of 64 or lies behind the end (M1).
    #[must_use]
    #[inline(always)]
    pub fn line(&self, offset: u64) -> &[AtomicU64; 8] {
        self.0.line(offset)
    }

    /// Asks the processor to bring the cache line of `offset` near. Never faults.
    #[inline]
    pub fn prefetch(&self, offset: u64) {
        self.0.prefetch(offset);
    }

    /// Gives the system's page of `offset` back, as [`Self::discard`]; its words read as zero from
    /// now on. Nothing goes back if the system's pages are larger than a granule.
    pub fn discard_page(&self, offset: u64) {
        // SAFETY: as in `discard`.
        unsafe { self.0.discard_page(offset) }
    }

    /// Gives the pages of `len` bytes from `offset` on back to the system; their words read as zero
    /// from now on. A word that another thread loads or stores during the call has any of its
    /// values, or zero. The order of these accesses is lost, so keep other threads away.
    ///
    /// # Errors
    /// [`RegionError::AdviceFailed`]: the words are unchanged; retrying is harmless.
    ///
    /// # Panics
    /// When the range leaves the region or its borders are no multiples of
    /// [`crate::REGION_GRANULE_BYTES`].
    pub fn discard(&self, offset: u64, len: u64) -> Result<(), RegionError> {
        // SAFETY: the region is ours alone, and its bytes are accessed only as atomic words, all of
        // them through `line`. To those, pages that become zero are stores made outside the
        // program.
        unsafe { self.0.discard(offset, len) }
    }
}

/// The words of a line that have `top` as their highest `BITS` bits (15 at most), as bits by their
/// place in the line. It costs half of what eight loads and comparisons do.
///
/// This is only a glimpse, without order to other memory. While others store to the line it may be
/// wrong for changed words. A caller that acts upon it loads the word and looks again.
#[inline(always)]
#[must_use]
pub fn words_with_top<const BITS: i32>(line: &[AtomicU64; 8], top: u64) -> u32 {
    const { assert!(0 < BITS && BITS < 16) };
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{
            __m128i, _mm_cmpeq_epi16, _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32,
            _mm_set1_epi16,
        };
        let (a, b, c, d): (__m128i, __m128i, __m128i, __m128i);
        // SAFETY: reads the 64 bytes of the line and nothing else, and every x86-64 processor has
        // the instructions. Others may store to the bytes meanwhile, so the loads are in assembly.
        // For the language they are loads of the processor, not of the program, and no race. The
        // result is only compared, and every value is valid.
        unsafe {
            core::arch::asm!(
                "movups {a}, [{line}]",
                "movups {b}, [{line} + 16]",
                "movups {c}, [{line} + 32]",
                "movups {d}, [{line} + 48]",
                "psrlq {a}, {shift}",
                "psrlq {b}, {shift}",
                "psrlq {c}, {shift}",
                "psrlq {d}, {shift}",
                line = in(reg) line.as_ptr(),
                shift = const 64 - BITS,
                a = out(xmm_reg) a,
                b = out(xmm_reg) b,
                c = out(xmm_reg) c,
                d = out(xmm_reg) d,
                options(readonly, nostack, preserves_flags)
            );
        }
        // SAFETY: as above; no memory is touched. The tops are below 2^15, so packing leaves them
        // as they are.
        unsafe {
            let tops = _mm_packs_epi32(_mm_packs_epi32(a, b), _mm_packs_epi32(c, d));
            let same = _mm_cmpeq_epi16(tops, _mm_set1_epi16(top as i16));
            (_mm_movemask_epi8(_mm_packs_epi16(same, same)) & 0xff) as u32
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        use core::sync::atomic::Ordering;
        line.iter().rev().fold(0, |mask, word| {
            let found = word.load(Ordering::Relaxed) >> (64 - BITS);
            mask << 1 | u32::from(found == top)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::REGION_GRANULE_BYTES;
    use core::sync::atomic::Ordering;

    #[test]
    fn discarded_words_read_as_zero_and_others_do_not() {
        let region = WordRegion::anonymous(3 * REGION_GRANULE_BYTES).unwrap();
        region.prefer_huge_pages(0, region.len());
        let word = |granule: u64| &region.line(granule * REGION_GRANULE_BYTES)[3];
        for granule in 0..3 {
            word(granule).store(granule + 1, Ordering::Relaxed);
        }
        region
            .discard(REGION_GRANULE_BYTES, REGION_GRANULE_BYTES)
            .unwrap();
        let words = [0, 1, 2].map(|granule| word(granule).load(Ordering::Relaxed));
        assert_eq!(words, [1, 0, 3]);
    }

    #[test]
    fn the_words_with_a_top_are_those_whose_highest_bits_it_is() {
        let region = WordRegion::anonymous(1).unwrap();
        let line = region.line(64);
        let mut random = 1_u64;
        for round in 0..10_000_u64 {
            for word in line {
                random = random
                    .wrapping_mul(0xd134_2543_de82_ef95)
                    .wrapping_add(round | 1);
                // Few tops, so that several words have the same; the least and the largest among
                // them.
                let top = [0, 1, 0x3fff, 0x4000, 0x7ffe, 0x7fff][(random >> 60) as usize % 6];
                word.store(top << 49 | random >> 15, Ordering::Relaxed);
            }
            for top in [0, 1, 2, 0x3fff, 0x4000, 0x7ffe, 0x7fff] {
                let with_top = |at: &u32| line[*at as usize].load(Ordering::Relaxed) >> 49 == top;
                let expected = (0..8).filter(with_top).map(|at| 1 << at).sum::<u32>();
                assert_eq!(words_with_top::<15>(line, top), expected);
            }
        }
    }
}
