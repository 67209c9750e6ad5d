//! Runs loads: one task for each connection, spread over the event loops.

use crate::error::BenchError;
use crate::plan::Workload;
use crate::random::Random;
use crate::report::{Row, Tally};
use crate::target::{Caller, Operation, Target};
use bytes::Bytes;
use core::time::Duration;
use futures_util::future::join_all;
use pluvio_env::{Env, Moment};
use pluvio_units::CoreId;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Is told how many more operations are done; called from all event loops.
pub type Progress = Arc<dyn Fn(u64) + Send + Sync>;

/// What one connection does.
#[derive(Clone)]
enum Work {
    /// Writes these keys, each once.
    Write(std::ops::Range<u64>),
    /// Random operations until the time is up; those before `from` do not count.
    Random { from: Moment, until: Moment },
    /// This many pings, one after the other, again and again until the time is up. Those before
    /// `from` do not count.
    Pings {
        each: u32,
        from: Moment,
        until: Moment,
    },
}

/// Writes every key once.
///
/// # Errors
/// The parameters make no sense, or a connection failed. Refused operations are errors here:
/// what is measured afterwards needs the keys.
pub async fn load(
    env: &Env,
    target: &Target,
    workload: &Workload,
    progress: &Progress,
) -> Result<Row, BenchError> {
    workload.check()?;
    let connections = workload.connections as u64;
    // Key k goes to the connection whose range it is in; the last ones may have one less.
    let share =
        |n: u64| (u128::from(workload.keys) * u128::from(n) / u128::from(connections)) as u64;
    let works = (0..connections).map(|n| Work::Write(share(n)..share(n + 1)));
    let start = env.clock.now();
    let tally = run(env, target, workload, works.collect(), progress).await?;
    let took = env.clock.now().since(start);
    match &tally.first_error {
        Some(error) => Err(BenchError::Refused(error.clone())),
        None => Ok(tally.row("load".into(), workload, took)),
    }
}

/// Random operations over keys that were loaded, for the workload's time.
///
/// # Errors
/// The parameters make no sense, or a connection failed. Refused operations are counted.
pub async fn throughput(
    env: &Env,
    target: &Target,
    workload: &Workload,
    progress: &Progress,
) -> Result<Row, BenchError> {
    workload.check()?;
    let from = env.clock.now() + workload.warmup();
    let until = from + workload.duration();
    let works = vec![Work::Random { from, until }; workload.connections];
    let tally = run(env, target, workload, works, progress).await?;
    // The last replies come after `until`; the rate is over the time they really took.
    let took = env.clock.now().since(from);
    Ok(tally.row(name(workload.get_percent), workload, took))
}

/// [`throughput`] with one connection and one operation at a time.
///
/// # Errors
/// As there.
pub async fn latency(
    env: &Env,
    target: &Target,
    workload: &Workload,
    progress: &Progress,
) -> Result<Row, BenchError> {
    let single = Workload {
        connections: 1,
        pipeline: 1,
        ..workload.clone()
    };
    throughput(env, target, &single, progress).await
}

/// Bare round trips for the workload's time. An operation is a given number of pings, one after the
/// other. A replicated write needs two at least: one to the master and one from there to its
/// backups.
///
/// # Errors
/// The parameters make no sense, or a connection failed.
pub async fn round_trips(
    env: &Env,
    target: &Target,
    workload: &Workload,
    each: u32,
    progress: &Progress,
) -> Result<Row, BenchError> {
    workload.check()?;
    let single = Workload {
        connections: 1,
        pipeline: 1,
        value_size: 0,
        ..workload.clone()
    };
    let from = env.clock.now() + single.warmup();
    let until = from + single.duration();
    let works = vec![Work::Pings { each, from, until }];
    let tally = run(env, target, &single, works, progress).await?;
    let took = env.clock.now().since(from);
    let name = match each {
        1 => "PING".to_owned(),
        n => format!("{n} x PING"),
    };
    Ok(tally.row(name, &single, took))
}

