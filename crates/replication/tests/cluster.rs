//! A log, its replication, and real backups on simulated disks and networks.

mod support;

use futures_util::FutureExt;
use pluvio_format::{Entry, Graves, Object, ObjectState};
use pluvio_log::{AppendClass, SideLog};
use pluvio_replication::Replication;
use pluvio_sim::{DiskFaults, NetworkFaults};
use pluvio_units::{ClusterId, LogId, LogPosition, ObjectVersion, SegmentId, TableId};
use pluvio_wire::{FatalKind, IsReplicaNeeded};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{CLUSTER, Cluster, Setup, append};

const LOG: LogId = LogId(0);

/// Keys with the last version that was acknowledged.
type Acknowledged = Arc<Mutex<BTreeMap<Vec<u8>, u64>>>;

/// Writers that each overwrite a key of their own, as fast as it becomes durable.
fn start_writers(cluster: &Cluster, count: u64, bytes: usize) -> Acknowledged {
    let acknowledged = Acknowledged::default();
    for writer in 0..count {
        let (space, replication) = (Arc::clone(&cluster.space), cluster.replication.clone());
        let acknowledged = Arc::clone(&acknowledged);
        let log = LogId(
            u16::try_from(writer).expect("few writers")
                % u16::try_from(space.logs().count()).expect("few"),
        );
        cluster.sim.spawn(cluster.master, "writer", async move {
            let key = format!("key {writer}");
            for version in 1.. {
                // A full log ends the writer; its earlier answers stay true.
                let Ok(position) = append(&space, log, &key, version, bytes) else {
                    return;
                };
                replication.synced(log, position).await;
                assert!(space.is_durable(log, position), "REP-11");
                acknowledged
                    .lock()
                    .expect("is not poisoned")
                    .insert(key.clone().into_bytes(), version);
            }
        });
    }
    acknowledged
}

fn check(cluster: &Cluster, acknowledged: &Acknowledged, seed: u64) {
    let found = cluster
        .recover()
        .unwrap_or_else(|| panic!("seed {seed}: the log is not complete"));
    for (key, version) in acknowledged.lock().expect("is not poisoned").iter() {
        let there = found.get(key).copied().unwrap_or(0);
        assert!(
            there >= *version,
            "REP-1, seed {seed}: {key:?} has version {there}, {version} was acknowledged"
        );
    }
}

fn count(acknowledged: &Acknowledged) -> u64 {
    acknowledged.lock().expect("is not poisoned").values().sum()
}

#[test]
fn what_was_acknowledged_survives_the_master() {
    for seed in 0..4 {
        let cluster = Setup {
            logs: 2,
            ..Setup::new(seed)
        }
        .start();
        cluster.run({
            let replication = cluster.replication.clone();
            async move { replication.opened().await }
        });
        let acknowledged = start_writers(&cluster, 20, 2000 + 300 * seed as usize);
        cluster.sim.run_for(Duration::from_millis(60 + 11 * seed));
        cluster.sim.crash(cluster.master);
        assert!(
            count(&acknowledged) > 100,
            "seed {seed}: {}",
            count(&acknowledged)
        );
        check(&cluster, &acknowledged, seed);
    }
}

#[test]
fn what_was_acknowledged_survives_losses_crashes_power_cuts_and_full_disks() {
    for seed in 0..4u64 {
        let mut cluster = Setup {
            backups: 5,
            ..Setup::new(seed)
        }
        .start();
        let acknowledged = start_writers(&cluster, 12, 8_000);
        cluster.sim.set_network(NetworkFaults {
            loss_ppm: 10_000,
            duplicate_ppm: 20_000,
            ..NetworkFaults::default()
        });
        for round in 0..5u64 {
            cluster.sim.run_for(Duration::from_millis(20 + 3 * seed));
            let index = ((seed + round) % cluster.nodes.len() as u64) as usize;
            if (seed + round) % 3 == 0 {
                let process = cluster.nodes[index].process;
                let capacity = Some(cluster.sim.disk_used(process) + 100_000);
                cluster.sim.set_disk(
                    process,
                    DiskFaults {
                        capacity,
                        ..DiskFaults::default()
                    },
                );
                cluster.sim.run_for(Duration::from_millis(40));
                cluster.sim.set_disk(process, DiskFaults::default());
            } else {
                let process = cluster.crash(index, round % 2 == 0);
                cluster.sim.run_for(Duration::from_millis(100));
                cluster.restart(process);
                // Until what it lost was replicated again, it would be too early for the next.
                let replication = cluster.replication.clone();
                let repaired = || replication.status().segments_under_replicated == 0;
                cluster
                    .sim
                    .run_until(repaired, Duration::from_secs(60))
                    .expect("is repaired");
            }
        }
        cluster.sim.run_for(Duration::from_millis(50));
        cluster.sim.power_loss(cluster.master);
        let one = cluster.nodes.len() - 1;
        cluster.crash(one, true);
        assert!(
            count(&acknowledged) > 50,
            "seed {seed}: {}",
            count(&acknowledged)
        );
        check(&cluster, &acknowledged, seed);
    }
}

