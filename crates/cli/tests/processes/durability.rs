//! Acknowledged writes against `kill -9`: of one server, of several, of everything.

use crate::support::cluster::Cluster;
use crate::support::journal::{Journal, Load, NativeWay, RedisWay};
use crate::support::program::signal;
use crate::support::{Random, Resp, Running, Setup, wait_for};
use rustix::process::Signal;
use serde_json::Value;

/// Changes that must be acknowledged before the next fault.
const MANY: u64 = 1500;

/// Clients of both kinds.
fn clients(cluster: &Cluster, seed: u64) -> Vec<Journal> {
    let redis = |n: u64| {
        let way = RedisWay::new(cluster.all_redis(), seed ^ n);
        Journal::new(format!("r{n}"), seed + n, Box::new(way), 2000)
    };
    let native = |n: u64| {
        let way = NativeWay::new(cluster.coordinator());
        Journal::new(format!("n{n}"), seed + n, Box::new(way), 2000)
    };
    vec![redis(1), redis(2), native(3), native(4)]
}

fn wait_for_changes(load: &Load, more: u64) {
    let wanted = load.acknowledged() + more;
    wait_for("acknowledged changes", || {
        if load.failed() {
            return Ok(());
        }
        let so_far = load.acknowledged();
        let missing = wanted.saturating_sub(so_far);
        (missing == 0)
            .then_some(())
            .ok_or(format!("{missing} more"))
    });
}

/// Compares every key, each client by its own way and by the other one.
#[track_caller]
fn compare_all(cluster: &Cluster, journals: &mut [Journal], redis: &[String]) {
    for (n, journal) in journals.iter_mut().enumerate() {
        journal.go(Box::new(RedisWay::new(redis.to_vec(), n as u64)));
        journal.compare_all().unwrap();
        journal.go(Box::new(NativeWay::new(cluster.coordinator())));
        journal.compare_all().unwrap();
    }
}

/// Clients of a lost server see broken connections; nobody sees more than a delay.
#[track_caller]
fn assert_masked(journals: &[Journal]) {
    for journal in journals {
        assert!(
            journal.refusals().is_empty(),
            "clients saw more than a delay: {:?}",
            journal.refusals()
        );
    }
}

fn done_recoveries(status: &Value) -> usize {
    let recoveries = status["recoveries"].as_array().unwrap();
    recoveries.iter().filter(|r| r["done"] == true).count()
}

#[test]
fn nothing_acknowledged_is_lost_when_servers_are_killed_one_after_the_other_and_then_all() {
    let seed = Random::seed();
    let mut random = Random::new(seed);
    let mut cluster = Setup::servers(4).start();
    let mut alive = vec![0, 1, 2, 3];
    let load = Load::start(clients(&cluster, seed));
    for left in [3, 2] {
        wait_for_changes(&load, MANY);
        let victim = alive.swap_remove(random.below(alive.len() as u64) as usize);
        cluster.kill(victim);
        wait_for_changes(&load, MANY);
        let status = cluster.wait_settled(left);
        assert_eq!(done_recoveries(&status), 4 - left, "{status}");
        // The second victim may hold what the first one's recovery has just written. Two servers
        // cannot have two backups each.
        if left > 2 {
            cluster.wait_replicated();
        }
    }
    wait_for_changes(&load, MANY);
    let mut journals = load.finish().unwrap();
    assert_masked(&journals);
    let redis: Vec<String> = alive.iter().map(|&server| cluster.redis(server)).collect();
    compare_all(&cluster, &mut journals, &redis);

    cluster.kill_all();
    cluster.restart();
    let redis = cluster.all_redis();
    compare_all(&cluster, &mut journals, &redis);
    // Writes go on from where they were: versions still grow.
    let load = Load::start(journals);
    wait_for_changes(&load, MANY);
    let mut journals = load.finish().unwrap();
    compare_all(&cluster, &mut journals, &redis);
}

#[test]
fn two_servers_killed_at_once_lose_nothing_with_three_replicas() {
    let seed = Random::seed();
    let mut random = Random::new(seed);
    let cluster = Setup::servers(5).replicas(3).memory("48MiB").start();
    let load = Load::start(clients(&cluster, seed));
    wait_for_changes(&load, MANY);
    let mut alive = vec![0, 1, 2, 3, 4];
    for _ in 0..2 {
        let victim = alive.swap_remove(random.below(alive.len() as u64) as usize);
        cluster.kill(victim);
    }
    wait_for_changes(&load, MANY);
    cluster.wait_settled(3);
    let mut journals = load.finish().unwrap();
    assert_masked(&journals);
    let redis: Vec<String> = alive.iter().map(|&server| cluster.redis(server)).collect();
    compare_all(&cluster, &mut journals, &redis);
}

