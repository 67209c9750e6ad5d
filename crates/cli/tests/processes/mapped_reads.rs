//! `pluvio server --mapped-reads`: another process reads the server's memory while clients write.
//! Tablets and tables come and go, and the server is killed, or stopped for a while.

use crate::support::cluster::Cluster;
use crate::support::native::{Native, native};
use crate::support::program::{Running, command, signal};
use crate::support::{Reply, Setup, wait_for};
use pluvio_client::Table;
use pluvio_mapped::{Answer, Reader, Why};
use pluvio_units::TableId;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const TABLE: &str = "registers";
const KEYS: u64 = 64;
/// Writes between two events.
const MANY: u64 = 300;

/// A server of the cluster whose memory is read; its door, and its id.
pub fn join(cluster: &Cluster) -> (Running, PathBuf, u64) {
    let door = cluster.directory().join("door");
    let mut command = command();
    command
        .args(["server", "--json", "--cores", "1", "--memory", "64MiB"])
        .args(["--coordinator", cluster.coordinator(), "--data"])
        .arg(cluster.directory().join("read"))
        .arg("--mapped-reads")
        .arg(&door);
    let mut running = Running::spawn(&mut command);
    let ready = running.ready();
    let id = ready["id"].as_u64().unwrap();
    (running, door, id)
}

/// First hash and owner of each tablet of the table.
fn tablets(cluster: &Cluster, name: &str) -> Vec<(String, u64)> {
    let listed = cluster.run(["table", "list", "--json"]).json();
    let tables = listed["tables"].as_array().unwrap().clone();
    let table = tables.iter().find(|t| t["name"] == name).unwrap();
    let tablet = |t: &Value| {
        let first = t["first"].as_str().unwrap().to_owned();
        (first, t["server"].as_u64().unwrap())
    };
    table["tablets"]
        .as_array()
        .unwrap()
        .iter()
        .map(tablet)
        .collect()
}

/// Moves all of the table to one server.
pub fn move_all(cluster: &Cluster, name: &str, to: u64) {
    for (first, owner) in tablets(cluster, name) {
        if owner != to {
            let to = to.to_string();
            let arguments = ["table", "migrate", name, "--at", &first, "--to", &to];
            cluster.run(arguments).ok();
        }
    }
}

/// Registers that one writer counts up, and what is known of them.
struct Registers {
    table: TableId,
    /// The last count that was acknowledged, of each.
    done: Vec<AtomicU64>,
    writes: AtomicU64,
    over: AtomicBool,
}

/// Ends the threads of a test that is over, or fails.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A value of a register, which shows its count.
pub fn value(count: u64) -> Vec<u8> {
    let mut value = count.to_le_bytes().to_vec();
    value.resize(8 + count as usize % 500, count as u8);
    value
}

/// The count of a value, which must be whole.
pub fn count_of(value: &[u8]) -> u64 {
    let count = u64::from_le_bytes(value[..8].try_into().unwrap());
    assert!(value.iter().skip(8).all(|byte| *byte == count as u8));
    count
}

/// What a reader has met.
#[derive(Default, Debug)]
struct Met {
    found: u64,
    asked: BTreeMap<Why, u64>,
}

impl Registers {
    /// A table with all of them.
    fn new(client: &Native) -> (Self, Table) {
        let table = client.create_table(TABLE, None).unwrap();
        for key in 0..KEYS {
            client.write(&table, &key.to_le_bytes(), value(0)).unwrap();
        }
        let registers = Self {
            table: table.id(),
            done: (0..KEYS).map(|_| AtomicU64::new(0)).collect(),
            writes: AtomicU64::new(0),
            over: AtomicBool::new(false),
        };
        (registers, table)
    }

    /// Counts them up until it is over.
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

