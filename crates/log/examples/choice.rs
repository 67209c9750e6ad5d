//! The cost of choosing segments to clean, beside that of copying what lives in them.
//!
//! `cargo run --release -p pluvio-log --example choice -- [GIB] [LOGS] [CHOICES]`
//!
//! The segments are made up: tables and counters only (`pluvio_log::made_up`). 90 % of the memory
//! lives. After each choice its segments are taken for cleaned. As much as that freed is taken for
//! written by new segments, and as much dies elsewhere. The speed of copying is that of a small
//! store of real entries, with an index that costs hardly anything.

#![allow(
    clippy::disallowed_methods,
    reason = "a measurement needs the real clock"
)]

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use pluvio_format::{Completion, Graves, Object, ObjectState};
use pluvio_log::made_up::MadeUp;
use pluvio_log::{
    AppendClass, Cleaner, CleanerOptions, Durability, Liveness, LogOptions, LogSpace, TableLiveness,
};
use pluvio_units::{EntryRef, KeyHash, LogId, ObjectVersion, Pace, SEGLET_BYTES, Size, TableId};
use std::sync::Arc;
use std::time::Instant;

const GIB: u64 = 1 << 30;
const SEGMENT: u64 = 8 << 20;
/// Live data of the store that is measured, of a thousand.
const LIVE_PERMILLE: u64 = 900;
/// Memory that is left free: less than that with which cleaning begins, but not critical.
const FREE_PERMILLE: u64 = 8;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % n
    }
}

/// An index that knows a place for each key, which is its own hash.
struct Places(Vec<AtomicU64>);

impl Places {
    fn of(&self, hash: KeyHash) -> &AtomicU64 {
        &self.0[hash.0 as usize]
    }
}

struct Handle(Arc<Places>);

impl Liveness for Handle {
    fn table(&self, _: TableId) -> Option<Arc<dyn TableLiveness>> {
        Some(Arc::new(Handle(Arc::clone(&self.0))))
    }

    fn needs_completion(&self, _: &Completion, _: EntryRef) -> bool {
        false
    }

    fn relocate_completion(&self, _: &Completion, _: EntryRef, _: EntryRef) -> bool {
        false
    }
}

impl TableLiveness for Handle {
    fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash(u64::from_le_bytes(
            key.try_into().expect("keys are numbers"),
        ))
    }

    fn points_to(&self, hash: KeyHash, entry: EntryRef) -> bool {
        self.0.of(hash).load(Ordering::Relaxed) == entry.offset()
    }

    fn needs_tombstone(&self, _: KeyHash, _: EntryRef) -> bool {
        false
    }

    fn relocate(&self, hash: KeyHash, old: EntryRef, new: EntryRef) -> bool {
        let (old, new) = (old.offset(), new.offset());
        let place = self.0.of(hash);
        let relaxed = Ordering::Relaxed;
        place.compare_exchange(old, new, relaxed, relaxed).is_ok()
    }
}

