//! Decisions about tablets and owners, without servers.

use super::*;
use crate::shared::not_a_member;
use crate::state::{ServerRecord, TableRecord, TabletRecord};
use crate::testing;
use pluvio_units::{ClusterId, HashRange, KeyHash, SegmentId, TableId};
use pluvio_wire::{FatalKind, RecoveryMasterFinished, ReplayStats};

struct NoChoice;
impl Rng for NoChoice {
    fn next_u64(&self) -> u64 {
        0
    }
}

/// Servers 1 (crashed), 2 and 3; table 1 on server 1, table 2 half on server 1.
fn state() -> State {
    let mut state = State::new(ClusterId(1));
    for id in 1..=3 {
        let info = testing::server(id, id.to_string());
        let record = ServerRecord {
            info,
            attempt: id,
            epochs: BTreeMap::new(),
            had: BTreeMap::new(),
        };
        state.servers.insert(ServerId(id), Arc::new(record));
    }
    for (id, owners) in [(1, vec![1]), (2, vec![1, 2])] {
        let ranges = HashRange::ALL.split(owners.len() as u64);
        let tablets = ranges
            .into_iter()
            .zip(owners)
            .map(|(range, owner)| TabletRecord {
                state: TabletState::Normal,
                ..TabletRecord::new(range, ServerId(owner))
            });
        let record = TableRecord {
            id: TableId(id),
            name: id.to_string(),
            seed: id,
            dropping: false,
            tablets: tablets.collect(),
            cuts: Vec::new(),
            moves: Vec::new(),
        };
        state.tables.insert(TableId(id), Arc::new(record));
    }
    state.mark_crashed(ServerId(1));
    state
}

fn prepare(state: &mut State) -> Prepared {
    let prepared = state.prepare_recovery(ServerId(1), &NoChoice);
    state.check();
    prepared
}

fn tablets(state: &mut State) -> Vec<TabletSpec> {
    match prepare(state) {
        Prepared::Tablets(tablets) => tablets,
        _ => panic!("tablets were expected"),
    }
}

fn report(recovery: u64, server: u64, partition: u32) -> RecoveryMasterFinished {
    RecoveryMasterFinished {
        cluster: ClusterId(1),
        recovery: RecoveryId(recovery),
        server: ServerId(server),
        partition,
        since: SegmentId(0),
        result: Ok(ReplayStats::default()),
    }
}

#[test]
fn all_tablets_of_the_crashed_server_are_recovered_then_it_is_removed() {
    let mut state = state();
    let specs = tablets(&mut state);
    assert_eq!(specs.len(), 2);
    let wanted = Some((ServerId(1), specs));
    assert_eq!(state.settle(&report(1, 2, 0), wanted), Ok(true));
    state.check();
    assert!(matches!(prepare(&mut state), Prepared::Removed));
    assert!(!state.servers.contains_key(&ServerId(1)));
    assert!(matches!(prepare(&mut state), Prepared::Removed));
}

// shows: COORD-6
#[test]
fn who_got_a_partition_is_told_so_again_and_nobody_else_is() {
    let mut state = state();
    let specs = tablets(&mut state);
    let wanted = || Some((ServerId(1), specs.clone()));
    assert_eq!(state.settle(&report(1, 2, 0), wanted()), Ok(true));
    // The attempt is forgotten: a new incarnation of the coordinator gives the same answer.
    assert_eq!(state.settle(&report(1, 2, 0), None), Ok(true));
    for other in [report(1, 3, 0), report(1, 2, 1), report(2, 2, 0)] {
        assert_eq!(state.settle(&other, None), Ok(false), "{other:?}");
        assert_eq!(state.settle(&other, wanted()), Ok(false), "{other:?}");
    }
    // Also after its tablet was cut.
    state.table_mut(TableId(1)).unwrap().cut(KeyHash(77));
    assert_eq!(state.settle(&report(1, 2, 0), None), Ok(true));
}

