//! Each checker must find the error it is for, and none in what a correct cluster does.

mod exchanges;
mod expiry;
mod fake;

use super::accounts::{Account, Contents, not_accounted_for, not_found};
use super::ownership::{Served, not_healthy, one_server_each, table_is_whole};
use super::*;
use crate::history::{Action, Condition, Content, KeyKind, Outcome, Plain, Scan};
use core::time::Duration;
use pluvio_units::{ClusterId, HashRange, KeyHash, SegmentId, ServerId, TableId};
use pluvio_wire::{ServerInfo, ServerList, ServerState, TableInfo, TabletInfo, TabletState};
use std::collections::BTreeSet;

const READ: Action = Action::Read;
const DELETE: Action = Action::Delete { condition: None };

fn write(id: u64) -> Action {
    write_if(id, None)
}

fn write_if(id: u64, version: Option<u64>) -> Action {
    Action::Write {
        content: Content::Bytes(id),
        condition: version.map(Condition::version),
    }
}

fn add(by: i64) -> Action {
    Action::Add {
        by,
        condition: None,
    }
}

fn found(version: u64, id: u64) -> Outcome {
    Outcome::Found {
        version,
        content: Content::Bytes(id),
    }
}

fn wrote(version: u64, replaced: u64) -> Outcome {
    Outcome::Wrote { version, replaced }
}

/// A key on which one operation follows the other, with `repeats` each.
fn sequence(kind: KeyKind, operations: &[(Action, Outcome, u8)]) -> History {
    let mut history = History::default();
    let key = history.key("k", kind);
    for (action, outcome, repeats) in operations {
        let begun = history.invoke(key, 1, *action, Duration::ZERO);
        history.finish(begun, *outcome, *repeats, Duration::ZERO);
    }
    history
}

fn broken(history: &History) -> BTreeSet<Check> {
    let verdict = check_history(history, 100_000);
    assert_eq!(verdict.undecided, 0);
    verdict.violations.iter().map(|v| v.check).collect()
}

fn register(operations: &[(Action, Outcome)]) -> BTreeSet<Check> {
    let operations: Vec<_> = operations.iter().map(|(a, o)| (*a, *o, 0)).collect();
    broken(&sequence(KeyKind::Register, &operations))
}

/// The planted error is found by the checker for it, and by the one for everything.
fn assert_found(check: Check, operations: &[(Action, Outcome)]) {
    let found = register(operations);
    assert!(found.contains(&check), "{check:?} in {found:?}");
    assert!(found.contains(&Check::Linearizable), "{found:?}");
}

#[test]
fn a_lost_acknowledged_write_is_found() {
    let check = Check::AcknowledgedWriteIsReadable;
    let start = [(write(1), wrote(1, 0)), (write(2), wrote(2, 1))];
    for end in [
        (READ, found(1, 1)),
        (READ, Outcome::Missing),
        (write(3), wrote(4, 1)),
        (DELETE, Outcome::Deleted { version: 0 }),
        (write_if(3, Some(7)), Outcome::Rejected { version: 1 }),
    ] {
        assert_found(check, &[start[0], start[1], end]);
    }
    // A delete that may have happened explains it.
    let explained = [
        start[0],
        start[1],
        (DELETE, Outcome::Unknown),
        (READ, Outcome::Missing),
    ];
    assert_eq!(register(&explained), BTreeSet::new());
}

#[test]
fn a_read_that_goes_back_is_found() {
    let operations = [
        (write(1), wrote(1, 0)),
        (write(2), Outcome::Unknown),
        (READ, found(2, 2)),
        (READ, found(1, 1)),
    ];
    assert_found(Check::ReadsNeverGoBack, &operations);
    assert_eq!(register(&operations[..3]), BTreeSet::new());
}

