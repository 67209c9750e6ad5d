//! Walking the index in hash order, line by line, and emptying ranges of it.

use crate::slot::{self, Slot};
use crate::spread::Spread;
use crate::table::Table;
use crate::words::Lines;
use pluvio_units::{EntryRef, HashRange, KeyHash};

impl<M: Lines> Table<M> {
    /// Appends the slots of the entries whose home covers `from`. Gives the last hash that home
    /// covers.
    pub(crate) fn scan(&self, spread: &Spread, from: KeyHash, slots: &mut Vec<Slot>) -> KeyHash {
        let place = spread.place(from);
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
        spread.hashes(first, last).last
    }

    /// Removes the entries of `range` from the home that covers its first hash, and appends their
    /// slots to `removed`. Gives the last hash that home covers. `hash_of` is called for the
    /// entries of a home that lies partly in the range.
    pub(crate) fn remove_in_first_bucket(
        &self,
        spread: &Spread,
        range: HashRange,
        mut hash_of: impl FnMut(EntryRef) -> KeyHash,
        removed: &mut Vec<Slot>,
    ) -> KeyHash {
        let place = spread.place(range.first);
        let mut words = Vec::new();
        let mut locked = self.lock(place);
        let (first, last) = locked.address().places(place);
        let hashes = spread.hashes(first, last);
        let whole = range.first <= hashes.first && hashes.last <= range.last;
        locked.entries_of_home(&mut words);
        for &word in &words {
            let entry = slot::entry_of(word);
            if whole || range.contains(hash_of(entry)) {
                let was_there = locked.remove(entry);
                assert!(was_there, "X1: an entry is where its home says");
                removed.push(Slot::of(word));
            }
        }
        hashes.last
    }
}
