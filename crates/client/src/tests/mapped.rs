//! Reads in mapped memory: they begin by themselves, are never older than requests, and end with
//! their server.

use super::{cluster, key_of};
use crate::testing::{FakeCluster, Fault};
use crate::{Client, Doubt, FatalKind, Key, Lifetime, Opcode, Projection, RejectRules, Table};
use bytes::Bytes;
use core::time::Duration;
use futures_util::future::join;
use pluvio_units::{ObjectVersion, ServerId};
use pluvio_wire::Refusal;
use std::collections::BTreeMap;

/// A cluster whose servers have doors, a client that maps memory, and a table over all servers.
fn mapping(servers: u64) -> (FakeCluster, Client, Table) {
    let cluster = FakeCluster::new(servers);
    for server in 1..=servers {
        cluster.open_door(ServerId(server), true);
    }
    let client = Client::new(cluster.parts_with_memory(), cluster.options());
    let table = cluster.run(client.create_table("t", None)).unwrap();
    (cluster, client, table)
}

/// Reads one key of a server until its memory is mapped, or often enough that it would be.
fn read_often(cluster: &FakeCluster, client: &Client, table: &Table, server: ServerId) {
    let key = key_of(table, server);
    cluster.run(async {
        for _read in 0..64 {
            client.read(table, &key).await.unwrap();
            // Tasks work while this waits.
            cluster
                .at(cluster.now() + Duration::from_millis(1), |_| {})
                .await;
        }
    });
}

fn wait(cluster: &FakeCluster, time: Duration) {
    let until = cluster.now() + time;
    cluster.run(cluster.at(until, |_| {}));
}

#[test]
fn reads_go_to_memory_once_a_server_is_read_often_and_see_own_changes() {
    let (cluster, client, table) = mapping(2);
    let keys = [key_of(&table, ServerId(1)), key_of(&table, ServerId(2))];
    cluster.run(async {
        client.read(&table, &keys[0]).await.unwrap();
    });
    assert_eq!(cluster.count_sent(Opcode::GetDoor), 0, "it reads little");
    read_often(&cluster, &client, &table, ServerId(1));
    read_often(&cluster, &client, &table, ServerId(2));
    assert_eq!(client.mapped_servers(), [ServerId(1), ServerId(2)]);
    let requests = cluster.count_sent(Opcode::Get);
    assert!(requests < 100, "{requests} of 129 reads were requests");
    cluster.run(async {
        for count in 0..20_u8 {
            for key in &keys {
                let value = Bytes::from(vec![count; usize::from(count)]);
                let version = client.write(&table, key, value.clone()).await.unwrap();
                let read = client.read(&table, key).await.unwrap().unwrap();
                assert_eq!((read.version, &read.value), (version.version, &value));
                let length = client
                    .project(&table, key, Projection::Length)
                    .await
                    .unwrap();
                assert_eq!(length, Some(crate::Output::Integer(i64::from(count))));
            }
            let both = keys.each_ref().map(|key| Key::new(&table, key));
            let read = client.multi_read(&both).await;
            assert!(read.iter().all(|object| object.as_ref().unwrap().is_some()));
        }
        let version = client
            .read(&table, &keys[0])
            .await
            .unwrap()
            .unwrap()
            .version;
        let other = RejectRules::unless_version(ObjectVersion(version.0 + 1));
        client.read_if(&table, &keys[0], other).await.unwrap_err();
        client.delete(&table, &keys[0]).await.unwrap();
        assert_eq!(client.read(&table, &keys[0]).await.unwrap(), None);
    });
    assert_eq!(cluster.count_sent(Opcode::Get), requests);
}

#[test]
fn a_blocking_client_reads_in_memory_too() {
    let (cluster, client, table) = mapping(1);
    read_often(&cluster, &client, &table, ServerId(1));
    let client = crate::blocking::Client::new(client, cluster.clone());
    let requests = cluster.count_sent(Opcode::Get);
    client.write(&table, b"k", "value").unwrap();
    assert_eq!(client.read(&table, b"k").unwrap().unwrap().value, "value");
    let length = client.project(&table, b"k", Projection::Length).unwrap();
    assert_eq!(length, Some(crate::Output::Integer(5)));
    assert_eq!(cluster.count_sent(Opcode::Get), requests);
}

