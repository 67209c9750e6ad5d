//! Files of real servers, files of our writer, and files that are damaged.

#![allow(clippy::unwrap_used)] // everything here is test code

use bytes::Bytes;
use pluvio_rdb::payload;
use pluvio_rdb::reader::{Error, Item, Kind, Object, Reader, Text, Value, Why};
use pluvio_rdb::writer::Writer;
use pluvio_units::VALUE_MAX;
use proptest::prelude::*;

/// Strings that redis-server 7.0.15 saved.
const STRINGS: &[u8] = include_bytes!("../data/redis-7.0-strings.rdb");
/// Values of all its types, small and large.
const KINDS: &[u8] = include_bytes!("../data/redis-7.0-kinds.rdb");

fn items(file: &[u8]) -> Result<Vec<Item>, Error> {
    let mut reader = Reader::new(file)?;
    let mut items = Vec::new();
    while let Some(item) = reader.next_item()? {
        items.push(item);
    }
    Ok(items)
}

/// Why a file is refused, and at which byte.
fn refusal(file: &[u8]) -> (u64, Why) {
    let error = items(file).expect_err("it is damaged");
    (error.at, error.why)
}

fn objects(items: &[Item]) -> Vec<&Object> {
    fn object(item: &Item) -> Option<&Object> {
        match item {
            Item::Object(object) => Some(object),
            Item::Library(_) | Item::ModuleData(_) => None,
        }
    }
    items.iter().filter_map(object).collect()
}

fn whole(text: &Text) -> &Bytes {
    match text {
        Text::Whole(text) => text,
        Text::TooLong(_) => panic!("it is short"),
    }
}

/// A file of these records, without a checksum.
fn file(head: &[u8], records: &[u8]) -> Vec<u8> {
    [head, records, b"\xff\0\0\0\0\0\0\0\0"].concat()
}

#[test]
fn strings_of_a_real_server_are_read() {
    let items = items(STRINGS).unwrap();
    let Item::Library(library) = &items[0] else {
        panic!("{items:?}");
    };
    assert!(whole(library).starts_with(b"#!lua name=lib\n"));
    let found = objects(&items).into_iter().map(|object| {
        let Value::String(value) = &object.value else {
            panic!("{object:?}");
        };
        let expires = object.expires_at_ms;
        (
            object.database,
            &whole(&object.key)[..],
            &whole(value)[..],
            expires,
        )
    });
    let mut found: Vec<_> = found.collect();
    found.sort_unstable();
    let packed = "abc".repeat(120);
    let expected: [(u64, &[u8], &[u8], _); 11] = [
        (0, b"77", b"key-is-number", None),
        (0, b"bin", b"\x01\xff", None),
        (0, b"empty", b"", None),
        (0, b"i16", b"-1234", None),
        (0, b"i32", b"1234567", None),
        (0, b"i64", b"12345678901", None),
        (0, b"i8", b"12", None),
        (0, b"later", b"v", Some(4_102_444_800_123)),
        (0, b"lzf", packed.as_bytes(), None),
        (0, b"s", b"hello", None),
        (3, b"three", b"3", None),
    ];
    assert_eq!(found, expected);
}

#[test]
fn values_of_all_types_of_a_real_server_are_passed_over() {
    let items = items(KINDS).unwrap();
    let objects = objects(&items);
    let count = |kind| {
        let is_it = |object: &&&Object| object.value == Value::Other(kind);
        objects.iter().filter(is_it).count()
    };
    assert_eq!(count(Kind::List), 2);
    assert_eq!(count(Kind::Set), 3);
    assert_eq!(count(Kind::SortedSet), 2);
    assert_eq!(count(Kind::Hash), 2);
    assert_eq!(count(Kind::Stream), 1);
    let all = Value::String(Text::Whole("all".into()));
    assert!(objects.iter().any(|object| object.value == all));
    assert_eq!(objects.len(), 11);
    let expiring = objects.iter().find(|object| object.expires_at_ms.is_some());
    assert_eq!(whole(&expiring.unwrap().key), "H");
}

