//! Native clients on a server's machine: they read its memory by themselves, and nothing that they
//! see differs from what requests show.

use crate::mapped_reads::{Over, count_of, join, move_all, value};
use crate::support::cluster::Cluster;
use crate::support::native::{Loop, Native, native, runtime};
use crate::support::{Setup, wait_for};
use pluvio_client::blocking::{BlockOn, Key};
use pluvio_client::{Client, ClientOptions, Table};
use pluvio_mapped::{Answer, Reader, Why};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const KEYS: u64 = 64;
/// Reads whose requests are counted.
const READS: u64 = 20_000;
/// Changes between two events.
const MANY: u64 = 300;

/// A client that asks servers for everything, and its event loop.
fn asking(cluster: &Cluster) -> (Native, Loop) {
    let (runtime, env) = runtime();
    let options = ClientOptions::new(cluster.coordinator().split(',')).mapped_reads(false);
    let event_loop = Loop(Arc::new(runtime));
    let client = Native::new(Client::new(&env, options), event_loop.clone());
    (client, event_loop)
}

fn read(client: &Native, table: &Table, key: u64) -> u64 {
    let object = client.read(table, &key.to_le_bytes()).unwrap();
    count_of(&object.unwrap().value)
}

/// Reads until the memory of exactly these servers is mapped.
fn wait_mapped(client: &Native, table: &Table, servers: &[u64]) {
    wait_for("mapped memory", || {
        for key in 0..KEYS {
            read(client, table, key);
        }
        let mapped = client.asynchronous().mapped_servers();
        let mapped: Vec<u64> = mapped.iter().map(|server| server.0).collect();
        (mapped == servers)
            .then_some(())
            .ok_or(format!("{mapped:?}"))
    });
}

/// Requests that a server has answered so far.
fn requests(cluster: &Cluster, id: u64) -> u64 {
    let status = cluster.status();
    let mut servers = status["servers"].as_array().unwrap().iter();
    let server = servers.find(|server| server["id"] == id).unwrap();
    server["requests"].as_u64().unwrap()
}

// shows: CLIENT-7
#[test]
fn a_client_reads_without_requests_and_sees_all_changes() {
    let cluster = Setup::servers(2).replicas(1).start();
    let (client, other) = (native(cluster.coordinator()), asking(&cluster).0);
    let table = client.create_table("registers", None).unwrap();
    let theirs = other.table("registers").unwrap();
    for key in 0..KEYS {
        client.write(&table, &key.to_le_bytes(), value(0)).unwrap();
    }
    let (_server, _door, id) = join(&cluster);
    cluster.wait_settled(3);
    move_all(&cluster, "registers", id);
    wait_mapped(&client, &table, &[id]);
    for key in 0..KEYS {
        read(&other, &theirs, key);
    }
    assert_eq!(other.asynchronous().mapped_servers(), []);
    // A busy machine may stop the server for so long that its word does not hold any more.
    wait_for("reads that are no requests", || {
        let before = requests(&cluster, id);
        for at in 0..READS {
            assert_eq!(read(&client, &table, at % KEYS), 0);
        }
        let answered = requests(&cluster, id) - before;
        let few = answered < READS / 100;
        few.then_some(())
            .ok_or(format!("{answered} requests for {READS} reads"))
    });
    // Changes of its own, and of others.
    for count in 1..200 {
        let key = count % KEYS;
        let written = client.write(&table, &key.to_le_bytes(), value(count));
        let written = written.unwrap();
        let object = client.read(&table, &key.to_le_bytes()).unwrap().unwrap();
        assert_eq!(
            (count_of(&object.value), object.version),
            (count, written.version)
        );
        let (key, count) = ((count + 1) % KEYS, count + 1000);
        other
            .write(&theirs, &key.to_le_bytes(), value(count))
            .unwrap();
        assert_eq!(read(&client, &table, key), count);
        let both = vec![
            Key::new(&table, key.to_le_bytes()),
            Key::new(&table, "none"),
        ];
        let [some, none] = &client.multi_read(both)[..] else {
            panic!("two keys have two results");
        };
        assert_eq!(
            count_of(&some.as_ref().unwrap().as_ref().unwrap().value),
            count
        );
        assert_eq!(none.as_ref().unwrap(), &None);
    }
    other.delete(&theirs, &1_u64.to_le_bytes()).unwrap();
    assert_eq!(client.read(&table, &1_u64.to_le_bytes()).unwrap(), None);
}

/// A writer counts registers up. A reader may never see less than was acknowledged before it began
/// to read, nor less than it saw.
struct Registers {
    done: Vec<AtomicU64>,
    writes: AtomicU64,
    over: AtomicBool,
}

