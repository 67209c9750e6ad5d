//! Where suites and what they need lie, and the servers that they run against.

use super::suites::Suite;
use crate::process::{Outcome, run_limited, succeeds_quietly};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Until a server is ready, and beyond the time of a suite until it is ended by force.
const GRACE: Duration = Duration::from_secs(60);

/// The port for cluster clients, which suites with such clients expect.
const CLUSTER_PORT: u16 = 7001;

/// The last words of a server's start, ours or redis-server's.
const READY: &str = "Ready";

/// A cluster of redis-server with one node, and a redis-server beside it.
const PEER: &str = r#"
    redis-server --port "$2" --cluster-enabled yes --cluster-config-file nodes.conf --save "" > cluster.log &
    until redis-cli -p "$2" cluster addslotsrange 0 16383; do sleep 0.1; done
    until redis-cli -p "$2" cluster info | grep -q state:ok; do sleep 0.1; done
    exec redis-server --port "$1" --save "" --appendonly no"#;

/// The folders.
pub struct Place {
    /// `tests/applications` of the repository.
    pub sources: PathBuf,
    /// Where everything is fetched to.
    pub cache: PathBuf,
}

impl Place {
    /// Makes the folders.
    ///
    /// # Errors
    /// They cannot be made.
    pub fn new(root: &Path, target: &Path) -> Result<Self> {
        let cache = target.join("test-tools/applications");
        for folder in ["logs", "sources", "go"] {
            std::fs::create_dir_all(cache.join(folder))?;
        }
        let sources = root.join("tests/applications");
        Ok(Self { sources, cache })
    }

    /// The list of a suite.
    pub fn left_out(&self, suite: &str) -> PathBuf {
        self.sources.join("left-out").join(format!("{suite}.txt"))
    }

    /// The Python of the suites.
    pub fn python(&self) -> PathBuf {
        self.cache.join("venv/bin/python")
    }

    /// A file for what a suite or its server says.
    pub fn log(&self, suite: &Suite, of: &str) -> PathBuf {
        self.cache.join(format!("logs/{}-{of}.txt", suite.name))
    }
}

/// What suites run against.
pub enum System {
    /// A cluster of ours.
    Pluvio {
        /// Its program.
        binary: PathBuf,
        /// How many servers it has.
        servers: u32,
    },
    /// A redis-server.
    Redis,
}

impl System {
    /// How the table names it.
    pub fn name(&self) -> String {
        match self {
            Self::Pluvio { servers: 1, .. } => "one server".to_owned(),
            Self::Pluvio { servers, .. } => format!("{servers} servers"),
            Self::Redis => "redis-server".to_owned(),
        }
    }

    fn command(&self, suite: &Suite) -> Command {
        match self {
            Self::Pluvio { binary, servers } => {
                let mut command = Command::new(binary);
                let replicas = (servers - 1).min(2).to_string();
                command
                    .args(["dev", "--servers", &servers.to_string()])
                    .args(["--replicas", &replicas])
                    .args(["--redis-port", &suite.port.to_string()])
                    .args(["--redis-cluster-port", &CLUSTER_PORT.to_string()])
                    // Some suites kill servers.
                    .arg("--respawn");
                command
            }
            Self::Redis => {
                let mut command = Command::new("sh");
                command
                    .args(["-c", PEER, "sh", &suite.port.to_string()])
                    .arg(CLUSTER_PORT.to_string());
                command
            }
        }
    }
}

/// A running cluster in a namespace of its own, which ends with this value.
pub struct Server {
    child: Child,
}

impl Server {
    /// Starts one and waits until it is ready.
    ///
    /// # Errors
    /// It does not start: no rights to make namespaces, or the program is missing.
    pub fn start(place: &Place, suite: &Suite, system: &System) -> Result<Self> {
        let folder = place.cache.join("server");
        drop(std::fs::remove_dir_all(&folder));
        std::fs::create_dir_all(&folder)?;
        let log = place.log(suite, "server");
        let out = File::create(&log)?;
        let inner = system.command(suite);
        let mut command = Command::new("unshare");
        command
            .args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-c", "ip link set lo up && exec \"$@\"", "sh"])
            .arg(inner.get_program())
            .args(inner.get_args())
            .current_dir(&folder)
            .env("TMPDIR", &folder)
            .stdin(Stdio::null())
            .stderr(out.try_clone()?)
            .stdout(out);
        let child = command.spawn().context("cannot start unshare")?;
        let mut server = Self { child };
        let mut wait = Command::new("timeout");
        let until = format!("until grep -q {READY} \"$1\"; do sleep 0.1; done");
        wait.arg(GRACE.as_secs().to_string())
            .args(["sh", "-c", &until, "sh"])
            .arg(&log);
        if !succeeds_quietly(&mut wait) || server.child.try_wait()?.is_some() {
            bail!("the server did not start; it said: {}", log.display());
        }
        Ok(server)
    }

    /// Runs a command of a suite beside it, for at most `limit`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn run_beside(&self, command: &Command, limit: Duration) -> Result<Outcome> {
        let mut beside = Command::new("nsenter");
        beside
            .arg(format!("--target={}", self.child.id()))
            .args(["--net", "timeout", "--kill-after=10"])
            .arg(limit.as_secs().to_string())
            .arg(command.get_program())
            .args(command.get_args());
        if let Some(folder) = command.get_current_dir() {
            beside.current_dir(folder);
        }
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => beside.env(name, value),
                None => beside.env_remove(name),
            };
        }
        run_limited(&mut beside, limit + GRACE)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It ends all processes of its namespace with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
