//! Tables of three durabilities in one cluster, whose servers die: as many at a time as each
//! survives, and all.

use crate::support::{LIMIT, client, run_coordinator, run_server};
use bytes::Bytes;
use core::time::Duration;
use pluvio_client::{
    Addend, Change, Client, DurabilityWish, Mutation, Operation, Table, TableOptions,
    TransactionStep,
};
use pluvio_coordinator::{CoordinatorOptions, MemoryStore};
use pluvio_env::Env;
use pluvio_sim::{ProcessEnv, ProcessId, Sim, SimOptions};
use pluvio_units::{Marks, Size};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Objects of each table.
const KEYS: usize = 24;
/// Longer than deaths are noticed, and the dead recovered.
const PATIENCE: Duration = Duration::from_secs(30);
/// One replica; as the cluster, two; three, on their devices.
const WEAK: usize = 0;
const PLAIN: usize = 1;
const STRONG: usize = 2;
const TABLES: [(&str, Option<(u32, bool)>); 3] = [
    ("weak", Some((1, false))),
    ("plain", None),
    ("strong", Some((3, true))),
];
/// Counted up in all tables together.
const TOGETHER: &[u8] = b"together";

/// Keys of each table that ordered batches write, one behind the other.
const IN_ORDER: usize = 4;

/// How far a counter has come: what was begun, and what was acknowledged.
#[derive(Clone, Copy, Default, Debug)]
struct Count {
    begun: u64,
    done: u64,
}

/// What clients were told.
#[derive(Default)]
struct Told {
    stop: AtomicBool,
    working: AtomicUsize,
    keys: [Mutex<Vec<Count>>; 3],
    together: Mutex<Count>,
    in_order: Mutex<Count>,
    /// It is not known what became of a batch: there are no more.
    order_ends: AtomicBool,
}

struct Cluster {
    sim: Sim,
    servers: Vec<ProcessId>,
    started: Arc<AtomicUsize>,
    client: ProcessEnv,
    told: Arc<Told>,
}

fn key(n: usize) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

fn number(value: &Bytes) -> u64 {
    std::str::from_utf8(value).unwrap().parse().unwrap()
}

impl Cluster {
    fn new(seed: u64, servers: usize, synced: bool) -> Self {
        let sim = Sim::new(seed, SimOptions::default());
        let coordinator = sim.process("coordinator");
        let mut options = CoordinatorOptions::default();
        options.settings.replicas = Some(2);
        options.settings.synced = Some(synced);
        let work = run_coordinator(coordinator.env, MemoryStore::new(), options);
        sim.spawn(coordinator.id, "coordinator", work);
        let mut cluster = Self {
            client: sim.process("client"),
            sim,
            servers: Vec::new(),
            started: Arc::default(),
            told: Arc::default(),
        };
        for n in 0..servers {
            let process = cluster.sim.process(&format!("server-{n}"));
            cluster.servers.push(process.id);
            cluster.run(n, process);
        }
        cluster.until_started(servers);
        cluster
    }

    fn run(&self, n: usize, process: ProcessEnv) {
        let started = Arc::clone(&self.started);
        let told = move |_| {
            started.fetch_add(1, Ordering::Relaxed);
        };
        let work = run_server(process.env, format!("server-{n}"), Size::mib(48), told);
        self.sim.spawn(process.id, "server", work);
    }

    fn until_started(&self, servers: usize) {
        let started = Arc::clone(&self.started);
        let all = move || started.load(Ordering::Relaxed) >= servers;
        self.sim.run_until(all, LIMIT).unwrap();
    }

    /// Starts those that were ended.
    fn restart(&self, ended: &[usize]) {
        let before = self.started.load(Ordering::Relaxed);
        for n in ended {
            let process = self.sim.restart(self.servers[*n]);
            self.run(*n, process);
        }
        self.until_started(before + ended.len());
    }

    fn client(&self) -> Client {
        client(&self.client.env, self.client.env.network.clone())
    }