impl Registers {
    fn write(&self, client: &Native, table: &Table) {
        let mut count = 0;
        while !self.over.load(Ordering::Relaxed) {
            count += 1;
            for key in 0..KEYS {
                let written = client.write(table, &key.to_le_bytes(), value(count));
                written.unwrap();
                self.done[key as usize].store(count, Ordering::Release);
                self.writes.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn read(&self, client: &Native, table: &Table) {
        let mut seen = vec![0; KEYS as usize];
        let mut key = 0;
        while !self.over.load(Ordering::Relaxed) {
            key = (key + 7) % KEYS;
            let at = key as usize;
            let least = self.done[at].load(Ordering::Acquire).max(seen[at]);
            let count = read(client, table, key);
            assert!(count >= least, "key {key}: {count} after {least}");
            seen[at] = count;
        }
    }

    fn wait_for_writes(&self) {
        let wanted = self.writes.load(Ordering::Relaxed) + MANY;
        wait_for("acknowledged writes", || {
            let so_far = self.writes.load(Ordering::Relaxed);
            (so_far >= wanted)
                .then_some(())
                .ok_or(format!("{so_far} of {wanted}"))
        });
    }
}

// shows: CLIENT-7, MAP-1
#[test]
fn a_client_goes_on_when_tablets_move_and_when_their_server_is_killed() {
    let cluster = Setup::servers(2).replicas(1).start();
    let (client, writer) = (native(cluster.coordinator()), asking(&cluster).0);
    let table = client.create_table("registers", None).unwrap();
    let theirs = writer.table("registers").unwrap();
    for key in 0..KEYS {
        client.write(&table, &key.to_le_bytes(), value(0)).unwrap();
    }
    let (mut server, _door, id) = join(&cluster);
    cluster.wait_settled(3);
    let other = cluster.servers()[0]["id"].as_u64().unwrap();
    let registers = Registers {
        done: (0..KEYS).map(|_| AtomicU64::new(0)).collect(),
        writes: AtomicU64::new(0),
        over: AtomicBool::new(false),
    };
    // It ends after the threads.
    let mut next_life = None;
    std::thread::scope(|threads| {
        let _over = Over(&registers.over);
        threads.spawn(|| registers.write(&writer, &theirs));
        threads.spawn(|| registers.read(&client, &table));
        for _turn in 0..2 {
            move_all(&cluster, "registers", id);
            wait_mapped(&client, &table, &[id]);
            registers.wait_for_writes();
            move_all(&cluster, "registers", other);
            registers.wait_for_writes();
        }
        move_all(&cluster, "registers", id);
        wait_mapped(&client, &table, &[id]);
        registers.wait_for_writes();
        // Others recover its tablets, and change them; its memory is given back.
        server.kill();
        registers.wait_for_writes();
        wait_mapped(&client, &table, &[]);
        cluster.wait_settled(2);
        // A new life of the server has the same door.
        let (running, _door, next) = join(&cluster);
        next_life = Some(running);
        assert_ne!(next, id);
        cluster.wait_settled(3);
        move_all(&cluster, "registers", next);
        wait_mapped(&client, &table, &[next]);
        registers.wait_for_writes();
    });
    drop(next_life);
}

/// Transactions of two servers lock a key that is read in memory.
#[test]
fn a_key_that_is_locked_is_never_seen_as_it_was_once_its_transaction_is_done() {
    let cluster = Setup::servers(2).replicas(1).start();
    let (client, (writer, event_loop)) = (native(cluster.coordinator()), asking(&cluster));
    let (read_there, elsewhere) = ("read", "elsewhere");
    let table = client.create_table(read_there, None).unwrap();
    let tables = [read_there, elsewhere].map(|name| writer.create_table(name, None).unwrap());
    let key = 0_u64.to_le_bytes();
    for table in &tables {
        writer.write(table, &key, value(0)).unwrap();
    }
    let (_server, door, id) = join(&cluster);
    cluster.wait_settled(3);
    move_all(&cluster, read_there, id);
    let other = cluster.servers()[0]["id"].as_u64().unwrap();
    move_all(&cluster, elsewhere, other);
    for key in 0..KEYS {
        client.write(&table, &key.to_le_bytes(), value(0)).unwrap();
    }
    wait_mapped(&client, &table, &[id]);
    let (done, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let locked = AtomicU64::new(0);
    std::thread::scope(|threads| {
        let _over = Over(&over);
        let transactions = || {
            let mut count = 0;
            while !over.load(Ordering::Relaxed) {
                count += 1;
                let (client, tables) = (writer.asynchronous().clone(), tables.clone());
                let commit = async move {
                    let transaction = client.transaction();
                    for table in &tables {
                        transaction.put(table, &0_u64.to_le_bytes(), value(count));
                    }
                    transaction.commit().await
                };
                event_loop.block_on(commit).unwrap();
                done.store(count, Ordering::Release);
            }
        };
        threads.spawn(transactions);
        threads.spawn(|| {
            // How often memory shows a lock, beside the client.
            let reader = Reader::open(&door).unwrap();
            let mut into = Vec::new();
            while !over.load(Ordering::Relaxed) {
                match reader.read(table.id(), &key, &mut into) {
                    Answer::Ask(Why::Locked) => {
                        locked.fetch_add(1, Ordering::Relaxed);
                    }
                    Answer::Ask(Why::OldMap | Why::NotFresh) => reader.refresh().unwrap(),
                    Answer::Found(_) | Answer::Absent | Answer::Ask(_) => {}
                }
            }
        });
        let mut seen = 0;
        wait_for("locks that were met", || {
            for _read in 0..500 {
                let least = done.load(Ordering::Acquire).max(seen);
                seen = read(&client, &table, 0);
                assert!(seen >= least, "{seen} after {least}");
            }
            let (locked, done) = (&locked, &done);
            let met = (locked.load(Ordering::Relaxed), done.load(Ordering::Relaxed));
            (met.0 >= 3 && met.1 >= 50)
                .then_some(())
                .ok_or(format!("{met:?} locks and transactions"))
        });
    });
}
