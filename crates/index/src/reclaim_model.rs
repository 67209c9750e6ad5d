//! Index, writer, cleaner and reclaim epochs together under the loom model checker. The index's own
//! code and that of the epoch protocol run on loom's words. The log is four places that stand for
//! seglets.
//!
//! ```text
//!  place   0                 1                 2                 3
//!          victim segment    survivor          head              next to be opened
//!          the key's entry   the cleaner's     the writer's
//!          at first          copy              new entry
//! ```
//!
//! The model adds the order of the steps in the log and the store, as in `docs/cleaning.md` and
//! `docs/log.md`. Each [`Mistake`] changes that order in one place, and the model must find it. The
//! bytes of a place are a loom cell. The cell reports an access that is unordered with the next use
//! of the place.

use crate::model::{ModelTable, entry, explore_with, place, table_with};
use crate::slot::{entry_of, pack, tag_of};
use crate::words::Word;
use loom::cell::Cell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use loom::thread;
use pluvio_memory::epoch_protocol::{self as protocol, IDLE};
use pluvio_units::EntryRef;

/// An atomic word as the protocol wants it on machines other than x86.
struct EpochWord(AtomicU64);

impl protocol::Word for EpochWord {
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
        Self::full_fence();
    }

    fn full_fence() {
        fence(Ordering::SeqCst);
    }

    fn take(&self) -> bool {
        unreachable!("slots are given out before")
    }

    fn raise(&self, _to: u64) {
        unreachable!("slots are given out before")
    }
}

/// The one key's place in the index: a number of sixteen, as in `model`.
const KEY: u64 = 0;
/// The place of the key's first entry.
const VICTIM: usize = 0;
/// The place of the cleaner's copy.
const SURVIVOR: usize = 1;
/// The place of the writer's append.
const HEAD: usize = 2;
/// The content of a place that is used again: no version of the key.
const ANOTHER_KEY: u64 = 99;

/// A wrong order of steps, or a missing step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    None,
    /// The cleaner uses the victim's memory again as soon as the index points elsewhere (LOG-5).
    NoFrontier,
    /// The stamp is taken before the index is swung, not after it.
    StampBeforeSwing,
    /// The cleaner points the index to its copy whatever it points to.
    BlindSwing,
    /// The cleaner does not move living entries.
    LivingLeftBehind,
    /// A reader looks up first and pins then.
    ReaderPinsLate,
    /// A segment is cleaned as soon as it is closed (CLEAN-1).
    NotSettled,
    /// A writer drops its guard between its append and the index.
    WriterUnpinsEarly,
    /// A writer marks the entry that it has replaced as dead behind its guard (LOG-15).
    MarkedLate,
}

/// One key, one writer, one cleaner, readers.
struct World {
    mistake: Mistake,
    /// The writer appends before it locks the bucket, as a replay does. (Under the lock, the
    /// cleaner that moves the entry waits for the writer.)
    appends_first: bool,
    table: Arc<ModelTable<2>>,
    counter: EpochWord,
    /// Epoch slots: writer, readers, cleaner.
    slots: [EpochWord; 3],
    places: [Cell<u64>; 3],
    /// The words with the dead bits of the places (LOG-15).
    dead: [AtomicU64; 3],
    /// The appended part of the head.
    appended: AtomicBool,
}

const WRITER: usize = 0;
const READER: usize = 1;
const CLEANER: usize = 2;

/// An entry's reference and back: the place's number, never 0.
fn reference(place: usize) -> EntryRef {
    entry(place as u64)
}

fn place_of(entry: EntryRef) -> usize {
    usize::try_from(entry.offset() - 1).expect("places are few")
}

impl World {
    fn new(mistake: Mistake) -> Arc<Self> {
        Self::with(mistake, false)
    }

    fn with(mistake: Mistake, appends_first: bool) -> Arc<Self> {
        // The victim's entry, at offset 1, is the entry with top 0 of the other models: the key.
        Arc::new(Self {
            mistake,
            appends_first,
            table: table_with::<2>(2, &[KEY]),
            counter: EpochWord(AtomicU64::new(IDLE + 1)),
            slots: [(); 3].map(|()| EpochWord(AtomicU64::new(IDLE))),
            places: [1, 0, 0].map(Cell::new),
            dead: [(); 3].map(|()| AtomicU64::new(0)),
            appended: AtomicBool::new(false),
        })
    }

    fn pin(&self, slot: usize) {
        protocol::begin(&self.counter, &self.slots[slot]);
    }

    fn unpin(&self, slot: usize) {
        protocol::end(&self.slots[slot]);
    }

    fn read(&self, place: usize) -> u64 {
        self.places[place].get()
    }

    fn write(&self, place: usize, version: u64) {
        self.places[place].set(version);
    }

