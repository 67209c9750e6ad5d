//! Open frames after a restart: which of their bytes count.

use crate::support::{Image, Node, replicas};
use pluvio_format::SegmentKind::Head;
use pluvio_format::{
    CERTIFICATE_BYTES, FRAME_DATA_OFFSET, FRAME_SLOT_BYTES, FrameHeader, LastWrite, read_frame,
};
use pluvio_units::{ReplicationEpoch, crc32c};
use pluvio_wire::{Refusal, ReplicaInfo, WriteReplica};

/// Replicas that a backup offers after its process was away and `change` met an open frame.
/// `change` gets the file and the position in it where the last write begins. Also given: the
/// length of the writes before it.
fn offered_after(
    synced: bool,
    change: impl FnOnce(usize, &mut Vec<u8>),
) -> (Vec<ReplicaInfo>, u32) {
    let mut node = Node::new(3);
    let backup = node.start();
    let image = Image::new(2, Head, 20);
    for (from, to) in [(0, 10), (10, 20)] {
        let request = WriteReplica {
            synced,
            ..image.request(2, Head, from, to)
        };
        node.write(&backup, request).expect("is written");
    }
    drop(backup);
    let kept = image.ends[9];
    node.rewrite("frames/0000000000000003-0000000000000002", |file| {
        let at = FRAME_DATA_OFFSET + kept as usize;
        change(at, file);
    });
    node.sim.crash(node.process);
    node.restart();
    let backup = node.start();
    (replicas(&node, &backup), kept)
}

/// Damage to the file of a frame whose last write begins at that place.
type Damage = fn(usize, &mut [u8]);

/// Zeros are what a device may give for sectors at the end of a file whose new length it has kept.
fn lose_a_sector(last_write: usize, file: &mut [u8]) {
    let begin = (last_write + 1).next_multiple_of(FRAME_SLOT_BYTES);
    file[begin..begin + FRAME_SLOT_BYTES].fill(0);
}

fn flip_a_bit(last_write: usize, file: &mut [u8]) {
    file[last_write + FRAME_SLOT_BYTES] ^= 4;
}

/// Makes the frame one of version 3, whose last write began where the first certificate stands. Its
/// header tells of the sectors of that write or, as those of version 1, does not.
fn of_version_3(file: &mut Vec<u8>, sectors: bool) {
    let (newest, segment) = read_frame(file).expect("it was written");
    let kept = newest.in_line_from.expect("a head has certificates");
    file.truncate(FRAME_DATA_OFFSET);
    file.extend_from_slice(&segment);
    let last_write = LastWrite::new(kept, &segment[kept as usize..]);
    let lengths = [kept, newest.certified_length];
    for (sequence, certified_length) in (1..).zip(lengths) {
        let header = FrameHeader {
            certified_length,
            sequence,
            in_line_from: None,
            has_remains: false,
            last_write: if sectors {
                last_write
            } else {
                LastWrite::default()
            },
            ..newest
        };
        let mut slot = header.encode();
        slot[8] = 3;
        let (content, crc) = slot.split_at_mut(FRAME_SLOT_BYTES - 4);
        crc.copy_from_slice(&crc32c(&[content]).to_le_bytes());
        let at = header.slot() * FRAME_SLOT_BYTES;
        file[at..at + FRAME_SLOT_BYTES].copy_from_slice(&slot);
    }
}

// shows: BACKUP-12
#[test]
fn an_open_frame_that_lacks_a_sector_is_as_long_as_before_its_last_write() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-last-write-cut-off"]);
    let (found, kept) = offered_after(true, |at, file| lose_a_sector(at, file));
    assert_eq!(found[0].length, kept);
}

/// BACKUP-12: it may have been answered.
// shows: BACKUP-12
#[test]
fn an_open_frame_whose_last_write_has_rotted_is_damaged() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-last-write-rotten"]);
    assert_eq!(offered_after(true, |at, file| flip_a_bit(at, file)).0, []);
}

