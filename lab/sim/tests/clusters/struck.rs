//! A small cluster whose processes can be struck at any message between them.
use crate::support::{self, COORDINATOR, Stop, run_coordinator, run_until_stopped};
use core::fmt::Debug;
use core::time::Duration;
use pluvio_client::{Client, Table, WhichTablet};
use pluvio_coordinator::{CoordinatorOptions, MemoryStore};
use pluvio_env::{Address, BoxFuture, CallError, Env, Frame, Network};
use pluvio_server::NotLeft;
use pluvio_sim::{Intercepted, Interceptor, ProcessEnv, ProcessId, Sim, SimOptions};
use pluvio_units::{KeyHash, ServerId, Size};
use pluvio_wire::{ClusterStatus, TabletState};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

pub use support::LIMIT;

/// How long a process that was struck stays away.
const AWAY: Duration = Duration::from_millis(700);

/// Kinds of messages at which something can happen.
pub trait Message: Copy + PartialEq + Debug + Send + Sync + 'static {
    /// Which one this is, if any.
    fn of(frame: &Frame) -> Option<Self>;
}

/// When to strike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// The message was not received yet.
    Before,
    /// What it asks for was done, and its answer is not there yet.
    After,
}

/// At which message something happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At<M> {
    pub message: M,
    /// How many of its kind come before it.
    pub nth: u32,
    pub moment: Moment,
}

impl<M> At<M> {
    /// At the first message of a kind.
    pub fn first(message: M, moment: Moment) -> Self {
        Self {
            message,
            nth: 0,
            moment,
        }
    }
}

/// Strikes at each of these kinds of messages: before and after the first one, before the second
/// and after the third. `strike` says whether there was such a message; of each kind there must be
/// a first one. Gives at how many later ones it struck.
pub fn at_every_message<M: Message>(all: &[M], mut strike: impl FnMut(At<M>) -> bool) -> usize {
    let points = [
        (0, Moment::Before),
        (0, Moment::After),
        (1, Moment::Before),
        (2, Moment::After),
    ];
    let mut later = 0;
    for message in all.iter().copied() {
        for (nth, moment) in points {
            let at = At {
                message,
                nth,
                moment,
            };
            let struck = strike(at);
            assert!(struck || nth > 0, "{at:?}: there was no such message");
            if !struck {
                // So there is none behind it either.
                break;
            }
            later += usize::from(nth > 0);
        }
    }
    // Shown when the test fails.
    println!("struck at {later} messages that were not the first of their kind");
    later
}

/// Who crashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Victim {
    Process(ProcessId),
    Sender,
    Receiver,
}

