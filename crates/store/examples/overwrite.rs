//! How fast a full store is overwritten while it is cleaned [LSM-DRAM §8.1]: one line of CSV for each
//! run.
//!
//! `cargo run --release -p pluvio-store --example overwrite -- --utilization 30,80,90 --size 1000`
//!
//! | option | default | |
//! |---|---|---|
//! | `--utilization` | 30,80,90 | live objects, in percent of the log memory; several, with commas |
//! | `--size` | 1000 | bytes of a value |
//! | `--distribution` | uniform | or `hotcold`: 90 % of the writes to 10 % of the objects |
//! | `--mode` | volatile | or `replicated`: with tombstones and digests; the backups cost nothing |
//! | `--cleaning` | two | or `one`: combined passes only |
//! | `--threads` | 1 | writers, each with a log of its own |
//! | `--cleaners` | 1 | cleaner threads |
//! | `--memory` | 512 | log memory in MiB |
//! | `--seconds` | 5 | of measuring, after every byte of memory was overwritten once |
//! | `--expansion` | 200 | disk expansion factor in percent |
//! | `--tombstones` | deletes | or `every`: one for each overwrite too; both, with commas, are measured in turns |
//! | `--rounds` | 1 | how often all is measured |
//! | `--idle` | default | share of the memory beside live objects that lies idle, in percent |
//!
//! `write_amplification` is what went to the backups, or would, for each byte of the writers'
//! objects.

// A measurement needs the real clock and real threads.
#![allow(clippy::disallowed_methods)]

use pluvio_format::SegmentKind;
use pluvio_log::{
    Cleaner, CleanerOptions, Cleaning, Durability, LogOptions, LogSpace, LogStats, Segment,
    Tombstones,
};
use pluvio_mutation::{Change, Mutation};
use pluvio_store::{Engine, EngineError, EngineOptions, EngineTable, Site};
use pluvio_units::{HashRange, LogId, LogPosition, Pace, Size, TableId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

struct Setup {
    utilization: Vec<u64>,
    size: usize,
    hot_cold: bool,
    durability: Durability,
    cleaning: Cleaning,
    threads: u16,
    cleaners: u16,
    memory: Size,
    seconds: u64,
    expansion: u32,
    tombstones: Vec<Tombstones>,
    rounds: u32,
    idle: Option<u32>,
}

fn arguments() -> Setup {
    let mut given: BTreeMap<String, String> = BTreeMap::new();
    let mut words = std::env::args().skip(1);
    while let Some(name) = words.next() {
        let value = words
            .next()
            .unwrap_or_else(|| panic!("{name} needs a value"));
        given.insert(name, value);
    }
    let mut take = |name: &str, default: &str| {
        given
            .remove(&format!("--{name}"))
            .unwrap_or_else(|| default.to_owned())
    };
    fn number<N: std::str::FromStr>(text: &str) -> N {
        let parsed = text.parse().ok();
        parsed.unwrap_or_else(|| panic!("{text} is not a number that fits"))
    }
    let setup = Setup {
        utilization: take("utilization", "30,80,90")
            .split(',')
            .map(number)
            .collect(),
        size: number(&take("size", "1000")),
        hot_cold: take("distribution", "uniform") == "hotcold",
        durability: match take("mode", "volatile").as_str() {
            "replicated" => Durability::Replicated,
            _ => Durability::Volatile,
        },
        cleaning: match take("cleaning", "two").as_str() {
            "one" => Cleaning::OneLevel,
            _ => Cleaning::TwoLevel,
        },
        threads: number(&take("threads", "1")),
        cleaners: number(&take("cleaners", "1")),
        memory: Size::mib(number(&take("memory", "512"))),
        seconds: number(&take("seconds", "5")),
        expansion: number(&take("expansion", "200")),
        tombstones: take("tombstones", "deletes")
            .split(',')
            .map(|name| match name {
                "every" => Tombstones::Every,
                "deletes" => Tombstones::Deletes,
                other => panic!("{other} is neither `every` nor `deletes`"),
            })
            .collect(),
        rounds: number(&take("rounds", "1")),
        idle: given.remove("--idle").map(|text| number(&text)),
    };
    assert!(given.is_empty(), "unknown options: {given:?}");
    setup
}

/// A small generator of numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * u128::from(n)) >> 64) as u64
    }
}

/// Backups that have everything as soon as they are told of it.
#[derive(Default)]
struct Backups {
    heads: Vec<Arc<Segment>>,
    sides: Vec<Arc<Segment>>,
}

