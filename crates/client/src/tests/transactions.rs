//! Transactions of one owner, and of several.

use super::{cluster, key_of};
use crate::testing::Fault;
use crate::{
    Addend, Change, Client, ClientError, Commit, Doubt, ErrorKind, FatalKind, Get, Mutation,
    Number, Opcode, Operation, Output, RetryReason, Table, Transacted, TransactionStep,
};
use bytes::Bytes;
use core::time::Duration;
use futures_util::future::{BoxFuture, join_all};
use pluvio_env::{Tasks, timeout};
use pluvio_units::{CoreId, ObjectVersion, ServerId};
use pluvio_wire::Refusal;

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

fn text(table: &Table, key: &[u8], client: &Client) -> impl Future<Output = Option<String>> {
    let (table, key, client) = (table.clone(), key.to_vec(), client.clone());
    async move {
        let object = client.read(&table, &key).await.unwrap();
        object.map(|object| String::from_utf8(object.value.to_vec()).unwrap())
    }
}

// shows: SEVERAL-1, SEVERAL-2
#[test]
fn steps_of_several_servers_are_all_done_or_none_is() {
    let (cluster, client, table) = cluster(3);
    let keys = [1, 2, 3].map(|server| key_of(&table, ServerId(server)));
    cluster.run(async {
        let all: Vec<_> = keys.iter().chain(&keys).collect();
        let steps: Vec<_> = all.iter().map(|key| add(&table, key, 2)).collect();
        let sums = outputs(client.transact(&steps).await.unwrap());
        let expected = [2, 2, 2, 4, 4, 4].map(Output::Integer);
        assert_eq!(sums, expected, "in the order of the steps");
        let sent = cluster.sent();
        let last = sent.iter().rev().take(2).collect::<Vec<_>>();
        assert!(last.iter().all(|sent| sent.opcode == Opcode::Release));
        // That of the first server has the home key.
        assert_eq!(&*last[0].to.0, "server-1");
        let version = client
            .read(&table, &keys[2])
            .await
            .unwrap()
            .unwrap()
            .version;
        let other = TransactionStep::version_is(table.id(), &keys[2], version.next());
        let steps = [
            add(&table, &keys[0], 1),
            add(&table, &keys[1], 1),
            (&table, other),
        ];
        let Transacted::Refused { step, .. } = client.transact(&steps).await.unwrap() else {
            panic!("a step that must hold did not");
        };
        assert_eq!(step, 2);
        for key in &keys {
            assert_eq!(text(&table, key, &client).await.as_deref(), Some("4"));
        }
        let many: Vec<_> = (0..5000).map(|_| add(&table, &keys[0], 1)).collect();
        let error = client.transact(&many).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadArgument);
    });
}

#[test]
fn lost_messages_of_several_servers_do_nothing_twice() {
    let (cluster, client, table) = cluster(3);
    let keys = [1, 2, 3].map(|server| key_of(&table, ServerId(server)));
    let opcodes = [Opcode::Transact, Opcode::Decide, Opcode::Release];
    let faults = [Fault::LoseReply, Fault::LoseRequest, Fault::DelayReply];
    cluster.run(async {
        let mut expected = 0;
        for opcode in opcodes {
            for fault in &faults {
                for times in 1..4 {
                    cluster.plan(opcode, fault.clone(), times);
                    let steps = keys.each_ref().map(|key| add(&table, key, 1));
                    expected += 1;
                    let sums = outputs(client.transact(&steps).await.unwrap());
                    assert_eq!(
                        sums,
                        [expected; 3].map(Output::Integer),
                        "{opcode:?} {fault:?}"
                    );
                }
            }
        }
    });
}

#[test]
fn keys_of_tables_that_have_moved_are_found() {
    let (cluster, client, one) = cluster(3);
    cluster.run(async {
        let other = client.create_table("other", None).await.unwrap();
        let first = key_of(&one, ServerId(1));
        // It comes from the server of the first, or goes there.
        for (from, to) in [(1, 3), (2, 1)] {
            let second = key_of(&other, ServerId(from));
            let hash = other.hash(&second);
            cluster.move_tablet(other.id(), hash, ServerId(to));
            let begun = cluster.now();
            let steps = [add(&one, &first, 1), add(&other, &second, 1)];
            outputs(client.transact(&steps).await.unwrap());
            assert!(cluster.now() - begun < core::time::Duration::from_secs(1));
            assert_eq!(text(&other, &second, &client).await.as_deref(), Some("1"));
        }
        assert_eq!(text(&one, &first, &client).await.as_deref(), Some("2"));
        assert_eq!(cluster.locked(), None);
    });
}

