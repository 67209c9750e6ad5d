//! Overload [RAMCloud §5.3]. Every server writes to every other one, and all of them are at their
//! limits. Or one disk is much slower than the others.

use crate::rig::{LONG, Rig, objects};
use bytes::Bytes;
use pluvio_env::{Address, Env};
use pluvio_sim::DiskFaults;
use pluvio_units::{ServerId, TableId};
use pluvio_wire::{GetClusterStatus, Header, Ping, Refusal, RetryReason, RpcError, call};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const SERVERS: usize = 4;
/// Writes to each server at a time: more than twice of what one admits.
const WRITERS: usize = 2000;
/// Keys of each server, so few that what they hold is little beside the memory.
const KEYS: usize = 50;
const VALUE: usize = 16 << 10;
/// What a ping may take while everything waits. Failure detection gives a server four times as
/// much.
const PING_MAX: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Counts {
    done: AtomicUsize,
    /// Refused because the server had enough to do, by server.
    busy: [AtomicUsize; SERVERS],
    pings: AtomicUsize,
}

/// Writes until it is done, however often it has to come again.
async fn insist(
    env: Env,
    server: usize,
    id: ServerId,
    (table, key, value): (TableId, Vec<u8>, Vec<u8>),
    counts: Arc<Counts>,
) {
    let to = Address::from(&*format!("server-{server}"));
    loop {
        let object = (table, &key[..], &value[..]);
        match objects::write(&*env.network, &to, Header::to(id), object, LONG).await {
            Ok(_) => break,
            Err(RpcError::Refused(Refusal::Retry { after_us, why, .. })) => {
                if why == RetryReason::Busy {
                    counts.busy[server].fetch_add(1, Ordering::Relaxed);
                }
                let after = Duration::from_micros(u64::from(after_us));
                env.clock.sleep(after).await;
            }
            Err(other) => panic!("{other}"),
        }
    }
    counts.done.fetch_add(1, Ordering::Relaxed);
}

/// Pings a server all the time; every one must be answered.
async fn ping(env: Env, server: usize, counts: Arc<Counts>) {
    let to = Address::from(&*format!("server-{server}"));
    let ping = Ping { from: ServerId(0) };
    loop {
        let asked = call(&*env.network, &to, Header::default(), &ping, PING_MAX).await;
        assert!(asked.is_ok(), "server {server}: {asked:?}");
        counts.pings.fetch_add(1, Ordering::Relaxed);
        env.clock.sleep(Duration::from_millis(5)).await;
    }
}

/// Keys that this server has.
fn keys_of(rig: &Rig, table: &pluvio_client::Table, server: usize) -> Vec<Vec<u8>> {
    let keys = (0..).map(|n| format!("key {n}").into_bytes());
    let own = keys.filter(|key| rig.owner(table, key) == Some(server));
    own.take(KEYS).collect()
}

/// Each write waits for three other servers, whose places for writes are all taken by writes that
/// wait for this one. No cycle forms, because replication waits for no place of clients.
#[test]
fn servers_that_all_wait_for_each_other_with_all_buffers_full_get_through() {
    let mut rig = Rig::new(1);
    let slow = DiskFaults {
        latency_min: Duration::from_millis(1),
        latency_max: Duration::from_millis(5),
        bytes_per_second: 50 << 20,
        ..DiskFaults::default()
    };
    for _ in 0..SERVERS {
        rig.add(3, slow.clone());
    }
    rig.all_started();
    let table = rig.fill("t", 1);
    let counts = Arc::<Counts>::default();
    for server in 0..SERVERS {
        let (env, also) = (rig.other.env.clone(), counts.clone());
        rig.sim
            .spawn(rig.other.id, "pings", ping(env, server, also));
        let id = rig.server(server).unwrap().id();
        let keys = keys_of(&rig, &table, server);
        assert_eq!(keys.len(), KEYS, "server {server} has a tablet");
        for writer in 0..WRITERS {
            let value = vec![writer as u8; VALUE];
            let write = (table.id(), keys[writer % KEYS].clone(), value);
            let (env, also) = (rig.client.env.clone(), counts.clone());
            rig.sim
                .spawn(rig.client.id, "write", insist(env, server, id, write, also));
        }
    }
    let done = || counts.done.load(Ordering::Relaxed) == SERVERS * WRITERS;
    rig.sim
        .run_until(done, LONG)
        .unwrap_or_else(|stuck| panic!("{:?} are done: {stuck}", counts.done));
    for (server, busy) in counts.busy.iter().enumerate() {
        let busy = busy.load(Ordering::Relaxed);
        assert!(busy > 0, "server {server} was never full");
    }
    assert!(counts.pings.load(Ordering::Relaxed) > 100);
    // Nobody was taken for dead.
    let env = rig.client.env.clone();
    let status = rig.run(&rig.client, async move {
        let to = Address::from("coordinator");
        let ask = GetClusterStatus {};
        call(&*env.network, &to, Header::default(), &ask, LONG).await
    });
    let status = status.unwrap();
    assert_eq!(status.list.up().count(), SERVERS);
    assert!(status.recoveries.is_empty());
}

