//! How long `redis-server` takes to serve again after kill -9: from its append-only file, and from
//! a snapshot.
//!
//! The server is filled over a socket file with the same keys and sizes as the cluster it is
//! compared with. Then it is killed, and started again on its files. The clock runs from the start
//! of the process to the first answer to a GET.

use crate::clock;
use crate::error::{ExperimentError, within};
use crate::suite::{Step, Watch};
use core::time::Duration;
use pluvio_load::Random;
use pluvio_load::key;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// How long a server may take to answer.
const LIMIT: Duration = Duration::from_secs(300);
/// Pause between two questions to a server that loads.
const PAUSE: Duration = Duration::from_millis(2);
/// SETs sent before their answers are read.
const OUTSTANDING: u64 = 256;

/// What Redis is filled with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RedisOptions {
    /// Objects.
    pub objects: u64,
    /// Bytes of each value.
    pub value_size: usize,
    /// Seed of the values.
    pub seed: u64,
}

/// How long Redis took to load its files.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RedisLoads {
    /// Seconds from the start of the process to the first object read, from the append-only file.
    pub aof_s: f64,
    /// The same from the snapshot.
    pub rdb_s: f64,
    /// Bytes of the append-only files.
    pub aof_bytes: u64,
    /// Bytes of the snapshot.
    pub rdb_bytes: u64,
}

/// Fills Redis, kills it, and measures how long it loads. `None` when it is not installed.
///
/// # Errors
/// It does not start, refuses a write, or gives nothing back.
pub fn redis(
    options: &RedisOptions,
    watch: Watch<'_>,
) -> Result<Option<RedisLoads>, ExperimentError> {
    within("objects", options.objects, 1..=u64::from(u32::MAX))?;
    let folder = Folder::new()?;
    watch(Step::Begins("redis: filling".into()));
    let filling = ["--appendonly", "yes", "--appendfsync", "no"];
    let Some(mut server) = Server::start(folder.path(), &filling)? else {
        return Ok(None);
    };
    server.connect()?;
    server.fill(options)?;
    server.call(b"SAVE\r\n")?;
    drop(server);
    watch(Step::Ended);
    let load = |name: &str, flags: &[&str]| {
        watch(Step::Begins(format!("redis: loading {name}")));
        let start = clock::now();
        let server = Server::start(folder.path(), flags)?;
        let mut server = server.ok_or_else(|| broken("redis-server is gone"))?;
        server.connect()?;
        let found = server.first_read(options.objects / 2)?;
        let took = start.elapsed().as_secs_f64();
        watch(Step::Ended);
        match found == options.value_size {
            true => Ok(took),
            false => Err(broken(format!("an object of {found} bytes came back"))),
        }
    };
    Ok(Some(RedisLoads {
        aof_s: load("AOF", &["--appendonly", "yes"])?,
        rdb_s: load("RDB", &["--appendonly", "no"])?,
        aof_bytes: size(&folder.path().join("appendonlydir")),
        rdb_bytes: size(&folder.path().join("dump.rdb")),
    }))
}

fn broken(problem: impl ToString) -> ExperimentError {
    ExperimentError::Contestant {
        contestant: "redis".into(),
        problem: problem.to_string(),
    }
}

/// Bytes of a file, or of the files of a folder.
fn size(path: &Path) -> u64 {
    let Ok(about) = std::fs::metadata(path) else {
        return 0;
    };
    if !about.is_dir() {
        return about.len();
    }
    let files = std::fs::read_dir(path).into_iter().flatten().flatten();
    files.map(|file| size(&file.path())).sum()
}

