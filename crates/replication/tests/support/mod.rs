//! A master's log and its replication, real backups, and a coordinator that only remembers, in
//! one simulation.

#![allow(dead_code)]

use pluvio_backup::{Backup, BackupOptions};
use pluvio_env::{Address, Env, Frame, Handled, Listening, Peer, Service};
use pluvio_format::{Check, Entry, Graves, Object, ObjectState, Parsed};
use pluvio_log::{AppendClass, AppendError, Durability, LogOptions, LogSpace};
use pluvio_replication::{Replication, ReplicationOptions};
use pluvio_sim::{ProcessId, Sim, SimOptions};
use pluvio_units::{
    ClusterId, CoreId, HashRange, LogId, LogPosition, ObjectVersion, RecoveryId, ReplicationEpoch,
    SegmentId, ServerId, ServerListVersion, Size, TableId,
};
use pluvio_wire::{
    Answer, ClusterSettings, Coordinators, FreeReplica, GetRecoveryData, Header, IsReplicaNeeded,
    Opcode, Refusal, ReplicaInfo, Request, ServerInfo, ServerList, SetPartitions,
    SetReplicationEpoch, StartRecovery, TabletSpec, WriteReplica, decode, handled,
};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const CLUSTER: ClusterId = ClusterId(5);
pub const MASTER: ServerId = ServerId(1);
pub const COORDINATOR: &str = "coordinator";
pub const LIMIT: Duration = Duration::from_secs(120);

fn answer<R: Request, F>(frame: &Frame, target: ServerId, f: impl FnOnce(R) -> F) -> Handled
where
    R::Reply: 'static,
    F: Future<Output = Result<R::Reply, Refusal>> + Send + 'static,
{
    let (header, request): (Header, R) = decode(frame).expect("is well formed");
    if header.target != target {
        return handled::<R>(Answer::Now(Err(Refusal::Refresh)));
    }
    handled::<R>(Answer::Later(Box::pin(f(request))))
}

struct BackupService(ServerId, Backup);

impl Service for BackupService {
    fn handle(&self, peer: Peer, frame: Frame) -> Handled {
        let (id, backup) = (self.0, self.1.clone());
        match Opcode::from_number(frame.opcode) {
            Some(Opcode::WriteReplica) => answer(&frame, id, |r: WriteReplica| async move {
                backup.write_replica(peer.core, r).await
            }),
            Some(Opcode::FreeReplica) => answer(&frame, id, |r: FreeReplica| async move {
                backup.free_replica(peer.core, r).await
            }),
            other => panic!("{other:?} is not for a backup"),
        }
    }
}

/// Another cluster's server, and what it was asked: to write, and to free.
struct Foreign(BackupService, Arc<[AtomicU64; 2]>);

impl Service for Foreign {
    fn handle(&self, peer: Peer, frame: Frame) -> Handled {
        let is_free = frame.opcode == Opcode::FreeReplica as u16;
        self.1[usize::from(is_free)].fetch_add(1, Ordering::Relaxed);
        self.0.handle(peer, frame)
    }
}

struct MasterService(Replication, Option<Backup>);

impl Service for MasterService {
    fn handle(&self, peer: Peer, frame: Frame) -> Handled {
        if let (Some(backup), true) = (&self.1, frame.opcode != Opcode::IsReplicaNeeded as u16) {
            return BackupService(MASTER, backup.clone()).handle(peer, frame);
        }
        let replication = self.0.clone();
        answer(&frame, MASTER, |r: IsReplicaNeeded| async move {
            replication.is_replica_needed(&r)
        })
    }
}

#[derive(Clone, Default)]
pub struct Recorded(Arc<Mutex<BTreeMap<LogId, (SegmentId, ReplicationEpoch)>>>);

impl Service for Recorded {
    fn handle(&self, _peer: Peer, frame: Frame) -> Handled {
        let all = Arc::clone(&self.0);
        answer(&frame, ServerId(0), |r: SetReplicationEpoch| async move {
            let mut all = all.lock().expect("is not poisoned");
            let entry = all.entry(r.log).or_default();
            *entry = (*entry).max((r.segment, r.epoch));
            Ok(())
        })
    }
}

pub struct Node {
    pub process: ProcessId,
    pub server: ServerId,
    pub backup: Backup,
    _port: Listening,
}

pub struct Cluster {
    pub sim: Sim,
    pub master: ProcessId,
    pub space: Arc<LogSpace>,
    pub replication: Replication,
    pub nodes: Vec<Node>,
    pub own: Option<Backup>,
    pub recorded: Recorded,
    pub list: ServerList,
    next_server: u64,
    ports: Vec<Listening>,
}

pub struct Setup {
    pub seed: u64,
    pub backups: usize,
    pub replicas: u32,
    pub min_replicas: u32,
    pub logs: u16,
    /// The master has a backup of its own, and the cluster has not grown.
    pub alone: bool,
}

