//! The thinnest path through the whole house: a simulated cluster that writes, reads, loses a
//! server and recovers it. Everything deeper is the simulator's own harness.

use bytes::Bytes;
use pluvio_client::{Client, ClientOptions};
use pluvio_coordinator::{Coordinator, CoordinatorOptions, MemoryStore};
use pluvio_env::Address;
use pluvio_server::{Server, ServerOptions};
use pluvio_sim::{ProcessEnv, ProcessId, Sim, SimOptions};
use pluvio_units::Size;
use std::sync::Arc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

struct Cluster {
    sim: Sim,
    store: Arc<MemoryStore>,
    coordinator: ProcessEnv,
    servers: Vec<ProcessId>,
    client: ProcessEnv,
    replicas: u32,
}

impl Cluster {
    fn new(servers: usize, replicas: u32) -> Self {
        let sim = Sim::new(7, SimOptions::default());
        let coordinator = sim.process("coordinator");
        let client = sim.process("client");
        let store = Arc::new(MemoryStore::new());
        let mut cluster = Self {
            sim,
            store,
            coordinator,
            servers: Vec::new(),
            client,
            replicas,
        };
        cluster.start_coordinator();
        for i in 0..servers {
            let process = cluster.sim.process(&format!("server-{i}"));
            cluster.servers.push(process.id);
            cluster.start_server(&process, i);
        }
        cluster
    }

    fn start_coordinator(&self) {
        let (env, store) = (self.coordinator.env.clone(), Arc::clone(&self.store));
        self.sim
            .spawn(self.coordinator.id, "coordinator", async move {
                let started =
                    Coordinator::start(env.clone(), store, CoordinatorOptions::default()).await;
                let coordinator = Arc::new(started.expect("the coordinator starts"));
                let listening = env
                    .network
                    .listen(&Address::from("coordinator"), coordinator)
                    .await;
                let _open = listening.expect("the port is free");
                std::future::pending::<()>().await;
            });
    }

    fn start_server(&self, process: &ProcessEnv, i: usize) {
        let env = process.env.clone();
        let mut options = ServerOptions::new(
            Address::from("coordinator"),
            Address::from(&*format!("server-{i}")),
        );
        options.memory = Size::mib(48);
        options.replicas = Some(self.replicas);
        self.sim.spawn(process.id, "server", async move {
            let server = Server::start(env, options)
                .await
                .expect("the server starts");
            let _why = server.expelled().await;
        });
    }

    fn client(&self) -> Client {
        Client::new(&self.client.env, ClientOptions::new(["coordinator"]))
    }

    fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        self.sim
            .block_on(self.client.id, work, LONG)
            .unwrap_or_else(|stuck| panic!("{stuck}"))
    }

    fn write_all(&self, count: u32) {
        let client = self.client();
        self.run(async move {
            let table = client
                .create_table("t", None)
                .await
                .expect("a table can be made");
            for i in 0..count {
                let value = Bytes::from(format!("value {i}").repeat(20));
                client
                    .write(&table, format!("key {i}").as_bytes(), value)
                    .await
                    .expect("it is written");
            }
        });
    }

    fn read_all(&self, count: u32) {
        let client = self.client();
        self.run(async move {
            let table = client.table("t").await.expect("the table is there");
            for i in 0..count {
                let found = client
                    .read(&table, format!("key {i}").as_bytes())
                    .await
                    .expect("it can be read");
                assert_eq!(
                    found.expect("it is there").value,
                    format!("value {i}").repeat(20)
                );
            }
            assert_eq!(
                client
                    .count(&table)
                    .await
                    .expect("they can be counted")
                    .objects,
                u64::from(count)
            );
        });
    }
}

#[test]
fn a_crashed_server_is_recovered_by_the_others() {
    let cluster = Cluster::new(4, 2);
    cluster.write_all(300);
    cluster.read_all(300);
    cluster.sim.crash(cluster.servers[1]);
    cluster.read_all(300);
}

#[test]
fn a_cluster_comes_back_after_everything_was_killed() {
    let cluster = Cluster::new(3, 2);
    cluster.write_all(200);
    cluster.sim.crash(cluster.coordinator.id);
    for server in &cluster.servers {
        cluster.sim.crash(*server);
    }
    let coordinator = cluster.sim.restart(cluster.coordinator.id);
    let cluster = Cluster {
        coordinator,
        ..cluster
    };
    cluster.start_coordinator();
    for (i, server) in cluster.servers.iter().enumerate() {
        let process = cluster.sim.restart(*server);
        cluster.start_server(&process, i);
    }
    cluster.read_all(200);
}

#[test]
fn a_lone_server_keeps_its_replicas_on_its_own_disk() {
    let cluster = Cluster::new(1, 3);
    cluster.write_all(100);
    cluster.sim.crash(cluster.servers[0]);
    let process = cluster.sim.restart(cluster.servers[0]);
    cluster.start_server(&process, 0);
    cluster.read_all(100);
}

// shows: LEASE-4
#[test]
fn a_volatile_cluster_serves_without_replicas() {
    let cluster = Cluster::new(2, 0);
    cluster.write_all(100);
    cluster.read_all(100);
    // By the coordinator's word (LEASE-4).
    let options = ClientOptions::new(["coordinator"]).timeout(Duration::from_millis(500));
    let client = Client::new(&cluster.client.env, options);
    let knows = client.clone();
    let table = cluster.run(async move {
        let table = knows.table("t").await.expect("the table is there");
        for i in 0..100 {
            let found = knows.read(&table, format!("key {i}").as_bytes()).await;
            found.expect("it can be read");
        }
        table
    });
    cluster.sim.crash(cluster.coordinator.id);
    cluster.sim.run_for(Duration::from_secs(1));
    cluster.run(async move {
        for i in 0..5 {
            let key = format!("key {i}");
            let found = client.read(&table, key.as_bytes()).await;
            assert!(found.is_err(), "{found:?}");
            let written = client.write(&table, key.as_bytes(), Bytes::new()).await;
            assert!(written.is_err(), "{written:?}");
        }
    });
    let coordinator = cluster.sim.restart(cluster.coordinator.id);
    let cluster = Cluster {
        coordinator,
        ..cluster
    };
    cluster.start_coordinator();
    cluster.read_all(100);
}
