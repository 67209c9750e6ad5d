//! `pluvio server`: one server as a process.

use crate::admin::metrics::{Metrics, RedisNumbers};
use crate::admin::{Admin, Subject};
use crate::args::{self, HugePages, Reader, Server as Arguments, Switch, Update};
use crate::heap;
use crate::machine;
use crate::mapped;
use crate::process::{self, DISK_PATIENCE, Parts, wait_for_disk};
use crate::spans;
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::number_of;
use pluvio_console::ports;
use pluvio_door::{Door, DoorOptions};
use pluvio_env::{Address, BoxFuture, DiskError, Env, MappedMemory, Transport};
use pluvio_env_os::{DiskOpener, Phase, StopSignal, StopSignals, tell_manager};
use pluvio_local::stamps::{Notes, Stamped};
use pluvio_local::{Announcement, Durability, REDIS_PASSWORD, Role};
use pluvio_net::{OsNetwork, Tls};
use pluvio_server::{
    FurtherDirectory, MachineFn, MissingData, Password, Server, ServerError, ServerOptions,
};
use pluvio_units::{CoreId, Size};
use pluvio_wire::DoorPlace;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Runs the server until it is asked to stop or the cluster has declared it dead.
///
/// # Errors
/// It cannot start, or was declared dead.
pub fn run(global: &Global, arguments: &Arguments) -> Result<ExitCode, Failure> {
    for data in &arguments.data {
        Role::Server.check_directory(data)?;
    }
    let first = first_of(arguments)?.to_owned();
    check_each_once(&arguments.data)?;
    let listen = Address::from(arguments.listen.as_str());
    ports::check(&[
        ("--listen", listen.place_of(Transport::Tcp)),
        ("--redis", arguments.redis.as_deref()),
        ("--redis-cluster", arguments.redis_cluster.as_deref()),
        ("--admin", arguments.admin.as_deref()),
    ])?;
    let there = memory_limit(|path| std::fs::read_to_string(path).ok());
    check_memory(arguments, there)?;
    let (listen, coordinator) = (&arguments.listen, &global.coordinator);
    if !process::may_be_reached(listen, coordinator.split(',')) {
        return Err(Failure::usage(format!(
            "--listen {listen}: the coordinator at {coordinator} is on another machine and cannot reach this address; give one by which the others reach this machine"
        )));
    }
    let (coordinator, timeout, json) = (coordinator.clone(), global.timeout, global.json);
    let given = arguments.clone();
    let has_redis = arguments.redis.is_some() || arguments.redis_cluster.is_some();
    let redis = usize::from(has_redis) * arguments.redis_connections_max as usize;
    let mut common = arguments.process.clone();
    let rpc_memory = common.rpc_memory;
    common.rpc_memory = rpc_memory.or_else(|| Some(process::rpc_memory(arguments.memory)));
    process::run(
        global,
        &common,
        0,
        Some(&first),
        redis,
        "pluvio-server",
        move |parts| serve(parts, coordinator, given, timeout, json),
    )
}

/// The first data directory.
fn first_of(arguments: &Arguments) -> Result<&Path, Failure> {
    let first = arguments.data.first().map(PathBuf::as_path);
    first.ok_or_else(|| Failure::usage("--data: name a directory".to_owned()))
}

/// Refuses a data directory that is named twice, in whatever words.
fn check_each_once(data: &[PathBuf]) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    for path in data {
        let known_as = path.canonicalize().or_else(|_| std::path::absolute(path));
        if known_as.is_ok_and(|known_as| !seen.insert(known_as)) {
            let path = path.display();
            return Err(Failure::usage(format!(
                "--data: {path} is named twice; name each directory once"
            )));
        }
    }
    Ok(())
}

