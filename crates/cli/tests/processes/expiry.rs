//! Keys that expire in a real cluster. Their memory comes back without a read. They stay gone when
//! their server is killed, and when the whole cluster starts again. Deadlines on the command line,
//! and in files that go out and in.

use crate::support::cluster::{Cluster, Setup};
use crate::support::patience::wait_for;
use crate::support::pluvio;
use crate::support::resp::{Reply, Resp};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;

const KEYS: usize = 200;

fn is_there(redis: &mut Resp, name: &str) -> usize {
    let keys = (0..KEYS).map(|n| format!("{name} {n}"));
    let there = keys.filter(|key| redis.call(&["EXISTS", key]) == Reply::Integer(1));
    there.count()
}

#[track_caller]
fn only_long_ones_are_there(cluster: &Cluster) {
    let mut redis = cluster.connect(0);
    assert_eq!(is_there(&mut redis, "short"), 0);
    assert_eq!(is_there(&mut redis, "long"), KEYS);
    let Reply::Integer(left) = redis.call(&["TTL", "long 7"]) else {
        panic!("a time is a number");
    };
    assert!((9_000..=10_000).contains(&left), "{left}");
}

#[test]
fn keys_that_expired_stay_gone_after_a_kill_and_a_restart() {
    // One more than two replicas need, for one is killed.
    let mut cluster = Setup::servers(4).start();
    let mut redis = cluster.connect(0);
    for n in 0..KEYS {
        let (short, long) = (format!("short {n}"), format!("long {n}"));
        assert!(redis.call(&["SET", &short, "v", "PX", "700"]).is_ok());
        assert!(redis.call(&["SET", &long, "v", "EX", "10000"]).is_ok());
    }
    // Nobody reads them, and yet they go.
    wait_for("the memory of expired keys", || {
        let left = redis.call(&["DBSIZE"]);
        let done = left == Reply::Integer(KEYS as i64);
        done.then_some(()).ok_or_else(|| format!("{left:?} keys"))
    });
    only_long_ones_are_there(&cluster);
    cluster.kill(2);
    only_long_ones_are_there(&cluster);
    cluster.wait_settled(3);
    cluster.wait_replicated();
    cluster.kill_all();
    cluster.restart();
    only_long_ones_are_there(&cluster);
}

/// Deadlines in 2100 and later, so that nothing with one expires here.
const FAR_MS: u64 = 4_102_444_800_000;

/// The deadlines of a table's objects, by their keys; `None` lives for ever.
fn deadlines(cluster: &Cluster, table: &str) -> BTreeMap<String, Option<u64>> {
    let text = cluster.run(["scan", table, "--json"]).ok().text();
    let object = |line: &str| {
        let object: Value = serde_json::from_str(line).unwrap();
        let key = object["key"].as_str().unwrap().to_owned();
        (key, object["expires_at_ms"].as_u64())
    };
    text.lines().map(object).collect()
}

#[test]
fn the_command_line_gives_changes_shows_and_takes_deadlines() {
    let cluster = Setup::servers(2).start();
    let run = |arguments: &[&str]| cluster.run(arguments);
    let shown = |key: &str| run(&["get", "t", key, "--json"]).json();
    let far = FAR_MS.to_string();
    run(&["table", "create", "t"]).ok();
    run(&["put", "t", "a", "1", "--expires-at", &far]).ok();
    assert_eq!(shown("a")["expires_at_ms"], FAR_MS);
    assert_eq!(shown("a")["value"], "1");
    run(&["put", "t", "a", "2", "--keep-ttl"]).ok();
    assert_eq!(shown("a")["expires_at_ms"], FAR_MS);
    run(&["incr", "t", "a"]).ok();
    assert_eq!(shown("a")["expires_at_ms"], FAR_MS, "a change keeps it");
    run(&["put", "t", "a", "4"]).ok();
    assert_eq!(shown("a").get("expires_at_ms"), None, "a put ends it");
    run(&["expire", "t", "a", "--ttl", "1h"]).ok();
    let hour = shown("a")["expires_at_ms"].as_u64().unwrap();
    let changed = run(&["expire", "t", "a", "--ttl", "2h", "--json"]).json();
    assert_eq!(changed["changed"], true);
    let two = shown("a")["expires_at_ms"].as_u64().unwrap();
    assert!(
        (3_600_000..4_000_000).contains(&(two - hour)),
        "{hour} {two}"
    );
    let version = changed["version"].to_string();
    let other = ["--if-version", "1"];
    run(&[&["persist", "t", "a"], &other[..]].concat()).fails(1, &["not done", &version]);
    run(&["persist", "t", "a", "--if-version", &version]).ok();
    assert_eq!(shown("a").get("expires_at_ms"), None);
    let again = run(&["persist", "t", "a", "--json"]).json();
    assert_eq!(again["changed"], false);
    // With conditions, in one write.
    run(&["put", "t", "a", "5", "--if-absent", "--ttl", "1h"]).fails(1, &["not done"]);
    run(&["put", "t", "b", "1", "--if-absent", "--ttl", "1h"]).ok();
    assert!(shown("b")["expires_at_ms"].is_u64());
    // One that is past deletes.
    run(&["expire", "t", "b", "--expires-at", "1"]).ok();
    for command in [
        &["get", "t", "b"][..],
        &["get", "t", "b", "--json"],
        &["persist", "t", "b"],
        &["expire", "t", "b", "--ttl", "1h"],
    ] {
        run(command).fails(1, &["error: not found"]);
    }
    run(&["put", "t", "c", "1", "--expires-at", "1"]).ok();
    run(&["get", "t", "c"]).fails(1, &["error: not found"]);
    run(&["put", "t", "d", "1", "--ttl", "1ms"]).ok();
    wait_for("an object to expire", || {
        let code = run(&["get", "t", "d"]).code;
        (code == Some(1)).then_some(()).ok_or("it is there".into())
    });
    assert_eq!(
        deadlines(&cluster, "t"),
        BTreeMap::from([("a".into(), None)])
    );
}

