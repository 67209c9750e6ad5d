//! The stores of this crate keep the promises of all stores.

use super::*;
use pluvio_env::{Env, Tasks};
use pluvio_sim::{Sim, SimOptions};
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);

fn in_simulation(test: impl FnOnce(Env) -> BoxFuture<'static, ()>) {
    let sim = Sim::new(1, SimOptions::default());
    let process = sim.process("store");
    sim.block_on(process.id, test(process.env), LIMIT).unwrap();
}

#[test]
fn memory_store_behaves_as_a_map() {
    in_simulation(|_| Box::pin(async { conformance::check(&MemoryStore::new()).await }));
}

#[test]
fn redb_store_behaves_as_a_map_and_keeps_what_it_was_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metadata");
    in_simulation(|env| {
        Box::pin(async move {
            let open = |tasks: &Arc<dyn Tasks>| RedbStore::open(path.clone(), tasks.clone());
            let store = open(&env.tasks).unwrap();
            let in_use = open(&env.tasks).err().unwrap();
            assert!(in_use.to_string().contains("in use"), "{in_use}");
            conformance::check(&store).await;
            drop(store);
            let store = open(&env.tasks).unwrap();
            conformance::check_kept(&store).await;
        })
    });
}

#[test]
fn redb_refuses_a_file_that_is_something_else() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metadata");
    std::fs::write(
        &path,
        b"these are not the bytes you are looking for".repeat(100),
    )
    .unwrap();
    in_simulation(|env| {
        Box::pin(async move {
            let error = RedbStore::open(path, env.tasks).err().unwrap();
            let error = error.to_string();
            assert!(
                error.contains("metadata") && error.contains("restore"),
                "{error}"
            );
        })
    });
}
