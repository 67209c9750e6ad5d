//! Quotas of tables in real clusters: filled by clients of both kinds, over crashes and moves.

use crate::support::cluster::Cluster;
use crate::support::native::native;
use crate::support::patience::Watch;
use crate::support::{Reply, Resp, Setup, http, wait_for};
use pluvio_client::{ErrorKind, QuotaWish};
use serde_json::Value;

/// The table of database 0.
const TABLE: &str = "redis:0";
/// What it may have.
const QUOTA: u64 = 2 << 20;
/// Bytes of a value.
const VALUE: usize = 16 << 10;

fn shown(cluster: &Cluster) -> Value {
    cluster.run(["table", "show", TABLE, "--json"]).json()
}

/// Bytes of keys and values of the table, as its objects have them: not as quotas count them.
fn bytes(cluster: &Cluster) -> u64 {
    let mut redis = cluster.connect(0);
    let Reply::Array(keys) = redis.call(&["KEYS", "*"]) else {
        panic!("no keys");
    };
    let mut sum = 0;
    for key in keys {
        let Reply::Bulk(key) = key else {
            panic!("{key:?} is no key");
        };
        let Reply::Integer(length) = redis.call(&[b"STRLEN".as_slice(), &key]) else {
            panic!("no length");
        };
        sum += key.len() as u64 + length.unsigned_abs();
    }
    sum
}

/// Sets keys until one is refused for good; gives how many were set, and the words.
fn fill(redis: &mut Resp, prefix: &str) -> (usize, String) {
    let value = "v".repeat(VALUE);
    let mut set = 0;
    for n in 0..1000 {
        match redis.call(&["SET", &format!("{prefix}{n}"), &value]) {
            Reply::Error(text) if text.starts_with("TRYAGAIN") => {}
            Reply::Error(text) => return (set, text.into_owned()),
            reply => {
                assert!(reply.is_ok(), "{reply:?}");
                set += 1;
            }
        }
    }
    panic!("the quota was never full");
}

/// Fills the table until it is as full as it may be. Where objects were deleted a moment ago, other
/// owners have not heard of it yet.
fn fill_up(cluster: &Cluster, prefix: &str) {
    let mut turns = 0;
    wait_for("the table to be full", || {
        turns += 1;
        let (set, refusal) = fill(&mut cluster.connect(0), &format!("{prefix}{turns}-"));
        let words = format!("OOM table {TABLE} has its quota of {QUOTA} bytes");
        assert!(refusal.starts_with(&words), "{refusal}");
        let bytes = bytes(cluster);
        assert!(bytes <= QUOTA, "{set} more came to {bytes}");
        let is_full = bytes > QUOTA - 2 * VALUE as u64;
        is_full
            .then_some(())
            .ok_or(format!("{set} more came to {bytes}"))
    });
}

fn delete_some(cluster: &Cluster, count: usize) {
    let mut redis = cluster.connect(0);
    let Reply::Array(keys) = redis.call(&["KEYS", "*"]) else {
        panic!("no keys");
    };
    for key in keys.into_iter().take(count) {
        let Reply::Bulk(key) = key else {
            panic!("{key:?} is no key");
        };
        let reply = redis.call(&[b"DEL".as_slice(), &key]);
        assert_eq!(reply, Reply::Integer(1));
    }
}

