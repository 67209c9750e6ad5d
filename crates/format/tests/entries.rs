//! Every kind of entry, from one table. It comes back as it was written, and every changed bit and
//! every cut is noticed. A segment of them is walked group by group.

use bytes::Bytes;
use pluvio_format::{
    Check, Completion, EncodeError, Encoded, Entry, EntryHead, EntryKind, FORMAT_VERSION,
    GraveList, Graves, LogDigest, Object, ObjectState, ParseError, ParseErrorKind, Parsed,
    SegmentHeader, SegmentIter, SegmentKind, TableStat, TableStats, Tombstone, check_piece,
};
use pluvio_mutation::{Outcome, Output, Unfit};
use pluvio_units::{
    ClientId, ClusterId, Deadline, KEY_MAX, KeyHash, LogId, ObjectVersion, SegmentId,
    SequenceNumber, ServerId, TableId, UnixMs, VALUE_MAX, crc32c,
};
use proptest::prelude::*;

fn plain() -> Object<'static> {
    Object {
        table: TableId(7),
        version: ObjectVersion(12345),
        timestamp_s: 77,
        graves: Graves::NONE,
        deadline: None,
        state: ObjectState::Plain,
        key: b"key",
        value: b"a value",
    }
}

/// One entry of every kind. The match makes a new kind fail to compile until it is in here.
fn example(kind: EntryKind) -> Entry<'static> {
    match kind {
        EntryKind::Object => Entry::Object(plain()),
        EntryKind::Prepared => Entry::Object(Object {
            state: ObjectState::Prepared,
            ..plain()
        }),
        EntryKind::Restored => Entry::Object(Object {
            state: ObjectState::Restored,
            ..plain()
        }),
        EntryKind::Tombstone => Entry::Tombstone(Tombstone {
            table: TableId(7),
            version: ObjectVersion(12345),
            segment: SegmentId(99),
            timestamp_s: u32::MAX,
            key: b"key",
        }),
        EntryKind::SegmentHeader => Entry::SegmentHeader(SegmentHeader {
            format_version: FORMAT_VERSION,
            cluster: ClusterId(u64::MAX),
            server: ServerId(3),
            log: LogId(255),
            segment: SegmentId(100),
            kind: SegmentKind::Side,
            created_s: 78,
        }),
        EntryKind::LogDigest => Entry::LogDigest(LogDigest {
            log: LogId(2),
            logs_of_master: 4,
            segments: vec![SegmentId(1), SegmentId(300), SegmentId(u64::MAX)],
        }),
        EntryKind::SafeVersion => Entry::SafeVersion(ObjectVersion(u64::MAX)),
        EntryKind::Completion => Entry::Completion(completion(Outcome::Written {
            version: ObjectVersion(12345),
            replaced: ObjectVersion(12344),
            output: Output::Nothing,
        })),
        EntryKind::TableStats => Entry::TableStats(TableStats {
            exact: vec![TableStat {
                table: TableId(7),
                live_bytes: 1 << 40,
                live_entries: 5,
            }],
            other_tables: 1,
            other_bytes: 2,
            other_entries: 3,
        }),
        EntryKind::Horizon => Entry::Horizon(UnixMs(1_764_000_000_000)),
    }
}

fn completion(outcome: Outcome) -> Completion {
    Completion {
        client: ClientId(0x0102_0304_0506_0708),
        sequence: SequenceNumber(1000),
        acknowledged_below: SequenceNumber(998),
        retry_s: 10,
        table: TableId(7),
        hash: KeyHash(0x1112_1314_1516_1718),
        outcome,
    }
}

#[test]
fn the_bytes_of_a_completion_record_are_these() {
    let entry = Entry::Completion(completion(Outcome::Written {
        version: ObjectVersion(5),
        replaced: ObjectVersion(4),
        output: Output::Nothing,
    }));
    let bytes = Encoded::new(&entry, false).unwrap().to_vec();
    #[rustfmt::skip]
    let body = [
        0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, // client
        0xe8, 0x07, // sequence 1000
        2,    // not acknowledged: 2
        10,   // retry seconds
        7,    // table
        0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, // key hash
        1, 5, 4, // written, version 5, replaced 4
    ];
    assert_eq!(bytes[..2], [7, 24]);
    assert_eq!(bytes[6..], body);
    assert_eq!(bytes.len(), 30, "the price of an operation with identity");
    let sum = Entry::Completion(completion(Outcome::Written {
        version: ObjectVersion(6),
        replaced: ObjectVersion(5),
        output: Output::Integer(1312),
    }));
    let bytes = Encoded::new(&sum, false).unwrap().to_vec();
    let outcome = [9, 1, 6, 5, 1, 0x20, 5, 0, 0, 0, 0, 0, 0];
    assert_eq!(bytes[bytes.len() - outcome.len()..], outcome);
}

