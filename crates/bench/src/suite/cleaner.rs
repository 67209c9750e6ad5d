//! Write throughput and the cleaner's work against memory utilization (000 fig. 8-9, 003 fig. 6).

use super::{Watch, check_rounds, lines, step};
use crate::contestant::{Allocator, Contender, Kind, Process, Program, Setup};
use crate::error::ExperimentError;
use crate::experiment::{Experiment, Picture, Row, Spread};
use crate::run::{LoadPlan, Ran, RunPlan};
use crate::suite::Step;
use crate::workload::Distribution;

/// What to measure. Lists give a row for each combination.
#[derive(Clone, PartialEq, Debug)]
pub struct CleanerOptions {
    /// Memory of the store.
    pub memory: u64,
    /// Live objects in percent of the log, headers included.
    pub utilizations: Vec<u8>,
    /// Bytes of a value.
    pub value_sizes: Vec<usize>,
    /// Which keys are overwritten.
    pub distributions: Vec<Distribution>,
    /// Whether segments are compacted by themselves too.
    pub two_level: Vec<bool>,
    /// Threads that write.
    pub threads: usize,
    /// Threads that clean.
    pub cleaner_threads: u16,
    /// How long each round is.
    pub seconds: f64,
    /// Rounds.
    pub rounds: usize,
    /// Seed of values and draws.
    pub seed: u64,
}

/// How often the memory is written anew before measuring, and how many rounds that may take.
const TURNOVERS: u64 = 2;
const WARMUP_ROUNDS_MAX: usize = 60;

/// One store at its utilization.
struct Store {
    process: Process,
    utilization: u8,
    two_level: bool,
    objects: u64,
    /// Bytes that one write appends.
    entry: f64,
    reached: f64,
    ran: Vec<Ran>,
}

/// Runs the experiment.
///
/// # Errors
/// The store refused, or the parameters make no sense.
pub fn cleaner(
    program: &Program,
    options: &CleanerOptions,
    watch: Watch<'_>,
) -> Result<(Experiment, Picture), ExperimentError> {
    check_rounds(options.rounds, options.seconds)?;
    if !options.utilizations.iter().all(|u| (1..=94).contains(u)) {
        let problem = "utilizations must be 1 to 94 %: the log keeps the rest for its cleaner";
        return Err(ExperimentError::Parameters(problem.into()));
    }
    let groups = options.value_sizes.len() * options.distributions.len();
    let stores = options.utilizations.len() * options.two_level.len();
    watch(Step::Total((groups * stores * (2 + options.rounds)) as u64));
    let mut experiment = Experiment::new("cleaner", options.parameters());
    let mut panels = Vec::new();
    for &value_size in &options.value_sizes {
        for &distribution in &options.distributions {
            let name = format!("{value_size} B, {}", distribution.name());
            let mut rate = lines(name.clone(), "utilization (%)", "writes/s");
            let mut cost = lines(name, "utilization (%)", "bytes written / byte of new data");
            for store in measure(program, options, value_size, distribution, watch)? {
                let row = store.row(value_size, distribution);
                let x = f64::from(store.utilization);
                let level = level(store.two_level);
                rate.point(level, x, row.number("puts_per_s").unwrap_or(f64::NAN));
                cost.point(
                    level,
                    x,
                    row.number("write_amplification").unwrap_or(f64::NAN),
                );
                experiment.rows.push(row);
            }
            panels.extend([rate, cost]);
        }
    }
    compare(&mut experiment);
    let picture = Picture {
        title: "Writing at high memory utilization".into(),
        panels,
    };
    Ok((experiment, picture))
}

impl CleanerOptions {
    fn parameters(&self) -> Row {
        Row::new()
            .with("memory", self.memory)
            .with("threads", self.threads)
            .with("cleaner_threads", self.cleaner_threads)
            .with("seconds", self.seconds)
            .with("rounds", self.rounds)
            .with("seed", self.seed)
    }
}

fn level(two: bool) -> &'static str {
    if two { "two-level" } else { "one-level" }
}

/// All utilizations and levels of one size and distribution, their rounds in turn.
fn measure(
    program: &Program,
    options: &CleanerOptions,
    value_size: usize,
    distribution: Distribution,
    watch: Watch<'_>,
) -> Result<Vec<Store>, ExperimentError> {
    let mut stores = Vec::new();
    for &two_level in &options.two_level {
        for &utilization in &options.utilizations {
            let name = format!("{value_size} B at {utilization} % loads");
            stores.push(step(watch, name, || {
                Store::start(program, options, value_size, utilization, two_level)
            })?);
        }
    }
    let plan = |store: &Store, round: usize| RunPlan {
        seconds: options.seconds,
        threads: options.threads,
        objects: store.objects,
        value_size,
        get_percent: 0,
        distribution: distribution.name(),
        batch: 1,
        seed: options.seed + round as u64,
        latencies: false,
    };
    for store in &mut stores {
        let name = format!("{value_size} B at {} % warms up", store.utilization);
        step(watch, name, || {
            let mut written = 0.0;
            for round in 0..WARMUP_ROUNDS_MAX {
                let plan = plan(store, 1000 + round);
                written += store.process.run(&plan)?.puts as f64 * store.entry;
                if written >= (options.memory * TURNOVERS) as f64 {
                    break;
                }
            }
            Ok::<_, ExperimentError>(())
        })?;
    }
    for round in 0..options.rounds {
        for store in &mut stores {
            let name = format!("{value_size} B at {} %", store.utilization);
            let plan = plan(store, round);
            let ran = step(watch, name, || store.process.run(&plan))?;
            store.ran.push(ran);
        }
    }
    Ok(stores)
}

