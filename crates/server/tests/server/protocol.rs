//! Scenarios at the seams between membership, recovery and masters.

use crate::rig::{FrameOnDisk, LONG, Rig, objects};
use bytes::Bytes;
use pluvio_env::{Address, Moment, OpenMode};
use pluvio_format::{FRAME_SLOT_BYTES, FRAME_SLOTS, FrameHeader, SegmentKind};
use pluvio_master::{Master, TabletPhase};
use pluvio_server::{Server, ServerError, ServerOptions};
use pluvio_sim::DiskFaults;
use pluvio_units::{
    ClientId, ClusterId, HashRange, KeyHash, Marks, MetadataVersion, ObjectVersion, OperationId,
    RecoveryId, SEGMENT_BYTES, SegmentId, SequenceNumber, Size, TableId,
};
use pluvio_wire::{
    DropTablets, Header, Recover, RecoverySegment, Refusal, RetryReason, RpcError, TabletSpec,
    TakeTablets, call,
};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Objects of 100 kB that take more than half of a server's memory.
const LARGE: u32 = 270;
/// How long an operation of a disk takes that does next to nothing.
const STANDSTILL: Duration = Duration::from_secs(30);
/// The mark of a recovery master that gives up its wait for replicas.
const WITHDRAWN: &str = "recovery-withdrawn-awaiting-replicas";

/// Reads that were answered: when they were sent, and the value.
type Seen = Arc<Mutex<Vec<(Moment, Bytes)>>>;

/// A server that nobody but one client reaches must not show that client what others have changed
/// since.
fn zombie_reads(seed: u64) {
    let rig = Rig::of(seed, 4, 2);
    let table = rig.fill("t", 1);
    let zombie = rig.owner(&table, b"key 0").expect("somebody serves it");
    let server = rig.server(zombie).expect("it has started");
    let process = rig.servers[zombie];
    rig.sim.isolate(process);
    rig.sim.heal(process, rig.client.id);
    rig.sim.heal(rig.client.id, process);

    let seen = Seen::default();
    let (env, also, id) = (rig.client.env.clone(), Arc::clone(&seen), server.id());
    let (address, table_id) = (Address::from(&*format!("server-{zombie}")), table.id());
    rig.sim.spawn(rig.client.id, "stubborn reader", async move {
        loop {
            let sent = env.clock.now();
            let limit = Duration::from_millis(100);
            let (header, object) = (Header::to(id), (table_id, b"key 0".as_slice()));
            let read = objects::read(&*env.network, &address, header, object, limit).await;
            if let Ok(found) = read {
                let value = found.map_or_else(Bytes::new, |(_, value)| value.into());
                also.lock().unwrap().push((sent, value));
            }
            env.clock.sleep(Duration::from_millis(5)).await;
        }
    });
    // Only the process of the reader has a clock that can be compared with its reads.
    let (write, clock) = (rig.connect(&rig.other), rig.client.env.clock.clone());
    let written = Arc::new(Mutex::new(None));
    let place = Arc::clone(&written);
    rig.sim.spawn(rig.other.id, "writer", async move {
        let table = write.table("t").await.expect("the table is there");
        write
            .write(&table, b"key 0", Bytes::from("new"))
            .await
            .expect("it is written");
        *place.lock().unwrap() = Some(());
    });
    rig.sim
        .run_until(|| written.lock().unwrap().is_some(), LONG)
        .unwrap_or_else(|s| panic!("{s}"));
    let acknowledged = clock.now();
    rig.sim.run_for(Duration::from_secs(3));
    let seen = seen.lock().unwrap();
    assert!(!seen.is_empty(), "the zombie served at first");
    let late: Vec<_> = seen
        .iter()
        .filter(|(sent, value)| *sent >= acknowledged && value != "new")
        .collect();
    assert!(
        late.is_empty(),
        "seed {seed}: {} reads after {acknowledged} show what was overwritten: {late:?}",
        late.len()
    );
}

// shows: LEASE-1, LEASE-2, SRV-1, MASTER-4
#[test]
fn a_server_that_was_cut_off_shows_nothing_that_others_have_changed() {
    for seed in 0..8 {
        zombie_reads(seed);
    }
}

