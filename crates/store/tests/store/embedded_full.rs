//! An embedded store whose memory is full all the time, against maps: what makes the live data no
//! larger goes on, what is refused is refused with a delay, and every key has exactly the value and
//! the version that it was given last, in memory and at the sink.
//!
//! `PLUVIO_STEPS` says how many steps each writer does (`cargo xtask long-tests`), `PLUVIO_SEED`
//! which ones.

use crate::disk::Disk;
use pluvio_store::{
    IncrementError, RejectRules, Size, Store, StoreBuilder, StoreError, Table, UpdatePolicy,
    Version,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Rejects every object, and that there is none.
const NO_VERSION: RejectRules = RejectRules {
    version_not_equal: Some(Version(0)),
    ..RejectRules::ABSENT
};

/// A change that makes the live data larger is refused for good after so many attempts: it may be
/// fragmentation before the limit.
const ATTEMPTS_MAX: u32 = 100;
/// Any other that is refused so often, although its thread helps to clean, is refused for ever: all
/// memory would have been cleaned many times over.
const REFUSALS_MAX: u32 = 20_000_000;
/// The largest value, also of a store that overwrites in place, in bytes.
const LARGEST: u64 = (1 << 20) - 12;

/// A number that the environment gives.
fn number_or(name: &str, usual: u64) -> u64 {
    match std::env::var(name) {
        Ok(number) => number
            .parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
        Err(_) => usual,
    }
}

/// A small generator; the same numbers for the same seed.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % n
    }

    /// Sizes that fit badly: around a seglet and the largest entry that may not cross a seglet's
    /// border, the smallest, the largest.
    fn size(&mut self) -> usize {
        let size = match self.below(10) {
            0 => 1 + self.below(32),
            1 => 4096 - 40 + self.below(40),
            2 => 65_536 - 60 + self.below(120),
            3 => 2 * 65_536 - 60 + self.below(120),
            4 if self.below(20) == 0 => LARGEST,
            5 => {
                let bits = self.below(21);
                1 + self.below(1 << bits).min(LARGEST - 1)
            }
            6 => 512 - 40 + self.below(80),
            _ => 100,
        };
        size as usize
    }
}

/// The value that write `round` gives a key.
fn value_of(key: u64, round: u64, len: usize) -> Vec<u8> {
    let mark = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round;
    let mut value = vec![mark as u8; len];
    for (at, byte) in mark.to_le_bytes().into_iter().enumerate() {
        // At the front, and where a large one is cut most probably.
        for place in [at, len / 2 + at, (len + at).saturating_sub(8)] {
            if let Some(there) = value.get_mut(place) {
                *there = byte;
            }
        }
    }
    value
}

/// What a key was given last.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Written {
    version: Version,
    round: u64,
    len: usize,
}

/// What is done to a store.
struct Plan {
    writers: u64,
    keys_each: u64,
    /// A writer fills its part until something is refused, and overwrites then, for so many steps
    /// together.
    turn: u64,
    steps: u64,
}

struct World {
    store: Store,
    table: Table,
    refused: AtomicU64,
    samples: AtomicU64,
    /// At how many of them at least 98 % of the memory were in use, reserves that lie free counted
    /// as free.
    brim: AtomicU64,
}

impl World {
    /// Tries until there is room; nothing when what grows the live data is refused for good.
    fn attempt<T>(
        &self,
        grows: bool,
        mut change: impl FnMut() -> Result<T, StoreError>,
    ) -> Option<Result<T, StoreError>> {
        for refusals in 0..REFUSALS_MAX {
            match change() {
                Err(StoreError::Full { retry_after }) => {
                    assert!(
                        retry_after > Duration::ZERO,
                        "a refusal says when to come back"
                    );
                    if grows && refusals >= ATTEMPTS_MAX {
                        self.refused.fetch_add(1, Ordering::Relaxed);
                        return None;
                    }
                    if !self.store.clean_step() {
                        std::thread::yield_now();
                    }
                }
                done => return Some(done),
            }
        }
        panic!("no progress: {:#?}", self.store.stats());
    }

    fn sample(&self) {
        let stats = self.store.stats();
        let full = stats.log_bytes * 100 >= stats.memory_bytes * 98;
        self.samples.fetch_add(1, Ordering::Relaxed);
        self.brim.fetch_add(u64::from(full), Ordering::Relaxed);
    }
}

/// One thread, and the keys that are its own.
struct Writer<'w> {
    world: &'w World,
    random: Random,
    number: u64,
    written: Vec<Option<Written>>,
    round: u64,
    counted: Option<i64>,
}

