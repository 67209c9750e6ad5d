//! Operations with an identity: executed once, and answered after that, whatever the cleaner, a
//! crash and a replay do meanwhile.

use crate::ops;
use crate::support::{Replicas, entries_of};
use core::time::Duration;
use pluvio_format::{Completion, Encoded, Entry};
use pluvio_log::{Awaited, CleanerOptions, Cleaning, Durability, LogOptions};
use pluvio_mutation::{Change, Mutation, Outcome, Output, RejectRules};
use pluvio_store::{
    Admission, Applied, CLIENT_VALUES_MAX, CLIENTS_MAX, Engine, EngineError, EngineOptions,
    EngineTable, Execution, OPERATIONS_MAX, RESULTS_MAX, Replay, Site, VALUES_MAX, kept_for,
};
use pluvio_units::{
    BATCH_UNDER_WAY_MAX, ClientId, HashRange, KeyHash, LogId, ObjectVersion, OperationId,
    SequenceNumber, Size, TableId,
};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::collections::BTreeMap;
use std::sync::Arc;

const NOW: Duration = Duration::from_secs(1000);
const RETRY: Duration = Duration::from_secs(10);

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

fn id(client: u64, sequence: u64, acknowledged_below: u64) -> OperationId {
    OperationId {
        client: ClientId(client),
        sequence: SequenceNumber(sequence),
        acknowledged_below: SequenceNumber(acknowledged_below),
        retry_ms: u32::try_from(RETRY.as_millis()).unwrap(),
    }
}

fn admit(
    store: &Engine,
    table: &EngineTable,
    id: OperationId,
    key: &[u8],
    now: Duration,
) -> Admission {
    let place = (table.id(), table.hash(key));
    store.admit(id, place, now)
}

fn execution(store: &Engine, table: &EngineTable, id: OperationId, key: &[u8]) -> Execution {
    match admit(store, table, id, key, NOW) {
        Admission::Execute(execution) => execution,
        _ => panic!("{id:?} must be executed"),
    }
}

fn answer(store: &Engine, table: &EngineTable, id: OperationId, key: &[u8]) -> Option<Outcome> {
    match admit(store, table, id, key, NOW) {
        Admission::Answer(outcome) => Some(outcome.into_pending()),
        _ => None,
    }
}

/// Executes an operation: a write of `Some`, a delete; rejected when the object has not this
/// version.
fn execute(
    store: &Engine,
    table: &EngineTable,
    log: LogId,
    id: OperationId,
    key: &[u8],
    value: Option<&[u8]>,
    only_if: Option<ObjectVersion>,
) -> Result<Awaited<Applied>, EngineError> {
    let rules = RejectRules {
        version_not_equal: only_if,
        ..RejectRules::NONE
    };
    let change = value.map_or(Change::Delete, |value| Change::Put(value.into()));
    let mutation = Mutation {
        rules,
        ..Mutation::new(table.id(), key, change)
    };
    let execution = execution(store, table, id, key);
    ops::apply(store, log, &mutation, table, Some(execution))
}

/// An unconditional write in log 0.
fn write(store: &Engine, table: &EngineTable, id: OperationId, key: &[u8]) {
    let applied = execute(store, table, LogId(0), id, key, Some(b"value"), None).unwrap();
    assert!(ops::written(&applied) > ObjectVersion(0));
}

// shows: COMP-1, EO-1
#[test]
fn a_retry_is_told_the_first_result_and_not_done_again() {
    let (store, table) = open(Durability::Volatile, 1);
    write(&store, &table, id(1, 5, 0), b"k");
    write(&store, &table, id(1, 6, 0), b"k");
    let first = answer(&store, &table, id(1, 5, 0), b"k");
    let replaced = ObjectVersion(0);
    assert!(matches!(first, Some(Outcome::Written { replaced: r, .. }) if r == replaced));
    assert!(
        matches!(
            admit(&store, &table, id(2, 5, 0), b"k", NOW),
            Admission::Execute(_)
        ),
        "another client's operation is another one"
    );
}

