//! A rolling upgrade: two neighbouring versions in one cluster, the way back before the version is
//! raised, and none afterwards. And settings that change while it runs. The builds differ in the
//! versions that they are told to speak.

use bytes::Bytes;
use pluvio_client::{Client, ClientOptions};
use pluvio_coordinator::{Coordinator, CoordinatorError, CoordinatorOptions, MemoryStore};
use pluvio_env::Address;
use pluvio_server::{Server, ServerError, ServerOptions};
use pluvio_sim::{ProcessEnv, ProcessId, Sim, SimOptions};
use pluvio_units::Size;
use pluvio_wire::{ClusterStatus, PROTOCOL_VERSION, SettingsWish, Versions};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const OLD: Versions = Versions::OWN;
const NEXT: Versions = Versions {
    oldest: PROTOCOL_VERSION,
    newest: PROTOCOL_VERSION + 1,
};

#[derive(Default)]
struct Refused {
    coordinator: Option<CoordinatorError>,
    server: Option<ServerError>,
}

struct Cluster {
    sim: Sim,
    store: Arc<MemoryStore>,
    coordinator: ProcessId,
    servers: Vec<ProcessId>,
    client: ProcessEnv,
    refused: Arc<Mutex<Refused>>,
}

impl Cluster {
    fn new(seed: u64, servers: usize, settings: SettingsWish) -> Self {
        let sim = Sim::new(seed, SimOptions::default());
        let coordinator = sim.process("coordinator");
        let processes: Vec<_> = (0..servers)
            .map(|i| sim.process(&format!("server-{i}")))
            .collect();
        let cluster = Self {
            client: sim.process("client"),
            store: Arc::new(MemoryStore::new()),
            coordinator: coordinator.id,
            servers: processes.iter().map(|p| p.id).collect(),
            refused: Arc::default(),
            sim,
        };
        cluster.start_coordinator(coordinator, OLD, settings);
        for (i, process) in processes.iter().enumerate() {
            cluster.start_server(process, i, OLD, SettingsWish::default());
        }
        cluster
    }

    fn start_coordinator(&self, process: ProcessEnv, versions: Versions, settings: SettingsWish) {
        let (env, store) = (process.env, Arc::clone(&self.store));
        let refused = Arc::clone(&self.refused);
        let mut options = CoordinatorOptions::default();
        (options.versions, options.settings) = (versions, settings);
        self.sim.spawn(process.id, "coordinator", async move {
            match Coordinator::start(env.clone(), store, options).await {
                Ok(coordinator) => {
                    let at = Address::from("coordinator");
                    let listening = env.network.listen(&at, Arc::new(coordinator)).await;
                    let _open = listening.expect("the port is free");
                    std::future::pending::<()>().await;
                }
                Err(error) => refused.lock().expect("nobody panics").coordinator = Some(error),
            }
        });
    }

    fn start_server(&self, process: &ProcessEnv, i: usize, versions: Versions, wish: SettingsWish) {
        let (env, refused) = (process.env.clone(), Arc::clone(&self.refused));
        let own = Address::from(&*format!("server-{i}"));
        let mut options = ServerOptions::new(Address::from("coordinator"), own);
        options.memory = Size::mib(48);
        options.replicas = wish.replicas;
        options.versions = versions;
        self.sim.spawn(process.id, "server", async move {
            match Server::start(env, options).await {
                Ok(server) => drop(server.expelled().await),
                Err(error) => refused.lock().expect("nobody panics").server = Some(error),
            }
        });
    }

    fn restart_coordinator(&mut self, versions: Versions) {
        self.sim.crash(self.coordinator);
        let process = self.sim.restart(self.coordinator);
        self.coordinator = process.id;
        self.start_coordinator(process, versions, SettingsWish::default());
    }

    fn restart_server(&mut self, i: usize, versions: Versions, wish: SettingsWish) {
        self.sim.crash(self.servers[i]);
        let process = self.sim.restart(self.servers[i]);
        self.servers[i] = process.id;
        self.start_server(&process, i, versions, wish);
    }

