//! One server of a real cluster is filled, killed with SIGKILL, and recovered by the others.
//!
//! The clock is this process's. It runs from the signal to these moments:
//! 1. *detection*: the server list marks the server as crashed;
//! 2. clients read again the first and the last of some lost objects;
//! 3. all tablets are read again;
//! 4. the server list has lost the server, because all of its tablets are written, too.
//!
//! The coordinator reports the stages between them. *Planning*: the log is proven complete and cut
//! into partitions. The recovery master that reported last gives *reading* (it had nothing to
//! replay), *replay* and *re-replication*. The rest, *hand-over*, is waiting for leases to end, and
//! giving the tablets away.

use pluvio_client::Table;
use pluvio_console::failure::Failure;
use pluvio_console::options::LogFormat;
use pluvio_console::session::Session;
use pluvio_console::tls::TlsArgs;
use pluvio_env::{Env, Moment};
use pluvio_load::{Progress, Target, Workload, key, load};
use pluvio_local::{LocalCluster, LocalOptions, Program, temporary};
use pluvio_units::{CoreId, ServerId, Size};
use pluvio_wire::{BalanceWish, RecoveryStatus, ReplayStats, ServerState, TabletInfo, TabletState};
use rustix::process::{Pid, Signal, kill_process};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a client waits for an operation: far longer than a recovery.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long the recovery may take.
const RECOVERY_LIMIT: Duration = Duration::from_secs(300);
/// Pause between two looks at the server list: the error of the times seen.
const LOOK_PAUSE: Duration = Duration::from_millis(2);
/// How long the cluster is left alone between filling and killing.
const CALM: Duration = Duration::from_millis(500);
/// Lost objects that clients ask for when the server is killed.
const READERS: u64 = 16;
/// Callers, and writes of each at a time, that fill the server.
const WRITERS: (usize, usize) = (8, 64);
/// Ticks a second in which Linux tells processes' times, on every architecture.
const TICKS_PER_S: f64 = 100.0;

/// What cluster, and what is lost.
#[derive(Clone, Debug)]
pub struct Scene {
    pub servers: u32,
    pub replicas: u32,
    pub objects: u64,
    pub value_size: usize,
    pub seed: u64,
    pub memory: Size,
    /// Whether servers have fetched their memory when one is killed.
    pub populate: bool,
    pub log: Option<String>,
    pub log_format: LogFormat,
}

/// What was seen of a recovery. Milliseconds since the kill, or of a stage.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    detection: f64,
    first_read: f64,
    last_read: f64,
    all_read: f64,
    total: f64,
    planning: f64,
    reading: f64,
    replay: f64,
    re_replication: f64,
    hand_over: f64,
    attempts: f64,
    mb: f64,
    cpu_ms: f64,
}

