//! The robust lock under the loom model checker: interleavings of a few processes of one thread
//! each, some of which die. The data is a loom cell, which reports a reader beside a writer.
//!
//! Loom takes an access in the one order of all for one with acquire and release. So each access
//! here stands between two full fences, which have one order there. They also order what the lock
//! does not, so the cell alone would see too little. Those who are inside are counted besides.

use super::protocol::{INSIDE, POISONED, Protocol, Word};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

/// Not one of the model's: it orders nothing there.
type Inside = core::sync::atomic::AtomicU64;

/// What a broken lock does otherwise. Each has to be found, which shows that the model sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    None,
    /// Accesses have no one order.
    Unordered,
    /// A reader looks for an owner before it is counted.
    LooksFirst,
    /// A writer does not look at the places of others.
    OverlooksPlaces,
    /// A process comes to its place without saying that it is used.
    Unannounced,
    /// The death of a writer inside poisons nothing.
    NoPoison,
    /// Living processes are taken for dead.
    DeadTooEarly,
    /// Numbers are not compared.
    NoNumbers,
}

/// Bits of the words beside their numbers.
const OWNER_BITS: u64 = super::protocol::PLACE | POISONED | INSIDE;
const COUNT_BITS: u64 = super::protocol::COUNT;

struct ModelWord {
    word: AtomicU64,
    mistake: Mistake,
    /// Bits beside the number.
    bits: u64,
}

impl ModelWord {
    fn new(mistake: Mistake, bits: u64) -> Self {
        Self {
            word: AtomicU64::new(0),
            mistake,
            bits,
        }
    }

    fn ordered<T>(&self, access: impl FnOnce(&AtomicU64) -> T) -> T {
        if self.mistake == Mistake::Unordered {
            return access(&self.word);
        }
        fence(Ordering::SeqCst);
        let result = access(&self.word);
        fence(Ordering::SeqCst);
        result
    }
}

impl Word for ModelWord {
    fn load(&self) -> u64 {
        self.ordered(|word| word.load(Ordering::Acquire))
    }

    fn store(&self, value: u64) {
        self.ordered(|word| word.store(value, Ordering::Release));
    }

    fn add_one(&self) -> u64 {
        self.ordered(|word| word.fetch_add(1, Ordering::AcqRel))
    }

    fn subtract_one(&self) -> u64 {
        self.ordered(|word| word.fetch_sub(1, Ordering::AcqRel))
    }

    fn raise(&self, to: u64) {
        self.ordered(|word| word.fetch_max(to, Ordering::AcqRel));
    }

    fn clear(&self, bits: u64) {
        self.ordered(|word| word.fetch_and(!bits, Ordering::AcqRel));
    }

    fn replace(&self, mut from: u64, to: u64) -> Result<(), u64> {
        self.ordered(|word| {
            if self.mistake == Mistake::NoNumbers {
                let now = word.load(Ordering::Acquire);
                if (now ^ from) & self.bits == 0 {
                    from = now;
                }
            }
            word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
                .map(drop)
        })
    }
}

const PLACES: usize = 3;

/// The words that all processes map, and the knowledge of the system.
struct Shared {
    owner: ModelWord,
    waiting: ModelWord,
    used: ModelWord,
    counts: [ModelWord; PLACES],
    /// One while a process has the place.
    taken: [ModelWord; PLACES],
    /// Odd while a writer is changing it.
    data: UnsafeCell<u64>,
    /// Another thread may come to run where this is changed.
    turn: AtomicU64,
    /// Processes that are inside, as the model knows and no process does.
    readers: Inside,
    writers: Inside,
    mistake: Mistake,
}

/// A process at one place.
struct Process {
    shared: Arc<Shared>,
    place: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refused {
    WouldBlock,
    Poisoned,
    Wild,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    None,
    ForEver,
}

impl Protocol for Process {
    type Word = ModelWord;
    type Patience = Patience;
    type Refused = Refused;
    const PLACES: u64 = PLACES as u64;

    fn owner(&self) -> &ModelWord {
        &self.shared.owner
    }

    fn waiting(&self) -> &ModelWord {
        &self.shared.waiting
    }

    fn used(&self) -> &ModelWord {
        &self.shared.used
    }

    fn count(&self, place: u64) -> &ModelWord {
        &self.shared.counts[place as usize]
    }

    fn place(&self) -> u64 {
        self.place as u64
    }

    fn poison(&self) -> u64 {
        match self.shared.mistake == Mistake::NoPoison {
            true => 0,
            false => POISONED,
        }
    }

    fn is_free(&self, place: u64) -> Result<bool, Refused> {
        let is_free = self.shared.taken[place as usize].load() == 0;
        Ok(is_free || self.shared.mistake == Mistake::DeadTooEarly)
    }

