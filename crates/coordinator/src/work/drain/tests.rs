//! What the state says of drains.

use super::*;
use crate::testing::{self, NoChoice};
use crate::work::sizes::share_of;
use pluvio_units::{ClusterId, HashKind};
use pluvio_wire::{CreateTable, Enlist, PROTOCOL_VERSION, TabletState};

fn enlist(state: &mut State, attempt: u64, volatile: bool) -> ServerId {
    let info = ServerInfo {
        volatile,
        // Whatever a server says of itself: it begins as one that stays.
        draining: true,
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
    state.enlist(request).unwrap().server
}

/// This many servers, and a table with a tablet on each.
fn state(servers: u64) -> (State, TableId) {
    let mut state = State::new(ClusterId(1));
    for attempt in 1..=servers {
        enlist(&mut state, attempt, false);
    }
    let table = create(&mut state, "t", None);
    (state, table)
}

fn create(state: &mut State, name: &str, span: Option<u32>) -> TableId {
    let create = CreateTable {
        name: name.into(),
        span,
        hash: HashKind::Seeded,
        quota: pluvio_wire::QuotaWish::default(),
        durability: pluvio_wire::DurabilityWish::default(),
    };
    let table = state.create_table(create, 1, &NoChoice).unwrap();
    for tablet in &mut state.table_mut(table).unwrap().tablets {
        tablet.state = TabletState::Normal;
    }
    state.check();
    table
}

fn drain(state: &mut State, server: u64) -> Result<bool, Refusal> {
    let (server, wish) = (ServerId(server), DrainWish::Drain);
    let changed = state.set_draining(DrainServer { server, wish });
    state.check();
    changed
}

fn cancel(state: &mut State, server: u64) -> Result<bool, Refusal> {
    let (server, wish) = (ServerId(server), DrainWish::Cancel);
    state.set_draining(DrainServer { server, wish })
}

fn leave(state: &mut State, server: u64) -> Result<(), Refusal> {
    let (cluster, server) = (ClusterId(1), ServerId(server));
    let left = state.leave(LeaveCluster { cluster, server });
    state.check();
    left
}

fn move_all(state: &mut State, from: u64, to: u64) {
    for table in state.tables.values_mut() {
        for tablet in &mut Arc::make_mut(table).tablets {
            if tablet.owner == ServerId(from) {
                tablet.owner = ServerId(to);
            }
        }
    }
}

fn owners(state: &State, table: TableId) -> BTreeSet<u64> {
    let tablets = &state.tables[&table].tablets;
    tablets.iter().map(|t| t.owner.0).collect()
}

#[test]
fn a_drain_changes_the_list_once_and_can_be_taken_back() {
    let (mut state, _) = state(3);
    let before = state.clone();
    assert_eq!(drain(&mut state, 2), Ok(true));
    state.settle_list(&before);
    assert!(state.globals.list_version > before.globals.list_version);
    assert!(state.list().get(ServerId(2)).unwrap().draining);
    assert!(state.wants_drain(ServerId(2)));
    assert_eq!(drain(&mut state, 2), Ok(false));
    assert_eq!(cancel(&mut state, 2), Ok(true));
    assert_eq!(cancel(&mut state, 2), Ok(false));
    assert!(!state.wants_drain(ServerId(2)));
}

// shows: COORD-16
#[test]
fn a_drained_server_gets_no_tablets_while_others_can_have_them() {
    let (mut state, _) = state(3);
    drain(&mut state, 2).unwrap();
    let table = create(&mut state, "next", None);
    assert_eq!(owners(&state, table), BTreeSet::from([1, 3]));
    // Nobody else is left.
    for server in [1, 3] {
        state.mark_crashed(ServerId(server));
    }
    let table = create(&mut state, "last", None);
    assert_eq!(owners(&state, table), BTreeSet::from([2]));
}

#[test]
fn whoever_would_be_the_last_is_not_drained() {
    let (mut state, _) = state(3);
    enlist(&mut state, 9, true);
    assert!(drain(&mut state, 1).is_ok() && drain(&mut state, 2).is_ok());
    let refused = drain(&mut state, 3).unwrap_err();
    assert!(
        refused.to_string().contains("start another one"),
        "{refused}"
    );
    // The one before had somebody; whose crash leaves both alone.
    state.mark_crashed(ServerId(3));
    for server in [1, 2] {
        assert!(state.drain_of(ServerId(server)).alone);
        assert_eq!(
            drain(&mut state, server),
            Ok(false),
            "it is drained already"
        );
    }
    for (server, words) in [(3, "has crashed"), (99, "there is no server 99")] {
        let refused = drain(&mut state, server).unwrap_err();
        assert!(refused.to_string().contains(words), "{refused}");
        assert!(cancel(&mut state, server).is_err());
    }
}

#[test]
fn a_crash_ends_a_drain() {
    let (mut state, _) = state(3);
    drain(&mut state, 2).unwrap();
    state.mark_crashed(ServerId(2));
    assert!(!state.list().get(ServerId(2)).unwrap().draining);
    assert!(!state.wants_drain(ServerId(2)));
}

// shows: COORD-4, COORD-17
#[test]
fn a_server_leaves_only_when_nothing_is_lost_by_it() {
    let (mut state, table) = state(3);
    let put_off = |left: Result<(), Refusal>| matches!(left, Err(Refusal::Retry { .. }));
    assert!(put_off(leave(&mut state, 2)), "it has a tablet");
    move_all(&mut state, 2, 1);
    let moving = crate::state::MoveRecord {
        id: MigrationId(1),
        range: state.tables[&table].tablets[0].range,
        from: ServerId(2),
        to: ServerId(1),
        stage: crate::state::MoveStage::Moved,
    };
    state.table_mut(table).unwrap().moves.push(moving);
    assert!(
        put_off(leave(&mut state, 2)),
        "it has not forgotten its tablet"
    );
    state.table_mut(table).unwrap().moves.clear();
    state.mark_crashed(ServerId(3));
    assert!(put_off(leave(&mut state, 2)), "its replicas may be read");
    move_all(&mut state, 3, 1);
    for tablet in &mut state.table_mut(table).unwrap().tablets {
        tablet.state = TabletState::Normal;
    }
    state.servers.remove(&ServerId(3));
    assert_eq!(leave(&mut state, 2), Ok(()));
    assert!(!state.servers.contains_key(&ServerId(2)));
    // Its answer was lost.
    assert_eq!(leave(&mut state, 2), Ok(()));
    assert!(leave(&mut state, 99).is_err(), "nobody had this id");
    let (cluster, server) = (ClusterId(7), ServerId(1));
    assert!(state.leave(LeaveCluster { cluster, server }).is_err());
    let next = enlist(&mut state, 20, false);
    assert_eq!(next, ServerId(4), "no id is given twice");
}

// shows: COORD-17
#[test]
fn a_server_that_was_declared_dead_does_not_leave_in_order() {
    let (mut state, _) = state(3);
    state.mark_crashed(ServerId(2));
    assert!(leave(&mut state, 2).unwrap_err().fatal_kind().is_some());
}

#[test]
fn shares_of_a_table_follow_the_width_of_its_tablets() {
    let (mut state, table) = state(1);
    let record = state.table_mut(table).unwrap();
    record.cut(KeyHash(1 << 62));
    let (quarter, rest) = (record.tablets[0].range, record.tablets[1].range);
    let share = |range| share_of(&state.tables[&table], ServerId(1), range, 1000);
    assert_eq!((share(quarter), share(rest)), (250, 750));
}

#[test]
fn only_settled_tablets_are_movable() {
    let (mut state, table) = state(2);
    assert_eq!(state.movable(ServerId(1)).len(), 1);
    assert_eq!(state.unsettled(ServerId(1)), None);
    for tablet in &mut state.table_mut(table).unwrap().tablets {
        tablet.state = TabletState::Assigning;
    }
    assert_eq!(state.movable(ServerId(1)), []);
    assert!(state.unsettled(ServerId(1)).unwrap().starts_with("1 of"));
}

#[test]
fn a_server_that_gave_a_tablet_up_is_asked_again_when_the_others_have_no_room() {
    let receivers = [(1, 100), (2, 1)].map(|(id, free)| Receiver {
        id: ServerId(id),
        free: free << 20,
        tablets: 0,
    });
    let tablet = Waiting {
        table: TableId(7),
        range: HashRange::ALL,
        bytes: 50 << 20,
    };
    let mut progress = Progress::default();
    let key = (tablet.table, tablet.range.first, ServerId(1));
    progress.failed.insert(key);
    let mut deal = || {
        let mut plan = Plan::new(receivers.to_vec(), tablet.bytes);
        let dealt = progress.deal(&mut plan, &tablet, Cut::Never);
        dealt.map(|deal| deal.to)
    };
    let why = deal().unwrap_err();
    assert!(why.contains("no room for a tablet of 50 MiB"), "{why}");
    assert_eq!(deal(), Ok(ServerId(1)));
}

#[test]
fn when_all_have_given_a_tablet_up_the_last_reason_is_told() {
    let receiver = Receiver {
        id: ServerId(1),
        free: 100 << 20,
        tablets: 0,
    };
    let tablet = Waiting {
        table: TableId(7),
        range: HashRange::ALL,
        bytes: 1,
    };
    let mut progress = Progress {
        why: Some("it was given up".to_owned()),
        ..Progress::default()
    };
    let key = (tablet.table, tablet.range.first, ServerId(1));
    progress.failed.insert(key);
    let told = progress.deal(&mut Plan::new(vec![receiver], 1), &tablet, Cut::Never);
    assert_eq!(told.map(|deal| deal.to), Err("it was given up".to_owned()));
}

#[test]
fn what_was_planned_before_a_drain_was_taken_back_does_not_move() {
    let (mut state, table) = state(2);
    let tablets = &state.tables[&table].tablets;
    let range = tablets.iter().find(|t| t.owner == ServerId(1));
    let request = MigrateTablet {
        table: TableRef::Id(table),
        tablet: WhichTablet::Range(range.unwrap().range),
        to: ServerId(2),
    };
    drain(&mut state, 1).unwrap();
    cancel(&mut state, 1).unwrap();
    assert!(state.begin_drain_move(ServerId(1), &request).is_err());
    drain(&mut state, 1).unwrap();
    assert!(state.begin_drain_move(ServerId(1), &request).is_ok());
}