// shows: LEASE-1
#[test]
fn a_server_that_is_still_a_member_serves_through_a_loss_of_the_coordinator() {
    let rig = Rig::of(3, 4, 2);
    rig.fill("t", 20);
    let client = rig.connect(&rig.client);
    let table = rig.run(&rig.client, {
        let client = client.clone();
        async move { client.table("t").await.expect("the table is there") }
    });
    rig.sim.crash(rig.coordinator.id);
    rig.sim.run_for(Duration::from_secs(5));
    rig.run(&rig.client, async move {
        for i in 0..20 {
            let key = format!("key {i}");
            client
                .write(&table, key.as_bytes(), Bytes::from("x"))
                .await
                .expect("it is written");
            let found = client
                .read(&table, key.as_bytes())
                .await
                .expect("it is read");
            assert_eq!(found.expect("it is there").value, "x");
        }
    });
}

/// It begins a new cluster, whose server list gets ahead of the one that the servers have (MEM-6).
// shows: MEM-6
#[test]
fn a_coordinator_that_lost_its_store_does_not_oust_the_servers() {
    let _marks = Marks::to_reach(&["server-ignores-coordinator"]);
    let mut rig = Rig::of(3, 4, 2);
    rig.all_started();
    rig.fill("t", 20);
    rig.sim.run_for(Duration::from_secs(2));
    let client = rig.connect(&rig.client);
    let table = rig.run(&rig.client, {
        let client = client.clone();
        async move { client.table("t").await.expect("the table is there") }
    });
    let versions = |rig: &Rig| {
        let server = |i| rig.server(i).expect("it has started");
        (0..4)
            .map(|i| server(i).server_list().version)
            .collect::<Vec<_>>()
    };
    let (before, old) = (versions(&rig), rig.status().cluster);
    rig.store.wipe();
    rig.restart_coordinator();
    rig.add(0, DiskFaults::default());
    for _ in 0..10 {
        rig.all_started();
        rig.restart(4, 0);
    }
    rig.all_started();
    let stranger = rig.status();
    assert_ne!(stranger.cluster, old);
    assert!(before.iter().max() < Some(&stranger.list.version));
    rig.sim.run_for(Duration::from_secs(5));
    assert_eq!(versions(&rig), before);
    rig.run(&rig.client, async move {
        for i in 0..20 {
            let key = format!("key {i}");
            let written = client.write(&table, key.as_bytes(), Bytes::from("x"));
            written.await.expect("it is written");
            let found = client.read(&table, key.as_bytes()).await;
            let found = found.expect("it is read").expect("it is there");
            assert_eq!(found.value, "x");
        }
    });
    rig.kill(0);
    let process = rig.sim.restart(rig.servers[0]);
    let mut options = ServerOptions::new(Address::from("coordinator"), Address::from("server-0"));
    options.memory = Size::mib(48);
    let start = Server::start(process.env.clone(), options);
    let refused = rig.run(&process, async move { start.await.err() });
    assert!(
        matches!(refused, Some(ServerError::Refused(_))),
        "{refused:?}"
    );
}

#[test]
fn a_server_with_a_slow_disk_joins() {
    let mut rig = Rig::of(4, 2, 1);
    rig.all_started();
    let slow = DiskFaults {
        sync_latency: Duration::from_secs(2),
        ..DiskFaults::default()
    };
    rig.add(1, slow);
    rig.all_started();
    rig.sim.run_for(Duration::from_secs(5));
    let server = rig.server(2).expect("it has started");
    assert!(server.readiness().ready, "{:?}", server.readiness());
}

#[test]
fn what_has_replicas_is_not_recovered_to_a_server_that_keeps_none() {
    let mut rig = Rig::of(5, 3, 2);
    rig.all_started();
    let table = rig.fill("t", 100);
    rig.add(0, DiskFaults::default());
    rig.add(0, DiskFaults::default());
    rig.all_started();
    let victim = rig.owner(&table, b"key 0").expect("somebody serves it");
    rig.sim.crash(rig.servers[victim]);
    rig.check("t", 100);
    let served = |i: usize| {
        rig.server(i)
            .and_then(|s| s.master())
            .map(|m| m.tablets().serving())
    };
    assert_eq!((served(3), served(4)), (Some(0), Some(0)));
}

