//! Concurrent work.

use crate::{BoxFuture, Pace};
use core::time::Duration;
use pluvio_units::CoreId;

/// Starts concurrent work. In production a task runs on the event loop of one core. In the
/// simulator everything runs in one thread, and stops when its process crashes.
pub trait Tasks: Send + Sync {
    /// Number of event loops of this process, at least one.
    fn cores(&self) -> u16;

    /// The memory node of the processor that the event loop of `core` is bound to. `None` if the
    /// loop is not bound, or if the nodes are unknown.
    fn memory_node(&self, _core: CoreId) -> Option<u32> {
        None
    }

    /// The memory nodes of the processors that this process may use, by the numbers that the system
    /// gives them. Empty where they are unknown.
    fn memory_nodes(&self) -> Vec<u32> {
        Vec::new()
    }

    /// How long the event loop of `core` has worked since it started, with what it looks for more
    /// work when it spins. `None` where nobody measures that.
    fn busy(&self, _core: CoreId) -> Option<Duration> {
        None
    }

    /// Runs `task` on the event loop of `core` until it ends or its handle is aborted.
    /// `name` shows in traces.
    fn spawn_on(
        &self,
        core: CoreId,
        name: &'static str,
        task: BoxFuture<'static, ()>,
    ) -> TaskHandle;

    /// Calls `step` again and again outside the event loops: for the cleaner and other work that
    /// computes and never waits. Production gives it a thread, the simulator an event per step.
    fn background(&self, name: &'static str, step: Box<dyn FnMut() -> Pace + Send>) -> TaskHandle;

    /// [`Self::background`] on the processors of a memory node, where event loops are bound and the
    /// node is known; otherwise anywhere.
    fn background_near(
        &self,
        name: &'static str,
        _node: Option<u32>,
        step: Box<dyn FnMut() -> Pace + Send>,
    ) -> TaskHandle {
        self.background(name, step)
    }

    /// Runs `work` once, outside the event loops, and waits for its end: for long computations.
    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()>;
}

impl dyn Tasks + '_ {
    /// [`Tasks::spawn_on`] for a future that is not boxed yet.
    pub fn spawn(
        &self,
        core: CoreId,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> TaskHandle {
        self.spawn_on(core, name, Box::pin(task))
    }
}

/// Ends a task early. Dropping the handle leaves the task running.
pub struct TaskHandle(Box<dyn Fn() + Send + Sync>);

impl TaskHandle {
    /// `abort` must be callable any number of times, even after the end of the task.
    #[must_use]
    pub fn new(abort: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Box::new(abort))
    }

    /// Ends the task at its next suspension; does nothing when it has ended.
    pub fn abort(&self) {
        (self.0)();
    }
}
