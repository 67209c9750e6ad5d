//! Certificates in line: what certifies the bytes of one write to an open frame.
//!
//! ```text
//!  4096                                                                       end of the file
//!  | bytes without certificates | certificate | its bytes | certificate | its bytes | …
//! ```
//!
//! A certificate and its bytes are one write to the file, behind all that was written before. The
//! header of the frame says where the first one stands ([`FrameHeader::in_line_from`]). A
//! certificate names the checksum of the one before it. So what an earlier, failed write left
//! behind the end is never taken for a part of the frame.
//!
//! Everything here is a pure function or a plain value.

use crate::frame::{FRAME_DATA_OFFSET, FRAME_SLOT_BYTES, FrameHeader, LastWrite};
use crate::varint::Fields;
use pluvio_units::{ReplicationEpoch, crc32c};

/// Bytes of a certificate: less than a sector, so it lies in at most two of them.
pub const CERTIFICATE_BYTES: usize = 48;
const _: () = assert!(CERTIFICATE_BYTES <= FRAME_SLOT_BYTES);

/// Neither end is zero. So each part of a certificate that a border of sectors cuts off has a byte
/// that is not zero. A part that was not written is known by its zeros.
const MAGIC: [u8; 4] = *b"PVct";
const END: [u8; 4] = *b"tcVP";
/// Where the checksum of the certificate stands; it covers all before it.
const CRC_AT: usize = CERTIFICATE_BYTES - 8;

/// What a certificate says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Certificate {
    /// Where in the segment its bytes begin.
    pub from: u32,
    /// Number of its bytes. They may be none.
    pub length: u32,
    /// Bytes of the segment that are valid from here on, as [`FrameHeader::certified_length`].
    pub certified_length: u32,
    /// As in the header.
    pub replication_epoch: ReplicationEpoch,
    /// The start of the machine in which this was written without a sync; 0 when it was synced.
    pub boot: u64,
    /// Replicas that the master needed for an acknowledgement.
    pub needed: u8,
    /// Sectors of the file into which its bytes put anything but zeros.
    sectors: u16,
    /// Checksum of its bytes.
    content: u32,
}

/// The content of a new certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Certified {
    /// As [`Certificate::certified_length`].
    pub length: u32,
    /// As [`Certificate::replication_epoch`].
    pub epoch: ReplicationEpoch,
    /// As [`Certificate::boot`].
    pub boot: u64,
    /// As [`Certificate::needed`].
    pub needed: u8,
}

/// A place in a frame where a certificate may stand, and what it has to match.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CertificatePlace {
    /// Cluster, server and segment of the frame.
    ids: [u8; 24],
    /// Bytes of the file before it, without the header area.
    pub at: u32,
    /// Bytes of the segment that stand before it.
    pub written: u32,
    /// Checksum of the certificate before it.
    chain: u32,
}

/// What stands at a [`CertificatePlace`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtPlace {
    /// The end of the file.
    End,
    /// A certificate and all of its bytes; the next one stands at that place.
    Whole(Certificate, CertificatePlace),
    /// A write that ends with the file.
    Short,
    /// A write that lacks sectors, which are missing or zeros.
    Torn,
    /// Something else, with nothing missing.
    Damaged,
}

impl CertificatePlace {
    /// Where the first certificate of a frame stands; `None` when it has none.
    #[must_use]
    pub fn first(header: &FrameHeader) -> Option<Self> {
        let at = header.in_line_from?;
        let mut ids = [0; 24];
        ids[..8].copy_from_slice(&header.cluster.0.to_le_bytes());
        ids[8..16].copy_from_slice(&header.server.0.to_le_bytes());
        ids[16..].copy_from_slice(&header.segment.0.to_le_bytes());
        let place = Self {
            ids,
            at,
            written: at,
            chain: 0,
        };
        Some(place)
    }