/// A column's name, and its number.
type Column = (&'static str, fn(&Seen) -> f64);

impl Seen {
    /// Milliseconds from the kill until everything was served.
    pub fn total_ms(&self) -> f64 {
        self.total
    }

    /// The stages that the coordinator reports, and the rest of `total` milliseconds. `detected` of
    /// them were over when it began.
    fn stages(detected: f64, total: f64, planning_us: u64, last: ReplayStats) -> Self {
        let stage = |us: u64| us as f64 / 1e3;
        let (planning, waiting) = (stage(planning_us), stage(last.waiting_us));
        Self {
            detection: detected,
            first_read: 0.0,
            last_read: 0.0,
            all_read: 0.0,
            total,
            planning,
            reading: waiting,
            replay: stage(last.replay_us) - waiting,
            re_replication: stage(last.total_us.saturating_sub(last.replay_us)),
            hand_over: (total - detected - planning - stage(last.total_us)).max(0.0),
            attempts: 0.0,
            mb: 0.0,
            cpu_ms: 0.0,
        }
    }

    /// All numbers of a row.
    pub const COLUMNS: [Column; 13] = [
        ("mb", |s| s.mb),
        ("first_read_ms", |s| s.first_read),
        ("last_read_ms", |s| s.last_read),
        ("all_read_ms", |s| s.all_read),
        ("total_ms", |s| s.total),
        ("detection_ms", |s| s.detection),
        ("planning_ms", |s| s.planning),
        ("reading_ms", |s| s.reading),
        ("replay_ms", |s| s.replay),
        ("re_replication_ms", |s| s.re_replication),
        ("hand_over_ms", |s| s.hand_over),
        ("attempts", |s| s.attempts),
        ("cpu_ms_per_mb", |s| s.cpu_ms / s.mb.max(1e-6)),
    ];
}

/// Runs one round in a cluster of its own.
///
/// # Errors
/// The cluster does not start, the recovery takes too long, or an object is lost.
pub fn run(scene: &Scene) -> Result<Seen, Failure> {
    let directory = temporary::directory("pluvio-bench-", "set TMPDIR")?;
    let options = LocalOptions {
        populate: scene.populate,
        log: scene.log.clone(),
        log_format: scene.log_format,
        ..LocalOptions::for_a_while(
            scene.servers,
            scene.replicas,
            scene.memory,
            directory.path(),
        )
    };
    let scene = scene.clone();
    let result = temporary::until_stopped(&TlsArgs::default(), move |env| async move {
        play(env, options, &scene).await
    });
    temporary::end(directory, result.as_ref().err());
    result
}

async fn play(env: Env, options: LocalOptions, scene: &Scene) -> Result<Seen, Failure> {
    let program = Program::beside_own()?;
    let mut cluster = LocalCluster::start(env.clone(), program, options).await?;
    let outcome = disaster(&env, &mut cluster, scene).await;
    cluster.stop().await;
    outcome
}

async fn disaster(env: &Env, cluster: &mut LocalCluster, scene: &Scene) -> Result<Seen, Failure> {
    let session = cluster.session(PATIENCE);
    // All on one server, and it stays there: its crash loses exactly this.
    session.client.balance(BalanceWish::Off).await?;
    let table = session.client.create_table("lost", Some(1)).await?;
    fill(&session, &table, scene).await?;
    if scene.populate {
        populated(env, cluster, scene.memory).await?;
    }
    env.clock.sleep(CALM).await;
    let victim = owner(&session, &table).await?;
    let which = cluster.server_with_id(victim);
    let which =
        which.ok_or_else(|| Failure::new("the cluster has a server that is none of ours"))?;
    let pid = cluster.announced(which).map_or(0, |server| server.pid);
    let survivors = pids(cluster, victim);
    let cpu = cpu_ms(&survivors);
    let killed = env.clock.now();
    signal(pid)?;
    let readers = Readers::start(&session, &table, scene, killed);
    let ms = |at: Moment| at.since(killed).as_secs_f64() * 1e3;
    let detected = ms(listed(&session, victim, killed, |state| {
        state != Some(ServerState::Up)
    })
    .await?);
    let all_read = ms(all_read(&session, &table, victim, killed).await?);
    let total = ms(listed(&session, victim, killed, |state| state.is_none()).await?);
    let cpu_ms = cpu_ms(&survivors) - cpu;
    let (first_read, last_read) = readers.end().await?;
    // It is long dead; this takes its handle away.
    cluster.kill(which).await;
    let status = report(&session, victim).await?;
    let found = session.client.count(&table).await?.objects;
    if found != scene.objects {
        return Err(Failure::new(format!(
            "{found} of {} objects are there after the recovery: this is a defect of Pluvio",
            scene.objects
        )));
    }
    Ok(Seen {
        first_read,
        last_read,
        all_read,
        attempts: f64::from(status.attempts),
        mb: status.bytes as f64 / 1e6,
        cpu_ms,
        ..Seen::stages(detected, total, status.planning_us, status.last_partition)
    })
}

async fn fill(session: &Session, table: &Table, scene: &Scene) -> Result<(), Failure> {
    let target = Target::Native {
        client: session.client.clone(),
        table: table.clone(),
    };
    let workload = Workload {
        connections: WRITERS.0,
        pipeline: WRITERS.1,
        keys: scene.objects,
        value_size: scene.value_size,
        get_percent: 0,
        seconds: 0.0,
        warmup_seconds: 0.0,
        seed: scene.seed,
    };
    let nobody: Progress = Arc::new(|_| {});
    let filled = load(&session.env, &target, &workload, &nobody).await;
    filled.map_err(|error| Failure::new(error.to_string()))?;
    Ok(())
}

/// Waits until all servers have fetched their memory.
async fn populated(env: &Env, cluster: &LocalCluster, memory: Size) -> Result<(), Failure> {
    let start = env.clock.now();
    let pids: Vec<u32> = cluster.servers().map(|server| server.pid).collect();
    while pids.iter().any(|pid| resident(*pid) < memory.bytes()) {
        if env.clock.now().since(start) > PATIENCE {
            return Err(Failure::new(format!(
                "--populate: the servers have not fetched {memory} each; has this machine as much for all of them, and Linux 5.14?"
            )));
        }
        env.clock.sleep(CALM).await;
    }
    Ok(())
}

/// The server that has the table.
async fn owner(session: &Session, table: &Table) -> Result<ServerId, Failure> {
    let info = session.client.table_info(table).await?;
    let mut owners: Vec<ServerId> = info.tablets.iter().map(|tablet| tablet.owner).collect();
    owners.dedup();
    match owners[..] {
        [owner] => Ok(owner),
        _ => Err(Failure::new("the table is not on one server")),
    }
}

/// Kills a process, and does not wait until its memory is given back.
fn signal(pid: u32) -> Result<(), Failure> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Failure::new("the server has no process"))?;
    kill_process(pid, Signal::KILL)
        .map_err(|error| Failure::new(format!("cannot kill the server: {error}")))
}

