//! Streams of operations to their end: trace files, production profiles, Postmark [Nibble fig.
//! 15-17]. They are swept by threads, by the use of our log, and by the size of its segments.

use super::{KEY, Overhead, Rounds, Watch, bars, check_utilization, lines, step, turns};
use crate::contestant::{Contender, Kind, Process, Program, Setup};
use crate::error::{ExperimentError, within};
use crate::experiment::{Experiment, Panel, Picture, Row, Spread};
use crate::run::{Mark, ReplayPlan, Replayed, THREADS_MAX};
use crate::suite::Step;
use crate::workload::{Census, Plan, Use};
use pluvio_units::Size;

/// What to measure. Lists give a row for each combination.
#[derive(Clone, PartialEq, Debug)]
pub struct StreamOptions {
    /// What the experiment is called.
    pub name: String,
    /// The parameters of the stream, for the report.
    pub parameters: Row,
    /// The stream.
    pub plan: Plan,
    /// Whether the report tells what the stream consists of.
    pub census: bool,
    /// Who takes part.
    pub contenders: Vec<Contender>,
    /// Threads.
    pub threads: Vec<usize>,
    /// Whether each thread has objects of its own: then the volume is that of one thread.
    pub own_objects: bool,
    /// What is live at most.
    pub volume: Volume,
    /// Live objects in percent of our log, where there are most: a store of ours for each.
    pub utilizations: Vec<u8>,
    /// Bytes of a segment of our log: a store of ours for each. Without any, what fits the memory.
    pub segments: Vec<u64>,
    /// Cleaner threads of our store.
    pub cleaner_threads: u16,
    /// Whether our store's memory is fetched before the stream begins.
    pub populate: bool,
    /// How often, each time in new processes; streams end when they are through, whatever the
    /// seconds.
    pub rounds: Rounds,
}

/// Most that is live at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Volume {
    /// Objects.
    pub objects: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// The same where values are overwritten in place: each keeps the room of its largest.
    pub bytes_in_place: u64,
}

/// A contestant; how full it is, and its segments, if it is ours.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Entrant {
    who: Contender,
    utilization: Option<u8>,
    segment: Option<u64>,
}

/// The rounds of an entrant with a number of threads.
struct Seen {
    entrant: Entrant,
    threads: usize,
    memory: u64,
    replays: Vec<Replayed>,
}

impl Seen {
    fn spread(&self, of: impl Fn(&Replayed) -> f64) -> Spread {
        let all: Vec<f64> = self.replays.iter().map(of).collect();
        Spread::of(&all).unwrap_or_default()
    }

    fn rates(&self) -> Vec<f64> {
        let replays = self.replays.iter();
        let rate = |replay: &Replayed| replay.operations as f64 / replay.seconds.max(1e-9);
        replays.map(rate).collect()
    }
}

impl StreamOptions {
    /// Others than our stores take part once.
    fn entrants(&self) -> Vec<Entrant> {
        let segments: Vec<Option<u64>> = match self.segments.is_empty() {
            true => vec![None],
            false => self.segments.iter().copied().map(Some).collect(),
        };
        let mut all = Vec::new();
        for &who in &self.contenders {
            if !who.kind.is_ours() {
                all.push(Entrant {
                    who,
                    utilization: None,
                    segment: None,
                });
                continue;
            }
            for &percent in &self.utilizations {
                all.extend(segments.iter().map(|&segment| Entrant {
                    who,
                    utilization: Some(percent),
                    segment,
                }));
            }
        }
        all
    }

    fn volume(&self, threads: usize) -> Volume {
        let times = match self.own_objects {
            true => threads as u64,
            false => 1,
        };
        let Volume {
            objects,
            bytes,
            bytes_in_place,
        } = self.volume;
        Volume {
            objects: objects * times,
            bytes: bytes * times,
            bytes_in_place: bytes_in_place * times,
        }
    }

    /// Others get what the emptiest store of ours has.
    fn memory(&self, overhead: Overhead, volume: Volume, entrant: Entrant) -> u64 {
        let kind = entrant.who.kind;
        let least = self.utilizations.iter().copied().min().unwrap_or(100);
        let percent = entrant.utilization.unwrap_or(least);
        let bytes = match kind == Kind::PluvioInPlace {
            true => volume.bytes_in_place,
            false => volume.bytes,
        };
        overhead.memory(kind, volume.objects, bytes, f64::from(percent) / 100.0)
    }

    /// With its utilization and its segments where there are several.
    fn called(&self, entrant: Entrant) -> String {
        let mut name = entrant.who.to_string();
        if let Some(percent) = entrant.utilization.filter(|_| self.utilizations.len() > 1) {
            name += &format!(" {percent} %");
        }
        if let Some(bytes) = entrant.segment.filter(|_| self.segments.len() > 1) {
            name += &format!(" {}", Size(bytes));
        }
        name
    }
}

