//! Throughput of stores inside a process: threads, value sizes, mixes, distributions, batches (004 fig. 18-20).

use super::{KEY, Overhead, Rounds, Watch, bars, check_utilization, check_value_size, step};
use crate::contestant::{Contender, Kind, Process, Program, Setup};
use crate::error::{ExperimentError, within};
use crate::experiment::{Experiment, Picture, Row, Spread};
use crate::run::{BATCH_MAX, KEYS_MAX, LoadPlan, RunPlan, THREADS_MAX};
use crate::suite::Step;
use crate::workload::Distribution;

/// What to measure. Lists give a row for each combination.
#[derive(Clone, PartialEq, Debug)]
pub struct StoreOptions {
    /// Who takes part.
    pub contenders: Vec<Contender>,
    /// Threads.
    pub threads: Vec<usize>,
    /// Bytes of a value.
    pub value_sizes: Vec<usize>,
    /// Reads of a hundred operations.
    pub get_percents: Vec<u8>,
    /// Which keys.
    pub distributions: Vec<Distribution>,
    /// Reads asked for together.
    pub batches: Vec<usize>,
    /// Keys.
    pub objects: u64,
    /// Live objects in percent of our log.
    pub utilization: u8,
    /// How long, and how often.
    pub rounds: Rounds,
    /// Cleaner threads of our store.
    pub cleaner_threads: u16,
    /// Heads of our store.
    pub heads: Option<u16>,
}

/// One combination.
#[derive(Clone, PartialEq, Debug)]
struct Case {
    threads: usize,
    get_percent: u8,
    distribution: Distribution,
    batch: usize,
}

impl StoreOptions {
    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &distribution in &self.distributions {
            for &get_percent in &self.get_percents {
                for &threads in &self.threads {
                    // Batches are of reads: where nothing is read there is one.
                    let batches = match get_percent {
                        0 => &[1][..],
                        _ => &self.batches,
                    };
                    cases.extend(batches.iter().map(|&batch| Case {
                        threads,
                        get_percent,
                        distribution,
                        batch,
                    }));
                }
            }
        }
        cases
    }

    fn parameters(&self) -> Row {
        Row::new()
            .with("objects", self.objects)
            .with("utilization_percent", self.utilization)
            .with("cleaner_threads", self.cleaner_threads)
            .and(self.rounds.cells())
    }

    fn plan(&self, case: &Case, value_size: usize, round: usize) -> RunPlan {
        RunPlan {
            seconds: self.rounds.seconds,
            threads: case.threads,
            objects: self.objects,
            value_size,
            get_percent: case.get_percent,
            distribution: case.distribution.name(),
            batch: case.batch,
            seed: self.rounds.seed + round as u64,
            latencies: false,
            measured: true,
        }
    }
}

impl Case {
    fn name(&self, value_size: usize) -> String {
        let verb = match self.get_percent {
            100 => "get".into(),
            0 => "put".into(),
            percent => format!("{percent} % get"),
        };
        let batch = match self.batch {
            1 => String::new(),
            n => format!(" in batches of {n}"),
        };
        format!(
            "{verb}{batch}, {value_size} B, {}, {} threads",
            self.distribution.name(),
            self.threads
        )
    }
}

/// Runs the experiment.
///
/// # Errors
/// A contestant cannot take part or failed, or the parameters make no sense.
pub fn store(
    program: &Program,
    options: &StoreOptions,
    watch: Watch<'_>,
) -> Result<(Experiment, Picture), ExperimentError> {
    options.rounds.check()?;
    let percent = options.utilization;
    check_utilization(percent)?;
    within("keys", options.objects, 1..=KEYS_MAX)?;
    for &threads in &options.threads {
        within("threads", threads, 1..=THREADS_MAX)?;
    }
    for &batch in &options.batches {
        within("batch", batch, 1..=BATCH_MAX)?;
    }
    for &percent in &options.get_percents {
        within("get-percent", percent, 0..=100)?;
    }
    for &size in &options.value_sizes {
        check_value_size(size)?;
    }
    let overhead = Overhead::measure(program)?;
    let (cases, contenders) = (options.cases(), &options.contenders);
    let each = contenders.len() * (1 + cases.len() * (options.rounds.rounds + 1));
    watch(Step::Total((each * options.value_sizes.len()) as u64));
    let mut experiment = Experiment::new("store", options.parameters());
    let mut panels = Vec::new();
    for &value_size in &options.value_sizes {
        let bytes = options.objects * value_size as u64;
        let memory = overhead.memory(options.objects, bytes, f64::from(percent) / 100.0);
        let mut processes = Vec::new();
        for &who in contenders {
            let setup = Setup {
                heads: options.heads,
                cleaner_threads: options.cleaner_threads,
                ..Setup::new(who.kind, options.objects, memory)
            };
            processes.push(step(watch, format!("{who} loads"), || {
                let mut process = Process::start(program, who, &setup)?;
                process.load(&LoadPlan {
                    objects: options.objects,
                    until: None,
                    value_size,
                    seed: options.rounds.seed,
                })?;
                Ok(process)
            })?);
        }
        let mut panel = bars(
            format!("{value_size} B"),
            "",
            "operations/s",
            cases.iter().map(short_name).collect(),
        );
        for (number, case) in cases.iter().enumerate() {
            let rates = rounds(&mut processes, options, case, value_size, watch)?;
            for (process, rates) in processes.iter_mut().zip(&rates) {
                let spread = Spread::of(rates).unwrap_or_default();
                panel.point(&process.who().to_string(), number as f64, spread.median);
                experiment
                    .rows
                    .push(row(process, options, case, value_size, spread)?);
            }
            compare(&mut experiment, contenders, &rates, &case.name(value_size));
        }
        panels.push(panel);
    }
    scaling(&mut experiment);
    let picture = Picture {
        title: "Stores inside a process".into(),
        panels,
    };
    Ok((experiment, picture))
}

