//! Reads and updates of single objects.

use crate::bury::Written;
use crate::completions::Completions;
use crate::in_place::ValueHead;
use crate::indexes::Indexes;
use crate::liveness::IndexLiveness;
use crate::once::{Effect, Once};
use crate::options::EngineOptions;
use crate::read::{Pending, Seen};
use crate::table::{EngineTable, Growth, KeyHasher};
use core::time::Duration;
use pluvio_format::{Entry, Graves, Object, TableStats};
use pluvio_index::{BucketGuard, IndexError, Slot};
use pluvio_log::{
    AppendClass, AppendError, Appended, Cleaner, CleanerOptions, Corruption, Durability, Durable,
    EntryRefs, EntryView, LogSpace, OpenError,
};
use pluvio_memory::EpochGuard;
use pluvio_units::{
    EntryRef, HashRange, KEY_MAX, KeyHash, LogId, LogPosition, ObjectVersion, TableId, VALUE_MAX,
};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The object as an update sees it, under the lock of its bucket.
#[derive(Clone, Copy, Debug)]
pub struct Current<'a> {
    /// Its version.
    pub version: ObjectVersion,
    /// Its value.
    pub value: &'a [u8],
}

/// What an update wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change<'v> {
    /// This value.
    Put(std::borrow::Cow<'v, [u8]>),
    /// No object.
    Delete,
    /// Leave it.
    Keep,
}

/// What an update did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Updated {
    /// The object's version now: the new one, or that of the object that was deleted.
    pub version: ObjectVersion,
    /// The version before; 0 when there was no object.
    pub replaced: ObjectVersion,
    /// To be given to [`Engine::settle`] once durable.
    pub settle: Settle,
}

impl Updated {
    /// What the update came to.
    #[must_use]
    pub fn effect<E>(&self) -> Effect<'static, E> {
        if self.settle.tombstone {
            return Effect::Deleted {
                version: self.version,
            };
        }
        Effect::Put {
            version: self.version,
            replaced: self.replaced,
        }
    }
}

/// The index slot that an update left pending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settle {
    hash: KeyHash,
    entry: EntryRef,
    tombstone: bool,
}

/// How an update ended.
#[derive(Debug)]
pub enum Update<E> {
    /// Something was appended.
    Done(Appended<Updated>),
    /// Nothing changed: the caller's decision, [`Change::Keep`] or nothing to delete.
    Unchanged {
        /// The object's version; 0 when there is none.
        version: ObjectVersion,
        /// What the decision rests on, if that is not yet known to be durable.
        pending: Option<Pending>,
        /// The caller's reason, if it refused.
        refused: Option<E>,
    },
}

/// Why nothing could be appended. Nothing changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EngineError {
    /// No room. Retryable after the delay.
    #[error("memory is full; try again in {retry_after:?}")]
    Full {
        /// When to try again.
        retry_after: Duration,
    },
    /// The store holds no objects with such hashes of this table (any more).
    #[error("the table's range with this key is not here")]
    NotHere,
    /// Not retryable.
    #[error("a key of {0} bytes is over the limit of {KEY_MAX}")]
    KeyTooLong(usize),
    /// Not retryable.
    #[error("a value of {0} bytes is over the limit of {VALUE_MAX}")]
    ValueTooLong(usize),
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
    /// See [`Index::longest_chain`](pluvio_index::Index::longest_chain); the largest of the indexes.
    pub index_longest_chain: u64,
}

/// The storage engine; see the crate's text.
pub struct Engine {
    pub(crate) space: Arc<LogSpace>,
    pub(crate) tables: Arc<Tables>,
    completions: Arc<Completions>,
    index_entries_max: u64,
    huge_pages: bool,
}

/// The tables, for the store and for the cleaner.
#[derive(Default)]
pub(crate) struct Tables(RwLock<BTreeMap<TableId, Arc<EngineTable>>>);

impl Tables {
    pub(crate) fn get(&self, id: TableId) -> Option<Arc<EngineTable>> {
        self.read().get(&id).cloned()
    }

