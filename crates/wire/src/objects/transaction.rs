//! The request of a transaction. `objects.rs` draws the layout.

use super::cursor::{BulkReader, BulkWriter, Reader};
use super::{CHECKED, Items, items, start_request, unknown};
use crate::header::Header;
use crate::opcode::Opcode;
use crate::refusal::Refusal;
use crate::{BitStep, Operation, TRANSACTION_STEPS_MAX, TransactionStep};
use bytes::Bytes;
use pluvio_env::Frame;
use pluvio_units::{KeyHash, KeyPlace, OperationId, SequenceNumber, Share, TableId};

const GET: u8 = 1;
const MUTATE: u8 = 2;
const MUST_HOLD: u8 = 128;
/// No step has an identity: the transaction has one.
const NO_SEQUENCE: SequenceNumber = SequenceNumber(0);

/// The keys are to be locked.
const PREPARE: u8 = 1;

/// A transaction of several owners, as an owner of a part is told of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Whole {
    /// The key with which the decision is kept: the first of the first share.
    pub home: KeyPlace,
    /// All shares, where the home key is among the keys asked for; else none.
    pub shares: Vec<Share>,
}

/// Steps of a transaction that arrived, checked.
pub struct Steps<'f> {
    whole: Option<Whole>,
    items: Items<'f>,
    payload: &'f Bytes,
    bits: Vec<BitStep>,
}

impl Steps<'_> {
    /// The transaction of several owners that they are a part of. Then their keys are to be locked.
    #[must_use]
    pub fn whole(&self) -> Option<&Whole> {
        self.whole.as_ref()
    }

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
    encode(header, None, steps)
}

/// Encodes a request to lock the keys of steps for a transaction of several owners. Its client is
/// that of the header's operation.
///
/// # Panics
/// As [`encode_transact`].
#[must_use]
pub fn encode_prepare(header: &Header, whole: &Whole, steps: &[TransactionStep<'_>]) -> Frame {
    encode(header, Some(whole), steps)
}

fn encode(header: &Header, whole: Option<&Whole>, steps: &[TransactionStep<'_>]) -> Frame {
    let len = |step: &TransactionStep<'_>| {
        1 + match &step.operation {
            Operation::Get(get) => items::get_len(get),
            Operation::Mutate(mutation) => items::mutation_len(mutation, NO_SEQUENCE),
        }
    };
    let mut meta = start_request(
        header,
        steps.len(),
        whole.map_or(0, |_| PREPARE),
        whole.map_or(0, Whole::len) + steps.iter().map(len).sum::<usize>(),
    );
    if let Some(whole) = whole {
        whole.put(&mut meta);
    }
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
    let (header, mut items) = Items::start_of(frame, PREPARE, TRANSACTION_STEPS_MAX)?;
    let mut bits = Vec::new();
    let mut reader = Reader::new(items.bytes);
    let whole = match items.flags & PREPARE {
        0 => None,
        _ => Some(Whole::read(&mut reader)?),
    };
    if whole.is_some() && !header.operation.is_some() {
        let what = "a part of a transaction of several owners has no identity";
        return Err(Refusal::malformed(what));
    }
    items.bytes = reader.rest();
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
        whole,
        items,
        payload: &frame.payload,
        bits,
    };
    Ok((header, steps))
}

impl Whole {
    /// Bytes of a key.
    const KEY: usize = 16;

    fn len(&self) -> usize {
        let share = |share: &Share| 10 + Self::KEY * share.keys.len();
        Self::KEY + 2 + self.shares.iter().map(share).sum::<usize>()
    }

    fn put(&self, to: &mut Vec<u8>) {
        let put_key = |to: &mut Vec<u8>, (table, hash): KeyPlace| {
            to.extend_from_slice(&table.0.to_le_bytes());
            to.extend_from_slice(&hash.0.to_le_bytes());
        };
        let count = |count: usize| u16::try_from(count).expect("each has a step at least");
        put_key(to, self.home);
        to.extend_from_slice(&count(self.shares.len()).to_le_bytes());
        for share in &self.shares {
            to.extend_from_slice(&share.sequence.0.to_le_bytes());
            to.extend_from_slice(&count(share.keys.len()).to_le_bytes());
            for key in &share.keys {
                put_key(to, *key);
            }
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Refusal> {
        let key = |from: &mut Reader<'_>| Ok((TableId(from.u64()?), KeyHash(from.u64()?)));
        let home = key(from)?;
        let mut left = TRANSACTION_STEPS_MAX;
        let mut shares = Vec::new();
        for _ in 0..from.u16()? {
            let sequence = SequenceNumber(from.u64()?);
            let count = usize::from(from.u16()?);
            let most = left.checked_sub(count).filter(|_| count > 0);
            left = most.ok_or_else(|| {
                Refusal::malformed("a transaction has too many keys, or a share without one")
            })?;
            let keys = (0..count)
                .map(|_| key(from))
                .collect::<Result<_, Refusal>>()?;
            shares.push(Share { sequence, keys });
        }
        Ok(Self { home, shares })
    }
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
