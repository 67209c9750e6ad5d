//! Everything a fresh Debian machine with Rust can test, in one run, with one count at the end.
//!
//! All steps use the profile `test-fast`. The simulator and the process tests need its speed, and
//! it has the debug assertions and overflow checks of a debug build. With one profile and one
//! selection of packages each dependency is compiled once.
//!
//! Invariants
//! - TEST-1: the last line is `N passed, N failed`, and adds up what the tests themselves counted.
//! - TEST-2: a step that ends badly without counting a failure counts as one. Such are a crash of a
//!   test program, a build that fails, and a run that tested nothing.
//! - TEST-3: a test that cannot run here does not count as passed. It is left out by the name of
//!   the thing it needs, counted and listed. It counts as a failure where that thing has to be
//!   there (SETUP-1, SETUP-2).

use super::seeds;
use crate::cargo::{self, Metadata};
use crate::process::{now, run_seen};
use crate::setup::{self, Tools};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::AddAssign;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What tests counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Tests that held.
    pub passed: u64,
    /// Tests that did not.
    pub failed: u64,
    /// Tests marked as ignored in the source.
    pub ignored: u64,
    /// Tests left out because what they need is missing.
    pub left_out: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.left_out += other.left_out;
    }
}

/// What a step does.
#[derive(Clone, Copy)]
enum Work {
    /// `cargo test` over the workspace with these arguments.
    Cargo(&'static [&'static str]),
    /// `cargo test` with these arguments, if maturin is there. They are built here: the programs of
    /// the other steps have none of the feature that the arguments name, nor of its libraries.
    Wheel(&'static [&'static str]),
    /// Programs that the build step made.
    Examples,
    /// The simulator's seeds.
    Seeds,
}

/// Tests that need a server that speaks S3, or libfabric, and the features that these need. Where
/// the thing is there, everything is built with the feature, once. Clippy looks at the default
/// build.
const FEATURES: [(&str, &str); 2] = [
    (setup::MOTO, "pluvio-archive/s3"),
    (setup::LIBFABRIC, "pluvio-net/fabric"),
];

/// The examples that are run.
const EXAMPLES: [&str; 3] = ["hello", "counting_words", "durable"];

/// What the build step makes. The laboratory's examples take a minute, and clippy sees whether they
/// compile.
const BUILT: [&str; 4] = ["--no-run", "--lib", "--bins", "--tests"];

/// Tests of one program at a time beside the crates: those that start processes mostly wait.
const INTEGRATION_THREADS: &str = "4";

/// One step of the run.
struct Step {
    name: &'static str,
    what: &'static str,
    work: Work,
}

/// The steps in order. Building is one of its own, so that its time shows and a failure ends the
/// run; the later ones find everything built.
const STEPS: [Step; 7] = [
    Step {
        name: "build",
        what: "the binaries and all tests",
        work: Work::Cargo(&BUILT),
    },
    Step {
        name: "unit",
        what: "tests inside the crates",
        work: Work::Cargo(&["--no-fail-fast", "--lib", "--bins"]),
    },
    Step {
        name: "integration",
        what: "tests beside the crates; those of the binaries start real processes",
        work: Work::Cargo(&["--no-fail-fast", "--test", "*"]),
    },
    Step {
        name: "python",
        what: "the embedded store for Python, as a wheel",
        work: Work::Wheel(&[
            "--package=pluvio-store-python",
            "--features=pluvio-store-python/wheel",
            "--test=wheel",
        ]),
    },
    Step {
        name: "doc",
        what: "examples in comments",
        work: Work::Cargo(&["--no-fail-fast", "--doc"]),
    },
    Step {
        name: "examples",
        what: "programs that use the embedded store, and one that uses a cluster",
        work: Work::Examples,
    },
    Step {
        name: "sim",
        what: "whole clusters in one thread, one per seed",
        work: Work::Seeds,
    },
];

