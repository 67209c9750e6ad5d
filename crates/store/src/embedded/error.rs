//! What can go wrong in an embedded store.

use crate::engine::EngineError;
use core::time::Duration;
use pluvio_env::host::TopologyError;
use pluvio_index::IndexError;
use pluvio_memory::RegionError;
use pluvio_units::{KEY_MAX, ObjectVersion};

/// Why a store cannot be built. Nothing was kept. Only with other options is a retry of use, but
/// for [`Self::Unreservable`], [`Self::CleanerThread`] and [`Self::SinkThread`], which the system
/// may grant later.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The memory is too small for its heads and reserves.
    #[error("option memory: {memory} bytes; a store with {heads} heads needs at least {minimum}")]
    MemoryTooSmall {
        /// What was asked for.
        memory: u64,
        /// The least that works with so many heads.
        minimum: u64,
        /// Number of heads.
        heads: u16,
    },
    /// More heads than the memory has room for.
    #[error("option heads: {heads}; {memory} bytes of memory allow at most {limit}")]
    TooManyHeads {
        /// What was asked for.
        heads: u16,
        /// The most that works with this memory.
        limit: u16,
        /// The memory.
        memory: u64,
    },
    /// An option is outside of its range.
    #[error("option {option}: {value}; {limit}")]
    OutOfRange {
        /// The option's name: that of the builder's method, or of the field of its experiments.
        option: &'static str,
        /// What was asked for.
        value: String,
        /// What is allowed.
        limit: String,
    },
    /// The system does not give the memory.
    #[error("option memory: {0}")]
    Unreservable(#[source] RegionError),
    /// Huge pages were required, and the system has none. Without them the store works, slower.
    #[error("option huge_pages: required, but {0}")]
    NoHugePages(String),
    /// The memory nodes are not known.
    #[error("option topology: {0}")]
    Topology(#[from] TopologyError),
    /// The system does not give a thread.
    #[error("option cleaner_threads: the system refused a thread: {0}")]
    CleanerThread(#[source] std::io::Error),
    /// The system does not give the thread that feeds the sink.
    #[error("option sink: the system refused a thread: {0}")]
    SinkThread(#[source] std::io::Error),
}

/// Why a call did nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// No room. Retryable after the delay; it helps when there is something to clean, otherwise
    /// something has to be deleted.
    #[error("memory is full; try again in {retry_after:?}, or delete something")]
    Full {
        /// When to try again.
        retry_after: Duration,
    },
    /// The table with this name was dropped. Not retryable.
    #[error("the table {0:?} was dropped")]
    TableDropped(String),
    /// A table with this name is there. Not retryable.
    #[error("there is a table {0:?} already")]
    TableExists(String),
    /// There is no table with this name. Not retryable.
    #[error("there is no table {0:?}")]
    UnknownTable(String),
    /// The system does not give address space for another table's index. Retryable after tables
    /// were dropped.
    #[error("no memory for a table: {0}")]
    NoTable(String),
    /// So many bytes, and the most that the option `limits` takes. Not retryable.
    #[error("a key of {0} bytes is over the {1} that the option limits takes")]
    KeyTooLong(usize, usize),
    /// So many bytes, and the most that the option `limits` takes. Not retryable.
    #[error("a value of {0} bytes is over the {1} that the option limits takes")]
    ValueTooLong(usize, usize),
    /// The store overwrites values in place ([`UpdatePolicy::InPlace`](crate::UpdatePolicy)), and
    /// the room of a value has none for a deadline. Not retryable.
    #[error("a store that overwrites values in place keeps no deadlines")]
    NoDeadlines,
    /// The object is not as the condition says.
    #[error("the condition does not hold: the object has {}", found_version(*.found))]
    Condition {
        /// The object's version; `None` when there is no object.
        found: Option<ObjectVersion>,
    },
}

fn found_version(found: Option<ObjectVersion>) -> String {
    found.map_or("no value".into(), |version| {
        format!("version {}", version.0)
    })
}

/// Why an increment did nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IncrementError {
    /// See [`StoreError`].
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The value is no decimal number of 64 bits. Not retryable.
    #[error("the value is no whole number between -2^63 and 2^63-1")]
    NotANumber,
    /// The sum is outside of 64 bits. Not retryable.
    #[error("adding {by} gives more than 64 bits hold")]
    Overflow {
        /// What was to be added.
        by: i64,
    },
}

impl StoreError {
    /// Of a call on the table with this name.
    pub(crate) fn of(error: EngineError, table: &str) -> Self {
        match error {
            EngineError::Full { retry_after } | EngineError::OutcomesFull { retry_after } => {
                Self::Full { retry_after }
            }
            EngineError::NotHere => Self::TableDropped(table.to_owned()),
            EngineError::OtherLog | EngineError::Stalled => {
                unreachable!("an embedded store takes any log, and none of its logs has replicas")
            }
            EngineError::Locked | EngineError::NoLocks => {
                unreachable!("an embedded store has no transactions of several owners")
            }
            EngineError::Quota(_) => unreachable!("an embedded store has no quotas"),
            EngineError::NoDeadlines => Self::NoDeadlines,
            EngineError::KeyTooLong(len) => Self::KeyTooLong(len, KEY_MAX),
            EngineError::ValueTooLong(len, max) => Self::ValueTooLong(len, max),
        }
    }
}

impl From<IndexError> for StoreError {
    fn from(error: IndexError) -> Self {
        Self::NoTable(error.to_string())
    }
}
