//! Replaying entries of another master's log, in any order [RAMCloud §7.6].
//!
//! The index decides: an entry counts only if it is newer than what the index has for its key.
//! Tombstones go into the index as well while the replay runs, because an older object may come
//! later. What counts is appended to a side log of this master, so that its replication can
//! begin at once.
//!
//! - REPLAY-1: the result does not depend on the order of the entries, nor on how often one comes.
//! - REPLAY-2: a copy in the side log that is dead has a tombstone in the side log that names its
//!   segment (STORE-3 for replay).
//! - REPLAY-3: no tombstone is in the index once the replay has ended.
//! - REPLAY-4: after a survey of everything ([`Replay::survey`]) nothing is copied that does not
//!   live in the end. Replicas of a segment may differ in what is dead (CLEAN-8 in crate `log`), so
//!   it does not matter if the replay reads others than the survey did.

mod survey;

use crate::engine::prepared::counted_bytes;
use crate::engine::{Engine, EngineError, unreachable_kind};
use crate::table::{EngineTable, Growth};
use core::time::Duration;
use pluvio_format::{
    Check, Completion, Entry, Graves, Object, ParseError, ParseErrorKind, Parsed, Tombstone,
};
use pluvio_index::IndexError;
use pluvio_log::{AppendClass, Corruption, EntryView, Segment, SideLog};
use pluvio_memory::EpochGuard;
use pluvio_units::{
    EntryRef, HashRange, KeyHash, LogId, ObjectVersion, SegmentId, TableId, UnixMs,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use survey::Survey;

/// Why a replay cannot go on. What was replayed stays; end it with [`Replay::abort`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReplayError {
    /// The bytes are no entries. Not retryable with the same bytes.
    #[error("recovery data cannot be read: {0}")]
    Parse(#[from] ParseError),
    /// No room in the log or in an index. Retryable elsewhere, or here after the cleaner or a
    /// delete has made room.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// More keys than a survey may keep. Retryable in smaller parts.
    #[error("what lives cannot be found out in {0} bytes of memory: there are too many keys")]
    SurveyFull(usize),
    /// An entry that does not belong to the replay. Not retryable with the same bytes.
    #[error("recovery data has an entry of table {0} that is not being recovered here")]
    Foreign(TableId),
}

/// How much was replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplayLoad {
    /// Entries looked at.
    pub entries: u64,
    /// Objects that are there now.
    pub objects: u64,
}

/// A replay of some tablets into one side log. Give it up by dropping it after
/// [`Replay::abort`]; the tablets must not be served before [`Replay::finish`].
pub struct Replay {
    store: Arc<Engine>,
    side: SideLog,
    tablets: Vec<(Arc<EngineTable>, HashRange)>,
    tables: Arc<Tables>,
    /// Tombstones that are in the index (REPLAY-3).
    tombstones: Vec<(TableId, KeyHash, EntryRef)>,
    load: ReplayLoad,
    /// Up to when the other master may have judged deadlines.
    horizon: UnixMs,
    /// By which limit objects may be refused.
    objects: AppendClass,
    /// What lives in the end, if that is known beforehand.
    survey: Option<Survey>,
}

/// The tables that are replayed into.
type Tables = BTreeMap<TableId, Arc<EngineTable>>;

/// What an entry is replayed on.
struct Ground<'g> {
    store: &'g Engine,
    tables: &'g Tables,
    guard: &'g EpochGuard<'g>,
}

impl<'g> Ground<'g> {
    fn table(&self, id: TableId) -> Result<&'g EngineTable, ReplayError> {
        let table = self.tables.get(&id);
        table.map(|table| &**table).ok_or(ReplayError::Foreign(id))
    }
}

/// Entries that are read before the first of them is replayed, so that the processor can bring
/// their buckets of the index near meanwhile: as many misses as it has under way at a time. No
/// memory is freed until they are replayed.
const AHEAD_MAX: usize = 16;
/// Bytes after which no more is read ahead: what was read is still in the first caches when it is
/// copied.
const AHEAD_BYTES: usize = 16 << 10;

/// Reads the entry at the start of `bytes`, which another machine sent.
fn read_entry(bytes: &[u8]) -> Result<Parsed<'_>, ParseError> {
    let parsed = Parsed::read(bytes, Check::Checksum)?;
    check_version(&parsed.entry).map_err(|kind| ParseError { offset: 0, kind })?;
    Ok(parsed)
}

