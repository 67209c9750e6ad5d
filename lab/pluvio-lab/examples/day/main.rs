//! `cargo xtask day`: a day in the life of a cluster of real processes, hour by hour, under load.
//!
//! 1. Three servers and two coordinators start, and clients fill them.
//! 2. Two servers are added, and balancing gives them their share.
//! 3. Everything is upgraded one by one and finalized. One program plays both builds: it is told
//!    which versions it speaks.
//! 4. A server is killed. The cluster is backed up under load.
//! 5. Everything is killed and deleted, and a cluster of another size is restored from the backup.
//!
//! The writers are journals of `crates/cli/tests/processes/support`, over the Redis protocol and
//! over the client library. They know what each read must find. redis-benchmark runs beside them,
//! if it is there. Each hour tells what was done, how long it took, how long clients waited, and
//! what they were refused.
//!
//! It is good if no client found a value lost, older or damaged, and none was refused anything.
//! Connections to a process that stops or dies may break. In the restored cluster each key must
//! have its last change known before the backup, or a later one.
//!
//! Exit code 1 means that this does not hold, or that a state did not come. The last line begins
//! with `LOST:` or `FAILED:`. Then the directory with data and traces is kept.

#![allow(
    clippy::unwrap_used,
    reason = "of the support module, which serves tests"
)]

mod crew;
#[path = "../flags/mod.rs"]
mod flags;
mod load;
mod rounds;
#[path = "../../../../crates/cli/tests/processes/support/mod.rs"]
mod support;

use crew::{Crew, NEW, OLD};
use load::Clients;
use serde_json::Value;
use std::process::ExitCode;
use std::time::Duration;
use support::Random;
use support::patience::{Deadline, Watch, pause};
use tempfile::TempDir;

const HELP: &str = "cargo xtask day [--memory SIZE=96MiB] [--keys N=48000] [--bytes N=4000] \
                    [--clients N=4] [--seed N] [--rounds N]";
/// Servers at the beginning, those that are added, and those of the restored cluster.
const SERVERS: [usize; 3] = [3, 2, 4];
/// For how long balancing may take.
const BALANCE_MAX: Duration = Duration::from_secs(150);
/// An hour without a deed lasts as long.
const QUIET: Duration = Duration::from_secs(6);
/// Looks that must find balancing at rest, one after the other.
const EVEN_LOOKS: u32 = 4;

/// What was asked for.
struct Asked {
    memory: &'static str,
    keys: usize,
    bytes: usize,
    clients: usize,
    seed: u64,
    /// Turns of [`rounds`] in place of the day; 0 for the day.
    rounds: u32,
}

fn main() -> ExitCode {
    let usual = Asked {
        memory: "96MiB",
        keys: 48_000,
        bytes: 4000,
        clients: 4,
        seed: Random::seed(),
        rounds: 0,
    };
    flags::main(HELP, usual, set, |asked| {
        let mut directory = tempfile::tempdir().expect("a temporary directory");
        let watch = Watch::start();
        // A state that never comes is a panic of the waiting functions.
        let ended = std::panic::catch_unwind(|| match asked.rounds {
            0 => run(&asked, &directory),
            rounds => rounds::run(&asked, directory.path(), rounds),
        });
        let problem = match ended {
            Ok(Ok(())) => {
                println!("nothing was lost, in {:.0} s", watch.passed().as_secs_f64());
                return ExitCode::SUCCESS;
            }
            Ok(Err(problem)) => problem,
            Err(_) => "FAILED: a state did not come; the panic above says which".to_owned(),
        };
        directory.disable_cleanup(true);
        let kept = directory.path().display();
        println!("data and traces are kept in {kept}; --seed {}", asked.seed);
        println!("{problem}");
        ExitCode::FAILURE
    })
}

