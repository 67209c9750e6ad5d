//! Latency of writes, or of all operations of a mix, with the cleaner and without [LSM-DRAM fig.
//! 10]. Beside them stands what idle threads see. They are as many as a run has in all, for as
//! long, in a process that has nothing else to do.

use super::{Rounds, Watch, check_utilization, check_value_size, step, turns};
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
    /// Threads that read and write.
    pub threads: usize,
    /// How many of a hundred operations read; all of them are measured.
    pub get_percent: u8,
    /// Threads that clean.
    pub cleaner_threads: u16,
    /// How long, and how often.
    pub rounds: Rounds,
    /// Whether the store without a cleaner takes part; it needs memory for all that is written.
    pub baseline: bool,
}

/// Bytes that one writer may append in a second; the store without a cleaner has room for all
/// rounds.
const APPENDED_PER_SECOND: f64 = 700e6;
/// Rounds may end so much late, in all: whoever ends them may have to wait for a processor.
const LATE_SECONDS: f64 = 1.0;
/// Longest spin of the idle threads in a round.
const IDLE_SECONDS_MAX: f64 = 600.0;
/// Longer than an idle thread's pauses no operation may take, in microseconds.
const PAUSE_WANTED_US: f64 = 2000.0;
/// Longest first round.
const WARMUP_SECONDS_MAX: f64 = 5.0;
/// Most memory the store without a cleaner gets.
const MEMORY_MAX: u64 = 10 << 30;

/// One of the stores.
struct Side {
    name: &'static str,
    process: Process,
    objects: u64,
    all: Vec<Latencies>,
    rates: Vec<f64>,
}

