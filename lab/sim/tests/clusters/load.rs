//! Clients at work, and whether what they were told is true in the end.
use crate::struck::{Cluster, Message};
use bytes::Bytes;
use core::time::Duration;
use pluvio_client::{Client, Number, Table};
use pluvio_units::ServerId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What clients were told, which is what must be there in the end.
#[derive(Default)]
pub struct Told {
    pub counters: Mutex<BTreeMap<String, i64>>,
    pub objects: Mutex<BTreeMap<String, Bytes>>,
    pub stop: AtomicBool,
    pub working: AtomicUsize,
    pub operations: AtomicUsize,
}

/// Objects that are there before anything moves.
const KEPT: usize = 300;
const CLIENTS: usize = 3;

/// Adds to numbers that all clients share, and writes and deletes objects of its own.
async fn work(client: Client, number: usize, env: pluvio_env::Env, told: Arc<Told>) {
    let table = client.table("t").await.unwrap();
    for round in 0_u64.. {
        if told.stop.load(Ordering::Relaxed) {
            break;
        }
        let counter = format!("counter {}", round % 7);
        let added = client.increment(&table, counter.as_bytes(), Number::Integer(1));
        added.await.unwrap();
        *told.counters.lock().unwrap().entry(counter).or_default() += 1;
        let key = format!("object {number} {}", round % 11);
        if round % 3 == 2 {
            client.delete(&table, key.as_bytes()).await.unwrap();
            told.objects.lock().unwrap().remove(&key);
        } else {
            let value = Bytes::from(format!("{round} of client {number}"));
            let written = client.write(&table, key.as_bytes(), value.clone());
            written.await.unwrap();
            told.objects.lock().unwrap().insert(key, value);
        }
        told.operations.fetch_add(2, Ordering::Relaxed);
        env.clock
            .sleep(Duration::from_micros(env.rng.below(2000)))
            .await;
    }
    told.working.fetch_sub(1, Ordering::Relaxed);
}

pub struct Loaded<M> {
    pub cluster: Cluster<M>,
    pub client: Client,
    pub table: Table,
    pub told: Arc<Told>,
}

/// A cluster with a table of one tablet, and clients at work on it.
pub fn loaded<M: Message>(seed: u64, servers: usize) -> Loaded<M> {
    loaded_in(Cluster::new(seed, servers))
}

/// The same in a cluster that is there.
pub fn loaded_in<M: Message>(mut cluster: Cluster<M>) -> Loaded<M> {
    let client = cluster.new_client(&cluster.client);
    let table = cluster.table(&client);
    let told = Arc::new(Told::default());
    let (own, all, what) = (client.clone(), table.clone(), Arc::clone(&told));
    cluster.block_on(async move {
        for number in 0..KEPT {
            let key = format!("kept {number}");
            let value = Bytes::from(vec![number as u8; 1000]);
            let written = own.write(&all, key.as_bytes(), value.clone());
            written.await.unwrap();
            what.objects.lock().unwrap().insert(key, value);
        }
    });
    for number in 0..CLIENTS {
        let process = cluster.sim.process(&format!("worker-{number}"));
        let own = cluster.new_client(&process);
        told.working.fetch_add(1, Ordering::Relaxed);
        let work = work(own, number, process.env.clone(), Arc::clone(&told));
        cluster.sim.spawn(process.id, "work", work);
    }
    Loaded {
        cluster,
        client,
        table,
        told,
    }
}

impl<M: Message> Loaded<M> {
    pub fn owner(&mut self) -> ServerId {
        self.cluster.owner(&self.client, &self.table)
    }

    /// Some server that does not have the tablet.
    pub fn another(&mut self) -> ServerId {
        let owner = self.owner();
        let ids = self.cluster.server_ids();
        ids.into_iter().find(|id| *id != owner).unwrap()
    }

    pub fn migrate(&mut self, to: ServerId) -> bool {
        self.cluster.migrate(&self.client, &self.table, to)
    }

    /// Ends the load, and looks whether everything that clients were told is true, and nothing else
    /// is there.
    pub fn check(mut self, what: &str) {
        self.told.stop.store(true, Ordering::Relaxed);
        while self.told.working.load(Ordering::Relaxed) > 0 {
            self.cluster.tend();
        }
        self.cluster.until_healthy(&self.client);
        let (client, table) = (self.client.clone(), self.table.clone());
        let found = self.cluster.block_on(async move {
            let mut found = BTreeMap::new();
            let mut enumeration = client.enumerate(&table).batch_items(20);
            while let Some(batch) = enumeration.next_batch().await.unwrap() {
                for object in batch {
                    let key = String::from_utf8(object.key).unwrap();
                    let read = client.read(&table, key.as_bytes()).await.unwrap();
                    assert_eq!(read.unwrap().value, object.value);
                    let twice = found.insert(key, object.value);
                    assert_eq!(twice, None);
                }
            }
            let count = client.count(&table).await.unwrap();
            assert_eq!(count.objects, found.len() as u64);
            found
        });
        let mut expected = self.told.objects.lock().unwrap().clone();
        for (counter, sum) in &*self.told.counters.lock().unwrap() {
            expected.insert(counter.clone(), Bytes::from(sum.to_string()));
        }
        let keys = |of: &BTreeMap<String, Bytes>| of.keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(keys(&found), keys(&expected), "{what}");
        assert_eq!(found, expected, "{what}");
    }
}
