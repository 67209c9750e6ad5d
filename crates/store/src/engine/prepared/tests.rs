//! Keys that are locked for transactions of several owners.

use super::*;
use crate::options::EngineOptions;
use crate::replay::Replay;
use crate::scan::ScanOptions;
use pluvio_log::{Durability, LogOptions};
use pluvio_mutation::{Change, Get, Mutation, Operation, TransactionStep};
use pluvio_units::{HashRange, Marks, Rank, Size, TableId};
use std::sync::Arc;

const CLIENT: ClientId = ClientId(77);
const VOTE: SequenceNumber = SequenceNumber(2);
const KINDS: [StoreKind; 2] = [StoreKind::Replicated, StoreKind::Volatile];

struct Bench {
    engine: Arc<Engine>,
    table: Arc<EngineTable>,
}

impl Bench {
    fn new(kind: StoreKind) -> Self {
        let mut log = LogOptions::new(Size::mib(64));
        log.logs = 2;
        log.durability = match kind {
            StoreKind::Replicated => Durability::Replicated,
            StoreKind::Volatile | StoreKind::InPlace => Durability::Volatile,
        };
        let engine = Engine::open(EngineOptions { log }).expect("it has memory");
        let table = engine.table(TableId(3), 7, HashRange::ALL);
        let table = table.expect("a table");
        Self { engine, table }
    }

    fn site(&self, key: &[u8]) -> Site<'_> {
        Site {
            log: LogId(1),
            table: &self.table,
            hash: self.table.hash(key),
            now_s: 1,
            only_this_log: false,
        }
    }

    fn place(&self, key: &[u8]) -> KeyPlace {
        (self.table.id(), self.table.hash(key))
    }

    fn durable(&self) {
        let space = self.engine.space();
        for log in space.logs() {
            space.advance_durable(log, space.end_position(log));
        }
    }

    fn change(&self, key: &[u8], change: Change<'_>) -> Result<Outcome, EngineError> {
        let mutation = Mutation::new(self.table.id(), key, change);
        let applied = self.engine.apply(&self.site(key), &mutation, None)?;
        self.settle(applied);
        Ok(Outcome::Refused(pluvio_mutation::Unfit::Overflow))
    }

    fn settle(&self, applied: Awaited<Applied>) -> Outcome {
        self.durable();
        let durable = self.engine.confirm(&self.table, applied);
        durable.expect("it is durable").into_value()
    }

    fn put(&self, key: &[u8], value: &[u8]) {
        self.change(key, Change::Put(value.into()))
            .expect("there is room");
    }

    fn read(&self, key: &[u8]) -> Result<(u64, Option<Vec<u8>>), EngineError> {
        let get = Get::new(self.table.id(), key);
        let outcome = self.engine.get(&self.table, self.table.hash(key), &get)?;
        match outcome.into_pending() {
            Outcome::Unchanged { version, output } => Ok((
                version.0,
                match output {
                    Output::Bytes(bytes) => Some(bytes.to_vec()),
                    _ => None,
                },
            )),
            other => panic!("{other:?}"),
        }
    }

    fn step<'m>(&'m self, key: &'m [u8], change: Option<Change<'m>>) -> StepAt<'m> {
        let operation = match change {
            Some(change) => Operation::Mutate(Mutation::new(self.table.id(), key, change)),
            None => Operation::Get(Get::new(self.table.id(), key)),
        };
        StepAt {
            table: &self.table,
            hash: self.table.hash(key),
            step: TransactionStep::new(operation),
        }
    }

    fn prepare(&self, steps: &[StepAt<'_>], shares: &[Share]) -> Result<bool, NotTransacted> {
        let place = (steps[0].table.id(), steps[0].hash);
        let id = of_transaction(CLIENT, VOTE);
        let execution = match self.engine.admit(id, place, Duration::ZERO) {
            Admission::Execute(execution) => execution,
            Admission::Answer(outcome) => return Ok(is_yes(outcome.pending())),
            _ => panic!("it is not under way"),
        };
        let prepare = Prepare {
            client: CLIENT,
            home: place,
            shares,
        };
        let now = (prepare, Duration::from_secs(5));
        let done = self.engine.prepare((LogId(0), 1), steps, execution, now)?;
        self.durable();
        for change in done.changed {
            if let Some(slot) = change.slot {
                let slot = self.engine.space().confirm(slot).expect("it is durable");
                self.engine.settle_slot(&self.table, slot);
            }
        }
        Ok(is_yes(&done.outcome.into_pending()))
    }

    fn decide(&self, key: &[u8], wish: Option<bool>) -> Decided {
        let wish = (wish, Duration::ZERO);
        let decided = self.engine.decide(&self.site(key), CLIENT, wish);
        decided.expect("it is here").into_pending()
    }

    /// Gives whether it was locked.
    fn release(&self, key: &[u8], committed: bool) -> bool {
        let mut seen = None;
        let each = |key: &[u8], _: &Applied| seen = Some(key.to_vec());
        let released = self
            .engine
            .release(&self.site(key), (CLIENT, committed), each)
            .expect("there is room");
        match released {
            Released::Object(applied) => {
                self.settle(applied);
                assert_eq!(seen.as_deref(), Some(key));
                true
            }
            Released::NoneLeft(_) => false,
        }
    }

    /// The keys from a rank on, in as many scans as it takes. They end where a locked object is the
    /// next one; then with the rank from which nothing more can be scanned.
    fn scan(&self, from: Rank) -> (Vec<Vec<u8>>, Option<Rank>) {
        let (mut all, mut from) = (Vec::new(), Some(from));
        while let Some(next) = from {
            let options = ScanOptions {
                from: next,
                items: 1000,
                bytes: 1 << 20,
                values: false,
            };
            let scan = self.engine.scan(&self.table, HashRange::ALL, options);
            let scan = scan.into_pending();
            if scan.is_locked {
                assert!(scan.items.is_empty());
                return (all, Some(next));
            }
            all.extend(scan.items.into_iter().map(|item| item.key));
            from = (!scan.is_end).then(|| Rank(scan.last.0 + 1));
        }
        (all, None)
    }
}

