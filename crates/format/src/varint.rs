//! Integers of variable length: seven bits a byte, low bits first, bit 7 = more follow. Only the
//! shortest form is accepted, so that every value has one encoding (FORMAT-2).

/// Most bytes of a varint.
pub(crate) const VARINT_MAX: usize = 10;

/// Bytes that `value` takes.
#[inline]
pub(crate) fn varint_len(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Writes `value` at the start of `to` and returns how many bytes it took.
/// `to` must have room for it.
#[inline]
pub(crate) fn put_varint(to: &mut [u8], mut value: u64) -> usize {
    let mut at = 0;
    while value >= 0x80 {
        to[at] = (value as u8) | 0x80;
        value >>= 7;
        at += 1;
    }
    to[at] = value as u8;
    at + 1
}

/// Appends `value` to `to`.
pub(crate) fn push_varint(to: &mut Vec<u8>, value: u64) {
    let mut bytes = [0; VARINT_MAX];
    let len = put_varint(&mut bytes, value);
    to.extend_from_slice(&bytes[..len]);
}

/// Why no varint could be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum VarintError {
    /// The bytes end inside the number.
    Truncated,
    /// Not the shortest form, or more than 64 bits.
    Malformed,
}

/// Reads a varint from the start of `bytes`: its value and its length.
#[inline]
pub(crate) fn get_varint(bytes: &[u8]) -> Result<(u64, usize), VarintError> {
    // Most numbers are of one or two bytes.
    match *bytes {
        [one, ..] if one < 0x80 => Ok((u64::from(one), 1)),
        [one, two @ 1..0x80, ..] => Ok((u64::from(one & 0x7f) | u64::from(two) << 7, 2)),
        _ => get_long_varint(bytes),
    }
}

fn get_long_varint(bytes: &[u8]) -> Result<(u64, usize), VarintError> {
    let mut value = 0u64;
    for (at, &byte) in bytes.iter().take(VARINT_MAX).enumerate() {
        let part = u64::from(byte & 0x7f);
        if at == VARINT_MAX - 1 && byte > 1 {
            return Err(VarintError::Malformed);
        }
        value |= part << (7 * at);
        if byte & 0x80 == 0 {
            if byte == 0 && at > 0 {
                return Err(VarintError::Malformed);
            }
            return Ok((value, at + 1));
        }
    }
    if bytes.len() < VARINT_MAX {
        Err(VarintError::Truncated)
    } else {
        Err(VarintError::Malformed)
    }
}

/// Takes fields from the front of a body.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    #[inline]
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    #[inline]
    pub(crate) fn varint(&mut self) -> Option<u64> {
        let (value, len) = get_varint(self.rest).ok()?;
        self.rest = &self.rest[len..];
        Some(value)
    }

    pub(crate) fn varint_u16(&mut self) -> Option<u16> {
        u16::try_from(self.varint()?).ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        let (bytes, rest) = self.rest.split_first_chunk::<4>()?;
        self.rest = rest;
        Some(u32::from_le_bytes(*bytes))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        let (bytes, rest) = self.rest.split_first_chunk::<8>()?;
        self.rest = rest;
        Some(u64::from_le_bytes(*bytes))
    }

    /// What is left, taken.
    pub(crate) fn take_rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.rest)
    }

    /// Whether nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(bytes)
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// `Some` when nothing is left.
    pub(crate) fn end(self) -> Option<()> {
        self.rest.is_empty().then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varints_round_trip_and_have_the_announced_length(value: u64, shift in 0u32..64) {
            let value = value >> shift;
            let mut bytes = Vec::new();
            push_varint(&mut bytes, value);
            prop_assert_eq!(bytes.len(), varint_len(value));
            prop_assert_eq!(get_varint(&bytes), Ok((value, bytes.len())));
            for cut in 0..bytes.len() {
                prop_assert_eq!(get_varint(&bytes[..cut]), Err(VarintError::Truncated));
            }
        }

        // shows: FORMAT-2
        #[test]
        fn whatever_decodes_encodes_to_the_same_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            if let Ok((value, len)) = get_varint(&bytes) {
                let mut again = Vec::new();
                push_varint(&mut again, value);
                prop_assert_eq!(&again[..], &bytes[..len]);
            }
        }
    }

    #[test]
    fn longer_forms_and_more_than_64_bits_are_refused() {
        assert_eq!(get_varint(&[0x80, 0x00]), Err(VarintError::Malformed));
        assert_eq!(get_varint(&[0xff; 11]), Err(VarintError::Malformed));
        let mut too_big = [0xff; 10];
        too_big[9] = 2;
        assert_eq!(get_varint(&too_big), Err(VarintError::Malformed));
        too_big[9] = 1;
        assert_eq!(get_varint(&too_big), Ok((u64::MAX, 10)));
    }
}
