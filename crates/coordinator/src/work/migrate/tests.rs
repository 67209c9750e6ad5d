//! What the state says of migrations.

use super::*;
use crate::members::Enlisted;
use crate::refusals::not_a_member;
use crate::testing::{self, NoChoice};
use pluvio_units::{ClusterId, HashKind, HashRange};
use pluvio_wire::{
    CreateTable, Enlist, MigrationProgress, PROTOCOL_VERSION, ServerInfo, TableRef, TabletState,
};

fn enlist(state: &mut State, attempt: u64, volatile: bool) -> Enlisted {
    let info = ServerInfo {
        volatile,
        ..testing::server(0, attempt.to_string())
    };
    let request = Enlist {
        protocol: PROTOCOL_VERSION,
        expects: None,
        cluster: None,
        replaces: None,
        attempt,
        logs: 0,
        info,
    };
    state.enlist(request).unwrap()
}

/// Three servers, and a table with one tablet on the first.
fn state() -> (State, TableId) {
    let mut state = State::new(ClusterId(1));
    enlist(&mut state, 1, false);
    let create = CreateTable {
        name: "t".into(),
        span: Some(1),
        hash: HashKind::Seeded,
        quota: pluvio_wire::QuotaWish::default(),
        durability: pluvio_wire::DurabilityWish::default(),
    };
    let table = state.create_table(create, 1, &NoChoice).unwrap();
    state.table_mut(table).unwrap().tablets[0].state = TabletState::Normal;
    enlist(&mut state, 2, false);
    enlist(&mut state, 3, false);
    state.check();
    (state, table)
}

fn ask(state: &mut State, tablet: WhichTablet, to: u64) -> Result<MigrateTabletReply, Refusal> {
    let result = state.begin_move(&MigrateTablet {
        table: TableRef::Name("t".into()),
        tablet,
        to: ServerId(to),
    });
    state.check();
    result
}

fn anywhere() -> WhichTablet {
    WhichTablet::Containing(KeyHash(5))
}

fn range(first: u64, last: u64) -> HashRange {
    HashRange::new(KeyHash(first), KeyHash(last))
}

fn report(migration: u64, server: u64, is_ok: bool) -> TabletReceived {
    TabletReceived {
        cluster: ClusterId(1),
        migration: MigrationId(migration),
        server: ServerId(server),
        since: SegmentId(77),
        result: if is_ok {
            Ok(MigrationProgress::default())
        } else {
            Err("no room".into())
        },
    }
}

fn settle(state: &mut State, report: &TabletReceived) -> bool {
    let accepted = state.settle_move(report);
    state.check();
    accepted.expect("it comes from a member")
}

fn stage(state: &State, table: TableId, id: u64) -> Option<MoveStage> {
    state.move_of(table, MigrationId(id)).map(|m| m.stage)
}

// shows: COORD-6, MIG-1
#[test]
fn a_tablet_changes_its_owner_once_and_the_receiver_is_told_so_again() {
    let (mut state, table) = state();
    let begun = ask(&mut state, anywhere(), 2).unwrap();
    assert_eq!(begun.migration, Some(MigrationId(1)));
    assert_eq!(ask(&mut state, anywhere(), 2), Ok(begun), "asked again");
    assert!(
        ask(&mut state, anywhere(), 3).is_err(),
        "it is on its way elsewhere"
    );
    for other in [report(1, 3, true), report(2, 2, true)] {
        assert!(!settle(&mut state, &other), "{other:?}");
    }
    let stranger = state.settle_move(&report(1, 9, true));
    assert_eq!(stranger, Err(not_a_member(ServerId(9))));
    assert!(settle(&mut state, &report(1, 2, true)));
    let tablet = state.tables[&table].tablets[0];
    assert_eq!((tablet.owner, tablet.since), (ServerId(2), SegmentId(77)));
    assert_eq!(stage(&state, table, 1), Some(MoveStage::Moved));
    // Its reply was lost; also when the former owner has confirmed, and the tablet was cut.
    assert!(settle(&mut state, &report(1, 2, true)));
    state.table_mut(table).unwrap().moves.clear();
    state.table_mut(table).unwrap().cut(KeyHash(9));
    assert!(settle(&mut state, &report(1, 2, true)));
    assert!(
        settle(&mut state, &report(1, 2, false)),
        "decided is decided"
    );
    let there = ask(&mut state, anywhere(), 2).unwrap();
    assert_eq!(there.migration, None);
}