// shows: PREP-1
#[test]
fn a_scan_ends_before_a_locked_object_and_begins_with_none() {
    let _marks = Marks::to_reach(&["scan-ends-before-locked-object"]);
    for kind in [StoreKind::Replicated, StoreKind::Volatile] {
        let bench = Bench::new(kind);
        let mut keys: Vec<Vec<u8>> = (0..200).map(|n| format!("key {n}").into_bytes()).collect();
        keys.iter().for_each(|key| bench.put(key, b"value"));
        keys.sort_by_key(|key| bench.table.hash(key));
        let locked = &keys[120];
        let steps = [bench.step(locked, put(b"new"))];
        let share = Share {
            sequence: VOTE,
            keys: vec![(steps[0].table.id(), steps[0].hash)],
        };
        assert!(bench.prepare(&steps, &[share]).unwrap());
        let kind = bench.table.hash_kind();
        let rank = kind.rank(bench.table.hash(locked));
        // Objects of one group stay together.
        let group = Rank(rank.0 >> kind.group_bits() << kind.group_bits());
        let begins = bench.scan(Rank(0));
        assert_eq!(begins, (keys[..120].to_vec(), Some(group)));
        assert_eq!(bench.scan(group), (Vec::new(), Some(group)));
        let behind = Rank(group.0 + (1 << kind.group_bits()));
        assert_eq!(bench.scan(behind), (keys[121..].to_vec(), None));
        assert_eq!(bench.decide(locked, Some(true)).committed, Some(true));
        assert!(bench.release(locked, true));
        assert_eq!(bench.scan(Rank(0)), (keys.clone(), None));
    }
}

fn put(value: &[u8]) -> Option<Change<'_>> {
    Some(Change::Put(value.into()))
}

/// `changed`, `read` and `deleted` exist, `new` does not.
fn prepared(kind: StoreKind) -> (Bench, Share) {
    let bench = Bench::new(kind);
    for key in [&b"changed"[..], b"read", b"deleted"] {
        bench.put(key, b"before");
        bench.put(key, b"old");
    }
    let steps = [
        bench.step(b"changed", put(b"after")),
        bench.step(b"read", None),
        bench.step(b"deleted", Some(Change::Delete)),
        bench.step(b"new", put(b"made")),
    ];
    let share = Share {
        sequence: VOTE,
        keys: steps
            .iter()
            .map(|step| (step.table.id(), step.hash))
            .collect(),
    };
    assert!(
        bench
            .prepare(&steps, core::slice::from_ref(&share))
            .unwrap()
    );
    (bench, share)
}

