//! The port for cluster clients, on one of three servers in memory.

use crate::bench::{Bench, Connection};
use pluvio_client::testing::FakeCluster;
use pluvio_client::{Client, ServerList};
use pluvio_redis::{ClusterPort, RedisOptions};
use pluvio_units::{HashKind, KeySlot, ServerId};
use std::sync::Arc;

/// The port of the first server; all servers have one, except `without`.
pub fn bench(without: Option<u64>) -> Bench {
    let cluster = FakeCluster::new(3);
    let own = ServerId(1);
    let plain = cluster.client();
    let mut list: ServerList = cluster.run(async { plain.server_list().await.unwrap() });
    for info in &mut list.servers {
        let has_port = Some(info.id.0) != without;
        info.redis_cluster = has_port.then(|| format!("10.0.0.{}:7000", info.id));
    }
    let list = Arc::new(list);
    let master = cluster.local_master(own);
    let client = Client::embedded(cluster.parts(), cluster.options(), master);
    let mut options = RedisOptions::default();
    options.cluster = Some(ClusterPort::new(Arc::new(move || (own, Arc::clone(&list)))));
    Bench::with(cluster, &client, options)
}

/// A key whose slot is in one of three thirds.
pub fn key_of(third: u16, n: usize) -> String {
    let keys = (0..).map(|n| format!("key {n}"));
    let is_there = |key: &String| KeySlot::of(key.as_bytes()).number() / 5462 == third;
    keys.into_iter().filter(is_there).nth(n).unwrap()
}

pub fn call(connection: &mut Connection, parts: &[&str]) -> String {
    String::from_utf8(connection.call(parts)).unwrap()
}

// shows: SLOT-1
#[test]
fn clients_are_sent_to_the_owner_of_a_slot() {
    let mut bench = bench(None);
    let mut c = bench.connect();
    let slots = c.say("CLUSTER SLOTS");
    for part in [
        "*3\r\n",
        "10.0.0.1",
        "10.0.0.2",
        "10.0.0.3",
        ":16383\r\n",
        ":7000\r\n",
    ] {
        assert!(slots.contains(part), "{part} in {slots}");
    }
    let [own, other] = [key_of(0, 0), key_of(1, 0)];
    assert_eq!(call(&mut c, &["SET", &own, "v"]), "+OK\r\n");
    let slot = KeySlot::of(other.as_bytes());
    let moved = format!("-MOVED {slot} 10.0.0.2:7000\r\n");
    for command in ["GET", "DEL", "STRLEN", "EXISTS", "INCR"] {
        assert_eq!(call(&mut c, &[command, &other]), moved, "{command}");
    }
    assert_eq!(call(&mut c, &["SET", &other, "v"]), moved);
    assert!(
        c.say("CLUSTER NODES")
            .contains("10.0.0.1:7000@0 myself,master - 0 0 1 connected 0-")
    );
    assert!(c.say("CLUSTER INFO").contains("cluster_state:ok"));
    assert!(c.say("INFO").contains("cluster_enabled:1"));
    assert!(c.say("INFO").contains("redis_mode:cluster"));
    for word in ["READONLY", "READWRITE", "ASKING"] {
        assert_eq!(c.say(word), "+OK\r\n");
    }
    assert_eq!(c.say("CLUSTER KEYSLOT {user1000}.x"), ":3443\r\n");
    assert_eq!(c.say("SELECT 0"), "+OK\r\n");
    assert_eq!(
        c.say("SELECT 1"),
        "-ERR SELECT is not allowed in cluster mode\r\n"
    );
}

/// A bulk string as it is sent.
fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// The id of a node.
fn node(server: u64) -> String {
    format!("{server:040x}")
}

