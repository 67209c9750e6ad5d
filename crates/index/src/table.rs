//! The index without its mapping: places instead of hashes, any memory instead of a region.
//!
//! Owns the layout of the lines:
//!
//! ```text
//! line 0         | number of lines in use | unused ...                           |
//! line 1 + b/4   | head b | disp. | head b+1 | disp. | ...                       |   block heads, four to a line
//!    ...           (room for the heads of as many blocks as there may ever be)
//! first + l      | slot | slot | slot | slot | slot | slot | slot | slot |   line l; which block's: see `spread`
//!    ...           (untouched address space between)
//! line end - o   | next | slot | slot | slot | slot | slot | slot | slot |   overflow line o >= 1
//!
//! head:   63..32 first overflow line, 0 = none | 31..2 version | 1 moving | 0 locked
//! disp.:  4 bits for each line of the block: how many lines behind it at most its entries lie
//! next:   63..32 next overflow line, 0 = none  | unused
//! ```

use crate::resize::Resizer;
use crate::slot::{self, Slot};
use crate::spread::{Address, Block, Blocks};
use crate::words::{Lines, Word};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use pluvio_units::EntryRef;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of entries is split into this many counters, each in a line of its own, so that
/// inserting cores do not contend. A power of two.
const STRIPES: usize = 8;

/// After this many changes of one counter, a caller looks for due work even if the counter is
/// silent.
const LOOK_EVERY: u64 = 256;

/// Heads in a line.
const HEADS_PER_LINE: u64 = 4;

pub(crate) const LOCKED: u64 = 1;
pub(crate) const MOVING: u64 = 2;
const VERSION_MASK: u64 = 0xffff_fffc;
const VERSION_ONE: u64 = 4;
const NEXT_SHIFT: u32 = 32;

/// Bits of a displacement.
const REACH_BITS: u64 = 4;
const REACH_MASK: u64 = (1 << REACH_BITS) - 1;

/// The overflow line a head or next word names; 0 for none.
#[inline]
pub(crate) fn next_of(head: u64) -> u64 {
    head >> NEXT_SHIFT
}

pub(crate) fn with_next(head: u64, next: u64) -> u64 {
    head & ((1 << NEXT_SHIFT) - 1) | next << NEXT_SHIFT
}

pub(crate) fn with_next_version(head: u64) -> u64 {
    head & !VERSION_MASK | (head + VERSION_ONE) & VERSION_MASK
}

/// The most distance of its entries behind `line`, as the displacements of a block say.
#[inline]
pub(crate) fn reach_of(reaches: u64, line: u64) -> u64 {
    reaches >> (REACH_BITS * line) & REACH_MASK
}

pub(crate) fn with_reach(reaches: u64, line: u64, reach: u64) -> u64 {
    debug_assert!(reach <= REACH_MASK);
    let shift = REACH_BITS * line;
    reaches & !(REACH_MASK << shift) | reach << shift
}

