//! Messages and bytes of the real coordinator in a cluster of many scripted servers. They start,
//! lose a rack, are restarted one after the other, get another leader, and start cold.
//!
//! `PLUVIO_TEST_SERVERS=1000 cargo test --release -p pluvio-coordinator --test coordinator \
//! size:: -- --nocapture`
//! shows the figures. By default there are few servers: then it is a test of what each of them is
//! sent.

use crate::common::ground::Ground;
use crate::common::{Cluster, Shared};
use bytes::Bytes;
use pluvio_coordinator::{MemoryStore, MetadataStore};
use pluvio_env::{Address, BoxFuture, CallError, Env, Frame, Network};
use pluvio_sim::{Intercepted, Interceptor, ProcessEnv, SimHandle, SimOptions};
use pluvio_units::ServerId;
use pluvio_wire::{DrainServer, DrainWish, LeaveCluster, Opcode, ServerState};
use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// How often it is looked whether all is quiet.
const LOOK: Duration = Duration::from_millis(50);
/// The longest that a phase may take.
const PHASE_MAX: Duration = Duration::from_secs(120);

/// Messages of one kind.
#[derive(Clone, Copy, Default)]
struct Sum {
    calls: u64,
    sent: u64,
    received: u64,
    largest: u64,
}

/// A store whose coordinators' calls are counted, by opcode.
#[derive(Clone, Default)]
struct Counted {
    store: MemoryStore,
    sums: Shared<BTreeMap<u16, Sum>>,
}

impl Counted {
    fn sums(&self) -> MutexGuard<'_, BTreeMap<u16, Sum>> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ground for Counted {
    fn open(&self, _: &SimHandle, process: &ProcessEnv) -> (Env, Arc<dyn MetadataStore>) {
        let network = Intercepted::new(process.env.network.clone(), self.clone());
        let env = Env {
            network,
            ..process.env.clone()
        };
        (env, self.look())
    }

    fn look(&self) -> Arc<dyn MetadataStore> {
        Arc::new(self.store.clone())
    }
}

impl Interceptor for Counted {
    fn call<'a>(
        &'a self,
        network: &'a dyn Network,
        to: &'a Address,
        request: Frame,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>> {
        Box::pin(async move {
            let bytes = |frame: &Frame| (frame.meta.len() + frame.payload.len()) as u64;
            let (opcode, length) = (request.opcode, bytes(&request));
            let reply = network.call(to, request, limit).await;
            let received = reply.as_ref().map_or(0, bytes);
            let mut sums = self.sums();
            let sum = sums.entry(opcode).or_default();
            sum.calls += 1;
            sum.sent += length;
            sum.received += received;
            sum.largest = sum.largest.max(length).max(received);
            reply
        })
    }
}

struct Size {
    cluster: Cluster,
    counted: Counted,
}

impl Size {
    fn new() -> Self {
        let counted = Counted::default();
        let cluster = Cluster::on(7, SimOptions::default(), 1, Arc::new(counted.clone()));
        Self { cluster, counted }
    }

    /// Runs until all of this number of servers are up, and nothing is recovered.
    fn until_quiet(cluster: &Cluster, servers: usize) {
        // Seldom looked at: a look takes as long as there are servers.
        let looks = PHASE_MAX.as_millis() / LOOK.as_millis();
        for _ in 0..looks {
            if is_quiet(cluster, servers) {
                return;
            }
            cluster.sim.run_for(LOOK);
        }
        panic!("not quiet after {PHASE_MAX:?}: {:#?}", cluster.status());
    }

    /// Does something until all is calm, and tells what it took.
    fn phase(&mut self, name: &str, act: impl FnOnce(&mut Cluster)) -> BTreeMap<u16, Sum> {
        self.counted.sums().clear();
        let from = self.cluster.sim.now();
        act(&mut self.cluster);
        let took = self.cluster.sim.now() - from;
        let stored: usize = self.cluster.stored().values().map(Bytes::len).sum();
        let memory = memory_most();
        println!("{name}: {took:?} of virtual time, {stored} bytes stored, {memory}");
        let sums = self.counted.sums().clone();
        for (opcode, sum) in &sums {
            let name = Opcode::from_number(*opcode)
                .map_or_else(|| opcode.to_string(), |o| o.name().to_owned());
            println!(
                "  {name}: {} calls, {} bytes sent, {} received, largest {}",
                sum.calls, sum.sent, sum.received, sum.largest
            );
        }
        sums
    }
}

