//! Bytes that nobody wrote, to everything that reads bytes (FORMAT-1, FORMAT-2). They are images of
//! segments with changed lengths, kinds, bodies and padding. Their checksums are right all the
//! same, so that the checks behind the checksum are met too.
//!
//! `PLUVIO_STEPS` says how many images (`cargo xtask long-tests`).

use pluvio_format::{
    Check, Completion, Encoded, Entry, EntryHead, EntryKind, FORMAT_VERSION, FRAME_SLOT_BYTES,
    FrameHeader, GraveList, Graves, LastWrite, LogDigest, Object, ObjectState, Parsed,
    SegmentHeader, SegmentIter, SegmentKind, TableStat, TableStats, Tombstone, newest_frame_header,
};
use pluvio_mutation::{Outcome, Output};
use pluvio_units::{
    ClientId, ClusterId, Deadline, KeyHash, LogId, ObjectVersion, ReplicationEpoch, SegmentId,
    SequenceNumber, ServerId, TableId, UnixMs, crc32c,
};

const SEGLET: usize = 256;

/// A small generator of numbers; the same seed gives the same run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Small numbers, and those at the ends of every width.
    fn number(&mut self) -> u64 {
        let bits = self.below(65) as u32;
        let end = 1u64.checked_shl(bits).unwrap_or(0);
        match self.below(4) {
            0 => end,
            1 => end.wrapping_sub(1),
            2 => self.below(5) as u64,
            _ => self.next() & end.wrapping_sub(1),
        }
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let len = self.below(most + 1);
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Prints the bytes when the test fails.
struct Witness<'a> {
    step: u64,
    bytes: &'a [u8],
}

impl Drop for Witness<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("step {}, {:02x?}", self.step, self.bytes);
        }
    }
}

/// A group of one to three entries of any kind.
fn group(random: &mut Random) -> Vec<Vec<u8>> {
    let entries = 1 + random.below(3);
    (0..entries)
        .map(|i| entry(random, i + 1 < entries))
        .collect()
}

fn entry(random: &mut Random, group_continues: bool) -> Vec<u8> {
    let (key, value) = (random.bytes(30), random.bytes(100));
    let mut ids: Vec<u64> = (0..random.below(6))
        .map(|_| random.number().max(1))
        .collect();
    ids.sort_unstable();
    ids.dedup();
    let ids: Vec<SegmentId> = ids.into_iter().map(SegmentId).collect();
    let (list, _) = GraveList::of(&ids).expect("ascending");
    let (table, version) = (
        TableId(random.number()),
        ObjectVersion(random.number().max(1)),
    );
    let timestamp_s = random.number() as u32;
    let state = match random.below(4) {
        0 => ObjectState::Prepared,
        1 => ObjectState::Restored,
        _ => ObjectState::Plain,
    };
    let entry = match random.below(8) {
        0 | 1 => Entry::Object(Object {
            table,
            version,
            timestamp_s,
            graves: if random.below(2) == 0 {
                list.graves()
            } else {
                Graves::NONE
            },
            deadline: Deadline::new(random.number()).filter(|_| state != ObjectState::Prepared),
            state,
            key: &key,
            value: &value,
        }),
        2 => Entry::Tombstone(Tombstone {
            table,
            version,
            segment: SegmentId(random.number()),
            timestamp_s,
            key: &key,
        }),
        3 => Entry::SegmentHeader(SegmentHeader {
            format_version: FORMAT_VERSION,
            cluster: ClusterId(random.number()),
            server: ServerId(random.number()),
            log: LogId(random.number() as u16),
            segment: SegmentId(random.number()),
            kind: SegmentKind::Head,
            created_s: timestamp_s,
        }),
        4 => Entry::LogDigest(LogDigest {
            log: LogId(random.number() as u16),
            logs_of_master: random.number() as u16,
            segments: ids.clone(),
        }),
        5 => Entry::TableStats(TableStats::of(vec![TableStat {
            table,
            live_bytes: random.number(),
            live_entries: random.number(),
        }])),
        6 => Entry::Horizon(UnixMs(random.number())),
        _ => Entry::Completion(Completion {
            client: ClientId(random.number().max(1)),
            sequence: SequenceNumber(random.number() | 1),
            acknowledged_below: SequenceNumber(0),
            retry_s: timestamp_s,
            table,
            hash: KeyHash(random.number()),
            outcome: Outcome::Written {
                version,
                replaced: version,
                output: Output::Integer(random.number() as i64),
            },
        }),
    };
    Encoded::new(&entry, group_continues)
        .expect("small and in order")
        .to_vec()
}

