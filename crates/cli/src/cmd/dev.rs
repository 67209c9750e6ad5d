//! `pluvio dev`: a whole cluster on this machine, in the foreground.

use crate::args::Dev;
use pluvio_console::failure::Failure;
use pluvio_console::options::{COORDINATOR_PORT, Global};
use pluvio_console::output::{print_json, print_line, say};
use pluvio_local::{
    Announcement, Carrier, Change, KILL_PAUSE, LocalCluster, LocalOptions, LostMetadata, Program,
    SERVERS_MAX, Which, lost_metadata, temporary,
};

use pluvio_console::session::with_runtime;
use pluvio_env::{Address, DiskError, Env};
use pluvio_env_os::{StopSignals, make_directory};
use pluvio_metadata::Place;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tempfile::TempDir;

/// The pause before a child that died is started again: one that cannot live must not keep the
/// machine busy.
const RESPAWN_PAUSE: Duration = Duration::from_millis(500);

/// Runs the cluster until SIGINT or SIGTERM.
pub fn run(global: &Global, dev: &Dev) -> Result<ExitCode, Failure> {
    if dev.data.is_none() && dev.metadata.is_some() {
        return Err(Failure::usage(
            "--metadata: the metadata would outlive the data, which is temporary without --data; give --data DIR",
        ));
    }
    let login = &dev.metadata_login;
    let in_directory = |place: &Place| place.directory().is_some();
    if dev.metadata.as_ref().is_none_or(in_directory)
        && (login.metadata_user.is_some() || login.metadata_password_file.is_some())
    {
        return Err(Failure::usage(
            "--metadata-user and --metadata-password-file are for metadata in etcd or ZooKeeper; a directory knows no users",
        ));
    }
    // Kept until the end: dropping it removes the directory.
    let (data, temporary) = data_directory(dev)?;
    let (dev, json) = (dev.clone(), global.json);
    let options = options(&dev, data, global);
    let result = with_runtime(1, &global.tls, move |env| {
        foreground(env, dev, options, json)
    });
    if let Some(directory) = temporary {
        temporary::end(directory, result.as_ref().err());
    }
    result
}

fn data_directory(dev: &Dev) -> Result<(PathBuf, Option<TempDir>), Failure> {
    match &dev.data {
        Some(data) => {
            if data.as_os_str().as_encoded_bytes().contains(&b',') {
                return Err(Failure::usage(format!(
                    "--data {}: its servers would take the comma for the end of a name; choose another directory",
                    data.display()
                )));
            }
            check_metadata(data, dev.metadata.as_ref())?;
            let data = make_directory(data).map_err(with_advice)?;
            // A directory of another user is refused in the words of `pluvio server`.
            make_directory(&data.join("logs"))?;
            Ok((data, None))
        }
        None => {
            let directory = temporary::directory("pluvio-dev-", "use --data")?;
            Ok((directory.path().to_owned(), Some(directory)))
        }
    }
}

/// Begins no new cluster beside servers that have data of another one.
///
/// # Errors
/// Their metadata is missing.
fn check_metadata(data: &Path, metadata: Option<&Place>) -> Result<(), Failure> {
    let Some(LostMetadata { file, servers }) = lost_metadata(data, metadata) else {
        return Ok(());
    };
    let names: Vec<String> = servers.iter().map(|n| format!("server-{n}")).collect();
    Err(Failure::new(format!(
        "{} is missing, and without it nobody knows what the data of {} in {} is; nothing was \
         written. Put it back, or give the --metadata that this cluster had, or another --data: \
         see \"The metadata store\" in docs/operations.md",
        file.display(),
        names.join(", "),
        data.display()
    )))
}

/// The failure to make the data directory, with what to do.
fn with_advice(error: DiskError) -> Failure {
    let has_advice = !matches!(error, DiskError::NotFound { .. });
    let failure = Failure::from(error);
    match has_advice {
        true => failure,
        false => Failure::new(format!(
            "{failure}; it cannot be made there: choose another --data"
        )),
    }
}

