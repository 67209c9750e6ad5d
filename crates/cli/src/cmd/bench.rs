//! `pluvio bench`: measures a cluster, or any server that speaks the Redis protocol. Experiments
//! that need no running cluster are those of `pluvio-lab`.

use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use pluvio_console::failure::Failure;
use pluvio_console::handover::{self, HandedOver};
use pluvio_console::options::{Global, duration, redis_address};
use pluvio_console::output::{
    bar, count, number_of, print_json, print_line, say, spinner, table, table_text,
};
use pluvio_console::session::{Loops, Session, with_session};
use pluvio_load::{BenchError, Machine, Progress, Report, Row, Sweep, Target, Workload};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// `pluvio bench`.
#[derive(Args, Clone, Debug)]
pub struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Clone, Debug)]
enum What {
    /// Write all keys of a cluster once
    Load(Load),
    /// A cluster with one connection, one operation at a time
    Latency(Latency),
    /// A cluster with many connections, with and without pipelining
    Throughput(Throughput),
    /// The storage engine and maps of others inside a process: reads and writes a second (by
    /// pluvio-lab, as all that follow)
    #[command(disable_help_flag = true)]
    Store(HandedOver),
    /// The storage engine's writes a second and its cleaner's work, by memory utilization
    #[command(disable_help_flag = true)]
    Cleaner(HandedOver),
    /// The storage engine's write latency, with and without a cleaner
    #[command(disable_help_flag = true)]
    LatencyCdf(HandedOver),
    /// What each part of the storage engine brings
    #[command(disable_help_flag = true)]
    Breakdown(HandedOver),
    /// The time of one copy, by method and size
    #[command(disable_help_flag = true)]
    Copy(HandedOver),
    /// Lookups in a hash table by the memory nodes where it lies; needs two nodes at least
    #[command(disable_help_flag = true)]
    Placement(HandedOver),
    /// Memory of the storage engine, of allocators and of servers, while the sizes of objects
    /// change
    #[command(disable_help_flag = true)]
    Fragmentation(HandedOver),
    /// Replay a trace file, or a load like that of a production cluster, inside a process
    #[command(disable_help_flag = true)]
    Trace(HandedOver),
    /// Small files that are created, read, appended to and deleted, as objects
    #[command(disable_help_flag = true)]
    Postmark(HandedOver),
    /// Recovery: replay by object size, a killed server of a real cluster, and Redis loading as
    /// much
    #[command(disable_help_flag = true)]
    Recovery(HandedOver),
    /// YCSB's workloads A to D and F, over the native client and the Redis port, beside servers of
    /// others
    #[command(disable_help_flag = true)]
    Ycsb(HandedOver),
    /// Requests to a real cluster: latency by size, under load, and in batches
    #[command(disable_help_flag = true)]
    Requests(HandedOver),
    /// The cleaner behind a network, by memory utilization: client, master and backups
    #[command(disable_help_flag = true)]
    ClusterCleaner(HandedOver),
    /// Transactions of one and of two servers, beside single writes
    #[command(disable_help_flag = true)]
    Transactions(HandedOver),
    /// Commands of the Redis port beside SET and GET: volatile keys, blocks, scripts, keys that
    /// expire; and redis-server
    #[command(disable_help_flag = true)]
    Commands(HandedOver),
    /// Keys that expire under load: how late their memory comes back, what readers notice, and a
    /// nearly full store of volatile keys
    #[command(disable_help_flag = true)]
    Expiry(HandedOver),
}

/// `pluvio bench load`.
#[derive(Args, Clone, Debug)]
struct Load {
    #[command(flatten)]
    whom: Whom,
    #[command(flatten)]
    data: Data,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 50)]
    connections: usize,
    /// Operations sent at once on each connection
    #[arg(long, value_name = "N", default_value_t = 16)]
    pipeline: usize,
}

/// `pluvio bench latency`.
#[derive(Args, Clone, Debug)]
struct Latency {
    #[command(flatten)]
    whom: Whom,
    #[command(flatten)]
    data: Data,
    #[command(flatten)]
    times: Times,
}

/// `pluvio bench throughput`.
#[derive(Args, Clone, Debug)]
struct Throughput {
    #[command(flatten)]
    whom: Whom,
    #[command(flatten)]
    data: Data,
    #[command(flatten)]
    times: Times,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 50)]
    connections: usize,
    /// Operations sent at once on each connection; several give a row each
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 16])]
    pipeline: Vec<usize>,
}

