//! Moves for the sake of balance, as the state judges them, and the memory of balancing.

use super::*;
use crate::testing::{self, NoChoice};
use pluvio_units::{ClusterId, HashKind};
use pluvio_wire::{CreateTable, Enlist, PROTOCOL_VERSION, TabletState};

/// Three servers, and a table with a tablet on each.
fn state() -> (State, TableId) {
    let mut state = State::new(ClusterId(1));
    for attempt in 1..=3 {
        let request = Enlist {
            protocol: PROTOCOL_VERSION,
            expects: None,
            cluster: None,
            replaces: None,
            attempt,
            logs: 0,
            info: testing::server(0, attempt.to_string()),
        };
        assert!(state.enlist(request).is_ok());
    }
    let create = CreateTable {
        name: "t".into(),
        span: None,
        hash: HashKind::Seeded,
        quota: pluvio_wire::QuotaWish::default(),
        durability: pluvio_wire::DurabilityWish::default(),
    };
    let table = state.create_table(create, 1, &NoChoice).unwrap();
    for tablet in &mut state.table_mut(table).unwrap().tablets {
        tablet.state = TabletState::Normal;
    }
    (state, table)
}

fn request(state: &State, table: TableId) -> MigrateTablet {
    let tablet = state.tables[&table].tablets[0];
    let to = { state.up() }.find(|info| info.id != tablet.owner).unwrap();
    MigrateTablet {
        table: TableRef::Id(table),
        tablet: WhichTablet::Range(tablet.range),
        to: to.id,
    }
}

#[test]
fn what_was_planned_before_balancing_was_switched_off_does_not_move() {
    let (mut state, table) = state();
    let request = request(&state, table);
    state.globals.balance_off = true;
    assert!(state.begin_balance_move(&request).is_err());
    state.globals.balance_off = false;
    let begun = state.begin_balance_move(&request).unwrap();
    assert!(begun.migration.is_some());
    // One at a time.
    assert!(state.begin_balance_move(&request).is_err());
    state.check();
}

#[test]
fn what_was_planned_before_a_server_crashed_does_not_move() {
    let (mut state, table) = state();
    let request = request(&state, table);
    let other = { state.up() }.find(|info| info.id != request.to);
    let other = other.unwrap().id;
    assert!(state.mark_crashed(other));
    assert!(state.begin_balance_move(&request).is_err());
}

#[test]
fn a_tablet_rests_also_when_it_was_joined_with_the_one_below() {
    let now = Moment(Duration::from_secs(100));
    let mut noted = Noted::default();
    let parts = HashRange::ALL.split(4);
    let (table, joined) = (TableId(1), HashRange::new(parts[1].first, parts[2].last));
    noted.note(table, parts[2].first, now);
    assert!(noted.touches(table, parts[2]) && noted.touches(table, joined));
    assert!(!noted.touches(table, parts[1]) && !noted.touches(TableId(2), joined));
    let rest = Duration::from_secs(10);
    noted.settle(now + Duration::from_secs(9), rest);
    assert!(noted.touches(table, joined));
    noted.settle(now + rest, rest);
    assert!(!noted.touches(table, joined));
    for first in 0..=REMEMBERED_MAX as u64 {
        noted.note(table, KeyHash(first), now);
    }
    noted.settle(now, rest);
    assert_eq!(noted.0.len(), REMEMBERED_MAX);
}
