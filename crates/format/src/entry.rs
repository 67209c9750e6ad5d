//! One entry: its header, its body, and how both are written and read.
//!
//! ```text
//!  kind 1 B          length         crc 4 B            body
//! ┌──────────────┬──────────────┬──────────────────┬───────────────────────┐
//! │ c g d kkkkk  │ varint 1-4 B │ CRC-32C, LE      │ as the kind says      │
//! └──────────────┴──────────────┴──────────────────┴───────────────────────┘
//!   c = the next entry belongs to the same group; g = an object's body begins with its graves;
//!   d = then its deadline follows; the CRC covers kind, length and body
//! ```

use crate::completion::Completion;
use crate::digest::LogDigest;
use crate::graves::Graves;
use crate::kind::EntryKind;
use crate::prepared::{PREPARED_MAX, Restored};
use crate::stats::TableStats;
use crate::varint::{Fields, VarintError, get_varint, put_varint, varint_len};
use crate::{FORMAT_VERSION, FORMAT_VERSION_MIN};
use bytes::Bytes;
use core::fmt;
use pluvio_units::{
    ClusterId, Deadline, KEY_MAX, LogId, ObjectVersion, SEGMENT_BYTES, SegmentId, ServerId,
    TableId, UnixMs, VALUE_MAX, crc32c,
};

/// Most entries of one group. An overwrite needs two, and a transaction one or two for each object
/// that it changes. Bounds what replay has to hold back until it knows that a group is whole.
pub const GROUP_MAX: usize = 8192;

const GROUP_CONTINUES: u8 = 0x80;
/// The body of an object begins with its [`Graves`].
const HAS_GRAVES: u8 = 0x40;
/// Next in the body of an object comes its deadline.
const HAS_DEADLINE: u8 = 0x20;
const KIND_MASK: u8 = 0x1f;
const CRC_BYTES: usize = 4;
/// Longest part of an entry before the key: kind, length (≤ 4), crc, and the fields of an object or
/// a completion record. An object has graves, deadline, table, version, timestamp and key length. A
/// completion record without output is longer.
const HEAD_MAX: usize = 1 + 4 + CRC_BYTES + Completion::FRONT_MAX;
const _: () = assert!(Completion::FRONT_MAX >= 3 * 10 + 4 + 3 + Graves::BYTES_MAX);
/// Longest body; bounds the length field to four bytes.
const BODY_MAX: u64 = SEGMENT_BYTES as u64;

/// A key with its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Object<'a> {
    /// The table it belongs to.
    pub table: TableId,
    /// Its version, at least 1.
    pub version: ObjectVersion,
    /// Seconds of the cluster's time when it was written. Sorts survivors by age [LSM-DRAM §5.2].
    pub timestamp_s: u32,
    /// Segments in which dead versions of it lie that no tombstone names.
    pub graves: Graves<'a>,
    /// When it expires, if it does.
    pub deadline: Option<Deadline>,
    /// What its value is.
    pub state: ObjectState,
    /// At most `KEY_MAX` bytes.
    pub key: &'a [u8],
    /// At most `VALUE_MAX` bytes; [`PREPARED_MAX`] where it is prepared.
    pub value: &'a [u8],
}

/// What the value of an object is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ObjectState {
    /// The value as clients know it.
    #[default]
    Plain,
    /// A [`Prepared`](crate::Prepared): its key is locked for a transaction of several owners.
    Prepared,
    /// A [`Restored`](crate::Restored): clients know it by an earlier version.
    Restored,
}

impl ObjectState {
    fn kind(self) -> EntryKind {
        match self {
            Self::Plain => EntryKind::Object,
            Self::Prepared => EntryKind::Prepared,
            Self::Restored => EntryKind::Restored,
        }
    }

    /// Most bytes of such a value.
    fn value_max(self) -> usize {
        match self {
            Self::Plain => VALUE_MAX,
            Self::Prepared => PREPARED_MAX,
            Self::Restored => VALUE_MAX + Restored::FRONT_MAX,
        }
    }

