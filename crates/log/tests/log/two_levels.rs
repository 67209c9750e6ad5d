//! Compaction in memory and combined cleaning on disk: what each of them leaves alone, when which
//! of them runs, and what becomes of free memory.

use crate::support::replication::Replication;
use crate::support::{Random, Store, options};
use pluvio_log::{AppendError, CleanerOptions, Cleaning, Durability, LogOptions, Segment};
use pluvio_units::{LogId, Marks, SegmentId};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

const LOG: LogId = LogId(0);

struct Run {
    store: Store,
    replication: Replication,
    random: Random,
    now_s: u32,
}

impl Run {
    fn new(options: LogOptions, cleaner: CleanerOptions, keys: u32) -> Self {
        let store = Store::with_cleaner(options, cleaner, keys);
        let replication = Replication::new(&store.space, 16 << 20);
        Self {
            store,
            replication,
            random: Random::new(11),
            now_s: 1,
        }
    }

    fn background(&mut self) {
        let _pace = self
            .store
            .cleaner
            .step(self.now_s)
            .expect("memory is right");
        while self.replication.step(LOG, &mut self.random) {}
    }

    fn change(&mut self, key: u32, len: Option<usize>) {
        for _ in 0..5000 {
            match self.store.change(LOG, key, len, self.now_s) {
                Ok(_) => return,
                Err(AppendError::Full { .. }) => self.background(),
                Err(error) => panic!("{error}"),
            }
        }
        panic!("no progress: {:#?}", self.store.space);
    }

    fn segment_of(&self, key: u32) -> SegmentId {
        let guard = self.store.space.pin();
        let entry = self.store.place_of(key);
        self.store.space.position_of(entry, &guard).1.segment
    }

    fn members(&self) -> BTreeMap<SegmentId, Arc<Segment>> {
        let segments = self.store.space.segments(LOG);
        segments.into_iter().map(|s| (s.id(), s)).collect()
    }
}

// shows: STORE-3
#[test]
fn compaction_makes_segments_smaller_in_memory_and_leaves_the_disk_alone() {
    let options = options(64, 1, Durability::Replicated);
    let mut run = Run::new(options, CleanerOptions::default(), 1000);
    for key in 0..1000 {
        run.change(key, Some(50_000));
    }
    run.replication.finish(&mut run.random);
    let before: BTreeMap<SegmentId, u64> = run
        .members()
        .into_iter()
        .map(|(id, segment)| (id, segment.memory_bytes()))
        .collect();
    let disk = run.store.space.stats().disk_bytes;
    while run.store.space.stats().cleaner.compactions < 5 {
        let key = run.random.below(1000) as u32;
        run.change(key, Some(50_000));
        run.background();
    }
    let stats = run.store.space.stats();
    assert_eq!(stats.cleaner.passes, 0, "{stats:?}");
    assert!(stats.disk_bytes >= disk, "nothing left the log on disk");
    let members = run.members();
    let mut smaller = 0;
    for (id, bytes) in &before {
        let now = members.get(id).expect("it is still in the log");
        smaller += u32::from(now.memory_bytes() < *bytes);
    }
    assert!(smaller >= 4, "{smaller}");
    for key in 0..1000 {
        assert_eq!(run.store.read(key).map(|(_, len)| len), Some(50_000));
    }
    run.store.check_live_bytes();
}

#[test]
fn bytes_that_are_held_are_not_exchanged() {
    let options = options(64, 1, Durability::Replicated);
    let mut run = Run::new(options, CleanerOptions::default(), 1000);
    for key in 0..1000 {
        run.change(key, Some(50_000));
    }
    run.replication.finish(&mut run.random);
    let held: Vec<Arc<Segment>> = run.members().into_values().collect();
    run.replication.loses_replicas = false;
    let lens: Vec<u32> = held.iter().map(|s| s.appended_len()).collect();
    for segment in held.iter().filter(|s| s.is_closed()) {
        assert!(segment.hold_bytes());
    }
    for _ in 0..400 {
        let key = run.random.below(1000) as u32;
        run.change(key, Some(50_000));
        run.background();
    }
    for (segment, len) in held.iter().zip(lens) {
        if segment.is_closed() && segment.copy_out(0..1).is_some() {
            assert!(segment.appended_len() >= len, "{segment:?}");
        }
    }
}

