//! `pluvio bench recovery`: replay inside this process, a killed server of a real cluster, and
//! Redis beside it.

mod cluster;

use super::failure;
use crate::experiment::{Files, tell};
use clap::{Args, ValueEnum};
use cluster::Scene;
use indicatif::ProgressBar;
use pluvio_bench::experiment::{Axis, Experiment, Panel, Picture, Row, Shape, Spread};
use pluvio_bench::recovery::{self, RedisLoads, RedisOptions, ReplayOptions};
use pluvio_bench::suite::Step;
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{bar, say};
use pluvio_load::KEY_BYTES;
use pluvio_units::Size;
use std::process::ExitCode;

/// `pluvio bench recovery`.
#[derive(Args, Clone, Debug)]
pub struct Recovery {
    /// The parts to measure: replay (a recovery master in this process), cluster (a killed server
    /// of a real one), redis (redis-server's load) [default: all possible]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    part: Vec<Part>,
    /// Replay: bytes of a value; several give a row each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 64, 128, 256, 1024, 2048, 4096])]
    value_size: Vec<usize>,
    /// Replay: replicas sent to backups in this process's memory; several give a row each, 0 is
    /// replay only
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [0, 2])]
    replay_replicas: Vec<u32>,
    /// Replay: most objects of a round
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    objects: u64,
    /// Replay: most bytes of log of a round
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    bytes: Size,
    /// Cluster: servers, with the one that is killed; several give a row each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [3, 4])]
    servers: Vec<u32>,
    /// Cluster and redis: keys and values that are lost; several give a row each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [Size(128 << 20)])]
    data: Vec<Size>,
    /// Cluster and redis: bytes of a value
    #[arg(long, value_name = "BYTES", default_value_t = 1024)]
    lost_value_size: usize,
    /// Cluster: replicas of every write on other servers' disks
    #[arg(long, value_name = "R", default_value_t = 2)]
    replicas: u32,
    /// Cluster: servers have fetched all of their memory from the system before one is killed
    #[arg(long)]
    populate: bool,
    /// Rounds of each row
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Seed of keys and values
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    files: Files,
}

/// A part of the experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// One recovery master inside this process
    Replay,
    /// A killed server of a real cluster
    Cluster,
    /// Redis, loading its files
    Redis,
}

/// Most that one server may lose: it must fit this machine some times over.
const DATA_MAX: Size = Size(64 << 30);
/// Columns that also tell the least and the most of all rounds.
const SPREAD: [&str; 4] = ["first_read_ms", "all_read_ms", "total_ms", "cpu_ms_per_mb"];
/// Least that takes long enough to be measured.
const DATA_MIN: Size = Size(1 << 20);
/// Most servers on one machine.
const SERVERS_MAX: u32 = 16;

/// Runs `pluvio bench recovery`.
pub fn recovery(global: &Global, recovery: &Recovery) -> Result<ExitCode, Failure> {
    check(recovery)?;
    let wants = |part| recovery.part.is_empty() || recovery.part.contains(&part);
    let mut experiment = Experiment::new("recovery", parameters(recovery));
    let mut picture = Pictures::new();
    let progress = bar(steps(recovery, &wants), "starting", false);
    let done = (|| {
        if wants(Part::Replay) {
            let watch = |step: Step| told(&progress, step);
            let rows = recovery::replay(&replay_options(recovery), &watch).map_err(failure)?;
            rows.iter().for_each(|row| picture.replay(row));
            experiment.rows.extend(rows);
        }
        for &data in &recovery.data {
            let ours = match wants(Part::Cluster) {
                true => clusters(global, recovery, data, &progress)?,
                false => Vec::new(),
            };
            let theirs = match wants(Part::Redis) {
                true => redis(recovery, data, &progress)?,
                false => None,
            };
            compare(&mut experiment, &mut picture, data, &ours, theirs);
            experiment.rows.extend(ours);
        }
        Ok::<_, Failure>(())
    })();
    progress.finish_and_clear();
    done?;
    // Rows of one part stand together.
    experiment.rows.sort_by_key(|row| {
        let parts = ["replay", "cluster", "redis"];
        parts.iter().position(|part| row.text("part") == *part)
    });
    tell(global, &recovery.files, &experiment, &picture.0)?;
    Ok(ExitCode::SUCCESS)
}

