//! Reads and writes of an embedded store that overwrites in place: fast paths, each in one piece of
//! code, with the slow path behind each.

use crate::embedded::read::BATCH;
use crate::engine::Engine;
use crate::engine::in_place::{copy_object, count_overwrite, with_buffer};
use crate::engine::read::PREFETCH_LINES;
use crate::table::EngineTable;
use pluvio_index::Approach;
use pluvio_log::Overwritable;
use pluvio_memory::EpochGuard;
use pluvio_units::{KeyHash, LogId, ObjectVersion};

impl Engine {
    /// Replaces what `into` holds by a copy of the value; gives its version. What `into` holds when
    /// there is no object is not said. For callers that do more than copy: one piece of code for
    /// all of them.
    #[inline(never)]
    pub(crate) fn read_in_place(
        &self,
        table: &EngineTable,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Option<ObjectVersion> {
        let hash = table.hash(key);
        let approach = table.indexes.approach(hash);
        self.copy_fast(table, (hash, approach), key, into, &self.space.pin())
    }

    /// [`Self::read_in_place`] for a caller that holds a guard and has the key's hash. It has
    /// approached the hash in the one index, if there is one. The fast path, in one piece of code,
    /// for nearly every read; [`Self::copy_slow`] finds the others.
    #[inline(always)]
    pub(crate) fn copy_fast(
        &self,
        table: &EngineTable,
        (hash, approach): (KeyHash, Option<Approach>),
        key: &[u8],
        into: &mut Vec<u8>,
        guard: &EpochGuard<'_>,
    ) -> Option<ObjectVersion> {
        let space = &*self.space;
        if let Some(approach) = approach
            && let Some(index) = table.indexes.of_all()
            && let Some(home) = index.stable_home(approach)
        {
            for slot in home.slots() {
                space.prefetch(slot.entry, PREFETCH_LINES);
                let object = space.plain_mutable_object(slot.entry, key, guard);
                let Some(object) = object else { continue };
                let version = copy_object(&object, into);
                if version.is_some() && home.is_stable() {
                    return version;
                }
                break;
            }
        }
        self.copy_slow(table, hash, key, into, guard)
    }

    /// Shows values by their places in `keys`: first all index buckets are asked for, then all
    /// entries, then they are copied.
    pub(crate) fn read_batch_in_place(
        &self,
        table: &EngineTable,
        keys: &[&[u8]],
        mut see: impl FnMut(usize, Option<&[u8]>),
    ) {
        for (chunk, at) in keys.chunks(BATCH).zip((0..).step_by(BATCH)) {
            let guard = self.space.pin();
            let batch = self.prefetch_batch(table, chunk.iter().copied());
            with_buffer(|value| {
                for ((key, (hash, _)), at) in chunk.iter().zip(batch).zip(at..) {
                    let to = (hash, table.indexes.approach(hash));
                    let version = self.copy_fast(table, to, key, value, &guard);
                    see(at, version.map(|_| &value[..]));
                }
            });
        }
    }

    /// Overwrites an object if it is there and the value fits; gives the new version. `by` gives
    /// the log that the thread appends to; the hash is the key's, and what was approached is its
    /// home. `None`, and nothing has changed, when an append is needed, or when there is no one
    /// index for all hashes.
    ///
    /// The fast path, in one piece of code, for nearly every put;
    /// [`Self::overwrite_in_place_slow`] finds what this does not.
    #[inline(always)]
    pub(crate) fn overwrite_in_place(
        &self,
        by: impl Fn() -> LogId,
        table: &EngineTable,
        (hash, approach): (KeyHash, Option<Approach>),
        key: &[u8],
        value: &[u8],
    ) -> Option<ObjectVersion> {
        let (approach, whole) = approach.zip(table.indexes.whole())?;
        let (index, space) = (whole.index(), &*self.space);
        let guard = space.pin();
        let ahead = |entry| space.prefetch(entry, PREFETCH_LINES);
        let (mut bucket, likely) = index.lock_after(approach, ahead);
        if table.indexes.is_closed() {
            return None;
        }
        if let Some(likely) = likely
            && let Some(object) = space.plain_mutable_object(likely.entry(), key, &guard)
        {
            let at = (likely.entry(), &guard);
            let (before, now) = self.overwrite(&mut bucket, at, &object, value)?;
            drop(bucket);
            count_overwrite(table, by, before, now);
            return Some(now.version);
        }
        drop(bucket);
        self.overwrite_in_place_slow(by(), table, hash, key, value, &guard)
    }

    /// Slow path of [`Self::overwrite_in_place`]: the key is outside its home line, or its object
    /// lies in several seglets.
    #[inline(never)]
    fn overwrite_in_place_slow(
        &self,
        by: LogId,
        table: &EngineTable,
        hash: KeyHash,
        key: &[u8],
        value: &[u8],
        guard: &EpochGuard<'_>,
    ) -> Option<ObjectVersion> {
        let index = table.indexes.of(hash)?;
        let mut bucket = index.lock(hash);
        if table.indexes.is_closed() {
            return None;
        }
        let (mut small, mut scattered) = (None, None);
        let slot = bucket.find(|entry| {
            small = self.space.mutable_object(entry, guard);
            if small.is_none() {
                scattered = self.space.scattered_object(entry, guard);
            }
            small = small.take().filter(|object| object.has_key(key));
            scattered = scattered.take().filter(|object| object.has_key(key));
            small.is_some() || scattered.is_some()
        })?;
        let at = (slot.entry, guard);
        let (before, now) = match small {
            Some(object) => self.overwrite(&mut bucket, at, &object, value)?,
            None => self.overwrite(&mut bucket, at, &scattered?, value)?,
        };
        drop(bucket);
        count_overwrite(table, || by, before, now);
        Some(now.version)
    }
}