#[test]
fn the_log_on_disk_stays_within_its_limit_and_overwriting_goes_on() {
    for percent in [100, 150, 300] {
        let options = LogOptions {
            disk_expansion_percent: percent,
            ..options(64, 1, Durability::Replicated)
        };
        let mut run = Run::new(options, CleanerOptions::default(), 600);
        let mut longest = 0;
        for i in 0..6000u32 {
            if i % 100 == 0 {
                run.now_s += 1;
            }
            let key = run.random.below(600) as u32;
            run.change(key, Some(60_000));
            if i % 4 == 0 {
                run.background();
            }
            longest = run.store.space.stats().disk_bytes.max(longest);
        }
        let stats = run.store.space.stats();
        // Survivors of one pass and heads for digests may go beyond.
        let beyond = stats.memory_bytes / 10;
        assert!(
            longest <= stats.disk_bytes_max + beyond,
            "{percent} %: {longest} of {}",
            stats.disk_bytes_max
        );
        if percent == 300 {
            assert!(
                longest > stats.memory_bytes * 3 / 2,
                "the disk is used: {longest}"
            );
            assert!(
                stats.cleaner.compactions > stats.cleaner.passes,
                "{stats:?}"
            );
        }
        run.store.check_live_bytes();
    }
}

#[test]
fn one_level_means_no_compaction() {
    let cleaner = CleanerOptions {
        cleaning: Cleaning::OneLevel,
        ..CleanerOptions::default()
    };
    let mut run = Run::new(options(64, 1, Durability::Replicated), cleaner, 800);
    for i in 0..4000u32 {
        let key = run.random.below(800) as u32;
        run.change(key, Some(60_000));
        if i % 4 == 0 {
            run.background();
        }
    }
    let cleaner = run.store.space.stats().cleaner;
    assert!(
        cleaner.passes > 3 && cleaner.compactions == 0,
        "{cleaner:?}"
    );
}

// shows: CLEAN-10
#[test]
fn survivors_are_compared_with_their_checksums_before_the_victims_leave() {
    let cleaner = CleanerOptions {
        cleaning: Cleaning::OneLevel,
        ..CleanerOptions::default()
    };
    let mut run = Run::new(options(64, 1, Durability::Replicated), cleaner, 800);
    let survivor = (0..20_000).find_map(|_| {
        let key = run.random.below(800) as u32;
        run.change(key, Some(60_000));
        run.replication.finish(&mut run.random);
        for _ in 0..100 {
            let _pace = run.store.cleaner.step(run.now_s).expect("memory is right");
        }
        let members = run.members();
        (0..800).find(|key| {
            let there = run.store.read(*key).is_some();
            there && !members.contains_key(&run.segment_of(*key))
        })
    });
    let key = survivor.expect("nothing was cleaned");
    let victims = run.members().len();
    let entry = run.store.place_of(key);
    assert!(run.store.space.flip_bit(entry, 8 * 1000), "nobody reads");
    let found = (0..1000).find_map(|_| {
        run.replication.finish(&mut run.random);
        run.store.cleaner.step(run.now_s).err()
    });
    let corruption = found.expect("the survivor joined the log");
    assert_eq!(corruption.segment, run.segment_of(key));
    assert_eq!(run.members().len(), victims);
}

impl Run {
    /// Writes these keys, and closes the head.
    fn write_and_roll(&mut self, keys: Range<u32>, len: usize) {
        for key in keys {
            self.change(key, Some(len));
        }
        self.store.space.roll(LOG).expect("there is room");
    }

    fn passes(&self) -> u64 {
        self.store.space.stats().cleaner.passes
    }

