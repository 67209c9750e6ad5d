//! The free seglets of a log region, in three pools, so that cleaning can always go on.
//!
//! Owns which seglet is free and for whom. Seglets are 000 §5.1; RAMCloud's
//! `SegletAllocator` is the model of the pools.
//!
//! Invariants:
//! - S1: a seglet is in exactly one pool or taken (M2); the sum of the four is the seglet count.
//! - S2: the cleaner and emergency pools never hold more than their reserves; a seglet given back
//!   refills first the emergency pool, then the cleaner's, then the default pool.
//! - S3: a seglet counts as blank only if its pages have not been touched since the region was made or
//!   since they were discarded. Blank ones are taken last.
//!
//! Threads: one mutex, held for the move of `n` numbers; never while anything is waited for.
//!
//! What it does not do: it does not know whether a reader still looks at a seglet given back. Ask
//! the reclaim epochs first.

use core::fmt;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of a seglet in its region: its bytes begin at this number times the seglet size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SegletIndex(pub u32);

impl SegletIndex {
    /// Where the seglet begins in its region.
    #[must_use]
    #[inline]
    pub fn offset(self, seglet_bytes: u64) -> u64 {
        u64::from(self.0) * seglet_bytes
    }
}

impl fmt::Display for SegletIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seglet {}", self.0)
    }
}

/// For whom seglets are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegletClass {
    /// Heads and side logs: the default pool only.
    Default,
    /// Survivors: the cleaner's pool, then the default pool.
    Cleaner,
    /// Heads that carry nothing but a digest: the emergency pool, then the default pool.
    Emergency,
}

/// How many seglets are kept back from ordinary appends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reserves {
    /// For survivors.
    pub cleaner: u32,
    /// For emergency heads.
    pub emergency: u32,
}

/// How many seglets each pool holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeSeglets {
    /// For everybody.
    pub default: u32,
    /// For survivors.
    pub cleaner: u32,
    /// For emergency heads.
    pub emergency: u32,
}

impl FreeSeglets {
    /// All free seglets.
    #[must_use]
    pub fn total(self) -> u32 {
        self.default + self.cleaner + self.emergency
    }
}

/// Why a pool could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SegletPoolError {
    /// The reserves leave nothing for ordinary appends. Give more memory or smaller reserves.
    #[error(
        "{seglets} seglets of memory do not cover {} for the cleaner, {} for emergencies and one more",
        reserves.cleaner, reserves.emergency
    )]
    TooFew {
        /// Seglets there are.
        seglets: u32,
        /// Seglets kept back.
        reserves: Reserves,
    },
}

/// The free seglets of one region.
#[derive(Debug)]
pub struct SegletPool {
    seglets: u32,
    reserves: Reserves,
    pools: Mutex<Pools>,
}

/// Stacks of free seglets: what was freed last is used first, while it is still in the caches.
#[derive(Debug)]
struct Pools {
    /// Those with pages, then those without (S3): the front was freed longest ago.
    default: VecDeque<SegletIndex>,
    blank: Vec<SegletIndex>,
    cleaner: Vec<SegletIndex>,
    emergency: Vec<SegletIndex>,
    /// One bit per seglet: set while it is taken. The witness of M2.
    taken: Vec<u64>,
}

impl SegletPool {
    /// A pool of the seglets `0..seglets`, all free.
    ///
    /// # Errors
    /// [`SegletPoolError::TooFew`] when the reserves leave no seglet for ordinary appends.
    pub fn new(seglets: u32, reserves: Reserves) -> Result<Self, SegletPoolError> {
        let kept = u64::from(reserves.cleaner) + u64::from(reserves.emergency);
        if kept >= u64::from(seglets) {
            return Err(SegletPoolError::TooFew { seglets, reserves });
        }
        let mut pools = Pools {
            default: VecDeque::with_capacity(seglets as usize),
            blank: Vec::with_capacity(seglets as usize),
            cleaner: Vec::with_capacity(reserves.cleaner as usize),
            emergency: Vec::with_capacity(reserves.emergency as usize),
            taken: vec![0; (seglets as usize).div_ceil(64)],
        };
        // Stacked from the end, so that memory is touched from the region's start on.
        for index in (0..seglets).rev() {
            if let Some(blank) = pools.put_in_reserve(SegletIndex(index), reserves) {
                pools.blank.push(blank);
            }
        }
        Ok(Self {
            seglets,
            reserves,
            pools: Mutex::new(pools),
        })
    }

