//! The servers of the experiment, as programs: ours with its coordinator, and Redis.

use crate::children::Child;
use crate::error::{JumpError, Result};
use crate::turns::now;
use pluvio_units::Size;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The program; Debian's package has the same name.
pub(super) const REDIS: &str = "redis-server";
/// Where our processes listen: at any port.
const HERE: &str = "127.0.0.1:0";
/// How long a server may take to listen.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Pause between two attempts to reach one.
const PAUSE: Duration = Duration::from_millis(5);

/// A coordinator and a server that keeps no replicas, as Redis keeps none here.
pub(super) struct Ours {
    _coordinator: Child,
    _server: Child,
    pub(super) coordinator: String,
    pub(super) door: PathBuf,
}

impl Ours {
    /// Starts them from the program `pluvio`, with their files below `folder`. With `rings`,
    /// callers ask the server by rings in shared memory instead of TCP.
    pub(super) fn start(pluvio: &Path, folder: &Path, memory: Size, rings: bool) -> Result<Self> {
        let parent = std::process::id().to_string();
        let command = |role: &str, listen: &str| {
            let mut command = Command::new(pluvio);
            for (variable, _) in std::env::vars_os() {
                if variable.to_string_lossy().starts_with("PLUVIO_") {
                    command.env_remove(variable);
                }
            }
            command.args([
                role, "--json", "--log", "warn", "--parent", &parent, "--cores", "1",
            ]);
            command
                .args(["--listen", listen, "--data"])
                .arg(folder.join(role));
            command
        };
        let who = |role: &str| format!("the {role} ({})", pluvio.display());
        let mut first = command("coordinator", HERE);
        first.args(["--replicas", "0"]);
        let (one, coordinator) = started(&who("coordinator"), &mut first)?;
        let door = folder.join("door");
        let listen = match rings {
            true => format!("{HERE}+shm:{}", folder.join("ring").display()),
            false => HERE.to_owned(),
        };
        let mut second = command("server", &listen);
        second.args([
            "--coordinator",
            &coordinator,
            "--memory",
            &memory.bytes().to_string(),
        ]);
        second.arg("--mapped-reads").arg(&door);
        let (two, _) = started(&who("server"), &mut second)?;
        Ok(Self {
            _coordinator: one,
            _server: two,
            coordinator,
            door,
        })
    }
}

/// Starts a process of ours, and waits for the line that says where it listens.
fn started(who: &str, command: &mut Command) -> Result<(Child, String)> {
    let mut child = Child::start(who, command)?;
    let line = child.line()?;
    let said: serde_json::Value =
        serde_json::from_str(&line).map_err(|error| JumpError::of(who, error))?;
    match said["addr"].as_str() {
        Some(address) => Ok((child, address.to_owned())),
        None => Err(JumpError::of(who, line)),
    }
}

/// A Redis server that keeps nothing on disk.
pub(super) struct Redis {
    _server: Child,
    pub(super) socket: PathBuf,
}

impl Redis {
    pub(super) fn start(folder: &Path, name: &str) -> Result<Self> {
        let socket = folder.join(name);
        let mut command = Command::new(REDIS);
        command.args([
            "--port",
            "0",
            "--save",
            "",
            "--appendonly",
            "no",
            "--logfile",
            "/dev/null",
        ]);
        command
            .arg("--unixsocket")
            .arg(&socket)
            .arg("--dir")
            .arg(folder);
        let server = Child::start(name, &mut command)?;
        let begin = now();
        while let Err(error) = UnixStream::connect(&socket) {
            if begin.elapsed() > START_LIMIT {
                return Err(JumpError::of(name, format!("it does not listen: {error}")));
            }
            std::thread::park_timeout(PAUSE);
        }
        Ok(Self {
            _server: server,
            socket,
        })
    }
}
