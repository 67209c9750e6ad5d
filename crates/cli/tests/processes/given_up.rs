//! The only replica of a server's log is lost for good.

use crate::replication::start_again;
use crate::support::cluster::Cluster;
use crate::support::{Reply, Resp, Setup, wait_for};
use std::fs;

fn stages(cluster: &Cluster) -> Vec<String> {
    let status = cluster.status();
    let recoveries = status["recoveries"].as_array().unwrap().iter();
    let open = recoveries.filter(|one| one["done"] == false);
    open.map(|one| one["stage"].to_string()).collect()
}

#[test]
fn what_is_lost_with_both_disks_is_given_up_and_the_tables_serve_again() {
    let cluster = Setup::servers(2).replicas(1).start();
    assert!(cluster.connect(0).call(&["SET", "k", "old"]).is_ok());
    let ids: Vec<String> = cluster
        .status()
        .get("servers")
        .and_then(|servers| servers.as_array())
        .unwrap()
        .iter()
        .map(|server| server["id"].to_string())
        .collect();
    let gives_up = |id: &str, more: &[&str]| {
        let command = ["recover", "--give-up", id];
        cluster.run(command.iter().chain(more).copied())
    };
    assert_ne!(gives_up(&ids[0], &["--yes"]).code, Some(0), "it is up");
    for server in [0, 1] {
        cluster.kill(server);
        let data = cluster.data().join(format!("server-{}", server + 1));
        fs::remove_dir_all(data).unwrap();
    }
    let first = start_again(&cluster, 1, "1", "1");
    let second = start_again(&cluster, 2, "1", "1");
    wait_for("both recoveries to wait", || {
        let stages = stages(&cluster);
        let waits = stages.iter().filter(|s| s.contains("awaiting_backups"));
        (waits.count() == 2).then_some(()).ok_or(stages.join(", "))
    });
    for id in &ids {
        // There is no terminal to ask at.
        let seen = gives_up(id, &[]).ok();
        assert!(
            seen.text().contains("nobody knows how much"),
            "{}",
            seen.text()
        );
        assert_eq!(
            cluster.status()["losses"].as_array().unwrap().len(),
            ids.iter().position(|i| i == id).unwrap()
        );
        gives_up(id, &["--yes", "--by", "test"]).ok();
    }
    let status = cluster.wait_settled(2);
    let alive = status["servers"].as_array().unwrap().iter();
    let redis = alive
        .filter_map(|server| server["redis"].as_str())
        .next_back();
    let mut client = Resp::connect(redis.unwrap());
    assert_eq!(client.call(&["GET", "k"]), Reply::Nil);
    assert!(client.call(&["SET", "k", "new"]).is_ok());
    assert_eq!(client.call(&["GET", "k"]), Reply::bulk("new"));
    let shown = cluster.run(["status"]).ok().text();
    assert!(shown.contains("given up by test"), "{shown}");
    drop((first, second));
}
