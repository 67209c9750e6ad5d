//! Growth: one bucket at a time.
//!
//! Owns the bucket count, which it raises by one per split. A split of bucket `s` of `2^level + s`:
//! lock it; fill the new bucket, which nobody can address yet, with the entries that go there; say
//! *moving*; write back those that stay; count the new bucket; say the new version; unlock. Readers
//! and writers of all other buckets notice nothing.

use crate::bucket::Locked;
use crate::slot;
use crate::spread::{self, Address};
use crate::table::{
    BUCKETS_PER_ENTRY_MAX, ENTRIES_PER_BUCKET, ENTRIES_PER_OVERFLOW, Table, with_next,
};
use crate::words::{Lines, Word};
use core::sync::atomic::Ordering;
use pluvio_units::EntryRef;

/// Splits per call of [`Table::grow`]. One split makes room for four entries, so that two per inserted
/// entry also catch up with a backlog.
const SPLITS_PER_CALL: u32 = 2;

/// Room for the words of a chain that is already too long, made before the bucket is locked.
const CHAIN_GUESS: usize = 64;

impl<M: Lines> Table<M> {
    pub(crate) fn note_split_due(&self) {
        if self.is_split_due() {
            self.split_due.store(true, Ordering::Relaxed);
        }
    }

    fn is_split_due(&self) -> bool {
        let (buckets, entries) = (self.buckets(), self.len());
        let crowded = entries > buckets.saturating_mul(ENTRIES_PER_BUCKET);
        let uneven = self.overflow_used() > entries / ENTRIES_PER_OVERFLOW
            && buckets < entries.saturating_mul(BUCKETS_PER_ENTRY_MAX);
        buckets < self.buckets_max && (crowded || uneven)
    }

    /// Does a few splits if they are due and no other thread is at it. `place_of` reads the key of an
    /// entry; it is called for the entries of one bucket in eight. Says how many splits it did.
    #[inline]
    pub(crate) fn grow(&self, place_of: impl FnMut(EntryRef) -> u64) -> u32 {
        if !self.split_due.load(Ordering::Relaxed) {
            return 0;
        }
        self.grow_now(place_of)
    }

    #[cold]
    fn grow_now(&self, mut place_of: impl FnMut(EntryRef) -> u64) -> u32 {
        /// Lets the next one split, also when `place_of` panics.
        struct Release<'a>(&'a core::sync::atomic::AtomicBool);
        impl Drop for Release<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Release);
            }
        }
        if self.splitting.swap(true, Ordering::Acquire) {
            return 0;
        }
        let _release = Release(&self.splitting);
        for done in 0..SPLITS_PER_CALL {
            if !self.is_split_due() || !self.split(&mut place_of) {
                self.split_due.store(false, Ordering::Relaxed);
                return done;
            }
        }
        SPLITS_PER_CALL
    }

    /// Splits the next bucket; false when there is no memory. Only by the one that is `splitting`.
    pub(crate) fn split(&self, place_of: &mut impl FnMut(EntryRef) -> u64) -> bool {
        let buckets = self.buckets();
        let level = buckets.ilog2();
        let old = buckets - (1 << level);
        let [mut words, mut stay, mut go] = [(); 3].map(|()| Vec::with_capacity(CHAIN_GUESS));
        // The place whose reversed top bits are the bucket's number.
        let mut locked = self.lock(old.reverse_bits());
        debug_assert_eq!(
            (locked.address().bucket, locked.address().bits),
            (old, level)
        );
        locked.entries(&mut words);
        for &word in &words {
            let (goes, word) = if spread::split_needs_keys(level) {
                let place = place_of(slot::entry_of(word));
                let after = Address::of(place, buckets + 1);
                let placed = after.bucket == old || after.bucket == buckets;
                assert!(
                    placed,
                    "X1: the key of an entry in bucket {old} has another hash now"
                );
                (after.bucket != old, slot::with_tag(word, after.tag))
            } else {
                (spread::goes_to_new(slot::tag_of(word), level), word)
            };
            if goes { &mut go } else { &mut stay }.push(word);
        }
        if !self.fill_new(buckets, &go) {
            return false;
        }
        self.publish_split(&mut locked, buckets + 1, &stay);
        // The counters go by bucket number; with eight of them and at least 16 buckets, both halves
        // of a split have the same one.
        true
    }

    /// The step readers can see.
    fn publish_split(&self, locked: &mut Locked<'_, M>, buckets: u64, stay: &[u64]) {
        locked.begin_move();
        locked.rewrite(stay);
        self.set_buckets(buckets);
        locked.end_move();
    }

    /// Fills a bucket that nobody can address yet; false when there are too few overflow buckets.
    fn fill_new(&self, bucket: u64, words: &[u64]) -> bool {
        let chunks = words.chunks(M::SLOTS);
        let mut more = Vec::new();
        for _ in 1..chunks.len() {
            match self.take_overflow() {
                Some(number) => more.push(number),
                None => {
                    self.free_overflow(more);
                    return false;
                }
            }
        }
        let lines = || {
            let overflow = more.iter().map(|&number| self.overflow_bucket(number));
            core::iter::once(self.bucket(bucket)).chain(overflow)
        };
        for (line, chunk) in lines().zip(chunks) {
            for (slot, &word) in line[1..].iter().zip(chunk) {
                slot.set(word);
            }
        }
        for (line, &next) in lines().zip(&more) {
            line[0].set(with_next(0, next));
        }
        true
    }
}
