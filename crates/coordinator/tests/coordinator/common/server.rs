//! One scripted server.

use super::{Net, Shared, lock};
use pluvio_env::{Address, Clock, Env, Frame, Handled, Moment, Peer, Service};
use pluvio_sim::{ProcessId, Sim};
use pluvio_units::{
    ClusterId, HashRange, KeyHash, LogId, MetadataVersion, MigrationId, RecoveryId,
    ReplicationEpoch, SegmentId, ServerId, TableId,
};
use pluvio_wire::{
    ChangeServerList, Coordinators, CopyReplica, CountObjects, CountObjectsReply, DropTablets,
    EndMigration, Enlist, FatalKind, GetServerStatus, GetTabletData, GetTabletDataReply,
    HasServerList, HeadInfo, Header, JoinTabletsLocal, MigrationProgress, Opcode, PROTOCOL_VERSION,
    Ping, PingReply, ReceiveTablet, Recover, RecoveryMasterFinished, Refusal, ReplayStats,
    ReplicaInfo, Request, RetryReason, ServerInfo, ServerList, ServerStatus, SetPartitions,
    SplitTabletLocal, StartRecovery, StartRecoveryReply, TabletPart, TabletReceived, TabletSpec,
    TakeTablets, UpdateServerList, call, decode, reply,
};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

/// How a machine's server behaves.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// Its actions on the next requests to recover.
    pub on_recover: Vec<OnRecover>,
    /// The number of next requests to take tablets that are put off.
    pub takes_put_off: u32,
    /// The number of next requests to drop tablets that are put off.
    pub drops_put_off: u32,
    /// Its objects have no replicas.
    pub volatile: bool,
    /// Where it stands.
    pub rack: Option<String>,
    /// Its disk was lost: it has no replicas of others.
    pub disk_lost: bool,
    /// Live bytes of all its tables together, as its statistics say.
    pub live_bytes: u64,
    /// Live bytes that it takes at most. It says how full it is if this is not 0.
    pub live_max: u64,
    /// The open replicas it has are of this epoch.
    pub epoch: u32,
    /// It never answers a request for its replicas.
    pub silent_backup: bool,
    /// Replicas that an acknowledgement needed, as the heads say that it has; 1 if this is 0.
    pub needed: u8,
    /// It takes no copy of another backup's replica.
    pub takes_no_copies: bool,
}

impl Behaviour {
    /// Live bytes, if it says how full it is.
    fn live_told(&self) -> u64 {
        if self.live_max > 0 {
            self.live_bytes
        } else {
            0
        }
    }
}

/// What to do with a request to recover.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnRecover {
    /// Report a failure.
    Fail,
    /// Take it and never report.
    Forget,
    /// Refuse it.
    Refuse,
}

/// The knowledge of a server; begins anew with each life, except for `lives`.
#[derive(Clone, Debug, Default)]
pub struct Server {
    pub id: ServerId,
    pub cluster: ClusterId,
    pub list: Arc<ServerList>,
    pub owned: Vec<(TableId, HashRange)>,
    /// It learned that it is not a member any more.
    pub is_dead: bool,
    pub recoveries: Vec<(RecoveryId, u32, Vec<TabletSpec>)>,
    pub partitions: Vec<SetPartitions>,
    /// Masters whose replicas it was asked for: it refuses their writes.
    pub fenced: BTreeSet<ServerId>,
    /// Replicas that it copied from other backups.
    pub copies: Vec<CopyReplica>,
    /// When it was asked for replicas.
    pub asked_for_replicas: Vec<Moment>,
    /// When it was asked to recover.
    pub asked_to_recover: Vec<Moment>,
    pub cuts: Vec<KeyHash>,
    /// Tables it was told to drop. Ids are never used again, so it takes nothing of them any more.
    /// That includes a late request and a recovery that ends.
    pub dropped: BTreeSet<TableId>,
    /// The newest metadata that it was told something of a table from (COORD-12).
    pub told: BTreeMap<TableId, MetadataVersion>,
    /// Tablets that it serves no more and does not know the new owner of.
    pub frozen: BTreeMap<MigrationId, (TableId, HashRange)>,
    /// Migrations that it was to receive something of.
    pub arriving: BTreeSet<MigrationId>,
    /// Migrations that it was told the end of as the former owner.
    pub ended: BTreeSet<MigrationId>,
    /// All ids this machine has had.
    pub lives: Vec<ServerId>,
    pub behaviour: Behaviour,
}

