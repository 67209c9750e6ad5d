//! A frozen tablet is served by nobody: its receiver gives up soon when it cannot go on.

use crate::rig::{LONG, Rig};
use pluvio_master::TabletPhase;
use pluvio_wire::Opcode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Everything is there and durable; only a head is missing whose digest has it.
#[test]
fn a_tablet_stays_when_its_receiver_has_no_memory_for_a_head() {
    let rig = Rig::of(21, 3, 2);
    rig.all_started();
    let table = rig.fill_large("t", 3);
    let owner = rig.owner(&table, b"key 0").expect("somebody serves it");
    let receiver = (owner + 1) % 3;
    let work = rig.server(receiver).and_then(|server| server.master());
    let space = Arc::clone(work.expect("it is a member").store().space());
    let full = Arc::new(AtomicBool::new(false));
    let is_full = Arc::clone(&full);
    space.set_seglet_gate(Box::new(move |_, _| !is_full.load(Ordering::Relaxed)));

    // So that the memory can be full after the changes are asked for the last time and before the
    // rest comes.
    rig.delays.set(Opcode::GetTabletData, SECOND / 20);
    rig.begin_migration(&table, receiver);
    let is_frozen = || rig.has_tablet(owner, TabletPhase::Frozen);
    rig.sim.run_until(is_frozen, LONG).unwrap();
    full.store(true, Ordering::Relaxed);
    let began = rig.sim.now();
    let is_served = || rig.owner(&table, b"key 0") == Some(owner);
    rig.sim.run_until(is_served, LONG).unwrap();
    let frozen = rig.sim.now() - began;
    assert!((5 * SECOND..7 * SECOND).contains(&frozen), "{frozen:?}");
    rig.check_large("t", 3);

    full.store(false, Ordering::Relaxed);
    rig.migrate(&table, receiver);
    rig.check_large("t", 3);
}

/// MOVE-6. The owner serves on while it waits for its replicas, before it freezes.
#[test]
fn a_tablet_counts_as_frozen_from_when_its_owner_serves_it_no_more() {
    let rig = Rig::of(22, 3, 2);
    rig.all_started();
    let table = rig.fill("t", 10);
    let owner = rig.owner(&table, b"key 0").expect("somebody serves it");
    let receiver = (owner + 1) % 3;
    rig.delays.set(Opcode::WriteReplica, SECOND);
    let (client, written) = (rig.connect(&rig.other), table.clone());
    rig.sim.spawn(rig.other.id, "write", async move {
        let value = bytes::Bytes::from_static(b"value 0");
        let written = client.write(&written, b"key 0", value);
        written.await.expect("it is written");
    });
    rig.sim.run_for(SECOND / 100);
    rig.begin_migration(&table, receiver);
    let began = rig.sim.now();
    let is_frozen = || rig.has_tablet(owner, TabletPhase::Frozen);
    rig.sim.run_until(is_frozen, LONG).unwrap();
    let frozen = rig.sim.now();
    assert!(frozen - began > SECOND / 2, "{:?}", frozen - began);
    rig.delays.set(Opcode::WriteReplica, Duration::ZERO);
    let is_there = || rig.owner(&table, b"key 0") == Some(receiver);
    rig.sim.run_until(is_there, LONG).unwrap();
    let took = rig.sim.now() - frozen;
    let status = rig.status();
    let told = status.migrations.last().expect("it is known").progress;
    let told = Duration::from_micros(told.frozen_us);
    assert!(
        told > Duration::ZERO && told <= took,
        "{told:?} of {took:?}"
    );
    rig.check("t", 10);
}
