//! Invariants are stated once, in code, and shown: an assertion cites each of them, or a test says
//! that it shows it. The page of all of them is made from that.
//!
//! A line `//! - NAME-1: …` of a file's head states an invariant. An assertion whose message
//! begins with the number cites it. A comment `// shows: NAME-1, NAME-2` above a test says what the
//! test shows.

use super::Report;
use super::lex::is_word;
use super::tree::{Tree, crate_of};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// The page that `cargo xtask invariants` writes.
pub const PAGE: &str = "docs/invariants.md";
/// The first word of a comment that names shown invariants.
pub const TAG: &str = "shows:";
const RULE: &str = "invariants";
/// The crates of the storage engine, where each invariant has to be shown; in others the ratchet
/// counts those that are not.
const ENGINE: [&str; 5] = ["format", "index", "log", "memory", "store"];
/// Columns of the page.
const COLUMNS: usize = 100;

const INTRO: &str = "\
# Invariants

What always holds, by the file that states it: whether an assertion cites it, which tests show it.

`cargo xtask invariants` writes this page from the opening comments of files, from the messages of
assertions, and from the comments `// shows: …` above tests. Change those, not the page.
";

/// A number, with its letters in front.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Id<'a> {
    letters: &'a str,
    number: u32,
    text: &'a str,
}

/// What one number stands for.
struct Invariant<'a> {
    path: &'a str,
    line: usize,
    statement: String,
    /// Files with assertions that cite it.
    asserted: BTreeSet<&'a str>,
    /// Tests by file.
    shown: BTreeSet<(&'a str, &'a str)>,
}

/// A comment that names what a test shows.
struct Tag<'a> {
    path: &'a str,
    line: usize,
    ids: Vec<&'a str>,
    test: Option<&'a str>,
}

type All<'a> = BTreeMap<Id<'a>, Invariant<'a>>;

/// Looks at all statements, citations and tags, and at the page.
pub fn check(tree: &Tree, report: &mut Report) {
    let all = collect(tree, report);
    one_meaning(&all, report);
    for (id, invariant) in &all {
        if !invariant.asserted.is_empty() || !invariant.shown.is_empty() {
            continue;
        }
        let engine = crate_of(invariant.path).is_some_and(|name| ENGINE.contains(&name));
        let message = format!("no assertion cites {}, and no test shows it", id.text);
        match engine {
            true => report.finding(invariant.path, invariant.line, RULE, message),
            false => report.counted(invariant.path, invariant.line, "unshown", message),
        }
    }
    citations(tree, &all, report);
    let written = tree.files.get(PAGE).map_or("", |file| &file.text);
    if !all.is_empty() && written != page(&all) {
        report.finding(PAGE, 0, RULE, "is not up to date: `cargo xtask invariants`");
    }
}

/// Writes the page.
///
/// # Errors
/// The page cannot be written.
pub fn write(root: &Path) -> Result<()> {
    let tree = Tree::read(root)?;
    let all = collect(&tree, &mut Report::default());
    std::fs::write(root.join(PAGE), page(&all)).with_context(|| format!("cannot write {PAGE}"))
}

/// All invariants, with what asserts and shows them.
fn collect<'a>(tree: &'a Tree, report: &mut Report) -> All<'a> {
    let mut all = All::new();
    for (file, rust) in tree.rust() {
        for (line, id, statement) in statements(&rust.layers.comments) {
            let invariant = Invariant {
                path: &file.path,
                line,
                statement,
                asserted: BTreeSet::new(),
                shown: BTreeSet::new(),
            };
            if let Some(other) = all.get(&id) {
                let message = format!("{} is stated in {}, too", id.text, other.path);
                report.finding(&file.path, line, RULE, message);
            } else {
                all.insert(id, invariant);
            }
        }
    }
    for (file, rust) in tree.rust() {
        // The checks' own tests are full of examples.
        if file.path.contains("xtask/src/tidy/") {
            continue;
        }
        for id in asserted(&file.text) {
            if let Some(invariant) = all.get_mut(&id) {
                invariant.asserted.insert(&file.path);
            }
        }
        for tag in tags(&file.path, &rust.layers.comments, &file.text) {
            let Some(test) = tag.test else {
                report.finding(tag.path, tag.line, RULE, "stands above no test");
                continue;
            };
            for text in &tag.ids {
                match id(text).and_then(|id| all.get_mut(&id)) {
                    Some(invariant) => {
                        invariant.shown.insert((tag.path, test));
                    }
                    None => {
                        let message = format!("there is no invariant `{text}`");
                        report.finding(tag.path, tag.line, RULE, message);
                    }
                }
            }
        }
    }
    all
}

