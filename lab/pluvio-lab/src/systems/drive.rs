//! Callers that keep a system busy: each has one request under way, and sends the next when it is
//! answered.

use super::System;
use bytes::Bytes;
use futures_util::future::join_all;
use pluvio_bench::processor_us;
use pluvio_bench::run::{Collector, Latencies};
use pluvio_bench::workload::ycsb::{Operation, Operations, Records, Ycsb, ycsb_key};
use pluvio_console::failure::Failure;
use pluvio_env::{Env, Moment};
use pluvio_load::Random;
use pluvio_units::CoreId;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Spell {
    /// Callers at a time.
    pub callers: usize,
    /// How long it runs before it counts.
    pub warmup: Duration,
    /// How long it counts.
    pub measured: Duration,
    /// Bytes of a value.
    pub value_size: usize,
    /// Seed of operations and values.
    pub seed: u64,
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Operations a second.
    pub ops_per_s: f64,
    /// Latencies of reads.
    pub reads: Latencies,
    /// Latencies of everything that writes: of a read with its write, both together.
    pub writes: Latencies,
    /// Reads that found nothing.
    pub misses: u64,
    /// Microseconds of the system's processors for each operation.
    pub server_us: f64,
}

/// Counts of one caller, or of all.
#[derive(Default)]
struct Tally {
    reads: Collector,
    writes: Collector,
    misses: u64,
    /// Operations that count: at least one of each caller, however long that takes.
    counted: u64,
    /// Operations, with those that do not count.
    all: u64,
}

/// Runs a core workload on records that are there.
///
/// # Errors
/// The system refused or is gone.
pub async fn ycsb(
    env: &Env,
    system: &System,
    workload: Ycsb,
    records: &Arc<Records>,
    spell: Spell,
) -> Result<Ran, Failure> {
    let value = Bytes::from(Random::new(spell.seed, 0).bytes(spell.value_size));
    let from = env.clock.now() + spell.warmup;
    let until = from + spell.measured;
    let before = processor_us(&system.pids);
    let mut ends = Vec::new();
    for number in 0..spell.callers {
        let mut operations = Operations::new(workload, records, spell.seed, number as u64);
        let (clock, way) = (env.clock.clone(), system.way.clone());
        let (value, records) = (value.clone(), records.clone());
        let work = async move {
            let mut caller = way.caller().await?;
            let mut tally = Tally::default();
            loop {
                let start = clock.now();
                if start >= until && tally.counted > 0 {
                    return Ok(tally);
                }
                let operation = operations.draw();
                let found = match operation {
                    Operation::Read(record) => caller.read(&ycsb_key(record)).await?,
                    Operation::Update(record) => {
                        caller.write(&ycsb_key(record), &value).await?;
                        true
                    }
                    Operation::Insert(record) => {
                        caller.write(&ycsb_key(record), &value).await?;
                        records.acknowledge(record);
                        true
                    }
                    Operation::Modify(record) => {
                        let key = ycsb_key(record);
                        let found = caller.read(&key).await?;
                        caller.write(&key, &value).await?;
                        found
                    }
                };
                tally.misses += u64::from(!found);
                tally.all += 1;
                if start >= from {
                    tally.counted += 1;
                    let took = clock.now().since(start);
                    match operation {
                        Operation::Read(_) => tally.reads.record(took),
                        Operation::Update(_) | Operation::Insert(_) | Operation::Modify(_) => {
                            tally.writes.record(took);
                        }
                    }
                }
            }
        };
        ends.push(on_a_core(env, number, work));
    }
    let total = sum(ends).await?;
    Ok(ran(env, &total, from, processor_us(&system.pids) - before))
}

fn ran(env: &Env, total: &Tally, from: Moment, processor: f64) -> Ran {
    let (reads, writes) = (total.reads.latencies(), total.writes.latencies());
    // The last answers come after the end; the rate is over the time they really took.
    let took = env.clock.now().since(from).as_secs_f64();
    Ran {
        ops_per_s: (reads.count + writes.count) as f64 / took.max(1e-9),
        misses: total.misses,
        server_us: processor / total.all.max(1) as f64,
        reads,
        writes,
    }
}

/// Writes the first `count` records, by many callers.
///
/// # Errors
/// The system refused or is gone.
pub async fn load(env: &Env, system: &System, count: u64, spell: Spell) -> Result<(), Failure> {
    let value = Bytes::from(Random::new(spell.seed, 0).bytes(spell.value_size));
    let callers = spell.callers as u64;
    let mut ends = Vec::new();
    for number in 0..spell.callers {
        let (way, value) = (system.way.clone(), value.clone());
        let work = async move {
            let mut caller = way.caller().await?;
            let mut record = number as u64;
            while record < count {
                caller.write(&ycsb_key(record), &value).await?;
                record += callers;
            }
            Ok(Tally::default())
        };
        ends.push(on_a_core(env, number, work));
    }
    sum(ends).await.map(|_| ())
}

type End<T> = oneshot::Receiver<Result<T, Failure>>;

/// Runs a caller's work as a task of its own.
pub fn on_a_core<T: Send + 'static>(
    env: &Env,
    number: usize,
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> End<T> {
    let (done, end) = oneshot::channel();
    let core = u16::try_from(number % usize::from(env.tasks.cores())).unwrap_or(0);
    env.tasks.spawn(CoreId(core), "caller", async move {
        // Nobody waits any more when another caller has failed.
        let _unheard = done.send(work.await);
    });
    end
}

/// What all callers gave.
///
/// # Errors
/// That of the first that failed.
pub async fn all<T>(ends: Vec<End<T>>) -> Result<Vec<T>, Failure> {
    let stopped = || Failure::new("a caller was stopped");
    let ended = join_all(ends).await.into_iter();
    ended.map(|end| end.map_err(|_| stopped())?).collect()
}

async fn sum(ends: Vec<End<Tally>>) -> Result<Tally, Failure> {
    let mut total = Tally::default();
    for tally in all(ends).await? {
        total.reads.add(&tally.reads);
        total.writes.add(&tally.writes);
        total.misses += tally.misses;
        total.all += tally.all;
    }
    Ok(total)
}