fn set(asked: &mut Asked, flag: &str, value: flags::Value) -> Result<bool, String> {
    match flag {
        "--memory" => asked.memory = value.text().leak(),
        "--keys" => asked.keys = value.number()?,
        "--bytes" => asked.bytes = value.number()?,
        "--clients" => asked.clients = value.number::<usize>()?.max(1),
        "--seed" => asked.seed = value.number()?,
        "--rounds" => asked.rounds = value.number()?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// The cluster and its clients.
struct Day {
    crew: Crew,
    clients: Clients,
}

impl Day {
    /// One hour: clients work while `deed` is done; gives what it gave.
    fn hour<T>(&mut self, name: &str, deed: impl FnOnce(&mut Crew) -> T) -> Result<T, String> {
        self.clients.begin();
        let watch = Watch::start();
        let done = deed(&mut self.crew);
        let took = watch.passed();
        self.clients.end(name, took)?;
        Ok(done)
    }
}

fn run(asked: &Asked, directory: &TempDir) -> Result<(), String> {
    let watch = Watch::start();
    let crew = Crew::start(directory.path(), asked.memory, OLD, SERVERS[0]);
    load::tell("three servers start", watch.passed(), "");
    let watch = Watch::start();
    let mut clients = Clients::new(asked, &crew);
    clients.fill()?;
    load::tell(
        "clients fill them",
        watch.passed(),
        &fullness(&crew.status()),
    );
    clients.stay(&crew);
    let mut day = Day { crew, clients };

    day.hour("nothing happens", |_| pause(QUIET))?;
    day.hour("two servers are added", |crew| {
        crew.add(SERVERS[1]);
        crew.wait_settled();
    })?;
    day.clients.stay(&day.crew);
    balance(&mut day)?;
    upgrade(&mut day)?;
    balance(&mut day)?;
    let (_, address) = day.crew.last();
    day.clients.avoid(address);
    let recovered = day.hour("a server gets SIGKILL", |crew| {
        let killed = crew.kill_last();
        crew.wait_settled();
        crew.recovery_of(&killed)
    })?;
    println!("{:4}{recovered}", "");
    day.clients.stay(&day.crew);

    let place = directory.path().join("archives");
    let place = place
        .to_str()
        .expect("temporary directories have plain names");
    let known = day.clients.known();
    let archive = day.hour("a backup", |crew| {
        crew.ask(&["backup", "--rate", "20MiB", place])
    })?;
    println!("{:4}{}", "", archive.trim_end());
    day.hour("its verification", |crew| {
        crew.ask(&["backup", "verify", place])
    })?;

    day.crew.lose_all();
    let Day { mut clients, .. } = day;
    let watch = Watch::start();
    let crew = Crew::start(directory.path(), asked.memory, NEW, SERVERS[2]);
    let restored = crew.ask(&["restore", place]);
    load::tell("all is lost and restored elsewhere", watch.passed(), "");
    println!("{:4}{}", "", restored.trim_end());
    clients.move_to(&crew, &known);
    let watch = Watch::start();
    clients.compare_all(&crew)?;
    load::tell("all is compared", watch.passed(), &fullness(&crew.status()));
    clients.stay(&crew);
    let mut day = Day { crew, clients };
    day.hour("the restored cluster works", |_| pause(QUIET))?;
    day.clients.compare_all(&day.crew)
}

/// Waits until balancing has nothing to do.
fn balance(day: &mut Day) -> Result<(), String> {
    let before = fullness(&day.crew.status());
    let moves = day.hour("balancing evens it out", |crew| {
        let deadline = Deadline::after(BALANCE_MAX);
        let mut looks = 0;
        loop {
            let plan = crew.ask_json(&["balance", "--dry-run"]);
            let planned = plan["moves"].as_array().map_or(0, Vec::len);
            looks = match plan["phase"] == "even" && planned == 0 {
                true => looks + 1,
                false => 0,
            };
            if looks >= EVEN_LOOKS {
                return Ok(plan["begun"].as_u64().unwrap_or(0));
            }
            if deadline.over() {
                return Err(format!("FAILED: balancing does not end: {plan}"));
            }
            pause(Duration::from_millis(500));
        }
    })??;
    let after = fullness(&day.crew.status());
    println!("{:4}{moves} moves; {before} before, {after} after", "");
    Ok(())
}

/// Everything is replaced by a newer build, one by one, as `docs/operations.md` has it.
fn upgrade(day: &mut Day) -> Result<(), String> {
    for index in [1, 0] {
        let name = format!("coordinator {} is upgraded", index + 1);
        day.hour(&name, |crew| {
            crew.upgrade_coordinator(index, NEW);
            crew.wait_settled();
        })?;
    }
    for number in day.crew.numbers() {
        let address = day.crew.redis_of(number);
        day.clients.avoid(address);
        day.hour(&format!("server {number} is upgraded"), |crew| {
            crew.upgrade_server(number, NEW);
            crew.wait_settled();
        })?;
    }
    day.clients.stay(&day.crew);
    let said = day.hour("the upgrade is finalized", |crew| crew.ask(&["finalize"]))?;
    println!("{:4}{}", "", said.trim_end());
    Ok(())
}

/// How full each server is, in MiB.
fn fullness(status: &Value) -> String {
    let servers = crew::list(&status["servers"]);
    let live = |server: &Value| server["memory_live"].as_u64().unwrap_or(0) >> 20;
    let each: Vec<String> = servers.iter().map(|s| live(s).to_string()).collect();
    format!("live MiB {}", each.join(" "))
}