fn every_outcome(version: ObjectVersion) -> Vec<Outcome> {
    let outputs = [
        Output::Nothing,
        Output::Integer(i64::MIN),
        Output::Bytes(Bytes::new()),
        Output::Bytes(Bytes::from(vec![7; VALUE_MAX])),
        Output::Integers([Some(i64::MAX), None, Some(-1)].into()),
        Output::Integers([].into()),
    ];
    let with = |output: Output| {
        [
            Outcome::Written {
                version,
                replaced: version,
                output: output.clone(),
            },
            Outcome::Unchanged {
                version,
                output: output.clone(),
            },
            Outcome::Deleted {
                version,
                output: output.clone(),
            },
            Outcome::Rejected { version, output },
        ]
    };
    let refused = [Unfit::NotANumber, Unfit::Overflow, Unfit::TooLong].map(Outcome::Refused);
    outputs.into_iter().flat_map(with).chain(refused).collect()
}

/// Records of format versions 1 and 2 that this version does not write.
#[test]
fn sums_of_earlier_versions_are_read() {
    let written = Completion {
        outcome: Outcome::Refused(Unfit::Overflow),
        ..completion(Outcome::Refused(Unfit::Overflow))
    };
    let bytes = Encoded::new(&Entry::Completion(written), false)
        .unwrap()
        .to_vec();
    let front = &bytes[6..bytes.len() - 1];
    for (code, field, expected) in [
        (3, 42_u64, Output::Integer(42)),
        (4, 0.5_f64.to_bits(), Output::Bytes("0.5".into())),
    ] {
        let mut body = front.to_vec();
        body.extend([code, 5]);
        body.extend(field.to_le_bytes());
        let mut entry = vec![
            EntryKind::Completion.code(),
            u8::try_from(body.len()).unwrap(),
        ];
        let crc = crc32c(&[&entry, &body]);
        entry.extend(crc.to_le_bytes());
        entry.extend(body);
        let parsed = Parsed::read(&entry, Check::Checksum).unwrap();
        let Entry::Completion(read) = parsed.entry else {
            panic!("another kind: {parsed:?}");
        };
        let outcome = Outcome::Written {
            version: ObjectVersion(5),
            replaced: ObjectVersion(0),
            output: expected,
        };
        assert_eq!(read, completion(outcome));
    }
}

#[test]
fn segments_of_earlier_versions_are_read_and_those_of_later_ones_refused_with_advice() {
    let image = |format_version| {
        let Entry::SegmentHeader(header) = example(EntryKind::SegmentHeader) else {
            unreachable!("it was asked for");
        };
        let header = Entry::SegmentHeader(SegmentHeader {
            format_version,
            ..header
        });
        let digest = example(EntryKind::LogDigest);
        let object = example(EntryKind::Object);
        lay_out(&[vec![header, digest], vec![object]]).0
    };
    assert_eq!(FORMAT_VERSION, 6, "a new version has a place in this test");
    for version in 1..=6 {
        let image = image(version);
        let read = SegmentIter::new(&image, SEGLET).map(|group| group.unwrap().len());
        assert_eq!(read.collect::<Vec<_>>(), [2, 1], "version {version}");
        assert_eq!(check_piece(&image, 0, SEGLET), Ok(image.len()));
    }
    for version in [0, 7, u32::MAX] {
        let image = image(version);
        let mut read = SegmentIter::new(&image, SEGLET);
        let error = read.next().unwrap().unwrap_err();
        assert_eq!(error.kind, ParseErrorKind::BadVersion(version));
        assert!(read.next().is_none(), "nothing of it is taken");
        assert_eq!(check_piece(&image, 0, SEGLET), Err(error));
        let words = format!("has format version {version}, this program reads 1 to 6: use ");
        assert!(error.to_string().contains(&words), "{error}");
    }
}