    fn sleep(&self, _: &ModelWord, _: u64, patience: Patience) -> Result<(), Refused> {
        match patience {
            Patience::None => Err(Refused::WouldBlock),
            Patience::ForEver => {
                thread::yield_now();
                Ok(())
            }
        }
    }

    fn wake(&self, _: &ModelWord) {}

    fn poisoned(&self) -> Refused {
        Refused::Poisoned
    }

    fn wild(&self, _: u64) -> Refused {
        Refused::Wild
    }

    fn step(&self) {}
}

impl Shared {
    fn new(mistake: Mistake) -> Arc<Self> {
        let word = |bits| ModelWord::new(mistake, bits);
        Arc::new(Self {
            owner: word(OWNER_BITS),
            waiting: word(u64::MAX),
            used: word(u64::MAX),
            counts: core::array::from_fn(|_| word(COUNT_BITS)),
            taken: core::array::from_fn(|_| word(u64::MAX)),
            data: UnsafeCell::new(0),
            turn: AtomicU64::new(0),
            readers: Inside::new(0),
            writers: Inside::new(0),
            mistake,
        })
    }

    /// A new process at a place that is free.
    fn come(shared: &Arc<Self>, place: usize) -> Process {
        let process = Process {
            shared: Arc::clone(shared),
            place,
        };
        assert_eq!(shared.taken[place].replace(0, 1), Ok(()), "it is free");
        if shared.mistake != Mistake::Unannounced {
            process.clear_place();
        }
        process
    }

    fn write(&self, value: u64) {
        self.writers.fetch_add(1, Ordering::SeqCst);
        self.check(0, 1);
        // SAFETY: loom checks that no access is concurrent.
        #[allow(unsafe_code)]
        self.data.with_mut(|data| unsafe { *data = value });
        self.check(0, 1);
        self.writers.fetch_sub(1, Ordering::SeqCst);
    }

    fn read(&self) {
        self.readers.fetch_add(1, Ordering::SeqCst);
        self.check(1, 0);
        // SAFETY: loom checks that no write is concurrent.
        #[allow(unsafe_code)]
        let data = self.data.with(|data| unsafe { *data });
        self.check(1, 0);
        self.readers.fetch_sub(1, Ordering::SeqCst);
        assert!(data.is_multiple_of(2), "a change that nobody finished");
    }

