//! A test that a document names together with its file is in that file.
//!
//! The form is a name in a code span, or several, and behind them in parentheses the file. "The
//! same file" is the last one named before. Names end with their sentence or cell: those before it
//! are not said to be in the file.

use super::Report;
use super::lex::is_word;
use super::tree::Tree;

/// Looks at all documents but the changelog, decision records and measurements, which are dated.
pub fn check(tree: &Tree, report: &mut Report) {
    for document in tree.markdown() {
        let dated = ["docs/decisions/2", "docs/measurements/"];
        let skipped = document.path == "CHANGELOG.md"
            || dated.iter().any(|start| document.path.starts_with(start));
        if skipped {
            continue;
        }
        for (line, claim) in claims(&document.text) {
            if let Some(problem) = problem(tree, &claim) {
                report.finding(&document.path, line, "names", problem);
            }
        }
    }
}

/// "This test is in that file."
struct Claim<'a> {
    test: &'a str,
    file: &'a str,
}

/// All claims of a document, each with its line.
fn claims(text: &str) -> Vec<(usize, Claim<'_>)> {
    let mut found = Vec::new();
    let mut waiting: Vec<(usize, &str)> = Vec::new();
    let mut last_file = "";
    // Whether we are in parentheses that say where the names before them are.
    let mut place = false;
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced || line.trim().is_empty() || line.starts_with(['|', '#', '-']) {
            waiting.clear();
            place = false;
        }
        if fenced {
            continue;
        }
        for (part, piece) in line.split('`').enumerate() {
            if part % 2 == 1 {
                if piece.ends_with(".rs") {
                    last_file = piece;
                    if place {
                        found.extend(together(&waiting, last_file));
                    }
                } else if !place && may_be_test(piece) {
                    waiting.push((index + 1, piece));
                }
                continue;
            }
            let next = line.split('`').nth(part + 1).unwrap_or_default();
            let mut rest = piece;
            while let Some(at) = rest.find(['(', ')', '|', '.']) {
                let behind = &rest[at + 1..];
                match rest.as_bytes()[at] {
                    b'(' if behind.starts_with("the same file") => {
                        found.extend(together(&waiting, last_file));
                        place = true;
                    }
                    b'(' => place = behind.is_empty() && next.ends_with(".rs"),
                    b')' if !place => {}
                    b'.' if !behind.is_empty() && !behind.starts_with(' ') => {}
                    // In parentheses a point ends a sentence of theirs; the names in front are used
                    // up with them.
                    b'.' if place => {}
                    _ => {
                        waiting.clear();
                        place = false;
                    }
                }
                rest = behind;
            }
        }
    }
    found
}

fn together<'a>(
    tests: &[(usize, &'a str)],
    file: &'a str,
) -> impl Iterator<Item = (usize, Claim<'a>)> {
    tests
        .iter()
        .map(move |&(line, test)| (line, Claim { test, file }))
}

/// `an_old_list_is_ignored`, and `one_answer_acquits`: three words and more.
fn may_be_test(name: &str) -> bool {
    name.matches('_').count() >= 2 && name.bytes().all(|b| is_word(b) && !b.is_ascii_uppercase())
}

/// What is wrong with a claim. A file that is not there is another rule's to tell.
fn problem(tree: &Tree, claim: &Claim<'_>) -> Option<String> {
    let Claim { test, file } = claim;
    let (tail, function) = (format!("/{file}"), format!("fn {test}("));
    let mut meant = tree
        .rust()
        .filter(|(known, _)| known.path == *file || known.path.ends_with(&tail))
        .peekable();
    meant.peek()?;
    let there = meant.any(|(_, rust)| rust.layers.code.contains(&function));
    (!there).then(|| format!("`{test}` is not in `{file}`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::path::Path;

    fn findings(text: &str) -> Vec<(usize, String)> {
        let sources = [
            (
                "crates/log/tests/a.rs",
                "fn one_is_here() {}\nfn two_is_here() {}\n",
            ),
            (
                "crates/log/tests/b.rs",
                "fn three_is_here() {} // fn one_is_here()\n",
            ),
            ("docs/a.md", text),
        ];
        let sources = sources.map(|(path, text)| (path.to_owned(), text.to_owned()));
        let tree = Tree::from_sources(Path::new("/nowhere"), BTreeMap::from(sources));
        let mut report = Report::default();
        check(&tree, &mut report);
        let told = report.findings.iter();
        told.map(|finding| (finding.line, finding.message.clone()))
            .collect()
    }

    #[test]
    fn tests_that_are_where_documents_say_pass() {
        for text in [
            "| x | `one_is_here`, `two_is_here` (`crates/log/tests/a.rs`), `three_is_here` (`b.rs`: all of it) |\n",
            "| x | `one_is_here` (`crates/log/tests/a.rs`) |\n| y | `two_is_here` (the same file; soon) |\n",
            "`one_is_here` (`crates/log/tests/a.rs`), which `two_is_here`\nchecks (the same file).\n",
            "`three_is_here` is another one. `one_is_here` (`a.rs`).\n",
            "| `three_is_here` | `one_is_here` (`a.rs`) |\n",
            "`one_is_here` (often; see `b.rs`)\n",
            "`one_is_here` (`c.rs`)\n",
            "```\n`three_is_here` (`a.rs`)\n```\n",
        ] {
            assert!(findings(text).is_empty(), "{text}: {:?}", findings(text));
        }
    }

    #[test]
    fn tests_that_are_elsewhere_are_found() {
        for (text, line, test, file) in [
            ("`one_is_here` (`b.rs`)\n", 1, "one_is_here", "b.rs"),
            (
                "`one_is_here`, `three_is_here` (`a.rs`)\n",
                1,
                "three_is_here",
                "a.rs",
            ),
            (
                "| `one_is_here` (`a.rs`) |\n| `three_is_here` (`b.rs`) |\n| `two_is_here` (the same file) |\n",
                3,
                "two_is_here",
                "b.rs",
            ),
            (
                "| `one_is_here` (`a.rs`) |\n| `two_is_here` (the same file, and `b.rs`) |\n",
                2,
                "two_is_here",
                "b.rs",
            ),
            ("`three_is_here`\n(`a.rs`)\n", 1, "three_is_here", "a.rs"),
        ] {
            let wanted = (line, format!("`{test}` is not in `{file}`"));
            assert_eq!(findings(text), [wanted], "{text}");
        }
    }
}
