//! `cargo xtask long-tests`: the tests of the storage engine that take random steps, with as many
//! steps as there is time for. `cargo xtask test` runs the same tests with some thousand steps.
//!
//! Every test that reads `PLUVIO_STEPS` is here. A file that fails does not keep the others from
//! running. The last lines are a table as `docs/measurements` has them. Not part of CI: a million
//! steps take some minutes on two processors.

use crate::cargo;
use crate::process::{now, succeeds};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// Steps of each test unless the flags say otherwise.
const STEPS_DEFAULT: u64 = 1_000_000;

/// A file of tests.
struct Long {
    package: &'static str,
    /// The test program.
    program: &'static str,
    /// The file, which is a module of the program or all of it.
    test: &'static str,
    what: &'static str,
    /// Of that many steps it does one: what a step costs differs.
    divided_by: u64,
}

/// What was seen of a file.
struct Ran {
    file: String,
    steps: u64,
    seconds: f64,
    held: bool,
}

impl Long {
    fn file(&self) -> String {
        let folder = self.package.trim_start_matches("pluvio-");
        let (program, test) = (self.program, self.test);
        match program == test {
            true => format!("crates/{folder}/tests/{test}.rs"),
            false => format!("crates/{folder}/tests/{program}/{test}.rs"),
        }
    }
}

/// What a step is: a change of an object, which a model follows, or an image of bytes.
const LONG: [Long; 7] = [
    Long {
        package: "pluvio-log",
        program: "log",
        test: "model",
        what: "a replicated log against a map, with power cuts and a memory that refuses",
        divided_by: 20,
    },
    Long {
        package: "pluvio-log",
        program: "log",
        test: "full_memory",
        what: "deletes and overwrites in a full memory, and in one that refuses",
        divided_by: 1,
    },
    Long {
        package: "pluvio-log",
        program: "log",
        test: "full_threads",
        what: "the same by several writers, with cleaners and replication in threads of their own",
        divided_by: 10,
    },
    Long {
        package: "pluvio-store",
        program: "store",
        test: "embedded_full",
        what: "the embedded store with its memory full, by one writer and by several, against maps, and what its sink has",
        divided_by: 4,
    },
    Long {
        package: "pluvio-store",
        program: "store",
        test: "embedded_model",
        what: "the embedded store against a map",
        divided_by: 1,
    },
    Long {
        package: "pluvio-store",
        program: "store",
        test: "read_back",
        what: "damaged segments with right checksums",
        divided_by: 1,
    },
    Long {
        package: "pluvio-format",
        program: "garbage",
        test: "garbage",
        what: "damaged entries with right checksums",
        divided_by: 1,
    },
];

/// What was asked for.
#[derive(Debug)]
struct Asked {
    steps: u64,
    /// Makes the random steps others, where they do not come from a seed of their own that a
    /// failure prints (proptest).
    seed: u32,
    /// Names of files; none means all.
    only: Vec<String>,
}

/// Runs the tests one file after the other; gives whether all held.
///
/// # Errors
/// The flags are wrong.
pub fn run(root: &Path, flags: &[&str]) -> Result<bool> {
    let asked = asked(flags)?;
    let mut table = Vec::new();
    for long in &LONG {
        if !asked.only.is_empty() && !asked.only.iter().any(|name| name == long.test) {
            continue;
        }
        let steps = (asked.steps / long.divided_by).max(1);
        println!(
            "\n== {} {}: {} (seed {})",
            long.package, long.test, long.what, asked.seed
        );
        // Built before the time is taken.
        let mut build = test(root, long);
        let start = if succeeds(build.arg("--no-run")) {
            Some(now())
        } else {
            None
        };
        let mut test = test(root, long);
        test.env("PLUVIO_STEPS", steps.to_string());
        test.env("PLUVIO_SEED", asked.seed.to_string());
        let held = start.is_some() && succeeds(test.args(["--", "--nocapture"]));
        let seconds = start.map_or(0.0, |start| start.elapsed().as_secs_f64());
        table.push(Ran {
            file: long.file(),
            steps,
            seconds,
            held,
        });
    }
    println!("\n{}", markdown(&table));
    Ok(table.iter().all(|ran| ran.held))
}

