//! Latency of writes, or of all operations of a mix, with the cleaner and without [LSM-DRAM fig.
//! 10]. Updates by append and in place are compared, and inserts [Nibble fig. 32, 33].
//!
//! Beside them stands what idle threads see. They are as many as a run has in all, for as long, in
//! a process that has nothing else to do.

use super::{Rounds, Watch, check_utilization, check_value_size, step, turns};
use crate::contestant::{Allocator, Contender, Kind, Process, Program, Setup};
use crate::error::{ExperimentError, within};
use crate::experiment::{Axis, Experiment, Panel, Picture, Row, Shape, Spread};
use crate::run::{IdlePlan, Latencies, LoadPlan, RunPlan, THREADS_MAX};
use crate::suite::Step;
use core::str::FromStr;

/// What to measure.
#[derive(Clone, PartialEq, Debug)]
pub struct LatencyOptions {
    /// Memory of the store that is cleaned.
    pub memory: u64,
    /// Its live objects in percent of the log.
    pub utilization: u8,
    /// Bytes of a value; several give rows each.
    pub value_sizes: Vec<usize>,
    /// How the stores that are cleaned update; several give a store each.
    pub updates: Vec<Update>,
    /// Whether inserts are measured, too.
    pub inserts: bool,
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

/// How a store writes a key that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Update {
    /// Appends the new value to the log.
    Append,
    /// Overwrites the old one where the new one fits.
    InPlace,
}

impl Update {
    fn kind(self) -> Kind {
        match self {
            Self::Append => Kind::Pluvio,
            Self::InPlace => Kind::PluvioInPlace,
        }
    }

    /// The name of a store with a cleaner that updates so.
    fn store(self) -> &'static str {
        match self {
            Self::Append => APPENDED,
            Self::InPlace => IN_PLACE,
        }
    }
}

impl FromStr for Update {
    type Err = String;

    /// `append` or `in-place`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "append" => Ok(Self::Append),
            "in-place" => Ok(Self::InPlace),
            _ => Err("give append or in-place".into()),
        }
    }
}

/// What stores are called.
const APPENDED: &str = "cleaner";
const IN_PLACE: &str = "in place";
const BASELINE: &str = "no cleaner";

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

/// What is measured of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    /// The mix of reads and writes of keys that are there.
    Mix,
    /// Writes of keys that are not there.
    Insert,
}

/// One of the stores.
struct Side {
    name: &'static str,
    process: Process,
    objects: u64,
    mix: Measured,
    inserts: Measured,
}

/// Latencies of a store's operations, and their rates, by round.
#[derive(Clone, Default)]
struct Measured {
    all: Vec<Latencies>,
    rates: Vec<f64>,
}

/// All that was measured with one size of values.
struct Group {
    value_size: usize,
    /// In the order of the rows.
    measured: Vec<(&'static str, Operation, Measured)>,
    idle: Vec<Latencies>,
}

impl Group {
    fn of(&self, name: &str, operation: Operation) -> Option<&Measured> {
        let mut all = self.measured.iter();
        let found = all.find(|(store, what, _)| *store == name && *what == operation);
        found.map(|(_, _, measured)| measured)
    }
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
    for &size in &options.value_sizes {
        check_value_size(size)?;
    }
    within("threads", options.threads, 1..=THREADS_MAX)?;
    within("get-percent", options.get_percent, 0..=100)?;
    if options.inserts && options.get_percent > 0 {
        let problem = "--insert measures writes alone: leave --get-percent out";
        return Err(ExperimentError::Parameters(problem.into()));
    }
    // Before anything is loaded: it may be refused.
    let room = options.baseline.then(|| room(options)).transpose()?;
    let stores = options.updates.len() + usize::from(options.baseline);
    let turns = stores * options.operations().len() + 1;
    let each = stores + turns * (options.rounds.rounds + 1);
    watch(Step::Total((options.value_sizes.len() * each) as u64));
    let mut groups = Vec::new();
    for &value_size in &options.value_sizes {
        groups.push(measure(program, options, value_size, room, watch)?);
    }
    Ok(report(options, &groups))
}

/// All rounds with one size of values.
fn measure(
    program: &Program,
    options: &LatencyOptions,
    value_size: usize,
    room: Option<u64>,
    watch: Watch<'_>,
) -> Result<Group, ExperimentError> {
    let mut sides: Vec<Side> = Vec::new();
    for &update in &options.updates {
        let name = format!("{}, {value_size} B, loads", update.store());
        sides.push(step(watch, name, || {
            start(program, options, value_size, Role::Cleaned(update))
        })?);
    }
    if let (Some(memory), Some(first)) = (room, sides.first()) {
        let objects = first.objects;
        sides.push(step(
            watch,
            format!("{BASELINE}, {value_size} B, loads"),
            || {
                start(
                    program,
                    options,
                    value_size,
                    Role::Baseline { memory, objects },
                )
            },
        )?);
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
            for &operation in options.operations() {
                let plan = plan(options, value_size, side.objects, round, operation);
                let name = format!("{}, {value_size} B, round {round}", side.name);
                let ran = step(watch, name, || side.process.run(&plan))?;
                let measured = match operation {
                    Operation::Mix => &mut side.mix,
                    Operation::Insert => &mut side.inserts,
                };
                // The first round warms up.
                if round > 0 {
                    measured.rates.push(ran.per_second);
                    measured.all.extend(ran.latencies);
                }
            }
        }
    }
    let mut measured = Vec::new();
    for side in sides {
        measured.push((side.name, Operation::Mix, side.mix));
        if options.inserts {
            measured.push((side.name, Operation::Insert, side.inserts));
        }
    }
    Ok(Group {
        value_size,
        measured,
        idle: spinning.all,
    })
}

