//! What a reader knows of the tables: one version of the owner's map.

use crate::messages::{IndexEntry, MAP_MAX, TableEntry};
use core::sync::atomic::{AtomicU64, Ordering};
use pluvio_index::IndexReader;
use pluvio_units::{HashRange, KeyHash, TableHash, TableId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Everything that may be read under one version.
#[derive(Debug, Default)]
pub(crate) struct Map {
    pub(crate) version: u64,
    /// Unlike that of any other map of this process.
    pub(crate) number: u64,
    pub(crate) tables: BTreeMap<TableId, MappedTable>,
}

/// A table.
#[derive(Debug)]
pub(crate) struct MappedTable {
    pub(crate) name: String,
    pub(crate) hash: TableHash,
    /// Ascending; none overlaps another one.
    served: Vec<HashRange>,
    indexes: Vec<(HashRange, u64, Arc<IndexReader>)>,
}

/// The map was sent in a way that no owner sends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the owner sent a map that is none")]
pub(crate) struct BadMap;

impl MappedTable {
    /// The index for a hash that is served.
    #[inline]
    pub(crate) fn index_of(&self, hash: KeyHash) -> Option<&IndexReader> {
        let served = self.served.partition_point(|range| range.last < hash);
        if !self.served.get(served)?.contains(hash) {
            return None;
        }
        let at = self
            .indexes
            .partition_point(|(range, ..)| range.last < hash);
        let (range, _, index) = self.indexes.get(at)?;
        range.contains(hash).then_some(index)
    }
}

impl Map {
    /// An empty one of that version, which is then added to.
    pub(crate) fn new(version: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            version,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            tables: BTreeMap::new(),
        }
    }

    pub(crate) fn add_table(&mut self, entry: TableEntry) -> Result<(), BadMap> {
        if self.tables.len() >= MAP_MAX {
            return Err(BadMap);
        }
        let table = self.tables.entry(entry.id).or_insert_with(|| MappedTable {
            name: entry.name,
            hash: entry.hash,
            served: Vec::new(),
            indexes: Vec::new(),
        });
        table.served.extend(entry.served);
        Ok(())
    }

    pub(crate) fn add_index(
        &mut self,
        entry: &IndexEntry,
        index: Arc<IndexReader>,
    ) -> Result<(), BadMap> {
        let table = self.tables.get_mut(&entry.table).ok_or(BadMap)?;
        if table.indexes.len() >= MAP_MAX {
            return Err(BadMap);
        }
        table.indexes.push((entry.range, entry.layout.id, index));
        Ok(())
    }

    /// The map is complete: puts it in order.
    pub(crate) fn finish(mut self) -> Result<Self, BadMap> {
        for table in self.tables.values_mut() {
            table.served.sort_by_key(|range| range.first);
            table.indexes.sort_by_key(|(range, ..)| range.first);
            let apart = |one: &HashRange, next: &HashRange| one.last < next.first;
            let served = table.served.windows(2).all(|two| apart(&two[0], &two[1]));
            let mut indexes = table.indexes.windows(2);
            let indexed = indexes.all(|two| apart(&two[0].0, &two[1].0));
            if !(served && indexed) {
                return Err(BadMap);
            }
        }
        Ok(self)
    }

    /// The index with this number, if the map has it.
    pub(crate) fn index(&self, id: u64) -> Option<&Arc<IndexReader>> {
        let mut indexes = self.tables.values().flat_map(|table| &table.indexes);
        indexes
            .find(|(_, known, _)| *known == id)
            .map(|(.., index)| index)
    }
}
