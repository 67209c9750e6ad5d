//! Writing, restarting and freeing, on a simulated disk.

use crate::support::{self, CLUSTER, CORE, Image, MASTER, Node, list, replicas};
use pluvio_backup::{BackupError, BackupOptions};
use pluvio_env::{
    Address, BoxFuture, Disk, DiskError, File, Frame, Handled, OpenMode, Peer, Service,
};
use pluvio_format::SegmentKind::{Head, Side};
use pluvio_format::{FRAME_SLOT_BYTES, newest_frame_header};
use pluvio_sim::DiskFaults;
use pluvio_units::{ClusterId, ReplicationEpoch, SegmentId, ServerId};
use pluvio_wire::{
    Answer, FatalKind, FreeReplica, IsReplicaNeeded, IsReplicaNeededReply, Refusal, RetryReason,
    ServerState, WriteReplica, decode, handled,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn why(result: Result<(), Refusal>) -> RetryReason {
    match result {
        Err(Refusal::Retry { why, .. }) => why,
        other => panic!("{other:?} is no retry"),
    }
}

fn kind(result: Result<(), Refusal>) -> FatalKind {
    result
        .expect_err("is refused")
        .fatal_kind()
        .expect("is final")
}

#[test]
fn replicas_survive_a_restart_as_they_were_acknowledged() {
    let mut node = Node::new(1);
    let backup = node.start();
    let (closed, open) = (Image::new(1, Side, 3), Image::new(2, Head, 4));
    node.write(&backup, closed.whole(1, Side))
        .expect("is written");
    node.write(&backup, open.request(2, Head, 0, 1))
        .expect("is written");
    node.write(&backup, open.request(2, Head, 1, 3))
        .expect("is written");
    node.sim.crash(node.process);
    node.restart();
    let backup = node.start();
    let found = replicas(&node, &backup);
    let brief: Vec<_> = found
        .iter()
        .map(|r| (r.segment.0, r.closed, r.side, r.length))
        .collect();
    assert_eq!(
        brief,
        [
            (1, true, true, closed.len()),
            (2, false, false, open.ends[2])
        ]
    );
    let head = found[1]
        .head
        .as_ref()
        .expect("an open head says what it knows");
    assert_eq!((head.logs, head.digest.len(), head.tables.len()), (1, 2, 1));
    assert!(head.has_data);
}

#[test]
fn a_head_with_nothing_behind_its_first_group_says_so() {
    let image = Image::new(2, Head, 1);
    for (groups, has_data) in [(1, false), (2, true)] {
        let node = Node::new(1);
        let backup = node.start();
        node.write(&backup, image.request(2, Head, 0, groups))
            .expect("is written");
        let found = replicas(&node, &backup);
        let head = found[0].head.as_ref().expect("it is open");
        assert_eq!(head.has_data, has_data);
    }
}

// shows: BACKUP-1, BACKUP-10
#[test]
fn a_power_loss_keeps_every_synced_write() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-last-write-cut-off"]);
    let mut fell_back = 0;
    for seed in 0..480 {
        let mut node = Node::new(seed);
        let backup = node.start();
        let image = Arc::new(Image::new(2, Head, 30));
        let acknowledged = Arc::new(std::sync::Mutex::new(0));
        let (writer, count) = (Arc::clone(&image), Arc::clone(&acknowledged));
        node.sim.spawn(node.process, "writer", async move {
            for group in 0..31 {
                let last = group == 30;
                let request = WriteReplica {
                    close: last,
                    ..writer.request(2, Head, group, group + 1)
                };
                backup
                    .write_replica(CORE, request)
                    .await
                    .expect("is written");
                *count.lock().expect("is not poisoned") = group + 1;
            }
        });
        node.sim
            .run_for(Duration::from_micros(400 + seed % 120 * 331));
        node.sim.power_loss(node.process);
        node.restart();
        let backup = node.start();
        let groups = *acknowledged.lock().expect("is not poisoned");
        let found = replicas(&node, &backup);
        let length = found.first().map_or(0, |r| r.length);
        assert!(
            groups == 0 || length >= image.ends[groups - 1],
            "seed {seed}: {length} bytes, {groups} groups"
        );
        let is_end = length == 0 || image.ends.contains(&length);
        assert!(is_end, "BACKUP-1, seed {seed}");
        assert!(
            groups == 0 || backup.stats().frames_damaged == 0,
            "seed {seed}"
        );
        fell_back += usize::from(groups > 0 && length == image.ends[groups - 1]);
    }
    assert!(fell_back > 10, "the test reaches writes that were cut off");
}

