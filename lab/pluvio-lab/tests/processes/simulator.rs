//! `pluvio sim` as its users meet it: reports, exit codes, and the command that replays a run.

use crate::support::program::{Output, pluvio};
use serde_json::Value;

fn sim(line: &str) -> Output {
    pluvio(["sim"].into_iter().chain(line.split_whitespace()))
}

#[test]
fn a_seed_says_what_it_did_and_does_it_again_when_replayed() {
    let line = "--seed 3 --steps 60 --servers 3 --faults delay,loss,crash --json";
    let first = sim(line).ok();
    let report: Value = serde_json::from_slice(&first.stdout).unwrap();
    assert_eq!(report["seed"], 3, "{report}");
    assert_eq!(report["steps"], 60, "{report}");
    assert_eq!(report["plan"]["servers"], 3, "{report}");
    assert_eq!(report["faults"].as_array().unwrap().len(), 3, "{report}");
    assert_eq!(report["violations"].as_array().unwrap().len(), 0);
    assert!(report["acknowledged_writes"].as_u64().unwrap() > 0);
    assert!(report["events"].as_u64().unwrap() > 1000, "{report}");

    // Bit for bit the same, and by the command that it names as well.
    assert_eq!(sim(line).ok().text(), first.text());
    let replay = report["replay"].as_str().unwrap();
    let again = replay.strip_prefix("pluvio sim ").unwrap();
    let again = sim(&format!("{again} --json")).ok();
    assert_eq!(again.text(), first.text(), "{replay}");
    // Another seed is another run.
    let other = sim(&line.replace("--seed 3", "--seed 4")).json();
    assert_ne!(other["trace_hash"], report["trace_hash"]);
}

#[test]
fn seeds_count_up_and_are_told_one_by_one() {
    let line = "--seed 10 --seeds 3 --steps 20 --servers 2 --faults none";
    let text = sim(line).ok().text();
    assert_eq!(text, "3 seeds: every check held\n");
    let text = sim(&format!("{line} --json --threads 2")).ok().text();
    let reports: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let mut seeds: Vec<u64> = reports
        .iter()
        .map(|r| r["seed"].as_u64().unwrap())
        .collect();
    seeds.sort_unstable();
    assert_eq!(seeds, [10, 11, 12]);
    for report in reports {
        assert_eq!(report["faults_injected"].as_object().unwrap().len(), 0);
        let replay = report["replay"].as_str().unwrap();
        let seed = format!("--seed {} ", report["seed"]);
        assert!(replay.contains(&seed), "{replay}");
        assert!(!replay.contains("--seeds"), "one seed alone: {replay}");
    }
    // The trace of one seed is for reading along.
    let traced = sim("--seed 10 --steps 20 --servers 2 --faults none --trace info").ok();
    assert!(traced.stderr.lines().count() > 5, "{}", traced.stderr);
}

#[test]
fn nonsense_is_refused_with_a_reason() {
    for (line, words) in [
        ("", &["--seed"][..]),
        ("--seed one", &["one"]),
        (
            "--seed 1 --faults crash,earthquake",
            &["earthquake", "delay"],
        ),
        ("--seed 1 --seeds 0", &["--seeds"]),
        ("--seed 1 --servers 0", &["--servers"]),
        ("--seed 1 --servers 33", &["--servers"]),
        ("--seed 1 --seeds 2 --trace info", &["--trace", "--seeds"]),
        (
            "--seed 18446744073709551615 --seeds 2",
            &["--seeds", "largest seed"],
        ),
    ] {
        sim(line).fails(2, words);
    }
}
