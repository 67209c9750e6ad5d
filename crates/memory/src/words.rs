//! A region that is only used as atomic words, so that giving its pages back is safe.

use crate::region::{Region, RegionError};
use core::sync::atomic::AtomicU64;

/// Anonymous memory of which nobody ever borrows plain bytes.
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

    /// See [`Region::prefer_huge_pages`].
    ///
    /// # Panics
    /// As there.
    pub fn prefer_huge_pages(&self, offset: u64, len: u64) {
        self.0.prefer_huge_pages(offset, len);
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

    /// Never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The cache line of eight words at `offset`.
    ///
    /// # Panics
    /// When `offset` is no multiple of 64 or lies behind the end (M1).
    #[must_use]
    #[inline]
    pub fn line(&self, offset: u64) -> &[AtomicU64; 8] {
        self.0.line(offset)
    }

    /// Asks the processor to bring the cache line of `offset` near. Never faults.
    #[inline]
    pub fn prefetch(&self, offset: u64) {
        self.0.prefetch(offset);
    }

    /// Gives the pages of `len` bytes from `offset` on back to the system; their words read as zero from now on. A
    /// word that others load or store during the call has any of its values, or zero: the order of what they do is
    /// lost, so keep them away.
    ///
    /// # Errors
    /// [`RegionError::AdviceFailed`]: the words are unchanged; retrying is harmless.
    ///
    /// # Panics
    /// When the range leaves the region or its borders are no multiples of [`crate::REGION_GRANULE_BYTES`].
    pub fn discard(&self, offset: u64, len: u64) -> Result<(), RegionError> {
        // SAFETY: the region is ours alone and its bytes are accessed as atomic words only, all of them through
        // `line`. To those, pages that become zero are stores made outside the program.
        unsafe { self.0.discard(offset, len) }
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
}
