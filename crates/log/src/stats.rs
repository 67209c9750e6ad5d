//! Numbers of a log space, for metrics and for `status`.

use pluvio_memory::{BindRefused, Interleaving};

/// Whether the memory of each node's logs lies on that node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MemoryBinding {
    /// No nodes were named: pages come from the node of the thread that touches them first.
    #[default]
    NoNodes,
    /// Pages come from the node of their part, as long as it has some.
    Bound,
    /// The system refused at least one part's: its pages come from the node of the thread that
    /// touches them first.
    Refused(BindRefused),
}

impl core::fmt::Display for MemoryBinding {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoNodes => f.write_str("memory not bound: no nodes to divide it among"),
            Self::Bound => f.write_str("memory bound"),
            Self::Refused(why) => write!(f, "memory not bound: {why}"),
        }
    }
}

/// A snapshot; the parts are read one after the other and need not fit each other exactly.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LogStats {
    /// Log memory.
    pub memory_bytes: u64,
    /// Tables beside the log memory.
    pub table_bytes: u64,
    /// Live objects, headers included; no tombstones.
    pub live_bytes: u64,
    /// Limit for `live_bytes`.
    pub live_bytes_max: u64,
    /// Appended bytes of all segments in memory.
    pub log_bytes: u64,
    /// Bytes of the log on disk, open segments counted as full; without replicas, what they would
    /// be.
    pub disk_bytes: u64,
    /// Limit for `disk_bytes`: memory times the disk expansion factor.
    pub disk_bytes_max: u64,
    /// Free for appends.
    pub free_bytes: u64,
    /// Free, and kept for cleaner and emergency heads.
    pub reserve_free_bytes: u64,
    /// Log memory whose pages the system has given, free or not.
    pub resident_bytes: u64,
    /// Cleaned, and waiting for a durable digest or for readers to finish.
    pub freeing_bytes: u64,
    /// Segments that exist on disk.
    pub segments: u64,
    /// Limit for `segments`.
    pub segments_max: u64,
    /// Parts of the memory: one for each memory node, at least one.
    pub memory_parts: u16,
    /// Whether these lie on their nodes.
    pub binding: MemoryBinding,
    /// Whether the tables beside the log memory are interleaved over the memory nodes.
    pub interleaving: Interleaving,
    /// Seglets that a log took from another node's part since the start, because its own had none.
    pub seglets_away: u64,
    /// Guards made since the start by threads beyond the epoch slots
    /// ([`LogOptions::epoch_slots`](crate::LogOptions)); each waits for a mutex.
    pub pins_without_slot: u64,
    /// The cleaner's work.
    pub cleaner: CleanerStats,
}

/// What the cleaner has done since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CleanerStats {
    /// Combined passes that were finished.
    pub passes: u64,
    /// Segments compacted in memory.
    pub compactions: u64,
    /// Passes of both levels given up after reading, because they would have freed nothing.
    pub barren_passes: u64,
    /// Segments cleaned by combined passes.
    pub segments_cleaned: u64,
    /// Memory of these segments, and of those that were compacted.
    pub bytes_cleaned: u64,
    /// Of this memory, what the copies of what lives there do not take. Counted when cleaned bytes
    /// are exchanged for those: it only grows.
    pub bytes_freed: u64,
    /// Survivor segments written.
    pub survivors: u64,
    /// Bytes of live entries copied by combined passes: they go to the backups as well.
    pub bytes_moved: u64,
    /// Bytes of live entries copied by compactions.
    pub bytes_compacted: u64,
    /// Heads opened only to publish a digest.
    pub forced_digests: u64,
    /// Of these, emergency heads.
    pub emergency_heads: u64,
    /// Bytes of free memory given back to the system.
    pub bytes_given_back: u64,
}

impl CleanerStats {
    /// Bytes of live entries copied by either level.
    #[must_use]
    pub fn bytes_copied(&self) -> u64 {
        self.bytes_moved + self.bytes_compacted
    }

    /// Bytes written for each byte of free memory gained, as in [RAMCloud fig. 6]: 1 means that
    /// cleaned segments were empty. `None` before anything was gained.
    #[must_use]
    pub fn write_cost(&self) -> Option<f64> {
        let gained = self.bytes_cleaned.checked_sub(self.bytes_copied())?;
        (gained > 0).then(|| self.bytes_cleaned as f64 / gained as f64)
    }
}