    /// The certificate of `data` at this place, and the place behind them. `data` and all before it
    /// have less than 2^31 bytes in the file.
    #[must_use]
    pub fn certify(&self, says: Certified, data: &[u8]) -> ([u8; CERTIFICATE_BYTES], Self) {
        let behind = self.at + CERTIFICATE_BYTES as u32;
        let length = u32::try_from(data.len()).expect("a write is shorter than 2^32 bytes");
        let mut bytes = [0; CERTIFICATE_BYTES];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&MAGIC);
        put(&self.written.to_le_bytes());
        put(&length.to_le_bytes());
        put(&says.length.to_le_bytes());
        put(&says.epoch.0.to_le_bytes());
        put(&says.boot.to_le_bytes());
        put(&LastWrite::new(behind, data).sectors.to_le_bytes());
        put(&[says.needed, 0]);
        put(&crc32c(&[data]).to_le_bytes());
        put(&self.chain.to_le_bytes());
        let crc = self.crc(&bytes);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        bytes[CRC_AT + 4..].copy_from_slice(&END);
        (bytes, self.behind(length, crc))
    }

    fn crc(&self, certificate: &[u8; CERTIFICATE_BYTES]) -> u32 {
        crc32c(&[&self.ids, &certificate[..CRC_AT]])
    }

    fn behind(&self, length: u32, chain: u32) -> Self {
        Self {
            ids: self.ids,
            at: self.at + CERTIFICATE_BYTES as u32 + length,
            written: self.written + length,
            chain,
        }
    }

    /// The certificate that stands here, if one does, and the place behind its bytes. Its bytes are
    /// not looked at, and may not be there. `area` is the file behind its header area.
    #[must_use]
    pub fn certificate(&self, area: &[u8]) -> Option<(Certificate, Self)> {
        let bytes = area.get(self.at as usize..)?.first_chunk()?;
        let (certificate, chain) = self.decode(bytes)?;
        if certificate.from != self.written || chain != self.chain {
            return None;
        }
        // Numbers that no frame has are damage, in spite of the checksum.
        let end = self.at.checked_add(CERTIFICATE_BYTES as u32)?;
        end.checked_add(certificate.length)?;
        if certificate.certified_length > certificate.from + certificate.length {
            return None;
        }
        let crc = u32::from_le_bytes(*bytes[CRC_AT..].first_chunk()?);
        Some((certificate, self.behind(certificate.length, crc)))
    }

    /// A certificate of this frame, wherever it stands, and the checksum of the one before it.
    fn decode(&self, bytes: &[u8; CERTIFICATE_BYTES]) -> Option<(Certificate, u32)> {
        if bytes[..MAGIC.len()] != MAGIC || bytes[CRC_AT + 4..] != END {
            return None;
        }
        if self.crc(bytes).to_le_bytes() != bytes[CRC_AT..CRC_AT + 4] {
            return None;
        }
        let mut fields = Fields::new(&bytes[MAGIC.len()..CRC_AT]);
        let (from, length, certified_length) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let replication_epoch = ReplicationEpoch(fields.u32()?);
        let boot = fields.u64()?;
        let sectors = u16::from_le_bytes([fields.u8()?, fields.u8()?]);
        let (needed, unused) = (fields.u8()?, fields.u8()?);
        let (content, chain) = (fields.u32()?, fields.u32()?);
        fields.end()?;
        let certificate = Certificate {
            from,
            length,
            certified_length,
            replication_epoch,
            boot,
            needed,
            sectors,
            content,
        };
        (unused == 0).then_some((certificate, chain))
    }

    /// What stands here. `area` is all of the file behind its header area.
    #[must_use]
    pub fn look(&self, area: &[u8]) -> AtPlace {
        let there = area.get(self.at as usize..).unwrap_or_default();
        if there.is_empty() {
            return AtPlace::End;
        }
        let Some((certificate, next)) = self.certificate(area) else {
            return match there.first_chunk::<CERTIFICATE_BYTES>() {
                None => AtPlace::Short,
                Some(bytes) if self.lacks_a_sector(bytes) => AtPlace::Torn,
                Some(_) => AtPlace::Damaged,
            };
        };
        let begin = self.at + CERTIFICATE_BYTES as u32;
        let Some(data) = area.get(begin as usize..next.at as usize) else {
            return AtPlace::Short;
        };
        if crc32c(&[data]) == certificate.content {
            return AtPlace::Whole(certificate, next);
        }
        match LastWrite::new(begin, data).sectors < certificate.sectors {
            true => AtPlace::Torn,
            false => AtPlace::Damaged,
        }
    }

    /// Whether a sector of what should be a certificate here was not written.
    fn lacks_a_sector(&self, bytes: &[u8; CERTIFICATE_BYTES]) -> bool {
        const { assert!(FRAME_DATA_OFFSET.is_multiple_of(FRAME_SLOT_BYTES)) };
        let first = FRAME_SLOT_BYTES - self.at as usize % FRAME_SLOT_BYTES;
        let (first, second) = bytes.split_at(first.min(bytes.len()));
        let is_missing = |part: &[u8]| !part.is_empty() && part.iter().all(|byte| *byte == 0);
        is_missing(first) || is_missing(second)
    }

    /// Whether a certificate of this frame stands anywhere behind this place: then the write here
    /// was complete once. Looks at every byte, so it is for damage only.
    #[must_use]
    pub fn is_followed(&self, area: &[u8]) -> bool {
        let behind = area.get(self.at as usize + 1..).unwrap_or_default();
        behind.windows(CERTIFICATE_BYTES).any(|bytes| {
            let bytes = bytes.first_chunk().expect("a window has its size");
            let found = self.decode(bytes);
            found.is_some_and(|(certificate, _)| certificate.from >= self.written)
        })
    }
}

