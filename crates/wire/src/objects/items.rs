//! One item of a request. `objects.rs` draws the layout.

use super::check::check_put_version;
use super::cursor::{BulkReader, BulkWriter, Reader, STEP_BYTES, Steps};
use super::{DECIMAL_BYTES_MAX, unknown};
use crate::limits::check_key;
use crate::refusal::{FatalKind, Refusal};
use crate::{
    Addend, BIT_STEPS_MAX, BitAction, BitOverflow, BitStep, Change, ChangeKind, Get, Lifetime,
    Mutation, Projection, ProjectionKind, RejectRules, Span, TouchIf,
};
use pluvio_units::{Deadline, ObjectVersion, OperationId, SequenceNumber, TableId};

const EXISTS: u16 = 1;
const DOES_NOT_EXIST: u16 = 2;
const VERSION_EQUAL: u16 = 4;
const VERSION_NOT_EQUAL: u16 = 8;
const VERSION_LESS: u16 = 16;
const VALUE_IS: u16 = 32;
const RETURNS_OLD: u16 = 64;
const SEQUENCE: u16 = 128;
const LIFETIME: u16 = 256;
const GET_FLAGS: u16 = 31;
const MUTATE_FLAGS: u16 = 511;

const KEEP: u8 = 0;
const ENDLESS: u8 = 1;
const UNTIL: u8 = 2;
const FOR: u8 = 3;
/// Tag and milliseconds.
const LIFETIME_BYTES: usize = 9;

const SPAN_END: u8 = 1;
const SPAN_BITS: u8 = 2;
const SPAN_BIT: u8 = 4;

/// Kind, flags, length of the key, table.
const FRONT: usize = 15;

fn put(meta: &mut Vec<u8>, bytes: &[u8]) {
    meta.extend_from_slice(bytes);
}

/// Writes kind, flags, length of the key and table.
fn put_front(meta: &mut Vec<u8>, kind: u8, flags: u16, key: &[u8], table: TableId) {
    meta.push(kind);
    put(meta, &flags.to_le_bytes());
    let length = u32::try_from(key.len()).expect("keys are at most KEY_MAX long");
    put(meta, &length.to_le_bytes());
    put(meta, &table.0.to_le_bytes());
}

/// What every item begins with.
struct Front {
    kind: u8,
    flags: u16,
    key_len: usize,
    table: TableId,
}

impl Front {
    fn read(from: &mut Reader<'_>, known_flags: u16) -> Result<Self, Refusal> {
        let front = Self {
            kind: from.u8()?,
            flags: from.u16()?,
            key_len: from.u32()? as usize,
            table: TableId(from.u64()?),
        };
        if front.flags & !known_flags != 0 {
            return Err(unknown(
                "flags of an item",
                (front.flags & !known_flags).into(),
                &format!("those within {known_flags}"),
            ));
        }
        Ok(front)
    }
}

fn rules_flags(rules: &RejectRules) -> u16 {
    let flag = |set: bool, flag: u16| if set { flag } else { 0 };
    flag(rules.exists, EXISTS)
        | flag(rules.does_not_exist, DOES_NOT_EXIST)
        | flag(rules.version_equal.is_some(), VERSION_EQUAL)
        | flag(rules.version_not_equal.is_some(), VERSION_NOT_EQUAL)
        | flag(rules.version_less.is_some(), VERSION_LESS)
}

fn put_rules(meta: &mut Vec<u8>, rules: &RejectRules) {
    for version in [
        rules.version_equal,
        rules.version_not_equal,
        rules.version_less,
    ]
    .into_iter()
    .flatten()
    {
        put(meta, &version.0.to_le_bytes());
    }
}

fn rules(from: &mut Reader<'_>, flags: u16) -> Result<RejectRules, Refusal> {
    let mut version = |flag: u16| -> Result<_, Refusal> {
        Ok(if flags & flag == 0 {
            None
        } else {
            Some(ObjectVersion(from.u64()?))
        })
    };
    Ok(RejectRules {
        exists: flags & EXISTS != 0,
        does_not_exist: flags & DOES_NOT_EXIST != 0,
        version_equal: version(VERSION_EQUAL)?,
        version_not_equal: version(VERSION_NOT_EQUAL)?,
        version_less: version(VERSION_LESS)?,
    })
}

