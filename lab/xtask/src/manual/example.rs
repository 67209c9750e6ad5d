//! `cargo xtask soak`, `beside-redis` and `server-time`: programs that need real clusters for
//! minutes.
//!
//! The work is done by examples of the laboratory's binary, which use the client library or the
//! helpers of its tests. Building them here would make `cargo xtask` slow to start. This builds
//! `pluvio` and the example with the release profile and hands the flags on; the exit code is the
//! example's.

use crate::cargo::{Metadata, program};
use crate::process::succeeds;
use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;

/// Builds `pluvio` and an example of the laboratory, and runs the example; gives whether it
/// succeeded.
///
/// # Errors
/// They cannot be built.
pub fn run(root: &Path, example: &str, flags: &[&str]) -> Result<bool> {
    let target = Metadata::load(root)?.target;
    let mut build = Command::new(program());
    build.current_dir(root).args([
        "build",
        "--release",
        "--locked",
        "--package",
        "pluvio",
        "--package",
        "pluvio-lab",
        "--bin",
        "pluvio",
        "--example",
        example,
    ]);
    if !succeeds(&mut build) {
        bail!("the binary and the example {example} could not be built");
    }
    let mut program = Command::new(target.join("release/examples").join(example));
    program
        .args(flags)
        .env("PLUVIO_BINARY", target.join("release/pluvio"));
    Ok(succeeds(&mut program))
}