    fn block_on<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
        limit: Duration,
    ) -> Option<T> {
        self.sim.block_on(self.client.id, work, limit).ok()
    }

    fn tables(&self, client: &Client) -> [Table; 3] {
        let client = client.clone();
        let made = async move {
            let mut all = Vec::new();
            for (name, durability) in TABLES {
                let options = TableOptions {
                    durability: durability.map_or_else(DurabilityWish::default, |(n, synced)| {
                        DurabilityWish {
                            replicas: Some(n),
                            synced: Some(synced),
                        }
                    }),
                    ..TableOptions::default()
                };
                let made = client.create_table_with(name, None, options).await;
                all.push(made.unwrap());
            }
            all.try_into().unwrap()
        };
        self.block_on(made, LIMIT).expect("they are made at once")
    }

    /// Lets clients write until they are stopped.
    fn work(&mut self, client: &Client, tables: &[Table; 3]) {
        let told = Arc::clone(&self.told);
        told.stop.store(false, Ordering::Relaxed);
        for (which, table) in tables.iter().enumerate() {
            told.keys[which]
                .lock()
                .unwrap()
                .resize(KEYS, Count::default());
            let work = count_up(client.clone(), self.client.env.clone(), table.clone());
            told.working.fetch_add(1, Ordering::Relaxed);
            let task = work(which, Arc::clone(&told));
            self.sim.spawn(self.client.id, "writer", task);
        }
        told.working.fetch_add(1, Ordering::Relaxed);
        let together = count_together(
            client.clone(),
            self.client.env.clone(),
            tables.clone(),
            Arc::clone(&told),
        );
        self.sim.spawn(self.client.id, "together", together);
        told.working.fetch_add(1, Ordering::Relaxed);
        let in_order = write_in_order(
            client.clone(),
            self.client.env.clone(),
            tables.clone(),
            Arc::clone(&told),
        );
        self.sim.spawn(self.client.id, "in order", in_order);
    }

    fn stop(&self) {
        self.told.stop.store(true, Ordering::Relaxed);
        let told = Arc::clone(&self.told);
        let is_over = move || told.working.load(Ordering::Relaxed) == 0;
        self.sim.run_until(is_over, LIMIT).unwrap();
    }

    /// Whether every object of a table is read within this time. None of them is older than what
    /// was acknowledged, if that is to be so.
    fn check(&self, client: &Client, tables: &[Table; 3], which: usize, limit: Duration) -> bool {
        let (client, table, told) = (client.clone(), tables[which].clone(), self.told.clone());
        let read = async move {
            for n in 0..KEYS {
                let found = client.read(&table, &key(n)).await.unwrap();
                let value = found.map_or(0, |found| number(&found.value));
                let count = told.keys[which].lock().unwrap()[n];
                let name = TABLES[which].0;
                assert!(
                    (count.done..=count.begun).contains(&value),
                    "{name}, key {n}: {value}, {count:?}"
                );
            }
        };
        self.block_on(read, limit).is_some()
    }

    /// All tables have counted together, or none.
    fn check_together(&self, client: &Client, tables: &[Table; 3]) {
        let (client, tables) = (client.clone(), tables.clone());
        let read = async move {
            let mut all = Vec::new();
            for table in &tables {
                let found = client.read(table, TOGETHER).await.unwrap();
                all.push(found.map_or(0, |found| number(&found.value)));
            }
            all
        };
        let all = self.block_on(read, LIMIT).expect("all are served");
        let count = *self.told.together.lock().unwrap();
        assert!(
            all.iter()
                .all(|n| *n == all[0] && (count.done..=count.begun).contains(n)),
            "{all:?}, {count:?}"
        );
    }

    /// No item of a batch is there without those before it.
    fn check_order(&self, client: &Client, tables: &[Table; 3]) {
        let (client, tables) = (client.clone(), tables.clone());
        let read = async move {
            let mut all = Vec::new();
            for (table, key) in in_order() {
                let found = client.read(&tables[table], &key).await.unwrap();
                all.push(found.map_or(0, |found| number(&found.value)));
            }
            all
        };
        let all = self.block_on(read, LIMIT).expect("all are served");
        let count = *self.told.in_order.lock().unwrap();
        let is_known = |n: &u64| (count.done..=count.begun).contains(n);
        assert!(
            all.is_sorted_by(|a, b| a >= b) && all.iter().all(is_known),
            "{all:?}, {count:?}"
        );
    }
}

/// The items of an ordered batch.
fn in_order() -> impl Iterator<Item = (usize, Vec<u8>)> {
    (0..3 * IN_ORDER).map(|n| {
        let key = format!("in order {}", n / 3);
        ([STRONG, PLAIN, WEAK][n % 3], key.into_bytes())
    })
}

async fn write_in_order(client: Client, env: Env, tables: [Table; 3], told: Arc<Told>) {
    while !told.stop.load(Ordering::Relaxed) && !told.order_ends.load(Ordering::Relaxed) {
        let next = {
            let mut count = told.in_order.lock().unwrap();
            count.begun += 1;
            count.begun
        };
        let (items, value): (Vec<_>, _) = (in_order().collect(), next.to_string());
        let mutations: Vec<(&Table, Mutation<'_>)> = items
            .iter()
            .map(|(table, key)| {
                let (table, change) = (&tables[*table], Change::Put(value.as_bytes().into()));
                (table, Mutation::new(table.id(), key, change))
            })
            .collect();
        match client.mutate_in_order(&mutations).await {
            Ok(_) => told.in_order.lock().unwrap().done = next,
            Err(_) => told.order_ends.store(true, Ordering::Relaxed),
        }
        let pause = Duration::from_micros(env.rng.below(10_000));
        env.clock.sleep(pause).await;
    }
    told.working.fetch_sub(1, Ordering::Relaxed);
}

/// Counts the keys of a table up, one after the other.
fn count_up(
    client: Client,
    env: Env,
    table: Table,
) -> impl FnOnce(usize, Arc<Told>) -> pluvio_env::BoxFuture<'static, ()> {
    move |which, told| {
        Box::pin(async move {
            let mut n = 0;
            while !told.stop.load(Ordering::Relaxed) {
                n = (n + 1) % KEYS;
                let next = {
                    let mut keys = told.keys[which].lock().unwrap();
                    keys[n].begun += 1;
                    keys[n].begun
                };
                let (key, value) = (key(n), Bytes::from(next.to_string()));
                let written = client.write(&table, &key, value);
                if written.await.is_ok() {
                    told.keys[which].lock().unwrap()[n].done = next;
                }
                let pause = Duration::from_micros(env.rng.below(2_000));
                env.clock.sleep(pause).await;
            }
            told.working.fetch_sub(1, Ordering::Relaxed);
        })
    }
}

