//! How the keys of a table become hashes: by a seed alone, or by Redis Cluster's slots first.
//!
//! ```text
//!                  hash                                       rank
//!  seeded table    XXH3 with the table's seed                 the hash
//!  slot table      | slot 14 | XXH3 with the seed, top 50 |   | those 50 | slot 14 |
//! ```
//!
//! The *hash* routes: tablets are ranges of hashes, and those of a slot table are ranges of slots.
//! The *rank* places: an index keeps its entries by rank, and an enumeration follows it. Slots are
//! public and a tag puts any number of keys into one of them. So no bits of the slot decide where
//! in an index a key lies, except among keys with equal seeded bits.

use crate::{HashRange, KeyHash};
use core::fmt;
use serde::{Deserialize, Serialize};

/// Number of Redis Cluster's slots.
pub const SLOTS: u16 = 1 << SLOT_BITS;
/// Bits of a slot's number.
const SLOT_BITS: u32 = 14;
/// Bits of a hash below its slot.
const SEEDED_BITS: u32 = 64 - SLOT_BITS;

/// The way in which a table hashes its keys. Never changes in a table's life.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum HashKind {
    /// By the table's seed.
    #[default]
    Seeded,
    /// By Redis Cluster's slot, then by the table's seed.
    Slots,
}

/// One of Redis Cluster's slots, below [`SLOTS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KeySlot(u16);

/// The place of a key among those of its table, in an index and in an enumeration.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Rank(pub u64);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl KeySlot {
    /// The slot of this number, if there is one.
    #[must_use]
    pub fn new(number: u16) -> Option<Self> {
        (number < SLOTS).then_some(Self(number))
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u16 {
        self.0
    }

    /// The slot of a key: CRC16 of it, or of its tag. A tag is what stands between the first `{`
    /// and the next `}`, if anything does.
    #[must_use]
    #[inline]
    pub fn of(key: &[u8]) -> Self {
        Self(crc16(tag_of(key)) & (SLOTS - 1))
    }

    /// The slot of a hash of a slot table.
    #[must_use]
    pub fn of_hash(hash: KeyHash) -> Self {
        Self((hash.0 >> SEEDED_BITS) as u16)
    }

    /// The hashes of a slot table that belong to the slots from this one to `last`.
    ///
    /// # Panics
    /// When `last` is smaller.
    #[must_use]
    pub fn hashes_to(self, last: Self) -> HashRange {
        let first = u64::from(self.0) << SEEDED_BITS;
        let last = (u64::from(last.0) << SEEDED_BITS) | ((1 << SEEDED_BITS) - 1);
        HashRange::new(KeyHash(first), KeyHash(last))
    }
}

impl fmt::Display for KeySlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The part of a key that decides its slot.
#[inline]
fn tag_of(key: &[u8]) -> &[u8] {
    let tagged = || {
        let open = key.iter().position(|byte| *byte == b'{')?;
        let rest = &key[open + 1..];
        let length = rest.iter().position(|byte| *byte == b'}')?;
        (length > 0).then_some(&rest[..length])
    };
    tagged().unwrap_or(key)
}

/// The table of [`crc16`]: the remainder of each byte.
const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut rest = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            rest = if rest & 0x8000 == 0 {
                rest << 1
            } else {
                rest << 1 ^ 0x1021
            };
            bit += 1;
        }
        table[byte] = rest;
        byte += 1;
    }
    table
};

/// CRC16 as Redis Cluster defines it (XMODEM: polynomial 1021, from zero).
#[inline]
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |rest: u16, byte| {
        rest << 8 ^ CRC16[usize::from((rest >> 8) as u8 ^ byte)]
    })
}

impl HashKind {
    /// The hash of a key, with the seed of its table.
    #[must_use]
    #[inline(always)]
    pub fn hash(self, seed: u64, key: &[u8]) -> KeyHash {
        let seeded = KeyHash::of(seed, key);
        match self {
            Self::Seeded => seeded,
            Self::Slots => slot_hash(seeded, key),
        }
    }

    /// The rank of a hash. Equal ranks are equal hashes.
    #[must_use]
    #[inline(always)]
    pub fn rank(self, hash: KeyHash) -> Rank {
        Rank(hash.0.rotate_left(self.turn()))
    }

    /// The bits by which a hash is turned to get its rank.
    #[must_use]
    #[inline(always)]
    pub fn turn(self) -> u32 {
        match self {
            Self::Seeded => 0,
            Self::Slots => SLOT_BITS,
        }
    }

    /// Ranks that differ only in this number of low bits come together in an enumeration. So a
    /// cursor needs 53 bits: of a hash, or of a rank and of the two ends of a range of slots.
    #[must_use]
    pub fn group_bits(self) -> u32 {
        match self {
            Self::Seeded => 11,
            Self::Slots => 39,
        }
    }

    /// The largest hash up to `hash` at which a tablet may begin: in a slot table that of a slot.
    #[must_use]
    pub fn border(self, hash: KeyHash) -> KeyHash {
        match self {
            Self::Seeded => hash,
            Self::Slots => KeyHash(hash.0 >> SEEDED_BITS << SEEDED_BITS),
        }
    }

