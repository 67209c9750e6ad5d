//! Write throughput and the cleaner's work against memory utilization ([LSM-DRAM fig. 8-9],
//! [RAMCloud fig. 6]).

use super::{Rounds, Watch, check_utilization, check_value_size, lines, step, turns};
use crate::contestant::{Allocator, Contender, Disk, Kind, Process, Program, Setup, Tombstones};
use crate::error::{ExperimentError, within};
use crate::experiment::{Experiment, Panel, Picture, Row, Spread};
use crate::run::{LoadPlan, Ran, RunPlan, THREADS_MAX};
use crate::suite::Step;
use crate::workload::Distribution;
use pluvio_load::Machine;

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
    /// Whether segments are compacted by themselves too, where there is a disk.
    pub two_level: Vec<bool>,
    /// How overwritten objects are kept dead on the disk.
    pub tombstones: Vec<Tombstones>,
    /// What the log is written to beside memory.
    pub disks: Vec<Disk>,
    /// Threads that write.
    pub threads: usize,
    /// Threads that clean.
    pub cleaner_threads: u16,
    /// Warming up may take so long: at the highest utilizations it would take minutes.
    pub warmup_seconds: f64,
    /// How long, and how often. A round is longer, up to ten times, until a quarter of the memory
    /// was written.
    pub rounds: Rounds,
}

/// How often the memory is written anew before measuring, if there is time.
const TURNOVERS: u64 = 2;
/// The part of the memory that a round writes at least, if ten times its length is enough. With a
/// slow disk a round by time alone would see few passes of the cleaner.
const ROUND_TURNOVER: f64 = 0.25;

/// The parameters that all stores of one panel have in common.
#[derive(Clone, Copy)]
struct Group {
    value_size: usize,
    distribution: Distribution,
    disk: Disk,
}

/// One store at its utilization.
struct Store {
    process: Process,
    utilization: u8,
    two_level: bool,
    tombstones: Tombstones,
    objects: u64,
    /// Bytes that one write appends.
    entry: f64,
    reached: f64,
    /// How often the memory was written before measuring.
    turnovers: f64,
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
    options.rounds.check()?;
    for &utilization in &options.utilizations {
        check_utilization(utilization)?;
    }
    for &size in &options.value_sizes {
        check_value_size(size)?;
    }
    within("threads", options.threads, 1..=THREADS_MAX)?;
    within("warmup-seconds", options.warmup_seconds, 0.0..=86_400.0)?;
    if options.disks.contains(&Disk::None) && options.tombstones.contains(&Tombstones::Every) {
        return Err(ExperimentError::Parameters(
            "--tombstones every: a store without a disk writes none; give --disk-bandwidth".into(),
        ));
    }
    let groups = options.value_sizes.len() * options.distributions.len() * options.disks.len();
    let stores = options.utilizations.len() * options.two_level.len() * options.tombstones.len();
    watch(Step::Total(
        (groups * stores * (2 + options.rounds.rounds + 1)) as u64,
    ));
    let mut experiment = Experiment::new("cleaner", options.parameters());
    let mut panels = Vec::new();
    for &value_size in &options.value_sizes {
        for &distribution in &options.distributions {
            for &disk in &options.disks {
                let group = Group {
                    value_size,
                    distribution,
                    disk,
                };
                let (rows, pictures) = group.run(program, options, watch)?;
                experiment.rows.extend(rows);
                panels.extend(pictures);
            }
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
    /// Memory of each of `stores` stores that exist at once. It is 2 GiB, or each one's share of
    /// half of this machine's memory, but at least 256 MiB.
    #[must_use]
    pub fn usual_memory(stores: usize) -> u64 {
        let share = Machine::this().memory / 2 / (stores.max(1) as u64);
        (share >> 26 << 26).clamp(256 << 20, 2 << 30)
    }

    fn parameters(&self) -> Row {
        Row::new()
            .with("memory", self.memory)
            .with("threads", self.threads)
            .with("cleaner_threads", self.cleaner_threads)
            .with("warmup_seconds", self.warmup_seconds)
            .and(self.rounds.cells())
    }
}

fn level(two: bool) -> &'static str {
    if two { "two-level" } else { "one-level" }
}

impl Group {
    fn run(
        self,
        program: &Program,
        options: &CleanerOptions,
        watch: Watch<'_>,
    ) -> Result<(Vec<Row>, [Panel; 2]), ExperimentError> {
        let name = match self.disk {
            Disk::None => format!("{} B, {}", self.value_size, self.distribution.name()),
            disk => format!(
                "{} B, {}, disk {disk} MB/s",
                self.value_size,
                self.distribution.name()
            ),
        };
        let mut rate = lines(name.clone(), "utilization (%)", "writes/s");
        let mut cost = lines(name, "utilization (%)", "bytes written / byte of new data");
        let mut rows = Vec::new();
        for store in self.measure(program, options, watch)? {
            let row = store.row(self);
            let x = f64::from(store.utilization);
            let series = match store.tombstones {
                Tombstones::Deletes => level(store.two_level).into(),
                Tombstones::Every => format!("{}, every tombstone", level(store.two_level)),
            };
            let cell = |name| row.number(name).unwrap_or(f64::NAN);
            rate.point(&series, x, cell("puts_per_s"));
            cost.point(&series, x, cell("write_amplification"));
            rows.push(row);
        }
        Ok((rows, [rate, cost]))
    }

