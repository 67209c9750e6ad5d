//! Memory that is shared goes back to the system: beside readers, under one that stands still, and
//! at the end of a table.

#![allow(clippy::unwrap_used)]

mod support;

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use pluvio_door::DoorOptions;
use pluvio_index::{IndexReader, Lookup};
use pluvio_log::{LogReader, ReadEntry};
use pluvio_mapped::ReadError;
use pluvio_memory::{GateView, NotCounted};
use pluvio_store::{Size, Store, Table};
use rustix::fd::BorrowedFd;
use std::time::{Duration, Instant};
use support::{Shared, count_of, put, value_of};

/// A store keeps its memory for some seconds after it was written, and a tested machine is slow.
const PATIENCE: Duration = Duration::from_secs(120);

const KEYS: u64 = 20_000;
const LEN: usize = 4_000;

fn bytes_of(file: BorrowedFd<'_>) -> u64 {
    u64::try_from(rustix::fs::fstat(file).unwrap().st_blocks).unwrap() * 512
}

/// Bytes of the log's file that the system has given pages for.
fn log_bytes(store: &Store) -> u64 {
    let readable = store.engine().space().for_readers().unwrap();
    bytes_of(readable.bytes.0)
}

/// The same of the index of the table that comes first.
fn index_bytes(store: &Store) -> u64 {
    let map = store.readable();
    bytes_of(map.tables[0].indexes[0].1.for_readers().unwrap().1)
}

#[allow(clippy::disallowed_methods)] // real threads give the memory back, in real time
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether memory goes back on this machine.
fn gives_back() -> bool {
    let promised = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap();
    let gives = promised.trim() != "2";
    if !gives {
        println!("skipped: vm.overcommit_memory is 2");
    }
    gives
}

fn fill(table: &Table, count: u64, keys: impl Iterator<Item = u64>) {
    for key in keys {
        put(table, &key.to_le_bytes(), &value_of(key, count, LEN));
    }
}

