//! What a client's calls on objects give. None of these goes over the wire: they are made from an
//! [`Outcome`](crate::Outcome).

use bytes::Bytes;
use pluvio_units::ObjectVersion;

/// What was read.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ReadReply {
    /// Its version; 0 when there is no such object.
    pub version: ObjectVersion,
    /// Its value.
    pub value: Bytes,
}

/// What a write did.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct WriteReply {
    /// The object's new version.
    pub version: ObjectVersion,
    /// The version it replaced; 0 when the object is new.
    pub replaced: ObjectVersion,
}

/// What a delete did.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct DeleteReply {
    /// The version that was deleted; 0 when there was no object.
    pub deleted: ObjectVersion,
}

/// A number that a client adds to an object, or that an object holds as decimal text.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Number {
    /// A 64-bit integer.
    Integer(i64),
    /// A floating-point number.
    Float(f64),
}

/// The number after the increment.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct IncrementReply {
    /// The object's new version.
    pub version: ObjectVersion,
    /// The new number.
    pub value: Number,
}
