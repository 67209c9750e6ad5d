//! The map for readers of other processes: the tables, and the places of their indexes.
//!
//! Owns nothing. The page that says which copies count is in the log's memory
//! ([`pluvio_memory::GatePage`]).
//!
//! - TOLD-1: as long as a tablet is served under a version of the map, it keeps the indexes that
//!   were told under that version.

use crate::engine::Engine;
use crate::table::EngineTable;
use core::time::Duration;
use pluvio_index::Index;
use pluvio_memory::GatePage;
use pluvio_units::{HashRange, TableHash, TableId};
use std::sync::Arc;

/// A map: everything that may be read under one version.
#[derive(Default)]
pub struct ReadableMap {
    /// The version.
    pub version: u64,
    /// The tables.
    pub tables: Vec<ReadableTable>,
}

/// A table that may be read.
pub struct ReadableTable {
    /// Its id.
    pub id: TableId,
    /// Its name; empty where readers know it by its id.
    pub name: String,
    /// How its keys are hashed.
    pub hash: TableHash,
    /// The ranges that are served.
    pub served: Vec<HashRange>,
    /// Its indexes, each with the range that it has of them.
    pub indexes: Vec<(HashRange, Arc<Index>)>,
}

impl ReadableTable {
    /// The description of a table for readers; `served` of it is served. `None` if nobody else
    /// can hash its keys.
    #[must_use]
    pub fn of(table: &EngineTable, name: &str, served: Vec<HashRange>) -> Option<Self> {
        let indexes = served.iter().flat_map(|range| table.indexes.within(*range));
        Some(Self {
            id: table.id(),
            name: name.into(),
            hash: table.hasher().shared_hash()?,
            indexes: indexes.collect(),
            served,
        })
    }
}

impl Engine {
    /// Whether other processes may read.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.space.for_readers().is_some()
    }

    /// The page that tells readers of other processes what counts; `None` where there are none.
    #[must_use]
    pub fn gate(&self) -> Option<&GatePage> {
        self.space.for_readers().map(|readable| readable.gate)
    }

    /// Tells readers that everything counts up to `until`, of `CLOCK_BOOTTIME`. Call it some times
    /// in that time: it also brings the time forward by which they judge deadlines.
    pub fn tend_readers(&self, until: Duration) {
        if let Some(gate) = self.gate() {
            // First: a reader that finds the page fresh finds a time that is.
            if self.expiry.is_used() {
                let _judged = self.now();
            }
            gate.fresh_until(u64::try_from(until.as_nanos()).unwrap_or(u64::MAX));
        }
    }
}