/// A process ends at any moment of a head's life, also between a write and its sync. A recovery
/// begins with the replicas that the next process lists, and has to find them until it ends.
// shows: COORD-13
#[test]
fn replicas_that_were_listed_once_survive_a_loss_of_power() {
    let listed = |node: &Node| {
        let found = replicas(node, &node.start());
        let brief = found.iter().map(|r| (r.segment.0, r.closed, r.length));
        brief.collect::<Vec<_>>()
    };
    let (mut open, mut closed) = (0, 0);
    for seed in 0..150 {
        let mut node = Node::new(seed);
        let backup = node.start();
        let image = Image::new(2, Head, 2);
        node.sim.spawn(node.process, "writer", async move {
            for group in 0..2 {
                let request = WriteReplica {
                    close: group == 1,
                    ..image.request(2, Head, group, group + 1)
                };
                backup
                    .write_replica(CORE, request)
                    .await
                    .expect("is written");
            }
        });
        node.sim.run_for(Duration::from_micros(10 * seed));
        node.sim.crash(node.process);
        node.restart();
        let before = listed(&node);
        node.sim.power_loss(node.process);
        node.restart();
        assert_eq!(listed(&node), before, "seed {seed}");
        open += before.iter().filter(|(_, closed, _)| !closed).count();
        closed += before.iter().filter(|(_, closed, _)| *closed).count();
    }
    assert!(open > 10 && closed > 10, "{open} open, {closed} closed");
}

// shows: BACKUP-1
#[test]
fn a_full_disk_changes_nothing_that_counts() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-disk-full"]);
    let node = Node::new(3);
    let backup = node.start();
    let image = Image::new(2, Head, 40);
    node.write(&backup, image.request(2, Head, 0, 1))
        .expect("is written");
    let capacity = Some(node.sim.disk_used(node.process) + 1000);
    node.sim.set_disk(
        node.process,
        DiskFaults {
            capacity,
            ..DiskFaults::default()
        },
    );
    assert_eq!(
        why(node.write(&backup, image.request(2, Head, 1, 41))),
        RetryReason::NoSpace
    );
    let other = Image::new(3, Head, 40);
    assert_eq!(
        why(node.write(&backup, other.request(3, Head, 0, 41))),
        RetryReason::NoSpace
    );
    assert_eq!(
        node.frames().len(),
        1,
        "a frame that could not be opened is gone"
    );
    assert_eq!(backup.stats().frames, 1);
    node.sim.set_disk(node.process, DiskFaults::default());
    node.write(&backup, image.request(2, Head, 1, 41))
        .expect("there is room again");
    node.write(&backup, other.request(3, Head, 0, 41))
        .expect("there is room again");
    assert_eq!(
        replicas(&node, &backup)
            .iter()
            .map(|r| r.length)
            .collect::<Vec<_>>(),
        [image.len(), other.len()]
    );
    // BACKUP-12: what the first try left could be taken for sectors of the second one.
    let area = node
        .sim
        .file_content(node.process, "frames/0000000000000003-0000000000000002");
    let header = newest_frame_header(&area.expect("is there")).expect("is a header");
    assert!(header.has_remains);
}

/// A disk of a process that may open no more files, or no more directories, while that is said.
struct FilesRunOut {
    disk: Arc<dyn Disk>,
    files: Arc<AtomicBool>,
    directories: Arc<AtomicBool>,
}

