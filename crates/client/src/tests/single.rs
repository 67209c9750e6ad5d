//! Operations on single objects, tables, and what the client does about failures.

use super::{cluster, key_of};
use crate::request::OneMutation;
use crate::testing::{FakeCluster, Fault};
use crate::{
    Client, ClientError, ClientOptions, ErrorKind, FatalKind, Key, Number, Opcode, RejectRules,
    RetryReason, blocking,
};
use bytes::Bytes;
use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use futures_util::future::{join, join_all};
use pluvio_units::{HashKind, KEY_MAX, KeyHash, ObjectVersion, ServerId, VALUE_MAX};
use pluvio_wire::{Answer, Refusal, Results};

const SECOND: Duration = Duration::from_secs(1);

fn value(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

#[test]
fn what_is_written_is_read_until_it_is_deleted() {
    let (cluster, client, table) = cluster(3);
    cluster.run(async {
        assert_eq!(client.read(&table, b"k").await, Ok(None));
        let written = client.write(&table, b"k", value("v")).await.unwrap();
        let object = client.read(&table, b"k").await.unwrap().unwrap();
        assert_eq!(object.version, written.version);
        assert_eq!(object.value, value("v"));
        let deleted = client.delete(&table, b"k").await.unwrap();
        assert_eq!(deleted.deleted, written.version);
        assert_eq!(client.read(&table, b"k").await, Ok(None));
        assert_eq!(client.delete(&table, b"k").await.unwrap().deleted.0, 0);
    });
}

#[test]
fn conditional_write_is_rejected_with_the_version_that_is_there() {
    let (cluster, client, table) = cluster(1);
    cluster.run(async {
        let none = ObjectVersion(0);
        let first = client
            .conditional_write(&table, b"k", value("1"), none)
            .await;
        let version = first.unwrap().version;
        let again = client
            .conditional_write(&table, b"k", value("2"), none)
            .await;
        assert_eq!(again, Err(ClientError::Rejected { version }));
        assert!(!again.unwrap_err().is_retryable());
        let right = client
            .conditional_write(&table, b"k", value("2"), version)
            .await;
        assert_eq!(right.unwrap().replaced, version);
        let rules = RejectRules {
            does_not_exist: true,
            ..RejectRules::default()
        };
        let absent = client.read_if(&table, b"absent", rules).await;
        assert_eq!(absent.unwrap_err().kind(), ErrorKind::Rejected);
    });
}

#[test]
fn increments_count_and_refuse_what_is_no_number() {
    let (cluster, client, table) = cluster(1);
    cluster.run(async {
        let five = client.increment(&table, b"n", Number::Integer(5)).await;
        assert_eq!(five.unwrap().value, Number::Integer(5));
        let half = client.increment(&table, b"n", Number::Float(0.5)).await;
        assert_eq!(half.unwrap().value, Number::Float(5.5));
        let error = client.increment(&table, b"n", Number::Integer(1)).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::BadNumber);
    });
}

#[test]
fn a_lost_reply_does_not_execute_an_operation_twice() {
    let (cluster, client, table) = cluster(2);
    for fault in [Fault::LoseReply, Fault::DelayReply, Fault::LoseRequest] {
        cluster.plan(Opcode::Mutate, fault, 2);
    }
    cluster.run(async {
        let one = client.increment(&table, b"n", Number::Integer(1)).await;
        assert_eq!(one.unwrap().value, Number::Integer(1));
        let two = client.increment(&table, b"n", Number::Integer(1)).await;
        assert_eq!(two.unwrap().value, Number::Integer(2));
    });
    let sent = cluster.sent();
    let ids: Vec<_> = sent
        .iter()
        .filter(|s| s.opcode == Opcode::Mutate)
        .map(|s| {
            (
                s.operation.client,
                s.operation.sequence.0,
                s.operation.acknowledged_below.0,
            )
        })
        .collect();
    let client = ids[0].0;
    assert_eq!(ids.len(), 8);
    assert!(ids[..7].iter().all(|id| *id == (client, 1, 1)), "{ids:?}");
    assert_eq!(ids[7], (client, 2, 2));
}