/// An image as the log lays it out, and where its entries begin.
fn image(random: &mut Random) -> (Vec<u8>, Vec<usize>) {
    let (mut image, mut starts) = (Vec::new(), Vec::new());
    for _ in 0..1 + random.below(6) {
        for bytes in group(random) {
            let left = SEGLET - image.len() % SEGLET;
            if bytes.len() > left && bytes.len() <= SEGLET / 2 {
                image.resize(image.len() + left, 0);
            }
            starts.push(image.len());
            image.extend_from_slice(&bytes);
        }
    }
    (image, starts)
}

/// Changes something anywhere, with a liking for ends of ranges.
fn damage(random: &mut Random, image: &mut Vec<u8>) {
    for _ in 0..1 + random.below(3) {
        if image.is_empty() {
            return;
        }
        let at = random.below(image.len());
        match random.below(8) {
            0 => image[at] ^= 1 << random.below(8),
            1 => image[at] = [0, 1, 0x7f, 0x80, 0xff, 0x41, 0x81, 0xc1][random.below(8)],
            2 => image.truncate(at),
            3 => {
                let upto = (at + 1 + random.below(12)).min(image.len());
                image[at..upto].fill([0, 0xff][random.below(2)]);
            }
            4 => {
                let piece = random.bytes(12);
                image.splice(at..at, piece);
            }
            5 => {
                let upto = (at + random.below(12)).min(image.len());
                image.drain(at..upto);
            }
            _ => {
                let from = random.below(image.len());
                let len = random.below(40).min(image.len() - at.max(from));
                image.copy_within(from..from + len, at);
            }
        }
    }
}

/// Puts the right checksum into the entry at each of these places that has a header and is all
/// there.
fn certify(image: &mut [u8], starts: &[usize]) {
    for &start in starts {
        let Some(bytes) = image.get_mut(start..) else {
            continue;
        };
        let Ok(head) = EntryHead::read(bytes) else {
            continue;
        };
        let Some(bytes) = bytes.get_mut(..head.total_len()) else {
            continue;
        };
        let (header, body) = bytes.split_at_mut(head.header_len);
        let (covered, crc) = header.split_at_mut(head.header_len - size_of::<u32>());
        crc.copy_from_slice(&crc32c(&[covered, body]).to_le_bytes());
    }
}

/// Everything that reads an entry, at the start of `bytes`.
fn read_entry(bytes: &[u8]) {
    let quick = Object::lens(bytes).and_then(|lens| {
        let body = bytes.get(lens.header_len..lens.total_len)?;
        Object::of_body(body, &lens)
    });
    if let Err(Some(more)) = Object::front(bytes) {
        assert!(
            more > bytes.len(),
            "who asks again needs more than there was"
        );
    }
    for check in [Check::Structure, Check::Checksum] {
        let Ok(parsed) = Parsed::read(bytes, check) else {
            continue;
        };
        let (whole, head) = (&bytes[..parsed.head.total_len()], parsed.head);
        assert_eq!(EntryHead::read(bytes), Ok(head));
        // What is accepted has one form (FORMAT-2).
        let again = Encoded::new(&parsed.entry, head.group_continues);
        let mut again = again.expect("what was read can be written").to_vec();
        if check == Check::Structure {
            let crc = head.header_len - size_of::<u32>()..head.header_len;
            again[crc.clone()].copy_from_slice(&whole[crc]);
        }
        // Sums of versions 1 and 2 are written in another form.
        if again.len() == whole.len() || parsed.entry.kind() != EntryKind::Completion {
            assert_eq!(again, whole);
        }
        if let Entry::Object(object) = parsed.entry {
            let is_plain = object.state == ObjectState::Plain;
            let short = Some(object).filter(|_| is_plain);
            assert_eq!(
                quick, short,
                "the short way reads plain objects, and the same"
            );
            if is_plain && object.graves.is_empty() && object.deadline.is_none() {
                let front = Object::front(bytes).expect("an object with neither");
                assert_eq!((front.key, front.version), (object.key, object.version));
            }
        }
    }
}

