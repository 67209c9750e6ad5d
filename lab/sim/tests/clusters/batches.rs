//! Batches of mutations. Some are ordered, over several servers and logs. Some ask for more old
//! values than a server keeps for retries of one client.

use crate::lost_answers::{self, table};
use crate::support::{self, LIMIT};
use bytes::Bytes;
use pluvio_client::{Change, Client, Mutation, Outcome, Output, Table, WhichTablet};
use pluvio_sim::{Sim, SimOptions};
use pluvio_units::{KeyHash, Marks};

/// The middle of all hashes.
const MIDDLE: KeyHash = KeyHash(1 << 63);
/// Items of a batch.
const ITEMS: usize = 30;

/// A table with one tablet.
async fn table_of_one(client: &Client) -> Table {
    loop {
        if let Ok(table) = client.create_table("one", Some(1)).await {
            return table;
        }
    }
}

/// Lets the upper half of a table's only tablet move to a server that has none of it.
async fn move_upper_half(client: &Client, table: &Table) {
    let split = client.split_tablet(table, Some(MIDDLE)).await.unwrap();
    let owner = split.tablets[0].owner;
    let list = client.server_list().await.unwrap();
    let to = list.up().find(|info| info.id != owner).unwrap().id;
    let upper = WhichTablet::Containing(MIDDLE);
    let begun = client.start_migration(table, upper, to).await.unwrap();
    let migration = begun.migration.unwrap();
    while let Some(status) = client.migration(migration).await.unwrap() {
        if status.done {
            break;
        }
    }
}

/// Mutations that append the number of their place to keys of all servers, each key twice.
fn names() -> Vec<String> {
    (0..ITEMS)
        .map(|n| format!("key-{}", n % (ITEMS / 2)))
        .collect()
}

/// Applies the batch, and looks at each outcome and each value.
async fn append_in_order(client: &Client, table: &Table) {
    let names = names();
    let texts: Vec<String> = (0..ITEMS).map(|n| format!("{n};")).collect();
    let items: Vec<_> = names
        .iter()
        .zip(&texts)
        .map(|(name, text)| {
            let append = Change::Append(text.as_bytes().into());
            (table, Mutation::new(table.id(), name.as_bytes(), append))
        })
        .collect();
    let outcomes = client.mutate_in_order(&items).await.unwrap();
    assert_eq!(outcomes.len(), ITEMS);
    for (number, outcome) in outcomes.iter().enumerate() {
        let first = number % (ITEMS / 2);
        let length = match number == first {
            true => texts[number].len(),
            false => texts[first].len() + texts[number].len(),
        };
        let length = Output::Integer(length as i64);
        assert!(
            matches!(outcome, Outcome::Written { output, .. } if *output == length),
            "item {number}: {outcome:?}"
        );
    }
    for (number, name) in names.iter().take(ITEMS / 2).enumerate() {
        let found = client.read(table, name.as_bytes()).await.unwrap().unwrap();
        let both = [&texts[number][..], &texts[number + ITEMS / 2]].concat();
        assert_eq!(found.value, both, "{name}");
    }
}

#[test]
fn a_server_stops_at_the_first_item_that_it_does_not_own_and_the_rest_follows() {
    let _marks = Marks::to_reach(&["ordered-batch-ends-early"]);
    for seed in 0..3 {
        let sim = Sim::new(seed, SimOptions::default());
        lost_answers::start(&sim);
        let (worker, mover) = (sim.process("worker"), sim.process("mover"));
        let client = support::client(&worker.env, worker.env.network.clone());
        let other = support::client(&mover.env, mover.env.network.clone());
        let work = async move {
            let table = table_of_one(&client).await;
            // Another client moves half of it; this one does not know.
            let same = other.table("one").await.unwrap();
            move_upper_half(&other, &same).await;
            append_in_order(&client, &table).await;
        };
        sim.block_on(worker.id, work, LIMIT).unwrap();
    }
}

#[test]
fn an_ordered_batch_whose_answers_are_lost_with_their_servers_is_done_once() {
    for seed in 0..3 {
        let sim = Sim::new(seed, SimOptions::default());
        lost_answers::start(&sim);
        let process = sim.process("client");
        let (client, armed) = lost_answers::client(&sim, &process);
        let struck = armed.clone();
        let work = async move {
            let table = table(&client).await;
            *armed.lock().unwrap() = 2;
            append_in_order(&client, &table).await;
        };
        sim.block_on(process.id, work, LIMIT).unwrap();
        assert_eq!(*struck.lock().unwrap(), 0);
    }
}

