//! The indexes of one table: one for each range of hashes that was taken as a whole.
//!
//! An index spreads the hashes of one range over its buckets, so a tablet that comes later, with
//! other hashes, gets an index of its own. (In a slot table this lets a tablet go without a walk
//! through the keys of others.) Ranges do not overlap; splitting a tablet needs no new index. The
//! list is small and read by every operation: readers take a snapshot, a change replaces it. A
//! table that has no tablets (of the embedded store) has one index for all hashes instead, for as
//! long as it lives.

use arc_swap::{ArcSwap, Guard};
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, Ordering};
use pluvio_index::{Approach, Index, IndexError, IndexOptions, Slot};
use pluvio_memory::NodeSet;
use pluvio_units::{HashKind, HashRange, KeyHash, Rank};
use std::sync::{Arc, Mutex, PoisonError};

/// How all indexes of a store are made.
#[derive(Clone, Copy)]
pub(crate) struct IndexMaker {
    /// Entries that each has room for.
    pub(crate) entries_max: u64,
    /// Other processes may read them.
    pub(crate) are_read: bool,
    /// The memory nodes that their lines come from in turn, if there are several.
    pub(crate) nodes: NodeSet,
}

impl IndexMaker {
    fn make(
        &self,
        expected: HashRange,
        kind: HashKind,
        huge_pages: bool,
    ) -> Result<Arc<Index>, IndexError> {
        let options = IndexOptions {
            entries_max: self.entries_max,
            expected,
            kind,
            huge_pages,
            nodes: self.nodes,
        };
        let index = match self.are_read {
            true => Index::new_for_readers(options),
            false => Index::new(options),
        };
        index.map(Arc::new)
    }
}

#[derive(Clone)]
pub(crate) struct Part {
    range: HashRange,
    index: Arc<Index>,
}

/// One index for all hashes, for a table that is never cut into tablets: found without a snapshot.
pub(crate) struct Whole {
    index: Arc<Index>,
}

/// See the module's text.
pub(crate) struct Indexes {
    whole: Option<Whole>,
    /// The table was dropped. Read behind a pin by who looks for the one index for all hashes: who
    /// still sees false holds back the reuse of what it can find, by the argument for links in
    /// `pluvio_memory`'s epochs.
    closed: AtomicBool,
    /// By ascending range.
    parts: ArcSwap<Vec<Part>>,
    /// Held by those who replace the list.
    changing: Mutex<()>,
    kind: HashKind,
    maker: IndexMaker,
}

/// Sizes of some indexes.
#[derive(Clone, Copy, Default)]
pub(crate) struct IndexSizes {
    /// Memory touched and not given back, in bytes.
    pub(crate) bytes: u64,
    /// Entries.
    pub(crate) entries: u64,
    /// Entries there are slots for.
    pub(crate) slots: u64,
    /// Lines of the longest chain that one of them ever had.
    pub(crate) longest_chain: u64,
}

/// An index that cannot go away while this is held.
pub(crate) enum IndexRef<'a> {
    Whole(&'a Index),
    Part {
        parts: Guard<Arc<Vec<Part>>>,
        at: usize,
    },
}

/// The indexes of a table as they were at one moment, for several lookups.
pub(crate) enum Loaded<'a> {
    Whole(&'a Index),
    Parts(Guard<Arc<Vec<Part>>>),
}

impl Loaded<'_> {
    /// The index for `hash`, as [`Indexes::of`].
    pub(crate) fn of(&self, hash: KeyHash) -> Option<&Index> {
        match self {
            Self::Whole(index) => Some(index),
            Self::Parts(parts) => {
                let part = parts.get(first_not_before(parts, hash))?;
                part.range.contains(hash).then_some(&part.index)
            }
        }
    }
}

impl Whole {
    /// The index, for who asks [`Indexes::is_closed`] before anything of it counts.
    #[inline(always)]
    pub(crate) fn index(&self) -> &Index {
        &self.index
    }
}

impl Deref for IndexRef<'_> {
    type Target = Index;
    #[inline]
    fn deref(&self) -> &Index {
        match self {
            Self::Whole(index) => index,
            Self::Part { parts, at } => &parts[*at].index,
        }
    }
}

/// The place in `parts` of the first range that ends at `hash` or later.
fn first_not_before(parts: &[Part], hash: KeyHash) -> usize {
    parts.partition_point(|part| part.range.last < hash)
}

impl Indexes {
    pub(crate) fn new(maker: IndexMaker, kind: HashKind) -> Self {
        Self {
            maker,
            kind,
            whole: None,
            closed: AtomicBool::new(false),
            parts: ArcSwap::default(),
            changing: Mutex::default(),
        }
    }

    /// One index for all hashes, which is found until it is closed.
    pub(crate) fn with_whole(maker: IndexMaker, huge_pages: bool) -> Result<Self, IndexError> {
        let kind = HashKind::Seeded;
        let index = maker.make(HashRange::ALL, kind, huge_pages)?;
        Ok(Self {
            whole: Some(Whole { index }),
            ..Self::new(maker, kind)
        })
    }

