//! A table whose hashes begin with Redis Cluster's slots, most of its keys in one of them.

use crate::ops;
use pluvio_log::{Durability, LogOptions};
use pluvio_store::{Engine, EngineOptions, EngineTable, ScanOptions};
use pluvio_units::{HashKind, HashRange, KeyHash, KeySlot, LogId, Rank, Size, TableHash, TableId};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Keys of one tag, and as many others.
const KEYS: u32 = 3000;
const SLOTS: TableHash = TableHash {
    kind: HashKind::Slots,
    seed: 7,
};

fn keys() -> impl Iterator<Item = String> {
    (0..KEYS).flat_map(|n| [format!("{{tag}}{n}"), format!("key {n}")])
}

fn slot() -> KeySlot {
    KeySlot::of(b"{tag}")
}

/// Below the slot of the tag, the slot, above.
fn ranges() -> [HashRange; 3] {
    let tagged = slot().hashes_to(slot());
    let below = HashRange::new(KeyHash(0), KeyHash(tagged.first.0 - 1));
    let above = HashRange::new(KeyHash(tagged.last.0 + 1), KeyHash(u64::MAX));
    [below, tagged, above]
}

/// A table with indexes for these ranges, and all keys.
fn filled(covered: &[HashRange]) -> (Arc<Engine>, Arc<EngineTable>) {
    let log = LogOptions {
        durability: Durability::Volatile,
        ..LogOptions::new(Size::mib(48))
    };
    let store = Engine::open(EngineOptions { log }).unwrap();
    let mut tables = covered
        .iter()
        .map(|range| store.table(TableId(1), SLOTS, *range).unwrap());
    let first = tables.next().unwrap();
    let table = tables.fold(first, |_, table| table);
    for key in keys() {
        let _ = ops::put(&store, &table, LogId(0), key.as_bytes(), b"value").unwrap();
    }
    (store, table)
}

fn scan(store: &Engine, table: &EngineTable, range: HashRange, items: usize) -> BTreeSet<String> {
    let (mut found, mut from) = (BTreeSet::new(), Rank(0));
    loop {
        let options = ScanOptions {
            from,
            items,
            bytes: 1 << 20,
            values: false,
        };
        let scan = store.scan(table, range, options).into_pending();
        for item in scan.items {
            assert!(item.rank >= from && item.rank <= scan.last);
            let key = String::from_utf8(item.key).unwrap();
            assert!(found.insert(key), "met twice");
        }
        if scan.is_end {
            return found;
        }
        from = Rank(scan.last.0 + 1);
        let group = (1_u64 << HashKind::Slots.group_bits()) - 1;
        assert_eq!(from.0 & group, 0, "a cursor of 53 bits can say it");
    }
}

fn expected(range: HashRange) -> BTreeSet<String> {
    keys()
        .filter(|key| range.contains(SLOTS.of(key.as_bytes())))
        .collect()
}

#[test]
fn slots_are_found_copied_and_forgotten_wherever_their_entries_lie() {
    let [below, tagged, above] = ranges();
    for covered in [
        &[HashRange::ALL][..],
        &[below, tagged, above],
        &[tagged, HashRange::ALL],
    ] {
        let (store, table) = filled(covered);
        for range in [HashRange::ALL, below, tagged, above] {
            for items in [1, 50, 100_000] {
                assert_eq!(scan(&store, &table, range, items), expected(range));
            }
            let (mut bytes, mut next) = (0, Some(Rank(0)));
            while let Some(from) = next {
                let copied = store.copy_objects(&table, range, from, 10_000);
                bytes += copied.data.len();
                next = copied.next;
            }
            let least = expected(range).iter().map(|key| key.len() + 5).sum();
            assert!(bytes > least, "{bytes} bytes of {range}");
        }
        let longest = store.stats().index_longest_chain;
        assert!(longest <= 3, "a chain of {longest} lines");
        store.forget(&table, tagged);
        assert!(scan(&store, &table, tagged, 50).is_empty());
        for range in [below, above] {
            assert_eq!(scan(&store, &table, range, 50), expected(range));
        }
        let left = expected(below).len() + expected(above).len();
        assert_eq!(table.objects(), left as u64);
    }
}