#[test]
fn nonsense_is_no_lifetime() {
    for (flag, nonsense) in [
        ("--ttl", "0"),
        ("--ttl", "-1"),
        ("--ttl", "-5s"),
        ("--ttl", "1.5h"),
        ("--ttl", "soon"),
        ("--ttl", "9223372036854775808ms"),
        ("--ttl", "99999999999999999999d"),
        ("--expires-at", "0"),
        ("--expires-at", "-1"),
        ("--expires-at", "tomorrow"),
        ("--expires-at", "9223372036854775808"),
        ("--expires-at", "18446744073709551617"),
    ] {
        for command in [&["put", "t", "k", "v"][..], &["expire", "t", "k"]] {
            let arguments = [command, &[flag, nonsense]].concat();
            pluvio(&arguments).fails(2, &["error: ", flag, nonsense]);
        }
    }
    pluvio(["expire", "t", "k"]).fails(2, &["error: ", "--ttl or --expires-at"]);
    let both = ["expire", "t", "k", "--ttl", "1s", "--expires-at", "1"];
    pluvio(both).fails(2, &["error: ", "--expires-at"]);
    let keeping = ["put", "t", "k", "v", "--ttl", "1s", "--keep-ttl"];
    pluvio(keeping).fails(2, &["error: ", "--keep-ttl"]);
    let lines = ["import", "t", "f", "--format", "lines", "--expires-at", "f"];
    pluvio(lines).fails(2, &["error: ", "--expires-at"]);
}

#[test]
fn deadlines_go_out_in_a_file_and_come_back() {
    let cluster = Setup::servers(2).start();
    let run = |arguments: &[&str]| cluster.run(arguments);
    run(&["table", "create", "from"]).ok();
    let mut expected = BTreeMap::new();
    for n in 0..20_u64 {
        let (key, at) = (n.to_string(), FAR_MS + n);
        let mut put = vec!["put", "from", &key, "v"];
        let at_text = at.to_string();
        if n % 2 == 0 {
            put.extend(["--expires-at", &at_text]);
        }
        run(&put).ok();
        expected.insert(key, (n % 2 == 0).then_some(at));
    }
    run(&["put", "from", "gone", "v", "--expires-at", "1"]).ok();
    assert_eq!(deadlines(&cluster, "from"), expected);
    let file = cluster.directory().join("out.export");
    let file = file.to_str().unwrap();
    assert_eq!(
        run(&["export", "from", file, "--json"]).json()["objects"],
        20
    );
    let written = fs::read_to_string(file).unwrap();
    assert!(!written.contains("gone"), "{written}");
    let import = |table: &str, format: &str, text: &str, flags: &[&str]| {
        let mut arguments = vec!["import", table, "-", "--format", format, "--json"];
        arguments.extend(flags);
        cluster.run_with(arguments, text.as_bytes())
    };
    let summary = import("to", "export", &written, &[]).json();
    assert_eq!(
        (&summary["records"], &summary["expired"]),
        (&json!(20), &json!(0))
    );
    assert_eq!(deadlines(&cluster, "to"), expected);
    // A file of an earlier version has no deadlines, and so have its objects.
    let old = "{\"key\":\"0\",\"value\":\"old\"}\n";
    import("to", "export", old, &[]).ok();
    assert_eq!(deadlines(&cluster, "to")["0"], None);
    // A record that is past is counted and not written; the object at its key stays.
    let line = |key: &str, ms: &str| {
        format!("{{\"key\":\"{key}\",\"value\":\"new\",\"expires_at_ms\":{ms}}}\n")
    };
    let past = [
        line("2", "1"),
        line("new", "1700000000000"),
        line("4", "4102444800004"),
    ]
    .concat();
    let output = import("to", "export", &past, &[]).ok();
    assert!(
        output.stderr.contains("2 records that had expired"),
        "{output:?}"
    );
    let summary = output.json();
    assert_eq!(
        (&summary["records"], &summary["expired"]),
        (&json!(1), &json!(2))
    );
    let mut left = expected.clone();
    left.insert("0".into(), None);
    assert_eq!(deadlines(&cluster, "to"), left);
    assert_eq!(run(&["get", "to", "2"]).ok().text(), "v");
    assert_eq!(run(&["get", "to", "4"]).ok().text(), "new");
    for nonsense in ["0", "-1", "1.5", "9223372036854775808", "\"soon\"", "[]"] {
        let bad = line("2", nonsense);
        import("to", "export", &bad, &[]).fails(1, &["error: ", "line 1", "expires_at_ms"]);
        let skipped = import("to", "export", &bad, &["--skip-bad"]).json();
        assert_eq!(
            (&skipped["records"], &skipped["bad"]),
            (&json!(0), &json!(1))
        );
    }
    // Files of others name the field.
    let field = ["--key", "id", "--expires-at", "until"];
    let csv = format!("id,until\na,{FAR_MS}\nb,\nc,1\n");
    let summary = import("csv", "csv", &csv, &field).json();
    assert_eq!(
        (&summary["records"], &summary["expired"]),
        (&json!(2), &json!(1))
    );
    let found = deadlines(&cluster, "csv");
    let expected = [("a".into(), Some(FAR_MS)), ("b".into(), None)];
    assert_eq!(found, BTreeMap::from(expected));
}
