//! Memory that changes by itself: whoever finds it, a reader, the cleaner in its thread, or who
//! copies a tablet that moves, stops the whole process with a message that says where.
//!
//! Each case runs in a process of its own, which flips its bits through the file of its own memory.
//!
//! Where values are overwritten in place there is nothing to borrow: they are found by looking for
//! them.

use crate::ops;
use pluvio_format::Entry;
use pluvio_log::{AppendClass, Durability, LogOptions};
use pluvio_store::{
    Engine, EngineOptions, EngineTable, LogId, ReplicaSink, SegmentId, SinkAnswer, SinkError,
    SinkWrite, Size, Store, StoreBuilder, StoreError, Table, UpdatePolicy,
};
use pluvio_units::{HashRange, ObjectVersion, Rank, TableId};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;

const CASE: &str = "PLUVIO_TEST_CORRUPTION";
const SIGABRT: i32 = 6;
const KEYS: u32 = 20_000;
/// What is said of an object whose value cannot be so long.
const NO_LAYOUT: &str = "): the body does not have the layout of a Object";

/// Writes to this process's memory behind the compiler's back.
fn overwrite(address: usize, bytes: &[u8]) {
    let memory = OpenOptions::new()
        .write(true)
        .open("/proc/self/mem")
        .unwrap();
    memory.write_all_at(bytes, address as u64).unwrap();
}

/// Where the value of a key lies.
fn address_of(store: &Store, table: &Table, key: u32) -> usize {
    let guard = store.pin();
    let found = table.get_ref(&guard, &key.to_le_bytes()).unwrap();
    found.as_ptr() as usize
}

fn put(table: &Table, key: u32, value: &[u8]) {
    loop {
        match table.put(&key.to_le_bytes(), value) {
            Ok(_) => return,
            Err(StoreError::Full { .. }) => std::thread::yield_now(),
            Err(other) => panic!("{other}"),
        }
    }
}

/// A store of which the first objects lie in a closed segment.
fn filled(builder: StoreBuilder) -> (Store, Table) {
    let store = builder.memory(Size::mib(48)).heads(1).build().unwrap();
    let table = store.create_table("t").unwrap();
    for key in 0..KEYS {
        put(&table, key, &[7; 1000]);
    }
    (store, table)
}

/// Rounds of overwrites: several times the memory is written.
const ROUNDS: u8 = 20;
/// More objects than there is memory for.
const MORE: u32 = 100_000;
/// Attempts to put an object into a full memory while a cleaner has something to free.
const ATTEMPTS: u32 = 100_000;

/// Makes the cleaner look at every segment. A broken entry ends the process. First all objects but
/// one are overwritten. The cleaner prefers segments without live objects, and the one with that
/// object may wait for long. Then the memory is filled with other objects, until there is no room
/// left but in that segment.
fn overwrite_others(table: &Table, but: u32) {
    for round in 0..ROUNDS {
        for key in (0..KEYS).filter(|key| *key != but) {
            put(table, key, &[round; 1000]);
        }
    }
    for key in KEYS..KEYS + MORE {
        let is_stored = |_: &u32| {
            let stored = table.put(&key.to_le_bytes(), &[7; 1000]).is_ok();
            if !stored {
                std::thread::yield_now();
            }
            stored
        };
        if (0..ATTEMPTS).find(is_stored).is_none() {
            return;
        }
    }
}

/// A sink that takes everything, so that entries have checksums.
struct Nowhere;

impl ReplicaSink for Nowhere {
    fn write(&mut self, _: &SinkWrite<'_>) -> Result<SinkAnswer, SinkError> {
        Ok(SinkAnswer::Taken)
    }

    fn close(&mut self, _: LogId, _: SegmentId) -> Result<(), SinkError> {
        Ok(())
    }

    fn free(&mut self, _: LogId, _: SegmentId) -> Result<(), SinkError> {
        Ok(())
    }
}

/// In front of a key of four bytes and a value of 1000: kind, length, checksum, table, version,
/// timestamp, length of the key.
const HEADER_BYTES: usize = 1 + 2 + 4 + 1 + 1 + 4 + 1;

/// A store with replicas cleans all it has after a byte of one object was overwritten; `at` tells
/// where, by the address of the value.
fn cleaner_meets(at: fn(usize) -> usize, byte: u8) {
    let (store, table) = filled(Store::builder().cleaner_threads(1).sink(Nowhere));
    store.sync().unwrap();
    let address = address_of(&store, &table, 100);
    overwrite(at(address), &[byte]);
    overwrite_others(&table, 100);
}

