//! A transaction changes two tablets of a server whose replicas hang. One of the tablets moves, and
//! the server dies.

use crate::struck;
use bytes::Bytes;
use core::time::Duration;
use pluvio_client::{Change, Client, Mutation, Operation, Table, TransactionStep};
use pluvio_env::Frame;
use pluvio_units::{KeyHash, Marks, ServerId};
use pluvio_wire::{Opcode, WriteReplica, decode};

/// A write to a replica of this server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ReplicaOf(ServerId);

impl struck::Message for ReplicaOf {
    fn of(frame: &Frame) -> Option<Self> {
        let opcode = Opcode::from_number(frame.opcode)?;
        (opcode == Opcode::WriteReplica).then(|| {
            let (_, write) = decode::<WriteReplica>(frame).unwrap();
            Self(write.master)
        })
    }
}

const MIDDLE: KeyHash = KeyHash(1 << 63);

/// A key of each of the two tablets.
fn keys(table: &Table) -> [String; 2] {
    [true, false].map(|lower| {
        let mut keys = (0..).map(|n| format!("key {n}"));
        let is_there = |key: &String| (table.hash(key.as_bytes()) < MIDDLE) == lower;
        keys.find(is_there).expect("one of many is there")
    })
}

async fn values(client: &Client, table: &Table) -> Vec<Option<Bytes>> {
    let mut values = Vec::new();
    for key in keys(table) {
        let found = client.read(table, key.as_bytes()).await.unwrap();
        values.push(found.map(|object| object.value));
    }
    values
}

async fn change_both(client: Client, table: Table) {
    let keys = keys(&table);
    let put = |key| Mutation::new(table.id(), key, Change::Put(b"new".as_slice().into()));
    let steps = keys.iter().map(|key| {
        let mutation = put(key.as_bytes());
        (&table, TransactionStep::new(Operation::Mutate(mutation)))
    });
    let steps: Vec<_> = steps.collect();
    // Its process is killed before that.
    let _ = client.transact(&steps).await;
}

/// Gives whether the tablet moved.
fn one_tablet_moves(seed: u64, hang: Duration) -> bool {
    let mut cluster = struck::Cluster::<ReplicaOf>::new(seed, 4);
    let client = cluster.new_client(&cluster.client);
    let table = cluster.table(&client);
    let (own, all) = (client.clone(), table.clone());
    let table = cluster.block_on(async move {
        own.split_tablet(&all, Some(MIDDLE)).await.unwrap();
        for key in keys(&all) {
            let old = Bytes::from_static(b"old");
            own.write(&all, key.as_bytes(), old).await.unwrap();
        }
        all
    });
    let owner = cluster.owner(&client, &table);
    let ids = cluster.server_ids();
    let receiver = ids.into_iter().find(|id| *id != owner).unwrap();

    cluster.hold(ReplicaOf(owner), hang);
    let asker = cluster.sim.process("asker");
    let work = change_both(cluster.new_client(&asker), table.clone());
    cluster.sim.spawn(asker.id, "transaction", work);
    for _ in 0..100 {
        cluster.tend();
    }
    // It does not try again.
    cluster.sim.crash(asker.id);
    let moved = cluster.migrate(&client, &table, receiver);
    let owner = cluster.process_of(owner);
    cluster.crash(owner);
    cluster.release();
    cluster.until_healthy(&client);

    let found = cluster.block_on(async move { values(&client, &table).await });
    assert!(found[0].is_some(), "seed {seed}");
    assert_eq!(found[0], found[1], "seed {seed}: half of a transaction");
    moved
}

// shows: MOVE-6
#[test]
fn a_tablet_moves_only_with_the_rest_of_what_changed_it() {
    let _marks = Marks::to_reach(&["migration-waits-for-its-owners-replicas"]);
    for seed in 0..3 {
        assert!(!one_tablet_moves(seed, Duration::from_secs(60)));
        assert!(one_tablet_moves(seed, Duration::from_secs(1)));
    }
}
