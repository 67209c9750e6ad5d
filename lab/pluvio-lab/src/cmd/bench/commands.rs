//! `pluvio bench commands`: the cost of commands of the Redis port beside SET and GET. They run on
//! one server of ours and on redis-server, in turns.
//!
//! Volatile keys, a block of ten commands, the two halves of a lock, DEL, and keys that expire
//! unseen take part.

mod gone;
mod load;

use super::failure;
use crate::experiment::{Files, tell};
use crate::systems::pipeline::Pipeline;
use crate::systems::turns::{Length, Turns, p50_us, server_us, turn};
use crate::systems::{Keeps, Ours, System, Way};
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use load::{Fill, Load, Operator, Plan, RELEASE};
use pluvio_bench::experiment::{Experiment, Panel, Picture, Row, Shape};
use pluvio_bench::peer::{Peer, Product, Promise};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{bar, say};
use pluvio_console::tls::TlsArgs;
use pluvio_env::Env;
use pluvio_load::resp::Reply;
use pluvio_load::{Machine, Random};
use pluvio_local::temporary;
use pluvio_units::{Size, VALUE_MAX};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// `pluvio bench commands`.
#[derive(Args, Clone, Debug)]
pub struct Commands {
    /// Where a write of ours is kept before it is answered, by one server; several give rows each
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, default_values_t = [Keeps::Nothing, Keeps::Synced])]
    durability: Vec<Keeps>,
    /// Servers of others, which keep nothing
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, default_values_t = [Other::Redis])]
    peer: Vec<Other>,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 16)]
    callers: usize,
    /// Commands, or blocks of them, that a connection sends at once; several give rows each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 16])]
    pipeline: Vec<usize>,
    /// Commands of each turn; of blocks a tenth
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    requests: u64,
    /// Keys for SET and GET, and as many volatile ones
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    keys: u64,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    value_size: usize,
    /// Rounds, in each of which every load has a turn on every system
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Seed of keys and values
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    files: Files,
}

/// A server of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Other {
    /// redis-server
    Redis,
    /// valkey-server
    Valkey,
    /// None
    None,
}

/// Memory of our servers.
const MEMORY: Size = Size(1 << 30);

