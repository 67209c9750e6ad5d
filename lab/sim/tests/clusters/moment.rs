//! Archives of one moment while money moves, chains of writes grow, and everything goes wrong.

use crate::support::{LIMIT, client, run_coordinator, run_server};
use bytes::Bytes;
use core::time::Duration;
use pluvio_client::{
    Addend, Change, Client, ClientError, ErrorKind, Mutation, OneMoment, Operation, Part, Table,
    TransactionStep, WhichTablet,
};
use pluvio_coordinator::{CoordinatorOptions, MemoryStore};
use pluvio_env::{Env, timeout};
use pluvio_sim::{NetworkFaults, ProcessId, Sim, SimOptions};
use pluvio_units::{HashRange, KeyHash, Marks, Size, TableId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const ACCOUNTS: usize = 12;
const BALANCE: i64 = 1000;
/// Keys of a chain; they lie in two tables, with several owners each.
const LINKS: u64 = 17;
const CHAINS: usize = 2;
/// By then there is an archive, or a failure.
const ARCHIVE_MAX: Duration = Duration::from_secs(80);

/// What the clients were told.
#[derive(Default)]
struct Told {
    stop: AtomicBool,
    working: AtomicUsize,
    /// Steps of each chain that were begun, and that were acknowledged.
    begun: Mutex<[u64; CHAINS]>,
    done: Mutex<[u64; CHAINS]>,
    transfers: AtomicUsize,
    archives: AtomicUsize,
    in_vain: AtomicUsize,
}

fn account(n: usize) -> Vec<u8> {
    format!("account {n}").into_bytes()
}

fn add<'k>(table: &Table, key: &'k [u8], amount: i64) -> TransactionStep<'k> {
    let change = Change::Add(Addend::Integer(amount));
    TransactionStep::new(Operation::Mutate(Mutation::new(table.id(), key, change)))
}

async fn move_money(client: Client, env: Env, told: Arc<Told>) {
    let table = client.table("t").await.unwrap();
    while !told.stop.load(Ordering::Relaxed) {
        let [from, to] = [0, 1].map(|_| account(env.rng.below(ACCOUNTS as u64) as usize));
        let amount = 1 + env.rng.below(50) as i64;
        if from != to {
            let steps = [
                (&table, add(&table, &from, -amount)),
                (&table, add(&table, &to, amount)),
            ];
            // One that failed is there, or not: as a whole.
            if client.transact(&steps).await.is_ok() {
                told.transfers.fetch_add(1, Ordering::Relaxed);
            }
        }
        env.clock
            .sleep(Duration::from_micros(env.rng.below(10_000)))
            .await;
    }
    told.working.fetch_sub(1, Ordering::Relaxed);
}

/// What the steps of a chain up to `count` have left: key by key, across both tables.
fn chain_after(chain: usize, count: u64) -> BTreeMap<Vec<u8>, u64> {
    let mut state = BTreeMap::new();
    for step in 1..=count {
        let key = link(chain, step);
        match step % 5 {
            0 => drop(state.remove(&key)),
            _ => drop(state.insert(key, step)),
        }
    }
    state
}

fn link(chain: usize, step: u64) -> Vec<u8> {
    format!("chain {chain} link {}", step * 7 % LINKS).into_bytes()
}

/// Each step begins when the one before it was acknowledged.
async fn grow_chain(chain: usize, client: Client, env: Env, told: Arc<Told>) {
    let tables = [
        client.table("t").await.unwrap(),
        client.table("redis:1").await.unwrap(),
    ];
    for step in 1.. {
        if told.stop.load(Ordering::Relaxed) {
            break;
        }
        told.begun.lock().unwrap()[chain] = step;
        let key = link(chain, step);
        let table = &tables[usize::from(key.last().unwrap() % 2)];
        let done = match step % 5 {
            0 => client.delete(table, &key).await.map(|_| ()),
            _ => client
                .write(table, &key, Bytes::from(step.to_string()))
                .await
                .map(|_| ()),
        };
        // Nobody knows whether it is done: the chain ends.
        if done.is_err() {
            break;
        }
        told.done.lock().unwrap()[chain] = step;
        env.clock
            .sleep(Duration::from_micros(env.rng.below(10_000)))
            .await;
    }
    told.working.fetch_sub(1, Ordering::Relaxed);
}

