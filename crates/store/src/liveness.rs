//! What the cleaner asks: does the index, or the table of results, still point there?

use crate::completions::Completions;
use crate::engine::Tables;
use crate::table::EngineTable;
use pluvio_format::Completion;
use pluvio_index::Index;
use pluvio_log::{Liveness, TableLiveness};
use pluvio_units::{EntryRef, HashRange, KeyHash, TableId};
use std::sync::Arc;

/// The indexes of all tables and the table of results, as the cleaner sees them.
pub(crate) struct IndexLiveness {
    pub(crate) tables: Arc<Tables>,
    pub(crate) completions: Arc<Completions>,
}

impl Liveness for IndexLiveness {
    /// A table that is dropped while the cleaner has it points to nothing any more; an index that
    /// is made meanwhile points to nothing that was in the log before.
    fn table(&self, table: TableId) -> Option<Arc<dyn TableLiveness>> {
        let table = self.tables.get(table)?;
        let indexes = table.indexes.within(HashRange::ALL);
        Some(Arc::new(TableSnapshot { table, indexes }))
    }

    fn needs_completion(&self, record: &Completion, entry: EntryRef) -> bool {
        self.completions.points_to(record, entry)
    }

    fn relocate_completion(&self, record: &Completion, old: EntryRef, new: EntryRef) -> bool {
        self.completions.relocate(record, old, new)
    }
}

/// A table with the indexes it had when a pass began, by ascending range.
struct TableSnapshot {
    table: Arc<EngineTable>,
    indexes: Vec<(HashRange, Arc<Index>)>,
}

impl TableSnapshot {
    fn index(&self, hash: KeyHash) -> Option<&Index> {
        let (range, index) = match &self.indexes[..] {
            [one] => one,
            several => several.get(several.partition_point(|(range, _)| range.last < hash))?,
        };
        range.contains(hash).then_some(&**index)
    }
}

impl TableLiveness for TableSnapshot {
    fn hash(&self, key: &[u8]) -> KeyHash {
        self.table.hash(key)
    }

    fn prefetch_each(&self, hashes: &[KeyHash]) {
        for &hash in hashes {
            if let Some(index) = self.index(hash) {
                index.prefetch_with_head(hash);
            }
        }
    }

    fn points_to(&self, hash: KeyHash, entry: EntryRef) -> bool {
        self.index(hash)
            .is_some_and(|index| index.lookup(hash, |found| found == entry).is_some())
    }

    /// Its slot is emptied here as [`Engine::settle`](crate::Engine::settle) would: the cleaner can
    /// be faster than the writer's waiting task. (Those of a replay are gone from the index before
    /// their side log is committed, and the cleaner sees no segments before that.)
    fn needs_tombstone(&self, hash: KeyHash, entry: EntryRef) -> bool {
        if let Some(index) = self.index(hash) {
            index.lock(hash).remove(entry);
        }
        false
    }

    fn relocate(&self, hash: KeyHash, old: EntryRef, new: EntryRef) -> bool {
        self.index(hash)
            .is_some_and(|index| self.table.relocate(index, hash, old, new))
    }
}