    /// All of them, by their ids.
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
        let huge_pages = options.log.huge_pages;
        let space = LogSpace::new(options.log)?;
        let tables = Arc::<Tables>::default();
        // Tables hold the log: the log must not hold them, or neither would ever be dropped.
        let source = Arc::downgrade(&tables);
        space.set_table_stats_source(Box::new(move || {
            source.upgrade().map_or_else(TableStats::default, |tables| {
                TableStats::of(tables.read().values().map(|t| t.stat()).collect())
            })
        }));
        Ok(Arc::new(Self {
            completions: Completions::new(Arc::clone(&space)),
            space,
            tables,
            index_entries_max,
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

    /// The cleaner of this store, to be driven step by step.
    #[must_use]
    pub fn cleaner(&self, options: CleanerOptions) -> Cleaner {
        let liveness = IndexLiveness {
            tables: Arc::clone(&self.tables),
            completions: Arc::clone(&self.completions),
        };
        Cleaner::new(Arc::clone(&self.space), Arc::new(liveness), options)
    }

    /// The table with this id, ready to hold objects whose hashes lie in `range`; made when it is not there.
    ///
    /// # Errors
    /// When the address space for an index cannot be reserved; retryable after tables were dropped.
    pub fn table(
        &self,
        id: TableId,
        seed: u64,
        range: HashRange,
    ) -> Result<Arc<EngineTable>, IndexError> {
        let table = {
            let mut tables = self.tables.write();
            let made = || {
                let indexes = Indexes::new(self.index_entries_max);
                Arc::new(EngineTable::new(
                    id,
                    KeyHasher::Seeded(seed),
                    indexes,
                    &self.space,
                ))
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
        let indexes = Indexes::with_whole(self.index_entries_max, self.huge_pages)?;
        let table = Arc::new(EngineTable::new(id, hasher, indexes, &self.space));
        let before = self.tables.write().insert(id, Arc::clone(&table));
        assert!(before.is_none(), "ids of tables are given once");
        Ok(table)
    }

    /// Forgets a table and all its objects. Their memory is free once the cleaner has passed; a crash
    /// before that does no harm, because recovery leaves out what belongs to no tablet of the master.
    pub fn drop_table(&self, id: TableId) {
        let Some(table) = self.tables.get(id) else {
            return;
        };
        // Closed first: whoever has found an index before and comes to a bucket after it was walked puts nothing there. The cleaner's
        // view of the table goes last: as long as an index is walked, what it points to is alive.
        table.indexes.close();
        self.forget(&table, HashRange::ALL);
        self.tables.write().remove(&id);
    }

    /// Takes all objects of a range out of the indexes and counts them as dead, and forgets the results of
    /// operations on them.
    pub fn forget(&self, table: &EngineTable, range: HashRange) {
        self.completions.forget_range(table.id(), range);
        for (range, index) in table.indexes.within(range) {
            let mut left = Some(range);
            while let Some(range) = left {
                let guard = self.space.pin();
                left = index.remove_range(
                    range,
                    FORGET_SLICE,
                    |entry| self.hash_of(table, entry, &guard),
                    |slot| self.uncount(table, slot.entry, &self.view(slot.entry, &guard), &guard),
                );
                // As many lines go as were emptied.
                let hash_of = |entry| self.hash_of(table, entry, &guard);
                let steps = (0..FORGET_SLICE).map(|_| index.resize(&guard, hash_of));
                steps.take_while(|&steps| steps > 0).for_each(drop);
            }
        }
        table.indexes.uncover(range);
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

    /// Changes one object: `decide` sees it as it is, under the lock of its bucket, and says what
    /// is to become of it. It must be quick and must not call the store.
    ///
    /// # Errors
    /// See [`EngineError`]; nothing changed.
    pub fn update<'v, E>(
        &self,
        log: LogId,
        table: &EngineTable,
        key: &[u8],
        now_s: u32,
        decide: impl FnOnce(Option<Current<'_>>) -> Result<Change<'v>, E>,
    ) -> Result<Update<E>, EngineError> {
        self.update_once(log, table, key, now_s, None, decide)
    }

    /// [`Engine::update`] of an operation with an identity: its result is appended in one group with what it
    /// changes, or alone when it changes nothing, and kept for retries.
    ///
    /// # Errors
    /// See [`EngineError`]; nothing changed, and a retry is executed.
    pub fn update_once<'v, E>(
        &self,
        log: LogId,
        table: &EngineTable,
        key: &[u8],
        now_s: u32,
        once: Option<Once<'_, E>>,
        decide: impl FnOnce(Option<Current<'_>>) -> Result<Change<'v>, E>,
    ) -> Result<Update<E>, EngineError> {
        if key.len() > KEY_MAX {
            return Err(EngineError::KeyTooLong(key.len()));
        }
        let hash = table.hash(key);
        let guard = self.space.pin();
        let index = table.indexes.of(hash).ok_or(EngineError::NotHere)?;
        let mut bucket = index.lock(hash);
        if table.indexes.is_closed() {
            return Err(EngineError::NotHere);
        }
        let mut seen = None;
        let slot = bucket.find(|entry| {
            seen = self.see_key(entry, key, &guard);
            seen.is_some()
        });
        if let Some((slot, seen)) = slot.zip(seen.as_ref()) {
            self.check_seen(slot.entry, seen, &guard);
        }
        let current = seen.as_ref().and_then(Seen::object).map(|object| Current {
            version: object.version,
            value: object.value,
        });
        let version = current.map_or(ObjectVersion(0), |c| c.version);
        let pending = slot
            .zip(seen.as_ref())
            .and_then(|(slot, seen)| self.pending(slot, seen.total_len(), &guard));
        // STORE-5.
        let log = pending.map_or(log, |pending| pending.log);
        let unchanged = |once: Option<Once<'_, E>>, refused: Option<E>| {
            let effect = match &refused {
                Some(why) => Effect::Refused(why),
                None => Effect::Unchanged { version },
            };
            let pending = match once {
                Some(once) => self.keep_unchanged(log, once, effect, pending, &guard)?,
                None => pending,
            };
            Ok(Update::Unchanged {
                version,
                pending,
                refused,
            })
        };
        let change = match decide(current) {
            Ok(change) => change,
            Err(why) => return unchanged(once, Some(why)),
        };
        let old = slot.zip(seen.as_ref()).map(|(slot, seen)| Old {
            entry: slot.entry,
            len: seen.total_len(),
            object_bytes: current.map_or(0, |c| key.len() + c.value.len()),
            version,
            graves: seen.object().map_or(Graves::NONE, |object| object.graves),
        });
        let place = Place {
            log,
            table,
            key,
            hash,
            now_s,
        };
        match change {
            Change::Keep => unchanged(once, None),
            Change::Put(value) => {
                let done = self.put(&place, &mut bucket, old.as_ref(), &value, once, &guard)?;
                drop(bucket);
                index.resize(&guard, |entry| self.hash_of(table, entry, &guard));
                Ok(Update::Done(done))
            }
            Change::Delete => match old {
                Some(old) if version > ObjectVersion(0) => {
                    let done = self.delete(&place, &mut bucket, &old, once, &guard)?;
                    drop(bucket);
                    index.resize(&guard, |entry| self.hash_of(table, entry, &guard));
                    Ok(Update::Done(done))
                }
                Some(_) | None => unchanged(once, None),
            },
        }
    }

    /// Appends the new value, with what keeps the object dead that it replaces (STORE-3), and swings the slot.
    fn put<E>(
        &self,
        at: &Place<'_>,
        bucket: &mut BucketGuard<'_>,
        old: Option<&Old<'_>>,
        value: &[u8],
        once: Option<Once<'_, E>>,
        guard: &EpochGuard<'_>,
    ) -> Result<Appended<Updated>, EngineError> {
        if value.len() > VALUE_MAX {
            return Err(EngineError::ValueTooLong(value.len()));
        }
        let replaced = old.filter(|old| old.version > ObjectVersion(0));
        let version = match replaced {
            Some(old) => old.version.next(),
            None => self.space.safe_version(),
        };
        debug_assert!(
            replaced.is_none_or(|old| old.version < version) && version > ObjectVersion(0),
            "STORE-1: {version} is the next version of {:?}",
            replaced.map(|old| old.version)
        );
        if let Some(old) = replaced
            && let Some(version) = self.overwrite_old(at, bucket, old, value, guard)
        {
            let replaced = old.version;
            // Only stores without replicas do this.
            let effect = Effect::Put { version, replaced };
            if let Some(kept) = once.and_then(|once| once.keep(effect)) {
                kept.volatile();
            }
            let settle = Settle {
                hash: at.hash,
                entry: old.entry,
                tombstone: false,
            };
            let updated = Updated {
                version,
                replaced,
                settle,
            };
            return Ok(Appended::new(at.log, LogPosition::default(), updated));
        }
        let with_head;
        let (value, value_len) = if self.space.is_in_place() {
            with_head = ValueHead::with(version, value);
            (&with_head[..], value.len())
        } else {
            (value, value.len())
        };
        let object = Object {
            table: at.table.id(),
            version,
            timestamp_s: at.now_s,
            graves: Graves::NONE,
            key: at.key,
            value,
        };
        let effect = Effect::Put {
            version,
            replaced: replaced.map_or(ObjectVersion(0), |old| old.version),
        };
        let kept = once.and_then(|once| once.keep(effect));
        let Written { appended, len } = self.append_put(at, object, replaced, kept, guard)?;
        let durable = self.is_durable_store();
        let entry = *appended.pending();
        match old {
            Some(old) => assert!(
                bucket.replace(old.entry, entry, durable),
                "the bucket is locked since the slot was found"
            ),
            None => bucket
                .insert(entry, durable)
                .expect("the index has room for as many entries as fit the log"),
        }
        let mut growth = Growth::by(at.key.len() + value_len, len);
        if let Some(old) = replaced {
            growth = growth.without(self.bury(at, old, guard));
        }
        at.table.count(at.log, growth);
        let settle = Settle {
            hash: at.hash,
            entry,
            tombstone: false,
        };
        let replaced = replaced.map_or(ObjectVersion(0), |old| old.version);
        Ok(appended.map(|_| Updated {
            version,
            replaced,
            settle,
        }))
    }

    /// Appends tombstones and swings the slot to the first; without replicas the slot is just emptied.
    fn delete<E>(
        &self,
        at: &Place<'_>,
        bucket: &mut BucketGuard<'_>,
        old: &Old<'_>,
        once: Option<Once<'_, E>>,
        guard: &EpochGuard<'_>,
    ) -> Result<Appended<Updated>, EngineError> {
        // Raised first: the head that this append may open must record it (STORE-1).
        self.space.raise_safe_version(old.version.next());
        debug_assert!(
            self.space.safe_version() > old.version,
            "STORE-1: the safe version is above every version deleted"
        );
        let settle = |entry| Settle {
            hash: at.hash,
            entry,
            tombstone: true,
        };
        let effect = Effect::Deleted {
            version: old.version,
        };
        let kept = once.and_then(|once| once.keep(effect));
        let appended = if self.is_durable_store() {
            let appended = self.append_delete(at, old, kept, guard)?;
            bucket.replace(old.entry, *appended.pending(), true);
            appended.map(settle)
        } else {
            bucket.remove(old.entry);
            if let Some(kept) = kept {
                kept.volatile();
            }
            Appended::new(at.log, LogPosition::default(), settle(old.entry))
        };
        let growth = Growth::default().without(self.bury(at, old, guard));
        at.table.count(at.log, growth);
        Ok(appended.map(|settle| Updated {
            version: old.version,
            replaced: old.version,
            settle,
        }))
    }

    /// The log counts an object as dead that the index does not point to any more; gives what the table
    /// is to count.
    #[inline]
    fn bury(&self, at: &Place<'_>, old: &Old<'_>, guard: &EpochGuard<'_>) -> Growth {
        self.space.mark_dead_by(at.log, old.entry, old.len, guard);
        Growth::by(old.object_bytes, old.len)
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

    /// The entry of an update is durable: its slot needs no check any more. A tombstone's slot is
    /// emptied. Does nothing when the key was changed again since.
    pub fn settle(&self, table: &EngineTable, updated: &Durable<Updated>) {
        let Settle {
            hash,
            entry,
            tombstone,
        } = updated.value().settle;
        let guard = self.space.pin();
        let Some(index) = table.indexes.of(hash) else {
            return;
        };
        {
            let mut bucket = index.lock(hash);
            let Some(slot) = bucket.find(|found| found == entry) else {
                return;
            };
            // The update's guard is gone long since: its entry may have been cleaned, and another one lie in its place.
            let view = self.view(entry, &guard);
            if self.pending(slot, view.total_len(), &guard).is_some() {
                return;
            }
            match view.entry() {
                Entry::Tombstone(_) if tombstone => {
                    bucket.remove(entry);
                }
                Entry::Object(_) if !tombstone => {
                    bucket.replace(entry, entry, false);
                }
                _ => {}
            }
        }
        if tombstone {
            index.resize(&guard, |entry| self.hash_of(table, entry, &guard));
        }
    }

    pub(crate) fn is_durable_store(&self) -> bool {
        match self.space.durability() {
            Durability::Replicated => true,
            Durability::Volatile => false,
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
        if let Entry::Object(object) = view.entry() {
            let object = if self.space.is_in_place() {
                self.check_head(entry, view, guard);
                ValueHead::strip(object)
            } else {
                object
            };
            let gone = Growth::by(object.key.len() + object.value.len(), view.total_len());
            table.count(LogId(0), Growth::default().without(gone));
            self.space.mark_dead(entry, view.total_len(), guard);
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
        table.hash(key_of(&self.view(entry, guard).entry()))
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

/// The entry that an update finds.
pub(crate) struct Old<'o> {
    pub(crate) entry: EntryRef,
    /// Bytes in the log.
    pub(crate) len: u32,
    /// Bytes of key and value; 0 for a tombstone.
    object_bytes: usize,
    /// 0 for a tombstone.
    pub(crate) version: ObjectVersion,
    /// Where dead versions of it lie.
    pub(crate) graves: Graves<'o>,
}

/// Where an update happens.
pub(crate) struct Place<'k> {
    pub(crate) log: LogId,
    pub(crate) table: &'k EngineTable,
    key: &'k [u8],
    hash: KeyHash,
    pub(crate) now_s: u32,
}

impl<'k> Place<'k> {
    pub(crate) fn key(&self) -> &'k [u8] {
        self.key
    }
}

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
