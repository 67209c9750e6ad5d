//! The two halves of one ring: bytes go in at a [`Producer`] and come out at a [`Consumer`], in the
//! same order. They are usually in two processes that do not trust each other.
//!
//! ```text
//!  control   0        8                        128    136
//!            +--------+------------------------+------+---------+----
//!            | waits  |                        | head | waits   |
//!            +--------+------------------------+------+---------+----
//!            of the producer                   of the consumer
//!
//!  data           head                                tail
//!            -----+-----------+-------+-----------+---+---------+----
//!                 | length    | bytes | length    | … | 0       |
//!            -----+-----------+-------+-----------+---+---------+----
//!                   a word, with its complement in the upper half
//! ```
//!
//! A record is a word and its bytes, rounded up to words. The word is zero until the record is
//! complete. The consumer looks at the place of the next record, so it loads no other line that the
//! producer writes. Positions count bytes since the beginning; a place is a position modulo the
//! length of the data.
//!
//! Invariants
//! - RING-1: the bytes of a record and the zero word behind it are stored before the record's word.
//!   So the consumer never takes old bytes for a record, and a producer that dies between two
//!   stores leaves whole records only.
//! - RING-2: whatever the other side wrote is loaded once, then checked, then used. An impossible
//!   word or position ends the ring ([`Garbage`]). Nothing that it writes makes a panic or a loop.
//! - RING-3: a half that is about to sleep says so, and then looks once more. After each change the
//!   other half looks whether it sleeps. So at least one of them sees the other, and no wake-up is
//!   lost.
//!
//! Threads: each half belongs to one task.

use core::sync::atomic::{Ordering, fence};
use pluvio_memory::SharedMemory;
use std::sync::Arc;

/// Bytes of one ring's control words.
pub(super) const CONTROL_BYTES: u64 = 256;
/// Control words of the two sides lie in different pairs of cache lines.
const CONSUMER_BYTES: u64 = 128;
const WORD: u64 = 8;
/// Records of a ring's length have pieces of this share of it, so that both sides work at once.
const RECORDS_MIN: u64 = 4;

/// The other side has written what no side writes. Fatal for the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Garbage {
    #[error("the ring holds no record where one begins (found {0:016x})")]
    Word(u64),
    #[error("the ring's reader is at {head}, which is not up to {capacity} behind {tail}")]
    Head { head: u64, tail: u64, capacity: u64 },
}

/// One ring in shared memory.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) memory: Arc<SharedMemory>,
    /// The offset of its control words.
    pub(super) control: u64,
    /// The offset of its data.
    pub(super) data: u64,
    /// Bytes of its data: a power of two.
    pub(super) capacity: u64,
}

impl Place {
    fn offset(&self, position: u64) -> u64 {
        self.data + (position & (self.capacity - 1))
    }

    fn record_bytes_max(&self) -> u64 {
        self.capacity / RECORDS_MIN - WORD
    }

    /// The place of `len` bytes from `position` on: up to the end of the data, and from its
    /// beginning on.
    fn split(&self, position: u64, len: usize) -> usize {
        let to_end = self.capacity - (position & (self.capacity - 1));
        len.min(to_end as usize)
    }

    fn load(&self, position: u64, into: &mut [u8]) {
        let (first, second) = into.split_at_mut(self.split(position, into.len()));
        self.memory.load(self.offset(position), first);
        self.memory.load(self.data, second);
    }

    fn store(&self, position: u64, data: &[u8]) {
        let (first, second) = data.split_at(self.split(position, data.len()));
        self.memory.store(self.offset(position), first);
        self.memory.store(self.data, second);
    }
}

fn word_of(len: u64) -> u64 {
    len | (!len << 32)
}

/// The half that puts bytes in.
#[derive(Debug)]
pub(super) struct Producer {
    place: Place,
    /// The position of the next record.
    tail: u64,
    /// The consumer's position, as far as it is known here.
    head: u64,
}

impl Producer {
    pub(super) fn new(place: Place) -> Self {
        Self {
            place,
            tail: 0,
            head: 0,
        }
    }

