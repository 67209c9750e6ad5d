//! Every anomaly is found by its name, and no history of a correct cluster has one.

use super::*;
use crate::history::transactions::{Step, Transaction};
use crate::random::Stream;
use core::time::Duration;
use std::collections::BTreeMap;

const X: u32 = 0;
const Y: u32 = 1;
const L: u32 = 2;
const M: u32 = 3;

/// Two registers and two lists, and these transactions.
fn history(all: Vec<Transaction>) -> Transactions {
    let mut transactions = Transactions::default();
    for (name, holds) in [
        ("x", Holds::Register),
        ("y", Holds::Register),
        ("l", Holds::List),
        ("m", Holds::List),
    ] {
        transactions.key(name, holds);
    }
    transactions.all = all;
    transactions
}

fn one(times: (u64, u64), ended: Ended, steps: &[Step]) -> Transaction {
    Transaction {
        client: 1,
        steps: steps.to_vec(),
        invoked: times.0,
        returned: times.1,
        ended,
        at: Duration::ZERO,
        until: Duration::ZERO,
    }
}

/// One that overlaps with all the others.
fn done(steps: &[Step]) -> Transaction {
    one((10, 90), Ended::Done, steps)
}

fn unknown(steps: &[Step]) -> Transaction {
    one((10, u64::MAX), Ended::Unknown, steps)
}

fn read(key: u32, saw: &[u64]) -> Step {
    let saw = Some(saw.to_vec());
    Step {
        key,
        what: What::Read { saw },
    }
}

fn set(key: u32, token: u64) -> Step {
    Step {
        key,
        what: What::Set { token },
    }
}

fn append(key: u32, token: u64) -> Step {
    appended(key, token, None)
}

fn appended(key: u32, token: u64, length: Option<u64>) -> Step {
    Step {
        key,
        what: What::Append { token, length },
    }
}

fn delete(key: u32, found: Option<bool>) -> Step {
    Step {
        key,
        what: What::Delete { found },
    }
}

/// What is found in these transactions.
fn told(all: Vec<Transaction>) -> Vec<String> {
    let found = strictly_serializable(&history(all));
    for violation in &found {
        assert_eq!(violation.check, Check::StrictlySerializable);
        assert!(!violation.evidence.is_empty(), "{violation}");
    }
    found.iter().map(ToString::to_string).collect()
}

#[track_caller]
fn assert_told(words: &str, all: Vec<Transaction>) {
    let told = told(all);
    let is_there = told.iter().any(|text| text.contains(words));
    assert!(is_there, "{words} is not in {told:#?}");
}

#[track_caller]
fn assert_fine(all: Vec<Transaction>) {
    assert_eq!(told(all), Vec::<String>::new());
}

// shows: CHECK-2
#[test]
fn writes_that_go_around_are_found() {
    let all = vec![
        done(&[append(L, 1), append(M, 1_001)]),
        done(&[append(L, 2), append(M, 1_002)]),
        done(&[read(L, &[1, 2])]),
        done(&[read(M, &[1_002, 1_001])]),
    ];
    assert_told("(G0)", all);
}

#[test]
fn information_that_goes_around_is_found() {
    let all = vec![
        done(&[set(X, 1), read(Y, &[2])]),
        done(&[set(Y, 2), read(X, &[1])]),
    ];
    assert_told("(G1c)", all);
    let all = vec![
        done(&[append(L, 1), read(M, &[2])]),
        done(&[append(M, 2), read(L, &[1])]),
    ];
    assert_told("(G1c)", all);
}

#[test]
fn aborted_reads_are_found() {
    for saw in [read(X, &[1]), read(L, &[2])] {
        let failed = one((10, 90), Ended::NotDone, &[set(X, 1), append(L, 2)]);
        assert_told("(G1a)", vec![failed, done(&[saw])]);
    }
    for saw in [read(X, &[1]), read(L, &[2])] {
        assert_told("nobody wrote", vec![done(&[saw])]);
    }
    let wrote = done(&[append(M, 2)]);
    assert_told("to another key", vec![wrote, done(&[read(L, &[2])])]);
}

#[test]
fn intermediate_reads_are_found() {
    let writer = done(&[set(X, 1), append(L, 3), set(X, 2), append(L, 4)]);
    assert_told("(G1b)", vec![writer.clone(), done(&[read(X, &[1])])]);
    assert_told("(G1b)", vec![writer.clone(), done(&[read(L, &[3])])]);
    assert_fine(vec![writer, done(&[read(X, &[2]), read(L, &[3, 4])])]);
}

