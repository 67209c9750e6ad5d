//! `cargo xtask measure-engine`: every experiment of the storage engine, in some two hours and a
//! half on two processors. The numbers in `docs/measurements/` are written over those of the last
//! time.
//!
//! Each experiment owns its rows (`NAME.csv`), its picture (`NAME.svg`) and its block in the page
//! of its subject. The block, between `<!-- measured: NAME -->` and the end mark, has command,
//! commit, day and machine. The rest of a page is written by hand, from the tables that a run
//! leaves in the build folder (`measured/NAME.md`).
//!
//! The machine should be quiet. An experiment that fails is told of and left out; the others go on.
//! They leave out themselves the peers that are missing (`cargo xtask setup --peers`).

use crate::cargo::{self, Metadata};
use crate::process::{now, succeeds};
use anyhow::{Context, Result, bail};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An experiment: the page it belongs to, the name of its files, and the arguments of `pluvio`.
struct Experiment {
    page: &'static str,
    name: &'static str,
    arguments: &'static str,
    /// A file that it works on, seen from the repository: no public one. Where it is missing the
    /// experiment is left out.
    file: Option<&'static str>,
}

impl Experiment {
    const fn new(page: &'static str, name: &'static str, arguments: &'static str) -> Self {
        Self {
            page,
            name,
            arguments,
            file: None,
        }
    }

    /// As a reader would give the command.
    fn line(&self) -> String {
        let file = self.file.and_then(|file| file.rsplit('/').next());
        let words = [Some("pluvio"), Some(self.arguments), file];
        words.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }
}

/// Rounds are so short that all of them take some two hours and a half. The simulated cleaner is
/// not among them: its page does not depend on the machine.
const EXPERIMENTS: [Experiment; 22] = [
    Experiment::new("store", "store", "bench store --seconds 0.5 --rounds 5"),
    Experiment::new(
        "store",
        "store-zipfian",
        "bench store --distribution zipfian --threads 2 --get-percent 95,50 --batch 1 --seconds 0.25 --rounds 3",
    ),
    Experiment::new(
        "store",
        "store-utilization",
        "bench store --utilization 50,70,80,90 --get-percent 50,0 --threads 2 --batch 1 --peer dashmap@mimalloc,slab-lru --seconds 0.5 --rounds 3",
    ),
    Experiment::new(
        "cleaner",
        "cleaner",
        "bench cleaner --utilization 30,80,90,98 --distribution uniform,hot-cold,zipfian --seconds 0.5 --rounds 2",
    ),
    Experiment::new(
        "cleaner",
        "cleaner-ample",
        "bench cleaner --utilization 30,80,90 --value-size 100,1000,10000 --distribution uniform --disk-bandwidth unlimited --seconds 0.5 --rounds 3",
    ),
    Experiment::new(
        "cleaner",
        "cleaner-ample-two",
        "bench cleaner --cleaner-threads 2 --utilization 30,80,90 --value-size 100,1000,10000 --distribution uniform --disk-bandwidth unlimited --seconds 0.5 --rounds 3",
    ),
    Experiment::new(
        "tombstones",
        "tombstones",
        "bench cleaner --utilization 80,90 --value-size 100 --distribution uniform --level two,one --tombstones deletes,every --disk-bandwidth unlimited --seconds 0.5 --rounds 3",
    ),
    Experiment::new(
        "cleaner-disk",
        "cleaner-disk",
        "bench cleaner --utilization 50,80,90 --distribution uniform --level two,one --disk-bandwidth 233 --seconds 0.5 --rounds 2",
    ),
    Experiment::new(
        "latency",
        "latency",
        "bench latency-cdf --seconds 1 --rounds 5",
    ),
    Experiment::new(
        "latency",
        "latency-pauses",
        "bench latency-cdf --utilization 90 --get-percent 50 --seconds 600 --rounds 1 --cleaner-only",
    ),
    Experiment::new(
        "latency",
        "latency-updates",
        "bench latency-cdf --update append,in-place --insert --value-size 64,1024 --memory 1GiB --utilization 20 --cleaner-only --seconds 1 --rounds 5",
    ),
    Experiment::new(
        "fragmentation",
        "fragmentation",
        "bench fragmentation --performance --peer glibc,jemalloc,tcmalloc,mimalloc,redis,memcached",
    ),
    Experiment::new(
        "fragmentation",
        "fragmentation-large",
        "bench fragmentation --live 512MiB --workload W7,P2,P3,P4,P5,P6 --peer none",
    ),
    Experiment::new(
        "store",
        "store-breakdown",
        "bench breakdown --get-percent 100,0 --seconds 0.25 --rounds 3",
    ),
    Experiment::new(
        "store",
        "store-segment",
        "bench breakdown --part segment --segment 2.5MiB,3MiB,4MiB,6MiB,8MiB --value-size 64,500,1000 --utilization 80 --get-percent 50 --seconds 0.5 --rounds 3",
    ),
    Experiment::new("store", "copy", "bench copy --seconds 0.2 --rounds 8"),
    Experiment::new(
        "traces",
        "traces-postmark",
        "bench postmark --populate --rounds 3",
    ),
    Experiment::new(
        "traces",
        "traces-sweep",
        "bench postmark --populate --threads 1,2 --utilization 17,40,65,80 --peer slab-lru --rounds 3",
    ),
    Experiment::new(
        "traces",
        "traces-twitter-14",
        "bench trace --populate --profile twitter:14 --keys 100000 --operations 1000000 --rounds 3",
    ),
    Experiment::new(
        "traces",
        "traces-twitter-15",
        "bench trace --populate --profile twitter:15 --keys 100000 --operations 5000000 --rounds 3",
    ),
    Experiment::new(
        "traces",
        "traces-twitter-37",
        "bench trace --populate --profile twitter:37 --keys 20000 --operations 500000 --rounds 3",
    ),
    Experiment {
        file: Some("../shared/data/cloudPhysicsIO.csv"),
        ..Experiment::new(
            "traces",
            "traces-blocks",
            "bench trace --populate --repeat 3 --rounds 3",
        )
    },
];