// shows: EO-1, CLIENT-1
#[test]
fn what_was_forwarded_keeps_its_identity_when_it_is_done_in_place() {
    let cluster = FakeCluster::new(2);
    let local = cluster.local_master(ServerId(1));
    let client = Client::embedded(cluster.parts(), cluster.options(), local);
    let table = cluster.run(client.create_table("t", None)).unwrap();
    let key = key_of(&table, ServerId(2));
    cluster.plan(Opcode::Mutate, Fault::DelayReply, 1);
    let moved = cluster.at(SECOND, |c| {
        c.crash(ServerId(2));
        c.recover(ServerId(2), ServerId(1));
    });
    let added = client.increment(&table, &key, Number::Integer(1));
    let (added, ()) = cluster.run(join(added, moved));
    assert_eq!(added.unwrap().value, Number::Integer(1));
    assert_eq!(cluster.count_sent(Opcode::Mutate), 1, "then in place");
    let again = client.increment(&table, &key, Number::Integer(1));
    assert_eq!(cluster.run(again).unwrap().value, Number::Integer(2));
}

#[test]
fn reads_carry_no_identity() {
    let (cluster, client, table) = cluster(1);
    cluster.run(client.read(&table, b"k")).unwrap();
    let sent = cluster.sent();
    assert_eq!(sent.last().unwrap().operation.client.0, 0);
}

#[test]
fn without_ambiguous_retries_a_lost_reply_is_told() {
    let cluster = FakeCluster::new(1);
    let options = cluster.options().retry_ambiguous(false);
    let client = Client::new(cluster.parts(), options);
    let table = cluster.run(client.create_table("t", None)).unwrap();
    cluster.plan(Opcode::Mutate, Fault::LoseReply, 1);
    cluster.plan(Opcode::Get, Fault::LoseReply, 1);
    let error = cluster
        .run(client.write(&table, b"k", value("v")))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MaybeExecuted);
    assert!(error.maybe_executed());
    // Reads change nothing, so nothing is ambiguous.
    assert!(cluster.run(client.read(&table, b"k")).unwrap().is_some());
    // An unreachable server has certainly not executed anything.
    cluster.plan(Opcode::Mutate, Fault::Unreachable, 1);
    cluster.run(client.write(&table, b"k", value("v"))).unwrap();
}

#[test]
fn a_moved_tablet_is_found_again_with_one_question_for_all_waiting_operations() {
    let (cluster, client, table) = cluster(2);
    cluster.set_latency(Duration::from_millis(1));
    cluster.recover(ServerId(1), ServerId(2));
    let key = key_of(&table, ServerId(1));
    let before = cluster.count_sent(Opcode::GetTable);
    let writes = (0..50).map(|_| client.write(&table, &key, value("v")));
    let results = cluster.run(join_all(writes));
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(cluster.count_sent(Opcode::GetTable) - before, 1);
    assert_eq!(cluster.count_sent(Opcode::Mutate), 100);
}

#[test]
fn a_crash_is_only_a_delay() {
    let (cluster, client, table) = cluster(2);
    let key = key_of(&table, ServerId(1));
    cluster.run(client.write(&table, &key, value("v"))).unwrap();
    cluster.crash(ServerId(1));
    let recovery = cluster.at(3 * SECOND, |c| c.recover(ServerId(1), ServerId(2)));
    let (object, ()) = cluster.run(join(client.read(&table, &key), recovery));
    assert_eq!(object.unwrap().unwrap().value, value("v"));
    assert!(
        cluster.now() < 3 * SECOND + Duration::from_millis(400),
        "{:?}",
        cluster.now()
    );
}

