//! Crates depend downward only: the arrow table of ARCHITECTURE.md against the manifests. And the
//! product knows nothing of the laboratory.
//!
//! The table, of one part or several, stands between `<!-- arrows -->` and `<!-- /arrows -->`. A row names a crate (its
//! folder), the crates of ours it uses and its purpose: `| log | units format memory | … |`. An
//! empty cell means none, `anything` leaves the crate free. Tests and build scripts may use what
//! they like.

use super::Report;
use super::tree::{TREES, Tree};
use crate::cargo::Metadata;
use std::collections::{BTreeMap, BTreeSet};

const PAGE: &str = "ARCHITECTURE.md";
const RULE: &str = "arrows";
/// The package that is shipped.
const PRODUCT: &str = "pluvio";
/// Packages of others that only the laboratory may link, beside all crates of its own.
const LABORATORY_ONLY: [&str; 5] = ["dashmap", "papaya", "plotters", "reverse_geocoder", "scc"];

type Table = BTreeMap<String, (usize, BTreeSet<String>)>;

/// Compares the table with the manifests, and looks at what is linked into the product.
pub fn check(tree: &Tree, metadata: &Metadata, report: &mut Report) {
    for name in in_product(metadata) {
        let message = format!("{PRODUCT} links {name}, which is for the laboratory only");
        report.finding("Cargo.lock", 0, RULE, message);
    }
    let Some(page) = tree.files.get(PAGE) else {
        return;
    };
    let Some(table) = parse(&page.text) else {
        report.finding(PAGE, 0, RULE, "has no lines between <!-- arrows --> and <!-- /arrows -->; `cargo xtask arrows` prints them");
        return;
    };
    let ours = metadata.ours();
    for (folder, package) in &ours {
        let Some((line, allowed)) = table.get(*folder) else {
            report.finding(
                PAGE,
                0,
                RULE,
                format!("the table has no row for the crate {folder}"),
            );
            continue;
        };
        if allowed.contains("anything") {
            continue;
        }
        for used in package.uses.difference(allowed) {
            let message = format!("{folder} uses {used}, which its row does not allow");
            report.finding(PAGE, *line, RULE, message);
        }
        for unused in allowed.difference(&package.uses) {
            let message = format!("{folder} does not use {unused}: take it out of the row");
            report.finding(PAGE, *line, RULE, message);
        }
    }
    for (folder, (line, _)) in &table {
        if !ours.contains_key(folder.as_str()) {
            report.finding(PAGE, *line, RULE, format!("there is no crate {folder}"));
        }
    }
}

/// Packages of the laboratory that the product links.
fn in_product(metadata: &Metadata) -> Vec<&str> {
    let [_, laboratory] = TREES;
    let ours = metadata.packages.iter();
    let ours = ours.filter(|package| package.tree.as_deref() == Some(laboratory));
    let names: BTreeSet<&str> = ours.map(|package| package.name.as_str()).collect();
    let linked = metadata.linked(PRODUCT).into_iter();
    linked
        .filter(|name| names.contains(name) || LABORATORY_ONLY.contains(name))
        .collect()
}

/// The rows of the table; `None` without a table.
fn parse(page: &str) -> Option<Table> {
    let mut table = Table::new();
    let mut inside = false;
    for (index, line) in page.lines().enumerate() {
        match line.trim() {
            "<!-- arrows -->" => inside = true,
            "<!-- /arrows -->" => inside = false,
            row if inside && row.starts_with('|') => {
                let cells: Vec<&str> = row.split('|').map(str::trim).collect();
                // The row starts with a bar, so the first cell is the one before it.
                let [_, name, uses, ..] = cells[..] else {
                    continue;
                };
                let name = name.trim_matches('`');
                if name.starts_with("crate ") || name.starts_with('-') || name.starts_with(':') {
                    continue;
                }
                let uses = uses
                    .split([' ', ',', '`'])
                    .filter(|word| !word.is_empty())
                    .map(str::to_owned)
                    .collect();
                table.insert(name.to_owned(), (index + 1, uses));
            }
            _ => {}
        }
    }
    (!table.is_empty()).then_some(table)
}

/// Prints the table as the manifests have it: the product and the laboratory, of each the lowest
/// crates first.
pub fn print_table(metadata: &Metadata) {
    let mut placed = BTreeSet::new();
    println!("<!-- arrows -->");
    for tree in TREES {
        println!("| crate of `{tree}/` | may know | what it is |\n|---|---|---|");
        print_rows(metadata, tree, &mut placed);
        println!();
    }
    println!("<!-- /arrows -->");
}

fn print_rows<'a>(metadata: &'a Metadata, tree: &str, placed: &mut BTreeSet<&'a str>) {
    let mut ours = metadata.ours();
    ours.retain(|_, package| package.tree.as_deref() == Some(tree));
    while !ours.keys().all(|folder| placed.contains(folder)) {
        let next: Vec<&str> = ours
            .iter()
            .filter(|(folder, package)| {
                !placed.contains(**folder)
                    && package
                        .uses
                        .iter()
                        .all(|used| placed.contains(used.as_str()))
            })
            .map(|(folder, _)| *folder)
            .collect();
        assert!(!next.is_empty(), "cargo accepts no cycle of crates");
        for folder in next {
            let package = ours[folder];
            let uses: Vec<&str> = package.uses.iter().map(String::as_str).collect();
            println!(
                "| {folder} | {} | {} |",
                uses.join(" "),
                package.description
            );
            placed.insert(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_between_the_markers_only() {
        let page = "| a | b | c |\n<!-- arrows -->\n| crate of `crates/` | may know | what |\n|---|---|---|\n| log | format, `memory` units | the log |\n| units | | ids |\n<!-- /arrows -->\n| c | d | e |\n";
        let table = parse(page).expect("a table");
        assert_eq!(table.keys().collect::<Vec<_>>(), ["log", "units"]);
        assert_eq!(
            table["log"].1.iter().collect::<Vec<_>>(),
            ["format", "memory", "units"]
        );
        assert_eq!(table["log"].0, 5);
        assert!(table["units"].1.is_empty());
        assert!(parse("no table").is_none());
    }
}