#[test]
fn deadlines_and_locked_keys_are_asked_for() {
    let (cluster, client, table) = mapping(2);
    let keys = [key_of(&table, ServerId(1)), key_of(&table, ServerId(2))];
    read_often(&cluster, &client, &table, ServerId(1));
    read_often(&cluster, &client, &table, ServerId(2));
    let reads = cluster.count_sent(Opcode::Get);
    cluster.run(async {
        let lifetime = Lifetime::For(60_000);
        let written = client.write_for(&table, &keys[0], "v".into(), lifetime);
        written.await.unwrap();
        assert!(
            client
                .deadline(&table, &keys[0])
                .await
                .unwrap()
                .unwrap()
                .is_some()
        );
        let read = client.read(&table, &keys[0]).await.unwrap();
        assert_eq!(read.unwrap().value, "v");
    });
    assert_eq!(cluster.count_sent(Opcode::Get), reads + 2);
    // A change of both servers, whose client goes before it is decided: its keys stay locked.
    let own = Client::new(cluster.parts(), cluster.options());
    let gone = Refusal::fatal(FatalKind::Other, "gone");
    cluster.plan(Opcode::Decide, Fault::Refuse(gone), 1);
    let transaction = own.transaction();
    for key in &keys {
        transaction.put(&table, key, "after");
    }
    cluster.run(transaction.commit()).unwrap();
    let (client_id, home) = cluster.locked().expect("a key is locked");
    let doubt = Doubt {
        client: client_id,
        home,
        keys: keys
            .each_ref()
            .map(|key| (table.id(), table.hash(key)))
            .to_vec(),
    };
    let (in_memory, _) = cluster.mapped_reads();
    let later = cluster.now() + Duration::from_millis(50);
    cluster.run(async {
        let resolve = cluster.at(later, |cluster| {
            assert_eq!(cluster.mapped_reads().0, in_memory);
        });
        let resolve = async {
            resolve.await;
            client.resolve(&doubt).await.unwrap()
        };
        let (read, decided) = join(client.read(&table, &keys[1]), resolve).await;
        assert_eq!(decided, Some(true));
        assert_eq!(read.unwrap().unwrap().value, "after");
    });
    assert!(cluster.count_sent(Opcode::Get) > reads + 2);
}

// shows: CLIENT-8
#[test]
fn a_door_that_is_not_for_this_client_is_left_alone() {
    // On another machine: asked once.
    let cluster = FakeCluster::new(1);
    cluster.open_door(ServerId(1), false);
    let client = Client::new(cluster.parts_with_memory(), cluster.options());
    let table = cluster.run(client.create_table("t", None)).unwrap();
    for _hour in 0..5 {
        read_often(&cluster, &client, &table, ServerId(1));
        wait(&cluster, Duration::from_hours(1));
    }
    assert_eq!(cluster.count_sent(Opcode::GetDoor), 1);
    assert_eq!(cluster.mapped_reads(), (0, 0));
    // An earlier build refuses the question.
    let (cluster, client, table) = mapping(1);
    let unknown = Refusal::fatal(FatalKind::Unsupported, "what?");
    cluster.plan(Opcode::GetDoor, Fault::Refuse(unknown), 1);
    for _hour in 0..5 {
        read_often(&cluster, &client, &table, ServerId(1));
        wait(&cluster, Duration::from_hours(1));
    }
    assert_eq!(cluster.count_sent(Opcode::GetDoor), 1);
    // Switched off.
    let (cluster, _, table) = mapping(1);
    let options = cluster.options().mapped_reads(false);
    let client = Client::new(cluster.parts_with_memory(), options);
    read_often(&cluster, &client, &table, ServerId(1));
    assert_eq!(cluster.count_sent(Opcode::GetDoor), 0);
}