/// Whether no entry has changed its slot since `before` was read.
#[inline]
pub(crate) fn unmoved(before: u64, now: u64) -> bool {
    (before ^ now) & (VERSION_MASK | MOVING) == 0
}

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct Table<M> {
    pub(crate) memory: M,
    /// The number of lines is at least this ...
    pub(crate) lines_min: u64,
    /// ... and at most this.
    pub(crate) lines_max: u64,
    /// The first of the lines.
    pub(crate) first_line: u64,
    stripes: [Stripe; STRIPES],
    /// Set when a change of size is due; a hint.
    pub(crate) resize_due: AtomicBool,
    /// Held by the one thread that changes the size.
    pub(crate) resizer: Mutex<Resizer>,
    overflow: Mutex<Overflow>,
    /// Overflow lines in chains; a copy for readers without the mutex.
    overflow_used: AtomicU64,
    /// Lines of the longest chain so far.
    longest_chain: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe(AtomicU64);

/// Overflow lines that are in no chain.
#[derive(Debug)]
pub(crate) struct Overflow {
    /// All below `fresh`. The lowest is taken first, so that memory at the end becomes free.
    free: BTreeSet<u64>,
    /// Lines from here on are in no chain.
    pub(crate) fresh: u64,
    /// Lines from here on are untouched memory.
    pub(crate) touched: u64,
    /// Whether `fresh` has grown since this was set to false.
    pub(crate) grown: bool,
}

/// The home of a hash at the moment of the question ([`Index::home`](crate::Index::home)). Lines
/// come and go. An entry found there is still one of the index. An empty result does not prove that
/// the entry is missing.
#[derive(Debug, Clone, Copy)]
pub struct Home {
    /// The line, counted from the beginning of the memory.
    line: u64,
    tag: u64,
}

/// The home of a hash at the moment of the question, for a caller that goes there as soon as it has
/// a guard ([`Index::approach`](crate::Index::approach)).
#[derive(Debug, Clone, Copy)]
pub struct Approach {
    place: u64,
    lines: u64,
    address: Address,
}

impl Approach {
    /// The number of the block that has the place: buckets of one index with the same number are
    /// locked together. Several are locked in the order of their numbers, as the resizer does.
    #[must_use]
    pub fn block(&self) -> u64 {
        self.address.block.number
    }

    pub(crate) fn address(&self) -> Address {
        self.address
    }
}

/// See [`Table::at_home`].
#[derive(Debug)]
pub(crate) struct AtHome<'a, W> {
    line: &'a [W; 8],
    tag: u64,
    /// The remaining slots, as bits.
    tagged: u32,
}

impl<W: Word> Iterator for AtHome<'_, W> {
    type Item = Slot;

    #[inline(always)]
    fn next(&mut self) -> Option<Slot> {
        while self.tagged != 0 {
            let word = self.line[self.tagged.trailing_zeros() as usize % 8].get();
            self.tagged &= self.tagged - 1;
            // A glimpse, which may be wrong.
            if slot::has_tag(word, self.tag) {
                return Some(Slot::of(word));
            }
        }
        None
    }
}

/// See [`Table::glance`].
pub(crate) struct Glance<'a, M: Lines> {
    table: &'a Table<M>,
    home: Home,
    lines: u64,
    head_word: &'a M::Word,
    head: u64,
}

impl<'a, M: Lines> Glance<'a, M> {
    /// [`Table::at_home`].
    #[inline(always)]
    pub(crate) fn slots(&self) -> AtHome<'a, M::Word> {
        self.table.at_home(self.home)
    }

    /// Whether everything taken since behind an entry of that place, at home or not, is of one
    /// moment.
    #[inline(always)]
    pub(crate) fn holds(&self) -> bool {
        // Pairs with the fence in `begin_change`: a reader that took a part of a change sees
        // *moving* or a newer version here.
        M::fence_acquire();
        // In this order, as in `read_all`. The number of lines alone decides about the address.
        self.table.lines() == self.lines && unmoved(self.head, self.head_word.get())
    }
}

impl<M: Lines> Table<M> {
    /// `memory` is zero and has room as [`Self::memory_lines`] says. The index has `lines` lines,
    /// and never less.
    pub(crate) fn new(memory: M, lines: u64, lines_max: u64) -> Self {
        let first_line = Self::first_line(lines_max);
        assert!(1 << M::BLOCK_LOG <= lines && lines <= lines_max);
        assert!(first_line + lines_max < memory.count());
        let overflow = memory.count() - first_line - lines_max;
        assert!(
            overflow <= u64::from(u32::MAX),
            "links have 32 bits: no {overflow} overflow lines"
        );
        memory.line(0)[0].set(lines);
        Self {
            memory,
            lines_min: lines,
            lines_max,
            first_line,
            stripes: Default::default(),
            resize_due: AtomicBool::new(false),
            resizer: Mutex::new(Resizer::new(lines)),
            overflow: Mutex::new(Overflow {
                free: BTreeSet::new(),
                fresh: 1,
                touched: 1,
                grown: false,
            }),
            overflow_used: AtomicU64::new(0),
            longest_chain: AtomicU64::new(0),
        }
    }

