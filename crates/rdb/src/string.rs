//! Strings and lengths, as they stand in payloads and in files.
//!
//! The two upper bits of a string's first byte say what follows:
//!
//! | bits | meaning |
//! |---|---|
//! | 00 | a length in the six lower bits |
//! | 01 | a length in those and the next byte |
//! | 10 | 0x80: a length of 4 bytes, 0x81: of 8 bytes, big endian |
//! | 11 | 0xC0, 0xC1, 0xC2: an integer of 1, 2 or 4 bytes, little endian; 0xC3: LZF |
//!
//! - RDB-1: lengths are claims. They are compared with the bytes that are there, and with the
//!   longest value, before memory is taken for them.

use crate::number::{integer, push_integer};
use bytes::Bytes;

/// Longest text that is looked at as an integer: `-2147483648`.
const INTEGER_TEXT_MAX: usize = 11;

/// Where encoded bytes come from.
pub(crate) trait Source {
    /// What goes wrong with it.
    type Error;
    /// The next bytes.
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Self::Error>;
    /// Says that the bytes just read begin no length and no string.
    fn nonsense(&self) -> Self::Error;

    /// The next byte.
    fn byte(&mut self) -> Result<u8, Self::Error> {
        let [byte] = self.array::<1>()?;
        Ok(byte)
    }

    /// A length.
    fn length(&mut self) -> Result<u64, Self::Error> {
        let first = self.byte()?;
        self.length_after(first)
    }

    /// A length whose first byte was read.
    fn length_after(&mut self, first: u8) -> Result<u64, Self::Error> {
        Ok(match first {
            0..0x40 => u64::from(first),
            0x40..0x80 => u64::from(first & 0x3f) << 8 | u64::from(self.byte()?),
            0x80 => u64::from(u32::from_be_bytes(self.array()?)),
            0x81 => u64::from_be_bytes(self.array()?),
            0x82.. => return Err(self.nonsense()),
        })
    }

    /// How a string is written. The bytes that [`Coded`] names follow.
    fn coded(&mut self) -> Result<Coded, Self::Error> {
        Ok(match self.byte()? {
            0xc0 => Coded::Integer(i64::from(i8::from_le_bytes(self.array()?))),
            0xc1 => Coded::Integer(i64::from(i16::from_le_bytes(self.array()?))),
            0xc2 => Coded::Integer(i64::from(i32::from_le_bytes(self.array()?))),
            0xc3 => Coded::Packed {
                packed: self.length()?,
                length: self.length()?,
            },
            first => Coded::Plain(self.length_after(first)?),
        })
    }
}

/// How a string is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Coded {
    /// As this integer; nothing follows.
    Integer(i64),
    /// This many bytes follow.
    Plain(u64),
    /// `packed` bytes of LZF follow, which give `length` bytes.
    Packed { packed: u64, length: u64 },
}

/// The text of an integer.
pub(crate) fn text(number: i64) -> Bytes {
    let mut text = Vec::new();
    push_integer(&mut text, number);
    text.into()
}

/// Writes a string in its shortest form; it is not packed.
pub(crate) fn push_string(text: &[u8], out: &mut Vec<u8>) {
    if !push_as_integer(text, out) {
        push_length(text.len() as u64, out);
        out.extend_from_slice(text);
    }
}

fn push_as_integer(value: &[u8], out: &mut Vec<u8>) -> bool {
    let small = (value.len() <= INTEGER_TEXT_MAX).then(|| integer(value));
    let Some(number) = small.flatten() else {
        return false;
    };
    if let Ok(number) = i8::try_from(number) {
        out.push(0xc0);
        out.extend_from_slice(&number.to_le_bytes());
    } else if let Ok(number) = i16::try_from(number) {
        out.push(0xc1);
        out.extend_from_slice(&number.to_le_bytes());
    } else if let Ok(number) = i32::try_from(number) {
        out.push(0xc2);
        out.extend_from_slice(&number.to_le_bytes());
    } else {
        return false;
    }
    true
}

/// Writes a length in its shortest form.
pub(crate) fn push_length(length: u64, out: &mut Vec<u8>) {
    if let Ok(short @ ..64) = u8::try_from(length) {
        out.push(short);
    } else if let Ok(middle @ ..0x4000) = u16::try_from(length) {
        out.extend_from_slice(&(middle | 0x4000).to_be_bytes());
    } else if let Ok(long) = u32::try_from(length) {
        out.push(0x80);
        out.extend_from_slice(&long.to_be_bytes());
    } else {
        out.push(0x81);
        out.extend_from_slice(&length.to_be_bytes());
    }
}

/// Unpacks LZF: control bytes, each followed by literal bytes or by a reference to what was written
/// before. `None` if that makes no sense, or not `length` bytes.
pub(crate) fn unpack(packed: &[u8], length: usize) -> Option<Vec<u8>> {
    // The longest reference makes 264 bytes of three (RDB-1).
    if length > packed.len().saturating_mul(264 / 3 + 1) {
        return None;
    }
    let mut out = Vec::with_capacity(length);
    let mut rest = packed;
    while let Some((&control, after)) = rest.split_first() {
        rest = after;
        let count = usize::from(control);
        if count < 32 {
            let (literal, after) = rest.split_at_checked(count + 1)?;
            out.extend_from_slice(literal);
            rest = after;
        } else {
            let mut copied = (count >> 5) + 2;
            if copied == 9 {
                let (&more, after) = rest.split_first()?;
                copied += usize::from(more);
                rest = after;
            }
            let (&low, after) = rest.split_first()?;
            rest = after;
            let back = ((count & 0x1f) << 8 | usize::from(low)) + 1;
            let start = out.len().checked_sub(back)?;
            if out.len() + copied > length {
                return None;
            }
            // The two may overlap: what was just written repeats itself.
            for at in start..start + copied {
                out.push(out[at]);
            }
        }
        if out.len() > length {
            return None;
        }
    }
    (out.len() == length).then_some(out)
}
