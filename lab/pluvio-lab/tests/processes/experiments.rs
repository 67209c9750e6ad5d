//! Experiments as users run them, at their smallest: they end, say what they must, and refuse
//! nonsense.

use crate::support::patience::wait_for;
use crate::support::program::{Running, command, pluvio, run};
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
            "bench store --keys 2000 --threads 1 --seconds 0.02 --rounds 1 --utilization 50,80 --peer none",
            20,
        ),
        (
            "bench store --keys 2000 --threads 1 --seconds 0.02 --rounds 1 --batch 1,40 --batch-puts --value-size 0,100 --peer none",
            24,
        ),
        (
            "bench cleaner --memory 128MiB --value-size 10000 --distribution uniform --utilization 30,50 --seconds 0.05 --rounds 1",
            2,
        ),
        (
            "bench latency-cdf --memory 128MiB --utilization 40 --value-size 1000 --get-percent 50 --seconds 0.05 --rounds 1",
            60,
        ),
        (
            "bench latency-cdf --memory 128MiB --utilization 20 --value-size 64,1024 --update append,in-place --insert --cleaner-only --seconds 0.05 --rounds 1",
            2 * (2 * 2 + 1) * 20,
        ),
        (
            "bench copy --size 64,1024 --memory 1MiB --seconds 0.02 --rounds 1",
            6,
        ),
        (
            "bench cleaner --memory 128MiB --value-size 10000 --distribution zipfian --utilization 30,60 --level two,one --disk-bandwidth unlimited,500 --seconds 0.05 --rounds 1",
            8,
        ),
        (
            "bench cleaner --memory 128MiB --value-size 1000 --distribution uniform --utilization 50 --tombstones deletes,every --disk-bandwidth unlimited --seconds 0.05 --rounds 1",
            2,
        ),
        (
            "bench breakdown --keys 2000 --value-size 64,500 --seconds 0.02 --rounds 1 --heads 1,2 --cleaner-threads 2 --segment 4MiB --get-percent 50",
            24,
        ),
        (
            "bench breakdown --keys 2000 --value-size 64 --seconds 0.02 --rounds 1 --part segment --segment 3MiB,4MiB --get-percent 50",
            3,
        ),
        (
            "bench fragmentation --workload W1,W2 --live 8MiB --peer glibc --performance",
            4,
        ),
        (
            "bench trace --profile twitter:14 --keys 1000 --operations 5000 --rounds 1 --peer malloc --threads 1",
            3,
        ),
        (
            "bench postmark --keys 200 --transactions 1000 --rounds 1 --peer none",
            2,
        ),
        (
            "bench postmark --keys 200 --transactions 1000 --rounds 1 --peer none --threads 1 --utilization 17,80 --segment 3MiB,4MiB",
            2 * 2 * 2,
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
fn a_store_tells_what_an_object_costs_beside_key_and_value() {
    // So many keys that the least an index takes does not show.
    let line = "bench store --keys 200000 --threads 1 --get-percent 50,0 --batch 1,16 --batch-puts --seconds 0.02 --rounds 1 --peer none --json";
    let json = pluvio(words(line)).json();
    assert_eq!(json["parameters"]["batch_puts"], true);
    let ours = |name: &'static str| {
        rows(&json)
            .iter()
            .filter(move |row| row["contestant"] == name)
    };
    let batches: Vec<_> = ours("pluvio")
        .map(|row| (row["batch"].as_u64(), row["put_batch"].as_u64()))
        .collect();
    let (single, batch) = ((Some(1), Some(1)), (Some(16), Some(16)));
    assert_eq!(batches, [single, batch, single, batch]);
    // In place, the head of the value comes on top.
    for (name, header) in [("pluvio", 12.0..=16.0), ("pluvio-in-place", 24.0..=28.0)] {
        assert_eq!(ours(name).count(), 4);
        for row in ours(name) {
            let cell = |name: &str| row[name].as_f64().unwrap();
            assert!(header.contains(&cell("entry_header_bytes")), "{row}");
            assert!((9.0..=11.0).contains(&cell("index_bytes_per_key")), "{row}");
        }
    }
}

