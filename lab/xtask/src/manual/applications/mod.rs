//! `cargo xtask applications [NAMES]`: the own tests of applications and client libraries of Redis,
//! against a cluster of ours.
//!
//! 1. The applications are fetched from the registries of their languages into
//!    `target/test-tools/applications`, at fixed versions. One that a registry has no more is
//!    skipped with a notice.
//! 2. Each suite gets a cluster of its own (`pluvio dev`), in a network and process namespace. The
//!    ports that suites expect are free there, and no process outlives the suite. With `--peer` it
//!    is a redis-server, for comparison.
//! 3. The suite says what came of each test. Tests that `tests/applications/left-out` names, each
//!    with the reason, count as left out.
//! 4. The table at the end is that of `docs/compatibility.md`.
//!
//! A test that fails and is not left out fails the task; so does a line of the lists that names no
//! test. Suites that this task does not know how to start are scenarios of our own, for libraries
//! whose packages contain no tests.
//!
//! Every program that is started has a time limit. Not part of CI: it fetches some 200 MB and takes
//! some ten minutes. Needs Python, Node.js, Go, Java, and a user who may make namespaces (root).

mod left_out;
mod place;
mod results;
mod suites;

use crate::cargo::{self, Metadata};
use crate::process::succeeds;
use anyhow::{Result, bail};
use left_out::LeftOut;
use place::{Place, Server, System};
use results::{Counts, Outcome};
use std::path::{Path, PathBuf};
use suites::{SUITES, Suite};

/// The binary that is tested, instead of one that is built here.
const BINARY: &str = "PLUVIO_BINARY";

/// Runs the suites that `words` name, or all; gives whether all is as it should be.
///
/// Flags: `--servers N` (1), `--peer` for redis-server in our place.
///
/// # Errors
/// The words make no sense, or the binary cannot be built.
pub fn run(root: &Path, words: &[&str]) -> Result<bool> {
    let (suites, system) = parse(root, words)?;
    let place = Place::new(root, &Metadata::load(root)?.target)?;
    let mut rows = Vec::new();
    let mut is_good = true;
    for suite in suites {
        println!("\n{}: {}", suite.name, suite.what);
        match run_suite(&place, suite, &system) {
            Ok(counts) => {
                counts.tell();
                is_good &= counts.is_good();
                rows.push(row(suite, &counts.to_string()));
            }
            Err(Skipped(why)) => {
                println!("SKIPPED: {}: {why}", suite.name);
                rows.push(row(suite, "skipped"));
            }
        }
    }
    println!(
        "\n| application | version | what was run | {} |",
        system.name()
    );
    println!("|---|---|---|---|");
    for row in rows {
        println!("{row}");
    }
    Ok(is_good)
}

fn row(suite: &Suite, came: &str) -> String {
    let Suite {
        application,
        version,
        what,
        ..
    } = suite;
    format!("| {application} | {version} | {what} | {came} |")
}

/// Why a suite could not be run here at all.
struct Skipped(String);

fn parse(root: &Path, words: &[&str]) -> Result<(Vec<&'static Suite>, System)> {
    let mut names = Vec::new();
    let (mut servers, mut is_peer) = (1, false);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "--peer" => is_peer = true,
            "--servers" => match words.next().map(|number| number.parse()) {
                Some(Ok(number @ 1..=16)) => servers = number,
                _ => bail!("--servers takes a number of servers, 16 at most"),
            },
            name => names.extend(super::names(name, "suite", SUITES.iter().map(|s| s.name))?),
        }
    }
    let wanted = |suite: &&Suite| names.is_empty() || names.iter().any(|name| name == suite.name);
    let system = match is_peer {
        true => System::Redis,
        false => System::Pluvio {
            binary: binary(root)?,
            servers,
        },
    };
    Ok((SUITES.iter().filter(wanted).collect(), system))
}

fn binary(root: &Path) -> Result<PathBuf> {
    if let Some(binary) = std::env::var_os(BINARY) {
        return Ok(binary.into());
    }
    let mut build = cargo::command();
    build.current_dir(root);
    build.args(["build", "--locked", "--profile", "test-fast"]);
    if !succeeds(build.args(["--package", "pluvio", "--bin", "pluvio"])) {
        bail!("the binary could not be built");
    }
    Ok(Metadata::load(root)?.target.join("test-fast/pluvio"))
}

fn run_suite(place: &Place, suite: &Suite, system: &System) -> Result<Counts, Skipped> {
    let skipped = |error: anyhow::Error| Skipped(format!("{error:#}"));
    let left_out = LeftOut::read(&place.left_out(suite.name)).map_err(skipped)?;
    (suite.fetch)(place).map_err(skipped)?;
    let server = Server::start(place, suite, system).map_err(skipped)?;
    let ran = suites::run(place, suite, &server, &left_out).map_err(skipped)?;
    let mut counts = Counts::new(ran.results, &left_out);
    // A suite that is ended has said nothing of the tests behind.
    if ran.timed_out {
        counts.add(Outcome::Failed, "the suite was ended: its time was over");
    }
    println!("its output: {}", ran.log.display());
    Ok(counts)
}