/// An object that crosses the border of a seglet, and where its value begins: behind the object
/// before it.
fn crossing(store: &Store, table: &Table) -> (u32, usize) {
    let behind = |key| address_of(store, table, key) + HEADER_BYTES + 4 + 1000;
    let mut keys = 1..100;
    // It is read into another place, as it lies in two pieces.
    let crosses = |key: &u32| address_of(store, table, *key) != behind(key - 1);
    let key = keys.find(crosses).expect("seglets are not so long");
    (key, behind(key - 1))
}

/// A header that is none: in front of the value lie its key of four bytes and, before that, the
/// header.
fn break_header(address: usize) {
    overwrite(address - 4 - 16, &[0xff; 16]);
}

const LEAVING_KEY: &[u8] = b"leaving";

/// An engine whose entries have checksums, with one object, and where its key lies in memory; its
/// value of 1000 bytes comes behind the key.
fn with_one_object() -> (Arc<Engine>, Arc<EngineTable>, usize) {
    let log = LogOptions {
        durability: Durability::Replicated,
        ..LogOptions::new(Size::mib(48))
    };
    let engine = Engine::open(EngineOptions { log }).unwrap();
    let table = engine.table(TableId(1), 7, HashRange::ALL).unwrap();
    let _ = ops::put(&engine, &table, LogId(0), LEAVING_KEY, &[7; 1000]).unwrap();
    // The next entry of the same log lies behind it.
    let guard = engine.space().pin();
    let behind = Entry::SafeVersion(ObjectVersion(1));
    let appended = engine
        .space()
        .append(LogId(0), &[behind], AppendClass::Normal, &guard)
        .unwrap();
    let view = engine.space().entry(appended.pending()[0], &guard).unwrap();
    let end = view.bytes().as_ptr() as usize;
    drop(guard);
    let key = end - 1000 - LEAVING_KEY.len();
    (engine, table, key)
}

/// A tablet is copied, or a change of it, after a byte of its one object was overwritten.
fn leaves_with(offset: usize, change: bool) {
    let (engine, table, key) = with_one_object();
    overwrite(key + offset, &[6]);
    if change {
        let mut copied = Vec::new();
        engine.copy_change(&table, LEAVING_KEY, None, 1, &mut copied);
    } else {
        let _copied = engine.copy_objects(&table, HashRange::ALL, Rank(0), 1 << 20);
    }
}

