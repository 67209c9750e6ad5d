//! Tests of the client against the cluster in memory.

mod batch;
mod checks;
mod mapped;
mod model;
mod mutations;
mod order;
mod single;
mod strange;
mod transactions;

use crate::testing::FakeCluster;
use crate::{Client, Key, Mutation, Outcome, Output, Table, Unfit};
use bytes::Bytes;
use pluvio_units::ServerId;

fn assert_send<T: Send>(_: &T) {}

#[allow(dead_code)]
fn futures_are_send(
    client: &Client,
    table: &Table,
    keys: &[Key<'_>],
    objects: &[(Key<'_>, Bytes)],
    mutations: &[(&Table, Mutation<'_>)],
) {
    assert_send(&client.read(table, b"k"));
    assert_send(&client.write(table, b"k", Bytes::new()));
    assert_send(&client.mutate(table, mutations[0].1));
    assert_send(&client.multi_read(keys));
    assert_send(&client.multi_mutate(mutations));
    assert_send(&client.mutate_in_order(mutations));
    assert_send(&client.multi_write(objects));
    assert_send(&client.enumerate(table).next_batch());
    assert_send(&client.count(table));
    assert_send(&client.create_table("t", None));
}

/// A cluster, a client of it, and a table over all servers.
fn cluster(servers: u64) -> (FakeCluster, Client, Table) {
    let cluster = FakeCluster::new(servers);
    let client = cluster.client();
    let table = cluster.run(client.create_table("t", None)).unwrap();
    (cluster, client, table)
}

/// A key of `table` that `server` has; tablets are as after creation.
fn key_of(table: &Table, server: ServerId) -> Vec<u8> {
    (0u32..)
        .map(|n| format!("key-{n}").into_bytes())
        .find(|key| table.owner(table.hash(key)) == Some(server))
        .unwrap()
}

/// An outcome without versions.
type Shape = (&'static str, Output);

fn shape(outcome: &Outcome) -> Shape {
    let name = match outcome {
        Outcome::Written { .. } => "written",
        Outcome::Unchanged { .. } => "unchanged",
        Outcome::Deleted { .. } => "deleted",
        Outcome::Rejected { .. } => "rejected",
        Outcome::Refused(Unfit::NotANumber) => "not a number",
        Outcome::Refused(Unfit::Overflow) => "overflow",
        Outcome::Refused(Unfit::TooLong) => "too long",
        Outcome::Together { .. } => "together",
    };
    (name, outcome.output().clone())
}
