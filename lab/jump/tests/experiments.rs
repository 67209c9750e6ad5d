//! Each experiment with small numbers. It runs to its end, and compares the answers of its
//! contestants by itself. It has a row for each of them. Nothing is said of times.

#![allow(clippy::unwrap_used)]

use pluvio_bench::experiment::{Experiment, Picture};
use pluvio_jump::{Program, Setting, attach, gups, is_installed, redis, switch, tools, walk};
use pluvio_units::Size;
use std::path::PathBuf;

fn program() -> Program {
    Program::at(env!("CARGO_BIN_EXE_pluvio-jump"))
}

fn setting(rounds: u32) -> Setting {
    Setting {
        rounds,
        folder: None,
        program: program(),
    }
}

/// The contestants of rows whose `column` is `value`, and whether each number is one.
fn contestants(
    (experiment, picture): &(Experiment, Picture),
    column: &str,
    value: &str,
) -> Vec<String> {
    assert!(picture.svg().unwrap().contains("<svg"));
    for row in &experiment.rows {
        for (name, cell) in row.cells() {
            assert!(!cell.is_null(), "{name} of {}", row.text("contestant"));
        }
    }
    let rows = experiment
        .rows
        .iter()
        .filter(|row| row.text(column) == value);
    rows.map(|row| row.text("contestant")).collect()
}

#[test]
fn switch_measures_all_ways() {
    let options = switch::Options {
        switches: 400,
        sizes: vec![Size::mib(1)],
    };
    let result = switch::run(&setting(2), &options).unwrap();
    assert_eq!(contestants(&result, "size_mib", "0").len(), 6);
    assert_eq!(contestants(&result, "size_mib", "1").len(), 4);
    assert!(result.0.ratios.contains_key("system call / resident"));
}

#[test]
fn attach_measures_all_sizes() {
    let options = attach::Options {
        sizes: vec![Size::mib(1), Size::mib(2)],
    };
    let result = attach::run(&setting(2), &options).unwrap();
    assert_eq!(result.0.rows.len(), 2 * 6);
    assert_eq!(contestants(&result, "size_mib", "2.0").len(), 6);
}

#[test]
fn walk_measures_all_numbers_of_pages() {
    let options = walk::Options {
        loads: 50,
        pages: vec![1, 100],
    };
    let result = walk::run(&setting(2), &options).unwrap();
    assert_eq!(contestants(&result, "pages", "100").len(), 4);
    let none = walk::Options {
        pages: vec![0],
        ..options
    };
    assert!(walk::run(&setting(2), &none).is_err());
}

// shows: GUPS-1
#[test]
fn gups_updates_the_same_table_by_all_ways() {
    let options = gups::Options {
        turn: gups::Turn::Sets(50),
        windows: vec![1, 3],
        sets: vec![16],
        window: Size::mib(1),
        processes_max: 3,
    };
    let result = gups::run(&setting(1), &options).unwrap();
    let expected = [
        "direct",
        "resident",
        "window",
        "map",
        "processes",
        "processes, busy",
    ];
    assert_eq!(contestants(&result, "windows", "3"), expected);
    let too_many = gups::Options {
        sets: vec![5000],
        ..options
    };
    assert!(gups::run(&setting(1), &too_many).is_err());
}

// shows: TOOLS-1
#[test]
fn tools_agree() {
    let options = tools::Options {
        records: 2000,
        seed: 3,
        no_samtools: false,
    };
    let result = tools::run(&setting(1), &options).unwrap();
    let ways = contestants(&result, "step", "index");
    assert_eq!(
        ways[..4],
        ["space", "mapped file", "binary file", "text file"]
    );
    assert_eq!(contestants(&result, "step", "all four"), ways);
}

/// The program `pluvio`, if it was built with this profile.
fn pluvio() -> Option<PathBuf> {
    let path = program().beside("pluvio");
    if !path.exists() {
        eprintln!("{} is not built: our server takes no part", path.display());
    }
    path.exists().then_some(path)
}

#[test]
fn redis_reads_what_was_written_in_all_stores() {
    let pluvio = pluvio();
    let options = redis::Options {
        turn_ms: 50,
        keys: 500,
        callers: vec![2],
        set_percent: vec![0, 50],
        servers: 2,
        memory: Size::mib(64),
        rings: true,
        pluvio: pluvio.clone(),
        no_pluvio: pluvio.is_none(),
    };
    let result = redis::run(&setting(1), &options).unwrap();
    let stores = contestants(&result, "set_percent", "50");
    let mut expected = vec!["space"];
    if pluvio.is_some() {
        expected.extend(["mapped", "rpc"]);
    }
    if is_installed("redis-server") {
        expected.extend(["redis", "redis x2"]);
    }
    assert_eq!(stores, expected);
}