    /// Puts the first of these bytes in, as one record. Gives their number: 0 when there is no
    /// room.
    ///
    /// # Errors
    /// The consumer's position cannot be.
    pub(super) fn put(&mut self, parts: &[&[u8]]) -> Result<usize, Garbage> {
        let all: usize = parts.iter().map(|part| part.len()).sum();
        let wanted = (all as u64).min(self.place.record_bytes_max());
        let mut room = self.room();
        if room < wanted {
            self.look()?;
            room = self.room();
        }
        let len = wanted.min(room) as usize;
        if len == 0 {
            return Ok(0);
        }
        let begin = self.tail + WORD;
        let mut pieces = Pieces::new(begin);
        let mut left = len;
        for part in parts {
            let taken = part.len().min(left);
            pieces.store(&self.place, &part[..taken]);
            left -= taken;
        }
        let end = pieces.finish(&self.place);
        let word = |position| self.place.memory.word(self.place.offset(position));
        word(end).store(0, Ordering::Relaxed);
        // RING-1. Pairs with the load in `Consumer::next`, so that it sees all stores before.
        word(self.tail).store(word_of(len as u64), Ordering::Release);
        self.tail = end;
        Ok(len)
    }

    /// Bytes of a record for which there is room. The word behind it needs a place, too.
    fn room(&self) -> u64 {
        let free = self.place.capacity - (self.tail - self.head);
        free.saturating_sub(2 * WORD)
    }

    fn look(&mut self) -> Result<(), Garbage> {
        let word = self.place.memory.word(self.place.control + CONSUMER_BYTES);
        // Pairs with the store in `Consumer::give_back`: its loads of these bytes come before.
        let head = word.load(Ordering::Acquire);
        let is_possible = (self.head..=self.tail).contains(&head) && head.is_multiple_of(WORD);
        if !is_possible {
            let (tail, capacity) = (self.tail, self.place.capacity);
            return Err(Garbage::Head {
                head,
                tail,
                capacity,
            });
        }
        self.head = head;
        Ok(())
    }

    /// Whether the consumer sleeps and must be woken, after bytes were put in. It is asked once.
    pub(super) fn must_wake(&self) -> bool {
        let at = self.place.control + CONSUMER_BYTES + WORD;
        is_asleep(&self.place, at)
    }

    /// Says that this half sleeps until there is room. Gives whether it may: there is still none.
    ///
    /// # Errors
    /// As of [`Self::put`].
    pub(super) fn sleep(&mut self) -> Result<bool, Garbage> {
        let at = self.place.control;
        say_asleep(&self.place, at);
        self.look()?;
        Ok(self.room() == 0)
    }
}

/// Stores parts of any length behind each other, in whole words.
struct Pieces {
    position: u64,
    /// The begun word.
    rest: [u8; WORD as usize],
    rest_bytes: usize,
}

impl Pieces {
    fn new(position: u64) -> Self {
        Self {
            position,
            rest: [0; WORD as usize],
            rest_bytes: 0,
        }
    }

    fn store(&mut self, place: &Place, mut part: &[u8]) {
        if self.rest_bytes > 0 {
            let taken = part.len().min(self.rest.len() - self.rest_bytes);
            self.rest[self.rest_bytes..][..taken].copy_from_slice(&part[..taken]);
            self.rest_bytes += taken;
            part = &part[taken..];
            if self.rest_bytes < self.rest.len() {
                return;
            }
            place.store(self.position, &self.rest);
            self.position += WORD;
            self.rest_bytes = 0;
        }
        let (words, rest) = part.split_at(part.len() - part.len() % self.rest.len());
        place.store(self.position, words);
        self.position += words.len() as u64;
        self.rest[..rest.len()].copy_from_slice(rest);
        self.rest_bytes = rest.len();
    }

    /// The position behind the last word.
    fn finish(self, place: &Place) -> u64 {
        if self.rest_bytes == 0 {
            return self.position;
        }
        place.store(self.position, &self.rest);
        self.position + WORD
    }
}

/// The half that takes bytes out.
#[derive(Debug)]
pub(super) struct Consumer {
    place: Place,
    /// The position of the next word that was not loaded.
    head: u64,
    /// Bytes of the record at `head` that were not taken yet.
    left: u64,
    /// The last loaded word.
    word: [u8; WORD as usize],
    /// Its bytes that were not taken yet.
    word_left: usize,
}

impl Consumer {
    pub(super) fn new(place: Place) -> Self {
        Self {
            place,
            head: 0,
            left: 0,
            word: [0; WORD as usize],
            word_left: 0,
        }
    }

    /// Whether there is something to take. Costs one load, of a line that stays here until the
    /// producer writes it.
    pub(super) fn has_news(&self) -> bool {
        self.left > 0 || self.next() != 0
    }