    /// The first of the lines: behind the heads, at a possible border of a huge page.
    pub(crate) fn first_line(lines_max: u64) -> u64 {
        let heads = Blocks::count(lines_max, M::BLOCK_LOG);
        (1 + heads.div_ceil(HEADS_PER_LINE)).next_multiple_of(M::ALIGN)
    }

    #[inline]
    pub(crate) fn lines(&self) -> u64 {
        self.memory.line(0)[0].get()
    }

    pub(crate) fn set_lines(&self, lines: u64) {
        self.memory.line(0)[0].set(lines);
    }

    #[inline]
    pub(crate) fn address(&self, place: u64) -> Address {
        Address::of(place, self.lines(), M::BLOCK_LOG)
    }

    /// The home of `place`.
    #[inline(always)]
    pub(crate) fn home(&self, place: u64) -> Home {
        self.home_at(&self.address(place))
    }

    /// The home of an address.
    #[inline(always)]
    fn home_at(&self, address: &Address) -> Home {
        Home {
            line: self.first_line + address.block.line(address.home),
            tag: address.tag,
        }
    }

    /// The home of `place`; asks for that line.
    #[inline(always)]
    pub(crate) fn approach(&self, place: u64) -> Approach {
        let lines = self.lines();
        let address = Address::of(place, lines, M::BLOCK_LOG);
        self.prefetch(self.home_at(&address));
        Approach {
            place,
            lines,
            address,
        }
    }

    /// The approached place, the number of lines, and the address that the place has with that
    /// number.
    #[inline(always)]
    pub(crate) fn arrive(&self, approach: Approach) -> (u64, u64, Address) {
        let Approach {
            place,
            lines,
            address,
        } = approach;
        let now = self.lines();
        if now == lines {
            return (place, lines, address);
        }
        (place, now, Self::address_anew(place, now))
    }

    /// The address after an approach to another one.
    #[cold]
    #[inline(never)]
    fn address_anew(place: u64, lines: u64) -> Address {
        Address::of(place, lines, M::BLOCK_LOG)
    }

    /// Asks for a home.
    #[inline(always)]
    pub(crate) fn prefetch(&self, home: Home) {
        self.memory.prefetch(home.line);
    }

    /// The line of the head of a block.
    #[inline(always)]
    pub(crate) fn head_line(block: u64) -> u64 {
        1 + block / HEADS_PER_LINE
    }

    /// The line of the head of a block, and its place there.
    #[inline(always)]
    pub(crate) fn head_place(block: u64) -> (u64, u64) {
        (Self::head_line(block), block % HEADS_PER_LINE * 2)
    }

    /// The head of a block, and its displacements.
    #[inline(always)]
    pub(crate) fn head(&self, block: u64) -> (&M::Word, &M::Word) {
        let (line, at) = Self::head_place(block);
        let (line, at) = (self.memory.line(line), at as usize);
        (&line[at], &line[at + 1])
    }

    /// A line of a block.
    #[inline(always)]
    pub(crate) fn line(&self, block: &Block, line: u64) -> &[M::Word; 8] {
        self.memory.line(self.first_line + block.line(line))
    }

    /// The slots of a line of a block.
    #[inline]
    pub(crate) fn slots(&self, block: &Block, line: u64) -> &[M::Word] {
        &self.line(block, line)[..M::SLOTS]
    }

    #[inline]
    pub(crate) fn overflow_line(&self, number: u64) -> &[M::Word; 8] {
        self.memory.line(self.memory.count() - number)
    }

    /// The slots of an overflow line.
    pub(crate) fn overflow_slots(&self, number: u64) -> &[M::Word] {
        &self.overflow_line(number)[1..=M::OVERFLOW_SLOTS]
    }