    /// Takes `count` seglets for `class`: all of them or none. Never waits.
    #[must_use]
    pub fn take(&self, class: SegletClass, count: usize) -> Option<Vec<SegletIndex>> {
        let mut pools = self.lock();
        let pools = &mut *pools;
        let own = match class {
            SegletClass::Default => None,
            SegletClass::Cleaner => Some(&mut pools.cleaner),
            SegletClass::Emergency => Some(&mut pools.emergency),
        };
        let own_len = own.as_ref().map_or(0, |pool| pool.len());
        if own_len + pools.default.len() + pools.blank.len() < count {
            return None;
        }
        let mut seglets = Vec::with_capacity(count);
        if let Some(own) = own {
            seglets.extend(own.drain(own_len - own_len.min(count)..).rev());
        }
        while seglets.len() < count {
            let next = pools.default.pop_back().or_else(|| pools.blank.pop());
            seglets.push(next.expect("counted above"));
        }
        for &seglet in &seglets {
            pools.mark_taken(seglet);
        }
        Some(seglets)
    }

    /// Gives seglets back, to be taken again at once by anybody.
    ///
    /// # Panics
    /// When a seglet is not taken, or not of this pool (M2): somebody would lose memory.
    pub fn give_back(&self, seglets: impl IntoIterator<Item = SegletIndex>) {
        let mut pools = self.lock();
        for seglet in seglets {
            assert!(
                seglet.0 < self.seglets && pools.clear_taken(seglet),
                "{seglet} was given back, but it is not taken"
            );
            pools.put(seglet, self.reserves);
        }
    }

    /// Takes up to `count` seglets of the default pool that have pages, those that were freed longest
    /// ago: to be discarded and then given to [`Self::give_back_blank`].
    #[must_use]
    pub fn take_with_pages(&self, count: usize) -> Vec<SegletIndex> {
        let mut pools = self.lock();
        let count = count.min(pools.default.len());
        let seglets: Vec<SegletIndex> = pools.default.drain(..count).collect();
        for &seglet in &seglets {
            pools.mark_taken(seglet);
        }
        seglets
    }

    /// Gives seglets back whose pages were discarded.
    ///
    /// # Panics
    /// As [`Self::give_back`].
    pub fn give_back_blank(&self, seglets: impl IntoIterator<Item = SegletIndex>) {
        let mut pools = self.lock();
        for seglet in seglets {
            assert!(
                seglet.0 < self.seglets && pools.clear_taken(seglet),
                "{seglet} was given back, but it is not taken"
            );
            if let Some(blank) = pools.put_in_reserve(seglet, self.reserves) {
                pools.blank.push(blank);
            }
        }
    }

    /// Seglets of the default pool that have pages.
    #[must_use]
    pub fn free_with_pages(&self) -> u32 {
        count(self.lock().default.len())
    }

    /// Free seglets of the default pool without pages (S3).
    #[must_use]
    pub fn blank(&self) -> u32 {
        count(self.lock().blank.len())
    }

    /// What is free now; stale as soon as it is read.
    #[must_use]
    pub fn free(&self) -> FreeSeglets {
        let pools = self.lock();
        FreeSeglets {
            default: count(pools.default.len() + pools.blank.len()),
            cleaner: count(pools.cleaner.len()),
            emergency: count(pools.emergency.len()),
        }
    }

    /// Seglets of the region, free or taken.
    #[must_use]
    pub fn seglets(&self) -> u32 {
        self.seglets
    }

    /// What is kept back from ordinary appends.
    #[must_use]
    pub fn reserves(&self) -> Reserves {
        self.reserves
    }

    fn lock(&self) -> MutexGuard<'_, Pools> {
        // A panic in here is a broken M2, found before anything was moved for that seglet.
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn count(seglets: usize) -> u32 {
    u32::try_from(seglets).expect("no more than seglets")
}

impl Pools {
    fn put(&mut self, seglet: SegletIndex, reserves: Reserves) {
        if let Some(seglet) = self.put_in_reserve(seglet, reserves) {
            self.default.push_back(seglet);
        }
    }

    /// Gives the seglet back when the reserves are full.
    fn put_in_reserve(&mut self, seglet: SegletIndex, reserves: Reserves) -> Option<SegletIndex> {
        let pool = if self.emergency.len() < reserves.emergency as usize {
            &mut self.emergency
        } else if self.cleaner.len() < reserves.cleaner as usize {
            &mut self.cleaner
        } else {
            return Some(seglet);
        };
        pool.push(seglet);
        None
    }

