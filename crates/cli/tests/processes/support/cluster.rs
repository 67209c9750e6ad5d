//! A cluster of real processes, started by `pluvio dev`.

use super::patience::{LONG, wait_for};
use super::program::{Output, Running, binary, command, run, runs, signal};
use super::resp::Resp;
use rustix::process::Signal;
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, Weak};
use tempfile::TempDir;

/// Tests with a cluster at a time. Mostly they wait for leases, clients and disks: with two at a
/// time, two processors had something to do for a third of the time.
const TESTS_MAX: usize = 4;

/// How to start a cluster.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Servers.
    pub servers: u32,
    /// Replicas of every write.
    pub replicas: u32,
    /// Log memory of each server.
    pub memory: &'static str,
    /// More flags of `pluvio dev`.
    pub flags: Vec<String>,
    /// Variables of the environment of all its processes.
    pub variables: Vec<(&'static str, String)>,
}

impl Setup {
    /// `servers` small servers and as many replicas as `dev` has by itself, or as are possible.
    pub fn servers(servers: u32) -> Self {
        Self {
            servers,
            replicas: 2,
            memory: "64MiB",
            flags: Vec::new(),
            variables: Vec::new(),
        }
    }

    /// With this many replicas.
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }

    /// With so much memory for each server.
    pub fn memory(mut self, memory: &'static str) -> Self {
        self.memory = memory;
        self
    }

    /// With more flags.
    pub fn flags(mut self, flags: &[&str]) -> Self {
        self.flags.extend(flags.iter().map(|&flag| flag.to_owned()));
        self
    }

    /// With a variable of the environment.
    pub fn variable(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    /// Starts it in a new directory.
    #[track_caller]
    pub fn start(self) -> Cluster {
        Cluster::start(self, |_| ())
    }

    /// Starts it in a new directory, after `prepare` has seen where its data will be.
    #[track_caller]
    pub fn start_on(self, prepare: impl FnOnce(&Path)) -> Cluster {
        Cluster::start(self, prepare)
    }
}

/// A running cluster. Its processes and files are gone when it is dropped.
pub struct Cluster {
    dev: Running,
    ready: Value,
    setup: Setup,
    directory: TempDir,
    _turn: Arc<Turn>,
}

impl Cluster {
    #[track_caller]
    fn start(setup: Setup, prepare: impl FnOnce(&Path)) -> Self {
        let turn = Turn::take();
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        prepare(&data);
        let (dev, ready) = launch(&setup, &data);
        Self {
            dev,
            ready,
            setup,
            directory,
            _turn: turn,
        }
    }

    /// Starts it again on the same data; it must have been stopped or killed.
    #[track_caller]
    pub fn restart(&mut self) {
        let (dev, ready) = launch(&self.setup, &self.data());
        (self.dev, self.ready) = (dev, ready);
    }

    /// Where its data is.
    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// A directory for files of the test.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The line that `dev` wrote when it was ready.
    pub fn ready(&self) -> &Value {
        &self.ready
    }

    /// The process `pluvio dev`.
    pub fn dev(&mut self) -> &mut Running {
        &mut self.dev
    }

    /// Where its coordinator listens.
    pub fn coordinator(&self) -> &str {
        self.ready["coordinator"]["addr"].as_str().unwrap()
    }

    /// Where all its coordinators listen, with commas.
    pub fn coordinators(&self) -> String {
        let all = self.ready["coordinators"].as_array().unwrap();
        let addresses: Vec<&str> = all.iter().map(|c| c["addr"].as_str().unwrap()).collect();
        addresses.join(",")
    }

    /// The coordinator's process.
    pub fn coordinator_pid(&self) -> u32 {
        number(&self.ready["coordinator"]["pid"])
    }

    /// The servers that `dev` started.
    pub fn servers(&self) -> &[Value] {
        self.ready["servers"].as_array().unwrap()
    }

    /// The process of one of them.
    pub fn pid(&self, server: usize) -> u32 {
        number(&self.servers()[server]["pid"])
    }