    /// Makes indexes for what is not covered of `range`.
    pub(crate) fn cover(&self, range: HashRange) -> Result<(), IndexError> {
        if self.whole.is_some() {
            return Ok(());
        }
        let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut parts = Vec::clone(&self.parts.load());
        for gap in gaps(&parts, range) {
            let index = self.maker.make(gap, self.kind, false)?;
            parts.push(Part { range: gap, index });
        }
        parts.sort_by_key(|part| part.range.first);
        self.parts.store(Arc::new(parts));
        Ok(())
    }

    /// Forgets the indexes whose whole range lies in `range`. The one index for all hashes stays.
    pub(crate) fn uncover(&self, range: HashRange) {
        if self.whole.is_some() {
            return;
        }
        let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut parts = Vec::clone(&self.parts.load());
        parts.retain(|p| p.range.first < range.first || range.last < p.range.last);
        self.parts.store(Arc::new(parts));
    }

    /// Forgets the indexes that share hashes with `gone` and with none of `kept`. The one index for
    /// all hashes stays.
    pub(crate) fn keep_only(&self, gone: HashRange, kept: &[HashRange]) {
        if self.whole.is_some() {
            return;
        }
        let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut parts = Vec::clone(&self.parts.load());
        let is_used = |part: &Part| kept.iter().any(|kept| kept.overlaps(&part.range));
        parts.retain(|part| !part.range.overlaps(&gone) || is_used(part));
        self.parts.store(Arc::new(parts));
    }

    /// Nothing is to come into the indexes any more, those of later included; and the one index for
    /// all hashes is not found.
    pub(crate) fn close(&self) {
        // An index that another thread makes is there before this returns, or else whoever finds it
        // sees that it is closed.
        let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        self.closed.store(true, Ordering::Release);
    }

    /// Whether [`Self::close`] was called. Whoever inserts or replaces asks under the lock of its
    /// bucket: then either it sees that, or whoever forgets the objects comes to that bucket later.
    #[inline(always)]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The one index for all hashes, if the table has one, closed or not.
    #[inline(always)]
    pub(crate) fn whole(&self) -> Option<&Whole> {
        self.whole.as_ref()
    }

    /// Asks for the home of `hash` in the one index for all hashes, if the table has one: for who
    /// goes there, by [`Self::of_all`], as soon as it has a guard.
    #[inline(always)]
    pub(crate) fn approach(&self, hash: KeyHash) -> Option<Approach> {
        let whole = self.whole.as_ref()?;
        Some(whole.index.approach(hash))
    }

    /// The one index for all hashes, if the table has one that was not closed: [`Self::of`] without
    /// the other case.
    #[inline(always)]
    pub(crate) fn of_all(&self) -> Option<&Index> {
        let whole = self.whole.as_ref()?;
        (!self.is_closed()).then_some(&*whole.index)
    }

    /// The index for `hash`; none when no tablet with that hash was ever taken, or it is gone.
    #[inline]
    pub(crate) fn of(&self, hash: KeyHash) -> Option<IndexRef<'_>> {
        if let Some(whole) = &self.whole {
            return (!self.is_closed()).then_some(IndexRef::Whole(&whole.index));
        }
        self.part_of(hash)
    }

    /// All of them, for several lookups; none when the table is closed.
    pub(crate) fn load(&self) -> Option<Loaded<'_>> {
        match &self.whole {
            Some(whole) => (!self.is_closed()).then_some(Loaded::Whole(&whole.index)),
            None => Some(Loaded::Parts(self.parts.load())),
        }
    }

    fn part_of(&self, hash: KeyHash) -> Option<IndexRef<'_>> {
        let parts = self.parts.load();
        let at = first_not_before(&parts, hash);
        let found = parts.get(at).is_some_and(|part| part.range.contains(hash));
        found.then_some(IndexRef::Part { parts, at })
    }

    /// Appends what the buckets of `range` that cover `from` hold and gives the last rank they all
    /// cover, as [`Index::scan`]. A stretch without an index is covered and empty.
    pub(crate) fn scan(&self, range: HashRange, from: Rank, slots: &mut Vec<Slot>) -> Rank {
        match self.kind {
            HashKind::Seeded => self.scan_hashes(KeyHash(from.0), slots),
            HashKind::Slots => {
                let parts = self.parts.load();
                let parts = parts.iter().filter(|part| part.range.overlaps(&range));
                let lasts = parts.map(|part| part.index.scan(from, slots));
                lasts.min().unwrap_or(Rank(u64::MAX))
            }
        }
    }

    /// [`Self::scan`] where ranks are hashes, so that one index has them all.
    fn scan_hashes(&self, from: KeyHash, slots: &mut Vec<Slot>) -> Rank {
        if self.whole.is_some() {
            return match self.of(from) {
                Some(index) => index.scan(Rank(from.0), slots),
                None => Rank(u64::MAX),
            };
        }
        let parts = self.parts.load();
        match parts.get(first_not_before(&parts, from)) {
            None => Rank(u64::MAX),
            Some(part) if part.range.contains(from) => {
                let last = part.index.scan(Rank(from.0), slots);
                last.min(Rank(part.range.last.0))
            }
            Some(part) => Rank(part.range.first.0 - 1),
        }
    }

    /// The indexes that share hashes with `range`, each with what it shares.
    pub(crate) fn within(&self, range: HashRange) -> Vec<(HashRange, Arc<Index>)> {
        if let Some(whole) = &self.whole {
            return vec![(range, Arc::clone(&whole.index))];
        }
        let parts = self.parts.load();
        let sharing = parts.iter().filter(|part| part.range.overlaps(&range));
        let shared = |part: &Part| {
            let first = part.range.first.max(range.first);
            let last = part.range.last.min(range.last);
            (HashRange::new(first, last), Arc::clone(&part.index))
        };
        sharing.map(shared).collect()
    }

    /// Sizes of all indexes together.
    pub(crate) fn sizes(&self) -> IndexSizes {
        let parts = self.parts.load();
        let parts = parts.iter().map(|part| &part.index);
        let whole = self.whole.iter().map(|whole| &whole.index);
        let mut sizes = IndexSizes::default();
        for index in whole.chain(parts) {
            sizes.bytes += index.memory_bytes();
            sizes.entries += index.len();
            sizes.slots += index.slots();
            sizes.longest_chain = sizes.longest_chain.max(index.longest_chain());
        }
        sizes
    }
}

