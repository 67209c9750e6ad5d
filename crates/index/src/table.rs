//! The index without its mapping: places instead of hashes, any memory instead of a region.
//!
//! Owns the layout of the lines:
//!
//! ```text
//! line 0         | bucket count | unused ...                                     |
//! line 1 + b     | head | slot | slot | slot | slot | slot | slot | slot |   bucket b
//!    ...           (untouched address space between)
//! line end - o   | next | slot | slot | slot | slot | slot | slot | slot |   overflow bucket o >= 1
//!
//! head:  63..32 first overflow bucket, 0 = none | 31..2 version | 1 moving | 0 locked
//! next:  63..32 next overflow bucket, 0 = none  | unused
//! ```

use crate::slot::{self, Slot};
use crate::spread::Address;
use crate::words::{Lines, Word};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use pluvio_units::EntryRef;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Average entries per bucket before the next split. At 4 of 7 slots, 2 to 5 % of the entries are in
/// overflow buckets (Poisson, over one doubling); an entry costs 16 to 18 bytes.
pub(crate) const ENTRIES_PER_BUCKET: u64 = 4;

/// With more overflow buckets than one for so many entries, hashes are unevenly spread: a doubling
/// of evenly spread ones passes one for 40 at most. Then splitting goes on beyond the average above.
pub(crate) const ENTRIES_PER_OVERFLOW: u64 = 16;

/// How far it goes on: uneven hashes may cost up to this many buckets per entry.
pub(crate) const BUCKETS_PER_ENTRY_MAX: u64 = 2;

/// The number of entries is kept in so many counters, each in a line of its own, so that inserting
/// cores do not fight for one. A power of two.
const STRIPES: usize = 8;

pub(crate) const LOCKED: u64 = 1;
pub(crate) const MOVING: u64 = 2;
const VERSION_MASK: u64 = 0xffff_fffc;
const VERSION_ONE: u64 = 4;
const NEXT_SHIFT: u32 = 32;

/// The overflow bucket a head or next word names; 0 for none.
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

