//! Many keys expire while others are read and written.
//!
//! 1. The keys are written, all with their deadlines, before the first of these.
//! 2. Callers read and write other keys: first while nothing expires, then while keys do.
//! 3. Meanwhile the server is asked what it has, until the last key is gone.

use super::{ExpiryBench, Held, port};
use crate::systems::Ours;
use crate::systems::drive::{all, on_a_core};
use crate::systems::pipeline::{Pipeline, answered};
use indicatif::ProgressBar;
use pluvio_bench::experiment::Row;
use pluvio_bench::run::{Collector, Latencies};
use pluvio_console::failure::Failure;
use pluvio_env::{Clock, Env, Moment};
use pluvio_load::resp::Reply;
use pluvio_load::{KEY_BYTES, Random, key};
use pluvio_units::Size;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Keys that are read and written meanwhile.
const OTHERS: u64 = 100_000;
/// Bytes of a value.
const VALUE: usize = 100;
/// Connections that write the keys, and commands of each at once.
const FILLERS: (u64, u64) = (4, 64);
/// Room of a server for an object, and beside all of them.
const ROOM: (u64, u64) = (600, 256 << 20);
/// How often the server is asked what it has.
const LOOK: Duration = Duration::from_millis(10);
/// How long keys may take to be gone behind the last deadline.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long live bytes are waited for when all keys are gone.
const LIVE_PATIENCE: Duration = Duration::from_secs(5);
/// Live bytes are back when so little of what the keys took is left: one in this many. The rest
/// are tombstones, which live until the cleaner comes.
const LIVE_LEFT: u64 = 20;

/// Memory of a server.
pub(super) fn memory(bench: &ExpiryBench) -> Size {
    let (each, beside) = ROOM;
    Size((bench.keys + OTHERS) * each + beside)
}

/// A row for each round of each spread.
pub(super) async fn late(
    env: &Env,
    bench: &ExpiryBench,
    cluster: &Ours,
    progress: &ProgressBar,
) -> Result<Vec<Row>, Failure> {
    let address = port(cluster)?;
    progress.set_length((bench.spread.len() * bench.rounds) as u64);
    progress.set_message("loading");
    let value: Arc<[u8]> = Random::new(bench.seed, 0).bytes(VALUE).into();
    let forever = Filling {
        address: address.clone(),
        value: Arc::clone(&value),
        prefix: *b"key:",
        keys: OTHERS,
        deadlines: None,
    };
    forever.run(env).await?;
    let mut rows = Vec::new();
    for round in 0..bench.rounds {
        for &spread in &bench.spread {
            progress.set_message(format!("deadlines within {spread} s"));
            let spread = Duration::from_secs_f64(spread);
            rows.push(once(env, bench, (cluster, &address), &value, (round, spread)).await?);
            progress.inc(1);
        }
    }
    Ok(rows)
}

async fn once(
    env: &Env,
    bench: &ExpiryBench,
    (cluster, address): (&Ours, &str),
    value: &Arc<[u8]>,
    (round, spread): (usize, Duration),
) -> Result<Row, Failure> {
    let before = Held::now(cluster).await?;
    let writing = Duration::from_secs_f64(bench.keys as f64 / bench.fill_rate as f64);
    let quiet = env.clock.now() + writing;
    let first = quiet + Duration::from_secs_f64(bench.seconds);
    let filling = Filling {
        address: address.to_owned(),
        value: Arc::clone(value),
        prefix: *b"vol:",
        keys: bench.keys,
        deadlines: Some((first, spread)),
    };
    filling.run(env).await?;
    if env.clock.now() > quiet {
        return Err(Failure::new(
            "the keys were not written in time: give a lower --fill-rate, or fewer --keys",
        ));
    }
    env.clock.sleep(quiet.since(env.clock.now())).await;
    let full = Held::now(cluster).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut ends = Vec::new();
    for number in 0..bench.callers {
        let caller = Bystander {
            clock: Arc::clone(&env.clock),
            address: address.to_owned(),
            random: Random::new(bench.seed + round as u64, number as u64),
            value: Arc::clone(value),
            get_percent: bench.get_percent,
            first,
            stop: Arc::clone(&stop),
        };
        ends.push(on_a_core(env, number, caller.run()));
    }
    let watch = Watch {
        cluster,
        address,
        before,
        full,
        first,
        spread,
        keys: bench.keys,
    };
    let watched = watch.run(env, &stop).await;
    stop.store(true, Ordering::Relaxed);
    let (mut quiet, mut expiring) = (Collector::new(), Collector::new());
    for (one, other) in all(ends).await? {
        quiet.add(&one);
        expiring.add(&other);
    }
    let row = Row::new()
        .with("part", "late")
        .with("spread_s", spread.as_secs_f64())
        .with("round", round + 1)
        .with("keys", bench.keys)
        .and(watched?)
        .and(latencies("quiet", &quiet.latencies()))
        .and(latencies("expiring", &expiring.latencies()));
    Ok(row)
}

