//! Rules for Rust files: a head comment, a size, the one door to the operating system, `biased`
//! selects, no `unwrap` outside tests.

use super::Report;
use super::lex::{is_word, line_of, word_positions};
use super::tree::{File, Rust, Tree, crate_of};
use std::collections::BTreeMap;

/// Lines (tests included) from which a file is mentioned.
const LINES_NOTE: usize = 600;
/// Lines from which a file needs an exception with a reason.
const LINES_MAX: usize = 900;
/// The exceptions: `path lines-at-most reason`.
const LARGE_FILES: &str = "lab/xtask/tidy/large-files.txt";

/// Crates that may reach the operating system themselves; the others go through `env` (rule A).
const DOOR: [(&str, &str); 19] = [
    ("env_os", "is the door"),
    ("env", "has the door of a library's threads in `host`"),
    ("net", "is the door to the network"),
    (
        "metadata",
        "talks to programs of others, in their protocols",
    ),
    ("otlp", "talks to collectors of others, in their protocol"),
    ("archive", "keeps the user's archives; no server links it"),
    (
        "kept",
        "keeps stores of other programs in files; no server links it",
    ),
    (
        "spacejmp",
        "maps files, for programs of others; no server links it",
    ),
    ("mapped", "is a library of other programs"),
    ("door", "answers other processes, in a thread of its own"),
    ("cli", "starts processes and reads the user's files"),
    ("console", "reads options, and writes what is said"),
    ("local", "starts processes"),
    (
        "load",
        "measures servers of others, over sockets of its own",
    ),
    ("torture", "stops processes, cuts networks, fills disks"),
    ("pluvio-lab", "starts processes and writes results"),
    ("bench", "measures real time"),
    (
        "jump",
        "measures real time, and starts processes that share memory",
    ),
    ("xtask", "runs cargo and reads the tree"),
];

/// Names of the operating system, and what of them is only data or harmless.
const OS: [(&str, &[&str]); 13] = [
    ("std::time", &["Duration"]),
    ("std::thread", &["yield_now", "LocalKey", "panicking"]),
    ("std::fs", &[]),
    (
        "std::net",
        &[
            "SocketAddr",
            "IpAddr",
            "Ipv4Addr",
            "Ipv6Addr",
            "AddrParseError",
        ],
    ),
    ("std::process", &["abort"]),
    ("std::env", &[]),
    ("tokio::time", &[]),
    ("tokio::net", &[]),
    ("tokio::fs", &[]),
    ("tokio::process", &[]),
    ("tokio::signal", &[]),
    ("tokio::runtime", &[]),
    ("tokio::task", &["yield_now"]),
];

/// What a test must not do: it would wait, or see the wall clock.
const CLOCKS: [&str; 5] = [
    "Instant::now",
    "SystemTime::now",
    "thread::sleep",
    "tokio::time",
    "park_timeout",
];

/// Crates nobody finds anything in.
const VAGUE: [&str; 5] = ["common", "core", "helpers", "misc", "utils"];

/// Looks at all Rust files.
pub fn check(tree: &Tree, report: &mut Report) {
    for (file, rust) in tree.rust() {
        head_comment(file, report);
        if rust.layers.tokens.is_none() {
            report.finding(&file.path, 0, "head", "does not consist of Rust's tokens");
        }
        selects(file, rust, report);
        os_door(file, rust, report);
        unwraps(file, rust, report);
        if let Some(name) = crate_of(&file.path).filter(|name| VAGUE.contains(name)) {
            report.finding(
                &file.path,
                0,
                "names",
                format!("a crate `{name}` says nothing of what it owns"),
            );
        }
    }
    sizes(tree, report);
}

fn head_comment(file: &File, report: &mut Report) {
    let first = file.text.lines().find(|line| !line.trim().is_empty());
    if !first.is_some_and(|line| line.starts_with("//!")) {
        report.finding(
            &file.path,
            1,
            "head",
            "does not open with `//!`: what it is, what it owns, its invariants",
        );
    }
}

fn selects(file: &File, rust: &Rust, report: &mut Report) {
    let code = &rust.layers.code;
    for at in word_positions(code, "select") {
        let Some(body) = code[at + "select".len()..].strip_prefix('!') else {
            continue;
        };
        let body = body.trim_start().trim_start_matches(['{', '(']);
        if !body.trim_start().starts_with("biased;") {
            let message = "a select draws its order at random: start it with `biased;` (rule A)";
            report.finding(&file.path, line_of(code, at), "select", message);
        }
    }
}

fn os_door(file: &File, rust: &Rust, report: &mut Report) {
    let Some(name) = crate_of(&file.path) else {
        return;
    };
    // Examples are programs of their own: they start a real environment and look at real time.
    if DOOR.iter().any(|(door, _)| *door == name) || file.path.contains("/examples/") {
        return;
    }
    let code = &rust.layers.code;
    for (module, harmless) in OS {
        for at in word_positions(code, module) {
            let names = names_after(&code[at + module.len()..]);
            if !rust.tests_at(at)
                && (names.is_empty() || names.iter().any(|n| !harmless.contains(n)))
            {
                let message = format!("`{module}` belongs behind the env traits (rule A)");
                report.finding(&file.path, line_of(code, at), "door", message);
            }
        }
    }
    for clock in CLOCKS {
        for at in word_positions(code, clock).filter(|&at| rust.tests_at(at)) {
            let message = format!("`{clock}` in a test: tests know no wall clock and do not sleep");
            report.finding(&file.path, line_of(code, at), "door", message);
        }
    }
}

