//! The cost of an operation: the lines that a lookup, a change and a step of resizing ask for, even
//! with maliciously chosen keys. A memory that notes every requested line counts them.
//!
//! Bounds, with `n` entries of one hash (`docs/key-index.md`, "Weaknesses"):
//! - A key in their block walks at most the block's lines and `n / 7` lines more, once or twice.
//! - A key in another block is unaffected.

use crate::resize::Resizer;
use crate::slot;
use crate::table::Table;
use crate::tests::{copy_of, hash_of_key, key_of};
use crate::words::Lines;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use pluvio_memory::ReclaimEpochs;
use pluvio_units::{EntryRef, KeyHash};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

/// Most lines of a block with evenly spread keys: fifteen, the line of its head, and a short chain.
const BLOCK: u64 = 15 + 1 + 2;

/// Lines of an index in memory that counts.
struct Counted {
    lines: Vec<[AtomicU64; 8]>,
    /// Number of requests for each line; `None` while nobody counts. The first line, with the
    /// number of lines, takes part in every operation and is not counted.
    asked: RefCell<Option<BTreeMap<u64, u64>>>,
}

impl Lines for Counted {
    type Word = AtomicU64;
    const SLOTS: usize = 8;
    const OVERFLOW_SLOTS: usize = 7;
    const BLOCK_LOG: u32 = 3;
    // Larger than these tests' memory: nothing is given back.
    const GRANULE: u64 = 1 << 32;
    const ALIGN: u64 = 1;

    fn count(&self) -> u64 {
        self.lines.len() as u64
    }

    fn line(&self, number: u64) -> &[AtomicU64; 8] {
        if number > 0
            && let Some(asked) = &mut *self.asked.borrow_mut()
        {
            *asked.entry(number).or_insert(0) += 1;
        }
        &self.lines[usize::try_from(number).unwrap()]
    }

    fn give_back(&self, _lines: Range<u64>) -> bool {
        false
    }

    fn prefetch(&self, _number: u64) {}

    fn wait(_attempt: u32) {}

    fn fence_acquire() {
        fence(Ordering::Acquire);
    }

    fn fence_release() {
        fence(Ordering::Release);
    }
}

/// The requests of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Asked {
    /// Different lines.
    lines: u64,
    /// The most requests for one of them.
    times: u64,
}

/// An index whose keys have the hashes that `hash` gives.
struct Steps<H> {
    table: Table<Counted>,
    epochs: ReclaimEpochs,
    hash: H,
}

impl<H: Fn(u64) -> u64> Steps<H> {
    /// Sized as [`Index::new`](crate::Index::new) does it.
    fn new(entries_max: u64, hash: H) -> Self {
        let lines_max = entries_max / 2 + 1;
        let first = Table::<Counted>::first_line(lines_max);
        let count = first + lines_max + entries_max / 6 + 16;
        let memory = Counted {
            lines: (0..count).map(|_| Default::default()).collect(),
            asked: RefCell::default(),
        };
        Self {
            table: Table::new(memory, 16, lines_max),
            epochs: ReclaimEpochs::new(2).unwrap(),
            hash,
        }
    }

    fn counted<T>(&self, operation: impl FnOnce(&Table<Counted>) -> T) -> (T, Asked) {
        *self.table.memory.asked.borrow_mut() = Some(BTreeMap::new());
        let done = operation(&self.table);
        let asked = self.table.memory.asked.take().unwrap();
        let asked = Asked {
            lines: asked.len() as u64,
            times: asked.values().copied().max().unwrap_or(0),
        };
        (done, asked)
    }

    /// The entry's slot is the first one that is empty: as after a search that found nothing.
    fn insert(&self, key: u64) {
        let mut bucket = self.table.lock((self.hash)(key));
        let word = slot::pack(bucket.address().tag, copy_of(key, 0), false);
        bucket.insert(word).unwrap();
    }

