//! Growing and shrinking: one line at a time.
//!
//! Owns the number of lines, which it changes by one per step, and the memory behind the end. A
//! step goes like this:
//! 1. Lock the block that it concerns; two, if one is split or two become one.
//! 2. Find the new places of their entries.
//! 3. Say *moving*, and write the entries.
//! 4. Store the number of lines.
//! 5. Say the new version, and unlock.
//!
//! Readers and writers of all other blocks notice nothing.
//!
//! The memory behind a shorter index is empty at once. It goes back to the system when every older
//! guard has ended (X5). A thread that computed an address before the step may still look there.
//! Before a step that stores into memory without pages, the system is asked for them (R4).

use crate::block::Locked;
use crate::slot;
use crate::spread::{Address, Block, Blocks};
use crate::table::Table;
use crate::words::{Lines, Word};
use core::ops::Range;
use core::sync::atomic::Ordering;
use pluvio_memory::{ReclaimEpochs, ReclaimStamp};
use pluvio_units::EntryRef;
use std::sync::{PoisonError, TryLockError};

/// With more entries than this per hundred slots, the index grows: 10 bytes an entry, and 4 % of
/// the entries lie behind their homes.
const LOAD_PERCENT_MAX: u64 = 80;

/// With fewer, it shrinks: 10.3 bytes an entry. The limit is near enough to the other one that an
/// entry is cheap at every size. It is far enough from it that small changes resize nothing.
const LOAD_PERCENT_MIN: u64 = 78;

/// An index of few lines gets this many more than it needs, because one line is a large part of it.
const LINES_SPARE: u64 = 4;

/// With more overflow lines than one for this many entries, hashes are unevenly spread: even ones
/// need one for 200 at most. Then the index grows beyond the load above.
const ENTRIES_PER_OVERFLOW: u64 = 16;

/// With more than one for this many, it does not shrink either.
const ENTRIES_PER_OVERFLOW_SHRINK: u64 = 32;

/// The limit of growth for uneven hashes, in lines per entry.
const LINES_PER_ENTRY_MAX: u64 = 1;

/// Steps per call of [`Table::resize`]. One step makes room for six entries, so two per inserted
/// entry also catch up with a backlog.
const STEPS_PER_CALL: u32 = 2;

/// This many calls of [`Table::resize`] with work to do come between two questions whether memory
/// can be given back.
const CALLS_PER_LOOK: u32 = 16;

/// From this many lines on, the index asks for huge pages (4 MiB, some 400 000 entries). With fewer
/// lines, the processor's TLB covers most of them. The last huge page is resident as a whole, which
/// costs at most 2 MiB more. That is 3 % of the objects of an index of this size, at 100 bytes
/// each.
pub(crate) const LINES_HUGE: u64 = 1 << 16;

/// With fewer lines than this, the index asks for small pages again, so that a shrunken index takes
/// little memory.
const LINES_SMALL: u64 = LINES_HUGE * 3 / 4;

/// Most lines of a block.
const BLOCK_LINES_MAX: usize = 16;

/// The due change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Nothing,
    Grow,
    Shrink,
}

/// The state of the thread that resizes.
#[derive(Debug)]
pub(crate) struct Resizer {
    /// The entries of the blocks concerned.
    words: Vec<u64>,
    low: Plan,
    high: Plan,
    /// Lines and lines of heads that were used and are not given back since.
    lines_touched: u64,
    head_lines_touched: u64,
    leaving: Option<Leaving>,
    huge_pages: HugePages,
}

/// Whether the lines are to lie on huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HugePages {
    Never,
    /// Once there are [`LINES_HUGE`].
    WhenLarge,
    /// They were asked for.
    Asked,
}

/// Memory that will be given back.
#[derive(Debug)]
struct Leaving {
    /// No older thread can be looking any more once the epochs say so of this.
    stamp: ReclaimStamp,
    /// Granules of memory lines: all from these on.
    lines_from: u64,
    heads_from: u64,
    overflow_from: u64,
    /// Calls until the next question to the epochs, which takes a microsecond or some.
    calls_left: u32,
}

/// The new places of the entries of a block.
#[derive(Debug)]
struct Plan {
    lines: [[u64; 8]; BLOCK_LINES_MAX],
    used: [usize; BLOCK_LINES_MAX],
    reaches: u64,
    /// First the entries whose home is full, then those that go into the chain.
    rest: Vec<u64>,
}

impl Resizer {
    pub(crate) fn new(lines: u64) -> Self {
        Self {
            words: Vec::new(),
            low: Plan::new(),
            high: Plan::new(),
            lines_touched: lines,
            head_lines_touched: 1,
            leaving: None,
            huge_pages: HugePages::Never,
        }
    }

