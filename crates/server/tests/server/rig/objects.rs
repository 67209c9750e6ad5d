//! Requests for one object, sent to one life of one server by hand.

use pluvio_env::{Address, Network};
use pluvio_units::{ObjectVersion, TableId};
use pluvio_wire::{Change, Get, Mutation, Outcome, Output};
use pluvio_wire::{Header, Outcomes, RpcError, call_frame, encode_get, encode_mutate};
use std::time::Duration;

/// Sends a mutation; its identity is that of the header.
pub async fn mutate(
    network: &dyn Network,
    to: &Address,
    header: Header,
    mutation: &Mutation<'_>,
    limit: Duration,
) -> Result<Outcome, RpcError> {
    let frame = encode_mutate(&header, std::slice::from_ref(mutation), false);
    the_one(call_frame(network, to, frame, limit).await?)
}

/// Sends a write.
pub async fn write(
    network: &dyn Network,
    to: &Address,
    header: Header,
    (table, key, value): (TableId, &[u8], &[u8]),
    limit: Duration,
) -> Result<Outcome, RpcError> {
    let put = Mutation::new(table, key, Change::Put(value.into()));
    mutate(network, to, header, &put, limit).await
}

/// Sends a read: version and value, if there is an object.
pub async fn read(
    network: &dyn Network,
    to: &Address,
    header: Header,
    (table, key): (TableId, &[u8]),
    limit: Duration,
) -> Result<Option<(ObjectVersion, Vec<u8>)>, RpcError> {
    let frame = encode_get(&header, &[Get::new(table, key)]);
    match the_one(call_frame(network, to, frame, limit).await?)? {
        Outcome::Unchanged {
            version,
            output: Output::Bytes(value),
        } => Ok(Some((version, value.to_vec()))),
        Outcome::Unchanged { .. } => Ok(None),
        other => panic!("a read gave {other:?}"),
    }
}

fn the_one(mut outcomes: Outcomes) -> Result<Outcome, RpcError> {
    assert_eq!(outcomes.items.len(), 1, "one was asked for");
    let outcome = outcomes.items.pop().expect("there is one");
    outcome.map_err(RpcError::Refused)
}
