//! Operations on the objects of a table together, enumerate and count, and what owners of parts of
//! a transaction are asked (`docs/transactions.md`).

use crate::codec::{Fields, Request};
use crate::opcode::Opcode;
use crate::refusal::Refusal;
use bytes::Bytes;
use pluvio_units::{
    ClientId, Deadline, HashRange, KeyHash, KeyPlace, LogId, LogPosition, ObjectVersion, Rank,
    SequenceNumber, Share, TableId,
};
use serde::{Deserialize, Serialize};

macro_rules! request {
    ($request:ident => $reply:ident) => {
        impl Request for $request {
            const OPCODE: Opcode = Opcode::$request;
            type Reply = $reply;
        }
    };
    ($request:ident => ()) => {
        impl Request for $request {
            const OPCODE: Opcode = Opcode::$request;
            type Reply = ();
        }
    };
}
pub(crate) use request;

/// A body whose payload is one field.
macro_rules! payload_is {
    ($type:ident . $field:ident) => {
        impl Fields for $type {
            fn payload(&self) -> Bytes {
                self.$field.clone()
            }
            fn attach(&mut self, payload: Bytes) -> Result<(), $crate::refusal::Refusal> {
                self.$field = payload;
                Ok(())
            }
        }
    };
}
pub(crate) use payload_is;

/// The next objects of a stretch of a table, in the order of their ranks. An object's hash and rank
/// never change, and an enumeration passes each pair of them exactly once. So it sees each object
/// that is there all along exactly once.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Enumerate {
    /// The table.
    pub table: TableId,
    /// The first hash of the stretch. The tablet that has it is looked at, to its end.
    pub from: KeyHash,
    /// The last hash of the stretch; the end of that tablet when it is larger.
    #[serde(default = "last_hash")]
    pub to: KeyHash,
    /// Start with this rank.
    #[serde(default)]
    pub rank: Rank,
    /// Stop after about this many objects. All objects of one group of ranks come together
    /// ([`HashKind::group_bits`](pluvio_units::HashKind::group_bits)).
    pub items: u32,
    /// Whether values are wanted.
    pub values: bool,
}
impl Fields for Enumerate {}

fn last_hash() -> KeyHash {
    HashRange::ALL.last
}
request!(Enumerate => EnumerateReply);

/// One object of an enumeration.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct EnumeratedObject {
    /// Its key.
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    /// Its version.
    pub version: ObjectVersion,
    /// When it expires, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Deadline>,
    /// Its value, empty unless values were asked for.
    #[serde(skip)]
    pub value: Bytes,
}

/// Some objects, and where to go on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct EnumerateReply {
    /// The objects of the stretch whose ranks lie from that of the request to before `next`.
    pub objects: Vec<EnumeratedObject>,
    lengths: Vec<u32>,
    /// The next hash to ask for, perhaps at another server; `None` at the end of the table. For
    /// clients that know seeded tables only; the others look at `seen`.
    pub next: Option<KeyHash>,
    /// What was looked at.
    pub seen: Seen,
}

/// What of a stretch was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Seen {
    /// The last hash. What lies behind it belongs to another tablet.
    pub last: KeyHash,
    /// The next rank of the hashes up to there; `None` when all were seen.
    pub next: Option<Rank>,
}

impl Seen {
    /// The hash to go on with, as one number: that of the next rank, or the first of the next
    /// tablet. `None` at the end of the table.
    #[must_use]
    pub fn next_hash(&self) -> Option<KeyHash> {
        match self.next {
            Some(rank) => Some(KeyHash(rank.0)),
            None => self.last.0.checked_add(1).map(KeyHash),
        }
    }
}

impl EnumerateReply {
    /// A reply with these objects.
    #[must_use]
    pub fn new(objects: Vec<EnumeratedObject>, seen: Seen) -> Self {
        let lengths = objects.iter().map(|o| length(&o.value)).collect();
        Self {
            objects,
            lengths,
            next: seen.next_hash(),
            seen,
        }
    }
}

