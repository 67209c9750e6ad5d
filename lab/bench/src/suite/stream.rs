//! Streams of operations to their end: trace files, production profiles, Postmark [Nibble fig.
//! 15-17].

use super::{KEY, Overhead, Rounds, Watch, bars, check_utilization, step, turns};
use crate::contestant::{Contender, Kind, Process, Program, Setup};
use crate::error::{ExperimentError, within};
use crate::experiment::{Experiment, Picture, Row, Spread};
use crate::run::{Mark, ReplayPlan, Replayed, THREADS_MAX};
use crate::suite::Step;
use crate::workload::Plan;

/// What to measure.
#[derive(Clone, PartialEq, Debug)]
pub struct StreamOptions {
    /// What the experiment is called.
    pub name: String,
    /// The parameters of the stream, for the report.
    pub parameters: Row,
    /// The stream.
    pub plan: Plan,
    /// Who takes part.
    pub contenders: Vec<Contender>,
    /// Threads.
    pub threads: usize,
    /// Most objects that are live, all threads together.
    pub objects: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// The same where values are overwritten in place: each keeps the room of its largest.
    pub bytes_in_place: u64,
    /// Live objects in percent of our log, where there are most.
    pub utilization: u8,
    /// Cleaner threads of our store.
    pub cleaner_threads: u16,
    /// How often, each time in new processes; streams end when they are through, whatever the
    /// seconds.
    pub rounds: Rounds,
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
    check_utilization(options.utilization)?;
    within("threads", options.threads, 1..=THREADS_MAX)?;
    watch(Step::Total(
        (options.contenders.len() * options.rounds.rounds) as u64,
    ));
    let overhead = Overhead::measure(program)?;
    let utilization = f64::from(options.utilization) / 100.0;
    let memory = |kind| {
        let bytes = match kind == Kind::PluvioInPlace {
            true => options.bytes_in_place,
            false => options.bytes,
        };
        overhead.memory(kind, options.objects, bytes, utilization)
    };
    let mut all: Vec<Vec<Replayed>> = vec![Vec::new(); options.contenders.len()];
    for round in 0..options.rounds.rounds {
        for at in turns(round, options.contenders.len()) {
            let who = options.contenders[at];
            let setup = Setup {
                cleaner_threads: options.cleaner_threads,
                ..Setup::new(who.kind, options.objects, memory(who.kind))
            };
            all[at].push(step(watch, format!("{who}, round {}", round + 1), || {
                Process::start(program, who, &setup)?.replay(&ReplayPlan {
                    stream: options.plan.clone(),
                    threads: options.threads,
                    seed: options.rounds.seed,
                    memory: false,
                    settle: false,
                    latencies: true,
                })
            })?);
        }
    }
    Ok(report(options, memory(Kind::Pluvio), &all))
}

fn report(options: &StreamOptions, memory: u64, all: &[Vec<Replayed>]) -> (Experiment, Picture) {
    let parameters = options
        .parameters
        .clone()
        .with("threads", options.threads)
        .with("utilization_percent", options.utilization)
        .with("memory", memory)
        .with("cleaner_threads", options.cleaner_threads)
        .with("rounds", options.rounds.rounds)
        .with("seed", options.rounds.seed);
    let mut experiment = Experiment::new(&options.name, parameters);
    let names = options.contenders.iter().map(ToString::to_string).collect();
    let mut panel = bars("throughput".into(), "", "operations/s", names);
    let mut rates: Vec<Vec<f64>> = Vec::new();
    for (number, (who, replays)) in options.contenders.iter().zip(all).enumerate() {
        let each: Vec<f64> = replays
            .iter()
            .map(|replay| replay.operations as f64 / replay.seconds.max(1e-9))
            .collect();
        let rate = Spread::of(&each).unwrap_or_default();
        panel.point("operations/s", number as f64, rate.median);
        experiment.rows.push(row(*who, rate, replays));
        rates.push(each);
    }
    compare(&mut experiment, &options.contenders, &rates);
    let picture = Picture {
        title: options.name.clone(),
        panels: vec![panel],
    };
    (experiment, picture)
}