// shows: CLIENT-7, CLIENT-8
#[test]
fn a_shut_door_is_tried_again_after_pauses_that_grow() {
    let (cluster, client, table) = mapping(2);
    let key = key_of(&table, ServerId(1));
    cluster.shut_door(ServerId(1), false);
    cluster.run(async {
        for _second in 0..600 {
            for _read in 0..20 {
                client.read(&table, &key).await.unwrap();
            }
            cluster
                .at(cluster.now() + Duration::from_secs(1), |_| {})
                .await;
        }
    });
    let asked = cluster.count_sent(Opcode::GetDoor);
    assert!((3..=12).contains(&asked), "asked {asked} times");
    cluster.shut_door(ServerId(1), true);
    wait(&cluster, Duration::from_mins(6));
    read_often(&cluster, &client, &table, ServerId(1));
    assert_eq!(client.mapped_servers(), [ServerId(1)]);
    // The first server says that the second one's door is its own: it stays shut.
    let (cluster, client, table) = mapping(2);
    cluster.point_to_door(ServerId(1), ServerId(2));
    read_often(&cluster, &client, &table, ServerId(1));
    assert_eq!(cluster.count_sent(Opcode::GetDoor), 1);
    assert_eq!(client.mapped_servers(), []);
}

#[test]
fn memory_goes_back_when_nobody_reads_when_its_server_dies_and_with_the_client() {
    let (cluster, client, table) = mapping(2);
    read_often(&cluster, &client, &table, ServerId(1));
    read_often(&cluster, &client, &table, ServerId(2));
    assert_eq!(cluster.mapped_reads().1, 2);
    cluster.crash(ServerId(1));
    cluster.recover(ServerId(1), ServerId(2));
    wait(&cluster, Duration::from_secs(3));
    assert_eq!(client.mapped_servers(), [ServerId(2)]);
    assert_eq!(cluster.mapped_reads().1, 1);
    wait(&cluster, Duration::from_secs(90));
    assert_eq!(client.mapped_servers(), []);
    assert_eq!(cluster.mapped_reads().1, 0);
    read_often(&cluster, &client, &table, ServerId(2));
    assert_eq!(cluster.mapped_reads().1, 1);
    drop(client);
    wait(&cluster, Duration::from_millis(1));
    assert_eq!(cluster.mapped_reads().1, 0);
}

/// Reads, changes, tablets that move and doors that are shut, in any order: each read gives what
/// was written last.
// shows: CLIENT-7
#[test]
fn reads_here_and_there_never_go_back() {
    for seed in 1..40_u64 {
        let (cluster, client, table) = mapping(3);
        let mut state = seed;
        let mut random = |below: u64| {
            state = state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
            (state >> 33) % below
        };
        let mut model = BTreeMap::<u64, Bytes>::new();
        let name = |key: u64| format!("key-{key}").into_bytes();
        for step in 0..400 {
            let key = random(20);
            match random(12) {
                0 => {
                    let to = ServerId(1 + random(3));
                    cluster.move_tablet(table.id(), table.hash(&name(key)), to);
                }
                1 => cluster.shut_door(ServerId(1 + random(3)), random(2) == 0),
                2 => wait(&cluster, Duration::from_millis(random(3_000))),
                3 => {
                    cluster.run(client.delete(&table, &name(key))).unwrap();
                    model.remove(&key);
                }
                4..=6 => {
                    let value = Bytes::from(format!("{step} of {seed}"));
                    let name = name(key);
                    let written = client.write(&table, &name, value.clone());
                    cluster.run(written).unwrap();
                    model.insert(key, value);
                }
                7 => {
                    let names: Vec<_> = (0..20).map(name).collect();
                    let keys: Vec<_> = names.iter().map(|key| Key::new(&table, key)).collect();
                    let read = cluster.run(client.multi_read(&keys));
                    for (key, object) in (0..).zip(read) {
                        let value = object.unwrap().map(|object| object.value);
                        assert_eq!(value.as_ref(), model.get(&key), "seed {seed} step {step}");
                    }
                }
                _ => {
                    let read = cluster.run(client.read(&table, &name(key))).unwrap();
                    let value = read.map(|object| object.value);
                    assert_eq!(value.as_ref(), model.get(&key), "seed {seed} step {step}");
                }
            }
        }
        assert!(cluster.mapped_reads().0 > 0, "seed {seed} has read nothing");
    }
}

/// Where no memory can be mapped, nothing is looked for.
#[test]
fn a_client_without_memory_asks_for_no_door() {
    let (cluster, client, table) = cluster(1);
    read_often(&cluster, &client, &table, ServerId(1));
    assert_eq!(cluster.count_sent(Opcode::GetDoor), 0);
}