    /// All utilizations, levels and kinds of tombstones, their rounds in turn.
    fn measure(
        self,
        program: &Program,
        options: &CleanerOptions,
        watch: Watch<'_>,
    ) -> Result<Vec<Store>, ExperimentError> {
        let value_size = self.value_size;
        let mut stores = Vec::new();
        for &two_level in &options.two_level {
            for &tombstones in &options.tombstones {
                for &utilization in &options.utilizations {
                    let name = format!("{value_size} B at {utilization} % loads");
                    let setup = Setup {
                        two_level,
                        tombstones,
                        cleaner_threads: options.cleaner_threads,
                        disk: self.disk,
                        ..Setup::new(Kind::Pluvio, 0, options.memory)
                    };
                    stores.push(step(watch, name, || {
                        Store::start(program, options, self, utilization, &setup)
                    })?);
                }
            }
        }
        for store in &mut stores {
            let name = format!("{value_size} B at {} % warms up", store.utilization);
            step(watch, name, || self.warm_up(options, store))?;
        }
        for round in 0..=options.rounds.rounds {
            for at in turns(round, stores.len()) {
                let store = &mut stores[at];
                let name = format!("{value_size} B at {} %", store.utilization);
                let plan = self.plan(options, store, round);
                let ran = step(watch, name, || store.process.run(&plan))?;
                // In the first round the store comes to terms with the rate of its disk.
                if round > 0 {
                    store.ran.push(ran);
                }
            }
        }
        Ok(stores)
    }

    fn plan(self, options: &CleanerOptions, store: &Store, round: usize) -> RunPlan {
        let puts = options.memory as f64 * ROUND_TURNOVER / store.entry.max(1.0);
        RunPlan {
            lead_in: RunPlan::usual_lead_in(options.rounds.seconds, 0),
            seconds: options.rounds.seconds,
            puts_min: puts as u64,
            threads: options.threads,
            objects: store.objects,
            value_size: self.value_size,
            get_percent: 0,
            distribution: self.distribution.name(),
            batch: 1,
            put_batch: 1,
            seed: options.rounds.seed + round as u64,
            latencies: false,
            inserts: false,
            measured: true,
        }
    }

