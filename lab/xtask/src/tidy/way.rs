//! The ways of a SET and of an EXEC, as ARCHITECTURE.md lists them. Each function of a list exists,
//! and is called by one above it.
//!
//! A list stands between `<!-- way-of-a-set -->` and `<!-- /way-of-a-set -->`, an item a line:
//! `- crates/redis/src/connection.rs: run`. Function and file may stand in code spans, a number may
//! stand for the dash, and a type before the function (`Log::append`). A note behind the function
//! that begins with "(by the", as in "(by the log's task)", begins a new chain: no function above
//! it calls it.

use super::Report;
use super::tree::Tree;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeSet;

const PAGE: &str = "ARCHITECTURE.md";
const RULE: &str = "way";
/// The lists.
const WAYS: [&str; 2] = ["way-of-a-set", "way-of-an-exec"];
/// Most functions of a way.
const FUNCTIONS_MAX: usize = 40;

/// A line of the list.
#[derive(PartialEq, Eq, Debug)]
struct Station<'a> {
    line: usize,
    file: &'a str,
    function: &'a str,
    /// Whether another task comes here by itself.
    begins: bool,
}

/// Looks at the lists that there are.
pub fn check(tree: &Tree, report: &mut Report) {
    for way in WAYS {
        check_way(tree, way, report);
    }
}

fn check_way(tree: &Tree, way: &str, report: &mut Report) {
    let Some(page) = tree.files.get(PAGE) else {
        return;
    };
    let stations = match stations(&page.text, way) {
        Ok(stations) => stations,
        Err((line, text)) => {
            let message = format!("`{text}` is not `file: function`");
            return report.finding(PAGE, line, RULE, message);
        }
    };
    if stations.len() > FUNCTIONS_MAX {
        let message = format!("{} functions, over {FUNCTIONS_MAX}", stations.len());
        report.finding(PAGE, stations[0].line, RULE, message);
    }
    let mut called = BTreeSet::new();
    for station in &stations {
        let rust = tree
            .files
            .get(station.file)
            .and_then(|file| file.rust.as_ref());
        let tokens = rust.and_then(|rust| rust.layers.tokens.clone());
        let bodies = bodies(tokens.unwrap_or_default(), station.function);
        if bodies.is_empty() {
            let message = format!("`{}` has no function `{}`", station.file, station.function);
            report.finding(PAGE, station.line, RULE, message);
        }
        if station.begins {
            called.clear();
        } else if station.line > stations[0].line && !called.contains(station.function) {
            let message = format!(
                "no function above calls `{}` of `{}`",
                station.function, station.file
            );
            report.finding(PAGE, station.line, RULE, message);
        }
        for body in bodies {
            identifiers(body, &mut called);
        }
    }
}

/// The lines of a list; an error is a line that is none.
fn stations<'p>(page: &'p str, way: &str) -> Result<Vec<Station<'p>>, (usize, &'p str)> {
    let (begin, end) = (format!("<!-- {way} -->"), format!("<!-- /{way} -->"));
    let mut found = Vec::new();
    let lines = page.lines().enumerate();
    let inside = lines
        .skip_while(|(_, line)| line.trim() != begin)
        .skip(1)
        .take_while(|(_, line)| line.trim() != end);
    for (index, line) in inside {
        let text = line.trim();
        if text.is_empty() {
            continue;
        }
        let text = text.trim_start_matches(|c: char| c.is_ascii_digit());
        let text = text.trim_start_matches(['-', '.', '`', ' ']);
        let Some((file, rest)) = text.split_once(": ") else {
            return Err((index + 1, line));
        };
        let rest = rest.trim_start_matches(['`', ' ']);
        let (name, note) = rest.split_once([' ', '`', '(']).unwrap_or((rest, ""));
        let function = name.rsplit("::").next().unwrap_or(name);
        let file = file.trim_end_matches('`');
        if function.is_empty() || file.contains(' ') {
            return Err((index + 1, line));
        }
        found.push(Station {
            line: index + 1,
            file,
            function,
            begins: note.contains("(by the") || rest.contains("(by the"),
        });
    }
    Ok(found)
}

