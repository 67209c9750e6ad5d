//! Options of a store.

use pluvio_index::Index;
use pluvio_log::{LogOptions, NodeSet};

/// How a store is made.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The log: memory, number of logs, durability.
    pub log: LogOptions,
}

/// Which memory nodes the indexes take their memory from, and the log's tables of segments and of
/// dead entries. Threads of all nodes use these alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IndexMemory {
    /// From all nodes in turn, where there are several: their links share the reads.
    #[default]
    Interleave,
    /// From the node of the thread that touches a page first.
    FirstTouch,
}

impl IndexMemory {
    /// The nodes that take turns on a machine with these.
    #[must_use]
    pub fn nodes(self, machine: &[u32]) -> NodeSet {
        match self {
            Self::Interleave => machine.iter().copied().collect(),
            Self::FirstTouch => NodeSet::EMPTY,
        }
    }
}

/// The smallest entry that an index slot can point to: a header of 13 bytes and a short key.
const ENTRY_BYTES_MIN: u64 = 16;

/// A memory up to this size may be full of smallest entries, all of them in one index: 4 GiB.
const MEMORY_OF_SMALLEST: u64 = 4 << 30;

/// In a larger memory the entries of an index may take so much each, on average.
const ENTRY_BYTES_MEAN: u64 = 64;

impl EngineOptions {
    /// Entries that each index has room for, wherever their hashes are: as many as fit the log
    /// memory, or what is realistic where that is large ([`ENTRY_BYTES_MEAN`]). Address space for
    /// so many is reserved for every tablet, 44 bytes each, and a process has 128 TiB; memory is
    /// used as the index grows. Evenly spread hashes find room for five times as many.
    pub(crate) fn index_entries_max(&self) -> u64 {
        let memory = self.log.memory.bytes();
        let smallest = memory.min(MEMORY_OF_SMALLEST) / ENTRY_BYTES_MIN;
        smallest
            .max(memory / ENTRY_BYTES_MEAN)
            .min(Index::ENTRIES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_log::LOG_MEMORY_MAX;
    use pluvio_units::Size;

    #[test]
    fn an_index_has_room_for_what_fits_a_small_memory_and_what_is_realistic_in_a_large_one() {
        let entries = |memory| {
            let log = LogOptions::new(memory);
            EngineOptions { log }.index_entries_max()
        };
        let gib = |n: u64| Size(n << 30);
        assert_eq!(entries(Size::mib(64)), 4 << 20);
        assert_eq!(entries(gib(4)), 1 << 28);
        assert_eq!(entries(gib(16)), 1 << 28);
        assert_eq!(entries(gib(64)), 1 << 30);
        assert_eq!(entries(gib(1 << 10)), 1 << 34);
        assert_eq!(entries(LOG_MEMORY_MAX), Index::ENTRIES_MAX);
    }
}
