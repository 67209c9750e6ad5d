//! A cluster in memory with faults on demand, for tests of users and ours (feature `testing`).
//!
//! [`FakeCluster`] has a coordinator, servers, objects with versions and reject rules, virtual
//! time, and a plan of faults. It keeps nothing durable and recovers nothing: a "crashed" server's
//! objects wait until [`FakeCluster::recover`] gives them to another one. The whole cluster behind
//! a mutex, driven by [`FakeCluster::run`] in the calling thread.
//!
//! ```
//! # use pluvio_client::testing::{Fault, FakeCluster};
//! # use pluvio_client::Opcode;
//! let cluster = FakeCluster::new(3);
//! let client = cluster.client();
//! cluster.plan(Opcode::Mutate, Fault::LoseReply, 1);
//! let version = cluster.run(async {
//!     let table = client.create_table("t", None).await?;
//!     client.write(&table, b"key", "value".into()).await
//! });
//! assert_eq!(version.unwrap().version.0, 1);
//! ```

mod clock;
mod coordinator;
mod local;
mod mapped;
mod master;

use crate::{Client, ClientOptions, LocalMaster, Parts};
use bytes::Bytes;
use core::time::Duration;
use pluvio_env::{
    Address, BoxFuture, CallError, Frame, Listening, Network, NetworkError, NoConnection, Rng,
    Service, StreamService,
};
use pluvio_units::{
    ClientId, ClusterId, Deadline, HashKind, HashRange, KeyHash, KeyPlace, ObjectVersion,
    OperationId, SequenceNumber, ServerId, TableHash, TableId,
};
use pluvio_wire::{Opcode, Refusal, Role, TabletInfo, TabletState};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What happens to a request.
#[derive(Clone, PartialEq, Debug)]
pub enum Fault {
    /// It never arrives; the caller waits until its limit.
    LoseRequest,
    /// It is executed, then the connection breaks.
    LoseReply,
    /// It is executed, but the reply is not sent before the caller's limit.
    DelayReply,
    /// No connection can be made.
    Unreachable,
    /// It is refused.
    Refuse(Refusal),
}

/// What the next requests are to meet.
struct Planned {
    /// Those to it alone.
    to: Option<Address>,
    opcode: Opcode,
    fault: Fault,
    times: u32,
}

/// A request that was sent.
#[derive(Clone, PartialEq, Debug)]
pub struct Sent {
    /// To whom.
    pub to: Address,
    /// What.
    pub opcode: Opcode,
    /// How many reads or mutations it has; 0 when it is another operation.
    pub items: usize,
    /// As which operation. A batch has the number of its first item, also when only later ones are
    /// sent.
    pub operation: OperationId,
    /// Whether it reached its server and was not refused by a [`Fault`].
    pub delivered: bool,
}

/// A cluster in memory. Cheap to clone; all clones are the same cluster.
#[derive(Clone)]
pub struct FakeCluster(Arc<Mutex<State>>);

type Objects = BTreeMap<(KeyHash, Vec<u8>), (ObjectVersion, Bytes, Option<Deadline>)>;

struct State {
    now: Duration,
    timers: BTreeMap<(Duration, u64), core::task::Waker>,
    timer_last: u64,
    random: u64,
    latency: Duration,
    cluster: ClusterId,
    /// Addresses of servers, and whether they answer.
    servers: BTreeMap<ServerId, (Address, bool)>,
    tables: BTreeMap<TableId, FakeTable>,
    table_last: TableId,
    results: BTreeMap<(ClientId, SequenceNumber), master::KeptOutcome>,
    /// Below which numbers clients have the outcomes.
    acknowledged: BTreeMap<ClientId, SequenceNumber>,
    /// Keys that transactions of several servers have locked.
    locks: BTreeMap<(TableId, (KeyHash, Vec<u8>)), master::FakeLock>,
    faults: Vec<Planned>,
    sent: Vec<Sent>,
    reply_bytes_max: usize,
    local_waits: Option<Duration>,
    /// Positions of outcomes that the local master holds: how many there were, and how many are
    /// durable. `None`: it executes nothing at once.
    held: Option<(u32, u32)>,
    /// Whether the local master shows objects where they lie.
    shows: bool,
    /// Those who wait for positions.
    held_wakers: Vec<core::task::Waker>,
    mapped: mapped::FakeDoors,
    tasks: mapped::FakeTasks,
    /// The coordinator of another cluster listens at the address of the own one.
    is_replaced: bool,
}

