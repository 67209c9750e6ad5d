//! Memory under changing sizes: resident bytes over live bytes ([LSM-DRAM fig. 1] and figure 11
//! there, [RAMCloud fig. 7], [Nibble fig. 14]).

use super::demand::Demand;
use super::{KEY, Watch, bars, check_utilization, step, turns};
use crate::contestant::{Allocator, Contender, Kind, Process, Program, Setup};
use crate::error::{ExperimentError, within};
use crate::experiment::{Experiment, Picture, Row, Spread};
use crate::run::{Mark, ReplayPlan, Replayed, SETTLED};
use crate::suite::Step;
use crate::workload::{DELETED, Live, Plan, Workload, workloads};
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
    /// Live objects in percent of our log, where the workload has most of them, with what must stay
    /// unused between them.
    pub utilization: u8,
    /// Cleaner threads of our store.
    pub cleaner_threads: u16,
    /// Whether to run our store for its speed too, and once more with memory for everything.
    pub performance: bool,
    /// How often, each time in new processes.
    pub rounds: usize,
    /// Seed of sizes and deletions.
    pub seed: u64,
}

/// Bytes of values that may live: at least one segment, and no more than a machine of today has.
const LIVE_MIN: Size = Size(8 << 20);
const LIVE_MAX: Size = Size(1 << 42);
/// Part of the memory that must be left for dead objects below the limit of the reserves. With
/// less, a workload ends, but hardly in a time that anybody would wait.
const DEAD_LEAST: f64 = 0.01;
/// Where nothing is to be cleaned, all that is ever written takes this part of the memory.
const AMPLE: f64 = 0.85;

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
    within("rounds", options.rounds, 1..=1000)?;
    let ours = options.contenders.iter().filter(|who| who.kind.is_ours());
    if ours.clone().count() > 0 {
        check_room(program, options, &chosen)?;
    }
    let timed = if options.performance { 2 } else { 0 };
    let runs = options.contenders.len() + timed * ours.count();
    watch(Step::Total((chosen.len() * options.rounds * runs) as u64));
    let parameters = Row::new()
        .with("live", options.live)
        .with("utilization_percent", options.utilization)
        .with("cleaner_threads", options.cleaner_threads)
        .with("rounds", options.rounds)
        .with("seed", options.seed);
    let mut experiment = Experiment::new("fragmentation", parameters);
    let groups: Vec<String> = chosen.iter().map(|w| w.name.to_owned()).collect();
    let panel = |title: &str, up| bars(title.into(), "", up, groups.clone());
    let mut peak = panel("most memory", "resident / most live");
    let mut end = panel("memory at the end", "resident / live");
    let mut settled = panel("a while after deleting", "resident / live");
    let mut second = panel("the second sizes", "most memory / that of the first");
    for (number, workload) in chosen.iter().enumerate() {
        let x = number as f64;
        let (mut best, mut best_settled) = (f64::NAN, f64::NAN);
        let rounds = rounds_of(program, options, workload, watch)?;
        for (&who, of) in options.contenders.iter().zip(&rounds) {
            let most = of.median(|round| round.ratios.peak);
            peak.point(&who.to_string(), x, most);
            end.point(&who.to_string(), x, of.median(|round| round.ratios.end));
            let after = of.median(|round| round.ratios.settled);
            settled.point(&who.to_string(), x, after);
            let growth = of.median(|round| round.ratios.second);
            second.point(&who.to_string(), x, growth);
            let mut row = of.row(workload, who);
            if who.kind.is_ours() {
                row.set("memory", sized(workload, options));
                row.set("utilization", of.median(|round| round.ratios.utilization));
                row.set("index_over_live", of.median(|round| round.ratios.index));
                row = of.parts(row);
            } else {
                (best, best_settled) = (best.min(most), best_settled.min(after));
            }
            if let Some(relative) = of.speed_over_no_cleaning() {
                row = row.and(relative.cells("speed_over_no_cleaning"));
                let name = format!("{} {who}: speed / no cleaning", workload.name);
                experiment.ratio(name, relative.median, 1.0);
            }
            experiment.rows.push(row);
        }
        compare(&mut experiment, workload.name, best, best_settled);
    }
    let picture = Picture {
        title: "Memory under changing sizes".into(),
        panels: vec![peak, end, settled, second],
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
fn sized(workload: &Workload, options: &FragmentationOptions) -> u64 {
    demand(workload, options.live).memory(f64::from(options.utilization) / 100.0)
}

/// The need of the workload's live objects where they need most.
fn demand(workload: &Workload, live: u64) -> Demand {
    let sizes = workload.sizes().into_iter();
    let demands = sizes.map(|sizes| Demand::of(live, sizes, workload.turns));
    let most = demands.max_by(|a, b| a.with_padding.total_cmp(&b.with_padding));
    most.expect("a workload has sizes")
}

/// Memory in which nothing needs to be cleaned.
fn ample(workload: &Workload, live: u64) -> u64 {
    let bytes = workload.allocated(live) + live;
    demand(workload, bytes).memory(AMPLE)
}

/// The reserves of a store of that memory leave room for what will live in it, and for a little
/// that is dead. A small memory has larger reserves for its size; how large is asked of a store,
/// which has touched none of it yet.
fn check_room(
    program: &Program,
    options: &FragmentationOptions,
    chosen: &[Workload],
) -> Result<(), ExperimentError> {
    for workload in chosen {
        let setup = setup(options, workload, Kind::Pluvio, sized(workload, options));
        let held = Process::start(program, ours(), &setup)?.holdings()?;
        let memory = held.log_memory as f64;
        let most = held.live_log_max as f64 - DEAD_LEAST * memory;
        if demand(workload, options.live).with_padding > most {
            let live = Size(options.live);
            return Err(ExperimentError::OutOfRange {
                option: "utilization",
                value: format!(
                    "{} with --live {live} in {}",
                    options.utilization, workload.name
                ),
                first: "1".into(),
                last: format!("{:.0}", (most / memory * 100.0).floor()),
            });
        }
    }
    Ok(())
}

fn setup(options: &FragmentationOptions, workload: &Workload, kind: Kind, memory: u64) -> Setup {
    Setup {
        // One thread writes: each other head would keep a segment open.
        heads: Some(1),
        cleaner_threads: options.cleaner_threads,
        ..Setup::new(kind, workload.objects_max(options.live), memory)
    }
}

/// Runs a workload for `rounds` rounds: all contestants in turn.
fn rounds_of(
    program: &Program,
    options: &FragmentationOptions,
    workload: &Workload,
    watch: Watch<'_>,
) -> Result<Vec<Rounds>, ExperimentError> {
    let memory = sized(workload, options);
    let ample = ample(workload, options.live);
    let mut all = vec![Rounds::default(); options.contenders.len()];
    for round in 0..options.rounds {
        for at in turns(round, options.contenders.len()) {
            let who = options.contenders[at];
            let run = |how: &str, memory, purpose| {
                let name = format!("{}: {who}{how}, round {}", workload.name, round + 1);
                step(watch, name, || {
                    replay(program, options, workload, who, memory, purpose)
                })
            };
            let replayed = run("", memory, Purpose::Memory)?;
            let speed = match who.kind.is_ours() && options.performance {
                false => None,
                true => {
                    let cleaned = run(" for its speed", memory, Purpose::Speed)?;
                    let free = run(" without cleaning", ample, Purpose::Speed)?;
                    Some(free.seconds / cleaned.seconds.max(1e-9))
                }
            };
            all[at].0.push(Round {
                ratios: Ratios::of(who.kind, &replayed),
                replayed,
                speed,
            });
        }
    }
    Ok(all)
}

/// What a run is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Looks at memory, and time to give it back.
    Memory,
    /// Nothing but the operations, in memory that was fetched before: that takes both sides time
    /// otherwise, but the one with more memory more of it.
    Speed,
}

