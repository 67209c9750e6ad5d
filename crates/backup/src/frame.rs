//! One frame: one replica in one file.
//!
//! ```text
//!  0       512     1024        4096
//!  | slot 0 | slot 1 | (unused) | bytes | certificate, its bytes | certificate, its bytes | …
//! ```

use crate::directory::{Directory, FRAMES as DIRECTORY};
use core::time::Duration;
use pluvio_env::{File, Moment};
use pluvio_format::{CertificatePlace, FRAME_DATA_OFFSET, FrameHeader, LastWrite, SegmentKind};
use pluvio_units::{ClusterId, LogId, ReplicationEpoch, SegmentId, ServerId};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Ends the name of a frame that is being rewritten.
const REWRITING: &str = ".new";

/// Which replica.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ReplicaKey {
    pub(crate) master: ServerId,
    pub(crate) segment: SegmentId,
}

impl ReplicaKey {
    /// The first possible key of a master, for ranges.
    pub(crate) fn first_of(master: ServerId) -> Self {
        Self {
            master,
            segment: SegmentId(0),
        }
    }

    /// The last possible key of a master.
    pub(crate) fn last_of(master: ServerId) -> Self {
        Self {
            master,
            segment: SegmentId(u64::MAX),
        }
    }

    /// The path of the frame's file.
    pub(crate) fn path(self) -> String {
        format!("{DIRECTORY}/{:016x}-{:016x}", self.master.0, self.segment.0)
    }

    /// The path while it is being rewritten.
    pub(crate) fn rewriting_path(self) -> String {
        self.path() + REWRITING
    }

    /// Reads a file's name; true for one that was being rewritten.
    pub(crate) fn parse(name: &str) -> Option<(Self, bool)> {
        let (stem, rewriting) = match name.strip_suffix(REWRITING) {
            Some(stem) => (stem, true),
            None => (name, false),
        };
        let (master, segment) = stem.split_once('-')?;
        let number = |text: &str| {
            let plain = text.len() == 16
                && text
                    .bytes()
                    .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
            plain.then(|| u64::from_str_radix(text, 16).ok()).flatten()
        };
        let key = Self {
            master: ServerId(number(master)?),
            segment: SegmentId(number(segment)?),
        };
        Some((key, rewriting))
    }
}

/// What a frame is good for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Made for an open that has not been written yet; there may be no file.
    Creating,
    /// A replacement that is not complete (BACKUP-2).
    Rewriting,
    /// Counts.
    Usable,
    /// The disk failed or holds garbage. Kept until its master is gone or frees it, gives no data.
    Damaged(String),
    /// Freed or replaced; whoever still holds it must look again.
    Gone,
}

/// What is known of a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FrameState {
    pub(crate) stage: Stage,
    pub(crate) log: LogId,
    pub(crate) kind: SegmentKind,
    pub(crate) primary: bool,
    pub(crate) epoch: ReplicationEpoch,
    pub(crate) closed: bool,
    /// Bytes that count.
    pub(crate) certified: u32,
    /// Bytes written, at least `certified`.
    pub(crate) written: u32,
    /// The sequence number of the newest header.
    pub(crate) sequence: u64,
    /// Something written was not synced.
    pub(crate) unsynced: bool,
    /// The start of the machine in which the newest header or certificate was written without
    /// being synced, otherwise 0.
    pub(crate) boot: u64,
    /// Replicas that the master needs for an acknowledgement.
    pub(crate) needed: u8,
    /// From a former life of this server.
    pub(crate) found: bool,
    /// Bytes of the file behind its header area: `written`, and the certificates.
    pub(crate) end: u32,
    /// From where on bytes have certificates in line; `None`: nowhere so far.
    pub(crate) in_line_from: Option<u32>,
    /// Where the next certificate goes. `None` where there are none, and in closed frames.
    pub(crate) place: Option<CertificatePlace>,
    /// A write failed in the middle: something of it may lie behind `end`. Stays so.
    pub(crate) has_remains: bool,
    /// A header says that.
    pub(crate) tells_remains: bool,
}

impl FrameState {
    /// Whether nothing of it was written yet.
    pub(crate) fn is_new(&self) -> bool {
        self.sequence == 0 && self.written == 0
    }

    /// Bytes of the file.
    pub(crate) fn file_bytes(&self) -> u64 {
        FRAME_DATA_OFFSET as u64 + u64::from(self.end)
    }

    /// The header that says this.
    pub(crate) fn header(&self, cluster: ClusterId, key: ReplicaKey) -> FrameHeader {
        assert!(self.certified <= self.written, "BACKUP-1");
        FrameHeader {
            cluster,
            server: key.master,
            segment: key.segment,
            log: self.log,
            kind: self.kind,
            closed: self.closed,
            primary: self.primary,
            replication_epoch: self.epoch,
            certified_length: self.certified,
            sequence: self.sequence,
            boot: self.boot,
            needed: self.needed,
            last_write: LastWrite::default(),
            in_line_from: self.in_line_from,
            has_remains: self.has_remains,
        }
    }

    /// Whether the newest writes may be missing in this start of the machine (BACKUP-11).
    pub(crate) fn may_lack(&self, boot: u64) -> bool {
        self.boot != 0 && self.boot != boot
    }

