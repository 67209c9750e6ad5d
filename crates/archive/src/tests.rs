//! Archives, also with bytes of others.

use super::*;
use crate::claims::{Claim, Purpose, STALE};
use core::time::Duration;
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
        held_us: None,
        all_tables: true,
        tables: vec![ArchivedTable {
            name: "t".to_owned(),
            hash: ArchivedHash::Slots,
            durability: None,
            objects: 1,
            bytes: 2,
            newest_version: ObjectVersion(7),
            packs,
        }],
    }
}

/// A clock that stands still.
fn still() -> Duration {
    Duration::ZERO
}

/// A place in a directory, with its rooms.
fn directory() -> (tempfile::TempDir, Place) {
    let directory = tempfile::tempdir().unwrap();
    let place = Place::named(directory.path().to_str().unwrap()).unwrap();
    place.prepare().unwrap();
    (directory, place)
}

/// Makes an archive of one pack with this value.
fn archive(place: &Place, cluster: u64, began_ms: u64, value: &[u8]) -> Manifest {
    let pack = place.put_pack(&pack_of(&[object(b"k", value)]), 1).unwrap();
    let mut made = Manifest {
        id: archive_id(ClusterId(cluster), began_ms),
        cluster: ClusterId(cluster),
        began_ms,
        ..manifest(vec![pack.pack])
    };
    place.put_manifest(&mut made, &still).unwrap();
    made
}

/// Lets a file or directory of a place be as old as that.
fn age(place: &Path, file: &str, age: Duration) {
    let file = fs::File::open(place.join(file)).unwrap();
    let written = file.metadata().unwrap().modified().unwrap();
    file.set_modified(written - age).unwrap();
}

fn age_packs(place: &Path) {
    for pack in fs::read_dir(place.join("packs")).unwrap() {
        let name = pack.unwrap().file_name().into_string().unwrap();
        age(place, &format!("packs/{name}"), KEPT_FOR);
    }
}

fn keep(number: usize) -> std::num::NonZeroUsize {
    number.try_into().unwrap()
}

// shows: ARCHIVE-5
#[test]
fn a_prune_leaves_the_newest_of_each_cluster_with_their_packs() {
    let (directory, place) = directory();
    let shared = archive(&place, 3, 1000, b"shared");
    let old = archive(&place, 3, 2000, b"old");
    let again = archive(&place, 3, 3000, b"shared");
    let other = archive(&place, 4, 500, b"other");
    let young = place.prune(keep(1), false, &still).unwrap();
    assert_eq!((young.kept, young.files), (2, 0), "packs are young");
    assert_eq!(young.archives, [shared.id, old.id.clone()]);
    assert_eq!(place.ids().unwrap(), [other.id.clone(), again.id.clone()]);
    age_packs(directory.path());
    fs::write(directory.path().join("packs/mine.txt"), "x").unwrap();
    age(directory.path(), "packs/mine.txt", KEPT_FOR);
    fs::write(directory.path().join("packs/unfinished-x"), "x").unwrap();
    age(directory.path(), "packs/unfinished-x", KEPT_FOR);
    let planned = place.prune(keep(1), true, &still).unwrap();
    let gone = &old.tables[0].packs[0];
    assert_eq!((planned.files, planned.bytes), (2, gone.bytes + 1));
    assert!(place.pack(gone).is_ok(), "it was only planned");
    assert_eq!(place.prune(keep(1), false, &still).unwrap(), planned);
    assert!(place.pack(gone).is_err());
    for stays in [&again, &other] {
        assert!(place.pack(&stays.tables[0].packs[0]).is_ok());
    }
    assert!(directory.path().join("packs/mine.txt").exists());
}

#[test]
fn a_prune_that_cannot_read_what_stays_removes_nothing() {
    let (directory, place) = directory();
    let old = archive(&place, 3, 1000, b"old");
    let new = archive(&place, 3, 2000, b"new");
    age_packs(directory.path());
    let path = directory.path().join(format!("archives/{}.json", new.id));
    for (bytes, is_future) in [
        (&b"{\"pluvio_archive\":4,\"else\":[]}"[..], true),
        (b"{\"pluvio_archive\":1", false),
        // Not even its beginning is there; but its name is an archive's.
        (b"\0\0\0\0", false),
    ] {
        fs::write(&path, bytes).unwrap();
        let refused = place.prune(keep(1), false, &still).unwrap_err();
        assert_eq!(
            matches!(refused, ArchiveError::Future { .. }),
            is_future,
            "{refused}"
        );
        assert_eq!(place.ids().unwrap().len(), 2);
        assert!(place.pack(&old.tables[0].packs[0]).is_ok());
    }
    let nothing = tempfile::tempdir().unwrap();
    let empty = Place::named(nothing.path().to_str().unwrap()).unwrap();
    let none = empty.prune(keep(1), false, &still).unwrap_err();
    assert!(matches!(none, ArchiveError::NoArchive { .. }), "{none}");
    assert_eq!(fs::read_dir(nothing.path()).unwrap().count(), 0);
}

