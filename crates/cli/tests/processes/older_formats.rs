//! Data directories that an earlier program has left: everything is read, and can be changed.
//! `crates/cli/tests/data/README.md` tells what is in them.

use crate::support::cluster::{Cluster, files_below};
use crate::support::{Reply, Setup};
use flate2::read::GzDecoder;
use pluvio_format::{Entry, FRAME_SLOT_BYTES, FrameHeader, SegmentIter, SegmentKind, read_frame};
use pluvio_mutation::{Outcome, Output};
use pluvio_units::SEGLET_BYTES;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Key and value of an object, each as its field of `scan --json` with its content; then the
/// version.
type Object = (String, (String, u64));
type Objects = BTreeMap<String, (String, u64)>;

/// Tables of an archive, and the files that say what its program read from them.
const TABLES: [(&str, &str); 4] = [
    ("objects", "objects.jsonl"),
    ("large", "large.jsonl"),
    ("counters", "counters.jsonl"),
    ("redis:0", "redis-0.jsonl"),
];

#[test]
fn a_data_directory_of_format_version_2_is_read_and_written() {
    opens("format-2.tar.gz", 2);
}

#[test]
fn a_data_directory_of_format_version_3_is_read_and_written() {
    opens("format-3.tar.gz", 3);
}

#[test]
fn a_data_directory_of_format_version_4_is_read_and_written() {
    opens("format-4.tar.gz", 4);
}

#[test]
fn a_data_directory_of_format_version_5_is_read_and_written() {
    opens("format-5.tar.gz", 5);
}

/// Starts today's program on what an earlier one has left, compares all of it, and changes it.
fn opens(archive: &str, version: u32) {
    let mut cluster = Setup::servers(3)
        .replicas(2)
        .memory("64MiB")
        .start_on(|data| {
            unpack(archive, data.parent().unwrap());
            identities_say(data, version);
            holds_all_that_the_version_has(data, version);
        });
    cluster.wait_settled(3);
    let mut expected: Vec<Objects> = TABLES
        .iter()
        .map(|(_, file)| objects(&fs::read_to_string(cluster.directory().join(file)).unwrap()))
        .collect();
    assert_eq!(
        expected.iter().map(Objects::len).collect::<Vec<_>>(),
        [283, 33, 40, 110],
        "what was kept"
    );
    compare(&cluster, &expected);
    cluster
        .run(["get", "dropped", "key-1"])
        .fails(1, &["error: ", "dropped"]);
    by_redis(&cluster);
    change(&cluster, &mut expected);
    compare(&cluster, &expected);
    identities_say(&cluster.data(), pluvio_server::FORMAT_VERSION);
    cluster.kill_all();
    cluster.restart();
    cluster.wait_settled(3);
    compare(&cluster, &expected);
}

fn unpack(archive: &str, to: &Path) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let packed = fs::File::open(path.join(archive)).unwrap();
    let mut archive = tar::Archive::new(GzDecoder::new(packed));
    archive.set_preserve_mtime(false);
    archive.unpack(to).unwrap();
}

fn identities_say(data: &Path, version: u32) {
    for server in 1..=3 {
        let file = data.join(format!("server-{server}/identity.json"));
        let identity: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        assert_eq!(identity["format_version"], version, "server {server}");
    }
}

/// Counts of all that the frames of an earlier program must hold, so that the test is about it.
#[derive(Debug, Default)]
struct Held {
    graves: u32,
    tombstones: u32,
    sums: u32,
    decimal_sums: u32,
    closed: u32,
    survivors: u32,
}

fn holds_all_that_the_version_has(data: &Path, version: u32) {
    let mut held = Held::default();
    let files = files_below(data).into_iter();
    for frame in files.filter(|file| file.parent().unwrap().ends_with("frames")) {
        let bytes = fs::read(&frame).unwrap();
        let (header, segment) = read_frame(&bytes).unwrap();
        let slot = header.slot() * FRAME_SLOT_BYTES;
        let written = u32::from_le_bytes(bytes[slot + 8..slot + 12].try_into().unwrap());
        assert_eq!(written, version, "{}", frame.display());
        held.count(&header, &segment);
    }
    let Held {
        graves,
        tombstones,
        sums,
        decimal_sums,
        closed,
        survivors,
    } = held;
    let all = [graves, tombstones, sums, decimal_sums, closed, survivors];
    assert!(all.iter().all(|count| *count > 0), "{held:?}");
}

