//! Changes and reads as the engine asks for them.

use super::*;
use crate::judge::{Current, Now, Verdict, judge};
use crate::kind::{ChangeKind, ProjectionKind};
use crate::value::{
    BitAction, BitOverflow, BitStep, Lifetime, Mutation, Outcome, Payload, Span, TouchIf,
};
use pluvio_units::{ObjectVersion, TableId};
use proptest::prelude::*;

fn built(value: &[u8], output: Output) -> Result<Step<'static>, Unfit> {
    Ok(Step::Put(NewValue::Built(value.to_vec()), output))
}

fn added(text: Option<&str>, by: i64) -> Result<Step<'static>, Unfit> {
    change(&Change::Add(Addend::Integer(by)), text.map(str::as_bytes))
}

fn bytes(text: &'static [u8]) -> Payload<'static> {
    Payload::from(text)
}

#[test]
fn put_gives_the_bytes_of_the_request_and_delete_needs_no_object() {
    for current in [None, Some(&b"old"[..])] {
        let put = change(&Change::Put(bytes(b"new")), current);
        let given = NewValue::Given(b"new");
        assert_eq!(put, Ok(Step::Put(given, Output::Nothing)));
        assert_eq!(change(&Change::Delete, current), Ok(Step::Delete));
    }
    let longest = vec![0; VALUE_MAX + 1];
    let put = Change::Put(longest[..VALUE_MAX].into());
    assert!(change(&put, None).is_ok());
    let put = Change::Put(longest[..].into());
    assert_eq!(change(&put, None), Err(Unfit::TooLong));
}

#[test]
fn integers_must_be_canonical_and_must_not_overflow() {
    assert_eq!(added(None, -3), built(b"-3", Output::Integer(-3)));
    assert_eq!(added(Some("41"), 1), built(b"42", Output::Integer(42)));
    assert_eq!(added(Some("0"), 0), built(b"0", Output::Integer(0)));
    assert_eq!(
        added(Some("-9223372036854775808"), 1),
        built(b"-9223372036854775807", Output::Integer(-i64::MAX))
    );
    for text in [
        "",
        "-",
        " 1",
        "1 ",
        "+1",
        "01",
        "-0",
        "-01",
        "1.0",
        "x",
        "1a",
        "--1",
        "9223372036854775808",
        "-9223372036854775809",
        "10000000000000000000000",
    ] {
        assert_eq!(added(Some(text), 1), Err(Unfit::NotANumber), "{text:?}");
    }
    assert_eq!(added(Some("9223372036854775807"), 1), Err(Unfit::Overflow));
    assert_eq!(added(Some("-1"), i64::MIN), Err(Unfit::Overflow));
}

#[test]
fn decimal_sums_give_their_text() {
    let add = |text: Option<&[u8]>, by| change(&Change::Add(Addend::Decimal(by)), text);
    let sum = |text: &'static [u8]| built(text, Output::Bytes(Bytes::from_static(text)));
    assert_eq!(add(None, "1.5"), sum(b"1.5"));
    assert_eq!(add(Some(b"10.50"), "0.1"), sum(b"10.6"));
    assert_eq!(add(Some(b"abc"), "0.1"), Err(Unfit::NotANumber));
    assert_eq!(add(Some(b""), "0.1"), Err(Unfit::NotANumber));
    assert_eq!(add(Some(b"1"), "inf"), Err(Unfit::Overflow));
}

#[test]
fn what_is_appended_stands_behind() {
    let append = |current: Option<&[u8]>, more| change(&Change::Append(bytes(more)), current);
    assert_eq!(append(Some(b"ab"), b"c"), built(b"abc", Output::Integer(3)));
    let kept = Step::Keep(Output::Integer(2));
    assert_eq!(append(Some(b"ab"), b""), Ok(kept));
    for more in [&b""[..], b"c"] {
        let length = Output::Integer(more.len() as i64);
        let given = Step::Put(NewValue::Given(more), length);
        assert_eq!(append(None, more), Ok(given));
    }
    let full = vec![0; VALUE_MAX];
    assert_eq!(append(Some(&full), b"c"), Err(Unfit::TooLong));
    assert!(append(Some(&full[1..]), b"c").is_ok());
}

#[test]
fn ranges_are_set_as_in_redis() {
    let set = |current: Option<&[u8]>, offset, patch| {
        let bytes = bytes(patch);
        change(&Change::SetRange { offset, bytes }, current)
    };
    for (current, offset, patch, expected) in [
        (
            Some(&b"Hello World"[..]),
            6,
            &b"Redis"[..],
            &b"Hello Redis"[..],
        ),
        (None, 6, b"Redis", b"\0\0\0\0\0\0Redis"),
        (None, 0, b"a", b"a"),
        (Some(b"abc"), 1, b"X", b"aXc"),
        (Some(b"abc"), 1, b"b", b"abc"),
        (Some(b"abc"), 2, b"XY", b"abXY"),
        (Some(b"abc"), 4, b"X", b"abc\0X"),
    ] {
        let length = Output::Integer(expected.len() as i64);
        assert_eq!(set(current, offset, patch), built(expected, length));
    }
    let most = u64::MAX;
    assert_eq!(set(None, most, b""), Ok(Step::Keep(Output::Integer(0))));
    let kept = Ok(Step::Keep(Output::Integer(3)));
    assert_eq!(set(Some(b"abc"), most, b""), kept);
    let limit = VALUE_MAX as u64;
    for offset in [limit, limit - 1, most, most - 1] {
        assert_eq!(set(Some(b"abc"), offset, b"xy"), Err(Unfit::TooLong));
    }
    assert!(set(None, limit - 2, b"xy").is_ok());
}

#[test]
fn reads_give_what_they_want() {
    let span = Span {
        start: 1,
        end: Some(-2),
        bits: false,
    };
    let text = |text: &'static [u8]| Output::Bytes(Bytes::from_static(text));
    let steps = [BitStep::get_bit(1), BitStep::get_bit(1000)];
    for (projection, expected) in [
        (Projection::Value, text(b"foobar")),
        (Projection::Nothing, Output::Nothing),
        (Projection::Length, Output::Integer(6)),
        (Projection::Range(span), text(b"ooba")),
        (
            Projection::Bits(&steps),
            Output::Integers([Some(1), Some(0)].into()),
        ),
        (Projection::BitCount(Span::ALL), Output::Integer(26)),
        (
            Projection::BitPosition { bit: true, span },
            Output::Integer(9),
        ),
    ] {
        assert_eq!(project(&projection, b"foobar"), expected, "{projection:?}");
    }
}

fn any_bit_step() -> impl Strategy<Value = BitStep> {
    let action = prop_oneof![
        Just(BitAction::Get),
        any::<i64>().prop_map(BitAction::Set),
        any::<i64>().prop_map(BitAction::Add),
    ];
    let overflow = prop_oneof![
        Just(BitOverflow::Wrap),
        Just(BitOverflow::Saturate),
        Just(BitOverflow::Fail),
    ];
    (action, any::<bool>(), any::<u8>(), any_offset(8), overflow).prop_map(
        |(action, signed, width, offset, overflow)| BitStep {
            action,
            signed,
            width,
            offset,
            overflow,
        },
    )
}

/// Near the beginning, near the end of the largest value, or anywhere.
fn any_offset(units: u64) -> impl Strategy<Value = u64> {
    let end = VALUE_MAX as u64 * units;
    prop_oneof![
        6 => 0..100 * units,
        1 => end - 70..end + 70,
        1 => any::<u64>(),
        1 => Just(u64::MAX),
    ]
}

/// The outcome that a store makes of a change.
fn outcome_of(asked: Change<'_>, value: Option<&[u8]>) -> Outcome {
    let version = ObjectVersion(1);
    let current = value.map(|value| Current {
        version,
        value,
        deadline: None,
    });
    let mutation = Mutation {
        lifetime: Lifetime::For(1),
        ..Mutation::new(TableId(1), b"k", asked)
    };
    match judge(&mutation, current, Now::default()) {
        Verdict::Put(_, _, output) => Outcome::Written {
            version: version.next(),
            replaced: version,
            output,
        },
        Verdict::Delete(output) => Outcome::Deleted { version, output },
        Verdict::Keep(outcome) => outcome,
    }
}

proptest! {
    // shows: COMPUTE-1, COMPUTE-2, COMPUTE-3
    #[test]
    fn any_change_of_any_value_gives_a_result(
        current in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40)),
        more in proptest::collection::vec(any::<u8>(), 0..40),
        text in "[-+0-9.e]{0,8}|\\PC{0,8}",
        offset in any_offset(1),
        steps in proptest::collection::vec(any_bit_step(), 0..6),
        (start, end, bits) in (any::<i64>(), any::<Option<i64>>(), any::<bool>()),
        by: i64,
    ) {
        let bytes = Payload::from(&more[..]);
        for asked in ChangeKind::ALL.iter().map(|kind| match kind {
            ChangeKind::Put => Change::Put(bytes),
            ChangeKind::Delete => Change::Delete,
            ChangeKind::AddInteger => Change::Add(Addend::Integer(by)),
            ChangeKind::AddDecimal => Change::Add(Addend::Decimal(&text)),
            ChangeKind::Append => Change::Append(bytes),
            ChangeKind::SetRange => Change::SetRange { offset, bytes },
            ChangeKind::Bits => Change::Bits(&steps),
            ChangeKind::Touch => Change::Touch(TouchIf::Always),
            ChangeKind::PutVersion => Change::PutVersion {
                value: bytes,
                version: pluvio_units::ObjectVersion(offset),
            },
        }) {
            for value in [current.as_deref(), Some(text.as_bytes())] {
                let step = change(&asked, value);
                prop_assert_eq!(&step, &change(&asked, value));
                let outcome = outcome_of(asked, value);
                prop_assert!(asked.gives(&outcome), "a retry of {:?} is refused", asked);
                if let Ok(Step::Put(new, _)) = step {
                    prop_assert!(new.len() <= VALUE_MAX);
                }
            }
        }
        let span = Span { start, end, bits };
        for wanted in ProjectionKind::ALL.iter().map(|kind| match kind {
            ProjectionKind::Value => Projection::Value,
            ProjectionKind::Nothing => Projection::Nothing,
            ProjectionKind::Length => Projection::Length,
            ProjectionKind::Range => Projection::Range(span),
            ProjectionKind::Bits => Projection::Bits(&steps),
            ProjectionKind::BitCount => Projection::BitCount(span),
            ProjectionKind::BitPosition => Projection::BitPosition { bit: bits, span },
            ProjectionKind::Deadline => Projection::Deadline,
            ProjectionKind::TimeLeft => Projection::TimeLeft,
        }) {
            project(&wanted, &more);
        }
    }
}