#[test]
fn reads_that_are_overtaken_are_found() {
    // Half of a transaction is seen.
    let writer = done(&[set(X, 1), append(L, 2)]);
    let all = vec![
        writer,
        done(&[read(X, &[1]), read(L, &[])]),
        done(&[read(L, &[2])]),
    ];
    assert_told("(G-single)", all);
    let all = vec![
        done(&[append(L, 1), append(M, 2)]),
        done(&[read(L, &[]), read(M, &[2])]),
        done(&[read(L, &[1])]),
    ];
    assert_told("(G-single)", all);
}

#[test]
fn write_skew_is_found() {
    let all = vec![
        done(&[read(L, &[]), append(M, 1)]),
        done(&[read(M, &[]), append(L, 2)]),
        done(&[read(L, &[2]), read(M, &[1])]),
    ];
    assert_told("(G2)", all);
    let all = vec![
        done(&[read(X, &[1]), read(Y, &[2]), set(X, 3)]),
        done(&[read(X, &[1]), read(Y, &[2]), set(Y, 4)]),
        done(&[set(X, 1), set(Y, 2)]),
    ];
    assert_told("(G2)", all);
}

#[test]
fn lost_updates_are_found() {
    let all = vec![
        done(&[set(X, 1)]),
        done(&[read(X, &[1]), set(X, 2)]),
        done(&[read(X, &[1]), set(X, 3)]),
    ];
    assert_told("an update was lost", all);
    let all = vec![
        done(&[read(L, &[]), append(L, 2)]),
        done(&[read(L, &[]), append(L, 3)]),
    ];
    assert_told("one was lost", all);
}

#[test]
fn lost_and_doubled_appends_are_found() {
    let acknowledged = one((1, 5), Ended::Done, &[append(L, 1)]);
    let other = one((1, 5), Ended::Done, &[append(L, 2)]);
    let late = one((6, 8), Ended::Done, &[read(L, &[2])]);
    let all = vec![acknowledged.clone(), other, late];
    assert_told("as real time shows", all);
    // Nobody ever saw the list.
    let nothing = one((6, 8), Ended::Done, &[read(L, &[])]);
    assert_fine(vec![acknowledged.clone()]);
    assert_told("key l", vec![acknowledged.clone(), nothing]);
    let twice = done(&[read(L, &[1, 1])]);
    assert_told("appended twice", vec![acknowledged.clone(), twice]);
    let all = vec![
        acknowledged,
        unknown(&[append(L, 2)]),
        done(&[read(L, &[1, 2, 1])]),
    ];
    assert_told("appended twice", all);
    let fork = vec![
        done(&[append(L, 1)]),
        done(&[append(L, 2)]),
        done(&[read(L, &[1])]),
        done(&[read(L, &[2])]),
    ];
    assert_told("different orders", fork);
    let place = vec![
        done(&[appended(L, 1, Some(2))]),
        done(&[append(L, 2)]),
        done(&[read(L, &[1, 2])]),
    ];
    assert_told("not at its place", place);
}

#[test]
fn what_only_real_time_shows_is_found() {
    let stale = vec![
        one((1, 2), Ended::Done, &[set(X, 1)]),
        one((3, 4), Ended::Done, &[set(X, 2)]),
        one((5, 6), Ended::Done, &[read(X, &[1])]),
    ];
    assert_told("each of two values came before the other", stale);
    let stale = vec![
        one((1, 2), Ended::Done, &[append(L, 1)]),
        one((3, 4), Ended::Done, &[append(L, 2)]),
        one((5, 6), Ended::Done, &[read(L, &[1])]),
        one((7, 8), Ended::Done, &[read(L, &[1, 2])]),
    ];
    assert_told("(G-single), as real time shows", stale);
    // Each key alone is linearizable. Together they are not: y is older than x in the one read, and
    // x older than y in the other.
    let apart = vec![
        one((1, 2), Ended::Done, &[set(X, 1), set(Y, 2)]),
        one((3, 20), Ended::Done, &[set(X, 3)]),
        one((3, 20), Ended::Done, &[set(Y, 4)]),
        one((4, 19), Ended::Done, &[read(X, &[3]), read(Y, &[2])]),
        one((4, 19), Ended::Done, &[read(X, &[1]), read(Y, &[4])]),
        one((21, 22), Ended::Done, &[read(X, &[3]), read(Y, &[4])]),
    ];
    assert_told("as real time shows", apart);
    let early = vec![
        one((1, 2), Ended::Done, &[read(X, &[1])]),
        one((3, 4), Ended::Done, &[set(X, 1)]),
    ];
    assert_told("as real time shows", early);
}