/// The header of a frame with remains is written behind the certificates, and says how much they
/// certify. A device may lose them, and keep the header.
// shows: BACKUP-1
#[test]
fn an_open_frame_whose_header_outlived_its_certificates_is_damaged() {
    let (found, _) = offered_after(true, |_, file| {
        let (newest, segment) = read_frame(file).expect("it was written");
        let kept = newest.in_line_from.expect("a head has certificates");
        let header = FrameHeader {
            certified_length: u32::try_from(segment.len()).expect("it is short"),
            sequence: newest.sequence + 1,
            has_remains: true,
            ..newest
        };
        let at = header.slot() * FRAME_SLOT_BYTES;
        file[at..at + FRAME_SLOT_BYTES].copy_from_slice(&header.encode());
        file[FRAME_DATA_OFFSET + kept as usize..].fill(0);
    });
    assert_eq!(found, []);
}

/// Nothing tells what is missing from what has rotted.
#[test]
fn without_a_word_on_its_sectors_a_last_write_that_is_damaged_was_cut_off() {
    for change in [lose_a_sector, flip_a_bit] {
        let (found, kept) = offered_after(true, |last_write, file| {
            of_version_3(file, false);
            change(last_write, file);
        });
        assert_eq!(found[0].length, kept);
    }
}

#[test]
fn an_open_frame_of_an_earlier_program_is_read_as_that_program_read_it() {
    let cases: [(Damage, bool); 2] = [(lose_a_sector, true), (flip_a_bit, false)];
    for (change, is_kept) in cases {
        let (found, kept) = offered_after(true, |last_write, file| {
            of_version_3(file, true);
            change(last_write, file);
        });
        let lengths: Vec<u32> = found.iter().map(|replica| replica.length).collect();
        assert_eq!(lengths, if is_kept { vec![kept] } else { vec![] });
    }
}

/// BACKUP-12: all of it was answered, since a later write came behind it.
// shows: BACKUP-12
#[test]
fn an_open_frame_that_lacks_a_sector_before_its_last_write_is_damaged() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-damaged-frame"]);
    let mut node = Node::new(3);
    let backup = node.start();
    let image = Image::new(2, Head, 30);
    for (from, to) in [(0, 10), (10, 20), (20, 30)] {
        node.write(&backup, image.request(2, Head, from, to))
            .expect("is written");
    }
    drop(backup);
    for lost in [CERTIFICATE_BYTES + FRAME_SLOT_BYTES, 0] {
        let at = FRAME_DATA_OFFSET + image.ends[9] as usize;
        node.rewrite("frames/0000000000000003-0000000000000002", |file| {
            let begin = (at + lost) / FRAME_SLOT_BYTES * FRAME_SLOT_BYTES;
            file[begin.max(at)..begin + FRAME_SLOT_BYTES].fill(0);
        });
        node.sim.crash(node.process);
        node.restart();
        let backup = node.start();
        assert_eq!(replicas(&node, &backup), []);
    }
}

/// The master is alive and its writes go on, although this backup was away.
#[test]
fn a_frame_goes_on_where_its_certificates_end() {
    let mut node = Node::new(3);
    let backup = node.start();
    let image = Image::new(2, Head, 20);
    let epoch = ReplicationEpoch(4);
    let of_epoch = |from, to| WriteReplica {
        epoch,
        ..image.request(2, Head, from, to)
    };
    node.write(&backup, image.request(2, Head, 0, 5))
        .expect("is written");
    node.write(&backup, image.request(2, Head, 5, 8))
        .expect("is written");
    node.write(&backup, of_epoch(8, 8)).expect("is written");
    let change: [fn(&mut Vec<u8>); 3] = [
        |_| (),
        |file| file.extend_from_slice(&[7; 20]),
        |file| of_version_3(file, true),
    ];
    for (change, groups) in change.into_iter().zip([8, 12, 16]) {
        node.rewrite("frames/0000000000000003-0000000000000002", change);
        node.sim.crash(node.process);
        node.restart();
        let backup = node.start();
        for from in [groups, groups + 2] {
            node.write(&backup, of_epoch(from, from + 2))
                .expect("is written");
        }
        node.sim.crash(node.process);
        node.restart();
        let backup = node.start();
        let found = replicas(&node, &backup);
        let end = image.ends[groups + 3];
        assert_eq!((found[0].length, found[0].epoch), (end, epoch));
        let path = "frames/0000000000000003-0000000000000002";
        let file = node.sim.file_content(node.process, path);
        let (_, segment) = read_frame(&file.expect("is there")).expect("is a frame");
        assert_eq!(segment, image.bytes[..end as usize]);
    }
}