    /// The state of an object whose entry has this kind; `None` for other entries.
    #[inline]
    fn of_kind(kind: EntryKind) -> Option<Self> {
        match kind {
            EntryKind::Object => Some(Self::Plain),
            EntryKind::Prepared => Some(Self::Prepared),
            EntryKind::Restored => Some(Self::Restored),
            EntryKind::Tombstone
            | EntryKind::SegmentHeader
            | EntryKind::LogDigest
            | EntryKind::SafeVersion
            | EntryKind::TableStats
            | EntryKind::Completion
            | EntryKind::Horizon => None,
        }
    }
}

/// Says that one version of an object is dead, so that replay does not bring it back [LSM-DRAM §4].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tombstone<'a> {
    /// The table of the dead object.
    pub table: TableId,
    /// The version that is dead; older ones are dead as well.
    pub version: ObjectVersion,
    /// The segment with the dead object. The tombstone is needed until that segment has left the
    /// log on disk. Zero: no segment of this master holds it.
    pub segment: SegmentId,
    /// Seconds of the cluster's time when the object died.
    pub timestamp_s: u32,
    /// Key of the dead object.
    pub key: &'a [u8],
}

/// How a segment was made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum SegmentKind {
    /// A head: begins with header, digest, table statistics and safe version; takes new writes.
    Head = 1,
    /// A segment of a side log: cleaner's survivors or recovered data. Has no digest and counts
    /// only when the digest of a later head names it.
    Side = 2,
}

impl SegmentKind {
    /// The number on disk.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The kind with this number.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Head),
            2 => Some(Self::Side),
            _ => None,
        }
    }
}

/// The first entry of every segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    /// [`crate::FORMAT_VERSION`] of the writer.
    pub format_version: u32,
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// The master that wrote it.
    pub server: ServerId,
    /// The log it belongs to.
    pub log: LogId,
    /// Its id.
    pub segment: SegmentId,
    /// Head or side segment.
    pub kind: SegmentKind,
    /// Seconds of the cluster's time when it was opened: the age that the cleaner uses.
    pub created_s: u32,
}

/// An entry of the log, as it is given to `append` and as it comes back from bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry<'a> {
    /// See [`Object`].
    Object(Object<'a>),
    /// See [`Tombstone`].
    Tombstone(Tombstone<'a>),
    /// See [`SegmentHeader`].
    SegmentHeader(SegmentHeader),
    /// See [`LogDigest`].
    LogDigest(LogDigest),
    /// Objects written after this entry have at least this version.
    SafeVersion(ObjectVersion),
    /// See [`TableStats`].
    TableStats(TableStats),
    /// See [`Completion`].
    Completion(Completion),
    /// No deadline was judged by a later time before the next such entry.
    Horizon(UnixMs),
}

impl Entry<'_> {
    /// The kind of this entry.
    #[must_use]
    pub fn kind(&self) -> EntryKind {
        match self {
            Self::Object(object) => object.state.kind(),
            Self::Tombstone(_) => EntryKind::Tombstone,
            Self::SegmentHeader(_) => EntryKind::SegmentHeader,
            Self::LogDigest(_) => EntryKind::LogDigest,
            Self::SafeVersion(_) => EntryKind::SafeVersion,
            Self::TableStats(_) => EntryKind::TableStats,
            Self::Completion(_) => EntryKind::Completion,
            Self::Horizon(_) => EntryKind::Horizon,
        }
    }
}