/// Bytes of the optional fields that these flags announce.
fn optional_len(flags: u16) -> usize {
    let words = VERSION_EQUAL | VERSION_NOT_EQUAL | VERSION_LESS | SEQUENCE;
    let words = (flags & words).count_ones() as usize;
    let length = if flags & VALUE_IS == 0 { 0 } else { 4 };
    let lifetime = if flags & LIFETIME == 0 {
        0
    } else {
        LIFETIME_BYTES
    };
    8 * words + length + lifetime
}

fn key<'a>(from: &mut Reader<'a>, length: usize) -> Result<&'a [u8], Refusal> {
    let key = from.take(length)?;
    check_key(key)?;
    Ok(key)
}

/// A length that has two bytes. A longer one is over its limit anyway, and is cut: the server
/// refuses it.
fn short_len(length: usize) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}

fn put_steps(meta: &mut Vec<u8>, steps: &[BitStep]) {
    let count = short_len(steps.len());
    put(meta, &count.to_le_bytes());
    for step in &steps[..usize::from(count)] {
        let (action, operand) = match step.action {
            BitAction::Get => (0, 0),
            BitAction::Set(to) => (1, to),
            BitAction::Add(by) => (2, by),
        };
        let overflow = match step.overflow {
            BitOverflow::Wrap => 0,
            BitOverflow::Saturate => 1,
            BitOverflow::Fail => 2,
        };
        meta.push(action | u8::from(step.signed) << 2 | overflow << 3);
        meta.push(step.width);
        put(meta, &step.offset.to_le_bytes());
        put(meta, &operand.to_le_bytes());
    }
}

fn steps_len(steps: &[BitStep]) -> usize {
    2 + usize::from(short_len(steps.len())) * STEP_BYTES
}

fn step(bytes: &[u8]) -> Result<BitStep, Refusal> {
    let mut from = Reader::new(bytes);
    let action = from.u8()?;
    let width = from.u8()?;
    let offset = from.u64()?;
    let operand = from.i64()?;
    let unknown = || unknown("a step on bits", action.into(), "get, set, add");
    let step = BitStep {
        action: match action & 3 {
            0 if operand == 0 => BitAction::Get,
            0 => return Err(Refusal::malformed("a step that reads bits has an operand")),
            1 => BitAction::Set(operand),
            2 => BitAction::Add(operand),
            _ => return Err(unknown()),
        },
        signed: action & 4 != 0,
        width,
        offset,
        overflow: match action >> 3 {
            0 => BitOverflow::Wrap,
            1 => BitOverflow::Saturate,
            2 => BitOverflow::Fail,
            _ => return Err(unknown()),
        },
    };
    if step.is_sound() {
        Ok(step)
    } else {
        Err(Refusal::malformed(format!(
            "there is no field of {width} bits at bit {offset}"
        )))
    }
}

fn steps<'a>(
    from: &mut Reader<'a>,
    steps: &mut impl Steps<'a>,
    reads_only: bool,
) -> Result<&'a [BitStep], Refusal> {
    let count = usize::from(from.u16()?);
    if !(1..=BIT_STEPS_MAX).contains(&count) {
        return Err(Refusal::malformed(format!(
            "an item has {count} steps on bits, 1 to {BIT_STEPS_MAX} are allowed"
        )));
    }
    steps.take(from.take(count * STEP_BYTES)?, |bytes| match step(bytes)? {
        step if reads_only && step.action != BitAction::Get => Err(Refusal::malformed(
            "a read has a step on bits that changes them",
        )),
        step => Ok(step),
    })
}

/// Whether its lifetime goes without saying.
fn has_usual_lifetime(mutation: &Mutation<'_>) -> bool {
    mutation.lifetime == Lifetime::of_change(&mutation.change)
}

fn put_lifetime(meta: &mut Vec<u8>, lifetime: Lifetime) {
    let (tag, ms) = match lifetime {
        Lifetime::Keep => (KEEP, 0),
        Lifetime::Endless => (ENDLESS, 0),
        Lifetime::Until(deadline) => (UNTIL, deadline.ms()),
        Lifetime::For(ms) => (FOR, ms),
    };
    meta.push(tag);
    put(meta, &ms.to_le_bytes());
}

