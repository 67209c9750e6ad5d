//! `pluvio bench cluster-cleaner`: the cleaner behind a network: client, master and backups as
//! processes, by memory utilization [log-structured memory paper, figures 8 and 10].
//!
//! Each row is one state of a cluster's only master. It is filled to a utilization, then
//! overwritten until the cleaner has had all free memory twice. Then two loads are measured: many
//! callers with batches, and one caller that writes one object at a time.
//!
//! Not here: one level of cleaning, which servers do not offer. `pluvio bench cleaner` compares
//! both in the engine.

use crate::experiment::{Files, tell};
use crate::systems::batches::{self, Batched, Does, Objects};
use crate::systems::drive::Spell;
use crate::systems::{Keeps, Ours};
use clap::Args;
use indicatif::ProgressBar;
use pluvio_bench::experiment::{Axis, Experiment, Panel, Picture, Row, Shape};
use pluvio_bench::run::Latencies;
use pluvio_bench::workload::Distribution;
use pluvio_client::{ServerStatus, Table};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::bar;
use pluvio_console::tls::TlsArgs;
use pluvio_env::Env;
use pluvio_load::Machine;
use pluvio_local::temporary;
use pluvio_units::{Size, VALUE_MAX};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// `pluvio bench cluster-cleaner`.
#[derive(Args, Clone, Debug)]
pub struct ClusterCleaner {
    /// Live objects in percent of the master's log memory; several give a row each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [30, 50, 70, 80, 90])]
    utilization: Vec<u8>,
    /// Bytes of a value; several give rows each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [100, 1000, 10_000])]
    value_size: Vec<usize>,
    /// Which keys are overwritten: uniform, zipfian, zipfian:SKEW, hot-cold, exponential; several
    /// give rows each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = ["uniform", "hot-cold"])]
    distribution: Vec<Distribution>,
    /// The master's memory
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    memory: Size,
    /// Where a write is kept before it is answered
    #[arg(long, value_name = "WHERE", value_enum, default_value_t = Keeps::Replicated)]
    durability: Keeps,
    /// Callers with batches
    #[arg(long, value_name = "N", default_value_t = 8)]
    callers: usize,
    /// Objects of a batch
    #[arg(long, value_name = "N", default_value_t = 32)]
    batch: usize,
    /// How long each load is measured, in seconds
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    seconds: f64,
    /// How long the master is overwritten before that, at most, in seconds
    #[arg(long, value_name = "S", default_value_t = 20.0)]
    warmup_seconds: f64,
    /// Leave out the distribution of latencies, with and without a cleaner, at the highest
    /// utilization
    #[arg(long)]
    no_latency: bool,
    /// Seed of keys and values
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    files: Files,
}

/// Bytes that are overwritten before a measurement, over those that are free. The first time fills
/// the log, the second brings the cleaner to its steady state.
const CHURN: f64 = 2.0;
/// How long the overwriting before a measurement goes on between two looks at how far it is.
const STRETCH: Duration = Duration::from_millis(250);
/// Objects that tell what one takes of the log.
const PROBE: u64 = 500;
/// Memory of the master without a cleaner, over that with one: what it writes never fills it.
const AMPLE: u64 = 4;
/// The part of a load's time that does not count.
const WARMUP_SHARE: f64 = 0.2;
/// The quantiles of a distribution that are drawn.
const TAIL: [f64; 7] = [0.5, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999];

