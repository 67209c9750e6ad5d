//! Matches over closed enums name every kind. Adding a kind must fail to compile until every
//! decision about it is taken; a catch-all arm would take the decision silently.
//!
//! It reads tokens, so that it sees matches inside macros too. A match counts as one over a closed
//! enum when a pattern of it names one. That sees through tuples and references, and misses a
//! match whose patterns go through `use Kind::*` (which the code does not do). Clippy's
//! `wildcard_enum_match_arm` is no replacement: it asks the same of every enum of every library.

use super::Report;
use super::lex::{is_word, line_of};
use super::tree::Tree;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The closed enums: add yours here if it has a case per kind of thing. One that is
/// `non_exhaustive` needs catch-all arms in other crates and is not closed.
const CLOSED: [&str; 19] = [
    "BackupOp",
    "Change",
    "Class",
    "CoordinatorOp",
    "DataOp",
    "EntryKind",
    "MasterOp",
    "Opcode",
    "Projection",
    "Refusal",
    "Role",
    "SegmentKind",
    "SegmentState",
    "ServerOp",
    "ServerState",
    "TabletPhase",
    "TabletState",
    "Unfit",
    "Verdict",
];

/// Looks at all matches outside tests.
pub fn check(tree: &Tree, report: &mut Report) {
    for (file, rust) in tree.rust() {
        for at in catch_alls(rust.layers.tokens.clone().unwrap_or_default()) {
            if !rust.tests_at(at) {
                let message = "a catch-all arm in a match over a closed enum: name every kind";
                report.finding(&file.path, line_of(&file.text, at), "closed-enum", message);
            }
        }
    }
}

/// Where catch-all arms of matches over closed enums stand among `tokens`.
fn catch_alls(tokens: TokenStream) -> Vec<usize> {
    let mut found = Vec::new();
    look(tokens, &mut found);
    found
}

/// Looks at the matches among `tokens` and inside them.
fn look(tokens: TokenStream, found: &mut Vec<usize>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        if is_ident(token, "match")
            && let Some(arms) = tokens[at + 1..].iter().find_map(braces)
        {
            let patterns = patterns(arms);
            if patterns.iter().any(|pattern| names_closed(pattern)) {
                let all = patterns.iter().filter(|pattern| is_catch_all(pattern));
                found.extend(all.map(|pattern| pattern[0].span().byte_range().start));
            }
        }
        if let TokenTree::Group(group) = token {
            look(group.stream(), found);
        }
    }
}

fn is_ident(token: &TokenTree, name: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if *ident == name)
}

fn is_punct(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == sign)
}

/// What stands in braces, if `token` is that.
fn braces(token: &TokenTree) -> Option<TokenStream> {
    match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(group.stream()),
        TokenTree::Group(_) | TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => {
            None
        }
    }
}

/// The patterns of the arms of a match, without guards.
fn patterns(arms: TokenStream) -> Vec<Vec<TokenTree>> {
    let tokens: Vec<TokenTree> = arms.into_iter().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let rest = &tokens[at..];
        let arrow = |pair: &[TokenTree]| is_punct(&pair[0], '=') && is_punct(&pair[1], '>');
        let Some(end) = rest.windows(2).position(arrow) else {
            break;
        };
        let head = &rest[..end];
        // A comma of the arm before belongs to it (`=> f::<A, B>(),`).
        let start = head.iter().rposition(|token| is_punct(token, ','));
        let head = &head[start.map_or(0, |comma| comma + 1)..];
        let guard = head.iter().position(|token| is_ident(token, "if"));
        let pattern = &head[..guard.unwrap_or(head.len())];
        if !pattern.is_empty() {
            found.push(pattern.to_vec());
        }
        let body = &rest[end + 2..];
        let length = match body.first() {
            Some(first) if braces(first).is_some() => 1,
            Some(_) | None => {
                let comma = body.iter().position(|token| is_punct(token, ','));
                comma.map_or(body.len(), |comma| comma + 1)
            }
        };
        at += end + 2 + length;
    }
    found
}

/// Whether a closed enum is named in front of `::`, at any depth.
fn names_closed(pattern: &[TokenTree]) -> bool {
    pattern.iter().enumerate().any(|(at, token)| match token {
        TokenTree::Group(group) => {
            let inside: Vec<TokenTree> = group.stream().into_iter().collect();
            names_closed(&inside)
        }
        TokenTree::Ident(ident) => {
            CLOSED.iter().any(|name| *ident == name)
                && pattern.get(at + 1).is_some_and(|next| is_punct(next, ':'))
        }
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

/// Whether a pattern accepts everything, perhaps inside a tuple, `Some` or `Ok`.
fn is_catch_all(pattern: &[TokenTree]) -> bool {
    let text: String = pattern.iter().map(ToString::to_string).collect();
    let text = ["Some(", "Ok("]
        .iter()
        .find_map(|wrapper| text.strip_prefix(wrapper)?.strip_suffix(')'))
        .unwrap_or(&text);
    let wildcard = text.contains('_') && text.chars().all(|c| "_(),. &".contains(c));
    let starts_small = text.starts_with(|c: char| c.is_ascii_lowercase());
    let binding = starts_small && text.bytes().all(is_word) && text != "true" && text != "false";
    wildcard || binding
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(code: &str) -> TokenStream {
        code.parse().expect("tokens")
    }

    #[test]
    fn catch_all_arms_over_closed_enums_are_found() {
        for code in [
            "match kind { EntryKind::Object => 1, _ => 2 }",
            "match kind { EntryKind::Object => { 1 } other => 2, }",
            "match (a, kind) { (1, format::EntryKind::Object) => f::<A, B>(), (_, _) => 2 }",
            "match x { Some(Opcode::Read | Opcode::Write) => match y { 1 => 2, _ => 3 }, Some(_) => 4, None => 5 }",
            "match f(|a| { a }) { Opcode::Read if b => 1, _ if c => 3, Opcode::Write => 2 }",
            "select! { biased; x = y => match kind { EntryKind::Object => 1, _ => 2 } }",
        ] {
            assert_eq!(catch_alls(tokens(code)).len(), 1, "{code}");
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
            assert!(catch_alls(tokens(code)).is_empty(), "{code}");
        }
    }
}
