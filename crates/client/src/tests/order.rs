//! Mutations in order. The fake cluster numbers the writes of a table by their versions. So
//! versions show the order in which mutations took effect, and whether one did twice.

use super::{cluster, key_of, shape};
use crate::sequence::BATCH_UNDER_WAY_MAX;
use crate::testing::{FakeCluster, Fault, Sent};
use crate::{
    Addend, BatchStopped, Change, Client, ErrorKind, FatalKind, Mutation, Opcode, Outcome, Output,
    RejectRules, RetryReason, Table, Unfit,
};
use bytes::Bytes;
use core::time::Duration;
use futures_util::future::join;
use pluvio_units::{KEY_MAX, KeyHash, ServerId, TableId};
use pluvio_wire::{MULTI_ITEMS_MAX, Refusal};

const SECOND: Duration = Duration::from_secs(1);

fn append<'a>(key: &'a [u8]) -> Mutation<'a> {
    Mutation::new(TableId(0), key, Change::Append(b"x".as_slice().into()))
}

fn appends<'a>(table: &'a Table, keys: &'a [Vec<u8>]) -> Vec<(&'a Table, Mutation<'a>)> {
    keys.iter().map(|key| (table, append(key))).collect()
}

/// Keys of which many come again, on all servers in turn.
fn mixed_keys(count: usize) -> Vec<Vec<u8>> {
    let name = |n: usize| format!("key {}", n * n % 17).into_bytes();
    (0..count).map(name).collect()
}

/// Versions of outcomes, 0 where nothing was written.
fn versions(outcomes: &[Outcome]) -> Vec<u64> {
    let version = |outcome: &Outcome| match outcome {
        Outcome::Written { version, .. } => version.0,
        _ => 0,
    };
    outcomes.iter().map(version).collect()
}

fn sent_mutations(cluster: &FakeCluster) -> Vec<Sent> {
    let mut sent = cluster.sent();
    sent.retain(|sent| sent.opcode == Opcode::Mutate);
    sent
}

/// How many runs of keys there are that one server has.
fn runs(table: &Table, keys: &[Vec<u8>], counts: impl Fn(ServerId) -> bool) -> usize {
    let mut owners: Vec<_> = keys
        .iter()
        .map(|key| table.owner(table.hash(key)).unwrap())
        .collect();
    owners.dedup();
    owners.into_iter().filter(|owner| counts(*owner)).count()
}

/// Three keys that the first server had when `table` was looked up. The one in the middle has moved
/// to the second server since.
fn moved_behind_its_back(cluster: &FakeCluster, table: &Table) -> [Vec<u8>; 3] {
    let first = key_of(table, ServerId(1));
    let moved = (0u32..)
        .map(|n| format!("moved {n}").into_bytes())
        .find(|key| {
            let owner = table.owner(table.hash(key));
            owner == Some(ServerId(1)) && table.hash(key) > table.hash(&first)
        })
        .unwrap();
    let other = cluster.client();
    cluster.run(async {
        let same = other.table_by_id(table.id()).await.unwrap();
        let at = table.hash(&moved);
        other.split_tablet(&same, Some(at)).await.unwrap();
        other
            .split_tablet(&same, Some(KeyHash(at.0 + 1)))
            .await
            .unwrap();
    });
    cluster.move_tablet(table.id(), table.hash(&moved), ServerId(2));
    [first.clone(), moved, first]
}

#[test]
fn nothing_in_order_sends_nothing() {
    let (cluster, client, _) = cluster(1);
    let sent = cluster.sent().len();
    assert_eq!(cluster.run(client.mutate_in_order(&[])), Ok(Vec::new()));
    assert_eq!(cluster.sent().len(), sent);
}

#[test]
fn order_is_kept_over_owners_with_one_request_a_run() {
    let (cluster, client, table) = cluster(3);
    let keys = mixed_keys(60);
    let items = appends(&table, &keys);
    let done = cluster.run(client.mutate_in_order(&items)).unwrap();
    assert_eq!(versions(&done), (1..=60).collect::<Vec<_>>());
    let sent = sent_mutations(&cluster);
    assert_eq!(sent.len(), runs(&table, &keys, |_| true));
    assert!(sent.len() > 3 && sent.len() < keys.len());
    assert_eq!(cluster.count_sent_items(Opcode::Mutate), keys.len());
}

