//! Runs many seeds and prints a line for each: `seeds FIRST COUNT [STEPS [FAULTS]]`. With `TRACE`
//! in the environment (a level: `info`), every line of the trace goes to standard error; with
//! `JSON`, reports are written as JSON. At the end it says how many seeds reached each coverage
//! mark.

use pluvio_sim::cluster::{RunOptions, TraceSink, run_traced};
use std::collections::BTreeMap;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: u64| {
        arguments
            .get(index)
            .map_or(default, |text| text.parse().expect("a number"))
    };
    let (first, count, steps) = (number(0, 0), number(1, 10), number(2, 1_000));
    let level = std::env::var("TRACE").ok();
    let mut failed = 0;
    let mut marks: BTreeMap<String, u64> = BTreeMap::new();
    for seed in first..first + count {
        let mut options = RunOptions::new(seed);
        options.steps = steps;
        if let Some(faults) = arguments.get(3) {
            options.faults = faults.parse().expect("a list of faults");
        }
        let sink: Option<TraceSink> = level
            .is_some()
            .then(|| Box::new(|line: &str| eprintln!("{line}")) as TraceSink);
        let level = level.as_deref().unwrap_or("warn");
        let report = run_traced(&options, level.parse().expect("a trace level"), sink);
        if std::env::var("JSON").is_ok() {
            let text = serde_json::to_string(&report).expect("a report can be written");
            println!("{text}");
        } else {
            println!("{report}");
        }
        failed += u64::from(!report.is_ok());
        for mark in report.marks.into_keys() {
            *marks.entry(mark).or_default() += 1;
        }
    }
    for (mark, seeds) in marks {
        println!("mark {mark}: reached by {seeds} of {count}");
    }
    println!("{failed} of {count} seeds failed");
    if failed > 0 {
        std::process::exit(1);
    }
}
