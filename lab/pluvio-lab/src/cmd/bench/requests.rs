//! `pluvio bench requests`: requests of the native client to a real cluster, as RAMCloud's authors
//! measured theirs [RAMCloud §5.4].
//!
//! - `sizes`: latency by size, table IV; `parts`: where the time goes, figures 10 and 11.
//! - `load`: latency under load, figure 12; `batches`: figure 13 and table I.

mod parts;

use crate::experiment::{Files, tell};
use crate::systems::batches::{self, Does, Objects};
use crate::systems::drive::{Spell, load, ycsb as drive};
use crate::systems::{Keeps, Ours};
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use pluvio_bench::experiment::{Axis, Experiment, Panel, Picture, Row, Shape};
use pluvio_bench::run::Latencies;
use pluvio_bench::workload::Distribution;
use pluvio_bench::workload::ycsb::{Records, Ycsb};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::bar;
use pluvio_console::tls::TlsArgs;
use pluvio_env::Env;
use pluvio_load::{KEY_BYTES, Machine};
use pluvio_local::{Carrier, LocalOptions, temporary};
use pluvio_units::{Size, VALUE_MAX};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// `pluvio bench requests`.
#[derive(Args, Clone, Debug)]
pub struct Requests {
    /// The parts to measure [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    part: Vec<Part>,
    /// How client, master and backups talk; several give rows each
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, default_values_t = [Transport::Tcp])]
    transport: Vec<Transport>,
    /// Where a write is kept before it is answered
    #[arg(long, value_name = "WHERE", value_enum, default_value_t = Keeps::Replicated)]
    durability: Keeps,
    /// Sizes: bytes of a value; several give rows each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [100, 1000, 10_000, 100_000, 1_000_000])]
    value_size: Vec<usize>,
    /// Bytes of keys and values of each table, and at most 2 million objects
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    data: Size,
    /// Load: callers at a time; several give a row each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32, 64, 128])]
    callers: Vec<usize>,
    /// Batches: objects of a request; several give rows each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 2, 5, 10, 20, 50, 70, 100])]
    batch: Vec<usize>,
    /// Batches: callers at a time
    #[arg(long, value_name = "N", default_value_t = 8)]
    batch_callers: usize,
    /// How long each row is measured, in seconds
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    seconds: f64,
    /// Seed of keys and values
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    files: Files,
}

/// A part of the experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// One caller: reads and overwrites of random objects, by size
    Sizes,
    /// Where the time of one caller's requests goes, with values of 100 bytes
    Parts,
    /// YCSB's workload A with values of 1000 bytes: throughput and latency, by callers
    Load,
    /// Objects a second, by objects of a request, with values of 100 bytes
    Batches,
}

/// How processes talk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Transport {
    /// TCP over the loopback device
    Tcp,
    /// Rings in shared memory
    Rings,
    /// Datagrams over the loopback device; the coordinator is asked over TCP
    Udp,
    /// libfabric over its provider tcp; the coordinator is asked over TCP. The program pluvio must
    /// have been built with it, too
    #[cfg(feature = "fabric")]
    Fabric,
}

impl Transport {
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rings => "rings",
            Self::Udp => "udp",
            #[cfg(feature = "fabric")]
            Self::Fabric => "fabric",
        }
    }

    fn carrier(self) -> Carrier {
        match self {
            Self::Tcp => Carrier::Tcp,
            Self::Rings => Carrier::Rings,
            Self::Udp => Carrier::Datagrams,
            #[cfg(feature = "fabric")]
            Self::Fabric => Carrier::Fabric,
        }
    }
}

