//! Reads and mutations of objects and their reply: fixed layouts without names. An absent field
//! costs nothing. Numbers are little endian.
//!
//! A request, one or many items, as `meta`:
//!
//! ```text
//! | Header 48 | count u16 | flags u8 | item … | item … |
//!
//! flags (Mutate only): 1 ordered; 2 early: answer when it is executed, before it is durable
//!
//! item
//! | kind u8 | flags u16 | key length u32 | table u64 | optional … | fixed … | key |
//!
//! flag  name               optional field      in
//!    1  exists                                 Get, Mutate
//!    2  does_not_exist                         Get, Mutate
//!    4  version_equal      u64                 Get, Mutate
//!    8  version_not_equal  u64                 Get, Mutate
//!   16  version_less       u64                 Get, Mutate
//!   32  value_is           length u32 (bulk)   Mutate
//!   64  returns_old                            Mutate: put, delete and touch
//!  128  sequence           u64, never 0        Mutate
//!  256  lifetime           tag u8 | ms u64     Mutate
//!
//! kind of Mutate       fixed fields
//!   1  put             length u32 (bulk)
//!   2  delete
//!   3  add integer     i64
//!   4  add decimal     length u16 | text
//!   5  append          length u32 (bulk)
//!   6  set range       offset u64 | length u32 (bulk)
//!   7  bits            count u16 | step …
//!   8  touch           condition u8
//!   9  put version     version u64, 1 to 2^63 | length u32 (bulk)
//!
//! kind of Get          fixed fields
//!   1  value
//!   2  nothing
//!   3  length
//!   4  range           span
//!   5  bits            count u16 | step …
//!   6  bit count       span
//!   7  bit position    span
//!   8  deadline
//!   9  time left
//!
//! lifetime   0 keep, 1 endless, both with 0 ms; 2 until, ms since 1970; 3 for, ms from now. Without
//!            the flag a put is endless, and other changes keep it
//! condition  of a touch: 0 none; 1 it has no deadline; 2 it has one; 3 the new one is later;
//!            4 the new one is earlier; 5 both 2 and 4
//!
//! step  | action u8 | width u8 | offset u64 | operand i64 |
//!       action: bits 0-1 get, set, add; 2 signed; 3-4 wrap, saturate, fail; the operand of get is 0
//! span  | flags u8 | start i64 | end i64 if there is one |
//!       flags: 1 has an end; 2 places are bits; 4 the bit looked for (bit position only)
//! ```
//!
//! A transaction (Transact) has one flag, 1: its keys are to be locked for one of several owners.
//! Its client is that of the header, and the whole stands before the items. In front of each item
//! stands the kind of the step:
//!
//! ```text
//! whole     home: table u64 | key hash u64 | shares u16 | share …
//! share     sequence u64 | keys u16 | for each: table u64 | key hash u64
//! step u8   1 an item of Get; 2 an item of Mutate without a sequence number; + 128 it must hold
//! ```
//!
//! One that only reads has no identity. Its header may name a client nevertheless, with no sequence
//! number: one that others have overtaken again and again. Changes of the keys are held back for it
//! for `retry_ms`; they are not any more if that is 0. A server may do without.
//!
//! The frame's payload holds the bulk bytes in the order of their lengths, and nothing else. An
//! item of a batch without a sequence number has no identity. A single item without one is the
//! operation of the header. `Mutation::hash` and `Get::hash` are not sent.
//!
//! A Redis SET of a 16-byte key and a 100-byte value takes 86 bytes of `meta` and 100 bytes of
//! payload. The header has 48 bytes of the `meta`, the key 16. The reply takes 21 bytes.
//!
//! The fields of a reply, which stand behind its status byte:
//!
//! ```text
//! | count u16 | item … | early answers: count u8 | position … |
//!
//! position: log u16 | segment u64 | offset u32
//!
//! tag             then
//!   0  refused    length u32 | Refusal in msgpack
//!   1  written    version u64 | replaced u64 | output
//!   2  unchanged  version u64 | output
//!   3  deleted    version u64 | output
//!   4  rejected   version u64 | output
//!   5  unfit      u8: 1 not a number, 2 overflow, 3 too long
//!   6  together   committed u8: 0, 1 | count u16 | outcome (1 to 5) of each step
//!
//! output code u8  then
//!   0  nothing
//!   1  integer    i64
//!   2  bytes      length u32 (bulk)
//!   3  integers   count u16 | for each: 0 u8, or 1 u8 and i64
//! ```
//!
//! Invariants
//! - WIRE-2 (decoding is total) holds here by construction: a message is checked once, whole, when
//!   it arrives. Its items are then read again without a copy, and cannot fail.
//! - WIRE-4: kinds, flags and codes that this version does not know are refused in words, and never
//!   skipped.

mod check;
mod cursor;
mod items;
mod outcomes;
mod transaction;

