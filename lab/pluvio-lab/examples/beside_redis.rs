//! `cargo xtask beside-redis`: the Redis port of Pluvio and Redis itself under the same load, with
//! equal promises, in turns on the same machine. It writes a table of medians for
//! `docs/measurements/redis-port.md`.
//!
//! One system runs at a time, started anew for each of its turns. The load comes from `pluvio
//! bench`.

#![allow(
    clippy::unwrap_used,
    reason = "of the support module, which serves tests"
)]

mod flags;
#[path = "../../../crates/cli/tests/processes/support/mod.rs"]
mod support;

use serde_json::Value;
use std::collections::BTreeMap;
use std::process::{Child, Command, ExitCode, Stdio};
use support::cluster::{Cluster, Setup, sum};
use support::program::{command, run, signal};
use support::resp::{Reply, Resp};
use support::wait_for;

const HELP: &str = "cargo xtask beside-redis [--rounds N=3] [--seconds N=1] [--keys N=100000]";
/// Ports of the Redis processes: this one and the next two.
const REDIS_PORT: u16 = 17_600;
/// Objects for the measurement of memory, and bytes of a value.
const MEMORY: (u64, usize) = (1_000_000, 100);
/// Bytes of a key of `pluvio bench`.
const KEY_BYTES: usize = 24;
/// Objects and bytes of a value for the measurement of recovery.
const RECOVERY: (u64, usize) = (400_000, 1000);

/// What is measured in one go.
struct Asked {
    rounds: u32,
    seconds: f64,
    keys: u64,
}

/// Systems that promise the same.
struct Rivals {
    promise: &'static str,
    redis: Redis,
    pluvio: &'static [Pluvio],
}

/// How Redis is started.
#[derive(Clone, Copy)]
struct Redis {
    flags: &'static [&'static str],
    replicas: u16,
}

/// How Pluvio is started.
#[derive(Clone, Copy)]
struct Pluvio {
    name: &'static str,
    servers: u32,
    replicas: u32,
    durability: &'static str,
}

const RIVALS: [Rivals; 3] = [
    Rivals {
        promise: "one process, as Redis comes: a crash loses what was written since the last snapshot",
        redis: Redis {
            flags: &[],
            replicas: 0,
        },
        pluvio: &[
            Pluvio {
                name: "Pluvio, no replicas",
                servers: 1,
                replicas: 0,
                durability: "buffered",
            },
            Pluvio {
                name: "Pluvio, own disk, buffered: a crash of the process loses nothing",
                servers: 1,
                replicas: 1,
                durability: "buffered",
            },
        ],
    },
    Rivals {
        promise: "one process, every write on disk before the reply: a power cut loses nothing",
        redis: Redis {
            flags: &["--appendonly", "yes", "--appendfsync", "always"],
            replicas: 0,
        },
        pluvio: &[Pluvio {
            name: "Pluvio, own disk, synced",
            servers: 1,
            replicas: 1,
            durability: "synced",
        }],
    },
    Rivals {
        promise: "every write at two other processes before the reply",
        redis: Redis {
            flags: &[],
            replicas: 2,
        },
        pluvio: &[Pluvio {
            name: "Pluvio, three servers, two replicas, buffered",
            servers: 3,
            replicas: 2,
            durability: "buffered",
        }],
    },
];

/// Medians are taken over rounds: all values seen of a cell.
type Cells = BTreeMap<(usize, String, String), Vec<(f64, f64, f64)>>;

fn main() -> ExitCode {
    let usual = Asked {
        rounds: 3,
        seconds: 1.0,
        keys: 100_000,
    };
    flags::main(HELP, usual, set, |asked| {
        compare(&asked);
        ExitCode::SUCCESS
    })
}

