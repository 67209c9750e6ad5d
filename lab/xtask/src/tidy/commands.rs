//! Commands in documents exist. Of the fenced `sh` blocks in README.md, CONTRIBUTING.md and docs/,
//! every `cargo` and `pluvio` command is compared with those that the programs know.
//!
//! For `pluvio` the built binary is asked (`--help` of each subcommand: exit code, subcommands and
//! flags), which needs `pluvio-lab` beside it. Without them that is a note, not a finding: CI runs
//! this after the tests built one.

use super::Report;
use super::tree::Tree;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Cargo's own subcommands that documents may use. `deny` is optional and said to be so.
const CARGO: [&str; 10] = [
    "bench", "build", "check", "clippy", "deny", "doc", "fmt", "install", "run", "test",
];

/// A command line in a document.
#[derive(PartialEq, Eq, Debug)]
struct Line {
    path: String,
    line: usize,
    words: Vec<String>,
}

/// Looks at all commands.
pub fn check(tree: &Tree, target: &Path, report: &mut Report) {
    let binary = newest_binary(target);
    let mut program = binary.map(Program::new);
    let mut unasked = 0;
    for command in commands(tree) {
        let problem = match command.words[0].as_str() {
            "cargo" => cargo_problem(&command.words),
            _ => None,
        };
        if let Some(problem) = problem {
            report.finding(&command.path, command.line, "commands", problem);
        }
        let Some(words) = pluvio_words(&command.words) else {
            continue;
        };
        match &mut program {
            None => unasked += 1,
            Some(program) => {
                if let Some(problem) = program.problem(words) {
                    report.finding(&command.path, command.line, "commands", problem);
                }
            }
        }
    }
    if unasked > 0 {
        report.note(format!(
            "{unasked} pluvio commands in documents were not compared: no binary is built"
        ));
    }
}

/// The commands of all fenced `sh` blocks.
fn commands(tree: &Tree) -> Vec<Line> {
    let mut found = Vec::new();
    for file in tree.markdown() {
        let dated =
            file.path.starts_with("docs/decisions/") || file.path.starts_with("docs/measurements/");
        let ours = ["README.md", "CONTRIBUTING.md"].contains(&file.path.as_str())
            || file.path.starts_with("docs/");
        if !ours || dated {
            continue;
        }
        let (mut inside, mut joined, mut start) = (false, String::new(), 0);
        for (index, line) in file.text.lines().enumerate() {
            let line = line.trim();
            if let Some(language) = line.strip_prefix("```") {
                inside = !inside && ["sh", "bash", "console"].contains(&language.trim());
                continue;
            }
            if !inside || line.starts_with('#') {
                continue;
            }
            if joined.is_empty() {
                start = index + 1;
            }
            match line.strip_suffix('\\') {
                Some(part) => joined.push_str(part),
                None => {
                    joined.push_str(line);
                    found.extend(split(&joined).into_iter().map(|words| Line {
                        path: file.path.clone(),
                        line: start,
                        words,
                    }));
                    joined.clear();
                }
            }
        }
    }
    found
}

/// The `cargo` and `pluvio` commands of a shell line, each as words; comments, prompts, pipes and
/// variables in front fall away. Quoted text counts as one word.
fn split(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word = String::new();
    let mut quote = None;
    for c in line.chars().chain([' ']) {
        match (quote, c) {
            (Some(q), _) if c == q => quote = None,
            (Some(_), _) => word.push(c),
            (None, '\'' | '"') => quote = Some(c),
            (None, '#') if word.is_empty() => break,
            (None, ' ' | '|' | ';' | '&') => {
                if !word.is_empty() {
                    commands
                        .last_mut()
                        .expect("never empty")
                        .push(std::mem::take(&mut word));
                }
                if c != ' ' {
                    commands.push(Vec::new());
                }
            }
            (None, _) => word.push(c),
        }
    }
    if !word.is_empty() {
        commands.last_mut().expect("never empty").push(word);
    }
    commands
        .into_iter()
        .filter_map(|words| {
            let start = words.iter().position(|w| {
                let prefix = w == "$"
                    || w == "sudo"
                    || w == "time"
                    || (w.contains('=') && !w.starts_with('-'));
                !prefix
            })?;
            let mut words = words[start..].to_vec();
            if words[0].ends_with("/pluvio") {
                words[0] = "pluvio".to_owned();
            }
            ["cargo", "pluvio"]
                .contains(&words[0].as_str())
                .then_some(words)
        })
        .collect()
}

fn cargo_problem(words: &[String]) -> Option<String> {
    let name = words
        .iter()
        .skip(1)
        .find(|word| !word.starts_with('+') && !word.starts_with('-'))?;
    if name == "xtask" {
        let at = words.iter().position(|word| word == "xtask")?;
        return match words.get(at + 1) {
            Some(task) if crate::TASKS.iter().any(|(known, _)| known == task) => None,
            Some(task) => Some(format!("there is no `cargo xtask {task}`")),
            None => Some("`cargo xtask` needs a task".to_owned()),
        };
    }
    (!CARGO.contains(&name.as_str())).then(|| format!("`cargo {name}` is not a known command"))
}

/// The words after `pluvio`, or after `cargo run … --`.
fn pluvio_words(words: &[String]) -> Option<&[String]> {
    match words[0].as_str() {
        "pluvio" => Some(&words[1..]),
        "cargo" if words.get(1).is_some_and(|word| word == "run") => {
            let separator = words.iter().position(|word| word == "--")?;
            let other = words[..separator]
                .iter()
                .any(|word| word == "-p" || word == "--example");
            (!other).then(|| &words[separator + 1..])
        }
        _ => None,
    }
}

