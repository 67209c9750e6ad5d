//! The tidy check: what a machine can see of the project's rules, so that they do not rot.
//!
//! Each rule is a function that reads the [`Tree`] (and, where it says so, `cargo metadata` or the
//! built binary) and reports findings. CONTRIBUTING.md lists the rules in words.
//!
//! Invariants
//! - TIDY-1: a finding fails the check. A note does not: it says what is close to a limit or could
//!   not be looked at.
//! - TIDY-2: exceptions are lines in `lab/xtask/tidy/`, each with its reason; an exception that
//!   is not needed is a finding.
//! - TIDY-3: where a rule is younger than the tree, the number of places that break it may only
//!   fall (`ratchet`).

mod arrows;
mod claims;
mod commands;
mod docs;
mod invariants;
mod lex;
mod manifests;
mod marks;
mod matches;
mod prose;
mod ratchet;
mod sources;
mod style;
pub mod tree;
mod way;
mod words;

use crate::cargo::Metadata;
use anyhow::{Result, bail};
use std::fmt;
use std::path::Path;
use tree::Tree;

pub use arrows::print_table;
pub use invariants::write as write_invariants;

/// One broken rule.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Finding {
    /// The file.
    pub path: String,
    /// Its line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// The rule's short name.
    pub rule: &'static str,
    /// What is wrong and what to do.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            line,
            rule,
            message,
        } = self;
        if *line == 0 {
            write!(f, "{path}: [{rule}] {message}")
        } else {
            write!(f, "{path}:{line}: [{rule}] {message}")
        }
    }
}

/// What the check saw.
#[derive(Default)]
pub struct Report {
    /// Broken rules.
    pub findings: Vec<Finding>,
    /// Places that break a rule of which the tree still has many: the ratchet counts them.
    pub counted: Vec<Finding>,
    /// What is not wrong and should be known.
    pub notes: Vec<String>,
}

impl Report {
    /// Records a broken rule.
    pub fn finding(
        &mut self,
        path: &str,
        line: usize,
        rule: &'static str,
        message: impl Into<String>,
    ) {
        self.findings.push(Finding {
            path: path.to_owned(),
            line,
            rule,
            message: message.into(),
        });
    }

    /// Records a place that the ratchet counts (TIDY-3).
    pub fn counted(
        &mut self,
        path: &str,
        line: usize,
        rule: &'static str,
        message: impl Into<String>,
    ) {
        self.counted.push(Finding {
            path: path.to_owned(),
            line,
            rule,
            message: message.into(),
        });
    }

    /// Records a remark.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }
}

/// Files that have to be there, each with its purpose.
const REQUIRED: [(&str, &str); 11] = [
    ("README.md", "how to start"),
    ("ARCHITECTURE.md", "rooms, arrows and the ways through them"),
    ("GLOSSARY.md", "the words"),
    ("CONTRIBUTING.md", "the rules"),
    ("CHANGELOG.md", "what users notice"),
    ("LICENSE", "the licence"),
    (
        "Cargo.lock",
        "the exact dependencies, so that every clone builds the same",
    ),
    ("deny.toml", "the allowed licences"),
    (".ci/run", "what has to pass on a new machine"),
    ("docs/decisions/README.md", "the form of decision records"),
    ("tests/README.md", "where tests live"),
];

/// Runs all rules on the repository at `root`.
///
/// # Errors
/// The tree cannot be read or cargo cannot be run; broken rules are in the report instead.
fn check(root: &Path) -> Result<(Tree, Report)> {
    let tree = Tree::read(root)?;
    let metadata = Metadata::load(root)?;
    let mut report = Report::default();
    for (path, purpose) in REQUIRED {
        if !tree.files.contains_key(path) {
            report.finding(path, 0, "required", format!("is missing ({purpose})"));
        }
    }
    arrows::check(&tree, &metadata, &mut report);
    manifests::check(&tree, &metadata, &mut report);
    sources::check(&tree, &mut report);
    matches::check(&tree, &mut report);
    words::check(&tree, &mut report);
    style::check(&tree, &mut report);
    docs::check(&tree, &mut report);
    claims::check(&tree, &mut report);
    invariants::check(&tree, &mut report);
    marks::check(&tree, &mut report);
    way::check(&tree, &mut report);
    commands::check(&tree, &metadata.target, &mut report);
    report.counted.sort();
    ratchet::check(&tree, &mut report);
    report.findings.sort();
    Ok((tree, report))
}

/// Runs all rules and prints what they say; gives whether the tree is tidy. With `--ratchet` it
/// also lowers the ratchet's numbers; with `--places` it prints those instead, or what a room has.
///
/// # Errors
/// See [`check`]; a flag is unknown.
pub fn run(root: &Path, flags: &[&str]) -> Result<bool> {
    let (tree, report) = check(root)?;
    match flags {
        [] => {}
        ["--ratchet"] => ratchet::lower(&tree, &report)?,
        ["--places"] => {
            ratchet::print_counts(&report);
            return Ok(true);
        }
        ["--places", room] => {
            ratchet::print_places(&report, room);
            return Ok(true);
        }
        _ => bail!("tidy knows --ratchet, --places and --places ROOM"),
    }
    for note in &report.notes {
        println!("note: {note}");
    }
    for finding in &report.findings {
        println!("{finding}");
    }
    println!(
        "tidy: {} findings, {} notes",
        report.findings.len(),
        report.notes.len()
    );
    Ok(report.findings.is_empty())
}

/// The rules that a tree of this one file breaks, by one check: counted places first.
#[cfg(test)]
fn broken(check: fn(&Tree, &mut Report), path: &str, text: &str) -> Vec<&'static str> {
    let sources = std::collections::BTreeMap::from([(path.to_owned(), text.to_owned())]);
    let tree = Tree::from_sources(std::path::Path::new("/nowhere"), sources);
    let mut report = Report::default();
    check(&tree, &mut report);
    let all = report.counted.iter().chain(&report.findings);
    all.map(|finding| finding.rule).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_tree_is_tidy() {
        let root = crate::cargo::root().expect("the workspace's root");
        let (_, report) = super::check(&root).expect("the tree can be read");
        let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        assert!(findings.is_empty(), "\n{}", findings.join("\n"));
    }
}