/// Runs the named steps (and `build` before them), or all; gives whether all held.
///
/// # Errors
/// A step has no such name, or cargo cannot be run.
pub fn run(root: &Path, names: &[&str]) -> Result<bool> {
    if let Some(unknown) = names
        .iter()
        .find(|name| STEPS.iter().all(|step| step.name != **name))
    {
        let known: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
        bail!("no step `{unknown}`; there are {}", known.join(", "));
    }
    let target = Metadata::load(root)?.target;
    let tools = setup::run(root, &target);
    let mut total = Counts::default();
    let mut table = Vec::new();
    for step in STEPS {
        let build = step.name == "build";
        if !build && !names.is_empty() && !names.contains(&step.name) {
            continue;
        }
        println!("\n== {}: {}", step.name, step.what);
        let start = now();
        let counts = run_step(&step, root, &target, &tools).unwrap_or_else(|error| {
            // TEST-2
            println!("{}: {error:#}", step.name);
            Counts {
                failed: 1,
                ..Counts::default()
            }
        });
        table.push((step.name, counts, start.elapsed().as_secs_f64()));
        total += counts;
        if build && counts.failed > 0 {
            break;
        }
    }
    println!("\nstep         passed failed ignored left out  seconds");
    for (name, counts, seconds) in table {
        let Counts {
            passed,
            failed,
            ignored,
            left_out,
        } = counts;
        println!("{name:<12} {passed:>6} {failed:>6} {ignored:>7} {left_out:>8} {seconds:>8.1}");
    }
    if total.left_out > 0 {
        println!("{} tests were left out:", total.left_out);
    }
    // TEST-3
    total.failed += tools.report();
    println!("{} passed, {} failed", total.passed, total.failed);
    Ok(total.failed == 0 && (total.passed > 0 || names == ["build"]))
}

fn run_step(step: &Step, root: &Path, target: &Path, tools: &Tools) -> Result<Counts> {
    match step.work {
        Work::Seeds => seeds::run(root, &binary(target)?),
        Work::Examples => {
            // `cargo test` makes no program of an example that it is asked for by name, but a test.
            let mut command = workspace(root, "build", tools);
            command.args(EXAMPLES.map(|name| format!("--example={name}")));
            if !run_seen(&mut command, |_| {})? {
                bail!("the examples were not built");
            }
            examples(root, target)
        }
        Work::Wheel(_) if tools.lacks(setup::MATURIN) => {
            println!("SKIPPED: {} is left out", step.name);
            Ok(Counts::default())
        }
        Work::Wheel(arguments) => {
            let mut command = cargo_command(root, "test");
            command
                .arg("--no-fail-fast")
                .args(arguments)
                .env("PLUVIO_TEST_MATURIN", &tools.maturin);
            skip_missing(&mut command, tools);
            count(&mut command, step)
        }
        Work::Cargo(arguments) => {
            let mut command = workspace(root, "test", tools);
            command
                .args(arguments)
                .env("PLUVIO_TEST_MOTO", &tools.moto)
                .env("PLUVIO_TEST_PYTHON", &tools.python)
                .env("PLUVIO_TEST_DATASETS", &tools.datasets)
                .env("PLUVIO_TEST_BLOCK_TRACE", &tools.block_trace);
            if step.name == "integration" {
                command.env("RUST_TEST_THREADS", INTEGRATION_THREADS);
            }
            if step.name != "build" {
                skip_missing(&mut command, tools);
            }
            count(&mut command, step)
        }
    }
}

/// A cargo command in the profile of the tests.
fn cargo_command(root: &Path, verb: &str) -> Command {
    let mut command = cargo::command();
    command
        .current_dir(root)
        .args([verb, "--locked", "--profile", "test-fast"]);
    command
}

/// One over the whole workspace. All of these share what they build.
fn workspace(root: &Path, verb: &str, tools: &Tools) -> Command {
    let mut command = cargo_command(root, verb);
    command.arg("--workspace");
    for (needs, feature) in FEATURES {
        if !tools.lacks(needs) {
            command.args(["--features", feature]);
        }
    }
    command
}

/// Leaves out the tests that need something that is not here.
fn skip_missing(command: &mut Command, tools: &Tools) {
    command.arg("--");
    for missing in &tools.missing {
        command.args(["--skip", missing.tests]);
    }
}

/// Runs tests and adds up what they count.
fn count(command: &mut Command, step: &Step) -> Result<Counts> {
    let mut counts = Counts::default();
    let success = run_seen(command, |line| {
        if let Some(result) = parse_result(line) {
            counts += result;
        }
    })?;
    // TEST-2
    if !success && counts.failed == 0 {
        println!("{}: ended badly without counting a failure", step.name);
        counts.failed = 1;
    }
    Ok(counts)
}