    fn resize(&self) -> u32 {
        let place_of = |entry| (self.hash)(key_of(entry));
        self.table.resize(&self.epochs, place_of)
    }

    fn put(&self, key: u64) {
        self.insert(key);
        self.resize();
    }

    /// Looks a key up. Also gives the number of entries that were looked at.
    fn look_up(&self, key: u64) -> (Option<EntryRef>, u64, Asked) {
        let mut looks = 0;
        let (found, asked) = self.counted(|table| {
            table.lookup((self.hash)(key), |slot| {
                looks += 1;
                (key_of(slot.entry) == key).then_some(slot.entry)
            })
        });
        (found, looks, asked)
    }

    fn block_of(&self, key: u64) -> u64 {
        self.table.address((self.hash)(key)).block.number
    }
}

/// Results of this many lookups: lines on average, and the most of one.
#[derive(Default, Debug)]
struct Sum {
    lookups: u64,
    lines: u64,
    lines_max: u64,
}

impl Sum {
    fn add(&mut self, asked: Asked) {
        self.lookups += 1;
        self.lines += asked.lines;
        self.lines_max = self.lines_max.max(asked.lines);
    }

    /// In hundredths.
    fn mean(&self) -> u64 {
        self.lines * 100 / self.lookups
    }
}

#[test]
fn a_lookup_needs_one_line_and_seldom_more_at_every_size() {
    let keys = 50_000;
    let steps = Steps::new(2 * keys, |key| hash_of_key(key).0);
    let (mut here, mut absent) = (Sum::default(), Sum::default());
    for key in 0..keys {
        steps.put(key);
        let (found, looks, asked) = steps.look_up(key / 2);
        assert_eq!(found, Some(copy_of(key / 2, 0)));
        assert!(looks <= 8, "{looks} entries looked at");
        here.add(asked);
        let (found, _, asked) = steps.look_up(keys + key);
        assert_eq!(found, None);
        absent.add(asked);
    }
    assert!(here.mean() <= 120 && here.lines_max <= BLOCK, "{here:?}");
    // Its home, and the head that proves that it is nowhere else.
    assert!(
        absent.mean() <= 270 && absent.lines_max <= BLOCK,
        "{absent:?}"
    );
}

/// Keys with one hash. Only somebody with the table's seed can choose them.
#[test]
fn colliding_keys_cost_a_seventh_of_a_line_each_and_bystanders_nothing() {
    let bystanders = 30_000;
    let mean_with = |colliding: u64| {
        let hash = move |key: u64| match key {
            key if key < bystanders => hash_of_key(key).0,
            _ => 0x0123_4567_89ab_cdef,
        };
        let steps = Steps::new(2 * (bystanders + colliding), hash);
        (0..bystanders + colliding).for_each(|key| steps.put(key));
        let lines_max = BLOCK + colliding / 7 + 1;
        let looks_max = colliding + 8 * BLOCK;
        // The first, the last, and a missing one.
        let chosen = (bystanders..=bystanders + colliding).step_by(colliding.max(16) as usize / 16);
        for key in chosen.chain([bystanders + colliding]) {
            let (found, looks, asked) = steps.look_up(key);
            assert_eq!(found.is_some(), key < bystanders + colliding);
            assert!(looks <= looks_max, "{looks} entries looked at");
            assert!(asked.lines <= lines_max && asked.times <= 3, "{asked:?}");
            let (_, asked) = steps.counted(|table| {
                let bucket = table.lock(hash(key));
                bucket
                    .find_tagged(|word| key_of(slot::entry_of(word)) == key)
                    .is_some()
            });
            assert!(asked.lines <= lines_max && asked.times <= 3, "{asked:?}");
        }
        let crowded = steps.block_of(bystanders);
        let (mut neighbours, mut others) = (0, Sum::default());
        for key in 0..bystanders {
            let (found, looks, asked) = steps.look_up(key);
            assert!(found.is_some());
            if steps.block_of(key) == crowded {
                assert!(asked.lines <= lines_max, "{asked:?}");
                neighbours += 1;
            } else {
                assert!(looks <= 8, "{looks} entries looked at");
                others.add(asked);
            }
        }
        assert!(neighbours <= 15 * 8, "{neighbours} share the block");
        assert!(others.lines_max <= BLOCK, "{others:?}");
        others.mean()
    };
    let alone = mean_with(0);
    for colliding in [1_000, 10_000] {
        let mean = mean_with(colliding);
        assert!(
            mean <= alone + 2,
            "{mean} beside {colliding}, {alone} alone"
        );
    }
}