impl Store {
    fn start(
        program: &Program,
        options: &CleanerOptions,
        value_size: usize,
        utilization: u8,
        two_level: bool,
    ) -> Result<Self, ExperimentError> {
        let ours = Contender {
            kind: Kind::Pluvio,
            allocator: Allocator::Glibc,
        };
        let setup = Setup {
            two_level,
            cleaner_threads: options.cleaner_threads,
            ..Setup::new(Kind::Pluvio, 0, options.memory)
        };
        let mut process = Process::start(program, ours, &setup)?;
        let loaded = process.load(&LoadPlan {
            objects: u64::MAX,
            until: Some(f64::from(utilization) / 100.0),
            value_size,
            seed: options.seed,
        })?;
        let held = loaded.holdings;
        Ok(Self {
            process,
            utilization,
            two_level,
            objects: loaded.objects,
            entry: held.live_log as f64 / loaded.objects.max(1) as f64,
            reached: held.live_log as f64 / held.log_memory.max(1) as f64,
            ran: Vec::new(),
        })
    }

    fn row(&self, value_size: usize, distribution: Distribution) -> Row {
        let spread = |of: &dyn Fn(&Ran) -> f64| {
            let all: Vec<f64> = self.ran.iter().map(of).collect();
            Spread::of(&all).unwrap_or_default()
        };
        let moved = |ran: &Ran| (ran.after.moved - ran.before.moved) as f64;
        let seconds = |ran: &Ran| ran.operations as f64 / ran.per_second.max(1e-9);
        let new = |ran: &Ran| ran.puts as f64 * self.entry;
        let rate = spread(&|ran| ran.per_second);
        Row::new()
            .with("value_size", value_size)
            .with("distribution", distribution.name())
            .with("cleaning", level(self.two_level))
            .with("utilization_percent", self.utilization)
            .with("utilization_reached", self.reached)
            .with("objects", self.objects)
            .and(rate.cells("puts_per_s"))
            .with("values_mb_per_s", rate.median * value_size as f64 / 1e6)
            .with(
                "cleaner_mb_per_s",
                spread(&|ran| moved(ran) / seconds(ran) / 1e6).median,
            )
            .with(
                "write_amplification",
                spread(&|ran| 1.0 + moved(ran) / new(ran).max(1.0)).median,
            )
            .with(
                "to_backups_over_new",
                spread(&|ran| {
                    let combined = ran.after.combined - ran.before.combined;
                    combined as f64 / new(ran).max(1.0)
                })
                .median,
            )
            .with(
                "refused_per_put",
                spread(&|ran| ran.retries as f64 / ran.puts.max(1) as f64).median,
            )
    }
}

/// High utilizations over the lowest, and two-level over one-level.
fn compare(experiment: &mut Experiment) {
    let rows = experiment.rows.clone();
    let same = |a: &Row, b: &Row, fields: &[&str]| fields.iter().all(|f| a.get(f) == b.get(f));
    let rate = |row: &Row| row.number("puts_per_s").unwrap_or(f64::NAN);
    let percent = |row: &Row| row.number("utilization_percent").unwrap_or(f64::NAN);
    for row in &rows {
        let group = ["value_size", "distribution", "cleaning"];
        let name = format!(
            "{} B {} {} at {} %",
            row.text("value_size"),
            row.text("distribution"),
            row.text("cleaning"),
            row.text("utilization_percent")
        );
        let peers = rows.iter().filter(|other| same(row, other, &group));
        let lowest = peers.min_by(|a, b| percent(a).total_cmp(&percent(b)));
        if let Some(lowest) = lowest.filter(|lowest| percent(lowest) < percent(row)) {
            let at = lowest.text("utilization_percent");
            experiment.ratio(format!("{name} / at {at} %"), rate(row), rate(lowest));
        }
        let group = ["value_size", "distribution", "utilization_percent"];
        let one = rows
            .iter()
            .find(|other| same(row, other, &group) && other.text("cleaning") == "one-level");
        if let Some(one) = one.filter(|_| row.text("cleaning") == "two-level") {
            experiment.ratio(format!("{name} / one-level"), rate(row), rate(one));
        }
    }
}
