//! `cargo xtask soak`: clients of a real cluster whose servers are killed at random.
//!
//! The work is done by an example of the binary's crate, which uses the client library: building
//! it here would make `cargo xtask` slow to start. This builds both with the release profile and
//! hands the flags on; the exit code says whether every acknowledged write was found.

use crate::cargo::{Metadata, program};
use crate::process::succeeds;
use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;

/// Builds the binary and the clients, and runs them; gives whether nothing was lost.
///
/// # Errors
/// They cannot be built.
pub fn run(root: &Path, flags: &[&str]) -> Result<bool> {
    let target = Metadata::load(root)?.target;
    let mut build = Command::new(program());
    build.current_dir(root).args([
        "build",
        "--release",
        "--locked",
        "--package",
        "pluvio",
        "--bin",
        "pluvio",
        "--example",
        "soak",
    ]);
    if !succeeds(&mut build) {
        bail!("the binary and its clients could not be built");
    }
    let mut clients = Command::new(target.join("release/examples/soak"));
    clients
        .args(flags)
        .env("PLUVIO_BINARY", target.join("release/pluvio"));
    Ok(succeeds(&mut clients))
}