fn check(run_out: &AtomicBool, path: &str) -> Result<(), DiskError> {
    let path = path.to_owned();
    match run_out.load(Ordering::Relaxed) {
        true => Err(DiskError::TooManyFiles { path }),
        false => Ok(()),
    }
}

impl Disk for FilesRunOut {
    fn open(&self, path: &str, mode: OpenMode) -> BoxFuture<'_, Result<Arc<dyn File>, DiskError>> {
        match check(&self.files, path) {
            Ok(()) => self.disk.open(path, mode),
            Err(error) => Box::pin(async move { Err(error) }),
        }
    }

    fn remove(&self, path: &str) -> BoxFuture<'_, Result<(), DiskError>> {
        self.disk.remove(path)
    }

    fn rename(&self, from: &str, to: &str) -> BoxFuture<'_, Result<(), DiskError>> {
        self.disk.rename(from, to)
    }

    fn list(&self, directory: &str) -> BoxFuture<'_, Result<Vec<String>, DiskError>> {
        self.disk.list(directory)
    }

    fn sync_directory(&self, directory: &str) -> BoxFuture<'_, Result<(), DiskError>> {
        match check(&self.directories, directory) {
            Ok(()) => self.disk.sync_directory(directory),
            Err(error) => Box::pin(async move { Err(error) }),
        }
    }

    fn boot(&self) -> u64 {
        self.disk.boot()
    }
}

// shows: BACKUP-1
#[test]
fn a_process_without_files_to_open_loses_no_replica() {
    let mut node = Node::new(3);
    let (files, directories) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    node.env.disk = Arc::new(FilesRunOut {
        disk: Arc::clone(&node.env.disk),
        files: Arc::clone(&files),
        directories: Arc::clone(&directories),
    });
    let backup = node.start();
    let image = Image::new(2, Head, 10);
    node.write(&backup, image.request(2, Head, 0, 1))
        .expect("is written");
    files.store(true, Ordering::Relaxed);
    // Its file is open.
    node.write(&backup, image.request(2, Head, 1, 5))
        .expect("is written");
    let other = Image::new(3, Head, 10);
    let synced = |synced| WriteReplica {
        synced,
        ..other.request(3, Head, 0, 11)
    };
    let refused = |request| assert_eq!(why(node.write(&backup, request)), RetryReason::NoSpace);
    refused(synced(false));
    files.store(false, Ordering::Relaxed);
    directories.store(true, Ordering::Relaxed);
    refused(synced(true));
    let stats = backup.stats();
    assert_eq!((stats.frames, stats.frames_damaged), (1, 0));
    assert_eq!(node.frames().len(), 1);
    directories.store(false, Ordering::Relaxed);
    node.write(&backup, synced(true)).expect("is written");
    node.write(&backup, image.request(2, Head, 5, 11))
        .expect("is written");
    let found = replicas(&node, &backup);
    let lengths: Vec<_> = found.iter().map(|r| r.length).collect();
    assert_eq!(lengths, [image.len(), other.len()]);
}

// shows: BACKUP-9
#[test]
fn open_frames_and_bytes_are_bounded() {
    let node = Node::new(4);
    let backup = node.start_with(BackupOptions {
        open_frames_max: 2,
        frame_bytes_max: 15_000,
        ..BackupOptions::default()
    });
    let image = Image::new(2, Head, 30);
    for segment in [2, 3] {
        node.write(
            &backup,
            Image::new(segment, Head, 30).request(segment, Head, 0, 1),
        )
        .expect("is opened");
    }
    assert_eq!(
        why(node.write(&backup, image.request(4, Head, 0, 1))),
        RetryReason::NoSpace
    );
    node.write(
        &backup,
        WriteReplica {
            close: true,
            ..image.request(2, Head, 1, 31)
        },
    )
    .expect("is closed");
    node.write(&backup, Image::new(4, Head, 30).request(4, Head, 0, 1))
        .expect("one was closed");
    node.write(
        &backup,
        WriteReplica {
            close: true,
            ..Image::new(4, Head, 30).request(4, Head, 1, 31)
        },
    )
    .expect("is closed");
    assert_eq!(backup.stats().frames_open, 1);
    let refused = node.write(&backup, Image::new(5, Head, 0).request(5, Head, 0, 1));
    assert_eq!(
        why(refused),
        RetryReason::NoSpace,
        "BACKUP-9: {:?}",
        backup.stats()
    );
    assert_eq!(backup.stats().refused_no_space, 2);
}

