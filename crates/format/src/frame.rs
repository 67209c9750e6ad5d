//! The header of a frame: the place of one replica on a backup's disk.
//!
//! A frame is 4096 bytes of header area followed by the bytes of the segment. The header has two
//! slots of 512 bytes, used in turn. A slot is one sector, which every disk writes whole. A torn
//! write destroys the slot being written, never the one before.

use crate::entry::SegmentKind;
use crate::varint::Fields;
use crate::{FORMAT_VERSION, FORMAT_VERSION_MIN};
use pluvio_units::{ClusterId, LogId, ReplicationEpoch, SegmentId, ServerId, crc32c};

/// Bytes of one slot.
pub const FRAME_SLOT_BYTES: usize = 512;
/// Number of slots; slot *i* begins at `i * FRAME_SLOT_BYTES`.
pub const FRAME_SLOTS: usize = 2;
/// Where the segment's bytes begin in a frame: a page, so that they can be read by direct I/O.
pub const FRAME_DATA_OFFSET: usize = 4096;

/// The largest sequence number: no frame is written to so often, and there is always a next one.
const SEQUENCE_MAX: u64 = u64::MAX >> 1;

const MAGIC: [u8; 8] = *b"PLUVIOFR";
/// Bytes of a slot in use, without the checksum.
const FIELDS_BYTES: usize = 8 + 4 + 8 + 8 + 8 + 2 + 1 + 1 + 4 + 4 + 8 + 8 + 1 + 4 + 2 + 4;

const CLOSED: u8 = 1;
const PRIMARY: u8 = 2;
const IN_LINE: u8 = 8;
const HAS_REMAINS: u8 = 16;

/// The knowledge that a backup has of the replica in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// The cluster of the master.
    pub cluster: ClusterId,
    /// The master whose segment this is.
    pub server: ServerId,
    /// The segment.
    pub segment: SegmentId,
    /// Its log.
    pub log: LogId,
    /// Head or side segment.
    pub kind: SegmentKind,
    /// The master will write no more to it.
    pub closed: bool,
    /// The replica that recovery reads first.
    pub primary: bool,
    /// Fences stale replicas of an open segment [RAMCloud §8].
    pub replication_epoch: ReplicationEpoch,
    /// Bytes of the segment that are valid. Bytes behind it are to be ignored; so a write counts
    /// whole or not at all. In an open frame certificates in line may say more.
    pub certified_length: u32,
    /// Grows by one with every header written to this frame; the larger one is the newer. Below
    /// 2^63.
    pub sequence: u64,
    /// The start of the machine in which this was written without a sync. It is 0 when it was
    /// synced, and in frames of programs that did not write it. After another start the newest
    /// writes to the frame may be missing.
    pub boot: u64,
    /// Replicas that the master needed for an acknowledgement; 0 in frames of programs that did not
    /// write it.
    pub needed: u8,
    /// The bytes that the write of this header brought. Only frames of versions before 4 say it.
    pub last_write: LastWrite,
    /// From where in the segment on the bytes have certificates in line; `None`: nowhere
    /// ([`crate::CertificatePlace`]).
    pub in_line_from: Option<u32>,
    /// A write failed in the middle. Something of it may lie behind the certified bytes, where
    /// zeros are missing sectors otherwise.
    pub has_remains: bool,
}

/// The range that a write added to the bytes of a frame that count. It tells a write that a loss of
/// power cut off from one that has rotted since. A device writes sectors whole. Sectors of an added
/// range that it has not written are missing, or read as zeros.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LastWrite {
    /// Where in the segment it begins; 0, with no sectors, in frames of programs that did not write
    /// it.
    pub from: u32,
    /// Into how many sectors it put anything but zeros.
    pub sectors: u16,
}

impl LastWrite {
    /// The write that put `added` at byte `from` of the segment, which has not more than 2^16
    /// sectors.
    #[must_use]
    pub fn new(from: u32, added: &[u8]) -> Self {
        // The bytes of a segment begin at the beginning of a sector of their file.
        const { assert!(FRAME_DATA_OFFSET.is_multiple_of(FRAME_SLOT_BYTES)) };
        let first = FRAME_SLOT_BYTES - from as usize % FRAME_SLOT_BYTES;
        let (first, rest) = added.split_at(first.min(added.len()));
        let sectors = std::iter::once(first).chain(rest.chunks(FRAME_SLOT_BYTES));
        let filled = sectors.filter(|sector| sector.iter().any(|byte| *byte != 0));
        Self {
            from,
            sectors: u16::try_from(filled.count()).unwrap_or(u16::MAX),
        }
    }