impl Held {
    fn count(&mut self, header: &FrameHeader, segment: &[u8]) {
        self.closed += u32::from(header.closed);
        self.survivors += u32::from(header.kind == SegmentKind::Side);
        let certified = &segment[..header.certified_length as usize];
        for group in SegmentIter::new(certified, SEGLET_BYTES) {
            for (_, entry) in group.unwrap().entries() {
                self.count_entry(&entry);
            }
        }
    }

    fn count_entry(&mut self, entry: &Entry<'_>) {
        match entry {
            Entry::Object(object) => self.graves += u32::from(!object.graves.is_empty()),
            Entry::Tombstone(_) => self.tombstones += 1,
            Entry::Completion(completion) => match &completion.outcome {
                Outcome::Written {
                    output: Output::Integer(_),
                    ..
                } => self.sums += 1,
                Outcome::Written {
                    output: Output::Bytes(_),
                    ..
                } => self.decimal_sums += 1,
                Outcome::Written { .. }
                | Outcome::Unchanged { .. }
                | Outcome::Deleted { .. }
                | Outcome::Rejected { .. }
                | Outcome::Refused(_)
                | Outcome::Together { .. } => {}
            },
            Entry::SegmentHeader(_)
            | Entry::LogDigest(_)
            | Entry::SafeVersion(_)
            | Entry::TableStats(_)
            | Entry::Horizon(_) => {}
        }
    }
}

/// The objects that `scan --json` has printed.
fn objects(lines: &str) -> Objects {
    lines.lines().map(object).collect()
}

fn object(line: &str) -> Object {
    let read: BTreeMap<String, Value> = serde_json::from_str(line).unwrap();
    let of = |what: &str| {
        let (name, value) = read
            .iter()
            .find(|(name, _)| name.starts_with(what))
            .unwrap();
        format!("{name}={}", value.as_str().unwrap())
    };
    (of("key"), (of("value"), read["version"].as_u64().unwrap()))
}

#[track_caller]
fn compare(cluster: &Cluster, expected: &[Objects]) {
    for ((table, _), expected) in TABLES.iter().zip(expected) {
        let scan = ["scan", *table, "--json", "--limit", "100000"];
        let found = objects(&cluster.run(scan).ok().text());
        for (key, kept) in expected {
            // Values are too long to be printed.
            assert!(found.get(key) == Some(kept), "{table}: {key} differs");
        }
        assert_eq!(found.len(), expected.len(), "{table}: objects that are new");
    }
}

/// The Redis port reads the same.
fn by_redis(cluster: &Cluster) {
    for server in 0..3 {
        let mut redis = cluster.connect(server);
        let reply = redis.call(&["GET", "text-1"]);
        assert_eq!(reply, Reply::bulk("value 1 and more"));
        assert_eq!(redis.call(&["GET", "count-5"]), Reply::bulk("-14"));
        assert_eq!(redis.call(&["GET", "float-5"]), Reply::bulk("5.5"));
    }
}

/// Changes of every kind to what was there, and to what was not.
fn change(cluster: &Cluster, expected: &mut [Objects]) {
    let run = |arguments: &[&str]| cluster.run(arguments).ok().text().trim().to_owned();
    assert_eq!(run(&["incr", "counters", "whole-3", "1000"]), "1312");
    assert_eq!(run(&["incr", "counters", "decimal-3", "0.25"]), "10.75");
    assert_eq!(run(&["incr", "counters", "new", "5"]), "5");
    run(&["put", "objects", "key-9", "later"]);
    run(&["put", "objects", "key-6", "back again"]);
    run(&["delete", "objects", "key-10"]);
    run(&["put", "large", "page-3", "short now"]);
    run(&["delete", "large", "page-4"]);
    let mut redis = cluster.connect(0);
    let appended = redis.call(&["APPEND", "text-1", "!"]);
    assert_eq!(appended, Reply::Integer(17));
    assert_eq!(redis.call(&["DEL", "text-2"]), Reply::Integer(1));
    let mut written = |table: usize, key: &str, value: &str| {
        let (name, _) = TABLES[table];
        let line = run(&["get", name, key, "--json"]);
        let (_, (found, version)) = object(&line);
        assert_eq!(found, format!("value={value}"));
        let key = format!("key={key}");
        let before = expected[table].insert(key, (found, version));
        assert!(before.is_none_or(|(_, before)| version > before), "{line}");
    };
    written(2, "whole-3", "1312");
    written(2, "decimal-3", "10.75");
    written(2, "new", "5");
    written(0, "key-9", "later");
    written(0, "key-6", "back again");
    written(1, "page-3", "short now");
    written(3, "text-1", "value 1 and more!");
    for (table, key) in [(0, "key=key-10"), (1, "key=page-4"), (3, "key=text-2")] {
        assert!(expected[table].remove(key).is_some(), "{key}");
    }
}
