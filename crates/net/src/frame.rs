//! The header of a frame, little endian:
//!
//! ```text
//!  0        2         3      4        6          8            16            20               24         28       32
//!  +--------+---------+------+--------+----------+------------+-------------+----------------+----------+--------+
//!  | "PV"   | version | kind | opcode | 0        | request id | meta length | payload length | too long | CRC-32C|
//!  | 2      | u8      | u8   | u16    | u16      | u64        | u32         | u32            | u32      | u32    |
//!  +--------+---------+------+--------+----------+------------+-------------+----------------+----------+--------+
//! ```
//!
//! followed by meta and payload. The checksum covers the 28 bytes before it. "too long" is zero
//! except in a [`Kind::ReplyTooLarge`].

use pluvio_env::Frame;
use pluvio_units::crc32c;

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 32;
/// The version of the frame layout.
pub const FRAME_VERSION: u8 = 1;

const MAGIC: [u8; 2] = *b"PV";

/// The kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Wants a reply with the same id.
    Request,
    /// Answers the request with the same id on the same connection.
    Reply,
    /// Stands in for a reply that is larger than the receiver takes.
    ReplyTooLarge,
}

impl Kind {
    pub(crate) fn to_wire(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Reply => 1,
            Self::ReplyTooLarge => 2,
        }
    }

    pub(crate) fn from_wire(byte: u8) -> Option<Self> {
        [Self::Request, Self::Reply, Self::ReplyTooLarge]
            .into_iter()
            .find(|kind| kind.to_wire() == byte)
    }
}

/// A header without its constant fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) opcode: u16,
    pub(crate) id: u64,
    pub(crate) meta_bytes: u32,
    pub(crate) payload_bytes: u32,
    /// Bytes of the unsent reply.
    pub(crate) too_long: u32,
}

/// The bytes are not a frame. The connection cannot go on: the place of the next frame is unknown.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum FrameFault {
    #[error("no frame begins here (found {0:02x?})")]
    Magic([u8; 2]),
    #[error("damaged frame header (checksum {found:08x}, computed {computed:08x})")]
    Checksum { found: u32, computed: u32 },
    #[error("frame layout version {0}, this side knows {FRAME_VERSION}")]
    Version(u8),
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    #[error("a {0:?} frame comes the wrong way")]
    WrongWay(Kind),
    #[error("a frame of {0} bytes is over the limit of {1}")]
    TooLarge(u64, usize),
}

fn word<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    let mut word = [0; N];
    word.copy_from_slice(&bytes[at..at + N]);
    word
}

impl Header {
    /// The header of `frame`, whose size was checked against a frame limit, which fits a `u32`.
    pub(crate) fn of(kind: Kind, id: u64, frame: &Frame) -> Self {
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("checked against the limit");
        Self {
            kind,
            opcode: frame.opcode,
            id,
            meta_bytes: length(&frame.meta),
            payload_bytes: length(&frame.payload),
            too_long: 0,
        }
    }

    /// The notice sent instead of a reply of `bytes` bytes.
    pub(crate) fn too_large(id: u64, opcode: u16, bytes: usize) -> Self {
        Self {
            kind: Kind::ReplyTooLarge,
            opcode,
            id,
            meta_bytes: 0,
            payload_bytes: 0,
            too_long: u32::try_from(bytes).unwrap_or(u32::MAX),
        }
    }

    /// Bytes that follow the header.
    pub(crate) fn body_bytes(&self) -> u64 {
        u64::from(self.meta_bytes) + u64::from(self.payload_bytes)
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..2].copy_from_slice(&MAGIC);
        bytes[2] = FRAME_VERSION;
        bytes[3] = self.kind.to_wire();
        bytes[4..6].copy_from_slice(&self.opcode.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.meta_bytes.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.too_long.to_le_bytes());
        let checksum = crc32c(&[&bytes[..28]]);
        bytes[28..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// # Errors
    /// A fault if the bytes are no header, or belong to a frame over `body_bytes_max`.
    pub(crate) fn decode(
        bytes: &[u8; HEADER_BYTES],
        body_bytes_max: usize,
    ) -> Result<Self, FrameFault> {
        let magic = word::<2>(bytes, 0);
        if magic != MAGIC {
            return Err(FrameFault::Magic(magic));
        }
        let found = u32::from_le_bytes(word(bytes, 28));
        let computed = crc32c(&[&bytes[..28]]);
        if found != computed {
            return Err(FrameFault::Checksum { found, computed });
        }
        if bytes[2] != FRAME_VERSION {
            return Err(FrameFault::Version(bytes[2]));
        }
        let header = Self {
            kind: Kind::from_wire(bytes[3]).ok_or(FrameFault::UnknownKind(bytes[3]))?,
            opcode: u16::from_le_bytes(word(bytes, 4)),
            id: u64::from_le_bytes(word(bytes, 8)),
            meta_bytes: u32::from_le_bytes(word(bytes, 16)),
            payload_bytes: u32::from_le_bytes(word(bytes, 20)),
            too_long: u32::from_le_bytes(word(bytes, 24)),
        };
        let body = header.body_bytes();
        if body > body_bytes_max as u64 {
            return Err(FrameFault::TooLarge(body, body_bytes_max));
        }
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            kind: Kind::Reply,
            opcode: 0x1234,
            id: 0x0102_0304_0506_0708,
            meta_bytes: 5,
            payload_bytes: 70_000,
            too_long: 0,
        }
    }

    #[test]
    fn header_layout_never_changes() {
        let bytes = header().encode();
        assert_eq!(
            bytes[..28],
            [
                b'P', b'V', 1, 1, 0x34, 0x12, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 5, 0, 0, 0, 0x70, 0x11,
                1, 0, 0, 0, 0, 0
            ]
        );
        assert_eq!(Header::decode(&bytes, 1 << 20), Ok(header()));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = header().encode();
        for bit in 0..HEADER_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&bad, 1 << 20).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn lengths_that_overflow_together_are_over_the_limit() {
        let huge = Header {
            meta_bytes: u32::MAX,
            payload_bytes: u32::MAX,
            ..header()
        };
        assert_eq!(
            Header::decode(&huge.encode(), 1 << 20),
            Err(FrameFault::TooLarge(2 * u64::from(u32::MAX), 1 << 20))
        );
    }
}
