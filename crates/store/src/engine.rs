//! The engine: its tables, and the common part of reads, mutations and scans. That part looks at
//! entries, and knows which must be durable before a result may be shown.

mod apply;
mod classes;
mod expiry;
mod group;
pub(crate) mod in_place;
pub(crate) mod prepared;
pub(crate) mod read;
mod replicated;
mod transaction;
mod volatile;

pub use apply::{Applied, Site, Unsettled};
pub use expiry::Expired;
pub use group::Item;
pub use prepared::{Decided, Locked, Prepare, Released};
pub use transaction::{Changed, NotTransacted, StepAt, Transacted};

use crate::completions::{Admission, Completions};
use crate::engine::classes::Classes;
use crate::engine::prepared::{Locks, counted_bytes};
use crate::engine::read::Pending;
use crate::expiry::Expiry;
use crate::indexes::{IndexMaker, Indexes};
use crate::liveness::IndexLiveness;
use crate::options::EngineOptions;
use crate::quota::OverQuota;
use crate::table::{EngineTable, Growth, KeyHasher};
use core::time::Duration;
use pluvio_format::{Entry, Object, TableStats};
use pluvio_index::{IndexError, IndexFull, Slot};
use pluvio_log::{
    AppendClass, AppendError, Appended, Cleaner, CleanerOptions, Corruption, Durability, EntryRefs,
    EntryView, LogSpace, OpenError, PendingMarks, VALUE_HEAD_BYTES,
};
use pluvio_memory::EpochGuard;
use pluvio_units::{
    EntryRef, HashRange, KEY_MAX, KeyHash, LogId, LogPosition, OperationId, Rank, TableHash,
    TableId, VALUE_MAX,
};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// When to try again what found no room in an index: as where live objects are at their limit, only
/// deleting helps.
const INDEX_FULL_RETRY: Duration = Duration::from_millis(100);

/// Why nothing could be appended. Nothing changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EngineError {
    /// No room, in the log or in the index for that hash. Retryable after the delay.
    #[error("memory is full; try again in {retry_after:?}")]
    Full {
        /// When to try again.
        retry_after: Duration,
    },
    /// The store holds no objects with such hashes of this table (any more).
    #[error("the table's range with this key is not here")]
    NotHere,
    /// Not retryable: values that are overwritten in place have no room for a deadline.
    #[error("a store that overwrites values in place keeps no deadlines")]
    NoDeadlines,
    /// Not retryable: a value that is overwritten in place has no room for what a lock says.
    #[error(
        "a store that overwrites values in place takes no part in transactions of several servers"
    )]
    NoLocks,
    /// Not retryable.
    #[error("a key of {0} bytes is over the limit of {KEY_MAX}")]
    KeyTooLong(usize),
    /// Not retryable.
    #[error("a value of {0} bytes is over the limit of {1}")]
    ValueTooLong(usize, usize),
    /// The key has a pending entry in another log than the caller wants. Retryable once that is
    /// durable.
    #[error("the object's last change is not durable yet")]
    OtherLog,
    /// A transaction of several owners has locked the key, and is not decided yet. Retryable: that
    /// takes some round trips, or as long as a crashed server takes to be recovered.
    #[error("a transaction has locked the key")]
    Locked,
    /// The log of the key's next entry is stalled ([`LogSpace::is_stalled`]). Retryable once its
    /// backups have space again.
    #[error("the replicas of the object's log have no space")]
    Stalled,
    /// The table would grow beyond the share of its quota that is here. Retryable, unless the table
    /// as a whole has nothing left.
    #[error("table {} has its quota of {} bytes", .0.name, .0.bytes)]
    Quota(Box<OverQuota>),
    /// The outcome holds a value, and there is no room to keep it for a retry (COMP-7). Retryable
    /// after the delay: clients acknowledge outcomes all the time.
    #[error("too many outcomes with values are kept for retries; try again in {retry_after:?}")]
    OutcomesFull {
        /// When to try again.
        retry_after: Duration,
    },
}

/// The kinds of stores. Each has its own way to write and to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StoreKind {
    /// Its logs have replicas.
    Replicated,
    /// Its logs have none; every write is appended.
    Volatile,
    /// Its logs have none; a value is overwritten where it lies if the new one fits.
    InPlace,
}

impl StoreKind {
    /// The longest value. In place it shares its entry with its head.
    pub(crate) fn value_max(self) -> usize {
        match self {
            Self::Replicated | Self::Volatile => VALUE_MAX,
            Self::InPlace => VALUE_MAX - VALUE_HEAD_BYTES,
        }
    }
}

