//! The free seglets of a log region, in three pools, so that cleaning can always go on.
//!
//! Owns the free seglets and their purposes. Seglets are [LSM-DRAM §5.1]; RAMCloud's
//! `SegletAllocator` is the model of the pools.
//!
//! Invariants:
//! - S1: a seglet is in exactly one pool or taken (M2); the sum of the four is the seglet count.
//! - S2: the cleaner and emergency pools never hold more than their reserves. A seglet given back
//!   refills first the emergency pool, then the cleaner's, then the default pool.
//! - S3: a seglet counts as blank only if it was not taken since the region was made, or since its
//!   pages were discarded. Nor was the whole region fetched since. Of a part, blank ones of the
//!   default pool are taken last.
//! - S4: the region may be divided into parts, one for each memory node. The size of a pool counts
//!   over all parts. The parts matter only for the choice of seglets to take, and of those to keep
//!   in the reserves. A part without free seglets therefore takes those of another one, and every
//!   append succeeds that would succeed without parts.
//!
//! Threads: one mutex, held for the move of `n` numbers, never during a wait.
//!
//! Limits: it does not know whether a reader still looks at a seglet given back. Ask the reclaim
//! epochs first.

mod pages;

use core::fmt;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of a seglet in its pool. The pool's user decides where the bytes are. The log leaves
/// the first seglet of its region unused, so its bytes begin one seglet later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SegletIndex(pub u32);

impl fmt::Display for SegletIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seglet {}", self.0)
    }
}

/// The purpose of taken seglets.
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

/// A part of the region: the seglets of one memory node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PartIndex(pub u16);

/// The reason why a pool could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SegletPoolError {
    /// The reserves leave nothing for ordinary appends. Give more memory or smaller reserves.
    #[error(
        "{seglets} seglets of memory do not cover {} for the cleaner, {} for emergencies and one more",
        reserves.cleaner, reserves.emergency
    )]
    TooFew {
        /// All seglets of the pool.
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
    /// Where each part ends. Ascending; the last one is `seglets`.
    ends: Box<[u32]>,
    pools: Mutex<Pools>,
}

#[derive(Debug)]
struct Pools {
    parts: Box<[Part]>,
    /// One bit per seglet: set while it is taken. The witness of M2.
    taken: Vec<u64>,
    /// One bit per seglet: set from its taking, or the fetching of the region, until its pages were
    /// discarded (S3).
    pages: Vec<u64>,
    /// Seglets without that bit.
    blank: u32,
    /// Seglets taken for a part from another one.
    away: u64,
}

/// Stacks of free seglets of one part: the seglet freed last is used first, while it is still in
/// the caches.
#[derive(Debug, Default)]
struct Part {
    /// Those with pages, then those without (S3): the front was freed longest ago.
    default: VecDeque<SegletIndex>,
    blank: Vec<SegletIndex>,
    cleaner: Vec<SegletIndex>,
    emergency: Vec<SegletIndex>,
    /// The share of the reserves that should be of this part (S4).
    shares: Reserves,
}

/// The two pools that are reserves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kept {
    Emergency,
    Cleaner,
}

impl Reserves {
    fn of(self, kept: Kept) -> usize {
        match kept {
            Kept::Emergency => self.emergency as usize,
            Kept::Cleaner => self.cleaner as usize,
        }
    }

    /// The share of a part with the seglets `first..end` of `all`. It is proportional to the part's
    /// size, and the shares of all parts add up to the whole.
    fn share(self, first: u32, end: u32, all: u32) -> Self {
        let before = |reserve: u32, border: u32| {
            let share = u64::from(reserve) * u64::from(border) / u64::from(all);
            u32::try_from(share).expect("a part of a reserve")
        };
        let of = |reserve| before(reserve, end) - before(reserve, first);
        Self {
            cleaner: of(self.cleaner),
            emergency: of(self.emergency),
        }
    }
}

impl SegletPool {
    /// A pool of the seglets `0..seglets`, all free, in one part.
    ///
    /// # Errors
    /// [`SegletPoolError::TooFew`] when the reserves leave no seglet for ordinary appends.
    pub fn new(seglets: u32, reserves: Reserves) -> Result<Self, SegletPoolError> {
        Self::divided(&[seglets], reserves)
    }

