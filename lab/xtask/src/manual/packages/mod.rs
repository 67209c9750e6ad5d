//! `cargo xtask packages [STEPS]`: makes what users install, and tries it.
//!
//! 1. `sbom`: the list of everything that is linked into the program (CycloneDX).
//! 2. `chart`: the Helm chart is linted and rendered with each file of `deploy/helm/cases`. The
//!    manifests fit the schemas of the API, and the program takes the options they give it.
//! 3. `deb`: the Debian package is built, installed, run as its user, upgraded, removed, purged.
//! 4. `image`: the container image is built from the static program, and run.
//! 5. `licences`: cargo-deny, where it is installed.
//!
//! The results lie in `target/packages`. `--release` takes the release profile, as releases do,
//! and `--debug` the profile dev; without them the programs are those of the tests. A step that
//! this machine cannot do is skipped with a notice. Tools are fetched at fixed versions into
//! `target/test-tools/packages`. Not part of CI: it fetches and builds for some ten minutes, and
//! installs a package on this machine.

mod chart;
mod deb;
mod image;
mod sbom;

use crate::cargo::{self, Metadata};
use crate::process::{run_limited, succeeds, succeeds_quietly};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long any program may take that is started here, but for builds.
const LIMIT: Duration = Duration::from_secs(180);
/// The user of the image, which has no name.
const IMAGE_USER: u32 = 65_532;

/// The outcome of a step that did not fail.
enum Done {
    /// It is as it should be.
    Good,
    /// This machine cannot do it.
    Skipped(String),
}

type Step = fn(&Place) -> Result<Done>;

const STEPS: [(&str, Step); 5] = [
    ("sbom", |place| sbom::write(place).map(|_| Done::Good)),
    ("chart", chart::check),
    ("deb", deb::check),
    ("image", image::check),
    ("licences", licences),
];

/// Where everything is, and how it is built.
struct Place {
    root: PathBuf,
    metadata: Metadata,
    profile: &'static str,
}

impl Place {
    /// Where the tools are.
    fn tools(&self) -> PathBuf {
        self.metadata.target.join("test-tools/packages")
    }

    /// A folder of its own for a step, empty.
    fn fresh(&self, name: &str) -> Result<PathBuf> {
        let folder = self.made().join(name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// Where cargo puts the programs of the profile, below the target folder.
    fn folder(&self) -> &'static str {
        match self.profile {
            "dev" => "debug",
            profile => profile,
        }
    }

    /// Where the results lie.
    fn made(&self) -> PathBuf {
        self.metadata.target.join("packages")
    }

    /// The version of the program.
    fn version(&self) -> Result<&str> {
        let ours = self.metadata.ours();
        let cli = ours.get("cli").context("there is no crate cli")?;
        Ok(&cli.version)
    }

    /// The program of this machine, built.
    fn binary(&self) -> Result<PathBuf> {
        self.build(&[])?;
        Ok(self.metadata.target.join(self.folder()).join("pluvio"))
    }

    /// Builds the program.
    fn build(&self, flags: &[&str]) -> Result<()> {
        let mut build = cargo::command();
        build.current_dir(&self.root);
        build.args(["build", "--locked", "--profile", self.profile]);
        build.args(["--package", "pluvio", "--bin", "pluvio", "--features", "s3"]);
        match succeeds(build.args(flags)) {
            true => Ok(()),
            false => bail!("the program could not be built"),
        }
    }
}

/// Runs the steps that `words` name, or all; gives whether none failed.
///
/// # Errors
/// The words make no sense.
pub fn run(root: &Path, words: &[&str]) -> Result<bool> {
    let (mut names, mut profile) = (Vec::new(), "test-fast");
    for word in words {
        match *word {
            "--release" => profile = "release",
            "--debug" => profile = "dev",
            name => names.extend(super::names(name, "step", STEPS.iter().map(|step| step.0))?),
        }
    }
    let metadata = Metadata::load(root)?;
    let place = Place {
        root: root.to_owned(),
        metadata,
        profile,
    };
    let mut is_good = true;
    for (name, step) in STEPS {
        if !names.is_empty() && !names.iter().any(|wanted| wanted == name) {
            continue;
        }
        match step(&place) {
            Ok(Done::Good) => println!("{name}: good"),
            Ok(Done::Skipped(why)) => println!("SKIPPED: {name}: {why}"),
            Err(error) => {
                println!("FAILED: {name}: {error:#}");
                is_good = false;
            }
        }
    }
    Ok(is_good)
}

/// Runs a program that has to succeed; gives what it said.
fn said(command: &mut Command) -> Result<String> {
    let outcome = run_limited(command, LIMIT)?;
    if !outcome.success {
        bail!("{command:?} failed:\n{}", outcome.text);
    }
    Ok(outcome.text)
}

/// Whether this user may do everything.
fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Asks cargo-deny about licences, bans and sources, and about known defects where their list can
/// be had.
fn licences(place: &Place) -> Result<Done> {
    let deny = |check: &[&str]| {
        let mut command = cargo::command();
        command.current_dir(&place.root).args(["deny", "check"]);
        command.args(check);
        command
    };
    if !succeeds_quietly(cargo::command().args(["deny", "--version"])) {
        return Ok(Done::Skipped(
            "cargo-deny is not installed: `cargo install --locked cargo-deny`".into(),
        ));
    }
    said(&mut deny(&["licenses", "bans", "sources"]))?;
    let advisories = run_limited(&mut deny(&["advisories"]), LIMIT)?;
    match (
        advisories.success,
        advisories.text.contains("failed to fetch advisory"),
    ) {
        (true, _) => Ok(Done::Good),
        (false, true) => Ok(Done::Skipped(
            "licences, bans and sources are good; the list of known defects cannot be had here"
                .into(),
        )),
        (false, false) => bail!("cargo deny check advisories:\n{}", advisories.text),
    }
}
