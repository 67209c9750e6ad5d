//! The leader dies before and after every batch it stores and every message it sends, in every
//! operation [RAMCloud §9]. `crates/cli/tests` does the same on real servers of etcd and ZooKeeper.

use crate::common::every_step::{the_leader_dies_at_every_step, the_next_leader_dies_too};
use crate::common::ground::InFile;
use pluvio_coordinator::MemoryStore;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

// shows: COORD-2, LEASE-2, MIG-8
#[test]
fn another_leader_goes_on_wherever_the_first_one_died() {
    let deaths = the_leader_dies_at_every_step(&|| Arc::new(MemoryStore::shared()));
    println!("{deaths} deaths");
}

// shows: COORD-2, LEASE-2, MIG-8
#[test]
fn a_leader_that_is_started_again_goes_on_wherever_it_died() {
    let directory = tempfile::tempdir().expect("a directory");
    let files = AtomicU32::new(0);
    let deaths = the_leader_dies_at_every_step(&|| {
        let number = files.fetch_add(1, Ordering::Relaxed);
        Arc::new(InFile::new(directory.path().join(number.to_string())))
    });
    println!("{deaths} deaths");
}

#[test]
fn a_third_leader_goes_on_where_the_second_one_died_over_what_the_first_one_left() {
    let deaths = the_next_leader_dies_too(&|| Arc::new(MemoryStore::shared()));
    println!("{deaths} times both died");
    assert!(deaths > 100, "{deaths}");
}