// shows: EO-1, EO-2
#[test]
fn conditional_results_stay_what_they_were() {
    let (store, table) = open(Durability::Volatile, 1);
    write(&store, &table, id(1, 1, 0), b"k");
    let wrong = Some(ObjectVersion(99));
    let rejected = execute(&store, &table, LogId(0), id(1, 2, 0), b"k", None, wrong).unwrap();
    let rejected = rejected.into_pending();
    assert!(matches!(rejected.outcome(), Outcome::Rejected { .. }));
    let nothing = execute(&store, &table, LogId(0), id(1, 3, 0), b"other", None, None).unwrap();
    assert_eq!(ops::deleted(&nothing), ObjectVersion(0));
    for (sequence, key) in [(4, b"k".as_slice()), (5, b"other")] {
        write(&store, &table, id(1, sequence, 0), key);
    }
    let again = answer(&store, &table, id(1, 2, 0), b"k");
    assert!(matches!(again, Some(Outcome::Rejected { .. })), "{again:?}");
    let again = answer(&store, &table, id(1, 3, 0), b"other");
    let (version, output) = (ObjectVersion(0), Output::Nothing);
    assert_eq!(again, Some(Outcome::Deleted { version, output }));
}

// shows: EO-1
#[test]
fn a_duplicate_of_a_running_operation_waits_and_one_that_did_nothing_is_executed() {
    let (store, table) = open(Durability::Volatile, 1);
    let running = execution(&store, &table, id(1, 5, 0), b"k");
    assert!(matches!(
        admit(&store, &table, id(1, 5, 0), b"k", NOW),
        Admission::InProgress
    ));
    drop(running);
    drop(execution(&store, &table, id(1, 5, 0), b"k"));
    assert_eq!(store.completions().results(), 0);
}

// shows: COMP-2, EO-1
#[test]
fn what_is_acknowledged_is_never_executed_again() {
    let (store, table) = open(Durability::Volatile, 1);
    write(&store, &table, id(1, 5, 0), b"k");
    write(&store, &table, id(1, 6, 6), b"k");
    assert!(matches!(
        admit(&store, &table, id(1, 5, 0), b"k", NOW),
        Admission::Forgotten
    ));
    assert_eq!(store.completions().results(), 1);
}

// shows: EO-1
#[test]
fn a_number_that_is_used_for_another_key_is_noticed() {
    let (store, table) = open(Durability::Volatile, 1);
    write(&store, &table, id(1, 5, 0), b"k");
    assert!(matches!(
        admit(&store, &table, id(1, 5, 0), b"other", NOW),
        Admission::OtherKey
    ));
}

// shows: COMP-4, EO-5
#[test]
fn results_are_bounded_and_the_oldest_operation_is_admitted_all_the_same() {
    let (store, table) = open(Durability::Volatile, 1);
    for sequence in 6..6 + OPERATIONS_MAX as u64 {
        write(&store, &table, id(1, sequence, 5), b"k");
    }
    let newer = 6 + OPERATIONS_MAX as u64;
    assert!(matches!(
        admit(&store, &table, id(1, newer, 5), b"k", NOW),
        Admission::Busy
    ));
    write(&store, &table, id(1, 5, 5), b"k");
    // With that, the client acknowledges all of them.
    write(&store, &table, id(1, newer, newer), b"k");
}

/// The items of a batch are acknowledged together: if one of them were refused, the others' results
/// would stay, and with them those of all later operations that fill the table.
// shows: COMP-4, EO-5
#[test]
fn a_batch_that_all_others_wait_for_is_admitted_whole() {
    let (store, table) = open(Durability::Volatile, 1);
    let batch = 5..5 + BATCH_UNDER_WAY_MAX as u64;
    let newer = batch.end + OPERATIONS_MAX as u64;
    for sequence in batch.end..newer {
        write(&store, &table, id(1, sequence, 5), b"k");
    }
    assert!(matches!(
        admit(&store, &table, id(1, newer, 5), b"k", NOW),
        Admission::Busy
    ));
    for sequence in batch {
        write(&store, &table, id(1, sequence, 5), b"k");
    }
    write(&store, &table, id(1, newer, newer), b"k");
    assert_eq!(store.completions().results(), 1);
}

