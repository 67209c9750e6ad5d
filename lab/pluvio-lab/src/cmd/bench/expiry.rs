//! `pluvio bench expiry`: keys that expire under load, on a cluster of its own.
//!
//! - `late`: many keys expire; how late they and their memory are gone, and what readers notice.
//! - `full`: a store of volatile keys, nearly full, that are replaced as they expire.

mod full;
mod late;

use crate::experiment::{Files, tell};
use crate::systems::{Keeps, Ours};
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use pluvio_bench::experiment::{Axis, Experiment, Panel, Picture, Row, Shape};
use pluvio_client::ServerStatus;
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::bar;
use pluvio_console::tls::TlsArgs;
use pluvio_env::{Address, Env};
use pluvio_load::Machine;
use pluvio_local::temporary;
use pluvio_units::{Size, VALUE_MAX};
use std::path::Path;
use std::process::ExitCode;

/// `pluvio bench expiry`.
#[derive(Args, Clone, Debug)]
pub struct ExpiryBench {
    /// The parts to measure [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    part: Vec<Part>,
    /// Where a write is kept before it is answered
    #[arg(long, value_name = "WHERE", value_enum, default_value_t = Keeps::Synced)]
    durability: Keeps,
    /// Late: keys that expire in a round
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    keys: u64,
    /// Late: seconds over which their deadlines are spread; several give rows each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [10.0, 0.0])]
    spread: Vec<f64>,
    /// Late: callers that read and write other keys, one request each
    #[arg(long, value_name = "N", default_value_t = 8)]
    callers: usize,
    /// Late: how many of a hundred of their requests read
    #[arg(long, value_name = "N", default_value_t = 90)]
    get_percent: u64,
    /// Late: seconds of that load before the first key expires
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    seconds: f64,
    /// Late: keys that are written in a second, at least; the first deadline is behind the last
    /// write
    #[arg(long, value_name = "N", default_value_t = 60_000)]
    fill_rate: u64,
    /// Late: rounds
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Full: memory of a server
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    memory: Size,
    /// Full: how much of the memory lives, in percent
    #[arg(long, value_name = "N", default_value_t = 90)]
    utilization: u64,
    /// Full: seconds that a key lives
    #[arg(long, value_name = "S", default_value_t = 20)]
    lifetime: u64,
    /// Full: minutes
    #[arg(long, value_name = "N", default_value_t = 3.0)]
    minutes: f64,
    /// Full: bytes of a value; those of the other part have 100
    #[arg(long, value_name = "BYTES", default_value_t = 1000)]
    value_size: usize,
    /// Seed of keys and values
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    files: Files,
}

/// A part of the experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// How late keys are gone, and what readers notice
    Late,
    /// A store that stays nearly full
    Full,
}