impl LatencyOptions {
    fn operations(&self) -> &'static [Operation] {
        match self.inserts {
            true => &[Operation::Mix, Operation::Insert],
            false => &[Operation::Mix],
        }
    }

    /// What rows call an operation.
    fn called(&self, operation: Operation) -> &'static str {
        match (operation, self.get_percent) {
            (Operation::Insert, _) => "insert",
            (Operation::Mix, 0) => "update",
            (Operation::Mix, _) => "mix",
        }
    }
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
    let runs = (options.rounds.rounds + 1) * options.operations().len();
    let time = options.rounds.seconds * runs as f64 + LATE_SECONDS;
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

fn plan(
    options: &LatencyOptions,
    value_size: usize,
    objects: u64,
    round: usize,
    operation: Operation,
) -> RunPlan {
    RunPlan {
        lead_in: 0.0,
        seconds: length(options, round),
        puts_min: 0,
        threads: options.threads,
        objects,
        value_size,
        get_percent: options.get_percent,
        distribution: "uniform".into(),
        batch: 1,
        put_batch: 1,
        seed: options.rounds.seed + round as u64,
        latencies: true,
        inserts: match operation {
            Operation::Mix => false,
            Operation::Insert => true,
        },
        measured: true,
    }
}

/// Which store a side is.
#[derive(Clone, Copy)]
enum Role {
    Cleaned(Update),
    /// Without a cleaner, with this much memory and as many objects.
    Baseline {
        memory: u64,
        objects: u64,
    },
}

fn start(
    program: &Program,
    options: &LatencyOptions,
    value_size: usize,
    role: Role,
) -> Result<Side, ExperimentError> {
    let (name, kind) = match role {
        Role::Cleaned(update) => (update.store(), update.kind()),
        Role::Baseline { .. } => (BASELINE, Kind::Pluvio),
    };
    let who = Contender {
        kind,
        allocator: Allocator::Glibc,
    };
    let (cleaner_threads, memory) = match role {
        Role::Cleaned(_) => (options.cleaner_threads, options.memory),
        Role::Baseline { memory, .. } => (0, memory),
    };
    let setup = Setup {
        cleaner_threads,
        // Without a cleaner each write takes memory that was never used. In a store that is nearly
        // empty many do. Fetching that memory is left out of the latency.
        populate: true,
        ..Setup::new(kind, 0, memory)
    };
    let mut process = Process::start(program, who, &setup)?;
    let (objects, until) = match role {
        Role::Cleaned(_) => (u64::MAX, Some(f64::from(options.utilization) / 100.0)),
        Role::Baseline { objects, .. } => (objects, None),
    };
    let loaded = process.load(&LoadPlan {
        objects,
        until,
        value_size,
        seed: options.rounds.seed,
    })?;
    Ok(Side {
        name,
        process,
        objects: loaded.objects,
        mix: Measured::default(),
        inserts: Measured::default(),
    })
}