    /// Marks an entry as dead, as `DeadBits::set` of crate `log` does.
    fn mark_dead(&self, place: usize) {
        let word = &self.dead[place];
        word.store(word.load(Ordering::Acquire) | 1, Ordering::Release);
    }

    fn is_dead(&self, place: usize) -> bool {
        self.dead[place].load(Ordering::Acquire) & 1 != 0
    }

    /// The place of the key in the index.
    fn look_up(&self) -> Option<EntryRef> {
        self.table.lookup(place(KEY), |slot| Some(slot.entry))
    }

    /// A read. Gives the version that it shows.
    fn get(&self) -> u64 {
        let late = self.mistake == Mistake::ReaderPinsLate;
        let early = late.then(|| self.look_up());
        self.pin(READER);
        let found = early.unwrap_or_else(|| self.look_up());
        let version = self.read(place_of(found.expect("the key is there all the time")));
        assert!(version == 1 || version == 2, "read {version}");
        self.unpin(READER);
        version
    }

    /// An overwrite: pin, lock, append, swing, unlock, mark the old entry, unpin. Gives the version
    /// that it replaced.
    fn put(&self) -> u64 {
        self.pin(WRITER);
        if self.appends_first {
            self.append(2);
        }
        let mut bucket = Some(self.table.lock(place(KEY)));
        let locked = bucket.as_ref().expect("locked above");
        let (slot, word) = locked
            .find_tagged(|_| true)
            .expect("the key is there all the time");
        let replaced = self.read(place_of(entry_of(word)));
        if !self.appends_first {
            self.append(replaced + 1);
        }
        let old = place_of(entry_of(word));
        Word::set(slot, pack(tag_of(word), reference(HEAD), false));
        bucket.take();
        if self.mistake != Mistake::MarkedLate {
            self.mark_dead(old);
        }
        if self.mistake != Mistake::WriterUnpinsEarly {
            self.unpin(WRITER);
        }
        if self.mistake == Mistake::MarkedLate {
            self.mark_dead(old);
        }
        replaced
    }

    /// The writer's append.
    fn append(&self, version: u64) {
        self.write(HEAD, version);
        self.appended.store(true, Ordering::Release);
        if self.mistake == Mistake::WriterUnpinsEarly {
            self.unpin(WRITER);
        }
    }

    /// Makes the index point to a copy, if it points to the entry.
    fn relocate(&self, old: EntryRef, new: EntryRef) -> bool {
        let locked = self.table.lock(place(KEY));
        let found = match self.mistake {
            Mistake::BlindSwing => {
                let any = locked.find_tagged(|_| true);
                Some(any.expect("the key is there"))
            }
            _ => locked.find_entry(old),
        };
        let Some((slot, word)) = found else {
            return false;
        };
        Word::set(slot, pack(tag_of(word), new, false));
        true
    }

    /// A pass over the segment `from`, which is closed and settled, with survivors at [`SURVIVOR`].
    /// Its memory is used again if no thread can see it.
    fn clean(&self, from: usize) {
        let early = match self.mistake {
            Mistake::StampBeforeSwing => Some(protocol::advance(&self.counter)),
            _ => None,
        };
        self.pin(CLEANER);
        let version = self.read(from);
        if !self.is_dead(from) && self.mistake != Mistake::LivingLeftBehind {
            self.write(SURVIVOR, version);
            self.relocate(reference(from), reference(SURVIVOR));
        }
        self.unpin(CLEANER);
        let stamp = early.unwrap_or_else(|| protocol::advance(&self.counter));
        let quiesced = protocol::frontier(&self.counter, || self.slots.iter()) > stamp;
        if quiesced || self.mistake == Mistake::NoFrontier {
            self.dead[from].store(0, Ordering::Relaxed);
            self.write(from, ANOTHER_KEY);
        }
    }

    /// Closes the head. Cleans it if every guard has ended that was held at that moment.
    fn close_and_clean_head(&self) {
        if !self.appended.load(Ordering::Acquire) {
            return;
        }
        let stamp = protocol::advance(&self.counter);
        let settled = protocol::frontier(&self.counter, || self.slots.iter()) > stamp;
        if settled || self.mistake == Mistake::NotSettled {
            self.clean(HEAD);
        }
    }
}

/// A reader that looks twice, a writer and a pass of the cleaner.
fn all_together(mistake: Mistake, preemptions: usize, reads: usize) {
    explore_with(preemptions, move || {
        let world = World::new(mistake);
        let [reader, writer] = [(); 2].map(|()| Arc::clone(&world));
        let reader = thread::spawn(move || {
            let versions: Vec<u64> = (0..reads).map(|_| reader.get()).collect();
            assert!(versions.is_sorted(), "{versions:?}: a read went back");
        });
        let writer = thread::spawn(move || assert_eq!(writer.put(), 1));
        world.clean(VICTIM);
        reader.join().unwrap();
        writer.join().unwrap();
        assert_eq!(world.get(), 2, "the write is lost");
    });
}