/// The end of an experiment's block in a page.
const END: &str = "<!-- /measured -->";

/// What was asked for.
struct Asked {
    /// Names of experiments; none means all.
    only: Vec<String>,
    folder: PathBuf,
    /// Where whole tables go.
    tables: PathBuf,
    /// A program that is built already.
    binary: Option<PathBuf>,
}

/// Runs the experiments; gives whether all succeeded.
///
/// # Errors
/// The flags are wrong, the binary cannot be built, or a file cannot be written.
pub fn run(root: &Path, flags: &[&str]) -> Result<bool> {
    let mut asked = asked(root, flags)?;
    asked.tables = Metadata::load(root)?.target.join("measured");
    let binary = match &asked.binary {
        Some(binary) => binary.clone(),
        None => build(root)?,
    };
    std::fs::create_dir_all(&asked.folder)?;
    std::fs::create_dir_all(&asked.tables)?;
    let failed = measure(root, &asked, &binary, &date()?, &commit(root)?)?;
    println!("pages: {}", asked.folder.display());
    println!("tables: {}", asked.tables.display());
    for name in &failed {
        println!("FAILED: {name}");
    }
    Ok(failed.is_empty())
}

/// Runs what was asked for; gives what failed.
fn measure(
    root: &Path,
    asked: &Asked,
    binary: &Path,
    date: &str,
    commit: &str,
) -> Result<Vec<&'static str>> {
    let mut failed = Vec::new();
    for experiment in EXPERIMENTS {
        if !asked.only.is_empty() && !asked.only.iter().any(|name| name == experiment.name) {
            continue;
        }
        let file = experiment.file.map(|file| root.join(file));
        if let Some(missing) = file.as_ref().filter(|file| !file.exists()) {
            println!(
                "{}: left out, for want of {}",
                experiment.name,
                missing.display()
            );
            continue;
        }
        let begin = now();
        println!("{}", experiment.line());
        let mut command = Command::new(binary);
        command.args(experiment.arguments.split_whitespace());
        command.args(file);
        if !conduct(command, asked, date, commit, &experiment)? {
            failed.push(experiment.name);
        }
        let took = begin.elapsed().as_secs_f64();
        println!("{}: {took:.0} s", experiment.name);
    }
    Ok(failed)
}

