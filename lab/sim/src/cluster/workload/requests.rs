//! Draws mutations and reads of every kind, for keys whose bytes checkers know.
//!
//! Values are short, so that a checker can hold many states of them; about half of them are
//! numbers, so that sums are mostly possible.

use crate::check::tokens;
use crate::cluster::plan::OperationKind;
use crate::history::{Change, Condition, KeyKind, Request, Want};
use crate::random::Stream;
use bytes::Bytes;
use pluvio_client::{BitAction, BitOverflow, BitStep, Span};

/// Values are not made longer than about this on purpose.
const LENGTH_MAX: usize = 64;
/// Bits that steps go to, mostly.
const BITS_MAX: u64 = 160;
/// Decimal numbers to add; the last ones are no numbers, or too large.
const DECIMALS: [&str; 10] = [
    "0.25", "-1.5", "3", "1e-3", "-0.125", "2.5e1", "1e17", "-7", "0x1", "1e99999",
];

/// The key that a request is for, as far as its client knows it.
pub(super) struct Target<'a> {
    /// Its kind.
    pub(super) kind: KeyKind,
    /// The value that this client saw last.
    pub(super) seen: Option<&'a Bytes>,
    /// A condition that says something of the version that this client saw last.
    pub(super) condition: Option<Condition>,
    /// A token that is used for nothing else.
    pub(super) token: u64,
}

/// A request of this kind; of keys with tokens only what keeps tokens whole.
///
/// # Panics
/// Kinds of other exchanges than one mutation or one read of a key whose bytes checkers know.
pub(super) fn request(draw: &mut Stream, kind: OperationKind, target: &Target<'_>) -> Request {
    let condition = target.condition.unwrap_or_default();
    let is_long = target.seen.is_some_and(|value| value.len() > LENGTH_MAX);
    let kind = match kind {
        OperationKind::Append | OperationKind::SetRange
            if is_long && target.kind == KeyKind::Value =>
        {
            OperationKind::GetAndSet
        }
        kind => kind,
    };
    let expected = || target.seen.cloned().unwrap_or_default();
    let (change, value_is, returns_old) = match kind {
        OperationKind::Append if target.kind == KeyKind::Tokens => {
            (Change::Append(tokens::text(target.token)), None, false)
        }
        OperationKind::Append => (Change::Append(short(draw, 6)), None, false),
        OperationKind::SetRange => (set_range(draw), None, false),
        OperationKind::Bits => (Change::Bits(steps(draw, false)), None, false),
        OperationKind::AddInteger => (Change::AddInteger(integer(draw)), None, false),
        OperationKind::AddDecimal => (Change::AddDecimal(decimal(draw)), None, false),
        OperationKind::CompareAndSet => {
            let new = value(draw);
            (Change::Put(new), Some(expected()), draw.below(2) == 0)
        }
        OperationKind::CompareAndDelete => (Change::Delete, Some(expected()), draw.below(2) == 0),
        OperationKind::GetAndDelete => (Change::Delete, None, true),
        OperationKind::GetAndSet => (Change::Put(value(draw)), None, true),
        OperationKind::PutVersion => {
            // Some of them are above all that there are, and some below.
            let bits = 1 + draw.below(12);
            let version = 1 + draw.below(1 << bits);
            (Change::PutVersion(value(draw), version), None, false)
        }
        OperationKind::Project => {
            let want = want(draw);
            return Request::Get { condition, want };
        }
        OperationKind::Read
        | OperationKind::ConditionalRead
        | OperationKind::Write
        | OperationKind::ConditionalWrite
        | OperationKind::Delete
        | OperationKind::ConditionalDelete
        | OperationKind::Increment
        | OperationKind::IncrementFloat
        | OperationKind::MultiRead
        | OperationKind::MultiWrite
        | OperationKind::MultiDelete
        | OperationKind::Enumerate
        | OperationKind::Split
        | OperationKind::Migrate
        | OperationKind::Scratch
        | OperationKind::MultiMutate
        | OperationKind::MultiGet
        | OperationKind::InOrder
        | OperationKind::Audit
        | OperationKind::WriteVolatile
        | OperationKind::Touch
        | OperationKind::ReadVolatile
        | OperationKind::Transfer
        | OperationKind::Several
        | OperationKind::Cache => {
            panic!("{kind:?} is not one request of a key with known bytes")
        }
    };
    Request::Mutate {
        condition,
        value_is,
        returns_old,
        change,
        lifetime: None,
    }
}

fn decimal(draw: &mut Stream) -> &'static str {
    DECIMALS[draw.below(DECIMALS.len() as u64) as usize]
}