/// What happens at a message.
enum Blow {
    Crash(Victim),
    /// The client does something.
    Work(BoxFuture<'static, ()>),
}

enum Due {
    Crash(ProcessId),
    Work(BoxFuture<'static, ()>),
}

struct Strike<M> {
    at: Option<(At<M>, Blow)>,
    due: Option<Due>,
    /// How many there were, with the one that is due.
    begun: u32,
    /// How many of them have happened.
    done: u32,
}

impl<M> Default for Strike<M> {
    fn default() -> Self {
        Self {
            at: None,
            due: None,
            begun: 0,
            done: 0,
        }
    }
}

type Shared<T> = Arc<Mutex<T>>;

/// Sees every message that a process sends.
struct Saboteur<M> {
    env: Env,
    process: ProcessId,
    /// Where everybody listens.
    addresses: BTreeMap<String, ProcessId>,
    strike: Shared<Strike<M>>,
    held: Shared<Option<(M, Duration)>>,
}

impl<M: Message> Saboteur<M> {
    /// Lets happen what shall happen, if this is the moment.
    async fn look(&self, message: Option<M>, to: &Address, moment: Moment) {
        let number = {
            let mut strike = self.strike.lock().unwrap();
            let is_it = |(at, _): &mut (At<M>, Blow)| {
                if Some(at.message) != message || at.moment != moment {
                    return false;
                }
                let before = at.nth;
                at.nth = before.saturating_sub(1);
                before == 0
            };
            let Some((_, blow)) = strike.at.take_if(is_it) else {
                return;
            };
            strike.begun += 1;
            strike.due = Some(match blow {
                Blow::Crash(Victim::Process(victim)) => Due::Crash(victim),
                Blow::Crash(Victim::Sender) => Due::Crash(self.process),
                Blow::Crash(Victim::Receiver) => Due::Crash(self.addresses[&to.to_string()]),
                Blow::Work(work) => Due::Work(work),
            });
            strike.begun
        };
        // If it is this process, this is as far as it comes.
        while self.strike.lock().unwrap().done < number {
            self.env.clock.sleep(Duration::from_micros(200)).await;
        }
    }
}

impl<M: Message> Saboteur<M> {
    async fn wait_if_held(&self, message: Option<M>) {
        let is_held = |(held, _): (M, Duration)| Some(held) == message;
        while self.held.lock().unwrap().is_some_and(is_held) {
            self.env.clock.sleep(Duration::from_millis(10)).await;
        }
    }
}

impl<M: Message> Interceptor for Saboteur<M> {
    fn call<'a>(
        &'a self,
        network: &'a dyn Network,
        to: &'a Address,
        request: Frame,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>> {
        Box::pin(async move {
            let message = M::of(&request);
            self.look(message, to, Moment::Before).await;
            self.wait_if_held(message).await;
            let answer = network.call(to, request, limit).await?;
            self.look(message, to, Moment::After).await;
            Ok(answer)
        })
    }
}

/// A coordinator, some servers and clients.
pub struct Cluster<M> {
    pub sim: Sim,
    pub coordinator: ProcessId,
    servers: Vec<ProcessId>,
    pub client: ProcessEnv,
    store: MemoryStore,
    options: CoordinatorOptions,
    strike: Shared<Strike<M>>,
    held: Shared<Option<(M, Duration)>>,
    /// The latest life of each server.
    ids: Shared<BTreeMap<usize, ServerId>>,
    stops: Vec<Stop>,
    away: BTreeMap<ProcessId, Duration>,
}

/// `PLUVIO_SEED` makes all seeds others.
fn other_seeds() -> u64 {
    let number = std::env::var("PLUVIO_SEED").ok();
    let number = number.map_or(0, |text| text.parse().expect("PLUVIO_SEED is a number"));
    // Further apart than seeds of these tests are.
    100_000_u64 * number
}

fn name_of(number: usize) -> String {
    format!("server-{number}")
}

impl<M: Message> Cluster<M> {
    pub fn new(seed: u64, servers: usize) -> Self {
        Self::with(seed, servers, CoordinatorOptions::default())
    }

    pub fn with(seed: u64, servers: usize, options: CoordinatorOptions) -> Self {
        let sim = Sim::new(seed + other_seeds(), SimOptions::default());
        let store = MemoryStore::new();
        let coordinator = sim.process("coordinator");
        let processes: Vec<_> = (0..servers).map(|n| sim.process(&name_of(n))).collect();
        let client = sim.process("client");
        let cluster = Self {
            coordinator: coordinator.id,
            servers: processes.iter().map(|p| p.id).collect(),
            client,
            store,
            options,
            strike: Shared::default(),
            held: Shared::default(),
            ids: Shared::default(),
            stops: (0..servers).map(|_| Stop::default()).collect(),
            away: BTreeMap::new(),
            sim,
        };
        cluster.start(coordinator);
        for process in processes {
            cluster.start(process);
        }
        cluster
    }

    fn start(&self, process: ProcessEnv) {
        let mut env = process.env;
        let servers = self.servers.iter().enumerate();
        let addresses = servers.map(|(number, id)| (format!("{}:1", name_of(number)), *id));
        let coordinator = (COORDINATOR.to_owned(), self.coordinator);
        let saboteur = Saboteur {
            env: env.clone(),
            process: process.id,
            addresses: addresses.chain([coordinator]).collect(),
            strike: Arc::clone(&self.strike),
            held: Arc::clone(&self.held),
        };
        env.network = Intercepted::new(env.network.clone(), saboteur);
        match self.servers.iter().position(|s| *s == process.id) {
            None => {
                let work = run_coordinator(env, self.store.clone(), self.options.clone());
                self.sim.spawn(process.id, "coordinator", work);
            }
            Some(number) => {
                let ids = Arc::clone(&self.ids);
                let started = move |id| {
                    ids.lock().unwrap().insert(number, id);
                };
                let stop = self.stops[number].clone();
                let work = run_until_stopped(env, name_of(number), Size::mib(48), started, stop);
                self.sim.spawn(process.id, "server", work);
            }
        }
    }

