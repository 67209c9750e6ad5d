//! The store against a model: random updates, cleaner steps, late durability, replay in any order.

use crate::ops::{self, delete, put};
use crate::support::{Replicas, entries_of};
use pluvio_format::{Entry, ObjectState};
use pluvio_log::{Awaited, CleanerOptions, Durability, LogOptions, SideLog, Tombstones};
use pluvio_mutation::Outcome;
use pluvio_store::{
    Engine, EngineError, EngineOptions, EngineTable, Replay, ReplayError, ScanOptions,
};
use pluvio_units::{HashRange, LogId, ObjectVersion, Rank, Size, TableId};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The time of all replays.
const NOW: core::time::Duration = core::time::Duration::ZERO;

type Model = BTreeMap<Vec<u8>, (ObjectVersion, Vec<u8>)>;

fn open(durability: Durability, logs: u16, memory: Size) -> Arc<Engine> {
    open_with(Tombstones::default(), durability, logs, memory)
}

fn open_with(
    tombstones: Tombstones,
    durability: Durability,
    logs: u16,
    memory: Size,
) -> Arc<Engine> {
    let log = LogOptions {
        durability,
        logs,
        tombstones,
        ..LogOptions::new(memory)
    };
    Engine::open(EngineOptions { log }).unwrap()
}

fn table(store: &Engine) -> Arc<EngineTable> {
    store.table(TableId(1), 7, HashRange::ALL).unwrap()
}

fn assert_same(store: &Engine, table: &EngineTable, model: &Model) {
    let mut found = Model::new();
    let mut from = Rank(0);
    loop {
        let options = ScanOptions {
            from,
            items: 50,
            bytes: 1 << 20,
            values: true,
        };
        let scan = store.scan(table, HashRange::ALL, options);
        let scan = scan.into_pending();
        for item in scan.items {
            assert!(
                found.insert(item.key, (item.version, item.value)).is_none(),
                "met twice"
            );
        }
        if scan.is_end {
            break;
        }
        from = Rank(scan.last.0 + 1);
    }
    assert_eq!(found.len(), model.len());
    assert!(found == *model, "contents differ");
    assert_eq!(table.objects(), model.len() as u64);
    for (key, (version, value)) in model {
        assert_eq!(
            ops::read(store, table, key).as_ref(),
            Some(&(*version, value.clone()))
        );
    }
}

struct Run {
    store: Arc<Engine>,
    table: Arc<EngineTable>,
    replicas: Replicas,
    model: Model,
    rng: TestRng,
    waiting: Vec<pluvio_log::Awaited<pluvio_store::Applied>>,
    /// The highest version that was deleted.
    deleted: ObjectVersion,
}

impl Run {
    fn new(durability: Durability, tombstones: Tombstones, seed: u8) -> Self {
        let store = open_with(tombstones, durability, 2, Size::mib(64));
        let table = table(&store);
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
        Self {
            store,
            table,
            replicas: Replicas::default(),
            model: Model::new(),
            rng,
            waiting: Vec::new(),
            deleted: ObjectVersion(0),
        }
    }

