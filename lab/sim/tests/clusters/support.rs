//! Coordinator, servers and clients as the tests of single scenarios arrange them: one coordinator,
//! two replicas, operations that are tried for a minute.
use core::time::Duration;
use pluvio_client::{Client, ClientOptions, Parts};
use pluvio_coordinator::{Coordinator, CoordinatorOptions, MemoryStore};
use pluvio_env::{Address, Env, Network};
use pluvio_server::{NotLeft, Server, ServerOptions};
use pluvio_units::{ServerId, Size};
use std::sync::{Arc, Mutex};

pub const LIMIT: Duration = Duration::from_secs(120);
pub const COORDINATOR: &str = "coordinator:1";

/// Serves for ever.
pub async fn run_coordinator(env: Env, store: MemoryStore, options: CoordinatorOptions) {
    let started = Coordinator::start(env.clone(), Arc::new(store), options).await;
    let address = Address::from(COORDINATOR);
    let listening = env.network.listen(&address, Arc::new(started.unwrap()));
    let _open = listening.await.unwrap();
    std::future::pending::<()>().await;
}

/// Serves for ever, under a new id each time it was declared dead; `started` is told each.
pub async fn run_server(env: Env, name: String, memory: Size, started: impl Fn(ServerId)) {
    let never = Stop::default();
    run_until_stopped(env, name, memory, started, never).await;
}

/// Asks a server to leave in order, and tells what came of it.
#[derive(Clone, Default)]
pub struct Stop(Arc<Mutex<Stopping>>);

#[derive(Default)]
struct Stopping {
    asked: Option<Duration>,
    outcome: Option<Result<(), NotLeft>>,
}

impl Stop {
    /// It has this time for it.
    pub fn ask(&self, limit: Duration) {
        self.0.lock().unwrap().asked = Some(limit);
    }

    fn asked(&self) -> Option<Duration> {
        self.0.lock().unwrap().asked.take()
    }

    /// What came of it, once.
    pub fn outcome(&self) -> Option<Result<(), NotLeft>> {
        self.0.lock().unwrap().outcome.take()
    }
}

/// [`run_server`] that ends when it was stopped.
pub async fn run_until_stopped(
    env: Env,
    name: String,
    memory: Size,
    started: impl Fn(ServerId),
    stop: Stop,
) {
    loop {
        let address = Address::from(format!("{name}:1").as_str());
        let mut options = ServerOptions::new(Address::from(COORDINATOR), address);
        options.memory = memory;
        options.replicas = Some(2);
        let server = Server::start(env.clone(), options).await.unwrap();
        started(server.id());
        let asked = async {
            loop {
                if let Some(limit) = stop.asked() {
                    return limit;
                }
                env.clock.sleep(Duration::from_millis(5)).await;
            }
        };
        let limit = tokio::select! {
            biased;
            _why = server.expelled() => None,
            limit = asked => Some(limit),
        };
        if let Some(limit) = limit {
            let outcome = server.leave(limit).await;
            stop.0.lock().unwrap().outcome = Some(outcome);
            return;
        }
    }
}

/// A client of a process, over its network or over one that stands before it.
pub fn client(env: &Env, network: Arc<dyn Network>) -> Client {
    let parts = Parts {
        clock: env.clock.clone(),
        rng: env.rng.clone(),
        network,
        tasks: Some(env.tasks.clone()),
        mapped: env.mapped.clone(),
    };
    let options = ClientOptions::new([Address::from(COORDINATOR)])
        .timeout(Duration::from_secs(60))
        .attempt_timeout(Duration::from_secs(1));
    Client::new(parts, options)
}