// shows: CLIENT-2
#[test]
fn a_server_that_never_comes_back_ends_at_the_time_limit() {
    let (cluster, client, table) = cluster(2);
    let key = key_of(&table, ServerId(1));
    cluster.crash(ServerId(1));
    let error = cluster.run(client.read(&table, &key)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(error.retry_reason(), Some(RetryReason::TabletNotReady));
    assert!(error.is_retryable() && !error.maybe_executed());
    assert_eq!(cluster.now(), 10 * SECOND);
}

#[test]
fn a_silent_server_is_left_after_one_attempts_time() {
    let (cluster, client, table) = cluster(1);
    cluster.plan(Opcode::Mutate, Fault::LoseRequest, 1);
    cluster.run(client.write(&table, b"k", value("v"))).unwrap();
    assert!(cluster.now() >= 2 * SECOND && cluster.now() < 3 * SECOND);
}

// shows: EO-4
#[test]
fn silence_until_the_limit_leaves_a_write_in_doubt() {
    let (cluster, client, table) = cluster(1);
    cluster.plan(Opcode::Mutate, Fault::LoseRequest, 100);
    let error = cluster
        .run(client.write(&table, b"k", value("v")))
        .unwrap_err();
    assert!(error.maybe_executed());
    assert_eq!(cluster.now(), 10 * SECOND);
    assert!(
        error.to_string().contains("may have been executed"),
        "{error}"
    );
}

#[test]
fn lost_answers_of_the_coordinator_leave_only_what_was_asked_of_it_in_doubt() {
    let (cluster, client, table) = cluster(2);
    let key = key_of(&table, ServerId(1));
    cluster.crash(ServerId(1));
    cluster.plan(Opcode::GetTable, Fault::LoseReply, u32::MAX);
    cluster.plan(Opcode::ListTables, Fault::LoseReply, u32::MAX);
    cluster.plan(Opcode::CreateTable, Fault::LoseReply, u32::MAX);
    cluster.run(async {
        let read = client.read(&table, &key).await.unwrap_err();
        let write = client.write(&table, &key, value("v")).await.unwrap_err();
        let list = client.list_tables().await.unwrap_err();
        for error in [read, write, list] {
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            assert!(!error.maybe_executed(), "{error}");
        }
        let create = client.create_table("new", None).await.unwrap_err();
        assert!(create.maybe_executed(), "{create}");
    });
}

#[test]
fn silence_of_the_coordinator_leaves_no_doubt_of_what_no_server_was_asked_for() {
    let (cluster, client, table) = cluster(1);
    cluster.crash(ServerId(1));
    cluster.plan(Opcode::GetTable, Fault::LoseRequest, u32::MAX);
    let error = cluster
        .run(client.write(&table, b"k", value("v")))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(!error.maybe_executed(), "{error}");
}

#[test]
fn a_write_that_is_accepted_and_not_answered_is_in_doubt_whatever_was_refused_before() {
    let cluster = FakeCluster::new(1);
    let client = cluster.client();
    let mut attempts = client.attempts();
    attempts.failed("full".into(), Some(RetryReason::MemoryFull));
    let never = Answer::<Results>::Later(Box::pin(core::future::pending()));
    let error = cluster
        .run(client.finish_local::<OneMutation<'_>>(never, &mut attempts))
        .unwrap_err();
    assert!(error.maybe_executed());
    assert_eq!(error.retry_reason(), None);
}

#[test]
fn a_full_memory_is_waited_for_and_then_named() {
    let (cluster, client, table) = cluster(1);
    let full = Refusal::retry(Duration::from_millis(20), RetryReason::MemoryFull);
    cluster.plan(Opcode::Mutate, Fault::Refuse(full.clone()), 3);
    cluster.run(client.write(&table, b"k", value("v"))).unwrap();
    assert!(cluster.now() >= Duration::from_millis(3 * 20));
    cluster.plan(Opcode::Mutate, Fault::Refuse(full), u32::MAX);
    let error = cluster
        .run(client.write(&table, b"k", value("v")))
        .unwrap_err();
    assert_eq!(error.retry_reason(), Some(RetryReason::MemoryFull));
    assert!(!error.maybe_executed());
    assert!(cluster.count_sent(Opcode::Mutate) < 200, "pauses grow");
}

#[test]
fn a_full_memory_may_be_waited_for_less_long_than_a_crash() {
    let (cluster, _, table) = cluster(1);
    let options = cluster.options().full_timeout(SECOND);
    let client = Client::new(cluster.parts(), options);
    let full = Refusal::retry(Duration::from_millis(20), RetryReason::MemoryFull);
    let busy = Refusal::retry(Duration::from_millis(900), RetryReason::Busy);
    cluster.plan(Opcode::Mutate, Fault::Refuse(full.clone()), 3);
    cluster.plan(Opcode::Mutate, Fault::Refuse(busy), 1);
    cluster.plan(Opcode::Mutate, Fault::Refuse(full), u32::MAX);
    let error = cluster
        .run(client.write(&table, b"k", value("v")))
        .unwrap_err();
    assert_eq!(error.retry_reason(), Some(RetryReason::MemoryFull));
    let took = cluster.now();
    assert!(
        took > 2 * SECOND && took < 4 * SECOND,
        "another answer begins the time anew: {took:?}"
    );
}

// shows: CLIENT-5, EO-4
#[test]
fn servers_are_told_the_whole_time_also_while_memory_is_full() {
    let (cluster, _, table) = cluster(1);
    let options = cluster.options().full_timeout(SECOND);
    let client = Client::new(cluster.parts(), options);
    let full = Refusal::retry(Duration::from_millis(20), RetryReason::MemoryFull);
    let plan = || {
        // After a lost reply the operation has its whole time again.
        cluster.plan(Opcode::Mutate, Fault::Refuse(full.clone()), 1);
        cluster.plan(Opcode::Mutate, Fault::LoseReply, 1);
    };
    cluster.run(async {
        plan();
        client.write(&table, b"k", value("v")).await.unwrap();
        plan();
        let batch = [b"l", b"m"].map(|key| (Key::new(&table, key), value("v")));
        let results = client.multi_write(&batch).await;
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    });
    assert!(cluster.now() < SECOND);
    assert_eq!(cluster.count_sent(Opcode::Mutate), 3 + 3);
    assert_eq!(cluster.count_sent_batches(Opcode::Mutate), 3);
    let sent = cluster.sent();
    let changes = sent.iter().filter(|s| s.operation.is_some());
    let told: Vec<_> = changes.map(|s| s.operation.retry_ms).collect();
    assert_eq!(told.len(), 6);
    assert!(told.iter().all(|ms| *ms > 9000), "{told:?}");
}

#[test]
fn final_refusals_are_not_retried() {
    let (cluster, client, table) = cluster(1);
    let refusal = Refusal::fatal(FatalKind::NotInCluster, "go away");
    cluster.plan(Opcode::Get, Fault::Refuse(refusal), 1);
    let error = cluster.run(client.read(&table, b"k")).unwrap_err();
    assert_eq!(error.fatal_kind(), Some(FatalKind::NotInCluster));
    assert_eq!(cluster.count_sent(Opcode::Get), 1);
}

#[test]
fn limits_are_checked_before_anything_is_sent() {
    let (cluster, client, table) = cluster(1);
    let long_key = vec![b'k'; KEY_MAX + 1];
    let long_value = Bytes::from(vec![b'v'; VALUE_MAX + 1]);
    cluster.run(async {
        let errors = [
            client.read(&table, &long_key).await.unwrap_err(),
            client
                .write(&table, &long_key, Bytes::new())
                .await
                .unwrap_err(),
            client.write(&table, b"k", long_value).await.unwrap_err(),
            client.create_table("", None).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::BadArgument, "{error}");
        }
        let most = Bytes::from(vec![b'v'; VALUE_MAX]);
        client.write(&table, &long_key[1..], most).await.unwrap();
    });
    assert_eq!(cluster.count_sent(Opcode::Get), 0);
    assert_eq!(cluster.count_sent(Opcode::Mutate), 1);
}

// shows: LEADER-1
#[test]
fn another_coordinator_is_asked_when_one_is_silent_or_away() {
    let cluster = FakeCluster::new(1);
    let options = ClientOptions::new(["nowhere", "coordinator"]);
    let client = Client::new(cluster.parts(), options);
    cluster.run(client.create_table("t", None)).unwrap();
    assert_eq!(cluster.now(), Duration::ZERO);
    // The one that answered stays the first choice.
    let before = cluster.sent().len();
    cluster.run(client.list_tables()).unwrap();
    assert_eq!(cluster.sent().len() - before, 1);
    let nobody = Client::new(cluster.parts(), ClientOptions::new(Vec::<&str>::new()));
    let error = cluster.run(nobody.list_tables()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoCoordinator);
}

#[test]
fn tables_come_and_go() {
    let (cluster, client, table) = cluster(2);
    cluster.run(async {
        let same = client.create_table("t", None).await.unwrap();
        assert_eq!(same.id(), table.id());
        assert_eq!(client.table("t").await.unwrap().id(), table.id());
        assert_eq!(client.table_by_id(table.id()).await.unwrap().name(), "t");
        assert_eq!(client.list_tables().await.unwrap().len(), 1);
        let missing = client.table("missing").await.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NoSuchTable);
        client.drop_table("t").await.unwrap();
        let gone = client.read(&table, b"k").await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NoSuchTable);
        let new = client.create_table("t", None).await.unwrap();
        assert_ne!(new.id(), table.id());
        let gone = client.read(&table, b"k").await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NoSuchTable);
        assert_eq!(client.cluster_status().await.unwrap().tables.len(), 1);
        assert_eq!(client.server_list().await.unwrap().servers.len(), 2);
    });
}

