//! The steps of a leading coordinator, counted, and its death at one of them.
//!
//! A step is a batch given to the metadata store, or a message to a server. Beside its steps,
//! others see only a leader's answers to requests, and each answer follows a step and precedes the
//! next. A leader that dies between two steps may have answered or not. So a leader that dies
//! before and after every step has died everywhere. Every batch and every message is a step by
//! itself, without a list of places.

use super::ground::Ground;
use super::{Shared, lock};
use bytes::Bytes;
use pluvio_coordinator::{Change, Condition, Limits, MetadataStore, Outcome, StoreError};
use pluvio_env::{Address, BoxFuture, CallError, Env, Frame, Network};
use pluvio_sim::{Intercepted, Interceptor, ProcessEnv, ProcessId, SimHandle};
use pluvio_wire::Opcode;
use std::collections::VecDeque;
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

/// A planned death.
struct Death {
    /// Who dies; `None`: whoever comes to this step first.
    victim: Option<ProcessId>,
    at: u64,
    side: Side,
}

#[derive(Default)]
struct Plan {
    /// The deaths still to come, the next one first.
    deaths: VecDeque<Death>,
    /// Steps that were begun by those who may die next, since the death before.
    begun: u64,
    died: Vec<String>,
}

/// Counts the steps of coordinators. Clones are the same.
#[derive(Clone, Default)]
pub struct Steps(Shared<Plan>);

impl Steps {
    /// Lets a coordinator die at its step with this number, counted from now on.
    pub fn arm(&self, victim: ProcessId, at: u64, side: Side) {
        let first = Death {
            victim: Some(victim),
            at,
            side,
        };
        *lock(&self.0) = Plan {
            deaths: VecDeque::from([first]),
            ..Plan::default()
        };
    }

    /// Lets one more die, whoever it is, at the step with this number after the death before.
    pub fn arm_heir(&self, at: u64, side: Side) {
        let victim = None;
        lock(&self.0).deaths.push_back(Death { victim, at, side });
    }

    /// How many have died.
    pub fn deaths(&self) -> usize {
        lock(&self.0).died.len()
    }

    /// The end of the last death of the plan, or of the first one that did not happen.
    pub fn fate(&self) -> Fate {
        let plan = lock(&self.0);
        match plan.deaths.front() {
            None => Fate::Died(plan.died.join(", then ")),
            Some(next) if plan.begun > next.at => Fate::Abandoned,
            Some(_) => Fate::NotReached,
        }
    }

    /// Whether the step that begins is the one of the plan; gives the side then.
    fn begin(&self, process: ProcessId) -> Option<Side> {
        let mut plan = lock(&self.0);
        let number = plan.begun;
        let next = plan.deaths.front()?;
        if next.victim.is_some_and(|victim| victim != process) {
            return None;
        }
        let side = (number == next.at).then_some(next.side);
        plan.begun += 1;
        side
    }

    fn dies(&self, what: &str) {
        let mut plan = lock(&self.0);
        plan.deaths.pop_front();
        plan.begun = 0;
        plan.died.push(what.to_owned());
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
        self.steps.dies(what);
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
        env.network = Intercepted::new(env.network.clone(), walker.clone());
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

impl Interceptor for Walker {
    fn call<'a>(
        &'a self,
        network: &'a dyn Network,
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
            return network.call(to, request, limit);
        }
        let what = format!("{} to {to}", opcode.name());
        Box::pin(async move { self.step(what, network.call(to, request, limit)).await })
    }
}