fn replay(
    program: &Program,
    options: &FragmentationOptions,
    workload: &Workload,
    who: Contender,
    memory: u64,
    purpose: Purpose,
) -> Result<Replayed, ExperimentError> {
    let looks = purpose == Purpose::Memory;
    let setup = Setup {
        populate: purpose == Purpose::Speed,
        ..setup(options, workload, who.kind, memory)
    };
    Process::start(program, who, &setup)?.replay(&ReplayPlan {
        stream: Plan::Phases(workload.phases(options.live)),
        threads: 1,
        seed: options.seed,
        memory: looks,
        settle: looks && workload.deleted.is_some_and(|percent| percent > 0),
        latencies: false,
    })
}

/// Memory over what is live, values and keys; keys count where they are kept.
#[derive(Clone, Copy)]
struct Ratios {
    /// The most over the most that is live.
    peak: f64,
    end: f64,
    /// At once after the deletions.
    deleted: f64,
    /// When memory had been given back.
    settled: f64,
    /// The most with the second sizes over the most with the first ones.
    second: f64,
    /// Our entries over our log, where they are most.
    utilization: f64,
    /// Our index over what is live, at the end.
    index: f64,
    /// The parts of our memory when it has settled.
    parts: Parts,
}

/// The parts of our memory, over the live bytes. Their sum is all of it.
#[derive(Clone, Copy, Default)]
struct Parts {
    /// Live entries, with their headers.
    entries: f64,
    /// The part of the log in use beside them: dead entries, padding, ends of segments.
    dead: f64,
    /// Free parts of the log that were touched: those kept for the next writes, and reserves.
    free: f64,
    index: f64,
    /// Tables, stacks, the heap of the process.
    rest: f64,
}

