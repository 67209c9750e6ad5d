//! The commands that the README, the guide and the page on spaces tell a new user to type, typed.

use crate::support::Setup;
use crate::support::cluster::Cluster;
use crate::support::program::{binary, pluvio, run};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The documents whose commands are run, in the order a reader meets them.
const DOCUMENTS: [&str; 2] = ["README.md", "docs/guide.md"];
/// Commands that run for long: these are only asked whether they would.
const LONG_RUNNING: [&str; 6] = ["dev", "demo", "server", "coordinator", "bench", "sim"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The lines of all `sh` blocks, with the place of each; continued lines are joined.
fn lines(document: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(root().join(document)).expect(document);
    let (mut inside, mut joined, mut found) = (false, String::new(), Vec::new());
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(language) = line.strip_prefix("```") {
            inside = !inside && language == "sh";
            continue;
        }
        if !inside || line.is_empty() || line.starts_with('#') {
            continue;
        }
        match line.strip_suffix('\\') {
            Some(part) => joined.push_str(part),
            None => {
                let whole = std::mem::take(&mut joined) + line;
                found.push((format!("{document}:{}", number + 1), whole));
            }
        }
    }
    found
}

/// The line as it is run here; `None` when it is none of ours.
fn adapted(line: &str, cluster: &Cluster) -> Option<String> {
    let line = line.strip_prefix("$ ").unwrap_or(line);
    let mut line = line
        .replace("./target/release/pluvio", "pluvio")
        .replace("cargo run --release -- ", "pluvio ");
    let ours = ["pluvio ", "redis-cli "];
    if !ours.iter().any(|name| line.starts_with(name)) && !line.contains("| pluvio ") {
        return None;
    }
    for (server, port) in (6379..6383).enumerate() {
        let real = cluster.redis(server);
        let (_, real) = real.rsplit_once(':').unwrap();
        line = line.replace(&format!("-p {port}"), &format!("-p {real}"));
        line = line.replace(&format!("127.0.0.1:{port}"), &format!("127.0.0.1:{real}"));
    }
    if line.starts_with("redis-cli ") && !line.contains("-p ") {
        let real = cluster.redis(0);
        let (_, real) = real.rsplit_once(':').unwrap();
        line = line.replacen("redis-cli ", &format!("redis-cli -p {real} "), 1);
    }
    line = line.replace("127.0.0.1:7700", cluster.coordinator());
    let subcommand = line.split_whitespace().nth(1).unwrap_or_default();
    if line.starts_with("pluvio ") && LONG_RUNNING.contains(&subcommand) {
        let end = line.find(['#', '&', '|', '>']).unwrap_or(line.len());
        line.truncate(end);
        line = line.replace("--print-config", "") + " --print-config";
    }
    Some(line)
}

/// Files that the documents speak of.
fn prepare(folder: &Path) {
    fs::create_dir_all(folder.join("bin")).unwrap();
    std::os::unix::fs::symlink(binary(), folder.join("bin/pluvio")).unwrap();
    for (name, text) in [
        ("cities.csv", "city,country\nBern,CH\nRoma,IT\n"),
        (
            "cities.jsonl",
            "{\"city\":\"Bern\",\"id\":1}\n{\"city\":\"Roma\",\"id\":2}\n",
        ),
        ("words.txt", "one\ntwo\n"),
        ("picture.png", "not really a picture"),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
}

/// The words of `pluvio space`, as its help lists them.
fn words_of_space() -> Vec<String> {
    let help = pluvio(["space", "--help"]).ok().text();
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    let words = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let words = words.filter(|word| !word.is_empty() && *word != "help");
    words.map(str::to_owned).collect()
}

/// They need no cluster.
#[test]
fn every_command_of_the_page_on_spaces_works_and_none_is_missing() {
    let place = tempfile::tempdir().unwrap();
    prepare(place.path());
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}/bin:{path}", place.path().display());
    let mut typed = BTreeSet::new();
    for (at, line) in lines("docs/spacejmp.md") {
        let Some(words) = line.strip_prefix("pluvio space ") else {
            continue;
        };
        typed.extend(words.split(' ').next().map(str::to_owned));
        let mut shell = Command::new("sh");
        shell.args(["-c", &line]).env("PATH", &path);
        shell.env("PLUVIO_SPACES", place.path().join("spaces"));
        let output = run(&mut shell, b"");
        assert_eq!(output.code, Some(0), "{at}: {line}\n{}", output.stderr);
    }
    let known: BTreeSet<String> = words_of_space().into_iter().collect();
    assert!(known.len() > 5, "{known:?}");
    assert_eq!(typed, known);
}

mod needs_redis_cli {
    use super::*;

    #[test]
    fn every_command_of_the_readme_and_the_guide_works() {
        let cluster = Setup::servers(4).start();
        let folder = cluster.directory().join("reader");
        prepare(&folder);
        let path = format!(
            "{}/bin:{}",
            folder.display(),
            std::env::var("PATH").unwrap()
        );
        let mut count = 0;
        let mut failures = Vec::new();
        for document in DOCUMENTS {
            for (place, line) in lines(document) {
                let Some(adapted) = adapted(&line, &cluster) else {
                    continue;
                };
                let mut shell = Command::new("sh");
                shell
                    .args(["-c", &adapted])
                    .current_dir(&folder)
                    .env("PATH", &path)
                    .env("PLUVIO_COORDINATOR", cluster.coordinator());
                let output = run(&mut shell, b"");
                count += 1;
                let said = output.text();
                // redis-cli succeeds when the server refuses.
                let refused = ["ERR ", "(error)"]
                    .iter()
                    .any(|word| said.starts_with(word));
                if output.code != Some(0) || refused {
                    failures.push(format!(
                        "{place}: {line}\n  {adapted}\n  {said}{}",
                        output.stderr
                    ));
                }
            }
        }
        assert!(failures.is_empty(), "{}", failures.join("\n"));
        assert!(count >= 8, "only {count} commands were found");
    }
}