async fn count_together(client: Client, env: Env, tables: [Table; 3], told: Arc<Told>) {
    while !told.stop.load(Ordering::Relaxed) {
        told.together.lock().unwrap().begun += 1;
        let steps = tables.each_ref().map(|table| {
            let change = Change::Add(Addend::Integer(1));
            let mutation = Mutation::new(table.id(), TOGETHER, change);
            (table, TransactionStep::new(Operation::Mutate(mutation)))
        });
        if client.transact(&steps).await.is_ok() {
            told.together.lock().unwrap().done += 1;
        }
        let pause = Duration::from_micros(env.rng.below(10_000));
        env.clock.sleep(pause).await;
    }
    told.working.fetch_sub(1, Ordering::Relaxed);
}

// shows: CLASS-1, REP-18, MASTER-8, COORD-21
#[test]
fn tables_of_three_durabilities_lose_nothing_when_as_many_servers_die_as_they_survive() {
    let _marks = Marks::to_reach(&[
        "class-opened",
        "ordered-batch-waits-for-another-class",
        "recovery-without-weak-logs",
    ]);
    for (seed, dying) in [(0, 1), (1, 2), (2, 2), (3, 2), (4, 3), (5, 2)] {
        let mut cluster = Cluster::new(seed, 6, false);
        let client = cluster.client();
        let tables = cluster.tables(&client);
        cluster.work(&client, &tables);
        cluster.sim.run_for(Duration::from_secs(2));
        let mut dead: Vec<usize> = (0..6).collect();
        cluster.client.env.rng.shuffle(&mut dead);
        dead.truncate(dying);
        for n in &dead {
            cluster.sim.crash(cluster.servers[*n]);
        }
        cluster.sim.run_for(Duration::from_secs(1));
        // Writes that need a server that is down wait, and fail as unknown.
        cluster.told.stop.store(true, Ordering::Relaxed);
        if dying <= 1 {
            assert!(cluster.check(&client, &tables, WEAK, PATIENCE), "{seed}");
        }
        if dying <= 2 {
            assert!(cluster.check(&client, &tables, PLAIN, PATIENCE), "{seed}");
            assert!(cluster.check(&client, &tables, STRONG, PATIENCE), "{seed}");
        }
        cluster.restart(&dead);
        cluster.stop();
        for which in [WEAK, PLAIN, STRONG] {
            assert!(cluster.check(&client, &tables, which, LIMIT), "{seed}");
        }
        cluster.check_together(&client, &tables);
        cluster.check_order(&client, &tables);
        // All of them, at once: a cold start.
        cluster.work(&client, &tables);
        cluster.sim.run_for(Duration::from_secs(1));
        for server in &cluster.servers {
            cluster.sim.crash(*server);
        }
        cluster.restart(&[0, 1, 2, 3, 4, 5]);
        cluster.stop();
        for which in [WEAK, PLAIN, STRONG] {
            assert!(cluster.check(&client, &tables, which, LIMIT), "{seed}");
        }
        cluster.check_together(&client, &tables);
        cluster.check_order(&client, &tables);
    }
}

// shows: REP-18, COORD-21
#[test]
fn a_table_of_a_synced_cluster_that_is_buffered_holds_up_nobody_after_a_loss_of_power() {
    for seed in 10..16 {
        let mut cluster = Cluster::new(seed, 4, true);
        let client = cluster.client();
        let tables = cluster.tables(&client);
        cluster.work(&client, &tables);
        cluster.sim.run_for(Duration::from_secs(2));
        for server in &cluster.servers {
            cluster.sim.power_loss(*server);
        }
        cluster.told.stop.store(true, Ordering::Relaxed);
        cluster.restart(&[0, 1, 2, 3]);
        // Acknowledged writes of the weak table may be gone.
        for which in [PLAIN, STRONG] {
            assert!(cluster.check(&client, &tables, which, LIMIT), "{seed}");
        }
    }
}