    /// A pool of several parts of the given lengths, one behind the other.
    ///
    /// # Errors
    /// As of [`Self::new`].
    pub fn divided(lens: &[u32], reserves: Reserves) -> Result<Self, SegletPoolError> {
        let mut seglets = 0;
        let ends = lens.iter().map(|len| {
            seglets += len;
            seglets
        });
        let ends: Box<[u32]> = ends.collect();
        let kept = u64::from(reserves.cleaner) + u64::from(reserves.emergency);
        if kept >= u64::from(seglets) {
            return Err(SegletPoolError::TooFew { seglets, reserves });
        }
        let firsts = core::iter::once(0).chain(ends.iter().copied());
        let part = |(first, &end)| Part::new(first, end, reserves.share(first, end, seglets));
        let pools = Pools {
            parts: firsts.zip(&ends).map(part).collect(),
            taken: vec![0; (seglets as usize).div_ceil(64)],
            pages: vec![0; (seglets as usize).div_ceil(64)],
            blank: seglets,
            away: 0,
        };
        Ok(Self {
            seglets,
            reserves,
            ends,
            pools: Mutex::new(pools),
        })
    }

    /// The part of a seglet.
    #[must_use]
    pub fn part_of(&self, seglet: SegletIndex) -> PartIndex {
        let part = self.ends.partition_point(|&end| end <= seglet.0);
        PartIndex(u16::try_from(part).expect("parts are counted in 16 bits"))
    }

    /// Takes `count` seglets for `class`: all of them or none, as far as possible of `part`. Never
    /// waits.
    #[must_use]
    pub fn take(
        &self,
        class: SegletClass,
        count: usize,
        part: PartIndex,
    ) -> Option<Vec<SegletIndex>> {
        self.take_leaving(class, count, 0, part)
    }

    /// As [`Self::take`], but only if `leave` seglets stay in the default pool. Concurrent takers
    /// do not get those either, because one lock covers both counts.
    #[must_use]
    pub fn take_leaving(
        &self,
        class: SegletClass,
        count: usize,
        leave: usize,
        part: PartIndex,
    ) -> Option<Vec<SegletIndex>> {
        self.take_noting(class, count, leave, part, &mut |_| {})
    }

    /// As [`Self::take_leaving`], for memory that is asked for pages before it is written (R4).
    /// `is_blank` is told which of the seglets are without pages (S3).
    #[must_use]
    pub fn take_noting(
        &self,
        class: SegletClass,
        count: usize,
        leave: usize,
        part: PartIndex,
        is_blank: &mut dyn FnMut(SegletIndex),
    ) -> Option<Vec<SegletIndex>> {
        let mut pools = self.lock();
        let kept = match class {
            SegletClass::Default => None,
            SegletClass::Cleaner => Some(Kept::Cleaner),
            SegletClass::Emergency => Some(Kept::Emergency),
        };
        let in_reserve = kept.map_or(0, |kept| pools.kept(kept));
        let from_default = count.saturating_sub(in_reserve);
        if from_default > pools.default().saturating_sub(leave) {
            return None;
        }
        let mut seglets = Vec::with_capacity(count);
        let parts = self.ends.len();
        let in_turn = || (0..parts).map(|turn| (usize::from(part.0) + turn) % parts);
        if let Some(kept) = kept {
            pools.take_kept(kept, count.min(in_reserve), in_turn(), &mut seglets);
        }
        for part in in_turn() {
            let part = &mut pools.parts[part];
            let next = core::iter::from_fn(|| part.pop_default());
            let wanted = count - seglets.len();
            seglets.extend(next.take(wanted));
        }
        for &seglet in &seglets {
            if !is_set(&pools.pages, seglet) {
                is_blank(seglet);
            }
            pools.mark_taken(seglet);
        }
        if parts > 1 {
            let away = seglets.iter().filter(|s| self.part_of(**s) != part);
            pools.away += away.count() as u64;
        }
        self.check(&pools);
        Some(seglets)
    }

    /// Gives seglets back. They may be taken again at once.
    ///
    /// # Panics
    /// When a seglet is not taken, or not of this pool (M2): memory would get lost.
    pub fn give_back(&self, seglets: impl IntoIterator<Item = SegletIndex>) {
        let mut pools = self.lock();
        for seglet in seglets {
            self.free_one(&mut pools, seglet, false);
        }
        self.check(&pools);
    }