/// Changes of lists that are remembered.
const FOLLOWED_MAX: usize = 64;

/// What all machines know of each other.
#[derive(Default)]
struct Machines {
    servers: Vec<Shared<Server>>,
    /// Which machine a life ran on.
    of_lives: BTreeMap<ServerId, usize>,
    /// The last changes of lists: all servers go from the same list to the same one.
    followed: VecDeque<Followed>,
}

/// A list, the digest of the next one, and that one.
struct Followed {
    from: Arc<ServerList>,
    digest: u32,
    to: Option<Arc<ServerList>>,
}

impl Machines {
    fn next_of(
        &mut self,
        from: &Arc<ServerList>,
        change: &ChangeServerList,
    ) -> Option<Arc<ServerList>> {
        // Those that go from equal lists have the same one from then on.
        let is_from = |known: &Followed| Arc::ptr_eq(&known.from, from) || known.from == *from;
        let known =
            { self.followed.iter() }.find(|known| known.digest == change.digest && is_from(known));
        if let Some(known) = known {
            return known.to.clone();
        }
        let to = change.apply(from).map(Arc::new);
        self.followed.truncate(FOLLOWED_MAX - 1);
        self.followed.push_front(Followed {
            from: from.clone(),
            digest: change.digest,
            to: to.clone(),
        });
        to
    }
}

/// One machine: its disk and its server.
#[derive(Clone)]
pub struct Machine {
    pub process: ProcessId,
    index: usize,
    state: Shared<Server>,
    /// All machines, to know whose replicas are where.
    all: Shared<Machines>,
    coordinators: Vec<Address>,
}

impl Machine {
    pub fn new(
        process: ProcessId,
        index: usize,
        others: &[Self],
        coordinators: Vec<Address>,
    ) -> Self {
        let state = Shared::<Server>::default();
        let all = others
            .first()
            .map_or_else(Default::default, |m| m.all.clone());
        lock(&all).servers.push(state.clone());
        Self {
            process,
            index,
            state,
            all,
            coordinators,
        }
    }

