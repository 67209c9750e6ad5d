//! The log: append, head roll, durable positions, side logs and cleaner.
//!
//! A master has one [`LogSpace`] with one log per core over one memory. [`LogSpace::append`] puts a
//! group of entries behind a log's head and gives back an [`Appended`]. Replication copies segments
//! out and reports how far they are safe. [`LogSpace::confirm`] then gives a [`Durable`]. A
//! [`Cleaner`] collects dead entries, step by step.
//!
//! Each folder is a room: `append` (heads, side logs), `segments` (what they are made of), `memory`
//! (bytes), `cleaner`, `sink`, and `space`, the facade over them.
//!
//! It owns log memory, the segments and their states, and the invariants LOG-1 to LOG-15 and
//! CLEAN-1 to CLEAN-10. Each is stated in the file that keeps it.
//!
//! Threads: everything takes `&self` and may be called from any thread; nothing waits for another
//! thread but for short locks. A caller must use entries that it found in the index or appended
//! under an epoch guard ([`LogSpace::pin`]).
//!
//! What it does not do: no I/O, no async, no clock (seconds come in), no index, and it does not
//! know the replicator.

mod append;
mod cleaner;
mod clock;
mod durable;
mod error;
mod geometry;
mod memory;
mod options;
mod segments;
mod sink;
mod space;
mod stats;

pub use append::graves::{Burial, DeadIn, Tombstones};
pub use append::{
    AppendClass, CommitRefused, EntryRefs, Hook, OpenHead, SideLog, TableStatsSource,
};
#[cfg(feature = "made-up")]
pub use cleaner::made_up;
pub use cleaner::{Cleaner, CleanerOptions, Cleaning, Liveness, TableLiveness};
pub use durable::{Appended, Awaited, Durability, Durable, PendingMarks};
pub use error::{
    AppendError, CommitError, Corruption, CorruptionHook, Fatal, FullReason, OpenError,
};
pub use geometry::Geometry;
pub use memory::{
    CutObject, EntryView, LogReader, MutableObject, Overwritable, ReadEntry, ReadableLog,
    ScatteredObject, VALUE_HEAD_BYTES,
};
pub use options::{LOG_MEMORY_MAX, LogOptions, MemoryPart};
pub use segments::{SegletGate, Segment};
pub use sink::{ReplicaSink, SinkAnswer, SinkDriver, SinkError, SinkWrite};
pub use space::{LogSpace, Populating};
pub use stats::{CleanerStats, LogStats, MemoryBinding};

pub use pluvio_memory::{
    BindRefused, CopyMethod, EpochClock, EpochGuard, GraceClock, InterleaveRefused, Interleaving,
    NodeSet, SegletClass,
};
