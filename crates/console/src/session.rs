//! A client of the cluster, and the runtime it needs, for commands that talk to one.

use crate::failure::Failure;
use crate::options::Global;
use crate::output::say;
use crate::tls::TlsArgs;
use pluvio_client::{Client, ClientOptions, OnDelay};
use pluvio_env::Env;
use pluvio_env_os::{NoDisk, OsOptions, OsRuntime, current_core};
use pluvio_net::{NetOptions, OsNetwork};
use std::sync::{Arc, Once};
use std::time::Duration;

/// How long the end of a command waits for work that was given to blocking threads.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);

/// A client and its environment. Cheap to clone.
#[derive(Clone)]
pub struct Session {
    /// The cluster.
    pub client: Client,
    /// Clock, tasks and network of this process; no disk.
    pub env: Env,
}

impl Session {
    /// A session over another environment's network: for a process that has one already.
    pub fn new(env: Env, coordinator: &str, timeout: Duration) -> Self {
        Self::with(env, options(coordinator, timeout))
    }

    fn with(env: Env, options: ClientOptions) -> Self {
        Self {
            client: Client::new(&env, options),
            env,
        }
    }
}

fn options(coordinator: &str, timeout: Duration) -> ClientOptions {
    let coordinators: Vec<&str> = coordinator.split(',').map(str::trim).collect();
    ClientOptions::new(coordinators).timeout(timeout)
}

/// The event loops of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loops {
    /// Their number; 0 means one for each processor.
    pub cores: u16,
    /// How long they look for more work before they sleep.
    pub spin: Duration,
}

impl From<u16> for Loops {
    fn from(cores: u16) -> Self {
        Self {
            cores,
            spin: Duration::ZERO,
        }
    }
}

/// Runs `work` with a client of the cluster that `global` names, on these event loops.
///
/// # Errors
/// The error of `work`; the machine has no threads or files left.
pub fn with_session<T, F>(
    global: &Global,
    loops: impl Into<Loops>,
    work: impl FnOnce(Session) -> F,
) -> Result<T, Failure>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Failure>> + Send + 'static,
{
    let mut options = options(&global.coordinator, global.timeout);
    options.mapped_reads = !global.no_mapped_reads;
    let limit = global.timeout;
    let first = Once::new();
    options.on_delay = Some(OnDelay::new(move |why| {
        // One of many operations tells it for all.
        first.call_once(|| say(format_args!("{why}; tries for {limit:?} at most")));
    }));
    with_runtime(loops, &global.tls, |env| work(Session::with(env, options)))
}

/// Runs `work` on event loops of its own, with a network and without a disk.
///
/// # Errors
/// The error of `work`; the machine has no threads or files left; files of TLS cannot be used.
pub fn with_runtime<T, F>(
    loops: impl Into<Loops>,
    tls: &TlsArgs,
    work: impl FnOnce(Env) -> F,
) -> Result<T, Failure>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Failure>> + Send + 'static,
{
    let Loops { cores, spin } = loops.into();
    let mut options = OsOptions::with_cores(cores);
    options.spin = spin;
    let runtime = OsRuntime::start(&options).map_err(|error| Failure::new(error.to_string()))?;
    let tls = tls.load(runtime.clock())?;
    let mut options = NetOptions::default();
    options.spin = spin;
    let (tasks, clock) = (runtime.tasks(), runtime.clock());
    let network = OsNetwork::with_tls(options, tls, tasks, clock, current_core);
    let env = runtime.env(Arc::new(network), Arc::new(NoDisk));
    let result = runtime.block_on(work(env));
    runtime.shutdown(SHUTDOWN_LIMIT);
    result
}