    pub fn state(&self) -> MutexGuard<'_, Server> {
        lock(&self.state)
    }

    /// Starts a life on this machine.
    pub fn run(&self, sim: &Sim, env: Env) {
        {
            let mut state = self.state();
            let (lives, behaviour) = (state.lives.clone(), state.behaviour.clone());
            *state = Server {
                lives,
                behaviour,
                ..Server::default()
            };
        }
        let machine = self.clone();
        sim.spawn(self.process, "server", machine.live(env));
    }

    async fn live(self, env: Env) {
        let address = Address::from(format!("server-{}:7000", self.index).as_str());
        let coordinators = Arc::new(Coordinators::new(self.coordinators.clone()));
        let handler = Handler {
            machine: self.clone(),
            env: env.clone(),
            coordinators: coordinators.clone(),
        };
        let open = env.network.listen(&address, Arc::new(handler)).await;
        let _open = open.expect("the address is free");
        let enlist = {
            let state = self.state();
            Enlist {
                protocol: PROTOCOL_VERSION,
                expects: None,
                cluster: None,
                replaces: state.lives.last().copied(),
                attempt: env.rng.next_u64(),
                logs: 0,
                info: ServerInfo {
                    rack: state.behaviour.rack.clone(),
                    pid: 1,
                    volatile: state.behaviour.volatile,
                    disk_mb_per_s: 100,
                    ..ServerInfo::plain(ServerId(0), address.to_string())
                },
            }
        };
        let welcome = ask(&coordinators, &env.network, &*env.clock, &enlist).await;
        {
            let mut state = self.state();
            state.id = welcome.server;
            state.cluster = welcome.cluster;
            state.lives.push(welcome.server);
            lock(&self.all).of_lives.insert(welcome.server, self.index);
            if state.list.version < welcome.list.version {
                state.list = Arc::new(welcome.list);
            }
        }
        // A zombie learns from pings that it is one [RAMCloud §7.11]; here the coordinator answers
        // them.
        let ping = Ping {
            from: welcome.server,
        };
        loop {
            env.clock.sleep(Duration::from_millis(200)).await;
            let limit = Duration::from_millis(200);
            let answer = coordinators.call(&*env.network, &ping, limit).await;
            if answer.is_ok_and(|pong| !pong.caller_is_member) {
                self.state().is_dead = true;
            }
        }
    }

    /// Replicas on this machine of a life of another one.
    fn replicas_of(&self, crashed: ServerId) -> Vec<ReplicaInfo> {
        let owner = {
            let all = lock(&self.all);
            let index = all.of_lives.get(&crashed).copied();
            let may_hold = |index: &usize| *index != self.index || all.servers.len() == 1;
            let Some(index) = index.filter(may_hold) else {
                return Vec::new();
            };
            all.servers[index].clone()
        };
        let (behaviour, copies) = {
            let state = self.state();
            (state.behaviour.clone(), state.copies.clone())
        };
        let owner = lock(&owner);
        let is_copied = |replica: &ReplicaInfo| {
            let same = |copy: &CopyReplica| copy.segment == replica.segment;
            copies
                .iter()
                .any(|copy| copy.crashed == crashed && same(copy))
        };
        let closed = ReplicaInfo {
            segment: SegmentId(1),
            log: LogId(0),
            side: false,
            epoch: ReplicationEpoch(0),
            closed: true,
            primary: true,
            length: 1000,
            head: None,
        };
        let head = ReplicaInfo {
            segment: SegmentId(2),
            epoch: ReplicationEpoch(behaviour.epoch),
            closed: false,
            head: Some(HeadInfo {
                logs: 1,
                digest: vec![SegmentId(1), SegmentId(2)],
                tables: Vec::new(),
                other_bytes: owner.behaviour.live_bytes,
                other_entries: owner.behaviour.live_bytes / 1000,
                has_data: true,
                copies: 1,
                may_lack: false,
                needed: behaviour.needed.max(1),
            }),
            ..closed.clone()
        };
        let mut replicas = vec![closed, head];
        replicas.retain(|replica| !behaviour.disk_lost || is_copied(replica));
        replicas
    }
}

/// A request to the coordinator, tried until it is answered.
async fn ask<R: Request + Sync>(
    coordinators: &Coordinators,
    network: &Net,
    clock: &dyn Clock,
    request: &R,
) -> R::Reply {
    loop {
        let limit = Duration::from_millis(500);
        if let Ok(reply) = coordinators.call(&**network, request, limit).await {
            return reply;
        }
        clock.sleep(Duration::from_millis(100)).await;
    }
}

struct Handler {
    machine: Machine,
    env: Env,
    coordinators: Arc<Coordinators>,
}

impl Handler {
    fn answer<R: Request>(
        &self,
        frame: &Frame,
        act: impl FnOnce(&mut Server, R) -> Result<R::Reply, Refusal>,
    ) -> Handled {
        let result = decode::<R>(frame).and_then(|(header, request)| {
            let mut server = self.machine.state();
            if header.target != ServerId(0) && header.target != server.id {
                return Err(Refusal::Refresh);
            }
            act(&mut server, request)
        });
        Handled::Now(reply::<R>(&result))
    }