/// Whether no entry has changed its slot since `before` was read.
#[inline]
fn unmoved(before: u64, now: u64) -> bool {
    (before ^ now) & (VERSION_MASK | MOVING) == 0
}

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct Table<M> {
    pub(crate) memory: M,
    /// The bucket count never exceeds it.
    pub(crate) buckets_max: u64,
    stripes: [Stripe; STRIPES],
    /// Set when a split is due; a hint.
    pub(crate) split_due: AtomicBool,
    /// Held by the one thread that splits.
    pub(crate) splitting: AtomicBool,
    overflow: Mutex<Overflow>,
    /// Overflow buckets in chains; a copy for those who do not want the mutex.
    overflow_used: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe(AtomicU64);

/// Overflow buckets that are in no chain.
#[derive(Debug)]
struct Overflow {
    free: Vec<u64>,
    /// Numbers from here on were never used.
    fresh: u64,
}

impl<M: Lines> Table<M> {
    /// `memory` is zero and has room for `buckets` now, `buckets_max` ever, and overflow buckets.
    pub(crate) fn new(memory: M, buckets: u64, buckets_max: u64) -> Self {
        assert!(0 < buckets && buckets <= buckets_max && buckets_max < memory.count());
        memory.line(0)[0].set(buckets);
        Self {
            memory,
            buckets_max,
            stripes: Default::default(),
            split_due: AtomicBool::new(false),
            splitting: AtomicBool::new(false),
            overflow: Mutex::new(Overflow {
                free: Vec::new(),
                fresh: 1,
            }),
            overflow_used: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(crate) fn buckets(&self) -> u64 {
        self.memory.line(0)[0].get()
    }

    pub(crate) fn set_buckets(&self, buckets: u64) {
        self.memory.line(0)[0].set(buckets);
    }

    #[inline]
    pub(crate) fn address(&self, place: u64) -> Address {
        Address::of(place, self.buckets())
    }

    #[inline]
    pub(crate) fn prefetch(&self, place: u64) {
        self.memory.prefetch(1 + self.address(place).bucket);
    }

    #[inline]
    pub(crate) fn bucket(&self, number: u64) -> &[M::Word; 8] {
        self.memory.line(1 + number)
    }

    #[inline]
    pub(crate) fn overflow_bucket(&self, number: u64) -> &[M::Word; 8] {
        self.memory.line(self.memory.count() - number)
    }

    /// Shows `see` every slot word of the chain of `place` until it answers something, or until all of
    /// them were seen without one entry changing its slot meanwhile: then the answer is `None`, and
    /// every entry that was there all the time has been seen. The address is the chain's; `restart`
    /// is called before each attempt.
    ///
    /// Why an answer needs no check: a slot is one word, so what it said was linked when it was read.
    /// Why a complete view does: an entry could have moved from a slot not yet seen to one seen
    /// already. Moving starts by storing *moving* before the first slot (X3); so a slot load
    /// (acquire) that read a moved word makes the last load of the head read *moving* or more.
    #[inline]
    pub(crate) fn read_chain<T>(
        &self,
        place: u64,
        mut restart: impl FnMut(),
        mut see: impl FnMut(u64, &Address) -> Option<T>,
    ) -> Result<T, Address> {
        let mut address = self.address(place);
        let mut attempt = 0_u32;
        loop {
            restart();
            let primary = self.bucket(address.bucket);
            let head = primary[0].get();
            let (mut line, mut next) = (primary, next_of(head));
            let whole = loop {
                for word in &line[1..=M::SLOTS] {
                    if let Some(answer) = see(word.get(), &address) {
                        return Ok(answer);
                    }
                }
                // Not moved: `next` was in this chain when it was read, so chains cannot lead astray.
                if !unmoved(head, primary[0].get()) || head & MOVING != 0 {
                    break false;
                }
                if next == 0 {
                    break true;
                }
                line = self.overflow_bucket(next);
                next = next_of(line[0].get());
            };
            // A split counts the new bucket before its version ends the move; so who saw that version
            // sees the count here.
            let now = self.address(place);
            if whole && now == address {
                return Err(address);
            }
            address = now;
            M::wait(attempt);
            attempt = attempt.saturating_add(1);
        }
    }

    /// Which slots of a bucket's first line have the tag, as bits by their place in the line. Without branches: where in
    /// the line the tag is, no processor foresees, and a wrong guess would keep it from going on with the next
    /// lookup while this one waits for memory.
    #[inline]
    pub(crate) fn tagged(line: &[M::Word; 8], tag: u64) -> u32 {
        let tagged = |at: usize| u32::from(slot::has_tag(line[at].get(), tag)) << at;
        (1..=M::SLOTS).map(tagged).fold(0, |mask, bit| mask | bit)
    }

    #[inline]
    pub(crate) fn lookup(&self, place: u64, mut matches: impl FnMut(Slot) -> bool) -> Option<Slot> {
        let address = self.address(place);
        let line = self.bucket(address.bucket);
        let mut tagged = Self::tagged(line, address.tag);
        while tagged != 0 {
            let word = line[tagged.trailing_zeros() as usize].get();
            if slot::has_tag(word, address.tag) && matches(Slot::of(word)) {
                return Some(Slot::of(word));
            }
            tagged &= tagged - 1;
        }
        self.lookup_in_chain(place, matches)
    }

    /// [`Self::lookup`] for what is not in its bucket's first line, or not at all.
    #[inline(never)]
    fn lookup_in_chain(&self, place: u64, mut matches: impl FnMut(Slot) -> bool) -> Option<Slot> {
        self.read_chain(
            place,
            || (),
            |word, address| {
                let found = slot::has_tag(word, address.tag) && matches(Slot::of(word));
                found.then(|| Slot::of(word))
            },
        )
        .ok()
    }

    /// [`Self::lookup`], and `take` something of what it found that writers change between
    /// [`Locked::begin_move`](crate::bucket::Locked::begin_move) and `end_move`: the answer was true as a whole.
    #[inline]
    pub(crate) fn lookup_stable<T>(
        &self,
        place: u64,
        mut take: impl FnMut(Slot) -> Option<T>,
    ) -> Option<T> {
        let mut attempt = 0_u32;
        loop {
            let address = self.address(place);
            let head = self.bucket(address.bucket)[0].get();
            if head & MOVING == 0 {
                let found = self.read_chain(
                    place,
                    || (),
                    |word, address| {
                        let tagged = slot::has_tag(word, address.tag);
                        tagged.then(|| take(Slot::of(word))).flatten()
                    },
                );
                let Ok(taken) = found else {
                    return None;
                };
                // Pairs with the fence in `change_in_place`: who took something of a change sees *moving* or
                // a newer version here.
                M::fence_acquire();
                let now = self.bucket(address.bucket)[0].get();
                if unmoved(head, now) && self.address(place) == address {
                    return Some(taken);
                }
            }
            M::wait(attempt);
            attempt = attempt.saturating_add(1);
        }
    }

    #[inline]
    pub(crate) fn candidate(&self, place: u64) -> Option<EntryRef> {
        let address = self.address(place);
        let line = self.bucket(address.bucket);
        let tagged = Self::tagged(line, address.tag);
        (tagged != 0).then(|| slot::entry_of(line[tagged.trailing_zeros() as usize].get()))
    }

    /// Entries, exact when nobody writes.
    pub(crate) fn len(&self) -> u64 {
        let counts = self.stripes.iter().map(|s| s.0.load(Ordering::Relaxed));
        // Wrapping: the stripes are read one after the other while others count.
        counts.fold(0, u64::wrapping_add)
    }

    pub(crate) fn count_in(&self, bucket: u64) {
        let stripe = &self.stripes[bucket as usize % STRIPES].0;
        let here = stripe.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let due = self.buckets() * ENTRIES_PER_BUCKET;
        if here.saturating_mul(STRIPES as u64) > due && !self.split_due.load(Ordering::Relaxed) {
            self.note_split_due();
        }
    }

    pub(crate) fn count_out(&self, bucket: u64, entries: u64) {
        let stripe = &self.stripes[bucket as usize % STRIPES].0;
        stripe.fetch_sub(entries, Ordering::Relaxed);
    }

    /// Takes an overflow bucket, empty and in no chain; none when the memory is used up.
    pub(crate) fn take_overflow(&self) -> Option<u64> {
        let number = {
            let mut overflow = self.lock_overflow();
            let number = match overflow.free.pop() {
                Some(number) => number,
                // Line 0, the buckets there may ever be, and the fresh one itself.
                None if overflow.fresh + 1 + self.buckets_max <= self.memory.count() => {
                    overflow.fresh += 1;
                    overflow.fresh - 1
                }
                None => return None,
            };
            self.overflow_used.fetch_add(1, Ordering::Relaxed);
            number
        };
        for word in self.overflow_bucket(number) {
            word.set(slot::EMPTY);
        }
        if !self.split_due.load(Ordering::Relaxed) {
            self.note_split_due();
        }
        Some(number)
    }

    /// Gives back overflow buckets that no chain refers to any more. Readers may be looking still:
    /// they find out by the version of the chain they came from.
    pub(crate) fn free_overflow(&self, numbers: impl IntoIterator<Item = u64>) {
        let mut overflow = self.lock_overflow();
        for number in numbers {
            overflow.free.push(number);
            self.overflow_used.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn overflow_used(&self) -> u64 {
        self.overflow_used.load(Ordering::Relaxed)
    }

    /// Lines that have been touched.
    pub(crate) fn lines_used(&self) -> u64 {
        self.buckets() + self.lock_overflow().fresh
    }

    fn lock_overflow(&self) -> MutexGuard<'_, Overflow> {
        // Nothing in the critical sections can panic half way.
        self.overflow.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
