//! The front of an object in the usual layout, read without a loop and with one comparison. Usual
//! are one or two bytes of length, no graves, no deadline, and one byte each for table, version and
//! length of the key. A longer version costs one step more. Objects get one when they were
//! overwritten often, or come after deletes.
//!
//! ```text
//!  0      1         1+n   5+n     6+n           6+n+m       10+n+m    11+n+m
//! | kind | len (n) | crc | table | version (m) | timestamp | key len | key ... | value ... |      n = 1 or 2, m = 1 to 6
//! ```
//!
//! Other layouts and broken bytes are left to [`crate::Object`] and [`crate::EntryHead`].

use crate::Object;
use crate::kind::EntryKind;
use crate::varint::varint_len;
use pluvio_units::{ObjectVersion, TableId};

/// The bits that are compared in the first eight bytes when the length takes one byte. They are the
/// kind without the mark of groups, and that length, table and version take a byte each ...
const SHORT_MASK: u64 = 0x8080_0000_0000_807f;
const SHORT: u64 = EntryKind::Object as u64;
/// ... and when it takes two: the version is the ninth byte then.
const LONG_MASK: u64 = 0x8000_0000_0080_807f;
const LONG: u64 = 0x8000 | EntryKind::Object as u64;

/// Longest body whose length takes two bytes.
const LONG_BODY_MAX: usize = (1 << 14) - 1;

/// Most bytes of a version behind its first one.
const MORE_MAX: usize = 5;
/// A version below this has at most [`MORE_MAX`] bytes behind its first one.
const VERSION_END: u64 = 1 << (7 * (1 + MORE_MAX));
/// The bytes of a version behind its first one, at most, each with the bit that says whether
/// another one follows.
const FOLLOWS: u64 = 0x80_8080_8080;

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
    /// Bytes of the front of a short object: its body has less than 128 bytes. No object is shorter
    /// than this.
    pub const SHORT: usize = 13;
    /// Bytes of the front of others. Their entries have more than 128.
    pub const LONG: usize = 14;

    /// The front of a short object with a version below 128; `None` when it is none, or laid out in
    /// another way.
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

    /// The front of an object that is not short with a version below 128; `None` when it is none,
    /// or laid out in another way.
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

    /// The front of an object, short or not, whose version takes two to six bytes, and the length
    /// of that front. `start` are the bytes for which [`Self::of_short`] or [`Self::of_long`] gave
    /// nothing. `more` gives as many of the entry's first bytes as it is asked for. It is asked
    /// only for bytes that an object with such a start has before its key. `None` when `more` gives
    /// none, it is no object, or it is laid out in another way.
    #[must_use]
    #[inline(always)]
    pub fn of_aged<'b>(
        start: &[u8],
        more: impl FnOnce(usize) -> Option<&'b [u8]>,
    ) -> Option<(Self, usize)> {
        let word = u64::from_le_bytes(*start.first_chunk()?);
        let behind = u64::from_le_bytes(*start.last_chunk()?);
        let (is_object, first, table, header_len, body_len) = match start.len() {
            Self::SHORT => (
                word & (SHORT_MASK & !(0x80 << 56)) == SHORT,
                word >> 56,
                word >> 48 & 0x7f,
                6,
                word >> 8 & 0x7f,
            ),
            Self::LONG => (
                word & LONG_MASK == LONG,
                behind >> 16 & 0xff,
                word >> 56,
                7,
                word >> 8 & 0x7f | word >> 16 << 7 & 0x3f80,
            ),
            _ => return None,
        };
        // The bytes behind the version's first one, and the end of the version in them.
        let follows = behind >> 24;
        let ends = !follows & FOLLOWS;
        let end = ends & ends.wrapping_neg();
        let kept = follows & end.wrapping_sub(1);
        // The last byte is not zero: only the shortest form counts.
        if !is_object || first < 0x80 || end == 0 || kept < end >> 7 {
            return None;
        }
        let packed = (0..MORE_MAX).fold(0, |packed, at| packed | kept >> at & 0x7f << (7 * at));
        let front_len = start.len() + end.trailing_zeros() as usize / 8 + 1;
        let [t0, t1, t2, t3, key_len] = *more(front_len)?.last_chunk()?;
        let body_len = body_len as usize;
        let front = Self {
            table: TableId(table),
            version: ObjectVersion(first & 0x7f | packed << 7),
            timestamp_s: u32::from_le_bytes([t0, t1, t2, t3]),
            key_len: usize::from(key_len),
            total_len: header_len + body_len,
        };
        let length_is_shortest = start.len() == Self::SHORT || body_len >= 0x80;
        let fits = key_len < 0x80 && front_len + front.key_len <= front.total_len;
        (length_is_shortest && fits).then_some((front, front_len))
    }
}

