//! Streams of operations to their end: trace files, production profiles, Postmark (004 fig. 15-17).

use super::{KEY, Overhead, Rounds, Watch, bars, check_utilization, step};
use crate::contestant::{Contender, Kind, Process, Program, Setup};
use crate::error::{ExperimentError, within};
use crate::experiment::{Experiment, Picture, Row, Spread};
use crate::run::{ReplayPlan, Replayed, THREADS_MAX};
use crate::suite::Step;
use crate::workload::Plan;

/// What to measure.
#[derive(Clone, PartialEq, Debug)]
pub struct StreamOptions {
    /// What the experiment is called.
    pub name: String,
    /// What the parameters of the stream are, for the report.
    pub parameters: Row,
    /// The stream.
    pub plan: Plan,
    /// Who takes part.
    pub contenders: Vec<Contender>,
    /// Threads.
    pub threads: usize,
    /// Most objects that are live, all threads together.
    pub objects: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Live objects in percent of our log, where there are most.
    pub utilization: u8,
    /// Cleaner threads of our store.
    pub cleaner_threads: u16,
    /// How often, each time in new processes; streams end when they are through, whatever the seconds.
    pub rounds: Rounds,
}

/// Runs the experiment.
///
/// # Errors
/// A contestant cannot take part or failed, a trace cannot be read, or the parameters make no sense.
pub fn stream(
    program: &Program,
    options: &StreamOptions,
    watch: Watch<'_>,
) -> Result<(Experiment, Picture), ExperimentError> {
    options.rounds.check()?;
    check_utilization(options.utilization)?;
    within("threads", options.threads, 1..=THREADS_MAX)?;
    watch(Step::Total(
        (options.contenders.len() * options.rounds.rounds) as u64,
    ));
    let overhead = Overhead::measure(program)?;
    let utilization = f64::from(options.utilization) / 100.0;
    let memory = |kind| overhead.memory(kind, options.objects, options.bytes, utilization);
    let mut all: Vec<Vec<Replayed>> = vec![Vec::new(); options.contenders.len()];
    for round in 0..options.rounds.rounds {
        for (&who, done) in options.contenders.iter().zip(&mut all) {
            let setup = Setup {
                cleaner_threads: options.cleaner_threads,
                ..Setup::new(who.kind, options.objects, memory(who.kind))
            };
            done.push(step(watch, format!("{who}, round {}", round + 1), || {
                Process::start(program, who, &setup)?.replay(&ReplayPlan {
                    stream: options.plan.clone(),
                    threads: options.threads,
                    seed: options.rounds.seed,
                    memory: true,
                    settle: false,
                    latencies: true,
                })
            })?);
        }
    }
    Ok(report(options, memory(Kind::Pluvio), &all))
}

fn report(options: &StreamOptions, memory: u64, all: &[Vec<Replayed>]) -> (Experiment, Picture) {
    let parameters = options
        .parameters
        .clone()
        .with("threads", options.threads)
        .with("utilization_percent", options.utilization)
        .with("memory", memory)
        .with("cleaner_threads", options.cleaner_threads)
        .with("rounds", options.rounds.rounds)
        .with("seed", options.rounds.seed);
    let mut experiment = Experiment::new(&options.name, parameters);
    let names = options.contenders.iter().map(ToString::to_string).collect();
    let mut panel = bars("throughput".into(), "", "operations/s", names);
    let (mut ours, mut best) = (None, 0.0f64);
    for (number, (who, replays)) in options.contenders.iter().zip(all).enumerate() {
        let rates: Vec<f64> = replays
            .iter()
            .map(|replay| replay.operations as f64 / replay.seconds.max(1e-9))
            .collect();
        let rate = Spread::of(&rates).unwrap_or_default();
        panel.point("operations/s", number as f64, rate.median);
        match who.kind.is_ours() {
            true => ours = Some(ours.unwrap_or(0.0f64).max(rate.median)),
            false => best = best.max(rate.median),
        }
        if let Some(last) = replays.last() {
            experiment.rows.push(row(*who, rate, last));
        }
    }
    if let Some(ours) = ours {
        experiment.ratio("operations/s: pluvio / best other", ours, best);
    }
    let picture = Picture {
        title: options.name.clone(),
        panels: vec![panel],
    };
    (experiment, picture)
}

fn row(who: Contender, rate: Spread, last: &Replayed) -> Row {
    let us = |quantile| {
        last.latencies
            .as_ref()
            .map_or(f64::NAN, |all| all.us(quantile))
    };
    let end = last.marks.last();
    let live = end.map_or(0, |mark| mark.live.bytes + mark.live.objects * KEY);
    Row::new()
        .with("contestant", who.to_string())
        .and(rate.cells("ops_per_s"))
        .with("operations", last.operations)
        .with("gets", last.gets)
        .with("puts", last.puts)
        .with("misses", last.misses)
        .with("refused", last.retries)
        .with("p50_us", us(0.5))
        .with("p99_us", us(0.99))
        .with("p999_us", us(0.999))
        .with("max_us", us(1.0))
        .with("resident_peak", last.resident_peak)
        .with("resident_end", end.map_or(0, |mark| mark.resident))
        .with("live_end", live)
}