/// Whom to measure.
#[derive(Args, Clone, Debug)]
struct Whom {
    /// Measure over the Redis protocol: the address of any Redis server; several share the
    /// connections [default: all servers of the cluster]
    #[arg(
        long,
        value_name = "ADDR",
        value_delimiter = ',',
        value_parser = redis_address,
        conflicts_with = "native"
    )]
    redis: Vec<String>,
    /// After writes over the Redis protocol, wait until N replicas have them (WAIT N)
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true,
        conflicts_with = "native"
    )]
    wait: u32,
    /// Measure the native client
    #[arg(long)]
    native: bool,
    /// The table for --native; created if there is none
    #[arg(long, value_name = "TABLE", default_value = "bench")]
    table: String,
    /// Event loops of the load generator [default: one for each processor]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    threads: u16,
    /// How long an event loop of the load generator looks for more work before it sleeps
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    spin: Duration,
}

/// What the objects are like.
#[derive(Args, Clone, Debug)]
struct Data {
    /// Number of different keys
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    keys: u64,
    /// Bytes of a value; several give a row each
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = [100])]
    value_size: Vec<usize>,
    /// Seed of keys and values
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// How long, and what.
#[derive(Args, Clone, Debug)]
struct Times {
    /// How long to measure each row
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    seconds: Duration,
    /// How long to run before that, unmeasured
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    warmup: Duration,
    /// How many of a hundred operations read; several give a row each
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [100, 0])]
    get_percent: Vec<u8>,
    /// The keys are there already
    #[arg(long)]
    skip_load: bool,
}

/// One measurement, put together from the arguments.
struct Job {
    command: &'static str,
    whom: Whom,
    sweep: Sweep,
    skip_load: bool,
}

