//! Deadlines of an engine: what is past is absent and stays so, whoever owns it next, and its
//! memory comes back.

use crate::ops;
use crate::support::{Replicas, entries_of};
use core::time::Duration;
use pluvio_log::{Awaited, CleanerOptions, Durability, LogOptions};
use pluvio_mutation::{Change, Get, Lifetime, Mutation, Outcome, Output, Projection, TouchIf};
use pluvio_store::{
    Applied, DeadlineTime, Engine, EngineError, EngineOptions, EngineTable, Expired, Replay,
    ScanOptions, Site,
};
use pluvio_units::{Deadline, HashRange, LogId, ObjectVersion, Rank, Size, TableId, UnixMs};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const START_MS: u64 = 1_700_000_000_000;

/// A clock that a test moves, and that shows the same by both hands.
#[derive(Clone)]
struct Hands(Arc<AtomicU64>);

impl Hands {
    fn at(ms: u64) -> Self {
        Self(Arc::new(AtomicU64::new(ms)))
    }

    fn pass(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::Relaxed);
    }

    fn now(&self) -> UnixMs {
        UnixMs(self.0.load(Ordering::Relaxed))
    }
}

impl DeadlineTime for Hands {
    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.now().0 - START_MS / 2)
    }

    fn wall(&self) -> Duration {
        Duration::from_millis(self.now().0)
    }
}

fn open(durability: Durability, hands: &Hands) -> (Arc<Engine>, Arc<EngineTable>) {
    let log = LogOptions {
        durability,
        logs: 2,
        ..LogOptions::new(Size::mib(64))
    };
    let store = Engine::open(EngineOptions { log }).unwrap();
    store.expiry().start(Box::new(hands.clone()));
    let table = store.table(TableId(1), 7, HashRange::ALL).unwrap();
    (store, table)
}

fn put_for(
    (store, table): (&Engine, &EngineTable),
    log: LogId,
    (key, value): (&[u8], &[u8]),
    lifetime: Lifetime,
) -> Result<Awaited<Applied>, EngineError> {
    let put = Mutation {
        lifetime,
        ..Mutation::new(table.id(), key, Change::Put(value.into()))
    };
    ops::apply(store, log, &put, table, None)
}

fn touch(lifetime: Lifetime, key: &[u8]) -> Mutation<'_> {
    Mutation {
        lifetime,
        ..Mutation::new(TableId(1), key, Change::Touch(TouchIf::Always))
    }
}

fn site<'t>(table: &'t EngineTable, hash: pluvio_units::KeyHash) -> Site<'t> {
    Site {
        log: LogId(0),
        table,
        hash,
        now_s: 1,
        only_this_log: false,
    }
}