    /// Writes the memory anew, as fast as it goes: dead entries are spread as they will be.
    fn warm_up(self, options: &CleanerOptions, store: &mut Store) -> Result<(), ExperimentError> {
        let (mut written, mut seconds) = (0.0, 0.0);
        let mut round = 1000;
        while written < (options.memory * TURNOVERS) as f64 && seconds < options.warmup_seconds {
            let plan = RunPlan {
                lead_in: 0.0,
                puts_min: 0,
                measured: false,
                ..self.plan(options, store, round)
            };
            written += store.process.run(&plan)?.puts as f64 * store.entry;
            seconds += plan.seconds;
            round += 1;
        }
        store.turnovers = written / options.memory as f64;
        Ok(())
    }
}

impl Store {
    fn start(
        program: &Program,
        options: &CleanerOptions,
        group: Group,
        utilization: u8,
        setup: &Setup,
    ) -> Result<Self, ExperimentError> {
        let ours = Contender {
            kind: Kind::Pluvio,
            allocator: Allocator::Glibc,
        };
        let mut process = Process::start(program, ours, setup)?;
        let loaded = process.load(&LoadPlan {
            objects: u64::MAX,
            until: Some(f64::from(utilization) / 100.0),
            value_size: group.value_size,
            seed: options.rounds.seed,
        })?;
        let held = loaded.holdings;
        Ok(Self {
            process,
            utilization,
            two_level: setup.two_level,
            tombstones: setup.tombstones,
            objects: loaded.objects,
            entry: held.live_log as f64 / loaded.objects.max(1) as f64,
            reached: held.live_log as f64 / held.log_memory.max(1) as f64,
            turnovers: 0.0,
            ran: Vec::new(),
        })
    }

    fn row(&self, group: Group) -> Row {
        let spread = |of: &dyn Fn(&Ran) -> f64| {
            let all: Vec<f64> = self.ran.iter().map(of).collect();
            Spread::of(&all).unwrap_or_default()
        };
        let seconds = |ran: &Ran| ran.operations as f64 / ran.per_second.max(1e-9);
        let new = |ran: &Ran| (ran.puts as f64 * self.entry).max(1.0);
        let moved = |ran: &Ran| (ran.after.moved - ran.before.moved) as f64;
        let combined = |ran: &Ran| (ran.after.combined - ran.before.combined) as f64;
        let to_disk = |ran: &Ran| (ran.after.to_disk - ran.before.to_disk) as f64;
        let rate = spread(&|ran| ran.per_second);
        let mut row = Row::new()
            .with("value_size", group.value_size)
            .with("distribution", group.distribution.name())
            .with("disk_mb_per_s", group.disk.to_string())
            .with("cleaning", level(self.two_level))
            .with(
                "tombstones",
                match group.disk {
                    Disk::None => "none".into(),
                    Disk::Unlimited | Disk::Limited(_) => self.tombstones.to_string(),
                },
            )
            .with("utilization_percent", self.utilization)
            .with("utilization_reached", self.reached)
            .with("objects", self.objects)
            .with("turnovers_before", self.turnovers)
            .and(rate.cells("puts_per_s"))
            .with(
                "values_mb_per_s",
                rate.median * group.value_size as f64 / 1e6,
            );
        let mut cell = |name, of: &dyn Fn(&Ran) -> f64| row.set(name, spread(of).median);
        cell("cleaner_mb_per_s", &|ran| moved(ran) / seconds(ran) / 1e6);
        cell("write_amplification", &|ran| 1.0 + moved(ran) / new(ran));
        cell("to_backups_over_new", &|ran| combined(ran) / new(ran));
        if group.disk != Disk::None {
            cell("disk_mb_per_s_used", &|ran| {
                to_disk(ran) / seconds(ran) / 1e6
            });
            cell("to_disk_over_new", &|ran| to_disk(ran) / new(ran));
        }
        cell("refused_per_put", &|ran| {
            ran.retries as f64 / ran.puts.max(1) as f64
        });
        row
    }
}

/// The cells that say what was run: no two rows of an experiment agree in all of them.
const RUN: [&str; 6] = [
    "value_size",
    "distribution",
    "disk_mb_per_s",
    "cleaning",
    "tombstones",
    "utilization_percent",
];

/// The rows of what was run as `row` but for `column`, itself among them.
fn counterparts<'a>(
    rows: &'a [Row],
    row: &'a Row,
    column: &'static str,
) -> impl Iterator<Item = &'a Row> {
    debug_assert!(RUN.contains(&column), "{column}");
    let others = RUN.into_iter().filter(move |name| *name != column);
    rows.iter()
        .filter(move |other| others.clone().all(|name| row.get(name) == other.get(name)))
}

