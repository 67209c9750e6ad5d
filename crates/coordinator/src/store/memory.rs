//! A store in memory that outlives simulated crashes, for tests and the simulator.

use super::{Change, Condition, Limits, MetadataStore, Outcome, StoreError};
use bytes::Bytes;
use pluvio_env::BoxFuture;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A map in memory. Clones are the same store. Keep one outside of the simulated process and give
/// it to the next incarnation. If it is [shared](MemoryStore::shared), give it to several at a
/// time. Batches are "durable" at once.
#[derive(Clone)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
    exclusive: bool,
    limits: Limits,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self {
            state: Arc::default(),
            exclusive: true,
            limits: Limits::NONE,
        }
    }
}

#[derive(Default)]
struct State {
    map: BTreeMap<String, Bytes>,
    batches: u64,
    stop: Option<Stop>,
    failures: u32,
}

/// Where the store stops answering, so that a test can crash the coordinator exactly there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The batch with this number (from 0) and all later ones are neither applied nor answered.
    Before(u64),
    /// The batch with this number is applied, but neither it nor any later one is answered.
    After(u64),
}

impl MemoryStore {
    /// An empty store of one process at a time.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty store that several processes use at a time, as etcd and ZooKeeper are used.
    #[must_use]
    pub fn shared() -> Self {
        Self {
            exclusive: false,
            ..Self::default()
        }
    }

    /// The same store, with limits.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of the state is one step, so a panic elsewhere leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many batches were applied.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.state().batches
    }

    /// Sets or clears the place where the store stops answering.
    pub fn set_stop(&self, stop: Option<Stop>) {
        self.state().stop = stop;
    }

    /// Whether the place of [`MemoryStore::set_stop`] was reached.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        let state = self.state();
        match state.stop {
            // Reached, not passed: nothing is applied any more.
            Some(Stop::Before(at)) => state.batches >= at,
            Some(Stop::After(at)) => state.batches > at,
            None => false,
        }
    }

    /// Lets the next `count` batches fail without being applied.
    pub fn fail_next(&self, count: u32) {
        self.state().failures = count;
    }

    /// Everything in the store.
    #[must_use]
    pub fn dump(&self) -> BTreeMap<String, Bytes> {
        self.state().map.clone()
    }

    /// Removes everything, as an operator's mistake would.
    pub fn wipe(&self) {
        self.state().map.clear();
    }

    /// Replaces everything, as an operator's mistake would.
    pub fn replace(&self, entries: BTreeMap<String, Bytes>) {
        self.state().map = entries;
    }

    /// Applies a batch; `None` when it is never answered.
    fn apply_now(
        &self,
        condition: &Condition,
        batch: Vec<Change>,
    ) -> Option<Result<Outcome, StoreError>> {
        assert!(
            batch.len() <= self.limits.changes
                && batch.iter().map(Change::size).sum::<usize>() <= self.limits.bytes,
            "a batch over the limits: {} changes",
            batch.len()
        );
        let mut state = self.state();
        if state.failures > 0 {
            state.failures -= 1;
            return Some(Err(StoreError("a failure was asked for".into())));
        }
        let number = state.batches;
        let (silent, lost) = match state.stop {
            Some(Stop::Before(at)) => (number >= at, number >= at),
            Some(Stop::After(at)) => (number >= at, number > at),
            None => (false, false),
        };
        let holds = state.map.get(&condition.key) == condition.value.as_ref();
        if !lost && !holds {
            return Some(Ok(Outcome::Refused));
        }
        if !lost {
            state.batches += 1;
            for change in batch {
                match change {
                    Change::Put { key, value } => drop(state.map.insert(key, value)),
                    Change::Delete { key } => drop(state.map.remove(&key)),
                }
            }
        }
        (!silent).then_some(Ok(Outcome::Applied))
    }
}

impl MetadataStore for MemoryStore {
    fn get(&self, key: &str) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        let value = self.state().map.get(key).cloned();
        Box::pin(async move { Ok(value) })
    }

    fn list_prefix(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<(String, Bytes)>, StoreError>> {
        let found: Vec<_> = self
            .state()
            .map
            .range(prefix.to_owned()..)
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        Box::pin(async move { Ok(found) })
    }

    fn apply_if(
        &self,
        condition: Condition,
        batch: Vec<Change>,
    ) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        Box::pin(async move {
            match self.apply_now(&condition, batch) {
                Some(result) => result,
                None => core::future::pending().await,
            }
        })
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn is_exclusive(&self) -> bool {
        self.exclusive
    }
}