/// It may have been idle meanwhile, so that nothing has told it: servers, tables and addresses are
/// the same.
#[test]
fn a_client_that_outlives_its_cluster_changes_nothing_in_the_next_one() {
    let (cluster, client, old) = cluster(2);
    cluster.run(client.write(&old, b"k", value("old"))).unwrap();
    cluster.begin_anew();
    let other = cluster.client();
    let new = cluster.run(other.create_table("t", None)).unwrap();
    assert_eq!(new.id(), old.id());
    cluster.run(async {
        let wrong = async |table: &crate::Table| {
            let write = client.write(table, b"k", value("old")).await.unwrap_err();
            let add = client.increment(table, b"k", Number::Integer(1)).await;
            let objects = [(Key::new(table, b"k"), value("old"))];
            let batch = client.multi_write(&objects).await.remove(0).unwrap_err();
            let count = client.count(table).await.unwrap_err();
            for error in [write, add.unwrap_err(), batch, count] {
                assert_eq!(error.kind(), ErrorKind::NoSuchTable, "{error}");
            }
        };
        wrong(&old).await;
        // It may find the new table, and use both handles together.
        let found = client.table("t").await.unwrap();
        let objects = [
            (Key::new(&old, b"k"), value("old")),
            (Key::new(&found, b"n"), value("new")),
        ];
        let mut written = client.multi_write(&objects).await;
        assert!(written.remove(1).is_ok());
        assert_eq!(
            written.remove(0).unwrap_err().kind(),
            ErrorKind::NoSuchTable
        );
        wrong(&old).await;
        assert!(other.read(&new, b"k").await.unwrap().is_none());
        assert_eq!(other.count(&new).await.unwrap().objects, 1);
    });
}