// shows: MASTER-3
#[test]
fn a_request_to_take_tablets_does_not_wait_for_backups_for_ever() {
    let rig = Rig::of(6, 3, 3);
    rig.all_started();
    for other in [1, 2] {
        rig.sim.crash(rig.servers[other]);
    }
    // A log that is not open yet: this server has never had enough backups.
    let mut rig = rig;
    rig.sim.run_for(Duration::from_secs(10));
    rig.add(3, DiskFaults::default());
    rig.all_started();
    let id = rig.server(3).expect("it has started").id();
    let env = rig.client.env.clone();
    let answer = rig.run(&rig.client, async move {
        let spec = TabletSpec {
            table: TableId(77),
            seed: 1,
            hash: pluvio_units::HashKind::Seeded,
            range: HashRange::ALL,
            since: SegmentId(0),
            quota: pluvio_wire::TableQuota::NONE,
            class: None,
        };
        let take = TakeTablets {
            version: MetadataVersion(9),
            tablets: vec![spec],
            first_version: ObjectVersion(0),
        };
        let limit = Duration::from_secs(30);
        call(
            &*env.network,
            &Address::from("server-3"),
            Header::to(id),
            &take,
            limit,
        )
        .await
    });
    let refusal = answer.expect_err("there are too few backups").to_string();
    assert!(refusal.contains("too few backups"), "{refusal}");
}

/// An operation with an earlier map may be about to write.
// shows: MIG-6
#[test]
fn a_table_is_not_forgotten_while_an_operation_on_it_may_be_under_way() {
    let rig = Rig::of(12, 3, 2);
    rig.all_started();
    let table = rig.fill("t", 100);
    let owner = rig.owner(&table, b"key 0").expect("somebody serves it");
    let server = rig.server(owner).expect("it has started");
    let work = server.master().expect("it is a member");
    let objects = || work.store().stats().objects;
    let before = objects();
    assert!(before > 0);
    let operation = work.tablets().snapshot();
    for request in ["drop", "drop again"] {
        let (env, id) = (rig.client.env.clone(), server.id());
        let address = Address::from(&*format!("server-{owner}"));
        let drop = DropTablets {
            version: MetadataVersion(u64::MAX),
            table: table.id(),
        };
        rig.sim.spawn(rig.client.id, request, async move {
            let answer = call(&*env.network, &address, Header::to(id), &drop, LONG).await;
            answer.expect("it is dropped");
        });
    }
    rig.sim.run_for(Duration::from_millis(100));
    assert_eq!((work.tablets().serving(), objects()), (0, before));
    drop(operation);
    rig.sim.run_until(|| objects() == 0, LONG).unwrap();
}

/// Otherwise nobody would hear of the table's later cuts, and a server that is well would be
/// suspected all the time.
#[test]
fn a_cut_of_a_tablet_that_its_owner_does_not_have_is_passed_over() {
    let rig = Rig::of(13, 3, 2);
    rig.all_started();
    let client = rig.connect(&rig.client);
    let table = {
        let client = client.clone();
        rig.run(&rig.client, async move {
            let table = client.create_table("t", Some(1)).await;
            table.expect("a table can be made")
        })
    };
    let owner = rig.owner(&table, b"key").expect("somebody serves it");
    let server = rig.server(owner).expect("it has started");
    let work = server.master().expect("it is a member");
    let cut = |at: u64| {
        let (client, table) = (client.clone(), table.clone());
        let info = rig.run(&rig.client, async move {
            client.split_tablet(&table, Some(KeyHash(at))).await
        });
        info.expect("it is cut");
    };
    let begins = |at: u64| {
        let map = work.tablets().snapshot();
        let tablets = map.get(&table.id()).map(|t| &t.tablets);
        let mut tablets = tablets.into_iter().flatten();
        tablets.any(|tablet| tablet.range.first == KeyHash(at))
    };
    cut(1 << 63);
    rig.sim.run_until(|| begins(1 << 63), LONG).unwrap();
    let lower = HashRange::new(KeyHash(0), KeyHash((1 << 63) - 1));
    assert!(work.tablets().remove(table.id(), lower).is_some());
    cut(1 << 62);
    cut(3 << 62);
    rig.sim.run_until(|| begins(3 << 62), LONG).unwrap();
    assert!(!begins(0) && !begins(1 << 62));
}

/// Servers and tables of all clusters have the same ids.
// shows: MASTER-1
#[test]
fn a_request_for_data_of_another_cluster_is_sent_back_to_the_coordinator() {
    let rig = Rig::of(10, 3, 2);
    rig.all_started();
    let table = rig.fill("t", 1);
    let owner = rig.owner(&table, b"key 0").expect("somebody serves it");
    let server = rig.server(owner).expect("it has started");
    let write = |cluster| {
        let env = rig.client.env.clone();
        let table = table.id();
        let header = Header::within(cluster, server.id());
        let address = Address::from(&*format!("server-{owner}"));
        rig.run(&rig.client, async move {
            let object = (table, b"key 0".as_slice(), b"new".as_slice());
            objects::write(&*env.network, &address, header, object, LONG).await
        })
    };
    let foreign = write(ClusterId(server.cluster().0 ^ 1));
    let refused = foreign.expect_err("it belongs to another cluster");
    assert_eq!(refused, RpcError::Refused(Refusal::Refresh));
    rig.check("t", 1);
    write(server.cluster()).expect("it is its own");
    write(ClusterId(0)).expect("it may not know");
}

