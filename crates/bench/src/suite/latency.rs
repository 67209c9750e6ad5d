//! Write latency with the cleaner and without (000 fig. 10), beside what an idle thread sees.

use super::{Rounds, Watch, check_utilization, check_value_size, step};
use crate::contestant::{Allocator, Contender, Kind, Process, Program, Setup};
use crate::error::{ExperimentError, within};
use crate::experiment::{Axis, Experiment, Panel, Picture, Row, Shape, Spread};
use crate::run::{IdlePlan, Latencies, LoadPlan, RunPlan, THREADS_MAX};
use crate::suite::Step;

/// What to measure.
#[derive(Clone, PartialEq, Debug)]
pub struct LatencyOptions {
    /// Memory of the store that is cleaned.
    pub memory: u64,
    /// Its live objects in percent of the log.
    pub utilization: u8,
    /// Bytes of a value.
    pub value_size: usize,
    /// Threads that write.
    pub threads: usize,
    /// Threads that clean.
    pub cleaner_threads: u16,
    /// How long, and how often.
    pub rounds: Rounds,
    /// Whether the store without a cleaner takes part; it needs memory for all that is written.
    pub baseline: bool,
}

/// Bytes that one writer may append in a second; the store without a cleaner has room for all rounds.
const APPENDED_PER_SECOND: f64 = 700e6;
/// Rounds may end so much late, in all: whoever ends them may have to wait for a processor.
const LATE_SECONDS: f64 = 1.0;
/// Longest first round.
const WARMUP_SECONDS_MAX: f64 = 5.0;
/// Most memory the store without a cleaner gets.
const MEMORY_MAX: u64 = 10 << 30;

/// One of the stores, or the idle spin.
struct Side {
    name: &'static str,
    process: Process,
    objects: u64,
    all: Vec<Latencies>,
    rates: Vec<f64>,
}

/// Runs the experiment.
///
/// # Errors
/// The store refused, or the parameters make no sense.
pub fn latency(
    program: &Program,
    options: &LatencyOptions,
    watch: Watch<'_>,
) -> Result<(Experiment, Picture), ExperimentError> {
    options.rounds.check()?;
    check_utilization(options.utilization)?;
    check_value_size(options.value_size)?;
    within("threads", options.threads, 1..=THREADS_MAX)?;
    // Before anything is loaded: it may be refused.
    let room = options.baseline.then(|| room(options)).transpose()?;
    let stores = if options.baseline { 2 } else { 1 };
    let total = stores + (stores + 1) * (options.rounds.rounds + 1);
    watch(Step::Total(total as u64));
    let mut sides = vec![step(watch, "the store with a cleaner loads", || {
        start(program, options, "cleaner", options.memory, None)
    })?];
    if let Some(room) = room {
        let objects = sides[0].objects;
        sides.push(step(watch, "the store without a cleaner loads", || {
            start(program, options, "no cleaner", room, Some(objects))
        })?);
    }
    let mut idle = Vec::new();
    for round in 0..=options.rounds.rounds {
        for side in &mut sides {
            let plan = plan(options, side.objects, round);
            let ran = step(watch, format!("{}, round {round}", side.name), || {
                side.process.run(&plan)
            })?;
            // The first round warms up.
            if round > 0 {
                side.rates.push(ran.per_second);
                side.all.extend(ran.latencies);
            }
        }
        let plan = IdlePlan {
            seconds: length(options, round),
            threads: options.threads,
        };
        let spun = step(watch, format!("idle, round {round}"), || {
            sides[0].process.idle(&plan)
        })?;
        if round > 0 {
            idle.push(spun.pauses);
        }
    }
    Ok(report(options, &sides, &idle))
}

/// Memory in which all rounds fit without a cleaner.
fn room(options: &LatencyOptions) -> Result<u64, ExperimentError> {
    let time = options.rounds.seconds * (options.rounds.rounds + 1) as f64 + LATE_SECONDS;
    let room = (time * options.threads as f64 * APPENDED_PER_SECOND) as u64 + options.memory;
    let seconds = options.rounds.seconds * MEMORY_MAX as f64 / room as f64;
    match room > MEMORY_MAX {
        false => Ok(room),
        // Without a cleaner nothing more fits; with `--cleaner-only` any time does.
        true => Err(ExperimentError::OutOfRange {
            option: "seconds",
            value: format!(
                "{} in {} rounds without --cleaner-only",
                options.rounds.seconds, options.rounds.rounds
            ),
            first: "0.01".into(),
            last: format!("{seconds:.1}"),
        }),
    }
}

