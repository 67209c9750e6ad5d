//! What is not mended yet, counted: for a rule and a room (a crate, or a document) the number of
//! places may only fall.
//!
//! The file has a line `rule room places` for each. `cargo xtask tidy --ratchet` writes lower
//! numbers into it, never higher ones, and `cargo xtask tidy --places ROOM` lists the places.

use super::tree::Tree;
use super::{Finding, Report};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The numbers allowed.
pub const FILE: &str = "lab/xtask/tidy/ratchet.txt";
/// So many places of a room that has too many are named at once.
const NAMED_MAX: usize = 8;

const HEAD: &str = "\
# Places that break a rule of `cargo xtask tidy` and are not mended yet: rule, room, at most.
# `cargo xtask tidy --ratchet` lowers the numbers; nothing raises them.
";

type Counts = BTreeMap<(String, String), usize>;

/// The crate or the document that a file belongs to.
fn room(path: &str) -> &str {
    let mut parts = path.split('/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("crates" | "lab"), Some(name), Some(_)) => name,
        _ => path,
    }
}

/// Compares what was counted with what is allowed.
pub fn check(tree: &Tree, report: &mut Report) {
    let allowed = allowed(tree);
    let mut lower = 0;
    let mut places: BTreeMap<(&str, &str), Vec<&Finding>> = BTreeMap::new();
    for place in &report.counted {
        let key = (place.rule, room(&place.path));
        places.entry(key).or_default().push(place);
    }
    let mut findings = Vec::new();
    for ((rule, room), places) in &places {
        let key = ((*rule).to_owned(), (*room).to_owned());
        let most = allowed.get(&key).copied().unwrap_or(0);
        lower += usize::from(places.len() < most);
        if places.len() <= most {
            continue;
        }
        if places.len() <= NAMED_MAX {
            findings.extend(places.iter().map(|place| (*place).clone()));
        }
        findings.push(Finding {
            path: FILE.to_owned(),
            line: 0,
            rule,
            message: format!(
                "{room} has {} places and may have {most}: `cargo xtask tidy --places {room}`",
                places.len()
            ),
        });
    }
    let gone = allowed
        .keys()
        .filter(|(rule, room)| !places.contains_key(&(rule.as_str(), room.as_str())));
    lower += gone.count();
    if lower > 0 {
        report.note(format!(
            "{lower} counts have fallen: `cargo xtask tidy --ratchet`"
        ));
    }
    report.findings.append(&mut findings);
}

/// Writes lower numbers into the file; without a file, all of them.
///
/// # Errors
/// The file cannot be written.
pub fn lower(tree: &Tree, report: &Report) -> Result<()> {
    let mut found = Counts::new();
    for place in &report.counted {
        let key = (place.rule.to_owned(), room(&place.path).to_owned());
        *found.entry(key).or_default() += 1;
    }
    let lowered = match tree.files.contains_key(FILE) {
        true => lowered(&allowed(tree), &found),
        false => found,
    };
    let mut text = HEAD.to_owned();
    for ((rule, room), places) in &lowered {
        writeln!(text, "{rule} {room} {places}")?;
    }
    std::fs::write(tree.root.join(FILE), text).with_context(|| format!("cannot write {FILE}"))
}

fn lowered(allowed: &Counts, found: &Counts) -> Counts {
    let lower = allowed.iter().filter_map(|(key, most)| {
        let places = found.get(key)?;
        Some((key.clone(), *places.min(most)))
    });
    lower.collect()
}

/// Prints the places of a room, or of all.
pub fn print_places(report: &Report, wanted: &str) {
    for place in &report.counted {
        if wanted == "all" || room(&place.path) == wanted {
            println!("{place}");
        }
    }
}

/// Prints how many places each room has, for each rule.
pub fn print_counts(report: &Report) {
    let mut counts = Counts::new();
    for place in &report.counted {
        let key = (room(&place.path).to_owned(), place.rule.to_owned());
        *counts.entry(key).or_default() += 1;
    }
    for ((room, rule), places) in counts {
        println!("{room:<32} {rule:<10} {places:>5}");
    }
}

fn allowed(tree: &Tree) -> Counts {
    let text = tree.files.get(FILE).map_or("", |file| &file.text);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (rule, room) = (words.next()?, words.next()?);
            let most = words.next()?.parse().ok()?;
            Some(((rule.to_owned(), room.to_owned()), most))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn checked(allowed: &str, places: usize) -> Report {
        let sources = BTreeMap::from([(FILE.to_owned(), allowed.to_owned())]);
        let tree = Tree::from_sources(Path::new("/nowhere"), sources);
        let mut report = Report::default();
        for line in 0..places {
            report.counted("crates/log/src/head.rs", line + 1, "long", "too long");
        }
        check(&tree, &mut report);
        report
    }

    // shows: TIDY-3
    // shows: TIDY-3
    #[test]
    fn the_number_of_places_may_only_fall() {
        assert!(checked("long log 3\n", 3).findings.is_empty());
        assert!(checked("long log 3\n", 3).notes.is_empty());
        let more = checked("long log 3\n", 4);
        assert!(
            more.findings[4]
                .message
                .contains("log has 4 places and may have 3")
        );
        assert_eq!(checked("# long log 3\n", 1).findings.len(), 2);
        for fewer in [2, 0] {
            let report = checked("long log 3\n", fewer);
            assert!(report.findings.is_empty());
            assert!(report.notes[0].contains("1 counts have fallen"));
        }
    }

    #[test]
    fn numbers_are_lowered_and_never_raised() {
        let counts = |pairs: &[(&str, usize)]| -> Counts {
            let pairs = pairs.iter();
            pairs
                .map(|(room, places)| (("long".to_owned(), (*room).to_owned()), *places))
                .collect()
        };
        assert_eq!(
            lowered(
                &counts(&[("log", 3), ("store", 3), ("gone", 3)]),
                &counts(&[("log", 2), ("store", 4), ("new", 1)])
            ),
            counts(&[("log", 2), ("store", 3)])
        );
    }

    #[test]
    fn rooms_are_crates_and_documents() {
        assert_eq!(room("crates/log/src/head.rs"), "log");
        assert_eq!(room("lab/sim/src/lib.rs"), "sim");
        assert_eq!(room("docs/log.md"), "docs/log.md");
        assert_eq!(room("README.md"), "README.md");
    }
}