pub use check::{check_get, check_mutation, check_transaction};
pub use outcomes::{Outcomes, Results};
pub use transaction::{Steps, Whole, decode_transact, encode_prepare, encode_transact};

use crate::codec::{Answer, RpcError, answered, reply_with};
use crate::header::Header;
use crate::opcode::Opcode;
use crate::refusal::{FatalKind, Refusal};
use crate::{BitStep, Get, MULTI_ITEMS_MAX, Mutation};
use bytes::{Bytes, BytesMut};
use core::time::Duration;
use cursor::{BulkReader, BulkWriter, Reader};
use pluvio_env::{Address, Frame, Handled, Network};
use pluvio_units::{OperationId, SequenceNumber};

/// Most bytes of the text of a decimal addend, as in Redis.
pub const DECIMAL_BYTES_MAX: usize = 5 * 1024 - 1;

const ORDERED: u8 = 1;
const EARLY: u8 = 2;
/// Count and flags, between the header and the items.
const BATCH_HEAD: usize = 3;
const CHECKED: &str = "every item was checked when the message arrived";

/// Items of a request that arrived.
struct Items<'f> {
    count: usize,
    flags: u8,
    bytes: &'f [u8],
}

impl<'f> Items<'f> {
    fn start(frame: &'f Frame, known_flags: u8) -> Result<(Header, Self), Refusal> {
        Self::start_of(frame, known_flags, MULTI_ITEMS_MAX)
    }

    fn start_of(frame: &'f Frame, known_flags: u8, most: usize) -> Result<(Header, Self), Refusal> {
        let (header, fields) = Header::decode(&frame.meta)?;
        let mut reader = Reader::new(fields);
        let count = usize::from(reader.u16()?);
        let flags = reader.u8()?;
        if count > most {
            return Err(Refusal::malformed(format!(
                "a request has {count} items, at most {most} are allowed"
            )));
        }
        if flags & !known_flags != 0 {
            let asked = flags & !known_flags;
            return Err(unknown(
                "flag of a request",
                asked.into(),
                &known_flags.to_string(),
            ));
        }
        let bytes = reader.rest();
        Ok((
            header,
            Self {
                count,
                flags,
                bytes,
            },
        ))
    }
}

/// Something of a later protocol was asked for.
fn unknown(of: &str, asked: u64, known: &str) -> Refusal {
    Refusal::fatal(
        FatalKind::Unsupported,
        format!(
            "{of}: {asked} was asked for, this server knows {known}: the caller is newer than \
             this server"
        ),
    )
}

/// Reads that arrived, checked.
pub struct Gets<'f> {
    items: Items<'f>,
    steps: Vec<BitStep>,
}

impl Gets<'_> {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The reads in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Get<'_>> {
        let mut reader = Reader::new(self.items.bytes);
        let mut steps: &[BitStep] = &self.steps;
        (0..self.items.count).map(move |_| items::get(&mut reader, &mut steps).expect(CHECKED))
    }
}

/// Mutations that arrived, checked.
pub struct Mutations<'f> {
    items: Items<'f>,
    payload: &'f Bytes,
    /// What an item without a sequence number is.
    operation: OperationId,
    steps: Vec<BitStep>,
}

impl Mutations<'_> {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the first mutation that cannot be done ends the batch: the later ones are not begun.
    #[must_use]
    pub fn ordered(&self) -> bool {
        self.items.flags & ORDERED != 0
    }

    /// Whether the answer is to come before what it tells is durable ([`Outcomes::rests_on`]).
    #[must_use]
    pub fn early(&self) -> bool {
        self.items.flags & EARLY != 0
    }

    /// The mutations in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Mutation<'_>> {
        let mut reader = Reader::new(self.items.bytes);
        let mut bulk = BulkReader::new(self.payload);
        let mut steps: &[BitStep] = &self.steps;
        (0..self.items.count).map(move |_| {
            items::mutation(&mut reader, &mut bulk, &mut steps, self.operation).expect(CHECKED)
        })
    }
}

fn start_request(header: &Header, count: usize, flags: u8, items_len: usize) -> Vec<u8> {
    let mut meta = Vec::with_capacity(Header::LEN + BATCH_HEAD + items_len);
    header.encode(&mut meta);
    let count = u16::try_from(count).expect("callers split batches at MULTI_ITEMS_MAX");
    meta.extend_from_slice(&count.to_le_bytes());
    meta.push(flags);
    meta
}

