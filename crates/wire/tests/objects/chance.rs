//! Mutations, reads and outcomes of all kinds, made by chance.

use crate::{SEQUENCE, header};
use core::time::Duration;
use pluvio_units::{Deadline, ObjectVersion, OperationId, SequenceNumber, TableId};
use pluvio_wire::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

#[derive(Clone, Debug)]
enum Kind {
    Put(Vec<u8>),
    Delete,
    Integer(i64),
    Decimal(String),
    Append(Vec<u8>),
    SetRange(u64, Vec<u8>),
    Bits(Vec<BitStep>),
    Touch(TouchIf),
    PutVersion(Vec<u8>, u64),
}

/// A mutation that owns what it is made of.
#[derive(Clone, Debug)]
pub struct Owned {
    sequence: u64,
    table: u64,
    key: Vec<u8>,
    rules: RejectRules,
    value_is: Option<Vec<u8>>,
    returns_old: bool,
    lifetime: Option<Lifetime>,
    kind: Kind,
}

impl Owned {
    pub fn lend(&self) -> Mutation<'_> {
        let change = match &self.kind {
            Kind::Put(bytes) => Change::Put(bytes[..].into()),
            Kind::Delete => Change::Delete,
            Kind::Integer(by) => Change::Add(Addend::Integer(*by)),
            Kind::Decimal(by) => Change::Add(Addend::Decimal(by)),
            Kind::Append(bytes) => Change::Append(bytes[..].into()),
            Kind::SetRange(offset, bytes) => Change::SetRange {
                offset: *offset,
                bytes: bytes[..].into(),
            },
            Kind::Bits(steps) => Change::Bits(steps),
            Kind::Touch(rule) => Change::Touch(*rule),
            Kind::PutVersion(bytes, version) => Change::PutVersion {
                value: bytes[..].into(),
                version: ObjectVersion(*version),
            },
        };
        let usual = Lifetime::of_change(&change);
        Mutation {
            id: OperationId {
                sequence: SequenceNumber(self.sequence),
                ..header().operation
            },
            rules: self.rules,
            value_is: self.value_is.as_deref(),
            returns_old: self.returns_old && change.may_return_old(),
            lifetime: self.lifetime.unwrap_or(usual),
            ..Mutation::new(TableId(self.table), &self.key, change)
        }
    }
}

#[derive(Clone, Debug)]
enum Wanted {
    Value,
    Nothing,
    Length,
    Range(Span),
    Bits(Vec<BitStep>),
    BitCount(Span),
    BitPosition(bool, Span),
    Deadline,
    TimeLeft,
}

#[derive(Clone, Debug)]
pub struct OwnedGet(u64, Vec<u8>, RejectRules, Wanted);

impl OwnedGet {
    pub fn lend(&self) -> Get<'_> {
        let projection = match &self.3 {
            Wanted::Value => Projection::Value,
            Wanted::Nothing => Projection::Nothing,
            Wanted::Length => Projection::Length,
            Wanted::Range(span) => Projection::Range(Span {
                bits: false,
                ..*span
            }),
            Wanted::Bits(steps) => Projection::Bits(steps),
            Wanted::BitCount(span) => Projection::BitCount(*span),
            Wanted::BitPosition(bit, span) => Projection::BitPosition {
                bit: *bit,
                span: *span,
            },
            Wanted::Deadline => Projection::Deadline,
            Wanted::TimeLeft => Projection::TimeLeft,
        };
        Get {
            rules: self.2,
            projection,
            ..Get::new(TableId(self.0), &self.1)
        }
    }
}

pub fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..most)
}

fn rules() -> impl Strategy<Value = RejectRules> {
    let version = || option::of(any::<u64>().prop_map(ObjectVersion));
    (any::<(bool, bool)>(), version(), version(), version()).prop_map(
        |((exists, does_not_exist), version_equal, version_not_equal, version_less)| RejectRules {
            exists,
            does_not_exist,
            version_equal,
            version_not_equal,
            version_less,
        },
    )
}

fn steps(actions: core::ops::Range<u8>) -> impl Strategy<Value = Vec<BitStep>> {
    let step = (actions, any::<(i64, bool)>(), 1u8..64, any::<u64>(), 0..3).prop_map(
        |(action, (operand, signed), width, offset, overflow)| BitStep {
            action: match action {
                0 => BitAction::Get,
                1 => BitAction::Set(operand),
                _ => BitAction::Add(operand),
            },
            signed,
            width,
            offset: offset.min(u64::MAX - 64),
            overflow: match overflow {
                0 => BitOverflow::Wrap,
                1 => BitOverflow::Saturate,
                _ => BitOverflow::Fail,
            },
        },
    );
    vec(step, 1..5)
}

