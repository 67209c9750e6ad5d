//! Experiments as users run them, at their smallest: they end, say what they must, and refuse nonsense.

use crate::support::program::pluvio;
use serde_json::Value;
use std::fs;

/// The five fields, and the rows.
fn rows(experiment: &Value) -> &[Value] {
    for field in ["experiment", "parameters", "machine", "ratios"] {
        assert!(!experiment[field].is_null(), "{field} in {experiment}");
    }
    experiment["rows"].as_array().unwrap()
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn the_simulated_cleaner_repeats_itself_and_writes_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let run = |threads: &str| {
        let (csv, svg) = (
            folder.path().join("rows.csv"),
            folder.path().join("all.svg"),
        );
        let mut line = words("simulate cleaner --json --turnovers 5 --utilization 50,80 --threads");
        line.extend([threads, "--csv", csv.to_str().unwrap()]);
        line.extend(["--plot", svg.to_str().unwrap()]);
        let json = pluvio(line).json();
        (
            json,
            fs::read_to_string(csv).unwrap(),
            fs::read_to_string(svg).unwrap(),
        )
    };
    let (one, csv, svg) = run("1");
    let (two, ..) = run("2");
    assert_eq!(rows(&one), rows(&two), "threads change only the time");
    assert_eq!(rows(&one).len(), 3 * 3 * 2);
    assert_eq!(csv.lines().count(), 1 + 18);
    assert!(svg.starts_with("<svg") && svg.contains("segment-age"));
}

#[test]
fn every_experiment_of_the_engine_ends_with_its_rows() {
    let small = [
        (
            "bench store --keys 2000 --threads 1 --seconds 0.02 --rounds 1 --peer none",
            10,
        ),
        (
            "bench cleaner --memory 128MiB --value-size 10000 --distribution uniform --utilization 30,50 --seconds 0.05 --rounds 1",
            2,
        ),
        (
            "bench latency-cdf --memory 128MiB --utilization 40 --value-size 1000 --seconds 0.05 --rounds 1",
            60,
        ),
        (
            "bench cleaner --memory 128MiB --value-size 10000 --distribution zipfian --utilization 30,60 --level two,one --disk-bandwidth unlimited,500 --seconds 0.05 --rounds 1",
            8,
        ),
        (
            "bench breakdown --keys 2000 --seconds 0.02 --rounds 1 --heads 1,2 --cleaner-threads 2 --segment 4MiB --get-percent 50",
            11,
        ),
        (
            "bench fragmentation --workload W2,P2 --live 8MiB --peer glibc --performance --rounds 1",
            4,
        ),
        (
            "bench trace --profile twitter:14 --keys 1000 --operations 5000 --rounds 1 --peer malloc --threads 1",
            2,
        ),
        (
            "bench postmark --keys 200 --transactions 1000 --rounds 1 --peer none",
            1,
        ),
        (
            "bench recovery --part replay --value-size 1,1000 --objects 2000 --rounds 1",
            4,
        ),
        (
            "simulate recovery --servers 5,40 --data 2GB,100MB/server --recoveries 3",
            4 + 6,
        ),
    ];
    for (line, expected) in small {
        let mut arguments = words(line);
        arguments.push("--json");
        if line.contains("--peer malloc") {
            // An array needs dense keys from zero, which one thread of a profile has.
            assert!(line.contains("--threads 1"));
        }
        let json = pluvio(arguments).json();
        assert_eq!(rows(&json).len(), expected, "{line}: {json}");
    }
}

#[test]
fn a_killed_server_comes_back_and_its_stages_add_up() {
    let line = "bench recovery --part cluster --servers 3 --data 4MiB --rounds 1 --json";
    let json = pluvio(words(line)).json();
    let row = &rows(&json)[0];
    let ms = |name: &str| row[name].as_f64().unwrap();
    let stages = [
        "detection_ms",
        "planning_ms",
        "reading_ms",
        "replay_ms",
        "re_replication_ms",
        "hand_over_ms",
    ];
    let sum: f64 = stages.map(ms).iter().sum();
    assert!((sum - ms("total_ms")).abs() < 1.0, "{row}");
    assert!(stages.iter().all(|name| ms(name) >= 0.0), "{row}");
    // What a crashed server may still answer is waited for, so its tablets cannot come sooner.
    assert!(
        ms("first_read_ms") > 600.0 && ms("first_read_ms") <= ms("last_read_ms"),
        "{row}"
    );
    assert!(ms("mb") > 4.0 && ms("mb") < 8.0, "{row}");
}