#[test]
fn keys_that_move_apart_after_a_lost_message_are_found() {
    let (cluster, client, table) = cluster(3);
    let keys = [1, 2, 3].map(|server| key_of(&table, ServerId(server)));
    let steps = keys.each_ref().map(|key| add(&table, key, 1));
    let third = table.hash(&keys[2]);
    cluster.run(async {
        cluster.move_tablet(table.id(), third, ServerId(2));
        outputs(client.transact(&steps).await.unwrap());
        // The client learns of it when the second server has not answered.
        cluster.move_tablet(table.id(), third, ServerId(3));
        cluster.plan_at(ServerId(2), Opcode::Transact, Fault::LoseRequest, 1);
        let sums = outputs(client.transact(&steps).await.unwrap());
        assert_eq!(sums, [2; 3].map(Output::Integer));
        assert_eq!(cluster.locked(), None);
    });
}

// shows: SEVERAL-3
#[test]
fn transactions_that_meet_on_several_servers_all_end() {
    let (cluster, client, table) = cluster(3);
    cluster.set_latency(core::time::Duration::from_micros(100));
    let keys = [1, 2, 3].map(|server| key_of(&table, ServerId(server)));
    cluster.run(async {
        let turns = (0..30).map(|n| {
            let (client, table, keys) = (&client, &table, &keys);
            async move {
                let (one, other) = (&keys[n % 3], &keys[(n + 1) % 3]);
                let steps = [add(table, one, 1), add(table, other, -1)];
                outputs(client.transact(&steps).await.unwrap());
            }
        });
        join_all(turns).await;
        for key in &keys {
            assert_eq!(text(&table, key, &client).await.as_deref(), Some("0"));
        }
    });
}

// shows: SEVERAL-4
#[test]
fn a_full_server_is_told_soon_and_holds_up_nobody() {
    let second = Duration::from_secs(1);
    let full = Refusal::retry(Duration::from_millis(20), RetryReason::MemoryFull);
    let refuses = Fault::Refuse(full);
    // The first has the home key, with which the decision is kept.
    for (server, home_is_full) in [(1, false), (1, true), (2, false), (2, true)] {
        let (cluster, _, table) = cluster(2);
        cluster.set_latency(Duration::from_micros(100));
        let options = cluster.options().full_timeout(second);
        let client = Client::new(cluster.parts(), options);
        let keys = [1, 2].map(|server| key_of(&table, ServerId(server)));
        let steps = keys.each_ref().map(|key| add(&table, key, 1));
        cluster.run(async {
            // It has room again before the time is up.
            cluster.plan_at(ServerId(server), Opcode::Transact, refuses.clone(), 4);
            outputs(client.transact(&steps).await.unwrap());
            assert!(cluster.now() < second / 2, "{:?}", cluster.now());

            cluster.plan_at(
                ServerId(server),
                Opcode::Transact,
                refuses.clone(),
                u32::MAX,
            );
            if home_is_full {
                cluster.plan_at(ServerId(1), Opcode::Decide, refuses.clone(), u32::MAX);
            }
            let begun = cluster.now();
            let client_2 = Client::new(cluster.parts(), cluster.options());
            let other = async {
                // Others get the key of the server that has room.
                let key = &keys[2 - server as usize];
                for _ in 0..20 {
                    let asked = cluster.now();
                    let steps = [add(&table, key, 1)];
                    outputs(client_2.transact(&steps).await.unwrap());
                    let took = cluster.now() - asked;
                    assert!(took < second / 10, "{took:?}");
                    cluster.parts().clock.sleep(second / 100).await;
                }
            };
            let both = futures_util::future::join(client.transact(&steps), async {
                match home_is_full {
                    // Nothing can be decided there.
                    true => {}
                    false => other.await,
                }
            });
            let (transacted, ()) = both.await;
            let error = transacted.unwrap_err();
            assert_eq!(error.retry_reason(), Some(RetryReason::MemoryFull));
            assert!(!error.maybe_executed(), "{error}");
            let took = cluster.now() - begun;
            let range = second / 2..2 * second;
            assert!(
                range.contains(&took),
                "{server} {home_is_full}: {took:?} {error}"
            );
        });
    }
}

// shows: SEVERAL-1
#[test]
fn a_vote_that_is_not_heard_may_be_yes_also_in_this_process() {
    for local_waits in [false, true] {
        let (cluster, _, table) = cluster(2);
        let keys = [1, 2].map(|server| key_of(&table, ServerId(server)));
        let steps = keys.each_ref().map(|key| add(&table, key, 1));
        let local = cluster.local_master(ServerId(2));
        let client = Client::embedded(cluster.parts(), cluster.options(), local);
        // The vote of this process is there, and not durable for long. The home key's server has
        // voted, and is not heard of again.
        cluster.set_local_waits(local_waits.then_some(Duration::from_secs(60)));
        cluster.plan_at(ServerId(1), Opcode::Decide, Fault::LoseRequest, u32::MAX);
        cluster.run(async {
            let transacted = client.transact(&steps).await;
            let (of, home) = cluster.locked().expect("its keys are locked");
            cluster.set_local_waits(None);
            cluster.forget_plans();
            let doubt = Doubt {
                client: of,
                home,
                keys: keys
                    .each_ref()
                    .map(|key| (table.id(), table.hash(key)))
                    .into(),
            };
            let decided = client.resolve(&doubt).await.unwrap();
            match transacted {
                Ok(_) => assert_eq!(decided, Some(true)),
                Err(error) => assert!(decided != Some(true) || error.maybe_executed(), "{error}"),
            }
        });
    }
}

