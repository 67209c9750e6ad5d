//! Behaviour against a model, crowded chains, and threads.

use crate::index::STABLE_ATTEMPTS_MAX;
use crate::slot;
use crate::table::reach_of;
use crate::words::Word;
use crate::{Approach, Index, IndexError, IndexFull, IndexOptions, Slot};
use core::ops::Deref;
use pluvio_memory::{NodeSet, ReclaimEpochs};
use pluvio_units::{EntryRef, HashKind, HashRange, KeyHash, KeySlot, Rank};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn options(entries_max: u64) -> IndexOptions {
    IndexOptions {
        entries_max,
        expected: HashRange::ALL,
        kind: HashKind::Seeded,
        huge_pages: false,
        nodes: NodeSet::EMPTY,
    }
}

/// An index with the epochs of its users.
struct Indexed {
    index: Index,
    epochs: ReclaimEpochs,
}

impl Deref for Indexed {
    type Target = Index;
    fn deref(&self) -> &Index {
        &self.index
    }
}

impl Indexed {
    fn new(options: IndexOptions) -> Self {
        Self {
            index: Index::new(options).unwrap(),
            epochs: ReclaimEpochs::new(8).unwrap(),
        }
    }

    fn resize(&self, hash_of: impl FnMut(EntryRef) -> KeyHash) -> u32 {
        self.index.resize(&self.epochs.pin(), hash_of)
    }

    fn remove(&self, key: u64, copy: u64, hash_of: impl Fn(EntryRef) -> KeyHash) -> bool {
        let old = copy_of(key, copy);
        let removed = self.lock(hash_of(old)).remove(old);
        self.resize(hash_of);
        removed
    }

    fn bytes_per_entry(&self) -> f64 {
        self.memory_bytes() as f64 / self.len() as f64
    }
}

fn index(entries_max: u64) -> Indexed {
    Indexed::new(options(entries_max))
}

fn entry(offset: u64) -> EntryRef {
    EntryRef::new(offset)
}

/// A stand-in for a log: a key's entries lie at `key << 8 | copy`, so that an entry names its key.
const KEY_SHIFT: u32 = 8;

pub(crate) fn copy_of(key: u64, copy: u64) -> EntryRef {
    entry((key + 1) << KEY_SHIFT | copy)
}

pub(crate) fn key_of(entry: EntryRef) -> u64 {
    (entry.offset() >> KEY_SHIFT) - 1
}

/// Well-spread hashes (SplitMix64's last step).
pub(crate) fn hash_of_key(key: u64) -> KeyHash {
    let x = key.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    KeyHash(x ^ x >> 31)
}

fn hash_of(entry: EntryRef) -> KeyHash {
    hash_of_key(key_of(entry))
}

fn put(index: &Indexed, key: u64, copy: u64, hash_of: impl Fn(EntryRef) -> KeyHash) {
    let new = copy_of(key, copy);
    let mut bucket = index.lock(hash_of(new));
    match bucket.find(|entry| key_of(entry) == key) {
        Some(old) => assert!(bucket.replace(old.entry, new, false)),
        None => bucket.insert(new, false).unwrap(),
    }
    drop(bucket);
    index.resize(hash_of);
}

fn get(index: &Index, key: u64, hash: KeyHash) -> Option<EntryRef> {
    let slot = index.lookup(hash, |entry| key_of(entry) == key);
    slot.map(|slot| slot.entry)
}

/// Walks the whole index. Earlier content of a line does not count: the lines may have changed.
fn walk(index: &Index, hash_of: impl Fn(EntryRef) -> KeyHash) -> Vec<EntryRef> {
    let (mut all, mut slots, mut from) = (Vec::new(), Vec::new(), Rank(0));
    loop {
        slots.clear();
        let last = index.scan(from, &mut slots);
        assert!(last >= from);
        for slot in &slots {
            let rank = index.spread.rank(hash_of(slot.entry));
            assert!(rank <= last, "X4: {rank} up to {last}");
            if rank >= from {
                all.push(slot.entry);
            }
        }
        match last.0.checked_add(1) {
            Some(next) => from = Rank(next),
            None => return all,
        }
    }
}

