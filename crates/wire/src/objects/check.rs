//! Checks of a read or a mutation that need no object. A request that the wire cannot carry is
//! refused here, so that its answer does not depend on where the object is.

use super::DECIMAL_BYTES_MAX;
use crate::MULTI_BYTES_MAX;
use crate::limits::{check_key, check_value};
use crate::refusal::{FatalKind, Refusal};
use pluvio_mutation::{
    Addend, BIT_STEPS_MAX, BitAction, BitStep, Change, Get, Mutation, Operation, PUT_VERSION_MAX,
    Projection, TRANSACTION_STEPS_MAX, TransactionStep,
};
use pluvio_units::ObjectVersion;

/// Checks a mutation.
///
/// # Errors
/// No server would do it, whatever its object is.
pub fn check_mutation(mutation: &Mutation<'_>) -> Result<(), Refusal> {
    let change = &mutation.change;
    check_key(mutation.key)
        .and_then(|()| mutation.value_is.map_or(Ok(()), check_value))
        .and_then(|()| match change {
            Change::Put(value) | Change::Append(value) => check_value(value.bytes()),
            Change::PutVersion { value, version } => {
                check_put_version(*version)?;
                check_value(value.bytes())
            }
            Change::SetRange { bytes, .. } => check_value(bytes.bytes()),
            Change::Bits(steps) => check_steps(steps),
            Change::Delete | Change::Add(_) | Change::Touch(_) => Ok(()),
        })?;
    if mutation.returns_old && !change.may_return_old() {
        return Err(Refusal::malformed(
            "only a put, a delete or a touch can give the value from before",
        ));
    }
    match change {
        Change::Add(Addend::Decimal(text)) if text.len() > DECIMAL_BYTES_MAX => Err(
            Refusal::fatal(FatalKind::NotANumber, "value is not a valid float"),
        ),
        Change::SetRange { offset, bytes }
            if offset.checked_add(bytes.bytes().len() as u64).is_none() =>
        {
            Err(Refusal::fatal(
                FatalKind::ValueTooLong,
                format!("no value has bytes at {offset} and behind it"),
            ))
        }
        Change::Put(_)
        | Change::Delete
        | Change::Add(_)
        | Change::Append(_)
        | Change::SetRange { .. }
        | Change::Bits(_)
        | Change::Touch(_)
        | Change::PutVersion { .. } => Ok(()),
    }
}

/// Checks the version that an object is to have.
///
/// # Errors
/// No object has it.
pub(super) fn check_put_version(version: ObjectVersion) -> Result<(), Refusal> {
    match (ObjectVersion(1)..=PUT_VERSION_MAX).contains(&version) {
        true => Ok(()),
        false => Err(Refusal::malformed(format!(
            "an object cannot be put with version {version}, but with 1 to \
             {PUT_VERSION_MAX}"
        ))),
    }
}

/// Checks a read.
///
/// # Errors
/// As of [`check_mutation`].
pub fn check_get(get: &Get<'_>) -> Result<(), Refusal> {
    check_key(get.key)?;
    match &get.projection {
        Projection::Bits(steps) => {
            check_steps(steps)?;
            if steps.iter().any(|step| step.action != BitAction::Get) {
                return Err(Refusal::malformed(
                    "a read has a step on bits that changes them",
                ));
            }
            Ok(())
        }
        Projection::Range(span) if span.bits => {
            Err(Refusal::malformed("a range is of bytes, not of bits"))
        }
        Projection::Value
        | Projection::Nothing
        | Projection::Length
        | Projection::Range(_)
        | Projection::BitCount(_)
        | Projection::BitPosition { .. }
        | Projection::Deadline
        | Projection::TimeLeft => Ok(()),
    }
}

/// Checks a transaction.
///
/// # Errors
/// - [`FatalKind::TransactionTooLarge`] with more steps or bytes than one may have.
/// - As of [`check_mutation`] and [`check_get`], of its steps.
pub fn check_transaction(steps: &[TransactionStep<'_>]) -> Result<(), Refusal> {
    let bytes: usize = steps.iter().map(|step| step.operation.bulk_len()).sum();
    if steps.len() > TRANSACTION_STEPS_MAX || bytes > MULTI_BYTES_MAX {
        return Err(Refusal::fatal(
            FatalKind::TransactionTooLarge,
            format!(
                "a transaction has {} steps with {bytes} bytes of keys and values, at most \
                 {TRANSACTION_STEPS_MAX} with {MULTI_BYTES_MAX} are allowed: use several",
                steps.len()
            ),
        ));
    }
    steps.iter().try_for_each(|step| match &step.operation {
        Operation::Get(get) => check_get(get),
        Operation::Mutate(mutation) => check_mutation(mutation),
    })
}

fn check_steps(steps: &[BitStep]) -> Result<(), Refusal> {
    let count = (1..=BIT_STEPS_MAX).contains(&steps.len());
    if count && steps.iter().all(BitStep::is_sound) {
        return Ok(());
    }
    Err(Refusal::malformed(format!(
        "a list of steps on bits has 1 to {BIT_STEPS_MAX}, each on a field of 1 to 64 bits"
    )))
}
