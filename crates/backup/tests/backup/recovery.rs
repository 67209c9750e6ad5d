//! Recovery data, on a simulated disk.

use crate::support::{CORE, Image, MASTER, Node, SEED};
use pluvio_backup::{Backup, BackupOptions};
use pluvio_format::SegmentKind::{Head, Side};
use pluvio_format::{Check, Entry, Parsed};
use pluvio_units::{HashRange, KeyHash, RecoveryId, SegmentId, TableId};
use pluvio_wire::{
    FatalKind, GetRecoveryData, GetRecoveryDataReply, LogEnd, Refusal, RetryReason, SetPartitions,
    StartRecovery, TabletSpec, WriteReplica,
};
use std::collections::BTreeSet;

fn halves() -> Vec<Vec<TabletSpec>> {
    let tablet = |range| {
        vec![TabletSpec {
            table: TableId(1),
            seed: SEED,
            hash: pluvio_units::HashKind::Seeded,
            range,
            since: SegmentId(0),
            quota: pluvio_wire::TableQuota::NONE,
            class: None,
        }]
    };
    HashRange::ALL.split(2).into_iter().map(tablet).collect()
}

fn set(
    node: &Node,
    backup: &Backup,
    recovery: u64,
    partitions: Vec<Vec<TabletSpec>>,
) -> Result<(), Refusal> {
    let (backup, recovery) = (backup.clone(), RecoveryId(recovery));
    let request = SetPartitions {
        recovery,
        crashed: MASTER,
        partitions,
        ends: Vec::new(),
    };
    node.run(async move { backup.set_partitions(CORE, request).await })
}

fn fetch(recovery: u64, segment: u64, partition: u32) -> GetRecoveryData {
    GetRecoveryData {
        recovery: RecoveryId(recovery),
        crashed: MASTER,
        segment: SegmentId(segment),
        partition,
    }
}

fn get(
    node: &Node,
    backup: &Backup,
    request: GetRecoveryData,
) -> Result<GetRecoveryDataReply, Refusal> {
    let backup = backup.clone();
    node.run(async move { backup.get_recovery_data(CORE, request).await })
}

/// Keys of objects, number of tombstones, number of safe versions. Each object has a completion
/// record.
fn read(reply: &GetRecoveryDataReply) -> (BTreeSet<Vec<u8>>, usize, usize) {
    let (mut keys, mut tombstones, mut safe, mut entries) = (BTreeSet::new(), 0, 0, 0);
    let mut horizons = 0;
    let (mut hashes, mut completions) = (BTreeSet::new(), BTreeSet::new());
    let mut rest = &reply.data[..];
    while !rest.is_empty() {
        let parsed = Parsed::read(rest, Check::Checksum).expect("is a whole entry");
        rest = &rest[parsed.head.total_len()..];
        entries += 1;
        match parsed.entry {
            Entry::Object(object) => {
                hashes.insert(KeyHash::of(SEED, object.key));
                assert!(keys.insert(object.key.to_vec()));
            }
            Entry::Tombstone(_) => tombstones += 1,
            Entry::SafeVersion(_) => safe += 1,
            Entry::Horizon(_) => horizons += 1,
            Entry::Completion(completion) => assert!(completions.insert(completion.hash)),
            Entry::SegmentHeader(_) | Entry::LogDigest(_) | Entry::TableStats(_) => {
                panic!("of no use to a recovery master")
            }
        }
    }
    assert_eq!(entries, reply.entries);
    assert_eq!(horizons, safe, "both go to all");
    assert_eq!(completions, hashes, "a record goes where its object goes");
    (keys, tombstones, safe)
}