    /// How many open replicas recovery must find before it may believe this one, in this start of
    /// the machine (BACKUP-11).
    pub(crate) fn copies(&self, boot: u64) -> u8 {
        match self.may_lack(boot) {
            false => 1,
            true => self.needed.max(1),
        }
    }
}

/// The right to change a frame's file, which is here while the frame is open for writing.
pub(crate) type Turn = tokio::sync::OwnedMutexGuard<Option<Arc<dyn File>>>;

/// One replica.
pub(crate) struct Frame {
    pub(crate) key: ReplicaKey,
    /// Where its file is.
    pub(crate) home: Arc<Directory>,
    state: Mutex<FrameState>,
    /// Since when a write to it is under way, in microseconds and one more; 0: none is.
    busy_since: AtomicU64,
    /// The file, as long as it is open for writing; for those without the turn.
    opened: Mutex<Option<Weak<dyn File>>>,
    /// Its file is not where it should be (BACKUP-17).
    misplaced: AtomicBool,
    /// Held over every change of the file; holds the file while the frame is open for writing.
    turn: Arc<tokio::sync::Mutex<Option<Arc<dyn File>>>>,
}

impl Frame {
    pub(crate) fn new(key: ReplicaKey, state: FrameState, home: &Arc<Directory>) -> Arc<Self> {
        Arc::new(Self {
            key,
            home: Arc::clone(home),
            state: Mutex::new(state),
            busy_since: AtomicU64::new(0),
            opened: Mutex::default(),
            misplaced: AtomicBool::new(false),
            turn: Arc::default(),
        })
    }

    /// A write begins now, or none is under way any more; only by the holder of the turn.
    pub(crate) fn set_busy(&self, since: Option<Moment>) {
        let micros = |since: Moment| u64::try_from(since.0.as_micros()).unwrap_or(u64::MAX - 1);
        let since = since.map_or(0, |since| micros(since) + 1);
        // Relaxed: whoever looks comes again.
        self.busy_since.store(since, Ordering::Relaxed);
    }

    /// For how long a write is under way; zero when none is.
    pub(crate) fn busy_for(&self, now: Moment) -> Duration {
        match self.busy_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => now.since(Moment(Duration::from_micros(since - 1))),
        }
    }

    /// The file was opened for writing; only by the holder of the turn.
    pub(crate) fn set_opened(&self, file: &Arc<dyn File>) {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        *opened = Some(Arc::downgrade(file));
    }

    /// The file, if it is open for writing.
    pub(crate) fn opened(&self) -> Option<Arc<dyn File>> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.as_ref().and_then(Weak::upgrade)
    }

    /// Its file is not where it should be; only by the holder of the turn (BACKUP-17).
    pub(crate) fn set_misplaced(&self) {
        self.misplaced.store(true, Ordering::Relaxed);
    }

    /// Whether its file was not where it should be; by the holder of the turn.
    pub(crate) fn is_misplaced(&self) -> bool {
        // Relaxed: the turn orders it.
        self.misplaced.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, FrameState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of what is known.
    pub(crate) fn state(&self) -> FrameState {
        self.lock().clone()
    }

    /// Waits for the turn; `None` when its data directory is left.
    pub(crate) async fn turn(&self) -> Option<Turn> {
        let turn = Arc::clone(&self.turn).lock_owned();
        self.home.unless_left(turn).await
    }

    /// The turn, if nobody has it.
    pub(crate) fn try_turn(&self) -> Option<Turn> {
        Arc::clone(&self.turn).try_lock_owned().ok()
    }

    /// Replaces what is known; only by the holder of the turn. A frame that is lost stays so
    /// (BACKUP-14).
    pub(crate) fn set(&self, state: FrameState) {
        let mut now = self.lock();
        if !self.home.is_left() {
            *now = state;
        }
    }

    /// Its data directory was left; only after that was noted there.
    pub(crate) fn lose(&self, why: String) {
        self.lock().stage = Stage::Damaged(why);
    }

    /// Changes the stage; gives the former one.
    pub(crate) fn set_stage(&self, stage: Stage) -> Stage {
        std::mem::replace(&mut self.lock().stage, stage)
    }

    /// A write failed, and will be tried again; only by the holder of the turn.
    pub(crate) fn leave_remains(&self) {
        let mut state = self.lock();
        state.has_remains = true;
        state.tells_remains = false;
    }

    /// Whether anything may still be written to it.
    pub(crate) fn takes_writes(&self) -> bool {
        let state = self.lock();
        match &state.stage {
            Stage::Creating | Stage::Rewriting | Stage::Usable => !state.closed,
            Stage::Damaged(_) | Stage::Gone => false,
        }
    }

    /// Whether it is from a former life of this server.
    pub(crate) fn is_found(&self) -> bool {
        self.lock().found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_read_back_and_strangers_are_not() {
        let key = ReplicaKey {
            master: ServerId(7),
            segment: SegmentId(u64::MAX),
        };
        let name = key.path();
        let name = name.strip_prefix("frames/").expect("a frame's path");
        assert_eq!(ReplicaKey::parse(name), Some((key, false)));
        assert_eq!(ReplicaKey::parse(&format!("{name}.new")), Some((key, true)));
        for stranger in [
            "",
            "-",
            "7-8",
            "lost+found",
            "000000000000000G-0000000000000001",
            &format!("{name}.old"),
        ] {
            assert_eq!(ReplicaKey::parse(stranger), None, "{stranger}");
        }
    }
}