impl Parts {
    fn of(mark: &Mark, live: f64) -> Self {
        let held = mark.held;
        let over = |bytes: u64| bytes as f64 / live.max(1.0);
        Self {
            entries: over(held.live_log),
            dead: over(held.log_in_use.saturating_sub(held.live_log)),
            free: over(held.log_resident.saturating_sub(held.log_in_use)),
            index: over(held.index),
            rest: (mark.resident as f64 - (held.log_resident + held.index) as f64) / live.max(1.0),
        }
    }
}

impl Ratios {
    fn of(kind: Kind, replayed: &Replayed) -> Self {
        let marks = &replayed.marks;
        let key = if kind == Kind::Malloc { 0 } else { KEY };
        let live = |live: Live| (live.bytes + live.objects * key) as f64;
        let over = |mark: Option<&Mark>, bytes: &dyn Fn(&Mark) -> u64| {
            mark.map_or(f64::NAN, |mark| {
                bytes(mark) as f64 / live(mark.live).max(1.0)
            })
        };
        let named = |name| marks.iter().find(|mark| mark.name == name);
        let resident = |mark: &Mark| mark.resident;
        let most = marks.iter().map(|mark| live(mark.live)).fold(1.0, f64::max);
        let used = marks.iter().map(|mark| {
            let held = mark.held;
            held.live_log as f64 / held.log_memory.max(1) as f64
        });
        Self {
            peak: replayed.resident_peak as f64 / most,
            end: over(marks.last(), &resident),
            deleted: over(named(DELETED), &resident),
            settled: over(named(SETTLED), &resident),
            second: second_over_first(marks),
            utilization: used.fold(0.0, f64::max),
            index: over(marks.last(), &|mark| mark.held.index),
            parts: named(SETTLED).map_or(Parts::default(), |mark| Parts::of(mark, live(mark.live))),
        }
    }
}

/// The most memory after the deletions over the most before them; NaN where the sizes do not
/// change.
fn second_over_first(marks: &[Mark]) -> f64 {
    let Some(at) = marks.iter().position(|mark| mark.name == DELETED) else {
        return f64::NAN;
    };
    let most = |marks: &mut dyn Iterator<Item = &Mark>| marks.map(|mark| mark.peak).max();
    let first = most(&mut marks[..=at].iter());
    // While memory is given back the objects of the first sizes are still there.
    let second = most(&mut marks[at + 1..].iter().filter(|mark| mark.name != SETTLED));
    match (first, second) {
        (Some(first), Some(second)) => second as f64 / first.max(1) as f64,
        (_, _) => f64::NAN,
    }
}

/// One round of one contestant.
#[derive(Clone)]
struct Round {
    ratios: Ratios,
    replayed: Replayed,
    /// Speed over that of the same with memory for everything.
    speed: Option<f64>,
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

    /// The row with what our memory was made of, if it was given time to settle.
    fn parts(&self, mut row: Row) -> Row {
        if self.median(|round| round.ratios.settled).is_nan() {
            return row;
        }
        let mut cell = |name, of: &dyn Fn(Parts) -> f64| {
            row.set(name, self.median(|round| of(round.ratios.parts)));
        };
        cell("settled_entries", &|parts| parts.entries);
        cell("settled_dead", &|parts| parts.dead);
        cell("settled_free", &|parts| parts.free);
        cell("settled_index", &|parts| parts.index);
        cell("settled_rest", &|parts| parts.rest);
        row
    }

