//! Planned stops under load. Servers leave in order, one after the other, and each process is
//! killed at each kind of message. Drains are refused, stopped and taken back.

mod message;

use crate::load::{Loaded, loaded};
use crate::struck::{self, At};
use core::time::Duration;
use message::Message;
use pluvio_client::ErrorKind;
use pluvio_server::NotLeft;
use pluvio_sim::ProcessId;
use pluvio_units::ServerId;
use pluvio_wire::{DrainStatus, DrainWish};

/// Far more than a drain takes here.
const LONG: Duration = Duration::from_secs(60);

type Outcome = Result<(), NotLeft>;

/// Asks a server to leave, and waits for what comes of it; `None` when it was killed meanwhile.
fn leave(loaded: &mut Loaded<Message>, server: ServerId, limit: Duration) -> Option<Outcome> {
    let process = loaded.cluster.process_of(server);
    loaded.cluster.ask_to_leave(server, limit);
    outcome(loaded, process, server)
}

fn outcome(loaded: &mut Loaded<Message>, process: ProcessId, server: ServerId) -> Option<Outcome> {
    for _ in 0..60_000 {
        if let Some(outcome) = loaded.cluster.has_left(process) {
            return Some(outcome);
        }
        if !loaded.cluster.server_ids().contains(&server) {
            return None;
        }
        loaded.cluster.tend();
    }
    panic!("server {server} neither leaves nor gives up");
}

fn drain(
    loaded: &mut Loaded<Message>,
    server: ServerId,
    wish: DrainWish,
) -> Result<DrainStatus, ErrorKind> {
    let client = loaded.client.clone();
    loaded.cluster.block_on(async move {
        let asked = client.drain_server(server, wish).await;
        asked.map_err(|error| error.kind())
    })
}

fn until_drained(loaded: &mut Loaded<Message>, server: ServerId) {
    let client = loaded.client.clone();
    let clock = loaded.cluster.client.env.clock.clone();
    loaded.cluster.block_on(async move {
        while !client.drain_status(server).await.unwrap().is_empty() {
            clock.sleep(Duration::from_millis(20)).await;
        }
    });
}

/// Recoveries that there were.
fn recoveries(loaded: &mut Loaded<Message>) -> usize {
    let client = loaded.client.clone();
    loaded.cluster.status(&client).recoveries.len()
}