    /// Where one of them speaks the Redis protocol.
    pub fn redis(&self, server: usize) -> String {
        self.servers()[server]["redis"].as_str().unwrap().to_owned()
    }

    /// Where one of them speaks it to cluster clients.
    pub fn redis_cluster(&self, server: usize) -> String {
        let address = &self.servers()[server]["redis_cluster"];
        address.as_str().unwrap().to_owned()
    }

    /// Where all of them speak the Redis protocol.
    pub fn all_redis(&self) -> Vec<String> {
        (0..self.servers().len()).map(|s| self.redis(s)).collect()
    }

    /// A connection to one of them.
    #[track_caller]
    pub fn connect(&self, server: usize) -> Resp {
        Resp::connect(&self.redis(server))
    }

    /// The binary, told where this cluster is.
    pub fn command(&self) -> std::process::Command {
        let mut command = command();
        command.env("PLUVIO_COORDINATOR", self.coordinators());
        command
    }

    /// Runs a command of the binary on this cluster.
    #[track_caller]
    pub fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Output {
        run(self.command().args(arguments), b"")
    }

    /// Like [`Cluster::run`], with standard input.
    #[track_caller]
    pub fn run_with<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
        input: &[u8],
    ) -> Output {
        run(self.command().args(arguments), input)
    }

    /// What `pluvio status --json` says.
    #[track_caller]
    pub fn status(&self) -> Value {
        self.run(["status", "--json"]).json()
    }

    /// Kills one of the servers that `dev` started, at once.
    pub fn kill(&self, server: usize) {
        signal(self.pid(server), Signal::KILL);
    }

    /// Kills everything at once, and waits until it is gone.
    pub fn kill_all(&mut self) {
        // The parent first: it must not notice and restart anything.
        self.dev.kill();
        for pid in self.pids() {
            self.end(pid);
        }
    }

    /// Stops everything in an orderly way.
    #[track_caller]
    pub fn stop(&mut self) {
        assert_eq!(self.dev.stop(), Some(0), "{}", self.dev.stderr());
    }

    fn pids(&self) -> Vec<u32> {
        let servers = (0..self.servers().len()).map(|s| self.pid(s));
        let coordinators = self.ready["coordinators"].as_array().unwrap();
        servers
            .chain(coordinators.iter().map(|c| number(&c["pid"])))
            .collect()
    }

    /// Kills a process of ours, and waits until it is gone.
    fn end(&self, pid: u32) {
        let data = self.data().display().to_string();
        if runs(pid, &data) {
            signal(pid, Signal::KILL);
        }
        wait_for("a killed process to be gone", || {
            (!runs(pid, &data)).then_some(()).ok_or(pid.to_string())
        });
    }

    /// Waits until `up` servers are up, nobody is crashed, and every tablet is served.
    #[track_caller]
    pub fn wait_settled(&self, up: usize) -> Value {
        wait_for("all tablets served", || self.settled(up))
    }

    /// The status, if that is so already.
    ///
    /// # Errors
    /// What is still missing.
    pub fn settled(&self, up: usize) -> Result<Value, String> {
        let output = self.run(["status", "--json"]);
        if output.code != Some(0) {
            return Err(output.stderr);
        }
        let status = output.json();
        match unsettled(&status, up) {
            None => Ok(status),
            Some(why) => Err(format!("{why}: {status}")),
        }
    }

    /// Waits until every segment of every server has all the replicas that it should have.
    #[track_caller]
    pub fn wait_replicated(&self) {
        wait_for("full replication", || {
            let status = self.status();
            let missing = sum(&status, "segments_under_replicated");
            (missing == 0).then_some(()).ok_or(status.to_string())
        });
    }

    /// Whether the files stay when this is dropped.
    pub fn keep(&mut self, keep: bool) {
        self.directory.disable_cleanup(keep);
    }

    /// Whether a trace of a process holds this text.
    pub fn traced(&self, text: &str) -> bool {
        let logs = files_below(&self.data()).into_iter();
        let mut logs = logs.filter(|file| file.extension().is_some_and(|end| end == "log"));
        logs.any(|file| {
            let all = std::fs::read(&file).unwrap_or_default();
            String::from_utf8_lossy(&all).contains(text)
        })
    }

    /// The ends of all traces that the processes wrote.
    pub fn traces(&self) -> String {
        let mut text = format!("pluvio dev: {}\n", self.dev.stderr());
        for file in files_below(&self.data()) {
            if file.extension().is_some_and(|extension| extension == "log") {
                let all = std::fs::read(&file).unwrap_or_default();
                let tail = &all[all.len().saturating_sub(4000)..];
                text += &format!("{}:\n{}\n", file.display(), String::from_utf8_lossy(tail));
            }
        }
        text
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.traces());
            // Children die with their parent; waiting here could panic again.
            self.dev.kill();
            let data = self.data().display().to_string();
            for pid in self.pids() {
                if runs(pid, &data) {
                    signal(pid, Signal::KILL);
                }
            }
        } else {
            self.kill_all();
        }
    }
}