    /// Reads in memory until it is over: what is acknowledged before a read begins is seen by it,
    /// and no register goes back. Gets new maps, or does nothing but read.
    fn read(&self, reader: &Reader, over: &AtomicBool, refreshes: bool) -> Met {
        let (mut met, mut into) = (Met::default(), Vec::new());
        let mut seen = vec![0; KEYS as usize];
        let mut key = 0_u64;
        while !over.load(Ordering::Relaxed) {
            key = (key + 7) % KEYS;
            let at = key as usize;
            let before = self.done[at].load(Ordering::Acquire);
            match reader.read(self.table, &key.to_le_bytes(), &mut into) {
                Answer::Found(_) => {
                    let (count, least) = (count_of(&into), before.max(seen[at]));
                    assert!(count >= least, "key {key}: {count} after {least}");
                    seen[at] = count;
                    met.found += 1;
                }
                Answer::Absent => panic!("key {key} is absent, {before} was acknowledged"),
                Answer::Ask(why) => {
                    *met.asked.entry(why).or_default() += 1;
                    if refreshes && (why == Why::OldMap || why == Why::NotFresh) {
                        // Its owner may be gone.
                        let _known_anew = reader.refresh();
                    }
                }
            }
        }
        met
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

    /// Waits until a read is answered in memory, or until it is not.
    fn wait_in_memory(&self, reader: &Reader, is_wanted: bool) {
        let mut into = Vec::new();
        wait_for("reads in memory to begin, or to end", || {
            let _known_anew = reader.refresh();
            let answers: Vec<_> = (0..KEYS)
                .map(|key| reader.read(self.table, &key.to_le_bytes(), &mut into))
                .collect();
            let found = answers
                .iter()
                .any(|answer| matches!(answer, Answer::Found(_)));
            (found == is_wanted)
                .then_some(())
                .ok_or(format!("{answers:?}"))
        });
    }
}

// shows: TOLD-1, MAP-1, GATE-1
#[test]
fn reads_in_memory_see_each_acknowledged_write_while_tablets_come_and_go() {
    let cluster = Setup::servers(2).replicas(1).start();
    let client = native(cluster.coordinator());
    let (registers, table) = Registers::new(&client);
    let (mut server, door, id) = join(&cluster);
    cluster.wait_settled(3);
    let reader = Reader::open(&door).unwrap();
    assert_eq!(reader.server().0, id);
    let other = cluster.servers()[0]["id"].as_u64().unwrap();
    std::thread::scope(|threads| {
        let _over = Over(&registers.over);
        threads.spawn(|| registers.write(&client, &table));
        let reads = threads.spawn(|| registers.read(&reader, &registers.over, true));
        let second = Reader::open(&door).unwrap();
        for _turn in 0..3 {
            move_all(&cluster, TABLE, id);
            registers.wait_in_memory(&second, true);
            registers.wait_for_writes();
            move_all(&cluster, TABLE, other);
            registers.wait_in_memory(&second, false);
            registers.wait_for_writes();
        }
        move_all(&cluster, TABLE, id);
        registers.wait_in_memory(&second, true);
        told(&cluster, id);
        // Its tablets go to others, which change them.
        server.kill();
        registers.wait_for_writes();
        registers.wait_for_writes();
        registers.over.store(true, Ordering::Relaxed);
        let met = reads.join().unwrap();
        assert!(met.found > 0, "{met:?}");
        assert!(met.asked.contains_key(&Why::OldMap), "{met:?}");
        println!("{met:?}");
        assert!(matches!(
            second.read(table.id(), &0_u64.to_le_bytes(), &mut Vec::new()),
            Answer::Ask(_)
        ));
    });
    cluster.wait_settled(2);
}

/// A server is stopped while its memory is read. Others recover its tablets and change them, and
/// then it goes on: as if nothing had been, for all that it knows.
// shows: MAP-1
#[test]
fn a_server_that_stood_still_while_others_took_its_tablets_shows_nothing_old() {
    let cluster = Setup::servers(2).replicas(1).start();
    let client = native(cluster.coordinator());
    let (registers, table) = Registers::new(&client);
    std::thread::scope(|threads| {
        let _over = Over(&registers.over);
        threads.spawn(|| registers.write(&client, &table));
        for _turn in 0..2 {
            let (mut server, door, id) = join(&cluster);
            cluster.wait_settled(3);
            move_all(&cluster, TABLE, id);
            let probe = Reader::open(&door).unwrap();
            registers.wait_in_memory(&probe, true);
            let [steady, anew] = [0; 2].map(|_| Reader::open(&door).unwrap());
            let over = AtomicBool::new(false);
            std::thread::scope(|threads| {
                let _over = Over(&over);
                // One reads without a pause, the other asks the door again and again.
                let steady = threads.spawn(|| registers.read(&steady, &over, false));
                let anew = threads.spawn(|| registers.read(&anew, &over, true));
                registers.wait_for_writes();
                signal(server.pid(), Signal::STOP);
                // Of all registers, elsewhere.
                registers.wait_for_writes();
                assert!(
                    tablets(&cluster, TABLE)
                        .iter()
                        .all(|(_, owner)| *owner != id)
                );
                signal(server.pid(), Signal::CONT);
                registers.wait_for_writes();
                registers.wait_in_memory(&probe, false);
                registers.wait_for_writes();
                over.store(true, Ordering::Relaxed);
                for met in [steady.join().unwrap(), anew.join().unwrap()] {
                    assert!(met.found > 0, "{met:?}");
                    assert!(met.asked.contains_key(&Why::NotFresh), "{met:?}");
                    println!("{met:?}");
                }
            });
            server.kill();
            cluster.wait_settled(2);
        }
    });
}

/// Readers know a table by its number. The next one of its name has another.
// shows: MAP-1, GATE-1
#[test]
fn a_table_that_was_dropped_is_read_no_more_and_the_next_one_of_its_name_is() {
    const ROUNDS: u64 = 8;
    const READS: u64 = 2_000;
    let cluster = Setup::servers(1).replicas(1).start();
    let client = native(cluster.coordinator());
    let (_server, door, id) = join(&cluster);
    cluster.wait_settled(2);
    let ids: Vec<AtomicU64> = (0..ROUNDS).map(|_| AtomicU64::new(0)).collect();
    // The table of a round is there from `made` above it until `dropped` is above it.
    let (made, dropped) = (AtomicU64::new(0), AtomicU64::new(0));
    let (found, asked) = (AtomicU64::new(0), AtomicU64::new(0));
    let over = AtomicBool::new(false);
    let read = || {
        let reader = Reader::open(&door).unwrap();
        let (mut into, mut turn) = (Vec::new(), 0);
        while !over.load(Ordering::Relaxed) {
            turn += 1;
            // The newest one, and those before.
            let Some(round) = made.load(Ordering::Acquire).checked_sub(1 + turn % 3) else {
                continue;
            };
            let table = TableId(ids[round as usize].load(Ordering::Relaxed));
            let is_gone = dropped.load(Ordering::Acquire) > round;
            let key = turn % KEYS;
            match reader.read(table, &key.to_le_bytes(), &mut into) {
                Answer::Found(_) => {
                    assert!(!is_gone, "table {round} was dropped, and is read");
                    assert_eq!(count_of(&into), 1 + round, "of another table");
                    found.fetch_add(1, Ordering::Relaxed);
                }
                Answer::Absent => panic!("key {key} of table {round} is absent"),
                Answer::Ask(why) => {
                    asked.fetch_add(u64::from(is_gone), Ordering::Relaxed);
                    if why == Why::OldMap || why == Why::NotFresh {
                        let _known_anew = reader.refresh();
                    }
                }
            }
        }
    };
    let wait_for_more = |reads: &AtomicU64| {
        let wanted = reads.load(Ordering::Relaxed) + READS;
        wait_for("reads", || {
            let so_far = reads.load(Ordering::Relaxed);
            (so_far >= wanted)
                .then_some(())
                .ok_or(format!("{so_far} of {wanted}"))
        });
    };
    std::thread::scope(|threads| {
        let _over = Over(&over);
        for _reader in 0..2 {
            threads.spawn(read);
        }
        for round in 0..ROUNDS {
            let table = client.create_table(TABLE, None).unwrap();
            for key in 0..KEYS {
                let written = client.write(&table, &key.to_le_bytes(), value(1 + round));
                written.unwrap();
            }
            move_all(&cluster, TABLE, id);
            ids[round as usize].store(table.id().0, Ordering::Relaxed);
            made.store(round + 1, Ordering::Release);
            wait_for_more(&found);
            client.drop_table(TABLE).unwrap();
            dropped.store(round + 1, Ordering::Release);
            wait_for_more(&asked);
        }
    });
}

/// The status names this process among the readers.
fn told(cluster: &Cluster, id: u64) {
    let status = cluster.status();
    let mut servers = status["servers"].as_array().unwrap().iter();
    let server = servers.find(|server| server["id"] == id).unwrap();
    let readers = server["mapped"]["readers"].as_array().unwrap();
    let own = readers
        .iter()
        .filter(|reader| reader["pid"] == std::process::id());
    assert_eq!(own.count(), 2, "{server}");
    let text = cluster.run(["status"]).text();
    let line = format!("process {} of user", std::process::id());
    assert!(text.contains(&line), "{text}");
}

/// A table of the Redis port: its hashes are made of slots, and its keys expire.
#[test]
fn a_slot_table_is_read_in_memory_and_its_keys_expire_there() {
    const NAME: &str = "redis:0";
    let cluster = Setup::servers(1).replicas(1).start();
    let mut redis = cluster.connect(0);
    for key in 0..500 {
        redis.call(&["SET", &format!("{{{}}}{key}", key % 40), &key.to_string()]);
    }
    let (_server, door, id) = join(&cluster);
    cluster.wait_settled(2);
    move_all(&cluster, NAME, id);
    let listed = cluster.run(["table", "list", "--json"]).json();
    let mut tables = listed["tables"].as_array().unwrap().iter();
    let table = tables.find(|t| t["name"] == NAME).unwrap();
    let table = TableId(table["id"].as_u64().unwrap());
    let reader = Reader::open(&door).unwrap();
    let mut into = Vec::new();
    let mut read = |key: &str| {
        wait_for("an answer in memory", || {
            match reader.read(table, key.as_bytes(), &mut into) {
                Answer::Ask(why) => {
                    let _known_anew = reader.refresh();
                    Err(format!("{why:?}"))
                }
                Answer::Found(_) => Ok(Some(String::from_utf8(into.clone()).unwrap())),
                Answer::Absent => Ok(None),
            }
        })
    };
    for key in 0..500 {
        let found = read(&format!("{{{}}}{key}", key % 40));
        assert_eq!(found, Some(key.to_string()));
    }
    assert_eq!(read("{1}2"), None);
    redis.call(&["SET", "long", "1", "EX", "3600"]);
    assert_eq!(read("long").as_deref(), Some("1"));
    // Near its deadline it is left to the server; then it is gone for all.
    redis.call(&["SET", "short", "1", "PX", "50"]);
    assert_eq!(read("short"), None);
    assert_eq!(redis.call(&["GET", "short"]), Reply::Nil);
}

#[test]
fn a_server_whose_values_change_in_place_is_not_read_in_memory() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = command();
    command
        .args(["server", "--replicas", "0", "--update", "in-place"])
        .args(["--mapped-reads", "door", "--data"])
        .arg(directory.path());
    let output = crate::support::program::run(&mut command, b"");
    output.fails(2, &["mapped reads"]);
}