    fn step(&mut self, value_max: u32) {
        let key = format!("key-{}", self.rng.next_u32() % 400).into_bytes();
        let log = LogId((self.rng.next_u32() % 2) as u16);
        let update = if self.rng.next_u32().is_multiple_of(4) {
            delete(&self.store, &self.table, log, &key)
        } else {
            let length = self.rng.next_u32() % value_max;
            let value = vec![(length % 251) as u8; length as usize];
            put(&self.store, &self.table, log, &key, &value).inspect(|applied| {
                let version = ops::written(applied);
                if let Some((old, _)) = self.model.get(&key) {
                    assert_eq!(version, old.next());
                }
                self.model.insert(key.clone(), (version, value));
            })
        };
        match update {
            Ok(applied) => {
                if let Outcome::Deleted { version, .. } = *applied.pending().outcome() {
                    let known = self.model.remove(&key);
                    assert_eq!(known.map_or(ObjectVersion(0), |(known, _)| known), version);
                    self.deleted = self.deleted.max(version);
                }
                self.waiting.push(applied);
            }
            Err(EngineError::Full { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }

    fn settle(&mut self) {
        for appended in std::mem::take(&mut self.waiting) {
            if let Err(not_yet) = self.store.confirm(&self.table, appended) {
                self.waiting.push(not_yet.into());
            }
        }
    }
}

// shows: STORE-3
#[test]
fn random_updates_with_cleaning_equal_the_model() {
    let mut run = Run::new(Durability::Volatile, Tombstones::default(), 1);
    let cleaner = run.store.cleaner(CleanerOptions::default());
    for i in 0..20_000 {
        run.step(if i % 100 == 0 { 200_000 } else { 20_000 });
        run.settle();
        let _ = cleaner.step(1).expect("memory is sound");
    }
    assert_same(&run.store, &run.table, &run.model);
    assert!(
        run.store.space().stats().cleaner.passes > 0,
        "the cleaner had work"
    );
}

// shows: REPLAY-1, REPLAY-2, REPLAY-3, STORE-1, STORE-3
#[test]
fn what_was_durable_is_recovered_in_any_order() {
    let both = [Tombstones::Every, Tombstones::Deletes].into_iter().cycle();
    for (seed, tombstones) in (0..6).zip(both) {
        let mut run = Run::new(Durability::Replicated, tombstones, seed);
        let cleaner = run.store.cleaner(CleanerOptions::default());
        for i in 0..12_000 {
            run.step(20_000);
            if i % 7 == 0 {
                run.replicas.sync(&run.store);
                run.settle();
            }
            let _ = cleaner.step(1).expect("memory is sound");
        }
        run.replicas.sync(&run.store);
        run.settle();
        assert!(run.waiting.is_empty());
        assert_same(&run.store, &run.table, &run.model);
        assert!(
            run.store.space().stats().cleaner.compactions > 0,
            "the cleaner had work"
        );

        let images = run.replicas.recoverable();
        let other = open(Durability::Replicated, 1, Size::mib(64));
        let side = recover(&other, images, &run.model, &mut run.rng);
        let mut replicas = Replicas::default();
        replicas.sync(&other);
        let _ = side.commit().expect("its segments are durable");
        replicas.sync(&other);
        assert_same(&other, &table(&other), &run.model);
        // REPLAY-2: the recovery master crashes as well. Nothing that was dead in its side log
        // comes back.
        let third = open(Durability::Volatile, 1, Size::mib(64));
        let images = replicas.recoverable();
        let side = recover(&third, images, &run.model, &mut run.rng);
        let _ = side.commit().expect("a volatile side log is durable");
        assert_same(&third, &table(&third), &run.model);
        // A key that was deleted gets a higher version wherever it is made again.
        assert!(run.deleted > ObjectVersion(1));
        for store in [&run.store, &other, &third] {
            assert!(store.space().safe_version() > run.deleted);
        }
    }
}

/// Replays segments in a random order into an empty store; gives the side log, to be committed.
fn recover(
    store: &Arc<Engine>,
    mut images: Vec<Vec<u8>>,
    model: &Model,
    rng: &mut TestRng,
) -> SideLog {
    let tablets = vec![(table(store), HashRange::ALL)];
    let mut replay = Replay::new(store, LogId(0), tablets).unwrap();
    for i in (1..images.len()).rev() {
        images.swap(i, rng.next_u32() as usize % (i + 1));
    }
    // One segment comes twice, as after a lost reply.
    images.push(images[0].clone());
    for image in &images {
        replay.replay(&entries_of(image), NOW).unwrap();
    }
    assert_eq!(replay.load().objects, model.len() as u64);
    let (side, _) = replay.finish();
    let entries = store.stats().index_entries;
    assert_eq!(entries, model.len() as u64, "REPLAY-3: no tombstone stays");
    side
}

// shows: REC-3, REPLAY-1
#[test]
fn an_aborted_replay_leaves_nothing() {
    let store = open(Durability::Volatile, 1, Size::mib(64));
    let table = table(&store);
    let mut replay =
        Replay::new(&store, LogId(0), vec![(Arc::clone(&table), HashRange::ALL)]).unwrap();
    let object = Entry::Object(pluvio_format::Object {
        table: TableId(1),
        version: ObjectVersion(3),
        timestamp_s: 1,
        graves: pluvio_format::Graves::NONE,
        deadline: None,
        state: ObjectState::Plain,
        key: b"k",
        value: b"v",
    });
    replay
        .replay(
            &pluvio_format::Encoded::new(&object, false)
                .unwrap()
                .to_vec(),
            NOW,
        )
        .unwrap();
    assert_eq!(table.objects(), 1);
    replay.abort();
    assert_eq!(table.objects(), 0);
    assert_eq!(ops::read(&store, &table, b"k"), None);
}

#[test]
fn a_version_behind_which_there_is_none_is_refused() {
    let store = open(Durability::Volatile, 1, Size::mib(64));
    let last = ObjectVersion(u64::MAX);
    let object = Entry::Object(pluvio_format::Object {
        table: TableId(1),
        version: last,
        timestamp_s: 1,
        graves: pluvio_format::Graves::NONE,
        deadline: None,
        state: ObjectState::Plain,
        key: b"k",
        value: b"v",
    });
    let tombstone = Entry::Tombstone(pluvio_format::Tombstone {
        table: TableId(1),
        version: last,
        segment: pluvio_units::SegmentId(1),
        timestamp_s: 1,
        key: b"k",
    });
    let tablets = vec![(table(&store), HashRange::ALL)];
    let mut replay = Replay::new(&store, LogId(0), tablets).unwrap();
    for entry in [object, tombstone, Entry::SafeVersion(last)] {
        let bytes = pluvio_format::Encoded::new(&entry, false).unwrap().to_vec();
        let refused = replay.replay(&bytes, NOW).unwrap_err();
        assert!(matches!(refused, ReplayError::Parse(_)), "{refused}");
        let refused = replay.survey(&bytes).unwrap_err();
        assert!(matches!(refused, ReplayError::Parse(_)), "{refused}");
    }
    assert_eq!(replay.load().entries, 0);
    assert!(store.space().safe_version() < last);
    replay.abort();
}

/// Every key overwritten many times: without a survey all versions take memory until the replay
/// ends.
// shows: REPLAY-4
#[test]
fn a_log_larger_than_memory_is_replayed_after_a_survey() {
    let store = open(Durability::Volatile, 1, Size::mib(64));
    let value = vec![7; 100_000];
    let entry = |key: u32, version: u64| {
        let object = Entry::Object(pluvio_format::Object {
            table: TableId(1),
            version: ObjectVersion(version),
            timestamp_s: 1,
            graves: pluvio_format::Graves::NONE,
            deadline: None,
            state: ObjectState::Plain,
            key: &key.to_le_bytes(),
            value: &value,
        });
        pluvio_format::Encoded::new(&object, false)
            .unwrap()
            .to_vec()
    };
    let (keys, versions) = (200, 10);
    let segments: Vec<Vec<u8>> = (1..=versions)
        .map(|version| (0..keys).flat_map(|key| entry(key, version)).collect())
        .collect();
    let table = table(&store);
    let tablets = || vec![(Arc::clone(&table), HashRange::ALL)];
    let mut quick = Replay::new(&store, LogId(0), tablets()).unwrap();
    let full = segments.iter().try_for_each(|s| quick.replay(s, NOW));
    assert!(full.is_err(), "200 MB do not fit 64 MiB");
    quick.abort();
    let dead = Entry::Tombstone(pluvio_format::Tombstone {
        table: TableId(1),
        version: ObjectVersion(versions),
        segment: pluvio_units::SegmentId(1),
        timestamp_s: 1,
        key: &4_u32.to_le_bytes(),
    });
    let dead = pluvio_format::Encoded::new(&dead, false).unwrap().to_vec();
    let mut thrifty = Replay::new(&store, LogId(0), tablets()).unwrap();
    thrifty.survey(&dead).unwrap();
    for segment in &segments {
        thrifty.survey(segment).unwrap();
    }
    for segment in &segments {
        thrifty.replay(segment, NOW).unwrap();
    }
    thrifty.replay(&dead, NOW).unwrap();
    assert_eq!(thrifty.load().objects, u64::from(keys) - 1);
    let read = |key: u32| ops::read(&store, &table, &key.to_le_bytes());
    assert_eq!(read(3).unwrap().0, ObjectVersion(versions));
    assert_eq!(read(4), None);
    let safe = store.space().safe_version();
    assert!(safe > ObjectVersion(versions), "{safe:?}");
}

// shows: STORE-2
#[test]
fn what_is_not_durable_is_marked_for_readers_also_when_it_is_gone() {
    let store = open(Durability::Replicated, 1, Size::mib(64));
    let table = table(&store);
    let mut replicas = Replicas::default();
    let is_pending = || matches!(ops::get(&store, &table, b"k"), Awaited::Later(_));
    let is_there = || ops::read(&store, &table, b"k").is_some();
    let Ok(Awaited::Later(written)) = put(&store, &table, LogId(0), b"k", b"v") else {
        panic!("must be written")
    };
    assert!(is_there() && is_pending());
    let written = store
        .space()
        .confirm(written)
        .expect_err("no replica has it");
    replicas.sync(&store);
    let durable = store.space().confirm(written).unwrap();
    assert!(!is_pending(), "durable, though not settled yet");
    let _outcome = store.settle(&table, durable);
    let Ok(Awaited::Later(deleted)) = delete(&store, &table, LogId(0), b"k") else {
        panic!("must be deleted")
    };
    assert!(!is_there() && is_pending(), "absence is pending too");
    replicas.sync(&store);
    let durable = store.space().confirm(deleted).unwrap();
    let outcome = store.settle(&table, durable).into_value();
    assert!(!is_there() && !is_pending());
    let again = put(&store, &table, LogId(0), b"k", b"v").unwrap();
    let Outcome::Deleted { version, .. } = outcome else {
        panic!("it was deleted: {outcome:?}")
    };
    assert!(
        ops::written(&again) > version,
        "versions grow over delete and re-create"
    );
}

// shows: EMBED-2
#[test]
fn the_last_handle_frees_the_memory() {
    let store = open(Durability::Replicated, 2, Size::mib(64));
    let table = table(&store);
    let cleaner = store.cleaner(CleanerOptions::default());
    let _ = put(&store, &table, LogId(1), b"k", b"v").unwrap();
    let space = Arc::downgrade(store.space());
    drop((table, store));
    assert!(space.upgrade().is_some(), "the cleaner works on it");
    drop(cleaner);
    assert!(space.upgrade().is_none());
}

/// An overwrite that finds no room with graves is tried with tombstones, one for each segment.
/// There is no room for these either, and the object stays as it was.
#[test]
fn an_overwrite_in_a_full_memory_is_tried_with_tombstones_and_leaves_the_object_alone() {
    let _marks =
        pluvio_units::Marks::to_reach(&["store-graves-do-not-fit", "store-several-tombstones"]);
    let store = open(Durability::Replicated, 1, Size::mib(48));
    let table = table(&store);
    let (mut replicas, mut model) = (Replicas::default(), Model::new());
    let mut change = |key: &[u8], length: usize| {
        let value = vec![1; length];
        let Ok(update) = put(&store, &table, LogId(0), key, &value) else {
            return false;
        };
        replicas.sync(&store);
        model.insert(key.to_vec(), (ops::written(&update), value));
        store.confirm(&table, update).expect("it is durable");
        true
    };
    // In two segments; then the memory is filled with others, and with itself.
    let mut numbers = 0_u32..;
    let mut next = || numbers.next().unwrap().to_le_bytes();
    assert!(change(b"k", 100));
    for _ in 0..100 {
        assert!(change(&next(), 100_000));
    }
    assert!(change(b"k", 100));
    while change(&next(), 100_000) {}
    while change(b"k", 100) {}
    assert_same(&store, &table, &model);
}