fn options(dev: &Dev, data: PathBuf, global: &Global) -> LocalOptions {
    LocalOptions {
        servers: dev.servers,
        replicas: dev.replicas,
        min_replicas: dev.min_replicas,
        memory: dev.memory,
        cores: dev.cores,
        data,
        redis_port: dev.redis_port,
        redis_cluster_port: dev.redis_cluster_port.unwrap_or(0),
        redis_memory: dev.redis_memory,
        redis_timeout: Some(global.timeout),
        redis_password_file: dev.redis_password_file.clone(),
        admin_port: dev.admin_port,
        admin_console: dev.admin_console,
        coordinator_port: dev.coordinator_port,
        coordinators: dev.coordinators,
        metadata: dev.metadata.clone(),
        metadata_login: dev.metadata_login.clone(),
        durability: dev.durability,
        log: global.log.clone(),
        log_format: global.log_format,
        tls: global.tls.clone(),
        verbose: dev.verbose,
        homes: None,
        carrier: match dev.rings {
            true => Carrier::Rings,
            false => Carrier::Tcp,
        },
        mapped_reads: false,
        start_limit: None,
        populate: false,
        stamps: false,
        drain_timeout: Some(dev.drain_timeout),
        second_directory: false,
    }
}

async fn foreground(
    env: Env,
    dev: Dev,
    options: LocalOptions,
    json: bool,
) -> Result<ExitCode, Failure> {
    let mut signals = StopSignals::new()
        .map_err(|error| Failure::new(format!("cannot receive signals: {error}")))?;
    let data = options.data.clone();
    let started = tokio::select! {
        biased;
        _ = signals.next() => None,
        started = LocalCluster::start(env.clone(), Program::own()?, options) => Some(started),
    };
    let Some(started) = started else {
        // The children were killed with their handles.
        env.clock.sleep(KILL_PAUSE).await;
        return Ok(ExitCode::SUCCESS);
    };
    let mut cluster = started?;
    if let Some(highest) = cluster.left_out().last() {
        let left_out = cluster.left_out().iter();
        let names: Vec<String> = left_out.map(|n| format!("server-{n}")).collect();
        let advice = if *highest <= SERVERS_MAX {
            format!("; use --servers {highest} to start all")
        } else {
            String::new()
        };
        say(format_args!(
            "the data of {} in {} is not served by its own server this time{advice}",
            names.join(", "),
            data.display(),
        ));
    }
    tell(&cluster, &dev, json)?;
    let result = supervise(&env, &mut cluster, &mut signals, dev.respawn).await;
    let result = result.map_err(|failure| {
        Failure::new(format!(
            "{failure}; data and traces are in {}",
            data.display()
        ))
    });
    let stopping = async {
        cluster.stop().await;
    };
    let hurried = tokio::select! {
        biased;
        () = stopping => false,
        _ = signals.next() => true,
    };
    if hurried {
        cluster.kill_all();
        env.clock.sleep(KILL_PAUSE).await;
    }
    result.map(|()| ExitCode::SUCCESS)
}