/// Checks X1, X2 and the displacements of an unchanging index. Gives the number of entries behind
/// their homes.
fn check(index: &Index, hash_of: impl Fn(EntryRef) -> KeyHash) -> u64 {
    let table = &index.table;
    let (mut entries, mut away, mut from) = (0, 0, 0_u64);
    loop {
        let locked = table.lock(from);
        let block = locked.address().block;
        let reaches = table.head(block.number).1.get();
        let (mut all, mut in_lines) = (Vec::new(), 0);
        locked.entries(&mut all);
        let mut needed = [0; 16];
        let mut full = [true; 16];
        for line in 0..block.lines {
            for word in table.slots(&block, line) {
                let word = word.load(Ordering::Relaxed);
                if word == slot::EMPTY {
                    full[line as usize] = false;
                    continue;
                }
                let home = block.home(slot::tag_of(word)) as usize;
                let distance = block.distance(home as u64, line);
                needed[home] = distance.max(needed[home]);
                in_lines += 1;
                away += u64::from(distance > 0);
            }
        }
        let full = &full[..block.lines as usize];
        if in_lines < all.len() {
            assert!(full.iter().all(|&full| full), "X2: a chain and room");
        }
        away += (all.len() - in_lines) as u64;
        entries += all.len() as u64;
        for (line, (&needed, &full)) in needed.iter().zip(full).enumerate() {
            assert_eq!(
                reach_of(reaches, line as u64),
                needed,
                "{block:?} line {line}"
            );
            assert!(needed == 0 || full, "X2: away from a home with room");
        }
        for word in all {
            let place = index.spread.place(hash_of(slot::entry_of(word)));
            let address = table.address(place);
            assert_eq!(
                (address.block, address.tag),
                (block, slot::tag_of(word)),
                "X1"
            );
        }
        let below = u64::MAX.checked_shr(block.bits).unwrap_or(0);
        match (from | below).checked_add(1) {
            Some(next) => from = next,
            None => break,
        }
    }
    assert_eq!(entries, index.len());
    away
}

#[derive(Debug, Clone)]
enum Op {
    Put(u64),
    Remove(u64),
    Relocate(u64),
    ClearPending(u64),
    PutPending(u64),
    RemoveRange(u64, u64),
    PutMany(u64, u64),
    RemoveMany(u64, u64),
}

fn ops(keys: u64) -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        20 => (0..keys).prop_map(Op::Put),
        6 => (0..keys).prop_map(Op::Remove),
        3 => (0..keys).prop_map(Op::Relocate),
        3 => (0..keys).prop_map(Op::ClearPending),
        3 => (0..keys).prop_map(Op::PutPending),
        1 => (any::<u64>(), 0_u64..u64::MAX / 8).prop_map(|(a, w)| Op::RemoveRange(a, w)),
        1 => (0..keys, 1..keys).prop_map(|(first, n)| Op::PutMany(first, n)),
        1 => (0..keys, 1..keys).prop_map(|(first, n)| Op::RemoveMany(first, n)),
    ];
    proptest::collection::vec(op, 0..600)
}

