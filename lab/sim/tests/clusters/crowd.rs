//! Transactions whose keys a crowd of others locks or changes all the time.

use crate::lost_answers::{start, table};
use crate::support::{self, LIMIT};
use core::time::Duration;
use pluvio_client::{
    Addend, Change, Client, Get, Mutation, Operation, Outcome, Output, Projection, RejectRules,
    Table, Transacted, TransactionStep,
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
/// Longest time of a transaction among the crowd.
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

/// Adds to a key in one step, again and again.
async fn add(client: Client, table: Table) {
    let key = key(0);
    loop {
        let change = Change::Add(Addend::Integer(1));
        let mutation = Mutation::new(table.id(), &key, change);
        client.mutate(&table, mutation).await.unwrap();
    }
}

/// Reads a key, and changes it if it is still as it was read. Gives how often it was overtaken.
async fn read_and_change(client: &Client, table: &Table) -> u32 {
    let (id, key) = (table.id(), key(0));
    let gets = [(table, Get::new(id, &key))];
    let mut overtaken = 0;
    loop {
        let read = client.read_first(&gets, overtaken >= 2).await;
        let outcomes = read.unwrap().outcomes;
        let Some(Outcome::Unchanged { version, output }) = outcomes.into_iter().next() else {
            panic!("a read changed something");
        };
        let number = match output {
            Output::Bytes(text) => parsed(&text) + 1,
            _ => 0,
        };
        let text = number.to_string();
        let put = Mutation {
            rules: RejectRules::unless_version(version),
            ..Mutation::new(id, &key, Change::Put(text.as_bytes().into()))
        };
        let put = TransactionStep::must_hold(Operation::Mutate(put));
        match client.transact(&[(table, put)]).await.unwrap() {
            Transacted::Committed(_) => return overtaken,
            Transacted::Refused { .. } => overtaken += 1,
        }
    }
}

fn change_among_a_crowd(seed: u64) {
    let sim = Sim::new(seed, SimOptions::default());
    start(&sim);
    let (busy, slow) = (sim.process("busy"), sim.process("slow"));
    let crowd = support::client(&busy.env, busy.env.network.clone());
    let client = support::client(&slow.env, slow.env.network.clone());
    let clock = slow.env.clock.clone();
    let tasks = busy.env.tasks.clone();
    let work = async move {
        let table = table(&client).await;
        for _ in 0..CROWD {
            let its = crowd.table("t").await.unwrap();
            drop(tasks.spawn(CoreId(0), "add", add(crowd.clone(), its)));
        }
        clock.sleep(Duration::from_secs(1)).await;
        for _ in 0..20 {
            let begun: Moment = clock.now();
            let overtaken = read_and_change(&client, &table).await;
            let took = clock.now().since(begun);
            assert!(overtaken < 10, "seed {seed}: {overtaken} times");
            assert!(took < PATIENCE, "seed {seed}: it took {took:?}");
        }
        // The crowd goes on, too.
        let before = number(&client, &table).await;
        clock.sleep(Duration::from_secs(1)).await;
        assert!(number(&client, &table).await > before);
    };
    sim.block_on(slow.id, work, LIMIT).unwrap();
}

async fn number(client: &Client, table: &Table) -> u64 {
    let object = client.read(table, &key(0)).await.unwrap().unwrap();
    parsed(&object.value)
}

fn parsed(text: &[u8]) -> u64 {
    let text = core::str::from_utf8(text).expect("it is a number");
    text.parse().expect("it is a number")
}

// shows: KEEP-1
#[test]
fn a_transaction_that_reads_first_is_done_while_a_crowd_changes_its_key() {
    let _marks = Marks::to_reach(&["keys-are-kept-for-who-was-overtaken"]);
    for seed in 1..=5 {
        change_among_a_crowd(seed);
    }
}