/// Makes a table now and then, and says so in another one.
async fn make_tables(client: Client, env: Env, told: Arc<Told>) {
    let table = client.table("t").await.unwrap();
    for made in 1..=6_u64 {
        if told.stop.load(Ordering::Relaxed) {
            break;
        }
        let done = async {
            let new = client
                .create_table(&format!("made {made}"), Some(2))
                .await?;
            client.write(&new, b"first", Bytes::from("there")).await?;
            client
                .write(&table, b"made", Bytes::from(made.to_string()))
                .await
        };
        if done.await.is_err() {
            break;
        }
        env.clock
            .sleep(Duration::from_millis(env.rng.below(1500)))
            .await;
    }
    told.working.fetch_sub(1, Ordering::Relaxed);
}

/// What an archive holds: of each table its name and its objects.
type Archive = BTreeMap<TableId, (Table, BTreeMap<Vec<u8>, Bytes>)>;

fn forget(archive: &mut Archive, table: TableId, range: HashRange) {
    if let Some((table, objects)) = archive.get_mut(&table) {
        objects.retain(|key, _| !range.contains(table.hash(key)));
    }
}

/// All tables there are.
async fn begin(client: &Client) -> Result<OneMoment, ClientError> {
    let mut tables = Vec::new();
    for info in client.list_tables().await? {
        match client.table_by_id(info.id).await {
            Ok(table) => tables.push(table),
            Err(error) => return Err(error),
        }
    }
    Ok(client.one_moment(tables, true))
}

/// Pieces and changes are kept apart: what changed stands for what was read.
async fn archive(moment: &mut OneMoment, env: &Env) -> Result<Archive, ClientError> {
    let (mut read, mut changed) = (Archive::new(), BTreeMap::new());
    loop {
        match moment.next().await? {
            Part::Table(table) => drop(read.insert(table.id(), (table, BTreeMap::new()))),
            Part::Dropped(table) => drop(read.remove(&table)),
            Part::Objects { table, objects, .. } => {
                let (_, all) = read.get_mut(&table).unwrap();
                for object in objects {
                    assert_eq!(all.insert(object.key, object.value), None, "it came twice");
                }
                env.clock
                    .sleep(Duration::from_micros(env.rng.below(20_000)))
                    .await;
            }
            Part::Void { table, range } => {
                let (handle, _) = &read[&table];
                changed.retain(|(of, key): &(TableId, Bytes), _| {
                    *of != table || !range.contains(handle.hash(key))
                });
                forget(&mut read, table, range);
            }
            Part::Changed(objects) => {
                for object in objects {
                    changed.insert((object.table, object.key), object.now);
                }
            }
            Part::Waits => {}
            Part::Done(_) => break,
        }
    }
    for ((table, key), now) in changed {
        if let Some((_, all)) = read.get_mut(&table) {
            match now {
                Some(now) => drop(all.insert(key.to_vec(), now.value)),
                None => drop(all.remove(&key[..])),
            }
        }
    }
    Ok(read)
}

fn check(archive: &Archive, (done, begun): ([u64; CHAINS], [u64; CHAINS])) {
    let named = |name: &str| archive.values().find(|(table, _)| table.name() == name);
    let number = |value: &Bytes| -> i64 { std::str::from_utf8(value).unwrap().parse().unwrap() };
    let (_, objects) = named("t").unwrap();
    let (_, others) = named("redis:1").unwrap();
    let balances: Vec<i64> = { (0..ACCOUNTS).map(account) }
        .map(|key| number(&objects[&key]))
        .collect();
    let sum: i64 = balances.iter().sum();
    assert_eq!(sum, ACCOUNTS as i64 * BALANCE, "{balances:?}");
    for chain in 0..CHAINS {
        let prefix = format!("chain {chain} ");
        let found: BTreeMap<Vec<u8>, u64> = { objects.iter().chain(others) }
            .filter(|(key, _)| key.starts_with(prefix.as_bytes()))
            .map(|(key, value)| (key.clone(), number(value) as u64))
            .collect();
        let mut prefixes = done[chain]..=begun[chain];
        assert!(
            prefixes.any(|count| chain_after(chain, count) == found),
            "no prefix from {} to {} of chain {chain}: {found:?}",
            done[chain],
            begun[chain],
        );
    }
    let made = objects.get(&b"made"[..]).map_or(0, number);
    for made in 1..=made {
        let (_, objects) = named(&format!("made {made}")).expect("it was made before");
        assert!(objects.contains_key(&b"first"[..]));
    }
}

