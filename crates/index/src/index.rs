//! The public face of the index: hashes, entries and closures.

use crate::block::{Change, Free, Likely, Locked};
use crate::slot::{self, Slot};
use crate::spread::Spread;
use crate::table::{Approach, Glance, Home, Table};
use crate::words::Word;
use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};
use pluvio_memory::{
    CACHE_LINE_BYTES, EpochGuard, NodeSet, REGION_GRANULE_BYTES, RegionError, WordRegion,
};
use pluvio_units::{EntryRef, HashKind, HashRange, KeyHash, Rank};

/// Lines of a new index, and of the smallest one: one kilobyte.
const LINES_AT_FIRST: u64 = 16;

/// Most overflow lines to ask for. Links to them have 32 bits. The excess of a rounded-up region
/// becomes overflow lines, too.
const OVERFLOW_MAX: u64 = u32::MAX as u64 - REGION_GRANULE_BYTES / CACHE_LINE_BYTES;

/// Most lines of blocks: a block has eight at least, and its number is made of 32 bits of the hash.
/// No other number of a line is kept in fewer than 64.
const LINES_MAX: u64 = 8 << 32;

/// Attempts of [`Index::lookup_stable`] before it locks. Small values need far fewer; a reader of a
/// large value waits as long as this many copies take.
pub(crate) const STABLE_ATTEMPTS_MAX: u32 = 64;

/// How an index is made.
#[derive(Debug, Clone, Copy)]
pub struct IndexOptions {
    /// Entries it must be able to hold, for any hashes; at most [`Index::ENTRIES_MAX`]. Reserves
    /// address space, 44 bytes each, and no memory. Five times as many find room if their hashes
    /// are spread evenly.
    pub entries_max: u64,
    /// The range of the hashes: all of them, or those of a tablet. Other hashes work as well, but
    /// gather in two blocks of lines.
    pub expected: HashRange,
    /// How they are made. In an index of a slot table ranks fill all 64 bits, whichever slots it
    /// has.
    pub kind: HashKind,
    /// Ask for huge pages once the index has 4 MiB: fewer TLB misses, and at most 2 MiB more than
    /// its lines take.
    pub huge_pages: bool,
    /// Memory nodes that its lines come from in turn. With fewer than two, or where the system
    /// refuses, they come from the node of the thread that touches them first.
    pub nodes: NodeSet,
}

/// The reason why an index could not be made.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// Its memory could not be reserved.
    #[error("no memory for an index of {entries} entries: {source}")]
    Memory {
        /// The requested number of entries.
        entries: u64,
        /// The region's error.
        source: RegionError,
    },
    /// More entries than an index can ever hold. Not retryable.
    #[error("an index of {entries} entries: {max} is the most")]
    TooLarge {
        /// The requested number of entries.
        entries: u64,
        /// The limit.
        max: u64,
    },
}

/// The index has no line left for the entry; nothing has changed. Retryable once entries were
/// removed. Cannot happen before it holds `entries_max` entries, unless other processes read it and
/// the system has no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the index is full")]
pub struct IndexFull;

const _: () = assert!(Index::ENTRIES_MAX / 6 + LINES_AT_FIRST <= OVERFLOW_MAX);
const _: () = assert!(Index::ENTRIES_MAX / 2 < LINES_MAX);

/// The index of one table: see the crate's head for its invariants and its thread rules.
///
/// Closures: `matches` says whether the entry is the wanted one, and `hash_of` computes an entry's
/// key hash. Both read its key in the log. Under a lock they must be quick and must not use the
/// index.
pub struct Index {
    pub(crate) table: Table<WordRegion>,
    pub(crate) spread: Spread,
    /// Unique within the process.
    pub(crate) id: u64,
}

impl Index {
    /// Most entries that an index can be made for: 25 769 797 530, with 1.1 TB of address space.
    pub const ENTRIES_MAX: u64 = 6 * (OVERFLOW_MAX - LINES_AT_FIRST);

