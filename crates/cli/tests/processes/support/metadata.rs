//! Real servers of etcd and ZooKeeper, each a child process on free ports with a directory of its
//! own.

use super::gate::Gate;
use super::patience::wait_for;
use super::program::Running;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// What coordinators keep metadata in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// etcd.
    Etcd,
    /// ZooKeeper.
    ZooKeeper,
}

/// A running server. Its process and files are gone when it is dropped.
pub struct MetadataServer {
    kind: Kind,
    running: Running,
    port: u16,
    /// For etcd's servers among each other.
    peers: u16,
    directory: TempDir,
}

/// A port that nobody has. Somebody may take it before it is used; then the server says so.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

impl MetadataServer {
    /// Starts one and waits until it answers.
    #[track_caller]
    pub fn start(kind: Kind) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (port, peers) = (free_port(), free_port());
        let running = Running::spawn(&mut command(kind, directory.path(), port, peers));
        let mut this = Self {
            kind,
            running,
            port,
            peers,
            directory,
        };
        this.wait_ready();
        this
    }

    /// As `--metadata` names a place on it.
    pub fn place(&self, path: &str) -> String {
        place(self.kind, self.port, path)
    }

    /// A gate before it, and how `--metadata` names a place behind that.
    pub fn gate(&self, path: &str) -> (Gate, String) {
        let gate = Gate::before(self.kind, self.port);
        let place = place(self.kind, gate.port(), path);
        (gate, place)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Kills it; its files stay.
    pub fn kill(&mut self) {
        self.running.kill();
    }

    /// Starts it again on its files, or without them.
    #[track_caller]
    pub fn restart(&mut self, keep_files: bool) {
        if !keep_files {
            for entry in std::fs::read_dir(self.directory.path()).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    std::fs::remove_dir_all(path).unwrap();
                }
            }
        }
        let folder = self.directory.path();
        self.running = Running::spawn(&mut command(self.kind, folder, self.port, self.peers));
        self.wait_ready();
    }

    /// Both have the other's files from now on; they must have been killed.
    pub fn exchange_files(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.directory, &mut other.directory);
    }

    /// Posts JSON to etcd, with the token of a user.
    #[track_caller]
    pub fn post(&self, path: &str, token: &str, request: &Value) -> Value {
        let body = request.to_string();
        // An empty one would be a wrong one.
        let token = match token {
            "" => String::new(),
            token => format!("Authorization: {token}\r\n"),
        };
        let head = format!(
            "POST {path} HTTP/1.0\r\n{token}Content-Length: {}\r\n\r\n",
            body.len()
        );
        let answer = ask(self.port, &(head + &body)).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(" 200 "), "{path} {request}: {answer}");
        serde_json::from_str(body).unwrap()
    }

    #[track_caller]
    fn wait_ready(&mut self) {
        wait_for("the metadata server to answer", || {
            assert!(self.running.is_alive(), "{}", self.running.stderr());
            let (question, wanted) = match self.kind {
                Kind::Etcd => ("GET /health HTTP/1.0\r\n\r\n", "\"health\":\"true\""),
                Kind::ZooKeeper => ("srvr", "Mode: standalone"),
            };
            let answer = ask(self.port, question).unwrap_or_default();
            answer
                .contains(wanted)
                .then_some(())
                .ok_or_else(|| self.running.stderr())
        });
    }
}

fn place(kind: Kind, port: u16, path: &str) -> String {
    let scheme = match kind {
        Kind::Etcd => "etcd",
        Kind::ZooKeeper => "zookeeper",
    };
    format!("{scheme}://127.0.0.1:{port}{path}")
}

fn ask(port: u16, question: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(question.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn command(kind: Kind, directory: &Path, port: u16, peers: u16) -> Command {
    match kind {
        Kind::Etcd => etcd(directory, port, peers),
        Kind::ZooKeeper => zookeeper(directory, port),
    }
}

fn etcd(directory: &Path, port: u16, peers: u16) -> Command {
    let clients = format!("http://127.0.0.1:{port}");
    let peers = format!("http://127.0.0.1:{peers}");
    let mut command = Command::new("etcd");
    command
        .args(["--name", "one", "--log-level", "warn"])
        .arg("--data-dir")
        .arg(directory.join("etcd"))
        .args(["--listen-client-urls", &clients])
        .args(["--advertise-client-urls", &clients])
        .args(["--listen-peer-urls", &peers])
        .args(["--initial-advertise-peer-urls", &peers])
        .args(["--initial-cluster", &format!("one={peers}")]);
    command
}

fn zookeeper(directory: &Path, port: u16) -> Command {
    let file = directory.join("zoo.cfg");
    let data = directory.join("zookeeper");
    let lines = [
        "tickTime=500".to_owned(),
        format!("dataDir={}", data.display()),
        format!("clientPort={port}"),
        "clientPortAddress=127.0.0.1".to_owned(),
        "admin.enableServer=false".to_owned(),
        "4lw.commands.whitelist=srvr".to_owned(),
    ];
    std::fs::write(&file, lines.join("\n")).unwrap();
    let mut command = Command::new("java");
    command
        .args(["-Xmx128m", "-XX:+UseSerialGC"])
        // What is killed here is processes: a disk that is busy with what others wrote before shall
        // not hold them up.
        .args(["-Dzookeeper.forceSync=no", "-cp"])
        .arg("/usr/share/java/zookeeper.jar")
        .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
        .arg(file);
    command
}
