//! Tables, indexes and log joined: the storage engine of one master ([`Engine`]), and the embedded
//! library over it ([`Store`]) for any process that wants a log-structured store inside itself.
//!
//! What it owns: which tables there are, the versions of objects, the time by which deadlines are
//! judged (`expiry`), and the rule that an index slot
//! points to the newest entry of its key; the results of operations that clients may ask for again.
//! The log owns the bytes, the index the slots.
//!
//! Invariants
//! - STORE-1: the version of a key only grows, also over delete and re-create: a new object gets at
//!   least the safe version, and the safe version is raised above every version deleted. A write
//!   that brings a version gets that one where it is higher than the next one.
//! - STORE-2: an index slot is *pending* from the append of its entry until [`Engine::settle`];
//!   what a reader learns from a pending slot carries the position to wait for. That holds for
//!   absence too: the slot of a deleted key points to its tombstone until that is durable.
//! - STORE-3: every entry that replaces an object in a durable store says, in its graves or by
//!   tombstones in its group, in which segments on disk dead versions of its key lie, under the
//!   lock of the key's bucket; the cleaner relocates under the same lock. So each dead copy on disk
//!   has a newer version that lives, or a tombstone that lives as long as the copy's segment
//!   (LOG-14 in crate `log`).
//! - STORE-4: bytes found corrupt stop the process ([`Fatal`], or what a simulation has set in its
//!   place): the replicas are right, and another server recovers from them [RAMCloud §6].
//! - STORE-5: what a change rests on is never durable later than the change: while an entry is
//!   pending, the next entry of its key is appended behind it, to the same log. Otherwise a crash
//!   could keep an increment that counts another one and lose that one's completion record.
//! - STORE-6: a version that a transaction told of an object which it has removed again is below
//!   the safe version. The group of the transaction tells that, so a crash does not take it back
//!   while the outcome stays.
//!
//! Threads: every method takes `&self` and may be called from any thread. Nothing waits for I/O;
//! whoever needs durability waits for the position in [`Appended`](pluvio_log::Appended).
//!
//! Not here: which tablets this server has, replication, clients.

mod completions;
mod embedded;
mod engine;
mod expiry;
#[cfg(feature = "fault-injection")]
mod flip;
mod indexes;
mod leave;
mod liveness;
mod options;
mod quota;
mod readers;
mod replay;
mod scan;
mod table;

pub use completions::{
    Admission, CLIENT_VALUES_MAX, CLIENTS_MAX, Completions, Execution, LeavingResults,
    OLDEST_RESULTS_MAX, OPERATIONS_MAX, RESULTS_MAX, VALUES_MAX, kept_for,
};
pub use embedded::{
    Borrowed, BuildError, Cleaning, EpochKind, Experiments, HeadChoice, HugePages, IncrementError,
    Iter, Kept, KeptObject, KeptSegment, KeyHashing, PutOptions, ReadBackError, Store,
    StoreBuilder, StoreError, StoreGuard, StoreStats, Table, Topology, UpdatePolicy, View,
    read_back,
};
pub use engine::{
    Applied, Changed, Decided, Engine, EngineError, EngineStats, Expired, Item, Locked,
    NotTransacted, Prepare, Released, Site, StepAt, Transacted, Unsettled,
};
pub use expiry::{DeadlineTime, Expiry, Place};
pub use leave::Copied;
pub use options::{EngineOptions, IndexMemory};
pub use pluvio_env::Pace;
pub use pluvio_env::host::{Host, Nodes, ThisMachine, TopologyError, Worker};
pub use pluvio_log::{
    BindRefused, CopyMethod, Fatal, InterleaveRefused, Interleaving, MemoryBinding, ReplicaSink,
    SinkAnswer, SinkDriver, SinkError, SinkWrite, Tombstones,
};
pub use pluvio_memory::GatePage;
pub use pluvio_mutation::{Lifetime, RejectRules, TouchIf};
pub use pluvio_units::{Deadline, LogId, ObjectVersion as Version, SegmentId, Size, TableId};
pub use quota::{OverQuota, Share, ShareUse, Taken};
pub use readers::{ReadableMap, ReadableTable};
pub use replay::{Replay, ReplayError, ReplayLoad};
pub use scan::{Scan, ScanItem, ScanOptions};
pub use table::EngineTable;
