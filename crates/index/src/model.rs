//! The block protocol under the loom model checker: the index's own code on loom's words. Blocks
//! have two or three lines of one or two slots. Two entries already are in each other's way, and
//! three make a chain.
//!
//! ```text
//! lines    homes of tops 0 to 15
//! 2        0-7 | 8-15                    one block
//! 3        0-5 | 6-10 | 11-15            one block
//! 4        0-3 | 4-7 || 8-11 | 12-15     two blocks
//! ```

use crate::resize::Resizer;
use crate::slot::{Slot, pack};
use crate::spread::{Address, Spread, tag};
use crate::table::Table;
use crate::words::{Lines, Word};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use pluvio_units::{EntryRef, HashKind, HashRange, Rank};

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

pub(crate) struct ModelLines<const SLOTS: usize>(Vec<[AtomicU64; 8]>);

impl<const SLOTS: usize> Lines for ModelLines<SLOTS> {
    type Word = AtomicU64;
    const SLOTS: usize = SLOTS;
    const OVERFLOW_SLOTS: usize = 1;
    const BLOCK_LOG: u32 = 1;
    const GRANULE: u64 = 1;
    const ALIGN: u64 = 1;

    fn count(&self) -> u64 {
        self.0.len() as u64
    }

    fn line(&self, number: u64) -> &[AtomicU64; 8] {
        &self.0[usize::try_from(number).unwrap()]
    }