// shows: EARLY-1
#[test]
fn early_answers_are_told_when_each_of_their_servers_has_said_that_they_are_durable() {
    let (cluster, client, table) = cluster(3);
    let keys = mixed_keys(60);
    let items = appends(&table, &keys);
    let busy = Refusal::retry(SECOND / 100, RetryReason::Busy);
    for fault in [Fault::Refuse(busy), Fault::LoseReply, Fault::Unreachable] {
        let before = cluster.count_sent(Opcode::AwaitDurable);
        cluster.plan(Opcode::AwaitDurable, fault, 2);
        let done = cluster.run(client.mutate_in_order_early(&items)).unwrap();
        assert!(versions(&done).is_sorted() && done.len() == keys.len());
        let asked = cluster.count_sent(Opcode::AwaitDurable) - before;
        assert_eq!(
            asked,
            3 + 2,
            "one for each server, and those without an answer again"
        );
    }
    assert_eq!(
        sent_mutations(&cluster).len(),
        3 * runs(&table, &keys, |_| true)
    );
}

// shows: EARLY-1
#[test]
fn what_is_not_known_to_be_durable_is_in_doubt_and_not_tried_again() {
    for (fault, times) in [(Fault::Refuse(Refusal::Refresh), 3), (Fault::LoseReply, 9)] {
        let (cluster, client, table) = cluster(3);
        let keys = mixed_keys(60);
        let items = appends(&table, &keys);
        cluster.plan(Opcode::AwaitDurable, fault, times);
        let ended = cluster.run(client.mutate_in_order_early(&items));
        let BatchStopped { done, error } = ended.unwrap_err();
        assert_eq!((done.len(), error.kind()), (0, ErrorKind::MaybeExecuted));
        assert_eq!(
            sent_mutations(&cluster).len(),
            runs(&table, &keys, |_| true)
        );
    }
}

/// Then there is nothing to go on with.
#[test]
fn a_run_that_is_alone_is_answered_when_it_is_durable() {
    let (cluster, client, table) = cluster(3);
    let key = key_of(&table, ServerId(2));
    let items = appends(&table, core::slice::from_ref(&key));
    cluster.run(client.mutate_in_order_early(&items)).unwrap();
    assert_eq!(cluster.count_sent(Opcode::AwaitDurable), 0);
}

#[test]
fn order_is_kept_and_nothing_done_twice_whatever_is_lost() {
    let faults = [
        Fault::LoseReply,
        Fault::DelayReply,
        Fault::LoseRequest,
        Fault::Unreachable,
        Fault::Refuse(Refusal::Refresh),
        Fault::Refuse(Refusal::retry(SECOND / 100, RetryReason::Busy)),
    ];
    let keys = mixed_keys(40);
    for fault in faults {
        for round in 0..6 {
            let (cluster, client, table) = cluster(3);
            let items = appends(&table, &keys);
            // Every request takes two of these, so the fault meets another place each time.
            let latency = Duration::from_millis(1);
            cluster.set_latency(latency);
            let later = cluster.at(8 * round * latency, |cluster| {
                cluster.plan(Opcode::Mutate, fault.clone(), 2);
            });
            let (done, ()) = cluster.run(join(client.mutate_in_order(&items), later));
            let done = done.unwrap();
            assert!(cluster.now() > 8 * round * latency);
            let sent = sent_mutations(&cluster);
            assert!(
                sent.len() > runs(&table, &keys, |_| true),
                "the fault was met"
            );
            assert_eq!(versions(&done), (1..=40).collect::<Vec<_>>(), "{fault:?}");
        }
    }
}

