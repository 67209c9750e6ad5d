//! Throughput of stores inside a process: threads, value sizes, mixes, distributions, batches, and
//! how full our log is [Nibble fig. 18-20].

use super::{
    KEY, Overhead, Rounds, UTILIZATION_MAX, Watch, bars, check_utilization, check_value_size, step,
    turns,
};
use crate::contestant::{Contender, Holdings, Kind, Process, Program, Setup};
use crate::error::{ExperimentError, within};
use crate::experiment::{Experiment, Picture, Row, Spread};
use crate::run::{BATCH_MAX, KEYS_MAX, LoadPlan, RunPlan, THREADS_MAX};
use crate::suite::Step;
use crate::workload::Distribution;
use serde_json::Value;

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
    /// Whether writes are made in such batches, too.
    pub batch_puts: bool,
    /// Keys.
    pub objects: u64,
    /// Live objects in percent of our log: a store of ours for each.
    pub utilizations: Vec<u8>,
    /// How long, and how often.
    pub rounds: Rounds,
    /// Cleaner threads of our store.
    pub cleaner_threads: u16,
    /// Heads of our store.
    pub heads: Option<u16>,
}

/// A contestant, and how full it is if it is ours.
type Entrant = (Contender, Option<u8>);

/// One combination.
#[derive(Clone, PartialEq, Debug)]
struct Case {
    threads: usize,
    get_percent: u8,
    distribution: Distribution,
    batch: usize,
    put_batch: usize,
}

impl StoreOptions {
    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &distribution in &self.distributions {
            for &get_percent in &self.get_percents {
                for &threads in &self.threads {
                    // Where there is nothing to do in batches there is one case.
                    let puts_too = self.batch_puts && get_percent < 100;
                    let batches = match get_percent > 0 || puts_too {
                        true => self.batches.as_slice(),
                        false => &[1][..],
                    };
                    cases.extend(batches.iter().map(|&batch| Case {
                        threads,
                        get_percent,
                        distribution,
                        batch,
                        put_batch: match puts_too {
                            true => batch,
                            false => 1,
                        },
                    }));
                }
            }
        }
        cases
    }

    /// Each of our stores once for each utilization, the others once.
    fn entrants(&self) -> Vec<Entrant> {
        let mut all = Vec::new();
        for &who in &self.contenders {
            match who.kind.is_ours() {
                true => all.extend(
                    self.utilizations
                        .iter()
                        .map(|&percent| (who, Some(percent))),
                ),
                false => all.push((who, None)),
            }
        }
        all
    }

    /// With its utilization where there are several.
    fn called(&self, (who, percent): Entrant) -> String {
        match percent.filter(|_| self.utilizations.len() > 1) {
            Some(percent) => format!("{who} {percent} %"),
            None => who.to_string(),
        }
    }

    fn parameters(&self) -> Row {
        let usual = || Value::from("one for each processor");
        Row::new()
            .with("objects", self.objects)
            .with("batch_puts", self.batch_puts)
            .with("heads", self.heads.map_or_else(usual, Value::from))
            .with("cleaner_threads", self.cleaner_threads)
            .and(self.rounds.cells())
    }

    fn plan(&self, case: &Case, value_size: usize, round: usize) -> RunPlan {
        RunPlan {
            lead_in: RunPlan::usual_lead_in(self.rounds.seconds, case.get_percent),
            seconds: self.rounds.seconds,
            puts_min: 0,
            threads: case.threads,
            objects: self.objects,
            value_size,
            get_percent: case.get_percent,
            distribution: case.distribution.name(),
            batch: case.batch,
            put_batch: case.put_batch,
            seed: self.rounds.seed + round as u64,
            latencies: false,
            inserts: false,
            measured: true,
        }
    }
}

impl Case {
    /// Whether both are of the same mix: then they take their rounds in turn, as what differs,
    /// threads and batches, is compared. Among other mixes one would find the memory as the other
    /// leaves it.
    fn is_beside(&self, other: &Self) -> bool {
        self.get_percent == other.get_percent && self.distribution == other.distribution
    }