/// Each type that servers of other versions write, with the value's bytes.
#[test]
fn values_of_all_other_types_are_passed_over() {
    let stream3 = [
        &b"\x01\x01i\x01e\x02\x05\x01\x05\x01\x00\x00\x02\x01\x01g\x05\x01\x02\x01"[..],
        &[7; 24],
        b"\x01\x01\x01c",
        &[7; 16],
        b"\x01",
        &[7; 16],
    ]
    .concat();
    let stream1 = [
        &b"\x00\x02\x05\x01\x01\x01g\x05\x01\x00\x01\x01c"[..],
        &[7; 8],
        b"\x00",
    ]
    .concat();
    let (redis, valkey) = (&b"REDIS0013"[..], &b"VALKEY080"[..]);
    let long = [&b"\x80"[..], &70_000_u32.to_be_bytes(), &[b'v'; 70_000]].concat();
    for (head, number, value, kind) in [
        (redis, 1, &b"\x02\x01a\xc0\x07"[..], Kind::List),
        (redis, 2, b"\x01\xc3\x05\x0a\x00a\xe0\x00\x00", Kind::Set),
        (
            redis,
            3,
            b"\x03\x01a\x031.5\x01b\xfe\x01c\xff",
            Kind::SortedSet,
        ),
        (redis, 4, b"\x01\x01f\x01v", Kind::Hash),
        (redis, 5, b"\x01\x01aabcdefgh", Kind::SortedSet),
        (
            redis,
            7,
            b"\x05\x01\x05\x02\x06\x03abcd\x04abcdefgh\x05\x01s\x00",
            Kind::Module,
        ),
        (redis, 9, b"\x01z", Kind::Hash),
        (redis, 10, &long, Kind::List),
        (redis, 14, b"\x01\x01z", Kind::List),
        (redis, 15, &stream1, Kind::Stream),
        (redis, 20, b"\x01z", Kind::Set),
        (redis, 21, &stream3, Kind::Stream),
        (redis, 22, b"\x01\x05\x01f\x01v", Kind::Hash),
        (valkey, 22, b"\x01\x01f\x01vabcdefgh", Kind::Hash),
        (redis, 23, b"\x01z", Kind::Hash),
        (redis, 24, b"abcdefgh\x01\x05\x01f\x01v", Kind::Hash),
        (redis, 25, b"abcdefgh\x01z", Kind::Hash),
    ] {
        let records = [&[number][..], b"\x01k", value, b"\0\x04last\x01v"].concat();
        let items = items(&file(head, &records)).unwrap_or_else(|e| panic!("{number}: {e}"));
        let objects = objects(&items);
        assert_eq!(objects[0].value, Value::Other(kind), "{number}");
        assert_eq!(whole(&objects[1].key), "last", "{number}");
    }
}

#[test]
fn hints_are_passed_over_and_belong_to_one_key() {
    let records = [
        &b"\xfa\x05redis\x017\xfe\x02\xfb\x03\x00\xf4\x01\x01\x01"[..],
        // Data of a module named "AAAAAAAAB".
        b"\xf7\x80\x00\x00\x04\x00\x02\x01\x05\x01s\x00",
        b"\xfd\x05\x00\x00\x00\xf8\x03\x00\x01a\x01b",
        b"\xf9\x03\x00\x01c\x01d",
    ]
    .concat();
    let items = items(&file(b"REDIS0012", &records)).unwrap();
    assert_eq!(items[0], Item::ModuleData("AAAAAAAAB".to_owned()));
    let objects = objects(&items);
    assert_eq!(
        (objects[0].database, objects[0].expires_at_ms),
        (2, Some(5000))
    );
    assert_eq!((objects[1].database, objects[1].expires_at_ms), (2, None));
}

#[test]
fn checksums_are_compared_where_there_are_any() {
    let good = STRINGS.len();
    for at in [20, 100, 200, good - 1] {
        let mut bad = STRINGS.to_vec();
        bad[at] ^= 1;
        assert!(items(&bad).is_err(), "{at}");
    }
    let mut unsummed = STRINGS.to_vec();
    unsummed[good - 8..].fill(0);
    assert_eq!(items(&unsummed).unwrap().len(), 12);
    assert_eq!(items(b"REDIS0004\0\x01k\x01v\xff").unwrap().len(), 1);
}

// shows: RDB-3
#[test]
fn a_file_cut_anywhere_is_refused() {
    for file in [STRINGS, KINDS] {
        for cut in 0..file.len() {
            let (at, why) = refusal(&file[..cut]);
            assert!(matches!(why, Why::Cut) && at <= cut as u64, "{cut}: {at}");
        }
    }
}