/// Bytes a second that a cleaner moves in a full store of 256 MiB with values of this size.
fn copy_speed(value: usize) -> f64 {
    let options = LogOptions::new(Size::mib(256));
    // The longest entry with such a value, as its version grows.
    let len = value as u64 + 44;
    let keys = (256 << 20) * (LIVE_PERMILLE - 5) / 1000 / len;
    let space = LogSpace::new(options).expect("enough memory");
    let places = Places((0..keys).map(|_| AtomicU64::new(0)).collect());
    let places = Arc::new(places);
    let handle = Arc::new(Handle(Arc::clone(&places)));
    let cleaner = Cleaner::new(Arc::clone(&space), handle, CleanerOptions::default());
    let (mut random, value) = (Random(1), vec![7; value]);
    let (mut spent, mut before) = (Duration::ZERO, 0);
    for number in 0..3 * keys {
        if number == 2 * keys {
            (spent, before) = (Duration::ZERO, space.stats().cleaner.bytes_moved);
        }
        let key = match number < keys {
            true => number,
            false => random.below(keys),
        };
        loop {
            let guard = space.pin();
            let object = Object {
                table: TableId(1),
                version: ObjectVersion(number + 1),
                timestamp_s: (number / 100_000) as u32,
                graves: Graves::NONE,
                deadline: None,
                state: ObjectState::Plain,
                key: &key.to_le_bytes(),
                value: &value,
            };
            let class = match number < keys {
                true => AppendClass::Normal,
                false => AppendClass::Replace {
                    old_bytes: len as u32,
                    graves_bytes: 0,
                },
            };
            if let Ok(appended) = space.append_object(LogId(0), &object, class, &guard) {
                let new = appended.pending().offset();
                let old = places.0[key as usize].swap(new, Ordering::Relaxed);
                if old != 0 {
                    let old = EntryRef::new(old);
                    let len = space.entry(old, &guard).expect("it is whole").total_len();
                    space.mark_dead(old, len, &guard);
                }
                break;
            }
            drop(guard);
            let begun = Instant::now();
            while cleaner.step(space.time_s()).expect("all is whole") == Pace::Again {}
            spent += begun.elapsed();
        }
    }
    let stats = space.stats();
    let utilization = stats.live_bytes as f64 / stats.memory_bytes as f64;
    let speed = (stats.cleaner.bytes_moved - before) as f64 / spent.as_secs_f64();
    println!(
        "copying with values of {} bytes, {:.1} % live: {:.2} GB/s",
        value.len(),
        100.0 * utilization,
        speed / 1e9
    );
    speed
}

/// The choices of one kind.
#[derive(Default)]
struct Kind {
    times: Vec<Duration>,
    live_bytes: u64,
    freed_bytes: u64,
    ending: Duration,
}

impl Kind {
    fn print(&mut self, name: &str, speeds: [f64; 2]) {
        if self.times.len() < 2 {
            return;
        }
        // The first one, of a cleaner that knows no segment, looks at all.
        let first = self.times.remove(0);
        self.times.sort();
        let count = self.times.len();
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let mean = us(self.times.iter().sum()) / count as f64;
        let copied = self.live_bytes as f64 / (count + 1) as f64;
        println!(
            "{name}: first choice {:.0} us; {count} more, mean {mean:.1} us, median {:.1}, 99 % {:.1}, most {:.1}; \
             {:.2} MiB to copy for {:.2} freed; end of a pass {:.1} us",
            us(first),
            us(self.times[count / 2]),
            us(self.times[count * 99 / 100]),
            us(self.times[count - 1]),
            copied / f64::from(1 << 20),
            self.freed_bytes as f64 / count as f64 / f64::from(1 << 20),
            us(self.ending) / count as f64,
        );
        for (speed, value) in speeds.into_iter().zip(["100 B", "1 KB"]) {
            let copying = copied / speed * 1e6;
            println!(
                "  {value}: copying takes {copying:.0} us, the choice {:.2} % of it",
                100.0 * mean / copying
            );
        }
    }
}

struct Store {
    made: MadeUp,
    random: Random,
    logs: u64,
    /// Segments made up so far.
    written: u64,
    hot: bool,
}

impl Store {
    fn new(gib: u64, logs: u16, durability: Durability, hot: bool) -> Self {
        let options = LogOptions {
            logs,
            durability,
            ..LogOptions::new(Size(gib * GIB))
        };
        let made = MadeUp::new(options, CleanerOptions::default()).expect("address space");
        let mut store = Self {
            made,
            random: Random(3),
            logs: u64::from(logs),
            written: 0,
            hot,
        };
        // With replicas the log on disk is nearly as long as it may be, and what of a segment died
        // was compacted.
        let (count, dead) = match durability {
            Durability::Volatile => (gib * GIB * 985 / 1000 / SEGMENT, 0),
            Durability::Replicated => (gib * GIB * 2 / SEGMENT * 898 / 1000, 14),
        };
        let mean = gib * GIB * LIVE_PERMILLE / 1000 / count;
        loop {
            let stats = store.made.space().stats();
            let rest = stats
                .free_bytes
                .saturating_sub(gib * GIB / 1000 * FREE_PERMILLE);
            let mut left = (rest / (16 << 20)).min(1000);
            if left == 0 {
                break;
            }
            while left > 0 {
                let spread = mean.min(SEGMENT - mean) / 2;
                let live = mean - spread + store.random.below(2 * spread);
                let seglets = match dead {
                    0 => SEGMENT / SEGLET_BYTES as u64,
                    dead => live.div_ceil(SEGLET_BYTES as u64) + store.random.below(dead),
                };
                store.add(live, seglets.min(128));
                left -= 1;
            }
        }
        store
    }