    /// An empty index.
    ///
    /// # Errors
    /// [`IndexError::TooLarge`] and [`IndexError::Memory`]; nothing stays reserved.
    pub fn new(options: IndexOptions) -> Result<Self, IndexError> {
        Self::in_memory(options, WordRegion::anonymous)
    }

    /// [`Self::new`] in memory that other processes may map to read ([`crate::IndexReader`]).
    ///
    /// # Errors
    /// As of [`Self::new`].
    pub fn new_for_readers(options: IndexOptions) -> Result<Self, IndexError> {
        Self::in_memory(options, |len| WordRegion::for_readers("pluvio-index", len))
    }

    fn in_memory(
        options: IndexOptions,
        memory: impl FnOnce(u64) -> Result<WordRegion, RegionError>,
    ) -> Result<Self, IndexError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let entries = options.entries_max;
        if entries > Self::ENTRIES_MAX {
            let max = Self::ENTRIES_MAX;
            return Err(IndexError::TooLarge { entries, max });
        }
        // Three times the lines that evenly spread hashes need.
        let lines_max = (entries / 2 + 1).max(LINES_AT_FIRST);
        // The chain of a block has less than n / 7 + 1 lines: its n entries would have as many
        // without the block (X2). A sixth also leaves room for the new chains of a step.
        let overflow_max = entries / 6 + LINES_AT_FIRST;
        let lines = Table::<WordRegion>::first_line(lines_max) + lines_max + overflow_max;
        let region = memory(lines * CACHE_LINE_BYTES)
            .map_err(|source| IndexError::Memory { entries, source })?;
        // Before any page is there. Refused, it is only slower.
        let _works_without = region.interleave(&options.nodes);
        let first_line = Table::<WordRegion>::first_line(lines_max);
        for (from, lines) in [(0, 2), (first_line, LINES_AT_FIRST)] {
            // Pages for the first heads and lines (R4); both begin with a granule.
            let granule = REGION_GRANULE_BYTES;
            let bytes = (lines * CACHE_LINE_BYTES).next_multiple_of(granule);
            let allocated = region.allocate(from * CACHE_LINE_BYTES, bytes);
            allocated.map_err(|source| IndexError::Memory { entries, source })?;
        }
        let table = Table::new(region, LINES_AT_FIRST, lines_max);
        if options.huge_pages {
            table.want_huge_pages();
        }
        Ok(Self {
            table,
            spread: Spread::new(options.expected, options.kind),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// The slot of the entry with this hash that `matches`. Stores nothing, and waits for no thread
    /// if there is one. `matches` may see entries that were removed since the caller's epoch guard
    /// began. It may see the same entry more than once.
    #[must_use]
    #[inline]
    pub fn lookup(&self, hash: KeyHash, mut matches: impl FnMut(EntryRef) -> bool) -> Option<Slot> {
        self.lookup_with(hash, |slot| matches(slot.entry).then_some(slot))
    }

    /// The result of `take` for the slot of the entry with this hash. It is asked about slots with
    /// the right tag until it gives something. Otherwise as [`Self::lookup`].
    #[must_use]
    #[inline]
    pub fn lookup_with<T>(&self, hash: KeyHash, take: impl FnMut(Slot) -> Option<T>) -> Option<T> {
        self.table.lookup(self.spread.place(hash), take)
    }

    /// The home of `hash`: the one line that nearly every lookup needs.
    #[must_use]
    #[inline(always)]
    pub fn home(&self, hash: KeyHash) -> Home {
        self.table.home(self.spread.place(hash))
    }

    /// [`Self::lookup_with`] for a caller that has already looked at the home.
    #[must_use]
    pub fn lookup_slow_with<T>(
        &self,
        hash: KeyHash,
        take: impl FnMut(Slot) -> Option<T>,
    ) -> Option<T> {
        self.table.lookup_slow(self.spread.place(hash), take)
    }

    /// Asks for the home of `hash` before the caller has a guard: it comes from memory meanwhile.
    #[must_use]
    #[inline(always)]
    pub fn approach(&self, hash: KeyHash) -> Approach {
        self.table.approach(self.spread.place(hash))
    }

    /// Inlined fast path: the slots at a home with the tag of its hash. One of them is the result
    /// of nearly every lookup, and needs no check. If none of them is, ask
    /// [`Self::lookup_slow_with`].
    #[inline(always)]
    pub fn at_home(&self, home: Home) -> impl Iterator<Item = Slot> {
        self.table.at_home(home)
    }

    /// The result of `take` for the entry with this hash, where data behind the entry changes in
    /// place ([`BucketGuard::begin_change`]).
    ///
    /// `take` is asked about entries with the right tag until it gives something. It is asked again
    /// if another thread changed data of that bucket meanwhile. It may see a half-done change; its
    /// answer is then discarded. Waits, spinning and yielding, while a change is under way. After
    /// some attempts it locks the bucket, so writers cannot starve a reader. The caller holds no
    /// lock of a bucket.
    pub fn lookup_stable<T>(
        &self,
        hash: KeyHash,
        mut take: impl FnMut(EntryRef) -> Option<T>,
    ) -> Option<T> {
        self.table
            .lookup_stable(self.spread.place(hash), STABLE_ATTEMPTS_MAX, |slot| {
                take(slot.entry)
            })
    }

    /// Inlined fast path of [`Self::lookup_stable`]: the approached home, unless a change of its
    /// bucket is under way. One of its slots is the result of nearly every lookup. Data taken
    /// behind it counts if the home is stable afterwards. In all other cases ask
    /// [`Self::lookup_stable`].
    #[must_use]
    #[inline(always)]
    pub fn stable_home(&self, approach: Approach) -> Option<StableHome<'_>> {
        self.table.glance(approach).map(StableHome)
    }

    /// Locks the bucket of `hash`, spinning, then yielding, until it is free. Hold it briefly, and
    /// lock no other bucket meanwhile.
    #[must_use = "the bucket is unlocked when the guard is dropped"]
    #[inline]
    pub fn lock(&self, hash: KeyHash) -> BucketGuard<'_> {
        BucketGuard {
            locked: self.table.lock(self.spread.place(hash)),
            thread: PhantomData,
        }
    }

