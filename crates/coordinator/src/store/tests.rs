//! Both stores behave alike.

use super::*;
use pluvio_env::{Env, Tasks};
use pluvio_sim::{Sim, SimOptions};
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);

fn put(key: &str, value: &'static str) -> Change {
    Change::Put {
        key: key.into(),
        value: Bytes::from_static(value.as_bytes()),
    }
}

fn keys(found: &[(String, Bytes)]) -> Vec<&str> {
    found.iter().map(|(key, _)| key.as_str()).collect()
}

async fn behaves_as_a_map(store: Arc<dyn MetadataStore>) {
    assert_eq!(store.get("a").await, Ok(None));
    assert_eq!(store.list_prefix("").await, Ok(Vec::new()));
    let batch = vec![put("t/2", "two"), put("t/1", "one"), put("u", "other")];
    store.apply(batch).await.unwrap();
    assert_eq!(
        keys(&store.list_prefix("t/").await.unwrap()),
        ["t/1", "t/2"]
    );
    assert_eq!(store.get("t/2").await.unwrap().unwrap(), "two");
    assert_eq!(store.get("t/").await, Ok(None));
    let delete = Change::Delete { key: "t/1".into() };
    store
        .apply(vec![delete.clone(), put("t/2", "new"), delete])
        .await
        .unwrap();
    assert_eq!(store.get("t/1").await, Ok(None));
    store
        .put("t/2", Bytes::from_static(b"newer"))
        .await
        .unwrap();
    assert_eq!(store.get("t/2").await.unwrap().unwrap(), "newer");
    store.delete("u").await.unwrap();
    assert_eq!(keys(&store.list_prefix("").await.unwrap()), ["t/2"]);
}

fn in_simulation(test: impl FnOnce(Env) -> BoxFuture<'static, ()>) {
    let sim = Sim::new(1, SimOptions::default());
    let process = sim.process("store");
    sim.block_on(process.id, test(process.env), LIMIT).unwrap();
}

#[test]
fn memory_store_behaves_as_a_map() {
    in_simulation(|_| Box::pin(behaves_as_a_map(Arc::new(MemoryStore::new()))));
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
            let store: Arc<dyn MetadataStore> = Arc::new(store);
            behaves_as_a_map(store.clone()).await;
            drop(store);
            let store = open(&env.tasks).unwrap();
            assert_eq!(store.get("t/2").await.unwrap().unwrap(), "newer");
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
            assert!(error.to_string().contains("metadata"), "{error}");
        })
    });
}