/// The layout of a header may change, the place of its version does not.
#[test]
fn a_version_is_told_before_the_rest_of_a_segment_header_is_read() {
    let body = [&7_u32.to_le_bytes()[..], b"of another layout"].concat();
    let mut bytes = vec![EntryKind::SegmentHeader.code(), body.len() as u8];
    let crc = crc32c(&[&bytes, &body]);
    bytes.extend(crc.to_le_bytes());
    bytes.extend(body);
    let error = Parsed::read(&bytes, Check::Checksum).unwrap_err();
    assert_eq!(error.kind, ParseErrorKind::BadVersion(7));
}

/// Bits and kinds that docs/log-format.md reserves for later versions.
#[test]
fn reserved_kinds_and_bits_are_no_entries() {
    let object = Encoded::new(&example(EntryKind::Object), false)
        .unwrap()
        .to_vec();
    let deadlines = [
        EntryKind::Tombstone.code() | 0x20,
        EntryKind::Horizon.code() | 0x20,
    ];
    let kinds = (1..0x20).filter(|kind| EntryKind::from_code(*kind).is_none());
    for kind in kinds.chain(deadlines) {
        let mut bytes = object.clone();
        bytes[0] = kind;
        let error = Parsed::read(&bytes, Check::Structure).unwrap_err();
        assert_eq!(error.kind, ParseErrorKind::BadKind(kind));
    }
}

#[test]
fn every_outcome_comes_back_also_with_the_largest_numbers() {
    let version = ObjectVersion(u64::MAX);
    let outcomes = every_outcome(version);
    for outcome in outcomes {
        let entry = Entry::Completion(Completion {
            client: ClientId(u64::MAX),
            sequence: SequenceNumber(u64::MAX),
            acknowledged_below: SequenceNumber(0),
            retry_s: u32::MAX,
            table: TableId(u64::MAX),
            hash: KeyHash(u64::MAX),
            outcome,
        });
        let bytes = Encoded::new(&entry, true).unwrap().to_vec();
        let parsed = Parsed::read(&bytes, Check::Checksum).unwrap();
        assert_eq!(parsed.entry, entry);
    }
}

