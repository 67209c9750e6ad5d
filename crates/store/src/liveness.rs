//! What the cleaner asks: does the index still point there?

use crate::engine::{Tables, key_of};
use crate::indexes::IndexRef;
use pluvio_format::Entry;
use pluvio_log::{EntryView, Liveness};
use pluvio_units::{EntryRef, KeyHash, TableId};
use std::sync::Arc;

/// The indexes of all tables, as the cleaner sees them.
pub(crate) struct IndexLiveness {
    pub(crate) tables: Arc<Tables>,
}

impl IndexLiveness {
    fn find(&self, entry: &Entry<'_>) -> Option<(IndexRef, KeyHash)> {
        let id: TableId = match entry {
            Entry::Object(object) => object.table,
            Entry::Tombstone(tombstone) => tombstone.table,
            Entry::SegmentHeader(_)
            | Entry::LogDigest(_)
            | Entry::SafeVersion(_)
            | Entry::TableStats(_) => return None,
        };
        let table = self.tables.get(id)?;
        let hash = table.hash(key_of(entry));
        Some((table.indexes.of(hash)?, hash))
    }
}

impl Liveness for IndexLiveness {
    /// A tombstone that the index still points to is durable by now, so its slot is emptied here as
    /// [`Engine::settle`](crate::Engine::settle) would: the cleaner can be faster than the writer's
    /// waiting task. (Those of a replay are gone from the index before their side log is committed, and
    /// the cleaner sees no segments before that.)
    fn is_live(&self, entry: EntryRef, view: &EntryView<'_>) -> bool {
        let parsed = view.entry();
        let Some((index, hash)) = self.find(&parsed) else {
            return false;
        };
        match parsed {
            Entry::Object(_) => index.lookup(hash, |found| found == entry).is_some(),
            Entry::Tombstone(_) => {
                index.lock(hash).remove(entry);
                false
            }
            Entry::SegmentHeader(_)
            | Entry::LogDigest(_)
            | Entry::SafeVersion(_)
            | Entry::TableStats(_) => false,
        }
    }

    fn relocate(&self, old: EntryRef, new: EntryRef, view: &EntryView<'_>) -> bool {
        self.find(&view.entry())
            .is_some_and(|(index, hash)| index.relocate(hash, old, new))
    }
}