fn told(progress: &ProgressBar, step: Step) {
    match step {
        Step::Total(total) => progress.set_length(total),
        Step::Begins(name) => progress.set_message(name),
        Step::Ended => progress.inc(1),
    }
}

fn parameters(recovery: &Recovery) -> Row {
    Row::new()
        .with("replicas", recovery.replicas)
        .with("populate", recovery.populate)
        .with("lost_value_size", recovery.lost_value_size)
        .with("rounds", recovery.rounds)
        .with("seed", recovery.seed)
}

fn replay_options(recovery: &Recovery) -> ReplayOptions {
    ReplayOptions {
        value_sizes: recovery.value_size.clone(),
        replicas: recovery.replay_replicas.clone(),
        objects: recovery.objects,
        bytes: recovery.bytes,
        rounds: recovery.rounds,
        seed: recovery.seed,
    }
}

/// Refuses what cannot be measured before anything is.
fn check(recovery: &Recovery) -> Result<(), Failure> {
    replay_options(recovery).check().map_err(failure)?;
    let refused = |text: String| Err(Failure::usage(text));
    let values = 1..=pluvio_units::VALUE_MAX;
    if !values.contains(&recovery.lost_value_size) {
        let (value, most) = (recovery.lost_value_size, values.end());
        return refused(format!(
            "--lost-value-size {value}: 1 to {most} are possible"
        ));
    }
    for &data in &recovery.data {
        if !(DATA_MIN..=DATA_MAX).contains(&data) {
            return refused(format!(
                "--data {data}: {DATA_MIN} to {DATA_MAX} are possible"
            ));
        }
    }
    if !(1..=8).contains(&recovery.replicas) {
        return refused(format!(
            "--replicas {}: 1 to 8 are possible",
            recovery.replicas
        ));
    }
    for &servers in &recovery.servers {
        // The servers left after the crash must be able to write. Each needs one replica less than
        // wanted, and one at least, on others.
        let least = recovery.replicas.saturating_sub(1).max(1) + 2;
        if !(least..=SERVERS_MAX).contains(&servers) {
            return refused(format!(
                "--servers {servers}: {least} to {SERVERS_MAX} are possible with --replicas {}, so that those that are left can keep replicas for each other",
                recovery.replicas
            ));
        }
    }
    Ok(())
}

fn steps(recovery: &Recovery, wants: &dyn Fn(Part) -> bool) -> u64 {
    let count = |part, steps: usize| if wants(part) { steps as u64 } else { 0 };
    let all = recovery.data.len();
    count(Part::Replay, replay_options(recovery).steps() as usize)
        + count(
            Part::Cluster,
            all * recovery.servers.len() * recovery.rounds,
        )
        + count(Part::Redis, all * 3)
}

fn objects(recovery: &Recovery, data: Size) -> u64 {
    (data.bytes() / (KEY_BYTES + recovery.lost_value_size) as u64).max(1)
}

/// A row for each number of servers: the round whose total is the median.
fn clusters(
    global: &Global,
    recovery: &Recovery,
    data: Size,
    progress: &ProgressBar,
) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for &servers in &recovery.servers {
        let scene = Scene {
            servers,
            replicas: recovery.replicas,
            objects: objects(recovery, data),
            value_size: recovery.lost_value_size,
            seed: recovery.seed,
            memory: Size(data.bytes() * 3 / 2 + (160 << 20)),
            populate: recovery.populate,
            log: global.log.clone(),
            log_format: global.log_format,
        };
        let mut rounds = Vec::new();
        for _ in 0..recovery.rounds {
            progress.set_message(format!("{data} on one of {servers} servers"));
            rounds.push(cluster::run(&scene)?);
            progress.inc(1);
        }
        let mut row = Row::new()
            .with("part", "cluster")
            .with("servers", servers)
            .with("data", data.to_string())
            .with("value_size", scene.value_size)
            .with("replicas", scene.replicas)
            .with("objects", scene.objects);
        // Its stages add up, which medians of each would not.
        rounds.sort_by(|a, b| a.total_ms().total_cmp(&b.total_ms()));
        let usual = rounds[rounds.len() / 2];
        for (name, of) in cluster::Seen::COLUMNS {
            row.set(name, of(&usual));
            if SPREAD.contains(&name) {
                let all: Vec<f64> = rounds.iter().map(of).collect();
                let spread = Spread::of(&all).unwrap_or_default();
                row.set(&format!("{name}_min"), spread.min);
                row.set(&format!("{name}_max"), spread.max);
            }
        }
        rows.push(row);
    }
    Ok(rows)
}