fn name(get_percent: u8) -> String {
    match get_percent {
        0 => "SET".to_owned(),
        100 => "GET".to_owned(),
        percent => format!("GET {percent}%"),
    }
}

async fn run(
    env: &Env,
    target: &Target,
    workload: &Workload,
    works: Vec<Work>,
    progress: &Progress,
) -> Result<Tally, BenchError> {
    let mut ends = Vec::new();
    for (number, work) in works.into_iter().enumerate() {
        let (done, end) = oneshot::channel();
        let task = Connection {
            env: env.clone(),
            number,
            workload: workload.clone(),
            progress: progress.clone(),
        };
        let target = target.clone();
        let core = u16::try_from(number % usize::from(env.tasks.cores())).unwrap_or(0);
        env.tasks.spawn(CoreId(core), "bench", async move {
            // Nobody waits any more when another connection has failed.
            let _ = done.send(task.run(&target, work).await);
        });
        ends.push(end);
    }
    let mut total = Tally::new();
    for end in join_all(ends).await {
        let stopped = || BenchError::Parameters("the measurement was stopped".into());
        total.add(&end.map_err(|_| stopped())??);
    }
    Ok(total)
}

/// One connection's part.
struct Connection {
    env: Env,
    number: usize,
    workload: Workload,
    progress: Progress,
}

impl Connection {
    async fn run(self, target: &Target, work: Work) -> Result<Tally, BenchError> {
        let mut caller = target.caller(self.number).await?;
        let mut random = Random::new(self.workload.seed, self.number as u64);
        let value = Bytes::from(random.bytes(self.workload.value_size));
        let mut tally = Tally::new();
        match work {
            Work::Write(keys) => {
                let mut keys = keys;
                while !keys.is_empty() {
                    let most = self.workload.pipeline as u64;
                    let end = keys.start + most.min(keys.end - keys.start);
                    let batch: Vec<_> = (keys.start..end).map(Operation::Set).collect();
                    self.round(&mut caller, &batch, &value, Some(&mut tally))
                        .await?;
                    keys.start = end;
                }
            }
            Work::Random { from, until } => {
                let mut batch = Vec::with_capacity(self.workload.pipeline);
                loop {
                    let now = self.env.clock.now();
                    if now >= until {
                        break;
                    }
                    batch.clear();
                    for _ in 0..self.workload.pipeline {
                        let key = random.below(self.workload.keys);
                        let get = random.below(100) < u64::from(self.workload.get_percent);
                        batch.push(if get {
                            Operation::Get(key)
                        } else {
                            Operation::Set(key)
                        });
                    }
                    let counted = (now >= from).then_some(&mut tally);
                    self.round(&mut caller, &batch, &value, counted).await?;
                }
            }
            Work::Pings { each, from, until } => loop {
                let start = self.env.clock.now();
                if start >= until {
                    break;
                }
                let mut trips = Tally::new();
                for _ in 0..each {
                    self.round(&mut caller, &[Operation::Ping], &value, Some(&mut trips))
                        .await?;
                }
                if start < from {
                    continue;
                }
                tally.count_refusals(&trips);
                if trips.errors == 0 {
                    tally.record(self.env.clock.now().since(start));
                }
            },
        }
        Ok(tally)
    }

    async fn round(
        &self,
        caller: &mut Caller,
        batch: &[Operation],
        value: &Bytes,
        tally: Option<&mut Tally>,
    ) -> Result<(), BenchError> {
        let outcome = caller.round(&self.env.clock, batch, value).await?;
        (self.progress)(batch.len() as u64);
        let only_refusals = outcome.done.is_empty() && outcome.errors > 0;
        if let Some(tally) = tally {
            for took in outcome.done {
                tally.record(took);
            }
            tally.misses += outcome.misses;
            tally.errors += outcome.errors;
            if tally.first_error.is_none() {
                tally.first_error = outcome.error;
            }
        }
        if only_refusals {
            // A full or starting server is not asked as fast as it can say no.
            self.env.clock.sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }
}