/// The names that follow a module path: `::a`, or each of `::{a, b::c}`.
fn names_after(rest: &str) -> Vec<&str> {
    let Some(rest) = rest.strip_prefix("::") else {
        return Vec::new();
    };
    let first_word = |text: &'_ str| text.bytes().take_while(|&b| is_word(b)).count();
    match rest.strip_prefix('{') {
        Some(group) => group
            .split('}')
            .next()
            .unwrap_or_default()
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .map(|name| &name[..first_word(name)])
            .collect(),
        None => vec![&rest[..first_word(rest)]],
    }
}

fn unwraps(file: &File, rust: &Rust, report: &mut Report) {
    let code = &rust.layers.code;
    for at in word_positions(code, "unwrap").filter(|&at| !rust.tests_at(at)) {
        if at > 0 && code.as_bytes()[at - 1] == b'.' && code[at..].starts_with("unwrap()") {
            let message =
                "`unwrap()` outside tests: return the error, or `expect` why it cannot be";
            report.finding(&file.path, line_of(code, at), "unwrap", message);
        }
    }
}

fn sizes(tree: &Tree, report: &mut Report) {
    let mut exceptions = exceptions(tree, report);
    for (file, _) in tree.rust() {
        let lines = file.text.lines().count();
        let exception = exceptions.remove(file.path.as_str());
        match exception {
            Some((line, _)) if lines <= LINES_MAX => {
                report.finding(
                    LARGE_FILES,
                    line,
                    "size",
                    format!("{} has {lines} lines and needs no exception", file.path),
                );
            }
            Some((_, allowed)) if lines <= allowed => {}
            Some((_, allowed)) => {
                report.finding(
                    &file.path,
                    0,
                    "size",
                    format!("{lines} lines; its exception ends at {allowed}"),
                );
            }
            None if lines > LINES_MAX => {
                let message = format!(
                    "{lines} lines, over {LINES_MAX}: split by owner of data, or give a reason in {LARGE_FILES}"
                );
                report.finding(&file.path, 0, "size", message);
            }
            None if lines > LINES_NOTE => {
                report.note(format!(
                    "{}: {lines} lines, over {LINES_NOTE}; is it still one room?",
                    file.path
                ));
            }
            None => {}
        }
    }
    for (path, (line, _)) in exceptions {
        report.finding(LARGE_FILES, line, "size", format!("{path} does not exist"));
    }
}

/// Lines of [`LARGE_FILES`] by path: the line's number and the lines allowed.
fn exceptions<'a>(tree: &'a Tree, report: &mut Report) -> BTreeMap<&'a str, (usize, usize)> {
    let mut found = BTreeMap::new();
    let text = tree.files.get(LARGE_FILES).map_or("", |file| &file.text);
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let mut words = line.splitn(3, ' ');
        let path = words.next().unwrap_or_default();
        let allowed = words.next().and_then(|count| count.parse().ok());
        match (allowed, words.next()) {
            (Some(allowed), Some(_reason)) => {
                found.insert(path, (index + 1, allowed));
            }
            _ => report.finding(
                LARGE_FILES,
                index + 1,
                "size",
                "is not `path lines-at-most reason`",
            ),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::broken;
    use super::*;
    use std::path::Path;

    fn findings(path: &str, text: &str) -> Vec<&'static str> {
        broken(check, path, text)
    }

    #[test]
    fn the_head_comment_comes_first() {
        assert_eq!(
            findings("crates/log/src/a.rs", "use x;\n//! late\n"),
            ["head"]
        );
        assert!(findings("crates/log/src/a.rs", "\n//! what it is\n").is_empty());
    }

    #[test]
    fn selects_are_biased() {
        let text = "//! a\nfn f() { tokio::select! {\n biased;\n a = b => {} }; select! { a = b => {} } }\n";
        assert_eq!(findings("crates/log/src/a.rs", text), ["select"]);
    }

    #[test]
    fn the_operating_system_has_one_door() {
        let text = "//! a\nuse std::time::{Duration, Instant};\nuse std::net::SocketAddr;\nuse std::time::Duration;\nuse std::thread;\nfn f() { std::fs::read(p) }\n";
        assert_eq!(
            findings("crates/log/src/a.rs", text),
            ["door", "door", "door"]
        );
        assert!(findings("crates/env_os/src/a.rs", text).is_empty());
    }

    #[test]
    fn tests_use_threads_but_no_clock() {
        let text =
            "//! a\n#[cfg(test)]\nmod tests {\nuse std::thread;\nfn f() { Instant::now(); }\n}\n";
        assert_eq!(findings("crates/log/src/a.rs", text), ["door"]);
    }

    #[test]
    fn unwrap_is_for_tests() {
        let text = "//! a\nfn f() { a.unwrap(); b.unwrap_or(1); /* c.unwrap() */ }\n#[cfg(test)]\nmod tests { fn g() { a.unwrap(); } }\n";
        assert_eq!(findings("crates/log/src/a.rs", text), ["unwrap"]);
    }

    // shows: TIDY-2
    #[test]
    fn long_files_need_a_reason() {
        let text = format!("//! a\n{}", "\n".repeat(LINES_MAX));
        assert_eq!(findings("crates/log/src/a.rs", &text), ["size"]);
        let sources = BTreeMap::from([
            ("crates/log/src/a.rs".to_owned(), text),
            (
                LARGE_FILES.to_owned(),
                "# why\ncrates/log/src/a.rs 1000 one table\ncrates/log/src/gone.rs 1000 it was\n"
                    .to_owned(),
            ),
        ]);
        let mut report = Report::default();
        check(
            &Tree::from_sources(Path::new("/nowhere"), sources),
            &mut report,
        );
        assert_eq!(report.findings.len(), 1);
        assert!(report.findings[0].message.contains("gone.rs"));
    }
}