// shows: SLOT-3
#[test]
fn a_node_tells_its_name_its_links_and_its_shards() {
    let mut bench = bench(None);
    let mut c = bench.connect();
    let thirds = [(0, 5460), (5461, 10_921), (10_922, 16_383)];
    // RESP2 has no maps: they are arrays of twice as many.
    for (hello, kind, each) in [("HELLO 2", '*', 2), ("HELLO 3", '%', 1)] {
        assert!(c.say(hello).starts_with(kind), "{hello}");
        assert_eq!(c.say("CLUSTER MYID"), bulk(&node(1)));
        // There is no bus, so there are no links.
        assert_eq!(c.say("CLUSTER LINKS"), "*0\r\n");
        let mut shards = "*3\r\n".to_owned();
        let mut slots = shards.clone();
        for ((first, last), server) in thirds.into_iter().zip(1..) {
            let (id, ip) = (bulk(&node(server)), bulk(&format!("10.0.0.{server}")));
            shards += &format!("{kind}{}\r\n{}", 2 * each, bulk("slots"));
            shards += &format!("*2\r\n:{first}\r\n:{last}\r\n");
            shards += &format!("{}*1\r\n{kind}{}\r\n", bulk("nodes"), 7 * each);
            for (name, value) in [
                ("id", id.clone()),
                ("port", ":7000\r\n".to_owned()),
                ("ip", ip.clone()),
                ("endpoint", ip.clone()),
                ("role", bulk("master")),
                ("replication-offset", ":0\r\n".to_owned()),
                ("health", bulk("online")),
            ] {
                shards += &format!("{}{value}", bulk(name));
            }
            slots += &format!("*3\r\n:{first}\r\n:{last}\r\n*4\r\n{ip}:7000\r\n{id}");
            // Networking metadata: none.
            slots += &format!("{kind}0\r\n");
        }
        assert_eq!(c.say("CLUSTER SHARDS"), shards);
        assert_eq!(c.say("CLUSTER SLOTS"), slots);
        // The ids are those of CLUSTER NODES.
        let nodes = c.say("CLUSTER NODES");
        let mut lines = nodes.lines().map(|line| line.trim_start_matches("txt:"));
        let myself = lines.find(|line| line.contains("myself"));
        assert!(
            myself.is_some_and(|line| line.starts_with(&node(1))),
            "{nodes}"
        );
    }
}

/// A node without slots is a shard of its own, as in Redis; one without a port is none.
#[test]
fn a_node_that_has_no_slots_is_a_shard_without_slots() {
    let mut bench = bench(Some(3));
    let mut c = bench.connect();
    c.say("CLUSTER SHARDS");
    bench.cluster.recover(ServerId(2), ServerId(1));
    let shards = c.say("CLUSTER SHARDS");
    assert!(
        shards.starts_with("*2\r\n*4\r\n$5\r\nslots\r\n*2\r\n:0\r\n:16383\r\n"),
        "{shards}"
    );
    assert_eq!(shards.matches("slots\r\n*0\r\n").count(), 1, "{shards}");
    assert!(
        shards.contains("10.0.0.2") && !shards.contains("10.0.0.3"),
        "{shards}"
    );
}

#[test]
fn rights_are_about_database_0() {
    let mut bench = bench(None);
    let mut admin = bench.connect();
    let mut c = bench.connect();
    let key = key_of(0, 0);
    let denied = "-NOPERM No permissions to access database\r\n";
    for (rule, answers) in [
        ("db=1", [denied, denied, denied, denied]),
        ("db=0", ["$-1\r\n", ":0\r\n", "+OK\r\n", denied]),
    ] {
        admin.say(&format!("ACL SETUSER bob on nopass ~* +@all {rule}"));
        c.say("AUTH bob x");
        let replies = [
            call(&mut c, &["GET", &key]),
            c.say("CLUSTER COUNTKEYSINSLOT 0"),
            c.say("SELECT 0"),
            c.say("FLUSHALL"),
        ];
        assert_eq!(replies, answers, "{rule}");
    }
    assert_eq!(c.say("SELECT 1"), denied);
}

#[test]
fn keys_of_several_slots_are_refused_and_a_tag_holds_them_together() {
    let mut bench = bench(None);
    let mut c = bench.connect();
    let [a, b] = [key_of(0, 0), key_of(0, 1)];
    let refused = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";
    assert_eq!(call(&mut c, &["MSET", &a, "1", &b, "2"]), refused);
    assert_eq!(call(&mut c, &["MGET", &a, &b]), refused);
    let [a, b] = ["x", "y"].map(|word| format!("{{{a}}}{word}"));
    assert_eq!(call(&mut c, &["MSET", &a, "1", &b, "2"]), "+OK\r\n");
    assert_eq!(call(&mut c, &["EXISTS", &a, &b]), ":2\r\n");
    let slot = KeySlot::of(a.as_bytes()).to_string();
    assert_eq!(
        call(&mut c, &["CLUSTER", "COUNTKEYSINSLOT", &slot]),
        ":2\r\n"
    );
    assert_eq!(
        call(&mut c, &["CLUSTER", "COUNTKEYSINSLOT", "9999"]),
        ":0\r\n"
    );
}

#[test]
fn a_node_tells_of_its_own_keys() {
    let mut bench = bench(None);
    let mut all = bench.another();
    let (mut c, mut ordinary) = (bench.connect(), all.connect());
    for third in 0..3 {
        for n in 0..40 {
            let set = call(&mut ordinary, &["SET", &key_of(third, n), "v"]);
            assert_eq!(set, "+OK\r\n");
        }
    }
    assert_eq!(ordinary.say("DBSIZE"), ":120\r\n");
    assert_eq!(c.say("DBSIZE"), ":40\r\n");
    assert!(c.say("KEYS *").starts_with("*40\r\n"));
    let (mut cursor, mut seen) = ("0".to_owned(), 0);
    loop {
        let reply = c.say(&format!("SCAN {cursor} COUNT 7"));
        seen += reply.matches("key ").count();
        cursor = reply.split("\r\n").nth(2).unwrap().to_owned();
        assert!(cursor.parse::<u64>().unwrap() < 1 << 53);
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen, 40);
    assert_eq!(c.say("FLUSHALL"), "+OK\r\n");
    assert_eq!(c.say("DBSIZE"), ":0\r\n");
}

