//! Completion records: what an operation of a client came to, so that a retry is answered and not
//! done again [RAMCloud §10.3].
//!
//! ```text
//!  client u64 · sequence varint · sequence − acknowledged below varint · retry seconds varint ·
//!  table varint · key hash u64 · outcome u8 · the outcome's fields
//!
//!  1 written        version varint · replaced varint
//!  2 deleted        version varint
//!  3 added          version varint · sum i64                  (read only: format versions 1 and 2)
//!  4 added float    version varint · sum, the bits of an f64  (read only: format versions 1 and 2)
//!  5 rejected       version varint
//!  6 not a number
//!  7 overflow
//!  8 too long
//!  9 with output    effect u8 (1 written, 2 unchanged, 3 deleted, 4 rejected) · version varint ·
//!                   replaced varint (of written only) · output u8 · the output's fields
//! 10 together       committed u8 (0 or 1) · count varint · for each step: length varint · outcome
//!
//!  output:  0 nothing (of unchanged only) · 1 integer i64 · 2 bytes, up to the end ·
//!           3 integers, up to the end: for each u8 (0 none, 1 some) and, if some, i64
//! ```
//!
//! An outcome without output is written without one, so each outcome has one encoding (FORMAT-2).

use crate::varint::{Fields, push_varint, put_varint};
use bytes::Bytes;
use pluvio_mutation::{Outcome, Output, TRANSACTION_STEPS_MAX, Unfit};
use pluvio_units::{
    ClientId, KeyHash, ObjectVersion, OperationId, SequenceNumber, TableId, VALUE_MAX,
};

/// Says that an operation was executed. It is appended in one group with the changes of the
/// operation: after a crash both are there, or neither is. In recovery it follows its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The client; never 0.
    pub client: ClientId,
    /// The operation; never 0.
    pub sequence: SequenceNumber,
    /// The client has the results of all its operations below this number. At most `sequence`.
    pub acknowledged_below: SequenceNumber,
    /// For how many seconds at most the client repeats the operation.
    pub retry_s: u32,
    /// The table of the object.
    pub table: TableId,
    /// The hash of its key.
    pub hash: KeyHash,
    /// What came of it.
    pub outcome: Outcome,
}

impl Completion {
    /// Longest part before output of any length: two fixed numbers and an integer, three codes,
    /// and six varints, one of 32 bits.
    pub(crate) const FRONT_MAX: usize = 3 * 8 + 3 + 5 * 10 + 5;

    /// The record of an operation on one key.
    #[must_use]
    pub fn new(operation: &OperationId, table: TableId, hash: KeyHash, outcome: Outcome) -> Self {
        Self {
            client: operation.client,
            sequence: operation.sequence,
            acknowledged_below: operation.acknowledged_below.min(operation.sequence),
            retry_s: operation.retry_ms.div_ceil(1000),
            table,
            hash,
            outcome,
        }
    }

    /// Writes what lies before output of any length at the start of `to`, which has
    /// [`Self::FRONT_MAX`] bytes. Gives its length and what follows it.
    pub(crate) fn encode_body(&self, to: &mut [u8]) -> (usize, Bytes) {
        let mut at = put_u64(to, self.client.0);
        at += put_varint(&mut to[at..], self.sequence.0);
        let unacknowledged = self.sequence.0.saturating_sub(self.acknowledged_below.0);
        at += put_varint(&mut to[at..], unacknowledged);
        at += put_varint(&mut to[at..], u64::from(self.retry_s));
        at += put_varint(&mut to[at..], self.table.0);
        at += put_u64(&mut to[at..], self.hash.0);
        let (more, rest) = encode_outcome(&self.outcome, &mut to[at..]);
        (at + more, rest)
    }

    pub(crate) fn decode_body(body: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(body);
        let client = ClientId(fields.u64()?);
        let sequence = SequenceNumber(fields.varint()?);
        let acknowledged_below = SequenceNumber(sequence.0.checked_sub(fields.varint()?)?);
        let retry_s = u32::try_from(fields.varint()?).ok()?;
        let table = TableId(fields.varint()?);
        let hash = KeyHash(fields.u64()?);
        let outcome = decode_outcome(&mut fields)?;
        fields.end()?;
        (client != ClientId(0) && sequence != SequenceNumber(0)).then_some(Self {
            client,
            sequence,
            acknowledged_below,
            retry_s,
            table,
            hash,
            outcome,
        })
    }
}

