//! A client that does not reach the coordinator, while servers reach it and each other and the
//! client reaches them. Results of operations have no leases that somebody would have to renew for
//! it: a retry after the cut is still answered, not repeated.

use crate::lost_answers::{self, Armed, table};
use crate::support::{self, LIMIT};
use bytes::Bytes;
use core::time::Duration;
use pluvio_client::{Client, Number, Table};
use pluvio_sim::{ProcessEnv, ProcessId, Sim, SimOptions};
use pluvio_units::ServerId;
use std::sync::{Arc, Mutex};

/// How long the client does not reach the coordinator: much longer than a recovery takes, and
/// shorter than the client tries.
const CUT: Duration = Duration::from_secs(30);
/// Keys that are written before, so many that each server has some.
const KEYS: usize = 50;

type Shared<T> = Arc<Mutex<T>>;

struct Scene {
    sim: Sim,
    coordinator: ProcessId,
    worker: ProcessEnv,
    /// Of the worker; its answers are lost once `armed` says so.
    client: Client,
    observer: ProcessEnv,
    armed: Armed,
}

impl Scene {
    fn new(seed: u64) -> Self {
        let sim = Sim::new(seed, SimOptions::default());
        let coordinator = lost_answers::start(&sim);
        let (worker, observer) = (sim.process("worker"), sim.process("observer"));
        let (client, armed) = lost_answers::client(&sim, &worker);
        Self {
            client,
            coordinator,
            sim,
            worker,
            observer,
            armed,
        }
    }

    fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        self.sim.block_on(self.worker.id, work, LIMIT).unwrap()
    }

    /// Whether the worker and the coordinator hear of each other.
    fn cut(&self, cut: bool) {
        for (from, to) in [
            (self.worker.id, self.coordinator),
            (self.coordinator, self.worker.id),
        ] {
            match cut {
                true => self.sim.cut(from, to),
                false => self.sim.heal(from, to),
            }
        }
    }

    /// A table with a tablet on each server and a number in it; its keys, and who owns which.
    fn fill(&self) -> (Table, Vec<(String, ServerId)>) {
        let client = self.client.clone();
        self.run(async move {
            let table = table(&client).await;
            let added = client.increment(&table, b"n", Number::Integer(5)).await;
            assert_eq!(added.unwrap().value, Number::Integer(5));
            let info = client.table_info(&table).await.unwrap();
            let owner = |key: &str| {
                let hash = table.hash(key.as_bytes());
                let tablet = info.tablets.iter().find(|t| t.range.contains(hash));
                tablet.unwrap().owner
            };
            let mut keys = vec![("n".to_owned(), owner("n"))];
            for number in 0..KEYS {
                let key = format!("key {number}");
                let written = client.write(&table, key.as_bytes(), Bytes::from("x"));
                written.await.unwrap();
                keys.push((key.clone(), owner(&key)));
            }
            (table, keys)
        })
    }

    /// Recoveries that have ended, asked by somebody who reaches everybody.
    fn recovered(&self) -> usize {
        let client = support::client(&self.observer.env, self.observer.env.network.clone());
        let status = async move { client.cluster_status().await.unwrap() };
        let status = self.sim.block_on(self.observer.id, status, LIMIT).unwrap();
        status.recoveries.iter().filter(|r| r.done).count()
    }
}

// shows: EO-1
#[test]
fn a_client_cut_off_from_the_coordinator_has_its_retry_answered_after_the_owner_crashed() {
    for seed in 0..3 {
        let scene = Scene::new(seed);
        let (table, keys) = scene.fill();
        let victim = keys[0].1;
        scene.cut(true);
        *scene.armed.lock().unwrap() = 1;

        let added = Shared::<Option<Number>>::default();
        let (client, all, told) = (scene.client.clone(), table.clone(), Arc::clone(&added));
        scene.sim.spawn(scene.worker.id, "increment", async move {
            let done = client.increment(&all, b"n", Number::Integer(7)).await;
            *told.lock().unwrap() = Some(done.unwrap().value);
        });
        scene.sim.run_for(CUT);
        assert_eq!(*scene.armed.lock().unwrap(), 0, "the owner was not struck");
        assert_eq!(scene.recovered(), 1);
        // Only the coordinator could say who has the number now.
        assert_eq!(*added.lock().unwrap(), None);

        // What others own is there all the time.
        let (client, all) = (scene.client.clone(), table.clone());
        let others: Vec<_> = keys.into_iter().filter(|(_, of)| *of != victim).collect();
        assert!(!others.is_empty());
        scene.run(async move {
            for (key, _) in others {
                let found = client.read(&all, key.as_bytes()).await.unwrap();
                assert_eq!(found.unwrap().value, "x");
                let written = client.write(&all, key.as_bytes(), Bytes::from("y"));
                written.await.unwrap();
            }
        });

        scene.cut(false);
        let answered = || added.lock().unwrap().is_some();
        scene.sim.run_until(answered, LIMIT).unwrap();
        assert_eq!(*added.lock().unwrap(), Some(Number::Integer(12)));
        let client = scene.client.clone();
        let number = scene.run(async move { client.read(&table, b"n").await });
        assert_eq!(number.unwrap().unwrap().value, "12");
    }
}