// shows: BACKUP-5, SRV-1
#[test]
fn only_masters_that_are_up_may_write() {
    let node = Node::new(5);
    let backup = node.try_start(BackupOptions::default()).expect("starts");
    let request = Image::new(2, Head, 1).request(2, Head, 0, 1);
    assert_eq!(
        why(node.write(&backup, request.clone())),
        RetryReason::NotServing,
        "BACKUP-5: no list yet"
    );
    let backup = node.start();
    let from = |id| WriteReplica {
        master: ServerId(id),
        ..request.clone()
    };
    assert_eq!(
        why(node.write(&backup, from(9))),
        RetryReason::NotServing,
        "may have joined since"
    );
    assert_eq!(kind(node.write(&backup, from(2))), FatalKind::NotInCluster);
    let foreign = WriteReplica {
        cluster: ClusterId(1),
        ..request.clone()
    };
    assert_eq!(kind(node.write(&backup, foreign)), FatalKind::WrongCluster);
    backup.server_list_changed(&list(2, &[(1, ServerState::Up), (3, ServerState::Crashed)]));
    assert_eq!(kind(node.write(&backup, request)), FatalKind::NotInCluster);
    assert_eq!(backup.stats().frames, 0);
}

/// It may have the same id and the same segments. Who names no cluster may be of any.
// shows: BACKUP-5
#[test]
fn a_master_of_another_cluster_frees_nothing() {
    let node = Node::new(5);
    let backup = node.start();
    node.write(&backup, Image::new(2, Head, 1).request(2, Head, 0, 1))
        .expect("is written");
    for cluster in [ClusterId(1), ClusterId(0)] {
        let free = FreeReplica {
            cluster,
            master: MASTER,
            segment: SegmentId(2),
        };
        let asked = backup.clone();
        let freed = node.run(async move { asked.free_replica(CORE, free).await });
        assert_eq!(kind(freed), FatalKind::WrongCluster);
    }
    assert_eq!((backup.stats().frames, node.frames().len()), (1, 1));
}

// shows: BACKUP-4, SRV-1
#[test]
fn recovery_fences_the_master_also_for_writes_under_way() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-refuses-zombie"]);
    for seed in 0..30 {
        let node = Node::new(seed);
        let backup = node.start();
        let image = Arc::new(Image::new(2, Head, 20));
        node.write(&backup, image.request(2, Head, 0, 1))
            .expect("is written");
        let (writer, zombie) = (Arc::clone(&image), backup.clone());
        node.sim.spawn(node.process, "zombie", async move {
            for group in 1..21 {
                if zombie
                    .write_replica(CORE, writer.request(2, Head, group, group + 1))
                    .await
                    .is_err()
                {
                    return;
                }
            }
        });
        node.sim.run_for(Duration::from_micros(seed * 91));
        let before = replicas(&node, &backup)[0].length;
        node.sim.run_for(Duration::from_millis(50));
        assert_eq!(
            replicas(&node, &backup)[0].length,
            before,
            "BACKUP-4, seed {seed}"
        );
        assert_eq!(
            kind(node.write(&backup, image.request(2, Head, 0, 21))),
            FatalKind::Stale
        );
        let free = FreeReplica {
            cluster: CLUSTER,
            master: MASTER,
            segment: SegmentId(2),
        };
        let zombie = backup.clone();
        let freed = node.run(async move { zombie.free_replica(CORE, free).await });
        assert_eq!(kind(freed), FatalKind::Stale);
        assert_eq!(replicas(&node, &backup).len(), 1, "BACKUP-4");
    }
}

