//! A backup that offers what it cannot have: recovery waits for others, or does without.

use super::*;
use proptest::prelude::*;

/// Why the log is not complete.
fn incomplete(inventories: &[Inventory]) -> String {
    let incomplete = reconstruct(inventories, &Epochs::new(), None).unwrap_err();
    incomplete.to_string()
}

fn with_logs(logs: u16, mut replica: ReplicaInfo) -> ReplicaInfo {
    replica.head.as_mut().unwrap().logs = logs;
    replica
}

// shows: COORD-9
#[test]
fn a_head_that_says_what_no_master_has_is_none() {
    let good = backup(1, vec![head(4, &[4])]);
    for logs in [0, LOGS_PER_MASTER_MAX + 1, u16::MAX] {
        let bad = backup(2, vec![with_logs(logs, head(3, &[3]))]);
        assert_eq!(complete(&[bad.clone(), good.clone()]), [(4, vec![1])]);
        let text = incomplete(&[bad]);
        assert!(text.contains("none has an open head"), "{text}");
    }
}

// shows: COORD-9
#[test]
fn a_replica_of_a_log_that_its_master_has_not_is_left_out() {
    let good = backup(1, vec![head(4, &[4])]);
    // By its own word, its master has one log.
    let bad = in_log(7, 1, head(5, &[5]));
    assert_eq!(
        complete(&[good.clone(), backup(2, vec![bad])]),
        [(4, vec![1])]
    );
    // By its own word, its master has more than the others say: one of them is wrong.
    let bad = in_log(7, 8, head(5, &[5]));
    let text = incomplete(&[good, backup(2, vec![bad])]);
    assert!(text.contains("no open head of log"), "{text}");
}

// shows: COORD-9
#[test]
fn a_segment_of_another_log_is_not_taken_for_one_of_this() {
    let heads = [in_log(0, 2, head(4, &[3, 4])), in_log(1, 2, head(5, &[5]))];
    let foreign = in_log(1, 2, replica(3));
    let mut inventories = vec![backup(1, heads.to_vec()), backup(2, vec![foreign])];
    let text = incomplete(&inventories);
    assert!(text.contains("1 segments are missing (3)"), "{text}");
    inventories.push(backup(3, vec![replica(3)]));
    let found = complete(&inventories);
    assert_eq!(found, [(3, vec![3]), (4, vec![1]), (5, vec![1])]);
}

// shows: COORD-9
#[test]
fn of_two_heads_that_contradict_each_other_none_is_believed() {
    let text = incomplete(&[
        backup(1, vec![head(4, &[3, 4]), replica(3)]),
        backup(2, vec![head(4, &[4])]),
    ]);
    assert!(text.contains("none has an open head"), "{text}");
    // Not all of them need to have data yet.
    let found = complete(&[
        backup(1, vec![head(4, &[4])]),
        backup(2, vec![filled(4, &[4])]),
    ]);
    assert_eq!(found, [(4, vec![2, 1])]);
}

#[test]
fn a_backup_that_offers_a_segment_twice_is_asked_once() {
    let found = complete(&[backup(1, vec![head(4, &[3, 4, 4]), replica(3), replica(3)])]);
    assert_eq!(found, [(3, vec![1]), (4, vec![1])]);
}

fn anything() -> impl Strategy<Value = ReplicaInfo> {
    let number = || prop_oneof![0_u64..8, Just(u64::MAX)];
    let log = prop_oneof![0_u16..3, Just(u16::MAX)];
    let flags = proptest::collection::vec(any::<bool>(), 5);
    let digest = proptest::collection::vec(number(), 0..6);
    let amounts = (any::<u32>(), any::<u32>(), any::<u64>());
    (number(), (log.clone(), log), flags, digest, amounts).prop_map(
        |(segment, (log, logs), flags, digest, (epoch, length, load))| {
            let load = |table| TableLoad {
                table: TableId(table),
                bytes: load,
                entries: load,
            };
            let mut replica = ReplicaInfo {
                log: LogId(log),
                side: flags[0],
                epoch: ReplicationEpoch(epoch),
                closed: flags[1],
                primary: flags[2],
                length,
                ..head(segment, &digest)
            };
            let info = replica.head.as_mut().unwrap();
            info.logs = logs;
            info.has_data = flags[3];
            info.tables = vec![load(1), load(1), load(2)];
            if !flags[4] {
                replica.head = None;
            }
            replica
        },
    )
}

proptest! {
    /// Whatever backups answer: if that is a log, each segment is named once, with backups that
    /// offered it.
    // shows: COORD-9
    #[test]
    fn no_answer_is_too_odd(
        answers in proptest::collection::vec(proptest::collection::vec(anything(), 0..8), 0..4),
        speed: u32,
    ) {
        let mut inventories: Vec<Inventory> =
            (1..).zip(answers).map(|(id, replicas)| backup(id, replicas)).collect();
        for inventory in &mut inventories {
            inventory.disk_mb_per_s = speed;
        }
        let Ok(map) = reconstruct(&inventories, &recorded(3, 1), None) else {
            return Ok(());
        };
        let mut named = BTreeSet::new();
        for RecoverySegment { segment, backups } in &map.segments {
            prop_assert!(named.insert(*segment));
            prop_assert!(!backups.is_empty());
            for backup in backups {
                let inventory = inventories.iter().find(|i| i.backup == *backup).unwrap();
                prop_assert!(inventory.replicas.iter().any(|r| r.segment == *segment));
            }
        }
    }
}
