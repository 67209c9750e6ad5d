//! Everything the coordinator knows, and how it is stored.
//!
//! ```text
//! globals                 Globals
//! server/<id, 16 hex>     ServerRecord
//! table/<id, 16 hex>      TableRecord
//! ```
//! All values are msgpack with field names. A [`State`] is cheap to clone: a change clones it,
//! alters the clone, and stores what differs.

use crate::store::{Change, MetadataStore, StoreError};
use bytes::Bytes;
use pluvio_units::{
    ClusterId, HashRange, KeyHash, LogId, MetadataVersion, MigrationId, RecoveryId,
    ReplicationEpoch, SegmentId, ServerId, ServerListVersion, TableId,
};
use pluvio_wire::{
    FatalKind, Refusal, ServerInfo, ServerList, ServerState, TableInfo, TableRef, TabletInfo,
    TabletSpec, TabletState,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Version of the stored records. Another one is refused at start.
const FORMAT: u16 = 1;

pub(crate) const GLOBALS: &str = "globals";
const SERVERS: &str = "server/";
const TABLES: &str = "table/";

/// What there is one of.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Globals {
    format: u16,
    pub(crate) cluster: ClusterId,
    /// Of all that is stored (COORD-12). Stays 0 in metadata of a program that did not count: one
    /// such program may lead again, and would set it back.
    #[serde(default)]
    pub(crate) version: MetadataVersion,
    pub(crate) list_version: ServerListVersion,
    pub(crate) grown: bool,
    pub(crate) last_server: ServerId,
    pub(crate) last_table: TableId,
    pub(crate) last_recovery: RecoveryId,
    #[serde(default)]
    pub(crate) last_migration: MigrationId,
}

/// One server in the list.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct ServerRecord {
    pub(crate) info: ServerInfo,
    /// What its process drew at start.
    pub(crate) attempt: u64,
    /// Per log: the open segment that lost a replica last, and its epoch since.
    pub(crate) epochs: Epochs,
    /// Of a crashed server: how much of each table it had when it crashed. Its statistics are
    /// about all of that, also when some has been recovered already.
    pub(crate) had: BTreeMap<TableId, Width>,
}

/// How many key hashes, in units of 2^16: the whole range is 2^48.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Width(pub(crate) u64);

impl Width {
    pub(crate) fn of(range: HashRange) -> Self {
        // At least one: smaller ranges than the unit hold something, too.
        Self(((range.last.0 - range.first.0) >> 16) + 1)
    }
}

/// See [`ServerRecord::epochs`].
pub(crate) type Epochs = BTreeMap<LogId, (SegmentId, ReplicationEpoch)>;

/// One table.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct TableRecord {
    pub(crate) id: TableId,
    pub(crate) name: String,
    pub(crate) seed: u64,
    /// It has no name any more; its tablets are listed until their owners have forgotten them.
    pub(crate) dropping: bool,
    /// By ascending range.
    pub(crate) tablets: Vec<TabletRecord>,
    /// Cuts that the owner has not confirmed yet: first hashes of upper parts.
    pub(crate) cuts: Vec<KeyHash>,
    /// Migrations that have not ended for everybody.
    #[serde(default)]
    pub(crate) moves: Vec<MoveRecord>,
}

/// One tablet.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct TabletRecord {
    pub(crate) range: HashRange,
    pub(crate) owner: ServerId,
    pub(crate) state: TabletState,
    /// The partition of the recovery by which its owner got it (COORD-6).
    pub(crate) recovered_by: Option<(RecoveryId, u32)>,
    /// The migration by which its owner got it (COORD-6).
    #[serde(default)]
    pub(crate) moved_by: Option<MigrationId>,
    /// Where its owner's log of it begins.
    #[serde(default)]
    pub(crate) since: SegmentId,
}

impl TabletRecord {
    /// A tablet that holds nothing and that its owner has not confirmed.
    pub(crate) fn new(range: HashRange, owner: ServerId) -> Self {
        Self {
            range,
            owner,
            state: TabletState::Assigning,
            recovered_by: None,
            moved_by: None,
            since: SegmentId(0),
        }
    }
}

/// One migration.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct MoveRecord {
    pub(crate) id: MigrationId,
    /// The tablet.
    pub(crate) range: HashRange,
    /// Who had it when the migration began.
    pub(crate) from: ServerId,
    /// Who is to have it.
    pub(crate) to: ServerId,
    pub(crate) stage: MoveStage,
}

