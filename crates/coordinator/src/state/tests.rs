//! Loading, checking and numbering of states.

use super::*;
use crate::store::MemoryStore;
use crate::testing;
use futures_util::FutureExt as _;
use pluvio_units::{HashKind, HashRange, KeyHash, LogId, SegmentId};

/// A state of two servers with a table of two tablets, as it is stored.
fn stored() -> BTreeMap<String, Bytes> {
    let mut state = State::new(ClusterId(1));
    let mut server = |id| {
        let info = testing::server(id, format!("server-{id}"));
        let record = ServerRecord::new(info, id);
        state.servers.insert(ServerId(id), Arc::new(record));
    };
    server(1);
    server(2);
    let table = TableRecord {
        id: TableId(1),
        name: "t".into(),
        seed: 0,
        hash: HashKind::Seeded,
        dropping: false,
        tablets: vec![
            TabletRecord::new(HashRange::new(KeyHash(0), KeyHash(99)), ServerId(1)),
            TabletRecord::new(HashRange::new(KeyHash(100), KeyHash(u64::MAX)), ServerId(2)),
        ],
        cuts: Vec::new(),
        kept: BTreeSet::new(),
        moves: Vec::new(),
        quota: None,
        class: None,
    };
    state.tables.insert(TableId(1), Arc::new(table));
    state.check();
    let puts = state.all_changes().into_iter().map(|change| match change {
        Change::Put { key, value } => (key, value),
        Change::Delete { key } => panic!("{key} is not there"),
    });
    puts.collect()
}

fn load(entries: BTreeMap<String, Bytes>) -> Result<Option<State>, LoadError> {
    let store = MemoryStore::new();
    store.replace(entries);
    let loaded = State::load(&store).now_or_never();
    loaded.expect("memory answers at once")
}

fn key(prefix: &str, id: u64) -> String {
    format!("{prefix}{id:016x}")
}

#[test]
fn what_was_stored_is_read_and_holds() {
    let state = load(stored()).unwrap().unwrap();
    assert_eq!((state.servers.len(), state.tables.len()), (2, 1));
    assert_eq!(state.holds(), Ok(()));
    assert!(load(BTreeMap::new()).unwrap().is_none());
}

/// A table as it was stored before there were kinds of hashes.
#[derive(Serialize)]
struct EarlierTable<'a> {
    id: TableId,
    name: &'a str,
    seed: u64,
    dropping: bool,
    tablets: &'a [TabletRecord],
    cuts: &'a [KeyHash],
}

#[test]
fn a_table_without_a_kind_of_hash_is_seeded() {
    let state = load(stored()).unwrap().unwrap();
    let table = &state.tables[&TableId(1)];
    let earlier = EarlierTable {
        id: table.id,
        name: &table.name,
        seed: table.seed,
        dropping: false,
        tablets: &table.tablets,
        cuts: &[],
    };
    let mut entries = stored();
    let bytes = rmp_serde::to_vec_named(&earlier).unwrap();
    entries.insert(key(TABLES, 1), bytes.into());
    let loaded = load(entries).unwrap().unwrap();
    assert_eq!(loaded.tables[&TableId(1)], state.tables[&TableId(1)]);
    assert_eq!(loaded.globals.format, FORMAT);
}

/// A server's record, as programs had it that knew no length of the head before the end.
#[derive(Serialize, serde::Deserialize)]
struct EarlierServer {
    info: ServerInfo,
    attempt: u64,
    epochs: Epochs,
    had: BTreeMap<TableId, Width>,
    ends: Places,
    ends_bind: bool,
}