/// Opens the data directories behind the first one. The server tells of a failure, and knows how to
/// go on.
async fn further(
    env: &Env,
    open_disk: &DiskOpener,
    arguments: &Arguments,
) -> Vec<FurtherDirectory> {
    let mut all = Vec::new();
    let first = arguments.data.first().and_then(|first| device_of(first));
    for path in arguments.data.iter().skip(1) {
        let clock = Arc::clone(&env.clock);
        // One that is missing is not made: a device may not be mounted.
        let disk = match path.try_exists() {
            Ok(false) => Err(DiskError::Other {
                path: path.display().to_string(),
                message: "it does not exist; mount its device, or make it".to_owned(),
            }),
            Ok(true) | Err(_) => wait_for_disk(clock, open_disk, path, Some(DISK_PATIENCE)).await,
        };
        if first.is_some() && device_of(path) == first {
            tracing::warn!(directory = %path.display(), "this data directory is on the device of the first one, and fails with it");
        }
        all.push(FurtherDirectory {
            name: path.display().to_string(),
            disk,
        });
    }
    all
}

/// Bytes that a server takes beside its log at least.
const BESIDE_LOG: u64 = 32 << 20;

/// Warns if the log's memory is as much as there is of memory. Refuses that if all of it is fetched
/// at once: the system would kill this process soon after its start, or another one.
fn check_memory(arguments: &Arguments, there: Option<Size>) -> Result<(), Failure> {
    let memory = arguments.memory;
    let Some(there) =
        there.filter(|there| memory.bytes().saturating_add(BESIDE_LOG) > there.bytes())
    else {
        return Ok(());
    };
    if arguments.populate {
        return Err(Failure::usage(format!(
            "--populate fetches all of --memory {memory}, and this machine, or the control group of this process, has {there}; give less memory, or leave --populate out"
        )));
    }
    tracing::warn!(
        "--memory {memory}: this machine, or the control group of this process, has {there}; the process may be killed when that is used up"
    );
    Ok(())
}

/// The device that a directory is on.
fn device_of(path: &Path) -> Option<u64> {
    path.metadata().ok().map(|metadata| metadata.dev())
}

/// Memory that this process may use: what the machine has, or what the control groups that it is in
/// may have if that is less.
fn memory_limit(read: impl Fn(&str) -> Option<String>) -> Option<Size> {
    let mut least = read("/proc/meminfo").and_then(|text| {
        let mut lines = text.lines();
        let total = lines.find_map(|line| line.strip_prefix("MemTotal:"))?;
        let kilobytes = total.trim().strip_suffix("kB")?.trim_end();
        Some(kilobytes.parse::<u64>().ok()? << 10)
    });
    for line in read("/proc/self/cgroup").unwrap_or_default().lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (root, file) = match parts.next() {
            Some("") => ("/sys/fs/cgroup", "memory.max"),
            Some("memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            Some(_) | None => continue,
        };
        // Those above limit it, too.
        for group in Path::new(parts.next().unwrap_or_default()).ancestors() {
            let group = group.display().to_string();
            let text = read(&format!("{root}{}/{file}", group.trim_end_matches('/')));
            let limit = text.and_then(|text| text.trim().parse().ok());
            least = [least, limit].into_iter().flatten().min();
        }
    }
    least.map(Size)
}

