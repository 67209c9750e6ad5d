//! One locked bucket: how its chain is changed.
//!
//! Owns the lock bit and, while it holds it, the chain: head, slots, overflow buckets. One store to
//! one slot (insert, replace, remove without overflow) needs no version: a reader sees the slot
//! before or after, and both were true. Whatever gives an entry another slot goes between
//! [`Locked::begin_move`] and [`Locked::end_move`] (X3).

use crate::slot;
use crate::spread::Address;
use crate::table::{LOCKED, MOVING, Table, next_of, with_next, with_next_version};
use crate::words::{Lines, Word};
use pluvio_units::EntryRef;

/// No overflow bucket is left.
#[derive(Debug)]
pub(crate) struct NoBucketLeft;

/// A bucket whose lock we hold until this is dropped.
pub(crate) struct Locked<'a, M: Lines> {
    table: &'a Table<M>,
    primary: &'a [M::Word; 8],
    /// The head as it will be unlocked.
    head: u64,
    address: Address,
}

impl<M: Lines> Table<M> {
    /// Locks the bucket of `place`. Spins, then yields, while another thread holds it.
    #[inline]
    pub(crate) fn lock(&self, place: u64) -> Locked<'_, M> {
        let mut attempt = 0_u32;
        loop {
            let address = self.address(place);
            let primary = self.bucket(address.bucket);
            let head = primary[0].get();
            if head & LOCKED == 0 && primary[0].try_swap(head, head | LOCKED) {
                let locked = Locked {
                    table: self,
                    primary,
                    head,
                    address,
                };
                // The address cannot change any more: a split of this bucket needs its lock, and one
                // before is visible through the lock.
                if self.address(place) == address {
                    return locked;
                }
            }
            M::wait(attempt);
            attempt = attempt.saturating_add(1);
        }
    }
}

impl<'a, M: Lines> Locked<'a, M> {
    #[inline]
    pub(crate) fn address(&self) -> Address {
        self.address
    }

    /// The first slot whose word is wanted, and that word.
    #[inline]
    pub(crate) fn find(&self, mut wanted: impl FnMut(u64) -> bool) -> Option<(&'a M::Word, u64)> {
        let (mut line, mut next) = (self.primary, next_of(self.head));
        loop {
            for word in &line[1..=M::SLOTS] {
                let value = word.get();
                if wanted(value) {
                    return Some((word, value));
                }
            }
            if next == 0 {
                return None;
            }
            line = self.table.overflow_bucket(next);
            next = next_of(line[0].get());
        }
    }

    /// The first slot with the bucket's tag whose word is wanted.
    #[inline]
    pub(crate) fn find_tagged(&self, mut wanted: impl FnMut(u64) -> bool) -> Option<u64> {
        let tag = self.address.tag;
        let mut tagged = Table::<M>::tagged(self.primary, tag);
        while tagged != 0 {
            let word = self.primary[tagged.trailing_zeros() as usize].get();
            if wanted(word) {
                return Some(word);
            }
            tagged &= tagged - 1;
        }
        if next_of(self.head) == 0 {
            return None;
        }
        let (_, word) = self.find(|word| slot::has_tag(word, tag) && wanted(word))?;
        Some(word)
    }

    #[inline]
    pub(crate) fn find_entry(&self, entry: EntryRef) -> Option<(&'a M::Word, u64)> {
        self.find(|word| slot::refers_to(word, entry))
    }

    /// The words of all entries, in chain order.
    pub(crate) fn entries(&self, into: &mut Vec<u64>) {
        self.find(|word| {
            if word != slot::EMPTY {
                into.push(word);
            }
            false
        });
    }

    /// Puts a word, which must not be in the chain, into the first empty slot.
    ///
    /// # Errors
    /// When the chain is full and there is no overflow bucket; nothing has changed.
    pub(crate) fn insert(&mut self, word: u64) -> Result<(), NoBucketLeft> {
        if let Some((empty, _)) = self.find(|word| word == slot::EMPTY) {
            empty.set(word);
        } else {
            let number = self.table.take_overflow().ok_or(NoBucketLeft)?;
            self.table.overflow_bucket(number)[1].set(word);
            match self.last_overflow() {
                None => {
                    self.head = with_next(self.head, number);
                    self.primary[0].set(self.head | LOCKED);
                }
                Some((_, last)) => {
                    let next = &self.table.overflow_bucket(last)[0];
                    next.set(with_next(next.get(), number));
                }
            }
        }
        self.table.count_in(self.address.bucket);
        Ok(())
    }