#[test]
fn what_was_deleted_and_comes_back_is_found() {
    let deleted = [
        (write(1), wrote(1, 0)),
        (DELETE, Outcome::Deleted { version: 1 }),
        (READ, found(1, 1)),
    ];
    assert_found(Check::DeletedStaysDeleted, &deleted);
    let missing = [
        (write(1), wrote(3, 0)),
        (DELETE, Outcome::Unknown),
        (READ, Outcome::Missing),
        (READ, found(3, 1)),
    ];
    assert_found(Check::DeletedStaysDeleted, &missing);
}

#[test]
fn versions_that_do_not_grow_are_found() {
    let reused = [
        (write(1), wrote(5, 0)),
        (DELETE, Outcome::Deleted { version: 5 }),
        (write(2), wrote(5, 0)),
    ];
    assert_found(Check::VersionsGrow, &reused);
    let back = [(write(1), wrote(5, 0)), (write(2), wrote(4, 5))];
    assert_found(Check::VersionsGrow, &back);
    let two_contents = [
        (write(1), Outcome::Unknown),
        (write(2), Outcome::Unknown),
        (READ, found(1, 1)),
        (READ, found(1, 2)),
    ];
    assert_found(Check::VersionsGrow, &two_contents);
}

#[test]
fn a_write_that_takes_effect_twice_is_found_also_when_it_was_sent_again() {
    let operations = [
        (write(1), wrote(2, 1), 1),
        (READ, found(2, 1), 0),
        (READ, found(3, 1), 0),
    ];
    let first = (write(9), wrote(1, 0), 0);
    // Also when it was sent again to another server.
    let twice = sequence(
        KeyKind::Register,
        &[first, operations[0], operations[1], operations[2]],
    );
    assert!(broken(&twice).contains(&Check::ExactlyOnce));
    assert!(broken(&twice).contains(&Check::Linearizable));

    // By a master that crashed, then by the next one: somebody read it in between.
    let mut history = History::default();
    let key = history.key("k", KeyKind::Register);
    let begun = history.invoke(key, 1, write(1), Duration::ZERO);
    let reading = history.invoke(key, 2, READ, Duration::ZERO);
    history.finish(reading, found(1, 1), 0, Duration::ZERO);
    history.finish(begun, wrote(2, 1), 1, Duration::ZERO);
    let strict = broken(&history);
    assert!(strict.contains(&Check::ExactlyOnce), "{strict:?}");
    assert!(strict.contains(&Check::Linearizable), "{strict:?}");
}

#[test]
fn an_effect_of_what_was_not_executed_is_found() {
    let operations = [
        (write(1), wrote(1, 0)),
        (write(2), Outcome::NotDone),
        (READ, found(2, 2)),
    ];
    assert_found(Check::NotDoneHasNoEffect, &operations);
    let rejected = [
        (write(1), wrote(1, 0)),
        (write_if(2, Some(9)), Outcome::Rejected { version: 1 }),
        (READ, found(2, 2)),
    ];
    assert_found(Check::NotDoneHasNoEffect, &rejected);
    assert_found(Check::NotDoneHasNoEffect, &[(READ, found(1, 77))]);
    let damaged = Outcome::Found {
        version: 1,
        content: Content::Damaged(3),
    };
    assert_found(
        Check::NotDoneHasNoEffect,
        &[(write(1), wrote(1, 0)), (READ, damaged)],
    );
    let too_early = [(READ, found(1, 1)), (write(1), wrote(1, 0))];
    assert_found(Check::NotDoneHasNoEffect, &too_early);
}

#[test]
fn two_winners_are_found() {
    let operations = [
        (write(1), wrote(1, 0)),
        (write_if(2, Some(1)), wrote(2, 1)),
        (write_if(3, Some(1)), wrote(3, 1)),
    ];
    assert_found(Check::OneWinner, &operations);
    let against = [(write(1), wrote(1, 0)), (write_if(2, Some(0)), wrote(2, 1))];
    assert_found(Check::OneWinner, &against);
    let for_nothing = [
        (write(1), wrote(1, 0)),
        (write_if(2, Some(1)), Outcome::Rejected { version: 1 }),
    ];
    assert_found(Check::OneWinner, &for_nothing);
}