/// Walks an image; gives how many entries there were before its end, or before what is wrong with
/// it.
fn walk(image: &[u8]) -> usize {
    let mut entries = 0;
    let mut end = 0;
    for group in SegmentIter::new(image, SEGLET) {
        let Ok(group) = group else {
            break;
        };
        assert!(end <= group.start() && group.start() < group.end());
        assert!(group.end() <= image.len());
        end = group.end();
        let found: Vec<usize> = group.entries().map(|(at, _)| at).collect();
        assert_eq!(found.len(), group.len());
        assert!(found.is_sorted_by(|a, b| a < b));
        entries += found.len();
    }
    entries
}

/// What the environment gives, to see other images.
fn seed() -> u64 {
    let seed = match std::env::var("PLUVIO_SEED") {
        Ok(seed) => seed.parse().expect("PLUVIO_SEED is a number"),
        Err(_) => 0,
    };
    println!("PLUVIO_SEED={seed}");
    seed << 32
}

fn steps() -> u64 {
    match std::env::var("PLUVIO_STEPS") {
        Ok(steps) => steps.parse().expect("PLUVIO_STEPS is a number of steps"),
        Err(_) => 40_000,
    }
}

// shows: FORMAT-1
#[test]
fn damaged_images_with_right_checksums_are_errors_or_entries_never_panics() {
    let mut random = Random(0x5eed_0001 ^ seed());
    let (mut reached, mut all) = (0, 0);
    for step in 0..steps() {
        let (mut image, mut starts) = image(&mut random);
        let written = walk(&image);
        if let Some(Err(why)) = SegmentIter::new(&image, SEGLET).find(Result::is_err) {
            panic!("step {step}: {why} of {image:02x?}");
        }
        assert_eq!(written, starts.len());
        let written_by_nobody = random.below(8) == 0;
        if written_by_nobody {
            image = random.bytes(400);
            starts = (0..image.len()).collect();
        } else {
            damage(&mut random, &mut image);
        }
        certify(&mut image, &starts);
        let _witness = Witness {
            step,
            bytes: &image,
        };
        let read = walk(&image);
        if !written_by_nobody {
            all += starts.len();
            reached += read;
        }
        for &start in &starts {
            read_entry(image.get(start..).unwrap_or(&[]));
        }
    }
    assert!(
        reached * 4 > all,
        "garbage came past the checksums: {reached} of {all} entries were read"
    );
}

// shows: FORMAT-1
#[test]
fn damaged_frame_headers_with_right_checksums_are_errors_or_headers_never_panics() {
    let mut random = Random(0x5eed_0002 ^ seed());
    let mut read = 0;
    for step in 0..steps() / 4 {
        let header = FrameHeader {
            cluster: ClusterId(random.number()),
            server: ServerId(random.number()),
            segment: SegmentId(random.number()),
            log: LogId(random.number() as u16),
            kind: SegmentKind::Side,
            closed: random.below(2) == 0,
            primary: random.below(2) == 0,
            replication_epoch: ReplicationEpoch(random.number() as u32),
            certified_length: random.number() as u32,
            sequence: random.number() >> 1,
            boot: random.number(),
            needed: random.number() as u8,
            last_write: LastWrite {
                from: random.number() as u32,
                sectors: random.number() as u16,
            },
            in_line_from: (random.below(2) == 0).then(|| random.number() as u32),
            has_remains: random.below(2) == 0,
        };
        let mut area = header.encode().to_vec();
        assert_eq!(FrameHeader::decode(&area), Ok(header));
        for _ in 0..random.below(4) {
            // The fields are at the front.
            let at = random.below(76);
            area[at] = random.next() as u8;
        }
        let crc_at = FRAME_SLOT_BYTES - size_of::<u32>();
        let crc = crc32c(&[&area[..crc_at]]);
        area[crc_at..].copy_from_slice(&crc.to_le_bytes());
        area.extend((0..FRAME_SLOT_BYTES).map(|_| random.next() as u8));
        let _witness = Witness { step, bytes: &area };
        if let Ok(found) = newest_frame_header(&area) {
            assert_eq!(FrameHeader::decode(&found.encode()), Ok(found));
            assert!(found.sequence < u64::MAX, "there is a next one");
            read += 1;
        }
    }
    assert!(read * 5 > steps() / 4, "{read} were read");
}