/// Runs the experiment.
///
/// # Errors
/// A contestant cannot take part or failed, a trace cannot be read, or the parameters make no
/// sense.
pub fn stream(
    program: &Program,
    options: &StreamOptions,
    watch: Watch<'_>,
) -> Result<(Experiment, Picture), ExperimentError> {
    options.rounds.check()?;
    for &percent in &options.utilizations {
        check_utilization(percent)?;
    }
    for &threads in &options.threads {
        within("threads", threads, 1..=THREADS_MAX)?;
    }
    let entrants = options.entrants();
    let each = entrants.len() * options.rounds.rounds;
    watch(Step::Total((options.threads.len() * each) as u64));
    let seed = options.rounds.seed;
    let census = match options.census {
        true => Some(Census::of(&options.plan, seed)?),
        false => None,
    };
    let overhead = Overhead::measure(program)?;
    let mut all = Vec::new();
    for &threads in &options.threads {
        let volume = options.volume(threads);
        let mut seen: Vec<Seen> = entrants
            .iter()
            .map(|&entrant| Seen {
                entrant,
                threads,
                memory: options.memory(overhead, volume, entrant),
                replays: Vec::new(),
            })
            .collect();
        for round in 0..options.rounds.rounds {
            for at in turns(round, seen.len()) {
                let one = &mut seen[at];
                let name = options.called(one.entrant);
                let name = format!("{name}, {threads} threads, round {}", round + 1);
                let replay = step(watch, name, || replay(program, options, volume, one));
                one.replays.push(replay?);
            }
        }
        all.extend(seen);
    }
    Ok(report(options, census.as_ref(), &all))
}

/// One round of an entrant, in a new process.
fn replay(
    program: &Program,
    options: &StreamOptions,
    volume: Volume,
    seen: &Seen,
) -> Result<Replayed, ExperimentError> {
    let Entrant { who, segment, .. } = seen.entrant;
    let setup = Setup {
        cleaner_threads: options.cleaner_threads,
        populate: options.populate,
        segment,
        ..Setup::new(who.kind, volume.objects, seen.memory)
    };
    Process::start(program, who, &setup)?.replay(&ReplayPlan {
        stream: options.plan.clone(),
        threads: seen.threads,
        seed: options.rounds.seed,
        memory: false,
        settle: false,
        latencies: true,
    })
}

fn report(options: &StreamOptions, census: Option<&Census>, all: &[Seen]) -> (Experiment, Picture) {
    let mut parameters = options
        .parameters
        .clone()
        .with("cleaner_threads", options.cleaner_threads)
        .with("populate", options.populate)
        .with("rounds", options.rounds.rounds)
        .with("seed", options.rounds.seed);
    if let Some(census) = census {
        for of in Use::ALL {
            let percent = (census.percent(of) * 10.0).round() / 10.0;
            parameters.set(&format!("{}_percent", of.name()), percent);
        }
        parameters.set("uses_of_most_objects", census.uses_of_most());
    }
    let mut experiment = Experiment::new(&options.name, parameters);
    experiment.rows = all.iter().map(row).collect();
    let mut panels = Vec::new();
    for &threads in &options.threads {
        let seen: Vec<&Seen> = all.iter().filter(|one| one.threads == threads).collect();
        let names = seen.iter().map(|one| options.called(one.entrant));
        let title = format!("throughput, {threads} threads");
        let mut panel = bars(title, "", "operations/s", names.collect());
        for (number, one) in seen.iter().enumerate() {
            let rate = Spread::of(&one.rates()).unwrap_or_default();
            panel.point("operations/s", number as f64, rate.median);
        }
        panels.push(panel);
        let prefix = match options.threads.len() {
            1 => String::new(),
            _ => format!("{threads} threads, "),
        };
        compare(&mut experiment, options, &seen, &prefix);
    }
    panels.extend(sweeps(options, all));
    panels.extend(census.into_iter().flat_map(of_stream));
    let picture = Picture {
        title: options.name.clone(),
        panels,
    };
    (experiment, picture)
}

