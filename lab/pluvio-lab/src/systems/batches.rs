//! Reads and writes of one table by the native client: one object a request, or a batch of them.

use super::drive::{Spell, all, on_a_core};
use bytes::Bytes;
use pluvio_bench::processor_us;
use pluvio_bench::run::{Collector, Latencies};
use pluvio_bench::workload::{Distribution, Draw};
use pluvio_client::{Client, Key, Table};
use pluvio_console::failure::Failure;
use pluvio_env::Env;
use pluvio_load::{KEY_BYTES, Random, key};
use std::ops::Range;

/// Callers that fill a table, and objects of each request.
const FILLERS: (usize, u64) = (8, 64);

/// The objects of a table: keys below `count`.
#[derive(Clone)]
pub struct Objects {
    /// The client that asks for them.
    pub client: Client,
    /// Where they are.
    pub table: Table,
    /// How many there are.
    pub count: u64,
    /// Which of them.
    pub pattern: Distribution,
}

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Does {
    /// It reads.
    Reads,
    /// It writes objects that are there.
    Writes,
}

impl Does {
    /// For a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reads => "read",
            Self::Writes => "write",
        }
    }
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct Batched {
    /// Objects a second.
    pub objects_per_s: f64,
    /// Latencies of requests.
    pub requests: Latencies,
    /// Microseconds of the cluster's processors for each object.
    pub server_us: f64,
    /// Objects, with those that do not count.
    pub objects: u64,
}

/// Counts of a caller, or of all.
#[derive(Default)]
struct Tally {
    requests: Collector,
    /// Objects that count: those of one request of each caller at least.
    counted: u64,
    all: u64,
}

/// Keeps callers busy, each with one request of `batch` objects under way.
///
/// # Errors
/// An object is missing, or the cluster refused.
pub async fn run(
    env: &Env,
    objects: &Objects,
    pids: &[u32],
    (does, batch): (Does, usize),
    spell: Spell,
) -> Result<Batched, Failure> {
    let value = Bytes::from(Random::new(spell.seed, 0).bytes(spell.value_size));
    let from = env.clock.now() + spell.warmup;
    let until = from + spell.measured;
    let before = processor_us(pids);
    let mut ends = Vec::new();
    for number in 0..spell.callers {
        let clock = env.clock.clone();
        let mut caller = Caller {
            objects: objects.clone(),
            draw: objects.pattern.over(objects.count),
            random: Random::new(spell.seed, number as u64),
            value: value.clone(),
        };
        let work = async move {
            let mut tally = Tally::default();
            loop {
                let start = clock.now();
                if start >= until && tally.counted > 0 {
                    return Ok(tally);
                }
                caller.request(does, batch).await?;
                tally.all += batch as u64;
                if start >= from {
                    tally.requests.record(clock.now().since(start));
                    tally.counted += batch as u64;
                }
            }
        };
        ends.push(on_a_core(env, number, work));
    }
    let mut total = Tally::default();
    for tally in all(ends).await? {
        total.requests.add(&tally.requests);
        total.counted += tally.counted;
        total.all += tally.all;
    }
    let took = env.clock.now().since(from).as_secs_f64();
    Ok(Batched {
        objects_per_s: total.counted as f64 / took.max(1e-9),
        requests: total.requests.latencies(),
        server_us: (processor_us(pids) - before) / total.all.max(1) as f64,
        objects: total.all,
    })
}

/// One caller.
struct Caller {
    objects: Objects,
    draw: Draw,
    random: Random,
    value: Bytes,
}

impl Caller {
    async fn request(&mut self, does: Does, batch: usize) -> Result<(), Failure> {
        let mut next = || key(self.draw.spread(&mut self.random));
        let (client, table) = (&self.objects.client, &self.objects.table);
        match (does, batch) {
            (Does::Reads, 1) => found(client.read(table, &next()).await?.is_some()),
            (Does::Writes, 1) => {
                client.write(table, &next(), self.value.clone()).await?;
                Ok(())
            }
            (Does::Reads, batch) => {
                let keys: Vec<[u8; KEY_BYTES]> = (0..batch).map(|_| next()).collect();
                let keys: Vec<Key<'_>> = keys.iter().map(|key| Key::new(table, key)).collect();
                for object in client.multi_read(&keys).await {
                    found(object?.is_some())?;
                }
                Ok(())
            }
            (Does::Writes, batch) => {
                let keys: Vec<[u8; KEY_BYTES]> = (0..batch).map(|_| next()).collect();
                write_all(client, table, &keys, &self.value).await
            }
        }
    }
}

fn found(is_there: bool) -> Result<(), Failure> {
    match is_there {
        true => Ok(()),
        false => Err(Failure::new("an object that was written is missing")),
    }
}

/// Writes objects with these keys and one value, in one request for each server.
///
/// # Errors
/// The cluster refused.
pub async fn write_all(
    client: &Client,
    table: &Table,
    keys: &[[u8; KEY_BYTES]],
    value: &Bytes,
) -> Result<(), Failure> {
    let objects = keys.iter().map(|key| (Key::new(table, key), value.clone()));
    let objects: Vec<(Key<'_>, Bytes)> = objects.collect();
    for written in client.multi_write(&objects).await {
        written?;
    }
    Ok(())
}

/// Writes the objects with these numbers, each once.
///
/// # Errors
/// The cluster refused.
pub async fn fill(
    env: &Env,
    (client, table): (&Client, &Table),
    numbers: Range<u64>,
    value_size: usize,
    seed: u64,
) -> Result<(), Failure> {
    let value = Bytes::from(Random::new(seed, 0).bytes(value_size));
    let (fillers, most) = FILLERS;
    // Large values go alone: a request has a limit of bytes.
    let batch = (most.min((1 << 18) / (value_size as u64 + 1))).max(1);
    let mut ends = Vec::new();
    for filler in 0..fillers {
        let (client, table, value) = (client.clone(), table.clone(), value.clone());
        let numbers = numbers.clone();
        let work = async move {
            let mut first = numbers.start + filler as u64 * batch;
            while first < numbers.end {
                let last = (first + batch).min(numbers.end);
                let keys: Vec<[u8; KEY_BYTES]> = (first..last).map(key).collect();
                write_all(&client, &table, &keys, &value).await?;
                first += fillers as u64 * batch;
            }
            Ok(())
        };
        ends.push(on_a_core(env, filler, work));
    }
    all(ends).await.map(|_| ())
}
