//! Batches: the same outcomes as one mutation after the other, in as few groups as can be.

use crate::ops;
use crate::support::{Replicas, entries_of};
use core::ops::ControlFlow;
use core::time::Duration;
use pluvio_log::{Awaited, Durability, LogOptions};
use pluvio_mutation::{Change, Mutation, Operation, Outcome, RejectRules, TransactionStep};
use pluvio_store::{
    Admission, Applied, Engine, EngineError, EngineOptions, EngineTable, Execution, Item, Replay,
    Site, StepAt,
};
use pluvio_units::{
    ClientId, HashRange, LogId, LogPosition, ObjectVersion, OperationId, SequenceNumber, Size,
    TableId,
};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::{Arc, Barrier};

type Applieds = Vec<Result<Awaited<Applied>, EngineError>>;

fn open(durability: Durability, logs: u16) -> (Arc<Engine>, Arc<EngineTable>) {
    open_kind(durability, logs, false)
}

fn open_kind(durability: Durability, logs: u16, in_place: bool) -> (Arc<Engine>, Arc<EngineTable>) {
    let log = LogOptions {
        durability,
        logs,
        in_place,
        ..LogOptions::new(Size::mib(64))
    };
    let store = Engine::open(EngineOptions { log }).unwrap();
    let table = store.table(TableId(1), 7, HashRange::ALL).unwrap();
    (store, table)
}

fn put<'k>(table: &EngineTable, key: &'k [u8], value: &'k [u8]) -> Mutation<'k> {
    Mutation::new(table.id(), key, Change::Put(value.into()))
}

fn put_version<'k>(table: &EngineTable, key: &'k [u8], version: u64) -> Mutation<'k> {
    let change = Change::PutVersion {
        value: key.into(),
        version: ObjectVersion(version),
    };
    Mutation::new(table.id(), key, change)
}

