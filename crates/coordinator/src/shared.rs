//! What all parts of the coordinator share: the state, the one way to change it, and calls.

use crate::detect::Convictions;
use crate::lead::Tenure;
use crate::migrate::MoveHistory;
use crate::options::CoordinatorOptions;
use crate::recovery::{Attempts, History};
use crate::state::State;
use crate::supervise::Work;
use core::time::Duration;
use pluvio_env::{Address, Env, Moment, TimedOut, timeout, watch};
use pluvio_units::{CoreId, ServerId, TableId};
use pluvio_wire::{FatalKind, Header, Refusal, Request, RetryReason, RpcError, ServerInfo};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, oneshot};

/// The event loop on which everything runs.
pub(crate) const LOOP: CoreId = CoreId(0);
/// How long a request waits for a store that takes nothing before it says so: less than a client
/// waits for one answer, more than a short failure takes.
const STUCK_WAIT: Duration = Duration::from_secs(1);
/// When to come again then: as often as the store is tried.
const STUCK_AGAIN: Duration = Duration::from_millis(500);

/// The coordinator, as its tasks hold it.
pub(crate) struct Shared {
    pub(crate) env: Env,
    pub(crate) options: CoordinatorOptions,
    /// The right to change the state (LEAD-1).
    pub(crate) tenure: Arc<Tenure>,
    /// The stored state (COORD-1).
    state: watch::Sender<Arc<State>>,
    /// Held while a change is stored.
    writer: tokio::sync::Mutex<()>,
    /// Becomes true when the coordinator is dropped; all tasks end then.
    pub(crate) stop: watch::Sender<bool>,
    /// Wakes the supervisor when a task has ended.
    pub(crate) work_ended: Notify,
    memory: Mutex<Memory>,
}

/// What may be forgotten: a new incarnation finds out again.
#[derive(Default)]
pub(crate) struct Memory {
    /// Tasks under way.
    pub(crate) running: BTreeSet<Work>,
    /// Servers being checked, and whether they have answered a ping since, whatever it was sent
    /// for.
    pub(crate) suspects: BTreeMap<ServerId, bool>,
    /// Servers that were declared crashed for silence.
    pub(crate) convictions: Convictions,
    /// Whether a server's list is being compared with the stored one.
    pub(crate) comparing: bool,
    /// When a server answered a ping last.
    pub(crate) last_answer: Option<Moment>,
    /// Why the owners of a new table's tablets do not take them yet.
    pub(crate) troubles: BTreeMap<TableId, RetryReason>,
    /// Recovery attempts under way.
    pub(crate) attempts: Attempts,
    /// Recoveries for people.
    pub(crate) history: History,
    /// Migrations for people.
    pub(crate) moves: MoveHistory,
}

impl Shared {
    pub(crate) fn new(
        env: Env,
        tenure: Arc<Tenure>,
        options: CoordinatorOptions,
        state: State,
    ) -> Arc<Self> {
        Arc::new(Self {
            env,
            options,
            tenure,
            state: watch::Sender::new(Arc::new(state)),
            writer: tokio::sync::Mutex::new(()),
            stop: watch::Sender::new(false),
            work_ended: Notify::new(),
            memory: Mutex::new(Memory::default()),
        })
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

    pub(crate) fn memory(&self) -> MutexGuard<'_, Memory> {
        // Held for single steps only; a panic in one of them is met again by whoever caused it.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all tasks.
    pub(crate) fn end(&self) {
        self.stop.send_replace(true);
    }

    /// Runs a task until it ends or the coordinator does.
    pub(crate) fn spawn(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let mut stop = self.stop.subscribe();
        self.env.tasks.spawn(LOOP, name, async move {
            tokio::select! {
                biased;
                // An error means that the coordinator is gone altogether.
                _ = stop.wait_for(|stop| *stop) => {}
                () = task => {}
            }
        });
    }

    /// Runs `work` to its end, also if nobody waits for it any more: a request's connection may
    /// break at any time.
    pub(crate) async fn detached<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, Refusal> {
        let (done, result) = oneshot::channel();
        self.spawn(name, async move {
            // Nobody waits any more.
            let _ = done.send(work.await);
        });
        result.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// The one way to change the state: `alter` works on a copy, which is stored and then
    /// published. Changes that alter nothing store nothing. Ends only when the change is stored,
    /// however long the store fails; dropping the future does not stop the change.
    ///
    /// # Errors
    /// What `alter` refuses; nothing is changed then. Another coordinator leads: the change is
    /// stored and known to that one, or not stored.
    pub(crate) async fn change<T: Send + 'static>(
        self: &Arc<Self>,
        alter: impl FnOnce(&mut State) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let shared = self.clone();
        self.detached("change", async move { shared.change_here(alter).await })
            .await
    }

    /// [`Shared::change`] for those who ask on behalf of people: while the store takes nothing they
    /// are told so, and to come again. A change that was begun is stored as soon as it can be, also
    /// when nobody asks again; behind it none is begun, so that those do not pile up here.
    ///
    /// # Errors
    /// Those of [`Shared::change`]. The store takes nothing: the change waits, or nothing was
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
            match timeout(&*self.env.clock, STUCK_WAIT, changing.as_mut()).await {
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
        after.check();
        let batch = after.changes_since(&before);
        if batch.is_empty() {
            return Ok(value);
        }
        if self.tenure.apply(batch).await.is_err() {
            self.end();
            return Err(not_leader());
        }
        self.state.send_replace(Arc::new(after));
        Ok(value)
    }

    /// Sends a request to one life of a server, once this coordinator may act (LEAD-2).
    pub(crate) async fn call<R: Request>(
        &self,
        to: &ServerInfo,
        request: &R,
        limit: Duration,
    ) -> Result<R::Reply, RpcError> {
        self.tenure.until_it_leads().await;
        let address = Address::from(to.address.as_str());
        let network = &*self.env.network;
        pluvio_wire::call(network, &address, Header::to(to.id), request, limit).await
    }

    /// [`Shared::call`] that gives up as soon as the server is not up any more: `None`. A server
    /// that cannot be reached is suspected.
    pub(crate) async fn call_while_up<R: Request + Sync>(
        self: &Arc<Self>,
        to: &ServerInfo,
        request: &R,
    ) -> Option<Result<R::Reply, RpcError>> {
        let id = to.id;
        let result = tokio::select! {
            biased;
            () = self.until(|state| !state.is_up(id)) => return None,
            result = self.call(to, request, self.options.call_limit) => result,
        };
        if let Err(RpcError::Call(_) | RpcError::Refused(Refusal::Refresh)) = &result {
            self.suspect(id);
        }
        Some(result)
    }
}

/// The refusal of a coordinator that is ending.
pub(crate) fn stopping() -> Refusal {
    Refusal::retry(Duration::from_millis(100), RetryReason::NotLeader)
}

/// The refusal of a coordinator that does not lead.
pub(crate) fn not_leader() -> Refusal {
    Refusal::retry(Duration::from_millis(50), RetryReason::NotLeader)
}

/// The refusal of requests by servers that are not members (any more).
pub(crate) fn not_a_member(server: ServerId) -> Refusal {
    Refusal::fatal(
        FatalKind::NotInCluster,
        format!("server {server} is not, or no longer, a member: start it again, it gets a new id"),
    )
}
