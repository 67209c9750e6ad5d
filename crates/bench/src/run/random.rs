//! Random operations on a filled store for a time, by several threads.

use super::tally::{Collector, Latencies};
use super::threads::side_by_side;
use super::{is_of, put, stamp};
use crate::clock;
use crate::contestant::{Holdings, KeyValue};
use crate::error::{ExperimentError, within};
use crate::random::Random;
use crate::workload::{Distribution, Draw};
use core::time::Duration;
use serde::{Deserialize, Serialize};

/// Operations between two looks at the clock.
const LOOK: usize = 256;
/// Draws that are made beforehand where drawing costs more than an operation: they are read in order,
/// so they cost little memory bandwidth. Uniform draws are made on the way.
const DRAWN: usize = 1 << 20;

/// Random operations.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RunPlan {
    /// How long.
    pub seconds: f64,
    /// Threads.
    pub threads: usize,
    /// Keys are `0..objects`.
    pub objects: u64,
    /// Bytes of each value.
    pub value_size: usize,
    /// How many of a hundred operations read.
    pub get_percent: u8,
    /// Which keys: the name of a [`Distribution`].
    pub distribution: String,
    /// Reads asked for together; writes are always one by one.
    pub batch: usize,
    /// Seed of the draws.
    pub seed: u64,
    /// Whether to measure each operation, which costs about 50 ns each.
    pub latencies: bool,
    /// Whether a simulated disk keeps to its rate.
    pub measured: bool,
}

/// Most threads: our store has an epoch slot for each; more would share a mutex, and their figures would tell of that.
pub const THREADS_MAX: usize = 512;

/// Largest batch, and most keys: more would not fit any machine that this runs on.
pub const BATCH_MAX: usize = 1 << 16;
/// See [`BATCH_MAX`].
pub const KEYS_MAX: u64 = 1 << 36;

impl RunPlan {
    fn check(&self) -> Result<(), ExperimentError> {
        within("threads", self.threads, 1..=THREADS_MAX)?;
        within("batch", self.batch, 1..=BATCH_MAX)?;
        within("keys", self.objects, 1..=KEYS_MAX)?;
        within("get-percent", self.get_percent, 0..=100)
    }
}

/// What a run did.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Ran {
    /// Operations.
    pub operations: u64,
    /// Of these, writes.
    pub puts: u64,
    /// Operations in a second, all threads together.
    pub per_second: f64,
    /// Reads that found nothing.
    pub misses: u64,
    /// Writes that were refused, each time counted.
    pub retries: u64,
    /// What the store held and had done before.
    pub before: Holdings,
    /// And after.
    pub after: Holdings,
    /// How long operations took, when that was asked for.
    pub latencies: Option<Latencies>,
}

/// A spin without work.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct IdlePlan {
    /// How long.
    pub seconds: f64,
    /// Threads.
    pub threads: usize,
}

/// Pauses that threads saw which did nothing but look at the clock.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Idle {
    /// Time between two looks.
    pub pauses: Latencies,
}

/// One thread's part.
struct Part {
    operations: u64,
    puts: u64,
    seconds: f64,
    misses: u64,
    damaged: u64,
    retries: u64,
    latencies: Collector,
}

/// Runs the plan.
pub(crate) fn run<S: KeyValue>(store: &S, plan: &RunPlan) -> Result<Ran, ExperimentError> {
    let distribution: Distribution = plan
        .distribution
        .parse()
        .map_err(ExperimentError::Parameters)?;
    plan.check()?;
    let draw = distribution.over(plan.objects);
    store.begin(plan.measured);
    let before = store.holdings();
    let parts = side_by_side(0..plan.threads, |number, ready| {
        part(store, plan, &draw, number, ready)
    });
    let mut ran = Ran {
        before,
        after: store.holdings(),
        ..Ran::default()
    };
    let mut latencies = Collector::new();
    let mut damaged = 0;
    for part in parts {
        let part = part?;
        ran.operations += part.operations;
        ran.puts += part.puts;
        ran.per_second += part.operations as f64 / part.seconds.max(1e-9);
        ran.misses += part.misses;
        ran.retries += part.retries;
        damaged += part.damaged;
        latencies.add(&part.latencies);
    }
    ran.latencies = plan.latencies.then(|| latencies.latencies());
    match damaged {
        0 => Ok(ran),
        _ => Err(ExperimentError::Run(format!(
            "{damaged} reads gave another key's value (CON-1)"
        ))),
    }
}