/// Refuses the last version, behind which there is none. No log comes to it: what says so was not
/// written by one.
pub(crate) fn check_version(entry: &Entry<'_>) -> Result<(), ParseErrorKind> {
    let version = match entry {
        Entry::Object(object) => object.version,
        Entry::Tombstone(tombstone) => tombstone.version,
        Entry::SafeVersion(version) => *version,
        Entry::SegmentHeader(_)
        | Entry::LogDigest(_)
        | Entry::TableStats(_)
        | Entry::Completion(_)
        | Entry::Horizon(_) => return Ok(()),
    };
    if version.0 == u64::MAX {
        return Err(ParseErrorKind::BadBody(entry.kind()));
    }
    Ok(())
}

/// Reads some entries and asks for their buckets; `bytes` then begins behind them. On an error
/// `next` holds those before the bad one.
fn read_ahead<'b>(
    tables: &Tables,
    bytes: &mut &'b [u8],
    next: &mut Vec<(Entry<'b>, KeyHash)>,
) -> Result<(), ParseError> {
    let mut read = 0;
    while !bytes.is_empty() && next.len() < AHEAD_MAX && read < AHEAD_BYTES {
        let parsed = read_entry(bytes)?;
        let length = parsed.head.total_len();
        let key = match &parsed.entry {
            Entry::Object(object) => Some((object.table, object.key)),
            Entry::Tombstone(tombstone) => Some((tombstone.table, tombstone.key)),
            Entry::SegmentHeader(_)
            | Entry::LogDigest(_)
            | Entry::SafeVersion(_)
            | Entry::TableStats(_)
            | Entry::Completion(_)
            | Entry::Horizon(_) => None,
        };
        let table = key.and_then(|(table, key)| Some((tables.get(&table)?, key)));
        let hash = table.map_or(KeyHash(0), |(table, key)| {
            let hash = table.hash(key);
            if let Some(index) = table.indexes.of(hash) {
                index.prefetch(hash);
            }
            hash
        });
        next.push((parsed.entry, hash));
        read += length;
        *bytes = &bytes[length..];
    }
    Ok(())
}

impl Replay {
    /// A replay of `tablets`, which hold nothing yet, into a side log of `log`. Their indexes are
    /// made when a replay that was given up took them away.
    ///
    /// # Errors
    /// When the address space for an index cannot be reserved; retryable after tables were dropped.
    pub fn new(
        store: &Arc<Engine>,
        log: LogId,
        tablets: Vec<(Arc<EngineTable>, HashRange)>,
    ) -> Result<Self, IndexError> {
        for (table, range) in &tablets {
            table.indexes.cover(*range)?;
        }
        Ok(Self {
            store: Arc::clone(store),
            side: SideLog::new(Arc::clone(store.space()), log),
            tables: Arc::new(
                tablets
                    .iter()
                    .map(|(table, _)| (table.id(), Arc::clone(table)))
                    .collect(),
            ),
            tablets,
            tombstones: Vec::new(),
            load: ReplayLoad::default(),
            horizon: UnixMs(0),
            objects: AppendClass::Normal,
            survey: None,
        })
    }

    /// Up to when the other master may have judged deadlines, as far as was replayed. Once a head
    /// is durable that was opened from now on, and before what was replayed is served,
    /// [`Engine::go_on_from`] must be told.
    #[must_use]
    pub fn horizon(&self) -> UnixMs {
        self.horizon
    }

    /// Lets replicas wait until everything is replayed ([`SideLog::hold_back`]).
    pub fn hold_back(&mut self) {
        self.side.hold_back();
    }

    /// How much was replayed so far.
    #[must_use]
    pub fn load(&self) -> ReplayLoad {
        self.load
    }