/// Every rule, of a write, a delete and a read of an object of version 3 or of none: obeyed, not
/// obeyed, and rejected for nothing.
#[test]
fn a_rule_that_is_not_obeyed_is_found() {
    let any = Condition::default();
    let three = Some(3);
    // Each with one version at which it holds, and one at which it does not.
    let rules = [
        (
            Condition {
                absent: true,
                ..any
            },
            0,
            3,
        ),
        (
            Condition {
                present: true,
                ..any
            },
            3,
            0,
        ),
        (Condition::version(3), 3, 0),
        (Condition { is: Some(4), ..any }, 0, 3),
        (
            Condition {
                is_not: three,
                ..any
            },
            0,
            3,
        ),
        (
            Condition {
                at_least: Some(4),
                ..any
            },
            0,
            3,
        ),
    ];
    for (rule, good, bad) in rules {
        let condition = Some(rule);
        let content = Content::Bytes(2);
        let actions = [
            Action::Write { content, condition },
            Action::Delete { condition },
            Action::ReadIf { condition: rule },
        ];
        for action in actions {
            let at = |version: u64, obeyed: bool| {
                let outcome = match action {
                    _ if !obeyed => Outcome::Rejected { version },
                    Action::Write { .. } => wrote(version + 1, version),
                    Action::Delete { .. } => Outcome::Deleted { version },
                    _ if version == 0 => Outcome::Missing,
                    _ => found(3, 1),
                };
                let first = (write(1), wrote(3, 0));
                let operations = [first, (action, outcome)];
                operations[usize::from(version == 0)..].to_vec()
            };
            for right in [at(good, true), at(bad, false)] {
                assert_eq!(register(&right), BTreeSet::new(), "{right:?}");
            }
            assert_found(Check::OneWinner, &at(good, false));
            assert_found(Check::OneWinner, &at(bad, true));
        }
    }
}

#[test]
fn a_counter_that_lost_or_doubled_an_addition_is_found() {
    let added = |version, sum| Outcome::Added { version, sum };
    let number = |version, number| Outcome::Found {
        version,
        content: Content::Number(number),
    };
    let counter =
        |operations: &[(Action, Outcome, u8)]| broken(&sequence(KeyKind::Counter, operations));
    let both = BTreeSet::from([Check::CountersAddUp, Check::Linearizable]);
    let lost = [(add(5), added(1, 5), 0), (add(7), added(2, 7), 0)];
    assert_eq!(counter(&lost), both);
    let doubled = [(add(5), added(1, 5), 0), (READ, number(2, 10), 0)];
    assert_eq!(counter(&doubled), both);
    let unknown = [
        (add(5), Outcome::Unknown, 0),
        (READ, Outcome::Missing, 0),
        (READ, number(1, 5), 0),
        (add(-2), added(2, 3), 0),
    ];
    assert_eq!(counter(&unknown), BTreeSet::new());
    let again = [(add(5), added(2, 10), 1)];
    assert_eq!(counter(&again), both);
    // A rule that rejected it, and what it says of the number: nothing was added.
    let new = Action::Add {
        by: 7,
        condition: Some(Condition::version(0)),
    };
    let rejected = |version| (new, Outcome::Rejected { version }, 0);
    let (first, last) = ((add(5), added(1, 5), 0), (READ, number(1, 5), 0));
    assert_eq!(counter(&[first, rejected(1), last]), BTreeSet::new());
    assert!(counter(&[first, rejected(0), last]).contains(&Check::CountersAddUp));
    let although = [first, rejected(1), (READ, number(2, 12), 0)];
    assert_eq!(counter(&although), both);
    let against = [first, (new, added(2, 12), 0)];
    assert_eq!(counter(&against), BTreeSet::from([Check::Linearizable]));
    let missed = [(add(5), added(1, 5), 0), (READ, Outcome::Missing, 0)];
    assert!(counter(&missed).contains(&Check::CountersAddUp));
}