/// Sizes and counts. Bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EngineStats {
    /// Objects in all tables.
    pub objects: u64,
    /// Bytes of their keys and values.
    pub object_bytes: u64,
    /// Bytes of the indexes.
    pub index_bytes: u64,
    /// Entries in the indexes: objects, and deletions that are not durable yet.
    pub index_entries: u64,
    /// Entries the indexes have slots for.
    pub index_slots: u64,
    /// See [`Index::longest_chain`](pluvio_index::Index::longest_chain); the largest of the
    /// indexes.
    pub index_longest_chain: u64,
}

/// The storage engine; see the crate's text.
pub struct Engine {
    pub(crate) space: Arc<LogSpace>,
    pub(crate) tables: Arc<Tables>,
    completions: Arc<Completions>,
    pub(crate) expiry: Expiry,
    pub(crate) locks: Locks,
    classes: Classes,
    pub(crate) kind: StoreKind,
    pub(crate) marks: PendingMarks,
    index_maker: IndexMaker,
    huge_pages: bool,
}

/// The tables, for the store and for the cleaner.
#[derive(Default)]
pub(crate) struct Tables(RwLock<BTreeMap<TableId, Arc<EngineTable>>>);

impl Tables {
    pub(crate) fn get(&self, id: TableId) -> Option<Arc<EngineTable>> {
        self.read().get(&id).cloned()
    }

    /// The first one whose id is not before `id`.
    pub(crate) fn first_from(&self, id: TableId) -> Option<Arc<EngineTable>> {
        let tables = self.read();
        tables
            .range(id..)
            .next()
            .map(|(_, table)| Arc::clone(table))
    }

    /// All of them, by their ids.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn all(&self) -> Vec<Arc<EngineTable>> {
        self.read().values().cloned().collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<TableId, Arc<EngineTable>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<TableId, Arc<EngineTable>>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Reserves the memory and opens the first heads.
    ///
    /// # Errors
    /// When the options make no sense or the memory cannot be had; nothing was kept.
    pub fn open(options: EngineOptions) -> Result<Arc<Self>, OpenError> {
        let index_entries_max = options.index_entries_max();
        Self::with_index_entries(options, index_entries_max)
    }

    /// [`Self::open`], and each index has room for `index_entries_max` entries at least.
    fn with_index_entries(
        options: EngineOptions,
        index_entries_max: u64,
    ) -> Result<Arc<Self>, OpenError> {
        let huge_pages = options.log.huge_pages;
        let index_maker = IndexMaker {
            entries_max: index_entries_max,
            are_read: options.log.readers.is_some(),
            nodes: options.log.table_nodes,
        };
        let space = LogSpace::new(options.log)?;
        let tables = Arc::<Tables>::default();
        // Tables hold the log: the log must not hold them, or neither would ever be dropped.
        let source = Arc::downgrade(&tables);
        space.set_table_stats_source(Box::new(move || {
            source.upgrade().map_or_else(TableStats::default, |tables| {
                TableStats::of(tables.read().values().map(|t| t.stat()).collect())
            })
        }));
        let kind = match space.durability() {
            Durability::Replicated => StoreKind::Replicated,
            Durability::Volatile if space.is_in_place() => StoreKind::InPlace,
            Durability::Volatile => StoreKind::Volatile,
        };
        let marks = space.pending_marks();
        Ok(Arc::new(Self {
            completions: Completions::new(Arc::clone(&space)),
            expiry: match space.for_readers() {
                None => Expiry::default(),
                Some(readable) => Expiry::judging_in(readable.gate.judged()),
            },
            locks: Locks::default(),
            classes: Classes::default(),
            kind,
            marks: marks.expect("the space is new, and this engine owns the index over it"),
            space,
            tables,
            index_maker,
            huge_pages,
        }))
    }

    /// The log under this store: for replication and for waiting.
    #[must_use]
    pub fn space(&self) -> &Arc<LogSpace> {
        &self.space
    }

    /// The results of operations that clients may ask for again.
    #[must_use]
    pub fn completions(&self) -> &Arc<Completions> {
        &self.completions
    }

    /// Decides whether an operation on the key with this hash is to be executed. `now` is any clock
    /// that only goes forward, the same for all calls.
    pub fn admit(&self, id: OperationId, place: (TableId, KeyHash), now: Duration) -> Admission {
        self.completions.admit(&self.marks, id, place, now)
    }