async fn serve(
    parts: Parts,
    coordinator: String,
    arguments: Arguments,
    timeout: Duration,
    json: bool,
) -> Result<(), Failure> {
    let Parts {
        mut env,
        network,
        tls,
        connections,
        mut signals,
        open_disk,
    } = parts;
    let notes = arguments.stamps.then(Notes::default);
    if let Some(notes) = &notes {
        let (inner, clock) = (env.network.clone(), env.clock.clone());
        env.network = Arc::new(Stamped::new(inner, clock, notes.clone()));
    }
    if let Some(tls) = &tls {
        process::is_called_at(tls, &arguments.listen)?;
    }
    let subject = Arc::new(Pages {
        server: Mutex::new(Weak::new()),
        network,
        tls: tls.clone(),
    });
    let admin = match &arguments.admin {
        Some(address) => Some(Admin::start(&env, address, tls, subject.clone(), false).await?),
        None => None,
    };
    let admin_address = admin.as_ref().map(|a| a.address.clone());
    let mut options = options(&coordinator, &arguments, admin_address.clone(), timeout);
    options.redis_password = redis_password(&arguments)?;
    options.redis_protected = arguments.redis_protected_mode == Switch::Yes;
    options.redis_connections_max = connections.redis;
    options.further = further(&env, &open_disk, &arguments).await;
    options.trace = spans::sampler(arguments.trace_sample);
    heap::bound();
    tell_manager(Phase::Waits(
        "waits for the coordinator to take this server",
    ));
    let started = tokio::select! {
        biased;
        signal = signals.next() => {
            tracing::info!(%signal, "stopped before the coordinator answered");
            return Ok(());
        }
        started = Server::start(env.clone(), options) => started,
    };
    let server = Arc::new(started.map_err(|error| failure(error, &arguments))?);
    *subject.place() = Arc::downgrade(&server);
    let small = server.redis_memory().map(|memory| {
        let (clock, tasks) = (Arc::clone(&env.clock), Arc::clone(&env.tasks));
        let keep = heap::keep_small(clock, tasks, memory);
        env.tasks.spawn(CoreId(0), "keep the heap small", keep)
    });
    let door = open_door(&server, &arguments, env.mapped.as_deref())?;
    Announcement {
        ready: true,
        role: "server".into(),
        id: Some(server.id().0),
        leads: None,
        pid: std::process::id(),
        addr: server.address().to_string(),
        redis: server.redis_address().map(ToString::to_string),
        redis_cluster: server.redis_cluster_address().map(ToString::to_string),
        admin: admin_address,
    }
    .tell(json);
    tell_manager(Phase::Ready);
    let result = tokio::select! {
        biased;
        signal = signals.next() => {
            tracing::info!(%signal, "stopping");
            tell_manager(Phase::Stopping(arguments.drain_timeout + process::SHUTDOWN_LIMIT * 2));
            if signal == StopSignal::Terminate && !arguments.drain_timeout.is_zero() {
                leave(&server, &mut signals, arguments.drain_timeout).await;
            }
            Ok(())
        }
        why = server.expelled() => Err(Failure::new(format!(
            "this server is no member of the cluster any more: {why}; start it again on the same data directory, it joins as a new server"
        ))),
    };
    if let Some(small) = small {
        small.abort();
    }
    drop(admin);
    drop(door);
    drop(server);
    if let Some(notes) = notes {
        let data = first_of(&arguments)?;
        let written = notes.write(data);
        written.map_err(|error| Failure::file(data, &error))?;
    }
    result
}

/// Lets processes of this machine read the server's memory, if that is wanted.
fn open_door(
    server: &Arc<Server>,
    arguments: &Arguments,
    memory: Option<&dyn MappedMemory>,
) -> Result<Option<Arc<Door>>, Failure> {
    let (Some(path), Some(master)) = (&arguments.mapped_reads, server.master()) else {
        return Ok(None);
    };
    let mut options = DoorOptions::default();
    for allowed in &arguments.mapped_reads_allow {
        match *allowed {
            Reader::Uid(uid) => options.allowed.uids.push(uid),
            Reader::Gid(gid) => options.allowed.gids.push(gid),
        }
    }
    let door = mapped::open(path, server.cluster(), master, options);
    let door = door.map_err(|error| Failure::new(format!("--mapped-reads: {error}")))?;
    let door = Arc::new(door);
    let told = Arc::downgrade(&door);
    server.tell_readers(move || {
        told.upgrade()
            .map(|door| mapped::readers_of(&door))
            .unwrap_or_default()
    });
    // Only with a name of the machine do clients know whether they are on it.
    if let Some(machine) = memory.and_then(MappedMemory::machine)
        && let Ok(path) = std::path::absolute(path)
        && let Ok(path) = path.into_os_string().into_string()
    {
        let uid = rustix::process::geteuid().as_raw();
        server.tell_door(DoorPlace { machine, path, uid });
    }
    Ok(Some(door))
}

/// Has the tablets moved away, until that is done or the time is over. Another signal ends it.
async fn leave(server: &Server, signals: &mut StopSignals, limit: Duration) {
    tokio::select! {
        biased;
        signal = signals.next() => {
            tracing::warn!(%signal, becomes = left_over(server), "stopping before all tablets have moved");
        }
        left = server.leave(limit) => match left {
            Ok(()) => tracing::info!("left the cluster; nothing has to be recovered"),
            Err(why) => {
                tracing::warn!(%why, becomes = left_over(server), "stopping without having left the cluster");
            }
        },
    }
}

