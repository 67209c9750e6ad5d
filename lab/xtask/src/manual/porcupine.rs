//! `cargo xtask porcupine FILE`: a published checker as second opinion on a history of `pluvio
//! torture`.
//!
//! The program lies in `tests/porcupine`, with the versions of what it needs in `go.sum`; Go
//! fetches them from its module proxy the first time. Nothing else here needs Go.

use crate::process::{succeeds, succeeds_quietly};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// Where Go is: on the path, or where its own installer puts it.
const GO: [&str; 2] = ["go", "/usr/local/go/bin/go"];

/// Where the program lies.
const PROGRAM: &str = "tests/porcupine";

/// The program of Go, if it is installed.
pub fn go() -> Option<&'static str> {
    let is_there = |go: &&str| succeeds_quietly(Command::new(go).arg("version"));
    GO.into_iter().find(is_there)
}

/// Whether the program can be built here.
///
/// # Errors
/// What is in the way.
pub fn can_be_built(root: &Path) -> Result<(), String> {
    let go = go().ok_or("Go is not installed (https://go.dev/dl)")?;
    let mut build = Command::new(go);
    build
        .current_dir(root.join(PROGRAM))
        .args(["build", "-o", "/dev/null", "."]);
    match succeeds_quietly(&mut build) {
        true => Ok(()),
        false => Err(format!(
            "Go cannot build {PROGRAM}: it is too old, or does not reach its module proxy"
        )),
    }
}

/// Checks a history; gives whether no key's history is wrong.
///
/// # Errors
/// Go is not installed, or there is no such file: nothing was checked.
pub fn run(root: &Path, file: &str) -> Result<bool> {
    let file = Path::new(file)
        .canonicalize()
        .with_context(|| format!("cannot read {file}"))?;
    let Some(go) = go() else {
        bail!(
            "Go is not installed, so nothing was checked; install it (https://go.dev/dl), or be content with \
             `pluvio torture --history FILE`"
        );
    };
    let mut program = Command::new(go);
    program
        .current_dir(root.join(PROGRAM))
        .args(["run", "."])
        .arg(file);
    Ok(succeeds(&mut program))
}