const PARTS: [Part; 4] = [Part::Sizes, Part::Parts, Part::Load, Part::Batches];
/// How long a row runs before it counts, as a part of its length.
const WARMUP_SHARE: f64 = 0.2;
/// Most objects of a table: what figure 13 had.
const OBJECTS_MAX: u64 = 2_000_000;
/// Bytes of a value: under load, and in batches.
const LOAD_VALUE: usize = 1000;
const BATCH_VALUE: usize = 100;
/// Callers that load.
const LOADERS: usize = 64;
/// Room of a server for a table, as a multiple of keys and values: heads, and the log's free part.
const ROOM: u64 = 5;
/// Room that a server needs whatever it holds.
const MEMORY_LEAST: u64 = 256 << 20;

/// Runs `pluvio bench requests`.
pub fn requests(global: &Global, bench: &Requests) -> Result<ExitCode, Failure> {
    check(bench)?;
    let machine = Machine::this();
    let progress = bar(0, "starting", false);
    let directory = temporary::directory("pluvio-bench-", "set TMPDIR")?;
    let (own, job, place) = (global.clone(), bench.clone(), directory.path().to_owned());
    let told = progress.clone();
    let result = temporary::until_stopped(&TlsArgs::default(), move |env| async move {
        let mut rows = Vec::new();
        for &transport in &job.transport {
            rows.extend(play(&env, &own, &job, transport, &place, &told).await?);
        }
        Ok(rows)
    });
    temporary::end(directory, result.as_ref().err());
    progress.finish_and_clear();
    let rows = result?;
    let parameters = Row::new()
        .with("durability", bench.durability.name())
        .with("data", bench.data.to_string())
        .with("seconds", bench.seconds)
        .with("seed", bench.seed);
    let mut experiment = Experiment::new("requests", parameters);
    experiment.machine = machine;
    let picture = picture(&rows);
    experiment.rows = rows;
    tell(global, &bench.files, &experiment, &picture)?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses what cannot be measured before anything is.
fn check(bench: &Requests) -> Result<(), Failure> {
    let refused = |text: String| Err(Failure::usage(text));
    let within = |name: &str, values: &[usize], most: usize| match values
        .iter()
        .find(|value| !(1..=most).contains(*value))
    {
        None => Ok(()),
        Some(value) => refused(format!("--{name} {value}: 1 to {most} are possible")),
    };
    within("value-size", &bench.value_size, VALUE_MAX)?;
    within("callers", &bench.callers, 1000)?;
    within("batch", &bench.batch, 1000)?;
    within("batch-callers", &[bench.batch_callers], 1000)?;
    let (least, most) = (Size(1 << 20), Size(8 << 30));
    if !(least..=most).contains(&bench.data) {
        return refused(format!(
            "--data {}: {least} to {most} are possible",
            bench.data
        ));
    }
    match (0.001..=3600.0).contains(&bench.seconds) {
        true => Ok(()),
        false => refused(format!(
            "--seconds {}: 0.001 to 3600 are possible",
            bench.seconds
        )),
    }
}

impl Requests {
    fn wants(&self, part: Part) -> bool {
        self.part.is_empty() || self.part.contains(&part)
    }

    /// The options of a cluster, with `memory` for each server, and how it keeps what is written.
    fn cluster(
        &self,
        transport: Transport,
        memory: Size,
        place: &Path,
    ) -> (LocalOptions, &'static str) {
        let options = LocalOptions {
            carrier: transport.carrier(),
            ..self.durability.options(memory, place)
        };
        (options, self.durability.name())
    }

    fn objects(&self, value_size: usize) -> u64 {
        let each = (KEY_BYTES + value_size) as u64;
        (self.data.bytes() / each).clamp(1, OBJECTS_MAX)
    }

    fn spell(&self, callers: usize, value_size: usize) -> Spell {
        Spell {
            callers,
            warmup: Duration::from_secs_f64(self.seconds * WARMUP_SHARE),
            measured: Duration::from_secs_f64(self.seconds),
            value_size,
            seed: self.seed,
        }
    }

    fn steps(&self, part: Part) -> usize {
        match part {
            Part::Sizes => 2 * self.value_size.len(),
            Part::Parts => 2,
            Part::Load => self.callers.len(),
            Part::Batches => 2 * self.batch.len(),
        }
    }
}

/// All parts on a cluster for each.
async fn play(
    env: &Env,
    global: &Global,
    bench: &Requests,
    transport: Transport,
    directory: &Path,
    progress: &ProgressBar,
) -> Result<Vec<Row>, Failure> {
    let wanted = PARTS.into_iter().filter(|part| bench.wants(*part));
    let steps: usize = wanted.clone().map(|part| bench.steps(part)).sum();
    progress.set_length((steps * bench.transport.len()) as u64);
    let mut rows = Vec::new();
    for part in wanted {
        let tables = match part {
            Part::Sizes => bench.value_size.len() as u64,
            Part::Parts | Part::Load | Part::Batches => 1,
        };
        let memory = Size(bench.data.bytes() * ROOM * tables + MEMORY_LEAST);
        let place = directory.join(format!("{part:?}-{transport:?}"));
        let done = match part {
            Part::Parts => {
                let of = (bench, transport, memory);
                parts::parts(env, global, of, &place, progress).await
            }
            Part::Sizes | Part::Load | Part::Batches => {
                let (options, name) = bench.cluster(transport, memory, &place);
                let cluster = Ours::with(env, global, options, name).await?;
                let done = match part {
                    Part::Sizes => sizes(env, bench, &cluster, progress).await,
                    Part::Load => under_load(env, bench, &cluster, progress).await,
                    Part::Parts | Part::Batches => in_batches(env, bench, &cluster, progress).await,
                };
                cluster.stop().await;
                done
            }
        };
        let name = part.to_possible_value();
        let name = name.map(|value| value.get_name().to_owned());
        for row in done? {
            let head = Row::new()
                .with("part", name.clone().unwrap_or_default())
                .with("transport", transport.name());
            rows.push(head.and(row));
        }
    }
    Ok(rows)
}

fn latencies(what: &str, seen: &Latencies) -> Row {
    Row::new()
        .with(&format!("{what}p50_us"), seen.us(0.5))
        .with(&format!("{what}p90_us"), seen.us(0.9))
        .with(&format!("{what}p99_us"), seen.us(0.99))
        .with(&format!("{what}p999_us"), seen.us(0.999))
}

async fn table(
    env: &Env,
    bench: &Requests,
    cluster: &Ours,
    value_size: usize,
) -> Result<Objects, Failure> {
    let client = cluster.session.client.clone();
    // All on one server: what is measured is one master.
    let name = format!("objects-{value_size}");
    let table = client.create_table(&name, Some(1)).await?;
    let count = bench.objects(value_size);
    batches::fill(env, (&client, &table), 0..count, value_size, bench.seed).await?;
    Ok(Objects {
        client,
        table,
        count,
        pattern: Distribution::Uniform,
    })
}

async fn sizes(
    env: &Env,
    bench: &Requests,
    cluster: &Ours,
    progress: &ProgressBar,
) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for &size in &bench.value_size {
        progress.set_message(format!("{size} B"));
        let objects = table(env, bench, cluster, size).await?;
        for does in [Does::Reads, Does::Writes] {
            let spell = bench.spell(1, size);
            let seen = batches::run(env, &objects, &cluster.pids(), (does, 1), spell).await?;
            let row = Row::new()
                .with("operation", does.name())
                .with("value_size", size)
                .with("objects", objects.count)
                .with("callers", 1)
                .with("objects_per_s", seen.objects_per_s)
                .with("mb_per_s", seen.objects_per_s * size as f64 / 1e6)
                .with("server_us", seen.server_us)
                .and(latencies("", &seen.requests));
            rows.push(row);
            progress.inc(1);
        }
    }
    Ok(rows)
}