/// The ways of a mutation: alone, in a batch, in a transaction.
const WAYS: [fn(&Engine, &EngineTable, &Mutation<'_>); 3] = [
    |store, table, mutation| {
        let _pending = ops::apply(store, LogId(0), mutation, table, None).unwrap();
    },
    |store, table, mutation| {
        let other = put(table, b"beside", b"x");
        let both = [*mutation, other];
        let applied = apply_all(store, &mut items(table, LogId(0), &both, |_| None));
        assert!(applied.iter().all(Result::is_ok));
    },
    |store, table, mutation| {
        let steps = [step(table, mutation)];
        let done = store.transact((LogId(0), 1), &steps, None).unwrap();
        let outcome = done.outcome.into_pending();
        assert!(matches!(outcome, Outcome::Together { committed, .. } if committed));
    },
];

// shows: STORE-1
#[test]
fn an_object_gets_the_version_that_it_brings_or_the_next_one() {
    let kinds = [
        (Durability::Replicated, false),
        (Durability::Volatile, false),
        (Durability::Volatile, true),
    ];
    for (durability, in_place) in kinds {
        for way in WAYS {
            let (store, table) = open_kind(durability, 1, in_place);
            let version = |key: &[u8]| ops::read(&store, &table, key).unwrap().0.0;
            for (wanted, given) in [(50, 50), (50, 51), (7, 52), (90, 90)] {
                way(&store, &table, &put_version(&table, b"k", wanted));
                assert_eq!(version(b"k"), given);
            }
            // The one before does not keep others from theirs.
            way(&store, &table, &put_version(&table, b"other", 3));
            assert_eq!(version(b"other"), 3);
            let _deleted = ops::delete(&store, &table, LogId(0), b"k").unwrap();
            way(&store, &table, &put_version(&table, b"late", 4));
            assert_eq!(version(b"late"), 91);
            way(&store, &table, &put_version(&table, b"k", 60));
            assert_eq!(version(b"k"), 91);
        }
    }
}

/// No head was opened since, which would tell the safe version, too.
// shows: STORE-6
#[test]
fn a_version_that_a_transaction_told_is_given_to_no_object_after_a_crash() {
    for (has_identity, beside) in [(false, false), (true, false), (false, true), (true, true)] {
        let (store, table) = open(Durability::Replicated, 1);
        let mut replicas = Replicas::default();
        let delete = Mutation::new(table.id(), b"k", Change::Delete);
        let steps = [
            Some(put_version(&table, b"k", 1000)),
            Some(delete),
            beside.then(|| put(&table, b"beside", b"x")),
        ];
        let steps: Vec<_> = steps.iter().flatten().map(|m| step(&table, m)).collect();
        let execution = has_identity.then(|| match execution(&store, &table, 1, b"k") {
            Admission::Execute(execution) => execution,
            _ => panic!("it is new"),
        });
        let done = store.transact((LogId(0), 1), &steps, execution).unwrap();
        assert!(
            matches!(done.outcome, Awaited::Later(_)),
            "it waits for replicas"
        );
        assert_eq!(ops::read(&store, &table, b"k"), None);
        replicas.sync(&store);
        let (after, table) = open(Durability::Replicated, 1);
        let tablets = vec![(Arc::clone(&table), HashRange::ALL)];
        let mut replay = Replay::new(&after, LogId(0), tablets).unwrap();
        for image in replicas.recoverable() {
            let entries = entries_of(&image);
            replay.replay(&entries, Duration::from_secs(1)).unwrap();
        }
        let (side, _) = replay.finish();
        Replicas::default().sync(&after);
        let _ = side.commit().expect("the side log is durable");
        assert_eq!(after.space().safe_version(), ObjectVersion(1001));
        assert_eq!(ops::read(&after, &table, b"beside").is_some(), beside);
        if has_identity {
            let again = self::execution(&after, &table, 1, b"k");
            assert!(matches!(again, Admission::Answer(_)));
        }
    }
}

fn step<'s>(table: &'s EngineTable, mutation: &Mutation<'s>) -> StepAt<'s> {
    StepAt {
        table,
        hash: table.hash(mutation.key),
        step: TransactionStep::must_hold(Operation::Mutate(*mutation)),
    }
}

fn items<'i>(
    table: &'i EngineTable,
    log: LogId,
    mutations: &'i [Mutation<'i>],
    mut execution: impl FnMut(usize) -> Option<Execution>,
) -> Vec<Item<'i>> {
    let item = |(at, mutation): (usize, &'i Mutation<'i>)| Item {
        site: Site {
            log,
            table,
            hash: table.hash(mutation.key),
            now_s: 1,
            only_this_log: false,
        },
        mutation,
        execution: execution(at),
    };
    mutations.iter().enumerate().map(item).collect()
}

