//! The processes of the cluster, and questions to it.
//!
//! Each process is this machine's program `pluvio`, told which versions it speaks.

use crate::support::patience::wait_for;
use crate::support::program::{Running, command, run, signal};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Versions of the older build.
pub const OLD: &str = "7-7";
/// Versions of the newer build.
pub const NEW: &str = "7-8";

/// How long a server may be silent: two processors starve seven processes and their clients now
/// and then. A killed process is noticed at once, because its port is closed.
const SILENCE_MAX: &str = "5s";

/// One server.
struct Server {
    running: Running,
    /// Where it speaks the Redis protocol, also after a restart.
    redis: String,
}

/// A running cluster. Its processes end with it.
pub struct Crew {
    data: PathBuf,
    /// What its processes said when they had ended.
    traces: PathBuf,
    memory: &'static str,
    versions: &'static str,
    /// Where coordinators listen.
    addresses: Vec<String>,
    coordinators: Vec<Option<Running>>,
    servers: BTreeMap<usize, Server>,
    /// Servers so far.
    numbered: usize,
}

impl Crew {
    /// Starts two coordinators and `servers` servers below a directory.
    pub fn start(
        directory: &Path,
        memory: &'static str,
        versions: &'static str,
        servers: usize,
    ) -> Self {
        let mut crew = Self {
            data: directory.join("data"),
            traces: directory.join("traces"),
            memory,
            versions,
            addresses: vec!["127.0.0.1:0".to_owned(); 2],
            coordinators: vec![None, None],
            servers: BTreeMap::new(),
            numbered: 0,
        };
        std::fs::create_dir_all(&crew.traces).expect("a directory of ours");
        for index in 0..crew.coordinators.len() {
            crew.start_coordinator(index);
        }
        crew.add(servers);
        crew.wait_settled();
        crew
    }

    /// Where its coordinators listen, with commas.
    pub fn coordinators(&self) -> String {
        self.addresses.join(",")
    }

    /// Where its servers speak the Redis protocol.
    pub fn redis(&self) -> Vec<String> {
        self.servers.values().map(|s| s.redis.clone()).collect()
    }

    /// Where one of them does.
    pub fn redis_of(&self, number: usize) -> String {
        self.servers[&number].redis.clone()
    }

    /// The numbers of its servers.
    pub fn numbers(&self) -> Vec<usize> {
        self.servers.keys().copied().collect()
    }

    /// The server that was added last, and where it speaks the Redis protocol.
    pub fn last(&self) -> (usize, String) {
        let (number, server) = self.servers.last_key_value().expect("there are servers");
        (*number, server.redis.clone())
    }

    /// The ids of its servers.
    pub fn ids(&self) -> Vec<Value> {
        let status = self.status();
        let servers = list(&status["servers"]).iter();
        servers.map(|server| server["id"].clone()).collect()
    }

    /// Starts more servers.
    pub fn add(&mut self, servers: usize) {
        for _ in 0..servers {
            self.numbered += 1;
            self.start_server(self.numbered, "127.0.0.1:0");
        }
    }

    fn launch(&self, name: &str, arguments: &[&str]) -> (Running, Value) {
        let mut command = command();
        command
            .args(arguments)
            .args(["--json", "--data"])
            .arg(self.data.join(name))
            .env("PLUVIO_TEST_VERSIONS", self.versions);
        let mut running = Running::spawn(&mut command);
        let ready = running.ready();
        (running, ready)
    }

    fn start_coordinator(&mut self, index: usize) {
        let address = self.addresses[index].clone();
        // Both lead on one directory, one at a time.
        let arguments = [
            "coordinator",
            "--standby",
            "--replicas",
            "2",
            "--dead-server-timeout",
            SILENCE_MAX,
            "--listen",
            &address,
        ];
        let (running, ready) = self.launch("coordinator", &arguments);
        self.addresses[index] = text(&ready["addr"]);
        self.coordinators[index] = Some(running);
    }

    fn start_server(&mut self, number: usize, redis: &str) {
        let coordinators = self.coordinators();
        let arguments = [
            "server",
            "--cores",
            "1",
            "--memory",
            self.memory,
            "--coordinator",
            &coordinators,
            "--redis",
            redis,
        ];
        let (running, ready) = self.launch(&format!("server-{number}"), &arguments);
        let redis = text(&ready["redis"]);
        self.servers.insert(number, Server { running, redis });
    }

    /// Replaces a coordinator by one of another build.
    pub fn upgrade_coordinator(&mut self, index: usize, versions: &'static str) {
        self.versions = versions;
        let mut old = self.coordinators[index].take().expect("it runs");
        self.stop(&mut old, &format!("coordinator-{}", index + 1));
        self.start_coordinator(index);
    }