fn latencies(when: &str, seen: &Latencies) -> Row {
    Row::new()
        .with(&format!("{when}_p50_us"), seen.us(0.5))
        .with(&format!("{when}_p99_us"), seen.us(0.99))
        .with(&format!("{when}_p999_us"), seen.us(0.999))
}

/// Objects that are written.
#[derive(Clone)]
struct Filling {
    address: String,
    value: Arc<[u8]>,
    prefix: [u8; 4],
    keys: u64,
    /// The first deadline, and the time behind it over which the others are spread, in the order of
    /// the keys.
    deadlines: Option<(Moment, Duration)>,
}

impl Filling {
    async fn run(self, env: &Env) -> Result<(), Failure> {
        let (fillers, _) = FILLERS;
        let mut ends = Vec::new();
        for number in 0..fillers {
            let (clock, filling) = (Arc::clone(&env.clock), self.clone());
            let work = async move { filling.part(&*clock, number).await };
            ends.push(on_a_core(env, number as usize, work));
        }
        all(ends).await.map(drop)
    }

    async fn part(&self, clock: &dyn Clock, filler: u64) -> Result<(), Failure> {
        let (fillers, batch) = FILLERS;
        let mut pipeline = Pipeline::open(&self.address).await?;
        let mut from = filler * batch;
        while from < self.keys {
            let now = clock.now();
            for number in from..self.keys.min(from + batch) {
                let key = prefixed(self.prefix, number);
                match self.deadline(number) {
                    None => pipeline.add(&[b"SET", &key, &self.value]),
                    Some(deadline) => {
                        let ms = deadline.since(now).as_millis().max(1).to_string();
                        pipeline.add(&[b"SET", &key, &self.value, b"PX", ms.as_bytes()]);
                    }
                }
            }
            pipeline.run(|_, reply| answered(reply).map(drop)).await?;
            from += fillers * batch;
        }
        Ok(())
    }

    fn deadline(&self, number: u64) -> Option<Moment> {
        let (first, spread) = self.deadlines?;
        Some(first + spread.mul_f64(number as f64 / self.keys as f64))
    }
}

fn prefixed(prefix: [u8; 4], number: u64) -> [u8; KEY_BYTES] {
    let mut key = key(number);
    key[..prefix.len()].copy_from_slice(&prefix);
    key
}

/// A caller of keys that do not expire.
struct Bystander {
    clock: Arc<dyn Clock>,
    address: String,
    random: Random,
    value: Arc<[u8]>,
    get_percent: u64,
    /// The first deadline.
    first: Moment,
    stop: Arc<AtomicBool>,
}

