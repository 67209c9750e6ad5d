//! What the suites play while coordinators die: one story of tables and crashes.

use super::Cluster;
use pluvio_units::{HashKind, KeyHash};
use pluvio_wire::{CreateTable, DropTable, SplitTablet, TableRef};
use std::fmt::Debug;
use std::time::Duration;

pub fn named(name: &str) -> TableRef {
    TableRef::Name(name.into())
}

pub fn create(cluster: &Cluster, name: &str) -> bool {
    let request = CreateTable {
        name: name.into(),
        span: None,
        hash: HashKind::Slots,
        quota: pluvio_wire::QuotaWish::default(),
        durability: pluvio_wire::DurabilityWish::default(),
    };
    cluster.try_ask(request).is_some()
}

/// One step of the story; false when it has to be tried again.
type Act = fn(&Cluster) -> bool;

/// Tables made, cut, moved and dropped, a crash that is recovered, and a second one meanwhile.
const STORY: [Act; 11] = [
    |c| create(c, "t"),
    |c| create(c, "u"),
    |c| {
        let split = SplitTablet {
            table: named("t"),
            at: Some(KeyHash(1 << 40)),
        };
        c.try_ask(split).is_some()
    },
    |c| c.migrate("t", KeyHash(0), 0),
    |c| {
        c.sim.run_for(Duration::from_millis(200));
        c.migrate("t", KeyHash(0), 1)
    },
    |c| {
        c.crash(0);
        true
    },
    |c| c.try_ask(DropTable::of(named("u"))).is_some(),
    |c| {
        c.restart(0);
        true
    },
    |c| {
        c.crash(1);
        c.restart(1);
        true
    },
    |c| create(c, "v"),
    |c| c.migrate("t", KeyHash(u64::MAX), 1),
];

/// Plays the story with the fault that `fault` names; `between` runs before a step is tried again.
pub fn play_story(cluster: &Cluster, fault: &dyn Debug, between: impl Fn()) {
    for (number, act) in STORY.into_iter().enumerate() {
        let mut tries = 0;
        while !act(cluster) {
            between();
            cluster.sim.run_for(Duration::from_millis(50));
            tries += 1;
            assert!(tries < 500, "step {number} cannot be done, {fault:?}");
        }
    }
}
