//! What can go wrong, as seen by callers.

use core::time::Duration;
use pluvio_format::{EncodeError, ParseErrorKind};
use pluvio_units::{EntryRef, SegmentId};

/// Why an append was refused. In every case nothing was appended.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AppendError {
    /// No room now. Retryable after the delay, which gives the cleaner time for a pass. It helps
    /// only when there are dead entries to collect; otherwise something has to be deleted.
    #[error("log memory is full ({why}); try again in {retry_after:?}, or delete something")]
    Full {
        /// When to try again.
        retry_after: Duration,
        /// Which limit was met.
        why: FullReason,
    },
    /// An entry has an impossible size. Not retryable.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The group does not fit a segment. Not retryable.
    #[error("a group of {bytes} bytes does not fit a segment of {limit}")]
    GroupTooLarge {
        /// Bytes of the group.
        bytes: usize,
        /// Bytes of a segment without its own entries.
        limit: usize,
    },
    /// More entries than a group may have, or none. Not retryable.
    #[error("a group has 1 to {max} entries, not {0}", max = pluvio_format::GROUP_MAX)]
    GroupLength(usize),
}

/// Which limit made an append fail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FullReason {
    /// Live objects are at the limit: only deleting helps.
    LiveObjects,
    /// No seglets: the cleaner has to catch up.
    Seglets,
    /// The log on disk is as long as the disk expansion factor allows: the cleaner has to catch up.
    Segments,
}

impl core::fmt::Display for FullReason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::LiveObjects => "live objects at their limit",
            Self::Seglets => "no free seglets",
            Self::Segments => "the log on disk at its limit",
        })
    }
}

/// Log memory does not hold what was written to it. The process must stop: its replicas are right
/// and another server recovers from them [RAMCloud §6] (failure promotion).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "log memory is corrupt: entry at region offset {:#x} (segment {segment}, offset {offset}): {what}",
    entry.offset()
)]
pub struct Corruption {
    /// The entry.
    pub entry: EntryRef,
    /// Its segment.
    pub segment: SegmentId,
    /// Its offset in the segment.
    pub offset: u32,
    /// What is wrong with it.
    pub what: ParseErrorKind,
}

/// Called when memory does not hold what was written to it, in the place of
/// [`Fatal::corrupt`]: see [`LogSpace::set_corruption_hook`](crate::LogSpace::set_corruption_hook).
pub type CorruptionHook = Box<dyn Fn(&Corruption) + Send + Sync>;

/// Memory does not hold what was written to it. Stops the process.
pub struct Fatal;

impl Fatal {
    /// Stops the process with a message that says where. It calls the panic hook, which the
    /// embedding program may have set, and then stops for good, also where panics unwind. A thread
    /// that ended alone would leave others to serve what is corrupt.
    pub fn corrupt(corruption: &Corruption) -> ! {
        let _no_further = StopsProcess;
        panic!("{corruption}; stopping, so that the data is recovered from its replicas");
    }
}

struct StopsProcess;

impl Drop for StopsProcess {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// Why a log space cannot be made. Not retryable; nothing was kept.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The memory is too small for its reserves.
    #[error(
        "{memory} bytes of log memory are too few: {logs} logs with segments of {segment_bytes} bytes need at least {minimum}"
    )]
    TooSmall {
        /// What was asked for.
        memory: u64,
        /// What is needed.
        minimum: u64,
        /// Number of logs.
        logs: u16,
        /// Bytes of a segment.
        segment_bytes: u32,
    },
    /// An option is out of its range.
    #[error("log option {name}: {problem}")]
    BadOption {
        /// The option.
        name: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The operating system refused the memory.
    #[error(transparent)]
    Memory(#[from] pluvio_memory::RegionError),
}

/// Why a side log could not be committed. Retryable; the side log is given back with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CommitError {
    /// A segment is not yet durable.
    #[error("segment {0} of the side log is not yet durable")]
    NotDurable(SegmentId),
    /// No memory for the head that publishes the digest.
    #[error("no memory to publish a new digest; try again in {retry_after:?}")]
    Full {
        /// When to try again.
        retry_after: Duration,
    },
}
