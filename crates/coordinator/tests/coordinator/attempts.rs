//! Which masters are asked to recover, how finely what could not be recovered is cut, and what
//! people see of it.

use crate::common::{Cluster, OnRecover};
use pluvio_sim::SimOptions;
use pluvio_units::{Marks, SegmentId, ServerId};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing::Level;

const SECOND: Duration = Duration::from_secs(1);

/// Two servers crash, one after the other. The masters of the first one have something to do.
#[test]
fn who_recovers_nothing_yet_is_asked_first() {
    for seed in 0..12 {
        let cluster = Cluster::with_servers(seed, SimOptions::default(), 4);
        cluster.create_table("t");
        for index in 1..4 {
            cluster.server(index).behaviour.on_recover = vec![OnRecover::Forget; 9];
        }
        let asked = |c: &Cluster| {
            let busy = (1..4).filter(|i| !c.server(*i).recoveries.is_empty());
            busy.collect::<Vec<_>>()
        };
        cluster.crash(0);
        cluster.until("somebody recovers", |c| !asked(c).is_empty());
        let first = asked(&cluster);
        assert_eq!(first.len(), 1, "one partition, one master");
        let mut idle = (1..4).filter(|i| !first.contains(i));
        let (second, third) = (idle.next().unwrap(), idle.next().unwrap());
        cluster.crash(second);
        let requests = |c: &Cluster| {
            let servers = (1..4).map(|i| c.server(i).recoveries.len());
            servers.sum::<usize>()
        };
        cluster.until("the second is recovered, too", |c| requests(c) == 2);
        let asked = asked(&cluster);
        assert!(
            asked.contains(&third),
            "seed {seed}: {asked:?}, not {third}"
        );
    }
}

#[test]
fn after_two_attempts_in_vain_each_further_one_has_twice_as_many_partitions() {
    let cluster = Cluster::with_servers(7, SimOptions::default(), 9);
    cluster.create_table("t");
    for index in 1..9 {
        cluster.server(index).behaviour.on_recover = vec![OnRecover::Fail; 99];
    }
    cluster.crash(0);
    let counts = |c: &Cluster| {
        let server = c.server(1);
        let sets = server.partitions.iter();
        sets.map(|set| set.partitions.len()).collect::<Vec<_>>()
    };
    cluster.until("six attempts", |c| counts(c).len() == 6);
    // No more than there are servers.
    assert_eq!(counts(&cluster), [1, 1, 2, 4, 8, 8]);
    for index in 1..9 {
        cluster.server(index).behaviour.on_recover.clear();
    }
    cluster.calm_down();
}

/// Three of four fail for as long as they are asked. The last one recovers what the others could
/// not in its second attempt, whichever partition each got in the first one.
#[test]
fn what_others_could_not_goes_to_who_has_not_failed_and_status_says_why() {
    for seed in 0..6 {
        let cluster = Cluster::with_servers(seed, SimOptions::default(), 5);
        cluster.server(0).behaviour.live_bytes = 64 << 20;
        cluster.create_table("t");
        for index in 1..4 {
            cluster.server(index).behaviour.on_recover = vec![OnRecover::Fail; 99];
        }
        cluster.crash(0);
        let mut stage = String::new();
        for _ in 0..200 {
            cluster.sim.run_for(SECOND / 20);
            let latest = cluster.status().recoveries.pop();
            stage = latest.map_or_else(String::new, |recovery| recovery.stage.to_string());
            if stage.contains("failed") {
                break;
            }
        }
        let failed: BTreeSet<ServerId> = (1..4).map(|index| cluster.id(index)).collect();
        let failed: Vec<String> = failed.iter().map(ToString::to_string).collect();
        let failed = failed.join(", ");
        let why = format!("; failed on server {failed} (a failure was asked for)");
        assert!(stage.ends_with(&why), "seed {seed}: {stage}");
        let status = cluster.calm_down();
        let recovery = &status.recoveries[0];
        assert_eq!(recovery.attempts, 2, "seed {seed}: {recovery:?}");
        assert_eq!(recovery.masters, [cluster.id(4)], "seed {seed}");
    }
}

#[test]
fn the_trace_has_one_line_for_each_thing_that_happens_to_a_crashed_server() {
    let options = SimOptions {
        log_level: Some(Level::INFO),
        ..SimOptions::default()
    };
    let cluster = Cluster::with_servers(7, options, 5);
    cluster.server(0).behaviour.live_bytes = 1 << 30;
    cluster.create_table("t");
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = lines.clone();
    cluster.sim.set_trace_sink(Box::new(move |line| {
        if line.contains("INFO pluvio_coordinator") {
            sink.lock().unwrap().push(line.to_owned());
        }
    }));
    let crashed = cluster.id(0);
    cluster.crash(0);
    cluster.calm_down();
    let lines = lines.lock().unwrap();
    let has = |words: &str, id: &str| {
        let about = lines.iter().filter(|line| line.contains(words));
        about.filter(|line| line.contains(id)).count()
    };
    let id = format!("crashed={crashed}");
    let found = [
        has("server crashed", &format!("server={crashed}")),
        has("recovery started", &id),
        has("log complete", &id),
        has("partition recovered", &id),
        has("recovery done", &id),
    ];
    // Each of four masters has a partition.
    assert_eq!(found, [1, 1, 1, 4, 1], "{lines:#?}");
}

