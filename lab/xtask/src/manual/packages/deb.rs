//! The Debian package: built by cargo-deb, installed, run as its user, upgraded, removed, purged.

use super::{Done, Place, is_root, said, sbom};
use crate::cargo::{self, program};
use crate::process::{run_limited, succeeds, succeeds_quietly};
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

const CARGO_DEB: (&str, &str) = ("cargo-deb", "3.8.0");
const CONFIG: &str = "/etc/pluvio/pluvio.toml";
const DATA: &str = "/var/lib/pluvio";
const UNITS: [&str; 2] = ["pluvio-server", "pluvio-coordinator"];
/// The most exposure that a unit may have, as `systemd-analyze security` measures it: 100 is 10.0.
const EXPOSURE_MAX: &str = "20";

/// Starts both roles with the packaged configuration, as the units do, and uses them. In a network
/// and process namespace: no port is taken from others, and no process is left.
const RUN: &str = r#"
set -e
ip link set lo up
as() { exec setpriv --reuid=pluvio --regid=pluvio --clear-groups -- "$@"; }
for role in coordinator server; do
    install -d -o pluvio -g pluvio -m 0700 "/var/lib/pluvio/$role"
    line=$(sed -n 's/^ExecStart=//p' "/usr/lib/systemd/system/pluvio-$role.service")
    as $line >"$1/$role.txt" 2>&1 &
    eval "$role=$!"
    for _ in $(seq 200); do
        ! grep -q " ready, " "$1/$role.txt" || break
        sleep 0.1
    done
    grep " ready, " "$1/$role.txt" || { cat "$1/$role.txt"; exit 1; }
done
pluvio table create t
pluvio put t key value
test "$(pluvio get t key)" = value
test "$(stat -c %U /var/lib/pluvio/server/identity.json)" = pluvio
kill -TERM $server
wait $server
kill -TERM $coordinator
wait $coordinator
"#;

/// Builds and tries the package.
pub fn check(place: &Place) -> Result<Done> {
    let Some(cargo_deb) = cargo_deb(place) else {
        return Ok(Done::Skipped(format!("{} could not be built", CARGO_DEB.0)));
    };
    let package = build(place, &cargo_deb)?;
    println!("deb: {}", package.display());
    if !is_root() || !succeeds_quietly(Command::new("dpkg").arg("--version")) {
        return Ok(Done::Skipped(
            "it is built; only root of a Debian installs it".into(),
        ));
    }
    if succeeds_quietly(Command::new("dpkg").args(["--status", "pluvio"])) {
        return Ok(Done::Skipped(
            "it is built; this machine has a package pluvio already".into(),
        ));
    }
    if Path::new(DATA).exists() {
        return Ok(Done::Skipped(format!(
            "it is built; {DATA} is there already"
        )));
    }
    let tried = installed(place, &package);
    drop(said(Command::new("dpkg").args(["--purge", "pluvio"])));
    if Path::new(DATA).exists() {
        std::fs::remove_dir_all(DATA)?;
    }
    drop(said(Command::new("deluser").args(["--system", "pluvio"])));
    tried.map(|()| Done::Good)
}

/// Makes the files that come from the program, and the package.
fn build(place: &Place, cargo_deb: &Path) -> Result<PathBuf> {
    let binary = place.binary()?;
    // cargo-deb looks for target/release/… there, whichever the profile.
    let files = place.metadata.target.join(place.folder()).join("package");
    drop(std::fs::remove_dir_all(&files));
    let completions = files.join("completions");
    std::fs::create_dir_all(&completions)?;
    for (shell, name) in [
        ("bash", "pluvio.bash"),
        ("zsh", "_pluvio"),
        ("fish", "pluvio.fish"),
    ] {
        let text = said(Command::new(&binary).args(["completions", shell]))?;
        std::fs::write(completions.join(name), text)?;
    }
    said(Command::new(&binary).arg("man").arg(files.join("man")))?;
    std::fs::copy(sbom::write(place)?, files.join("pluvio.cdx.json"))?;
    let output = place.made().join("deb");
    drop(std::fs::remove_dir_all(&output));
    std::fs::create_dir_all(&output)?;
    let mut deb = Command::new(cargo_deb);
    deb.current_dir(&place.root).env("CARGO", program());
    deb.args(["--package", "pluvio", "--no-build", "--strip", "--locked"]);
    deb.args(["--profile", place.profile, "--output"])
        .arg(&output);
    said(&mut deb)?;
    match std::fs::read_dir(&output)?.next() {
        Some(entry) => Ok(entry?.path()),
        None => bail!("cargo-deb made no file"),
    }
}