// shows: COORD-16, COORD-17, LEFT-1
#[test]
fn servers_are_restarted_one_after_the_other_and_nothing_is_recovered() {
    let _marks = pluvio_units::Marks::to_reach(&["server-left"]);
    for seed in 0..2 {
        let mut loaded: Loaded<Message> = loaded(seed, 4);
        for round in 0..4 {
            // The one with the tablet, or any other one.
            let server = match round {
                2 => loaded.another(),
                _ => loaded.owner(),
            };
            let what = format!("seed {seed}, round {round}, server {server}");
            assert_eq!(leave(&mut loaded, server, LONG), Some(Ok(())), "{what}");
            assert_ne!(loaded.owner(), server, "{what}");
            loaded.cluster.until_healthy(&loaded.client);
        }
        assert_eq!(recoveries(&mut loaded), 0, "seed {seed}");
        loaded.check(&format!("seed {seed}"));
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Leaving,
    Receiver,
    Coordinator,
}

/// Kills one process at one message of a planned stop, and lets it come back. Gives whether there
/// was such a message.
fn strike(seed: u64, at: At<Message>, victim: Victim) -> bool {
    let what = format!("{victim:?} {at:?}, seed {seed}");
    let mut loaded: Loaded<Message> = loaded(seed, 4);
    let owner = loaded.owner();
    let process = loaded.cluster.process_of(owner);
    loaded.cluster.arm(
        at,
        match victim {
            Victim::Leaving => struck::Victim::Process(process),
            Victim::Coordinator => struck::Victim::Process(loaded.cluster.coordinator),
            Victim::Receiver => match at.message {
                Message::Receive => struck::Victim::Receiver,
                _ => struck::Victim::Sender,
            },
        },
    );
    let outcome = leave(&mut loaded, owner, LONG);
    match victim {
        // Whoever comes back takes the drain up, and it ends as if nothing had been.
        Victim::Receiver | Victim::Coordinator => assert_eq!(outcome, Some(Ok(())), "{what}"),
        Victim::Leaving => assert!(
            matches!(outcome, None | Some(Ok(()))),
            "{what}: {outcome:?}"
        ),
    }
    let struck = loaded.cluster.let_strike(at, &loaded.client, &what);
    loaded.cluster.until_healthy(&loaded.client);
    // All that lives takes part again.
    let again = loaded.owner();
    assert_eq!(
        leave(&mut loaded, again, LONG),
        Some(Ok(())),
        "{what}: the second one"
    );
    loaded.check(&what);
    struck
}

fn strike_at_every_message(all: &[Message], victim: Victim) {
    struck::at_every_message(all, |at| {
        let seed = at.message as u64 + 100 * u64::from(at.nth);
        strike(seed, at, victim)
    });
}

#[test]
fn the_leaving_server_is_killed_at_every_message() {
    strike_at_every_message(&Message::ALL, Victim::Leaving);
}

// shows: COORD-2
#[test]
fn the_coordinator_is_killed_at_every_message() {
    strike_at_every_message(&Message::ALL, Victim::Coordinator);
}

#[test]
fn the_receiver_is_killed_at_every_message() {
    let _marks = pluvio_units::Marks::to_reach(&["drain-move-failed"]);
    let all = [Message::Receive, Message::Data, Message::Received];
    strike_at_every_message(&all, Victim::Receiver);
}

/// The drain of a command: the server stays, without tablets, until it is taken back or stopped.
// shows: COORD-16
#[test]
fn a_drained_server_gets_nothing_until_the_drain_is_taken_back() {
    let mut loaded: Loaded<Message> = loaded(7, 3);
    let server = loaded.owner();
    assert!(
        drain(&mut loaded, server, DrainWish::Drain)
            .unwrap()
            .draining
    );
    // Once more is no error.
    assert!(
        drain(&mut loaded, server, DrainWish::Drain)
            .unwrap()
            .draining
    );
    until_drained(&mut loaded, server);
    assert!(
        loaded
            .cluster
            .status(&loaded.client)
            .list
            .get(server)
            .unwrap()
            .draining
    );
    // New tables go elsewhere.
    let client = loaded.client.clone();
    let other = loaded
        .cluster
        .block_on(async move { client.create_table("other", None).await.unwrap() });
    let owners = loaded.cluster.tablets(&loaded.client, &other);
    assert_eq!(owners.len(), 2, "{owners:?}");
    assert!(!owners.contains_key(&server));
    let back = drain(&mut loaded, server, DrainWish::Cancel).unwrap();
    assert!(!back.draining);
    assert!(loaded.migrate(server), "it may have tablets again");
    loaded.check("taken back");
}

/// Data for which the others have no room stays, and the reason is said.
#[test]
fn a_server_whose_data_fits_nowhere_is_not_drained() {
    let mut loaded: Loaded<Message> = loaded(12, 3);
    let client = loaded.client.clone();
    let server = loaded.cluster.block_on(async move {
        let table = client.create_table("large", None).await.unwrap();
        for number in 0..130 {
            let value = bytes::Bytes::from(vec![number as u8; 900_000]);
            let key = format!("large {number}");
            client.write(&table, key.as_bytes(), value).await.unwrap();
            let servers = client.cluster_status().await.unwrap().servers;
            let fullest = servers.iter().max_by_key(|s| s.memory_live).unwrap();
            let others = servers.iter().filter(|s| s.id != fullest.id);
            let room: u64 = others.map(|s| s.memory_live_max - s.memory_live).sum();
            if fullest.memory_live > room {
                return fullest.id;
            }
        }
        panic!("there is room for everything");
    });
    let client = loaded.client.clone();
    let refused = loaded.cluster.block_on(async move {
        let refused = client.drain_server(server, DrainWish::Drain).await;
        refused.unwrap_err().to_string()
    });
    assert!(refused.contains("the others have room for"), "{refused}");
    let list = loaded.cluster.status(&loaded.client).list;
    assert!(!list.get(server).unwrap().draining);
    loaded.check("no room");
}

/// Nobody can have what the last server has; and two that are drained at once leave the third one
/// everything.
#[test]
fn the_last_server_is_not_drained() {
    let mut loaded: Loaded<Message> = loaded(8, 3);
    let ids = loaded.cluster.server_ids();
    for server in &ids[..2] {
        assert!(drain(&mut loaded, *server, DrainWish::Drain).is_ok());
    }
    for server in &ids[..2] {
        until_drained(&mut loaded, *server);
    }
    assert_eq!(loaded.owner(), ids[2]);
    let refused = drain(&mut loaded, ids[2], DrainWish::Drain);
    assert_eq!(refused, Err(ErrorKind::Refused));
    // It does not wait for what cannot be: its process ends, and is recovered.
    let outcome = leave(&mut loaded, ids[2], LONG);
    assert!(
        matches!(outcome, Some(Err(NotLeft::Refused(_)))),
        "{outcome:?}"
    );
    for server in [ServerId(99), ids[2]] {
        loaded.cluster.sim.run_for(Duration::from_secs(3));
        let refused = drain(&mut loaded, server, DrainWish::Drain);
        assert_eq!(refused, Err(ErrorKind::Refused), "{server} is not up");
    }
    loaded.check("the last one");
}

/// All are stopped at once: that is no planned stop of any of them, and must not take long.
#[test]
fn servers_that_are_stopped_together_do_not_wait_for_each_other() {
    for seed in 0..4 {
        let mut loaded: Loaded<Message> = loaded(seed, 4);
        let began = loaded.cluster.sim.now();
        let ids = loaded.cluster.server_ids();
        let all: Vec<_> = ids
            .iter()
            .map(|id| (loaded.cluster.process_of(*id), *id))
            .collect();
        for (_, id) in &all {
            loaded.cluster.ask_to_leave(*id, LONG);
        }
        for (process, id) in all {
            outcome(&mut loaded, process, id);
        }
        let took = loaded.cluster.sim.now() - began;
        assert!(took < Duration::from_secs(5), "seed {seed}: {took:?}");
        loaded.cluster.until_healthy(&loaded.client);
        loaded.check(&format!("seed {seed}"));
    }
}

/// A server has bounded time: what has not moved by then is recovered.
#[test]
fn a_stop_that_takes_too_long_ends_and_the_rest_is_recovered() {
    let _marks = pluvio_units::Marks::to_reach(&["server-not-drained-in-time"]);
    let mut loaded: Loaded<Message> = loaded(9, 3);
    let server = loaded.owner();
    loaded.cluster.hold(Message::Received, LONG);
    let outcome = leave(&mut loaded, server, Duration::from_secs(2));
    let late = matches!(outcome, Some(Err(NotLeft::TooLate { left: 1, .. })));
    assert!(late, "{outcome:?}");
    loaded.cluster.release();
    loaded.cluster.until_healthy(&loaded.client);
    assert_eq!(recoveries(&mut loaded), 1);
    loaded.check("too late");
}

/// No coordinator answers: the process ends all the same, and soon.
#[test]
fn a_server_without_a_coordinator_stops_soon() {
    let mut loaded: Loaded<Message> = loaded(10, 3);
    let server = loaded.owner();
    let process = loaded.cluster.process_of(server);
    let coordinator = loaded.cluster.coordinator;
    loaded.cluster.sim.cut(process, coordinator);
    loaded.cluster.sim.cut(coordinator, process);
    let began = loaded.cluster.sim.now();
    let outcome = leave(&mut loaded, server, LONG);
    let is_silence = matches!(
        outcome,
        Some(Err(NotLeft::Silence(_) | NotLeft::Expelled(_)))
    );
    assert!(is_silence, "{outcome:?}");
    assert!(loaded.cluster.sim.now() - began < Duration::from_secs(9));
    loaded.cluster.sim.heal(process, coordinator);
    loaded.cluster.sim.heal(coordinator, process);
    loaded.cluster.until_healthy(&loaded.client);
    loaded.check("without a coordinator");
}

/// The drain is taken back while the server still has its tablet.
#[test]
fn a_stop_whose_drain_is_taken_back_ends() {
    let mut loaded: Loaded<Message> = loaded(11, 3);
    let server = loaded.owner();
    let process = loaded.cluster.process_of(server);
    loaded
        .cluster
        .hold(Message::Received, Duration::from_secs(5));
    loaded.cluster.ask_to_leave(server, LONG);
    while !loaded
        .cluster
        .status(&loaded.client)
        .list
        .get(server)
        .unwrap()
        .draining
    {
        loaded.cluster.tend();
    }
    assert!(drain(&mut loaded, server, DrainWish::Cancel).is_ok());
    let outcome = outcome(&mut loaded, process, server);
    assert_eq!(outcome, Some(Err(NotLeft::Cancelled)));
    loaded.cluster.until_healthy(&loaded.client);
    loaded.check("taken back");
}
