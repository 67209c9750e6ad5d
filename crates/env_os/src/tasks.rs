//! Tasks on the event loops, background threads beside them.
//!
//! Invariants
//! - TASKS-1: one thread only calls a background worker's `step`. It calls no further step once the
//!   worker's handle was aborted or the runtime stopped; a step that runs is let finish.
//! - TASKS-2: a worker that waits (`Pace::After`) wakes at once when it is aborted.
//! - TASKS-3: where event loops are bound to processors, a background worker may use all those of
//!   the process, or those of its memory node. Otherwise its thread would stay on the processor of
//!   the loop that starts it, as the system has new threads do.

use crate::affinity::run_on;
use crate::runtime::own_loop;
use crate::spin::{Activity, Counted};
use core::time::Duration;
use pluvio_env::host::Nodes;
use pluvio_env::{BoxFuture, Pace, TaskHandle, Tasks};
use pluvio_units::CoreId;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tokio::runtime::Handle;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The guarded values, flags and a map, are valid after any panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One event loop, as a spawner sees it.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) handle: Handle,
    /// Present when the loop spins.
    pub(crate) activity: Option<Arc<Activity>>,
    /// The memory node of the processor that the loop is bound to, if it is bound and the system
    /// tells.
    pub(crate) memory_node: Option<u32>,
}

/// Starts work on the event loops of an [`crate::OsRuntime`].
#[derive(Debug)]
pub struct OsTasks {
    cores: Vec<Core>,
    /// The processors of each memory node, if the system tells.
    nodes: Option<Nodes>,
    /// Whether event loops are bound to processors.
    are_bound: bool,
    background: Arc<Background>,
}

impl OsTasks {
    /// `nodes`: as the system told before any loop was bound to a processor.
    pub(crate) fn new(cores: Vec<Core>, nodes: Option<Nodes>, are_bound: bool) -> Self {
        assert!(!cores.is_empty(), "a runtime has at least one core");
        Self {
            cores,
            nodes,
            are_bound,
            background: Arc::default(),
        }
    }

    pub(crate) fn handle(&self, core: CoreId) -> &Handle {
        &self.core(core).handle
    }

    fn core(&self, core: CoreId) -> &Core {
        let count = self.cores.len();
        self.cores
            .get(usize::from(core.0))
            .unwrap_or_else(|| panic!("core {core} of a process with {count} cores"))
    }

    /// The processors for a worker near a memory node, or near none: none if it may run where the
    /// thread runs that starts it (TASKS-3).
    fn processors_near(&self, node: Option<u32>) -> Vec<usize> {
        let Some(nodes) = self.nodes.as_ref().filter(|_| self.are_bound) else {
            return Vec::new();
        };
        let of_nodes = || nodes.numbers().iter().zip(nodes.iter());
        let near = of_nodes().filter(|(number, _)| node == Some(**number));
        let near = Vec::from_iter(near.flat_map(|(_, list)| list.iter().copied()));
        if near.is_empty() {
            return nodes.iter().flatten().copied().collect();
        }
        near
    }

    /// Stops every background worker and waits for their threads, at most for `limit`. Workers
    /// started later never run. Gives the number of workers that are still in a step.
    pub(crate) fn stop_background(&self, limit: Duration) -> usize {
        let workers: Vec<Arc<Stop>> = {
            let mut state = lock(&self.background.state);
            state.stopped = true;
            state.workers.values().cloned().collect()
        };
        for worker in workers {
            worker.set();
        }
        let state = lock(&self.background.state);
        let (state, _) = self
            .background
            .ended
            .wait_timeout_while(state, limit, |state| !state.workers.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        state.workers.len()
    }
}

impl Tasks for OsTasks {
    fn cores(&self) -> u16 {
        u16::try_from(self.cores.len()).expect("made from a u16")
    }

    fn memory_node(&self, core: CoreId) -> Option<u32> {
        self.core(core).memory_node
    }

    fn memory_nodes(&self) -> Vec<u32> {
        let nodes = self.nodes.as_ref();
        nodes.map_or_else(Vec::new, |nodes| nodes.numbers().to_vec())
    }

    fn busy(&self, core: CoreId) -> Option<Duration> {
        // A loop has one worker.
        let metrics = self.core(core).handle.metrics();
        Some(metrics.worker_total_busy_duration(0))
    }