/// Runs `ops` on an index and on a map from keys to slots.
fn agrees_with_a_map(ops: Vec<Op>, options: IndexOptions, hash: impl Fn(u64) -> KeyHash) {
    let index = Indexed::new(options);
    let hash_of = |entry| hash(key_of(entry));
    let mut model: BTreeMap<u64, Slot> = BTreeMap::new();
    let mut copy = 0;
    for op in ops {
        copy = (copy + 1) % 256;
        match op {
            Op::Put(key) | Op::PutPending(key) => {
                let pending = matches!(op, Op::PutPending(_));
                let new = copy_of(key, copy);
                let mut bucket = index.lock(hash(key));
                let old = bucket.find(|entry| key_of(entry) == key);
                assert_eq!(old, model.get(&key).copied());
                match old {
                    Some(old) => assert!(bucket.replace(old.entry, new, pending)),
                    None => bucket.insert(new, pending).unwrap(),
                }
                drop(bucket);
                model.insert(
                    key,
                    Slot {
                        entry: new,
                        pending,
                    },
                );
                index.resize(hash_of);
            }
            Op::Remove(key) => {
                let old = model.remove(&key);
                let at = old.map_or(copy_of(key, copy), |slot| slot.entry);
                assert_eq!(index.lock(hash(key)).remove(at), old.is_some());
                index.resize(hash_of);
            }
            Op::Relocate(key) => {
                let new = copy_of(key, copy);
                let old = model.get(&key).map_or(entry(1), |slot| slot.entry);
                let moved = index.relocate(hash(key), old, new);
                assert_eq!(moved, model.contains_key(&key));
                if let Some(slot) = model.get_mut(&key) {
                    *slot = Slot {
                        entry: new,
                        pending: false,
                    };
                }
            }
            Op::ClearPending(key) => {
                if let Some(slot) = model.get_mut(&key) {
                    assert!(index.relocate(hash(key), slot.entry, slot.entry));
                    slot.pending = false;
                }
                assert!(!index.relocate(hash(key), entry(1), entry(1)));
            }
            Op::RemoveRange(first, width) => {
                let last = KeyHash(first.saturating_add(width));
                let range = HashRange::new(KeyHash(first), last);
                let (mut removed, mut next) = (BTreeMap::new(), Some(Rank(0)));
                while let Some(from) = next {
                    next = index.remove_range(range, from, 3, hash_of, |slot| {
                        assert_eq!(removed.insert(key_of(slot.entry), slot), None);
                    });
                }
                let gone = model.extract_if(.., |key, _| range.contains(hash(*key)));
                assert_eq!(removed, gone.collect());
            }
            Op::PutMany(first, n) => {
                for key in first..first + n {
                    put(&index, key, copy, hash_of);
                    let entry = copy_of(key, copy);
                    let pending = false;
                    model.insert(key, Slot { entry, pending });
                }
            }
            Op::RemoveMany(first, n) => {
                for (key, slot) in model.extract_if(first..first + n, |_, _| true) {
                    assert!(index.lock(hash(key)).remove(slot.entry));
                    index.resize(hash_of);
                }
                check(&index, hash_of);
            }
        }
        assert_eq!(index.len(), model.len() as u64);
    }
    check(&index, hash_of);
    for (&key, &slot) in &model {
        assert_eq!(
            index.lookup(hash(key), |entry| key_of(entry) == key),
            Some(slot)
        );
        index.prefetch(hash(key));
    }
    let mut walked: Vec<_> = walk(&index, hash_of).into_iter().map(key_of).collect();
    walked.sort_unstable();
    assert!(walked.iter().eq(model.keys()), "each entry is met once");
}

/// Of up to thousands of steps each; `PROPTEST_CASES` has another number.
fn cases() -> ProptestConfig {
    match std::env::var("PROPTEST_CASES") {
        Ok(_) => ProptestConfig::default(),
        Err(_) => ProptestConfig::with_cases(48),
    }
}

