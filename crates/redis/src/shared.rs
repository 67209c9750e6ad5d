//! The state that all connections of a process share, and the state that those of one core share.

use crate::clients::{ClientEntry, Clients};
use crate::command_log::{
    Entry, Kind, is_large, is_slow, kept_parts, parts_of_held, parts_of_several,
};
use crate::counters::{Counters, Latencies, Rates, Totals};
use crate::database::Databases;
use crate::hot_keys::HotKeysOf;
use crate::memory::ClientMemory;
use crate::monitor::Monitors;
use crate::parameters::{Number, Parameters};
use crate::parser::{Command, Limits};
use crate::pause::Pause;
use crate::reply::{Failure, Reply};
use crate::scripts::Scripts;
use crate::table::SPECS;
use crate::users::rules::{DEFAULT, User};
use crate::users::{Tools, Users};
use core::time::Duration;
use pluvio_client::{Client, Parts, Sampler, ServerList, ServerStatus};
use pluvio_env::{BoxFuture, Clock, Moment};
use pluvio_units::{CoreId, ServerId, TimeSpread, UnixMs};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The machine's memory and time that the process uses, as INFO shows them.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct MachineUse {
    /// Bytes of the process that are in memory.
    pub resident_bytes: u64,
    /// The most that there were.
    pub resident_bytes_max: u64,
    /// Bytes of memory of the machine.
    pub total_bytes: u64,
    /// Processor time of the process in the kernel.
    pub system_time: Duration,
    /// Processor time of the process elsewhere.
    pub user_time: Duration,
}

/// Tells what the process uses. Called on any event loop; must not block for long.
#[derive(Clone)]
pub struct MachineFn(pub Arc<dyn Fn() -> MachineUse + Send + Sync>);

impl core::fmt::Debug for MachineFn {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MachineFn").finish_non_exhaustive()
    }
}

/// How the front end behaves. `RedisOptions::default` gives the defaults.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RedisOptions {
    /// The port, as INFO and CONFIG show it; see `RedisService::bound`.
    pub port: u16,
    /// The process's id, as INFO shows it.
    pub process_id: u32,
    /// The version of Pluvio, as INFO and HELLO show it.
    pub version: String,
    /// Whether a write is on its replicas' devices before it is acknowledged, as CONFIG shows it.
    /// Else the server's status says so.
    pub synced: bool,
    /// Most connections at a time, of all ports with the same `connections`.
    pub connections_max: usize,
    /// How many connections there are. Ports that share a limit share this.
    pub connections: Arc<AtomicUsize>,
    /// What commands may look like.
    pub limits: Limits,
    /// Most commands of one connection that are executed, or being executed, and not answered.
    pub queue_max: usize,
    /// Most bytes of the commands of one run; a single one may have more.
    pub run_bytes_max: usize,
    /// From this many bytes of replies that wait to be sent on, a connection starts no more
    /// commands.
    pub output_bytes_max: usize,
    /// The other servers, for a port for cluster clients; `None` on an ordinary port.
    pub cluster: Option<ClusterPort>,
    /// Longest reply of one command, so that a KEYS or MGET cannot take all memory.
    pub reply_bytes_max: usize,
    /// What all connections may hold. Ports that share a bound share this.
    pub memory: Arc<ClientMemory>,
    /// Where scripts run that take long. `None`: on the event loop, as all others.
    pub elsewhere: Option<Elsewhere>,
    /// The parameters that CONFIG SET changes, and the logs of slow and large commands. Ports of
    /// one server share this.
    pub parameters: Arc<Parameters>,
    /// Users, and their passwords and rights. Ports of one server share this.
    pub users: Arc<Users>,
    /// Whether DEBUG is allowed.
    pub debug: bool,
    /// Tells what the process uses of the machine; `None` where nobody knows.
    pub machine: Option<MachineFn>,
    /// Notes the keys that make most traffic; `None` where no server is in this process.
    pub hot_keys: Option<HotKeysOf>,
    /// Which commands begin a trace.
    pub trace: Sampler,
}