// shows: QUOTA-1, QUOTA-2, MASTER-7, COORD-20
#[test]
fn a_table_keeps_to_its_bytes_over_crashes_and_moves() {
    let cluster = Setup::servers(3).start();
    let limit = QUOTA.to_string();
    cluster
        .run(["table", "create", TABLE, "--quota-bytes", &limit])
        .ok();
    cluster
        .run(["table", "create", TABLE, "--quota-bytes", &limit])
        .fails(2, &["pluvio table set"]);
    cluster.run(["table", "create", "free"]).ok();
    fill_up(&cluster, "a");

    // Changes that keep the size go on, through every server.
    let mut redis = cluster.connect(1);
    let same = "w".repeat(VALUE);
    assert!(redis.call(&["SET", "a1-0", &same]).is_ok());
    assert!(redis.call(&["SETRANGE", "a1-1", "5", "xyz"]) == Reply::Integer(VALUE as i64));
    assert_eq!(
        redis.call(&["GETDEL", "a1-2"]),
        Reply::bulk("v".repeat(VALUE))
    );
    assert!(redis.call(&["SET", "a1-2", &same]).is_ok());
    // A transaction or a script is refused whole, at one owner and at several.
    let is_oom = |reply: &Reply| reply.error().is_some_and(|text| text.contains("OOM table"));
    for keys in [["{x}1", "{x}2"], ["y1", "z8"]] {
        assert!(redis.call(&["MULTI"]).is_ok());
        redis.call(&["SET", keys[0], &same]);
        redis.call(&["SET", keys[1], &same]);
        let reply = redis.call(&["EXEC"]);
        assert!(is_oom(&reply), "{reply:?}");
        let reply = redis.call(&["MSET", keys[0], &same, keys[1], &same]);
        assert!(is_oom(&reply), "{reply:?}");
        assert_eq!(redis.call(&["EXISTS", keys[0], keys[1]]), Reply::Integer(0));
    }
    let script = "redis.call('SET', KEYS[1], ARGV[1]) redis.call('SET', KEYS[2], ARGV[1])";
    let reply = redis.call(&["EVAL", script, "2", "{x}1", "{x}2", &same]);
    assert!(is_oom(&reply), "{reply:?}");
    assert_eq!(redis.call(&["EXISTS", "{x}1", "{x}2"]), Reply::Integer(0));
    let client = native(cluster.coordinator());
    let table = client.table(TABLE).unwrap();
    let refused = client
        .write(&table, b"native", same.clone().into_bytes())
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OverQuota, "{refused}");
    assert!(!refused.is_retryable() && !refused.maybe_executed());
    let free = client.table("free").unwrap();
    client
        .write(&free, b"native", same.clone().into_bytes())
        .unwrap();
    let state = shown(&cluster);
    assert_eq!(state["quota"]["bytes"], QUOTA, "{state}");
    let admin = cluster.ready()["coordinator"]["admin"].as_str().unwrap();
    wait_for("the coordinator to tell of refusals", || {
        let page = http::get(admin, "/metrics");
        let told = page.lines().any(|line| {
            let rest = line.strip_prefix("pluvio_table_quota_refused{");
            rest.is_some_and(|rest| !rest.ends_with(" 0"))
        });
        told.then_some(()).ok_or(page)
    });

    // The owner of a third of it dies: what comes back is counted, and there is no more room.
    cluster.kill(2);
    cluster.wait_settled(2);
    let (set, _) = fill(&mut cluster.connect(0), "b");
    assert!(bytes(&cluster) <= QUOTA, "{set} more");
    delete_some(&cluster, 20);
    fill_up(&cluster, "c");

    // All of it moves to one server, while somebody writes.
    let to = cluster.servers()[0]["id"].to_string();
    for tablet in shown(&cluster)["tablets"].as_array().unwrap() {
        let first = tablet["first"].as_str().unwrap();
        let moved = ["table", "migrate", TABLE, "--at", first, "--to", &to];
        cluster.run(moved).ok();
        let refusal = fill(&mut cluster.connect(1), "d").1;
        assert!(refusal.starts_with("OOM table"), "{refusal}");
        assert!(bytes(&cluster) <= QUOTA);
    }
    delete_some(&cluster, 10);
    fill_up(&cluster, "e");

    // FLUSHDB keeps the quota; a larger one lets more in, and none lets all in.
    assert!(redis.call(&["FLUSHDB"]).is_ok());
    fill_up(&cluster, "f");
    let twice = (2 * QUOTA).to_string();
    cluster
        .run(["table", "set", TABLE, "--quota-bytes", &twice])
        .ok();
    wait_for("room", || match fill(&mut cluster.connect(1), "g") {
        (0, refusal) => Err(refusal),
        _ => Ok(()),
    });
    assert!(bytes(&cluster) <= 2 * QUOTA);
    let lift = QuotaWish {
        bytes: Some(0),
        operations: None,
    };
    client.set_quota(TABLE, lift).unwrap();
    wait_for("no quota", || {
        let reply = redis.call(&["SET", "h", &"h".repeat(1 << 20)]);
        reply.is_ok().then_some(()).ok_or(format!("{reply:?}"))
    });
    assert_eq!(shown(&cluster)["quota"], Value::Null);
}

#[test]
fn a_table_keeps_to_its_operations() {
    let cluster = Setup::servers(2).start();
    cluster
        .run(["table", "create", TABLE, "--quota-ops", "100"])
        .ok();
    cluster
        .run(["table", "set", TABLE])
        .fails(2, &["--quota-bytes or --quota-ops"]);
    let mut redis = cluster.connect(0);
    wait_for("a share", || {
        let reply = redis.call(&["SET", "k", "v"]);
        reply.is_ok().then_some(()).ok_or(format!("{reply:?}"))
    });
    // Whatever the machine does meanwhile, no more are done than a second's and those of the time.
    let watch = Watch::start();
    let mut done = 0;
    while done < 300 {
        let reply = redis.call(&["GET", "k"]);
        match reply.error() {
            None => done += 1,
            Some(text) => assert!(text.starts_with("BUSY "), "{text}"),
        }
    }
    let most = 100.0 * (watch.passed().as_secs_f64() + 1.0);
    assert!(f64::from(done) <= most, "{done} of {most}");
    // Deletions are never refused.
    for n in 0..200 {
        let key = format!("n{n}");
        assert_eq!(redis.call(&["DEL", &key]), Reply::Integer(0));
    }
    cluster
        .run(["table", "set", TABLE, "--quota-ops", "1"])
        .ok();
    // A program that waits for long enough gets through; others are told that it is busy.
    let mut many: Vec<Resp> = (0..20).map(|_| cluster.connect(1)).collect();
    wait_for("operations to be refused", || {
        for redis in &mut many {
            redis.ask(&["GET", "k"]);
        }
        let replies: Vec<Reply> = many
            .iter_mut()
            .map(|redis| redis.reply().unwrap())
            .collect();
        let is_busy = |reply: &Reply| reply.error().is_some_and(|text| text.starts_with("BUSY "));
        let busy = replies.iter().any(is_busy);
        busy.then_some(()).ok_or(format!("{replies:?}"))
    });
    let servers = cluster.servers().iter();
    let refused = servers.map(|server| {
        let admin = server["admin"].as_str().unwrap();
        http::metric(admin, "pluvio_quota_operations_refused_total")
    });
    assert!(refused.sum::<u64>() > 0);
    cluster
        .run(["table", "set", TABLE, "--quota-ops", "none"])
        .ok();
    wait_for("no quota", || {
        let replies = (0..100).map(|_| redis.call(&["GET", "k"]));
        let all: Vec<Reply> = replies.filter(|reply| reply.error().is_some()).collect();
        all.is_empty().then_some(()).ok_or(format!("{all:?}"))
    });
}
