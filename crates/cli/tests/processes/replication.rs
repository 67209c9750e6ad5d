//! Fewer backups than replicas, and backups that come back.

use crate::support::cluster::{Cluster, files_below, sum};
use crate::support::{Reply, Running, Setup, http, wait_for};
use serde_json::Value;
use std::fs;

/// Starts the server of `server-N` again, by hand.
pub fn start_again(cluster: &Cluster, number: usize, replicas: &str, needed: &str) -> Running {
    let data = cluster.data().join(format!("server-{number}"));
    let mut arguments = vec!["server", "--json", "--coordinator", cluster.coordinator()];
    arguments.extend(["--data", data.to_str().unwrap(), "--memory", "64MiB"]);
    arguments.extend(["--replicas", replicas, "--min-replicas", needed]);
    arguments.extend(["--redis", "127.0.0.1:0", "--cores", "1"]);
    let mut server = Running::start(arguments);
    server.ready();
    server
}

fn fill(cluster: &Cluster, server: usize, from: usize) {
    let mut connection = cluster.connect(server);
    for n in from..from + 200 {
        let set = ["SET".to_owned(), format!("key{n}"), format!("value{n}")];
        assert!(connection.call(&set).is_ok());
    }
}

fn assert_filled(cluster: &Cluster, server: usize, until: usize) {
    let mut connection = cluster.connect(server);
    for n in 0..until {
        let found = connection.call(&["GET".to_owned(), format!("key{n}")]);
        assert_eq!(found, Reply::bulk(format!("value{n}")));
    }
}

/// The admin ports of the servers in a status that are alive.
fn admin_ports(status: &Value) -> Vec<&str> {
    let servers = status["servers"].as_array().unwrap();
    let alive = servers.iter().filter(|s| s["answers"] == true);
    alive.filter_map(|s| s["admin"].as_str()).collect()
}

/// The sum of a metric over the servers of a status.
fn metric(status: &Value, name: &str) -> u64 {
    let each = admin_ports(status)
        .into_iter()
        .map(|admin| http::metric(admin, name));
    each.sum()
}

#[test]
fn writes_go_on_with_fewer_replicas_and_full_replication_comes_back() {
    let cluster = Setup::servers(3).start();
    fill(&cluster, 0, 0);
    cluster.kill(2);
    cluster.wait_settled(2);
    // One backup each is left, and one replica is enough.
    fill(&cluster, 0, 200);
    let status = cluster.status();
    assert!(sum(&status, "segments_under_replicated") > 0, "{status}");
    let gone = metric(&status, "pluvio_segments_under_replicated");
    assert!(gone > 0, "the metric says so as well");
    assert_eq!(metric(&status, "pluvio_backups_up"), 2, "one for each");
    assert_eq!(metric(&status, "pluvio_writes_wait"), 0);
    for admin in admin_ports(&status) {
        assert_eq!(http::metric(admin, "pluvio_replicas_wanted"), 2);
        assert_eq!(http::metric(admin, "pluvio_replicas_needed"), 1);
        let ready = http::get(admin, "/readyz");
        assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
    }
    for server in status["servers"].as_array().unwrap() {
        assert_eq!(server["replicas_wanted"], 2, "{status}");
        assert_eq!(server["replicas_needed"], 1, "{status}");
        assert_eq!(server["writes_wait"], Value::Null, "{status}");
    }
    let shown = cluster.run(["status"]).ok().text();
    assert!(
        shown.contains("lack replicas that they are to have"),
        "{shown}"
    );

    let _server = start_again(&cluster, 3, "2", "1");
    cluster.wait_settled(3);
    cluster.wait_replicated();
    wait_for("the metric to say so", || {
        let missing = metric(&cluster.status(), "pluvio_segments_under_replicated");
        (missing == 0).then_some(()).ok_or(missing.to_string())
    });
    assert_filled(&cluster, 1, 400);
    // The writes of that time are on two disks now: any one may go.
    cluster.kill(1);
    cluster.wait_settled(2);
    assert_filled(&cluster, 0, 400);
}

