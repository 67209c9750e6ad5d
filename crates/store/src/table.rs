//! One table on one master: its index and its statistics.

use crate::engine::{Engine, StoreKind, in_place};
use crate::indexes::Indexes;
use crate::quota::Quota;
use core::hash::{BuildHasher, Hasher};
use pluvio_format::TableStat;
use pluvio_index::Index;
use pluvio_log::{LogSpace, OpenHead};
use pluvio_units::{Deadline, EntryRef, HashKind, KeyHash, LogId, TableHash, TableId};
use std::hash::RandomState;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU16, Ordering};

/// How keys of a table are hashed.
pub(crate) enum KeyHasher {
    /// Stable for ever: tablets and cursors depend on it.
    Fixed(TableHash),
    /// SipHash-1-3 with a key of this process: for tables that nobody else sees.
    Keyed(RandomState),
}

impl KeyHasher {
    /// A keyed hasher with a key of its own.
    pub(crate) fn keyed() -> Self {
        Self::Keyed(RandomState::new())
    }

    /// How others hash the same keys, if they can.
    pub(crate) fn shared_hash(&self) -> Option<TableHash> {
        match self {
            Self::Fixed(hash) => Some(*hash),
            Self::Keyed(_) => None,
        }
    }

    pub(crate) fn kind(&self) -> HashKind {
        match self {
            Self::Fixed(hash) => hash.kind,
            Self::Keyed(_) => HashKind::Seeded,
        }
    }

    #[inline(always)]
    fn hash(&self, key: &[u8]) -> KeyHash {
        match self {
            Self::Fixed(hash) => hash.of(key),
            Self::Keyed(state) => keyed_hash(state, key),
        }
    }
}

#[inline(never)]
fn keyed_hash(state: &RandomState, key: &[u8]) -> KeyHash {
    let mut hasher = state.build_hasher();
    hasher.write(key);
    KeyHash(hasher.finish())
}

/// A table as this store holds it. Which ranges of its hashes belong here is the master's business.
pub struct EngineTable {
    id: TableId,
    hasher: KeyHasher,
    space: Arc<LogSpace>,
    kind: StoreKind,
    pub(crate) indexes: Indexes,
    /// Its durability class; 0: that of the cluster.
    class: AtomicU16,
    /// The bounds that operations keep.
    pub(crate) quota: Quota,
    /// One for each log, and behind those one more for each: a core counts where no other core
    /// does. The second one changes only under the lock of the log's head, and so without locked
    /// instructions. Only the sums mean something.
    counts: Box<[Counts]>,
}

/// Statistics: relaxed, and momentarily off by what is in progress.
#[derive(Default)]
#[repr(align(64))]
struct Counts {
    objects: AtomicI64,
    bounded: AtomicI64,
    object_bytes: AtomicI64,
    log_bytes: AtomicI64,
}

/// By how much the numbers of a table change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Growth {
    /// Objects.
    pub objects: i64,
    /// Those of them that have a deadline.
    pub bounded: i64,
    /// Bytes of keys and values.
    pub object_bytes: i64,
    /// Bytes in the log.
    pub log_bytes: i64,
}

impl Growth {
    /// An object that comes.
    #[inline]
    pub(crate) fn by(key_and_value: usize, log_bytes: u32) -> Self {
        Self {
            objects: 1,
            bounded: 0,
            object_bytes: i64::try_from(key_and_value).expect("far below 2^63 bytes"),
            log_bytes: i64::from(log_bytes),
        }
    }

    /// This, of an object with that deadline.
    #[inline]
    pub(crate) fn until(self, deadline: Option<Deadline>) -> Self {
        Self {
            bounded: i64::from(deadline.is_some()),
            ..self
        }
    }

    /// This, and without that other one.
    #[inline]
    pub(crate) fn without(self, other: Self) -> Self {
        Self {
            objects: self.objects - other.objects,
            bounded: self.bounded - other.bounded,
            object_bytes: self.object_bytes - other.object_bytes,
            log_bytes: self.log_bytes - other.log_bytes,
        }
    }
}

impl EngineTable {
    pub(crate) fn new(id: TableId, hasher: KeyHasher, indexes: Indexes, engine: &Engine) -> Self {
        Self {
            id,
            hasher,
            space: Arc::clone(&engine.space),
            kind: engine.kind,
            indexes,
            class: AtomicU16::new(0),
            quota: Quota::default(),
            counts: (0..2 * engine.space.all_logs().count())
                .map(|_| Counts::default())
                .collect(),
        }
    }

    /// Its durability class; 0: that of the cluster.
    #[inline]
    pub fn class(&self) -> u16 {
        self.class.load(Ordering::Acquire)
    }

    /// Gives it a durability class, before anything is appended for it. It never has another one.
    pub fn set_class(&self, class: u16) {
        self.class.store(class, Ordering::Release);
    }

    fn sum(&self, of: impl Fn(&Counts) -> &AtomicI64) -> u64 {
        self.signed_sum(of).max(0).unsigned_abs()
    }

    fn signed_sum(&self, of: impl Fn(&Counts) -> &AtomicI64) -> i64 {
        let counts = self.counts.iter().map(|c| of(c).load(Ordering::Relaxed));
        counts.sum()
    }

