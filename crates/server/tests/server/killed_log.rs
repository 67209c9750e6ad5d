//! A log dies with a hundred replies held: its replication stops for ever, or its server is
//! declared dead. Every client hears the truth in bounded time, and none hears OK.

use crate::rig::ports::Pipe;
use crate::rig::{LONG, Rig};
use bytes::Bytes;
use pluvio_client::{ClientError, Table};
use pluvio_env::{Address, Peer};
use pluvio_sim::DiskFaults;
use pluvio_units::{CoreId, HashKind};
use pluvio_wire::{Change, Header, Mutation, encode_mutate};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const CLIENTS: usize = 100;
const SECOND: Duration = Duration::from_secs(1);
/// The time that a command has, and a little for clocks that run at other paces.
const LIMIT: core::ops::Range<Duration> =
    Duration::from_millis(9_900)..Duration::from_millis(10_200);

/// How the log dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// Nothing of it reaches a backup any more. Its server is a member.
    Stopped,
    /// Its server is cut off, is declared dead, and hears of it.
    DeclaredDead,
}

fn rig(seed: u64) -> (Rig, Table) {
    let mut rig = Rig::new(seed);
    rig.speaks_redis = true;
    for _ in 0..3 {
        rig.add(2, DiskFaults::default());
    }
    rig.all_started();
    let table = rig.fill_hashed("redis:0", 1, HashKind::Slots);
    (rig, table)
}

/// Keys that the first server has.
fn keys(rig: &Rig, table: &Table) -> Vec<String> {
    let keys = (0..).map(|n| format!("object {n}"));
    let own = keys.filter(|key| rig.owner(table, key.as_bytes()) == Some(0));
    own.take(CLIENTS).collect()
}

/// A connection to the Redis port of a server.
fn connect(rig: &Rig, server: usize) -> Pipe {
    let pipe = Pipe::default();
    let serving = rig.ports[server].redis().serve(Box::new(pipe.clone()));
    rig.sim.spawn(rig.servers[server], "connection", serving);
    pipe
}

/// Waits until each has an answer, and takes them. How long that took, too.
fn answers(rig: &Rig, clients: &[Pipe]) -> (Vec<String>, Duration) {
    let began = rig.sim.now();
    let all = || clients.iter().all(|c| c.arrived().ends_with("\r\n"));
    rig.sim
        .run_until(all, LONG)
        .unwrap_or_else(|stuck| panic!("{stuck}"));
    let took = rig.sim.now() - began;
    (clients.iter().map(Pipe::take).collect(), took)
}

fn scenario(way: Way) {
    let (rig, table) = rig(31);
    let keys = keys(&rig, &table);
    let clients: Vec<_> = keys.iter().map(|_| connect(&rig, 0)).collect();
    for (client, key) in clients.iter().zip(&keys) {
        client.send(&["SET", key, "old"]);
    }
    let (replies, _) = answers(&rig, &clients);
    assert!(
        replies.iter().all(|reply| reply == "+OK\r\n"),
        "{replies:?}"
    );

    let server = rig.server(0).expect("it has started");
    match way {
        Way::Stopped => stop_logs(&rig),
        Way::DeclaredDead => rig.sim.isolate(rig.servers[0]),
    }
    for (client, key) in clients.iter().zip(&keys) {
        client.send(&["SET", key, "new"]);
    }
    let began = rig.sim.now();
    if way == Way::DeclaredDead {
        let is_elsewhere = || {
            rig.owner(&table, keys[0].as_bytes())
                .is_some_and(|at| at != 0)
        };
        let heard = Arc::new(Mutex::new(false));
        let (hears, expelled) = (Arc::clone(&heard), Arc::clone(&server));
        rig.sim.spawn(rig.servers[0], "hears", async move {
            let _why = expelled.expelled().await;
            *hears.lock().unwrap() = true;
        });
        rig.sim.run_for(3 * SECOND);
        rig.sim.heal_all();
        // The writes that it sends to its backups again are refused.
        let is_over = || *heard.lock().unwrap() && is_elsewhere();
        rig.sim
            .run_until(is_over, 5 * SECOND)
            .unwrap_or_else(|stuck| panic!("{stuck}"));
        assert!(clients.iter().all(|client| client.arrived().is_empty()));
    }
    let (replies, _) = answers(&rig, &clients);
    let took = rig.sim.now() - began;
    assert!(LIMIT.contains(&took), "{way:?}: {took:?}");
    let doubt = "-ERR it is not known whether the command was executed";
    for reply in &replies {
        assert!(reply.starts_with(doubt), "{way:?}: {reply}");
    }

    // The connections go on. Nothing is shown that could be taken back.
    for client in &clients {
        client.send(&["PING"]);
    }
    let (replies, _) = answers(&rig, &clients);
    assert!(replies.iter().all(|reply| reply == "+PONG\r\n"), "{way:?}");
    for (client, key) in clients.iter().zip(&keys) {
        client.send(&["GET", key]);
    }
    let (replies, took) = answers(&rig, &clients);
    assert!(took < LIMIT.end, "{way:?}: {took:?}");
    for reply in &replies {
        let shown = "$3\r\nold\r\n" == reply || "$3\r\nnew\r\n" == reply;
        match way {
            Way::Stopped => assert!(reply.starts_with("-TRYAGAIN "), "{reply}"),
            // Of the server that has recovered the key.
            Way::DeclaredDead => assert!(shown, "{reply}"),
        }
    }
    if way == Way::Stopped {
        return;
    }
    // All servers tell the same.
    let others: Vec<_> = keys.iter().map(|_| connect(&rig, 1)).collect();
    for (client, key) in others.iter().zip(&keys) {
        client.send(&["GET", key]);
    }
    let (told, _) = answers(&rig, &others);
    assert_eq!(told, replies);
}

