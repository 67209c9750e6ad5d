//! Keys that expire in a real cluster. Their memory comes back without a read. They stay gone when
//! their server is killed, and when the whole cluster starts again.

use crate::support::cluster::{Cluster, Setup};
use crate::support::patience::wait_for;
use crate::support::resp::{Reply, Resp};

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