/// What of `range` no part covers.
fn gaps(parts: &[Part], range: HashRange) -> Vec<HashRange> {
    let mut gaps = Vec::new();
    let mut from = Some(range.first);
    for part in parts.iter().filter(|part| part.range.overlaps(&range)) {
        let Some(first) = from else { break };
        if first < part.range.first {
            gaps.push(HashRange::new(first, KeyHash(part.range.first.0 - 1)));
        }
        from = part.range.last.0.checked_add(1).map(KeyHash);
    }
    if let Some(first) = from.filter(|first| *first <= range.last) {
        gaps.push(HashRange::new(first, range.last));
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAKER: IndexMaker = IndexMaker {
        entries_max: 1000,
        are_read: false,
        nodes: NodeSet::EMPTY,
    };

    fn range(first: u64, last: u64) -> HashRange {
        HashRange::new(KeyHash(first), KeyHash(last))
    }

    #[test]
    fn every_hash_has_at_most_one_index_however_ranges_come_and_go() {
        let indexes = Indexes::new(MAKER, HashKind::Seeded);
        for (first, last) in [(100, 199), (300, 399), (150, 349), (0, 99), (0, 499)] {
            indexes.cover(range(first, last)).unwrap();
        }
        let ranges: Vec<HashRange> = indexes.parts.load().iter().map(|p| p.range).collect();
        let expected = [(0, 99), (100, 199), (200, 299), (300, 399), (400, 499)];
        assert_eq!(ranges, expected.map(|(a, b)| range(a, b)));
        indexes.uncover(range(150, 399));
        assert!(
            indexes.of(KeyHash(150)).is_some(),
            "an index that reaches beyond the range stays"
        );
        assert!(indexes.of(KeyHash(250)).is_none());
        assert!(indexes.of(KeyHash(500)).is_none());
        let mut slots = Vec::new();
        let mut scan = |from| indexes.scan(HashRange::ALL, Rank(from), &mut slots);
        assert_eq!(scan(200), Rank(399));
        assert_eq!(scan(500), Rank(u64::MAX));
    }

    // shows: TAB-3
    #[test]
    fn an_index_goes_with_the_last_tablet_that_uses_it() {
        let indexes = Indexes::new(MAKER, HashKind::Seeded);
        indexes.cover(range(0, 199)).unwrap();
        indexes.cover(range(200, 299)).unwrap();
        // The tablet 0-199 was cut, and its upper part goes.
        indexes.keep_only(range(100, 199), &[range(0, 99), range(200, 299)]);
        assert_eq!(indexes.within(HashRange::ALL).len(), 2);
        indexes.keep_only(range(0, 99), &[range(200, 299)]);
        assert_eq!(indexes.within(HashRange::ALL).len(), 1);
        assert!(indexes.of(KeyHash(50)).is_none() && indexes.of(KeyHash(250)).is_some());
    }

    #[test]
    fn only_closing_keeps_the_one_index_for_all_hashes_from_being_found() {
        let indexes = Indexes::with_whole(MAKER, false).unwrap();
        indexes.uncover(HashRange::ALL);
        assert!(!indexes.is_closed() && indexes.of_all().is_some());
        indexes.close();
        assert!(indexes.of(KeyHash(0)).is_none() && indexes.of_all().is_none());
    }

    #[test]
    fn the_whole_space_can_be_covered() {
        let indexes = Indexes::new(MAKER, HashKind::Seeded);
        indexes.cover(HashRange::ALL).unwrap();
        indexes.cover(HashRange::ALL).unwrap();
        assert_eq!(indexes.within(HashRange::ALL).len(), 1);
        assert!(indexes.of(KeyHash(u64::MAX)).is_some());
    }
}