    /// Removes the entry at `entry`; false when it is not in the chain. The chain's last entry takes
    /// its slot if there are overflow buckets (X2).
    pub(crate) fn remove(&mut self, entry: EntryRef) -> bool {
        let Some((found, _)) = self.find_entry(entry) else {
            return false;
        };
        match self.last_overflow() {
            None => found.set(slot::EMPTY),
            Some((before, last)) => {
                let slots = &self.table.overflow_bucket(last)[1..=M::SLOTS];
                let used = slots.iter().take_while(|w| w.get() != slot::EMPTY).count();
                let moved = &slots[used
                    .checked_sub(1)
                    .expect("X2: the last bucket is not empty")];
                self.begin_move();
                found.set(moved.get());
                moved.set(slot::EMPTY);
                if used == 1 {
                    self.cut_behind(before);
                    self.table.free_overflow([last]);
                }
                self.end_move();
            }
        }
        self.table.count_out(self.address.bucket, 1);
        true
    }

    /// Makes the chain hold `words` and nothing else, in order; they are no more than it holds now.
    /// Only between `begin_move` and `end_move`. Does not count.
    pub(crate) fn rewrite(&mut self, words: &[u64]) {
        debug_assert!(self.head & MOVING != 0, "X3");
        let mut words = words.iter().copied();
        let mut keep = 0;
        let (mut line, mut next) = (self.primary, next_of(self.head));
        let mut cut = Vec::new();
        loop {
            for word in &line[1..=M::SLOTS] {
                word.set(words.next().unwrap_or(slot::EMPTY));
            }
            if next == 0 {
                break;
            }
            if words.len() > 0 {
                keep = next;
            } else {
                cut.push(next);
            }
            line = self.table.overflow_bucket(next);
            next = next_of(line[0].get());
        }
        assert_eq!(words.len(), 0, "a chain is rewritten in its own buckets");
        if !cut.is_empty() {
            self.cut_behind(keep);
            self.table.free_overflow(cut);
        }
    }

    /// From now on readers that find nothing look again.
    #[inline]
    pub(crate) fn begin_move(&mut self) {
        self.head |= MOVING;
        self.primary[0].set(self.head | LOCKED);
    }

    /// Changes something behind an entry that stable lookups take: they see it as it was before, or after.
    #[inline]
    pub(crate) fn change_in_place<R>(&mut self, change: impl FnOnce() -> R) -> R {
        self.begin_move();
        // Nothing of the change is seen before *moving* is.
        M::fence_release();
        let result = change();
        self.end_move();
        result
    }

    #[inline]
    pub(crate) fn end_move(&mut self) {
        self.head = with_next_version(self.head) & !MOVING;
        self.primary[0].set(self.head | LOCKED);
    }

    /// Ends the chain behind overflow bucket `last`, or behind the bucket itself when that is 0.
    fn cut_behind(&mut self, last: u64) {
        if last == 0 {
            self.head = with_next(self.head, 0);
            self.primary[0].set(self.head | LOCKED);
        } else {
            let next = &self.table.overflow_bucket(last)[0];
            next.set(with_next(next.get(), 0));
        }
    }

    /// The last overflow bucket and the one before it (0 = the bucket itself).
    fn last_overflow(&self) -> Option<(u64, u64)> {
        let (mut before, mut last) = (0, next_of(self.head));
        if last == 0 {
            return None;
        }
        loop {
            match next_of(self.table.overflow_bucket(last)[0].get()) {
                0 => return Some((before, last)),
                next => (before, last) = (last, next),
            }
        }
    }
}

impl<M: Lines> Drop for Locked<'_, M> {
    #[inline]
    fn drop(&mut self) {
        self.primary[0].set(self.head & !LOCKED);
    }
}
