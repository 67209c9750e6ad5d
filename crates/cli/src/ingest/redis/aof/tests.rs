//! Append-only files and what they come to.

use super::*;
use crate::ingest::redis::sections::Sections;
use std::io::Write;

const NOW: i64 = 1_700_000_000_000;

/// The commands of some lines; a word may not have blanks.
fn log(lines: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in lines {
        let words: Vec<_> = line.split(' ').collect();
        bytes.extend(format!("*{}\r\n", words.len()).bytes());
        for word in words {
            bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
        }
    }
    bytes
}

fn write(directory: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = directory.join(name);
    File::create(&path).unwrap().write_all(bytes).unwrap();
    path
}

fn load_all(files: &[Vec<u8>]) -> Result<Loaded, Failure> {
    let directory = tempfile::tempdir().unwrap();
    let named = files.iter().enumerate();
    let paths = named.map(|(at, bytes)| write(directory.path(), &at.to_string(), bytes));
    load(&paths.collect::<Vec<_>>(), NOW)
}

/// Database, key, value and deadline of all strings.
fn strings(loaded: Loaded) -> Vec<(u8, String, String, Option<u64>)> {
    let sections = Sections::of(loaded.file, None).unwrap();
    let mut all = Vec::new();
    while let Some((database, section)) = sections.next_section() {
        all.extend(section.map(|record| {
            let record = record.map_err(|bad| bad.message).unwrap();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let until = record.deadline.map(|deadline| deadline.ms());
            (
                database.number(),
                text(&record.key),
                text(&record.value),
                until,
            )
        }));
    }
    all
}

fn after(lines: &[&str]) -> Vec<(u8, String, String, Option<u64>)> {
    strings(
        load_all(&[log(lines)])
            .map_err(|why| why.to_string())
            .unwrap(),
    )
}

fn is(
    database: u8,
    key: &str,
    value: &str,
    until: Option<u64>,
) -> (u8, String, String, Option<u64>) {
    (database, key.to_owned(), value.to_owned(), until)
}

// shows: APPENDED-1
#[test]
fn commands_of_strings_come_to_what_redis_has() {
    let found = after(&[
        "SELECT 0",
        "SET a 1",
        "INCRBY a 41",
        "DECR a",
        "SET b x PXAT 1800000000000",
        "APPEND b yz",
        "SETRANGE b 1 Q",
        "SET c 1 EX 10",
        "SET c 2 KEEPTTL",
        "SETNX d v",
        "SET gone v",
        "DEL gone none",
        "SELECT 3",
        "MSET m1 1 m2 2",
        "PEXPIREAT m1 1800000000001",
        "RENAME m2 m3",
        "COPY m3 far DB 5 REPLACE",
        "PERSIST m1",
        "SETBIT bits 1 1",
        "BITFIELD bits SET u8 8 66 GET u8 0 OVERFLOW SAT INCRBY u8 8 1",
        "BITOP NOT not bits",
        "SETEX s 5 v",
        "GETEX s PERSIST",
        "INCRBYFLOAT f 1.5",
    ]);
    let not = String::from_utf8_lossy(&[0xbf, 0xbc]).into_owned();
    assert_eq!(
        found,
        [
            is(0, "a", "41", None),
            is(0, "b", "xQz", Some(1_800_000_000_000)),
            is(0, "c", "2", Some(1_700_000_010_000)),
            is(0, "d", "v", None),
            is(3, "bits", "@C", None),
            is(3, "f", "1.5", None),
            is(3, "m1", "1", None),
            is(3, "m3", "2", None),
            is(3, "not", &not, None),
            is(3, "s", "v", None),
            is(5, "far", "2", None),
        ]
    );
    let swapped = after(&["SELECT 1", "SET a 1", "SWAPDB 1 2", "SET b 2", "MOVE b 4"]);
    assert_eq!(swapped, [is(2, "a", "1", None), is(4, "b", "2", None)]);
    assert_eq!(after(&["SET a 1", "FLUSHALL"]), []);
}

