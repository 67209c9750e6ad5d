//! The processes of a cluster: the only place that names the crates under test (beside the
//! client, in `workload`).

use crate::check::ownership::Served;
use crate::check::{Check, Violation};
use crate::cluster::journal::Journal;
use crate::cluster::plan::Plan;
use crate::sim::{ProcessEnv, Sim};
use crate::state::ProcessId;
use core::time::Duration;
use pluvio_coordinator::{Coordinator, CoordinatorOptions, MemoryStore};
use pluvio_env::{Address, Env};
use pluvio_server::{Server, ServerOptions, Tombstones};
use pluvio_units::Size;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Where the coordinator listens.
pub(super) const COORDINATOR: &str = "coordinator:1";

/// What the harness sees of a server's process.
#[derive(Default)]
struct View {
    server: Weak<Server>,
    /// The server's code has ended: the process is to be started again.
    ended: bool,
}

/// One process that can be crashed and started again.
struct Node {
    process: ProcessId,
    /// When it shall run again; `None`: it runs.
    starts_at: Option<Duration>,
}

/// The processes of a cluster.
pub(super) struct Nodes {
    plan: Arc<Plan>,
    journal: Journal,
    store: MemoryStore,
    coordinator: Node,
    servers: Vec<(Node, Arc<Mutex<View>>)>,
    pub(super) expelled: u64,
}

fn view(view: &Mutex<View>) -> std::sync::MutexGuard<'_, View> {
    view.lock().unwrap_or_else(PoisonError::into_inner)
}

fn node(process: &ProcessEnv) -> Node {
    Node {
        process: process.id,
        starts_at: None,
    }
}

impl Nodes {
    /// Starts coordinator and servers.
    pub(super) fn start(sim: &Sim, plan: &Arc<Plan>, journal: &Journal) -> Self {
        let first = sim.process("coordinator");
        let mut nodes = Self {
            plan: Arc::clone(plan),
            journal: journal.clone(),
            store: MemoryStore::new(),
            coordinator: node(&first),
            servers: Vec::new(),
            expelled: 0,
        };
        nodes.run_coordinator(sim, &first);
        for number in 0..plan.servers {
            let process = sim.process(&format!("server-{number}"));
            nodes.servers.push((node(&process), Arc::default()));
            nodes.run_server(sim, &process, number as usize);
        }
        nodes
    }

    fn run_coordinator(&self, sim: &Sim, process: &ProcessEnv) {
        let (env, store) = (process.env.clone(), Arc::new(self.store.clone()));
        let journal = self.journal.clone();
        sim.spawn(process.id, "coordinator", async move {
            let problem = match serve_coordinator(env, store).await {
                Ok(never) => match never {},
                Err(problem) => problem,
            };
            journal.violation(not_running("the coordinator", problem));
        });
    }

    fn run_server(&self, sim: &Sim, process: &ProcessEnv, number: usize) {
        let address = Address::from(format!("server-{number}:1").as_str());
        let mut options = ServerOptions::new(Address::from(COORDINATOR), address);
        options.memory = Size::mib(self.plan.memory_mib);
        options.replicas = self.plan.replicas;
        options.min_replicas = self.plan.min_replicas;
        options.synced = self.plan.synced;
        if self.plan.every_tombstone {
            options.tombstones = Tombstones::Every;
        }
        options.pid = number as u32;
        options.rack =
            (self.plan.racks > 0).then(|| format!("rack {}", number as u32 % self.plan.racks));
        let env = process.env.clone();
        let slot = Arc::clone(&self.servers[number].1);
        *view(&slot) = View::default();
        let journal = self.journal.clone();
        sim.spawn(process.id, "server", async move {
            match Server::start(env, options).await {
                Ok(server) => {
                    let server = Arc::new(server);
                    view(&slot).server = Arc::downgrade(&server);
                    let _why = server.expelled().await;
                }
                Err(error) => {
                    let name = format!("server {number}");
                    journal.violation(not_running(&name, error.to_string()));
                }
            }
            view(&slot).ended = true;
        });
    }

    pub(super) fn servers(&self) -> usize {
        self.servers.len()
    }

    /// Whether a server's process runs.
    pub(super) fn is_up(&self, server: usize) -> bool {
        self.servers[server].0.starts_at.is_none()
    }

    pub(super) fn is_coordinator_up(&self) -> bool {
        self.coordinator.starts_at.is_none()
    }

    /// Ends a server's process; it starts again after `downtime`.
    pub(super) fn crash(&mut self, sim: &Sim, server: usize, downtime: Duration) {
        let node = &mut self.servers[server].0;
        sim.crash(node.process);
        node.starts_at = Some(sim.now() + downtime);
    }

    /// Takes the power from a server's machine; it starts again after `downtime`.
    pub(super) fn power_loss(&mut self, sim: &Sim, server: usize, downtime: Duration) {
        let node = &mut self.servers[server].0;
        sim.power_loss(node.process);
        node.starts_at = Some(sim.now() + downtime);
    }

    /// Ends the coordinator's process; it starts again after `downtime`.
    pub(super) fn crash_coordinator(&mut self, sim: &Sim, downtime: Duration) {
        sim.crash(self.coordinator.process);
        self.coordinator.starts_at = Some(sim.now() + downtime);
    }

    /// Starts what is due, and servers that have ended by themselves a little later, as a process
    /// manager does. `all`: starts everything at once.
    pub(super) fn tend(&mut self, sim: &Sim, all: bool) {
        /// What a process manager waits before it starts a process again.
        const RESPAWN: Duration = Duration::from_millis(200);
        let now = sim.now();
        let is_due = |node: &Node| node.starts_at.is_some_and(|at| all || at <= now);
        if is_due(&self.coordinator) {
            self.coordinator.starts_at = None;
            let process = sim.restart(self.coordinator.process);
            self.run_coordinator(sim, &process);
        }
        for number in 0..self.servers.len() {
            if self.is_up(number) && view(&self.servers[number].1).ended {
                self.expelled += 1;
                self.crash(sim, number, RESPAWN);
            }
            if is_due(&self.servers[number].0) {
                self.servers[number].0.starts_at = None;
                let process = sim.restart(self.servers[number].0.process);
                self.run_server(sim, &process, number);
            }
        }
    }

    /// Every tablet that a server would serve now.
    pub(super) fn served(&self) -> Vec<Served> {
        let mut served = Vec::new();
        for (node, slot) in &self.servers {
            let Some(server) = view(slot).server.upgrade() else {
                continue;
            };
            let Some(master) = server.master().filter(|_| node.starts_at.is_none()) else {
                continue;
            };
            for (table, range) in master.tablets().served() {
                served.push(Served {
                    table,
                    range,
                    server: server.id(),
                });
            }
        }
        served
    }
}

fn not_running(what: &str, problem: String) -> Violation {
    Violation {
        check: Check::KeepsRunning,
        message: format!("{what} does not run: {problem}"),
        evidence: Vec::new(),
    }
}

async fn serve_coordinator(
    env: Env,
    store: Arc<MemoryStore>,
) -> Result<std::convert::Infallible, String> {
    let started = Coordinator::start(env.clone(), store, CoordinatorOptions::default()).await;
    let coordinator = Arc::new(started.map_err(|e| e.to_string())?);
    let listening = env
        .network
        .listen(&Address::from(COORDINATOR), coordinator)
        .await;
    let _open = listening.map_err(|e| e.to_string())?;
    std::future::pending().await
}
