//! Event loops, network, data directory and stop signals, which the processes of a cluster have in
//! common.

use crate::args::Process;
use crate::spans;
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;

use pluvio_console::ports;
use pluvio_console::tls::renew;
use pluvio_env::{Address, Clock, Disk, DiskError, Env};
use pluvio_env_os::{
    DiskOpener, NoDisk, OsOptions, OsRuntime, StopSignals, current_core, die_with_parent,
};
use pluvio_net::{NetOptions, OsNetwork, Tls};
use pluvio_units::{CoreId, Size};
use pluvio_wire::Versions;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// How long the end of a process waits for work that was given to blocking threads: an fsync on a
/// busy disk.
pub const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

/// Files that a process keeps for other things than incoming connections: the frames that its
/// backup writes, and files that are always open.
const FILES_KEPT: u64 = 1024 + 256;
/// The same for each event loop: what it waits with, and its connections to other processes.
const FILES_KEPT_BY_CORE: u64 = 64;
/// With fewer files a process could hardly do anything.
const FILES_MIN: u64 = 64;

/// How many connections a process takes at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connections {
    /// Of Redis clients.
    pub redis: usize,
    /// Of clients and other processes of the cluster.
    pub rpc: usize,
}

impl Connections {
    /// So many of those that are wanted that there are always files left for replicas. Each
    /// connection is an open file, and clients that only wait must not keep a server from opening
    /// the next frame.
    ///
    /// # Errors
    /// There are too few files for anything.
    fn within(files: u64, cores: u16, wanted: Self) -> Result<Self, Failure> {
        if files < FILES_MIN {
            return Err(Failure::new(format!(
                "this process may open {files} files, and needs {FILES_MIN} at least; raise the limit (ulimit -n, LimitNOFILE=)"
            )));
        }
        let kept = FILES_KEPT + FILES_KEPT_BY_CORE * u64::from(cores);
        let shared = usize::try_from(files - kept.min(files / 2)).unwrap_or(usize::MAX);
        // A quarter at least is for the cluster.
        let redis = wanted.redis.min(shared - shared / 4);
        let rpc = wanted.rpc.min(shared - redis);
        Ok(Self { redis, rpc })
    }
}

/// What a process has to work with.
pub struct Parts {
    /// Its environment, with the data directory.
    pub env: Env,
    /// The network, for its counters.
    pub network: Arc<OsNetwork>,
    /// Its TLS, for the admin port, if it has any.
    pub tls: Option<Arc<Tls>>,
    /// Connections that it may take.
    pub connections: Connections,
    /// Asks it to stop.
    pub signals: StopSignals,
    /// Opens data directories, for a process that does not have one from the start.
    pub open_disk: DiskOpener,
}

/// Least memory of the connections of the RPC port, where the options do not name it.
const RPC_MEMORY: Size = Size::mib(512);
/// The most, likewise.
const RPC_MEMORY_MAX: Size = Size::mib(1024);

/// Memory of the connections of a server's RPC port, by default, beside this log memory.
pub fn rpc_memory(memory: Size) -> Size {
    Size(memory.bytes() / 4).clamp(RPC_MEMORY, RPC_MEMORY_MAX)
}

/// Runs a process of the cluster until it ends; on a data directory if it has one from the start.
/// `redis`: most connections of Redis clients that are wanted; `service`: its name in traces.
///
/// # Errors
/// The error of `work`, or the reason why it could not begin.
pub fn run<F>(
    global: &Global,
    process: &Process,
    cores: u16,
    data: Option<&Path>,
    redis: usize,
    service: &'static str,
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
    let tls = global.tls.load(runtime.clock())?;
    let mut net = NetOptions::default();
    let wanted = Connections {
        redis,
        rpc: net.connections_max,
    };
    let (files, loops) = (runtime.open_files_max(), runtime.tasks().cores());
    let connections = Connections::within(files, loops, wanted)?;
    if connections != wanted {
        tracing::warn!(
            redis_connections_max = connections.redis,
            rpc_connections_max = connections.rpc,
            "takes at most these connections, fewer than configured, because this process may open {files} files; raise the limit (ulimit -n, LimitNOFILE=)"
        );
    }
    net.connections_max = connections.rpc;
    net.ring_connections_max = net.ring_connections_max.min(connections.rpc);
    net.spin = process.spin;
    let rpc_memory = process.rpc_memory.unwrap_or(RPC_MEMORY).bytes();
    net.connections_bytes_max = usize::try_from(rpc_memory).unwrap_or(usize::MAX);
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
    if let Some(tls) = &tls {
        let (clock, tasks) = (runtime.clock(), runtime.tasks());
        let renewal = renew(Arc::clone(tls), clock, Arc::clone(&tasks));
        let _runs_to_the_end = tasks.spawn(CoreId(0), "renew certificates", renewal);
    }
    let network = Arc::new(OsNetwork::with_tls(
        net,
        tls.clone(),
        runtime.tasks(),
        runtime.clock(),
        current_core,
    ));
    let env = runtime.env(network.clone(), disk);
    let result = runtime.block_on(async move {
        let signals = StopSignals::new()
            .map_err(|error| Failure::new(format!("cannot receive signals: {error}")))?;
        let exporter = spans::start(&env, service);
        let result = work(Parts {
            env,
            network,
            tls,
            connections,
            signals,
            open_disk,
        })
        .await;
        if let Some(exporter) = exporter {
            exporter.flush(spans::FLUSH_LIMIT).await;
        }
        result
    });
    runtime.shutdown(SHUTDOWN_LIMIT);
    result.map(|()| ExitCode::SUCCESS)
}