impl Backups {
    /// Returns the bytes that closed segments had.
    fn step(&mut self, space: &LogSpace, log: LogId) -> u64 {
        let mut sent = 0;
        for segment in space.take_new_segments(log) {
            match segment.kind() {
                SegmentKind::Head => self.heads.push(segment),
                SegmentKind::Side => self.sides.push(segment),
            }
        }
        let _freed = space.take_freeable(log);
        self.sides.retain(|side| {
            if side.is_closed() {
                sent += u64::from(side.appended_len());
                side.mark_durable();
                side.release_bytes();
            }
            !side.is_closed()
        });
        let last = self.heads.len().saturating_sub(1);
        for (at, head) in self.heads.iter().enumerate() {
            space.digest_durable(log, head.id());
            let offset = head.appended_len();
            let segment = head.id();
            space.advance_durable(log, LogPosition { segment, offset });
            if at < last {
                sent += u64::from(head.appended_len());
                head.release_bytes();
            }
        }
        self.heads.drain(..last);
        sent
    }
}

/// What all threads share.
struct Run<'s> {
    setup: &'s Setup,
    store: Arc<Engine>,
    table: Arc<EngineTable>,
    keys: u64,
    now_s: AtomicU32,
    written: Vec<AtomicU64>,
    refused: AtomicU64,
    sent: AtomicU64,
    stop: AtomicBool,
    backups: Mutex<Vec<Backups>>,
}

