//! Starting a server, and what holds it together.

mod redis;
mod tasks;

use crate::directories::{DirectoriesError, together};
use crate::identity::{FORMAT_VERSION, Identity, IdentityError};
use crate::lease::Lease;
use crate::leave::{Leaving, NotLeft};
use crate::limits::Limits;
use crate::local::Local;
use crate::membership::{Membership, Standing, Watcher};
use crate::options::{MissingData, ServerOptions};
use crate::service::ServerService;
use crate::status::{Readiness, StatusSource, WholeStatus};
use pluvio_backup::{Backup, BackupError, BackupOptions, FirstDirectory};
use pluvio_env::{Address, DiskError, Env, Listening, NetworkError, TaskHandle};
use pluvio_log::{
    CleanerOptions, Corruption, Durability, Geometry, GraceClock, Interleaving, LogOptions,
    LogStats, MemoryBinding, MemoryPart, OpenError,
};
use pluvio_master::{Master, MasterParts, RecoveryOptions};
use pluvio_redis::{ClientMemory, Latencies, RedisService, Totals};
use pluvio_replication::{Replication, ReplicationOptions};
use pluvio_store::{Engine, EngineOptions};
use pluvio_units::{CLASS_LOGS, CORE_LOGS_MAX, ClusterId, CoreId, LogId, ServerId, Size};
use pluvio_wire::{
    ClusterSettings, Coordinators, DoorPlace, Enlist, EnlistReply, FatalKind, GetServerList,
    MappedReaders, Refusal, RetryReason, RpcError, ServerInfo, ServerList, ServerState,
    ServerStatus,
};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// How long to wait for the coordinator's answer to an enlistment.
const ENLIST_LIMIT: Duration = Duration::from_secs(2);
/// Pause between attempts to enlist.
const ENLIST_PAUSE: Duration = Duration::from_millis(100);
/// Cores for each cleaner thread.
const CORES_PER_CLEANER: u16 = 4;
/// Most cleaner threads where all memory is on one node.
const CLEANERS_OF_A_NODE_MAX: u16 = 4;
/// Most cleaner threads: as many as a log may have.
const CLEANERS_MAX: u16 = 64;
/// Attempts to enlist between two traces.
const ENLIST_TRACE_EVERY: u32 = 20;

