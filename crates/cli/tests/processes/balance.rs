//! Balancing of real clusters: new servers get their share while clients use the tablets.

use crate::support::cluster::Cluster;
use crate::support::journal::{Journal, Load, NativeWay, RedisWay};
use crate::support::patience::wait_for;
use crate::support::program::{Running, command};
use crate::support::{Random, Setup};
use serde_json::Value;

/// Log memory of each server.
const MEMORY: &str = "96MiB";
/// Objects that lie still, and the bytes of the longest ones: some 48 MiB in all. So a third server
/// is 24 MiB emptier than two others; less than 16 MiB moves nothing.
const STILL: (usize, usize) = (2400, 40_000);
/// Changes that must be acknowledged while balancing is off.
const MANY: u64 = 500;

fn join(cluster: &Cluster) -> Running {
    let name = format!("joined-{}", Random::seed());
    let mut command = command();
    command
        .args(["server", "--json", "--cores", "1", "--memory", MEMORY])
        .args(["--coordinator", cluster.coordinator(), "--data"])
        .arg(cluster.directory().join(name));
    let mut running = Running::spawn(&mut command);
    running.ready();
    running
}

fn plan(cluster: &Cluster) -> Value {
    cluster.run(["balance", "--dry-run", "--json"]).json()
}

fn moves(plan: &Value) -> usize {
    plan["moves"].as_array().unwrap().len()
}

/// Waits until `up` servers have their share, and balancing has nothing to do.
fn wait_even(cluster: &Cluster, up: usize, begun: u64) -> u64 {
    wait_for("even memory", || {
        let status = cluster.settled(up)?;
        let servers = status["servers"].as_array().unwrap();
        let live = |server: &Value| server["memory_live"].as_u64().unwrap();
        let all: u64 = servers.iter().map(live).sum();
        let plan = plan(cluster);
        let now = plan["begun"].as_u64().unwrap();
        let is_even = servers.iter().all(|s| live(s) > all / (2 * up as u64));
        let is_over = now > begun && plan["phase"] == "even" && moves(&plan) == 0;
        match is_even && is_over {
            true => Ok(now),
            false => Err(format!("{plan}: {status}")),
        }
    })
}

#[test]
fn joining_servers_get_their_share_while_clients_use_it() {
    let seed = Random::seed();
    let cluster = Setup::servers(1).memory(MEMORY).start();
    let redis = |n| Box::new(RedisWay::new(cluster.all_redis(), seed + n));
    let (keys, longest) = STILL;
    let mut still = Journal::with_keys(keys, "still".into(), seed, redis(0), longest);
    still.fill();
    let native = Box::new(NativeWay::new(cluster.coordinator()));
    let load = Load::start(vec![
        Journal::new("redis".into(), seed + 1, redis(1), 200),
        Journal::new("native".into(), seed + 2, native, 200),
    ]);
    let off = cluster.run(["balance", "off", "--json"]).json();
    assert_eq!((&off["on"], &off["begun"]), (&false.into(), &0.into()));
    let _second = join(&cluster);
    cluster.wait_settled(2);
    let wanted = load.acknowledged() + MANY;
    wait_for("acknowledged changes", || {
        let enough = load.acknowledged() >= wanted || load.failed();
        enough.then_some(()).ok_or(load.acknowledged().to_string())
    });
    let planned = plan(&cluster);
    assert!(moves(&planned) > 0, "{planned}");
    assert_eq!(planned["begun"], 0, "it is off: {planned}");
    cluster.run(["balance", "on"]).ok();
    let begun = wait_even(&cluster, 2, 0);
    let _third = join(&cluster);
    wait_even(&cluster, 3, begun);
    let mut journals = load.finish().unwrap();
    journals.push(still);
    for journal in &mut journals {
        assert_eq!(journal.refusals(), Vec::<&str>::new());
        journal.compare_all().unwrap();
        journal.go(Box::new(NativeWay::new(cluster.coordinator())));
        journal.compare_all().unwrap();
    }
}
