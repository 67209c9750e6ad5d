//! Streams of operations, run to their end.
//!
//! The clock covers only the operations. They are drawn beforehand, in pieces, and between two
//! parts of a stream all threads meet and wait while the first one looks at memory. Operations
//! before the mark [`LOADED`] do not count.

use super::random::THREADS_MAX;
use super::tally::{Collector, Latencies};
use super::threads::side_by_side;
use super::{delete, is_of, put, stamp};
use crate::clock;
use crate::contestant::{Holdings, KeyValue};
use crate::error::{ExperimentError, within};
use crate::workload::{DELETED, LOADED, Live, Operation, Plan, Stream};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use pluvio_load::Random;
use pluvio_units::VALUE_MAX;
use serde::{Deserialize, Serialize};

/// Bytes that are written between two looks at the memory of the process.
const LOOK_BYTES: u64 = 8 << 20;
/// Operations that are drawn before the clock goes on, all threads together, 24 bytes each. A piece
/// is so long that a cleaner gains little by the time of drawing.
const DRAWN: usize = 1 << 20;
/// One of this many operations is measured, since two looks at the clock cost some 50 ns. It is a
/// prime, which keeps step with no pattern of a stream.
const MEASURED_EVERY: u64 = 17;

/// The mark when no more memory was given back for a while.
pub const SETTLED: &str = "settled";
/// After two or three seconds without writes, in the second window at the latest, our store
/// notices. It looks once more for garbage to clean in the next.
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
    /// Whether the first thread looks at the memory of the process as it goes, and not only between
    /// the parts of the stream.
    pub memory: bool,
    /// Whether to wait after deletions until memory that is given back was given back, and to look
    /// again.
    pub settle: bool,
    /// Whether to measure how long operations take: one of some.
    pub latencies: bool,
}

/// A look at memory between two parts of the stream.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Mark {
    /// Which part had ended.
    pub name: String,
    /// The live objects by the streams' own count, all threads together.
    pub live: Live,
    /// Bytes in memory.
    pub resident: u64,
    /// Most bytes in memory at any look since the mark before.
    pub peak: u64,
    /// The store's holdings, without the bytes in memory.
    pub held: Holdings,
}

/// What replaying did.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Replayed {
    /// Operations, all threads together, behind the mark [`LOADED`] if there is one. So with all
    /// numbers of operations.
    pub operations: u64,
    /// The time of the slowest thread, of its operations alone.
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
    /// Looks between the parts, and one at the end.
    pub marks: Vec<Mark>,
    /// Bytes that the streams themselves take; not the contestant's.
    pub driver_bytes: u64,
    /// What the store holds at the end.
    pub after: Holdings,
    /// How long operations took, when that was asked for.
    pub latencies: Option<Latencies>,
}

/// What is live of all streams: each thread tells before the threads meet, and the first one takes
/// it when they have met.
#[derive(Default)]
struct Lives {
    objects: AtomicU64,
    bytes: AtomicU64,
}

impl Lives {
    fn tell(&self, live: Live) {
        // Relaxed: the barrier is between this and `take`.
        self.objects.fetch_add(live.objects, Ordering::Relaxed);
        self.bytes.fetch_add(live.bytes, Ordering::Relaxed);
    }

    fn take(&self) -> Live {
        Live {
            objects: self.objects.swap(0, Ordering::Relaxed),
            bytes: self.bytes.swap(0, Ordering::Relaxed),
        }
    }
}

/// Runs the plan.
pub(crate) fn replay<S: KeyValue>(
    store: &S,
    plan: &ReplayPlan,
) -> Result<Replayed, ExperimentError> {
    within("threads", plan.threads, 1..=THREADS_MAX)?;
    // The driver's own memory is found out before the first operation. A server's does not count
    // here.
    let before = store.resident();
    let streams: Result<Vec<_>, _> = (0..plan.threads)
        .map(|thread| plan.stream.stream(plan.seed, thread, plan.threads))
        .collect();
    let lives = Lives::default();
    let workers: Vec<Worker<'_, S>> = streams?
        .into_iter()
        .enumerate()
        .map(|(thread, stream)| Worker::new(store, stream, &lives, plan, thread))
        .collect();
    let driver_bytes = store.resident().saturating_sub(before);
    store.begin(true);
    let parts = side_by_side(workers, |worker, ready| worker.run(ready));
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
        all.marks.extend(part.marks);
        latencies.add(&collector);
    }
    all.latencies = plan.latencies.then(|| latencies.latencies());
    Ok(all)
}

