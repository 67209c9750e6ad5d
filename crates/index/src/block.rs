//! One locked block: how its lines and its chain are changed.
//!
//! Owns the lock bit and, while it holds it, the block: head, displacements, slots, overflow lines.
//! One store to one slot (insert, replace, remove at home) needs no version: a reader sees the slot
//! before or after, and both were true. Whatever gives an entry another slot goes between
//! [`Locked::begin_move`] and [`Locked::end_move`] (X3).
//!
//! An entry is put into its home; if that is full, into the next line of the block that is not, and
//! the home's displacement says how far that was; if all are full, into the last overflow line.

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

/// A block whose lock we hold until this is dropped.
pub(crate) struct Locked<'a, M: Lines> {
    table: &'a Table<M>,
    head_word: &'a M::Word,
    reaches: &'a M::Word,
    /// The head as it will be unlocked.
    head: u64,
    /// Of the place that was asked for.
    address: Address,
}

/// A slot of a locked block with the tag that was asked for ([`Table::lock_after`]).
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

/// A slot for one more entry of a locked block. The block is as it was until the slot is filled
/// ([`Locked::fill`]).
pub(crate) enum Free<'a, M: Lines> {
    /// An empty slot in a line of the block, so many lines behind the home.
    Lines { word: &'a M::Word, step: u64 },
    /// One in the chain. All lines are full (X2).
    Chain(&'a M::Word),
    /// The first one of a line that is to become the last of the chain, which is full, too, or is
    /// not there.
    Spare(SpareLine<'a, M>),
}

impl<M: Lines> Free<'_, M> {
    /// Whether nobody has filled it.
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

/// Where an entry was found.
struct Found<'a, W> {
    word: &'a W,
    value: u64,
    /// The line of the block, or none for the chain.
    line: Option<u64>,
}

impl<M: Lines> Table<M> {
    /// Locks the block of `place`. Spins, then yields, while another thread holds it.
    #[inline]
    pub(crate) fn lock(&self, place: u64) -> Locked<'_, M> {
        let lines = self.lines();
        self.lock_address(place, lines, Address::of(place, lines, M::BLOCK_LOG))
    }

    /// [`Self::lock`] of what was approached, and `ahead` sees before it the entry that the first
    /// slot at home with the tag refers to. Gives that slot, if it still has an entry with that
    /// tag.
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
        // It was a glimpse: the entry may be another one, or none, to ask for which is no harm.
        ahead(slot::entry_of(word.get()));
        let locked = self.lock_block(address);
        if self.lines() != lines {
            return (self.lock_again(place, locked), None);
        }
        let value = word.get();
        let same = slot::has_tag(value, address.tag);
        (locked, same.then_some(Likely { word, value }))
    }

    /// Locks the block of `place`, whose address was this with so many lines.
    #[inline(always)]
    fn lock_address(&self, place: u64, lines: u64, address: Address) -> Locked<'_, M> {
        let locked = self.lock_block(address);
        // The block cannot change any more: a change of its size needs its lock, and one before is
        // visible through the lock. The number of lines alone decides about the address.
        if self.lines() == lines {
            return locked;
        }
        self.lock_again(place, locked)
    }

    /// [`Self::lock`] for who has locked the block that `place` had with another number of lines:
    /// it is unlocked. (It may be the right one all the same, which is rare, too.)
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

    /// Locks the block of an address, whether or not there is such a block.
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

    /// Sets the lock bit of a head that somebody else had locked, or has changed, a moment ago;
    /// gives what it was before.
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

    /// The first slot where an entry of the address can be whose word is wanted.
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
        // What is glimpsed is looked at; what is not is not there, since the line is ours.
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

    /// The slot that a word of the address is to be put into.
    ///
    /// # Errors
    /// As of [`Self::insert`].
    #[inline]
    pub(crate) fn room(&self) -> Result<Free<'a, M>, NoLineLeft> {
        let Address { block, home, .. } = self.address;
        for step in 0..block.lines {
            let slots = self.slots(block.behind(home, step));
            if let Some(word) = slots.iter().find(|slot| slot.get() == slot::EMPTY) {
                return Ok(Free::Lines { word, step });
            }
        }
        self.room_in_chain()
    }

    /// All lines are full (X2).
    fn room_in_chain(&self) -> Result<Free<'a, M>, NoLineLeft> {
        if let Some(empty) = self.find_in_chain(|word| word == slot::EMPTY) {
            return Ok(Free::Chain(empty.word));
        }
        let table = self.table;
        let number = table.take_overflow().ok_or(NoLineLeft)?;
        Ok(Free::Spare(SpareLine { table, number }))
    }

    /// Puts a word of the address, which must not be in the block, into the slot that was found for
    /// it. The block has not changed since.
    #[inline]
    pub(crate) fn fill(&mut self, free: Free<'_, M>, word: u64) {
        let Address { block, home, .. } = self.address;
        match free {
            Free::Lines { word: empty, step } => {
                // First this: who sees the entry in its slot and not how far that is must not come
                // later.
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

    /// Removes the entry of the address at `entry`; false when it is not there. Others take its
    /// slot if they are not at home but could be, or lie in the chain (X2).
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

    /// There is a hole in a line: brings the entry home that is farthest from there, which leaves
    /// another hole, and so on. Gives the last hole, in a line that has no entries elsewhere. Each
    /// step shortens the way of an entry.
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

    /// Makes the displacement of a home what it is.
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

    /// Moves the last entry of the chain to `hole`, a slot of a line; or, when there is none, to
    /// `in_chain`, a slot of the chain that has become empty.
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

    /// Makes the block what the arguments say: words of the slots line by line, displacements,
    /// chain. The old chain is freed. Only between `begin_move` and `end_move`. Does not count.
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

    /// From now on readers that find nothing look again.
    #[inline(always)]
    pub(crate) fn begin_move(&mut self) {
        self.head |= MOVING;
        self.head_word.set(self.head | LOCKED);
    }

    /// As long as what this gives lives, something behind an entry that stable lookups take may be
    /// changed: they see it as it was before, or as it is after. Nothing else can be done with the
    /// block meanwhile.
    #[inline(always)]
    pub(crate) fn begin_change(&mut self) -> Change<'_, 'a, M> {
        self.begin_move();
        // Nothing of the change is seen before *moving* is.
        M::fence_release();
        Change { locked: self }
    }

    #[inline]
    pub(crate) fn end_move(&mut self) {
        self.head = with_next_version(self.head) & !MOVING;
        self.head_word.set(self.head | LOCKED);
    }

    /// Ends the chain behind overflow line `last`, or has none when that is 0.
    fn cut_behind(&mut self, last: u64) {
        if last == 0 {
            self.head = with_next(self.head, 0);
            self.head_word.set(self.head | LOCKED);
        } else {
            let next = &self.table.overflow_line(last)[0];
            next.set(with_next(next.get(), 0));
        }
    }

    /// Where the chain ends, if there is one.
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

/// Something behind an entry of a locked block changes as long as this lives.
#[must_use = "the change is over when this is dropped"]
pub(crate) struct Change<'l, 'a, M: Lines> {
    locked: &'l mut Locked<'a, M>,
}

impl<M: Lines> Drop for Change<'_, '_, M> {
    /// Readers hear of the end with the next store to the head, which is at the latest that of the
    /// unlocking; until then they look again.
    #[inline(always)]
    fn drop(&mut self) {
        let locked = &mut *self.locked;
        locked.head = with_next_version(locked.head) & !MOVING;
    }
}
