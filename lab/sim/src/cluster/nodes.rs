//! The processes of a cluster: the only place that names the crates under test (beside the
//! client, in `workload`).

use crate::check::accounts::Account;
use crate::check::ownership::Served;
use crate::check::running::not_running;
use crate::cluster::faults::Fault;
use crate::cluster::journal::Journal;
use crate::cluster::memory::Memories;
use crate::cluster::plan::Plan;
use crate::device::{Device, DeviceMode, DeviceSwitch};
use crate::intercept::{Intercepted, Interceptor};
use crate::random::Stream;
use crate::sim::{ProcessEnv, Sim};
use crate::state::ProcessId;
use core::task::Poll;
use core::time::Duration;
use pluvio_coordinator::{Candidate, Coordinator, CoordinatorOptions, MemoryStore, Standing};
use pluvio_env::{Address, BoxFuture, CallError, Env, Frame, Network};
use pluvio_server::{
    FurtherDirectory, MissingData, OnCorruption, Server, ServerOptions, Tombstones,
};
use pluvio_units::{ServerId, Size, UnixMs};
use pluvio_wire::{
    Balance, BalanceWish, Coordinators, DrainServer, DrainWish, Opcode, WriteReplica, decode,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Virtual time in which a backup lists what it has of a master.
const OFFER_MAX: Duration = Duration::from_secs(30);

/// Where the coordinator with this number listens.
fn coordinator_address(number: u32) -> String {
    match number {
        0 => "coordinator:1".into(),
        _ => format!("coordinator-{number}:1"),
    }
}

/// Where the coordinators of a plan listen.
pub(super) fn coordinators(plan: &Plan) -> Vec<Address> {
    let address = |number| Address::from(coordinator_address(number).as_str());
    (0..plan.coordinators).map(address).collect()
}

/// What the harness sees of a server's process.
#[derive(Default)]
struct View {
    server: Weak<Server>,
    /// The server's code has ended: the process is to be started again.
    ended: bool,
    /// It has ended because its memory was corrupt.
    corrupt: bool,
    /// It has ended because it was asked to.
    stopped: bool,
    /// Its disk is full or gives errors: it may be unable to start.
    disk_trouble: bool,
    /// What its process is to do next.
    asked: Option<Asked>,
    /// Its two devices.
    devices: [DeviceSwitch; 2],
}

/// What people ask of a server's process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// To end, and to leave the cluster in order within this time.
    Leave(Duration),
    /// To have the coordinator drain it, or take that back.
    Wish(DrainWish),
    /// To have balancing switched.
    Balance(BalanceWish),
    /// To have its drain taken back, and balancing switched off.
    Calm,
}

/// The time at one server, as the harness knows it.
pub(super) struct ServerTime {
    /// How far its wall clock is ahead of a right one.
    pub(super) ahead_ms: i64,
    /// Its present life, once that has a master; `None`: a clock may be started next.
    pub(super) life: Option<LifeTime>,
}

/// The time of one life of a server, as the harness knows it.
pub(super) struct LifeTime {
    pub(super) id: ServerId,
    /// Whether it may answer reads: nobody has recovered it yet.
    pub(super) may_serve: bool,
    /// Deadlines up to this are past for reads; `None`: it never had any.
    pub(super) past: Option<UnixMs>,
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
    coordinators: Vec<(Node, Arc<Mutex<Weak<Candidate>>>)>,
    servers: Vec<(Node, Arc<Mutex<View>>)>,
    pub(super) expelled: u64,
    /// The memory of the servers, for clients that read it.
    pub(super) memories: Memories,
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
    /// Starts coordinators and servers.
    pub(super) fn start(sim: &Sim, plan: &Arc<Plan>, journal: &Journal) -> Self {
        let store = match plan.coordinators {
            1 => MemoryStore::new(),
            _ => MemoryStore::shared(),
        };
        let mut nodes = Self {
            plan: Arc::clone(plan),
            journal: journal.clone(),
            store,
            coordinators: Vec::new(),
            servers: Vec::new(),
            expelled: 0,
            memories: Memories::default(),
        };
        for number in 0..plan.coordinators {
            let name = coordinator_address(number);
            let process = sim.process(name.trim_end_matches(":1"));
            nodes.coordinators.push((node(&process), Arc::default()));
            nodes.run_coordinator(sim, &process, number);
        }
        for _ in 0..plan.servers {
            nodes.add_server(sim);
        }
        nodes
    }