/// The binary that was built last, whichever the profile; with the other one beside it, which does
/// some of its commands.
fn newest_binary(target: &Path) -> Option<PathBuf> {
    ["test-fast", "release", "debug"]
        .iter()
        .map(|profile| target.join(profile))
        .filter(|folder| folder.join("pluvio-lab").exists())
        .map(|folder| folder.join("pluvio"))
        .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
        .max()
        .map(|(_, path)| path)
}

/// The built binary, asked once for each help page.
struct Program {
    binary: PathBuf,
    pages: BTreeMap<Vec<String>, Option<String>>,
}

impl Program {
    fn new(binary: PathBuf) -> Self {
        Self {
            binary,
            pages: BTreeMap::new(),
        }
    }

    /// The help page of a subcommand; `None` when the binary refuses.
    fn page(&mut self, subcommand: &[String]) -> Option<&str> {
        let binary = &self.binary;
        let page = self.pages.entry(subcommand.to_vec()).or_insert_with(|| {
            let output = Command::new(binary)
                .args(subcommand)
                .arg("--help")
                .output()
                .ok()?;
            output
                .status
                .success()
                .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
        });
        page.as_deref()
    }

    fn problem(&mut self, words: &[String]) -> Option<String> {
        let mut subcommand: Vec<String> = Vec::new();
        for word in words {
            let lists = self.page(&subcommand).map(subcommands).unwrap_or_default();
            if lists.is_empty() || word.starts_with('-') {
                break;
            }
            if !lists.contains(word) {
                subcommand.push(word.clone());
                return Some(format!("there is no `pluvio {}`", subcommand.join(" ")));
            }
            subcommand.push(word.clone());
        }
        let name = subcommand.join(" ");
        let Some(page) = self.page(&subcommand) else {
            return Some(format!("`pluvio {name} --help` fails"));
        };
        let known = flags(page);
        words
            .iter()
            .filter(|word| word.starts_with("--") && word.len() > 2)
            .map(|word| word.split('=').next().unwrap_or_default())
            .find(|flag| !known.iter().any(|k| k == flag))
            .map(|flag| format!("`pluvio {name}` knows no `{flag}`"))
    }
}

/// The names under `Commands:` of a help page.
fn subcommands(page: &str) -> Vec<String> {
    page.lines()
        .skip_while(|line| line.trim() != "Commands:")
        .skip(1)
        .take_while(|line| line.starts_with(' '))
        .filter(|line| line.starts_with("  ") && !line.starts_with("    "))
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

/// The long flags a help page names.
fn flags(page: &str) -> Vec<String> {
    let mut found: Vec<String> = page
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
        .filter(|word| word.starts_with("--") && word.len() > 2)
        .map(str::to_owned)
        .collect();
    found.push("--help".to_owned());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn shell_lines_are_cut_into_commands() {
        let found = split(
            "$ RUST_LOG=info cargo run --release -- demo | head & target/release/pluvio get t 'a b' # why | x",
        );
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].join(","), "cargo,run,--release,--,demo");
        assert_eq!(found[1].join(","), "pluvio,get,t,a b");
        assert!(split("redis-cli GET pluvio").is_empty());
    }

    #[test]
    fn cargo_commands_are_known() {
        assert_eq!(cargo_problem(&words("cargo fmt --all")), None);
        assert_eq!(cargo_problem(&words("cargo xtask test")), None);
        assert!(cargo_problem(&words("cargo xtask fly")).is_some());
        assert!(cargo_problem(&words("cargo fly")).is_some());
    }

    #[test]
    fn pluvio_runs_by_name_and_by_cargo() {
        let direct = words("pluvio table create t");
        assert_eq!(
            pluvio_words(&direct).expect("pluvio").join(" "),
            "table create t"
        );
        let by_cargo = words("cargo run --release -- demo --json");
        assert_eq!(
            pluvio_words(&by_cargo).expect("pluvio").join(" "),
            "demo --json"
        );
        assert!(pluvio_words(&words("cargo run -p xtask -- tidy")).is_none());
        assert!(pluvio_words(&words("cargo build --release")).is_none());
    }

    #[test]
    fn help_pages_say_what_exists() {
        let page = "Usage: pluvio <COMMAND>\n\nCommands:\n  table  Tables\n           and more\n  get    Reads\n\nOptions:\n      --json   JSON\n  -h, --help  Help\n";
        assert_eq!(subcommands(page), ["table", "get"]);
        let mut program = Program::new(PathBuf::from("/nowhere"));
        let table = "Commands:\n  create  Makes one\n";
        let create = "Usage: pluvio table create [OPTIONS] <NAME>\n      --servers <N>\n";
        program.pages.insert(Vec::new(), Some(page.to_owned()));
        program.pages.insert(words("table"), Some(table.to_owned()));
        program
            .pages
            .insert(words("table create"), Some(create.to_owned()));
        program.pages.insert(words("get"), None);
        assert_eq!(program.problem(&words("table create t --servers=2")), None);
        assert!(
            program
                .problem(&words("table create t --server 2"))
                .is_some()
        );
        assert!(program.problem(&words("table burn t")).is_some());
        assert!(program.problem(&words("get t")).is_some());
        assert_eq!(program.problem(&words("--json")), None);
    }
}