/// Most is deleted, and later comes again, while others read. Each finds the truth.
// shows: M5
#[test]
fn memory_goes_back_and_comes_again_while_others_read() {
    if !gives_back() {
        return;
    }
    let shared = Shared::new(Size::mib(160));
    let store = &shared.store;
    let table = store.create_table("t").unwrap();
    fill(&table, 1, 0..KEYS);
    let full = log_bytes(store);
    assert!(full > KEYS * LEN as u64, "{full}");
    // The round of the keys that come and go: none is read for absent while they are there.
    let (over, round, reads) = (AtomicBool::new(false), AtomicU64::new(1), AtomicU64::new(0));
    let mapped = shared.reader().table("t").unwrap();
    std::thread::scope(|threads| {
        for reader in 0..2 {
            let (mapped, over, round, reads) = (mapped.clone(), &over, &round, &reads);
            threads.spawn(move || {
                let (mut key, mut into) = (reader, Vec::new());
                while !over.load(Ordering::Relaxed) {
                    key = (key + 7_919) % KEYS;
                    let before = round.load(Ordering::Acquire);
                    let is_there = mapped.get_into(&key.to_le_bytes(), &mut into).unwrap();
                    let after = round.load(Ordering::Acquire);
                    match (is_there, key % 10) {
                        (true, _) => assert!((1..=after + 1).contains(&count_of(key, &into))),
                        (false, 0) => panic!("key {key} is always there"),
                        // Odd rounds have all keys.
                        (false, _) => assert!(before != after || before.is_multiple_of(2)),
                    }
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // The last one stops the readers also if this thread panics.
        let stop = Stop(&over);
        round.store(2, Ordering::Release);
        for key in (0..KEYS).filter(|key| key % 10 != 0) {
            assert!(table.delete(&key.to_le_bytes()).unwrap());
        }
        wait_until("no memory goes back", || log_bytes(store) < full / 3);
        let before = reads.load(Ordering::Relaxed);
        wait_until("nobody reads", || {
            reads.load(Ordering::Relaxed) > before + 1000
        });
        fill(&table, 3, (0..KEYS).filter(|key| key % 10 != 0));
        round.store(3, Ordering::Release);
        assert!(log_bytes(store) > KEYS * LEN as u64);
        let before = reads.load(Ordering::Relaxed);
        wait_until("nobody reads", || {
            reads.load(Ordering::Relaxed) > before + 1000
        });
        drop(stop);
    });
    assert!(store.stats().cleaner.bytes_given_back > 0);
}

/// Ends a loop of other threads when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A read stands still in the middle, and what it looks at goes back to the system. It finds
/// zeroes, which do not count.
// shows: M5
#[test]
fn a_copy_of_memory_that_went_back_does_not_count() {
    if !gives_back() {
        return;
    }
    let shared = Shared::new(Size::mib(64));
    let table = shared.store.create_table("t").unwrap();
    fill(&table, 1, 0..8_000);
    let readable = shared.store.engine().space().for_readers().unwrap();
    let gate = GateView::open(readable.gate.file(), readable.gate.bytes()).unwrap();
    let log = LogReader::open(readable.bytes, readable.table).unwrap();
    let map = shared.store.readable();
    let (id, hash) = (map.tables[0].id, map.tables[0].hash);
    let (layout, file) = map.tables[0].indexes[0].1.for_readers().unwrap();
    let index = IndexReader::open(file, layout).unwrap();
    let since = gate.begin();
    let read = |key: u64, entry, into: &mut Vec<u8>| {
        let found = log.read(entry, (id, &key.to_le_bytes()), into);
        matches!(found, ReadEntry::Object { .. })
    };
    let look_up = |key: u64| {
        index.lookup(hash.of(&key.to_le_bytes()), |slot| {
            read(key, slot.entry, &mut Vec::new()).then_some(slot.entry)
        })
    };
    // Some of the memory stays, and some is used again. So a few keys are looked at.
    let entries: Vec<_> = (0..8_000)
        .step_by(100)
        .map(|key| match look_up(key) {
            Lookup::Found(entry) => (key, entry),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(gate.check(since, map.version), Ok(()));
    for key in 0..8_000_u64 {
        assert!(table.delete(&key.to_le_bytes()).unwrap());
    }
    // The file tells; a look at the memory would make a page.
    let is_hole = |offset: u64| {
        let data = rustix::fs::seek(readable.bytes.0, rustix::fs::SeekFrom::Data(offset));
        !matches!(data, Ok(at) if at == offset)
    };
    let mut hole = None;
    wait_until("the memory does not go back", || {
        hole = entries.iter().find(|(_, entry)| is_hole(entry.offset()));
        hole.is_some()
    });
    let (key, entry) = *hole.unwrap();
    assert!(!read(key, entry, &mut Vec::new()), "zeroes are no object");
    assert_eq!(gate.check(since, map.version), Err(NotCounted::Reused));
    // It begins anew.
    let since = gate.begin();
    assert_eq!(look_up(key), Lookup::Absent);
    assert_eq!(gate.check(since, map.version), Ok(()));
}

#[test]
fn the_memory_of_an_index_goes_back_when_it_is_shorter_and_with_its_table() {
    if !gives_back() {
        return;
    }
    let builder = Store::builder().memory(Size::mib(128));
    let shared = Shared::with(builder, DoorOptions::default());
    let table = shared.store.create_table("t").unwrap();
    let mapped = shared.reader().table("t").unwrap();
    let value_of = |key: u64| key.to_le_bytes();
    for key in 0..200_000_u64 {
        put(&table, &key.to_le_bytes(), &value_of(key));
    }
    let full = index_bytes(&shared.store);
    assert!(full > 1 << 20, "{full}");
    let mut into = Vec::new();
    for key in 1_000..200_000_u64 {
        assert!(table.delete(&key.to_le_bytes()).unwrap());
        let other = key * 7_919 % 200_000;
        let is_there = mapped.get_into(&other.to_le_bytes(), &mut into).unwrap();
        assert_eq!(is_there, other < 1_000 || other > key, "key {other}");
        assert!(!is_there || into == value_of(other));
    }
    let small = index_bytes(&shared.store);
    assert!(small < full / 4, "{small} of {full}");
    // It grows again into memory without pages.
    for key in 0..200_000_u64 {
        put(&table, &key.to_le_bytes(), &value_of(key));
    }
    assert!(index_bytes(&shared.store) > full / 2);
    for key in 0..200_000_u64 {
        let is_there = mapped.get_into(&key.to_le_bytes(), &mut into).unwrap();
        assert!(is_there && into == value_of(key), "key {key}");
    }
    // A reader keeps its mapping of the index, and no memory.
    let file = {
        let map = shared.store.readable();
        let (_, file) = map.tables[0].indexes[0].1.for_readers().unwrap();
        file.try_clone_to_owned().unwrap()
    };
    drop(table);
    assert!(shared.store.drop_table("t"));
    wait_until("the index of a dropped table stays", || {
        bytes_of(rustix::fd::AsFd::as_fd(&file)) == 0
    });
    let gone = mapped.get(b"key");
    assert!(matches!(gone, Err(ReadError::UnknownTable(_))), "{gone:?}");
}
