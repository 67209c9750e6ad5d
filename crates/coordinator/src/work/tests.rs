//! What the state says of tables: creating, dropping, splitting.

use crate::state::{State, TABLETS_MAX, TableRecord};
use crate::testing::{self, NoChoice};
use crate::work::assign::Candidates;
use pluvio_env::Rng;
use pluvio_units::{ClusterId, HashKind, KeyHash, ServerId, TableId};
use pluvio_wire::{
    CreateTable, Enlist, FatalKind, PROTOCOL_VERSION, QUOTAS_SINCE, QuotaWish, Refusal, SetTable,
    SplitTablet, TableRef, TabletState,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

fn cluster(servers: u64) -> State {
    let mut state = State::new(ClusterId(1));
    for attempt in 1..=servers {
        let info = testing::server(0, attempt.to_string());
        let request = Enlist {
            protocol: PROTOCOL_VERSION,
            expects: None,
            cluster: None,
            replaces: None,
            attempt,
            logs: 0,
            info,
        };
        state.enlist(request).unwrap();
    }
    state
}

fn create(state: &mut State, name: &str, span: Option<u32>) -> Result<TableId, Refusal> {
    create_with(state, name, span, &NoChoice)
}

fn create_with(
    state: &mut State,
    name: &str,
    span: Option<u32>,
    rng: &dyn Rng,
) -> Result<TableId, Refusal> {
    let name = name.to_owned();
    let id = state.create_table(
        CreateTable {
            name,
            span,
            hash: HashKind::Seeded,
            quota: pluvio_wire::QuotaWish::default(),
            durability: pluvio_wire::DurabilityWish::default(),
        },
        1,
        rng,
    )?;
    state.check();
    Ok(id)
}

#[test]
fn tablets_go_to_the_servers_that_have_fewest() {
    let mut state = cluster(4);
    for n in 0..8 {
        create(&mut state, &format!("t{n}"), Some(1)).unwrap();
    }
    assert!(state.loads().values().all(|load| *load == 2));
    let wide = create(&mut state, "wide", None).unwrap();
    assert_eq!(state.tables[&wide].tablets.len(), 4);
    let wider = create(&mut state, "wider", Some(100)).unwrap();
    assert_eq!(state.tables[&wider].tablets.len(), 4);
}

/// Each number is another one.
#[derive(Default)]
struct Numbers(AtomicU64);

impl Rng for Numbers {
    fn next_u64(&self) -> u64 {
        let number = self.0.fetch_add(1, Relaxed) + 1;
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

#[test]
fn a_table_that_is_emptied_stays_where_it_is() {
    let mut state = cluster(5);
    let numbers = Numbers::default();
    let mut lies = Vec::new();
    for _ in 0..20 {
        let id = create_with(&mut state, "t", None, &numbers).unwrap();
        let tablets = &state.tables[&id].tablets;
        let owners: Vec<_> = tablets.iter().map(|t| (t.range, t.owner)).collect();
        lies.push(owners);
        state.drop_table(&TableRef::Name("t".into()), true).unwrap();
    }
    assert!(lies.iter().all(|owners| *owners == lies[0]), "{lies:?}");
    // Which servers have a table that is on some of them only is chance.
    let some = (0..20).map(|n| create_with(&mut state, &format!("t{n}"), Some(1), &numbers));
    let some: BTreeSet<_> = some.map(Result::unwrap).collect();
    let first = some
        .iter()
        .take(5)
        .map(|id| state.tables[id].tablets[0].owner);
    assert_eq!(first.collect::<BTreeSet<_>>().len(), 5);
}

#[test]
fn a_name_has_one_table() {
    let mut state = cluster(1);
    let id = create(&mut state, "t", None).unwrap();
    assert_eq!(create(&mut state, "t", None), Ok(id));
    state
        .drop_table(&TableRef::Name("t".into()), false)
        .unwrap();
    let gone = state.drop_table(&TableRef::Name("t".into()), false);
    assert_eq!(gone.unwrap_err().fatal_kind(), Some(FatalKind::NoSuchTable));
    assert_ne!(create(&mut state, "t", None), Ok(id));
    assert!(create(&mut state, "", None).is_err());
    assert!(create(&mut state, "u", Some(0)).is_err());
}

fn set_bytes(state: &mut State, bytes: u64) -> Result<TableId, Refusal> {
    state.set_table(&SetTable {
        table: TableRef::Name("t".into()),
        quota: QuotaWish {
            bytes: Some(bytes),
            operations: None,
        },
    })
}

#[test]
fn a_quota_stays_with_its_table_and_with_its_name_when_that_is_emptied() {
    let mut state = cluster(1);
    let id = create(&mut state, "t", None).unwrap();
    assert!(!state.wants_quotas());
    set_bytes(&mut state, 77).unwrap();
    let quota = |state: &State, id| state.tables[&id].quota.and_then(|quota| quota.bytes);
    assert_eq!(quota(&state, id), Some(77));
    let record = &state.tables[&id];
    assert_eq!(record.spec(&record.tablets[0]).quota.bytes, Some(77));
    let named = TableRef::Name("t".into());
    state.drop_table(&named, true).unwrap();
    let id = create(&mut state, "t", None).unwrap();
    assert_eq!(quota(&state, id), Some(77));
    assert!(state.globals.kept_quotas.is_empty());
    // Lifted, and its owners are still to hear of it.
    set_bytes(&mut state, 0).unwrap();
    assert!(quota(&state, id).is_none() && state.wants_quotas());
    set_bytes(&mut state, 78).unwrap();
    state.drop_table(&named, false).unwrap();
    let id = create(&mut state, "t", None).unwrap();
    assert_eq!(state.tables[&id].quota, None);
    assert!(set_bytes(&mut state, u64::MAX).is_err());
    // A table that was emptied, and is dropped before there is another one.
    set_bytes(&mut state, 79).unwrap();
    state.drop_table(&named, true).unwrap();
    assert_eq!(state.drop_table(&named, false), Ok(None));
    assert!(state.drop_table(&named, false).is_err());
    let id = create(&mut state, "t", None).unwrap();
    assert_eq!(state.tables[&id].quota, None);
}

#[test]
fn a_cluster_of_the_version_before_has_no_quotas() {
    let mut state = cluster(1);
    create(&mut state, "t", None).unwrap();
    state.globals.active = QUOTAS_SINCE - 1;
    let refused = set_bytes(&mut state, 1).unwrap_err();
    assert_eq!(refused.fatal_kind(), Some(FatalKind::WrongVersion));
    assert!(refused.to_string().contains("finalize") && !state.wants_quotas());
}

#[test]
fn a_cluster_has_4096_tables_at_most() {
    let mut state = cluster(1);
    let first = create(&mut state, "t", None).unwrap();
    let record = TableRecord::clone(&state.tables[&first]);
    for id in (2..=4095).map(TableId) {
        let name = format!("t{id}");
        let record = record.clone();
        let other = TableRecord { id, name, ..record };
        state.tables.insert(id, Arc::new(other));
    }
    state.globals.last_table = TableId(4095);
    create(&mut state, "last", None).unwrap();
    let before = state.clone();
    let refused = create(&mut state, "more", None).unwrap_err();
    assert_eq!(refused.fatal_kind(), Some(FatalKind::Other));
    assert!(state.tables == before.tables && state.globals == before.globals);
    // One that is there is found, and one that is gone makes room.
    assert_eq!(create(&mut state, "t", None), Ok(first));
    state.tables.remove(&first);
    create(&mut state, "more", None).unwrap();
}

#[test]
fn a_table_has_1024_tablets_at_most() {
    let mut state = cluster(1030);
    let id = create(&mut state, "t", Some(5000)).unwrap();
    let tablets = &mut state.table_mut(id).unwrap().tablets;
    assert_eq!(tablets.len(), 1024);
    for tablet in tablets {
        tablet.state = TabletState::Normal;
    }
    let before = state.clone();
    let table = TableRef::Id(id);
    let refused = state.split(&SplitTablet { table, at: None }).unwrap_err();
    assert_eq!(refused.fatal_kind(), Some(FatalKind::Other));
    assert!(state.tables == before.tables);
}

#[test]
fn without_servers_a_table_waits() {
    let mut state = cluster(0);
    let refused = create(&mut state, "t", None).unwrap_err();
    assert!(matches!(refused, Refusal::Retry { .. }));
}

#[test]
fn tablets_of_a_crashed_owner_that_hold_nothing_are_given_to_others() {
    let mut state = cluster(2);
    let id = create(&mut state, "t", None).unwrap();
    let crash = |state: &mut State, server| {
        state.mark_crashed(server);
        state.reassign(id, &BTreeSet::from([server]), &Candidates::All, &NoChoice)
    };
    assert!(crash(&mut state, ServerId(1)));
    let tablets = &state.tables[&id].tablets;
    assert!(tablets.iter().all(|t| t.owner == ServerId(2)));
    assert!(!crash(&mut state, ServerId(2)));
}

// shows: COORD-4, COORD-5
#[test]
fn a_split_keeps_the_cover_and_repeats_harmlessly() {
    let mut state = cluster(1);
    let id = create(&mut state, "t", None).unwrap();
    let split = |state: &mut State, at: Option<u64>| {
        let request = SplitTablet {
            table: TableRef::Id(id),
            at: at.map(KeyHash),
        };
        let result = state.split(&request);
        state.check();
        result.map(|_| state.tables[&id].tablets.len())
    };
    assert!(split(&mut state, None).is_err(), "not confirmed yet");
    state.table_mut(id).unwrap().tablets[0].state = TabletState::Normal;
    assert_eq!(split(&mut state, None), Ok(2));
    assert_eq!(split(&mut state, Some(1 << 63)), Ok(2));
    assert_eq!(split(&mut state, Some(0)), Ok(2));
    assert_eq!(split(&mut state, Some(1)), Ok(3));
    assert_eq!(split(&mut state, Some(u64::MAX)), Ok(4));
    let cuts = &state.tables[&id].cuts;
    assert_eq!(*cuts, [KeyHash(1 << 63), KeyHash(1), KeyHash(u64::MAX)]);
    while state.tables[&id].tablets.len() < TABLETS_MAX {
        split(&mut state, None).unwrap();
    }
    assert!(split(&mut state, None).unwrap_err().fatal_kind().is_some());
}
