//! `pluvio sim`: whole clusters in one thread, each from one seed.

use crate::args::Global;
use crate::failure::Failure;
use crate::output::{bar, count, print_json, print_line, say};
use clap::Args;
use pluvio_sim::cluster::{Faults, RunOptions, RunReport, TraceSink, run_traced};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// `pluvio sim`.
#[derive(Args, Clone, Debug)]
pub struct Sim {
    /// The seed; the first one with --seeds
    #[arg(long, value_name = "N")]
    seed: u64,
    /// How many seeds, counting up
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Operations of all clients together
    #[arg(long, value_name = "N", default_value_t = RunOptions::new(0).steps)]
    steps: u64,
    /// Number of servers [default: drawn from the seed]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=32))]
    servers: Option<u32>,
    /// Kinds of faults that may happen: all, none, or a list with commas
    #[arg(long, value_name = "LIST", default_value_t = Faults::all())]
    faults: Faults,
    /// Print the trace of the run on standard error, with events from this level on: warn, info,
    /// debug, trace. For one seed
    #[arg(long, value_name = "LEVEL", conflicts_with = "seeds")]
    trace: Option<tracing::Level>,
    /// Seeds at a time [default: one for each processor]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Run all seeds, also after one has failed
    #[arg(long)]
    keep_going: bool,
}

/// Runs the seeds. Exit code 0 when every check held, 1 when not.
pub fn run(global: &Global, sim: &Sim) -> Result<ExitCode, Failure> {
    if sim.seed.checked_add(sim.seeds - 1).is_none() {
        return Err(Failure::usage(
            "--seed and --seeds count beyond the largest seed",
        ));
    }
    let machine = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = sim.threads.unwrap_or(machine).clamp(1, 256);
    let progress = bar(sim.seeds, "seeds", false);
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    // Reports come in the order in which runs end; failures are kept for the end.
    let results: Mutex<(u64, Vec<RunReport>, Option<Failure>)> = Mutex::default();
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= sim.seeds {
                return;
            }
            let report = simulate(sim, sim.seed + number);
            progress.inc(1);
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            results.0 += 1;
            let told = progress.suspend(|| tell(&report, global.json));
            if let Err(failure) = told {
                results.2 = Some(failure);
                stop.store(true, Ordering::Relaxed);
            }
            if !report.is_ok() {
                results.1.push(report);
                stop.fetch_or(!sim.keep_going, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.min(usize::try_from(sim.seeds).unwrap_or(threads)) {
            scope.spawn(work);
        }
    });
    progress.finish_and_clear();
    let (done, failed, failure) = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(failure) = failure {
        return Err(failure);
    }
    if failed.is_empty() {
        if !global.json {
            print_line(&format!("{} seeds: every check held", count(done)))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    for report in &failed {
        say(format_args!(
            "seed {} failed; replay: {}",
            report.seed, report.replay
        ));
    }
    Err(Failure::new(format!(
        "{} of {done} seeds failed; replay the first with: {}",
        failed.len(),
        failed[0].replay
    )))
}

fn simulate(sim: &Sim, seed: u64) -> RunReport {
    let mut options = RunOptions::new(seed);
    options.steps = sim.steps;
    options.servers = sim.servers;
    options.faults = sim.faults.clone();
    let sink = |line: &str| say(line);
    let sink = sim.trace.map(|_| Box::new(sink) as TraceSink);
    run_traced(&options, sim.trace.unwrap_or(tracing::Level::WARN), sink)
}

/// One run: a line of JSON, or what went wrong for people.
fn tell(report: &RunReport, json: bool) -> Result<(), Failure> {
    if json {
        return print_json(report);
    }
    if report.is_ok() {
        return Ok(());
    }
    print_line(&report.to_string())
}
