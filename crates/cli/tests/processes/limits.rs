//! Keys and values at the limit and one over, empty ones, and bytes that are no text.

use crate::support::cluster::Cluster;
use crate::support::{Reply, Setup};

const KEY_MAX: usize = 64 << 10;
const VALUE_MAX: usize = 1 << 20;

#[test]
fn limits_are_exact_on_both_ways_in() {
    let cluster = Setup::servers(2).start();
    cluster.run(["table", "create", "redis:0"]).ok();
    keys(&cluster);
    values(&cluster);
    empty_ones(&cluster);
    binary_ones(&cluster);
}

fn keys(cluster: &Cluster) {
    let longest = "k".repeat(KEY_MAX);
    let longer = "k".repeat(KEY_MAX + 1);
    for server in 0..2 {
        let mut redis = cluster.connect(server);
        assert!(redis.call(&["SET", &longest, "v"]).is_ok());
        assert_eq!(redis.call(&["GET", &longest]), Reply::bulk("v"));
        let refused = redis.call(&["SET", &longer, "v"]);
        let text = refused.error().unwrap_or_default();
        assert!(
            text.starts_with("ERR ") && text.contains("65536"),
            "{refused:?}"
        );
        // The connection goes on.
        assert_eq!(redis.call(&["DEL", &longest]), Reply::Integer(1));
    }
    cluster.run(["put", "redis:0", &longest, "native"]).ok();
    assert_eq!(
        cluster.run(["get", "redis:0", &longest]).ok().text(),
        "native"
    );
    cluster
        .run(["put", "redis:0", &longer, "v"])
        .fails(1, &["error: ", "65536"]);
    cluster
        .run(["get", "redis:0", &longer])
        .fails(1, &["error: "]);
    cluster.run(["delete", "redis:0", &longest]).ok();
}

fn values(cluster: &Cluster) {
    let longest = vec![b'v'; VALUE_MAX];
    let longer = vec![b'v'; VALUE_MAX + 1];
    let mut redis = cluster.connect(0);
    assert!(redis.call(&[b"SET", &b"k"[..], &longest]).is_ok());
    assert_eq!(redis.call(&["GET", "k"]), Reply::bulk(&longest));
    let refused = redis.call(&[b"SET", &b"k"[..], &longer]);
    assert_eq!(
        refused.error(),
        Some("ERR string exceeds maximum allowed size (1048576 bytes)")
    );
    for growing in [
        &["APPEND", "k", "x"][..],
        &["SETRANGE", "k", "1048576", "x"],
    ] {
        let refused = redis.call(growing);
        assert!(
            refused.error().is_some_and(|e| e.contains("1048576")),
            "{refused:?}"
        );
    }
    assert_eq!(
        redis.call(&["STRLEN", "k"]),
        Reply::Integer(VALUE_MAX as i64)
    );
    // Far over the limit: read, dropped and refused; the connection goes on.
    let refused = redis.call(&[b"SET", &b"k"[..], &vec![b'v'; 20 << 20]]);
    assert!(refused.error().is_some(), "{refused:?}");
    assert_eq!(redis.call(&["GET", "k"]), Reply::bulk(&longest));

    cluster
        .run_with(["put", "redis:0", "n", "-"], &longest)
        .ok();
    assert_eq!(cluster.run(["get", "redis:0", "n"]).ok().stdout, longest);
    cluster
        .run_with(["put", "redis:0", "n", "-"], &longer)
        .fails(1, &["error: ", "1048576"]);
    // The longest key with the longest value.
    let key = "K".repeat(KEY_MAX);
    cluster
        .run_with(["put", "redis:0", &key, "-"], &longest)
        .ok();
    assert_eq!(cluster.run(["get", "redis:0", &key]).ok().stdout, longest);
    for key in ["k", "n", &key] {
        cluster.run(["delete", "redis:0", key]).ok();
    }
}

fn empty_ones(cluster: &Cluster) {
    let mut redis = cluster.connect(1);
    assert!(redis.call(&["SET", "", ""]).is_ok());
    assert_eq!(redis.call(&["GET", ""]), Reply::bulk(""));
    assert_eq!(redis.call(&["EXISTS", ""]), Reply::Integer(1));
    let got = cluster.run(["get", "redis:0", "", "--json"]).json();
    assert_eq!((&got["key"], &got["value"]), (&"".into(), &"".into()));
    cluster.run(["put", "redis:0", "", "x"]).ok();
    assert_eq!(redis.call(&["GETDEL", ""]), Reply::bulk("x"));
    assert_eq!(redis.call(&["GET", ""]), Reply::Nil);
}

fn binary_ones(cluster: &Cluster) {
    let all: Vec<u8> = (0..=255).collect();
    let mut redis = cluster.connect(0);
    let stored = redis.call(&[b"SET", &all[..], &all]);
    assert!(stored.is_ok());
    assert_eq!(redis.call(&[b"GET", &all[..]]), Reply::bulk(&all));
    let hex: String = all.iter().map(|byte| format!("{byte:02x}")).collect();
    let got = cluster.run(["get", "redis:0", &hex, "--key-hex"]).ok();
    assert_eq!(got.stdout, all, "the same object");
    for key in [
        &b"\r\n"[..],
        b"\0",
        b"a\0b",
        b" ",
        b"*1\r\n$4\r\nPING\r\n",
        b"\xff\xfe",
    ] {
        assert!(redis.call(&[b"SET", key, key]).is_ok());
        assert_eq!(redis.call(&[b"GET", key]), Reply::bulk(key));
        assert_eq!(redis.call(&[b"DEL", key]), Reply::Integer(1));
    }
}
