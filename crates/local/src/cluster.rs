//! All child processes of a cluster: start, readiness, deaths, stop.

use crate::announcement::Announcement;
use crate::child::Child;
use crate::data::{metadata_directory, servers_there};
use crate::options::{Durability, MetadataLogin, SERVERS_MAX};
use crate::ports::Ports;
use crate::program::Program;
use futures_util::future::join_all;
use indicatif::ProgressBar;
use pluvio_client::ClusterStatus;
use pluvio_console::failure::Failure;
use pluvio_console::options::LogFormat;
use pluvio_console::output::{say, spinner};
use pluvio_console::ports::check_ranges;
use pluvio_console::session::Session;
use pluvio_console::tls::TlsArgs;
use pluvio_env::{Address, Clock, Env};
use pluvio_metadata::Place;
use pluvio_server::ServerOptions;
use pluvio_units::{ServerId, Size};
use pluvio_wire::TabletState;
use rustix::process::Signal;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitStatus;
use std::task::Poll;
use std::time::Duration;

/// How long children may take to end when asked to.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// Pause between two looks at the cluster while it starts.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// How long tablets are waited for that may need servers which are not there.
const INCOMPLETE_LIMIT: Duration = Duration::from_secs(15);
/// How long one question to the cluster may take while it starts.
const STATUS_LIMIT: Duration = Duration::from_secs(5);
/// How long a cluster may start in silence for people who see no spinner.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// Pause between two looks at whether there is something to tell them.
const TELL_PAUSE: Duration = Duration::from_secs(5);
/// Longest path of a server's ring or door. The kernel takes 107 bytes; the server puts its process
/// id behind the name for a moment.
const SOCKET_PATH_MAX: usize = 96;
/// How long a cluster that lives for a while may take to be up: far more than it needs on a machine
/// that is busy.
const START_LIMIT: Duration = Duration::from_secs(180);

/// What cluster to start.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// Number of servers; as many as the data directory knows, or 4, when `None`.
    pub servers: Option<u32>,
    /// Of the cluster's settings, when it begins: see `pluvio_wire::ClusterSettings`.
    pub replicas: u32,
    /// As `replicas`.
    pub min_replicas: Option<u32>,
    /// Log memory of each server.
    pub memory: Size,
    /// Event loops of each server; the machine's processors shared out when `None`.
    pub cores: Option<u16>,
    /// Where everything is kept.
    pub data: PathBuf,
    /// Redis port of the first server; 0 for any.
    pub redis_port: u16,
    /// Port for cluster clients of Redis of the first server; the others follow. 0 takes any free
    /// ones.
    pub redis_cluster_port: u16,
    /// Memory that connections of Redis clients may hold; see `ServerOptions`.
    pub redis_memory: Option<Size>,
    /// How long the Redis ports mask failures; as they do by themselves when `None`.
    pub redis_timeout: Option<Duration>,
    /// File with the password of the Redis user `default`.
    pub redis_password_file: Option<PathBuf>,
    /// HTTP port of the coordinator; any when `None`.
    pub admin_port: Option<u16>,
    /// Whether the pages of coordinators run commands.
    pub admin_console: bool,
    /// Port of the coordinator; the usual one, or any when that is taken, when `None`.
    pub coordinator_port: Option<u16>,
    /// Coordinators; the first is tried first.
    pub coordinators: u32,
    /// Where the metadata is kept; below `data` when `None`.
    pub metadata: Option<Place>,
    /// Who coordinators are there.
    pub metadata_login: MetadataLogin,
    /// As `replicas`: when writes are acknowledged.
    pub durability: Durability,
    /// What children trace.
    pub log: Option<String>,
    /// How they write it.
    pub log_format: LogFormat,
    /// The encryption of all of them.
    pub tls: TlsArgs,
    /// Traces of children come to standard error.
    pub verbose: bool,
    /// Where children run, coordinators first; on this machine's loopback when `None`.
    pub homes: Option<Vec<Home>>,
    /// How servers and clients of this machine reach servers.
    pub carrier: Carrier,
    /// Whether servers let processes of their user, on this machine, read their memory. Such reads
    /// pass by every fault of a network between `homes`, too.
    pub mapped_reads: bool,
    /// How long it may take until all is up; as long as it takes when `None`.
    pub start_limit: Option<Duration>,
    /// Servers fetch all of their memory from the system after their start.
    pub populate: bool,
    /// Servers note the times of their requests, and write them down when they are stopped: see
    /// [`crate::stamps`].
    pub stamps: bool,
    /// How long a server's tablets may take to move after SIGTERM; as by itself when `None`.
    pub drain_timeout: Option<Duration>,
    /// Whether each server has a second data directory, [`SECOND_DIRECTORY`] in its first one. It
    /// starts without it where that is missing.
    pub second_directory: bool,
}