/// Whether processes at any of `others` may reach a port of this one at `listen`. One that is open
/// on the loopback only is reached from this machine and no other.
pub fn may_be_reached<'a>(listen: &str, others: impl IntoIterator<Item = &'a str>) -> bool {
    let own = Address::from(listen);
    let own = own.first().place;
    let own = ports::hosts(own).first().copied();
    if !own.is_some_and(|own| own.is_loopback()) {
        return true;
    }
    let all: Vec<_> = others.into_iter().map(ports::hosts).collect();
    // A port can be opened only at an address of this machine.
    one_is_here(&all, |ip| UdpSocket::bind((ip, 0)).is_ok())
}

/// Looks that the certificate of a process has the name by which others will call it: --tls-name,
/// or the address that it listens at.
///
/// # Errors
/// It has not. The others would refuse the process.
pub fn is_called_at(tls: &Tls, listen: &str) -> Result<(), Failure> {
    let own = Address::from(listen);
    let own = own.first().place;
    // A host that is not found, or no address, is told when it listens.
    let Some(host) = ports::hosts(own).first().copied() else {
        return Ok(());
    };
    let at = SocketAddr::new(host, 0).to_string();
    let called = tls.is_called_at(&at);
    called.map_err(|error| Failure::new(error.to_string()))
}

/// Whether one of these hosts may be this machine; those that are not found may be.
fn one_is_here(hosts: &[Vec<IpAddr>], is_own: impl Fn(IpAddr) -> bool) -> bool {
    let is_here = |ip: &IpAddr| ip.is_loopback() || is_own(*ip);
    let may_be = |host: &Vec<IpAddr>| host.is_empty() || host.iter().any(is_here);
    hosts.iter().any(may_be)
}

/// How long a data directory may still be held by a process that was killed. Its end takes a moment
/// when the machine is busy, and a restart at once should succeed.
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
    // A caller that waits for ever has said so itself.
    let mut unsaid = patience;
    loop {
        match open_disk(data) {
            Ok(disk) => return Ok(disk),
            Err(DiskError::InUse { .. })
                if patience.is_none_or(|patience| clock.now().since(began) < patience) =>
            {
                if let Some(patience) = unsaid.take() {
                    tracing::warn!(directory = %data.display(), "another process uses the data directory; waits {patience:?} for it to end");
                }
                clock.sleep(DISK_PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// The versions that this process speaks. Tests let a build with debug assertions be another one:
/// `PLUVIO_TEST_VERSIONS=7-8`.
pub fn versions() -> Versions {
    let own = Versions::OWN;
    if !cfg!(debug_assertions) {
        return own;
    }
    let given = std::env::var("PLUVIO_TEST_VERSIONS").ok();
    let read = given.as_deref().and_then(|text| {
        let (oldest, newest) = text.split_once('-')?;
        let (oldest, newest) = (oldest.parse().ok()?, newest.parse().ok()?);
        Some(Versions { oldest, newest })
    });
    read.unwrap_or(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_replicas() {
        let wanted = Connections {
            redis: 10_000,
            rpc: 16_384,
        };
        for (files, cores, redis, rpc) in [
            (u64::MAX, 256, 10_000, 16_384),
            (1 << 20, 16, 10_000, 16_384),
            (20_000, 4, 10_000, 8_464),
            (4096, 4, 1920, 640),
            (1024, 4, 384, 128),
            (1024, 1, 384, 128),
            (100, 1, 38, 12),
            (64, 1, 24, 8),
        ] {
            let taken = Connections::within(files, cores, wanted).unwrap();
            assert_eq!((taken.redis, taken.rpc), (redis, rpc), "{files} files");
        }
        let coordinator = Connections { redis: 0, ..wanted };
        let taken = Connections::within(20_000, 1, coordinator).unwrap();
        assert_eq!(taken, coordinator);
        let refused = Connections::within(63, 1, wanted).unwrap_err();
        assert!(refused.to_string().contains("ulimit -n"), "{refused}");
    }

    #[test]
    fn a_loopback_address_is_reached_from_the_same_machine() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let own = ip("10.0.0.1");
        let reached = |hosts: &[Vec<IpAddr>]| one_is_here(hosts, |ip| ip == own);
        assert!(reached(&[vec![ip("127.0.0.1")]]));
        assert!(reached(&[vec![ip("10.0.0.2")], vec![ip("::1")]]));
        assert!(reached(&[vec![ip("10.0.0.2"), own]]));
        // A name that is not found.
        assert!(reached(&[vec![ip("10.0.0.2")], vec![]]));
        assert!(!reached(&[vec![ip("10.0.0.2")], vec![ip("10.0.0.3")]]));
        // Addresses for documents, which no machine has.
        let elsewhere = ["203.0.113.1:7700", "203.0.113.2:7700"];
        assert!(!may_be_reached("127.0.0.1:0", elsewhere));
        assert!(!may_be_reached("[::1]:7700", elsewhere));
        assert!(!may_be_reached("udp:127.0.0.1:0", elsewhere));
        assert!(may_be_reached("203.0.113.3:0", elsewhere));
        assert!(may_be_reached(
            "127.0.0.1:0",
            ["203.0.113.1:7700", "127.0.0.1:7700"]
        ));
    }
}