    /// Whether a part of it never reached the device, given the bytes of the segment that are there
    /// now. Always, when nothing is known of it.
    #[must_use]
    pub fn is_torn(&self, segment: &[u8]) -> bool {
        let there = segment.get(self.from as usize..).unwrap_or_default();
        *self == Self::default() || Self::new(self.from, there).sectors < self.sectors
    }
}

/// Why a slot holds no header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// Fewer bytes than a slot.
    #[error("a frame header has {FRAME_SLOT_BYTES} bytes, here are {0}")]
    Truncated(usize),
    /// Never written, or something else.
    #[error("no frame header here")]
    BadMagic,
    /// Written by another version of the program.
    #[error(
        "the frame has format version {0}, this program reads {FORMAT_VERSION_MIN} to {FORMAT_VERSION}: use the program that wrote it, or a newer one"
    )]
    BadVersion(u32),
    /// Torn or rotten.
    #[error("the checksum of a frame header is wrong")]
    BadChecksum,
    /// The checksum is right but a field has an impossible value.
    #[error("a field of a frame header has an impossible value")]
    BadField,
}

impl FrameHeader {
    /// The slot where a header with this sequence number belongs.
    #[must_use]
    pub fn slot(&self) -> usize {
        (self.sequence % FRAME_SLOTS as u64) as usize
    }