async fn under_load(
    env: &Env,
    bench: &Requests,
    cluster: &Ours,
    progress: &ProgressBar,
) -> Result<Vec<Row>, Failure> {
    let client = &cluster.session.client;
    let table = client.create_table("load", Some(1)).await?;
    let system = cluster.native(table);
    let count = bench.objects(LOAD_VALUE);
    progress.set_message("loading");
    load(env, &system, count, bench.spell(LOADERS, LOAD_VALUE)).await?;
    let records = Arc::new(Records::loaded(count));
    let mut rows = Vec::new();
    for &callers in &bench.callers {
        progress.set_message(format!("{callers} callers"));
        let spell = bench.spell(callers, LOAD_VALUE);
        let seen = drive(env, &system, Ycsb::A, &records, spell).await?;
        for (operation, latency) in [("read", &seen.reads), ("write", &seen.writes)] {
            let row = Row::new()
                .with("operation", operation)
                .with("value_size", LOAD_VALUE)
                .with("objects", count)
                .with("callers", callers)
                .with("objects_per_s", seen.ops_per_s)
                .with("mb_per_s", seen.ops_per_s * LOAD_VALUE as f64 / 1e6)
                .with("server_us", seen.server_us)
                .and(latencies("", latency));
            rows.push(row);
        }
        progress.inc(1);
    }
    Ok(rows)
}