// shows: COMP-4, EO-5
#[test]
fn the_oldest_operations_have_room_of_their_own() {
    let (store, table) = open(Durability::Volatile, 1);
    let clients = (RESULTS_MAX / OPERATIONS_MAX) as u64;
    let mut under_way = Vec::with_capacity(RESULTS_MAX);
    for client in 1..=clients {
        for sequence in 2..2 + OPERATIONS_MAX as u64 {
            under_way.push(execution(&store, &table, id(client, sequence, 1), b"k"));
        }
    }
    assert_eq!(store.completions().results(), RESULTS_MAX);
    let is_admitted = |sequence| {
        let id = id(clients + 1, sequence, 1);
        let admission = admit(&store, &table, id, b"k", NOW);
        matches!(admission, Admission::Execute(_))
    };
    let batch = BATCH_UNDER_WAY_MAX as u64;
    assert!(is_admitted(1) && is_admitted(batch));
    assert!(!is_admitted(batch + 1));
    drop(under_way);
    assert!(is_admitted(batch + 1));
}

/// Replays a record of each of these operations on `k`.
fn replay_records(
    store: &Arc<Engine>,
    table: &Arc<EngineTable>,
    operations: impl Iterator<Item = OperationId>,
) {
    let version = ObjectVersion(1);
    let mut bytes = Vec::new();
    for operation in operations {
        let output = Output::Nothing;
        let outcome = Outcome::Deleted { version, output };
        let record = Completion::new(&operation, table.id(), table.hash(b"k"), outcome);
        let entry = Entry::Completion(record);
        bytes.extend(Encoded::new(&entry, false).unwrap().to_vec());
    }
    let tablets = vec![(Arc::clone(table), HashRange::ALL)];
    let mut replay = Replay::new(store, LogId(0), tablets).unwrap();
    replay.replay(&bytes, NOW).unwrap();
    let (side, _) = replay.finish();
    let _ = side.commit().expect("everything is durable at once");
}

// shows: COMP-4, EO-1, EO-5
#[test]
fn what_a_replay_brings_is_kept_beyond_the_bound_and_new_operations_are_refused_meanwhile() {
    let (store, table) = open(Durability::Volatile, 1);
    let count = OPERATIONS_MAX as u64 + 10;
    replay_records(
        &store,
        &table,
        (6..6 + count).map(|sequence| id(1, sequence, 5)),
    );
    assert_eq!(store.completions().results() as u64, count);
    for sequence in 6..6 + count {
        assert!(answer(&store, &table, id(1, sequence, 5), b"k").is_some());
    }
    let newer = 6 + count;
    assert!(matches!(
        admit(&store, &table, id(1, newer, 5), b"k", NOW),
        Admission::Busy
    ));
    write(&store, &table, id(1, 5, 5), b"k");
    write(&store, &table, id(1, newer, newer), b"k");
    assert_eq!(store.completions().results(), 1);
}

// shows: COMP-4, EO-5
#[test]
fn clients_that_a_replay_brings_are_kept_beyond_the_bound_and_new_ones_are_refused_meanwhile() {
    let (store, table) = open(Durability::Volatile, 1);
    let count = CLIENTS_MAX as u64 + 1;
    replay_records(&store, &table, (1..=count).map(|client| id(client, 1, 0)));
    for client in [1, count] {
        assert!(answer(&store, &table, id(client, 1, 0), b"k").is_some());
    }
    let new = id(count + 1, 1, 0);
    assert!(matches!(
        admit(&store, &table, new, b"k", NOW),
        Admission::Busy
    ));
    let over = NOW + kept_for(RETRY) + Duration::from_nanos(1);
    for turn in 0..pluvio_store::Completions::TURNS {
        store.completions().forget_clients(turn, over);
    }
    assert_eq!(store.completions().results(), 0);
    drop(execution(&store, &table, new, b"k"));
}

