//! Batches.

use super::{cluster, key_of};
use crate::batch::CALLS_MAX;
use crate::sequence::{BATCH_UNDER_WAY_MAX, UNDER_WAY_MAX};
use crate::testing::{FakeCluster, Fault};
use crate::window::WINDOW;
use crate::{Client, ClientError, ErrorKind, Key, Opcode, RejectRules, RetryReason, Table};
use bytes::Bytes;
use core::time::Duration;
use futures_util::future::{join, join_all};
use pluvio_units::{KEY_MAX, ServerId, VALUE_MAX};
use pluvio_wire::{MULTI_ITEMS_MAX, Refusal};

fn keys(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|n| n.to_string().into_bytes()).collect()
}

fn items<'a>(table: &'a Table, keys: &'a [Vec<u8>]) -> Vec<Key<'a>> {
    keys.iter().map(|key| Key::new(table, key)).collect()
}

async fn write_all(client: &Client, table: &Table, keys: &[Vec<u8>], bytes: usize) {
    let objects: Vec<_> = keys
        .iter()
        .map(|key| {
            let mut value = key.clone();
            value.resize(bytes.max(key.len()), b'.');
            (Key::new(table, key), Bytes::from(value))
        })
        .collect();
    for result in client.multi_write(&objects).await {
        result.unwrap();
    }
}

#[test]
fn a_batch_is_one_request_a_server_and_keeps_the_order() {
    let (cluster, client, table) = cluster(3);
    let keys = keys(300);
    cluster.run(async {
        write_all(&client, &table, &keys, 0).await;
        let read = client.multi_read(&items(&table, &keys)).await;
        for (key, object) in keys.iter().zip(read) {
            assert_eq!(object.unwrap().unwrap().value, key);
        }
        let deleted = client.multi_delete(&items(&table, &keys)).await;
        assert!(deleted.iter().all(|d| d.as_ref().unwrap().deleted.0 > 0));
        let read = client.multi_read(&items(&table, &keys)).await;
        assert!(read.iter().all(|object| *object == Ok(None)));
    });
    assert_eq!(cluster.count_sent_batches(Opcode::Mutate), 3 + 3);
    assert_eq!(cluster.count_sent_batches(Opcode::Get), 3 + 3);
    assert_eq!(cluster.count_sent_items(Opcode::Mutate), 2 * keys.len());
}

#[test]
fn an_empty_batch_sends_nothing() {
    let (cluster, client, _) = cluster(1);
    let before = cluster.sent().len();
    assert!(cluster.run(client.multi_read(&[])).is_empty());
    assert_eq!(cluster.sent().len(), before);
}

// shows: CLIENT-3
#[test]
fn requests_stay_within_the_limits_of_items_and_bytes() {
    let (cluster, client, table) = cluster(1);
    let many = keys(2 * MULTI_ITEMS_MAX + 1);
    cluster.run(write_all(&client, &table, &many, 0));
    assert_eq!(cluster.count_sent(Opcode::Mutate), 3);
    // Four values of 1 MiB and their keys do not fit 4 MiB.
    let big = keys(8);
    cluster.run(write_all(&client, &table, &big, VALUE_MAX));
    assert_eq!(cluster.count_sent(Opcode::Mutate), 3 + 3);
    let results = cluster.run(client.multi_read(&items(&table, &big)));
    assert!(results.iter().all(|r| r.as_ref().unwrap().is_some()));
}

#[test]
fn a_reply_that_is_full_is_followed_by_the_rest_at_once() {
    let (cluster, client, table) = cluster(1);
    let keys = keys(20);
    cluster.run(write_all(&client, &table, &keys, 1000));
    cluster.set_reply_bytes_max(3000);
    let read = cluster.run(client.multi_read(&items(&table, &keys)));
    for (key, object) in keys.iter().zip(read) {
        assert!(object.unwrap().unwrap().value.starts_with(key));
    }
    assert_eq!(cluster.count_sent(Opcode::Get), 7);
    assert_eq!(cluster.now(), Duration::ZERO);
}

#[test]
fn items_fail_alone() {
    let (cluster, client, table) = cluster(2);
    let long = vec![0; KEY_MAX + 1];
    let exists = RejectRules {
        exists: true,
        ..RejectRules::default()
    };
    cluster.run(async {
        client.write(&table, b"old", Bytes::new()).await.unwrap();
        let results = client
            .multi_write(&[
                (Key::new(&table, b"new").rules(exists), Bytes::new()),
                (Key::new(&table, &long), Bytes::new()),
                (Key::new(&table, b"old").rules(exists), Bytes::new()),
                (Key::new(&table, b"other"), vec![0; VALUE_MAX + 1].into()),
                (Key::new(&table, b"last"), Bytes::new()),
            ])
            .await;
        let kinds: Vec<_> = results
            .iter()
            .map(|r| r.as_ref().err().map(|e| e.kind()))
            .collect();
        let bad = Some(ErrorKind::BadArgument);
        let rejected = Some(ErrorKind::Rejected);
        assert_eq!(kinds, [None, bad, rejected, bad, None]);
    });
}

