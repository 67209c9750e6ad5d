//! Walking the index in hash order, bucket by bucket, and emptying ranges of it.

use crate::slot::{self, Slot};
use crate::spread::Spread;
use crate::table::Table;
use crate::words::Lines;
use pluvio_units::{EntryRef, HashRange, KeyHash};

impl<M: Lines> Table<M> {
    /// Appends the slots of the bucket that covers `from`, and says the last hash it covers.
    pub(crate) fn scan(&self, spread: &Spread, from: KeyHash, slots: &mut Vec<Slot>) -> KeyHash {
        let place = spread.place(from);
        let begin = slots.len();
        // Two closures share the vector: one forgets what an attempt found, one adds to it.
        let found = core::cell::RefCell::new(&mut *slots);
        let Err(address) = self.read_chain(
            place,
            || found.borrow_mut().truncate(begin),
            |word, _| -> Option<core::convert::Infallible> {
                if word != slot::EMPTY {
                    found.borrow_mut().push(Slot::of(word));
                }
                None
            },
        );
        spread.hashes(place, address.bits).last
    }

    /// Removes the entries of `range` from the bucket that covers its first hash, appends their slots
    /// to `removed`, and says the last hash the bucket covers. `hash_of` is called for the entries of
    /// a bucket that lies partly in the range.
    pub(crate) fn remove_in_first_bucket(
        &self,
        spread: &Spread,
        range: HashRange,
        mut hash_of: impl FnMut(EntryRef) -> KeyHash,
        removed: &mut Vec<Slot>,
    ) -> KeyHash {
        let place = spread.place(range.first);
        let (mut words, mut stay) = (Vec::new(), Vec::new());
        let mut locked = self.lock(place);
        let address = locked.address();
        let hashes = spread.hashes(place, address.bits);
        let whole = range.first <= hashes.first && hashes.last <= range.last;
        locked.entries(&mut words);
        let before = removed.len();
        for &word in &words {
            if whole || range.contains(hash_of(slot::entry_of(word))) {
                removed.push(Slot::of(word));
            } else {
                stay.push(word);
            }
        }
        if removed.len() > before {
            locked.begin_move();
            locked.rewrite(&stay);
            locked.end_move();
            self.count_out(address.bucket, (removed.len() - before) as u64);
        }
        hashes.last
    }
}
