//! Operations on the objects of a table together: enumerate and count.

use crate::codec::{Fields, Request};
use crate::opcode::Opcode;
use crate::refusal::Refusal;
use bytes::Bytes;
use pluvio_units::{KeyHash, ObjectVersion, TableId};
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

/// The next objects of a table, from a place in the order of key hashes. An enumeration from hash 0
/// to the end sees each object that is there all along exactly once (D6). An object's hash never
/// changes, and each hash is passed exactly once.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Enumerate {
    /// The table.
    pub table: TableId,
    /// Start with this hash.
    pub from: KeyHash,
    /// Stop after about this many objects; all objects with one hash come together.
    pub items: u32,
    /// Whether values are wanted.
    pub values: bool,
}
impl Fields for Enumerate {}
request!(Enumerate => EnumerateReply);

/// One object of an enumeration.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct EnumeratedObject {
    /// Its key.
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    /// Its version.
    pub version: ObjectVersion,
    /// Its value, empty unless values were asked for.
    #[serde(skip)]
    pub value: Bytes,
}

/// Some objects, and where to go on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct EnumerateReply {
    /// The objects whose hashes lie from the request's `from` to before `next`.
    pub objects: Vec<EnumeratedObject>,
    lengths: Vec<u32>,
    /// The next hash to ask for, perhaps at another server; `None` at the end of the table.
    pub next: Option<KeyHash>,
}

impl EnumerateReply {
    /// A reply with these objects.
    #[must_use]
    pub fn new(objects: Vec<EnumeratedObject>, next: Option<KeyHash>) -> Self {
        let lengths = objects.iter().map(|o| length(&o.value)).collect();
        Self {
            objects,
            lengths,
            next,
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
}
impl Fields for CountObjectsReply {}

fn length(value: &Bytes) -> u32 {
    u32::try_from(value.len()).expect("values are at most VALUE_MAX long")
}

fn join<'a>(values: impl Iterator<Item = &'a Bytes> + Clone) -> Bytes {
    let mut all = Vec::with_capacity(values.clone().map(Bytes::len).sum());
    for value in values {
        all.extend_from_slice(value);
    }
    all.into()
}

fn cut(payload: &mut Bytes, length: u32) -> Result<Bytes, Refusal> {
    if (length as usize) > payload.len() {
        return Err(Refusal::malformed(
            "the payload is shorter than its lengths say",
        ));
    }
    Ok(payload.split_to(length as usize))
}

fn nothing_left(payload: &Bytes) -> Result<(), Refusal> {
    if payload.is_empty() {
        Ok(())
    } else {
        Err(Refusal::malformed(
            "the payload is longer than its lengths say",
        ))
    }
}
