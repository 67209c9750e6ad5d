//! Free seglets: taking them for segments, giving them back, and giving pages of free ones back to
//! the system.
//!
//! Owns the pool with its reserves, and two forecasts: whether appends make live data more, and how
//! much passes under way will free.

use crate::geometry::Geometry;
use crate::memory::{DeadBits, LogMemory};
use core::sync::atomic::{AtomicUsize, Ordering};
use pluvio_memory::{
    FreeSeglets, PartIndex, RegionError, Reserves, SegletClass, SegletIndex, SegletPool,
};
use std::sync::OnceLock;

/// Asked before seglets are taken, for whom and how many; see
/// [`LogSpace::set_seglet_gate`](crate::LogSpace::set_seglet_gate).
pub type SegletGate = Box<dyn Fn(SegletClass, usize) -> bool + Send + Sync>;

/// See the module.
pub(crate) struct Seglets {
    pool: SegletPool,
    gate: OnceLock<SegletGate>,
    delete_reserve: usize,
    segment_seglets: usize,
    /// For so many seglets more that other appends take, memory is kept free for those that make
    /// live data more.
    growth: AtomicUsize,
    /// Seglets that passes under way will free beyond those they take.
    gains: AtomicUsize,
    /// The system has refused pages. Until this number of seglets was freed, those without pages do
    /// not count as free: the cleaner has to gain others.
    refused: AtomicUsize,
    /// The system refuses pages, as a test has it.
    #[cfg(any(test, feature = "fault-injection"))]
    refuses: core::sync::atomic::AtomicBool,
}

impl Seglets {
    /// Of a memory divided into parts of these lengths.
    pub(crate) fn new(geometry: &Geometry, parts: &[u32]) -> Self {
        let count = |n: usize| u32::try_from(n).expect("seglets are counted in 32 bits");
        let reserves = Reserves {
            cleaner: count(geometry.reserves.cleaner),
            emergency: count(geometry.reserves.emergency),
        };
        Self {
            pool: SegletPool::divided(parts, reserves)
                .expect("the geometry leaves seglets beside the reserves"),
            gate: OnceLock::new(),
            delete_reserve: geometry.reserves.delete,
            segment_seglets: geometry.segment_seglets,
            growth: AtomicUsize::new(0),
            gains: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            #[cfg(any(test, feature = "fault-injection"))]
            refuses: core::sync::atomic::AtomicBool::new(false),
        }
    }

    /// Gives the reserves pages, where memory is written only with them (R4): cleaning goes on when
    /// the system has none left.
    pub(crate) fn fetch_reserves(&self, memory: &LogMemory) -> Result<(), RegionError> {
        if !memory.raw().is_read() {
            return Ok(());
        }
        let reserves = self.pool.reserves();
        let kept = [
            (SegletClass::Emergency, reserves.emergency),
            (SegletClass::Cleaner, reserves.cleaner),
        ];
        let taken = kept.into_iter().filter_map(|(class, count)| {
            let seglets = self.pool.take(class, count as usize, PartIndex(0));
            debug_assert!(seglets.is_some(), "S2: nobody has taken any yet");
            seglets
        });
        let taken: Vec<SegletIndex> = taken.flatten().collect();
        let mut pages = taken.iter().map(|seglet| memory.raw().allocate(seglet.0));
        let fetched = pages.find(Result::is_err).unwrap_or(Ok(()));
        self.pool.give_back(taken);
        fetched
    }

    /// Sets the party that may refuse seglets; only the first call counts.
    pub(crate) fn set_gate(&self, gate: SegletGate) {
        let _first_one_counts = self.gate.set(gate);
    }

    /// Takes seglets of a class and leaves at least `leave` of the default pool behind. They are of
    /// this part of memory as long as it has some.
    pub(crate) fn take(
        &self,
        class: SegletClass,
        count: usize,
        leave: usize,
        part: PartIndex,
        memory: &LogMemory,
    ) -> Option<Vec<u32>> {
        let is_let = self.gate.get().is_none_or(|gate| gate(class, count));
        if !is_let {
            return None;
        }
        let is_read = memory.raw().is_read();
        let mut blank = Vec::new();
        let mut is_blank = |seglet| {
            if is_read {
                blank.push(seglet);
            }
        };
        let pool = &self.pool;
        let seglets = pool.take_noting(class, count, leave, part, &mut is_blank)?;
        if !blank.is_empty() && !self.have_pages(&blank, memory) {
            let with_pages = seglets.into_iter().filter(|seglet| !blank.contains(seglet));
            self.pool.give_back(with_pages);
            self.discard(blank, memory);
            return None;
        }
        Some(seglets.into_iter().map(|s| s.0).collect())
    }