    /// Lines, and lines of heads.
    pub(crate) fn touched(&self) -> (u64, u64) {
        (self.lines_touched, self.head_lines_touched)
    }
}

impl Plan {
    fn new() -> Self {
        Self {
            lines: [[slot::EMPTY; 8]; BLOCK_LINES_MAX],
            used: [0; BLOCK_LINES_MAX],
            reaches: 0,
            rest: Vec::new(),
        }
    }

    fn clear(&mut self) {
        self.lines = [[slot::EMPTY; 8]; BLOCK_LINES_MAX];
        self.used = [0; BLOCK_LINES_MAX];
        self.reaches = 0;
        self.rest.clear();
    }

    fn put(&mut self, line: u64, slots: usize, word: u64) -> bool {
        let line = line as usize;
        let free = self.used[line] < slots;
        if free {
            self.lines[line][self.used[line]] = word;
            self.used[line] += 1;
        }
        free
    }

    /// An entry that goes into its home, if that has room.
    fn add(&mut self, block: &Block, slots: usize, word: u64) {
        if !self.put(block.home(slot::tag_of(word)), slots, word) {
            self.rest.push(word);
        }
    }

    /// Finds places for the entries with full homes; `rest` then goes into the chain (X2).
    fn finish(&mut self, block: &Block, slots: usize) {
        let mut full_from = None;
        for at in 0..self.rest.len() {
            let word = self.rest[at];
            let home = block.home(slot::tag_of(word));
            let step = (1..block.lines).find(|&step| {
                let line = block.behind(home, step);
                self.put(line, slots, word)
            });
            match step {
                Some(step) => {
                    let reach = crate::table::reach_of(self.reaches, home).max(step);
                    self.reaches = crate::table::with_reach(self.reaches, home, reach);
                }
                None => {
                    full_from = Some(at);
                    break;
                }
            }
        }
        self.rest.drain(..full_from.unwrap_or(self.rest.len()));
    }
}

impl<M: Lines> Table<M> {
    #[inline]
    pub(crate) fn is_crowded(&self, entries: u64) -> bool {
        let slots = self.lines().saturating_mul(M::SLOTS as u64);
        entries.saturating_mul(100) > slots.saturating_mul(LOAD_PERCENT_MAX)
    }

    #[inline]
    pub(crate) fn is_sparse(&self, entries: u64) -> bool {
        let slots = self.lines().saturating_sub(LINES_SPARE) * M::SLOTS as u64;
        entries.saturating_mul(100) < slots.saturating_mul(LOAD_PERCENT_MIN)
    }

    pub(crate) fn note_resize_due(&self, look_anyway: bool) {
        if look_anyway || self.due() != Due::Nothing {
            self.resize_due.store(true, Ordering::Relaxed);
        }
    }

    fn due(&self) -> Due {
        let (lines, entries, overflow) = (self.lines(), self.len(), self.overflow_used());
        let uneven = overflow > entries / ENTRIES_PER_OVERFLOW
            && lines < entries.saturating_mul(LINES_PER_ENTRY_MAX);
        if lines < self.lines_max && (self.is_crowded(entries) || uneven) {
            Due::Grow
        } else if lines > self.lines_min
            && self.is_sparse(entries)
            && overflow <= entries / ENTRIES_PER_OVERFLOW_SHRINK
        {
            Due::Shrink
        } else {
            Due::Nothing
        }
    }

    /// Does a few steps if they are due and no other thread is resizing. `place_of` reads the key
    /// of an entry. It is called for the entries of one split, or joining, in four. Gives the
    /// number of steps.
    #[inline]
    pub(crate) fn resize(
        &self,
        epochs: &ReclaimEpochs,
        place_of: impl FnMut(EntryRef) -> u64,
    ) -> u32 {
        if !self.resize_due.load(Ordering::Relaxed) {
            return 0;
        }
        self.resize_now(epochs, place_of)
    }

