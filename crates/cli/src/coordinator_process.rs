//! `pluvio coordinator`: the coordinator as a process.
//!
//! It listens before it leads: one that waits for its turn says who leads.

use crate::admin::metrics::Metrics;
use crate::admin::{Admin, Sampler, Subject};
use crate::args::Coordinator as Arguments;
use crate::process::{self, DISK_PATIENCE, Parts};
use pluvio_client::{Client, ClientOptions};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::ports;
use pluvio_coordinator::{Candidate, CoordinatorError, CoordinatorOptions, Standing};
use pluvio_env::{Address, BoxFuture, DiskError, Env, Tasks};
use pluvio_env_os::{DiskOpener, Phase, tell_manager};
use pluvio_local::{Announcement, METADATA_PASSWORD, MetadataLogin, Role};
use pluvio_metadata::{Login, Place};
use pluvio_net::{OsNetwork, Tls};
use pluvio_units::CoreId;
use pluvio_wire::ClusterSettings;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// How long a metrics page waits for what the servers say. Scrapers give up after 10 s.
const STATUS_LIMIT: Duration = Duration::from_secs(3);

/// Runs the coordinator until it is asked to stop.
///
/// # Errors
/// It cannot start.
pub fn run(global: &Global, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let settings = arguments.begins.settings();
    let wished = ClusterSettings::USUAL.with(&settings.completed());
    wished.map_err(Failure::usage)?;
    let place = place(arguments)?;
    let login = login(&arguments.metadata_login, &place)?;
    if arguments.standby && place.directory().is_none() {
        return Err(Failure::usage(
            "--standby is for metadata in a directory; with etcd and ZooKeeper coordinators wait for their turn without it",
        ));
    }
    ports::check(&[
        ("--listen", Some(arguments.listen.as_str())),
        ("--admin", arguments.admin.as_deref()),
    ])?;
    if let Some(directory) = place.directory() {
        Role::Coordinator.check_directory(directory)?;
    }
    match &place {
        Place::Embedded(_) => {}
        Place::Etcd(store) | Place::ZooKeeper(store) => {
            let servers = store.servers.iter().map(String::as_str);
            if !process::may_be_reached(&arguments.listen, servers) {
                tracing::warn!(
                    listen = arguments.listen,
                    "other machines cannot reach this address, and the metadata store is on one"
                );
            }
        }
    }
    let (given, json) = (arguments.clone(), global.json);
    process::run(
        global,
        &arguments.process,
        1,
        None,
        0,
        "pluvio-coordinator",
        move |parts| serve(parts, place, login, given, json),
    )
}

/// Who it is for the store.
fn login(arguments: &MetadataLogin, place: &Place) -> Result<Option<Login>, Failure> {
    let Some(user) = arguments.metadata_user.clone() else {
        return match &arguments.metadata_password_file {
            Some(_) => Err(Failure::usage(
                "--metadata-password-file has the password of a user: give --metadata-user, too",
            )),
            None => Ok(None),
        };
    };
    if place.directory().is_some() {
        return Err(Failure::usage(
            "--metadata-user is for metadata in etcd or ZooKeeper; a directory knows no users",
        ));
    }
    let password = match &arguments.metadata_password_file {
        Some(file) => {
            let read = std::fs::read_to_string(file);
            let text = read.map_err(|error| Failure::file(file, &error))?;
            text.trim_end_matches(['\r', '\n']).to_owned()
        }
        None => std::env::var(METADATA_PASSWORD).map_err(|_| {
            Failure::usage(format!(
                "--metadata-user {user}: its password is missing: give --metadata-password-file FILE, or set {METADATA_PASSWORD}"
            ))
        })?,
    };
    Ok(Some(Login { user, password }))
}

/// Where the metadata is.
fn place(arguments: &Arguments) -> Result<Place, Failure> {
    match (&arguments.data, &arguments.metadata) {
        (Some(directory), None) => Ok(Place::Embedded(directory.clone())),
        (None, Some(place)) => Ok(place.clone()),
        (None, None) => Err(Failure::usage(
            "the coordinator needs a place for the cluster's metadata: give --data DIR, or --metadata PLACE",
        )),
        (Some(_), Some(_)) => Err(Failure::usage(
            "--data and --metadata both say where the cluster's metadata is: give one of them",
        )),
    }
}

