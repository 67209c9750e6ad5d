//! Tables of tablets that are dropped while somebody has them.

use crate::ops;
use pluvio_log::{Awaited, CleanerOptions, Durability, LogOptions};
use pluvio_store::{Applied, Engine, EngineError, EngineOptions, EngineTable, Replay, ReplayError};
use pluvio_units::{HashRange, LogId, ObjectVersion, Pace, Rank, Size, TableId};
use std::sync::{Arc, Barrier};
use std::thread;

/// The time of the replay.
const NOW: core::time::Duration = core::time::Duration::ZERO;
/// Threads that write to a table until it is gone.
const WRITERS: usize = 4;
/// Keys of each of them.
const KEYS: u64 = 50;
/// Tables, one after the other: together they do not fit the memory.
const TABLES: u64 = 200;
/// Steps of the cleaner after each table.
const STEPS: usize = 100;

fn open() -> Arc<Engine> {
    let log = LogOptions {
        durability: Durability::Volatile,
        ..LogOptions::new(Size::mib(48))
    };
    Engine::open(EngineOptions { log }).unwrap()
}

fn put(store: &Engine, table: &EngineTable, key: &str) -> Result<Awaited<Applied>, EngineError> {
    ops::put(store, table, LogId(0), key.as_bytes(), &[7; 2000])
}

/// Otherwise the bytes of what came too late would be counted as live for ever.
#[test]
fn nothing_that_is_written_while_a_table_is_dropped_stays_alive() {
    let store = open();
    let cleaner = store.cleaner(CleanerOptions::default());
    for id in 1..=TABLES {
        let table = store.table(TableId(id), 7, HashRange::ALL).unwrap();
        let begin = Barrier::new(WRITERS + 1);
        thread::scope(|scope| {
            let write = |writer: usize| {
                let (store, table, begin, cleaner) = (&store, &table, &begin, &cleaner);
                scope.spawn(move || {
                    begin.wait();
                    for n in 0_u64.. {
                        match put(store, table, &format!("{writer} {}", n % KEYS)) {
                            Ok(_) => {}
                            Err(EngineError::Full { .. }) => {
                                let _ = cleaner.step(1).expect("memory is sound");
                            }
                            Err(EngineError::NotHere) => return,
                            Err(other) => panic!("{other}"),
                        }
                    }
                })
            };
            let writers: Vec<_> = (0..WRITERS).map(write).collect();
            begin.wait();
            let has_failed = || writers.iter().any(|writer| writer.is_finished());
            while table.objects() < WRITERS as u64 * KEYS && !has_failed() {
                thread::yield_now();
            }
            store.drop_table(table.id());
        });
        assert_eq!(
            (table.objects(), table.object_bytes()),
            (0, 0),
            "table {id}"
        );
        assert_eq!(store.space().stats().live_bytes, 0, "table {id}");
        for _ in 0..STEPS {
            if cleaner.step(1).expect("memory is sound") != Pace::Again {
                break;
            }
        }
    }
    assert!(store.space().stats().cleaner.passes > 0);
}

/// Who has the table still, as a recovery that began before has, can make an index for it.
#[test]
fn nothing_comes_into_a_table_that_was_dropped_before() {
    let store = open();
    let table = store.table(TableId(1), 7, HashRange::ALL).unwrap();
    let _ = put(&store, &table, "key").unwrap();
    store.drop_table(TableId(1));
    let tablets = vec![(Arc::clone(&table), HashRange::ALL)];
    let mut replay = Replay::new(&store, LogId(0), tablets).unwrap();

    let other = open();
    let source = other.table(TableId(1), 7, HashRange::ALL).unwrap();
    let _ = put(&other, &source, "another").unwrap();
    let object = other
        .copy_objects(&source, HashRange::ALL, Rank(0), 10_000)
        .data;
    let mut tombstone = Vec::new();
    let deleted = Some(ObjectVersion(3));
    other.copy_change(&source, b"gone", deleted, 1, &mut tombstone);
    for entry in [object, tombstone] {
        assert!(!entry.is_empty());
        let refused = replay.replay(&entry, NOW);
        assert_eq!(refused, Err(ReplayError::Foreign(TableId(1))));
    }
    let written = put(&store, &table, "key");
    assert!(
        matches!(written, Err(EngineError::NotHere)),
        "{written:?} in a table that is gone"
    );
    assert_eq!(ops::read(&store, &table, b"key"), None);
    replay.abort();
    assert_eq!(table.objects(), 0);
    assert_eq!(store.space().stats().live_bytes, 0);
}
