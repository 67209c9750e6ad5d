//! One locked block: changing its lines and its chain.
//!
//! Owns the lock bit and, while it holds it, the block: head, displacements, slots, overflow lines.
//! One store to one slot (insert, replace, remove at home) needs no version. A reader sees the slot
//! before or after, and both were true. Every step that gives an entry another slot goes between
//! [`Locked::begin_move`] and [`Locked::end_move`] (X3).
//!
//! An entry is put into the first of these with room:
//! 1. Its home.
//! 2. The next line of the block that has room; the home's displacement then holds the distance.
//! 3. The last overflow line.

use crate::slot;
use crate::spread::{Address, Block};
use crate::table::{
    Approach, LOCKED, MOVING, Table, next_of, reach_of, with_next, with_next_version, with_reach,
};
use crate::words::{Lines, Word};
use pluvio_units::EntryRef;

/// No overflow line is left.
#[derive(Debug)]
pub(crate) struct NoLineLeft;

/// A block that stays locked until this is dropped.
pub(crate) struct Locked<'a, M: Lines> {
    table: &'a Table<M>,
    head_word: &'a M::Word,
    reaches: &'a M::Word,
    /// The head as it will be unlocked.
    head: u64,
    /// The address of the requested place.
    address: Address,
}

/// A slot of a locked block with the requested tag ([`Table::lock_after`]).
pub(crate) struct Likely<'a, W> {
    word: &'a W,
    value: u64,
}

impl<W: Word> Likely<'_, W> {
    #[inline(always)]
    pub(crate) fn entry(&self) -> EntryRef {
        slot::entry_of(self.value)
    }
}

/// A slot for one more entry of a locked block. The block is unchanged until the slot is filled
/// ([`Locked::fill`]).
pub(crate) enum Free<'a, M: Lines> {
    /// An empty slot in a line of the block, this many lines behind the home.
    Lines { word: &'a M::Word, step: u64 },
    /// One in the chain. All lines are full (X2).
    Chain(&'a M::Word),
    /// The first slot of a new line for the end of the chain, which is full or empty.
    Spare(SpareLine<'a, M>),
}

impl<M: Lines> Free<'_, M> {
    /// Whether this is its slot.
    pub(crate) fn is(&self, slot: &M::Word) -> bool {
        match self {
            Self::Lines { word, .. } | Self::Chain(word) => core::ptr::eq(*word, slot),
            Self::Spare(_) => false,
        }
    }

    /// Whether it is still unfilled.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Lines { word, .. } | Self::Chain(word) => word.get() == slot::EMPTY,
            Self::Spare(_) => true,
        }
    }
}

/// An overflow line, empty and in no chain. Given back when this is dropped.
pub(crate) struct SpareLine<'a, M: Lines> {
    table: &'a Table<M>,
    /// 0 once it is in a chain.
    number: u64,
}

impl<M: Lines> Drop for SpareLine<'_, M> {
    fn drop(&mut self) {
        self.table.free_chain(self.number);
    }
}

/// The end of a block's chain.
struct ChainEnd {
    /// The overflow line before the last one (0 = the head).
    before: u64,
    /// The last one.
    last: u64,
    /// All of them.
    lines: u64,
}

/// The slot of a found entry.
struct Found<'a, W> {
    word: &'a W,
    value: u64,
    /// The line of the block; `None` for the chain.
    line: Option<u64>,
}

