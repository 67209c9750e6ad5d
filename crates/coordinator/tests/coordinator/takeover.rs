//! Several coordinators on one store [RAMCloud §9]: one leads, and when it is gone another one goes
//! on exactly where it stopped.

use crate::common::Cluster;
use crate::common::story::{create, play_story};
use bytes::Bytes;
use pluvio_coordinator::{
    Candidate, Change, Condition, CoordinatorError, CoordinatorOptions, Limits, MemoryStore,
    MetadataStore, Outcome, Standing, Stop,
};
use pluvio_env::{BoxFuture, Clock};
use pluvio_sim::{ProcessId, SimOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// What takeovers are to stay below.
const TAKEOVER_MAX: Duration = Duration::from_secs(3);

fn cluster(seed: u64, coordinators: usize, servers: usize) -> Cluster {
    let store = MemoryStore::shared();
    let mut cluster = Cluster::with_coordinators(seed, SimOptions::default(), coordinators, store);
    for _ in 0..servers {
        cluster.add_machine();
    }
    cluster.until("all servers are up", |c| {
        (0..servers).all(|index| c.id(index).0 != 0)
    });
    cluster
}

#[test]
fn one_of_several_leads_and_all_of_them_can_be_asked() {
    for seed in 0..10 {
        let cluster = cluster(seed, 3, 3);
        cluster.create_table("t");
        cluster.calm_down();
        for _ in 0..50 {
            cluster.sim.run_for(Duration::from_millis(100));
            assert_eq!(cluster.leaders().len(), 1, "seed {seed}");
        }
    }
}

// shows: LEAD-2, LEAD-3
#[test]
fn a_dead_leader_is_replaced_in_less_than_three_seconds() {
    for seed in 0..20 {
        let cluster = cluster(seed, 2, 3);
        cluster.create_table("before");
        // At any moment between two looks of the others.
        cluster.sim.run_for(Duration::from_millis(37 * seed));
        let first = cluster.leader();
        cluster.sim.crash(cluster.coordinators[first]);
        let crashed = cluster.sim.now();
        cluster.create_table("after");
        let took = cluster.sim.now() - crashed;
        assert!(took < TAKEOVER_MAX, "seed {seed}: {took:?}");
        assert_eq!(cluster.leaders(), [1 - first]);
        // The former one comes back and waits.
        cluster.restart_coordinator_number(first);
        let status = cluster.calm_down();
        assert_eq!(status.tables.len(), 2);
        assert_eq!(cluster.leaders(), [1 - first], "seed {seed}");
    }
}

// shows: LEAD-2, LEAD-3, LEASE-4
#[test]
fn a_leader_that_stood_still_does_not_answer_and_changes_nothing() {
    let _marks = pluvio_units::Marks::to_reach(&["coordinator-deposed"]);
    for seed in 0..20 {
        let cluster = cluster(seed, 2, 3);
        cluster.create_table("before");
        let first = cluster.leader();
        let process = cluster.coordinators[first];
        cluster.sim.pause(process);
        let began = cluster.sim.now();
        cluster.create_table("meanwhile");
        let took = cluster.sim.now() - began;
        assert!(took < TAKEOVER_MAX, "seed {seed}: {took:?}");
        cluster.sim.resume(process);
        // From its first step on it does not take itself for the leader.
        for _ in 0..100 {
            assert_eq!(cluster.leaders(), [1 - first], "seed {seed}");
            cluster.sim.run_for(Duration::from_millis(10));
        }
        assert_eq!(cluster.calm_down().tables.len(), 2);
    }
}

/// The store is there for both: the leader answers the challenges of one that cannot reach it.
// shows: LEAD-2, LEAD-3
#[test]
fn a_leader_that_only_another_coordinator_cannot_reach_stays() {
    let cluster = cluster(1, 2, 3);
    let first = cluster.leader();
    let (leader, other) = (cluster.coordinators[first], cluster.coordinators[1 - first]);
    cluster.sim.cut(leader, other);
    cluster.sim.cut(other, leader);
    for _ in 0..200 {
        cluster.sim.run_for(Duration::from_millis(100));
        assert_eq!(cluster.leaders(), [first]);
    }
    assert!(
        cluster.store.dump().contains_key("challenge"),
        "it was challenged"
    );
    cluster.create_table("t");
    cluster.calm_down();
}

/// LEASE-2: the next leader cannot know how far the first one was, so it begins with the fence
/// again.
// shows: LEASE-2
#[test]
fn a_leader_that_dies_between_the_fence_and_the_next_owner_is_replaced_and_so_is_the_owner() {
    const GRACE: Duration = Duration::from_millis(650);
    for seed in 0..20 {
        let cluster = cluster(seed, 2, 3);
        let dead = cluster.id(1);
        let survivors = [0, 2];
        let fenced = |c: &Cluster| {
            let has = |i: &usize| c.server(*i).fenced.contains(&dead);
            survivors.iter().all(has)
        };
        let taken = |c: &Cluster| -> usize {
            let owned = |i: &usize| c.server(*i).owned.len();
            survivors.iter().map(owned).sum()
        };
        // It does not answer, and is not yet known to be dead.
        cluster.sim.pause(cluster.machines[1].process);
        while taken(&cluster) < 2 {
            let asked = create(&cluster, "t");
            assert!(!asked, "seed {seed}: server 1 cannot have confirmed");
        }
        cluster.crash(1);
        cluster.until("the survivors take part", fenced);
        // Anywhere in the time in which the lease may last.
        cluster.sim.run_for(GRACE * seed as u32 / 20);
        assert_eq!(taken(&cluster), 2, "seed {seed}: it has no other owner yet");
        let first = cluster.leader();
        cluster.sim.crash(cluster.coordinators[first]);
        for index in survivors {
            cluster.server(index).fenced.clear();
        }
        cluster.until("the survivors are asked again", fenced);
        assert_eq!(cluster.leaders(), [1 - first], "seed {seed}");
        let began = cluster.sim.now();
        cluster.until("it has another owner", |c| taken(c) == 3);
        let grace = cluster.sim.now() - began;
        assert!(grace >= GRACE, "seed {seed}: {grace:?}");
        // Served by that one alone, as the new leader names it, and for a client that asks again.
        cluster.create_table("t");
        let status = cluster.calm_down();
        let table = cluster.create_table("t");
        assert_eq!(status.tables, [table], "seed {seed}");
        assert_eq!(status.list.servers.len(), 2, "seed {seed}");
    }
}

/// Cuts a process off from all servers.
fn cut_off_servers(cluster: &Cluster, process: ProcessId) {
    for machine in &cluster.machines {
        cluster.sim.cut(process, machine.process);
        cluster.sim.cut(machine.process, process);
    }
}

/// LEAD-5, DETECT-1: with a network between the coordinators, and without.
// shows: DETECT-1, LEAD-5
#[test]
fn a_leader_that_reaches_no_server_gives_way_to_one_that_does() {
    /// Pings that show it take three to four seconds, a challenge that comes too early costs three
    /// more.
    const LIMIT: Duration = Duration::from_secs(12);
    for seed in 0..20 {
        let cluster = cluster(seed, 2, 4);
        cluster.create_table("before");
        let first = cluster.leader();
        let (leader, other) = (cluster.coordinators[first], cluster.coordinators[1 - first]);
        cut_off_servers(&cluster, leader);
        if seed % 2 == 1 {
            cluster.sim.cut(leader, other);
            cluster.sim.cut(other, leader);
        }
        let began = cluster.sim.now();
        cluster.until("the other one leads", |c| c.leaders() == [1 - first]);
        let took = cluster.sim.now() - began;
        assert!(took < LIMIT, "seed {seed}: {took:?}");
        // It leads on, and the first one leaves it alone.
        for _ in 0..100 {
            cluster.sim.run_for(Duration::from_millis(100));
            assert_eq!(cluster.leaders(), [1 - first], "seed {seed}");
        }
        cluster.sim.heal_all();
        cluster.create_table("after");
        let status = cluster.calm_down();
        assert_eq!(status.list.servers.len(), 4, "seed {seed}");
        assert!(status.recoveries.is_empty(), "nobody was declared dead");
    }
}

// shows: DETECT-1, LEAD-5
#[test]
fn a_leader_stays_when_nobody_reaches_the_servers() {
    for seed in 0..5 {
        let cluster = cluster(seed, 3, 4);
        cluster.create_table("t");
        let first = cluster.leader();
        for process in &cluster.coordinators {
            cut_off_servers(&cluster, *process);
        }
        for _ in 0..300 {
            cluster.sim.run_for(Duration::from_millis(100));
            assert_eq!(cluster.leaders(), [first], "seed {seed}");
        }
        cluster.sim.heal_all();
        let status = cluster.calm_down();
        assert_eq!(status.list.servers.len(), 4, "seed {seed}");
        assert!(status.recoveries.is_empty(), "nobody was declared dead");
    }
}

/// It could not do better than whoever leads, and leads on itself.
// shows: LEAD-5
#[test]
fn a_leader_without_servers_leads_on_when_whoever_challenged_it_died() {
    let cluster = cluster(1, 2, 3);
    let first = cluster.leader();
    let (leader, other) = (cluster.coordinators[first], cluster.coordinators[1 - first]);
    cut_off_servers(&cluster, leader);
    cluster.until("it gives way", |c| c.leaders().is_empty());
    cluster.sim.crash(other);
    cluster.until("it leads again", |c| c.leaders() == [first]);
    cluster.sim.heal_all();
    cluster.create_table("t");
    cluster.calm_down();
}

/// Runs a coordinator on a store that something happens to once it leads; gives why it ended.
fn ends(
    store: &MemoryStore,
    happens: impl FnOnce(MemoryStore, Arc<dyn Clock>) -> BoxFuture<'static, ()> + Send + 'static,
) -> CoordinatorError {
    let sim = pluvio_sim::Sim::new(1, SimOptions::default());
    let process = sim.process("coordinator");
    let (env, clock) = (process.env.clone(), process.env.clock.clone());
    let own = store.clone();
    let running = async move {
        let candidate = Candidate::new(env, CoordinatorOptions::default());
        let happening = async {
            let leads = matches!(candidate.settled().await, Standing::Leading(_));
            assert!(leads, "nobody else is there");
            clock.sleep(Duration::from_secs(1)).await;
            happens(own.clone(), clock.clone()).await;
            core::future::pending::<()>().await;
        };
        let run = candidate.run(Arc::new(own.clone()), "coordinator");
        match futures_util::future::select(std::pin::pin!(run), std::pin::pin!(happening)).await {
            futures_util::future::Either::Left((Err(error), _)) => error,
            futures_util::future::Either::Right(((), _)) => unreachable!("it waits for ever"),
        }
    };
    sim.block_on(process.id, running, Duration::from_secs(60))
        .expect("it ends by itself")
}

fn ends_after(store: &MemoryStore, happens: impl FnOnce(&MemoryStore) + Send + 'static) -> String {
    let error = ends(store, |store, _| Box::pin(async move { happens(&store) }));
    let CoordinatorError::Lost { .. } = &error else {
        panic!("{error}");
    };
    error.to_string()
}

#[test]
fn a_store_that_was_emptied_begins_no_new_cluster() {
    let store = MemoryStore::shared();
    let error = ends_after(&store, MemoryStore::wipe);
    assert!(error.contains("is empty"), "{error}");
    assert!(store.dump().is_empty(), "nothing was written to it");
}

/// Its leader's record is of a coordinator that is long dead, which is no reason to take over.
#[test]
fn a_store_that_holds_another_cluster_is_not_written_to() {
    let other = cluster(2, 1, 3);
    other.create_table("t");
    other.calm_down();
    let entries = other.store.dump();
    let (store, others) = (MemoryStore::shared(), entries.clone());
    let error = ends_after(&store, move |store| store.replace(others));
    assert!(error.contains("holds cluster"), "{error}");
    assert_eq!(store.dump(), entries);
}

/// As etcd is when it is restored from a snapshot of the same tenure. A challenge makes the leader
/// store something.
#[test]
fn a_leader_that_changes_nothing_notices_that_its_store_was_set_back() {
    let store = MemoryStore::shared();
    let error = ends(&store, |store, clock| {
        Box::pin(async move {
            let before = store.dump();
            let mut challenged = before.clone();
            challenged.insert("challenge".into(), "of whoever".into());
            store.replace(challenged);
            clock.sleep(Duration::from_secs(1)).await;
            assert_ne!(store.dump()["leader"], before["leader"], "it answers");
            store.replace(before);
        })
    });
    assert!(matches!(error, CoordinatorError::WentBack(_)), "{error}");
}

#[test]
fn a_store_that_was_set_back_to_an_earlier_leader_is_not_written_to() {
    let former = cluster(2, 1, 0);
    former.leader();
    let earlier = former.store.dump();
    let (store, again) = (MemoryStore::shared(), earlier.clone());
    store.replace(earlier.clone());
    let error = ends(&store, |store, _| {
        Box::pin(async move { store.replace(again) })
    });
    assert!(matches!(error, CoordinatorError::WentBack(_)), "{error}");
    assert_eq!(store.dump(), earlier);
}

/// A record is missing, and what is left cannot be true.
#[test]
fn a_damaged_store_is_refused_and_left_as_it_is() {
    let former = cluster(3, 1, 3);
    former.create_table("t");
    let mut entries = former.store.dump();
    let server = entries.keys().find(|key| key.starts_with("server/"));
    let server = server.expect("there are three").clone();
    entries.remove(&server);
    let store = MemoryStore::shared();
    store.replace(entries.clone());
    let sim = pluvio_sim::Sim::new(1, SimOptions::default());
    let process = sim.process("coordinator");
    let (env, own) = (process.env.clone(), store.clone());
    let running = async move {
        let candidate = Candidate::new(env, CoordinatorOptions::default());
        let Err(error) = candidate.run(Arc::new(own), "coordinator").await;
        error
    };
    let error = sim
        .block_on(process.id, running, Duration::from_secs(60))
        .unwrap();
    assert!(matches!(error, CoordinatorError::Damaged(_)), "{error}");
    let kept = |mut entries: BTreeMap<String, Bytes>| {
        entries.retain(|key, _| key.contains('/') || key == "globals");
        entries
    };
    assert_eq!(kept(store.dump()), kept(entries));
}

#[test]
fn a_store_of_somebody_else_is_left_alone() {
    let store = MemoryStore::shared();
    let sim = pluvio_sim::Sim::new(1, SimOptions::default());
    let process = sim.process("coordinator");
    let (env, own) = (process.env.clone(), store.clone());
    let running = async move {
        let key = "registry/pods".to_owned();
        let put = Change::Put {
            key: key.clone(),
            value: "precious".into(),
        };
        let condition = Condition { key, value: None };
        assert_eq!(
            own.apply_if(condition, vec![put]).await,
            Ok(Outcome::Applied)
        );
        let candidate = Candidate::new(env, CoordinatorOptions::default());
        let Err(error) = candidate.run(Arc::new(own), "coordinator").await;
        error
    };
    let error = sim
        .block_on(process.id, running, Duration::from_secs(60))
        .unwrap();
    assert_eq!(error, CoordinatorError::Foreign(1));
    assert_eq!(store.dump().len(), 1);
}

/// Crashes the leader once the store has gone silent for it, for good; the other one goes on.
fn crash_leader_at(cluster: &Cluster, stop: Stop) -> Arc<AtomicU32> {
    let crashed = Arc::new(AtomicU32::new(0));
    let (store, sim, own) = (cluster.store.clone(), cluster.sim.handle(), crashed.clone());
    let clock = cluster.client.env.clock.clone();
    let leader = cluster.coordinators[cluster.leader()];
    store.set_stop(Some(stop));
    cluster.sim.spawn(cluster.client.id, "fault", async move {
        while !store.has_stopped() {
            clock.sleep(Duration::from_millis(1)).await;
        }
        sim.crash(leader);
        store.set_stop(None);
        own.store(1, Ordering::SeqCst);
    });
    crashed
}

/// Plays the story; the leader dies at `stop`, counted from when all servers are up. Gives how many
/// batches were stored meanwhile.
fn play(seed: u64, limits: Limits, stop: Option<fn(u64) -> Stop>, at: u64) -> u64 {
    let store = MemoryStore::shared().with_limits(limits);
    let mut cluster = Cluster::with_coordinators(seed, SimOptions::default(), 2, store);
    for _ in 0..3 {
        cluster.add_machine();
    }
    cluster.server(0).behaviour.live_bytes = 64 << 20;
    cluster.until("all servers are up", |c| (0..3).all(|i| c.id(i).0 != 0));
    let began = cluster.store.batches();
    let crashed = stop.map(|stop| crash_leader_at(&cluster, stop(began + at)));
    play_story(&cluster, &at, || ());
    cluster.sim.run_for(Duration::from_secs(5));
    let status = cluster.calm_down();
    let names: Vec<_> = status.tables.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["t", "v"], "{at}");
    assert_eq!(status.list.servers.len(), 3, "{at}");
    let keys: BTreeSet<String> = cluster.stored().into_keys().collect();
    assert!(keys.iter().all(|key| !key.starts_with("part/")), "{keys:?}");
    if let Some(crashed) = crashed {
        assert_eq!(crashed.load(Ordering::SeqCst), 1, "{at}");
    }
    cluster.store.batches() - began
}

