//! What experiments compare the engine with.

use super::packages::install;
use crate::process::succeeds_quietly;
use std::path::Path;
use std::process::Command;

/// What experiments compare the engine with: a library that is preloaded, or a server.
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

const PEERS: [Peer; 5] = [
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

/// Installs what experiments compare the engine with (`cargo xtask setup --peers`); gives whether
/// all of it is there. Experiments leave out what is not.
pub fn peers() -> bool {
    let mut all = true;
    for peer in PEERS {
        let there = peer.is_there() || (install(&[peer.package]) && peer.is_there());
        match there {
            true => println!("setup: {} is there", peer.package),
            false => println!(
                "SKIPPED: {0} could not be installed; on Debian: apt-get install {0}",
                peer.package
            ),
        }
        all &= there;
    }
    all
}
