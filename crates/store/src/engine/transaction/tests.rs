//! Transactions on all kinds of stores.

use super::*;
use crate::completions::Admission;
use crate::options::EngineOptions;
use core::time::Duration;
use pluvio_log::{Durability, LogOptions};
use pluvio_mutation::{Addend, Change, Get, Mutation, Operation, Output};
use pluvio_units::{ClientId, HashRange, OperationId, SequenceNumber, Size, TableId};
use std::sync::Arc;

const NO_OPERATION: OperationId = OperationId {
    client: ClientId(0),
    sequence: SequenceNumber(0),
    acknowledged_below: SequenceNumber(0),
    retry_ms: 0,
};

fn engine(kind: StoreKind, logs: u16) -> Arc<Engine> {
    let mut log = LogOptions::new(Size::mib(64));
    log.logs = logs;
    log.durability = match kind {
        StoreKind::Replicated => Durability::Replicated,
        StoreKind::Volatile | StoreKind::InPlace => Durability::Volatile,
    };
    log.in_place = kind == StoreKind::InPlace;
    Engine::open(EngineOptions { log }).expect("it has memory")
}

fn table(engine: &Engine, id: u64) -> Arc<EngineTable> {
    let table = engine.table(TableId(id), 7, HashRange::ALL);
    table.expect("a table")
}

fn put<'m>(table: &'m EngineTable, key: &'m [u8], value: &'m [u8]) -> StepAt<'m> {
    change(table, key, Change::Put(value.into()))
}

fn change<'m>(table: &'m EngineTable, key: &'m [u8], change: Change<'m>) -> StepAt<'m> {
    let mutation = Mutation::new(table.id(), key, change);
    at(table, TransactionStep::new(Operation::Mutate(mutation)))
}

fn at<'m>(table: &'m EngineTable, step: TransactionStep<'m>) -> StepAt<'m> {
    let hash = table.hash(step.operation.key());
    StepAt { table, hash, step }
}

fn is<'m>(table: &'m EngineTable, key: &'m [u8], version: u64) -> StepAt<'m> {
    let version = ObjectVersion(version);
    at(table, TransactionStep::version_is(table.id(), key, version))
}