    /// The cleaner of this store, to be driven step by step.
    #[must_use]
    pub fn cleaner(&self, options: CleanerOptions) -> Cleaner {
        let liveness = IndexLiveness {
            tables: Arc::clone(&self.tables),
            completions: Arc::clone(&self.completions),
        };
        Cleaner::new(Arc::clone(&self.space), Arc::new(liveness), options)
    }

    /// The table with this id, ready to hold objects whose hashes lie in `range`; made when it is
    /// not there. `hash` says how its keys are hashed; a seed stands for a seeded table.
    ///
    /// # Errors
    /// When the address space for an index cannot be reserved; retryable after tables were dropped.
    pub fn table(
        &self,
        id: TableId,
        hash: impl Into<TableHash>,
        range: HashRange,
    ) -> Result<Arc<EngineTable>, IndexError> {
        let table = {
            let mut tables = self.tables.write();
            let made = || {
                let hasher = KeyHasher::Fixed(hash.into());
                let indexes = Indexes::new(self.index_maker, hasher.kind());
                Arc::new(EngineTable::new(id, hasher, indexes, self))
            };
            Arc::clone(tables.entry(id).or_insert_with(made))
        };
        table.indexes.cover(range)?;
        Ok(table)
    }

    /// A new table that holds all hashes as long as it lives.
    pub(crate) fn create_whole_table(
        &self,
        id: TableId,
        hasher: KeyHasher,
    ) -> Result<Arc<EngineTable>, IndexError> {
        let indexes = Indexes::with_whole(self.index_maker, self.huge_pages)?;
        let table = Arc::new(EngineTable::new(id, hasher, indexes, self));
        let before = self.tables.write().insert(id, Arc::clone(&table));
        assert!(before.is_none(), "ids of tables are given once");
        Ok(table)
    }

    /// Forgets a table and all its objects. Their memory is free once the cleaner has passed; a
    /// crash before that does no harm, because recovery leaves out what belongs to no tablet of the
    /// master.
    pub fn drop_table(&self, id: TableId) {
        let Some(table) = self.tables.get(id) else {
            return;
        };
        // Closed first: whoever has found an index before and comes to a bucket after it was walked
        // puts nothing there. The cleaner's view of the table goes last: as long as an index is
        // walked, what it points to is alive.
        table.indexes.close();
        self.forget(&table, HashRange::ALL);
        self.tables.write().remove(&id);
    }

    /// Takes all objects of a range out of the indexes and counts them as dead, and forgets the
    /// results of operations on them.
    pub fn forget(&self, table: &EngineTable, range: HashRange) {
        self.completions.forget_range(table.id(), range);
        for (range, index) in table.indexes.within(range) {
            let mut next = Some(Rank(0));
            while let Some(from) = next {
                let guard = self.space.pin();
                next = index.remove_range(
                    range,
                    from,
                    FORGET_SLICE,
                    |entry| self.hash_of(table, entry, &guard),
                    |slot| self.forget_entry(table, slot.entry, &guard),
                );
                // As many lines go as were emptied.
                let hash_of = |entry| self.hash_of(table, entry, &guard);
                let steps = (0..FORGET_SLICE).map(|_| index.resize(&guard, hash_of));
                steps.take_while(|&steps| steps > 0).for_each(drop);
            }
        }
        table.indexes.uncover(range);
    }

    /// Gives back the address space of indexes that served tablets in `gone` and serve none in
    /// `kept`, the tablets that are still here. All objects in `gone` were forgotten, and none
    /// comes meanwhile.
    pub fn keep_indexes(&self, table: &EngineTable, gone: HashRange, kept: &[HashRange]) {
        table.indexes.keep_only(gone, kept);
    }

    /// Counts an entry that is in the index no more as dead. Its version is one that has been
    /// given: nothing has a smaller one afterwards, also when the log that said so is gone.
    fn forget_entry(&self, table: &EngineTable, entry: EntryRef, guard: &EpochGuard<'_>) {
        let view = self.view(entry, guard);
        if let Some(object) = self.object_of(entry, &view, guard) {
            self.space.raise_safe_version(object.version.next());
        }
        self.uncount(table, entry, &view, guard);
    }

