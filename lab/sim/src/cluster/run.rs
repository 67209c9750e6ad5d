//! One run: start, work under faults, quiet time, last reads, judgement.

use crate::check::accounts::{Contents, not_accounted_for, not_found};
use crate::check::cycles;
use crate::check::transfers::strictly_serializable;
use crate::check::{Check, Violation, check_history, expected, ownership, running};
use crate::cluster::clients::Clients;
use crate::cluster::faults::{Fault, Faults};
use crate::cluster::journal::{Journal, Keys};
use crate::cluster::narrow::Keep;
use crate::cluster::nemesis::{Nemesis, Targets};
use crate::cluster::nodes::Nodes;
use crate::cluster::plan::{OperationKind, Plan};
use crate::cluster::report::RunReport;
use crate::cluster::times::Times;
use crate::cluster::workload::{Cache, LIFETIME_MAX, Shared, Worker};
use crate::history::{History, KeyKind, Outcome};
use crate::options::SimOptions;
use crate::sim::{ProcessEnv, Sim};
use core::time::Duration;
use pluvio_client::RetryReason;
use pluvio_env::Env;
use pluvio_units::Marks;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// How often the harness looks at the processes. Faults begin at such a moment.
const LOOK: Duration = Duration::from_millis(5);
/// Virtual time after which clients get no more work, however little they did.
const WORK_MAX: Duration = Duration::from_secs(120);
/// Virtual time in which the tables of a new cluster must be there.
const SETUP_MAX: Duration = Duration::from_secs(60);
/// Virtual time in which the cluster must be healthy once faults have stopped: silent servers are
/// declared dead after some 30 s at most, a log that is not complete is looked at again every half
/// second, what could not be recovered is tried again after two; several rounds of all that.
const QUIET_MAX: Duration = Duration::from_secs(60);
/// From the last ping that a server does not answer until it is declared crashed: that ping and
/// another one, 250 ms each, and what is stored.
const CONVICTION_MAX: Duration = Duration::from_secs(1);
/// Virtual time for the last reads.
const LAST_MAX: Duration = Duration::from_secs(300);
/// Virtual time in which servers have cleared away what is not theirs: tablets that moved, tables
/// that were dropped.
const CLEARING_MAX: Duration = Duration::from_secs(10);
/// Virtual time in which backups have once been asked for all of a log between two changes of its
/// segments.
const ROLLING_MAX: Duration = Duration::from_secs(10);
/// How long time may stand still for deadlines in a healthy cluster: a horizon waits for replicas
/// that are made anew.
const STANDSTILL_MAX: Duration = Duration::from_secs(5);
/// Virtual time in which objects whose deadlines are past leave memory.
const SWEEPING_MAX: Duration = Duration::from_secs(3);
/// Steps of the search for an order, per key: far more than any key with one needed so far.
const LINEAR_STEPS_MAX: u64 = 200_000;
/// How often the coordinator is asked for its tables and recoveries.
const OBSERVE: Duration = Duration::from_millis(100);

/// What to run.
#[derive(Clone, PartialEq, Debug)]
pub struct RunOptions {
    /// The seed: everything that is not given here follows from it.
    pub seed: u64,
    /// Operations of all clients together.
    pub steps: u64,
    /// Servers; drawn from the seed (1 to 6) when `None`.
    pub servers: Option<u32>,
    /// Kinds of faults that may happen. Each seed uses some of them.
    pub faults: Faults,
    /// What is kept of what the seed makes of it.
    pub keep: Keep,
}

impl RunOptions {
    /// A run of usual size with all faults.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            steps: 1_000,
            servers: None,
            faults: Faults::all(),
            keep: Keep::default(),
        }
    }

    /// The command that runs the same.
    #[must_use]
    pub fn command(&self) -> String {
        let servers = self
            .servers
            .map_or_else(String::new, |n| format!(" --servers {n}"));
        format!(
            "pluvio sim --seed {} --steps {}{servers} --faults {}{}",
            self.seed,
            self.steps,
            self.faults,
            self.keep.flags()
        )
    }
}