/// The letters of a number belong to one crate.
fn one_meaning(all: &All<'_>, report: &mut Report) {
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for (id, invariant) in all {
        let Some(name) = crate_of(invariant.path) else {
            continue;
        };
        let owner = *owners.entry(id.letters).or_insert(name);
        if owner != name {
            let message = format!("the numbers {}-… belong to crate {owner}", id.letters);
            report.finding(invariant.path, invariant.line, RULE, message);
        }
    }
}

/// Comments and documents cite numbers that exist.
fn citations(tree: &Tree, all: &All<'_>, report: &mut Report) {
    let known: BTreeSet<&str> = all.keys().map(|id| id.letters).collect();
    let dated = ["docs/decisions/2", "docs/measurements/", "CHANGELOG.md"];
    let documents = tree
        .markdown()
        .filter(|file| !dated.iter().any(|start| file.path.starts_with(start)))
        .map(|file| (file, &file.text));
    let comments = tree
        .rust()
        .map(|(file, rust)| (file, &rust.layers.comments));
    for (file, text) in documents.chain(comments) {
        for (index, line) in text.lines().enumerate() {
            let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            for id in words.filter_map(id) {
                let numbered = id.text.contains('-') && known.contains(id.letters);
                if numbered && !all.contains_key(&id) {
                    let message = format!("there is no invariant {}", id.text);
                    report.finding(&file.path, index + 1, RULE, message);
                }
            }
        }
    }
}

/// What the head of a file states: line, number and words.
fn statements(comments: &str) -> Vec<(usize, Id<'_>, String)> {
    let mut found: Vec<(usize, Id<'_>, String)> = Vec::new();
    let mut open = false;
    for (index, line) in comments.lines().enumerate() {
        let Some(text) = line.strip_prefix("//!") else {
            open = false;
            continue;
        };
        let text = text.trim();
        let item = text.strip_prefix("- ");
        let begins = item
            .unwrap_or(text)
            .split_once(": ")
            .and_then(|(number, rest)| Some((id(number)?, rest)));
        match begins {
            Some((id, rest)) => {
                found.push((index + 1, id, rest.to_owned()));
                open = true;
            }
            None if text.is_empty() || item.is_some() => open = false,
            None if open => {
                let (_, _, statement) = found.last_mut().expect("one is open");
                statement.push(' ');
                statement.push_str(text);
            }
            None => {}
        }
    }
    found
}

/// The numbers that messages in `source` begin with.
fn asserted(source: &str) -> impl Iterator<Item = Id<'_>> {
    source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| line.split('"').skip(1))
        .filter_map(|text| id(text.split_once(':').map_or(text, |(number, _)| number)))
}

/// The comments that say what tests show.
fn tags<'a>(path: &'a str, comments: &'a str, source: &'a str) -> Vec<Tag<'a>> {
    let mut found: Vec<Tag<'a>> = Vec::new();
    // Tags whose test has not come yet begin here.
    let mut waiting = 0;
    for (index, (comment, line)) in comments.lines().zip(source.lines()).enumerate() {
        let text = comment.trim().trim_start_matches('/').trim_start();
        if let Some(ids) = text.strip_prefix(TAG) {
            found.push(Tag {
                path,
                line: index + 1,
                ids: ids.split(',').map(str::trim).collect(),
                test: None,
            });
        } else if let Some(name) = function(line).filter(|_| comment.trim().is_empty()) {
            for tag in &mut found[waiting..] {
                tag.test = Some(name);
            }
            waiting = found.len();
        }
    }
    found
}