// shows: STORE-1
#[test]
fn each_entry_goes_to_its_partition_and_safe_versions_to_all() {
    let node = Node::new(1);
    let backup = node.start();
    node.write(&backup, Image::new(2, Head, 50).whole(2, Head))
        .expect("is written");
    set(&node, &backup, 1, halves()).expect("is set");
    let mut all = BTreeSet::new();
    for (partition, range) in (0..).zip(HashRange::ALL.split(2)) {
        let (keys, tombstones, safe) =
            read(&get(&node, &backup, fetch(1, 2, partition)).expect("is there"));
        assert_eq!((tombstones, safe), (keys.len(), 1));
        assert!(
            keys.iter()
                .all(|key| range.contains(KeyHash::of(SEED, key)))
        );
        assert!(keys.len() > 5, "both halves get some");
        all.extend(keys);
    }
    assert_eq!(all.len(), 50);
    assert_eq!(
        backup.stats().recovery_reads,
        1,
        "one pass serves all partitions"
    );
}

// shows: COORD-13
#[test]
fn a_log_ends_where_the_coordinator_says() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-cuts-at-end-of-log"]);
    let node = Node::new(1);
    let backup = node.start();
    let image = Image::new(2, Head, 50);
    node.write(&backup, image.whole(2, Head))
        .expect("is written");
    // Behind the head's first group and 20 of its objects.
    let length = image.ends[20];
    let end = |length| SetPartitions {
        recovery: RecoveryId(u64::from(length)),
        crashed: MASTER,
        partitions: vec![halves().concat()],
        ends: vec![LogEnd {
            log: pluvio_units::LogId(0),
            segment: SegmentId(2),
            length,
        }],
    };
    let set = |length| {
        let (backup, request) = (backup.clone(), end(length));
        node.run(async move { backup.set_partitions(CORE, request).await })
    };
    set(length).expect("is set");
    let found = get(&node, &backup, fetch(u64::from(length), 2, 0)).expect("is there");
    assert_eq!(read(&found).0.len(), 20);
    // It does not have as much.
    let more = image.bytes.len() as u32 + 1;
    set(more).expect("is set");
    let missing = get(&node, &backup, fetch(u64::from(more), 2, 0)).unwrap_err();
    assert_eq!(missing.fatal_kind(), Some(FatalKind::NotFound));
}

#[test]
fn tables_that_nobody_recovers_are_left_out() {
    let node = Node::new(2);
    let backup = node.start();
    node.write(&backup, Image::new(2, Side, 50).whole(2, Side))
        .expect("is written");
    let other = TabletSpec {
        table: TableId(2),
        seed: SEED,
        hash: pluvio_units::HashKind::Seeded,
        range: HashRange::ALL,
        since: SegmentId(0),
        quota: pluvio_wire::TableQuota::NONE,
        class: None,
    };
    set(&node, &backup, 1, vec![vec![other], vec![]]).expect("is set");
    for partition in 0..2 {
        let reply = get(&node, &backup, fetch(1, 2, partition)).expect("is there");
        assert_eq!((reply.entries, reply.data.len()), (0, 0));
    }
}

/// The tablet came back to the crashed master when segment 5 was to be its next one.
// shows: MIG-6
#[test]
fn entries_of_an_earlier_stay_are_left_out() {
    let node = Node::new(5);
    let backup = node.start();
    for segment in [4, 5, 6] {
        let image = Image::new(segment, Side, 50);
        node.write(&backup, image.whole(segment, Side))
            .expect("is written");
    }
    let mut partitions = halves();
    partitions[0][0].since = SegmentId(5);
    set(&node, &backup, 1, partitions).expect("is set");
    for segment in [4, 5, 6] {
        let of = |partition| {
            let reply = get(&node, &backup, fetch(1, segment, partition));
            read(&reply.expect("is there")).0.len()
        };
        assert_eq!(of(0) > 0, segment >= 5, "segment {segment}");
        assert!(of(1) > 0, "the other tablet was here all the time");
    }
}

/// The file of segment 2 of the master.
const FRAME: &str = "frames/0000000000000003-0000000000000002";

