//! A coordinator and scripted servers in the simulator.
//!
//! A scripted server enlists, follows its server list, takes and drops tablets, and "recovers" by
//! waiting a little and reporting. Of each life, all other machines hold replicas of a log of two
//! segments (its own machine too while the cluster has only one). Its tablets are checked against
//! the coordinator's map.

#![allow(dead_code, reason = "the process tests use a part")]

pub mod every_step;
pub mod ground;
mod server;
pub mod steps;
pub mod story;

use bytes::Bytes;
use ground::Ground;
use pluvio_coordinator::{Candidate, CoordinatorOptions, MemoryStore, Standing};
use pluvio_env::{Address, Frame, Network};
use pluvio_sim::{ProcessEnv, ProcessId, Sim, SimHandle, SimOptions};
use pluvio_units::{HashKind, HashRange, KeyHash, ServerId, TableId};
use pluvio_wire::{
    ClusterStatus, Coordinators, CreateTable, Enlist, GetClusterStatus, GetTable,
    HintServerCrashed, MigrateTablet, PROTOCOL_VERSION, Request, RpcError, ServerInfo, ServerState,
    TableInfo, TableRef, TabletState, WhichTablet,
};
use server::Server;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

#[allow(unused_imports, reason = "not every test file uses every helper")]
pub use server::{Machine, OnRecover};

pub const COORDINATOR: &str = "coordinator";
const LIMIT: Duration = Duration::from_secs(120);

/// A simulated cluster.
pub struct Cluster {
    pub sim: Sim,
    /// The store, where it is one in memory.
    pub store: MemoryStore,
    ground: Arc<dyn Ground>,
    /// The coordinator, or the first of them.
    pub coordinator: ProcessId,
    /// All coordinators.
    pub coordinators: Vec<ProcessId>,
    seats: Vec<Seat>,
    known: Arc<Coordinators>,
    pub client: ProcessEnv,
    pub machines: Vec<Machine>,
}

/// Where one coordinator runs, one incarnation after the other.
#[derive(Clone)]
struct Seat {
    number: usize,
    options: CoordinatorOptions,
    ground: Arc<dyn Ground>,
    candidate: Shared<Weak<Candidate>>,
}

impl Seat {
    fn run(&self, sim: &SimHandle, process: &ProcessEnv) {
        let network = process.env.network.clone();
        let (env, store) = self.ground.open(sim, process);
        let seat = self.clone();
        sim.spawn(process.id, "coordinator", async move {
            let candidate = Arc::new(Candidate::new(env, seat.options));
            *lock(&seat.candidate) = Arc::downgrade(&candidate);
            let name = coordinator_address(seat.number);
            let address = Address::from(name.as_str());
            let open = network.listen(&address, candidate.clone()).await;
            let _open = open.expect("the address is free");
            let Err(error) = candidate.run(store, &name).await;
            panic!("coordinator {}: {error}", seat.number);
        });
    }
}

/// Where the coordinator with this number listens.
fn coordinator_address(number: usize) -> String {
    match number {
        0 => COORDINATOR.into(),
        _ => format!("{COORDINATOR}-{number}"),
    }
}

impl Cluster {
    /// A coordinator and a client, no servers.
    pub fn new(seed: u64, options: SimOptions) -> Self {
        Self::with_coordinators(seed, options, 1, MemoryStore::new())
    }

    /// This number of coordinators on one store, and a client.
    pub fn with_coordinators(
        seed: u64,
        options: SimOptions,
        coordinators: usize,
        store: MemoryStore,
    ) -> Self {
        let ground = Arc::new(store.clone());
        let mut cluster = Self::on(seed, options, coordinators, ground);
        cluster.store = store;
        cluster
    }

    /// This number of coordinators on a ground, and a client.
    pub fn on(
        seed: u64,
        options: SimOptions,
        coordinators: usize,
        ground: Arc<dyn Ground>,
    ) -> Self {
        let sim = Sim::new(seed, options);
        let name = |number: usize| coordinator_address(number);
        let processes: Vec<_> = (0..coordinators).map(|n| sim.process(&name(n))).collect();
        let addresses = (0..coordinators).map(|n| Address::from(name(n).as_str()));
        let client = sim.process("client");
        let seat = |number| Seat {
            number,
            options: CoordinatorOptions::default(),
            ground: ground.clone(),
            candidate: Shared::default(),
        };
        let cluster = Self {
            store: MemoryStore::new(),
            seats: (0..coordinators).map(seat).collect(),
            ground: ground.clone(),
            coordinator: processes[0].id,
            coordinators: processes.iter().map(|p| p.id).collect(),
            known: Arc::new(Coordinators::new(addresses.collect())),
            client,
            machines: Vec::new(),
            sim,
        };
        for (seat, process) in cluster.seats.iter().zip(&processes) {
            seat.run(&cluster.sim, process);
        }
        cluster
    }