#[test]
fn an_item_that_is_refused_stops_its_server_and_the_client_goes_on_at_it() {
    for fault in [None, Some(Fault::LoseReply), Some(Fault::DelayReply)] {
        let (cluster, client, table) = cluster(2);
        let keys = moved_behind_its_back(&cluster, &table);
        let items = appends(&table, &keys);
        if let Some(fault) = fault.clone() {
            cluster.plan(Opcode::Mutate, fault, 1);
        }
        let done = cluster.run(client.mutate_in_order(&items)).unwrap();
        assert_eq!(versions(&done), [1, 2, 3], "{fault:?}");
        let items: Vec<_> = sent_mutations(&cluster).iter().map(|s| s.items).collect();
        match fault {
            None => assert_eq!(items, [3, 1, 1], "the refused one, then the rest"),
            Some(_) => assert_eq!(items, [3, 1, 1, 1], "sorted anew after the loss"),
        }
        let length = |outcome: &Outcome| shape(outcome).1;
        let lengths: Vec<_> = done.iter().map(length).collect();
        assert_eq!(lengths, [1, 1, 2].map(Output::Integer));
    }
}

#[test]
fn a_refused_item_of_another_table_is_looked_for_in_its_own() {
    let (cluster, client, table) = cluster(2);
    let other = cluster.run(client.create_table("other", None)).unwrap();
    let (here, there) = (key_of(&table, ServerId(1)), key_of(&other, ServerId(1)));
    cluster.move_tablet(other.id(), other.hash(&there), ServerId(2));
    let items = [(&table, append(&here)), (&other, append(&there))];
    let asked = cluster.count_sent(Opcode::GetTable);
    let done = cluster.run(client.mutate_in_order(&items)).unwrap();
    assert_eq!(versions(&done), [1, 1]);
    let items: Vec<_> = sent_mutations(&cluster).iter().map(|s| s.items).collect();
    assert_eq!(items, [2, 1]);
    assert_eq!(cluster.count_sent(Opcode::GetTable) - asked, 1);
}

#[test]
fn outcomes_that_change_nothing_end_nothing() {
    let (cluster, client, table) = cluster(2);
    let keys = mixed_keys(3);
    let rejected = Mutation {
        rules: RejectRules::ABSENT,
        ..append(&keys[1])
    };
    let unfit = Mutation::new(TableId(0), &keys[0], Change::Add(Addend::Integer(1)));
    let items = [append(&keys[0]), rejected, unfit, append(&keys[2])].map(|m| (&table, m));
    let done = cluster.run(client.mutate_in_order(&items)).unwrap();
    assert_eq!(versions(&done), [1, 0, 0, 2]);
    assert_eq!(shape(&done[1]), ("rejected", Output::Nothing));
    assert_eq!(done[2], Outcome::Refused(Unfit::NotANumber));
}

#[test]
fn a_final_refusal_comes_beside_the_outcomes_before_it() {
    let (cluster, client, table) = cluster(1);
    let dropped = cluster.run(client.create_table("dropped", None)).unwrap();
    cluster.run(cluster.client().drop_table("dropped")).unwrap();
    let items = [&table, &table, &dropped, &table].map(|table| (table, append(b"k")));
    let BatchStopped { done, error } = cluster.run(client.mutate_in_order(&items)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchTable);
    assert_eq!(versions(&done), [1, 2]);
    let object = cluster.run(client.read(&table, b"k")).unwrap().unwrap();
    assert_eq!(object.value, "xx", "what stands behind it was not begun");
}

#[test]
fn limits_are_checked_before_anything_is_done() {
    let (cluster, client, table) = cluster(1);
    let keys = mixed_keys(BATCH_UNDER_WAY_MAX + 1);
    let items = appends(&table, &keys);
    let BatchStopped { done, error } = cluster.run(client.mutate_in_order(&items)).unwrap_err();
    assert!(done.is_empty());
    assert_eq!(error.fatal_kind(), Some(FatalKind::Malformed));
    assert!(error.to_string().contains("4096"), "{error}");
    let long = vec![0; KEY_MAX + 1];
    let with_a_long_key = [append(b"k"), append(&long)].map(|m| (&table, m));
    let refused = cluster.run(client.mutate_in_order(&with_a_long_key));
    let BatchStopped { done, error } = refused.unwrap_err();
    assert!(done.is_empty());
    assert_eq!(error.kind(), ErrorKind::BadArgument);
    assert_eq!(cluster.count_sent(Opcode::Mutate), 0);
    // As many as may be.
    let most = &items[..BATCH_UNDER_WAY_MAX];
    let done = cluster.run(client.mutate_in_order(most)).unwrap();
    assert_eq!(versions(&done), (1..=most.len() as u64).collect::<Vec<_>>());
    let requests = BATCH_UNDER_WAY_MAX.div_ceil(MULTI_ITEMS_MAX);
    assert_eq!(cluster.count_sent(Opcode::Mutate), requests);
}