/// A table of three keys: one that is there, one that was deleted, one that somebody deletes.
fn enumerated(found: &[u32]) -> Vec<Violation> {
    let mut history = History::default();
    let keys = ["there", "gone", "going"].map(|name| history.key(name, KeyKind::Register));
    for key in keys {
        let begun = history.invoke(key, 1, write(u64::from(key.0)), Duration::ZERO);
        history.finish(begun, wrote(1, 0), 0, Duration::ZERO);
    }
    let begun = history.invoke(keys[1], 1, DELETE, Duration::ZERO);
    history.finish(begun, Outcome::Deleted { version: 1 }, 0, Duration::ZERO);
    let going = history.invoke(keys[2], 1, DELETE, Duration::ZERO);
    let invoked = history.tick();
    let returned = history.tick();
    history.finish(going, Outcome::Deleted { version: 1 }, 0, Duration::ZERO);
    history.scanned(Scan {
        invoked,
        returned,
        keys: keys.to_vec(),
        found: found.iter().map(|k| KeyId(*k)).collect(),
        strangers: Vec::new(),
    });
    check_history(&history, 1_000).violations
}

#[test]
fn an_enumeration_that_misses_doubles_or_invents_is_found() {
    assert_eq!(enumerated(&[0]), Vec::new());
    assert_eq!(enumerated(&[0, 2]), Vec::new());
    for (found, words) in [
        (&[2_u32][..], "was there all along"),
        (&[0, 0], "was found 2 times"),
        (&[0, 2, 2], "was found 2 times"),
        (&[0, 1], "had been gone"),
    ] {
        let violations = enumerated(found);
        assert_eq!(violations.len(), 1, "{found:?}: {violations:?}");
        assert_eq!(violations[0].check, Check::EnumerationFindsEachOnce);
        assert!(violations[0].message.contains(words), "{violations:?}");
    }
}

fn range(first: u64, last: u64) -> HashRange {
    HashRange::new(KeyHash(first), KeyHash(last))
}

#[test]
fn two_owners_of_a_hash_are_found() {
    let served = |table, first, last, server| Served {
        table: TableId(table),
        range: range(first, last),
        server: ServerId(server),
    };
    let mut fine = vec![
        served(1, 0, 9, 1),
        served(2, 0, 9, 2),
        served(1, 10, u64::MAX, 2),
    ];
    assert_eq!(one_server_each(&mut fine), None);
    for overlap in [
        served(1, 9, 9, 3),
        served(1, 0, u64::MAX, 3),
        served(2, 3, 4, 1),
    ] {
        let mut both = fine.clone();
        both.push(overlap);
        let violation = one_server_each(&mut both).expect("there are two owners");
        assert_eq!(violation.check, Check::OneOwner);
    }
}

#[test]
fn a_table_with_a_gap_is_found() {
    let table = |ranges: &[HashRange]| TableInfo {
        cluster: ClusterId(1),
        id: TableId(1),
        name: "t".into(),
        seed: 0,
        hash: pluvio_units::HashKind::Seeded,
        quota: pluvio_wire::TableQuota::NONE,
        quota_state: None,
        class: None,
        tablets: ranges
            .iter()
            .map(|range| TabletInfo {
                range: *range,
                owner: ServerId(1),
                state: TabletState::Normal,
            })
            .collect(),
        addresses: vec![(ServerId(1), "a".into())],
    };
    assert_eq!(
        table_is_whole(&table(&[range(0, 9), range(10, u64::MAX)])),
        None
    );
    for ranges in [
        &[range(0, 9), range(11, u64::MAX)][..],
        &[range(0, 9), range(9, u64::MAX)],
        &[range(1, u64::MAX)],
        &[range(0, u64::MAX - 1)],
        &[],
    ] {
        assert!(table_is_whole(&table(ranges)).is_some(), "{ranges:?}");
    }
}