// shows: FORMAT-3
#[test]
fn every_kind_comes_back_and_no_flipped_bit_or_cut_passes() {
    for kind in EntryKind::ALL {
        for group_continues in [false, true] {
            let entry = example(kind);
            let encoded = Encoded::new(&entry, group_continues).unwrap();
            let mut bytes = encoded.to_vec();
            assert_eq!(bytes.len(), encoded.len());
            assert_eq!(encoded.kind(), kind);
            let parsed = Parsed::read(&bytes, Check::Checksum).unwrap();
            assert_eq!(parsed.entry, entry);
            assert_eq!(parsed.head.group_continues, group_continues);
            assert_eq!(parsed.head.total_len(), bytes.len());
            assert_eq!(
                EntryHead::read(&bytes[..EntryHead::BYTES_MAX.min(bytes.len())]),
                Ok(parsed.head)
            );
            for cut in 0..bytes.len() {
                let error = Parsed::read(&bytes[..cut], Check::Checksum).unwrap_err();
                assert_eq!(
                    error.kind,
                    ParseErrorKind::Truncated,
                    "{kind:?} cut at {cut}"
                );
            }
            for bit in 0..bytes.len() * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(
                    Parsed::read(&bytes, Check::Checksum).is_err(),
                    "{kind:?} bit {bit}"
                );
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}

#[test]
fn a_deadline_stands_behind_the_graves_and_is_never_0() {
    let Entry::Object(object) = example(EntryKind::Object) else {
        unreachable!("it was asked for");
    };
    let plain = Encoded::new(&Entry::Object(object), false)
        .unwrap()
        .to_vec();
    let deadline = Deadline::new(1_764_000_000_000);
    let segments = [SegmentId(5), SegmentId(7)];
    let (list, _) = GraveList::of(&segments).unwrap();
    for graves in [Graves::NONE, list.graves()] {
        let object = Object {
            graves,
            deadline,
            ..object
        };
        let entry = Entry::Object(object);
        let bytes = Encoded::new(&entry, false).unwrap().to_vec();
        assert_eq!(bytes.len(), plain.len() + 6 + graves.encoded_len());
        assert_eq!(bytes.len(), Encoded::object_len(&object));
        let lens = Object::lens(&bytes).unwrap();
        assert!(lens.has_deadline);
        let read = Object::of_body(&bytes[lens.header_len..], &lens);
        assert_eq!(read, Some(object));
        assert_eq!(Object::front(&bytes), Err(None), "logs in place have none");
        let zero = {
            let mut bytes = bytes.clone();
            let at = lens.header_len + graves.encoded_len();
            bytes[at..at + 6].copy_from_slice(&[0x80, 0x80, 0x80, 0x80, 0x80, 0]);
            bytes
        };
        assert!(Parsed::read(&zero, Check::Structure).is_err());
    }
}

fn object_with_graves(graves: Graves<'_>) -> Entry<'_> {
    let Entry::Object(object) = example(EntryKind::Object) else {
        unreachable!("asked for an object");
    };
    Entry::Object(Object { graves, ..object })
}

#[test]
fn the_bytes_of_an_object_with_graves_are_these() {
    let (list, left_out) = GraveList::of(&[SegmentId(5), SegmentId(300), SegmentId(301)]).unwrap();
    assert_eq!(left_out, 0);
    let entry = object_with_graves(list.graves());
    let bytes = Encoded::new(&entry, false).unwrap().to_vec();
    #[rustfmt::skip]
    let front = [
        4, 5, 0xa7, 0x02, 1, // graves: four bytes, 5, 295 more, 1 more
        7,    // table
        0xb9, 0x60, // version 12345
        77, 0, 0, 0, // timestamp
        3, // key length
    ];
    assert_eq!(bytes[0], 0x41, "an object, and its graves come first");
    assert_eq!(bytes[6..6 + front.len()], front);
    let plain = Encoded::new(&example(EntryKind::Object), false).unwrap();
    assert_eq!(bytes.len(), plain.len() + list.graves().encoded_len());
}

#[test]
fn objects_with_graves_come_back_and_no_flipped_bit_or_cut_passes() {
    let ids: Vec<SegmentId> = (1..=40).map(|i| SegmentId(i * 90)).collect();
    for count in [1, 2, 7, 40] {
        let (list, _) = GraveList::of(&ids[..count]).unwrap();
        let entry = object_with_graves(list.graves());
        for group_continues in [false, true] {
            let mut bytes = Encoded::new(&entry, group_continues).unwrap().to_vec();
            let parsed = Parsed::read(&bytes, Check::Checksum).unwrap();
            assert_eq!(parsed.entry, entry);
            assert_eq!(parsed.head.group_continues, group_continues);
            let lens = Object::lens(&bytes).unwrap();
            assert!(lens.has_graves);
            let body = &bytes[lens.header_len..lens.total_len];
            let object = Object::of_body(body, &lens).unwrap();
            assert_eq!(Entry::Object(object), entry);
            assert!(
                Object::front(&bytes).is_err(),
                "not in a log that is changed in place"
            );
            for cut in 0..bytes.len() {
                let error = Parsed::read(&bytes[..cut], Check::Checksum).unwrap_err();
                assert_eq!(error.kind, ParseErrorKind::Truncated, "cut at {cut}");
            }
            for bit in 0..bytes.len() * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(Parsed::read(&bytes, Check::Checksum).is_err(), "bit {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}

#[test]
fn only_objects_have_graves() {
    for kind in EntryKind::ALL {
        let mut bytes = Encoded::new(&example(kind), false).unwrap().to_vec();
        bytes[0] |= 0x40;
        let error = Parsed::read(&bytes, Check::Structure).unwrap_err().kind;
        match kind {
            // Its body does not begin with graves.
            EntryKind::Object | EntryKind::Prepared | EntryKind::Restored => {
                assert_eq!(error, ParseErrorKind::BadBody(kind));
            }
            EntryKind::Tombstone
            | EntryKind::SegmentHeader
            | EntryKind::LogDigest
            | EntryKind::SafeVersion
            | EntryKind::TableStats
            | EntryKind::Completion
            | EntryKind::Horizon => assert_eq!(error, ParseErrorKind::BadKind(bytes[0])),
        }
    }
}

#[test]
fn the_header_of_a_small_object_takes_at_most_16_bytes() {
    let object = Object {
        table: TableId(100),
        version: ObjectVersion(100),
        timestamp_s: u32::MAX,
        graves: Graves::NONE,
        deadline: None,
        state: ObjectState::Plain,
        key: &[1; 30],
        value: &[2; 100],
    };
    let encoded = Encoded::new(&Entry::Object(object), false).unwrap();
    let overhead = encoded.len() - 130;
    assert!(overhead <= 16, "{overhead}");
    assert_eq!(Encoded::object_len(&object), overhead + 130);
}

#[test]
fn the_length_of_an_object_at_a_later_version_is_told() {
    let value = [2; 20_000];
    let len_at = |value_len: usize, version: u64| {
        Encoded::object_len(&Object {
            table: TableId(1),
            version: ObjectVersion(version),
            timestamp_s: 1,
            graves: Graves::NONE,
            deadline: None,
            state: ObjectState::Plain,
            key: &[1; 4],
            value: &value[..value_len],
        })
    };
    // Around the borders at which the length of the body takes a byte more.
    for value_len in (100..130).chain(16_350..16_390).chain([0, 20_000]) {
        for (from, to) in [(1, 2), (127, 128), (16_383, 16_384), (1, 1 << 40), (5, 5)] {
            let told = Encoded::object_len_at(
                len_at(value_len, from),
                ObjectVersion(from),
                ObjectVersion(to),
            );
            assert_eq!(
                told,
                len_at(value_len, to),
                "{value_len} bytes, {from} to {to}"
            );
        }
    }
}

#[test]
fn what_is_too_long_or_out_of_order_is_refused_and_the_longest_is_not() {
    let (key, value) = (vec![1; KEY_MAX + 1], vec![2; VALUE_MAX + 1]);
    let object = |key_len: usize, value_len: usize| {
        Encoded::new(
            &Entry::Object(Object {
                table: TableId(1),
                version: ObjectVersion(1),
                timestamp_s: 0,
                graves: Graves::NONE,
                deadline: None,
                state: ObjectState::Plain,
                key: &key[..key_len],
                value: &value[..value_len],
            }),
            false,
        )
        .map(|e| e.to_vec())
    };
    assert_eq!(
        object(KEY_MAX + 1, 0),
        Err(EncodeError::KeyTooLong(KEY_MAX + 1))
    );
    assert_eq!(
        object(0, VALUE_MAX + 1),
        Err(EncodeError::ValueTooLong(VALUE_MAX + 1))
    );
    let longest = object(KEY_MAX, VALUE_MAX).unwrap();
    assert!(longest.len() <= pluvio_units::ENTRY_MAX);
    assert!(Parsed::read(&longest, Check::Checksum).is_ok());
    let digest = |ids: &[u64]| {
        Encoded::new(
            &Entry::LogDigest(LogDigest {
                log: LogId(0),
                logs_of_master: 1,
                segments: ids.iter().map(|&id| SegmentId(id)).collect(),
            }),
            false,
        )
        .map(|_| ())
    };
    let unordered = Err(EncodeError::Unordered(EntryKind::LogDigest));
    assert_eq!(digest(&[]), Ok(()));
    assert_eq!(digest(&[2, 2]), unordered);
    assert_eq!(digest(&[0]), unordered);
}

const SEGLET: usize = 256;

/// Lays groups out as the log does and returns the image and where each group ends.
fn lay_out(groups: &[Vec<Entry<'_>>]) -> (Vec<u8>, Vec<usize>) {
    let (mut image, mut ends) = (Vec::new(), Vec::new());
    for group in groups {
        for (i, entry) in group.iter().enumerate() {
            let bytes = Encoded::new(entry, i + 1 < group.len())
                .expect("small entries")
                .to_vec();
            let left = SEGLET - image.len() % SEGLET;
            if bytes.len() > left && bytes.len() <= SEGLET / 2 {
                image.resize(image.len() + left, 0);
            }
            image.extend_from_slice(&bytes);
        }
        ends.push(image.len());
    }
    (image, ends)
}

fn object(key: &[u8]) -> Entry<'_> {
    Entry::Object(Object {
        table: TableId(1),
        version: ObjectVersion(1),
        timestamp_s: 5,
        graves: Graves::NONE,
        deadline: None,
        state: ObjectState::Plain,
        key,
        value: b"",
    })
}

#[test]
fn a_segment_is_walked_group_by_group_over_padding() {
    let key = [9u8; 70];
    let groups: Vec<Vec<Entry<'_>>> = (0..20)
        .map(|i| vec![object(&key[..i * 3]); 1 + i % 4])
        .collect();
    let (image, ends) = lay_out(&groups);
    let walked: Vec<_> = SegmentIter::new(&image, SEGLET)
        .map(Result::unwrap)
        .collect();
    assert_eq!(walked.len(), groups.len());
    for ((group, end), expected) in walked.iter().zip(&ends).zip(&groups) {
        assert_eq!((group.end(), group.len()), (*end, expected.len()));
        assert!(
            group
                .entries()
                .map(|(_, entry)| entry)
                .eq(expected.iter().cloned())
        );
        assert_eq!(group.entries().next().unwrap().0, group.start());
    }
}

// shows: FORMAT-4
#[test]
fn a_group_cut_anywhere_is_not_seen_at_all() {
    let groups = vec![
        vec![object(b"a")],
        vec![object(b"b"), object(&[3; 100]), object(b"c")],
    ];
    let (image, ends) = lay_out(&groups);
    for cut in ends[0]..ends[1] {
        let mut walk = SegmentIter::new(&image[..cut], SEGLET);
        assert_eq!(walk.next().unwrap().unwrap().end(), ends[0]);
        match walk.next() {
            None => assert_eq!(cut, ends[0]),
            Some(result) => {
                result.unwrap_err();
                assert!(walk.next().is_none());
            }
        }
    }
}

#[test]
fn a_kind_byte_that_rotted_to_zero_is_not_taken_for_padding() {
    let (mut image, ends) = lay_out(&[vec![object(b"a")], vec![object(b"b")]]);
    image[ends[0]] = 0;
    let mut walk = SegmentIter::new(&image, SEGLET);
    walk.next().unwrap().unwrap();
    let error = walk.next().unwrap().unwrap_err();
    assert_eq!(
        (error.offset, error.kind),
        (ends[0], ParseErrorKind::BadPadding)
    );
}

/// A device that lost the end of a file may give zeros for it.
#[test]
fn zeros_at_the_end_of_an_image_are_not_taken_for_padding() {
    let (image, ends) = lay_out(&[vec![object(b"a")], vec![object(b"b")]]);
    for end in ends {
        let border = end.next_multiple_of(SEGLET);
        for length in end + 1..=border {
            let mut image = image[..end].to_vec();
            image.resize(length, 0);
            let error = SegmentIter::new(&image, SEGLET).find_map(Result::err);
            let error = error.expect("something is missing");
            assert_eq!(
                (error.offset, error.kind),
                (end, ParseErrorKind::BadPadding)
            );
        }
    }
}

/// Compares a segment piece by piece: each begins where the last one left an entry cut off.
fn compare_in_pieces(image: &[u8], piece: usize) -> Result<usize, ParseError> {
    let mut next = 0;
    let mut end = 0;
    while end < image.len() {
        end = (end + piece).min(image.len());
        next = check_piece(&image[next..end], next, SEGLET)?;
    }
    Ok(next)
}

// shows: REP-13
#[test]
fn no_flipped_bit_of_a_segment_passes_in_whatever_pieces_it_is_compared() {
    let groups = [
        vec![object(b"a")],
        vec![object(&[3; 100]), object(b"b")],
        vec![object(&[4; 300]), object(&[5; 90])],
        vec![object(&[6; 100]), object(b"c")],
    ];
    let (image, _) = lay_out(&groups);
    assert!(image.len() > 2 * SEGLET && image.contains(&0));
    for piece in [1, 7, 100, SEGLET, image.len()] {
        assert_eq!(compare_in_pieces(&image, piece), Ok(image.len()));
        for bit in 0..image.len() * 8 {
            let mut flipped = image.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let passed = compare_in_pieces(&flipped, piece);
            assert_ne!(passed, Ok(image.len()), "bit {bit}, pieces of {piece}");
        }
    }
}

/// Whether versions 1 and 2 had another encoding for this.
fn is_old_sum(entry: &Entry<'_>) -> bool {
    let Entry::Completion(completion) = entry else {
        return false;
    };
    let sum = match &completion.outcome {
        Outcome::Written {
            replaced, output, ..
        } if *replaced == ObjectVersion(0) => output,
        _ => return false,
    };
    matches!(sum, Output::Integer(_) | Output::Bytes(_))
}

proptest! {
    #[test]
    fn objects_and_tombstones_round_trip(
        table: u64, version: u64, segment: u64, timestamp_s: u32, deadline: u64,
        graves in proptest::collection::btree_set(1u64.., 0..30),
        state in proptest::sample::select(vec![
            ObjectState::Plain, ObjectState::Prepared, ObjectState::Restored,
        ]),
        key in proptest::collection::vec(any::<u8>(), 0..300),
        value in proptest::collection::vec(any::<u8>(), 0..5000),
    ) {
        let deadline = if state == ObjectState::Prepared { 0 } else { deadline };
        let (table, version, segment) = (TableId(table), ObjectVersion(version), SegmentId(segment));
        let graves: Vec<SegmentId> = graves.into_iter().map(SegmentId).collect();
        let (list, left_out) = GraveList::of(&graves).unwrap();
        prop_assert!(list.graves().segments().eq(graves[left_out..].iter().copied()));
        for entry in [
            Entry::Object(Object {
                table, version, timestamp_s, graves: list.graves(), deadline: Deadline::new(deadline),
                state, key: &key, value: &value,
            }),
            Entry::Tombstone(Tombstone { table, version, segment, timestamp_s, key: &key }),
        ] {
            let bytes = Encoded::new(&entry, false).unwrap().to_vec();
            prop_assert_eq!(Parsed::read(&bytes, Check::Checksum).unwrap().entry, entry);
        }
    }

    #[test]
    fn digests_and_statistics_round_trip(
        mut ids in proptest::collection::btree_set(1u64.., 0..200),
        sizes in proptest::collection::vec(any::<(u32, u32)>(), 0..300),
    ) {
        ids.insert(1);
        let digest = Entry::LogDigest(LogDigest {
            log: LogId(1), logs_of_master: 2, segments: ids.into_iter().map(SegmentId).collect(),
        });
        let stats = Entry::TableStats(TableStats::of(sizes.iter().enumerate().map(|(i, s)| TableStat {
            table: TableId(i as u64), live_bytes: u64::from(s.0), live_entries: u64::from(s.1),
        }).collect()));
        for entry in [digest, stats] {
            let bytes = Encoded::new(&entry, false).unwrap().to_vec();
            prop_assert_eq!(Parsed::read(&bytes, Check::Checksum).unwrap().entry, entry);
        }
    }

    // shows: FORMAT-1
    #[test]
    fn garbage_is_an_error_not_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        for check in [Check::Structure, Check::Checksum] {
            let _ = Parsed::read(&bytes, check);
        }
        for group in SegmentIter::new(&bytes, SEGLET).flatten() {
            prop_assert_eq!(group.entries().count(), group.len());
        }
    }

    // shows: FORMAT-2
    #[test]
    fn whatever_body_is_accepted_encodes_to_the_same_bytes(
        kind in prop_oneof![1u8..=7, Just(0x41u8)], body in proptest::collection::vec(prop_oneof![0u8..4, any::<u8>()], 0..60),
    ) {
        let mut bytes = vec![kind, body.len() as u8];
        let crc = pluvio_units::crc32c(&[&bytes, &body]);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(&body);
        if let Ok(parsed) = Parsed::read(&bytes, Check::Checksum) {
            let again = Encoded::new(&parsed.entry, false).unwrap().to_vec();
            if is_old_sum(&parsed.entry) && again != bytes {
                let read = Parsed::read(&again, Check::Checksum).unwrap();
                prop_assert_eq!(read.entry, parsed.entry);
            } else {
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