// shows: RDB-1, RDB-3
#[test]
fn false_lengths_and_unknown_records_are_refused() {
    let far = [&b"\0\x01k\x81"[..], &[0x7f; 8]].concat();
    for (head, records, is_it) in [
        (&b"REDIS0014"[..], &b""[..], "version 0014"),
        (b"VALKEY081", b"", "version 081"),
        (b"REDISabcd", b"", "version abcd"),
        (b"*2\r\n$6\r\nSELECT", b"", "no RDB file"),
        (b"REDIS0011", b"\0\x82", "so; the file is damaged"),
        (b"REDIS0011", b"\0\x01k\xc3\x02\x03\x20\x00", "unpacked"),
        (
            b"REDIS0011",
            b"\0\x01k\xc3\x81\x00\x00\x00\x00\x7f\xff\xff\xff\x01",
            "unpacked",
        ),
        (
            b"REDIS0011",
            b"\x01\x01k\x81\x7f\xff\xff\xff\xff\xff\xff\xff",
            "neither",
        ),
        (b"REDIS0011", &far, "cut off"),
        (b"REDIS0011", b"\x08", "byte 9: a record of type 8"),
        (b"REDIS0013", b"\x1c\x01k", "type 28"),
        (b"VALKEY080", b"\x18\x01k", "type 24"),
        (b"REDIS0013", b"\xf3", "type 243"),
        (b"REDIS0010", b"\xf6\x01a", "release candidate"),
        (b"REDIS0010", b"\x06\x01a", "release candidate"),
        (b"REDIS0010", b"\x07\x01a\x05\x06", "neither"),
    ] {
        let error = items(&file(head, records)).expect_err("it is damaged");
        assert!(error.to_string().contains(is_it), "{records:?}: {error}");
    }
}

// shows: RDB-4
#[test]
fn texts_over_the_limit_are_passed_over() {
    let long = VALUE_MAX as u32 + 1;
    let plain = [
        &b"\x80"[..],
        &long.to_be_bytes(),
        &vec![b'v'; VALUE_MAX + 1],
    ]
    .concat();
    let packed = [&b"\xc3\x02\x80"[..], &long.to_be_bytes(), b"\xff\xff"].concat();
    for text in [plain, packed] {
        let records = [b"\0\x01k", &text[..], b"\0", &text, b"\x01v\0\x01l\x01v"].concat();
        let items = items(&file(b"REDIS0011", &records)).unwrap();
        let objects = objects(&items);
        let too_long = Text::TooLong(VALUE_MAX as u64 + 1);
        assert_eq!(objects[0].value, Value::String(too_long.clone()));
        assert_eq!(objects[1].key, too_long);
        assert_eq!(whole(&objects[2].key), "l");
    }
}

type Entry = (u64, Vec<u8>, Vec<u8>, Option<u64>);

fn written(entries: &[Entry]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    for (database, key, value, deadline) in entries {
        writer.select(*database, 1).unwrap();
        writer.object(key, value, *deadline).unwrap();
    }
    let (file, bytes) = writer.finish().unwrap();
    assert_eq!(file.len() as u64, bytes);
    file
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        entries in prop::collection::vec(
            (any::<u64>(), any::<Vec<u8>>(), any::<Vec<u8>>(), any::<Option<u32>>()), 0..20)
    ) {
        let entries: Vec<Entry> = entries.into_iter()
            .map(|(database, key, value, deadline)| (database, key, value, deadline.map(u64::from)))
            .collect();
        let items = items(&written(&entries)).unwrap();
        let found = objects(&items).into_iter().map(|object| {
            let Value::String(value) = &object.value else { unreachable!("only strings") };
            let deadline = object.expires_at_ms.map(i64::cast_unsigned);
            (object.database, whole(&object.key).to_vec(), whole(value).to_vec(), deadline)
        });
        prop_assert_eq!(found.collect::<Vec<_>>(), entries);
    }

    // shows: RDB-3
    #[test]
    fn any_bytes_are_read_or_refused(records: Vec<u8>, is_valkey: bool) {
        let head: &[u8] = if is_valkey { b"VALKEY080" } else { b"REDIS0013" };
        let _ = items(&file(head, &records));
        let _ = items(&records);
    }

    // shows: RDB-3
    #[test]
    fn any_damage_is_noticed(at: prop::sample::Index, by in 1_u8..) {
        let mut bad = KINDS.to_vec();
        let at = at.index(bad.len());
        bad[at] ^= by;
        // A version that is as good: the checksum tells.
        prop_assert!(items(&bad).is_err());
    }
}

#[test]
fn commands_behind_the_end_are_not_passed_over_in_silence() {
    let more = [STRINGS, b"*1\r\n$4\r\nPING\r\n"].concat();
    let (at, why) = refusal(&more);
    assert!(matches!(why, Why::More) && at == STRINGS.len() as u64);
}

#[test]
fn a_value_of_a_file_is_a_payload_of_dump() {
    let file = written(&[(0, b"k".to_vec(), b"12".to_vec(), None)]);
    let dumped = payload::dump(b"12");
    let body = &dumped[1..dumped.len() - payload::FRAME_BYTES + 1];
    assert!(file.windows(body.len()).any(|window| window == body));
}