    /// Sizes and counts of all tables.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        let mut stats = EngineStats::default();
        for table in self.tables.read().values() {
            stats.objects += table.objects();
            stats.object_bytes += table.object_bytes();
            let index = table.indexes.sizes();
            stats.index_bytes += index.bytes;
            stats.index_entries += index.entries;
            stats.index_slots += index.slots;
            stats.index_longest_chain = stats.index_longest_chain.max(index.longest_chain);
        }
        stats
    }

    pub(crate) fn append(
        &self,
        log: LogId,
        entries: &[Entry<'_>],
        class: AppendClass,
        guard: &EpochGuard<'_>,
    ) -> Result<Appended<EntryRefs>, EngineError> {
        self.space
            .append(log, entries, class, guard)
            .map_err(EngineError::from)
    }

    pub(crate) fn is_durable_store(&self) -> bool {
        match self.kind {
            StoreKind::Replicated => true,
            StoreKind::Volatile | StoreKind::InPlace => false,
        }
    }

    /// Counts an object that the index does not point to any more. Tombstones are not counted.
    pub(crate) fn uncount(
        &self,
        table: &EngineTable,
        entry: EntryRef,
        view: &EntryView<'_>,
        guard: &EpochGuard<'_>,
    ) {
        if let Some(object) = self.object_of(entry, view, guard) {
            let gone = Growth::by(counted_bytes(&object), view.total_len()).until(object.deadline);
            table.count_foreign(Growth::default().without(gone));
            self.space.mark_dead(entry, view.total_len(), guard);
        }
    }

    /// The object as users know it, from an entry that nobody writes meanwhile; `None` for other
    /// kinds.
    fn object_of<'a>(
        &self,
        entry: EntryRef,
        view: &'a EntryView<'_>,
        guard: &EpochGuard<'_>,
    ) -> Option<Object<'a>> {
        match self.kind {
            StoreKind::Replicated | StoreKind::Volatile => view.object(),
            StoreKind::InPlace => self.object_in_place(entry, view, guard),
        }
    }

    pub(crate) fn view<'g>(&'g self, entry: EntryRef, guard: &'g EpochGuard<'_>) -> EntryView<'g> {
        match self.space.entry(entry, guard) {
            Ok(view) => view,
            Err(corruption) => self.corrupt(&corruption),
        }
    }

    /// What is seen in the place of a corrupt entry, by a process that is over (STORE-4).
    #[cold]
    pub(crate) fn corrupt<'g>(&self, corruption: &Corruption) -> EntryView<'g> {
        self.space.found_corrupt(corruption);
        EntryView::nothing()
    }

    pub(crate) fn key_is(&self, entry: EntryRef, key: &[u8], guard: &EpochGuard<'_>) -> bool {
        key_of(&self.view(entry, guard).entry()) == key
    }

    pub(crate) fn hash_of(
        &self,
        table: &EngineTable,
        entry: EntryRef,
        guard: &EpochGuard<'_>,
    ) -> KeyHash {
        match self.kind {
            StoreKind::Replicated | StoreKind::Volatile => {
                table.hash(key_of(&self.view(entry, guard).entry()))
            }
            StoreKind::InPlace => table.hash(&self.key_in_place(entry, guard)),
        }
    }

    /// What must be durable before the entry may be shown (STORE-2).
    pub(crate) fn pending(
        &self,
        slot: Slot,
        total_len: u32,
        guard: &EpochGuard<'_>,
    ) -> Option<Pending> {
        if !slot.pending {
            return None;
        }
        debug_assert!(
            self.is_durable_store(),
            "EMBED-1: nothing is pending in a store without replicas"
        );
        let (log, start) = self.space.position_of(slot.entry, guard);
        let position = LogPosition {
            segment: start.segment,
            offset: start.offset + total_len,
        };
        (!self.space.is_durable(log, position)).then_some(Pending { log, position })
    }
}

/// Buckets passed under one guard by [`Engine::forget`]: the reclaim of memory waits no longer.
const FORGET_SLICE: u32 = 256;

/// The key of an entry that the index may point to.
pub(crate) fn key_of<'e>(entry: &Entry<'e>) -> &'e [u8] {
    match entry {
        Entry::Object(object) => object.key,
        Entry::Tombstone(tombstone) => tombstone.key,
        other => unreachable_kind(other),
    }
}

pub(crate) fn unreachable_kind(entry: &Entry<'_>) -> ! {
    panic!(
        "the index points to an entry of kind {:?}; stopping, so that the data is recovered from its replicas",
        entry.kind()
    );
}

impl From<IndexFull> for EngineError {
    fn from(_: IndexFull) -> Self {
        Self::Full {
            retry_after: INDEX_FULL_RETRY,
        }
    }
}

impl From<AppendError> for EngineError {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Full { retry_after, .. } => Self::Full { retry_after },
            // Key and value were checked against limits that always fit a segment.
            AppendError::Encode(_)
            | AppendError::GroupTooLarge { .. }
            | AppendError::GroupLength(_) => {
                unreachable!("the sizes were checked: {error}")
            }
        }
    }
}

#[cfg(test)]
mod tests;