fn asked(root: &Path, mut flags: &[&str]) -> Result<Asked> {
    let mut asked = Asked {
        only: Vec::new(),
        folder: root.join("docs/measurements"),
        tables: std::env::temp_dir(),
        binary: None,
    };
    while let [flag, rest @ ..] = flags {
        let [value, rest @ ..] = rest else {
            bail!("{flag} needs a value");
        };
        match *flag {
            "--only" => {
                asked.only = super::names(
                    value,
                    "experiment",
                    EXPERIMENTS.iter().map(|known| known.name),
                )?
            }
            "--folder" => asked.folder = PathBuf::from(value),
            "--binary" => asked.binary = Some(PathBuf::from(value)),
            _ => bail!("no flag {flag}; give --only NAMES, --folder FOLDER or --binary FILE"),
        }
        flags = rest;
    }
    Ok(asked)
}

fn build(root: &Path) -> Result<PathBuf> {
    let mut build = cargo::command();
    build
        .current_dir(root)
        .args(["build", "--release", "--locked"]);
    build.args(["--package", "pluvio", "--package", "pluvio-lab"]);
    build.args(["--features", "pluvio-lab/peers"]);
    if !succeeds(&mut build) {
        bail!("the binaries could not be built");
    }
    Ok(Metadata::load(root)?.target.join("release/pluvio-lab"))
}

/// Runs an experiment and writes its files; gives whether it succeeded.
fn conduct(
    mut command: Command,
    asked: &Asked,
    date: &str,
    commit: &str,
    experiment: &Experiment,
) -> Result<bool> {
    let Experiment { page, name, .. } = experiment;
    let table = asked.tables.join(format!("{name}.md"));
    command
        .arg("--csv")
        .arg(asked.folder.join(format!("{name}.csv")));
    command
        .arg("--plot")
        .arg(asked.folder.join(format!("{name}.svg")));
    command.arg("--markdown").arg(&table);
    // The table on standard output is the one in the file.
    command.stdout(std::process::Stdio::null());
    if !succeeds(&mut command) {
        return Ok(false);
    }
    let text = std::fs::read_to_string(&table).context("an experiment wrote no table")?;
    let line = experiment.line();
    let said = format!(
        "`{line}` at {commit}, {date} ([rows]({name}.csv)): {}",
        machine(&text)
    );
    let block = format!("{}\n![{name}]({name}.svg)\n", wrapped(&said));
    let path = asked.folder.join(format!("{page}.md"));
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => format!("# {page}\n"),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", path.display()));
        }
    };
    let text = with_block(&text, name, &block)
        .with_context(|| format!("the block of {name} in {} has no end", path.display()))?;
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(true)
}

/// Words in lines of at most 100 columns.
fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut length = 0;
    for word in text.split_whitespace() {
        if length > 0 && length + 1 + word.len() > 100 {
            lines.push('\n');
            length = 0;
        } else if length > 0 {
            lines.push(' ');
            length += 1;
        }
        lines.push_str(word);
        length += word.len();
    }
    lines
}

/// The machine that a table names: what its first paragraph says behind the parameters.
fn machine(table: &str) -> &str {
    let first = table.split("\n\n").nth(1).unwrap_or_default().trim();
    first.split_once(". ").map_or(first, |(_, machine)| machine)
}

/// A page with the block of an experiment replaced, or appended where there is none; nothing where
/// the block has no end.
fn with_block(page: &str, name: &str, block: &str) -> Option<String> {
    let begin = format!("<!-- measured: {name} -->\n");
    let Some((before, rest)) = page.split_once(&begin) else {
        return Some(format!("{page}\n{begin}{block}{END}\n"));
    };
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{begin}{block}{END}{after}"))
}