/// Runs `pluvio bench cluster-cleaner`.
pub fn cluster_cleaner(global: &Global, bench: &ClusterCleaner) -> Result<ExitCode, Failure> {
    check(bench)?;
    let machine = Machine::this();
    let progress = bar(0, "starting", false);
    let directory = temporary::directory("pluvio-bench-", "set TMPDIR")?;
    let (own, job, place) = (global.clone(), bench.clone(), directory.path().to_owned());
    let told = progress.clone();
    let result = temporary::until_stopped(&TlsArgs::default(), move |env| async move {
        play(&env, &own, &job, &place, &told).await
    });
    temporary::end(directory, result.as_ref().err());
    progress.finish_and_clear();
    let (rows, tails) = result?;
    let parameters = Row::new()
        .with("memory", bench.memory.to_string())
        .with("durability", bench.durability.name())
        .with("callers", bench.callers)
        .with("batch", bench.batch)
        .with("seconds", bench.seconds)
        .with("seed", bench.seed);
    let mut experiment = Experiment::new("cluster-cleaner", parameters);
    experiment.machine = machine;
    let picture = picture(&rows, &tails);
    experiment.rows = rows;
    if let [with, without] = &tails[..] {
        for (name, quantile) in [("median", 0.5), ("p99", 0.99), ("p99.9", 0.999)] {
            let name = format!("{name} of a write: with a cleaner / without");
            experiment.ratio(name, with.1.us(quantile), without.1.us(quantile));
        }
    }
    tell(global, &bench.files, &experiment, &picture)?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses what cannot be measured before anything is.
fn check(bench: &ClusterCleaner) -> Result<(), Failure> {
    let refused = |text: String| Err(Failure::usage(text));
    if let Some(wrong) = bench.utilization.iter().find(|u| !(1..=95).contains(*u)) {
        return refused(format!("--utilization {wrong}: 1 to 95 are possible"));
    }
    for (name, value, most) in [
        ("callers", bench.callers, 1000),
        ("batch", bench.batch, 1000),
    ] {
        if !(1..=most).contains(&value) {
            return refused(format!("--{name} {value}: 1 to {most} are possible"));
        }
    }
    if let Some(wrong) = bench
        .value_size
        .iter()
        .find(|s| !(1..=VALUE_MAX / 10).contains(*s))
    {
        let most = VALUE_MAX / 10;
        return refused(format!("--value-size {wrong}: 1 to {most} are possible"));
    }
    let (least, most) = (Size(64 << 20), Size(64 << 30));
    if !(least..=most).contains(&bench.memory) {
        return refused(format!(
            "--memory {}: {least} to {most} are possible",
            bench.memory
        ));
    }
    for (name, seconds) in [
        ("seconds", bench.seconds),
        ("warmup-seconds", bench.warmup_seconds),
    ] {
        if !(0.001..=3600.0).contains(&seconds) {
            return refused(format!("--{name} {seconds}: 0.001 to 3600 are possible"));
        }
    }
    Ok(())
}

impl ClusterCleaner {
    fn spell(&self, callers: usize, value_size: usize) -> Spell {
        Spell {
            callers,
            warmup: Duration::from_secs_f64(self.seconds * WARMUP_SHARE),
            measured: Duration::from_secs_f64(self.seconds),
            value_size,
            seed: self.seed,
        }
    }
}

/// A name, and latencies.
type Tail = (&'static str, Latencies);

async fn play(
    env: &Env,
    global: &Global,
    bench: &ClusterCleaner,
    directory: &Path,
    progress: &ProgressBar,
) -> Result<(Vec<Row>, Vec<Tail>), Failure> {
    let mut utilizations = bench.utilization.clone();
    utilizations.sort_unstable();
    let states = bench.value_size.len() * bench.distribution.len() * utilizations.len();
    let tails = if bench.no_latency { 0 } else { 2 };
    progress.set_length((states + tails) as u64);
    let mut rows = Vec::new();
    for &value_size in &bench.value_size {
        for &pattern in &bench.distribution {
            let name = format!("{value_size}-{}", pattern.name().replace(':', "-"));
            let place = directory.join(name);
            let cluster = Ours::start(env, global, bench.durability, bench.memory, &place).await?;
            let done = states_of(
                env,
                bench,
                &cluster,
                (value_size, pattern),
                &utilizations,
                progress,
            );
            let done = done.await;
            cluster.stop().await;
            rows.extend(done?);
        }
    }
    let mut seen = Vec::new();
    let (true, Some(&highest)) = (tails > 0, utilizations.last()) else {
        return Ok((rows, seen));
    };
    let value_size = bench.value_size.first().copied().unwrap_or(100);
    for (name, memory) in [
        ("cleaner", bench.memory),
        ("no cleaner", Size(bench.memory.bytes() * AMPLE)),
    ] {
        progress.set_message(format!("latencies: {name}"));
        let place = directory.join(name.replace(' ', "-"));
        let cluster = Ours::start(env, global, bench.durability, memory, &place).await?;
        let done = tail(env, bench, &cluster, value_size, highest).await;
        cluster.stop().await;
        let (latencies, row) = done?;
        rows.push(Row::new().with("load", format!("latency, {name}")).and(row));
        seen.push((name, latencies));
        progress.inc(1);
    }
    Ok((rows, seen))
}

/// A master under measurement.
struct Master {
    objects: Objects,
    /// Bytes of the log that one object takes.
    each: f64,
    /// Replicas of each byte.
    replicas: f64,
}

impl Master {
    /// Creates the table and learns what an object takes.
    async fn begin(
        env: &Env,
        cluster: &Ours,
        (value_size, pattern): (usize, Distribution),
        seed: u64,
    ) -> Result<Self, Failure> {
        let client = cluster.session.client.clone();
        let table = client.create_table("objects", Some(1)).await?;
        batches::fill(env, (&client, &table), 0..PROBE, value_size, seed).await?;
        let objects = Objects {
            client,
            table,
            count: PROBE,
            pattern,
        };
        let status = status(cluster, &objects.table).await?;
        Ok(Self {
            each: status.memory_live as f64 / PROBE as f64,
            replicas: f64::from(status.replicas_wanted),
            objects,
        })
    }

    /// Adds objects until `live` bytes of the log are live.
    async fn fill(
        &mut self,
        env: &Env,
        live: f64,
        value_size: usize,
        seed: u64,
    ) -> Result<(), Failure> {
        let count = (live / self.each) as u64;
        let (from, until) = (self.objects.count, count.max(self.objects.count));
        let whom = (&self.objects.client, &self.objects.table);
        batches::fill(env, whom, from..until, value_size, seed).await?;
        self.objects.count = until;
        Ok(())
    }
}

/// Bytes that the cleaner has moved and the processes have written until now.
struct Marks {
    moved: u64,
    written: u64,
}

impl Marks {
    async fn now(cluster: &Ours, table: &Table) -> Result<Self, Failure> {
        Ok(Self {
            moved: status(cluster, table).await?.cleaner_moved,
            written: cluster.pids().into_iter().map(bytes_written).sum(),
        })
    }

    /// Bytes moved and bytes to disks, over those of new objects.
    fn cells(&self, later: &Self, master: &Master, objects: u64) -> Row {
        let new = (objects as f64 * master.each).max(1.0);
        let moved = later.moved.saturating_sub(self.moved) as f64;
        let written = later.written.saturating_sub(self.written) as f64;
        let row = Row::new().with("moved_over_new", moved / new);
        match master.replicas > 0.0 {
            true => row.with("disk_over_new", written / new / master.replicas),
            false => row,
        }
    }
}

/// What the table's master tells of itself.
async fn status(cluster: &Ours, table: &Table) -> Result<ServerStatus, Failure> {
    let client = &cluster.session.client;
    let info = client.table_info(table).await?;
    let owner = info.tablets.first().map(|tablet| tablet.owner);
    let owner = owner.ok_or_else(|| Failure::new("the table has no tablet"))?;
    let list = client.server_list().await?;
    let address = list.get(owner).map(|server| server.address.clone());
    let address = address.ok_or_else(|| Failure::new("the table's server is gone"))?;
    Ok(client.server_status(&address.as_str().into()).await?)
}

/// Bytes that a process has given to the storage layer.
fn bytes_written(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let mut lines = text.lines();
    let found = lines.find_map(|line| line.strip_prefix("write_bytes: "));
    found.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
}

async fn states_of(
    env: &Env,
    bench: &ClusterCleaner,
    cluster: &Ours,
    (value_size, pattern): (usize, Distribution),
    utilizations: &[u8],
    progress: &ProgressBar,
) -> Result<Vec<Row>, Failure> {
    let mut master = Master::begin(env, cluster, (value_size, pattern), bench.seed).await?;
    let mut rows = Vec::new();
    for &utilization in utilizations {
        let told = format!("{value_size} B, {}, {utilization} %", pattern.name());
        progress.set_message(told);
        let memory = status(cluster, &master.objects.table).await?.memory_total as f64;
        let live = memory * f64::from(utilization) / 100.0;
        master.fill(env, live, value_size, bench.seed).await?;
        churn(env, bench, cluster, &master, memory - live, value_size).await?;
        for (load, callers, batch) in [("many", bench.callers, bench.batch), ("one", 1, 1)] {
            let table = &master.objects.table;
            let before = Marks::now(cluster, table).await?;
            let spell = bench.spell(callers, value_size);
            let what = (Does::Writes, batch);
            let seen = batches::run(env, &master.objects, &cluster.pids(), what, spell).await?;
            let after = Marks::now(cluster, table).await?;
            let reached = status(cluster, table).await?;
            let reached = reached.memory_live as f64 / reached.memory_total.max(1) as f64;
            let row = Row::new()
                .with("load", load)
                .with("value_size", value_size)
                .with("distribution", pattern.name())
                .with("utilization", utilization)
                .with("utilization_reached", reached * 100.0)
                .and(cells(&seen))
                .and(before.cells(&after, &master, seen.objects));
            rows.push(row);
        }
        progress.inc(1);
    }
    Ok(rows)
}

fn cells(seen: &Batched) -> Row {
    Row::new()
        .with("objects_per_s", seen.objects_per_s)
        .with("server_us", seen.server_us)
        .with("p50_us", seen.requests.us(0.5))
        .with("p90_us", seen.requests.us(0.9))
        .with("p99_us", seen.requests.us(0.99))
        .with("p999_us", seen.requests.us(0.999))
}

/// Overwrites [`CHURN`] times the bytes that are free, or until the time for that is over.
async fn churn(
    env: &Env,
    bench: &ClusterCleaner,
    cluster: &Ours,
    master: &Master,
    free: f64,
    value_size: usize,
) -> Result<(), Failure> {
    let limit = Duration::from_secs_f64(bench.warmup_seconds);
    let (start, mut written, mut seed) = (env.clock.now(), 0.0, bench.seed);
    while written < CHURN * free && env.clock.now().since(start) < limit {
        seed += 1;
        let spell = Spell {
            callers: bench.callers,
            warmup: Duration::ZERO,
            measured: STRETCH.min(limit),
            value_size,
            seed,
        };
        let what = (Does::Writes, bench.batch);
        let seen = batches::run(env, &master.objects, &cluster.pids(), what, spell).await?;
        written += seen.objects as f64 * master.each;
    }
    Ok(())
}

/// Latencies of one caller at the utilization that the usual memory would have.
async fn tail(
    env: &Env,
    bench: &ClusterCleaner,
    cluster: &Ours,
    value_size: usize,
    utilization: u8,
) -> Result<(Latencies, Row), Failure> {
    let what = (value_size, Distribution::Uniform);
    let mut master = Master::begin(env, cluster, what, bench.seed).await?;
    let total = status(cluster, &master.objects.table).await?.memory_total as f64;
    let memory = total.min(bench.memory.bytes() as f64);
    let live = memory * f64::from(utilization) / 100.0;
    master.fill(env, live, value_size, bench.seed).await?;
    if total <= bench.memory.bytes() as f64 {
        churn(env, bench, cluster, &master, total - live, value_size).await?;
    }
    let table = &master.objects.table;
    let before = Marks::now(cluster, table).await?;
    let spell = bench.spell(1, value_size);
    let what = (Does::Writes, 1);
    let seen = batches::run(env, &master.objects, &cluster.pids(), what, spell).await?;
    let after = Marks::now(cluster, table).await?;
    let row = Row::new()
        .with("value_size", value_size)
        .with("distribution", "uniform")
        .with("utilization", utilization)
        .and(cells(&seen))
        .and(before.cells(&after, &master, seen.objects));
    Ok((seen.requests, row))
}

/// Throughput and the cleaner's cost by utilization, and the tails of latencies.
fn picture(rows: &[Row], tails: &[Tail]) -> Picture {
    let panel = |title: &str, x: &str, y: &str, (across, up): (Axis, Axis)| Panel {
        title: title.into(),
        x: x.into(),
        y: y.into(),
        shape: Shape::Lines { x: across, y: up },
        series: Vec::new(),
    };
    let (even, powers) = (Axis::Linear, Axis::Logarithmic);
    let percent = "live objects in percent of memory";
    let mut all = [
        panel("writes", percent, "objects/s", (even, powers)),
        panel(
            "the cleaner's copies",
            percent,
            "bytes moved for a new one",
            (even, even),
        ),
        panel(
            "writes of one caller",
            "us",
            "part that took longer",
            (powers, powers),
        ),
    ];
    for row in rows {
        let number = |name| row.number(name).unwrap_or(f64::NAN);
        let who = format!("{} B {}", row.text("value_size"), row.text("distribution"));
        match row.text("load").as_str() {
            "many" => {
                all[0].point(&who, number("utilization"), number("objects_per_s"));
                all[1].point(&who, number("utilization"), number("moved_over_new"));
            }
            "one" => {
                let who = format!("{who}, one caller");
                all[0].point(&who, number("utilization"), number("objects_per_s"));
            }
            _ => {}
        }
    }
    for (name, latencies) in tails {
        for quantile in TAIL {
            all[2].point(name, latencies.us(quantile), 1.0 - quantile);
        }
    }
    let panels = all.into_iter().filter(|panel| !panel.series.is_empty());
    Picture {
        title: "Cleaning in a cluster".into(),
        panels: panels.collect(),
    }
}
