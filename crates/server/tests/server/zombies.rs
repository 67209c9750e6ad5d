//! A live server that others take for dead. It shows nothing that others have changed since, and
//! its acknowledged writes are not lost (LEASE-1, LEASE-4, REP-5).

use crate::rig::{LONG, Rig, objects};
use bytes::Bytes;
use pluvio_client::Table;
use pluvio_coordinator::CoordinatorOptions;
use pluvio_env::{Address, Moment};
use pluvio_sim::DiskFaults;
use pluvio_units::ServerId;
use pluvio_wire::Header;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Clients that ask the zombie whatever happens.
const STUBBORN: u32 = 6;
/// How long they wait for an answer.
const PATIENCE: Duration = Duration::from_millis(300);

/// How a server becomes one.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Only clients reach it.
    Alone,
    /// Clients reach it, and another one in the same position: they ping each other.
    InCompany,
    /// It stands still until others have its tablets, and then goes on.
    Standstill,
}

/// What the zombie answered.
#[derive(Default)]
struct Answers {
    /// When a read was sent, and the value.
    reads: Vec<(Moment, Bytes)>,
    /// When writes that were acknowledged were sent, and their keys.
    written: Vec<(Moment, String)>,
}

/// Reads one key and writes others of its own, at one server, for ever.
fn ask(rig: &Rig, table: &Table, zombie: (usize, ServerId), answers: &Arc<Mutex<Answers>>) {
    for client in 0..STUBBORN {
        let (env, answers) = (rig.client.env.clone(), Arc::clone(answers));
        let address = Address::from(&*format!("server-{}", zombie.0));
        let (table, header) = (table.id(), Header::to(zombie.1));
        rig.sim.spawn(rig.client.id, "stubborn", async move {
            for turn in 0_u32.. {
                let sent = env.clock.now();
                let object = (table, b"shared".as_slice());
                let read = objects::read(&*env.network, &address, header, object, PATIENCE).await;
                if let Ok(found) = read {
                    let value = found.map(|(_, value)| Bytes::from(value));
                    let value = value.unwrap_or_default();
                    answers.lock().unwrap().reads.push((sent, value));
                }
                let key = format!("of {client}, {turn}");
                let object = (table, key.as_bytes(), b"here".as_slice());
                let sent = env.clock.now();
                let written =
                    objects::write(&*env.network, &address, header, object, PATIENCE).await;
                if written.is_ok() {
                    answers.lock().unwrap().written.push((sent, key));
                }
                env.clock.sleep(Duration::from_millis(5)).await;
            }
        });
    }
}

/// Cuts these servers off from all but each other and the stubborn clients.
fn cut_off(rig: &Rig, servers: &[usize]) {
    let processes: Vec<_> = servers.iter().map(|i| rig.servers[*i]).collect();
    for process in &processes {
        rig.sim.isolate(*process);
    }
    for process in &processes {
        for friend in processes.iter().chain([&rig.client.id]) {
            rig.sim.heal(*process, *friend);
            rig.sim.heal(*friend, *process);
        }
    }
}

fn scenario(seed: u64, way: Way, replicas: u32) {
    let rig = Rig::of(seed, 5, replicas);
    rig.all_started();
    let client = rig.connect(&rig.client);
    let table = rig.run(&rig.client, async move {
        let table = client.create_table("t", Some(1)).await.unwrap();
        let old = client.write(&table, b"shared", Bytes::from("old"));
        old.await.unwrap();
        table
    });
    let zombie = rig.owner(&table, b"shared").expect("somebody serves it");
    let id = rig.server(zombie).expect("it has started").id();
    let answers = Arc::default();
    ask(&rig, &table, (zombie, id), &answers);
    rig.sim.run_for(Duration::from_millis(200));
    assert!(!answers.lock().unwrap().written.is_empty(), "{way:?}");

    match way {
        Way::Alone => cut_off(&rig, &[zombie]),
        Way::InCompany => cut_off(&rig, &[zombie, (zombie + 1) % 5]),
        Way::Standstill => rig.sim.pause(rig.servers[zombie]),
    }
    let overwritten = Arc::new(Mutex::new(false));
    let (client, done) = (rig.connect(&rig.other), Arc::clone(&overwritten));
    rig.sim.spawn(rig.other.id, "overwrites", async move {
        let table = client.table("t").await.unwrap();
        let new = client.write(&table, b"shared", Bytes::from("new"));
        new.await.unwrap();
        *done.lock().unwrap() = true;
    });
    rig.sim
        .run_until(|| *overwritten.lock().unwrap(), LONG)
        .unwrap_or_else(|stuck| panic!("{way:?}, seed {seed}: {stuck}"));
    // By the clock of those who read.
    let since = rig.client.env.clock.now();
    rig.sim.run_for(PATIENCE / 2);
    rig.sim.resume(rig.servers[zombie]);
    rig.sim.run_for(Duration::from_secs(3));

    let answers = std::mem::take(&mut *answers.lock().unwrap());
    let stale = |(sent, value): &&(Moment, Bytes)| *sent >= since && value != "new";
    let stale: Vec<_> = answers.reads.iter().filter(stale).collect();
    assert!(stale.is_empty(), "{way:?}, seed {seed}: {stale:?}");
    let late = |(sent, _): &&(Moment, String)| *sent >= since;
    let late: Vec<_> = answers.written.iter().filter(late).collect();
    assert!(late.is_empty(), "{way:?}, seed {seed}: {late:?}");
    if replicas == 0 {
        return;
    }
    let client = rig.connect(&rig.client);
    rig.run(&rig.client, async move {
        for (_, key) in answers.written {
            let found = client.read(&table, key.as_bytes()).await.unwrap();
            assert!(found.is_some(), "{way:?}, seed {seed}: {key} is lost");
        }
    });
}

/// Load balancers and people hear of it before its end: nobody has declared it dead yet.
#[test]
fn a_server_that_is_cut_off_is_not_ready() {
    let mut options = CoordinatorOptions::default();
    options.dead_server_timeout = LONG;
    let mut rig = Rig::with(1, options);
    for _ in 0..3 {
        rig.add(2, DiskFaults::default());
    }
    rig.all_started();
    let settle = || rig.sim.run_for(Duration::from_secs(1));
    let server = rig.server(0).expect("it has started");
    settle();
    assert!(server.readiness().ready, "{:?}", server.readiness());
    rig.sim.isolate(rig.servers[0]);
    settle();
    let readiness = server.readiness();
    assert!(!readiness.ready && readiness.reason.contains("confirm"));
    assert!(server.status().writes_wait.is_some());
    rig.sim.heal_all();
    settle();
    assert!(server.readiness().ready, "{:?}", server.readiness());
    assert_eq!(server.status().writes_wait, None);
}

#[test]
fn a_server_that_only_clients_reach_misleads_nobody() {
    (0..4).for_each(|seed| scenario(seed, Way::Alone, 2));
}

#[test]
fn servers_that_reach_only_each_other_mislead_nobody() {
    (0..4).for_each(|seed| scenario(seed, Way::InCompany, 2));
}

// shows: SRV-1
#[test]
fn a_server_that_stood_still_misleads_nobody() {
    let _marks = pluvio_units::Marks::to_reach(&["server-expelled"]);
    (0..4).for_each(|seed| scenario(seed, Way::Standstill, 2));
}

/// Their objects are lost with them, so nothing else needs to hold.
// shows: LEASE-4, SRV-1
#[test]
fn servers_without_replicas_mislead_nobody() {
    for way in [Way::Alone, Way::InCompany, Way::Standstill] {
        (0..4).for_each(|seed| scenario(seed, way, 0));
    }
}