#[test]
fn an_unexpected_warning_is_found() {
    let line = ["0.1 server-0 [x] ERROR pluvio_log: the moon fell down".to_owned()];
    let violation = expected::only_expected(&line, 0, true, true).expect("nobody expects that");
    assert_eq!(violation.check, Check::OnlyExpectedTraces);
    assert_eq!(violation.evidence, line);
    assert_eq!(expected::only_expected(&[], 0, false, false), None);
}

fn plain(plain: Plain) -> Outcome {
    Outcome::Plain(plain)
}

fn shows(id: u64) -> Outcome {
    plain(Plain::Found {
        content: Content::Bytes(id),
    })
}

#[test]
fn errors_in_answers_without_versions_are_found() {
    let wrote = |id| (write(id), plain(Plain::Wrote));
    let linearizable = BTreeSet::from([Check::Linearizable]);
    // A stale read.
    let stale = [wrote(1), wrote(2), (READ, shows(2)), (READ, shows(1))];
    assert_eq!(register(&stale), linearizable);
    assert_eq!(register(&stale[..3]), BTreeSet::new());
    // A lost write.
    assert_eq!(
        register(&[wrote(1), (READ, Outcome::Missing)]),
        linearizable
    );
    // What was deleted comes back.
    let back = [
        wrote(1),
        (READ, found(4, 1)),
        (DELETE, plain(Plain::Deleted)),
        (READ, found(4, 1)),
    ];
    assert_found(Check::DeletedStaysDeleted, &back);
    // What was refused shows.
    let refused = [
        wrote(1),
        (write_if(2, Some(0)), plain(Plain::Refused)),
        (READ, shows(2)),
    ];
    assert_found(Check::NotDoneHasNoEffect, &refused);
    // A swap that hands out what was replaced before.
    let swap = |id, old| {
        let old = Some(Content::Bytes(old));
        (write(id), plain(Plain::Replaced { old }))
    };
    assert_eq!(register(&[wrote(1), swap(2, 1), swap(3, 1)]), linearizable);
    assert_eq!(
        register(&[wrote(1), swap(2, 1), swap(3, 2)]),
        BTreeSet::new()
    );
}

#[test]
fn an_increment_that_is_done_twice_is_found_also_without_versions() {
    let add_one = add(1);
    let add = |sum| (add_one, plain(Plain::Added { sum }), 0);
    let counter = |operations: &[_]| broken(&sequence(KeyKind::Counter, operations));
    let found = counter(&[add(1), add(3)]);
    assert!(found.contains(&Check::CountersAddUp), "{found:?}");
    assert!(found.contains(&Check::Linearizable), "{found:?}");
    // One whose outcome nobody knows may have been done, once.
    let unknown = (add_one, Outcome::Unknown, 0);
    assert_eq!(counter(&[add(1), unknown, add(3)]), BTreeSet::new());
    assert!(!counter(&[add(1), unknown, add(4)]).is_empty());
}

/// One of two servers, each with segments 1 and 2, of which the other one has the replicas.
fn account(server: u64) -> Account {
    let other = ServerId(3 - server);
    let of_other = |segment| ((other, SegmentId(segment)), true);
    Account {
        server: ServerId(server),
        memory_total: 64 << 20,
        memory_log: 16 << 20,
        memory_live: 5 << 20,
        objects: 10,
        object_bytes: 4 << 20,
        frames: [1, 2].map(of_other).into(),
        may_be_damaged: false,
        replicas_wanted: 2,
        places: [1, 2].map(of_other).into(),
    }
}