/// The machine has not lost its power since the end was written, so it is no write that was cut
/// off.
#[test]
fn an_open_frame_that_lost_its_end_without_a_loss_of_power_is_damaged() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-damaged-frame"]);
    for change in [lose_a_sector, flip_a_bit] {
        assert_eq!(offered_after(false, |at, file| change(at, file)).0, []);
    }
}

/// How many replicas of an open head are asked for, after its process died or its machine lost
/// power; `None` when it was lost.
fn copies_after(seed: u64, synced: bool, power: bool) -> Option<u8> {
    let mut node = Node::new(seed);
    let backup = node.start();
    let image = Image::new(2, Head, 3);
    let request = WriteReplica {
        synced,
        ..image.request(2, Head, 0, 3)
    };
    node.write(&backup, request).expect("is written");
    if power {
        node.sim.power_loss(node.process);
    } else {
        node.sim.crash(node.process);
    }
    node.restart();
    let backup = node.start();
    let found = replicas(&node, &backup);
    let head = found.first()?.head.as_ref();
    Some(head.expect("is open").copies)
}

// shows: BACKUP-11, COORD-10
#[test]
fn an_open_head_that_was_not_synced_is_doubtful_after_a_power_loss() {
    let (buffered, synced) = (false, true);
    assert_eq!(copies_after(1, buffered, false), Some(1));
    assert_eq!(copies_after(1, synced, true), Some(1));
    let left: Vec<u8> = (0..40)
        .filter_map(|seed| copies_after(seed, buffered, true))
        .collect();
    assert!(!left.is_empty(), "some survive");
    assert!(
        left.iter().all(|copies| *copies == 2),
        "BACKUP-11: {left:?}"
    );
}

/// As messages of one stream that overtake each other, or of which one is lost.
// shows: BACKUP-3, REP-15
#[test]
fn a_write_is_refused_until_all_before_it_are_there() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-refuses-gap"]);
    let node = Node::new(3);
    let backup = node.start();
    let image = Image::new(2, Head, 20);
    let part = |from, to| image.request(2, Head, from, to);
    node.write(&backup, part(0, 5)).expect("is written");
    let early = node.write(&backup, part(10, 20));
    assert!(matches!(early, Err(Refusal::Retry { .. })), "{early:?}");
    node.write(&backup, part(5, 10)).expect("is written");
    assert_eq!(replicas(&node, &backup)[0].length, image.ends[9]);
}

/// Which of them wait for the disk makes no difference.
// shows: BACKUP-1, BACKUP-11
#[test]
fn writes_that_need_not_wait_count_as_those_that_do() {
    let mut node = Node::new(3);
    let backup = node.start();
    let image = Image::new(2, Head, 40);
    let mut at_once = 0;
    for group in 0..40 {
        let request = WriteReplica {
            synced: false,
            ..image.request(2, Head, group, group + 1)
        };
        match backup.write_now(&request) {
            Some(result) => {
                assert!(group > 0, "a file is opened by those that wait");
                result.expect("is written");
                at_once += 1;
            }
            None => node.write(&backup, request).expect("is written"),
        }
    }
    assert!((5..35).contains(&at_once), "{at_once}");
    node.sim.crash(node.process);
    node.restart();
    let backup = node.start();
    assert_eq!(replicas(&node, &backup)[0].length, image.ends[39]);
}