/// Why an entry cannot be written. Not retryable; nothing has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodeError {
    /// The key is longer than `KEY_MAX`.
    #[error("the key has {0} bytes, more than the {KEY_MAX} allowed")]
    KeyTooLong(usize),
    /// The value is longer than `VALUE_MAX`.
    #[error("the value has {0} bytes, more than the {VALUE_MAX} allowed")]
    ValueTooLong(usize),
    /// A digest or table statistics whose ids do not ascend, or with too many of them.
    #[error("the ids of a {0:?} entry do not ascend or are too many")]
    Unordered(EntryKind),
    /// The body is longer than a segment.
    #[error("an entry of {0} bytes does not fit a segment")]
    BodyTooLong(usize),
}

#[derive(Clone, Debug)]
enum Tail<'a> {
    Slices(&'a [u8], &'a [u8]),
    Owned(Vec<u8>),
    Shared(Bytes),
}

/// An entry ready to be copied to the log: header and small fields assembled, key and value still
/// borrowed. Making one for an object, a tombstone or a completion record allocates nothing, unless
/// the record holds numbers of many bit fields.
#[derive(Clone, Debug)]
pub struct Encoded<'a> {
    head: [u8; HEAD_MAX],
    head_len: u8,
    kind: EntryKind,
    tail: Tail<'a>,
}

impl<'a> Encoded<'a> {
    /// Encodes `entry`. `group_continues` says that the next entry belongs to the same group.
    ///
    /// # Errors
    /// See [`EncodeError`].
    pub fn new(entry: &Entry<'a>, group_continues: bool) -> Result<Self, EncodeError> {
        let mut small = [0u8; HEAD_MAX];
        let mut at = 0;
        let tail = match entry {
            Entry::Object(object) => {
                return Self::object(object, group_continues, Check::Checksum);
            }
            Entry::Tombstone(tombstone) => {
                check_key(tombstone.key)?;
                at += put_varint(&mut small[at..], tombstone.table.0);
                at += put_varint(&mut small[at..], tombstone.version.0);
                at += put_varint(&mut small[at..], tombstone.segment.0);
                at += put_u32(&mut small[at..], tombstone.timestamp_s);
                Tail::Slices(tombstone.key, &[])
            }
            Entry::SegmentHeader(header) => {
                let mut body = Vec::with_capacity(48);
                header.encode_body(&mut body);
                Tail::Owned(body)
            }
            Entry::LogDigest(digest) => {
                if !digest.is_ordered() {
                    return Err(EncodeError::Unordered(EntryKind::LogDigest));
                }
                let mut body = Vec::with_capacity(16 + 2 * digest.segments.len());
                digest.encode_body(&mut body);
                Tail::Owned(body)
            }
            Entry::SafeVersion(version) => {
                at += put_varint(&mut small[at..], version.0);
                Tail::Slices(&[], &[])
            }
            Entry::Horizon(time) => {
                at += put_varint(&mut small[at..], time.0);
                Tail::Slices(&[], &[])
            }
            Entry::TableStats(stats) => {
                if !stats.is_ordered() {
                    return Err(EncodeError::Unordered(EntryKind::TableStats));
                }
                let mut body = Vec::new();
                stats.encode_body(&mut body);
                Tail::Owned(body)
            }
            Entry::Completion(completion) => {
                let (front, rest) = completion.encode_body(&mut small);
                at += front;
                match rest.is_empty() {
                    true => Tail::Slices(&[], &[]),
                    false => Tail::Shared(rest),
                }
            }
        };
        Self::assemble(entry.kind(), group_continues, &small[..at], tail)
    }