#[test]
fn transactions_are_measured_beside_single_writes() {
    let line = "bench transactions --servers 2 --replicas 1 --callers 2 --keys 20 --seconds 0.05 --rounds 2 --json";
    let json = pluvio(words(line)).json();
    let seen: Vec<_> = rows(&json)
        .iter()
        .map(|row| (row["way"].as_str().unwrap(), row["load"].as_str().unwrap()))
        .collect();
    let of = |way| ["write", "one owner", "two owners"].map(|load| (way, load));
    assert_eq!(seen, [of("native"), of("redis")].concat());
    for row in rows(&json) {
        assert!(row["p50_us"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["server_us"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert_eq!(json["ratios"].as_object().unwrap().len(), 2 * 2 * 2);
}

#[test]
fn commands_are_measured_beside_plain_ones() {
    let line = "bench commands --durability none --peer none --callers 3 --pipeline 1,5 --requests 300 --keys 100 --rounds 1 --json";
    let json = pluvio(words(line)).json();
    assert_eq!(rows(&json).len(), 2 * 8 + 1);
    let last = rows(&json).last().unwrap();
    assert_eq!(last["command"], "expired");
    let ratios = json["ratios"].as_object().unwrap();
    for name in ["EXEC of ten / SET", "EVALSHA / SET", "GET volatile / GET"] {
        let name = format!("pluvio-redis, none, pipeline 5: {name}, server time");
        assert!(ratios.contains_key(&name), "{name} in {ratios:?}");
    }
}

#[test]
fn keys_expire_under_load() {
    let line = "bench expiry --durability none --part late --keys 3000 --fill-rate 1000 --spread 1 --seconds 0.5 --rounds 1 --callers 2 --json";
    let json = pluvio(words(line)).json();
    let row = &rows(&json)[0];
    for name in [
        "late_most_s",
        "dbsize_late_s",
        "quiet_p99_us",
        "expiring_p99_us",
    ] {
        assert!(row[name].as_f64().is_some(), "{name} in {row}");
    }
    let line = "bench expiry --durability none --part full --memory 128MiB --utilization 50 --lifetime 1 --minutes 0.1 --json";
    let json = pluvio(words(line)).json();
    let row = &rows(&json)[0];
    assert_eq!(row["refused"], 0, "{row}");
    assert!(row["expired"].as_u64().unwrap() > 0, "{row}");
    assert!(row["live_percent_max"].as_f64().unwrap() < 55.0, "{row}");
}

#[test]
fn a_stream_is_swept_by_threads_and_its_operations_are_told() {
    let line = "bench postmark --keys 200 --transactions 1000 --rounds 1 --peer none --threads 1,2 --utilization 17,65 --json";
    let json = pluvio(words(line)).json();
    let seen: Vec<_> = rows(&json)
        .iter()
        .map(|row| {
            let number = |name: &str| row[name].as_u64().unwrap();
            assert!(row["seconds"].as_f64().unwrap() > 0.0, "{row}");
            (number("threads"), number("utilization_percent"))
        })
        .collect();
    let each = |threads| [17, 65, 17, 65].map(|percent| (threads, percent));
    assert_eq!(seen, [each(1), each(2)].concat());
    let operations: f64 = ["get", "overwrite", "insert", "delete"]
        .map(|name| {
            json["parameters"][format!("{name}_percent")]
                .as_f64()
                .unwrap()
        })
        .iter()
        .sum();
    assert!((operations - 100.0).abs() < 0.3, "{json}");
    assert!(json["parameters"]["uses_of_most_objects"].as_u64().unwrap() > 1);
}

#[test]
fn files_in_sub_directories_are_found_again() {
    for (option, expected) in [
        ("", 10_000),
        ("--subdirectories 7", 7),
        ("--subdirectories 0", 0),
    ] {
        let line = format!(
            "bench postmark --keys 200 --transactions 1000 --rounds 1 --peer none --json {option}"
        );
        let json = pluvio(words(&line)).json();
        assert_eq!(json["parameters"]["subdirectories"], expected);
        for row in rows(&json) {
            assert!(row["gets"].as_u64().unwrap() > 0, "{row}");
            assert_eq!(row["misses"], 0, "{row}");
        }
    }
}

/// The letter that stands for a process's state; `None` when it is gone.
fn state(pid: &str) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Before it stands the name, in parentheses.
    stat.rsplit_once(") ")?.1.chars().next()
}

#[test]
fn contestants_stand_still_while_another_one_runs_and_die_with_their_parent() {
    let line = "bench store --keys 2000 --threads 1 --get-percent 100 --batch 1 --seconds 0.2 --rounds 100 --utilization 30,50,80 --peer none";
    let mut experiment = Running::start(words(line));
    let children = format!("/proc/{0}/task/{0}/children", experiment.pid());
    // Two stores of ours for each utilization.
    let contestants = wait_for("all contestants but one are stopped", || {
        let pids = fs::read_to_string(&children).map_err(|error| error.to_string())?;
        let pids: Vec<String> = pids.split_whitespace().map(str::to_owned).collect();
        let stopped = pids.iter().filter(|pid| state(pid) == Some('T')).count();
        match pids.len() == 6 && stopped == 5 {
            true => Ok(pids),
            false => Err(format!("{stopped} of {}", pids.len())),
        }
    });
    experiment.kill();
    wait_for("no contestant is left", || {
        let left = contestants
            .iter()
            .filter(|pid| !matches!(state(pid), None | Some('Z')))
            .count();
        match left {
            0 => Ok(()),
            left => Err(format!("{left} are")),
        }
    });
}

/// A trace with the usual columns: a value that is too large, one that was there before, and times
/// that go back.
const TRACE: &str = "time,operation,key,size\n\
    7,get,a,100\n5,put,b,2000\n6,get,b,2000\n8,put,c,1048577\n9,delete,a,0\n10,get,a,0\n";

#[test]
fn a_trace_is_replayed_and_what_was_cut_of_it_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.csv");
    fs::write(&trace, TRACE).unwrap();
    let mut line = words("bench trace --repeat 3 --rounds 1 --threads 1 --peer malloc --json");
    line.push(trace.to_str().unwrap());
    let ran = pluvio(line).ok();
    let told = "1 operations have more than 1MiB, the most a value can have";
    assert!(ran.stderr.contains(told), "{}", ran.stderr);
    let json = ran.json();
    let told = |name: &str| json["parameters"][name].clone();
    assert_eq!(told("operations"), 6);
    assert_eq!((told("keys"), told("sizes_cut")), (3.into(), 1.into()));
    assert_eq!(rows(&json).len(), 2);
    for row in rows(&json) {
        // `a` is written first, which does not count; then it is read before and after it is
        // deleted, in each round.
        assert_eq!(row["operations"], 3 * 6, "{row}");
        assert_eq!(row["gets"], 3 * 3, "{row}");
        assert_eq!(row["misses"], 3 + 2, "{row}");
    }
}

#[test]
fn experiments_write_their_rows_their_picture_and_their_tables() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("trace.csv"), TRACE).unwrap();
    let trace = format!(
        "bench trace {} --rounds 1 --peer none --repeat 1",
        path("trace.csv")
    );
    for (line, cell, drawn) in [
        (trace.as_str(), "p999_us", "operations/s"),
        (
            "bench recovery --part replay --value-size 1,1000 --objects 2000 --rounds 1",
            "replay_cpu_ms_per_mb",
            "MB",
        ),
        (
            "simulate recovery --part cluster --servers 5,40 --data 2GB --recoveries 3",
            "bound_s",
            "servers",
        ),
    ] {
        let mut line = words(line);
        let [csv, svg, md] = ["rows.csv", "all.svg", "all.md"].map(path);
        line.extend(["--json", "--csv", &csv, "--plot", &svg, "--markdown", &md]);
        let shown = line.join(" ");
        let json = pluvio(line).json();
        let read = |path: &str| {
            let text = fs::read_to_string(path).unwrap();
            fs::remove_file(path).unwrap();
            text
        };
        let csv = read(&csv);
        let (head, lines) = csv.split_once('\n').unwrap();
        assert!(head.split(',').any(|name| name == cell), "{shown}: {head}");
        assert_eq!(lines.lines().count(), rows(&json).len(), "{shown}: {csv}");
        let columns = head.split(',').count();
        assert!(
            lines.lines().all(|line| line.split(',').count() >= columns),
            "{shown}: {csv}"
        );
        let svg = read(&svg);
        assert!(
            svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>") && svg.contains(drawn),
            "{shown}: {svg}"
        );
        let md = read(&md);
        let table = md.lines().filter(|line| line.starts_with('|')).count();
        assert!(table >= 2 + rows(&json).len(), "{shown}: {md}");
    }
}