#[track_caller]
fn launch(setup: &Setup, data: &Path) -> (Running, Value) {
    let mut command = command();
    command.envs(setup.variables.iter().map(|(name, value)| (name, value)));
    command
        .args(["dev", "--json", "--coordinator-port", "0", "--cores", "1"])
        .args(["--servers", &setup.servers.to_string()])
        .args(["--replicas", &setup.replicas.to_string()])
        .args(["--memory", setup.memory])
        .arg("--data")
        .arg(data)
        .args(&setup.flags);
    if !setup.flags.iter().any(|flag| flag == "--redis-port") {
        command.args(["--redis-port", "0"]);
    }
    let mut dev = Running::spawn(&mut command);
    let ready = dev.ready();
    (dev, ready)
}

/// Why not everything is served by `up` servers, in a status.
fn unsettled(status: &Value, up: usize) -> Option<String> {
    let servers = status["servers"].as_array().unwrap();
    let alive = servers
        .iter()
        .filter(|s| s["state"] == "up" && s["answers"] == true);
    let alive = alive.count();
    if alive != up || servers.len() != up {
        return Some(format!("{alive} of {} servers are up", servers.len()));
    }
    let tables = status["tables"].as_array().unwrap();
    let tablets = tables.iter().flat_map(|t| t["tablets"].as_array().unwrap());
    let waiting = tablets.filter(|t| t["state"] != "normal").count();
    (waiting > 0).then(|| format!("{waiting} tablets wait"))
}

/// The sum of a field over the servers of a status.
pub fn sum(status: &Value, field: &str) -> u64 {
    let servers = status["servers"].as_array().unwrap();
    let each = servers.iter().filter_map(|s| s[field].as_u64());
    each.sum()
}

/// All files below `directory`.
pub fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_below(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn number(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap()).unwrap()
}

/// The right to run clusters; a test's thread takes it once, however many clusters it starts.
pub struct Turn;

static TURNS: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());
thread_local! {
    static MINE: std::cell::RefCell<Weak<Turn>> = const { std::cell::RefCell::new(Weak::new()) };
}

impl Turn {
    /// Waits for it.
    pub fn take() -> Arc<Self> {
        // Said early: without the binary nothing below makes sense.
        assert!(binary().exists(), "{} is missing", binary().display());
        MINE.with_borrow_mut(|mine| {
            if let Some(turn) = mine.upgrade() {
                return turn;
            }
            let (count, changed) = &TURNS;
            let taken = count.lock().unwrap();
            let (mut taken, late) = changed
                .wait_timeout_while(taken, 20 * LONG, |taken| *taken >= TESTS_MAX)
                .unwrap();
            assert!(!late.timed_out(), "other tests do not end");
            *taken += 1;
            let turn = Arc::new(Self);
            *mine = Arc::downgrade(&turn);
            turn
        })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let (count, changed) = &TURNS;
        *count.lock().unwrap() -= 1;
        changed.notify_one();
    }
}
