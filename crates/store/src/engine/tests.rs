//! What is refused when an index has no room: before anything is appended.

use super::*;
use crate::replay::{Replay, ReplayError};
use pluvio_format::{Encoded, Graves, Object, ObjectState, Tombstone};
use pluvio_log::{Awaited, LogOptions};
use pluvio_mutation::{Change, Get, Mutation, Outcome};
use pluvio_units::{ObjectVersion, SegmentId, Size};

/// An index of two blocks, whose chains share what its memory is rounded up by: a thousand lines.
const ENTRIES: u64 = 20;
/// More keys than it has room for.
const KEYS: u64 = 20_000;

fn store(durability: Durability) -> (Arc<Engine>, Arc<EngineTable>) {
    let log = LogOptions {
        durability,
        ..LogOptions::new(Size::mib(64))
    };
    let store = Engine::with_index_entries(EngineOptions { log }, ENTRIES).unwrap();
    let table = store.table(TableId(1), 7, HashRange::ALL).unwrap();
    (store, table)
}

fn apply(
    store: &Engine,
    table: &EngineTable,
    key: u64,
    change: Change<'_>,
) -> Result<Awaited<Applied>, EngineError> {
    let key = key.to_le_bytes();
    let site = Site {
        log: LogId(0),
        table,
        hash: table.hash(&key),
        now_s: 1,
        only_this_log: false,
    };
    store.apply(&site, &Mutation::new(table.id(), &key, change), None)
}

fn put(store: &Engine, table: &EngineTable, key: u64) -> Result<Awaited<Applied>, EngineError> {
    apply(store, table, key, Change::Put(b"value".as_slice().into()))
}

fn delete(store: &Engine, table: &EngineTable, key: u64) -> Result<Awaited<Applied>, EngineError> {
    apply(store, table, key, Change::Delete)
}

fn is_there(store: &Engine, table: &EngineTable, key: u64) -> bool {
    let key = key.to_le_bytes();
    let get = Get::new(table.id(), &key);
    let outcome = store.get(table, table.hash(&key), &get).unwrap();
    matches!(outcome.pending(), Outcome::Unchanged { version, .. } if *version > ObjectVersion(0))
}

/// An object of some keys, a tombstone of the others.
fn recovered(key: u64) -> Vec<u8> {
    let bytes = key.to_le_bytes();
    let (table, version, timestamp_s) = (TableId(1), ObjectVersion(1), 1);
    let entry = if key.is_multiple_of(2) {
        Entry::Object(Object {
            table,
            version,
            timestamp_s,
            graves: Graves::NONE,
            deadline: None,
            state: ObjectState::Plain,
            key: &bytes,
            value: b"value",
        })
    } else {
        Entry::Tombstone(Tombstone {
            table,
            version,
            segment: SegmentId(1),
            timestamp_s,
            key: &bytes,
        })
    };
    Encoded::new(&entry, false).unwrap().to_vec()
}

#[test]
fn an_object_that_finds_no_room_in_the_index_is_refused_and_nothing_is_appended() {
    for durability in [Durability::Volatile, Durability::Replicated] {
        let (store, table) = store(durability);
        let full = (0..KEYS).find(|key| put(&store, &table, *key).is_err());
        let full = full.expect("an index with room for fewer");
        assert!(full >= ENTRIES, "{full} entries found room");
        let sizes = || {
            let log = store.space().stats();
            (store.stats(), log.live_bytes, log.log_bytes)
        };
        let before = sizes();
        let refused = put(&store, &table, full).unwrap_err();
        let retry_after = INDEX_FULL_RETRY;
        assert_eq!(refused, EngineError::Full { retry_after });
        assert_eq!(sizes(), before);
        assert_eq!(before.0.objects, full);
        assert!(!is_there(&store, &table, full));
        // An overwrite needs no room.
        let _ = put(&store, &table, 0).unwrap();
        assert!(is_there(&store, &table, 0));
        match durability {
            Durability::Volatile => {
                for key in 0..full / 2 {
                    let _ = delete(&store, &table, key).unwrap();
                }
                let _ = put(&store, &table, full).unwrap();
                assert_eq!(table.objects(), full - full / 2 + 1);
            }
            // A tombstone keeps its slot until it is durable.
            Durability::Replicated => {
                let _ = delete(&store, &table, 0).unwrap();
            }
        }
    }
}

#[test]
fn a_replay_that_fills_an_index_is_refused_as_where_memory_is_full() {
    let (store, table) = store(Durability::Volatile);
    let tablets = vec![(Arc::clone(&table), HashRange::ALL)];
    let mut replay = Replay::new(&store, LogId(0), tablets).unwrap();
    let mut replayed = |key| replay.replay(&recovered(key), Duration::ZERO);
    // An object and a tombstone find no room.
    for parity in [0, 1] {
        let mut keys = (0..KEYS).filter(|key| key % 2 == parity);
        let (full, refused) = keys
            .find_map(|key| Some((key, replayed(key).err()?)))
            .expect("an index with room for fewer");
        let retry_after = INDEX_FULL_RETRY;
        let expected = ReplayError::Engine(EngineError::Full { retry_after });
        assert_eq!(refused, expected);
        let before = store.space().stats().log_bytes;
        assert_eq!(replayed(full), Err(expected));
        assert_eq!(store.space().stats().log_bytes, before);
    }
    assert_eq!(replay.load().objects, table.objects());
    replay.abort();
    assert_eq!(table.objects(), 0);
    assert_eq!(store.space().stats().live_bytes, 0);
}