    pub fn new_client(&self, process: &ProcessEnv) -> Client {
        support::client(&process.env, process.env.network.clone())
    }

    fn strike(&self) -> MutexGuard<'_, Strike<M>> {
        self.strike.lock().unwrap()
    }

    /// Keeps messages of a kind from arriving for so long, from now on. The cluster must be tended.
    pub fn hold(&self, message: M, time: Duration) {
        *self.held.lock().unwrap() = Some((message, self.sim.now() + time));
    }

    /// Lets messages arrive again.
    pub fn release(&self) {
        *self.held.lock().unwrap() = None;
    }

    /// Asks a server to leave in order within this time.
    pub fn ask_to_leave(&self, id: ServerId, limit: Duration) {
        let process = self.process_of(id);
        self.stop_of(process).ask(limit);
    }

    /// What came of that, once. Its process has ended then, and is started again.
    pub fn has_left(&mut self, process: ProcessId) -> Option<Result<(), NotLeft>> {
        let outcome = self.stop_of(process).outcome()?;
        self.crash(process);
        Some(outcome)
    }

    fn stop_of(&self, process: ProcessId) -> &Stop {
        let number = self.servers.iter().position(|s| *s == process);
        &self.stops[number.expect("it is a server")]
    }

    /// All servers that run.
    pub fn running(&self) -> Vec<ProcessId> {
        let ids = self.ids.lock().unwrap();
        ids.keys().map(|number| self.servers[*number]).collect()
    }

    /// Lets a process crash at a message; those are counted that come from now on.
    pub fn arm(&self, at: At<M>, victim: Victim) {
        self.strike().at = Some((at, Blow::Crash(victim)));
    }

    /// Lets the client begin something at a message; those are counted that come from now on.
    pub fn arm_work(&self, at: At<M>, work: impl Future<Output = ()> + Send + 'static) {
        self.strike().at = Some((at, Blow::Work(Box::pin(work))));
    }

    /// Lets what was armed happen. The first message of a kind must come; without a later one this
    /// ends when the cluster is healthy, and gives false.
    pub fn let_strike(&mut self, at: At<M>, client: &Client, what: &str) -> bool {
        if at.nth == 0 {
            self.until_struck(what);
            return true;
        }
        self.until_healthy(client);
        // What is due now happens.
        self.strike().at.take().is_none()
    }

    /// Runs until what was armed has happened.
    ///
    /// # Panics
    /// When there is no such message within ten seconds.
    pub fn until_struck(&mut self, what: &str) {
        for _ in 0..10_000 {
            if self.has_struck() {
                return;
            }
            self.tend();
        }
        panic!("{what}: there was no such message");
    }

    /// Whether what was armed has happened.
    pub fn has_struck(&self) -> bool {
        let strike = self.strike();
        strike.at.is_none() && strike.begun == strike.done
    }

    pub fn crash(&mut self, victim: ProcessId) {
        self.sim.crash(victim);
        if let Some(number) = self.servers.iter().position(|s| *s == victim) {
            self.ids.lock().unwrap().remove(&number);
        }
        self.away.insert(victim, self.sim.now() + AWAY);
    }

    /// Lets a little time pass; strikes, and starts again what was struck.
    pub fn tend(&mut self) {
        self.sim.run_for(Duration::from_millis(1));
        // By the simulator's clock: those of processes tell other times.
        let now = self.sim.now();
        self.held
            .lock()
            .unwrap()
            .take_if(|(_, until)| *until <= now);
        let due = self.strike().due.take();
        if let Some(due) = due {
            match due {
                Due::Crash(victim) => self.crash(victim),
                Due::Work(work) => {
                    self.sim.spawn(self.client.id, "blow", work);
                }
            }
            self.strike().done += 1;
        }
        let back: Vec<_> = self.away.iter().filter(|(_, at)| **at <= now).collect();
        let back: Vec<ProcessId> = back.into_iter().map(|(process, _)| *process).collect();
        for process in back {
            self.away.remove(&process);
            let started = self.sim.restart(process);
            self.start(started);
        }
    }