/// Runs `pluvio bench commands`.
pub fn commands(global: &Global, bench: &Commands) -> Result<ExitCode, Failure> {
    check(bench)?;
    let machine = Machine::this();
    let progress = bar(0, "starting", false);
    let peers = start_peers(bench)?;
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
    let mut experiment = Experiment::new("commands", parameters(bench));
    experiment.machine = machine;
    let picture = report(&mut experiment, &seen);
    tell(global, &bench.files, &experiment, &picture)?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses what cannot be measured before anything is.
fn check(bench: &Commands) -> Result<(), Failure> {
    let refused = |text: String| Err(Failure::usage(text));
    let within = |name: &str, value: u64, most: u64| match (1..=most).contains(&value) {
        true => Ok(()),
        false => refused(format!("--{name} {value}: 1 to {most} are possible")),
    };
    within("callers", bench.callers as u64, 1000)?;
    for pipeline in &bench.pipeline {
        within("pipeline", *pipeline as u64, 1000)?;
    }
    within("requests", bench.requests, 10_000_000)?;
    within("keys", bench.keys, 1_000_000)?;
    within("value-size", bench.value_size as u64, VALUE_MAX as u64)?;
    within("rounds", bench.rounds as u64, 1000)?;
    match bench.durability.contains(&Keeps::Replicated) {
        true => {
            refused("--durability replicated: these commands are measured on one server".into())
        }
        false => Ok(()),
    }
}

fn parameters(bench: &Commands) -> Row {
    Row::new()
        .with("callers", bench.callers)
        .with("requests", bench.requests)
        .with("keys", bench.keys)
        .with("value_size", bench.value_size)
        .with("rounds", bench.rounds)
        .with("seed", bench.seed)
}

fn start_peers(bench: &Commands) -> Result<Vec<(Peer, String)>, Failure> {
    let mut peers = Vec::new();
    for other in &bench.peer {
        let product = match other {
            Other::Redis => Product::Redis,
            Other::Valkey => Product::Valkey,
            Other::None => continue,
        };
        match product.version() {
            Some(version) => {
                let peer = Peer::start(product, Promise::Volatile, MEMORY.bytes());
                peers.push((peer.map_err(failure)?, version));
            }
            None => say(format_args!("left out: {}", product.advice())),
        }
    }
    Ok(peers)
}

/// A system with the address of its Redis port, and the hash of the script that it keeps.
struct Rival {
    system: System,
    address: String,
    script: Arc<[u8]>,
}

/// One load on one system.
struct Seen {
    name: String,
    durability: &'static str,
    is_ours: bool,
    load: Load,
    pipeline: usize,
    turns: Turns,
}

async fn play(
    env: &Env,
    global: &Global,
    bench: &Commands,
    directory: &Path,
    peers: &[(Peer, String)],
    held: &mut Vec<Ours>,
    progress: &ProgressBar,
) -> Result<Vec<Seen>, Failure> {
    let mut systems = Vec::new();
    for &keeps in &bench.durability {
        let place = directory.join(format!("{keeps:?}"));
        let cluster = Ours::start(env, global, keeps, MEMORY, &place).await?;
        systems.push(cluster.redis()?);
        held.push(cluster);
    }
    let theirs = peers.iter();
    systems.extend(
        theirs.map(|(peer, version)| System::of_peer(peer, Promise::Volatile, version.clone())),
    );
    let steps = bench.pipeline.len() * Load::ALL.len() + 1;
    progress.set_length((systems.len() * (1 + steps * bench.rounds)) as u64);
    let value: Arc<[u8]> = Random::new(bench.seed, 0).bytes(bench.value_size).into();
    let mut rivals = Vec::new();
    for system in systems {
        progress.set_message(format!("loading {}, {}", system.name, system.durability));
        rivals.push(ready(env, bench, system, &value).await?);
        progress.inc(1);
    }
    let mut seen = Vec::new();
    for pipeline in &bench.pipeline {
        for load in Load::ALL {
            let mut turns: Vec<Turns> = rivals.iter().map(|_| Turns::default()).collect();
            for round in 0..bench.rounds {
                for place in 0..rivals.len() {
                    // Each round another one is first.
                    let at = (round + place) % rivals.len();
                    let (rival, name) = (&rivals[at], load.name());
                    progress.set_message(format!("{name}: {}", rival.system.name));
                    let plan = bench.plan(rival, load, *pipeline, &value, round);
                    let pids = &rival.system.pids;
                    plan.prepare(env).await?;
                    let ran = turn::<Operator>(env, &plan, pids, bench.callers, Length::Work);
                    turns[at].0.push(ran.await?);
                    plan.tidy(env).await?;
                    progress.inc(1);
                }
            }
            for (rival, turns) in rivals.iter().zip(turns) {
                seen.push(rival.seen(load, *pipeline, turns));
            }
        }
    }
    for rival in &rivals {
        let mut turns = Turns::default();
        for round in 0..bench.rounds {
            progress.set_message(format!("{}: {}", Load::Expired.name(), rival.system.name));
            let plan = bench.plan(rival, Load::Expired, Load::FILL_PIPELINE, &value, round);
            let pids = &rival.system.pids;
            turns.0.push(gone::expired(env, &plan, pids).await?);
            progress.inc(1);
        }
        seen.push(rival.seen(Load::Expired, Load::FILL_PIPELINE, turns));
    }
    Ok(seen)
}

impl Rival {
    fn seen(&self, load: Load, pipeline: usize, turns: Turns) -> Seen {
        Seen {
            name: self.system.name.clone(),
            durability: self.system.durability,
            is_ours: self.system.name.starts_with("pluvio"),
            load,
            pipeline,
            turns,
        }
    }
}

impl Commands {
    fn plan(
        &self,
        rival: &Rival,
        load: Load,
        pipeline: usize,
        value: &Arc<[u8]>,
        round: usize,
    ) -> Plan {
        Plan {
            address: rival.address.clone(),
            script: Arc::clone(&rival.script),
            load,
            pipeline,
            callers: self.callers,
            requests: match load {
                Load::Block => (self.requests / 10).max(1),
                _ => self.requests,
            },
            keys: self.keys,
            value: Arc::clone(value),
            seed: self.seed.wrapping_add(round as u64),
        }
    }
}

/// A system with its keys and its script.
async fn ready(
    env: &Env,
    bench: &Commands,
    system: System,
    value: &Arc<[u8]>,
) -> Result<Rival, Failure> {
    let Way::Redis(address) = &system.way else {
        return Err(Failure::new("a system without a Redis port"));
    };
    let address = address.clone();
    let mut pipeline = Pipeline::open(&address).await?;
    let Reply::Bulk(script) = pipeline.call(&[b"SCRIPT", b"LOAD", RELEASE]).await? else {
        return Err(Failure::new("SCRIPT LOAD gave no hash"));
    };
    let rival = Rival {
        script: script.into_owned().into(),
        address,
        system,
    };
    for fill in [Fill::Plain, Fill::Volatile] {
        let plan = Plan {
            requests: bench.keys,
            ..bench.plan(&rival, Load::Fill(fill), Load::FILL_PIPELINE, value, 0)
        };
        turn::<Operator>(env, &plan, &[], bench.callers, Length::Work).await?;
    }
    Ok(rival)
}

/// Fills in rows and ratios, and draws the picture.
fn report(experiment: &mut Experiment, seen: &[Seen]) -> Picture {
    let groups: Vec<String> = Load::ALL.map(|load| load.name().to_owned()).to_vec();
    let mut panels: Vec<(usize, Panel)> = Vec::new();
    for one in seen {
        let mut row = Row::new()
            .with("command", one.load.name())
            .with("system", one.name.clone())
            .with("durability", one.durability)
            .with("pipeline", one.pipeline);
        row = match one.load {
            // Nobody waits for a key that expires.
            Load::Expired => {
                let cells = one.turns.cells();
                let kept = ["server_us", "server_us_min", "server_us_max"];
                let each = kept
                    .into_iter()
                    .filter_map(|name| Some((name, cells.number(name)?)));
                each.fold(row, |row, (name, number)| row.with(name, number))
            }
            _ => row.and(one.turns.cells()),
        };
        if let Some(group) = Load::ALL.iter().position(|load| *load == one.load) {
            let at = panels
                .iter()
                .position(|(pipeline, _)| *pipeline == one.pipeline);
            let at = at.unwrap_or_else(|| {
                panels.push((one.pipeline, panel(one.pipeline, &groups)));
                panels.len() - 1
            });
            let series = format!("{}, {}", one.name, one.durability);
            let time = row.number("server_us").unwrap_or(f64::NAN);
            panels[at].1.point(&series, group as f64, time);
        }
        experiment.rows.push(row);
        beside_its_own(experiment, seen, one);
        beside_others(experiment, seen, one);
    }
    Picture {
        title: "Commands of the Redis port".into(),
        panels: panels.into_iter().map(|(_, panel)| panel).collect(),
    }
}

fn panel(pipeline: usize, groups: &[String]) -> Panel {
    Panel {
        title: format!("pipeline {pipeline}"),
        x: "command".into(),
        y: "us of the server".into(),
        shape: Shape::Bars {
            groups: groups.to_vec(),
        },
        series: Vec::new(),
    }
}

/// Compares a load with the plain command of the same system.
fn beside_its_own(experiment: &mut Experiment, seen: &[Seen], one: &Seen) {
    let Some(base) = one.load.base() else {
        return;
    };
    // A key that expires is compared with the longest pipeline of deletes.
    let mut bases = seen.iter().filter(|other| {
        let is_system = (&other.name, other.durability) == (&one.name, one.durability);
        let is_pipeline = one.load == Load::Expired || other.pipeline == one.pipeline;
        is_system && is_pipeline && other.load == base
    });
    let Some(base) = bases.by_ref().max_by_key(|other| other.pipeline) else {
        return;
    };
    let name = format!(
        "{}, {}, pipeline {}: {} / {}",
        one.name,
        one.durability,
        base.pipeline,
        one.load.name(),
        base.load.name()
    );
    let time = (one.turns.each(server_us), base.turns.each(server_us));
    experiment.ratio_by_round(format!("{name}, server time"), &time.0, &time.1);
    if one.load != Load::Expired {
        let p50 = (one.turns.each(p50_us), base.turns.each(p50_us));
        experiment.ratio_by_round(format!("{name}, p50"), &p50.0, &p50.1);
    }
}

/// Compares a load of ours with the same of others.
fn beside_others(experiment: &mut Experiment, seen: &[Seen], one: &Seen) {
    if !one.is_ours {
        return;
    }
    let others = seen
        .iter()
        .filter(|other| !other.is_ours && (other.load, other.pipeline) == (one.load, one.pipeline));
    for other in others {
        let name = format!(
            "{}, pipeline {}: {}, {} / {}, server time",
            one.load.name(),
            one.pipeline,
            one.name,
            one.durability,
            other.name
        );
        let time = (one.turns.each(server_us), other.turns.each(server_us));
        experiment.ratio_by_round(name, &time.0, &time.1);
    }
}
