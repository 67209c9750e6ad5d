//! Clusters of one to six servers with their defaults, some of which die: the table of
//! `docs/guide.md`.

use crate::support::{self, COORDINATOR, LIMIT};
use core::time::Duration;
use pluvio_client::{Client, Table};
use pluvio_coordinator::{CoordinatorOptions, MemoryStore};
use pluvio_env::{Address, Disk, Env};
use pluvio_server::{FurtherDirectory, Server, ServerOptions};
use pluvio_sim::{Device, DeviceMode, DeviceSwitch, ProcessEnv, ProcessId, Sim, SimOptions};
use pluvio_units::Size;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Objects, spread over all servers.
const KEYS: usize = 60;
/// Longer than deaths are noticed and the dead are recovered.
const PATIENCE: Duration = Duration::from_secs(20);

/// What those that are left do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Then {
    /// Every object is read and written.
    GoesOn,
    /// Every object is read; writes wait for another server.
    Reads,
    /// At least some objects wait until a dead server is started again.
    Waits,
}

/// How many servers there are, how many of them die at once and what then is, again and again.
const TABLE: [(usize, &[(usize, Then)]); 13] = [
    (1, &[(1, Then::Waits)]),
    (2, &[(1, Then::Reads), (1, Then::Waits)]),
    (2, &[(2, Then::Waits)]),
    (3, &[(1, Then::GoesOn), (1, Then::Reads)]),
    (3, &[(2, Then::Reads)]),
    (3, &[(3, Then::Waits)]),
    (4, &[(1, Then::GoesOn), (1, Then::GoesOn), (1, Then::Reads)]),
    (4, &[(2, Then::GoesOn)]),
    (4, &[(3, Then::Reads)]),
    (5, &[(1, Then::GoesOn), (1, Then::GoesOn)]),
    (5, &[(2, Then::GoesOn)]),
    (5, &[(3, Then::GoesOn)]),
    (6, &[(1, Then::GoesOn), (3, Then::GoesOn)]),
];

struct Cluster {
    sim: Sim,
    /// Those that live.
    servers: Vec<ProcessId>,
    started: Arc<AtomicUsize>,
    all: usize,
    client: ProcessEnv,
    /// The second devices of those that have two, in the order of their start.
    devices: Option<Vec<DeviceSwitch>>,
}

/// Serves for ever, with the defaults of `pluvio server` but for its memory.
async fn serve(env: Env, name: String, second: Option<Arc<dyn Disk>>, started: Arc<AtomicUsize>) {
    let address = Address::from(format!("{name}:1").as_str());
    let mut options = ServerOptions::new(Address::from(COORDINATOR), address);
    options.further = { second.into_iter() }
        .map(|disk| FurtherDirectory {
            name: "second".to_owned(),
            disk: Ok(disk),
        })
        .collect();
    options.memory = Size::mib(48);
    let server = Server::start(env, options).await.unwrap();
    started.fetch_add(1, Ordering::Relaxed);
    let _why = server.expelled().await;
}

impl Cluster {
    fn new(seed: u64, servers: usize) -> Self {
        let sim = Sim::new(seed, SimOptions::default());
        let coordinator = sim.process("coordinator");
        let options = CoordinatorOptions::default();
        let work = support::run_coordinator(coordinator.env, MemoryStore::new(), options);
        sim.spawn(coordinator.id, "coordinator", work);
        let mut cluster = Self {
            client: sim.process("client"),
            sim,
            servers: Vec::new(),
            started: Arc::default(),
            all: 0,
            devices: None,
        };
        for _ in 0..servers {
            cluster.join();
        }
        cluster
    }

    /// One more server; returns when it is a member.
    fn join(&mut self) {
        let name = format!("server-{}", self.all);
        let process = self.sim.process(&name);
        let second = self.devices.as_mut().map(|devices| {
            let switch = DeviceSwitch::default();
            devices.push(switch.clone());
            Device::of(Arc::clone(&process.env.disk), "second/", switch)
        });
        let work = serve(process.env, name, second, Arc::clone(&self.started));
        self.sim.spawn(process.id, "server", work);
        self.servers.push(process.id);
        self.all += 1;
        let (started, all) = (Arc::clone(&self.started), self.all);
        let is_there = move || started.load(Ordering::Relaxed) == all;
        self.sim.run_until(is_there, LIMIT).unwrap();
    }

    fn client(&self) -> Client {
        let network = self.client.env.network.clone();
        support::client(&self.client.env, network)
    }