/// All servers that run are listed, and know the newest list; nothing is recovered.
fn is_quiet(cluster: &Cluster, servers: usize) -> bool {
    let newest = cluster
        .machines
        .iter()
        .map(|m| m.state().list.version)
        .max();
    let mut up = 0;
    for machine in &cluster.machines {
        let state = machine.state();
        if cluster.sim.is_up(machine.process) {
            if state.id == ServerId(0) || Some(state.list.version) != newest {
                return false;
            }
            up += 1;
        }
    }
    let machine = cluster
        .machines
        .iter()
        .find(|m| cluster.sim.is_up(m.process));
    let Some(list) = machine.map(|m| m.state().list.clone()) else {
        return servers == 0;
    };
    let is_up = |s: &pluvio_wire::ServerInfo| s.state == ServerState::Up;
    up == servers && list.servers.len() == servers && list.servers.iter().all(is_up)
}

/// Moves the tablets of these servers to others, and makes them no members.
fn leave(cluster: &Cluster, servers: &[usize]) {
    for index in servers {
        let (server, wish) = (cluster.id(*index), DrainWish::Drain);
        let drained = cluster.ask(DrainServer { server, wish });
        drained.expect("others have room");
    }
    cluster.until("they have no tablets", |cluster| {
        let has_none = |index: &usize| cluster.server(*index).owned.is_empty();
        servers.iter().all(has_none)
    });
    for index in servers {
        let (cluster_id, server) = {
            let state = cluster.server(*index);
            (state.cluster, state.id)
        };
        // Tried again while a migration ends.
        let left = cluster.ask(LeaveCluster {
            cluster: cluster_id,
            server,
        });
        left.expect("it has no tablets");
    }
}

/// The most memory that this process has had: coordinator, servers and network.
fn memory_most() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    line.unwrap_or("VmHWM: not known here").to_owned()
}

#[test]
fn many_servers_are_started_lost_and_restarted() {
    let servers = std::env::var("PLUVIO_TEST_SERVERS");
    let servers: usize = servers.map_or(24, |n| n.parse().unwrap());
    let rack = servers / 10;
    let _marks = pluvio_units::Marks::to_reach(&[
        "server-list-by-changes",
        "recovery-asks-new-backups-only",
    ]);
    let mut size = Size::new();
    size.phase("first start", |cluster| {
        for index in 0..servers {
            cluster.add_machine();
            let name = format!("rack {}", index / rack);
            cluster.server(index).behaviour.rack = Some(name);
        }
        Size::until_quiet(cluster, servers);
        cluster.create_table("t");
    });
    size.phase("ten seconds of rest", |cluster| {
        cluster.sim.run_for(10 * SECOND)
    });
    size.phase("a rack is lost", |cluster| {
        for index in 0..rack {
            cluster.crash(index);
        }
        Size::until_quiet(cluster, servers - rack);
    });
    let sums = size.phase("it comes back", |cluster| {
        for index in 0..rack {
            cluster.restart(index);
        }
        Size::until_quiet(cluster, servers);
    });
    let whole = sums.get(&(Opcode::UpdateServerList as u16));
    let whole = whole.map_or(0, |sum| sum.calls);
    assert!(whole <= rack as u64, "{whole} lists were sent whole");
    size.phase("a rolling restart, rack by rack", |cluster| {
        for first in (0..servers).step_by(rack) {
            let rack: Vec<usize> = (first..servers.min(first + rack)).collect();
            leave(cluster, &rack);
            for index in &rack {
                cluster.crash(*index);
                cluster.restart(*index);
            }
            Size::until_quiet(cluster, servers);
        }
    });
    size.phase("another leader", |cluster| {
        cluster.crash_coordinator();
        cluster.restart_coordinator();
        cluster.leader();
        cluster.sim.run_for(5 * SECOND);
    });
    size.phase("cold start", |cluster| {
        for index in 0..servers {
            cluster.crash(index);
        }
        // Those that come first have no replicas.
        for index in 0..servers / 2 {
            cluster.server(index).behaviour.disk_lost = true;
            cluster.restart(index);
        }
        cluster.sim.run_for(3 * SECOND);
        for index in servers / 2..servers {
            cluster.restart(index);
        }
        Size::until_quiet(cluster, servers);
    });
    size.cluster.calm_down();
}
