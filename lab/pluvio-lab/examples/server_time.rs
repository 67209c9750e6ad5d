//! `cargo xtask server-time`: the processor time of a server for one request, beside valkey or
//! Redis, in turns on the same machine. It prints a table of medians for
//! `docs/measurements/redis-port.md`.
//!
//! The load comes from `redis-benchmark`: 50 connections, keys at random, values of 100 bytes. The
//! figure hardly depends on the load generator, since only time of the server's threads counts.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "the first is of the support module, which serves tests; this measures real time"
)]

mod flags;
#[path = "../../../crates/cli/tests/processes/support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;
use support::cluster::{Cluster, Setup};
use support::resp::Resp;
use support::wait_for;

const HELP: &str = "cargo xtask server-time [--rounds N=3] [--requests N=400000] [--keys N=500000] \
                    [--peer PROGRAM=redis-server]";
/// The port of the peer.
const PEER_PORT: u16 = 17_640;
/// The loads: the command, and the length of a pipeline.
const LOADS: [(&str, u32); 4] = [("get", 1), ("get", 16), ("set", 1), ("set", 16)];
/// Pluvio with one core: its name, replicas, and durability.
const OURS: [(&str, u32, &str); 3] = [
    ("no replicas", 0, "buffered"),
    ("own disk, buffered", 1, "buffered"),
    ("own disk, synced", 1, "synced"),
];

struct Asked {
    rounds: u32,
    requests: u64,
    keys: u64,
    peer: String,
}

/// A server under load.
struct System {
    name: String,
    pid: u32,
    port: String,
}

/// A process that ends with this value.
struct Ends(
    Child,
    #[allow(dead_code, reason = "removed when dropped")] tempfile::TempDir,
);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() -> ExitCode {
    let usual = Asked {
        rounds: 3,
        requests: 400_000,
        keys: 500_000,
        peer: "redis-server".to_owned(),
    };
    flags::main(HELP, usual, set, |asked| {
        compare(&asked);
        ExitCode::SUCCESS
    })
}

fn set(asked: &mut Asked, flag: &str, value: flags::Value) -> Result<bool, String> {
    match flag {
        "--rounds" => asked.rounds = value.number()?,
        "--requests" => asked.requests = value.number()?,
        "--keys" => asked.keys = value.number()?,
        "--peer" => asked.peer = value.text(),
        _ => return Ok(false),
    }
    Ok(true)
}

fn compare(asked: &Asked) {
    let peers = [
        ("volatile", &[][..]),
        (
            "fsync always",
            &["--appendonly", "yes", "--appendfsync", "always"][..],
        ),
    ];
    let mut held = Vec::new();
    let mut systems = Vec::new();
    for ((promise, flags), port) in peers.into_iter().zip(PEER_PORT..) {
        let peer = start_peer(&asked.peer, flags, port);
        systems.push(System {
            name: format!("{} {promise}", short_name(&asked.peer)),
            pid: peer.0.id(),
            port: port.to_string(),
        });
        held.push(peer);
    }
    let clusters = OURS.map(|(_, replicas, durability)| start_ours(replicas, durability));
    for ((name, ..), cluster) in OURS.into_iter().zip(&clusters) {
        let address = cluster.redis(0);
        let port = address.rsplit(':').next().expect("an address has a port");
        systems.push(System {
            name: format!("Pluvio, {name}"),
            pid: cluster.pid(0),
            port: port.to_owned(),
        });
    }
    for system in &systems {
        run_load(asked, system, ("set", 32), asked.keys);
    }
    println!(
        "| load | system | server µs | of {} | requests/s |",
        systems[0].name
    );
    println!("|---|---|---:|---:|---:|");
    for load in LOADS {
        let mut seen: Vec<Vec<(f64, f64)>> = systems.iter().map(|_| Vec::new()).collect();
        for _ in 0..asked.rounds {
            for (system, seen) in systems.iter().zip(&mut seen) {
                seen.push(run_load(asked, system, load, asked.requests));
            }
        }
        let median = |values: Vec<f64>| {
            let mut values = values;
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let of = |seen: &[(f64, f64)]| {
            let time = median(seen.iter().map(|s| s.0).collect());
            (time, median(seen.iter().map(|s| s.1).collect()))
        };
        let (base, _) = of(&seen[0]);
        for (system, seen) in systems.iter().zip(&seen) {
            let (time, rate) = of(seen);
            let (what, pipeline) = (load.0.to_uppercase(), load.1);
            let name = &system.name;
            let ratio = time / base;
            println!(
                "| {what}, pipeline {pipeline} | {name} | {time:.2} | {ratio:.2} | {rate:.0} |"
            );
        }
    }
}

fn short_name(program: &str) -> String {
    let name = PathBuf::from(program);
    let name = name.file_name().unwrap_or_default().to_string_lossy();
    name.trim_end_matches("-server").to_owned()
}

fn start_peer(program: &str, flags: &[&str], port: u16) -> Ends {
    let directory = tempfile::tempdir().expect("a directory for temporary files");
    let mut peer = Command::new(program);
    peer.args(["--port", &port.to_string(), "--save", ""])
        .args(flags);
    peer.arg("--dir").arg(directory.path());
    let child = peer.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = child.expect("the peer is installed (cargo xtask setup)");
    let address = format!("127.0.0.1:{port}");
    wait_for("the peer", || {
        let mut resp = Resp::try_connect(&address).map_err(|error| error.to_string())?;
        resp.try_call(&["PING"]).map_err(|error| error.to_string())
    });
    let ended = child.try_wait().expect("it is our child");
    assert!(ended.is_none(), "another program answers on port {port}");
    Ends(child, directory)
}

fn start_ours(replicas: u32, durability: &'static str) -> Cluster {
    Setup::servers(1)
        .replicas(replicas)
        .memory("1GiB")
        .flags(&["--durability", durability])
        .start()
}

/// Microseconds that all threads of a process have run.
fn processor_us(pid: u32) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    let ran = tasks.flatten().filter_map(|task| {
        let stat = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        stat.split(' ').next()?.parse::<f64>().ok()
    });
    ran.sum::<f64>() / 1e3
}

/// Processor time of a request in microseconds, and requests a second.
fn run_load(
    asked: &Asked,
    system: &System,
    (what, pipeline): (&str, u32),
    count: u64,
) -> (f64, f64) {
    let mut load = Command::new("redis-benchmark");
    load.args([
        "-p",
        &system.port,
        "-t",
        what,
        "-c",
        "50",
        "-d",
        "100",
        "-q",
    ]);
    load.args(["-r", &asked.keys.to_string(), "-n", &count.to_string()]);
    load.args(["-P", &pipeline.to_string()]);
    let (before, start) = (processor_us(system.pid), Instant::now());
    let status = load.stdout(Stdio::null()).status();
    let status = status.expect("redis-benchmark is installed (cargo xtask setup)");
    assert!(status.success(), "{what} at {}: {status}", system.name);
    let (used, passed) = (processor_us(system.pid) - before, start.elapsed());
    (used / count as f64, count as f64 / passed.as_secs_f64())
}