fn encode_outcome(outcome: &Outcome, to: &mut [u8]) -> (usize, Bytes) {
    const NONE: ObjectVersion = ObjectVersion(0);
    let short = |to: &mut [u8], code, version: Option<ObjectVersion>| {
        to[0] = code;
        let at = 1 + version.map_or(0, |version| put_varint(&mut to[1..], version.0));
        (at, Bytes::new())
    };
    let (effect, version, replaced, output) = match outcome {
        Outcome::Together { committed, steps } => {
            to[0] = 10;
            return (1, encode_steps(*committed, steps).into());
        }
        Outcome::Written {
            version,
            replaced,
            output: Output::Nothing,
        } => {
            let (at, rest) = short(to, 1, Some(*version));
            return (at + put_varint(&mut to[at..], replaced.0), rest);
        }
        Outcome::Deleted {
            version,
            output: Output::Nothing,
        } => return short(to, 2, Some(*version)),
        Outcome::Rejected {
            version,
            output: Output::Nothing,
        } => return short(to, 5, Some(*version)),
        Outcome::Refused(Unfit::NotANumber) => return short(to, 6, None),
        Outcome::Refused(Unfit::Overflow) => return short(to, 7, None),
        Outcome::Refused(Unfit::TooLong) => return short(to, 8, None),
        Outcome::Written {
            version,
            replaced,
            output,
        } => (1, version, *replaced, output),
        Outcome::Unchanged { version, output } => (2, version, NONE, output),
        Outcome::Deleted { version, output } => (3, version, NONE, output),
        Outcome::Rejected { version, output } => (4, version, NONE, output),
    };
    (to[0], to[1]) = (9, effect);
    let mut at = 2 + put_varint(&mut to[2..], version.0);
    if effect == 1 {
        at += put_varint(&mut to[at..], replaced.0);
    }
    let (code, rest) = match output {
        Output::Nothing => (0, Bytes::new()),
        Output::Integer(number) => {
            put_u64(&mut to[at + 1..], number.cast_unsigned());
            (1, Bytes::new())
        }
        Output::Bytes(bytes) => (2, bytes.clone()),
        Output::Integers(numbers) => (3, encode_integers(numbers).into()),
    };
    to[at] = code;
    at += 1 + if code == 1 { 8 } else { 0 };
    (at, rest)
}

fn encode_steps(committed: bool, steps: &[Outcome]) -> Vec<u8> {
    let mut bytes = vec![u8::from(committed)];
    push_varint(&mut bytes, steps.len() as u64);
    let mut front = [0; Completion::FRONT_MAX];
    for step in steps {
        let (at, rest) = encode_outcome(step, &mut front);
        push_varint(&mut bytes, (at + rest.len()) as u64);
        bytes.extend_from_slice(&front[..at]);
        bytes.extend_from_slice(&rest);
    }
    bytes
}

/// The steps of a transaction; none of them is one itself.
fn decode_steps(fields: &mut Fields<'_>) -> Option<Outcome> {
    let committed = match fields.u8()? {
        0 => false,
        1 => true,
        _ => return None,
    };
    let count = usize::try_from(fields.varint()?).ok()?;
    if count > TRANSACTION_STEPS_MAX {
        return None;
    }
    let mut steps = Vec::new();
    for _ in 0..count {
        let len = usize::try_from(fields.varint()?).ok()?;
        let mut step = Fields::new(fields.bytes(len)?);
        let outcome = decode_outcome(&mut step)?;
        step.end()?;
        if matches!(outcome, Outcome::Together { .. }) {
            return None;
        }
        steps.push(outcome);
    }
    Some(Outcome::Together {
        committed,
        steps: steps.into(),
    })
}

fn encode_integers(numbers: &[Option<i64>]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(numbers.len() * 9);
    for number in numbers {
        match number {
            None => bytes.push(0),
            Some(number) => {
                bytes.push(1);
                bytes.extend_from_slice(&number.to_le_bytes());
            }
        }
    }
    bytes
}

fn decode_outcome(fields: &mut Fields<'_>) -> Option<Outcome> {
    let code = fields.u8()?;
    let version = |fields: &mut Fields<'_>| fields.varint().map(ObjectVersion);
    Some(match code {
        1 => Outcome::Written {
            version: version(fields)?,
            replaced: version(fields)?,
            output: Output::Nothing,
        },
        2 => Outcome::Deleted {
            version: version(fields)?,
            output: Output::Nothing,
        },
        3 => Outcome::Written {
            version: version(fields)?,
            replaced: ObjectVersion(0),
            output: Output::Integer(fields.u64()?.cast_signed()),
        },
        4 => Outcome::Written {
            version: version(fields)?,
            replaced: ObjectVersion(0),
            output: {
                let sum = f64::from_bits(fields.u64()?);
                Output::Bytes(sum.to_string().into())
            },
        },
        5 => Outcome::Rejected {
            version: version(fields)?,
            output: Output::Nothing,
        },
        6 => Outcome::Refused(Unfit::NotANumber),
        7 => Outcome::Refused(Unfit::Overflow),
        8 => Outcome::Refused(Unfit::TooLong),
        9 => decode_with_output(fields)?,
        10 => decode_steps(fields)?,
        _ => return None,
    })
}

fn decode_with_output(fields: &mut Fields<'_>) -> Option<Outcome> {
    let effect = fields.u8()?;
    let version = ObjectVersion(fields.varint()?);
    let replaced = match effect {
        1 => ObjectVersion(fields.varint()?),
        _ => ObjectVersion(0),
    };
    let output = match fields.u8()? {
        0 => Output::Nothing,
        1 => Output::Integer(fields.u64()?.cast_signed()),
        2 => {
            let bytes = fields.take_rest();
            (bytes.len() <= VALUE_MAX).then(|| Output::Bytes(Bytes::copy_from_slice(bytes)))?
        }
        3 => {
            let mut numbers = Vec::new();
            while !fields.is_empty() {
                numbers.push(match fields.u8()? {
                    0 => None,
                    1 => Some(fields.u64()?.cast_signed()),
                    _ => return None,
                });
            }
            Output::Integers(numbers.into())
        }
        _ => return None,
    };
    // The short forms stand for these.
    let short = output == Output::Nothing;
    Some(match effect {
        1 if !short => Outcome::Written {
            version,
            replaced,
            output,
        },
        2 => Outcome::Unchanged { version, output },
        3 if !short => Outcome::Deleted { version, output },
        4 if !short => Outcome::Rejected { version, output },
        _ => return None,
    })
}

fn put_u64(to: &mut [u8], value: u64) -> usize {
    to[..8].copy_from_slice(&value.to_le_bytes());
    8
}
