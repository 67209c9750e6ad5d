//! The ledger: the state of the cluster, and the one way to change it (COORD-1).
//!
//! 1. A change waits for its turn; changes are stored one after the other.
//! 2. It alters a copy of the state, or refuses.
//! 3. The copy is checked, and compared with the state before it.
//! 4. The differences are stored as one batch, which works only while this coordinator leads
//!    (LEAD-1).
//! 5. The copy is published: requests and tasks see it from here on.
//!
//! Locks: `writer` is held from step 1 to 5, so across the store's answer.

use crate::lead::Tenure;
use crate::refusals::not_leader;
use crate::state::State;
use crate::tasks::TaskGroup;
use core::time::Duration;
use pluvio_env::{Clock, Env, TimedOut, timeout, watch};
use pluvio_wire::{Refusal, RetryReason};
use std::sync::Arc;

/// How long a request waits for a store that takes nothing before it is refused. A client waits
/// longer for one answer; a short failure is over by then.
const STUCK_WAIT: Duration = Duration::from_secs(1);
/// When to come again then: as often as the store is tried.
const STUCK_AGAIN: Duration = Duration::from_millis(500);

/// See the module.
pub(crate) struct Ledger {
    clock: Arc<dyn Clock>,
    tasks: Arc<TaskGroup>,
    /// The right to change the state (LEAD-1).
    tenure: Arc<Tenure>,
    /// The stored state (COORD-1).
    state: watch::Sender<Arc<State>>,
    /// Held while a change is stored.
    writer: tokio::sync::Mutex<()>,
}

impl Ledger {
    pub(crate) fn new(
        env: &Env,
        tasks: Arc<TaskGroup>,
        tenure: Arc<Tenure>,
        state: State,
    ) -> Arc<Self> {
        Arc::new(Self {
            clock: env.clock.clone(),
            tasks,
            tenure,
            state: watch::Sender::new(Arc::new(state)),
            writer: tokio::sync::Mutex::new(()),
        })
    }

    pub(crate) fn tenure(&self) -> &Arc<Tenure> {
        &self.tenure
    }

    /// The state, as it was stored last.
    pub(crate) fn state(&self) -> Arc<State> {
        self.state.borrow().clone()
    }

    /// Follows the state.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<State>> {
        self.state.subscribe()
    }

    /// Waits until the state is as wanted.
    pub(crate) async fn until(&self, wanted: impl FnMut(&Arc<State>) -> bool) {
        self.watch()
            .wait_for(wanted)
            .await
            .expect("the sender lives as long as this");
    }

    /// The one way to change the state: `alter` works on a copy, which is stored and then
    /// published. A copy that equals the state is not stored. Ends only when the change is stored,
    /// however long the store fails. The change goes on when the future is dropped.
    ///
    /// # Errors
    /// What `alter` refuses; nothing is changed then. Another coordinator leads: the change is
    /// stored and known to that one, or not stored.
    pub(crate) async fn change<T: Send + 'static>(
        self: &Arc<Self>,
        alter: impl FnOnce(&mut State) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let ledger = self.clone();
        self.tasks
            .detached("change", async move { ledger.change_here(alter).await })
            .await
    }

    /// [`Ledger::change`] for requests of people: while the store takes nothing, they are refused
    /// and asked to come again. A change that was begun is stored as soon as it can be, also when
    /// its caller never asks again. Behind it none is begun, so that changes do not pile up.
    ///
    /// # Errors
    /// Those of [`Ledger::change`]. The store takes nothing: the change waits, or nothing was
    /// begun.
    pub(crate) async fn change_for_caller<T: Send + 'static>(
        self: &Arc<Self>,
        alter: impl FnOnce(&mut State) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let stuck = || Refusal::retry(STUCK_AGAIN, RetryReason::MetadataTrouble);
        if self.tenure.is_stuck() {
            return Err(stuck());
        }
        let mut changing = Box::pin(self.change(alter));
        loop {
            match timeout(&*self.clock, STUCK_WAIT, changing.as_mut()).await {
                Ok(result) => return result,
                Err(TimedOut) if self.tenure.is_stuck() => return Err(stuck()),
                // Slow, or behind others.
                Err(TimedOut) => {}
            }
        }
    }

    async fn change_here<T>(
        &self,
        alter: impl FnOnce(&mut State) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let _turn = self.writer.lock().await;
        let before = self.state();
        let mut after = (*before).clone();
        let value = alter(&mut after)?;
        after.settle_list(&before);
        after.check_since(&before);
        let batch = after.changes_since(&before);
        if batch.is_empty() {
            return Ok(value);
        }
        if self.tenure.apply(batch).await.is_err() {
            self.tasks.end();
            return Err(not_leader());
        }
        self.state.send_replace(Arc::new(after));
        Ok(value)
    }
}
