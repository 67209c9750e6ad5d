//! Redis and memcached as contestants: the real servers, started on a socket file of their own.
//!
//! One connection, pipelined: a write is answered by the time some hundred later ones were sent.
//! Memory is compared here; speed over a socket is the business of `network`.

use super::{KeyValue, Kind, Refusal, Setup, ample, memory, refused};
use crate::clock;
use crate::error::ExperimentError;
use core::time::Duration;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Writes whose answers may be outstanding.
const OUTSTANDING: usize = 256;
/// How long a server may take to listen.
const START_LIMIT: Duration = Duration::from_secs(10);

/// A server of others.
pub(crate) struct Server {
    kind: Kind,
    process: Child,
    folder: PathBuf,
    connection: Mutex<Connection>,
}

struct Connection {
    reader: BufReader<UnixStream>,
    unsent: Vec<u8>,
    outstanding: usize,
}

/// The program of a server; Debian's package has the same name.
fn program_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Redis => "redis-server",
        _ => "memcached",
    }
}

/// Whether a server of this kind can be started here.
#[must_use]
pub fn is_installed(kind: Kind) -> bool {
    let mut command = Command::new(program_of(kind));
    command
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl Server {
    pub(crate) fn start(setup: &Setup) -> Result<Self, ExperimentError> {
        let kind = setup.kind;
        let failed = |problem: String| refused(kind, problem);
        let name = format!("pluvio-bench-{}-{}", kind.name(), std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).map_err(|error| failed(error.to_string()))?;
        let socket = folder.join("socket");
        let mib = ample(setup.memory) >> 20;
        let mut command = Command::new(program_of(kind));
        match kind == Kind::Redis {
            true => {
                command.args(["--port", "0", "--save", "", "--appendonly", "no"]);
                command
                    .arg("--unixsocket")
                    .arg(&socket)
                    .arg("--dir")
                    .arg(&folder);
            }
            false => {
                command.args(["-t", "1", "-u", "root", "-M", "-m", &mib.to_string()]);
                command.arg("-s").arg(&socket);
            }
        }
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| {
                let package = program_of(kind);
                failed(format!("{error}; on Debian: apt-get install {package}"))
            })?;
        let started = clock::now();
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(error) if started.elapsed() > START_LIMIT => {
                    return Err(failed(format!("it does not listen: {error}")));
                }
                Err(_) => std::thread::park_timeout(Duration::from_millis(5)),
            }
        };
        let connection = Connection {
            reader: BufReader::with_capacity(1 << 16, stream),
            unsent: Vec::new(),
            outstanding: 0,
        };
        Ok(Self {
            kind,
            process,
            folder,
            connection: Mutex::new(connection),
        })
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A request that takes no part in the pipeline's answers but their number.
    fn write(&self, request: &[&[u8]]) -> Result<(), Refusal> {
        let mut connection = self.connection();
        for part in request {
            connection.unsent.extend_from_slice(part);
        }
        connection.outstanding += 1;
        match connection.outstanding >= OUTSTANDING {
            true => connection.drain().map_err(Refusal::Fatal),
            false => Ok(()),
        }
    }
}

