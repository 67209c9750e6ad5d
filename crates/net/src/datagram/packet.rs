//! The bytes of a datagram, little endian:
//!
//! ```text
//!  0      2         3      4        8            16       24       32
//!  +------+---------+------+--------+------------+--------+--------+---------
//!  | "PU" | version | kind | CRC-32C| session id | number | tag    | body ...
//!  | 2    | u8      | u8   | u32    | u64        | u64    | u64    |
//!  +------+---------+------+--------+------------+--------+--------+---------
//! ```
//!
//! The checksum covers everything but itself and the tag. The tag is SipHash-2-4 of the 24 bytes
//! before it, so with the checksum it covers the body. The session id is the receiver's. A data
//! datagram has a number that its sender never uses again. Its body is a row of parts:
//!
//! ```text
//!  piece   1 | kind u8 | opcode u16 | meta length u32 | payload length u32 | offset u32 | length u16 |
//!            | message id u64 | call id u64 | bytes
//!  ack     2 | count u8 | delay in us u32 | count times (from u64, to u64), highest first
//!  credit  3 | bytes u64 | messages u64
//!  ping    4
//!  close   5 | length u8 | text
//! ```

pub(crate) use crate::frame::Kind as MessageKind;
use core::ops::Range;
use pluvio_units::crc32c;

/// Bytes before the body.
pub(crate) const HEAD_BYTES: usize = 32;
/// The version of the datagrams.
pub const DATAGRAM_VERSION: u8 = 1;
/// Bytes of a piece before its content.
pub(crate) const PIECE_BYTES: usize = 34;
/// Bytes of a credit.
pub(crate) const CREDIT_BYTES: usize = 17;
/// Bytes of an ack before its ranges, and of each range.
const ACK_BYTES: usize = 6;
const RANGE_BYTES: usize = 16;
/// Ranges of one ack: its datagram has room for much else.
pub(crate) const RANGES_MAX: usize = 16;
/// The largest datagram that IPv4 carries.
pub(crate) const LARGEST_BYTES: usize = 65_507;

const MAGIC: [u8; 2] = *b"PU";

/// The kind of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Wants a session.
    Hello,
    /// Answers a hello without a cookie.
    Cookie,
    /// Opens the session.
    Welcome,
    /// Refuses it in words.
    Refused,
    /// Carries parts.
    Data,
    /// Answers data of a session that is unknown.
    Reset,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Hello,
        Self::Cookie,
        Self::Welcome,
        Self::Refused,
        Self::Data,
        Self::Reset,
    ];

    fn to_wire(self) -> u8 {
        match self {
            Self::Hello => 0,
            Self::Cookie => 1,
            Self::Welcome => 2,
            Self::Refused => 3,
            Self::Data => 4,
            Self::Reset => 5,
        }
    }
}

/// What stands before the body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) session: u64,
    pub(crate) number: u64,
    pub(crate) tag: u64,
}

/// Bytes that are no datagram of this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Strange {
    /// Anything: it begins otherwise, is too short, or is damaged.
    Garbage,
    /// It is of this protocol in a version that is unknown here.
    OtherVersion {
        version: u8,
        /// The sender's session id, if it asks for a session: it may be answered.
        hello: Option<u64>,
        /// The receiver's session id, if it is a refusal: its text can be read.
        refusal: Option<u64>,
    },
}

/// Little-endian numbers off the front of `bytes`; `None` when they are too few.
pub(crate) struct Take<'a>(pub(crate) &'a [u8]);

impl<'a> Take<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

/// Begins a datagram: an empty head, to be followed by the body and [`seal`].
pub(crate) fn begin(into: &mut Vec<u8>) {
    into.clear();
    into.resize(HEAD_BYTES, 0);
}

/// Fills in the head. The tag is computed by `tag` from the 24 bytes before it.
pub(crate) fn seal(
    datagram: &mut [u8],
    kind: Kind,
    session: u64,
    number: u64,
    tag: impl FnOnce(&[u8]) -> u64,
) -> u64 {
    datagram[..2].copy_from_slice(&MAGIC);
    datagram[2] = DATAGRAM_VERSION;
    datagram[3] = kind.to_wire();
    datagram[8..16].copy_from_slice(&session.to_le_bytes());
    datagram[16..24].copy_from_slice(&number.to_le_bytes());
    let checksum = checksum(datagram);
    datagram[4..8].copy_from_slice(&checksum.to_le_bytes());
    let tag = tag(&datagram[..24]);
    datagram[24..32].copy_from_slice(&tag.to_le_bytes());
    tag
}

fn checksum(datagram: &[u8]) -> u32 {
    crc32c(&[&datagram[..4], &datagram[8..24], &datagram[HEAD_BYTES..]])
}

/// The 24 bytes that the tag covers.
pub(crate) fn tagged(datagram: &[u8]) -> &[u8] {
    &datagram[..24]
}