/// Drops what is due; gives the deletions, which wait for their replicas.
fn sweep(store: &Engine, table: &EngineTable) -> Vec<Awaited<Applied>> {
    let mut dropped = Vec::new();
    loop {
        let due = store.due(16);
        if due.is_empty() {
            return dropped;
        }
        for (_, hash) in due {
            let drop_one = || store.drop_expired(&site(table, hash), |_, _| {});
            loop {
                match drop_one() {
                    Ok(Expired::Dropped(applied)) => dropped.push(applied),
                    Ok(Expired::Nothing) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
}

fn scanned(store: &Engine, table: &EngineTable) -> usize {
    let options = ScanOptions {
        from: Rank(0),
        items: 1 << 20,
        bytes: 1 << 30,
        values: false,
    };
    let scan = store.scan(table, HashRange::ALL, options).into_pending();
    scan.items.len()
}

fn deadline(store: &Engine, table: &EngineTable, key: &[u8]) -> Option<i64> {
    let get = Get {
        projection: Projection::Deadline,
        ..Get::new(table.id(), key)
    };
    match store
        .get(table, table.hash(key), &get)
        .unwrap()
        .into_pending()
    {
        Outcome::Unchanged {
            output: Output::Integer(ms),
            ..
        } => Some(ms),
        _ => None,
    }
}

// shows: EXPIRY-3, STORE-1
#[test]
fn what_is_past_is_absent_and_leaves_no_bytes_and_versions_go_on() {
    let hands = Hands::at(START_MS);
    let (store, table) = open(Durability::Volatile, &hands);
    let at = (&*store, &*table);
    let written = put_for(at, LogId(0), (b"k", b"v"), Lifetime::For(100)).unwrap();
    let first = ops::written(&written);
    hands.pass(99);
    assert!(ops::read(&store, &table, b"k").is_some());
    assert!(
        store
            .show(&table, table.hash(b"k"), b"k", |seen| seen.is_some())
            .unwrap()
            .into_value()
    );
    hands.pass(1);
    assert_eq!(ops::read(&store, &table, b"k"), None);
    assert!(
        !store
            .show(&table, table.hash(b"k"), b"k", |seen| seen.is_some())
            .unwrap()
            .into_value()
    );
    assert_eq!((scanned(&store, &table), table.objects()), (0, 1));
    // One that is written over it counts as new, and yet has a higher version.
    let again = put_for(at, LogId(0), (b"k", b"w"), Lifetime::For(100)).unwrap();
    let Outcome::Written {
        version, replaced, ..
    } = *again.pending().outcome()
    else {
        panic!("it was written");
    };
    assert!(version > first && replaced == ObjectVersion(0));
    hands.pass(1_100);
    let dropped = sweep(&store, &table);
    assert_eq!((dropped.len(), store.expiry().dropped()), (1, 1));
    assert_eq!((table.objects(), store.space().stats().live_bytes), (0, 0));
    assert!(store.space().safe_version() > version);
    assert_eq!(store.expiry().noted(), 0);
}

// shows: EXPIRY-4
#[test]
fn a_key_is_noted_once_however_often_its_deadline_moves_away() {
    let hands = Hands::at(START_MS);
    let (store, table) = open(Durability::Volatile, &hands);
    let at = (&*store, &*table);
    for _ in 0..100 {
        let _ = put_for(at, LogId(0), (b"k", b"v"), Lifetime::For(1_000)).unwrap();
        hands.pass(500);
        assert!(sweep(&store, &table).is_empty());
        assert_eq!(store.expiry().noted(), 1);
    }
    // It comes nearer: then it needs a note of its own.
    let _ = put_for(at, LogId(0), (b"k", b"v"), Lifetime::For(1 << 40)).unwrap();
    hands.pass(2_000);
    assert!(sweep(&store, &table).is_empty());
    let sooner = touch(Lifetime::For(1_000), b"k");
    let _ = ops::apply(&store, LogId(0), &sooner, &table, None).unwrap();
    hands.pass(2_000);
    assert_eq!(sweep(&store, &table).len(), 1);
    // A note of one that lives for ever now is forgotten.
    let _ = put_for(at, LogId(0), (b"l", b"v"), Lifetime::For(1_000)).unwrap();
    let forever = touch(Lifetime::Endless, b"l");
    let _ = ops::apply(&store, LogId(0), &forever, &table, None).unwrap();
    hands.pass(5_000);
    assert!(sweep(&store, &table).is_empty());
    assert!(ops::read(&store, &table, b"l").is_some());
}

// shows: EXPIRY-2
#[test]
fn nothing_is_judged_by_a_time_that_is_not_durable() {
    let hands = Hands::at(START_MS);
    let (store, table) = open(Durability::Replicated, &hands);
    let mut replicas = Replicas::default();
    let at = (&*store, &*table);
    let written = put_for(at, LogId(0), (b"k", b"v"), Lifetime::For(100)).unwrap();
    assert_eq!(deadline(&store, &table, b"k"), Some(START_MS as i64 + 100));
    hands.pass(200);
    assert!(store.now() < UnixMs(START_MS), "no replica has a horizon");
    assert!(ops::read(&store, &table, b"k").is_some());
    replicas.sync(&store);
    assert!(store.confirm(&table, written).is_ok());
    assert_eq!(store.now(), hands.now());
    assert_eq!(ops::read(&store, &table, b"k"), None);
    // Later than the horizon it stands still until there is another one.
    hands.pass(100_000);
    let horizon = store.now();
    assert!(horizon < hands.now() && horizon == store.space().horizon());
    store.tend_horizon(LogId(1));
    assert_eq!(store.now(), horizon);
    replicas.sync(&store);
    assert_eq!(store.now(), hands.now());
    let images = replicas.recoverable();
    let (other, other_table) = open(Durability::Replicated, &Hands::at(START_MS - 3_600_000));
    let tablets = vec![(Arc::clone(&other_table), HashRange::ALL)];
    let mut replay = Replay::new(&other, LogId(0), tablets).unwrap();
    for image in &images {
        replay.replay(&entries_of(image), Duration::ZERO).unwrap();
    }
    assert!(replay.horizon() >= store.now());
}

// shows: EXPIRY-5
#[test]
fn a_tablet_that_is_not_durable_here_is_judged_by_the_horizon_of_its_last_owner() {
    let hands = Hands::at(START_MS);
    let (store, table) = open(Durability::Volatile, &hands);
    let at = (&*store, &*table);
    for (key, ms) in [(b"a", 100), (b"b", 300)] {
        let _ = put_for(at, LogId(0), (key, b"v"), Lifetime::For(ms)).unwrap();
    }
    hands.pass(1_000);
    let horizon = UnixMs(START_MS + 200);
    store.expiry().stand(table.id(), HashRange::ALL, horizon);
    assert_eq!(ops::read(&store, &table, b"a"), None);
    assert!(ops::read(&store, &table, b"b").is_some());
    assert_eq!(scanned(&store, &table), 1);
    store.expiry().stand_no_more(table.id(), HashRange::ALL);
    assert_eq!(ops::read(&store, &table, b"b"), None);
    assert_eq!(scanned(&store, &table), 0);
}

#[test]
fn a_store_in_place_keeps_no_deadlines_and_says_so() {
    let log = LogOptions {
        durability: Durability::Volatile,
        in_place: true,
        ..LogOptions::new(Size::mib(64))
    };
    let store = Engine::open(EngineOptions { log }).unwrap();
    let table = store.table(TableId(1), 7, HashRange::ALL).unwrap();
    let put = put_for((&store, &table), LogId(0), (b"k", b"v"), Lifetime::For(1));
    assert_eq!(put.unwrap_err(), EngineError::NoDeadlines);
    assert_eq!(ops::read(&store, &table, b"k"), None);
}

type Model = BTreeMap<Vec<u8>, (ObjectVersion, Option<Deadline>)>;

struct Run {
    store: Arc<Engine>,
    table: Arc<EngineTable>,
    hands: Hands,
    replicas: Replicas,
    model: Model,
    /// The highest version of each key that was seen as gone.
    gone: BTreeMap<Vec<u8>, ObjectVersion>,
    rng: TestRng,
    waiting: Vec<Awaited<Applied>>,
}

impl Run {
    fn new(seed: u8) -> Self {
        let hands = Hands::at(START_MS);
        let (store, table) = open(Durability::Replicated, &hands);
        Self {
            store,
            table,
            hands,
            replicas: Replicas::default(),
            model: Model::new(),
            gone: BTreeMap::new(),
            rng: TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]),
            waiting: Vec::new(),
        }
    }

    fn below(&mut self, most: u32) -> u32 {
        self.rng.next_u32() % most
    }

    /// The object that the model has under a key, at the time of the store.
    fn expected(&self, key: &[u8]) -> Option<(ObjectVersion, Option<Deadline>)> {
        let now = self.store.now();
        let known = self.model.get(key).copied();
        known.filter(|(_, deadline)| deadline.is_none_or(|at| !at.is_past(now)))
    }

    fn step(&mut self) {
        let key = format!("key-{}", self.below(300)).into_bytes();
        let log = LogId(self.below(2) as u16);
        let lifetime = match self.below(5) {
            0 => Lifetime::Endless,
            1 => Lifetime::Keep,
            2 => Lifetime::For(self.below(300).into()),
            _ => Lifetime::For(self.below(20_000).into()),
        };
        let before = self.expected(&key);
        self.check_read(&key, before);
        let now = self.hands.now();
        let until = lifetime.deadline(before.and_then(|(_, deadline)| deadline), now);
        let length = self.below(20_000) as usize;
        let value = vec![1; length];
        let mutation = match self.below(6) {
            0 => Mutation::new(TableId(1), &key, Change::Delete),
            1 => touch(lifetime, &key),
            _ => Mutation {
                lifetime,
                ..Mutation::new(TableId(1), &key, Change::Put(value[..].into()))
            },
        };
        let applied = match ops::apply(&self.store, log, &mutation, &self.table, None) {
            Ok(applied) => applied,
            Err(EngineError::Full { .. }) => return,
            Err(other) => panic!("{other}"),
        };
        let known = before.map_or(ObjectVersion(0), |(version, _)| version);
        match *applied.pending().outcome() {
            Outcome::Written {
                version, replaced, ..
            } => {
                assert_eq!(replaced, known);
                let highest = self.model.get(&key).map_or(ObjectVersion(0), |(v, _)| *v);
                assert!(version > highest, "STORE-1");
                self.model.insert(key, (version, until));
            }
            Outcome::Deleted { version, .. } => {
                assert_eq!(version, known);
                if version > ObjectVersion(0) {
                    self.gone.insert(key.clone(), version);
                    self.model.remove(&key);
                }
            }
            Outcome::Unchanged { version, .. } => assert_eq!(version, known),
            ref other => panic!("{other:?}"),
        }
        self.waiting.push(applied);
    }

    fn check_read(&mut self, key: &[u8], expected: Option<(ObjectVersion, Option<Deadline>)>) {
        let read = ops::read(&self.store, &self.table, key);
        let version = read.map(|(version, _)| version);
        assert_eq!(version, expected.map(|(version, _)| version));
        if let (None, Some((version, _))) = (expected, self.model.get(key)) {
            self.gone.insert(key.to_vec(), *version);
        }
    }

    fn settle(&mut self) {
        self.replicas.sync(&self.store);
        for applied in std::mem::take(&mut self.waiting) {
            if let Err(not_yet) = self.store.confirm(&self.table, applied) {
                self.waiting.push(not_yet.into());
            }
        }
    }
}

/// The next owner, whose clock is an hour behind.
fn recover(images: Vec<Vec<u8>>, hands: &Hands) -> (Arc<Engine>, Arc<EngineTable>, Replicas) {
    let (store, table) = open(Durability::Replicated, hands);
    let mut replicas = Replicas::default();
    let tablets = vec![(Arc::clone(&table), HashRange::ALL)];
    let mut replay = Replay::new(&store, LogId(0), tablets).unwrap();
    for image in &images {
        replay.replay(&entries_of(image), Duration::ZERO).unwrap();
    }
    let horizon = replay.horizon();
    let (side, _) = replay.finish();
    replicas.sync(&store);
    let _ = side.commit().expect("its segments are durable");
    replicas.sync(&store);
    store.go_on_from(horizon);
    (store, table, replicas)
}

/// Nothing is read meanwhile, and the clock comes nearer to the wall clock before anything is.
// shows: EXPIRY-2
#[test]
fn a_new_owner_judges_by_no_time_before_the_horizon_although_its_clock_is_led_back() {
    let hands = Hands::at(START_MS);
    let (store, _) = open(Durability::Replicated, &hands);
    hands.pass(100_000);
    let horizon = UnixMs(hands.now().0 + 10_000);
    store.space().raise_horizon(horizon);
    store.go_on_from(horizon);
    store.tend_horizon(LogId(0));
    assert!(store.now() >= horizon, "{}", store.now());
}

// shows: EXPIRY-1, EXPIRY-2, EXPIRY-3, EXPIRY-4
#[test]
fn what_was_seen_as_gone_stays_gone_with_a_cleaner_and_the_next_owners() {
    for seed in 0..3 {
        let mut run = Run::new(seed);
        let cleaner = run.store.cleaner(CleanerOptions::default());
        for i in 0..12_000 {
            run.step();
            run.hands.pass(run.rng.next_u32() as u64 % 8);
            if i % 7 == 0 {
                run.store.tend_horizon(LogId(0));
                run.settle();
            }
            if i % 50 == 0 {
                let dropped = sweep(&run.store, &run.table);
                run.waiting.extend(dropped);
            }
            let _ = cleaner.step(1).expect("memory is sound");
        }
        assert!(
            run.store.space().stats().cleaner.compactions > 0,
            "the cleaner had work"
        );
        run.store.tend_horizon(LogId(0));
        run.settle();
        assert!(run.waiting.is_empty());
        assert_eq!(run.store.now(), run.hands.now());
        let keys: Vec<Vec<u8>> = run.model.keys().cloned().collect();
        for key in &keys {
            let expected = run.expected(key);
            run.check_read(key, expected);
        }
        assert!(run.store.expiry().dropped() > 500, "seed {seed}");
        let there = keys
            .iter()
            .filter(|key| run.expected(key).is_some())
            .count();
        assert_eq!(scanned(&run.store, &run.table), there);

        let behind = Hands::at(START_MS - 3_600_000);
        let (second, table, replicas) = recover(run.replicas.recoverable(), &behind);
        assert!(second.now() >= run.store.now(), "seed {seed}");
        let (third, third_table, _) = recover(replicas.recoverable(), &behind);
        assert!(third.now() >= second.now(), "seed {seed}");
        for (store, table) in [(&second, &table), (&third, &third_table)] {
            let now = store.now();
            for (key, (version, until)) in &run.model {
                let read = ops::read(store, table, key).map(|(version, _)| version);
                let is_there = until.is_none_or(|until| !until.is_past(now));
                assert_eq!(read, is_there.then_some(*version), "seed {seed}");
                if is_there {
                    let ms = until.map_or(-1, |until| until.ms() as i64);
                    assert_eq!(deadline(store, table, key), Some(ms));
                }
            }
            for (key, version) in &run.gone {
                let read = ops::read(store, table, key);
                assert!(read.is_none_or(|(read, _)| read > *version), "seed {seed}");
            }
        }
        // The second owner drops what is due there: it knows of every deadline.
        behind.pass(3_600_000);
        second.tend_horizon(LogId(0));
        let mut replicas = replicas;
        replicas.sync(&second);
        let dropped = sweep(&second, &table);
        replicas.sync(&second);
        for one in dropped {
            assert!(second.confirm(&table, one).is_ok());
        }
        let endless = run.model.values().filter(|(_, until)| until.is_none());
        assert_eq!(table.objects(), endless.count() as u64, "seed {seed}");
        assert_eq!(table.bounded(), 0, "seed {seed}");
    }
}