#[test]
fn other_types_are_counted_and_a_string_takes_their_place() {
    let loaded = load_all(&[log(&[
        "RPUSH list 1 2",
        "HSET hash f v",
        "ZADD z 1 m",
        "XADD stream 1-1 f v",
        "SADD set m",
        "SMOVE set set2 m",
        "JSON.SET j . 1",
        "RPUSH was 1",
        "SET was string",
        "SADD dropped m",
        "DEL dropped",
        "SET string v",
        "FUNCTION LOAD #!lua\tname=lib",
    ])]);
    let loaded = loaded.map_err(|why| why.to_string()).unwrap();
    let shown: Vec<_> = loaded
        .others
        .iter()
        .map(|(k, n)| format!("{k} {n}"))
        .collect();
    assert_eq!(
        shown,
        [
            "hash \"hash\"",
            "value of JSON.SET \"j\"",
            "list \"list\"",
            "set \"set\"",
            "set \"set2\"",
            "stream \"stream\"",
            "sorted set \"z\"",
            "function library \"lib\"",
        ]
    );
    assert_eq!(strings(loaded).len(), 2);
}

// shows: APPENDED-2
#[test]
fn only_the_end_of_the_last_file_may_be_cut() {
    let whole = log(&["SET a 1", "SET b 2"]);
    let cut = whole[..whole.len() - 3].to_vec();
    let loaded = load_all(&[whole.clone(), cut.clone()]);
    let loaded = loaded.map_err(|why| why.to_string()).unwrap();
    let told = loaded.cut.clone().unwrap();
    assert!(told.contains("begins at byte 27"), "{told}");
    assert_eq!(strings(loaded).len(), 2);
    let refused = load_all(&[cut, whole.clone()]).err().unwrap().to_string();
    assert!(refused.contains("cut off"), "{refused}");

    let open = log(&["SET a 1", "MULTI", "SET a 2", "SET b 2"]);
    let loaded = load_all(core::slice::from_ref(&open))
        .map_err(|why| why.to_string())
        .unwrap();
    assert!(loaded.cut.as_ref().unwrap().contains("no EXEC"));
    assert_eq!(strings(loaded), [is(0, "a", "1", None)]);
    assert!(load_all(&[open, whole]).is_err());
    let closed = after(&["MULTI", "SET a 2", "SET b 2", "EXEC"]);
    assert_eq!(closed.len(), 2);
    for (bad, words) in [
        (&["EVAL x 0"][..], "EVAL: this command is not known"),
        (&["SET a"], "too few words"),
        (&["EXEC"], "do not match"),
        (&["SELECT -1"], "below zero"),
        (&["SET a x", "INCR a"], "does not allow"),
    ] {
        let refused = load_all(&[log(bad)]).err().unwrap().to_string();
        assert!(refused.contains(words), "{bad:?}: {refused}");
    }
}

#[test]
fn a_set_is_found_by_its_directory_its_manifest_and_single_files_by_their_first_byte() {
    let directory = tempfile::tempdir().unwrap();
    let inner = directory.path().join("appendonlydir");
    std::fs::create_dir(&inner).unwrap();
    let found = |path: &Path| {
        let found = find(path).map_err(|why| why.to_string())?;
        let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        Ok::<_, String>(found.map(|all| all.iter().map(name).collect::<Vec<_>>()))
    };
    assert!(
        found(directory.path())
            .unwrap_err()
            .contains("without a manifest")
    );
    let manifest = write(
        &inner,
        "x.manifest",
        b"file b.rdb seq 1 type b\nfile i.aof seq 1 type i\n",
    );
    let both = Some(vec!["b.rdb".to_owned(), "i.aof".to_owned()]);
    for path in [directory.path(), &inner, &manifest] {
        assert_eq!(found(path), Ok(both.clone()));
    }
    write(&inner, "y.manifest", b"");
    assert!(found(&inner).unwrap_err().contains("several"));
    let rdb = write(&inner, "dump", b"REDIS0011");
    assert_eq!(found(&rdb), Ok(None));
    let log = write(&inner, "log", b"*1");
    assert_eq!(found(&log), Ok(Some(vec!["log".to_owned()])));
    let named = write(&inner, "old.aof", b"REDIS0011");
    assert_eq!(found(&named), Ok(Some(vec!["old.aof".to_owned()])));
    assert_eq!(found(&inner.join("none")), Ok(None));
}
