//! Key hash, hash ranges, checksum, and maps with the same order in every run.

use crate::xxh3;
use core::fmt;
use core::hash::{BuildHasher, Hasher};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

/// The 64-bit hash of a key: XXH3-64 seeded with the table's seed. Stable for ever, because
/// tablets are ranges of it and enumeration cursors are values of it.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct KeyHash(pub u64);

impl KeyHash {
    /// Hashes `key` with the seed of its table.
    #[must_use]
    #[inline(always)]
    pub fn of(seed: u64, key: &[u8]) -> Self {
        match xxh3::of_short(seed, key) {
            Some(hash) => Self(hash),
            None => Self::of_long(seed, key),
        }
    }

    #[inline(never)]
    fn of_long(seed: u64, key: &[u8]) -> Self {
        Self(XxHash3_64::oneshot_with_seed(seed, key))
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A range of key hashes, both ends included, never empty.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "Ends")]
pub struct HashRange {
    /// Smallest hash in the range.
    pub first: KeyHash,
    /// Largest hash in the range.
    pub last: KeyHash,
}

/// A range as it is read, with unchecked ends.
#[derive(Deserialize)]
struct Ends {
    first: KeyHash,
    last: KeyHash,
}

impl TryFrom<Ends> for HashRange {
    type Error = &'static str;

    fn try_from(Ends { first, last }: Ends) -> Result<Self, Self::Error> {
        if first > last {
            return Err("a hash range that ends before it begins");
        }
        Ok(Self { first, last })
    }
}

impl HashRange {
    /// Every hash.
    pub const ALL: Self = Self {
        first: KeyHash(0),
        last: KeyHash(u64::MAX),
    };

    /// # Panics
    /// When `first > last`.
    #[must_use]
    pub fn new(first: KeyHash, last: KeyHash) -> Self {
        assert!(first <= last, "empty hash range {first}..={last}");
        Self { first, last }
    }

    /// Whether `hash` lies in the range.
    #[must_use]
    pub fn contains(&self, hash: KeyHash) -> bool {
        self.first <= hash && hash <= self.last
    }

    /// Whether the two ranges share a hash.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Cuts the range into `parts` ranges of nearly equal width that cover it without gaps.
    /// Gives fewer when the range holds fewer than `parts` hashes.
    ///
    /// # Panics
    /// When `parts` is zero.
    #[must_use]
    pub fn split(&self, parts: u64) -> Vec<Self> {
        assert!(parts > 0, "a range is split into at least one part");
        let width = u128::from(self.last.0) - u128::from(self.first.0) + 1;
        let parts = u128::from(parts).min(width);
        let at = |i: u128| u128::from(self.first.0) + width * i / parts;
        let hash = |x: u128| KeyHash(u64::try_from(x).expect("inside a 64-bit range"));
        (0..parts)
            .map(|i| Self {
                first: hash(at(i)),
                last: hash(at(i + 1) - 1),
            })
            .collect()
    }
}

impl fmt::Display for HashRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..={}", self.first, self.last)
    }
}

/// CRC-32C (Castagnoli) over the concatenation of `parts`.
#[must_use]
pub fn crc32c(parts: &[&[u8]]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    for part in parts {
        digest.update(part);
    }
    u32::try_from(digest.finalize()).expect("a CRC-32 has 32 bits")
}

/// A hash map whose iteration order depends only on the operations done to it.
#[allow(clippy::disallowed_types)]
pub type FixedMap<K, V> = std::collections::HashMap<K, V, FixedState>;
/// A hash set whose iteration order depends only on the operations done to it.
#[allow(clippy::disallowed_types)]
pub type FixedSet<K> = std::collections::HashSet<K, FixedState>;

/// Builds hashers that give the same result in every process. For keys that no stranger chooses. A
/// map with other keys says why nobody gains by choosing keys that collide.
#[derive(Clone, Copy, Default, Debug)]
pub struct FixedState;

impl BuildHasher for FixedState {
    type Hasher = FixedHasher;
    fn build_hasher(&self) -> FixedHasher {
        FixedHasher(0)
    }
}

/// See [`FixedState`].
pub struct FixedHasher(u64);

impl Hasher for FixedHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 = twox_hash::XxHash3_64::oneshot_with_seed(self.0, bytes);
    }
    fn write_u64(&mut self, word: u64) {
        // Multiply-fold: both halves of the product reach the result.
        let product = u128::from(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_hash_never_changes() {
        // Known values of XXH3-64; a change here would make every stored tablet unreadable.
        assert_eq!(KeyHash::of(0, b""), KeyHash(0x2d06_8005_38d3_94c2));
        assert_eq!(KeyHash::of(0, b"pluvio"), KeyHash::of(0, b"pluvio"));
        assert_ne!(KeyHash::of(0, b"pluvio"), KeyHash::of(1, b"pluvio"));
    }

    #[test]
    fn short_and_long_keys_are_hashed_alike() {
        let bytes: Vec<u8> = (0..200u32).map(|n| (n * 37 + 11) as u8).collect();
        for seed in [0, 1, 0x9e37_79b9_7f4a_7c15, u64::MAX] {
            for len in 0..bytes.len() {
                let key = &bytes[..len];
                let expected = XxHash3_64::oneshot_with_seed(seed, key);
                assert_eq!(KeyHash::of(seed, key), KeyHash(expected), "{len} bytes");
            }
        }
    }

    #[test]
    fn crc32c_has_the_published_check_value_and_ignores_how_input_is_cut() {
        assert_eq!(crc32c(&[b"123456789"]), 0xe306_9283);
        assert_eq!(crc32c(&[b"1234", b"", b"56789"]), 0xe306_9283);
    }

    #[test]
    fn split_covers_the_range_without_gap_or_overlap() {
        for parts in [1, 2, 3, 7, 64] {
            let cut = HashRange::ALL.split(parts);
            assert_eq!(cut.len() as u64, parts);
            assert_eq!(cut[0].first, KeyHash(0));
            assert_eq!(cut[cut.len() - 1].last, KeyHash(u64::MAX));
            for pair in cut.windows(2) {
                assert_eq!(pair[0].last.0 + 1, pair[1].first.0);
            }
        }
        assert_eq!(HashRange::new(KeyHash(5), KeyHash(6)).split(8).len(), 2);
    }
}
