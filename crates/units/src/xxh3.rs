//! XXH3-64 of keys of 4 to 16 bytes, inlined into the code of an operation.
//!
//! Such keys are the usual ones. A call and the choice among all lengths would cost more than the
//! hash. Longer keys are hashed by crate `twox_hash`.

/// The bytes 8 to 64 of the algorithm's secret, in the words that it uses.
const SECRET_8: u64 = 0x1cad_21f7_2c81_017c;
const SECRET_16: u64 = 0xdb97_9083_e96d_d4de;
const SECRET_24: u64 = 0x1f67_b3b7_a4a4_4072;
const SECRET_32: u64 = 0x78e5_c0cc_4ee6_79cb;
const SECRET_40: u64 = 0x2172_ffcc_7dd0_5a82;
const SECRET_48: u64 = 0x8e24_43f7_7446_08b8;
/// The factors of the algorithm's last steps.
const PRIME_MIXED_1: u64 = 0x1656_6791_9e37_79f9;
const PRIME_MIXED_2: u64 = 0x9fb2_1c65_1e98_df25;

/// The hash of a key of 4 to 16 bytes; `None` for others.
#[inline(always)]
pub(crate) fn of_short(seed: u64, key: &[u8]) -> Option<u64> {
    match key.len() {
        4..=8 => of_4_to_8(seed, key),
        9..=16 => of_9_to_16(seed, key),
        _ => None,
    }
}

#[inline(always)]
fn of_4_to_8(seed: u64, key: &[u8]) -> Option<u64> {
    let first = u32::from_le_bytes(*key.first_chunk()?);
    let last = u32::from_le_bytes(*key.last_chunk()?);
    let seed = seed ^ u64::from((seed as u32).swap_bytes()) << 32;
    let flip = (SECRET_8 ^ SECRET_16).wrapping_sub(seed);
    let mut word = (u64::from(first) << 32 | u64::from(last)) ^ flip;
    word ^= word.rotate_left(49) ^ word.rotate_left(24);
    word = word.wrapping_mul(PRIME_MIXED_2);
    word ^= (word >> 35).wrapping_add(key.len() as u64);
    word = word.wrapping_mul(PRIME_MIXED_2);
    Some(word ^ word >> 28)
}

#[inline(always)]
fn of_9_to_16(seed: u64, key: &[u8]) -> Option<u64> {
    let first = u64::from_le_bytes(*key.first_chunk()?);
    let last = u64::from_le_bytes(*key.last_chunk()?);
    let low = first ^ (SECRET_24 ^ SECRET_32).wrapping_add(seed);
    let high = last ^ (SECRET_40 ^ SECRET_48).wrapping_sub(seed);
    let product = u128::from(low) * u128::from(high);
    let folded = product as u64 ^ (product >> 64) as u64;
    let mut word = (key.len() as u64)
        .wrapping_add(low.swap_bytes())
        .wrapping_add(high)
        .wrapping_add(folded);
    word ^= word >> 37;
    word = word.wrapping_mul(PRIME_MIXED_1);
    Some(word ^ word >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use twox_hash::XxHash3_64;

    proptest! {
        #[test]
        fn short_keys_have_the_hash_of_the_algorithm(
            seed: u64, key in proptest::collection::vec(any::<u8>(), 0..20),
        ) {
            let expected = XxHash3_64::oneshot_with_seed(seed, &key);
            let is_short = (4..=16).contains(&key.len());
            prop_assert_eq!(of_short(seed, &key), is_short.then_some(expected));
        }
    }
}
