//! The front of an object as nearly all are laid out, read without a loop and with one comparison for all that is usual
//! about it: one or two bytes of length, no graves, and one byte each for table, version and length of the key.
//!
//! ```text
//!  0      1         1+n   5+n     6+n       7+n         11+n      12+n
//! | kind | len (n) | crc | table | version | timestamp | key len | key ... | value ... |      n = 1 or 2
//! ```
//!
//! What is laid out in another way, and what is broken, is left to [`crate::Object`] and [`crate::EntryHead`].

use crate::kind::EntryKind;
use pluvio_units::{ObjectVersion, TableId};

/// What is looked at of the first eight bytes when the length takes one byte: the kind without the mark of groups, and
/// that length, table and version take a byte each ...
const SHORT_MASK: u64 = 0x8080_0000_0000_807f;
const SHORT: u64 = EntryKind::Object as u64;
/// ... and when it takes two: the version is the ninth byte then.
const LONG_MASK: u64 = 0x8000_0000_0080_807f;
const LONG: u64 = 0x8000 | EntryKind::Object as u64;

/// What lies before the key of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlainFront {
    /// The table it belongs to.
    pub table: TableId,
    /// Its version.
    pub version: ObjectVersion,
    /// Seconds of the cluster's time when it was written.
    pub timestamp_s: u32,
    /// Bytes of the key, which comes next.
    pub key_len: usize,
    /// Bytes of the entry: no fewer than front and key take.
    pub total_len: usize,
}

impl PlainFront {
    /// Bytes of the front of a short object: its body has less than 128 bytes. No object is shorter than this.
    pub const SHORT: usize = 13;
    /// Bytes of the front of others. Their entries have more than 128.
    pub const LONG: usize = 14;

    /// The front of a short object; `None` when it is none, or laid out in another way.
    #[must_use]
    #[inline(always)]
    pub fn of_short(bytes: &[u8; Self::SHORT]) -> Option<Self> {
        let word = u64::from_le_bytes(*bytes.first_chunk()?);
        if word & SHORT_MASK != SHORT {
            return None;
        }
        let [.., t0, t1, t2, t3, key_len] = *bytes;
        let front = Self {
            table: TableId(word >> 48 & 0x7f),
            version: ObjectVersion(word >> 56),
            timestamp_s: u32::from_le_bytes([t0, t1, t2, t3]),
            key_len: usize::from(key_len),
            total_len: 6 + (word >> 8 & 0x7f) as usize,
        };
        // A key of 128 bytes or more does not fit either.
        (Self::SHORT + front.key_len <= front.total_len).then_some(front)
    }

    /// The front of an object that is not short; `None` when it is none, or laid out in another way.
    #[must_use]
    #[inline(always)]
    pub fn of_long(bytes: &[u8; Self::LONG]) -> Option<Self> {
        let word = u64::from_le_bytes(*bytes.first_chunk()?);
        let [.., version, t0, t1, t2, t3, key_len] = *bytes;
        if word & LONG_MASK != LONG || (version | key_len) & 0x80 != 0 {
            return None;
        }
        let body_len = (word >> 8 & 0x7f | word >> 16 << 7 & 0x3f80) as usize;
        let front = Self {
            table: TableId(word >> 56),
            version: ObjectVersion(u64::from(version)),
            timestamp_s: u32::from_le_bytes([t0, t1, t2, t3]),
            key_len: usize::from(key_len),
            total_len: 7 + body_len,
        };
        // With less than that, the length would take one byte, or the key would not fit.
        (body_len >= 0x80 && Self::LONG + front.key_len <= front.total_len).then_some(front)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Encoded, Entry, Graves, Object, Parsed};
    use proptest::prelude::*;

    fn front(bytes: &[u8]) -> Option<(PlainFront, usize)> {
        let short = bytes.first_chunk().and_then(PlainFront::of_short);
        let long = bytes.first_chunk().and_then(PlainFront::of_long);
        assert!(short.is_none() || long.is_none());
        let short = short.map(|front| (front, PlainFront::SHORT));
        short.or(long.map(|front| (front, PlainFront::LONG)))
    }

    proptest! {
        #[test]
        fn what_is_plain_is_what_the_long_way_reads(
            table in prop_oneof![0_u64..300, any::<u64>()],
            version in prop_oneof![1_u64..300, any::<u64>()],
            timestamp_s: u32,
            group_continues: bool,
            key in proptest::collection::vec(any::<u8>(), 0..200),
            value in proptest::collection::vec(any::<u8>(), 0..400),
        ) {
            let object = Object {
                table: TableId(table),
                version: ObjectVersion(version),
                timestamp_s,
                graves: Graves::NONE,
                key: &key,
                value: &value,
            };
            let bytes = Encoded::new(&Entry::Object(object), group_continues).unwrap().to_vec();
            let found = front(&bytes);
            let is_plain = table < 0x80 && version < 0x80 && key.len() < 0x80;
            prop_assert_eq!(found.is_some(), is_plain);
            if let Some((found, at)) = found {
                prop_assert_eq!(found.table, object.table);
                prop_assert_eq!(found.version, object.version);
                prop_assert_eq!(found.timestamp_s, timestamp_s);
                prop_assert_eq!(&bytes[at..at + found.key_len], &key[..]);
                prop_assert_eq!(found.total_len, bytes.len());
            }
        }

        #[test]
        fn garbage_is_read_as_the_long_way_reads_it(
            kind in prop_oneof![Just(1_u8), any::<u8>()],
            rest in proptest::collection::vec(any::<u8>(), 13..400),
        ) {
            let bytes = [&[kind], &rest[..]].concat();
            if let Some((found, at)) = front(&bytes) {
                prop_assert!(at + found.key_len <= found.total_len);
                let mut whole = bytes;
                whole.resize(whole.len().max(found.total_len), 0);
                let parsed = Parsed::read(&whole, crate::Check::Structure).unwrap();
                prop_assert_eq!(parsed.head.total_len(), found.total_len);
                let Entry::Object(object) = parsed.entry else {
                    panic!("an object");
                };
                prop_assert_eq!(object.key, &whole[at..at + found.key_len]);
                prop_assert_eq!(object.version, found.version);
            }
        }
    }
}
