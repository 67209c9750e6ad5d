//! Ordered batches over several servers: one whose map is old, and one whose answers are lost with
//! the servers that did it.

#![allow(clippy::unwrap_used)]

#[path = "support/lost_answers.rs"]
mod lost_answers;
#[path = "support/cluster.rs"]
mod support;

use lost_answers::table;
use pluvio_client::{Change, Client, Mutation, Outcome, Output, Table, WhichTablet};
use pluvio_sim::{Sim, SimOptions};
use pluvio_units::{KeyHash, Marks};
use support::LIMIT;

/// The middle of all hashes.
const MIDDLE: KeyHash = KeyHash(1 << 63);
/// Items of a batch.
const ITEMS: usize = 30;

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
            let table = loop {
                if let Ok(table) = client.create_table("one", Some(1)).await {
                    break table;
                }
            };
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
