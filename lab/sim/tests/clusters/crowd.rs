//! A transaction of several servers whose keys a crowd of others locks all the time.

use crate::lost_answers::{start, table};
use crate::support::{self, LIMIT};
use core::time::Duration;
use pluvio_client::{
    Addend, Change, Client, Get, Mutation, Operation, Projection, Table, Transacted,
    TransactionStep,
};
use pluvio_env::Moment;
use pluvio_sim::{Sim, SimOptions};
use pluvio_units::{CoreId, Marks};

/// Keys, which lie on all servers.
const KEYS: usize = 16;
/// Clients that change some of them without a pause.
const CROWD: usize = 16;
/// How many keys each transaction of the crowd changes.
const CHANGED: usize = 6;
/// Longest time of a transaction on all keys.
const PATIENCE: Duration = Duration::from_secs(1);

fn key(n: usize) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

/// Changes a few keys again and again.
async fn change(client: Client, table: Table, mut at: usize) {
    loop {
        let keys: Vec<_> = (0..CHANGED).map(|n| key((at + 3 * n) % KEYS)).collect();
        let steps: Vec<_> = keys
            .iter()
            .map(|key| {
                let change = Change::Add(Addend::Integer(1));
                let mutation = Mutation::new(table.id(), key, change);
                (&table, TransactionStep::new(Operation::Mutate(mutation)))
            })
            .collect();
        client.transact(&steps).await.unwrap();
        at += 1;
    }
}

/// Reads all keys at one moment.
async fn read(client: &Client, table: &Table) {
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    let steps: Vec<_> = keys
        .iter()
        .map(|key| {
            let get = Get {
                projection: Projection::Value,
                ..Get::new(table.id(), key)
            };
            (table, TransactionStep::new(Operation::Get(get)))
        })
        .collect();
    let done = client.transact(&steps).await.unwrap();
    assert!(matches!(done, Transacted::Committed(_)));
}

fn read_among_a_crowd(seed: u64) {
    let sim = Sim::new(seed, SimOptions::default());
    start(&sim);
    let (busy, reading) = (sim.process("busy"), sim.process("reading"));
    let crowd = support::client(&busy.env, busy.env.network.clone());
    let client = support::client(&reading.env, reading.env.network.clone());
    let clock = reading.env.clock.clone();
    let tasks = busy.env.tasks.clone();
    let work = async move {
        let table = table(&client).await;
        for at in 0..CROWD {
            let its = crowd.table("t").await.unwrap();
            let changing = change(crowd.clone(), its, at);
            drop(tasks.spawn(CoreId(0), "change", changing));
        }
        clock.sleep(Duration::from_secs(1)).await;
        for _ in 0..5 {
            let begun: Moment = clock.now();
            read(&client, &table).await;
            let took = clock.now().since(begun);
            assert!(took < PATIENCE, "seed {seed}: it took {took:?}");
        }
    };
    sim.block_on(reading.id, work, LIMIT).unwrap();
}

#[test]
fn a_transaction_on_many_keys_is_done_while_a_crowd_locks_them() {
    let _marks = Marks::to_reach(&["locks-are-kept-for-who-waits"]);
    for seed in 1..=5 {
        read_among_a_crowd(seed);
    }
}
