//! Decisions about tablets and owners, without servers.

use super::anew::is_volatile;
use super::attempts::{Attempt, Attempts, Partition};
use super::changes::{LogEnds, Prepared};
use crate::refusals::not_a_member;
use crate::state::{Ends, FORMAT_EARLY, Places, ServerRecord, State, TableRecord, TabletRecord};
use crate::testing::{self, NoChoice};
use crate::work::assign::Candidates;
use pluvio_env::Moment;
use pluvio_units::{
    ClusterId, HashKind, HashRange, KeyHash, LogId, ObjectVersion, RecoveryId, SegmentId, ServerId,
    TableId,
};
use pluvio_wire::{
    FatalKind, PartitionReplayed, RecoveryMasterFinished, Refusal, ReplayStats, ServerInfo,
    SplitTablet, TableClass, TableRef, TabletSpec, TabletState,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The wall clock: some day in 2026.
const NOW_S: u64 = 1_790_000_000;

/// Servers 1 (crashed), 2 and 3; table 1 on server 1, table 2 half on server 1.
fn state() -> State {
    let mut state = State::new(ClusterId(1));
    for id in 1..=3 {
        let info = testing::server(id, id.to_string());
        let record = ServerRecord::new(info, id);
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
            hash: HashKind::Seeded,
            dropping: false,
            tablets: tablets.collect(),
            cuts: Vec::new(),
            kept: BTreeSet::new(),
            moves: Vec::new(),
            quota: None,
            class: None,
        };
        state.tables.insert(TableId(id), Arc::new(record));
    }
    state.mark_crashed(ServerId(1));
    state
}

fn prepare(state: &mut State) -> Prepared {
    let prepared = state.prepare_recovery(ServerId(1), NOW_S, &NoChoice);
    state.check();
    prepared
}

fn tablets(state: &mut State) -> Vec<TabletSpec> {
    match prepare(state) {
        Prepared::Tablets(tablets) => tablets,
        _ => panic!("tablets were expected"),
    }
}

fn begin(state: &mut State, partitions: &[Vec<TabletSpec>]) -> RecoveryId {
    state.begin_attempt(ServerId(1), partitions, &LogEnds::Open, &BTreeSet::new())
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
    let first = begin(&mut state, &partitions);
    state.check();
    assert_eq!(tablets(&mut state).len(), 4);
    assert_eq!(begin(&mut state, &partitions), first.next());
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
        let recovery = begin(&mut state, std::slice::from_ref(&partition));
        let report = report(recovery.0, 2, 0);
        let given = state.settle(&report, Some((ServerId(1), partition)));
        assert_eq!(given, Ok(true));
        state.check();
    }
    assert_eq!(tablets(&mut state).len(), 1);
}

fn replayed(recovery: u64, server: u64, partition: u32) -> PartitionReplayed {
    PartitionReplayed {
        cluster: ClusterId(1),
        recovery: RecoveryId(recovery),
        server: ServerId(server),
        partition,
    }
}

fn ends(length: u32) -> Ends {
    Ends {
        last: Places::from([(LogId(0), (SegmentId(9), length))]),
        before: Places::from([(LogId(0), (SegmentId(8), length + 1))]),
    }
}

/// Everything that server 1 had is read from server 2, by partition 0 of attempt 1.
fn standing() -> (State, Vec<TabletSpec>) {
    let mut state = state();
    let specs = tablets(&mut state);
    let found = LogEnds::At(ends(70));
    state.begin_attempt(ServerId(1), &[], &found, &BTreeSet::new());
    let wanted = Some((ServerId(1), specs.clone()));
    assert_eq!(state.settle_early(&replayed(1, 2, 0), wanted), Ok(true));
    state.check();
    (state, specs)
}

fn standing_on_1(state: &State) -> usize {
    let tablets = state.tables.values().flat_map(|t| &t.tablets);
    tablets.filter(|t| t.stands_on == Some(ServerId(1))).count()
}

// shows: COORD-14, COORD-6
#[test]
fn a_replayed_partition_stands_on_the_crashed_server_until_it_is_durable() {
    let (mut state, _) = standing();
    assert_eq!(state.globals.format, FORMAT_EARLY);
    assert_eq!(standing_on_1(&state), 2);
    assert_eq!(state.settle_early(&replayed(1, 2, 0), None), Ok(true));
    assert_eq!(state.settle_early(&replayed(1, 3, 0), None), Ok(false));
    assert!(matches!(prepare(&mut state), Prepared::Wait));
    for id in [1, 2] {
        let name = TableRef::Id(TableId(id));
        let split = SplitTablet {
            table: name,
            at: Some(KeyHash(77)),
        };
        let refused = state.split(&split).unwrap_err();
        assert!(matches!(refused, Refusal::Retry { .. }), "{refused:?}");
    }
    let durable = RecoveryMasterFinished {
        since: SegmentId(5),
        ..report(1, 2, 0)
    };
    assert_eq!(state.settle(&durable, None), Ok(true));
    state.check();
    assert_eq!(standing_on_1(&state), 0);
    let tablet = state.tables[&TableId(1)].tablets[0];
    assert_eq!((tablet.owner, tablet.since), (ServerId(2), SegmentId(5)));
    assert_eq!(
        state.settle_early(&replayed(1, 2, 0), None),
        Ok(true),
        "it comes late"
    );
    assert!(matches!(prepare(&mut state), Prepared::Removed));
}