/// What an operation of the slow disk takes.
const SLOW: Duration = Duration::from_secs(2);
/// The longest time of a write whose replicas are elsewhere.
const USUAL: Duration = Duration::from_millis(200);
/// The longest time of a write that waits for the slow disk: half of the time after which a client
/// gives up.
const HELD_UP: Duration = Duration::from_secs(5);
/// Writes of each owner, one after the other.
const ROUNDS: usize = 5;

/// A backup with a slow disk is no failure to anybody. It holds up those who write to heads that it
/// has replicas of, each for a time that is bounded, and nobody else.
#[test]
fn a_slow_disk_holds_up_only_heads_that_it_has_replicas_of_and_not_for_long() {
    let slowest = (1..=4).filter_map(slowest_write_beside_a_slow_disk).max();
    assert!(slowest.unwrap() >= SLOW, "nobody met the slow disk");
}

/// `None` when nobody, or everybody, has replicas there.
fn slowest_write_beside_a_slow_disk(seed: u64) -> Option<Duration> {
    let servers = 6;
    let slow = servers - 1;
    let rig = Rig::of(seed, servers, 2);
    rig.all_started();
    let table = rig.fill("t", 1);
    let owners: Vec<usize> = (0..servers).filter(|server| *server != slow).collect();
    let held_up: Vec<usize> = owners
        .iter()
        .copied()
        .filter(|owner| {
            !rig.frames(slow, rig.server(*owner).unwrap().id())
                .is_empty()
        })
        .collect();
    if held_up.is_empty() || held_up.len() == owners.len() {
        return None;
    }

    let disk = DiskFaults {
        latency_min: SLOW,
        latency_max: SLOW,
        ..DiskFaults::default()
    };
    rig.sim.set_disk(rig.servers[slow], disk);
    let counts = Arc::<Counts>::default();
    for server in 0..servers {
        let ping = ping(rig.other.env.clone(), server, counts.clone());
        rig.sim.spawn(rig.other.id, "pings", ping);
    }
    let took = Arc::<Mutex<Vec<(usize, Duration)>>>::default();
    for owner in &owners {
        let key = keys_of(&rig, &table, *owner).remove(0);
        let (env, client) = (rig.client.env.clone(), rig.connect(&rig.client));
        let (owner, table, took) = (*owner, table.clone(), took.clone());
        rig.sim.spawn(rig.client.id, "write", async move {
            for _ in 0..ROUNDS {
                let begun = env.clock.now();
                let written = client.write(&table, &key, Bytes::from_static(b"x"));
                written.await.unwrap();
                let time = env.clock.now().since(begun);
                took.lock().unwrap().push((owner, time));
            }
        });
    }
    let done = || took.lock().unwrap().len() == owners.len() * ROUNDS;
    rig.sim
        .run_until(done, LONG)
        .unwrap_or_else(|stuck| panic!("{took:?} are done: {stuck}"));
    for (owner, time) in took.lock().unwrap().iter() {
        let most = match held_up.contains(owner) {
            true => HELD_UP,
            false => USUAL,
        };
        assert!(*time < most, "seed {seed}, server {owner}: {time:?}");
    }
    // Nobody was taken for dead.
    let status = rig.status();
    assert_eq!(status.list.up().count(), servers);
    assert!(status.recoveries.is_empty());
    took.lock().unwrap().iter().map(|(_, time)| *time).max()
}

/// The only server that can take a crashed server's tablet has no room for the log's dead objects.
/// So the log is replayed again, and only its live objects. The dead ones come first, because their
/// successors lie on a slow disk.
#[test]
fn what_fits_only_without_dead_objects_is_recovered() {
    let _marks = pluvio_units::Marks::to_reach(&["recovery-memory-full"]);
    // Chance decides in which order segments come.
    (11..17).for_each(recover_without_dead_objects);
}

fn recover_without_dead_objects(seed: u64) {
    const LIVE: u32 = 200;
    const CHANGED: u32 = 180;
    const OTHERS: u32 = 200;
    let mut rig = Rig::of(seed, 2, 1);
    rig.all_started();
    let table = rig.fill_large("t", LIVE);
    let crashed = rig.owner(&table, b"key 0").expect("somebody serves it");
    let master = 1 - crashed;
    let own = rig.fill_large("u", OTHERS);
    assert_eq!(rig.owner(&own, b"key 0"), Some(master));
    // It keeps replicas for others and has none.
    let slow = DiskFaults {
        bytes_per_second: 10 << 20,
        ..DiskFaults::default()
    };
    rig.add(0, slow);
    rig.all_started();
    rig.sim.run_for(Duration::from_secs(2));
    let full = DiskFaults {
        capacity: Some(rig.sim.disk_used(rig.servers[master])),
        ..DiskFaults::default()
    };
    rig.sim.set_disk(rig.servers[master], full);
    rig.fill_large("t", CHANGED);
    rig.kill(crashed);
    rig.check_large("t", LIVE);
    rig.check_large("u", OTHERS);
}
