//! Keys whose bytes checkers know: what is lost, done twice, answered wrongly, or out of order.

use super::broken;
use crate::check::{Check, check_history, tokens};
use crate::history::{
    Answer, Change, Condition, History, KeyId, KeyKind, OrderedBatch, Request, Want,
};
use bytes::Bytes;
use core::time::Duration;
use pluvio_mutation::{BitStep, Outcome, Output, Unfit};
use pluvio_units::ObjectVersion;
use std::collections::BTreeSet;

type Step = (Request, Answer);

fn written(version: u64, replaced: u64, output: Output) -> Answer {
    Answer::Given(Outcome::Written {
        version: ObjectVersion(version),
        replaced: ObjectVersion(replaced),
        output,
    })
}

fn unchanged(version: u64, output: Output) -> Answer {
    Answer::Given(Outcome::Unchanged {
        version: ObjectVersion(version),
        output,
    })
}

fn bytes(text: &'static str) -> Output {
    Output::Bytes(Bytes::from(text))
}

fn read(version: u64, text: &'static str) -> Step {
    (Request::read(), unchanged(version, bytes(text)))
}

fn absent() -> Step {
    (Request::read(), unchanged(0, Output::Nothing))
}

fn append(text: &'static str) -> Request {
    Request::mutate(Change::Append(Bytes::from(text)))
}

/// An acknowledged append, after which the value has `length` bytes.
fn appended(text: &'static str, version: u64, replaced: u64, length: i64) -> Step {
    let answer = written(version, replaced, Output::Integer(length));
    (append(text), answer)
}

fn ask(history: &mut History, key: KeyId, step: &Step) {
    let begun = history.ask(key, 1, step.0.clone(), Duration::ZERO);
    history.answer(begun, step.1.clone(), 0, Duration::ZERO);
}

/// The broken checks of one key on which one step follows the other.
fn on_key(kind: KeyKind, steps: &[Step]) -> BTreeSet<Check> {
    let mut history = History::default();
    let key = history.key("k", kind);
    for step in steps {
        ask(&mut history, key, step);
    }
    broken(&history)
}

fn value(steps: &[Step]) -> BTreeSet<Check> {
    on_key(KeyKind::Value, steps)
}

#[test]
fn every_answer_is_what_the_mutation_makes_of_the_value() {
    let bits = [BitStep::set_bit(0, true), BitStep::get_bit(1)];
    let bits = Request::mutate(Change::Bits(bits.to_vec()));
    let numbers = |first| Output::Integers([Some(first), Some(0)].into());
    let swap = Request::Mutate {
        condition: Condition::default(),
        value_is: Some(Bytes::from("0.5")),
        returns_old: true,
        change: Change::Put(Bytes::from("x")),
        lifetime: None,
    };
    let length = Request::Get {
        condition: Condition::version(4),
        want: Want::Length,
    };
    let right: [Step; 8] = [
        (bits.clone(), written(1, 0, numbers(0))),
        (bits, unchanged(1, numbers(1))),
        (
            Request::mutate(Change::AddInteger(1)),
            Answer::Given(Outcome::Refused(Unfit::NotANumber)),
        ),
        (
            Request::mutate(Change::Put(Bytes::from("0.25"))),
            written(3, 1, Output::Nothing),
        ),
        (
            Request::mutate(Change::AddDecimal("0.25")),
            written(4, 3, bytes("0.5")),
        ),
        (length.clone(), unchanged(4, Output::Integer(3))),
        (swap, written(5, 4, bytes("0.5"))),
        read(5, "x"),
    ];
    assert_eq!(value(&right), BTreeSet::new());
    let linearizable = BTreeSet::from([Check::Linearizable]);
    let wrong: [(usize, Answer); 7] = [
        (0, written(1, 0, numbers(1))),
        (1, unchanged(1, numbers(0))),
        (2, written(3, 1, Output::Integer(1))),
        (4, written(4, 3, bytes("0.25"))),
        (5, unchanged(4, Output::Integer(4))),
        (6, written(5, 4, Output::Nothing)),
        (
            6,
            Answer::Given(Outcome::Rejected {
                version: ObjectVersion(4),
                output: bytes("0.5"),
            }),
        ),
    ];
    for (place, answer) in wrong {
        let mut steps = right[..=place].to_vec();
        steps[place].1 = answer;
        assert_eq!(value(&steps), linearizable, "step {place}");
    }
}

#[test]
fn a_value_that_is_not_the_expected_one_rejects_and_tells_no_version_rule() {
    let swap = |expected: &'static str| Request::Mutate {
        condition: Condition::version(3),
        value_is: Some(Bytes::from(expected)),
        returns_old: false,
        change: Change::Delete,
        lifetime: None,
    };
    let rejected = |version| {
        Answer::Given(Outcome::Rejected {
            version: ObjectVersion(version),
            output: Output::Nothing,
        })
    };
    let deleted = Answer::Given(Outcome::Deleted {
        version: ObjectVersion(3),
        output: Output::Nothing,
    });
    let first = appended("a", 3, 0, 1);
    for (expected, answer) in [("b", rejected(3)), ("a", deleted.clone())] {
        let steps = [first.clone(), (swap(expected), answer)];
        assert_eq!(value(&steps), BTreeSet::new(), "{expected}");
    }
    for (expected, answer) in [("a", rejected(3)), ("b", deleted)] {
        let steps = [first.clone(), (swap(expected), answer)];
        let found = value(&steps);
        assert_eq!(found, BTreeSet::from([Check::Linearizable]), "{expected}");
    }
}

