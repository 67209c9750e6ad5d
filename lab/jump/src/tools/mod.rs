//! The tools experiment [SpaceJMP §10.4]: programs that work on alignments of a genome one after
//! the other. Each of them takes the work of the one before it, from a file or in memory.
//!
//! - `record`, `generate`, `text`, `binary`: alignments, where they come from, their files.
//! - `span`: alignments in a span. `steps`: counting, orders, index. `work`: one tool.
//! - `samtools`: the same steps by Debian's samtools.
//!
//! - TOOLS-1: all ways give the same counts, the same orders and the same index, or the experiment
//!   fails.

mod binary;
mod generate;
mod record;
mod samtools;
mod span;
mod steps;
mod text;
mod work;

pub use work::{Step, Way};

use crate::children::{is_installed, run as run_child};
use crate::error::{JumpError, Result};
use crate::place::Place;
use crate::setting::Setting;
use crate::turns::{Contestant, Numbers, add_rows, now, ns_since, of, take_turns};
use pluvio_bench::experiment::{Experiment, Panel, Picture, Row, Shape};
use samtools::Compression;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use work::{READS, STEPS, WAYS, results};

/// What to measure.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Alignments
    #[arg(long, value_name = "N", default_value_t = 500_000)]
    pub records: u32,
    /// Of their random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Leave samtools out
    #[arg(long)]
    pub no_samtools: bool,
}

/// One tool, as a process: does a step, and prints what it counts.
pub(crate) fn play(way: Way, step: Step, folder: &Path) -> Result<()> {
    let lines = work::work(way, step, folder)?;
    let printed = std::io::stdout().lock().write_all(lines.as_bytes());
    printed.map_err(|error| JumpError::of("the tool", error))
}

/// Writes the text that everything begins with.
fn write_text(folder: &Path, options: &Options) -> Result<()> {
    let records = generate::records(options.records, options.seed);
    let path = folder.join(format!("{READS}.sam"));
    let failed = |error| JumpError::system(format!("write {}", path.display()), error);
    let mut into = BufWriter::new(File::create(&path).map_err(failed)?);
    text::write(&records[..], 0..records.len(), "unsorted", &mut into).map_err(failed)
}

/// Runs a tool, as a process of its own.
fn tool(setting: &Setting, way: Way, step: Step, folder: &Path) -> Result<Vec<u8>> {
    let mut command = setting.program.child("tool");
    command.args([way.word(), step.word()]).arg(folder);
    run_child(way.name(), &mut command)
}

/// Measures all steps in all ways.
///
/// # Errors
/// A tool failed, or two of them gave different answers.
pub fn run(setting: &Setting, options: &Options) -> Result<(Experiment, Picture)> {
    let place = Place::new(setting.folder.as_deref())?;
    let folder = place.path();
    write_text(folder, options)?;
    let others = match !options.no_samtools && is_installed(samtools::PROGRAM) {
        true => vec![Compression::Usual, Compression::Off],
        false => Vec::new(),
    };
    let parameters = Row::new()
        .with("rounds", setting.rounds)
        .with("records", options.records)
        .with("seed", options.seed);
    let mut experiment = Experiment::new("tools", parameters);
    let mut panel = Panel {
        title: "Each step by the way of keeping alignments".into(),
        x: "step".into(),
        y: "milliseconds".into(),
        shape: Shape::Bars {
            groups: STEPS.iter().map(|step| step.word().to_owned()).collect(),
        },
        series: Vec::new(),
    };
    let mut total: Vec<Numbers> = Vec::new();
    for step in [Step::Convert].into_iter().chain(STEPS) {
        let counts = RefCell::new(BTreeSet::new());
        let numbers = measure(setting, step, folder, &others, &counts)?;
        let counts = counts.into_inner();
        if counts.len() > 1 {
            return Err(JumpError::of(
                "the tools",
                format!("TOOLS-1: they count {counts:?}"),
            ));
        }
        let head = Row::new().with("step", step.word());
        add_rows(&mut experiment, &head, "ms", &numbers);
        add_ratios(&mut experiment, step.word(), &numbers);
        if let Some(group) = STEPS.iter().position(|&other| other == step) {
            for one in &numbers {
                let middle = pluvio_bench::experiment::Spread::of(&one.each);
                let ms = middle.map_or(f64::NAN, |spread| spread.median);
                panel.point(&one.name, group as f64, ms);
            }
            add_up(&mut total, &numbers);
        }
    }
    add_rows(
        &mut experiment,
        &Row::new().with("step", "all four"),
        "ms",
        &total,
    );
    add_ratios(&mut experiment, "all four", &total);
    check(folder)?;
    let picture = Picture {
        title: format!("Tools over {} alignments", options.records),
        panels: vec![panel],
    };
    Ok((experiment, picture))
}

/// All ways of a step, in turns.
fn measure(
    setting: &Setting,
    step: Step,
    folder: &Path,
    others: &[Compression],
    counts: &RefCell<BTreeSet<String>>,
) -> Result<Vec<Numbers>> {
    let mut all = Vec::new();
    for way in WAYS {
        // The text is there, and a mapped file is the binary one.
        if step == Step::Convert && matches!(way, Way::Text | Way::Mapped) {
            continue;
        }
        all.push(Contestant::new(way.name(), move || {
            let begin = now();
            let printed = tool(setting, way, step, folder)?;
            let ms = ns_since(begin) / 1e6;
            counts
                .borrow_mut()
                .insert(String::from_utf8_lossy(&printed).into_owned());
            Ok(ms)
        }));
    }
    for &compression in others {
        all.push(Contestant::new(compression.name(), move || {
            let begin = now();
            let printed = samtools::work(compression, step, folder)?;
            let ms = ns_since(begin) / 1e6;
            counts.borrow_mut().insert(samtools::counts(&printed));
            Ok(ms)
        }));
    }
    take_turns(setting.rounds, all)
}

fn add_ratios(experiment: &mut Experiment, step: &str, numbers: &[Numbers]) {
    let space = Way::Space.name();
    for other in numbers.iter().filter(|other| other.name != space) {
        let name = format!("{step}: {} / {space}", other.name);
        experiment.ratio_by_round(name, &other.each, of(numbers, space));
    }
}

/// Adds the times of a step, round by round.
fn add_up(total: &mut Vec<Numbers>, step: &[Numbers]) {
    match total.is_empty() {
        true => *total = step.to_vec(),
        false => {
            for (all, one) in total.iter_mut().zip(step) {
                for (sum, more) in all.each.iter_mut().zip(&one.each) {
                    *sum += more;
                }
            }
        }
    }
}

/// Compares what all ways have left.
fn check(folder: &Path) -> Result<()> {
    let first = results(WAYS[0], folder)?;
    for way in WAYS {
        if results(way, folder)? != first {
            return Err(JumpError::of(way.name(), "TOOLS-1: it left something else"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
