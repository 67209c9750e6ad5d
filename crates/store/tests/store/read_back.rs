//! Segments that a sink did not keep as they were: whatever is in them, reading back gives objects
//! or an error. Their checksums are right, so that what lies behind the checksum is met too.
//!
//! `PLUVIO_STEPS` says how many sets of segments (`cargo xtask long-tests`).

use pluvio_format::{
    Encoded, Entry, EntryHead, FORMAT_VERSION, Graves, LogDigest, Object, ObjectState,
    SegmentHeader, SegmentKind, Tombstone,
};
use pluvio_store::{Kept, KeptSegment, LogId, ReadBackError, SegmentId, TableId, read_back};
use pluvio_units::{ClusterId, ObjectVersion, ServerId, crc32c};

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
}

/// A segment, and where its entries begin.
struct Segment {
    kept: KeptSegment,
    starts: Vec<usize>,
}

impl Segment {
    fn new(closed: bool) -> Self {
        Self {
            kept: KeptSegment {
                bytes: Vec::new(),
                closed,
            },
            starts: Vec::new(),
        }
    }

    fn put(&mut self, entry: &Entry<'_>, group_continues: bool) {
        self.starts.push(self.kept.bytes.len());
        let encoded = Encoded::new(entry, group_continues).unwrap();
        self.kept.bytes.extend(encoded.to_vec());
    }

    /// Puts the right checksum into each entry that has a header and is all there.
    fn certify(&mut self) {
        for &start in &self.starts {
            let Some(bytes) = self.kept.bytes.get_mut(start..) else {
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
}

fn header(log: u16, segment: u64, kind: SegmentKind) -> Entry<'static> {
    Entry::SegmentHeader(SegmentHeader {
        format_version: FORMAT_VERSION,
        cluster: ClusterId(0),
        server: ServerId(0),
        log: LogId(log),
        segment: SegmentId(segment),
        kind,
        created_s: 1,
    })
}

/// Two logs with three segments each: a closed head, a survivor, and the open head whose digest
/// counts.
fn segments(random: &mut Random) -> Vec<Segment> {
    let mut all = Vec::new();
    for log in 0..2_u16 {
        let ids = [1, 2, 3].map(|i| u64::from(log) * 10 + i);
        for (at, &id) in ids.iter().enumerate() {
            let (kind, closed) = match at {
                0 => (SegmentKind::Head, true),
                1 => (SegmentKind::Side, true),
                _ => (SegmentKind::Head, false),
            };
            let mut segment = Segment::new(closed);
            let digest = |segments: &[u64]| {
                Entry::LogDigest(LogDigest {
                    log: LogId(log),
                    logs_of_master: 2,
                    segments: segments.iter().copied().map(SegmentId).collect(),
                })
            };
            segment.put(&header(log, id, kind), kind == SegmentKind::Head);
            match at {
                0 => segment.put(&digest(&ids[..1]), false),
                1 => {}
                _ => {
                    segment.put(&digest(&ids), true);
                    segment.put(&Entry::SafeVersion(ObjectVersion(5)), false);
                }
            }
            for _ in 0..random.below(6) {
                let key = [random.below(4) as u8; 3];
                let value = vec![7; random.below(30)];
                let version = ObjectVersion(1 + random.below(5) as u64);
                let entry = match random.below(3) {
                    0 => Entry::Tombstone(Tombstone {
                        table: TableId(1),
                        version,
                        segment: SegmentId(ids[0]),
                        timestamp_s: 1,
                        key: &key,
                    }),
                    _ => Entry::Object(Object {
                        table: TableId(1),
                        version,
                        timestamp_s: 1,
                        graves: Graves::NONE,
                        deadline: None,
                        state: ObjectState::Plain,
                        key: &key,
                        value: &value,
                    }),
                };
                segment.put(&entry, false);
            }
            all.push(segment);
        }
    }
    all
}

/// Changes a few bytes, lengths or flags of some segments, or leaves some out or in twice.
fn damage(random: &mut Random, segments: &mut Vec<Segment>) {
    for _ in 0..1 + random.below(3) {
        let which = random.below(segments.len());
        let bytes = &mut segments[which].kept.bytes;
        let at = random.below(bytes.len().max(1));
        match random.below(9) {
            0..5 if !bytes.is_empty() => {
                bytes[at] = [0, 1, 0x7f, 0x80, 0xff, random.next() as u8][random.below(6)];
            }
            5 if !bytes.is_empty() => {
                let upto = (at + 10).min(bytes.len());
                bytes[at..upto].fill(0xff);
            }
            6 => bytes.truncate(at),
            7 => segments[which].kept.closed ^= true,
            _ if segments.len() > 1 => {
                segments.swap_remove(which);
            }
            _ => {}
        }
    }
    segments.iter_mut().for_each(Segment::certify);
}

fn kept(segments: &[Segment]) -> Vec<KeptSegment> {
    segments
        .iter()
        .map(|segment| segment.kept.clone())
        .collect()
}

/// Prints the segments when the test fails.
struct Witness<'a>(u64, &'a [KeptSegment]);

impl Drop for Witness<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("step {}, {:02x?}", self.0, self.1);
        }
    }
}