    /// A cluster of so many servers that are all up.
    pub fn with_servers(seed: u64, options: SimOptions, servers: usize) -> Self {
        let mut cluster = Self::new(seed, options);
        for _ in 0..servers {
            let index = cluster.add_machine();
            // One after the other, so that server n+1 runs on machine n.
            cluster.until("it is enlisted", |c| c.id(index) != ServerId(0));
        }
        cluster
    }

    /// The coordinators that take themselves for the leader.
    pub fn leaders(&self) -> Vec<usize> {
        let leads = |number: &usize| {
            let candidate = lock(&self.seats[*number].candidate).upgrade();
            let up = self.sim.is_up(self.coordinators[*number]);
            candidate
                .is_some_and(|c| up && matches!(c.standing(), Standing::Leading(c) if c.leads()))
        };
        (0..self.coordinators.len()).filter(leads).collect()
    }

    /// Runs until a coordinator leads; gives which.
    pub fn leader(&self) -> usize {
        self.until("a coordinator leads", |c| !c.leaders().is_empty());
        self.leaders()[0]
    }

    pub fn crash_coordinator(&self) {
        self.sim.crash(self.coordinator);
    }

    pub fn restart_coordinator(&self) {
        self.restart_coordinator_number(0);
    }

    pub fn restart_coordinator_number(&self, number: usize) {
        let process = self.sim.restart(self.coordinators[number]);
        self.seats[number].run(&self.sim, &process);
    }

    /// Restarts the first coordinator whenever it is down.
    pub fn keep_coordinator_running(&self) {
        let (sim, process, seat) = (self.sim.handle(), self.coordinator, self.seats[0].clone());
        let clock = self.client.env.clock.clone();
        self.sim.spawn(self.client.id, "watchman", async move {
            loop {
                clock.sleep(Duration::from_millis(100)).await;
                if !sim.is_up(process) {
                    seat.run(&sim, &sim.restart(process));
                }
            }
        });
    }

    /// A new machine with a running server.
    pub fn add_machine(&mut self) -> usize {
        let index = self.machines.len();
        let process = self.sim.process(&format!("server-{index}"));
        let addresses = (0..self.coordinators.len()).map(coordinator_address);
        let addresses = addresses.map(|name| Address::from(name.as_str()));
        let machine = Machine::new(process.id, index, &self.machines, addresses.collect());
        machine.run(&self.sim, process.env);
        self.machines.push(machine);
        index
    }

    pub fn crash(&self, index: usize) {
        self.sim.crash(self.machines[index].process);
    }

    pub fn restart(&self, index: usize) {
        let process = self.sim.restart(self.machines[index].process);
        self.machines[index].run(&self.sim, process.env);
    }

