//! What each part of our store brings: epochs, heads, cleaner threads, levels, updates in place
//! (004 fig. 12-13, 21-33, as far as the store has options for them).

use super::{Overhead, Watch, bars, check_rounds, step};
use crate::contestant::{Allocator, Contender, Kind, Process, Program, Setup};
use crate::error::ExperimentError;
use crate::experiment::{Experiment, Picture, Row, Spread};
use crate::run::{LoadPlan, RunPlan};
use crate::suite::Step;
use crate::workload::Distribution;

/// What to measure.
#[derive(Clone, PartialEq, Debug)]
pub struct BreakdownOptions {
    /// Keys.
    pub objects: u64,
    /// Bytes of a value.
    pub value_size: usize,
    /// Reads of a hundred operations; several give a row each.
    pub get_percents: Vec<u8>,
    /// Which keys.
    pub distribution: Distribution,
    /// Threads.
    pub threads: usize,
    /// Numbers of heads to compare.
    pub heads: Vec<u16>,
    /// Numbers of cleaner threads to compare.
    pub cleaner_threads: Vec<u16>,
    /// Live objects in percent of the log.
    pub utilization: u8,
    /// How long each round is.
    pub seconds: f64,
    /// Rounds.
    pub rounds: usize,
    /// Seed of values and draws.
    pub seed: u64,
}

/// A store that differs from the usual one in one thing.
struct Variant {
    part: &'static str,
    value: String,
    setup: Setup,
}

/// Runs the experiment.
///
/// # Errors
/// The store refused, or the parameters make no sense.
pub fn breakdown(
    program: &Program,
    options: &BreakdownOptions,
    watch: Watch<'_>,
) -> Result<(Experiment, Picture), ExperimentError> {
    check_rounds(options.rounds, options.seconds)?;
    if !(1..=94).contains(&options.utilization) || options.objects == 0 {
        let problem = "the utilization must be 1 to 94 %, and there must be an object";
        return Err(ExperimentError::Parameters(problem.into()));
    }
    let overhead = Overhead::measure(program)?;
    let bytes = options.objects * options.value_size as u64;
    let memory = overhead.memory(
        options.objects,
        bytes,
        f64::from(options.utilization) / 100.0,
    );
    let variants = variants(options, memory);
    let runs = options.get_percents.len() * (options.rounds + 1);
    watch(Step::Total((variants.len() * (1 + runs)) as u64));
    let mut processes = Vec::new();
    for variant in &variants {
        let name = format!("{} {} loads", variant.part, variant.value);
        processes.push(step(watch, name, || start(program, options, variant))?);
    }
    let parameters = Row::new()
        .with("objects", options.objects)
        .with("value_size", options.value_size)
        .with("distribution", options.distribution.name())
        .with("threads", options.threads)
        .with("utilization_percent", options.utilization)
        .with("seconds", options.seconds)
        .with("rounds", options.rounds)
        .with("seed", options.seed);
    let mut experiment = Experiment::new("breakdown", parameters);
    let mut panels = Vec::new();
    for &get_percent in &options.get_percents {
        let names = variants.iter().map(|v| format!("{} {}", v.part, v.value));
        let title = format!("{get_percent} % get");
        let mut panel = bars(title, "", "operations/s", names.collect());
        let rates = rounds(&mut processes, options, get_percent, &variants, watch)?;
        let usual = rates.first().map_or(f64::NAN, |spread| spread.median);
        for (number, (variant, rate)) in variants.iter().zip(&rates).enumerate() {
            panel.point("operations/s", number as f64, rate.median);
            experiment.rows.push(
                Row::new()
                    .with("part", variant.part)
                    .with("value", variant.value.clone())
                    .with("get_percent", get_percent)
                    .and(rate.cells("ops_per_s")),
            );
            let name = format!(
                "{get_percent} % get: {} {} / usual",
                variant.part, variant.value
            );
            experiment.ratio(name, rate.median, usual);
        }
        panels.push(panel);
    }
    let picture = Picture {
        title: "What each part brings".into(),
        panels,
    };
    Ok((experiment, picture))
}

/// The usual store first, then one for each other value of each part.
fn variants(options: &BreakdownOptions, memory: u64) -> Vec<Variant> {
    let usual = Setup::new(Kind::Pluvio, options.objects, memory);
    let mut all = vec![Variant {
        part: "usual",
        value: "counter epochs, a head a core, two-level, append".into(),
        setup: usual.clone(),
    }];
    let mut add = |part, value: String, change: &dyn Fn(&mut Setup)| {
        let mut setup = usual.clone();
        change(&mut setup);
        all.push(Variant { part, value, setup });
    };
    add("epochs", "tsc".into(), &|setup| setup.tsc_epochs = true);
    for &heads in &options.heads {
        add("heads", heads.to_string(), &|setup| {
            setup.heads = Some(heads)
        });
    }
    for &threads in &options.cleaner_threads {
        add("cleaner threads", threads.to_string(), &|setup| {
            setup.cleaner_threads = threads;
        });
    }
    add("cleaning", "one-level".into(), &|setup| {
        setup.two_level = false
    });
    add("update", "in place".into(), &|setup| {
        setup.kind = Kind::PluvioInPlace
    });
    all
}

fn start(
    program: &Program,
    options: &BreakdownOptions,
    variant: &Variant,
) -> Result<Process, ExperimentError> {
    let who = Contender {
        kind: variant.setup.kind,
        allocator: Allocator::Glibc,
    };
    let mut process = Process::start(program, who, &variant.setup)?;
    process.load(&LoadPlan {
        objects: options.objects,
        until: None,
        value_size: options.value_size,
        seed: options.seed,
    })?;
    Ok(process)
}

fn rounds(
    processes: &mut [Process],
    options: &BreakdownOptions,
    get_percent: u8,
    variants: &[Variant],
    watch: Watch<'_>,
) -> Result<Vec<Spread>, ExperimentError> {
    let mut rates = vec![Vec::new(); processes.len()];
    for round in 0..=options.rounds {
        for ((process, rates), variant) in processes.iter_mut().zip(&mut rates).zip(variants) {
            let plan = RunPlan {
                seconds: options.seconds,
                threads: options.threads,
                objects: options.objects,
                value_size: options.value_size,
                get_percent,
                distribution: options.distribution.name(),
                batch: 1,
                seed: options.seed + round as u64,
                latencies: false,
            };
            let name = format!("{} {}, {get_percent} % get", variant.part, variant.value);
            let ran = step(watch, name, || process.run(&plan))?;
            // The first round warms up.
            if round > 0 {
                rates.push(ran.per_second);
            }
        }
    }
    let spreads = rates
        .iter()
        .map(|rates| Spread::of(rates).unwrap_or_default());
    Ok(spreads.collect())
}