fn apply_all(store: &Engine, items: &mut [Item<'_>]) -> Applieds {
    let mut all = Vec::new();
    let done = store.apply_batch(items, |applied| {
        all.push(applied);
        ControlFlow::Continue(())
    });
    assert_eq!(done, all.len());
    all
}

/// Where the groups of a batch end.
fn groups(applied: &Applieds) -> BTreeSet<LogPosition> {
    let ends = applied.iter().filter_map(|applied| match applied {
        Ok(Awaited::Later(appended)) => Some(appended.position()),
        Ok(Awaited::Now(_)) | Err(_) => None,
    });
    ends.collect()
}

fn outcomes(applied: &Applieds) -> Vec<Result<Outcome, EngineError>> {
    let outcome = |applied: &Result<Awaited<Applied>, EngineError>| match applied {
        Ok(applied) => Ok(applied.pending().outcome().clone()),
        Err(error) => Err(error.clone()),
    };
    applied.iter().map(outcome).collect()
}

fn execution(store: &Engine, table: &EngineTable, sequence: u64, key: &[u8]) -> Admission {
    let id = OperationId {
        client: ClientId(9),
        sequence: SequenceNumber(sequence),
        acknowledged_below: SequenceNumber(1),
        retry_ms: 10_000,
    };
    store.admit(id, (table.id(), table.hash(key)), Duration::from_secs(1))
}

#[test]
fn puts_of_a_batch_share_a_group_with_their_records() {
    let (store, table) = open(Durability::Replicated, 1);
    // So many that hardly two keys of the batch lie in one bucket.
    for key in 100..50_000_u64 {
        let _pending = ops::put(&store, &table, LogId(0), &key.to_le_bytes(), b"x").unwrap();
    }
    let keys: Vec<_> = (0..16_u64).map(u64::to_le_bytes).collect();
    for round in 1..=2 {
        let mutations: Vec<_> = keys.iter().map(|key| put(&table, key, b"value")).collect();
        let first = round * 100;
        let mut batch = items(&table, LogId(0), &mutations, |at| {
            match execution(&store, &table, first + at as u64, &keys[at]) {
                Admission::Execute(execution) => Some(execution),
                _ => panic!("it is new"),
            }
        });
        let applied = apply_all(&store, &mut batch);
        assert_eq!(applied.len(), 16);
        let groups = groups(&applied);
        assert!(groups.len() <= 4, "{} groups", groups.len());
        for (at, key) in keys.iter().enumerate() {
            let (version, value) = ops::read(&store, &table, key).unwrap();
            assert_eq!((version.0, &value[..]), (round, &b"value"[..]));
            match execution(&store, &table, first + at as u64, key) {
                Admission::Answer(Awaited::Later(outcome)) => {
                    assert_eq!(Ok(outcome.pending().clone()), outcomes(&applied)[at]);
                }
                _ => panic!("what is in the log and not durable answers its retry"),
            }
        }
    }
}

#[test]
fn a_key_that_comes_twice_is_changed_twice() {
    let (store, table) = open(Durability::Replicated, 1);
    let keys: [&[u8]; 4] = [b"a", b"b", b"a", b"a"];
    let mutations: Vec<_> = keys.iter().map(|key| put(&table, key, key)).collect();
    let applied = apply_all(&store, &mut items(&table, LogId(0), &mutations, |_| None));
    let version = |a: &Result<Awaited<Applied>, EngineError>| ops::written(a.as_ref().unwrap()).0;
    let versions: Vec<_> = applied.iter().map(version).collect();
    assert_eq!(versions, [1, 1, 2, 3]);
}

#[test]
fn nothing_is_executed_behind_a_break() {
    let (store, table) = open(Durability::Replicated, 1);
    let rules = RejectRules {
        does_not_exist: true,
        ..RejectRules::default()
    };
    let refused = Mutation {
        rules,
        ..put(&table, b"no", b"x")
    };
    let mutations = [
        put(&table, b"a", b"x"),
        refused,
        put(&table, b"b", b"x"),
        put(&table, b"c", b"x"),
    ];
    let mut seen = 0;
    let done = store.apply_batch(
        &mut items(&table, LogId(0), &mutations, |_| None),
        |applied| {
            seen += 1;
            match applied.unwrap().pending().outcome() {
                Outcome::Written { .. } => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        },
    );
    assert_eq!((done, seen), (2, 2));
    assert!(ops::read(&store, &table, b"a").is_some());
    assert!(ops::read(&store, &table, b"b").is_none());
}

#[test]
fn a_key_that_is_pending_in_another_log_stays_there() {
    let (store, table) = open(Durability::Replicated, 2);
    let _elsewhere = ops::put(&store, &table, LogId(1), b"b", b"x").unwrap();
    let keys: [&[u8]; 3] = [b"a", b"b", b"c"];
    let mutations: Vec<_> = keys.iter().map(|key| put(&table, key, b"y")).collect();
    let applied = apply_all(&store, &mut items(&table, LogId(0), &mutations, |_| None));
    let logs: Vec<_> = applied
        .iter()
        .map(|applied| match applied.as_ref().unwrap() {
            Awaited::Later(appended) => appended.log().0,
            Awaited::Now(_) => panic!("nothing is durable"),
        })
        .collect();
    assert_eq!(logs, [0, 1, 0], "shows: STORE-5");
}

#[test]
fn a_batch_without_room_is_refused_item_by_item() {
    let (store, table) = open(Durability::Replicated, 1);
    let value = vec![7; 60_000];
    let mut refused = 0;
    for batch in 0..200_u64 {
        let keys: Vec<_> = (0..16).map(|at| (batch * 16 + at).to_le_bytes()).collect();
        let mutations: Vec<_> = keys.iter().map(|key| put(&table, key, &value)).collect();
        let applied = apply_all(&store, &mut items(&table, LogId(0), &mutations, |_| None));
        assert_eq!(applied.len(), 16);
        for (applied, key) in applied.iter().zip(&keys) {
            match applied {
                Ok(_) => assert!(ops::read(&store, &table, key).is_some()),
                Err(EngineError::Full { .. }) => {
                    refused += 1;
                    assert!(ops::read(&store, &table, key).is_none());
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
    assert!(refused > 0, "64 MiB hold no 190 MB");
}

#[test]
fn batches_of_the_same_keys_in_other_orders_do_not_wait_for_each_other_for_ever() {
    let (store, table) = open(Durability::Replicated, 2);
    let keys: Vec<_> = (0..16_u64).map(u64::to_le_bytes).collect();
    let start = Barrier::new(2);
    let rounds = 2_000;
    std::thread::scope(|scope| {
        for log in 0..2_u16 {
            let (store, table, keys, start) = (&store, &table, &keys, &start);
            scope.spawn(move || {
                let mut keys = keys.clone();
                if log == 1 {
                    keys.reverse();
                }
                let mutations: Vec<_> = keys.iter().map(|key| put(table, key, b"v")).collect();
                start.wait();
                for _ in 0..rounds {
                    let mut batch = items(table, LogId(log), &mutations, |_| None);
                    for applied in apply_all(store, &mut batch) {
                        assert!(ops::written(&applied.unwrap()) > ObjectVersion(0));
                    }
                }
            });
        }
    });
    for key in &keys {
        let (version, _) = ops::read(&store, &table, key).unwrap();
        assert_eq!(version.0, 2 * rounds, "shows: STORE-1");
    }
}

/// A mutation in short: which key, and what is done to it.
#[derive(Clone, Copy, Debug)]
enum Do {
    Put(u8),
    PutIfAbsent(u8),
    Add(u8),
    Delete(u8),
    GetAndSet(u8),
}

fn a_mutation() -> impl Strategy<Value = Do> {
    (0..12_u8, 0..5).prop_map(|(key, what)| match what {
        0 | 1 => Do::Put(key),
        2 => Do::PutIfAbsent(key),
        3 => Do::Add(key),
        _ => match key % 2 {
            0 => Do::Delete(key),
            _ => Do::GetAndSet(key),
        },
    })
}

const KEYS: [[u8; 1]; 12] = [
    *b"a", *b"b", *b"c", *b"d", *b"e", *b"f", *b"g", *b"h", *b"i", *b"j", *b"k", *b"l",
];

fn mutation(table: &EngineTable, what: Do) -> Mutation<'static> {
    let of = |key: u8, change| Mutation::new(table.id(), &KEYS[usize::from(key)], change);
    let put = Change::Put(b"7".as_slice().into());
    match what {
        Do::Put(key) => of(key, put),
        Do::PutIfAbsent(key) => Mutation {
            rules: RejectRules {
                exists: true,
                ..RejectRules::default()
            },
            ..of(key, put)
        },
        Do::Add(key) => of(key, Change::Append(b"1".as_slice().into())),
        Do::Delete(key) => of(key, Change::Delete),
        Do::GetAndSet(key) => Mutation {
            returns_old: true,
            ..of(key, put)
        },
    }
}

proptest! {
    #[test]
    fn a_batch_does_what_its_mutations_do_one_by_one(
        batches in prop::collection::vec(prop::collection::vec(a_mutation(), 1..40), 1..8),
        durable in any::<bool>(),
    ) {
        let durability = match durable {
            true => Durability::Replicated,
            false => Durability::Volatile,
        };
        let (together, its_table) = open(durability, 1);
        let (alone, other_table) = open(durability, 1);
        for batch in &batches {
            let mutations: Vec<_> = batch.iter().map(|m| mutation(&its_table, *m)).collect();
            let all = apply_all(&together, &mut items(&its_table, LogId(0), &mutations, |_| None));
            let each: Applieds = batch
                .iter()
                .map(|m| ops::apply(&alone, LogId(0), &mutation(&other_table, *m), &other_table, None))
                .collect();
            prop_assert_eq!(outcomes(&all), outcomes(&each));
        }
        for key in &KEYS {
            prop_assert_eq!(
                ops::read(&together, &its_table, key),
                ops::read(&alone, &other_table, key)
            );
        }
        prop_assert_eq!(its_table.stat(), other_table.stat());
    }
}
