//! One table on one master: its index and its statistics.

use crate::indexes::Indexes;
use pluvio_format::TableStat;
use pluvio_units::{KeyHash, TableId};
use std::sync::atomic::{AtomicI64, Ordering};

/// A table as this store holds it. Which ranges of its hashes belong here is the master's business.
pub struct EngineTable {
    id: TableId,
    seed: u64,
    pub(crate) indexes: Indexes,
    objects: AtomicI64,
    object_bytes: AtomicI64,
    log_bytes: AtomicI64,
}

impl EngineTable {
    pub(crate) fn new(id: TableId, seed: u64, indexes: Indexes) -> Self {
        let zero = AtomicI64::default;
        Self {
            id,
            seed,
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
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::of(self.seed, key)
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