fn tell(cluster: &LocalCluster, dev: &Dev, json: bool) -> Result<(), Failure> {
    if json {
        let Some(coordinator) = cluster.announced(Which::Coordinator(0)) else {
            return Err(Failure::new("the coordinator is gone"));
        };
        let coordinators: Vec<_> = cluster.coordinators().map(entry).collect();
        let servers: Vec<_> = cluster.servers().map(entry).collect();
        return print_json(&json!({
            "ready": true,
            "pid": std::process::id(),
            "coordinator": entry(coordinator),
            "coordinators": coordinators,
            "servers": servers,
        }));
    }
    for coordinator in cluster.coordinators() {
        let waits = match coordinator.leads {
            Some(false) => "  waits",
            Some(true) | None => "",
        };
        print_line(&format!("coordinator  {}{waits}", coordinator.addr))?;
    }
    let mut servers: Vec<_> = cluster.servers().zip(1..).collect();
    servers.sort_by_key(|(server, _)| server.redis.as_deref().and_then(port));
    for (server, number) in servers {
        let redis = server.redis.as_deref().unwrap_or("-");
        let (id, address) = (server.id.unwrap_or_default(), Address::from(&*server.addr));
        let address = address.first();
        let slots = server.redis_cluster.as_deref().unwrap_or("-");
        print_line(&format!(
            "server {id:<5} {address}  Redis on {redis}, cluster clients on {slots}  in \
             server-{number}"
        ))?;
    }
    let mut ports = cluster
        .servers()
        .filter_map(|server| server.redis_cluster.as_deref());
    if let Some((host, port)) = ports.next().and_then(|at| at.rsplit_once(':')) {
        print_line(&format!(
            "Go straight to the owners: redis-cli -c -h {host} -p {port}"
        ))?;
    }
    let where_to = match &dev.data {
        Some(data) => format!("Data in {}", data.display()),
        None => "Data is temporary (keep it with --data DIR)".to_owned(),
    };
    print_line(&format!("Ready. {where_to}. Stop with Ctrl-C."))?;
    let default = format!("127.0.0.1:{}", COORDINATOR_PORT);
    if cluster.coordinator_address() != default {
        print_line(&format!(
            "Other commands need --coordinator {0} (or PLUVIO_COORDINATOR={0}).",
            cluster.coordinator_address()
        ))?;
    }
    Ok(())
}

fn port(address: &str) -> Option<u16> {
    address.rsplit(':').next()?.parse().ok()
}

/// What programs read of a child.
fn entry(announced: &Announcement) -> Value {
    let mut shown = Map::new();
    if let Some(id) = announced.id {
        shown.insert("id".into(), id.into());
    }
    shown.insert("pid".into(), announced.pid.into());
    shown.insert("addr".into(), announced.addr.clone().into());
    let ports = [
        ("redis", &announced.redis),
        ("redis_cluster", &announced.redis_cluster),
        ("admin", &announced.admin),
    ];
    for (name, value) in ports {
        if let Some(value) = value {
            shown.insert(name.into(), value.clone().into());
        }
    }
    shown.into()
}

/// Watches the children until a signal comes or none is left.
async fn supervise(
    env: &Env,
    cluster: &mut LocalCluster,
    signals: &mut StopSignals,
    respawn: bool,
) -> Result<(), Failure> {
    loop {
        let missing = match respawn {
            true => cluster.missing(),
            false => Vec::new(),
        };
        let pause = async {
            match missing.is_empty() {
                true => std::future::pending().await,
                false => env.clock.sleep(RESPAWN_PAUSE).await,
            }
        };
        let change = tokio::select! {
            biased;
            _ = signals.next() => return Ok(()),
            change = cluster.change() => Some(change),
            () = pause => None,
        };
        match change {
            Some(Change::Ready(which)) => {
                if let Some(a) = cluster.announced(which) {
                    say(format_args!(
                        "started again as process {}, requests on {}",
                        a.pid, a.addr
                    ));
                }
            }
            Some(Change::Ended(_, why)) => {
                let advice = match respawn {
                    true => "",
                    false => {
                        "; it stays down: start `pluvio dev` again with the same --data, or use --respawn"
                    }
                };
                say(format_args!("{why}{advice}"));
                if !respawn && cluster.is_empty() {
                    return Err(Failure::new("no process of the cluster is left"));
                }
            }
            // Nobody is waited for here: a server is ready only when a coordinator is.
            None => {
                for which in missing {
                    if let Err(failure) = cluster.launch(which) {
                        say(format_args!("{failure}; trying again"));
                    }
                }
            }
        }
    }
}
