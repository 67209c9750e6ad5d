//! The log: append, head roll, durable positions, side logs and cleaner.
//!
//! A master has one [`LogSpace`] with one log per core over one memory. [`LogSpace::append`] puts a
//! group of entries behind a log's head and gives back an [`Appended`]; replication copies segments
//! out and reports how far they are safe; [`LogSpace::confirm`] then gives a [`Durable`]. A
//! [`Cleaner`] collects dead entries, step by step.
//!
//! It owns log memory, the segments and their states, and the invariants LOG-1 to LOG-15 and
//! CLEAN-1 to CLEAN-10. Each is stated in the file that keeps it.
//!
//! Threads: everything takes `&self` and may be called from any thread; nothing waits for another
//! thread but for short locks. What a caller found in the index or appended it must use under an
//! epoch guard ([`LogSpace::pin`]).
//!
//! What it does not do: no I/O, no async, no clock (seconds come in), no index, and it does not
//! know who replicates.

mod append;
mod cleaner;
mod dead;
mod dead_bits;
mod durable;
mod error;
mod faults;
#[allow(unsafe_code)] // reads what lies before a value
mod in_place;
mod log_state;
#[allow(unsafe_code)] // all access to the bytes of log memory goes through here
mod memory;
mod options;
mod presence;
mod roll;
#[allow(unsafe_code)] // copies bytes out of log memory
mod segment;
mod side_log;
mod sink;
mod space;
mod stats;
#[allow(unsafe_code)] // reads entries in log memory
mod view;
#[allow(unsafe_code)] // writes entries to log memory
mod writer;

pub use append::{AppendClass, EntryRefs, OpenHead};
pub use cleaner::{Cleaner, CleanerOptions, CleanerPace, Cleaning, Liveness, TableLiveness};
pub use dead::{Burial, DeadIn, Tombstones};
pub use durable::{Appended, Awaited, Durability, Durable, PendingMarks};
pub use error::{
    AppendError, CommitError, Corruption, CorruptionHook, Fatal, FullReason, OpenError,
};
pub use in_place::{MutableObject, VALUE_HEAD_BYTES};
pub use log_state::Hook;
pub use options::{LOG_MEMORY_MAX, LogOptions, MemoryPart};
pub use segment::Segment;
pub use side_log::{CommitRefused, SideLog};
pub use sink::{ReplicaSink, SinkAnswer, SinkDriver, SinkError, SinkPace, SinkWrite};
pub use space::{LogSpace, SegletGate, TableStatsSource};
pub use stats::{CleanerStats, LogStats, MemoryBinding};
pub use view::EntryView;

pub use pluvio_memory::{BindRefused, CopyMethod, EpochClock, EpochGuard, SegletClass};