async fn serve(
    parts: Parts,
    place: Place,
    login: Option<Login>,
    arguments: Arguments,
    json: bool,
) -> Result<(), Failure> {
    let Parts {
        env,
        network,
        tls,
        mut signals,
        open_disk,
        ..
    } = parts;
    if let Some(tls) = &tls {
        let called = process::is_called_at(tls, &arguments.listen);
        // Without --tls-name others may call it by another name than the one it listens at. A
        // certificate that has this one is renewed only by such.
        if tls.has_name() {
            called?;
        }
    }
    let mut options = CoordinatorOptions::default();
    options.dead_server_timeout = arguments.dead_server_timeout;
    options.settings = arguments.begins.settings();
    options.versions = process::versions();
    let candidate = Arc::new(Candidate::new(env.clone(), options));
    let subject = Arc::new(Pages {
        client: Mutex::new(None),
        candidate: Arc::clone(&candidate),
        network,
        tls: tls.clone(),
        tasks: Arc::clone(&env.tasks),
        sampler: Arc::new(Sampler::new(Arc::clone(&env.clock))),
    });
    let admin = match &arguments.admin {
        Some(address) => {
            let has_console = arguments.admin_console;
            Some(Admin::start(&env, address, tls, subject.clone(), has_console).await?)
        }
        None if arguments.admin_console => {
            return Err(Failure::usage(
                "--admin-console: the page is at the admin port; give --admin ADDR, too",
            ));
        }
        None => None,
    };
    let port = env
        .network
        .listen(&Address::from(arguments.listen.as_str()), candidate.clone())
        .await
        .map_err(|error| Failure::new(error.to_string()))?;
    let own = ClientOptions::new([port.address.clone()])
        .timeout(STATUS_LIMIT)
        .attempt_timeout(STATUS_LIMIT);
    *subject.place() = Some(Client::new(&env, own));
    let office = Office {
        env,
        place,
        login,
        standby: arguments.standby,
        candidate: Arc::clone(&candidate),
        address: port.address.to_string(),
        waits: Notify::new(),
    };
    let mut running = Box::pin(office.run(&open_disk));
    let settled = async {
        tokio::select! {
            biased;
            () = office.waits.notified() => false,
            standing = candidate.settled() => matches!(standing, Standing::Leading(_)),
        }
    };
    tell_manager(Phase::Waits("waits for its metadata"));
    let leads = tokio::select! {
        biased;
        signal = signals.next() => {
            tracing::info!(%signal, "stopped before it led or knew who does");
            return Ok(());
        }
        failed = &mut running => return failed.map(|never| match never {}),
        leads = settled => leads,
    };
    Announcement {
        ready: true,
        role: "coordinator".into(),
        id: None,
        pid: std::process::id(),
        leads: Some(leads),
        addr: port.address.to_string(),
        redis: None,
        redis_cluster: None,
        admin: admin.as_ref().map(|a| a.address.clone()),
    }
    .tell(json);
    tell_manager(Phase::Ready);
    tokio::select! {
        biased;
        signal = signals.next() => {
            tracing::info!(%signal, "stopping");
            tell_manager(Phase::Stopping(process::SHUTDOWN_LIMIT * 2));
            candidate.resign().await;
            Ok(())
        }
        failed = &mut running => failed.map(|never| match never {}),
    }
}

/// What it takes to lead.
struct Office {
    env: Env,
    place: Place,
    login: Option<Login>,
    standby: bool,
    candidate: Arc<Candidate>,
    /// Where others reach this process.
    address: String,
    /// Told when another process has the directory.
    waits: Notify,
}

impl Office {
    /// Leads whenever it can.
    async fn run(&self, open_disk: &DiskOpener) -> Result<Infallible, Failure> {
        // Held to the end: no other process uses the directory meanwhile.
        let _lock = match self.place.directory() {
            Some(directory) => Some(self.lock(open_disk, directory).await?),
            None => None,
        };
        let store = self.place.open(&self.env, self.login.clone());
        let store = store.map_err(|error| self.failure(&error.into()))?;
        let led = self.candidate.run(store, &self.address).await;
        led.map_err(|error| self.failure(&error))
    }

    async fn lock(
        &self,
        open_disk: &DiskOpener,
        directory: &Path,
    ) -> Result<Arc<dyn pluvio_env::Disk>, DiskError> {
        let wait = |patience| {
            process::wait_for_disk(self.env.clock.clone(), open_disk, directory, patience)
        };
        if !self.standby {
            return wait(Some(DISK_PATIENCE)).await;
        }
        match wait(Some(Duration::ZERO)).await {
            Err(DiskError::InUse { .. }) => {
                tracing::info!(directory = %directory.display(), "waits while another coordinator uses it");
                self.waits.notify_one();
                wait(None).await
            }
            other => other,
        }
    }