#[test]
fn what_no_command_has_named_so_is_left_out() {
    let (directory, place) = directory();
    let archives = directory.path().join("archives");
    fs::write(archives.join("settings.json"), "{\"name\":\"x\"}").unwrap();
    let none = place.manifest(None).unwrap_err();
    assert!(matches!(none, ArchiveError::NoArchive { .. }), "{none}");
    let old = archive(&place, 3, 1000, b"old");
    let new = archive(&place, 3, 2000, b"new");
    let later = archive_id(ClusterId(3), 3000);
    for name in ["directory.json", &format!("{later}.json")] {
        fs::create_dir(archives.join(name)).unwrap();
    }
    for name in ["packs/unfinished-x", "packs/x.pack", "claims/backup-x"] {
        fs::create_dir(directory.path().join(name)).unwrap();
    }
    fs::write(archives.join("zz.json"), b"\0\0").unwrap();
    fs::write(archives.join("README"), "not even named like a manifest").unwrap();
    let foreign = place.foreign().unwrap();
    let names: Vec<_> = foreign.iter().filter_map(|path| path.file_name()).collect();
    assert_eq!(
        names,
        [
            &format!("{later}.json"),
            "directory.json",
            "settings.json",
            "zz.json"
        ]
    );
    assert_eq!(place.ids().unwrap(), [old.id.clone(), new.id.clone()]);
    assert_eq!(place.manifest(None).unwrap(), new);
    let unknown = place.manifest(Some("settings")).unwrap_err();
    assert!(
        matches!(unknown, ArchiveError::NoArchive { .. }),
        "{unknown}"
    );
    age_packs(directory.path());
    let pruned = place.prune(keep(1), false, &still).unwrap();
    assert_eq!(
        (pruned.kept, pruned.archives, pruned.files),
        (1, vec![old.id], 1)
    );
    assert!(foreign.iter().all(|path| path.exists()), "they stay");
    assert!(place.pack(&new.tables[0].packs[0]).is_ok());
}

// shows: ARCHIVE-5
#[test]
fn a_manifest_under_another_name_keeps_its_packs() {
    let (directory, place) = directory();
    let old = archive(&place, 3, 1000, b"old");
    archive(&place, 3, 2000, b"new");
    age_packs(directory.path());
    let archives = directory.path().join("archives");
    let renamed = archives.join("before the change.json");
    fs::rename(archives.join(format!("{}.json", old.id)), &renamed).unwrap();
    let pruned = place.prune(keep(1), false, &still).unwrap();
    assert_eq!((pruned.kept, pruned.files), (1, 0));
    assert!(place.pack(&old.tables[0].packs[0]).is_ok());
    // Damaged, it cannot say which they are.
    let whole = fs::read(&renamed).unwrap();
    fs::write(&renamed, &whole[..whole.len() / 2]).unwrap();
    let refused = place.prune(keep(1), false, &still).unwrap_err();
    assert!(matches!(refused, ArchiveError::Damaged { .. }), "{refused}");
    assert!(place.pack(&old.tables[0].packs[0]).is_ok());
}

// shows: ARCHIVE-5
#[test]
fn a_manifest_is_not_written_while_packs_are_removed_nor_where_one_was() {
    let (directory, place) = directory();
    archive(&place, 3, 500, b"first");
    let found = place.put_pack(&pack_of(&[object(b"k", b"v")]), 1).unwrap();
    let mut whole = manifest(vec![found.pack.clone()]);
    let pruning = Claim::make(place.ground(), &still, Purpose::Prune, "p").unwrap();
    let busy = place.put_manifest(&mut whole, &still).unwrap_err();
    assert!(matches!(busy, ArchiveError::Busy(_)), "{busy}");
    drop(pruning);
    let ending = Claim::make(place.ground(), &still, Purpose::Backup, "b").unwrap();
    let busy = place.prune(keep(1), false, &still).unwrap_err();
    assert!(matches!(busy, ArchiveError::Busy(_)), "{busy}");
    drop(ending);
    // A prune came and went since the pack was found.
    fs::remove_file(place.path_of(&found.pack)).unwrap();
    let removed = place.put_manifest(&mut whole, &still).unwrap_err();
    assert!(matches!(removed, ArchiveError::Removed(_)), "{removed}");
    assert_eq!(place.ids().unwrap().len(), 1);
    // The claim of a killed command counts for a while.
    let claim = directory.path().join("claims/prune-killed");
    fs::write(&claim, "x").unwrap();
    let busy = place.put_manifest(&mut manifest(Vec::new()), &still);
    assert!(matches!(busy, Err(ArchiveError::Busy(_))));
    age(directory.path(), "claims/prune-killed", STALE);
    let found = place.put_pack(&pack_of(&[object(b"k", b"v")]), 1).unwrap();
    place
        .put_manifest(&mut manifest(vec![found.pack]), &still)
        .unwrap();
    assert!(!claim.exists());
}