/// BACKUP-7: nobody gets anything of segment 2, and it is not offered again.
fn check_that_it_is_damaged(node: &Node, backup: &Backup) {
    set(node, backup, 1, halves()).expect("is set");
    for partition in 0..2 {
        let refused = get(node, backup, fetch(1, 2, partition)).expect_err("is damaged");
        assert_eq!(refused.fatal_kind(), Some(FatalKind::Corrupt), "BACKUP-7");
    }
    assert_eq!(backup.stats().frames_damaged, 1);
    let listed = backup.clone();
    let listed = node
        .run(async move { listed.start_recovery(StartRecovery::of(MASTER)).await })
        .expect("lists");
    assert_eq!((listed.replicas.len(), listed.damaged.len()), (0, 1));
}

// shows: BACKUP-7
#[test]
fn a_damaged_replica_gives_nothing_and_is_counted() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-replica-damaged"]);
    let node = Node::new(3);
    let backup = node.start();
    let image = Image::new(2, Side, 50);
    node.write(&backup, image.whole(2, Side))
        .expect("is written");
    let bit = u64::from(4096 + image.ends[30] + 20) * 8;
    assert!(node.sim.flip_bit(node.process, FRAME, bit));
    check_that_it_is_damaged(&node, &backup);
}

/// A loss of power may leave a header whose bytes are gone.
// shows: BACKUP-7
#[test]
fn a_replica_that_is_shorter_than_its_header_says_is_not_offered_again() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-replica-damaged"]);
    let node = Node::new(3);
    let backup = node.start();
    let image = Image::new(2, Head, 50);
    node.write(&backup, image.whole(2, Head))
        .expect("is written");
    node.rewrite(FRAME, |file| file.truncate(4096 + image.ends[30] as usize));
    check_that_it_is_damaged(&node, &backup);
}

/// A device may give zeros where bytes of a file that became longer are lost.
// shows: BACKUP-7
#[test]
fn a_replica_whose_end_is_zeros_is_damaged() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-replica-damaged"]);
    let node = Node::new(3);
    let backup = node.start();
    let image = Image::new(2, Head, 50);
    node.write(&backup, image.whole(2, Head))
        .expect("is written");
    node.rewrite(FRAME, |file| file[4096 + image.ends[49] as usize..].fill(0));
    check_that_it_is_damaged(&node, &backup);
}

/// Recovery reads all of a file at once.
// shows: BACKUP-9
#[test]
fn a_closed_frame_longer_than_any_that_is_written_is_damaged() {
    let options = BackupOptions {
        segment_bytes: 64 << 10,
        ..BackupOptions::default()
    };
    let mut node = Node::new(6);
    let backup = node.start_with(options.clone());
    let image = Image::new(2, Head, 3);
    node.write(&backup, image.request(2, Head, 0, 1))
        .expect("is written");
    let rest = WriteReplica {
        close: true,
        ..image.request(2, Head, 1, 4)
    };
    node.write(&backup, rest).expect("is written");
    drop(backup);
    let mut damaged = |bytes: usize| {
        node.rewrite(FRAME, |file| file.resize(4096 + bytes, 0));
        node.sim.crash(node.process);
        node.restart();
        node.start_with(options.clone()).stats().frames_damaged
    };
    let most = 8 * options.segment_bytes;
    assert_eq!([damaged(most), damaged(most + 1)], [0, 1]);
}

/// The header before it says that the frame is open: taken for the head, it would end the log
/// there.
#[test]
fn a_closed_frame_whose_newest_header_is_damaged_is_no_open_one() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-damaged-frame"]);
    for slot in 0..2 {
        let mut node = Node::new(3);
        let backup = node.start();
        let image = Image::new(2, Head, 10);
        node.write(&backup, image.request(2, Head, 0, 4))
            .expect("is written");
        let rest = WriteReplica {
            close: true,
            ..image.request(2, Head, 4, image.ends.len())
        };
        node.write(&backup, rest).expect("is written");
        drop(backup);
        node.sim.crash(node.process);
        let bit = slot * 512 * 8 + 300;
        let frame = "frames/0000000000000003-0000000000000002";
        assert!(node.sim.flip_bit(node.process, frame, bit));
        node.restart();
        let backup = node.start();
        let listed = node
            .run(async move { backup.start_recovery(StartRecovery::of(MASTER)).await })
            .expect("lists");
        let counts = (listed.replicas.len(), listed.damaged.len());
        assert_eq!(counts, (0, 1), "slot {slot}");
    }
}

