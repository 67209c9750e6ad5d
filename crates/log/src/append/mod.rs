//! Appending: groups of entries at the heads of logs, and the heads themselves.
//!
//! [`Heads`] owns the logs, each with a lock for its head. It appends (`heads`), opens heads
//! (`roll`), and takes side logs up (`side_log`). [`admission`] says which appends a full memory
//! still takes, `first_group` what every head begins with, and [`writer::SegmentWriter`] puts bytes
//! into one segment. Which segments need tombstones is in `graves`.

mod admission;
mod first_group;
pub(crate) mod graves;
mod heads;
mod log_state;
mod open_head;
mod roll;
mod roster;
mod side_log;
#[allow(unsafe_code)] // writes entries to log memory
pub(crate) mod writer;

pub use first_group::TableStatsSource;
pub(crate) use heads::{Heads, current};
pub use log_state::Hook;
pub(crate) use log_state::LogState;
pub use open_head::OpenHead;
pub(crate) use roster::Seen;
pub(crate) use side_log::SIDE_HEADER_BYTES;
pub use side_log::{CommitRefused, SideLog};
pub(crate) use writer::SegmentWriter;

use crate::error::AppendError;
use core::ops::Deref;
use pluvio_format::{Encoded, Entry, GROUP_MAX};
use pluvio_units::EntryRef;

/// The purpose of an append; it decides by which limit it may be refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AppendClass {
    /// New objects: live objects must stay below their limit.
    Normal,
    /// Objects that take the place of others with `old_bytes` in the log. Refused for the limit of
    /// live objects only when they are larger than those.
    Replace {
        /// Bytes of the objects replaced, as they would be with the versions of the new ones
        /// (`Encoded::object_len_at`). So an object that grows by its version alone is not refused.
        old_bytes: u32,
        /// Bytes of the graves of the new ones, or what locks of keys hold beside the objects that
        /// they replace. An object that grows by these alone may go beyond the limit, as far as
        /// there is memory beside the reserves. It leaves others as much as one that does not grow.
        graves_bytes: u32,
    },
    /// Objects of a crashed master's log of which it is known that they live: as replacements that
    /// are no larger. They lived in as much memory before.
    Replay,
    /// Tombstones without objects: may use seglets that objects may not.
    Delete,
    /// Completion records that hold a value, with what they belong to: they leave the deletes their
    /// seglets.
    Outcome,
    /// Records of the master itself (completion records without values, ...): as `Delete`.
    Internal,
}

impl AppendClass {
    fn graves_bytes(self) -> u32 {
        match self {
            Self::Replace { graves_bytes, .. } => graves_bytes,
            Self::Normal | Self::Replay | Self::Delete | Self::Outcome | Self::Internal => 0,
        }
    }
}

/// References of the entries of one group, in their order. Up to four need no heap.
#[derive(Clone, Debug)]
pub struct EntryRefs {
    few: [EntryRef; 4],
    len: usize,
    many: Vec<EntryRef>,
}

impl EntryRefs {
    fn new() -> Self {
        Self {
            few: [EntryRef::new(0); 4],
            len: 0,
            many: Vec::new(),
        }
    }

    fn push(&mut self, entry: EntryRef) {
        if self.len < self.few.len() {
            self.few[self.len] = entry;
        } else {
            if self.many.is_empty() {
                self.many.extend_from_slice(&self.few);
            }
            self.many.push(entry);
        }
        self.len += 1;
    }
}

impl Deref for EntryRefs {
    type Target = [EntryRef];

    fn deref(&self) -> &[EntryRef] {
        if self.len <= self.few.len() {
            &self.few[..self.len]
        } else {
            &self.many
        }
    }
}

/// Encodes a group and hands it on; the common groups of one to three need no heap.
pub(crate) fn with_encoded<'a, R>(
    entries: &[Entry<'a>],
    f: impl FnOnce(&[Encoded<'a>]) -> Result<R, AppendError>,
) -> Result<R, AppendError> {
    match entries {
        [one] => f(&[Encoded::new(one, false)?]),
        [one, two] => f(&[Encoded::new(one, true)?, Encoded::new(two, false)?]),
        [one, two, three] => f(&[
            Encoded::new(one, true)?,
            Encoded::new(two, true)?,
            Encoded::new(three, false)?,
        ]),
        more if (1..=GROUP_MAX).contains(&more.len()) => {
            let last = more.len() - 1;
            let encoded = more
                .iter()
                .enumerate()
                .map(|(i, entry)| Encoded::new(entry, i < last))
                .collect::<Result<Vec<_>, _>>()?;
            f(&encoded)
        }
        other => Err(AppendError::GroupLength(other.len())),
    }
}

/// Seconds at which an entry says it was written.
pub(crate) fn timestamp(entry: &Entry<'_>) -> u32 {
    match entry {
        Entry::Object(object) => object.timestamp_s,
        Entry::Tombstone(tombstone) => tombstone.timestamp_s,
        Entry::SegmentHeader(header) => header.created_s,
        Entry::LogDigest(_)
        | Entry::SafeVersion(_)
        | Entry::TableStats(_)
        | Entry::Completion(_)
        | Entry::Horizon(_) => 0,
    }
}
