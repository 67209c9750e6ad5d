//! The leader is killed by `kill -9` at chosen writes of every operation, under load, on real
//! stores. The process that stores a change dies before the store has it, or after, before it hears
//! so. Each operation meets both deaths at its first write, in every run. The simulator does the
//! same at every step (`every_step`); this is the same code in processes of its own.

use crate::support::cluster::{Cluster, Turn};
use crate::support::gate::{Blow, Gate};
use crate::support::journal::{Journal, Load, NativeWay, RedisWay};
use crate::support::metadata::{Kind, MetadataServer};
use crate::support::native::runtime;
use crate::support::program::{Running, runs, signal};
use crate::support::{Random, Setup, wait_for};
use pluvio_env::{Address, Env};
use pluvio_env_os::OsRuntime;
use pluvio_wire::{GetLeader, Header};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Changes that must be acknowledged after each death.
const MANY: u64 = 200;
/// The blows of one operation. Each stores something, so it meets the first two. Its second write
/// may come when it has been answered; later ones are met in recoveries and migrations.
const BLOWS: [Blow; 3] = [Blow::Before(0), Blow::After(0), Blow::Before(1)];
/// How often a blow is tried that must be met. A first one misses only where the connection to the
/// store breaks between a write and its answer.
const TRIES_MAX: u32 = 3;

/// Coordinators of one cluster. A dead one is started again where it was.
struct Coordinators {
    place: String,
    /// Process by address.
    pids: BTreeMap<String, u32>,
    replaced: BTreeMap<String, Running>,
    asking: (OsRuntime, Env),
}

impl Coordinators {
    fn of(cluster: &Cluster, place: &str) -> Self {
        let all = cluster.ready()["coordinators"].as_array().unwrap();
        let pid = |c: &Value| u32::try_from(c["pid"].as_u64().unwrap()).unwrap();
        let one = |c: &Value| (c["addr"].as_str().unwrap().to_owned(), pid(c));
        Self {
            place: place.to_owned(),
            pids: all.iter().map(one).collect(),
            replaced: BTreeMap::new(),
            asking: runtime(),
        }
    }

    /// Where the one listens that leads, and its process.
    fn leader(&self) -> (String, u32) {
        wait_for("a leader", || {
            let found = self.pids.iter().find(|(address, _)| self.leads(address));
            found
                .map(|(address, pid)| (address.clone(), *pid))
                .ok_or_else(|| "nobody leads".to_owned())
        })
    }

    fn leads(&self, address: &str) -> bool {
        let (runtime, env) = &self.asking;
        let (network, to) = (env.network.clone(), Address::from(address));
        let asked = runtime.block_on(async move {
            let limit = Duration::from_millis(500);
            pluvio_wire::call(&*network, &to, Header::default(), &GetLeader {}, limit).await
        });
        asked.is_ok_and(|reply| reply.leads)
    }

    /// Starts a dead one again.
    fn replace(&mut self, address: &str) {
        let pid = self.pids[address];
        wait_for("a killed process to be gone", || {
            let runs = runs(pid, "coordinator");
            (!runs).then_some(()).ok_or("it runs".to_owned())
        });
        self.replaced.remove(address);
        let arguments = ["--listen", address, "--metadata", &self.place];
        let start = ["coordinator", "--json"].into_iter().chain(arguments);
        let mut running = Running::start(start);
        running.ready();
        self.pids.insert(address.to_owned(), running.pid());
        self.replaced.insert(address.to_owned(), running);
    }
}

fn wait_for_changes(load: &Load) {
    let wanted = load.acknowledged() + MANY;
    wait_for("acknowledged changes", || {
        let so_far = load.acknowledged();
        let enough = so_far >= wanted || load.failed();
        enough.then_some(()).ok_or(format!("{so_far} of {wanted}"))
    });
}

/// The tablets of a table: first hash and owner.
fn tablets(cluster: &Cluster, name: &str) -> Option<Vec<(String, u64)>> {
    let listed = cluster.run(["table", "list", "--json"]).json();
    let tables = listed["tables"].as_array().unwrap().clone();
    let table = tables.iter().find(|t| t["name"] == name)?;
    let tablets = table["tablets"].as_array().unwrap().iter();
    let tablet = |t: &Value| {
        let first = t["first"].as_str().unwrap().to_owned();
        (first, t["server"].as_u64().unwrap())
    };
    Some(tablets.map(tablet).collect())
}

/// The names of all operations, each of which needs those before it.
const OPERATIONS: [&str; 4] = ["create", "split", "migrate", "drop"];

/// Something to ask of a cluster: its name, and how it is insisted on.
type Operation<'a> = (&'static str, Box<dyn Fn() + 'a>);

