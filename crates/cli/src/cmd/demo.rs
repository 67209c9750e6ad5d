//! `pluvio demo`: what Pluvio is for, shown in real processes.
//!
//! 1. A cluster of its own is started.
//! 2. A data set is imported and read back.
//! 3. One server is killed while clients write and read, and the recovery is shown.
//! 4. Everything is verified.

use crate::ingest::records::{BlankLines, Format, Names, Record, read};
use crate::ingest::write::{Options, write_all};
use bytes::Bytes;
use clap::Args;
use data::{SOURCE, csv};
use indicatif::ProgressBar;
use load::{Load, Seen};
use pluvio_client::{ClusterStatus, Key, Table};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{bar, bytes, count, print_json, print_line, spinner, time};
use pluvio_console::session::Session;
use pluvio_env::Env;
use pluvio_local::{LocalCluster, LocalOptions, Program, temporary};
use pluvio_units::{ServerId, Size};
use pluvio_wire::RecoveryStatus;
use serde_json::{Map, Value, json};
use std::process::ExitCode;
use std::time::Duration;

mod data;
mod load;

/// Objects that one batch reads back.
const READ_BATCH: usize = 512;
/// How long clients work before the server is killed, and after its recovery.
const LOAD_BEFORE: Duration = Duration::from_secs(2);
const LOAD_AFTER: Duration = Duration::from_secs(2);
/// How long a client waits for an operation: far longer than a recovery.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the recovery may take.
const RECOVERY_LIMIT: Duration = Duration::from_secs(60);
/// Pause between two looks at the cluster.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// `pluvio demo`.
#[derive(Args, Clone, Debug)]
pub struct Demo {
    /// Number of servers
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(3..=16))]
    servers: u32,
    /// Replicas of every write on other servers' disks
    #[arg(long, value_name = "R", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=8))]
    replicas: u32,
    /// Log memory of each server
    #[arg(long, value_name = "SIZE", default_value = "128MiB")]
    memory: Size,
}

/// Runs the demo.
pub fn run(global: &Global, demo: &Demo) -> Result<ExitCode, Failure> {
    if demo.replicas >= demo.servers {
        return Err(Failure::usage(
            "--replicas must be less than --servers: replicas lie on other servers",
        ));
    }
    let directory = temporary::directory("pluvio-demo-", "set TMPDIR")?;
    let options = LocalOptions {
        log: global.log.clone(),
        log_format: global.log_format,
        tls: global.tls.clone(),
        ..LocalOptions::for_a_while(demo.servers, demo.replicas, demo.memory, directory.path())
    };
    let json = global.json;
    let result = temporary::until_stopped(&global.tls, move |env| show(env, options, json));
    temporary::end(directory, result.as_ref().err());
    result
}

/// The story of a demo: told step by step to people, and at the end to programs.
struct Story {
    json: bool,
    facts: Map<String, Value>,
}

impl Story {
    fn tell(&self, text: &str) -> Result<(), Failure> {
        if self.json {
            return Ok(());
        }
        print_line(text)
    }

    fn note(&mut self, name: &str, value: impl Into<Value>) {
        self.facts.insert(name.to_owned(), value.into());
    }
}

