//! Numbers for status and metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// The holdings of a backup, and its work since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackupStats {
    /// Replicas on the disk, those being rewritten included.
    pub frames: u64,
    /// Replicas on the disk that are open for writing.
    pub frames_open: u64,
    /// Replicas that were found at start and that their masters have not claimed yet.
    pub frames_found: u64,
    /// Bytes of all frames.
    pub frame_bytes: u64,
    /// Frames found damaged.
    pub frames_damaged: u64,
    /// Frames freed.
    pub frames_freed: u64,
    /// Writes done.
    pub writes: u64,
    /// Bytes of segments written.
    pub bytes_written: u64,
    /// Rounds of syncing files; a round serves every write that waits for one.
    pub sync_rounds: u64,
    /// Opens and writes refused for want of space.
    pub refused_no_space: u64,
    /// Replicas read and sorted for recovery.
    pub recovery_reads: u64,
    /// Answers to recovery masters that carried data or said that there is none.
    pub recovery_answers: u64,
    /// Sorted replicas thrown out of the buffer before every partition had fetched its part.
    pub recovery_evicted: u64,
    /// Bytes in the buffer.
    pub recovery_buffer_bytes: u64,
}

/// One data directory of a backup.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DirectoryStats {
    /// For people: its path.
    pub name: String,
    /// Why it was left, if it was (BACKUP-14).
    pub left: Option<String>,
    /// Why trials of it fail, or hang, while it is used.
    pub trouble: Option<String>,
    /// Frames in it; if it was left, those that were.
    pub frames: u64,
    /// Bytes of these.
    pub frame_bytes: u64,
    /// Bytes that the file system has left, if that is known.
    pub room: Option<u64>,
    /// How fast the disk is, in MB/s, as measured at start.
    pub mb_per_s: u32,
}

/// Counters that only grow. Relaxed everywhere: nothing is decided by them.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) damaged: AtomicU64,
    pub(crate) freed: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) sync_rounds: AtomicU64,
    pub(crate) no_space: AtomicU64,
    pub(crate) recovery_reads: AtomicU64,
    pub(crate) recovery_answers: AtomicU64,
    pub(crate) recovery_evicted: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// Reads a counter.
pub(crate) fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
