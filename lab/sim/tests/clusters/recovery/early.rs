//! Recovered tablets answer reads before they have replicas of their own. Writes to these are held
//! up here, and something else happens meanwhile.

use super::{Message, SERVERS};
use crate::load::{Loaded, loaded, loaded_in};
use crate::struck::{self, At, Cluster, Moment, Victim};
use bytes::Bytes;
use core::time::Duration;
use pluvio_client::{Change, Client, Mutation, Operation, Table, Transacted, TransactionStep};
use pluvio_coordinator::CoordinatorOptions;
use pluvio_units::{KeyHash, ServerId};
use pluvio_wire::TabletState;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Longer than anything that happens meanwhile.
const LONG: Duration = Duration::from_secs(30);

/// Reads an object whose value is known, and a counter that only grows.
async fn read(client: &Client, table: &Table) -> Bytes {
    let kept = client.read(table, b"kept 7").await.unwrap();
    assert_eq!(kept.unwrap().value, vec![7; 1000]);
    let counter = client.read(table, b"counter 0").await.unwrap();
    counter.unwrap().value
}

/// The table's owner has crashed, and every tablet is read from a server that has no replicas of
/// it.
fn standing(mut cluster: Loaded<Message>) -> (Loaded<Message>, Vec<ServerId>) {
    // All counters are there.
    for _ in 0..200 {
        cluster.cluster.tend();
    }
    let owner = cluster.owner();
    cluster.cluster.hold(Message::SideReplica, LONG);
    let process = cluster.cluster.process_of(owner);
    cluster.cluster.crash(process);
    for _ in 0..10_000 {
        cluster.cluster.tend();
        let status = cluster.cluster.status(&cluster.client);
        let tablets = &status.tables[0].tablets;
        // The parts of a status are not of one moment.
        let is_read = |reader| reader != owner && status.list.is_up(reader);
        let recovers = status.recoveries.iter().any(|r| !r.done);
        if recovers && { tablets }
            .iter()
            .all(|t| t.state == TabletState::Normal && is_read(t.owner))
        {
            let readers = tablets.iter().map(|t| t.owner).collect();
            return (cluster, readers);
        }
    }
    panic!("nothing is read early");
}

// shows: COORD-14, REC-7
#[test]
fn what_is_replayed_is_read_and_is_not_written_before_its_replicas_are_there() {
    let _marks =
        pluvio_units::Marks::to_reach(&["recovery-serves-early", "standing-tablet-refuses-change"]);
    let (mut loaded, _) = standing(loaded(700, SERVERS));
    let written = Arc::new(AtomicBool::new(false));
    let (client, table, done) = (loaded.client.clone(), loaded.table.clone(), written.clone());
    loaded
        .cluster
        .sim
        .spawn(loaded.cluster.client.id, "write", async move {
            let value = Bytes::from_static(b"new");
            client.write(&table, b"kept 8", value).await.unwrap();
            done.store(true, Ordering::Relaxed);
        });
    for _ in 0..3 {
        let (client, table) = (loaded.client.clone(), loaded.table.clone());
        loaded
            .cluster
            .block_on(async move { read(&client, &table).await });
        for _ in 0..500 {
            loaded.cluster.tend();
        }
    }
    assert!(!written.load(Ordering::Relaxed));
    loaded.cluster.release();
    while !written.load(Ordering::Relaxed) {
        loaded.cluster.tend();
    }
    let objects = &loaded.told.objects;
    objects
        .lock()
        .unwrap()
        .insert("kept 8".into(), Bytes::from_static(b"new"));
    loaded.check("early reads");
}