/// An object without a checksum, in the layout of [`PlainFront`]. It is written to the log at once,
/// without being put together elsewhere first.
#[derive(Clone, Copy, Debug)]
pub struct PlainLayout {
    /// Kind and length, with zeroes behind them.
    start: u64,
    /// Table and version, with zeroes behind them, and where they begin.
    identity: u64,
    identity_at: usize,
    /// Bytes before the key.
    front_len: usize,
    /// Bytes of the entry.
    len: usize,
}

const WORD: usize = size_of::<u64>();

/// Longest front.
const FRONT_MAX: usize = PlainFront::LONG + MORE_MAX;

impl PlainLayout {
    /// `None` for an object that is laid out in another way, or is not allowed.
    #[must_use]
    #[inline(always)]
    pub fn of(object: &Object<'_>) -> Option<Self> {
        let (table, version, key_len) = (object.table.0, object.version.0, object.key.len());
        let value_max = LONG_BODY_MAX - (FRONT_MAX - 7 + 0x7f);
        let plain = (table | key_len as u64) < 0x80 && version < VERSION_END;
        let has_more = !object.graves.is_empty() || object.deadline.is_some();
        if !plain || object.value.len() > value_max || has_more {
            return None;
        }
        // Nearly all versions: what is done for others takes twice as many instructions.
        let (version_len, packed) = match version < 1 << 14 {
            true => {
                let (low, high) = (version & 0x7f, version >> 7);
                let follows = u64::from(high != 0);
                (1 + follows as usize, low | follows << 7 | high << 8)
            }
            false => (varint_len(version), packed_varint(version)),
        };
        let body_len = PlainFront::SHORT - 7 + version_len + key_len + object.value.len();
        let (start, identity_at) = if body_len < 0x80 {
            (SHORT | (body_len as u64) << 8, 6)
        } else {
            let (low, high) = (body_len as u64 & 0x7f, body_len as u64 >> 7);
            (LONG | low << 8 | high << 16, 7)
        };
        Some(Self {
            start,
            identity: table | packed << 8,
            identity_at,
            front_len: identity_at + 1 + version_len + 5,
            len: identity_at + body_len,
        })
    }

    /// Bytes of the entry.
    #[must_use]
    #[inline(always)]
    pub fn total_len(&self) -> usize {
        self.len
    }

    /// Writes the entry of `object`, which this is the layout of.
    ///
    /// # Panics
    /// When `to` has another length than the entry.
    #[inline(always)]
    pub fn write(&self, object: &Object<'_>, to: &mut [u8]) {
        let Self {
            start,
            identity,
            identity_at,
            front_len,
            len,
        } = *self;
        let key_len = object.key.len();
        let lens = (to.len(), front_len + key_len + object.value.len());
        assert!(lens == (len, len), "the layout of another object");
        let (front, rest) = to.split_at_mut(front_len);
        let (key, value) = rest.split_at_mut(key_len);
        front[..WORD].copy_from_slice(&(start | identity << (8 * identity_at)).to_le_bytes());
        let identity_len = front_len - 5 - identity_at;
        if identity_len > 2 {
            front[identity_at..][..WORD].copy_from_slice(&identity.to_le_bytes());
        }
        // The last word: three bytes of what comes before the time, the time, and the length of the
        // key. One of the three is a zero of the checksum when table and version have two.
        let before = (identity << 8) >> (8 * (identity_len - 2)) & 0xff_ffff;
        let last = before | u64::from(object.timestamp_s) << 24 | (key_len as u64) << 56;
        front[front_len - WORD..].copy_from_slice(&last.to_le_bytes());
        let ends = (
            object.key.first_chunk::<WORD>(),
            object.key.last_chunk::<WORD>(),
        );
        match ends {
            (Some(first), Some(last)) if key_len <= 2 * WORD => {
                key[..WORD].copy_from_slice(first);
                key[key_len - WORD..].copy_from_slice(last);
            }
            _ => key.copy_from_slice(object.key),
        }
        value.copy_from_slice(object.value);
    }
}

