//! A server on a machine with two memory nodes, as far as it can be seen without such a machine.

use crate::rig::{LONG, Rig};
use pluvio_env::{Address, BoxFuture, Env, Pace, TaskHandle, Tasks};
use pluvio_log::{Interleaving, LogStats};
use pluvio_server::{Server, ServerOptions};
use pluvio_store::IndexMemory;
use pluvio_units::{CoreId, Size};
use std::sync::{Arc, Mutex};

/// Numbers that no machine gives its nodes. So a refusal shows that the system was asked.
const NODES: [u32; 2] = [1022, 1023];

/// The node that each background worker was to be near, by name.
type Workers = Arc<Mutex<Vec<(&'static str, Option<u32>)>>>;

/// Four event loops on a machine with two nodes.
struct TwoNodes {
    tasks: Arc<dyn Tasks>,
    /// Whether loops are bound to processors.
    are_bound: bool,
    workers: Workers,
}

impl Tasks for TwoNodes {
    fn cores(&self) -> u16 {
        4
    }

    fn memory_node(&self, core: CoreId) -> Option<u32> {
        self.are_bound.then(|| NODES[usize::from(core.0 % 2)])
    }

    fn memory_nodes(&self) -> Vec<u32> {
        NODES.to_vec()
    }

    fn spawn_on(
        &self,
        core: CoreId,
        name: &'static str,
        task: BoxFuture<'static, ()>,
    ) -> TaskHandle {
        let core = CoreId(core.0 % self.tasks.cores());
        self.tasks.spawn_on(core, name, task)
    }

    fn background(&self, name: &'static str, step: Box<dyn FnMut() -> Pace + Send>) -> TaskHandle {
        self.background_near(name, None, step)
    }

    fn background_near(
        &self,
        name: &'static str,
        node: Option<u32>,
        step: Box<dyn FnMut() -> Pace + Send>,
    ) -> TaskHandle {
        self.workers.lock().unwrap().push((name, node));
        self.tasks.background(name, step)
    }

    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        self.tasks.run_blocking(work)
    }
}

/// The log of a started server, and the nodes that its cleaners were to be near.
fn started(are_bound: bool, index_memory: IndexMemory) -> (LogStats, Vec<Option<u32>>) {
    let rig = Rig::new(1);
    let process = rig.sim.process("server-0");
    let workers = Workers::default();
    let tasks = TwoNodes {
        tasks: Arc::clone(&process.env.tasks),
        are_bound,
        workers: Arc::clone(&workers),
    };
    let env = Env {
        tasks: Arc::new(tasks),
        ..process.env.clone()
    };
    let options = ServerOptions {
        memory: Size::mib(256),
        replicas: Some(0),
        index_memory,
        ..ServerOptions::new(Address::from("coordinator"), Address::from("server-0"))
    };
    let server = Arc::new(Mutex::new(None));
    let there = Arc::clone(&server);
    rig.sim.spawn(process.id, "server", async move {
        let started = Server::start(env, options).await;
        *there.lock().unwrap() = Some(started.expect("the server starts"));
    });
    let is_there = || server.lock().unwrap().is_some();
    rig.sim
        .run_until(is_there, LONG)
        .unwrap_or_else(|stuck| panic!("{stuck}"));
    let server = server.lock().unwrap().take().expect("it has started");
    let stats = server.master().unwrap().store().space().stats();
    let workers = workers.lock().unwrap();
    let cleaners = workers.iter().filter(|(name, _)| *name == "cleaner");
    (stats, cleaners.map(|(_, node)| *node).collect())
}

#[test]
fn each_node_has_a_cleaner_near_it_where_loops_are_bound() {
    let (stats, cleaners) = started(true, IndexMemory::default());
    assert_eq!(stats.memory_parts, 2);
    assert_eq!(cleaners, NODES.map(Some));
    let (stats, cleaners) = started(false, IndexMemory::default());
    assert_eq!((stats.memory_parts, cleaners), (1, vec![None]));
}

#[test]
fn index_memory_is_interleaved_over_all_nodes_also_where_loops_are_not_bound() {
    for are_bound in [true, false] {
        let (stats, _) = started(are_bound, IndexMemory::default());
        let Interleaving::Refused(why) = stats.interleaving else {
            panic!("no machine has these nodes: {stats:?}");
        };
        assert_eq!(why.nodes, 2);
        let (stats, _) = started(are_bound, IndexMemory::FirstTouch);
        assert_eq!(stats.interleaving, Interleaving::FirstTouch);
    }
}
