//! Everything was killed, or all that has a part of a log: what comes back must be enough, in
//! whatever order it comes.

use crate::rig::Rig;
use pluvio_env::OpenMode;
use pluvio_format::SegmentKind;
use pluvio_sim::DiskFaults;
use pluvio_units::{Marks, SegmentId, ServerId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// All five servers and the coordinator are killed; they come back in a random order, with pauses,
/// except for `lost` of them. Every segment had three replicas.
fn cold_start(seed: u64, lost: usize) {
    let mut rig = Rig::of(80 + seed, 5, 3);
    rig.all_started();
    rig.fill("t", 200);
    let former: Vec<ServerId> = (0..5).map(|i| rig.server(i).unwrap().id()).collect();
    for i in 0..5 {
        rig.kill(i);
    }
    rig.sim.crash(rig.coordinator.id);

    let mut dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |n: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % n
    };
    // Number 5 is the coordinator.
    let mut order: Vec<usize> = (0..6).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, below(i as u64 + 1) as usize);
    }
    let never: BTreeSet<usize> = order
        .iter()
        .copied()
        .filter(|i| *i < 5)
        .take(lost)
        .collect();
    for i in order.into_iter().filter(|i| !never.contains(i)) {
        match i {
            5 => rig.restart_coordinator(),
            server => rig.restart(server, 3),
        }
        rig.sim.run_for(Duration::from_millis(below(3000)));
    }
    rig.check("t", 200);

    for _ in 0..60 {
        let status = rig.status();
        let is_over = status.recoveries.iter().all(|recovery| recovery.done);
        if is_over && status.list.servers.len() == 5 - lost {
            break;
        }
        rig.sim.run_for(Duration::from_millis(500));
    }
    let status = rig.status();
    assert_eq!(status.list.servers.len(), 5 - lost, "{status:?}");
    rig.sim.run_for(Duration::from_secs(5));
    for i in (0..5).filter(|i| !never.contains(i)) {
        for id in &former {
            let left: Vec<_> = rig.frames(i, *id).into_iter().map(|f| f.path).collect();
            assert!(left.is_empty(), "seed {seed}: server {i} keeps {left:?}");
        }
    }
    rig.check("t", 200);
}

#[test]
fn servers_that_come_back_in_any_order_bring_everything_back() {
    for seed in 0..4 {
        cold_start(seed, 0);
    }
}

#[test]
fn servers_that_never_come_back_are_not_needed() {
    for seed in 0..6 {
        cold_start(10 + seed, 1 + seed as usize % 2);
    }
}

/// A master dies together with both backups of a segment of its log. The status names that segment,
/// and when one of the two is back, everything is.
#[test]
fn a_log_that_is_not_complete_is_waited_for_and_what_is_missing_is_named() {
    let tried = (0..4).filter(|seed| both_backups_away(*seed)).count();
    assert!(tried > 0, "there was no such segment");
}

fn both_backups_away(seed: u64) -> bool {
    let rig = Rig::of(40 + seed, 6, 2);
    rig.all_started();
    let table = rig.fill_large("t", 250);
    let master = rig.owner(&table, b"key 0").expect("somebody serves it");
    let id = rig.server(master).unwrap().id();
    let mut places: BTreeMap<SegmentId, (Vec<usize>, bool)> = BTreeMap::new();
    for i in (0..6).filter(|i| *i != master) {
        for frame in rig.frames(i, id) {
            let place = places.entry(frame.header.segment).or_default();
            place.0.push(i);
            place.1 |= frame.header.closed && frame.header.kind == SegmentKind::Head;
        }
    }
    // One that was closed, while the open heads are elsewhere.
    let heads = || places.values().filter(|(_, closed)| !closed);
    let found = places.iter().find(|(_, (on, closed))| {
        *closed && heads().all(|(backups, _)| backups.iter().any(|b| !on.contains(b)))
    });
    let Some((segment, (away, _))) = found else {
        return false;
    };
    rig.kill(master);
    for backup in away {
        rig.kill(*backup);
    }
    rig.sim.run_for(Duration::from_secs(5));
    let now = rig.status();
    let recovery = now.recoveries.iter().find(|r| r.crashed == id);
    let recovery = recovery.expect("it is being recovered");
    let stage = recovery.stage.to_string();
    let (before, named) = stage
        .split_once("segments are missing (")
        .unwrap_or_else(|| panic!("seed {seed}: {recovery:?}"));
    assert!(!recovery.done && before.contains("not complete"));
    let named = named.split([',', ')']).map(str::trim);
    assert!(
        named.clone().any(|name| name == segment.to_string()),
        "seed {seed}: segment {segment} is not among {named:?}"
    );
    rig.restart(away[0], 2);
    rig.check_large("t", 250);
    true
}