    /// Checks how many readers and writers are inside, before and after a turn of others.
    fn check(&self, readers: u64, writers: u64) {
        for _look in 0..2 {
            let inside = [&self.readers, &self.writers].map(|side| side.load(Ordering::SeqCst));
            assert_eq!(inside, [readers, writers], "JUMP-7: readers and writers");
            // A change: the model gives others a turn only where that could matter.
            self.turn.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Process {
    fn look(&self, patience: Patience) -> Result<(), Refused> {
        if self.shared.mistake == Mistake::LooksFirst {
            if self.owner().load() != 0 {
                return Err(Refused::WouldBlock);
            }
            self.count(self.place()).add_one();
        } else {
            self.enter_shared(patience)?;
        }
        self.shared.read();
        self.leave();
        Ok(())
    }

    fn change(&self, patience: Patience, recovers: bool) -> Result<(), Refused> {
        if self.shared.mistake == Mistake::OverlooksPlaces {
            self.used().store(0);
        }
        self.enter_exclusive(patience, recovers)?;
        self.shared.write(1);
        self.shared.write(2);
        if recovers {
            self.heal();
        }
        self.leave();
        Ok(())
    }

    /// The system frees its place. Processes that see this see all it has done.
    fn die(self) {
        self.shared.taken[self.place].store(0);
    }
}

fn explore(f: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    // A process that comes to the place of a dead one is found beside a writer with 4.
    model.preemption_bound = Some(4);
    model.check(f);
}

use Mistake::None as Right;
use Patience::ForEver;

/// A reader comes while a writer enters.
fn reader_and_writer(mistake: Mistake) {
    explore(move || {
        let shared = Shared::new(mistake);
        let writer = Shared::come(&shared, 0);
        let other = Arc::clone(&shared);
        let reader = thread::spawn(move || {
            let reader = Shared::come(&other, 1);
            let _busy = reader.look(Patience::None);
        });
        assert_eq!(writer.change(ForEver, false), Ok(()));
        reader.join().unwrap();
        assert_eq!(writer.look(Patience::None), Ok(()), "nobody is left inside");
    });
}

/// Two writers, one of which waits for the other.
fn two_writers(mistake: Mistake) {
    explore(move || {
        let shared = Shared::new(mistake);
        let (one, two) = (Shared::come(&shared, 0), Shared::come(&shared, 1));
        let other = thread::spawn(move || one.change(Patience::None, false));
        assert_eq!(two.change(ForEver, false), Ok(()));
        let _busy = other.join().unwrap();
    });
}

/// A reader has died inside. Another process gets its place, and reads, while a writer finds the
/// dead one.
fn reader_dies(mistake: Mistake) {
    explore(move || {
        let shared = Shared::new(mistake);
        let writer = Shared::come(&shared, 1);
        let dead = Shared::come(&shared, 0);
        assert_eq!(dead.enter_shared(Patience::None), Ok(()));
        dead.die();
        let other = Arc::clone(&shared);
        let next = thread::spawn(move || {
            let next = Shared::come(&other, 0);
            let _busy = next.look(Patience::None);
        });
        assert_eq!(writer.change(ForEver, false), Ok(()));
        next.join().unwrap();
        let left = writer.count(0).load() & COUNT_BITS;
        assert_eq!(left, 0, "JUMP-8: a count that nobody takes back");
        assert_eq!(writer.look(Patience::None), Ok(()));
    });
}

/// A writer dies inside a change, while another process reads.
fn writer_dies(mistake: Mistake) {
    explore(move || {
        let shared = Shared::new(mistake);
        let (dies, reader) = (Shared::come(&shared, 0), Shared::come(&shared, 1));
        let other = Arc::clone(&shared);
        let dying = thread::spawn(move || {
            if dies.enter_exclusive(Patience::None, false).is_ok() {
                other.write(1);
            }
            dies.die();
        });
        let _refused = reader.look(Patience::None);
        dying.join().unwrap();
        // Whoever comes now is not held up (JUMP-8).
        let found = reader.look(ForEver);
        if found.is_err() {
            assert_eq!(found, Err(Refused::Poisoned));
            assert_eq!(reader.change(ForEver, false), Err(Refused::Poisoned));
            assert_eq!(reader.change(ForEver, true), Ok(()));
        }
        assert_eq!(reader.look(ForEver), Ok(()));
    });
}

/// A writer dies while it waits for a reader: it has changed nothing.
fn writer_dies_waiting(mistake: Mistake) {
    explore(move || {
        let shared = Shared::new(mistake);
        let (dies, other) = (Shared::come(&shared, 0), Shared::come(&shared, 1));
        let own = dies.place() + 1;
        assert_eq!(dies.owner().replace(0, own), Ok(()));
        dies.die();
        let back = Arc::clone(&shared);
        let next = thread::spawn(move || Shared::come(&back, 0).change(Patience::None, false));
        assert_eq!(other.change(ForEver, false), Ok(()));
        let _busy = next.join().unwrap();
        assert_eq!(other.look(ForEver), Ok(()));
    });
}

// shows: JUMP-7
#[test]
fn a_reader_and_a_writer_are_never_inside_together() {
    reader_and_writer(Right);
}

// shows: JUMP-7
#[test]
fn two_writers_are_never_inside_together() {
    two_writers(Right);
}

// shows: JUMP-8, JUMP-9
#[test]
fn a_reader_that_has_died_holds_up_nobody_and_the_next_in_its_place_is_seen() {
    reader_dies(Right);
}

// shows: JUMP-8
#[test]
fn nobody_enters_what_a_writer_has_left_half_changed() {
    writer_dies(Right);
}

// shows: JUMP-8, JUMP-9
#[test]
fn a_writer_that_died_waiting_leaves_no_poison_and_is_taken_out_once() {
    writer_dies_waiting(Right);
}

#[test]
#[should_panic]
fn without_one_order_both_come_in() {
    reader_and_writer(Mistake::Unordered);
}

#[test]
#[should_panic]
fn a_reader_that_looks_before_it_is_counted_is_overlooked() {
    reader_and_writer(Mistake::LooksFirst);
}

#[test]
#[should_panic]
fn a_writer_that_overlooks_a_place_enters_beside_its_reader() {
    reader_and_writer(Mistake::OverlooksPlaces);
}

#[test]
#[should_panic]
fn a_process_that_does_not_announce_itself_is_overlooked() {
    reader_and_writer(Mistake::Unannounced);
}

#[test]
#[should_panic(expected = "a change that nobody finished")]
fn without_poison_a_half_change_is_read() {
    writer_dies(Mistake::NoPoison);
}

#[test]
#[should_panic]
fn a_living_writer_that_is_taken_for_dead_is_not_alone() {
    two_writers(Mistake::DeadTooEarly);
}

#[test]
#[should_panic]
fn without_numbers_the_next_process_is_taken_for_the_dead_one() {
    reader_dies(Mistake::NoNumbers);
}