/// What the environment gives, to see other segments.
fn seed() -> u64 {
    let seed = match std::env::var("PLUVIO_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => 0,
    };
    println!("PLUVIO_SEED={seed}");
    seed << 32
}

fn steps() -> u64 {
    match std::env::var("PLUVIO_STEPS") {
        Ok(steps) => steps.parse().unwrap(),
        Err(_) => 30_000,
    }
}

#[test]
fn damaged_segments_with_right_checksums_give_objects_or_an_error_never_a_panic() {
    let mut random = Random(0x5eed_0003 ^ seed());
    // What came of it: objects, damage, no header, no head, a segment missing.
    let mut counts = [0_u64; 5];
    for step in 0..steps() {
        let mut segments = segments(&mut random);
        assert!(read_back(&kept(&segments)).is_ok(), "as they were written");
        damage(&mut random, &mut segments);
        let kept = kept(&segments);
        let _witness = Witness(step, &kept);
        let at = match read_back(&kept) {
            Ok(Kept {
                objects,
                next_version,
            }) => {
                let key = |at: usize| (objects[at].table, &objects[at].key);
                assert!((1..objects.len()).all(|at| key(at - 1) < key(at)));
                assert!(next_version > ObjectVersion(0));
                0
            }
            Err(ReadBackError::Damaged { .. }) => 1,
            Err(ReadBackError::NoHeader) => 2,
            Err(ReadBackError::NoHead(_)) => 3,
            Err(ReadBackError::Missing { .. }) => 4,
        };
        counts[at] += 1;
    }
    assert!(
        counts.iter().all(|&count| count * 2000 > steps()),
        "{counts:?}"
    );
}

/// The last version there is: nothing could follow it.
#[test]
fn an_object_with_the_last_version_is_damage() {
    let mut head = Segment::new(false);
    head.put(&header(0, 1, SegmentKind::Head), true);
    let digest = LogDigest {
        log: LogId(0),
        logs_of_master: 1,
        segments: vec![SegmentId(1)],
    };
    head.put(&Entry::LogDigest(digest), false);
    let at = head.kept.bytes.len();
    let object = Object {
        table: TableId(1),
        version: ObjectVersion(u64::MAX),
        timestamp_s: 1,
        graves: Graves::NONE,
        deadline: None,
        state: ObjectState::Plain,
        key: b"k",
        value: b"v",
    };
    head.put(&Entry::Object(object), false);
    match read_back(&kept(&[head])) {
        Err(ReadBackError::Damaged { segment, why }) => {
            assert_eq!((segment, why.offset), (Some(SegmentId(1)), at));
        }
        other => panic!("{other:?}"),
    }
}