    /// Starts one more server, on a machine of its own.
    pub(super) fn add_server(&mut self, sim: &Sim) {
        let number = self.servers.len();
        let process = sim.process(&format!("server-{number}"));
        self.servers.push((node(&process), Arc::default()));
        self.run_server(sim, &process, number);
    }

    fn run_coordinator(&self, sim: &Sim, process: &ProcessEnv, number: u32) {
        let (env, store) = (process.env.clone(), Arc::new(self.store.clone()));
        let journal = self.journal.clone();
        let slot = Arc::clone(&self.coordinators[number as usize].1);
        let address = coordinator_address(number);
        let eager = self.plan.faults.has(Fault::Balance);
        sim.spawn(process.id, "coordinator", async move {
            let problem = match serve_coordinator(env, store, &address, &slot, eager).await {
                Ok(never) => match never {},
                Err(problem) => problem,
            };
            journal.violation(not_running("the coordinator", problem));
        });
    }

    fn run_server(&self, sim: &Sim, process: &ProcessEnv, number: usize) {
        let address = Address::from(format!("server-{number}:1").as_str());
        let mut options = ServerOptions::new(Address::default(), address);
        options.coordinators = coordinators(&self.plan);
        options.memory = Size::mib(self.plan.memory_mib);
        options.replicas = Some(self.plan.replicas);
        options.min_replicas = self.plan.min_replicas;
        options.synced = Some(self.plan.synced);
        // A cluster in the middle of an upgrade, which its servers must not notice.
        if number % 2 == 1 {
            options.versions.newest += 1;
        }
        if self.plan.every_tombstone {
            options.tombstones = Tombstones::Every;
        }
        options.pid = number as u32;
        options.rack =
            (self.plan.racks > 0).then(|| format!("rack {}", number as u32 % self.plan.racks));
        let mut env = process.env.clone();
        env.network = Intercepted::new(env.network.clone(), SlowReplicas { env: env.clone() });
        let slot = Arc::clone(&self.servers[number].1);
        let (disk_trouble, devices) = {
            let view = view(&slot);
            (view.disk_trouble, view.devices.clone())
        };
        if self.plan.faults.has(Fault::Device) {
            let [first, second] = &devices;
            let disk = Arc::clone(&env.disk);
            options.further = vec![FurtherDirectory {
                name: "second".to_owned(),
                disk: Ok(Device::of(Arc::clone(&disk), "second/", second.clone())),
            }];
            options.missing = MissingData::LeaveOut;
            env.disk = Device::of(disk, "", first.clone());
        }
        *view(&slot) = View {
            disk_trouble,
            devices,
            ..View::default()
        };
        let has_wishes = self.plan.faults.has(Fault::Drain) || self.plan.faults.has(Fault::Balance);
        let (wish_env, known) = (env.clone(), Coordinators::new(coordinators(&self.plan)));
        let (journal, memories) = (self.journal.clone(), self.memories.clone());
        let (handle, id, corrupt) = (sim.handle(), process.id, Arc::clone(&slot));
        let broken = Arc::new(AtomicBool::new(false));
        let breaks = Arc::clone(&broken);
        options.on_corruption = Some(OnCorruption::new(move |_| {
            breaks.store(true, Ordering::Relaxed);
            // Who finds it may hold locks, and go on for a while.
            handle.abandon(id);
            let mut view = view(&corrupt);
            (view.ended, view.corrupt) = (true, true);
        }));
        sim.spawn(process.id, "server", async move {
            match Server::start(env, options).await {
                Ok(server) => {
                    let server = Arc::new(server);
                    view(&slot).server = Arc::downgrade(&server);
                    memories.open(number, &server, broken);
                    if has_wishes {
                        serve_until_stopped(&server, &wish_env, &known, &slot).await;
                    } else {
                        let _why = server.expelled().await;
                    }
                }
                // A process manager starts it again, until its disk does what it should.
                Err(_) if disk_trouble || view(&slot).disk_trouble => {}
                Err(error) => {
                    let name = format!("server {number}");
                    journal.violation(not_running(&name, error));
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

    /// Asks something of a server's process. False when it does not serve, or has been asked
    /// something.
    pub(super) fn ask(&mut self, server: usize, asked: Asked) -> bool {
        let serves = self.is_up(server) && self.running(server).is_some();
        let mut view = view(&self.servers[server].1);
        let is_new = serves && view.asked.is_none();
        if is_new {
            view.asked = Some(asked);
        }
        is_new
    }

    /// Sets how one of the two devices of a server works from now on.
    pub(super) fn set_device(&mut self, server: usize, device: usize, mode: DeviceMode) {
        view(&self.servers[server].1).devices[device].set(mode);
    }

    /// Notes whether the disk of a server is in trouble.
    pub(super) fn note_disk_trouble(&mut self, server: usize, trouble: bool) {
        view(&self.servers[server].1).disk_trouble = trouble;
    }

    /// The processes of the servers, also of those that are down.
    pub(super) fn server_processes(&self) -> Vec<ProcessId> {
        self.servers.iter().map(|(node, _)| node.process).collect()
    }

    /// The processes of the coordinators, also of those that are down.
    pub(super) fn coordinator_processes(&self) -> Vec<ProcessId> {
        let processes = self.coordinators.iter().map(|(node, _)| node.process);
        processes.collect()
    }

    /// As [`Self::coordinator_to_strike`].
    pub(super) fn coordinator_process_to_strike(&self) -> Option<ProcessId> {
        let number = self.coordinator_to_strike()?;
        Some(self.coordinators[number].0.process)
    }

    /// The coordinator that leads, or the first one that runs.
    pub(super) fn coordinator_to_strike(&self) -> Option<usize> {
        let up = |number: &usize| self.coordinators[*number].0.starts_at.is_none();
        let leads = |number: &usize| {
            let slot = &self.coordinators[*number].1;
            let candidate = slot
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .upgrade();
            candidate.is_some_and(|c| matches!(c.standing(), Standing::Leading(_)))
        };
        let running: Vec<usize> = (0..self.coordinators.len()).filter(up).collect();
        let leader = running.iter().copied().find(leads);
        leader.or_else(|| running.first().copied())
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

    /// Turns over a bit of an object in the memory of a server, if it runs and has one.
    pub(super) fn flip_in_memory(&self, server: usize, draw: &mut Stream) -> bool {
        let running = self.running(server).and_then(|server| server.master());
        running.is_some_and(|master| master.store().flip_bit(|limit| draw.below(limit)))
    }

    /// Compares all objects in the memory of all servers with their checksums.
    pub(super) fn compare_memory(&self) {
        let running = (0..self.servers()).filter_map(|server| self.running(server));
        for master in running.filter_map(|server| server.master()) {
            master.store().compare_checksums();
        }
    }

    fn running(&self, server: usize) -> Option<Arc<Server>> {
        let server = view(&self.servers[server].1);
        server.server.upgrade().filter(|_| !server.ended)
    }

    /// Ends a coordinator's process; it starts again after `downtime`.
    pub(super) fn crash_coordinator(&mut self, sim: &Sim, number: usize, downtime: Duration) {
        let node = &mut self.coordinators[number].0;
        sim.crash(node.process);
        node.starts_at = Some(sim.now() + downtime);
    }

    /// Starts what is due, and servers that have ended by themselves a little later, as a process
    /// manager does. `all`: starts everything at once.
    pub(super) fn tend(&mut self, sim: &Sim, all: bool) {
        /// What a process manager waits before it starts a process again.
        const RESPAWN: Duration = Duration::from_millis(200);
        let now = sim.now();
        let is_due = |node: &Node| node.starts_at.is_some_and(|at| all || at <= now);
        for number in 0..self.plan.coordinators {
            let node = &mut self.coordinators[number as usize].0;
            if is_due(node) {
                node.starts_at = None;
                let process = sim.restart(node.process);
                self.run_coordinator(sim, &process, number);
            }
        }
        for number in 0..self.servers.len() {
            if self.is_up(number) && view(&self.servers[number].1).ended {
                let by_itself = {
                    let view = view(&self.servers[number].1);
                    !view.corrupt && !view.stopped
                };
                self.expelled += u64::from(by_itself);
                self.crash(sim, number, RESPAWN);
            }
            if is_due(&self.servers[number].0) {
                self.servers[number].0.starts_at = None;
                let process = sim.restart(self.servers[number].0.process);
                self.run_server(sim, &process, number);
            }
        }
    }

    /// The time at each server, as the harness knows it.
    pub(super) fn times(&self, sim: &Sim) -> Vec<ServerTime> {
        let time = |(number, (node, _)): (usize, &(Node, Arc<Mutex<View>>))| {
            let server = self.running(number).filter(|_| node.starts_at.is_none());
            let life = server.and_then(|server| {
                let master = server.master()?;
                Some(LifeTime {
                    id: server.id(),
                    may_serve: master.may_serve(),
                    past: master.store().surely_past(),
                })
            });
            ServerTime {
                ahead_ms: sim.unix_seconds_ahead(node.process).saturating_mul(1_000),
                life,
            }
        };
        self.servers.iter().enumerate().map(time).collect()
    }

    /// What every server has and uses; `None` while one of them has no master.
    pub(super) fn accounts(&self) -> Option<Vec<Account>> {
        let weak = self.plan.weak_server.map(|weak| weak as usize);
        let account = |(number, (_, slot)): (usize, &(Node, Arc<Mutex<View>>))| {
            let server = view(slot).server.upgrade()?;
            let status = server.status();
            let master = server.master()?;
            let replication = master.replication().status();
            Some(Account {
                server: status.id,
                memory_total: status.memory_total,
                memory_log: status.memory_log,
                memory_live: status.memory_live,
                objects: status.objects,
                object_bytes: status.object_bytes,
                frames: server.backup().frames(),
                may_be_damaged: weak == Some(number),
                replicas_wanted: replication.replicas_of_segments,
                places: master.replication().places(),
            })
        };
        self.servers.iter().enumerate().map(account).collect()
    }

    /// Runs the coordinator's reconstruction over what all backups would offer of each master's
    /// log; the first one that is not complete.
    pub(super) fn incomplete_log(&self, sim: &Sim) -> Option<String> {
        let running: Option<Vec<_>> = { self.servers.iter() }
            .map(|(node, slot)| Some((node.process, view(slot).server.upgrade()?)))
            .collect();
        let (Some(running), Some(leader)) = (running, self.leader()) else {
            return Some("somebody does not run".to_owned());
        };
        for (_, master) in &running {
            let mut offers = Vec::new();
            for (process, server) in &running {
                let (backup, master) = (server.backup().clone(), master.id());
                let work = async move { backup.would_offer(master).await };
                match sim.block_on(*process, work, OFFER_MAX) {
                    Ok(offer) => offers.push((server.id(), offer)),
                    Err(stuck) => return Some(format!("no list of replicas: {stuck}")),
                }
            }
            if let Err(problem) = leader.would_recover(master.id(), offers) {
                return Some(format!("server {}: {problem}", master.id()));
            }
        }
        None
    }

    /// The coordinator that leads.
    fn leader(&self) -> Option<Arc<Coordinator>> {
        let standings = self.coordinators.iter().filter_map(|(_, slot)| {
            let candidate = slot.lock().unwrap_or_else(PoisonError::into_inner);
            Some(candidate.upgrade()?.standing())
        });
        let mut leaders = standings.filter_map(|standing| match standing {
            Standing::Leading(coordinator) => Some(coordinator),
            Standing::Looking | Standing::Deciding | Standing::Waiting(_) => None,
        });
        leaders.next()
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
            // A server that was declared dead and does not know it still has its tablets.
            if !master.may_serve() {
                continue;
            }
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

/// Now and then what was replayed or cleaned takes long to get its replicas, so that recovered
/// tablets answer reads before.
struct SlowReplicas {
    env: Env,
}

impl SlowReplicas {
    /// One of this number of writes is slow.
    const ONE_IN: u64 = 4;
    const DELAY_MAX_MS: u64 = 1_500;
}

impl Interceptor for SlowReplicas {
    fn call<'a>(
        &'a self,
        network: &'a dyn Network,
        to: &'a Address,
        request: Frame,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>> {
        let is_side = Opcode::from_number(request.opcode) == Some(Opcode::WriteReplica)
            && decode::<WriteReplica>(&request).is_ok_and(|(_, write)| write.side);
        if !is_side || self.env.rng.below(Self::ONE_IN) > 0 {
            return network.call(to, request, limit);
        }
        Box::pin(async move {
            let delay = Duration::from_millis(self.env.rng.below(Self::DELAY_MAX_MS));
            self.env.clock.sleep(delay).await;
            network.call(to, request, limit).await
        })
    }
}

/// Serves until the server was declared dead, or asked to end.
async fn serve_until_stopped(
    server: &Server,
    env: &Env,
    coordinators: &Coordinators,
    slot: &Mutex<View>,
) {
    /// How often the process looks whether it was asked something.
    const LOOK: Duration = Duration::from_millis(50);
    /// How long a coordinator has for an answer.
    const ANSWER: Duration = Duration::from_secs(1);
    let work = async {
        loop {
            env.clock.sleep(LOOK).await;
            let asked = view(slot).asked.take();
            match asked {
                None => {}
                Some(Asked::Wish(wish)) => {
                    let server = server.id();
                    let request = DrainServer { server, wish };
                    // Whether it is done or refused: nobody relies on it.
                    drop(coordinators.call(&*env.network, &request, ANSWER).await);
                }
                Some(Asked::Calm) => {
                    let (server, wish) = (server.id(), DrainWish::Cancel);
                    let request = DrainServer { server, wish };
                    drop(coordinators.call(&*env.network, &request, ANSWER).await);
                    let wish = BalanceWish::Off;
                    let request = Balance { wish };
                    drop(coordinators.call(&*env.network, &request, ANSWER).await);
                }
                Some(Asked::Balance(wish)) => {
                    let request = Balance { wish };
                    drop(coordinators.call(&*env.network, &request, ANSWER).await);
                }
                Some(Asked::Leave(limit)) => {
                    // As a process does, it ends in any case.
                    drop(server.leave(limit).await);
                    view(slot).stopped = true;
                    return;
                }
            }
        }
    };
    let mut work = core::pin::pin!(work);
    let mut expelled = core::pin::pin!(server.expelled());
    core::future::poll_fn(|context| {
        if work.as_mut().poll(context).is_ready() || expelled.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        Poll::Pending
    })
    .await;
}

async fn serve_coordinator(
    env: Env,
    store: Arc<MemoryStore>,
    address: &str,
    slot: &Mutex<Weak<Candidate>>,
    eager: bool,
) -> Result<std::convert::Infallible, String> {
    let mut options = CoordinatorOptions::default();
    // So little that recoveries of what a simulation loses have first parts.
    options.early_bytes_min = 4 << 10;
    // So few that most clusters are sent differences.
    options.whole_list_max = 3;
    if eager {
        // Any difference moves something.
        let balance = &mut options.balance;
        balance.pause = Duration::from_millis(300);
        (balance.gap, balance.bytes_min) = (0, 1);
        balance.rest = Duration::from_secs(2);
        balance.rate_gap = 1;
    }
    let candidate = Arc::new(Candidate::new(env.clone(), options));
    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&candidate);
    let listening = env
        .network
        .listen(&Address::from(address), candidate.clone())
        .await;
    let _open = listening.map_err(|e| e.to_string())?;
    candidate
        .run(store, address)
        .await
        .map_err(|e| e.to_string())
}
