//! Requests that are refused before they are sent, and choices that a caller does not have.

use super::mutations::step;
use super::{cluster, shape};
use crate::testing::FakeCluster;
use crate::{
    Addend, BatchStopped, BitAction, BitStep, Change, Client, FatalKind, Mutation, Output,
    Projection, Span, blocking,
};
use pluvio_units::{ClientId, OperationId, SequenceNumber, ServerId, TableId, VALUE_MAX};
use pluvio_wire::{BIT_STEPS_MAX, DECIMAL_BYTES_MAX};

/// Mutations that no server does, whatever the object is.
fn unsound<'a>(big: &'a [u8], digits: &'a str, steps: &'a [BitStep]) -> Vec<Mutation<'a>> {
    let change = |kind| Mutation::new(TableId(0), b"k", kind);
    let old = |kind| Mutation {
        returns_old: true,
        ..change(kind)
    };
    let expecting = Mutation {
        value_is: Some(big),
        ..change(Change::Delete)
    };
    let range = |offset, bytes: &'a [u8]| Change::SetRange {
        offset,
        bytes: bytes.into(),
    };
    vec![
        change(Change::Put(big.into())),
        change(Change::Append(big.into())),
        change(range(0, big)),
        change(range(u64::MAX, b"x")),
        change(Change::Add(Addend::Decimal(digits))),
        change(Change::Bits(&[])),
        change(Change::Bits(steps)),
        change(Change::Bits(
            const { &[step(BitAction::Get, false, 64, 0)] },
        )),
        old(Change::Append(b"x".as_slice().into())),
        old(Change::Add(Addend::Integer(1))),
        expecting,
    ]
}

#[test]
fn what_no_server_does_is_refused_alike_wherever_the_object_is() {
    let cluster = FakeCluster::new(1);
    let far = cluster.client();
    let local = cluster.local_master(ServerId(1));
    let near = Client::embedded(cluster.parts(), cluster.options(), local);
    let blocking = blocking::Client::new(far.clone(), cluster.clone());
    let table = cluster.run(far.create_table("t", None)).unwrap();
    cluster.run(near.table("t")).unwrap();
    let sent = cluster.sent().len();
    let (big, digits) = (vec![0; VALUE_MAX + 1], "1".repeat(DECIMAL_BYTES_MAX + 1));
    let steps = vec![BitStep::get_bit(0); BIT_STEPS_MAX + 1];
    for mutation in unsound(&big, &digits, &steps) {
        let kind = mutation.change.kind();
        let error = cluster.run(far.mutate(&table, mutation)).unwrap_err();
        assert_eq!(
            cluster.run(near.mutate(&table, mutation)),
            Err(error.clone())
        );
        assert_eq!(blocking.mutate(&table, mutation), Err(error.clone()));
        let results = cluster.run(near.multi_mutate(&[(&table, mutation)]));
        assert_eq!(results, [Err(error.clone())]);
        assert_eq!(blocking.multi_mutate(&[(&table, mutation)]), results);
        let results = cluster.run(far.mutate_in_order(&[(&table, mutation)]));
        let stopped = BatchStopped {
            done: Vec::new(),
            error: error.clone(),
        };
        assert_eq!(results, Err(stopped));
        assert!(!error.is_retryable() && !error.maybe_executed(), "{kind:?}");
    }
    let changing = [BitStep::set_bit(0, true)];
    let bits = Span {
        bits: true,
        ..Span::ALL
    };
    for projection in [
        Projection::Bits(&[]),
        Projection::Bits(&steps),
        Projection::Bits(&changing),
        Projection::Range(bits),
    ] {
        let error = cluster.run(far.project(&table, b"k", projection));
        let error = error.unwrap_err();
        assert_eq!(error.fatal_kind(), Some(FatalKind::Malformed));
        let local = cluster.run(near.project(&table, b"k", projection));
        assert_eq!(local, Err(error.clone()));
        assert_eq!(blocking.project(&table, b"k", projection), Err(error));
    }
    assert_eq!(cluster.sent().len(), sent);
    assert_eq!(cluster.run(far.read(&table, b"k")), Ok(None));
}

#[test]
fn an_identity_that_the_caller_made_up_is_not_sent() {
    let (cluster, client, table) = cluster(1);
    let made_up = OperationId {
        client: ClientId(7),
        sequence: SequenceNumber(99),
        ..OperationId::default()
    };
    let append = Mutation {
        id: made_up,
        ..Mutation::new(TableId(0), b"k", Change::Append(b"x".as_slice().into()))
    };
    cluster.run(async {
        for length in 1..=3 {
            let done = client.mutate(&table, append).await.unwrap();
            assert_eq!(shape(&done), ("written", Output::Integer(length)));
        }
        let done = client.mutate_in_order(&[(&table, append); 2]).await;
        let lengths: Vec<_> = done.unwrap().iter().map(|done| shape(done).1).collect();
        assert_eq!(lengths, [Output::Integer(4), Output::Integer(5)]);
    });
}