    fn next(&self) -> u64 {
        // Pairs with the store in `Producer::put` (RING-1).
        self.place
            .memory
            .word(self.next_at())
            .load(Ordering::Acquire)
    }

    /// The offset of the next record's word, when the current one was taken.
    pub(super) fn next_at(&self) -> u64 {
        self.place.offset(self.head)
    }

    /// Bytes that can be taken now, of one record. 0 if there are none.
    ///
    /// # Errors
    /// The next record cannot be.
    pub(super) fn here(&mut self) -> Result<usize, Garbage> {
        if self.left == 0 {
            let word = self.next();
            if word == 0 {
                return Ok(0);
            }
            let len = word & u64::from(u32::MAX);
            if word != word_of(len) || len == 0 || len > self.place.record_bytes_max() {
                return Err(Garbage::Word(word));
            }
            self.left = len;
            self.head += WORD;
        }
        Ok(self.left as usize)
    }

    /// Takes bytes of the current record.
    ///
    /// # Panics
    /// If there are fewer than `into` has ([`Self::here`]).
    pub(super) fn take(&mut self, into: &mut [u8]) {
        assert!(into.len() as u64 <= self.left, "taken beyond a record");
        let (begun, rest) = into.split_at_mut(into.len().min(self.word_left));
        let at = self.word.len() - self.word_left;
        begun.copy_from_slice(&self.word[at..][..begun.len()]);
        self.word_left -= begun.len();
        self.left -= begun.len() as u64;
        // All of the record, or whole words of it.
        let direct = match rest.len() as u64 == self.left {
            true => rest.len(),
            false => rest.len() - rest.len() % self.word.len(),
        };
        let (direct, last) = rest.split_at_mut(direct);
        self.place.load(self.head, direct);
        self.head += (direct.len() as u64).next_multiple_of(WORD);
        self.left -= direct.len() as u64;
        if !last.is_empty() {
            self.place.load(self.head, &mut self.word);
            self.head += WORD;
            last.copy_from_slice(&self.word[..last.len()]);
            self.word_left = self.word.len() - last.len();
            self.left -= last.len() as u64;
        }
        if self.left == 0 {
            self.word_left = 0;
            self.give_back();
        }
    }

    fn give_back(&self) {
        let word = self.place.memory.word(self.place.control + CONSUMER_BYTES);
        // Pairs with the load in `Producer::look`.
        word.store(self.head, Ordering::Release);
    }

    /// Whether the producer sleeps and must be woken, after bytes were taken. It is asked once.
    pub(super) fn must_wake(&self) -> bool {
        is_asleep(&self.place, self.place.control)
    }

    /// Says that this half sleeps until bytes come. Gives whether it may: there are still none.
    pub(super) fn sleep(&self) -> bool {
        say_asleep_at(&self.place);
        !self.has_news()
    }
}

/// Says that the consumer of a ring sleeps.
pub(super) fn say_asleep_at(place: &Place) {
    say_asleep(place, place.control + CONSUMER_BYTES + WORD);
}

/// Whether a record begins at this offset.
#[inline]
pub(super) fn is_news(place: &Place, next_at: u64) -> bool {
    // Only a hint: `Consumer::next` looks again, and pairs with the store.
    place.memory.word(next_at).load(Ordering::Relaxed) != 0
}

/// RING-3: the change of this side is seen before it looks.
fn is_asleep(place: &Place, at: u64) -> bool {
    fence(Ordering::SeqCst);
    let word = place.memory.word(at);
    word.load(Ordering::Relaxed) != 0 && word.swap(0, Ordering::Relaxed) != 0
}

