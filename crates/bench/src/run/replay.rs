//! Streams of operations, run to their end.

use super::random::THREADS_MAX;
use super::tally::{Collector, Latencies};
use super::threads::side_by_side;
use super::{is_of, put, stamp};
use crate::clock;
use crate::contestant::{Holdings, KeyValue, Refusal};
use crate::error::{ExperimentError, within};
use crate::random::Random;
use crate::workload::{DELETED, Live, Operation, Plan, Stream};
use core::time::Duration;
use pluvio_units::VALUE_MAX;
use serde::{Deserialize, Serialize};

/// Bytes that are written between two looks at the memory of the process.
const LOOK_BYTES: u64 = 8 << 20;

/// The mark when no more memory was given back for a while.
pub const SETTLED: &str = "settled";
/// Our store notices after two or three seconds that nothing is written, in the second window at the latest, and looks once
/// more for what it may clean in the next.
const SETTLE_MIN: Duration = Duration::from_secs(7);
/// Memory has settled when so long ...
const SETTLE_STILL: Duration = Duration::from_millis(2500);
/// ... it did not fall by a hundredth; or after this time.
const SETTLE_MAX: Duration = Duration::from_secs(20);
/// Time between two looks while it settles.
const SETTLE_LOOK: Duration = Duration::from_millis(250);

/// Streams to run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ReplayPlan {
    /// Which.
    pub stream: Plan,
    /// Threads, each with its own stream.
    pub threads: usize,
    /// Seed of the streams.
    pub seed: u64,
    /// Whether the first thread looks at the memory of the process as it goes.
    pub memory: bool,
    /// Whether to wait after deletions until memory that is given back was given back, and to look again.
    pub settle: bool,
    /// Whether to measure each operation.
    pub latencies: bool,
}

/// A look at memory between two parts of the stream.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Mark {
    /// Which part had ended.
    pub name: String,
    /// What the stream says is live.
    pub live: Live,
    /// Bytes in memory.
    pub resident: u64,
    /// Most bytes in memory at any look since the mark before.
    pub peak: u64,
    /// What the store holds, but for the bytes in memory.
    pub held: Holdings,
}

/// What replaying did.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Replayed {
    /// Operations, all threads together.
    pub operations: u64,
    /// The time of the slowest thread, looks at memory subtracted.
    pub seconds: f64,
    /// Reads.
    pub gets: u64,
    /// Reads that found nothing.
    pub misses: u64,
    /// Writes, those of appends included.
    pub puts: u64,
    /// Writes that were refused, each time counted.
    pub retries: u64,
    /// Most bytes in memory at any look.
    pub resident_peak: u64,
    /// Most bytes live at any look.
    pub live_peak: u64,
    /// Looks between the parts, and one at the end.
    pub marks: Vec<Mark>,
    /// Bytes that the streams themselves take; not the contestant's.
    pub driver_bytes: u64,
    /// What the store holds at the end.
    pub after: Holdings,
    /// How long operations took, when that was asked for.
    pub latencies: Option<Latencies>,
}

/// Runs the plan.
pub(crate) fn replay<S: KeyValue>(
    store: &S,
    plan: &ReplayPlan,
) -> Result<Replayed, ExperimentError> {
    within("threads", plan.threads, 1..=THREADS_MAX)?;
    // The driver's own memory is found out before the first operation. A server's does not count here.
    let before = store.resident();
    let streams: Result<Vec<_>, _> = (0..plan.threads)
        .map(|thread| plan.stream.stream(plan.seed, thread, plan.threads))
        .collect();
    let workers: Vec<Worker<'_, S>> = streams?
        .into_iter()
        .enumerate()
        .map(|(thread, stream)| Worker::new(store, stream, plan, thread))
        .collect();
    let driver_bytes = store.resident().saturating_sub(before);
    store.begin(true);
    let parts = side_by_side(workers, |worker, ready| {
        ready();
        worker.run()
    });
    let mut all = Replayed {
        driver_bytes,
        after: store.holdings(),
        ..Replayed::default()
    };
    let mut latencies = Collector::new();
    for part in parts {
        let (part, collector) = part?;
        all.operations += part.operations;
        all.seconds = all.seconds.max(part.seconds);
        all.gets += part.gets;
        all.misses += part.misses;
        all.puts += part.puts;
        all.retries += part.retries;
        all.resident_peak = all.resident_peak.max(part.resident_peak);
        all.live_peak += part.live_peak;
        all.marks.extend(part.marks);
        latencies.add(&collector);
    }
    all.latencies = plan.latencies.then(|| latencies.latencies());
    Ok(all)
}

