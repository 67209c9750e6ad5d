//! Places in a log.

use crate::ids::SegmentId;
use core::fmt;
use serde::{Deserialize, Serialize};

/// The place of an entry in a master's log memory: a byte offset in the log region, never a pointer
/// (rule B). Fits 48 bits, so that an index slot has 16 bits left for its tag and flags.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EntryRef(u64);

impl EntryRef {
    /// Number of bits an offset may use.
    pub const BITS: u32 = 48;

    /// # Panics
    /// When `offset` needs more than 48 bits: regions are checked against that limit at creation.
    #[must_use]
    #[inline]
    pub fn new(offset: u64) -> Self {
        if offset >= 1 << Self::BITS {
            too_large(offset);
        }
        Self(offset)
    }

    /// The byte offset in the log region.
    #[must_use]
    #[inline]
    pub fn offset(self) -> u64 {
        self.0
    }
}

#[cold]
#[inline(never)]
#[track_caller]
fn too_large(offset: u64) -> ! {
    panic!(
        "log offset {offset:#x} does not fit {} bits",
        EntryRef::BITS
    )
}

/// A point in one log: it covers everything before it in append order. Positions of one log are
/// ordered, because its segment ids ascend. Positions of different logs must not be compared.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct LogPosition {
    /// The segment.
    pub segment: SegmentId,
    /// Bytes of the segment before this point.
    pub offset: u32,
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.segment, self.offset)
    }
}