/// Makes archives for ever.
async fn back_up(client: Client, env: Env, told: Arc<Told>) {
    loop {
        let done = *told.done.lock().unwrap();
        let mut moment = match begin(&client).await {
            Ok(moment) => moment,
            Err(error) => {
                assert!(
                    error.is_retryable() || error.kind() == ErrorKind::NoSuchTable,
                    "{error}"
                );
                continue;
            }
        };
        let archived = timeout(&*env.clock, ARCHIVE_MAX, archive(&mut moment, &env)).await;
        let Ok(archived) = archived else {
            panic!("no archive, and no end");
        };
        match archived {
            Ok(archive) => {
                let begun = *told.begun.lock().unwrap();
                check(&archive, (done, begun));
                told.archives.fetch_add(1, Ordering::Relaxed);
            }
            // Nothing is said of what came.
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                told.in_vain.fetch_add(1, Ordering::Relaxed);
            }
        }
        if told.stop.load(Ordering::Relaxed) {
            return;
        }
        env.clock
            .sleep(Duration::from_millis(env.rng.below(500)))
            .await;
    }
}

struct Cluster {
    sim: Sim,
    store: MemoryStore,
    coordinator: ProcessId,
    servers: Vec<(ProcessId, String)>,
    backup: ProcessId,
    told: Arc<Told>,
    draws: u64,
}

impl Cluster {
    fn draw(&mut self, below: u64) -> u64 {
        self.draws = self
            .draws
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e);
        (self.draws >> 33) % below
    }

    fn coordinate(&self, env: Env) {
        let work = run_coordinator(env, self.store.clone(), CoordinatorOptions::default());
        self.sim.spawn(self.coordinator, "coordinator", work);
    }

    fn serve(&self, process: ProcessId, env: Env, name: &str) {
        let serving = run_server(env, name.to_owned(), Size::mib(40), |_| ());
        self.sim.spawn(process, "server", serving);
    }

    fn join(&mut self) {
        let name = format!("server-{}", self.servers.len());
        let process = self.sim.process(&name);
        self.serve(process.id, process.env, &name);
        self.servers.push((process.id, name));
    }

    fn back_up(&self, env: &Env) {
        let own = client(env, env.network.clone());
        let work = back_up(own, env.clone(), Arc::clone(&self.told));
        self.sim.spawn(self.backup, "backup", work);
    }

    fn new(seed: u64, servers: usize) -> Self {
        let sim = Sim::new(seed, SimOptions::default());
        let coordinator = sim.process("coordinator");
        let backup = sim.process("backup");
        let mut cluster = Self {
            store: MemoryStore::new(),
            coordinator: coordinator.id,
            servers: Vec::new(),
            backup: backup.id,
            told: Arc::default(),
            draws: seed,
            sim,
        };
        cluster.coordinate(coordinator.env);
        for _ in 0..servers {
            cluster.join();
        }
        let setter = cluster.sim.process("setter");
        let own = client(&setter.env, setter.env.network.clone());
        let work = async move {
            let table = loop {
                // Not before all servers have joined.
                match own.create_table("t", Some(3)).await {
                    Ok(table) => break table,
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            };
            own.create_table("redis:1", Some(3)).await.unwrap();
            for n in 0..ACCOUNTS {
                let value = Bytes::from(BALANCE.to_string());
                own.write(&table, &account(n), value).await.unwrap();
            }
            for n in 0..400 {
                let key = format!("still {n}");
                let value = Bytes::from(vec![b'x'; 300]);
                own.write(&table, key.as_bytes(), value).await.unwrap();
            }
        };
        cluster.sim.block_on(setter.id, work, LIMIT).unwrap();
        cluster.work();
        cluster.back_up(&backup.env);
        cluster
    }

    fn work(&self) {
        for number in 0..3 + CHAINS {
            let process = self.sim.process(&format!("worker-{number}"));
            let (own, env) = (
                client(&process.env, process.env.network.clone()),
                process.env,
            );
            let told = Arc::clone(&self.told);
            self.told.working.fetch_add(1, Ordering::Relaxed);
            match number {
                0..CHAINS => {
                    let work = grow_chain(number, own, env, told);
                    self.sim.spawn(process.id, "chain", work);
                }
                CHAINS => drop(
                    self.sim
                        .spawn(process.id, "tables", make_tables(own, env, told)),
                ),
                _ => drop(
                    self.sim
                        .spawn(process.id, "money", move_money(own, env, told)),
                ),
            }
        }
    }

    fn archives(&self) -> usize {
        self.told.archives.load(Ordering::Relaxed)
    }

    fn until_archives(&self, more: usize) {
        let (told, wanted) = (Arc::clone(&self.told), self.archives() + more);
        let there = move || told.archives.load(Ordering::Relaxed) >= wanted;
        self.sim.run_until(there, Duration::from_secs(300)).unwrap();
    }

    fn pass(&mut self, most_ms: u64) {
        let ms = 1 + self.draw(most_ms);
        self.sim.run_for(Duration::from_millis(ms));
    }

    /// Moves the tablet of some hash to some server, or cuts it.
    fn shuffle(&mut self) {
        let (hash, which) = (KeyHash(self.draw(1 << 31) << 33), self.draw(100) as usize);
        let process = self
            .sim
            .process(&format!("shuffler-{}", self.sim.now().as_nanos()));
        let own = client(&process.env, process.env.network.clone());
        let work = async move {
            let table = own.table(["t", "redis:1"][which % 2]).await?;
            if which % 3 == 0 {
                own.split_tablet(&table, None).await?;
            }
            let list = own.server_list().await?;
            let up: Vec<_> = list.servers.iter().map(|info| info.id).collect();
            let to = up[which % up.len()];
            own.start_migration(&table, WhichTablet::Containing(hash), to)
                .await?;
            Ok::<_, ClientError>(())
        };
        // Others may be moving it, or the server is dead.
        let shuffle = async move { drop(work.await) };
        self.sim.spawn(process.id, "shuffle", shuffle);
    }

    fn strike(&mut self) {
        let at = self.draw(self.servers.len() as u64) as usize;
        let (server, name) = self.servers[at].clone();
        match self.draw(9) {
            0 | 1 => {
                self.sim.crash(server);
                self.pass(2000);
                let process = self.sim.restart(server);
                self.serve(server, process.env, &name);
            }
            2 => {
                self.sim.pause(server);
                self.pass(1500);
                self.sim.resume(server);
            }
            3 => {
                self.sim.isolate(server);
                self.pass(1500);
                self.sim.heal_all();
            }
            4 => {
                self.sim.crash(self.coordinator);
                self.pass(300);
                let process = self.sim.restart(self.coordinator);
                self.coordinate(process.env);
            }
            5 => {
                self.sim.crash(self.backup);
                self.pass(500);
                let process = self.sim.restart(self.backup);
                self.back_up(&process.env);
            }
            6 if self.servers.len() < 6 => self.join(),
            7 => {
                self.sim.set_network(NetworkFaults::bad());
                self.pass(1500);
                self.sim.set_network(NetworkFaults::default());
            }
            _ => self.shuffle(),
        }
    }

    /// Lets all clients end, and looks whether the backup has not stopped anybody.
    fn finish(&self) {
        self.told.stop.store(true, Ordering::Relaxed);
        let told = Arc::clone(&self.told);
        let ended = move || told.working.load(Ordering::Relaxed) == 0;
        self.sim.run_until(ended, Duration::from_secs(300)).unwrap();
        assert!(self.told.transfers.load(Ordering::Relaxed) > 10);
    }
}