    fn failure(&self, error: &CoordinatorError) -> Failure {
        match (&self.place, error) {
            (Place::Embedded(directory), _) => {
                Failure::new(format!("data directory {}: {error}", directory.display()))
            }
            (Place::Etcd(_) | Place::ZooKeeper(_), CoordinatorError::Store(_)) => {
                Failure::new(format!("{error}; is it running, and is --metadata right?"))
            }
            (Place::Etcd(_) | Place::ZooKeeper(_), _) => {
                Failure::new(format!("{}: {error}", self.place))
            }
        }
    }
}

/// What the admin port tells of this process.
struct Pages {
    /// Asks this very process, as others do; `None` until it listens.
    client: Mutex<Option<Client>>,
    candidate: Arc<Candidate>,
    network: Arc<OsNetwork>,
    tls: Option<Arc<Tls>>,
    tasks: Arc<dyn Tasks>,
    sampler: Arc<Sampler>,
}

impl Pages {
    fn place(&self) -> std::sync::MutexGuard<'_, Option<Client>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it leads for sure: one whose store does not answer may have a successor.
    fn leads(&self) -> bool {
        match self.candidate.standing() {
            Standing::Leading(coordinator) => coordinator.leads(),
            Standing::Looking | Standing::Deciding | Standing::Waiting(_) => false,
        }
    }
}

impl Subject for Pages {
    fn readiness(&self) -> (bool, String) {
        match (self.candidate.standing(), self.candidate.trouble()) {
            (Standing::Looking | Standing::Deciding, trouble) => {
                let nobody = || "no coordinator leads yet".to_owned();
                (false, trouble.unwrap_or_else(nobody))
            }
            (Standing::Waiting(_) | Standing::Leading(_), None) => (true, String::new()),
            (Standing::Waiting(_) | Standing::Leading(_), Some(trouble)) => (false, trouble),
        }
    }

    fn metrics(&self) -> BoxFuture<'static, Metrics> {
        let mut metrics = Metrics::default();
        metrics.net(&self.network.counters().totals());
        metrics.net_memory(self.network.connections_memory());
        metrics.tls(self.tls.as_deref());
        metrics.spans();
        let busy = (0..self.tasks.cores()).filter_map(|core| self.tasks.busy(CoreId(core)));
        let busy = busy.map(|busy| u64::try_from(busy.as_micros()).unwrap_or(u64::MAX));
        metrics.loops(&busy.collect::<Vec<_>>());
        let leads = self.leads();
        metrics.coordinator(leads);
        // One coordinator tells of the cluster.
        let client = self.place().clone().filter(|_| leads);
        Box::pin(async move {
            if let Some(client) = client {
                match client.cluster_status().await {
                    Ok(status) => metrics.cluster(&status),
                    Err(error) => tracing::warn!(%error, "a metrics page lacks the cluster"),
                }
            }
            metrics
        })
    }

    fn has_page(&self) -> bool {
        true
    }

    fn redis_ports(&self) -> BoxFuture<'static, Vec<String>> {
        let client = self.place().clone().filter(|_| self.leads());
        Box::pin(async move {
            let Some(client) = client else {
                return Vec::new();
            };
            let list = match client.server_list().await {
                Ok(list) => list,
                Err(error) => {
                    tracing::warn!(%error, "the console knows no servers");
                    return Vec::new();
                }
            };
            list.up()
                .filter_map(|server| server.redis.clone())
                .collect()
        })
    }

    fn cluster(&self, with_keys: bool) -> Option<BoxFuture<'static, Value>> {
        let leader = match self.candidate.standing() {
            Standing::Waiting(leader) => Some(leader),
            Standing::Looking | Standing::Deciding | Standing::Leading(_) => None,
        };
        let client = self.place().clone().filter(|_| self.leads());
        let Some(client) = client else {
            let trouble = self.candidate.trouble();
            let troubles: Vec<_> = trouble.into_iter().collect();
            let told = json!({ "leads": false, "leader": leader, "troubles": troubles });
            return Some(Box::pin(std::future::ready(told)));
        };
        let sampler = Arc::clone(&self.sampler);
        Some(Box::pin(
            async move { sampler.look(&client, with_keys).await },
        ))
    }
}