    /// A combined pass, and the digest with which its segments leave the backups.
    fn one_pass(&mut self) {
        self.replication.finish(&mut self.random);
        let before = self.passes();
        for _ in 0..1000 {
            if self.passes() == before {
                self.background();
            }
        }
        assert_eq!(self.passes(), before + 1, "{:?}", self.store.space);
        self.store.space.roll(LOG).expect("there is room");
        self.replication.finish(&mut self.random);
    }

    fn is_on_backups(&self, segment: SegmentId) -> bool {
        self.replication.disk.contains_key(&segment)
    }

    /// The tombstones of a key that the backups have.
    fn tombstones(&self, key: u32) -> Vec<String> {
        let mut lines = self.replication.trace(key);
        lines.retain(|line| line.contains("tombstone"));
        lines
    }
}

/// CLEAN-5. The segment of the tombstone is cleaned while the one that it names is there, and once
/// more when that one is gone.
// shows: CLEAN-5, STORE-3
#[test]
fn a_tombstone_stays_on_the_backups_as_long_as_the_segment_that_it_names() {
    const LEN: usize = 60_000;
    // There is always something to clean, and it is a segment that is dead for the most part.
    let cleaner = CleanerOptions {
        cleaning: Cleaning::OneLevel,
        compact_free_percent: 100,
        idle_percent: 100,
        dead_percent_min: 50,
        ..CleanerOptions::default()
    };
    let mut run = Run::new(options(32, 1, Durability::Replicated), cleaner, 20);
    run.replication.loses_replicas = false;
    run.write_and_roll(0..10, LEN);
    let named = run.segment_of(0);
    run.change(0, None);
    run.write_and_roll(10..20, LEN);
    let first = run.segment_of(16);
    run.write_and_roll(10..16, LEN);
    run.one_pass();
    assert!(run.is_on_backups(named) && !run.is_on_backups(first));
    let kept = run.tombstones(0);
    let names_it = |line: &String| line.ends_with(&format!(" of {named}"));
    assert!(kept.len() == 1 && kept.iter().all(names_it), "{kept:?}");
    let found = run.replication.recover();
    assert!(matches!(found.get(&0), Some((_, None))), "it stays dead");

    let second = run.segment_of(16);
    run.write_and_roll(1..10, LEN);
    run.one_pass();
    assert!(!run.is_on_backups(named) && run.is_on_backups(second));
    assert_eq!(run.tombstones(0), kept, "no pass has come to it");

    run.write_and_roll(16..20, LEN);
    run.one_pass();
    assert!(!run.is_on_backups(second));
    assert!(run.tombstones(0).is_empty(), "{:?}", run.tombstones(0));
    let found = run.replication.recover();
    for key in 0..20 {
        let expected = (key > 0).then_some(Some(LEN));
        assert_eq!(found.get(&key).map(|(_, len)| *len), expected, "key {key}");
    }
    run.store.check_live_bytes();
}

/// Segments are closed early, and a pass cleans few of them: there are more passes to come than
/// there are slots for survivors.
#[test]
fn passes_leave_slots_to_the_digests_that_give_slots_back() {
    let cleaner = CleanerOptions {
        pass_segments_max: 1,
        ..CleanerOptions::default()
    };
    let mut run = Run::new(options(64, 1, Durability::Replicated), cleaner, 1000);
    let segments = run.store.space.stats().segments_max as u32 - 10;
    let keys = 3..3 * segments;
    for segment in 1..segments {
        for key in 3 * segment..3 * segment + 3 {
            run.change(key, Some(15_000));
        }
        run.store.space.roll(LOG).expect("there are slots");
    }
    run.replication.finish(&mut run.random);
    let before = run.store.space.stats();
    assert_eq!(
        (before.segments, before.cleaner.passes),
        (u64::from(segments), 0)
    );
    for key in keys.clone().filter(|key| key % 3 != 0) {
        run.change(key, None);
    }
    for _ in 0..4000 {
        run.background();
    }
    let stats = run.store.space.stats();
    assert!(stats.segments + 10 <= before.segments, "{stats:?}");
    run.store.space.roll(LOG).expect("slots came back");
    for key in keys {
        let expected = (key % 3 == 0).then_some(15_000);
        assert_eq!(run.store.read(key).map(|(_, len)| len), expected);
    }
    run.store.check_live_bytes();
}

