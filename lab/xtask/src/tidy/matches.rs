//! Matches over closed enums name every kind: adding a kind must fail to compile until every
//! decision about it is taken, and a catch-all arm would take the decision silently.
//!
//! It reads text: a match counts as one over a closed enum when a pattern of it names one. That
//! sees through tuples and references, and misses a match whose patterns go through `use Kind::*`
//! (which the code does not do) or a macro.

use super::Report;
use crate::lex::{after_closing, is_word, line_of, word_positions};
use crate::tree::Tree;

/// The closed enums. Whoever adds one of our own with a case per kind of thing adds it here; one
/// that is `non_exhaustive` needs catch-all arms in other crates and is not closed.
const CLOSED: [&str; 9] = [
    "Class",
    "EntryKind",
    "Opcode",
    "Refusal",
    "Role",
    "SegmentKind",
    "ServerState",
    "TabletPhase",
    "TabletState",
];

/// Looks at all matches outside tests.
pub fn check(tree: &Tree, report: &mut Report) {
    for (file, rust) in tree.rust() {
        for at in catch_alls(&rust.layers.code) {
            if !rust.tests_at(at) {
                let message = "a catch-all arm in a match over a closed enum: name every kind";
                report.finding(
                    &file.path,
                    line_of(&rust.layers.code, at),
                    "closed-enum",
                    message,
                );
            }
        }
    }
}

/// Where catch-all arms of matches over closed enums stand in `code`.
fn catch_alls(code: &str) -> Vec<usize> {
    let mut found = Vec::new();
    for at in word_positions(code, "match") {
        let Some(open) = block_start(code.as_bytes(), at) else {
            continue;
        };
        let patterns = patterns(code, open);
        if patterns.iter().any(|(_, pattern)| names_closed(pattern)) {
            let all = patterns.iter().filter(|(_, pattern)| is_catch_all(pattern));
            found.extend(all.map(|(at, _)| *at));
        }
    }
    found
}

fn names_closed(pattern: &str) -> bool {
    CLOSED.iter().any(|name| {
        word_positions(pattern, name)
            .any(|at| pattern[at + name.len()..].trim_start().starts_with("::"))
    })
}

/// Whether a pattern accepts everything, perhaps inside a tuple, `Some` or `Ok`.
fn is_catch_all(pattern: &str) -> bool {
    let pattern = pattern.split(" if ").next().unwrap_or_default().trim();
    let pattern = ["Some(", "Ok("]
        .iter()
        .find_map(|wrapper| pattern.strip_prefix(wrapper)?.strip_suffix(')'))
        .unwrap_or(pattern);
    let wildcard = pattern.contains('_') && pattern.chars().all(|c| "_(),. &".contains(c));
    let starts_small = pattern.starts_with(|c: char| c.is_ascii_lowercase());
    let binding =
        starts_small && pattern.bytes().all(is_word) && pattern != "true" && pattern != "false";
    wildcard || binding
}

/// The brace that opens the arms of the match at `at`.
fn block_start(code: &[u8], at: usize) -> Option<usize> {
    let mut at = at + "match".len();
    while at < code.len() {
        match code[at] {
            b'{' => return Some(at),
            b'(' | b'[' => at = after_closing(code, at),
            b';' | b'}' | b')' => return None,
            _ => at += 1,
        }
    }
    None
}

/// The patterns of the match whose arms open at `open`, each with its position.
fn patterns(code: &str, open: usize) -> Vec<(usize, &str)> {
    let bytes = code.as_bytes();
    let end = after_closing(bytes, open) - 1;
    let mut found = Vec::new();
    let mut at = open + 1;
    while at < end {
        let start = at;
        let mut comma = start;
        while at < end && !bytes[at..].starts_with(b"=>") {
            at = match bytes[at] {
                b'(' | b'[' | b'{' => after_closing(bytes, at),
                b',' => {
                    comma = at + 1;
                    at + 1
                }
                _ => at + 1,
            };
        }
        if at >= end {
            break;
        }
        // A comma outside brackets belongs to the arm before (`=> f::<A, B>(),`).
        let pattern = &code[comma..at];
        let blank = pattern.len() - pattern.trim_start().len();
        found.push((comma + blank, pattern.trim()));
        at = after_body(bytes, at + 2, end);
    }
    found
}

/// The position after the arm's body that starts at `at`.
fn after_body(code: &[u8], mut at: usize, end: usize) -> usize {
    while at < end && code[at].is_ascii_whitespace() {
        at += 1;
    }
    if code[at] == b'{' {
        return after_closing(code, at).min(end);
    }
    while at < end && code[at] != b',' {
        at = if matches!(code[at], b'(' | b'[' | b'{') {
            after_closing(code, at)
        } else {
            at + 1
        };
    }
    (at + 1).min(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn catch_all_arms_over_closed_enums_are_found() {
        for code in [
            "match kind { EntryKind::Object => 1, _ => 2 }",
            "match kind { EntryKind::Object => { 1 } other => 2, }",
            "match (a, kind) { (1, format::EntryKind::Object) => f::<A, B>(), (_, _) => 2 }",
            "match x { Some(Opcode::Read | Opcode::Write) => match y { 1 => 2, _ => 3 }, Some(_) => 4, None => 5 }",
            "match f(|a| { a }) { Opcode::Read if b => 1, _ if c => 3, Opcode::Write => 2 }",
        ] {
            assert_eq!(catch_alls(code).len(), 1, "{code}");
        }
    }

    #[test]
    fn complete_matches_and_other_enums_pass() {
        for code in [
            "match kind { EntryKind::Object => 1, EntryKind::Tombstone => 2 }",
            "match byte { 1 => Some(EntryKind::Object), 2 => Some(EntryKind::Tombstone), _ => None }",
            "match f(byte) { Ok(EntryKind::Object) => 1, Ok(EntryKind::Tombstone) => 2, Err(_) => 3 }",
            "match other { OtherKind::EntryKindle => 1, _ => 2 }",
            "match kind { EntryKind::Object => match n { 0 => 1, _ => 2 }, EntryKind::Tombstone => 3 }",
            "matches!(kind, EntryKind::Object)",
        ] {
            assert!(catch_alls(code).is_empty(), "{code}");
        }
    }
}