    /// Encodes an object. With [`Check::Structure`] its checksum is left zero: for logs without
    /// replicas, where there is nothing to compare it for.
    ///
    /// # Errors
    /// See [`EncodeError`].
    #[inline]
    pub fn object(
        object: &Object<'a>,
        group_continues: bool,
        check: Check,
    ) -> Result<Self, EncodeError> {
        check_key(object.key)?;
        if object.value.len() > object.state.value_max() {
            return Err(EncodeError::ValueTooLong(object.value.len()));
        }
        let key_len = object.key.len() as u64;
        let body_len = Self::object_body_len(object);
        let mut head = [0u8; HEAD_MAX];
        let kind = object.state.kind();
        head[0] = kind.code() | if group_continues { GROUP_CONTINUES } else { 0 };
        if !object.graves.is_empty() {
            head[0] |= HAS_GRAVES;
        }
        if object.deadline.is_some() {
            head[0] |= HAS_DEADLINE;
        }
        let crc_at = 1 + put_varint(&mut head[1..], body_len as u64);
        let small_at = crc_at + CRC_BYTES;
        let mut at = small_at;
        at += object.graves.put(&mut head[at..]);
        if let Some(deadline) = object.deadline {
            at += put_varint(&mut head[at..], deadline.ms());
        }
        at += put_varint(&mut head[at..], object.table.0);
        at += put_varint(&mut head[at..], object.version.0);
        at += put_u32(&mut head[at..], object.timestamp_s);
        at += put_varint(&mut head[at..], key_len);
        match check {
            Check::Structure => {}
            Check::Checksum => {
                let parts = [
                    &head[..crc_at],
                    &head[small_at..at],
                    object.key,
                    object.value,
                ];
                let crc = crc32c(&parts);
                head[crc_at..small_at].copy_from_slice(&crc.to_le_bytes());
            }
        }
        Ok(Self {
            head,
            head_len: at as u8,
            kind,
            tail: Tail::Slices(object.key, object.value),
        })
    }

    /// Puts kind, length and checksum in front of the small fields.
    fn assemble(
        kind: EntryKind,
        group_continues: bool,
        small: &[u8],
        tail: Tail<'a>,
    ) -> Result<Self, EncodeError> {
        let (first, second) = match &tail {
            Tail::Slices(first, second) => (*first, *second),
            Tail::Owned(body) => (&body[..], &[][..]),
            Tail::Shared(body) => (&body[..], &[][..]),
        };
        let body_len = small.len() + first.len() + second.len();
        if body_len as u64 > BODY_MAX {
            return Err(EncodeError::BodyTooLong(body_len));
        }
        let mut head = [0u8; HEAD_MAX];
        head[0] = kind.code() | if group_continues { GROUP_CONTINUES } else { 0 };
        let crc_at = 1 + put_varint(&mut head[1..], body_len as u64);
        let small_at = crc_at + CRC_BYTES;
        let head_len = small_at + small.len();
        head[small_at..head_len].copy_from_slice(small);
        let crc = crc32c(&[&head[..crc_at], small, first, second]);
        head[crc_at..small_at].copy_from_slice(&crc.to_le_bytes());
        Ok(Self {
            head,
            head_len: head_len as u8,
            kind,
            tail,
        })
    }

    /// The kind of the entry.
    #[must_use]
    pub fn kind(&self) -> EntryKind {
        self.kind
    }

    /// Bytes of the whole entry.
    #[must_use]
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.parts().iter().map(|part| part.len()).sum()
    }

    /// The bytes, in order; parts may be empty.
    #[must_use]
    #[inline]
    pub fn parts(&self) -> [&[u8]; 3] {
        let head = &self.head[..usize::from(self.head_len)];
        match &self.tail {
            Tail::Slices(first, second) => [head, first, second],
            Tail::Owned(body) => [head, body, &[]],
            Tail::Shared(body) => [head, body, &[]],
        }
    }

    /// The bytes in one piece.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.parts().concat()
    }

    /// Bytes that an object takes in the log.
    #[must_use]
    #[inline]
    pub fn object_len(object: &Object<'_>) -> usize {
        let body = Self::object_body_len(object);
        1 + varint_len(body as u64) + CRC_BYTES + body
    }

    /// Bytes that an object of `total_len` bytes in the log takes with a later version than `from`.
    /// A version takes more bytes as it grows, and so may the length that counts them.
    #[must_use]
    pub fn object_len_at(total_len: usize, from: ObjectVersion, to: ObjectVersion) -> usize {
        let more = varint_len(to.0).saturating_sub(varint_len(from.0));
        // Which of the bytes are the body: as many as need that many bytes to say so.
        let around = |len_bytes: usize| 1 + len_bytes + CRC_BYTES;
        let fits = |body: &usize| around(varint_len(*body as u64)) + body == total_len;
        let mut bodies = (1..=4).filter_map(|len_bytes| total_len.checked_sub(around(len_bytes)));
        match bodies.find(fits) {
            Some(body) => around(varint_len((body + more) as u64)) + body + more,
            None => total_len + more,
        }
    }

    #[inline]
    fn object_body_len(object: &Object<'_>) -> usize {
        object.graves.encoded_len()
            + object.deadline.map_or(0, |d| varint_len(d.ms()))
            + varint_len(object.table.0)
            + varint_len(object.version.0)
            + 4
            + varint_len(object.key.len() as u64)
            + object.key.len()
            + object.value.len()
    }
}

