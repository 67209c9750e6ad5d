//! `pluvio table migrate`: tablets of real clusters move while clients of both kinds use them.

use crate::support::cluster::Cluster;
use crate::support::journal::{Journal, Load, NativeWay, RedisWay};
use crate::support::{Random, Setup, wait_for};
use serde_json::Value;

/// Changes that must be acknowledged between two migrations.
const MANY: u64 = 500;
/// The table that clients of both kinds use.
const TABLE: &str = "redis:0";

fn clients(cluster: &Cluster, seed: u64) -> Vec<Journal> {
    let redis = RedisWay::new(cluster.all_redis(), seed);
    let native = NativeWay::new(cluster.coordinator());
    vec![
        Journal::new("redis".into(), seed + 1, Box::new(redis), 2000),
        Journal::new("native".into(), seed + 2, Box::new(native), 2000),
    ]
}

fn wait_for_changes(load: &Load) {
    let wanted = load.acknowledged() + MANY;
    wait_for("acknowledged changes", || {
        let so_far = load.acknowledged();
        let enough = so_far >= wanted || load.failed();
        enough.then_some(()).ok_or(format!("{so_far} of {wanted}"))
    });
}

/// Hash and owner of each tablet.
fn tablets(cluster: &Cluster) -> Vec<(String, u64)> {
    let listed = cluster.run(["table", "list", "--json"]).json();
    let tables = listed["tables"].as_array().unwrap().clone();
    let table = tables.iter().find(|t| t["name"] == TABLE).unwrap();
    let tablets = table["tablets"].as_array().unwrap().iter();
    let tablet = |t: &Value| {
        let first = t["first"].as_str().unwrap().to_owned();
        (first, t["server"].as_u64().unwrap())
    };
    tablets.map(tablet).collect()
}

fn ids(cluster: &Cluster) -> Vec<u64> {
    let servers = cluster.servers().iter();
    servers.map(|s| s["id"].as_u64().unwrap()).collect()
}

#[test]
fn a_tablet_moves_while_clients_use_it() {
    let seed = Random::seed();
    let mut random = Random::new(seed);
    let cluster = Setup::servers(3).start();
    let load = Load::start(clients(&cluster, seed));
    wait_for_changes(&load);
    let ids = ids(&cluster);
    for _ in 0..6 {
        let (first, owner) = random.choose(&tablets(&cluster)).clone();
        let to = *ids.iter().find(|id| **id != owner).unwrap();
        let to_text = to.to_string();
        let arguments = [
            "table", "migrate", TABLE, "--at", &first, "--to", &to_text, "--json",
        ];
        let moved = cluster.run(arguments).json();
        assert_eq!(moved["moved"], true, "{moved}");
        assert_eq!((&moved["from"], &moved["to"]), (&owner.into(), &to.into()));
        println!("{moved}");
        // It may have been joined with a neighbour there.
        let mut all = tablets(&cluster).into_iter();
        let holder = all.rfind(|(from, _)| *from <= first);
        assert_eq!(holder.map(|(_, owner)| owner), Some(to), "{moved}");
        wait_for_changes(&load);
    }
    // All of it onto one server, which is then killed: what came there is durable there.
    let last = ids[2].to_string();
    for (first, _) in tablets(&cluster) {
        let arguments = ["table", "migrate", TABLE, "--at", &first, "--to", &last];
        cluster.run(arguments).ok();
    }
    let status = cluster.status();
    let migrations = status["migrations"].as_array().unwrap();
    assert!(migrations.iter().all(|m| m["done"] == true), "{status}");
    wait_for_changes(&load);
    cluster.kill(2);
    wait_for_changes(&load);
    cluster.wait_settled(2);
    let mut journals = load.finish().unwrap();
    for journal in &mut journals {
        let refusals = journal.refusals();
        assert!(
            refusals.is_empty(),
            "clients saw more than a delay: {refusals:?}"
        );
        journal.go(Box::new(RedisWay::new(
            vec![cluster.redis(0), cluster.redis(1)],
            1,
        )));
        journal.compare_all().unwrap();
        journal.go(Box::new(NativeWay::new(cluster.coordinator())));
        journal.compare_all().unwrap();
    }
}

#[test]
fn what_cannot_move_is_refused_in_words() {
    let cluster = Setup::servers(2).start();
    let run = |arguments: &[&str]| cluster.run(arguments);
    run(&["table", "create", "t"]).ok();
    run(&["table", "create", "small", "--span", "1"]).ok();
    let migrate = |arguments: &[&str]| {
        let mut all = vec!["table", "migrate"];
        all.extend(arguments);
        cluster.run(&all)
    };
    migrate(&["t"]).fails(2, &["--to"]);
    migrate(&["t", "--to", "1"]).fails(2, &["--at", "--tablet"]);
    migrate(&["t", "--to", "1", "--at", "x"]).fails(2, &["--at"]);
    migrate(&["t", "--to", "1", "--tablet", "9-1"]).fails(2, &["--tablet"]);
    migrate(&["t", "--to", "77", "--at", "0"]).fails(1, &["server 77 is not up"]);
    let across = ["t", "--to", "1", "--tablet", "0-ffffffffffffffff"];
    migrate(&across).fails(1, &["does not lie in one tablet"]);
    migrate(&["none", "--to", "1"]).fails(1, &["pluvio table list"]);
    // A part is cut out; whoever has the tablet already keeps it.
    for id in ids(&cluster) {
        let id = id.to_string();
        let part = ["small", "--to", &id, "--tablet", "100-1ff", "--json"];
        assert_eq!(migrate(&part).json()["moved"], true);
        let again = migrate(&part).json();
        assert_eq!(again["already_there"], true, "{again}");
        let said = migrate(&part[..5]).ok().text();
        assert!(said.contains("already"), "{said}");
    }
    let listed = run(&["table", "list", "--json"]).json();
    let tables = listed["tables"].as_array().unwrap().clone();
    let small = tables.iter().find(|t| t["name"] == "small").unwrap();
    assert_eq!(small["tablets"][1]["first"], "0000000000000100", "{small}");
    assert_eq!(small["tablets"].as_array().unwrap().len(), 3);
    let shown = run(&["status"]).ok().text();
    assert!(shown.contains("migration"), "{shown}");
}