    fn block_on<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
        limit: Duration,
    ) -> Option<T> {
        self.sim.block_on(self.client.id, work, limit).ok()
    }

    fn table(&self, client: &Client) -> Table {
        let own = client.clone();
        let made = async move { own.create_table("t", None).await.unwrap() };
        self.block_on(made, LIMIT).expect("it is made at once")
    }

    /// Writes every object, with a value that says when.
    fn write(&self, client: &Client, table: &Table, round: usize, limit: Duration) -> bool {
        let (own, all) = (client.clone(), table.clone());
        let write = async move {
            for key in 0..KEYS {
                let key = format!("key {key}");
                let written = own.write(&all, key.as_bytes(), value(round, &key));
                written.await.unwrap();
            }
        };
        self.block_on(write, limit).is_some()
    }

    /// Whether every object can be read. Each one has the value of this round or of the next,
    /// whose writes may wait.
    fn read(&self, client: &Client, table: &Table, round: usize, limit: Duration) -> bool {
        let (own, all) = (client.clone(), table.clone());
        let read = async move {
            for key in 0..KEYS {
                let key = format!("key {key}");
                let found = own.read(&all, key.as_bytes()).await.unwrap().unwrap();
                let known = [value(round, &key), value(round + 1, &key)];
                assert!(known.contains(&found.value), "{key}: {:?}", found.value);
            }
        };
        self.block_on(read, limit).is_some()
    }
}

fn value(round: usize, key: &str) -> bytes::Bytes {
    bytes::Bytes::from(format!("{round} of {key}"))
}

/// Looks at what is possible when some have died.
fn outcome(
    cluster: &Cluster,
    (client, table): (&Client, &Table),
    round: usize,
    patience: Duration,
) -> Then {
    if !cluster.read(client, table, round, patience) {
        return Then::Waits;
    }
    if !cluster.write(client, table, round + 1, patience) {
        return Then::Reads;
    }
    assert!(cluster.read(client, table, round + 1, patience));
    Then::GoesOn
}

#[test]
fn servers_with_their_defaults_survive_what_the_guide_says() {
    for (seed, (servers, deaths)) in (0..).zip(TABLE) {
        let mut cluster = Cluster::new(seed, servers);
        let client = cluster.client();
        let table = cluster.table(&client);
        assert!(cluster.write(&client, &table, 0, LIMIT));
        for (round, (dying, then)) in deaths.iter().enumerate() {
            // Replicas that the last death has cost are made again.
            cluster.sim.run_for(PATIENCE);
            for _ in 0..*dying {
                cluster.sim.crash(cluster.servers.remove(0));
            }
            let found = outcome(&cluster, (&client, &table), round, PATIENCE);
            assert_eq!(
                found, *then,
                "{servers} servers, death {round} of {deaths:?}"
            );
        }
    }
}

/// Each server has two data directories, and one of them loses one.
#[test]
fn a_server_without_one_of_its_data_directories_goes_on() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-leaves-directory"]);
    let modes = [DeviceMode::Fails, DeviceMode::Hangs, DeviceMode::Gone];
    for (seed, mode) in (0..).zip(modes) {
        for servers in 1..6 {
            let mut cluster = Cluster::new(seed, 0);
            cluster.devices = Some(Vec::new());
            (0..servers).for_each(|_| cluster.join());
            let client = cluster.client();
            let table = cluster.table(&client);
            assert!(cluster.write(&client, &table, 0, LIMIT));
            cluster.devices.as_ref().unwrap()[0].set(mode);
            let found = outcome(&cluster, (&client, &table), 0, PATIENCE);
            match servers {
                0..3 => assert_ne!(found, Then::Waits, "{servers} servers, {mode:?}"),
                _ => assert_eq!(found, Then::GoesOn, "{servers} servers, {mode:?}"),
            }
            // Of two, a head whose replica was lost there has no other place
            // (`docs/replication.md`, Weaknesses). Of three there is a new head by now (REP-19).
            if servers < 3 {
                continue;
            }
            // A device that hangs is noticed, and what was lost is made again.
            cluster.sim.run_for(PATIENCE);
            cluster.sim.crash(cluster.servers.remove(1));
            let found = outcome(&cluster, (&client, &table), 1, PATIENCE);
            assert_eq!(found, Then::GoesOn, "{servers} servers, {mode:?}");
        }
    }
}

#[test]
fn a_server_that_is_joined_by_another_goes_on() {
    for seed in 0..3 {
        let mut cluster = Cluster::new(seed, 1);
        let client = cluster.client();
        let table = cluster.table(&client);
        assert!(cluster.write(&client, &table, 0, LIMIT));
        for round in 1..4 {
            cluster.join();
            assert!(
                cluster.write(&client, &table, round, PATIENCE),
                "round {round}"
            );
            assert!(
                cluster.read(&client, &table, round, PATIENCE),
                "round {round}"
            );
        }
    }
}