/// The way in which work of a thread is done outside the event loops ([`Elsewhere`]).
type ElsewhereFn = dyn Fn(Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> + Send + Sync;

/// Does work that takes long outside the event loops.
#[derive(Clone)]
pub struct Elsewhere(pub(crate) Arc<ElsewhereFn>);

impl Elsewhere {
    /// `run` does the work on another thread; its future ends with the work.
    pub fn new(
        run: impl Fn(Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(run))
    }
}

impl core::fmt::Debug for Elsewhere {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Elsewhere").finish_non_exhaustive()
    }
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            port: 0,
            process_id: 0,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            synced: false,
            connections_max: 10_000,
            connections: Arc::default(),
            limits: Limits::default(),
            queue_max: 256,
            run_bytes_max: 4 << 20,
            output_bytes_max: 1 << 20,
            cluster: None,
            reply_bytes_max: 256 << 20,
            memory: Arc::new(ClientMemory::new(512 << 20)),
            elsewhere: None,
            parameters: Arc::default(),
            users: Arc::default(),
            debug: false,
            machine: None,
            hot_keys: None,
            trace: Sampler::OFF,
        }
    }
}

impl RedisOptions {
    /// With this bound for what all connections hold. A command may have a quarter of it, and a
    /// reply half of it, so that neither alone fills it.
    #[must_use]
    pub fn with_memory(mut self, memory: ClientMemory) -> Self {
        let bound = memory.bound();
        let command = &mut self.limits.command_bytes_max;
        *command = (*command).min(bound / 4);
        self.reply_bytes_max = self.reply_bytes_max.min(bound / 2);
        self.memory = Arc::new(memory);
        self
    }

    /// In protected mode: only connections of this machine are answered as long as `default` needs
    /// no password. CONFIG SET may change it.
    #[must_use]
    pub fn with_protected_mode(self, is_on: bool) -> Self {
        self.parameters
            .set_number(Number::IsProtected, i64::from(is_on));
        self
    }

    /// The word for it in HELLO and INFO.
    pub(crate) fn mode(&self) -> &'static str {
        match self.cluster {
            Some(_) => "cluster",
            None => "standalone",
        }
    }
}

/// How long the answer of a server to a ping is believed.
const PINGED_FOR: Duration = Duration::from_millis(100);

/// The id of this server, 0 while it is not enlisted, and the servers it knows of.
pub type ServersFn = Arc<dyn Fn() -> (ServerId, Arc<ServerList>) + Send + Sync>;

/// The servers, as a port for cluster clients knows them.
#[derive(Clone)]
pub struct ClusterPort {
    servers: ServersFn,
    /// Servers that were pinged lately, when, and whether they answered.
    pinged: Arc<Mutex<BTreeMap<ServerId, (Moment, bool)>>>,
}

impl ClusterPort {
    /// `servers` is called on any event loop and must not block.
    #[must_use]
    pub fn new(servers: ServersFn) -> Self {
        let pinged = Arc::default();
        Self { servers, pinged }
    }

    pub(crate) fn own_id(&self) -> ServerId {
        (self.servers)().0
    }

    pub(crate) fn list(&self) -> Arc<ServerList> {
        (self.servers)().1
    }

    /// Where a server has its port for cluster clients, if it is up and has one.
    pub(crate) fn address_of(&self, server: ServerId) -> Option<String> {
        let list = self.list();
        list.up()
            .find(|info| info.id == server)?
            .redis_cluster
            .clone()
    }

    /// Whether a server answered a ping in the last while; `None` when nobody asked.
    pub(crate) fn answered(&self, server: ServerId, now: Moment) -> Option<bool> {
        let pinged = self.pinged.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, answered) = *pinged.get(&server)?;
        (now.since(at) < PINGED_FOR).then_some(answered)
    }

    pub(crate) fn note_answer(&self, server: ServerId, now: Moment, answered: bool) {
        let mut pinged = self.pinged.lock().unwrap_or_else(PoisonError::into_inner);
        pinged.retain(|_, (at, _)| now.since(*at) < PINGED_FOR);
        pinged.insert(server, (now, answered));
    }
}

/// The id of a node: the same wherever it is asked for. A server that starts again is another one.
pub(crate) fn node_id(server: ServerId) -> String {
    format!("{:040x}", server.0)
}

impl core::fmt::Debug for ClusterPort {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ClusterPort").finish_non_exhaustive()
    }
}