    /// [`Self::lock`] if no thread has the bucket locked now, the caller's own included. A thread
    /// that has a bucket locked may try to lock another one. It must not wait for one: the thread
    /// that has that one locked may wait for its own.
    #[must_use]
    pub fn try_lock(&self, hash: KeyHash) -> Option<BucketGuard<'_>> {
        let locked = self.table.try_lock(self.spread.place(hash))?;
        let thread = PhantomData;
        Some(BucketGuard { locked, thread })
    }

    /// [`Self::lock`] of an approached hash, for a caller that has other buckets locked. Those of
    /// this index have smaller [blocks](Approach::block). Several indexes are locked in an order
    /// that all callers share. Then no two of them wait for each other. `None`, with nothing locked
    /// by this, if the index was resized meanwhile: unlock all and begin again.
    #[must_use]
    pub fn lock_in_order(&self, approach: Approach) -> Option<BucketGuard<'_>> {
        let locked = self.table.lock_approached(approach)?;
        let thread = PhantomData;
        Some(BucketGuard { locked, thread })
    }

    /// [`Self::lock`] of the approached hash. Before the lock, `ahead` sees the entry at home that
    /// most likely has this hash, to ask for its bytes. While a lock waits for earlier stores, no
    /// other read is on its way from memory. Also gives the slot of that entry, if the locked
    /// bucket still has it. There may be others with the tag.
    #[inline(always)]
    pub fn lock_after(
        &self,
        approach: Approach,
        ahead: impl FnOnce(EntryRef),
    ) -> (BucketGuard<'_>, Option<LikelySlot<'_>>) {
        let (locked, likely) = self.table.lock_after(approach, ahead);
        let thread = PhantomData;
        (BucketGuard { locked, thread }, likely.map(LikelySlot))
    }

    /// Lets the slot of `old` refer to `new`, its durable copy. False, with nothing changed, if the
    /// slot refers to another entry by now.
    pub fn relocate(&self, hash: KeyHash, old: EntryRef, new: EntryRef) -> bool {
        self.lock(hash).replace(old, new, false)
    }

    /// Makes the index a line or two longer if it is crowded, or shorter if it is sparse. Also
    /// gives back memory that no thread can be using. Costs one load if nothing is due.
    ///
    /// Call it after inserts and removals, with no bucket locked. Without these calls the index
    /// stays correct, but becomes slow or too large. `guard` must belong to the epochs that all
    /// users of this index use. `hash_of` is called for entries of the index while their bucket is
    /// locked. Returns the number of lines that came or went.
    #[inline]
    pub fn resize(
        &self,
        guard: &EpochGuard<'_>,
        mut hash_of: impl FnMut(EntryRef) -> KeyHash,
    ) -> u32 {
        self.table
            .resize(guard.epochs(), |entry| self.spread.place(hash_of(entry)))
    }

    /// Asks the processor for the bucket of `hash`, for batches of lookups.
    #[inline]
    pub fn prefetch(&self, hash: KeyHash) {
        self.prefetch_home(self.home(hash));
    }

    /// [`Self::prefetch`] for a caller that goes to this home.
    #[inline(always)]
    pub fn prefetch_home(&self, home: Home) {
        self.table.prefetch(home);
    }

    /// [`Self::prefetch`], together with the other line that a lock needs.
    #[inline]
    pub fn prefetch_with_head(&self, hash: KeyHash) {
        self.table.prefetch_with_head(self.spread.place(hash));
    }

    /// Asks the processor for the next line, after an empty result at the home of `hash`.
    pub fn prefetch_behind_home(&self, hash: KeyHash) {
        self.table.prefetch_behind_home(self.spread.place(hash));
    }

    /// The first entry with the tag of `hash` behind its home, whose bytes to prefetch. It may be
    /// the wrong entry, or unreadable by now. For a batch, after all its hashes were looked for at
    /// home.
    #[must_use]
    pub fn candidate_behind_home(&self, hash: KeyHash) -> Option<EntryRef> {
        self.table.candidate_behind_home(self.spread.place(hash))
    }

    /// Entries in the index; while others write, a number it had at some moment.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.table.len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory the index has touched and not given back, in bytes. Rounded up to pages by the
    /// system: up to three pages more, one of them of 2 MiB in a large index with huge pages.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.table.lines_touched() * CACHE_LINE_BYTES
    }

    /// Entries it has slots for before it needs more memory; overflow lines do not count.
    #[must_use]
    pub fn slots(&self) -> u64 {
        self.table.lines() * <WordRegion as crate::words::Lines>::SLOTS as u64
    }

    /// Overflow lines of the longest chain so far, seven entries each. Evenly spread hashes give a
    /// few. An operation on a key in a longer chain looks at all of them. A long chain is a sign of
    /// keys chosen for colliding hashes.
    #[must_use]
    pub fn longest_chain(&self) -> u64 {
        self.table.longest_chain()
    }

    /// Appends to `slots` the entries of the bucket that covers `from`, in no order and including
    /// ranks below `from`. Returns the last rank the bucket covers: the walk goes on behind it. An
    /// entry that is in the index during the whole walk is met at least once, however the index
    /// grows meanwhile.
    pub fn scan(&self, from: Rank, slots: &mut Vec<Slot>) -> Rank {
        self.table.scan(&self.spread, from, slots)
    }

    /// Removes the entries of `range` whose ranks are `from` or larger, at most `buckets` buckets
    /// per call, and calls `on_removed` for each. Returns the rank to go on with, or `None` at the
    /// end; begin with rank 0. Each bucket is unlocked before `on_removed` is called for its
    /// entries. Entries inserted meanwhile behind the slice's end are removed too.
    ///
    /// A range of slots is everywhere in the index. So all of the index is walked, and keys are
    /// read unless the index has no others.
    pub fn remove_range(
        &self,
        range: HashRange,
        from: Rank,
        buckets: u32,
        mut hash_of: impl FnMut(EntryRef) -> KeyHash,
        mut on_removed: impl FnMut(Slot),
    ) -> Option<Rank> {
        let (first, end) = self.spread.ranks_of(range);
        let (mut from, mut removed) = (from.max(first), Vec::new());
        for _ in 0..buckets {
            let last =
                self.table
                    .remove_in_bucket(&self.spread, from, range, &mut hash_of, &mut removed);
            removed.drain(..).for_each(&mut on_removed);
            if last >= end {
                return None;
            }
            from = Rank(last.0 + 1);
        }
        Some(from)
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index")
            .field("len", &self.len())
            .field("lines", &self.table.lines())
            .field("overflow", &self.table.overflow_used())
            .finish_non_exhaustive()
    }
}