fn check_key(key: &[u8]) -> Result<(), EncodeError> {
    if key.len() > KEY_MAX {
        return Err(EncodeError::KeyTooLong(key.len()));
    }
    Ok(())
}

fn put_u32(to: &mut [u8], value: u32) -> usize {
    to[..4].copy_from_slice(&value.to_le_bytes());
    4
}

/// What lies before the value of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectFront<'a> {
    /// Its version.
    pub version: ObjectVersion,
    /// Its key.
    pub key: &'a [u8],
    /// Bytes before the value.
    pub value_at: usize,
    /// Bytes of the entry.
    pub total_len: usize,
}

impl ObjectFront<'_> {
    /// The shortest front there is: kind, length, checksum, table, version, timestamp, and a key of
    /// no bytes.
    pub const BYTES_MIN: usize = 1 + 1 + CRC_BYTES + 1 + 1 + 4 + 1;
}

/// The sizes of an object's entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectLens {
    /// Bytes before the body.
    pub header_len: usize,
    /// Bytes of the entry.
    pub total_len: usize,
    /// Whether the body begins with graves.
    pub has_graves: bool,
    /// Whether a deadline comes next in the body.
    pub has_deadline: bool,
}

impl<'a> Object<'a> {
    /// Reads the sizes of the plain object at the start of `bytes`; [`EntryHead::BYTES_MAX`] of
    /// them (or all there are) are enough. `None` when it is no plain object, or has a length that
    /// only [`EntryHead::read`] explains.
    #[must_use]
    #[inline]
    pub fn lens(bytes: &[u8]) -> Option<ObjectLens> {
        let (&first, rest) = bytes.split_first()?;
        if first & !(GROUP_CONTINUES | HAS_GRAVES | HAS_DEADLINE) != EntryKind::Object.code() {
            return None;
        }
        let (body_len, varint) = get_varint(rest).ok()?;
        let header_len = 1 + varint + CRC_BYTES;
        // Not `then_some`: a wild length must not be added to anything.
        (body_len <= BODY_MAX).then(|| ObjectLens {
            header_len,
            total_len: header_len + body_len as usize,
            has_graves: first & HAS_GRAVES != 0,
            has_deadline: first & HAS_DEADLINE != 0,
        })
    }

