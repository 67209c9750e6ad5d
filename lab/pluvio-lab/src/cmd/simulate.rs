//! `pluvio simulate`: one mechanism by itself, in a model.

mod recovery;

use crate::experiment::{Files, tell};
use clap::{Args, Subcommand};
use pluvio_bench::experiment::{Axis, Experiment, Panel, Picture, Row, Shape};
use pluvio_bench::lfs::{self, Options, OptionsError, Outcome, Policy};
use pluvio_bench::workload::Distribution;
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::bar;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// `pluvio simulate`.
#[derive(Args, Clone, Debug)]
pub struct Simulate {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Clone, Debug)]
enum What {
    /// The cost of cleaning a log, by utilization, policy and access pattern
    Cleaner(Cleaner),
    /// How long recovery takes in large clusters, and how evenly replicas load the disks
    Recovery(Box<recovery::Recovery>),
}

/// `pluvio simulate cleaner`.
#[derive(Args, Clone, Debug)]
struct Cleaner {
    /// How segments are chosen: greedy, youngest-file, segment-age
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = policy, default_values = ["greedy", "youngest-file", "segment-age"])]
    policy: Vec<Policy>,
    /// Which files are overwritten: uniform, hot-cold (90 % of the writes to 10 % of the files),
    /// exponential, zipfian or zipfian:SKEW
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = ["uniform", "hot-cold", "exponential"])]
    pattern: Vec<Distribution>,
    /// Live data in percent of the log
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [10, 20, 30, 40, 50, 60, 70, 75, 80, 85, 90, 95])]
    utilization: Vec<u8>,
    /// Live data in segments
    #[arg(long, value_name = "N", default_value_t = 100)]
    live_segments: usize,
    /// Files a segment holds
    #[arg(long, value_name = "N", default_value_t = 512)]
    segment_files: usize,
    /// How often the log is written once around before measuring, and most times while measuring
    #[arg(long, value_name = "N", default_value_t = 60)]
    turnovers: usize,
    /// Seed of the overwrites
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Simulations at a time [default: one for each processor]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    #[command(flatten)]
    files: Files,
}

/// Runs the command.
pub fn run(global: &Global, simulate: &Simulate) -> Result<ExitCode, Failure> {
    match &simulate.what {
        What::Cleaner(cleaner) => run_cleaner(global, cleaner),
        What::Recovery(recovery) => recovery::run(global, recovery),
    }
}

fn policy(text: &str) -> Result<Policy, String> {
    let known = Policy::ALL.into_iter().find(|known| known.name() == text);
    known.ok_or_else(|| "give greedy, youngest-file or segment-age".into())
}

fn run_cleaner(global: &Global, cleaner: &Cleaner) -> Result<ExitCode, Failure> {
    let all = simulations(cleaner);
    let outcomes = simulate_all(cleaner, &all)?;
    let parameters = Row::new()
        .with("live_segments", cleaner.live_segments)
        .with("segment_files", cleaner.segment_files)
        .with("turnovers", cleaner.turnovers)
        .with("seed", cleaner.seed);
    let mut experiment = Experiment::new("simulate cleaner", parameters);
    let mut panels: Vec<Panel> = cleaner.pattern.iter().map(panel).collect();
    for (options, outcome) in all.iter().zip(&outcomes) {
        experiment.rows.push(row(options, outcome));
        let pattern = cleaner.pattern.iter().position(|p| *p == options.pattern);
        if let Some(panel) = pattern.and_then(|index| panels.get_mut(index)) {
            let percent = options.utilization * 100.0;
            panel.point(options.policy.name(), percent, outcome.write_cost);
        }
    }
    compare(&mut experiment, &all, &outcomes);
    let picture = Picture {
        title: "Write cost of a log by cleaning policy".into(),
        panels,
    };
    tell(global, &cleaner.files, &experiment, &picture)?;
    Ok(ExitCode::SUCCESS)
}

fn simulations(cleaner: &Cleaner) -> Vec<Options> {
    let mut all = Vec::new();
    for &pattern in &cleaner.pattern {
        for &policy in &cleaner.policy {
            all.extend(cleaner.utilization.iter().map(|&percent| Options {
                policy,
                pattern,
                utilization: f64::from(percent) / 100.0,
                live_segments: cleaner.live_segments,
                segment_files: cleaner.segment_files,
                turnovers: cleaner.turnovers,
                seed: cleaner.seed,
            }));
        }
    }
    all
}

/// All simulations, several at a time; their outcomes in the order of `all`, whatever the threads.
fn simulate_all(cleaner: &Cleaner, all: &[Options]) -> Result<Vec<Outcome>, Failure> {
    let machine = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cleaner.threads.unwrap_or(machine).clamp(1, 256);
    let progress = bar(all.len() as u64 * 1000, "simulating", false);
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Result<Outcome, OptionsError>)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..threads.min(all.len()) {
            scope.spawn(|| {
                // The dearest ones stand at the end of each row of utilizations; last come, first
                // served.
                while let Some(index) = all
                    .len()
                    .checked_sub(1 + next.fetch_add(1, Ordering::Relaxed))
                {
                    let mut told = 0;
                    let outcome = lfs::simulate(&all[index], &mut |thousandths| {
                        progress.inc(thousandths - told);
                        told = thousandths;
                    });
                    done.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push((index, outcome));
                }
            });
        }
    });
    progress.finish_and_clear();
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    done.into_iter()
        .map(|(_, outcome)| outcome.map_err(|error| Failure::usage(error.to_string())))
        .collect()
}

fn row(options: &Options, outcome: &Outcome) -> Row {
    Row::new()
        .with("pattern", options.pattern.name())
        .with("policy", options.policy.name())
        .with("utilization_percent", (options.utilization * 100.0).round())
        .with("write_cost", outcome.write_cost)
        .with("write_amplification", outcome.write_amplification)
        .with("cleaned_utilization", outcome.cleaned_utilization)
        .with("writes", outcome.writes)
}

/// The cost of the policy that the engine uses over that of the other two.
fn compare(experiment: &mut Experiment, all: &[Options], outcomes: &[Outcome]) {
    let cost = |of: &Options, policy| {
        let found = all.iter().position(|o| {
            *o == Options {
                policy,
                ..of.clone()
            }
        });
        found.map(|index| outcomes[index].write_cost)
    };
    for ours in all.iter().filter(|o| o.policy == Policy::SegmentAge) {
        for other in [Policy::Greedy, Policy::YoungestFile] {
            if let (Some(a), Some(b)) = (cost(ours, ours.policy), cost(ours, other)) {
                let name = format!(
                    "{} {:.0} %: write cost segment-age / {}",
                    ours.pattern.name(),
                    ours.utilization * 100.0,
                    other.name()
                );
                experiment.ratio(name, a, b);
            }
        }
    }
}

fn panel(pattern: &Distribution) -> Panel {
    Panel {
        title: pattern.name(),
        x: "utilization (%)".into(),
        y: "write cost".into(),
        shape: Shape::Lines {
            x: Axis::Linear,
            y: Axis::Linear,
        },
        series: Vec::new(),
    }
}