/// A small cluster that ends with this value.
struct Cluster {
    dev: Child,
    coordinator: String,
}

impl Cluster {
    /// # Errors
    /// It does not start; its reason is on standard error.
    fn start(target: &Path) -> Result<Self> {
        let mut dev = Command::new(target.join("test-fast/pluvio"));
        dev.args(["dev", "--json", "--servers", "1", "--replicas", "1"])
            .args(["--redis-port", "0", "--coordinator-port", "0"])
            .stdout(Stdio::piped());
        let mut dev = dev.spawn().context("cannot start pluvio")?;
        let mut line = String::new();
        let stdout = dev.stdout.take().context("standard output was piped")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let mut this = Self {
            dev,
            coordinator: String::new(),
        };
        let ready: Value = serde_json::from_str(&line).context("the cluster did not start")?;
        let address = ready["coordinator"]["addr"].as_str();
        address
            .context("it says where it is")?
            .clone_into(&mut this.coordinator);
        Ok(this)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Its processes end with it.
        let _ended_already = self.dev.kill();
        let _status = self.dev.wait();
    }
}

/// Runs the examples of the embedded store and of the client, and compares what each says with what
/// it should.
fn examples(root: &Path, target: &Path) -> Result<Counts> {
    let cluster = Cluster::start(target)?;
    let folder = target.join("test-fast/examples");
    let kept = target.join("test-fast/tmp-example-durable");
    if kept.exists() {
        std::fs::remove_dir_all(&kept).context("cannot remove what a former run left")?;
    }
    let counting = || {
        let mut counting = Command::new(folder.join(EXAMPLES[1]));
        counting.stdin(File::open(root.join("README.md")).context("there is a README.md")?);
        anyhow::Ok(counting)
    };
    let durable = || {
        let mut durable = Command::new(folder.join(EXAMPLES[2]));
        durable.arg(&kept);
        durable
    };
    let mut hello = Command::new(folder.join(EXAMPLES[0]));
    hello.arg(&cluster.coordinator);
    let runs = [
        (hello, "done"),
        (counting()?, " bytes resident"),
        (durable(), "start number 1"),
        (durable(), "start number 2"),
    ];
    let mut counts = Counts::default();
    for (mut command, expected) in runs {
        let mut seen = false;
        let success = run_seen(&mut command, |line| seen |= line.ends_with(expected))?;
        if success && seen {
            counts.passed += 1;
        } else {
            println!("{command:?} did not say \"{expected}\", or failed");
            counts.failed += 1;
        }
    }
    Ok(counts)
}

/// The laboratory's binary that the build step made.
fn binary(target: &Path) -> Result<PathBuf> {
    let path = target.join("test-fast/pluvio-lab");
    if !path.exists() {
        bail!(
            "{} is missing: cargo builds it for the process tests of its crate",
            path.display()
        );
    }
    Ok(path)
}

/// Reads libtest's closing line: `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
fn parse_result(line: &str) -> Option<Counts> {
    let (_, list) = line
        .trim()
        .strip_prefix("test result: ")?
        .split_once(". ")?;
    let mut counts = Counts::default();
    for part in list.split(';') {
        let mut words = part.split_whitespace();
        let Some(Ok(count)) = words.next().map(str::parse) else {
            continue;
        };
        match words.next() {
            Some("passed") => counts.passed = count,
            Some("failed") => counts.failed = count,
            Some("ignored") => counts.ignored = count,
            Some("filtered") => counts.left_out = count,
            _ => {}
        }
    }
    Some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    // shows: TEST-1
    #[test]
    fn closing_lines_of_libtest_are_counted() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.10s";
        let counts = parse_result(line).expect("a closing line");
        assert_eq!(
            counts,
            Counts {
                passed: 12,
                failed: 3,
                ignored: 1,
                left_out: 2
            }
        );
        assert_eq!(parse_result("test result_is_read ... ok"), None);
        assert_eq!(parse_result("running 3 tests"), None);
    }

    #[test]
    fn the_build_comes_first_and_names_are_unique() {
        assert_eq!(STEPS[0].name, "build");
        for (index, step) in STEPS.iter().enumerate() {
            assert!(
                STEPS[index + 1..]
                    .iter()
                    .all(|other| other.name != step.name)
            );
        }
    }
}