/// See [`Index::stable_home`].
pub struct StableHome<'a>(Glance<'a, WordRegion>);

impl StableHome<'_> {
    /// The slots with the tag of the hash.
    #[inline(always)]
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        self.0.slots()
    }

    /// Whether the bucket is free of changes in place since it was asked for. Then everything taken
    /// until this call is true as a whole.
    #[must_use]
    #[inline(always)]
    pub fn is_stable(&self) -> bool {
        self.0.holds()
    }
}

impl fmt::Debug for StableHome<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StableHome").finish_non_exhaustive()
    }
}

/// A slot of a locked bucket, most likely that of the wanted entry ([`Index::lock_after`]).
pub struct LikelySlot<'a>(Likely<'a, AtomicU64>);

impl LikelySlot<'_> {
    /// The entry it refers to, as long as the bucket is locked.
    #[must_use]
    #[inline(always)]
    pub fn entry(&self) -> EntryRef {
        self.0.entry()
    }
}

impl fmt::Debug for LikelySlot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LikelySlot").field(&self.entry()).finish()
    }
}

/// Room for one entry in a locked bucket ([`BucketGuard::room`]). Given back when this is dropped.
pub struct Room<'a>(Free<'a, WordRegion>);

impl fmt::Debug for Room<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Room").finish_non_exhaustive()
    }
}