/// Encodes reads.
///
/// # Panics
/// With more than 65 535 reads; more than [`MULTI_ITEMS_MAX`] are refused by the server.
#[must_use]
pub fn encode_get(header: &Header, gets: &[Get<'_>]) -> Frame {
    let items_len: usize = gets.iter().map(items::get_len).sum();
    let mut meta = start_request(header, gets.len(), 0, items_len);
    for get in gets {
        items::put_get(&mut meta, get);
    }
    debug_assert_eq!(meta.len(), Header::LEN + BATCH_HEAD + items_len);
    Frame {
        opcode: Opcode::Get as u16,
        meta: meta.into(),
        payload: Bytes::new(),
    }
}

/// Decodes reads, whose opcode was looked at already.
///
/// # Errors
/// A final refusal that can be sent back when the bytes are no such request.
pub fn decode_get(frame: &Frame) -> Result<(Header, Gets<'_>), Refusal> {
    let (header, items) = Items::start(frame, 0)?;
    let mut steps = Vec::new();
    let mut reader = Reader::new(items.bytes);
    for _ in 0..items.count {
        items::get(&mut reader, &mut steps)?;
    }
    reader.end()?;
    BulkReader::new(&frame.payload).end()?;
    Ok((header, Gets { items, steps }))
}

/// Encodes mutations. Of their identities only the sequence numbers are sent: the rest is the
/// header's. A single mutation without a sequence number gets the header's, too.
///
/// # Panics
/// With more than 65 535 mutations; more than [`MULTI_ITEMS_MAX`] are refused by the server.
#[must_use]
pub fn encode_mutate(header: &Header, mutations: &[Mutation<'_>], ordered: bool) -> Frame {
    encode_with(header, mutations, if ordered { ORDERED } else { 0 })
}

/// [`encode_mutate`] for an ordered batch that is to be answered before it is durable.
///
/// # Panics
/// As there.
#[must_use]
pub fn encode_mutate_early(header: &Header, mutations: &[Mutation<'_>]) -> Frame {
    encode_with(header, mutations, ORDERED | EARLY)
}

fn encode_with(header: &Header, mutations: &[Mutation<'_>], flags: u8) -> Frame {
    let implied = implied(header, mutations.len());
    let items_len: usize = mutations
        .iter()
        .map(|m| items::mutation_len(m, implied))
        .sum();
    let mut meta = start_request(header, mutations.len(), flags, items_len);
    let mut bulk = BulkWriter::default();
    for mutation in mutations {
        items::put_mutation(&mut meta, &mut bulk, mutation, implied);
    }
    debug_assert_eq!(meta.len(), Header::LEN + BATCH_HEAD + items_len);
    Frame {
        opcode: Opcode::Mutate as u16,
        meta: meta.into(),
        payload: bulk.finish(),
    }
}

/// Decodes mutations, whose opcode was looked at already.
///
/// # Errors
/// A final refusal that can be sent back when the bytes are no such request.
pub fn decode_mutate(frame: &Frame) -> Result<(Header, Mutations<'_>), Refusal> {
    let (header, items) = Items::start(frame, ORDERED | EARLY)?;
    let operation = OperationId {
        sequence: implied(&header, items.count),
        ..header.operation
    };
    let mut steps = Vec::new();
    let mut reader = Reader::new(items.bytes);
    let mut bulk = BulkReader::new(&frame.payload);
    for _ in 0..items.count {
        items::mutation(&mut reader, &mut bulk, &mut steps, operation)?;
    }
    reader.end()?;
    bulk.end()?;
    let mutations = Mutations {
        items,
        payload: &frame.payload,
        operation,
        steps,
    };
    Ok((header, mutations))
}

/// The sequence number of an item that brings none.
fn implied(header: &Header, items: usize) -> SequenceNumber {
    if items == 1 {
        header.operation.sequence
    } else {
        SequenceNumber(0)
    }
}

/// Encodes the answer to reads or mutations.
#[must_use]
pub fn reply_outcomes(opcode: Opcode, result: &Result<Outcomes, Refusal>) -> Frame {
    // Behind the status byte.
    let room = result.as_ref().map_or(64, |done| 1 + done.meta_len());
    reply_with(opcode, result, room)
}

/// Turns the answer to reads or mutations into what a network service gives back.
pub fn handled_outcomes(opcode: Opcode, answer: Answer<Results>) -> Handled {
    let reply =
        move |result: Result<Results, Refusal>| reply_outcomes(opcode, &result.map(Outcomes::from));
    match answer {
        Answer::Now(result) => Handled::Now(reply(result)),
        Answer::Later(future) => Handled::Later(Box::pin(async move { reply(future.await) })),
    }
}

/// Sends what [`encode_get`] or [`encode_mutate`] made and waits for the reply, at most for
/// `limit`; the header gets that limit as its deadline.
///
/// # Errors
/// See [`RpcError`]; whether the request was executed is said there.
pub async fn call_frame(
    network: &dyn Network,
    to: &Address,
    mut frame: Frame,
    limit: Duration,
) -> Result<Outcomes, RpcError> {
    // No copy unless the caller keeps the frame for another attempt.
    let mut meta = frame
        .meta
        .try_into_mut()
        .unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    if let Some(deadline) = meta.get_mut(Header::DEADLINE) {
        let limit = Header::default().waiting(limit).deadline_us;
        deadline.copy_from_slice(&limit.to_le_bytes());
    }
    frame.meta = meta.freeze();
    let reply = network.call(to, frame, limit).await?;
    answered(to, reply)
}
