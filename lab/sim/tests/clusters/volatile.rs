//! A volatile table beside one with replicas: its writes need no backup, and its tablets move with
//! their objects. They begin anew, empty, when their server dies. The other table loses nothing.

use crate::support::{LIMIT, client, run_coordinator, run_server};
use bytes::Bytes;
use core::time::Duration;
use pluvio_client::{
    Addend, Change, Client, ClientError, DurabilityWish, Get, Mutation, Operation, Table,
    TableOptions, TransactionStep, WhichTablet,
};
use pluvio_coordinator::{CoordinatorOptions, MemoryStore};
use pluvio_sim::{ProcessEnv, ProcessId, Sim, SimOptions};
use pluvio_units::{KeyHash, Marks, ServerId, Size};
use pluvio_wire::FatalKind;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const KEYS: usize = 40;
/// Longer than a death is noticed, and its tablets are served again.
const PATIENCE: Duration = Duration::from_secs(30);
const COUNTER: &[u8] = b"counter";

/// The values that were written to the volatile table, by key and version.
type Written = BTreeMap<(usize, u64), u64>;

struct Cluster {
    sim: Sim,
    servers: Vec<ProcessId>,
    /// The newest id of each server.
    ids: Arc<Mutex<Vec<Option<ServerId>>>>,
    process: ProcessEnv,
    client: Client,
    cache: Table,
    ledger: Table,
    written: Written,
    /// The newest value.
    values: u64,
    counted: i64,
}

fn key(n: usize) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

fn add<'m>(table: &'m Table, key: &'m [u8]) -> (&'m Table, TransactionStep<'m>) {
    let mutation = Mutation::new(table.id(), key, Change::Add(Addend::Integer(1)));
    (table, TransactionStep::new(Operation::Mutate(mutation)))
}

fn read<'m>(table: &'m Table, key: &'m [u8]) -> (&'m Table, TransactionStep<'m>) {
    let get = Get::new(table.id(), key);
    (table, TransactionStep::new(Operation::Get(get)))
}

fn run(sim: &Sim, ids: &Arc<Mutex<Vec<Option<ServerId>>>>, n: usize, process: ProcessEnv) {
    let ids = Arc::clone(ids);
    let told = move |id| ids.lock().unwrap()[n] = Some(id);
    let work = run_server(process.env, format!("server-{n}"), Size::mib(48), told);
    sim.spawn(process.id, "server", work);
}

fn until_started(sim: &Sim, ids: &Arc<Mutex<Vec<Option<ServerId>>>>) {
    let ids = Arc::clone(ids);
    let all = move || ids.lock().unwrap().iter().all(Option::is_some);
    sim.run_until(all, LIMIT).unwrap();
}

impl Cluster {
    fn new(seed: u64, servers: usize) -> Self {
        let sim = Sim::new(seed, SimOptions::default());
        let coordinator = sim.process("coordinator");
        let mut options = CoordinatorOptions::default();
        options.settings.replicas = Some(2);
        let work = run_coordinator(coordinator.env, MemoryStore::new(), options);
        sim.spawn(coordinator.id, "coordinator", work);
        let ids = Arc::new(Mutex::new(vec![None; servers]));
        let processes: Vec<_> = (0..servers)
            .map(|n| {
                let process = sim.process(&format!("server-{n}"));
                let id = process.id;
                run(&sim, &ids, n, process);
                id
            })
            .collect();
        until_started(&sim, &ids);
        let process = sim.process("client");
        let client = client(&process.env, process.env.network.clone());
        let tables = {
            let client = client.clone();
            async move {
                let volatile = TableOptions {
                    durability: DurabilityWish {
                        replicas: Some(0),
                        synced: None,
                    },
                    ..TableOptions::default()
                };
                let cache = client.create_table_with("cache", None, volatile).await?;
                let ledger = client.create_table("ledger", None).await?;
                Ok::<_, ClientError>((cache, ledger))
            }
        };
        let (cache, ledger) = sim.block_on(process.id, tables, LIMIT).unwrap().unwrap();
        Self {
            sim,
            servers: processes,
            ids,
            process,
            client,
            cache,
            ledger,
            written: Written::new(),
            values: 0,
            counted: 0,
        }
    }