#[test]
fn a_store_that_is_not_written_is_cleaned_no_more_than_its_disk_needs() {
    // Whatever is dead is compacted at once: there is memory for survivors of all that lives.
    let cleaner = CleanerOptions {
        compact_free_percent: 100,
        idle_percent: 100,
        ..CleanerOptions::default()
    };
    let mut run = Run::new(options(64, 1, Durability::Replicated), cleaner, 300);
    let stats = |run: &Run| run.store.space.stats();
    let max = stats(&run).disk_bytes_max;
    let low = max - max / 100 * 10;
    while stats(&run).disk_bytes <= low {
        let key = run.random.below(300) as u32;
        run.change(key, Some(60_000));
        // Not so near that a pass for disk begins.
        if stats(&run).disk_bytes < max / 100 * 86 {
            run.background();
        }
    }
    run.replication.finish(&mut run.random);
    let before = stats(&run);
    assert_eq!(before.cleaner.passes, 0, "{before:?}");
    let mut peak = 0;
    for _ in 0..4000 {
        run.background();
        peak = stats(&run).disk_bytes.max(peak);
    }
    let after = stats(&run);
    assert!(after.disk_bytes <= low, "{after:?}");
    // A survivor and the head of its digest, which count as full while they are open.
    assert!(
        peak <= before.disk_bytes + 3 * SEGMENT,
        "{peak}, {before:?}"
    );
    assert!(
        after.cleaner.bytes_moved * 4 < after.live_bytes,
        "{after:?}"
    );
    run.store.check_live_bytes();
}

#[test]
fn what_cleaning_has_freed_is_never_taken_back() {
    for cleaning in [Cleaning::TwoLevel, Cleaning::OneLevel] {
        let cleaner = CleanerOptions {
            cleaning,
            ..CleanerOptions::default()
        };
        let mut run = Run::new(options(64, 1, Durability::Replicated), cleaner, 500);
        let mut freed = 0;
        for _ in 0..3000 {
            let key = run.random.below(500) as u32;
            run.change(key, Some(60_000));
            run.background();
            let now = run.store.space.stats().cleaner.bytes_freed;
            assert!(now >= freed, "{now} after {freed}");
            freed = now;
        }
        // 180 MB were written to a memory of 64 MiB.
        assert!(freed > 100 << 20, "{cleaning:?}: {freed}");
    }
}

/// Of a memory of up to 640 MiB.
const SEGMENT: u64 = 40 << 16;
const KEYS: u32 = 10_000;
const LEN: usize = 20_000;

/// A memory of 256 MiB that was full, of whose objects nine of ten were deleted.
fn mostly_deleted(durability: Durability) -> Run {
    let options = options(256, 1, durability);
    let mut run = Run::new(options, CleanerOptions::default(), KEYS);
    for key in 0..KEYS {
        run.change(key, Some(LEN));
    }
    run.background();
    let full = run.store.space.stats().resident_bytes;
    assert!(full > 190 << 20, "{full}");
    for key in (0..KEYS).filter(|key| key % 10 != 0) {
        run.change(key, None);
    }
    run
}

impl Run {
    /// So many seconds in which so many of the objects that are left are overwritten, evenly.
    fn overwrite_left(&mut self, seconds: u32, changes: u32) {
        const STEPS: u32 = 2000;
        for _ in 0..seconds {
            self.now_s += 1;
            for step in 0..STEPS {
                for _ in step * changes / STEPS..(step + 1) * changes / STEPS {
                    let key = 10 * self.random.below(u64::from(KEYS / 10)) as u32;
                    self.change(key, Some(LEN));
                }
                self.background();
            }
        }
    }

