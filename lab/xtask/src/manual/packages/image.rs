//! The container image: the static program and nothing else, built by buildah, and run.

use super::{Done, IMAGE_USER, Place, is_root, said, sbom};
use crate::process::{run_seen, succeeds_quietly};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds and tries the image.
pub fn check(place: &Place) -> Result<Done> {
    let here = crate::cargo::host()?;
    let target = here.replace("-gnu", "-musl");
    let installed = said(Command::new("rustup").args(["target", "list", "--installed"]));
    if !installed.is_ok_and(|list| list.lines().any(|line| line == target)) {
        return Ok(Done::Skipped(format!(
            "the standard library of {target} is missing: `rustup target add {target}`"
        )));
    }
    if !succeeds_quietly(Command::new("musl-gcc").arg("--version")) {
        return Ok(Done::Skipped(
            "there is no musl-gcc; on Debian: apt-get install musl-tools".into(),
        ));
    }
    let binary = static_binary(place, &target)?;
    if !is_root() || !succeeds_quietly(Command::new("buildah").arg("--version")) {
        return Ok(Done::Skipped(
            "the program is built; the image needs root and buildah; on Debian: apt-get install buildah crun".into(),
        ));
    }
    let buildah = Buildah::new(place)?;
    let folder = context(place, &binary)?;
    let name = format!("pluvio:{}", place.version()?);
    let mut build = buildah.command("bud");
    build.args(["--isolation", "chroot", "--tag", &name, "--file"]);
    build.arg(place.root.join("deploy/image/Containerfile"));
    said(build.arg(&folder))?;
    let archive = place.made().join("pluvio.oci.tar");
    drop(std::fs::remove_file(&archive));
    let to = format!("oci-archive:{}:{name}", archive.display());
    said(buildah.command("push").arg(&name).arg(to))?;
    println!(
        "image: {} ({} KiB)",
        archive.display(),
        archive.metadata()?.len() >> 10
    );
    let facts: Value = serde_json::from_str(&said(
        buildah.command("inspect").args(["--type", "image", &name]),
    )?)?;
    let user = &facts["OCIv1"]["config"]["User"];
    if *user != format!("{IMAGE_USER}:{IMAGE_USER}") {
        bail!("the image runs as {user}");
    }
    let container = said(buildah.command("from").arg(&name))?.trim().to_owned();
    let tried = serves(&buildah, &container, &place.binary()?);
    said(buildah.command("rm").arg(&container))?;
    tried.map(|()| Done::Good)
}

/// The program that needs no library.
fn static_binary(place: &Place, target: &str) -> Result<PathBuf> {
    // Libraries in C are built with it, and linked by rustc itself.
    let variable = format!("env.CC_{}=\"musl-gcc\"", target.replace('-', "_"));
    place.build(&["--target", target, "--config", &variable])?;
    let folder = place.metadata.target.join(target).join(place.folder());
    Ok(folder.join("pluvio"))
}

/// The folder that the image is built in.
fn context(place: &Place, binary: &Path) -> Result<PathBuf> {
    let folder = place.fresh("image")?;
    std::fs::create_dir(folder.join("data"))?;
    std::fs::copy(place.root.join("LICENSE"), folder.join("LICENSE"))?;
    std::fs::copy(sbom::write(place)?, folder.join("pluvio.cdx.json"))?;
    let stripped = folder.join("pluvio");
    said(Command::new("strip").arg("-o").arg(&stripped).arg(binary))?;
    Ok(folder)
}

/// Runs a cluster of one server in the container, and uses it from outside.
fn serves(buildah: &Buildah, container: &str, client: &Path) -> Result<()> {
    let mut dev = buildah.command("run");
    dev.args([
        "--isolation",
        "chroot",
        container,
        "--",
        "/usr/bin/pluvio",
        "dev",
    ]);
    dev.args(["--data", "/data/dev", "--servers", "1", "--redis-port", "0"]);
    dev.args(["--coordinator-port", "0", "--json"]);
    let mut tried = None;
    run_seen(&mut dev, |line| {
        let Ok(ready) = serde_json::from_str::<Value>(line) else {
            return;
        };
        if tried.is_none() {
            tried = Some(used(&ready, client));
            let pid = ready["pid"].to_string();
            succeeds_quietly(Command::new("kill").args(["-TERM", &pid]));
        }
    })?;
    tried.context("the container said nothing")?
}

fn used(ready: &Value, client: &Path) -> Result<()> {
    let coordinator = &ready["coordinator"]["addr"];
    let coordinator = coordinator.as_str().context("no coordinator")?;
    let run = |words: &[&str]| {
        said(
            Command::new(client)
                .args(["--coordinator", coordinator])
                .args(words),
        )
    };
    run(&["table", "create", "t"])?;
    run(&["put", "t", "key", "value"])?;
    if run(&["get", "t", "key"])? != "value" {
        bail!("the value is another one");
    }
    let pid = ready["servers"][0]["pid"].to_string();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let user = format!("Uid:\t{IMAGE_USER}\t");
    match status.contains(&user) {
        true => Ok(()),
        false => bail!("the server runs as another user than {IMAGE_USER}"),
    }
}

/// buildah with a storage of its own.
struct Buildah {
    storage: PathBuf,
}

impl Buildah {
    fn new(place: &Place) -> Result<Self> {
        let storage = place.tools().join("images");
        std::fs::create_dir_all(&storage)?;
        Ok(Self { storage })
    }

    fn command(&self, what: &str) -> Command {
        let mut command = Command::new("buildah");
        command.args(["--storage-driver", "vfs", "--root"]);
        command.arg(self.storage.join("root"));
        command
            .arg("--runroot")
            .arg(self.storage.join("run"))
            .arg(what);
        command
    }
}
