//! Reads of single objects and of batches.

use crate::engine::{Engine, StoreKind, unreachable_kind};
use crate::in_place::{ValueHead, with_buffer};
use crate::table::EngineTable;
use pluvio_format::{Entry, Object};
use pluvio_index::{Index, Slot};
use pluvio_log::{Awaited, EntryView};
use pluvio_memory::EpochGuard;
use pluvio_mutation::{Current, Get, Outcome, look};
use pluvio_units::{EntryRef, KeyHash, LogId, LogPosition, ObjectVersion};

/// The end of an entry that is not known to be durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pending {
    /// The log to wait for.
    pub(crate) log: LogId,
    /// The position that must be durable.
    pub(crate) position: LogPosition,
}

impl Pending {
    pub(crate) fn end(self) -> (LogId, LogPosition) {
        (self.log, self.position)
    }
}

/// Keys whose memory is asked for together: as many misses as a core has in flight.
pub(crate) const BATCH: usize = 16;

/// Cache lines of an entry that a read asks for before it looks at the first: objects of some
/// hundred bytes lie in these.
pub(crate) const PREFETCH_LINES: u64 = 3;

/// What an index slot refers to.
pub(crate) enum Seen<'g> {
    /// An object in one piece, and its length in the log.
    Object(Object<'g>, u32),
    /// Anything else.
    Other(Box<EntryView<'g>>),
    /// A copy of an object whose value may be overwritten.
    Mutable(Box<EntryView<'g>>),
}

impl Seen<'_> {
    /// The object, if it is one.
    #[inline]
    pub(crate) fn object(&self) -> Option<Object<'_>> {
        match self {
            Self::Object(object, _) => Some(*object),
            Self::Mutable(view) => view.object().map(ValueHead::strip),
            Self::Other(view) => match view.entry() {
                Entry::Object(_) => view.object(),
                Entry::Tombstone(_) => None,
                other => unreachable_kind(&other),
            },
        }
    }

    #[inline]
    pub(crate) fn total_len(&self) -> u32 {
        match self {
            Self::Object(_, len) => *len,
            Self::Other(view) | Self::Mutable(view) => view.total_len(),
        }
    }
}

impl Engine {
    /// Reads of an object what is wanted of it. `hash` is that of the key.
    pub fn get(&self, table: &EngineTable, hash: KeyHash, get: &Get<'_>) -> Awaited<Outcome> {
        debug_assert_eq!(hash, table.hash(get.key), "the hash belongs to the key");
        match self.kind {
            StoreKind::Replicated | StoreKind::Volatile => self.get_appended(table, hash, get),
            StoreKind::InPlace => self.get_in_place(table, get),
        }
    }

    fn get_appended(&self, table: &EngineTable, hash: KeyHash, get: &Get<'_>) -> Awaited<Outcome> {
        let guard = self.space.pin();
        let index = table.indexes.of(hash);
        let found = index.and_then(|index| self.lookup(&index, hash, get.key, &guard));
        let Some((slot, seen)) = found else {
            return Awaited::Now(self.marks.unmarked(look(get, None)));
        };
        let object = seen.object();
        let current = object.as_ref().map(|object| Current {
            version: object.version,
            value: object.value,
        });
        let outcome = look(get, current);
        if !slot.pending {
            return Awaited::Now(self.marks.unmarked(outcome));
        }
        let pending = self.pending(slot, seen.total_len(), &guard);
        self.marks.marked(pending.map(Pending::end), outcome)
    }

    fn get_in_place(&self, table: &EngineTable, get: &Get<'_>) -> Awaited<Outcome> {
        let outcome = with_buffer(|value| {
            let version = self.copy_in_place(table, get.key, value);
            let current = version.map(|version| Current { version, value });
            look(get, current)
        });
        Awaited::Now(self.marks.unmarked(outcome))
    }

