//! The bucket protocol under the loom model checker: the index's own code on loom's words, with one
//! slot per bucket, so that two entries already make a chain.

use crate::slot::{Slot, pack};
use crate::spread::{self, tag};
use crate::table::Table;
use crate::words::{Lines, Word};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use pluvio_units::EntryRef;

impl Word for AtomicU64 {
    fn get(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    fn set(&self, value: u64) {
        self.store(value, Ordering::Release);
    }

    fn try_swap(&self, old: u64, new: u64) -> bool {
        self.compare_exchange(old, new, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }
}

struct ModelLines<const SLOTS: usize>(Vec<[AtomicU64; 8]>);

impl<const SLOTS: usize> Lines for ModelLines<SLOTS> {
    type Word = AtomicU64;
    const SLOTS: usize = SLOTS;

    fn count(&self) -> u64 {
        self.0.len() as u64
    }

    fn line(&self, number: u64) -> &[AtomicU64; 8] {
        &self.0[usize::try_from(number).unwrap()]
    }

    fn prefetch(&self, _number: u64) {}

    fn wait(_attempt: u32) {
        thread::yield_now();
    }

    fn fence_acquire() {
        loom::sync::atomic::fence(Ordering::Acquire);
    }

    fn fence_release() {
        loom::sync::atomic::fence(Ordering::Release);
    }
}

type ModelTable<const SLOTS: usize> = Table<ModelLines<SLOTS>>;

const BUCKETS: u64 = 1;

fn table<const SLOTS: usize>() -> Arc<ModelTable<SLOTS>> {
    let lines = (0..8).map(|_| Default::default()).collect();
    Arc::new(Table::new(ModelLines(lines), BUCKETS, 4))
}

/// An entry is named by its place, whose top bits are what counts.
fn place(top: u64) -> u64 {
    top << 60
}

fn entry(top: u64) -> EntryRef {
    EntryRef::new(top + 1)
}

fn insert<const SLOTS: usize>(table: &ModelTable<SLOTS>, top: u64) {
    let mut bucket = table.lock(place(top));
    let word = pack(tag(place(top), bucket.address().bits), entry(top), false);
    bucket.insert(word).expect("there are overflow buckets");
}

fn finds<const SLOTS: usize>(table: &ModelTable<SLOTS>, top: u64) -> bool {
    table
        .lookup(place(top), |slot| slot.entry == entry(top))
        .is_some()
}

fn explore(f: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(f);
}

fn no_keys(_: EntryRef) -> u64 {
    panic!("these splits need no keys")
}

#[test]
fn a_split_hides_neither_what_stays_nor_what_goes() {
    // Tops 0 and 1 stay, 8 goes, in a chain of three buckets.
    for sought in [0, 1, 8] {
        explore(move || {
            let table = table::<1>();
            for top in [8, 0, 1] {
                insert(&table, top);
            }
            let reader = Arc::clone(&table);
            let reader = thread::spawn(move || assert!(finds(&reader, sought)));
            assert!(table.split(&mut no_keys));
            reader.join().unwrap();
            assert!(finds(&table, sought));
        });
    }
}

#[test]
fn a_removal_hides_no_neighbour_that_moves_up() {
    for sought in [1, 2] {
        explore(move || {
            let table = table::<1>();
            for top in [0, 1, 2] {
                insert(&table, top);
            }
            let reader = Arc::clone(&table);
            let reader = thread::spawn(move || assert!(finds(&reader, sought)));
            assert!(table.lock(place(0)).remove(entry(0)));
            reader.join().unwrap();
        });
    }
}

#[test]
fn an_overflow_bucket_used_again_elsewhere_leads_no_reader_astray() {
    explore(|| {
        let table = table::<1>();
        assert!(table.split(&mut no_keys));
        for top in [0, 1, 8] {
            insert(&table, top);
        }
        let reader = Arc::clone(&table);
        let reader = thread::spawn(move || assert!(finds(&reader, 1)));
        // Frees the overflow bucket of 0's chain; 9 puts it into the chain of 8.
        assert!(table.lock(place(0)).remove(entry(0)));
        insert(&table, 9);
        reader.join().unwrap();
    });
}

#[test]
fn two_writers_of_a_bucket_do_not_lose_each_others_entries() {
    explore(|| {
        let table = table::<2>();
        let other = Arc::clone(&table);
        let other = thread::spawn(move || insert(&other, 1));
        insert(&table, 0);
        other.join().unwrap();
        assert!(finds(&table, 0) && finds(&table, 1));
        assert_eq!(table.len(), 2);
    });
}

#[test]
fn a_writer_follows_a_split_of_its_bucket() {
    explore(|| {
        let table = table::<2>();
        let writer = Arc::clone(&table);
        let writer = thread::spawn(move || insert(&writer, 8));
        assert!(table.split(&mut no_keys));
        writer.join().unwrap();
        assert!(finds(&table, 8));
    });
}

/// The reader is the spawned thread, as in all these models: with the lookup in the main thread, loom
/// (0.7.2, with and without a preemption bound) shows no run in which the entry is found.
#[test]
fn who_finds_an_entry_sees_its_bytes() {
    let found = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let some_run_found = std::sync::Arc::clone(&found);
    explore(move || {
        let table = table::<2>();
        let bytes = Arc::new(AtomicU64::new(0));
        let (reader, read) = (Arc::clone(&table), Arc::clone(&bytes));
        let found = std::sync::Arc::clone(&found);
        let reader = thread::spawn(move || {
            reader.lookup(place(0), |slot: Slot| {
                assert_eq!(read.load(Ordering::Relaxed), 7);
                found.store(true, std::sync::atomic::Ordering::Relaxed);
                slot.entry == entry(0)
            })
        });
        bytes.store(7, Ordering::Relaxed);
        insert(&table, 0);
        reader.join().unwrap();
    });
    assert!(some_run_found.load(std::sync::atomic::Ordering::Relaxed));
}

/// Two words change together behind one entry; the lookup takes both as they were before, or as they are after.
#[test]
fn a_stable_lookup_takes_a_change_in_place_as_a_whole() {
    explore(|| {
        let table = table::<2>();
        insert(&table, 0);
        let pair = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let (reader, read) = (Arc::clone(&table), Arc::clone(&pair));
        let reader = thread::spawn(move || {
            let taken = reader.lookup_stable(place(0), |slot| {
                let pair = || [0, 1].map(|at| read[at].load(Ordering::Relaxed));
                (slot.entry == entry(0)).then(pair)
            });
            let [one, two] = taken.expect("it is there all the time");
            assert_eq!(one, two, "half a change");
        });
        table.lock(place(0)).change_in_place(|| {
            pair[0].store(1, Ordering::Relaxed);
            pair[1].store(1, Ordering::Relaxed);
        });
        reader.join().unwrap();
    });
}

/// The value moves to another place, which is then changed; whoever took the old place has the value before.
#[test]
fn a_stable_lookup_takes_no_place_that_was_left_before_a_change() {
    explore(|| {
        let table = table::<2>();
        insert(&table, 0);
        let places = Arc::new([AtomicU64::new(1), AtomicU64::new(0)]);
        let changed = Arc::new(AtomicU64::new(0));
        let (reader, read) = (Arc::clone(&table), Arc::clone(&places));
        let told = Arc::clone(&changed);
        let reader = thread::spawn(move || {
            let before = told.load(Ordering::Acquire);
            let taken = reader.lookup_stable(place(0), |slot| {
                let at = usize::from(slot.entry != entry(0));
                Some(read[at].load(Ordering::Relaxed))
            });
            let taken = taken.expect("it is there all the time");
            assert!(taken > before, "a value from before a change that was over");
        });
        {
            let mut bucket = table.lock(place(0));
            places[1].store(1, Ordering::Relaxed);
            let (slot, word) = bucket.find_entry(entry(0)).expect("inserted above");
            slot.set(word + 64);
            bucket.change_in_place(|| places[1].store(2, Ordering::Relaxed));
        }
        changed.store(1, Ordering::Release);
        reader.join().unwrap();
    });
}

#[test]
fn the_models_tops_go_where_the_tests_say() {
    let goes = |top| spread::goes_to_new(tag(place(top), 0), 0);
    assert!(!goes(0) && !goes(1) && !goes(2) && goes(8) && goes(9));
}