    fn add(&mut self, live: u64, seglets: u64) {
        let log = LogId((self.written % self.logs) as u16);
        self.written += 1;
        self.made.space().set_time((self.written / 16) as u32);
        let len = SEGMENT as u32;
        assert!(self.made.add(log, len, live, seglets as usize));
    }

    /// A segment is written, and as much dies elsewhere.
    fn write(&mut self) {
        self.add(SEGMENT, SEGMENT / SEGLET_BYTES as u64);
        let mut left = SEGMENT;
        while left > 0 {
            let count = self.made.count() as u64;
            // A tenth of the segments, the newest, loses nine tenths.
            let place = match self.hot && self.random.below(10) > 0 {
                true => count - 1 - self.random.below(count / 10),
                false => self.random.below(count),
            };
            // As much as lives there: all bytes die equally often.
            let lives = self.made.live_bytes(place as usize);
            if lives < self.random.below(SEGMENT) {
                continue;
            }
            let by = LogId(self.random.below(self.logs) as u16);
            left -= self.made.kill(place as usize, by, left.min(16 << 10));
        }
    }

    /// Lets the cleaner choose so often. Gives the choices of compactions, and of combined passes.
    fn run(&mut self, choices: u64) -> [Kind; 2] {
        let mut kinds: [Kind; 2] = Default::default();
        let mut to_write = 0;
        let mut without = 0;
        for _ in 0..choices {
            let begun = Instant::now();
            let chosen = self.made.choose();
            let time = begun.elapsed();
            let Some(chosen) = chosen else {
                without += 1;
                to_write += SEGMENT;
                self.write_all(&mut to_write);
                continue;
            };
            let kind = &mut kinds[usize::from(!chosen.is_compaction())];
            kind.times.push(time);
            kind.live_bytes += chosen.live_bytes;
            let begun = Instant::now();
            let freed = self.made.clean(chosen);
            kind.ending += begun.elapsed();
            kind.freed_bytes += freed;
            to_write += freed;
            self.write_all(&mut to_write);
        }
        if without > 0 {
            println!("{without} without a find");
        }
        kinds
    }

    fn write_all(&mut self, bytes: &mut u64) {
        while *bytes >= SEGMENT {
            *bytes -= SEGMENT;
            self.write();
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |usual: u64| {
        arguments
            .next()
            .map_or(usual, |n| n.parse().expect("a number"))
    };
    let (gib, logs, choices) = (number(256), number(32), number(2000));
    let speeds = [100, 1000].map(copy_speed);
    for (durability, hot) in [
        (Durability::Replicated, false),
        (Durability::Replicated, true),
        (Durability::Volatile, false),
        (Durability::Volatile, true),
    ] {
        let mut store = Store::new(gib, logs as u16, durability, hot);
        let segments = store.made.count();
        println!("{durability:?}, hot: {hot}, {gib} GiB, {logs} logs, {segments} segments");
        let [mut compactions, mut passes] = store.run(choices);
        compactions.print("compaction", speeds);
        passes.print("combined", speeds);
        let kinds = [compactions, passes];
        let sum = |of: fn(&Kind) -> u64| kinds.iter().map(of).sum::<u64>() as f64;
        let (copied, freed) = (sum(|k| k.live_bytes), sum(|k| k.freed_bytes));
        println!("  {:.2} bytes copied for each freed", copied / freed);
    }
}