#[test]
fn a_drop_whose_reply_was_lost_succeeds() {
    let (cluster, client, _) = cluster(1);
    cluster.plan(Opcode::DropTable, Fault::LoseReply, 1);
    cluster.run(client.drop_table("t")).unwrap();
    let error = cluster.run(client.drop_table("t")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchTable);
    // As after a drop that servers have not followed yet, and one that waited for the coordinator's
    // store.
    for why in [RetryReason::NotReady, RetryReason::MetadataTrouble] {
        let later = Refusal::retry(Duration::from_millis(50), why);
        cluster.plan(Opcode::DropTable, Fault::Refuse(later), 1);
        cluster.run(client.drop_table("t")).unwrap();
    }
}

#[test]
fn a_last_try_without_an_answer_hides_nothing_that_was_told_before() {
    let (cluster, ..) = cluster(1);
    let options = ClientOptions::new(["coordinator"]).attempt_timeout(10 * SECOND);
    let client = Client::new(cluster.parts(), options);
    let trouble = Refusal::retry(6 * SECOND, RetryReason::MetadataTrouble);
    let refused = RetryReason::MetadataTrouble.to_string();
    for (fault, told) in [
        (Fault::Refuse(trouble), &*refused),
        (Fault::Unreachable, "cannot reach coordinator"),
    ] {
        // It comes again before its time is up, and gets no answer until then.
        cluster.plan(Opcode::CreateTable, fault, 1);
        cluster.plan(Opcode::CreateTable, Fault::DelayReply, 1);
        let error = cluster.run(client.create_table("new", None)).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(told) && text.contains("; then no reply"),
            "{text}"
        );
    }
}

#[test]
fn a_drop_whose_reply_was_lost_leaves_a_later_table_of_the_same_name() {
    let (cluster, client, old) = cluster(1);
    cluster.plan(Opcode::DropTable, Fault::DelayReply, 1);
    let create = async {
        cluster.at(SECOND, |_| {}).await;
        client.create_table("t", None).await
    };
    let (dropped, new) = cluster.run(join(client.drop_table("t"), create));
    dropped.unwrap();
    // The second one finds no table, the third one waits until no server has one of the name.
    assert_eq!(cluster.count_sent(Opcode::DropTable), 3);
    let new = new.unwrap();
    assert_ne!(new.id(), old.id());
    let found = cluster.run(client.table("t")).unwrap();
    assert_eq!(found.id(), new.id());
}

