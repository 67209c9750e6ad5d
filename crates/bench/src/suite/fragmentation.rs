//! Memory under changing sizes (000 fig. 1 and 11, 003 fig. 7, 004 fig. 14): resident bytes over live bytes.

use super::{KEY, Overhead, Watch, bars, check_utilization, step};
use crate::contestant::{Allocator, Contender, Kind, Process, Program, Setup};
use crate::error::{ExperimentError, within};
use crate::experiment::{Experiment, Picture, Row, Spread};
use crate::run::{Mark, ReplayPlan, Replayed};
use crate::suite::Step;
use crate::workload::{Live, Plan, Workload, workloads};
use pluvio_units::Size;

/// What to measure.
#[derive(Clone, PartialEq, Debug)]
pub struct FragmentationOptions {
    /// Who takes part.
    pub contenders: Vec<Contender>,
    /// Names of workloads; none means all.
    pub workloads: Vec<String>,
    /// Live bytes of values.
    pub live: u64,
    /// Live objects in percent of our log, where the workload has most of them.
    pub utilization: u8,
    /// Cleaner threads of our store.
    pub cleaner_threads: u16,
    /// Whether to run our store with memory for everything too, to compare its speed.
    pub performance: bool,
    /// How often, each time in new processes.
    pub rounds: usize,
    /// Seed of sizes and deletions.
    pub seed: u64,
}

/// Bytes of values that may live: at least one segment, and no more than a machine of today has.
const LIVE_MIN: Size = Size(8 << 20);
const LIVE_MAX: Size = Size(1 << 42);

/// Runs the experiment.
///
/// # Errors
/// A contestant cannot take part or failed, or the parameters make no sense.
pub fn fragmentation(
    program: &Program,
    options: &FragmentationOptions,
    watch: Watch<'_>,
) -> Result<(Experiment, Picture), ExperimentError> {
    let chosen = choose(&options.workloads)?;
    check_utilization(options.utilization)?;
    within("live", Size(options.live), LIVE_MIN..=LIVE_MAX)?;
    let overhead = Overhead::measure(program)?;
    within("rounds", options.rounds, 1..=1000)?;
    let ours = options.contenders.iter().filter(|who| who.kind.is_ours());
    let runs = options.contenders.len() + if options.performance { ours.count() } else { 0 };
    watch(Step::Total((chosen.len() * options.rounds * runs) as u64));
    let parameters = Row::new()
        .with("live", options.live)
        .with("utilization_percent", options.utilization)
        .with("cleaner_threads", options.cleaner_threads)
        .with("rounds", options.rounds)
        .with("log_bytes_beside_a_value", overhead.log)
        .with("index_bytes_of_an_object", overhead.index)
        .with("seed", options.seed);
    let mut experiment = Experiment::new("fragmentation", parameters);
    let groups: Vec<String> = chosen.iter().map(|w| w.name.to_owned()).collect();
    let panel = |title: &str, up| bars(title.into(), "", up, groups.clone());
    let mut peak = panel("most memory", "resident / most live");
    let mut end = panel("memory at the end", "resident / live");
    let mut deleted = panel("after deleting", "resident / live");
    for (number, workload) in chosen.iter().enumerate() {
        let x = number as f64;
        let mut best: Option<f64> = None;
        let rounds = rounds_of(program, options, overhead, workload, watch)?;
        for (&who, of) in options.contenders.iter().zip(&rounds) {
            let most = of.median(|round| round.ratios.peak);
            peak.point(&who.to_string(), x, most);
            end.point(&who.to_string(), x, of.median(|round| round.ratios.end));
            deleted.point(&who.to_string(), x, of.median(|round| round.ratios.deleted));
            if !who.kind.is_ours() {
                best = Some(best.unwrap_or(f64::MAX).min(most));
            }
            let mut row = of.row(workload, who);
            if who.kind.is_ours() {
                row.set("memory", sized(overhead, workload, options));
            }
            if let Some(relative) = of.speed_over_no_cleaning() {
                row = row.and(relative.cells("speed_over_no_cleaning"));
                let name = format!("{} {who}: speed / no cleaning", workload.name);
                experiment.ratio(name, relative.median, 1.0);
            }
            experiment.rows.push(row);
        }
        compare(&mut experiment, workload.name, best);
    }
    let picture = Picture {
        title: "Memory under changing sizes".into(),
        panels: vec![peak, end, deleted],
    };
    Ok((experiment, picture))
}

fn choose(names: &[String]) -> Result<Vec<Workload>, ExperimentError> {
    let all = workloads();
    if names.is_empty() {
        return Ok(all.to_vec());
    }
    let find = |name: &String| {
        let found = all.iter().find(|w| w.name.eq_ignore_ascii_case(name));
        found.cloned().ok_or_else(|| {
            ExperimentError::Parameters(format!("no workload {name}; give W1 to W8 or P1 to P6"))
        })
    };
    names.iter().map(find).collect()
}

/// Memory in which the workload's live objects are the utilization, where they take most.
fn sized(overhead: Overhead, workload: &Workload, options: &FragmentationOptions) -> u64 {
    let objects = options.live / workload.mean_min();
    let utilization = f64::from(options.utilization) / 100.0;
    overhead.memory(objects, options.live, utilization)
}