/// A folder of its own, gone with this value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, ExperimentError> {
        let name = format!("pluvio-bench-recovery-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).map_err(broken)?;
        Ok(Self(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing of it matters any more.
        let _removed = std::fs::remove_dir_all(&self.0);
    }
}

/// A running redis-server; killed (SIGKILL) with this value.
struct Server {
    process: Child,
    socket: PathBuf,
    connection: Option<BufReader<UnixStream>>,
}

impl Server {
    /// `None` when there is no such program.
    fn start(folder: &Path, flags: &[&str]) -> Result<Option<Self>, ExperimentError> {
        let socket = folder.join("socket");
        // A killed server leaves its own behind.
        let _gone = std::fs::remove_file(&socket);
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--aof-use-rdb-preamble", "no"]);
        command.args(["--auto-aof-rewrite-percentage", "0"]);
        command
            .arg("--dir")
            .arg(folder)
            .arg("--unixsocket")
            .arg(&socket);
        command.args(flags).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(process) => Ok(Some(Self {
                process,
                socket,
                connection: None,
            })),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(broken(error)),
        }
    }

    fn connect(&mut self) -> Result<(), ExperimentError> {
        let start = clock::now();
        loop {
            match UnixStream::connect(&self.socket) {
                Ok(stream) => {
                    self.connection = Some(BufReader::with_capacity(1 << 16, stream));
                    return Ok(());
                }
                Err(error) if start.elapsed() > LIMIT => return Err(broken(error)),
                Err(_) => std::thread::park_timeout(PAUSE),
            }
        }
    }

    fn connection(&mut self) -> Result<&mut BufReader<UnixStream>, ExperimentError> {
        self.connection
            .as_mut()
            .ok_or_else(|| broken("not connected"))
    }

    fn line(&mut self) -> Result<String, ExperimentError> {
        let mut line = String::new();
        let read = self.connection()?.read_line(&mut line).map_err(broken)?;
        match read {
            0 => Err(broken("it closed the connection")),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), ExperimentError> {
        self.connection()?
            .get_mut()
            .write_all(bytes)
            .map_err(broken)
    }

    /// A request that is answered by one good line.
    fn call(&mut self, request: &[u8]) -> Result<(), ExperimentError> {
        self.send(request)?;
        self.good()
    }

    fn good(&mut self) -> Result<(), ExperimentError> {
        match self.line()? {
            line if line.starts_with('+') => Ok(()),
            line => Err(broken(line)),
        }
    }

    fn fill(&mut self, options: &RedisOptions) -> Result<(), ExperimentError> {
        let value = Random::new(options.seed, 0).bytes(options.value_size);
        let mut number = 0;
        while number < options.objects {
            let end = options.objects.min(number + OUTSTANDING);
            let mut request = Vec::new();
            for key in (number..end).map(key) {
                let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n", key.len());
                request.extend_from_slice(head.as_bytes());
                request.extend_from_slice(&key);
                request.extend_from_slice(format!("\r\n${}\r\n", value.len()).as_bytes());
                request.extend_from_slice(&value);
                request.extend_from_slice(b"\r\n");
            }
            self.send(&request)?;
            for _ in number..end {
                self.good()?;
            }
            number = end;
        }
        Ok(())
    }

    /// Asks for an object until there is one; gives its length.
    fn first_read(&mut self, number: u64) -> Result<usize, ExperimentError> {
        let (start, key) = (clock::now(), key(number));
        let mut request = format!("*2\r\n$3\r\nGET\r\n${}\r\n", key.len()).into_bytes();
        request.extend_from_slice(&key);
        request.extend_from_slice(b"\r\n");
        loop {
            self.send(&request)?;
            let line = self.line()?;
            if let Some(length) = line.strip_prefix('$').and_then(|n| n.parse::<usize>().ok()) {
                let mut value = vec![0; length + 2];
                self.connection()?.read_exact(&mut value).map_err(broken)?;
                return Ok(length);
            }
            if !line.starts_with("-LOADING") || start.elapsed() > LIMIT {
                return Err(broken(format!("no object came back: {line}")));
            }
            std::thread::park_timeout(PAUSE);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _killed = self.process.kill();
        let _reaped = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_gives_back_what_it_was_given() {
        let options = RedisOptions {
            objects: 1000,
            value_size: 100,
            seed: 1,
        };
        let Some(loads) = redis(&options, &|_| {}).unwrap() else {
            println!("SKIPPED: redis-server is not installed");
            return;
        };
        assert!(loads.aof_s > 0.0 && loads.rdb_s > 0.0, "{loads:?}");
        assert!(
            loads.aof_bytes > 100_000 && loads.rdb_bytes > 100_000,
            "{loads:?}"
        );
    }
}
