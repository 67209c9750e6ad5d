//! The data directory on a real file system.

#![allow(clippy::unwrap_used)] // of the helpers too

use bytes::Bytes;
use pluvio_env::{Disk, DiskError, FileAt, OpenMode};
use pluvio_env_os::{NoDisk, OsOptions, OsRuntime};
use std::sync::Arc;

/// Runs `test` with the disk of a fresh directory.
fn with_disk<F: Future<Output = ()> + Send + 'static>(
    test: impl FnOnce(Arc<dyn Disk>, std::path::PathBuf) -> F,
) {
    let directory = tempfile::tempdir().unwrap();
    let runtime = OsRuntime::start(&OsOptions::with_cores(1)).unwrap();
    let disk = runtime.open_disk(directory.path()).unwrap();
    runtime.block_on(test(disk, directory.path().to_owned()));
}

// shows: ENVOS-3
#[test]
fn a_directory_has_one_holder_until_its_last_file_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = OsRuntime::start(&OsOptions::with_cores(1)).unwrap();
    let disk = runtime.open_disk(directory.path()).unwrap();
    let second = || runtime.open_disk(directory.path()).err();
    assert!(matches!(second(), Some(DiskError::InUse { .. })));
    let file = {
        let disk = Arc::clone(&disk);
        runtime.block_on(async move { disk.open("a", OpenMode::New).await.unwrap() })
    };
    drop(disk);
    assert!(matches!(second(), Some(DiskError::InUse { .. })));
    drop(file);
    assert_eq!(second(), None);
}

#[test]
fn small_and_large_ranges_come_back_as_written() {
    with_disk(|disk, _| async move {
        let file = disk.open("frames/1", OpenMode::New).await.unwrap();
        let large: Bytes = (0..300_000u32)
            .flat_map(u32::to_le_bytes)
            .collect::<Vec<_>>()
            .into();
        file.write_at(100, large.clone()).await.unwrap();
        file.write_at(0, Bytes::from(vec![9; 100])).await.unwrap();
        file.sync().await.unwrap();
        disk.sync_directory("frames").await.unwrap();
        assert_eq!(file.size().await.unwrap(), 1_200_100);
        assert_eq!(file.read_at(100, large.len()).await.unwrap(), large);
        assert_eq!(
            file.read_at(99, 3).await.unwrap()[..],
            [9, large[0], large[1]]
        );
    });
}

#[test]
fn reading_past_the_end_gives_what_is_there_and_allocates_no_more() {
    with_disk(|disk, _| async move {
        let file = disk.open("f", OpenMode::Create).await.unwrap();
        file.write_at(0, Bytes::from_static(b"0123456789"))
            .await
            .unwrap();
        assert_eq!(file.read_at(8, 100).await.unwrap()[..], *b"89");
        assert_eq!(
            file.read_at(4, usize::MAX / 4).await.unwrap()[..],
            *b"456789"
        );
        assert!(file.read_at(u64::MAX, 10).await.unwrap().is_empty());
        let past = file.write_at(u64::MAX - 3, Bytes::from_static(b"too far"));
        assert!(matches!(past.await, Err(DiskError::Other { .. })));
    });
}

#[test]
fn open_modes_do_what_they_say() {
    with_disk(|disk, _| async move {
        let missing = disk.open("x", OpenMode::Existing).await.err();
        assert!(matches!(missing, Some(DiskError::NotFound { .. })));
        let file = disk.open("x", OpenMode::Create).await.unwrap();
        file.write_at(0, Bytes::from_static(b"kept")).await.unwrap();
        let again = disk.open("x", OpenMode::New).await.err().unwrap();
        assert_eq!(again.to_string(), "x: the file exists already");
        let file = disk.open("x", OpenMode::Create).await.unwrap();
        assert_eq!(file.size().await.unwrap(), 4);
    });
}

#[test]
fn names_are_listed_sorted_without_directories_and_lock() {
    with_disk(|disk, _| async move {
        for name in ["b", "a", "d/x", "c"] {
            disk.open(name, OpenMode::New).await.unwrap();
        }
        assert_eq!(disk.list("").await.unwrap(), ["a", "b", "c"]);
        assert_eq!(disk.list("d").await.unwrap(), ["x"]);
        assert!(disk.list("nothing").await.unwrap().is_empty());
        disk.rename("a", "e/f/a").await.unwrap();
        disk.remove("b").await.unwrap();
        disk.remove("b").await.unwrap();
        disk.remove("never/there").await.unwrap();
        let gone = disk.rename("a", "z/a").await;
        assert!(matches!(gone, Err(DiskError::NotFound { .. })));
        assert_eq!(disk.list("").await.unwrap(), ["c"]);
        assert_eq!(disk.list("e/f").await.unwrap(), ["a"]);
        disk.sync_directory("e/f").await.unwrap();
        disk.sync_directory("nothing/here").await.unwrap();
    });
}

