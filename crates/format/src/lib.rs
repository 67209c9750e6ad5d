//! The bytes of log entries, segments, digests and frames.
//!
//! The same bytes lie in memory, travel to backups and stand in a frame; `docs/log-format.md`
//! draws them. This crate owns their layout and nothing else: no memory management, no I/O.
//!
//! Invariants:
//! - FORMAT-1: decoding is total. Every function that reads bytes returns a typed error for any
//!   input and never panics, because the input may come from a rotten disk.
//! - FORMAT-2: encoded bytes decode to the same value, and no other bytes decode to it. Varints are
//!   canonical, bodies have no slack bytes, unused bits are zero. Sums of format versions 1 and 2
//!   are the exception: they are read, and written otherwise.
//! - FORMAT-3: an entry's checksum covers its kind, its length and its body. Padding has no
//!   checksum and must be all zero. So no single flipped bit of a segment passes.
//! - FORMAT-4: a group is seen whole or not at all.
//!
//! Everything here is a pure function or a plain value and may be used from any thread.

mod certificate;
mod completion;
mod digest;
mod entry;
mod frame;
mod graves;
mod kind;
mod plain;
mod prepared;
mod segment;
mod stats;
mod varint;

pub use certificate::{
    AtPlace, CERTIFICATE_BYTES, Certificate, CertificatePlace, Certified, read_frame,
    segment_in_frame,
};
pub use completion::Completion;
pub use digest::LogDigest;
pub use entry::{
    Check, EncodeError, Encoded, Entry, EntryHead, GROUP_MAX, Object, ObjectFront, ObjectLens,
    ObjectState, ParseError, ParseErrorKind, Parsed, SegmentHeader, SegmentKind, Tombstone,
};
pub use frame::{
    FRAME_DATA_OFFSET, FRAME_SLOT_BYTES, FRAME_SLOTS, FrameError, FrameHeader, LastWrite,
    newest_frame_header,
};
pub use graves::{GraveList, Graves};
pub use kind::EntryKind;
pub use plain::{PlainFront, PlainLayout};
pub use prepared::{OldObject, PREPARED_MAX, Prepared, PreparedChange, Restored};
pub use segment::{Group, GroupEntries, SegmentIter, check_piece};
pub use stats::{TableStat, TableStats};

/// The version of everything this crate lays out. Written to every segment and frame; a reader
/// refuses a version it does not know. Version 2 added [`Graves`], version 3 outcomes with output,
/// version 4 [`Certificate`]s, version 5 deadlines of objects. Raised with each new kind of entry,
/// flag, outcome or field (`docs/log-format.md`).
pub const FORMAT_VERSION: u32 = 6;

/// The oldest version that is read: what it lays out means the same in all since.
pub const FORMAT_VERSION_MIN: u32 = 1;
