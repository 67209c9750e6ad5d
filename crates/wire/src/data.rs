//! Operations on objects.

use crate::MULTI_ITEMS_MAX;
use crate::codec::{Body, Request};
use crate::opcode::Opcode;
use crate::refusal::Refusal;
use bytes::Bytes;
use core::fmt;
use core::marker::PhantomData;
use pluvio_units::{KeyHash, ObjectVersion, SequenceNumber, TableId};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Conditions under which an operation is refused (003 fig. 2). The default refuses nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RejectRules {
    /// Refuse when the object exists.
    pub exists: bool,
    /// Refuse when it does not exist.
    pub does_not_exist: bool,
    /// Refuse when it exists with exactly this version.
    pub version_equal: Option<ObjectVersion>,
    /// Refuse when it exists with another version than this.
    pub version_not_equal: Option<ObjectVersion>,
    /// Refuse when it exists with a version below this.
    pub version_less: Option<ObjectVersion>,
}

impl RejectRules {
    /// Go ahead only when the object has exactly this version; 0 means "does not exist".
    #[must_use]
    pub fn unless_version(version: ObjectVersion) -> Self {
        if version == ObjectVersion(0) {
            Self {
                exists: true,
                ..Self::default()
            }
        } else {
            Self {
                does_not_exist: true,
                version_not_equal: Some(version),
                ..Self::default()
            }
        }
    }

    /// Whether an object in this state is refused. `current` is `None` when there is no object.
    #[must_use]
    pub fn reject(&self, current: Option<ObjectVersion>) -> bool {
        match current {
            None => self.does_not_exist,
            Some(version) => {
                self.exists
                    || self.version_equal == Some(version)
                    || self.version_not_equal.is_some_and(|v| v != version)
                    || self.version_less.is_some_and(|v| version < v)
            }
        }
    }
}

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
        impl Body for $type {
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

/// Reads one object.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Read {
    /// Its table.
    pub table: TableId,
    /// Its key.
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    /// When to refuse.
    #[serde(default)]
    pub rules: RejectRules,
}
impl Body for Read {}
request!(Read => ReadReply);

/// What was read.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ReadReply {
    /// Its version; 0 when there is no such object.
    pub version: ObjectVersion,
    /// Its value (the payload).
    #[serde(skip)]
    pub value: Bytes,
}
payload_is!(ReadReply.value);

/// Writes one object.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Write {
    /// Its table.
    pub table: TableId,
    /// Its key.
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    /// When to refuse.
    #[serde(default)]
    pub rules: RejectRules,
    /// Its new value (the payload).
    #[serde(skip)]
    pub value: Bytes,
}
payload_is!(Write.value);
request!(Write => WriteReply);

/// What a write did.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct WriteReply {
    /// The object's new version.
    pub version: ObjectVersion,
    /// The version it replaced; 0 when the object is new.
    pub replaced: ObjectVersion,
}
impl Body for WriteReply {}

/// Deletes one object; deleting what does not exist is no error.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Delete {
    /// Its table.
    pub table: TableId,
    /// Its key.
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    /// When to refuse.
    #[serde(default)]
    pub rules: RejectRules,
}
impl Body for Delete {}
request!(Delete => DeleteReply);

/// What a delete did.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct DeleteReply {
    /// The version that was deleted; 0 when there was no object.
    pub deleted: ObjectVersion,
}
impl Body for DeleteReply {}

/// A number, as [`Increment`] adds it and objects hold it in decimal text.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum Number {
    /// A 64-bit integer. Adding checks for overflow.
    Integer(i64),
    /// A floating-point number. Infinite and NaN results are refused.
    Float(f64),
}

/// Adds to the number that an object holds as decimal text; a missing object counts as 0.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Increment {
    /// Its table.
    pub table: TableId,
    /// Its key.
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    /// When to refuse.
    #[serde(default)]
    pub rules: RejectRules,
    /// What to add.
    pub by: Number,
}
impl Body for Increment {}
request!(Increment => IncrementReply);

/// The number after the increment.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct IncrementReply {
    /// The object's new version.
    pub version: ObjectVersion,
    /// The new number.
    pub value: Number,
}
impl Body for IncrementReply {}

/// Takes in a batch's items, and ends with the first one too many: the bytes of a request could
/// hold hundreds of thousands.
fn few_items<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Few<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Few<T> {
        type Value = Vec<T>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MULTI_ITEMS_MAX} items")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Vec<T>, A::Error> {
            let announced = from.size_hint().unwrap_or_default();
            let mut items = Vec::with_capacity(announced.min(MULTI_ITEMS_MAX));
            while let Some(item) = from.next_element()? {
                if items.len() == MULTI_ITEMS_MAX {
                    return Err(A::Error::invalid_length(announced, &self));
                }
                items.push(item);
            }
            Ok(items)
        }
    }
    from.deserialize_seq(Few(PhantomData))
}