/// How servers and clients of this machine reach servers. The coordinator is reached over TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Carrier {
    /// TCP.
    #[default]
    Tcp,
    /// Rings in shared memory; they pass by every fault of a network between
    /// [`LocalOptions::homes`].
    Rings,
    /// Datagrams, and nothing else: for experiments.
    Datagrams,
    /// libfabric, by its provider `tcp`: for experiments. A process that was built without it takes
    /// TCP, and a server that was cannot start.
    Fabric,
}

/// The second data directory of a server, in its first one.
pub const SECOND_DIRECTORY: &str = "second";

/// Where a child runs, when that is not simply here.
#[derive(Clone, Debug)]
pub struct Home {
    /// The address on which it listens; no other child has it.
    pub host: String,
    /// The program that starts it there, with arguments; the child's own follow.
    pub through: Vec<OsString>,
}

impl LocalOptions {
    /// A cluster that lives for a while, on any free ports: `servers` servers with `memory` each.
    /// All data lies below `data`, with traces in files beside it.
    pub fn for_a_while(servers: u32, replicas: u32, memory: Size, data: &Path) -> Self {
        Self {
            servers: Some(servers),
            replicas,
            min_replicas: None,
            memory,
            cores: None,
            data: data.to_owned(),
            redis_port: 0,
            redis_cluster_port: 0,
            redis_memory: None,
            redis_timeout: None,
            redis_password_file: None,
            admin_port: None,
            admin_console: false,
            coordinator_port: Some(0),
            coordinators: 1,
            metadata: None,
            metadata_login: MetadataLogin::default(),
            durability: Durability::Buffered,
            log: None,
            log_format: LogFormat::Text,
            tls: TlsArgs::default(),
            verbose: false,
            homes: None,
            carrier: Carrier::Tcp,
            mapped_reads: false,
            start_limit: Some(START_LIMIT),
            populate: false,
            stamps: false,
            drain_timeout: None,
            second_directory: false,
        }
    }

    pub(crate) fn home(&self, which: Which) -> Option<&Home> {
        let at = match which {
            Which::Coordinator(index) => index,
            Which::Server(index) => self.coordinators as usize + index,
        };
        self.homes.as_ref()?.get(at)
    }

    /// The address on which a child listens.
    pub(crate) fn host(&self, which: Which) -> &str {
        self.home(which).map_or("127.0.0.1", |home| &home.host)
    }
}

/// Names a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// The n-th coordinator, from 0.
    Coordinator(usize),
    /// The n-th server, from 0.
    Server(usize),
}

/// What happened to a child.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// One that was started again has announced itself.
    Ready(Which),
    /// It has ended, not by [`LocalCluster::kill`]; why, for people.
    Ended(Which, String),
}