/// Waits until the server list says what is wanted of a server; gives when that was seen.
async fn listed(
    session: &Session,
    server: ServerId,
    since: Moment,
    is_wanted: impl Fn(Option<ServerState>) -> bool,
) -> Result<Moment, Failure> {
    let clock = &session.env.clock;
    loop {
        let list = session.client.server_list().await?;
        let now = clock.now();
        if is_wanted(list.get(server).map(|info| info.state)) {
            return Ok(now);
        }
        if now.since(since) > RECOVERY_LIMIT {
            return Err(Failure::new(format!(
                "server {server} was not recovered within {RECOVERY_LIMIT:?}"
            )));
        }
        clock.sleep(LOOK_PAUSE).await;
    }
}

/// Waits until every tablet of the table is read from another server; gives when that was seen.
async fn all_read(
    session: &Session,
    table: &Table,
    victim: ServerId,
    since: Moment,
) -> Result<Moment, Failure> {
    let clock = &session.env.clock;
    loop {
        let info = session.client.table_info(table).await?;
        let now = clock.now();
        let is_read =
            |tablet: &TabletInfo| tablet.state == TabletState::Normal && tablet.owner != victim;
        if info.tablets.iter().all(is_read) {
            return Ok(now);
        }
        if now.since(since) > RECOVERY_LIMIT {
            return Err(Failure::new(format!(
                "the table was not read again within {RECOVERY_LIMIT:?}"
            )));
        }
        clock.sleep(LOOK_PAUSE).await;
    }
}

/// The coordinator's report of the recovery of a server that is gone.
async fn report(session: &Session, server: ServerId) -> Result<RecoveryStatus, Failure> {
    let start = session.env.clock.now();
    loop {
        let status = session.client.cluster_status().await?;
        let mut all = status.recoveries.into_iter();
        match all.find(|recovery| recovery.crashed == server && recovery.done) {
            Some(recovery) => return Ok(recovery),
            None if session.env.clock.now().since(start) > PATIENCE => {
                return Err(Failure::new("the coordinator reports no recovery"));
            }
            None => session.env.clock.sleep(LOOK_PAUSE).await,
        }
    }
}

