//! `pluvio bench ycsb`: the core workloads of YCSB over our client and our Redis port, beside
//! servers of others, in turns.
//!
//! A record is one value: updates write all of it, and a read reads all of it.

use super::failure;
use crate::experiment::{Files, tell};
use crate::systems::drive::{Ran, Spell, load, ycsb as drive};
use crate::systems::{Keeps, Ours, System};
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use pluvio_bench::experiment::{Experiment, Panel, Picture, Row, Shape, Spread};
use pluvio_bench::peer::{Peer, Product, Promise};
use pluvio_bench::workload::ycsb::{E_IS_NOT_SERVED, Records, Ycsb};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{bar, say};
use pluvio_console::tls::TlsArgs;
use pluvio_env::Env;
use pluvio_load::Machine;
use pluvio_local::temporary;
use pluvio_units::{Size, VALUE_MAX};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// `pluvio bench ycsb`.
#[derive(Args, Clone, Debug)]
pub struct YcsbBench {
    /// The workloads: A, B, C, D, F; several give a row each. E scans ranges of keys in order,
    /// which hashed tables do not serve
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = ["A", "B", "C", "D", "F"])]
    workload: Vec<Ycsb>,
    /// Systems that take part [default: all that are installed]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    system: Vec<Candidate>,
    /// Where a write is kept before it is answered; several give rows each. Others promise none
    /// or synced
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, default_values_t = Keeps::ALL)]
    durability: Vec<Keeps>,
    /// Records of each system
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    records: u64,
    /// Bytes of a record's value: ten fields of 100 bytes, as one
    #[arg(long, value_name = "BYTES", default_value_t = 1000)]
    value_size: usize,
    /// Callers, each with one request under way
    #[arg(long, value_name = "N", default_value_t = 32)]
    callers: usize,
    /// How long each round is, in seconds
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    seconds: f64,
    /// Rounds, taken in turn by all systems
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Seed of operations and values
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    files: Files,
}

/// A system that can take part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Candidate {
    /// Ours, by the native client
    Pluvio,
    /// Ours, by the Redis port
    PluvioRedis,
    /// redis-server
    Redis,
    /// valkey-server
    Valkey,
    /// memcached, with one thread
    Memcached,
    /// etcd, one member, with all processors
    Etcd,
}

/// How long a round runs before it counts, as a part of its length.
const WARMUP_SHARE: f64 = 0.2;
/// Callers that load: enough for a disk that syncs many writes together.
const LOADERS: usize = 64;
/// Bytes of an object beside its value: its key, heads, and its place in the index.
const OVERHEAD: u64 = 120;
/// Room of our servers, as a multiple of both tables in the beginning. The rest is for the log's
/// free part, and for the records that workload D inserts.
const ROOM: f64 = 2.5;
/// Room that a server needs whatever it holds.
const MEMORY_LEAST: u64 = 192 << 20;

