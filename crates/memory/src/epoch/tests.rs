//! Guards, stamps and slots: behaviour in one thread, over the ends of threads, and under load.

use super::*;
use std::sync::atomic::AtomicBool;
use std::thread;

fn epochs(slots: u32) -> ReclaimEpochs {
    ReclaimEpochs::new(slots).unwrap()
}

/// The slot of a guard's thread; none for an overflow guard.
fn slot_of(guard: &EpochGuard<'_>) -> Option<u32> {
    let table = &guard.epochs.table;
    match guard.place {
        Place::Slot(line) => (0..table.slots).find(|&slot| core::ptr::eq(table.slot(slot), line)),
        Place::Overflow(_) => None,
    }
}

/// Runs `f` in a thread of its own and waits for that thread's end, destructors included.
fn in_thread<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(f).join().unwrap())
}

#[test]
fn a_guard_holds_back_only_what_was_retired_while_it_lives() {
    let epochs = epochs(4);
    let before = epochs.retire_epoch();
    assert!(epochs.is_quiesced(before));
    let guard = epochs.pin();
    assert!(epochs.is_quiesced(before));
    let during = epochs.retire_epoch();
    assert!(before < during);
    assert!(!epochs.is_quiesced(during));
    drop(guard);
    assert!(epochs.is_quiesced(during));
    let _younger = epochs.pin();
    assert!(epochs.is_quiesced(during));
}

#[test]
fn a_look_does_not_cover_stamps_given_after_it() {
    let epochs = epochs(4);
    let look = epochs.frontier();
    let stamp = epochs.retire_epoch();
    assert!(!look.covers(stamp));
    assert!(epochs.frontier().covers(stamp));
}

#[test]
fn the_outermost_guard_counts() {
    let epochs = epochs(4);
    let outer = epochs.pin();
    let stamp = epochs.retire_epoch();
    let inner = epochs.pin();
    drop(outer);
    assert!(
        !epochs.is_quiesced(stamp),
        "E2: the inner guard keeps its epoch"
    );
    drop(inner);
    assert!(epochs.is_quiesced(stamp));
}

#[test]
fn guards_know_their_epochs() {
    let (one, two) = (epochs(1), epochs(1));
    let guard = one.pin();
    assert!(guard.is_of(&one) && !guard.is_of(&two));
    let stamp = two.retire_epoch();
    assert!(two.is_quiesced(stamp), "tables are independent");
    let both = two.pin();
    assert!(both.is_of(&two));
}

#[test]
fn threads_beyond_the_slots_are_protected_too() {
    for slots in [0, 1] {
        let epochs = epochs(slots);
        let first = epochs.pin();
        in_thread(|| {
            let old = epochs.pin();
            let stamp = epochs.retire_epoch();
            let young = epochs.pin();
            drop(old);
            assert!(!epochs.is_quiesced(stamp), "the first thread reads still");
            drop(young);
        });
        let stamp = epochs.retire_epoch();
        assert!(!epochs.is_quiesced(stamp));
        drop(first);
        in_thread(|| {
            let overflow = epochs.pin();
            assert!(epochs.is_quiesced(stamp));
            let later = epochs.retire_epoch();
            assert!(!epochs.is_quiesced(later));
            drop(overflow);
            assert!(epochs.is_quiesced(later));
        });
        // The first thread keeps its slot, if there is one.
        assert_eq!(epochs.pins_without_slot(), 4 - u64::from(slots));
    }
}

#[test]
fn slots_are_reused_after_their_threads() {
    let epochs = epochs(2);
    for _ in 0..50 {
        in_thread(|| {
            let guard = epochs.pin();
            assert_eq!(slot_of(&guard), Some(0));
        });
    }
    assert_eq!(epochs.table.high_water().load(Ordering::Relaxed), 1);
    assert_eq!(epochs.table.claimed().load(Ordering::Relaxed), 0);
}

#[test]
fn a_slot_whose_guard_was_leaked_is_not_given_away() {
    let epochs = epochs(2);
    in_thread(|| core::mem::forget(epochs.pin()));
    let stamp = epochs.retire_epoch();
    let guard = epochs.pin();
    assert_eq!(slot_of(&guard), Some(1));
    drop(guard);
    assert!(!epochs.is_quiesced(stamp), "blocked for ever, never unsafe");
}

// shows: T1
#[test]
fn one_thread_can_use_many_tables_one_after_the_other() {
    for _ in 0..300 {
        let (one, two) = (epochs(1), epochs(1));
        for _ in 0..2 {
            let (a, b) = (one.pin(), two.pin());
            assert_eq!((slot_of(&a), slot_of(&b)), (Some(0), Some(0)));
        }
    }
}