// shows: BACKUP-1
#[test]
fn uncertified_bytes_are_not_recovered() {
    let node = Node::new(4);
    let backup = node.start();
    let image = Image::new(2, Head, 10);
    let certified = image.ends[4];
    node.write(
        &backup,
        WriteReplica {
            certified,
            ..image.request(2, Head, 0, 11)
        },
    )
    .expect("is written");
    set(&node, &backup, 1, vec![halves().concat()]).expect("is set");
    let (keys, ..) = read(&get(&node, &backup, fetch(1, 2, 0)).expect("is there"));
    assert_eq!(keys.len(), 4, "BACKUP-1");
}

// shows: REC-5
#[test]
fn attempts_follow_one_another() {
    let node = Node::new(5);
    let backup = node.start();
    node.write(&backup, Image::new(2, Side, 5).whole(2, Side))
        .expect("is written");
    let early = get(&node, &backup, fetch(1, 2, 0)).expect_err("no partitions yet");
    assert!(matches!(
        early,
        Refusal::Retry {
            why: RetryReason::NotReady,
            ..
        }
    ));
    set(&node, &backup, 2, halves()).expect("is set");
    set(&node, &backup, 2, halves()).expect("may be repeated");
    assert_eq!(
        set(&node, &backup, 1, halves())
            .expect_err("is over")
            .fatal_kind(),
        Some(FatalKind::Stale)
    );
    assert_eq!(
        get(&node, &backup, fetch(1, 2, 0))
            .expect_err("is over")
            .fatal_kind(),
        Some(FatalKind::Stale)
    );
    assert_eq!(
        get(&node, &backup, fetch(2, 9, 0))
            .expect_err("no such")
            .fatal_kind(),
        Some(FatalKind::NotFound)
    );
    assert_eq!(
        get(&node, &backup, fetch(2, 2, 7))
            .expect_err("no such")
            .fatal_kind(),
        Some(FatalKind::NotFound)
    );
    get(&node, &backup, fetch(2, 2, 1)).expect("is there");
    set(&node, &backup, 3, vec![halves().concat()]).expect("is set");
    let (keys, ..) = read(&get(&node, &backup, fetch(3, 2, 0)).expect("is there"));
    assert_eq!(keys.len(), 5, "data of the earlier attempt is dropped");
}

// shows: BACKUP-8, BACKUP-9
#[test]
fn a_buffer_that_is_too_small_makes_recovery_slow_not_stuck() {
    let node = Node::new(6);
    let options = BackupOptions {
        recovery_buffer_bytes: 1,
        recovery_reads_max: 1,
        ..BackupOptions::default()
    };
    let backup = node.start_with(options);
    for segment in 1..=10 {
        node.write(&backup, Image::new(segment, Side, 40).whole(segment, Side))
            .expect("is written");
    }
    set(&node, &backup, 1, halves()).expect("is set");
    let fetches = (0..2u32).flat_map(|partition| {
        let backup = backup.clone();
        // Each partition goes through the segments in its own order.
        (1..=10u64).map(move |i| {
            let (backup, segment) = (backup.clone(), if partition == 0 { i } else { 11 - i });
            async move {
                backup
                    .get_recovery_data(CORE, fetch(1, segment, partition))
                    .await
            }
        })
    });
    let all = futures_util::future::join_all(fetches.collect::<Vec<_>>());
    let replies = node.run(all);
    let keys: usize = replies
        .iter()
        .map(|r| read(r.as_ref().expect("BACKUP-8")).0.len())
        .sum();
    assert_eq!(keys, 400);
    assert!(backup.stats().recovery_buffer_bytes <= 1, "BACKUP-9");
}

