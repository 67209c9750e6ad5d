//! Transactions of one owner, and those that several servers would have to do.

use super::{cluster, key_of};
use crate::testing::Fault;
use crate::{
    Addend, Change, ClientError, Commit, ErrorKind, FatalKind, Mutation, Opcode, Operation, Output,
    Table, Transacted, TransactionStep,
};
use bytes::Bytes;
use futures_util::future::join_all;
use pluvio_units::{ObjectVersion, ServerId};

fn add<'a>(table: &'a Table, key: &'a [u8], by: i64) -> (&'a Table, TransactionStep<'a>) {
    let change = Change::Add(Addend::Integer(by));
    let mutation = Mutation::new(table.id(), key, change);
    (table, TransactionStep::new(Operation::Mutate(mutation)))
}

fn outputs(transacted: Transacted) -> Vec<Output> {
    match transacted {
        Transacted::Committed(outcomes) => outcomes.into_iter().map(|o| o.into_output()).collect(),
        refused @ Transacted::Refused { .. } => panic!("{refused:?}"),
    }
}

#[test]
fn a_lost_reply_does_not_do_it_twice() {
    let (cluster, client, table) = cluster(3);
    let key = key_of(&table, ServerId(2));
    cluster.run(async {
        for n in 1..4 {
            cluster.plan(Opcode::Transact, Fault::LoseReply, 1);
            let steps = [add(&table, &key, 1), add(&table, &key, 1)];
            let sums = outputs(client.transact(&steps).await.unwrap());
            assert_eq!(sums, [Output::Integer(2 * n - 1), Output::Integer(2 * n)]);
        }
        let nothing = client.transact(&[]).await.unwrap();
        assert_eq!(nothing, Transacted::Committed(Vec::new()));
    });
}

#[test]
fn keys_of_several_servers_are_refused_and_nothing_is_sent() {
    let (cluster, client, table) = cluster(2);
    let keys = [ServerId(1), ServerId(2)].map(|server| key_of(&table, server));
    cluster.run(async {
        let steps = [add(&table, &keys[0], 1), add(&table, &keys[1], 1)];
        let error = client.transact(&steps).await.unwrap_err();
        assert_eq!(error.fatal_kind(), Some(FatalKind::SeveralOwners));
        assert!(!error.maybe_executed());
        assert_eq!(cluster.count_sent(Opcode::Transact), 0);
        let many: Vec<_> = (0..5000).map(|_| add(&table, &keys[0], 1)).collect();
        let error = client.transact(&many).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadArgument);
    });
}

#[test]
fn a_commit_depends_on_what_was_read() {
    let (cluster, client, table) = cluster(1);
    cluster.run(async {
        let mut transaction = client.transaction();
        assert_eq!(transaction.get(&table, b"a").await, Ok(None));
        transaction.put(&table, b"a", "1");
        let seen = transaction.get(&table, b"a").await;
        assert_eq!(seen, Ok(Some(Bytes::from("1"))), "its own change");
        transaction.delete(&table, b"b");
        client
            .write(&table, b"a", Bytes::from("other"))
            .await
            .unwrap();
        let conflict = transaction.commit().await.unwrap();
        assert!(matches!(conflict, Commit::Conflict(version) if version > ObjectVersion(0)));
        let count = |_: usize| {
            client.transactionally(async |transaction| {
                let before = transaction.get(&table, b"n").await?;
                let before = before.map_or(0, |text| {
                    let text = String::from_utf8(text.to_vec()).unwrap();
                    text.parse::<u64>().unwrap()
                });
                transaction.put(&table, b"n", (before + 1).to_string());
                Ok::<_, ClientError>(before + 1)
            })
        };
        let mut counts = Vec::new();
        for result in join_all((0..20).map(count)).await {
            counts.push(result.unwrap());
        }
        counts.sort_unstable();
        assert_eq!(counts, (1..=20).collect::<Vec<_>>());
    });
}