// shows: BACKUP-2, REP-7
#[test]
fn a_replacement_is_invisible_until_it_is_complete() {
    let mut node = Node::new(6);
    let backup = node.start();
    let image = Image::new(2, Side, 10);
    let part = WriteReplica {
        rewriting: true,
        ..image.request(2, Side, 0, 5)
    };
    node.write(&backup, part.clone()).expect("is written");
    assert_eq!(
        node.frames(),
        ["frames/0000000000000003-0000000000000002.new"]
    );
    node.sim.crash(node.process);
    node.restart();
    let backup = node.start();
    assert_eq!(backup.stats().frames, 0, "BACKUP-2");
    node.write(&backup, part.clone()).expect("begins anew");
    node.write(
        &backup,
        WriteReplica {
            close: true,
            ..image.request(2, Side, 5, 11)
        },
    )
    .expect("completes");
    node.write(&backup, part).expect("a late copy does no harm");
    let found = replicas(&node, &backup);
    assert_eq!(
        (found.len(), found[0].closed, found[0].length),
        (1, true, image.len()),
        "BACKUP-3"
    );
}

// shows: BACKUP-2
#[test]
fn a_replica_of_a_former_life_stays_until_its_replacement_is_complete() {
    let mut node = Node::new(7);
    let backup = node.start();
    let image = Image::new(2, Head, 10);
    node.write(&backup, image.request(2, Head, 0, 3))
        .expect("is written");
    node.sim.crash(node.process);
    node.restart();
    let backup = node.start();
    let epoch = ReplicationEpoch(1);
    node.write(
        &backup,
        WriteReplica {
            rewriting: true,
            epoch,
            ..image.request(2, Head, 0, 6)
        },
    )
    .expect("is written");
    assert_eq!((backup.stats().frames, backup.stats().frames_found), (2, 1));
    node.write(
        &backup,
        WriteReplica {
            epoch,
            ..image.request(2, Head, 6, 8)
        },
    )
    .expect("completes");
    assert_eq!((backup.stats().frames, backup.stats().frames_found), (1, 0));
    let found = replicas(&node, &backup);
    assert_eq!((found[0].length, found[0].epoch), (image.ends[7], epoch));
}

// shows: BACKUP-3
#[test]
fn a_write_of_an_earlier_replication_epoch_is_refused() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-refuses-old-epoch"]);
    let node = Node::new(7);
    let backup = node.start();
    let image = Image::new(2, Head, 10);
    let write = |epoch, from, to| {
        let request = WriteReplica {
            epoch: ReplicationEpoch(epoch),
            ..image.request(2, Head, from, to)
        };
        node.write(&backup, request)
    };
    write(1, 0, 3).expect("is written");
    assert_eq!(kind(write(0, 3, 5)), FatalKind::Stale);
    write(1, 3, 5).expect("is written");
    assert_eq!(replicas(&node, &backup)[0].length, image.ends[4]);
}

// shows: BACKUP-3
#[test]
fn a_freed_replica_is_not_opened_again_by_a_late_write() {
    let node = Node::new(8);
    let backup = node.start();
    let open = Image::new(2, Head, 1).request(2, Head, 0, 1);
    node.write(&backup, open.clone()).expect("is written");
    let free = FreeReplica {
        cluster: CLUSTER,
        master: MASTER,
        segment: SegmentId(2),
    };
    for _ in 0..2 {
        let (backup, free) = (backup.clone(), free.clone());
        node.run(async move { backup.free_replica(CORE, free).await })
            .expect("is freed");
    }
    assert_eq!(
        kind(node.write(&backup, open)),
        FatalKind::NotFound,
        "BACKUP-3"
    );
    assert!(node.frames().is_empty());
    assert_eq!(
        (
            backup.stats().frames,
            backup.stats().frame_bytes,
            backup.stats().frames_freed
        ),
        (0, 0, 1)
    );
}

