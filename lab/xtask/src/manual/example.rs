//! `cargo xtask day`, `soak`, `beside-redis` and `server-time`: programs that need real clusters
//! for minutes.
//!
//! The work is done by examples of the laboratory's binary, which use the client library or the
//! helpers of its tests. Building them here would make `cargo xtask` slow to start. This builds
//! `pluvio` and the example and hands the flags on; the exit code is the example's.

use crate::cargo::{self, Metadata};
use crate::process::succeeds;
use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;

/// The profile of measurements, and the packages that they need.
pub const RELEASE: (&str, &[&str]) = (
    "release",
    &["--package", "pluvio", "--package", "pluvio-lab"],
);
/// The profile of tests, with their assertions, and their packages: nothing is built twice.
pub const TESTS: (&str, &[&str]) = ("test-fast", &["--workspace"]);

/// Builds `pluvio` and an example of the laboratory, and runs the example; gives whether it
/// succeeded.
///
/// # Errors
/// They cannot be built.
pub fn run(
    root: &Path,
    (profile, packages): (&str, &[&str]),
    example: &str,
    flags: &[&str],
) -> Result<bool> {
    let folder = Metadata::load(root)?.target.join(profile);
    let mut build = cargo::command();
    build
        .current_dir(root)
        .args(["build", "--locked", "--profile", profile])
        .args(packages)
        .args(["--bin", "pluvio", "--example", example]);
    if !succeeds(&mut build) {
        bail!("the binary and the example {example} could not be built");
    }
    let mut program = Command::new(folder.join("examples").join(example));
    program
        .args(flags)
        .env("PLUVIO_BINARY", folder.join("pluvio"));
    Ok(succeeds(&mut program))
}