/// The key of one object in a batch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MultiKey {
    /// The number of the operation that this item is: an item keeps it when it comes again in
    /// another batch, to whichever server. 0 in batches that change nothing or have no identity.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sequence: SequenceNumber,
    /// Its table.
    pub table: TableId,
    /// Its key.
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    /// When to refuse.
    #[serde(default)]
    pub rules: RejectRules,
}

/// Reads several objects. Each item succeeds or fails by itself.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MultiRead {
    /// The objects, at most `MULTI_ITEMS_MAX`.
    #[serde(deserialize_with = "few_items")]
    pub items: Vec<MultiKey>,
}
impl Body for MultiRead {}
request!(MultiRead => MultiReadReply);

/// The objects read, in the order of the request.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct MultiReadReply {
    /// Version and value, or why not. The server answers `Retry` for items that would make the
    /// reply larger than `MULTI_BYTES_MAX`, but never for the first.
    pub items: Vec<Result<ReadReply, Refusal>>,
    /// Lengths of the values within the payload.
    lengths: Vec<u32>,
}

impl MultiReadReply {
    /// A reply with these items.
    #[must_use]
    pub fn new(items: Vec<Result<ReadReply, Refusal>>) -> Self {
        let lengths = items
            .iter()
            .map(|i| i.as_ref().map_or(0, |r| length(&r.value)))
            .collect();
        Self { items, lengths }
    }
}

impl Body for MultiReadReply {
    fn payload(&self) -> Bytes {
        join(
            self.items
                .iter()
                .filter_map(|i| i.as_ref().ok())
                .map(|r| &r.value),
        )
    }
    fn attach(&mut self, mut payload: Bytes) -> Result<(), Refusal> {
        if self.items.len() != self.lengths.len() {
            return Err(Refusal::malformed("as many lengths as items are needed"));
        }
        for (item, length) in self.items.iter_mut().zip(&self.lengths) {
            let value = cut(&mut payload, *length)?;
            if let Ok(read) = item {
                read.value = value;
            }
        }
        nothing_left(&payload)
    }
}

/// Writes several objects. Each item succeeds or fails by itself.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MultiWrite {
    /// The objects, at most `MULTI_ITEMS_MAX` with together at most `MULTI_BYTES_MAX` of values.
    #[serde(deserialize_with = "few_items")]
    pub items: Vec<MultiKey>,
    /// The new values, as many as `items`.
    #[serde(skip)]
    pub values: Vec<Bytes>,
    #[serde(deserialize_with = "few_items")]
    lengths: Vec<u32>,
}
request!(MultiWrite => MultiWriteReply);

impl MultiWrite {
    /// A batch of keys and their new values.
    #[must_use]
    pub fn new(objects: Vec<(MultiKey, Bytes)>) -> Self {
        let (items, values): (Vec<_>, Vec<_>) = objects.into_iter().unzip();
        let lengths = values.iter().map(length).collect();
        Self {
            items,
            values,
            lengths,
        }
    }
}

impl Body for MultiWrite {
    fn payload(&self) -> Bytes {
        join(self.values.iter())
    }
    fn attach(&mut self, mut payload: Bytes) -> Result<(), Refusal> {
        if self.items.len() != self.lengths.len() {
            return Err(Refusal::malformed("as many lengths as items are needed"));
        }
        self.values = self
            .lengths
            .iter()
            .map(|n| cut(&mut payload, *n))
            .collect::<Result<_, _>>()?;
        nothing_left(&payload)
    }
}

/// What the writes did, in the order of the request.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct MultiWriteReply {
    /// One result an item.
    pub items: Vec<Result<WriteReply, Refusal>>,
}
impl Body for MultiWriteReply {}

/// Deletes several objects. Each item succeeds or fails by itself.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MultiDelete {
    /// The objects, at most `MULTI_ITEMS_MAX`.
    #[serde(deserialize_with = "few_items")]
    pub items: Vec<MultiKey>,
}
impl Body for MultiDelete {}
request!(MultiDelete => MultiDeleteReply);

/// What the deletes did, in the order of the request.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct MultiDeleteReply {
    /// One result an item.
    pub items: Vec<Result<DeleteReply, Refusal>>,
}
impl Body for MultiDeleteReply {}

/// The next objects of a table, from a place in the order of key hashes. Whoever enumerates from
/// hash 0 to the end sees each object that is there all along exactly once (D6): an object's hash
/// never changes, and each hash is passed exactly once.
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
impl Body for Enumerate {}
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

impl Body for EnumerateReply {
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
impl Body for CountObjects {}
request!(CountObjects => CountObjectsReply);

/// Objects of a table on one server.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CountObjectsReply {
    /// Their number.
    pub objects: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
}
impl Body for CountObjectsReply {}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde asks for a reference.
fn is_zero(sequence: &SequenceNumber) -> bool {
    *sequence == SequenceNumber(0)
}

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