    fn recover(&self, server: &mut Server, request: Recover) -> Result<(), Refusal> {
        let known = (request.recovery, request.partition);
        if server.recoveries.iter().any(|(r, p, _)| (*r, *p) == known) {
            return Ok(());
        }
        let script = (!server.behaviour.on_recover.is_empty())
            .then(|| server.behaviour.on_recover.remove(0));
        if script == Some(OnRecover::Refuse) {
            return Err(Refusal::fatal(FatalKind::Other, "not today"));
        }
        // There are none when everything was given up.
        let is_lost = server.behaviour.disk_lost;
        assert!(is_lost || !request.segments.is_empty());
        assert!(!request.tablets.is_empty());
        let tablets = request.tablets.clone();
        server
            .recoveries
            .push((request.recovery, request.partition, tablets));
        if script == Some(OnRecover::Forget) {
            return Ok(());
        }
        let report = RecoveryMasterFinished {
            cluster: server.cluster,
            recovery: request.recovery,
            server: server.id,
            partition: request.partition,
            since: SegmentId(0),
            result: match script {
                None => Ok(ReplayStats {
                    bytes: 10,
                    ..ReplayStats::default()
                }),
                Some(_) => Err("a failure was asked for".into()),
            },
        };
        let (machine, env) = (self.machine.clone(), self.env.clone());
        let coordinators = self.coordinators.clone();
        let work = async move {
            env.clock
                .sleep(Duration::from_millis(env.rng.below(50)))
                .await;
            let answer = ask(&coordinators, &env.network, &*env.clock, &report).await;
            if answer.accepted {
                let mut server = machine.state();
                server.take(request.tablets);
            }
        };
        self.env
            .tasks
            .spawn(pluvio_units::CoreId(0), "recover", work);
        Ok(())
    }
}

impl Handler {
    /// Takes a tablet over: lets its owner freeze it, and reports.
    fn receive(
        &self,
        server: &mut Server,
        request: ReceiveTablet,
    ) -> Result<MigrationProgress, Refusal> {
        if !server.arriving.insert(request.migration) {
            return Ok(MigrationProgress::default());
        }
        let source = server.list.get(request.from).map(|s| s.address.clone());
        let (id, machine, env) = (server.id, self.machine.clone(), self.env.clone());
        let coordinators = self.coordinators.clone();
        let work = async move {
            env.clock
                .sleep(Duration::from_millis(env.rng.below(50)))
                .await;
            let freeze = GetTabletData {
                migration: request.migration,
                tablet: request.tablet,
                part: TabletPart::LastChanges(0),
            };
            let mut result = Err("the owner does not answer".to_owned());
            if let Some(source) = source {
                let (to, header) = (Address::from(source.as_str()), Header::to(request.from));
                let limit = Duration::from_millis(500);
                let frozen = call(&*env.network, &to, header, &freeze, limit).await;
                if frozen.is_ok() {
                    result = Ok(MigrationProgress::default());
                }
            }
            let report = TabletReceived {
                cluster: machine.state().cluster,
                migration: request.migration,
                server: id,
                since: SegmentId(0),
                result,
            };
            let answer = ask(&coordinators, &env.network, &*env.clock, &report).await;
            if answer.accepted {
                machine.state().take(vec![request.tablet]);
            }
        };
        self.env
            .tasks
            .spawn(pluvio_units::CoreId(0), "receive", work);
        Ok(MigrationProgress::default())
    }
}