// shows: BACKUP-6
#[test]
fn replicas_of_masters_that_left_are_freed_and_those_of_crashed_ones_kept() {
    let mut node = Node::new(9);
    let backup = node.start();
    for segment in 1..20 {
        node.write(&backup, Image::new(segment, Side, 3).whole(segment, Side))
            .expect("is written");
    }
    node.sim.crash(node.process);
    node.restart();
    let backup = node.start();
    node.sim.run_for(Duration::from_secs(3));
    assert_eq!(
        backup.stats().frames,
        19,
        "BACKUP-6: the master is up and cannot be asked"
    );
    backup.server_list_changed(&list(
        2,
        &[
            (1, ServerState::Up),
            (3, ServerState::Crashed),
            (4, ServerState::Up),
        ],
    ));
    node.sim.run_for(Duration::from_secs(3));
    assert_eq!(
        backup.stats().frames,
        19,
        "BACKUP-6: needed for its recovery"
    );
    backup.server_list_changed(&list(3, &[(1, ServerState::Up), (4, ServerState::Up)]));
    node.sim.run_for(Duration::from_secs(3));
    assert_eq!((backup.stats().frames, node.frames().len()), (0, 0));
}

/// Needs segments with an even number, if it is asked in its cluster.
struct Master(ClusterId);

impl Service for Master {
    fn handle(&self, _peer: Peer, request: Frame) -> Handled {
        let (_, question) = decode::<IsReplicaNeeded>(&request).expect("is that question");
        if question.cluster != self.0 {
            let refusal = Refusal::fatal(FatalKind::WrongCluster, "another cluster");
            return handled::<IsReplicaNeeded>(Answer::Now(Err(refusal)));
        }
        let needed = question.segments.iter().map(|s| s.0 % 2 == 0).collect();
        handled::<IsReplicaNeeded>(Answer::Now(Ok(IsReplicaNeededReply { needed })))
    }
}

/// The replicas that are left of 1 to 19 of a former life, and of two new ones. The master of this
/// cluster was asked about them.
fn left_by_master_of(cluster: ClusterId) -> Vec<u64> {
    let mut node = Node::new(10);
    let backup = node.start();
    for segment in 1..20 {
        node.write(&backup, Image::new(segment, Side, 3).whole(segment, Side))
            .expect("is written");
    }
    node.sim.crash(node.process);
    node.restart();
    let master = node.sim.process("master");
    let network = Arc::clone(&master.env.network);
    let _port = node
        .sim
        .block_on(
            master.id,
            async move {
                network
                    .listen(&Address::from("server-3"), Arc::new(Master(cluster)))
                    .await
            },
            Duration::from_secs(1),
        )
        .expect("ends")
        .expect("listens");
    let backup = node.start();
    node.write(&backup, Image::new(100, Side, 3).whole(100, Side))
        .expect("is written");
    node.write(&backup, Image::new(101, Side, 3).whole(101, Side))
        .expect("is written");
    node.sim.run_for(Duration::from_secs(5));
    let left = replicas(&node, &backup);
    left.iter().map(|r| r.segment.0).collect()
}

// shows: BACKUP-6
#[test]
fn a_master_that_is_up_is_asked_about_replicas_of_a_former_life() {
    let left = left_by_master_of(CLUSTER);
    assert_eq!(left, [2, 4, 6, 8, 10, 12, 14, 16, 18, 100, 101], "BACKUP-6");
}

// shows: BACKUP-6
#[test]
fn what_another_cluster_s_master_does_not_need_stays() {
    assert_eq!(left_by_master_of(ClusterId(1)).len(), 21);
}