// shows: COMP-3, EO-1, EO-4
#[test]
fn a_client_is_forgotten_only_when_it_must_have_given_up() {
    let (store, table) = open(Durability::Replicated, 1);
    write(&store, &table, id(1, 1, 0), b"k");
    let with_record = store.space().stats().live_bytes;
    let last = NOW + kept_for(RETRY);
    let forget = |now| {
        for turn in 0..pluvio_store::Completions::TURNS {
            store.completions().forget_clients(turn, now);
        }
    };
    forget(last);
    assert!(answer(&store, &table, id(1, 1, 0), b"k").is_some());
    forget(last + Duration::from_nanos(1));
    assert_eq!(store.completions().results(), 0);
    assert!(store.space().stats().live_bytes < with_record);
    drop(execution(&store, &table, id(1, 1, 0), b"k"));
}

// shows: EO-3, STORE-5
#[test]
fn what_rests_on_a_pending_entry_is_appended_behind_it() {
    let (store, table) = open(Durability::Replicated, 2);
    let mut replicas = Replicas::default();
    let log_of = |applied: Result<Awaited<Applied>, EngineError>| match applied.unwrap() {
        Awaited::Later(appended) => appended.log(),
        Awaited::Now(durable) => panic!("no replica has it: {durable:?}"),
    };
    let value = Some(b"v".as_slice());
    let on = |log, sequence, value, only_if| {
        log_of(execute(
            &store,
            &table,
            LogId(log),
            id(1, sequence, 0),
            b"k",
            value,
            only_if,
        ))
    };
    assert_eq!(on(0, 1, value, None), LogId(0));
    assert_eq!(on(1, 2, value, None), LogId(0), "a write");
    let wrong = Some(ObjectVersion(99));
    assert_eq!(on(1, 3, value, wrong), LogId(0), "a rejected write");
    assert_eq!(on(1, 4, None, None), LogId(0), "a delete");
    assert_eq!(on(1, 5, value, None), LogId(0), "a write after a delete");
    replicas.sync(&store);
    assert_eq!(on(1, 6, value, None), LogId(1), "all that is durable");
}

/// Otherwise a crash could keep an item of an ordered batch and lose one before it.
#[test]
fn a_mutation_may_insist_on_its_log() {
    let (store, table) = open(Durability::Replicated, 2);
    let mut replicas = Replicas::default();
    let _ = ops::put(&store, &table, LogId(1), b"k", b"v").unwrap();
    let put = Mutation::new(table.id(), b"k", Change::Put(b"new".as_slice().into()));
    let apply = || {
        let site = Site {
            log: LogId(0),
            table: &table,
            hash: table.hash(b"k"),
            now_s: 1,
            only_this_log: true,
        };
        store.apply(&site, &put, None)
    };
    assert_eq!(apply().unwrap_err(), EngineError::OtherLog);
    assert_eq!(ops::read(&store, &table, b"k").unwrap().1, b"v");
    replicas.sync(&store);
    let Awaited::Later(appended) = apply().unwrap() else {
        panic!("no replica has it")
    };
    assert_eq!(appended.log(), LogId(0));
}

/// Otherwise changes of one key fill the memory of a log that cannot become durable.
#[test]
fn a_mutation_asks_whether_the_log_that_it_goes_to_is_stalled() {
    let (store, table) = open(Durability::Replicated, 2);
    let _ = ops::put(&store, &table, LogId(1), b"k", b"v").unwrap();
    store.space().set_stalled(LogId(1), true);
    let put = |key| ops::put(&store, &table, LogId(0), key, b"new");
    assert_eq!(put(b"k").unwrap_err(), EngineError::Stalled);
    let _ = put(b"other").unwrap();
    store.space().set_stalled(LogId(1), false);
    let Awaited::Later(appended) = put(b"k").unwrap() else {
        panic!("no replica has it")
    };
    assert_eq!(appended.log(), LogId(1));
}

