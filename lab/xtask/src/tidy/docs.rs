//! What documents name exists: paths, source files, types, functions and tests in code spans, and
//! the targets of links.
//!
//! A code span is looked at when it has the form of one of these; anything else (commands, bytes,
//! formulas) passes. Decision records and measurements are dated: names in them may have gone.

use super::Report;
use super::lex::is_word;
use super::tree::{File, Tree};
use std::collections::BTreeSet;

/// Top-level folders whose names make a span a path.
const FOLDERS: [&str; 6] = ["crates/", "lab/", "docs/", "tests/", ".ci/", ".cargo/"];

/// Looks at all documents but the changelog.
pub fn check(tree: &Tree, report: &mut Report) {
    let words = words_of_code(tree);
    for file in tree.markdown().filter(|file| file.path != "CHANGELOG.md") {
        let dated = file.path.starts_with("docs/decisions/2")
            || file.path.starts_with("docs/measurements/");
        let mut fenced = false;
        for (index, line) in file.text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
                continue;
            }
            if fenced {
                continue;
            }
            for target in link_targets(line) {
                if !link_exists(tree, file, target) {
                    report.finding(
                        &file.path,
                        index + 1,
                        "links",
                        format!("`{target}` does not exist"),
                    );
                }
            }
            if !dated {
                for span in spans(line) {
                    if let Some(problem) = problem(tree, &words, span) {
                        report.finding(&file.path, index + 1, "names", problem);
                    }
                }
            }
        }
    }
}

/// Every identifier that stands in code.
fn words_of_code(tree: &Tree) -> BTreeSet<&str> {
    tree.rust()
        .flat_map(|(_, rust)| {
            rust.layers
                .code
                .split(|c: char| !c.is_ascii() || !is_word(c as u8))
        })
        .filter(|word| !word.is_empty())
        .collect()
}

/// The code spans of a line of Markdown.
fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The targets of the links of a line, without those on the web.
fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .filter(|target| {
            !target.contains("://") && !target.starts_with('#') && !target.starts_with("mailto:")
        })
}

fn link_exists(tree: &Tree, from: &File, target: &str) -> bool {
    let target = target.split('#').next().unwrap_or_default();
    let mut parts: Vec<&str> = from.path.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    tree.has(&parts.join("/"))
}

/// The fault of a code span that names something of the code.
fn problem(tree: &Tree, words: &BTreeSet<&str>, span: &str) -> Option<String> {
    let plain = span.bytes().all(|b| is_word(b) || b"/.-".contains(&b));
    if plain && FOLDERS.iter().any(|folder| span.starts_with(folder)) {
        return (!tree.has(span)).then(|| format!("there is no `{span}`"));
    }
    if plain && span.ends_with(".rs") {
        let tail = format!("/{span}");
        let found = tree.files.keys().any(|path| path.ends_with(&tail));
        return (!found).then(|| format!("there is no file `{span}`"));
    }
    let (path, call) = match span.strip_suffix("()") {
        Some(path) => (path, true),
        None => (span, false),
    };
    if words.contains(path) {
        return None;
    }
    let is_test = is_test_name(path) && !tree.rust().any(|(file, _)| quotes(file, path));
    let names: Vec<&str> = path.trim_start_matches('.').split("::").collect();
    let identifiers = names.iter().all(|name| is_identifier(name));
    if !identifiers || !(call || names.len() > 1 || is_type_name(path) || is_test) {
        return None;
    }
    // Crates and modules in front are folders and files; the last two names carry the meaning.
    let missing = names.iter().rev().take(2).find(|name| {
        let is_module = names.len() > 1 && **name == names[0] && !is_type_name(name);
        !is_module && !words.contains(**name)
    })?;
    Some(format!("`{span}`: no code names `{missing}`"))
}

fn is_identifier(name: &str) -> bool {
    name.bytes().all(is_word) && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// `LogSpace`, not `GET` nor `Cargo`: at least two capitals and a small letter.
fn is_type_name(name: &str) -> bool {
    let capitals = name.bytes().filter(u8::is_ascii_uppercase).count();
    let small = name.bytes().any(|b| b.is_ascii_lowercase());
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && capitals > 1
        && small
        && !name.contains('_')
}

/// `an_old_list_is_ignored`: five words and more are the name of a test, if not of a metric or of a
/// cell of a report.
fn is_test_name(name: &str) -> bool {
    name.matches('_').count() >= 4
        && !name.starts_with("pluvio_")
        && !(name.starts_with("redis_") && name.ends_with("_total"))
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// Whether `name` is a text in a source file.
fn quotes(file: &File, name: &str) -> bool {
    file.text.contains(&format!("\"{name}\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::path::Path;

    fn findings(line: &str) -> Vec<String> {
        let sources = BTreeMap::from([
            (
                "crates/log/src/head.rs".to_owned(),
                "//! `InComment`\nimpl LogHead { fn roll(&self) {} }\nfn a_head_rolls_at_once() {} const C: [&str; 2] = [\"InText\", \"cells_of_rows_of_text\"];\n"
                    .to_owned(),
            ),
            (
                "docs/how-to/a.md".to_owned(),
                format!("{line}\n```\n`NotLookedAt`\n```\n"),
            ),
            ("docs/b.md".to_owned(), String::new()),
        ]);
        let mut report = Report::default();
        check(
            &Tree::from_sources(Path::new("/nowhere"), sources),
            &mut report,
        );
        report
            .findings
            .iter()
            .map(|finding| finding.message.clone())
            .collect()
    }

    #[test]
    fn names_that_exist_pass() {
        for line in [
            "`crates/log/src/head.rs` `head.rs` `LogHead` `LogHead::roll` `roll()` `log::LogHead`",
            "`a_head_rolls_at_once` `pluvio_a_b_c_total` `cells_of_rows_of_text` `rolls_when_full`",
            "`GET` `SET k v` `--json` `0 => 1` `pluvio dev` `a.b.c` `kind` `Retry`",
            "[b](../b.md) [c](../b.md#part) [web](https://x.org/y) [here](#there)",
        ] {
            assert!(findings(line).is_empty(), "{line}: {:?}", findings(line));
        }
    }

    #[test]
    fn names_that_are_gone_are_found() {
        for line in [
            "`crates/log/src/tail.rs`",
            "`tail.rs`",
            "`LogTail`",
            "`LogHead::turn`",
            "`turn()`",
            "`a_head_turns_at_once`",
            "`InComment`",
            "`InText`",
            "[b](b.md)",
        ] {
            assert_eq!(findings(line).len(), 1, "{line}");
        }
    }
}
