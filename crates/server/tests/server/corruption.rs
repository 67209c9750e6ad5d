//! Memory that does not hold what was written to it: who finds that, and that the data is right
//! where it goes then.

use crate::rig::{LONG, Rig};
use pluvio_format::{SegmentIter, SegmentKind};
use pluvio_master::{Master, TabletPhase};
use pluvio_units::{Marks, SEGLET_BYTES};
use pluvio_wire::Opcode;
use std::sync::Arc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// More than one segment.
const OBJECTS: u32 = 100;
/// So few that a side log has one segment, which is not closed before the last of them was
/// replayed.
const FEW: u32 = 5;
const FLIPS: u64 = 16;

fn work(rig: &Rig, of: usize) -> Arc<Master> {
    let server = rig.server(of).expect("it has started");
    server.master().expect("it is a member")
}

/// Turns over bits in a server's memory, of the checksums of objects: readers do not look at them.
/// They are of the only table. Says how many.
fn flip_checksums(rig: &Rig, of: usize) -> u64 {
    let master = work(rig, of);
    let flipped = (0..FLIPS).filter(|n| {
        master.store().flip_bit(|limit| match limit {
            // Where in the table.
            u64::MAX => n * (u64::MAX / FLIPS),
            // In the checksum.
            2 => 1,
            33 => *n,
            _ => 0,
        })
    });
    flipped.count() as u64
}

/// Waits until a server has ended for its memory. The entries it replayed were no part of its log
/// then, and nobody was served from it.
fn ends_before_it_joins(rig: &Rig, of: usize) {
    let master = work(rig, of);
    let over = || !rig.corrupt().is_empty() || master.tablets().serving() > 0;
    let found = rig.sim.run_until(over, LONG);
    found.unwrap_or_else(|stuck| panic!("nobody has met the bits: {stuck}"));
    assert_eq!(rig.corrupt(), [of]);
    let space = master.store().space();
    let mut joined = space.logs().flat_map(|log| space.segments(log));
    assert!(!joined.any(|segment| segment.kind() == SegmentKind::Side));
}

/// REP-13. Bits that readers do not look at have turned over in the owner's memory. Then a backup
/// is lost, and its replicas are to be written anew from there.
// shows: REP-13
#[test]
fn a_bit_that_turned_over_reaches_no_new_replica() {
    let _marks = Marks::to_reach(&["memory-corrupt-server-ends"]);
    let rig = Rig::of(1, 5, 2);
    rig.all_started();
    let table = rig.fill_large("large", OBJECTS);
    rig.sim.run_for(LONG);
    let owner = rig.owner(&table, b"key 0").unwrap();
    let id = rig.server(owner).unwrap().id();
    assert_eq!(flip_checksums(&rig, owner), FLIPS, "there are objects");
    rig.check_large("large", OBJECTS);
    assert!(rig.corrupt().is_empty(), "readers compare no checksums");
    // Of the first segment, which is closed.
    let has_closed = |i: &usize| rig.frames(*i, id).iter().any(|frame| frame.header.closed);
    let lost = (0..rig.servers.len()).find(|i| *i != owner && has_closed(i));
    let lost = lost.unwrap();
    rig.kill(lost);
    let found = rig.sim.run_until(|| rig.corrupt() == [owner], LONG);
    found.unwrap_or_else(|stuck| panic!("nobody has met the bits: {stuck}"));
    rig.kill(owner);
    for of in (0..rig.servers.len()).filter(|of| ![owner, lost].contains(of)) {
        for frame in rig.frames(of, id) {
            assert!(!frame.segment.is_empty(), "{}", frame.path);
            let groups = SegmentIter::new(&frame.segment, SEGLET_BYTES);
            assert!(groups.into_iter().all(|g| g.is_ok()), "{}", frame.path);
        }
    }
    rig.check_large("large", OBJECTS);
}

/// CLEAN-10. Replayed entries wait for their replicas when the bits turn over.
// shows: CLEAN-10
#[test]
fn what_a_recovery_master_replayed_is_compared_before_it_joins() {
    let rig = Rig::of_late_reads(2, 5, 2);
    rig.all_started();
    let table = rig.fill_large("large", FEW);
    let owner = rig.owner(&table, b"key 0").unwrap();
    rig.delays.set(Opcode::WriteReplica, SECOND / 2);
    rig.kill(owner);
    let replays = |i: &usize| *i != owner && work(&rig, *i).store().stats().objects > 0;
    let found = || (0..rig.servers.len()).find(replays);
    rig.sim.run_until(|| found().is_some(), LONG).unwrap();
    let master = found().unwrap();
    assert!(flip_checksums(&rig, master) > 0);
    ends_before_it_joins(&rig, master);
    rig.delays.set(Opcode::WriteReplica, Duration::ZERO);
    rig.kill(master);
    rig.check_large("large", FEW);
}

/// The only tablet begins to move, and comes in parts, each so much later than the one before it.
/// Gives its owner and its receiver.
fn moving(rig: &Rig, objects: u32, pause: Duration) -> (usize, usize) {
    rig.all_started();
    let table = rig.fill_large("large", objects);
    let owner = rig.owner(&table, b"key 0").unwrap();
    let receiver = (owner + 1) % rig.servers.len();
    rig.delays.set(Opcode::GetTabletData, pause);
    rig.begin_migration(&table, receiver);
    (owner, receiver)
}

/// CLEAN-10. All objects were replayed when the bits turn over.
// shows: CLEAN-10
#[test]
fn what_a_receiver_replayed_is_compared_before_it_joins() {
    let rig = Rig::of(3, 4, 2);
    let (owner, receiver) = moving(&rig, FEW, SECOND / 20);
    let is_frozen = || rig.has_tablet(owner, TabletPhase::Frozen);
    rig.sim.run_until(is_frozen, LONG).unwrap();
    assert!(flip_checksums(&rig, receiver) > 0);
    ends_before_it_joins(&rig, receiver);
    rig.kill(receiver);
    rig.check_large("large", FEW);
}

/// CLEAN-10. Nobody serves a frozen tablet, so what has its replicas by then is compared already.
// shows: CLEAN-10
#[test]
fn what_a_receiver_replayed_is_compared_bit_by_bit_while_the_tablet_is_served() {
    let rig = Rig::of(4, 4, 2);
    let (owner, receiver) = moving(&rig, OBJECTS, SECOND / 5);
    let id = rig.server(receiver).unwrap().id();
    let has_replica = |i: usize| {
        let frames = rig.frames(i, id);
        let mut sides = frames.iter().filter(|f| f.header.kind == SegmentKind::Side);
        sides.any(|frame| frame.header.closed)
    };
    let closed = (0..1000).any(|_| {
        rig.sim.run_for(SECOND / 50);
        (0..rig.servers.len()).any(has_replica)
    });
    assert!(closed, "several segments are replayed");
    assert!(flip_checksums(&rig, receiver) > 0);
    let is_frozen = || rig.has_tablet(owner, TabletPhase::Frozen);
    let over = || !rig.corrupt().is_empty() || is_frozen();
    rig.sim.run_until(over, LONG).unwrap();
    assert_eq!((rig.corrupt(), is_frozen()), (vec![receiver], false));
    rig.kill(receiver);
    rig.check_large("large", OBJECTS);
}
