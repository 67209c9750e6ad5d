//! `cargo xtask soak`: clients write and read while servers are killed at random, for as long as
//! wanted. The journals of `crates/cli/tests/processes/support` say what every read must find.
//!
//! The next server is killed when the last one's data is served again with all its replicas. Two
//! replicas promise to survive one death at a time. At the end everything is killed at once and
//! started again, and every key is compared. Exit code 1 means that something was lost. Then the
//! expected and the found value are printed, with the traces, and the data directory is kept.

#![allow(
    clippy::unwrap_used,
    reason = "of the support module, which serves tests"
)]

mod flags;
#[path = "../../../crates/cli/tests/processes/support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::time::Duration;
use support::cluster::{Cluster, Setup, sum};
use support::journal::{Journal, Load, NativeWay, RedisWay};
use support::patience::{Deadline, pause};
use support::program::signal;
use support::{Random, wait_for};

const HELP: &str = "cargo xtask soak [--minutes N=30] [--servers N=4] [--replicas R=2] [--clients N=8] [--memory SIZE=128MiB] [--seed N]";
/// Refused operations that are shown.
const SHOWN: usize = 5;

/// What was asked for.
struct Asked {
    minutes: f64,
    servers: u32,
    replicas: u32,
    clients: u64,
    memory: &'static str,
    seed: u64,
}

fn main() -> ExitCode {
    let usual = Asked {
        minutes: 30.0,
        servers: 4,
        replicas: 2,
        clients: 8,
        memory: "128MiB",
        seed: Random::seed(),
    };
    flags::main(HELP, usual, set, |asked| {
        // A state that never comes is a panic of the waiting functions.
        match std::panic::catch_unwind(|| run(&asked)) {
            Ok(Ok(())) => ExitCode::SUCCESS,
            Ok(Err(fault)) => {
                println!("LOST: {fault}");
                ExitCode::FAILURE
            }
            Err(_) => ExitCode::FAILURE,
        }
    })
}

fn set(asked: &mut Asked, flag: &str, value: flags::Value) -> Result<bool, String> {
    match flag {
        "--minutes" => asked.minutes = value.number()?,
        "--servers" => asked.servers = value.number()?,
        "--replicas" => asked.replicas = value.number()?,
        "--clients" => asked.clients = value.number()?,
        "--memory" => asked.memory = value.text().leak(),
        "--seed" => asked.seed = value.number()?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn run(asked: &Asked) -> Result<(), String> {
    println!(
        "{} servers, {} replicas, {} clients, {} minutes, --seed {}",
        asked.servers, asked.replicas, asked.clients, asked.minutes, asked.seed
    );
    let setup = Setup::servers(asked.servers)
        .replicas(asked.replicas)
        .memory(asked.memory)
        .flags(&["--respawn"]);
    let mut cluster = setup.start();
    cluster.keep(true);
    let outcome = torment(asked, &mut cluster);
    match &outcome {
        Ok(()) => cluster.keep(false),
        Err(_) => println!(
            "{}\nthe data is kept in {}",
            cluster.traces(),
            cluster.data().display()
        ),
    }
    outcome
}

fn torment(asked: &Asked, cluster: &mut Cluster) -> Result<(), String> {
    let mut random = Random::new(asked.seed);
    let load = Load::start(clients(asked, cluster));
    let end = Deadline::after(Duration::from_secs_f64(asked.minutes * 60.0));
    let mut kills = 0;
    while !end.over() && !load.failed() {
        let until = Deadline::after(Duration::from_millis(5000 + random.below(10_000)));
        while !until.over() && !end.over() && !load.failed() {
            pause(Duration::from_millis(100));
        }
        if end.over() || load.failed() {
            break;
        }
        let status = cluster.status();
        let servers = status["servers"].as_array().ok_or("no servers")?;
        let victim = random.choose(servers);
        let (id, pid) = (&victim["id"], victim["pid"].as_u64().ok_or("no pid")?);
        signal(
            u32::try_from(pid).map_err(|error| error.to_string())?,
            rustix::process::Signal::KILL,
        );
        kills += 1;
        let took = recovered(cluster, asked, id, &load);
        println!(
            "kill {kills}: server {id}; {took}; {} changes acknowledged",
            load.acknowledged()
        );
    }
    let mut journals = load.finish()?;
    report(&journals, kills);
    println!("comparing every key, then again after everything was killed at once");
    compare_all(cluster, &mut journals)?;
    cluster.kill_all();
    cluster.restart();
    compare_all(cluster, &mut journals)?;
    println!("nothing was lost");
    Ok(())
}

fn clients(asked: &Asked, cluster: &Cluster) -> Vec<Journal> {
    let one = |n: u64| {
        let seed = asked.seed.wrapping_add(n);
        if n.is_multiple_of(2) {
            let way = RedisWay::new(cluster.all_redis(), seed);
            Journal::new(format!("r{n}"), seed, Box::new(way), 4000)
        } else {
            let way = NativeWay::new(cluster.coordinator());
            Journal::new(format!("n{n}"), seed, Box::new(way), 4000)
        }
    };
    (0..asked.clients).map(one).collect()
}

/// Waits until the dead server is replaced, its data served, and every segment replicated.
fn recovered(cluster: &Cluster, asked: &Asked, id: &serde_json::Value, load: &Load) -> String {
    wait_for(
        "the next life of a killed server, with all replicas",
        || {
            if load.failed() {
                return Ok("a client found a fault".to_owned());
            }
            let status = cluster.settled(asked.servers as usize)?;
            let servers = status["servers"].as_array().ok_or("no servers")?;
            let missing = sum(&status, "segments_under_replicated");
            if servers.iter().any(|server| server["id"] == *id) || missing > 0 {
                return Err(format!("{missing} segments lack replicas"));
            }
            let recoveries = status["recoveries"].as_array().ok_or("no recoveries")?;
            let this = recoveries.iter().rev().find(|one| one["crashed"] == *id);
            Ok(match this {
                Some(one) => format!(
                    "recovered in {} ms: {} objects, {} bytes, {} servers",
                    one["duration_ms"],
                    one["objects"],
                    one["bytes"],
                    one["masters"].as_array().map_or(0, Vec::len)
                ),
                None => "nothing to recover".to_owned(),
            })
        },
    )
}

fn compare_all(cluster: &Cluster, journals: &mut [Journal]) -> Result<(), String> {
    for (n, journal) in journals.iter_mut().enumerate() {
        journal.go(Box::new(RedisWay::new(cluster.all_redis(), n as u64)));
        journal.compare_all()?;
        journal.go(Box::new(NativeWay::new(cluster.coordinator())));
        journal.compare_all()?;
    }
    Ok(())
}

fn report(journals: &[Journal], kills: u64) {
    let total = |count: fn(&Journal) -> u64| journals.iter().map(count).sum::<u64>();
    let broken = total(|journal| journal.troubles.len() as u64 - journal.refusals().len() as u64);
    let refusals: Vec<&str> = journals.iter().flat_map(Journal::refusals).collect();
    println!(
        "{kills} kills; {} changes acknowledged, {} reads compared; {broken} broken connections, {} refused operations",
        total(|journal| journal.acknowledged),
        total(|journal| journal.compared),
        refusals.len()
    );
    for text in refusals.iter().take(SHOWN) {
        println!("  refused: {text}");
    }
}
