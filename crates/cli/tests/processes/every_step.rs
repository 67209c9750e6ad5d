//! The leader dies at every step of every operation, on real servers of etcd and ZooKeeper.
//!
//! Coordinators, servers and the network between them are simulated, as in
//! `crates/coordinator/tests`, whose suite this is; the metadata is stored for real. Virtual time
//! stands still while the store works, so a step is the same step in every run.

// The cluster of the coordinator's own tests, with its scripted servers.
#[path = "../../../coordinator/tests/coordinator/common/mod.rs"]
mod common;

use crate::support::cluster::Turn;
use crate::support::metadata::{Kind, MetadataServer};
use crate::support::native::runtime;
use bytes::Bytes;
use common::every_step::the_leader_dies_at_every_step;
use common::ground::Ground;
use pluvio_coordinator::{Change, Condition, Limits, MetadataStore, Outcome, StoreError};
use pluvio_env::{BoxFuture, Env};
use pluvio_env_os::OsRuntime;
use pluvio_metadata::Place;
use pluvio_sim::{ProcessEnv, SimHandle};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A store outside of the simulation, waited for.
#[derive(Clone)]
struct Outside {
    runtime: Arc<OsRuntime>,
    store: Arc<dyn MetadataStore>,
}

impl Outside {
    fn wait<T: Send + 'static>(&self, asked: impl Future<Output = T> + Send + 'static) -> T {
        self.runtime.block_on(asked)
    }
}

impl MetadataStore for Outside {
    fn get(&self, key: &str) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        let (store, key) = (self.store.clone(), key.to_owned());
        Box::pin(async move { self.wait(async move { store.get(&key).await }) })
    }

    fn list_prefix(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<(String, Bytes)>, StoreError>> {
        let (store, prefix) = (self.store.clone(), prefix.to_owned());
        Box::pin(async move { self.wait(async move { store.list_prefix(&prefix).await }) })
    }

    fn apply_if(
        &self,
        condition: Condition,
        batch: Vec<Change>,
    ) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        let store = self.store.clone();
        Box::pin(async move { self.wait(async move { store.apply_if(condition, batch).await }) })
    }

    fn limits(&self) -> Limits {
        self.store.limits()
    }

    fn is_exclusive(&self) -> bool {
        self.store.is_exclusive()
    }
}

impl Ground for Outside {
    fn open(&self, _: &SimHandle, process: &ProcessEnv) -> (Env, Arc<dyn MetadataStore>) {
        (process.env.clone(), self.look())
    }

    fn look(&self) -> Arc<dyn MetadataStore> {
        Arc::new(self.clone())
    }
}

/// Each death has a path of its own on one server.
fn on(kind: Kind) {
    let _turn = Turn::take();
    let server = MetadataServer::start(kind);
    let (runtime, env) = runtime();
    let runtime = Arc::new(runtime);
    let paths = AtomicU32::new(0);
    let deaths = the_leader_dies_at_every_step(&|| {
        let number = paths.fetch_add(1, Ordering::Relaxed);
        let place = server.place(&format!("/steps/{number}"));
        let place: Place = place.parse().unwrap();
        let store = place.open(&env, None).unwrap();
        let runtime = runtime.clone();
        Arc::new(Outside { runtime, store })
    });
    println!("{kind:?}: {deaths} deaths");
}

mod needs_etcd {
    use super::*;

    #[test]
    fn another_leader_goes_on_in_etcd_wherever_the_first_one_died() {
        on(Kind::Etcd);
    }
}

mod needs_zookeeper {
    use super::*;

    #[test]
    fn another_leader_goes_on_in_zookeeper_wherever_the_first_one_died() {
        on(Kind::ZooKeeper);
    }
}