/// The running children.
pub struct LocalCluster {
    env: Env,
    program: Program,
    options: LocalOptions,
    /// Kept over restarts of children.
    ports: Ports,
    coordinators: Vec<Option<Child>>,
    /// Whether the first coordinator has led once; from then on another one may have its directory.
    has_led: bool,
    servers: Vec<Option<Child>>,
    /// Numbers of servers that have data and are not started this time, in ascending order.
    left_out: Vec<u32>,
}

impl LocalCluster {
    /// Starts `program` in each role, and waits until all servers are up and all tablets are
    /// served.
    ///
    /// # Errors
    /// A child does not start, or it takes too long; all are stopped again.
    pub async fn start(env: Env, program: Program, options: LocalOptions) -> Result<Self, Failure> {
        let there = servers_there(&options.data);
        let highest = there.last().copied();
        if options.servers.is_none() && highest > Some(SERVERS_MAX) {
            return Err(Failure::usage(format!(
                "{}: server-{} is there, and {SERVERS_MAX} servers are the most; give --servers, or another directory",
                options.data.display(),
                highest.unwrap_or_default()
            )));
        }
        let count = options.servers.or(highest).unwrap_or(4);
        let mut this = Self {
            env,
            program,
            ports: Ports::choose(&options, count as usize)?,
            coordinators: (0..options.coordinators).map(|_| None).collect(),
            has_led: false,
            options,
            servers: (0..count).map(|_| None).collect(),
            left_out: there.into_iter().filter(|n| *n > count).collect(),
        };
        this.check_ports()?;
        this.check_replicas()?;
        let progress = spinner("starting the coordinator");
        progress.enable_steady_tick(Duration::from_millis(100));
        let (clock, limit) = (this.env.clock.clone(), this.options.start_limit);
        let traces = this.options.data.join("logs");
        let started = tokio::select! {
            biased;
            started = this.start_all(&progress) => started,
            failure = overdue(&*clock, &progress, limit) => {
                Err(Failure::new(format!("{failure}; traces are in {}", traces.display())))
            }
        };
        progress.finish_and_clear();
        match started {
            Ok(()) => Ok(this),
            Err(failure) => {
                this.stop().await;
                Err(this.with_flag(failure))
            }
        }
    }

    /// Ports count up from the given ones; 0 stands for any free one.
    fn check_ports(&self) -> Result<(), Failure> {
        let servers = u32::try_from(self.servers.len()).unwrap_or(u32::from(u16::MAX));
        let redis = u32::from(self.options.redis_port);
        let redis_cluster = u32::from(self.options.redis_cluster_port);
        let admin = self.options.admin_port.map_or(0, u32::from);
        let coordinator = self.ports.coordinators[0].rsplit(':').next();
        let coordinator = coordinator.and_then(|port| port.parse().ok()).unwrap_or(0);
        check_ranges(&[
            ("--redis-port", redis, servers),
            ("--redis-cluster-port", redis_cluster, servers),
            ("--admin-port", admin, servers + self.options.coordinators),
            ("--coordinator-port", coordinator, 1),
        ])
    }

    /// The failure, with the flag of the port that is taken if it is about one. The process that
    /// failed has other flags than `dev`.
    fn with_flag(&self, failure: Failure) -> Failure {
        let text = failure.to_string();
        let ours = |port: u16, first: Option<u16>, count: usize| {
            let first = usize::from(first.unwrap_or(0));
            first != 0 && (first..first + count).contains(&usize::from(port))
        };
        let (servers, options) = (self.servers.len(), &self.options);
        let admins = servers + self.coordinators.len();
        let taken = text
            .split_once(" is already in use")
            .and_then(|(before, _)| before.rsplit("port ").next()?.parse().ok());
        let flag = match taken {
            Some(port) if ours(port, Some(options.redis_port), servers) => "--redis-port",
            Some(port) if ours(port, options.admin_port, admins) => "--admin-port",
            Some(port) if ours(port, options.coordinator_port, 1) => "--coordinator-port",
            Some(_) | None => return failure,
        };
        Failure::new(format!(
            "{text}; {flag} chooses other ports, 0 takes free ones"
        ))
    }