/// Name, latencies and rates of a store.
type Measured = (&'static str, Vec<Latencies>, Vec<f64>);

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
    within("get-percent", options.get_percent, 0..=100)?;
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
    let mut spinning = Spin::start(program)?;
    for round in 0..=options.rounds.rounds {
        for at in turns(round, sides.len() + 1) {
            let Some(side) = sides.get_mut(at) else {
                step(watch, format!("idle, round {round}"), || {
                    spinning.round(options, round)
                })?;
                continue;
            };
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
    }
    let sides: Vec<Measured> = sides
        .into_iter()
        .map(|side| (side.name, side.all, side.rates))
        .collect();
    Ok(report(options, &sides, &spinning.all))
}

/// Idle threads in a process of their own: one of a store would clean it meanwhile.
struct Spin {
    process: Process,
    all: Vec<Latencies>,
}

impl Spin {
    fn start(program: &Program) -> Result<Self, ExperimentError> {
        let nothing = Contender {
            kind: Kind::Malloc,
            allocator: Allocator::Glibc,
        };
        let process = Process::start(program, nothing, &Setup::new(Kind::Malloc, 1, 0))?;
        Ok(Self {
            process,
            all: Vec::new(),
        })
    }

    fn round(&mut self, options: &LatencyOptions, round: usize) -> Result<(), ExperimentError> {
        let spun = self.process.idle(&idle_plan(options, round))?;
        // The first round warms up.
        if round > 0 {
            self.all.push(spun.pauses);
        }
        Ok(())
    }
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

fn idle_plan(options: &LatencyOptions, round: usize) -> IdlePlan {
    IdlePlan {
        seconds: length(options, round).min(IDLE_SECONDS_MAX),
        threads: options.threads + usize::from(options.cleaner_threads),
    }
}

fn plan(options: &LatencyOptions, objects: u64, round: usize) -> RunPlan {
    RunPlan {
        lead_in: 0.0,
        seconds: length(options, round),
        puts_min: 0,
        threads: options.threads,
        objects,
        value_size: options.value_size,
        get_percent: options.get_percent,
        distribution: "uniform".into(),
        batch: 1,
        put_batch: 1,
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
        // Without a cleaner each write takes memory that was never used: fetching it is not what is
        // measured.
        populate: objects.is_some(),
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

fn report(
    options: &LatencyOptions,
    sides: &[Measured],
    idle: &[Latencies],
) -> (Experiment, Picture) {
    let parameters = Row::new()
        .with("memory", options.memory)
        .with("utilization_percent", options.utilization)
        .with("value_size", options.value_size)
        .with("threads", options.threads)
        .with("get_percent", options.get_percent)
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
    let what = match options.get_percent {
        0 => "writes".to_owned(),
        percent => format!("operations, {percent} % of them reads"),
    };
    let mut whole = panel(
        "all of them",
        log,
        Axis::Linear,
        "latency (us)",
        &format!("part of the {what}"),
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
        .map(|(name, all, rates)| (*name, all.as_slice(), Some(rates)));
    for (name, all, rates) in named.chain([("idle", idle, None)]) {
        let Some(first) = all.first() else {
            continue;
        };
        for &(quantile, _) in &first.quantiles {
            let us = median(all, quantile);
            let mut row = Row::new()
                .with("what", name)
                .with("quantile", quantile)
                .and(us.cells("us"))
                .with("count", all.iter().map(|one| one.count).sum::<u64>());
            if let Some(rate) = rates.and_then(|rates| Spread::of(rates)) {
                row.set("ops_per_s", rate.median);
            }
            experiment.rows.push(row);
            whole.point(name, us.median, quantile);
            tail.point(name, us.median, 1.0 - quantile);
        }
    }
    if let [(_, with, _), (_, without, _)] = sides {
        for (name, quantile) in [
            ("median", 0.5),
            ("p99", 0.99),
            ("p99.9", 0.999),
            ("slowest", 1.0),
        ] {
            let (a, b) = (median(with, quantile), median(without, quantile));
            experiment.ratio(format!("{name}: cleaner / no cleaner"), a.median, b.median);
        }
    }
    if let Some((_, with, _)) = sides.first() {
        let (a, b) = (median(with, 1.0), median(idle, 1.0));
        experiment.ratio("slowest: cleaner / idle thread", a.max, b.max);
        let name = "slowest: cleaner beyond an idle thread / the 2 ms wanted";
        experiment.ratio(name, (a.max - b.max).max(0.0), PAUSE_WANTED_US);
    }
    let picture = Picture {
        title: format!("Latency of {what}, with the cleaner and without"),
        panels: vec![whole, tail],
    };
    (experiment, picture)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(seconds: f64, get_percent: u8) -> LatencyOptions {
        LatencyOptions {
            memory: 256 << 20,
            utilization: 90,
            value_size: 100,
            threads: 1,
            get_percent,
            cleaner_threads: 1,
            rounds: Rounds {
                seconds,
                rounds: 1,
                seed: 1,
            },
            baseline: false,
        }
    }

    #[test]
    fn idle_threads_are_as_many_as_those_of_a_run_and_for_as_long() {
        let ten_minutes = options(600.0, 50);
        assert_eq!(plan(&ten_minutes, 1000, 1).seconds, 600.0);
        assert_eq!(idle_plan(&ten_minutes, 1).seconds, 600.0);
        assert_eq!(idle_plan(&ten_minutes, 1).threads, 2);
        assert_eq!(idle_plan(&options(6000.0, 50), 1).seconds, 600.0);
        assert_eq!(idle_plan(&options(1.0, 0), 1).seconds, 1.0);
        // The first round only warms up.
        assert_eq!(idle_plan(&ten_minutes, 0).seconds, WARMUP_SECONDS_MAX);
        assert_eq!(plan(&ten_minutes, 1000, 1).get_percent, 50);
    }

    #[test]
    fn the_slowest_is_told_beside_an_idle_threads_pauses() {
        let latencies = |slowest_ns| Latencies {
            count: 10,
            quantiles: vec![(0.5, 300), (1.0, slowest_ns)],
        };
        let (experiment, picture) = report(
            &options(600.0, 50),
            &[("cleaner", vec![latencies(7_000_000)], vec![1e6])],
            &[latencies(4_000_000)],
        );
        let beyond = "slowest: cleaner beyond an idle thread / the 2 ms wanted";
        assert_eq!(experiment.ratios[beyond], 1.5);
        assert_eq!(experiment.ratios["slowest: cleaner / idle thread"], 1.75);
        assert!(
            picture.title.contains("50 % of them reads"),
            "{}",
            picture.title
        );
        assert_eq!(experiment.rows.len(), 4);
        assert_eq!(experiment.rows[0].number("ops_per_s"), Some(1e6));
        assert_eq!(experiment.rows[0].number("count"), Some(10.0));
    }
}