/// Another core executes an operation when a copy of it arrives: that one is to come again, and is
/// executed if the first was not.
// shows: EO-1
#[test]
fn a_duplicate_of_an_operation_that_runs_is_told_to_come_again() {
    let _marks = Marks::to_reach(&["completion-in-progress"]);
    let rig = Rig::of(9, 3, 2);
    rig.all_started();
    let table = rig.fill("t", 1);
    let owner = rig.owner(&table, b"key 0").expect("somebody serves it");
    let server = rig.server(owner).expect("it has started");
    let work = server.master().expect("it is a member");
    let operation = OperationId {
        client: ClientId(7_000_000),
        sequence: SequenceNumber(1),
        retry_ms: 60_000,
        ..OperationId::default()
    };
    let header = Header {
        operation,
        ..Header::to(server.id())
    };
    let write = || {
        let env = rig.client.env.clone();
        let table = table.id();
        let address = Address::from(&*format!("server-{owner}"));
        rig.run(&rig.client, async move {
            let limit = Duration::from_secs(1);
            let object = (table, b"key 0".as_slice(), b"new".as_slice());
            objects::write(&*env.network, &address, header, object, limit).await
        })
    };
    let place = (table.id(), table.hash(b"key 0"));
    // No time at which anybody would forget the client.
    let now = Duration::from_secs(1 << 40);
    let running = work.store().admit(operation, place, now);
    let refused = write().expect_err("it runs");
    let in_progress = matches!(
        refused,
        RpcError::Refused(Refusal::Retry {
            why: RetryReason::InProgress,
            ..
        })
    );
    assert!(in_progress, "{refused}");
    drop(running);
    let written = write().expect("it does not run any more");
    // Now it is known by its result.
    assert_eq!(write().expect("it is answered"), written);
}

/// REC-5: an attempt that has been withdrawn ends although the backup that it waits for does not
/// answer.
// shows: REC-5
#[test]
fn an_attempt_that_waits_for_a_silent_backup_makes_way_for_the_next() {
    let rig = Rig::of(7, 3, 1);
    rig.all_started();
    let [master, crashed, backup] = [0, 1, 2].map(|i| rig.server(i).expect("it has started").id());
    rig.sim.cut(rig.servers[2], rig.servers[0]);
    let env = rig.client.env.clone();
    let (refusals, taken_after) = rig.run(&rig.client, async move {
        let ask = async |recovery| {
            let recover = Recover {
                recovery: RecoveryId(recovery),
                crashed,
                partition: 0,
                tablets: vec![TabletSpec {
                    table: TableId(77),
                    seed: 1,
                    hash: pluvio_units::HashKind::Seeded,
                    range: HashRange::ALL,
                    since: SegmentId(0),
                    quota: pluvio_wire::TableQuota::NONE,
                    class: None,
                }],
                segments: Arc::new([RecoverySegment {
                    segment: SegmentId(1),
                    backups: vec![backup],
                }]),
                early: false,
            };
            let address = Address::from("server-0");
            let limit = Duration::from_secs(1);
            call(&*env.network, &address, Header::to(master), &recover, limit).await
        };
        ask(1001).await.expect("nothing is in its way");
        // It waits for its backup, so it is still there when the next one comes.
        env.clock.sleep(Duration::from_secs(1)).await;
        let asked = env.clock.now();
        let mut refusals = 0;
        while let Err(error) = ask(1002).await {
            let refused = matches!(error, RpcError::Refused(Refusal::Retry { .. }));
            assert!(refused, "{error}");
            refusals += 1;
            env.clock.sleep(Duration::from_millis(5)).await;
        }
        (refusals, env.clock.now().since(asked))
    });
    assert!(refusals > 0, "the earlier attempt was over by itself");
    assert!(
        taken_after < Duration::from_millis(200),
        "the earlier attempt was in the way for {taken_after:?}"
    );
}