impl Server {
    /// Serves a tablet no more, whether or not it knows where its own was cut.
    fn freeze(&mut self, request: GetTabletData) -> Result<GetTabletDataReply, Refusal> {
        let (id, table, range) = (
            request.migration,
            request.tablet.table,
            request.tablet.range,
        );
        if self.ended.contains(&id) {
            return Err(Refusal::fatal(FatalKind::Stale, "it is over"));
        }
        if !self.frozen.contains_key(&id) {
            let covers = |(t, r): &(TableId, HashRange)| {
                *t == table && r.first <= range.first && range.last <= r.last
            };
            let Some(at) = self.owned.iter().position(covers) else {
                return Err(Refusal::Refresh);
            };
            let (_, whole) = self.owned.swap_remove(at);
            if whole.first < range.first {
                let below = HashRange::new(whole.first, KeyHash(range.first.0 - 1));
                self.owned.push((table, below));
            }
            if range.last < whole.last {
                let above = HashRange::new(KeyHash(range.last.0 + 1), whole.last);
                self.owned.push((table, above));
            }
            self.frozen.insert(id, (table, range));
        }
        Ok(GetTabletDataReply::default())
    }

    fn end_migration(&mut self, end: EndMigration) {
        self.ended.insert(end.migration);
        if let Some(tablet) = self.frozen.remove(&end.migration)
            && !end.moved
        {
            self.owned.push(tablet);
        }
    }

    /// Refuses what is older than what it was told of the table, as a real one does (MASTER-6).
    fn admit(&mut self, table: TableId, version: MetadataVersion) -> Result<(), Refusal> {
        let newest = self.told.entry(table).or_default();
        if version < *newest {
            return Err(Refusal::fatal(
                FatalKind::Stale,
                "it was told something newer",
            ));
        }
        *newest = version;
        Ok(())
    }

    fn take(&mut self, tablets: Vec<TabletSpec>) {
        for tablet in tablets {
            let known = |(table, range): &(TableId, HashRange)| {
                *table == tablet.table && range.overlaps(&tablet.range)
            };
            if !self.owned.iter().any(known) && !self.dropped.contains(&tablet.table) {
                self.owned.push((tablet.table, tablet.range));
            }
        }
    }

    /// Makes one tablet of those in a range, if it has all of it.
    fn join(&mut self, table: TableId, range: HashRange) -> Result<(), Refusal> {
        let inside = |(t, r): &(TableId, HashRange)| *t == table && r.overlaps(&range);
        let mut parts: Vec<HashRange> = { self.owned.iter().copied() }
            .filter(inside)
            .map(|(_, r)| r)
            .collect();
        parts.sort_by_key(|r| r.first);
        let follow = |two: &[HashRange]| two[0].last.0.checked_add(1) == Some(two[1].first.0);
        if parts.len() < 2 {
            parts.extend_from_within(..);
        }
        match parts[..] {
            [first, .., last]
                if (first == last || parts.windows(2).all(follow))
                    && first.first <= range.first
                    && range.last <= last.last =>
            {
                self.owned.retain(|tablet| !inside(tablet));
                let whole = HashRange::new(first.first, last.last);
                self.owned.push((table, whole));
                Ok(())
            }
            _ => Err(Refusal::fatal(FatalKind::NotFound, "not all of it is here")),
        }
    }

    fn follow(&mut self, list: Arc<ServerList>) {
        if list.version > self.list.version {
            self.is_dead |= self.id != ServerId(0) && !list.is_up(self.id);
            self.list = list;
        }
    }
}