async fn show(env: Env, options: LocalOptions, json: bool) -> Result<ExitCode, Failure> {
    let start = env.clock.now();
    let mut story = Story {
        json,
        facts: Map::new(),
    };
    let (replicas, memory) = (options.replicas, options.memory);
    let mut cluster = LocalCluster::start(env.clone(), Program::own()?, options).await?;
    let outcome = play(&env, &mut cluster, &mut story, replicas, memory).await;
    cluster.stop().await;
    let lost = outcome?;
    let took = env.clock.now().since(start);
    story.note("seconds", took.as_secs_f64());
    story.note("ok", lost == 0);
    if json {
        print_json(&story.facts)?;
    }
    if lost > 0 {
        return Err(Failure::new(format!(
            "{lost} records or acknowledged writes are lost or wrong: this is a defect of Pluvio"
        )));
    }
    story.tell(&format!(
        "\nDone in {}. Servers stopped, temporary data removed.",
        time(took)
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Gives how many objects were lost or wrong.
async fn play(
    env: &Env,
    cluster: &mut LocalCluster,
    story: &mut Story,
    replicas: u32,
    memory: Size,
) -> Result<u64, Failure> {
    let session = cluster.session(PATIENCE);
    let servers = cluster.servers().count();
    story.note("servers", servers);
    story.tell(&format!(
        "{servers} servers with {memory} of log memory each, {replicas} replicas on other servers' disks"
    ))?;
    for server in cluster.servers() {
        let redis = server.redis.as_deref().unwrap_or("-");
        story.tell(&format!(
            "  server {}: process {}, Redis on {redis}",
            server.id.unwrap_or(0),
            server.pid
        ))?;
    }

    story.tell(&format!("\n1. Import: {SOURCE}"))?;
    let weather = session.client.create_table("weather", None).await?;
    import(&session, &weather, story).await?;

    story.tell("\n2. Read everything back")?;
    let mut lost = verify(&session, &weather, story, "read_back").await?;

    story.tell("\n3. Kill a server under load")?;
    lost += disaster(env, cluster, &session, &weather, story).await?;

    story.tell("\n4. Verify all records")?;
    lost += verify(&session, &weather, story, "verified").await?;

    story.tell("\n5. Memory")?;
    let status = session.client.cluster_status().await?;
    tell_memory(&status, story)?;
    Ok(lost)
}

fn records() -> impl Iterator<Item = Result<Record, crate::ingest::records::BadRecord>> + Send {
    read(
        Box::new(csv().as_bytes()),
        Format::Csv,
        Names::default(),
        BlankLines::default(),
    )
}

async fn import(session: &Session, weather: &Table, story: &mut Story) -> Result<(), Failure> {
    let progress = bar(data::records(), "importing", false);
    let shown = progress.clone();
    let start = session.env.clock.now();
    let options = Options {
        workers: 8,
        skip_bad: false,
        unit: "record",
    };
    let summary = write_all(session, weather, records(), options, move |_| shown.inc(1)).await;
    progress.finish_and_clear();
    let summary = summary?;
    let took = session.env.clock.now().since(start);
    let rate = summary.records as f64 / took.as_secs_f64().max(1e-9);
    story.tell(&format!(
        "   {} records, {} of keys and values in {}: {} durable writes/s",
        count(summary.records),
        bytes(summary.bytes),
        time(took),
        count(rate as u64)
    ))?;
    story.note(
        "imported",
        json!({
            "records": summary.records,
            "bytes": summary.bytes,
            "seconds": took.as_secs_f64(),
            "records_per_s": rate,
            "source": SOURCE,
        }),
    );
    Ok(())
}

/// Reads every record and compares it with the file. Gives how many are missing or differ.
async fn verify(
    session: &Session,
    weather: &Table,
    story: &mut Story,
    name: &str,
) -> Result<u64, Failure> {
    let progress = bar(data::records(), "verifying", false);
    let start = session.env.clock.now();
    let (mut good, mut wrong) = (0, 0);
    let mut batch: Vec<(Vec<u8>, Bytes)> = Vec::with_capacity(READ_BATCH);
    let mut left = records();
    loop {
        let record = left.next().transpose();
        let record = record.map_err(|bad| Failure::new(bad.message))?;
        let ended = record.is_none();
        batch.extend(record.map(|r| (r.key, r.value)));
        if batch.len() < READ_BATCH && !ended {
            continue;
        }
        let keys: Vec<_> = batch
            .iter()
            .map(|(key, _)| Key::new(weather, key))
            .collect();
        let found = session.client.multi_read(&keys).await;
        for ((_, value), found) in batch.iter().zip(found) {
            match found?.is_some_and(|object| object.value == value) {
                true => good += 1,
                false => wrong += 1,
            }
        }
        progress.inc(batch.len() as u64);
        batch.clear();
        if ended {
            break;
        }
    }
    progress.finish_and_clear();
    let took = session.env.clock.now().since(start);
    let rate = good as f64 / took.as_secs_f64().max(1e-9);
    story.tell(&format!(
        "   {} records are as they were written, {wrong} are not; {} reads/s",
        count(good),
        count(rate as u64)
    ))?;
    story.note(
        name,
        json!({
            "records": good,
            "wrong": wrong,
            "seconds": took.as_secs_f64(),
            "records_per_s": rate,
        }),
    );
    Ok(wrong)
}

/// Kills a server while clients work, and waits for its recovery. Gives how many acknowledged
/// writes are lost.
async fn disaster(
    env: &Env,
    cluster: &mut LocalCluster,
    session: &Session,
    weather: &Table,
    story: &mut Story,
) -> Result<u64, Failure> {
    let progress = spinner("clients write and read");
    progress.enable_steady_tick(Duration::from_millis(100));
    let counters = session.client.create_table("counters", None).await?;
    let load = Load::start(session, weather, &counters);
    env.clock.sleep(LOAD_BEFORE).await;
    let victim = fullest(&session.client.cluster_status().await?)
        .ok_or_else(|| Failure::new("no server of the cluster answers"))?;
    let which = cluster
        .server_with_id(victim)
        .ok_or_else(|| Failure::new("the cluster has a server that is none of ours"))?;
    let held = held_by(session, victim).await?;
    progress.set_message(format!("server {victim} was killed"));
    load.mark();
    let killed = env.clock.now();
    cluster.kill(which).await;
    story.tell(&format!(
        "   server {victim} with {} objects ({} of log) is killed with SIGKILL while {} clients work",
        count(held.objects),
        bytes(held.memory_log),
        load::CLIENTS
    ))?;
    let recovery = recovered(env, session, victim, &progress).await?;
    let whole = env.clock.now().since(killed);
    env.clock.sleep(LOAD_AFTER).await;
    let seen = load.stop().await?;
    progress.finish_and_clear();
    tell_recovery(&recovery, whole, &seen, story)?;
    let lost = seen.verify(session, &counters).await?;
    story.tell(&format!(
        "   {} acknowledged writes under load, {} lost; {} reads, {} wrong",
        count(seen.acknowledged),
        lost,
        count(seen.reads),
        seen.wrong_reads
    ))?;
    story.note(
        "load",
        json!({
            "acknowledged_writes": seen.acknowledged,
            "lost_writes": lost,
            "reads": seen.reads,
            "wrong_reads": seen.wrong_reads,
            "longest_delay_ms": seen.longest_after.as_secs_f64() * 1e3,
        }),
    );
    Ok(lost + seen.wrong_reads)
}

/// What one server has.
async fn held_by(session: &Session, id: ServerId) -> Result<pluvio_client::ServerStatus, Failure> {
    let status = session.client.cluster_status().await?;
    Ok(status
        .servers
        .into_iter()
        .find(|s| s.id == id)
        .unwrap_or_default())
}

/// The server with the most objects: the loss that hurts most.
fn fullest(status: &ClusterStatus) -> Option<ServerId> {
    status
        .servers
        .iter()
        .max_by_key(|s| s.objects)
        .map(|s| s.id)
}

/// Waits for the end of the recovery of `victim`.
async fn recovered(
    env: &Env,
    session: &Session,
    victim: ServerId,
    progress: &ProgressBar,
) -> Result<RecoveryStatus, Failure> {
    let start = env.clock.now();
    loop {
        let status = session.client.cluster_status().await?;
        if let Some(one) = status.recoveries.iter().find(|r| r.crashed == victim) {
            if one.done {
                return Ok(one.clone());
            }
            progress.set_message(format!("server {victim}: {}", one.stage));
        }
        if env.clock.now().since(start) > RECOVERY_LIMIT {
            return Err(Failure::new(format!(
                "server {victim} was not recovered within {RECOVERY_LIMIT:?}; see `pluvio status`"
            )));
        }
        env.clock.sleep(LOOK_PAUSE).await;
    }
}

fn tell_recovery(
    recovery: &RecoveryStatus,
    whole: Duration,
    seen: &Seen,
    story: &mut Story,
) -> Result<(), Failure> {
    let took = Duration::from_millis(recovery.duration_ms);
    let rate = recovery.bytes as f64 / 1e6 / took.as_secs_f64().max(1e-3);
    story.tell(&format!(
        "   recovered in {} ({} after the kill, which had to be noticed first):",
        time(took),
        time(whole)
    ))?;
    story.tell(&format!(
        "   {} objects, {} of log, {rate:.0} MB/s, {} tablets onto {} servers",
        count(recovery.objects),
        bytes(recovery.bytes),
        recovery.tablets,
        recovery.masters.len()
    ))?;
    story.tell(&format!(
        "   clients saw no error; the slowest operation took {} (before the kill {})",
        time(seen.longest_after),
        time(seen.longest_before)
    ))?;
    story.note(
        "recovery",
        json!({
            "server": recovery.crashed,
            "seconds": took.as_secs_f64(),
            "seconds_since_kill": whole.as_secs_f64(),
            "bytes": recovery.bytes,
            "mb_per_s": rate,
            "objects": recovery.objects,
            "tablets": recovery.tablets,
            "masters": recovery.masters.len(),
        }),
    );
    Ok(())
}

fn tell_memory(status: &ClusterStatus, story: &mut Story) -> Result<(), Failure> {
    let sum =
        |get: fn(&pluvio_client::ServerStatus) -> u64| status.servers.iter().map(get).sum::<u64>();
    let (live, log, total) = (
        sum(|s| s.memory_live),
        sum(|s| s.memory_log),
        sum(|s| s.memory_total),
    );
    let (index, stored) = (sum(|s| s.memory_index), sum(|s| s.object_bytes));
    let frames = sum(|s| s.frame_bytes);
    story.tell(&format!(
        "   {} of keys and values stored: {} live in {} of log (of {} in {} servers), {} of index",
        bytes(stored),
        bytes(live),
        bytes(log),
        bytes(total),
        status.servers.len(),
        bytes(index)
    ))?;
    story.tell(&format!(
        "   one copy in memory; {} of replicas on the servers' disks",
        bytes(frames)
    ))?;
    story.note("memory", json!({
        "stored": stored, "live": live, "log": log, "total": total, "index": index, "frames": frames,
    }));
    Ok(())
}