/// Its id is that of another server here.
#[test]
fn another_clusters_receiver_is_told_nothing() {
    let (mut state, table) = state();
    ask(&mut state, anywhere(), 2).unwrap();
    for is_ok in [true, false] {
        let foreign = TabletReceived {
            cluster: ClusterId(2),
            ..report(1, 2, is_ok)
        };
        let refused = state.settle_move(&foreign).unwrap_err();
        assert_eq!(refused.fatal_kind(), Some(FatalKind::WrongCluster));
    }
    assert_eq!(stage(&state, table, 1), Some(MoveStage::Copying));
    // One that names none may be of a server that does not do so yet.
    let nameless = TabletReceived {
        cluster: ClusterId(0),
        ..report(1, 2, true)
    };
    assert!(settle(&mut state, &nameless));
}

// shows: COORD-6, MIG-1
#[test]
fn what_failed_stays_and_a_late_success_changes_nothing() {
    let (mut state, table) = state();
    ask(&mut state, anywhere(), 2).unwrap();
    assert!(!settle(&mut state, &report(1, 2, false)));
    assert_eq!(stage(&state, table, 1), Some(MoveStage::Stays));
    assert!(!settle(&mut state, &report(1, 2, true)));
    assert_eq!(state.tables[&table].tablets[0].owner, ServerId(1));
    // Not before the owner knows that it stays.
    assert!(ask(&mut state, anywhere(), 2).is_err());
    state.table_mut(table).unwrap().moves.clear();
    let again = ask(&mut state, anywhere(), 2).unwrap();
    assert_eq!(again.migration, Some(MigrationId(2)));
}

// shows: COORD-7, MIG-1
#[test]
fn a_crash_ends_the_migration_in_the_same_change() {
    let (mut state, table) = state();
    ask(&mut state, anywhere(), 2).unwrap();
    let mut receiver = state.clone();
    receiver.mark_crashed(ServerId(2));
    receiver.check();
    assert_eq!(stage(&receiver, table, 1), Some(MoveStage::Stays));
    let refused = Err(not_a_member(ServerId(2)));
    assert_eq!(receiver.settle_move(&report(1, 2, true)), refused);
    let mut owner = state.clone();
    owner.mark_crashed(ServerId(1));
    owner.check();
    assert_eq!(stage(&owner, table, 1), None);
    assert!(!settle(&mut owner, &report(1, 2, true)));
    let tablet = owner.tables[&table].tablets[0];
    assert_eq!(tablet.state, TabletState::Recovering);
    // After the decision the tablet is the receiver's, and its crash is that of any owner.
    assert!(settle(&mut state, &report(1, 2, true)));
    state.mark_crashed(ServerId(2));
    state.check();
    assert_eq!(stage(&state, table, 1), Some(MoveStage::Moved));
    let tablet = state.tables[&table].tablets[0];
    assert_eq!(
        (tablet.owner, tablet.state),
        (ServerId(2), TabletState::Recovering)
    );
    // It may not have heard that it was given the tablet: its log is recovered now, with what it
    // received (COORD-11).
    assert_eq!(state.settle_move(&report(1, 2, true)), refused);
    state.mark_crashed(ServerId(1));
    state.check();
    assert_eq!(stage(&state, table, 1), None);
}

// shows: COORD-7, MIG-1
#[test]
fn a_dropped_table_moves_nowhere() {
    let (mut state, table) = state();
    ask(&mut state, anywhere(), 2).unwrap();
    let record = state.table_mut(table).unwrap();
    record.dropping = true;
    record.give_up_moves();
    state.check();
    assert!(!settle(&mut state, &report(1, 2, true)));
}

