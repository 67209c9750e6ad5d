//! Brings the streams of a log space to a sink, in the order that lets them be read back.
//!
//! A stream is what one log appends: its heads one after the other, and beside them the side
//! segments that the cleaner writes survivors to. [`SinkDriver::step`] hands a bounded piece of
//! each to a [`ReplicaSink`], and tells the log space of it: positions become durable, cleaned
//! segments are freed. It keeps the order of `docs/log.md`:
//!
//! - the next head begins before the last one is closed;
//! - a digest counts when the head before it is closed;
//! - the log learns of nothing earlier than the sink.
//!
//! - SINK-1: at any moment, the sink holds a state that the log space was in, no older than its
//!   durable positions. The state is each segment up to its last certified end, with the digest of
//!   the oldest open head of each log.
//! - SINK-2: bytes of a segment come in order and without gaps; none comes after the segment was
//!   closed. After a write that failed they come again from the last certified end. A failed
//!   sync may have lost all of them, and the next one says nothing of it.
//! - SINK-3: a segment is freed in the sink only when a digest that does not list it is durable
//!   (LOG-4).
//!
//! Threads: one thread steps a driver; appends and the cleaner go on meanwhile.
//!
//! What it does not do: no I/O and no threads of its own, and it reads nothing back. A server's
//! replication (crate `replication`) has a driver of its own, which finds backups and replaces lost
//! ones.

mod driver;

pub use driver::SinkDriver;

use core::time::Duration;
use pluvio_units::{LogId, SegmentId};

/// A piece of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SinkWrite<'a> {
    /// The log, one stream each.
    pub log: LogId,
    /// The segment; ids ascend over all logs and are never used twice.
    pub segment: SegmentId,
    /// Where in the segment the bytes belong: 0 at first, then at the end of what was written
    /// before. After an error it is the last certified end.
    pub offset: u32,
    /// The bytes, at least one.
    pub bytes: &'a [u8],
    /// Whether the segment is whole up to the end of these bytes. Bytes behind the last certified
    /// end are to be forgotten when the segment is read back.
    pub certified: bool,
}

/// What a sink did with a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum SinkAnswer {
    /// It has it. If the piece is certified, everything of the segment up to its end is as safe as
    /// the sink promises.
    Taken,
    /// It cannot take it yet; it is to be asked again after this time, with these bytes or more.
    After(Duration),
}

/// A sink could not do what it was asked for. It is asked again later.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the sink failed: {0}")]
pub struct SinkError(pub String);

/// Where the streams of a log space go: files, another machine, or a model of either. One call at a
/// time; a call that blocks holds up all streams and nothing else.
pub trait ReplicaSink: Send {
    /// Takes a piece of a segment. The first one of a segment opens it.
    ///
    /// # Errors
    /// The sink does not have it, and may have lost what is not certified. All of that comes again.
    fn write(&mut self, write: &SinkWrite<'_>) -> Result<SinkAnswer, SinkError>;

    /// Nothing more will come for this segment. The oldest open head depends on it, so it is to be
    /// as safe as the bytes.
    ///
    /// # Errors
    /// As of [`Self::write`].
    fn close(&mut self, log: LogId, segment: SegmentId) -> Result<(), SinkError>;

    /// The segment is not needed any more.
    ///
    /// # Errors
    /// As of [`Self::write`].
    fn free(&mut self, log: LogId, segment: SegmentId) -> Result<(), SinkError>;
}