proptest! {
    #![proptest_config(cases())]

    // shows: X1, X2, X4
    #[test]
    fn agrees_with_a_map_over_growth(ops in ops(2000)) {
        agrees_with_a_map(ops, options(100_000), hash_of_key);
    }

    #[test]
    fn agrees_with_a_map_when_hashes_collide(ops in ops(300), kept in 0_u32..10) {
        let hash = move |key| KeyHash(hash_of_key(key).0 & !(u64::MAX >> kept));
        agrees_with_a_map(ops, options(1000), hash);
    }

    #[test]
    fn agrees_with_a_map_in_a_tablet(ops in ops(500), parts in 1_u64..50) {
        let expected = HashRange::ALL.split(parts)[usize::try_from(parts / 2).unwrap()];
        let width = expected.last.0 - expected.first.0;
        let hash = move |key| {
            let h = hash_of_key(key).0;
            // One in sixteen lies outside.
            if h.is_multiple_of(16) { KeyHash(h) } else { KeyHash(expected.first.0 + h % width) }
        };
        agrees_with_a_map(ops, IndexOptions { expected, ..options(1000) }, hash);
    }

    #[test]
    fn agrees_with_a_map_in_a_slot_table(ops in ops(500), count in 1_u64..4) {
        let [first, last] = [7000, 7003].map(|n| KeySlot::new(n).unwrap());
        let expected = first.hashes_to(last);
        let hash = move |key: u64| {
            KeyHash(expected.first.0 + ((key % count) << 50) + (hash_of_key(key).0 >> 14))
        };
        let options = IndexOptions { expected, kind: HashKind::Slots, ..options(1000) };
        agrees_with_a_map(ops, options, hash);
    }
}

/// Any number of keys may have one tag, and so one slot.
#[test]
fn keys_of_one_slot_take_no_more_than_others() {
    let slot = KeySlot::new(7000).unwrap();
    let index = Indexed::new(IndexOptions {
        expected: slot.hashes_to(slot),
        kind: HashKind::Slots,
        ..options(1 << 20)
    });
    let hash = |key: u64| KeyHash(slot.hashes_to(slot).first.0 | hash_of_key(key).0 >> 14);
    let hash_of = |entry| hash(key_of(entry));
    for key in 0..200_000 {
        put(&index, key, 0, hash_of);
    }
    check(&index, hash_of);
    assert!(index.bytes_per_entry() < 11.0);
    assert!(index.longest_chain() <= 4, "as where hashes are even");
}

#[test]
fn lines_come_from_all_nodes_that_are_named_and_from_anywhere_if_there_is_one() {
    let over = |nodes: &[u32], new: fn(IndexOptions) -> Result<Index, IndexError>| {
        let nodes = nodes.iter().copied().collect();
        let index = new(IndexOptions {
            nodes,
            ..options(1 << 20)
        });
        let memory = index.unwrap().table.memory;
        let ends = [0, memory.len() - 1];
        ends.map(|end| memory.interleaved_over(end))
    };
    for new in [Index::new, Index::new_for_readers] {
        let one = over(&[0], new);
        if one[0].is_none() {
            return; // The system does not tell.
        }
        assert_eq!(one, [Some(NodeSet::EMPTY); 2]);
        // The second node may be there or not; the first one is on every machine.
        for nodes in over(&[0, 1], new) {
            assert!(nodes.unwrap().numbers().any(|node| node == 0), "{nodes:?}");
        }
        let missing = over(&[1022, 1023], new);
        assert_eq!(missing, one, "refused, and made all the same");
    }
}

/// Bytes that may be on their way back to the system: pieces of 64 KiB, of lines and of heads.
const GIVEN_BACK_LATER: u64 = 3 * (64 << 10);