impl Setup {
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            backups: 4,
            replicas: 3,
            min_replicas: 2,
            logs: 1,
            alone: false,
        }
    }

    pub fn start(self) -> Cluster {
        let sim = Sim::new(self.seed, SimOptions::default());
        let coordinator = sim.process("coordinator");
        let master = sim.process("master");
        let recorded = Recorded::default();
        let mut options = LogOptions::new(Size::mib(64));
        options.cluster = CLUSTER;
        options.server = MASTER;
        options.logs = self.logs;
        options.durability = Durability::Replicated;
        options.segment_seglets = Some(40);
        let space = LogSpace::new(options).expect("has memory");
        let mut replication = ReplicationOptions::new(CLUSTER, MASTER);
        replication.settings = ClusterSettings {
            replicas: self.replicas,
            min_replicas: self.min_replicas,
            synced: true,
            strict_racks: false,
        };
        replication.coordinators = Arc::new(Coordinators::new(vec![Address::from(COORDINATOR)]));
        replication.full_pause = Duration::from_secs(1);
        // These networks lose messages, which TCP does not.
        replication.write_limit = Duration::from_millis(20);
        let replication = Replication::start(master.env.clone(), Arc::clone(&space), replication);
        let own = self.alone.then(|| {
            let env = master.env.clone();
            let started = async move { Backup::start(env, BackupOptions::default()).await };
            let backup = sim
                .block_on(master.id, started, LIMIT)
                .expect("ends")
                .expect("starts");
            backup
                .enlisted(MASTER, CLUSTER)
                .expect("is the right cluster");
            backup
        });
        let ports = vec![
            listen(
                &sim,
                coordinator.id,
                &coordinator.env,
                COORDINATOR,
                Arc::new(recorded.clone()),
            ),
            listen(
                &sim,
                master.id,
                &master.env,
                "server-1",
                Arc::new(MasterService(replication.clone(), own.clone())),
            ),
        ];
        let mut cluster = Cluster {
            sim,
            master: master.id,
            space,
            replication,
            nodes: Vec::new(),
            recorded,
            own,
            list: ServerList {
                grown: !self.alone,
                ..ServerList::default()
            },
            next_server: 2,
            ports,
        };
        cluster.list.servers.push(info(MASTER));
        for i in 0..self.backups {
            let process = cluster.sim.process(&format!("backup {i}"));
            cluster.join(process.id, &process.env);
        }
        cluster
    }
}

fn listen(sim: &Sim, id: ProcessId, env: &Env, at: &str, service: Arc<dyn Service>) -> Listening {
    let (network, at) = (Arc::clone(&env.network), Address::from(at));
    let opened = sim.block_on(id, async move { network.listen(&at, service).await }, LIMIT);
    opened.expect("ends").expect("listens")
}

fn info(id: ServerId) -> ServerInfo {
    ServerInfo {
        cores: 2,
        disk_mb_per_s: 100,
        ..ServerInfo::plain(id, format!("server-{id}"))
    }
}

impl Cluster {
    /// A new life of a backup joins.
    pub fn join(&mut self, process: ProcessId, env: &Env) {
        let server = ServerId(self.next_server);
        self.next_server += 1;
        let own = env.clone();
        let started = async move { Backup::start(own, BackupOptions::default()).await };
        let backup = self
            .sim
            .block_on(process, started, LIMIT)
            .expect("ends")
            .expect("starts");
        backup
            .enlisted(server, CLUSTER)
            .expect("is the right cluster");
        let service = Arc::new(BackupService(server, backup.clone()));
        let port = listen(
            &self.sim,
            process,
            env,
            &format!("server-{server}"),
            service,
        );
        self.nodes.push(Node {
            process,
            server,
            backup,
            _port: port,
        });
        self.list.servers.push(info(server));
        self.list.grown = true;
        self.push_list();
    }

    /// Another cluster's server gets the address of one that is in the list. Gives how often it was
    /// asked to write, and to free.
    pub fn join_foreign(&mut self) -> Arc<[AtomicU64; 2]> {
        let server = ServerId(self.next_server);
        self.next_server += 1;
        let process = self.sim.process("foreign");
        let env = process.env.clone();
        let started = async move { Backup::start(env, BackupOptions::default()).await };
        let backup = self
            .sim
            .block_on(process.id, started, LIMIT)
            .expect("ends")
            .expect("starts");
        backup
            .enlisted(server, ClusterId(6))
            .expect("has none before");
        let asked: Arc<[AtomicU64; 2]> = Arc::default();
        let service = Foreign(BackupService(server, backup), Arc::clone(&asked));
        let at = format!("server-{server}");
        let port = listen(&self.sim, process.id, &process.env, &at, Arc::new(service));
        self.ports.push(port);
        self.list.servers.push(info(server));
        self.push_list();
        asked
    }