/// REC-5: the next coordinator's attempt withdraws one that waits for replicas, which is over
/// before its backups answer. Its memory is enough for the next attempt, and its frames are freed.
// shows: REC-5
#[test]
fn an_attempt_that_waits_for_replicas_makes_way_for_the_next() {
    let marks = Marks::to_reach(&["recovery-withdrawn-awaiting-replicas"]);
    let mut rig = Rig::of_late_reads(8, 2, 1);
    rig.all_started();
    // The first one knows of the second one, and keeps nothing on its own disk.
    rig.sim.run_for(Duration::from_secs(2));
    let table = rig.fill_large("t", LARGE);
    let crashed = rig.owner(&table, b"key 0").expect("somebody serves it");
    let master = 1 - crashed;
    // They keep replicas for others and have none: the tablet can go to one server only.
    let backups = [2, 3];
    for backup in backups {
        rig.add(0, DiskFaults::default());
        rig.sim
            .run_until(|| rig.server(backup).is_some(), LONG)
            .unwrap();
    }
    rig.kill(crashed);
    let server = rig.server(master).expect("it has started");
    let work = server.master().expect("it is a member");
    let recovers = |work: &Master| {
        let map = work.tablets().snapshot();
        let mut tablets = map.values().flat_map(|table| &table.tablets);
        tablets.any(|tablet| tablet.phase == TabletPhase::Recovering)
    };
    rig.sim.run_until(|| recovers(&work), LONG).unwrap();
    let slow = DiskFaults {
        latency_min: STANDSTILL,
        latency_max: STANDSTILL,
        ..DiskFaults::default()
    };
    for backup in backups {
        rig.sim.set_disk(rig.servers[backup], slow.clone());
    }
    rig.sim.run_for(Duration::from_secs(3));
    let free = || work.store().space().stats().free_bytes;
    let free_at_first = free();
    let replayed = u64::from(LARGE) * 100_000;
    assert!(free_at_first < replayed, "two attempts would have room");
    assert_eq!(marks.reached().get(WITHDRAWN), None);

    rig.restart_coordinator();
    rig.sim
        .run_until(|| marks.reached().contains_key(WITHDRAWN), STANDSTILL / 4)
        .unwrap_or_else(|stuck| panic!("{stuck}"));
    rig.sim.run_for(Duration::from_secs(3));
    assert!(recovers(&work), "the second attempt is there");
    assert!(free() + SEGMENT_BYTES as u64 >= free_at_first, "{}", free());

    for backup in backups {
        rig.sim.set_disk(rig.servers[backup], DiskFaults::default());
    }
    // The work that they have begun ends at its old speed.
    let served = || rig.owner(&table, b"key 0") == Some(master);
    rig.sim
        .run_until(served, 4 * STANDSTILL)
        .unwrap_or_else(|stuck| panic!("{stuck}"));
    rig.check_large("t", LARGE);
    let attempts: Vec<_> = rig.status().recoveries.iter().map(|r| r.attempts).collect();
    assert_eq!(attempts, [1], "of the second coordinator");
    rig.sim.run_for(4 * STANDSTILL);
    let space = work.store().space();
    let log: BTreeSet<SegmentId> = space
        .logs()
        .flat_map(|log| space.segments(log))
        .map(|segment| segment.id())
        .collect();
    let frames = backups.map(|backup| rig.frames(backup, server.id()));
    let frames = frames.iter().flatten().map(|frame| frame.header.segment);
    assert_eq!(frames.collect::<BTreeSet<_>>(), log);
}

/// A backup that comes back asks the master what of the replicas on its disk is still needed. The
/// master must not take them for those of a backup that it believes to be alive.
// shows: BACKUP-6
#[test]
fn a_master_that_has_not_heard_of_a_restart_keeps_the_replicas_found_after_it() {
    for seed in 0..6 {
        let rig = Rig::of(20 + seed, 2, 1);
        rig.all_started();
        let table = rig.fill("t", 50);
        let master = rig.owner(&table, b"key 0").expect("somebody serves it");
        let backup = 1 - master;
        let process = rig.servers[master];
        rig.sim.cut(rig.coordinator.id, process);
        rig.sim.cut(process, rig.coordinator.id);
        rig.restart(backup, 1);
        rig.sim.run_for(Duration::from_secs(4));
        rig.restart(master, 1);
        rig.sim.heal_all();
        rig.check("t", 50);
    }
}