// shows: MIG-1
#[test]
fn a_range_is_cut_out_of_its_tablet() {
    let (mut state, table) = state();
    let wanted = range(100, 199);
    let begun = ask(&mut state, WhichTablet::Range(wanted), 2).unwrap();
    assert_eq!(begun.range, wanted);
    let record = &state.tables[&table];
    assert_eq!(record.tablets.len(), 3);
    assert_eq!(record.cuts, [KeyHash(100), KeyHash(200)]);
    assert!(settle(&mut state, &report(1, 2, true)));
    let owners: Vec<_> = state.tables[&table]
        .tablets
        .iter()
        .map(|t| t.owner.0)
        .collect();
    assert_eq!(owners, [1, 2, 1]);
    // Across a cut, or what is on its way.
    for wrong in [range(0, 150), range(150, 250)] {
        assert!(
            ask(&mut state, WhichTablet::Range(wrong), 3).is_err(),
            "{wrong}"
        );
    }
    let whole = range(200, u64::MAX);
    assert!(ask(&mut state, WhichTablet::Range(whole), 3).is_ok());
}

#[test]
fn receivers_are_up_and_keep_replicas() {
    let (mut state, _) = state();
    enlist(&mut state, 4, true);
    state.mark_crashed(ServerId(3));
    for to in [3, 4, 9] {
        let refused = ask(&mut state, anywhere(), to).unwrap_err();
        assert_eq!(refused.fatal_kind(), Some(FatalKind::NotFound), "{to}");
    }
    assert!(ask(&mut state, anywhere(), 2).is_ok());
}

#[test]
fn no_table_is_cut_beyond_1024_tablets_to_move_a_part() {
    let (mut state, table) = state();
    for at in 1..1023 {
        state.table_mut(table).unwrap().cut(KeyHash(at));
    }
    let before = state.clone();
    // That takes two cuts.
    let part = WhichTablet::Range(range(2000, 2999));
    let refused = ask(&mut state, part, 2).unwrap_err();
    assert_eq!(refused.fatal_kind(), Some(FatalKind::Other));
    assert!(state.tables == before.tables && state.globals == before.globals);
    let end = WhichTablet::Range(range(2000, u64::MAX));
    assert!(ask(&mut state, end, 2).is_ok());
    assert_eq!(state.tables[&table].tablets.len(), 1024);
}

#[test]
fn at_most_64_migrations_are_under_way() {
    let (mut state, table) = state();
    let part = |n: u64| WhichTablet::Range(range(1000 * n, 1000 * n + 999));
    for n in 0..64 {
        ask(&mut state, part(n), 2).unwrap();
    }
    let before = state.clone();
    let refused = ask(&mut state, part(64), 2).unwrap_err();
    let is_busy = matches!(refused, Refusal::Retry { why, .. } if why == RetryReason::Busy);
    assert!(is_busy, "{refused}");
    assert!(state.tables == before.tables && state.globals == before.globals);
    // One of them may be asked for again, and one that has ended makes room.
    let again = ask(&mut state, part(0), 2).unwrap();
    assert_eq!(again.migration, Some(MigrationId(1)));
    state.table_mut(table).unwrap().moves.remove(0);
    assert!(ask(&mut state, part(64), 2).is_ok());
}

#[test]
fn a_move_whose_former_owner_crashed_behind_it_is_shown_as_moved() {
    let (mut state, table) = state();
    ask(&mut state, anywhere(), 2).unwrap();
    let record = state.move_of(table, MigrationId(1)).unwrap();
    let mut history = History::default();
    let now = Moment(Duration::ZERO);
    history.begin(&state.tables[&table], &record, now);
    assert!(settle(&mut state, &report(1, 2, true)));
    history.moved(record.id);
    // The work finds no record any more.
    state.mark_crashed(ServerId(1));
    assert_eq!(stage(&state, table, 1), None);
    let status = history.finish(record.id, false, now).unwrap();
    assert!(status.moved && status.phase == "done", "{status:?}");
}
