//! Batches: the same outcomes as one mutation after the other, in as few groups as can be.

#![allow(clippy::unwrap_used)]

#[path = "support/ops.rs"]
mod ops;

use core::ops::ControlFlow;
use core::time::Duration;
use pluvio_log::{Awaited, Durability, LogOptions};
use pluvio_mutation::{Change, Mutation, Outcome, RejectRules};
use pluvio_store::{
    Admission, Applied, Engine, EngineError, EngineOptions, EngineTable, Execution, Item, Site,
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
    let log = LogOptions {
        durability,
        logs,
        ..LogOptions::new(Size::mib(64))
    };
    let store = Engine::open(EngineOptions { log }).unwrap();
    let table = store.table(TableId(1), 7, HashRange::ALL).unwrap();
    (store, table)
}

fn put<'k>(table: &EngineTable, key: &'k [u8], value: &'k [u8]) -> Mutation<'k> {
    Mutation::new(table.id(), key, Change::Put(value.into()))
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