    /// Does some work of the client, while processes are tended.
    pub fn block_on<T: Send + 'static>(
        &mut self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let result = Shared::<Option<T>>::default();
        let own = Arc::clone(&result);
        self.sim.spawn(self.client.id, "work", async move {
            let value = work.await;
            *own.lock().unwrap() = Some(value);
        });
        let until = self.sim.now() + LIMIT;
        loop {
            if let Some(value) = result.lock().unwrap().take() {
                return value;
            }
            assert!(self.sim.now() < until, "the work does not end");
            self.tend();
        }
    }

    pub fn process_of(&self, id: ServerId) -> ProcessId {
        let ids = self.ids.lock().unwrap();
        let found = ids.iter().find(|(_, known)| **known == id);
        self.servers[*found.expect("it runs").0]
    }

    pub fn server_ids(&self) -> Vec<ServerId> {
        self.ids.lock().unwrap().values().copied().collect()
    }

    /// A table with one tablet, once all servers are up.
    pub fn table(&mut self, client: &Client) -> Table {
        while self.server_ids().len() < self.servers.len() {
            self.tend();
        }
        let client = client.clone();
        self.block_on(async move { client.create_table("t", Some(1)).await.unwrap() })
    }

    pub fn owner(&mut self, client: &Client, table: &Table) -> ServerId {
        let (client, table) = (client.clone(), table.clone());
        self.block_on(async move {
            let info = client.table_info(&table).await.unwrap();
            info.tablets[0].owner
        })
    }

    /// Tablets of each server.
    pub fn tablets(&mut self, client: &Client, table: &Table) -> BTreeMap<ServerId, usize> {
        let (client, table) = (client.clone(), table.clone());
        let info = self.block_on(async move { client.table_info(&table).await.unwrap() });
        let mut found = BTreeMap::new();
        for tablet in info.tablets {
            *found.entry(tablet.owner).or_default() += 1;
        }
        found
    }

    /// Moves the whole table and waits for the end. Gives whether it moved; tried again while the
    /// tablet is not served.
    pub fn migrate(&mut self, client: &Client, table: &Table, to: ServerId) -> bool {
        let (client, table) = (client.clone(), table.clone());
        let clock = self.client.env.clock.clone();
        self.block_on(async move {
            let whole = WhichTablet::Containing(KeyHash(0));
            let begun = client.start_migration(&table, whole, to).await;
            let Some(migration) = begun.unwrap().migration else {
                return true;
            };
            loop {
                match client.migration(migration).await.unwrap() {
                    Some(status) if !status.done => clock.sleep(Duration::from_millis(5)).await,
                    Some(status) => {
                        // Shown when the test fails.
                        println!("moved: {}, {}", status.moved, status.phase);
                        return status.moved;
                    }
                    None => {
                        let info = client.table_info(&table).await.unwrap();
                        return info.tablets[0].owner == to;
                    }
                }
            }
        })
    }

    pub fn status(&mut self, client: &Client) -> ClusterStatus {
        let client = client.clone();
        self.block_on(async move { client.cluster_status().await.unwrap() })
    }

    /// Runs until all servers are up, every tablet is served and no migration or recovery is under
    /// way.
    pub fn until_healthy(&mut self, client: &Client) {
        let servers = self.servers.len();
        for _ in 0..600 {
            for _ in 0..50 {
                self.tend();
            }
            let status = self.status(client);
            let served = status.tables.iter().flat_map(|t| &t.tablets);
            let list = &status.list;
            // Those that live: a server that was killed may not be missed yet.
            let living = self.server_ids();
            if list.servers.len() == servers
                && living.len() == servers
                && living.iter().all(|id| list.is_up(*id))
                && { served }.all(|t| t.state == TabletState::Normal && list.is_up(t.owner))
                && status.migrations.iter().all(|m| m.done)
                && status.recoveries.iter().all(|r| r.done)
            {
                return;
            }
        }
        panic!("the cluster does not become healthy");
    }
}