/// The time to the end by what there are several of: threads, utilizations, sizes of a segment.
fn sweeps(options: &StreamOptions, all: &[Seen]) -> Vec<Panel> {
    let panel = |title: &str, x: &str| lines(format!("time, by {title}"), x, "s");
    let mut by_threads = panel("threads", "threads");
    let mut by_utilization = panel("use of memory", "live objects, % of the log");
    let mut by_segment = panel("segment", "MiB of a segment");
    for one in all {
        let seconds = one.spread(|replay| replay.seconds).median;
        let name = options.called(one.entrant);
        by_threads.point(&name, one.threads as f64, seconds);
        let Entrant {
            who,
            utilization,
            segment,
        } = one.entrant;
        let with_threads = format!("{who}, {} threads", one.threads);
        match utilization {
            Some(percent) => {
                let name = match segment {
                    Some(bytes) => format!("{with_threads}, {}", Size(bytes)),
                    None => with_threads.clone(),
                };
                by_utilization.point(&name, f64::from(percent), seconds);
            }
            // It has no utilization: a level line.
            None => {
                for &percent in &options.utilizations {
                    by_utilization.point(&with_threads, f64::from(percent), seconds);
                }
            }
        }
        if let (Some(percent), Some(bytes)) = (utilization, segment) {
            let name = format!("{with_threads}, {percent} %");
            by_segment.point(&name, bytes as f64 / (1 << 20) as f64, seconds);
        }
    }
    let several = [
        (options.threads.len(), by_threads),
        (options.utilizations.len(), by_utilization),
        (options.segments.len(), by_segment),
    ];
    let drawn = several.into_iter().filter(|(values, _)| *values > 1);
    drawn.map(|(_, panel)| panel).collect()
}

/// What the stream consists of.
fn of_stream(census: &Census) -> [Panel; 2] {
    let mut kinds = lines(
        "operations".into(),
        "% of the stream",
        "% of the operations",
    );
    for of in Use::ALL {
        for (end, percent) in census.by_part(of) {
            kinds.point(of.name(), end, percent);
        }
    }
    let mut uses = lines(
        "objects used at most so often".into(),
        "operations of an object",
        "% of all operations",
    );
    for (count, percent) in census.by_uses() {
        uses.point("their operations", count as f64, percent);
    }
    [kinds, uses]
}

/// Each of ours over the one of the others with the best median, with the same threads.
fn compare(experiment: &mut Experiment, options: &StreamOptions, seen: &[&Seen], prefix: &str) {
    let median = |one: &Seen| Spread::of(&one.rates()).unwrap_or_default().median;
    let is_ours = |one: &Seen| one.entrant.who.kind.is_ours();
    let others = seen.iter().filter(|one| !is_ours(one));
    let Some(best) = others.max_by(|a, b| median(a).total_cmp(&median(b))) else {
        return;
    };
    for one in seen.iter().filter(|one| is_ours(one)) {
        let who = options.called(one.entrant);
        let name = format!("operations/s: {prefix}{who} / best other");
        experiment.ratio_by_round(name, &one.rates(), &best.rates());
    }
}