    /// Shows `see` every slot word where an entry of `place` can be, until it answers something.
    /// `restart` is called before each attempt. The address is that of `place`.
    ///
    /// The answer is `None` after a complete view: all words were seen, and no entry of the block
    /// changed its slot meanwhile. Then every entry that was there all the time has been seen.
    ///
    /// Why an answer needs no check: a slot is one word, so its entry was linked when it was read.
    /// Why a complete view needs one: an entry could have moved from a slot not yet seen to one
    /// seen already. Moving starts by storing *moving* before the first slot (X3). So a slot load
    /// (acquire) that read a moved word makes the last load of the head read *moving* or more.
    #[inline]
    pub(crate) fn read_all<T>(
        &self,
        place: u64,
        mut restart: impl FnMut(),
        mut see: impl FnMut(u64, &Address) -> Option<T>,
    ) -> Result<T, Address> {
        let mut address = self.address(place);
        let mut attempt = 0_u32;
        loop {
            restart();
            let (head_word, reaches) = self.head(address.block.number);
            let head = head_word.get();
            let reach = reach_of(reaches.get(), address.home);
            // Reaches of another size of the block are noticed at the end.
            for step in 0..=reach.min(address.block.lines - 1) {
                let line = address.block.behind(address.home, step);
                for word in self.slots(&address.block, line) {
                    if let Some(answer) = see(word.get(), &address) {
                        return Ok(answer);
                    }
                }
            }
            let mut next = next_of(head);
            let whole = loop {
                if next == 0 {
                    break true;
                }
                // The slot is unmoved: `next` was in this chain when it was read, so chains cannot
                // lead astray.
                if !unmoved(head, head_word.get()) {
                    break false;
                }
                for word in self.overflow_slots(next) {
                    if let Some(answer) = see(word.get(), &address) {
                        return Ok(answer);
                    }
                }
                next = next_of(self.overflow_line(next)[0].get());
            };
            // The number of lines, then the head. A step stores the number between *moving* and the
            // new version. A reader that saw that version at first sees the number here. If the
            // number went and came back, the head tells.
            let now = self.address(place);
            let at_rest = head & MOVING == 0 && unmoved(head, head_word.get());
            if whole && now == address && at_rest {
                return Err(address);
            }
            address = now;
            M::wait(attempt);
            attempt = attempt.saturating_add(1);
        }
    }

