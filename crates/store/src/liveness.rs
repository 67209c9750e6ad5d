//! What the cleaner asks: does the index, or the table of results, still point there?

use crate::completions::Completions;
use crate::engine::{Tables, key_of};
use pluvio_format::Entry;
use pluvio_index::Index;
use pluvio_log::{EntryView, Liveness};
use pluvio_units::{EntryRef, KeyHash, TableId};
use std::sync::Arc;

/// The indexes of all tables and the table of results, as the cleaner sees them.
pub(crate) struct IndexLiveness {
    pub(crate) tables: Arc<Tables>,
    pub(crate) completions: Arc<Completions>,
}

impl IndexLiveness {
    /// Shows `see` the index in which the entry would be.
    fn find<R>(&self, entry: &Entry<'_>, see: impl FnOnce(&Index, KeyHash) -> R) -> Option<R> {
        let id: TableId = match entry {
            Entry::Object(object) => object.table,
            Entry::Tombstone(tombstone) => tombstone.table,
            Entry::SegmentHeader(_)
            | Entry::LogDigest(_)
            | Entry::SafeVersion(_)
            | Entry::TableStats(_)
            | Entry::Completion(_) => return None,
        };
        let table = self.tables.get(id)?;
        let hash = table.hash(key_of(entry));
        let index = table.indexes.of(hash)?;
        Some(see(&index, hash))
    }
}

impl Liveness for IndexLiveness {
    /// A tombstone that the index still points to is durable by now, so its slot is emptied here as
    /// [`Engine::settle`](crate::Engine::settle) would: the cleaner can be faster than the writer's
    /// waiting task. (Those of a replay are gone from the index before their side log is committed, and
    /// the cleaner sees no segments before that.)
    fn is_live(&self, entry: EntryRef, view: &EntryView<'_>) -> bool {
        let parsed = view.entry();
        match &parsed {
            Entry::Object(_) => self
                .find(&parsed, |index, hash| {
                    index.lookup(hash, |found| found == entry).is_some()
                })
                .unwrap_or(false),
            Entry::Tombstone(_) => {
                self.find(&parsed, |index, hash| index.lock(hash).remove(entry));
                false
            }
            Entry::SegmentHeader(_)
            | Entry::LogDigest(_)
            | Entry::SafeVersion(_)
            | Entry::TableStats(_) => false,
            Entry::Completion(record) => self.completions.points_to(record, entry),
        }
    }

    fn relocate(&self, old: EntryRef, new: EntryRef, view: &EntryView<'_>) -> bool {
        let parsed = view.entry();
        if let Entry::Completion(record) = &parsed {
            return self.completions.relocate(record, old, new);
        }
        self.find(&parsed, |index, hash| index.relocate(hash, old, new))
            .unwrap_or(false)
    }
}