    fn check_left(&self) {
        for key in 0..KEYS {
            let expected = (key % 10 == 0).then_some(LEN);
            assert_eq!(self.store.read(key).map(|(_, len)| len), expected);
        }
    }
}

#[test]
fn memory_goes_back_to_the_system_when_most_was_deleted() {
    for durability in [Durability::Volatile, Durability::Replicated] {
        let mut run = mostly_deleted(durability);
        run.overwrite_left(16, 0);
        let stats = run.store.space.stats();
        // A twentieth more than what lives, a fortieth kept free, and some seglets of the head and
        // of its like.
        assert!(
            stats.resident_bytes * 100 <= stats.live_bytes * 108 + (100 << 20),
            "{durability:?}: {stats:?}"
        );
        assert!(stats.cleaner.bytes_given_back > 150 << 20, "{stats:?}");
        run.check_left();
        // It is fetched again when it is needed.
        for key in 0..KEYS {
            run.change(key, Some(LEN));
        }
        let stats = run.store.space.stats();
        assert!(stats.resident_bytes > 190 << 20, "{stats:?}");
    }
}

#[test]
fn memory_goes_back_while_a_store_is_written_lightly_and_not_while_it_is_busy() {
    for durability in [Durability::Volatile, Durability::Replicated] {
        let mut run = mostly_deleted(durability);
        // 100 MB a second: what is free is about to be used.
        run.overwrite_left(4, 5000);
        let before = run.store.space.stats().cleaner.bytes_given_back;
        run.overwrite_left(6, 5000);
        let stats = run.store.space.stats();
        assert_eq!(stats.cleaner.bytes_given_back, before, "{durability:?}");
        assert!(
            stats.resident_bytes > 190 << 20,
            "{durability:?}: {stats:?}"
        );
        // 3 MB a second.
        run.overwrite_left(10, 150);
        let mut most = 0;
        for _ in 0..40 {
            run.overwrite_left(1, 150);
            most = most.max(run.store.space.stats().resident_bytes);
        }
        // A fifth more than live data, a fortieth free, the head, the cleaner's reserve, and the
        // memory of a pass. A pass takes and frees memory before its digest is durable and memory
        // goes back.
        let stats = run.store.space.stats();
        assert!(
            most * 100 <= stats.live_bytes * 125 + 100 * 8 * SEGMENT,
            "{durability:?}: {most}, {stats:?}"
        );
        run.check_left();
    }
}

#[test]
fn a_process_that_stood_still_is_not_taken_for_a_quiet_one() {
    let mut run = mostly_deleted(Durability::Volatile);
    run.overwrite_left(4, 5000);
    let before = run.store.space.stats().cleaner.bytes_given_back;
    for _ in 0..8 {
        // A stopped process, or a machine that slept; then a second's writes.
        run.now_s += 5;
        run.background();
        run.overwrite_left(1, 5000);
    }
    let stats = run.store.space.stats();
    assert_eq!(stats.cleaner.bytes_given_back, before, "{stats:?}");
}

#[test]
fn a_head_of_dead_data_is_closed_when_nothing_is_written() {
    let _marks = Marks::to_reach(&["log-head-closed-for-its-waste"]);
    let options = options(256, 4, Durability::Volatile);
    let mut run = Run::new(options, CleanerOptions::default(), KEYS);
    for log in 0..4 {
        for key in 0..100 {
            let changed = run.store.change(LogId(log), key, Some(LEN), run.now_s);
            changed.expect("there is room");
        }
    }
    let before = run.store.space.stats();
    // Of four copies one lives, and none of the heads is full.
    assert!(before.resident_bytes > 3 * before.live_bytes && before.segments == 4);
    run.overwrite_left(16, 0);
    let stats = run.store.space.stats();
    assert!(
        stats.resident_bytes * 100 <= stats.live_bytes * 108 + (100 << 20),
        "{stats:?}"
    );
}
