//! A coordinator and servers with an event loop each, over TCP and files.

use pluvio_allocs::{made_here, note_places, places_here};
use pluvio_client::{Client, ClientOptions};
use pluvio_coordinator::{Candidate, CoordinatorOptions, MemoryStore};
use pluvio_env::{Address, Env, Listening};
use pluvio_env_os::{NoDisk, OsOptions, OsRuntime, current_core};
use pluvio_net::{NetOptions, OsNetwork};
use pluvio_server::{Server, ServerOptions};
use pluvio_units::{CoreId, ServerId};
use std::sync::Arc;
use tempfile::TempDir;

/// One event loop, and the network over it.
pub struct Loop {
    pub runtime: OsRuntime,
    pub network: Arc<OsNetwork>,
}

impl Loop {
    pub fn start() -> Self {
        let runtime = OsRuntime::start(&OsOptions::with_cores(1)).unwrap();
        let (tasks, clock) = (runtime.tasks(), runtime.clock());
        let network = OsNetwork::new(NetOptions::default(), tasks, clock, current_core);
        let network = Arc::new(network);
        Self { runtime, network }
    }

    /// An environment without a disk.
    pub fn env(&self) -> Env {
        self.runtime.env(self.network.clone(), Arc::new(NoDisk))
    }
}

/// A coordinator that leads.
pub struct Coordinator {
    port: Listening,
    // Ends last.
    _own: Loop,
}

impl Coordinator {
    pub fn start() -> Self {
        let own = Loop::start();
        let env = own.env();
        let port = own.runtime.block_on(async move {
            let candidate = Arc::new(Candidate::new(env.clone(), CoordinatorOptions::default()));
            let any = Address::from("127.0.0.1:0");
            let port = env.network.listen(&any, candidate.clone()).await.unwrap();
            let (address, leads) = (port.address.to_string(), Arc::clone(&candidate));
            let _runs_to_the_end = env.tasks.spawn(CoreId(0), "lead", async move {
                let store = Arc::new(MemoryStore::new());
                let failed = leads.run(store, &address).await;
                panic!("the coordinator ended: {:?}", failed.err());
            });
            candidate.settled().await;
            port
        });
        Self { port, _own: own }
    }

    pub fn address(&self) -> &Address {
        &self.port.address
    }

    /// A client with an event loop of its own.
    pub fn client(&self) -> (Loop, Client) {
        let own = Loop::start();
        let env = own.env();
        let client = Client::new(&env, ClientOptions::new([self.address().clone()]));
        (own, client)
    }
}

/// A server of one event loop.
pub struct Member {
    server: Arc<Server>,
    pub own: Loop,
    _data: TempDir,
}

impl Member {
    /// Starts a server whose segments are to have this number of replicas.
    pub fn start(coordinator: &Coordinator, replicas: u32) -> Self {
        let (own, data) = (Loop::start(), tempfile::tempdir().unwrap());
        let disk = own.runtime.open_disk(data.path()).unwrap();
        let env = own.runtime.env(own.network.clone(), disk);
        let any = Address::from("127.0.0.1:0");
        let mut options = ServerOptions::new(coordinator.address().clone(), any.clone());
        options.redis = Some(any);
        options.replicas = Some(replicas);
        let started = async move { Server::start(env, options).await };
        let server = Arc::new(own.runtime.block_on(started).unwrap());
        Self {
            server,
            own,
            _data: data,
        }
    }

    /// Its id.
    pub fn id(&self) -> ServerId {
        self.server.id()
    }

    /// Where it speaks the Redis protocol.
    pub fn redis(&self) -> String {
        self.server.redis_address().unwrap().to_string()
    }

    /// Has `run` do `operations` operations twice, the first time to warm up. Tells how often the
    /// server's event loop allocated for one, and asserts that it is at most `most`.
    pub fn assert_at_most(&self, what: &str, most: f64, operations: u32, mut run: impl FnMut(u32)) {
        run(operations);
        let loop_ = &self.own.runtime;
        let before = loop_.block_on(async { made_here() });
        run(operations);
        let made = loop_.block_on(async { made_here() }) - before;
        let each = made as f64 / f64::from(operations);
        println!("{what}: {each:.4} allocations, at most {most}");
        if each > most {
            loop_.block_on(async { note_places() });
            run(operations);
            let places = loop_.block_on(async { places_here().to_string() });
            panic!("{what}: {each:.4} allocations, more than {most}:\n{places}");
        }
    }
}
