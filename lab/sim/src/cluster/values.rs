//! Values that say who wrote them, so that a reader can tell what it got and that it is whole.
//!
//! ```text
//! 0            8           12
//! | number u64 | check u32 | bytes that follow from the number …
//! ```

use crate::history::{Content, WHOLE};
use crate::random::mix;
use bytes::Bytes;

const HEADER: usize = 12;

/// The least length that a value other than the empty one has.
pub const LENGTH_MIN: usize = HEADER;

/// The value of the write with this number, of exactly `length` bytes.
///
/// # Panics
/// When `length` is neither 0 nor at least [`LENGTH_MIN`].
#[must_use]
pub fn value(number: u64, length: usize) -> (Bytes, Content) {
    if length == 0 {
        return (Bytes::new(), Content::Empty);
    }
    assert!(length >= LENGTH_MIN, "a value has room for its number");
    let mut bytes = Vec::with_capacity(length + 8);
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&check(number, length).to_le_bytes());
    let mut word = number;
    while bytes.len() < length {
        word = mix(word.wrapping_add(1));
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(length);
    (bytes.into(), Content::Bytes(number))
}

/// So that the shortest values, too, show a changed number or length.
fn check(number: u64, length: usize) -> u32 {
    (mix(number ^ mix(length as u64)) >> 32) as u32
}

/// What a value that was read is.
#[must_use]
pub fn content(bytes: &[u8]) -> Content {
    if bytes.is_empty() {
        return Content::Empty;
    }
    if let Some((head, _)) = bytes.split_first_chunk::<8>() {
        let number = u64::from_le_bytes(*head);
        if bytes.len() >= LENGTH_MIN && value(number, bytes.len()).0 == bytes {
            return Content::Bytes(number);
        }
    }
    let digits = |b: &u8| b.is_ascii_digit() || b"-.".contains(b);
    let text = core::str::from_utf8(bytes).ok();
    let number = text
        .filter(|_| bytes.iter().all(digits))
        .and_then(|text| text.parse().ok());
    match number.and_then(quarters) {
        Some(number) => Content::Number(number),
        None => Content::Damaged(twox_hash::XxHash3_64::oneshot(bytes)),
    }
}

/// A number as quarters ([`WHOLE`]); `None`: it is no number of them that is exact.
#[must_use]
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "only whole numbers that are exact are converted"
)]
pub fn quarters(number: f64) -> Option<i64> {
    const EXACT_MAX: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;
    let parts = number * WHOLE as f64;
    (parts.fract() == 0.0 && parts.abs() < EXACT_MAX).then_some(parts as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_tell_their_number_and_every_damage_shows() {
        for length in [LENGTH_MIN, 13, 100, 70_000] {
            let (bytes, wrote) = value(7, length);
            assert_eq!(bytes.len(), length);
            assert_eq!(content(&bytes), wrote);
            for place in [0, 8, 11, length - 1] {
                let mut damaged = bytes.to_vec();
                damaged[place] ^= 1;
                assert!(matches!(content(&damaged), Content::Damaged(_)), "{place}");
            }
            assert!(matches!(content(&bytes[..length - 1]), Content::Damaged(_)));
        }
        assert_eq!(content(b""), Content::Empty);
    }

    #[test]
    fn numbers_are_counted_in_quarters_and_nothing_else_is_a_number() {
        for (text, number) in [
            ("0", 0),
            ("-12", -48),
            ("3.25", 13),
            ("-0.5", -2),
            ("7.75", 31),
        ] {
            assert_eq!(content(text.as_bytes()), Content::Number(number), "{text}");
        }
        for text in [
            "0.1",
            "3.250000001",
            "nan",
            "inf",
            "1e3",
            "+1",
            "1.2.5",
            "9007199254740993",
        ] {
            let read = content(text.as_bytes());
            assert!(matches!(read, Content::Damaged(_)), "{text}: {read}");
        }
    }
}