/// Runs `pluvio bench expiry`.
pub fn expiry(global: &Global, bench: &ExpiryBench) -> Result<ExitCode, Failure> {
    check(bench)?;
    let machine = Machine::this();
    let progress = bar(0, "starting", false);
    let directory = temporary::directory("pluvio-bench-", "set TMPDIR")?;
    let (own, job, place) = (global.clone(), bench.clone(), directory.path().to_owned());
    let told = progress.clone();
    let result = temporary::until_stopped(&TlsArgs::default(), move |env| async move {
        let mut rows = Vec::new();
        for part in [Part::Late, Part::Full] {
            if job.part.is_empty() || job.part.contains(&part) {
                rows.extend(play(&env, &own, &job, part, &place, &told).await?);
            }
        }
        Ok(rows)
    });
    temporary::end(directory, result.as_ref().err());
    progress.finish_and_clear();
    let mut experiment = Experiment::new("expiry", parameters(bench));
    experiment.machine = machine;
    experiment.rows = result?;
    let picture = report(&mut experiment);
    tell(global, &bench.files, &experiment, &picture)?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses what cannot be measured before anything is.
fn check(bench: &ExpiryBench) -> Result<(), Failure> {
    let refused = |text: String| Err(Failure::usage(text));
    let within = |name: &str, value: u64, most: u64| match (1..=most).contains(&value) {
        true => Ok(()),
        false => refused(format!("--{name} {value}: 1 to {most} are possible")),
    };
    within("keys", bench.keys, 20_000_000)?;
    within("callers", bench.callers as u64, 1000)?;
    within("get-percent", bench.get_percent, 100)?;
    within("fill-rate", bench.fill_rate, 100_000_000)?;
    within("rounds", bench.rounds as u64, 1000)?;
    within("utilization", bench.utilization, 95)?;
    within("lifetime", bench.lifetime, 86_400)?;
    within("value-size", bench.value_size as u64, VALUE_MAX as u64)?;
    let times = bench.spread.iter().map(|s| ("spread", *s, 0.0));
    let times = times.chain([
        ("seconds", bench.seconds, 0.1),
        ("minutes", bench.minutes, 0.1),
    ]);
    for (name, value, least) in times {
        if !(least..=3600.0).contains(&value) {
            return refused(format!("--{name} {value}: {least} to 3600 are possible"));
        }
    }
    let (least, most) = (Size(128 << 20), Size(64 << 30));
    match (least..=most).contains(&bench.memory) {
        true => Ok(()),
        false => refused(format!(
            "--memory {}: {least} to {most} are possible",
            bench.memory
        )),
    }
}

fn parameters(bench: &ExpiryBench) -> Row {
    Row::new()
        .with("durability", bench.durability.name())
        .with("keys", bench.keys)
        .with("callers", bench.callers)
        .with("get_percent", bench.get_percent)
        .with("rounds", bench.rounds)
        .with("lifetime", bench.lifetime)
        .with("seed", bench.seed)
}

async fn play(
    env: &Env,
    global: &Global,
    bench: &ExpiryBench,
    part: Part,
    directory: &Path,
    progress: &ProgressBar,
) -> Result<Vec<Row>, Failure> {
    let memory = match part {
        Part::Late => late::memory(bench),
        Part::Full => bench.memory,
    };
    let place = directory.join(format!("{part:?}"));
    let cluster = Ours::start(env, global, bench.durability, memory, &place).await?;
    let done = match part {
        Part::Late => late::late(env, bench, &cluster, progress).await,
        Part::Full => full::full(env, bench, &cluster, progress).await,
    };
    cluster.stop().await;
    done
}

/// The address of the first server's Redis port.
fn port(cluster: &Ours) -> Result<String, Failure> {
    let port = cluster.servers().find_map(|server| server.redis.clone());
    port.ok_or_else(|| Failure::new("no server has a Redis port"))
}

/// What all servers together have.
#[derive(Clone, Copy, Default, Debug)]
struct Held {
    objects: u64,
    live: u64,
    memory: u64,
    expired: u64,
    cleaned: u64,
}

impl Held {
    async fn now(cluster: &Ours) -> Result<Self, Failure> {
        let mut held = Self::default();
        for server in cluster.servers() {
            let address = Address::from(server.addr.as_str());
            let status = cluster.session.client.server_status(&address).await?;
            held.add(&status);
        }
        Ok(held)
    }

    fn add(&mut self, status: &ServerStatus) {
        self.objects += status.objects;
        self.live += status.memory_live;
        self.memory += status.memory_total;
        self.expired += status.objects_expired;
        self.cleaned += status.cleaner_moved;
    }
}

/// Notes the ratios, and draws how late keys were and how full the store was.
fn report(experiment: &mut Experiment) -> Picture {
    let mut late = Panel {
        title: "keys that expire".into(),
        x: "seconds of deadlines".into(),
        y: "us, reads p99".into(),
        shape: Shape::Lines {
            x: Axis::Linear,
            y: Axis::Linear,
        },
        series: Vec::new(),
    };
    let rows = std::mem::take(&mut experiment.rows);
    for row in &rows {
        let number = |name| row.number(name).unwrap_or(f64::NAN);
        let (with, without) = (number("expiring_p99_us"), number("quiet_p99_us"));
        late.point("while keys expire", number("spread_s"), with);
        late.point("before", number("spread_s"), without);
    }
    for spread in late::spreads(&rows) {
        let of = |name| late::numbers(&rows, spread, name);
        let name = format!("deadlines within {spread} s: reads while keys expire / before, p99");
        experiment.ratio_by_round(name, &of("expiring_p99_us"), &of("quiet_p99_us"));
    }
    experiment.rows = rows;
    Picture {
        title: "Expiry".into(),
        panels: vec![late],
    }
}