/// What is under way when the leader dies. Each is asked for again until it succeeds, as people do.
fn operations(cluster: &Cluster, round: usize) -> Vec<Operation<'_>> {
    let name = format!("t{round}");
    let table = move |arguments: &[&str]| {
        let all = ["--timeout", "30s", "table"];
        cluster.run(all.iter().chain(arguments))
    };
    let (own, again) = (name.clone(), name.clone());
    let (create, split) = (
        move || drop(table(&["create", &own]).ok()),
        move || drop(table(&["split", &again, "--at", "10"]).ok()),
    );
    let (own, again) = (name.clone(), name);
    let migrate = move || {
        let owner = tablets(cluster, &own).unwrap()[0].1;
        let servers = cluster.status()["servers"].as_array().unwrap().clone();
        let mut ids = servers.iter().map(|s| s["id"].as_u64().unwrap());
        let to = ids.find(|id| *id != owner).unwrap().to_string();
        wait_for("the tablet to move", || {
            let arguments = ["migrate", &own, "--at", "0", "--to", &to];
            let output = table(&arguments);
            (output.code == Some(0)).then_some(()).ok_or(output.stderr)
        });
        assert_eq!(tablets(cluster, &own).unwrap()[0].1.to_string(), to);
    };
    let drop_it = move || {
        // A table that a dead leader has dropped stays dropped.
        let output = table(&["drop", &again]);
        assert!(
            output.code == Some(0) || tablets(cluster, &again).is_none(),
            "{}",
            output.stderr
        );
        assert_eq!(tablets(cluster, &again), None);
    };
    let all: [Box<dyn Fn() + '_>; 4] = [
        Box::new(create),
        Box::new(split),
        Box::new(migrate),
        Box::new(drop_it),
    ];
    OPERATIONS.into_iter().zip(all).collect()
}

/// One death while `operation` is under way, at a write that is counted from its beginning on; true
/// when it was reached.
fn strike(
    gate: &Gate,
    coordinators: &mut Coordinators,
    load: &Load,
    blow: Blow,
    operation: &dyn Fn(),
) -> bool {
    gate.wait_still();
    let (address, pid) = coordinators.leader();
    gate.arm(pid, blow);
    operation();
    let struck = gate.has_struck();
    if struck {
        coordinators.replace(&address);
        wait_for_changes(load);
    }
    struck
}

/// How often a blow is tried when it is not met.
fn tries(blow: Blow) -> u32 {
    match blow {
        Blow::Before(0) | Blow::After(0) => TRIES_MAX,
        Blow::Before(_) | Blow::After(_) => 1,
    }
}

fn leaders_are_killed_at_their_writes(kind: Kind) {
    let _turn = Turn::take();
    let store = MetadataServer::start(kind);
    let (gate, place) = store.gate("/killed");
    let seed = Random::seed();
    let flags = ["--coordinators", "2", "--metadata", &place];
    let cluster = Setup::servers(3).flags(&flags).start();
    let mut coordinators = Coordinators::of(&cluster, &place);
    let redis = RedisWay::new(cluster.all_redis(), seed);
    let native = NativeWay::new(&cluster.coordinators());
    let load = Load::start(vec![
        Journal::new("redis".into(), seed + 1, Box::new(redis), 1000),
        Journal::new("native".into(), seed + 2, Box::new(native), 1000),
    ]);
    wait_for_changes(&load);
    let mut deaths = Vec::new();
    let mut rounds = 0_usize..;
    for blow in BLOWS {
        let mut missed = BTreeSet::from(OPERATIONS);
        for round in rounds.by_ref().take(tries(blow) as usize) {
            for (name, operation) in operations(&cluster, round) {
                if !missed.contains(name) {
                    // What follows needs it.
                    operation();
                } else if strike(&gate, &mut coordinators, &load, blow, &*operation) {
                    missed.remove(name);
                    deaths.push(format!("{name} {blow:?}"));
                }
            }
            if missed.is_empty() {
                break;
            }
        }
        let must_be_met = tries(blow) > 1;
        assert!(!must_be_met || missed.is_empty(), "{blow:?}: {missed:?}");
    }
    // The crash of a server, whose recovery is stored in many steps.
    let crash = || {
        cluster.kill(2);
        cluster.wait_settled(2);
    };
    if strike(&gate, &mut coordinators, &load, Blow::After(1), &crash) {
        deaths.push("recovery After(1)".into());
    }
    println!("{kind:?}: leaders died at {deaths:?}");
    assert!(deaths.iter().any(|death| death.starts_with("recovery")));
    wait_for_changes(&load);
    for mut journal in load.finish().unwrap() {
        assert!(journal.refusals().is_empty(), "{:?}", journal.refusals());
        journal.go(Box::new(NativeWay::new(&cluster.coordinators())));
        journal.compare_all().unwrap();
    }
    // `dev` knows the processes that it started; these are the test's own.
    for running in coordinators.replaced.values() {
        signal(running.pid(), Signal::KILL);
    }
}

mod needs_etcd {
    use super::*;

    // shows: LEAD-1
    #[test]
    fn leaders_are_killed_at_their_writes_to_etcd() {
        leaders_are_killed_at_their_writes(Kind::Etcd);
    }
}

mod needs_zookeeper {
    use super::*;

    // shows: LEAD-1
    #[test]
    fn leaders_are_killed_at_their_writes_to_zookeeper() {
        leaders_are_killed_at_their_writes(Kind::ZooKeeper);
    }
}