struct FakeTable {
    name: String,
    hash: TableHash,
    tablets: Vec<TabletInfo>,
    objects: Objects,
    /// As on real servers, those of different tables cannot be compared.
    version_last: ObjectVersion,
}

/// Where the fake coordinator listens.
const COORDINATOR: &str = "coordinator";

impl FakeCluster {
    /// A cluster with this number of servers; their ids are 1, 2, …
    ///
    /// # Panics
    /// When `servers` is zero.
    #[must_use]
    pub fn new(servers: u64) -> Self {
        assert!(servers > 0, "a cluster has at least one server");
        let servers = (1..=servers).map(|n| {
            let address = Address::from(format!("server-{n}").as_str());
            (ServerId(n), (address, true))
        });
        Self(Arc::new(Mutex::new(State {
            now: Duration::ZERO,
            timers: BTreeMap::new(),
            timer_last: 0,
            random: 1,
            latency: Duration::ZERO,
            cluster: ClusterId(1),
            servers: servers.collect(),
            tables: BTreeMap::new(),
            table_last: TableId(0),
            results: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            locks: BTreeMap::new(),
            faults: Vec::new(),
            sent: Vec::new(),
            reply_bytes_max: pluvio_wire::MULTI_BYTES_MAX,
            local_waits: None,
            is_replaced: false,
            held: None,
            shows: false,
            held_wakers: Vec::new(),
            mapped: mapped::FakeDoors::default(),
            tasks: mapped::FakeTasks::default(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a client needs.
    #[must_use]
    pub fn parts(&self) -> Parts {
        Parts {
            clock: Arc::new(clock::FakeClock(self.clone())),
            rng: Arc::new(self.clone()),
            network: Arc::new(self.clone()),
            tasks: None,
            mapped: None,
        }
    }

    /// Options that find the coordinator.
    #[must_use]
    pub fn options(&self) -> ClientOptions {
        ClientOptions::new([COORDINATOR])
    }

    /// A client with default options.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(self.parts(), self.options())
    }

    /// The master of a server, for clients embedded in it.
    #[must_use]
    pub fn local_master(&self, server: ServerId) -> Arc<dyn LocalMaster> {
        Arc::new(local::FakeLocal {
            cluster: self.clone(),
            server,
        })
    }

    /// Time since the cluster was made.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.state().now
    }

    /// Lets every message take so long, each way.
    pub fn set_latency(&self, latency: Duration) {
        self.state().latency = latency;
    }

    /// Limits the values in a reply to a batch of reads, as servers do.
    pub fn set_reply_bytes_max(&self, bytes: usize) {
        self.state().reply_bytes_max = bytes;
    }

    /// Lets local masters answer later instead of at once.
    pub fn set_local_waits(&self, wait: Option<Duration>) {
        self.state().local_waits = wait;
    }

    /// From now on the coordinator of another cluster listens at the address of the own one; or no
    /// more.
    pub fn replace_coordinator(&self, by_another: bool) {
        self.state().is_replaced = by_another;
    }

    /// Lets the next `times` requests of this kind meet a fault, after those planned before.
    pub fn plan(&self, opcode: Opcode, fault: Fault, times: u32) {
        self.plan_for(None, opcode, fault, times);
    }

    /// The same for requests to this server.
    pub fn plan_at(&self, server: ServerId, opcode: Opcode, fault: Fault, times: u32) {
        let to = Address::from(format!("server-{}", server.0).as_str());
        self.plan_for(Some(to), opcode, fault, times);
    }

    /// No request meets a fault that was planned any more.
    pub fn forget_plans(&self) {
        self.state().faults.clear();
    }

    fn plan_for(&self, to: Option<Address>, opcode: Opcode, fault: Fault, times: u32) {
        self.state().faults.push(Planned {
            to,
            opcode,
            fault,
            times,
        });
    }

    /// From now on the local master executes at once, and holds outcomes until
    /// [`FakeCluster::make_durable`].
    pub fn hold_local(&self) {
        self.state().held.get_or_insert((0, 0));
    }

    /// From now on the local master shows objects where they lie, durable or not.
    pub fn show_local(&self) {
        self.state().shows = true;
    }

    /// The first `count` of the outcomes that the local master holds are durable.
    pub fn make_durable(&self, count: u32) {
        let wakers = {
            let mut state = self.state();
            let (all, _) = state.held.unwrap_or_default();
            state.held = Some((all, count));
            core::mem::take(&mut state.held_wakers)
        };
        wakers.into_iter().for_each(core::task::Waker::wake);
    }

    /// How many outcomes the local master has executed at once.
    #[must_use]
    pub fn executed_at_once(&self) -> u32 {
        self.state().held.map_or(0, |(all, _)| all)
    }

    /// All requests sent so far, in order. Requests to local masters are not sent.
    #[must_use]
    pub fn sent(&self) -> Vec<Sent> {
        self.state().sent.clone()
    }

    /// How often this kind of request was sent so far.
    #[must_use]
    pub fn count_sent(&self, opcode: Opcode) -> usize {
        let state = self.state();
        state.sent.iter().filter(|s| s.opcode == opcode).count()
    }

    /// How often reads or mutations were sent as a batch of more than one, so far.
    #[must_use]
    pub fn count_sent_batches(&self, opcode: Opcode) -> usize {
        let state = self.state();
        let batches = |s: &&Sent| s.opcode == opcode && s.items > 1;
        state.sent.iter().filter(batches).count()
    }

    /// How many reads or mutations were sent so far, alone or in batches, each attempt by itself.
    #[must_use]
    pub fn count_sent_items(&self, opcode: Opcode) -> usize {
        let state = self.state();
        let sent = state.sent.iter().filter(|s| s.opcode == opcode);
        sent.map(|s| s.items).sum()
    }

    /// The server stops answering; its tablets wait for [`FakeCluster::recover`].
    pub fn crash(&self, server: ServerId) {
        let mut state = self.state();
        state.mapped.version += 1;
        if let Some((_, up)) = state.servers.get_mut(&server) {
            *up = false;
        }
        for table in state.tables.values_mut() {
            for tablet in table.tablets.iter_mut().filter(|t| t.owner == server) {
                tablet.state = TabletState::Recovering;
            }
        }
    }

    /// Gives all tablets of one server to another, with their objects.
    pub fn recover(&self, from: ServerId, to: ServerId) {
        let mut state = self.state();
        state.mapped.version += 1;
        for table in state.tables.values_mut() {
            for tablet in table.tablets.iter_mut().filter(|t| t.owner == from) {
                tablet.owner = to;
                tablet.state = TabletState::Normal;
            }
        }
    }

    /// Another cluster takes the place of this one. It is empty and has the same addresses, the
    /// same ids of servers and, one after the other, of tables.
    pub fn begin_anew(&self) {
        let mut state = self.state();
        state.cluster = state.cluster.next();
        state.tables.clear();
        state.table_last = TableId(0);
        state.results.clear();
        state.acknowledged.clear();
    }

    /// Gives the tablet that has a hash to another server, with its objects. It is served there at
    /// once.
    ///
    /// # Panics
    /// When there is no such table.
    pub fn move_tablet(&self, table: TableId, hash: KeyHash, to: ServerId) {
        self.change_tablet(table, hash, |tablet| {
            tablet.owner = to;
            tablet.state = TabletState::Normal;
        });
    }

    /// Nobody serves the tablet that has a hash, until it is given to a server.
    ///
    /// # Panics
    /// When there is no such table.
    pub fn withhold_tablet(&self, table: TableId, hash: KeyHash) {
        self.change_tablet(table, hash, |tablet| tablet.state = TabletState::Recovering);
    }

    fn change_tablet(&self, table: TableId, hash: KeyHash, change: impl Fn(&mut TabletInfo)) {
        let mut state = self.state();
        state.mapped.version += 1;
        let table = state.tables.get_mut(&table).expect("the table is there");
        let tablets = table.tablets.iter_mut();
        tablets
            .filter(|tablet| tablet.range.contains(hash))
            .for_each(change);
    }

    /// A transaction of several servers that has locked a key: its client, and its home key where
    /// that is known.
    #[must_use]
    pub fn locked(&self) -> Option<(ClientId, KeyPlace)> {
        let state = self.state();
        state.locks.values().next().map(master::FakeLock::of)
    }

    /// Lets something happen at a time of the virtual clock.
    pub async fn at(&self, time: Duration, act: impl FnOnce(&Self)) {
        let wait = time.saturating_sub(self.now());
        pluvio_env::Clock::sleep(&clock::FakeClock(self.clone()), wait).await;
        act(self);
    }
}

impl State {
    /// The tablet of a table that holds a hash.
    fn tablet(&self, table: TableId, hash: KeyHash) -> Option<TabletInfo> {
        let tablets = &self.tables.get(&table)?.tablets;
        tablets.iter().find(|t| t.range.contains(hash)).copied()
    }

    fn take_fault(&mut self, to: &Address, opcode: Opcode) -> Option<Fault> {
        let at = self.faults.iter().position(|planned| {
            let is_for_it = planned.to.as_ref().is_none_or(|other| other == to);
            is_for_it && planned.opcode == opcode && planned.times > 0
        })?;
        let planned = &mut self.faults[at];
        let fault = planned.fault.clone();
        planned.times -= 1;
        if planned.times == 0 {
            self.faults.remove(at);
        }
        Some(fault)
    }

    /// Executes a request at the process that listens at `to`; `None` when nobody answers.
    fn execute(&mut self, to: &Address, opcode: Opcode, request: &Frame) -> Option<Frame> {
        if &*to.0 == COORDINATOR {
            return Some(self.coordinate(opcode, request));
        }
        let (server, _) = self
            .servers
            .iter()
            .find(|(_, (address, up))| address == to && *up)?;
        let server = *server;
        Some(self.serve(server, opcode, request))
    }
}

impl Rng for FakeCluster {
    fn next_u64(&self) -> u64 {
        let mut state = self.state();
        state.random = state.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        KeyHash::of(state.random, b"random").0
    }
}

impl Network for FakeCluster {
    fn call<'a>(
        &'a self,
        to: &'a Address,
        request: Frame,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>> {
        Box::pin(self.carry(to, request, limit))
    }

    fn listen(
        &self,
        address: &Address,
        _: Arc<dyn Service>,
    ) -> BoxFuture<'_, Result<Listening, NetworkError>> {
        self.no_listening(address)
    }

    fn listen_streams(
        &self,
        address: &Address,
        _: usize,
        _: Bytes,
        _: Arc<dyn StreamService>,
    ) -> BoxFuture<'_, Result<Listening, NetworkError>> {
        self.no_listening(address)
    }
}

impl FakeCluster {
    fn no_listening(&self, address: &Address) -> BoxFuture<'_, Result<Listening, NetworkError>> {
        let error = NetworkError {
            address: address.clone(),
            message: "the fake cluster has its own servers".into(),
        };
        Box::pin(async move { Err(error) })
    }

    async fn carry(
        &self,
        to: &Address,
        request: Frame,
        limit: Duration,
    ) -> Result<Frame, CallError> {
        let clock = self.parts().clock;
        let opcode = Opcode::from_number(request.opcode).expect("clients send known operations");
        let operation = master::operation(&request);
        let items = master::items(opcode, &request);
        let latency = self.state().latency;
        if !latency.is_zero() {
            clock.sleep(latency).await;
        }
        let fault = self.state().take_fault(to, opcode);
        let reached = !matches!(
            fault,
            Some(Fault::LoseRequest | Fault::Unreachable | Fault::Refuse(_))
        );
        self.state().sent.push(Sent {
            to: to.clone(),
            opcode,
            items,
            operation,
            delivered: reached,
        });
        let late = || CallError::TimedOut(to.clone(), limit);
        let nobody = || CallError::Unreachable(to.clone(), NoConnection::Refused);
        let reply = match &fault {
            Some(Fault::Refuse(refusal)) => return Ok(master::refuse(opcode, refusal)),
            Some(Fault::Unreachable) => return Err(nobody()),
            Some(Fault::LoseRequest) => None,
            Some(Fault::LoseReply | Fault::DelayReply) | None => {
                let reply = self.state().execute(to, opcode, &request);
                Some(reply.ok_or_else(nobody)?)
            }
        };
        match (fault, reply) {
            (Some(Fault::LoseReply), _) => Err(CallError::Lost(to.clone())),
            (None, Some(reply)) => {
                if !latency.is_zero() {
                    clock.sleep(latency).await;
                }
                Ok(reply)
            }
            _ => {
                clock.sleep(limit.saturating_sub(latency)).await;
                Err(late())
            }
        }
    }
}

/// Whether the coordinator answers an operation.
fn is_coordinators(opcode: Opcode) -> bool {
    opcode.role() == Role::Coordinator
}

/// All of a table, on servers that are up, in turn.
fn spread(servers: &[ServerId], span: Option<u32>, kind: HashKind) -> Vec<TabletInfo> {
    let parts = span
        .map_or(servers.len(), |n| servers.len().min(n as usize))
        .max(1);
    kind.split(HashRange::ALL, parts as u64)
        .into_iter()
        .zip(servers.iter().cycle())
        .map(|(range, owner)| TabletInfo {
            range,
            owner: *owner,
            state: TabletState::Normal,
        })
        .collect()
}
