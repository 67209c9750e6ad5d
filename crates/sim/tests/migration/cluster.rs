//! A small cluster whose processes can be struck at any message between them.

use crate::support::{self, run_coordinator, run_server};
use core::time::Duration;
use pluvio_client::{Client, Table, WhichTablet};
use pluvio_coordinator::MemoryStore;
use pluvio_env::{Address, BoxFuture, CallError, Env, Frame, Network};
use pluvio_sim::{Intercepted, Interceptor, ProcessEnv, ProcessId, Sim, SimOptions};
use pluvio_units::{KeyHash, ServerId, Size};
use pluvio_wire::{GetTabletData, Opcode, TabletPart, TabletState, decode};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

pub use support::LIMIT;

/// How long a process that was struck stays away.
const AWAY: Duration = Duration::from_millis(700);

/// A kind of message; parts of a tablet count as kinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    Receive,
    Objects,
    Changes,
    LastChanges,
    Results,
    Received,
    End,
}

impl Message {
    pub const ALL: [Self; 7] = [
        Self::Receive,
        Self::Objects,
        Self::Changes,
        Self::LastChanges,
        Self::Results,
        Self::Received,
        Self::End,
    ];

    fn of(frame: &Frame) -> Option<Self> {
        let opcode = Opcode::from_number(frame.opcode)?;
        if opcode == Opcode::GetTabletData {
            let (_, request) = decode::<GetTabletData>(frame).unwrap();
            return Some(match request.part {
                TabletPart::Objects(_) => Self::Objects,
                TabletPart::Changes(_) => Self::Changes,
                TabletPart::LastChanges(_) => Self::LastChanges,
                TabletPart::Results(_) => Self::Results,
            });
        }
        let others = [
            (Opcode::ReceiveTablet, Self::Receive),
            (Opcode::TabletReceived, Self::Received),
            (Opcode::EndMigration, Self::End),
        ];
        let found = others.into_iter().find(|(known, _)| *known == opcode);
        found.map(|(_, message)| message)
    }
}

/// When to strike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// The message was not received yet.
    Before,
    /// What it asks for was done, and its answer is not there yet.
    After,
}

#[derive(Default)]
struct Strike {
    at: Option<(Message, Moment, ProcessId)>,
    due: Option<ProcessId>,
    done: bool,
}

type Shared<T> = Arc<Mutex<T>>;

/// Sees every message that a process sends.
struct Saboteur {
    env: Env,
    strike: Shared<Strike>,
}

impl Saboteur {
    /// Lets the victim crash now if this is the moment.
    async fn look(&self, message: Option<Message>, moment: Moment) -> Option<ProcessId> {
        let victim = {
            let mut strike = self.strike.lock().unwrap();
            let (wanted, when, victim) = strike.at?;
            if Some(wanted) != message || when != moment {
                return None;
            }
            strike.at = None;
            strike.due = Some(victim);
            victim
        };
        // If it is this process, this is as far as it comes.
        while !self.strike.lock().unwrap().done {
            self.env.clock.sleep(Duration::from_micros(200)).await;
        }
        Some(victim)
    }
}

impl Interceptor for Saboteur {
    fn call<'a>(
        &'a self,
        network: &'a dyn Network,
        to: &'a Address,
        request: Frame,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>> {
        Box::pin(async move {
            let message = Message::of(&request);
            self.look(message, Moment::Before).await;
            let answer = network.call(to, request, limit).await?;
            self.look(message, Moment::After).await;
            Ok(answer)
        })
    }
}

/// A coordinator, some servers and clients.
pub struct Cluster {
    pub sim: Sim,
    pub coordinator: ProcessId,
    servers: Vec<ProcessId>,
    pub client: ProcessEnv,
    store: MemoryStore,
    strike: Shared<Strike>,
    /// The latest life of each server.
    ids: Shared<BTreeMap<usize, ServerId>>,
    away: BTreeMap<ProcessId, Duration>,
}

fn name_of(number: usize) -> String {
    format!("server-{number}")
}

impl Cluster {
    pub fn new(seed: u64, servers: usize) -> Self {
        let sim = Sim::new(seed, SimOptions::default());
        let store = MemoryStore::new();
        let coordinator = sim.process("coordinator");
        let processes: Vec<_> = (0..servers).map(|n| sim.process(&name_of(n))).collect();
        let client = sim.process("client");
        let cluster = Self {
            coordinator: coordinator.id,
            servers: processes.iter().map(|p| p.id).collect(),
            client,
            store,
            strike: Shared::default(),
            ids: Shared::default(),
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
        let saboteur = Saboteur {
            env: env.clone(),
            strike: Arc::clone(&self.strike),
        };
        env.network = Intercepted::new(env.network.clone(), saboteur);
        match self.servers.iter().position(|s| *s == process.id) {
            None => {
                let work = run_coordinator(env, self.store.clone());
                self.sim.spawn(process.id, "coordinator", work);
            }
            Some(number) => {
                let ids = Arc::clone(&self.ids);
                let started = move |id| {
                    ids.lock().unwrap().insert(number, id);
                };
                let work = run_server(env, name_of(number), Size::mib(48), started);
                self.sim.spawn(process.id, "server", work);
            }
        }
    }

    pub fn new_client(&self, process: &ProcessEnv) -> Client {
        support::client(&process.env, process.env.network.clone())
    }

    fn strike(&self) -> MutexGuard<'_, Strike> {
        self.strike.lock().unwrap()
    }

    /// Lets a process crash at the next message of this kind.
    pub fn arm(&self, message: Message, moment: Moment, victim: ProcessId) {
        *self.strike() = Strike {
            at: Some((message, moment, victim)),
            ..Strike::default()
        };
    }

    pub fn has_struck(&self) -> bool {
        self.strike().done
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
        let due = self.strike().due.take();
        if let Some(victim) = due {
            self.crash(victim);
            self.strike().done = true;
        }
        let now = self.sim.now();
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

    /// Moves the whole table and waits for the end. Gives whether it moved; tried again while the tablet is not served.
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

    /// Runs until all servers are up, every tablet is served and no migration is under way.
    pub fn until_healthy(&mut self, client: &Client) {
        let servers = self.servers.len();
        for _ in 0..600 {
            for _ in 0..50 {
                self.tend();
            }
            let client = client.clone();
            let status = self.block_on(async move { client.cluster_status().await.unwrap() });
            let served = status.tables.iter().flat_map(|t| &t.tablets);
            let list = &status.list;
            // Those that live: a server that was killed may not be missed yet.
            let living = self.server_ids();
            if list.servers.len() == servers
                && living.len() == servers
                && living.iter().all(|id| list.is_up(*id))
                && { served }.all(|t| t.state == TabletState::Normal && list.is_up(t.owner))
                && status.migrations.iter().all(|m| m.done)
            {
                return;
            }
        }
        panic!("the cluster does not become healthy");
    }
}
