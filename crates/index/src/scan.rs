//! Walking the index in the order of ranks, line by line, and emptying ranges of it.

use crate::slot::{self, Slot};
use crate::spread::Spread;
use crate::table::Table;
use crate::words::Lines;
use pluvio_units::{EntryRef, HashRange, KeyHash, Rank};

impl<M: Lines> Table<M> {
    /// Appends the slots of the entries whose home covers `from`. Gives the last rank that home
    /// covers.
    pub(crate) fn scan(&self, spread: &Spread, from: Rank, slots: &mut Vec<Slot>) -> Rank {
        let place = spread.place_of(from);
        let begin = slots.len();
        // Two closures share the vector: one removes the slots of a failed attempt, one adds to it.
        let found = core::cell::RefCell::new(&mut *slots);
        let Err(address) = self.read_all(
            place,
            || found.borrow_mut().truncate(begin),
            |word, address| -> Option<core::convert::Infallible> {
                if word != slot::EMPTY && address.block.home(slot::tag_of(word)) == address.home {
                    found.borrow_mut().push(Slot::of(word));
                }
                None
            },
        );
        let (first, last) = address.places(place);
        spread.ranks(first, last).1
    }

    /// Removes the entries of `range` from the home that covers `from`, and appends their slots to
    /// `removed`. Gives the last rank that home covers. `hash_of` is called for the entries of a
    /// home that lies partly in the range.
    pub(crate) fn remove_in_bucket(
        &self,
        spread: &Spread,
        from: Rank,
        range: HashRange,
        mut hash_of: impl FnMut(EntryRef) -> KeyHash,
        removed: &mut Vec<Slot>,
    ) -> Rank {
        let place = spread.place_of(from);
        let mut words = Vec::new();
        let mut locked = self.lock(place);
        let (first, last) = locked.address().places(place);
        let ranks = spread.ranks(first, last);
        let whole = spread.are_within(range, ranks);
        locked.entries_of_home(&mut words);
        for &word in &words {
            let entry = slot::entry_of(word);
            if whole || range.contains(hash_of(entry)) {
                let was_there = locked.remove(entry);
                assert!(was_there, "X1: an entry is where its home says");
                removed.push(Slot::of(word));
            }
        }
        ranks.1
    }
}
