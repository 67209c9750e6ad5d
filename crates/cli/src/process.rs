//! What the processes of a cluster have in common: event loops, network, data directory, stop
//! signals, and the line that says "ready".

use crate::args::{Global, Process};
use crate::failure::Failure;
use crate::output::{print_json, print_line};
use pluvio_env::{Disk, DiskError, Env};
use pluvio_env_os::{OsOptions, OsRuntime, StopSignals, current_core, die_with_parent};
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
}

/// Runs a process of the cluster until it ends.
///
/// # Errors
/// What `work` gives, or why it could not begin.
pub fn run<F>(
    global: &Global,
    process: &Process,
    cores: u16,
    data: &Path,
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
    let disk = open_disk(&runtime, data)?;
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
        })
        .await
    });
    runtime.shutdown(SHUTDOWN_LIMIT);
    result.map(|()| ExitCode::SUCCESS)
}

/// How long a data directory may still be held by a process that was killed: its end takes a moment
/// when the machine is busy, and whoever starts it again at once should not meet an error.
const DISK_PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two looks.
const DISK_PAUSE: Duration = Duration::from_millis(50);

/// Opens the data directory; waits a moment for its former user to be gone.
fn open_disk(runtime: &OsRuntime, data: &Path) -> Result<Arc<dyn Disk>, DiskError> {
    let clock = runtime.clock();
    let give_up = clock.now() + DISK_PATIENCE;
    loop {
        match runtime.open_disk(data) {
            Ok(disk) => return Ok(disk),
            Err(DiskError::InUse { .. }) if clock.now() < give_up => {
                let clock = runtime.clock();
                runtime.block_on(async move { clock.sleep(DISK_PAUSE).await });
            }
            Err(error) => return Err(error),
        }
    }
}
