//! Tables with a durability of their own in real clusters: how they are asked for, what is refused,
//! and what they survive.

use crate::support::native::native;
use crate::support::{Reply, Resp, Setup, wait_for};
use std::fs;

/// The table of database 0.
const TABLE: &str = "redis:0";
const KEYS: usize = 200;

// shows: REP-18, COORD-22
#[test]
fn a_table_keeps_more_replicas_than_its_cluster_and_says_so() {
    let mut cluster = Setup::servers(4).replicas(2).start();
    let create = |arguments: &[&str]| cluster.run([&["table", "create"], arguments].concat());
    create(&[TABLE, "--durability", "synced", "--replicas", "3"]).ok();
    create(&["scratch", "--replicas", "1"]).ok();
    create(&["plain"]).ok();
    create(&["again", "--replicas", "3", "--durability", "synced"]).ok();
    // Impossible wishes are refused, with advice.
    create(&[TABLE, "--replicas", "3"]).fails(2, &["never gets another one"]);
    create(&["x", "--durability", "volatile", "--replicas", "2"]).fails(2, &["has none"]);
    create(&["x", "--durability", "synced", "--replicas", "0"]).fails(2, &["is volatile"]);
    create(&["x", "--replicas", "0"]).fails(1, &["no more are possible"]);
    create(&["x", "--durability", "synced", "--replicas", "1"]).fails(1, &["must be more than"]);
    create(&["x", "--replicas", "4", "--durability", "synced"]).fails(1, &["no more are possible"]);
    cluster
        .run(["settings", "set", "replicas=4"])
        .fails(1, &["which must stay no less"]);
    let shown = cluster.run(["table", "show", TABLE, "--json"]).json();
    assert_eq!(shown["durability"]["durability"], "synced", "{shown}");
    assert_eq!(shown["durability"]["replicas"], 3, "{shown}");
    let list = cluster.run(["table", "list"]).ok().text();
    for words in [
        "synced, 3 replicas",
        "buffered, 1 replica",
        "as the cluster",
    ] {
        assert!(list.contains(words), "{list}");
    }

    let mut redis = cluster.connect(0);
    for n in 0..KEYS {
        let reply = redis.call(&["SET", &format!("k{n}"), &format!("v{n}")]);
        assert!(reply.is_ok(), "{reply:?}");
    }
    let client = native(cluster.coordinator());
    let [plain, scratch] = ["plain", "scratch"].map(|name| client.table(name).unwrap());
    for table in [&plain, &scratch] {
        client.write(table, b"key", "value").unwrap();
    }
    drop((client, redis));
    let mut redis = cluster.connect(1);
    cluster.kill(3);
    cluster.wait_settled(3);
    for n in 0..KEYS {
        let reply = redis.call(&["GET", &format!("k{n}")]);
        assert_eq!(reply, Reply::bulk(format!("v{n}")));
    }
    // The table is made anew, with its durability.
    assert!(redis.call(&["FLUSHDB"]).is_ok());
    wait_for("a new table", || {
        let reply = redis.call(&["SET", "new", "value"]);
        reply.is_ok().then_some(()).ok_or(format!("{reply:?}"))
    });
    let shown = cluster.run(["table", "show", TABLE, "--json"]).json();
    assert_eq!(shown["durability"]["replicas"], 3, "{shown}");

    cluster.kill_all();
    cluster.restart();
    let client = native(cluster.coordinator());
    for name in ["plain", "scratch"] {
        let table = client.table(name).unwrap();
        let found = client.read(&table, b"key").unwrap().unwrap();
        assert_eq!(&found.value[..], b"value");
    }
    let mut redis = cluster.connect(0);
    assert_eq!(redis.call(&["GET", "new"]), Reply::bulk("value"));
}

fn durability(cluster: &crate::support::cluster::Cluster, table: &str) -> serde_json::Value {
    let shown = cluster.run(["table", "show", table, "--json"]).json();
    shown["durability"].clone()
}

