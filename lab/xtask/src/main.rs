//! Tests, tidy checks and CI in one place: `cargo xtask TASK`.
//!
//! It knows no crate of the workspace and few others, so that it is built seconds after a clone.
//! The rest it reaches by running cargo, git and the built binary.
//!
//! What it does not do: benchmarks and experiments themselves (`pluvio bench`).

mod cargo;
mod ci;
mod manual;
mod process;
mod setup;
mod tidy;

use anyhow::Result;
use ci::test;
use manual::{applications, example, long, measure, packages, porcupine, tsan};
use std::process::ExitCode;

/// The tasks, each with what it does.
const TASKS: [(&str, &str); 16] = [
    (
        "test",
        "run every test; takes names of steps to run only those (`cargo xtask test unit sim`)",
    ),
    (
        "setup",
        "fetch what optional tests need: redis-cli, redis-server, redis-py, libfabric, moto, public data sets, and try what this machine \
         grants them; with --peers what experiments compare with: allocators, redis-server, valkey, memcached, etcd, samtools",
    ),
    (
        "measure-engine",
        "run every experiment of the storage engine, in some two hours, into docs/measurements: --only NAMES, \
         --folder FOLDER",
    ),
    (
        "day",
        "a day of a real cluster under load: start, add servers, balance, upgrade, kill, back up, lose all, restore; \
         --memory SIZE (96MiB), --keys N (48000), --bytes N (4000), --clients N (4), --seed N; --rounds N measures clients while tablets move",
    ),
    (
        "soak",
        "clients of a real cluster whose servers are killed at random, for --minutes N (30)",
    ),
    (
        "beside-redis",
        "measure the Redis port beside redis-server: --rounds N (3), --seconds N (1), --keys N (100000)",
    ),
    (
        "server-time",
        "measure the processor time of a server for a request beside Redis or valkey: --rounds N (3), --requests N \
         (400000), --keys N (500000), --peer PROGRAM (redis-server)",
    ),
    (
        "long-tests",
        "the engine's tests that take random steps, with --steps N (1000000) each: --only NAMES",
    ),
    (
        "applications",
        "the own tests of applications and client libraries of Redis, against a cluster of ours: NAMES, --servers N (1), \
         --peer for redis-server in its place",
    ),
    (
        "packages",
        "make and try what users install (Debian package, image, Helm chart, list of parts): STEPS, --release or --debug for \
         another profile",
    ),
    (
        "tsan",
        "the engine's tests under the thread sanitizer; takes flags of `cargo test` to run only those",
    ),
    (
        "porcupine",
        "check a history of `pluvio torture` with Porcupine, which needs Go: FILE",
    ),
    (
        "tidy",
        "check the rules of CONTRIBUTING.md that a machine can check; --ratchet lowers the numbers of what is not mended \
         yet, --places [ROOM] lists it",
    ),
    (
        "invariants",
        "write docs/invariants.md from the comments that state invariants and the tests that show them",
    ),
    (
        "arrows",
        "print the arrow table of ARCHITECTURE.md as the manifests have it",
    ),
    ("help", "print this"),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one task; gives whether it succeeded.
fn run(words: &[&str]) -> Result<bool> {
    let root = cargo::root()?;
    match words {
        ["test", steps @ ..] => test::run(&root, steps),
        ["setup"] => {
            let target = cargo::Metadata::load(&root)?.target;
            Ok(setup::run(&root, &target).report() == 0)
        }
        ["setup", "--peers"] => Ok(setup::peers(&cargo::Metadata::load(&root)?.target)),
        ["measure-engine", flags @ ..] => measure::run(&root, flags),
        ["day", flags @ ..] => example::run(&root, example::TESTS, "day", flags),
        ["soak", flags @ ..] => example::run(&root, example::RELEASE, "soak", flags),
        ["beside-redis", flags @ ..] => {
            example::run(&root, example::RELEASE, "beside_redis", flags)
        }
        ["server-time", flags @ ..] => example::run(&root, example::RELEASE, "server_time", flags),
        ["long-tests", flags @ ..] => long::run(&root, flags),
        ["applications", words @ ..] => applications::run(&root, words),
        ["packages", words @ ..] => packages::run(&root, words),
        ["tsan", words @ ..] => tsan::run(&root, words),
        ["porcupine", file] => porcupine::run(&root, file),
        ["tidy", flags @ ..] => tidy::run(&root, flags),
        ["invariants"] => {
            tidy::write_invariants(&root)?;
            Ok(true)
        }
        ["arrows"] => {
            tidy::print_table(&cargo::Metadata::load(&root)?);
            Ok(true)
        }
        ["help"] => {
            help();
            Ok(true)
        }
        _ => {
            eprintln!("error: no task `{}`", words.join(" "));
            help();
            Ok(false)
        }
    }
}

fn help() {
    println!("cargo xtask TASK");
    for (name, what) in TASKS {
        println!("  {name:<14} {what}");
    }
}
