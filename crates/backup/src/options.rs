//! What can be set.

use core::fmt;
use core::time::Duration;
use pluvio_env::Disk;
use pluvio_units::{ClusterId, SEGLET_BYTES, SEGMENT_BYTES};
use std::sync::Arc;

/// What people call the first data directory: its path.
#[derive(Clone, Debug)]
pub struct FirstDirectory(pub String);

impl Default for FirstDirectory {
    fn default() -> Self {
        Self("the data directory".to_owned())
    }
}

/// One more data directory for frames, on a device of its own.
#[derive(Clone)]
pub struct DataDirectory {
    /// For people: its path.
    pub name: String,
    /// What is in it.
    pub disk: Arc<dyn Disk>,
}

impl fmt::Debug for DataDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DataDirectory").field(&self.name).finish()
    }
}

/// What can be set for a backup.
#[derive(Clone, Debug)]
pub struct BackupOptions {
    /// The cluster the data directory belongs to, when that is known.
    pub cluster: Option<ClusterId>,
    /// The name of the data directory whose disk the environment has.
    pub first: FirstDirectory,
    /// More data directories, each on a device of its own: one of all may fail (BACKUP-14).
    pub further: Vec<DataDirectory>,
    /// Data directories that are left out, and why: for the status.
    pub missing: Vec<(String, String)>,
    /// Start also if the disk of one of these fails while it is looked at. It is left then.
    pub leaves_failed: bool,
    /// Each data directory is tried every few seconds, also when nobody uses it (BACKUP-15).
    pub tries_idle: bool,
    /// Most bytes of all frames together; one more open is refused as `NoSpace`. Writes to frames
    /// that are open already go on, so the disk should have room for `open_frames_max` segments
    /// more.
    pub frame_bytes_max: u64,
    /// Most frames open for writing, each of which holds a file open. Every master has one or two
    /// heads per core here in the worst case, and the survivors of its cleaner.
    pub open_frames_max: usize,
    /// Most bytes of recovery data kept for recovery masters. A segment takes up to
    /// `segment_bytes` and a fourth, the room that its buffers have.
    pub recovery_buffer_bytes: u64,
    /// Most replicas read and sorted at the same time, each of which takes up to twice
    /// `segment_bytes` more.
    pub recovery_reads_max: usize,
    /// About the most bytes of a list of replicas in one message; the rest goes in others.
    pub list_bytes_max: usize,
    /// Between two questions to masters about replicas found at start.
    pub garbage_interval: Duration,
    /// Bytes of a segment at most.
    pub segment_bytes: usize,
    /// Bytes of a seglet: entries are laid out in these.
    pub seglet_bytes: usize,
}

/// Of a frame's file no more counts than the bytes of this number of segments. With a certificate
/// of 48 bytes for each write of at least 7 bytes it is shorter.
const FILE_SEGMENTS_MAX: usize = 8;

impl BackupOptions {
    /// Most bytes of a frame's file behind its header area.
    pub(crate) fn file_bytes_max(&self) -> usize {
        self.segment_bytes.saturating_mul(FILE_SEGMENTS_MAX)
    }
}

impl Default for BackupOptions {
    fn default() -> Self {
        Self {
            cluster: None,
            first: FirstDirectory::default(),
            further: Vec::new(),
            missing: Vec::new(),
            leaves_failed: false,
            tries_idle: true,
            frame_bytes_max: u64::MAX,
            open_frames_max: 1024,
            recovery_buffer_bytes: 128 << 20,
            recovery_reads_max: 4,
            list_bytes_max: 4 << 20,
            garbage_interval: Duration::from_secs(1),
            segment_bytes: SEGMENT_BYTES,
            seglet_bytes: SEGLET_BYTES,
        }
    }
}