#[test]
fn memory_and_frames_that_nobody_accounts_for_are_found() {
    let wrong = |change: &dyn Fn(&mut Account), may_lack| {
        let mut accounts = [account(1), account(2)];
        change(&mut accounts[1]);
        not_accounted_for(&accounts, may_lack)
    };
    let found = |change: &dyn Fn(&mut Account)| {
        wrong(change, false).is_some() && wrong(change, true).is_some()
    };
    const FIRST: (ServerId, SegmentId) = (ServerId(1), SegmentId(1));
    const OTHER: (ServerId, SegmentId) = (ServerId(1), SegmentId(9));
    const NOBODYS: (ServerId, SegmentId) = (ServerId(7), SegmentId(1));
    assert_eq!(wrong(&|_| (), false), None);
    // More objects than live bytes; more alive than there are segments; more segments than there is
    // memory.
    assert!(found(&|a| a.object_bytes = a.memory_live + 1));
    assert!(found(&|a| a.memory_live = a.memory_log + 1));
    assert!(found(&|a| a.memory_log = a.memory_total + 1));
    // A frame that nobody knows, of a member or of nobody; one that is missing; one that is
    // damaged.
    for (frame, useful) in [
        (OTHER, true),
        (NOBODYS, true),
        (FIRST, false),
        (OTHER, false),
    ] {
        let change = |a: &mut Account| a.frames.extend([(frame, useful)]);
        assert!(found(&change), "{frame:?}");
    }
    assert!(found(&|a| a.frames.retain(|frame, _| *frame != FIRST)));
    // A place that is freed is none; one that is given up needs no frame.
    assert!(found(&|a| a.places.retain(|place, _| *place != FIRST)));
    let given_up = |a: &mut Account| a.places.extend([(FIRST, false)]);
    assert!(wrong(&given_up, false).is_some());
    assert_eq!(wrong(&given_up, true), None);
    let weak = |a: &mut Account| {
        a.may_be_damaged = true;
        a.frames.extend([(OTHER, false)]);
    };
    assert_eq!(wrong(&weak, false), None);
}

#[test]
fn objects_that_servers_hold_and_nobody_finds_are_found() {
    let accounts = [account(1), account(2)];
    let found = |objects, bytes| not_found(&accounts, Contents { objects, bytes });
    assert_eq!(found(20, 8 << 20), None);
    assert!(found(19, 8 << 20).is_some());
    assert!(found(21, 8 << 20).is_some());
    assert!(found(20, (8 << 20) - 1).is_some());
}

#[test]
fn a_cluster_that_is_not_healthy_is_found() {
    let info = |id, state| ServerInfo {
        pid: 1,
        state,
        ..ServerInfo::plain(ServerId(id), format!("server-{id}:1"))
    };
    let list = |states: &[ServerState]| ServerList {
        servers: (1..)
            .zip(states)
            .map(|(id, state)| info(id, *state))
            .collect(),
        ..ServerList::default()
    };
    let table = |owner, state| TableInfo {
        cluster: ClusterId(1),
        id: TableId(1),
        name: "t".into(),
        seed: 0,
        hash: pluvio_units::HashKind::Seeded,
        quota: pluvio_wire::TableQuota::NONE,
        quota_state: None,
        class: None,
        tablets: vec![TabletInfo {
            range: range(0, u64::MAX),
            owner: ServerId(owner),
            state,
        }],
        addresses: Vec::new(),
    };
    use ServerState::{Crashed, Up};
    use TabletState::{Normal, Recovering};
    let problem = |servers, states: &[ServerState], owner, state| {
        not_healthy(servers, &list(states), &[table(owner, state)])
    };
    assert_eq!(problem(2, &[Up, Up], 2, Normal), None);
    assert!(problem(3, &[Up, Up], 2, Normal).is_some());
    assert!(problem(2, &[Up, Up, Crashed], 2, Normal).is_some());
    assert!(problem(1, &[Up, Crashed], 1, Normal).is_some());
    assert!(problem(2, &[Up, Up], 2, Recovering).is_some());
    assert!(problem(2, &[Up, Up], 3, Normal).is_some());
}