/// The name of the function that a line begins.
fn function(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = ["fn ", "async fn ", "pub fn ", "pub async fn "]
        .iter()
        .find_map(|start| line.strip_prefix(start))?;
    let end = rest.bytes().take_while(|&byte| is_word(byte)).count();
    Some(&rest[..end])
}

/// `LOG-3`, `X1`.
fn id(text: &str) -> Option<Id<'_>> {
    let letters = text.bytes().take_while(u8::is_ascii_uppercase).count();
    let rest = &text[letters..];
    let digits = rest.strip_prefix('-').unwrap_or(rest);
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    (letters > 0 && plain).then_some(())?;
    Some(Id {
        letters: &text[..letters],
        number: digits.parse().ok()?,
        text,
    })
}

/// The page of all invariants.
fn page(all: &All<'_>) -> String {
    let mut text = INTRO.to_owned();
    let mut files: BTreeMap<&str, Vec<(&Id<'_>, &Invariant<'_>)>> = BTreeMap::new();
    for (id, invariant) in all {
        files
            .entry(invariant.path)
            .or_default()
            .push((id, invariant));
    }
    for (path, invariants) in files {
        let _ = write!(text, "\n## `{path}`\n\n");
        for (id, invariant) in invariants {
            text.push_str(&wrapped("- ", &entry(id, invariant)));
        }
    }
    text
}

fn entry(id: &Id<'_>, invariant: &Invariant<'_>) -> String {
    let statement = &invariant.statement;
    let first = statement
        .split_once(". ")
        .map_or(statement.as_str(), |(first, _)| first);
    let mut text = format!(
        "**{}**: {}.",
        id.text,
        without_links(first).trim_end_matches(['.', ':', ';'])
    );
    if !invariant.asserted.is_empty() {
        text.push_str(" Asserted.");
    }
    let mut shown: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (path, test) in &invariant.shown {
        shown.entry(path).or_default().push(format!("`{test}`"));
    }
    let shown: Vec<String> = shown
        .into_iter()
        .map(|(path, tests)| format!("{} (`{path}`)", tests.join(", ")))
        .collect();
    if !shown.is_empty() {
        let _ = write!(text, " Shown by {}.", shown.join(", "));
    }
    text
}

/// Names in code spans without the links that rustdoc makes of them.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    for (index, piece) in text.split("`](").enumerate() {
        let piece = match index {
            0 => piece,
            _ => {
                plain.push('`');
                piece.split_once(')').map_or(piece, |(_, rest)| rest)
            }
        };
        plain.push_str(piece);
    }
    plain.replace("[`", "`").replace("`]", "`")
}

