//! Writes that are refused or fail, and what they leave behind: no frame, no open file.

use crate::support::{FilesThrough, Image, Node};
use pluvio_backup::BackupOptions;
use pluvio_env::File;
use pluvio_format::SegmentKind::Head;
use pluvio_sim::DiskFaults;
use pluvio_wire::{FatalKind, Refusal, RetryReason, WriteReplica};
use std::sync::{Arc, Mutex, Weak};

fn few() -> BackupOptions {
    BackupOptions {
        open_frames_max: 2,
        ..BackupOptions::default()
    }
}

fn is_for(refused: Result<(), Refusal>, reason: RetryReason) -> bool {
    matches!(refused, Err(Refusal::Retry { why, .. }) if why == reason)
}

// shows: BACKUP-9
#[test]
fn opens_that_are_refused_take_no_room() {
    let node = Node::new(3);
    let backup = node.start_with(few());
    let open = |segment| Image::new(segment, Head, 2).request(segment, Head, 0, 1);
    for segment in 10..20 {
        let mut odd = open(segment);
        odd.certified += 1;
        let refused = node.write(&backup, odd).unwrap_err();
        assert_eq!(refused.fatal_kind(), Some(FatalKind::Malformed));
    }
    let stats = backup.stats();
    assert_eq!((stats.frames, stats.frames_open), (0, 0));
    for segment in [10, 30] {
        node.write(&backup, open(segment)).expect("there is room");
    }
}

// shows: BACKUP-9
#[test]
fn heads_of_a_former_life_are_open_once_they_are_written() {
    let mut node = Node::new(3);
    let part = |segment, from, to| Image::new(segment, Head, 9).request(segment, Head, from, to);
    let backup = node.start();
    for segment in 2..=4 {
        node.write(&backup, part(segment, 0, 1)).unwrap();
    }
    node.sim.crash(node.process);
    node.restart();
    let backup = node.start_with(few());
    let open = || backup.stats().frames_open;
    let found = || backup.stats().frames_found;
    assert_eq!(found(), 3);
    for segment in 2..=4 {
        let gap = node.write(&backup, part(segment, 5, 6));
        assert!(is_for(gap, RetryReason::NotReady));
    }
    assert_eq!(open(), 0, "they were refused");
    for segment in 2..=3 {
        node.write(&backup, part(segment, 1, 2)).unwrap();
    }
    assert_eq!((open(), found()), (2, 1));
    let more = node.write(&backup, part(4, 1, 2));
    assert!(is_for(more, RetryReason::NoSpace));
    assert_eq!((open(), backup.stats().refused_no_space), (2, 1));
    let last = WriteReplica {
        close: true,
        ..part(2, 2, 10)
    };
    node.write(&backup, last).unwrap();
    node.write(&backup, part(4, 1, 2)).expect("one was closed");
    assert_eq!(open(), 2);
}

/// Whether the write had to wait makes no difference.
#[test]
fn a_frame_whose_disk_fails_keeps_no_file_open() {
    for at_once in [true, false] {
        let mut node = Node::new(3);
        let files = Arc::<Mutex<Vec<Weak<dyn File>>>>::default();
        let opened = Arc::clone(&files);
        node.env.disk = Arc::new(FilesThrough {
            disk: Arc::clone(&node.env.disk),
            pass: move |file| {
                opened.lock().unwrap().push(Arc::downgrade(&file));
                file
            },
        });
        let open = || {
            let files = files.lock().unwrap();
            files.iter().filter(|file| file.strong_count() > 0).count()
        };
        let backup = node.start_with(BackupOptions {
            tries_idle: false,
            ..BackupOptions::default()
        });
        let image = Image::new(2, Head, 2);
        let part = |from, to| WriteReplica {
            synced: false,
            ..image.request(2, Head, from, to)
        };
        node.write(&backup, part(0, 1)).unwrap();
        assert_eq!(open(), 1);
        let failing = DiskFaults {
            write_error_ppm: 1_000_000,
            ..DiskFaults::default()
        };
        node.sim.set_disk(node.process, failing);
        let failed = match at_once {
            // Now and then the disk would have to wait.
            true => (0..100)
                .find_map(|_| backup.write_now(&part(1, 2)))
                .unwrap(),
            false => node.write(&backup, part(1, 2)),
        };
        let kind = failed.unwrap_err().fatal_kind();
        assert_eq!(kind, Some(FatalKind::Corrupt));
        assert_eq!((open(), backup.stats().frames_open), (0, 0));
    }
}
