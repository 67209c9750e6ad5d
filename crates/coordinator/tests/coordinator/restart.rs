//! The coordinator crashes between any two changes it stores, and just after each of them; and what
//! it finds when it starts again.

use crate::common::Cluster;
use crate::common::story::play_story;
use pluvio_coordinator::{Candidate, CoordinatorError, CoordinatorOptions, Stop};
use pluvio_sim::SimOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Crashes the coordinator when its store has gone silent; the test restarts it.
struct Fault(Arc<AtomicU32>);

const WAITING: u32 = 0;
const CRASHED: u32 = 1;
const RESTARTED: u32 = 2;

impl Fault {
    fn plan(cluster: &Cluster, stop: Option<Stop>) -> Self {
        cluster.store.set_stop(stop);
        let state = Arc::new(AtomicU32::new(WAITING));
        let (store, sim, coordinator) = (
            cluster.store.clone(),
            cluster.sim.handle(),
            cluster.coordinator,
        );
        let (clock, own) = (cluster.client.env.clock.clone(), state.clone());
        cluster.sim.spawn(cluster.client.id, "fault", async move {
            while !store.has_stopped() {
                clock.sleep(Duration::from_millis(1)).await;
            }
            // Long enough for whatever could wrongly go on without the store.
            clock.sleep(Duration::from_millis(300)).await;
            sim.crash(coordinator);
            store.set_stop(None);
            own.store(CRASHED, Ordering::SeqCst);
        });
        Self(state)
    }

    fn repair(&self, cluster: &Cluster) {
        if self.0.load(Ordering::SeqCst) == CRASHED {
            cluster.restart_coordinator();
            self.0.store(RESTARTED, Ordering::SeqCst);
        }
    }
}

/// Plays the story with one fault; gives how many changes were stored.
fn play(seed: u64, stop: Option<Stop>) -> u64 {
    let mut cluster = Cluster::new(seed, SimOptions::default());
    let fault = Fault::plan(&cluster, stop);
    for _ in 0..3 {
        cluster.add_machine();
    }
    cluster.server(0).behaviour.live_bytes = 64 << 20;
    play_story(&cluster, &stop, || fault.repair(&cluster));
    for _ in 0..100 {
        fault.repair(&cluster);
        cluster.sim.run_for(Duration::from_millis(50));
    }
    let status = cluster.calm_down();
    let names: Vec<_> = status.tables.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["t", "v"], "{stop:?}");
    assert_eq!(status.list.servers.len(), 3, "{stop:?}");
    let ended = fault.0.load(Ordering::SeqCst);
    assert_eq!(ended == RESTARTED, stop.is_some(), "{stop:?}");
    cluster.store.batches()
}

// shows: COORD-1, COORD-2
#[test]
fn a_crash_before_any_stored_change_loses_nothing() {
    let batches = play(1, None);
    assert!(batches > 20, "the story stores only {batches} changes");
    // The number of changes differs a little from run to run with other faults.
    for at in 1..batches - 5 {
        play(1, Some(Stop::Before(at)));
    }
}

// shows: COORD-1, COORD-2
#[test]
fn a_crash_after_any_stored_change_loses_nothing() {
    let batches = play(2, None);
    for at in 1..batches - 5 {
        play(2, Some(Stop::After(at)));
    }
}

// shows: COORD-2
#[test]
fn the_state_is_the_same_after_a_restart() {
    let cluster = Cluster::with_servers(3, SimOptions::default(), 3);
    cluster.create_table("t");
    let before = cluster.calm_down();
    let stored = cluster.stored();
    cluster.crash_coordinator();
    cluster.restart_coordinator();
    let after = cluster.calm_down();
    assert_eq!((before.list, before.tables), (after.list, after.tables));
    assert_eq!(before.cluster, after.cluster);
    assert_eq!(stored, cluster.stored(), "a restart stores nothing");
}

/// The store is a copy that was made before a server started again: its new id, and the list that
/// has it, are not there.
#[test]
fn a_coordinator_on_an_old_copy_of_its_store_ends() {
    let _marks = pluvio_units::Marks::to_reach(&["coordinator-store-set-back"]);
    let cluster = Cluster::with_servers(4, SimOptions::default(), 3);
    cluster.create_table("t");
    cluster.calm_down();
    let copy = cluster.store.dump();
    cluster.crash(0);
    cluster.restart(0);
    cluster.calm_down();
    cluster.crash_coordinator();
    cluster.store.replace(copy);
    let process = cluster.sim.restart(cluster.coordinator);
    let (env, store) = (process.env.clone(), cluster.store.clone());
    let running = async move {
        let candidate = Candidate::new(env, CoordinatorOptions::default());
        let Err(error) = candidate.run(Arc::new(store), "coordinator").await;
        error
    };
    let limit = Duration::from_secs(10);
    let error = cluster.sim.block_on(process.id, running, limit);
    let error = error.expect("it ends by itself");
    assert!(matches!(error, CoordinatorError::WentBack(_)), "{error}");
    assert!(
        error.to_string().contains("restore the newest copy"),
        "{error}"
    );
}
