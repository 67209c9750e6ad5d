//! `pluvio torture`: a cluster of real processes under faults, with clients whose complete history
//! is checked.
//!
//! `docs/torture.md` tells what is done, recorded and checked. The parts:
//! - `faults`: the schedule;
//! - `nemesis`: does it, to processes, `links` and `disks`;
//! - `clients`: who works on the cluster, by `native`, `redis` and `slots`;
//! - `bank`: their transfers between accounts;
//! - `several`: their transactions over registers and lists;
//! - `journal`: their operations;
//! - `last_reads`: everything is read when faults have ended;
//! - `report`: the judgement;
//! - `evidence`: where it is kept;
//! - `lines`: histories as files;
//! - `tables`: what clients work on.

use clap::Args;
use clients::Clients;
use disks::Disks;
use draw::Draw;
use evidence::Evidence;
use faults::{Fault, Faults, Schedule};
use indicatif::ProgressBar;
use journal::{Journal, Material};
use last_reads::LastReads;
use links::Links;
use memory::Counted;
use nemesis::{Machine, Nemesis};
use pluvio_console::failure::Failure;
use pluvio_console::options::{Global, LogFormat};
use pluvio_console::output::{bar, say, spinner};
use pluvio_console::tls::TlsArgs;
use pluvio_env::{Clock, Env};
use pluvio_local::{Carrier, LocalCluster, LocalOptions, Program, SECOND_DIRECTORY, temporary};
use pluvio_sim::check::{Check, Violation};
use pluvio_units::Size;
use report::Report;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

mod bank;
mod clients;
mod disks;
mod draw;
mod evidence;
mod faults;
mod journal;
mod last_reads;
mod lines;
mod links;
mod memory;
mod native;
mod nemesis;
mod redis;
mod report;
mod several;
mod slots;
mod tables;

/// Coordinators: one leads, the other takes over.
const COORDINATORS: u32 = 2;
/// How long the cluster may take to be healthy: far more than it needs on a machine that is busy.
const HEALTHY_LIMIT: Duration = Duration::from_secs(180);
/// How often the bar moves.
const TICK: Duration = Duration::from_millis(500);

/// `pluvio torture`.
#[derive(Args, Clone, Debug)]
pub struct Torture {
    /// How long clients work under faults; parts of minutes are possible
    #[arg(long, value_name = "N", default_value_t = 5.0, value_parser = minutes)]
    minutes: f64,
    /// Seed of the faults, and of what clients ask for [default: drawn]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Number of servers
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(3..=16))]
    servers: u32,
    /// Replicas of every write on other servers' disks
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=8))]
    replicas: u32,
    /// Log memory of each server
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    memory: Size,
    /// Clients; every other one uses the Redis ports, half of those as cluster clients
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u16).range(2..=256))]
    clients: u16,
    /// Kinds of faults: all, none, or a list with commas
    #[arg(long, value_name = "LIST", default_value_t = Faults::all())]
    faults: Faults,
    /// Keep data, traces, history, faults and report in this directory, which must be empty or new.
    /// [default: a temporary directory, kept only when something does not hold or the run ends
    /// early]
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Run nothing: check a history that an earlier run has kept
    #[arg(long, value_name = "FILE", conflicts_with_all = ["minutes", "seed", "servers", "replicas", "memory", "clients", "faults", "keep"])]
    history: Option<PathBuf>,
}

/// Longer than a week is a slip of the pen.
const MINUTES_MAX: f64 = 10_080.0;

fn minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().unwrap_or(f64::NAN);
    if !(minutes > 0.0 && minutes <= MINUTES_MAX) {
        return Err(format!(
            "give minutes, more than 0 and at most {MINUTES_MAX}"
        ));
    }
    Ok(minutes)
}

/// A run that was arranged.
struct Run {
    /// The wanted torture, without faults that are not possible here.
    torture: Torture,
    seed: u64,
    /// Where the processes keep data and traces.
    data: PathBuf,
    machine: Arc<Machine>,
}

/// Runs the torture. Exit code 0 when nothing was found that does not hold, 1 when something was,
/// or when the run ended early.
pub fn run(global: &Global, torture: &Torture) -> Result<ExitCode, Failure> {
    if let Some(path) = &torture.history {
        let material = lines::read(path)?;
        if material.is_empty() {
            return Err(Failure::new(format!(
                "{}: there is no operation in it; give the history.jsonl of a run",
                path.display()
            )));
        }
        let mut report = Report::default();
        report.judge(&material);
        return report.tell(global);
    }
    if torture.replicas >= torture.servers {
        return Err(Failure::usage(
            "--replicas must be less than --servers: replicas lie on other servers",
        ));
    }
    let program = Program::beside_own()?;
    let traces = (global.log.clone(), global.log_format);
    run_with(global, torture, |run| {
        temporary::until_stopped(&TlsArgs::default(), move |env| async move {
            torment(env, &run, program, traces).await
        })
    })
}