/// Does it, makes it durable, and settles what it left.
fn run(engine: &Engine, steps: &[StepAt<'_>]) -> (bool, Vec<Outcome>) {
    let done = engine.transact((LogId(0), 1), steps, None);
    finish(engine, steps, done.expect("it is done"))
}

fn finish(engine: &Engine, steps: &[StepAt<'_>], done: Transacted) -> (bool, Vec<Outcome>) {
    let space = engine.space();
    for log in space.logs() {
        space.advance_durable(log, space.end_position(log));
    }
    for change in done.changed {
        if let Some(slot) = change.slot {
            let slot = space.confirm(slot).expect("it is durable");
            engine.settle_slot(steps[change.step].table, slot);
        }
    }
    match done.outcome.into_pending() {
        Outcome::Together { committed, steps } => (committed, steps.to_vec()),
        other => panic!("{other:?}"),
    }
}

fn value(engine: &Engine, table: &EngineTable, key: &[u8]) -> Option<Vec<u8>> {
    let outcome = engine.get(table, table.hash(key), &Get::new(table.id(), key));
    match outcome.unwrap().into_pending().into_output() {
        Output::Bytes(bytes) => Some(bytes.to_vec()),
        _ => None,
    }
}

const KINDS: [StoreKind; 3] = [
    StoreKind::Replicated,
    StoreKind::Volatile,
    StoreKind::InPlace,
];

#[test]
fn all_steps_take_effect_or_none() {
    for kind in KINDS {
        let engine = engine(kind, 1);
        let (one, other) = (table(&engine, 1), table(&engine, 2));
        let steps = [
            put(&one, b"a", b"5"),
            put(&other, b"b", b"held"),
            change(&one, b"a", Change::Add(Addend::Integer(2))),
            at(
                &other,
                TransactionStep::new(Operation::Get(Get::new(other.id(), b"b"))),
            ),
        ];
        let (committed, outcomes) = run(&engine, &steps);
        assert!(committed);
        assert_eq!(*outcomes[2].output(), Output::Integer(7));
        assert_eq!(*outcomes[3].output(), Output::Bytes("held".into()));
        assert_eq!(value(&engine, &one, b"a"), Some(b"7".to_vec()), "{kind:?}");
        let version = match &outcomes[2] {
            Outcome::Written { version, .. } => version.0,
            other => panic!("{other:?}"),
        };
        let steps = [
            change(&other, b"b", Change::Delete),
            is(&one, b"a", version + 1),
            put(&one, b"a", b"lost"),
        ];
        let (committed, outcomes) = run(&engine, &steps);
        assert!(!committed && outcomes.len() == 2, "{kind:?}");
        assert_eq!(value(&engine, &one, b"a"), Some(b"7".to_vec()));
        assert_eq!(value(&engine, &other, b"b"), Some(b"held".to_vec()));
        let steps = [is(&one, b"a", version), change(&one, b"a", Change::Delete)];
        assert!(run(&engine, &steps).0);
        let steps = [is(&one, b"a", 0), change(&other, b"b", Change::Delete)];
        assert!(run(&engine, &steps).0);
        assert_eq!(engine.stats().objects, 0, "{kind:?}");
        assert_eq!(engine.stats().index_entries, 0, "{kind:?}");
    }
}

#[test]
fn many_keys_share_buckets() {
    for kind in KINDS {
        let engine = engine(kind, 1);
        let table = table(&engine, 1);
        let keys: Vec<Vec<u8>> = (0..2000_u32).map(|n| n.to_le_bytes().to_vec()).collect();
        // A small index, so that several new keys come into one bucket, and chains.
        for round in 0..3 {
            let text = format!("value {round}");
            let puts: Vec<_> = keys
                .iter()
                .map(|k| put(&table, k, text.as_bytes()))
                .collect();
            for steps in puts.chunks(500) {
                assert!(run(&engine, steps).0);
            }
            for key in &keys {
                assert_eq!(value(&engine, &table, key), Some(text.clone().into_bytes()));
            }
        }
        let mixed: Vec<_> = keys
            .iter()
            .enumerate()
            .map(|(n, key)| match n % 3 {
                0 => change(&table, key, Change::Delete),
                1 => put(&table, key, b"longer than it was before, by some bytes"),
                _ => change(&table, key, Change::Append(b"!".as_slice().into())),
            })
            .collect();
        assert!(run(&engine, &mixed).0);
        let deletes: Vec<_> = keys
            .iter()
            .map(|k| change(&table, k, Change::Delete))
            .collect();
        assert!(run(&engine, &deletes).0);
        assert_eq!(engine.stats().objects, 0, "{kind:?}");
        assert_eq!(engine.stats().index_entries, 0, "{kind:?}");
    }
}

// shows: TX-2
#[test]
fn pending_entries_in_several_logs_are_waited_for() {
    let engine = engine(StoreKind::Replicated, 2);
    let table = table(&engine, 1);
    let pending = |log: u16, key: &'static [u8]| {
        let steps = [put(&table, key, b"1")];
        let done = engine.transact((LogId(log), 1), &steps, None);
        done.expect("nothing is in the way")
    };
    let first = pending(1, b"a");
    let steps = [put(&table, b"a", b"2"), put(&table, b"c", b"2")];
    let done = engine
        .transact((LogId(0), 1), &steps, None)
        .expect("one log");
    assert!(matches!(&done.outcome, Awaited::Later(waits) if waits.log() == LogId(1)));
    finish(&engine, &steps, done);
    drop(first);
    let (_a, _b) = (pending(1, b"a"), pending(0, b"b"));
    let steps = [put(&table, b"a", b"3"), put(&table, b"b", b"3")];
    let _marks = pluvio_units::Marks::to_reach(&["transaction-scattered"]);
    let refused = engine.transact((LogId(0), 1), &steps, None);
    assert!(matches!(refused, Err(NotTransacted::Scattered(waits)) if waits.len() == 2));
    engine
        .space()
        .advance_durable(LogId(1), engine.space().end_position(LogId(1)));
    assert!(run(&engine, &steps).0);
}

#[test]
fn a_retry_is_answered_with_the_outcome_of_all_steps() {
    for kind in [StoreKind::Replicated, StoreKind::Volatile] {
        let engine = engine(kind, 1);
        let table = table(&engine, 1);
        let id = OperationId {
            client: ClientId(7),
            sequence: SequenceNumber(1),
            acknowledged_below: SequenceNumber(1),
            retry_ms: 1000,
        };
        let place = (table.id(), table.hash(b"a"));
        let admit = || engine.admit(id, place, Duration::ZERO);
        let steps = [
            change(&table, b"a", Change::Add(Addend::Integer(1))),
            change(&table, b"b", Change::Add(Addend::Integer(1))),
        ];
        let Admission::Execute(execution) = admit() else {
            panic!("it is new");
        };
        let done = engine.transact((LogId(0), 1), &steps, Some(execution));
        let (_, outcomes) = finish(&engine, &steps, done.expect("it is done"));
        let Admission::Answer(again) = admit() else {
            panic!("it was done");
        };
        assert!(
            matches!(again.into_pending(), Outcome::Together { committed: true, steps } if *steps == *outcomes)
        );
        assert_eq!(value(&engine, &table, b"b"), Some(b"1".to_vec()));
    }
    assert!(!NO_OPERATION.is_some());
}

#[test]
fn no_step_is_done_behind_outcomes_that_are_too_large() {
    let mut done = 0;
    // Without an end, as far as the outcomes go.
    let each_step = core::iter::repeat_with(|| {
        done += 1;
        let read = Outcome::Unchanged {
            version: ObjectVersion(1),
            output: Output::Bytes(vec![b'x'; VALUE_MAX].into()),
        };
        (read, false)
    });
    let refused = together(each_step, OUTPUT_MAX);
    assert!(matches!(refused, Err(NotTransacted::TooLarge)));
    assert_eq!(done, OUTPUT_MAX / VALUE_MAX);

    let engine = engine(StoreKind::Replicated, 1);
    let table = table(&engine, 1);
    run(&engine, &[put(&table, b"k", &vec![b'x'; VALUE_MAX])]);
    let get = || TransactionStep::new(Operation::Get(Get::new(table.id(), b"k")));
    let mut steps: Vec<_> = (0..4).map(|_| at(&table, get())).collect();
    steps.push(put(&table, b"k", b"new"));
    let refused = engine.transact((LogId(0), 1), &steps, None);
    assert!(matches!(refused, Err(NotTransacted::TooLarge)));
    let (committed, _) = run(&engine, &steps[1..]);
    assert!(committed);
    assert_eq!(value(&engine, &table, b"k").as_deref(), Some(&b"new"[..]));
}

#[test]
fn what_is_too_large_for_a_group_changes_nothing() {
    let engine = engine(StoreKind::Replicated, 1);
    let table = table(&engine, 1);
    let value_of = vec![b'x'; VALUE_MAX];
    let keys: Vec<_> = (0..9_u8).map(|n| [n]).collect();
    let steps: Vec<_> = keys.iter().map(|key| put(&table, key, &value_of)).collect();
    let refused = engine.transact((LogId(0), 1), &steps, None);
    assert!(matches!(refused, Err(NotTransacted::TooLarge)));
    assert_eq!(engine.stats().index_entries, 0);
}

// shows: TX-1
#[test]
fn transfers_between_accounts_keep_the_sum() {
    const ACCOUNTS: u64 = 64;
    let engine = engine(StoreKind::Volatile, 2);
    let table = table(&engine, 1);
    let keys: Vec<Vec<u8>> = (0..ACCOUNTS).map(|n| n.to_le_bytes().to_vec()).collect();
    let first: Vec<_> = keys.iter().map(|key| put(&table, key, b"100")).collect();
    assert!(run(&engine, &first).0);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (engine, table, keys) = (&engine, &table, &keys);
            scope.spawn(move || {
                let mut state = 0x9e37_79b9_7f4a_7c15 ^ thread;
                let mut draw = |below: u64| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state % below
                };
                for round in 0..3000_u64 {
                    let (from, to) = (draw(ACCOUNTS) as usize, draw(ACCOUNTS) as usize);
                    let add = |key, by| change(table, key, Change::Add(Addend::Integer(by)));
                    // New keys let the index grow meanwhile.
                    let new = (thread << 32 | round | 1 << 48).to_le_bytes();
                    let steps = [
                        add(&keys[from], -3),
                        put(table, &new, b"new"),
                        add(&keys[to], 3),
                    ];
                    let log = LogId((thread % 2) as u16);
                    let done = engine.transact((log, 1), &steps, None);
                    drop(done.expect("there is room"));
                    if round.is_multiple_of(16) {
                        let reads: Vec<_> = keys
                            .iter()
                            .map(|key| Operation::Get(Get::new(table.id(), key)))
                            .map(|read| at(table, TransactionStep::new(read)))
                            .collect();
                        let done = engine.transact((log, 1), &reads, None).expect("reads");
                        let Outcome::Together { steps, .. } = done.outcome.into_pending() else {
                            panic!("it is a transaction");
                        };
                        let sum: i64 = steps
                            .iter()
                            .map(|read| match read.output() {
                                Output::Bytes(text) => {
                                    let text = core::str::from_utf8(text);
                                    text.expect("digits").parse::<i64>().expect("a number")
                                }
                                other => panic!("{other:?}"),
                            })
                            .sum();
                        assert_eq!(sum, 100 * ACCOUNTS as i64);
                    }
                }
            });
        }
    });
}