#[test]
fn memory_is_as_full_as_asked_does_not_grow_with_other_sizes_and_is_given_back() {
    let line = "bench fragmentation --workload P2 --live 64MiB --utilization 86 --peer none --json";
    let json = pluvio(words(line)).json();
    let row = &rows(&json)[0];
    let cell = |name: &str| row[name].as_f64().unwrap();
    // A hundredth of the memory may stay unused between objects.
    let utilization = cell("utilization");
    assert!((0.845..0.861).contains(&utilization), "{row}");
    // Values and keys of 1024 and 8 bytes, entries of 1046, no seglet beyond the memory; and what a
    // process takes beside it.
    assert!(cell("peak_over_live") < 1.25, "{row}");
    // The first filling does not yet touch the memory that is for dead objects.
    assert!(cell("second_over_first") < 1.15, "{row}");
    let live = (64 << 20) as f64 * 1032.0 / 1024.0;
    assert!(
        cell("peak_over_live") * live < cell("memory") * 1.05,
        "{row}"
    );
    assert!(cell("deleted_over_live") > 8.0, "{row}");
    assert!(cell("settled_over_live") < 3.0, "{row}");
}

#[test]
fn a_killed_server_comes_back_and_its_stages_are_told() {
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
    assert!(stages.iter().all(|name| ms(name) >= 0.0), "{row}");
    // Of the lost objects that were read: the same moments in another order.
    assert!(ms("first_read_ms") <= ms("last_read_ms"), "{row}");
    assert!(ms("mb") > 4.0 && ms("mb") < 8.0, "{row}");
}

