//! Random operations on a filled store for a time, by several threads.

use super::drawn::{Drawn, Keys};
use super::tally::{Collector, Latencies};
use super::threads::side_by_side;
use super::{delete, is_of, put, put_all, stamp};
use crate::clock;
use crate::contestant::{Holdings, KeyValue, TOGETHER};
use crate::error::{ExperimentError, within};
use crate::workload::{Distribution, Draw};
use core::time::Duration;
use pluvio_load::Random;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Operations between two looks at the clock.
const LOOK: u64 = 256;
/// Longest part of a round that writes and does not count. A second's writes are some hundred
/// megabytes, more than a cleaner frees ahead of them.
const LEAD_IN_MAX: f64 = 1.0;
/// The same of rounds that only read: caches fill, and what a cleaner had begun ends.
const LEAD_IN_OF_READS: f64 = 0.05;
/// Keys of a thread that are not there while it inserts. As many other keys come between the
/// deletion of a key and its insertion. So no near cache has the lines that the deletion touched.
const GONE_MAX: u64 = 1 << 16;
/// The same as a part of the thread's keys.
const GONE_PART: u64 = 4;
/// A round may last this many times its length for the sake of [`RunPlan::puts_min`].
const LONGER_MAX: u32 = 10;

/// Random operations.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RunPlan {
    /// How long operations go on before those that count, see [`Self::usual_lead_in`].
    pub lead_in: f64,
    /// How long.
    pub seconds: f64,
    /// Longer, up to ten times, until all threads together did this many writes.
    pub puts_min: u64,
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
    /// Reads asked for together.
    pub batch: usize,
    /// Writes made together.
    pub put_batch: usize,
    /// Seed of the draws.
    pub seed: u64,
    /// Whether to measure each operation, which costs about 50 ns each.
    pub latencies: bool,
    /// Whether every operation writes a key that is not there: one that its thread deleted long
    /// before. For each, another one is deleted behind it; deletions are in the rate and in no
    /// latency. All keys are there again at the end. Keys are uniform, and other mixes are ignored.
    pub inserts: bool,
    /// Whether a simulated disk keeps to its rate.
    pub measured: bool,
}

/// Most threads: our store has an epoch slot for each; more would share a mutex, and their figures
/// would tell of that.
pub const THREADS_MAX: usize = 512;

/// Largest batch, and most keys: more would not fit any machine that this runs on.
pub const BATCH_MAX: usize = 1 << 16;
/// See [`BATCH_MAX`].
pub const KEYS_MAX: u64 = 1 << 36;

impl RunPlan {
    /// How long the lead-in of a round should be: until memory that was free, and caches, are as
    /// they stay during the round.
    #[must_use]
    pub fn usual_lead_in(seconds: f64, get_percent: u8) -> f64 {
        match get_percent < 100 {
            true => seconds.min(LEAD_IN_MAX),
            false => LEAD_IN_OF_READS,
        }
    }