/// How far a migration is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MoveStage {
    /// The receiver is to take the tablet over; `from` owns it.
    Copying,
    /// `to` owns it; `from` is to forget it.
    Moved,
    /// It was given up; `from` is to serve the tablet as before.
    Stays,
}

impl TableRecord {
    pub(crate) fn has(&self, state: TabletState) -> bool {
        self.tablets.iter().any(|t| t.state == state)
    }

    pub(crate) fn spec(&self, tablet: &TabletRecord) -> TabletSpec {
        TabletSpec {
            table: self.id,
            seed: self.seed,
            range: tablet.range,
            since: tablet.since,
        }
    }

    /// COORD-5.
    fn cover_holds(&self) -> Result<(), String> {
        if self.dropping {
            return Ok(());
        }
        let broken = || {
            let id = self.id;
            Err(format!(
                "the tablets of table {id} do not cover every hash once (COORD-5)"
            ))
        };
        let mut next = Some(0);
        for tablet in &self.tablets {
            if next != Some(tablet.range.first.0) {
                return broken();
            }
            next = tablet.range.last.0.checked_add(1);
        }
        match next {
            None => Ok(()),
            Some(_) => broken(),
        }
    }

    /// Cuts the tablet that holds `at`, so that `at` is the first hash of the upper part. False
    /// when it is cut there already.
    pub(crate) fn cut(&mut self, at: KeyHash) -> bool {
        let index = self
            .tablets
            .iter()
            .position(|t| t.range.contains(at))
            .expect("tablets cover every hash (COORD-5)");
        let lower = &mut self.tablets[index];
        if lower.range.first == at {
            return false;
        }
        let mut upper = *lower;
        upper.range.first = at;
        lower.range.last = KeyHash(at.0 - 1);
        self.tablets.insert(index + 1, upper);
        true
    }
}

/// Everything the coordinator must not forget.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) globals: Globals,
    pub(crate) servers: BTreeMap<ServerId, Arc<ServerRecord>>,
    pub(crate) tables: BTreeMap<TableId, Arc<TableRecord>>,
}

impl State {
    /// The state of a new cluster.
    pub(crate) fn new(cluster: ClusterId) -> Self {
        Self {
            globals: Globals {
                format: FORMAT,
                cluster,
                version: MetadataVersion(1),
                list_version: ServerListVersion(1),
                grown: false,
                last_server: ServerId(0),
                last_table: TableId(0),
                last_recovery: RecoveryId(0),
                last_migration: MigrationId(0),
            },
            servers: BTreeMap::new(),
            tables: BTreeMap::new(),
        }
    }

    pub(crate) fn is_up(&self, server: ServerId) -> bool {
        self.servers
            .get(&server)
            .is_some_and(|s| s.info.state == ServerState::Up)
    }

    /// Servers that are up, by ascending id.
    pub(crate) fn up(&self) -> impl Iterator<Item = &ServerInfo> {
        self.servers
            .values()
            .map(|s| &s.info)
            .filter(|info| info.state == ServerState::Up)
    }

    pub(crate) fn list(&self) -> ServerList {
        ServerList {
            version: self.globals.list_version,
            servers: self.servers.values().map(|s| s.info.clone()).collect(),
            grown: self.globals.grown,
        }
    }

    /// The table of a request; one that is being dropped is gone.
    pub(crate) fn find(&self, table: &TableRef) -> Result<&Arc<TableRecord>, Refusal> {
        let found = match table {
            TableRef::Id(id) => self.tables.get(id),
            TableRef::Name(name) => self
                .tables
                .values()
                .find(|t| t.name == *name && !t.dropping),
        };
        found
            .filter(|t| !t.dropping)
            .ok_or_else(|| no_such_table(table))
    }

    /// A table that is there, to be changed.
    pub(crate) fn table_mut(&mut self, id: TableId) -> Option<&mut TableRecord> {
        self.tables.get_mut(&id).map(Arc::make_mut)
    }