/// Why a server cannot start, or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// An option makes no sense. Not retryable.
    #[error("{0}")]
    Option(String),
    /// The data directory cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The data directories cannot be used together.
    #[error(transparent)]
    Directories(#[from] DirectoriesError),
    /// The frames on disk cannot be used.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// The data directory cannot be written.
    #[error("cannot write to the data directory: {0}")]
    Disk(#[from] DiskError),
    /// A port cannot be opened.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The log memory cannot be had.
    #[error("cannot set up the log memory: {0}")]
    Memory(#[from] OpenError),
    /// The log memory is less than its event loops need. Not retryable.
    #[error("the log memory is too little: with {cores} event loops it must be {needed} or more")]
    TooLittleMemory {
        /// The least that is enough.
        needed: Size,
        /// The event loops.
        cores: u16,
    },
    /// The coordinator does not take this server. Not retryable without changing something.
    #[error("the coordinator refuses this server: {0}")]
    Refused(String),
}

/// A running server. Stops when dropped.
pub struct Server {
    leaving: Leaving,
    membership: Arc<Membership>,
    local: Local,
    status: Arc<WholeStatus>,
    redis: Option<RedisPort>,
    redis_cluster: Option<RedisPort>,
    ports: Vec<Listening>,
    tasks: Arc<Mutex<Vec<TaskHandle>>>,
}

/// A port for Redis clients.
struct RedisPort {
    service: RedisService,
    address: Address,
}

/// What the parts of a starting server share.
struct Starting {
    env: Env,
    coordinators: Arc<Coordinators>,
    options: ServerOptions,
    membership: Arc<Membership>,
    local: Local,
    backup: Backup,
}

impl Server {
    /// Starts a server: returns once it is a member of the cluster. Waits for the coordinator as
    /// long as that takes.
    ///
    /// # Errors
    /// See [`ServerError`]; the ports are closed again.
    pub async fn start(env: Env, options: ServerOptions) -> Result<Self, ServerError> {
        if let Some(problem) = options.problem() {
            return Err(ServerError::Option(problem));
        }
        // Refuses bad memory options before the cluster hears of this server.
        let guess = options.settings().unwrap_or(ClusterSettings::USUAL);
        let log_options = store_options(&env, &options, &guess, ServerId(0), ClusterId(0)).log;
        Geometry::of(&log_options).map_err(|error| match error {
            OpenError::TooSmall { .. } => ServerError::TooLittleMemory {
                needed: log_options.memory_min(),
                cores: env.tasks.cores(),
            },
            other => ServerError::Memory(other),
        })?;
        let former = Identity::load(&*env.disk, options.versions).await?;
        let together = together(&env, &options).await?;
        let backup_options = BackupOptions {
            cluster: former.map(|f| f.cluster),
            first: FirstDirectory(options.data_name.clone()),
            further: together.further,
            missing: together.missing,
            leaves_failed: options.missing != MissingData::Refuse,
            // Without replicas nobody misses the disk.
            tries_idle: options.replicas != Some(0),
            ..BackupOptions::default()
        };
        let backup = Backup::start(env.clone(), backup_options).await?;
        Identity::keep_room(&*env.disk).await?;
        let starting = Starting {
            coordinators: Arc::new(Coordinators::new(options.coordinators.clone())),
            membership: Membership::new(),
            local: Local::default(),
            backup,
            env,
            options,
        };
        starting.run(former).await
    }

    /// This server's id.
    #[must_use]
    pub fn id(&self) -> ServerId {
        self.membership.id()
    }

    /// The cluster's id.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.membership.cluster()
    }

    /// Where it answers requests.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.ports[0].address
    }

    /// Where it speaks the Redis protocol, if it does.
    #[must_use]
    pub fn redis_address(&self) -> Option<&Address> {
        self.redis.as_ref().map(|port| &port.address)
    }

    /// Where it speaks the Redis protocol to cluster clients, if it does.
    #[must_use]
    pub fn redis_cluster_address(&self) -> Option<&Address> {
        self.redis_cluster.as_ref().map(|port| &port.address)
    }

    /// The counters of its ports for Redis clients, if it has any.
    #[must_use]
    pub fn redis_totals(&self) -> Option<Totals> {
        let ports = [&self.redis, &self.redis_cluster];
        let totals = ports
            .into_iter()
            .flatten()
            .map(|port| port.service.totals());
        totals.reduce(Totals::plus)
    }

    /// How long commands of Redis clients took, by command.
    #[must_use]
    pub fn redis_times(&self) -> BTreeMap<&'static str, Latencies> {
        let mut all: BTreeMap<&'static str, Latencies> = BTreeMap::new();
        for port in [&self.redis, &self.redis_cluster].into_iter().flatten() {
            for (name, times) in port.service.times() {
                match all.entry(name) {
                    Entry::Vacant(entry) => {
                        entry.insert(times);
                    }
                    Entry::Occupied(mut entry) => {
                        let sum = entry.get_mut().add(&times);
                        sum.expect("all have the same bounds");
                    }
                }
            }
        }
        all
    }

    /// Logins, commands, keys and databases that its ports for Redis clients have refused to users.
    #[must_use]
    pub fn redis_denied(&self) -> [u64; 4] {
        let port = self.redis.as_ref().or(self.redis_cluster.as_ref());
        port.map_or([0; 4], |port| port.service.denied())
    }

    /// The memory that the connections of its ports for Redis clients hold, if it has any such
    /// port.
    #[must_use]
    pub fn redis_memory(&self) -> Option<Arc<ClientMemory>> {
        let port = self.redis.as_ref().or(self.redis_cluster.as_ref())?;
        Some(port.service.memory())
    }

    /// Its master, for the door of mapped reads, tests and checkers.
    #[must_use]
    pub fn master(&self) -> Option<Arc<Master>> {
        self.local.0.get().cloned()
    }

    /// Has the status say which processes read the memory; only the first call counts.
    pub fn tell_readers(&self, readers: impl Fn() -> MappedReaders + Send + Sync + 'static) {
        // A second door has no place in the status.
        let _is_first = self.status.readers.set(Box::new(readers));
    }

    /// Has clients learn where processes of this machine may map the memory; only the first call
    /// counts.
    pub fn tell_door(&self, door: DoorPlace) {
        // A second door is found by nobody.
        let _is_first = self.status.door.set(door);
    }

    /// Its backup, for tests and checkers.
    #[must_use]
    pub fn backup(&self) -> &Backup {
        &self.status.source.backup
    }

    /// The server list as this server knows it.
    #[must_use]
    pub fn server_list(&self) -> Arc<ServerList> {
        self.membership.list()
    }

    /// What it has and does.
    #[must_use]
    pub fn status(&self) -> ServerStatus {
        self.status.read()
    }

    /// Whether it can do its work.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.status.source.readiness()
    }

    /// Ends when the cluster has declared this server dead, or when its disk hangs or its data
    /// directory is gone, and says why. The process should then end: it can come back as a new
    /// server.
    pub async fn expelled(&self) -> String {
        let unusable = self.backup().unusable();
        tokio::select! {
            biased;
            why = self.declared_dead() => why,
            why = unusable => why,
        }
    }

    /// Has all tablets moved to other servers and leaves the cluster, so that its end is no crash.
    /// The server serves meanwhile, and nothing more in this life afterwards.
    ///
    /// # Errors
    /// See [`NotLeft`]. It serves on; the rest of its tablets is recovered when it ends.
    pub async fn leave(&self, limit: Duration) -> Result<(), NotLeft> {
        self.leaving.leave(limit).await
    }

    async fn declared_dead(&self) -> String {
        let mut standing = self.membership.watch_standing();
        loop {
            match &*standing.borrow_and_update() {
                Standing::Expelled(why) => return why.clone(),
                Standing::Left => return "it left the cluster".into(),
                Standing::Joining | Standing::Member => {}
            }
            if standing.changed().await.is_err() {
                return "the server was stopped".into();
            }
        }
    }

    /// Stops serving: closes the ports and ends the tasks. Everything acknowledged is with the
    /// backups, so nothing has to be written.
    pub fn shutdown(&mut self) {
        self.ports.clear();
        if let Some(master) = self.local.0.get() {
            master.stop();
            // Their tasks would go on, and keep the log's memory.
            master.replication().stop();
        }
        for task in self
            .tasks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
        {
            task.abort();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// How many logs its cores have.
fn logs_of(env: &Env) -> u16 {
    env.tasks.cores().min(CORE_LOGS_MAX)
}

fn store_options(
    env: &Env,
    options: &ServerOptions,
    settings: &ClusterSettings,
    server: ServerId,
    cluster: ClusterId,
) -> EngineOptions {
    let durability = if settings.replicas == 0 {
        Durability::Volatile
    } else {
        Durability::Replicated
    };
    let logs = logs_of(env);
    let mut log = LogOptions {
        cluster,
        server,
        now_s: u32::try_from(env.clock.unix_seconds()).unwrap_or(u32::MAX),
        logs,
        spare_logs: match durability {
            Durability::Volatile => 0,
            Durability::Replicated => CLASS_LOGS,
        },
        durability,
        tombstones: options.tombstones,
        in_place: options.in_place,
        cleaners: (logs / CORES_PER_CLEANER).clamp(1, CLEANERS_OF_A_NODE_MAX),
        huge_pages: options.huge_pages,
        readers: options.mapped_reads.then(|| {
            let clock = Arc::clone(&env.clock);
            GraceClock::new(move || clock.now().0)
        }),
        parts: memory_parts((0..logs).map(|core| env.tasks.memory_node(CoreId(core)))),
        table_nodes: options.index_memory.nodes(&env.tasks.memory_nodes()),
        ..LogOptions::new(options.memory)
    };
    log.cleaners = cleaners(&log);
    EngineOptions { log }
}

/// A part of the memory for each memory node that event loops are bound to. There are none when
/// they are bound to no node, or all to one. `nodes` gives the node of each core.
fn memory_parts(nodes: impl Iterator<Item = Option<u32>>) -> Vec<MemoryPart> {
    let mut logs_of = BTreeMap::<u32, Vec<LogId>>::new();
    for (log, node) in (0..).map(LogId).zip(nodes) {
        match node {
            Some(node) => logs_of.entry(node).or_default().push(log),
            None => return Vec::new(),
        }
    }
    if logs_of.len() < 2 {
        return Vec::new();
    }
    let part = |(node, logs)| MemoryPart {
        node: Some(node),
        logs,
    };
    logs_of.into_iter().map(part).collect()
}

/// Says where the memory lies, if it could lie elsewhere.
fn tell_binding(log: &LogStats) {
    let (nodes, binding, index) = (log.memory_parts, log.binding, log.interleaving);
    match binding {
        MemoryBinding::NoNodes => {}
        MemoryBinding::Bound => tracing::info!(nodes, "{binding}"),
        MemoryBinding::Refused(_) => {
            tracing::warn!(nodes, "{binding}; reads may cross nodes more often");
        }
    }
    match index {
        Interleaving::FirstTouch => {}
        Interleaving::Interleaved => tracing::info!("index memory {index}"),
        Interleaving::Refused(_) => {
            tracing::warn!("index memory {index}; one node may carry most reads of the indexes");
        }
    }
}

/// The address at which others reach a port of this process that is open at `bound`. By `own` they
/// reach this machine, and a port that is open on all addresses is open on that one, too.
fn as_others_reach(bound: &str, own: &Address) -> String {
    let own = own.first().place;
    match (bound.parse::<SocketAddr>(), own.parse::<SocketAddr>()) {
        (Ok(bound), Ok(own))
            if bound.ip().to_canonical().is_unspecified() && (bound.is_ipv6() || own.is_ipv4()) =>
        {
            SocketAddr::new(own.ip(), bound.port()).to_string()
        }
        _ => bound.to_owned(),
    }
}

/// The server that has an address, unless it is this one's former life.
fn another_at(list: &ServerList, address: &str, former: Option<ServerId>) -> Option<ServerId> {
    let there = list.up().find(|server| server.is_at(address))?;
    Some(there.id).filter(|id| Some(*id) != former)
}

/// Cleaner threads of a server with this log, which has those of one memory node. With several
/// nodes there is one for each at least, as far as the memory has room for their reserves. They
/// share the cores with the event loops.
fn cleaners(log: &LogOptions) -> u16 {
    match u16::try_from(log.parts.len()) {
        Ok(0 | 1) | Err(_) => log.cleaners,
        Ok(parts) => {
            let wanted = (log.logs / CORES_PER_CLEANER).max(parts);
            log.cleaners_up_to(wanted.min(CLEANERS_MAX))
        }
    }
}

impl Starting {
    async fn run(self, former: Option<Identity>) -> Result<Server, ServerError> {
        let status = Arc::new(StatusSource {
            membership: Arc::clone(&self.membership),
            local: self.local.clone(),
            backup: self.backup.clone(),
            env: self.env.clone(),
            began: self.env.clock.now(),
        });
        let whole = Arc::new(WholeStatus {
            source: Arc::clone(&status),
            ports: OnceLock::new(),
            readers: OnceLock::new(),
            door: OnceLock::new(),
        });
        let service = Arc::new(ServerService {
            membership: Arc::clone(&self.membership),
            local: self.local.clone(),
            backup: self.backup.clone(),
            limits: Arc::<Limits>::default(),
            status: Arc::clone(&whole),
        });
        let mut ports = vec![
            self.env
                .network
                .listen(&self.options.listen, service)
                .await?,
        ];
        let (redis, redis_cluster) = self.open_redis(&status, &mut ports).await?;
        let told = [&redis, &redis_cluster].into_iter().flatten();
        let told = whole
            .ports
            .set(told.map(|port| port.service.clone()).collect());
        assert!(told.is_ok(), "ports are opened once");
        let reply = self
            .enlist(
                former,
                &ports[0].address,
                [&redis, &redis_cluster].map(|port| Some(&port.as_ref()?.address)),
            )
            .await?;
        // Before the directory is said to be of this cluster.
        self.backup.enlisted(reply.server, reply.cluster)?;
        self.membership.named(reply.server, reply.cluster);
        let active = reply.list.active;
        if !self.options.versions.speak(active) {
            let own = self.options.versions;
            let why = format!("the cluster speaks version {active}, and this program {own}");
            return Err(ServerError::Refused(why));
        }
        let identity = Identity {
            format_version: FORMAT_VERSION,
            cluster: reply.cluster,
            server: reply.server,
            protocol: active,
        };
        identity.store(&*self.env.disk).await?;
        let mut tasks = self.serve(&reply, identity).await?;
        tasks.extend(self.follow_redis_users([&redis, &redis_cluster]));
        let ports_of_redis = [&redis, &redis_cluster].into_iter().flatten();
        Ok(Server {
            leaving: Leaving {
                env: self.env,
                membership: Arc::clone(&self.membership),
                coordinators: self.coordinators,
                redis: ports_of_redis.map(|port| port.service.clone()).collect(),
            },
            membership: self.membership,
            local: self.local,
            status: whole,
            redis,
            redis_cluster,
            ports,
            tasks: Arc::new(Mutex::new(tasks)),
        })
    }

    /// Asks to join until the coordinator answers.
    async fn enlist(
        &self,
        former: Option<Identity>,
        address: &Address,
        [redis, redis_cluster]: [Option<&Address>; 2],
    ) -> Result<EnlistReply, ServerError> {
        let mut request = Enlist {
            protocol: self.options.versions.newest,
            expects: (!self.options.own_settings).then(|| self.options.expects()),
            // Without an identity the frames tell.
            cluster: self.backup.cluster(),
            replaces: former.map(|f| f.server),
            attempt: self.env.rng.next_u64(),
            logs: logs_of(&self.env),
            info: ServerInfo {
                id: ServerId(0),
                address: address.to_string(),
                redis: redis.map(|redis| as_others_reach(&redis.0, address)),
                redis_cluster: redis_cluster.map(|port| as_others_reach(&port.0, address)),
                admin: self
                    .options
                    .admin
                    .as_deref()
                    .map(|admin| as_others_reach(admin, address)),
                rack: self.options.rack.clone(),
                pid: self.options.pid,
                cores: self.env.tasks.cores(),
                volatile: self.options.replicas == Some(0),
                draining: false,
                disk_mb_per_s: self.backup.disk_mb_per_s(),
                versions: self.options.versions,
                state: ServerState::Up,
            },
        };
        let mut attempts = 0;
        loop {
            let to = self.coordinators.current();
            let network = &*self.env.network;
            let error = match self
                .coordinators
                .call(network, &request, ENLIST_LIMIT)
                .await
            {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            if let RpcError::Refused(refusal) = &error {
                // The answer was late, and this life is over before it began: begin another one.
                if refusal.fatal_kind() == Some(FatalKind::NotInCluster) {
                    request.attempt = self.env.rng.next_u64();
                } else if refusal.fatal_kind().is_some() {
                    return Err(ServerError::Refused(refusal.to_string()));
                }
            }
            if attempts % ENLIST_TRACE_EVERY == 0 {
                match self.in_its_place(&request, &error).await {
                    Some(server) => {
                        tracing::info!(coordinator = %to, %address, %server, "cannot join the cluster: another server answers at this address; this one needs an address of its own");
                    }
                    // A cluster that is just started has its coordinator soon.
                    None if attempts > 0 && matches!(error, RpcError::Call(_)) => {
                        tracing::warn!(coordinator = %to, %error, "cannot join the cluster yet; trying again; does the coordinator run, and is --coordinator right?");
                    }
                    None => {
                        tracing::info!(coordinator = %to, %error, "cannot join the cluster yet; trying again");
                    }
                }
            }
            attempts += 1;
            self.env.clock.sleep(ENLIST_PAUSE).await;
        }
    }

    /// The server that the coordinator finds at the address of this one, if that is why it puts
    /// this one off.
    async fn in_its_place(&self, request: &Enlist, error: &RpcError) -> Option<ServerId> {
        let RpcError::Refused(Refusal::Retry {
            why: RetryReason::Busy,
            ..
        }) = error
        else {
            return None;
        };
        let ask = GetServerList {};
        let network = &*self.env.network;
        let list = self.coordinators.call(network, &ask, ENLIST_LIMIT).await;
        another_at(&list.ok()?.list, &request.info.address, request.replaces)
    }

    /// Makes log, replication and master, and lets requests in.
    async fn serve(
        &self,
        reply: &EnlistReply,
        identity: Identity,
    ) -> Result<Vec<TaskHandle>, ServerError> {
        let (env, options) = (&self.env, &self.options);
        let settings = match reply.list.settings.filter(|_| !options.own_settings) {
            Some(settings) => settings,
            None => options.settings().map_err(ServerError::Option)?,
        };
        if settings.replicas > 0 && options.in_place {
            return Err(ServerError::Option(format!(
                "update in-place is for clusters without replicas, and this one has {settings}"
            )));
        }
        let store = store_options(env, options, &settings, reply.server, reply.cluster);
        let cleaners = store.log.cleaners;
        let store = Engine::open(store)?;
        if let Some(hook) = options.on_corruption.clone() {
            let hook = Box::new(move |corruption: &Corruption| hook.call(corruption));
            store.space().set_corruption_hook(hook);
        }
        tell_binding(&store.space().stats());
        let replication_options = ReplicationOptions {
            rack: options.rack.clone(),
            settings,
            follows_list: !options.own_settings,
            coordinators: Arc::clone(&self.coordinators),
            ..ReplicationOptions::new(reply.cluster, reply.server)
        };
        let replication =
            Replication::start(env.clone(), Arc::clone(store.space()), replication_options);
        let members = Arc::clone(&self.membership);
        let master = Master::new(MasterParts {
            env: env.clone(),
            cluster: reply.cluster,
            id: reply.server,
            store: Arc::clone(&store),
            replication: replication.clone(),
            coordinators: Arc::clone(&self.coordinators),
            addresses: Arc::new(move |id| {
                members
                    .list()
                    .get(id)
                    .map(|s| Address::from(s.address.as_str()))
            }),
            recovery: RecoveryOptions::default(),
        });
        let first = self.local.0.set(Arc::clone(&master));
        assert!(first.is_ok(), "a server is enlisted once");
        let lease = Lease {
            env: env.clone(),
            membership: Arc::clone(&self.membership),
            coordinators: Arc::clone(&self.coordinators),
            backup: self.backup.clone(),
            master: Arc::clone(&master),
        };
        let mut tasks = vec![
            self.follow_list(Arc::clone(&master)),
            self.open_classes(Arc::clone(&master)),
            self.follow_version(identity),
            self.follow_standing(Arc::clone(&master)),
            self.forget_clients(Arc::clone(&master)),
            self.resolve_transactions(Arc::clone(&master)),
        ];
        tasks.extend((0..self.env.tasks.cores()).map(|core| self.expire(CoreId(core), &master)));
        let mut cleaner_options = CleanerOptions::default();
        let space = store.space();
        if options.populate {
            cleaner_options.waste_percent = None;
            tasks.push(self.populate(Arc::clone(space)));
        }
        let cleaner = Arc::new(store.cleaner(cleaner_options));
        tasks.extend(
            (0..cleaners).map(|n| self.start_cleaner(n, Arc::clone(&cleaner), Arc::clone(space))),
        );
        self.membership
            .enlisted(reply.server, reply.cluster, reply.list.clone());
        let watcher = Watcher {
            env: env.clone(),
            membership: Arc::clone(&self.membership),
            coordinators: Arc::clone(&self.coordinators),
            options: options.pings,
            suspects: replication.watch_suspects(),
        };
        tasks.extend(watcher.start());
        tasks.extend(lease.start());
        Ok(tasks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_on_all_addresses_is_published_with_one() {
        let published = |bound, own: &str| as_others_reach(bound, &Address::from(own));
        for (bound, own, expected) in [
            ("0.0.0.0:6379", "10.0.0.2:7700", "10.0.0.2:6379"),
            ("[::]:6379", "10.0.0.2:7700", "10.0.0.2:6379"),
            ("[::]:6379", "[fd00::2]:7700", "[fd00::2]:6379"),
            // Not open there.
            ("0.0.0.0:6379", "[fd00::2]:7700", "0.0.0.0:6379"),
            ("10.0.0.3:6379", "10.0.0.2:7700", "10.0.0.3:6379"),
            ("0.0.0.0:6379", "10.0.0.2:7700+shm:/a", "10.0.0.2:6379"),
            ("0.0.0.0:6379", "udp:10.0.0.2:7700", "10.0.0.2:6379"),
            ("server-1-redis", "server-1", "server-1-redis"),
        ] {
            assert_eq!(published(bound, own), expected, "{bound} {own}");
        }
    }

    #[test]
    fn who_has_the_address_of_a_server_is_named_unless_it_is_its_former_life() {
        let server = |id, address: &str, state| ServerInfo {
            disk_mb_per_s: 100,
            state,
            ..ServerInfo::plain(ServerId(id), address)
        };
        let list = ServerList {
            version: pluvio_units::ServerListVersion(1),
            servers: vec![
                server(1, "here:1", ServerState::Crashed),
                server(2, "there:1", ServerState::Up),
                server(3, "here:1", ServerState::Up),
            ],
            grown: true,
            ..ServerList::default()
        };
        let found = |address, former: Option<u64>| another_at(&list, address, former.map(ServerId));
        assert_eq!(found("here:1", None), Some(ServerId(3)));
        assert_eq!(found("here:1", Some(2)), Some(ServerId(3)));
        assert_eq!(found("here:1", Some(3)), None);
        assert_eq!(found("nowhere:1", None), None);
    }

    #[test]
    fn logs_of_cores_on_one_memory_node_share_a_part() {
        let part = |node, logs: &[u16]| MemoryPart {
            node: Some(node),
            logs: logs.iter().map(|log| LogId(*log)).collect(),
        };
        let cores = [Some(1), Some(0), Some(1), Some(0)];
        let parts = [part(0, &[1, 3]), part(1, &[0, 2])];
        assert_eq!(memory_parts(cores.into_iter()), parts);
        for cores in [[Some(1), Some(1)], [None, Some(0)], [None, None]] {
            assert_eq!(memory_parts(cores.into_iter()), [], "{cores:?}");
        }
    }

    #[test]
    fn each_memory_node_has_a_cleaner_where_there_are_several() {
        let cleaners_of = |cores: u16, nodes: u16, memory: Size| {
            let nodes_of_cores = (0..cores).map(|core| Some(u32::from(core % nodes)));
            cleaners(&LogOptions {
                logs: cores,
                cleaners: 1,
                parts: memory_parts(nodes_of_cores),
                ..LogOptions::new(memory)
            })
        };
        let large = Size(64 << 30);
        assert_eq!(cleaners_of(64, 1, large), 1, "it has as many as are given");
        assert_eq!(cleaners_of(4, 2, large), 2);
        assert_eq!(cleaners_of(64, 2, large), 16);
        assert_eq!(cleaners_of(64, 8, large), 16);
        assert_eq!(cleaners_of(250, 2, large), 62);
        assert_eq!(cleaners_of(250, 100, large), 64, "there are no more");
        // As far as there is room.
        assert_eq!(cleaners_of(64, 2, Size::mib(256)), 3);
        assert_eq!(cleaners_of(4, 2, Size::mib(64)), 1);
    }
}