#[test]
fn a_table_of_the_redis_port_has_slots_whoever_makes_it() {
    let (cluster, client, table) = cluster(1);
    assert_eq!(table.hash_kind(), HashKind::Seeded);
    for (name, kind) in [
        ("redis:0", HashKind::Slots),
        ("redis:15", HashKind::Slots),
        ("redis:", HashKind::Seeded),
        ("redis:x", HashKind::Seeded),
    ] {
        let table = cluster.run(client.create_table(name, None)).unwrap();
        assert_eq!(table.hash_kind(), kind, "{name}");
    }
}

#[test]
fn enumeration_gives_each_object_once_while_tablets_split_move_and_crash() {
    for kind in [HashKind::Seeded, HashKind::Slots] {
        enumerate_while_tablets_split_move_and_crash(kind);
    }
}

fn enumerate_while_tablets_split_move_and_crash(kind: HashKind) {
    let (cluster, client, _) = cluster(3);
    let made = client.create_table_hashed("enumerated", None, kind);
    let table = cluster.run(made).unwrap();
    let keys: Vec<_> = (0..500u32)
        .map(|n| format!("{n:03}").into_bytes())
        .collect();
    cluster.run(async {
        for key in &keys {
            client.write(&table, key, value("v")).await.unwrap();
        }
        let mut seen = Vec::new();
        let mut objects = client.enumerate(&table).batch_items(7);
        let mut round = 0u64;
        while let Some(batch) = objects.next_batch().await.unwrap() {
            assert!(!batch.is_empty() && batch.len() <= 7);
            assert!(batch.iter().all(|object| object.value == value("v")));
            seen.extend(batch.into_iter().map(|object| object.key));
            round += 1;
            match round {
                5 => drop(
                    client
                        .split_tablet(&table, Some(KeyHash(u64::MAX / 5)))
                        .await
                        .unwrap(),
                ),
                9 => cluster.recover(ServerId(2), ServerId(3)),
                15 => {
                    cluster.crash(ServerId(3));
                    cluster.recover(ServerId(3), ServerId(1));
                }
                _ => {}
            }
            if round.is_multiple_of(4) {
                let cursor = objects.cursor().unwrap();
                objects = client.enumerate_from(&table, cursor).batch_items(7);
            }
        }
        seen.sort();
        assert_eq!(seen, keys);
        assert_eq!(objects.cursor(), None);
        assert_eq!(objects.next_batch().await, Ok(None));
        assert_eq!(client.count(&table).await.unwrap().objects, 500);
    });
}

#[test]
fn what_has_moved_away_from_a_server_that_has_more_of_the_table_is_counted() {
    let (cluster, client, _) = cluster(2);
    cluster.run(async {
        let table = client.create_table("one server", Some(1)).await.unwrap();
        let middle = KeyHash(1 << 63);
        client.split_tablet(&table, Some(middle)).await.unwrap();
        for n in 0..100u8 {
            client.write(&table, &[n], value("v")).await.unwrap();
        }
        assert_eq!(client.count(&table).await.unwrap().objects, 100);
        cluster.move_tablet(table.id(), middle, ServerId(2));
        assert_eq!(client.count(&table).await.unwrap().objects, 100);
    });
}

#[test]
fn enumeration_can_go_on_after_an_error_and_without_values() {
    let (cluster, client, table) = cluster(1);
    cluster.run(async {
        client.write(&table, b"k", value("v")).await.unwrap();
        let mut objects = client.enumerate(&table).keys_only();
        let refusal = Refusal::fatal(FatalKind::Other, "a bad day");
        cluster.plan(Opcode::Enumerate, Fault::Refuse(refusal), 1);
        assert!(objects.next_batch().await.is_err());
        let batch = objects.next_batch().await.unwrap().unwrap();
        assert_eq!(batch[0].key, b"k");
        assert!(batch[0].value.is_empty());
    });
}

