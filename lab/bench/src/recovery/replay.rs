//! One recovery master's replay by object size [RAMCloud table V]: entries as backups hand them
//! over, all of them in memory before the clock starts.
//!
//! Every round replays the same objects, each key once, into an empty table of a store whose memory
//! was used before. The first round does not count. The clock covers checking, the side log, the
//! index and closing the side log. With replicas it also covers sending the side log to backups in
//! this process, until they have acknowledged everything. Then it covers comparing their bytes with
//! the log's checksums, as a recovery master does (CLEAN-10). The durable part is compared after
//! each bucket, the rest at the end. Without replicas a log has no checksums, and there is nothing
//! to compare.

use super::backups::Backups;
use super::thread_cpu;
use crate::clock;
use crate::error::{ExperimentError, within};
use crate::experiment::{Row, Spread};
use crate::suite::{Step, Watch};
use core::time::Duration;
use pluvio_format::{Encoded, Entry, Graves, Object, ObjectState};
use pluvio_load::Random;
use pluvio_log::{Durability, LogOptions};
use pluvio_store::{Engine, EngineOptions, Replay};
use pluvio_units::{HashRange, LogId, ObjectVersion, Size, TableId, VALUE_MAX};
use std::sync::Arc;

/// What a backup hands over at a time: an eighth of a segment, as with eight partitions.
const BUCKET_BYTES: usize = 1 << 20;
/// Bytes of a key.
const KEY: usize = 8;
/// What a store needs beside the objects: its heads and reserves.
const BESIDE: u64 = 96 << 20;
/// Random bytes that values are cut from.
const SOURCE: usize = 4 << 20;
/// The table, and the seed of its hash.
const TABLE: (TableId, u64) = (TableId(1), 7);
/// Replicas that a round may send.
const REPLICAS_MAX: u32 = 8;

/// How to measure replay.
#[derive(Clone, PartialEq, Debug)]
pub struct ReplayOptions {
    /// Bytes of a value; each gives a row.
    pub value_sizes: Vec<usize>,
    /// Replicas to send to backups in memory; each gives a row. 0: replay only.
    pub replicas: Vec<u32>,
    /// Most objects of a round.
    pub objects: u64,
    /// Most bytes of entries of a round.
    pub bytes: Size,
    /// Rounds that count.
    pub rounds: usize,
    /// Seed of keys and values.
    pub seed: u64,
}

impl ReplayOptions {
    /// They are sensible.
    ///
    /// # Errors
    /// [`ExperimentError::OutOfRange`], with the option's name on the command line.
    pub fn check(&self) -> Result<(), ExperimentError> {
        for &size in &self.value_sizes {
            within("value-size", size, 0..=VALUE_MAX)?;
        }
        for &replicas in &self.replicas {
            within("replay-replicas", replicas, 0..=REPLICAS_MAX)?;
        }
        within("objects", self.objects, 1..=100_000_000)?;
        within("bytes", self.bytes, Size::mib(1)..=Size::mib(64 << 10))?;
        within("rounds", self.rounds, 1..=1000)
    }

    /// Steps that [`replay`] tells of.
    #[must_use]
    pub fn steps(&self) -> u64 {
        (self.value_sizes.len() * self.replicas.len() * (self.rounds + 1)) as u64
    }
}

/// Measures replay; gives a row for each value size and number of replicas.
///
/// # Errors
/// See [`ExperimentError`].
pub fn replay(options: &ReplayOptions, watch: Watch<'_>) -> Result<Vec<Row>, ExperimentError> {
    options.check()?;
    let mut rows = Vec::new();
    for &value_size in &options.value_sizes {
        let load = Load::new(options, value_size);
        for &replicas in &options.replicas {
            let mut master = RecoveryMaster::open(&load, replicas)?;
            let mut rounds = Vec::new();
            for round in 0..=options.rounds {
                watch(Step::Begins(format!(
                    "replay, {value_size} B, {replicas} replicas"
                )));
                let took = master.round(&load)?;
                if round > 0 {
                    rounds.push(took);
                }
                watch(Step::Ended);
            }
            rows.push(row(&load, value_size, replicas, &rounds));
        }
    }
    Ok(rows)
}

/// The entries of a round.
struct Load {
    buckets: Vec<Vec<u8>>,
    objects: u64,
    bytes: u64,
}

impl Load {
    fn new(options: &ReplayOptions, value_size: usize) -> Self {
        let mut random = Random::new(options.seed, 0);
        let source = random.bytes(SOURCE + value_size);
        let mut load = Self {
            buckets: Vec::new(),
            objects: 0,
            bytes: 0,
        };
        let mut bucket = Vec::new();
        while load.objects < options.objects && load.bytes < options.bytes.bytes() {
            // An odd factor: no two numbers have the same product.
            let key = (load.objects + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let key: [u8; KEY] = key.to_le_bytes();
            let from = random.below(SOURCE as u64) as usize;
            let object = Object {
                table: TABLE.0,
                version: ObjectVersion(load.objects + 1),
                timestamp_s: 1,
                graves: Graves::NONE,
                deadline: None,
                state: ObjectState::Plain,
                key: &key,
                value: &source[from..from + value_size],
            };
            let entry = Encoded::new(&Entry::Object(object), false);
            let entry = entry
                .expect("keys and values are within their limits")
                .to_vec();
            load.objects += 1;
            load.bytes += entry.len() as u64;
            bucket.extend_from_slice(&entry);
            if bucket.len() >= BUCKET_BYTES {
                load.buckets.push(std::mem::take(&mut bucket));
            }
        }
        load.buckets.push(bucket);
        load
    }
}

/// What a round took.
struct Took {
    wall: Duration,
    /// Processor time of the thread that replays and compares.
    replaying: Duration,
    /// Processor time of all threads.
    all: Duration,
}

/// A store that replays, and its backups.
struct RecoveryMaster {
    engine: Arc<Engine>,
    replicas: u32,
}

impl RecoveryMaster {
    fn open(load: &Load, replicas: u32) -> Result<Self, ExperimentError> {
        // The memory of the round before is given back while the next one begins.
        let memory = Size(load.bytes * 5 / 2 + BESIDE);
        let mut log = LogOptions::new(memory);
        if replicas > 0 {
            log.durability = Durability::Replicated;
        }
        let engine = Engine::open(EngineOptions { log });
        let engine = engine.map_err(|error| ExperimentError::Run(error.to_string()))?;
        Ok(Self { engine, replicas })
    }

