//! Options of a store.

use pluvio_log::LogOptions;

/// How a store is made.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The log: memory, number of logs, durability.
    pub log: LogOptions,
}

/// The smallest entry that an index slot can point to: a header of 13 bytes and a short key.
/// Address space for this many slots is reserved for each table; memory is used as the table grows.
const ENTRY_BYTES_MIN: u64 = 16;

impl EngineOptions {
    /// Most entries that fit the log memory.
    pub(crate) fn index_entries_max(&self) -> u64 {
        self.log.memory.bytes() / ENTRY_BYTES_MIN
    }
}
