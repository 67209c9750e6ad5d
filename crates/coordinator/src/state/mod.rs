//! Everything the coordinator knows, and how it is stored.
//!
//! ```text
//! globals                 Globals
//! server/<id, 16 hex>     ServerRecord
//! table/<id, 16 hex>      TableRecord
//! ```
//! All values are msgpack with field names. A [`State`] is cheap to clone: a change clones it,
//! alters the clone, and stores what differs.

mod classes;
mod records;
mod settings;

pub(crate) use classes::WeakLogs;
pub(crate) use records::{
    Ends, Epochs, GivenUp, Globals, MoveRecord, MoveStage, Places, ServerRecord, TABLETS_MAX,
    TableRecord, TabletRecord, Width,
};

use crate::refusals::no_such_table;
use crate::store::{Change, MetadataStore, StoreError};
use bytes::Bytes;
use pluvio_units::{
    ClusterId, MetadataVersion, MigrationId, ObjectVersion, RecoveryId, ServerId,
    ServerListVersion, TableId,
};
use pluvio_wire::{
    Refusal, ServerInfo, ServerList, ServerState, TableInfo, TableQuota, TableRef, TabletInfo,
    TabletState, Versions,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Version of the stored records of a cluster without slot tables.
const FORMAT: u16 = 1;
/// The version from the first slot table on. A program that does not know it would hash its keys as
/// those of a seeded table, and so is kept from leading. Later ones are refused here, too.
pub(crate) const FORMAT_SLOTS: u16 = 2;
/// The version from the first tablet on that was served before it had replicas of its own. A
/// program that does not know it would free those that the tablet stands on.
pub(crate) const FORMAT_EARLY: u16 = 3;
/// The version from the first durability class of a table on. An earlier program would forget the
/// classes, and so is kept from leading.
pub(crate) const FORMAT_CLASSES: u16 = 4;
/// The version from the first volatile class on. An earlier program would look for its logs.
pub(crate) const FORMAT_VOLATILE: u16 = 5;

pub(crate) const GLOBALS: &str = "globals";
const SERVERS: &str = "server/";
const TABLES: &str = "table/";

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
                settings: None,
                active: Versions::OWN.newest,
                balance_off: false,
                losses: Vec::new(),
                kept_quotas: BTreeMap::new(),
                classes: Vec::new(),
                kept_classes: BTreeMap::new(),
                begun_anew: 0,
                first_version: ObjectVersion(0),
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
            servers: self.servers.values().map(|s| s.info.clone()).collect(),
            ..self.list_without_servers()
        }
    }

    /// What a list says beside its servers.
    pub(crate) fn list_without_servers(&self) -> ServerList {
        ServerList {
            version: self.globals.list_version,
            servers: Vec::new(),
            grown: self.globals.grown,
            settings: self.globals.settings,
            active: self.globals.active,
            classes: self.globals.classes.clone(),
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
            hash: table.hash,
            quota: table.quota.unwrap_or(TableQuota::NONE),
            quota_state: None,
            class: table.class,
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

    /// Whether a crashed server must stay in the list. It must if it owns a tablet in whatever
    /// state, if one stands on it (COORD-14), or if its reads must have ended first (COORD-15).
    pub(crate) fn is_needed(&self, server: ServerId) -> bool {
        let mut tablets = self.tables.values().flat_map(|t| &t.tablets);
        let mut servers = self.servers.values();
        tablets.any(|t| t.owner == server || t.stands_on == Some(server))
            || servers.any(|s| s.readers.contains(&server))
    }

    /// Raises the version of the server list if `before` has another one, and notes growth.
    pub(crate) fn settle_list(&mut self, before: &Self) {
        let of_all = |state: &Self| {
            let globals = &state.globals;
            (globals.settings, globals.active, globals.classes.clone())
        };
        let mut pairs = self.servers.values().zip(before.servers.values());
        let is_same = |(new, old): (&Arc<ServerRecord>, &Arc<ServerRecord>)| {
            Arc::ptr_eq(new, old) || new.info == old.info
        };
        let same_servers = self.servers.len() == before.servers.len() && pairs.all(is_same);
        if !same_servers || of_all(self) != of_all(before) {
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

    /// The globals in a store; `None` when it holds no cluster.
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
        if !(FORMAT..=FORMAT_VOLATILE).contains(&globals.format) {
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

    /// Whether COORD-4, COORD-5, COORD-7, COORD-14 and COORD-15 hold, which every stored state
    /// keeps.
    ///
    /// # Errors
    /// What breaks one of them, for people.
    pub(crate) fn holds(&self) -> Result<(), String> {
        self.servers.values().try_for_each(|server| {
            let mut readers = server.readers.iter();
            match readers.find(|reader| !self.servers.contains_key(reader) || self.is_up(**reader))
            {
                None => Ok(()),
                Some(reader) => Err(format!(
                    "server {reader} may read what server {} had (COORD-15)",
                    server.info.id
                )),
            }
        })?;
        let mut tables = self.tables.values();
        tables.try_for_each(|table| self.table_holds(table))
    }

    /// What [`State::holds`] says of one table. Beside it that depends on which servers there are
    /// and which are up.
    fn table_holds(&self, table: &TableRecord) -> Result<(), String> {
        self.owners_hold(table)?;
        self.standing_holds(table)?;
        table.cover_holds()?;
        self.moves_hold(table)
    }

    /// [`State::holds`] of a state that was made here.
    pub(crate) fn check(&self) {
        assert_eq!(self.holds(), Ok(()));
    }

    /// [`State::check`] of a state that was made of one that held. Where the servers are the same,
    /// it looks at the tables that have changed: there may be millions of tablets. Builds with
    /// debug assertions look at everything.
    pub(crate) fn check_since(&self, before: &Self) {
        let server = |(id, record): (&ServerId, &Arc<ServerRecord>)| (*id, record.info.state);
        let servers = self.servers.iter().map(server);
        let same_servers = servers.eq(before.servers.iter().map(server));
        if cfg!(debug_assertions) || !same_servers || !self.same_readers(before) {
            return self.check();
        }
        for (id, table) in &self.tables {
            let old = before.tables.get(id);
            if !old.is_some_and(|old| Arc::ptr_eq(old, table)) {
                assert_eq!(self.table_holds(table), Ok(()));
            }
        }
    }

    fn same_readers(&self, before: &Self) -> bool {
        let readers = self.servers.values().map(|server| &server.readers);
        readers.eq(before.servers.values().map(|server| &server.readers))
    }

    /// Whether COORD-7 holds for a table.
    ///
    /// # Errors
    /// The migration that breaks it, for people.
    fn moves_hold(&self, table: &TableRecord) -> Result<(), String> {
        for (at, record) in table.moves.iter().enumerate() {
            let others = &table.moves[at + 1..];
            let overlaps = others.iter().any(|m| m.range.overlaps(&record.range));
            let is_there = table
                .tablets
                .iter()
                .any(|t| t.range == record.range && t.owner == record.from && t.is_settled());
            let may_copy = is_there && self.is_up(record.to) && !table.dropping;
            let may_be = record.stage != MoveStage::Copying || may_copy;
            if overlaps || !self.is_up(record.from) || !may_be {
                return Err(format!("table {}: {record:?} (COORD-7)", table.id));
            }
        }
        Ok(())
    }

    /// COORD-14, COORD-15.
    fn standing_holds(&self, table: &TableRecord) -> Result<(), String> {
        for tablet in &table.tablets {
            let Some(on) = tablet.stands_on else { continue };
            let is_crashed = self.servers.contains_key(&on) && !self.is_up(on);
            let is_read = self.is_up(tablet.owner) && tablet.state == TabletState::Normal;
            if !is_crashed || !is_read {
                return Err(format!("table {}: {tablet:?} (COORD-14)", table.id));
            }
        }
        Ok(())
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
mod tests;
