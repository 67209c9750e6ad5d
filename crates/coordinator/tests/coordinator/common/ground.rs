//! What simulated coordinators stand on: their metadata store, and the environment that they run
//! in.

use bytes::Bytes;
use futures_util::FutureExt as _;
use pluvio_coordinator::{FileDoor, MemoryStore, MetadataStore, RedbStore};
use pluvio_env::{BoxFuture, Env, Pace, TaskHandle, Tasks};
use pluvio_sim::{ProcessEnv, SimHandle};
use pluvio_units::CoreId;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// A metadata store for simulated coordinators. Every request is answered at once. Virtual time
/// stands still meanwhile, so a simulation on a real store is as deterministic as any other.
pub trait Ground: Send + Sync {
    /// What one incarnation of a coordinator gets.
    fn open(&self, sim: &SimHandle, process: &ProcessEnv) -> (Env, Arc<dyn MetadataStore>);

    /// A store of the same entries, for those who look from outside.
    fn look(&self) -> Arc<dyn MetadataStore>;

    /// Everything in the store.
    fn dump(&self) -> BTreeMap<String, Bytes> {
        let store = self.look();
        let listed = store.list_prefix("").now_or_never();
        let listed = listed.expect("answered at once");
        listed.expect("a healthy store").into_iter().collect()
    }
}

impl Ground for MemoryStore {
    fn open(&self, _: &SimHandle, process: &ProcessEnv) -> (Env, Arc<dyn MetadataStore>) {
        (process.env.clone(), self.look())
    }

    fn look(&self) -> Arc<dyn MetadataStore> {
        Arc::new(self.clone())
    }
}

/// The embedded store in a file. A file has one user, so all incarnations share what has it open.
pub struct InFile(Arc<RedbStore>);

impl InFile {
    pub fn new(path: PathBuf) -> Self {
        let store = RedbStore::open(
            path,
            Arc::new(AtOnce),
            FileDoor {
                settle: |_| Ok(()),
                identity: |_| Err(std::io::ErrorKind::Unsupported.into()),
            },
        );
        Self(Arc::new(store.expect("a new file")))
    }
}

impl Ground for InFile {
    fn open(&self, _: &SimHandle, process: &ProcessEnv) -> (Env, Arc<dyn MetadataStore>) {
        (process.env.clone(), self.look())
    }

    fn look(&self) -> Arc<dyn MetadataStore> {
        self.0.clone()
    }
}

/// Runs blocking work where it is asked for, and nothing else.
struct AtOnce;

impl Tasks for AtOnce {
    fn cores(&self) -> u16 {
        1
    }

    fn spawn_on(&self, _: CoreId, name: &'static str, _: BoxFuture<'static, ()>) -> TaskHandle {
        panic!("a store starts no tasks: {name}")
    }

    fn background(&self, name: &'static str, _: Box<dyn FnMut() -> Pace + Send>) -> TaskHandle {
        panic!("a store has no background: {name}")
    }

    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        work();
        Box::pin(core::future::ready(()))
    }
}