/// Its outcome is kept with its first key, which it only reads.
// shows: REC-7, COMP-1
#[test]
fn a_transaction_keeps_its_outcome_where_its_tablet_has_replicas() {
    let (mut loaded, readers) = standing(loaded(706, SERVERS));
    let (client, table) = (loaded.client.clone(), loaded.table.clone());
    // One whose owner reads early.
    let other = (0..16).find_map(|n| {
        let (client, name) = (client.clone(), format!("other {n}"));
        let created = async move { client.create_table(&name, None).await.unwrap() };
        let other = loaded.cluster.block_on(created);
        let status = loaded.cluster.status(&loaded.client);
        let owner_of = |of: &Table, key: &[u8]| {
            let its = status.tables.iter().find(|its| its.id == of.id()).unwrap();
            let mut tablets = its.tablets.iter();
            tablets
                .find(|t| t.range.contains(of.hash(key)))
                .unwrap()
                .owner
        };
        let reader = owner_of(&table, b"kept 7");
        assert!(readers.contains(&reader), "it is read early");
        (owner_of(&other, b"new") == reader).then_some(other)
    });
    let other = other.expect("tables are spread");
    let done = Arc::new(AtomicBool::new(false));
    let told = done.clone();
    loaded
        .cluster
        .sim
        .spawn(loaded.cluster.client.id, "transact", async move {
            let id = other.id();
            let kept = client.read(&table, b"kept 7").await.unwrap().unwrap();
            let put = Mutation::new(id, b"new", Change::Put(b"value".as_slice().into()));
            let steps = [
                (
                    &table,
                    TransactionStep::version_is(table.id(), b"kept 7", kept.version),
                ),
                (&other, TransactionStep::new(Operation::Mutate(put))),
            ];
            let committed = client.transact(&steps).await.unwrap();
            assert!(matches!(committed, Transacted::Committed(_)));
            told.store(true, Ordering::Relaxed);
        });
    for _ in 0..1500 {
        loaded.cluster.tend();
    }
    assert!(!done.load(Ordering::Relaxed), "it was not held up");
    loaded.cluster.release();
    while !done.load(Ordering::Relaxed) {
        loaded.cluster.tend();
    }
    loaded.check("a transaction");
}

#[test]
fn a_coordinator_that_serves_late_lets_nobody_read_early() {
    let mut options = CoordinatorOptions::default();
    options.serve_early = false;
    let mut loaded = loaded_in(Cluster::with(705, SERVERS, options));
    let owner = loaded.owner();
    loaded
        .cluster
        .hold(Message::SideReplica, Duration::from_secs(3));
    let process = loaded.cluster.process_of(owner);
    loaded.cluster.crash(process);
    for _ in 0..2_000 {
        loaded.cluster.tend();
    }
    let status = loaded.cluster.status(&loaded.client);
    let mut tablets = status.tables[0].tablets.iter();
    assert!(tablets.all(|t| t.state == TabletState::Recovering && t.owner == owner));
    loaded.check("late");
}

/// Reads one of the counters all the time, until the end; it never falls.
fn watch(loaded: &Loaded<Message>) -> Arc<Mutex<Vec<i64>>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let process = loaded.cluster.sim.process("reader");
    let client = loaded.cluster.new_client(&process);
    let (own, told) = (Arc::clone(&seen), Arc::clone(&loaded.told));
    let clock = process.env.clock.clone();
    told.working.fetch_add(1, Ordering::Relaxed);
    loaded.cluster.sim.spawn(process.id, "reader", async move {
        let table = client.table("t").await.unwrap();
        while !told.stop.load(Ordering::Relaxed) {
            if let Some(object) = client.read(&table, b"counter 0").await.unwrap() {
                let text = String::from_utf8(object.value.to_vec()).unwrap();
                own.lock().unwrap().push(text.parse().unwrap());
            }
            clock.sleep(Duration::from_millis(3)).await;
        }
        told.working.fetch_sub(1, Ordering::Relaxed);
    });
    seen
}