    fn check(&self) -> Result<(), ExperimentError> {
        within("threads", self.threads, 1..=THREADS_MAX)?;
        within("batch", self.batch, 1..=BATCH_MAX)?;
        within("batch", self.put_batch, 1..=BATCH_MAX)?;
        let keys_min = match self.inserts {
            true => GONE_PART * self.threads as u64,
            false => 1,
        };
        within("keys", self.objects, keys_min..=KEYS_MAX)?;
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
    /// The store's holdings and counts when the lead-in ended, without the bytes in memory.
    pub before: Holdings,
    /// The same at once after the last operation; and the bytes in memory, which were counted then.
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

/// What a thread did.
struct Part {
    operations: u64,
    puts: u64,
    seconds: f64,
    misses: u64,
    damaged: u64,
    retries: u64,
    latencies: Collector,
    /// The first thread's, as in [`Ran`].
    before: Holdings,
    after: Holdings,
}

impl Part {
    fn new() -> Self {
        Self {
            operations: 0,
            puts: 0,
            seconds: 0.0,
            misses: 0,
            damaged: 0,
            retries: 0,
            latencies: Collector::new(),
            before: Holdings::default(),
            after: Holdings::default(),
        }
    }
}

/// Runs the plan.
pub(crate) fn run<S: KeyValue>(
    store: &S,
    plan: &RunPlan,
    drawn: &mut Drawn,
) -> Result<Ran, ExperimentError> {
    let distribution: Distribution = plan
        .distribution
        .parse()
        .map_err(ExperimentError::Parameters)?;
    plan.check()?;
    let draw = distribution.over(plan.objects);
    let drawn = drawn.of(distribution, &draw, plan.seed);
    store.begin(plan.measured);
    let parts = side_by_side(0..plan.threads, |number, ready| {
        Worker::new(store, plan, &draw, drawn, number).run(number == 0, ready)
    });
    let mut ran = Ran::default();
    let mut latencies = Collector::new();
    let mut damaged = 0;
    for (number, part) in parts.into_iter().enumerate() {
        let part = part?;
        if number == 0 {
            (ran.before, ran.after) = (part.before, part.after);
        }
        ran.operations += part.operations;
        ran.puts += part.puts;
        ran.per_second += part.operations as f64 / part.seconds.max(1e-9);
        ran.misses += part.misses;
        ran.retries += part.retries;
        damaged += part.damaged;
        latencies.add(&part.latencies);
    }
    // Last: counting takes a while, in which a cleaner goes on.
    ran.after.resident = store.resident();
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

/// One thread.
struct Worker<'a, S> {
    store: &'a S,
    plan: &'a RunPlan,
    random: Random,
    keys: Keys<'a>,
    /// As many values as are written together.
    value: Vec<u8>,
    into: Vec<u8>,
    batch: Vec<u64>,
    /// The thread's number: keys that are this number modulo the number of threads are its own.
    number: u64,
    /// Own keys that are not there, those that were deleted first in front.
    gone: VecDeque<u64>,
}

impl<'a, S: KeyValue> Worker<'a, S> {
    fn new(
        store: &'a S,
        plan: &'a RunPlan,
        draw: &'a Draw,
        drawn: Option<&'a [u32]>,
        number: usize,
    ) -> Self {
        let mut random = Random::new(plan.seed, number as u64 + 1);
        let keys = Keys::new(draw, drawn, &mut random);
        Self {
            store,
            plan,
            keys,
            value: random.bytes(plan.value_size * plan.put_batch.min(TOGETHER)),
            into: Vec::with_capacity(plan.value_size),
            batch: Vec::with_capacity(plan.batch),
            random,
            number: number as u64,
            gone: VecDeque::new(),
        }
    }

    /// The lead-in and then what counts; the `first` thread notes what the store has done. All
    /// threads meet in between, whatever has failed: the others would wait.
    fn run(mut self, first: bool, ready: &dyn Fn()) -> Result<Part, ExperimentError> {
        let store = self.store;
        let counts = || match first {
            true => store.counts(),
            false => Holdings::default(),
        };
        let plan = self.plan;
        let gone = self.make_room();
        ready();
        let led_in = gone.and_then(|()| self.go(plan.lead_in, 0));
        ready();
        let before = counts();
        ready();
        let puts_min = plan.puts_min.div_ceil(plan.threads as u64);
        let ran = led_in.and_then(|_| self.go(plan.seconds, puts_min));
        ready();
        let after = counts();
        let ran = ran?;
        self.bring_back()?;
        Ok(Part {
            before,
            after,
            ..ran
        })
    }

    /// Deletes keys, ahead of inserts.
    fn make_room(&mut self) -> Result<(), ExperimentError> {
        let own = self.plan.objects / self.plan.threads as u64;
        let wanted = match self.plan.inserts {
            true => (own / GONE_PART).min(GONE_MAX),
            false => 0,
        };
        while (self.gone.len() as u64) < wanted {
            self.take_away()?;
        }
        Ok(())
    }

    /// Deletes a key of this thread that is there. Most are: see [`GONE_PART`].
    fn take_away(&mut self) -> Result<(), ExperimentError> {
        let threads = self.plan.threads as u64;
        let own = self.plan.objects / threads;
        loop {
            let key = self.number + threads * self.random.below(own);
            if delete(self.store, key)? {
                self.gone.push_back(key);
                return Ok(());
            }
        }
    }

    /// Writes all that was deleted, so that a later run finds all keys.
    fn bring_back(&mut self) -> Result<(), ExperimentError> {
        while let Some(key) = self.gone.pop_front() {
            stamp(key, &mut self.value);
            put(self.store, key, &self.value)?;
        }
        Ok(())
    }

    /// Writes the key that was deleted first, and deletes another one.
    fn insert(&mut self, part: &mut Part) -> Result<(), ExperimentError> {
        let key = self.gone.pop_front();
        let key = key.ok_or_else(|| ExperimentError::Run("no key is left to insert".into()))?;
        stamp(key, &mut self.value);
        let since = self.plan.latencies.then(clock::now);
        part.retries += put(self.store, key, &self.value)?;
        if let Some(since) = since {
            part.latencies.record(since.elapsed());
        }
        part.puts += 1;
        part.operations += 1;
        self.take_away()
    }

    /// Operations for a time, and for longer until there were enough writes.
    fn go(&mut self, seconds: f64, puts_min: u64) -> Result<Part, ExperimentError> {
        let limit = Duration::from_secs_f64(seconds);
        let mut part = Part::new();
        let begin = clock::now();
        loop {
            let look = part.operations + LOOK;
            while self.plan.inserts && part.operations < look {
                self.insert(&mut part)?;
            }
            while part.operations < look {
                let since = self.plan.latencies.then(clock::now);
                self.act(&mut part)?;
                if let Some(since) = since {
                    part.latencies.record(since.elapsed());
                }
            }
            let took = begin.elapsed();
            if took >= limit && (part.puts >= puts_min || took >= limit * LONGER_MAX) {
                part.seconds = took.as_secs_f64();
                return Ok(part);
            }
        }
    }

    /// A write, a read, or a batch of one of them.
    #[inline]
    fn act(&mut self, part: &mut Part) -> Result<(), ExperimentError> {
        let (batch, put_batch) = (self.plan.batch as u64, self.plan.put_batch as u64);
        let (reads, all) = shares(self.plan.get_percent, batch, put_batch);
        let writes = self.random.below(all) >= reads;
        if writes && self.plan.put_batch > 1 {
            self.write_batch(part)?;
        } else if writes {
            let key = self.keys.next(&mut self.random);
            stamp(key, &mut self.value);
            part.retries += put(self.store, key, &self.value)?;
            part.puts += 1;
            part.operations += 1;
        } else if self.plan.batch == 1 {
            let key = self.keys.next(&mut self.random);
            match self.store.get(key, &mut self.into) {
                true => part.damaged += u64::from(!is_of(key, &self.into)),
                false => part.misses += 1,
            }
            part.operations += 1;
        } else {
            self.batch.clear();
            let (keys, random) = (&mut self.keys, &mut self.random);
            self.batch
                .extend((0..self.plan.batch).map(|_| keys.next(random)));
            let (mut misses, mut damaged) = (0, 0);
            let mut see = |key, value: Option<&[u8]>| match value {
                Some(value) => damaged += u64::from(!is_of(key, value)),
                None => misses += 1,
            };
            self.store.get_batch(&self.batch, &mut self.into, &mut see);
            part.misses += misses;
            part.damaged += damaged;
            part.operations += self.plan.batch as u64;
        }
        Ok(())
    }

    /// A batch of writes. Values are made ready for as many as our store takes together: more of
    /// them would be in no cache when they are copied.
    fn write_batch(&mut self, part: &mut Part) -> Result<(), ExperimentError> {
        let size = self.plan.value_size;
        let mut left = self.plan.put_batch;
        while left > 0 {
            let count = left.min(TOGETHER);
            let mut keys = [0; TOGETHER];
            for (at, key) in keys[..count].iter_mut().enumerate() {
                *key = self.keys.next(&mut self.random);
                stamp(*key, &mut self.value[at * size..][..size]);
            }
            let pairs: [(u64, &[u8]); TOGETHER] = core::array::from_fn(|at| match at < count {
                true => (keys[at], &self.value[at * size..][..size]),
                false => (0, Default::default()),
            });
            part.retries += put_all(self.store, &pairs[..count])?;
            left -= count;
        }
        part.puts += self.plan.put_batch as u64;
        part.operations += self.plan.put_batch as u64;
        Ok(())
    }
}

/// How many of how many draws are batches of reads; the others are batches of writes. Of a hundred
/// operations, each one of a batch counted, `get_percent` read.
#[inline]
fn shares(get_percent: u8, batch: u64, put_batch: u64) -> (u64, u64) {
    let reads = u64::from(get_percent) * put_batch;
    (reads, reads + batch * (100 - u64::from(get_percent)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestant::Refusal;
    use std::collections::BTreeSet;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Has every key, and counts writes.
    #[derive(Default)]
    struct Counting(AtomicU64);

    impl KeyValue for Counting {
        fn get(&self, key: u64, into: &mut Vec<u8>) -> bool {
            into.clear();
            into.extend_from_slice(&key.to_le_bytes());
            true
        }

        fn put(&self, _key: u64, _value: &[u8]) -> Result<(), Refusal> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }

        fn delete(&self, _key: u64) -> Result<bool, Refusal> {
            Ok(false)
        }

        fn counts(&self) -> Holdings {
            Holdings {
                moved: self.0.load(Ordering::SeqCst),
                ..Holdings::default()
            }
        }
    }

    /// Keeps keys; counts writes of keys that were there.
    #[derive(Default)]
    struct Keeping(Mutex<(BTreeSet<u64>, u64)>);

    impl KeyValue for Keeping {
        fn get(&self, _key: u64, _into: &mut Vec<u8>) -> bool {
            false
        }

        fn put(&self, key: u64, _value: &[u8]) -> Result<(), Refusal> {
            let mut kept = self.0.lock().unwrap();
            kept.1 += u64::from(!kept.0.insert(key));
            Ok(())
        }

        fn delete(&self, key: u64) -> Result<bool, Refusal> {
            Ok(self.0.lock().unwrap().0.remove(&key))
        }
    }

    /// Keeps how many writes came together, and whether each value was that of its key.
    #[derive(Default)]
    struct Together(Mutex<Vec<(usize, bool)>>);

    impl KeyValue for Together {
        fn get(&self, _key: u64, _into: &mut Vec<u8>) -> bool {
            false
        }

        fn put(&self, _key: u64, _value: &[u8]) -> Result<(), Refusal> {
            Err(Refusal::Fatal("a write came alone".into()))
        }

        fn put_batch(&self, pairs: &[(u64, &[u8])]) -> Result<(), (usize, Refusal)> {
            let sound = pairs.iter().all(|(key, value)| is_of(*key, value));
            self.0.lock().unwrap().push((pairs.len(), sound));
            Ok(())
        }

        fn delete(&self, _key: u64) -> Result<bool, Refusal> {
            Ok(false)
        }
    }

    fn plan(get_percent: u8, batch: usize) -> RunPlan {
        RunPlan {
            lead_in: 0.01,
            seconds: 0.02,
            puts_min: 0,
            threads: 2,
            objects: 1000,
            value_size: 16,
            get_percent,
            distribution: "uniform".into(),
            batch,
            put_batch: 1,
            seed: 1,
            latencies: false,
            inserts: false,
            measured: true,
        }
    }

    #[test]
    fn a_mix_is_one_of_operations_whatever_the_batch() {
        for (percent, batch, put_batch) in [
            (50, 1, 1),
            (50, 16, 1),
            (95, 16, 1),
            (100, 16, 1),
            (0, 1, 1),
            (50, 16, 16),
            (95, 4, 40),
            (0, 16, 16),
        ] {
            let plan = RunPlan {
                puts_min: 20_000 * u64::from(percent < 100),
                put_batch,
                ..plan(percent, batch)
            };
            let ran = run(&Counting::default(), &plan, &mut Drawn::default()).unwrap();
            let reads = 1.0 - ran.puts as f64 / ran.operations as f64;
            let wanted = f64::from(percent) / 100.0;
            assert!((reads - wanted).abs() < 0.05, "{reads} of {percent} %");
        }
    }

    #[test]
    fn writes_of_a_batch_come_together_each_with_its_own_value() {
        let store = Together::default();
        let plan = RunPlan {
            lead_in: 0.0,
            seconds: 0.0,
            threads: 1,
            put_batch: 40,
            ..plan(0, 40)
        };
        let ran = run(&store, &plan, &mut Drawn::default()).unwrap();
        assert_eq!((ran.puts, ran.operations), (280, 280));
        let pieces = store.0.into_inner().unwrap();
        // The lead-in's are there, too.
        assert_eq!(pieces.len(), 2 * 7 * 3);
        for batch in pieces.chunks(3) {
            assert_eq!(batch, [(16, true), (16, true), (8, true)]);
        }
    }

    #[test]
    fn inserts_write_keys_that_are_not_there_and_all_are_there_again() {
        let keys: BTreeSet<u64> = (0..1001).collect();
        let store = Keeping(Mutex::new((keys.clone(), 0)));
        let plan = RunPlan {
            threads: 3,
            objects: 1001,
            latencies: true,
            inserts: true,
            ..plan(0, 1)
        };
        let ran = run(&store, &plan, &mut Drawn::default()).unwrap();
        let measured = ran.latencies.unwrap();
        assert!(ran.puts > 0 && measured.count == ran.puts, "{measured:?}");
        assert_eq!(store.0.into_inner().unwrap(), (keys, 0));
        let few = RunPlan {
            objects: 11,
            ..plan
        };
        let refused = run(&Keeping::default(), &few, &mut Drawn::default()).unwrap_err();
        assert!(
            refused.to_string().starts_with("--keys 11: 12 to"),
            "{refused}"
        );
    }

    #[test]
    fn what_counts_begins_after_the_lead_in() {
        let store = Counting::default();
        let ran = run(&store, &plan(0, 1), &mut Drawn::default()).unwrap();
        assert!(ran.before.moved > 0, "{ran:?}");
        assert_eq!(ran.after.moved - ran.before.moved, ran.puts);
        assert_eq!(store.0.into_inner(), ran.after.moved);
        assert!(ran.after.resident > 0);
    }

    #[test]
    fn a_round_lasts_until_enough_was_written_but_not_for_ever() {
        let run = |seconds, puts_min| {
            let plan = RunPlan {
                seconds,
                puts_min,
                threads: 1,
                ..plan(0, 1)
            };
            run(&Counting::default(), &plan, &mut Drawn::default()).unwrap()
        };
        let seconds = |ran: &Ran| ran.operations as f64 / ran.per_second;
        let (once, ever) = (run(0.0, 1), run(0.02, u64::MAX));
        assert_eq!(once.operations, LOOK, "{once:?}");
        assert!(seconds(&ever) >= 0.19, "{ever:?}");
    }
}