#[test]
fn deletes_are_understood() {
    let set_and = |last: &[Transaction]| {
        let mut all = vec![one((1, 2), Ended::Done, &[set(X, 1)])];
        all.extend(last.to_vec());
        all
    };
    let absent = one((5, 6), Ended::Done, &[read(X, &[])]);
    let back = one((7, 8), Ended::Done, &[read(X, &[1])]);
    assert_told("not deleted", set_and(core::slice::from_ref(&absent)));
    let deleted = one((3, 4), Ended::Done, &[delete(X, Some(true))]);
    assert_fine(set_and(&[deleted.clone(), absent.clone()]));
    assert_told(
        "came before the other",
        set_and(&[deleted.clone(), back.clone()]),
    );
    let maybe = one((3, u64::MAX), Ended::Unknown, &[delete(X, None)]);
    assert_fine(set_and(&[maybe.clone(), absent.clone()]));
    assert_fine(set_and(&[maybe, back.clone()]));
    let failed = one((3, 4), Ended::NotDone, &[delete(X, None)]);
    assert_told("not deleted", set_and(&[failed, absent.clone()]));
    let twice = one((7, 8), Ended::Done, &[delete(X, Some(false))]);
    assert_fine(set_and(&[deleted.clone(), absent, twice]));
    let nothing = one((3, 4), Ended::Done, &[delete(X, Some(false))]);
    assert_told("not deleted", set_and(&[nothing]));
    let own = done(&[delete(Y, Some(false)), set(Y, 5), delete(Y, Some(true))]);
    assert_fine(set_and(&[own]));
    assert_told(
        "nothing to delete",
        set_and(&[done(&[read(X, &[1]), delete(X, Some(false))])]),
    );
}

#[test]
fn a_transaction_that_contradicts_itself_is_found() {
    for steps in [
        [set(X, 1), read(X, &[])],
        [append(L, 1), read(L, &[])],
        [read(L, &[]), appended(L, 1, Some(2))],
    ] {
        assert_told("a transaction", vec![done(&steps)]);
    }
    let all = vec![
        done(&[append(L, 1)]),
        done(&[read(L, &[]), read(L, &[1])]),
        done(&[read(L, &[1])]),
    ];
    assert_told("in one moment", all);
    assert_told(
        "tells nothing",
        vec![done(&[set(X, 1)]), done(&[set(Y, 1)])],
    );
}

#[test]
fn unknown_outcomes_may_have_happened_late_or_not_at_all() {
    let open = one((1, u64::MAX), Ended::Unknown, &[append(L, 1), set(X, 2)]);
    let before = one((3, 4), Ended::Done, &[read(L, &[]), read(X, &[])]);
    let after = one((5, 6), Ended::Done, &[read(L, &[1]), read(X, &[2])]);
    assert_fine(vec![open.clone(), before.clone()]);
    assert_fine(vec![open.clone(), before.clone(), after.clone()]);
    // It stays, and it is whole.
    let undone = one((7, 8), Ended::Done, &[read(L, &[])]);
    assert_told("as real time shows", vec![open.clone(), after, undone]);
    let half = one((5, 6), Ended::Done, &[read(L, &[1]), read(X, &[])]);
    assert_told("before the next", vec![open, half]);
    // What a condition asked for was so.
    let swap = one((1, u64::MAX), Ended::Unknown, &[read(X, &[]), set(X, 2)]);
    let earlier = one((3, 4), Ended::Done, &[set(X, 1)]);
    let found = one((5, 6), Ended::Done, &[read(X, &[2])]);
    assert_fine(vec![swap.clone(), found.clone()]);
    assert_told("came before the other", vec![swap, earlier, found]);
}

#[test]
fn a_cycle_is_told_with_its_operations_and_reasons() {
    let found = told(vec![
        done(&[read(L, &[]), append(M, 1)]),
        done(&[read(M, &[]), append(L, 2)]),
        done(&[read(L, &[2]), read(M, &[1])]),
    ]);
    let text = &found[0];
    for words in [
        "2 transactions, each before the next",
        "T1: [0.000000s 0.000000s] client 1: l: read [], m: append 1 -> done",
        "T2 wrote key l after the version that T1 read",
        "T1 wrote key m after the version that T2 read",
    ] {
        assert!(text.contains(words), "{text}");
    }
}

/// A store with one transaction after the other, and what its clients record.
struct Serial {
    draw: Stream,
    keys: u32,
    state: BTreeMap<u32, Vec<u64>>,
    token: u64,
    tick: u64,
}

impl Serial {
    fn new(seed: u64, keys: u32) -> (Self, Transactions) {
        let mut transactions = Transactions::default();
        for key in 0..keys {
            let holds = if key % 2 == 0 {
                Holds::Register
            } else {
                Holds::List
            };
            transactions.key(format!("key {key}"), holds);
        }
        let serial = Self {
            draw: Stream::new(seed, "serial"),
            keys,
            state: BTreeMap::new(),
            token: 0,
            tick: 100,
        };
        (serial, transactions)
    }