    #[cold]
    fn resize_now(&self, epochs: &ReclaimEpochs, mut place_of: impl FnMut(EntryRef) -> u64) -> u32 {
        let mut resizer = match self.resizer.try_lock() {
            Ok(resizer) => resizer,
            Err(TryLockError::WouldBlock) => return 0,
            // `place_of` panicked, and everything is unchanged.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        };
        let mut done = 0;
        while done < STEPS_PER_CALL {
            let stepped = match self.due() {
                Due::Nothing => false,
                Due::Grow => self.grow(&mut resizer, &mut place_of),
                Due::Shrink => self.shrink(&mut resizer, &mut place_of),
            };
            if !stepped {
                self.resize_due.store(false, Ordering::Relaxed);
                break;
            }
            done += 1;
        }
        self.give_back(&mut resizer, epochs);
        done
    }

    /// One line more; false when there is no memory.
    pub(crate) fn grow(
        &self,
        resizer: &mut Resizer,
        place_of: &mut impl FnMut(EntryRef) -> u64,
    ) -> bool {
        let lines = self.lines();
        if lines >= LINES_HUGE && resizer.huge_pages == HugePages::WhenLarge {
            resizer.huge_pages = HugePages::Asked;
            self.memory.prefer_huge_pages(self.whole_granules(), true);
        }
        let (before, after) = Blocks::before_and_after(lines, M::BLOCK_LOG);
        if !self.has_pages(resizer, lines + 1)
            || !self.change(resizer, before, after, lines + 1, place_of)
        {
            return false;
        }
        resizer.lines_touched = resizer.lines_touched.max(lines + 1);
        let head_lines = self.head_lines();
        resizer.head_lines_touched = resizer.head_lines_touched.max(head_lines);
        let first = self.first_line;
        resizer.leaving.take_if(|leaving| {
            first + lines + 1 > leaving.lines_from || 1 + head_lines > leaving.heads_from
        });
        true
    }

    /// Sees to it that this number of lines, and their heads, have pages; false if there are none.
    fn has_pages(&self, resizer: &Resizer, lines: u64) -> bool {
        let granule = |line: u64| line.next_multiple_of(M::GRANULE);
        let allocate = |had: u64, wanted: u64| {
            let (had, wanted) = (granule(had), granule(wanted));
            had >= wanted || self.memory.allocate(had..wanted)
        };
        let first = self.first_line;
        let heads = Self::head_line(Blocks::count(lines, M::BLOCK_LOG) - 1);
        allocate(first + resizer.lines_touched, first + lines)
            && allocate(1 + resizer.head_lines_touched, 1 + heads)
    }

    /// All memory for lines, but for a last piece. The heads are small and the overflow lines few,
    /// so their memory does not count.
    fn whole_granules(&self) -> Range<u64> {
        self.first_line..self.first_line + self.lines_max / M::GRANULE * M::GRANULE
    }

    /// The end of the granules of this many lines in use. Behind the last whole granule, overflow
    /// lines share the granule of the last lines, which stays.
    pub(crate) fn granules_end(&self, lines: u64) -> u64 {
        let end = (self.first_line + lines).next_multiple_of(M::GRANULE);
        end.min(self.whole_granules().end)
    }

    /// Puts the lines on huge pages once there are many.
    pub(crate) fn want_huge_pages(&self) {
        let mut resizer = self.resizer.lock().unwrap_or_else(PoisonError::into_inner);
        resizer.huge_pages = HugePages::WhenLarge;
    }

    /// One line less; false when there is no memory for the chain of a block that has too many
    /// entries.
    pub(crate) fn shrink(
        &self,
        resizer: &mut Resizer,
        place_of: &mut impl FnMut(EntryRef) -> u64,
    ) -> bool {
        let lines = self.lines() - 1;
        if lines < LINES_SMALL && resizer.huge_pages == HugePages::Asked {
            resizer.huge_pages = HugePages::WhenLarge;
            self.memory.prefer_huge_pages(self.whole_granules(), false);
        }
        let (after, before) = Blocks::before_and_after(lines, M::BLOCK_LOG);
        self.change(resizer, before, after, lines, place_of)
    }

    fn head_lines(&self) -> u64 {
        Self::head_line(Blocks::count(self.lines(), M::BLOCK_LOG) - 1)
    }

    /// From the old blocks to the new ones. Only the resizing thread calls it.
    fn change(
        &self,
        resizer: &mut Resizer,
        before: Blocks,
        after: Blocks,
        lines: u64,
        place_of: &mut impl FnMut(EntryRef) -> u64,
    ) -> bool {
        let Resizer {
            words, low, high, ..
        } = resizer;
        let lock = |block: Block| {
            self.lock_block(Address {
                block,
                home: 0,
                tag: 0,
            })
        };
        // Room for the usual content of a block, made before it is locked.
        words.clear();
        words.reserve(2 * BLOCK_LINES_MAX * M::SLOTS);
        low.clear();
        high.clear();
        let mut locked_low = lock(before.low);
        // The lock of a block that does not exist yet. A thread that locked it in an earlier life
        // looks at the address again, and unlocks it.
        let mut locked_high = before.high.or(after.high).map(lock);
        locked_low.entries(words);
        if before.high.is_some() {
            let both = locked_high.as_ref().expect("locked above");
            both.entries(words);
        }
        debug_assert!(
            before.high.is_some() || locked_high.as_ref().is_none_or(Locked::has_no_chain),
            "X2: a block that is not there has a chain"
        );
        let keys = Blocks::need_keys(before.low.bits, after.low.bits);
        for &word in &*words {
            let (is_high, word) = if keys {
                let entry = slot::entry_of(word);
                let place = place_of(entry);
                let now = Address::of(place, lines, M::BLOCK_LOG).block;
                let placed = now == after.low || Some(now) == after.high;
                assert!(
                    placed,
                    "X1: the key of {entry:?} in block {} has another hash now",
                    before.low.number
                );
                let word = slot::with_tag(word, now.tag(place));
                (after.is_high_place(place), word)
            } else {
                (after.is_high_tag(slot::tag_of(word)), word)
            };
            match after.high {
                Some(block) if is_high => high.add(&block, M::SLOTS, word),
                Some(_) | None => low.add(&after.low, M::SLOTS, word),
            }
        }
        low.finish(&after.low, M::SLOTS);
        let high_after = after.high.unwrap_or(Block {
            lines: 0,
            ..before.high.unwrap_or(before.low)
        });
        high.finish(&high_after, M::SLOTS);
        let Some(low_chain) = self.make_chain(&low.rest) else {
            return false;
        };
        let Some(high_chain) = self.make_chain(&high.rest) else {
            self.free_chain(low_chain);
            return false;
        };
        // The part that readers can see.
        locked_low.begin_move();
        locked_high.iter_mut().for_each(Locked::begin_move);
        locked_low.rewrite(after.low, &low.lines, low.reaches, low_chain);
        if let Some(locked) = &mut locked_high {
            locked.rewrite(high_after, &high.lines, high.reaches, high_chain);
        }
        if lines < self.lines() {
            // It belonged to one of the blocks.
            let last = self.memory.line(self.first_line + lines);
            last.iter().for_each(|word| word.set(slot::EMPTY));
        }
        self.set_lines(lines);
        locked_low.end_move();
        locked_high.iter_mut().for_each(Locked::end_move);
        true
    }

    /// Gives back the memory behind the end that no thread can be looking at.
    fn give_back(&self, resizer: &mut Resizer, epochs: &ReclaimEpochs) {
        let granule = |line: u64| line.next_multiple_of(M::GRANULE);
        if let Some(leaving) = &mut resizer.leaving {
            leaving.calls_left -= 1;
            if leaving.calls_left > 0 {
                return;
            }
            leaving.calls_left = CALLS_PER_LOOK;
        }
        if let Some(leaving) = &resizer.leaving
            && epochs.is_quiesced(leaving.stamp)
        {
            let lines_end = self.granules_end(resizer.lines_touched);
            debug_assert!(
                (leaving.lines_from..lines_end)
                    .flat_map(|line| self.memory.line(line))
                    .all(|word| word.get() == slot::EMPTY),
                "X5: an entry lies behind the last line"
            );
            // The part of the last lines that shares a granule with overflow lines counts as given
            // back, but stays: less than one granule.
            if self.memory.give_back(leaving.lines_from..lines_end) {
                resizer.lines_touched = leaving.lines_from - self.first_line;
            }
            let heads_end = granule(1 + resizer.head_lines_touched).min(self.first_line);
            if leaving.heads_from < heads_end
                && self.memory.give_back(leaving.heads_from..heads_end)
            {
                resizer.head_lines_touched = leaving.heads_from - 1;
            }
            self.give_back_overflow(leaving.overflow_from);
            resizer.leaving = None;
        }
        let lines_from = self.granules_end(self.lines());
        let lines_end = self.granules_end(resizer.lines_touched);
        if resizer.leaving.is_none() && lines_from < lines_end {
            let overflow_from = {
                let mut overflow = self.lock_overflow();
                overflow.grown = false;
                overflow.fresh
            };
            resizer.leaving = Some(Leaving {
                stamp: epochs.retire_epoch(),
                lines_from,
                heads_from: granule(1 + self.head_lines()),
                overflow_from,
                calls_left: CALLS_PER_LOOK,
            });
        }
    }

    /// Overflow lines with numbers from `from` on, unless some of them were used since that was
    /// decided.
    fn give_back_overflow(&self, from: u64) {
        let mut overflow = self.lock_overflow();
        let count = self.memory.count();
        // They are numbered from the end of memory downwards.
        let begin = (count + 1 - overflow.touched).next_multiple_of(M::GRANULE);
        let end = (count + 1 - from) / M::GRANULE * M::GRANULE;
        if !overflow.grown && begin < end && self.memory.give_back(begin..end) {
            overflow.touched = count + 1 - end;
        }
    }
}