// shows: HELD-1, QUEUE-4, CONN-4
#[test]
fn a_hundred_redis_clients_of_a_log_that_is_stopped_hear_that_it_is_not_known() {
    scenario(Way::Stopped);
}

// shows: HELD-1, QUEUE-4
#[test]
fn a_hundred_redis_clients_of_a_server_that_is_declared_dead_hear_that_it_is_not_known() {
    scenario(Way::DeclaredDead);
}

/// Nothing becomes durable any more at the first server.
fn stop_logs(rig: &Rig) {
    let server = rig.server(0).expect("it has started");
    let master = server.master().expect("it is a member");
    master.replication().stop();
}

/// By the client library: each write ends in time, and is told as what it is.
#[test]
fn a_hundred_native_clients_of_a_log_that_is_stopped_are_not_told_that_it_is_done() {
    let (rig, table) = rig(32);
    let keys = keys(&rig, &table);
    stop_logs(&rig);
    let began = rig.sim.now();
    let ended = Arc::<Mutex<Vec<Result<(), ClientError>>>>::default();
    for key in keys {
        let (client, table) = (rig.connect(&rig.client), table.clone());
        let ended = Arc::clone(&ended);
        rig.sim.spawn(rig.client.id, "write", async move {
            let written = client.write(&table, key.as_bytes(), Bytes::from("new"));
            let written = written.await.map(drop);
            ended.lock().unwrap().push(written);
        });
    }
    let all = || ended.lock().unwrap().len() == CLIENTS;
    rig.sim
        .run_until(all, LONG)
        .unwrap_or_else(|stuck| panic!("{stuck}"));
    let took = rig.sim.now() - began;
    assert!(took < LIMIT.end, "{took:?}");
    for outcome in &*ended.lock().unwrap() {
        let is_in_doubt = matches!(
            outcome,
            Err(ClientError::TimedOut {
                maybe_executed: true,
                ..
            })
        );
        assert!(is_in_doubt, "{outcome:?}");
    }
}

/// At the RPC port: none of the replies that wait may leave, however long they do. The places of
/// those that are given up are free for others.
// shows: HOLD-1
#[test]
fn a_hundred_replies_of_a_log_that_is_stopped_never_leave() {
    let (rig, table) = rig(33);
    let keys = keys(&rig, &table);
    stop_logs(&rig);
    let server = rig.server(0).expect("it has started");
    let service = rig.ports[0].rpc();
    let peer = Peer {
        address: Address::from("client"),
        core: CoreId(0),
    };
    let ask = |key: &str| {
        let put = Mutation::new(
            table.id(),
            key.as_bytes(),
            Change::Put(b"new".as_slice().into()),
        );
        let frame = encode_mutate(&Header::to(server.id()), &[put], false);
        service.handle_or_hold(peer.clone(), frame)
    };
    for _ in 0..10 {
        let held = keys.iter().map(|key| ask(key).err().expect("it is held"));
        let held: Vec<_> = held.collect();
        rig.sim.run_for(LONG / 10);
        assert!(held.iter().all(|held| !service.may_leave(&held.waits)));
        // As the connection does when its peer is gone.
        held.iter().for_each(|held| service.held_left(held.charge));
    }
}
