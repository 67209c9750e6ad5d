//! From hashes to buckets: pure arithmetic.
//!
//! A hash becomes a *place*: the same order, but with the expected range of hashes stretched over
//! all 64 bits. The bucket count `n = 2^level + split` says how places map to buckets: the bucket's
//! number is made of the place's top bits, reversed, so that a split of bucket `split` appends one
//! bucket at the end (linear hashing) and every bucket holds one contiguous range of places (X4).

use crate::slot::TAG_BITS;
use pluvio_units::{HashRange, KeyHash};

/// A tag is refreshed from the key each time a bucket's address has grown by so many bits. In
/// between, it loses a bit of its worth per split: 15 down to 8 bits that tell entries apart.
/// A power of two. Eight: one split in eight reads keys, and a full bucket gives at worst 3 % of
/// the lookups one needless look at the log.
const TAG_STEP: u32 = 8;

/// The order-preserving map from hashes to places.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    first: u64,
    width_less_one: u64,
    shift: u32,
    /// What is left to fill 64 bits after shifting: a factor between 1 and 2, without its 1, in
    /// units of 2^-64.
    stretch: u64,
}

/// Where a place lives, given a number of buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    /// The bucket's number.
    pub(crate) bucket: u64,
    /// How many of the place's top bits the bucket's entries share.
    pub(crate) bits: u32,
    /// The tag of this place in that bucket.
    pub(crate) tag: u64,
}

impl Spread {
    /// Stretches `expected`; hashes outside it still work, but gather in the buckets at its ends.
    pub(crate) fn new(expected: HashRange) -> Self {
        let width_less_one = expected.last.0 - expected.first.0;
        let shift = width_less_one.leading_zeros().min(63);
        let whole = 1_u128 << 64;
        let shifted = (u128::from(width_less_one) + 1) << shift;
        let stretch = ((whole - shifted) << 64) / shifted;
        Self {
            first: expected.first.0,
            width_less_one,
            shift,
            // Too large for a range of one hash only, where there is nothing to stretch.
            stretch: u64::try_from(stretch).unwrap_or(u64::MAX),
        }
    }

    /// Never descends as the hash ascends.
    #[inline]
    pub(crate) fn place(&self, hash: KeyHash) -> u64 {
        let inside = hash.0.saturating_sub(self.first).min(self.width_less_one) << self.shift;
        let more = (u128::from(inside) * u128::from(self.stretch)) >> 64;
        // No overflow: less than inside * 2^64 / shifted, with inside < shifted.
        inside + more as u64
    }