/// High utilizations over the lowest, two-level over one-level, and tombstones for deletes alone
/// over those for all.
fn compare(experiment: &mut Experiment) {
    let rows = experiment.rows.clone();
    let cell = |row: &Row, name| row.number(name).unwrap_or(f64::NAN);
    let percent = |row: &Row| cell(row, "utilization_percent");
    for row in &rows {
        let disk = match row.text("disk_mb_per_s").as_str() {
            "none" => String::new(),
            rate => format!(" disk {rate}"),
        };
        let every = match row.text("tombstones").as_str() {
            "every" => " every tombstone",
            _ => "",
        };
        let name = format!(
            "{} B {} {}{disk}{every} at {} %",
            row.text("value_size"),
            row.text("distribution"),
            row.text("cleaning"),
            row.text("utilization_percent")
        );
        let rate = cell(row, "puts_per_s");
        let lowest = counterparts(&rows, row, "utilization_percent")
            .min_by(|a, b| percent(a).total_cmp(&percent(b)))
            .filter(|lowest| percent(lowest) < percent(row));
        if let Some(lowest) = lowest {
            let at = lowest.text("utilization_percent");
            let name = format!("{name} / at {at} %");
            experiment.ratio(name, rate, cell(lowest, "puts_per_s"));
        }
        // The row with `theirs` in that column, for one that has `ours` there.
        let against = |column, ours: &str, theirs: &str| {
            counterparts(&rows, row, column)
                .find(|other| other.text(column) == theirs)
                .filter(|_| row.text(column) == ours)
        };
        if let Some(every) = against("tombstones", "deletes", "every") {
            let ratio = format!("{name} / a tombstone for every overwrite");
            experiment.ratio(ratio, rate, cell(every, "puts_per_s"));
        }
        if let Some(one) = against("cleaning", "two-level", "one-level") {
            let ratio = format!("{name} / one-level");
            experiment.ratio(ratio, rate, cell(one, "puts_per_s"));
            let bytes = "to_backups_over_new";
            let ratio = format!("{name}: cleaner's bytes to the disk / one-level");
            experiment.ratio(ratio, cell(row, bytes), cell(one, bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cleaning: &str, tombstones: &str, utilization: u8, puts_per_s: f64) -> Row {
        Row::new()
            .with("value_size", 100)
            .with("distribution", "uniform")
            .with("disk_mb_per_s", "500")
            .with("cleaning", cleaning)
            .with("tombstones", tombstones)
            .with("utilization_percent", utilization)
            .with("puts_per_s", puts_per_s)
            .with("to_backups_over_new", puts_per_s / 10.0)
    }

    #[test]
    fn what_was_run_is_compared_with_what_differs_in_one_thing_alone() {
        let mut experiment = Experiment::new("cleaner", Row::new());
        experiment.rows = vec![
            row("two-level", "deletes", 90, 60.0),
            row("two-level", "deletes", 30, 120.0),
            row("one-level", "deletes", 90, 40.0),
            row("two-level", "every", 90, 20.0),
            row("one-level", "every", 30, 10.0),
            row("two-level", "deletes", 50, 100.0).with("value_size", 1000),
        ];
        compare(&mut experiment);
        let ratios: Vec<(String, f64)> = experiment.ratios.into_iter().collect();
        let two = "100 B uniform two-level disk 500 at 90 %";
        let expected = [
            (format!("{two} / a tombstone for every overwrite"), 3.0),
            (format!("{two} / at 30 %"), 0.5),
            (format!("{two} / one-level"), 1.5),
            (
                format!("{two}: cleaner's bytes to the disk / one-level"),
                1.5,
            ),
        ];
        assert_eq!(ratios, expected);
    }
}