impl Connection {
    fn send(&mut self) -> Result<(), String> {
        let unsent = std::mem::take(&mut self.unsent);
        let sent = self.reader.get_mut().write_all(&unsent);
        sent.map_err(|error| error.to_string())
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => Err("the server closed the connection".into()),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Sends what is unsent and reads all answers to writes and deletes.
    fn drain(&mut self) -> Result<(), String> {
        self.send()?;
        for _ in 0..std::mem::take(&mut self.outstanding) {
            let line = self.line()?;
            if line.starts_with('-') || line.contains("ERROR") || line.starts_with("NOT_STORED") {
                return Err(line);
            }
        }
        Ok(())
    }

    fn value(&mut self, length: usize, into: &mut Vec<u8>) -> Result<(), String> {
        into.resize(length + 2, 0);
        let read = self.reader.read_exact(into);
        into.truncate(length);
        read.map_err(|error| error.to_string())
    }

    /// One read, answered at once.
    fn get(&mut self, kind: Kind, key: u64, into: &mut Vec<u8>) -> Result<bool, String> {
        self.drain()?;
        let key = text(key);
        match kind == Kind::Redis {
            true => self.unsent.extend_from_slice(b"*2\r\n$3\r\nGET\r\n$8\r\n"),
            false => self.unsent.extend_from_slice(b"get "),
        }
        self.unsent.extend_from_slice(&key);
        self.unsent.extend_from_slice(b"\r\n");
        self.send()?;
        let head = self.line()?;
        if kind == Kind::Redis {
            return match head.strip_prefix('$').and_then(|n| n.parse::<i64>().ok()) {
                Some(length) if length >= 0 => self.value(length as usize, into).map(|()| true),
                Some(_) => Ok(false),
                None => Err(head),
            };
        }
        match head.strip_prefix("VALUE ") {
            Some(rest) => {
                let length = rest.rsplit(' ').next().and_then(|n| n.parse().ok());
                self.value(length.ok_or(head.clone())?, into)?;
                self.line().map(|_| true)
            }
            None if head == "END" => Ok(false),
            None => Err(head),
        }
    }
}

/// Printable characters but for the space: what both protocols take.
const DIGITS: u64 = 94;
const FIRST_DIGIT: u8 = b'!';

/// A key of eight bytes, another one for each number: of 52 bits, more than those of all
/// threads' streams have.
fn text(key: u64) -> [u8; 8] {
    let mut rest = key;
    let text = core::array::from_fn(|_| {
        let digit = (rest % DIGITS) as u8;
        rest /= DIGITS;
        FIRST_DIGIT + digit
    });
    assert_eq!(rest, 0, "key {key} has no place in eight characters");
    text
}

impl KeyValue for Server {
    fn get(&self, key: u64, into: &mut Vec<u8>) -> bool {
        into.clear();
        self.connection().get(self.kind, key, into).unwrap_or(false)
    }

    fn put(&self, key: u64, value: &[u8]) -> Result<(), Refusal> {
        let key = text(key);
        match self.kind == Kind::Redis {
            true => {
                let head = format!("\r\n${}\r\n", value.len());
                self.write(&[
                    b"*3\r\n$3\r\nSET\r\n$8\r\n",
                    &key,
                    head.as_bytes(),
                    value,
                    b"\r\n",
                ])
            }
            false => {
                let head = format!(" 0 0 {}\r\n", value.len());
                self.write(&[b"set ", &key, head.as_bytes(), value, b"\r\n"])
            }
        }
    }

    fn delete(&self, key: u64) -> Result<bool, Refusal> {
        let key = text(key);
        match self.kind == Kind::Redis {
            true => self.write(&[b"*2\r\n$3\r\nDEL\r\n$8\r\n", &key, b"\r\n"])?,
            false => self.write(&[b"delete ", &key, b"\r\n"])?,
        }
        Ok(true)
    }

    fn gives_back_by_itself(&self) -> bool {
        // Its allocator has such a thread; memcached keeps what it has.
        self.kind == Kind::Redis
    }

    fn resident(&self) -> u64 {
        // A failure shows at the next operation.
        let _later = self.connection().drain();
        memory::resident(Some(self.process.id()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing can be done about a failure, and nothing is left that matters.
        let _killed = self.process.kill();
        let _reaped = self.process.wait();
        let _removed = std::fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::THREADS_MAX;
    use std::collections::BTreeSet;

    #[test]
    fn keys_of_all_threads_differ_and_fit_both_protocols() {
        let mut seen = BTreeSet::new();
        for thread in [0, 1, 2, 93, 94, THREADS_MAX as u64 - 1] {
            for number in [0, 1, 93, 94, 65_535, u64::from(u32::MAX), (1 << 40) - 1] {
                let text = text((thread << 40) | number);
                assert!(text.iter().all(u8::is_ascii_graphic), "{text:?}");
                assert!(seen.insert(text), "thread {thread}, number {number}");
            }
        }
    }
}
