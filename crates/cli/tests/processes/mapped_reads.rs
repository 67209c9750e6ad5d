//! `pluvio server --mapped-reads`: another process reads the server's memory while clients write,
//! tablets come and go, and the server is killed.

use crate::support::cluster::Cluster;
use crate::support::native::native;
use crate::support::program::{Running, command};
use crate::support::{Reply, Setup, wait_for};
use pluvio_mapped::{Answer, Reader, Why};
use pluvio_units::TableId;
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

/// What a reader has met.
#[derive(Default, Debug)]
struct Met {
    found: u64,
    asked: BTreeMap<Why, u64>,
}

impl Registers {
    /// Reads in memory until it is over: what is acknowledged before a read begins is seen by it,
    /// and no register goes back.
    fn read(&self, reader: &Reader) -> Met {
        let (mut met, mut into) = (Met::default(), Vec::new());
        let mut seen = vec![0; KEYS as usize];
        let mut key = 0_u64;
        while !self.over.load(Ordering::Relaxed) {
            key = (key + 7) % KEYS;
            let at = key as usize;
            let before = self.done[at].load(Ordering::Acquire);
            match reader.read(self.table, &key.to_le_bytes(), &mut into) {
                Answer::Found(_) => {
                    let count = u64::from_le_bytes(into[..8].try_into().unwrap());
                    let least = before.max(seen[at]);
                    assert!(count >= least, "key {key}: {count} after {least}");
                    assert!(into.iter().skip(8).all(|byte| *byte == count as u8));
                    seen[at] = count;
                    met.found += 1;
                }
                Answer::Absent => panic!("key {key} is absent, {before} was acknowledged"),
                Answer::Ask(why) => {
                    *met.asked.entry(why).or_default() += 1;
                    if why == Why::OldMap || why == Why::NotFresh {
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
    let table = client.create_table(TABLE, None).unwrap();
    let value = |count: u64| {
        let mut value = count.to_le_bytes().to_vec();
        value.resize(8 + count as usize % 500, count as u8);
        value
    };
    for key in 0..KEYS {
        client.write(&table, &key.to_le_bytes(), value(0)).unwrap();
    }
    let (mut server, door, id) = join(&cluster);
    cluster.wait_settled(3);
    let reader = Reader::open(&door).unwrap();
    assert_eq!(reader.server().0, id);
    let registers = Registers {
        table: table.id(),
        done: (0..KEYS).map(|_| AtomicU64::new(0)).collect(),
        writes: AtomicU64::new(0),
        over: AtomicBool::new(false),
    };
    let other = cluster.servers()[0]["id"].as_u64().unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut count = 0;
            while !registers.over.load(Ordering::Relaxed) {
                count += 1;
                for key in 0..KEYS {
                    client
                        .write(&table, &key.to_le_bytes(), value(count))
                        .unwrap();
                    registers.done[key as usize].store(count, Ordering::Release);
                    registers.writes.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let reads = threads.spawn(|| registers.read(&reader));
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