// shows: COORD-13
#[test]
fn nothing_is_read_where_the_logs_may_end_elsewhere() {
    let _marks = pluvio_units::Marks::to_reach(&["recovery-not-early"]);
    let mut state = state();
    let specs = tablets(&mut state);
    begin(&mut state, &[]);
    let wanted = Some((ServerId(1), specs));
    assert_eq!(state.settle_early(&replayed(1, 2, 0), wanted), Ok(false));
}

// shows: COORD-13
#[test]
fn ends_to_which_a_partition_was_replayed_hold_for_later_attempts() {
    for is_early in [true, false] {
        let mut state = state();
        let specs = tablets(&mut state);
        let ends_of = |state: &State| state.servers[&ServerId(1)].ends();
        let nobody = BTreeSet::new();
        for length in [50, 70] {
            state.begin_attempt(ServerId(1), &[], &LogEnds::At(ends(length)), &nobody);
            assert_eq!(ends_of(&state), ends(length), "nobody has anything yet");
        }
        let wanted = Some((ServerId(1), specs));
        let given = match is_early {
            true => state.settle_early(&replayed(2, 2, 0), wanted),
            false => state.settle(&report(2, 2, 0), wanted),
        };
        assert_eq!(given, Ok(true));
        for later in [LogEnds::At(ends(90)), LogEnds::Open] {
            state.begin_attempt(ServerId(1), &[], &later, &nobody);
            assert_eq!(ends_of(&state), ends(70));
        }
        state.begin_attempt(ServerId(1), &[], &LogEnds::Lost, &nobody);
        assert_eq!(ends_of(&state), Ends::default());
    }
}

// shows: COORD-13, COORD-21
#[test]
fn the_end_of_a_weak_log_is_settled_when_it_is_found_and_nothing_is_read_before() {
    let mut state = state();
    let class = TableClass {
        number: 1,
        replicas: 1,
        synced: false,
        weaker: true,
    };
    Arc::make_mut(state.servers.get_mut(&ServerId(1)).unwrap()).logs = 1;
    state.table_mut(TableId(2)).unwrap().class = Some(class);
    let specs = tablets(&mut state);
    let (weak, others): (Vec<_>, Vec<_>) = specs.iter().partition(|spec| spec.class.is_some());
    let both = |length, weak| {
        let mut ends = ends(length);
        ends.last.insert(LogId(1), (SegmentId(8), weak));
        ends.before.insert(LogId(1), (SegmentId(7), weak));
        ends
    };
    let ends_of = |state: &State| state.servers[&ServerId(1)].ends();
    let begin = |state: &mut State, ends: Ends| {
        state.begin_attempt(ServerId(1), &[], &LogEnds::At(ends), &BTreeSet::new())
    };
    // The first attempt leaves the weak log out.
    begin(&mut state, ends(70));
    let wanted = |specs: &Vec<TabletSpec>| Some((ServerId(1), specs.clone()));
    let read = |state: &mut State, recovery, specs| {
        state.settle_early(&replayed(recovery, 2, 0), wanted(specs))
    };
    assert_eq!(read(&mut state, 1, &weak), Ok(false), "it may end anywhere");
    assert_eq!(read(&mut state, 1, &others), Ok(true));
    begin(&mut state, both(90, 30));
    assert_eq!(ends_of(&state), both(70, 30));
    assert_eq!(read(&mut state, 2, &weak), Ok(true));
    begin(&mut state, both(90, 50));
    assert_eq!(ends_of(&state), both(70, 30));
}

// shows: COORD-14, COORD-15
#[test]
fn what_a_crashed_master_answered_reads_of_is_recovered_from_where_it_stands() {
    let (mut state, specs) = standing();
    assert!(state.mark_crashed(ServerId(2)));
    state.check();
    assert_eq!(standing_on_1(&state), 0);
    assert_eq!(tablets(&mut state), specs);
    // Its reads may not have ended.
    let readers = |state: &State| state.servers[&ServerId(1)].readers.clone();
    assert_eq!(readers(&state), BTreeSet::from([ServerId(2)]));
    let fate = |state: &mut State| state.prepare_recovery(ServerId(2), NOW_S, &NoChoice);
    assert!(!matches!(fate(&mut state), Prepared::Removed));
    let refused = state.settle(&report(1, 2, 0), None);
    assert_eq!(refused, Err(not_a_member(ServerId(2))));
    state.begin_attempt(ServerId(1), &[], &LogEnds::Open, &readers(&state));
    assert!(readers(&state).is_empty());
    let wanted = Some((ServerId(1), specs));
    assert_eq!(state.settle_early(&replayed(2, 3, 0), wanted), Ok(true));
    state.check();
}