#[test]
fn an_entry_costs_eleven_bytes_at_most_at_every_size() {
    let index = index(1 << 20);
    let keys = 120_000;
    let check_size = |n: u64, slack: u64| {
        let bytes = index.memory_bytes();
        assert!(bytes * 10 <= 109 * n + 10 * slack, "{bytes} bytes for {n}");
        let load = n * 100 / index.slots();
        assert!((73..=80).contains(&load), "{load} % of the slots at {n}");
    };
    for key in 0..keys {
        put(&index, key, 0, hash_of);
        if key > 4000 && key % 500 == 0 {
            // Each 4 KiB that the heads and the overflow lines begin.
            check_size(key, 0);
        }
        if key % 10_000 == 0 {
            let away = check(&index, hash_of);
            assert!(away * 100 <= key * 10, "{away} of {key} are not at home");
        }
    }
    for key in 0..keys {
        assert_eq!(get(&index, key, hash_of_key(key)), Some(copy_of(key, 0)));
        assert_eq!(get(&index, key + keys, hash_of_key(key + keys)), None);
    }
    assert_eq!(walk(&index, hash_of).len() as u64, keys);
    let full = index.memory_bytes();
    for key in (0..keys).rev() {
        if key >= 4000 && key % 500 == 0 {
            check_size(key + 1, GIVEN_BACK_LATER);
        }
        assert!(index.remove(key, 0, hash_of));
        if key % 10_000 == 0 {
            check(&index, hash_of);
        }
    }
    assert!(index.is_empty());
    assert!(index.memory_bytes() <= GIVEN_BACK_LATER, "of {full}");
}

// shows: X5
#[test]
fn memory_is_given_back_only_when_no_guard_is_older() {
    let index = index(1 << 20);
    for key in 0..50_000 {
        put(&index, key, 0, hash_of);
    }
    let full = index.memory_bytes();
    let guard = index.epochs.pin();
    std::thread::scope(|scope| {
        let remove = || {
            for key in 0..49_000 {
                assert!(index.remove(key, 0, hash_of));
            }
        };
        scope.spawn(remove).join().unwrap();
    });
    assert_eq!(index.memory_bytes(), full);
    drop(guard);
    for key in 49_000..50_000 {
        assert!(index.remove(key, 0, hash_of));
    }
    for key in 0..5_000 {
        put(&index, key, 1, hash_of);
    }
    assert!(index.memory_bytes() < full / 3);
    for key in 0..50_000 {
        let found = get(&index, key, hash_of_key(key));
        assert_eq!(found.is_some(), key < 5_000, "{key}");
    }
    check(&index, hash_of);
}

/// Colliding keys make each other slow, cost a bounded amount of memory, and leave others alone.
#[test]
fn colliding_keys_cost_memory_in_proportion_and_others_nothing() {
    let index = index(1 << 18);
    let hash = |key: u64| {
        if key < 3000 {
            KeyHash(77 << 40)
        } else {
            hash_of_key(key)
        }
    };
    let hash_of = |entry| hash(key_of(entry));
    for key in 0..40_000 {
        put(&index, key, 0, hash_of);
    }
    check(&index, hash_of);
    assert!(
        index.bytes_per_entry() < 12.0,
        "{}",
        index.bytes_per_entry()
    );
    let (mut slots, mut long, mut from) = (Vec::new(), 0, Rank(0));
    loop {
        slots.clear();
        let last = index.scan(from, &mut slots);
        long += u32::from(slots.len() > 24);
        let Some(next) = last.0.checked_add(1) else {
            break;
        };
        from = Rank(next);
    }
    assert_eq!(long, 1, "lines with many entries");
    let longest = index.longest_chain();
    assert!(
        (400..440).contains(&longest),
        "{longest} lines for 3000 keys of one hash"
    );
    for key in (0..40_000).rev() {
        assert!(index.remove(key, 0, hash_of));
    }
    check(&index, hash_of);
}

#[test]
fn tags_spare_nearly_all_looks_at_the_log() {
    let index = index(1 << 20);
    let keys = 60_000;
    let (mut lookups, mut needless) = (0, 0);
    for key in 0..keys {
        put(&index, key, 0, hash_of);
        let absent = key + keys;
        let found = index.lookup(hash_of_key(absent), |_| {
            needless += 1;
            false
        });
        assert_eq!(found, None);
        lookups += 1;
    }
    let longest = index.longest_chain();
    assert!(
        longest <= 4,
        "{longest} lines though hashes are spread evenly"
    );
    assert!(
        needless * 50 < lookups,
        "{needless} needless looks in {lookups} lookups"
    );
}

