//! How long the coordinator waits in recoveries, by virtual time, and for whom it does not.

use crate::common::{Cluster, OnRecover};
use pluvio_env::Moment;
use pluvio_sim::SimOptions;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// The longest time of messages and changes of the store, beside a pause.
const WORK: Duration = Duration::from_millis(400);

/// A cluster with a table, and a crash of the first server after `prepare`.
fn crashed(servers: usize, prepare: impl FnOnce(&Cluster)) -> Cluster {
    let mut options = SimOptions::default();
    // A dead process is known by its port at once.
    options.network.refused_ppm = 1_000_000;
    let cluster = Cluster::with_servers(7, options, servers);
    cluster.create_table("t");
    prepare(&cluster);
    cluster.crash(0);
    cluster
}

/// The times between moments.
fn between(moments: &[Moment]) -> Vec<Duration> {
    let pairs = moments.windows(2);
    pairs.map(|pair| pair[1].since(pair[0])).collect()
}

#[test]
fn a_backup_that_is_up_and_does_not_answer_is_left_out() {
    let cluster = crashed(4, |cluster| {
        cluster.server(3).behaviour.silent_backup = true;
    });
    let status = cluster.calm_down();
    let recovery = &status.recoveries[0];
    assert!(recovery.done, "{recovery:?}");
    assert!(status.list.is_up(cluster.id(3)), "{status:#?}");
    assert!(cluster.server(3).fenced.is_empty());
}

#[test]
fn a_log_that_is_not_complete_is_looked_at_every_half_second() {
    let cluster = crashed(3, |cluster| {
        for index in [1, 2] {
            cluster.server(index).behaviour.disk_lost = true;
        }
    });
    cluster.sim.run_for(10 * SECOND);
    let pauses = between(&cluster.server(1).asked_for_replicas);
    assert!(pauses.len() > 8, "{pauses:?}");
    let pause = Duration::from_millis(500);
    // The first look is the only one that the news of the crash may cut short.
    for found in &pauses[1..] {
        assert!((pause..pause + WORK).contains(found), "{pauses:?}");
    }
}

/// When a server was last asked for replicas that are not enough.
fn last_look(cluster: &Cluster) -> Option<Moment> {
    cluster.server(1).asked_for_replicas.last().copied()
}

/// The next look at a log that is not complete after `happens`, and the one before it.
fn look_after(cluster: &mut Cluster, happens: impl FnOnce(&mut Cluster)) -> Duration {
    cluster.sim.run_for(3 * SECOND);
    let before = last_look(cluster);
    cluster.until("a look", |c| last_look(c) != before);
    let before = last_look(cluster);
    happens(cluster);
    cluster.until("another look", |c| last_look(c) != before);
    let pair = [before, last_look(cluster)].map(|look| look.expect("there was one"));
    pair[1].since(pair[0])
}

/// What makes it complete may be there then.
#[test]
fn a_log_that_is_not_complete_is_looked_at_at_once_when_a_server_comes_or_goes() {
    let mut cluster = crashed(4, |cluster| {
        for index in [1, 2, 3] {
            cluster.server(index).behaviour.disk_lost = true;
        }
    });
    let soon = Duration::from_millis(250);
    let pause = look_after(&mut cluster, |cluster| {
        let index = cluster.add_machine();
        cluster.server(index).behaviour.disk_lost = true;
    });
    assert!(
        pause < soon,
        "{pause:?} until it was looked at for a new server"
    );
    let pause = look_after(&mut cluster, |cluster| {
        let suspect = cluster.id(3);
        cluster.crash(3);
        cluster.hint(suspect).unwrap();
    });
    assert!(pause < soon, "{pause:?} until it was looked at for a crash");
}

#[test]
fn what_was_not_recovered_is_tried_again_after_two_seconds() {
    let cluster = crashed(2, |cluster| {
        cluster.server(1).behaviour.on_recover = vec![OnRecover::Fail; 4];
    });
    cluster.calm_down();
    let pauses = between(&cluster.server(1).asked_to_recover);
    assert!(pauses.len() >= 4, "{pauses:?}");
    let pause = 2 * SECOND;
    for found in &pauses[..4] {
        assert!((pause..pause + WORK).contains(found), "{pauses:?}");
    }
}

#[test]
fn a_recovery_master_that_does_not_report_is_waited_for_ten_minutes() {
    let cluster = crashed(2, |cluster| {
        cluster.server(1).behaviour.on_recover = vec![OnRecover::Forget];
    });
    cluster.sim.run_for(595 * SECOND);
    assert_eq!(cluster.server(1).asked_to_recover.len(), 1);
    cluster.sim.run_for(15 * SECOND);
    assert_eq!(cluster.server(1).asked_to_recover.len(), 2);
    cluster.calm_down();
}