// shows: CLIENT-4
#[test]
fn local_operations_are_done_in_one_poll_without_a_message() {
    let cluster = FakeCluster::new(2);
    let local = cluster.local_master(ServerId(1));
    let client = Client::embedded(cluster.parts(), cluster.options(), local);
    let table = cluster.run(client.create_table("t", None)).unwrap();
    let (here, there) = (key_of(&table, ServerId(1)), key_of(&table, ServerId(2)));
    let messages = cluster.sent().len();
    let mut context = Context::from_waker(Waker::noop());
    let mut write = pin!(client.write(&table, &here, value("v")));
    assert!(matches!(
        write.as_mut().poll(&mut context),
        Poll::Ready(Ok(_))
    ));
    let mut read = pin!(client.read(&table, &here));
    assert!(matches!(
        read.as_mut().poll(&mut context),
        Poll::Ready(Ok(Some(_)))
    ));
    assert_eq!(cluster.sent().len(), messages);
    // The other server's keys, and those that move away, go over the network.
    cluster
        .run(client.write(&table, &there, value("v")))
        .unwrap();
    cluster.recover(ServerId(1), ServerId(2));
    let object = cluster.run(client.read(&table, &here)).unwrap().unwrap();
    assert_eq!(object.value, value("v"));
    assert_eq!(cluster.count_sent(Opcode::Get), 1);
    assert_eq!(cluster.run(client.count(&table)).unwrap().objects, 2);
}

#[test]
fn local_answers_that_come_later_are_waited_for_until_the_limit() {
    let cluster = FakeCluster::new(1);
    let local = cluster.local_master(ServerId(1));
    let client = Client::embedded(cluster.parts(), cluster.options(), local);
    let table = cluster.run(client.create_table("t", None)).unwrap();
    cluster.set_local_waits(Some(SECOND));
    cluster.run(client.write(&table, b"k", value("v"))).unwrap();
    assert_eq!(cluster.now(), SECOND);
    cluster.set_local_waits(Some(60 * SECOND));
    let error = cluster
        .run(client.write(&table, b"k", value("w")))
        .unwrap_err();
    assert!(error.maybe_executed());
    let error = cluster.run(client.read(&table, b"k")).unwrap_err();
    assert!(!error.maybe_executed());
    assert_eq!(cluster.now(), 21 * SECOND);
}

#[test]
fn blocking_calls_do_the_same() {
    let cluster = FakeCluster::new(3);
    let client = blocking::Client::new(cluster.client(), cluster.clone());
    let table = client.create_table("t", None).unwrap();
    let keys: Vec<_> = (0..20u8)
        .map(|n| blocking::Key::new(&table, vec![n]))
        .collect();
    let objects = keys.iter().map(|k| (k.clone(), Bytes::from(k.key.clone())));
    let written = client.multi_write(objects.collect());
    assert!(written.iter().all(Result::is_ok));
    let read = client.multi_read(keys.clone());
    for (key, object) in keys.iter().zip(read) {
        assert_eq!(object.unwrap().unwrap().value, key.key);
    }
    client.increment(&table, b"n", Number::Integer(2)).unwrap();
    assert_eq!(
        client.read(&table, b"n").unwrap().unwrap().value,
        value("2")
    );
    assert_eq!(client.enumerate(&table).filter_map(Result::ok).count(), 21);
    assert!(client.multi_delete(keys).iter().all(Result::is_ok));
    assert_eq!(client.count(&table).unwrap().objects, 1);
    client.drop_table("t").unwrap();
}

#[test]
fn a_client_in_a_server_does_not_follow_the_coordinator_of_another_cluster() {
    let (cluster, _, _) = cluster(1);
    let local = cluster.local_master(ServerId(1));
    let client = Client::embedded(cluster.parts(), cluster.options(), local);
    let guest = Client::new(cluster.parts(), cluster.options());
    cluster.run(async {
        let table = client.table("t").await.unwrap();
        client.write(&table, b"k", value("v")).await.unwrap();
        cluster.replace_coordinator(true);
        assert_eq!(guest.list_tables().await.unwrap(), [], "it is there");
        let error = client.list_tables().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(error.to_string().contains("another cluster"), "{error}");
        let read = client.read(&table, b"k").await.unwrap();
        assert_eq!(read.unwrap().value, value("v"));
        cluster.replace_coordinator(false);
        assert_eq!(client.list_tables().await.unwrap().len(), 1);
    });
}