/// Crashes processes while tablets stand on a crashed server, and lets replicas be made a second
/// later.
fn crash_while_standing(seed: u64, victims: impl Fn(&Loaded<Message>, &[ServerId]) -> Vec<Crash>) {
    let loaded = loaded(seed, SERVERS);
    let seen = watch(&loaded);
    let (mut loaded, readers) = standing(loaded);
    for victim in victims(&loaded, &readers) {
        match victim {
            Crash::Coordinator => loaded.cluster.crash(loaded.cluster.coordinator),
            Crash::Server(server) => {
                let process = loaded.cluster.process_of(server);
                loaded.cluster.crash(process);
            }
            Crash::AllServers => {
                for process in loaded.cluster.running() {
                    loaded.cluster.crash(process);
                }
            }
        }
    }
    for _ in 0..1_000 {
        loaded.cluster.tend();
    }
    loaded.cluster.release();
    loaded.check(&format!("crash while standing, seed {seed}"));
    let seen = seen.lock().unwrap();
    assert!(seen.is_sorted(), "a read value is gone, seed {seed}");
}

#[derive(Clone, Copy, Debug)]
enum Crash {
    Coordinator,
    Server(ServerId),
    AllServers,
}

// shows: COORD-13, COORD-14, COORD-15
#[test]
fn who_answers_reads_of_a_standing_tablet_may_crash() {
    let _marks = pluvio_units::Marks::to_reach(&[
        "recovery-standing-tablet-given-back",
        "recovery-fences-reader",
    ]);
    for seed in 710..714 {
        crash_while_standing(seed, |_, readers| vec![Crash::Server(readers[0])]);
    }
}

// shows: COORD-14
#[test]
fn the_coordinator_may_crash_while_tablets_stand() {
    for seed in 720..724 {
        crash_while_standing(seed, |_, _| vec![Crash::Coordinator]);
    }
}

// shows: COORD-13, COORD-15
#[test]
fn the_coordinator_and_who_answers_reads_may_crash_together() {
    for seed in 730..734 {
        let victims = |readers: &[ServerId]| vec![Crash::Server(readers[0]), Crash::Coordinator];
        crash_while_standing(seed, |_, readers| victims(readers));
    }
}

// shows: COORD-13, COORD-14
#[test]
fn all_may_crash_while_tablets_stand() {
    for seed in 740..744 {
        crash_while_standing(seed, |_, _| vec![Crash::AllServers, Crash::Coordinator]);
    }
}

/// A backup that has replicas of the crashed server's log.
// shows: COORD-13
#[test]
fn another_server_may_crash_while_tablets_stand() {
    for seed in 750..754 {
        crash_while_standing(seed, |loaded, readers| {
            let ids = loaded.cluster.server_ids();
            let other = ids.into_iter().find(|id| !readers.contains(id)).unwrap();
            vec![Crash::Server(other)]
        });
    }
}

/// Each message of a recovery in which reads come long before writes.
fn strike_early(at: At<Message>, seed: u64, victim: Option<Victim>) -> bool {
    let mut loaded: Loaded<Message> = loaded(seed, SERVERS);
    let seen = watch(&loaded);
    let victim = victim.unwrap_or(Victim::Process(loaded.cluster.coordinator));
    let what = format!("early, {victim:?} {at:?}, seed {seed}");
    let owner = loaded.owner();
    // Not when it strikes at the very message that is held up.
    if at.message != Message::SideReplica {
        loaded
            .cluster
            .hold(Message::SideReplica, Duration::from_secs(2));
    }
    loaded.cluster.arm(at, victim);
    let process = loaded.cluster.process_of(owner);
    loaded.cluster.crash(process);
    let struck = loaded.cluster.let_strike(at, &loaded.client, &what);
    loaded.check(&what);
    assert!(seen.lock().unwrap().is_sorted(), "{what}");
    struck
}

fn strike_early_at_every_message(seed: u64, victim: Option<Victim>) {
    let _marks = pluvio_units::Marks::to_reach(&["recovery-serves-early"]);
    struck::at_every_message(&Message::EARLY, |at| {
        let seed = seed + at.message as u64 + 20 * u64::from(at.nth);
        strike_early(at, seed, victim)
    });
}

// shows: COORD-13, COORD-14, COORD-15, REC-5, REC-7
#[test]
fn who_sends_is_killed_at_every_message_of_a_recovery_that_serves_early() {
    strike_early_at_every_message(1100, Some(Victim::Sender));
}