/// A list item in lines; code spans stay whole.
fn wrapped(mark: &str, text: &str) -> String {
    let mut lines = String::new();
    let mut line = mark.to_owned();
    let (mut word, mut span) = (String::new(), false);
    for c in text.chars().chain([' ']) {
        span ^= c == '`';
        if c != ' ' || span {
            word.push(c);
            continue;
        }
        if line.chars().count() + word.chars().count() > COLUMNS && line.trim() != "" {
            lines.push_str(line.trim_end());
            lines.push('\n');
            line = " ".repeat(mark.len());
        }
        line.push_str(&word);
        line.push(' ');
        word.clear();
    }
    lines.push_str(line.trim_end());
    lines.push('\n');
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "//! A head.\n//!\n//! - LOG-1: bytes stay\n//!   as they are. Always.\n//! - LOG-2: or not.\n";

    /// The findings in a file of crate `log`, without the one that the page is not up to date.
    fn findings(code: &str) -> Vec<String> {
        let source = format!("{HEAD}{code}\n");
        let sources = [
            ("crates/log/src/head.rs".to_owned(), source),
            (
                "crates/net/src/lib.rs".to_owned(),
                "//! - NET-1: a net.\n".to_owned(),
            ),
        ];
        let tree = Tree::from_sources(Path::new("."), BTreeMap::from(sources));
        let mut report = Report::default();
        check(&tree, &mut report);
        assert_eq!(report.counted.len(), 1, "NET-1 is not shown");
        let found = report.findings.into_iter();
        found
            .filter(|f| f.path != PAGE)
            .map(|f| f.message)
            .collect()
    }

    #[test]
    fn numbers_are_told_from_words() {
        for number in ["LOG-3", "X1", "CLEAN-12"] {
            assert!(id(number).is_some(), "{number}");
        }
        for word in ["LOG", "LOG-", "LOG--3", "log-3", "3", "LOG-3a", ""] {
            assert!(id(word).is_none(), "{word}");
        }
    }

    #[test]
    fn an_invariant_without_assertion_or_test_is_found() {
        assert_eq!(findings("").len(), 2);
        assert_eq!(
            findings("fn f() { assert!(true, \"LOG-1: changed\"); }").len(),
            1
        );
        assert_eq!(findings("// \"LOG-1: a comment is no assertion\"").len(), 2);
        let shown = "// shows: LOG-1, LOG-2\n#[test]\nfn what_was_written_is_read_again() {}";
        assert!(findings(shown).is_empty());
        assert_eq!(
            findings(&format!("const T: &str = \"\n{shown}\";")).len(),
            2
        );
    }

    #[test]
    fn tags_name_what_is_stated_and_stand_above_tests() {
        let both = "// shows: LOG-1\n// shows: LOG-2\n#[test]\nfn a_test() {}\n";
        let found = findings(&format!("{both}// shows: LOG-3, NET\nfn another() {{}}"));
        assert_eq!(
            found,
            [
                "there is no invariant `LOG-3`",
                "there is no invariant `NET`",
                "there is no invariant LOG-3"
            ]
        );
        assert_eq!(
            findings(&format!("{both}// shows: LOG-1")),
            ["stands above no test"]
        );
    }

    #[test]
    fn each_number_is_stated_once_and_its_letters_belong_to_one_crate() {
        let sources = [
            ("crates/log/src/a.rs", "//! - LOG-1: one.\n"),
            ("crates/log/src/b.rs", "//! LOG-1: two.\n"),
            ("crates/net/src/c.rs", "//! - LOG-2: three (LOG-4).\n"),
        ];
        let sources = sources.map(|(path, text)| (path.to_owned(), text.to_owned()));
        let tree = Tree::from_sources(Path::new("."), BTreeMap::from(sources));
        let mut report = Report::default();
        check(&tree, &mut report);
        let found: Vec<String> = report.findings.into_iter().map(|f| f.message).collect();
        for message in [
            "LOG-1 is stated in crates/log/src/a.rs, too",
            "the numbers LOG-… belong to crate log",
            "there is no invariant LOG-4",
        ] {
            assert!(
                found.iter().any(|found| found == message),
                "{message}: {found:?}"
            );
        }
    }

    #[test]
    fn the_page_says_where_and_by_what() {
        let code = "// shows: LOG-1\n#[test]\nfn a_test_whose_name_is_long() { assert!(x, \"LOG-1: {x}\"); }\n";
        let source = format!("{HEAD}{code}");
        let sources = BTreeMap::from([("crates/log/src/head.rs".to_owned(), source)]);
        let tree = Tree::from_sources(Path::new("."), sources);
        let page = page(&collect(&tree, &mut Report::default()));
        let (_, list) = page
            .split_once("## `crates/log/src/head.rs`\n\n")
            .expect("a heading");
        assert_eq!(
            list,
            "- **LOG-1**: bytes stay as they are. Asserted. Shown by `a_test_whose_name_is_long`\n  \
             (`crates/log/src/head.rs`).\n- **LOG-2**: or not.\n"
        );
        assert_eq!(
            without_links("the [`A`](b::C) of [`d`]s"),
            "the `A` of `d`s"
        );
    }
}