/// Tells what the server has and does, for INFO, WAIT and CONFIG. Called on any event loop; must
/// not block.
pub type StatusFn = Arc<dyn Fn() -> ServerStatus + Send + Sync>;

/// What all connections of a process share.
pub(crate) struct Shared {
    pub(crate) options: RedisOptions,
    /// Relaxed: it guards nothing.
    pub(crate) port: AtomicU16,
    pub(crate) clients: Clients,
    pub(crate) scripts: Scripts,
    pub(crate) started: Moment,
    clock: Arc<dyn Clock>,
    status: StatusFn,
    /// Seconds since 1970 at a moment of the monotonic clock.
    wall: Mutex<(u64, Moment)>,
    pub(crate) monitors: Monitors,
    pub(crate) pause: Pause,
    /// The most memory of the log and the indexes that INFO has seen.
    memory_peak: AtomicU64,
    /// What was counted when CONFIG RESETSTAT came last.
    before: Mutex<Before>,
    counters: Vec<Arc<Counters>>,
    /// The users of this generation have their connections, and no others.
    users_seen: AtomicU64,
}

/// What had been counted at some moment.
#[derive(Default)]
struct Before {
    totals: Totals,
    expired: u64,
    times: BTreeMap<&'static str, Latencies>,
}

impl Shared {
    pub(crate) fn new(
        options: RedisOptions,
        clock: Arc<dyn Clock>,
        status: StatusFn,
        cores: u16,
    ) -> Self {
        let now = clock.now();
        Self {
            port: AtomicU16::new(options.port),
            options,
            clients: Clients::default(),
            scripts: Scripts::new(Arc::clone(&clock)),
            started: now,
            wall: Mutex::new((clock.unix_seconds(), now)),
            clock,
            status,
            monitors: Monitors::default(),
            pause: Pause::default(),
            memory_peak: AtomicU64::new(0),
            before: Mutex::default(),
            counters: (0..cores.max(1)).map(|_| Arc::default()).collect(),
            users_seen: AtomicU64::new(0),
        }
    }

    /// Closes the connections of users that are no more, but for one.
    pub(crate) fn close_gone(&self, spared: Option<u64>) {
        let users = &self.options.users;
        let generation = users.generation();
        if self.users_seen.swap(generation, Ordering::Relaxed) == generation {
            return;
        }
        for entry in self.clients.all() {
            let (name, life) = entry.user();
            let is_there = |user: Arc<User>| user.life == life || &*name == DEFAULT;
            if Some(entry.id) != spared && !users.get(&name).is_some_and(is_there) {
                entry.kill();
            }
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.load(Ordering::Relaxed)
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    pub(crate) fn status(&self) -> ServerStatus {
        (self.status)()
    }

    /// Whether a write of this server is on its replicas' devices before it is acknowledged.
    pub(crate) fn is_synced(&self) -> bool {
        self.options.synced || self.status().synced
    }

    /// Replicas that every acknowledged write has, whichever server has its key. Most have more:
    /// those that are wanted.
    pub(crate) fn replicas_sure(&self) -> u32 {
        let status = self.status();
        status.replicas_needed.min(status.replicas_wanted)
    }

    /// Seconds since 1970 and microseconds. Runs on evenly with the monotonic clock, and follows
    /// the wall clock when that has jumped.
    pub(crate) fn wall_clock(&self) -> (u64, u32) {
        let (seconds, now) = (self.clock.unix_seconds(), self.clock.now());
        let mut wall = self.wall.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = Duration::from_secs(wall.0) + now.since(wall.1);
        if at.as_secs().abs_diff(seconds) > 1 {
            *wall = (seconds, now);
            at = Duration::from_secs(seconds);
        }
        (at.as_secs(), at.subsec_micros())
    }

    /// What was counted since the start. INFO shows [`Self::totals_shown`].
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for counters in &self.counters {
            counters.add_to(&mut totals);
        }
        totals
    }

    /// How long commands took since the start, all together.
    pub(crate) fn spread(&self) -> TimeSpread {
        let all = self.counters.iter().map(|core| core.spread());
        all.fold(TimeSpread::default(), |sum, core| sum.plus(&core))
    }

    /// How long commands took since the start, by command.
    pub(crate) fn all_times(&self) -> BTreeMap<&'static str, Latencies> {
        let mut times = BTreeMap::new();
        for counters in &self.counters {
            counters.add_times_to(&mut times);
        }
        times
    }

