//! A simulated cluster whose servers a test can look into and cut off.

pub mod objects;
pub mod ports;

use bytes::Bytes;
use pluvio_client::{Client, ClientOptions, Table};
use pluvio_coordinator::{Coordinator, CoordinatorOptions, MemoryStore};
use pluvio_env::{Address, BoxFuture, CallError, Clock, Env, Frame, Network};
use pluvio_format::{FrameHeader, newest_frame_header, read_frame};
use pluvio_master::TabletPhase;
use pluvio_server::{OnCorruption, Server, ServerOptions};
use pluvio_sim::{DiskFaults, Intercepted, Interceptor, ProcessEnv, ProcessId, Sim, SimOptions};
use pluvio_units::{HashKind, KeyHash, ServerId, Size};
use pluvio_wire::{ClusterStatus, Opcode, WhichTablet};
use ports::{Noting, Ports};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const LONG: Duration = Duration::from_secs(60);

/// Servers that have started, in the order of their processes.
type Started = Arc<Mutex<Vec<Option<Arc<Server>>>>>;

/// How long requests of one kind are kept back.
struct Delay {
    /// The next one.
    next: Duration,
    /// How much longer each one behind it.
    growth: Duration,
}

/// How long each server keeps a request of its own back before it sends it, by operation.
#[derive(Clone, Default)]
pub struct Delays(Arc<Mutex<BTreeMap<u16, Delay>>>);

impl Delays {
    /// Requests of this kind that servers make from here on are kept back for so long.
    pub fn set(&self, opcode: Opcode, delay: Duration) {
        self.set_growing(opcode, delay, Duration::ZERO);
    }

    /// Delays requests of this kind that servers make from here on. The first one waits for `next`,
    /// and each further one for `growth` more than the one before it.
    pub fn set_growing(&self, opcode: Opcode, next: Duration, growth: Duration) {
        let delay = Delay { next, growth };
        self.0.lock().unwrap().insert(opcode as u16, delay);
    }

    fn next(&self, opcode: u16) -> Option<Duration> {
        let mut delays = self.0.lock().unwrap();
        let delay = delays.get_mut(&opcode)?;
        let now = delay.next;
        delay.next += delay.growth;
        Some(now)
    }
}

struct Delayed {
    delays: Delays,
    clock: Arc<dyn Clock>,
}

impl Interceptor for Delayed {
    fn call<'a>(
        &'a self,
        network: &'a dyn Network,
        to: &'a Address,
        request: Frame,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>> {
        match self.delays.next(request.opcode) {
            None => network.call(to, request, limit),
            Some(delay) => Box::pin(async move {
                self.clock.sleep(delay).await;
                network.call(to, request, limit).await
            }),
        }
    }
}

/// A replica as it lies on a disk.
pub struct FrameOnDisk {
    pub path: String,
    /// All bytes of the file.
    pub area: Vec<u8>,
    /// Brought up to what its newest certificate says.
    pub header: FrameHeader,
    /// The bytes that count; none where they cannot be read.
    pub segment: Vec<u8>,
}

pub struct Rig {
    pub sim: Sim,
    pub store: Arc<MemoryStore>,
    pub coordinator: ProcessEnv,
    pub client: ProcessEnv,
    pub other: ProcessEnv,
    pub servers: Vec<ProcessId>,
    pub delays: Delays,
    /// Whether servers that start from now on wait for the device before they answer for a replica.
    pub synced: bool,
    /// Whether servers that start from now on overwrite values where they lie.
    pub in_place: bool,
    /// Whether servers that start from now on have a port for Redis clients.
    pub speaks_redis: bool,
    /// What is behind the ports of each server.
    pub ports: Vec<Ports>,
    options: CoordinatorOptions,
    started: Started,
    /// Servers that have ended because their memory was corrupt.
    corrupt: Arc<Mutex<Vec<usize>>>,
    /// Where each server stands, if that was said.
    racks: Vec<Option<String>>,
}

