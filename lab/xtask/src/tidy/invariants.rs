//! Numbered invariants of the storage engine are not only words: each is cited by an assertion, or
//! its crate's head text names the test that shows it.
//!
//! An invariant is a line `//! - NAME-1: …` of a file's head. A message that begins with its number
//! cites it; so does a paragraph of a head that has the number and the name of a test (or of a
//! model) in a code span. Names in such paragraphs must exist.

use super::Report;
use crate::lex::is_word;
use crate::tree::{File, Tree, crate_of};
use std::collections::{BTreeMap, BTreeSet};

/// The crates of the storage engine.
const ENGINE: [&str; 5] = ["format", "index", "log", "memory", "store"];

/// Looks at the engine's files.
pub fn check(tree: &Tree, report: &mut Report) {
    let tests = functions(tree);
    // Where each is defined, by crate and number, and which are cited.
    let mut defined: BTreeMap<(&str, &str), (&str, usize)> = BTreeMap::new();
    let mut cited: BTreeSet<(&str, String)> = BTreeSet::new();
    for (file, _) in tree.rust() {
        let Some(name) = crate_of(&file.path).filter(|name| ENGINE.contains(name)) else {
            continue;
        };
        for (index, line) in file.text.lines().enumerate() {
            if let Some(number) = definition(line) {
                defined
                    .entry((name, number))
                    .or_insert((&file.path, index + 1));
            }
            if !line.trim_start().starts_with("//") {
                let messages = line.split('"').skip(1);
                let begins = messages.filter_map(|text| Some(text.split_once(':')?.0));
                let numbers = begins.filter(|text| is_number(text));
                cited.extend(numbers.map(|number| (name, number.to_owned())));
            }
        }
        for (line, paragraph) in paragraphs(file) {
            let named: Vec<&str> = spans(&paragraph)
                .filter(|span| is_test_name(span))
                .collect();
            for missing in named.iter().filter(|name| !tests.contains(**name)) {
                let message = format!("there is no test `{missing}`");
                report.finding(&file.path, line, "invariants", message);
            }
            if !named.is_empty() {
                let words = paragraph.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
                let numbers = words.filter(|word| is_number(word));
                cited.extend(numbers.map(|number| (name, number.to_owned())));
            }
        }
    }
    for ((name, number), (path, line)) in &defined {
        if !cited.contains(&(*name, (*number).to_owned())) {
            let message = format!(
                "{number} of crate {name} is cited by no assertion, and no head says which test shows it"
            );
            report.finding(path, *line, "invariants", message);
        }
    }
}

/// The names of all functions.
fn functions(tree: &Tree) -> BTreeSet<&str> {
    tree.rust()
        .flat_map(|(_, rust)| rust.layers.code.split("fn ").skip(1))
        .filter_map(|rest| {
            rest.split(|c: char| !c.is_ascii() || !is_word(c as u8))
                .next()
        })
        .collect()
}

/// The number of an invariant that this line of a head defines.
fn definition(line: &str) -> Option<&str> {
    let number = line.strip_prefix("//! - ")?.split_once(':')?.0;
    is_number(number).then_some(number)
}

/// `LOG-3`, `X1`.
fn is_number(text: &str) -> bool {
    let letters = text.bytes().take_while(u8::is_ascii_uppercase).count();
    let digits = text[letters..].trim_start_matches('-');
    letters > 0 && digits.len() + 1 >= text.len() - letters && is_decimal(digits)
}

fn is_decimal(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Names of tests are sentences.
fn is_test_name(span: &str) -> bool {
    span.bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        && span.bytes().filter(|&b| b == b'_').count() > 3
}

/// The paragraphs of a file's head without its definitions, each with the line it begins in.
fn paragraphs(file: &File) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    let (mut open, mut defining) = (false, false);
    for (index, line) in file.text.lines().enumerate() {
        let Some(text) = line.strip_prefix("//!") else {
            break;
        };
        let text = text.trim_start_matches(' ');
        defining = text.starts_with("- ") || defining && !text.is_empty();
        if text.is_empty() || defining {
            open = false;
            continue;
        }
        match all.last_mut().filter(|_| open) {
            Some((_, paragraph)) => {
                paragraph.push('\n');
                paragraph.push_str(text);
            }
            None => all.push((index + 1, text.to_owned())),
        }
        open = true;
    }
    all
}

fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn findings(head: &str, code: &str) -> Vec<String> {
        let source = format!("{head}\n{code}\nfn what_was_written_is_read_again() {{}}\n");
        let sources = BTreeMap::from([("crates/log/src/head.rs".to_owned(), source)]);
        let tree = Tree::from_sources(Path::new("."), sources);
        let mut report = Report::default();
        check(&tree, &mut report);
        report.findings.into_iter().map(|f| f.message).collect()
    }

    #[test]
    fn numbers_are_told_from_words() {
        for number in ["LOG-3", "X1", "CLEAN-12"] {
            assert!(is_number(number), "{number}");
        }
        for word in ["LOG", "LOG-", "LOG--3", "log-3", "3", "LOG-3a", ""] {
            assert!(!is_number(word), "{word}");
        }
    }

    #[test]
    fn an_invariant_without_assertion_or_test_is_found() {
        let head =
            "//! A head.\n//!\n//! - LOG-1: bytes stay\n//!   as they are.\n//! - LOG-2: or not.";
        assert_eq!(findings(head, "").len(), 2);
        assert_eq!(
            findings(head, "fn f() { assert!(true, \"LOG-1: changed\"); }").len(),
            1
        );
        assert_eq!(
            findings(head, "// LOG-1: a comment is no assertion").len(),
            2
        );
        let shown = "//!\n//! LOG-1 and LOG-2 are shown by\n//! `what_was_written_is_read_again`.";
        assert!(findings(&format!("{head}\n{shown}"), "").is_empty());
        let gone = shown.replace("again", "never_again");
        let found = findings(&format!("{head}\n{gone}"), "");
        assert!(
            found[0].contains("what_was_written_is_read_never_again"),
            "{found:?}"
        );
        let unnamed = "//!\n//! LOG-1 and LOG-2 hold.";
        assert_eq!(findings(&format!("{head}\n{unnamed}"), "").len(), 2);
    }
}