fn lifetime(from: &mut Reader<'_>) -> Result<Lifetime, Refusal> {
    let (tag, ms) = (from.u8()?, from.u64()?);
    match tag {
        KEEP | ENDLESS if ms != 0 => Err(Refusal::malformed("a lifetime without an end has one")),
        KEEP => Ok(Lifetime::Keep),
        ENDLESS => Ok(Lifetime::Endless),
        UNTIL => {
            let deadline = Deadline::new(ms);
            let refused = || Refusal::malformed(format!("there is no deadline at {ms} ms"));
            deadline.map(Lifetime::Until).ok_or_else(refused)
        }
        FOR => Ok(Lifetime::For(ms)),
        _ => Err(unknown("lifetime", tag.into(), "keep, endless, until, for")),
    }
}

fn touch_if(code: u8) -> Result<TouchIf, Refusal> {
    let rule = TouchIf::ALL.get(usize::from(code)).copied();
    let known = || unknown("condition on a deadline", code.into(), "0 to 5");
    rule.ok_or_else(known)
}

fn mutation_flags(mutation: &Mutation<'_>, implied: SequenceNumber) -> u16 {
    let sequence = mutation.id.sequence;
    let has_sequence = sequence != SequenceNumber(0) && sequence != implied;
    let mut flags = rules_flags(&mutation.rules);
    for (set, flag) in [
        (mutation.value_is.is_some(), VALUE_IS),
        (mutation.returns_old, RETURNS_OLD),
        (has_sequence, SEQUENCE),
        (!has_usual_lifetime(mutation), LIFETIME),
    ] {
        flags |= if set { flag } else { 0 };
    }
    flags
}

/// Bytes that [`put_mutation`] adds to `meta`.
pub(super) fn mutation_len(mutation: &Mutation<'_>, implied: SequenceNumber) -> usize {
    let fixed = match &mutation.change {
        Change::Delete => 0,
        Change::Put(_) | Change::Append(_) => 4,
        Change::Add(Addend::Integer(_)) => 8,
        Change::Add(Addend::Decimal(text)) => 2 + usize::from(short_len(text.len())),
        Change::SetRange { .. } | Change::PutVersion { .. } => 12,
        Change::Bits(steps) => steps_len(steps),
        Change::Touch(_) => 1,
    };
    FRONT + optional_len(mutation_flags(mutation, implied)) + fixed + mutation.key.len()
}

/// Writes a mutation. `implied` is the sequence number of an item that brings none.
pub(super) fn put_mutation<'a>(
    meta: &mut Vec<u8>,
    bulk: &mut BulkWriter<'a>,
    mutation: &Mutation<'a>,
    implied: SequenceNumber,
) {
    let flags = mutation_flags(mutation, implied);
    put_front(
        meta,
        mutation.change.kind().code(),
        flags,
        mutation.key,
        mutation.table,
    );
    put_rules(meta, &mutation.rules);
    if let Some(value) = mutation.value_is {
        put(meta, &bulk.push(value.into()));
    }
    if flags & SEQUENCE != 0 {
        put(meta, &mutation.id.sequence.0.to_le_bytes());
    }
    if flags & LIFETIME != 0 {
        put_lifetime(meta, mutation.lifetime);
    }
    match mutation.change {
        Change::Delete => {}
        Change::Put(bytes) | Change::Append(bytes) => put(meta, &bulk.push(bytes)),
        Change::Add(Addend::Integer(by)) => put(meta, &by.to_le_bytes()),
        Change::Add(Addend::Decimal(text)) => {
            let length = short_len(text.len());
            put(meta, &length.to_le_bytes());
            put(meta, &text.as_bytes()[..usize::from(length)]);
        }
        Change::SetRange { offset, bytes } => {
            put(meta, &offset.to_le_bytes());
            put(meta, &bulk.push(bytes));
        }
        Change::Bits(steps) => put_steps(meta, steps),
        Change::Touch(rule) => {
            let code = TouchIf::ALL.iter().position(|known| *known == rule);
            meta.push(code.map_or(0, |code| code as u8));
        }
        Change::PutVersion { value, version } => {
            put(meta, &version.0.to_le_bytes());
            put(meta, &bulk.push(value));
        }
    }
    put(meta, mutation.key);
}