/// RING-3: the notice is seen before this side looks once more.
fn say_asleep(place: &Place, at: u64) {
    place.memory.word(at).store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: u64 = 4 << 10;

    fn place() -> Place {
        let (memory, _file) = SharedMemory::make("pluvio-test", 8 << 10).expect("memory");
        Place {
            memory: Arc::new(memory),
            control: 0,
            data: 4 << 10,
            capacity: CAPACITY,
        }
    }

    fn halves() -> (Producer, Consumer) {
        let place = place();
        (Producer::new(place.clone()), Consumer::new(place))
    }

    /// A small generator, so that every run does the same.
    struct Lcg(u64);

    impl Lcg {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (self.0 >> 33) as usize % bound
        }
    }

    /// The byte at this place of the stream.
    fn byte(at: u64) -> u8 {
        (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
    }

    fn bytes(from: u64, len: usize) -> Vec<u8> {
        (from..from + len as u64).map(byte).collect()
    }

    #[test]
    fn bytes_come_out_as_they_went_in_however_they_are_cut() {
        let (mut producer, mut consumer) = halves();
        let mut random = Lcg(1);
        let (mut put, mut taken) = (0, 0);
        while taken < 500_000 {
            let sizes = [1, 7, 8, 9, 100, 3_000];
            let parts: Vec<Vec<u8>> = (0..random.below(4) + 1)
                .scan(put, |at, _| {
                    let most = sizes[random.below(6)];
                    let len = random.below(most + 1);
                    let part = bytes(*at, len);
                    *at += len as u64;
                    Some(part)
                })
                .collect();
            let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            put += producer.put(&slices).expect("a good reader") as u64;
            for _ in 0..random.below(4) {
                let here = consumer.here().expect("good records");
                if here == 0 {
                    break;
                }
                let mut into = vec![0; random.below(here) + 1];
                consumer.take(&mut into);
                assert_eq!(into, bytes(taken, into.len()), "at {taken}");
                taken += into.len() as u64;
            }
            assert!(put - taken <= CAPACITY);
        }
    }

    #[test]
    fn a_full_ring_takes_nothing_until_something_was_taken() {
        let (mut producer, mut consumer) = halves();
        let mut put = 0;
        loop {
            match producer.put(&[&bytes(put, 100)]).expect("a good reader") {
                0 => break,
                count => put += count as u64,
            }
        }
        assert!(put > CAPACITY / 2, "{put}");
        assert_eq!(producer.sleep(), Ok(true));
        let here = consumer.here().expect("good records");
        consumer.take(&mut vec![0; here]);
        assert!(consumer.must_wake() && !consumer.must_wake(), "asked once");
        assert_eq!(producer.sleep(), Ok(false));
        assert!(producer.put(&[&[1]]).expect("a good reader") > 0);
    }

    // shows: RING-3
    #[test]
    fn two_threads_that_sleep_and_wake_lose_no_byte() {
        use std::sync::mpsc;
        const BYTES: u64 = 3 << 20;
        let (mut producer, mut consumer) = halves();
        let (wake_consumer, consumer_woken) = mpsc::channel();
        let (wake_producer, producer_woken) = mpsc::channel();
        let producing = std::thread::Builder::new().spawn(move || {
            let (mut put, mut random) = (0, Lcg(7));
            while put < BYTES {
                let len = (random.below(2_000) as u64 + 1).min(BYTES - put);
                match producer
                    .put(&[&bytes(put, len as usize)])
                    .expect("a good reader")
                {
                    0 if producer.sleep().expect("a good reader") => {
                        producer_woken.recv().expect("the other half lives");
                    }
                    0 => {}
                    count => {
                        put += count as u64;
                        if producer.must_wake() {
                            wake_consumer.send(()).expect("the other half lives");
                        }
                    }
                }
            }
            // Kept until the other side has all.
            producer_woken
        });
        let mut taken = 0;
        while taken < BYTES {
            let here = consumer.here().expect("good records");
            if here == 0 {
                if consumer.sleep() {
                    consumer_woken.recv().expect("the other half lives");
                }
                continue;
            }
            let mut into = vec![0; here];
            consumer.take(&mut into);
            assert!(into == bytes(taken, here), "at {taken}");
            taken += here as u64;
            if consumer.must_wake() {
                let _it_may_have_ended = wake_producer.send(());
            }
        }
        drop(
            producing
                .expect("a thread")
                .join()
                .expect("it did not panic"),
        );
    }

    // shows: RING-2
    #[test]
    fn what_cannot_be_is_garbage() {
        for word in [
            1,
            u64::MAX,
            word_of(0),
            word_of(CAPACITY),
            0xffff_ffff,
            1 << 32,
        ] {
            let (producer, mut consumer) = halves();
            let place = &producer.place;
            place.memory.word(place.data).store(word, Ordering::Relaxed);
            assert_eq!(consumer.here(), Err(Garbage::Word(word)));
        }
        for head in [8, 1, u64::MAX, CAPACITY, 1 << 63] {
            let (mut producer, _consumer) = halves();
            let place = producer.place.clone();
            let word = place.memory.word(CONSUMER_BYTES);
            word.store(head, Ordering::Relaxed);
            assert!(
                matches!(producer.sleep(), Err(Garbage::Head { .. })),
                "{head}"
            );
        }
    }
}