    pub(crate) fn info(&self, table: &TableRecord) -> TableInfo {
        let owners: BTreeSet<ServerId> = table.tablets.iter().map(|t| t.owner).collect();
        TableInfo {
            cluster: self.globals.cluster,
            id: table.id,
            name: table.name.clone(),
            seed: table.seed,
            tablets: table
                .tablets
                .iter()
                .map(|t| TabletInfo {
                    range: t.range,
                    owner: t.owner,
                    state: t.state,
                })
                .collect(),
            addresses: owners
                .into_iter()
                .filter_map(|id| Some((id, self.servers.get(&id)?.info.address.clone())))
                .collect(),
        }
    }

    /// All tables that have a name, by name.
    pub(crate) fn infos(&self) -> Vec<TableInfo> {
        let mut all: Vec<_> = self
            .tables
            .values()
            .filter(|t| !t.dropping)
            .map(|t| self.info(t))
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// How many tablets each server that is up has.
    pub(crate) fn loads(&self) -> BTreeMap<ServerId, usize> {
        let mut loads: BTreeMap<_, _> = self.up().map(|info| (info.id, 0)).collect();
        for tablet in self.tables.values().flat_map(|t| &t.tablets) {
            if let Some(load) = loads.get_mut(&tablet.owner) {
                *load += 1;
            }
        }
        loads
    }

    /// Whether a server owns a tablet, in whatever state.
    pub(crate) fn has_tablets(&self, server: ServerId) -> bool {
        self.tables
            .values()
            .any(|t| t.tablets.iter().any(|tablet| tablet.owner == server))
    }

    /// Raises the version of the server list if `before` has another one, and notes growth.
    pub(crate) fn settle_list(&mut self, before: &Self) {
        let infos = |state: &Self| -> Vec<ServerInfo> {
            state.servers.values().map(|s| s.info.clone()).collect()
        };
        if infos(self) != infos(before) {
            self.globals.list_version = before.globals.list_version.next();
            self.globals.grown |= self.up().count() > 1;
        }
    }

    /// The changes that lead from `before` to this state, which gets the next version with them
    /// (COORD-12); none when nothing differs.
    pub(crate) fn changes_since(&mut self, before: &Self) -> Vec<Change> {
        let mut batch = Vec::new();
        differences(&mut batch, SERVERS, &before.servers, &self.servers, |id| {
            id.0
        });
        differences(&mut batch, TABLES, &before.tables, &self.tables, |id| id.0);
        if !batch.is_empty() || self.globals != before.globals {
            if before.globals.version != MetadataVersion::default() {
                self.globals.version = before.globals.version.next();
            }
            batch.push(put(GLOBALS.to_owned(), &self.globals));
        }
        batch
    }

    /// Everything, as changes to an empty store.
    pub(crate) fn all_changes(&self) -> Vec<Change> {
        let mut batch = vec![put(GLOBALS.to_owned(), &self.globals)];
        differences(&mut batch, SERVERS, &BTreeMap::new(), &self.servers, |id| {
            id.0
        });
        differences(&mut batch, TABLES, &BTreeMap::new(), &self.tables, |id| {
            id.0
        });
        batch
    }

    /// What there is one of in a store; `None` when it holds no cluster.
    pub(crate) async fn globals_in(
        store: &dyn MetadataStore,
    ) -> Result<Option<Globals>, LoadError> {
        let found = store.get(GLOBALS).await?;
        let globals = found.map(|bytes| get::<Globals>(GLOBALS, &bytes));
        globals.transpose()
    }

    /// Which cluster a store holds; `None` when it holds none.
    pub(crate) async fn cluster_in(
        store: &dyn MetadataStore,
    ) -> Result<Option<ClusterId>, LoadError> {
        let globals = Self::globals_in(store).await?;
        Ok(globals.map(|globals| globals.cluster))
    }

    /// Reads a state, piece by piece; `None` from an empty store. Whether the pieces fit together
    /// is for [`State::holds`] to say.
    pub(crate) async fn load(store: &dyn MetadataStore) -> Result<Option<Self>, LoadError> {
        let Some(bytes) = store.get(GLOBALS).await? else {
            let servers = store.list_prefix(SERVERS).await?.len();
            let tables = store.list_prefix(TABLES).await?.len();
            return match servers + tables {
                0 => Ok(None),
                _ => Err(LoadError::Damaged(format!(
                    "{GLOBALS} is missing, but {servers} servers and {tables} tables are there"
                ))),
            };
        };
        let globals: Globals = get(GLOBALS, &bytes)?;
        if globals.format != FORMAT {
            return Err(LoadError::Format(globals.format));
        }
        let mut servers = BTreeMap::new();
        for (key, bytes) in store.list_prefix(SERVERS).await? {
            let record: ServerRecord = get(&key, &bytes)?;
            servers.insert(record.info.id, Arc::new(record));
        }
        let mut tables = BTreeMap::new();
        for (key, bytes) in store.list_prefix(TABLES).await? {
            let record: TableRecord = get(&key, &bytes)?;
            tables.insert(record.id, Arc::new(record));
        }
        Ok(Some(Self {
            globals,
            servers,
            tables,
        }))
    }

    /// Whether COORD-4, COORD-5 and COORD-7 hold, which every stored state keeps.
    ///
    /// # Errors
    /// What breaks one of them, for people.
    pub(crate) fn holds(&self) -> Result<(), String> {
        self.tables.values().try_for_each(|table| {
            self.owners_hold(table)?;
            table.cover_holds()?;
            self.moves_hold(table)
        })
    }

    /// [`State::holds`] of a state that was made here.
    pub(crate) fn check(&self) {
        assert_eq!(self.holds(), Ok(()));
    }

    /// COORD-4.
    fn owners_hold(&self, table: &TableRecord) -> Result<(), String> {
        let mut tablets = table.tablets.iter();
        match tablets.find(|tablet| !self.servers.contains_key(&tablet.owner)) {
            None => Ok(()),
            Some(tablet) => Err(format!(
                "tablet {} of table {} belongs to server {}, which is not listed (COORD-4)",
                tablet.range, table.id, tablet.owner
            )),
        }
    }
}

/// Why a stored state cannot be used.
#[derive(Debug)]
pub(crate) enum LoadError {
    Store(StoreError),
    /// The store has another version of records.
    Format(u16),
    /// A record cannot be decoded.
    Damaged(String),
}

pub(crate) fn no_such_table(table: &TableRef) -> Refusal {
    let which = match table {
        TableRef::Id(id) => format!("with id {id}"),
        TableRef::Name(name) => format!("{name:?}"),
    };
    Refusal::fatal(FatalKind::NoSuchTable, format!("there is no table {which}"))
}

impl From<StoreError> for LoadError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

fn put(key: String, record: &impl Serialize) -> Change {
    let value = rmp_serde::to_vec_named(record)
        .expect("writing msgpack to memory cannot fail: records hold no type that msgpack lacks");
    Change::Put {
        key,
        value: value.into(),
    }
}

fn get<T: DeserializeOwned>(key: &str, bytes: &Bytes) -> Result<T, LoadError> {
    rmp_serde::from_slice(bytes).map_err(|e| LoadError::Damaged(format!("{key}: {e}")))
}

fn differences<K: Ord + Copy, V: Serialize + PartialEq>(
    batch: &mut Vec<Change>,
    prefix: &str,
    before: &BTreeMap<K, Arc<V>>,
    after: &BTreeMap<K, Arc<V>>,
    number: impl Fn(K) -> u64,
) {
    let key = |id: K| format!("{prefix}{:016x}", number(id));
    for (id, record) in after {
        let same = before
            .get(id)
            .is_some_and(|old| Arc::ptr_eq(old, record) || old == record);
        if !same {
            batch.push(put(key(*id), &**record));
        }
    }
    for id in before.keys().filter(|id| !after.contains_key(id)) {
        batch.push(Change::Delete { key: key(*id) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;
    use crate::testing;
    use futures_util::FutureExt as _;

    /// A state of two servers with a table of two tablets, as it is stored.
    fn stored() -> BTreeMap<String, Bytes> {
        let mut state = State::new(ClusterId(1));
        let mut server = |id| {
            let info = testing::server(id, format!("server-{id}"));
            let record = ServerRecord {
                info,
                attempt: id,
                epochs: BTreeMap::new(),
                had: BTreeMap::new(),
            };
            state.servers.insert(ServerId(id), Arc::new(record));
        };
        server(1);
        server(2);
        let table = TableRecord {
            id: TableId(1),
            name: "t".into(),
            seed: 0,
            dropping: false,
            tablets: vec![
                TabletRecord::new(HashRange::new(KeyHash(0), KeyHash(99)), ServerId(1)),
                TabletRecord::new(HashRange::new(KeyHash(100), KeyHash(u64::MAX)), ServerId(2)),
            ],
            cuts: Vec::new(),
            moves: Vec::new(),
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
}