/// Reads a mutation. `operation` is what an item is that brings no sequence number.
pub(super) fn mutation<'a>(
    from: &mut Reader<'a>,
    bulk: &mut BulkReader<'a>,
    steps: &mut impl Steps<'a>,
    operation: OperationId,
) -> Result<Mutation<'a>, Refusal> {
    let front = Front::read(from, MUTATE_FLAGS)?;
    let has = |flag: u16| front.flags & flag != 0;
    let rules = rules(from, front.flags)?;
    let value_is = if has(VALUE_IS) {
        Some(bulk.take(from.u32()?)?.bytes())
    } else {
        None
    };
    let id = if has(SEQUENCE) {
        OperationId {
            sequence: SequenceNumber(from.u64()?),
            ..operation
        }
    } else {
        operation
    };
    if has(SEQUENCE) && id.sequence == SequenceNumber(0) {
        return Err(Refusal::malformed("operations count from 1, not from 0"));
    }
    let lifetime = match has(LIFETIME) {
        true => Some(lifetime(from)?),
        false => None,
    };
    let change = change(front.kind, from, bulk, steps)?;
    let usual = Lifetime::of_change(&change);
    if lifetime == Some(usual) {
        return Err(Refusal::malformed("a lifetime that goes without saying"));
    }
    let returns_old = has(RETURNS_OLD);
    if returns_old && !change.may_return_old() {
        return Err(Refusal::malformed(
            "only a put, a delete or a touch can give the value from before",
        ));
    }
    Ok(Mutation {
        id,
        table: front.table,
        key: key(from, front.key_len)?,
        hash: None,
        rules,
        value_is,
        returns_old,
        lifetime: lifetime.unwrap_or(usual),
        change,
    })
}

fn change<'a>(
    kind: u8,
    from: &mut Reader<'a>,
    bulk: &mut BulkReader<'a>,
    steps_of: &mut impl Steps<'a>,
) -> Result<Change<'a>, Refusal> {
    let Some(kind) = ChangeKind::of_code(kind) else {
        let known = ChangeKind::ALL
            .iter()
            .map(|kind| (kind.code(), kind.text()));
        return Err(unknown("kind of change", kind.into(), &listed(known)));
    };
    Ok(match kind {
        ChangeKind::Put => Change::Put(bulk.take(from.u32()?)?),
        ChangeKind::Delete => Change::Delete,
        ChangeKind::AddInteger => Change::Add(Addend::Integer(from.i64()?)),
        ChangeKind::AddDecimal => Change::Add(Addend::Decimal(decimal(from)?)),
        ChangeKind::Append => Change::Append(bulk.take(from.u32()?)?),
        ChangeKind::SetRange => {
            let offset = from.u64()?;
            let bytes = bulk.take(from.u32()?)?;
            if offset.checked_add(bytes.bytes().len() as u64).is_none() {
                return Err(Refusal::fatal(
                    FatalKind::ValueTooLong,
                    format!("no value has bytes at {offset} and behind it"),
                ));
            }
            Change::SetRange { offset, bytes }
        }
        ChangeKind::Bits => Change::Bits(steps(from, steps_of, false)?),
        ChangeKind::Touch => Change::Touch(touch_if(from.u8()?)?),
        ChangeKind::PutVersion => {
            let version = ObjectVersion(from.u64()?);
            check_put_version(version)?;
            let value = bulk.take(from.u32()?)?;
            Change::PutVersion { value, version }
        }
    })
}

/// Kinds with their numbers, for people.
fn listed(kinds: impl Iterator<Item = (u8, &'static str)>) -> String {
    let all: Vec<String> = kinds.map(|(code, text)| format!("{code} {text}")).collect();
    all.join(", ")
}

fn decimal<'a>(from: &mut Reader<'a>) -> Result<&'a str, Refusal> {
    let length = usize::from(from.u16()?);
    if length > DECIMAL_BYTES_MAX {
        return Err(Refusal::malformed(format!(
            "a decimal number has {length} bytes or more, at most {DECIMAL_BYTES_MAX} are allowed"
        )));
    }
    core::str::from_utf8(from.take(length)?)
        .map_err(|_| Refusal::malformed("a decimal number is not in UTF-8"))
}

fn span_len(span: &Span) -> usize {
    if span.end.is_some() { 17 } else { 9 }
}

fn put_span(meta: &mut Vec<u8>, span: &Span, bit: bool) {
    let mut flags = 0;
    for (set, flag) in [
        (span.end.is_some(), SPAN_END),
        (span.bits, SPAN_BITS),
        (bit, SPAN_BIT),
    ] {
        flags |= if set { flag } else { 0 };
    }
    meta.push(flags);
    put(meta, &span.start.to_le_bytes());
    if let Some(end) = span.end {
        put(meta, &end.to_le_bytes());
    }
}

