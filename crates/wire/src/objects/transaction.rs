//! The request of a transaction. `objects.rs` draws the layout.

use super::cursor::{BulkReader, BulkWriter, Reader};
use super::{CHECKED, Items, items, start_request, unknown};
use crate::header::Header;
use crate::opcode::Opcode;
use crate::refusal::Refusal;
use crate::{BitStep, Operation, TRANSACTION_STEPS_MAX, TransactionStep};
use bytes::Bytes;
use pluvio_env::Frame;
use pluvio_units::{OperationId, SequenceNumber};

const GET: u8 = 1;
const MUTATE: u8 = 2;
const MUST_HOLD: u8 = 128;
/// No step has an identity: the transaction has one.
const NO_SEQUENCE: SequenceNumber = SequenceNumber(0);

/// Steps of a transaction that arrived, checked.
pub struct Steps<'f> {
    items: Items<'f>,
    payload: &'f Bytes,
    bits: Vec<BitStep>,
}

impl Steps<'_> {
    /// The steps in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = TransactionStep<'_>> {
        let mut reader = Reader::new(self.items.bytes);
        let mut bulk = BulkReader::new(self.payload);
        let mut bits: &[BitStep] = &self.bits;
        (0..self.items.count).map(move |_| step(&mut reader, &mut bulk, &mut bits).expect(CHECKED))
    }
}

/// Encodes a transaction, whose identity is that of the header.
///
/// # Panics
/// With more than 65 535 steps, or with a change that has an identity of its own.
#[must_use]
pub fn encode_transact(header: &Header, steps: &[TransactionStep<'_>]) -> Frame {
    let len = |step: &TransactionStep<'_>| {
        1 + match &step.operation {
            Operation::Get(get) => items::get_len(get),
            Operation::Mutate(mutation) => items::mutation_len(mutation, NO_SEQUENCE),
        }
    };
    let mut meta = start_request(header, steps.len(), 0, steps.iter().map(len).sum());
    let mut bulk = BulkWriter::default();
    for step in steps {
        let flag = if step.must_hold { MUST_HOLD } else { 0 };
        match &step.operation {
            Operation::Get(get) => {
                meta.push(GET | flag);
                items::put_get(&mut meta, get);
            }
            Operation::Mutate(mutation) => {
                assert!(!mutation.id.is_some(), "a step has no identity of its own");
                meta.push(MUTATE | flag);
                items::put_mutation(&mut meta, &mut bulk, mutation, NO_SEQUENCE);
            }
        }
    }
    Frame {
        opcode: Opcode::Transact as u16,
        meta: meta.into(),
        payload: bulk.finish(),
    }
}

/// Decodes a transaction, whose opcode was looked at already.
///
/// # Errors
/// A final refusal that can be sent back when the bytes are no such request.
pub fn decode_transact(frame: &Frame) -> Result<(Header, Steps<'_>), Refusal> {
    let (header, items) = Items::start_of(frame, 0, TRANSACTION_STEPS_MAX)?;
    let mut bits = Vec::new();
    let mut reader = Reader::new(items.bytes);
    let mut bulk = BulkReader::new(&frame.payload);
    for _ in 0..items.count {
        let step = step(&mut reader, &mut bulk, &mut bits)?;
        if let Operation::Mutate(mutation) = step.operation
            && mutation.id.is_some()
        {
            let what = "a step of a transaction has an identity of its own";
            return Err(Refusal::malformed(what));
        }
    }
    reader.end()?;
    bulk.end()?;
    let steps = Steps {
        items,
        payload: &frame.payload,
        bits,
    };
    Ok((header, steps))
}

fn step<'a>(
    from: &mut Reader<'a>,
    bulk: &mut BulkReader<'a>,
    bits: &mut impl super::cursor::Steps<'a>,
) -> Result<TransactionStep<'a>, Refusal> {
    let kind = from.u8()?;
    let operation = match kind & !MUST_HOLD {
        GET => Operation::Get(items::get(from, bits)?),
        MUTATE => Operation::Mutate(items::mutation(from, bulk, bits, OperationId::default())?),
        other => return Err(unknown("step", other.into(), "1 read, 2 change")),
    };
    Ok(TransactionStep {
        operation,
        must_hold: kind & MUST_HOLD != 0,
    })
}
