//! What every work has: time and chance, the ledger, and a way to reach servers.

use crate::ledger::Ledger;
use crate::members::{Calls, Detector};
use crate::options::CoordinatorOptions;
use crate::state::State;
use crate::tasks::TaskGroup;
use core::time::Duration;
use pluvio_env::{Env, Moment};
use std::sync::Arc;

/// See the module. It has nothing that changes: what does is in the ledger, in the detector, and
/// with each work.
pub(crate) struct Context {
    pub(crate) env: Env,
    pub(crate) options: Arc<CoordinatorOptions>,
    pub(crate) tasks: Arc<TaskGroup>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) calls: Calls,
}

impl Context {
    pub(crate) fn new(
        env: Env,
        options: Arc<CoordinatorOptions>,
        tasks: Arc<TaskGroup>,
        ledger: Arc<Ledger>,
        detector: &Arc<Detector>,
    ) -> Arc<Self> {
        let calls = Calls::new(&env, &options, ledger.clone(), detector.clone());
        Arc::new(Self {
            env,
            options,
            tasks,
            ledger,
            calls,
        })
    }

    /// The state, as it was stored last.
    pub(crate) fn state(&self) -> Arc<State> {
        self.ledger.state()
    }

    pub(crate) fn now(&self) -> Moment {
        self.env.clock.now()
    }

    pub(crate) async fn sleep(&self, pause: Duration) {
        self.env.clock.sleep(pause).await;
    }
}