// shows: SEVERAL-5
#[test]
fn a_caller_that_goes_away_leaves_no_key_locked() {
    let (cluster, _, table) = cluster(2);
    let client = Client::new(cluster.parts_with_memory(), cluster.options());
    cluster.set_latency(Duration::from_micros(100));
    let keys = [1, 2].map(|server| key_of(&table, ServerId(server)));
    let steps = keys.each_ref().map(|key| add(&table, key, 1));
    let clock = cluster.parts().clock;
    cluster.run(async {
        for patience_us in (50..1500).step_by(50) {
            let patience = Duration::from_micros(patience_us);
            let done = timeout(&*clock, patience, client.transact(&steps)).await;
            clock.sleep(Duration::from_millis(5)).await;
            assert_eq!(cluster.locked(), None, "after {patience:?}");
            let [one, other] = [
                text(&table, &keys[0], &client).await,
                text(&table, &keys[1], &client).await,
            ];
            assert_eq!(one, other, "after {patience:?}");
            if let Ok(done) = done {
                let sums = outputs(done.unwrap());
                let sum = one.unwrap().parse().unwrap();
                assert_eq!(sums, [sum, sum].map(Output::Integer));
            }
        }
    });
}

// shows: SEVERAL-4
#[test]
fn owners_that_lock_nothing_at_the_moment_hold_up_nobody() {
    let reasons = [
        RetryReason::Busy,
        RetryReason::NoSpace,
        RetryReason::TooFewBackups,
        RetryReason::InProgress,
        RetryReason::TabletNotReady,
    ];
    for why in reasons {
        let (cluster, client, table) = cluster(2);
        cluster.set_latency(Duration::from_micros(100));
        let keys = [1, 2].map(|server| key_of(&table, ServerId(server)));
        let steps = keys.each_ref().map(|key| add(&table, key, 1));
        let refuses = Fault::Refuse(Refusal::retry(Duration::from_millis(10), why));
        cluster.plan_at(ServerId(2), Opcode::Transact, refuses, 8);
        let clock = cluster.parts().clock;
        cluster.run(async {
            let other = async {
                for _ in 0..50 {
                    let asked = cluster.now();
                    client
                        .increment(&table, &keys[0], Number::Integer(1))
                        .await
                        .unwrap();
                    let took = cluster.now() - asked;
                    assert!(took < Duration::from_millis(50), "{why:?}: {took:?}");
                    clock.sleep(Duration::from_millis(5)).await;
                }
            };
            let (transacted, ()) = futures_util::future::join(client.transact(&steps), other).await;
            outputs(transacted.unwrap());
        });
    }
}

#[test]
fn servers_go_on_with_what_a_dead_client_has_begun() {
    let (cluster, client, table) = cluster(2);
    let keys = [1, 2].map(|server| key_of(&table, ServerId(server)));
    let places = keys.each_ref().map(|key| (table.id(), table.hash(key)));
    for lost in [None, Some(0), Some(1)] {
        cluster.run(async {
            // Its messages after the votes are lost, and perhaps one that asks for a vote.
            let before = text(&table, &keys[0], &client).await;
            let own = Client::new(cluster.parts(), cluster.options());
            let steps = keys.each_ref().map(|key| add(&table, key, 1));
            if let Some(lost) = lost {
                let refusal = Refusal::fatal(FatalKind::Other, "gone");
                if lost == 1 {
                    let none = Refusal::retry(core::time::Duration::ZERO, RetryReason::Busy);
                    cluster.plan(Opcode::Transact, Fault::Refuse(none), 1);
                }
                cluster.plan(Opcode::Transact, Fault::Refuse(refusal), 1);
            }
            cluster.plan(
                Opcode::Decide,
                Fault::Refuse(Refusal::fatal(FatalKind::Other, "gone")),
                1,
            );
            let result = own.transact(&steps).await;
            assert_eq!(result.is_ok(), lost.is_none());
            let (client_id, home) = cluster.locked().expect("a key is locked");
            let doubt = Doubt {
                client: client_id,
                home,
                keys: places.to_vec(),
            };
            let decided = client.resolve(&doubt).await.unwrap();
            assert_eq!(decided, Some(lost.is_none()));
            assert_eq!(cluster.locked(), None);
            let after = text(&table, &keys[0], &client).await;
            assert_eq!(after, text(&table, &keys[1], &client).await);
            assert_eq!(before == after, lost.is_some());
        });
    }
}