/// Of five servers with three replicas of "t", all down, `weak` alone comes back. The recovery of
/// the former life `id` of `master` waits, and says `why`. When all but that master are back,
/// everything is.
fn waits_for_the_others(rig: &Rig, (weak, master): (usize, usize), id: ServerId, why: &str) {
    rig.restart(weak, 3);
    rig.sim.run_for(Duration::from_secs(30));
    let now = rig.status();
    let recovery = now.recoveries.iter().find(|r| r.crashed == id);
    let recovery = recovery.expect("it is being recovered");
    assert!(
        !recovery.done && recovery.stage.to_string().contains(why),
        "{recovery:?}"
    );
    for i in (0..5).filter(|i| *i != weak && *i != master) {
        rig.restart(i, 3);
    }
    rig.check("t", 40);
}

/// COORD-10: a master dies, the machine of one of its three backups loses power, and the other two
/// are away. The first backup's head may lack the last acknowledged writes, so it is not taken for
/// the end of the log. When the others are back, everything is.
// shows: BACKUP-11, COORD-10
#[test]
fn a_head_that_may_have_lost_its_end_is_waited_for() {
    let rig = Rig::of(80, 5, 3);
    rig.all_started();
    let table = rig.fill("t", 40);
    let master = rig.owner(&table, b"key 0").expect("somebody serves it");
    let id = rig.server(master).unwrap().id();
    let has_head = |i: &usize| rig.frames(*i, id).iter().any(|f| !f.header.closed);
    let weak = (0..5).filter(|i| *i != master).find(has_head);
    let weak = weak.expect("somebody has a head");
    for i in 0..5 {
        rig.kill(i);
    }
    // The operating system has written some of it by then. Nobody can tell how much.
    let process = rig.sim.restart(rig.servers[weak]);
    let disk = process.env.disk.clone();
    rig.run(&process, async move {
        for name in disk.list("frames").await.unwrap() {
            let path = format!("frames/{name}");
            let file = disk.open(&path, OpenMode::Existing).await.unwrap();
            file.sync().await.unwrap();
        }
        disk.sync_directory("frames").await.unwrap();
    });
    rig.sim.power_loss(rig.servers[weak]);
    waits_for_the_others(&rig, (weak, master), id, "lost power");
}

/// BACKUP-12: the last write to the open head of a master has rotted on one of its three backups,
/// and the other two are away. The log does not end before that write, although only its end is
/// damaged; when the others are back, everything is.
// shows: BACKUP-12
#[test]
fn a_head_whose_last_write_has_rotted_does_not_end_the_log() {
    let _marks = Marks::to_reach(&["backup-last-write-rotten"]);
    let mut rig = Rig::new(81);
    rig.synced = true;
    for _ in 0..5 {
        rig.add(3, DiskFaults::default());
    }
    rig.all_started();
    let table = rig.fill("t", 40);
    let master = rig.owner(&table, b"key 0").expect("somebody serves it");
    let id = rig.server(master).unwrap().id();
    let fullest_head = |i: usize| {
        let frames = rig.frames(i, id).into_iter();
        let open = frames.filter(|frame| !frame.header.closed);
        open.max_by_key(|frame| frame.header.certified_length)
    };
    let candidates = (0..5).filter(|i| *i != master);
    let heads = candidates.filter_map(|i| Some((i, fullest_head(i)?)));
    let (weak, head) = heads
        .max_by_key(|(_, frame)| frame.header.certified_length)
        .expect("somebody has a head");
    for i in 0..5 {
        rig.kill(i);
    }
    let (process, last_byte) = (rig.servers[weak], head.area.len() as u64 - 1);
    assert!(rig.sim.flip_bit(process, &head.path, last_byte * 8));
    waits_for_the_others(&rig, (weak, master), id, "not complete");
}