/// The bytes of a version as a varint: seven bits in each. In all but the last, a bit says that
/// another byte follows.
fn packed_varint(version: u64) -> u64 {
    let spread = (0..=MORE_MAX).fold(0, |spread, at| spread | version << at & 0x7f << (8 * at));
    let follows = (FOLLOWS << 8 | 0x80) & ((1 << (8 * (varint_len(version) - 1))) - 1);
    spread | follows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Encoded, Entry, Graves, ObjectState, Parsed};
    use proptest::prelude::*;

    fn front(bytes: &[u8]) -> Option<(PlainFront, usize)> {
        let short = bytes.first_chunk().and_then(PlainFront::of_short);
        let long = bytes.first_chunk().and_then(PlainFront::of_long);
        let aged = |len| PlainFront::of_aged(bytes.get(..len)?, |len| bytes.get(..len));
        let found = [
            short.map(|front| (front, PlainFront::SHORT)),
            long.map(|front| (front, PlainFront::LONG)),
            aged(PlainFront::SHORT),
            aged(PlainFront::LONG),
        ];
        let mut found = found.into_iter().flatten();
        let first = found.next();
        assert_eq!(found.next(), None, "one way to read a front");
        first
    }

    /// The entry as its layout writes it over other bytes.
    fn written(object: &Object<'_>) -> Option<Vec<u8>> {
        let layout = PlainLayout::of(object)?;
        let mut bytes = vec![0xff; layout.total_len()];
        layout.write(object, &mut bytes);
        Some(bytes)
    }

    #[test]
    fn layouts_are_made_up_to_the_longest_body_of_two_bytes_of_length() {
        for key_len in [0, 1, 7, 8, 16, 17, 127] {
            let start = |value_len: usize| {
                let (key, value) = (vec![7; key_len], vec![9; value_len]);
                let object = Object {
                    table: TableId(1),
                    version: ObjectVersion(127),
                    timestamp_s: 1,
                    graves: Graves::NONE,
                    deadline: None,
                    state: ObjectState::Plain,
                    key: &key,
                    value: &value,
                };
                let whole = Encoded::object(&object, false, crate::Check::Structure).unwrap();
                Some(written(&object)? == whole.to_vec())
            };
            let longest = LONG_BODY_MAX - (FRONT_MAX - 7) - 127;
            for value_len in [0, 120, 121, longest - 1, longest] {
                assert_eq!(start(value_len), Some(true), "{key_len}, {value_len}");
            }
            assert_eq!(start(longest + 1), None);
        }
    }

    #[test]
    fn versions_of_one_to_six_bytes_are_plain() {
        for version in (0..42).flat_map(|bit| [1 << bit, (2 << bit) - 1]) {
            for value_len in [0, 100, 110, 200] {
                let value = vec![9; value_len];
                let object = Object {
                    table: TableId(3),
                    version: ObjectVersion(version),
                    timestamp_s: 0x8182_8384,
                    graves: Graves::NONE,
                    deadline: None,
                    state: ObjectState::Plain,
                    key: b"a key",
                    value: &value,
                };
                let whole = Encoded::object(&object, false, crate::Check::Structure).unwrap();
                let whole = whole.to_vec();
                assert_eq!(written(&object).expect("plain"), whole, "version {version}");
                let (found, at) = front(&whole).expect("plain");
                assert_eq!(found.version, object.version);
                assert_eq!(found.timestamp_s, object.timestamp_s);
                assert_eq!(&whole[at..at + found.key_len], object.key);
                assert_eq!(found.total_len, whole.len());
            }
        }
        let last = ObjectVersion(VERSION_END);
        let object = Object {
            table: TableId(3),
            version: last,
            timestamp_s: 0,
            graves: Graves::NONE,
            deadline: None,
            state: ObjectState::Plain,
            key: b"a key",
            value: &[1; 20],
        };
        assert!(PlainLayout::of(&object).is_none());
        let whole = Encoded::object(&object, false, crate::Check::Structure).unwrap();
        assert_eq!(front(&whole.to_vec()), None);
    }

    proptest! {
        #[test]
        fn what_is_plain_is_what_the_long_way_reads(
            table in prop_oneof![0_u64..300, any::<u64>()],
            version in prop_oneof![1_u64..300, 1..VERSION_END, any::<u64>()],
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
                deadline: None,
                state: ObjectState::Plain,
                key: &key,
                value: &value,
            };
            let bytes = Encoded::new(&Entry::Object(object), group_continues).unwrap().to_vec();
            if let Some(written) = written(&object) {
                let unchecked = Encoded::object(&object, false, crate::Check::Structure).unwrap();
                prop_assert_eq!(written, unchecked.to_vec());
            } else {
                prop_assert!(table >= 0x80 || version >= VERSION_END || key.len() >= 0x80);
            }
            let found = front(&bytes);
            let is_plain = table < 0x80 && version < VERSION_END && key.len() < 0x80;
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
            kind in prop_oneof![Just(EntryKind::Object as u8), any::<u8>()],
            // So that many are objects: bytes that are small, or just large enough to be followed
            // by others.
            rest in proptest::collection::vec(prop_oneof![0_u8..9, Just(0x80), any::<u8>()], 18..400),
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
