//! `pluvio torture` as its users meet it: a short run that holds, a history that does not, a run
//! that ends early, and nonsense.

use crate::support::cluster::Turn;
use crate::support::program::{Output, command, pluvio, run};
use crate::support::wait_for;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

fn torture(line: &str) -> Output {
    pluvio(["torture"].into_iter().chain(line.split_whitespace()))
}

fn check(history: &Path) -> Output {
    pluvio([
        "torture".as_ref(),
        "--json".as_ref(),
        "--history".as_ref(),
        history.as_os_str(),
    ])
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn a_short_run_holds_and_a_stale_read_in_its_history_is_found() {
    let _turn = Turn::take();
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("evidence");
    let kept_text = kept.to_str().unwrap();
    let report = short_run(kept_text);
    assert_eq!(report["ok"], true, "{report}");
    assert_eq!(report["seed"], 2_010_396, "{report}");
    // The stopped one is expelled. Where others are as well, the machine stood still, and a fault
    // may be left out.
    if number(&report["expelled"]) <= 1 {
        for kind in ["kill", "stop"] {
            assert!(report["faults_done"][kind].is_u64(), "{report}");
        }
    }
    // Two kinds need what not every machine grants; the report says so.
    let possible = report["faults"].as_array().unwrap();
    for kind in ["kill", "stop", "coordinator", "flip", "device"] {
        assert!(possible.contains(&kind.into()), "{report}");
    }
    for kind in ["cut", "disk"] {
        let left_out = report["left_out"][kind].is_string();
        assert_ne!(possible.contains(&kind.into()), left_out, "{report}");
    }
    assert!(number(&report["keys"]) >= 32, "{report}");
    for kind in ["native read", "native increment", "redis SET", "redis GET"] {
        assert!(number(&report["operations"][kind]["done"]) > 0, "{report}");
    }
    for phase in ["healed_s", "cold_start_s"] {
        assert!(report[phase].as_f64().is_some_and(|s| s > 0.0), "{report}");
    }
    for file in ["faults.jsonl", "report.json", "logs", "server-1"] {
        assert!(kept.join(file).exists(), "{file}");
    }

    // The same judgement of the history that was kept.
    let history = kept.join("history.jsonl");
    let again = check(&history).json();
    for field in ["ok", "keys", "linearizable", "undecided"] {
        assert_eq!(again[field], report[field], "{field}");
    }
    let output = check(&with_a_stale_read(&history));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks: Vec<&str> = found["violations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v["check"].as_str().unwrap())
        .collect();
    assert!(checks.contains(&"linearizable"), "{found}");
    assert!(checks.contains(&"reads-never-go-back"), "{found}");
    output.fails(1, &["do not hold", "defect"]);
}

/// A few seconds of trouble, and it holds; all evidence is kept in a folder. Whatever the machine
/// allows, this seed kills a server first, and half a second later stops another one until it is
/// declared dead. Both happen unless another server is declared dead before. The first fault meets
/// a calm cluster. The second one joins others, with at most one server away before it. A full disk
/// and a cut may follow where they are possible.
fn short_run(kept: &str) -> Value {
    let flags = "--minutes 0.15 --seed 2010396 --faults all --json --keep";
    torture(&format!("{flags} {kept}")).json()
}

/// A copy of a history in which one more client reads, at the very end, what somebody has
/// overwritten long before.
fn with_a_stale_read(history: &Path) -> PathBuf {
    let text = fs::read_to_string(history).unwrap();
    let planted = stale_read(&text);
    let copy = history.with_extension("planted");
    fs::write(&copy, text + &planted).unwrap();
    copy
}

/// A line in which the first value that was overwritten is read after everything else.
fn stale_read(history: &str) -> String {
    let lines: Vec<Value> = history
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let found = |line: &Value| {
        let found = &line["outcome"]["Found"];
        Some((
            line["key"].as_str()?.to_owned(),
            found["version"].as_u64()?,
            line.clone(),
        ))
    };
    let seen: Vec<_> = lines.iter().filter_map(found).collect();
    let stale = seen.iter().find(|(key, version, _)| {
        seen.iter()
            .any(|(other, later, _)| other == key && later > version)
    });
    let (_, _, mut line) = stale.expect("some key is read with two versions").clone();
    // After every tick of the run, and before those of operations that never ended.
    line["invoked"] = (1_u64 << 40).into();
    line["returned"] = ((1_u64 << 40) + 1).into();
    format!("{line}\n")
}

/// Where the run keeps its files that was told to keep temporary ones in this folder, once it has
/// launched all of its servers.
fn launched(temporary: &Path, last_server: u32) -> PathBuf {
    wait_for("the last server to be launched", || {
        let runs = fs::read_dir(temporary).unwrap();
        let mut runs = runs.map(|entry| entry.unwrap().path());
        let trace = format!("logs/server-{last_server}.log");
        runs.find(|run| run.join(&trace).exists())
            .ok_or_else(|| "it has no trace".to_owned())
    })
}

#[test]
fn a_run_that_cannot_go_on_leaves_what_happened_until_then() {
    let _turn = Turn::take();
    let folder = tempfile::tempdir().unwrap();
    let mut command = command();
    let flags = "--minutes 0.05 --seed 5 --servers 3 --replicas 2 --faults none --json";
    command.env("TMPDIR", folder.path());
    command.arg("torture").args(flags.split_whitespace());
    let (data, output) = thread::scope(|scope| {
        let running = scope.spawn(|| run(&mut command, b""));
        let data = launched(folder.path(), 3);
        // A process has no place for its trace from now on: none can be started again, as it is
        // after a kill of everything.
        fs::rename(data.join("logs"), data.join("first-logs")).unwrap();
        fs::write(data.join("logs"), "").unwrap();
        (data, running.join().unwrap())
    });
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let place = data.to_str().unwrap();
    let last = output.stderr.lines().last().unwrap_or_default().to_owned();
    output.fails(1, &["ended early"]);
    assert!(last.starts_with("error: the torture ended early"), "{last}");
    assert!(last.ends_with(&format!(" are in {place}")), "{last}");
    let report = fs::read(data.join("report.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report, said);
    assert_eq!(report["ok"], false, "{report}");
    let why = report["failed"].as_str().unwrap();
    assert!(why.contains("logs"), "{report}");
    let faults = fs::read_to_string(data.join("faults.jsonl")).unwrap();
    assert!(!faults.is_empty());
    let again = check(&data.join("history.jsonl")).json();
    assert!(number(&again["keys"]) > 0, "{again}");
    assert_eq!(again["keys"], report["keys"], "{again}");
    assert!(data.join("server-1").exists());
}

#[test]
fn nonsense_is_refused_with_a_reason() {
    for (line, words) in [
        ("--minutes 0", &["--minutes"][..]),
        ("--minutes soon", &["--minutes"]),
        ("--faults kill,earthquake", &["earthquake", "coordinator"]),
        ("--servers 2", &["--servers"]),
        ("--servers 3 --replicas 3", &["--replicas", "--servers"]),
        ("--history a --seed 1", &["--history", "--seed"]),
    ] {
        torture(line).fails(2, words);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("history.jsonl");
    fs::write(&file, "{\"key\":\"a\"}\n").unwrap();
    check(&file).fails(1, &["history.jsonl", "line 1"]);
    fs::write(&file, "").unwrap();
    check(&file).fails(1, &["history.jsonl", "no operation"]);
    check(&folder.path().join("nothing")).fails(1, &["nothing", "check the path"]);
    let line = format!("--minutes 1 --keep {}", folder.path().display());
    torture(&line).fails(2, &["--keep", "not empty"]);
}

mod needs_go {
    use super::*;
    use crate::support::root;
    use std::process::Command;

    /// What `docs/torture.md` tells people to do.
    fn porcupine(history: &Path) -> Output {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.current_dir(root()).args(["xtask", "porcupine"]);
        run(command.arg(history), b"")
    }

    #[test]
    fn a_second_checker_accepts_a_short_run_and_finds_a_stale_read_in_its_history() {
        let _turn = Turn::take();
        let folder = tempfile::tempdir().unwrap();
        let kept = folder.path().join("evidence");
        let report = short_run(kept.to_str().unwrap());
        let history = kept.join("history.jsonl");
        let said = porcupine(&history).ok().text();
        let keys = format!("porcupine: {} histories of keys", report["keys"]);
        assert!(said.contains(&keys), "{said}");
        assert!(said.contains(" 0 not linearizable"), "{said}");

        let output = porcupine(&with_a_stale_read(&history));
        let said = output.text();
        assert!(said.contains(" 1 not linearizable"), "{said}");
        output.fails(1, &[]);
    }
}