fn the_leader_dies_at_every_batch(seed: u64, limits: Limits) {
    let batches = play(seed, limits, None, 0);
    assert!(batches > 15, "the story stores only {batches} batches");
    // Later ones depend on what happened before.
    for at in 0..batches * 3 / 4 {
        play(seed, limits, Some(Stop::Before), at);
        play(seed, limits, Some(Stop::After), at);
    }
}

// shows: LEAD-1
#[test]
fn the_next_leader_goes_on_wherever_the_first_one_died() {
    the_leader_dies_at_every_batch(1, Limits::NONE);
}

/// So small that most changes are stored in parts.
// shows: LEAD-4
#[test]
fn the_next_leader_goes_on_in_the_middle_of_a_large_batch() {
    let limits = Limits {
        changes: 2,
        bytes: 1 << 20,
    };
    the_leader_dies_at_every_batch(2, limits);
}

#[test]
fn leaders_that_die_in_turn_lose_nothing() {
    for seed in 0..15 {
        let cluster = cluster(seed, 3, 4);
        let rng = cluster.client.env.rng.clone();
        let mut made = 0;
        for _ in 0..8 {
            let victim = cluster.leader();
            match rng.below(3) {
                0 => cluster.sim.pause(cluster.coordinators[victim]),
                1 => cluster.sim.crash(cluster.coordinators[victim]),
                _ => cluster.crash(rng.below(4) as usize),
            }
            cluster.create_table(&format!("t{made}"));
            made += 1;
            assert!(cluster.leaders().len() <= 1, "seed {seed}");
            cluster.sim.run_for(Duration::from_millis(rng.below(3000)));
            for (number, process) in cluster.coordinators.iter().enumerate() {
                cluster.sim.resume(*process);
                if !cluster.sim.is_up(*process) {
                    cluster.restart_coordinator_number(number);
                }
            }
            for index in 0..4 {
                if cluster.server(index).is_dead
                    || !cluster.sim.is_up(cluster.machines[index].process)
                {
                    cluster.crash(index);
                    cluster.restart(index);
                }
            }
        }
        let status = cluster.calm_down();
        assert_eq!(status.tables.len(), made, "seed {seed}");
    }
}