#[test]
fn a_restored_table_is_kept_as_it_was_or_the_restore_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let made = Setup::servers(2).replicas(1).start();
    let create = ["table", "create", "ledger", "--durability", "synced"];
    made.run(create).ok();
    made.run(["table", "create", "plain"]).ok();
    for table in ["ledger", "plain"] {
        made.run(["put", table, "key", "value"]).ok();
    }
    let had = durability(&made, "ledger");
    let archive = made.run(["backup", place, "--json"]).json();
    let tables = archive["tables"].as_array().unwrap();
    let of = |name: &str| tables.iter().find(|table| table["name"] == name).unwrap();
    assert_eq!(of("ledger")["durability"]["replicas"], 1, "{archive}");
    assert_eq!(of("ledger")["durability"]["synced"], true, "{archive}");
    assert!(of("plain")["durability"].is_null(), "{archive}");
    // An earlier program refuses the archive instead of forgetting that.
    let path = format!(
        "{place}/archives/{}.json",
        archive["archive"].as_str().unwrap()
    );
    let text = fs::read_to_string(path).unwrap();
    assert!(text.starts_with("{\"pluvio_archive\":3,"), "{text}");

    // A table that is there stays what it is, and that is said.
    made.run(["table", "drop", "ledger"]).ok();
    made.run(["table", "create", "ledger"]).ok();
    let restored = made.run(["restore", place, "--table", "ledger"]).ok();
    assert!(restored.stderr.contains("keeps its durability"));
    assert!(durability(&made, "ledger").is_null());
    made.run(["table", "drop", "ledger"]).ok();
    made.run(["restore", place, "--table", "ledger"]).ok();
    assert_eq!(durability(&made, "ledger"), had);
    drop(made);

    // Two buffered replicas compare with no single synced one.
    let other = Setup::servers(3).replicas(2).start();
    let refused = other.run(["restore", place]);
    refused.fails(1, &["ledger", "No object was written", "--as-cluster"]);
    let list = other.run(["table", "list"]).ok().text();
    assert!(
        !list.contains("plain"),
        "the refused table comes first: {list}"
    );
    other.run(["restore", place, "--as-cluster"]).ok();
    for table in ["ledger", "plain"] {
        let object = other.run(["get", table, "key", "--json"]).json();
        assert_eq!(object["value"], "value");
    }
    assert!(durability(&other, "ledger").is_null());
}

/// A cache beside data: database 1 is volatile.
// shows: COORD-23
#[test]
fn a_volatile_table_is_empty_after_its_servers_died_and_the_others_have_everything() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let mut cluster = Setup::servers(3).replicas(2).start();
    let create = ["table", "create", "redis:1", "--durability", "volatile"];
    cluster.run(create).ok();
    let shown = durability(&cluster, "redis:1");
    assert_eq!(shown["durability"], "volatile", "{shown}");
    assert_eq!(shown["replicas"], 0, "{shown}");
    let list = cluster.run(["table", "list"]).ok().text();
    assert!(list.contains("volatile"), "{list}");

    let fill = |redis: &mut Resp| {
        for database in ["0", "1"] {
            assert!(redis.call(&["SELECT", database]).is_ok());
            for n in 0..KEYS {
                let set = redis.call(&["SET", &format!("k{n}"), &format!("v{n}")]);
                assert!(set.is_ok(), "{set:?}");
            }
        }
    };
    let found = |redis: &mut Resp, database: &str| {
        assert!(redis.call(&["SELECT", database]).is_ok());
        let all = (0..KEYS).filter(|n| {
            let reply = redis.call(&["GET", &format!("k{n}")]);
            let is_there = reply == Reply::bulk(format!("v{n}"));
            assert!(is_there || reply == Reply::Nil, "{reply:?}");
            is_there
        });
        all.count()
    };
    let mut redis = cluster.connect(0);
    fill(&mut redis);
    // What is acknowledged there has no replica.
    assert_eq!(redis.call(&["WAIT", "1", "0"]), Reply::Integer(0));
    let no_file = redis.call(&["WAITAOF", "1", "0", "0"]);
    assert!(no_file.error().is_some(), "{no_file:?}");
    // Both together cannot be all or nothing.
    let both = redis.call(&["COPY", "k1", "k1", "DB", "0", "REPLACE"]);
    assert!(
        both.error()
            .is_some_and(|text| text.contains("is volatile")),
        "{both:?}"
    );
    let alone = redis.call(&["COPY", "k1", "k0", "REPLACE"]);
    assert_eq!(alone, Reply::Integer(1));
    assert!(redis.call(&["SET", "k0", "v0"]).is_ok());

    // An archive has its objects, too.
    cluster.run(["backup", place]).ok();

    cluster.kill(2);
    cluster.wait_settled(2);
    let left = found(&mut redis, "1");
    assert!((1..KEYS).contains(&left), "{left}");
    assert_eq!(found(&mut redis, "0"), KEYS);
    fill(&mut redis);
    assert_eq!(found(&mut redis, "1"), KEYS);

    assert!(redis.call(&["FLUSHDB"]).is_ok());
    wait_for("a new table", || {
        let reply = redis.call(&["SET", "new", "value"]);
        reply.is_ok().then_some(()).ok_or(format!("{reply:?}"))
    });
    assert_eq!(durability(&cluster, "redis:1"), shown);

    cluster.kill_all();
    cluster.restart();
    let mut redis = cluster.connect(0);
    assert_eq!(found(&mut redis, "0"), KEYS);
    assert!(redis.call(&["SELECT", "1"]).is_ok());
    assert_eq!(redis.call(&["GET", "new"]), Reply::Nil);
    cluster.run(["restore", place, "--table", "redis:1"]).ok();
    assert_eq!(found(&mut redis, "1"), KEYS);
}