/// A reader and a pass of the cleaner.
fn read_while_cleaned(mistake: Mistake) {
    explore_with(3, move || {
        let world = World::new(mistake);
        let reader = Arc::clone(&world);
        let reader = thread::spawn(move || assert_eq!(reader.get(), 1));
        world.clean(VICTIM);
        reader.join().unwrap();
        assert_eq!(world.get(), 1);
    });
}

/// A writer and a pass of the cleaner over the segment that the key was in.
fn overwrite_while_cleaned(mistake: Mistake) {
    explore_with(3, move || {
        let world = World::new(mistake);
        let writer = Arc::clone(&world);
        let writer = thread::spawn(move || assert_eq!(writer.put(), 1));
        world.clean(VICTIM);
        writer.join().unwrap();
        assert_eq!(world.get(), 2, "the write is lost");
        let is_used_again = world.read(VICTIM) == ANOTHER_KEY;
        assert!(
            !(is_used_again && world.is_dead(VICTIM)),
            "what lies there now is taken for dead"
        );
    });
}

/// A writer whose head is closed and cleaned at once.
fn append_while_head_is_cleaned(mistake: Mistake) {
    explore_with(3, move || {
        let world = World::with(mistake, true);
        let writer = Arc::clone(&world);
        let writer = thread::spawn(move || assert_eq!(writer.put(), 1));
        world.close_and_clean_head();
        writer.join().unwrap();
        assert_eq!(world.get(), 2, "what was appended was taken for dead");
    });
}

// shows: LOG-5, LOG-15
#[test]
fn reader_writer_and_cleaner_go_together() {
    all_together(Mistake::None, 3, 1);
}

#[test]
fn a_reader_sees_versions_in_their_order_while_both_move_the_key() {
    all_together(Mistake::None, 2, 2);
}

#[test]
fn a_reader_is_not_disturbed_by_a_pass() {
    read_while_cleaned(Mistake::None);
}

#[test]
fn a_write_is_not_lost_in_a_pass() {
    overwrite_while_cleaned(Mistake::None);
}

#[test]
fn a_head_that_is_closed_and_cleaned_at_once_loses_no_append() {
    append_while_head_is_cleaned(Mistake::None);
}

/// The model, with a mistake, must end in a panic with one of these messages.
fn finds(mistake: Mistake, model: fn(Mistake), said: &[&str]) {
    let panic = std::panic::catch_unwind(|| model(mistake));
    let panic = panic.expect_err("the mistake is not found");
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
    let text = text.unwrap_or_default();
    assert!(said.iter().any(|one| text.contains(one)), "{text}");
}

/// loom's message about unordered accesses to bytes that are used again.
const OVERTAKEN: &str = "Causality violation";
/// The message of a read that finds [`ANOTHER_KEY`].
const ANOTHERS: &str = "read 99";

#[test]
fn the_model_finds_memory_used_again_without_a_look_at_readers() {
    finds(Mistake::NoFrontier, read_while_cleaned, &[OVERTAKEN]);
}

#[test]
fn the_model_finds_a_stamp_taken_before_the_index_was_swung() {
    finds(Mistake::StampBeforeSwing, read_while_cleaned, &[OVERTAKEN]);
}

#[test]
fn the_model_finds_a_reader_that_pins_late() {
    let said = [OVERTAKEN, ANOTHERS];
    finds(Mistake::ReaderPinsLate, read_while_cleaned, &said);
}

#[test]
fn the_model_finds_a_living_entry_left_behind() {
    let said = [OVERTAKEN, ANOTHERS];
    finds(Mistake::LivingLeftBehind, read_while_cleaned, &said);
}

#[test]
fn the_model_finds_an_index_swung_to_a_copy_of_what_was_replaced() {
    let said = ["the write is lost"];
    finds(Mistake::BlindSwing, overwrite_while_cleaned, &said);
}

#[test]
fn the_model_finds_an_entry_marked_dead_behind_the_guard() {
    let said = ["taken for dead"];
    finds(Mistake::MarkedLate, overwrite_while_cleaned, &said);
}

#[test]
fn the_model_finds_a_segment_cleaned_before_its_writers_are_through() {
    let said = [ANOTHERS, "taken for dead"];
    finds(Mistake::NotSettled, append_while_head_is_cleaned, &said);
}

#[test]
fn the_model_finds_a_writer_that_unpins_before_the_index_points_to_its_entry() {
    let said = [ANOTHERS, "taken for dead"];
    finds(
        Mistake::WriterUnpinsEarly,
        append_while_head_is_cleaned,
        &said,
    );
}