const KEYS: [&[u8]; 4] = [b"changed", b"read", b"deleted", b"new"];

// shows: PREP-1
#[test]
fn locked_keys_are_neither_read_nor_changed_until_they_are_released() {
    for kind in KINDS {
        for committed in [true, false] {
            let (bench, share) = prepared(kind);
            for key in KEYS {
                assert!(matches!(bench.read(key), Err(EngineError::Locked)));
                let hash = bench.table.hash(key);
                let shown = bench.engine.show(&bench.table, hash, key, |_| ());
                assert!(shown.is_none());
                let change = bench.change(key, Change::Delete);
                assert!(matches!(change, Err(EngineError::Locked)));
                let steps = [bench.step(b"other", put(b"x")), bench.step(key, None)];
                let done = bench.engine.transact((LogId(0), 1), &steps, None);
                let locked = matches!(done, Err(NotTransacted::Engine(EngineError::Locked)));
                assert!(locked);
            }
            let (seen, locked) = bench.scan(Rank(0));
            assert!(seen.is_empty() && locked.is_some());
            let open = Decided {
                committed: None,
                shares: vec![share.clone()],
            };
            assert_eq!(bench.decide(b"changed", None), open);
            let told = Decided {
                committed: Some(committed),
                ..open
            };
            for wish in [Some(committed), Some(!committed), None] {
                assert_eq!(bench.decide(b"changed", wish), told, "the first one counts");
            }
            for key in KEYS {
                assert!(bench.release(key, committed), "{kind:?} {committed}");
                assert!(!bench.release(key, committed));
            }
            let value = |key| bench.read(key).unwrap().1;
            let text = |text: &[u8]| Some(text.to_vec());
            let (version, read) = bench.read(b"read").unwrap();
            assert_eq!(read, text(b"old"));
            let (seen, locked) = bench.scan(Rank(0));
            let objects = seen.len();
            assert_eq!(locked, None);
            match committed {
                true => {
                    assert_eq!(value(b"changed"), text(b"after"));
                    assert_eq!((value(b"deleted"), value(b"new")), (None, text(b"made")));
                    assert_eq!(objects, 3);
                }
                false => {
                    assert_eq!(value(b"changed"), text(b"old"));
                    assert_eq!((value(b"deleted"), value(b"new")), (text(b"old"), None));
                    assert_eq!(objects, 3);
                }
            }
            let stats = bench.engine.stats();
            assert_eq!(stats.objects, 3);
            let bytes = match committed {
                true => "changedafter".len() + "readold".len() + "newmade".len(),
                false => "changedold".len() + "readold".len() + "deletedold".len(),
            };
            assert_eq!(stats.object_bytes, bytes as u64);
            // Clients know it by the version that it had.
            let is = TransactionStep::version_is(bench.table.id(), b"read", ObjectVersion(version));
            let hash = bench.table.hash(b"read");
            let steps = [StepAt {
                table: &bench.table,
                hash,
                step: is,
            }];
            let done = bench.engine.transact((LogId(0), 1), &steps, None).unwrap();
            assert!(is_yes(&done.outcome.into_pending()));
            bench.put(b"read", b"new");
            assert!(bench.read(b"read").unwrap().0 > version);
            bench.change(b"read", Change::Delete).unwrap();
            assert_eq!(bench.engine.stats().objects, 2);
        }
    }
}

#[test]
fn an_object_that_was_only_read_keeps_its_version() {
    for kind in KINDS {
        let (bench, _) = prepared(kind);
        let before = Bench::new(kind);
        before.put(b"read", b"before");
        before.put(b"read", b"old");
        for key in KEYS {
            bench.release(key, true);
        }
        assert_eq!(
            bench.read(b"read").unwrap().0,
            before.read(b"read").unwrap().0
        );
    }
}

// shows: PREP-2
#[test]
fn what_is_decided_before_it_is_prepared_is_aborted() {
    for kind in KINDS {
        for wish in [Some(true), Some(false), None] {
            let bench = Bench::new(kind);
            let aborted = Decided {
                committed: Some(false),
                shares: Vec::new(),
            };
            assert_eq!(bench.decide(b"k", wish), aborted);
            let steps = [bench.step(b"k", put(b"late"))];
            assert!(!bench.prepare(&steps, &[]).unwrap());
            assert_eq!(bench.read(b"k").unwrap().1, None);
        }
    }
}

