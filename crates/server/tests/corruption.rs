//! Memory that does not hold what was written to it, in a cluster of which one backup is lost.

#![allow(clippy::unwrap_used)] // a test that fails shall say where

mod rig;

use pluvio_format::SegmentIter;
use pluvio_units::{Marks, SEGLET_BYTES};
use rig::{LONG, Rig};

/// More than one segment.
const OBJECTS: u32 = 100;
const FLIPS: u64 = 16;

/// REP-13. What readers do not look at has turned over in the owner's memory; then a backup is lost, and what it had is to be
/// written anew from there.
#[test]
fn a_bit_that_turned_over_reaches_no_new_replica() {
    let _marks = Marks::to_reach(&["memory-corrupt-server-ends"]);
    let rig = Rig::of(1, 5, 2);
    rig.all_started();
    let table = rig.fill_large("large", OBJECTS);
    rig.sim.run_for(LONG);
    let owner = rig.owner(&table, b"key 0").unwrap();
    let server = rig.server(owner).unwrap();
    let (id, master) = (server.id(), server.master().unwrap());
    for n in 0..FLIPS {
        let flipped = master.store().flip_bit(|limit| match limit {
            // Where in the table.
            u64::MAX => n * (u64::MAX / FLIPS),
            // In the checksum.
            2 => 1,
            33 => n,
            _ => 0,
        });
        assert!(flipped, "there are objects");
    }
    rig.check_large("large", OBJECTS);
    assert!(rig.corrupt().is_empty(), "readers compare no checksums");
    // Of the first segment, which is closed.
    let has_closed = |i: &usize| rig.frames(*i, id).iter().any(|frame| frame.header.closed);
    let lost = (0..rig.servers.len()).find(|i| *i != owner && has_closed(i));
    let lost = lost.unwrap();
    drop((server, master));
    rig.kill(lost);
    let found = rig.sim.run_until(|| rig.corrupt() == [owner], LONG);
    found.unwrap_or_else(|stuck| panic!("nobody has met the bits: {stuck}"));
    rig.kill(owner);
    for of in (0..rig.servers.len()).filter(|of| ![owner, lost].contains(of)) {
        for frame in rig.frames(of, id) {
            let end = pluvio_format::FRAME_DATA_OFFSET + frame.header.certified_length as usize;
            let segment = &frame.area[pluvio_format::FRAME_DATA_OFFSET..end];
            let groups = SegmentIter::new(segment, SEGLET_BYTES);
            assert!(groups.into_iter().all(|g| g.is_ok()), "{}", frame.path);
        }
    }
    rig.check_large("large", OBJECTS);
}