// shows: SYS-1
#[test]
fn ycsb_is_run_by_both_ways_to_a_cluster_and_finds_its_records() {
    let line = "bench ycsb --system pluvio,pluvio-redis --durability none,replicated --records 500 --seconds 0.05 --rounds 1 --callers 4 --json";
    let ran = pluvio(words(line)).ok();
    assert!(ran.stderr.contains("workload E"), "{}", ran.stderr);
    let json = ran.json();
    // Five workloads, two ways, two clusters.
    assert_eq!(rows(&json).len(), 5 * 2 * 2);
    for row in rows(&json) {
        assert_eq!(row["misses"], 0, "{row}");
        assert!(row["ops_per_s"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["server_us"].as_f64().unwrap() > 0.0, "{row}");
        let writes = row.get("write_p50_us").is_some();
        assert_eq!(writes, row["workload"] != "C", "{row}");
    }
}

#[test]
fn a_peer_that_is_not_installed_is_left_out_with_a_line() {
    let line = "bench ycsb --system pluvio,redis --durability none --workload C --records 100 --seconds 0.05 --rounds 1 --json";
    let ran = run(command().args(words(line)).env("PATH", "/nowhere"), b"").ok();
    let told = "left out: redis-server is not installed";
    assert!(ran.stderr.contains(told), "{}", ran.stderr);
    let json = ran.json();
    assert_eq!(rows(&json).len(), 1);
    assert_eq!(rows(&json)[0]["system"], "pluvio");
}

#[test]
fn requests_go_by_datagrams_and_load_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("load.svg");
    let line = "bench requests --transport udp --part sizes,load --value-size 100,100000 --callers 1,4 --data 1MiB --seconds 0.05 --json --plot";
    let mut line = words(line);
    line.push(svg.to_str().unwrap());
    let json = pluvio(line).json();
    assert_eq!(rows(&json).len(), 4 + 4);
    for row in rows(&json) {
        assert_eq!(row["transport"], "udp", "{row}");
        assert!(row["objects_per_s"].as_f64().unwrap() > 0.0, "{row}");
    }
    let drawn = fs::read_to_string(svg).unwrap();
    assert!(drawn.contains("udp read p99") && drawn.contains("YCSB A, 1000 B"));
}