impl Rig {
    /// A coordinator and two client processes; servers are added by [`Rig::add`].
    pub fn new(seed: u64) -> Self {
        Self::with(seed, CoordinatorOptions::default())
    }

    /// As [`Rig::new`], with a coordinator of these times.
    pub fn with(seed: u64, options: CoordinatorOptions) -> Self {
        let sim = Sim::new(seed, SimOptions::default());
        let coordinator = sim.process("coordinator");
        let (client, other) = (sim.process("client"), sim.process("other"));
        let store = Arc::new(MemoryStore::new());
        let rig = Self {
            sim,
            store,
            coordinator,
            client,
            other,
            servers: Vec::new(),
            delays: Delays::default(),
            synced: false,
            in_place: false,
            speaks_redis: false,
            ports: Vec::new(),
            options,
            started: Started::default(),
            corrupt: Arc::default(),
            racks: Vec::new(),
        };
        rig.start_coordinator();
        rig
    }

    /// With servers that keep this many replicas.
    pub fn of(seed: u64, servers: usize, replicas: u32) -> Self {
        Self::new(seed).with_servers(servers, replicas)
    }

    /// As [`Rig::of`]. Nobody reads from a recovery master before its replicas are there.
    pub fn of_late_reads(seed: u64, servers: usize, replicas: u32) -> Self {
        let mut options = CoordinatorOptions::default();
        options.serve_early = false;
        Self::with(seed, options).with_servers(servers, replicas)
    }

    fn with_servers(mut self, servers: usize, replicas: u32) -> Self {
        for _ in 0..servers {
            self.add(replicas, DiskFaults::default());
        }
        self
    }

    fn start_coordinator(&self) {
        let (env, store) = (self.coordinator.env.clone(), Arc::clone(&self.store));
        let options = self.options.clone();
        self.sim
            .spawn(self.coordinator.id, "coordinator", async move {
                let started = Coordinator::start(env.clone(), store, options).await;
                let coordinator = Arc::new(started.expect("the coordinator starts"));
                let at = Address::from("coordinator");
                let listening = env.network.listen(&at, coordinator).await;
                let _open = listening.expect("the port is free");
                std::future::pending::<()>().await;
            });
    }

    pub fn add(&mut self, replicas: u32, disk: DiskFaults) {
        self.add_to(None, replicas, disk);
    }

    /// As [`Rig::add`], with the rack that the server says it stands in.
    pub fn add_to(&mut self, rack: Option<&str>, replicas: u32, disk: DiskFaults) {
        self.racks.push(rack.map(str::to_owned));
        let i = self.servers.len();
        let process = self.sim.process(&format!("server-{i}"));
        self.sim.set_disk(process.id, disk);
        self.servers.push(process.id);
        self.ports.push(Ports::default());
        self.started.lock().unwrap().push(None);
        self.start(i, replicas, &process);
    }

    /// Starts the coordinator again, with what it has stored.
    pub fn restart_coordinator(&mut self) {
        self.sim.crash(self.coordinator.id);
        self.coordinator = self.sim.restart(self.coordinator.id);
        self.start_coordinator();
    }

    /// Takes a server's machine its power.
    pub fn power_loss(&self, i: usize) {
        self.sim.power_loss(self.servers[i]);
        self.started.lock().unwrap()[i] = None;
    }

    pub fn kill(&self, i: usize) {
        self.sim.crash(self.servers[i]);
        self.started.lock().unwrap()[i] = None;
    }

    /// Crashes a server and starts it again.
    pub fn restart(&self, i: usize, replicas: u32) {
        self.kill(i);
        let process = self.sim.restart(self.servers[i]);
        self.start(i, replicas, &process);
    }