// shows: REP-10
#[test]
fn many_appends_share_a_write() {
    let cluster = Setup::new(1).start();
    let acknowledged = start_writers(&cluster, 200, 50);
    cluster.sim.run_for(Duration::from_millis(200));
    let status = cluster.replication.status();
    assert!(
        count(&acknowledged) > 4 * status.writes,
        "REP-10: {} in {status:?}",
        count(&acknowledged)
    );
}

#[test]
fn writes_wait_for_the_needed_backups_and_say_so() {
    let mut cluster = Setup {
        backups: 1,
        ..Setup::new(2)
    }
    .start();
    let acknowledged = start_writers(&cluster, 3, 100);
    cluster.sim.run_for(Duration::from_secs(1));
    assert_eq!(count(&acknowledged), 0);
    let status = cluster.replication.status();
    assert_eq!(
        status.writes_wait.as_deref(),
        Some("2 backups are needed, 1 is up")
    );
    let process = cluster.sim.process("another");
    cluster.join(process.id, &process.env);
    cluster.sim.run_for(Duration::from_millis(100));
    let status = cluster.replication.status();
    assert!(count(&acknowledged) > 10, "{status:?}");
    assert!(
        status.segments_under_replicated > 0 && status.writes_wait.is_none(),
        "{status:?}"
    );
    let process = cluster.sim.process("a third");
    cluster.join(process.id, &process.env);
    let replication = cluster.replication.clone();
    let whole = || replication.status().segments_under_replicated == 0;
    cluster
        .sim
        .run_until(whole, Duration::from_secs(10))
        .expect("is repaired");
}

/// Three backups, of which two are needed, and writers that have been at work for a moment.
fn written_to_three_backups() -> (Cluster, Acknowledged) {
    let cluster = Setup {
        backups: 3,
        ..Setup::new(3)
    }
    .start();
    let acknowledged = start_writers(&cluster, 3, 100);
    cluster.sim.run_for(Duration::from_millis(50));
    (cluster, acknowledged)
}

// shows: REP-5
#[test]
fn a_lost_replica_is_fenced_before_writes_go_on() {
    let (mut cluster, acknowledged) = written_to_three_backups();
    let lost = cluster.crash(0, false);
    cluster.sim.run_for(Duration::from_millis(100));
    let before = count(&acknowledged);
    cluster.sim.run_for(Duration::from_millis(50));
    assert!(count(&acknowledged) > before, "two of three are enough");
    // The lost one comes back with an old head, just when the master dies.
    cluster.sim.crash(cluster.master);
    cluster.restart(lost);
    check(&cluster, &acknowledged, 3);
}

/// Its backup says that it cannot keep the replica, whatever comes.
#[test]
fn a_replica_on_a_disk_that_fails_is_given_up_and_writes_go_on() {
    let _marks = pluvio_units::Marks::to_reach(&["replica-useless"]);
    let (cluster, acknowledged) = written_to_three_backups();
    let broken = DiskFaults {
        write_error_ppm: 1_000_000,
        ..DiskFaults::default()
    };
    cluster.sim.set_disk(cluster.nodes[0].process, broken);
    cluster.sim.run_for(Duration::from_millis(100));
    let before = count(&acknowledged);
    cluster.sim.run_for(Duration::from_millis(50));
    assert!(count(&acknowledged) > before, "two of three are enough");
}

/// REP-5: two of three are needed, and one is left; then that one is lost for good.
// shows: REP-5
#[test]
fn a_lost_replica_counts_as_long_as_too_few_are_left_to_go_on() {
    let (mut cluster, acknowledged) = written_to_three_backups();
    cluster.crash(0, false);
    let before = count(&acknowledged);
    cluster.sim.run_for(Duration::from_millis(100));
    assert!(count(&acknowledged) > before, "two of three are enough");
    let second = cluster.crash(0, false);
    cluster.sim.run_for(Duration::from_millis(100));
    cluster.crash(0, true);
    cluster.sim.crash(cluster.master);
    // It has all that was acknowledged, and nothing was without it.
    cluster.restart(second);
    check(&cluster, &acknowledged, 3);
}