impl<'w> Writer<'w> {
    fn new(world: &'w World, plan: &Plan, number: u64, seed: u64) -> Self {
        Self {
            world,
            random: Random::new(seed * 1000 + number + 1),
            number,
            written: vec![None; plan.keys_each as usize],
            round: 0,
            counted: None,
        }
    }

    fn key(&self, own: usize) -> u64 {
        self.number << 32 | own as u64
    }

    /// Gives whether it was done.
    fn put(&mut self, own: usize, len: usize) -> bool {
        let (key, old) = (self.key(own), self.written[own]);
        self.round += 1;
        let value = value_of(key, self.round, len);
        let grows = old.is_none_or(|old| len > old.len);
        // Now and then only if it still is what it was last.
        let conditional = self.random.below(4) == 0;
        let done = self.world.attempt(grows, || match old {
            Some(old) if conditional => {
                let condition = RejectRules::unless_version(old.version);
                self.world
                    .table
                    .put_if(&key.to_le_bytes(), &value, condition)
            }
            _ => self.world.table.put(&key.to_le_bytes(), &value),
        });
        let Some(done) = done else {
            return false;
        };
        let version = done.unwrap();
        assert!(
            old.is_none_or(|old| old.version < version),
            "{old:?}, {version:?}"
        );
        self.written[own] = Some(Written {
            version,
            round: self.round,
            len,
        });
        true
    }

    fn delete(&mut self, own: usize) {
        let key = self.key(own).to_le_bytes();
        let done = self.world.attempt(false, || self.world.table.delete(&key));
        let was_there = self.written[own].take().is_some();
        assert_eq!(done.unwrap().unwrap(), was_there, "key {own}");
    }

    /// A version that it no longer has.
    fn put_if_older(&self, own: usize) {
        let key = self.key(own).to_le_bytes();
        let condition = NO_VERSION;
        let refused = self.world.table.put_if(&key, b"never", condition);
        let found = self.written[own].map(|written| written.version);
        assert_eq!(refused, Err(StoreError::Condition { found }));
    }

    fn increment(&mut self) {
        let key = [b'n', self.number as u8];
        let done = self
            .world
            .attempt(true, || match self.world.table.increment(&key, 3) {
                Ok(sum) => Ok(sum),
                Err(IncrementError::Store(error)) => Err(error),
                Err(other) => panic!("{other}"),
            });
        if let Some(sum) = done {
            let expected = self.counted.unwrap_or(0) + 3;
            assert_eq!(sum.unwrap(), expected);
            self.counted = Some(expected);
        }
    }

    fn check(&self, own: usize) {
        let key = self.key(own);
        let found = self
            .world
            .table
            .get_with(&key.to_le_bytes(), |version, value| {
                let expected = self.written[own].map(|w| value_of(key, w.round, w.len));
                assert!(
                    expected.is_some_and(|expected| expected == value),
                    "key {own} has another value of {} bytes than {:?}",
                    value.len(),
                    self.written[own]
                );
                version
            });
        assert_eq!(found, self.written[own].map(|w| w.version), "key {own}");
    }

    fn check_batch(&mut self) {
        let owns: Vec<usize> = (0..16)
            .map(|_| self.random.below(self.written.len() as u64) as usize)
            .collect();
        let keys: Vec<[u8; 8]> = owns
            .iter()
            .map(|own| self.key(*own).to_le_bytes())
            .collect();
        let wanted: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        self.world.table.get_batch(&wanted, |at, value| {
            let written = self.written[owns[at]];
            let expected = written.map(|w| value_of(self.key(owns[at]), w.round, w.len));
            assert!(value == expected.as_deref(), "key {} of a batch", owns[at]);
        });
    }

    fn run(&mut self, plan: &Plan) {
        for own in 0..self.written.len() {
            let len = self.random.size();
            if !self.put(own, len) {
                break;
            }
        }
        let mut fills = true;
        for step in 0..plan.steps {
            fills |= step.is_multiple_of(plan.turn);
            let own = self.random.below(plan.keys_each) as usize;
            let len = self.random.size();
            match (self.random.below(24), self.written[own]) {
                (0, _) => self.delete(own),
                (1, _) => self.put_if_older(own),
                (2, _) => self.increment(),
                (3, _) => self.check_batch(),
                (4..6, _) => self.check(own),
                (6..10, Some(old)) => assert!(self.put(own, len.min(old.len))),
                (_, Some(old)) if !fills => assert!(self.put(own, old.len)),
                (_, None) if !fills => {}
                (_, _) => fills = self.put(own, len),
            }
            if step % 16 == 0 {
                self.world.sample();
            }
            if self.number == 0 && step % 64 == 0 {
                self.world.store.clean_step();
            }
        }
    }
}