fn by_round(all: &[Latencies], quantile: f64) -> Vec<f64> {
    all.iter().map(|latencies| latencies.us(quantile)).collect()
}

fn median(all: &[Latencies], quantile: f64) -> Spread {
    Spread::of(&by_round(all, quantile)).unwrap_or_default()
}

fn report(options: &LatencyOptions, groups: &[Group]) -> (Experiment, Picture) {
    let parameters = Row::new()
        .with("memory", options.memory)
        .with("utilization_percent", options.utilization)
        .with("threads", options.threads)
        .with("get_percent", options.get_percent)
        .with("cleaner_threads", options.cleaner_threads)
        .and(options.rounds.cells());
    let mut experiment = Experiment::new("latency-cdf", parameters);
    let what = match options.get_percent {
        0 => "writes".to_owned(),
        percent => format!("operations, {percent} % of them reads"),
    };
    let mut panels = Vec::new();
    for group in groups {
        panels.extend(tell(&mut experiment, options, group, &what));
        // One size needs no name.
        let of = match groups.len() {
            1 => String::new(),
            _ => format!("{} B, ", group.value_size),
        };
        compare(&mut experiment, options, group, &of);
    }
    let against = match options.baseline {
        true => "with the cleaner and without",
        false => "with the cleaner",
    };
    let picture = Picture {
        title: format!("Latency of {what}, {against}"),
        panels,
    };
    (experiment, picture)
}

/// The rows of a size, and its two panels.
fn tell(
    experiment: &mut Experiment,
    options: &LatencyOptions,
    group: &Group,
    what: &str,
) -> [Panel; 2] {
    let size = group.value_size;
    let panel = |title: &str, y: Axis, up: &str| Panel {
        title: format!("{size} B, {title}"),
        x: "latency (us)".into(),
        y: up.into(),
        shape: Shape::Lines {
            x: Axis::Logarithmic,
            y,
        },
        series: Vec::new(),
    };
    let mut whole = panel("all of them", Axis::Linear, &format!("part of the {what}"));
    let mut tail = panel("the slowest", Axis::Logarithmic, "part that took longer");
    let stores = group.measured.iter().map(|(name, operation, measured)| {
        let called = options.called(*operation);
        let series = match options.inserts {
            true => format!("{called}, {name}"),
            false => (*name).to_owned(),
        };
        // The rate of inserts has the deletions in it.
        let rates = match operation {
            Operation::Mix => measured.rates.as_slice(),
            Operation::Insert => &[],
        };
        (*name, Some(called), series, measured.all.as_slice(), rates)
    });
    let idle = (
        "idle",
        None,
        "idle".to_owned(),
        group.idle.as_slice(),
        &[][..],
    );
    for (name, operation, series, all, rates) in stores.chain([idle]) {
        let Some(first) = all.first() else {
            continue;
        };
        for &(quantile, _) in &first.quantiles {
            let us = median(all, quantile);
            let mut row = Row::new()
                .with("what", name)
                .with("operation", operation)
                .with("value_size", size)
                .with("quantile", quantile)
                .and(us.cells("us"))
                .with("count", all.iter().map(|one| one.count).sum::<u64>());
            if let Some(rate) = Spread::of(rates) {
                row.set("ops_per_s", rate.median);
            }
            experiment.rows.push(row);
            whole.point(&series, us.median, quantile);
            tail.point(&series, us.median, 1.0 - quantile);
        }
    }
    [whole, tail]
}