    pub fn server(&self, index: usize) -> MutexGuard<'_, Server> {
        self.machines[index].state()
    }

    pub fn id(&self, index: usize) -> ServerId {
        self.server(index).id
    }

    /// Runs until something holds; panics with the trace of the simulation when it does not.
    pub fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        if let Err(stuck) = self.sim.run_until(|| condition(self), LIMIT) {
            panic!("never: {what}\n{stuck}\n{:#?}", self.status());
        }
    }

    /// Another server says that this one may have crashed.
    pub fn hint(&self, suspect: ServerId) -> Result<(), RpcError> {
        let ids = (0..self.machines.len()).rev().map(|index| self.id(index));
        let other = ids.into_iter().find(|id| *id != suspect);
        self.ask(HintServerCrashed {
            suspect,
            from: other.unwrap_or_default(),
        })
    }

    /// A request to the coordinator, tried once.
    pub fn ask_once<R: Request + Sync + 'static>(
        &self,
        request: R,
        limit: Duration,
    ) -> Result<R::Reply, RpcError>
    where
        R::Reply: 'static,
    {
        let network = self.client.env.network.clone();
        let coordinators = self.known.clone();
        let asking = async move { coordinators.call(&*network, &request, limit).await };
        let asked = self.sim.block_on(self.client.id, asking, 2 * limit);
        asked.expect("the call has a limit")
    }

    /// A request to the coordinator, tried until it is answered.
    pub fn ask<R: Request + Sync + Clone + 'static>(&self, request: R) -> Result<R::Reply, RpcError>
    where
        R::Reply: 'static,
    {
        let network = self.client.env.network.clone();
        let clock = self.client.env.clock.clone();
        let coordinators = self.known.clone();
        let asking = async move {
            loop {
                let limit = Duration::from_secs(2);
                match coordinators.call(&*network, &request, limit).await {
                    Err(
                        RpcError::Call(_) | RpcError::Refused(pluvio_wire::Refusal::Retry { .. }),
                    ) => {
                        clock.sleep(Duration::from_millis(50)).await;
                    }
                    other => return other,
                }
            }
        };
        self.sim
            .block_on(self.client.id, asking, LIMIT)
            .expect("the coordinator answers")
    }

    /// A request to the coordinator, tried once; `None` when it was not answered or is to be tried
    /// again. A table that is gone was dropped by an earlier try.
    pub fn try_ask<R: Request + Sync + Clone + 'static>(&self, request: R) -> Option<()>
    where
        R::Reply: 'static,
    {
        match self.try_once(request) {
            Ok(_) => Some(()),
            Err(RpcError::Refused(refusal)) => refusal.fatal_kind().map(|kind| {
                assert_eq!(kind, pluvio_wire::FatalKind::NoSuchTable, "{refusal}");
            }),
            Err(_) => None,
        }
    }

    /// A request to the coordinator, tried once.
    pub fn try_once<R: Request + Sync + Clone + 'static>(
        &self,
        request: R,
    ) -> Result<R::Reply, RpcError>
    where
        R::Reply: 'static,
    {
        let network = self.client.env.network.clone();
        let coordinators = self.known.clone();
        let asking = async move {
            let limit = Duration::from_secs(2);
            coordinators.call(&*network, &request, limit).await
        };
        let asked = self.sim.block_on(self.client.id, asking, LIMIT);
        asked.expect("a call ends at its limit")
    }

    /// Lets the tablet with this hash move to a server that does not have it; `choice` says which.
    /// False when it was not stored and is to be tried again.
    pub fn migrate(&self, name: &str, at: KeyHash, choice: u64) -> bool {
        let table = TableRef::Name(name.into());
        let asked = self.try_once(GetTable {
            table: table.clone(),
        });
        let info = match asked {
            Ok(info) => info,
            Err(RpcError::Refused(refusal)) => return refusal.fatal_kind().is_some(),
            Err(_) => return false,
        };
        let owner = info.tablets.iter().find(|t| t.range.contains(at));
        let owner = owner.expect("every hash has a tablet").owner;
        let mut others: Vec<ServerId> = self.machines.iter().map(|m| m.state().id).collect();
        others.retain(|id| *id != owner && *id != ServerId(0));
        if others.is_empty() {
            return false;
        }
        let migrate = MigrateTablet {
            table,
            tablet: WhichTablet::Containing(at),
            to: others[(choice % others.len() as u64) as usize],
        };
        match self.try_once(migrate) {
            Ok(_) => true,
            // That server is not up any more.
            Err(RpcError::Refused(refusal)) => refusal.fatal_kind().is_some(),
            Err(_) => false,
        }
    }

    /// Sends a frame as it is, once.
    pub fn send(&self, frame: Frame) -> Frame {
        let network = self.client.env.network.clone();
        let sending = async move {
            let to = Address::from(COORDINATOR);
            network.call(&to, frame, Duration::from_secs(2)).await
        };
        let sent = self.sim.block_on(self.client.id, sending, LIMIT);
        sent.expect("it ends").expect("it is answered")
    }

    pub fn status(&self) -> ClusterStatus {
        self.ask(GetClusterStatus {})
            .expect("the status is not refused")
    }

    pub fn create_table(&self, name: &str) -> TableInfo {
        let name = name.to_owned();
        let request = CreateTable {
            name,
            span: None,
            hash: HashKind::Seeded,
            quota: pluvio_wire::QuotaWish::default(),
            durability: pluvio_wire::DurabilityWish::default(),
        };
        self.ask(request).expect("the table is not refused")
    }

    /// The stored state of the coordinator, as one that starts now would see it; without the
    /// leader.
    pub fn stored(&self) -> BTreeMap<String, Bytes> {
        let mut all = self.ground.dump();
        all.remove("leader");
        all.remove("challenge");
        all
    }

    /// Whether nothing is left to do: no crashed servers, all tablets served.
    pub fn is_calm(status: &ClusterStatus) -> bool {
        let tablets = status.tables.iter().flat_map(|t| &t.tablets);
        status
            .list
            .servers
            .iter()
            .all(|s| s.state == ServerState::Up)
            && tablets.into_iter().all(|t| t.state == TabletState::Normal)
            && status.migrations.iter().all(|m| m.done)
    }

    /// Runs until nothing is left to do, then checks that map and servers agree.
    pub fn calm_down(&self) -> ClusterStatus {
        let mut wrong = String::new();
        let mut tables = Vec::new();
        let mut same = 0;
        for _ in 0..600 {
            self.sim.run_for(Duration::from_millis(100));
            let status = self.status();
            // Neighbours may still become one: owners are asked every half second.
            same = if status.tables == tables { same + 1 } else { 0 };
            tables.clone_from(&status.tables);
            // Everybody who is listed runs, everybody who runs is listed (or knows that it is
            // dead), and all have the newest list.
            let mut listed: BTreeSet<ServerId> = status.list.servers.iter().map(|s| s.id).collect();
            let settled = self.machines.iter().all(|m| {
                let server = m.state();
                let runs = self.sim.is_up(m.process) && !server.is_dead;
                !runs || (listed.remove(&server.id) && server.list.version == status.list.version)
            });
            let settled = settled && listed.is_empty();
            let forgotten = !self.stored().values().any(is_dropping);
            wrong = format!(
                "calm: {}, settled: {settled}, forgotten: {forgotten}, the same for {same}",
                Self::is_calm(&status)
            );
            if Self::is_calm(&status) && settled && forgotten && same >= 6 {
                // Replies may still be on their way.
                match self.check_owners(&status) {
                    Ok(()) => return status,
                    Err(why) => wrong = why,
                }
            }
        }
        panic!(
            "the cluster does not calm down: {wrong}\n{:#?}",
            self.status()
        );
    }

    /// Every tablet is owned by exactly the server that the coordinator names, and no server owns
    /// anything else.
    fn check_owners(&self, status: &ClusterStatus) -> Result<(), String> {
        let mut named: BTreeMap<ServerId, Vec<(TableId, HashRange)>> = BTreeMap::new();
        for table in &status.tables {
            for tablet in &table.tablets {
                let list = named.entry(tablet.owner).or_default();
                list.push((table.id, tablet.range));
            }
        }
        for machine in &self.machines {
            let server = machine.state();
            if !self.sim.is_up(machine.process) || server.is_dead {
                continue;
            }
            let mut owned = server.owned.clone();
            let named = named.remove(&server.id).unwrap_or_default();
            for (table, range) in named {
                let covered = owned.iter().position(|(t, r)| {
                    *t == table && r.first <= range.first && range.last <= r.last
                });
                let Some(at) = covered else {
                    return Err(format!(
                        "server {} lacks {range} of table {table}: {owned:?}",
                        server.id
                    ));
                };
                // A server need not have heard of a cut yet: keep what is left of its tablet.
                let (_, whole) = owned.swap_remove(at);
                if whole.first < range.first {
                    let last = pluvio_units::KeyHash(range.first.0 - 1);
                    owned.push((table, HashRange::new(whole.first, last)));
                }
                if range.last < whole.last {
                    let first = pluvio_units::KeyHash(range.last.0 + 1);
                    owned.push((table, HashRange::new(first, whole.last)));
                }
            }
            if !owned.is_empty() {
                return Err(format!("server {} has too much: {owned:?}", server.id));
            }
        }
        if !named.is_empty() {
            return Err(format!("servers that do not run own {named:?}"));
        }
        Ok(())
    }
}

/// Whether a stored record is a table being dropped.
fn is_dropping(record: &Bytes) -> bool {
    let marker = b"\xa8dropping\xc3";
    record.windows(marker.len()).any(|w| w == marker)
}

fn lock<T>(shared: &Shared<T>) -> MutexGuard<'_, T> {
    shared
        .lock()
        .expect("one thread; the first panic ends the test")
}

/// Shared by a test and a server's handlers.
pub type Shared<T> = Arc<Mutex<T>>;

/// The network of one process.
pub type Net = Arc<dyn Network>;

/// The request of a server that comes anew, with this number of the attempt.
pub fn enlist(attempt: u64, address: &str) -> Enlist {
    Enlist {
        protocol: PROTOCOL_VERSION,
        expects: None,
        cluster: None,
        replaces: None,
        attempt,
        logs: 0,
        info: ServerInfo::plain(ServerId(0), address.to_owned()),
    }
}