    /// Reads the front of the object at the start of `bytes`: version, key, and the number of bytes
    /// between the entry's start and the value. For readers that must not touch the value.
    ///
    /// # Errors
    /// `Some(n)` when `bytes` are too few: `n` bytes at least lie before the value. `None` when it
    /// is no object.
    pub fn front(bytes: &[u8]) -> Result<ObjectFront<'_>, Option<usize>> {
        let lens = Self::lens(bytes).ok_or(None)?;
        // What has either is read in another way.
        let is_plain = !lens.has_graves && !lens.has_deadline;
        let total_len = is_plain.then_some(lens.total_len).ok_or(None)?;
        let mut at = lens.header_len;
        let varint = |at: &mut usize| {
            let rest = bytes.get(*at..).unwrap_or(&[]);
            match get_varint(rest) {
                Ok((value, len)) => {
                    *at += len;
                    Ok(value)
                }
                // Behind this number come at least those that are still to be read, a byte each.
                Err(VarintError::Truncated) => Err(Some(bytes.len().max(*at) + 1)),
                Err(VarintError::Malformed) => Err(None),
            }
        };
        let _table = varint(&mut at)?;
        let version = varint(&mut at)?;
        at += 4;
        let key_len = usize::try_from(varint(&mut at)?).map_err(|_| None)?;
        if key_len > KEY_MAX {
            return Err(None);
        }
        let value_at = at + key_len;
        if value_at > total_len {
            return Err(None);
        }
        let key = bytes.get(at..value_at).ok_or(Some(value_at))?;
        Ok(ObjectFront {
            version: ObjectVersion(version),
            key,
            value_at,
            total_len,
        })
    }

    /// Reads a plain object from a body, which begins with graves and deadline if the header says
    /// so (`lens`). `None` when it is malformed.
    #[must_use]
    #[inline]
    pub fn of_body(body: &'a [u8], lens: &ObjectLens) -> Option<Self> {
        Self::of_fields(body, ObjectState::Plain, lens.has_graves, lens.has_deadline)
    }

    #[inline]
    fn of_fields(
        body: &'a [u8],
        state: ObjectState,
        has_graves: bool,
        has_deadline: bool,
    ) -> Option<Self> {
        let (graves, body) = if has_graves {
            let (graves, len) = Graves::take(body)?;
            (graves, body.get(len..)?)
        } else {
            (Graves::NONE, body)
        };
        let mut fields = Fields::new(body);
        let deadline = match has_deadline {
            true => Some(Deadline::new(fields.varint()?)?),
            false => None,
        };
        let object = Self {
            graves,
            deadline,
            state,
            table: TableId(fields.varint()?),
            version: ObjectVersion(fields.varint()?),
            timestamp_s: fields.u32()?,
            key: {
                let key_len = usize::try_from(fields.varint()?).ok()?;
                fields.bytes(key_len)?
            },
            value: fields.rest(),
        };
        (object.key.len() <= KEY_MAX && object.value.len() <= state.value_max()).then_some(object)
    }
}

impl SegmentHeader {
    fn encode_body(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.format_version.to_le_bytes());
        to.extend_from_slice(&self.cluster.0.to_le_bytes());
        to.extend_from_slice(&self.server.0.to_le_bytes());
        to.extend_from_slice(&self.segment.0.to_le_bytes());
        to.extend_from_slice(&u32::from(self.log.0).to_le_bytes());
        to.extend_from_slice(&self.created_s.to_le_bytes());
        to.push(self.kind.code());
    }

    /// Refuses other versions before anything else is read: the version comes first in all of them.
    fn check_version(body: &[u8]) -> Result<(), ParseErrorKind> {
        match Fields::new(body).u32() {
            Some(version) if !(FORMAT_VERSION_MIN..=FORMAT_VERSION).contains(&version) => {
                Err(ParseErrorKind::BadVersion(version))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn decode_body(body: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(body);
        let header = Self {
            format_version: fields.u32()?,
            cluster: ClusterId(fields.u64()?),
            server: ServerId(fields.u64()?),
            segment: SegmentId(fields.u64()?),
            log: LogId(u16::try_from(fields.u32()?).ok()?),
            created_s: fields.u32()?,
            kind: SegmentKind::from_code(fields.u8()?)?,
        };
        fields.end()?;
        Some(header)
    }
}

/// The fault of bytes that should be an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseErrorKind {
    /// The bytes end inside the entry.
    #[error("the bytes end inside an entry")]
    Truncated,
    /// No such kind, or unused bits are set.
    #[error("{0:#04x} is no kind of entry")]
    BadKind(u8),
    /// The length is not in its shortest form or longer than a segment.
    #[error("the length is malformed or longer than a segment")]
    BadLength,
    /// A segment of a program that lays out entries otherwise. Nothing of it can be read.
    #[error(
        "the segment has format version {0}, this program reads {FORMAT_VERSION_MIN} to {FORMAT_VERSION}: use the program that wrote it, or a newer one"
    )]
    BadVersion(u32),
    /// Header or body was changed since it was written.
    #[error("the checksum is {found:#010x}, stored is {stored:#010x}")]
    BadChecksum {
        /// Computed from the bytes.
        found: u32,
        /// Read from the header.
        stored: u32,
    },
    /// The checksum is right and yet the body is not what its kind demands: a different format
    /// version or an error of the writer.
    #[error("the body does not have the layout of a {0:?}")]
    BadBody(EntryKind),
    /// Padding that is not zero, or at the start of a seglet, where none can be.
    #[error("bad padding")]
    BadPadding,
    /// The image ends before the last entry of a group.
    #[error("the image ends inside a group of entries")]
    IncompleteGroup,
}