fn row(seen: &Seen) -> Row {
    let us = |quantile: f64| {
        seen.spread(|replay| {
            let latencies = replay.latencies.as_ref();
            latencies.map_or(f64::NAN, |all| all.us(quantile))
        })
    };
    let end = |of: &dyn Fn(&Mark) -> f64| seen.spread(|replay| replay.marks.last().map_or(0.0, of));
    let live = |mark: &Mark| (mark.live.bytes + mark.live.objects * KEY) as f64;
    // The same in every round.
    let count = |of: fn(&Replayed) -> u64| seen.replays.first().map_or(0, of);
    let Entrant {
        who,
        utilization,
        segment,
    } = seen.entrant;
    let rate = Spread::of(&seen.rates()).unwrap_or_default();
    Row::new()
        .with("contestant", who.to_string())
        .with("threads", seen.threads)
        .with("utilization_percent", utilization)
        .with("segment", segment)
        .with("memory", utilization.map(|_| seen.memory))
        .and(rate.cells("ops_per_s"))
        .and(seen.spread(|replay| replay.seconds).cells("seconds"))
        .with("operations", count(|replay| replay.operations))
        .with("gets", count(|replay| replay.gets))
        .with("puts", count(|replay| replay.puts))
        .with("misses", count(|replay| replay.misses))
        .with(
            "refused",
            seen.replays
                .iter()
                .map(|replay| replay.retries)
                .sum::<u64>(),
        )
        .and(us(0.5).cells("p50_us"))
        .and(us(0.99).cells("p99_us"))
        .and(us(0.999).cells("p999_us"))
        .and(us(1.0).cells("max_us"))
        .with(
            "resident_peak",
            seen.spread(|replay| replay.resident_peak as f64).median as u64,
        )
        .with(
            "resident_end",
            end(&|mark| mark.resident as f64).median as u64,
        )
        .with("live_end", end(&live).median as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestant::Allocator;
    use crate::run::Latencies;
    use crate::workload::Postmark;

    fn options() -> StreamOptions {
        let on_glibc = |kind| Contender {
            kind,
            allocator: Allocator::Glibc,
        };
        StreamOptions {
            name: "postmark".into(),
            parameters: Row::new(),
            plan: Plan::Postmark(Postmark {
                files: 1,
                transactions: 1,
                sizes: (1, 1),
                subdirectories: 0,
            }),
            census: false,
            contenders: [
                Kind::Pluvio,
                Kind::PluvioInPlace,
                Kind::DashmapInPlace,
                Kind::Scc,
            ]
            .map(on_glibc)
            .to_vec(),
            threads: vec![1],
            own_objects: true,
            volume: Volume {
                objects: 1,
                bytes: 1,
                bytes_in_place: 1,
            },
            utilizations: vec![70],
            segments: Vec::new(),
            cleaner_threads: 1,
            populate: false,
            rounds: Rounds {
                seconds: 1.0,
                rounds: 3,
                seed: 1,
            },
        }
    }

    fn replayed(seconds: f64) -> Replayed {
        Replayed {
            operations: 600,
            retries: 2,
            seconds,
            latencies: Some(Latencies {
                count: 600,
                quantiles: vec![(0.5, (seconds * 1e3) as u64)],
            }),
            ..Replayed::default()
        }
    }

    /// With these threads.
    fn seen(threads: usize) -> impl Fn((Entrant, Vec<Replayed>)) -> Seen {
        move |(entrant, replays)| Seen {
            entrant,
            threads,
            memory: 1,
            replays,
        }
    }

    #[test]
    fn rows_and_ratios_are_of_all_rounds() {
        let options = options();
        let rounds = |seconds: [f64; 3]| seconds.map(replayed).to_vec();
        let all = [
            rounds([2.0, 3.0, 4.0]),
            rounds([1.0, 1.0, 1.0]),
            rounds([6.0, 6.0, 6.0]),
            rounds([1.0, 20.0, 20.0]),
        ];
        let all: Vec<Seen> = options
            .entrants()
            .into_iter()
            .zip(all)
            .map(seen(1))
            .collect();
        let (experiment, picture) = report(&options, None, &all);
        assert_eq!(picture.panels.len(), 1);
        let row = &experiment.rows[0];
        assert_eq!(row.number("ops_per_s"), Some(200.0));
        assert_eq!(row.number("seconds"), Some(3.0));
        assert_eq!(row.number("utilization_percent"), Some(70.0));
        assert_eq!(experiment.rows[2].number("utilization_percent"), None);
        assert_eq!(row.number("p50_us"), Some(3.0));
        assert_eq!(row.number("p50_us_max"), Some(4.0));
        assert_eq!(row.number("refused"), Some(6.0));
        let ratio = |name: &str| experiment.ratios[&format!("operations/s: {name} / best other")];
        assert_eq!(ratio("pluvio"), 2.0);
        assert_eq!(ratio("pluvio-in-place"), 6.0);
    }

    #[test]
    fn ours_take_part_with_every_utilization_and_segment_and_others_once() {
        let options = StreamOptions {
            threads: vec![1, 2],
            utilizations: vec![17, 80],
            segments: vec![4 << 20, 8 << 20],
            volume: Volume {
                objects: 10,
                bytes: 1000,
                bytes_in_place: 2000,
            },
            ..options()
        };
        let entrants = options.entrants();
        assert_eq!(entrants.len(), 2 * 4 + 2);
        assert_eq!(options.called(entrants[1]), "pluvio 17 % 8MiB");
        assert!(options.called(entrants[8]).starts_with("dashmap-in-place"));
        assert_eq!(options.volume(2).bytes_in_place, 4000);
        let shared = StreamOptions {
            own_objects: false,
            ..options.clone()
        };
        assert_eq!(shared.volume(2), options.volume);
        let mut all = Vec::new();
        for threads in [1, 2] {
            let each = entrants
                .iter()
                .map(|&entrant| (entrant, vec![replayed(2.0)]));
            all.extend(each.map(seen(threads)));
        }
        let census = Census::of(&options.plan, 1).unwrap();
        let (experiment, picture) = report(&options, Some(&census), &all);
        assert_eq!(experiment.rows.len(), 2 * 10);
        let deleted = experiment.parameters.number("delete_percent");
        assert!(deleted > Some(33.0), "both files, of six uses at most");
        let titles: Vec<&str> = picture.panels.iter().map(|panel| &*panel.title).collect();
        let wanted = [
            "throughput, 1 threads",
            "throughput, 2 threads",
            "time, by threads",
            "time, by use of memory",
            "time, by segment",
            "operations",
            "objects used at most so often",
        ];
        assert_eq!(titles, wanted);
        let ratio = "operations/s: 2 threads, pluvio 80 % 4MiB / best other";
        assert_eq!(experiment.ratios[ratio], 1.0);
    }
}