// shows: COORD-14
#[test]
fn what_a_master_cannot_finish_is_the_crashed_servers_again() {
    let (mut state, specs) = standing();
    let failed = RecoveryMasterFinished {
        result: Err("no memory".into()),
        ..report(1, 2, 0)
    };
    assert_eq!(state.settle(&failed, None), Ok(false));
    state.check();
    assert_eq!(tablets(&mut state), specs);
    assert!(
        state.servers[&ServerId(1)].readers.is_empty(),
        "it stopped by itself"
    );
    assert_eq!(
        state.settle_early(&replayed(1, 2, 0), None),
        Ok(false),
        "it comes late"
    );
}

// shows: COORD-14
#[test]
fn a_master_that_reported_the_end_does_not_get_what_it_asked_for_before() {
    let mut state = state();
    let specs = tablets(&mut state);
    let attempts = Attempts::default();
    let attempt = Attempt {
        crashed: ServerId(1),
        not_before: Moment::default(),
        partitions: vec![Partition::new(specs.clone(), ServerId(2))],
        progress: Arc::default(),
    };
    attempts.begin(RecoveryId(1), attempt);
    let wanted = Some((ServerId(1), specs));
    assert_eq!(attempts.wanted_early(&replayed(1, 2, 0)), wanted);
    assert_eq!(attempts.wanted_early(&replayed(1, 3, 0)), None);
    // Its failure is being stored.
    attempts.reported(&RecoveryMasterFinished {
        result: Err("no memory".into()),
        ..report(1, 2, 0)
    });
    assert_eq!(attempts.wanted_early(&replayed(1, 2, 0)), None);
}

// shows: COORD-14
#[test]
fn a_state_in_which_a_tablet_stands_on_nothing_that_is_there_does_not_hold() {
    let (mut state, _) = standing();
    state.servers.remove(&ServerId(1));
    assert!(state.holds().unwrap_err().contains("COORD-14"));
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

/// The least version in new tablets of a table, on a server without replicas.
fn first_version(state: &State, table: TableId) -> ObjectVersion {
    let owner = ServerInfo {
        volatile: true,
        ..ServerInfo::plain(ServerId(2), String::new())
    };
    state.first_version(&state.tables[&table], &owner)
}

// shows: COORD-23, COORD-24
#[test]
fn volatile_tablets_begin_anew_and_others_are_recovered() {
    let mut state = state();
    let class = TableClass {
        number: 1,
        replicas: 0,
        synced: false,
        weaker: true,
    };
    state.table_mut(TableId(2)).unwrap().class = Some(class);
    let specs = tablets(&mut state);
    let (volatile, others): (Vec<_>, Vec<_>) = specs.into_iter().partition(is_volatile);
    assert!(!volatile.is_empty() && !others.is_empty());
    let owner = ServerInfo::plain(ServerId(2), String::new());
    let first = |state: &State, table| state.first_version(&state.tables[&TableId(table)], &owner);
    assert_eq!(first(&state, 2), ObjectVersion(0));
    let begun = state.begin_anew(ServerId(1), &volatile, NOW_S, &Candidates::All, &NoChoice);
    assert_eq!(begun, volatile.len());
    state.check();
    let one = first(&state, 2);
    assert_eq!(
        one,
        ObjectVersion(NOW_S << 30),
        "no time that was a version is above it"
    );
    assert_eq!(first(&state, 1), ObjectVersion(0), "it never begins anew");
    assert_eq!(tablets(&mut state), others);
    // A second time nothing is left to begin anew.
    assert_eq!(
        state.begin_anew(ServerId(1), &volatile, NOW_S, &Candidates::All, &NoChoice),
        0
    );
    assert_eq!(first(&state, 2), one);
    // Its new owner may have had it before, and may give versions until it crashes, too.
    let new_owner = [2, 3].map(|id| state.begins_anew(TableId(2), ServerId(id)));
    assert!(new_owner.contains(&true));
    assert!(!state.begins_anew(TableId(1), ServerId(2)));
    for now_s in [NOW_S, NOW_S - 100, NOW_S + 100_000] {
        let before = first(&state, 2);
        state.raise_first_version(now_s);
        assert!(first(&state, 2).0 >= before.0 + (1 << 40));
    }
}

#[test]
fn tablets_without_replicas_start_anew() {
    let mut state = state();
    let record = state.servers.get_mut(&ServerId(1)).unwrap();
    Arc::make_mut(record).info.volatile = true;
    let before = first_version(&state, TableId(1));
    assert!(matches!(prepare(&mut state), Prepared::Lost(2)));
    assert!(first_version(&state, TableId(1)) > before);
    let tablet = state.tables[&TableId(1)].tablets[0];
    assert_eq!(tablet.state, TabletState::Assigning);
    assert_ne!(tablet.owner, ServerId(1));
    assert!(matches!(prepare(&mut state), Prepared::Removed));
}
