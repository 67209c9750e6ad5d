//! The cost of keys with equal hashes, for themselves and for others. The decision on hostile keys
//! (`docs/decisions`) has the figures.
//!
//! `cargo run --release -p pluvio-index --example colliding`
//!
//! A stand-in for the log: entries of 128 bytes, each with its key at the beginning. A look at an
//! entry is then a look at memory of its own. Bystanders are keys with evenly spread hashes.

// A measurement needs the real clock.
#![allow(clippy::disallowed_methods)]

use pluvio_index::{Index, IndexOptions};
use pluvio_memory::{NodeSet, ReclaimEpochs};
use pluvio_units::{EntryRef, HashKind, HashRange, KeyHash};
use std::hint::black_box;
use std::time::{Duration, Instant};

const BYSTANDERS: u64 = 1_000_000;
const ENTRY_WORDS: u64 = 16;

struct World {
    index: Index,
    epochs: ReclaimEpochs,
    /// The entries' words; the first one of each is its key.
    log: Vec<u64>,
}

/// Keys from the number of bystanders on collide.
fn hash(key: u64) -> KeyHash {
    match key < BYSTANDERS {
        true => KeyHash::of(7, &key.to_le_bytes()),
        false => KeyHash(0x0123_4567_89ab_cdef),
    }
}

impl World {
    fn new(keys: u64) -> Self {
        let options = IndexOptions {
            entries_max: 2 * keys,
            expected: HashRange::ALL,
            kind: HashKind::Seeded,
            huge_pages: true,
            nodes: NodeSet::EMPTY,
        };
        let mut log = vec![0; ((keys + 1) * ENTRY_WORDS) as usize];
        for key in 0..keys {
            log[((key + 1) * ENTRY_WORDS) as usize] = key;
        }
        Self {
            index: Index::new(options).expect("there is address space"),
            epochs: ReclaimEpochs::new(4).expect("there is address space"),
            log,
        }
    }

    /// The key of an entry, read in the log.
    fn key_of(&self, entry: EntryRef) -> u64 {
        self.log[entry.offset() as usize / 8]
    }

    /// As a put does it: finds the key under the lock, inserts, resizes.
    fn put(&self, key: u64) {
        let guard = self.epochs.pin();
        let mut bucket = self.index.lock(hash(key));
        assert!(bucket.find(|entry| self.key_of(entry) == key).is_none());
        let entry = EntryRef::new((key + 1) * ENTRY_WORDS * 8);
        bucket.insert(entry, false).expect("there is room for all");
        drop(bucket);
        self.index.resize(&guard, |entry| hash(self.key_of(entry)));
    }

    fn get(&self, key: u64) {
        let _guard = self.epochs.pin();
        let found = self
            .index
            .lookup(hash(key), |entry| self.key_of(entry) == key);
        assert!(black_box(found).is_some());
    }
}

fn each(times: u64, mut action: impl FnMut(u64)) -> Duration {
    let start = Instant::now();
    (0..times).for_each(&mut action);
    start.elapsed() / u32::try_from(times).expect("some millions at most")
}

fn main() {
    println!("colliding,get,absent,put,longest put,get of a bystander,bytes an entry");
    for colliding in [0, 1_000, 10_000] {
        let keys = BYSTANDERS + colliding;
        let world = World::new(keys);
        (0..BYSTANDERS).for_each(|key| world.put(key));
        let mut longest = Duration::ZERO;
        // The last tenth: the other nine tenths are there already.
        let begin = BYSTANDERS + colliding / 10 * 9;
        (BYSTANDERS..begin).for_each(|key| world.put(key));
        let put = each((keys - begin).max(1), |n| {
            if begin + n < keys {
                let one = each(1, |_| world.put(begin + n));
                longest = longest.max(one);
            }
        });
        let get = each(1_000.min(colliding).max(1), |n| {
            if colliding > 0 {
                world.get(BYSTANDERS + n * 7_919 % colliding);
            }
        });
        let absent = each(100, |_| {
            if colliding > 0 {
                let _guard = world.epochs.pin();
                let found = world
                    .index
                    .lookup(hash(keys), |entry| world.key_of(entry) == keys);
                assert!(found.is_none());
            }
        });
        let bystander = each(2_000_000, |n| world.get(n * 7_919 % BYSTANDERS));
        let bytes = world.index.memory_bytes() as f64 / keys as f64;
        println!("{colliding},{get:?},{absent:?},{put:?},{longest:?},{bystander:?},{bytes:.2}");
    }
}
