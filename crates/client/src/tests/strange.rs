//! A server whose answers are no answers.

use super::cluster;
use crate::testing::FakeCluster;
use crate::{
    BatchStopped, Change, Client, ClientError, ErrorKind, Get, LocalMaster, Mutation, Outcome,
    Output, RetryReason,
};
use core::time::Duration;
use pluvio_units::{ClusterId, CoreId, ObjectVersion, ServerId, TableId};
use pluvio_wire::{
    Answer, CountObjects, CountObjectsReply, Decide, Decided, Enumerate, EnumerateReply, Header,
    Refusal, Release, Results, TransactionStep, Vote, Voted, Whole,
};
use std::sync::Arc;

/// Gives these results, whatever it is asked.
struct Strange(Results);

impl LocalMaster for Strange {
    fn owns(&self) -> ServerId {
        ServerId(1)
    }
    fn cluster(&self) -> ClusterId {
        ClusterId(0)
    }
    fn get(&self, _: CoreId, _: &Header, _: &[Get<'_>]) -> Answer<Results> {
        Answer::Now(Ok(self.0.clone()))
    }
    fn mutate(&self, _: CoreId, _: &Header, _: &[Mutation<'_>], _: bool) -> Answer<Results> {
        Answer::Now(Ok(self.0.clone()))
    }
    fn transact(
        &self,
        _: CoreId,
        _: &Header,
        _: Option<&Whole>,
        _: &[TransactionStep<'_>],
    ) -> Answer<Results> {
        Answer::Now(Ok(self.0.clone()))
    }
    fn decide(&self, _: CoreId, _: &Header, _: &Decide) -> Answer<Decided> {
        Answer::Now(Err(Refusal::Refresh))
    }
    fn vote(&self, _: CoreId, _: &Header, _: &Vote) -> Answer<Voted> {
        Answer::Now(Err(Refusal::Refresh))
    }
    fn release(&self, _: CoreId, _: &Header, _: &Release) -> Answer<()> {
        Answer::Now(Err(Refusal::Refresh))
    }
    fn enumerate(&self, _: CoreId, _: &Header, _: &Enumerate) -> Answer<EnumerateReply> {
        Answer::Now(Err(Refusal::Refresh))
    }
    fn count(&self, _: CoreId, _: &Header, _: &CountObjects) -> Answer<CountObjectsReply> {
        Answer::Now(Err(Refusal::Refresh))
    }
}

fn unchanged() -> Result<Outcome, Refusal> {
    Ok(Outcome::Unchanged {
        version: ObjectVersion(1),
        output: Output::Nothing,
    })
}

fn asking(cluster: &FakeCluster, results: &[Result<Outcome, Refusal>]) -> Client {
    let strange = Strange(results.iter().cloned().collect());
    Client::embedded(cluster.parts(), cluster.options(), Arc::new(strange))
}

fn append() -> Mutation<'static> {
    Mutation::new(TableId(0), b"k", Change::Append(b"x".as_slice().into()))
}

#[test]
fn a_transaction_with_another_number_of_outcomes_is_an_error() {
    let (cluster, _, table) = cluster(1);
    let step = |(): ()| TransactionStep::version_is(table.id(), b"k", ObjectVersion(0));
    let together = |committed, steps: usize| {
        let steps = vec![unchanged().unwrap(); steps].into();
        Ok(Outcome::Together { committed, steps })
    };
    for result in [
        together(true, 1),
        together(true, 3),
        together(false, 0),
        together(false, 3),
        unchanged(),
    ] {
        let client = asking(&cluster, &[result]);
        let steps = [(&table, step(())), (&table, step(()))];
        let error = cluster.run(client.transact(&steps)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
    }
}

#[test]
fn another_number_of_results_than_was_asked_for_is_an_error() {
    let (cluster, _, table) = cluster(1);
    let fatal = || Err(Refusal::malformed("no"));
    for results in [
        &[][..],
        &[unchanged()],
        &[fatal()],
        &[unchanged(), unchanged(), unchanged()],
    ] {
        let client = asking(&cluster, results);
        let items = [(&table, append()), (&table, append())];
        let protocol = |error: &ClientError| error.kind() == ErrorKind::Protocol;
        // Only a server that was told to may end early.
        let batch = cluster.run(client.multi_mutate(&items));
        assert!(
            batch.iter().all(|r| r.as_ref().is_err_and(protocol)),
            "{batch:?}"
        );
        let get = Get::new(TableId(0), b"k");
        let batch = cluster.run(client.multi_get(&[(&table, get), (&table, get)]));
        assert!(
            batch.iter().all(|r| r.as_ref().is_err_and(protocol)),
            "{batch:?}"
        );
        let BatchStopped { done, error } = cluster.run(client.mutate_in_order(&items)).unwrap_err();
        assert!(done.is_empty());
        assert!(protocol(&error) || results == [fatal()], "{error}");
    }
    for results in [&[][..], &[unchanged(), unchanged()]] {
        let client = asking(&cluster, results);
        assert!(cluster.run(client.mutate(&table, append())).is_err());
        assert!(cluster.run(client.read(&table, b"k")).is_err());
    }
}

#[test]
fn what_is_answered_behind_a_refusal_of_an_ordered_batch_is_no_result() {
    let (cluster, _, table) = cluster(1);
    let busy = Err(Refusal::retry(Duration::ZERO, RetryReason::Busy));
    let client = asking(&cluster, &[unchanged(), busy, unchanged()]);
    let items = [(&table, append()), (&table, append()), (&table, append())];
    // Then it answers three of two.
    let BatchStopped { done, error } = cluster.run(client.mutate_in_order(&items)).unwrap_err();
    assert_eq!(done.len(), 1);
    assert_eq!(error.kind(), ErrorKind::Protocol);
}

#[test]
fn outcomes_that_an_operation_cannot_have_are_errors() {
    let (cluster, _, table) = cluster(1);
    let client = asking(&cluster, &[unchanged()]);
    cluster.run(async {
        let value = || bytes::Bytes::from_static(b"v");
        let errors = [
            client.write(&table, b"k", value()).await.unwrap_err(),
            client.delete(&table, b"k").await.unwrap_err(),
            client.get_and_set(&table, b"k", value()).await.unwrap_err(),
            client.get_and_delete(&table, b"k").await.unwrap_err(),
            client.append(&table, b"k", b"x").await.unwrap_err(),
            client.set_bit(&table, b"k", 1, true).await.unwrap_err(),
            client.add_decimal(&table, b"k", "1").await.unwrap_err(),
            client
                .compare_and_delete(&table, b"k", b"v")
                .await
                .unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        }
    });
}