/// The commit that is checked out, and whether files differ from it.
fn commit(root: &Path) -> Result<String> {
    let mut command = Command::new("git");
    command.current_dir(root);
    command.args([
        "describe",
        "--always",
        "--dirty",
        "--abbrev=7",
        "--exclude=*",
    ]);
    let output = command.output().context("cannot run git")?;
    if !output.status.success() {
        bail!(
            "git does not know the commit: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Today.
fn date() -> Result<String> {
    let output = Command::new("date").arg("+%F").output();
    let output = output.context("cannot run date")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_and_unknown_ones_refused() {
        let root = Path::new("root");
        let all = asked(root, &[]).expect("no flags");
        assert!(all.only.is_empty() && all.folder.ends_with("docs/measurements"));
        let some = asked(root, &["--only", "store,cleaner", "--folder", "f"]).expect("known names");
        assert_eq!(some.only, ["store", "cleaner"]);
        assert_eq!(some.folder, Path::new("f"));
        for wrong in [&["--only", "shop"][..], &["--only"], &["--fast", "1"]] {
            assert!(asked(root, wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn pages_show_commands_without_places_of_this_machine() {
        let blocks = EXPERIMENTS.iter().find(|one| one.file.is_some());
        let line = blocks.expect("one has a file").line();
        assert_eq!(
            line,
            "pluvio bench trace --populate --repeat 3 --rounds 3 cloudPhysicsIO.csv"
        );
        assert_eq!(
            EXPERIMENTS[0].line(),
            "pluvio bench store --seconds 0.5 --rounds 5"
        );
    }

    #[test]
    fn an_experiment_without_its_file_is_left_out_and_not_failed() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("tree");
        std::fs::create_dir(&root).expect("a folder in it");
        let (date, commit) = ("a day", "a commit");
        let asked = Asked {
            only: vec!["traces-blocks".into()],
            folder: folder.path().join("pages"),
            tables: folder.path().join("tables"),
            binary: None,
        };
        // A program that fails whatever it is given.
        let run = || measure(&root, &asked, Path::new("false"), date, commit).expect("it runs");
        assert!(run().is_empty());
        let file = folder.path().join("shared/data/cloudPhysicsIO.csv");
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        std::fs::write(&file, "time,operation,key,size\n").expect("a file");
        std::fs::create_dir_all(folder.path().join("pages")).expect("a folder");
        assert_eq!(run(), ["traces-blocks"]);
    }

    #[test]
    fn a_block_is_replaced_and_what_is_written_by_hand_stays() {
        let page =
            "# store\n\nBy hand.\n\n<!-- measured: store -->\nold\n<!-- /measured -->\n\nToo.\n";
        let new = with_block(page, "store", "new\n").expect("it has an end");
        assert_eq!(new, page.replace("old", "new"));
        let more = with_block(&new, "store-zipfian", "other\n").expect("it is appended");
        assert_eq!(
            more,
            format!("{new}\n<!-- measured: store-zipfian -->\nother\n<!-- /measured -->\n")
        );
        assert!(with_block("<!-- measured: store -->\nold\n", "store", "new\n").is_none());
    }

    #[test]
    fn the_machine_is_told_without_the_parameters() {
        let table = "# store\n\nobjects 2, seconds 0.5, seed 1. Some CPU, 2 processors, Linux 6.\n\n| a |\n";
        assert_eq!(machine(table), "Some CPU, 2 processors, Linux 6.");
        let long = wrapped(&"word ".repeat(30));
        assert!(long.lines().count() == 2 && long.lines().all(|line| line.len() <= 100));
    }

    /// Before its first run an experiment has only its line above.
    #[test]
    fn each_experiment_has_its_files_and_its_block_in_the_page_together() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/measurements");
        for Experiment { page, name, .. } in EXPERIMENTS {
            let text = std::fs::read_to_string(folder.join(format!("{page}.md"))).expect(page);
            let has_block = text.contains(&format!("<!-- measured: {name} -->\n"));
            for end in ["csv", "svg"] {
                let file = format!("{name}.{end}");
                let named = text.contains(&format!("({file})"));
                assert_eq!(named, has_block, "{file} in {page}");
                assert_eq!(folder.join(&file).exists(), has_block, "{file}");
            }
        }
    }

    #[test]
    fn names_of_files_differ() {
        let mut names: Vec<&str> = EXPERIMENTS.iter().map(|one| one.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), EXPERIMENTS.len());
    }
}