/// Nobody reads what a crash could take back: a write that no backup has is in its master's
/// memory, and a reader of it waits.
// shows: EO-3, STORE-2, DURABLE-2, ANSWER-1, MASTER-2
#[test]
fn a_value_that_a_crash_takes_back_was_shown_to_nobody() {
    for seed in 0..5 {
        let rig = Rig::of(seed, 4, 3);
        let table = rig.fill("t", 1);
        let owner = rig.owner(&table, b"key 0").expect("somebody serves it");
        let id = rig.server(owner).expect("it has started").id();
        let process = rig.servers[owner];
        for other in rig.servers.iter().filter(|other| **other != process) {
            rig.sim.cut(process, *other);
        }
        let to = Address::from(&*format!("server-{owner}"));
        let (env, at, table_id) = (rig.client.env.clone(), to.clone(), table.id());
        // Less than its lease lasts: it would answer if it had something to show.
        let limit = Duration::from_millis(300);
        rig.sim.spawn(rig.client.id, "writer", async move {
            let object = (table_id, b"key 0".as_slice(), b"taken back".as_slice());
            let written = objects::write(&*env.network, &at, Header::to(id), object, limit).await;
            assert!(written.is_err(), "{written:?}");
        });
        rig.sim.run_for(Duration::from_millis(50));
        let ask = |key: Vec<u8>| {
            let (env, to) = (rig.client.env.clone(), to.clone());
            rig.run(&rig.client, async move {
                objects::read(&*env.network, &to, Header::to(id), (table_id, &key), limit).await
            })
        };
        let seen = ask(b"key 0".to_vec());
        assert!(seen.is_err(), "seed {seed}: {seen:?}");
        // It is not that it answers nothing at all.
        let keys = (0..).map(|n| format!("nothing {n}").into_bytes());
        let mut keys = keys.filter(|key| rig.owner(&table, key) == Some(owner));
        let nothing = ask(keys.next().expect("it has many hashes"));
        let put_off = |error: &RpcError| {
            matches!(
                error,
                RpcError::Call(_) | RpcError::Refused(Refusal::Retry { .. })
            )
        };
        assert!(!nothing.as_ref().is_err_and(put_off), "{nothing:?}");
        rig.sim.crash(process);
        rig.sim.heal_all();
        rig.check("t", 1);
    }
}

/// COORD-8: writes are only buffered, and a loss of power takes back the bytes that closed a frame.
/// Its master crashes before it could say that the frame is of no use. Segments after that one must
/// not be overlooked.
// shows: COORD-8
#[test]
fn a_backup_whose_frame_is_open_again_does_not_end_the_log() {
    let taken_back = (0..6).filter(|seed| frame_open_again(*seed)).count();
    assert!(taken_back >= 2, "{taken_back} of 6 had such a frame");
}

fn frame_open_again(seed: u64) -> bool {
    let rig = Rig::of(60 + seed, 5, 2);
    rig.all_started();
    let table = rig.fill_large("t", 300);
    let master = rig.owner(&table, b"key 0").expect("somebody serves it");
    let id = rig.server(master).expect("it has started").id();
    // A backup that has a closed head and no open one: no epoch is recorded when it is lost.
    let others = (0..rig.servers.len()).filter(|i| *i != master);
    let lost = others.into_iter().find_map(|i| {
        let frames = rig.frames(i, id);
        if frames.iter().any(|frame| !frame.header.closed) {
            return None;
        }
        let is_head = |frame: &FrameOnDisk| frame.header.kind == SegmentKind::Head;
        let frame = frames.into_iter().find(is_head)?;
        let newest = (0..FRAME_SLOTS).find(|slot| {
            let found = FrameHeader::decode(&frame.area[slot * FRAME_SLOT_BYTES..]);
            found.is_ok_and(|found| found.sequence == frame.header.sequence)
        })?;
        Some((i, frame.path, newest * FRAME_SLOT_BYTES))
    });
    let Some((lost, path, at)) = lost else {
        return false;
    };
    for (from, to) in [(master, lost), (lost, master)] {
        rig.sim.cut(rig.servers[from], rig.servers[to]);
    }
    rig.restart_with(lost, 2, |env| async move {
        let file = env.disk.open(&path, OpenMode::Existing).await;
        let file = file.expect("it is there");
        let empty = Bytes::from(vec![0; FRAME_SLOT_BYTES]);
        file.write_at(at as u64, empty).await.expect("is written");
    });
    rig.all_started();
    rig.kill(master);
    rig.check_large("t", 300);
    true
}
