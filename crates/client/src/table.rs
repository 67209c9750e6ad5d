//! A table and where its tablets are.

use arc_swap::ArcSwap;
use pluvio_env::Address;
use pluvio_units::{ClusterId, HashKind, HashRange, KeyHash, ServerId, TableHash, TableId};
use pluvio_wire::{TableClass, TableInfo, TabletState};
use std::fmt;
use std::sync::Arc;

/// A table. Cheap to clone; all clones of one client share what is known about its tablets.
///
/// It names the table by its id. When the table is dropped, operations fail with
/// [`ErrorKind::NoSuchTable`](crate::ErrorKind::NoSuchTable), even if a table of the same name was
/// created since. [`Client::table`](crate::Client::table) then gives the new one.
#[derive(Clone)]
pub struct Table(Arc<Shared>);

/// What tells tables apart. Ids alone do not: each cluster begins with 1, and another cluster may
/// take the place of the client's.
pub(crate) type TableKey = (ClusterId, TableId, u64);

struct Shared {
    cluster: ClusterId,
    id: TableId,
    hash: TableHash,
    name: Box<str>,
    class: Option<TableClass>,
    map: ArcSwap<TableMap>,
    refreshing: tokio::sync::Mutex<()>,
}

impl Table {
    pub(crate) fn new(info: &TableInfo) -> Self {
        Self(Arc::new(Shared {
            cluster: info.cluster,
            id: info.id,
            hash: info.table_hash(),
            name: info.name.as_str().into(),
            class: info.class,
            map: ArcSwap::from_pointee(TableMap::new(info, 1)),
            refreshing: tokio::sync::Mutex::new(()),
        }))
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> TableId {
        self.0.id
    }

    /// The seed of its key hash.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.0.hash.seed
    }

    /// How it hashes keys.
    #[must_use]
    pub fn hash_kind(&self) -> HashKind {
        self.0.hash.kind
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its durability class. `None`: its objects are kept as the cluster's settings say.
    #[must_use]
    pub fn class(&self) -> Option<TableClass> {
        self.0.class
    }

    /// Whether it has no replicas in a cluster whose other tables have. Its objects are lost with
    /// their server.
    #[must_use]
    pub fn is_volatile(&self) -> bool {
        self.0.class.is_some_and(|class| class.is_volatile())
    }

    /// The hash of a key of this table: it says which tablet has the key.
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.0.hash.of(key)
    }

    /// Its cluster, which requests for its objects name.
    pub(crate) fn cluster(&self) -> ClusterId {
        self.0.cluster
    }

    pub(crate) fn unique_key(&self) -> TableKey {
        (self.0.cluster, self.0.id, self.0.hash.seed)
    }

    /// Whether this is said of this table, and not of one that has its id in another cluster.
    pub(crate) fn is_described_by(&self, info: &TableInfo) -> bool {
        self.unique_key() == (info.cluster, info.id, info.seed) && *self.0.name == *info.name
    }

    pub(crate) fn map(&self) -> Arc<TableMap> {
        self.0.map.load_full()
    }

    /// The server that should have this hash, if one does: the short way for local operations.
    pub(crate) fn owner(&self, hash: KeyHash) -> Option<ServerId> {
        let map = self.0.map.load();
        map.locate(hash).map(|tablet| tablet.owner)
    }

    /// The tablet that has this hash, as far as this client knows.
    #[must_use]
    pub fn tablet_of(&self, hash: KeyHash) -> Option<KnownTablet> {
        let map = self.0.map.load();
        let at = map.tablets.partition_point(|t| t.range.last < hash);
        let tablet = map.tablets.get(at)?;
        tablet.range.contains(hash).then(|| tablet.known())
    }

    /// Its tablets, by ascending range, as far as this client knows.
    #[must_use]
    pub fn tablets(&self) -> Vec<KnownTablet> {
        let map = self.0.map.load();
        map.tablets.iter().map(Tablet::known).collect()
    }

    /// One refresh of a table's map at a time; a task that waited looks first whether it still
    /// needs one.
    pub(crate) async fn lock_refresh(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.0.refreshing.lock().await
    }

    /// Whether there are other handles than this one.
    pub(crate) fn is_held(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    pub(crate) fn update(&self, info: &TableInfo) {
        assert!(
            self.is_described_by(info),
            "the tablets of a table are its own"
        );
        let next = |map: &Arc<TableMap>| Arc::new(TableMap::new(info, map.generation + 1));
        self.0.map.rcu(next);
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("id", &self.0.id)
            .field("name", &self.0.name)
            .finish_non_exhaustive()
    }
}

/// What the client knows of a table's tablets. Never changed, only replaced.
pub(crate) struct TableMap {
    /// Grows with every refresh.
    pub(crate) generation: u64,
    /// By ascending range.
    tablets: Vec<Tablet>,
}

/// A tablet and where it is, as far as a client knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownTablet {
    /// The range of hashes.
    pub range: HashRange,
    /// Its owner. While it is recovered: the crashed one.
    pub owner: ServerId,
    /// Whether the owner serves it.
    pub is_served: bool,
}

/// One tablet of a map.
pub(crate) struct Tablet {
    pub(crate) range: HashRange,
    pub(crate) owner: ServerId,
    pub(crate) address: Address,
    ready: bool,
}

impl Tablet {
    fn known(&self) -> KnownTablet {
        KnownTablet {
            range: self.range,
            owner: self.owner,
            is_served: self.ready,
        }
    }
}

impl TableMap {
    fn new(info: &TableInfo, generation: u64) -> Self {
        let mut tablets: Vec<_> = info
            .tablets
            .iter()
            .map(|t| {
                let address = info.addresses.iter().find(|(id, _)| *id == t.owner);
                Tablet {
                    range: t.range,
                    owner: t.owner,
                    address: Address::from(address.map_or("", |(_, text)| text.as_str())),
                    ready: t.state == TabletState::Normal && address.is_some(),
                }
            })
            .collect();
        tablets.sort_by_key(|t| t.range.first);
        Self {
            generation,
            tablets,
        }
    }

    /// The tablet that serves `hash`; `None` while there is none (recovering, or map incomplete).
    pub(crate) fn locate(&self, hash: KeyHash) -> Option<&Tablet> {
        let at = self.tablets.partition_point(|t| t.range.last < hash);
        self.tablets
            .get(at)
            .filter(|t| t.ready && t.range.contains(hash))
    }

    /// Every server that owns a tablet, once; `None` while one of the tablets is not served.
    pub(crate) fn owners(&self) -> Option<Vec<(ServerId, Address)>> {
        let mut owners: Vec<(ServerId, Address)> = Vec::new();
        for tablet in &self.tablets {
            if !tablet.ready {
                return None;
            }
            if !owners.iter().any(|(id, _)| *id == tablet.owner) {
                owners.push((tablet.owner, tablet.address.clone()));
            }
        }
        Some(owners)
    }
}
