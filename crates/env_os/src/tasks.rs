//! Tasks on the event loops, background threads beside them.
//!
//! Invariants
//! - TASKS-1: one thread only calls a background worker's `step`. It calls no further step once the
//!   worker's handle was aborted or the runtime stopped; a step that runs is let finish.
//! - TASKS-2: a worker that waits (`Pace::After`) wakes at once when it is aborted.

use crate::runtime::own_loop;
use crate::spin::{Activity, Counted};
use core::time::Duration;
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
    background: Arc<Background>,
}

impl OsTasks {
    pub(crate) fn new(cores: Vec<Core>) -> Self {
        assert!(!cores.is_empty(), "a runtime has at least one core");
        Self {
            cores,
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
        let stop = Arc::new(Stop::default());
        let Some(worker) = Background::register(&self.background, Arc::clone(&stop)) else {
            return TaskHandle::new(|| {});
        };
        let for_thread = Arc::clone(&stop);
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let _worker = worker;
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