// shows: ARCHIVE-5
#[test]
fn a_command_that_stood_still_does_nothing_more() {
    let (_directory, place) = directory();
    let ticks = std::cell::Cell::new(Duration::ZERO);
    let clock = || ticks.get();
    let mut claim = Claim::make(place.ground(), &clock, Purpose::Prune, "p").unwrap();
    for _ in 0..3 {
        ticks.set(ticks.get() + STALE / 5);
        claim.hold().unwrap();
    }
    ticks.set(ticks.get() + STALE);
    let late = claim.hold().unwrap_err();
    assert!(matches!(late, ArchiveError::Late(_)), "{late}");
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
    let next = MANIFEST_FORMAT + 1;
    let future = format!("{{\"pluvio_archive\":{next},\"else\":[]}}");
    let future = Manifest::from_bytes(path(), future.as_bytes()).unwrap_err();
    assert!(matches!(future, ArchiveError::Future { found, .. } if found == next));
}

#[test]
fn a_manifest_says_whether_it_is_of_one_moment_and_earlier_ones_are_read() {
    let each = manifest(Vec::new());
    let bytes = each.to_bytes();
    assert!(bytes.starts_with(b"{\"pluvio_archive\":1,"));
    assert!(!String::from_utf8_lossy(&bytes).contains("held_us"));
    let one = Manifest {
        consistency: Consistency::OneMoment,
        held_us: Some(1500),
        ..each
    };
    let bytes = one.to_bytes();
    assert!(bytes.starts_with(b"{\"pluvio_archive\":2,"));
    assert_eq!(Manifest::from_bytes(path(), &bytes).unwrap(), one);
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
    let mut whole = manifest(vec![first.pack.clone()]);
    place.put_manifest(&mut whole, &still).unwrap();
    assert_eq!(place.manifest(None).unwrap(), whole);
    fs::write(place.path_of(&first.pack), b"rotten").unwrap();
    let damaged = place.pack(&first.pack).unwrap_err();
    assert!(matches!(damaged, ArchiveError::Damaged { .. }), "{damaged}");
    assert!(place.put_pack(&bytes, 1).unwrap().is_new);
    assert_eq!(place.pack(&first.pack).unwrap(), bytes);
    // A file under another name is another archive's.
    let file = |id: &str| directory.path().join(format!("archives/{id}.json"));
    let later = archive_id(ClusterId(3), 9000);
    fs::copy(file(&whole.id), file(&later)).unwrap();
    assert!(matches!(
        place.manifest(None).unwrap_err(),
        ArchiveError::Damaged { .. }
    ));
}

// shows: ARCHIVE-1
#[test]
fn archives_of_one_millisecond_get_names_of_their_own() {
    let (_directory, place) = directory();
    let first = archive(&place, 3, 1000, b"first");
    let second = archive(&place, 3, 1000, b"second");
    let third = archive(&place, 3, 1000, b"third");
    let ids = [first, second, third].map(|made| {
        assert_eq!(place.manifest(Some(&made.id)).unwrap(), made);
        assert_eq!(made.began_ms, 1000);
        made.id
    });
    assert_eq!(place.ids().unwrap(), ids, "none is overwritten");
    assert_eq!(ids[1], archive_id(ClusterId(3), 1001));
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
    for name in ["", "s3a://bucket/prefix", "http://x"] {
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

#[test]
fn a_manifest_tells_durabilities_and_only_then_needs_a_later_program() {
    let path = Path::new("x.json");
    let format = |bytes: &[u8]| {
        let front: serde_json::Value = serde_json::from_slice(bytes).unwrap();
        front["pluvio_archive"].as_u64().unwrap()
    };
    let mut made = manifest(Vec::new());
    let plain = made.to_bytes();
    assert_eq!(format(&plain), 1, "earlier programs read it");
    assert!(!String::from_utf8_lossy(&plain).contains("durability"));
    assert_eq!(Manifest::from_bytes(path, &plain).unwrap(), made);
    made.consistency = Consistency::OneMoment;
    assert_eq!(format(&made.to_bytes()), 2);
    made.tables[0].durability = Some(ArchivedDurability {
        replicas: 3,
        synced: true,
    });
    let bytes = made.to_bytes();
    assert_eq!(format(&bytes), u64::from(MANIFEST_FORMAT));
    assert_eq!(Manifest::from_bytes(path, &bytes).unwrap(), made);
}