// shows: LEASE-3
#[test]
fn writes_wait_for_backups_and_status_says_why() {
    let cluster = Setup::servers(3).flags(&["--min-replicas", "2"]).start();
    fill(&cluster, 0, 0);
    cluster.kill(2);
    // Only one backup is left for each of the others.
    let why = wait_for("writes to wait", || {
        let status = cluster.status();
        let servers = status["servers"].as_array().unwrap();
        let why = servers.iter().find_map(|s| s["writes_wait"].as_str());
        why.map(str::to_owned).ok_or(status.to_string())
    });
    assert!(why.contains("backup"), "{why}");
    // Servers try again now and then, and for that moment nothing waits.
    wait_for("a server's pages to say so", || {
        let status = cluster.status();
        let mut pages = admin_ports(&status).into_iter().map(|admin| {
            let waits = http::metric(admin, "pluvio_writes_wait");
            (waits, http::get(admin, "/readyz"))
        });
        let found = pages.find(|(waits, ready)| {
            *waits == 1 && ready.starts_with("HTTP/1.1 503") && ready.contains("not ready: ")
        });
        found.map(|_| ()).ok_or(status.to_string())
    });
    let shown = cluster.run(["status"]).ok().text();
    assert!(shown.contains("writes wait: "), "{shown}");
    // Keys of the dead server wait for its recovery, which needs backups as well. Those of the
    // others can be read, and who writes them is told what is missing.
    let (mut readable, mut told) = (0, 0);
    for n in 0..30 {
        let key = format!("key{n}");
        let get = cluster.run(["get", "redis:0", &key, "--timeout", "300ms"]);
        readable += usize::from(get.code == Some(0));
        let put = cluster.run([
            "put",
            "redis:0",
            &format!("new{n}"),
            "1",
            "--timeout",
            "300ms",
        ]);
        let said = put.fails(1, &["error: ", "pluvio status"]);
        told += usize::from(said.contains("backup") && said.contains("start more servers"));
    }
    assert!(readable > 0, "nothing can be read");
    assert!(told > 0, "nobody is told that backups are missing");

    let _server = start_again(&cluster, 3, "2", "2");
    cluster.wait_settled(3);
    assert_filled(&cluster, 0, 200);
    fill(&cluster, 0, 200);
    assert_filled(&cluster, 1, 400);
    cluster.wait_replicated();
}

#[test]
fn without_replicas_nothing_is_on_disk_and_a_server_takes_its_objects_with_it() {
    let mut cluster = Setup::servers(3).replicas(0).start();
    fill(&cluster, 0, 0);
    assert_filled(&cluster, 1, 200);
    let status = cluster.status();
    for server in status["servers"].as_array().unwrap() {
        assert_eq!(server["replicas_wanted"], 0, "{status}");
        assert_eq!(server["segments_under_replicated"], 0, "{status}");
        assert_eq!(server["writes_wait"], Value::Null, "{status}");
        assert_eq!(server["frames"], 0, "{status}");
    }
    for number in 1..=3 {
        let frames = cluster.data().join(format!("server-{number}/frames"));
        assert_eq!(files_below(&frames).len(), 0);
    }

    cluster.kill(2);
    let status = cluster.wait_settled(2);
    assert_eq!(metric(&status, "pluvio_segments_under_replicated"), 0);
    // The objects on the others are as they were; the rest is gone, and somebody said so.
    let mut connection = cluster.connect(0);
    let (mut kept, mut lost) = (0, 0);
    for n in 0..200 {
        match connection.call(&["GET".to_owned(), format!("key{n}")]) {
            Reply::Nil => lost += 1,
            found => {
                assert_eq!(found, Reply::bulk(format!("value{n}")));
                kept += 1;
            }
        }
    }
    assert!(kept > 0 && lost > 0, "{kept} kept, {lost} lost");
    let said = || fs::read_to_string(cluster.data().join("logs/coordinator.log")).unwrap();
    assert!(said().contains("ARE LOST"), "{}", said());
    // All keys can be written, through every server.
    fill(&cluster, 0, 0);
    assert_filled(&cluster, 1, 200);

    cluster.kill_all();
    cluster.restart();
    let mut connection = cluster.connect(1);
    assert_eq!(connection.call(&["DBSIZE"]), Reply::Integer(0));
    assert_eq!(connection.call(&["GET", "key0"]), Reply::Nil);
    fill(&cluster, 0, 0);
    assert_filled(&cluster, 2, 200);
}