impl Run<'_> {
    fn put(&self, log: LogId, key: u64, value: &[u8]) {
        let key = key.to_le_bytes();
        let now_s = self.now_s.load(Ordering::Relaxed);
        loop {
            let site = Site {
                log,
                table: &self.table,
                hash: self.table.hash(&key),
                now_s,
                only_this_log: false,
            };
            let put = Mutation::new(self.table.id(), &key, Change::Put(value.into()));
            match self.store.apply(&site, &put, None) {
                Ok(_) => return,
                Err(EngineError::Full { .. }) => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    std::thread::yield_now();
                }
                Err(error) => panic!("{error}"),
            }
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    fn write(&self, thread: u16) {
        let mut random = Random(0x9e37_79b9 + u64::from(thread) * 7919);
        let value = vec![7; self.setup.size];
        let (keys, hot) = (self.keys, self.keys / 10);
        while !self.stop.load(Ordering::Relaxed) {
            let key = if !self.setup.hot_cold {
                random.below(keys)
            } else if random.below(10) > 0 {
                random.below(hot)
            } else {
                hot + random.below(keys - hot)
            };
            self.put(LogId(thread), key, &value);
            self.written[usize::from(thread)].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn cleaner(&self) -> Cleaner {
        let mut options = CleanerOptions {
            cleaning: self.setup.cleaning,
            ..CleanerOptions::default()
        };
        if let Some(idle) = self.setup.idle {
            options.idle_percent = idle;
        }
        self.store.cleaner(options)
    }

    fn clean(&self, cleaner: &Cleaner) {
        while !self.stop.load(Ordering::Relaxed) {
            match cleaner.step(self.now_s.load(Ordering::Relaxed)) {
                Ok(Pace::Again) => {}
                Ok(Pace::After(_) | Pace::Done) => std::thread::sleep(Duration::from_micros(50)),
                Err(corruption) => panic!("{corruption}"),
            }
        }
    }

    fn replicate(&self) {
        let space = self.store.space();
        while !self.stop.load(Ordering::Relaxed) {
            self.replicate_once(space);
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn replicate_once(&self, space: &LogSpace) {
        let mut backups = self.backups.lock().expect("nobody panics with it");
        for (log, backups) in space.logs().zip(backups.iter_mut()) {
            let sent = backups.step(space, log);
            self.sent.fetch_add(sent, Ordering::Relaxed);
        }
    }

    fn done(&self) -> u64 {
        self.written.iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }
}

fn measure(setup: &Setup, utilization: u64, tombstones: Tombstones) {
    let log = LogOptions {
        logs: setup.threads,
        durability: setup.durability,
        cleaners: setup.cleaners,
        live_percent_max: 95,
        disk_expansion_percent: setup.expansion,
        tombstones,
        huge_pages: true,
        ..LogOptions::new(setup.memory)
    };
    let store = Engine::open(EngineOptions { log }).expect("enough memory");
    let table = store
        .table(TableId(1), 7, HashRange::ALL)
        .expect("address space for the index");
    let mut run = Run {
        setup,
        store,
        table,
        keys: 0,
        now_s: AtomicU32::new(1),
        written: (0..setup.threads).map(|_| AtomicU64::new(0)).collect(),
        refused: AtomicU64::new(0),
        sent: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        backups: Mutex::new((0..setup.threads).map(|_| Backups::default()).collect()),
    };
    let value = vec![1; setup.size];
    let wanted = setup.memory.bytes() * utilization / 100;
    while run.store.space().stats().live_bytes < wanted {
        for _ in 0..500 {
            let log = LogId((run.keys % u64::from(setup.threads)) as u16);
            run.put(log, run.keys, &value);
            run.keys += 1;
        }
        run.replicate_once(run.store.space());
    }
    let (before, after, ops, sent, refused, time) = overwrite(&run);
    report(
        setup,
        (utilization, tombstones),
        &before,
        &after,
        [ops, sent, refused],
        time,
    );
}

/// Overwrites all memory once, then measures.
fn overwrite(run: &Run<'_>) -> (LogStats, LogStats, u64, u64, u64, Duration) {
    let stats = || run.store.space().stats();
    let cleaner = run.cleaner();
    std::thread::scope(|scope| {
        for thread in 0..run.setup.threads {
            scope.spawn(move || run.write(thread));
        }
        for _ in 0..run.setup.cleaners {
            scope.spawn(|| run.clean(&cleaner));
        }
        if run.setup.durability == Durability::Replicated {
            scope.spawn(|| run.replicate());
        }
        let begin = Instant::now();
        let tick = || {
            std::thread::sleep(Duration::from_millis(50));
            run.now_s
                .store(1 + begin.elapsed().as_secs() as u32, Ordering::Relaxed);
        };
        let enough = run.setup.memory.bytes() / run.setup.size as u64;
        while run.done() < enough && begin.elapsed() < Duration::from_secs(30) {
            tick();
        }
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let (before, ops) = (stats(), run.done());
        let (sent, refused) = (read(&run.sent), read(&run.refused));
        let from = Instant::now();
        while from.elapsed() < Duration::from_secs(run.setup.seconds) {
            tick();
        }
        let (after, time) = (stats(), from.elapsed());
        let ops = run.done() - ops;
        let (sent, refused) = (read(&run.sent) - sent, read(&run.refused) - refused);
        run.stop.store(true, Ordering::Relaxed);
        (before, after, ops, sent, refused, time)
    })
}

fn report(
    setup: &Setup,
    (utilization, tombstones): (u64, Tombstones),
    before: &LogStats,
    after: &LogStats,
    [ops, sent, refused]: [u64; 3],
    time: Duration,
) {
    let seconds = time.as_secs_f64();
    let (from, to) = (before.cleaner, after.cleaner);
    let moved = to.bytes_moved - from.bytes_moved;
    let compacted = to.bytes_compacted - from.bytes_compacted;
    let written = (ops * setup.size as u64).max(1) as f64;
    let amplification = match setup.durability {
        Durability::Volatile => 1.0 + moved as f64 / written,
        Durability::Replicated => sent as f64 / written,
    };
    println!(
        "{utilization},{tombstones:?},{:.1},{},{},{:?},{:?},{},{},{:.0},{moved},{compacted},{:.2},{amplification:.2},{:.2},{},{},{},{refused}",
        after.live_bytes as f64 * 100.0 / after.memory_bytes as f64,
        setup.size,
        if setup.hot_cold { "hotcold" } else { "uniform" },
        setup.durability,
        setup.cleaning,
        setup.threads,
        setup.cleaners,
        ops as f64 / seconds,
        (moved + compacted) as f64 / written,
        after.disk_bytes as f64 / after.memory_bytes as f64,
        to.passes - from.passes,
        to.compactions - from.compactions,
        to.barren_passes - from.barren_passes,
    );
}

fn main() {
    let setup = arguments();
    println!(
        "utilization,tombstones,live,size,distribution,mode,cleaning,threads,cleaners,ops_per_s,bytes_moved,bytes_compacted,copied_per_byte,write_amplification,disk_per_memory,passes,compactions,barren,refused"
    );
    for _ in 0..setup.rounds {
        for &utilization in &setup.utilization {
            for &tombstones in &setup.tombstones {
                measure(&setup, utilization, tombstones);
            }
        }
    }
}