/// One thread.
struct Worker<'a, S> {
    store: &'a S,
    stream: Box<dyn Stream>,
    looks: bool,
    settles: bool,
    measures: bool,
    value: Vec<u8>,
    into: Vec<u8>,
    unlooked: u64,
    /// Most bytes in memory at any look since the last mark.
    peak: u64,
    looking: Duration,
    part: Replayed,
    latencies: Collector,
}

impl<'a, S: KeyValue> Worker<'a, S> {
    fn new(store: &'a S, stream: Box<dyn Stream>, plan: &ReplayPlan, thread: usize) -> Self {
        Self {
            store,
            stream,
            looks: plan.memory && thread == 0,
            settles: plan.settle && thread == 0,
            measures: plan.latencies,
            value: Random::new(plan.seed, thread as u64).bytes(VALUE_MAX),
            into: vec![1; VALUE_MAX],
            unlooked: 0,
            peak: 0,
            looking: Duration::ZERO,
            part: Replayed::default(),
            latencies: Collector::new(),
        }
    }

    fn run(mut self) -> Result<(Replayed, Collector), ExperimentError> {
        let begin = clock::now();
        while let Some(operation) = self.stream.next() {
            if let Operation::Mark(name) = operation {
                self.mark(name);
                if name == DELETED && self.settles {
                    self.settle();
                }
                continue;
            }
            let since = self.measures.then(clock::now);
            self.act(operation)?;
            if let Some(since) = since {
                self.latencies.record(since.elapsed());
            }
            self.part.operations += 1;
            if self.looks && self.unlooked >= LOOK_BYTES {
                self.unlooked = 0;
                self.look();
            }
        }
        self.part.seconds = (begin.elapsed() - self.looking).as_secs_f64();
        self.mark("end");
        Ok((self.part, self.latencies))
    }

    fn act(&mut self, operation: Operation) -> Result<(), ExperimentError> {
        match operation {
            Operation::Put { key, size } => self.put(key, size as usize),
            Operation::Get { key } => self.get(key).map(|_| ()),
            Operation::Append { key, more } => {
                let old = self.get(key)?.unwrap_or(0);
                self.put(key, (old + more as usize).min(VALUE_MAX))
            }
            Operation::Delete { key } => {
                let deleted = self.store.delete(key).map(|_| ());
                deleted.map_err(|refusal| match refusal {
                    Refusal::Fatal(problem) => ExperimentError::Run(problem),
                    Refusal::Full(_) => {
                        ExperimentError::Run("a delete was refused for want of memory".into())
                    }
                })
            }
            Operation::Mark(_) => Ok(()),
        }
    }

    /// The length of the value that is there.
    fn get(&mut self, key: u64) -> Result<Option<usize>, ExperimentError> {
        self.part.gets += 1;
        if !self.store.get(key, &mut self.into) {
            self.part.misses += 1;
            return Ok(None);
        }
        match is_of(key, &self.into) {
            true => Ok(Some(self.into.len())),
            false => Err(ExperimentError::Run(format!(
                "key {key} has another key's value (CON-1)"
            ))),
        }
    }

    fn put(&mut self, key: u64, size: usize) -> Result<(), ExperimentError> {
        let value = &mut self.value[..size];
        stamp(key, value);
        self.part.retries += put(self.store, key, value)?;
        self.part.puts += 1;
        self.unlooked += size as u64;
        Ok(())
    }

    fn look(&mut self) -> u64 {
        let begin = clock::now();
        let resident = self.store.resident();
        self.part.resident_peak = self.part.resident_peak.max(resident);
        self.peak = self.peak.max(resident);
        self.part.live_peak = self.part.live_peak.max(self.stream.live().bytes);
        self.looking += begin.elapsed();
        resident
    }

    fn mark(&mut self, name: &str) {
        if !self.looks {
            self.part.live_peak = self.part.live_peak.max(self.stream.live().bytes);
            return;
        }
        let resident = self.look();
        self.part.marks.push(Mark {
            name: name.into(),
            live: self.stream.live(),
            resident,
            peak: core::mem::take(&mut self.peak),
            held: self.store.counts(),
        });
    }

    /// Waits while memory is given back, if there is a thread that does so by itself.
    fn settle(&mut self) {
        if self.store.gives_back_by_itself() {
            let begin = clock::now();
            let (mut least, mut since) = (self.store.resident(), begin);
            while begin.elapsed() < SETTLE_MAX
                && (begin.elapsed() < SETTLE_MIN || since.elapsed() < SETTLE_STILL)
            {
                std::thread::park_timeout(SETTLE_LOOK);
                let resident = self.store.resident();
                if resident < least - least / 100 {
                    (least, since) = (resident, clock::now());
                }
            }
            self.looking += begin.elapsed();
        }
        self.mark(SETTLED);
    }
}