// shows: REP-9
#[test]
fn the_only_server_is_its_own_backup_until_others_join() {
    let mut cluster = Setup {
        backups: 0,
        alone: true,
        ..Setup::new(4)
    }
    .start();
    cluster.push_list();
    let acknowledged = start_writers(&cluster, 3, 20_000);
    cluster.sim.run_for(Duration::from_millis(50));
    assert!(count(&acknowledged) > 10);
    let own = cluster.own.clone().expect("is alone");
    assert!(own.stats().frames > 0);
    for i in 0..3 {
        let process = cluster.sim.process(&format!("joins {i}"));
        cluster.join(process.id, &process.env);
    }
    let before = count(&acknowledged);
    cluster.sim.run_for(Duration::from_secs(3));
    assert!(
        count(&acknowledged) > before + 10,
        "{:?}",
        cluster.replication.status()
    );
    assert_eq!(cluster.replication.status().segments_under_replicated, 0);
    assert!(own.stats().frames_freed > 0, "REP-9: {:?}", own.stats());
    cluster.sim.crash(cluster.master);
    check(&cluster, &acknowledged, 4);
}

/// All three replicas are needed, so nothing goes on before a useless one has a successor.
#[test]
fn a_backup_whose_disk_fails_is_replaced_by_another_one() {
    for seed in 0..4 {
        let mut cluster = Setup {
            min_replicas: 3,
            ..Setup::new(seed)
        }
        .start();
        let acknowledged = start_writers(&cluster, 3, 2_000);
        cluster.sim.run_for(Duration::from_millis(50));
        let replication = cluster.replication.clone();
        let status = || replication.status();
        let process = cluster.nodes[0].process;
        let failing = DiskFaults {
            write_error_ppm: 1_000_000,
            ..DiskFaults::default()
        };
        cluster.sim.set_disk(process, failing);
        let met = || status().write_failures > 0;
        let limit = Duration::from_secs(10);
        cluster.sim.run_until(met, limit).expect("it is written to");
        let before = count(&acknowledged);
        cluster.sim.run_for(Duration::from_millis(500));
        assert!(count(&acknowledged) > before + 10, "{:?}", status());
        // The others have all of it.
        cluster.sim.crash(cluster.master);
        cluster.crash(0, true);
        check(&cluster, &acknowledged, seed);
    }
}

/// It may have a replica of its own with the same numbers.
#[test]
fn a_server_of_another_cluster_is_given_up_and_asked_to_free_nothing() {
    let _marks = pluvio_units::Marks::to_reach(&["replica-of-another-cluster"]);
    let setup = Setup {
        backups: 3,
        ..Setup::new(8)
    };
    let mut cluster = setup.start();
    let asked = cluster.join_foreign();
    let (space, replication) = (Arc::clone(&cluster.space), cluster.replication.clone());
    cluster.run(async move { commit_and_drop(&space, &replication).await });
    cluster.sim.run_for(Duration::from_secs(2));
    let status = cluster.replication.status();
    assert_eq!(
        (status.segments_under_replicated, status.frees_pending),
        (0, 0),
        "{status:?}"
    );
    let [writes, frees] = [0, 1].map(|what| asked[what].load(Ordering::Relaxed));
    assert!(writes > 0 && frees == 0, "{writes}, {frees}");
}

/// Its replicas under the same numbers are another master's, which may need them.
// shows: BACKUP-6
#[test]
fn a_backup_of_another_cluster_is_not_told_what_is_needed() {
    let cluster = Setup::new(9).start();
    let ask = |from| {
        cluster.replication.is_replica_needed(&IsReplicaNeeded {
            cluster: from,
            backup: cluster.nodes[0].server,
            segments: vec![SegmentId(1_000_000)],
        })
    };
    let answer = ask(CLUSTER).expect("it is our own");
    assert_eq!(answer.needed, [false], "it would free this one");
    // The second one does not say whose it is.
    for other in [ClusterId(CLUSTER.0 + 1), ClusterId(0)] {
        let refusal = ask(other).expect_err("it is not ours");
        assert_eq!(refusal.fatal_kind(), Some(FatalKind::WrongCluster));
    }
}

