//! Recovery masters whose coordinator is the test: it asks backups and master, in which order it
//! likes, hears the report and decides.

use crate::rig::{LONG, Rig, objects};
use bytes::Bytes;
use pluvio_client::{Client, Table};
use pluvio_env::{Address, Frame, Handled, Peer, Service};
use pluvio_format::{Check, Entry, Parsed, SegmentKind};
use pluvio_log::SegletClass;
use pluvio_master::Master;
use pluvio_sim::DiskFaults;
use pluvio_units::{
    HashRange, Marks, MetadataVersion, ObjectVersion, RecoveryId, SegmentId, ServerId,
    ServerListVersion,
};
use pluvio_wire::{
    FatalKind, GetRecoveryData, Header, Opcode, Ping, Recover, RecoveryMasterFinished,
    RecoveryMasterFinishedReply, RecoverySegment, Refusal, ReplayStats, ReplicaInfo, Request,
    RetryReason, RpcError, ServerList, ServerState, SetPartitions, SetReplicationEpoch,
    StartRecovery, TabletSpec, TakeTablets, UpdateServerList, call, decode, reply,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const VALUE: usize = 100_000;
/// Objects of the crashed server.
const OBJECTS: u32 = 30;

/// A coordinator that hears reports, and answers them when it has decided.
#[derive(Clone, Default)]
struct Desk {
    reports: Arc<Mutex<Vec<RecoveryMasterFinished>>>,
    /// What reports are told, once that is decided: whether they are accepted.
    decision: Arc<Mutex<Option<Result<bool, Refusal>>>>,
    answered: Arc<Mutex<bool>>,
}

impl Service for Desk {
    fn handle(&self, _: Peer, frame: Frame) -> Handled {
        let later = || Refusal::retry(SECOND / 10, RetryReason::Busy);
        let answer = match Opcode::from_number(frame.opcode) {
            Some(Opcode::RecoveryMasterFinished) => {
                let (_, report) = decode::<RecoveryMasterFinished>(&frame).unwrap();
                self.reports.lock().unwrap().push(report);
                let decision = self.decision.lock().unwrap().clone();
                *self.answered.lock().unwrap() |= decision.is_some();
                let answer = decision.unwrap_or_else(|| Err(later()));
                let answer = answer.map(|accepted| RecoveryMasterFinishedReply { accepted });
                reply::<RecoveryMasterFinished>(&answer)
            }
            Some(Opcode::SetReplicationEpoch) => reply::<SetReplicationEpoch>(&Ok(())),
            _ => Frame {
                opcode: frame.opcode,
                ..reply::<Ping>(&Err(later()))
            },
        };
        Handled::Now(answer)
    }
}

/// A server is dead, the other one has replayed its tablet and waits for the decision.
struct Scene {
    rig: Rig,
    desk: Desk,
    crashed: ServerId,
    master: usize,
    /// Servers that keep replicas.
    backups: Vec<usize>,
    /// What is recovered.
    table: Table,
    /// A table of the master, and a client that knows where it is.
    own: Table,
}

impl Scene {
    fn ask<R: Request + Sync + 'static>(&self, of: usize, request: R) -> Result<R::Reply, RpcError>
    where
        R::Reply: 'static,
    {
        let env = self.rig.client.env.clone();
        let id = self.rig.server(of).expect("it has started").id();
        self.rig.run(&self.rig.client, async move {
            let to = Address::from(&*format!("server-{of}"));
            call(&*env.network, &to, Header::to(id), &request, 5 * SECOND).await
        })
    }

    /// The object that the master has under a key of the recovered table.
    fn read(&self, key: &[u8]) -> Option<(pluvio_units::ObjectVersion, Vec<u8>)> {
        let (env, id) = (self.rig.client.env.clone(), self.id(self.master));
        let (to, table) = (self.address(), self.table.id());
        let key = key.to_vec();
        let read = self.rig.run(&self.rig.client, async move {
            let header = Header::to(id);
            objects::read(&*env.network, &to, header, (table, &key), 5 * SECOND).await
        });
        read.unwrap()
    }

    /// Writes to a table of the master's own.
    fn write(&self, key: String) -> Result<pluvio_wire::Outcome, RpcError> {
        let (env, id) = (self.rig.client.env.clone(), self.id(self.master));
        let (to, table) = (self.address(), self.own.id());
        self.rig.run(&self.rig.client, async move {
            let object = (table, key.as_bytes(), &[2; VALUE][..]);
            objects::write(&*env.network, &to, Header::to(id), object, 5 * SECOND).await
        })
    }

    fn address(&self) -> Address {
        Address::from(&*format!("server-{}", self.master))
    }

    fn work(&self) -> Arc<Master> {
        let server = self.rig.server(self.master).expect("it has started");
        server.master().expect("it is a member")
    }

    /// Otherwise the master would wait for what the crashed server had of its log.
    fn tell_of_the_crash(&self) {
        let server = self.rig.server(self.master).expect("it has started");
        let mut list = ServerList::clone(&server.server_list());
        list.version = ServerListVersion(list.version.0 + 1);
        let mut servers = list.servers.iter_mut();
        let crashed = servers.find(|info| info.id == self.crashed);
        crashed.expect("it is listed").state = ServerState::Crashed;
        for backup in &self.backups {
            let update = UpdateServerList {
                cluster: server.cluster(),
                list: list.clone(),
            };
            self.ask(*backup, update).unwrap();
        }
    }

    fn tablet(&self) -> TabletSpec {
        TabletSpec {
            table: self.table.id(),
            seed: self.table.seed(),
            hash: pluvio_units::HashKind::Seeded,
            range: HashRange::ALL,
            since: SegmentId(0),
            quota: pluvio_wire::TableQuota::NONE,
            class: None,
        }
    }

    /// All replicas that backups have of a server. From now on they refuse its writes.
    fn replicas(&self, of: ServerId) -> BTreeMap<SegmentId, Vec<(usize, ReplicaInfo)>> {
        let mut found: BTreeMap<SegmentId, Vec<(usize, ReplicaInfo)>> = BTreeMap::new();
        for backup in &self.backups {
            let listed = self.ask(*backup, StartRecovery::of(of)).unwrap();
            for replica in listed.replicas {
                let places = found.entry(replica.segment).or_default();
                places.push((*backup, replica));
            }
        }
        found
    }

    fn recover(&self, number: u64, segments: Vec<RecoverySegment>) -> Result<(), RpcError> {
        let request = Recover {
            recovery: RecoveryId(number),
            crashed: self.crashed,
            partition: 0,
            tablets: vec![self.tablet()],
            segments: segments.into(),
            early: false,
        };
        self.ask(self.master, request)
    }

    /// The master's side segments: what it replayed, once that is part of its log.
    fn side_segments(&self) -> BTreeSet<SegmentId> {
        let work = self.work();
        let space = work.store().space();
        let all = space.logs().flat_map(|log| space.segments(log));
        let sides = all.filter(|segment| segment.kind() == SegmentKind::Side);
        sides.map(|segment| segment.id()).collect()
    }

    fn id(&self, of: usize) -> ServerId {
        self.rig.server(of).expect("it has started").id()
    }

    /// The first attempt was in vain. Its tablet can be taken again, and the backups know of the
    /// next one.
    fn begin_again(&self) -> u64 {
        let attempt = 1002;
        self.decide(Ok(false));
        for backup in &self.backups {
            let partitions = SetPartitions {
                recovery: RecoveryId(attempt),
                crashed: self.crashed,
                partitions: vec![vec![self.tablet()]],
                ends: Vec::new(),
            };
            self.ask(*backup, partitions).unwrap();
        }
        let work = self.work();
        let is_gone = || !work.tablets().snapshot().contains_key(&self.table.id());
        self.rig.sim.run_until(is_gone, LONG).unwrap();
        attempt
    }

    /// The report of an attempt, if it has ended.
    fn end_of(&self, attempt: u64) -> Option<Result<ReplayStats, String>> {
        let reports = self.desk.reports.lock().unwrap();
        let report = reports.iter().find(|r| r.recovery.0 == attempt)?;
        Some(report.result.clone())
    }

    /// From now on the master hears nothing of this backup.
    fn silence(&self, backup: usize) {
        let [from, to] = [backup, self.master].map(|i| self.rig.servers[i]);
        self.rig.sim.cut(from, to);
    }

    fn cut_from_backups(&self) {
        let master = self.rig.servers[self.master];
        for backup in self.backups.iter().filter(|i| **i != self.master) {
            self.rig.sim.cut(master, self.rig.servers[*backup]);
        }
    }
}

/// The crashed server wrote its objects in this many rounds. The oldest come first, so dead ones
/// are replayed too. The master has some of its own.
fn replayed(seed: u64, rounds: u32, own_objects: u32) -> Scene {
    let mut rig = Rig::of(seed, 2, 1);
    rig.all_started();
    rig.sim.run_for(2 * SECOND);
    for _ in 0..2 {
        rig.add(0, DiskFaults::default());
    }
    rig.all_started();
    let client = rig.connect(&rig.client);
    let mut tables: [Option<Table>; 2] = [None, None];
    for name in 'a'..='z' {
        let client = client.clone();
        let table = rig.run(&rig.client, async move {
            let name = name.to_string();
            client.create_table(&name, Some(1)).await.unwrap()
        });
        let owner = rig.owner(&table, b"key 0").expect("somebody serves it");
        if let Some(place) = tables.get_mut(owner) {
            *place = Some(table);
        }
    }
    let [own, table] = tables.map(|table| table.expect("each of them has one"));
    write(&rig, &client, &own, own_objects);
    // Its cleaner has no memory to work with, so what is dead stays.
    let work = rig.server(1).and_then(|server| server.master());
    let space = Arc::clone(work.expect("it is a member").store().space());
    space.set_seglet_gate(Box::new(|class, _| class != SegletClass::Cleaner));
    for _ in 0..rounds {
        write(&rig, &client, &table, OBJECTS);
    }
    let desk = Desk::default();
    rig.sim.crash(rig.coordinator.id);
    let process = rig.sim.restart(rig.coordinator.id);
    let (env, service) = (process.env.clone(), Arc::new(desk.clone()));
    rig.sim.spawn(process.id, "desk", async move {
        let at = Address::from("coordinator");
        let _open = env.network.listen(&at, service).await.unwrap();
        std::future::pending::<()>().await;
    });
    let crashed = rig.server(1).expect("it has started").id();
    rig.kill(1);
    let scene = Scene {
        rig,
        desk,
        crashed,
        master: 0,
        backups: vec![0, 2, 3],
        table,
        own,
    };
    scene.tell_of_the_crash();
    let replicas = scene.replicas(crashed);
    for backup in &scene.backups {
        let partitions = SetPartitions {
            recovery: RecoveryId(1001),
            crashed,
            partitions: vec![vec![scene.tablet()]],
            ends: Vec::new(),
        };
        scene.ask(*backup, partitions).unwrap();
    }
    let segments = replicas.iter().map(|(segment, places)| RecoverySegment {
        segment: *segment,
        backups: places.iter().map(|(backup, _)| scene.id(*backup)).collect(),
    });
    assert_eq!(scene.side_segments(), BTreeSet::new());
    scene.recover(1001, segments.collect()).unwrap();
    let reported = || !scene.desk.reports.lock().unwrap().is_empty();
    scene.rig.sim.run_until(reported, LONG).unwrap();
    let stats = scene.reported();
    let written = u64::from(OBJECTS * rounds) * VALUE as u64;
    assert!(stats.bytes > written, "{stats:?}");
    scene
}

/// Writes each of the first `count` keys once.
fn write(rig: &Rig, client: &Client, table: &Table, count: u32) {
    let (client, table) = (client.clone(), table.clone());
    rig.run(&rig.client, async move {
        for i in 0..count {
            let key = format!("key {i}");
            let value = Bytes::from(vec![1; VALUE]);
            let written = client.write(&table, key.as_bytes(), value);
            written.await.expect("it is written");
        }
    });
}

impl Scene {
    fn reported(&self) -> ReplayStats {
        let report = self.desk.reports.lock().unwrap()[0].clone();
        report.result.expect("it has everything")
    }

    /// The master hears what was decided.
    fn decide(&self, decision: Result<bool, Refusal>) {
        *self.desk.decision.lock().unwrap() = Some(decision);
        let answered = || *self.desk.answered.lock().unwrap();
        self.rig.sim.run_until(answered, LONG).unwrap();
    }

    /// The part of the master's log that another server would find if it crashed now: its segments,
    /// and how many entries of the table.
    fn left_on_backups(&self) -> (BTreeSet<SegmentId>, usize) {
        let id = self.rig.server(self.master).unwrap().id();
        let replicas = self.replicas(id);
        let heads = replicas
            .values()
            .flatten()
            .filter(|(_, r)| !r.closed && !r.side);
        let mut first: BTreeMap<_, &ReplicaInfo> = BTreeMap::new();
        for (_, head) in heads {
            let lowest = first.entry(head.log).or_insert(head);
            if head.segment < lowest.segment {
                *lowest = head;
            }
        }
        let heads = first.values().map(|head| head.head.as_ref().unwrap());
        let digest: BTreeSet<SegmentId> = heads.flat_map(|head| head.digest.clone()).collect();
        let recovery = RecoveryId(2001);
        let mut entries = 0;
        for backup in &self.backups {
            let partitions = SetPartitions {
                recovery,
                crashed: id,
                partitions: vec![vec![self.tablet()]],
                ends: Vec::new(),
            };
            self.ask(*backup, partitions).unwrap();
        }
        for segment in &digest {
            let (backup, _) = replicas[segment][0];
            entries += loop {
                let get = GetRecoveryData {
                    recovery,
                    crashed: id,
                    segment: *segment,
                    partition: 0,
                };
                match self.ask(backup, get) {
                    Ok(reply) => break entries_of_tables(&reply.data),
                    Err(RpcError::Refused(Refusal::Retry { .. })) => {
                        self.rig.sim.run_for(SECOND / 100);
                    }
                    Err(other) => panic!("{other}"),
                }
            };
        }
        (digest, entries)
    }
}

/// All but safe versions, which go to every partition.
fn entries_of_tables(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while !bytes.is_empty() {
        let parsed = Parsed::read(bytes, Check::Checksum).unwrap();
        count += usize::from(!matches!(parsed.entry, Entry::SafeVersion(_)));
        bytes = &bytes[parsed.head.total_len()..];
    }
    count
}

fn put_off(answer: &Result<(), RpcError>) -> bool {
    matches!(answer, Err(RpcError::Refused(Refusal::Retry { why, .. })) if *why == RetryReason::TabletNotReady)
}

/// Replays of two requests must not meet in one tablet, and a tablet that is being recovered is not
/// taken as an empty one.
// shows: REC-1
#[test]
fn a_tablet_that_is_being_recovered_is_not_taken_for_one_that_was_taken_before() {
    let scene = replayed(16, 1, 10);
    let take = || {
        let tablets = vec![scene.tablet()];
        let version = MetadataVersion(9);
        let take = TakeTablets {
            version,
            tablets,
            first_version: ObjectVersion(0),
        };
        scene.ask(scene.master, take)
    };
    assert!(put_off(&take()), "{:?}", take());
    assert!(put_off(&scene.recover(1002, Vec::new())));
    scene.decide(Ok(true));
    let served = || scene.rig.owner(&scene.table, b"key 0") == Some(scene.master);
    scene.rig.sim.run_until(served, LONG).unwrap();
    take().expect("it is served, as it would be if the first answer had been lost");
}

/// The live objects fit, and the dead ones do not.
#[test]
fn a_recovery_master_whose_memory_is_full_for_a_second_begins_anew_and_copies_only_what_lives() {
    let marks = Marks::count();
    let scene = replayed(13, 10, 330);
    assert_eq!(marks.reached().get("recovery-memory-full"), Some(&1));
    let stats = scene.reported();
    assert_eq!(stats.objects, u64::from(OBJECTS), "{stats:?}");
    assert!(
        (1_000_000..2_000_000).contains(&stats.replay_us),
        "{stats:?}"
    );
    // It waited for memory, not for data.
    assert!(stats.waiting_us < 250_000, "{stats:?}");
    scene.decide(Ok(true));
    let served = || scene.rig.owner(&scene.table, b"key 0") == Some(scene.master);
    scene.rig.sim.run_until(served, LONG).unwrap();
    for i in 0..OBJECTS {
        let key = format!("key {i}").into_bytes();
        let (_, value) = scene.read(&key).expect("it is there");
        assert_eq!(value.len(), VALUE, "key {i}");
    }
}

/// REC-3: otherwise a recovery of this master would find what was rejected.
// shows: MIG-6, REC-3, REC-4
#[test]
fn rejected_tablets_come_back_only_after_a_digest_without_them() {
    let scene = replayed(11, 1, 10);
    let replayed = scene.side_segments();
    assert!(!replayed.is_empty());
    let again = || scene.recover(1002, Vec::new());
    assert!(put_off(&again()), "nothing is decided");
    scene.cut_from_backups();
    scene.decide(Ok(false));
    scene.rig.sim.run_for(3 * SECOND);
    let answer = again();
    assert!(put_off(&answer), "the digest is not durable: {answer:?}");
    scene.rig.sim.heal_all();
    let taken = (0..1000).find(|_| {
        scene.rig.sim.run_for(SECOND / 50);
        again().is_ok()
    });
    assert!(taken.is_some(), "{:?}", again());
    let (digest, entries) = scene.left_on_backups();
    assert!(digest.is_disjoint(&replayed), "{digest:?}, {replayed:?}");
    assert_eq!(entries, 0, "of the table are left");
}

/// REC-6: the master may have been given the tablets without hearing of it. A recovery of its log
/// then needs the entries that it replayed.
// shows: COORD-11, REC-6
#[test]
fn a_master_that_is_no_member_leaves_what_it_replayed_where_it_is() {
    let scene = replayed(14, 1, 10);
    let replayed = scene.side_segments();
    let refusal = Refusal::fatal(FatalKind::NotInCluster, "it was declared dead");
    scene.decide(Err(refusal));
    scene.rig.sim.run_for(5 * SECOND);
    assert_eq!(scene.side_segments(), replayed);
    assert_ne!(
        scene.rig.owner(&scene.table, b"key 0"),
        Some(scene.master),
        "it serves nothing of it"
    );
    let (digest, entries) = scene.left_on_backups();
    assert!(digest.is_superset(&replayed), "{digest:?}, {replayed:?}");
    assert!(
        entries >= OBJECTS as usize,
        "{entries} of the table are left"
    );
}

/// A refusal says nothing of the tablets, and only the one as no member is final. After any other
/// the report comes again. It may come from an older coordinator, or from one of another cluster
/// that has the address for a while.
// shows: COORD-11, REC-6
#[test]
fn a_report_that_is_refused_for_another_reason_comes_again() {
    let scene = replayed(15, 1, 10);
    let replayed = scene.side_segments();
    let owner = || scene.rig.owner(&scene.table, b"key 0");
    for kind in [FatalKind::Unsupported, FatalKind::WrongCluster] {
        scene.decide(Err(Refusal::fatal(kind, "not here")));
        let reports = || scene.desk.reports.lock().unwrap().len();
        let before = reports();
        scene.rig.sim.run_for(2 * SECOND);
        assert!(reports() > before + 4, "{kind:?}: it has given up");
        assert_eq!(scene.side_segments(), replayed, "{kind:?}");
        assert_ne!(owner(), Some(scene.master), "nothing is decided");
    }
    scene.decide(Ok(true));
    let served = || owner() == Some(scene.master);
    scene.rig.sim.run_until(served, LONG).unwrap();
}

/// Nothing is gained by asking again, and what else is to be recovered waits for it.
// shows: REC-2
#[test]
fn what_all_backups_say_they_cannot_give_is_not_asked_for_again() {
    let scene = replayed(17, 1, 10);
    let attempt = scene.begin_again();
    let unknown = RecoverySegment {
        segment: SegmentId(1_000_000),
        backups: scene.backups.iter().map(|of| scene.id(*of)).collect(),
    };
    scene.recover(attempt, vec![unknown]).unwrap();
    let ended = || scene.end_of(attempt).is_some();
    scene.rig.sim.run_until(ended, SECOND).unwrap();
    let why = scene.end_of(attempt).unwrap().unwrap_err();
    assert!(why.contains("segment 1000000 cannot be read"), "{why}");
}

/// Another one has the segment.
#[test]
fn a_silent_backup_is_passed_over_after_five_seconds() {
    let scene = replayed(18, 1, 10);
    let found = scene.replicas(scene.crashed);
    let places = found.values().flatten();
    let (holder, replica) = places.max_by_key(|(_, replica)| replica.length).unwrap();
    let others = |of: &&usize| **of != scene.master && *of != holder;
    let silent = *scene.backups.iter().find(others).unwrap();
    let attempt = scene.begin_again();
    scene.silence(silent);
    let work = scene.work();
    let objects = || work.store().stats().objects;
    let before = objects();
    let segment = RecoverySegment {
        segment: replica.segment,
        backups: vec![scene.id(silent), scene.id(*holder)],
    };
    let began = scene.rig.sim.now();
    scene.recover(attempt, vec![segment]).unwrap();
    let replayed = || objects() > before;
    scene.rig.sim.run_until(replayed, LONG).unwrap();
    let waited = scene.rig.sim.now() - began;
    assert!((5 * SECOND..6 * SECOND).contains(&waited), "{waited:?}");
    // It may be one of those that get the replicas.
    scene.rig.sim.heal_all();
    let ended = || scene.end_of(attempt).is_some();
    scene.rig.sim.run_until(ended, LONG).unwrap();
    scene.end_of(attempt).unwrap().expect("it has everything");
}

/// Nobody else has it, and the silent one may have it yet.
#[test]
fn a_segment_that_no_backup_gives_is_given_up_after_ten_seconds() {
    let scene = replayed(19, 1, 10);
    let attempt = scene.begin_again();
    let silent = scene.backups[1];
    scene.silence(silent);
    let marks = Marks::count();
    let segment = RecoverySegment {
        segment: SegmentId(1_000_000),
        backups: vec![scene.id(silent)],
    };
    let began = scene.rig.sim.now();
    scene.recover(attempt, vec![segment]).unwrap();
    let ended = || scene.end_of(attempt).is_some();
    scene.rig.sim.run_until(ended, LONG).unwrap();
    let tried = scene.rig.sim.now() - began;
    assert!((10 * SECOND..11 * SECOND).contains(&tried), "{tried:?}");
    let why = scene.end_of(attempt).unwrap().unwrap_err();
    assert!(why.contains("segment 1000000 cannot be read"), "{why}");
    // It was waited for twice.
    let reached = marks.reached();
    assert_eq!(reached.get("recovery-replica-passed-over"), Some(&2));
}

/// REC-4: what the cleaner copied out of them would stay. Nothing else is as worth cleaning as they
/// are.
// shows: REC-3, REC-4
#[test]
fn what_nobody_has_decided_about_is_not_cleaned_and_leaves_nothing_behind() {
    let scene = replayed(12, 8, 10);
    let replayed = scene.side_segments();
    fill_memory(&scene);
    scene.rig.sim.run_for(5 * SECOND);
    assert_eq!(scene.side_segments(), replayed);
    scene.decide(Ok(false));
    let gone = || scene.side_segments().is_disjoint(&replayed);
    scene.rig.sim.run_until(gone, LONG).unwrap();
    scene.rig.sim.run_for(5 * SECOND);
    let (digest, entries) = scene.left_on_backups();
    assert!(digest.is_disjoint(&replayed), "{digest:?}, {replayed:?}");
    assert_eq!(entries, 0, "of the table are left");
}

/// Writes to the master until it has no memory for more.
fn fill_memory(scene: &Scene) {
    for i in 0.. {
        assert!(i < 1000, "memory has an end");
        match scene.write(format!("more {i}")) {
            Ok(_) => {}
            Err(RpcError::Refused(Refusal::Retry { why, .. })) => {
                assert_eq!(why, RetryReason::MemoryFull, "write {i}");
                return;
            }
            Err(other) => panic!("write {i}: {other}"),
        }
    }
}