/// The ratios of a size; `of` names it.
fn compare(experiment: &mut Experiment, options: &LatencyOptions, group: &Group, of: &str) {
    let appended = group.of(APPENDED, Operation::Mix);
    if let (Some(with), Some(without)) = (appended, group.of(BASELINE, Operation::Mix)) {
        for (name, quantile) in [
            ("median", 0.5),
            ("p99", 0.99),
            ("p99.9", 0.999),
            ("slowest", 1.0),
        ] {
            let (a, b) = (median(&with.all, quantile), median(&without.all, quantile));
            let name = format!("{of}{name}: cleaner / no cleaner");
            experiment.ratio(name, a.median, b.median);
        }
    }
    for &operation in options.operations() {
        let both = (group.of(IN_PLACE, operation), group.of(APPENDED, operation));
        let (Some(in_place), Some(appended)) = both else {
            continue;
        };
        for (name, quantile) in [("median", 0.5), ("p99", 0.99)] {
            let [a, b] = [in_place, appended].map(|store| by_round(&store.all, quantile));
            let called = options.called(operation);
            let name = format!("{of}{called}, {name}: in place / appended");
            experiment.ratio_by_round(name, &a, &b);
        }
    }
    if let Some((_, _, with)) = group.measured.first() {
        let (a, b) = (median(&with.all, 1.0), median(&group.idle, 1.0));
        experiment.ratio(format!("{of}slowest: cleaner / idle thread"), a.max, b.max);
        let name = format!("{of}slowest: cleaner beyond an idle thread / the 2 ms wanted");
        experiment.ratio(name, (a.max - b.max).max(0.0), PAUSE_WANTED_US);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(seconds: f64, get_percent: u8) -> LatencyOptions {
        LatencyOptions {
            memory: 256 << 20,
            utilization: 90,
            value_sizes: vec![100],
            updates: vec![Update::Append],
            inserts: false,
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
        let of = |round| plan(&ten_minutes, 100, 1000, round, Operation::Mix);
        assert_eq!(of(1).seconds, 600.0);
        assert_eq!(idle_plan(&ten_minutes, 1).seconds, 600.0);
        assert_eq!(idle_plan(&ten_minutes, 1).threads, 2);
        assert_eq!(idle_plan(&options(6000.0, 50), 1).seconds, 600.0);
        assert_eq!(idle_plan(&options(1.0, 0), 1).seconds, 1.0);
        // The first round only warms up.
        assert_eq!(idle_plan(&ten_minutes, 0).seconds, WARMUP_SECONDS_MAX);
        assert_eq!(of(1).get_percent, 50);
    }

    fn latencies(median_ns: u64, slowest_ns: u64) -> Latencies {
        Latencies {
            count: 10,
            quantiles: vec![(0.5, median_ns), (1.0, slowest_ns)],
        }
    }

    fn measured(median_ns: u64, slowest_ns: u64) -> Measured {
        Measured {
            all: vec![latencies(median_ns, slowest_ns)],
            rates: vec![1e6],
        }
    }

    #[test]
    fn updates_in_place_and_inserts_are_compared_with_appends_for_each_size() {
        let options = LatencyOptions {
            value_sizes: vec![64, 1024],
            updates: vec![Update::Append, Update::InPlace],
            inserts: true,
            ..options(1.0, 0)
        };
        let group = |value_size, in_place_ns| Group {
            value_size,
            measured: vec![
                (APPENDED, Operation::Mix, measured(400, 1000)),
                (APPENDED, Operation::Insert, measured(600, 1000)),
                (IN_PLACE, Operation::Mix, measured(in_place_ns, 1000)),
                (IN_PLACE, Operation::Insert, measured(600, 1000)),
            ],
            idle: vec![latencies(20, 900)],
        };
        let (experiment, picture) = report(&options, &[group(64, 300), group(1024, 340)]);
        let ratio = |name: &str| experiment.ratios[&format!("{name}, median: in place / appended")];
        for (name, wanted) in [
            ("64 B, update", 0.75),
            ("1024 B, update", 0.85),
            ("1024 B, insert", 1.0),
        ] {
            let is = ratio(name);
            assert!((is - wanted).abs() < 1e-9, "{name}: {is}");
        }
        assert_eq!(
            (experiment.rows.len(), picture.panels.len()),
            (2 * 5 * 2, 4)
        );
        let insert = &experiment.rows[2];
        assert_eq!(insert.text("operation"), "insert");
        assert_eq!(insert.number("ops_per_s"), None, "deletions are in it");
    }

    #[test]
    fn the_slowest_is_told_beside_an_idle_threads_pauses() {
        let group = Group {
            value_size: 100,
            measured: vec![(APPENDED, Operation::Mix, measured(300, 7_000_000))],
            idle: vec![latencies(300, 4_000_000)],
        };
        let (experiment, picture) = report(&options(600.0, 50), &[group]);
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
