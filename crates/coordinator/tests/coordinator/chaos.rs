//! Random crashes, pauses, cuts and requests; afterwards everything must come to rest, with each
//! tablet served by exactly one server.

use crate::common::{Cluster, OnRecover};
use pluvio_env::Rng;
use pluvio_sim::{NetworkFaults, SimOptions};
use pluvio_units::{HashKind, KeyHash, ServerId};
use pluvio_wire::{CreateTable, DropTable, SplitTablet, TableRef};
use std::time::Duration;

const SERVERS: usize = 5;
const STEPS: u64 = 40;

fn some_machine(rng: &dyn Rng) -> usize {
    rng.below(SERVERS as u64) as usize
}

fn some_name(rng: &dyn Rng) -> String {
    format!("t{}", rng.below(4))
}

/// Something bad, or something to do.
fn act(cluster: &Cluster, rng: &dyn Rng) {
    let (sim, index) = (&cluster.sim, some_machine(rng));
    let process = cluster.machines[index].process;
    match rng.below(14) {
        0 => cluster.crash(index),
        1 | 2 if !sim.is_up(process) => cluster.restart(index),
        3 => sim.pause(process),
        4 => sim.resume(process),
        5 => sim.isolate(process),
        6 => sim.heal_all(),
        7 if sim.is_up(cluster.coordinator) => cluster.crash_coordinator(),
        8 => {
            let scripts = [OnRecover::Fail, OnRecover::Refuse];
            let script = scripts[rng.below(2) as usize];
            cluster.server(index).behaviour.on_recover.push(script);
        }
        9 => {
            let name = some_name(rng);
            let span = Some(rng.below(4) as u32 + 1);
            let hash = [HashKind::Seeded, HashKind::Slots][rng.below(2) as usize];
            let quota = pluvio_wire::QuotaWish::default();
            cluster.try_ask(CreateTable {
                name,
                span,
                hash,
                quota,
                durability: pluvio_wire::DurabilityWish::default(),
            });
        }
        10 => {
            let table = TableRef::Name(some_name(rng));
            cluster.try_ask(DropTable::of(table));
        }
        11 => {
            let table = TableRef::Name(some_name(rng));
            let at = Some(KeyHash(rng.next_u64()));
            cluster.try_ask(SplitTablet { table, at });
        }
        12 | 13 => {
            let (name, at) = (some_name(rng), KeyHash(rng.next_u64()));
            cluster.migrate(&name, at, rng.next_u64());
        }
        _ => {}
    }
    if !sim.is_up(cluster.coordinator) && rng.below(2) == 0 {
        cluster.restart_coordinator();
    }
}

/// Repairs all machines; zombies are started again, as whoever runs servers does.
fn repair(cluster: &Cluster) {
    cluster.sim.heal_all();
    if !cluster.sim.is_up(cluster.coordinator) {
        cluster.restart_coordinator();
    }
    for index in 0..SERVERS {
        cluster.sim.resume(cluster.machines[index].process);
    }
    for _ in 0..20 {
        for index in 0..SERVERS {
            let process = cluster.machines[index].process;
            if cluster.server(index).is_dead {
                cluster.crash(index);
            }
            if !cluster.sim.is_up(process) {
                cluster.restart(index);
            }
        }
        cluster.sim.run_for(Duration::from_millis(500));
    }
}

fn chaos(seed: u64) {
    let bad = seed.is_multiple_of(3);
    let options = SimOptions {
        network: if bad {
            NetworkFaults::bad()
        } else {
            NetworkFaults::default()
        },
        clock_drift_ppm_max: 200,
        ..SimOptions::default()
    };
    let cluster = Cluster::with_servers(seed, options, SERVERS);
    for index in 0..SERVERS {
        cluster.server(index).behaviour.live_bytes = (index as u64) << 26;
    }
    let rng = cluster.client.env.rng.clone();
    for _ in 0..STEPS {
        act(&cluster, &*rng);
        let pause = Duration::from_millis(rng.below(800));
        cluster.sim.run_for(pause);
    }
    repair(&cluster);
    cluster.sim.set_network(NetworkFaults::default());
    let status = cluster.calm_down();
    assert_eq!(status.list.servers.len(), SERVERS, "seed {seed}");
    assert!((0..SERVERS).all(|i| cluster.id(i) != ServerId(0)));
}

#[test]
fn after_chaos_everything_comes_to_rest() {
    for seed in 0..15 {
        chaos(seed);
    }
}
