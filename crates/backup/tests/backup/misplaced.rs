//! Files of frames that are removed or exchanged under a running server.

use crate::directories::{Machine, image_of, left, offered, trouble};
use crate::support::{CORE, Image, MASTER};
use pluvio_backup::Backup;
use pluvio_env::OpenMode;
use pluvio_format::SegmentKind::{Head, Side};
use pluvio_sim::DiskFaults;
use pluvio_wire::{FatalKind, Refusal, StartRecovery};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const HEADS: core::ops::Range<u64> = 50..60;

impl Machine {
    fn append(&self, backup: &Backup, head: u64, from: usize) -> Result<(), Refusal> {
        let request = image_of(head).request(head, Head, from, from + 1);
        self.write(backup, request)
    }

    fn path(&self, segment: u64) -> String {
        let name = format!("frames/{:016x}-{segment:016x}", MASTER.0);
        match self.in_first().contains(&segment) {
            true => name,
            false => format!("second/{name}"),
        }
    }

    /// Removes files behind the backup's back; with `exchange`, others take their places.
    fn remove(&self, segments: &[u64], exchange: bool) {
        let paths: Vec<_> = segments.iter().map(|segment| self.path(*segment)).collect();
        // The first device has the names of the whole machine.
        let disk = Arc::clone(&self.node.env.disk);
        self.node.run(async move {
            for path in paths {
                disk.remove(&path).await.unwrap();
                if exchange {
                    disk.open(&path, OpenMode::New).await.unwrap();
                }
            }
        });
    }

    fn damaged(&self, backup: &Backup) -> Vec<u64> {
        let asked = backup.clone();
        let listed = { &self.node }
            .run(async move { asked.start_recovery(StartRecovery::of(MASTER)).await })
            .unwrap();
        let mut damaged: Vec<u64> = listed.damaged.iter().map(|(id, _)| id.0).collect();
        damaged.sort_unstable();
        damaged
    }
}

fn sorted(told: &Mutex<Vec<u64>>) -> Vec<u64> {
    let mut told = told.lock().unwrap().clone();
    told.sort_unstable();
    told
}

// shows: BACKUP-17
#[test]
fn frames_whose_files_are_removed_are_lost_and_their_masters_are_told() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-misses-frame"]);
    for machine in [Machine::of_one(40), Machine::new(41)] {
        let (told, _port) = machine.master();
        let backup = machine.start();
        machine.fill(&backup, 1..21);
        for head in HEADS {
            machine.append(&backup, head, 0).unwrap();
        }
        machine.run_for(60);
        assert_eq!(backup.stats().frames_damaged, 0);
        let lost = [3, 7, 20, 51, 54];
        machine.remove(&lost, false);
        machine.append(&backup, 51, 1).expect("open files work");
        machine.run_for(6);
        assert_eq!(sorted(&told), lost);
        assert_eq!(backup.stats().frames_damaged, lost.len() as u64);
        // The directory is used, and all others count.
        assert!(!left(&backup).contains(&true));
        assert!(trouble(&backup).iter().all(Option::is_none));
        for head in HEADS {
            let from = if head == 51 { 2 } else { 1 };
            let more = machine.append(&backup, head, from);
            match lost.contains(&head) {
                // The backup itself is of use still.
                true => assert_eq!(more.unwrap_err().fatal_kind(), Some(FatalKind::NotFound)),
                false => assert_eq!(more, Ok(())),
            }
        }
        // Neither does a late open bring one back, nor is one told twice.
        let late = machine.append(&backup, 54, 0).unwrap_err();
        assert_eq!(late.fatal_kind(), Some(FatalKind::NotFound));
        machine.run_for(60);
        assert_eq!(sorted(&told), lost);
        machine.fill(&backup, 100..110);
        machine.free(&backup, 3);
        assert_eq!(machine.damaged(&backup), lost[1..]);
        let all = (1..21).chain(HEADS).chain(100..110);
        let expected: Vec<u64> = all.filter(|segment| !lost.contains(segment)).collect();
        assert_eq!(offered(&machine, &backup), expected);
    }
}

/// The backup writes to a file that has no name any more, and recovery would read the other one.
// shows: BACKUP-17
#[test]
fn an_open_frame_whose_file_is_exchanged_is_lost() {
    let machine = Machine::of_one(42);
    let (told, _port) = machine.master();
    let backup = machine.start();
    for head in HEADS {
        machine.append(&backup, head, 0).unwrap();
    }
    machine.remove(&[55], true);
    machine.run_for(6);
    assert_eq!(sorted(&told), [55]);
    let refused = machine.append(&backup, 55, 1).unwrap_err();
    assert_eq!(refused.fatal_kind(), Some(FatalKind::NotFound));
    assert_eq!(machine.damaged(&backup), [55]);
}

/// Nobody counts on those, but a recovery must not wait for them.
// shows: BACKUP-17
#[test]
fn a_frame_of_an_earlier_life_whose_file_is_removed_is_lost() {
    let mut machine = Machine::of_one(43);
    let (told, _port) = machine.master();
    let backup = machine.start();
    machine.fill(&backup, 1..5);
    let backup = machine.restart();
    machine.remove(&[2], false);
    machine.run_for(6);
    assert_eq!(sorted(&told), [0; 0]);
    assert_eq!(machine.damaged(&backup), [2]);
    assert_eq!(offered(&machine, &backup), [1, 3, 4]);
}

/// Frames come, go, are exchanged for complete ones and come back, while looks are under way.
// shows: BACKUP-17
#[test]
fn no_frame_is_missed_that_the_backup_itself_moves_or_removes() {
    let machine = Machine::new(44);
    let (told, _port) = machine.master();
    let backup = machine.start();
    let slow = DiskFaults {
        latency_min: Duration::from_millis(20),
        latency_max: Duration::from_millis(400),
        ..DiskFaults::default()
    };
    machine.node.sim.set_disk(machine.node.process, slow);
    for round in 0..6 {
        let first = 1 + 20 * round;
        for segment in first..first + 20 {
            let (writer, image) = (backup.clone(), Image::new(segment, Side, 3));
            let mut grows = image.request(segment, Side, 0, 2);
            (grows.rewriting, grows.certified) = (segment % 2 == 0, 0);
            let mut rest = image.request(segment, Side, 2, image.ends.len());
            (rest.certified, rest.close) = (image.len(), true);
            let free = pluvio_wire::FreeReplica {
                cluster: crate::support::CLUSTER,
                master: MASTER,
                segment: pluvio_units::SegmentId(segment),
            };
            let work = async move {
                writer.write_replica(CORE, grows).await.unwrap();
                writer.write_replica(CORE, rest).await.unwrap();
                if segment % 3 == 0 {
                    writer.free_replica(CORE, free).await.unwrap();
                }
            };
            let (sim, process) = (&machine.node.sim, machine.node.process);
            sim.spawn(process, "writer", work);
        }
        machine.run_for(5);
    }
    machine.run_for(30);
    assert_eq!(sorted(&told), [0; 0]);
    assert_eq!(backup.stats().frames_damaged, 0);
    let expected: Vec<u64> = (1..121).filter(|segment| segment % 3 != 0).collect();
    assert_eq!(offered(&machine, &backup), expected);
}
