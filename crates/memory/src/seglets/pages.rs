//! Free seglets with pages, and taking those whose pages are to go back to the system (S3).

use super::{Pools, SegletIndex, SegletPool, count, is_set};

impl SegletPool {
    /// Takes up to `count` seglets with pages from the default pool of one part, those freed
    /// longest ago. Discard their pages, then give them to [`Self::give_back_blank`].
    #[must_use]
    pub fn take_with_pages(&self, count: usize) -> Vec<SegletIndex> {
        if count == 0 {
            return Vec::new();
        }
        let mut pools = self.lock();
        let fullest = pools.parts.iter_mut().max_by_key(|part| part.default.len());
        let free = &mut fullest.expect("a pool has a part").default;
        let seglets: Vec<SegletIndex> = free.drain(..count.min(free.len())).collect();
        for &seglet in &seglets {
            pools.mark_taken(seglet);
        }
        self.check(&pools);
        seglets
    }

    /// Takes up to `count` seglets with pages from the cleaner's reserve, to be discarded as those
    /// of [`Self::take_with_pages`]. Until they are given back the reserve is smaller.
    #[must_use]
    pub fn take_reserve_with_pages(&self, count: usize) -> Vec<SegletIndex> {
        let mut pools = self.lock();
        let Pools { parts, pages, .. } = &mut *pools;
        let mut seglets = Vec::new();
        for part in parts.iter_mut() {
            part.cleaner.retain(|&seglet| {
                let taken = seglets.len() < count && is_set(pages, seglet);
                if taken {
                    seglets.push(seglet);
                }
                !taken
            });
        }
        if seglets.is_empty() {
            return seglets;
        }
        for &seglet in &seglets {
            pools.mark_taken(seglet);
        }
        self.check(&pools);
        seglets
    }

    /// Gives seglets back whose pages were discarded.
    ///
    /// # Panics
    /// As [`Self::give_back`].
    pub fn give_back_blank(&self, seglets: impl IntoIterator<Item = SegletIndex>) {
        let mut pools = self.lock();
        for seglet in seglets {
            self.free_one(&mut pools, seglet, true);
        }
        self.check(&pools);
    }

    /// Notes that the system has fetched the pages of the whole region (S3). It does so for up to
    /// `count` free seglets of each part at a time, and says whether none is left. The noted ones
    /// are used after those that were freed.
    pub fn note_pages(&self, count: usize) -> bool {
        let mut pools = self.lock();
        let Pools {
            parts,
            pages,
            blank,
            ..
        } = &mut *pools;
        let mut note = |seglet: SegletIndex| {
            let (word, bit) = (seglet.0 as usize / 64, 1 << (seglet.0 % 64));
            *blank -= u32::from(pages[word] & bit == 0);
            pages[word] |= bit;
        };
        let mut is_all = true;
        for part in parts.iter_mut() {
            part.cleaner.iter().copied().for_each(&mut note);
            part.emergency.iter().copied().for_each(&mut note);
            let rest = part.blank.len().saturating_sub(count);
            for seglet in part.blank.drain(rest..).rev() {
                note(seglet);
                part.default.push_front(seglet);
            }
            is_all &= part.blank.is_empty();
        }
        self.check(&pools);
        is_all
    }

    /// Seglets of the default pool that have pages.
    #[must_use]
    pub fn free_with_pages(&self) -> u32 {
        count(self.lock().parts.iter().map(|part| part.default.len()))
    }

    /// Free seglets of all pools without pages (S3).
    #[must_use]
    pub fn blank(&self) -> u32 {
        self.lock().blank
    }
}
