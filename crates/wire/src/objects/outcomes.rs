//! The reply to reads and mutations. `objects.rs` draws the layout.

use super::cursor::{BulkWriter, Reader, bulk_end, bulk_too_short};
use crate::codec::{Body, STATUS_OK, pack, unpack};
use crate::limits::check_value;
use crate::refusal::Refusal;
use crate::{BIT_STEPS_MAX, MULTI_ITEMS_MAX, Outcome, Output, TRANSACTION_STEPS_MAX, Unfit};
use bytes::Bytes;
use pluvio_env::Frame;
use pluvio_units::{LogId, LogPosition, ObjectVersion, SegmentId};
use smallvec::SmallVec;

/// What each item of a request came to. One needs no memory of its own.
pub type Results = SmallVec<[Result<Outcome, Refusal>; 1]>;

/// The reply to reads and mutations.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outcomes {
    /// One result an item, in the order of the request. An ordered batch that was not done whole
    /// has fewer: the results of the items done, and the refusal of the first one not done.
    pub items: Results,
    /// Of an early answer: what has to be durable before any of this is told ([`AwaitDurable`]).
    ///
    /// [`AwaitDurable`]: crate::AwaitDurable
    pub rests_on: Vec<(LogId, LogPosition)>,
    /// All bytes of the items, one behind the other, where they lie so: then they are sent from
    /// there. Empty otherwise, and in what was received.
    joined: Bytes,
}

impl From<Results> for Outcomes {
    fn from(items: Results) -> Self {
        Self {
            items,
            rests_on: Vec::new(),
            joined: Bytes::new(),
        }
    }
}

const REFUSED: u8 = 0;
const WRITTEN: u8 = 1;
const UNCHANGED: u8 = 2;
const DELETED: u8 = 3;
const REJECTED: u8 = 4;
const UNFIT: u8 = 5;
const TOGETHER: u8 = 6;

const NOTHING: u8 = 0;
const INTEGER: u8 = 1;
const BYTES: u8 = 2;
const INTEGERS: u8 = 3;

/// Bytes of a position that an early answer rests on.
const POSITION_BYTES: usize = 14;
/// Fewest bytes of an item: a tag and the code of an unfit value.
const ITEM_BYTES_MIN: usize = 2;

impl Outcomes {
    /// Says that the bytes of all items are these, one behind the other, so that a reply sends
    /// them without another copy.
    ///
    /// # Panics
    /// The items have more or fewer bytes.
    #[must_use]
    pub fn with_joined(mut self, joined: Bytes) -> Self {
        let bytes = |item: &Result<Outcome, Refusal>| item.as_ref().map_or(0, bulk_bytes);
        let all: usize = self.items.iter().map(bytes).sum();
        assert_eq!(all, joined.len(), "the bytes of the items");
        self.joined = joined;
        self
    }

    /// The outcomes in a reply, for one who watches the network; `None` in one that refuses the
    /// request as a whole.
    #[must_use]
    pub fn of_reply(reply: &Frame) -> Option<Self> {
        let fields = reply.meta.strip_prefix(&[STATUS_OK])?;
        Self::decode(fields, reply.payload.clone()).ok()
    }

    /// Bytes of `meta`; a guess where something was refused.
    pub(super) fn meta_len(&self) -> usize {
        let rests_on = 1 + self.rests_on.len() * POSITION_BYTES;
        2 + self.items.iter().map(item_len).sum::<usize>() + rests_on
    }
}

/// Bytes in the payload of a reply. [`Outcome::bulk_len`] counts memory: integers and steps, too.
fn bulk_bytes(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Together { steps, .. } => steps.iter().map(bulk_bytes).sum(),
        Outcome::Refused(_) => 0,
        done => match done.output() {
            Output::Bytes(bytes) => bytes.len(),
            Output::Nothing | Output::Integer(_) | Output::Integers(_) => 0,
        },
    }
}

fn item_len(item: &Result<Outcome, Refusal>) -> usize {
    let output = |output: &Output| {
        1 + match output {
            Output::Nothing => 0,
            Output::Integer(_) => 8,
            Output::Bytes(_) => 4,
            Output::Integers(numbers) => 2 + numbers.len() + 8 * numbers.iter().flatten().count(),
        }
    };
    let alone = |outcome: &Outcome| match outcome {
        Outcome::Refused(_) | Outcome::Together { .. } => 4,
        Outcome::Written { output: gives, .. } => 17 + output(gives),
        done => 9 + output(done.output()),
    };
    match item {
        Err(_) => 64,
        Ok(Outcome::Together { steps, .. }) => 4 + steps.iter().map(alone).sum::<usize>(),
        Ok(outcome) => alone(outcome),
    }
}

