//! Reads through mapped memory in one process: against a model, beside writers and the cleaner, and
//! at the end of things.

#![allow(clippy::unwrap_used)]

mod support;

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use pluvio_door::{Door, DoorError, DoorOptions};
use pluvio_index::{IndexReader, Lookup};
use pluvio_log::{LogReader, ReadEntry};
use pluvio_mapped::{Answer, ReadError, Reader, Why};
use pluvio_memory::{GateView, NotCounted};
use pluvio_store::{
    KeyHashing, Lifetime, ReplicaSink, SegmentId, SinkAnswer, SinkError, SinkWrite, Size, Store,
    UpdatePolicy,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use support::{Shared, count_of, put, value_of};

fn random(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(0xd134_2543_de82_ef95)
        .wrapping_add(0x2545_f491_4f6c_dd1d);
    (*state ^ *state >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 8
}

/// Lengths from nothing to some seglets.
fn length(state: &mut u64) -> usize {
    let most = [20, 100, 1_000, 70_000, 300_000][random(state) as usize % 5];
    random(state) as usize % most
}

// shows: MAP-1
#[test]
fn every_read_gives_what_the_store_has() {
    let shared = Shared::new(Size::mib(64));
    let table = shared.store.create_table("t").unwrap();
    let mapped = shared.reader().table("t").unwrap();
    let mut model = BTreeMap::<u64, Vec<u8>>::new();
    let (mut state, mut into) = (1, Vec::new());
    for _step in 0..6_000 {
        let key = random(&mut state) % 400;
        let name = key.to_string();
        if random(&mut state).is_multiple_of(4) {
            table.delete(name.as_bytes()).unwrap();
            model.remove(&key);
        } else {
            let len = length(&mut state);
            let value: Vec<u8> = (0..len).map(|at| (at as u64 ^ key) as u8).collect();
            put(&table, name.as_bytes(), &value);
            model.insert(key, value);
        }
        for key in [key, random(&mut state) % 400] {
            let found = mapped
                .version_into(key.to_string().as_bytes(), &mut into)
                .unwrap();
            let version = table.get_with(key.to_string().as_bytes(), |version, _| version);
            assert_eq!(found, version);
            assert_eq!(found.map(|_| &into), model.get(&key), "key {key}");
        }
    }
    assert!(
        shared.store.stats().cleaner.bytes_cleaned > 0,
        "nothing was cleaned"
    );
}

/// One writer for each key, and readers: a read that begins after a write ended sees it, and no
/// reader goes back. The memory is small, so it is used again all the time.
// shows: M4
#[test]
fn readers_beside_writers_and_the_cleaner_see_each_write_once_it_is_done() {
    const KEYS: u64 = 512;
    const ROUNDS: u64 = 100;
    let shared = Shared::new(Size::mib(40));
    let table = shared.store.create_table("t").unwrap();
    let done: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    for key in 0..KEYS {
        put(&table, &key.to_le_bytes(), &value_of(key, 0, 16));
    }
    let (over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let mapped = shared.reader().table("t").unwrap();
    std::thread::scope(|threads| {
        for reader in 0..2_u64 {
            let (mapped, done, over, reads) = (mapped.clone(), &done, &over, &reads);
            threads.spawn(move || {
                let (mut state, mut into) = (reader, Vec::new());
                let mut seen = vec![0; KEYS as usize];
                while !over.load(Ordering::Relaxed) {
                    let key = random(&mut state) % KEYS;
                    let before = done[key as usize].load(Ordering::Acquire);
                    assert!(mapped.get_into(&key.to_le_bytes(), &mut into).unwrap());
                    let count = count_of(key, &into);
                    let least = before.max(seen[key as usize]);
                    assert!(count >= least, "key {key}: {count} after {least}");
                    seen[key as usize] = count;
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut state = 7;
        for count in 1..=ROUNDS {
            for key in 0..KEYS {
                let len = length(&mut state).min(20_000);
                put(&table, &key.to_le_bytes(), &value_of(key, count, len));
                done[key as usize].store(count, Ordering::Release);
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(reads.load(Ordering::Relaxed) > 0);
    assert!(
        shared.store.stats().cleaner.bytes_cleaned > 0,
        "nothing was cleaned"
    );
}

/// A read stands still in the middle until all memory was used again. Nobody waits for it, and its
/// copy does not count.
// shows: M4
#[test]
fn a_copy_of_memory_that_was_used_again_does_not_count() {
    let shared = Shared::new(Size::mib(32));
    let table = shared.store.create_table("t").unwrap();
    let overwrite = |count| {
        for key in 0..512_u64 {
            put(&table, &key.to_le_bytes(), &value_of(key, count, 4_000));
        }
    };
    overwrite(0);
    let readable = shared.store.engine().space().for_readers().unwrap();
    let gate = GateView::open(readable.gate.file(), readable.gate.bytes()).unwrap();
    let log = LogReader::open(readable.bytes, readable.table).unwrap();
    let map = shared.store.readable();
    let (id, hash) = (map.tables[0].id, map.tables[0].hash);
    let (layout, file) = map.tables[0].indexes[0].1.for_readers().unwrap();
    let index = IndexReader::open(file, layout).unwrap();
    let (key, mut into) = (7_u64.to_le_bytes(), Vec::new());
    let mut find = || {
        let found = index.lookup(hash.of(&key), |slot| {
            let read = log.read(slot.entry, (id, &key), &mut into);
            matches!(read, ReadEntry::Object { .. }).then_some(slot.entry)
        });
        match found {
            Lookup::Found(entry) => entry,
            other => panic!("{other:?}"),
        }
    };
    let since = gate.begin();
    let entry = find();
    assert_eq!(gate.check(since, map.version), Ok(()));
    let cleaned = || shared.store.stats().cleaner.bytes_cleaned;
    let (before, mut count) = (cleaned(), 0);
    while cleaned() < before + (80 << 20) {
        count += 1;
        overwrite(count);
    }
    let _rubbish = log.read(entry, (id, &key), &mut Vec::new());
    assert_eq!(gate.check(since, map.version), Err(NotCounted::Reused));
    // It begins anew.
    let since = gate.begin();
    find();
    assert_eq!(gate.check(since, map.version), Ok(()));
    assert_eq!(count_of(7, &into), count);
}

#[test]
fn tables_come_and_go_under_a_reader() {
    let shared = Shared::new(Size::mib(64));
    let mapped = shared.reader();
    assert!(matches!(mapped.table("a"), Err(ReadError::UnknownTable(_))));
    let tables: Vec<_> = (0..40)
        .map(|n| shared.store.create_table(&n.to_string()).unwrap())
        .collect();
    for table in &tables {
        table.put(b"key", table.name().as_bytes()).unwrap();
        let found = mapped.table(table.name()).unwrap().get(b"key").unwrap();
        assert_eq!(found.as_deref(), Some(table.name().as_bytes()));
    }
    let (kept, gone) = (mapped.table("1").unwrap(), mapped.table("2").unwrap());
    assert!(shared.store.drop_table("2"));
    assert!(matches!(gone.get(b"key"), Err(ReadError::UnknownTable(_))));
    assert_eq!(kept.get(b"key").unwrap().as_deref(), Some(&b"1"[..]));
    // Another table of that name is not the one that was dropped.
    let again = shared.store.create_table("2").unwrap();
    again.put(b"other", b"new").unwrap();
    assert!(gone.get(b"key").is_err());
    assert_eq!(mapped.table("2").unwrap().get(b"key").unwrap(), None);
}

// shows: GATE-2
#[test]
fn nothing_counts_once_the_door_is_closed() {
    let mut shared = Shared::new(Size::mib(64));
    let table = shared.store.create_table("t").unwrap();
    table.put(b"key", b"1").unwrap();
    let mapped = shared.reader().table("t").unwrap();
    let reader = Reader::open(&shared.place).unwrap();
    let id = reader.table_named("t").unwrap();
    assert!(mapped.get(b"key").unwrap().is_some());
    drop(core::mem::replace(&mut shared.door, {
        let other = shared.place.with_extension("other");
        Door::open(
            other,
            Arc::new(shared.store.clone()),
            DoorOptions::default(),
        )
        .unwrap()
    }));
    assert!(matches!(mapped.get(b"key"), Err(ReadError::Gone(_))));
    let answer = reader.read(id, b"key", &mut Vec::new());
    assert!(
        matches!(answer, Answer::Ask(Why::OldMap | Why::NotFresh)),
        "{answer:?}"
    );
    assert!(reader.is_stale() && reader.refresh().is_err());
    // A new door at the old place.
    let options = DoorOptions::default();
    let _door = Door::open(&shared.place, Arc::new(shared.store.clone()), options).unwrap();
    table.put(b"key", b"2").unwrap();
    assert_eq!(mapped.get(b"key").unwrap().as_deref(), Some(&b"2"[..]));
}

#[test]
fn a_deadline_is_judged_by_the_owners_clock() {
    let shared = Shared::new(Size::mib(64));
    let table = shared.store.create_table("t").unwrap();
    let mapped = shared.reader().table("t").unwrap();
    let (long, short) = (Lifetime::For(3_600_000), Lifetime::For(30));
    table.put_for(b"long", b"1", long).unwrap();
    table.put_for(b"short", b"1", short).unwrap();
    // An object that is gone for the owner is gone.
    while table.get(b"short").is_some() {
        std::thread::yield_now();
    }
    assert_eq!(mapped.get(b"short").unwrap(), None);
    assert!(mapped.get(b"long").unwrap().is_some());
    // And the owner's clock goes on without its reads.
    table.put_for(b"short", b"1", short).unwrap();
    while mapped.get(b"short").unwrap().is_some() {
        std::thread::yield_now();
    }
    assert_eq!(table.get(b"short"), None);
}

/// A sink that takes nothing: an embedded store shows what was written.
struct Closed;

impl ReplicaSink for Closed {
    fn write(&mut self, _: &SinkWrite<'_>) -> Result<SinkAnswer, SinkError> {
        Err(SinkError("closed".into()))
    }

    fn close(&mut self, _: pluvio_store::LogId, _: SegmentId) -> Result<(), SinkError> {
        Ok(())
    }

    fn free(&mut self, _: pluvio_store::LogId, _: SegmentId) -> Result<(), SinkError> {
        Ok(())
    }
}

#[test]
fn a_store_with_a_sink_shows_what_was_written_and_what_was_deleted() {
    let builder = Store::builder().memory(Size::mib(128)).sink(Closed);
    let shared = Shared::with(builder, DoorOptions::default());
    let table = shared.store.create_table("t").unwrap();
    let mapped = shared.reader().table("t").unwrap();
    table.put(b"key", b"1").unwrap();
    assert_eq!(mapped.get(b"key").unwrap().as_deref(), Some(&b"1"[..]));
    table.delete(b"key").unwrap();
    assert_eq!(mapped.get(b"key").unwrap(), None);
}

#[test]
fn what_cannot_be_shared_is_refused() {
    let shared = |builder: pluvio_store::StoreBuilder| builder.memory(Size::mib(64)).shared(true);
    let in_place = Store::builder().update(UpdatePolicy::InPlace);
    let keyed = Store::builder().hashing(KeyHashing::Keyed);
    assert!(shared(in_place).build().is_err() && shared(keyed).build().is_err());
    let private = Arc::new(Store::builder().memory(Size::mib(64)).build().unwrap());
    let place = std::env::temp_dir().join("pluvio-no-door");
    let refused = Door::open(&place, private, DoorOptions::default());
    assert!(matches!(refused, Err(DoorError::NotShared)));
    let one = Shared::new(Size::mib(64));
    let taken = Door::open(
        &one.place,
        Arc::new(one.store.clone()),
        DoorOptions::default(),
    );
    assert!(matches!(taken, Err(DoorError::InUse(_))));
    let file = one.place.with_extension("file");
    std::fs::write(&file, "mine").unwrap();
    let taken = Door::open(&file, Arc::new(one.store.clone()), DoorOptions::default());
    assert!(matches!(taken, Err(DoorError::InUse(_))));
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
}