#[test]
fn a_server_that_is_gone_is_waited_for_and_nothing_behind_it_is_begun() {
    let (cluster, client, table) = cluster(2);
    let (dead, alive) = (key_of(&table, ServerId(1)), key_of(&table, ServerId(2)));
    let keys = [alive.clone(), dead, alive];
    let items = appends(&table, &keys);
    cluster.crash(ServerId(1));
    let BatchStopped { done, error } = cluster.run(client.mutate_in_order(&items)).unwrap_err();
    assert_eq!(versions(&done), [1]);
    assert_eq!(error.retry_reason(), Some(RetryReason::TabletNotReady));
    assert_eq!(cluster.now(), 10 * SECOND);
    let recovery = cluster.at(12 * SECOND, |c| c.recover(ServerId(1), ServerId(2)));
    let (done, ()) = cluster.run(join(client.mutate_in_order(&items), recovery));
    assert_eq!(versions(&done.unwrap()), [2, 3, 4]);
}

#[test]
fn items_keep_their_identities_when_their_server_crashes_after_it_did_them() {
    let (cluster, client, table) = cluster(3);
    let keys = mixed_keys(30);
    let items = appends(&table, &keys);
    cluster.plan(Opcode::Mutate, Fault::DelayReply, 1);
    let first = table.owner(table.hash(&keys[0])).unwrap();
    let heir = ServerId(1 + first.0 % 3);
    let moved = cluster.at(SECOND, |c| {
        c.crash(first);
        c.recover(first, heir);
    });
    let (done, ()) = cluster.run(join(client.mutate_in_order(&items), moved));
    assert_eq!(versions(&done.unwrap()), (1..=30).collect::<Vec<_>>());
}

#[test]
fn runs_of_the_own_server_stay_in_the_process_and_in_their_order() {
    for wait in [None, Some(Duration::from_millis(1))] {
        let cluster = FakeCluster::new(2);
        let local = cluster.local_master(ServerId(2));
        let client = Client::embedded(cluster.parts(), cluster.options(), local);
        let table = cluster.run(client.create_table("t", None)).unwrap();
        cluster.set_local_waits(wait);
        let keys = mixed_keys(40);
        let items = appends(&table, &keys);
        let done = cluster.run(client.mutate_in_order(&items)).unwrap();
        assert_eq!(versions(&done), (1..=40).collect::<Vec<_>>());
        let elsewhere = runs(&table, &keys, |owner| owner != ServerId(2));
        assert_eq!(cluster.count_sent(Opcode::Mutate), elsewhere);
    }
}

#[test]
fn those_that_were_sent_keep_their_identity_when_they_are_done_in_place() {
    let cluster = FakeCluster::new(2);
    let local = cluster.local_master(ServerId(2));
    let client = Client::embedded(cluster.parts(), cluster.options(), local);
    let table = cluster.run(client.create_table("t", None)).unwrap();
    let key = key_of(&table, ServerId(1));
    let keys = [key.clone(), key.clone(), key.clone()];
    cluster.plan(Opcode::Mutate, Fault::DelayReply, 1);
    let moved = cluster.at(SECOND, |c| {
        c.crash(ServerId(1));
        c.recover(ServerId(1), ServerId(2));
    });
    let items = appends(&table, &keys);
    let (done, ()) = cluster.run(join(client.mutate_in_order(&items), moved));
    assert_eq!(versions(&done.unwrap()), [1, 2, 3]);
    assert_eq!(cluster.count_sent(Opcode::Mutate), 1, "then in place");
    let object = cluster.run(client.read(&table, &key)).unwrap().unwrap();
    assert_eq!(object.value, Bytes::from_static(b"xxx"));
}
