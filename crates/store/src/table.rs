//! One table on one master: its index and its statistics.

use crate::indexes::Indexes;
use core::hash::{BuildHasher, Hasher};
use pluvio_format::TableStat;
use pluvio_units::{KeyHash, TableId};
use std::hash::RandomState;
use std::sync::atomic::{AtomicI64, Ordering};

/// How keys of a table are hashed.
pub(crate) enum KeyHasher {
    /// Stable for ever: tablets and cursors depend on it.
    Seeded(u64),
    /// SipHash-1-3 with a key of this process: for tables that nobody else sees.
    Keyed(RandomState),
}

impl KeyHasher {
    /// A keyed hasher with a key of its own.
    pub(crate) fn keyed() -> Self {
        Self::Keyed(RandomState::new())
    }
}

/// A table as this store holds it. Which ranges of its hashes belong here is the master's business.
pub struct EngineTable {
    id: TableId,
    hasher: KeyHasher,
    pub(crate) indexes: Indexes,
    objects: AtomicI64,
    object_bytes: AtomicI64,
    log_bytes: AtomicI64,
}

impl EngineTable {
    pub(crate) fn new(id: TableId, hasher: KeyHasher, indexes: Indexes) -> Self {
        let zero = AtomicI64::default;
        Self {
            id,
            hasher,
            indexes,
            objects: zero(),
            object_bytes: zero(),
            log_bytes: zero(),
        }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> TableId {
        self.id
    }

    /// The hash of a key in this table.
    #[must_use]
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        match &self.hasher {
            KeyHasher::Seeded(seed) => KeyHash::of(*seed, key),
            KeyHasher::Keyed(state) => {
                let mut hasher = state.build_hasher();
                hasher.write(key);
                KeyHash(hasher.finish())
            }
        }
    }

    /// Number of objects.
    #[must_use]
    pub fn objects(&self) -> u64 {
        self.objects.load(Ordering::Relaxed).max(0).unsigned_abs()
    }

    /// Bytes of keys and values of those objects.
    #[must_use]
    pub fn object_bytes(&self) -> u64 {
        self.object_bytes
            .load(Ordering::Relaxed)
            .max(0)
            .unsigned_abs()
    }

    /// Bytes of the table's indexes.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        self.indexes.memory_bytes()
    }

    /// What heads record of this table.
    #[must_use]
    pub fn stat(&self) -> TableStat {
        TableStat {
            table: self.id,
            live_bytes: self.log_bytes.load(Ordering::Relaxed).max(0).unsigned_abs(),
            live_entries: self.objects(),
        }
    }

    /// Counts an object that came (`sign` 1) or went (`sign` -1). The counters are statistics:
    /// relaxed, and momentarily off by what is in progress.
    pub(crate) fn count(&self, sign: i64, object_bytes: usize, log_bytes: usize) {
        let bytes = |n: usize| sign * i64::try_from(n).expect("an entry is far below 2^63 bytes");
        self.objects.fetch_add(sign, Ordering::Relaxed);
        self.object_bytes
            .fetch_add(bytes(object_bytes), Ordering::Relaxed);
        self.log_bytes
            .fetch_add(bytes(log_bytes), Ordering::Relaxed);
    }
}
