//! The epoch protocol under the loom model checker: every interleaving of a few threads, with the
//! reorderings the C11 memory model allows. The data is a loom cell, which reports an access that
//! is not ordered with the reclaimer's overwriting it.

use super::protocol::{self, IDLE, Word};
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
