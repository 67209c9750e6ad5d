//! How fast the disk is taken to be, on a simulated one.

use crate::support::Node;
use pluvio_sim::DiskFaults;
use std::time::Duration;

#[test]
fn the_disk_is_measured_at_each_start_and_remembered_for_one_at_which_it_takes_nothing() {
    let mut node = Node::new(14);
    let fast = node.start().disk_mb_per_s();
    let mut speed_with = |faults: DiskFaults| {
        node.sim.crash(node.process);
        node.sim.set_disk(node.process, faults);
        node.restart();
        let begun = node.sim.now();
        let speed = node.start().disk_mb_per_s();
        let took = node.sim.now() - begun;
        assert!(took < Duration::from_secs(5), "{took:?}");
        (speed, node.sim.disk_used(node.process))
    };
    let (slow, used) = speed_with(DiskFaults {
        bytes_per_second: 10_000_000,
        ..DiskFaults::default()
    });
    assert!((2..10).contains(&slow) && fast > 100, "{slow}, {fast}");
    let (remembered, _) = speed_with(DiskFaults {
        capacity: Some(used + 1000),
        ..DiskFaults::default()
    });
    assert_eq!(remembered, slow);
    let (remembered, _) = speed_with(DiskFaults {
        write_error_ppm: 1_000_000,
        ..DiskFaults::default()
    });
    assert_eq!(remembered, slow);
    // It is not waited for.
    let (slowest, _) = speed_with(DiskFaults {
        bytes_per_second: 100_000,
        ..DiskFaults::default()
    });
    assert_eq!(slowest, 1);
    assert!(speed_with(DiskFaults::default()).0 > 100);
}
