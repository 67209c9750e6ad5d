//! The tasks of one coordinator: they all end when it does.

use crate::refusals::stopping;
use pluvio_env::{Env, watch};
use pluvio_units::CoreId;
use pluvio_wire::Refusal;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The event loop on which everything runs.
pub(crate) const LOOP: CoreId = CoreId(0);

/// See the module.
pub(crate) struct TaskGroup {
    spawner: Arc<dyn pluvio_env::Tasks>,
    /// Becomes true when the coordinator is dropped or deposed.
    stop: watch::Sender<bool>,
}

impl TaskGroup {
    pub(crate) fn new(env: &Env) -> Self {
        Self {
            spawner: env.tasks.clone(),
            stop: watch::Sender::new(false),
        }
    }

    /// Ends all tasks.
    pub(crate) fn end(&self) {
        self.stop.send_replace(true);
    }

    pub(crate) fn is_ending(&self) -> bool {
        *self.stop.borrow()
    }

    /// Runs a task until it ends or the coordinator does.
    pub(crate) fn spawn(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let mut stop = self.stop.subscribe();
        self.spawner.spawn(LOOP, name, async move {
            tokio::select! {
                biased;
                // An error means that the coordinator is gone altogether.
                _ = stop.wait_for(|stop| *stop) => {}
                () = task => {}
            }
        });
    }

    /// Runs `work` to its end, also when its caller has given up: the connection of a request may
    /// break at any time.
    pub(crate) async fn detached<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, Refusal> {
        let (done, result) = oneshot::channel();
        self.spawn(name, async move {
            // The caller has given up.
            let _ = done.send(work.await);
        });
        result.await.unwrap_or_else(|_| Err(stopping()))
    }
}
