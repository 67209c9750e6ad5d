//! The embedded store against a map: random operations, sizes, policies and cleaner steps, in one
//! thread. A second table with large values keeps the memory so full that each step of the cleaner
//! has work.

use crate::disk::Disk;
use pluvio_store::{
    Cleaning, Experiments, KeyHashing, RejectRules, Size, Store, StoreError, StoreStats, Table,
    UpdatePolicy, Version,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::Cell;
use std::collections::BTreeMap;

const BALLAST_VALUE: usize = 100_000;
/// Rejects every object, and that there is none.
const NO_VERSION: RejectRules = RejectRules {
    version_not_equal: Some(Version(0)),
    ..RejectRules::ABSENT
};

/// Bytes of free memory with which a case begins, at most.
const SHORT: u64 = 3 << 20;

/// What one key holds: version and value.
type Model = BTreeMap<Vec<u8>, (Version, Vec<u8>)>;

#[derive(Clone, Debug)]
enum Step {
    Put {
        key: u16,
        len: usize,
        fill: u8,
    },
    PutIf {
        key: u16,
        len: usize,
        wanted: Wanted,
    },
    Delete {
        key: u16,
    },
    Increment {
        key: u16,
        by: i64,
    },
    PutBatch {
        keys: Vec<u16>,
        len: usize,
    },
    GetBatch {
        keys: Vec<u16>,
    },
    Walk,
    Clean {
        steps: usize,
    },
}

#[derive(Clone, Copy, Debug)]
enum Wanted {
    Absent,
    Exists,
    Current,
    Older,
}

fn key(number: u16) -> Vec<u8> {
    match number % 3 {
        0 => number.to_le_bytes().to_vec(),
        1 => format!("key number {number}").into_bytes(),
        _ => vec![number as u8; usize::from(number)],
    }
}

fn lens() -> impl Strategy<Value = usize> {
    prop_oneof![
        8 => 0..200_usize,
        3 => 0..10_000_usize,
        1 => 0..300_000_usize,
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let keys = || 0..120_u16;
    let some_keys = || prop::collection::vec(0..120_u16, 0..40);
    let wanted = prop_oneof![
        Just(Wanted::Absent),
        Just(Wanted::Exists),
        Just(Wanted::Current),
        Just(Wanted::Older),
    ];
    let step = prop_oneof![
        12 => (keys(), lens(), any::<u8>()).prop_map(|(key, len, fill)| Step::Put { key, len, fill }),
        3 => (keys(), lens(), wanted).prop_map(|(key, len, wanted)| Step::PutIf { key, len, wanted }),
        3 => keys().prop_map(|key| Step::Delete { key }),
        2 => (keys(), -5..9_i64).prop_map(|(key, by)| Step::Increment { key, by }),
        1 => (some_keys(), lens()).prop_map(|(keys, len)| Step::PutBatch { keys, len: len.min(20_000) }),
        2 => some_keys().prop_map(|keys| Step::GetBatch { keys }),
        1 => Just(Step::Walk),
        3 => (1..40_usize).prop_map(|steps| Step::Clean { steps }),
    ];
    prop::collection::vec(step, 1..400)
}

/// Tries again, cleaning in between, until there is room.
fn with_room<T>(
    store: &Store,
    mut attempt: impl FnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    for _ in 0..5_000_000 {
        match attempt() {
            Err(StoreError::Full { .. }) => {
                // Where there is nothing to clean, the sink may be what is waited for.
                if !store.clean_step() {
                    std::thread::yield_now();
                }
            }
            other => return other,
        }
    }
    panic!("no room although little is live: {:?}", store.stats());
}

struct World {
    store: Store,
    table: Table,
    model: Model,
    /// Newest version that each key ever had.
    newest: BTreeMap<Vec<u8>, Version>,
    /// Objects and bytes of other tables.
    before: (u64, u64),
}

impl World {
    fn note(&mut self, key: Vec<u8>, version: Version, value: Vec<u8>) {
        let before = self.newest.insert(key.clone(), version);
        assert!(
            before.is_none_or(|b| b < version),
            "versions of a key only grow: {before:?}, {version:?}"
        );
        self.model.insert(key, (version, value));
    }

    fn put(&mut self, number: u16, value: Vec<u8>) {
        let (key, table) = (key(number), self.table.clone());
        let version = with_room(&self.store, || table.put(&key, &value)).unwrap();
        self.note(key, version, value);
    }

    fn put_if(&mut self, number: u16, value: Vec<u8>, wanted: Wanted) {
        let (key, table) = (key(number), self.table.clone());
        let found = self.model.get(&key).map(|(version, _)| *version);
        let (condition, holds) = match wanted {
            Wanted::Absent => (RejectRules::EXISTS, found.is_none()),
            Wanted::Exists => (RejectRules::ABSENT, found.is_some()),
            Wanted::Current => {
                let version = found.unwrap_or(Version(1));
                (RejectRules::unless_version(version), found.is_some())
            }
            Wanted::Older => (NO_VERSION, false),
        };
        let done = with_room(&self.store, || table.put_if(&key, &value, condition));
        match done {
            Ok(version) if holds => self.note(key, version, value),
            Err(StoreError::Condition { found: told }) if !holds => assert_eq!(told, found),
            other => panic!("{condition:?} on {found:?}: {other:?}"),
        }
    }

    fn increment(&mut self, number: u16, by: i64) {
        let (key, table) = (key(number), self.table.clone());
        let value = self.model.get(&key).map(|(_, value)| value.clone());
        let before = match &value {
            None => Some(0),
            // A number is what printing it gives.
            Some(text) => std::str::from_utf8(text)
                .ok()
                .and_then(|text| Some((text, text.parse::<i64>().ok()?)))
                .filter(|(text, number)| *text == number.to_string())
                .map(|(_, number)| number),
        };
        let mut full = None;
        let done = with_room(&self.store, || match table.increment(&key, by) {
            Err(pluvio_store::IncrementError::Store(error)) => Err(error),
            other => {
                full = Some(other);
                Ok(())
            }
        });
        done.unwrap();
        match (before, full.unwrap()) {
            (Some(before), Ok(sum)) => {
                assert_eq!(sum, before + by);
                let version = table.get_with(&key, |version, _| version).unwrap();
                self.note(key, version, sum.to_string().into_bytes());
            }
            (None, Err(_)) => {}
            (before, other) => panic!("{before:?} + {by}: {other:?}"),
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Put { key, len, fill } => self.put(key, vec![fill; len]),
            Step::PutIf { key, len, wanted } => self.put_if(key, vec![9; len], wanted),
            Step::Delete { key: number } => {
                let key = key(number);
                let was_there = self.model.remove(&key).is_some();
                let deleted = with_room(&self.store, || self.table.delete(&key));
                assert_eq!(deleted, Ok(was_there));
            }
            Step::Increment { key, by } => self.increment(key, by),
            Step::PutBatch { keys, len } => {
                let value = vec![1; len];
                let own: Vec<Vec<u8>> = keys.iter().map(|n| key(*n)).collect();
                let mut at = 0;
                with_room(&self.store, || {
                    let pairs: Vec<_> = own[at..].iter().map(|k| (&k[..], &value[..])).collect();
                    self.table.put_batch(&pairs).map_err(|(done, error)| {
                        at += done;
                        error
                    })
                })
                .unwrap();
                for key in own {
                    let version = self.table.get_with(&key, |version, _| version).unwrap();
                    // A key that is twice in the batch has its last version.
                    self.newest.insert(key.clone(), version);
                    self.model.insert(key, (version, value.clone()));
                }
            }
            Step::GetBatch { keys } => {
                let own: Vec<Vec<u8>> = keys.iter().map(|n| key(*n)).collect();
                let wanted: Vec<&[u8]> = own.iter().map(|k| &k[..]).collect();
                let mut next = 0;
                self.table.get_batch(&wanted, |at, value| {
                    assert_eq!(at, next);
                    next += 1;
                    let expected = self.model.get(&own[at]).map(|(_, value)| &value[..]);
                    assert!(value == expected, "another value of {:?}", own[at]);
                });
                assert_eq!(next, keys.len());
            }
            Step::Walk => self.compare(),
            Step::Clean { steps } => {
                for _ in 0..steps {
                    if !self.store.clean_step() {
                        break;
                    }
                }
            }
        }
    }

    fn compare(&self) {
        let mut found: Vec<_> = self.table.iter().collect();
        found.sort();
        let expected = self.model.iter().map(|(k, (_, v))| (k.clone(), v.clone()));
        assert!(found == expected.collect::<Vec<_>>(), "the walk differs");
        for (key, (version, value)) in &self.model {
            let equal = self.table.get_with(key, |v, found| (v, found == value));
            assert_eq!(equal, Some((*version, true)));
            let mut copy = b"something else".to_vec();
            assert!(self.table.get_into(key, &mut copy) && copy == *value);
        }
        let stats = self.store.stats();
        let bytes = self.model.iter().map(|(k, (_, v))| k.len() + v.len());
        let (objects, object_bytes) = self.before;
        assert_eq!(stats.objects, objects + self.model.len() as u64);
        assert_eq!(
            stats.object_bytes,
            object_bytes + bytes.sum::<usize>() as u64
        );
    }
}

/// A store whose memory is short already: of the table "ballast" a part is dead, all over the log.
fn ballasted(update: UpdatePolicy, cleaning: Cleaning, disk: Option<&Disk>) -> Store {
    let mut builder = Store::builder()
        .memory(Size::mib(40))
        .heads(1)
        .cleaner_threads(0)
        .update(update)
        .experiments(Experiments {
            cleaning,
            ..Experiments::default()
        })
        .hashing(KeyHashing::Fast)
        .huge_pages(false);
    if let Some(disk) = disk {
        builder = builder.sink(disk.clone());
    }
    let store = builder.build().unwrap();
    let ballast = store.create_table("ballast").unwrap();
    let most = store.stats().live_bytes_max as usize * 4 / 5;
    let numbers = 0..most / BALLAST_VALUE;
    let write = |number: usize| {
        let key = number.to_le_bytes();
        // In place nothing dies by being overwritten: what is deleted and written again does.
        with_room(&store, || ballast.delete(&key)).unwrap();
        with_room(&store, || ballast.put(&key, &[number as u8; BALLAST_VALUE])).unwrap();
    };
    numbers.clone().for_each(write);
    let mut spread = numbers.step_by(7).cycle();
    while store.stats().free_bytes > SHORT {
        write(spread.next().unwrap());
    }
    store
}

/// The ballast is as it was, wherever it lies now.
fn check_ballast(store: &Store) {
    let ballast = store.table("ballast").unwrap();
    for (key, value) in ballast.iter() {
        assert!(value == [key[0]; BALLAST_VALUE], "ballast {key:?}");
    }
}

/// Gives what the store did.
fn run(
    update: UpdatePolicy,
    cleaning: Cleaning,
    disk: Option<&Disk>,
    steps: Vec<Step>,
) -> StoreStats {
    let store = ballasted(update, cleaning, disk);
    let table = store.create_table("model").unwrap();
    let before = (store.stats().objects, store.stats().object_bytes);
    let mut world = World {
        store,
        table,
        model: Model::new(),
        newest: BTreeMap::new(),
        before,
    };
    for step in steps {
        world.step(step);
    }
    world.compare();
    check_ballast(&world.store);
    if let Some(disk) = disk {
        world.store.sync().unwrap();
        let table = world.table.id();
        let kept = disk.read_back().unwrap().objects.into_iter();
        let own = kept.filter(|object| object.table == table);
        let found: BTreeMap<_, _> = own.map(|object| (object.key, object.value)).collect();
        let expected = world.model.iter().map(|(k, (_, v))| (k.clone(), v.clone()));
        assert!(found == expected.collect(), "the sink differs");
    }
    world.store.stats()
}

/// As many cases as `PLUVIO_STEPS` steps take, of 200 steps each on average (`cargo xtask
/// long-tests`), or as `PROPTEST_CASES` says.
fn cases() -> ProptestConfig {
    if let Ok(steps) = std::env::var("PLUVIO_STEPS") {
        let steps: u32 = steps.parse().expect("PLUVIO_STEPS is a number of steps");
        return ProptestConfig::with_cases(steps.div_ceil(200));
    }
    match std::env::var("PROPTEST_CASES") {
        Ok(_) => ProptestConfig::default(),
        Err(_) => ProptestConfig::with_cases(100),
    }
}

/// Runs the cases; the cleaner must have had work in a good part of them.
fn run_cases(update: UpdatePolicy, cleaning: Cleaning, with_sink: bool) {
    let config = ProptestConfig {
        failure_persistence: None,
        ..cases()
    };
    let cases = config.cases;
    let (compacted, combined) = (Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new(config);
    let done = runner.run(&steps(), |steps| {
        let disk = with_sink.then(Disk::default);
        let stats = run(update, cleaning, disk.as_ref(), steps);
        compacted.set(compacted.get() + u32::from(stats.cleaner.compactions > 0));
        combined.set(combined.get() + u32::from(stats.cleaner.passes > 0));
        Ok(())
    });
    if let Err(failed) = done {
        panic!("{failed}");
    }
    let (compacted, combined) = (compacted.get(), combined.get());
    println!("of {cases} cases: compactions in {compacted}, combined passes in {combined}");
    assert!(compacted.max(combined) * 4 > cases, "the cleaner had work");
}

#[test]
fn an_appending_store_equals_the_model() {
    run_cases(UpdatePolicy::Append, Cleaning::TwoLevel, false);
}

#[test]
fn a_store_with_a_sink_equals_the_model() {
    run_cases(UpdatePolicy::Append, Cleaning::TwoLevel, true);
}

#[test]
fn a_store_with_a_sink_and_one_level_equals_the_model() {
    run_cases(UpdatePolicy::Append, Cleaning::OneLevel, true);
}

#[test]
fn a_store_that_updates_in_place_equals_the_model() {
    run_cases(UpdatePolicy::InPlace, Cleaning::TwoLevel, false);
}