fn set(asked: &mut Asked, flag: &str, value: flags::Value) -> Result<bool, String> {
    match flag {
        "--rounds" => asked.rounds = value.number()?,
        "--seconds" => asked.seconds = value.number()?,
        "--keys" => asked.keys = value.number()?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn compare(asked: &Asked) {
    let mut cells = Cells::new();
    for round in 1..=asked.rounds {
        for (at, rivals) in RIVALS.iter().enumerate() {
            eprintln!("round {round}: {}", rivals.promise);
            let redis = RedisServers::start(rivals.redis);
            let wait = u32::from(rivals.redis.replicas);
            measure(asked, &redis.addresses(), wait, (at, "Redis"), &mut cells);
            drop(redis);
            for pluvio in rivals.pluvio {
                let cluster = pluvio.start("1GiB");
                let system = (at, pluvio.name);
                measure(asked, &cluster.all_redis(), 0, system, &mut cells);
            }
        }
    }
    print_tables(&cells);
    print_memory();
    print_recovery();
}

/// Redis, perhaps with replicas. Its processes and files are gone when it is dropped.
struct RedisServers {
    children: Vec<Child>,
    _directory: tempfile::TempDir,
}

impl RedisServers {
    fn start(redis: Redis) -> Self {
        let directory = tempfile::tempdir().expect("a directory for temporary files");
        let mut children = Vec::new();
        for n in 0..=redis.replicas {
            let own = directory.path().join(n.to_string());
            std::fs::create_dir(&own).expect("the directory above is ours");
            let mut server = Command::new("redis-server");
            server.args(["--port", &(REDIS_PORT + n).to_string()]);
            server.arg("--dir").arg(&own).args(redis.flags);
            if n > 0 {
                server.args(["--replicaof", "127.0.0.1", &REDIS_PORT.to_string()]);
            }
            let child = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            children.push(child.expect("redis-server is installed (cargo xtask setup)"));
        }
        let this = Self {
            children,
            _directory: directory,
        };
        let wanted = redis.replicas.to_string();
        wait_for("Redis, with its replicas", || {
            let address = this.addresses().remove(0);
            let mut resp = Resp::try_connect(&address).map_err(|error| error.to_string())?;
            match resp.try_call(&["WAIT", &wanted, "100"]) {
                Ok(Reply::Integer(n)) if n >= i64::from(redis.replicas) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        this
    }

    fn addresses(&self) -> Vec<String> {
        vec![format!("127.0.0.1:{REDIS_PORT}")]
    }
}

impl Drop for RedisServers {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Pluvio {
    fn start(self, memory: &'static str) -> Cluster {
        Setup::servers(self.servers)
            .replicas(self.replicas)
            .memory(memory)
            .flags(&["--durability", self.durability])
            .start()
    }
}

/// Runs `pluvio bench` with these arguments.
fn bench(arguments: &[&str]) -> Value {
    run(command().args(["bench"]).args(arguments).arg("--json"), b"").json()
}

/// Measures every cell of one system once.
fn measure(
    asked: &Asked,
    addresses: &[String],
    wait: u32,
    (group, system): (usize, &str),
    cells: &mut Cells,
) {
    let (addresses, wait) = (addresses.join(","), wait.to_string());
    let (keys, seconds) = (asked.keys.to_string(), format!("{}s", asked.seconds));
    let mut common = vec![
        "--redis",
        &addresses,
        "--keys",
        &keys,
        "--seconds",
        &seconds,
    ];
    common.extend(["--warmup", "300ms", "--value-size", "100,1000"]);
    if wait != "0" {
        common.extend(["--wait", &wait]);
    }
    for what in ["throughput", "latency"] {
        let report = bench(&[&[what], &common[..]].concat());
        for row in report["rows"].as_array().expect("a report has rows") {
            assert_eq!(row["errors"], 0, "{row}");
            let load = &row["workload"];
            let cell = format!(
                "{} {} B, {}",
                row["name"].as_str().expect("a row has a name"),
                load["value_size"],
                match what {
                    "latency" => "one connection".to_owned(),
                    _ => format!("50 connections, pipeline {}", load["pipeline"]),
                }
            );
            let latency = &row["latency_us"];
            let seen = (
                number(&row["ops_per_s"]),
                number(&latency["p50"]),
                number(&latency["p99"]),
            );
            let cell = (group, cell, system.to_owned());
            cells.entry(cell).or_default().push(seen);
        }
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("measurements are numbers")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn print_tables(cells: &Cells) {
    for (at, rivals) in RIVALS.iter().enumerate() {
        let names: Vec<&str> = core::iter::once("Redis")
            .chain(rivals.pluvio.iter().map(|p| p.name))
            .collect();
        println!("\n### {}\n", rivals.promise);
        println!("| operations/s (p50 / p99 in µs) | {} |", names.join(" | "));
        println!("|---|{}", "---|".repeat(names.len()));
        let rows: std::collections::BTreeSet<&String> = cells
            .keys()
            .filter(|(group, ..)| *group == at)
            .map(|(_, cell, _)| cell)
            .collect();
        for row in rows {
            let mut line = format!("| {row} |");
            let mut first = None;
            for name in &names {
                let seen = &cells[&(at, row.clone(), (*name).to_owned())];
                let of = |f: fn(&(f64, f64, f64)) -> f64| median(seen.iter().map(f).collect());
                let (ops, p50, p99) = (of(|s| s.0), of(|s| s.1), of(|s| s.2));
                line.push_str(&format!(" {ops:.0} ({p50:.0} / {p99:.0})"));
                match first {
                    None => first = Some(ops),
                    Some(redis) => line.push_str(&format!(", {:.2} ×", ops / redis)),
                }
                line.push_str(" |");
            }
            println!("{line}");
        }
    }
}

/// Bytes of memory that a process has.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .expect("the process is ours and runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line
        .expect("Linux tells what is resident")
        .trim()
        .trim_end_matches(" kB");
    kib.parse::<u64>().expect("a number of KiB") * 1024
}

fn print_memory() {
    let (objects, value) = MEMORY;
    let stored = objects * (KEY_BYTES + value) as u64;
    let load = |address: &str| {
        let (keys, value) = (objects.to_string(), value.to_string());
        bench(&[
            "load",
            "--redis",
            address,
            "--keys",
            &keys,
            "--value-size",
            &value,
        ]);
    };
    println!("\n### Memory for {objects} objects of {KEY_BYTES} + {value} B\n");
    println!("| | bytes resident for a byte stored, beside the empty process |\n|---|---|");
    let redis = RedisServers::start(RIVALS[0].redis);
    let pid = redis.children[0].id();
    let empty = resident(pid);
    load(&redis.addresses()[0]);
    let used = resident(pid) - empty;
    println!("| Redis | {:.2} |", used as f64 / stored as f64);
    drop(redis);
    let cluster = RIVALS[0].pluvio[1].start("1GiB");
    let empty = resident(cluster.pid(0));
    load(&cluster.redis(0));
    let used = resident(cluster.pid(0)) - empty;
    println!("| Pluvio | {:.2} |", used as f64 / stored as f64);
}

fn print_recovery() {
    let (objects, value) = RECOVERY;
    let cluster = Setup::servers(4).memory("1GiB").start();
    let (keys, size) = (objects.to_string(), value.to_string());
    let all = cluster.all_redis().join(",");
    bench(&[
        "load",
        "--redis",
        &all,
        "--keys",
        &keys,
        "--value-size",
        &size,
    ]);
    let id = &cluster.servers()[0]["id"];
    signal(cluster.pid(0), rustix::process::Signal::KILL);
    let recovery = wait_for("the recovery", || {
        let status = cluster.settled(3)?;
        let missing = sum(&status, "segments_under_replicated");
        let recoveries = status["recoveries"].as_array().ok_or("no recoveries")?;
        let this = recoveries.iter().find(|one| one["crashed"] == *id);
        let this = this.ok_or("it has not begun")?.clone();
        if missing > 0 {
            return Err(format!("{missing} segments lack replicas"));
        }
        Ok(this)
    });
    println!(
        "\n### Recovery of one of four servers, two replicas, {objects} objects of {value} B in all\n"
    );
    let (bytes, ms) = (&recovery["bytes"], &recovery["duration_ms"]);
    let mb_per_s = number(bytes) / 1e3 / number(ms);
    println!(
        "{} objects, {bytes} bytes on {} servers in {ms} ms: {mb_per_s:.0} MB/s",
        recovery["objects"],
        recovery["masters"].as_array().map_or(0, Vec::len)
    );
}