#[test]
fn objects_of_a_dropped_table_fail_and_the_others_do_not() {
    let (cluster, client, table) = cluster(2);
    cluster.run(async {
        let other = client.create_table("other", None).await.unwrap();
        client.drop_table("other").await.unwrap();
        let results = client
            .multi_write(&[
                (Key::new(&other, b"k"), Bytes::new()),
                (Key::new(&table, b"k"), Bytes::new()),
            ])
            .await;
        let error = results[0].as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSuchTable);
        assert!(results[1].is_ok());
    });
}

#[test]
fn a_batch_whose_reply_was_lost_is_not_executed_twice() {
    let (cluster, client, table) = cluster(2);
    let keys = keys(100);
    let create = RejectRules {
        exists: true,
        ..RejectRules::default()
    };
    cluster.plan(Opcode::Mutate, Fault::LoseReply, 2);
    cluster.plan(Opcode::Mutate, Fault::DelayReply, 2);
    let objects: Vec<_> = items(&table, &keys)
        .into_iter()
        .map(|key| (key.rules(create), Bytes::new()))
        .collect();
    let results = cluster.run(client.multi_write(&objects));
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

// shows: EO-1, CLIENT-1
#[test]
fn items_keep_their_identity_when_they_are_sorted_anew() {
    let (cluster, client, table) = cluster(3);
    let keys = keys(100);
    let create = RejectRules {
        exists: true,
        ..RejectRules::default()
    };
    // All servers execute their items; by the time the client asks again, one has those of another.
    cluster.plan(Opcode::Mutate, Fault::DelayReply, 3);
    let moved = cluster.at(Duration::from_secs(1), |c| {
        c.crash(ServerId(2));
        c.recover(ServerId(2), ServerId(3));
    });
    let objects: Vec<_> = items(&table, &keys)
        .into_iter()
        .map(|key| (key.rules(create), Bytes::new()))
        .collect();
    let (results, ()) = cluster.run(join(client.multi_write(&objects), moved));
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(cluster.count_sent(Opcode::Mutate), 3 + 2);
}

#[test]
fn a_batch_larger_than_what_may_be_under_way_goes_in_parts() {
    let (cluster, client, table) = cluster(1);
    let many = keys(BATCH_UNDER_WAY_MAX + 1);
    cluster.run(write_all(&client, &table, &many, 0));
    let requests = BATCH_UNDER_WAY_MAX.div_ceil(MULTI_ITEMS_MAX) + 1;
    assert_eq!(cluster.count_sent(Opcode::Mutate), requests);
}

#[test]
fn a_batch_of_which_something_is_done_has_its_whole_time_in_a_full_memory() {
    let (cluster, _, table) = cluster(3);
    let options = cluster.options().full_timeout(Duration::from_secs(1));
    let client = Client::new(cluster.parts(), options);
    let full = Refusal::retry(Duration::from_millis(400), RetryReason::MemoryFull);
    let refuse = |cluster: &FakeCluster, times| {
        cluster.plan(Opcode::Mutate, Fault::Refuse(full.clone()), times);
    };
    let keys = keys(100);
    // Of the three requests none is taken at first, then one after the other, 400 to 600 ms apart.
    refuse(&cluster, 3);
    let one_by_one = async {
        let (second, third) = (Duration::from_millis(300), Duration::from_millis(700));
        cluster.at(second, |cluster| refuse(cluster, 2)).await;
        cluster.at(third, |cluster| refuse(cluster, 1)).await;
    };
    cluster.run(join(write_all(&client, &table, &keys, 0), one_by_one));
    assert!(cluster.now() > Duration::from_secs(1));
}

#[test]
fn parts_of_a_batch_that_come_after_its_time_are_not_sent() {
    let (cluster, client, table) = cluster(1);
    cluster.plan(Opcode::Mutate, Fault::LoseRequest, u32::MAX);
    let many = keys(BATCH_UNDER_WAY_MAX + 1);
    let objects: Vec<_> = items(&table, &many)
        .into_iter()
        .map(|key| (key, Bytes::new()))
        .collect();
    let results = cluster.run(client.multi_write(&objects));
    assert_eq!(cluster.now(), Duration::from_secs(10));
    let errors: Vec<_> = results.into_iter().map(Result::unwrap_err).collect();
    assert!(errors.iter().all(|e| e.kind() == ErrorKind::TimedOut));
    let (last, sent) = errors.split_last().unwrap();
    assert!(sent.iter().all(|e| e.maybe_executed()));
    assert!(!last.maybe_executed(), "{last}");
    let all = cluster.sent();
    let mut writes = all.iter().filter(|s| s.opcode == Opcode::Mutate);
    let first = writes.next().unwrap().operation.sequence;
    assert!(writes.all(|s| s.operation.sequence == first));
}

#[test]
fn requests_of_a_batch_that_come_after_its_time_are_not_sent() {
    let (cluster, _, table) = cluster(1);
    let limit = Duration::from_secs(2);
    let client = Client::new(cluster.parts(), cluster.options().timeout(limit));
    cluster.plan(Opcode::Get, Fault::LoseRequest, u32::MAX);
    let many = keys(CALLS_MAX * MULTI_ITEMS_MAX + 1);
    let results = cluster.run(client.multi_read(&items(&table, &many)));
    let late = |error: &ClientError| error.kind() == ErrorKind::TimedOut;
    assert!(results.iter().all(|r| r.as_ref().is_err_and(late)));
    assert_eq!(cluster.now(), limit);
    assert_eq!(cluster.count_sent(Opcode::Get), CALLS_MAX);
}

// shows: CLIENT-6
#[test]
fn writes_and_batches_that_wait_for_their_turn_do_not_hold_up_each_other() {
    let (cluster, client, table) = cluster(1);
    cluster.set_latency(Duration::from_millis(1));
    let many = keys(BATCH_UNDER_WAY_MAX);
    // Half of the writes are under way, and the other half is next. By then all that may be under
    // way are the items of batches, whose requests come behind them.
    let writes = (0..2 * WINDOW).map(|_| client.write(&table, b"k", Bytes::new()));
    let batches = UNDER_WAY_MAX / BATCH_UNDER_WAY_MAX;
    let batches = (0..batches).map(|_| write_all(&client, &table, &many, 0));
    let (written, _) = cluster.run(join(join_all(writes), join_all(batches)));
    assert!(written.iter().all(Result::is_ok));
    let took = cluster.now();
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn items_follow_their_tablets_when_a_server_crashes() {
    let (cluster, client, table) = cluster(3);
    let keys = keys(100);
    cluster.run(write_all(&client, &table, &keys, 0));
    cluster.crash(ServerId(2));
    let second = Duration::from_secs(1);
    let recovery = cluster.at(second, |c| c.recover(ServerId(2), ServerId(3)));
    let list = items(&table, &keys);
    let (read, ()) = cluster.run(join(client.multi_read(&list), recovery));
    assert!(read.iter().all(|r| matches!(r, Ok(Some(_)))), "{read:?}");
    assert!(cluster.now() < 2 * second);
}

#[test]
fn items_that_stay_refused_end_at_the_limit_and_the_others_succeed() {
    let (cluster, client, table) = cluster(2);
    cluster.crash(ServerId(1));
    let (dead, alive) = (key_of(&table, ServerId(1)), key_of(&table, ServerId(2)));
    let list = [
        (Key::new(&table, &dead), Bytes::new()),
        (Key::new(&table, &alive), Bytes::new()),
    ];
    let results = cluster.run(client.multi_write(&list));
    let error = results[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(error.retry_reason(), Some(RetryReason::TabletNotReady));
    assert!(results[1].is_ok());
    assert_eq!(cluster.now(), Duration::from_secs(10));
}

#[test]
fn a_whole_request_that_is_put_off_comes_again() {
    let (cluster, client, table) = cluster(1);
    let busy = Refusal::retry(Duration::from_millis(1), RetryReason::Busy);
    cluster.plan(Opcode::Mutate, Fault::Refuse(busy), 5);
    cluster.plan(Opcode::Mutate, Fault::Refuse(Refusal::Refresh), 5);
    let keys = keys(3);
    let results = cluster.run(client.multi_delete(&items(&table, &keys)));
    assert!(results.iter().all(Result::is_ok));
}

#[test]
fn local_items_stay_in_the_process() {
    let cluster = crate::testing::FakeCluster::new(2);
    let local = cluster.local_master(ServerId(2));
    let client = Client::embedded(cluster.parts(), cluster.options(), local);
    let table = cluster.run(client.create_table("t", None)).unwrap();
    let keys = keys(50);
    cluster.run(write_all(&client, &table, &keys, 0));
    cluster.set_local_waits(Some(Duration::from_millis(1)));
    let read = cluster.run(client.multi_read(&items(&table, &keys)));
    assert!(read.iter().all(|r| matches!(r, Ok(Some(_)))));
    assert_eq!(cluster.count_sent(Opcode::Mutate), 1);
    assert_eq!(cluster.count_sent(Opcode::Get), 1);
}