// shows: PREP-3
#[test]
fn a_vote_that_was_asked_for_before_it_was_given_is_no() {
    for kind in KINDS {
        let bench = Bench::new(kind);
        let ask = |key| {
            let vote = bench
                .engine
                .vote(&bench.site(key), (CLIENT, VOTE), Duration::ZERO);
            vote.expect("it is here").into_pending()
        };
        assert!(!ask(b"k"));
        assert!(
            !bench
                .prepare(&[bench.step(b"k", put(b"late"))], &[])
                .unwrap()
        );
        assert!(!ask(b"k"));
        let (bench, _) = prepared(kind);
        let vote = bench
            .engine
            .vote(&bench.site(b"changed"), (CLIENT, VOTE), Duration::ZERO);
        assert!(vote.expect("it is here").into_pending());
    }
}

#[test]
fn locks_move_with_their_keys() {
    let (bench, share) = prepared(StoreKind::Replicated);
    let mut entries = Vec::new();
    let mut next = Some(Rank(0));
    while let Some(from) = next {
        let copied = bench
            .engine
            .copy_objects(&bench.table, HashRange::ALL, from, 1 << 20);
        entries.extend(copied.data);
        next = copied.next;
    }
    let results = bench
        .engine
        .results_of(&bench.table, HashRange::ALL, Duration::ZERO);
    bench.engine.copy_results(&results.records, &mut entries);
    let other = Bench::new(StoreKind::Replicated);
    let tablets = vec![(Arc::clone(&other.table), HashRange::ALL)];
    let mut replay = Replay::new(&other.engine, LogId(0), tablets).unwrap();
    replay.replay(&entries, Duration::ZERO).unwrap();
    let (side, _) = replay.finish();
    core::mem::forget(side);
    let late = Duration::from_secs(100);
    let locked = |bench: &Bench, before| bench.engine.locked_since(before, 100);
    assert_eq!(locked(&other, Duration::ZERO).len(), KEYS.len());
    for found in locked(&other, Duration::ZERO) {
        assert_eq!((found.client, found.home), (CLIENT, share.keys[0]));
    }
    assert!(
        locked(&bench, Duration::from_secs(4)).is_empty(),
        "they are too young"
    );
    assert_eq!(locked(&bench, late).len(), KEYS.len());
    let (keys, first) = bench.engine.locked_now();
    assert_eq!(keys, KEYS.len() as u64);
    assert_eq!(first, Some(Duration::from_secs(5)));
    let told = Decided {
        committed: Some(true),
        shares: vec![share],
    };
    assert_eq!(other.decide(b"changed", Some(true)), told);
    for key in KEYS {
        assert!(other.release(key, true));
    }
    assert_eq!(other.read(b"new").unwrap().1, Some(b"made".to_vec()));
    // A release goes on until it finds no more under the hash.
    assert!(KEYS.iter().all(|key| !other.release(key, true)));
    assert_eq!(other.engine.locked_now(), (0, None));
    assert!(locked(&other, late).is_empty());
}

#[test]
fn what_is_finished_is_forgotten() {
    let (bench, _) = prepared(StoreKind::Replicated);
    bench.decide(b"changed", Some(true));
    assert_eq!(bench.engine.completions().results(), 2);
    bench.engine.completions().forget(CLIENT, VOTE);
    bench.engine.completions().forget(CLIENT, DECISION);
    assert_eq!(bench.engine.completions().results(), 0);
    assert!(!bench.engine.completions().knows(CLIENT, DECISION));
    for place in KEYS.map(|key| bench.place(key)) {
        assert_eq!(place.0, bench.table.id());
    }
}