#[test]
fn what_nobody_answered_may_have_an_effect_once_and_at_any_later_time() {
    let unknown = (append("b"), Answer::Unknown);
    let first = appended("a", 1, 0, 1);
    let late = [first.clone(), unknown.clone(), read(1, "a"), read(2, "ab")];
    assert_eq!(value(&late), BTreeSet::new());
    let never = [first.clone(), unknown.clone(), read(1, "a")];
    assert_eq!(value(&never), BTreeSet::new());
    let linearizable = BTreeSet::from([Check::Linearizable]);
    let twice = [first.clone(), unknown.clone(), read(3, "abb")];
    assert_eq!(value(&twice), linearizable);
    let not_done = [first, (append("b"), Answer::NotDone), read(2, "ab")];
    assert_eq!(value(&not_done), linearizable);
}

#[test]
fn a_token_that_is_lost_doubled_or_never_appended_is_found_by_name() {
    let (first, second) = (appended("1;", 1, 0, 2), appended("2;", 2, 1, 4));
    let tokens = |end: &[Step]| {
        let steps = [&[first.clone(), second.clone()], end].concat();
        on_key(KeyKind::Tokens, &steps)
    };
    assert_eq!(tokens(&[read(2, "1;2;")]), BTreeSet::new());
    let with = |check| BTreeSet::from([check, Check::Linearizable]);
    assert_eq!(
        tokens(&[read(2, "2;")]),
        with(Check::AcknowledgedWriteIsReadable)
    );
    assert_eq!(tokens(&[read(2, "1;2;2;")]), with(Check::ExactlyOnce));
    for text in ["1;2;3;", "1;2", "1;x;2;"] {
        let found = tokens(&[read(2, text)]);
        assert_eq!(found, with(Check::NotDoneHasNoEffect), "{text}");
    }
    let not_done = (append("3;"), Answer::NotDone);
    let found = tokens(&[not_done, read(3, "1;2;3;")]);
    assert_eq!(found, with(Check::NotDoneHasNoEffect));
    // A delete that may have happened explains it.
    let delete = (Request::mutate(Change::Delete), Answer::Unknown);
    assert_eq!(tokens(&[delete, absent()]), BTreeSet::new());
}

#[test]
fn an_item_that_shows_before_one_that_stands_before_it_is_found() {
    let history = |order: [KeyId; 2], reads: &[(KeyId, Step)]| {
        let mut history = History::default();
        let keys = ["a", "b"].map(|name| history.key(name, KeyKind::Tokens));
        let texts = ["1;", "2;"];
        let begun = order.map(|key| {
            let request = append(texts[key.0 as usize]);
            history.ask(key, 1, request, Duration::ZERO)
        });
        let invoked = history.tick();
        let appended = order.map(|key| (key, u64::from(key.0) + 1)).to_vec();
        history.ordered(OrderedBatch { invoked, appended });
        for (key, step) in reads {
            ask(&mut history, *key, step);
        }
        for begun in begun {
            history.answer(begun, Answer::Unknown, 0, Duration::ZERO);
        }
        assert_eq!(history.keys().map(|(id, _)| id).collect::<Vec<_>>(), keys);
        history
    };
    let [a, b] = [KeyId(0), KeyId(1)];
    let reads = [(b, read(1, "2;")), (a, absent())];
    let found = broken(&history([a, b], &reads));
    assert_eq!(found, BTreeSet::from([Check::BatchesInOrder]));
    // In the other order it may be so, and a delete explains it.
    assert_eq!(broken(&history([b, a], &reads)), BTreeSet::new());
    let delete = (Request::mutate(Change::Delete), Answer::Unknown);
    let explained = [reads[0].clone(), (a, delete), reads[1].clone()];
    assert_eq!(broken(&history([a, b], &explained)), BTreeSet::new());
    let seen = [(b, read(1, "2;")), (a, read(1, "1;"))];
    assert_eq!(broken(&history([a, b], &seen)), BTreeSet::new());
}

#[test]
fn checkers_of_versions_judge_these_keys_too() {
    let lost = [appended("a", 1, 0, 1), appended("b", 2, 1, 2), read(1, "a")];
    let found = value(&lost);
    assert!(found.contains(&Check::AcknowledgedWriteIsReadable));
    let two = [read(1, "a"), read(1, "b")];
    assert!(value(&two).contains(&Check::VersionsGrow));
    let mut history = History::default();
    let key = history.key("k", KeyKind::Value);
    ask(&mut history, key, &appended("a", 1, 0, 1));
    let verdict = check_history(&history, 100);
    assert_eq!((verdict.linearizable, verdict.undecided), (1, 0));
}

#[test]
fn tokens_are_written_as_they_are_read() {
    for token in [0, 31, u64::MAX] {
        assert_eq!(tokens::first(&tokens::text(token)), Some(token));
    }
}