#[test]
fn results_of_keys_that_leave_are_forgotten() {
    let (store, table) = open(Durability::Replicated, 1);
    write(&store, &table, id(1, 1, 0), b"k");
    let hash = table.hash(b"k").0;
    store.forget(&table, HashRange::new(KeyHash(0), KeyHash(hash - 1)));
    assert_eq!(store.completions().results(), 1);
    store.forget(&table, HashRange::new(KeyHash(hash), KeyHash(hash)));
    assert_eq!(store.completions().results(), 0);
}

/// A late copy of it may come to a server that had the key before and has it again: nothing but
/// this tells that server.
// shows: COMP-6, EO-6
#[test]
fn what_was_acknowledged_elsewhere_is_not_executed_where_the_key_comes() {
    let (store, table) = open(Durability::Volatile, 1);
    write(&store, &table, id(1, 17, 17), b"k");
    write(&store, &table, id(1, 18, 18), b"other");
    write(&store, &table, id(2, 1, 1), b"k");
    let hash = table.hash(b"k");
    let range = HashRange::new(hash, hash);
    let leaving = store.results_of(&table, range, NOW);
    let kept: Vec<_> = leaving.records.iter().map(|r| r.client).collect();
    assert_eq!(kept, [ClientId(2)]);
    let told = leaving.acknowledged.iter().map(|a| (a.client, a.below));
    let told: Vec<_> = told.collect();
    assert_eq!(told, [(ClientId(1), SequenceNumber(18))]);
    let over = NOW + kept_for(RETRY) + Duration::from_nanos(1);
    let late = store.results_of(&table, range, over).acknowledged;
    assert!(late.is_empty(), "no copy can be on its way");

    let (store, table) = open(Durability::Volatile, 1);
    let completions = store.completions();
    completions.take_acknowledged(&leaving.acknowledged, NOW);
    let last = NOW + kept_for(RETRY);
    for turn in 0..pluvio_store::Completions::TURNS {
        completions.forget_clients(turn, last);
    }
    assert!(matches!(
        admit(&store, &table, id(1, 17, 17), b"k", last),
        Admission::Forgotten
    ));
}

/// One client's operations that it waits for, and what came of them.
#[derive(Default)]
struct Waiting {
    next: u64,
    results: BTreeMap<u64, (Vec<u8>, Outcome)>,
}

impl Waiting {
    fn id(&self, client: u64, sequence: u64) -> OperationId {
        let oldest = self.results.keys().next().copied();
        id(client, sequence, oldest.unwrap_or(sequence))
    }
}