// shows: COORD-6
#[test]
fn a_crashed_master_gets_nothing() {
    let mut state = state();
    let specs = tablets(&mut state);
    state.mark_crashed(ServerId(2));
    let refused = state.settle(&report(1, 2, 0), Some((ServerId(1), specs)));
    assert_eq!(refused, Err(not_a_member(ServerId(2))));
}

/// Its id is that of another server here.
#[test]
fn another_clusters_master_is_told_nothing() {
    let mut state = state();
    let specs = tablets(&mut state);
    let before = state.clone();
    let foreign = RecoveryMasterFinished {
        cluster: ClusterId(2),
        ..report(1, 2, 0)
    };
    for wanted in [None, Some((ServerId(1), specs))] {
        let refused = state.settle(&foreign, wanted).unwrap_err();
        assert_eq!(refused.fatal_kind(), Some(FatalKind::WrongCluster));
    }
    assert_eq!(state.tables, before.tables);
}

// shows: COORD-11, REC-6
#[test]
fn a_master_that_crashed_is_not_told_that_it_does_not_own_what_it_was_given() {
    let mut state = state();
    let specs = tablets(&mut state);
    let given = state.settle(&report(1, 2, 0), Some((ServerId(1), specs)));
    assert_eq!(given, Ok(true));
    // The answer was lost.
    state.mark_crashed(ServerId(2));
    let again = state.settle(&report(1, 2, 0), None);
    assert_eq!(again, Err(not_a_member(ServerId(2))), "COORD-11");
}

#[test]
fn a_failed_partition_stays_with_the_crashed_server() {
    let mut state = state();
    let specs = tablets(&mut state);
    let failed = RecoveryMasterFinished {
        result: Err("no memory".into()),
        ..report(1, 2, 0)
    };
    assert_eq!(state.settle(&failed, Some((ServerId(1), specs))), Ok(false));
    assert_eq!(tablets(&mut state).len(), 2);
}

// shows: COORD-6
#[test]
fn a_partition_is_taken_whole_or_not_at_all() {
    let mut state = state();
    let mut specs = tablets(&mut state);
    specs[0].range.last = KeyHash(5);
    assert_eq!(
        state.settle(&report(1, 2, 0), Some((ServerId(1), specs))),
        Ok(false)
    );
    assert_eq!(tablets(&mut state).len(), 2);
}

#[test]
fn an_attempt_cuts_tablets_as_its_partitions_want_them() {
    let mut state = state();
    let specs = tablets(&mut state);
    let pieces = specs[0].range.split(3);
    let partitions: Vec<Vec<TabletSpec>> = pieces
        .into_iter()
        .map(|range| vec![TabletSpec { range, ..specs[0] }])
        .collect();
    let first = state.begin_attempt(&partitions);
    state.check();
    assert_eq!(tablets(&mut state).len(), 4);
    assert_eq!(state.begin_attempt(&partitions), first.next());
    for (index, partition) in partitions.iter().enumerate() {
        let report = report(2, 3, u32::try_from(index).unwrap());
        let given = state.settle(&report, Some((ServerId(1), partition.clone())));
        assert_eq!(given, Ok(true));
    }
    assert_eq!(tablets(&mut state).len(), 1);
}

#[test]
fn a_part_of_a_tablet_can_be_recovered_alone() {
    let mut state = state();
    let specs = tablets(&mut state);
    for piece in [1, 0, 2] {
        let range = specs[0].range.split(3)[piece];
        let partition = vec![TabletSpec { range, ..specs[0] }];
        let recovery = state.begin_attempt(std::slice::from_ref(&partition));
        let report = report(recovery.0, 2, 0);
        let given = state.settle(&report, Some((ServerId(1), partition)));
        assert_eq!(given, Ok(true));
        state.check();
    }
    assert_eq!(tablets(&mut state).len(), 1);
}

#[test]
fn tablets_of_dropped_tables_are_not_recovered() {
    let mut state = state();
    for id in [1, 2] {
        state.table_mut(TableId(id)).unwrap().dropping = true;
    }
    assert!(matches!(prepare(&mut state), Prepared::Removed));
    assert!(state.tables[&TableId(1)].tablets.is_empty());
    assert_eq!(state.tables[&TableId(2)].tablets.len(), 1);
}