/// A span, and the bit looked for.
fn span(from: &mut Reader<'_>, known_flags: u8) -> Result<(Span, bool), Refusal> {
    let flags = from.u8()?;
    if flags & !known_flags != 0 {
        return Err(unknown(
            "flags of a span",
            (flags & !known_flags).into(),
            &format!("those within {known_flags} here"),
        ));
    }
    let start = from.i64()?;
    let end = if flags & SPAN_END == 0 {
        None
    } else {
        Some(from.i64()?)
    };
    let bits = flags & SPAN_BITS != 0;
    Ok((Span { start, end, bits }, flags & SPAN_BIT != 0))
}

/// Bytes that [`put_get`] adds to `meta`.
pub(super) fn get_len(get: &Get<'_>) -> usize {
    let fixed = match &get.projection {
        Projection::Value
        | Projection::Nothing
        | Projection::Length
        | Projection::Deadline
        | Projection::TimeLeft => 0,
        Projection::Range(span)
        | Projection::BitCount(span)
        | Projection::BitPosition { span, .. } => span_len(span),
        Projection::Bits(steps) => steps_len(steps),
    };
    FRONT + optional_len(rules_flags(&get.rules)) + fixed + get.key.len()
}

/// Writes a read.
pub(super) fn put_get(meta: &mut Vec<u8>, get: &Get<'_>) {
    let kind = get.projection.kind().code();
    put_front(meta, kind, rules_flags(&get.rules), get.key, get.table);
    put_rules(meta, &get.rules);
    match &get.projection {
        Projection::Value
        | Projection::Nothing
        | Projection::Length
        | Projection::Deadline
        | Projection::TimeLeft => {}
        Projection::Range(span) | Projection::BitCount(span) => put_span(meta, span, false),
        Projection::BitPosition { bit, span } => put_span(meta, span, *bit),
        Projection::Bits(steps) => put_steps(meta, steps),
    }
    put(meta, get.key);
}

/// Reads a read.
pub(super) fn get<'a>(
    from: &mut Reader<'a>,
    steps_of: &mut impl Steps<'a>,
) -> Result<Get<'a>, Refusal> {
    let front = Front::read(from, GET_FLAGS)?;
    let rules = rules(from, front.flags)?;
    let Some(kind) = ProjectionKind::of_code(front.kind) else {
        let known = ProjectionKind::ALL
            .iter()
            .map(|kind| (kind.code(), kind.text()));
        return Err(unknown("kind of read", front.kind.into(), &listed(known)));
    };
    let projection = match kind {
        ProjectionKind::Value => Projection::Value,
        ProjectionKind::Nothing => Projection::Nothing,
        ProjectionKind::Length => Projection::Length,
        // A range is of bytes.
        ProjectionKind::Range => Projection::Range(span(from, SPAN_END)?.0),
        ProjectionKind::Bits => Projection::Bits(steps(from, steps_of, true)?),
        ProjectionKind::BitCount => Projection::BitCount(span(from, SPAN_END | SPAN_BITS)?.0),
        ProjectionKind::BitPosition => {
            let (span, bit) = span(from, SPAN_END | SPAN_BITS | SPAN_BIT)?;
            Projection::BitPosition { bit, span }
        }
        ProjectionKind::Deadline => Projection::Deadline,
        ProjectionKind::TimeLeft => Projection::TimeLeft,
    };
    Ok(Get {
        table: front.table,
        key: key(from, front.key_len)?,
        hash: None,
        rules,
        projection,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drawn_layout_has_every_kind() {
        let drawing = include_str!("../objects.rs");
        let changes = ChangeKind::ALL
            .iter()
            .map(|kind| (kind.code(), kind.text()));
        let projections = ProjectionKind::ALL
            .iter()
            .map(|kind| (kind.code(), kind.text()));
        for (table, kinds) in [
            ("kind of Mutate", changes.collect::<Vec<_>>()),
            ("kind of Get", projections.collect()),
        ] {
            let (_, rows) = drawing.split_once(table).expect("the table is drawn");
            let (rows, _) = rows.split_once("//!\n").expect("the table has an end");
            for (code, text) in kinds {
                let row = format!("//! {code:>3}  {text}");
                assert!(
                    rows.lines().any(|line| line.starts_with(&row)),
                    "{table} lacks the row {row:?}"
                );
            }
        }
    }
}