fn integer(draw: &mut Stream) -> i64 {
    match draw.below(16) {
        0 => i64::MAX,
        _ => draw.below(200) as i64 - 50,
    }
}

/// A number in decimal text, or some bytes, or none.
fn value(draw: &mut Stream) -> Bytes {
    match draw.below(5) {
        0 | 1 => (draw.below(2_000) as i64 - 1_000).to_string().into(),
        2 => decimal(draw).into(),
        _ => short(draw, 12),
    }
}

/// Up to `most` bytes; half of the time digits.
fn short(draw: &mut Stream, most: u64) -> Bytes {
    let is_digits = draw.below(2) == 0;
    (0..draw.below(most + 1))
        .map(|_| match is_digits {
            true => b'0' + draw.below(10) as u8,
            false => draw.below(256) as u8,
        })
        .collect()
}

fn set_range(draw: &mut Stream) -> Change {
    let offset = match draw.below(32) {
        // Behind what a value may hold: the owner refuses.
        0 => 1 << draw.between(24, 63),
        _ => draw.below(LENGTH_MAX as u64 / 2),
    };
    let bytes = short(draw, 8);
    Change::SetRange { offset, bytes }
}

fn steps(draw: &mut Stream, only_gets: bool) -> Vec<BitStep> {
    let count = draw.between(1, 4);
    (0..count).map(|_| step(draw, only_gets)).collect()
}

fn step(draw: &mut Stream, only_gets: bool) -> BitStep {
    let signed = draw.below(2) == 0;
    let width_max = if signed { 64 } else { 63 };
    let width = match draw.below(4) {
        0 => 1,
        1 | 2 => draw.between(1, 16),
        _ => draw.between(1, width_max),
    };
    let number = match draw.below(4) {
        0 => i64::MIN,
        _ => draw.below(600) as i64 - 300,
    };
    let action = match draw.below(3) {
        _ if only_gets => BitAction::Get,
        0 => BitAction::Get,
        1 => BitAction::Set(number),
        _ => BitAction::Add(number),
    };
    let overflow = match draw.below(3) {
        0 => BitOverflow::Wrap,
        1 => BitOverflow::Saturate,
        _ => BitOverflow::Fail,
    };
    BitStep {
        action,
        signed,
        width: width as u8,
        offset: draw.below(BITS_MAX),
        overflow,
    }
}

fn want(draw: &mut Stream) -> Want {
    match draw.below(12) {
        0 => Want::Nothing,
        1 => Want::Length,
        2 => Want::Range(Span {
            bits: false,
            ..span(draw)
        }),
        3 => Want::Bits(steps(draw, true)),
        4 => Want::BitCount(span(draw)),
        5 => Want::BitPosition {
            bit: draw.below(2) == 0,
            span: span(draw),
        },
        _ => Want::Value,
    }
}

/// Some part of a value, from the front or the end.
fn span(draw: &mut Stream) -> Span {
    let mut place = || draw.below(40) as i64 - 12;
    let (start, end) = (place(), place());
    Span {
        start,
        end: (draw.below(3) > 0).then_some(end),
        bits: draw.below(2) == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_client::{ChangeKind, ProjectionKind};

    #[test]
    fn requests_of_every_kind_are_drawn() {
        let mut draw = Stream::new(1, "requests");
        let target = Target {
            kind: KeyKind::Value,
            seen: None,
            condition: None,
            token: 0,
        };
        let projections = [OperationKind::Project; 20];
        let kinds: Vec<_> = OperationKind::MUTATIONS
            .into_iter()
            .chain(projections)
            .collect();
        let mut drawn = Vec::new();
        for kind in kinds.iter().cycle().take(2000) {
            drawn.push(request(&mut draw, *kind, &target));
        }
        // `volatile` draws requests about deadlines: it knows what time it is.
        let touch = [ChangeKind::Touch];
        let times = [ProjectionKind::Deadline, ProjectionKind::TimeLeft];
        for kind in ChangeKind::ALL.iter().filter(|kind| !touch.contains(kind)) {
            let mut changes = drawn.iter().filter_map(|one| one.mutation(b"key"));
            assert!(changes.any(|m| m.change.kind() == *kind), "{kind:?}");
        }
        for kind in ProjectionKind::ALL
            .iter()
            .filter(|kind| !times.contains(kind))
        {
            let mut reads = drawn.iter().filter_map(|one| one.get(b"key"));
            assert!(reads.any(|get| get.projection.kind() == *kind), "{kind:?}");
        }
    }
}