#[test]
fn requests_are_measured_by_size_under_load_and_in_batches() {
    let line = "bench requests --value-size 100,100000 --callers 1,4 --batch 1,10 --batch-callers 2 --data 1MiB --seconds 0.05 --json";
    let json = pluvio(words(line)).json();
    let of = |part: &str| rows(&json).iter().filter(|row| row["part"] == part).count();
    assert_eq!([of("sizes"), of("load"), of("batches")], [4, 4, 4]);
    for row in rows(&json) {
        assert_eq!(row["transport"], "tcp", "{row}");
        if row["part"] == "parts" {
            // Times of spans.
            continue;
        }
        assert!(row["objects_per_s"].as_f64().unwrap() > 0.0, "{row}");
        assert!(
            row["p50_us"].as_f64().unwrap() <= row["p99_us"].as_f64().unwrap(),
            "{row}"
        );
    }
}

#[test]
fn the_cleaner_of_a_master_in_a_cluster_works_for_what_is_overwritten() {
    let line = "bench cluster-cleaner --memory 64MiB --utilization 30,60 --value-size 1000 --distribution uniform --seconds 0.1 --warmup-seconds 5 --json";
    let json = pluvio(words(line)).json();
    // Many callers and one for each utilization, and latencies with a cleaner and without.
    assert_eq!(rows(&json).len(), 2 * 2 + 2);
    let cell = |row: &Value, name: &str| row[name].as_f64().unwrap();
    for row in &rows(&json)[..4] {
        let (wanted, reached) = (cell(row, "utilization"), cell(row, "utilization_reached"));
        assert!((reached - wanted).abs() < 3.0, "{row}");
        assert!(cell(row, "objects_per_s") > 0.0, "{row}");
    }
    assert_eq!(rows(&json)[5]["load"], "latency, no cleaner");
    assert_eq!(rows(&json)[5]["moved_over_new"], 0.0);
}