/// Arranges everything, lets `torment` do its work, and judges the outcome. An error of `torment`
/// leaves no evidence but its text: that there is no cluster, or that somebody stopped it.
fn run_with(
    global: &Global,
    torture: &Torture,
    torment: impl FnOnce(Run) -> Result<(Report, Material), Failure>,
) -> Result<ExitCode, Failure> {
    let evidence = Evidence::new(torture.keep.as_deref())?;
    let seed = torture.seed.unwrap_or_else(fresh_seed);
    let mut asked = torture.clone();
    let (machine, left_out) = machine(&mut asked, seed, evidence.folder());
    for (fault, why) in &left_out {
        say(format_args!("not possible here: {}: {why}", fault.name()));
    }
    let machine = Arc::new(machine);
    let result = torment(Run {
        torture: asked,
        seed,
        data: evidence.folder().to_owned(),
        machine: Arc::clone(&machine),
    });
    // Unmounts disks, before their directory is removed.
    drop(machine);
    let (mut report, material) = match result {
        Ok(done) => done,
        Err(failure) => {
            evidence.end(&failure);
            return Err(failure);
        }
    };
    report.left_out = left_out;
    let judging = spinner("checking histories");
    judging.enable_steady_tick(Duration::from_millis(100));
    report.judge(&material);
    judging.finish_and_clear();
    if report.ok && torture.keep.is_none() {
        evidence.remove();
        return report.tell(global);
    }
    report.kept = Some(evidence.folder().display().to_string());
    let written = evidence.keep(&report, &material);
    match (report.tell(global), written) {
        (Err(failure), Err(unwritten)) => {
            say(format_args!("not all evidence is there: {unwritten}"));
            Err(failure)
        }
        (Ok(_), Err(unwritten)) => Err(unwritten),
        (told, Ok(())) => told,
    }
}

/// Arranges what faults need; those that this machine does not allow are taken away, with the
/// reason.
fn machine(torture: &mut Torture, seed: u64, data: &Path) -> (Machine, BTreeMap<Fault, String>) {
    let mut left_out = BTreeMap::new();
    let folders: Vec<PathBuf> = (1..=torture.servers)
        .map(|number| data.join(format!("server-{number}")))
        .collect();
    let mut possible = |faults: &mut Faults, fault, why: Option<String>| {
        if let Some(why) = why {
            faults.remove(fault);
            left_out.insert(fault, why);
        }
    };
    let processes = (COORDINATORS + torture.servers) as usize;
    let faults = &mut torture.faults;
    let (mut links, mut disks) = (None, None);
    if faults.has(Fault::Cut) {
        let made = Links::new(processes);
        possible(faults, Fault::Cut, made.as_ref().err().cloned());
        links = made.ok();
    }
    if faults.has(Fault::Disk) {
        // A log on disk grows to twice the memory, R times, over as many servers; and as much
        // again, because they are unevenly filled.
        let size = Size(torture.memory.bytes() * u64::from(torture.replicas) * 4);
        let made = Disks::new(folders.clone(), size);
        possible(faults, Fault::Disk, made.as_ref().err().cloned());
        disks = made.ok();
    }
    let rotten = Draw::new(seed, "rotten", 0).place(folders.len());
    let machine = Machine {
        links,
        disks,
        folders,
        rotten,
    };
    (machine, left_out)
}

/// Whether the processes of a run have rings for each other: in half of the runs.
fn has_rings(seed: u64) -> bool {
    Draw::new(seed, "rings", 0).percent(50)
}

/// A seed for somebody who gives none.
fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // So short that it is easily typed.
    std::hash::RandomState::new().build_hasher().finish() >> 40
}