/// Bytes that are not what they should be. Not retryable: use another replica, or stop the process
/// when the bytes are in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParseError {
    /// Offset of the entry in the bytes given.
    pub offset: usize,
    /// What is wrong with it.
    pub kind: ParseErrorKind,
}

impl ParseError {
    pub(crate) fn new(offset: usize, kind: ParseErrorKind) -> Self {
        Self { offset, kind }
    }

    /// The same error for bytes that begin `by` bytes earlier.
    #[must_use]
    pub fn shifted_by(self, by: usize) -> Self {
        Self {
            offset: self.offset + by,
            kind: self.kind,
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bad entry at offset {}: {}", self.offset, self.kind)
    }
}

impl std::error::Error for ParseError {}

/// The header of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryHead {
    /// The entry's kind.
    pub kind: EntryKind,
    /// Whether the next entry belongs to the same group.
    pub group_continues: bool,
    /// Whether the body of this object begins with its graves.
    pub has_graves: bool,
    /// Whether a deadline comes next in the body of this object.
    pub has_deadline: bool,
    /// Bytes before the body.
    pub header_len: usize,
    /// Bytes of the body.
    pub body_len: usize,
    /// The checksum in the header.
    pub crc: u32,
}

impl EntryHead {
    /// Most bytes a header takes: this many (or all there are) are enough for [`Self::read`].
    pub const BYTES_MAX: usize = 1 + 4 + CRC_BYTES;

    /// Bytes of the whole entry.
    #[must_use]
    pub fn total_len(&self) -> usize {
        self.header_len + self.body_len
    }

    /// Reads the header at the start of `bytes`; the body need not be there.
    ///
    /// # Errors
    /// `Truncated`, `BadKind` or `BadLength`. Padding is `BadKind(0)`.
    pub fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let fail = |kind| ParseError::new(0, kind);
        let (&first, rest) = bytes.split_first().ok_or(fail(ParseErrorKind::Truncated))?;
        let has_graves = first & HAS_GRAVES != 0;
        let has_deadline = first & HAS_DEADLINE != 0;
        let kind = EntryKind::from_code(first & KIND_MASK)
            .filter(|kind| match ObjectState::of_kind(*kind) {
                // The deadline of a prepared object is part of what it holds.
                Some(ObjectState::Prepared) => !has_deadline,
                Some(ObjectState::Plain | ObjectState::Restored) => true,
                None => !(has_graves || has_deadline),
            })
            .ok_or(fail(ParseErrorKind::BadKind(first)))?;
        debug_assert_eq!(kind.code() & !KIND_MASK, 0);
        let (body_len, varint) = get_varint(rest).map_err(|e| match e {
            VarintError::Truncated => fail(ParseErrorKind::Truncated),
            VarintError::Malformed => fail(ParseErrorKind::BadLength),
        })?;
        if body_len > BODY_MAX {
            return Err(fail(ParseErrorKind::BadLength));
        }
        let crc = rest
            .get(varint..varint + CRC_BYTES)
            .and_then(|bytes| bytes.first_chunk())
            .ok_or(fail(ParseErrorKind::Truncated))?;
        Ok(Self {
            kind,
            group_continues: first & GROUP_CONTINUES != 0,
            has_graves,
            has_deadline,
            header_len: 1 + varint + CRC_BYTES,
            body_len: body_len as usize,
            crc: u32::from_le_bytes(*crc),
        })
    }
}