#[test]
fn frames_of_another_cluster_are_refused_and_left_alone() {
    let mut node = Node::new(11);
    let backup = node.start();
    node.write(&backup, Image::new(2, Head, 1).request(2, Head, 0, 1))
        .expect("is written");
    node.sim.crash(node.process);
    node.restart();
    let options = BackupOptions {
        cluster: Some(ClusterId(1)),
        ..BackupOptions::default()
    };
    assert!(matches!(
        node.try_start(options),
        Err(BackupError::ForeignCluster { .. })
    ));
    let backup = node
        .try_start(BackupOptions::default())
        .expect("learns the cluster from its frames");
    assert_eq!(backup.cluster(), Some(support::CLUSTER));
    assert!(backup.enlisted(ServerId(1), ClusterId(1)).is_err());
    assert_eq!(node.frames().len(), 1);
}

#[test]
fn many_writers_share_a_sync() {
    let node = Node::new(12);
    let backup = node.start();
    let before = backup.stats().sync_rounds;
    let all = (1..=40u64).map(|segment| {
        let backup = backup.clone();
        async move {
            backup
                .write_replica(
                    CORE,
                    Image::new(segment, Head, 1).request(segment, Head, 0, 2),
                )
                .await
        }
    });
    let all = futures_util::future::join_all(all.collect::<Vec<_>>());
    node.run(async move { all.await.into_iter().for_each(|r| r.expect("is written")) });
    assert!(
        backup.stats().sync_rounds - before <= 10,
        "{:?}",
        backup.stats()
    );
}

// shows: DIR-1
#[test]
fn a_failing_disk_loses_the_replica_and_says_so() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-disk-failed"]);
    let node = Node::new(13);
    let backup = node.start();
    let image = Image::new(2, Head, 5);
    node.write(&backup, image.request(2, Head, 0, 1))
        .expect("is written");
    node.sim.set_disk(
        node.process,
        DiskFaults {
            sync_error_ppm: 1_000_000,
            ..DiskFaults::default()
        },
    );
    assert_eq!(
        kind(node.write(&backup, image.request(2, Head, 1, 3))),
        FatalKind::Corrupt
    );
    node.sim.set_disk(node.process, DiskFaults::default());
    assert_eq!(
        kind(node.write(&backup, image.request(2, Head, 1, 3))),
        FatalKind::Corrupt,
        "a later sync proves nothing"
    );
    assert_eq!(backup.stats().frames_damaged, 1);
    assert!(replicas(&node, &backup).is_empty());
}

/// Of a new frame also the name must survive.
// shows: DIR-1
#[test]
fn a_directory_that_could_not_be_synced_takes_no_frames_any_more() {
    let mut node = Node::new(15);
    let backup = node.start();
    let open = |segment| Image::new(segment, Head, 1).request(segment, Head, 0, 1);
    node.write(&backup, open(1)).expect("is written");
    let failing = DiskFaults {
        sync_error_ppm: 1_000_000,
        ..DiskFaults::default()
    };
    node.sim.set_disk(node.process, failing);
    assert_eq!(kind(node.write(&backup, open(2))), FatalKind::Corrupt);
    node.sim.set_disk(node.process, DiskFaults::default());
    assert_eq!(
        kind(node.write(&backup, open(3))),
        FatalKind::Corrupt,
        "a later sync proves nothing"
    );
    let more = Image::new(1, Head, 1).request(1, Head, 1, 2);
    node.write(&backup, more).expect("its name is there");
    node.sim.crash(node.process);
    node.restart();
    node.write(&node.start(), open(3)).expect("begins anew");
}

/// Its checksum is right, and no number comes after its sequence number.
#[test]
fn a_header_that_nobody_wrote_is_damage() {
    let mut node = Node::new(16);
    let backup = node.start();
    node.write(&backup, Image::new(2, Head, 1).request(2, Head, 0, 1))
        .expect("is written");
    drop(backup);
    node.rewrite("frames/0000000000000003-0000000000000002", |file| {
        let mut header = newest_frame_header(file).expect("it was written");
        header.sequence = u64::MAX;
        let at = header.slot() * FRAME_SLOT_BYTES;
        file[at..at + FRAME_SLOT_BYTES].copy_from_slice(&header.encode());
    });
    node.sim.crash(node.process);
    node.restart();
    assert_eq!(node.start().stats().frames_damaged, 1);
}
