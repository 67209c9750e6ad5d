//! `cargo xtask measure-engine`: every experiment of the storage engine at a scale that takes some
//! two hours on two processors. Each leaves a picture, its rows and a page with its tables in
//! `docs/measurements/`. A person writes in `DATE-engine.md` what they mean; this leaves it alone.
//!
//! The machine should be quiet. An experiment that fails is told of and left out; the others go on.
//! They leave out themselves the peers that are missing (`cargo xtask setup --peers`).

use crate::cargo::{Metadata, program};
use crate::process::{now, succeeds};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An experiment: the name of its files, and the arguments of `pluvio`.
struct Experiment {
    name: &'static str,
    arguments: &'static str,
    /// A file that it works on, seen from the repository: no public one. Where it is missing the
    /// experiment is left out.
    file: Option<&'static str>,
}

impl Experiment {
    const fn new(name: &'static str, arguments: &'static str) -> Self {
        Self {
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

/// Rounds are so short that all of them take some two hours. The simulated cleaner is not among
/// them: its page does not depend on the machine.
const EXPERIMENTS: [Experiment; 18] = [
    Experiment::new("store", "bench store --seconds 0.5 --rounds 5"),
    Experiment::new(
        "store-zipfian",
        "bench store --distribution zipfian --threads 2 --get-percent 95,50 --batch 1 --seconds 0.25 --rounds 3",
    ),
    Experiment::new(
        "store-utilization",
        "bench store --utilization 50,70,80,90 --get-percent 50,0 --threads 2 --batch 1 --peer dashmap@mimalloc,slab-lru --seconds 0.5 --rounds 3",
    ),
    Experiment::new(
        "cleaner",
        "bench cleaner --utilization 30,80,90,98 --distribution uniform,hot-cold,zipfian --seconds 0.5 --rounds 2",
    ),
    Experiment::new(
        "cleaner-ample",
        "bench cleaner --utilization 30,80,90 --value-size 100,1000,10000 --distribution uniform --disk-bandwidth unlimited --seconds 0.5 --rounds 3",
    ),
    Experiment::new(
        "cleaner-ample-two",
        "bench cleaner --cleaner-threads 2 --utilization 30,80,90 --value-size 100,1000,10000 --distribution uniform --disk-bandwidth unlimited --seconds 0.5 --rounds 3",
    ),
    Experiment::new(
        "tombstones",
        "bench cleaner --utilization 80,90 --value-size 100 --distribution uniform --level two,one --tombstones deletes,every --disk-bandwidth unlimited --seconds 0.5 --rounds 3",
    ),
    Experiment::new(
        "cleaner-disk",
        "bench cleaner --utilization 50,80,90 --distribution uniform --level two,one --disk-bandwidth 233 --seconds 0.5 --rounds 2",
    ),
    Experiment::new("latency-cdf", "bench latency-cdf --seconds 1 --rounds 5"),
    Experiment::new(
        "pauses",
        "bench latency-cdf --utilization 90 --get-percent 50 --seconds 600 --rounds 1 --cleaner-only",
    ),
    Experiment::new(
        "fragmentation",
        "bench fragmentation --performance --peer glibc,jemalloc,tcmalloc,mimalloc,redis,memcached",
    ),
    Experiment::new(
        "fragmentation-large",
        "bench fragmentation --live 512MiB --workload W7,P2,P3,P4,P5,P6 --peer none",
    ),
    Experiment::new(
        "breakdown",
        "bench breakdown --get-percent 100,0 --seconds 0.25 --rounds 3",
    ),
    Experiment::new("postmark", "bench postmark --rounds 3"),
    Experiment::new(
        "trace-twitter",
        "bench trace --profile twitter:14 --keys 100000 --operations 500000 --rounds 3",
    ),
    Experiment::new(
        "trace-twitter-15",
        "bench trace --profile twitter:15 --keys 100000 --operations 500000 --rounds 3",
    ),
    Experiment::new(
        "trace-twitter-37",
        "bench trace --profile twitter:37 --keys 20000 --operations 50000 --rounds 1",
    ),
    Experiment {
        file: Some("../shared/data/cloudPhysicsIO.csv"),
        ..Experiment::new("trace-blocks", "bench trace --repeat 3 --rounds 1")
    },
];

/// What was asked for.
struct Asked {
    /// Names of experiments; none means all.
    only: Vec<String>,
    folder: PathBuf,
    /// A program that is built already.
    binary: Option<PathBuf>,
}

/// Runs the experiments; gives whether all succeeded.
///
/// # Errors
/// The flags are wrong, the binary cannot be built, or a file cannot be written.
pub fn run(root: &Path, flags: &[&str]) -> Result<bool> {
    let asked = asked(root, flags)?;
    let binary = match &asked.binary {
        Some(binary) => binary.clone(),
        None => build(root)?,
    };
    std::fs::create_dir_all(&asked.folder)?;
    let failed = measure(root, &asked, &binary, &date()?, &commit(root)?)?;
    println!("pages: {}", asked.folder.display());
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
        if !conduct(command, &asked.folder, date, commit, &experiment)? {
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
        binary: None,
    };
    while let [flag, rest @ ..] = flags {
        let [value, rest @ ..] = rest else {
            bail!("{flag} needs a value");
        };
        match *flag {
            "--only" => asked.only = names(value)?,
            "--folder" => asked.folder = PathBuf::from(value),
            "--binary" => asked.binary = Some(PathBuf::from(value)),
            _ => bail!("no flag {flag}; give --only NAMES, --folder FOLDER or --binary FILE"),
        }
        flags = rest;
    }
    Ok(asked)
}

/// Names with commas, each one of an experiment.
fn names(list: &str) -> Result<Vec<String>> {
    let names: Vec<String> = list.split(',').map(str::to_owned).collect();
    for name in &names {
        if !EXPERIMENTS.iter().any(|known| known.name == name) {
            let known: Vec<&str> = EXPERIMENTS.iter().map(|known| known.name).collect();
            bail!("no experiment {name}; give {}", known.join(", "));
        }
    }
    Ok(names)
}

fn build(root: &Path) -> Result<PathBuf> {
    let mut build = Command::new(program());
    build
        .current_dir(root)
        .args(["build", "--release", "--locked"]);
    build.args(["--package", "pluvio", "--features", "peers"]);
    if !succeeds(&mut build) {
        bail!("the binary could not be built");
    }
    Ok(Metadata::load(root)?.target.join("release/pluvio"))
}

/// Runs an experiment and writes its files; gives whether it succeeded.
fn conduct(
    mut command: Command,
    folder: &Path,
    date: &str,
    commit: &str,
    experiment: &Experiment,
) -> Result<bool> {
    let name = experiment.name;
    let file = |end: &str| format!("{date}-engine-{name}.{end}");
    let table = std::env::temp_dir().join(format!("{}-{}", std::process::id(), file("md")));
    command.arg("--csv").arg(folder.join(file("csv")));
    command.arg("--plot").arg(folder.join(file("svg")));
    command.arg("--markdown").arg(&table);
    // The table on standard output is the one on the page.
    command.stdout(std::process::Stdio::null());
    if !succeeds(&mut command) {
        return Ok(false);
    }
    let text = std::fs::read_to_string(&table).context("an experiment wrote no table")?;
    std::fs::remove_file(&table).context("cannot remove a file of our own")?;
    let body = text.split_once('\n').map_or("", |(_, body)| body);
    let page = format!(
        "# Engine: {name}, {date}\n\n\
         Written by `cargo xtask measure-engine --only {name}` at commit {commit}. What it means: [the engine measured]({date}-engine.md);\n\
         what the columns are: [benchmarks](../benchmarks.md). A cell with three numbers is the median of the rounds, with the least and the most.\n\n\
         `{}`; all rows: [csv]({})\n\n![{name}]({})\n{body}",
        experiment.line(),
        file("csv"),
        file("svg"),
    );
    let path = folder.join(file("md"));
    std::fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(true)
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
            "pluvio bench trace --repeat 3 --rounds 1 cloudPhysicsIO.csv"
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
            only: vec!["trace-blocks".into()],
            folder: folder.path().join("pages"),
            binary: None,
        };
        // A program that fails whatever it is given.
        let run = || measure(&root, &asked, Path::new("false"), date, commit).expect("it runs");
        assert!(run().is_empty());
        let file = folder.path().join("shared/data/cloudPhysicsIO.csv");
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        std::fs::write(&file, "time,operation,key,size\n").expect("a file");
        std::fs::create_dir_all(folder.path().join("pages")).expect("a folder");
        assert_eq!(run(), ["trace-blocks"]);
    }

    #[test]
    fn names_of_files_differ() {
        let mut names: Vec<&str> = EXPERIMENTS.iter().map(|one| one.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), EXPERIMENTS.len());
    }
}