// shows: ENVOS-5
#[test]
fn a_directory_that_is_gone_is_not_made_anew() {
    with_disk(|disk, root| async move {
        let file = disk.open("frames/a", OpenMode::New).await.unwrap();
        let away = root.with_extension("away");
        std::fs::rename(&root, &away).unwrap();
        // With nothing in its place, and with another directory.
        for is_there in [false, true] {
            if is_there {
                std::fs::create_dir(&root).unwrap();
            }
            for name in ["b", "frames/b"] {
                for mode in [OpenMode::New, OpenMode::Create] {
                    let refused = disk.open(name, mode).await;
                    assert!(matches!(refused, Err(DiskError::Gone { .. })), "{name}");
                }
            }
            assert_eq!(root.exists(), is_there);
        }
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0);
        // Open files go on.
        file.write_at(0, Bytes::from_static(b"x")).await.unwrap();
        std::fs::remove_dir(&root).unwrap();
        std::fs::rename(&away, &root).unwrap();
        disk.open("frames/b", OpenMode::New).await.unwrap();
        disk.rename("frames/b", "frames/c").await.unwrap();
    });
}

// shows: ENVOS-5
#[test]
fn a_directory_that_must_stay_is_missed_when_another_one_has_its_name() {
    with_disk(|disk, root| async move {
        let frames = root.join("frames");
        disk.same_directory("frames").await.unwrap();
        assert!(frames.is_dir(), "it is made");
        let file = disk.open("frames/a", OpenMode::New).await.unwrap();
        disk.same_directory("frames").await.unwrap();
        for is_there in [false, true] {
            std::fs::remove_dir_all(&frames).unwrap();
            if is_there {
                std::fs::create_dir(&frames).unwrap();
            }
            let gone = disk.same_directory("frames").await;
            let path = frames.display().to_string();
            assert_eq!(gone, Err(DiskError::Gone { path: path.clone() }));
            let refused = disk.open("frames/b", OpenMode::New).await.err();
            assert_eq!(refused, Some(DiskError::Gone { path }));
            // Other directories and open files go on.
            disk.open("c", OpenMode::Create).await.unwrap();
            file.write_at(0, Bytes::from_static(b"x")).await.unwrap();
            if !is_there {
                std::fs::create_dir(&frames).unwrap();
            }
        }
        std::fs::remove_dir_all(&root).unwrap();
        for directory in ["frames", ""] {
            let gone = disk.same_directory(directory).await;
            assert!(matches!(gone, Err(DiskError::Gone { .. })), "{gone:?}");
        }
    });
}

#[test]
fn files_that_were_removed_or_exchanged_are_misplaced() {
    with_disk(|disk, root| async move {
        let names = ["stays", "removed", "exchanged", "moved"];
        let names = names.map(|name| format!("frames/{name}"));
        let mut open = Vec::new();
        for path in &names {
            let file = disk.open(path, OpenMode::New).await.unwrap();
            let path = path.clone();
            open.push(FileAt {
                path,
                open: Some(file),
            });
        }
        let mut closed = open.clone();
        for file in &mut closed {
            file.open = None;
        }
        assert_eq!(disk.misplaced(open.clone()).await, Ok(vec![]));
        let full = |path: &str| root.join(path);
        for path in [&names[1], &names[2]] {
            std::fs::remove_file(full(path)).unwrap();
        }
        std::fs::write(full(&names[2]), "other").unwrap();
        disk.rename(&names[3], "frames/new").await.unwrap();
        assert_eq!(disk.misplaced(open.clone()).await, Ok(vec![1, 2, 3]));
        // Any file will do where none is open.
        assert_eq!(disk.misplaced(closed).await, Ok(vec![1, 3]));
        open[3].path = "frames/new".to_owned();
        assert_eq!(disk.misplaced(open).await, Ok(vec![1, 2]));
    });
}

