//! A store in a folder, over several lives.

#![allow(clippy::unwrap_used)]

use pluvio_kept::{KeptError, KeptStore, TABLE_NAME_MAX};
use pluvio_store::{Lifetime, Size, Store, StoreError};
use std::fs;
use std::path::Path;

fn open(folder: &Path) -> Result<KeptStore, KeptError> {
    let builder = Store::builder().memory(Size::mib(64)).heads(2);
    KeptStore::open(builder, Some(folder))
}

// shows: KEPT-1, KEPT-2
#[test]
fn objects_versions_and_names_outlive_the_store_and_what_is_incomplete_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let kept = open(folder).unwrap();
    let gone = kept.open_table("gone", true).unwrap();
    let table = kept.open_table("a\nname", true).unwrap();
    gone.put(b"key", b"gone").unwrap();
    let first = table.put(b"key", b"value").unwrap();
    table.put(b"deleted", b"value").unwrap();
    table.delete(b"deleted").unwrap();
    table
        .put_for(b"session", b"Zoe", Lifetime::For(3_600_000))
        .unwrap();
    assert!(kept.drop_table("gone").unwrap());
    assert!(!kept.drop_table("gone").unwrap());
    kept.store().sync().unwrap();
    drop((kept, gone, table));
    // A start that was cut off, and one that was cut off while it tidied up.
    fs::create_dir_all(folder.join("7")).unwrap();
    fs::write(folder.join("7/1.open"), b"half").unwrap();
    fs::create_dir_all(folder.join("old/x")).unwrap();

    for _ in 0..3 {
        let kept = open(folder).unwrap();
        assert_eq!(kept.store().table_names(), ["a\nname"]);
        let table = kept.open_table("a\nname", false).unwrap();
        assert_eq!(table.len(), 2);
        assert_eq!(table.get(b"key").as_deref(), Some(&b"value"[..]));
        assert!(table.deadline(b"session").flatten().is_some());
        assert!(table.put(b"key", b"value").unwrap() > first);
        kept.store().sync().unwrap();
    }
}

// shows: KEPT-3
#[test]
fn a_folder_has_one_store_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let kept = open(folder.path()).unwrap();
    assert!(matches!(open(folder.path()), Err(KeptError::InUse(_))));
    let table = kept.open_table("t", true).unwrap();
    drop(kept);
    assert!(
        matches!(open(folder.path()), Err(KeptError::InUse(_))),
        "the table can be written"
    );
    drop(table);
    assert!(open(folder.path()).is_ok());
}

#[test]
fn what_is_damaged_or_too_long_is_told_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let kept = open(folder.path()).unwrap();
    let long = "x".repeat(TABLE_NAME_MAX + 1);
    assert!(matches!(
        kept.open_table(&long, true),
        Err(KeptError::NameTooLong(_))
    ));
    let unknown = kept.open_table("t", false);
    assert!(matches!(
        unknown,
        Err(KeptError::Store(StoreError::UnknownTable(_)))
    ));
    kept.open_table("t", true).unwrap();
    drop(kept);
    let names = folder.path().join("1/tables");
    let right = fs::read(&names).unwrap();
    for wrong in [&right[..right.len() - 1], b"", &[255; 40]] {
        fs::write(&names, wrong).unwrap();
        let refused = open(folder.path());
        assert!(
            matches!(refused, Err(KeptError::Damaged { .. })),
            "{refused:?}"
        );
    }
    fs::write(&names, right).unwrap();
    assert!(open(folder.path()).unwrap().open_table("t", false).is_ok());
}