/// A locked bucket. Stays in its thread; unlocks when dropped.
pub struct BucketGuard<'a> {
    locked: Locked<'a, WordRegion>,
    /// Not `Send`: a lock that spins must not be held over an `await`.
    thread: PhantomData<*mut ()>,
}

impl<'a> BucketGuard<'a> {
    /// The slot of the entry with the locked hash that `matches`.
    #[must_use]
    #[inline]
    pub fn find(&self, mut matches: impl FnMut(EntryRef) -> bool) -> Option<Slot> {
        let wanted = |word| matches(slot::entry_of(word));
        let (_, word) = self.locked.find_tagged(wanted)?;
        Some(Slot::of(word))
    }

    /// Finds the entry with the locked hash that `matches`, and lets its slot refer to the result
    /// of `with`. That must be an entry of the same key, not pending. `None`, with nothing changed,
    /// if there is no such entry or `with` gives none.
    ///
    /// # Panics
    /// When the new entry is at offset zero.
    #[inline]
    pub fn replace_found(
        &mut self,
        mut matches: impl FnMut(EntryRef) -> bool,
        with: impl FnOnce(EntryRef) -> Option<EntryRef>,
    ) -> Option<()> {
        let wanted = |word| matches(slot::entry_of(word));
        let (found, word) = self.locked.find_tagged(wanted)?;
        let new = with(slot::entry_of(word))?;
        found.set(slot::pack(slot::tag_of(word), new, false));
        Some(())
    }