    fn before(&self) -> MutexGuard<'_, Before> {
        self.before.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// CONFIG RESETSTAT: what INFO shows begins anew. Counters go on, for those that add them up.
    pub(crate) fn reset_statistics(&self) {
        let now = Before {
            totals: self.totals(),
            expired: self.status().objects_expired,
            times: self.all_times(),
        };
        self.memory_peak.store(0, Ordering::Relaxed);
        *self.before() = now;
    }

    /// The counts since CONFIG RESETSTAT, and the objects that expired since.
    pub(crate) fn totals_shown(&self) -> (Totals, u64) {
        let expired = self.status().objects_expired;
        let totals = self.totals();
        let before = self.before();
        let totals = totals.since(&before.totals);
        (totals, expired.saturating_sub(before.expired))
    }

    /// How long commands took since CONFIG RESETSTAT; those that were not called are left out.
    pub(crate) fn times(&self) -> BTreeMap<&'static str, Latencies> {
        // First: what is subtracted is never more than what it is subtracted from.
        let before = self.before();
        let mut times = self.all_times();
        for (name, histogram) in &mut times {
            if let Some(before) = before.times.get(name) {
                histogram.subtract(before).expect("counts only grow");
            }
        }
        times.retain(|_, histogram| !histogram.is_empty());
        times
    }

    /// Commands and bytes a second of late.
    pub(crate) fn rates(&self) -> Rates {
        let now = self.now();
        let each = self.counters.iter().map(|counters| counters.rates(now));
        each.fold(Rates::default(), Rates::plus)
    }

    /// The most memory that INFO has seen, now that it sees this.
    pub(crate) fn memory_peak(&self, now: u64) -> u64 {
        self.memory_peak.fetch_max(now, Ordering::Relaxed).max(now)
    }
}

/// Bytes of values that MGET reads before others get their turn.
const STEP_BYTES: usize = 1 << 20;
/// Keys that it reads at most before.
const STEP_KEYS: usize = 64;

/// When a command was begun, and when it had its reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    pub(crate) started: Moment,
    pub(crate) ended: Moment,
}

/// What the connections of one core share.
pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
    pub(crate) databases: Databases,
    pub(crate) counters: Arc<Counters>,
    /// The same core for commands that do not wait while memory is full: those of a pipeline in
    /// which one has waited.
    hasty: Option<Box<Self>>,
    /// About the length of the largest values of late.
    value_bytes: AtomicUsize,
}

impl Core {
    /// The wall clock, by which relative times are told and refused.
    pub(crate) fn wall_ms(&self) -> UnixMs {
        let now = self.databases.parts().clock.unix_time().as_millis();
        UnixMs(u64::try_from(now).unwrap_or(u64::MAX))
    }

    pub(crate) fn new(shared: &Arc<Shared>, client: &Client, parts: &Parts, core: u16) -> Self {
        let client = client.on_core(CoreId(core));
        let of = |client: Client, hasty| Self {
            shared: shared.clone(),
            databases: Databases::new(client, parts.clone(), shared.options.cluster.is_some()),
            counters: shared.counters[usize::from(core)].clone(),
            hasty,
            value_bytes: AtomicUsize::new(0),
        };
        let hasty = of(client.with_full_timeout(Duration::ZERO), None);
        of(client, Some(Box::new(hasty)))
    }

    /// Commands until the next one that begins a trace.
    pub(crate) fn until_sampled(&self) -> u64 {
        self.options().trace.next(&*self.databases.parts().rng)
    }