/// Spins on every thread.
pub(crate) fn idle(plan: &IdlePlan) -> Idle {
    let limit = Duration::from_secs_f64(plan.seconds);
    let spin = || {
        let mut pauses = Collector::new();
        let begin = clock::now();
        let mut last = begin;
        while last - begin < limit {
            let now = clock::now();
            pauses.record(now - last);
            last = now;
        }
        pauses
    };
    let mut all = Collector::new();
    for pauses in side_by_side(0..plan.threads.max(1), |_, _| spin()) {
        all.add(&pauses);
    }
    Idle {
        pauses: all.latencies(),
    }
}

fn part<S: KeyValue>(
    store: &S,
    plan: &RunPlan,
    draw: &Draw,
    number: usize,
    ready: &dyn Fn(),
) -> Result<Part, ExperimentError> {
    let mut random = Random::new(plan.seed, number as u64 + 1);
    let mut keys = Keys::new(draw, &mut random, &plan.distribution);
    let mut value = random.bytes(plan.value_size);
    let mut into = Vec::with_capacity(plan.value_size);
    let mut batch = Vec::with_capacity(plan.batch);
    let mut part = Part {
        operations: 0,
        puts: 0,
        seconds: 0.0,
        misses: 0,
        damaged: 0,
        retries: 0,
        latencies: Collector::new(),
    };
    ready();
    let limit = Duration::from_secs_f64(plan.seconds);
    let begin = clock::now();
    loop {
        for _ in 0..LOOK.div_ceil(plan.batch) {
            let read = random.below(100) < u64::from(plan.get_percent);
            let since = plan.latencies.then(clock::now);
            if !read {
                let key = keys.next(&mut random);
                stamp(key, &mut value);
                part.retries += put(store, key, &value)?;
                part.puts += 1;
                part.operations += 1;
            } else if plan.batch == 1 {
                let key = keys.next(&mut random);
                match store.get(key, &mut into) {
                    true => part.damaged += u64::from(!is_of(key, &into)),
                    false => part.misses += 1,
                }
                part.operations += 1;
            } else {
                batch.clear();
                batch.extend((0..plan.batch).map(|_| keys.next(&mut random)));
                let (mut misses, mut damaged) = (0, 0);
                store.get_batch(&batch, &mut into, &mut |key, value| match value {
                    Some(value) => damaged += u64::from(!is_of(key, value)),
                    None => misses += 1,
                });
                part.misses += misses;
                part.damaged += damaged;
                part.operations += plan.batch as u64;
            }
            if let Some(since) = since {
                part.latencies.record(since.elapsed());
            }
        }
        let took = begin.elapsed();
        if took >= limit {
            part.seconds = took.as_secs_f64();
            return Ok(part);
        }
    }
}

/// A thread's keys.
enum Keys<'a> {
    Draw(&'a Draw),
    Drawn { keys: Vec<u32>, at: usize },
}

impl<'a> Keys<'a> {
    fn new(draw: &'a Draw, random: &mut Random, distribution: &str) -> Self {
        match distribution == "uniform" || draw.count() > u64::from(u32::MAX) {
            true => Self::Draw(draw),
            false => Self::Drawn {
                keys: (0..DRAWN).map(|_| draw.spread(random) as u32).collect(),
                at: 0,
            },
        }
    }

    #[inline]
    fn next(&mut self, random: &mut Random) -> u64 {
        match self {
            Self::Draw(draw) => draw.spread(random),
            Self::Drawn { keys, at } => {
                *at = (*at + 1) % DRAWN;
                u64::from(keys[*at])
            }
        }
    }
}