/// Keys that were chosen for the seed of one table are harmless for any other one.
#[test]
fn keys_that_collide_under_one_seed_are_spread_under_another() {
    let bystanders = 20_000_u64;
    let under = |seed: u64, key: u64| KeyHash::of(seed, &key.to_le_bytes()).0;
    let chosen: Vec<u64> = (bystanders..)
        .filter(|&key| under(1, key) >> 50 == 77)
        .take(200)
        .collect();
    let cost = |seed: u64| {
        let steps = Steps::new(4 * bystanders, |key| under(seed, key));
        (0..bystanders).for_each(|key| steps.put(key));
        chosen.iter().for_each(|&key| steps.put(key));
        let mut sum = Sum::default();
        for &key in &chosen {
            let (found, _, asked) = steps.look_up(key);
            assert!(found.is_some());
            sum.add(asked);
        }
        sum
    };
    let known = cost(1);
    assert!(known.mean() > 1_000, "they collide: {known:?}");
    for seed in [2, 3, u64::MAX] {
        let other = cost(seed);
        // They came last, so more of them than of others lie behind full homes.
        assert!(other.mean() <= 350 && other.lines_max <= BLOCK, "{other:?}");
    }
}

/// The bound of a step: two blocks, their heads, the line that comes or goes, and their chains.
/// Only keys of the entries of these blocks are read.
#[test]
fn a_step_touches_two_blocks_at_most_at_every_size() {
    let keys = 40_000;
    let steps = Steps::new(2 * keys, |key| hash_of_key(key).0);
    let (lines_max, reads_max) = (2 * BLOCK + 1 + 8, 2 * 15 * 8 + 8);
    let mut resizer = Resizer::new(16);
    let step = |resizer: &mut Resizer, grows: bool| {
        let mut reads = 0;
        let (done, asked) = steps.counted(|table| {
            let mut place_of = |entry| {
                reads += 1;
                hash_of_key(key_of(entry)).0
            };
            if grows {
                table.grow(resizer, &mut place_of)
            } else {
                table.shrink(resizer, &mut place_of)
            }
        });
        assert!(done && asked.lines <= lines_max, "{asked:?}");
        assert!(reads <= reads_max, "{reads} keys were read");
        assert!(asked.times <= 8, "{asked:?}");
    };
    for key in 0..keys {
        steps.insert(key);
        while steps.table.is_crowded(steps.table.len()) {
            step(&mut resizer, true);
        }
    }
    let full = steps.table.lines();
    assert!(full * 8 > keys, "{full} lines");
    for key in (0..keys).rev() {
        assert!(steps.table.lock(hash_of_key(key).0).remove(copy_of(key, 0)));
        while steps.table.lines() > 16 && steps.table.is_sparse(steps.table.len()) {
            step(&mut resizer, false);
        }
    }
    assert!(steps.table.lines() < 32);
    // No call does more than a step or two, however much is due.
    let keys = 10_000;
    let crowded = Steps::new(2 * keys, |key| hash_of_key(key).0);
    (0..keys).for_each(|key| crowded.insert(key));
    let mut calls = 0;
    loop {
        match crowded.resize() {
            0 => break,
            done => assert!(done <= 2, "{done} lines in one call"),
        }
        calls += 1;
    }
    assert!(calls * 2 * 8 >= keys / 2, "{calls} calls");
}