    fn round(&mut self, load: &Load) -> Result<Took, ExperimentError> {
        let failed =
            |error: &dyn core::fmt::Display| ExperimentError::Run(format!("replay: {error}"));
        let (id, seed) = TABLE;
        let table = self.engine.table(id, seed, HashRange::ALL);
        let table = table.map_err(|error| failed(&error))?;
        let tablets = vec![(Arc::clone(&table), HashRange::ALL)];
        let replay = Replay::new(&self.engine, LogId(0), tablets);
        let mut replay = replay.map_err(|error| failed(&error))?;
        let (took, side) = std::thread::scope(|scope| {
            let backups = Backups::start(scope, &self.engine, self.replicas);
            let backups = backups.map_err(|error| failed(&error))?;
            let (start, cpu) = (clock::now(), thread_cpu());
            for bucket in &load.buckets {
                let replayed = replay.replay(bucket, Duration::ZERO);
                replayed.map_err(|error| failed(&error))?;
                let compared = replay.compare_durable();
                compared.map_err(|error| failed(&error))?;
            }
            let (mut side, _) = replay.finish();
            let helping = backups.finish().map_err(|error| failed(&error))?;
            let compared = side.compare_rest();
            compared.map_err(|error| failed(&error))?;
            let replaying = thread_cpu().saturating_sub(cpu);
            let took = Took {
                wall: start.elapsed(),
                replaying,
                all: replaying + helping,
            };
            Ok((took, side))
        })?;
        if table.objects() != load.objects {
            return Err(ExperimentError::Run(format!(
                "replay: {} of {} objects are there",
                table.objects(),
                load.objects
            )));
        }
        self.engine.drop_table(id);
        side.abort();
        // Whoever keeps replicas asks; without that the log thinks they are all still there.
        let _freed = self.engine.space().take_freeable(LogId(0));
        Ok(took)
    }
}

fn row(load: &Load, value_size: usize, replicas: u32, rounds: &[Took]) -> Row {
    let (objects, mb) = (load.objects as f64, load.bytes as f64 / 1e6);
    let spread = |of: &dyn Fn(&Took) -> f64| {
        let all: Vec<f64> = rounds.iter().map(of).collect();
        Spread::of(&all).unwrap_or_default()
    };
    let rate = |amount: f64| spread(&|took| amount / took.wall.as_secs_f64());
    let cost = |of: fn(&Took) -> Duration| spread(&|took| of(took).as_secs_f64() * 1e3 / mb);
    Row::new()
        .with("part", "replay")
        .with("value_size", value_size)
        .with("replicas", replicas)
        .with("objects", load.objects)
        .with("mb", mb)
        .and(rate(objects).cells("objects_per_s"))
        .and(rate(mb).cells("mb_per_s"))
        .and(cost(|took| took.replaying).cells("replay_cpu_ms_per_mb"))
        .with("cpu_ms_per_mb", cost(|took| took.all).median)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> ReplayOptions {
        ReplayOptions {
            value_sizes: vec![1, 3000],
            replicas: vec![0, 2],
            objects: 3000,
            bytes: Size::mib(4),
            rounds: 2,
            seed: 1,
        }
    }

    #[test]
    fn a_load_ends_at_its_first_limit() {
        let small = Load::new(&options(), 1);
        assert_eq!(small.objects, 3000);
        let large = Load::new(&options(), 3000);
        assert!(large.objects < 3000 && large.bytes >= 4 << 20);
        assert!(large.bytes < (4 << 20) + 3100);
        let bytes: usize = large.buckets.iter().map(Vec::len).sum();
        assert_eq!(bytes as u64, large.bytes);
    }

    #[test]
    fn every_size_and_number_of_replicas_gives_a_row() {
        let rows = replay(&options(), &|_| {}).unwrap();
        let keys: Vec<_> = rows
            .iter()
            .map(|row| {
                (
                    row.number("value_size").unwrap(),
                    row.number("replicas").unwrap(),
                )
            })
            .collect();
        assert_eq!(keys, [(1.0, 0.0), (1.0, 2.0), (3000.0, 0.0), (3000.0, 2.0)]);
        for row in rows {
            assert!(row.number("objects_per_s").unwrap() > 0.0, "{row:?}");
        }
    }

    #[test]
    fn senseless_options_are_refused_by_name() {
        type Change = (fn(&mut ReplayOptions), &'static str);
        let changes: [Change; 5] = [
            (|o| o.value_sizes = vec![VALUE_MAX + 1], "--value-size"),
            (|o| o.replicas = vec![9], "--replay-replicas 9: 0 to 8"),
            (|o| o.objects = 0, "--objects 0: 1 to"),
            (|o| o.bytes = Size(1), "--bytes 1B: 1MiB to"),
            (|o| o.rounds = 0, "--rounds 0: 1 to 1000"),
        ];
        for (change, reason) in changes {
            let mut wrong = options();
            change(&mut wrong);
            let error = wrong.check().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