impl Fields for EnumerateReply {
    fn payload(&self) -> Bytes {
        join(self.objects.iter().map(|o| &o.value))
    }
    fn attach(&mut self, mut payload: Bytes) -> Result<(), Refusal> {
        if self.objects.len() != self.lengths.len() {
            return Err(Refusal::malformed("as many lengths as objects are needed"));
        }
        for (object, length) in self.objects.iter_mut().zip(&self.lengths) {
            object.value = cut(&mut payload, *length)?;
        }
        nothing_left(&payload)
    }
}

/// Asks whether what an early answer rests on is durable
/// ([`Outcomes::rests_on`](crate::Outcomes::rests_on)). The answer comes when it is. Only the life
/// of the server that gave the early answer can say it. When that is gone, nobody knows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AwaitDurable {
    /// Positions in logs of the server asked.
    pub positions: Vec<(LogId, LogPosition)>,
}
impl Fields for AwaitDurable {}
request!(AwaitDurable => ());

/// Decides about a transaction of several owners. The server asked has its home key.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Decide {
    /// The client of the transaction, which has this one only.
    pub client: ClientId,
    /// The home key: with it the decision is kept.
    pub home: KeyPlace,
    /// The decision to record, where there is none yet. `None`: none is, as long as the home key is
    /// locked.
    pub wish: Option<bool>,
}
impl Fields for Decide {}
request!(Decide => Decided);

/// What is decided.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Decided {
    /// Whether the transaction is committed. `None`: that is open.
    pub committed: Option<bool>,
    /// All its keys; none once the home key is released.
    pub shares: Vec<Share>,
}
impl Fields for Decided {}

/// Asks how the owner of a share votes. Where it has not voted yet, its vote is "no" from now on.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Vote {
    /// The client of the transaction.
    pub client: ClientId,
    /// The number of the operation that prepares the share.
    pub sequence: SequenceNumber,
    /// The first key of the share.
    pub key: KeyPlace,
}
impl Fields for Vote {}
request!(Vote => Voted);

/// How an owner votes.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Voted {
    /// Whether it has prepared the share.
    pub yes: bool,
}
impl Fields for Voted {}

/// Makes of keys that a transaction has locked what was decided. Answered when that is durable.
/// Keys that it has not locked, or not any more, stay as they are.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Release {
    /// The client of the transaction.
    pub client: ClientId,
    /// Whether it is committed.
    pub committed: bool,
    /// Keys of the server asked.
    pub keys: Vec<KeyPlace>,
    /// Operations of the client about which nobody will ask any more.
    pub forget: Vec<SequenceNumber>,
}
impl Fields for Release {}
request!(Release => ());

/// Counts the objects of a table on the server asked.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CountObjects {
    /// The table.
    pub table: TableId,
}
impl Fields for CountObjects {}
request!(CountObjects => CountObjectsReply);

/// Objects of a table on one server.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CountObjectsReply {
    /// Their number.
    pub objects: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// How many of them have a deadline.
    #[serde(default)]
    pub bounded: u64,
}
impl Fields for CountObjectsReply {}

fn length(value: &Bytes) -> u32 {
    u32::try_from(value.len()).expect("values are at most VALUE_MAX long")
}

pub(crate) fn join<'a>(values: impl Iterator<Item = &'a Bytes> + Clone) -> Bytes {
    let mut all = Vec::with_capacity(values.clone().map(Bytes::len).sum());
    for value in values {
        all.extend_from_slice(value);
    }
    all.into()
}

pub(crate) fn cut(payload: &mut Bytes, length: u32) -> Result<Bytes, Refusal> {
    if (length as usize) > payload.len() {
        return Err(Refusal::malformed(
            "the payload is shorter than its lengths say",
        ));
    }
    Ok(payload.split_to(length as usize))
}

pub(crate) fn nothing_left(payload: &Bytes) -> Result<(), Refusal> {
    if payload.is_empty() {
        Ok(())
    } else {
        Err(Refusal::malformed(
            "the payload is longer than its lengths say",
        ))
    }
}