/// Runs a cluster from one seed and checks it. Takes no longer than the work takes: virtual time
/// costs nothing.
///
/// A panic of the code under test becomes a violation where panics unwind; where they abort, the
/// simulation has printed the seed before.
#[must_use]
pub fn run(options: &RunOptions) -> RunReport {
    run_traced(options, tracing::Level::WARN, None)
}

/// Takes the lines of a trace.
pub type TraceSink = Box<dyn FnMut(&str) + Send>;

/// [`run`], with every line of the trace for `sink`, `tracing` events of `level` and worse among
/// them. The run is the same.
#[must_use]
pub fn run_traced(
    options: &RunOptions,
    level: tracing::Level,
    sink: Option<TraceSink>,
) -> RunReport {
    let mut plan = Plan::draw(
        options.seed,
        options.servers,
        &options.faults,
        options.steps,
    );
    plan.narrow(&options.keep);
    let plan = Arc::new(plan);
    let steps = options.keep.steps.unwrap_or(u64::MAX);
    let journal = Journal::new(options.steps.min(steps));
    let sim = Sim::new(
        options.seed,
        SimOptions {
            cores: plan.cores,
            network: Plan::calm_network(),
            datagram_bytes_max: plan.datagram_bytes_max,
            clock_drift_ppm_max: plan.clock_drift_ppm_max,
            log_level: Some(level),
            ..SimOptions::default()
        },
    );
    if let Some(sink) = sink {
        sim.set_trace_sink(sink);
    }
    let mut nemesis = Nemesis::new(options.seed, &plan, &options.keep);
    let mut expelled = 0;
    let mut mapped_reads = 0;
    let marks = Marks::count();
    let mut reached = None;
    guarded(&journal, || {
        let mut cluster = Cluster::start(&sim, &plan, &journal);
        cluster.work(&mut nemesis);
        let healthy = cluster.quiet(&mut nemesis);
        expelled = cluster.nodes.expelled;
        mapped_reads = cluster.nodes.memories.reads();
        // What the checkers do reaches branches, too.
        reached = Some(marks.reached());
        if healthy {
            cluster.reconstruct_logs();
        }
    });
    let mut report = report(options, &plan, &sim, &journal, &nemesis, expelled);
    let reached = reached.unwrap_or_else(|| marks.reached()).into_iter();
    report.mapped_reads = mapped_reads;
    report.marks = reached
        .map(|(name, times)| (name.to_owned(), times))
        .collect();
    report
}

/// Does `work`; a panic becomes a violation.
fn guarded(journal: &Journal, work: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
        journal.violation(running::panicked(&*panic));
    }
}

fn violation(check: Check, message: impl Into<String>) -> Violation {
    Violation {
        check,
        message: message.into(),
        evidence: Vec::new(),
    }
}

fn report(
    options: &RunOptions,
    plan: &Plan,
    sim: &Sim,
    journal: &Journal,
    nemesis: &Nemesis,
    expelled: u64,
) -> RunReport {
    let steps_done = journal.steps_done();
    let closed = journal.close();
    let mut violations = closed.violations;
    let verdict = check_history(&closed.history, LINEAR_STEPS_MAX);
    violations.extend(verdict.violations);
    violations.extend(strictly_serializable(&closed.deeds));
    violations.extend(cycles::strictly_serializable(&closed.transactions));
    let (warnings, missed) = sim.warnings();
    violations.extend(expected::only_expected(
        &warnings,
        missed,
        !plan.faults.is_empty(),
        plan.weak_server.is_some() || plan.faults.has(Fault::Device),
    ));
    RunReport {
        seed: options.seed,
        steps: options.steps,
        steps_done,
        faults: options.faults.clone(),
        plan: plan.clone(),
        acknowledged_writes: acknowledged(&closed.history),
        operations: closed.operations,
        failures: closed.failures,
        faults_injected: injected(sim, nemesis),
        fault_events: nemesis.events(),
        marks: BTreeMap::new(),
        recoveries: closed.recoveries,
        expelled,
        mapped_reads: 0,
        keys_linearizable: verdict.linearizable,
        keys_undecided: verdict.undecided,
        trace_hash: format!("{:016x}", sim.trace_hash()),
        events: sim.trace_events(),
        // So few digits that their text gives the same number again.
        virtual_seconds: (sim.now().as_secs_f64() * 1e6).round() / 1e6,
        violations,
        replay: options.command(),
    }
}

