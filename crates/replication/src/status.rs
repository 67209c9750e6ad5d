//! Numbers for status and metrics, and places for checkers.

use pluvio_units::{SegmentId, ServerId, TimeSpread};
use std::collections::BTreeMap;

/// The places at backups that may have a replica of a segment, and whether there is a replica that
/// counts. They are those of the segments' replicas, those that were given up, and those that are
/// to be freed. Places that were given up are kept until the segment is closed everywhere (REP-9).
pub type Places = BTreeMap<(ServerId, SegmentId), bool>;

/// How the replication of a master stands.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReplicationStatus {
    /// Segments that are or are to be replicated.
    pub segments: u64,
    /// Segments with fewer complete replicas than wanted.
    pub segments_under_replicated: u64,
    /// Replicas wanted of each segment at this moment: 1 while the only server is its own backup.
    pub replicas_wanted: u32,
    /// Replicas wanted of all segments together, each as its log says.
    pub replicas_of_segments: u64,
    /// Whether replicas of all heads are on their devices when they answer.
    pub synced: bool,
    /// Replicas needed for an acknowledgement at this moment.
    pub replicas_needed: u32,
    /// Backups that can be used.
    pub backups_up: u32,
    /// Usable backups that get no new replicas for a while, because they had no space.
    pub backups_full: u32,
    /// Replicas that are to be freed and are not yet.
    pub frees_pending: u64,
    /// Why writes wait, if they do, for people.
    pub writes_wait: Option<String>,
    /// Writes that backups acknowledged since the start.
    pub writes: u64,
    /// Bytes in them.
    pub bytes_written: u64,
    /// Writes sent again, or refused.
    pub write_failures: u64,
    /// Replicas lost since the start.
    pub replicas_lost: u64,
    /// How long acknowledged writes took, from the request to the answer: network and backup.
    pub write_times: TimeSpread,
}

impl ReplicationStatus {
    /// Adds another log of the same master.
    pub(crate) fn add(&mut self, other: Self) {
        self.segments += other.segments;
        self.segments_under_replicated += other.segments_under_replicated;
        self.replicas_wanted = other.replicas_wanted;
        self.replicas_of_segments += other.replicas_of_segments;
        self.synced = other.synced;
        self.replicas_needed = other.replicas_needed;
        self.backups_up = other.backups_up;
        self.backups_full = self.backups_full.max(other.backups_full);
        self.frees_pending += other.frees_pending;
        self.writes_wait = self.writes_wait.take().or(other.writes_wait);
        self.writes += other.writes;
        self.bytes_written += other.bytes_written;
        self.write_failures += other.write_failures;
        self.replicas_lost += other.replicas_lost;
        self.write_times = self.write_times.plus(&other.write_times);
    }
}
