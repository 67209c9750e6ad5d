//! Values that say who wrote them, so that a reader can tell what it got and that it is whole.
//!
//! ```text
//! 0            8           12
//! | number u64 | check u32 | bytes that follow from the number …
//! ```

use crate::history::Content;
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
    let text = core::str::from_utf8(bytes).ok();
    match text.and_then(|text| text.parse().ok()) {
        Some(number) => Content::Number(number),
        None => Content::Damaged(twox_hash::XxHash3_64::oneshot(bytes)),
    }
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
        assert_eq!(content(b"-12"), Content::Number(-12));
    }
}