    fn name(&self, value_size: usize) -> String {
        let verb = match self.get_percent {
            100 => "get".into(),
            0 => "put".into(),
            percent => format!("{percent} % get"),
        };
        let batch = match (self.batch, self.get_percent, self.put_batch) {
            (1, _, _) => String::new(),
            (n, 1..=99, 2..) => format!(" in batches of {n}, puts too"),
            (n, _, _) => format!(" in batches of {n}"),
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
    for &percent in &options.utilizations {
        check_utilization(percent)?;
    }
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
    let (cases, entrants) = (options.cases(), options.entrants());
    let each = entrants.len() * (1 + cases.len() * (options.rounds.rounds + 1));
    watch(Step::Total((each * options.value_sizes.len()) as u64));
    let mut experiment = Experiment::new("store", options.parameters());
    // Of each row.
    let mut all_rates = Vec::new();
    let mut panels = Vec::new();
    for &value_size in &options.value_sizes {
        let mut processes = Vec::new();
        for &entrant in &entrants {
            let name = format!("{} loads", options.called(entrant));
            processes.push(step(watch, name, || {
                start(program, options, entrant, overhead, value_size)
            })?);
        }
        let mut panel = bars(
            format!("{value_size} B"),
            "",
            "operations/s",
            cases.iter().map(short_name).collect(),
        );
        let mut measured = Vec::new();
        for group in cases.chunk_by(Case::is_beside) {
            measured.extend(rounds(&mut processes, options, group, value_size, watch)?);
        }
        for (number, (case, measured)) in cases.iter().zip(&measured).enumerate() {
            for (measured, &entrant) in measured.iter().zip(&entrants) {
                let spread = Spread::of(&measured.rates).unwrap_or_default();
                panel.point(&options.called(entrant), number as f64, spread.median);
                let row = row(measured.held, options, entrant, case, value_size, spread);
                experiment.rows.push(row);
                all_rates.push(measured.rates.clone());
            }
            let rates: Vec<&[f64]> = measured.iter().map(|one| one.rates.as_slice()).collect();
            for &percent in &options.utilizations {
                let name = match options.utilizations.len() {
                    1 => case.name(value_size),
                    _ => format!("{}, {percent} % full", case.name(value_size)),
                };
                compare(&mut experiment, &entrants, &rates, percent, &name);
            }
        }
        panels.push(panel);
    }
    scaling(&mut experiment, &all_rates);
    let picture = Picture {
        title: "Stores inside a process".into(),
        panels,
    };
    Ok((experiment, picture))
}

/// Starts and fills one that takes part. Those that are no log of ours get as much memory as our
/// fullest.
fn start(
    program: &Program,
    options: &StoreOptions,
    (who, percent): Entrant,
    overhead: Overhead,
    value_size: usize,
) -> Result<Process, ExperimentError> {
    let percent = percent.or(options.utilizations.iter().copied().max());
    let bytes = options.objects * value_size as u64;
    let utilization = f64::from(percent.unwrap_or(UTILIZATION_MAX)) / 100.0;
    let setup = Setup {
        heads: options.heads,
        cleaner_threads: options.cleaner_threads,
        ..Setup::new(
            who.kind,
            options.objects,
            overhead.memory(who.kind, options.objects, bytes, utilization),
        )
    };
    let mut process = Process::start(program, who, &setup)?;
    process.load(&LoadPlan {
        objects: options.objects,
        until: None,
        value_size,
        seed: options.rounds.seed,
    })?;
    Ok(process)
}

/// The measurements of one entrant in one case.
#[derive(Clone, Default)]
struct Measured {
    /// Operations a second, by round.
    rates: Vec<f64>,
    /// What it held after the last round.
    held: Holdings,
}

/// All rounds of some cases on the same objects: in each round all cases, in each case all
/// entrants, in turn. Gives them by case and by entrant. The first round, which only warms up, is
/// left out.
fn rounds(
    processes: &mut [Process],
    options: &StoreOptions,
    cases: &[Case],
    value_size: usize,
    watch: Watch<'_>,
) -> Result<Vec<Vec<Measured>>, ExperimentError> {
    let mut all = vec![vec![Measured::default(); processes.len()]; cases.len()];
    for round in 0..=options.rounds.rounds {
        for (case, measured) in cases.iter().zip(&mut all) {
            for at in turns(round, processes.len()) {
                let process = &mut processes[at];
                let name = format!("{}: {}", process.who(), case.name(value_size));
                let plan = options.plan(case, value_size, round);
                let ran = step(watch, name, || process.run(&plan))?;
                if ran.misses > 0 {
                    return Err(ExperimentError::Contestant {
                        contestant: process.who().to_string(),
                        problem: format!("did not find {} keys that it was given", ran.misses),
                    });
                }
                measured[at].held = ran.after;
                if round > 0 {
                    measured[at].rates.push(ran.per_second);
                }
            }
        }
    }
    Ok(all)
}

fn row(
    holdings: Holdings,
    options: &StoreOptions,
    (who, percent): Entrant,
    case: &Case,
    value_size: usize,
    rate: Spread,
) -> Row {
    let live = options.objects * (value_size as u64 + KEY);
    let mut row = Row::new()
        .with("contestant", who.to_string())
        .with("utilization_percent", percent)
        .with("value_size", value_size)
        .with("threads", case.threads)
        .with("get_percent", case.get_percent)
        .with("distribution", case.distribution.name())
        .with("batch", case.batch)
        .with("put_batch", case.put_batch)
        .and(rate.cells("ops_per_s"))
        .with("resident_over_live", holdings.resident as f64 / live as f64);
    if percent.is_some() {
        let used = holdings.live_log as f64 / holdings.log_memory.max(1) as f64;
        row.set("utilization", used);
        row.set("entry_header_bytes", holdings.entry_header_bytes());
        row.set("index_bytes_per_key", holdings.index_bytes_per_key());
    }
    row
}

/// Ours of one utilization over the best of the others; in place over those in place, and over
/// those with boxed values. The best is the one with the best median: the best of each round would
/// be better than any of them is.
fn compare(
    experiment: &mut Experiment,
    entrants: &[Entrant],
    rates: &[&[f64]],
    utilization: u8,
    case: &str,
) {
    let median = |rates: &[f64]| Spread::of(rates).unwrap_or_default().median;
    let best = |of: &dyn Fn(Kind) -> bool| {
        let those = entrants.iter().zip(rates).filter(|((who, percent), _)| {
            of(who.kind) && percent.is_none_or(|percent| percent == utilization)
        });
        those
            .map(|(_, rates)| *rates)
            .max_by(|a, b| median(a).total_cmp(&median(b)))
            .unwrap_or_default()
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
    if !ours.is_empty() {
        let name = format!("{case}: pluvio / best boxed map");
        experiment.ratio_by_round(name, ours, best(&is_boxed));
        experiment.ratio_by_round(format!("{case}: pluvio / slab-lru"), ours, slab);
    }
    if !in_place.is_empty() {
        let name = format!("{case}: pluvio-in-place / best boxed map");
        experiment.ratio_by_round(name, in_place, best(&is_boxed));
        let name = format!("{case}: pluvio-in-place / dashmap-in-place");
        experiment.ratio_by_round(name, in_place, best(&|kind| kind == Kind::DashmapInPlace));
        let name = format!("{case}: pluvio-in-place / slab-lru");
        experiment.ratio_by_round(name, in_place, slab);
    }
}

/// Our rows over our rows: two threads over one, batches over none, full logs over the emptiest.
/// `rates` has the rounds of each row.
fn scaling(experiment: &mut Experiment, rates: &[Vec<f64>]) {
    let rows = experiment.rows.iter().cloned().zip(rates);
    let ours: Vec<(Row, &Vec<f64>)> = rows
        .filter(|(row, _)| row.text("contestant").starts_with("pluvio"))
        .collect();
    let same = |a: &Row, b: &Row, but: &str| {
        let fields = [
            "contestant",
            "utilization_percent",
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
    let emptiest = ours
        .iter()
        .filter_map(|(row, _)| row.number("utilization_percent"))
        .fold(f64::INFINITY, f64::min);
    for (field, from) in [
        ("threads", 1.0),
        ("batch", 1.0),
        ("utilization_percent", emptiest),
    ] {
        for (a, rates) in &ours {
            let base = ours
                .iter()
                .find(|(b, _)| b.number(field) == Some(from) && same(a, b, field));
            if let Some((_, base)) = base
                && a.number(field) != Some(from)
            {
                let name = format!(
                    "{}, {} % full, {} B, {} % get, {}, {} threads, batch {}: over {field} {from}",
                    a.text("contestant"),
                    a.text("utilization_percent"),
                    a.text("value_size"),
                    a.text("get_percent"),
                    a.text("distribution"),
                    a.text("threads"),
                    a.text("batch"),
                );
                experiment.ratio_by_round(name, rates, base);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestant::Allocator;

    fn options(utilizations: &[u8]) -> StoreOptions {
        let on_glibc = |kind| Contender {
            kind,
            allocator: Allocator::Glibc,
        };
        StoreOptions {
            contenders: vec![on_glibc(Kind::Pluvio), on_glibc(Kind::Dashmap)],
            threads: vec![1],
            value_sizes: vec![100],
            get_percents: vec![0],
            distributions: vec![Distribution::Uniform],
            batches: vec![1],
            batch_puts: false,
            objects: 1000,
            utilizations: utilizations.to_vec(),
            rounds: Rounds {
                seconds: 1.0,
                rounds: 1,
                seed: 1,
            },
            cleaner_threads: 1,
            heads: None,
        }
    }

    #[test]
    fn our_store_takes_part_once_for_each_utilization() {
        let options = options(&[50, 90]);
        let entrants = options.entrants();
        let names: Vec<String> = entrants.iter().map(|&one| options.called(one)).collect();
        assert_eq!(names, ["pluvio 50 %", "pluvio 90 %", "dashmap@glibc"]);
        let mut experiment = Experiment::new("store", Row::new());
        let rates: [&[f64]; 3] = [&[6.0], &[3.0], &[4.0]];
        for percent in [50, 90] {
            compare(
                &mut experiment,
                &entrants,
                &rates,
                percent,
                &percent.to_string(),
            );
        }
        assert_eq!(experiment.ratios["50: pluvio / best boxed map"], 1.5);
        assert_eq!(experiment.ratios["90: pluvio / best boxed map"], 0.75);
    }

    #[test]
    fn the_best_is_the_one_with_the_best_median() {
        let on_glibc = |kind| {
            (
                Contender {
                    kind,
                    allocator: Allocator::Glibc,
                },
                None,
            )
        };
        let entrants = [
            on_glibc(Kind::Pluvio),
            on_glibc(Kind::Papaya),
            on_glibc(Kind::Scc),
        ];
        let mut experiment = Experiment::new("store", Row::new());
        let rates: [&[f64]; 3] = [&[6.0, 6.0, 8.0], &[3.0, 4.0, 4.0], &[9.0, 1.0, 1.0]];
        compare(&mut experiment, &entrants, &rates, 50, "put");
        let spread = experiment.ratio_spreads["put: pluvio / best boxed map"];
        assert_eq!((spread.median, spread.min, spread.max), (2.0, 1.5, 2.0));
    }

    #[test]
    fn threads_and_batches_of_a_mix_take_their_rounds_in_turn() {
        let options = StoreOptions {
            threads: vec![1, 2],
            get_percents: vec![100, 50, 0],
            batches: vec![1, 16],
            ..options(&[50])
        };
        let cases = options.cases();
        let groups: Vec<usize> = cases.chunk_by(Case::is_beside).map(<[Case]>::len).collect();
        assert_eq!(groups, [4, 4, 2]);
        assert!(cases.iter().all(|case| case.put_batch == 1));
        let with_puts = StoreOptions {
            batch_puts: true,
            ..options
        };
        let cases = with_puts.cases();
        let groups: Vec<usize> = cases.chunk_by(Case::is_beside).map(<[Case]>::len).collect();
        assert_eq!(groups, [4, 4, 4]);
        let sizes = |case: &Case| (case.get_percent, case.batch, case.put_batch);
        let of_one_thread = cases.iter().filter(|case| case.threads == 1).map(sizes);
        assert_eq!(
            of_one_thread.collect::<Vec<_>>(),
            [
                (100, 1, 1),
                (100, 16, 1),
                (50, 1, 1),
                (50, 16, 16),
                (0, 1, 1),
                (0, 16, 16)
            ]
        );
        let name = "50 % get in batches of 16, puts too, 100 B, uniform, 1 threads";
        assert_eq!(cases[5].name(100), name);
    }

    #[test]
    fn full_logs_are_compared_with_the_emptiest() {
        let row = |percent: u8| {
            Row::new()
                .with("contestant", "pluvio")
                .with("utilization_percent", percent)
                .with("value_size", 100)
                .with("threads", 2)
                .with("get_percent", 0)
                .with("distribution", "uniform")
                .with("batch", 1)
        };
        let mut experiment = Experiment::new("store", Row::new());
        experiment.rows = vec![row(90), row(50)];
        scaling(&mut experiment, &[vec![3.0], vec![6.0]]);
        let ratios: Vec<_> = experiment.ratios.iter().collect();
        let name = "pluvio, 90 % full, 100 B, 0 % get, uniform, 2 threads, batch 1: over utilization_percent 50";
        assert_eq!(ratios, [(&name.to_owned(), &0.5)]);
    }
}
