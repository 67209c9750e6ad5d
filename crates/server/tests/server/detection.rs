//! Servers look after each other: the coordinator of these clusters pings nobody by itself.

use crate::rig::Rig;
use pluvio_coordinator::CoordinatorOptions;
use pluvio_sim::DiskFaults;
use std::time::Duration;

/// Three servers that have heard of each other, and have nothing to do.
fn idle() -> Rig {
    let mut options = CoordinatorOptions::default();
    options.ping_interval = Duration::from_secs(3600);
    let mut rig = Rig::with(7, options);
    for _ in 0..3 {
        rig.add(1, DiskFaults::default());
    }
    rig.all_started();
    rig.sim.run_for(Duration::from_secs(2));
    rig
}

/// How long it takes until the first server has a list without the second one.
fn is_found(rig: &Rig) -> Duration {
    let (watcher, suspect) = (rig.server(0).unwrap(), rig.server(1).unwrap().id());
    let began = rig.sim.now();
    let found = || !watcher.server_list().is_up(suspect);
    rig.sim
        .run_until(found, Duration::from_secs(30))
        .unwrap_or_else(|stuck| panic!("nobody told the coordinator\n{stuck}"));
    rig.sim.now() - began
}

#[test]
fn a_server_that_died_is_reported_by_others() {
    let rig = idle();
    rig.sim.crash(rig.servers[1]);
    let took = is_found(&rig);
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn a_server_that_is_silent_is_reported_by_others() {
    let rig = idle();
    rig.sim.pause(rig.servers[1]);
    let took = is_found(&rig);
    // Each of the others pings it every 200 ms or so, and gives it twice 400 ms; the coordinator
    // gives it a second.
    assert!(took < Duration::from_secs(6), "{took:?}");
}