    fn give_back(&self, _lines: core::ops::Range<u64>) -> bool {
        false
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

pub(crate) type ModelTable<const SLOTS: usize> = Table<ModelLines<SLOTS>>;

const LINES: u64 = 2;

fn table<const SLOTS: usize>() -> Arc<ModelTable<SLOTS>> {
    let lines = (0..12).map(|_| Default::default()).collect();
    Arc::new(Table::new(ModelLines(lines), LINES, 4))
}

/// A table with these entries that has grown to `lines` lines.
pub(crate) fn table_with<const SLOTS: usize>(lines: u64, tops: &[u64]) -> Arc<ModelTable<SLOTS>> {
    let table = table::<SLOTS>();
    while table.lines() < lines {
        grow(&table);
    }
    for &top in tops {
        insert(&table, top);
    }
    table
}

fn grow<const SLOTS: usize>(table: &ModelTable<SLOTS>) {
    assert!(table.grow(&mut Resizer::new(LINES), &mut no_keys));
}

fn shrink<const SLOTS: usize>(table: &ModelTable<SLOTS>) {
    assert!(table.shrink(&mut Resizer::new(LINES), &mut no_keys));
}

/// Grows or shrinks the table to `lines`.
fn resize<const SLOTS: usize>(table: &ModelTable<SLOTS>, lines: u64) {
    while table.lines() < lines {
        grow(table);
    }
    while table.lines() > lines {
        shrink(table);
    }
}

/// An entry is named by its place, whose top bits count.
pub(crate) fn place(top: u64) -> u64 {
    top << 60
}

pub(crate) fn entry(top: u64) -> EntryRef {
    EntryRef::new(top + 1)
}

fn insert<const SLOTS: usize>(table: &ModelTable<SLOTS>, top: u64) {
    let mut bucket = table.lock(place(top));
    let word = pack(
        tag(place(top), bucket.address().block.bits),
        entry(top),
        false,
    );
    bucket.insert(word).expect("there are overflow lines");
}

fn finds<const SLOTS: usize>(table: &ModelTable<SLOTS>, top: u64) -> bool {
    table
        .lookup(place(top), |slot| (slot.entry == entry(top)).then_some(()))
        .is_some()
}

/// The tops of the entries that a scan of all hashes meets.
fn walk<const SLOTS: usize>(table: &ModelTable<SLOTS>) -> Vec<u64> {
    let spread = Spread::new(HashRange::ALL, HashKind::Seeded);
    let (mut slots, mut from) = (Vec::new(), Rank(0));
    loop {
        let last = table.scan(&spread, from, &mut slots);
        match last.0.checked_add(1) {
            Some(next) => from = Rank(next),
            None => return slots.iter().map(|slot| slot.entry.offset() - 1).collect(),
        }
    }
}

fn explore(f: impl Fn() + Send + Sync + 'static) {
    explore_with(2, f);
}

/// With at most this many forced switches of threads.
pub(crate) fn explore_with(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(f);
}

fn no_keys(_: EntryRef) -> u64 {
    panic!("these splits need no keys")
}

/// The numbers of lines before and after: within a block, a split, and both back.
const STEPS: [(u64, u64); 4] = [(2, 3), (3, 4), (3, 2), (4, 3)];

// shows: X3
#[test]
fn no_step_hides_an_entry_from_a_reader() {
    for (from, to) in STEPS {
        // At home, behind its home, in the chain, alone.
        for sought in [0, 1, 2, 8] {
            explore(move || {
                let table = table_with::<1>(from, &[0, 1, 2, 8]);
                let reader = Arc::clone(&table);
                let reader = thread::spawn(move || assert!(finds(&reader, sought)));
                resize(&table, to);
                reader.join().unwrap();
                for top in [0, 1, 2, 8] {
                    assert!(finds(&table, top));
                }
            });
        }
    }
}

#[test]
fn no_step_hides_an_entry_from_a_scan() {
    for (from, to) in STEPS {
        explore_with(1, move || {
            let tops = [0, 3, 9];
            let table = table_with::<1>(from, &tops);
            let reader = Arc::clone(&table);
            let reader = thread::spawn(move || {
                let met = walk(&reader);
                assert!(tops.iter().all(|top| met.contains(top)), "{met:?}");
            });
            resize(&table, to);
            reader.join().unwrap();
            let mut met = walk(&table);
            met.sort_unstable();
            assert_eq!(met, tops, "each once when nothing changes");
        });
    }
}

#[test]
fn shrinking_and_growing_again_deceives_no_reader() {
    shrink_and_grow_again(1);
}

#[test]
#[ignore = "takes minutes: see CONTRIBUTING.md"]
fn shrinking_and_growing_again_deceives_no_reader_with_more_switches() {
    shrink_and_grow_again(2);
}

fn shrink_and_grow_again(preemptions: usize) {
    for sought in [1, 8, 9] {
        explore_with(preemptions, move || {
            let table = table_with::<1>(4, &[0, 1, 8, 9]);
            let reader = Arc::clone(&table);
            let reader = thread::spawn(move || assert!(finds(&reader, sought)));
            resize(&table, 3);
            resize(&table, 4);
            reader.join().unwrap();
        });
    }
}

// Two tests, which run side by side: together they take half a minute of one processor.
#[test]
fn a_reader_a_writer_and_the_step_that_adds_a_block_go_together() {
    step_beside_a_reader_and_a_writer(&[(3, 4)]);
}

#[test]
fn a_reader_a_writer_and_the_step_that_removes_a_block_go_together() {
    step_beside_a_reader_and_a_writer(&[(4, 3)]);
}

#[test]
#[ignore = "takes minutes: see CONTRIBUTING.md"]
fn a_reader_a_writer_and_each_step_go_together() {
    step_beside_a_reader_and_a_writer(&STEPS);
}

fn step_beside_a_reader_and_a_writer(steps: &[(u64, u64)]) {
    for &(from, to) in steps {
        explore_with(1, move || {
            let table = table_with::<1>(from, &[0, 1]);
            let [reader, writer] = [(); 2].map(|()| Arc::clone(&table));
            let reader = thread::spawn(move || assert!(finds(&reader, 1)));
            // Takes the place of the old entry, and comes to a block that may go away.
            let writer = thread::spawn(move || {
                assert!(writer.lock(place(0)).remove(entry(0)));
                insert(&writer, 8);
            });
            resize(&table, to);
            reader.join().unwrap();
            writer.join().unwrap();
            assert!(finds(&table, 1) && finds(&table, 8) && !finds(&table, 0));
            assert_eq!(table.len(), 2);
        });
    }
}

#[test]
fn a_removal_hides_no_neighbour_that_comes_home() {
    for sought in [1, 2] {
        explore(move || {
            let table = table_with::<1>(2, &[0, 1, 2]);
            let reader = Arc::clone(&table);
            let reader = thread::spawn(move || assert!(finds(&reader, sought)));
            assert!(table.lock(place(0)).remove(entry(0)));
            reader.join().unwrap();
        });
    }
}

#[test]
fn an_overflow_line_used_again_elsewhere_leads_no_reader_astray() {
    for sought in [1, 2] {
        explore(move || {
            let table = table_with::<1>(4, &[0, 1, 2, 8, 9]);
            let reader = Arc::clone(&table);
            let reader = thread::spawn(move || assert!(finds(&reader, sought)));
            // Frees the overflow line of the one block; 10 puts it into the chain of the other.
            assert!(table.lock(place(0)).remove(entry(0)));
            insert(&table, 10);
            reader.join().unwrap();
        });
    }
}

#[test]
fn two_writers_of_a_block_do_not_lose_each_others_entries() {
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
fn a_writer_follows_its_block_through_a_step() {
    for (from, to) in STEPS {
        explore(move || {
            let table = table_with::<2>(from, &[]);
            let writer = Arc::clone(&table);
            let writer = thread::spawn(move || insert(&writer, 8));
            resize(&table, to);
            writer.join().unwrap();
            assert!(finds(&table, 8));
        });
    }
}

/// The reader is the spawned thread, as in all these models. With the lookup in the main thread,
/// loom shows no run in which the entry is found (version 0.7.2, with and without a preemption
/// bound).
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
                (slot.entry == entry(0)).then_some(())
            })
        });
        bytes.store(7, Ordering::Relaxed);
        insert(&table, 0);
        reader.join().unwrap();
    });
    assert!(some_run_found.load(std::sync::atomic::Ordering::Relaxed));
}

