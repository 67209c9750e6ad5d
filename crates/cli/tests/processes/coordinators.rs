//! Several coordinators on one store, as processes. The leader dies by `kill -9` or stands still,
//! under load, and the cluster hears of a delay at most.

use crate::support::cluster::{Cluster, Turn};
use crate::support::journal::{Journal, Load, NativeWay, RedisWay};
use crate::support::metadata::{Kind, MetadataServer};
use crate::support::program::{Running, command, run, signal};
use crate::support::{Random, Setup, wait_for};
use rustix::process::Signal;
use serde_json::Value;

/// Changes that must be acknowledged before the next fault.
const MANY: u64 = 500;

fn address(coordinator: &Value) -> &str {
    coordinator["addr"].as_str().unwrap()
}

fn pid(coordinator: &Value) -> u32 {
    u32::try_from(coordinator["pid"].as_u64().unwrap()).unwrap()
}

/// Creates a table with the help of all coordinators. The simulator's tests say how long that may
/// take while another one begins to lead.
#[track_caller]
fn create(cluster: &Cluster, name: &str) {
    let arguments = ["--timeout", "30s", "table", "create", name];
    cluster.run(arguments).ok();
}

fn wait_for_changes(load: &Load) {
    let wanted = load.acknowledged() + MANY;
    wait_for("acknowledged changes", || {
        let so_far = load.acknowledged();
        let enough = so_far >= wanted || load.failed();
        enough.then_some(()).ok_or(format!("{so_far} of {wanted}"))
    });
}

fn clients(cluster: &Cluster, seed: u64) -> Vec<Journal> {
    let redis = RedisWay::new(cluster.all_redis(), seed);
    let native = NativeWay::new(&cluster.coordinators());
    vec![
        Journal::new("redis".into(), seed + 1, Box::new(redis), 1000),
        Journal::new("native".into(), seed + 2, Box::new(native), 1000),
    ]
}

/// One that waits for the directory says what helps.
fn only_the_leader_answers_alone(cluster: &Cluster, coordinators: &[Value]) {
    let alone = coordinators.iter().map(|coordinator| {
        let mut status = cluster.command();
        status.env("PLUVIO_COORDINATOR", address(coordinator));
        run(status.args(["--timeout", "2s", "status"]), b"")
    });
    let mut refused: Vec<_> = alone.filter(|output| output.code != Some(0)).collect();
    let one = refused.pop().expect("one of them waits");
    assert!(refused.is_empty(), "{refused:?}");
    one.fails(1, &["addresses of all coordinators"]);
}

/// The leader is killed, then the next one stands still while a server is killed.
fn leaders_come_and_go(flags: &[&str]) {
    let seed = Random::seed();
    let cluster = Setup::servers(4)
        .flags(flags)
        .flags(&["--coordinators", "3"])
        .start();
    let ready = cluster.ready()["coordinators"].as_array().unwrap().clone();
    assert_eq!(ready.len(), 3);
    // The one that was started first leads.
    assert_eq!(ready[0]["addr"], cluster.ready()["coordinator"]["addr"]);
    create(&cluster, "first");
    let load = Load::start(clients(&cluster, seed));
    wait_for_changes(&load);

    signal(pid(&ready[0]), Signal::KILL);
    create(&cluster, "second");
    wait_for_changes(&load);
    // A crash is recovered by the one that leads then. Whoever asks one that waits is told who that
    // is, but where the metadata is in a directory those who wait for it know nothing.
    cluster.kill(3);
    let asked = match flags.is_empty() {
        true => vec![cluster.coordinators()],
        false => ready[1..].iter().map(|c| address(c).to_owned()).collect(),
    };
    for coordinators in &asked {
        wait_for("the recovery", || {
            let mut status = cluster.command();
            status.env("PLUVIO_COORDINATOR", coordinators);
            let output = run(status.args(["status", "--json"]), b"");
            if output.code != Some(0) {
                return Err(output.stderr);
            }
            let status = output.json();
            let servers = status["servers"].as_array().unwrap().len();
            (servers == 3).then_some(()).ok_or(status.to_string())
        });
    }
    if flags.is_empty() {
        only_the_leader_answers_alone(&cluster, &ready[1..]);
    }
    wait_for_changes(&load);
    let journals = load.finish().unwrap();
    for journal in &journals {
        assert!(journal.refusals().is_empty(), "{:?}", journal.refusals());
    }
    let mut journals = journals;
    for journal in &mut journals {
        journal.go(Box::new(NativeWay::new(&cluster.coordinators())));
        journal.compare_all().unwrap();
    }
    let listed = cluster.run(["table", "list"]).ok().text();
    assert!(
        listed.contains("first") && listed.contains("second"),
        "{listed}"
    );
}

/// The directory is free as soon as its user is gone.
#[test]
fn a_killed_leader_of_an_embedded_store_is_replaced() {
    leaders_come_and_go(&[]);
}

#[test]
fn a_place_for_metadata_is_needed_and_read() {
    let fails = |arguments: &[&str], words: &[&str]| {
        let mut command = command();
        run(
            command
                .args(["coordinator", "--listen", "127.0.0.1:0"])
                .args(arguments),
            b"",
        )
        .fails(2, words);
    };
    fails(&[], &["--data", "--metadata"]);
    fails(
        &["--data", "x", "--metadata", "embedded:y"],
        &["give one of them"],
    );
    fails(
        &["--metadata", "consul://a:1"],
        &["names no metadata store", "etcd://"],
    );
    fails(
        &["--metadata", "etcd://127.0.0.1:1", "--standby"],
        &["--standby is for metadata in a directory"],
    );
    for place in ["etcd://127.0.0.1:1", "embedded:x"] {
        let mut dev = command();
        let dev = dev.args(["dev", "--metadata", place]);
        run(dev, b"").fails(2, &["--metadata", "--data"]);
    }
}