impl<M: Lines> Table<M> {
    /// Locks the block of `place`. Spins, then yields, while another thread holds it.
    #[inline]
    pub(crate) fn lock(&self, place: u64) -> Locked<'_, M> {
        let lines = self.lines();
        self.lock_address(place, lines, Address::of(place, lines, M::BLOCK_LOG))
    }

    /// [`Self::lock`] of an approached place. Before the lock, `ahead` sees the entry of the first
    /// slot at home with the tag. Gives that slot if it still has an entry with that tag.
    #[inline(always)]
    pub(crate) fn lock_after(
        &self,
        approach: Approach,
        ahead: impl FnOnce(EntryRef),
    ) -> (Locked<'_, M>, Option<Likely<'_, M::Word>>) {
        let (place, lines, address) = self.arrive(approach);
        let line = self.line(&address.block, address.home);
        let tagged = M::glimpse(line, address.tag);
        if tagged == 0 {
            return (self.lock_address(place, lines, address), None);
        }
        let word = &line[tagged.trailing_zeros() as usize % 8];
        // This is a glimpse. The entry may be another one, or none; asking for its bytes is
        // harmless.
        ahead(slot::entry_of(word.get()));
        let locked = self.lock_block(address);
        if self.lines() != lines {
            return (self.lock_again(place, locked), None);
        }
        let value = word.get();
        let same = slot::has_tag(value, address.tag);
        (locked, same.then_some(Likely { word, value }))
    }

    /// Locks the block of `place`, which had this address with this number of lines.
    #[inline(always)]
    fn lock_address(&self, place: u64, lines: u64, address: Address) -> Locked<'_, M> {
        let locked = self.lock_block(address);
        // The block is fixed from here on: a change of its size needs its lock, and an earlier
        // change is visible through the lock. The number of lines alone decides about the address.
        if self.lines() == lines {
            return locked;
        }
        self.lock_again(place, locked)
    }

    /// [`Self::lock`] after locking the block that `place` had with another number of lines. That
    /// block is unlocked. It may still be the right one, which is rare, too.
    #[inline(always)]
    fn lock_again<'a>(&'a self, place: u64, locked: Locked<'a, M>) -> Locked<'a, M> {
        drop(locked);
        self.lock_anew(place)
    }

    #[cold]
    fn lock_anew(&self, place: u64) -> Locked<'_, M> {
        loop {
            let lines = self.lines();
            let locked = self.lock_block(Address::of(place, lines, M::BLOCK_LOG));
            if self.lines() == lines {
                return locked;
            }
        }
    }

    /// Locks the block of an approached place: waits for that one only. `None`, with nothing
    /// locked, if the place is in another block by now.
    pub(crate) fn lock_approached(&self, approach: Approach) -> Option<Locked<'_, M>> {
        let address = approach.address();
        let locked = self.lock_block(address);
        let (_, _, now) = self.arrive(approach);
        (now == address).then_some(locked)
    }

    /// Locks the block of an address, even if there is no such block.
    #[inline(always)]
    pub(crate) fn lock_block(&self, address: Address) -> Locked<'_, M> {
        let (head_word, reaches) = self.head(address.block.number);
        let mut head = head_word.get();
        if head & LOCKED != 0 || !head_word.try_swap(head, head | LOCKED) {
            head = Self::lock_head(head_word);
        }
        Locked {
            table: self,
            head_word,
            reaches,
            head,
            address,
        }
    }

    /// Locks the block of `place` if no thread holds it now.
    pub(crate) fn try_lock(&self, place: u64) -> Option<Locked<'_, M>> {
        let lines = self.lines();
        let address = Address::of(place, lines, M::BLOCK_LOG);
        let (head_word, reaches) = self.head(address.block.number);
        let head = head_word.get();
        if head & LOCKED != 0 || !head_word.try_swap(head, head | LOCKED) {
            return None;
        }
        let locked = Locked {
            table: self,
            head_word,
            reaches,
            head,
            address,
        };
        // As in `lock_address`. After a change of the size the block may be another's.
        (self.lines() == lines).then_some(locked)
    }

    /// Sets the lock bit of a head that another thread had locked, or has changed, a moment ago.
    /// Gives the old head.
    #[cold]
    fn lock_head(head_word: &M::Word) -> u64 {
        let mut attempt = 0_u32;
        loop {
            M::wait(attempt);
            attempt = attempt.saturating_add(1);
            let head = head_word.get();
            if head & LOCKED == 0 && head_word.try_swap(head, head | LOCKED) {
                return head;
            }
        }
    }
}

impl<'a, M: Lines> Locked<'a, M> {
    #[inline]
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Goes on with another place. False, with nothing changed, if that is not in this block.
    pub(crate) fn turn_to(&mut self, approach: Approach) -> bool {
        let is_here = approach.address().block == self.address.block;
        if is_here {
            self.address = approach.address();
        }
        is_here
    }

    pub(crate) fn has_no_chain(&self) -> bool {
        next_of(self.head) == 0
    }

    fn block(&self) -> Block {
        self.address.block
    }

    #[inline]
    fn reach(&self, line: u64) -> u64 {
        reach_of(self.reaches.get(), line)
    }

    fn set_reach(&self, line: u64, reach: u64) {
        let before = self.reaches.get();
        self.reaches.set(with_reach(before, line, reach));
    }