    /// Lets the slot that came with this guard refer to `new`, an entry of the same key, not
    /// pending. The caller has checked that the slot is that of the wanted entry.
    ///
    /// # Panics
    /// When `new` is at offset zero.
    #[inline(always)]
    pub fn replace_likely(&mut self, slot: LikelySlot<'_>, new: EntryRef) {
        self.locked.replace_likely(slot.0, new);
    }

    /// While the result lives, the caller may change data behind entries of this bucket.
    /// [`Index::lookup_stable`] sees the data as it was before or as it is afterwards, and waits
    /// meanwhile. The bucket can be used for nothing else until then.
    #[inline(always)]
    pub fn begin_change(&mut self) -> BucketChange<'_, 'a> {
        BucketChange {
            _change: self.locked.begin_change(),
        }
    }

    /// Adds an entry with the locked hash. Its key must not be in the index: find and replace
    /// first.
    ///
    /// # Errors
    /// [`IndexFull`]; nothing has changed.
    ///
    /// # Panics
    /// When the entry is at offset zero.
    pub fn insert(&mut self, entry: EntryRef, pending: bool) -> Result<(), IndexFull> {
        let word = slot::pack(self.locked.address().tag, entry, pending);
        self.locked.insert(word).map_err(|_| IndexFull)
    }

    /// Goes on with another hash, which was approached before this was locked. False, with nothing
    /// changed, if its bucket is not locked by this guard.
    pub fn turn_to(&mut self, approach: Approach) -> bool {
        self.locked.turn_to(approach)
    }

    /// [`Self::room`] beside other rooms of the same guard. They are filled in the order in which
    /// they were made.
    ///
    /// # Errors
    /// [`IndexFull`]; nothing has changed.
    pub fn room_beside(&self, others: &[Room<'a>]) -> Result<Room<'a>, IndexFull> {
        let is_promised = |word: &_| others.iter().any(|other| other.0.is(word));
        let room = self.locked.room_beside(is_promised);
        room.map(Room).map_err(|_| IndexFull)
    }

    /// Room for an entry with the locked hash, for a caller that needs it before the entry is made.
    /// Until it is filled or dropped, do not insert into the bucket or remove from it.
    ///
    /// # Errors
    /// [`IndexFull`]; nothing has changed.
    #[inline]
    pub fn room(&self) -> Result<Room<'a>, IndexFull> {
        self.locked.room().map(Room).map_err(|_| IndexFull)
    }

    /// [`Self::insert`] into the room from this guard.
    ///
    /// # Panics
    /// When the entry is at offset zero, or the room is taken.
    #[inline]
    pub fn fill(&mut self, room: Room<'_>, entry: EntryRef, pending: bool) {
        assert!(
            room.0.is_empty(),
            "the bucket is locked since there was room"
        );
        let word = slot::pack(self.locked.address().tag, entry, pending);
        self.locked.fill(room.0, word);
    }

    /// Lets the slot of `old` refer to `new`, an entry of the same key. False, with nothing
    /// changed, if `old` is missing.
    ///
    /// # Panics
    /// When `new` is at offset zero.
    pub fn replace(&mut self, old: EntryRef, new: EntryRef, pending: bool) -> bool {
        match self.locked.find_entry(old) {
            Some((found, word)) => {
                found.set(slot::pack(slot::tag_of(word), new, pending));
                true
            }
            None => false,
        }
    }

    /// Removes the slot of `old`; false if it is missing.
    pub fn remove(&mut self, old: EntryRef) -> bool {
        self.locked.remove(old)
    }
}

impl fmt::Debug for BucketGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "BucketGuard(block {})",
            self.locked.address().block.number
        )
    }
}

/// See [`BucketGuard::begin_change`].
#[must_use = "the change is over when this is dropped"]
pub struct BucketChange<'g, 'a> {
    _change: Change<'g, 'a, WordRegion>,
}

impl fmt::Debug for BucketChange<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BucketChange").finish_non_exhaustive()
    }
}