    /// A cluster that could never acknowledge a write is not started. The rule of what a write
    /// needs is that of `ServerOptions`; a lone server is its own backup.
    fn check_replicas(&self) -> Result<(), Failure> {
        let mut options = ServerOptions::new(Address::default(), Address::default());
        options.replicas = Some(self.options.replicas);
        options.min_replicas = self.options.min_replicas;
        if let Some(problem) = options.problem() {
            return Err(Failure::usage(problem));
        }
        let servers = self.servers.len();
        let backups = u32::try_from(servers - 1).unwrap_or(u32::MAX).max(1);
        let settings = options.settings().map_err(Failure::usage)?;
        let needed = settings.min_replicas;
        if settings.replicas == 0 || needed <= backups {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "--replicas {}: a write needs {needed} backups, and with --servers {servers} there are {backups}; \
             start more servers, or lower --replicas or --min-replicas",
            settings.replicas
        )))
    }

    async fn start_all(&mut self, progress: &ProgressBar) -> Result<(), Failure> {
        for index in 0..self.coordinators.len() {
            self.launch(Which::Coordinator(index))?;
            self.child_mut(Which::Coordinator(index))?.ready().await?;
            self.has_led = true;
        }
        progress.set_message("starting servers");
        for index in 0..self.servers.len() {
            self.launch(Which::Server(index))?;
        }
        let ready = self.servers.iter_mut().flatten().map(Child::ready);
        for announced in join_all(ready).await {
            announced?;
        }
        self.settle(progress).await
    }

    /// Waits until all servers that were started are members and all tablets are served. Tablets
    /// whose servers were left out are not waited for long.
    ///
    /// # Errors
    /// A child dies meanwhile.
    async fn settle(&mut self, progress: &ProgressBar) -> Result<(), Failure> {
        let session = self.session(STATUS_LIMIT);
        let wanted: Vec<ServerId> = self
            .servers
            .iter()
            .flatten()
            .filter_map(|child| child.announced()?.id)
            .map(ServerId)
            .collect();
        let start = self.env.clock.now();
        loop {
            let looked = tokio::select! {
                biased;
                (which, status) = self.death() => return Err(Failure::new(self.obituary(which, status))),
                looked = session.client.cluster_status() => looked,
            };
            match looked {
                Ok(status) => {
                    let tablets = || status.tables.iter().flat_map(|table| &table.tablets);
                    let served = tablets().filter(|t| t.state == TabletState::Normal).count();
                    let all = tablets().count();
                    let away = wanted.iter().filter(|id| !status.list.is_up(**id)).count();
                    if away == 0 && served == all {
                        return Ok(());
                    }
                    let patience = self.env.clock.now().since(start) < INCOMPLETE_LIMIT;
                    if away == 0 && !self.left_out.is_empty() && !patience {
                        return Ok(());
                    }
                    progress.set_message(match away {
                        0 => format!("{served} of {all} tablets served{}", recovery(&status)),
                        1 => format!("1 server is no member yet{}", recovery(&status)),
                        _ => format!("{away} servers are no members yet{}", recovery(&status)),
                    });
                }
                Err(error) => progress.set_message(error.to_string()),
            }
            self.env.clock.sleep(LOOK_PAUSE).await;
        }
    }

    /// Numbers of servers that have data and were not started, in ascending order.
    pub fn left_out(&self) -> &[u32] {
        &self.left_out
    }

    /// A client of this cluster.
    pub fn session(&self, timeout: Duration) -> Session {
        Session::new(self.env.clone(), &self.coordinator_address(), timeout)
    }

    /// The same, of a client that sends every read to its server.
    pub fn session_by_requests(&self, timeout: Duration) -> Session {
        let env = Env {
            mapped: None,
            ..self.env.clone()
        };
        Session::new(env, &self.coordinator_address(), timeout)
    }

    /// Where the coordinators listen, with commas.
    pub fn coordinator_address(&self) -> String {
        self.ports.coordinators.join(",")
    }

    /// What the coordinators that are ready announced.
    pub fn coordinators(&self) -> impl Iterator<Item = &Announcement> {
        self.coordinators
            .iter()
            .flatten()
            .filter_map(Child::announced)
    }

    /// The announcement of a child; `None` before it is ready, and where there is no such child.
    pub fn announced(&self, which: Which) -> Option<&Announcement> {
        self.child(which)?.announced()
    }

    /// What the servers that are ready announced.
    pub fn servers(&self) -> impl Iterator<Item = &Announcement> {
        self.servers.iter().flatten().filter_map(Child::announced)
    }

    /// The child that is the server with this id.
    pub fn server_with_id(&self, id: ServerId) -> Option<Which> {
        let is = |child: &Child| child.announced().is_some_and(|a| a.id == Some(id.0));
        let at = self
            .servers
            .iter()
            .position(|s| s.as_ref().is_some_and(is))?;
        Some(Which::Server(at))
    }

    /// Kills a child with SIGKILL. Its death is not told by [`LocalCluster::change`].
    pub async fn kill(&mut self, which: Which) {
        if let Some(mut child) = self.slot(which).take() {
            child.kill();
            child.ended().await;
        }
    }

    /// Waits for the death of any child.
    async fn death(&mut self) -> (Which, Option<ExitStatus>) {
        std::future::poll_fn(|cx| {
            let servers = self.servers.iter_mut().enumerate();
            let coordinators = self.coordinators.iter_mut().enumerate();
            let all = servers
                .map(|(index, slot)| (Which::Server(index), slot))
                .chain(coordinators.map(|(index, slot)| (Which::Coordinator(index), slot)));
            for (which, slot) in all {
                if let Some(child) = slot
                    && let Poll::Ready(status) = pin!(child.ended()).poll(cx)
                {
                    return Poll::Ready((which, status));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Waits until a child that was launched has announced itself, or any child has ended. Children
    /// are launched again without waiting for them by whoever waits here.
    pub async fn change(&mut self) -> Change {
        std::future::poll_fn(|cx| {
            for which in self.all() {
                let Some(child) = self.slot(which) else {
                    continue;
                };
                if child.announced().is_some() {
                    let ended = pin!(child.ended()).poll(cx);
                    if let Poll::Ready(status) = ended {
                        return Poll::Ready(Change::Ended(which, self.obituary(which, status)));
                    }
                    continue;
                }
                let ready = pin!(child.ready()).poll(cx);
                match ready.map(|result| result.map(drop)) {
                    Poll::Ready(Ok(())) => return Poll::Ready(Change::Ready(which)),
                    Poll::Ready(Err(failure)) => {
                        self.slot(which).take();
                        return Poll::Ready(Change::Ended(which, failure.to_string()));
                    }
                    Poll::Pending => {}
                }
            }
            Poll::Pending
        })
        .await
    }

    /// All places for children, whether or not one is there; the coordinators first.
    pub fn all(&self) -> Vec<Which> {
        let coordinators = (0..self.coordinators.len()).map(Which::Coordinator);
        let servers = (0..self.servers.len()).map(Which::Server);
        coordinators.chain(servers).collect()
    }

    /// Places where no child is.
    pub fn missing(&self) -> Vec<Which> {
        let all = self.all().into_iter();
        all.filter(|which| !self.is_there(*which)).collect()
    }

    /// Whether there is a child that was launched, be it ready or not.
    pub fn is_there(&self, which: Which) -> bool {
        self.child(which).is_some()
    }

    /// Sends a signal; whether there was a child to get it.
    pub fn signal(&self, which: Which, signal: Signal) -> bool {
        self.child(which).is_some_and(|child| child.signal(signal))
    }

    /// Tells of a death, and forgets the child.
    fn obituary(&mut self, which: Which, status: Option<ExitStatus>) -> String {
        match self.slot(which).take() {
            None => "a process that was not there has ended".to_owned(),
            Some(child) => {
                let id = child.announced().and_then(|a| a.id);
                let who = id.map_or_else(String::new, |id| format!("server {id}, "));
                let (name, pid) = (child.name(), child.pid());
                match status.is_some_and(|status| status.success()) {
                    true => format!("{name} ({who}process {pid}) has stopped in order"),
                    false => {
                        let why = child.reason(status);
                        format!("{name} ({who}process {pid}) died: {why}")
                    }
                }
            }
        }
    }

    /// Whether no child is left.
    pub fn is_empty(&self) -> bool {
        let mut all = self.coordinators.iter().chain(&self.servers);
        all.all(Option::is_none)
    }

    /// Stops all children: the coordinators, then the servers.
    pub async fn stop(&mut self) {
        let clock = self.env.clock.clone();
        for children in [&mut self.coordinators, &mut self.servers] {
            let mut children: Vec<Child> = children.iter_mut().filter_map(Option::take).collect();
            let stops = children.iter_mut().map(|c| c.stop(&*clock, STOP_LIMIT));
            join_all(stops).await;
        }
    }

    /// Kills all children at once.
    pub fn kill_all(&mut self) {
        for child in self
            .servers
            .iter_mut()
            .chain(&mut self.coordinators)
            .flatten()
        {
            child.kill();
        }
    }

    fn child(&self, which: Which) -> Option<&Child> {
        match which {
            Which::Coordinator(index) => self.coordinators.get(index)?.as_ref(),
            Which::Server(index) => self.servers.get(index)?.as_ref(),
        }
    }

    fn slot(&mut self, which: Which) -> &mut Option<Child> {
        match which {
            Which::Coordinator(index) => &mut self.coordinators[index],
            Which::Server(index) => &mut self.servers[index],
        }
    }

    fn child_mut(&mut self, which: Which) -> Result<&mut Child, Failure> {
        let gone = || Failure::new("a process of the cluster is gone");
        self.slot(which).as_mut().ok_or_else(gone)
    }

    /// Starts a child, on the data and ports that it had before if there was one; does not wait for
    /// it.
    ///
    /// # Errors
    /// The process cannot be created.
    pub fn launch(&mut self, which: Which) -> Result<(), Failure> {
        let (name, arguments) = match which {
            Which::Coordinator(index) => (
                match index {
                    0 => "coordinator".to_owned(),
                    _ => format!("coordinator-{}", index + 1),
                },
                self.coordinator_arguments(index),
            ),
            Which::Server(index) => (
                format!("server-{}", index + 1),
                self.server_arguments(index),
            ),
        };
        let traces = self.options.data.join("logs").join(format!("{name}.log"));
        let trace = (!self.options.verbose).then_some(traces);
        let home = self.options.home(which);
        let through = home.map_or(&[][..], |home| &home.through);
        let child = Child::start(&self.program, through, &name, &arguments, trace)?;
        *self.slot(which) = Some(child);
        Ok(())
    }

    fn common_arguments(&self, role: &str, listen: &str, admin: usize) -> Vec<OsString> {
        let port = match self.options.admin_port {
            None | Some(0) => 0,
            Some(first) => first.saturating_add(u16::try_from(admin).unwrap_or(0)),
        };
        let mut arguments: Vec<OsString> = vec![role.into(), "--json".into()];
        let mut add = |name: &str, value: OsString| arguments.extend([name.into(), value]);
        add("--listen", listen.into());
        add("--admin", format!("127.0.0.1:{port}").into());
        if let Some(log) = &self.options.log {
            add("--log", log.into());
        }
        add("--log-format", self.options.log_format.name().into());
        arguments.extend(self.options.tls.arguments());
        arguments
    }

    fn coordinator_arguments(&self, index: usize) -> Vec<OsString> {
        let admin = match index {
            0 => 0,
            _ => self.servers.len() + index,
        };
        let listen = &self.ports.coordinators[index];
        let mut arguments = self.common_arguments("coordinator", listen, admin);
        let options = &self.options;
        let mut add = |name: &str, value: String| arguments.extend([name.into(), value.into()]);
        add("--replicas", options.replicas.to_string());
        add("--durability", options.durability.name().to_owned());
        if let Some(least) = options.min_replicas {
            add("--min-replicas", least.to_string());
        }
        if options.admin_console {
            arguments.push("--admin-console".into());
        }
        let place = match &self.options.metadata {
            Some(place) => place.clone(),
            None => Place::Embedded(metadata_directory(&self.options.data)),
        };
        match place {
            Place::Embedded(directory) => {
                arguments.extend(["--data".into(), directory.into()]);
                if self.has_led && self.coordinators.len() > 1 {
                    arguments.push("--standby".into());
                }
            }
            Place::Etcd(_) | Place::ZooKeeper(_) => {
                arguments.extend(["--metadata".into(), place.to_string().into()]);
                let login = &self.options.metadata_login;
                if let Some(user) = &login.metadata_user {
                    arguments.extend(["--metadata-user".into(), user.into()]);
                }
                if let Some(file) = &login.metadata_password_file {
                    arguments.extend(["--metadata-password-file".into(), file.into()]);
                }
            }
        }
        arguments
    }

    fn server_arguments(&self, index: usize) -> Vec<OsString> {
        let options = &self.options;
        let host = options.host(Which::Server(index));
        let directory = format!("server-{}", index + 1);
        let data = options.data.join(directory);
        let listen = listen_by(options.carrier, host, || socket_in(&data, "ring"));
        let mut arguments = self.common_arguments("server", &listen.0, index + 1);
        arguments.extend(["--data".into(), data.clone().into()]);
        if options.second_directory {
            let second = data.join(SECOND_DIRECTORY);
            arguments.extend(["--data".into(), second.into()]);
            arguments.extend(["--missing-data".into(), "leave-out".into()]);
        }
        if options.mapped_reads
            && let Some(path) = socket_in(&data, "door")
        {
            arguments.extend(["--mapped-reads".into(), path.into()]);
        }
        let machine = std::thread::available_parallelism().map_or(1, usize::from);
        let shared_out = u16::try_from((machine / self.servers.len()).max(1)).unwrap_or(1);
        let mut add = |name: &str, value: String| arguments.extend([name.into(), value.into()]);
        add("--coordinator", self.coordinator_address());
        add("--redis", format!("{host}:{}", self.ports.redis[index]));
        let redis_cluster = self.ports.redis_cluster[index];
        add("--redis-cluster", format!("{host}:{redis_cluster}"));
        add("--memory", options.memory.bytes().to_string());
        add("--cores", options.cores.unwrap_or(shared_out).to_string());
        if let Some(memory) = options.redis_memory {
            add("--redis-memory", memory.bytes().to_string());
        }
        // A cluster is started on such a host so that others reach it.
        if host.parse::<IpAddr>().is_ok_and(|host| !host.is_loopback()) {
            add("--redis-protected-mode", "no".to_owned());
        }
        if let Some(timeout) = options.redis_timeout {
            add("--timeout", format!("{}ms", timeout.as_millis()));
        }
        if let Some(limit) = options.drain_timeout {
            add("--drain-timeout", format!("{}ms", limit.as_millis()));
        }
        if let Some(file) = &options.redis_password_file {
            arguments.extend(["--redis-password-file".into(), file.into()]);
        }
        if options.populate {
            arguments.push("--populate".into());
        }
        if options.stamps {
            arguments.push("--stamps".into());
        }
        arguments
    }
}

/// Where a server listens. Without a path for its rings it has none.
fn listen_by(carrier: Carrier, host: &str, ring: impl FnOnce() -> Option<String>) -> Address {
    let tcp = Address::from(&*format!("{host}:0"));
    match carrier {
        Carrier::Tcp => tcp,
        Carrier::Rings => match ring() {
            Some(path) => tcp.and(&Address::from(&*format!("shm:{path}"))),
            None => tcp,
        },
        Carrier::Datagrams => Address::from(&*format!("udp:{host}:0")),
        Carrier::Fabric => tcp.and(&Address::from(&*format!("fabric:tcp:{host}:0"))),
    }
}

/// The path of a socket in a server's directory. `None` where it is too long for one, or is no
/// text.
fn socket_in(directory: &Path, name: &str) -> Option<String> {
    let path = std::path::absolute(directory).ok()?.join(name);
    let path = path.to_str().filter(|path| path.len() <= SOCKET_PATH_MAX)?;
    Some(path.to_owned())
}

/// The stage of the latest recovery that is under way.
fn recovery(status: &ClusterStatus) -> String {
    let mut latest_first = status.recoveries.iter().rev();
    match latest_first.find(|recovery| !recovery.done) {
        Some(recovery) => format!("; server {}: {}", recovery.crashed, recovery.stage),
        None => String::new(),
    }
}

/// Says what a start waits for where nobody sees that in the spinner: after a while, and when it
/// changes. Ends when the start takes too long.
async fn overdue(clock: &dyn Clock, progress: &ProgressBar, limit: Option<Duration>) -> Failure {
    let began = clock.now();
    let mut said = String::new();
    loop {
        let (took, phase) = (clock.now().since(began), progress.message());
        let seconds = took.as_secs();
        if limit.is_some_and(|limit| took >= limit) {
            return Failure::new(format!("the cluster was not up after {seconds} s: {phase}"));
        }
        if progress.is_hidden() && took >= SILENCE_MAX && phase != said {
            say(format_args!("not up after {seconds} s: {phase}"));
            said = phase;
        }
        clock.sleep(TELL_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_console::session::with_runtime;
    use std::fs;

    #[test]
    fn a_start_that_takes_too_long_says_what_it_waits_for() {
        let failure = with_runtime(1, &TlsArgs::default(), |env| async move {
            let progress = spinner("starting servers");
            Ok(overdue(&*env.clock, &progress, Some(Duration::ZERO)).await)
        });
        assert_eq!(
            failure.unwrap().to_string(),
            "the cluster was not up after 0 s: starting servers"
        );
    }

    #[test]
    fn servers_listen_where_their_requests_come() {
        let at =
            |carrier| listen_by(carrier, "127.0.0.1", || Some("/data/ring".into())).to_string();
        assert_eq!(at(Carrier::Tcp), "127.0.0.1:0");
        assert_eq!(at(Carrier::Rings), "127.0.0.1:0+shm:/data/ring");
        assert_eq!(at(Carrier::Datagrams), "udp:127.0.0.1:0");
        assert_eq!(at(Carrier::Fabric), "127.0.0.1:0+fabric:tcp:127.0.0.1:0");
        let long = listen_by(Carrier::Rings, "::1", || None);
        assert_eq!(
            long.to_string(),
            "::1:0",
            "the path is too long for a socket"
        );
    }

    #[test]
    fn more_servers_than_can_be_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("server-65/frames")).unwrap();
        let options = LocalOptions {
            servers: None,
            ..LocalOptions::for_a_while(1, 0, Size::mib(64), folder.path())
        };
        let started = with_runtime(1, &TlsArgs::default(), |env| async move {
            LocalCluster::start(env, Program::own()?, options)
                .await
                .map(drop)
        });
        let failure = started.unwrap_err().to_string();
        assert!(failure.contains("server-65"), "{failure}");
    }
}