    #[inline]
    fn slots(&self, line: u64) -> &'a [M::Word] {
        self.table.slots(&self.address.block, line)
    }

    /// The first slot where an entry of the address can be, and whose word is wanted.
    #[inline]
    fn find(&self, mut wanted: impl FnMut(u64) -> bool) -> Option<Found<'a, M::Word>> {
        let home = self.address.home;
        for step in 0..=self.reach(home) {
            let line = self.block().behind(home, step);
            for word in self.slots(line) {
                let value = word.get();
                if wanted(value) {
                    let line = Some(line);
                    return Some(Found { word, value, line });
                }
            }
        }
        self.find_in_chain(wanted)
    }

    fn find_in_chain(&self, mut wanted: impl FnMut(u64) -> bool) -> Option<Found<'a, M::Word>> {
        let mut next = next_of(self.head);
        while next != 0 {
            for word in self.table.overflow_slots(next) {
                let value = word.get();
                if wanted(value) {
                    let line = None;
                    return Some(Found { word, value, line });
                }
            }
            next = next_of(self.table.overflow_line(next)[0].get());
        }
        None
    }

    /// The first slot with the address's tag whose word is wanted.
    #[inline]
    pub(crate) fn find_tagged(
        &self,
        mut wanted: impl FnMut(u64) -> bool,
    ) -> Option<(&'a M::Word, u64)> {
        let Address { home, tag, .. } = self.address;
        let line = self.table.line(&self.address.block, home);
        // A glimpsed slot is checked. Other slots do not have the tag, because the line is ours.
        let mut tagged = M::glimpse(line, tag);
        while tagged != 0 {
            let found = &line[tagged.trailing_zeros() as usize % 8];
            let word = found.get();
            if slot::has_tag(word, tag) && wanted(word) {
                return Some((found, word));
            }
            tagged &= tagged - 1;
        }
        if self.reach(home) == 0 && next_of(self.head) == 0 {
            return None;
        }
        let found = self.find(|word| slot::has_tag(word, tag) && wanted(word))?;
        Some((found.word, found.value))
    }

    /// Lets a slot that came with the lock refer to another entry of its key, not pending.
    #[inline(always)]
    pub(crate) fn replace_likely(&mut self, likely: Likely<'_, M::Word>, new: EntryRef) {
        let Likely { word, value } = likely;
        assert!(word.get() == value, "the slot's block is locked since");
        word.set(slot::pack(slot::tag_of(value), new, false));
    }

    /// The slot of an entry of the address, and its word. An entry's tag is that of its address.
    #[inline]
    pub(crate) fn find_entry(&self, entry: EntryRef) -> Option<(&'a M::Word, u64)> {
        self.find_tagged(|word| slot::refers_to(word, entry))
    }

    /// The words of all entries of the block.
    pub(crate) fn entries(&self, into: &mut Vec<u64>) {
        for line in 0..self.block().lines {
            let words = self.slots(line).iter().map(Word::get);
            into.extend(words.filter(|&word| word != slot::EMPTY));
        }
        self.find_in_chain(|word| {
            if word != slot::EMPTY {
                into.push(word);
            }
            false
        });
    }

    /// The words of the entries that share the home of the address.
    pub(crate) fn entries_of_home(&self, into: &mut Vec<u64>) {
        let Address { block, home, .. } = self.address;
        self.find(|word| {
            if word != slot::EMPTY && block.home(slot::tag_of(word)) == home {
                into.push(word);
            }
            false
        });
    }

    /// Puts a word of the address, which must not be in the block, into an empty slot.
    ///
    /// # Errors
    /// When the block is full and there is no overflow line; nothing has changed.
    pub(crate) fn insert(&mut self, word: u64) -> Result<(), NoLineLeft> {
        let free = self.room()?;
        self.fill(free, word);
        Ok(())
    }

    /// The slot for a new word of the address.
    ///
    /// # Errors
    /// As of [`Self::insert`].
    #[inline]
    pub(crate) fn room(&self) -> Result<Free<'a, M>, NoLineLeft> {
        self.room_beside(|_| false)
    }

    /// [`Self::room`] among the slots that are not promised to other words. Those are filled before
    /// this one is.
    #[inline]
    pub(crate) fn room_beside(
        &self,
        is_promised: impl Fn(&M::Word) -> bool,
    ) -> Result<Free<'a, M>, NoLineLeft> {
        let Address { block, home, .. } = self.address;
        let is_free = |word: &M::Word| word.get() == slot::EMPTY && !is_promised(word);
        for step in 0..block.lines {
            let slots = self.slots(block.behind(home, step));
            if let Some(word) = slots.iter().find(|word| is_free(word)) {
                return Ok(Free::Lines { word, step });
            }
        }
        self.room_in_chain(is_free)
    }

    /// All lines are full (X2), or will be.
    fn room_in_chain(&self, is_free: impl Fn(&M::Word) -> bool) -> Result<Free<'a, M>, NoLineLeft> {
        let mut next = next_of(self.head);
        while next != 0 {
            let slots = self.table.overflow_slots(next);
            if let Some(word) = slots.iter().find(|word| is_free(word)) {
                return Ok(Free::Chain(word));
            }
            next = next_of(self.table.overflow_line(next)[0].get());
        }
        let table = self.table;
        let number = table.take_overflow().ok_or(NoLineLeft)?;
        Ok(Free::Spare(SpareLine { table, number }))
    }

    /// Puts a word of the address, which must not be in the block, into the slot found for it. The
    /// block is unchanged since.
    #[inline]
    pub(crate) fn fill(&mut self, free: Free<'_, M>, word: u64) {
        let Address { block, home, .. } = self.address;
        match free {
            Free::Lines { word: empty, step } => {
                // First the displacement: a reader that sees the entry in its slot must also see
                // its distance.
                if step > self.reach(home) {
                    self.set_reach(home, step);
                }
                empty.set(word);
            }
            Free::Chain(empty) => empty.set(word),
            Free::Spare(spare) => self.fill_spare(spare, word),
        }
        self.table.count_in(block.number);
    }

    /// Makes a line with this word the last one of the chain.
    fn fill_spare(&mut self, mut spare: SpareLine<'_, M>, word: u64) {
        let number = core::mem::take(&mut spare.number);
        self.table.overflow_slots(number)[0].set(word);
        let lines = match self.last_overflow() {
            None => {
                self.head = with_next(self.head, number);
                self.head_word.set(self.head | LOCKED);
                1
            }
            Some(chain) => {
                let next = &self.table.overflow_line(chain.last)[0];
                next.set(with_next(next.get(), number));
                chain.lines + 1
            }
        };
        self.table.note_chain(lines);
    }

    /// Removes the entry of the address at `entry`; false if it is missing. Other entries take its
    /// slot if they could be at home and are not, or lie in the chain (X2).
    pub(crate) fn remove(&mut self, entry: EntryRef) -> bool {
        let Some(found) = self.find(|word| slot::refers_to(word, entry)) else {
            return false;
        };
        let Address { block, home, .. } = self.address;
        self.table.count_out(block.number);
        let no_chain = next_of(self.head) == 0;
        if no_chain && found.line == Some(home) && self.reach(home) == 0 {
            found.word.set(slot::EMPTY);
            return true;
        }
        self.begin_move();
        found.word.set(slot::EMPTY);
        let hole = match found.line {
            None => None,
            Some(line) => self.bring_home(line, found.word),
        };
        if !no_chain {
            self.take_from_chain(hole, found.word);
        }
        if found.line != Some(home) {
            self.tighten(home);
        }
        self.end_move();
        true
    }

    /// Fills a hole in a line with the entry whose home this is and that lies farthest away. That
    /// leaves another hole, and so on. Gives the last hole, in a line that has no entries
    /// elsewhere. Each step shortens the way of an entry.
    fn bring_home(&self, line: u64, hole: &'a M::Word) -> Option<(u64, &'a M::Word)> {
        let (mut line, mut hole) = (line, hole);
        loop {
            self.tighten(line);
            let reach = self.reach(line);
            if reach == 0 {
                return Some((line, hole));
            }
            let from = self.block().behind(line, reach);
            let word = self
                .of_home(from, line)
                .expect("tightened: there is one so far away");
            hole.set(word.get());
            word.set(slot::EMPTY);
            self.tighten(line);
            (line, hole) = (from, word);
        }
    }

    /// An entry in line `line` whose home is `home`.
    fn of_home(&self, line: u64, home: u64) -> Option<&'a M::Word> {
        let is_of =
            |word: u64| word != slot::EMPTY && self.address.block.home(slot::tag_of(word)) == home;
        self.slots(line).iter().find(|word| is_of(word.get()))
    }

    /// Sets the displacement of a home to its true value.
    fn tighten(&self, home: u64) {
        let before = self.reach(home);
        let mut reach = before;
        while reach > 0
            && self
                .of_home(self.block().behind(home, reach), home)
                .is_none()
        {
            reach -= 1;
        }
        if reach < before {
            self.set_reach(home, reach);
        }
    }

    /// Moves the last entry of the chain to `hole`, a slot of a line. Without such a hole it moves
    /// to `in_chain`, a slot of the chain that has become empty.
    fn take_from_chain(&mut self, hole: Option<(u64, &'a M::Word)>, in_chain: &'a M::Word) {
        let ChainEnd { before, last, .. } = self
            .last_overflow()
            .expect("asked only when there is a chain");
        let slots = self.table.overflow_slots(last);
        // The emptied slot may be among these.
        let used = slots.iter().rposition(|w| w.get() != slot::EMPTY);
        let now_empty = match used {
            None => true,
            Some(used) => {
                let moved = &slots[used];
                let word = moved.get();
                match hole {
                    Some((line, hole)) => {
                        let home = self.block().home(slot::tag_of(word));
                        let distance = self.block().distance(home, line);
                        if distance > self.reach(home) {
                            self.set_reach(home, distance);
                        }
                        hole.set(word);
                        moved.set(slot::EMPTY);
                        used == 0
                    }
                    None => {
                        let behind = slots.iter().position(|slot| core::ptr::eq(slot, in_chain));
                        // A hole behind the last entry is no hole.
                        if behind.is_none_or(|hole| hole < used) {
                            in_chain.set(word);
                            moved.set(slot::EMPTY);
                            used == 0
                        } else {
                            false
                        }
                    }
                }
            }
        };
        if now_empty {
            self.cut_behind(before);
            self.table.free_chain(last);
        }
    }

    /// Rewrites the block from the arguments: words of the slots line by line, displacements,
    /// chain. The old chain is freed. Only between `begin_move` and `end_move`. It leaves the
    /// counts alone.
    pub(crate) fn rewrite(&mut self, block: Block, slots: &[[u64; 8]], reaches: u64, chain: u64) {
        debug_assert!(self.head & MOVING != 0, "X3");
        self.address.block = block;
        for (line, new) in (0..block.lines).zip(slots) {
            for (word, &new) in self.slots(line).iter().zip(new) {
                if word.get() != new {
                    word.set(new);
                }
            }
        }
        self.reaches.set(reaches);
        let old = next_of(self.head);
        self.head = with_next(self.head, chain);
        self.head_word.set(self.head | LOCKED);
        self.table.free_chain(old);
    }

    /// From now on readers without a result look again.
    #[inline(always)]
    pub(crate) fn begin_move(&mut self) {
        self.head |= MOVING;
        self.head_word.set(self.head | LOCKED);
    }

    /// While the result lives, the caller may change data behind an entry that stable lookups take.
    /// They see the data as it was before, or as it is after. The block can be used for nothing
    /// else meanwhile.
    #[inline(always)]
    pub(crate) fn begin_change(&mut self) -> Change<'_, 'a, M> {
        self.begin_move();
        // The head says *moving* before any part of the change is visible.
        M::fence_release();
        Change { locked: self }
    }

    #[inline]
    pub(crate) fn end_move(&mut self) {
        self.head = with_next_version(self.head) & !MOVING;
        self.head_word.set(self.head | LOCKED);
    }

    /// Ends the chain behind overflow line `last`; 0 means no chain.
    fn cut_behind(&mut self, last: u64) {
        if last == 0 {
            self.head = with_next(self.head, 0);
            self.head_word.set(self.head | LOCKED);
        } else {
            let next = &self.table.overflow_line(last)[0];
            next.set(with_next(next.get(), 0));
        }
    }

    /// The end of the chain, if there is one.
    fn last_overflow(&self) -> Option<ChainEnd> {
        let mut chain = ChainEnd {
            before: 0,
            last: next_of(self.head),
            lines: 1,
        };
        if chain.last == 0 {
            return None;
        }
        loop {
            match next_of(self.table.overflow_line(chain.last)[0].get()) {
                0 => return Some(chain),
                next => {
                    chain = ChainEnd {
                        before: chain.last,
                        last: next,
                        lines: chain.lines + 1,
                    }
                }
            }
        }
    }
}

impl<M: Lines> Drop for Locked<'_, M> {
    #[inline(always)]
    fn drop(&mut self) {
        self.head_word.set(self.head & !LOCKED);
    }
}

/// Data behind an entry of a locked block changes as long as this lives.
#[must_use = "the change is over when this is dropped"]
pub(crate) struct Change<'l, 'a, M: Lines> {
    locked: &'l mut Locked<'a, M>,
}

impl<M: Lines> Drop for Change<'_, '_, M> {
    /// Readers see the end with the next store to the head, at the latest that of the unlocking.
    /// Until then they look again.
    #[inline(always)]
    fn drop(&mut self) {
        let locked = &mut *self.locked;
        locked.head = with_next_version(locked.head) & !MOVING;
    }
}