/// Where bytes lie in one of this process's large mappings; nowhere else are there such bytes.
fn find_in_memory(bytes: &[u8]) -> usize {
    const PIECE: usize = 1 << 20;
    let memory = File::open("/proc/self/mem").unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut piece = vec![0; PIECE];
    for line in maps.lines().filter(|line| line.contains(" rw-p ")) {
        let (first, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let border = |text| u64::from_str_radix(text, 16).unwrap();
        let (first, end) = (border(first), border(end));
        if end - first < 48 << 20 {
            continue;
        }
        // Pieces overlap, so that nothing is cut in two.
        for at in (first..end).step_by(PIECE - bytes.len()) {
            let len = PIECE.min((end - at) as usize);
            if memory.read_exact_at(&mut piece[..len], at).is_err() {
                break;
            }
            let found = piece[..len].windows(bytes.len()).position(|w| w == bytes);
            if let Some(found) = found {
                return at as usize + found;
            }
        }
    }
    panic!("nowhere")
}

/// A store that overwrites in place, with one object of so many bytes, whose length in memory says
/// more than fits.
fn with_an_overlong_value(len: usize) -> Table {
    let builder = Store::builder().memory(Size::mib(48)).heads(1);
    let builder = builder.cleaner_threads(0).update(UpdatePolicy::InPlace);
    let table = builder.build().unwrap().create_table("t").unwrap();
    let key = KEYS;
    let version = table.put(&key.to_le_bytes(), &vec![9; len]).unwrap();
    let mut head = key.to_le_bytes().to_vec();
    head.extend_from_slice(&version.0.to_le_bytes());
    let len_at = head.len();
    head.extend_from_slice(&(len as u32).to_le_bytes());
    head.extend_from_slice(&[9; 16]);
    overwrite(
        find_in_memory(&head) + len_at,
        &(len as u32 + 1).to_le_bytes(),
    );
    table
}

/// Calls on the object of [`with_an_overlong_value`].
fn in_place(case: &str) {
    let key = KEYS.to_le_bytes();
    let small = || with_an_overlong_value(1000);
    match case {
        "in-place get" => drop(small().get(&key)),
        "in-place get of a large value" => drop(with_an_overlong_value(5000).get(&key)),
        "in-place batch" => small().get_batch(&[&key[..]], |_, _| ()),
        "in-place iteration" => small().iter().for_each(drop),
        "in-place put" => drop(small().put(&key, b"short")),
        "in-place update" => drop(small().increment(&key, 1)),
        "in-place delete" => drop(small().delete(&key)),
        "in-place header" => {
            let table = small();
            let head = [&key[..], &[1, 0, 0, 0, 0, 0, 0, 0, 0xe9, 3]].concat();
            overwrite(find_in_memory(&head) - 16, &[0xff; 16]);
            drop(table.get(&key));
        }
        other => panic!("no case {other}"),
    }
}

fn in_child(case: &str) {
    match case {
        "reader" => {
            let (store, table) = filled(Store::builder().cleaner_threads(0));
            break_header(address_of(&store, &table, 100));
            let _found = table.get(&100_u32.to_le_bytes());
        }
        "thread" => {
            let (store, table) = filled(Store::builder().cleaner_threads(0));
            break_header(address_of(&store, &table, 100));
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| table.get(&100_u32.to_le_bytes()));
                // A thread that only panics would end here.
                let _ended = reader.join();
            });
        }
        "cleaner" => {
            let (store, table) = filled(Store::builder().cleaner_threads(1));
            break_header(address_of(&store, &table, 100));
            overwrite_others(&table, 100);
        }
        "checksum" => {
            let (store, table) = filled(Store::builder().cleaner_threads(1).sink(Nowhere));
            store.sync().unwrap();
            let address = address_of(&store, &table, 100);
            overwrite(address + 500, &[6]);
            let read = table.get(&100_u32.to_le_bytes()).unwrap();
            assert_eq!(read[500], 6, "reads compare no checksums");
            overwrite_others(&table, 100);
        }
        "checksum of one that lives and crosses" => {
            let (store, table) = filled(Store::builder().cleaner_threads(1).sink(Nowhere));
            store.sync().unwrap();
            let (key, address) = crossing(&store, &table);
            overwrite(address, &[6]);
            let read = table.get(&key.to_le_bytes()).unwrap();
            assert_eq!(read[0], 6, "it begins before the border");
            overwrite_others(&table, key);
        }
        "checksum of one that died and crosses" => {
            let (store, table) = filled(Store::builder().cleaner_threads(1).sink(Nowhere));
            store.sync().unwrap();
            let (_, address) = crossing(&store, &table);
            overwrite(address, &[6]);
            overwrite_others(&table, KEYS);
        }
        // What the index is not asked about is taken for dead, and must not be left behind.
        "cleaner, key" => cleaner_meets(|address| address - 3, 9),
        // As if the rest of the seglet were padding.
        "cleaner, kind" => cleaner_meets(|address| address - 4 - HEADER_BYTES, 0),
        "leave" => leaves_with(500, false),
        "leave, key" => leaves_with(3, false),
        "change" => leaves_with(500, true),
        // It is not found by its key, and must not be taken for deleted.
        "change, key" => leaves_with(3, true),
        other => in_place(other),
    }
    panic!("the process went on");
}

// shows: CLEAN-9, LEAVE-3, STORE-4
#[test]
fn corrupt_memory_stops_the_process_and_says_where() {
    if let Ok(case) = std::env::var(CASE) {
        return in_child(&case);
    }
    for (case, what) in [
        ("reader", "): "),
        ("thread", "): "),
        ("cleaner", "): "),
        ("checksum", "): the checksum is "),
        (
            "checksum of one that lives and crosses",
            "): the checksum is ",
        ),
        (
            "checksum of one that died and crosses",
            "): the checksum is ",
        ),
        ("cleaner, key", "): the checksum is "),
        ("cleaner, kind", "): bad padding"),
        ("leave", "): the checksum is "),
        ("leave, key", "): the checksum is "),
        ("change", "): the checksum is "),
        ("change, key", "): the checksum is "),
        ("in-place get", NO_LAYOUT),
        ("in-place get of a large value", NO_LAYOUT),
        ("in-place batch", NO_LAYOUT),
        ("in-place iteration", NO_LAYOUT),
        ("in-place put", NO_LAYOUT),
        ("in-place update", NO_LAYOUT),
        ("in-place delete", NO_LAYOUT),
        ("in-place header", "): "),
    ] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "corruption::corrupt_memory_stops_the_process_and_says_where",
            ])
            .arg("--nocapture")
            .env(CASE, case)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(SIGABRT), "{case}: {said}");
        for part in [
            "log memory is corrupt: entry at region offset 0x",
            "(segment 1, offset ",
            what,
            "stopping",
        ] {
            assert!(said.contains(part), "{case}: no {part:?} in {said}");
        }
    }
}