/// Says how tablets end that a stopped server still has.
fn left_over(server: &Server) -> &'static str {
    match server.status().replicas_wanted {
        0 => "what is left is lost: --replicas 0",
        _ => "what is left is recovered",
    }
}

fn options(
    coordinator: &str,
    arguments: &Arguments,
    admin: Option<String>,
    timeout: Duration,
) -> ServerOptions {
    let mut options =
        ServerOptions::new(Address::default(), Address::from(arguments.listen.as_str()));
    options.coordinators = coordinator.split(',').map(Address::from).collect();
    options.redis = arguments.redis.as_deref().map(Address::from);
    options.redis_cluster = arguments.redis_cluster.as_deref().map(Address::from);
    options.admin = admin;
    options.data_name = name_of_first(arguments);
    options.missing = match arguments.missing_data {
        args::MissingData::Refuse => MissingData::Refuse,
        args::MissingData::LeaveOut => MissingData::LeaveOut,
        args::MissingData::Forget => MissingData::Forget,
    };
    options.memory = arguments.memory;
    options.huge_pages = arguments.huge_pages == HugePages::IfPossible;
    options.populate = arguments.populate;
    let expects = &arguments.expects;
    options.replicas = expects.replicas;
    options.min_replicas = expects.min_replicas;
    options.synced = expects.durability.map(|d| d == Durability::Synced);
    options.versions = process::versions();
    options.in_place = arguments.update == Update::InPlace;
    options.mapped_reads = arguments.mapped_reads.is_some();
    options.rack = arguments.rack.clone();
    options.redis_memory = arguments.redis_memory;
    options.redis_timeout = timeout;
    options.pid = std::process::id();
    options.machine = Some(MachineFn(Arc::new(machine::read)));
    options
}

/// The password of the Redis user `default`: of a file, or of the environment.
fn redis_password(arguments: &Arguments) -> Result<Option<Password>, Failure> {
    let text = match &arguments.redis_password_file {
        Some(file) => std::fs::read(file).map_err(|error| Failure::file(file, &error))?,
        None => match std::env::var_os(REDIS_PASSWORD) {
            Some(text) => text.into_encoded_bytes(),
            None => return Ok(None),
        },
    };
    let from = match &arguments.redis_password_file {
        Some(file) => format!("--redis-password-file {}", file.display()),
        None => REDIS_PASSWORD.to_owned(),
    };
    // Not as if there were none: that would open the port.
    match Password::of_text(&text) {
        Some(password) => Ok(Some(password)),
        None => Err(Failure::usage(format!(
            "{from}: the password is empty, or longer than {} bytes",
            Password::BYTES_MAX
        ))),
    }
}

fn name_of_first(arguments: &Arguments) -> String {
    let first = arguments.data.first();
    first
        .map(|first| first.display().to_string())
        .unwrap_or_default()
}

fn failure(error: ServerError, arguments: &Arguments) -> Failure {
    let first = name_of_first(arguments);
    match error {
        ServerError::Option(message) => Failure::usage(message),
        ServerError::Backup(error) => Failure::new(format!("data directory {first}: {error}")),
        ServerError::Identity(error) => Failure::new(format!("data directory {first}: {error}")),
        ServerError::Disk(error) => error.into(),
        ServerError::Memory(error) => Failure::new(format!(
            "--memory {}: cannot set up the log memory: {error}",
            arguments.memory
        )),
        ServerError::TooLittleMemory { needed, cores } => Failure::usage(format!(
            "--memory {}: too little for {} (--cores); give {} or more",
            arguments.memory,
            number_of(cores.into(), "event loop"),
            rounded_up(needed)
        )),
        other => Failure::new(other.to_string()),
    }
}

/// As a number that people write: whole MiB, and not less.
fn rounded_up(size: Size) -> Size {
    Size::mib(size.bytes().div_ceil(1 << 20))
}