/// Exit code, command and reason. The last one is told before anything is simulated.
const REFUSED: &str = "\
2 | simulate cleaner --utilization 100 | utilization
2 | simulate cleaner --policy best | segment-age
2 | bench store --peer hashmap | dashmap
2 | bench store --peer none --seconds nan | seconds
2 | bench store --peer none --utilization 99 | utilization
2 | bench store --peer none --threads 513 | --threads 513: 1 to 512
2 | bench store --peer none --threads 0 | --threads 0: 1 to
2 | bench store --peer none --batch 0 | --batch 0: 1 to
2 | bench store --peer none --keys 0 | --keys 0: 1 to
2 | bench store --peer none --get-percent 101 | --get-percent 101: 0 to 100
2 | bench store --peer none --value-size 2000000 | --value-size 2000000: 0 to
2 | bench cleaner --utilization 99 | --utilization 99: 1 to 98
2 | bench cleaner --rounds 0 | --rounds 0: 1 to 1000
2 | bench cleaner --warmup-seconds nan | --warmup-seconds NaN: 0 to 86400
2 | bench cleaner --disk-bandwidth 0 | megabytes a second
2 | bench cleaner --level three | one or two
2 | bench cleaner --tombstones all | deletes or every
2 | bench cleaner --tombstones every | --tombstones every: a store without a disk
1 | bench cleaner --memory 1MiB | option memory: 1048576
1 | bench cleaner --memory 200TiB | option memory: cannot
1 | bench cleaner --memory 256TiB | option memory: 281474976710656 bytes; at most 281474976645120
1 | bench cleaner --memory 512TiB | option memory: 5629
1 | bench cleaner --memory 18446744073709551615 | option memory: 18446744073709551615 bytes; at most
1 | bench cleaner --cleaner-threads 65 | option cleaner_threads: 65; 0 to 64
1 | bench breakdown --keys 2000 --heads 0 | option heads: 0; 1 to 256
1 | bench breakdown --keys 2000 --heads 250 | bytes of memory allow at most
1 | bench breakdown --keys 2000 --segment 1MiB | option segment_size: 1048576
2 | bench latency-cdf --seconds 3000 | --cleaner-only
2 | bench latency-cdf --get-percent 101 | --get-percent 101: 0 to 100
2 | bench fragmentation --live 1MiB | --live 1MiB: 8MiB to
2 | bench postmark --peer none --threads 0 | --threads 0: 1 to 512
2 | bench postmark --peer none --threads 1,513 | --threads 513: 1 to 512
2 | bench latency-cdf --insert --get-percent 50 | --insert measures writes alone
2 | bench latency-cdf --update never | give append or in-place
2 | bench breakdown --part engine | give epochs, heads
2 | bench copy --size 0 | --size 0: 1 to
2 | bench copy --size 2000 --memory 1KiB | --size 2000: 1 to 1024
2 | bench placement --threads 0 | --threads 0: 1 to 512
2 | bench fragmentation --peer none --workload W9 | W8
2 | bench fragmentation --peer none --live 64MiB --utilization 90 | --utilization 90 with --live 64MiB in W7: 1 to 89 are possible
2 | bench postmark --peer none --subdirectories 2000000 | --subdirectories 2000000: 0 to 1077952
2 | bench trace | FILE
2 | bench trace --profile twitter:99 --peer none | twitter:99
1 | bench trace nowhere.csv --peer none | nowhere.csv
2 | bench postmark --size-min 9 --size-max 8 | --size-min
2 | bench recovery --servers 2 | --servers 2: 3 to 16 are possible with --replicas 2
2 | bench recovery --replicas 3 --servers 3 | --servers 3: 4 to 16
2 | bench recovery --replicas 0 | --replicas 0: 1 to 8
2 | bench recovery --data 1KiB | --data 1KiB: 1MiB to 64GiB
2 | bench recovery --lost-value-size 2000000 | --lost-value-size 2000000: 1 to 1048576
2 | bench recovery --rounds 0 | --rounds 0: 1 to 1000
2 | bench recovery --part disk | replay
2 | bench ycsb --workload E | scans ranges of keys in order
2 | bench ycsb --workload G | A, B, C, D or F
2 | bench ycsb --callers 0 | --callers 0: 1 to 1000
2 | bench ycsb --records 0 | --records 0: 1 to
2 | bench ycsb --seconds nan | --seconds NaN: 0.001 to 3600
2 | bench requests --transport pigeon | tcp
2 | bench requests --batch 0 | --batch 0: 1 to 1000
2 | bench requests --data 1KiB | --data 1KiB: 1MiB to 8GiB
2 | bench cluster-cleaner --utilization 99 | --utilization 99: 1 to 95
2 | bench cluster-cleaner --memory 1MiB | --memory 1MiB: 64MiB to
2 | simulate recovery --servers 1 | --servers 1: 2 to 100000
2 | simulate recovery --data 64GB/rack | is not a size
2 | simulate recovery --disk-mb-per-s 0 | --disk-mb-per-s 0: 0.1 to
2 | simulate recovery --part placement --disks 0 | --disks 0: 1 to 100000
2 | simulate recovery --disks 0 | --disks 0: 1 to 100000
";

