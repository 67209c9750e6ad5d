//! Completion records: what an operation of a client came to, so that a retry is answered and not
//! done again (003 §10.3).
//!
//! ```text
//!  client u64 · sequence varint · sequence − acknowledged below varint · retry seconds varint ·
//!  table varint · key hash u64 · outcome u8 · the outcome's fields
//!
//!  1 written      version varint · replaced varint
//!  2 deleted      version varint
//!  3 added        version varint · sum i64
//!  4 added float  version varint · sum, the bits of an f64
//!  5 rejected     version varint
//!  6 not a number
//!  7 overflow
//! ```

use crate::varint::{Fields, put_varint};
use pluvio_units::{ClientId, KeyHash, ObjectVersion, OperationId, SequenceNumber, TableId};

/// What an operation came to: all that its reply is made from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// A value was written.
    Written {
        /// The object's new version.
        version: ObjectVersion,
        /// The version it replaced; 0 when the object is new.
        replaced: ObjectVersion,
    },
    /// The object is gone.
    Deleted {
        /// The version that was deleted; 0 when there was no object.
        version: ObjectVersion,
    },
    /// An integer was added.
    Added {
        /// The object's new version.
        version: ObjectVersion,
        /// The new number.
        sum: i64,
    },
    /// A floating-point number was added.
    AddedFloat {
        /// The object's new version.
        version: ObjectVersion,
        /// The bits of the new number.
        sum_bits: u64,
    },
    /// A reject rule fired; nothing was changed.
    Rejected {
        /// The object's version; 0 when there was no object.
        version: ObjectVersion,
    },
    /// The object is no number that could be added to; nothing was changed.
    NotANumber,
    /// The sum does not fit; nothing was changed.
    Overflow,
}

/// Says that an operation was executed. Appended in one group with what the operation changed, so
/// that both are there after a crash or neither is; it follows its key in recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The client; never 0.
    pub client: ClientId,
    /// The operation; never 0.
    pub sequence: SequenceNumber,
    /// The client has the results of all its operations below this number. At most `sequence`.
    pub acknowledged_below: SequenceNumber,
    /// The client repeats the operation for at most so many seconds.
    pub retry_s: u32,
    /// The table of the object.
    pub table: TableId,
    /// The hash of its key.
    pub hash: KeyHash,
    /// What came of it.
    pub outcome: Outcome,
}

impl Completion {
    /// Longest body: two fixed numbers, the outcome's number, and six varints, one of 32 bits. A
    /// sum takes less than the varint that stands in its place.
    pub(crate) const BODY_MAX: usize = 2 * 8 + 1 + 5 * 10 + 5;

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

    /// Writes the body at the start of `to`, which has [`Self::BODY_MAX`] bytes, and gives its
    /// length.
    pub(crate) fn encode_body(&self, to: &mut [u8]) -> usize {
        let mut at = put_u64(to, self.client.0);
        at += put_varint(&mut to[at..], self.sequence.0);
        let unacknowledged = self.sequence.0.saturating_sub(self.acknowledged_below.0);
        at += put_varint(&mut to[at..], unacknowledged);
        at += put_varint(&mut to[at..], u64::from(self.retry_s));
        at += put_varint(&mut to[at..], self.table.0);
        at += put_u64(&mut to[at..], self.hash.0);
        let (code, version) = match self.outcome {
            Outcome::Written { version, .. } => (1, Some(version)),
            Outcome::Deleted { version } => (2, Some(version)),
            Outcome::Added { version, .. } => (3, Some(version)),
            Outcome::AddedFloat { version, .. } => (4, Some(version)),
            Outcome::Rejected { version } => (5, Some(version)),
            Outcome::NotANumber => (6, None),
            Outcome::Overflow => (7, None),
        };
        to[at] = code;
        at += 1;
        if let Some(version) = version {
            at += put_varint(&mut to[at..], version.0);
        }
        at + match self.outcome {
            Outcome::Written { replaced, .. } => put_varint(&mut to[at..], replaced.0),
            Outcome::Added { sum, .. } => put_u64(&mut to[at..], sum.cast_unsigned()),
            Outcome::AddedFloat { sum_bits, .. } => put_u64(&mut to[at..], sum_bits),
            Outcome::Deleted { .. }
            | Outcome::Rejected { .. }
            | Outcome::NotANumber
            | Outcome::Overflow => 0,
        }
    }

    pub(crate) fn decode_body(body: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(body);
        let client = ClientId(fields.u64()?);
        let sequence = SequenceNumber(fields.varint()?);
        let acknowledged_below = SequenceNumber(sequence.0.checked_sub(fields.varint()?)?);
        let retry_s = u32::try_from(fields.varint()?).ok()?;
        let table = TableId(fields.varint()?);
        let hash = KeyHash(fields.u64()?);
        let code = fields.u8()?;
        let mut version = || fields.varint().map(ObjectVersion);
        let outcome = match code {
            1 => Outcome::Written {
                version: version()?,
                replaced: version()?,
            },
            2 => Outcome::Deleted {
                version: version()?,
            },
            3 => Outcome::Added {
                version: version()?,
                sum: fields.u64()?.cast_signed(),
            },
            4 => Outcome::AddedFloat {
                version: version()?,
                sum_bits: fields.u64()?,
            },
            5 => Outcome::Rejected {
                version: version()?,
            },
            6 => Outcome::NotANumber,
            7 => Outcome::Overflow,
            _ => return None,
        };
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

fn put_u64(to: &mut [u8], value: u64) -> usize {
    to[..8].copy_from_slice(&value.to_le_bytes());
    8
}