/// The bodies of the functions `name` among `tokens`, at any depth.
fn bodies(tokens: TokenStream, name: &str) -> Vec<TokenStream> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if let TokenTree::Group(group) = token {
            found.extend(bodies(group.stream(), name));
        }
        let is = |at: usize, word: &str| matches!(tokens.get(at), Some(TokenTree::Ident(ident)) if *ident == word);
        if is(at, "fn") && is(at + 1, name) {
            let body = tokens[at + 2..].iter().find_map(|token| match token {
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                    Some(Some(group.stream()))
                }
                // A function of a trait may have none.
                TokenTree::Punct(punct) if punct.as_char() == ';' => Some(None),
                TokenTree::Group(_)
                | TokenTree::Ident(_)
                | TokenTree::Punct(_)
                | TokenTree::Literal(_) => None,
            });
            found.extend(body.flatten());
        }
    }
    found
}

/// All names that `tokens` mention.
fn identifiers(tokens: TokenStream, into: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => identifiers(group.stream(), into),
            TokenTree::Ident(ident) => {
                into.insert(ident.to_string());
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::path::Path;

    const BEGIN: &str = "<!-- way-of-a-set -->";
    const END: &str = "<!-- /way-of-a-set -->";
    const A: &str = "//! a\ntrait T { fn start(&self); }\nimpl T for A { fn start(&self) { let x = [0; 2]; select! { y = self.go_on::<u8>(x) => {} } } }\n";
    const B: &str = "//! b\nfn go_on() { map(end) }\nfn end() {}\nfn wake() { }\n";

    fn findings(list: &str) -> Vec<String> {
        let sources = [
            ("crates/a/src/a.rs", A),
            ("crates/b/src/b.rs", B),
            (PAGE, list),
        ];
        let sources = sources.map(|(path, text)| (path.to_owned(), text.to_owned()));
        let tree = Tree::from_sources(Path::new("/nowhere"), BTreeMap::from(sources));
        let mut report = Report::default();
        check(&tree, &mut report);
        report.findings.into_iter().map(|f| f.message).collect()
    }

    #[test]
    fn a_way_whose_functions_call_each_other_passes() {
        let list = format!(
            "# x\n{BEGIN}\n- `crates/a/src/a.rs: A::start`\n1. `crates/b/src/b.rs`: `go_on`\n- crates/b/src/b.rs: end\n\n\
             - crates/b/src/b.rs: wake (by the log's task)\n{END}\n- nothing\n"
        );
        assert!(findings(&list).is_empty(), "{:?}", findings(&list));
        assert!(findings("# x\n- nothing\n").is_empty());
    }

    #[test]
    fn what_is_gone_or_not_called_is_found() {
        for (list, message) in [
            (
                "- crates/a/src/a.rs: start\n- crates/b/src/b.rs: end",
                "no function above calls `end` of `crates/b/src/b.rs`",
            ),
            (
                "- crates/b/src/b.rs: end\n- crates/b/src/b.rs: wake",
                "no function above calls `wake` of `crates/b/src/b.rs`",
            ),
            (
                "- crates/b/src/b.rs: gone",
                "`crates/b/src/b.rs` has no function `gone`",
            ),
            (
                "- crates/b/src/c.rs: end",
                "`crates/b/src/c.rs` has no function `end`",
            ),
            (
                "- crates/b/src/b.rs",
                "`- crates/b/src/b.rs` is not `file: function`",
            ),
        ] {
            assert_eq!(
                findings(&format!("{BEGIN}\n{list}\n{END}\n")),
                [message],
                "{list}"
            );
        }
        let gone = "- crates/b/src/b.rs: gone";
        let both =
            format!("{BEGIN}\n- crates/b/src/b.rs: end\n{END}\n<!-- way-of-an-exec -->\n{gone}\n");
        assert_eq!(
            findings(&both),
            ["`crates/b/src/b.rs` has no function `gone`"]
        );
        let many = "- crates/b/src/b.rs: end (by the test)\n".repeat(FUNCTIONS_MAX + 1);
        assert_eq!(
            findings(&format!("{BEGIN}\n{many}{END}\n")),
            ["41 functions, over 40"]
        );
    }
}