    /// The slots at a home with the tag of its place.
    #[inline(always)]
    pub(crate) fn at_home(&self, home: Home) -> AtHome<'_, M::Word> {
        let line = self.memory.line(home.line);
        AtHome {
            line,
            tag: home.tag,
            tagged: M::glimpse(line, home.tag),
        }
    }

    /// The result of `take` for the entry of `place`. It is asked about slots with the right tag
    /// until it gives something.
    #[inline]
    pub(crate) fn lookup<T>(
        &self,
        place: u64,
        mut take: impl FnMut(Slot) -> Option<T>,
    ) -> Option<T> {
        match self.at_home(self.home(place)).find_map(&mut take) {
            Some(taken) => Some(taken),
            None => self.lookup_slow(place, take),
        }
    }

    /// [`Self::lookup`] for an entry that is behind its home, or missing. One complete view finds
    /// it, or proves that it is missing.
    #[inline(never)]
    pub(crate) fn lookup_slow<T>(
        &self,
        place: u64,
        mut take: impl FnMut(Slot) -> Option<T>,
    ) -> Option<T> {
        self.read_all(
            place,
            || (),
            |word, address| {
                let tagged = slot::has_tag(word, address.tag);
                tagged.then(|| take(Slot::of(word))).flatten()
            },
        )
        .ok()
    }

    /// Asks for a home and for the head of its block.
    #[inline]
    pub(crate) fn prefetch_with_head(&self, place: u64) {
        let address = self.address(place);
        self.memory
            .prefetch(self.first_line + address.block.line(address.home));
        self.memory.prefetch(Self::head_line(address.block.number));
    }

    /// The approached home, as seen for data behind its slots that changes in place. `None` while a
    /// change of its block is under way.
    #[inline(always)]
    pub(crate) fn glance(&self, approach: Approach) -> Option<Glance<'_, M>> {
        let (_, lines, address) = self.arrive(approach);
        let head_word = self.head(address.block.number).0;
        let head = head_word.get();
        let glance = Glance {
            table: self,
            home: self.home_at(&address),
            lines,
            head_word,
            head,
        };
        (head & MOVING == 0).then_some(glance)
    }

    /// [`Self::lookup`], and `take` something of what it found that writers change behind
    /// [`Locked::begin_change`](crate::block::Locked::begin_change): the answer was true as a
    /// whole. Takes it under the lock after `attempts_max` attempts that a change spoiled: large
    /// values may change faster than they are taken.
    pub(crate) fn lookup_stable<T>(
        &self,
        place: u64,
        attempts_max: u32,
        mut take: impl FnMut(Slot) -> Option<T>,
    ) -> Option<T> {
        let mut attempt = 0_u32;
        while attempt < attempts_max {
            if let Some(glance) = self.glance(self.approach(place)) {
                let at_home = glance.slots().find_map(&mut take);
                let found = at_home.or_else(|| self.lookup_slow(place, &mut take));
                // An empty result of a complete view.
                let taken = found?;
                if glance.holds() {
                    return Some(taken);
                }
            }
            M::wait(attempt);
            attempt += 1;
        }
        let mut taken = None;
        let _slot = self.lock(place).find_tagged(|word| {
            taken = take(Slot::of(word));
            taken.is_some()
        });
        taken
    }

    /// For a place with an empty result at home: asks for the next line where the entry may be.
    pub(crate) fn prefetch_behind_home(&self, place: u64) {
        let address = self.address(place);
        let reaches = self.head(address.block.number).1.get();
        if reach_of(reaches, address.home) > 0 {
            let line = address.block.behind(address.home, 1);
            self.memory
                .prefetch(self.first_line + address.block.line(line));
        }
    }

    /// The entry behind its home that a lookup of `place` would look at first.
    pub(crate) fn candidate_behind_home(&self, place: u64) -> Option<EntryRef> {
        let address = self.address(place);
        let reaches = self.head(address.block.number).1.get();
        let reach = reach_of(reaches, address.home).min(address.block.lines - 1);
        (1..=reach)
            .find_map(|step| self.at_home(self.behind(&address, step)).next())
            .map(|slot| slot.entry)
    }

    /// The line `step` behind that of an address, as if it were its home.
    #[inline]
    fn behind(&self, address: &Address, step: u64) -> Home {
        let line = address.block.behind(address.home, step);
        Home {
            line: self.first_line + address.block.line(line),
            tag: address.tag,
        }
    }

    /// Entries; exact while there are no writers.
    pub(crate) fn len(&self) -> u64 {
        let counts = self.stripes.iter().map(|s| s.0.load(Ordering::Relaxed));
        // Wrapping: an entry may be counted in by one stripe and out by another. The stripes are
        // read one after the other while others count, so the sum may be negative for a moment.
        let sum = counts.fold(0, u64::wrapping_add);
        sum.cast_signed().max(0).cast_unsigned()
    }

    pub(crate) fn count_in(&self, block: u64) {
        let stripe = &self.stripes[block as usize % STRIPES].0;
        let here = stripe.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        self.counted(here, |all| self.is_crowded(all));
    }

    pub(crate) fn count_out(&self, block: u64) {
        let stripe = &self.stripes[block as usize % STRIPES].0;
        let here = stripe.fetch_sub(1, Ordering::Relaxed).wrapping_sub(1);
        self.counted(here, |all| self.is_sparse(all));
    }

    /// Sets the hint that a change of size may be due.
    #[inline]
    fn counted(&self, here: u64, is_due: impl Fn(u64) -> bool) {
        // One stripe nearly tells of all: blocks are spread over them.
        let likely = is_due(here.saturating_mul(STRIPES as u64)) || here.is_multiple_of(LOOK_EVERY);
        if likely && !self.resize_due.load(Ordering::Relaxed) {
            self.note_resize_due(here.is_multiple_of(LOOK_EVERY));
        }
    }

    /// Takes an overflow line, empty and in no chain; none when the memory is used up, or the
    /// system has no page for it.
    pub(crate) fn take_overflow(&self) -> Option<u64> {
        let number = {
            let mut overflow = self.lock_overflow();
            let number = match overflow.free.pop_first() {
                Some(number) => number,
                // All possible lines, and the fresh one itself.
                None if overflow.fresh + self.first_line + self.lines_max
                    <= self.memory.count()
                    && self.has_overflow_pages(&overflow) =>
                {
                    overflow.fresh += 1;
                    overflow.touched = overflow.touched.max(overflow.fresh);
                    overflow.grown = true;
                    overflow.fresh - 1
                }
                None => return None,
            };
            self.overflow_used.fetch_add(1, Ordering::Relaxed);
            number
        };
        for word in self.overflow_line(number) {
            word.set(slot::EMPTY);
        }
        self.note_resize_due(false);
        Some(number)
    }

    /// Sees to it that the next fresh overflow line has pages; false when there are none.
    fn has_overflow_pages(&self, overflow: &Overflow) -> bool {
        // They are numbered from the end of memory downwards.
        let granule = |line: u64| line / M::GRANULE * M::GRANULE;
        let had = granule(self.memory.count() + 1 - overflow.touched);
        let wanted = granule(self.memory.count() - overflow.fresh);
        had <= wanted || self.memory.allocate(wanted..had)
    }

    /// A chain of overflow lines with these words, without a head that leads to it: its first line,
    /// 0 for no words. `None` when the memory is used up.
    pub(crate) fn make_chain(&self, words: &[u64]) -> Option<u64> {
        let mut first = 0;
        for chunk in words.chunks(M::OVERFLOW_SLOTS).rev() {
            let Some(number) = self.take_overflow() else {
                self.free_chain(first);
                return None;
            };
            for (slot, &word) in self.overflow_slots(number).iter().zip(chunk) {
                slot.set(word);
            }
            self.overflow_line(number)[0].set(with_next(0, first));
            first = number;
        }
        self.note_chain(words.len().div_ceil(M::OVERFLOW_SLOTS) as u64);
        Some(first)
    }

    /// Gives back the overflow lines from `first` on, after their head was changed. Readers may
    /// still be looking: they find out by the version of the block they came from.
    pub(crate) fn free_chain(&self, first: u64) {
        if first == 0 {
            return;
        }
        let mut numbers = Vec::new();
        let mut number = first;
        while number != 0 {
            numbers.push(number);
            number = next_of(self.overflow_line(number)[0].get());
        }
        self.overflow_used
            .fetch_sub(numbers.len() as u64, Ordering::Relaxed);
        let mut overflow = self.lock_overflow();
        overflow.free.extend(numbers);
        while overflow.fresh > 1 && overflow.free.last() == Some(&(overflow.fresh - 1)) {
            overflow.fresh -= 1;
            overflow.free.pop_last();
        }
    }

    /// Records a chain of this many lines.
    pub(crate) fn note_chain(&self, lines: u64) {
        // Relaxed: a statistic.
        if lines > self.longest_chain.load(Ordering::Relaxed) {
            self.longest_chain.fetch_max(lines, Ordering::Relaxed);
        }
    }

    pub(crate) fn longest_chain(&self) -> u64 {
        self.longest_chain.load(Ordering::Relaxed)
    }

    pub(crate) fn overflow_used(&self) -> u64 {
        self.overflow_used.load(Ordering::Relaxed)
    }

    /// Lines of all kinds that were touched and not given back.
    pub(crate) fn lines_touched(&self) -> u64 {
        let (lines, head_lines) = self.lock_resizer().touched();
        // Line 0 counts as one.
        let overflow = self.lock_overflow().touched;
        lines.max(self.lines()) + head_lines + overflow
    }

    pub(crate) fn lock_overflow(&self) -> MutexGuard<'_, Overflow> {
        // The critical sections cannot panic half way.
        self.overflow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_resizer(&self) -> MutexGuard<'_, Resizer> {
        // A value kept over a panic is right or not used again.
        self.resizer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
