//! The sentences of comments and documents, each word with its line.
//!
//! A paragraph ends at a blank line, at a fence, at a table and where a list item begins. A code
//! span or a quotation counts as one word. The targets of links, fenced blocks, tables, headings
//! and lines that are indented like code are no prose.

use super::tree::{File, Rust};

/// Stands for a code span or a quotation.
pub const CODE: &str = "`";

/// A word with its punctuation.
#[derive(Clone, Debug)]
pub struct Word {
    /// The word.
    pub text: String,
    /// Its line, from 1.
    pub line: usize,
}

impl Word {
    /// The word without punctuation around it, in small letters.
    pub fn bare(&self) -> String {
        self.text
            .trim_matches(|c: char| !c.is_alphanumeric() && c != '`')
            .to_lowercase()
    }

    /// Whether a clause ends behind it.
    pub fn ends_clause(&self) -> bool {
        self.text
            .ends_with([',', ';', ':', '.', '?', '!', ')', '—', '…'])
    }

    fn ends_sentence(&self) -> bool {
        let abbreviations = ["e.g.", "i.e.", "vs.", "cf.", "etc.", "fig."];
        let text = self.text.trim_end_matches([')', '"', '*', '\'', ']', '_']);
        text.ends_with(['.', '?', '!'])
            && !abbreviations.contains(&text.trim_start_matches('('))
            && text.len() > 1
    }
}

/// Text of a file that may be prose, line by line.
struct Line<'a> {
    number: usize,
    text: &'a str,
    /// The sign in front of it (`//!`); a paragraph has only one.
    marker: &'static str,
}

/// The sentences of the comments of a Rust file.
pub fn of_comments(file: &File, rust: &Rust) -> Vec<Vec<Word>> {
    let comments = rust.layers.comments.lines();
    let lines =
        comments
            .zip(rust.layers.code.lines())
            .enumerate()
            .map(|(index, (comment, code))| {
                let comment = comment.trim();
                let marker = ["//!", "///", "//"]
                    .into_iter()
                    .find(|marker| comment.starts_with(marker));
                let text = marker.map_or("", |marker| &comment[marker.len()..]);
                let tag = text.trim_start().starts_with(super::invariants::TAG);
                Line {
                    number: index + 1,
                    text: if tag {
                        ""
                    } else {
                        text.strip_prefix(' ').unwrap_or(text)
                    },
                    // A comment behind code belongs to no paragraph of others.
                    marker: match marker {
                        Some(marker) if code.trim().is_empty() => marker,
                        Some(_) => "behind code",
                        None => "",
                    },
                }
            });
    debug_assert!(file.rust.is_some(), "{} is no Rust", file.path);
    sentences(lines)
}

/// The sentences of a document.
pub fn of_document(text: &str) -> Vec<Vec<Word>> {
    sentences(text.lines().enumerate().map(|(index, text)| Line {
        number: index + 1,
        text,
        marker: "document",
    }))
}

fn sentences<'a>(lines: impl Iterator<Item = Line<'a>>) -> Vec<Vec<Word>> {
    let mut found = Vec::new();
    let mut paragraph: Vec<(usize, &str)> = Vec::new();
    let (mut fenced, mut marker) = (false, "");
    for line in lines {
        let text = line.text.trim();
        if line.marker != marker || line.marker == "behind code" {
            marker = line.marker;
            fenced = false;
            found.extend(split(&paragraph));
            paragraph.clear();
        }
        let fence = text.starts_with("```");
        fenced ^= fence;
        let item = item(text);
        let code = paragraph.is_empty() && item.is_none() && line.text.starts_with("    ");
        let no_prose = fence
            || fenced
            || code
            || text.is_empty()
            || text.starts_with('#')
            || text.starts_with("<!--")
            || text.starts_with('|');
        if no_prose || item.is_some() {
            found.extend(split(&paragraph));
            paragraph.clear();
        }
        if !no_prose {
            paragraph.push((line.number, item.unwrap_or(text)));
        }
    }
    found.extend(split(&paragraph));
    found
}

/// The text behind the mark of a list item.
fn item(text: &str) -> Option<&str> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    if digits > 0
        && let Some(rest) = text[digits..].strip_prefix(". ")
    {
        return Some(rest);
    }
    text.strip_prefix("- ").or_else(|| text.strip_prefix("* "))
}

/// The sentences of a paragraph.
fn split(paragraph: &[(usize, &str)]) -> Vec<Vec<Word>> {
    let mut sentences = Vec::new();
    let mut sentence: Vec<Word> = Vec::new();
    let (mut span, mut target, mut quoted) = (false, false, false);
    // The last character of a quotation may end the sentence.
    let mut last = ' ';
    for (line, text) in paragraph {
        let mut plain = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                '`' if span => {
                    span = false;
                    plain.push_str(CODE);
                }
                '`' => span = true,
                _ if span => {}
                '"' => {
                    quoted = !quoted;
                    if quoted {
                        plain.push_str(CODE);
                    } else if last == '.' {
                        plain.push('.');
                    }
                }
                _ if quoted => last = c,
                '(' if plain.ends_with(']') => target = true,
                ')' if target => target = false,
                _ if target => {}
                _ => plain.push(c),
            }
        }
        for word in plain.split_whitespace() {
            // Dashes and arrows alone are no words.
            if !word.contains(|c: char| c.is_alphanumeric() || c == '`') {
                continue;
            }
            let word = Word {
                text: word.to_owned(),
                line: *line,
            };
            let ends = word.ends_sentence();
            sentence.push(word);
            if ends {
                sentences.push(std::mem::take(&mut sentence));
            }
        }
    }
    if !sentence.is_empty() {
        sentences.push(sentence);
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::*;
    use std::collections::BTreeMap;
    use std::path::Path;

    fn joined(sentences: &[Vec<Word>]) -> Vec<String> {
        let join = |words: &Vec<Word>| {
            let texts: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
            texts.join(" ")
        };
        sentences.iter().map(join).collect()
    }

    #[test]
    fn documents_have_sentences_and_much_that_is_none() {
        let text = "# A title\n\nOne is `a\nb` here, e.g. so. [Two](x.md) is (there).\n\n| a | b |\n\n- three\n  goes on\n- four\n\n```sh\nls\n```\n1. five\n";
        assert_eq!(
            joined(&of_document(text)),
            [
                "One is ` here, e.g. so.",
                "[Two] is (there).",
                "three goes on",
                "four",
                "five"
            ]
        );
        assert_eq!(of_document(text)[1][0].line, 4);
    }

    #[test]
    fn comments_of_one_kind_are_a_paragraph() {
        let text = "//! One\n//! goes on.\n\n/// Two.\n// shows: X1\n// three\nfn f() {} // four\n// five \"is\n// not\" code\n";
        let sources = BTreeMap::from([("crates/x/src/a.rs".to_owned(), text.to_owned())]);
        let tree = Tree::from_sources(Path::new("/nowhere"), sources);
        let (file, rust) = tree.rust().next().expect("one file");
        assert_eq!(
            joined(&of_comments(file, rust)),
            ["One goes on.", "Two.", "three", "four", "five ` code"]
        );
    }
}