    /// Asks for the memory of keys that are read or changed next: first for their index buckets,
    /// then for the entries that these point to, so that the waits overlap [RAMCloud §5].
    pub fn prefetch(&self, table: &EngineTable, hashes: impl Iterator<Item = KeyHash> + Clone) {
        let guard = self.space.pin();
        for hash in hashes.clone() {
            if let Some(index) = table.indexes.of(hash) {
                index.prefetch_with_head(hash);
            }
        }
        for hash in hashes {
            let Some(index) = table.indexes.of(hash) else {
                continue;
            };
            match index.at_home(index.home(hash)).next() {
                Some(slot) => self.space.prefetch(slot.entry, PREFETCH_LINES),
                None => index.prefetch_behind_home(hash),
            }
        }
        drop(guard);
    }

    /// The slot of a key, and what it refers to.
    #[inline]
    pub(crate) fn lookup<'g>(
        &'g self,
        index: &Index,
        hash: KeyHash,
        key: &[u8],
        guard: &'g EpochGuard<'_>,
    ) -> Option<(Slot, Seen<'g>)> {
        index.lookup_with(hash, |slot| {
            // Where the value ends is known only when its beginning has come; without this, its
            // lines come one after the other.
            self.space.prefetch(slot.entry, PREFETCH_LINES);
            Some((slot, self.see_key(slot.entry, key, guard)?))
        })
    }

    /// Version and value of an object in one piece that the home of its hash leads to: the short
    /// way, in one piece of code, for nearly every read. [`Self::read_away`] finds what this does
    /// not.
    #[inline(always)]
    fn lookup_home<'g>(
        &'g self,
        index: &Index,
        hash: KeyHash,
        key: &[u8],
        guard: &'g EpochGuard<'_>,
    ) -> Option<(ObjectVersion, &'g [u8])> {
        for slot in index.at_home(index.home(hash)) {
            self.space.prefetch(slot.entry, PREFETCH_LINES);
            if let Some((version, value, _)) = self.space.value_of(slot.entry, key, guard) {
                return Some((version, value));
            }
        }
        None
    }

    /// What an entry is, if it has this key.
    #[inline]
    pub(crate) fn see_key<'g>(
        &'g self,
        entry: EntryRef,
        key: &[u8],
        guard: &'g EpochGuard<'_>,
    ) -> Option<Seen<'g>> {
        match self.space.object(entry, guard) {
            Some((object, len)) => (object.key == key).then_some(Seen::Object(object, len)),
            None => self.see_other(entry, key, guard),
        }
    }

    /// [`Self::see_key`] for what is no object in one piece.
    #[cold]
    fn see_other<'g>(
        &'g self,
        entry: EntryRef,
        key: &[u8],
        guard: &'g EpochGuard<'_>,
    ) -> Option<Seen<'g>> {
        let view = Box::new(self.view(entry, guard));
        if view.key() != key {
            return None;
        }
        Some(match self.space.is_in_place() {
            true => Seen::Mutable(view),
            false => Seen::Other(view),
        })
    }

    /// The object of a store without replicas.
    #[inline]
    pub(crate) fn find<'g>(
        &'g self,
        table: &EngineTable,
        key: &[u8],
        guard: &'g EpochGuard<'_>,
    ) -> Option<Seen<'g>> {
        let hash = table.hash(key);
        let index = table.indexes.of(hash)?;
        Some(self.lookup(&index, hash, key, guard)?.1)
    }

    /// Shows an object of a store without replicas.
    #[inline]
    pub(crate) fn read_with<R>(
        &self,
        table: &EngineTable,
        key: &[u8],
        see: impl FnOnce(ObjectVersion, &[u8]) -> R,
    ) -> Option<R> {
        if self.space.is_in_place() {
            return with_buffer(|value| {
                let version = self.copy_in_place(table, key, value)?;
                Some(see(version, value))
            });
        }
        self.read_appended(table, key, see)
    }

    /// [`Self::read_with`] where values do not change.
    #[inline(always)]
    pub(crate) fn read_appended<R>(
        &self,
        table: &EngineTable,
        key: &[u8],
        see: impl FnOnce(ObjectVersion, &[u8]) -> R,
    ) -> Option<R> {
        let hash = table.hash(key);
        let guard = self.space.pin();
        let Some(index) = table.indexes.of_all() else {
            let index = table.indexes.of(hash)?;
            return self.read_away(&index, hash, key, &guard, see);
        };
        if let Some((version, value)) = self.lookup_home(index, hash, key, &guard) {
            return Some(see(version, value));
        }
        self.read_away(index, hash, key, &guard, see)
    }

    /// [`Self::read_appended`] for what is not where nearly everything is.
    #[inline(never)]
    fn read_away<R>(
        &self,
        index: &Index,
        hash: KeyHash,
        key: &[u8],
        guard: &EpochGuard<'_>,
        see: impl FnOnce(ObjectVersion, &[u8]) -> R,
    ) -> Option<R> {
        let seen = index.lookup_slow_with(hash, |slot| {
            self.space.prefetch(slot.entry, PREFETCH_LINES);
            self.see_key(slot.entry, key, guard)
        })?;
        let object = seen.object()?;
        Some(see(object.version, object.value))
    }

    /// Shows objects of a store without replicas, by their places in `keys`: first all index
    /// buckets are asked for, then all entries, then they are read.
    pub(crate) fn read_batch(
        &self,
        table: &EngineTable,
        keys: &[&[u8]],
        mut see: impl FnMut(usize, Option<(ObjectVersion, &[u8])>),
    ) {
        let mut at = 0;
        for chunk in keys.chunks(BATCH) {
            let guard = self.space.pin();
            let batch = self.prefetch_batch(table, chunk.iter().copied());
            if self.space.is_in_place() {
                with_buffer(|value| {
                    for (key, (hash, _)) in chunk.iter().zip(batch) {
                        let to = (hash, table.indexes.approach(hash));
                        let version = self.copy_value(table, to, key, value, &guard);
                        see(at, version.map(|version| (version, &value[..])));
                        at += 1;
                    }
                });
                continue;
            }
            for (key, (hash, candidate)) in chunk.iter().zip(batch) {
                let found = candidate.and_then(|entry| self.space.value_of(entry, key, &guard));
                if let Some((version, value, _)) = found {
                    see(at, Some((version, value)));
                } else {
                    let index = table.indexes.of(hash);
                    let seen = index.and_then(|i| Some(self.lookup(&i, hash, key, &guard)?.1));
                    let object = seen.as_ref().and_then(Seen::object);
                    see(at, object.map(|o| (o.version, o.value)));
                }
                at += 1;
            }
        }
    }

    /// Asks for the index buckets of some keys, [`BATCH`] at most, and then for their entries.
    /// Gives the hashes, and what the index points to that is most likely the key's entry: if it
    /// has that key, it was the key's entry during this call. Under a guard of the caller's.
    #[inline]
    pub(crate) fn prefetch_batch<'k>(
        &self,
        table: &EngineTable,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> [(KeyHash, Option<EntryRef>); BATCH] {
        let mut batch = [(KeyHash(0), None); BATCH];
        let mut homes = [None; BATCH];
        let mut count = 0;
        let Some(index) = table.indexes.of(KeyHash(0)) else {
            return batch;
        };
        for ((hash, _), (home, key)) in batch.iter_mut().zip(homes.iter_mut().zip(keys)) {
            *hash = table.hash(key);
            let at = index.home(*hash);
            index.prefetch_home(at);
            *home = Some(at);
            count += 1;
        }
        let mut away = 0_u32;
        for (at, ((hash, candidate), home)) in batch[..count].iter_mut().zip(homes).enumerate() {
            let slot = home.and_then(|home| index.at_home(home).next());
            *candidate = slot.map(|slot| slot.entry);
            match candidate {
                Some(entry) => self.space.prefetch(*entry, PREFETCH_LINES),
                None => {
                    index.prefetch_behind_home(*hash);
                    away |= 1 << at;
                }
            }
        }
        while away != 0 {
            let (hash, candidate) = &mut batch[away.trailing_zeros() as usize];
            *candidate = index.candidate_behind_home(*hash);
            if let Some(entry) = candidate {
                self.space.prefetch(*entry, PREFETCH_LINES);
            }
            away &= away - 1;
        }
        batch
    }
}