impl Bystander {
    /// Latencies of reads: until the first deadline, and behind it.
    async fn run(mut self) -> Result<(Collector, Collector), Failure> {
        let mut pipeline = Pipeline::open(&self.address).await?;
        let (mut quiet, mut expiring) = (Collector::new(), Collector::new());
        while !self.stop.load(Ordering::Relaxed) {
            let key = prefixed(*b"key:", self.random.below(OTHERS));
            if self.random.below(100) >= self.get_percent {
                pipeline.call(&[b"SET", &key, &self.value]).await?;
                continue;
            }
            let start = self.clock.now();
            if pipeline.call(&[b"GET", &key]).await? == Reply::Nil {
                return Err(Failure::new("a key without a deadline is gone"));
            }
            let took = self.clock.now().since(start);
            match start < self.first {
                true => quiet.record(took),
                false => expiring.record(took),
            }
        }
        Ok((quiet, expiring))
    }
}

/// Sees how late keys are gone.
struct Watch<'w> {
    cluster: &'w Ours,
    address: &'w str,
    /// The servers before the keys, and with all of them.
    before: Held,
    full: Held,
    first: Moment,
    spread: Duration,
    keys: u64,
}

impl Watch<'_> {
    async fn run(&self, env: &Env, stop: &AtomicBool) -> Result<Row, Failure> {
        let now = || env.clock.now();
        let mut port = Pipeline::open(self.address).await?;
        env.clock.sleep(self.first.since(now())).await;
        let last = self.first + self.spread;
        let others = self.before.objects;
        let mut late_most = Duration::ZERO;
        let mut dbsize_late = None;
        let seconds = |late: Duration| late.as_secs_f64();
        let gone = loop {
            let held = Held::now(self.cluster).await?;
            let at = now();
            let left = held.objects.saturating_sub(others).min(self.keys);
            let oldest = self.oldest(left);
            if left > 0 && at > oldest {
                late_most = late_most.max(at.since(oldest));
            }
            if dbsize_late.is_none() && count(&mut port).await? <= OTHERS {
                dbsize_late = Some(now().since(last));
            }
            if left == 0 && dbsize_late.is_some() {
                break held;
            }
            if at > last + PATIENCE {
                return Err(Failure::new(format!(
                    "{left} keys are there {PATIENCE:?} behind the last deadline"
                )));
            }
            env.clock.sleep(LOOK).await;
        };
        // Requests from now on are not measured.
        stop.store(true, Ordering::Relaxed);
        let took = self.full.live.saturating_sub(self.before.live).max(1);
        let left = |held: Held| held.live.saturating_sub(self.before.live);
        let mut held = gone;
        let until = now() + LIVE_PATIENCE;
        while left(held) > took / LIVE_LEFT && now() < until {
            env.clock.sleep(LOOK).await;
            held = Held::now(self.cluster).await?;
        }
        let row = Row::new()
            .with("late_most_s", seconds(late_most))
            .with("dbsize_late_s", dbsize_late.map_or(f64::NAN, seconds))
            .with("live_left_percent", 100.0 * left(gone) as f64 / took as f64);
        Ok(match left(held) > took / LIVE_LEFT {
            true => row,
            false => row.with("live_late_s", seconds(now().since(last))),
        })
    }

    /// The deadline of the first key that is there, when this many are: they go in the order of
    /// their deadlines.
    fn oldest(&self, left: u64) -> Moment {
        let gone = self.keys - left;
        self.first + self.spread.mul_f64(gone as f64 / self.keys as f64)
    }
}

async fn count(pipeline: &mut Pipeline) -> Result<u64, Failure> {
    match pipeline.call(&[b"DBSIZE"]).await? {
        Reply::Integer(count) => Ok(u64::try_from(count).unwrap_or(0)),
        other => Err(Failure::new(format!("DBSIZE gave {other:?}"))),
    }
}

/// The spreads that rows have.
pub(super) fn spreads(rows: &[Row]) -> Vec<f64> {
    let mut all: Vec<f64> = rows
        .iter()
        .filter_map(|row| row.number("spread_s"))
        .collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all
}

/// A number of each round of a spread.
pub(super) fn numbers(rows: &[Row], spread: f64, name: &str) -> Vec<f64> {
    let of_it = rows
        .iter()
        .filter(|row| row.number("spread_s") == Some(spread));
    of_it.filter_map(|row| row.number(name)).collect()
}