/// A leader that stands still is replaced, and when it goes on it knows that it leads no more.
fn a_leader_that_stands_still_is_replaced(server: &MetadataServer) {
    let place = server.place("/still");
    let flags = ["--coordinators", "2", "--metadata", &place];
    let cluster = Setup::servers(1).flags(&flags).start();
    let ready = cluster.ready()["coordinators"].as_array().unwrap().clone();
    create(&cluster, "before");
    signal(pid(&ready[0]), Signal::STOP);
    create(&cluster, "meanwhile");
    signal(pid(&ready[0]), Signal::CONT);
    let trace = cluster.data().join("logs/coordinator.log");
    wait_for("the former leader to know", || {
        let text = std::fs::read_to_string(&trace).unwrap_or_default();
        let knows = text.contains("does not lead any more");
        knows.then_some(()).ok_or(text)
    });
    // It says who leads.
    let mut list = cluster.command();
    list.env("PLUVIO_COORDINATOR", address(&ready[0]));
    let listed = run(list.args(["table", "list"]), b"").ok().text();
    assert!(
        listed.contains("before") && listed.contains("meanwhile"),
        "{listed}"
    );
    // A leader that is asked to end makes room.
    signal(pid(&ready[1]), Signal::TERM);
    create(&cluster, "after");
}

fn coordinator(place: &str) -> (Running, Value) {
    let mut running = Running::start([
        "coordinator",
        "--json",
        "--listen",
        "127.0.0.1:0",
        "--metadata",
        place,
    ]);
    let ready = running.ready();
    (running, ready)
}

/// The store goes away and comes back; then it comes back empty, which must not begin a new
/// cluster.
fn a_store_comes_and_goes(mut server: MetadataServer) {
    let place = server.place("/pluvio");
    let cluster = Setup::servers(2).flags(&["--metadata", &place]).start();
    let mut redis = cluster.connect(0);
    assert!(redis.call(&["SET", "k", "1"]).is_ok());
    server.kill();
    // Reads and writes go on, and changes of the cluster wait and say why.
    assert!(redis.call(&["SET", "k", "2"]).is_ok());
    let create = |limit: &str, name: &str| {
        let arguments = ["--timeout", limit, "table", "create", name];
        cluster.run(arguments)
    };
    create("2s", "waits").fails(1, &["error: "]);
    server.restart(true);
    wait_for("the store to be used again", || {
        let output = create("5s", "waits");
        (output.code == Some(0)).then_some(()).ok_or(output.stderr)
    });
    assert!(redis.call(&["SET", "k", "3"]).is_ok());

    server.kill();
    server.restart(false);
    let trace = cluster.data().join("logs/coordinator.log");
    wait_for("the coordinator to say that its metadata is gone", || {
        let text = std::fs::read_to_string(&trace).unwrap_or_default();
        let said = text.contains("restore the store's data");
        said.then_some(()).ok_or(text)
    });
    // Reads and writes go on without a coordinator.
    assert!(redis.call(&["SET", "k", "4"]).is_ok());
}

/// Entries that no coordinator wrote are left alone.
fn a_place_of_somebody_else_is_refused(server: &MetadataServer) {
    let (_running, ready) = coordinator(&server.place("/others/one"));
    assert_eq!(ready["leads"], true);
    // Its entries are below this place, where they are no coordinator's.
    let mut command = command();
    let other = command.args(["coordinator", "--listen", "127.0.0.1:0", "--metadata"]);
    let place = server.place("/others");
    run(other.arg(&place), b"").fails(1, &["error: ", &place, "give it another path"]);
}

mod needs_etcd {
    use super::*;

    #[test]
    fn a_killed_leader_is_replaced_through_etcd() {
        let _turn = Turn::take();
        let server = MetadataServer::start(Kind::Etcd);
        leaders_come_and_go(&["--metadata", &server.place("/pluvio")]);
    }

    #[test]
    fn a_leader_that_stands_still_is_replaced_through_etcd() {
        let _turn = Turn::take();
        a_leader_that_stands_still_is_replaced(&MetadataServer::start(Kind::Etcd));
    }

    #[test]
    fn etcd_may_go_away_and_must_not_come_back_empty() {
        let _turn = Turn::take();
        a_store_comes_and_goes(MetadataServer::start(Kind::Etcd));
    }

    #[test]
    fn keys_of_others_in_etcd_are_left_alone() {
        let _turn = Turn::take();
        a_place_of_somebody_else_is_refused(&MetadataServer::start(Kind::Etcd));
    }

    #[test]
    fn a_store_that_is_away_at_the_start_is_named() {
        let mut command = command();
        let place = "etcd://127.0.0.1:1/pluvio";
        let arguments = [
            "coordinator",
            "--listen",
            "127.0.0.1:0",
            "--metadata",
            place,
        ];
        run(command.args(arguments), b"").fails(1, &["error: ", place, "is --metadata right?"]);
    }
}

mod needs_zookeeper {
    use super::*;

    #[test]
    fn a_killed_leader_is_replaced_through_zookeeper() {
        let _turn = Turn::take();
        let server = MetadataServer::start(Kind::ZooKeeper);
        leaders_come_and_go(&["--metadata", &server.place("/pluvio")]);
    }

    #[test]
    fn a_leader_that_stands_still_is_replaced_through_zookeeper() {
        let _turn = Turn::take();
        a_leader_that_stands_still_is_replaced(&MetadataServer::start(Kind::ZooKeeper));
    }

    #[test]
    fn zookeeper_may_go_away_and_must_not_come_back_empty() {
        let _turn = Turn::take();
        a_store_comes_and_goes(MetadataServer::start(Kind::ZooKeeper));
    }
}
