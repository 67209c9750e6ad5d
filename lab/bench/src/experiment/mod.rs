//! What every experiment reports: one object with parameters, machine, rows and ratios, the rows
//! as a table of comma-separated values, and a picture.
//!
//! - EXP-1: rows carry the numbers that were measured; a ratio is computed from rows of the same
//!   run and says ours over theirs.

mod picture;
mod row;
mod spread;

pub use picture::{Axis, Panel, Picture, PictureError, Series, Shape};
pub use row::Row;
pub use spread::Spread;

use pluvio_load::Machine;
use serde::Serialize;
use std::collections::BTreeMap;

/// One experiment as it was run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Experiment {
    /// Which one: the command's name.
    pub experiment: String,
    /// With which parameters.
    pub parameters: Row,
    /// On what machine.
    pub machine: Machine,
    /// The measurements, one row for each combination of parameters.
    pub rows: Vec<Row>,
    /// Ours over the best of the others (or what the name says), by name.
    pub ratios: BTreeMap<String, f64>,
    /// Of ratios that are medians over rounds, the same with the least and the most.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ratio_spreads: BTreeMap<String, Spread>,
}

impl Experiment {
    /// An experiment on this machine that has no rows yet.
    #[must_use]
    pub fn new(experiment: &str, parameters: Row) -> Self {
        Self {
            experiment: experiment.to_owned(),
            parameters,
            machine: Machine::this(),
            rows: Vec::new(),
            ratios: BTreeMap::new(),
            ratio_spreads: BTreeMap::new(),
        }
    }

    /// The names of all columns, in the order in which they appear first.
    #[must_use]
    pub fn columns(&self) -> Vec<&str> {
        let mut columns = Vec::new();
        for (name, _) in self.rows.iter().flat_map(Row::cells) {
            if !columns.contains(&name) {
                columns.push(name);
            }
        }
        columns
    }

    /// The rows as comma-separated values with a head line. A cell that a row lacks is empty.
    #[must_use]
    pub fn csv(&self) -> String {
        let columns = self.columns();
        let mut text = csv_line(columns.iter().map(|&name| name.to_owned()));
        for row in &self.rows {
            let cells = columns.iter().map(|&name| row.text(name));
            text.push_str(&csv_line(cells));
        }
        text
    }

    /// Notes `ours / theirs` under a name; nothing when there is nothing to compare with.
    pub fn ratio(&mut self, name: impl Into<String>, ours: f64, theirs: f64) {
        let ratio = ours / theirs;
        if ratio.is_finite() {
            self.ratios.insert(name.into(), ratio);
        }
    }

    /// Notes the median of `ours / theirs`, with the least and the most. Each round is compared
    /// with the same round of the other: a machine that was slow for a round was so for both. Notes
    /// nothing when there is nothing to compare with.
    pub fn ratio_by_round(&mut self, name: impl Into<String>, ours: &[f64], theirs: &[f64]) {
        let each = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs);
        let each: Vec<f64> = each.filter(|ratio| ratio.is_finite()).collect();
        if let Some(spread) = Spread::of(&each) {
            let name = name.into();
            self.ratios.insert(name.clone(), spread.median);
            self.ratio_spreads.insert(name, spread);
        }
    }
}

fn csv_line(cells: impl Iterator<Item = String>) -> String {
    let quoted = cells.map(|cell| match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell,
    });
    quoted.collect::<Vec<_>>().join(",") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_rows() -> Experiment {
        let mut experiment = Experiment::new("test", Row::new().with("seed", 1));
        let first = Row::new().with("name", "a, \"b\"").with("x", 1);
        experiment.rows.push(first);
        let second = Row::new().with("x", 2.5).with("y", 3);
        experiment.rows.push(second);
        experiment
    }

    #[test]
    fn columns_keep_their_order_and_csv_quotes_what_it_must() {
        let experiment = two_rows();
        assert_eq!(experiment.columns(), ["name", "x", "y"]);
        assert_eq!(experiment.csv(), "name,x,y\n\"a, \"\"b\"\"\",1,\n,2.5,3\n");
    }

    #[test]
    fn json_is_one_object_with_the_five_fields() {
        let json = serde_json::to_value(two_rows()).unwrap();
        let fields: Vec<_> = json.as_object().unwrap().keys().cloned().collect();
        assert_eq!(
            fields,
            ["experiment", "machine", "parameters", "ratios", "rows"]
        );
        assert_eq!(json["rows"][1]["x"], 2.5);
    }

    #[test]
    fn rounds_are_compared_with_the_same_round_of_the_other() {
        let mut experiment = two_rows();
        experiment.ratio_by_round("a", &[2.0, 8.0, 3.0], &[1.0, 8.0, 1.0]);
        experiment.ratio_by_round("nothing", &[1.0], &[]);
        assert_eq!(experiment.ratios["a"], 2.0);
        let spread = experiment.ratio_spreads["a"];
        assert_eq!((spread.min, spread.max), (1.0, 3.0));
        assert_eq!(experiment.ratios.len(), 1);
    }

    #[test]
    fn a_ratio_to_nothing_is_none() {
        let mut experiment = two_rows();
        experiment.ratio("fine", 3.0, 2.0);
        experiment.ratio("nothing", 3.0, 0.0);
        assert_eq!(experiment.ratios.len(), 1);
        assert_eq!(experiment.ratios["fine"], 1.5);
    }
}