fn change(kind: ChangeKind) -> BoxedStrategy<Kind> {
    match kind {
        ChangeKind::Put => bytes(40).prop_map(Kind::Put).boxed(),
        ChangeKind::Delete => Just(Kind::Delete).boxed(),
        ChangeKind::AddInteger => any::<i64>().prop_map(Kind::Integer).boxed(),
        ChangeKind::AddDecimal => "[-0-9.é]{0,20}".prop_map(Kind::Decimal).boxed(),
        ChangeKind::Append => bytes(40).prop_map(Kind::Append).boxed(),
        ChangeKind::SetRange => (0..u64::MAX - 40, bytes(40))
            .prop_map(|(at, bytes)| Kind::SetRange(at, bytes))
            .boxed(),
        ChangeKind::Bits => steps(0..3).prop_map(Kind::Bits).boxed(),
        ChangeKind::Touch => select(&TouchIf::ALL[..]).prop_map(Kind::Touch).boxed(),
        ChangeKind::PutVersion => (bytes(40), 1..=PUT_VERSION_MAX.0)
            .prop_map(|(bytes, version)| Kind::PutVersion(bytes, version))
            .boxed(),
    }
}

fn lifetime() -> impl Strategy<Value = Lifetime> {
    prop_oneof![
        Just(Lifetime::Keep),
        Just(Lifetime::Endless),
        (1..u64::MAX / 2).prop_map(|ms| Lifetime::Until(Deadline::new(ms).expect("it is not 0"))),
        any::<u64>().prop_map(Lifetime::For),
    ]
}

pub fn mutations() -> impl Strategy<Value = Vec<Owned>> {
    let kind = select(ChangeKind::ALL).prop_flat_map(change);
    let item = (
        prop_oneof![Just(SEQUENCE), 1..u64::MAX],
        any::<u64>(),
        bytes(30),
        rules(),
        option::of(bytes(30)),
        any::<bool>(),
        option::of(lifetime()),
        kind,
    );
    let item = item.prop_map(
        |(sequence, table, key, rules, value_is, returns_old, lifetime, kind)| Owned {
            sequence,
            table,
            key,
            rules,
            value_is,
            returns_old,
            lifetime,
            kind,
        },
    );
    vec(item, 0..5)
}

fn projection(kind: ProjectionKind) -> BoxedStrategy<Wanted> {
    let span =
        any::<(i64, Option<i64>, bool)>().prop_map(|(start, end, bits)| Span { start, end, bits });
    match kind {
        ProjectionKind::Value => Just(Wanted::Value).boxed(),
        ProjectionKind::Nothing => Just(Wanted::Nothing).boxed(),
        ProjectionKind::Length => Just(Wanted::Length).boxed(),
        ProjectionKind::Range => span.prop_map(Wanted::Range).boxed(),
        ProjectionKind::Bits => steps(0..1).prop_map(Wanted::Bits).boxed(),
        ProjectionKind::BitCount => span.prop_map(Wanted::BitCount).boxed(),
        ProjectionKind::BitPosition => (any::<bool>(), span)
            .prop_map(|(bit, span)| Wanted::BitPosition(bit, span))
            .boxed(),
        ProjectionKind::Deadline => Just(Wanted::Deadline).boxed(),
        ProjectionKind::TimeLeft => Just(Wanted::TimeLeft).boxed(),
    }
}

pub fn gets() -> impl Strategy<Value = Vec<OwnedGet>> {
    let wanted = select(ProjectionKind::ALL).prop_flat_map(projection);
    let item = (any::<u64>(), bytes(30), rules(), wanted)
        .prop_map(|(table, key, rules, wanted)| OwnedGet(table, key, rules, wanted));
    vec(item, 0..5)
}

pub fn results() -> impl Strategy<Value = Results> {
    let output = prop_oneof![
        Just(Output::Nothing),
        any::<i64>().prop_map(Output::Integer),
        bytes(40).prop_map(|bytes| Output::Bytes(bytes.into())),
        vec(any::<Option<i64>>(), 0..5).prop_map(|numbers| Output::Integers(numbers.into())),
    ];
    let outcome =
        (0..7, any::<(u64, u64)>(), output).prop_map(|(tag, (version, replaced), output)| {
            let version = ObjectVersion(version);
            match tag {
                0 => Outcome::Written {
                    version,
                    replaced: ObjectVersion(replaced),
                    output,
                },
                1 => Outcome::Unchanged { version, output },
                2 => Outcome::Deleted { version, output },
                3 => Outcome::Rejected { version, output },
                4 => Outcome::Refused(Unfit::NotANumber),
                5 => Outcome::Refused(Unfit::Overflow),
                _ => Outcome::Refused(Unfit::TooLong),
            }
        });
    let refusal = prop_oneof![
        Just(Refusal::Refresh),
        Just(Refusal::retry(
            Duration::from_millis(3),
            RetryReason::MemoryFull
        )),
        ".{0,20}".prop_map(|words| Refusal::fatal(FatalKind::Other, words)),
    ];
    let item = prop_oneof![outcome.prop_map(Ok), refusal.prop_map(Err)];
    vec(item, 0..5).prop_map(Results::from_vec)
}
