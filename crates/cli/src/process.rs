//! What the processes of a cluster have in common: event loops, network, data directory, stop
//! signals, and the line that says "ready".

use crate::args::{Global, Process};
use crate::failure::Failure;
use crate::output::{print_json, print_line};
use pluvio_env::{Clock, Disk, DiskError, Env};
use pluvio_env_os::{
    DiskOpener, NoDisk, OsOptions, OsRuntime, StopSignals, current_core, die_with_parent,
};
use pluvio_net::{TcpNetwork, TcpOptions};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// How long the end of a process waits for work that was given to blocking threads: an fsync on a
/// busy disk.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

/// What a process tells when it is ready, in one line of JSON on standard output. Programs rely
/// on these names.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Announcement {
    /// Always true.
    pub ready: bool,
    /// `coordinator` or `server`.
    pub role: String,
    /// The server's id.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub id: Option<u64>,
    /// Its process.
    pub pid: u32,
    /// Of a coordinator: whether it leads; otherwise it waits while another one does.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub leads: Option<bool>,
    /// Where it answers requests.
    pub addr: String,
    /// Where it speaks the Redis protocol.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub redis: Option<String>,
    /// Where it answers HTTP.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub admin: Option<String>,
}

impl Announcement {
    /// Tells it.
    ///
    /// # Errors
    /// Standard output is closed.
    pub fn tell(&self, json: bool) -> Result<(), Failure> {
        if json {
            return print_json(self);
        }
        let mut line = format!("{} ready, requests on {}", self.role, self.addr);
        if self.leads == Some(false) {
            line += ", another one leads";
        }
        for (what, at) in [("Redis", &self.redis), ("metrics", &self.admin)] {
            if let Some(at) = at {
                line += &format!(", {what} on {at}");
            }
        }
        print_line(&line)
    }
}

/// What a process has to work with.
pub struct Parts {
    /// Its environment, with the data directory.
    pub env: Env,
    /// The network, for its counters.
    pub network: Arc<TcpNetwork>,
    /// Asks it to stop.
    pub signals: StopSignals,
    /// Opens data directories, for a process that does not have one from the start.
    pub open_disk: DiskOpener,
}

/// Runs a process of the cluster until it ends; on a data directory if it has one from the start.
///
/// # Errors
/// What `work` gives, or why it could not begin.
pub fn run<F>(
    global: &Global,
    process: &Process,
    cores: u16,
    data: Option<&Path>,
    work: impl FnOnce(Parts) -> F + Send + 'static,
) -> Result<ExitCode, Failure>
where
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    if let Some(parent) = process.parent
        && !die_with_parent(parent)
            .map_err(|error| Failure::new(format!("cannot watch the parent process: {error}")))?
    {
        return Err(Failure::new("the process that started this one has ended"));
    }
    tracing::debug!(?global, ?process, "options");
    let mut options = OsOptions::with_cores(process.cores.unwrap_or(cores));
    options.pin = process.pin;
    options.spin = process.spin;
    let runtime = OsRuntime::start(&options).map_err(|error| Failure::new(error.to_string()))?;
    let open_disk = runtime.disk_opener();
    let disk = match data {
        Some(data) => {
            let (clock, open_disk) = (runtime.clock(), Arc::clone(&open_disk));
            let data = data.to_owned();
            runtime.block_on(async move {
                wait_for_disk(clock, &open_disk, &data, Some(DISK_PATIENCE)).await
            })?
        }
        None => Arc::new(NoDisk),
    };
    let network = Arc::new(TcpNetwork::new(
        TcpOptions::default(),
        runtime.tasks(),
        runtime.clock(),
        current_core,
    ));
    let env = runtime.env(network.clone(), disk);
    let result = runtime.block_on(async move {
        let signals = StopSignals::new()
            .map_err(|error| Failure::new(format!("cannot receive signals: {error}")))?;
        work(Parts {
            env,
            network,
            signals,
            open_disk,
        })
        .await
    });
    runtime.shutdown(SHUTDOWN_LIMIT);
    result.map(|()| ExitCode::SUCCESS)
}

/// Who keeps something in a data directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The cluster's metadata.
    Coordinator,
    /// Replicas of other servers' data.
    Server,
}

impl Role {
    /// What its data directory has, and no other one.
    fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Coordinator => &["metadata.redb"],
            Self::Server => &["identity.json", "frames"],
        }
    }

    /// Makes sure that a data directory is not that of the other role. Looks only.
    ///
    /// # Errors
    /// It is.
    pub fn check_directory(self, data: &Path) -> Result<(), Failure> {
        let (own, other, of_other) = match self {
            Self::Coordinator => ("coordinator", "server", Self::Server),
            Self::Server => ("server", "coordinator", Self::Coordinator),
        };
        let mut marks = of_other.marks().iter();
        match marks.find(|mark| data.join(mark).symlink_metadata().is_ok()) {
            None => Ok(()),
            Some(mark) => Err(Failure::new(format!(
                "data directory {}: it is that of a {other} ({mark} is there); give this {own} a directory of its own",
                data.display()
            ))),
        }
    }
}

/// How long a data directory may still be held by a process that was killed: its end takes a moment
/// when the machine is busy, and whoever starts it again at once should not meet an error.
pub const DISK_PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two looks.
const DISK_PAUSE: Duration = Duration::from_millis(50);

/// Opens a data directory; waits for its user to be gone, for as long as `patience` or for ever.
///
/// # Errors
/// It is in use longer than that, or cannot be used.
pub async fn wait_for_disk(
    clock: Arc<dyn Clock>,
    open_disk: &DiskOpener,
    data: &Path,
    patience: Option<Duration>,
) -> Result<Arc<dyn Disk>, DiskError> {
    let began = clock.now();
    loop {
        match open_disk(data) {
            Ok(disk) => return Ok(disk),
            Err(DiskError::InUse { .. })
                if patience.is_none_or(|patience| clock.now().since(began) < patience) =>
            {
                clock.sleep(DISK_PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
}