#[test]
fn keys_are_read_in_one_split_of_four_only() {
    let index = index(1 << 20);
    let keys = 100_000;
    let mut read = 0;
    for key in 0..keys {
        index
            .lock(hash_of_key(key))
            .insert(copy_of(key, 0), false)
            .unwrap();
        index.resize(|entry| {
            read += 1;
            hash_of(entry)
        });
    }
    assert!(read < keys / 2, "{read} keys read for {keys} inserts");
}

/// A tablet that was split and partly moved away: its index expects more entries than there are.
#[test]
fn uneven_hashes_make_the_index_split_on() {
    let index = index(1 << 20);
    let uneven = |key: u64| KeyHash(hash_of_key(key).0 >> 4);
    let hash_of = |entry| uneven(key_of(entry));
    for key in 0..20_000 {
        put(&index, key, 0, hash_of);
    }
    let mut slots = Vec::new();
    let last = index.scan(Rank(uneven(7).0), &mut slots);
    assert!(
        slots.len() < 30,
        "{} entries in one chain up to {last}",
        slots.len()
    );
    assert_eq!(walk(&index, hash_of).len(), 20_000);
}

#[test]
fn equal_hashes_fill_a_chain_and_leave_it_again() {
    let index = index(2000);
    let hash = KeyHash(0x1234_5678_9abc_def0);
    let same = |_: EntryRef| hash;
    for key in 0..2000 {
        put(&index, key, 0, same);
    }
    let full = index.memory_bytes();
    for key in (0..2000).rev().step_by(2) {
        assert!(index.lock(hash).remove(copy_of(key, 0)));
    }
    for key in 0..2000 {
        assert_eq!(get(&index, key, hash).is_some(), key % 2 == 0);
    }
    for key in (1..2000).step_by(2) {
        put(&index, key, 1, same);
    }
    assert_eq!(
        index.memory_bytes(),
        full,
        "freed overflow lines are used again"
    );
}

#[test]
fn a_full_index_says_so_and_goes_on() {
    let index = index(100);
    let hash = KeyHash(3);
    let mut key = 0;
    let full = loop {
        let inserted = index.lock(hash).insert(copy_of(key, 0), false);
        if let Err(full) = inserted {
            break full;
        }
        key += 1;
    };
    assert_eq!(full, IndexFull);
    assert!(key >= 100, "the promised number fits: {key}");
    assert_eq!(index.len(), key);
    for old in 0..key {
        assert!(index.lock(hash).remove(copy_of(old, 0)));
    }
    assert!(index.is_empty());
    index.lock(hash).insert(copy_of(1, 0), false).unwrap();
}

#[test]
fn room_is_had_before_there_is_an_entry_and_given_back_when_there_will_be_none() {
    let index = index(100);
    let hash = KeyHash(3);
    let mut key = 0;
    while index.lock(hash).room().is_ok() {
        let used = index.table.overflow_used();
        let mut bucket = index.lock(hash);
        drop(bucket.room().unwrap());
        assert_eq!(index.table.overflow_used(), used, "it was given back");
        let room = bucket.room().unwrap();
        assert_eq!(bucket.find(|_| true).is_some(), key > 0);
        bucket.fill(room, copy_of(key, 0), false);
        key += 1;
        assert_eq!(index.len(), key);
    }
    let used = index.table.overflow_used();
    assert!(key >= 100 && used > 0, "{key} entries, {used} lines");
    // Without room nothing has changed, and the present entries stay.
    assert_eq!(index.lock(hash).room().unwrap_err(), IndexFull);
    assert_eq!(
        index.lock(hash).insert(copy_of(key, 0), false),
        Err(IndexFull)
    );
    assert_eq!((index.len(), index.table.overflow_used()), (key, used));
    let found = (0..key).filter(|key| index.lookup(hash, |e| e == copy_of(*key, 0)).is_some());
    assert_eq!(found.count() as u64, key);
    assert!(index.lock(hash).remove(copy_of(0, 0)));
    let mut bucket = index.lock(hash);
    let room = bucket.room().unwrap();
    bucket.fill(room, copy_of(key, 0), true);
}

