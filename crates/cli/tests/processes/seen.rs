//! What operators see: the page of the cluster, the numbers, dashboard and alerts, traces.

use crate::support::{Setup, http};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;

const ALERTS: &str = include_str!("../../../../deploy/prometheus/alerts.yml");
const DASHBOARD: &str = include_str!("../../../../deploy/grafana/pluvio.json");

/// The names of metrics of ours in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("pluvio_")).collect()
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

/// Sends a filter of traces; the status line, head and body.
fn put_log(address: &str, host: &str, filter: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = filter.len();
    write!(
        stream,
        "PUT /log HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{filter}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

// shows: ADM-3
#[test]
fn operators_see_the_cluster_and_every_number_of_dashboard_and_alerts() {
    let cluster = Setup::servers(2).start();
    let hostile = "<img src=x onerror=alert(1)>";
    cluster.run(["table", "create", hostile]).ok();
    let client = redis::Client::open(format!("redis://{}/0", cluster.redis(0))).unwrap();
    let mut connection = client.get_connection().unwrap();
    let _: () = redis::cmd("SET")
        .arg("hot")
        .arg("x")
        .query(&mut connection)
        .unwrap();
    let _: () = redis::cmd("GET").arg("hot").query(&mut connection).unwrap();
    redis::cmd("NONSENSE")
        .query::<()>(&mut connection)
        .unwrap_err();
    let coordinator = cluster.ready()["coordinator"]["admin"].as_str().unwrap();
    let server = cluster.servers()[0]["admin"].as_str().unwrap().to_owned();

    let page = http::get(coordinator, "/");
    assert!(
        page.contains("content-security-policy: default-src 'none'"),
        "{page}"
    );
    assert!(page.contains("<title>Pluvio</title>"), "{page}");
    let told = http::get(coordinator, "/api/cluster");
    let told: Value = serde_json::from_str(body(&told)).unwrap();
    assert_eq!(told["servers_up"], 2, "{told}");
    assert_eq!(told["servers"][0]["answers"], true, "{told}");
    let tables: Vec<_> = told["rings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| &r["name"])
        .collect();
    assert!(tables.iter().any(|name| *name == hostile), "{told}");
    // A host by name may be that of another site, which points here.
    assert_eq!(told["keys"]["shown"], false, "{told}");
    assert!(http::get(&server, "/api/cluster").starts_with("HTTP/1.1 404"));

    let numbers = http::get(&server, "/metrics") + &http::get(coordinator, "/metrics");
    let there = names(&numbers);
    for name in names(ALERTS).union(&names(DASHBOARD)) {
        // Without TLS there is no certificate.
        assert!(
            there.contains(name) || name.starts_with("pluvio_tls_"),
            "{name} is no metric"
        );
    }
    let like_exporter = http::get(&server, "/metrics/redis");
    assert!(
        like_exporter.contains("redis_commands_total{cmd=\"set\"} 1"),
        "{like_exporter}"
    );
    assert!(http::get(coordinator, "/metrics/redis").starts_with("HTTP/1.1 404"));

    assert!(put_log(&server, "evil.example", "debug").starts_with("HTTP/1.1 403"));
    assert!(put_log(&server, "localhost", "a=b=c").starts_with("HTTP/1.1 400"));
    assert!(put_log(&server, "localhost", &"x".repeat(2000)).starts_with("HTTP/1.1 400"));
    assert_eq!(body(&http::get(&server, "/log")), "info\n");
    let changed = put_log(&server, &server, "info,pluvio_net=debug");
    assert!(changed.starts_with("HTTP/1.1 200"), "{changed}");
    assert_eq!(body(&http::get(&server, "/log")), "info,pluvio_net=debug\n");

    let top = cluster
        .run(["top", "servers", "--json", "--every", "50ms"])
        .ok()
        .json();
    assert_eq!(top["servers"].as_array().unwrap().len(), 2, "{top}");
    assert!(top["servers"][0]["ops_per_s"].is_number(), "{top}");
    let text = cluster
        .run(["top", "servers", "--every", "50ms"])
        .ok()
        .text();
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
}

mod needs_chromium {
    use super::*;
    use crate::support::program::run;
    use std::process::Command;

    /// A name of a table that would be a script if it were no text stays text.
    #[test]
    fn a_browser_shows_the_page() {
        let cluster = Setup::servers(2).start();
        cluster
            .run(["table", "create", "<img src=x onerror=alert(1)>"])
            .ok();
        let coordinator = cluster.ready()["coordinator"]["admin"].as_str().unwrap();
        let profile = tempfile::tempdir().unwrap();
        let mut browser = Command::new("chromium");
        browser.args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--virtual-time-budget=5000",
            "--dump-dom",
        ]);
        browser.arg(format!("--user-data-dir={}", profile.path().display()));
        let page = run(browser.arg(format!("http://{coordinator}/")), b"")
            .ok()
            .text();
        assert!(page.contains("2 servers up, 1 table"), "{page}");
        assert!(page.contains("<h3>Server 2</h3>"), "{page}");
        assert!(
            page.contains("&lt;img src=x onerror=alert(1)&gt;"),
            "{page}"
        );
        assert!(!page.contains("<img"), "{page}");
        assert!(page.contains("<path d="), "{page}");
    }
}

mod needs_promtool {
    use crate::support::program::run;
    use std::process::Command;

    #[test]
    fn promtool_takes_the_alerts() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
        let mut tool = Command::new(format!(
            "{folder}target/test-tools/prometheus/usr/bin/promtool"
        ));
        tool.args(["check", "rules"]);
        run(
            tool.arg(format!("{folder}deploy/prometheus/alerts.yml")),
            b"",
        )
        .ok();
    }
}
