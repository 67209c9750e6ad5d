//! The simulator's part of the tests: fixed seeds, and seeds derived from the commit.
//!
//! Invariants
//! - SEEDS-1: what runs is a function of the commit and of `PLUVIO_SIM_SEEDS`; two runs of one
//!   commit run the same seeds. Files that git knows no commit of run as many, the same each time.
//! - SEEDS-2: a failure prints the command that replays it.
//! - SEEDS-3: every mark of the list is reached by one of the seeds; each one that is not counts as
//!   a failed test.

use crate::ci::test::Counts;
use crate::process::{Outcome, run_limited};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Seeds that once found something, or keep a scenario: `SEED [FLAGS] # why`.
const FIXED: &str = "tests/sim-seeds.txt";
/// Coverage marks that the seeds must reach together: `MARK # what it shows`.
pub const MARKS: &str = "tests/sim-marks.txt";
/// In the place of the commit's name where git knows none, as below an unpacked archive.
const NO_COMMIT: &str = "no commit";
/// Seeds derived from a commit when `PLUVIO_SIM_SEEDS` does not say how many.
const DERIVED_DEFAULT: usize = 24;
/// Most derived seeds; whoever wants more runs `pluvio sim --seeds`.
const DERIVED_MAX: usize = 10_000;
/// A run that takes longer has lost its way: usual ones take a second or two.
const RUN_LIMIT: Duration = Duration::from_secs(300);
/// Lines of a failed run that are shown.
const TAIL_LINES: usize = 40;

/// One run of the simulator.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Run {
    seed: u64,
    flags: Vec<String>,
}

impl Run {
    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["sim".to_owned(), "--seed".to_owned(), self.seed.to_string()];
        arguments.extend(self.flags.iter().cloned());
        arguments
    }

    fn replay(&self) -> String {
        format!(
            "cargo run --release -p pluvio-lab -- {}",
            self.arguments().join(" ")
        )
    }
}

/// Runs all seeds with the built `binary`, as many at a time as there are cores.
///
/// # Errors
/// The list of seeds cannot be read, or the binary cannot be started.
pub fn run(root: &Path, binary: &Path) -> Result<Counts> {
    let text = std::fs::read_to_string(root.join(FIXED))
        .with_context(|| format!("cannot read {FIXED}"))?;
    let mut runs = fixed(&text)?;
    let fixed_count = runs.len();
    let commit = commit(root).unwrap_or_else(|| NO_COMMIT.to_owned());
    runs.extend(derived(&commit, derived_count()?));
    println!(
        "simulator: {fixed_count} fixed seeds, {} from {commit}",
        runs.len() - fixed_count
    );
    let next = AtomicUsize::new(0);
    let results = Mutex::new((Vec::new(), BTreeSet::new()));
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = run_limited(
                        Command::new(binary).args(run.arguments()).arg("--json"),
                        RUN_LIMIT,
                    );
                    let text = outcome.as_ref().map_or("", |outcome| &outcome.text);
                    let marks = reached(text);
                    let passed = report(run, outcome);
                    let mut results = results.lock().expect("no worker panics");
                    results.0.push(passed);
                    results.1.extend(marks);
                }
            });
        }
    });
    let (results, marks) = results.into_inner().expect("no worker panics");
    let passed = results.iter().filter(|passed| **passed).count() as u64;
    let mut counts = Counts {
        passed,
        failed: runs.len() as u64 - passed,
        ..Counts::default()
    };
    counts += check_marks(root, &marks, runs.len() - fixed_count)?;
    Ok(counts)
}

/// The marks that a report in JSON names.
fn reached(text: &str) -> Vec<String> {
    let reports = { text.lines() }.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let marks = reports.filter_map(|report| Some(report.get("marks")?.as_object()?.clone()));
    marks.flatten().map(|(name, _)| name).collect()
}

/// SEEDS-3. With fewer derived seeds than usual nothing can be said.
fn check_marks(root: &Path, reached: &BTreeSet<String>, derived: usize) -> Result<Counts> {
    let text = std::fs::read_to_string(root.join(MARKS))
        .with_context(|| format!("cannot read {MARKS}"))?;
    let wanted = listed(&text);
    let mut counts = Counts::default();
    if derived < DERIVED_DEFAULT {
        println!("simulator: too few seeds to tell whether all marks are reached");
        return Ok(counts);
    }
    for mark in wanted {
        if reached.contains(mark) {
            counts.passed += 1;
        } else {
            println!("simulator: no seed reached the mark {mark} of {MARKS}");
            counts.failed += 1;
        }
    }
    Ok(counts)
}