    fn run<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        work: impl FnOnce(Client) -> F,
    ) -> T {
        let client = Client::new(&self.client.env, ClientOptions::new(["coordinator"]));
        self.sim
            .block_on(self.client.id, work(client), Duration::from_secs(60))
            .unwrap_or_else(|stuck| panic!("{stuck}"))
    }

    fn write(&self, key: &'static str) {
        self.run(|client| async move {
            let table = client.create_table("t", None).await.expect("a table");
            let value = Bytes::from_static(key.as_bytes());
            let written = client.write(&table, key.as_bytes(), value).await;
            written.expect("it is written");
        });
    }

    fn reads(&self, keys: &'static [&'static str]) {
        self.run(|client| async move {
            let table = client.table("t").await.expect("the table is there");
            for key in keys {
                let found = client.read(&table, key.as_bytes()).await;
                let found = found.expect("it can be read").expect("it is there");
                assert_eq!(found.value, key.as_bytes());
            }
        });
    }

    /// Waits until the status is as wanted.
    fn until(&self, what: &str, wanted: impl Fn(&ClusterStatus) -> bool) {
        for _ in 0..600 {
            let asked = self.run(|client| async move { client.cluster_status().await });
            if asked.is_ok_and(|status| wanted(&status)) {
                return;
            }
            self.sim.run_for(Duration::from_millis(100));
        }
        panic!("not {what} after a minute");
    }

    /// All servers are up, nothing is to be recovered, and as many speak the next version.
    fn settled(&self, with_next: usize) {
        let servers = self.servers.len();
        self.until("settled", |status| {
            let up = status.list.up().count();
            let next = status.list.up().filter(|s| s.versions == NEXT).count();
            let all = status.list.servers.len();
            (up, all, next, status.servers.len()) == (servers, servers, with_next, servers)
        });
    }

    fn active(&self) -> u16 {
        let status = self.run(|client| async move { client.cluster_status().await });
        status.expect("the coordinator answers").list.active
    }
}

// shows: VERSION-1, VERSION-2
#[test]
fn a_cluster_is_upgraded_goes_back_and_is_upgraded_for_good() {
    for seed in 0..3 {
        let no_wish = SettingsWish::default();
        let mut cluster = Cluster::new(seed, 3, no_wish);
        cluster.write("a");
        // Half of it is new: the coordinator and a server.
        cluster.restart_coordinator(NEXT);
        cluster.restart_server(0, NEXT, no_wish);
        cluster.settled(1);
        cluster.write("b");
        let refused = cluster.run(|client| async move { client.finalize_version().await });
        let refused = refused.expect_err("two servers are old").to_string();
        assert!(refused.contains("not everybody speaks"), "{refused}");
        assert_eq!(cluster.active(), PROTOCOL_VERSION);
        // All back: the old build reads what the new one has written.
        cluster.restart_server(0, OLD, no_wish);
        cluster.restart_coordinator(OLD);
        cluster.settled(0);
        cluster.reads(&["a", "b"]);
        // A new server at an old coordinator, too. Then everything.
        for i in 0..3 {
            cluster.restart_server(i, NEXT, no_wish);
            cluster.settled(i + 1);
        }
        cluster.write("c");
        cluster.restart_coordinator(NEXT);
        cluster.settled(3);
        let raised = cluster.run(|client| async move { client.finalize_version().await });
        assert_eq!(raised.expect("all speak it").active, NEXT.newest);
        assert_eq!(cluster.active(), NEXT.newest);
        cluster.write("d");
        cluster.sim.run_for(Duration::from_secs(3));
        // No way back, and it is said.
        cluster.restart_server(1, OLD, no_wish);
        cluster.sim.run_for(Duration::from_secs(3));
        let refused = cluster.refused.lock().expect("nobody panics").server.take();
        let refused = refused.expect("it is refused").to_string();
        assert!(refused.contains("no way back"), "{refused}");
        cluster.restart_server(1, NEXT, no_wish);
        cluster.settled(3);
        cluster.restart_coordinator(OLD);
        cluster.sim.run_for(Duration::from_secs(3));
        let refused = cluster
            .refused
            .lock()
            .expect("nobody panics")
            .coordinator
            .take();
        let refused = refused.expect("it is refused").to_string();
        assert!(refused.contains("no way back"), "{refused}");
        cluster.restart_coordinator(NEXT);
        cluster.settled(3);
        cluster.reads(&["a", "b", "c", "d"]);
    }
}

// shows: SETTINGS-1
#[test]
fn replicas_are_added_while_the_cluster_runs_and_a_server_that_differs_is_refused() {
    let wish = |replicas| SettingsWish {
        replicas: Some(replicas),
        ..SettingsWish::default()
    };
    let mut cluster = Cluster::new(5, 3, wish(1));
    cluster.write("a");
    let wanted = |status: &ClusterStatus, replicas| {
        let full = |s: &pluvio_wire::ServerStatus| {
            s.replicas_wanted == replicas && s.segments_under_replicated == 0
        };
        status.servers.len() == 3 && status.servers.iter().all(full)
    };
    cluster.until("with one replica", |status| wanted(status, 1));
    let changed = cluster.run(move |client| async move { client.change_settings(wish(2)).await });
    assert_eq!(changed.expect("it can be changed").replicas, 2);
    // Also of the segments that were there.
    cluster.until("with two replicas", |status| wanted(status, 2));
    let changed = cluster.run(move |client| async move { client.change_settings(wish(0)).await });
    assert!(changed.is_err());
    cluster.restart_server(2, OLD, wish(1));
    cluster.sim.run_for(Duration::from_secs(3));
    let refused = cluster.refused.lock().expect("nobody panics").server.take();
    let refused = refused.expect("it is refused").to_string();
    assert!(
        refused.contains("--replicas 1 (the cluster has 2)"),
        "{refused}"
    );
    cluster.restart_server(2, OLD, wish(2));
    cluster.settled(0);
    cluster.reads(&["a"]);
}