/// Takes a datagram apart into its head and body. The tag is not checked here.
pub(crate) fn open(datagram: &[u8]) -> Result<(Head, &[u8]), Strange> {
    let garbage = || Strange::Garbage;
    if datagram.len() < HEAD_BYTES {
        return Err(Strange::Garbage);
    }
    let mut take = Take(datagram);
    if take.bytes(2) != Some(&MAGIC) {
        return Err(Strange::Garbage);
    }
    let version = take.u8().ok_or_else(garbage)?;
    let kind = take.u8().ok_or_else(garbage)?;
    let found = take.u32().ok_or_else(garbage)?;
    let session = take.u64().ok_or_else(garbage)?;
    let number = take.u64().ok_or_else(garbage)?;
    let tag = take.u64().ok_or_else(garbage)?;
    if version != DATAGRAM_VERSION {
        // Kind, place of the sender's id and of the text of a refusal are the same in all versions.
        return Err(Strange::OtherVersion {
            version,
            hello: (kind == Kind::Hello.to_wire()).then_some(number),
            refusal: (kind == Kind::Refused.to_wire()).then_some(session),
        });
    }
    if found != checksum(datagram) {
        return Err(Strange::Garbage);
    }
    let kind = (Kind::ALL.into_iter()).find(|known| known.to_wire() == kind);
    let head = Head {
        kind: kind.ok_or(Strange::Garbage)?,
        session,
        number,
        tag,
    };
    Ok((head, take.0))
}

/// What every piece says of its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MessageHead {
    pub(crate) kind: MessageKind,
    pub(crate) opcode: u16,
    pub(crate) meta_bytes: u32,
    pub(crate) payload_bytes: u32,
    /// The caller's number of the call.
    pub(crate) call: u64,
}

impl MessageHead {
    /// Bytes of meta and payload.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.meta_bytes) + u64::from(self.payload_bytes)
    }
}

/// How much the other side may have begun since the session began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Credit {
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
}

/// A part of the body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Part<'a> {
    Piece {
        message: u64,
        head: MessageHead,
        offset: u32,
        bytes: &'a [u8],
    },
    Ack {
        delay_us: u32,
        /// Highest first.
        ranges: Vec<Range<u64>>,
    },
    Credit(Credit),
    Ping,
    Close(&'a [u8]),
}

/// Takes the next part off a body; `None` if the bytes are none.
pub(crate) fn next_part<'a>(take: &mut Take<'a>) -> Option<Part<'a>> {
    Some(match take.u8()? {
        1 => {
            let kind = MessageKind::from_wire(take.u8()?)?;
            let opcode = take.u16()?;
            let (meta_bytes, payload_bytes) = (take.u32()?, take.u32()?);
            let (offset, length) = (take.u32()?, take.u16()?);
            let (message, call) = (take.u64()?, take.u64()?);
            let bytes = take.bytes(usize::from(length))?;
            let head = MessageHead {
                kind,
                opcode,
                meta_bytes,
                payload_bytes,
                call,
            };
            Part::Piece {
                message,
                head,
                offset,
                bytes,
            }
        }
        2 => {
            let (count, delay_us) = (take.u8()?, take.u32()?);
            if usize::from(count) > RANGES_MAX {
                return None;
            }
            let mut ranges = Vec::with_capacity(usize::from(count));
            for _ in 0..count {
                ranges.push(take.u64()?..take.u64()?);
            }
            Part::Ack { delay_us, ranges }
        }
        3 => Part::Credit(Credit {
            bytes: take.u64()?,
            messages: take.u64()?,
        }),
        4 => Part::Ping,
        5 => {
            let length = take.u8()?;
            Part::Close(take.bytes(usize::from(length))?)
        }
        _ => return None,
    })
}

/// Writes what stands before a piece's content, of which `length` bytes follow.
pub(crate) fn put_piece(
    into: &mut Vec<u8>,
    message: u64,
    head: &MessageHead,
    offset: u32,
    length: u16,
) {
    into.extend_from_slice(&[1, head.kind.to_wire()]);
    into.extend_from_slice(&head.opcode.to_le_bytes());
    into.extend_from_slice(&head.meta_bytes.to_le_bytes());
    into.extend_from_slice(&head.payload_bytes.to_le_bytes());
    into.extend_from_slice(&offset.to_le_bytes());
    into.extend_from_slice(&length.to_le_bytes());
    into.extend_from_slice(&message.to_le_bytes());
    into.extend_from_slice(&head.call.to_le_bytes());
}

/// Writes an ack of the highest of `received` that `room` bytes hold. Gives whether it did.
pub(crate) fn put_ack(
    into: &mut Vec<u8>,
    delay_us: u32,
    received: &[Range<u64>],
    room: usize,
) -> bool {
    let fit = room.saturating_sub(ACK_BYTES) / RANGE_BYTES;
    let count = received.len().min(RANGES_MAX).min(fit);
    if count == 0 {
        return false;
    }
    into.extend_from_slice(&[2, count as u8]);
    into.extend_from_slice(&delay_us.to_le_bytes());
    for range in received.iter().rev().take(count) {
        into.extend_from_slice(&range.start.to_le_bytes());
        into.extend_from_slice(&range.end.to_le_bytes());
    }
    true
}

/// Writes a credit.
pub(crate) fn put_credit(into: &mut Vec<u8>, credit: Credit) {
    into.push(3);
    into.extend_from_slice(&credit.bytes.to_le_bytes());
    into.extend_from_slice(&credit.messages.to_le_bytes());
}

/// Writes a ping.
pub(crate) fn put_ping(into: &mut Vec<u8>) {
    into.push(4);
}

/// Writes a close with as much of its text as fits.
pub(crate) fn put_close(into: &mut Vec<u8>, text: &str) {
    let bytes = &text.as_bytes()[..text.len().min(200)];
    into.extend_from_slice(&[5, bytes.len() as u8]);
    into.extend_from_slice(bytes);
}
