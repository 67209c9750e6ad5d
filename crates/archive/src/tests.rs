//! Archives, also with bytes of others.

use super::*;
use pluvio_units::{ClusterId, Deadline, ObjectVersion};
use proptest::prelude::*;
use std::fs;
use std::path::Path;

fn object<'a>(key: &'a [u8], value: &'a [u8]) -> ArchivedObject<'a> {
    ArchivedObject {
        key,
        value,
        version: ObjectVersion(7),
        deadline: Deadline::new(9),
    }
}

fn pack_of(objects: &[ArchivedObject<'_>]) -> Vec<u8> {
    let mut pack = PackBuilder::default();
    for object in objects {
        pack.add(object);
    }
    pack.take()
}

fn manifest(packs: Vec<PackRef>) -> Manifest {
    Manifest {
        id: archive_id(ClusterId(3), 1000),
        cluster: ClusterId(3),
        program: "0.1.0".to_owned(),
        began_ms: 1000,
        ended_ms: 2000,
        consistency: Consistency::EachObject,
        all_tables: true,
        tables: vec![ArchivedTable {
            name: "t".to_owned(),
            hash: ArchivedHash::Slots,
            objects: 1,
            bytes: 2,
            newest_version: ObjectVersion(7),
            packs,
        }],
    }
}

fn path() -> &'static Path {
    Path::new("p")
}

/// Reads all records; damage is an error, never a panic.
fn read(bytes: &[u8]) -> Result<usize, ArchiveError> {
    let mut count = 0;
    for record in records(path(), bytes)? {
        record?;
        count += 1;
    }
    Ok(count)
}

#[test]
fn a_pack_gives_back_its_objects() {
    let objects = [
        object(b"", b""),
        ArchivedObject {
            deadline: None,
            ..object(b"k", &[1; 1 << 20])
        },
    ];
    let bytes = pack_of(&objects);
    let found: Result<Vec<_>, _> = records(path(), &bytes).unwrap().collect();
    assert_eq!(found.unwrap(), objects);
}

// shows: ARCHIVE-4
#[test]
fn a_pack_that_is_cut_or_longer_or_of_another_format_is_refused() {
    let bytes = pack_of(&[object(b"key", b"value"), object(b"k", b"v")]);
    for end in 0..bytes.len() {
        assert!(read(&bytes[..end]).is_err(), "{end}");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(read(&longer).is_err());
    let mut future = bytes.clone();
    future[8] = 2;
    let error = read(&future).unwrap_err();
    assert!(
        matches!(error, ArchiveError::Future { found: 2, .. }),
        "{error}"
    );
    let mut long = bytes;
    long[16 + 17..16 + 21].fill(0xff);
    let error = read(&long).unwrap_err().to_string();
    assert!(error.contains("too long"), "{error}");
}

#[test]
fn objects_that_did_not_change_come_to_the_same_packs() {
    let packs = |skip: u32| {
        let (mut pack, mut all) = (PackBuilder::default(), Vec::new());
        for n in (0..40_000_u32).filter(|n| *n != skip) {
            pack.add(&object(&n.to_le_bytes(), &[0; 400]));
            if pack.is_full() {
                all.push(pack.take());
            }
        }
        all.push(pack.take());
        all
    };
    let (before, after) = (packs(u32::MAX), packs(5));
    let same = after.iter().filter(|pack| before.contains(pack)).count();
    assert!(
        before.len() > 4 && same + 3 >= before.len(),
        "{same} of {}",
        before.len()
    );
}

// shows: ARCHIVE-3, ARCHIVE-4
#[test]
fn a_flipped_bit_of_a_manifest_is_found() {
    let whole = manifest(Vec::new());
    let bytes = whole.to_bytes();
    assert_eq!(Manifest::from_bytes(path(), &bytes).unwrap(), whole);
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        match Manifest::from_bytes(path(), &bytes) {
            Err(_) => {}
            Ok(read) => panic!("byte {at}: {read:?}"),
        }
    }
    let foreign = Manifest::from_bytes(path(), b"{\"name\":\"x\"}").unwrap_err();
    assert!(matches!(foreign, ArchiveError::Foreign(_)));
    let future = b"{\"pluvio_archive\":2,\"else\":[]}";
    let future = Manifest::from_bytes(path(), future).unwrap_err();
    assert!(matches!(future, ArchiveError::Future { found: 2, .. }));
}

// shows: ARCHIVE-1, ARCHIVE-2
#[test]
fn a_place_keeps_what_it_has_and_mends_damaged_packs() {
    let directory = tempfile::tempdir().unwrap();
    let place = Place::named(directory.path().to_str().unwrap()).unwrap();
    let none = place.manifest(None).unwrap_err();
    assert!(matches!(none, ArchiveError::NoArchive { .. }), "{none}");
    place.prepare().unwrap();
    let bytes = pack_of(&[object(b"k", b"v")]);
    let first = place.put_pack(&bytes, 1).unwrap();
    assert!(first.is_new && !place.put_pack(&bytes, 1).unwrap().is_new);
    let whole = manifest(vec![first.pack.clone()]);
    place.put_manifest(&whole).unwrap();
    let again = place.put_manifest(&manifest(Vec::new())).unwrap_err();
    assert!(matches!(again, ArchiveError::Exists(_)), "{again}");
    assert_eq!(place.manifest(None).unwrap(), whole);
    fs::write(place.path_of(&first.pack), b"rotten").unwrap();
    let damaged = place.pack(&first.pack).unwrap_err();
    assert!(matches!(damaged, ArchiveError::Damaged { .. }), "{damaged}");
    assert!(place.put_pack(&bytes, 1).unwrap().is_new);
    assert_eq!(place.pack(&first.pack).unwrap(), bytes);
    // A file under another name is another archive's.
    let archives = directory.path().join("archives");
    let (from, to) = (
        archives.join(format!("{}.json", whole.id)),
        archives.join("z.json"),
    );
    fs::copy(from, to).unwrap();
    assert!(matches!(
        place.manifest(None).unwrap_err(),
        ArchiveError::Damaged { .. }
    ));
}

#[test]
fn a_name_in_a_manifest_leads_nowhere_else() {
    let directory = tempfile::tempdir().unwrap();
    let place = Place::named(directory.path().to_str().unwrap()).unwrap();
    let pack = PackRef {
        sha256: "../../../etc/passwd".to_owned(),
        bytes: 1,
        objects: 1,
    };
    let refused = place.pack(&pack).unwrap_err();
    assert!(matches!(refused, ArchiveError::Damaged { .. }), "{refused}");
    for name in ["", "s3://bucket/prefix", "http://x"] {
        assert!(
            matches!(Place::named(name), Err(ArchiveError::NoPlace(_))),
            "{name}"
        );
    }
}

proptest! {
    // shows: ARCHIVE-4
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), packed: bool) {
        let mut bytes = bytes;
        if packed && bytes.len() >= 16 {
            bytes[..8].copy_from_slice(b"PLUVIOPK");
            bytes[8..12].copy_from_slice(&1_u32.to_le_bytes());
        }
        let _either = read(&bytes);
        let _either = Manifest::from_bytes(path(), &bytes);
    }
}