/// Seconds of a round; the first only warms up.
fn length(options: &LatencyOptions, round: usize) -> f64 {
    match round {
        0 => options.rounds.seconds.min(WARMUP_SECONDS_MAX),
        _ => options.rounds.seconds,
    }
}

fn plan(options: &LatencyOptions, objects: u64, round: usize) -> RunPlan {
    RunPlan {
        seconds: length(options, round),
        threads: options.threads,
        objects,
        value_size: options.value_size,
        get_percent: 0,
        distribution: "uniform".into(),
        batch: 1,
        seed: options.rounds.seed + round as u64,
        latencies: true,
        measured: true,
    }
}

fn start(
    program: &Program,
    options: &LatencyOptions,
    name: &'static str,
    memory: u64,
    objects: Option<u64>,
) -> Result<Side, ExperimentError> {
    let ours = Contender {
        kind: Kind::Pluvio,
        allocator: Allocator::Glibc,
    };
    let setup = Setup {
        cleaner_threads: match objects {
            None => options.cleaner_threads,
            Some(_) => 0,
        },
        ..Setup::new(Kind::Pluvio, 0, memory)
    };
    let mut process = Process::start(program, ours, &setup)?;
    let loaded = process.load(&LoadPlan {
        objects: objects.unwrap_or(u64::MAX),
        until: match objects {
            None => Some(f64::from(options.utilization) / 100.0),
            Some(_) => None,
        },
        value_size: options.value_size,
        seed: options.rounds.seed,
    })?;
    Ok(Side {
        name,
        process,
        objects: loaded.objects,
        all: Vec::new(),
        rates: Vec::new(),
    })
}

fn median(all: &[Latencies], quantile: f64) -> Spread {
    let us: Vec<f64> = all.iter().map(|latencies| latencies.us(quantile)).collect();
    Spread::of(&us).unwrap_or_default()
}

fn report(options: &LatencyOptions, sides: &[Side], idle: &[Latencies]) -> (Experiment, Picture) {
    let parameters = Row::new()
        .with("memory", options.memory)
        .with("utilization_percent", options.utilization)
        .with("value_size", options.value_size)
        .with("threads", options.threads)
        .with("cleaner_threads", options.cleaner_threads)
        .and(options.rounds.cells());
    let mut experiment = Experiment::new("latency-cdf", parameters);
    let panel = |title: &str, x: Axis, y: Axis, across: &str, up: &str| Panel {
        title: title.into(),
        x: across.into(),
        y: up.into(),
        shape: Shape::Lines { x, y },
        series: Vec::new(),
    };
    let log = Axis::Logarithmic;
    let mut whole = panel(
        "all writes",
        log,
        Axis::Linear,
        "latency (us)",
        "part of the writes",
    );
    let mut tail = panel(
        "the slowest",
        log,
        log,
        "latency (us)",
        "part that took longer",
    );
    let named = sides
        .iter()
        .map(|side| (side.name, &side.all, Some(&side.rates)));
    for (name, all, rates) in named.chain([("idle", &idle.to_vec(), None)]) {
        let Some(first) = all.first() else {
            continue;
        };
        for &(quantile, _) in &first.quantiles {
            let us = median(all, quantile);
            let mut row = Row::new()
                .with("what", name)
                .with("quantile", quantile)
                .and(us.cells("us"));
            if let Some(rate) = rates.and_then(|rates| Spread::of(rates)) {
                row.set("puts_per_s", rate.median);
            }
            experiment.rows.push(row);
            whole.point(name, us.median, quantile);
            tail.point(name, us.median, 1.0 - quantile);
        }
    }
    if let [with, without] = sides {
        for (name, quantile) in [
            ("median", 0.5),
            ("p99", 0.99),
            ("p99.9", 0.999),
            ("slowest", 1.0),
        ] {
            let (a, b) = (median(&with.all, quantile), median(&without.all, quantile));
            experiment.ratio(format!("{name}: cleaner / no cleaner"), a.median, b.median);
        }
    }
    if let Some(with) = sides.first() {
        let (a, b) = (median(&with.all, 1.0), median(idle, 1.0));
        experiment.ratio("slowest: cleaner / idle thread", a.max, b.max);
    }
    let picture = Picture {
        title: "Write latency with the cleaner and without".into(),
        panels: vec![whole, tail],
    };
    (experiment, picture)
}