/// Two words change together behind one entry. The lookup takes both from before the change, or
/// both from after it.
// shows: LOG-13
#[test]
fn a_stable_lookup_takes_a_change_in_place_as_a_whole() {
    explore(|| {
        let table = table::<2>();
        insert(&table, 0);
        let pair = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let (reader, read) = (Arc::clone(&table), Arc::clone(&pair));
        let reader = thread::spawn(move || {
            let taken = reader.lookup_stable(place(0), u32::MAX, |slot| {
                let pair = || [0, 1].map(|at| read[at].load(Ordering::Relaxed));
                (slot.entry == entry(0)).then(pair)
            });
            let [one, two] = taken.expect("it is there all the time");
            assert_eq!(one, two, "half a change");
        });
        let (mut bucket, likely) = table.lock_after(table.approach(place(0)), |_| ());
        assert_eq!(likely.map(|likely| likely.entry()), Some(entry(0)));
        let change = bucket.begin_change();
        pair[0].store(1, Ordering::Relaxed);
        pair[1].store(1, Ordering::Relaxed);
        drop(change);
        drop(bucket);
        reader.join().unwrap();
    });
}

/// The value moves to another place, which is then changed. A reader that took the old place has
/// the value from before.
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
            let taken = reader.lookup_stable(place(0), u32::MAX, |slot| {
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
            let _change = bucket.begin_change();
            places[1].store(2, Ordering::Relaxed);
        }
        changed.store(1, Ordering::Release);
        reader.join().unwrap();
    });
}

#[test]
fn the_models_tops_have_the_homes_that_its_head_says() {
    let homes = |lines| {
        let line = |top| {
            let address = Address::of(place(top), lines, 1);
            address.block.line(address.home)
        };
        (0..16).map(line).collect::<Vec<_>>()
    };
    assert_eq!(homes(2), [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(homes(3), [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
    assert_eq!(homes(4), [0, 0, 0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 3, 3, 3, 3]);
}