    fn mark_taken(&mut self, seglet: SegletIndex) {
        let (word, bit) = (seglet.0 as usize / 64, 1 << (seglet.0 % 64));
        debug_assert_eq!(self.taken[word] & bit, 0, "{seglet} is taken twice");
        self.taken[word] |= bit;
    }

    /// Whether the seglet was taken.
    fn clear_taken(&mut self, seglet: SegletIndex) -> bool {
        let (word, bit) = (seglet.0 as usize / 64, 1 << (seglet.0 % 64));
        let was = self.taken[word] & bit != 0;
        self.taken[word] &= !bit;
        was
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn pool() -> SegletPool {
        let reserves = Reserves {
            cleaner: 3,
            emergency: 2,
        };
        SegletPool::new(10, reserves).unwrap()
    }

    fn free(default: u32, cleaner: u32, emergency: u32) -> FreeSeglets {
        FreeSeglets {
            default,
            cleaner,
            emergency,
        }
    }

    #[test]
    fn reserves_are_out_of_reach_of_ordinary_appends() {
        let pool = pool();
        assert_eq!(pool.free(), free(5, 3, 2));
        assert!(pool.take(SegletClass::Default, 6).is_none());
        let first = pool.take(SegletClass::Default, 5).unwrap();
        assert_eq!(
            first[0],
            SegletIndex(0),
            "memory is touched from its start on"
        );
        assert!(pool.take(SegletClass::Default, 1).is_none());
        assert_eq!(pool.take(SegletClass::Default, 0), Some(vec![]));
        assert_eq!(pool.free(), free(0, 3, 2));
    }

    #[test]
    fn the_cleaner_takes_its_reserve_first_and_then_from_everybody() {
        let pool = pool();
        assert_eq!(pool.take(SegletClass::Cleaner, 2).unwrap().len(), 2);
        assert_eq!(pool.free(), free(5, 1, 2));
        assert!(pool.take(SegletClass::Cleaner, 7).is_none());
        assert_eq!(pool.free(), free(5, 1, 2), "all or nothing");
        assert_eq!(pool.take(SegletClass::Cleaner, 4).unwrap().len(), 4);
        assert_eq!(pool.free(), free(2, 0, 2));
    }

    #[test]
    fn freed_seglets_refill_emergency_then_cleaner_then_default() {
        let pool = pool();
        let mut taken = pool.take(SegletClass::Cleaner, 8).unwrap();
        taken.extend(pool.take(SegletClass::Emergency, 2).unwrap());
        assert_eq!(pool.free(), free(0, 0, 0));
        let distinct: BTreeSet<_> = taken.iter().copied().collect();
        assert_eq!(distinct.len(), 10);
        for (given, expected) in [(2, free(0, 0, 2)), (3, free(0, 3, 2)), (5, free(5, 3, 2))] {
            pool.give_back(taken.drain(..given));
            assert_eq!(pool.free(), expected);
        }
        assert_eq!(pool.free().total(), pool.seglets());
    }

    #[test]
    #[should_panic(expected = "seglet 0 was given back, but it is not taken")]
    fn giving_a_seglet_back_twice_is_refused() {
        let pool = pool();
        let taken = pool.take(SegletClass::Default, 1).unwrap();
        pool.give_back(taken.clone());
        pool.give_back(taken);
    }

    #[test]
    fn what_was_freed_longest_ago_is_discarded_first_and_used_last() {
        let pool = pool();
        assert_eq!(pool.free_with_pages(), 0, "nothing was touched yet");
        let taken = pool.take(SegletClass::Default, 4).unwrap();
        pool.give_back(taken.iter().copied());
        assert_eq!(pool.free_with_pages(), 4);
        let oldest = pool.take_with_pages(3);
        assert_eq!(oldest, taken[..3]);
        assert_eq!(pool.free(), free(2, 3, 2));
        pool.give_back_blank(oldest);
        assert_eq!((pool.free(), pool.free_with_pages()), (free(5, 3, 2), 1));
        let next = pool.take(SegletClass::Default, 2).unwrap();
        assert_eq!(next, [taken[3], taken[2]]);
        assert_eq!(pool.free_with_pages(), 0);
    }

    #[test]
    fn reserves_must_leave_something() {
        let reserves = Reserves {
            cleaner: u32::MAX,
            emergency: u32::MAX,
        };
        let error = SegletPool::new(10, reserves).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("10 seglets of memory do not cover")
        );
    }
}