fn acknowledged(history: &History) -> u64 {
    let records = history.keys().flat_map(|(_, key)| &key.records);
    let changes = records.filter(|r| {
        matches!(
            r.outcome,
            Outcome::Wrote { .. } | Outcome::Deleted { .. } | Outcome::Added { .. }
        )
    });
    changes.count() as u64
}

/// Faults by name: what the nemesis did, and for messages how many met what.
fn injected(sim: &Sim, nemesis: &Nemesis) -> BTreeMap<String, u64> {
    let stats = sim.network_stats();
    nemesis
        .injected()
        .iter()
        .map(|(fault, count)| {
            let count = match fault {
                Fault::Loss => stats.lost,
                Fault::Duplication => stats.duplicated,
                Fault::Reordering => stats.reordered,
                Fault::Datagrams => stats.sent_again,
                Fault::Delay
                | Fault::Crash
                | Fault::Restart
                | Fault::Coordinator
                | Fault::Power
                | Fault::Cut
                | Fault::Stall
                | Fault::Clock
                | Fault::Client
                | Fault::Disk
                | Fault::Bitrot
                | Fault::Memory
                | Fault::Drain
                | Fault::Balance
                | Fault::Device => *count,
            };
            (fault.name().to_owned(), count)
        })
        .collect()
}

/// The cluster while it runs.
struct Cluster<'s> {
    sim: &'s Sim,
    nodes: Nodes,
    clients: Clients,
    shared: Shared,
    observer: ProcessEnv,
    overlap_seen: bool,
    /// Only where keys expire.
    times: Option<Times>,
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        if let Some(times) = &self.times {
            self.shared.journal.set_clocks(times.known());
        }
    }
}

impl<'s> Cluster<'s> {
    fn start(sim: &'s Sim, plan: &Arc<Plan>, journal: &Journal) -> Self {
        let nodes = Nodes::start(sim, plan, journal);
        let keys = Arc::new(Keys::new(plan, journal));
        let shared = Shared {
            sim: sim.handle(),
            journal: journal.clone(),
            keys,
            plan: Arc::clone(plan),
            memories: nodes.memories.clone(),
            cache: Cache::default(),
        };
        let observer = sim.process("observer");
        make_tables(sim, &observer, &shared);
        sim.spawn(
            observer.id,
            "observe",
            observe(observer.env.clone(), shared.clone()),
        );
        Self {
            sim,
            nodes,
            clients: Clients::start(sim, &shared),
            shared,
            observer,
            overlap_seen: false,
            times: (plan.volatiles > 0).then(|| Times::new(plan.clock_drift_ppm_max)),
        }
    }

    /// A client for the harness itself.
    fn worker(&self, number: u16) -> Worker {
        Worker::new(number, &self.observer.env, &self.shared)
    }

    fn complain(&self, check: Check, message: impl Into<String>) {
        self.shared.journal.violation(violation(check, message));
    }