/// Only a loss of power, which the simulator has, shows the difference between `synced` and
/// `buffered`. Here `synced` must do all that `buffered` does.
#[test]
fn nothing_acknowledged_is_lost_with_synced_writes() {
    let seed = Random::seed();
    let mut cluster = Setup::servers(3).flags(&["--durability", "synced"]).start();
    let load = Load::start(clients(&cluster, seed));
    wait_for_changes(&load, MANY);
    cluster.kill(2);
    wait_for_changes(&load, MANY);
    cluster.wait_settled(2);
    let mut journals = load.finish().unwrap();
    assert_masked(&journals);
    let redis: Vec<String> = (0..2).map(|server| cluster.redis(server)).collect();
    compare_all(&cluster, &mut journals, &redis);
    cluster.kill_all();
    cluster.restart();
    compare_all(&cluster, &mut journals, &cluster.all_redis());
}

#[test]
fn a_lone_server_comes_back_from_its_own_disk() {
    let seed = Random::seed();
    let mut cluster = Setup::servers(1).start();
    let load = Load::start(clients(&cluster, seed));
    wait_for_changes(&load, MANY);
    let mut journals = load.finish().unwrap();
    for orderly in [true, false] {
        match orderly {
            true => cluster.stop(),
            false => cluster.kill_all(),
        }
        cluster.restart();
        let redis = cluster.all_redis();
        compare_all(&cluster, &mut journals, &redis);
        let load = Load::start(journals);
        wait_for_changes(&load, MANY);
        journals = load.finish().unwrap();
    }
}

// shows: LEASE-1
#[test]
fn reads_and_writes_go_on_without_the_coordinator() {
    let seed = Random::seed();
    let cluster = Setup::servers(3).start();
    let mut journals = clients(&cluster, seed);
    // Everybody knows the map before the coordinator is gone.
    for server in 0..3 {
        assert!(cluster.connect(server).call(&["SET", "k", "v"]).is_ok());
    }
    for journal in &mut journals {
        for _ in 0..50 {
            journal.step().unwrap();
        }
    }
    let load = Load::start(journals);
    wait_for_changes(&load, MANY);
    signal(cluster.coordinator_pid(), Signal::KILL);
    wait_for_changes(&load, MANY);
    // A new connection works as well.
    let mut late = cluster.connect(0);
    assert!(late.call(&["SET", "late", "1"]).is_ok());
    cluster.run(["status", "--timeout", "1s"]).fails(
        1,
        &["error: ", cluster.coordinator(), "is the cluster running"],
    );

    let data = cluster.data().join("coordinator");
    let mut arguments = vec!["coordinator", "--json", "--listen", cluster.coordinator()];
    arguments.extend(["--data", data.to_str().unwrap()]);
    let mut coordinator = Running::start(arguments);
    coordinator.ready();
    cluster.wait_settled(3);
    wait_for_changes(&load, MANY);
    let mut journals = load.finish().unwrap();
    assert_masked(&journals);
    compare_all(&cluster, &mut journals, &cluster.all_redis());
    // It can still do what only a coordinator can.
    cluster.run(["table", "create", "new"]).ok();
    cluster.kill(2);
    cluster.wait_settled(2);
    compare_all(&cluster, &mut journals, &cluster.all_redis()[..2]);
}

#[test]
fn a_server_and_the_coordinator_that_died_together_are_both_started_again() {
    let cluster = Setup::servers(3).flags(&["--respawn"]).start();
    cluster.run(["table", "create", "t"]).ok();
    cluster.run(["put", "t", "k", "v"]).ok();
    let before = cluster.servers()[1]["id"].as_u64().unwrap();
    // A server is ready only when it has found a coordinator.
    cluster.kill(1);
    signal(cluster.coordinator_pid(), Signal::KILL);
    wait_for("both to be there again", || {
        let status = cluster.settled(3)?;
        let ids = status["servers"].as_array().unwrap();
        let replaced = ids.iter().all(|s| s["id"] != before);
        replaced.then_some(()).ok_or(status.to_string())
    });
    assert_eq!(cluster.run(["get", "t", "k"]).ok().text(), "v");
}

#[test]
fn a_respawned_server_is_a_new_one_with_the_old_frames() {
    let seed = Random::seed();
    let mut cluster = Setup::servers(3).flags(&["--respawn"]).start();
    let load = Load::start(clients(&cluster, seed));
    wait_for_changes(&load, MANY);
    let before = cluster.servers()[1]["id"].as_u64().unwrap();
    cluster.kill(1);
    wait_for_changes(&load, MANY);
    wait_for("the server to be replaced", || {
        let status = cluster.status();
        let ids = status["servers"].as_array().unwrap();
        let replaced = ids.iter().all(|s| s["id"] != before) && ids.len() == 3;
        replaced.then_some(()).ok_or(status.to_string())
    });
    let status = cluster.wait_settled(3);
    let newest = status["servers"][2].clone();
    assert!(newest["id"].as_u64().unwrap() > 3, "{status}");
    assert_eq!(
        newest["redis"].as_str().unwrap(),
        cluster.redis(1),
        "clients find it where it was"
    );
    assert!(
        cluster.dev().stderr().contains("died"),
        "{}",
        cluster.dev().stderr()
    );
    let mut journals = load.finish().unwrap();
    assert_masked(&journals);
    compare_all(&cluster, &mut journals, &cluster.all_redis());
    // The new life serves, too.
    let mut direct = Resp::connect(&cluster.redis(1));
    assert!(direct.call(&["SET", "x", "y"]).is_ok());
}