// shows: SLOT-2, SLOT-3, SLOT-4
#[test]
fn what_no_node_serves_is_passed_on() {
    let mut bench = bench(Some(2));
    let mut c = bench.connect();
    let other = key_of(1, 0);
    assert_eq!(call(&mut c, &["SET", &other, "v"]), "+OK\r\n");
    assert_eq!(call(&mut c, &["GET", &other]), "$1\r\nv\r\n");
    assert!(!c.say("CLUSTER SLOTS").contains("10.0.0.2"));
    // A server that has crashed, before anybody knows.
    let other = key_of(2, 0);
    assert!(call(&mut c, &["GET", &other]).starts_with("-MOVED "));
    bench.cluster.crash(ServerId(3));
    bench.cluster.recover(ServerId(3), ServerId(1));
    assert_eq!(call(&mut c, &["GET", &other]), "$-1\r\n");
}

#[test]
fn a_database_without_slots_is_refused_until_it_is_flushed() {
    let mut bench = bench(None);
    let client = bench.cluster.client();
    bench.cluster.run(async {
        let made = client.create_table_hashed("redis:0", None, HashKind::Seeded);
        made.await.unwrap();
    });
    let mut c = bench.connect();
    for words in ["GET a", "SET a 1", "DBSIZE", "SCAN 0", "MGET {a}1 {a}2"] {
        let said = c.say(words);
        assert!(
            said.starts_with("-ERR database 0 is not hashed by slots"),
            "{said}"
        );
    }
    assert_eq!(c.say("FLUSHDB"), "+OK\r\n");
    assert_eq!(c.say("DBSIZE"), ":0\r\n");
    assert!(!c.say("SET a 1").starts_with("-ERR"));
}

#[test]
fn the_ordinary_port_is_no_cluster() {
    let mut bench = Bench::local();
    let mut c = bench.connect();
    let refused = "-ERR This instance has cluster support disabled\r\n";
    for words in [
        "CLUSTER SLOTS",
        "CLUSTER INFO",
        "CLUSTER KEYSLOT a",
        "CLUSTER LINKS",
        "CLUSTER MYID",
        "CLUSTER SHARDS",
        "READONLY",
        "ASKING",
    ] {
        assert_eq!(c.say(words), refused, "{words}");
    }
    assert!(c.say("INFO").contains("cluster_enabled:0"));
}

/// In Redis each node has libraries of its own, so clients send these commands to every node.
#[test]
fn libraries_may_be_loaded_and_deleted_at_every_node() {
    let mut bench = bench(None);
    let mut ordinary = bench.another();
    let (mut c, mut d) = (bench.connect(), ordinary.connect());
    let library = "#!lua name=lib\nredis.register_function('one', function() return 1 end)";
    let changed = "#!lua name=lib\nredis.register_function('one', function() return 2 end)";
    let key = key_of(0, 0);
    let one = ["FCALL", "one", "1", &key];
    let [load, delete] = [["FUNCTION", "LOAD", library], ["FUNCTION", "DELETE", "lib"]];
    let unknown = "-ERR Function not found\r\n";
    let taken = "-ERR Library 'lib' already exists\r\n";
    assert_eq!(call(&mut c, &one), unknown);
    // Another node was first.
    assert_eq!(call(&mut d, &load), "$3\r\nlib\r\n");
    assert_eq!(call(&mut c, &load), "$3\r\nlib\r\n");
    assert_eq!(call(&mut c, &one), ":1\r\n");
    assert_eq!(call(&mut c, &["FUNCTION", "LOAD", changed]), taken);
    assert_eq!(call(&mut d, &load), taken);
    let dump = d.call(&["FUNCTION", "DUMP"]);
    let text = dump.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let restore: [&[u8]; 3] = [b"FUNCTION", b"RESTORE", &dump[text..dump.len() - 2]];
    assert_eq!(c.call(&restore), b"+OK\r\n");
    assert_eq!(d.call(&restore), b"-ERR Library lib already exists\r\n");
    assert_eq!(call(&mut d, &delete), "+OK\r\n");
    assert_eq!(call(&mut c, &delete), "+OK\r\n");
    assert_eq!(call(&mut c, &one), unknown);
    assert_eq!(call(&mut d, &delete), "-ERR Library not found\r\n");
    assert_eq!(c.call(&restore), b"+OK\r\n");
    assert_eq!(call(&mut c, &one), ":1\r\n");
}
