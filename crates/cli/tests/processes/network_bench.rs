//! `pluvio bench load|latency|throughput` against a cluster: what they write, measure and say.

use crate::support::cluster::Cluster;
use crate::support::{Output, Reply, Setup};
use serde_json::Value;

fn bench(cluster: &Cluster, line: &str) -> Output {
    cluster.run(["bench"].into_iter().chain(line.split_whitespace()))
}

/// The rows of a report, each of which makes sense.
#[track_caller]
fn rows(report: &Value, command: &str, target: &str) -> Vec<Value> {
    assert_eq!(report["command"], command, "{report}");
    let shown = report["target"].as_str().unwrap();
    assert!(shown.contains(target), "{shown}");
    for field in ["processor", "processors", "kernel", "build"] {
        assert!(!report["machine"][field].is_null(), "{field} in {report}");
    }
    let rows = report["rows"].as_array().unwrap();
    for row in rows {
        let number = |value: &Value| value.as_f64().unwrap();
        assert!(number(&row["operations"]) > 0.0, "{row}");
        assert_eq!(row["errors"], 0, "{row}");
        assert_eq!(row["first_error"], Value::Null, "{row}");
        assert_eq!(row["misses"], 0, "the keys were loaded: {row}");
        let (rate, seconds) = (number(&row["ops_per_s"]), number(&row["seconds"]));
        let counted = number(&row["operations"]) / seconds;
        assert!((rate / counted - 1.0).abs() < 0.01, "{row}");
        let latency = &row["latency_us"];
        let all = ["min", "p50", "p90", "p99", "p999", "max"].map(|part| number(&latency[part]));
        assert!(all.is_sorted(), "{row}");
    }
    rows.clone()
}

#[test]
fn loads_over_the_network_measure_what_they_say() {
    let cluster = Setup::servers(2).start();
    over_redis(&cluster);
    natively(&cluster);
    many_connections(&cluster);
    nonsense_is_refused(&cluster);
}

/// Without an address: all servers of the cluster.
fn over_redis(cluster: &Cluster) {
    let report = bench(
        cluster,
        "load --keys 3000 --value-size 70 --connections 7 --json",
    )
    .json();
    let rows = rows(&report, "load", &cluster.redis(1));
    assert_eq!(rows.len(), 1, "{report}");
    assert_eq!(rows[0]["name"], "load");
    assert_eq!(rows[0]["operations"], 3000);
    let mut redis = cluster.connect(0);
    assert_eq!(redis.call(&["DBSIZE"]), Reply::Integer(3000));
    let last = format!("key:{:020}", 2999);
    assert_eq!(redis.call(&["STRLEN", &last]), Reply::Integer(70));
}

/// One operation at a time.
fn natively(cluster: &Cluster) {
    let line = "latency --native --table measured --keys 100 --seconds 0.1 --warmup 0 --json";
    let report = bench(cluster, line).json();
    let rows = rows(
        &report,
        "latency",
        "native client, table \"measured\", 2 servers",
    );
    let names: Vec<&str> = rows.iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["PING", "2 x PING", "GET", "SET"]);
    let p50 = |at: usize| rows[at]["latency_us"]["p50"].as_f64().unwrap();
    for (name, ours, bare) in [
        ("GET of 100 B: median / a bare round trip", 2, 0),
        ("SET of 100 B: median / two bare round trips", 3, 1),
    ] {
        let ratio = report["ratios"][name].as_f64().unwrap();
        assert!((ratio - p50(ours) / p50(bare)).abs() < 1e-6, "{report}");
    }
    for row in rows {
        let load = &row["workload"];
        assert_eq!(
            (&load["connections"], &load["pipeline"]),
            (&1.into(), &1.into())
        );
    }
    // The same over the Redis protocol, for people.
    let line = "latency --skip-load --keys 100 --get-percent 0 --seconds 0.05 --warmup 0";
    let shown = bench(cluster, line).ok().text();
    for word in ["2 x PING", "SET of 100 B: median / two bare round trips: "] {
        assert!(shown.contains(word), "no {word} in {shown}");
    }
    let text = cluster.run(["scan", "measured", "--keys-only"]).ok().text();
    assert_eq!(text.lines().count(), 100);
}

/// Every combination has its row.
fn many_connections(cluster: &Cluster) {
    let address = cluster.redis(0);
    let line = format!(
        "throughput --redis {address} --wait 1 --keys 200 --connections 3 --pipeline 1,4 \
         --get-percent 100,50 --value-size 10,100 --seconds 0.05 --warmup 0.01 --json"
    );
    let report = bench(cluster, &line).json();
    let rows = rows(&report, "throughput", &address);
    let shown = report["target"].as_str().unwrap();
    assert!(shown.contains("WAIT 1"), "{shown}");
    assert!(
        !shown.contains(&cluster.redis(1)),
        "only whom it was told: {shown}"
    );
    let mut seen = Vec::new();
    for row in rows {
        let load = &row["workload"];
        assert_eq!(load["connections"], 3);
        let number = |field: &str| load[field].as_u64().unwrap();
        let mix = (
            number("value_size"),
            number("get_percent"),
            number("pipeline"),
        );
        let name = if mix.1 == 100 { "GET" } else { "GET 50%" };
        assert_eq!(row["name"], name, "{row}");
        seen.push(mix);
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 8, "{report}");
    // For people: a line for each row, below what was measured.
    let line = "throughput --skip-load --keys 200 --pipeline 2 --seconds 0.05 --warmup 0";
    let text = bench(cluster, line).ok().text();
    for word in ["throughput of ", "ops/s", "p99 us", "GET", "SET"] {
        assert!(text.contains(word), "no {word} in {text}");
    }
}

fn nonsense_is_refused(cluster: &Cluster) {
    let rpc = cluster.servers()[0]["addr"].as_str().unwrap();
    for (line, code, words) in [
        (
            "load --native --redis 127.0.0.1:1",
            2,
            &["--native", "--redis"][..],
        ),
        ("latency --native --wait 1", 2, &["--wait"]),
        ("load --keys 0", 2, &["at least one key"]),
        ("throughput --pipeline 1,0", 2, &["pipeline must be 1 to"]),
        (
            "throughput --connections 0",
            2,
            &["connections must be 1 to"],
        ),
        ("throughput --get-percent 101", 2, &["get-percent"]),
        (
            "latency --value-size 1048577",
            2,
            &["value-size", "1048576"],
        ),
        ("latency --seconds 2h --warmup 30h", 2, &["seconds must be"]),
        (
            "latency --redis 127.0.0.1:1",
            1,
            &["127.0.0.1:1", "is a server there?"],
        ),
        (
            &format!("latency --redis {rpc}"),
            1,
            &[rpc, "the server closed it"],
        ),
    ] {
        bench(cluster, line).fails(code, words);
    }
}