    pub fn push_list(&mut self) {
        self.list.version = ServerListVersion(self.list.version.0 + 1);
        for node in &self.nodes {
            node.backup.server_list_changed(&self.list);
        }
        if let Some(own) = &self.own {
            own.server_list_changed(&self.list);
        }
        self.replication.server_list_changed(&self.list);
    }

    /// A backup dies, and everybody is told after a while.
    pub fn crash(&mut self, index: usize, power: bool) -> ProcessId {
        let node = self.nodes.remove(index);
        if power {
            self.sim.power_loss(node.process);
        } else {
            self.sim.crash(node.process);
        }
        self.sim.run_for(Duration::from_millis(30));
        self.list.servers.retain(|s| s.id != node.server);
        self.push_list();
        node.process
    }

    pub fn restart(&mut self, process: ProcessId) {
        let env = self.sim.restart(process).env;
        self.join(process, &env);
    }

    pub fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        self.sim
            .block_on(self.master, work, LIMIT)
            .expect("ends in time")
    }

    /// Everything crashed; what does recovery find of the master's objects? `None` when the log is
    /// not complete.
    pub fn recover(&self) -> Option<BTreeMap<Vec<u8>, u64>> {
        let recorded = self.recorded.0.lock().expect("is not poisoned").clone();
        let mut replicas: Vec<(usize, ReplicaInfo)> = Vec::new();
        for (i, node) in self.nodes.iter().enumerate() {
            let backup = node.backup.clone();
            let listed = async move { backup.start_recovery(StartRecovery::of(MASTER)).await };
            let listed = self
                .sim
                .block_on(node.process, listed, LIMIT)
                .expect("ends")
                .expect("lists");
            assert_eq!(listed.damaged, [], "nothing is damaged in these tests");
            replicas.extend(listed.replicas.into_iter().map(|r| (i, r)));
        }
        replicas.retain(|(_, r)| {
            let (segment, epoch) = recorded.get(&r.log).copied().unwrap_or_default();
            let stale = r.segment < segment || r.segment == segment && r.epoch < epoch;
            r.closed || !r.side && !stale
        });
        let mut found = BTreeMap::new();
        for log in self.space.logs() {
            let heads = replicas.iter().filter(|(_, r)| r.log == log && !r.closed);
            let lowest = heads.min_by_key(|(_, r)| (r.segment, std::cmp::Reverse(r.length)))?;
            let head = lowest.1.head.as_ref().expect("an open head tells");
            for segment in &head.digest {
                let usable = replicas.iter().filter(|(_, r)| r.segment == *segment);
                // Open replicas may differ by what was not acknowledged: the shortest is the
                // hardest test.
                let (node, _) = usable.min_by_key(|(_, r)| r.length)?;
                self.read(*node, *segment, &mut found);
            }
        }
        Some(found)
    }

    fn read(&self, node: usize, segment: SegmentId, found: &mut BTreeMap<Vec<u8>, u64>) {
        let tablet = TabletSpec {
            table: TableId(1),
            seed: 3,
            hash: pluvio_units::HashKind::Seeded,
            range: HashRange::ALL,
            since: SegmentId(0),
            quota: pluvio_wire::TableQuota::NONE,
            class: None,
        };
        let partitions = SetPartitions {
            recovery: RecoveryId(1),
            crashed: MASTER,
            partitions: vec![vec![tablet]],
            ends: Vec::new(),
        };
        let get = GetRecoveryData {
            recovery: RecoveryId(1),
            crashed: MASTER,
            segment,
            partition: 0,
        };
        let (process, backup) = (self.nodes[node].process, self.nodes[node].backup.clone());
        let fetch = async move {
            backup
                .set_partitions(CoreId(0), partitions)
                .await
                .expect("is set");
            backup.get_recovery_data(CoreId(0), get).await
        };
        let reply = self
            .sim
            .block_on(process, fetch, LIMIT)
            .expect("ends")
            .expect("is whole");
        let mut rest = &reply.data[..];
        while !rest.is_empty() {
            let parsed = Parsed::read(rest, Check::Checksum).expect("is whole");
            rest = &rest[parsed.head.total_len()..];
            if let Entry::Object(object) = parsed.entry {
                let version = found.entry(object.key.to_vec()).or_default();
                *version = object.version.0.max(*version);
            }
        }
    }
}

/// Appends one object.
pub fn append(
    space: &LogSpace,
    log: LogId,
    key: &str,
    version: u64,
    bytes: usize,
) -> Result<LogPosition, AppendError> {
    let value = vec![version as u8; bytes];
    let object = Object {
        table: TableId(1),
        version: ObjectVersion(version),
        timestamp_s: 1,
        graves: Graves::NONE,
        deadline: None,
        state: ObjectState::Plain,
        key: key.as_bytes(),
        value: &value,
    };
    let guard = space.pin();
    space
        .append(log, &[Entry::Object(object)], AppendClass::Internal, &guard)
        .map(|a| a.position())
}