#[test]
fn tablets_that_nobody_confirmed_are_waited_for() {
    let mut state = state();
    for id in [1, 2] {
        for tablet in &mut state.table_mut(TableId(id)).unwrap().tablets {
            tablet.state = TabletState::Assigning;
        }
    }
    assert!(matches!(prepare(&mut state), Prepared::Wait));
}

#[test]
fn tablets_without_replicas_start_anew() {
    let mut state = state();
    let record = state.servers.get_mut(&ServerId(1)).unwrap();
    Arc::make_mut(record).info.volatile = true;
    assert!(matches!(prepare(&mut state), Prepared::Lost(2)));
    let tablet = state.tables[&TableId(1)].tablets[0];
    assert_eq!(tablet.state, TabletState::Assigning);
    assert_ne!(tablet.owner, ServerId(1));
    assert!(matches!(prepare(&mut state), Prepared::Removed));
}

/// An attempt in which these recovered their partitions, and these tried and could not.
fn attempted(recovered: &[u64], failed: &[(u64, &str)]) -> Attempted {
    let failure = |why: &str| Failure {
        tried: true,
        why: why.to_owned(),
    };
    Attempted {
        outcome: Outcome::Again(Duration::ZERO),
        recovered: recovered.iter().map(|id| ServerId(*id)).collect(),
        failed: failed
            .iter()
            .map(|(id, why)| (ServerId(*id), failure(why)))
            .collect(),
    }
}

fn servers(ids: &[u64]) -> Vec<ServerId> {
    ids.iter().map(|id| ServerId(*id)).collect()
}

#[test]
fn partitions_double_with_attempts_in_vain_up_to_64_and_halve_with_others() {
    let mut trouble = Trouble::default();
    let mut finer = Vec::new();
    for _ in 0..10 {
        finer.push(trouble.experience().finer);
        trouble.learn(&attempted(&[], &[]));
    }
    assert_eq!(finer, [1, 1, 2, 4, 8, 16, 32, 64, 64, 64]);
    finer.clear();
    for _ in 0..8 {
        trouble.learn(&attempted(&[2], &[]));
        finer.push(trouble.experience().finer);
    }
    assert_eq!(finer, [32, 16, 8, 4, 2, 1, 1, 1]);
    // What was too much once is not tried again as large.
    assert!(!trouble.experience().may_crowd);
}

#[test]
fn an_empty_newcomer_is_asked_before_those_that_failed_in_whatever_attempt() {
    let _marks = pluvio_units::Marks::to_reach(&["recovery-only-who-has-not-failed"]);
    let mut trouble = Trouble::default();
    let nobody = BTreeSet::new();
    for full in [2, 3, 4] {
        let chosen = trouble.choose(servers(&[2, 3, 4]), &nobody);
        assert!(chosen.asked.contains(&ServerId(full)), "{chosen:?}");
        trouble.learn(&attempted(&[], &[(full, "full")]));
    }
    // Also when it is busy with another recovery.
    for busy in [BTreeSet::new(), BTreeSet::from([ServerId(5)])] {
        let chosen = trouble.choose(servers(&[3, 4, 5, 2]), &busy);
        assert_eq!((chosen.asked, chosen.cut_for), (servers(&[5]), 1));
    }
    trouble.learn(&attempted(&[5], &[]));
    let chosen = trouble.choose(servers(&[3, 4, 5, 2]), &nobody);
    assert_eq!(chosen.asked, servers(&[5]));
}

#[test]
fn when_all_have_failed_all_are_asked_and_who_failed_least_first() {
    let mut trouble = Trouble::default();
    trouble.learn(&attempted(&[], &[(2, "full"), (3, "full"), (4, "full")]));
    trouble.learn(&attempted(&[], &[(2, "full"), (3, "full")]));
    trouble.learn(&attempted(&[], &[(2, "full")]));
    let busy = BTreeSet::from([ServerId(4)]);
    let chosen = trouble.choose(servers(&[2, 3, 4]), &busy);
    assert_eq!(chosen.asked, servers(&[4, 3, 2]));
    // Who recovers a partition has not failed any more.
    trouble.learn(&attempted(&[2], &[(3, "full"), (4, "full")]));
    let chosen = trouble.choose(servers(&[4, 3, 2]), &busy);
    assert_eq!(chosen.asked, servers(&[2]));
}