/// Memory in which nothing needs to be cleaned.
fn ample(overhead: Overhead, workload: &Workload, live: u64) -> u64 {
    let bytes = workload.allocated(live) + live;
    overhead.memory(bytes / workload.mean_min(), bytes, 0.85)
}

/// Runs a workload: all contestants in turn, so many times.
fn rounds_of(
    program: &Program,
    options: &FragmentationOptions,
    overhead: Overhead,
    workload: &Workload,
    watch: Watch<'_>,
) -> Result<Vec<Rounds>, ExperimentError> {
    let memory = sized(overhead, workload, options);
    let ample = ample(overhead, workload, options.live);
    let mut all = vec![Rounds::default(); options.contenders.len()];
    for round in 1..=options.rounds {
        for (&who, of) in options.contenders.iter().zip(&mut all) {
            let name = format!("{}: {who}, round {round}", workload.name);
            let replayed = step(watch, name, || {
                replay(program, options, workload, who, memory)
            })?;
            let free = match who.kind.is_ours() && options.performance {
                false => None,
                true => {
                    let name = format!("{}: {who} without cleaning, round {round}", workload.name);
                    let free = step(watch, name, || {
                        replay(program, options, workload, who, ample)
                    })?;
                    Some(free.seconds)
                }
            };
            of.0.push(Round {
                ratios: Ratios::of(who.kind, &replayed),
                replayed,
                free,
            });
        }
    }
    Ok(all)
}

fn replay(
    program: &Program,
    options: &FragmentationOptions,
    workload: &Workload,
    who: Contender,
    memory: u64,
) -> Result<Replayed, ExperimentError> {
    let setup = Setup {
        cleaner_threads: options.cleaner_threads,
        ..Setup::new(who.kind, workload.objects_max(options.live), memory)
    };
    Process::start(program, who, &setup)?.replay(&ReplayPlan {
        stream: Plan::Phases(workload.phases(options.live)),
        threads: 1,
        seed: options.seed,
        memory: true,
        latencies: false,
    })
}

/// Memory over what is live; keys count where they are kept.
#[derive(Clone, Copy)]
struct Ratios {
    peak: f64,
    end: f64,
    deleted: f64,
}

impl Ratios {
    fn of(kind: Kind, replayed: &Replayed) -> Self {
        let key = if kind == Kind::Malloc { 0 } else { KEY };
        let live = |live: Live| (live.bytes + live.objects * key) as f64;
        let over = |mark: Option<&Mark>| {
            mark.map_or(f64::NAN, |mark| {
                mark.resident as f64 / live(mark.live).max(1.0)
            })
        };
        let most = replayed
            .marks
            .iter()
            .map(|mark| live(mark.live))
            .fold(1.0, f64::max);
        Self {
            peak: replayed.resident_peak as f64 / most,
            end: over(replayed.marks.last()),
            deleted: over(replayed.marks.iter().find(|mark| mark.name == "deleted")),
        }
    }
}

/// One round of one contestant.
#[derive(Clone)]
struct Round {
    ratios: Ratios,
    replayed: Replayed,
    /// Seconds that the same took with memory for everything.
    free: Option<f64>,
}

/// All rounds of one contestant.
#[derive(Clone, Default)]
struct Rounds(Vec<Round>);

impl Rounds {
    fn spread(&self, of: impl Fn(&Round) -> f64) -> Spread {
        let values: Vec<f64> = self.0.iter().map(of).collect();
        Spread::of(&values).unwrap_or_default()
    }

    fn median(&self, of: impl Fn(&Round) -> f64) -> f64 {
        self.spread(of).median
    }

    fn speed_over_no_cleaning(&self) -> Option<Spread> {
        let each = |round: &Round| Some(round.free? / round.replayed.seconds.max(1e-9));
        Spread::of(&self.0.iter().map_while(each).collect::<Vec<f64>>())
    }

    fn row(&self, workload: &Workload, who: Contender) -> Row {
        let per_second =
            |round: &Round| round.replayed.operations as f64 / round.replayed.seconds.max(1e-9);
        Row::new()
            .with("workload", workload.name)
            .with("contestant", who.to_string())
            .and(self.spread(|r| r.ratios.peak).cells("peak_over_live"))
            .and(self.spread(|r| r.ratios.end).cells("end_over_live"))
            .and(self.spread(|r| r.ratios.deleted).cells("deleted_over_live"))
            .with(
                "operations",
                self.0.first().map_or(0, |r| r.replayed.operations),
            )
            .and(self.spread(per_second).cells("ops_per_s"))
            .with(
                "refused",
                self.0.iter().map(|r| r.replayed.retries).sum::<u64>(),
            )
    }
}

/// Ours over the best of the others: less than 1 is less memory.
fn compare(experiment: &mut Experiment, workload: &str, best: Option<f64>) {
    let ours = Contender {
        kind: Kind::Pluvio,
        allocator: Allocator::Glibc,
    };
    let row = experiment
        .rows
        .iter()
        .find(|row| row.text("workload") == workload && row.text("contestant") == ours.to_string());
    if let (Some(peak), Some(best)) = (row.and_then(|row| row.number("peak_over_live")), best) {
        experiment.ratio(
            format!("{workload}: most memory pluvio / best other"),
            peak,
            best,
        );
    }
}
