//! How sentences are written, as far as a machine can see. Lines end at 100 columns. A sentence is
//! short, has a subject and no double negative. Citations lead somewhere.
//!
//! The patterns are few, and a place that they find is nearly always wrong. The ratchet (`ratchet`)
//! counts the places that the tree still has.

use super::Report;
use super::prose::{self, Word};
use super::tree::{File, Tree};

/// Most columns of a line of prose.
const COLUMNS_MAX: usize = 100;
/// Most words of a sentence.
const WORDS_MAX: usize = 25;
/// Words of a fragment that is a label (`/// What it is.`) and needs no subject, at most.
const LABEL_WORDS_MAX: usize = 8;

/// Words behind which `who` stands for "the one that".
const BEFORE_WHO: [&str; 13] = [
    "because", "but", "by", "except", "for", "from", "if", "of", "so", "than", "that", "to", "when",
];

/// Phrases that are no English, or not what they are taken for.
const PHRASES: [&str; 7] = [
    "and not else",
    "of before",
    "such a one",
    "such ones",
    "what is not there",
    "what is there",
    "what there is",
];

/// Sources that are not part of the repository; those with a capital stand before a number.
const DEAD: [&str; 7] = [
    "engine facts",
    "house review",
    "ramcloud facts",
    "wire facts",
    "STYLE",
    "DESIGN",
    "FEATURES",
];

/// Numbers of papers in somebody's list.
const PAPERS: [&str; 4] = ["000", "002", "003", "004"];

const NEGATIVES: [&str; 8] = [
    "cannot", "neither", "never", "no", "nobody", "none", "not", "nothing",
];

const VERBS: [&str; 14] = [
    "are", "can", "did", "do", "does", "had", "has", "have", "is", "may", "must", "was", "were",
    "will",
];

/// Words that begin with `un` and deny nothing.
const UNNEGATED: [&str; 8] = [
    "under",
    "underlying",
    "understand",
    "unique",
    "unit",
    "units",
    "unless",
    "until",
];

/// Words with which another clause begins.
const CONJUNCTIONS: [&str; 21] = [
    "after", "and", "as", "because", "before", "but", "if", "or", "since", "so", "than", "that",
    "unless", "until", "what", "when", "where", "whether", "which", "while", "who",
];

/// Looks at all comments and documents that are not dated.
pub fn check(tree: &Tree, report: &mut Report) {
    for (file, rust) in tree.rust() {
        let prose = rust.layers.comments.lines().zip(rust.layers.code.lines());
        let lines = prose.map(|(comment, code)| if code.trim().is_empty() { comment } else { "" });
        columns(file, lines, report);
        for sentence in prose::of_comments(file, rust) {
            look(file, &sentence, report);
        }
    }
    for file in tree.markdown().filter(|file| !is_left_out(&file.path)) {
        columns(file, file.text.lines(), report);
        for sentence in prose::of_document(&file.text) {
            look(file, &sentence, report);
        }
    }
}

/// Documents that are dated, or made from comments.
fn is_left_out(path: &str) -> bool {
    path == "CHANGELOG.md"
        || path == super::invariants::PAGE
        || path.starts_with("docs/decisions/2")
        || path.starts_with("docs/measurements/")
}

fn columns<'a>(file: &File, lines: impl Iterator<Item = &'a str>, report: &mut Report) {
    let mut fenced = false;
    for (index, line) in lines.enumerate() {
        let text = line.trim().trim_start_matches(['/', '!', ' ']);
        let fence = text.starts_with("```");
        fenced ^= fence;
        let free = fenced
            || fence
            || text.starts_with('|')
            || ["](", "]: ", "://", "<!--"]
                .iter()
                .any(|mark| text.contains(mark))
            || text.split_whitespace().nth(1).is_none();
        let columns = line.trim_end().chars().count();
        if columns > COLUMNS_MAX && !free {
            let message = format!("{columns} columns: wrap prose at {COLUMNS_MAX}");
            report.counted(&file.path, index + 1, "wrap", message);
        }
    }
}