    /// Asks the system for the pages of seglets that were taken (R4). If it refuses, seglets
    /// without pages are not free for a while.
    fn have_pages(&self, seglets: &[SegletIndex], memory: &LogMemory) -> bool {
        #[cfg(any(test, feature = "fault-injection"))]
        let is_let = !self.refuses.load(Ordering::Relaxed);
        #[cfg(not(any(test, feature = "fault-injection")))]
        let is_let = true;
        let mut pages = seglets.iter().map(|seglet| memory.raw().allocate(seglet.0));
        let are_there = is_let && pages.all(|pages| pages.is_ok());
        let refused = match are_there {
            true => 0,
            false => self.pool.seglets() as usize,
        };
        self.refused.store(refused, Ordering::Relaxed);
        are_there
    }

    /// From now on the system refuses pages, or does not.
    #[cfg(any(test, feature = "fault-injection"))]
    pub(crate) fn refuse_pages(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::Relaxed);
    }

    pub(crate) fn give_back(&self, seglets: impl IntoIterator<Item = u32>) {
        let mut count = 0;
        let counted = seglets.into_iter().inspect(|_| count += 1);
        self.pool.give_back(counted.map(SegletIndex));
        let refused = self.refused.load(Ordering::Relaxed);
        if refused > 0 {
            // A hint: of two stores at a time one may get lost.
            let left = refused.saturating_sub(count);
            self.refused.store(left, Ordering::Relaxed);
        }
    }

    /// Notes, for the cleaner, whether the appends of late make live data more.
    pub(crate) fn note_growth(&self, count: usize, leave: usize) {
        // The loads keep the line shared: this is once for each seglet.
        let seglets = self.growth.load(Ordering::Relaxed);
        let now = if leave > self.delete_reserve {
            self.segment_seglets
        } else {
            seglets.saturating_sub(count)
        };
        if now != seglets {
            self.growth.store(now, Ordering::Relaxed);
        }
    }

    /// Whether some of the last seglets, as many as a segment has, were wanted by appends that make
    /// live data more. These have to leave the overwrite reserve alone.
    pub(crate) fn is_growing(&self) -> bool {
        self.growth.load(Ordering::Relaxed) > 0
    }

    /// A pass will free this many seglets beyond those it takes.
    pub(crate) fn expect_gain(&self, seglets: usize) {
        self.gains.fetch_add(seglets, Ordering::Relaxed);
    }

    /// It is through, and they are on their way.
    pub(crate) fn end_gain(&self, seglets: usize) {
        self.gains.fetch_sub(seglets, Ordering::Relaxed);
    }

    /// Seglets that passes under way will free beyond those they take.
    pub(crate) fn expected_gains(&self) -> usize {
        self.gains.load(Ordering::Relaxed)
    }

    // --- what is free ----------------------------------------------------------------------------

    pub(crate) fn free(&self) -> FreeSeglets {
        let free = self.pool.free();
        match self.refused.load(Ordering::Relaxed) {
            0 => free,
            _ => FreeSeglets {
                default: self.pool.free_with_pages(),
                ..free
            },
        }
    }

    /// Free seglets of each part, in thousandths of its own.
    pub(crate) fn free_permille(&self) -> Vec<u64> {
        self.pool.free_permille()
    }

    /// The part with the least free, where there are several.
    pub(crate) fn poorest(&self) -> Option<(PartIndex, u64)> {
        self.pool.poorest()
    }

    /// Seglets that a log took from another part, because its own had none.
    pub(crate) fn taken_away(&self) -> u64 {
        self.pool.taken_away()
    }

    // --- pages -----------------------------------------------------------------------------------

    /// Seglets without pages.
    pub(crate) fn blank(&self) -> u32 {
        self.pool.blank()
    }

    pub(crate) fn free_with_pages(&self) -> u32 {
        self.pool.free_with_pages()
    }

    /// See [`SegletPool::note_pages`].
    pub(crate) fn note_pages(&self, count: usize) -> bool {
        self.pool.note_pages(count)
    }

    /// Gives the pages of up to `count` free seglets back to the system; returns of how many.
    pub(crate) fn give_pages_back(&self, count: usize, memory: &LogMemory) -> usize {
        if !memory.raw().gives_pages_back() {
            return 0;
        }
        self.discard(self.pool.take_with_pages(count), memory)
    }

    /// The same for seglets of the cleaners' reserve. It keeps its pages where the system may
    /// refuse to give them again.
    pub(crate) fn give_reserve_pages_back(&self, count: usize, memory: &LogMemory) -> usize {
        if memory.raw().is_read() {
            return 0;
        }
        self.discard(self.pool.take_reserve_with_pages(count), memory)
    }

    fn discard(&self, seglets: Vec<SegletIndex>, memory: &LogMemory) -> usize {
        if seglets.is_empty() {
            return 0;
        }
        for seglet in &seglets {
            memory.raw().discard(seglet.0);
        }
        let given: Vec<u32> = seglets.iter().map(|seglet| seglet.0).collect();
        self.pool.give_back_blank(seglets);
        for &seglet in &given {
            if self.pool.are_blank(DeadBits::beside(seglet)) {
                memory.discard_dead(seglet);
            }
        }
        given.len()
    }
}