/// Clients that ask for lost objects.
struct Readers(Vec<oneshot::Receiver<Result<Duration, Failure>>>);

impl Readers {
    fn start(session: &Session, table: &Table, scene: &Scene, killed: Moment) -> Self {
        let ends = (0..READERS).map(|reader| {
            let (done, end) = oneshot::channel();
            let (own, table) = (session.clone(), table.clone());
            let number = scene.objects * reader / READERS;
            session.env.tasks.spawn(CoreId(0), "reader", async move {
                // Nobody waits when the cluster has failed.
                let _unheard = done.send(read(&own, &table, number, killed).await);
            });
            end
        });
        Self(ends.collect())
    }

    /// Milliseconds after which the first and the last had their object.
    async fn end(self) -> Result<(f64, f64), Failure> {
        let (mut first, mut last) = (f64::MAX, 0.0);
        for end in self.0 {
            let stopped = || Failure::new("a reader was stopped");
            let took = end.await.map_err(|_| stopped())??;
            let ms = took.as_secs_f64() * 1e3;
            (first, last) = (ms.min(first), ms.max(last));
        }
        Ok((first, last))
    }
}

async fn read(
    session: &Session,
    table: &Table,
    number: u64,
    killed: Moment,
) -> Result<Duration, Failure> {
    let object = session.client.read(table, &key(number)).await?;
    match object {
        Some(_) => Ok(session.env.clock.now().since(killed)),
        None => Err(Failure::new(format!(
            "object {number} is lost: this is a defect of Pluvio"
        ))),
    }
}

/// Processes of the cluster that are not the victim's.
fn pids(cluster: &LocalCluster, victim: ServerId) -> Vec<u32> {
    let servers = cluster
        .servers()
        .filter(|server| server.id != Some(victim.0));
    cluster
        .coordinators()
        .chain(servers)
        .map(|one| one.pid)
        .collect()
}

/// Processor time of processes, in user and system mode.
fn cpu_ms(pids: &[u32]) -> f64 {
    let ticks = pids.iter().map(|pid| stat(*pid, 11) + stat(*pid, 12));
    ticks.sum::<u64>() as f64 * 1e3 / TICKS_PER_S
}

/// Bytes of a process that are in memory.
fn resident(pid: u32) -> u64 {
    stat(pid, 21) * rustix::param::page_size() as u64
}

/// A number of `/proc/PID/stat`, counted from the process's state; 0 if there is no such process.
fn stat(pid: u32, number: usize) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may hold anything; fields are counted behind it.
    let behind = text.rsplit_once(')').map_or("", |(_, behind)| behind);
    let field = behind.split_whitespace().nth(number);
    field.and_then(|field| field.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stages_of_a_recovery_add_up_to_its_time() {
        let last = ReplayStats {
            waiting_us: 5_000,
            replay_us: 35_000,
            total_us: 75_000,
            ..ReplayStats::default()
        };
        let seen = Seen::stages(100.0, 300.0, 20_000, last);
        let stages = [
            seen.planning,
            seen.reading,
            seen.replay,
            seen.re_replication,
        ];
        assert_eq!(stages, [20.0, 5.0, 30.0, 40.0]);
        let sum: f64 = stages.iter().sum();
        assert_eq!(seen.detection + sum + seen.hand_over, seen.total);
    }

    #[test]
    fn processor_time_of_this_process_grows() {
        let me = [std::process::id()];
        let before = cpu_ms(&me);
        let mut sum = 0u64;
        loop {
            sum = (0..10_000_000u64).fold(sum, |sum, n| sum.wrapping_add(n * n));
            if cpu_ms(&me) != before {
                break;
            }
        }
        assert!(std::hint::black_box(sum) > 0);
        assert_eq!(cpu_ms(&[]), 0.0);
        assert!(resident(me[0]) > 1 << 20);
    }
}