    /// Crashes a server, changes something on its disk and starts it again.
    pub fn restart_with<C: Future<Output = ()> + Send + 'static>(
        &self,
        i: usize,
        replicas: u32,
        change: impl FnOnce(Env) -> C,
    ) {
        self.kill(i);
        let process = self.sim.restart(self.servers[i]);
        self.run(&process, change(process.env.clone()));
        self.start(i, replicas, &process);
    }

    fn start(&self, i: usize, replicas: u32, process: &ProcessEnv) {
        let mut options = ServerOptions::new(
            Address::from("coordinator"),
            Address::from(&*format!("server-{i}")),
        );
        options.memory = Size::mib(48);
        // Servers of one rig keep their objects in different ways.
        options.own_settings = true;
        options.replicas = Some(replicas);
        // More than by default: what a log needs before it ends is seen then.
        options.min_replicas = Some(replicas.saturating_sub(1).max(1));
        options.synced = Some(self.synced);
        options.in_place = self.in_place;
        options.rack = self.racks[i].clone();
        let redis = Address::from(format!("10.0.0.{i}:6379").as_str());
        options.redis = Some(redis).filter(|_| self.speaks_redis);
        let (handle, id, corrupt) = (self.sim.handle(), process.id, Arc::clone(&self.corrupt));
        options.on_corruption = Some(OnCorruption::new(move |_| {
            handle.abandon(id);
            corrupt.lock().unwrap().push(i);
        }));
        let started = Arc::clone(&self.started);
        let delayed = Delayed {
            delays: self.delays.clone(),
            clock: Arc::clone(&process.env.clock),
        };
        let network = Noting {
            network: Intercepted::new(Arc::clone(&process.env.network), delayed),
            ports: self.ports[i].clone(),
        };
        let env = Env {
            network: Arc::new(network),
            ..process.env.clone()
        };
        self.sim.spawn(process.id, "server", async move {
            let server = Server::start(env, options)
                .await
                .expect("the server starts");
            let server = Arc::new(server);
            started.lock().unwrap()[i] = Some(Arc::clone(&server));
            let _why = server.expelled().await;
        });
    }

    pub fn server(&self, i: usize) -> Option<Arc<Server>> {
        self.started.lock().unwrap()[i].clone()
    }

    /// The servers that have ended because their memory was corrupt.
    pub fn corrupt(&self) -> Vec<usize> {
        let mut corrupt = self.corrupt.lock().unwrap().clone();
        corrupt.dedup();
        corrupt
    }

    /// Waits until all servers have started.
    pub fn all_started(&self) {
        let started = || self.started.lock().unwrap().iter().all(Option::is_some);
        self.sim
            .run_until(started, LONG)
            .unwrap_or_else(|stuck| panic!("{stuck}"));
    }

    /// The server that serves a key, by its own word.
    pub fn owner(&self, table: &Table, key: &[u8]) -> Option<usize> {
        self.owner_of(table, table.hash(key))
    }

    /// The server that serves a hash.
    fn owner_of(&self, table: &Table, hash: KeyHash) -> Option<usize> {
        (0..self.servers.len()).find(|i| {
            let master = self.server(*i).and_then(|s| s.master());
            let served = master.map(|m| m.tablets().served()).unwrap_or_default();
            served
                .iter()
                .any(|(id, range)| *id == table.id() && range.contains(hash))
        })
    }

    /// Whether a server has a tablet in this phase.
    pub fn has_tablet(&self, at: usize, phase: TabletPhase) -> bool {
        let master = self.server(at).and_then(|server| server.master());
        let map = master.expect("it is a member").tablets().snapshot();
        let mut tablets = map.values().flat_map(|table| &table.tablets);
        tablets.any(|tablet| tablet.phase == phase)
    }

    pub fn connect(&self, process: &ProcessEnv) -> Client {
        Client::new(&process.env, ClientOptions::new(["coordinator"]))
    }

    pub fn run<T: Send + 'static>(
        &self,
        process: &ProcessEnv,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let done = self.sim.block_on(process.id, work, LONG);
        done.unwrap_or_else(|stuck| panic!("{stuck}"))
    }

    /// Makes a table and writes `key i` = `value i`.
    pub fn fill(&self, name: &'static str, count: u32) -> Table {
        self.fill_hashed(name, count, HashKind::Seeded)
    }

    /// [`Rig::fill`] with the way in which the table hashes keys.
    pub fn fill_hashed(&self, name: &'static str, count: u32, kind: HashKind) -> Table {
        let client = self.connect(&self.client);
        self.run(&self.client, async move {
            let table = client
                .create_table_hashed(name, None, kind)
                .await
                .expect("a table can be made");
            for i in 0..count {
                let (key, value) = (format!("key {i}"), Bytes::from(format!("value {i}")));
                client
                    .write(&table, key.as_bytes(), value)
                    .await
                    .expect("it is written");
            }
            table
        })
    }

    /// Makes a table of one tablet and writes objects `key i` of 100 kB: more than 80 of them fill
    /// a segment.
    pub fn fill_large(&self, name: &'static str, count: u32) -> Table {
        let client = self.connect(&self.client);
        self.run(&self.client, async move {
            let table = client.create_table(name, Some(1)).await;
            let table = table.expect("a table can be made");
            for i in 0..count {
                let value = Bytes::from(vec![i as u8; 100_000]);
                let key = format!("key {i}");
                let written = client.write(&table, key.as_bytes(), value);
                written.await.expect("it is written");
            }
            table
        })
    }

    /// Reads what [`Rig::fill_large`] wrote.
    pub fn check_large(&self, name: &'static str, count: u32) {
        let client = self.connect(&self.client);
        self.run(&self.client, async move {
            let table = client.table(name).await.expect("the table is there");
            for i in 0..count {
                let found = client.read(&table, format!("key {i}").as_bytes()).await;
                let value = found.expect("it can be read").map(|found| found.value);
                assert!(
                    value.is_some_and(|value| value == vec![i as u8; 100_000]),
                    "key {i}"
                );
            }
        });
    }

    /// The frames that a server has of a master.
    pub fn frames(&self, of: usize, master: ServerId) -> Vec<FrameOnDisk> {
        let (process, prefix) = (self.servers[of], format!("frames/{:016x}-", master.0));
        let paths = self.sim.files(process).into_iter();
        let frame = |path: String| {
            let area = self.sim.file_content(process, &path)?;
            let header = newest_frame_header(&area).ok()?;
            let (header, segment) = read_frame(&area).unwrap_or((header, Vec::new()));
            Some(FrameOnDisk {
                path,
                area,
                header,
                segment,
            })
        };
        paths
            .filter(|path| path.starts_with(&prefix))
            .filter_map(frame)
            .collect()
    }

    /// Lets the first tablet of a table begin to move.
    pub fn begin_migration(&self, table: &Table, to: usize) {
        let (client, table) = (self.connect(&self.client), table.clone());
        let id = self.server(to).expect("it has started").id();
        self.run(&self.client, async move {
            let whole = WhichTablet::Containing(KeyHash(0));
            let begun = client.start_migration(&table, whole, id).await;
            begun.expect("it can begin");
        });
    }

    /// Moves the first tablet of a table.
    pub fn migrate(&self, table: &Table, to: usize) {
        self.begin_migration(table, to);
        let is_there = || self.owner_of(table, KeyHash(0)) == Some(to);
        self.sim
            .run_until(is_there, LONG)
            .unwrap_or_else(|stuck| panic!("{stuck}"));
    }

    /// What the coordinator knows.
    pub fn status(&self) -> ClusterStatus {
        let client = self.connect(&self.client);
        let status = self.run(&self.client, async move { client.cluster_status().await });
        status.expect("the coordinator answers")
    }

    /// Reads what [`Rig::fill`] wrote.
    pub fn check(&self, name: &'static str, count: u32) {
        let client = self.connect(&self.client);
        self.run(&self.client, async move {
            let table = client.table(name).await.expect("the table is there");
            for i in 0..count {
                let found = client.read(&table, format!("key {i}").as_bytes()).await;
                let found = found.expect("it can be read").expect("it is there");
                assert_eq!(found.value, format!("value {i}"));
            }
        });
    }
}