#[test]
fn no_name_leaves_the_directory_or_touches_the_lock() {
    with_disk(|disk, _| async move {
        for name in [
            "",
            "/etc/passwd",
            "../x",
            "a/../../x",
            "a//b",
            "a/",
            ".",
            ".pluvio-lock",
            "a\0b",
        ] {
            let refused = disk.open(name, OpenMode::Create).await;
            assert!(matches!(refused, Err(DiskError::Other { .. })), "{name:?}");
            assert!(disk.remove(name).await.is_err(), "{name:?}");
            assert!(disk.rename("ok", name).await.is_err(), "{name:?}");
        }
        assert!(disk.list("..").await.is_err());
    });
}

#[test]
fn a_full_device_is_said_to_be_full() {
    with_disk(|disk, root| async move {
        std::os::unix::fs::symlink("/dev/full", root.join("device")).unwrap();
        let file = disk.open("device", OpenMode::Existing).await.unwrap();
        for size in [10, 100_000] {
            let full = file.write_at(0, Bytes::from(vec![0; size])).await;
            assert_eq!(
                full,
                Err(DiskError::Full {
                    path: "device".to_owned()
                })
            );
        }
    });
}

// shows: DIR-1
#[test]
fn a_directory_that_could_not_be_synced_is_never_said_to_be() {
    with_disk(|disk, root| async move {
        // No sync of such a device succeeds.
        std::os::unix::fs::symlink("/dev/null", root.join("frames")).unwrap();
        let failed = disk.sync_directory("frames").await;
        assert!(matches!(failed, Err(DiskError::Other { .. })), "{failed:?}");
        std::fs::remove_file(root.join("frames")).unwrap();
        disk.open("frames/1", OpenMode::New).await.unwrap();
        let again = disk.sync_directory("frames").await.unwrap_err();
        assert!(
            again
                .to_string()
                .starts_with("frames: an earlier sync failed"),
            "{again}"
        );
        disk.open("others/1", OpenMode::New).await.unwrap();
        disk.sync_directory("others").await.unwrap();
    });
}

#[test]
fn a_process_without_directory_says_so() {
    let runtime = OsRuntime::start(&OsOptions::with_cores(1)).unwrap();
    let error = runtime.block_on(async { NoDisk.list("frames").await.unwrap_err() });
    assert!(
        error.to_string().contains("without a data directory"),
        "{error}"
    );
}

#[test]
fn a_file_is_no_data_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, b"x").unwrap();
    let runtime = OsRuntime::start(&OsOptions::with_cores(1)).unwrap();
    let error = runtime.open_disk(&path).err().unwrap().to_string();
    assert!(error.contains("no directory"), "{error}");
}

/// What opening a data directory is refused with.
fn refusal(path: &std::path::Path) -> String {
    let runtime = OsRuntime::start(&OsOptions::with_cores(1)).unwrap();
    runtime.open_disk(path).err().unwrap().to_string()
}

#[test]
fn what_stands_in_the_way_of_a_data_directory_is_named_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    std::fs::write(place("file"), b"x").unwrap();
    std::os::unix::fs::symlink(place("nothing"), place("dangling")).unwrap();
    std::fs::create_dir_all(place("locked/.pluvio-lock")).unwrap();
    for (name, words) in [
        ("file/below", "a file stands where a directory belongs"),
        ("dangling", "a symbolic link to something that is not there"),
        (
            "dangling/below",
            "a symbolic link to something that is not there",
        ),
        ("locked", ".pluvio-lock: a directory stands where a file"),
    ] {
        let refused = refusal(&place(name));
        assert!(
            refused.contains(name) && refused.contains(words),
            "{refused}"
        );
        assert!(refused.contains("data directory"), "{refused}");
    }
    assert!(!place("nothing").exists());
}

#[test]
fn a_file_in_place_of_a_directory_is_named_and_the_other_way_round() {
    with_disk(|disk, root| async move {
        std::fs::write(root.join("frames"), b"x").unwrap();
        std::fs::create_dir(root.join("identity.json")).unwrap();
        let list = disk.list("frames").await.unwrap_err().to_string();
        assert!(
            list.starts_with("frames: a file stands") && list.contains("move it away"),
            "{list}"
        );
        let open = disk.open("identity.json", OpenMode::Existing).await;
        let open = open.err().unwrap().to_string();
        assert!(
            open.starts_with("identity.json: a directory stands") && open.contains("move it away"),
            "{open}"
        );
    });
}