fn installed(place: &Place, package: &Path) -> Result<()> {
    let install = || {
        let mut apt = Command::new("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive");
        apt.args(["install", "--yes", "--no-install-recommends", "--reinstall"]);
        said(
            apt.args(["--option", "Dpkg::Options::=--force-confold"])
                .arg(package),
        )
    };
    install()?;
    for unit in UNITS {
        let mut verify = Command::new("systemd-analyze");
        let text = said(
            verify
                .args(["verify", "--man=yes"])
                .arg(format!("{unit}.service")),
        )?;
        if text.contains(unit) {
            bail!("systemd-analyze verify: {text}");
        }
        let mut security = Command::new("systemd-analyze");
        security.args([
            "security",
            "--offline=true",
            "--no-pager",
            "--threshold",
            EXPOSURE_MAX,
        ]);
        let text = said(security.arg(format!("/usr/lib/systemd/system/{unit}.service")))?;
        println!("deb: {}", text.lines().last().unwrap_or_default().trim());
    }
    for page in ["pluvio.1", "pluvio-server.1", "pluvio-table-create.1"] {
        said(Command::new("man").args(["--warnings", "--where", page.trim_end_matches(".1")]))?;
    }
    said(Command::new("bash").args([
        "-c",
        ". /usr/share/bash-completion/completions/pluvio && complete -p pluvio",
    ]))?;
    let logs = place.fresh("deb-logs")?;
    let mut run = Command::new("unshare");
    run.args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    said(run.args(["sh", "-c", RUN, "sh"]).arg(&logs))?;
    // An operator's changes outlive an upgrade, and the data do.
    let config = std::fs::read_to_string(CONFIG)? + "# mine\n";
    std::fs::write(CONFIG, &config)?;
    install()?;
    if std::fs::read_to_string(CONFIG)? != config {
        bail!("an upgrade changed {CONFIG}");
    }
    said(Command::new("dpkg").args(["--remove", "pluvio"]))?;
    let is_there = |path: &str| Path::new(path).exists();
    if is_there("/usr/bin/pluvio") || !is_there(CONFIG) || !is_there(DATA) {
        bail!("removing has left the program, or taken the configuration or the data");
    }
    said(Command::new("dpkg").args(["--purge", "pluvio"]))?;
    if is_there(CONFIG) || !is_there("/var/lib/pluvio/server/identity.json") {
        bail!("purging has left the configuration, or taken the data");
    }
    Ok(())
}

/// The cargo-deb of this machine, or one that is built.
fn cargo_deb(place: &Place) -> Option<PathBuf> {
    let (name, version) = CARGO_DEB;
    let own = place.tools().join("bin").join(name);
    let runs = |path: &Path| {
        let mut command = Command::new(path);
        run_limited(command.arg("--version"), super::LIMIT)
            .is_ok_and(|outcome| outcome.success && outcome.text.contains(version))
    };
    if runs(&own) {
        return Some(own);
    }
    let mut install = cargo::command();
    install.args(["install", "--locked", name, "--version", version, "--root"]);
    (succeeds(install.arg(place.tools())) && runs(&own)).then_some(own)
}