    fn step(&mut self, key: u32) -> Step {
        let value = self.state.entry(key).or_default();
        self.token += 1;
        let token = self.token;
        let what = match (self.draw.below(10), key % 2) {
            (0..4, _) => What::Read {
                saw: Some(value.clone()),
            },
            (_, 1) => {
                value.push(token);
                let told = self.draw.below(2) == 0;
                let length = told.then_some(value.len() as u64);
                What::Append { token, length }
            }
            (4..6, _) => {
                let found = Some(!value.is_empty());
                value.clear();
                What::Delete { found }
            }
            (_, _) => {
                *value = vec![token];
                What::Set { token }
            }
        };
        Step { key, what }
    }

    /// The next transaction. Its times enclose the moment at which it takes effect, and overlap
    /// with others. Some answers get lost, and some failed.
    fn next(&mut self, first: u32, width: u32) -> Transaction {
        self.tick += 10;
        let (early, late) = (self.draw.below(60), self.draw.below(60));
        let fate = self.draw.below(20);
        let count = 1 + self.draw.below(4);
        let before = self.state.clone();
        let steps = (0..count).map(|_| {
            let key = first + self.draw.below(u64::from(width)) as u32;
            self.step(key % self.keys)
        });
        let mut steps: Vec<Step> = steps.collect();
        let ended = match fate {
            0 => Ended::NotDone,
            1 | 2 => Ended::Unknown,
            _ => Ended::Done,
        };
        if ended != Ended::Done {
            if fate < 2 {
                self.state = before;
            }
            for step in &mut steps {
                match &mut step.what {
                    What::Read { saw } => *saw = None,
                    What::Append { length, .. } => *length = None,
                    What::Delete { found } => *found = None,
                    What::Set { .. } => {}
                }
            }
        }
        let returned = if ended == Ended::Unknown {
            u64::MAX
        } else {
            self.tick + late
        };
        one((self.tick - early, returned), ended, &steps)
    }
}

/// Sorted by their beginnings, as journals write them.
fn sorted(mut transactions: Transactions) -> Transactions {
    transactions.all.sort_by_key(|one| one.invoked);
    transactions
}

// shows: CHECK-1
#[test]
fn random_serial_histories_hold() {
    for seed in 0..60 {
        let (mut serial, mut transactions) = Serial::new(seed, 6);
        for _ in 0..300 {
            let next = serial.next(0, 6);
            transactions.all.push(next);
        }
        let found = strictly_serializable(&sorted(transactions));
        assert!(found.is_empty(), "seed {seed}: {}", found[0]);
    }
}

/// What a change of one answer makes of a random history is found, most of the time.
#[test]
fn random_histories_with_a_wrong_answer_are_found() {
    let (mut planted, mut found) = (0, 0);
    for seed in 0..200 {
        let (mut serial, mut transactions) = Serial::new(seed, 4);
        for _ in 0..80 {
            let next = serial.next(0, 4);
            transactions.all.push(next);
        }
        let last = transactions.all.iter_mut().skip(40);
        let mut reads = last.filter(|one| one.ended == Ended::Done).flat_map(|one| {
            let steps = one.steps.iter_mut();
            steps.filter_map(|step| match &mut step.what {
                What::Read { saw: Some(saw) } if step.key % 2 == 1 => Some(saw),
                What::Read { .. }
                | What::Set { .. }
                | What::Append { .. }
                | What::Delete { .. } => None,
            })
        });
        let Some(saw) = reads.next() else { continue };
        if saw.len() < 12 {
            continue;
        }
        // As it was a dozen appends ago: longer than any overlap.
        saw.truncate(saw.len() - 12);
        planted += 1;
        found += u32::from(!strictly_serializable(&sorted(transactions)).is_empty());
    }
    assert!(planted > 50, "{planted}");
    assert_eq!(found, planted);
}

/// A million operations: for the one who wants to know the time and memory of it. Run by hand:
/// `cargo test --release -p pluvio-sim a_million -- --ignored --nocapture`.
#[test]
#[ignore = "it is a measurement"]
fn a_million_operations() {
    let keys = 40_000;
    let (mut serial, mut transactions) = Serial::new(1, keys);
    for number in 0..400_000_u32 {
        // A few keys at a time, each for some hundred operations.
        serial.state.retain(|key, _| *key + 8 > number / 20);
        let next = serial.next((number / 20) & !1, 4);
        transactions.all.push(next);
    }
    let transactions = sorted(transactions);
    let steps: usize = transactions.all.iter().map(|one| one.steps.len()).sum();
    let found = strictly_serializable(&transactions);
    assert!(found.is_empty(), "{}", found[0]);
    println!("{steps} operations");
}
