//! Racks: no segment has its only replica where its owner is, so that nothing is lost with one of
//! them.

use crate::rig::{LONG, Rig};
use pluvio_sim::DiskFaults;

const RACKS: [&str; 6] = ["a", "b", "c", "a", "b", "c"];
/// More than two segments.
const OBJECTS: u32 = 200;

/// One replica of each segment. Where racks are not looked at, every fifth one is with its owner's
/// neighbour; the loss of their rack takes both.
#[test]
fn a_rack_that_loses_its_power_takes_nothing_with_it() {
    for lost in ["a", "b", "c"] {
        let mut rig = Rig::new(1);
        // All racks have a server before any has two: a server that finds no other rack takes one
        // of the same.
        for first_or_second in RACKS.chunks(3) {
            for rack in first_or_second {
                rig.add_to(Some(rack), 1, DiskFaults::default());
            }
            rig.all_started();
        }
        // Each server has a tablet of the first; the second fills segments of one server that is
        // lost.
        rig.fill("small", 100);
        let servers = 0..RACKS.len();
        let large = rig.fill_large("large", OBJECTS);
        assert!(rig.owner(&large, b"key 0").is_some());
        let of_lost: Vec<usize> = servers.filter(|i| RACKS[*i] == lost).collect();
        for of in &of_lost {
            let master = rig.server(*of).unwrap().id();
            for other in &of_lost {
                let there = rig.frames(*other, master);
                assert!(there.is_empty(), "{of} has a replica on {other}");
            }
        }
        for server in &of_lost {
            rig.power_loss(*server);
        }
        let living = RACKS.len() - of_lost.len();
        let well = || {
            let status = rig.status();
            status.list.up().count() == living && status.recoveries.iter().all(|r| r.done)
        };
        let until = rig.sim.now() + LONG;
        while !well() {
            assert!(rig.sim.now() < until, "{lost}: {:?}", rig.status());
            rig.sim.run_for(std::time::Duration::from_millis(500));
        }
        assert_eq!(rig.status().recoveries.len(), of_lost.len());
        rig.check("small", 100);
        rig.check_large("large", OBJECTS);
    }
}