    fn free_one(&self, pools: &mut Pools, seglet: SegletIndex, is_blank: bool) {
        assert!(
            seglet.0 < self.seglets && pools.clear_taken(seglet),
            "M2: {seglet} was given back, but it is not taken"
        );
        if is_blank {
            pools.forget_pages(seglet);
        }
        if let Some(left) = self.fill_reserves(pools, seglet) {
            pools.push_default(usize::from(self.part_of(left).0), left);
        }
    }

    /// Puts a seglet into the reserves, if they want one of its part. Gives the seglet that is left
    /// for the default pool: this one, or one of a part that has too many (S4).
    fn fill_reserves(&self, pools: &mut Pools, seglet: SegletIndex) -> Option<SegletIndex> {
        let mut left = seglet;
        for kept in [Kept::Emergency, Kept::Cleaner] {
            let part = usize::from(self.part_of(left).0);
            if pools.kept(kept) < self.reserves.of(kept) {
                pools.parts[part].reserve(kept).push(left);
                return None;
            }
            if pools.parts[part].wants(kept) {
                let other = pools.parts.iter_mut().find(|part| part.has_too_many(kept));
                let other = other.and_then(|other| other.reserve(kept).pop());
                let other = other.expect("when one part has less than its share, another has more");
                pools.parts[part].reserve(kept).push(left);
                left = other;
            }
        }
        Some(left)
    }

    /// The part with the least share of free seglets for everybody, the first one of several, and
    /// that share in thousandths. `None` if there is only one part.
    #[must_use]
    pub fn poorest(&self) -> Option<(PartIndex, u64)> {
        if self.ends.len() == 1 {
            return None;
        }
        let shares = (0..).map(PartIndex).zip(self.free_permille());
        shares.min_by_key(|(_, free)| *free)
    }

    /// The share of each part's seglets that is free for everybody, in thousandths.
    #[must_use]
    pub fn free_permille(&self) -> Vec<u64> {
        let pools = self.lock();
        let mut first = 0;
        let permille = pools.parts.iter().zip(&self.ends).map(|(part, &end)| {
            let all = u64::from(end - first).max(1);
            first = end;
            part.default() as u64 * 1000 / all
        });
        permille.collect()
    }

    /// Seglets that were taken for a part from another one, since the pool was made.
    #[must_use]
    pub fn taken_away(&self) -> u64 {
        self.lock().away
    }

    /// The free seglets at this moment; stale as soon as it is read.
    #[must_use]
    pub fn free(&self) -> FreeSeglets {
        let pools = self.lock();
        FreeSeglets {
            default: count([pools.default()].into_iter()),
            cleaner: count([pools.kept(Kept::Cleaner)].into_iter()),
            emergency: count([pools.kept(Kept::Emergency)].into_iter()),
        }
    }

    /// Seglets of the region, free or taken.
    #[must_use]
    pub fn seglets(&self) -> u32 {
        self.seglets
    }

    /// The reserves kept back from ordinary appends.
    #[must_use]
    pub fn reserves(&self) -> Reserves {
        self.reserves
    }

    /// Whether all free seglets among these have no pages: a glimpse, because one may be taken at
    /// any time.
    #[must_use]
    pub fn are_blank(&self, seglets: core::ops::Range<u32>) -> bool {
        let pools = self.lock();
        let mut there_are = seglets.start..seglets.end.min(self.seglets);
        there_are.all(|seglet| !is_set(&pools.pages, SegletIndex(seglet)))
    }

    /// S1 and S2, in builds with debug assertions: it counts every seglet.
    fn check(&self, pools: &Pools) {
        if !cfg!(debug_assertions) {
            return;
        }
        let kept = [Kept::Emergency, Kept::Cleaner].map(|kept| (kept, pools.kept(kept)));
        for (kept, held) in kept {
            let reserve = self.reserves.of(kept);
            assert!(held <= reserve, "S2: {kept:?} holds {held} of {reserve}");
        }
        let taken: u32 = pools.taken.iter().map(|word| word.count_ones()).sum();
        let free = pools.default() + kept.map(|(_, held)| held).iter().sum::<usize>();
        assert_eq!(
            free + taken as usize,
            self.seglets as usize,
            "S1: {taken} are taken"
        );
        let pages: u32 = pools.pages.iter().map(|word| word.count_ones()).sum();
        let mut blank = pools.parts.iter().flat_map(|part| &part.blank);
        assert!(
            pages + pools.blank == self.seglets && blank.all(|s| !is_set(&pools.pages, *s)),
            "S3: {pages} have pages, {} have none",
            pools.blank
        );
    }

