//! Reads of an embedded store whose values do not change: fast paths, each in one piece of code,
//! with the slow path behind each.

use crate::engine::Engine;
use crate::engine::read::{PREFETCH_LINES, Seen};
use crate::table::EngineTable;
use pluvio_index::Index;
use pluvio_memory::EpochGuard;
use pluvio_units::{EntryRef, KeyHash, ObjectVersion};

/// Keys whose memory is asked for together: as many misses as a core has in flight.
pub(crate) const BATCH: usize = 16;

impl Engine {
    /// Shows an object: the fast path, in one piece of code, for nearly every read.
    #[inline(always)]
    pub(crate) fn read_fast<R>(
        &self,
        table: &EngineTable,
        key: &[u8],
        see: impl FnOnce(ObjectVersion, &[u8]) -> R,
    ) -> Option<R> {
        let hash = table.hash(key);
        let guard = self.space.pin();
        let Some(index) = table.indexes.of_all() else {
            let index = table.indexes.of(hash)?;
            return self.read_slow(table, &index, (hash, key), &guard, see);
        };
        if let Some((version, value)) = self.lookup_home(index, hash, key, &guard) {
            return Some(see(version, value));
        }
        self.read_slow(table, index, (hash, key), &guard, see)
    }

    /// Puts a copy of the value behind what `into` holds: [`Self::read_fast`] for a caller that
    /// copies. A value in several seglets is copied once.
    #[inline(always)]
    pub(crate) fn copy_appended(
        &self,
        table: &EngineTable,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Option<ObjectVersion> {
        let hash = table.hash(key);
        let guard = self.space.pin();
        let Some(index) = table.indexes.of_all() else {
            let index = table.indexes.of(hash)?;
            return self.copy_cut(table, &index, (hash, key), &guard, into);
        };
        if let Some((version, value)) = self.lookup_home(index, hash, key, &guard) {
            into.extend_from_slice(value);
            return Some(version);
        }
        self.copy_cut(table, index, (hash, key), &guard, into)
    }

    /// Slow path of [`Self::copy_appended`].
    #[inline(never)]
    fn copy_cut(
        &self,
        table: &EngineTable,
        index: &Index,
        (hash, key): (KeyHash, &[u8]),
        guard: &EpochGuard<'_>,
        into: &mut Vec<u8>,
    ) -> Option<ObjectVersion> {
        // A complete view: nothing found is proved.
        let found = index.lookup_slow_with(hash, |slot| {
            self.space.prefetch(slot.entry, PREFETCH_LINES);
            match self.space.cut_object(slot.entry, guard) {
                Some(object) => (object.key() == key).then_some(Some(object)),
                None => self.see_key(slot.entry, key, guard).map(|_| None),
            }
        })?;
        if let Some(object) = found
            && object.copy_into(into)
        {
            return Some(object.version());
        }
        into.clear();
        self.read_slow(table, index, (hash, key), guard, |version, value| {
            into.extend_from_slice(value);
            version
        })
    }

    /// Version and value of an object in one piece that the home of its hash leads to: the part
    /// of [`Self::read_fast`] that the home line answers.
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

    /// Slow path of [`Self::read_fast`]: the object is outside its home line, or not in one piece,
    /// or it has a deadline.
    #[inline(never)]
    fn read_slow<R>(
        &self,
        table: &EngineTable,
        index: &Index,
        (hash, key): (KeyHash, &[u8]),
        guard: &EpochGuard<'_>,
        see: impl FnOnce(ObjectVersion, &[u8]) -> R,
    ) -> Option<R> {
        let seen = index.lookup_slow_with(hash, |slot| {
            self.space.prefetch(slot.entry, PREFETCH_LINES);
            self.see_key(slot.entry, key, guard)
        })?;
        let object = seen.object()?;
        let is_there = !self.is_gone(table, &object);
        is_there.then(|| see(object.version, object.value))
    }

    /// Shows objects by their places in `keys`: first all index buckets are asked for, then all
    /// entries, then they are read.
    pub(crate) fn read_batch(
        &self,
        table: &EngineTable,
        keys: &[&[u8]],
        mut see: impl FnMut(usize, Option<&[u8]>),
    ) {
        for (chunk, at) in keys.chunks(BATCH).zip((0..).step_by(BATCH)) {
            let guard = self.space.pin();
            let batch = self.prefetch_batch(table, chunk.iter().copied());
            for ((key, (hash, candidate)), at) in chunk.iter().zip(batch).zip(at..) {
                let found = candidate.and_then(|entry| self.space.value_of(entry, key, &guard));
                if let Some((_, value, _)) = found {
                    see(at, Some(value));
                } else {
                    let index = table.indexes.of(hash);
                    let seen = index.and_then(|i| Some(self.lookup(&i, hash, key, &guard)?.1));
                    let object = seen.as_ref().and_then(Seen::object);
                    let object = object.filter(|object| !self.is_gone(table, object));
                    see(at, object.map(|o| o.value));
                }
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