/// Each of ours over the one of the others with the best median.
fn compare(experiment: &mut Experiment, contenders: &[Contender], rates: &[Vec<f64>]) {
    let median = |rates: &[f64]| Spread::of(rates).unwrap_or_default().median;
    let all = || contenders.iter().zip(rates);
    let others = all().filter(|(who, _)| !who.kind.is_ours());
    let best = others.max_by(|a, b| median(a.1).total_cmp(&median(b.1)));
    let Some((_, best)) = best else {
        return;
    };
    for (who, rates) in all().filter(|(who, _)| who.kind.is_ours()) {
        let name = format!("operations/s: {who} / best other");
        experiment.ratio_by_round(name, rates, best);
    }
}

fn row(who: Contender, rate: Spread, replays: &[Replayed]) -> Row {
    let spread = |of: &dyn Fn(&Replayed) -> f64| {
        let all: Vec<f64> = replays.iter().map(of).collect();
        Spread::of(&all).unwrap_or_default()
    };
    let us = |quantile: f64| {
        spread(&|replay| {
            let latencies = replay.latencies.as_ref();
            latencies.map_or(f64::NAN, |all| all.us(quantile))
        })
    };
    let end = |of: &dyn Fn(&Mark) -> f64| spread(&|replay| replay.marks.last().map_or(0.0, of));
    let live = |mark: &Mark| (mark.live.bytes + mark.live.objects * KEY) as f64;
    // The same in every round.
    let count = |of: fn(&Replayed) -> u64| replays.first().map_or(0, of);
    Row::new()
        .with("contestant", who.to_string())
        .and(rate.cells("ops_per_s"))
        .with("operations", count(|replay| replay.operations))
        .with("gets", count(|replay| replay.gets))
        .with("puts", count(|replay| replay.puts))
        .with("misses", count(|replay| replay.misses))
        .with(
            "refused",
            replays.iter().map(|replay| replay.retries).sum::<u64>(),
        )
        .and(us(0.5).cells("p50_us"))
        .and(us(0.99).cells("p99_us"))
        .and(us(0.999).cells("p999_us"))
        .and(us(1.0).cells("max_us"))
        .with(
            "resident_peak",
            spread(&|replay| replay.resident_peak as f64).median as u64,
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

    #[test]
    fn rows_and_ratios_are_of_all_rounds() {
        let on_glibc = |kind| Contender {
            kind,
            allocator: Allocator::Glibc,
        };
        let options = StreamOptions {
            name: "postmark".into(),
            parameters: Row::new(),
            plan: Plan::Postmark(Postmark {
                files: 1,
                transactions: 1,
                sizes: (1, 1),
                subdirectories: 0,
            }),
            contenders: [
                Kind::Pluvio,
                Kind::PluvioInPlace,
                Kind::DashmapInPlace,
                Kind::Scc,
            ]
            .map(on_glibc)
            .to_vec(),
            threads: 1,
            objects: 1,
            bytes: 1,
            bytes_in_place: 1,
            utilization: 70,
            cleaner_threads: 1,
            rounds: Rounds {
                seconds: 1.0,
                rounds: 3,
                seed: 1,
            },
        };
        let replayed = |seconds: f64| Replayed {
            operations: 600,
            retries: 2,
            seconds,
            latencies: Some(Latencies {
                count: 600,
                quantiles: vec![(0.5, (seconds * 1e3) as u64)],
            }),
            ..Replayed::default()
        };
        let rounds = |seconds: [f64; 3]| seconds.map(replayed).to_vec();
        let all = [
            rounds([2.0, 3.0, 4.0]),
            rounds([1.0, 1.0, 1.0]),
            rounds([6.0, 6.0, 6.0]),
            rounds([1.0, 20.0, 20.0]),
        ];
        let (experiment, _) = report(&options, 1, &all);
        let row = &experiment.rows[0];
        assert_eq!(row.number("ops_per_s"), Some(200.0));
        assert_eq!(row.number("p50_us"), Some(3.0));
        assert_eq!(row.number("p50_us_max"), Some(4.0));
        assert_eq!(row.number("refused"), Some(6.0));
        let ratio = |name: &str| experiment.ratios[&format!("operations/s: {name} / best other")];
        assert_eq!(ratio("pluvio"), 2.0);
        assert_eq!(ratio("pluvio-in-place"), 6.0);
    }
}
