//! Planned stops of real servers: one after the other under load, and what `pluvio drain` says.

use crate::support::cluster::Cluster;
use crate::support::journal::{Journal, Load, NativeWay, RedisWay};
use crate::support::patience::wait_for;
use crate::support::program::{runs, signal};
use crate::support::{Random, Setup};
use redis::Commands;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;

/// Changes that must be acknowledged between two restarts.
const MANY: u64 = 300;

/// The server, as `status` shows it, that speaks the Redis protocol at this address.
fn server_at(status: &Value, redis: &str) -> Value {
    let servers = status["servers"].as_array().unwrap();
    let found = servers.iter().find(|s| s["redis"] == redis);
    found.unwrap_or_else(|| panic!("{redis}: {status}")).clone()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

fn wait_for_changes(load: &Load) {
    let wanted = load.acknowledged() + MANY;
    wait_for("acknowledged changes", || {
        let so_far = load.acknowledged();
        let enough = so_far >= wanted || load.failed();
        enough.then_some(()).ok_or(format!("{so_far} of {wanted}"))
    });
}

/// Asks a server to stop, and waits until its process has ended, without a recovery.
fn stop(cluster: &Cluster, server: &Value) {
    let pid = u32::try_from(number(&server["pid"])).unwrap();
    signal(pid, Signal::TERM);
    let data = cluster.data().display().to_string();
    wait_for("a server that was stopped to end", || {
        (!runs(pid, &data)).then_some(()).ok_or(pid.to_string())
    });
}

/// The stock client keeps one connection to a server and makes it anew when that was closed, as
/// pools do. The server closes it between two commands.
fn count(client: &redis::Client, connection: &mut Option<redis::Connection>) {
    for _ in 0..2 {
        let mut open = match connection.take() {
            Some(open) => open,
            None => client.get_connection().unwrap(),
        };
        match open.incr::<_, _, i64>("stock", 1) {
            Ok(_) => {
                *connection = Some(open);
                return;
            }
            // It was closed since the last command.
            Err(error) if error.is_connection_dropped() || error.is_io_error() => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("a new connection was closed, too");
}

#[test]
fn servers_are_restarted_one_after_the_other_without_an_error_or_a_recovery() {
    let seed = Random::seed();
    let cluster = Setup::servers(4).flags(&["--respawn"]).start();
    let redis = RedisWay::new(cluster.all_redis(), seed);
    let native = NativeWay::new(cluster.coordinator());
    let load = Load::start(vec![
        Journal::new("redis".into(), seed + 1, Box::new(redis), 2000),
        Journal::new("native".into(), seed + 2, Box::new(native), 2000),
    ]);
    wait_for_changes(&load);
    for address in cluster.all_redis() {
        let status = cluster.wait_settled(4);
        let before = server_at(&status, &address);
        assert!(
            number(&before["tablets"]) > 0 || address != cluster.redis(0),
            "{before}"
        );
        // A stock client, of this server and of another one.
        let other = cluster
            .all_redis()
            .into_iter()
            .find(|a| *a != address)
            .unwrap();
        let clients =
            [&address, &other].map(|a| redis::Client::open(format!("redis://{a}/3")).unwrap());
        let mut connections = [None, None];
        for (client, connection) in clients.iter().zip(&mut connections) {
            count(client, connection);
        }
        stop(&cluster, &before);
        count(&clients[1], &mut connections[1]);
        wait_for("the server to be back", || {
            let status = cluster.settled(4)?;
            let now = server_at(&status, &address);
            (now["pid"] != before["pid"])
                .then_some(())
                .ok_or(status.to_string())
        });
        count(&clients[0], &mut connections[0]);
        cluster.wait_replicated();
        wait_for_changes(&load);
    }
    let status = cluster.wait_settled(4);
    assert_eq!(status["recoveries"], serde_json::json!([]), "{status}");
    let mut journals = load.finish().unwrap();
    for journal in &mut journals {
        let refusals = journal.refusals();
        assert!(
            refusals.is_empty(),
            "clients saw more than a delay: {refusals:?}"
        );
        journal.go(Box::new(NativeWay::new(cluster.coordinator())));
        journal.compare_all().unwrap();
    }
    let stock = redis::Client::open(format!("redis://{}/3", cluster.redis(2))).unwrap();
    let counted: i64 = stock.get_connection().unwrap().get("stock").unwrap();
    assert_eq!(counted, 4 * 4);
}

#[test]
fn a_server_is_drained_by_hand_and_what_cannot_be_is_said() {
    let cluster = Setup::servers(2).start();
    let run = |arguments: &[&str]| cluster.run(arguments);
    run(&["table", "create", "t"]).ok();
    run(&["put", "t", "k", "v"]).ok();
    let ids: Vec<String> = { cluster.servers().iter() }
        .map(|s| s["id"].to_string())
        .collect();
    run(&["drain"]).fails(2, &["SERVER"]);
    run(&["drain", "first"]).fails(2, &["first"]);
    run(&["drain", "77"]).fails(1, &["there is no server 77"]);
    run(&["drain", "--cancel", "77"]).fails(1, &["there is no server 77"]);
    let done = run(&["drain", &ids[0]]).ok().text();
    assert!(done.contains("can be stopped"), "{done}");
    let again = run(&["drain", &ids[0], "--json"]).json();
    assert_eq!(
        (&again["draining"], &again["tablets"]),
        (&true.into(), &0.into())
    );
    run(&["drain", &ids[1]]).fails(1, &["cannot be drained", "start another one"]);
    run(&["table", "migrate", "t", "--at", "0", "--to", &ids[0]]).fails(1, &["is drained"]);
    let status = cluster.status();
    let drained = { status["servers"].as_array().unwrap().iter() }
        .filter(|s| s["draining"] == true)
        .map(|s| s["id"].to_string());
    assert_eq!(
        drained.collect::<BTreeSet<_>>(),
        BTreeSet::from([ids[0].clone()])
    );
    let shown = run(&["status"]).ok().text();
    assert!(
        shown.contains(&format!("server {} is drained", ids[0])),
        "{shown}"
    );
    let back = run(&["drain", "--cancel", &ids[0]]).ok().text();
    assert!(back.contains("is taken back"), "{back}");
    let back = run(&["drain", "--cancel", &ids[0]]).ok().text();
    assert!(back.contains("there was nothing to take back"), "{back}");
    let back = run(&["drain", "--cancel", &ids[0], "--json"]).json();
    assert_eq!(back["draining"], false);
    run(&["table", "migrate", "t", "--at", "0", "--to", &ids[0]]).ok();
    assert_eq!(run(&["get", "t", "k"]).ok().text(), "v");
}