    fn targets(&mut self) -> Targets<'_> {
        Targets {
            sim: self.sim,
            nodes: &mut self.nodes,
            clients: &mut self.clients,
        }
    }

    /// Lets a little time pass, and looks at the processes.
    fn look(&mut self, all_up: bool) {
        self.nodes.tend(self.sim, all_up);
        self.clients.tend(self.sim, all_up);
        self.sim.run_for(LOOK);
        if let Some(times) = &mut self.times {
            let servers = self.nodes.times(self.sim);
            times.look(self.sim.now(), &servers, &self.shared.journal);
        }
        if self.overlap_seen {
            return;
        }
        let mut served = self.nodes.served();
        if let Some(mut found) = ownership::one_server_each(&mut served) {
            self.overlap_seen = true;
            found.message = format!(
                "at {:.6} s: {}",
                self.sim.now().as_secs_f64(),
                found.message
            );
            self.shared.journal.violation(found);
        }
    }

    /// Clients work while things go wrong.
    fn work(&mut self, nemesis: &mut Nemesis) {
        let until = self.sim.now() + WORK_MAX;
        while self.clients.are_busy() && self.sim.now() < until {
            nemesis.act(&mut self.targets());
            self.look(false);
        }
        self.shared.journal.stop_steps();
    }

    /// Faults stop, everything comes back: the cluster must be healthy in time, and have all. Gives
    /// whether it is healthy.
    fn quiet(&mut self, nemesis: &mut Nemesis) -> bool {
        nemesis.stop(&mut self.targets());
        let longest = self.shared.plan.timeout * 4;
        let until = self.sim.now() + longest;
        while self.clients.are_busy() && self.sim.now() < until {
            self.look(true);
        }
        if self.shared.journal.workers() > 0 {
            let stuck = self.sim.run_until(|| false, Duration::ZERO);
            let stuck = stuck.err().map_or(String::new(), |s| s.to_string());
            let problem = format!("{longest:?}: {stuck}");
            let found = running::hangs("clients", problem);
            self.shared.journal.violation(found);
            return false;
        }
        // A ping that was lost just before the last fault ended may still convict somebody.
        self.wait(CONVICTION_MAX);
        let mut problem = self.until_healthy();
        if problem.is_some() && self.shared.plan.is_heavy() {
            // What fits nowhere waits for room (`docs/recovery.md`, Weaknesses), which another
            // server brings.
            self.nodes.add_server(self.sim);
            problem = self.until_healthy();
        }
        if problem.is_none() && self.times.is_some() {
            self.let_expire();
            problem = self.until_healthy();
        }
        if problem.is_none() && self.shared.plan.faults.has(Fault::Memory) {
            self.find_turned_bits();
            problem = self.until_healthy();
        }
        let healthy = problem.is_none();
        if let Some(problem) = problem {
            let message = format!("{QUIET_MAX:?} after the last fault: {problem}");
            self.complain(Check::Progress, message);
        }
        let found = self.read_everything();
        if let Some(found) = found.filter(|_| healthy) {
            self.compare(found);
        }
        self.write_once_more();
        healthy
    }

    /// Waits until most lifetimes are over, reads what they were of, and deletes the rest: nothing
    /// changes by itself any more.
    fn let_expire(&mut self) {
        // Clocks may be slow.
        self.wait(LIFETIME_MAX.mul_f64(1.25));
        let times = self.times.as_ref();
        if let Some(problem) = times.and_then(|times| times.stands_still(STANDSTILL_MAX)) {
            self.complain(Check::ExpiresInTime, problem);
        }
        let mut worker = self.worker(u16::MAX - 4);
        let keys = self.shared.keys.of_kind(KeyKind::Volatile);
        let work = async move {
            if !worker.open_tables().await {
                return Err("the tables cannot be opened".to_owned());
            }
            for key in keys {
                let read = worker.read_volatile(key).await;
                let deleted = worker.delete_volatile(key).await;
                if [read, deleted].contains(&Outcome::NotDone) {
                    return Err("keys that expire cannot be read and deleted".to_owned());
                }
            }
            Ok(())
        };
        self.last("reads of what expires", work);
        self.wait(SWEEPING_MAX);
    }

    fn wait(&mut self, time: Duration) {
        let until = self.sim.now() + time;
        while self.sim.now() < until {
            self.look(true);
        }
    }

    /// Reads every key, and then compares what nobody reads: servers whose memory is corrupt end.
    fn find_turned_bits(&mut self) {
        // What cannot be read is complained of.
        let _read = self.read_everything();
        self.nodes.compare_memory();
        self.look(true);
    }

    /// Every log could be recovered if its master crashed now.
    fn reconstruct_logs(&mut self) {
        let until = self.sim.now() + ROLLING_MAX;
        while let Some(problem) = self.nodes.incomplete_log(self.sim) {
            if self.sim.now() > until {
                return self.complain(Check::LogsComplete, problem);
            }
            self.look(true);
        }
    }

    /// Waits until the cluster is healthy; what is missing when it is not in time.
    fn until_healthy(&mut self) -> Option<String> {
        let until = self.sim.now() + QUIET_MAX;
        loop {
            self.look(true);
            let problem = self.problem()?;
            if self.sim.now() > until {
                return Some(problem);
            }
            for _ in 0..20 {
                self.look(true);
            }
        }
    }

    /// What is not healthy.
    fn problem(&self) -> Option<String> {
        let worker = self.worker(u16::MAX);
        let work = async move { worker.client().cluster_status().await };
        let limit = self.shared.plan.timeout * 2;
        let status = match self.sim.block_on(self.observer.id, work, limit) {
            Ok(Ok(status)) => status,
            Ok(Err(error)) => return Some(format!("no status: {error}")),
            Err(stuck) => return Some(format!("no status: {stuck}")),
        };
        let servers = self.nodes.servers() as u32;
        if let Some(problem) = ownership::not_healthy(servers, &status.list, &status.tables) {
            let stages: Vec<String> = status
                .recoveries
                .iter()
                .filter(|r| !r.done)
                .map(|r| format!("recovery of server {}: {}", r.crashed, r.stage))
                .collect();
            return Some(format!("{problem}; {}", stages.join("; ")));
        }
        let plan = &self.shared.plan;
        let names = &self.shared.keys.tables;
        if let Some(problem) = plan.wrong_durability(names, &status.tables) {
            return Some(problem);
        }
        if let Some(one) = status.migrations.iter().find(|m| !m.done) {
            return Some(format!("migration {}: {}", one.migration, one.phase));
        }
        if status.servers.len() != servers as usize {
            return Some(format!(
                "{} servers tell their status",
                status.servers.len()
            ));
        }
        let lacking = status.servers.iter().find_map(|s| {
            if let Some(why) = &s.writes_wait {
                return Some(format!("writes of server {} wait: {why}", s.id));
            }
            let lacking = s.segments_under_replicated > 0 && !self.shared.plan.may_lack_replicas();
            lacking.then(|| {
                format!(
                    "server {} has {} segments with too few replicas",
                    s.id, s.segments_under_replicated
                )
            })
        });
        lacking.or_else(|| match self.nodes.accounts() {
            Some(accounts) => not_accounted_for(&accounts, self.shared.plan.may_lack_replicas()),
            None => Some("a server does not serve".to_owned()),
        })
    }

    /// Reads every key, goes through every table and counts it. Gives the contents; `None` after a
    /// complaint.
    fn read_everything(&self) -> Option<Contents> {
        let mut worker = self.worker(u16::MAX - 1);
        let keys = Arc::clone(&self.shared.keys);
        let journal = self.shared.journal.clone();
        let mut kinds = self.shared.plan.operations.iter();
        let has_transfers = kinds.any(|(kind, _)| *kind == OperationKind::Transfer);
        let is_heavy = self.shared.plan.is_heavy();
        let work = async move {
            if !worker.open_tables().await {
                return Err("the tables cannot be opened".to_owned());
            }
            for key in keys.all() {
                if worker.read_any(key).await == Outcome::NotDone {
                    return Err(format!("key {} cannot be read", journal.name_of(key)));
                }
            }
            let kind = OperationKind::Transfer;
            if has_transfers
                && !worker.read_accounts(kind).await
                && !(is_heavy && worker.read_accounts_singly(kind).await)
            {
                return Err("the accounts cannot be read".to_owned());
            }
            for key in journal.shared_keys() {
                if !worker.read_shared(&key).await {
                    let name = String::from_utf8_lossy(&key.key);
                    return Err(format!("key {name} of transactions cannot be read"));
                }
            }
            let others = worker.contents_of_others().await;
            let mut all = others.map_err(|error| format!("other tables: {error}"))?;
            for table in 0..keys.tables.len() {
                let Some(found) = worker.enumerate(OperationKind::Enumerate, table).await else {
                    return Err("a table cannot be enumerated".to_owned());
                };
                match worker.count(table).await {
                    Ok(count) if count == found.objects => {}
                    Ok(count) => {
                        let found = found.objects;
                        return Err(format!("{found} objects are found and {count} counted"));
                    }
                    Err(error) => return Err(format!("a table cannot be counted: {error}")),
                }
                all.objects += found.objects;
                all.bytes += found.bytes;
            }
            Ok(all)
        };
        self.last("last reads", work)
    }

    /// What servers hold is what was found.
    fn compare(&mut self, found: Contents) {
        let until = self.sim.now() + CLEARING_MAX;
        loop {
            let accounts = self.nodes.accounts();
            let Some(problem) = accounts.and_then(|accounts| not_found(&accounts, found)) else {
                return;
            };
            if self.sim.now() > until {
                return self.complain(Check::Accounts, problem);
            }
            self.look(true);
        }
    }

    /// Writes once more.
    fn write_once_more(&self) {
        let mut worker = self.worker(u16::MAX - 3);
        let keys = Arc::clone(&self.shared.keys);
        let work = async move {
            let register = keys.all().find(|k| keys.kind(*k) == KeyKind::Register);
            let Some(register) = register else {
                return Ok(());
            };
            if !worker.open_tables().await {
                return Err("the tables cannot be opened".to_owned());
            }
            match worker.probe(register).await {
                Err(error) if error.retry_reason() != Some(RetryReason::MemoryFull) => {
                    Err(format!("nothing can be written: {error}"))
                }
                Ok(()) | Err(_) => Ok(()),
            }
        };
        self.last("last write", work);
    }

    /// Does the last things; `None` after a complaint.
    fn last<T: Send + 'static>(
        &self,
        what: &str,
        work: impl Future<Output = Result<T, String>> + Send + 'static,
    ) -> Option<T> {
        let problem = match self.sim.block_on(self.observer.id, work, LAST_MAX) {
            Ok(Ok(done)) => return Some(done),
            Ok(Err(problem)) => problem,
            Err(stuck) => format!("{what}: {stuck}"),
        };
        self.complain(Check::Progress, problem);
        None
    }
}