    /// The smallest range of a tablet that holds this one.
    #[must_use]
    pub fn widened(self, range: HashRange) -> HashRange {
        match self {
            Self::Slots if range.first <= range.last => {
                KeySlot::of_hash(range.first).hashes_to(KeySlot::of_hash(range.last))
            }
            Self::Seeded | Self::Slots => range,
        }
    }

    /// Whether a tablet may have this range.
    #[must_use]
    pub fn may_be_tablet(self, range: HashRange) -> bool {
        let behind = range.last.0.checked_add(1).map(KeyHash);
        self.border(range.first) == range.first
            && behind.is_none_or(|hash| self.border(hash) == hash)
    }

    /// Cuts the range of a tablet into ranges of tablets, nearly equal in width, that cover it
    /// without gaps. Gives fewer than `parts` when the range has fewer hashes, or slots.
    ///
    /// # Panics
    /// When `parts` is zero.
    #[must_use]
    pub fn split(self, range: HashRange, parts: u64) -> Vec<HashRange> {
        match self {
            Self::Seeded => range.split(parts),
            Self::Slots => split_slots(range, parts),
        }
    }
}

/// What decides the hash of a key: the kind of its table, and the table's seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableHash {
    /// The kind.
    pub kind: HashKind,
    /// The seed.
    pub seed: u64,
}

impl TableHash {
    /// The hash of a key.
    #[must_use]
    #[inline(always)]
    pub fn of(self, key: &[u8]) -> KeyHash {
        self.kind.hash(self.seed, key)
    }
}

/// A seeded table.
impl From<u64> for TableHash {
    fn from(seed: u64) -> Self {
        let kind = HashKind::Seeded;
        Self { kind, seed }
    }
}

#[inline]
fn slot_hash(seeded: KeyHash, key: &[u8]) -> KeyHash {
    KeyHash(u64::from(KeySlot::of(key).0) << SEEDED_BITS | seeded.0 >> SLOT_BITS)
}

fn split_slots(range: HashRange, parts: u64) -> Vec<HashRange> {
    let [first, last] = [range.first, range.last].map(KeySlot::of_hash);
    let slots = HashRange::new(KeyHash(first.0.into()), KeyHash(last.0.into()));
    let slot = |hash: KeyHash| KeySlot(hash.0 as u16);
    let hashes = |part: HashRange| slot(part.first).hashes_to(slot(part.last));
    slots.split(parts).into_iter().map(hashes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slot(number: u16) -> KeySlot {
        KeySlot::new(number).unwrap()
    }

    #[test]
    fn slots_are_those_of_redis_cluster() {
        assert_eq!(
            crc16(b"123456789"),
            0x31c3,
            "the check value of the specification"
        );
        for (key, expected) in [
            (&b"foo"[..], 12182),
            (b"", 0),
            (b"user1000", 3443),
            (b"{user1000}.following", 3443),
            (b"{user1000}.followers", 3443),
        ] {
            assert_eq!(KeySlot::of(key), slot(expected), "{key:?}");
        }
        for (key, tag) in [
            (&b"foo{}{bar}"[..], &b"foo{}{bar}"[..]),
            (b"foo{{bar}}zap", b"{bar"),
            (b"foo{bar}{zap}", b"bar"),
            (b"foo{bar", b"foo{bar"),
            (b"}{", b"}{"),
        ] {
            assert_eq!(KeySlot::of(key), slot(crc16(tag) & (SLOTS - 1)), "{key:?}");
        }
    }

    #[test]
    fn the_hash_of_a_slot_table_never_changes() {
        let hash = HashKind::Slots.hash(7, b"{user1000}.following");
        assert_eq!(KeySlot::of_hash(hash), slot(3443));
        let seeded = KeyHash::of(7, b"{user1000}.following");
        assert_eq!(
            HashKind::Slots.rank(hash).0 >> SLOT_BITS,
            seeded.0 >> SLOT_BITS
        );
        assert_eq!(HashKind::Seeded.hash(7, b"k"), KeyHash::of(7, b"k"));
    }

    proptest! {
        #[test]
        fn tablets_of_a_slot_table_begin_and_end_with_slots(
            a in 0..SLOTS, b in 0..SLOTS, parts in 1_u64..20_000,
        ) {
            let whole = slot(a.min(b)).hashes_to(slot(a.max(b)));
            let cut = HashKind::Slots.split(whole, parts);
            let slots = u64::from(a.abs_diff(b)) + 1;
            prop_assert_eq!(cut.len() as u64, parts.min(slots));
            prop_assert!(cut.iter().all(|part| HashKind::Slots.may_be_tablet(*part)));
            prop_assert_eq!((cut[0].first, cut[cut.len() - 1].last), (whole.first, whole.last));
            prop_assert!(cut.windows(2).all(|pair| pair[0].last.0 + 1 == pair[1].first.0));
        }

        #[test]
        fn a_border_is_the_start_of_the_slot(hash: u64) {
            let border = HashKind::Slots.border(KeyHash(hash));
            let slot = KeySlot::of_hash(KeyHash(hash));
            prop_assert_eq!(border, slot.hashes_to(slot).first);
        }
    }
}