    fn block_on<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ClientError>> + Send + 'static,
    ) -> Result<T, ClientError> {
        self.sim.block_on(self.process.id, work, PATIENCE).unwrap()
    }

    fn id(&self, n: usize) -> ServerId {
        self.ids.lock().unwrap()[n].unwrap()
    }

    fn kill(&self, dying: &[usize]) {
        for n in dying {
            self.sim.crash(self.servers[*n]);
            self.ids.lock().unwrap()[*n] = None;
        }
    }

    fn restart(&self, dead: &[usize]) {
        for n in dead {
            let process = self.sim.restart(self.servers[*n]);
            run(&self.sim, &self.ids, *n, process);
        }
        until_started(&self.sim, &self.ids);
    }

    /// Writes every key of the volatile table, and counts in the other one.
    fn write_all(&mut self) {
        for n in 0..KEYS {
            self.values += 1;
            let (client, cache) = (self.client.clone(), self.cache.clone());
            let value = Bytes::from(self.values.to_string());
            let write = async move { client.write(&cache, &key(n), value).await };
            let version = self.block_on(write).unwrap().version;
            let before = self.written.insert((n, version.0), self.values);
            assert_eq!(before, None, "key {n} had version {version} before");
        }
        let (client, ledger) = (self.client.clone(), self.ledger.clone());
        let count = async move { client.transact(&[add(&ledger, COUNTER)]).await };
        self.block_on(count).unwrap();
        self.counted += 1;
    }

    /// How many keys the volatile table has: each as it was written last, or not at all. The other
    /// table has everything.
    fn count(&self) -> usize {
        let (client, cache) = (self.client.clone(), self.cache.clone());
        let read = async move {
            let mut found = Vec::new();
            for n in 0..KEYS {
                found.push(client.read(&cache, &key(n)).await?);
            }
            Ok(found)
        };
        let found = self.block_on(read).unwrap();
        let mut there = 0;
        for (n, object) in found.into_iter().enumerate() {
            let Some(object) = object else { continue };
            let newest = self.written.range((n, 0)..(n + 1, 0)).next_back();
            let ((_, version), value) = newest.unwrap();
            assert_eq!(object.version.0, *version, "key {n}");
            assert_eq!(object.value, value.to_string(), "key {n}");
            there += 1;
        }
        let (client, ledger) = (self.client.clone(), self.ledger.clone());
        let read = async move { client.read(&ledger, COUNTER).await };
        let counter = self.block_on(read).unwrap().unwrap();
        assert_eq!(counter.value, self.counted.to_string());
        there
    }

    /// Every tablet of the volatile table moves to a server.
    fn move_all(&self, to: usize) {
        let (client, cache, to) = (self.client.clone(), self.cache.clone(), self.id(to));
        let clock = self.process.env.clock.clone();
        let moves = async move {
            let info = client.table_info(&cache).await?;
            for tablet in info.tablets {
                let which = WhichTablet::Range(tablet.range);
                client.start_migration(&cache, which, to).await?;
            }
            loop {
                let info = client.table_info(&cache).await?;
                if info.tablets.iter().all(|t| t.owner == to) {
                    return Ok(());
                }
                clock.sleep(Duration::from_millis(20)).await;
            }
        };
        self.block_on(moves).unwrap();
    }
}

// shows: COORD-23, REP-20
#[test]
fn a_volatile_table_begins_anew_where_its_server_died_and_others_lose_nothing() {
    let _marks = Marks::to_reach(&["volatile-tablets-begin-anew"]);
    for (seed, dying) in [(0, 1), (1, 2), (2, 1), (3, 2)] {
        let mut cluster = Cluster::new(seed, 4);
        cluster.write_all();
        assert_eq!(cluster.count(), KEYS);
        let dead: Vec<usize> = (0..dying).collect();
        cluster.kill(&dead);
        let left = cluster.count();
        assert!((1..KEYS).contains(&left), "seed {seed}: {left}");
        cluster.write_all();
        assert_eq!(cluster.count(), KEYS);
        cluster.restart(&dead);
        // All of them, at once: a cold start.
        cluster.kill(&[0, 1, 2, 3]);
        cluster.restart(&[0, 1, 2, 3]);
        assert_eq!(cluster.count(), 0, "seed {seed}");
        cluster.write_all();
        assert_eq!(cluster.count(), KEYS);
    }
}

// shows: COORD-23, MIG-7
#[test]
fn a_volatile_table_moves_whole_and_may_begin_anew_where_it_came_from() {
    for seed in 10..13 {
        let mut cluster = Cluster::new(seed, 3);
        for round in 0..2 {
            cluster.write_all();
            for to in [0, 2, 1] {
                cluster.move_all(to);
                assert_eq!(cluster.count(), KEYS, "seed {seed}, round {round}");
            }
            cluster.kill(&[1]);
            assert_eq!(cluster.count(), 0, "seed {seed}, round {round}");
            cluster.write_all();
            assert_eq!(cluster.count(), KEYS);
            cluster.restart(&[1]);
        }
    }
}

// shows: MASTER-9
#[test]
fn a_transaction_changes_volatile_tables_or_others_and_not_both() {
    for servers in [1, 3] {
        let mut cluster = Cluster::new(20, servers);
        cluster.write_all();
        let (client, cache, ledger) = (
            cluster.client.clone(),
            cluster.cache.clone(),
            cluster.ledger.clone(),
        );
        let both = async move {
            let steps = [add(&ledger, COUNTER), add(&cache, b"hits")];
            let refused = client.transact(&steps).await.map(drop);
            // A transaction that only reads may read both, wherever they are.
            let keys: Vec<_> = (0..KEYS).map(key).collect();
            let both = keys.iter().flat_map(|key| [(&cache, key), (&ledger, key)]);
            let reads: Vec<_> = both.map(|(table, key)| read(table, key)).collect();
            client.transact(&reads).await?;
            let steps = [add(&cache, b"hits"), add(&cache, b"more")];
            client.transact(&steps).await.map(|_| refused)
        };
        let refused = cluster.block_on(both).unwrap().unwrap_err();
        assert_eq!(refused.fatal_kind(), Some(FatalKind::VolatileWithOthers));
        assert!(
            refused.to_string().contains("table cache is volatile"),
            "{refused}"
        );
        assert_eq!(cluster.count(), KEYS, "nothing was counted");
    }
}

/// The keys of the volatile table's tablets are spread, so that the test above means something.
#[test]
fn the_keys_are_spread_over_all_tablets() {
    let cluster = Cluster::new(30, 4);
    let tablets = cluster.cache.tablets();
    assert_eq!(tablets.len(), 4);
    let of = |hash: KeyHash| tablets.iter().position(|t| t.range.contains(hash));
    let used = (0..KEYS).filter_map(|n| of(cluster.cache.hash(&key(n))));
    assert_eq!(used.collect::<std::collections::BTreeSet<_>>().len(), 4);
}
