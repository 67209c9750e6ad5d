//! `pluvio sim`: whole clusters in one thread, each from one seed.

use clap::Args;
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{bar, count, print_json, print_line, say};
use pluvio_sim::cluster::{
    Faults, Keep, Numbers, RunOptions, RunReport, TraceSink, run_traced, shrink,
};
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
    /// Of the faults that the seed draws, only these kinds happen; the run stays the same otherwise
    #[arg(long, value_name = "LIST", conflicts_with = "seeds")]
    keep_faults: Option<Faults>,
    /// Of the clients that the seed draws, only this many
    #[arg(long, value_name = "N", conflicts_with = "seeds", value_parser = clap::value_parser!(u32).range(1..))]
    keep_clients: Option<u32>,
    /// Of the operations, only the first N
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    keep_steps: Option<u64>,
    /// Of the events of faults, only these: none, or numbers and ranges with commas, as 0-3,7
    #[arg(long, value_name = "LIST", conflicts_with = "seeds")]
    keep_events: Option<Numbers>,
    /// Make the first run that fails smaller, and print the command that replays the smaller one
    #[arg(long)]
    shrink: bool,
    /// Most runs that --shrink tries
    #[arg(long, value_name = "N", default_value_t = 200, requires = "shrink")]
    shrink_tries: u64,
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
    let progress = bar(sim.seeds, "seeds", false);
    let told = |report: &RunReport| {
        progress.inc(1);
        progress.suspend(|| tell(report, global.json))
    };
    let done = run_all(sim, &simulate, &told);
    progress.finish_and_clear();
    let mut again = |options: &RunOptions| run_traced(options, tracing::Level::WARN, None);
    let done = smaller(sim, done?, &mut again);
    for line in done.replays() {
        say(line);
    }
    done.verdict()?;
    if !global.json {
        print_line(&format!("{} seeds: every check held", count(done.runs)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the first failure smaller, where that is asked for; `again` runs it. The same check must
/// fail; others are other errors.
fn smaller(sim: &Sim, mut done: Done, again: &mut dyn FnMut(&RunOptions) -> RunReport) -> Done {
    let Some(first) = done.failed.first_mut().filter(|_| sim.shrink) else {
        return done;
    };
    let check = first.violations[0].check;
    let options = options(sim, first.seed);
    say(format_args!(
        "seed {}: making the run smaller in which {check} does not hold",
        first.seed
    ));
    let fails = |report: &RunReport| report.violations.iter().any(|v| v.check == check);
    let shrunk = shrink(&options, first.clone(), sim.shrink_tries, again, &fails);
    let report = shrunk.report;
    say(format_args!(
        "after {} tries: {} of {} operations, {} of {} clients; {report}",
        shrunk.tries, report.steps_done, first.steps_done, report.plan.clients, first.plan.clients,
    ));
    *first = report;
    done
}

/// What came of the seeds that were run.
#[derive(Default)]
struct Done {
    runs: u64,
    /// The runs in which a check did not hold, in the order in which they ended.
    failed: Vec<RunReport>,
}

impl Done {
    /// For each seed that failed, how to see that again.
    fn replays(&self) -> Vec<String> {
        let line = |report: &RunReport| {
            let RunReport { seed, replay, .. } = report;
            format!("seed {seed} failed; replay: {replay}")
        };
        self.failed.iter().map(line).collect()
    }

    /// # Errors
    /// A check did not hold; how to see that again.
    fn verdict(&self) -> Result<(), Failure> {
        let Some(first) = self.failed.first() else {
            return Ok(());
        };
        Err(Failure::new(format!(
            "{} of {} seeds failed; replay the first with: {}",
            self.failed.len(),
            self.runs,
            first.replay
        )))
    }
}

/// Runs the seeds with `simulate`, several at a time, until one fails or, with `--keep-going`, to
/// the last. Reports are told in the order in which runs end.
///
/// # Errors
/// One could not be told.
fn run_all(
    sim: &Sim,
    simulate: &(dyn Fn(&Sim, u64) -> RunReport + Sync),
    tell: &(dyn Fn(&RunReport) -> Result<(), Failure> + Sync),
) -> Result<Done, Failure> {
    let machine = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = sim.threads.unwrap_or(machine).clamp(1, 256);
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let results: Mutex<(Done, Option<Failure>)> = Mutex::default();
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= sim.seeds {
                return;
            }
            let report = simulate(sim, sim.seed + number);
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            results.0.runs += 1;
            if let Err(failure) = tell(&report) {
                results.1 = Some(failure);
                stop.store(true, Ordering::Relaxed);
            }
            if !report.is_ok() {
                results.0.failed.push(report);
                stop.fetch_or(!sim.keep_going, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.min(usize::try_from(sim.seeds).unwrap_or(threads)) {
            scope.spawn(work);
        }
    });
    let (done, failure) = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    match failure {
        Some(failure) => Err(failure),
        None => Ok(done),
    }
}

fn options(sim: &Sim, seed: u64) -> RunOptions {
    let mut options = RunOptions::new(seed);
    options.steps = sim.steps;
    options.servers = sim.servers;
    options.faults = sim.faults.clone();
    options.keep = Keep {
        faults: sim.keep_faults.clone(),
        clients: sim.keep_clients,
        steps: sim.keep_steps,
        events: sim.keep_events.clone(),
    };
    options
}

fn simulate(sim: &Sim, seed: u64) -> RunReport {
    let options = options(sim, seed);
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use pluvio_sim::check::{Check, Violation};

    /// The command alone, as it is parsed.
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        sim: Sim,
    }

    fn sim(flags: &str) -> Sim {
        let line = format!("sim --seed 5 --seeds 4 --steps 1 --servers 1 --faults none {flags}");
        Line::parse_from(line.split_whitespace()).sim
    }

    fn planted(check: Check) -> Violation {
        Violation {
            check,
            message: "planted".to_owned(),
            evidence: Vec::new(),
        }
    }

    /// A run whose checks hold, but for some seeds.
    fn failing(seeds: &[u64]) -> impl Fn(&Sim, u64) -> RunReport + Sync {
        move |sim, seed| {
            let mut report = simulate(sim, seed);
            if seeds.contains(&seed) {
                report.violations.push(planted(Check::OneOwner));
            }
            report
        }
    }

    /// The outcome of two seeds of four clients and twenty operations.
    fn two_failed() -> Done {
        let failed = |seed: u64| {
            let mut report = failing(&[seed])(&sim(""), seed);
            (report.steps, report.steps_done, report.plan.clients) = (20, 20, 4);
            report.fault_events = 0;
            report
        };
        Done {
            runs: 4,
            failed: vec![failed(6), failed(8)],
        }
    }

    #[test]
    fn the_command_of_the_smaller_run_is_told() {
        let mut flags = sim("--shrink");
        flags.steps = 20;
        let done = two_failed();
        let (like, other) = (done.failed[0].clone(), done.failed[1].replay.clone());
        let mut tries = 0;
        // It takes three operations, and no more than one client. With fewer something else is
        // wrong.
        let mut again = |options: &RunOptions| {
            tries += 1;
            let mut report = like.clone();
            report.steps_done = options.keep.steps.unwrap_or(options.steps);
            report.plan.clients = options.keep.clients.unwrap_or(4);
            report.replay = options.command();
            report.violations = vec![planted(match report.steps_done {
                0..3 => Check::Linearizable,
                _ => Check::OneOwner,
            })];
            report
        };
        let done = smaller(&flags, done, &mut again);
        let command = "pluvio sim --seed 6 --steps 20 --servers 1 --faults none --keep-clients 1 --keep-steps 3";
        let told = [
            format!("seed 6 failed; replay: {command}"),
            format!("seed 8 failed; replay: {other}"),
        ];
        assert_eq!(done.replays(), told);
        let failure = done
            .verdict()
            .expect_err("a check did not hold")
            .to_string();
        assert!(failure.starts_with("2 of 4 seeds failed"), "{failure}");
        assert!(failure.ends_with(command), "{failure}");
        assert_eq!(done.failed[0].violations, [planted(Check::OneOwner)]);
        assert!((3..=200).contains(&tries), "{tries}");
    }

    #[test]
    fn no_run_is_made_smaller_unless_that_is_asked_for_and_none_when_all_held() {
        let mut again = |_: &RunOptions| -> RunReport { panic!("nothing is to be run again") };
        let before = two_failed().replays();
        let done = smaller(&sim(""), two_failed(), &mut again);
        assert_eq!(done.replays(), before);
        let done = smaller(&sim("--shrink"), Done::default(), &mut again);
        assert!(done.replays().is_empty());
        let done = two_failed();
        let mut never = |_: &RunOptions| -> RunReport { panic!("no try is left") };
        let done = smaller(&sim("--shrink --shrink-tries 0"), done, &mut never);
        assert_eq!(done.replays(), before);
    }

    #[test]
    fn a_failed_seed_ends_the_run_and_is_told_with_its_replay() {
        let done = run_all(&sim("--threads 1"), &failing(&[6]), &|_| Ok(())).expect("is told");
        assert_eq!((done.runs, done.failed.len()), (2, 1));
        assert_eq!(done.failed[0].seed, 6);
        let failure = done.verdict().expect_err("a check did not hold");
        let text = failure.to_string();
        assert!(text.starts_with("1 of 2 seeds failed"), "{text}");
        let replay = "pluvio sim --seed 6 --steps 1 --servers 1 --faults none";
        assert!(text.ends_with(replay), "{text}");
        let code = |code: ExitCode| format!("{code:?}");
        assert_eq!(code(failure.report()), code(ExitCode::from(1)));
    }

    #[test]
    fn with_keep_going_every_seed_runs() {
        let flags = sim("--threads 2 --keep-going");
        let done = run_all(&flags, &failing(&[5, 8]), &|_| Ok(())).expect("is told");
        assert_eq!((done.runs, done.failed.len()), (4, 2));
        assert!(done.verdict().is_err());
        let done = run_all(&flags, &failing(&[]), &|_| Ok(())).expect("is told");
        assert_eq!(done.runs, 4);
        assert!(done.verdict().is_ok());
    }

    #[test]
    fn what_cannot_be_told_ends_the_run() {
        let refuse = |_: &RunReport| Err(Failure::silent());
        let ended = run_all(&sim("--threads 1"), &failing(&[]), &refuse);
        assert!(ended.is_err());
    }
}