#[test]
fn nonsense_is_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.csv");
    fs::write(&bad, "operation,key,size\nget,a,1\njump,a,1\n").unwrap();
    for row in REFUSED.lines() {
        let parts: Vec<&str> = row.split(" | ").collect();
        let [code, line, reason] = parts[..] else {
            panic!("not three parts: {row}");
        };
        pluvio(words(line)).fails(code.parse().unwrap(), &[reason]);
    }
    let bad = bad.to_str().unwrap();
    pluvio(["bench", "trace", bad, "--peer", "none"]).fails(1, &["line 3", "jump"]);
}

mod needs_redis_server {
    use super::*;

    #[test]
    fn it_takes_part_in_ycsb() {
        let line = "bench ycsb --system redis,pluvio --durability synced --workload A,D --records 200 --seconds 0.2 --rounds 1 --callers 4 --json";
        ycsb_with(line, "redis");
    }

    #[test]
    fn it_takes_part() {
        // Every value that it gives back is compared with its key.
        for line in [
            "bench trace --profile twitter:14 --keys 1000 --operations 5000 --rounds 1 --threads 2 --peer redis --json",
            "bench fragmentation --workload W1 --live 8MiB --peer redis --json",
        ] {
            let json = pluvio(words(line)).json();
            let found: Vec<_> = rows(&json).iter().map(|row| &row["contestant"]).collect();
            let (ours, redis) = (&rows(&json)[0], &rows(&json)[found.len() - 1]);
            match json["experiment"].as_str().unwrap() {
                "trace" => assert_eq!(found, ["pluvio", "pluvio-in-place", "redis"], "{line}"),
                _ => assert_eq!(found, ["pluvio", "redis"], "{line}"),
            }
            assert_eq!(
                ours["operations"], redis["operations"],
                "{line}: the same for all"
            );
            assert!(redis["ops_per_s"].as_f64().unwrap() > 0.0, "{redis}");
            match json["experiment"].as_str().unwrap() {
                "trace" => assert_eq!(ours["misses"], redis["misses"], "{json}"),
                _ => {
                    // An object of 100 bytes takes it more than twice that.
                    let over = redis["peak_over_live"].as_f64().unwrap();
                    assert!((1.5..4.0).contains(&over), "{redis}");
                }
            }
        }
    }
}

mod needs_memcached {
    use super::*;

    #[test]
    fn it_takes_part_in_ycsb() {
        let line = "bench ycsb --system memcached,pluvio --durability none --workload A,D --records 200 --seconds 0.2 --rounds 1 --callers 4 --json";
        ycsb_with(line, "memcached");
    }
}

mod needs_etcd {
    use super::*;

    #[test]
    fn it_takes_part_in_ycsb() {
        let line = "bench ycsb --system etcd,pluvio --durability synced --workload A,D --records 200 --value-size 40000 --seconds 0.2 --rounds 1 --callers 4 --json";
        ycsb_with(line, "etcd");
    }
}

/// Runs YCSB with one other system, whose rows come behind ours.
fn ycsb_with(line: &str, other: &str) {
    let json = pluvio(words(line)).json();
    let found: Vec<_> = rows(&json).iter().map(|row| &row["system"]).collect();
    assert_eq!(found, ["pluvio", other, "pluvio", other], "{line}");
    for row in rows(&json) {
        assert_eq!(row["misses"], 0, "{row}");
        assert!(row["ops_per_s"].as_f64().unwrap() > 0.0, "{row}");
        assert!(!row["version"].as_str().unwrap().is_empty(), "{row}");
    }
    let ratio = format!("pluvio / {other}, operations a second");
    let ratios = json["ratios"].as_object().unwrap();
    assert!(
        ratios.keys().any(|name| name.ends_with(&ratio)),
        "{ratios:?}"
    );
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