    /// The bytes of the slot.
    #[must_use]
    pub fn encode(&self) -> [u8; FRAME_SLOT_BYTES] {
        let mut fields = Vec::with_capacity(FIELDS_BYTES);
        fields.extend_from_slice(&MAGIC);
        fields.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        fields.extend_from_slice(&self.cluster.0.to_le_bytes());
        fields.extend_from_slice(&self.server.0.to_le_bytes());
        fields.extend_from_slice(&self.segment.0.to_le_bytes());
        fields.extend_from_slice(&self.log.0.to_le_bytes());
        fields.push(self.kind.code());
        let flag = |is: bool, bit: u8| if is { bit } else { 0 };
        fields.push(
            flag(self.closed, CLOSED)
                | flag(self.primary, PRIMARY)
                | flag(self.in_line_from.is_some(), IN_LINE)
                | flag(self.has_remains, HAS_REMAINS),
        );
        fields.extend_from_slice(&self.replication_epoch.0.to_le_bytes());
        fields.extend_from_slice(&self.certified_length.to_le_bytes());
        fields.extend_from_slice(&self.sequence.to_le_bytes());
        fields.extend_from_slice(&self.boot.to_le_bytes());
        fields.push(self.needed);
        fields.extend_from_slice(&self.last_write.from.to_le_bytes());
        fields.extend_from_slice(&self.last_write.sectors.to_le_bytes());
        fields.extend_from_slice(&self.in_line_from.unwrap_or(0).to_le_bytes());
        let mut slot = [0; FRAME_SLOT_BYTES];
        slot[..FIELDS_BYTES].copy_from_slice(&fields);
        let crc = crc32c(&[&slot[..FRAME_SLOT_BYTES - 4]]);
        slot[FRAME_SLOT_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        slot
    }

    /// Reads one slot.
    ///
    /// # Errors
    /// See [`FrameError`]. Not retryable.
    pub fn decode(slot: &[u8]) -> Result<Self, FrameError> {
        let slot: &[u8; FRAME_SLOT_BYTES] = slot
            .first_chunk()
            .ok_or(FrameError::Truncated(slot.len()))?;
        let (content, crc) = slot.split_at(FRAME_SLOT_BYTES - 4);
        if content[..MAGIC.len()] != MAGIC {
            return Err(FrameError::BadMagic);
        }
        if crc32c(&[content]).to_le_bytes() != crc {
            return Err(FrameError::BadChecksum);
        }
        let mut fields = Fields::new(&content[MAGIC.len()..FIELDS_BYTES]);
        let version = fields.u32().ok_or(FrameError::BadField)?;
        if !(FORMAT_VERSION_MIN..=FORMAT_VERSION).contains(&version) {
            return Err(FrameError::BadVersion(version));
        }
        Self::decode_fields(version, fields).ok_or(FrameError::BadField)
    }

    fn decode_fields(version: u32, mut fields: Fields<'_>) -> Option<Self> {
        let cluster = ClusterId(fields.u64()?);
        let server = ServerId(fields.u64()?);
        let segment = SegmentId(fields.u64()?);
        let log = LogId(u16::from_le_bytes([fields.u8()?, fields.u8()?]));
        let kind = SegmentKind::from_code(fields.u8()?)?;
        let flags = fields.u8()?;
        let known = match version {
            ..4 => CLOSED | PRIMARY,
            4.. => CLOSED | PRIMARY | IN_LINE | HAS_REMAINS,
        };
        if flags & !known != 0 {
            return None;
        }
        let mut header = Self {
            cluster,
            server,
            segment,
            log,
            kind,
            closed: flags & CLOSED != 0,
            primary: flags & PRIMARY != 0,
            replication_epoch: ReplicationEpoch(fields.u32()?),
            certified_length: fields.u32()?,
            sequence: fields.u64()?,
            boot: fields.u64()?,
            needed: fields.u8()?,
            last_write: LastWrite {
                from: fields.u32()?,
                sectors: u16::from_le_bytes([fields.u8()?, fields.u8()?]),
            },
            in_line_from: None,
            has_remains: flags & HAS_REMAINS != 0,
        };
        let in_line_from = fields.u32()?;
        fields.end()?;
        if flags & IN_LINE != 0 {
            header.in_line_from = Some(in_line_from);
        } else if in_line_from != 0 {
            return None;
        }
        (header.sequence <= SEQUENCE_MAX).then_some(header)
    }
}

/// The newer of the valid headers in a frame's header area (`FRAME_SLOTS` slots or more bytes).
///
/// # Errors
/// When no slot is valid: the error of the slot that got furthest (`BadMagic` only when neither
/// was ever written).
pub fn newest_frame_header(area: &[u8]) -> Result<FrameHeader, FrameError> {
    if area.len() < FRAME_SLOTS * FRAME_SLOT_BYTES {
        return Err(FrameError::Truncated(area.len()));
    }
    let slots = area.chunks_exact(FRAME_SLOT_BYTES).take(FRAME_SLOTS);
    let mut newest: Result<FrameHeader, FrameError> = Err(FrameError::BadMagic);
    for slot in slots {
        newest = match (newest, FrameHeader::decode(slot)) {
            (Ok(a), Ok(b)) => Ok(if b.sequence > a.sequence { b } else { a }),
            (Ok(a), Err(_)) => Ok(a),
            (Err(_), Ok(b)) => Ok(b),
            (Err(a), Err(FrameError::BadMagic)) => Err(a),
            (Err(_), Err(b)) => Err(b),
        };
    }
    newest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(sequence: u64) -> FrameHeader {
        FrameHeader {
            cluster: ClusterId(0x0102_0304_0506_0708),
            server: ServerId(9),
            segment: SegmentId(77),
            log: LogId(0x1234),
            kind: SegmentKind::Side,
            closed: true,
            primary: false,
            replication_epoch: ReplicationEpoch(3),
            certified_length: 8 << 20,
            sequence,
            boot: 0x1122_3344_5566_7788,
            needed: 2,
            last_write: LastWrite {
                from: 0x0a0b_0c0d,
                sectors: 0x0e0f,
            },
            in_line_from: Some(0x0102_0304),
            has_remains: true,
        }
    }

    #[test]
    fn a_header_comes_back_and_no_flipped_bit_passes() {
        let bytes = header(5).encode();
        assert_eq!(FrameHeader::decode(&bytes), Ok(header(5)));
        for bit in 0..bytes.len() * 8 {
            let mut rotten = bytes;
            rotten[bit / 8] ^= 1 << (bit % 8);
            assert!(FrameHeader::decode(&rotten).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn the_newer_valid_slot_wins_and_a_torn_one_is_passed_over() {
        let mut area = vec![0u8; FRAME_DATA_OFFSET];
        assert_eq!(newest_frame_header(&area), Err(FrameError::BadMagic));
        for sequence in 1..6 {
            let at = header(sequence).slot() * FRAME_SLOT_BYTES;
            area[at..at + FRAME_SLOT_BYTES].copy_from_slice(&header(sequence).encode());
            assert_eq!(newest_frame_header(&area), Ok(header(sequence)));
        }
        let newest = header(5).slot() * FRAME_SLOT_BYTES;
        area[newest + 100] ^= 1;
        assert_eq!(newest_frame_header(&area), Ok(header(4)));
        area[header(4).slot() * FRAME_SLOT_BYTES + 9] ^= 1;
        assert_eq!(newest_frame_header(&area), Err(FrameError::BadChecksum));
    }

    // shows: BACKUP-12
    #[test]
    fn a_write_that_lacks_a_sector_is_torn_and_one_with_a_flipped_bit_is_not() {
        // Ends inside of sectors, and one sector that holds nothing but zeros.
        let mut segment = vec![7; 5_000];
        segment[1_024..1_536].fill(0);
        let from = 500;
        let write = LastWrite::new(from, &segment[from as usize..]);
        assert_eq!(write.sectors, 9, "of 10");
        assert!(!write.is_torn(&segment));
        for bit in (from as usize * 8..segment.len() * 8).step_by(7) {
            let mut rotten = segment.clone();
            rotten[bit / 8] ^= 1 << (bit % 8);
            assert!(!write.is_torn(&rotten), "bit {bit}");
        }
        for sector in [500..512, 512..1_024, 4_608..5_000] {
            let mut torn = segment.clone();
            torn[sector.clone()].fill(0);
            assert!(write.is_torn(&torn), "{sector:?}");
        }
        assert!(write.is_torn(&segment[..4_608]), "a short file");
        assert!(write.is_torn(&segment[..100]), "a very short file");
        let before = LastWrite::default();
        assert!(before.is_torn(&segment), "nobody knows");
        let nothing = LastWrite::new(5_000, &[]);
        assert!(!nothing.is_torn(&segment), "it added nothing");
    }

    #[test]
    fn older_versions_are_read_and_others_are_named() {
        let before = FrameHeader {
            in_line_from: None,
            has_remains: false,
            ..header(1)
        };
        let of_version = |version: u8| {
            let mut bytes = before.encode();
            bytes[8] = version;
            let crc = crc32c(&[&bytes[..FRAME_SLOT_BYTES - 4]]);
            bytes[FRAME_SLOT_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
            FrameHeader::decode(&bytes)
        };
        for version in 1..=6 {
            assert_eq!(of_version(version), Ok(before), "{version}");
        }
        for version in [0, 7, 99] {
            let error = of_version(version).unwrap_err();
            assert_eq!(error, FrameError::BadVersion(version.into()));
            let words = format!("has format version {version}, this program reads 1 to 6: use ");
            assert!(error.to_string().contains(&words), "{error}");
        }
    }

    /// Frames of those versions have no certificates in line.
    #[test]
    fn flags_of_version_4_are_damage_in_earlier_ones() {
        let mut bytes = header(1).encode();
        bytes[8] = 3;
        let crc = crc32c(&[&bytes[..FRAME_SLOT_BYTES - 4]]);
        bytes[FRAME_SLOT_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(FrameHeader::decode(&bytes), Err(FrameError::BadField));
    }

    #[test]
    fn a_sequence_number_that_nobody_reaches_is_damage() {
        let of = |sequence| FrameHeader::decode(&header(sequence).encode());
        assert_eq!(of(SEQUENCE_MAX), Ok(header(SEQUENCE_MAX)));
        for sequence in [SEQUENCE_MAX + 1, u64::MAX - 1, u64::MAX] {
            assert_eq!(of(sequence), Err(FrameError::BadField));
        }
    }

    proptest! {
        // shows: FORMAT-1
        #[test]
        fn garbage_is_an_error_not_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..1200)) {
            prop_assert!(FrameHeader::decode(&bytes).is_err());
            prop_assert!(newest_frame_header(&bytes).is_err());
        }
    }
}