// shows: CUT-1, CUT-4, MOMENT-1, MOMENT-2
#[test]
fn archives_are_of_one_moment_under_load() {
    let _marks = Marks::to_reach(&["cut-holds-change"]);
    for seed in 0..3 {
        let cluster = Cluster::new(seed, 4);
        cluster.until_archives(8);
        let in_vain = cluster.told.in_vain.load(Ordering::Relaxed);
        assert_eq!(in_vain, 0, "nothing went wrong, seed {seed}");
        cluster.finish();
    }
}

// shows: MOMENT-5
#[test]
fn backups_at_one_time_take_turns() {
    let _marks = Marks::to_reach(&["cut-backup-waits"]);
    let cluster = Cluster::new(200, 4);
    let other = cluster.sim.process("other backup");
    let own = client(&other.env, other.env.network.clone());
    let work = back_up(own, other.env, Arc::clone(&cluster.told));
    cluster.sim.spawn(other.id, "backup", work);
    cluster.until_archives(8);
    let in_vain = cluster.told.in_vain.load(Ordering::Relaxed);
    assert_eq!(in_vain, 0, "none of both has failed");
    cluster.finish();
}

// shows: CUT-3, CUT-5, CUT-6, MOMENT-3, MOMENT-4
#[test]
fn archives_are_of_one_moment_or_fail_whatever_goes_wrong() {
    let _marks = Marks::to_reach(&["cut-hold-in-vain", "cut-piece-read-again"]);
    for seed in 100..103 {
        println!("seed {seed}");
        let mut cluster = Cluster::new(seed, 4);
        for _ in 0..10 {
            cluster.pass(600);
            cluster.strike();
        }
        cluster.until_archives(2);
        cluster.finish();
    }
}
