//! Values of every size that are overwritten where they lie. Some lie in one seglet; others cross
//! borders, and the cleaner cuts them elsewhere when it moves them.

use pluvio_store::{Experiments, Size, Store, StoreError, Table, UpdatePolicy};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Bytes of a seglet.
const SEGLET: usize = 64 << 10;
/// The longest value: 1 MiB with its head.
const LONGEST: usize = (1 << 20) - 12;

fn store(cleaner_threads: u16) -> Store {
    Store::builder()
        .memory(Size::mib(48))
        .heads(1)
        .cleaner_threads(cleaner_threads)
        .update(UpdatePolicy::InPlace)
        .experiments(Experiments {
            segment_size: Some(Size(40 * SEGLET as u64)),
            ..Experiments::default()
        })
        .build()
        .unwrap()
}

/// Bytes that differ everywhere, and from those of any other seed.
fn value(seed: u8, len: usize) -> Vec<u8> {
    let byte = |at: usize| (at as u32).wrapping_mul(0x9e37_79b1).rotate_left(8) as u8 ^ seed;
    (0..len).map(byte).collect()
}

fn sizes() -> impl Iterator<Item = usize> {
    let around = |middle: usize| middle - 40..=middle + 5;
    let borders = around(4096).chain(around(16384)).chain(around(SEGLET));
    let large = [100_000, 3 * SEGLET, LONGEST - 1, LONGEST];
    [0, 1, 11, 12, 13, 100, 5000]
        .into_iter()
        .chain(borders)
        .chain(large)
}

/// The entry of each size begins at another place of its seglet than those before, so that borders
/// cut keys, heads and values.
// shows: LOG-12
#[test]
fn a_value_of_any_size_is_overwritten_where_it_lies() {
    let store = store(0);
    let table = store.create_table("test").unwrap();
    for (n, len) in sizes().enumerate() {
        let key = format!("key {n}");
        let key = key.as_bytes();
        table.put(key, &value(1, len)).unwrap();
        let written = store.stats().live_bytes;
        for (seed, len) in [(2, len), (3, len / 2), (4, 0), (5, len)] {
            table.put(key, &value(seed, len)).unwrap();
            assert_eq!(table.get(key).unwrap(), value(seed, len), "{len} bytes");
            let mut seen = Vec::new();
            table.get_batch(&[key], |_, found| seen.extend_from_slice(found.unwrap()));
            assert_eq!(seen, value(seed, len));
        }
        assert_eq!(store.stats().live_bytes, written, "{len} bytes: appended");
        table.put(key, &value(6, (len + 1).min(LONGEST))).unwrap();
    }
    assert_eq!(table.iter().count() as u64, table.len());
    let longest = table.put(b"too long", &value(0, LONGEST + 1));
    assert!(matches!(longest, Err(StoreError::ValueTooLong(..))));
}

/// Heads of 12 bytes lie across a border in every way there is.
#[test]
fn a_head_is_cut_anywhere_by_a_border() {
    let store = store(0);
    let table = store.create_table("test").unwrap();
    for n in 0..64_u8 {
        // One byte longer than what would lie in one seglet, so that the next begins a byte later.
        table
            .put(&[n, 0], &value(n, SEGLET - 40 + usize::from(n % 3)))
            .unwrap();
        table
            .put(&[n, 1], &value(n, 1 + usize::from(n % 5)))
            .unwrap();
    }
    for round in 0..3 {
        for n in 0..64_u8 {
            let new = value(n ^ round, SEGLET - 40);
            let version = table.put(&[n, 0], &new).unwrap();
            let seen = table.get_with(&[n, 0], |version, found| (version, found.to_vec()));
            assert_eq!(seen.unwrap(), (version, new));
        }
    }
}

/// All of one byte, so that a torn one is seen at a glance.
fn check_whole(found: &[u8]) {
    let first = found.first().copied().unwrap_or(0);
    assert!(found.iter().all(|byte| *byte == first), "a torn value");
}

fn put(table: &Table, key: &[u8], value: &[u8]) {
    loop {
        match table.put(key, value) {
            Ok(_) => return,
            Err(StoreError::Full { .. }) => thread::yield_now(),
            Err(other) => panic!("{other}"),
        }
    }
}

/// Two threads overwrite large values, two read them, one makes the cleaner move them all the time.
// shows: LOG-13
#[test]
fn large_values_are_whole_while_they_change_and_move() {
    const KEYS: u8 = 6;
    let store = store(1);
    let table = store.create_table("test").unwrap();
    let churn = store.create_table("churn").unwrap();
    let len = |key: u8| usize::from(key + 1) * 40_000;
    for key in 0..KEYS {
        table.put(&[key], &vec![0; len(key)]).unwrap();
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers = [0_u8, 1].map(|writer| {
            let table = &table;
            scope.spawn(move || {
                let mut last = [0; KEYS as usize];
                for round in 0..400_u32 {
                    let byte = (round * 2) as u8 + writer;
                    let key = (round % u32::from(KEYS / 2)) as u8 * 2 + writer;
                    let len = len(key) - (round as usize % 7) * 1000;
                    put(table, &[key], &vec![byte; len]);
                    last[usize::from(key)] = byte;
                    // Nobody else writes this key: a change that was lost is seen.
                    let found = table.get(&[key]).unwrap();
                    assert_eq!((found.len(), found[0]), (len, byte));
                    check_whole(&found);
                }
                last
            })
        });
        for reader in 0..2 {
            let (table, done) = (&table, &done);
            scope.spawn(move || {
                let mut key = reader;
                while !done.load(Ordering::Relaxed) {
                    check_whole(&table.get(&[key]).unwrap());
                    key = (key + 1) % KEYS;
                }
            });
        }
        let (churn, done, store) = (&churn, &done, &store);
        scope.spawn(move || {
            let mut n = 0_u32;
            while !done.load(Ordering::Relaxed) || store.stats().cleaner.passes == 0 {
                // Longer each time, so that it does not fit where the one before lies.
                let key = (n % 300).to_le_bytes();
                put(
                    churn,
                    &key,
                    &vec![7; 20_000 + (n / 300 % 50) as usize * 100],
                );
                n += 1;
            }
        });
        let last = writers.map(|writer| writer.join().unwrap());
        done.store(true, Ordering::Relaxed);
        for key in 0..KEYS {
            let byte = last[usize::from(key % 2)][usize::from(key)];
            assert_eq!(table.get(&[key]).unwrap()[0], byte);
        }
    });
}