#[test]
#[should_panic(expected = "locked since there was room")]
fn room_that_is_taken_is_not_filled() {
    let index = index(100);
    let mut bucket = index.lock(KeyHash(3));
    let room = bucket.room().unwrap();
    bucket.insert(copy_of(1, 0), false).unwrap();
    bucket.fill(room, copy_of(2, 0), false);
}

/// Overflow lines begin right behind the last possible line, in the same granule.
#[test]
fn memory_of_overflow_lines_is_not_given_back_with_that_of_lines() {
    for entries in [100, 2046, 100_000, 1_000_000] {
        let index = index(entries);
        let table = &index.table;
        let (first, most) = (table.first_line, table.lines_max);
        for lines in [16, most / 2, most.saturating_sub(1).max(16), most] {
            let end = table.granules_end(lines);
            assert!(end <= first + most, "{lines} lines of {most}: {end}");
            assert!(end >= (first + lines).min(first + most / 1024 * 1024));
            assert!(end.is_multiple_of(1024));
        }
    }
}

#[test]
fn the_number_of_entries_is_never_less_than_nothing() {
    let index = index(100);
    // As a reader of the counters may see them while others write.
    index.table.count_out(3);
    assert_eq!(index.len(), 0);
    index.table.count_in(4);
    assert_eq!(index.len(), 0);
    index.table.count_in(5);
    assert_eq!(index.len(), 1);
}

#[test]
fn too_large_an_index_is_refused() {
    for entries in [Index::ENTRIES_MAX + 1, u64::MAX / 2, u64::MAX] {
        let Err(IndexError::TooLarge { max, .. }) = Index::new(options(entries)) else {
            panic!("an index of {entries} entries");
        };
        assert_eq!(max, Index::ENTRIES_MAX);
    }
    let index = index(Index::ENTRIES_MAX);
    put(&index, 1, 0, hash_of);
    assert!(get(&index, 1, hash_of(copy_of(1, 0))).is_some());
}

#[test]
#[should_panic(expected = "no entry at offset zero")]
fn an_entry_at_offset_zero_is_refused() {
    let _ = index(10).lock(KeyHash(1)).insert(entry(0), false);
}

/// A caller that asked for a home before the index grew, or shrank, finds its entry in its new
/// place.
#[test]
fn what_was_approached_is_found_wherever_it_is_by_now() {
    const KEYS: u64 = 20_000;
    const STEADY: u64 = 200;
    let index = index(100_000);
    let approached = |copy| {
        let pairs = (0..STEADY).map(|key| (copy_of(key, copy), copy_of(key, copy + 1)));
        let all = pairs.map(|(old, new)| (index.approach(hash_of(old)), old, new));
        all.collect::<Vec<_>>()
    };
    let replace_all = |approached: Vec<(Approach, EntryRef, EntryRef)>| {
        let mut likely_ones = 0;
        for (approach, old, new) in approached {
            let _guard = index.epochs.pin();
            let home = index.stable_home(approach).expect("nothing is under way");
            let is_home = home.slots().any(|slot| slot.entry == old);
            assert!(home.is_stable());
            let (mut bucket, likely) = index.lock_after(approach, |_| ());
            match likely.filter(|likely| likely.entry() == old) {
                Some(likely) => {
                    assert!(is_home);
                    bucket.replace_likely(likely, new);
                    likely_ones += 1;
                }
                None => assert!(bucket.replace(old, new, false)),
            }
            drop(bucket);
            assert_eq!(get(&index, key_of(old), hash_of(old)), Some(new));
        }
        assert!(likely_ones > STEADY * 3 / 4, "{likely_ones}");
    };
    for key in 0..STEADY {
        put(&index, key, 0, hash_of);
    }
    let before = approached(0);
    for key in STEADY..KEYS {
        put(&index, key, 0, hash_of);
    }
    replace_all(before);
    let before = approached(1);
    for key in STEADY..KEYS {
        index.remove(key, 0, hash_of);
    }
    replace_all(before);
}