#[test]
fn a_long_list_of_replicas_comes_in_pages() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-lists-by-pages"]);
    let node = Node::new(6);
    let options = BackupOptions {
        // Two replicas are as many.
        list_bytes_max: 130,
        ..BackupOptions::default()
    };
    let backup = node.start_with(options);
    for segment in 1..=5 {
        node.write(&backup, Image::new(segment, Side, 40).whole(segment, Side))
            .expect("is written");
    }
    let mut request = StartRecovery::of(MASTER);
    let mut pages = Vec::new();
    loop {
        let (asked, of) = (request.clone(), backup.clone());
        let page = node.run(async move { of.start_recovery(asked).await });
        let page = page.expect("lists");
        pages.push(
            page.replicas
                .iter()
                .map(|r| r.segment.0)
                .collect::<Vec<_>>(),
        );
        let Some(next) = page.next else { break };
        request.from = next;
    }
    assert_eq!(pages, [vec![1, 2], vec![3, 4], vec![5]]);
    let whole = node.run(async move { backup.would_offer(MASTER).await });
    assert_eq!((whole.replicas.len(), whole.next), (5, None));
}

/// Ten primaries, room for three, two partitions that ask for the newest ones first, as
/// coordinators tell them to.
#[test]
fn a_loss_larger_than_the_buffer_is_read_once() {
    for lag in [0_u64, 2] {
        let node = Node::new(8);
        let image = |segment| Image::new(segment, Side, 40);
        let backup = node.start_with(BackupOptions {
            recovery_buffer_bytes: u64::from(image(10).len()) * 3,
            ..BackupOptions::default()
        });
        for segment in 1..=10 {
            node.write(&backup, image(segment).whole(segment, Side))
                .expect("is written");
        }
        set(&node, &backup, 1, halves()).expect("is set");
        let mut keys = 0;
        for step in 0..10 + lag {
            node.sim.run_for(std::time::Duration::from_secs(1));
            // Three in the buffer, and one more for each that both have.
            let read_ahead = 10.min(3 + step.saturating_sub(lag));
            assert_eq!(backup.stats().recovery_reads, read_ahead, "step {step}");
            // The second partition is behind the first by `lag` segments.
            let first = (step < 10).then(|| (10 - step, 0));
            let second = (step >= lag).then(|| (10 - (step - lag), 1));
            for (segment, partition) in first.into_iter().chain(second) {
                let reply = get(&node, &backup, fetch(1, segment, partition));
                keys += read(&reply.expect("is there")).0.len();
            }
        }
        let stats = backup.stats();
        assert_eq!(keys, 400);
        assert_eq!(
            (stats.recovery_reads, stats.recovery_evicted),
            (10, 0),
            "lag {lag}: {stats:?}"
        );
        // Whoever did not get an answer asks again, and read-ahead is not held up by it.
        get(&node, &backup, fetch(1, 10, 0)).expect("is read again");
        assert!(backup.stats().recovery_reads <= 11);
    }
}

#[test]
fn primaries_are_read_ahead_while_there_is_room() {
    let node = Node::new(7);
    let image = |segment| Image::new(segment, Side, 40);
    let room = u64::from(image(1).len()) * 3;
    let backup = node.start_with(BackupOptions {
        recovery_buffer_bytes: room,
        ..BackupOptions::default()
    });
    for segment in 1..=10 {
        let request = WriteReplica {
            primary: segment % 2 == 0,
            ..image(segment).whole(segment, Side)
        };
        node.write(&backup, request).expect("is written");
    }
    set(&node, &backup, 1, halves()).expect("is set");
    node.sim.run_for(std::time::Duration::from_secs(1));
    let stats = backup.stats();
    assert_eq!(
        (stats.recovery_reads, stats.recovery_evicted),
        (3, 0),
        "{stats:?}"
    );
    get(&node, &backup, fetch(1, 10, 0)).expect("is there");
    assert_eq!(
        backup.stats().recovery_reads,
        3,
        "the newest primary was read already"
    );
}