/// Tables are created before anything goes wrong, so that every client knows them.
fn make_tables(sim: &Sim, observer: &ProcessEnv, shared: &Shared) {
    let mut worker = Worker::new(u16::MAX, &observer.env, shared);
    let work = async move { worker.open_tables().await };
    let problem = match sim.block_on(observer.id, work, SETUP_MAX) {
        Ok(true) => return,
        Ok(false) => "a new cluster creates no tables".to_owned(),
        Err(stuck) => format!("setting up: {stuck}"),
    };
    let problem = violation(Check::Progress, problem);
    shared.journal.violation(problem);
}

/// Asks the coordinator again and again for its tables and recoveries.
async fn observe(env: Env, shared: Shared) {
    let worker = Worker::new(u16::MAX - 2, &env, &shared);
    let mut round = 0_u64;
    loop {
        env.clock.sleep(OBSERVE).await;
        round += 1;
        if let Ok(tables) = worker.client().list_tables().await {
            let problem = tables.iter().find_map(ownership::table_is_whole);
            problem
                .into_iter()
                .for_each(|v| shared.journal.violation(v));
        }
        if shared.plan.volatiles > 0
            && let Ok(list) = worker.client().server_list().await
        {
            let listed = list.servers.iter().map(|info| info.id);
            shared.journal.listed(listed.collect());
        }
        if round.is_multiple_of(5)
            && let Ok(status) = worker.client().cluster_status().await
        {
            for recovery in status.recoveries.iter().filter(|r| r.done) {
                shared.journal.recovered(recovery.crashed);
            }
        }
    }
}

#[cfg(test)]
mod planted;