/// Gives the share of the samples, in percent, at which at least 98 % of the memory were in use.
fn full_all_the_time(builder: StoreBuilder, disk: Option<&Disk>, plan: &Plan) -> u64 {
    let seed = number_or("PLUVIO_SEED", 1);
    println!("PLUVIO_SEED={seed}");
    let builder = match disk {
        Some(disk) => builder.sink(disk.clone()),
        None => builder,
    };
    let store = builder
        .live_percent_max(98)
        .huge_pages(false)
        .build()
        .unwrap();
    let table = store.create_table("full").unwrap();
    let world = World {
        store,
        table,
        refused: AtomicU64::new(0),
        samples: AtomicU64::new(0),
        brim: AtomicU64::new(0),
    };
    let mut writers: Vec<Writer<'_>> = (0..plan.writers)
        .map(|number| Writer::new(&world, plan, number, seed))
        .collect();
    std::thread::scope(|scope| {
        for writer in &mut writers {
            scope.spawn(|| writer.run(plan));
        }
    });
    let mut expected = BTreeMap::new();
    for writer in &writers {
        for own in 0..writer.written.len() {
            writer.check(own);
            if let Some(written) = writer.written[own] {
                let key = writer.key(own);
                let value = value_of(key, written.round, written.len);
                expected.insert(key.to_le_bytes().to_vec(), value);
            }
        }
        if let Some(counted) = writer.counted {
            let key = vec![b'n', writer.number as u8];
            expected.insert(key, counted.to_string().into_bytes());
        }
    }
    let found: BTreeMap<_, _> = world.table.iter().collect();
    assert!(found == expected, "the walk differs");
    if let Some(disk) = disk {
        world.store.sync().unwrap();
        assert!(disk.objects() == expected, "the sink differs");
    }
    let stats = world.store.stats();
    let bytes = expected.iter().map(|(key, value)| key.len() + value.len());
    assert_eq!(stats.objects, expected.len() as u64);
    assert_eq!(stats.object_bytes, bytes.sum::<usize>() as u64);
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    let brim = count(&world.brim) * 100 / count(&world.samples);
    println!(
        "{} refused, 98 % used at {brim} % of {} looks, {:?}",
        count(&world.refused),
        count(&world.samples),
        stats.cleaner
    );
    assert!(count(&world.refused) > 0, "memory was full");
    // Without a sink there is one level.
    let cleaner = stats.cleaner;
    assert!(cleaner.bytes_moved > 0, "{cleaner:?}");
    assert!(disk.is_none() || cleaner.bytes_compacted > 0, "{cleaner:?}");
    brim
}

fn threads(steps: u64) -> Plan {
    Plan {
        writers: 3,
        keys_each: 2_000,
        turn: 250,
        steps: number_or("PLUVIO_STEPS", steps),
    }
}

fn with_threads() -> StoreBuilder {
    Store::builder()
        .memory(Size::mib(96))
        .heads(2)
        .cleaner_threads(2)
}

#[test]
fn several_writers_go_on_in_a_full_memory() {
    full_all_the_time(with_threads(), None, &threads(6_000));
}

#[test]
fn several_writers_go_on_in_a_full_memory_with_a_sink() {
    full_all_the_time(with_threads(), Some(&Disk::default()), &threads(4_000));
}

#[test]
fn several_writers_go_on_in_a_full_memory_that_is_overwritten_in_place() {
    let builder = with_threads().update(UpdatePolicy::InPlace);
    full_all_the_time(builder, None, &threads(6_000));
}

/// In a memory of which the reserves are little, so that it can be full to 98 % with all of them.
fn at_the_brim(disk: Option<&Disk>) {
    let builder = Store::builder()
        .memory(Size::mib(320))
        .heads(1)
        .cleaner_threads(0);
    let plan = Plan {
        writers: 1,
        keys_each: 20_000,
        turn: 2_000,
        steps: number_or("PLUVIO_STEPS", 6_000),
    };
    let brim = full_all_the_time(builder, disk, &plan);
    assert!(
        brim >= 30,
        "98 % of the memory were in use at {brim} % of the looks"
    );
}

#[test]
fn one_writer_goes_on_with_98_percent_of_the_memory_in_use() {
    at_the_brim(None);
}

#[test]
fn one_writer_goes_on_with_98_percent_of_the_memory_in_use_with_a_sink() {
    at_the_brim(Some(&Disk::default()));
}