#[test]
fn a_commit_depends_on_what_was_read() {
    let (cluster, client, table) = cluster(1);
    cluster.run(async {
        let transaction = client.transaction();
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

#[test]
fn a_transaction_runs_in_a_task() {
    let (cluster, client, table) = cluster(2);
    cluster.run(async {
        let mut counts = Vec::new();
        for _ in 0..10 {
            let (client, table) = (client.clone(), table.clone());
            let (done, count) = tokio::sync::oneshot::channel();
            // As those who spawn tasks want it: `Send` and `'static`.
            let task: BoxFuture<'static, ()> = Box::pin(async move {
                let key = "n".to_owned();
                let result = client.transactionally(async |transaction| {
                    let before = transaction.get(&table, key.as_bytes()).await?;
                    let count = before.map_or(0, |text| text.len()) + 1;
                    transaction.put(&table, key.as_bytes(), vec![b'n'; count]);
                    Ok(count)
                });
                done.send(result.await).expect("somebody waits for it");
            });
            // Dropping the handle leaves it running.
            drop(cluster.spawn_on(CoreId(0), "transaction", task));
            counts.push(count);
        }
        let mut counts: Vec<_> = join_all(counts).await.into_iter().flatten().collect();
        counts.sort_unstable_by_key(|count| count.clone().unwrap_or(0));
        assert_eq!(counts, (1..=10).map(Ok).collect::<Vec<_>>());
    });
}

#[test]
fn a_body_neither_commits_nor_keeps_its_transaction() {
    let (cluster, client, table) = cluster(1);
    cluster.run(async {
        let commits = client.transactionally(async |transaction| {
            transaction.put(&table, b"k", "v");
            transaction.commit().await
        });
        let refused = commits.await.unwrap_err();
        assert_eq!(refused.fatal_kind(), Some(FatalKind::Unsupported));
        let kept = core::cell::RefCell::new(None);
        let keeps = client.transactionally(async |transaction| {
            transaction.put(&table, b"k", "v");
            drop(kept.replace(Some(transaction)));
            Ok(())
        });
        let refused = keeps.await.unwrap_err();
        assert_eq!(refused.fatal_kind(), Some(FatalKind::Unsupported));
        assert_eq!(text(&table, b"k", &client).await, None);
    });
}

#[test]
fn a_transaction_reads_several_objects_at_once() {
    let (cluster, client, table) = cluster(2);
    cluster.run(async {
        client.write(&table, b"a", Bytes::from("1")).await.unwrap();
        let both = client.transactionally(async |transaction| {
            let keys = [b"a", b"b", b"a"];
            let reads = keys.map(|key| transaction.get(&table, key));
            transaction.put(&table, b"b", "2");
            join_all(reads)
                .await
                .into_iter()
                .collect::<Result<Vec<_>, _>>()
        });
        let one = Some(Bytes::from("1"));
        let two = Some(Bytes::from("2"));
        assert_eq!(both.await, Ok(vec![one.clone(), two, one]));
    });
}

#[test]
fn reads_before_a_decision_are_of_one_moment_a_server() {
    let (cluster, client, table) = cluster(3);
    let keys = [1, 2, 3].map(|server| key_of(&table, ServerId(server)));
    let get = |at: usize| (&table, Get::new(table.id(), &keys[at]));
    cluster.run(async {
        for (at, key) in keys.iter().enumerate() {
            let done = client.transact(&[add(&table, key, at as i64)]).await;
            assert!(matches!(done, Ok(Transacted::Committed(_))));
        }
        for keep in [false, true] {
            let gets = [get(2), get(0), get(2), get(1)];
            let read = client.read_first(&gets, keep).await.unwrap();
            let outcomes = read.outcomes.into_iter().map(|o| o.into_output());
            let expected = ["2", "0", "2", "1"].map(|n| Output::Bytes(n.into()));
            assert_eq!(outcomes.collect::<Vec<_>>(), expected);
            assert_eq!(read.moments, 3);
            let read = client.read_first(&[get(1), get(1)], keep).await.unwrap();
            assert_eq!((read.outcomes.len(), read.moments), (2, 1));
        }
        let read = client.read_first(&[], true).await.unwrap();
        assert_eq!((read.outcomes.len(), read.moments), (0, 0));
        // No lock is left, nor was there one.
        assert_eq!(text(&table, &keys[1], &client).await.as_deref(), Some("1"));
    });
}