/// Operations of some clients, of which each waits for some, with cleaning and late durability.
fn work(
    store: &Arc<Engine>,
    table: &Arc<EngineTable>,
    replicas: &mut Replicas,
    rng: &mut TestRng,
    cleaning: Cleaning,
) -> BTreeMap<u64, Waiting> {
    let cleaner = store.cleaner(CleanerOptions {
        cleaning,
        ..CleanerOptions::default()
    });
    let mut clients: BTreeMap<u64, Waiting> = (1..=5).map(|c| (c, Waiting::default())).collect();
    let mut appended = Vec::new();
    for step in 0..20_000u32 {
        let client = u64::from(1 + rng.next_u32() % 5);
        let waiting = clients.get_mut(&client).unwrap();
        waiting.next += 1;
        let sequence = waiting.next;
        let id = waiting.id(client, sequence);
        let key = format!("key-{}", rng.next_u32() % 300).into_bytes();
        let value = vec![1; rng.next_u32() as usize % 15_000];
        let log = LogId((rng.next_u32() % 2) as u16);
        let value = (!rng.next_u32().is_multiple_of(4)).then_some(&value[..]);
        let only_if = rng
            .next_u32()
            .is_multiple_of(8)
            .then_some(ObjectVersion(99));
        match execute(store, table, log, id, &key, value, only_if) {
            Ok(applied) => {
                appended.push(applied);
                let outcome = answer(store, table, id, &key).expect("it was executed");
                waiting.results.insert(sequence, (key, outcome));
            }
            Err(EngineError::Full { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        // Some get their result late, in any order; most soon.
        while waiting.results.len() > 40 || rng.next_u32().is_multiple_of(2) {
            let count = waiting.results.len().max(1);
            let any = rng.next_u32() as usize % count;
            let Some(sequence) = waiting.results.keys().nth(any).copied() else {
                break;
            };
            waiting.results.remove(&sequence);
        }
        if step % 7 == 0 {
            replicas.sync(store);
            for applied in std::mem::take(&mut appended) {
                if let Err(not_yet) = store.confirm(table, applied) {
                    appended.push(not_yet.into());
                }
            }
        }
        let _ = cleaner.step(1).expect("memory is sound");
    }
    replicas.sync(store);
    let cleaned = store.space().stats().cleaner;
    match cleaning {
        Cleaning::OneLevel => assert!(cleaned.passes > 0, "the cleaner had work"),
        Cleaning::TwoLevel => assert!(cleaned.compactions > 0, "the cleaner had work"),
    }
    clients
}

fn recover(
    images: &[Vec<u8>],
    durability: Durability,
) -> (Arc<Engine>, Arc<EngineTable>, Replicas) {
    let (store, table) = open(durability, 2);
    let mut replay =
        Replay::new(&store, LogId(1), vec![(Arc::clone(&table), HashRange::ALL)]).unwrap();
    for image in images {
        replay.replay(&entries_of(image), NOW).unwrap();
    }
    let mut replicas = Replicas::default();
    let (side, _) = replay.finish();
    replicas.sync(&store);
    let _ = side.commit().expect("the side log is durable");
    replicas.sync(&store);
    (store, table, replicas)
}

fn assert_answered(store: &Engine, table: &EngineTable, clients: &BTreeMap<u64, Waiting>) {
    for (client, waiting) in clients {
        for (sequence, (key, outcome)) in &waiting.results {
            let id = waiting.id(*client, *sequence);
            let again = answer(store, table, id, key);
            assert_eq!(
                again,
                Some(outcome.clone()),
                "operation {sequence} of client {client}"
            );
        }
    }
}

// shows: COMP-5, EO-1, EO-2
#[test]
fn unacknowledged_results_survive_cleaning_and_two_crashes() {
    for seed in 0..4 {
        let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
        let (store, table) = open(Durability::Replicated, 2);
        let mut replicas = Replicas::default();
        let cleaning = match seed % 2 {
            0 => Cleaning::OneLevel,
            _ => Cleaning::TwoLevel,
        };
        let clients = work(&store, &table, &mut replicas, &mut rng, cleaning);
        assert_answered(&store, &table, &clients);

        let mut images = replicas.recoverable();
        for i in (1..images.len()).rev() {
            images.swap(i, rng.next_u32() as usize % (i + 1));
        }
        // One segment comes twice, as after a lost reply.
        images.push(images[0].clone());
        let (store, table, replicas) = recover(&images, Durability::Replicated);
        assert_answered(&store, &table, &clients);

        let (store, table, _) = recover(&replicas.recoverable(), Durability::Replicated);
        assert_answered(&store, &table, &clients);
    }
}

// shows: REC-3
#[test]
fn a_replay_that_is_given_up_leaves_no_results() {
    let (store, table) = open(Durability::Replicated, 1);
    let mut replicas = Replicas::default();
    write(&store, &table, id(1, 1, 0), b"k");
    replicas.sync(&store);
    let images = replicas.recoverable();
    let (store, table) = open(Durability::Replicated, 1);
    let empty = store.space().stats().live_bytes;
    let mut replay =
        Replay::new(&store, LogId(0), vec![(Arc::clone(&table), HashRange::ALL)]).unwrap();
    for image in &images {
        replay.replay(&entries_of(image), NOW).unwrap();
    }
    assert_eq!(store.completions().results(), 1);
    replay.abort();
    assert_eq!(store.completions().results(), 0);
    assert_eq!(store.space().stats().live_bytes, empty);
}

/// An operation that gives the value from before.
fn get_and_set(
    store: &Engine,
    table: &EngineTable,
    id: OperationId,
    value: &[u8],
) -> Result<Outcome, EngineError> {
    let mutation = Mutation {
        returns_old: true,
        ..Mutation::new(table.id(), b"k", Change::Put(value.into()))
    };
    let execution = execution(store, table, id, b"k");
    let applied = ops::apply(store, LogId(0), &mutation, table, Some(execution))?;
    Ok(applied.into_pending().outcome().clone())
}

// shows: COMP-7
#[test]
fn values_in_outcomes_are_bounded_and_the_oldest_operation_of_a_client_gets_through() {
    for durability in [Durability::Volatile, Durability::Replicated] {
        let (store, table) = open(durability, 1);
        let large = vec![7; CLIENT_VALUES_MAX * 2 / 3];
        let _ = ops::put(&store, &table, LogId(0), b"k", &large).unwrap();
        let held = || store.completions().value_bytes();
        // The second finds no share; nothing changes, and it is executed when it comes again.
        let first = get_and_set(&store, &table, id(1, 2, 1), &large).unwrap();
        assert_eq!(first.output(), &Output::Bytes(large.clone().into()));
        let before = ops::read(&store, &table, b"k");
        let refused = get_and_set(&store, &table, id(1, 3, 1), b"new").unwrap_err();
        assert!(matches!(refused, EngineError::OutcomesFull { .. }));
        assert_eq!(ops::read(&store, &table, b"k"), before);
        assert_eq!((held(), store.completions().results()), (large.len(), 1));
        // The oldest is admitted, another client has a share of its own, and a plain
        // delete is free.
        get_and_set(&store, &table, id(1, 1, 1), &large).unwrap();
        get_and_set(&store, &table, id(2, 1, 1), &large).unwrap();
        assert_eq!(held(), 3 * large.len());
        let _ = execute(&store, &table, LogId(0), id(1, 4, 1), b"k", None, None).unwrap();
        // A retry is told the same, and what is acknowledged gives its room back.
        let again = answer(&store, &table, id(1, 2, 1), b"k");
        assert_eq!(again, Some(first));
        write(&store, &table, id(1, 5, 5), b"k");
        assert_eq!(held(), large.len());
        get_and_set(&store, &table, id(1, 6, 5), &large).unwrap();
    }
}

/// A write that is rejected because the object exists, and gives its value.
fn get_if_absent(
    store: &Engine,
    table: &EngineTable,
    id: OperationId,
) -> Result<Outcome, EngineError> {
    let mutation = Mutation {
        returns_old: true,
        rules: RejectRules::EXISTS,
        ..Mutation::new(table.id(), b"k", Change::Put(b"".as_slice().into()))
    };
    let execution = execution(store, table, id, b"k");
    let applied = ops::apply(store, LogId(0), &mutation, table, Some(execution))?;
    Ok(applied.into_pending().outcome().clone())
}

// shows: COMP-7
#[test]
fn all_clients_together_hold_a_bounded_number_of_bytes() {
    let (store, table) = open(Durability::Volatile, 1);
    let value = vec![7; CLIENT_VALUES_MAX];
    let _ = ops::put(&store, &table, LogId(0), b"k", &value).unwrap();
    let most = store.completions().values_max();
    let clients = (most / CLIENT_VALUES_MAX) as u64;
    for client in 1..=clients {
        get_if_absent(&store, &table, id(client, 2, 1)).unwrap();
    }
    let more = id(clients + 1, 2, 1);
    let refused = get_if_absent(&store, &table, more).unwrap_err();
    assert!(matches!(refused, EngineError::OutcomesFull { .. }));
    assert!(store.completions().value_bytes() <= most && most < VALUES_MAX);
    // Each client waits for the result of its oldest operation: that has room of its own.
    get_if_absent(&store, &table, id(1, 1, 1)).unwrap();
    write(&store, &table, id(1, 3, 3), b"other");
    get_if_absent(&store, &table, more).unwrap();
}
