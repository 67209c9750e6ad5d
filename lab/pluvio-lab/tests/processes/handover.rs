//! Commands of `pluvio` that this binary does: the same words, the same answers, the same exit
//! code.

use crate::support::program::{command_through, pluvio, run};
use serde_json::Value;
use std::fs;

/// The names under `Commands:` of a help page.
fn commands(page: &str) -> Vec<String> {
    let lines = page.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    let names = lines.filter(|line| !line.starts_with("    "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

fn laboratory(line: &[&str]) -> String {
    let mut laboratory = command_through(env!("CARGO_BIN_EXE_pluvio-lab"));
    run(laboratory.args(line), b"").ok().text()
}

#[test]
fn every_command_of_the_laboratory_is_one_of_pluvio() {
    let ours = commands(&laboratory(&["--help"]));
    assert_eq!(ours, ["bench", "sim", "simulate", "torture"]);
    let theirs = commands(&pluvio(["--help"]).ok().text());
    assert!(ours.iter().all(|name| theirs.contains(name)), "{theirs:?}");
    let ours = commands(&laboratory(&["bench", "--help"]));
    assert!(ours.len() > 6, "{ours:?}");
    let theirs = commands(&pluvio(["bench", "--help"]).ok().text());
    assert!(ours.iter().all(|name| theirs.contains(name)), "{theirs:?}");
    for name in ours {
        let page = pluvio(["bench", &name, "--help"]).ok().text();
        let usage = format!("Usage: pluvio bench {name} ");
        assert!(page.contains(&usage), "no {usage} in {page}");
        assert!(!page.contains("ARGUMENTS"), "{page}");
    }
}

#[test]
fn a_configuration_file_serves_both_programs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pluvio.toml");
    // Every command of either, each in a section of its own.
    let mut text = String::from("[global]\ntimeout = \"3s\"\n");
    for name in commands(&pluvio(["--help"]).ok().text()) {
        text += &format!("[{name}]\n");
    }
    for name in commands(&pluvio(["bench", "--help"]).ok().text()) {
        text += &format!("[bench.{name}]\n");
        if ["load", "store"].contains(&name.as_str()) {
            text += "keys = 77\n";
        }
    }
    fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    for name in ["load", "store"] {
        let shown = pluvio(["--config", file, "bench", name, "--print-config"]);
        let shown = shown.ok().text();
        for line in ["timeout = \"3s\"  # file", "keys = 77  # file"] {
            assert!(
                shown.lines().any(|found| found == line),
                "{line} in {shown}"
            );
        }
    }
    fs::write(file, "[bench.store]\nkees = 1\n").unwrap();
    let line = ["--config", file, "bench", "store", "--peer", "none"];
    pluvio(line).fails(2, &["`kees`"]);
}

// shows: HAND-1
#[test]
fn options_before_the_command_and_the_exit_code_are_passed_on() {
    let report = pluvio(["--json", "sim", "--seed", "1", "--steps", "5"]).json();
    assert_eq!(report["seed"], Value::from(1), "{report}");
    pluvio(["sim", "--seed", "one"]).fails(2, &["one"]);
}