    fn speed_over_no_cleaning(&self) -> Option<Spread> {
        let each = self.0.iter().map_while(|round| round.speed);
        Spread::of(&each.collect::<Vec<f64>>())
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
            .and(self.spread(|r| r.ratios.settled).cells("settled_over_live"))
            .and(self.spread(|r| r.ratios.second).cells("second_over_first"))
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

fn ours() -> Contender {
    Contender {
        kind: Kind::Pluvio,
        allocator: Allocator::Glibc,
    }
}

/// Ours over the best of the others: less than 1 is less memory.
fn compare(experiment: &mut Experiment, workload: &str, best: f64, best_settled: f64) {
    let ours = ours().to_string();
    let mut rows = experiment.rows.iter();
    let row = rows.find(|row| row.text("workload") == workload && row.text("contestant") == ours);
    let cell = |name: &str| row.and_then(|row| row.number(name)).unwrap_or(f64::NAN);
    let ratios = [
        ("most memory", cell("peak_over_live"), best),
        (
            "a while after deleting",
            cell("settled_over_live"),
            best_settled,
        ),
    ];
    let growth = cell("second_over_first");
    for (name, ours, best) in ratios {
        let name = format!("{workload}: {name}, pluvio / best other");
        experiment.ratio(name, ours, best);
    }
    let name = format!("{workload} pluvio: most memory with the second sizes / the first");
    experiment.ratio(name, growth, 1.0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestant::Holdings;

    fn mark(name: &str, resident: u64, peak: u64, objects: u64, live_log: u64) -> Mark {
        Mark {
            name: name.into(),
            live: Live {
                objects,
                bytes: objects * 100,
            },
            resident,
            peak,
            held: Holdings {
                live_log,
                log_memory: 2000,
                index: objects * 11,
                ..Holdings::default()
            },
        }
    }

    #[test]
    fn parts_add_up_to_what_is_resident() {
        let mut settled = mark(SETTLED, 300, 300, 1, 120);
        (settled.held.log_in_use, settled.held.log_resident) = (150, 190);
        let parts = Parts::of(&settled, 100.0);
        let Parts {
            entries,
            dead,
            free,
            index,
            rest,
        } = parts;
        let found = [entries, dead, free, index, rest].map(|part| (part * 100.0).round());
        assert_eq!(found, [120.0, 30.0, 40.0, 11.0, 99.0]);
    }

    #[test]
    fn ratios_are_of_values_and_keys_and_of_their_moment() {
        let replayed = Replayed {
            resident_peak: 1620,
            marks: vec![
                mark("allocated", 1500, 1620, 10, 1800),
                mark(DELETED, 1500, 1550, 1, 180),
                mark(SETTLED, 162, 1500, 1, 180),
                mark("allocated", 1512, 1539, 10, 1790),
                mark("end", 1512, 1512, 10, 1790),
            ],
            ..Replayed::default()
        };
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        let ratios = Ratios::of(Kind::Pluvio, &replayed);
        near(ratios.peak, 1620.0 / 1080.0);
        near(ratios.end, 1.4);
        near(ratios.deleted, 1500.0 / 108.0);
        near(ratios.settled, 1.5);
        near(ratios.second, 0.95);
        near(ratios.utilization, 0.9);
        near(ratios.index, 110.0 / 1080.0);
        // An array holds no keys.
        near(Ratios::of(Kind::Malloc, &replayed).peak, 1.62);
        // One phase: nothing was deleted, and nothing changed.
        let one = Replayed {
            marks: replayed.marks[..1].to_vec(),
            ..replayed
        };
        let ratios = Ratios::of(Kind::Pluvio, &one);
        assert!(ratios.settled.is_nan() && ratios.second.is_nan());
    }

    #[test]
    fn memory_is_for_the_larger_of_both_demands() {
        let options = FragmentationOptions {
            contenders: vec![ours()],
            workloads: Vec::new(),
            live: 80 << 20,
            utilization: 90,
            cleaner_threads: 1,
            performance: false,
            rounds: 1,
            seed: 1,
        };
        for workload in workloads() {
            let memory = sized(&workload, &options) as f64;
            for sizes in [workload.before, workload.after] {
                let needed = Demand::of(options.live, sizes, workload.turns).with_padding;
                assert!(needed / memory < 0.9001, "{}", workload.name);
            }
            assert!(
                ample(&workload, options.live) as f64 > memory,
                "{}",
                workload.name
            );
        }
    }
}