impl Body for Outcomes {
    fn encode(&self, meta: &mut Vec<u8>) -> Bytes {
        let count = u16::try_from(self.items.len()).expect("requests have fewer items");
        meta.extend_from_slice(&count.to_le_bytes());
        let mut bulk = BulkWriter::with_joined(&self.joined);
        for item in &self.items {
            match item {
                Ok(outcome) => put_outcome(meta, &mut bulk, outcome),
                Err(refusal) => put_refusal(meta, refusal),
            }
        }
        if !self.rests_on.is_empty() {
            put_positions(meta, &self.rests_on);
        }
        bulk.finish()
    }

    fn decode(fields: &[u8], mut payload: Bytes) -> Result<Self, Refusal> {
        let mut from = Reader::new(fields);
        let count = usize::from(from.u16()?);
        if count > MULTI_ITEMS_MAX || count * ITEM_BYTES_MIN > from.rest().len() {
            return Err(Refusal::malformed(format!(
                "a reply cannot have {count} items"
            )));
        }
        let mut items = Results::with_capacity(count);
        for _ in 0..count {
            items.push(item(&mut from, &mut payload)?);
        }
        let rests_on = match from.rest() {
            [] => Vec::new(),
            _ => positions(&mut from)?,
        };
        from.end()?;
        bulk_end(payload.len())?;
        Ok(Self {
            items,
            rests_on,
            joined: Bytes::new(),
        })
    }
}

fn put_positions(meta: &mut Vec<u8>, positions: &[(LogId, LogPosition)]) {
    let count = u8::try_from(positions.len()).expect("a master has fewer logs");
    meta.push(count);
    for (log, position) in positions {
        meta.extend_from_slice(&log.0.to_le_bytes());
        meta.extend_from_slice(&position.segment.0.to_le_bytes());
        meta.extend_from_slice(&position.offset.to_le_bytes());
    }
}

fn positions(from: &mut Reader<'_>) -> Result<Vec<(LogId, LogPosition)>, Refusal> {
    let count = usize::from(from.u8()?);
    if count * POSITION_BYTES != from.rest().len() {
        return Err(Refusal::malformed(
            "a reply with other positions than it says",
        ));
    }
    let mut position = || {
        let log = LogId(from.u16()?);
        let segment = SegmentId(from.u64()?);
        let offset = from.u32()?;
        Ok((log, LogPosition { segment, offset }))
    };
    (0..count).map(|_| position()).collect()
}

fn put_refusal(meta: &mut Vec<u8>, refusal: &Refusal) {
    meta.push(REFUSED);
    let at = meta.len();
    meta.extend_from_slice(&[0; 4]);
    pack(refusal, meta);
    let length = u32::try_from(meta.len() - at - 4).expect("words for people are short");
    meta[at..at + 4].copy_from_slice(&length.to_le_bytes());
}

fn put_outcome<'a>(meta: &mut Vec<u8>, bulk: &mut BulkWriter<'a>, outcome: &'a Outcome) {
    let (tag, version) = match outcome {
        Outcome::Written { version, .. } => (WRITTEN, version),
        Outcome::Unchanged { version, .. } => (UNCHANGED, version),
        Outcome::Deleted { version, .. } => (DELETED, version),
        Outcome::Rejected { version, .. } => (REJECTED, version),
        Outcome::Refused(unfit) => {
            let code = match unfit {
                Unfit::NotANumber => 1,
                Unfit::Overflow => 2,
                Unfit::TooLong => 3,
            };
            meta.extend_from_slice(&[UNFIT, code]);
            return;
        }
        Outcome::Together { committed, steps } => {
            meta.extend_from_slice(&[TOGETHER, u8::from(*committed)]);
            let count = u16::try_from(steps.len()).expect("at most TRANSACTION_STEPS_MAX");
            meta.extend_from_slice(&count.to_le_bytes());
            for step in steps.iter() {
                put_outcome(meta, bulk, step);
            }
            return;
        }
    };
    meta.push(tag);
    meta.extend_from_slice(&version.0.to_le_bytes());
    if let Outcome::Written { replaced, .. } = outcome {
        meta.extend_from_slice(&replaced.0.to_le_bytes());
    }
    put_output(meta, bulk, outcome.output());
}

