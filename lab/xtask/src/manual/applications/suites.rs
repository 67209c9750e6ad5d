//! The suites: what they are, how they are fetched and how they are started.

use super::left_out::LeftOut;
use super::place::{Place, Server};
use super::results::{self, Results};
use crate::process::succeeds;
use anyhow::{Result, bail};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The own tests of an application.
pub struct Suite {
    /// The name of the task's argument and of the list.
    pub name: &'static str,
    /// What it is.
    pub application: &'static str,
    /// Its version.
    pub version: &'static str,
    /// What is run of it.
    pub what: &'static str,
    /// The port that it expects.
    pub port: u16,
    /// Fetches it.
    pub fetch: fn(&Place) -> Result<()>,
    runner: Runner,
    /// It is ended then.
    limit: Duration,
}

/// How a suite is started.
enum Runner {
    /// Django's own program, with labels of tests.
    Django(&'static [&'static str]),
    /// pytest in a folder of sources, with arguments.
    Pytest(&'static str, &'static [&'static str]),
    /// A test binary of a Go package.
    Go(&'static str),
    /// One whose tests are Ginkgo's.
    Ginkgo(&'static str),
    /// A file for the test runner of Node.js.
    Node(&'static str),
    /// A class of Java, which runs its scenarios itself.
    Java(&'static str),
}

/// Marks of tests of redis-py that are left out: clusters, modules, TLS, other services.
const MARKS: &str = "not onlycluster and not redismod and not ssl and not cp_integration and not multidb_integration \
                     and not replica";

const REDIS_PY: [&str; 20] = [
    "--redis-url=redis://127.0.0.1:6379/0",
    "-m",
    MARKS,
    "tests/test_cache.py",
    "tests/test_client.py",
    "tests/test_command_parser.py",
    "tests/test_commands.py",
    "tests/test_connect.py",
    "tests/test_connection.py",
    "tests/test_connection_pool.py",
    "tests/test_encoding.py",
    "tests/test_function.py",
    "tests/test_helpers.py",
    "tests/test_lock.py",
    "tests/test_max_connections_error.py",
    "tests/test_monitor.py",
    "tests/test_multiprocessing.py",
    "tests/test_pipeline.py",
    "tests/test_retry.py",
    "tests/test_scripting.py",
];

const REDIS_PY_ASYNCIO: [&str; 13] = [
    "--redis-url=redis://127.0.0.1:6379/0",
    "-m",
    MARKS,
    "tests/test_asyncio/test_commands.py",
    "tests/test_asyncio/test_connect.py",
    "tests/test_asyncio/test_connection.py",
    "tests/test_asyncio/test_connection_pool.py",
    "tests/test_asyncio/test_encoding.py",
    "tests/test_asyncio/test_lock.py",
    "tests/test_asyncio/test_monitor.py",
    "tests/test_asyncio/test_pipeline.py",
    "tests/test_asyncio/test_retry.py",
    "tests/test_asyncio/test_scripting.py",
];

/// All of them.
pub const SUITES: [Suite; 14] = [
    Suite {
        name: "django",
        application: "Django",
        version: "5.2.19",
        what: "its tests of the Redis cache and of sessions",
        port: 6379,
        fetch: |place| python(place, "Django", "5.2.19"),
        runner: Runner::Django(&["cache.tests.RedisCacheTests", "sessions_tests"]),
        limit: Duration::from_secs(300),
    },
    Suite {
        name: "redis-py",
        application: "redis-py",
        version: "8.1.0",
        what: "commands, pipelines, scripts, functions, locks, connections, cache, monitor",
        port: 6379,
        fetch: |place| python(place, "redis", "8.1.0"),
        runner: Runner::Pytest("redis-8.1.0", &REDIS_PY),
        limit: Duration::from_secs(600),
    },
    Suite {
        name: "redis-py-asyncio",
        application: "redis-py, asyncio",
        version: "8.1.0",
        what: "commands, pipelines, scripts, locks, connections, monitor",
        port: 6379,
        fetch: |place| python(place, "redis", "8.1.0"),
        runner: Runner::Pytest("redis-8.1.0", &REDIS_PY_ASYNCIO),
        limit: Duration::from_secs(600),
    },
    Suite {
        name: "limits",
        application: "limits",
        version: "5.8.0",
        what: "the rate limits of flask-limiter over Redis, also with cluster clients and asyncio",
        port: 7379,
        fetch: |place| python(place, "limits", "5.8.0"),
        runner: Runner::Pytest(
            "limits-5.8.0",
            &[
                "-m",
                "(redis or redis_cluster) and not benchmark",
                "-o",
                "addopts=",
                "-W",
                "default",
                "tests",
            ],
        ),
        limit: Duration::from_secs(600),
    },
    Suite {
        name: "flask-limiter",
        application: "flask-limiter",
        version: "4.1.1",
        what: "all of its tests",
        port: 46379,
        fetch: |place| python(place, "flask-limiter", "4.1.1"),
        runner: Runner::Pytest("flask_limiter-4.1.1", &["-o", "addopts=", "tests"]),
        limit: Duration::from_secs(300),
    },
    Suite {
        name: "redislock",
        application: "redislock (Go)",
        version: "0.9.4",
        what: "all of its tests: distributed locks",
        port: 6379,
        fetch: |place| go(place, "github.com/bsm/redislock"),
        runner: Runner::Go("github.com/bsm/redislock"),
        limit: Duration::from_secs(120),
    },
    Suite {
        name: "redis-rate",
        application: "redis_rate (Go)",
        version: "10.0.1",
        what: "all of its tests: rate limits by a script",
        port: 6379,
        fetch: |place| go(place, "github.com/go-redis/redis_rate/v10"),
        runner: Runner::Go("github.com/go-redis/redis_rate/v10"),
        limit: Duration::from_secs(120),
    },
    Suite {
        name: "ulule-limiter",
        application: "ulule/limiter (Go)",
        version: "3.11.2",
        what: "the tests of its Redis store: rate limits by scripts, 250 000 calls for one key",
        port: 6379,
        fetch: |place| go(place, "github.com/ulule/limiter/v3/drivers/store/redis"),
        runner: Runner::Go("github.com/ulule/limiter/v3/drivers/store/redis"),
        limit: Duration::from_secs(300),
    },
    Suite {
        name: "go-redis",
        application: "go-redis",
        version: "9.23.0",
        what: "all of its tests that need one server",
        port: 6379,
        fetch: |place| go(place, "github.com/redis/go-redis/v9"),
        runner: Runner::Ginkgo("github.com/redis/go-redis/v9"),
        limit: Duration::from_secs(400),
    },
    Suite {
        name: "go-redis-cluster",
        application: "go-redis, cluster client",
        version: "9.23.0",
        what: "scenarios of our own, also with servers that die",
        port: 6379,
        fetch: |place| go(place, "pluvio/applications/scenarios"),
        runner: Runner::Go("pluvio/applications/scenarios"),
        limit: Duration::from_secs(120),
    },
    Suite {
        name: "ioredis",
        application: "ioredis",
        version: "6.0.0",
        what: "scenarios of our own, also with servers that die: its package has no tests",
        port: 6379,
        fetch: node,
        runner: Runner::Node("ioredis.test.mjs"),
        limit: Duration::from_secs(120),
    },
    Suite {
        name: "node-redis",
        application: "node-redis",
        version: "6.3.1",
        what: "scenarios of our own, also with servers that die: its package has no tests",
        port: 6379,
        fetch: node,
        runner: Runner::Node("node-redis.test.mjs"),
        limit: Duration::from_secs(120),
    },
    Suite {
        name: "jedis",
        application: "jedis",
        version: "8.0.2",
        what: "scenarios of our own, also with servers that die",
        port: 6379,
        fetch: java,
        runner: Runner::Java("pluvio.JedisScenarios"),
        limit: Duration::from_secs(300),
    },
    Suite {
        name: "lettuce",
        application: "lettuce",
        version: "7.7.0",
        what: "scenarios of our own, also with servers that die",
        port: 6379,
        fetch: java,
        runner: Runner::Java("pluvio.LettuceScenarios"),
        limit: Duration::from_secs(300),
    },
];

/// What a suite did.
pub struct Ran {
    /// What came of its tests.
    pub results: Results,
    /// Whether it was ended because its time was over.
    pub timed_out: bool,
    /// All that it said.
    pub log: PathBuf,
}

/// Runs a suite.
///
/// # Errors
/// It cannot be started.
pub fn run(place: &Place, suite: &Suite, server: &Server, left_out: &LeftOut) -> Result<Ran> {
    let (log, report) = (place.log(suite, "suite"), place.log(suite, "results"));
    std::fs::write(&report, "")?;
    let mut command = suite.runner.command(place, &report, left_out);
    command
        .env("PLUVIO_URL", format!("redis://127.0.0.1:{}", suite.port))
        .env("PLUVIO_RESULTS", &report)
        .env("PLUVIO_LEFT_OUT", place.left_out(suite.name))
        .env("PLUVIO_KILL", place.sources.join("kill_server.sh"));
    let outcome = server.run_beside(&command, suite.limit)?;
    std::fs::write(&log, &outcome.text)?;
    let reported = std::fs::read_to_string(&report)?;
    let results = match suite.runner {
        Runner::Django(_) | Runner::Pytest(..) | Runner::Node(_) | Runner::Java(_) => {
            results::of_lines(&reported)
        }
        Runner::Go(_) => results::of_go(&outcome.text),
        Runner::Ginkgo(_) => results::of_ginkgo(&reported),
    };
    Ok(Ran {
        results,
        timed_out: outcome.timed_out || outcome.code == Some(TIMEOUT_CODE),
        log,
    })
}

/// What `timeout` ends with when time was over.
const TIMEOUT_CODE: i32 = 124;

impl Runner {
    fn command(&self, place: &Place, report: &std::path::Path, left_out: &LeftOut) -> Command {
        let plugins = |folder| place.sources.join(folder);
        let sources = |folder| place.cache.join("sources").join(folder);
        match self {
            Self::Django(labels) => {
                let mut command = Command::new(place.python());
                command
                    .current_dir(sources("django-5.2.19").join("tests"))
                    .args(["runtests.py", "--parallel=1", "--settings=pluvio_settings"])
                    .args(*labels)
                    .env("PYTHONPATH", plugins("django"));
                command
            }
            Self::Pytest(folder, arguments) => {
                let mut command = Command::new(place.python());
                command
                    .current_dir(sources(folder))
                    .args(["-m", "pytest", "-q", "--tb=line", "--timeout=30"])
                    .args(["-p", "no:cacheprovider", "-p", "pluvio_results"])
                    .args(*arguments)
                    .env("PYTHONPATH", plugins("python"));
                command
            }
            Self::Go(package) => {
                let mut command = Command::new(test_binary(place, package));
                command.args(["-test.v", "-test.count=1"]);
                command
            }
            Self::Ginkgo(package) => {
                let mut command = Command::new(test_binary(place, package));
                command
                    .current_dir(place.cache.join("go"))
                    .args(["-test.run=TestGinkgoSuite", "-ginkgo.no-color"])
                    .arg(format!("-ginkgo.json-report={}", report.display()))
                    // One server is there, which is no Redis Enterprise for all that.
                    .env("RE_CLUSTER", "true")
                    .env("REDIS_VERSION", "7.2");
                if let Some(expression) = left_out.expression() {
                    command.arg(format!("-ginkgo.skip={expression}"));
                }
                command
            }
            Self::Node(file) => {
                let mut command = Command::new("node");
                command
                    .current_dir(place.cache.join("node"))
                    .args(["--test", "--test-reporter=./results.mjs"])
                    .arg(format!("--test-reporter-destination={}", report.display()))
                    .arg(file);
                command
            }
            Self::Java(class) => {
                let mut command = Command::new("java");
                command
                    .current_dir(place.cache.join("java"))
                    .args(["-cp", JAVA_PATH, class]);
                command
            }
        }
    }
}

/// Where classes of the scenarios and of what they use lie.
const JAVA_PATH: &str = "classes:lib/*";

/// Fetches a source distribution, and all that the requirements name.
fn python(place: &Place, package: &str, version: &str) -> Result<()> {
    let python = place.python();
    if !python.exists() {
        let mut venv = Command::new("python3");
        venv.args(["-m", "venv"]).arg(place.cache.join("venv"));
        if !succeeds(&mut venv) {
            bail!("Python has no module venv; on Debian: apt-get install python3-venv");
        }
    }
    let pip = |arguments: &[&str]| {
        let mut command = Command::new(&python);
        command.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]);
        succeeds(command.current_dir(&place.cache).args(arguments))
    };
    let requirements = place.sources.join("python/requirements.txt");
    if !pip(&["install", "-r", &requirements.to_string_lossy()]) {
        bail!("what tests/applications/python/requirements.txt names cannot be installed");
    }
    let folder = package.to_lowercase().replace('-', "_");
    let (folder, archive) = (
        place.cache.join(format!("sources/{folder}-{version}")),
        place.cache.join(format!("{folder}-{version}.tar.gz")),
    );
    if folder.exists() {
        return Ok(());
    }
    let wanted = format!("{package}=={version}");
    let mut unpack = Command::new("tar");
    unpack.arg("-xzf").arg(archive).arg("-C");
    unpack.arg(place.cache.join("sources"));
    if !pip(&["download", "--no-deps", "--no-binary", package, &wanted]) || !succeeds(&mut unpack) {
        bail!("the source distribution of {wanted} is not to be had");
    }
    Ok(())
}

fn test_binary(place: &Place, package: &str) -> PathBuf {
    let name = package.replace('/', "_");
    place.cache.join("go").join(format!("{name}.test"))
}

/// Builds the tests of a package at the version that `go.mod` has.
fn go(place: &Place, package: &str) -> Result<()> {
    let Some(go) = crate::manual::porcupine::go() else {
        bail!("Go is not installed (https://go.dev/dl)");
    };
    let mut build = Command::new(go);
    build
        .current_dir(place.sources.join("go"))
        .args(["test", "-c", "-o"])
        .arg(test_binary(place, package))
        .arg(package);
    match succeeds(&mut build) {
        true => Ok(()),
        false => bail!("the tests of {package} cannot be built"),
    }
}

/// Installs the packages of the scenarios, and puts the scenarios beside them.
fn node(place: &Place) -> Result<()> {
    let folder = place.cache.join("node");
    std::fs::create_dir_all(&folder)?;
    for entry in std::fs::read_dir(place.sources.join("node"))? {
        let entry = entry?;
        std::fs::copy(entry.path(), folder.join(entry.file_name()))?;
    }
    let mut install = Command::new("npm");
    install
        .current_dir(folder)
        .args(["install", "--silent", "--no-audit", "--no-fund"]);
    match succeeds(&mut install) {
        true => Ok(()),
        false => bail!("npm is not installed, or what package.json names is not to be had"),
    }
}

/// Fetches the libraries of the scenarios, and compiles the scenarios.
fn java(place: &Place) -> Result<()> {
    let (sources, folder) = (place.sources.join("java"), place.cache.join("java"));
    for inner in ["lib", "classes"] {
        drop(std::fs::remove_dir_all(folder.join(inner)));
        std::fs::create_dir_all(folder.join(inner))?;
    }
    let mut fetch = Command::new("mvn");
    fetch
        .args(["--batch-mode", "--quiet", "--file"])
        .arg(sources.join("pom.xml"))
        .arg("dependency:copy-dependencies")
        .arg(format!(
            "-DoutputDirectory={}",
            folder.join("lib").display()
        ));
    if !succeeds(&mut fetch) {
        bail!("Maven is not installed, or what pom.xml names is not to be had");
    }
    let mut compile = Command::new("javac");
    compile
        .current_dir(&folder)
        .args(["-nowarn", "-cp", JAVA_PATH, "-d", "classes"]);
    for entry in std::fs::read_dir(sources)? {
        let file = entry?.path();
        if file
            .extension()
            .is_some_and(|extension| extension == "java")
        {
            compile.arg(file);
        }
    }
    match succeeds(&mut compile) {
        true => Ok(()),
        false => bail!("the JDK is not installed, or the scenarios cannot be compiled"),
    }
}
