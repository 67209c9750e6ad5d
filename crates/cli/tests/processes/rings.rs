//! A cluster whose processes talk by rings in shared memory.

use crate::support::{Reply, Setup, http};
use serde_json::Value;

fn metric(status: &Value, name: &str) -> u64 {
    let servers = status["servers"].as_array().unwrap();
    let alive = servers.iter().filter(|s| s["answers"] == true);
    let admins = alive.filter_map(|s| s["admin"].as_str());
    admins.map(|admin| http::metric(admin, name)).sum()
}

#[test]
fn servers_talk_by_rings_and_lose_nothing_when_one_is_killed() {
    let cluster = Setup::servers(3).flags(&["--rings"]).start();
    let addr = cluster.servers()[0]["addr"].as_str().unwrap();
    assert!(addr.contains("+shm:/"), "{addr}");
    let shown = cluster.run(["status"]).ok().text();
    assert!(!shown.contains("shm:"), "people need no paths: {shown}");
    let mut connection = cluster.connect(0);
    for n in 0..300 {
        let set = ["SET".to_owned(), format!("key{n}"), format!("value{n}")];
        assert!(connection.call(&set).is_ok());
    }
    // The servers to each other, and the commands of this test to them.
    let status = cluster.status();
    let rings = metric(&status, "pluvio_net_rings_accepted_total");
    assert!(rings >= 3, "{rings} connections over rings");
    assert!(metric(&status, "pluvio_net_rings_made_total") >= 3);
    cluster.kill(2);
    cluster.wait_settled(2);
    for n in 0..300 {
        let found = connection.call(&["GET".to_owned(), format!("key{n}")]);
        assert_eq!(found, Reply::bulk(format!("value{n}")));
    }
    let status = cluster.status();
    assert_eq!(metric(&status, "pluvio_net_frames_rejected_total"), 0);
}
