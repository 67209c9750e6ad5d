//! Every coverage mark is reached in every test run: by the simulator's seeds, or by a test that
//! says so.
//!
//! A mark is a call `pluvio_units::mark("name")` outside of tests. The list `tests/sim-marks.txt`
//! has those that the seeds must reach; a test that leads to some begins with
//! `Marks::to_reach(&["name", …])`, and fails when one is missed.

use super::Report;
use super::tree::Tree;
use crate::ci::seeds;
use std::collections::{BTreeMap, BTreeSet};

const RULE: &str = "marks";

/// Compares the marks of the code with those that are asked for.
pub fn check(tree: &Tree, report: &mut Report) {
    let list = tree.files.get(seeds::MARKS);
    let listed: BTreeSet<&str> = list.map_or_else(BTreeSet::new, |file| {
        seeds::listed(&file.text).into_iter().collect()
    });
    let (mut marks, mut tested) = (BTreeMap::new(), BTreeMap::new());
    for (file, rust) in tree.rust() {
        for (found, call, in_tests) in [
            (&mut marks, "pluvio_units::mark(", false),
            (&mut tested, "Marks::to_reach(", true),
        ] {
            for (at, _) in rust.layers.code.match_indices(call) {
                let line = super::lex::line_of(&rust.layers.code, at);
                if rust.tests_at(at) == in_tests {
                    let names = arguments(&file.text, line, call);
                    found.extend(names.map(|name| (name, (file.path.as_str(), line))));
                }
            }
        }
    }
    for (mark, (path, line)) in &marks {
        if !listed.contains(mark) && !tested.contains_key(mark) {
            let list = seeds::MARKS;
            let message = format!(
                "no test reaches the mark {mark} with Marks::to_reach, and {list} has it not"
            );
            report.finding(path, *line, RULE, message);
        }
    }
    for (mark, (path, line)) in &tested {
        if !marks.contains_key(mark) {
            report.finding(path, *line, RULE, format!("there is no mark {mark}"));
        }
    }
    for mark in listed {
        if !marks.contains_key(mark) {
            report.finding(seeds::MARKS, 0, RULE, format!("there is no mark {mark}"));
        }
    }
}

/// The strings in the parentheses of a call that begins in this line.
fn arguments<'a>(text: &'a str, line: usize, call: &str) -> impl Iterator<Item = &'a str> {
    let starts = text.split_inclusive('\n').take(line - 1).map(str::len);
    let rest = &text[starts.sum::<usize>()..];
    let behind = rest.split_once(call).map_or("", |(_, behind)| behind);
    let inside = behind.split(')').next().unwrap_or_default();
    inside.split('"').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn findings(list: &str, code: &str, test: &str) -> Vec<String> {
        let files = [
            (seeds::MARKS, list.to_owned()),
            ("crates/log/src/head.rs", code.to_owned()),
            ("crates/log/tests/heads.rs", test.to_owned()),
        ];
        let sources = files.map(|(path, text)| (path.to_owned(), text));
        let tree = Tree::from_sources(Path::new("."), sources.into());
        let mut report = Report::default();
        check(&tree, &mut report);
        report.findings.into_iter().map(|f| f.message).collect()
    }

    #[test]
    fn marks_that_nothing_asks_for_and_such_that_are_gone_are_found() {
        let code = "fn f() {\n    pluvio_units::mark(\"a\");\n    pluvio_units::mark(\"b\");\n}\n";
        let test = "fn t() {\n    let _marks = Marks::to_reach(&[\n        \"b\",\n    ]);\n}\n";
        assert!(findings("a # why\n", code, test).is_empty());
        let unasked = findings("", code, test);
        assert!(unasked[0].contains("the mark a "), "{unasked:?}");
        let unasked = findings("a\n", code, "");
        assert!(unasked[0].contains("the mark b "), "{unasked:?}");
        let gone = findings("a\nc\n", code, &test.replace("\"b\"", "\"b\", \"d\""));
        assert_eq!(gone.len(), 2, "{gone:?}");
        // One that only tests have is none.
        let tests = format!("#[cfg(test)]\nmod tests {{\n{code}}}\n");
        assert!(findings("", &tests, "").is_empty());
    }
}