/// All rounds of one case, in turn; the first, which only warms up, is left out.
fn rounds(
    processes: &mut [Process],
    options: &StoreOptions,
    case: &Case,
    value_size: usize,
    watch: Watch<'_>,
) -> Result<Vec<Vec<f64>>, ExperimentError> {
    let mut rates = vec![Vec::new(); processes.len()];
    for round in 0..=options.rounds.rounds {
        for (process, rates) in processes.iter_mut().zip(&mut rates) {
            let name = format!("{}: {}", process.who(), case.name(value_size));
            let plan = options.plan(case, value_size, round);
            let ran = step(watch, name, || process.run(&plan))?;
            if ran.misses > 0 {
                return Err(ExperimentError::Contestant {
                    contestant: process.who().to_string(),
                    problem: format!("did not find {} keys that it was given", ran.misses),
                });
            }
            if round > 0 {
                rates.push(ran.per_second);
            }
        }
    }
    Ok(rates)
}

fn row(
    process: &mut Process,
    options: &StoreOptions,
    case: &Case,
    value_size: usize,
    rate: Spread,
) -> Result<Row, ExperimentError> {
    let holdings = process.holdings()?;
    let live = options.objects * (value_size as u64 + KEY);
    let mut row = Row::new()
        .with("contestant", process.who().to_string())
        .with("value_size", value_size)
        .with("threads", case.threads)
        .with("get_percent", case.get_percent)
        .with("distribution", case.distribution.name())
        .with("batch", case.batch)
        .and(rate.cells("ops_per_s"))
        .with("resident_over_live", holdings.resident as f64 / live as f64);
    if process.who().kind.is_ours() {
        let used = holdings.live_log as f64 / holdings.log_memory.max(1) as f64;
        row.set("utilization", used);
    }
    Ok(row)
}

/// Ours over the best of the others; in place over those in place, and over those with boxed values.
fn compare(experiment: &mut Experiment, contenders: &[Contender], rates: &[Vec<f64>], case: &str) {
    let median = |rates: &[f64]| Spread::of(rates).unwrap_or_default().median;
    let best = |of: &dyn Fn(Kind) -> bool| {
        let those = contenders.iter().zip(rates).filter(|(who, _)| of(who.kind));
        those.map(|(_, rates)| median(rates)).fold(0.0, f64::max)
    };
    let is_boxed = |kind: Kind| match kind {
        Kind::Dashmap | Kind::Papaya | Kind::Scc | Kind::Malloc => true,
        Kind::Pluvio
        | Kind::PluvioInPlace
        | Kind::DashmapInPlace
        | Kind::SlabLru
        | Kind::Redis
        | Kind::Memcached => false,
    };
    let ours = best(&|kind| kind == Kind::Pluvio);
    let in_place = best(&|kind| kind == Kind::PluvioInPlace);
    let slab = best(&|kind| kind == Kind::SlabLru);
    if ours > 0.0 {
        experiment.ratio(
            format!("{case}: pluvio / best boxed map"),
            ours,
            best(&is_boxed),
        );
        experiment.ratio(format!("{case}: pluvio / slab-lru"), ours, slab);
    }
    if in_place > 0.0 {
        let name = format!("{case}: pluvio-in-place / best boxed map");
        experiment.ratio(name, in_place, best(&is_boxed));
        let name = format!("{case}: pluvio-in-place / dashmap-in-place");
        experiment.ratio(name, in_place, best(&|kind| kind == Kind::DashmapInPlace));
        let name = format!("{case}: pluvio-in-place / slab-lru");
        experiment.ratio(name, in_place, slab);
    }
}

/// Our rows over our rows: two threads over one, batches over none.
fn scaling(experiment: &mut Experiment) {
    let ours: Vec<Row> = experiment
        .rows
        .iter()
        .filter(|row| row.text("contestant").starts_with("pluvio"))
        .cloned()
        .collect();
    let same = |a: &Row, b: &Row, but: &str| {
        let fields = [
            "contestant",
            "value_size",
            "threads",
            "get_percent",
            "distribution",
            "batch",
        ];
        fields
            .into_iter()
            .all(|field| field == but || a.get(field) == b.get(field))
    };
    for field in ["threads", "batch"] {
        for a in &ours {
            let base = ours
                .iter()
                .find(|b| b.number(field) == Some(1.0) && same(a, b, field));
            if let (Some(base), Some(rate)) = (base, a.number("ops_per_s"))
                && a.number(field) != Some(1.0)
            {
                let name = format!(
                    "{}, {} B, {} % get, {}, {} threads, batch {}: over {field} 1",
                    a.text("contestant"),
                    a.text("value_size"),
                    a.text("get_percent"),
                    a.text("distribution"),
                    a.text("threads"),
                    a.text("batch"),
                );
                experiment.ratio(name, rate, base.number("ops_per_s").unwrap_or(0.0));
            }
        }
    }
}

fn short_name(case: &Case) -> String {
    let verb = match case.get_percent {
        100 => "get".into(),
        0 => "put".into(),
        percent => format!("{percent} % get"),
    };
    let batch = match case.batch {
        1 => String::new(),
        n => format!(" x{n}"),
    };
    format!(
        "{verb}{batch} {}, {} thr.",
        case.distribution.name(),
        case.threads
    )
}