    /// Replays entries that stand one after the other. On an error, those before the bad one are
    /// replayed. `now` is the clock of [`Engine::admit`](crate::Engine::admit).
    ///
    /// # Errors
    /// See [`ReplayError`].
    pub fn replay(&mut self, mut bytes: &[u8], now: Duration) -> Result<(), ReplayError> {
        let (store, tables) = (Arc::clone(&self.store), Arc::clone(&self.tables));
        let mut next = Vec::with_capacity(AHEAD_MAX);
        while !bytes.is_empty() {
            let read = read_ahead(&tables, &mut bytes, &mut next);
            let guard = store.space().pin();
            let ground = Ground {
                store: &store,
                tables: &tables,
                guard: &guard,
            };
            for (entry, hash) in next.drain(..) {
                self.entry(&ground, &entry, hash, now)?;
            }
            read?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        ground: &Ground<'_>,
        entry: &Entry<'_>,
        hash: KeyHash,
        now: Duration,
    ) -> Result<(), ReplayError> {
        self.load.entries += 1;
        match entry {
            Entry::Object(object) if self.is_surveyed_dead(object) => Ok(()),
            // Its graves are in the log of the other master, and so are the dead that come with it.
            Entry::Object(object) => {
                let graves = Graves::NONE;
                self.object(ground, &Object { graves, ..*object }, hash)
            }
            Entry::Tombstone(tombstone) if self.survey.is_some() => {
                let next = tombstone.version.next();
                self.store.space().raise_safe_version(next);
                Ok(())
            }
            Entry::Tombstone(tombstone) => self.tombstone(ground, tombstone, hash),
            Entry::SafeVersion(version) => {
                self.store.space().raise_safe_version(*version);
                Ok(())
            }
            Entry::Completion(record) => self.completion(ground, record, now),
            Entry::Horizon(horizon) => {
                self.horizon = self.horizon.max(*horizon);
                self.store.space().raise_horizon(*horizon);
                Ok(())
            }
            Entry::SegmentHeader(_) | Entry::LogDigest(_) | Entry::TableStats(_) => Ok(()),
        }
    }

    fn object(
        &mut self,
        ground: &Ground<'_>,
        object: &Object<'_>,
        hash: KeyHash,
    ) -> Result<(), ReplayError> {
        let Ground { store, guard, .. } = *ground;
        let table = ground.table(object.table)?;
        let index = table
            .indexes
            .of(hash)
            .ok_or(ReplayError::Foreign(table.id()))?;
        let mut bucket = index.lock(hash);
        if table.indexes.is_closed() {
            return Err(ReplayError::Foreign(table.id()));
        }
        let slot = bucket.find(|entry| store.key_is(entry, object.key, guard));
        let Some(slot) = slot else {
            let room = bucket.room().map_err(EngineError::from)?;
            let new = self.append(&[Entry::Object(*object)], guard)?;
            bucket.fill(room, new, false);
            drop(bucket);
            index.resize(guard, |entry| store.hash_of(table, entry, guard));
            let place = (table.id(), hash);
            store.expiry().renote(place, None, object.deadline);
            store.locks.replayed(place, None, Some(object));
            self.count(table, new, guard);
            return Ok(());
        };
        let view = store.view(slot.entry, guard);
        let known = view.entry();
        // A tombstone of this very version came first: the object is dead.
        if version_of(&known) >= object.version {
            return Ok(());
        }
        let new = match self.death_of(&known, slot.entry, object.timestamp_s, guard) {
            Some(tombstone) => self.append(&[Entry::Object(*object), tombstone], guard)?,
            None => self.append(&[Entry::Object(*object)], guard)?,
        };
        assert!(
            bucket.replace(slot.entry, new, false),
            "the bucket is locked since the slot was found"
        );
        let known = view.object();
        let before = known.and_then(|before| before.deadline);
        let place = (table.id(), hash);
        store.expiry().renote(place, before, object.deadline);
        store.locks.replayed(place, known.as_ref(), Some(object));
        self.uncount(table, slot.entry, &view, guard);
        self.count(table, new, guard);
        Ok(())
    }

    fn tombstone(
        &mut self,
        ground: &Ground<'_>,
        tombstone: &Tombstone<'_>,
        hash: KeyHash,
    ) -> Result<(), ReplayError> {
        let Ground { store, guard, .. } = *ground;
        let table = ground.table(tombstone.table)?;
        store.space().raise_safe_version(tombstone.version.next());
        let index = table
            .indexes
            .of(hash)
            .ok_or(ReplayError::Foreign(table.id()))?;
        let mut bucket = index.lock(hash);
        if table.indexes.is_closed() {
            return Err(ReplayError::Foreign(table.id()));
        }
        // Without a dead copy in this log the tombstone is needed only until the replay ends.
        let unbound = Tombstone {
            segment: SegmentId(0),
            ..*tombstone
        };
        let Some(slot) = bucket.find(|entry| store.key_is(entry, tombstone.key, guard)) else {
            let room = bucket.room().map_err(EngineError::from)?;
            let new = self.append(&[Entry::Tombstone(unbound)], guard)?;
            bucket.fill(room, new, false);
            drop(bucket);
            index.resize(guard, |entry| store.hash_of(table, entry, guard));
            self.tombstones.push((table.id(), hash, new));
            return Ok(());
        };
        let view = store.view(slot.entry, guard);
        let known = view.entry();
        let newer = match &known {
            // An object of the same version is the one that was deleted.
            Entry::Object(object) => object.version > tombstone.version,
            Entry::Tombstone(other) => other.version >= tombstone.version,
            other => unreachable_kind(other),
        };
        if newer {
            return Ok(());
        }
        let new = match self.death_of(&known, slot.entry, tombstone.timestamp_s, guard) {
            // The version counts for what else comes in this replay; the segment for the dead copy
            // here.
            Some(Entry::Tombstone(death)) => {
                let bound = Tombstone {
                    version: tombstone.version,
                    ..death
                };
                self.append(&[Entry::Tombstone(bound)], guard)?
            }
            Some(_) | None => self.append(&[Entry::Tombstone(unbound)], guard)?,
        };
        assert!(
            bucket.replace(slot.entry, new, false),
            "the bucket is locked since the slot was found"
        );
        let place = (table.id(), hash);
        store.locks.replayed(place, view.object().as_ref(), None);
        self.uncount(table, slot.entry, &view, guard);
        self.tombstones.push((table.id(), hash, new));
        Ok(())
    }

    /// Copies the record of an operation, unless it is here or not needed.
    fn completion(
        &mut self,
        ground: &Ground<'_>,
        record: &Completion,
        now: Duration,
    ) -> Result<(), ReplayError> {
        let Ground { store, guard, .. } = *ground;
        ground.table(record.table)?;
        if store.completions().wants(record, now, guard) {
            let new = self.append(&[Entry::Completion(record.clone())], guard)?;
            store.completions().restore(record, new, guard);
        }
        Ok(())
    }

    /// The tombstone for a copy in the side log that dies now (REPLAY-2).
    fn death_of<'k>(
        &self,
        known: &Entry<'k>,
        at: EntryRef,
        timestamp_s: u32,
        guard: &EpochGuard<'_>,
    ) -> Option<Entry<'k>> {
        match known {
            Entry::Object(dead) => {
                let (_, position) = self.store.space().position_of(at, guard);
                Some(Entry::Tombstone(Tombstone {
                    table: dead.table,
                    version: dead.version,
                    segment: position.segment,
                    timestamp_s,
                    key: dead.key,
                }))
            }
            Entry::Tombstone(_) => None,
            other => unreachable_kind(other),
        }
    }

    fn append(
        &mut self,
        entries: &[Entry<'_>],
        guard: &EpochGuard<'_>,
    ) -> Result<EntryRef, ReplayError> {
        let class = match entries {
            [Entry::Tombstone(_)] => AppendClass::Delete,
            [Entry::Completion(_)] => AppendClass::Internal,
            _ => self.objects,
        };
        let refs = self
            .side
            .append(entries, class, guard)
            .map_err(EngineError::from)?;
        Ok(refs[0])
    }

    fn count(&mut self, table: &EngineTable, entry: EntryRef, guard: &EpochGuard<'_>) {
        let view = self.store.view(entry, guard);
        if let Entry::Object(object) = view.entry() {
            let growth =
                Growth::by(counted_bytes(&object), view.total_len()).until(object.deadline);
            table.count_foreign(growth);
        }
        self.load.objects += 1;
    }

    /// Counts what the index does not point to any more.
    fn uncount(
        &mut self,
        table: &EngineTable,
        entry: EntryRef,
        view: &EntryView<'_>,
        guard: &EpochGuard<'_>,
    ) {
        self.store.uncount(table, entry, view, guard);
        if let Entry::Object(_) = view.entry() {
            self.load.objects -= 1;
        }
    }

    /// Compares with its checksums what the replicas have: see [`SideLog::compare_durable`]. To be
    /// called from time to time.
    ///
    /// # Errors
    /// [`Corruption`]: log memory is broken; the process must stop.
    pub fn compare_durable(&mut self) -> Result<(), Corruption> {
        self.side.compare_durable()
    }

    /// Everything was replayed: takes the tombstones out of the index and gives the side log,
    /// closed, to be committed once its segments are durable.
    #[must_use]
    pub fn finish(mut self) -> (SideLog, Vec<Arc<Segment>>) {
        let store = &*self.store;
        for (table, hash, entry) in self.tombstones.drain(..) {
            let guard = store.space().pin();
            if let Some(table) = self.tables.get(&table)
                && let Some(index) = table.indexes.of(hash)
            {
                index.lock(hash).remove(entry);
                index.resize(&guard, |entry| store.hash_of(table, entry, &guard));
            }
        }
        let segments = self.side.close();
        (self.side, segments)
    }

    /// Takes back everything: the tablets hold nothing again.
    pub fn abort(self) {
        for (table, range) in &self.tablets {
            self.store.forget(table, *range);
        }
        self.side.abort();
    }
}

fn version_of(entry: &Entry<'_>) -> ObjectVersion {
    match entry {
        Entry::Object(object) => object.version,
        Entry::Tombstone(tombstone) => tombstone.version,
        other => unreachable_kind(other),
    }
}
