//! Errors that are planted in a running cluster, for the checks that judge it as a whole.

use super::*;

/// A calm cluster, with which `plant` does something; the checks that complain by the end.
fn complaints(change: fn(&mut Plan), plant: fn(&mut Cluster<'_>)) -> Vec<Check> {
    complaints_late(change, plant, |_| ())
}

/// The same with something that `plant_late` does when the cluster was found healthy.
fn complaints_late(
    change: fn(&mut Plan),
    plant: fn(&mut Cluster<'_>),
    plant_late: fn(&mut Cluster<'_>),
) -> Vec<Check> {
    let mut plan = Plan::draw(1, Some(2), &Faults::none(), 20);
    plan.coordinators = 1;
    plan.clients = 1;
    change(&mut plan);
    let plan = Arc::new(plan);
    let journal = Journal::new(20);
    let options = SimOptions {
        network: Plan::calm_network(),
        ..SimOptions::default()
    };
    let sim = Sim::new(1, options);
    let mut nemesis = Nemesis::new(1, &plan, &Keep::default());
    guarded(&journal, || {
        let mut cluster = Cluster::start(&sim, &plan, &journal);
        cluster.work(&mut nemesis);
        plant(&mut cluster);
        if cluster.quiet(&mut nemesis) {
            plant_late(&mut cluster);
            cluster.reconstruct_logs();
        }
    });
    let violations = journal.close().violations;
    violations.into_iter().map(|found| found.check).collect()
}

#[test]
fn a_cluster_without_a_planted_error_gives_no_reason_to_complain() {
    assert_eq!(complaints(|_| (), |_| ()), []);
}

#[test]
fn a_server_that_nobody_starts_again_is_found() {
    let found = complaints(
        |_| (),
        |cluster| {
            let server = cluster.nodes.server_processes()[0];
            cluster.sim.crash(server);
        },
    );
    assert!(found.contains(&Check::Progress), "{found:?}");
}

#[test]
fn a_panic_is_found() {
    let found = complaints(
        |_| (),
        |cluster| {
            let work = async { panic!("planted") };
            cluster.sim.spawn(cluster.observer.id, "planted", work);
        },
    );
    assert_eq!(found, [Check::KeepsRunning]);
}

#[test]
fn a_client_that_does_not_end_is_found() {
    let found = complaints(|_| (), |cluster| cluster.shared.journal.worker_begins());
    assert_eq!(found, [Check::KeepsRunning]);
}

#[test]
fn a_server_that_does_not_start_is_found() {
    let found = complaints(|plan| plan.memory_mib = 1, |_| ());
    assert!(found.contains(&Check::KeepsRunning), "{found:?}");
}

#[test]
fn a_log_whose_replicas_are_gone_is_found() {
    let found = complaints_late(
        |_| (),
        |_| (),
        |cluster| {
            let server = cluster.nodes.server_processes()[0];
            cluster.sim.wipe_disk(server);
        },
    );
    assert_eq!(found, [Check::LogsComplete]);
}
