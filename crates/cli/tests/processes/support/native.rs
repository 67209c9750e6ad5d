//! The native client, blocking.

use pluvio_client::blocking::BlockOn;
use pluvio_client::{Client, ClientOptions};
use pluvio_env::Env;
use pluvio_env_os::{NoDisk, OsOptions, OsRuntime, current_core};
use pluvio_net::{NetOptions, OsNetwork};
use std::sync::Arc;

/// An event loop for clients.
#[derive(Clone)]
pub struct Loop(pub Arc<OsRuntime>);

impl BlockOn for Loop {
    fn block_on<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        self.0.block_on(future)
    }
}

/// The client of tests.
pub type Native = pluvio_client::blocking::Client<Loop>;

/// An event loop and what runs on it: network, no disk.
pub fn runtime() -> (OsRuntime, Env) {
    let runtime = OsRuntime::start(&OsOptions::with_cores(1)).expect("an event loop");
    let network = OsNetwork::new(
        NetOptions::default(),
        runtime.tasks(),
        runtime.clock(),
        current_core,
    );
    let env = runtime.env(Arc::new(network), Arc::new(NoDisk));
    (runtime, env)
}

/// A client of the cluster whose coordinators listen at `coordinators`, with commas.
pub fn native(coordinators: &str) -> Native {
    let (runtime, env) = runtime();
    let client = Client::new(&env, ClientOptions::new(coordinators.split(',')));
    Native::new(client, Loop(Arc::new(runtime)))
}
