//! The steps of a leading coordinator, counted, and its death at one of them.
//!
//! A step is a batch given to the metadata store, or a message to a server. Nothing else that a leader does can
//! be seen by others but its answers to requests, and each of those follows such a step and precedes the next: a leader that
//! dies after one and before the next may have answered or not. So whoever dies before and after every
//! step has died everywhere. Whatever stores or tells something is a step by itself, without a list
//! of places.

use super::ground::Ground;
use super::{Shared, lock};
use bytes::Bytes;
use pluvio_coordinator::{Change, Condition, Limits, MetadataStore, Outcome, StoreError};
use pluvio_env::{
    Address, BoxFuture, CallError, Env, Frame, Listening, Network, NetworkError, Service,
    StreamService,
};
use pluvio_sim::{ProcessEnv, ProcessId, SimHandle};
use pluvio_wire::Opcode;
use std::sync::Arc;
use std::time::Duration;

/// When a leader dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The store, or the server, never hears of the step.
    Before,
    /// It has done what it was asked, and the leader never hears of that.
    After,
}

/// What became of a planned death.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The step was never begun.
    NotReached,
    /// It was begun, but its end was not waited for.
    Abandoned,
    /// The leader died; says at what.
    Died(String),
}

#[derive(Default)]
struct Plan {
    victim: Option<ProcessId>,
    at: u64,
    side: Option<Side>,
    begun: u64,
    died: Option<String>,
}

/// Counts the steps of one coordinator. Clones are the same.
#[derive(Clone, Default)]
pub struct Steps(Shared<Plan>);

impl Steps {
    /// Lets a coordinator die at its step with this number, counted from now on.
    pub fn arm(&self, victim: ProcessId, at: u64, side: Side) {
        *lock(&self.0) = Plan {
            victim: Some(victim),
            at,
            side: Some(side),
            ..Plan::default()
        };
    }

    pub fn fate(&self) -> Fate {
        let plan = lock(&self.0);
        match &plan.died {
            Some(what) => Fate::Died(what.clone()),
            None if plan.begun > plan.at => Fate::Abandoned,
            None => Fate::NotReached,
        }
    }

    /// Whether the step that begins is the one of the plan; gives the side then.
    fn begin(&self, process: ProcessId) -> Option<Side> {
        let mut plan = lock(&self.0);
        if plan.victim != Some(process) {
            return None;
        }
        let number = plan.begun;
        plan.begun += 1;
        plan.side.filter(|_| number == plan.at)
    }
}

/// A coordinator whose steps are counted.
#[derive(Clone)]
struct Walker {
    steps: Steps,
    sim: SimHandle,
    process: ProcessId,
}

impl Walker {
    async fn step<T>(&self, what: String, work: impl Future<Output = T>) -> T {
        let side = self.steps.begin(self.process);
        if side == Some(Side::Before) {
            self.die(&what).await;
        }
        let value = work.await;
        if side == Some(Side::After) {
            self.die(&what).await;
        }
        value
    }

    async fn die(&self, what: &str) {
        lock(&self.steps.0).died = Some(what.to_owned());
        self.sim.crash(self.process);
        core::future::pending().await
    }
}

/// Coordinators on another ground, with their steps counted.
pub struct Stepped {
    inner: Arc<dyn Ground>,
    steps: Steps,
}

impl Stepped {
    pub fn new(inner: Arc<dyn Ground>, steps: Steps) -> Self {
        Self { inner, steps }
    }
}

impl Ground for Stepped {
    fn open(&self, sim: &SimHandle, process: &ProcessEnv) -> (Env, Arc<dyn MetadataStore>) {
        let (mut env, store) = self.inner.open(sim, process);
        let walker = Walker {
            steps: self.steps.clone(),
            sim: sim.clone(),
            process: process.id,
        };
        let network = SteppedNetwork {
            inner: env.network.clone(),
            walker: walker.clone(),
        };
        env.network = Arc::new(network);
        let inner = store;
        (env, Arc::new(SteppedStore { inner, walker }))
    }

    fn look(&self) -> Arc<dyn MetadataStore> {
        self.inner.look()
    }
}

struct SteppedStore {
    inner: Arc<dyn MetadataStore>,
    walker: Walker,
}

impl MetadataStore for SteppedStore {
    fn get(&self, key: &str) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        self.inner.get(key)
    }

    fn list_prefix(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<(String, Bytes)>, StoreError>> {
        self.inner.list_prefix(prefix)
    }

    fn apply_if(
        &self,
        condition: Condition,
        batch: Vec<Change>,
    ) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        let keys: Vec<&str> = batch.iter().map(Change::key).collect();
        let what = format!("storing {}", keys.join(", "));
        Box::pin(async move {
            let storing = self.inner.apply_if(condition, batch);
            self.walker.step(what, storing).await
        })
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn is_exclusive(&self) -> bool {
        self.inner.is_exclusive()
    }
}

struct SteppedNetwork {
    inner: Arc<dyn Network>,
    walker: Walker,
}

impl Network for SteppedNetwork {
    fn call<'a>(
        &'a self,
        to: &'a Address,
        request: Frame,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>> {
        let opcode = Opcode::from_number(request.opcode).expect("known operations only");
        // Questions, asked all the time: whoever hears them is the same afterwards.
        if matches!(
            opcode,
            Opcode::Ping | Opcode::GetLeader | Opcode::GetServerStatus
        ) {
            return self.inner.call(to, request, limit);
        }
        let what = format!("{} to {to}", opcode.name());
        Box::pin(async move {
            let calling = self.inner.call(to, request, limit);
            self.walker.step(what, calling).await
        })
    }

    fn listen(
        &self,
        address: &Address,
        service: Arc<dyn Service>,
    ) -> BoxFuture<'_, Result<Listening, NetworkError>> {
        self.inner.listen(address, service)
    }

    fn listen_streams(
        &self,
        address: &Address,
        connections_max: usize,
        refusal: Bytes,
        service: Arc<dyn StreamService>,
    ) -> BoxFuture<'_, Result<Listening, NetworkError>> {
        let inner = &self.inner;
        inner.listen_streams(address, connections_max, refusal, service)
    }
}