    fn lock(&self) -> MutexGuard<'_, Pools> {
        // A panic in here is a broken M2, found before anything was moved for that seglet.
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_set(bits: &[u64], seglet: SegletIndex) -> bool {
    bits[seglet.0 as usize / 64] & (1 << (seglet.0 % 64)) != 0
}

fn count(seglets: impl Iterator<Item = usize>) -> u32 {
    u32::try_from(seglets.sum::<usize>()).expect("no more than seglets")
}

impl Part {
    fn new(first: u32, end: u32, shares: Reserves) -> Self {
        let mut part = Self {
            shares,
            ..Default::default()
        };
        // Stacked from the end, so that memory is touched from the part's start on.
        let mut free = (first..end).rev().map(SegletIndex);
        let mut some = |count: u32| free.by_ref().take(count as usize).collect();
        part.emergency = some(shares.emergency);
        part.cleaner = some(shares.cleaner);
        part.blank = free.collect();
        part
    }

    fn reserve(&mut self, kept: Kept) -> &mut Vec<SegletIndex> {
        match kept {
            Kept::Emergency => &mut self.emergency,
            Kept::Cleaner => &mut self.cleaner,
        }
    }

    fn default(&self) -> usize {
        self.default.len() + self.blank.len()
    }

    fn pop_default(&mut self) -> Option<SegletIndex> {
        self.default.pop_back().or_else(|| self.blank.pop())
    }

    fn kept(&self, kept: Kept) -> usize {
        match kept {
            Kept::Emergency => self.emergency.len(),
            Kept::Cleaner => self.cleaner.len(),
        }
    }

    fn wants(&self, kept: Kept) -> bool {
        self.kept(kept) < self.shares.of(kept)
    }

    fn has_too_many(&self, kept: Kept) -> bool {
        self.kept(kept) > self.shares.of(kept)
    }
}

impl Pools {
    /// Takes this many seglets of a reserve, which has them, for the first one of `parts`. If only
    /// other parts have some left, the first part swaps one of its own default pool for one of
    /// those. All pools then hold as many as without parts (S4).
    fn take_kept(
        &mut self,
        kept: Kept,
        count: usize,
        mut parts: impl Iterator<Item = usize>,
        into: &mut Vec<SegletIndex>,
    ) {
        let own = parts.next().expect("a pool has a part");
        let reserve = self.parts[own].reserve(kept);
        into.extend(reserve.drain(reserve.len().saturating_sub(count)..).rev());
        for other in parts {
            while into.len() < count {
                let Some(theirs) = self.parts[other].reserve(kept).pop() else {
                    break;
                };
                match self.parts[own].pop_default() {
                    Some(mine) => {
                        into.push(mine);
                        self.push_default(other, theirs);
                    }
                    None => into.push(theirs),
                }
            }
        }
    }

    fn kept(&self, kept: Kept) -> usize {
        self.parts.iter().map(|part| part.kept(kept)).sum()
    }

    fn default(&self) -> usize {
        self.parts.iter().map(Part::default).sum()
    }

    fn mark_taken(&mut self, seglet: SegletIndex) {
        let (word, bit) = (seglet.0 as usize / 64, 1 << (seglet.0 % 64));
        debug_assert_eq!(self.taken[word] & bit, 0, "M2: {seglet} is taken twice");
        self.taken[word] |= bit;
        self.blank -= u32::from(self.pages[word] & bit == 0);
        self.pages[word] |= bit;
    }

    /// Its pages were discarded.
    fn forget_pages(&mut self, seglet: SegletIndex) {
        let (word, bit) = (seglet.0 as usize / 64, 1 << (seglet.0 % 64));
        self.blank += u32::from(self.pages[word] & bit != 0);
        self.pages[word] &= !bit;
    }

    /// Puts a free seglet into the default pool of its part.
    fn push_default(&mut self, part: usize, seglet: SegletIndex) {
        let part = &mut self.parts[part];
        if is_set(&self.pages, seglet) {
            part.default.push_back(seglet);
        } else {
            part.blank.push(seglet);
        }
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
mod tests;