/// Runs the command.
pub fn run(global: &Global, bench: &Bench) -> Result<ExitCode, Failure> {
    let job = match &bench.what {
        What::Load(load) => load.job()?,
        What::Latency(latency) => latency.job()?,
        What::Throughput(all) => all.job()?,
        What::Store(_)
        | What::Cleaner(_)
        | What::LatencyCdf(_)
        | What::Breakdown(_)
        | What::Copy(_)
        | What::Placement(_)
        | What::Fragmentation(_)
        | What::Trace(_)
        | What::Postmark(_)
        | What::Recovery(_)
        | What::Ycsb(_)
        | What::Requests(_)
        | What::ClusterCleaner(_)
        | What::Transactions(_)
        | What::Commands(_)
        | What::Expiry(_) => return Err(handover::to_laboratory()),
    };
    if cfg!(debug_assertions) {
        say("this is a debug build: its speed says nothing; use `cargo build --release`");
    }
    let json = global.json;
    let loops = Loops {
        cores: job.whom.threads,
        spin: job.whom.spin,
    };
    with_session(global, loops, move |session| async move {
        let report = measure(&session, job).await?;
        if json {
            print_json(&report)?;
        } else {
            print_line(&as_text(&report))?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

impl Load {
    fn job(&self) -> Result<Job, Failure> {
        let times = Times {
            seconds: Duration::ZERO,
            warmup: Duration::ZERO,
            get_percent: vec![0],
            skip_load: false,
        };
        let row = (self.connections, vec![self.pipeline]);
        Job::new("load", &self.whom, &self.data, &times, row)
    }
}

impl Latency {
    fn job(&self) -> Result<Job, Failure> {
        let row = (1, vec![1]);
        Job::new("latency", &self.whom, &self.data, &self.times, row)
    }
}

impl Throughput {
    fn job(&self) -> Result<Job, Failure> {
        let row = (self.connections, self.pipeline.clone());
        Job::new("throughput", &self.whom, &self.data, &self.times, row)
    }
}

impl Job {
    fn new(
        command: &'static str,
        whom: &Whom,
        data: &Data,
        times: &Times,
        (connections, pipelines): (usize, Vec<usize>),
    ) -> Result<Self, Failure> {
        let base = Workload {
            connections,
            pipeline: pipelines.first().copied().unwrap_or(1),
            keys: data.keys,
            value_size: data.value_size.first().copied().unwrap_or(100),
            get_percent: 0,
            seconds: times.seconds.as_secs_f64(),
            warmup_seconds: times.warmup.as_secs_f64(),
            seed: data.seed,
        };
        let sweep = Sweep {
            base,
            pipelines,
            value_sizes: data.value_size.clone(),
            get_percents: times.get_percent.clone(),
        };
        for workload in sweep.workloads() {
            workload
                .check()
                .map_err(|error| Failure::usage(error.to_string()))?;
        }
        Ok(Self {
            command,
            whom: whom.clone(),
            sweep,
            skip_load: times.skip_load,
        })
    }
}

async fn measure(session: &Session, job: Job) -> Result<Report, Failure> {
    let target = target(session, &job.whom).await?;
    let about = target.describe().await.map_err(failure)?;
    let mut rows = Vec::new();
    let mut loaded = None;
    for workload in job.sweep.workloads() {
        let is_load = job.command == "load";
        if is_load || (!job.skip_load && loaded != Some(workload.value_size)) {
            // Loading is quicker with many at a time, whatever is measured afterwards.
            let filling = match is_load {
                true => workload.clone(),
                false => Workload {
                    connections: workload.connections.max(16),
                    pipeline: 16,
                    ..workload.clone()
                },
            };
            let (keys, size) = (count(workload.keys), workload.value_size);
            let progress = bar(workload.keys, "loading", false);
            begin(
                &progress,
                &format!("loading {keys} keys, values of {size} B"),
            );
            let row = pluvio_load::load(&session.env, &target, &filling, &teller(&progress)).await;
            progress.finish_and_clear();
            let row = row.map_err(failure)?;
            loaded = Some(workload.value_size);
            if is_load {
                tell(&row);
                rows.push(row);
                continue;
            }
        }
        let (number, all) = (rows.len() + 1, job.sweep.workloads().len());
        let doing = format!("measuring row {number} of {all}");
        let progress = spinner(&doing);
        begin(&progress, &doing);
        let told = teller(&progress);
        let row = match job.command {
            "latency" => pluvio_load::latency(&session.env, &target, &workload, &told).await,
            _ => pluvio_load::throughput(&session.env, &target, &workload, &told).await,
        };
        progress.finish_and_clear();
        let row = row.map_err(failure)?;
        tell(&row);
        rows.push(row);
    }
    let mut report = Report {
        command: job.command.to_owned(),
        target: about,
        machine: Machine::this(),
        rows,
        ratios: BTreeMap::new(),
    };
    if job.command == "latency" {
        let progress = spinner("bare round trips");
        begin(&progress, "measuring bare round trips");
        let told = teller(&progress);
        let trips =
            |each| pluvio_load::round_trips(&session.env, &target, &job.sweep.base, each, &told);
        let (one, two) = (trips(1).await, trips(2).await);
        progress.finish_and_clear();
        report.compare_with(&one.map_err(failure)?, &two.map_err(failure)?);
    }
    Ok(report)
}

async fn target(session: &Session, whom: &Whom) -> Result<Target, Failure> {
    let client = session.client.clone();
    if whom.native {
        let table = client.create_table(&whom.table, None).await?;
        return Ok(Target::Native { client, table });
    }
    if !whom.redis.is_empty() {
        return Ok(Target::Redis {
            addresses: whom.redis.clone(),
            wait: whom.wait,
        });
    }
    let list = client.server_list().await?;
    let found: Vec<_> = list
        .up()
        .filter_map(|server| server.redis.clone())
        .collect();
    if found.is_empty() {
        return Err(Failure::new(
            "no server of the cluster speaks the Redis protocol; use --native, or start servers with --redis",
        ));
    }
    Ok(Target::Redis {
        addresses: found,
        wait: whom.wait,
    })
}

/// Says what begins, where nobody sees the bar.
fn begin(progress: &ProgressBar, what: &str) {
    if progress.is_hidden() {
        say(what);
    }
}

/// Says the result of a row as soon as it is there. The table at the end has all of it.
fn tell(row: &Row) {
    let (w, l) = (&row.workload, &row.latency_us);
    say(format_args!(
        "{} of {} B, {}, pipeline {}: {} ops/s, p50 {:.0} us, p99 {:.0} us, {}",
        row.name,
        w.value_size,
        number_of(w.connections as u64, "connection"),
        w.pipeline,
        count(row.ops_per_s as u64),
        l.p50,
        l.p99,
        number_of(row.errors, "error"),
    ));
}

fn teller(progress: &ProgressBar) -> Progress {
    let progress = progress.clone();
    Arc::new(move |more| progress.inc(more))
}

fn failure(error: BenchError) -> Failure {
    match error {
        BenchError::Client(error) => error.into(),
        other => Failure::new(other.to_string()),
    }
}

fn as_text(report: &Report) -> String {
    let heads = [
        "",
        "value",
        "connections",
        "pipeline",
        "ops/s",
        "MB/s",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "max us",
        "errors",
    ];
    let mut text = table(&heads, &(1..heads.len()).collect::<Vec<_>>());
    for row in &report.rows {
        let (w, l) = (&row.workload, &row.latency_us);
        text.add_row([
            row.name.clone(),
            w.value_size.to_string(),
            w.connections.to_string(),
            w.pipeline.to_string(),
            count(row.ops_per_s as u64),
            format!("{:.1}", row.mb_per_s),
            format!("{:.0}", l.p50),
            format!("{:.0}", l.p99),
            format!("{:.0}", l.p999),
            format!("{:.0}", l.max),
            row.errors.to_string(),
        ]);
    }
    let m = &report.machine;
    let ratios = report.ratios.iter();
    let ratios: String = ratios
        .map(|(name, ratio)| format!("\n{name}: {ratio:.2}"))
        .collect();
    format!(
        "{} of {}\n{}, {} processors, Linux {}, {} build\n\n{}{ratios}",
        report.command,
        report.target,
        m.processor,
        m.processors,
        m.kernel,
        m.build,
        table_text(&text)
    )
}