/// Keys that are always there are always found, whatever happens to their neighbours.
#[test]
fn threads_never_miss_what_is_there() {
    const STEADY: u64 = 500;
    const FLEETING: u64 = 6000;
    let index = index(100_000);
    // Few distinct hashes: chains with overflow buckets, so that entries change slots a lot.
    let hash = |key: u64| KeyHash(hash_of_key(key % 700).0);
    let hash_of = |entry| hash(key_of(entry));
    for key in 0..STEADY {
        put(&index, key, 0, hash_of);
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (index, done) = (&index, &done);
            scope.spawn(move || {
                let mut key = reader;
                while !done.load(Ordering::Relaxed) {
                    key = (key + 7) % STEADY;
                    let _guard = index.epochs.pin();
                    let found = get(index, key, hash(key)).expect("always there");
                    assert_eq!(key_of(found), key);
                    if key == 0 {
                        let met = walk(index, hash_of)
                            .into_iter()
                            .filter(|&e| key_of(e) < STEADY);
                        let met: std::collections::BTreeSet<_> = met.map(key_of).collect();
                        assert_eq!(met.len() as u64, STEADY);
                    }
                }
            });
        }
        let writers = [0, 1].map(|writer| {
            let index = &index;
            scope.spawn(move || {
                for round in 0..2 {
                    for key in (STEADY + writer..STEADY + FLEETING).step_by(2) {
                        put(index, key, round, hash_of);
                        if key % 64 < 2 {
                            put(index, (key + round) % STEADY, round, hash_of);
                        }
                    }
                    for key in (STEADY + writer..STEADY + FLEETING).step_by(2) {
                        assert!(index.lock(hash(key)).remove(copy_of(key, round)));
                        index.resize(hash_of);
                    }
                }
            })
        });
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(index.len(), STEADY);
    assert_eq!(walk(&index, hash_of).len() as u64, STEADY);
}

/// The bucket lock makes a read-modify-write of a key's slot atomic.
#[test]
fn threads_count_without_losing_a_step() {
    let index = index(1000);
    let steps = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..2000_u64 {
                    let hash = KeyHash(round % 3);
                    let mut bucket = index.lock(hash);
                    match bucket.find(|_| true) {
                        None => bucket.insert(entry(1), false).unwrap(),
                        Some(Slot { entry: old, .. }) => {
                            assert!(bucket.replace(old, entry(old.offset() + 1), false));
                        }
                    }
                    steps.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    // Hashes 0, 1 and 2 share bucket and tag: one slot counts all.
    let slot = index.lookup(KeyHash(0), |_| true).unwrap();
    assert_eq!(slot.entry.offset(), steps.load(Ordering::Relaxed));
}

#[test]
fn a_lookup_that_is_disturbed_again_and_again_locks_in_the_end() {
    let index = index(100);
    let hash = KeyHash(7);
    let mut bucket = index.lock(hash);
    let room = bucket.room().unwrap();
    bucket.fill(room, entry(64), false);
    drop(bucket);
    let mut attempts = 0;
    let taken = index.lookup_stable(hash, |found| {
        attempts += 1;
        if attempts <= STABLE_ATTEMPTS_MAX {
            let mut bucket = index.lock(hash);
            drop(bucket.begin_change());
        }
        Some(found)
    });
    assert_eq!(taken, Some(entry(64)));
    assert_eq!(attempts, STABLE_ATTEMPTS_MAX + 1);
    let absent = index.lookup_stable(hash, |_| None::<()>);
    assert_eq!(absent, None);
}