impl Service for Handler {
    fn handle(&self, _: Peer, frame: Frame) -> Handled {
        match Opcode::from_number(frame.opcode).expect("known operations only") {
            Opcode::Ping => self.answer::<Ping>(&frame, |server, _| {
                Ok(PingReply {
                    server: server.id,
                    server_list: server.list.version,
                    caller_is_member: true,
                    cluster: server.cluster,
                })
            }),
            Opcode::UpdateServerList => {
                self.answer::<UpdateServerList>(&frame, |server, update| {
                    server.follow(Arc::new(update.list));
                    Ok(())
                })
            }
            Opcode::ChangeServerList => {
                self.answer::<ChangeServerList>(&frame, |server, change| {
                    let next = lock(&self.machine.all).next_of(&server.list, &change);
                    if let Some(list) = next {
                        server.follow(list);
                    }
                    let version = server.list.version;
                    Ok(HasServerList { version })
                })
            }
            Opcode::TakeTablets => self.answer::<TakeTablets>(&frame, |server, take| {
                if let Some(left) = server.behaviour.takes_put_off.checked_sub(1) {
                    server.behaviour.takes_put_off = left;
                    let after = Duration::from_millis(100);
                    return Err(Refusal::retry(after, RetryReason::TabletNotReady));
                }
                for tablet in &take.tablets {
                    server.admit(tablet.table, take.version)?;
                }
                server.take(take.tablets);
                Ok(())
            }),
            Opcode::DropTablets => self.answer::<DropTablets>(&frame, |server, drop| {
                if let Some(left) = server.behaviour.drops_put_off.checked_sub(1) {
                    server.behaviour.drops_put_off = left;
                    let after = Duration::from_millis(100);
                    return Err(Refusal::retry(after, RetryReason::TabletNotReady));
                }
                server.dropped.insert(drop.table);
                server.owned.retain(|(table, _)| *table != drop.table);
                server.frozen.retain(|_, (table, _)| *table != drop.table);
                Ok(())
            }),
            Opcode::ReceiveTablet => self
                .answer::<ReceiveTablet>(&frame, |server, request| self.receive(server, request)),
            Opcode::GetTabletData => {
                self.answer::<GetTabletData>(&frame, |server, request| server.freeze(request))
            }
            Opcode::EndMigration => self.answer::<EndMigration>(&frame, |server, end| {
                server.end_migration(end);
                Ok(())
            }),
            Opcode::SplitTabletLocal => self.answer::<SplitTabletLocal>(&frame, |server, cut| {
                server.admit(cut.table, cut.version)?;
                server.cuts.push(cut.at);
                Ok(())
            }),
            Opcode::JoinTabletsLocal => self.answer::<JoinTabletsLocal>(&frame, |server, join| {
                server.admit(join.table, join.version)?;
                server.join(join.table, join.range)
            }),
            Opcode::CountObjects => self.answer::<CountObjects>(&frame, |server, _| {
                Ok(CountObjectsReply {
                    bytes: server.behaviour.live_told(),
                    ..CountObjectsReply::default()
                })
            }),
            Opcode::GetServerStatus => self.answer::<GetServerStatus>(&frame, |server, _| {
                Ok(ServerStatus {
                    id: server.id,
                    memory_live: server.behaviour.live_told(),
                    memory_live_max: server.behaviour.live_max,
                    ..ServerStatus::default()
                })
            }),
            Opcode::StartRecovery if self.machine.state().behaviour.silent_backup => {
                Handled::Later(Box::pin(std::future::pending()))
            }
            Opcode::StartRecovery => {
                let now = self.env.clock.now();
                let replicas = decode::<StartRecovery>(&frame)
                    .map(|(_, start)| self.machine.replicas_of(start.crashed));
                self.answer::<StartRecovery>(&frame, |server, start| {
                    server.fenced.insert(start.crashed);
                    server.asked_for_replicas.push(now);
                    Ok(StartRecoveryReply {
                        replicas: replicas?,
                        damaged: Vec::new(),
                        room: None,
                        next: None,
                    })
                })
            }
            Opcode::CopyReplica => self.answer::<CopyReplica>(&frame, |server, copy| {
                if server.behaviour.takes_no_copies {
                    let after = Duration::from_millis(100);
                    return Err(Refusal::retry(after, RetryReason::NoSpace));
                }
                assert!(server.fenced.contains(&copy.crashed));
                server.copies.push(copy);
                Ok(())
            }),
            Opcode::SetPartitions => self.answer::<SetPartitions>(&frame, |server, set| {
                server.partitions.push(set);
                Ok(())
            }),
            Opcode::Recover => self.answer::<Recover>(&frame, |server, request| {
                server.asked_to_recover.push(self.env.clock.now());
                self.recover(server, request)
            }),
            other => panic!("the coordinator does not send {}", other.name()),
        }
    }
}
