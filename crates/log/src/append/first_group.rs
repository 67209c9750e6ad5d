//! What every head begins with: segment header, log digest, table statistics, safe version, and the
//! horizon of deadlines if there is one.
//!
//! Owns the safe version, the horizon and the source of the statistics. The digests it writes are
//! given to it.

use super::log_state::LogState;
use crate::segments::Storage;
use core::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use pluvio_format::{Encoded, Entry, LogDigest, SegmentKind, TableStats};
use pluvio_units::{ObjectVersion, SegmentId, UnixMs};
use std::sync::OnceLock;

/// Tells the sizes of the tables; see
/// [`LogSpace::set_table_stats_source`](crate::LogSpace::set_table_stats_source).
pub type TableStatsSource = Box<dyn Fn() -> TableStats + Send + Sync>;

/// See the module.
pub(crate) struct FirstGroup {
    safe_version: AtomicU64,
    /// 0: no deadline was ever judged.
    horizon: AtomicU64,
    /// The logs that recovery has to find (LOG-17).
    logs: AtomicU16,
    table_stats: OnceLock<TableStatsSource>,
}

impl FirstGroup {
    /// Of a master with this number of logs.
    pub(crate) fn new(logs: u16) -> Self {
        Self {
            logs: AtomicU16::new(logs),
            safe_version: AtomicU64::new(1),
            horizon: AtomicU64::new(0),
            table_stats: OnceLock::new(),
        }
    }

    /// The logs that recovery has to find.
    pub(crate) fn logs(&self) -> u16 {
        self.logs.load(Ordering::Acquire)
    }

    /// Heads that are opened from now on tell this number of logs.
    pub(crate) fn raise_logs(&self, to: u16) {
        self.logs.fetch_max(to, Ordering::AcqRel);
    }

    #[inline]
    pub(crate) fn safe_version(&self) -> ObjectVersion {
        ObjectVersion(self.safe_version.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn raise_safe_version(&self, to: ObjectVersion) {
        // Of the objects that are deleted, most are older than others that were: the line of the
        // counter stays with those that read it. Acquire: as the larger value would be read.
        if self.safe_version.load(Ordering::Acquire) < to.0 {
            self.safe_version.fetch_max(to.0, Ordering::AcqRel);
        }
    }

    pub(crate) fn horizon(&self) -> UnixMs {
        UnixMs(self.horizon.load(Ordering::Acquire))
    }

    pub(crate) fn raise_horizon(&self, to: UnixMs) {
        self.horizon.fetch_max(to.0, Ordering::AcqRel);
    }

    /// Sets the party that tells the table statistics; only the first call counts.
    pub(crate) fn set_table_stats_source(&self, source: TableStatsSource) {
        let _first_one_counts = self.table_stats.set(source);
    }

    pub(crate) fn table_stats(&self) -> TableStats {
        self.table_stats
            .get()
            .map_or_else(TableStats::default, |source| source())
    }

    /// The group of head `id`, whose digest lists these segments and itself.
    pub(crate) fn entries(
        &self,
        storage: &Storage,
        log: &LogState,
        (id, created_s): (SegmentId, u32),
        mut listed: Vec<SegmentId>,
        stats: TableStats,
    ) -> Vec<Entry<'static>> {
        // Side segments may have been opened later than the newest member, never later than `id`.
        listed.push(id);
        let digest = LogDigest {
            log: log.id,
            logs_of_master: self.logs().max(log.id.0 + 1),
            segments: listed,
        };
        let mut entries = vec![
            storage.segment_header(log.id, SegmentKind::Head, id, created_s),
            Entry::LogDigest(digest),
            Entry::TableStats(stats),
            Entry::SafeVersion(self.safe_version()),
        ];
        let horizon = self.horizon();
        if horizon > UnixMs(0) {
            entries.push(Entry::Horizon(horizon));
        }
        entries
    }

    /// Bytes of the group of a head whose digest lists these segments, or a few more.
    pub(crate) fn bytes(
        &self,
        storage: &Storage,
        log: &LogState,
        listed: Vec<SegmentId>,
        stats: &TableStats,
    ) -> usize {
        let id = SegmentId(u64::MAX >> 1);
        let mut entries = self.entries(storage, log, (id, u32::MAX), listed, stats.clone());
        // The first horizon may come, or grow, before the group is written.
        entries.retain(|entry| !matches!(entry, Entry::Horizon(_)));
        entries.push(Entry::Horizon(UnixMs(u64::MAX)));
        let lens = entries.iter().map(|entry| {
            let encoded = Encoded::new(entry, true).expect("ids ascend and all is in bounds");
            encoded.len()
        });
        storage.memory.packing().end_after(0, lens) as usize
    }
}
