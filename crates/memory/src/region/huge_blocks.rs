//! Which blocks of a region for readers are to become huge pages.
//!
//! The system makes huge pages of anonymous memory by itself. It does so for memory files only
//! where `shmem_enabled` says so, which is off nearly everywhere. It joins pages of a file on
//! request, whatever that setting (`MADV_COLLAPSE`, Linux 6.1). So the owner asks when the first
//! bytes of a block get their pages. Readers map the same huge page.
//!
//! Threads: any. A block is asked for once, by the first thread that comes there.

use super::HUGE_PAGE_BYTES;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

/// A bit a block. Owns no memory of the region.
#[derive(Debug)]
pub(super) struct HugeBlocks(Box<[AtomicU64]>);

impl HugeBlocks {
    /// None is to.
    pub(super) fn none(len: u64) -> Self {
        let words = (len / HUGE_PAGE_BYTES).div_ceil(64);
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    /// Whether those that lie in these bytes as a whole are to.
    pub(super) fn want(&self, bytes: Range<u64>, wanted: bool) {
        let first = bytes.start.div_ceil(HUGE_PAGE_BYTES);
        for block in first..bytes.end / HUGE_PAGE_BYTES {
            let (word, bit) = self.bit(block);
            // Relaxed: a hint, and nothing else is learnt by it.
            match wanted {
                true => word.fetch_or(bit, Ordering::Relaxed),
                false => word.fetch_and(!bit, Ordering::Relaxed),
            };
        }
    }

    /// The beginnings of those that share bytes with these, and are to. They are taken by that.
    pub(super) fn take(&self, bytes: Range<u64>) -> impl Iterator<Item = u64> {
        let blocks = bytes.start / HUGE_PAGE_BYTES..bytes.end.div_ceil(HUGE_PAGE_BYTES);
        blocks.filter_map(|block| {
            // The last bytes of a region may be no whole block.
            let word = self.0.get((block / 64) as usize)?;
            let bit = 1 << (block % 64);
            let is_wanted = word.load(Ordering::Relaxed) & bit != 0;
            let taken = is_wanted && word.fetch_and(!bit, Ordering::Relaxed) & bit != 0;
            taken.then_some(block * HUGE_PAGE_BYTES)
        })
    }

    fn bit(&self, block: u64) -> (&AtomicU64, u64) {
        (&self.0[(block / 64) as usize], 1 << (block % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = HUGE_PAGE_BYTES;

    #[test]
    fn whole_blocks_are_taken_once() {
        let blocks = HugeBlocks::none(200 * BLOCK + 1);
        let take = |from, end| blocks.take(from..end).collect::<Vec<_>>();
        assert!(take(0, 201 * BLOCK).is_empty());
        blocks.want(1..200 * BLOCK + 1, true);
        assert!(take(0, BLOCK).is_empty(), "not whole");
        assert!(take(200 * BLOCK, 200 * BLOCK + 1).is_empty(), "not whole");
        assert_eq!(take(BLOCK + 7, BLOCK + 8), [BLOCK]);
        assert_eq!(take(BLOCK, 3 * BLOCK), [2 * BLOCK]);
        blocks.want(60 * BLOCK..190 * BLOCK, false);
        assert_eq!(take(59 * BLOCK, 191 * BLOCK), [59 * BLOCK, 190 * BLOCK]);
    }
}