/// Starts a cluster, torments it, heals it, and reads everything, twice. If the run ends early once
/// there is a cluster, its cause is in the report, beside everything that happened until then.
///
/// # Errors
/// There is no cluster.
async fn torment(
    env: Env,
    run: &Run,
    program: Program,
    (log, log_format): (Option<String>, LogFormat),
) -> Result<(Report, Material), Failure> {
    let torture = &run.torture;
    let rings = has_rings(run.seed);
    let mapped_reads = Arc::new(AtomicU64::new(0));
    let counted = |memory| Arc::new(Counted::new(memory, Arc::clone(&mapped_reads)));
    let env = Env {
        mapped: env.mapped.clone().map(|memory| counted(memory) as _),
        ..env
    };
    let options = LocalOptions {
        coordinators: COORDINATORS,
        // Up to R - 1 servers are away at a time (TORT-4), and more may go before what they had is
        // replicated again. Where bits flip, one replica of every segment may be damaged: a write
        // needs another one.
        min_replicas: Some(match torture.faults.has(Fault::Flip) {
            true => (torture.replicas - 1).max(2),
            false => (torture.replicas - 1).max(1),
        }),
        homes: run.machine.links.as_ref().map(Links::homes),
        carrier: match rings {
            true => Carrier::Rings,
            false => Carrier::Tcp,
        },
        mapped_reads: true,
        drain_timeout: Some(nemesis::DRAIN_LIMIT),
        second_directory: torture.faults.has(Fault::Device),
        log: Some(log.unwrap_or_else(|| "info".to_owned())),
        log_format,
        ..LocalOptions::for_a_while(torture.servers, torture.replicas, torture.memory, &run.data)
    };
    if torture.faults.has(Fault::Device) {
        for folder in &run.machine.folders {
            let second = folder.join(SECOND_DIRECTORY);
            let made = fs::create_dir_all(&second);
            made.map_err(|error| Failure::new(format!("{}: {error}", second.display())))?;
        }
    }
    let cluster = LocalCluster::start(env.clone(), program, options).await?;
    let journal = Journal::new(env.clock.clone());
    let mut nemesis = Nemesis::new(
        cluster,
        Arc::clone(&run.machine),
        env.clock.clone(),
        journal.clone(),
        Schedule::new(run.seed, &torture.faults),
        run.seed,
        (torture.replicas as usize - 1).max(1),
    );
    let mut report = Report {
        seed: run.seed,
        servers: torture.servers,
        replicas: torture.replicas,
        rings,
        faults: torture.faults.clone(),
        again: again(torture, run.seed),
        ..Report::default()
    };
    match phases(&env, run, &journal, &mut nemesis, &mut report).await {
        Ok(()) => nemesis.cluster.stop().await,
        Err(failure) => {
            report.failed = Some(failure.to_string());
            journal.stop();
            // Some may be stopped or cut off, and would not end when they are asked to.
            nemesis.kill_all().await;
        }
    }
    report.violations.extend(panics(&run.data.join("logs")));
    report.faults_done = nemesis.counts;
    report.mapped_reads = mapped_reads.load(Ordering::Relaxed);
    report.expelled = nemesis.expelled;
    report.events = nemesis.events;
    let pages = match report.failed.is_some() {
        // Clients that are still at work go on in theirs.
        true => journal.pages().clone(),
        false => std::mem::take(&mut *journal.pages()),
    };
    report.operations = pages.operations;
    report.errors = pages.errors;
    report.violations.extend(pages.violations);
    Ok((report, pages.material))
}

/// All that is done to a cluster, one step after the other. The results until then are in
/// `journal`, `nemesis` and `report`, also when it fails.
async fn phases(
    env: &Env,
    run: &Run,
    journal: &Journal,
    nemesis: &mut Nemesis,
    report: &mut Report,
) -> Result<(), Failure> {
    let cluster = &nemesis.cluster;
    let last = cluster.session(last_reads::PATIENCE);
    let durabilities = tables::durabilities(run.torture.replicas, &run.torture.faults);
    let tables = tables::make(&last.client, durabilities).await?;
    let clients = Clients::start(run.torture.clients, run.seed, journal, cluster).await?;
    let length = Duration::from_secs_f64(run.torture.minutes * 60.0);
    let progress = bar(length.as_secs(), "torture (s)", false);
    let showing = show(journal, &*env.clock, &progress);
    let tormented = async {
        tokio::select! {
            biased;
            done = nemesis.torment(length) => done,
            () = showing => Ok(()),
        }
    };
    let tormented = tormented.await;
    progress.finish_and_clear();
    report.seconds = journal.now().as_secs_f64();
    journal.stop();
    tormented?;
    nemesis.heal()?;
    let progress = spinner("waiting until the cluster is healthy");
    progress.enable_steady_tick(Duration::from_millis(100));
    report.healed_s = healthy(nemesis, report, "faults have ended").await?;
    progress.set_message("clients end");
    clients.ended().await?;
    let readers = LastReads {
        env,
        journal,
        client: &last.client,
        tables: &tables,
        seed: run.seed,
    };
    progress.set_message("reading every key");
    readers.read_everything(report, 0).await?;
    progress.set_message("cold start");
    nemesis.cold_start().await?;
    report.cold_start_s = healthy(nemesis, report, "a cold start").await?;
    progress.set_message("reading every key");
    readers.read_everything(report, 1).await?;
    progress.finish_and_clear();
    Ok(())
}

/// The command that does the same to another cluster.
fn again(torture: &Torture, seed: u64) -> String {
    format!(
        "pluvio torture --minutes {} --seed {seed} --servers {} --replicas {} --memory {} --clients {} --faults {}",
        torture.minutes,
        torture.servers,
        torture.replicas,
        torture.memory.bytes(),
        torture.clients,
        torture.faults
    )
}