    /// [`EngineTable::object_bytes`], below 0 for a moment where a core has counted what another
    /// one has not yet.
    pub(crate) fn signed_bytes(&self) -> i64 {
        self.signed_sum(|c| &c.object_bytes)
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> TableId {
        self.id
    }

    pub(crate) fn hasher(&self) -> &KeyHasher {
        &self.hasher
    }

    /// The hash of a key in this table.
    #[must_use]
    #[inline(always)]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.hasher.hash(key)
    }

    /// How its keys are hashed.
    #[must_use]
    pub fn hash_kind(&self) -> HashKind {
        self.hasher.kind()
    }

    /// Number of objects.
    #[must_use]
    pub fn objects(&self) -> u64 {
        self.sum(|c| &c.objects)
    }

    /// Number of objects that have a deadline.
    #[must_use]
    pub fn bounded(&self) -> u64 {
        self.sum(|c| &c.bounded)
    }

    /// Bytes of keys and values of those objects.
    #[must_use]
    pub fn object_bytes(&self) -> u64 {
        self.sum(|c| &c.object_bytes)
    }

    /// Bytes of the table's indexes.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        self.indexes.sizes().bytes
    }

    /// What heads record of this table.
    #[must_use]
    pub fn stat(&self) -> TableStat {
        TableStat {
            table: self.id,
            live_bytes: self.sum(|c| &c.log_bytes),
            live_entries: self.objects(),
        }
    }

    /// Lets `index` point to `new`, the cleaner's copy of `old`; false when it points to `old` no
    /// more.
    pub(crate) fn relocate(
        &self,
        index: &Index,
        hash: KeyHash,
        old: EntryRef,
        new: EntryRef,
    ) -> bool {
        match self.kind {
            StoreKind::Replicated | StoreKind::Volatile => index.relocate(hash, old, new),
            StoreKind::InPlace => in_place::relocate(&self.space, index, hash, (old, new)),
        }
    }

    /// Counts what came and went; `by` is the log that the counting thread appends to.
    #[inline]
    pub(crate) fn count(&self, by: LogId, growth: Growth) {
        let counts = &self.counts[usize::from(by.0)];
        let add = |counter: &AtomicI64, by: i64| {
            // An overwrite of the same size changes nothing.
            if by != 0 {
                counter.fetch_add(by, Ordering::Relaxed);
            }
        };
        add(&counts.objects, growth.objects);
        add(&counts.bounded, growth.bounded);
        add(&counts.object_bytes, growth.object_bytes);
        add(&counts.log_bytes, growth.log_bytes);
    }

    /// [`Self::count`] of what no operation has done: replay, or that a tablet has left.
    pub(crate) fn count_foreign(&self, growth: Growth) {
        // First: the table is never taken for having grown by it.
        self.quota.foreign(growth.object_bytes);
        self.count(LogId(0), growth);
    }

    /// [`Self::count`] for a thread that has the head of a log of this table's store.
    #[inline(always)]
    pub(crate) fn count_locked(&self, head: &OpenHead<'_>, growth: Growth) {
        let counts = &self.counts[self.counts.len() / 2 + usize::from(head.log().0)];
        let add = |counter: &AtomicI64, by: i64| {
            // In two steps: nobody else stores to these.
            counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
        };
        debug_assert_eq!(growth.bounded, 0, "an embedded store has no deadlines");
        add(&counts.objects, growth.objects);
        add(&counts.object_bytes, growth.object_bytes);
        add(&counts.log_bytes, growth.log_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of an index of some 25,000 entries share this many bits.
    const BLOCK_BITS: u32 = 12;

    /// The most of these keys that share a block.
    fn most_in_a_block(hasher: &KeyHasher, keys: &[[u8; 8]]) -> usize {
        let mut blocks = vec![0; 1 << BLOCK_BITS];
        for key in keys {
            blocks[(hasher.hash(key).0 >> (64 - BLOCK_BITS)) as usize] += 1;
        }
        blocks.into_iter().max().unwrap()
    }

    /// Somebody who knows how one table hashes has learnt nothing of the next one, nor of this one
    /// after a restart.
    #[test]
    fn keys_chosen_for_one_hasher_are_spread_by_every_other() {
        let hashers = || {
            let seeded = [1, 2].map(|seed| KeyHasher::Fixed(TableHash::from(seed)));
            seeded
                .into_iter()
                .chain([KeyHasher::keyed(), KeyHasher::keyed()])
        };
        for (number, known) in hashers().enumerate() {
            let shares_a_block = |key: &[u8; 8]| known.hash(key).0 >> (64 - BLOCK_BITS) == 77;
            let keys = (0_u64..).map(u64::to_le_bytes).filter(shares_a_block);
            let chosen: Vec<[u8; 8]> = keys.take(300).collect();
            assert_eq!(most_in_a_block(&known, &chosen), 300);
            for (other_number, other) in hashers().enumerate() {
                // Of the keyed ones each is another one; of the seeded ones the same number is the
                // same one.
                if number < 2 && number == other_number {
                    continue;
                }
                let most = most_in_a_block(&other, &chosen);
                assert!(most < 10, "{most} of 300 in one of 4096 blocks");
            }
        }
    }
}