#[test]
fn nonsense_is_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.csv");
    fs::write(&bad, "operation,key,size\nget,a,1\njump,a,1\n").unwrap();
    for (line, code, reason) in [
        ("simulate cleaner --utilization 100", 2, "utilization"),
        ("simulate cleaner --policy best", 2, "segment-age"),
        ("bench store --peer hashmap", 2, "dashmap"),
        ("bench store --peer none --seconds nan", 2, "seconds"),
        ("bench store --peer none --utilization 99", 2, "utilization"),
        (
            "bench store --peer none --threads 513",
            2,
            "--threads 513: 1 to 512",
        ),
        (
            "bench store --peer none --threads 0",
            2,
            "--threads 0: 1 to",
        ),
        ("bench store --peer none --batch 0", 2, "--batch 0: 1 to"),
        ("bench store --peer none --keys 0", 2, "--keys 0: 1 to"),
        (
            "bench store --peer none --get-percent 101",
            2,
            "--get-percent 101: 0 to 100",
        ),
        (
            "bench store --peer none --value-size 2000000",
            2,
            "--value-size 2000000: 0 to",
        ),
        (
            "bench cleaner --utilization 99",
            2,
            "--utilization 99: 1 to 98",
        ),
        ("bench cleaner --rounds 0", 2, "--rounds 0: 1 to 1000"),
        ("bench cleaner --disk-bandwidth 0", 2, "megabytes a second"),
        ("bench cleaner --level three", 2, "one or two"),
        ("bench cleaner --memory 1MiB", 1, "option memory: 1048576"),
        ("bench cleaner --memory 200TiB", 1, "option memory: cannot"),
        (
            "bench cleaner --cleaner-threads 65",
            1,
            "option cleaner_threads: 65; 0 to 64",
        ),
        (
            "bench breakdown --keys 2000 --heads 0",
            1,
            "option heads: 0; 1 to 256",
        ),
        (
            "bench breakdown --keys 2000 --heads 250",
            1,
            "bytes of memory allow at most",
        ),
        (
            "bench breakdown --keys 2000 --segment 1MiB",
            1,
            "option segment_size: 1048576",
        ),
        ("bench latency-cdf --seconds 3000", 2, "--cleaner-only"),
        ("bench fragmentation --live 1MiB", 2, "--live 1MiB: 8MiB to"),
        (
            "bench postmark --peer none --threads 0",
            2,
            "--threads 0: 1 to 512",
        ),
        ("bench fragmentation --peer none --workload W9", 2, "W8"),
        ("bench trace", 2, "FILE"),
        (
            "bench trace --profile twitter:99 --peer none",
            2,
            "twitter:99",
        ),
        ("bench trace nowhere.csv --peer none", 1, "nowhere.csv"),
        ("bench postmark --size-min 9 --size-max 8", 2, "--size-min"),
        (
            "bench recovery --servers 2",
            2,
            "--servers 2: 3 to 16 are possible with --replicas 2",
        ),
        (
            "bench recovery --replicas 3 --servers 3",
            2,
            "--servers 3: 4 to 16",
        ),
        ("bench recovery --replicas 0", 2, "--replicas 0: 1 to 8"),
        (
            "bench recovery --data 1KiB",
            2,
            "--data 1KiB: 1MiB to 64GiB",
        ),
        (
            "bench recovery --lost-value-size 2000000",
            2,
            "--lost-value-size 2000000: 1 to 1048576",
        ),
        ("bench recovery --rounds 0", 2, "--rounds 0: 1 to 1000"),
        ("bench recovery --part disk", 2, "replay"),
        (
            "simulate recovery --servers 1",
            2,
            "--servers 1: 2 to 100000",
        ),
        ("simulate recovery --data 64GB/rack", 2, "is not a size"),
        (
            "simulate recovery --disk-mb-per-s 0",
            2,
            "--disk-mb-per-s 0: 0.1 to",
        ),
        (
            "simulate recovery --part placement --disks 0",
            2,
            "--disks 0: 1 to 100000",
        ),
    ] {
        pluvio(words(line)).fails(code, &[reason]);
    }
    let bad = bad.to_str().unwrap();
    pluvio(["bench", "trace", bad, "--peer", "none"]).fails(1, &["line 3", "jump"]);
}

/// The block trace is no public file; it may lie beside the checkout.
mod needs_block_trace {
    use super::*;
    use crate::support::block_trace;

    #[test]
    fn it_is_replayed() {
        // All of it is 2 GB of values: a tenth tells as much here.
        let text = fs::read_to_string(block_trace()).unwrap();
        let beginning: Vec<&str> = text.lines().take(10_001).collect();
        let folder = tempfile::tempdir().unwrap();
        let part = folder.path().join("part.csv");
        fs::write(&part, beginning.join("\n")).unwrap();
        let mut line = words("bench trace --repeat 2 --rounds 1 --peer none --json");
        line.push(part.to_str().unwrap());
        let json = pluvio(line).json();
        let row = &rows(&json)[0];
        assert_eq!(json["parameters"]["operations"], 10_000);
        assert!(row["operations"].as_u64().unwrap() >= 20_000, "{row}");
        assert_eq!(row["misses"], 0, "what was read first had been written");
    }
}