    /// The largest hash whose place is at most `place`.
    fn last_hash(&self, place: u64) -> KeyHash {
        let (mut low, mut high) = (0, u64::MAX);
        while low < high {
            let middle = high - (high - low) / 2;
            if self.place(KeyHash(middle)) <= place {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        KeyHash(low)
    }

    /// All hashes of the bucket that holds `place`, sharing its top `bits` bits.
    pub(crate) fn hashes(&self, place: u64, bits: u32) -> HashRange {
        let below = u64::MAX.checked_shr(bits).unwrap_or(0);
        let (first, last) = (place & !below, place | below);
        HashRange {
            first: first.checked_sub(1).map_or(KeyHash(0), |before| {
                KeyHash(self.last_hash(before).0.saturating_add(1))
            }),
            last: self.last_hash(last),
        }
    }
}

impl Address {
    /// # Panics
    /// When there are no buckets.
    #[inline]
    pub(crate) fn of(place: u64, buckets: u64) -> Self {
        let level = buckets.ilog2();
        let split = buckets - (1 << level);
        let reversed = place.reverse_bits();
        let low = reversed & ((1 << level) - 1);
        let bits = level + u32::from(low < split);
        Self {
            bucket: reversed & ((1 << bits) - 1),
            bits,
            tag: tag(place, bits),
        }
    }
}

/// The tag of a place in a bucket of `bits` bits: the 15 bits of the place from the last multiple of
/// [`TAG_STEP`] on.
#[inline]
pub(crate) fn tag(place: u64, bits: u32) -> u64 {
    (place << (bits & !(TAG_STEP - 1))) >> (64 - TAG_BITS)
}

/// Whether the tags of a bucket of `bits` bits say nothing of the tags after its split.
pub(crate) fn split_needs_keys(bits: u32) -> bool {
    (bits + 1).is_multiple_of(TAG_STEP)
}

/// Whether an entry of a bucket of `bits` bits, with this tag, goes to the new bucket of its split.
pub(crate) fn goes_to_new(tag: u64, bits: u32) -> bool {
    let into_tag = bits & (TAG_STEP - 1);
    tag >> (TAG_BITS - 1 - into_tag) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ranges() -> impl Strategy<Value = HashRange> {
        let tablets = (0_u64..7, 1_u64..8).prop_map(|(at, parts)| {
            let parts = HashRange::ALL.split(parts);
            parts[usize::try_from(at).unwrap() % parts.len()]
        });
        let any = (any::<u64>(), any::<u64>()).prop_map(|(a, b)| HashRange {
            first: KeyHash(a.min(b)),
            last: KeyHash(a.max(b)),
        });
        prop_oneof![Just(HashRange::ALL), tablets, any]
    }

    proptest! {
        #[test]
        fn places_keep_the_order_and_fill_the_whole(range in ranges(), a: u64, b: u64) {
            let spread = Spread::new(range);
            let place = |hash| spread.place(KeyHash(hash));
            prop_assert!(place(a.min(b)) <= place(a.max(b)));
            prop_assert_eq!(spread.place(range.first), 0);
            let width = u128::from(range.last.0 - range.first.0) + 1;
            if width > 1 << 20 {
                prop_assert!(spread.place(range.last) >= u64::MAX - (1 << 45));
            }
            if a != b && range.contains(KeyHash(a)) && range.contains(KeyHash(b)) {
                prop_assert_ne!(place(a), place(b));
            }
        }

        #[test]
        fn a_bucket_holds_exactly_the_hashes_of_its_range(
            range in ranges(), hash: u64, other: u64, buckets in 1_u64..5000,
        ) {
            let spread = Spread::new(range);
            let address = |hash| Address::of(spread.place(hash), buckets);
            let here = address(KeyHash(hash));
            prop_assert!(here.bucket < buckets);
            let hashes = spread.hashes(spread.place(KeyHash(hash)), here.bits);
            prop_assert!(hashes.contains(KeyHash(hash)));
            let same = |hash: KeyHash| address(hash).bucket == here.bucket;
            prop_assert_eq!(hashes.contains(KeyHash(other)), same(KeyHash(other)));
            prop_assert!(same(hashes.first) && same(hashes.last));
            prop_assert!(hashes.first.0 == 0 || !same(KeyHash(hashes.first.0 - 1)));
            prop_assert!(hashes.last.0 == u64::MAX || !same(KeyHash(hashes.last.0 + 1)));
        }

        #[test]
        fn a_split_moves_by_tag_as_the_address_says(place: u64, level in 0_u32..32) {
            let before = Address::of(place, 1 << level);
            let after = Address::of(place, 2 << level);
            prop_assert_eq!(before.bits, level);
            let moves = goes_to_new(before.tag, level);
            prop_assert_eq!(moves, after.bucket != before.bucket);
            if moves {
                prop_assert_eq!(after.bucket, before.bucket + (1 << level));
            }
            if !split_needs_keys(level) {
                prop_assert_eq!(before.tag, after.tag);
            }
        }
    }

    #[test]
    fn the_whole_range_is_not_changed() {
        let spread = Spread::new(HashRange::ALL);
        for hash in [0, 1, u64::MAX / 3, u64::MAX] {
            assert_eq!(spread.place(KeyHash(hash)), hash);
        }
    }
}