/// The table of all files, for a page.
fn markdown(table: &[Ran]) -> String {
    let mut text = String::from("| file | steps a test | seconds | |\n|---|---|---|---|\n");
    for ran in table {
        let end = if ran.held { "held" } else { "FAILED" };
        let Ran { file, steps, .. } = ran;
        text += &format!("| `{file}` | {steps} | {:.0} | {end} |\n", ran.seconds);
    }
    text
}

/// The tests of one file.
fn test(root: &Path, long: &Long) -> Command {
    let mut test = cargo::command();
    test.current_dir(root)
        .args(["test", "--locked", "--profile", "test-fast"])
        .args(["--package", long.package, "--test", long.program]);
    if long.program != long.test {
        test.arg(format!("{}::", long.test));
    }
    test
}

fn asked(mut flags: &[&str]) -> Result<Asked> {
    let mut asked = Asked {
        steps: STEPS_DEFAULT,
        seed: 0,
        only: Vec::new(),
    };
    while let [flag, rest @ ..] = flags {
        let [value, rest @ ..] = rest else {
            bail!("{flag} needs a value");
        };
        match *flag {
            "--steps" => {
                let steps = value.parse().ok().filter(|steps| *steps > 0);
                asked.steps = steps.with_context(|| format!("--steps {value}: not a number"))?;
            }
            "--seed" => {
                let seed = value.parse().ok();
                asked.seed = seed.with_context(|| format!("--seed {value}: not a number"))?;
            }
            "--only" => {
                asked.only = super::names(value, "file", LONG.iter().map(|known| known.test))?
            }
            _ => bail!("no flag {flag}; give --steps N, --seed N or --only NAMES"),
        }
        flags = rest;
    }
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn flags_are_read_and_unknown_ones_refused() {
        let all = asked(&[]).expect("no flags");
        assert!(all.only.is_empty() && all.steps == STEPS_DEFAULT);
        let some = asked(&["--steps", "5", "--seed", "9", "--only", "model,garbage"])
            .expect("known names");
        assert_eq!((some.steps, some.seed, some.only.len()), (5, 9, 2));
        for wrong in [
            &["--steps"][..],
            &["--steps", "0"],
            &["--steps", "many"],
            &["--seed", "-1"],
            &["--only", "shop"],
            &["--fast", "1"],
        ] {
            assert!(asked(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_test_that_takes_steps_is_run() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let below = |folder: PathBuf| {
            let entries = std::fs::read_dir(folder).into_iter().flatten();
            entries.map(|entry| entry.expect("an entry").path())
        };
        let mut found = Vec::new();
        for package in below(root.join("crates")) {
            // Files, and those of programs with a folder of their own.
            for file in below(package.join("tests")).flat_map(|at| below(at.clone()).chain([at])) {
                let text = std::fs::read_to_string(&file).unwrap_or_default();
                let takes = text.contains("PLUVIO_STEPS") || text.contains("steps_or(");
                if takes && !text.contains("fn steps_or(") {
                    let name = file.file_stem().expect("a name").to_string_lossy();
                    found.push(name.into_owned());
                }
            }
        }
        let mut known: Vec<&str> = LONG.iter().map(|long| long.test).collect();
        known.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, known);
        for long in &LONG {
            assert!(root.join(long.file()).exists(), "{}", long.file());
        }
    }

    #[test]
    fn what_failed_is_told_beside_what_held() {
        let ran = |name: &str, held| Ran {
            file: name.into(),
            steps: 1000,
            seconds: 2.4,
            held,
        };
        let text = markdown(&[ran("a.rs", true), ran("b.rs", false)]);
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| `a.rs` | 1000 | 2 | held |",
                "| `b.rs` | 1000 | 2 | FAILED |"
            ]
        );
    }
}