#[test]
fn who_did_not_fail_is_asked_for_all_that_is_left_until_it_failed_at_that() {
    let mut trouble = Trouble::default();
    let nobody = BTreeSet::new();
    let all = || servers(&[2, 3, 4, 5]);
    assert_eq!(trouble.choose(all(), &nobody).cut_for, 4);
    trouble.learn(&attempted(&[5], &[(2, "full"), (3, "full"), (4, "full")]));
    let chosen = trouble.choose(all(), &nobody);
    assert_eq!((chosen.asked, chosen.cut_for), (servers(&[5]), 1));
    trouble.learn(&attempted(&[], &[(5, "full")]));
    let chosen = trouble.choose(all(), &nobody);
    assert_eq!((chosen.asked.len(), chosen.cut_for), (4, 4));
    trouble.learn(&attempted(&[5], &[(2, "full"), (3, "full"), (4, "full")]));
    let chosen = trouble.choose(all(), &nobody);
    assert_eq!((chosen.asked, chosen.cut_for), (servers(&[5]), 4));
}

#[test]
fn who_refused_at_once_is_asked_again_after_the_others() {
    let mut trouble = Trouble::default();
    let mut attempt = attempted(&[], &[(2, "not today")]);
    attempt.failed.get_mut(&ServerId(2)).unwrap().tried = false;
    trouble.learn(&attempt);
    let busy = BTreeSet::from([ServerId(3)]);
    let chosen = trouble.choose(servers(&[2, 3, 4]), &busy);
    assert_eq!(chosen.asked, servers(&[4, 3, 2]));
}

#[test]
fn who_refuses_at_once_keeps_nobody_from_being_asked_again() {
    let mut trouble = Trouble::default();
    let mut attempt = attempted(&[], &[(2, "full"), (3, "not today")]);
    attempt.failed.get_mut(&ServerId(3)).unwrap().tried = false;
    trouble.learn(&attempt);
    let nobody = BTreeSet::new();
    let chosen = trouble.choose(servers(&[2, 3]), &nobody);
    assert_eq!(chosen.asked, servers(&[3, 2]));
    let chosen = trouble.choose(servers(&[2, 3, 4]), &nobody);
    assert_eq!(chosen.asked, servers(&[4, 3]));
}

#[test]
fn what_failed_on_a_server_that_is_gone_is_forgotten() {
    let mut trouble = Trouble::default();
    trouble.learn(&attempted(&[], &[(2, "full"), (3, "full")]));
    trouble.choose(servers(&[3]), &BTreeSet::new());
    assert_eq!(
        trouble.beside("replaying"),
        "replaying; failed on server 3 (full)"
    );
}

#[test]
fn the_phase_says_who_failed_and_why_and_is_not_long() {
    let mut trouble = Trouble::default();
    assert_eq!(trouble.beside("replaying"), "replaying");
    trouble.learn(&attempted(&[5], &[(2, "full"), (3, "full"), (4, "odd")]));
    assert_eq!(
        trouble.beside("replaying"),
        "replaying; failed on server 2, 3 (full), server 4 (odd)"
    );
    // The latest reason of each counts.
    trouble.learn(&attempted(&[4], &[(2, "odd")]));
    assert_eq!(
        trouble.beside("replaying"),
        "replaying; failed on server 3 (full), server 2 (odd)"
    );
    let reasons: Vec<String> = (0..9).map(|i| i.to_string().repeat(10_000)).collect();
    let failed: Vec<(u64, &str)> = (1..1000_u64)
        .map(|id| (id, reasons[(id % 9) as usize].as_str()))
        .collect();
    trouble.learn(&attempted(&[], &failed));
    let told = trouble.beside("replaying");
    assert!(told.len() < 1000, "{told}");
    assert!(told.contains(" and 103 more ("), "{told}");
    assert!(told.ends_with(", others for other reasons"), "{told}");
}
