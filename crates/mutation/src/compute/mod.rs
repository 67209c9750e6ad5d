//! Computations on bytes: the value that a change makes, and the part of a value that a read asks
//! for.
//!
//! The engine calls [`change`] under the lock of the object's bucket and then writes the result. It
//! calls [`project`] on a value that it has found. This module owns nothing. `decimal` adds decimal
//! text, `bits` works on fields of bits, `span` on parts of a value.
//!
//! Invariants
//! - COMPUTE-1: every function gives a result for every input; none panics.
//! - COMPUTE-2: a new value has at most [`VALUE_MAX`] bytes. No computation allocates more than a
//!   small multiple of that, whatever an exponent or an offset says.
//! - COMPUTE-3: a result depends on the arguments alone: neither on time nor on chance. So an owner
//!   that computes a change again after a recovery gets the same value.
//!
//! Pure functions; any thread.
//!
//! Not here: conditions, versions, deadlines, old values as answers, the write itself.

mod bits;
mod decimal;
mod span;

use crate::value::{Addend, Change, Output, Projection, Unfit};
use bytes::Bytes;
use core::ops::Deref;
use pluvio_units::VALUE_MAX;

/// The effect of a change on a value.
#[derive(PartialEq, Eq, Debug)]
pub enum Step<'m> {
    /// This is the value from now on.
    Put(NewValue<'m>, Output),
    /// There is no object any more.
    Delete,
    /// Nothing changes.
    Keep(Output),
}

/// The bytes of a new value.
#[derive(PartialEq, Eq, Debug)]
pub enum NewValue<'m> {
    /// They are those of the request.
    Given(&'m [u8]),
    /// They were computed.
    Built(Vec<u8>),
}

impl Deref for NewValue<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Given(bytes) => bytes,
            Self::Built(bytes) => bytes,
        }
    }
}

/// Computes `change` on the value of an object, `None` when there is no object.
///
/// # Errors
/// The value does not allow the change.
#[inline]
pub fn change<'m>(change: &Change<'m>, current: Option<&[u8]>) -> Result<Step<'m>, Unfit> {
    match *change {
        Change::Put(value) | Change::PutVersion { value, .. } => {
            put(value.bytes(), Output::Nothing)
        }
        Change::Delete => Ok(Step::Delete),
        Change::Add(Addend::Integer(by)) => add_integer(current, by),
        Change::Add(Addend::Decimal(by)) => add_decimal(current, by),
        Change::Append(bytes) => append(current, bytes.bytes()),
        Change::SetRange { offset, bytes } => set_range(current, offset, bytes.bytes()),
        Change::Bits(steps) => bits::change(steps, current),
        // Deadlines are judged elsewhere.
        Change::Touch(_) => Ok(match current {
            Some(value) => Step::Put(NewValue::Built(value.to_vec()), Output::Nothing),
            None => Step::Keep(Output::Nothing),
        }),
    }
}

/// The part of `value` that `projection` asks for.
pub fn project(projection: &Projection<'_>, value: &[u8]) -> Output {
    match *projection {
        Projection::Value => Output::Bytes(Bytes::copy_from_slice(value)),
        Projection::Nothing => Output::Nothing,
        Projection::Length => length(value.len()),
        Projection::Range(span) => Output::Bytes(Bytes::copy_from_slice(span::range(span, value))),
        Projection::Bits(steps) => bits::read(steps, value),
        Projection::BitCount(span) => Output::Integer(span::count(span, value)),
        Projection::BitPosition { bit, span } => Output::Integer(span::position(bit, span, value)),
        // They are no part of the value.
        Projection::Deadline | Projection::TimeLeft => Output::Nothing,
    }
}

fn length(bytes: usize) -> Output {
    Output::Integer(i64::try_from(bytes).unwrap_or(i64::MAX))
}

#[inline]
fn put(bytes: &[u8], output: Output) -> Result<Step<'_>, Unfit> {
    if bytes.len() > VALUE_MAX {
        return Err(Unfit::TooLong);
    }
    Ok(Step::Put(NewValue::Given(bytes), output))
}

fn add_integer(current: Option<&[u8]>, by: i64) -> Result<Step<'static>, Unfit> {
    let old = match current {
        Some(text) => parse_integer(text).ok_or(Unfit::NotANumber)?,
        None => 0,
    };
    let sum = old.checked_add(by).ok_or(Unfit::Overflow)?;
    let text = sum.to_string().into_bytes();
    Ok(Step::Put(NewValue::Built(text), Output::Integer(sum)))
}

/// The integer that `text` is, if printing it gives `text` again: no plus sign, blanks or leading
/// zeros.
fn parse_integer(text: &[u8]) -> Option<i64> {
    match text.strip_prefix(b"-").unwrap_or(text) {
        [b'0'] if text.len() == 1 => {}
        [b'1'..=b'9', ..] => {}
        _ => return None,
    }
    core::str::from_utf8(text).ok()?.parse().ok()
}

fn add_decimal(current: Option<&[u8]>, by: &str) -> Result<Step<'static>, Unfit> {
    let sum = decimal::add(current.unwrap_or(b"0"), by.as_bytes())?;
    let output = Output::Bytes(Bytes::copy_from_slice(&sum));
    Ok(Step::Put(NewValue::Built(sum), output))
}

fn append<'m>(current: Option<&[u8]>, more: &'m [u8]) -> Result<Step<'m>, Unfit> {
    let Some(before) = current else {
        // Appending nothing makes an empty object, as in Redis.
        return put(more, length(more.len()));
    };
    if more.is_empty() {
        return Ok(Step::Keep(length(before.len())));
    }
    let total = before.len().saturating_add(more.len());
    if total > VALUE_MAX {
        return Err(Unfit::TooLong);
    }
    let value = [before, more].concat();
    Ok(Step::Put(NewValue::Built(value), length(total)))
}

fn set_range(current: Option<&[u8]>, offset: u64, patch: &[u8]) -> Result<Step<'static>, Unfit> {
    let before = current.unwrap_or_default();
    if patch.is_empty() {
        return Ok(Step::Keep(length(before.len())));
    }
    let start = usize::try_from(offset).map_err(|_| Unfit::TooLong)?;
    let end = start.saturating_add(patch.len());
    let total = end.max(before.len());
    if total > VALUE_MAX {
        return Err(Unfit::TooLong);
    }
    let mut value = grown(before, total);
    value[start..end].copy_from_slice(patch);
    Ok(Step::Put(NewValue::Built(value), length(total)))
}

/// A copy of `before` with zeros behind it up to `total` bytes.
fn grown(before: &[u8], total: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(total);
    value.extend_from_slice(before);
    value.resize(total.max(before.len()), 0);
    value
}

#[cfg(test)]
mod tests;