/// What comes behind the operations that were drawn.
enum Next {
    /// More operations of the same part.
    Operations,
    /// The part has ended.
    Mark(&'static str),
    /// The stream has.
    End,
}

/// One thread.
struct Worker<'a, S> {
    store: &'a S,
    stream: Box<dyn Stream>,
    lives: &'a Lives,
    /// It looks at memory while the others wait.
    first: bool,
    looks: bool,
    settles: bool,
    measures: bool,
    /// The operations that come next.
    drawn: Vec<Operation>,
    /// The most that are drawn at a time.
    drawn_max: usize,
    value: Vec<u8>,
    into: Vec<u8>,
    unlooked: u64,
    /// Most bytes in memory at any look since the last mark.
    peak: u64,
    /// Time on the clock, and how much of it went by with looks at memory.
    working: Duration,
    looking: Duration,
    part: Replayed,
    latencies: Collector,
}

impl<'a, S: KeyValue> Worker<'a, S> {
    fn new(
        store: &'a S,
        stream: Box<dyn Stream>,
        lives: &'a Lives,
        plan: &ReplayPlan,
        thread: usize,
    ) -> Self {
        let drawn_max = (DRAWN / plan.threads).max(1);
        // Touched here, so that it is counted with what the driver takes.
        let mut drawn = vec![Operation::Mark(""); drawn_max];
        drawn.clear();
        Self {
            store,
            stream,
            lives,
            first: thread == 0,
            looks: plan.memory && thread == 0,
            settles: plan.settle,
            measures: plan.latencies,
            drawn,
            drawn_max,
            value: Random::new(plan.seed, thread as u64).bytes(VALUE_MAX),
            into: vec![1; VALUE_MAX],
            unlooked: 0,
            peak: 0,
            working: Duration::ZERO,
            looking: Duration::ZERO,
            part: Replayed::default(),
            latencies: Collector::new(),
        }
    }

    /// Runs part by part. All threads meet when they have drawn its first operations, and when they
    /// have done its last one, whatever has failed: the others would wait. All streams of a plan
    /// have the same marks.
    fn run(mut self, ready: &dyn Fn()) -> Result<(Replayed, Collector), ExperimentError> {
        let mut done = Ok(());
        let mut begins = true;
        loop {
            let next = self.draw();
            if core::mem::take(&mut begins) {
                ready();
            }
            if done.is_ok() {
                done = self.work();
            }
            let mark = match next {
                Next::Operations => continue,
                Next::Mark(name) => name,
                Next::End => "end",
            };
            self.lives.tell(self.stream.live());
            ready();
            self.look_between(mark);
            if mark == LOADED {
                self.begin();
            }
            if matches!(next, Next::End) {
                break;
            }
            begins = true;
        }
        done?;
        self.part.seconds = self.working.saturating_sub(self.looking).as_secs_f64();
        Ok((self.part, self.latencies))
    }

    /// Draws the next operations, as far as the next mark.
    fn draw(&mut self) -> Next {
        self.drawn.clear();
        while self.drawn.len() < self.drawn_max {
            match self.stream.next() {
                Some(Operation::Mark(name)) => return Next::Mark(name),
                Some(
                    operation @ (Operation::Put { .. }
                    | Operation::Get { .. }
                    | Operation::Append { .. }
                    | Operation::Delete { .. }),
                ) => self.drawn.push(operation),
                None => return Next::End,
            }
        }
        Next::Operations
    }

    /// The part that counts begins; earlier looks at memory are kept.
    fn begin(&mut self) {
        let before = core::mem::take(&mut self.part);
        self.part = Replayed {
            resident_peak: before.resident_peak,
            marks: before.marks,
            ..Replayed::default()
        };
        self.latencies = Collector::new();
        (self.working, self.looking) = (Duration::ZERO, Duration::ZERO);
    }

    /// Does what was drawn, on the clock.
    fn work(&mut self) -> Result<(), ExperimentError> {
        let drawn = core::mem::take(&mut self.drawn);
        let begin = clock::now();
        let done = drawn.iter().try_for_each(|&operation| self.step(operation));
        self.working += begin.elapsed();
        self.drawn = drawn;
        done
    }

    #[inline]
    fn step(&mut self, operation: Operation) -> Result<(), ExperimentError> {
        let measured = self.measures && self.part.operations.is_multiple_of(MEASURED_EVERY);
        let since = measured.then(clock::now);
        self.act(operation)?;
        if let Some(since) = since {
            self.latencies.record(since.elapsed());
        }
        self.part.operations += 1;
        if self.looks && self.unlooked >= LOOK_BYTES {
            self.unlooked = 0;
            let begin = clock::now();
            self.look();
            self.looking += begin.elapsed();
        }
        Ok(())
    }

