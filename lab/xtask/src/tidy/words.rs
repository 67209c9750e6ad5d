//! Rules for words in comments and documents: what is, not what was; nothing unfinished; no path
//! of one machine.

use super::Report;
use super::lex::{is_word, line_of};
use super::tree::{File, Tree};

/// Marks of unfinished work.
const UNFINISHED: [&str; 6] = [
    "TODO",
    "FIXME",
    "XXX",
    "HACK",
    "for now",
    "temporary workaround",
];

/// Phrases that tell history. `git log` tells it better, and it is never wrong there.
const HISTORY: [&str; 14] = [
    "previously",
    "formerly",
    "it used to",
    "this used to",
    "that used to",
    "we used to",
    "used to be",
    "we no longer",
    "is no longer used",
    "is no longer needed",
    "has been renamed",
    "was renamed",
    "in an earlier version of this",
    "in the old code",
];

/// A term readers take for another thing.
const MISLEADING: [(&str, &str); 1] = [(
    "LSM",
    "readers think of merge trees: say log-structured memory",
)];

/// Behind a term: a paper is cited by its title (`GLOSSARY.md`).
const TITLE: &str = "-DRAM";

/// Where paths of one machine begin. In two parts, so that this file passes its own check.
const MACHINE: [(&str, &str); 3] = [("/wo", "rk/"), ("/ro", "ot/"), ("/ho", "me/")];

/// Looks at comments, documents and, for machine paths, at everything.
pub fn check(tree: &Tree, report: &mut Report) {
    for (file, rust) in tree.rust() {
        phrases(file, &rust.layers.comments, report);
    }
    for file in tree.markdown().filter(|file| !tells_history(&file.path)) {
        phrases(file, &without_code(&file.text), report);
    }
    for file in tree.files.values().filter(|file| file.path != "Cargo.lock") {
        machine_paths(file, report);
    }
}

/// Documents whose purpose is to say what was.
fn tells_history(path: &str) -> bool {
    path == "CHANGELOG.md"
        || path.starts_with("docs/decisions/")
        || path.starts_with("docs/measurements/")
}

fn phrases(file: &File, text: &str, report: &mut Report) {
    let lower = text.to_lowercase();
    for mark in UNFINISHED {
        let small = mark == mark.to_lowercase();
        for at in places(if small { &lower } else { text }, mark) {
            report.finding(
                &file.path,
                line_of(text, at),
                "unfinished",
                format!("`{mark}`: finish it or open an issue"),
            );
        }
    }
    for phrase in HISTORY {
        for at in places(&lower, phrase) {
            let message = format!(
                "`{phrase}`: say what is, not what was (`earlier`, when it is about order)"
            );
            report.finding(&file.path, line_of(&lower, at), "history", message);
        }
    }
    for (term, why) in MISLEADING {
        if file.path != "GLOSSARY.md" {
            let titled = |at: &usize| text[at + term.len()..].starts_with(TITLE);
            for at in places(text, term).filter(|at| !titled(at)) {
                report.finding(
                    &file.path,
                    line_of(text, at),
                    "term",
                    format!("`{term}`: {why}"),
                );
            }
        }
    }
}

fn machine_paths(file: &File, report: &mut Report) {
    for (start, end) in MACHINE {
        let pattern = format!("{start}{end}");
        for (at, _) in file.text.match_indices(&pattern) {
            let before = at.checked_sub(1).map_or(b' ', |i| file.text.as_bytes()[i]);
            if !is_word(before) && !b".-}>*~$".contains(&before) {
                report.finding(
                    &file.path,
                    line_of(&file.text, at),
                    "machine",
                    format!("`{pattern}` is a path of one machine"),
                );
            }
        }
    }
}

/// Where `phrase` stands in `text` between word borders.
fn places<'a>(text: &'a str, phrase: &'a str) -> impl Iterator<Item = usize> + 'a {
    super::lex::word_positions(text, phrase)
}

/// Markdown with code spans and fenced blocks blanked.
pub fn without_code(text: &str) -> String {
    let mut fenced = false;
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let fence = line.trim_start().starts_with("```");
        if fence {
            fenced = !fenced;
        }
        let mut span = false;
        for c in line.chars() {
            if c == '`' {
                span = !span;
            }
            let blank = c != '\n' && (fenced || fence || span || c == '`');
            out.push(if blank { ' ' } else { c });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::broken;
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<&'static str> {
        broken(check, path, text)
    }

    #[test]
    fn comments_tell_no_history_and_leave_nothing_unfinished() {
        let text = "// It used to be a list.\nfn f() { g(\"TODO\") } // FIXME later\n// used to find; no longer listed\n";
        let mut found = findings("a.rs", text);
        found.sort_unstable();
        assert_eq!(found, ["history", "history", "unfinished"]);
    }

    #[test]
    fn code_spans_may_name_the_words() {
        assert!(findings("docs/a.md", "No `TODO` here.\n```\nfor now\n```\n").is_empty());
        assert_eq!(findings("docs/a.md", "Good for now.\n"), ["unfinished"]);
        assert!(findings("CHANGELOG.md", "Previously slow.\n").is_empty());
        assert!(findings("docs/a.md", "As in [LSM-DRAM §4].\n").is_empty());
        assert_eq!(findings("docs/a.md", "An LSM.\n"), ["term"]);
    }

    #[test]
    fn machine_paths_are_found_everywhere_but_not_inside_words() {
        let (a, b) = MACHINE[0];
        assert_eq!(findings("x.toml", &format!("a = \"{a}{b}x\"")), ["machine"]);
        assert!(findings("x.toml", &format!("a = \"net{a}{b}x\"")).is_empty());
    }
}