fn put_output<'a>(meta: &mut Vec<u8>, bulk: &mut BulkWriter<'a>, output: &'a Output) {
    match output {
        Output::Nothing => meta.push(NOTHING),
        Output::Integer(number) => {
            meta.push(INTEGER);
            meta.extend_from_slice(&number.to_le_bytes());
        }
        Output::Bytes(bytes) => {
            meta.push(BYTES);
            meta.extend_from_slice(&bulk.push(bytes.into()));
        }
        Output::Integers(numbers) => {
            meta.push(INTEGERS);
            let count = u16::try_from(numbers.len()).expect("at most BIT_STEPS_MAX");
            meta.extend_from_slice(&count.to_le_bytes());
            for number in numbers.iter() {
                meta.push(u8::from(number.is_some()));
                if let Some(number) = number {
                    meta.extend_from_slice(&number.to_le_bytes());
                }
            }
        }
    }
}

fn item(from: &mut Reader<'_>, payload: &mut Bytes) -> Result<Result<Outcome, Refusal>, Refusal> {
    let tag = from.u8()?;
    match tag {
        REFUSED => {
            let length = from.u32()? as usize;
            Ok(Err(unpack(from.take(length)?)?))
        }
        TOGETHER => together(from, payload).map(Ok),
        tag => outcome(tag, from, payload).map(Ok),
    }
}

/// The outcome of a transaction; its steps are no transactions.
fn together(from: &mut Reader<'_>, payload: &mut Bytes) -> Result<Outcome, Refusal> {
    let committed = match from.u8()? {
        0 => false,
        1 => true,
        other => return Err(unknown("end of a transaction", other)),
    };
    let count = usize::from(from.u16()?);
    if count > TRANSACTION_STEPS_MAX || count * ITEM_BYTES_MIN > from.rest().len() {
        return Err(Refusal::malformed(format!(
            "a transaction cannot have {count} steps"
        )));
    }
    let mut steps = Vec::with_capacity(count);
    for _ in 0..count {
        let tag = from.u8()?;
        steps.push(outcome(tag, from, payload)?);
    }
    Ok(Outcome::Together {
        committed,
        steps: steps.into(),
    })
}

fn outcome(tag: u8, from: &mut Reader<'_>, payload: &mut Bytes) -> Result<Outcome, Refusal> {
    if tag == UNFIT {
        return Ok(Outcome::Refused(unfit(from.u8()?)?));
    }
    let version = ObjectVersion(from.u64()?);
    Ok(match tag {
        WRITTEN => Outcome::Written {
            version,
            replaced: ObjectVersion(from.u64()?),
            output: output(from, payload)?,
        },
        UNCHANGED => Outcome::Unchanged {
            version,
            output: output(from, payload)?,
        },
        DELETED => Outcome::Deleted {
            version,
            output: output(from, payload)?,
        },
        REJECTED => Outcome::Rejected {
            version,
            output: output(from, payload)?,
        },
        other => return Err(unknown("outcome", other)),
    })
}

fn unknown(of: &str, code: u8) -> Refusal {
    Refusal::malformed(format!("{of} {code} of a reply is not known here"))
}

fn unfit(code: u8) -> Result<Unfit, Refusal> {
    match code {
        1 => Ok(Unfit::NotANumber),
        2 => Ok(Unfit::Overflow),
        3 => Ok(Unfit::TooLong),
        other => Err(unknown("unfit", other)),
    }
}

fn output(from: &mut Reader<'_>, payload: &mut Bytes) -> Result<Output, Refusal> {
    Ok(match from.u8()? {
        NOTHING => Output::Nothing,
        INTEGER => Output::Integer(from.i64()?),
        BYTES => {
            let length = from.u32()? as usize;
            if length > payload.len() {
                return Err(bulk_too_short());
            }
            let bytes = payload.split_to(length);
            check_value(&bytes)?;
            Output::Bytes(bytes)
        }
        INTEGERS => {
            let count = usize::from(from.u16()?);
            if count > BIT_STEPS_MAX || count > from.rest().len() {
                return Err(Refusal::malformed(format!(
                    "a reply cannot have {count} numbers of one item"
                )));
            }
            let mut numbers = Vec::with_capacity(count);
            for _ in 0..count {
                numbers.push(match from.u8()? {
                    0 => None,
                    1 => Some(from.i64()?),
                    other => return Err(unknown("number", other)),
                });
            }
            Output::Integers(numbers.into())
        }
        other => return Err(unknown("output", other)),
    })
}