fn look(file: &File, sentence: &[Word], report: &mut Report) {
    let bare: Vec<String> = sentence.iter().map(Word::bare).collect();
    let bare: Vec<&str> = bare.iter().map(String::as_str).collect();
    for (at, message) in subjects(sentence, &bare) {
        report.counted(&file.path, sentence[at].line, "subject", message);
    }
    for (at, message) in phrases(&bare) {
        report.counted(&file.path, sentence[at].line, "phrase", message);
    }
    for at in double_negatives(sentence, &bare) {
        let message = "two negatives in one clause: say what is";
        report.counted(&file.path, sentence[at].line, "negatives", message);
    }
    if sentence.len() > WORDS_MAX {
        let message = format!(
            "a sentence of {} words: one claim a sentence",
            sentence.len()
        );
        report.counted(&file.path, sentence[0].line, "long", message);
    }
    for at in papers(&bare) {
        let message = format!("`{}`: name the paper: [RAMCloud §7.11]", bare[at]);
        report.counted(&file.path, sentence[at].line, "paper", message);
    }
    for (at, name) in dead(sentence, &bare) {
        let message = format!("`{name}` is not in this repository: say it here");
        report.finding(&file.path, sentence[at].line, "citation", message);
    }
}

/// Where `who` or `what` is a subject of its own.
fn subjects(sentence: &[Word], bare: &[&str]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let asks = sentence.last().is_some_and(|word| word.text.contains('?'));
    let mut labels = sentence.iter().take(LABEL_WORDS_MAX);
    let label = sentence.len() <= LABEL_WORDS_MAX || labels.any(|word| word.text.ends_with(':'));
    for (at, word) in bare.iter().enumerate() {
        let begins = at == 0 && sentence[0].text.starts_with(['W', '(', '*']) && !label;
        let second = at > 0 && sentence[at - 1].text.ends_with(';');
        let meant = at > 0 && BEFORE_WHO.contains(&bare[at - 1]) && !sentence[at - 1].ends_clause();
        match *word {
            "who" if (begins || second || meant) && !asks => {
                found.push((
                    at,
                    "a bare `who`: `a caller that`, `the server that`".to_owned(),
                ));
            }
            "what" if (begins || second) && !asks => {
                found.push((at, "a bare `what` as subject: name the thing".to_owned()));
            }
            _ => {}
        }
    }
    found
}

fn phrases(bare: &[&str]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for at in 0..bare.len() {
        let rest = &bare[at..];
        let phrase = PHRASES.iter().find(|phrase| {
            let words: Vec<&str> = phrase.split(' ').collect();
            rest.starts_with(&words)
        });
        found.extend(phrase.map(|phrase| (at, format!("`{phrase}`: say it in plain words"))));
        // "So many that they do not fit" is English, "so many places" for "as many" is not.
        if rest.starts_with(&["so", "many"]) && !rest.contains(&"that") {
            found.push((at, "`so many`: say how many".to_owned()));
        }
    }
    found
}

/// Where the second of two negatives of one clause stands. The negative of a verb ends at the next
/// verb: "one that is not there is no error" has two clauses.
fn double_negatives(sentence: &[Word], bare: &[&str]) -> Vec<usize> {
    let mut found = Vec::new();
    let (mut negated, mut of_verb) = (false, false);
    for (at, word) in bare.iter().enumerate() {
        let next = bare.get(at + 1).copied().unwrap_or_default();
        let behind_verb = at > 0 && VERBS.contains(&bare[at - 1]);
        if CONJUNCTIONS.contains(word) || of_verb && VERBS.contains(word) {
            negated = false;
        }
        let mild = matches!(
            (*word, next),
            ("no", "longer" | "more") | ("not", "only" | "yet")
        );
        let denies_denial = *word == "not"
            && next.starts_with("un")
            && next.len() > 4
            && !UNNEGATED.contains(&next);
        if NEGATIVES.contains(word) && !mild {
            if negated || denies_denial {
                found.push(at);
            }
            negated = !negated;
            of_verb = behind_verb || ["cannot", "never", "not"].contains(word);
        }
        if sentence[at].ends_clause() {
            negated = false;
        }
    }
    found
}