// shows: COORD-13, COORD-14, COORD-15, REC-5, REC-7
#[test]
fn who_receives_is_killed_at_every_message_of_a_recovery_that_serves_early() {
    strike_early_at_every_message(1200, Some(Victim::Receiver));
}

// shows: COORD-13, COORD-14, COORD-15, REC-5, REC-7
#[test]
fn the_coordinator_is_killed_at_every_message_of_a_recovery_that_serves_early() {
    strike_early_at_every_message(1300, None);
}

// shows: COORD-14
#[test]
fn a_standing_tablet_is_neither_cut_nor_moved() {
    let (mut loaded, readers) = standing(loaded(760, SERVERS));
    let ended = Arc::new(AtomicBool::new(false));
    let (client, table, done) = (loaded.client.clone(), loaded.table.clone(), ended.clone());
    loaded
        .cluster
        .sim
        .spawn(loaded.cluster.client.id, "cut", async move {
            let middle = KeyHash(1 << 60);
            client.split_tablet(&table, Some(middle)).await.unwrap();
            done.store(true, Ordering::Relaxed);
        });
    for _ in 0..1_000 {
        loaded.cluster.tend();
    }
    assert!(!ended.load(Ordering::Relaxed));
    loaded.cluster.release();
    let ids = loaded.cluster.server_ids();
    let to = ids.into_iter().find(|id| !readers.contains(id)).unwrap();
    assert!(loaded.migrate(to));
    while !ended.load(Ordering::Relaxed) {
        loaded.cluster.tend();
    }
    loaded.check("cut and moved");
}

// shows: COORD-14, REC-7
#[test]
fn what_is_read_and_does_not_become_durable_goes_back() {
    let _marks = pluvio_units::Marks::to_reach(&[
        "recovery-reads-end",
        "recovery-standing-tablet-given-back",
    ]);
    // Longer than a recovery master waits.
    let held = Duration::from_secs(605);
    let mut cluster: Cluster<Message> = Cluster::new(780, SERVERS);
    let client = cluster.new_client(&cluster.client);
    let table = cluster.table(&client);
    let (own, all) = (client.clone(), table.clone());
    let value = Bytes::from(vec![7; 1000]);
    let written = value.clone();
    cluster.block_on(async move { own.write(&all, b"key", written).await.unwrap() });
    let owner = cluster.owner(&client, &table);
    cluster.hold(Message::SideReplica, held);
    let process = cluster.process_of(owner);
    cluster.crash(process);
    let until = cluster.sim.now() + held;
    while cluster.sim.now() < until {
        cluster.tend();
    }
    cluster.until_healthy(&client);
    let read = cluster.block_on(async move { client.read(&table, b"key").await.unwrap() });
    assert_eq!(read.unwrap().value, value);
}

// shows: COORD-14, REC-7
#[test]
fn a_table_may_be_dropped_while_its_tablets_stand() {
    let at = At::first(Message::Replayed, Moment::After);
    let mut cluster: Cluster<Message> = Cluster::new(770, SERVERS);
    let client = cluster.new_client(&cluster.client);
    let table = cluster.table(&client);
    let (own, all) = (client.clone(), table.clone());
    cluster.block_on(async move {
        let value = Bytes::from(vec![7; 1000]);
        own.write(&all, b"key", value).await.unwrap();
    });
    let owner = cluster.owner(&client, &table);
    let own = client.clone();
    cluster.arm_work(at, async move {
        own.drop_table("t").await.unwrap();
    });
    cluster.hold(Message::SideReplica, Duration::from_secs(2));
    let process = cluster.process_of(owner);
    cluster.crash(process);
    cluster.until_struck("drop");
    cluster.until_healthy(&client);
    for _ in 0..100 {
        let status = cluster.status(&client);
        let is_empty = |s: &pluvio_wire::ServerStatus| s.tablets == 0 && s.objects == 0;
        if status.tables.is_empty() && status.servers.iter().all(is_empty) {
            return;
        }
        for _ in 0..100 {
            cluster.tend();
        }
    }
    panic!("{:?}", cluster.status(&client));
}
