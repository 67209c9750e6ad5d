//! What leaves with a tablet, while the cleaner moves everything about.

use crate::ops;
use pluvio_log::{CleanerOptions, Durability, LogOptions};
use pluvio_store::{Engine, EngineOptions, EngineTable, Replay};
use pluvio_units::{HashRange, LogId, Rank, Size, TableId};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The time of the replay.
const NOW: core::time::Duration = core::time::Duration::ZERO;
/// Objects that are there all along.
const KEPT: u32 = 2000;
/// Bytes of one part: some ten objects, so that much happens between the first part and the last.
const PART: usize = 10_000;

fn open() -> (Arc<Engine>, Arc<EngineTable>) {
    let log = LogOptions {
        durability: Durability::Volatile,
        ..LogOptions::new(Size::mib(48))
    };
    let store = Engine::open(EngineOptions { log }).unwrap();
    let table = store.table(TableId(1), 7, HashRange::ALL).unwrap();
    (store, table)
}

fn put(store: &Engine, table: &EngineTable, key: &str, value: &[u8]) {
    let _ = ops::put(store, table, LogId(0), key.as_bytes(), value).unwrap();
}

fn kept(n: u32) -> (String, Vec<u8>) {
    // No digits: where a key ends is seen from them.
    (format!("kept {n}"), vec![200 + (n % 50) as u8; 1000])
}

/// LEAVE-1. An object that the cleaner has moved, to a segment that may not be part of the log yet,
/// is still found through the index, and once: whoever walked the log instead would miss it or meet
/// it twice.
// shows: LEAVE-1, MIG-3
#[test]
fn objects_that_the_cleaner_moves_leave_exactly_once() {
    let (store, table) = open();
    for n in 0..KEPT {
        let (key, value) = kept(n);
        put(&store, &table, &key, &value);
    }
    let cleaner = store.cleaner(CleanerOptions::default());
    let mut parts = Vec::new();
    let mut from = Some(Rank(0));
    let mut round = 0_u32;
    while let Some(first) = from {
        let copied = store.copy_objects(&table, HashRange::ALL, first, PART);
        parts.push(copied.data);
        from = copied.next;
        // Garbage around what stays, so that the cleaner has to move it.
        for n in 0..200 {
            put(
                &store,
                &table,
                &format!("changed {}", n % 20),
                &[round as u8; 5000],
            );
            let _ = cleaner.step(1).expect("memory is sound");
        }
        round += 1;
    }
    assert!(parts.len() > 50, "{} parts", parts.len());
    let passes = store.space().stats().cleaner.passes;
    assert!(passes > 0, "the cleaner had no work");

    let (other, arrived) = open();
    let tablets = vec![(Arc::clone(&arrived), HashRange::ALL)];
    let mut replay = Replay::new(&other, LogId(0), tablets).unwrap();
    for part in &parts {
        replay.replay(part, NOW).unwrap();
    }
    let (side, _) = replay.finish();
    let _ = side.commit().expect("a volatile side log is durable");
    for n in 0..KEPT {
        let (key, value) = kept(n);
        let there = ops::read(&store, &table, key.as_bytes());
        assert_eq!(there.as_ref().map(|(_, v)| v), Some(&value), "{key}");
        assert_eq!(ops::read(&other, &arrived, key.as_bytes()), there, "{key}");
    }
    let met: Vec<u32> = parts.iter().flat_map(|part| kept_in(part)).collect();
    let once: BTreeSet<u32> = met.iter().copied().collect();
    assert_eq!(met.len(), once.len(), "an object left twice");
    assert_eq!(once.len(), KEPT as usize);
}

/// The numbers of the objects in a part that are there all along. Values do not look like keys.
fn kept_in(part: &[u8]) -> Vec<u32> {
    let mark = b"kept ";
    let places = part.windows(mark.len()).enumerate();
    let keys = places.filter(|(_, bytes)| *bytes == mark);
    let number = |at: usize| {
        let digits = part[at + mark.len()..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit());
        digits.fold(0, |n, digit| 10 * n + u32::from(digit - b'0'))
    };
    keys.map(|(at, _)| number(at)).collect()
}