    /// What the work on users needs.
    pub(crate) fn tools(&self) -> Tools<'_> {
        let parts = self.databases.parts();
        Tools {
            client: self.databases.client(),
            clock: &parts.clock,
            rng: &*parts.rng,
            elsewhere: self.options().elsewhere.as_ref(),
        }
    }

    /// Reads the users anew.
    ///
    /// # Errors
    /// They cannot be read.
    pub(crate) async fn read_users(&self) -> Result<(), Failure> {
        let Tools { client, clock, .. } = self.tools();
        self.options().users.read(client, &**clock).await
    }

    /// The same core for commands that do not wait while memory is full.
    pub(crate) fn hasty(&self) -> &Self {
        self.hasty.as_deref().unwrap_or(self)
    }

    /// About the length of the largest values of late.
    pub(crate) fn value_bytes(&self) -> usize {
        self.value_bytes.load(Ordering::Relaxed)
    }

    /// How many values are read before others get their turn.
    pub(crate) fn step_keys(&self) -> usize {
        (STEP_BYTES / self.value_bytes().max(1)).clamp(1, STEP_KEYS)
    }

    /// Notes the length of values that were read together, on average.
    pub(crate) fn note_values(&self, bytes: usize) {
        let faded = self.value_bytes();
        let faded = faded - faded / 16;
        self.value_bytes.store(faded.max(bytes), Ordering::Relaxed);
    }

    pub(crate) fn options(&self) -> &RedisOptions {
        &self.shared.options
    }

    /// Counts a command that was run, and writes it into the logs where it belongs.
    pub(crate) fn note_run(
        &self,
        entry: &ClientEntry,
        spec: u16,
        command: &Command,
        reply: &Reply,
        timed: Timed,
    ) {
        let is_error = matches!(reply, Reply::Error(_));
        self.note(entry, spec, Some(command), is_error, timed);
        self.note_reply(entry, spec, command, reply.size());
    }

    /// Writes a command into the log of those with large replies, if it belongs there.
    pub(crate) fn note_reply(
        &self,
        entry: &ClientEntry,
        spec: u16,
        command: &Command,
        bytes: usize,
    ) {
        if is_large(&self.options().parameters, Number::ReplyBytes, bytes) {
            let parts = || kept_parts(&SPECS[usize::from(spec)], command);
            self.log(entry, Kind::Reply, bytes as u64, parts);
        }
    }

    /// [`Self::note_run`] for a command whose reply is not looked at; `None`: nor its arguments.
    pub(crate) fn note(
        &self,
        entry: &ClientEntry,
        spec: u16,
        command: Option<&Command>,
        is_error: bool,
        timed: Timed,
    ) {
        let parameters = &self.options().parameters;
        let took = timed.ended.since(timed.started);
        let keeps = parameters.number(Number::KeepsTimes) != 0;
        self.counters.ran(spec, took, timed.ended, is_error, keeps);
        let parts = || match command {
            Some(command) => kept_parts(&SPECS[usize::from(spec)], command),
            None => parts_of_held(spec),
        };
        if is_slow(parameters, took) {
            let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            self.log(entry, Kind::Slow, micros, parts);
        }
        if let Some(command) = command {
            self.note_request(entry, spec, command);
        }
    }

    /// Counts commands of a pipeline that were run one after the other (TIMES-1). `command` is the
    /// one of them, where there is no other.
    pub(crate) fn note_group(
        &self,
        entry: &ClientEntry,
        spec: u16,
        (count, failed): (u64, u64),
        command: Option<&Command>,
        (took, now): (Duration, Moment),
    ) {
        let parameters = &self.options().parameters;
        let keeps = parameters.number(Number::KeepsTimes) != 0;
        self.counters
            .ran_together(spec, (count, failed), took, now, keeps);
        if is_slow(parameters, took) {
            let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            self.log(entry, Kind::Slow, micros, || match command {
                Some(command) => kept_parts(&SPECS[usize::from(spec)], command),
                None => parts_of_several(spec, count),
            });
        }
    }

    /// Writes a command into the log of large ones, if it belongs there.
    pub(crate) fn note_request(&self, entry: &ClientEntry, spec: u16, command: &Command) {
        let bytes = command.bytes_held();
        if is_large(&self.options().parameters, Number::RequestBytes, bytes) {
            let parts = || kept_parts(&SPECS[usize::from(spec)], command);
            self.log(entry, Kind::Request, bytes as u64, parts);
        }
    }

    #[cold]
    fn log(
        &self,
        entry: &ClientEntry,
        kind: Kind,
        amount: u64,
        parts: impl FnOnce() -> Vec<Vec<u8>>,
    ) {
        let parameters = &self.options().parameters;
        let entry = Entry {
            id: 0,
            at: self.shared.wall_clock().0,
            amount,
            parts: parts(),
            address: entry.address.0.to_string(),
            name: entry.texts().name,
        };
        parameters.logs.push(parameters, kind, entry);
    }
}