// shows: T2
#[test]
fn pins_in_destructors_of_a_dying_thread_work() {
    static EPOCHS: std::sync::OnceLock<ReclaimEpochs> = std::sync::OnceLock::new();
    static PINNED: AtomicBool = AtomicBool::new(false);
    struct PinsWhenDropped;
    impl Drop for PinsWhenDropped {
        fn drop(&mut self) {
            let epochs = EPOCHS.get().unwrap();
            let guard = epochs.pin();
            let stamp = epochs.retire_epoch();
            assert!(!epochs.is_quiesced(stamp));
            drop(guard);
            PINNED.store(epochs.is_quiesced(stamp), Ordering::Relaxed);
        }
    }
    thread_local!(static LATE: PinsWhenDropped = const { PinsWhenDropped });
    EPOCHS.get_or_init(|| epochs(1));
    for late_first in [true, false] {
        PINNED.store(false, Ordering::Relaxed);
        in_thread(|| {
            if late_first {
                LATE.with(|_| drop(EPOCHS.get().unwrap().pin()));
            } else {
                drop(EPOCHS.get().unwrap().pin());
                LATE.with(|_| ());
            }
        });
        assert!(PINNED.load(Ordering::Relaxed));
    }
    let claimed = EPOCHS.get().unwrap().table.claimed();
    assert_eq!(claimed.load(Ordering::Relaxed), 0);
}

/// One writer moves a value from cell to cell, and overwrites a cell as soon as its stamp is
/// quiesced. A reader that finds a scrubbed cell lacked protection.
// shows: M3
#[test]
fn readers_never_meet_memory_that_is_used_again() {
    scrub_behind_readers(&epochs(2), 3000);
    let shared = ReclaimEpochs::with_clock(2, EpochClock::SharedCounter).unwrap();
    scrub_behind_readers(&shared, 1000);
}

fn scrub_behind_readers(epochs: &ReclaimEpochs, rounds: u64) {
    const CELLS: u64 = 8;
    const SCRUBBED: u64 = 0;
    let link = AtomicU64::new(0);
    let cells: Vec<AtomicU64> = (0..CELLS).map(|_| AtomicU64::new(1)).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let guard = epochs.pin();
                    let at = link.load(Ordering::Acquire);
                    let value = cells[usize::try_from(at).unwrap()].load(Ordering::Relaxed);
                    assert_ne!(value, SCRUBBED);
                    drop(guard);
                }
            });
        }
        for round in 0..rounds {
            let old = link.load(Ordering::Relaxed);
            let new = (old + 1) % CELLS;
            cells[usize::try_from(new).unwrap()].store(round + 1, Ordering::Relaxed);
            link.store(new, Ordering::Release);
            let stamp = epochs.retire_epoch();
            while !epochs.is_quiesced(stamp) {
                thread::yield_now();
            }
            cells[usize::try_from(old).unwrap()].store(SCRUBBED, Ordering::Relaxed);
        }
        done.store(true, Ordering::Relaxed);
    });
}

// shows: M3
#[test]
fn a_shared_guard_holds_back_from_whatever_thread_and_ends_in_another() {
    let epochs = ReclaimEpochs::new(1).unwrap();
    let guard = epochs.pin_shared();
    let stamp = epochs.retire_epoch();
    assert!(!epochs.is_quiesced(stamp));
    thread::scope(|scope| {
        scope.spawn(|| assert!(!epochs.is_quiesced(stamp)));
        scope.spawn(move || drop(guard)).join().unwrap();
    });
    assert!(epochs.is_quiesced(stamp));
    assert_eq!(
        epochs.pins_without_slot(),
        0,
        "it is no sign of too few slots"
    );
}

#[test]
fn a_shared_guard_may_outlive_the_epochs() {
    let epochs = ReclaimEpochs::new(1).unwrap();
    let guard = epochs.pin_shared();
    drop(epochs);
    drop(guard);
}

/// Time stamps that go at one pace and never stop; not every processor has them.
mod needs_invariant_tsc {
    use super::*;

    /// Asks again until it is quiesced: time stamps need a moment to be surely past.
    fn comes_to_be_quiesced(epochs: &ReclaimEpochs, stamp: ReclaimStamp) -> bool {
        (0..1_000_000).any(|_| epochs.is_quiesced(stamp))
    }

    #[test]
    fn guards_hold_back_by_time_stamps_as_well() {
        for slots in [0, 4] {
            let epochs = ReclaimEpochs::with_clock(slots, EpochClock::Tsc).unwrap();
            let before = epochs.retire_epoch();
            assert!(comes_to_be_quiesced(&epochs, before));
            let guard = epochs.pin();
            let during = epochs.retire_epoch();
            assert!(before < during);
            let inner = epochs.pin();
            assert!(!comes_to_be_quiesced(&epochs, during), "nested or not");
            drop(guard);
            drop(inner);
            assert!(comes_to_be_quiesced(&epochs, during));
        }
    }

    // shows: M3
    #[test]
    fn readers_never_meet_memory_that_is_used_again() {
        let epochs = ReclaimEpochs::with_clock(2, EpochClock::Tsc).unwrap();
        scrub_behind_readers(&epochs, 300);
    }
}