#[test]
fn replicas_of_segments_that_left_the_log_are_freed() {
    let cluster = Setup::new(5).start();
    let (space, replication) = (Arc::clone(&cluster.space), cluster.replication.clone());
    let frames = |cluster: &Cluster| {
        cluster
            .nodes
            .iter()
            .map(|n| n.backup.stats().frames)
            .sum::<u64>()
    };
    let kept = cluster.run(async move { commit_and_drop(&space, &replication).await });
    cluster.sim.run_for(Duration::from_secs(2));
    assert!(kept > 2, "the side log had several segments");
    let segments = cluster.replication.status().segments;
    assert_eq!(
        frames(&cluster),
        3 * segments,
        "{:?}",
        cluster.replication.status()
    );
    assert!(segments < kept, "{segments} of {kept} are left");
}

#[test]
fn a_side_log_that_is_held_back_gets_its_replicas_when_it_is_closed() {
    let cluster = Setup::new(5).start();
    let (space, replication) = (Arc::clone(&cluster.space), cluster.replication.clone());
    let mut side = SideLog::new(Arc::clone(&space), LOG);
    side.hold_back();
    fill(&mut side, &space);
    let ids: Vec<_> = side.segments().iter().map(|s| s.id()).collect();
    cluster.sim.run_for(Duration::from_secs(3));
    for id in &ids {
        let durable = replication.side_segments_durable(LOG, std::slice::from_ref(id));
        assert!(durable.now_or_never().is_none(), "{id}");
    }
    cluster.run(async move {
        side.close();
        replication.side_segments_durable(LOG, &ids).await;
        assert!(side.commit().is_ok());
    });
}

/// Appends several segments.
fn fill(side: &mut SideLog, space: &pluvio_log::LogSpace) {
    for i in 0..40u64 {
        let value = vec![1; 200_000];
        let key = format!("side {i}");
        let version = ObjectVersion(1);
        let object = Object {
            table: TableId(1),
            version,
            timestamp_s: 1,
            graves: Graves::NONE,
            deadline: None,
            state: ObjectState::Plain,
            key: key.as_bytes(),
            value: &value,
        };
        let guard = space.pin();
        side.append(&[Entry::Object(object)], AppendClass::Internal, &guard)
            .expect("fits");
    }
}

/// Commits a side log of several segments, then drops it again; gives how many segments there were.
async fn commit_and_drop(space: &Arc<pluvio_log::LogSpace>, replication: &Replication) -> u64 {
    let mut side = SideLog::new(Arc::clone(space), LOG);
    fill(&mut side, space);
    let ids: Vec<_> = side.close().iter().map(|s| s.id()).collect();
    replication.side_segments_durable(LOG, &ids).await;
    let committed = side
        .commit()
        .unwrap_or_else(|refused| panic!("{}", refused.error));
    replication.synced(LOG, committed.position()).await;
    let before = replication.status().segments;
    let unknown = space.drop_committed(LOG, committed.pending());
    assert!(unknown.is_empty());
    let position = space.roll(LOG).expect("there is room");
    replication.synced(LOG, position).await;
    before
}

// shows: SRV-1
#[test]
fn a_zombie_is_told() {
    let mut cluster = Setup::new(6).start();
    let acknowledged = start_writers(&cluster, 3, 100);
    cluster.sim.run_for(Duration::from_millis(50));
    let doubt = cluster.replication.watch_doubt();
    assert_eq!(*doubt.borrow(), None);
    let found = cluster.recover().expect("is complete");
    cluster.sim.run_for(Duration::from_millis(300));
    assert!(doubt.borrow().is_some());
    for (key, version) in acknowledged.lock().expect("is not poisoned").iter() {
        assert!(
            found.get(key).is_some_and(|v| v >= version),
            "nothing is acknowledged after recovery began"
        );
    }
    cluster.push_list();
}

// shows: REP-11
#[test]
fn waiting_for_a_position_can_be_given_up() {
    let cluster = Setup {
        backups: 1,
        ..Setup::new(7)
    }
    .start();
    let position = append(&cluster.space, LOG, "key", 1, 10).expect("fits");
    let waiting = cluster.replication.synced(LOG, position);
    let clock_limit = Duration::from_millis(10);
    let given_up = cluster.sim.block_on(cluster.master, waiting, clock_limit);
    assert!(given_up.is_err());
    let past = LogPosition::default();
    let replication = cluster.replication.clone();
    cluster.run(async move { replication.synced(LOG, past).await });
}