/// Two clients work on one key at once, in logs of their own: what one is told rests on what the
/// other has just appended.
#[test]
fn an_ordered_batch_does_not_go_on_while_it_rests_on_another_log() {
    let _marks = Marks::to_reach(&["ordered-batch-waits-for-another-log"]);
    let options = SimOptions {
        cores: 2,
        ..SimOptions::default()
    };
    for seed in 0..4 {
        let sim = Sim::new(seed, options.clone());
        lost_answers::start(&sim);
        let processes = ["a", "b", "c"].map(|name| sim.process(name));
        let clients = processes
            .each_ref()
            .map(|p| support::client(&p.env, p.env.network.clone()));
        let [client, ..] = clients.clone();
        let ready = sim.block_on(processes[0].id, async move { table(&client).await }, LIMIT);
        let name = ready.unwrap().name().to_owned();
        for (process, client) in processes.iter().zip(clients) {
            let name = name.clone();
            sim.spawn(process.id, "work", async move {
                let table = client.table(&name).await.unwrap();
                for number in 0..200 {
                    let text = format!("{number};");
                    let append = || Change::Append(text.as_bytes().into());
                    let twice = [append(), append()]
                        .map(|change| (&table, Mutation::new(table.id(), b"hot", change)));
                    assert_eq!(client.mutate_in_order(&twice).await.unwrap().len(), 2);
                }
            });
        }
        let last = &processes[0];
        let client = support::client(&last.env, last.env.network.clone());
        let work = async move {
            let table = client.table(&name).await.unwrap();
            let length: usize = (0..200).map(|n| format!("{n};").len()).sum();
            loop {
                let found = client.read(&table, b"hot").await.unwrap();
                if found.is_some_and(|found| found.value.len() == 6 * length) {
                    return;
                }
            }
        };
        sim.block_on(last.id, work, LIMIT).unwrap();
    }
}

/// Objects, of one server.
const OBJECTS: usize = 12;
/// Of each.
const BYTES: usize = 300 << 10;

/// Puts the second value in the place of the first.
async fn swap_all(client: &Client, table: &Table, ordered: bool) {
    let keys: Vec<String> = (0..OBJECTS).map(|n| format!("{ordered} {n}")).collect();
    let value =
        |first: bool, number: usize| Bytes::from(vec![number as u8 + u8::from(first); BYTES]);
    for (number, key) in keys.iter().enumerate() {
        let written = client.write(table, key.as_bytes(), value(true, number));
        written.await.unwrap();
    }
    let new: Vec<Bytes> = (0..OBJECTS).map(|n| value(false, n)).collect();
    let swaps: Vec<_> = keys
        .iter()
        .zip(&new)
        .map(|(key, new)| {
            let put = Change::Put(new.into());
            let swap = Mutation {
                returns_old: true,
                ..Mutation::new(table.id(), key.as_bytes(), put)
            };
            (table, swap)
        })
        .collect();
    let outcomes: Vec<Outcome> = if ordered {
        client.mutate_in_order(&swaps).await.unwrap()
    } else {
        let results = client.multi_mutate(&swaps).await;
        results.into_iter().map(Result::unwrap).collect()
    };
    assert_eq!(outcomes.len(), OBJECTS);
    for (number, outcome) in outcomes.into_iter().enumerate() {
        let old = Output::Bytes(value(true, number));
        assert!(*outcome.output() == old, "item {number} of {ordered}");
    }
}

#[test]
fn a_batch_with_more_old_values_than_are_kept_for_retries_comes_to_its_end() {
    let _marks = Marks::to_reach(&["completion-values-full"]);
    let sim = Sim::new(1, SimOptions::default());
    lost_answers::start(&sim);
    let process = sim.process("client");
    let client = support::client(&process.env, process.env.network.clone());
    let work = async move {
        let table = table_of_one(&client).await;
        swap_all(&client, &table, false).await;
        swap_all(&client, &table, true).await;
    };
    sim.block_on(process.id, work, LIMIT).unwrap();
}
