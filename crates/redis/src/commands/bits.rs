//! Commands on bits of one value. Their arguments are read as Redis reads them. The owner of the
//! key computes (crate `mutation`).

use super::one_key::{OneKey, Scratch, Shape};
use crate::database::mutation;
use crate::failure;
use crate::number::integer;
use crate::parser::Command;
use crate::reply::Failure;
use pluvio_client::{BIT_STEPS_MAX, BitAction, BitOverflow, BitStep, Change, Projection, Span};

/// Bits that a value of Redis can have: offsets are below, also where values are shorter here.
const BIT_OFFSETS: i64 = 1 << 32;

/// The offset of a bit. In `#` followed by a number, the number counts fields of `width` bits.
fn offset(text: &[u8], width: Option<u8>) -> Result<u64, Failure> {
    let (text, unit) = match (text, width) {
        ([b'#', text @ ..], Some(width)) => (text, i64::from(width)),
        (text, _) => (text, 1),
    };
    let offset = integer(text).and_then(|number| number.checked_mul(unit));
    let offset = offset.filter(|offset| (0..BIT_OFFSETS).contains(offset));
    offset.map(i64::unsigned_abs).ok_or(failure::BAD_BIT_OFFSET)
}

pub(super) fn get<'c>(
    command: &'c Command,
    scratch: &'c mut Scratch,
) -> Result<OneKey<'c>, Failure> {
    let step = BitStep::get_bit(offset(command.get(2), None)?);
    scratch.steps = vec![step];
    let bit = Projection::Bits(&scratch.steps);
    Ok(OneKey::read(command.get(1), bit).shaped(Shape::First))
}

pub(super) fn set<'c>(
    command: &'c Command,
    scratch: &'c mut Scratch,
) -> Result<OneKey<'c>, Failure> {
    let offset = offset(command.get(2), None)?;
    let bit = integer(command.get(3)).filter(|bit| matches!(bit, 0 | 1));
    let step = BitStep::set_bit(offset, bit.ok_or(failure::BAD_BIT)? == 1);
    scratch.steps = vec![step];
    let bit = mutation(command.get(1), Change::Bits(&scratch.steps));
    Ok(OneKey::change(bit).shaped(Shape::First))
}

/// Whether the unit of a span, at this place if there is one, is the bit.
fn counts_bits(command: &Command, at: usize) -> Result<bool, Failure> {
    match command.len() {
        parts if parts <= at => Ok(false),
        _ if command.is(at, "BIT") => Ok(true),
        _ if command.is(at, "BYTE") => Ok(false),
        _ => Err(failure::SYNTAX),
    }
}

pub(super) fn count(command: &Command) -> Result<OneKey<'_>, Failure> {
    let span = match command.len() {
        2 => Span::ALL,
        4 | 5 => Span {
            start: integer(command.get(2)).ok_or(failure::NOT_INTEGER)?,
            end: Some(integer(command.get(3)).ok_or(failure::NOT_INTEGER)?),
            bits: counts_bits(command, 4)?,
        },
        _ => return Err(failure::SYNTAX),
    };
    Ok(OneKey::read(command.get(1), Projection::BitCount(span)))
}

pub(super) fn position(command: &Command) -> Result<OneKey<'_>, Failure> {
    let number = |at| integer(command.get(at)).ok_or(failure::NOT_INTEGER);
    let bit = match number(2)? {
        0 => false,
        1 => true,
        _ => return Err(failure::BIT_IS_NEITHER),
    };
    let parts = command.len();
    if parts > 6 {
        return Err(failure::SYNTAX);
    }
    let start = if parts > 3 { number(3)? } else { 0 };
    // Redis looks at the unit before the end.
    let bits = counts_bits(command, 5)?;
    let end = (parts > 4).then(|| number(4)).transpose()?;
    let span = Span { start, end, bits };
    let position = Projection::BitPosition { bit, span };
    Ok(OneKey::read(command.get(1), position))
}

/// BITFIELD and BITFIELD_RO.
pub(super) fn fields<'c>(
    command: &'c Command,
    scratch: &'c mut Scratch,
    only_reads: bool,
) -> Result<OneKey<'c>, Failure> {
    let key = command.get(1);
    scratch.steps = steps(command)?;
    let steps = &scratch.steps;
    let writes = steps.iter().any(|step| step.action != BitAction::Get);
    match (steps.is_empty(), writes) {
        (true, _) => Ok(OneKey::read(key, Projection::Nothing).shaped(Shape::EmptyList)),
        (false, false) => Ok(OneKey::read(key, Projection::Bits(steps))),
        (false, true) if only_reads => Err(failure::GET_ONLY),
        (false, true) => Ok(OneKey::change(mutation(key, Change::Bits(steps)))),
    }
}

/// The operations of BITFIELD.
fn steps(command: &Command) -> Result<Vec<BitStep>, Failure> {
    let mut steps = Vec::new();
    let mut overflow = BitOverflow::Wrap;
    let mut at = 2;
    while at < command.len() {
        let follow = command.len() - at - 1;
        if command.is(at, "OVERFLOW") && follow >= 1 {
            overflow = overflow_of(command, at + 1)?;
            at += 2;
            continue;
        }
        let action: Option<fn(i64) -> BitAction> = if command.is(at, "GET") && follow >= 2 {
            None
        } else if command.is(at, "SET") && follow >= 3 {
            Some(BitAction::Set)
        } else if command.is(at, "INCRBY") && follow >= 3 {
            Some(BitAction::Add)
        } else {
            return Err(failure::SYNTAX);
        };
        if steps.len() == BIT_STEPS_MAX {
            return Err(failure::too_many_operations(BIT_STEPS_MAX));
        }
        let (signed, width) = field(command.get(at + 1))?;
        let offset = offset(command.get(at + 2), Some(width))?;
        let action = match action {
            Some(action) => {
                at += 4;
                action(integer(command.get(at - 1)).ok_or(failure::NOT_INTEGER)?)
            }
            None => {
                at += 3;
                BitAction::Get
            }
        };
        steps.push(BitStep {
            action,
            signed,
            width,
            offset,
            overflow,
        });
    }
    Ok(steps)
}

fn overflow_of(command: &Command, at: usize) -> Result<BitOverflow, Failure> {
    if command.is(at, "WRAP") {
        Ok(BitOverflow::Wrap)
    } else if command.is(at, "SAT") {
        Ok(BitOverflow::Saturate)
    } else if command.is(at, "FAIL") {
        Ok(BitOverflow::Fail)
    } else {
        Err(failure::BAD_OVERFLOW)
    }
}

/// Whether the type of a field is signed, and its bits.
fn field(text: &[u8]) -> Result<(bool, u8), Failure> {
    let (signed, width, most) = match text {
        [b'i', width @ ..] => (true, width, 64),
        [b'u', width @ ..] => (false, width, 63),
        _ => return Err(failure::BAD_FIELD),
    };
    let width = integer(width).filter(|width| (1..=most).contains(width));
    let width = width.and_then(|width| u8::try_from(width).ok());
    Ok((signed, width.ok_or(failure::BAD_FIELD)?))
}
