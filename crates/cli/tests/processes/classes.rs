//! Tables with a durability of their own in real clusters: how they are asked for, what is refused,
//! and what they survive.

use crate::support::native::native;
use crate::support::{Reply, Setup, wait_for};

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
    create(&["x", "--durability", "volatile"]).fails(2, &["--replicas 0"]);
    create(&["x", "--replicas", "0"]).fails(1, &["without replicas is not possible"]);
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