async fn in_batches(
    env: &Env,
    bench: &Requests,
    cluster: &Ours,
    progress: &ProgressBar,
) -> Result<Vec<Row>, Failure> {
    progress.set_message("filling");
    let objects = table(env, bench, cluster, BATCH_VALUE).await?;
    let mut rows = Vec::new();
    for does in [Does::Reads, Does::Writes] {
        for &batch in &bench.batch {
            progress.set_message(format!("{} of {batch}", does.name()));
            let spell = bench.spell(bench.batch_callers, BATCH_VALUE);
            let seen = batches::run(env, &objects, &cluster.pids(), (does, batch), spell).await?;
            let row = Row::new()
                .with("operation", does.name())
                .with("value_size", BATCH_VALUE)
                .with("objects", objects.count)
                .with("callers", bench.batch_callers)
                .with("batch", batch)
                .with("objects_per_s", seen.objects_per_s)
                .with("mb_per_s", seen.objects_per_s * BATCH_VALUE as f64 / 1e6)
                .with("server_us", seen.server_us)
                .and(latencies("", &seen.requests));
            rows.push(row);
            progress.inc(1);
        }
    }
    Ok(rows)
}

/// Latency by size, latency by load, objects by batch.
fn picture(rows: &[Row]) -> Picture {
    let panel = |title: &str, x: &str, y: &str, (across, up): (Axis, Axis)| Panel {
        title: title.into(),
        x: x.into(),
        y: y.into(),
        shape: Shape::Lines { x: across, y: up },
        series: Vec::new(),
    };
    let (even, powers) = (Axis::Linear, Axis::Logarithmic);
    let mut all = [
        panel("one caller", "bytes of a value", "us", (powers, powers)),
        panel("YCSB A, 1000 B", "operations/s", "us", (even, powers)),
        panel(
            "batches, 100 B",
            "objects of a request",
            "objects/s",
            (powers, even),
        ),
    ];
    for row in rows {
        let number = |name| row.number(name).unwrap_or(f64::NAN);
        let who = format!("{} {}", row.text("transport"), row.text("operation"));
        let latency = [("p50", "p50_us"), ("p99", "p99_us")];
        match row.text("part").as_str() {
            "sizes" => {
                for (name, column) in latency {
                    let series = format!("{who} {name}");
                    all[0].point(&series, number("value_size"), number(column));
                }
            }
            "load" => {
                for (name, column) in latency {
                    let series = format!("{who} {name}");
                    all[1].point(&series, number("objects_per_s"), number(column));
                }
            }
            "parts" => {}
            _ => all[2].point(&who, number("batch"), number("objects_per_s")),
        }
    }
    let panels = all.into_iter().filter(|panel| !panel.series.is_empty());
    Picture {
        title: "Requests".into(),
        panels: panels.collect(),
    }
}