/// It begins when the crash is known, not when the log is complete, and does not include the work
/// of the recovery masters.
#[test]
fn planning_lasts_from_the_crash_until_recovery_masters_are_asked() {
    let cluster = Cluster::with_servers(7, SimOptions::default(), 3);
    cluster.create_table("t");
    for index in [1, 2] {
        cluster.server(index).behaviour.disk_lost = true;
    }
    cluster.crash(0);
    cluster.sim.run_for(4 * SECOND);
    for index in [1, 2] {
        cluster.server(index).behaviour.disk_lost = false;
    }
    let status = cluster.calm_down();
    let measured = Duration::from_micros(status.recoveries[0].planning_us);
    let masters: BTreeSet<ServerId> = status.recoveries[0].masters.iter().copied().collect();
    let master = [1, 2]
        .into_iter()
        .find(|i| masters.contains(&cluster.id(*i)));
    let server = cluster.server(master.expect("one of them"));
    // Both at this server: backups are asked for replicas as soon as the crash is known.
    let seen = server.asked_to_recover[0].since(server.asked_for_replicas[0]);
    assert!(seen > 3 * SECOND, "{seen:?}");
    let difference = measured.abs_diff(seen);
    assert!(difference < SECOND / 20, "{measured:?}, seen {seen:?}");
}

/// Of three servers one crashes whose log needed two replicas for an acknowledgement. Server 1
/// alone has them, and server 2 takes copies unless it is told otherwise.
fn one_backup_has_the_end(seed: u64) -> Cluster {
    let cluster = Cluster::with_servers(seed, SimOptions::default(), 3);
    cluster.create_table("t");
    cluster.server(1).behaviour.needed = 2;
    cluster.server(2).behaviour.disk_lost = true;
    cluster
}

// shows: COORD-13
#[test]
fn the_end_of_a_log_that_too_few_backups_have_is_copied_before_anything_is_recovered() {
    let _marks = Marks::to_reach(&["recovery-copies-end-of-log"]);
    for seed in 0..4 {
        let cluster = one_backup_has_the_end(seed);
        let (crashed, source) = (cluster.id(0), cluster.id(1));
        cluster.crash(0);
        cluster.until("it is copied", |c| !c.server(2).copies.is_empty());
        assert!(cluster.server(2).recoveries.is_empty(), "seed {seed}");
        cluster.calm_down();
        let copies = cluster.server(2).copies.clone();
        let [copy] = &copies[..] else {
            panic!("seed {seed}: {copies:?}");
        };
        let what = (copy.crashed, copy.from, copy.segment, copy.length);
        assert_eq!(what, (crashed, source, SegmentId(2), 1000), "seed {seed}");
        assert!(!copy.closed && copy.needed == 2, "seed {seed}");
        // What is settled is where both end.
        let partitions = cluster.server(1).partitions.clone();
        let ends = &partitions.last().expect("it is a backup").ends;
        assert_eq!(ends.len(), 1, "seed {seed}");
    }
}

// shows: COORD-13
#[test]
fn an_end_of_which_only_some_copies_were_made_is_waited_for() {
    for seed in 0..4 {
        let cluster = Cluster::with_servers(seed, SimOptions::default(), 4);
        cluster.create_table("t");
        cluster.server(1).behaviour.needed = 3;
        for index in [2, 3] {
            cluster.server(index).behaviour.disk_lost = true;
        }
        cluster.server(3).behaviour.takes_no_copies = true;
        cluster.crash(0);
        cluster.until("one is copied", |c| !c.server(2).copies.is_empty());
        cluster.sim.run_for(5 * SECOND);
        let asked = |c: &Cluster| (1..4).any(|i| !c.server(i).recoveries.is_empty());
        assert!(!asked(&cluster), "seed {seed}");
        cluster.server(3).behaviour.takes_no_copies = false;
        cluster.calm_down();
        assert_eq!(cluster.server(3).copies.len(), 1, "seed {seed}");
    }
}

// shows: COORD-13
#[test]
fn an_end_that_nobody_copies_is_waited_for_and_not_for_ever() {
    let _marks = Marks::to_reach(&["recovery-ends-stay-thin"]);
    let cluster = one_backup_has_the_end(5);
    cluster.server(2).behaviour.takes_no_copies = true;
    cluster.crash(0);
    cluster.sim.run_for(10 * SECOND);
    let status = cluster.status();
    let stage = status.recoveries[0].stage.to_string();
    assert!(stage.contains("too few backups have the end"), "{stage}");
    for index in [1, 2] {
        assert!(cluster.server(index).recoveries.is_empty());
    }
    cluster.sim.run_for(25 * SECOND);
    cluster.calm_down();
    assert!(cluster.server(2).copies.is_empty());
}
