//! `cargo xtask tsan`: the tests of the storage engine under the thread sanitizer.
//!
//! It needs the source of the standard library (`rustup component add rust-src`), which is built
//! with the sanitizer as well. Otherwise the locks of std would look like races. The flags for both
//! are not stable; `RUSTC_BOOTSTRAP` lets the pinned compiler take them. Not part of CI: it builds
//! all again and takes some minutes.
//!
//! - The sanitizer knows nothing of `fence` and of `membarrier`. A report for that reason
//!   alone is named in `lab/xtask/tsan-suppressions.txt`, each with the argument why it is no
//!   race.
//! - Nor does it see what assembly loads (`pluvio_memory::words_with_top`): that those loads are
//!   glimpses, which decide nothing, is for the reader of the index.

use crate::cargo::{self, Metadata, host};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The crates whose threads share memory without locks.
const CRATES: [&str; 4] = [
    "pluvio-memory",
    "pluvio-index",
    "pluvio-log",
    "pluvio-store",
];
/// Beside the tests within the crates, those of files of this name in these programs: the others
/// take long and show nothing.
const THREADS: &[&str] = &["--test=log", "--test=store", "threads::"];
/// Of each writer of the tests that read `PLUVIO_STEPS`: enough to fill the memory and to clean it
/// several times over.
const STEPS: &str = "300";
/// Of every property test: each case takes about ten times as long as usual.
const PROPTEST_CASES: &str = "16";

/// Builds and runs the tests; `words` go to cargo (`-p`, `--test`, …) in the place of all crates.
/// Gives whether no test failed and nothing was reported.
///
/// # Errors
/// The source of the standard library is missing.
pub fn run(root: &Path, words: &[&str]) -> Result<bool> {
    check_source()?;
    if !words.is_empty() {
        return run_words(root, words);
    }
    let crates = CRATES.map(|name| format!("--package={name}"));
    let crates: Vec<&str> = crates.iter().map(String::as_str).collect();
    // Models with threads that a checker schedules: one runs at a time, so there is nothing to see.
    let inside = run_words(
        root,
        &[&crates, &["--lib", "--", "--skip", "model::"][..]].concat(),
    )?;
    let beside = run_words(root, &[&crates, THREADS].concat())?;
    Ok(inside && beside)
}

/// `cargo test` with these words, under the sanitizer.
fn run_words(root: &Path, words: &[&str]) -> Result<bool> {
    let suppressions = root.join("lab/xtask/tsan-suppressions.txt");
    let mut test = cargo::command();
    test.current_dir(root)
        .args(["test", "--locked", "--profile", "test-fast"])
        .args(["-Zbuild-std", "--target", &host()?])
        .arg("--target-dir")
        .arg(Metadata::load(root)?.target.join("tsan"))
        .args(words)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=thread")
        .env("PROPTEST_CASES", PROPTEST_CASES)
        .env("PLUVIO_STEPS", STEPS)
        .env(
            "TSAN_OPTIONS",
            format!("suppressions={}", suppressions.display()),
        );
    Ok(crate::process::succeeds(&mut test))
}

fn check_source() -> Result<()> {
    let output = Command::new("rustc")
        .args(["--print", "sysroot"])
        .output()
        .context("cannot run rustc")?;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if !sysroot.join("lib/rustlib/src/rust/library").exists() {
        bail!("the source of the standard library is missing: `rustup component add rust-src`");
    }
    Ok(())
}