/// What the admin port tells of this process.
struct Pages {
    /// Empty until the server has joined the cluster, and when it has ended.
    server: Mutex<Weak<Server>>,
    network: Arc<OsNetwork>,
    tls: Option<Arc<Tls>>,
}

impl Pages {
    fn place(&self) -> std::sync::MutexGuard<'_, Weak<Server>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn server(&self) -> Option<Arc<Server>> {
        self.place().upgrade()
    }
}

impl Subject for Pages {
    fn readiness(&self) -> (bool, String) {
        match self.server() {
            Some(server) => {
                let readiness = server.readiness();
                (readiness.ready, readiness.reason)
            }
            None => (
                false,
                "waiting for the coordinator to take this server".into(),
            ),
        }
    }

    fn metrics(&self) -> BoxFuture<'static, Metrics> {
        let mut metrics = Metrics::default();
        metrics.net(&self.network.counters().totals());
        metrics.net_memory(self.network.connections_memory());
        metrics.tls(self.tls.as_deref());
        metrics.spans();
        if let Some(server) = self.server() {
            metrics.server(&server.status());
            if let Some(t) = server.redis_totals() {
                let memory = server.redis_memory().map(|memory| memory.stats());
                let memory = memory.unwrap_or_default();
                metrics.redis(&RedisNumbers {
                    memory: memory.used,
                    memory_max: memory.bound,
                    evicted: memory.evicted,
                    waited: memory.waited,
                    denied: server.redis_denied(),
                    commands_unknown: t.commands_unknown,
                    connections_open: t.connections_open(),
                    connections: t.connections,
                    bytes_in: t.bytes_in,
                    bytes_out: t.bytes_out,
                    protocol_errors: t.protocol_errors,
                    commands: t
                        .commands
                        .into_iter()
                        .map(|(n, c)| (n.to_owned(), c.calls))
                        .collect(),
                    times: server.redis_times(),
                    errors: t.errors.into_iter().collect(),
                });
            }
        }
        Box::pin(std::future::ready(metrics))
    }

    fn redis_metrics(&self) -> Option<Metrics> {
        let server = self.server()?;
        let mut metrics = Metrics::default();
        metrics.like_redis_exporter(&server.status(), &server.redis_totals()?);
        Some(metrics)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_directory_is_named_once() {
        let folder = tempfile::tempdir().unwrap();
        let (here, away) = (folder.path().to_owned(), folder.path().join("away"));
        let check = |paths: &[&PathBuf]| {
            let data: Vec<PathBuf> = paths.iter().copied().cloned().collect();
            check_each_once(&data).map_err(|failure| failure.to_string())
        };
        assert_eq!(check(&[&here, &away]), Ok(()));
        let (dotted, away_too) = (here.join("."), here.join("./away"));
        for twice in [&here, &dotted] {
            let why = check(&[&here, &away, twice]).unwrap_err();
            assert!(why.contains("named twice"), "{why}");
        }
        assert!(check(&[&away, &here, &away_too]).is_err());
    }

    #[test]
    fn memory_is_that_of_the_machine_or_of_the_control_groups() {
        let limit = |files: &[(&str, &str)]| {
            memory_limit(|path| {
                let file = files.iter().find(|(name, _)| *name == path)?;
                Some(file.1.to_owned())
            })
        };
        let machine = ("/proc/meminfo", "MemTotal:  8388608 kB\nMemFree: 5 kB\n");
        let gib = |n: u64| Some(Size(n << 30));
        assert_eq!(limit(&[]), None);
        assert_eq!(limit(&[machine]), gib(8));
        let second = ("/proc/self/cgroup", "0::/a/b\n");
        let unlimited = ("/sys/fs/cgroup/a/b/memory.max", "max\n");
        assert_eq!(limit(&[machine, second, unlimited]), gib(8));
        let above = ("/sys/fs/cgroup/a/memory.max", "2147483648\n");
        assert_eq!(limit(&[machine, second, unlimited, above]), gib(2));
        let first = ("/proc/self/cgroup", "3:cpu:/x\n4:memory:/x\n");
        let root = (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "1073741824\n",
        );
        assert_eq!(limit(&[machine, first, above, root]), gib(1));
    }
}
