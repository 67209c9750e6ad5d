//! Memory of indexes that ask for huge pages, as the system counts it. Alone in its file, because
//! the system would also count the memory of other tests.

#![allow(clippy::unwrap_used)]

use pluvio_index::{Index, IndexOptions};
use pluvio_memory::{NodeSet, ReclaimEpochs};
use pluvio_units::{EntryRef, HashKind, HashRange, KeyHash};

fn index(entries_max: u64) -> Index {
    let options = IndexOptions {
        entries_max,
        expected: HashRange::ALL,
        kind: HashKind::Seeded,
        huge_pages: true,
        nodes: NodeSet::EMPTY,
    };
    Index::new(options).unwrap()
}

/// An entry's key is its offset.
fn hash_of(entry: EntryRef) -> KeyHash {
    let x = entry.offset().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    KeyHash(x ^ x >> 27)
}

fn fill(index: &Index, epochs: &ReclaimEpochs, entries: u64) {
    for number in 1..=entries {
        let entry = EntryRef::new(number);
        let guard = epochs.pin();
        index.lock(hash_of(entry)).insert(entry, false).unwrap();
        index.resize(&guard, hash_of);
    }
}

/// The sum of a field of all mappings, in bytes.
fn mapped(field: &str) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let of_field = maps.lines().filter_map(|line| line.strip_prefix(field));
    let kib = of_field.map(|rest| {
        let number = rest.split_whitespace().next().unwrap();
        number.parse::<u64>().unwrap()
    });
    kib.sum::<u64>() << 10
}

#[test]
fn small_indexes_cost_what_they_use_and_large_ones_have_huge_pages() {
    let epochs = ReclaimEpochs::new(4).unwrap();
    let before = mapped("Rss:");
    let small: Vec<Index> = (0..50).map(|_| index(1 << 20)).collect();
    for index in &small {
        fill(index, &epochs, 100);
    }
    let each = (mapped("Rss:") - before) / 50;
    assert!(each < 64 << 10, "{each} bytes for an index of 100 entries");
    let choices = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if choices.is_err() || choices.unwrap().contains("[never]") {
        return;
    }
    let before = mapped("AnonHugePages:");
    let large = index(1 << 21);
    fill(&large, &epochs, 300_000);
    assert_eq!(mapped("AnonHugePages:"), before, "it is not large yet");
    drop(large);
    let larger = index(1 << 21);
    fill(&larger, &epochs, 1_000_000);
    // The system gives none when memory is in pieces.
    let (huge, all) = (mapped("AnonHugePages:") - before, larger.memory_bytes());
    println!("{huge} bytes of {all} on huge pages");
    assert!(huge <= all + (2 << 20));
}