// shows: CLASS-1
#[test]
fn a_group_lies_in_the_log_of_the_most_durable_of_its_tables() {
    let _marks = pluvio_units::Marks::to_reach(&["transaction-waits-for-weaker-log"]);
    let mut log = LogOptions::new(Size::mib(64));
    log.durability = Durability::Replicated;
    log.spare_logs = pluvio_units::CLASS_LOGS;
    let engine = Engine::open(EngineOptions { log }).expect("it has memory");
    let space = engine.space();
    for expected in [1, 2] {
        assert_eq!(space.open_log().unwrap(), Some(LogId(expected)));
    }
    assert_eq!(space.open_log().unwrap(), None);
    engine.set_class(1, true, 2);
    engine.set_class(2, false, 7);
    let [plain, weak, strong] = [1, 2, 3].map(|id| table(&engine, id));
    weak.set_class(1);
    strong.set_class(2);
    let log_of = |steps: &[StepAt<'_>]| {
        let done = engine.transact((LogId(0), 1), steps, None);
        let done = done.expect("it is done");
        let slot = done.changed[0].slot.as_ref().expect("it is pending");
        let log = slot.log();
        finish(&engine, steps, done);
        log
    };
    assert_eq!(log_of(&[put(&weak, b"a", b"1")]), LogId(1));
    assert_eq!(log_of(&[put(&plain, b"a", b"1")]), LogId(0));
    let all = [&weak, &plain, &strong].map(|table| put(table, b"a", b"2"));
    assert_eq!(log_of(&all), LogId(2));
    assert_eq!(log_of(&all[..2]), LogId(0));
    // One that rests on a less durable log waits for that.
    let pending = [put(&plain, b"a", b"3")];
    let done = engine.transact((LogId(0), 1), &pending, None).unwrap();
    let refused = engine.transact((LogId(0), 1), &all, None).err();
    assert!(matches!(refused, Some(NotTransacted::Scattered(waits)) if waits.len() == 1));
    finish(&engine, &pending, done);
    assert_eq!(log_of(&all), LogId(2));
}

#[test]
fn full_memory_takes_deletes_of_many_keys_at_one_moment() {
    for kind in KINDS {
        let engine = engine(kind, 1);
        let table = table(&engine, 1);
        let value_of = vec![b'x'; 10_000];
        let mut keys: Vec<Vec<u8>> = Vec::new();
        loop {
            let key = format!("key {}", keys.len()).into_bytes();
            let steps = [put(&table, &key, &value_of)];
            match engine.transact((LogId(0), 1), &steps, None) {
                Ok(done) => drop(finish(&engine, &steps, done)),
                Err(NotTransacted::Engine(EngineError::Full { .. })) => break,
                Err(other) => panic!("{other:?}"),
            }
            keys.push(key);
        }
        let reads = keys[..300].iter().map(|key| is(&table, key, 0));
        let reads: Vec<_> = reads.collect();
        assert!(!run(&engine, &reads).0, "{kind:?}");
        for some in keys.chunks(1000) {
            let deletes = some.iter().map(|key| change(&table, key, Change::Delete));
            let deletes: Vec<_> = deletes.collect();
            assert!(run(&engine, &deletes).0, "{kind:?}");
        }
        assert_eq!(engine.stats().objects, 0, "{kind:?}");
    }
}