/// Runs `pluvio bench ycsb`.
pub fn ycsb(global: &Global, bench: &YcsbBench) -> Result<ExitCode, Failure> {
    check(bench)?;
    let machine = Machine::this();
    let progress = bar(0, "starting", false);
    say(E_IS_NOT_SERVED);
    let peers = start_peers(bench, &progress)?;
    let directory = temporary::directory("pluvio-bench-", "set TMPDIR")?;
    let (own, job, place) = (global.clone(), bench.clone(), directory.path().to_owned());
    let told = progress.clone();
    let result = temporary::until_stopped(&TlsArgs::default(), move |env| async move {
        let mut held = Vec::new();
        let outcome = play(&env, &own, &job, &place, &peers, &mut held, &told).await;
        for cluster in held {
            cluster.stop().await;
        }
        outcome
    });
    temporary::end(directory, result.as_ref().err());
    progress.finish_and_clear();
    let seen = result?;
    let mut experiment = Experiment::new("ycsb", parameters(bench));
    experiment.machine = machine;
    let picture = report(&mut experiment, bench, &seen);
    tell(global, &bench.files, &experiment, &picture)?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses what cannot be measured before anything is.
fn check(bench: &YcsbBench) -> Result<(), Failure> {
    let refused = |text: String| Err(Failure::usage(text));
    let within = |name: &str, value: u64, most: u64| match (1..=most).contains(&value) {
        true => Ok(()),
        false => refused(format!("--{name} {value}: 1 to {most} are possible")),
    };
    within("records", bench.records, 100_000_000)?;
    within("value-size", bench.value_size as u64, VALUE_MAX as u64)?;
    within("callers", bench.callers as u64, 1000)?;
    within("rounds", bench.rounds as u64, 1000)?;
    match (0.001..=3600.0).contains(&bench.seconds) {
        true => Ok(()),
        false => refused(format!(
            "--seconds {}: 0.001 to 3600 are possible",
            bench.seconds
        )),
    }
}

fn parameters(bench: &YcsbBench) -> Row {
    Row::new()
        .with("records", bench.records)
        .with("value_size", bench.value_size)
        .with("callers", bench.callers)
        .with("seconds", bench.seconds)
        .with("rounds", bench.rounds)
        .with("seed", bench.seed)
}

impl YcsbBench {
    fn wants(&self, candidate: Candidate) -> bool {
        self.system.is_empty() || self.system.contains(&candidate)
    }

    fn bytes(&self) -> u64 {
        self.records * (self.value_size as u64 + OVERHEAD)
    }

    fn spell(&self) -> Spell {
        Spell {
            callers: self.callers,
            warmup: Duration::from_secs_f64(self.seconds * WARMUP_SHARE),
            measured: Duration::from_secs_f64(self.seconds),
            value_size: self.value_size,
            seed: self.seed,
        }
    }
}

/// A peer with what it promises, and its version.
struct Started {
    peer: Peer,
    promise: Promise,
    version: String,
}

/// Starts the servers of others that are wanted and installed; says which are not.
fn start_peers(bench: &YcsbBench, progress: &ProgressBar) -> Result<Vec<Started>, Failure> {
    let mut peers = Vec::new();
    for product in Product::ALL {
        let who = match product {
            Product::Redis => Candidate::Redis,
            Product::Valkey => Candidate::Valkey,
            Product::Memcached => Candidate::Memcached,
            Product::Etcd => Candidate::Etcd,
        };
        if !bench.wants(who) {
            continue;
        }
        let Some(version) = product.version() else {
            progress.suspend(|| say(format_args!("left out: {}", product.advice())));
            continue;
        };
        for (keeps, promise) in [
            (Keeps::Nothing, Promise::Volatile),
            (Keeps::Synced, Promise::Synced),
        ] {
            if bench.durability.contains(&keeps) && product.can(promise) {
                peers.push(Started {
                    peer: Peer::start(product, promise, bench.bytes()).map_err(failure)?,
                    promise,
                    version: version.clone(),
                });
            }
        }
    }
    Ok(peers)
}

/// One system under one workload, round by round.
struct Seen {
    workload: Ycsb,
    name: String,
    version: String,
    durability: &'static str,
    rounds: Vec<Ran>,
}

async fn play(
    env: &Env,
    global: &Global,
    bench: &YcsbBench,
    directory: &Path,
    peers: &[Started],
    held: &mut Vec<Ours>,
    progress: &ProgressBar,
) -> Result<Vec<Seen>, Failure> {
    let mut systems = Vec::new();
    for &keeps in &bench.durability {
        let (native, redis) = (
            bench.wants(Candidate::Pluvio),
            bench.wants(Candidate::PluvioRedis),
        );
        if !native && !redis {
            continue;
        }
        let tables = u64::from(native) + u64::from(redis);
        let bytes = (bench.bytes() * tables) as f64 * ROOM;
        let memory = Size(bytes as u64 + MEMORY_LEAST);
        let place = directory.join(format!("{keeps:?}"));
        let cluster = Ours::start(env, global, keeps, memory, &place).await?;
        if native {
            let table = cluster.session.client.create_table("ycsb", None).await?;
            systems.push(cluster.native(table));
        }
        if redis {
            systems.push(cluster.redis()?);
        }
        held.push(cluster);
    }
    let theirs = peers.iter();
    systems.extend(theirs.map(|s| System::of_peer(&s.peer, s.promise, s.version.clone())));
    if systems.is_empty() {
        return Err(Failure::usage(
            "nobody takes part: see --system and --durability",
        ));
    }
    let mut workloads = Ycsb::ALL.to_vec();
    workloads.retain(|workload| bench.workload.contains(workload));
    progress.set_length((systems.len() * (1 + workloads.len() * bench.rounds)) as u64);
    let mut records = Vec::new();
    for system in &systems {
        progress.set_message(format!("loading {}, {}", system.name, system.durability));
        let spell = Spell {
            callers: LOADERS,
            ..bench.spell()
        };
        load(env, system, bench.records, spell)
            .await
            .map_err(|error| of(system, &error))?;
        records.push(Arc::new(Records::loaded(bench.records)));
        progress.inc(1);
    }
    let mut seen = Vec::new();
    for workload in workloads {
        let mut rounds: Vec<Vec<Ran>> = systems.iter().map(|_| Vec::new()).collect();
        for round in 0..bench.rounds {
            // Each round another one is first, since the first may find the machine cooler.
            for place in 0..systems.len() {
                let at = (round + place) % systems.len();
                let system = &systems[at];
                let (letter, name) = (workload.name(), &system.name);
                progress.set_message(format!("{letter}: {name}, {}", system.durability));
                let spell = Spell {
                    seed: bench.seed + round as u64,
                    ..bench.spell()
                };
                let ran = drive(env, system, workload, &records[at], spell).await;
                rounds[at].push(ran.map_err(|error| of(system, &error))?);
                progress.inc(1);
            }
        }
        for (system, rounds) in systems.iter().zip(rounds) {
            seen.push(Seen {
                workload,
                name: system.name.clone(),
                version: system.version.clone(),
                durability: system.durability,
                rounds,
            });
        }
    }
    Ok(seen)
}

fn of(system: &System, error: &Failure) -> Failure {
    Failure::new(format!("{}, {}: {error}", system.name, system.durability))
}

/// Fills in rows and ratios, and draws the picture.
fn report(experiment: &mut Experiment, bench: &YcsbBench, seen: &[Seen]) -> Picture {
    let rate = |seen: &Seen| -> Vec<f64> { seen.rounds.iter().map(|ran| ran.ops_per_s).collect() };
    let median = |all: Vec<f64>| Spread::of(&all).unwrap_or_default().median;
    let mut groups: Vec<String> = Vec::new();
    let mut panels: BTreeMap<&str, Panel> = BTreeMap::new();
    for one in seen {
        let of = |number: &dyn Fn(&Ran) -> f64| -> f64 {
            median(
                one.rounds
                    .iter()
                    .map(number)
                    .filter(|n| n.is_finite())
                    .collect(),
            )
        };
        let spread = Spread::of(&rate(one)).unwrap_or_default();
        let mut row = Row::new()
            .with("workload", one.workload.name())
            .with("system", one.name.clone())
            .with("version", one.version.clone())
            .with("durability", one.durability)
            .and(spread.cells("ops_per_s"))
            .with("server_us", of(&|ran| ran.server_us))
            .with("read_p50_us", of(&|ran| ran.reads.us(0.5)))
            .with("read_p99_us", of(&|ran| ran.reads.us(0.99)));
        if one.workload.read_percent() < 100 {
            row.set("write_p50_us", of(&|ran| ran.writes.us(0.5)));
            row.set("write_p99_us", of(&|ran| ran.writes.us(0.99)));
        }
        row.set(
            "misses",
            one.rounds.iter().map(|ran| ran.misses).sum::<u64>(),
        );
        experiment.rows.push(row);
        let letter = one.workload.name().to_owned();
        if !groups.contains(&letter) {
            groups.push(letter.clone());
        }
        let group = groups
            .iter()
            .position(|known| *known == letter)
            .unwrap_or(0);
        let panel = panels.entry(one.durability).or_insert_with(|| Panel {
            title: format!("writes kept on: {}", one.durability),
            x: "workload".into(),
            y: "operations/s".into(),
            shape: Shape::Bars { groups: Vec::new() },
            series: Vec::new(),
        });
        panel.point(&one.name, group as f64, spread.median);
    }
    for one in seen.iter().filter(|one| one.name.starts_with("pluvio")) {
        for other in seen
            .iter()
            .filter(|other| !other.name.starts_with("pluvio"))
        {
            if (other.workload, other.durability) == (one.workload, one.durability) {
                let name = format!(
                    "{}, {}: {} / {}, operations a second",
                    one.workload.name(),
                    one.durability,
                    one.name,
                    other.name
                );
                experiment.ratio_by_round(name, &rate(one), &rate(other));
            }
        }
    }
    let order = bench.durability.iter().map(|keeps| keeps.name());
    let panels = order
        .filter_map(|name| panels.remove(name))
        .map(|mut panel| {
            panel.shape = Shape::Bars {
                groups: groups.clone(),
            };
            panel
        });
    Picture {
        title: "YCSB".into(),
        panels: panels.collect(),
    }
}