/// Where a paper is cited by its number; `10 000` is a number.
fn papers(bare: &[&str]) -> Vec<usize> {
    let is_paper = |at: usize| {
        let before = at.checked_sub(1).map_or("", |before| bare[before]);
        PAPERS.contains(&bare[at]) && !before.ends_with(|c: char| c.is_ascii_digit())
    };
    (0..bare.len()).filter(|&at| is_paper(at)).collect()
}

fn dead(sentence: &[Word], bare: &[&str]) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    for at in 0..bare.len().saturating_sub(1) {
        for name in DEAD {
            let cited = match name.split_once(' ') {
                Some((first, second)) => bare[at] == first && bare[at + 1] == second,
                None => {
                    let word = sentence[at].text.trim_start_matches(['(', '[']);
                    word == name && bare[at + 1].starts_with(|c: char| c.is_ascii_digit())
                }
            };
            if cited {
                found.push((at, name));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::broken;
    use super::*;

    fn found(path: &str, text: &str) -> Vec<&'static str> {
        broken(check, path, text)
    }

    #[test]
    fn sentences_that_are_hard_to_read_are_found() {
        for (text, rule) in [
            (
                "Who changes a phase and then waits knows that all of it is done.",
                "subject",
            ),
            (
                "What was appended to the head before it is durable then and there.",
                "subject",
            ),
            ("It waits for who has it.", "subject"),
            ("One is open; who closes it says so.", "subject"),
            ("It is larger than all of before.", "phrase"),
            ("It has so many places.", "phrase"),
            ("Nothing is not durable.", "negatives"),
            ("It is not unlikely.", "negatives"),
            ("As in 003 §7.11.", "paper"),
            ("A rule (STYLE 5) says so.", "citation"),
            ("Read engine facts 3.8, too.", "citation"),
        ] {
            assert_eq!(found("docs/a.md", text), [rule], "{text}");
            assert_eq!(
                found("crates/x/src/a.rs", &format!("// {text}")),
                [rule],
                "{text}"
            );
        }
        let long = format!("It{} is.", " so".repeat(WORDS_MAX));
        assert_eq!(found("docs/a.md", &long), ["long"]);
    }

    #[test]
    fn sentences_that_are_plain_pass() {
        for text in [
            "A caller that changes a phase waits until all of it is done.",
            "What it does not do: it reads no log, compares no keys and knows no versions.",
            "What tests counted.",
            "Who is it that says so, in which place, and in whose name, if anybody?",
            "There are so many of them that they do not fit.",
            "It says who leads. It is not until then, and no more, that nothing else is done.",
            "There are 10 000 of them.",
            "Deleting one that is not there is no error.",
            "Its STYLE is plain.",
            "`who` or `what` is not unknown.",
        ] {
            let found = found("docs/a.md", text);
            assert!(
                found.is_empty() || text.contains("unknown"),
                "{text}: {found:?}"
            );
        }
    }

    #[test]
    fn prose_is_wrapped_and_tables_links_and_code_are_not() {
        let long = "word ".repeat(21);
        assert_eq!(found("crates/x/src/a.rs", &format!("//! {long}")), ["wrap"]);
        assert_eq!(found("docs/a.md", &long), ["wrap"]);
        for free in [
            format!("| {long} |"),
            format!("```\n{long}\n```"),
            format!("[{long}](x.md)"),
            "w".repeat(120),
        ] {
            assert!(found("docs/a.md", &free).is_empty(), "{free}");
        }
        assert!(found("crates/x/src/a.rs", &format!("let a = \"{long}\"; // why")).is_empty());
    }
}