    fn spawn_on(
        &self,
        core: CoreId,
        name: &'static str,
        task: BoxFuture<'static, ()>,
    ) -> TaskHandle {
        tracing::trace!(name, core = core.0, "task starts");
        let core = self.core(core);
        let join = match &core.activity {
            Some(activity) => core.handle.spawn(Counted {
                task,
                activity: Arc::clone(activity),
            }),
            None => core.handle.spawn(task),
        };
        let abort = join.abort_handle();
        TaskHandle::new(move || abort.abort())
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
        let processors = self.processors_near(node);
        let stop = Arc::new(Stop::default());
        let Some(worker) = Background::register(&self.background, Arc::clone(&stop)) else {
            return TaskHandle::new(|| {});
        };
        let for_thread = Arc::clone(&stop);
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let _worker = worker;
                run_on(&processors);
                run(&for_thread, step);
                tracing::trace!(name, "background worker ended");
            })
            .unwrap_or_else(|error| {
                panic!("cannot start the thread {name}: {error}; raise the limit of processes")
            });
        TaskHandle::new(move || stop.set())
    }

    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        let join = own_loop(&self.cores[0].handle).spawn_blocking(work);
        Box::pin(async move {
            if let Err(error) = join.await {
                // Cancelled means that the runtime stops, and every waiting task with it.
                if let Ok(panic) = error.try_into_panic() {
                    std::panic::resume_unwind(panic);
                }
            }
        })
    }
}

/// The loop of a background thread.
fn run(stop: &Stop, mut step: Box<dyn FnMut() -> Pace + Send>) {
    while !stop.is_set() {
        match step() {
            Pace::Again => std::thread::yield_now(),
            Pace::After(pause) => stop.wait(pause),
            Pace::Done => return,
        }
    }
}

/// Tells one worker to end.
#[derive(Default, Debug)]
struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    fn set(&self) {
        *lock(&self.stopped) = true;
        self.changed.notify_all();
    }

    fn is_set(&self) -> bool {
        *lock(&self.stopped)
    }

    /// Waits for `pause`, or until [`Stop::set`].
    fn wait(&self, pause: Duration) {
        let stopped = lock(&self.stopped);
        drop(
            self.changed
                .wait_timeout_while(stopped, pause, |stopped| !*stopped),
        );
    }
}

/// All background workers of a runtime.
#[derive(Default, Debug)]
struct Background {
    state: Mutex<BackgroundState>,
    ended: Condvar,
}

#[derive(Default, Debug)]
struct BackgroundState {
    workers: BTreeMap<u64, Arc<Stop>>,
    next: u64,
    stopped: bool,
}

impl Background {
    /// `None` once the runtime stops.
    fn register(this: &Arc<Self>, stop: Arc<Stop>) -> Option<Worker> {
        let mut state = lock(&this.state);
        if state.stopped {
            return None;
        }
        let id = state.next;
        state.next += 1;
        state.workers.insert(id, stop);
        Some(Worker {
            background: Arc::clone(this),
            id,
        })
    }
}

/// A worker's place in the register. It is given up when the worker's thread ends, for any reason.
struct Worker {
    background: Arc<Background>,
    id: u64,
}

impl Drop for Worker {
    fn drop(&mut self) {
        lock(&self.background.state).workers.remove(&self.id);
        self.background.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // shows: TASKS-3
    #[test]
    fn a_worker_may_use_the_processors_of_its_node_or_all_of_them() {
        let nodes = Nodes::numbered(vec![(0, vec![0, 2]), (4, vec![1, 3]), (0, vec![5])]).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let tasks = |nodes, are_bound| {
            let core = Core {
                handle: runtime.handle().clone(),
                activity: None,
                memory_node: None,
            };
            OsTasks::new(vec![core], nodes, are_bound)
        };
        let bound = tasks(Some(nodes.clone()), true);
        assert_eq!(bound.memory_nodes(), [0, 4, 0]);
        assert_eq!(bound.processors_near(Some(4)), [1, 3]);
        assert_eq!(bound.processors_near(Some(0)), [0, 2, 5]);
        for node in [None, Some(7)] {
            assert_eq!(bound.processors_near(node), [0, 2, 1, 3, 5], "{node:?}");
        }
        let unbound = tasks(Some(nodes), false);
        let unknown = tasks(None, true);
        for tasks in [unbound, unknown] {
            assert!(tasks.processors_near(Some(4)).is_empty());
        }
    }
}