// shows: PREP-4
#[test]
fn a_release_finds_room_in_a_full_memory() {
    for kind in KINDS {
        for committed in [true, false] {
            let bench = Bench::new(kind);
            let value = vec![7; 400_000];
            bench.put(b"old", &value);
            let steps = [
                bench.step(b"old", put(&value)),
                bench.step(b"new", put(&value)),
                bench.step(b"read", None),
            ];
            assert!(bench.prepare(&steps, &[]).unwrap());
            let mut number = 0_u32;
            let full = loop {
                let key = number.to_le_bytes();
                number += 1;
                match bench.change(&key, Change::Put(value.as_slice().into())) {
                    Ok(_) => {}
                    Err(error) => break error,
                }
            };
            assert!(matches!(full, EngineError::Full { .. }), "{full:?}");
            for key in [&b"old"[..], b"new", b"read"] {
                assert!(bench.release(key, committed), "{kind:?} {committed}");
            }
        }
    }
}

#[test]
fn a_new_object_has_the_version_that_was_told() {
    for kind in KINDS {
        let bench = Bench::new(kind);
        let id = of_transaction(CLIENT, VOTE);
        let Admission::Execute(execution) =
            bench.engine.admit(id, bench.place(b"new"), Duration::ZERO)
        else {
            panic!("it is new");
        };
        let prepare = Prepare {
            client: CLIENT,
            home: bench.place(b"new"),
            shares: &[],
        };
        let steps = [bench.step(b"new", put(b"made"))];
        let now = (prepare, Duration::ZERO);
        let done = bench.engine.prepare((LogId(0), 1), &steps, execution, now);
        let outcome = done.unwrap().outcome.into_pending();
        let Outcome::Together { steps, .. } = outcome else {
            panic!("{outcome:?}");
        };
        let Outcome::Written { version, .. } = &steps[0] else {
            panic!("{steps:?}");
        };
        bench.durable();
        assert!(bench.release(b"new", true));
        assert_eq!(bench.read(b"new").unwrap().0, version.0);
    }
}

#[test]
fn who_has_locked_a_key_has_voted_for_it() {
    let (bench, _) = prepared(StoreKind::Replicated);
    bench.engine.completions().forget(CLIENT, VOTE);
    let vote = (CLIENT, VOTE);
    let vote = bench
        .engine
        .vote(&bench.site(b"changed"), vote, Duration::ZERO);
    assert!(vote.expect("it is here").into_pending());
}

// shows: PREP-5
#[test]
fn full_memory_has_room_for_locks_of_keys_that_are_read_or_deleted() {
    for (kind, committed) in KINDS
        .into_iter()
        .flat_map(|kind| [(kind, true), (kind, false)])
    {
        let bench = Bench::new(kind);
        let mut keys = Vec::new();
        for len in [100_000, 1000, 1] {
            let value = vec![b'v'; len];
            loop {
                let key = format!("key {}", keys.len()).into_bytes();
                match bench.change(&key, Change::Put((&value[..]).into())) {
                    Ok(_) => keys.push(key),
                    Err(EngineError::Full { .. }) => break,
                    Err(other) => panic!("{other:?}"),
                }
            }
        }
        let [first, second, third] = [&keys[0][..], &keys[1], &keys[2]];
        // A change of one of them makes it an append like others.
        let steps = [
            bench.step(first, put(b"new")),
            bench.step(second, None),
            bench.step(b"absent", None),
        ];
        let share = |steps: &[StepAt<'_>]| Share {
            sequence: VOTE,
            keys: steps.iter().map(|s| (s.table.id(), s.hash)).collect(),
        };
        let refused = bench.prepare(&steps, &[share(&steps)]);
        assert!(
            matches!(
                refused,
                Err(NotTransacted::Engine(EngineError::Full { .. }))
            ),
            "{kind:?}"
        );
        let steps = [
            bench.step(first, Some(Change::Delete)),
            bench.step(second, None),
            bench.step(third, Some(Change::Delete)),
            bench.step(b"absent", None),
        ];
        assert!(bench.prepare(&steps, &[share(&steps)]).unwrap(), "{kind:?}");
        let decided = bench.decide(first, Some(committed)).committed;
        assert_eq!(decided, Some(committed));
        for key in [third, b"absent", second, first] {
            assert!(bench.release(key, committed));
        }
        let len = |key: &[u8]| bench.read(key).unwrap().1.map(|value| value.len());
        let left = (!committed).then_some(100_000);
        assert_eq!([len(first), len(third)], [left; 2], "{kind:?}");
        assert_eq!((len(second), len(b"absent")), (Some(100_000), None));
    }
}