// shows: COORD-13
#[test]
fn ends_are_read_by_earlier_programs_and_from_them() {
    let mut record = ServerRecord::new(testing::server(2, "server-2"), 2);
    record.ends_bind = true;
    let last = Places::from([(LogId(0), (SegmentId(9), 70))]);
    record.set_ends(Ends {
        last: last.clone(),
        before: Places::from([(LogId(0), (SegmentId(8), 90))]),
    });
    let bytes = Bytes::from(rmp_serde::to_vec_named(&record).unwrap());
    assert_eq!(get::<ServerRecord>("new", &bytes).unwrap(), record);
    let earlier: EarlierServer = get("earlier", &bytes).unwrap();
    assert_eq!((&earlier.ends, earlier.ends_bind), (&last, true));
    let bytes = Bytes::from(rmp_serde::to_vec_named(&earlier).unwrap());
    let forgotten: ServerRecord = get("forgotten", &bytes).unwrap();
    let before = Places::new();
    assert_eq!(forgotten.ends(), Ends { last, before });
}

#[test]
fn a_tablet_of_a_slot_table_that_ends_within_a_slot_breaks_a_rule() {
    let mut state = load(stored()).unwrap().unwrap();
    state.table_mut(TableId(1)).unwrap().hash = HashKind::Slots;
    assert!(state.holds().unwrap_err().contains("COORD-5"));
}

/// COORD-12.
// shows: COORD-12, MASTER-6
#[test]
fn each_stored_change_has_the_next_number() {
    let before = load(stored()).unwrap().unwrap();
    let mut after = before.clone();
    assert!(after.changes_since(&before).is_empty());
    assert_eq!(after.globals.version, before.globals.version);
    after.table_mut(TableId(1)).unwrap().cuts.push(KeyHash(5));
    assert_eq!(after.changes_since(&before).len(), 2);
    assert_eq!(after.globals.version, before.globals.version.next());
    let mut dropped = after.clone();
    dropped.tables.clear();
    assert_eq!(dropped.changes_since(&after).len(), 2);
    assert_eq!(dropped.globals.version, after.globals.version.next());

    // An earlier program has led meanwhile.
    after.globals.version = MetadataVersion::default();
    dropped.globals.version = MetadataVersion::default();
    assert_eq!(dropped.changes_since(&after).len(), 2);
    assert_eq!(dropped.globals.version, MetadataVersion::default());
}

// shows: COORD-4, COORD-5
#[test]
fn an_owner_that_is_missing_is_told() {
    let mut entries = stored();
    entries.remove(&key(SERVERS, 2)).unwrap();
    let broken = load(entries).unwrap().unwrap().holds().unwrap_err();
    assert!(broken.contains("server 2, which is not listed"), "{broken}");
}

// shows: COORD-4, COORD-5
#[test]
fn tablets_with_a_gap_or_an_overlap_are_told() {
    const LAST: u64 = u64::MAX;
    let state = load(stored()).unwrap().unwrap();
    // Behind a tablet up to hash 99.
    let held = |ranges: &[(u64, u64)]| {
        let mut state = state.clone();
        let table = state.table_mut(TableId(1)).unwrap();
        table.tablets.truncate(1);
        for (first, last) in ranges {
            let range = HashRange::new(KeyHash(*first), KeyHash(*last));
            table.tablets.push(TabletRecord::new(range, ServerId(2)));
        }
        state.holds()
    };
    assert_eq!(held(&[(100, LAST)]), Ok(()));
    let cases: [&[(u64, u64)]; 5] = [
        &[],
        &[(101, LAST)],
        &[(99, LAST)],
        &[(100, LAST - 1)],
        &[(100, LAST), (100, LAST)],
    ];
    for ranges in cases {
        let broken = held(ranges).unwrap_err();
        assert!(broken.contains("tablets of table 1"), "{broken}");
    }
}

#[test]
fn what_is_left_of_a_cluster_begins_no_new_one() {
    for prefix in [SERVERS, TABLES] {
        let mut entries = stored();
        entries.retain(|key, _| key.starts_with(prefix));
        let left = load(entries);
        assert!(
            matches!(&left, Err(LoadError::Damaged(what)) if what.contains("globals is missing")),
            "{prefix}"
        );
    }
}
