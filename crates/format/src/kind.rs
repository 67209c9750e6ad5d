//! The closed set of entry kinds.

/// The kind of an entry. The set is closed on purpose: code that matches it decides about every
/// kind. A new kind fails to compile until cleaner, replay and migration have an answer for it.
/// `docs/how-to/add-log-entry-kind.md` walks through it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum EntryKind {
    /// A key with its value and version.
    Object = 1,
    /// Says that an object with a certain version is dead [LSM-DRAM §4].
    Tombstone = 2,
    /// The first entry of every segment.
    SegmentHeader = 3,
    /// The ids of all segments of a log [LSM-DRAM §4].
    LogDigest = 4,
    /// A lower limit for the versions of new objects [RAMCloud §4.1].
    SafeVersion = 5,
    /// Sizes of the tables, for cutting recovery partitions [RAMCloud §7.4].
    TableStats = 6,
    /// An operation was executed, with its result [RAMCloud §10.3].
    Completion = 7,
    /// An object whose key is locked for a transaction of several owners: see
    /// [`Prepared`](crate::Prepared).
    Prepared = 11,
    /// An object that such a lock left as it was: see [`Restored`](crate::Restored).
    Restored = 12,
    /// An upper limit for the time by which deadlines were judged.
    Horizon = 13,
}

impl EntryKind {
    /// Every kind, in the order of the numbers on disk.
    pub const ALL: [Self; 10] = [
        Self::Object,
        Self::Tombstone,
        Self::SegmentHeader,
        Self::LogDigest,
        Self::SafeVersion,
        Self::TableStats,
        Self::Completion,
        Self::Prepared,
        Self::Restored,
        Self::Horizon,
    ];

    /// The number that stands in the kind byte.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Whether an entry of this kind is an object, whatever its state.
    #[must_use]
    pub fn is_object(self) -> bool {
        match self {
            Self::Object | Self::Prepared | Self::Restored => true,
            Self::Tombstone
            | Self::SegmentHeader
            | Self::LogDigest
            | Self::SafeVersion
            | Self::TableStats
            | Self::Completion
            | Self::Horizon => false,
        }
    }

    /// The kind with this number, if there is one. Zero is padding, not a kind.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Object),
            2 => Some(Self::Tombstone),
            3 => Some(Self::SegmentHeader),
            4 => Some(Self::LogDigest),
            5 => Some(Self::SafeVersion),
            6 => Some(Self::TableStats),
            7 => Some(Self::Completion),
            11 => Some(Self::Prepared),
            12 => Some(Self::Restored),
            13 => Some(Self::Horizon),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_kinds_match_both_ways() {
        for kind in EntryKind::ALL {
            assert_eq!(EntryKind::from_code(kind.code()), Some(kind));
        }
        let known = (0..=255u8).filter_map(EntryKind::from_code).count();
        assert_eq!(known, EntryKind::ALL.len());
    }
}