async fn healthy(
    nemesis: &mut Nemesis,
    report: &mut Report,
    after: &str,
) -> Result<Option<f64>, Failure> {
    match nemesis.healthy(HEALTHY_LIMIT).await? {
        Ok(took) => Ok(Some(took.as_secs_f64())),
        Err(missing) => {
            report.violations.push(Violation {
                check: Check::Progress,
                message: format!(
                    "the cluster is not healthy {HEALTHY_LIMIT:?} after {after}: {missing}"
                ),
                evidence: Vec::new(),
            });
            Ok(None)
        }
    }
}

async fn show(journal: &Journal, clock: &dyn Clock, progress: &ProgressBar) {
    loop {
        progress.set_position(journal.now().as_secs());
        clock.sleep(TICK).await;
    }
}

/// Processes that panicked, by their traces.
fn panics(logs: &Path) -> Vec<Violation> {
    let files = fs::read_dir(logs)
        .into_iter()
        .flatten()
        .filter_map(Result::ok);
    let mut found = Vec::new();
    for file in files {
        let bytes = fs::read(file.path()).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let mut lines = text
            .lines()
            .skip_while(|line| !line.contains("panicked at"));
        if let Some(first) = lines.next() {
            let name = file.file_name();
            found.push(Violation {
                check: Check::KeepsRunning,
                message: format!("{}: {first}", name.display()),
                evidence: lines.take(5).map(str::to_owned).collect(),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::nemesis::Event;
    use super::*;
    use clap::Parser;
    use pluvio_sim::history::{Action, KeyKind};
    use serde_json::Value;

    /// The command alone, as it is parsed.
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        global: Global,
        #[command(flatten)]
        torture: Torture,
    }

    fn line(flags: &str) -> Line {
        let line = format!("torture --faults none --seed 17 {flags}");
        Line::parse_from(line.split_whitespace())
    }

    /// A run in which a client does not come to its end, in the middle of its first operation.
    fn ends_early(run: Run) -> Result<(Report, Material), Failure> {
        let mut material = Material::default();
        let history = &mut material.history;
        let key = history.key("r-1", KeyKind::Register);
        let _under_way = history.invoke(key, 1, Action::Read, Duration::ZERO);
        let report = Report {
            seed: run.seed,
            failed: Some("a client was stopped".to_owned()),
            events: vec![Event {
                at: 1.0,
                text: "server process 1 is killed".to_owned(),
            }],
            ..Report::default()
        };
        Ok((report, material))
    }

    /// Checks what such a run says and leaves; gives where that is.
    fn evidence_of(Line { global, torture }: &Line) -> PathBuf {
        let failure = run_with(global, torture, ends_early).unwrap_err();
        let words = failure.to_string();
        for word in ["early", "seed 17", "a client was stopped"] {
            assert!(words.contains(word), "{words}");
        }
        let code = |code: ExitCode| format!("{code:?}");
        assert_eq!(code(failure.report()), code(ExitCode::from(1)));
        let (_, folder) = words.rsplit_once(" are in ").unwrap();
        let folder = PathBuf::from(folder);
        let history = lines::read(&folder.join("history.jsonl")).unwrap();
        assert_eq!(history.history.len(), 1);
        let faults = fs::read_to_string(folder.join("faults.jsonl")).unwrap();
        assert!(faults.contains("server process 1 is killed"), "{faults}");
        let report = fs::read_to_string(folder.join("report.json")).unwrap();
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["ok"], false, "{report}");
        assert_eq!(report["failed"], "a client was stopped", "{report}");
        assert_eq!(report["kept"], folder.to_str().unwrap(), "{report}");
        folder
    }

    /// TORT-6.
    // shows: TORT-6
    #[test]
    fn a_run_that_ends_early_leaves_its_evidence_and_says_where() {
        let folder = evidence_of(&line(""));
        fs::remove_dir_all(folder).unwrap();
        let own = tempfile::tempdir().unwrap();
        let kept = own.path().join("evidence");
        let folder = evidence_of(&line(&format!("--keep {}", kept.display())));
        assert_eq!(folder, kept.canonicalize().unwrap());
    }

    #[test]
    fn a_run_without_a_cluster_leaves_no_temporary_directory() {
        let Line { global, torture } = line("");
        let mut data = PathBuf::new();
        let failed = run_with(&global, &torture, |run| {
            assert!(run.data.is_dir());
            data = run.data;
            Err(Failure::new("no port is free"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "no port is free");
        assert!(!data.exists());
    }

    #[test]
    fn a_run_in_which_everything_holds_leaves_no_temporary_directory() {
        let Line { global, torture } = line("");
        let mut data = PathBuf::new();
        let done = run_with(&global, &torture, |run| {
            data = run.data;
            Ok((Report::default(), Material::default()))
        });
        assert!(done.is_ok());
        assert!(!data.exists());
    }
}