fn redis(
    recovery: &Recovery,
    data: Size,
    progress: &ProgressBar,
) -> Result<Option<RedisLoads>, Failure> {
    let options = RedisOptions {
        objects: objects(recovery, data),
        value_size: recovery.lost_value_size,
        seed: recovery.seed,
    };
    let watch = |step: Step| told(progress, step);
    let loads = recovery::redis(&options, &watch).map_err(failure)?;
    if loads.is_none() {
        let missing = "redis-server is not installed; on Debian: apt-get install redis-server";
        if recovery.part.contains(&Part::Redis) {
            return Err(Failure::new(format!("--part redis: {missing}")));
        }
        progress.suspend(|| say(missing));
    }
    Ok(loads)
}

/// Adds Redis's rows, and ours over theirs.
fn compare(
    experiment: &mut Experiment,
    picture: &mut Pictures,
    data: Size,
    ours: &[Row],
    theirs: Option<RedisLoads>,
) {
    for row in ours {
        picture.cluster(data, row);
    }
    let Some(theirs) = theirs else { return };
    let files = [
        ("AOF", theirs.aof_s, theirs.aof_bytes),
        ("RDB", theirs.rdb_s, theirs.rdb_bytes),
    ];
    for (file, seconds, bytes) in files {
        let row = Row::new()
            .with("part", "redis")
            .with("data", data.to_string())
            .with("file", file)
            .with("mb", bytes as f64 / 1e6)
            .with("first_read_ms", seconds * 1e3)
            .with("mb_per_s", bytes as f64 / 1e6 / seconds);
        experiment.rows.push(row);
        picture.point(1, &format!("Redis, {file}"), data, seconds);
        for row in ours {
            let first = row.number("first_read_ms").unwrap_or(f64::NAN) / 1e3;
            let name = format!(
                "{data}, {} servers: first read / Redis from {file}",
                row.text("servers")
            );
            experiment.ratio(name, first, seconds);
            for (what, column) in [("read", "all_read_ms"), ("written", "total_ms")] {
                let all = row.number(column).unwrap_or(f64::NAN) / 1e3;
                let servers = row.text("servers");
                let name = format!("{data}, {servers} servers: all {what} / Redis from {file}");
                experiment.ratio(name, all, seconds);
            }
        }
    }
}

/// Replay by object size, and recovery by lost data.
struct Pictures(Picture);

impl Pictures {
    fn new() -> Self {
        let panel = |title: &str, x: &str, y: &str, across| Panel {
            title: title.into(),
            x: x.into(),
            y: y.into(),
            shape: Shape::Lines {
                x: across,
                y: Axis::Linear,
            },
            series: Vec::new(),
        };
        let panels = vec![
            panel(
                "replay by one recovery master",
                "bytes of a value",
                "MB/s",
                Axis::Logarithmic,
            ),
            panel(
                "kill -9 to first read",
                "lost keys and values (MB)",
                "seconds",
                Axis::Linear,
            ),
            panel(
                "kill -9 to all served",
                "lost keys and values (MB)",
                "seconds",
                Axis::Linear,
            ),
        ];
        Self(Picture {
            title: "Recovery".into(),
            panels,
        })
    }

    fn replay(&mut self, row: &Row) {
        let number = |name| row.number(name).unwrap_or(f64::NAN);
        let series = format!("{} replicas", row.text("replicas"));
        self.0.panels[0].point(&series, number("value_size"), number("mb_per_s"));
    }

    fn cluster(&mut self, data: Size, row: &Row) {
        let series = format!("{} servers", row.text("servers"));
        for (panel, name) in [(1, "first_read_ms"), (2, "total_ms")] {
            let ms = row.number(name).unwrap_or(f64::NAN);
            self.point(panel, &series, data, ms / 1e3);
        }
    }

    fn point(&mut self, panel: usize, series: &str, data: Size, seconds: f64) {
        self.0.panels[panel].point(series, data.bytes() as f64 / 1e6, seconds);
    }
}