    fn act(&mut self, operation: Operation) -> Result<(), ExperimentError> {
        match operation {
            Operation::Put { key, size } => self.put(key, size as usize),
            Operation::Get { key } => self.get(key).map(|_| ()),
            Operation::Append { key, more } => {
                let old = self.get(key)?.unwrap_or(0);
                self.put(key, (old + more as usize).min(VALUE_MAX))
            }
            Operation::Delete { key } => delete(self.store, key).map(|_| ()),
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
        let resident = self.store.resident();
        self.part.resident_peak = self.part.resident_peak.max(resident);
        self.peak = self.peak.max(resident);
        resident
    }

    /// The first thread looks at memory, and waits until it has settled where that is asked for.
    fn look_between(&mut self, name: &str) {
        if !self.first {
            return;
        }
        let live = self.lives.take();
        self.mark(name, live);
        if name == DELETED && self.settles {
            self.settle();
            self.mark(SETTLED, live);
        }
    }

    fn mark(&mut self, name: &str, live: Live) {
        let resident = self.look();
        self.part.marks.push(Mark {
            name: name.into(),
            live,
            resident,
            peak: core::mem::take(&mut self.peak),
            held: self.store.counts(),
        });
    }

    /// Waits while memory is given back, if there is a thread that does so by itself.
    fn settle(&self) {
        if !self.store.gives_back_by_itself() {
            return;
        }
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestant::Refusal;
    use crate::workload::ProfilePlan;
    use std::collections::BTreeMap;
    use std::sync::{Mutex, MutexGuard};

    /// A map that refuses keys from some number on.
    struct Mapped {
        values: Mutex<BTreeMap<u64, Vec<u8>>>,
        refused_from: u64,
    }

    impl Mapped {
        fn new(refused_from: u64) -> Self {
            Self {
                values: Mutex::default(),
                refused_from,
            }
        }

        fn values(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<u8>>> {
            self.values.lock().unwrap()
        }
    }

    impl KeyValue for Mapped {
        fn get(&self, key: u64, into: &mut Vec<u8>) -> bool {
            into.clear();
            let values = self.values();
            let found = values.get(&key);
            into.extend_from_slice(found.map(Vec::as_slice).unwrap_or_default());
            found.is_some()
        }

        fn put(&self, key: u64, value: &[u8]) -> Result<(), Refusal> {
            if key >= self.refused_from {
                return Err(Refusal::Fatal("too far".into()));
            }
            self.values().insert(key, value.to_vec());
            Ok(())
        }

        fn delete(&self, key: u64) -> Result<bool, Refusal> {
            Ok(self.values().remove(&key).is_some())
        }
    }

    fn plan() -> ReplayPlan {
        ReplayPlan {
            stream: Plan::Profile(ProfilePlan::new(14, 300, 1700).unwrap()),
            threads: 2,
            seed: 1,
            memory: false,
            settle: false,
            latencies: true,
        }
    }

    #[test]
    fn what_is_loaded_before_does_not_count() {
        let store = Mapped::new(u64::MAX);
        let replayed = replay(&store, &plan()).unwrap();
        assert_eq!(replayed.operations, 2 * 1700);
        assert!(replayed.puts < 2 * 300, "{replayed:?}");
        assert!(replayed.seconds > 0.0 && replayed.resident_peak > 0);
        let measured = replayed.latencies.unwrap().count;
        assert_eq!(measured, 2 * 1700 / MEASURED_EVERY);
    }

    #[test]
    fn marks_tell_what_is_live_of_all_threads() {
        let store = Mapped::new(u64::MAX);
        let replayed = replay(&store, &plan()).unwrap();
        let names: Vec<&str> = replayed.marks.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(names, [LOADED, "end"]);
        assert_eq!(replayed.marks[0].live.objects, 2 * 300);
        let values = store.values();
        let live = replayed.marks[1].live;
        assert_eq!(live.objects, values.len() as u64);
        let bytes: usize = values.values().map(Vec::len).sum();
        assert_eq!(live.bytes, bytes as u64);
    }

    #[test]
    fn a_thread_that_fails_does_not_let_the_others_wait() {
        let store = Mapped::new(1 << 40);
        let error = replay(&store, &plan()).unwrap_err().to_string();
        assert!(error.contains("too far"), "{error}");
    }

    #[test]
    fn operations_are_drawn_in_pieces_that_end_at_marks() {
        let (store, lives) = (Mapped::new(u64::MAX), Lives::default());
        let stream = plan().stream.stream(1, 0, 1).unwrap();
        let mut worker = Worker::new(&store, stream, &lives, &plan(), 0);
        worker.drawn_max = 200;
        let mut pieces = Vec::new();
        loop {
            let next = worker.draw();
            pieces.push(worker.drawn.len());
            match next {
                Next::Operations => {}
                Next::Mark(name) => assert_eq!((name, pieces.len()), (LOADED, 2)),
                Next::End => break,
            }
        }
        assert_eq!(pieces[..3], [200, 100, 200]);
        assert_eq!(pieces.iter().sum::<usize>(), 300 + 1700);
    }
}