/// Puts the bytes of a segment together that a frame holds: those without certificates, then those
/// of each certificate. `area` is the file behind its header area, `length` how many are wanted.
/// `None` when a certificate is missing or the file too short. The bytes themselves are not
/// compared with their checksums: entries carry their own.
pub fn segment_in_frame(
    header: &FrameHeader,
    area: &[u8],
    length: usize,
    mut put: impl FnMut(&[u8]),
) -> Option<()> {
    let Some(mut place) = CertificatePlace::first(header) else {
        put(area.get(..length)?);
        return Some(());
    };
    let raw = (place.at as usize).min(length);
    put(area.get(..raw)?);
    let mut left = length - raw;
    while left > 0 {
        let (_, next) = place.certificate(area)?;
        let begin = place.at as usize + CERTIFICATE_BYTES;
        let data = area.get(begin..next.at as usize)?;
        let data = &data[..data.len().min(left)];
        put(data);
        left -= data.len();
        place = next;
    }
    Some(())
}

/// The newest that a frame says of itself, and the bytes of its segment that count. `file` is the
/// whole file. For people and checkers: what a backup does with damage is its own decision.
///
/// # Errors
/// As [`newest_frame_header`](crate::newest_frame_header); `Truncated` when the bytes are not all
/// there.
pub fn read_frame(file: &[u8]) -> Result<(FrameHeader, Vec<u8>), crate::FrameError> {
    let mut header = crate::newest_frame_header(file)?;
    let area = file.get(FRAME_DATA_OFFSET..).unwrap_or_default();
    let mut place = CertificatePlace::first(&header).filter(|_| !header.closed);
    while let Some(here) = place.take() {
        if let AtPlace::Whole(certificate, next) = here.look(area) {
            header.certified_length = certificate.certified_length;
            header.replication_epoch = certificate.replication_epoch;
            header.boot = certificate.boot;
            header.needed = certificate.needed;
            place = Some(next);
        }
    }
    let length = header.certified_length as usize;
    let mut segment = Vec::new();
    segment_in_frame(&header, area, length, |bytes| {
        segment.extend_from_slice(bytes)
    })
    .ok_or(crate::FrameError::Truncated(file.len()))?;
    Ok((header, segment))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::SegmentKind;
    use pluvio_units::{ClusterId, LogId, SegmentId, ServerId};

    const RAW: u32 = 700;

    fn header() -> FrameHeader {
        FrameHeader {
            cluster: ClusterId(7),
            server: ServerId(8),
            segment: SegmentId(9),
            log: LogId(0),
            kind: SegmentKind::Head,
            closed: false,
            primary: true,
            replication_epoch: ReplicationEpoch(1),
            certified_length: RAW,
            sequence: 1,
            boot: 0,
            needed: 2,
            last_write: LastWrite::default(),
            in_line_from: Some(RAW),
            has_remains: false,
        }
    }

    fn says(length: u32) -> Certified {
        Certified {
            length,
            epoch: ReplicationEpoch(3),
            boot: 5,
            needed: 1,
        }
    }

    /// A frame's area with writes of these lengths, and the places of their certificates.
    fn area(lengths: &[usize]) -> (Vec<u8>, Vec<CertificatePlace>) {
        let mut area: Vec<u8> = (0..RAW).map(|i| i as u8 | 1).collect();
        let mut places = vec![CertificatePlace::first(&header()).expect("it is in line")];
        for length in lengths {
            let place = *places.last().expect("there is one");
            let data: Vec<u8> = (0..*length).map(|i| i as u8 | 1).collect();
            let end = place.written + *length as u32;
            let (certificate, next) = place.certify(says(end), &data);
            area.extend_from_slice(&certificate);
            area.extend_from_slice(&data);
            assert_eq!(area.len(), next.at as usize);
            places.push(next);
        }
        (area, places)
    }

    // shows: FORMAT-2
    #[test]
    fn certificates_come_back_with_their_bytes() {
        let lengths = [100, 0, 2_000, 1];
        let (area, places) = area(&lengths);
        for (place, length) in places.iter().zip(lengths) {
            let AtPlace::Whole(certificate, next) = place.look(&area) else {
                panic!("{place:?} holds one");
            };
            assert_eq!(certificate.from, place.written);
            assert_eq!(certificate.length as usize, length);
            assert_eq!(certificate.certified_length, next.written);
            assert_eq!((certificate.boot, certificate.needed), (5, 1));
            assert_eq!(certificate.replication_epoch, ReplicationEpoch(3));
            assert!(places.contains(&next));
        }
        assert_eq!(places[4].look(&area), AtPlace::End);
        let mut segment = Vec::new();
        let all = RAW as usize + 2_101;
        segment_in_frame(&header(), &area, all, |b| segment.extend_from_slice(b))
            .expect("all is there");
        assert_eq!(segment.len(), all);
        assert_eq!(segment[all - 1], 1);
        assert!(segment_in_frame(&header(), &area, all + 1, |_| ()).is_none());
    }

    // shows: BACKUP-12
    #[test]
    fn a_write_that_lacks_a_sector_is_told_from_one_that_has_rotted() {
        let (area, places) = area(&[100, 2_000]);
        let place = places[1];
        let begin = place.at as usize;
        for bit in (begin * 8..area.len() * 8).step_by(3) {
            let mut rotten = area.clone();
            rotten[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(place.look(&rotten), AtPlace::Damaged, "bit {bit}");
        }
        let mut from = begin;
        while from < area.len() {
            let end = area
                .len()
                .min(from / FRAME_SLOT_BYTES * FRAME_SLOT_BYTES + FRAME_SLOT_BYTES);
            let mut torn = area.clone();
            torn[from..end].fill(0);
            assert_eq!(place.look(&torn), AtPlace::Torn, "{from}..{end}");
            from = end;
        }
        for end in begin + 1..area.len() {
            let look = place.look(&area[..end]);
            assert_eq!(look, AtPlace::Short, "{end}");
        }
        assert_eq!(place.look(&area[..begin]), AtPlace::End);
    }

    /// Each place of a certificate within a sector, so that all ways to cut one in two are met.
    // shows: BACKUP-12
    #[test]
    fn a_certificate_of_which_a_part_was_not_written_is_torn_wherever_it_is_cut() {
        for length in 0..FRAME_SLOT_BYTES {
            let (area, places) = area(&[length, 30]);
            let place = places[1];
            let begin = place.at as usize;
            let border = begin.next_multiple_of(FRAME_SLOT_BYTES);
            if (begin + 1..begin + CERTIFICATE_BYTES).contains(&border) {
                for lost in [begin..border, border..area.len()] {
                    let mut torn = area.clone();
                    torn[lost.clone()].fill(0);
                    assert_eq!(place.look(&torn), AtPlace::Torn, "{lost:?}");
                }
            }
        }
    }

    #[test]
    fn what_an_earlier_write_left_is_no_part_of_the_frame() {
        let (before, places) = area(&[100, 200, 300]);
        // The write of 200 bytes was lost. Another one of the same length comes in its place.
        let mut area = before;
        let (certificate, next) = places[1].certify(says(places[2].written), &[9; 200]);
        let begin = places[1].at as usize;
        area[begin..begin + CERTIFICATE_BYTES].copy_from_slice(&certificate);
        area[begin + CERTIFICATE_BYTES..next.at as usize].fill(9);
        assert!(matches!(places[1].look(&area), AtPlace::Whole(..)));
        assert_eq!(next.look(&area), AtPlace::Damaged, "of the earlier write");
        assert!(places[1].is_followed(&area));
        assert!(!places[2].is_followed(&area));
        let other = FrameHeader {
            segment: SegmentId(1),
            ..header()
        };
        let foreign = CertificatePlace::first(&other).expect("it is in line");
        assert_eq!(foreign.look(&area), AtPlace::Damaged, "of another segment");
        assert!(!foreign.is_followed(&area));
    }

    // shows: FORMAT-1
    #[test]
    fn a_certificate_with_impossible_numbers_is_none() {
        let (mut area, places) = area(&[100]);
        let place = places[0];
        let begin = place.at as usize;
        for (at, number) in [(8, u32::MAX), (8, u32::MAX - 800), (12, RAW + 101)] {
            let kept = area.clone();
            area[begin + at..begin + at + 4].copy_from_slice(&number.to_le_bytes());
            let bytes = area[begin..].first_chunk().expect("it is there");
            let crc = place.crc(bytes);
            area[begin + CRC_AT..begin + CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
            let look = place.look(&area);
            assert!(
                matches!(look, AtPlace::Damaged | AtPlace::Short),
                "{look:?}"
            );
            area = kept;
        }
    }
}