/// How much of an entry is checked when it is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check {
    /// Lengths and layout only: for the read path, whose bytes were checked when they were written
    /// and are checked again by the cleaner.
    Structure,
    /// Also the checksum: for bytes from a disk or a network, and for the cleaner.
    Checksum,
}

/// An entry read from bytes, with its header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parsed<'a> {
    /// The header.
    pub head: EntryHead,
    /// The content; keys and values are borrowed from the bytes.
    pub entry: Entry<'a>,
}

impl<'a> Parsed<'a> {
    /// Reads the entry at the start of `bytes`; more bytes may follow.
    ///
    /// # Errors
    /// See [`ParseErrorKind`]; the offset is 0.
    pub fn read(bytes: &'a [u8], check: Check) -> Result<Self, ParseError> {
        let fail = |kind| ParseError::new(0, kind);
        let head = EntryHead::read(bytes)?;
        let body = bytes
            .get(head.header_len..head.total_len())
            .ok_or(fail(ParseErrorKind::Truncated))?;
        match check {
            Check::Structure => {}
            Check::Checksum => {
                let found = crc32c(&[&bytes[..head.header_len - CRC_BYTES], body]);
                if found != head.crc {
                    return Err(fail(ParseErrorKind::BadChecksum {
                        found,
                        stored: head.crc,
                    }));
                }
            }
        }
        if head.kind == EntryKind::SegmentHeader {
            SegmentHeader::check_version(body).map_err(fail)?;
        }
        let entry = decode_body(&head, body).ok_or(fail(ParseErrorKind::BadBody(head.kind)))?;
        Ok(Self { head, entry })
    }
}

fn decode_body<'a>(head: &EntryHead, body: &'a [u8]) -> Option<Entry<'a>> {
    let mut fields = Fields::new(body);
    match head.kind {
        EntryKind::Object | EntryKind::Prepared | EntryKind::Restored => {
            let state = ObjectState::of_kind(head.kind)?;
            Object::of_fields(body, state, head.has_graves, head.has_deadline).map(Entry::Object)
        }
        EntryKind::Tombstone => {
            let table = TableId(fields.varint()?);
            let version = ObjectVersion(fields.varint()?);
            let segment = SegmentId(fields.varint()?);
            let timestamp_s = fields.u32()?;
            let key = fields.rest();
            (key.len() <= KEY_MAX).then_some(Entry::Tombstone(Tombstone {
                table,
                version,
                segment,
                timestamp_s,
                key,
            }))
        }
        EntryKind::SegmentHeader => SegmentHeader::decode_body(body).map(Entry::SegmentHeader),
        EntryKind::LogDigest => LogDigest::decode_body(body).map(Entry::LogDigest),
        EntryKind::SafeVersion => {
            let version = ObjectVersion(fields.varint()?);
            fields.end()?;
            Some(Entry::SafeVersion(version))
        }
        EntryKind::Horizon => {
            let time = UnixMs(fields.varint()?);
            fields.end()?;
            Some(Entry::Horizon(time))
        }
        EntryKind::TableStats => TableStats::decode_body(body).map(Entry::TableStats),
        EntryKind::Completion => Completion::decode_body(body).map(Entry::Completion),
    }
}
