//! How experiments tell their results: JSON or a table on standard output, and files on request.

use clap::Args;
use pluvio_bench::experiment::{Experiment, Picture};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{count, print_json, print_line, table, table_text};
use std::fs;
use std::path::PathBuf;

/// Where else to write the results of an experiment.
#[derive(Args, Clone, Debug, Default)]
pub struct Files {
    /// Write the rows to this file, as comma-separated values
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw the results into this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Write parameters, machine, rows and ratios to this file, as Markdown tables
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// Prints the results and writes the files.
///
/// # Errors
/// A file cannot be written; standard output is closed.
pub fn tell(
    global: &Global,
    files: &Files,
    experiment: &Experiment,
    picture: &Picture,
) -> Result<(), Failure> {
    // First what took minutes to find out: a wrong path must not lose it.
    match global.json {
        true => print_json(experiment)?,
        false => print_line(&as_text(experiment))?,
    }
    if let Some(path) = &files.csv {
        fs::write(path, experiment.csv()).map_err(|error| Failure::file(path, &error))?;
    }
    if let Some(path) = &files.markdown {
        fs::write(path, as_markdown(experiment)).map_err(|error| Failure::file(path, &error))?;
    }
    if let Some(path) = &files.plot {
        let svg = picture
            .svg()
            .map_err(|error| Failure::new(error.to_string()))?;
        fs::write(path, svg).map_err(|error| Failure::file(path, &error))?;
    }
    Ok(())
}

/// Which columns hold numbers only.
fn numbers(experiment: &Experiment, columns: &[&str]) -> Vec<usize> {
    (0..columns.len())
        .filter(|&index| {
            let cells = experiment
                .rows
                .iter()
                .filter_map(|row| row.get(columns[index]));
            cells.clone().all(|cell| cell.is_number() || cell.is_null())
        })
        .collect()
}

/// Parameters and machine, in two lines.
fn circumstances(experiment: &Experiment) -> [String; 2] {
    let parameters: Vec<String> = experiment
        .parameters
        .cells()
        .map(|(name, _)| format!("{name} {}", experiment.parameters.text(name)))
        .collect();
    let m = &experiment.machine;
    let machine = format!(
        "{}, {} processors, Linux {}, huge pages {}, load {} at the beginning, {} build",
        m.processor, m.processors, m.kernel, m.huge_pages, m.load, m.build
    );
    [parameters.join(", "), machine]
}

/// A section with a table of the rows and one of the ratios. A median with its least and most is
/// one cell.
fn as_markdown(experiment: &Experiment) -> String {
    let all = experiment.columns();
    let has = |name: &str, end| all.contains(&&*format!("{name}{end}"));
    let is_border = |name: &str| {
        let of = name.strip_suffix("_min").or(name.strip_suffix("_max"));
        of.is_some_and(|of| has(of, ""))
    };
    let columns: Vec<&str> = all
        .iter()
        .copied()
        .filter(|name| !is_border(name))
        .collect();
    let numbers = numbers(experiment, &columns);
    let [parameters, machine] = circumstances(experiment);
    let mut text = format!(
        "## {}\n\n{parameters}. {machine}.\n\n",
        experiment.experiment
    );
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let head = columns.iter().map(|name| name.replace('_', " "));
    text.push_str(&line(head.collect()));
    let rule = (0..columns.len()).map(|at| match numbers.contains(&at) {
        true => "---:".to_owned(),
        false => "---".to_owned(),
    });
    text.push_str(&line(rule.collect()));
    for row in &experiment.rows {
        let cells = columns.iter().map(|&name| {
            let Some(number) = row.number(name) else {
                return row.text(name);
            };
            let border = |end| row.number(&format!("{name}{end}"));
            match (border("_min"), border("_max")) {
                (Some(min), Some(max)) => {
                    format!("{} ({} to {})", shown(number), shown(min), shown(max))
                }
                (_, _) => shown(number),
            }
        });
        text.push_str(&line(cells.collect()));
    }
    if !experiment.ratios.is_empty() {
        text.push_str("\n| ratio | |\n|---|---:|\n");
        for (name, ratio) in &experiment.ratios {
            let borders = borders(experiment, name);
            text.push_str(&format!("| {name} | {ratio:.3}{borders} |\n"));
        }
    }
    text
}

/// The least and the most of a ratio that is a median over rounds.
fn borders(experiment: &Experiment, ratio: &str) -> String {
    match experiment.ratio_spreads.get(ratio) {
        Some(spread) => format!(" ({:.3} to {:.3})", spread.min, spread.max),
        None => String::new(),
    }
}

fn as_text(experiment: &Experiment) -> String {
    let columns = experiment.columns();
    let numbers = numbers(experiment, &columns);
    let heads: Vec<String> = columns.iter().map(|name| name.replace('_', " ")).collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut text = table(&heads, &numbers);
    for row in &experiment.rows {
        text.add_row(columns.iter().map(|name| match row.number(name) {
            Some(number) => shown(number),
            None => row.text(name),
        }));
    }
    let [parameters, machine] = circumstances(experiment);
    let mut all = format!(
        "{}: {parameters}\n{machine}\n\n{}\n",
        experiment.experiment,
        table_text(&text)
    );
    if !experiment.ratios.is_empty() {
        all.push_str("\nratios\n");
        for (name, ratio) in &experiment.ratios {
            let borders = borders(experiment, name);
            all.push_str(&format!("{ratio:>8.3}  {name}{borders}\n"));
        }
    }
    all.truncate(all.trim_end().len());
    all
}

/// A number with the digits that say something.
fn shown(number: f64) -> String {
    match number.abs() {
        _ if number.fract() == 0.0 && number.abs() < 1e15 => match number < 0.0 {
            true => format!("-{}", count(-number as u64)),
            false => count(number as u64),
        },
        size if size >= 1e4 => count(number.round() as u64),
        size if size >= 100.0 => format!("{number:.1}"),
        size if size >= 1.0 => format!("{number:.2}"),
        _ => format!("{number:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_bench::experiment::Row;

    #[test]
    fn a_markdown_table_has_a_line_for_each_row() {
        let mut experiment = Experiment::new("test", Row::new().with("seed", 1));
        let spread = Row::new()
            .with("rate", 2e6)
            .with("rate_min", 1e6)
            .with("rate_max", 3e6);
        experiment
            .rows
            .push(Row::new().with("who", "a").and(spread));
        experiment.rows.push(Row::new().with("who", "b"));
        experiment.ratio("a / b", 3.0, 2.0);
        experiment.ratio_by_round("b / a", &[1.0, 2.0, 3.0], &[1.0, 1.0, 1.0]);
        let text = as_markdown(&experiment);
        for line in [
            "## test",
            "| who | rate |",
            "| --- | ---: |",
            "| a | 2 000 000 (1 000 000 to 3 000 000) |",
            "| b |  |",
            "| a / b | 1.500 |",
            "| b / a | 2.000 (1.000 to 3.000) |",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }

    #[test]
    fn numbers_show_what_says_something() {
        for (number, text) in [
            (0.0, "0"),
            (12_345.0, "12 345"),
            (-3.0, "-3"),
            (54_321.4, "54 321"),
            (123.456, "123.5"),
            (1.2345, "1.23"),
            (0.12345, "0.1235"),
        ] {
            assert_eq!(shown(number), text);
        }
    }
}