    /// Replaces a server by one of another build.
    pub fn upgrade_server(&mut self, number: usize, versions: &'static str) {
        self.versions = versions;
        let Server { mut running, redis } = self.servers.remove(&number).expect("it runs");
        self.stop(&mut running, &format!("server-{number}"));
        self.start_server(number, &redis);
    }

    /// Stops a process in order, and keeps what it traced.
    fn stop(&self, running: &mut Running, name: &str) {
        assert_eq!(running.stop(), Some(0), "{name}: {}", running.stderr());
        self.keep_trace(running, name);
    }

    fn keep_trace(&self, running: &Running, name: &str) {
        let file = self.traces.join(format!("{name}-{}.log", running.pid()));
        // A day whose traces cannot be kept is a day all the same.
        let _ = std::fs::write(file, running.stderr());
    }

    /// Kills the server that was added last; gives its id.
    pub fn kill_last(&mut self) -> Value {
        let (number, redis) = self.last();
        let status = self.status();
        let mut servers = list(&status["servers"]).iter();
        let id = servers.find(|s| s["redis"] == *redis).expect("it is up")["id"].clone();
        let mut server = self.servers.remove(&number).expect("it runs");
        server.running.kill();
        self.keep_trace(&server.running, &format!("server-{number}"));
        id
    }

    /// What became of a killed server.
    pub fn recovery_of(&self, id: &Value) -> String {
        let status = self.status();
        let mut recoveries = list(&status["recoveries"]).iter();
        match recoveries.find(|one| one["crashed"] == *id) {
            Some(one) => format!(
                "server {id} is recovered in {} ms: {} objects, {} bytes, on {} servers",
                one["duration_ms"],
                one["objects"],
                one["bytes"],
                one["masters"].as_array().map_or(0, Vec::len)
            ),
            None => format!("server {id} had nothing to recover"),
        }
    }

    /// Kills all processes at once, and deletes everything that they have stored.
    pub fn lose_all(&mut self) {
        let coordinators = self.coordinators.iter_mut().flatten();
        let servers = self.servers.values_mut().map(|s| &mut s.running);
        let mut all: Vec<&mut Running> = coordinators.chain(servers).collect();
        for running in &all {
            signal(running.pid(), Signal::KILL);
        }
        for running in &mut all {
            running.kill();
        }
        std::fs::remove_dir_all(&self.data).expect("a directory of ours");
    }

    /// Runs a command of the binary on this cluster, which must succeed; gives what it said.
    pub fn ask(&self, arguments: &[&str]) -> String {
        let mut command = command();
        command.env("PLUVIO_COORDINATOR", self.coordinators());
        run(command.args(arguments), b"").ok().text()
    }

    /// The same as JSON.
    pub fn ask_json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ask(&[arguments, &["--json"]].concat()))
            .expect("it is asked for JSON")
    }

    /// What `pluvio status` says.
    pub fn status(&self) -> Value {
        self.ask_json(&["status"])
    }

    /// Waits until all its servers are up, every tablet is served, and every segment has its
    /// replicas.
    pub fn wait_settled(&self) {
        wait_for("a settled cluster", || {
            let status = self.status();
            match unsettled(&status, self.servers.len()) {
                None => Ok(()),
                Some(why) => Err(format!("{why}: {status}")),
            }
        });
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for (index, running) in self.coordinators.iter().enumerate() {
            if let Some(running) = running {
                self.keep_trace(running, &format!("coordinator-{}", index + 1));
            }
        }
        for (number, server) in &self.servers {
            self.keep_trace(&server.running, &format!("server-{number}"));
        }
    }
}

/// A list in what a process of this build says.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().expect("the build says so")
}

fn text(value: &Value) -> String {
    value.as_str().expect("the build says so").to_owned()
}

fn unsettled(status: &Value, up: usize) -> Option<String> {
    let servers = list(&status["servers"]);
    let alive = servers
        .iter()
        .filter(|s| s["state"] == "up" && s["answers"] == true);
    if alive.count() != up || servers.len() != up {
        return Some(format!("not {up} servers are up"));
    }
    let tables = list(&status["tables"]);
    let mut tablets = tables.iter().flat_map(|t| list(&t["tablets"]));
    if tablets.any(|t| t["state"] != "normal") {
        return Some("tablets wait".to_owned());
    }
    let missing = crate::support::cluster::sum(status, "segments_under_replicated");
    (missing > 0).then(|| format!("{missing} segments lack replicas"))
}