/// The first word of each line, without comments.
pub fn listed(text: &str) -> Vec<&str> {
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or(""));
    lines
        .filter_map(|line| line.split_whitespace().next())
        .collect()
}

/// Prints what a failed run said; gives whether it passed.
fn report(run: &Run, outcome: Result<Outcome>) -> bool {
    let (what, text) = match outcome {
        Ok(outcome) if outcome.success => return true,
        Ok(outcome) if outcome.timed_out => (format!("no end after {RUN_LIMIT:?}"), outcome.text),
        Ok(outcome) => ("failed".to_owned(), outcome.text),
        Err(error) => (format!("{error:#}"), String::new()),
    };
    let lines: Vec<&str> = text.lines().collect();
    let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
    println!(
        "{tail}\nsimulator seed {}: {what}\n  replay: {}",
        run.seed,
        run.replay()
    );
    false
}

/// The runs of the list.
fn fixed(text: &str) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut words = line
            .split('#')
            .next()
            .unwrap_or_default()
            .split_whitespace();
        let Some(seed) = words.next() else {
            continue;
        };
        let Ok(seed) = seed.parse() else {
            bail!("{FIXED}:{}: `{seed}` is not a seed", index + 1);
        };
        runs.push(Run {
            seed,
            flags: words.map(str::to_owned).collect(),
        });
    }
    Ok(runs)
}

/// Seeds that differ from commit to commit, so that each commit tries something new.
fn derived(commit: &str, count: usize) -> Vec<Run> {
    // FNV-1a over the commit's name starts a splitmix sequence; any fixed mixing would do.
    let mut state = commit
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    let mut seed = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        // 32 bits are easier to read aloud and plenty.
        (mixed ^ (mixed >> 27)) >> 32
    };
    (0..count)
        .map(|_| Run {
            seed: seed(),
            flags: Vec::new(),
        })
        .collect()
}

fn derived_count() -> Result<usize> {
    let Ok(text) = std::env::var("PLUVIO_SIM_SEEDS") else {
        return Ok(DERIVED_DEFAULT);
    };
    match text.parse() {
        Ok(count) if count <= DERIVED_MAX => Ok(count),
        _ => bail!("PLUVIO_SIM_SEEDS={text}: a number up to {DERIVED_MAX} is needed"),
    }
}

fn commit(root: &Path) -> Option<String> {
    // A clone that belongs to another user (a mounted volume in CI) is fine to read.
    let output = Command::new("git")
        .current_dir(root)
        .args(["-c", "safe.directory=*", "rev-parse", "HEAD"])
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_read_with_flags_and_reasons() {
        let runs = fixed("# seeds\n\n7\n8 --servers 5 --faults crash # a stale head\n")
            .expect("a good list");
        assert_eq!(runs.len(), 2);
        assert_eq!(
            runs[1].replay(),
            "cargo run --release -p pluvio-lab -- sim --seed 8 --servers 5 --faults crash"
        );
        assert!(fixed("seven\n").is_err());
    }

    // shows: SEEDS-3
    #[test]
    fn marks_are_read_from_reports_and_compared_with_the_list() {
        let text =
            "{\"seed\":1,\"marks\":{\"a\":3,\"b\":1}}\nsomething else\n{\"seed\":2,\"marks\":{}}\n";
        assert_eq!(reached(text), ["a", "b"]);
        assert!(reached("no report").is_empty());
        let list = "# marks\n\na # one\nb\nc # no seed gets there\n";
        assert_eq!(listed(list), ["a", "b", "c"]);

        let root = tempfile::tempdir().expect("a folder");
        let marks = BTreeSet::from_iter(reached(text));
        let check = |derived| check_marks(root.path(), &marks, derived);
        assert!(check(DERIVED_DEFAULT).is_err(), "there is no list");
        std::fs::create_dir(root.path().join("tests")).expect("a folder");
        std::fs::write(root.path().join(MARKS), list).expect("a file");
        let counts = check(DERIVED_DEFAULT).expect("there is a list");
        assert_eq!((counts.passed, counts.failed), (2, 1));
        let too_few = check(DERIVED_DEFAULT - 1).expect("there is a list");
        assert_eq!(too_few, Counts::default());
    }

    // shows: SEEDS-1
    #[test]
    fn seeds_are_a_function_of_the_commit() {
        let seeds = derived("abc", 10);
        assert_eq!(seeds, derived("abc", 10));
        assert_ne!(seeds, derived("abd", 10));
        assert!(seeds.iter().all(|run| run.seed < 1 << 32));
    }
}
