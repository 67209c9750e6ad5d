//! The epoch protocol under the loom model checker: every interleaving of a few threads, with the
//! reorderings the C11 memory model allows. The data is a loom cell, which reports an access that
//! is not ordered with the reclaimer's overwriting it.

use super::protocol::{self, ForeignWord, IDLE, Word};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

/// The words as the protocol defines them for machines other than x86. `FENCED` is false for the
/// broken protocol that must fail: it shows that the model can see the difference.
struct ModelWord<const FENCED: bool>(AtomicU64);

impl<const FENCED: bool> ModelWord<FENCED> {
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
}

impl<const FENCED: bool> Word for ModelWord<FENCED> {
    fn load_acquire(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn store_release(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    fn add_one(&self) -> u64 {
        self.0.fetch_add(1, Ordering::AcqRel)
    }

    fn publish(&self, value: u64) {
        self.0.store(value, Ordering::Release);
        if FENCED {
            Self::full_fence();
        }
    }

    fn full_fence() {
        fence(Ordering::SeqCst);
    }

    fn take(&self) -> bool {
        self.0
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    fn raise(&self, to: u64) {
        self.0.fetch_max(to, Ordering::AcqRel);
    }
}

impl<const FENCED: bool> ForeignWord for ModelWord<FENCED> {
    fn load_relaxed(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn acquire_fence() {
        fence(Ordering::Acquire);
    }

    fn release_fence() {
        fence(Ordering::Release);
    }
}

/// Two places for a value; `link` says which one is current.
struct Shared<const FENCED: bool> {
    counter: ModelWord<FENCED>,
    slots: [ModelWord<FENCED>; 2],
    owners: [ModelWord<FENCED>; 2],
    high_water: ModelWord<FENCED>,
    link: AtomicU64,
    places: [UnsafeCell<u64>; 2],
}

impl<const FENCED: bool> Shared<FENCED> {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            counter: ModelWord::new(IDLE + 1),
            slots: [ModelWord::new(IDLE), ModelWord::new(IDLE)],
            owners: [ModelWord::new(0), ModelWord::new(0)],
            high_water: ModelWord::new(0),
            link: AtomicU64::new(0),
            places: [UnsafeCell::new(1), UnsafeCell::new(1)],
        })
    }

    fn read(&self, slot: usize) {
        protocol::begin(&self.counter, &self.slots[slot]);
        let at = usize::try_from(self.link.load(Ordering::Acquire)).unwrap();
        self.places[at].with(|value| {
            // SAFETY: loom checks that no write is concurrent.
            #[allow(unsafe_code)]
            let value = unsafe { *value };
            assert_eq!(value, 1, "read memory that is used again");
        });
        protocol::end(&self.slots[slot]);
    }

    /// A thread that comes, reads in the first slot it gets, and goes.
    fn come_read_and_go(&self) {
        let claim =
            |&slot: &usize| protocol::claim(&self.owners[slot], &self.high_water, slot as u64);
        let slot = (0..2).find(claim).expect("a slot for each of two threads");
        self.read(slot);
        protocol::unclaim(&self.owners[slot]);
    }

    /// [`Self::unlink_and_reuse`] with a look at only those slots that were ever claimed.
    fn unlink_and_reuse_among_claimed(&self) {
        self.link.store(1, Ordering::Release);
        let stamp = protocol::advance(&self.counter);
        let claimed = || {
            let used = usize::try_from(self.high_water.load_acquire()).unwrap();
            self.slots[..used].iter()
        };
        if protocol::frontier(&self.counter, claimed) > stamp {
            // SAFETY: loom checks that no access is concurrent.
            #[allow(unsafe_code)]
            self.places[0].with_mut(|value| unsafe { *value = 0 });
        }
    }

    /// Unlinks place 0, and overwrites it if nobody can be reading it.
    fn unlink_and_reuse(&self) {
        self.link.store(1, Ordering::Release);
        let stamp = protocol::advance(&self.counter);
        if protocol::frontier(&self.counter, || self.slots.iter()) > stamp {
            // SAFETY: loom checks that no access is concurrent.
            #[allow(unsafe_code)]
            self.places[0].with_mut(|value| unsafe { *value = 0 });
        }
    }
}

fn explore(f: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

// shows: M3
#[test]
fn a_reader_is_never_overtaken_by_the_reclaimer() {
    explore(|| {
        let shared = Shared::<true>::new();
        let reader = Arc::clone(&shared);
        let reader = thread::spawn(move || reader.read(0));
        shared.unlink_and_reuse();
        reader.join().unwrap();
    });
}

#[test]
fn a_reader_that_reads_twice_is_never_overtaken() {
    explore(|| {
        let shared = Shared::<true>::new();
        let reader = Arc::clone(&shared);
        let reader = thread::spawn(move || {
            reader.read(0);
            reader.read(0);
        });
        shared.unlink_and_reuse();
        reader.join().unwrap();
    });
}

#[test]
fn two_readers_are_never_overtaken() {
    explore(|| {
        let shared = Shared::<true>::new();
        let readers = [0, 1].map(|slot| {
            let reader = Arc::clone(&shared);
            thread::spawn(move || reader.read(slot))
        });
        shared.unlink_and_reuse();
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

/// A look while a thread registers either sees its slot or comes before its fence.
#[test]
fn a_thread_that_registers_during_a_look_is_not_overtaken() {
    explore(|| {
        let shared = Shared::<true>::new();
        let reader = Arc::clone(&shared);
        let reader = thread::spawn(move || reader.come_read_and_go());
        shared.unlink_and_reuse_among_claimed();
        reader.join().unwrap();
    });
}

// shows: E1
#[test]
fn threads_that_come_and_go_are_not_overtaken_in_a_slot_that_is_handed_on() {
    explore(|| {
        let shared = Shared::<true>::new();
        let readers = [(); 2].map(|()| {
            let reader = Arc::clone(&shared);
            thread::spawn(move || reader.come_read_and_go())
        });
        shared.unlink_and_reuse_among_claimed();
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

/// One thread unlinks, and another one retires after it was notified.
#[test]
fn unlinking_and_retiring_may_be_in_different_threads() {
    explore(|| {
        let shared = Shared::<true>::new();
        let reader = Arc::clone(&shared);
        let reader = thread::spawn(move || reader.read(0));
        let unlinker = Arc::clone(&shared);
        let unlinked = thread::spawn(move || unlinker.link.store(1, Ordering::Release));
        unlinked.join().unwrap();
        shared.unlink_and_reuse();
        reader.join().unwrap();
    });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_the_fence_the_model_finds_the_overtaking() {
    explore(|| {
        let shared = Shared::<false>::new();
        let reader = Arc::clone(&shared);
        let reader = thread::spawn(move || reader.read(0));
        shared.unlink_and_reuse();
        reader.join().unwrap();
    });
}

/// A mistake that is seeded into the protocol of readers of other processes, which the model must
/// find.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// Memory is used again before readers are told.
    ToldLate,
    /// The reclaimer passes no release fence before it writes.
    NoReleaseFence,
    /// The reader passes no acquire fence before it looks.
    NoAcquireFence,
    /// The reader looks before it copies.
    LooksFirst,
    /// The reader takes its epoch after it has found the link.
    BeginsLate,
    /// Memory is used again under a stamp that readers are not told of.
    ToldTooLow,
    /// The reader takes an epoch for valid whose own memory is used again.
    CountsEqual,
    /// Pages go back to the system before readers are told.
    GivenBackUntold,
}

/// Two places for a value of two words; `link` says which one is current. The places are atomics:
/// a copy may race with the new content, and must not count then.
struct Copied {
    counter: ModelWord<true>,
    reused_below: ModelWord<true>,
    link: AtomicU64,
    places: [[AtomicU64; 2]; 2],
}

impl Copied {
    fn new() -> Arc<Self> {
        let place = |value| [AtomicU64::new(value), AtomicU64::new(value)];
        Arc::new(Self {
            counter: ModelWord::new(IDLE + 1),
            reused_below: ModelWord::new(0),
            link: AtomicU64::new(0),
            places: [place(1), place(0)],
        })
    }

    /// Reads by a copy; it counts if the value was linked, and whole.
    fn read(&self, mistake: Mistake) {
        let mut epoch = protocol::begin_foreign(&self.counter);
        let at = usize::try_from(self.link.load(Ordering::Acquire)).unwrap();
        if mistake == Mistake::BeginsLate {
            epoch = protocol::begin_foreign(&self.counter);
        }
        let looked = self.reused_below.load_relaxed();
        let copy = self.places[at]
            .each_ref()
            .map(|w| w.load(Ordering::Relaxed));
        let counts = match mistake {
            Mistake::LooksFirst => protocol::is_above(epoch, looked),
            Mistake::NoAcquireFence => protocol::is_above(epoch, self.reused_below.load_relaxed()),
            Mistake::CountsEqual => protocol::counts(epoch.wrapping_add(1), &self.reused_below),
            Mistake::None
            | Mistake::ToldLate
            | Mistake::NoReleaseFence
            | Mistake::BeginsLate
            | Mistake::ToldTooLow
            | Mistake::GivenBackUntold => protocol::counts(epoch, &self.reused_below),
        };
        let expected = u64::try_from(at).unwrap() + 1;
        assert!(
            !counts || copy == [expected; 2],
            "a copy counts that is not what was linked"
        );
    }

    fn write(&self, place: usize, value: u64) {
        for word in &self.places[place] {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Puts a value into place 1, links it, and then puts rubbish into place 0. No slot is looked
    /// at: the reader has none.
    fn replace_and_reuse(&self, mistake: Mistake) {
        self.write(1, 2);
        self.link.store(1, Ordering::Release);
        let stamp = protocol::advance(&self.counter);
        let frontier = match mistake {
            Mistake::ToldTooLow => stamp,
            _ => stamp + 1,
        };
        match mistake {
            Mistake::ToldLate => self.write(0, 9),
            Mistake::NoReleaseFence => self.reused_below.raise(frontier),
            _ => protocol::reuse_below(&self.reused_below, frontier),
        }
        self.write(0, 9);
        if mistake == Mistake::ToldLate {
            protocol::reuse_below(&self.reused_below, frontier);
        }
    }
}

impl Copied {
    /// Links place 1, and gives the pages of place 0 back to the system, which fills them with
    /// zeroes. Then the place is written anew, with what place 1 has.
    fn give_back(&self, mistake: Mistake) {
        self.write(1, 2);
        self.link.store(1, Ordering::Release);
        let stamp = protocol::advance(&self.counter);
        if mistake == Mistake::GivenBackUntold {
            self.write(0, 0);
        }
        protocol::reuse_below(&self.reused_below, stamp + 1);
        if mistake == Mistake::None {
            self.write(0, 0);
        }
        self.write(0, 2);
    }
}

fn explore_giving_back(mistake: Mistake) {
    explore(move || {
        let shared = Copied::new();
        let reader = Arc::clone(&shared);
        let reader = thread::spawn(move || reader.read(mistake));
        shared.give_back(mistake);
        reader.join().unwrap();
    });
}

// shows: M5
#[test]
fn a_copy_of_pages_that_went_back_to_the_system_does_not_count() {
    explore_giving_back(Mistake::None);
}

#[test]
#[should_panic(expected = "a copy counts that is not what was linked")]
fn the_model_finds_pages_given_back_before_readers_are_told() {
    explore_giving_back(Mistake::GivenBackUntold);
}

fn explore_copies(mistake: Mistake) {
    explore(move || {
        let shared = Copied::new();
        let reader = Arc::clone(&shared);
        let reader = thread::spawn(move || reader.read(mistake));
        shared.replace_and_reuse(mistake);
        reader.join().unwrap();
    });
}

// shows: M4
#[test]
fn what_another_process_has_copied_counts_only_if_it_was_linked() {
    explore_copies(Mistake::None);
}

/// The memory is taken and written by another thread than the one that looked.
#[test]
fn another_thread_may_use_the_memory_again() {
    explore(|| {
        let shared = Copied::new();
        let reader = Arc::clone(&shared);
        let reader = thread::spawn(move || reader.read(Mistake::None));
        shared.write(1, 2);
        shared.link.store(1, Ordering::Release);
        let stamp = protocol::advance(&shared.counter);
        protocol::reuse_below(&shared.reused_below, stamp + 1);
        let pool = Arc::new(loom::sync::Mutex::new(()));
        let taken = Arc::clone(&pool);
        drop(pool.lock().unwrap());
        let user = Arc::clone(&shared);
        let user = thread::spawn(move || {
            drop(taken.lock().unwrap());
            ModelWord::<true>::release_fence();
            user.write(0, 9);
        });
        reader.join().unwrap();
        user.join().unwrap();
    });
}

macro_rules! finds {
    ($($name:ident: $mistake:ident;)*) => { $(
        #[test]
        #[should_panic(expected = "a copy counts that is not what was linked")]
        fn $name() {
            explore_copies(Mistake::$mistake);
        }
    )* };
}

finds! {
    the_model_finds_memory_used_again_before_readers_are_told: ToldLate;
    the_model_finds_a_missing_release_fence: NoReleaseFence;
    the_model_finds_a_missing_acquire_fence: NoAcquireFence;
    the_model_finds_a_reader_that_looks_before_it_copies: LooksFirst;
    the_model_finds_a_reader_that_begins_after_the_link: BeginsLate;
    the_model_finds_a_stamp_that_readers_are_not_told_of: ToldTooLow;
    the_model_finds_a_reader_that_counts_its_own_epoch: CountsEqual;
}
