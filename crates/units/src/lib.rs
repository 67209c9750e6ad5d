//! Ids, sizes, versions and positions as newtypes, the checksum and the key hash.
//!
//! Every raw integer that crosses a crate border has a type here, so that two of them cannot be
//! exchanged by accident. This crate knows no other crate of the workspace.
//!
//! Three more things lie here because no higher crate is known to all their users:
//! - [`mark`]: branches of nine crates are marked, from `log` up to `server`.
//! - [`FixedMap`] and [`FixedSet`]: maps with the same order in every run, for every crate that the
//!   simulator runs.
//! - [`Pace`]: the log, the embedded store and the event loops drive work in steps. The log knows
//!   no crate with threads or I/O (rule C).

mod deadline;
mod hash;
mod ids;
mod limits;
mod marks;
mod operation;
mod pace;
mod position;
mod size;
mod slots;
mod spread;
mod trace;
mod waits;
mod xxh3;

pub use deadline::{Deadline, NoDeadline, UnixMs};
pub use hash::{FixedMap, FixedSet, FixedState, HashRange, KeyHash, crc32c};
pub use ids::{
    ClientId, ClusterId, CoreId, LogId, MetadataVersion, MigrationId, ObjectVersion, RecoveryId,
    ReplicationEpoch, SegmentId, SequenceNumber, ServerId, ServerListVersion, TableId,
};
pub use limits::{
    BATCH_UNDER_WAY_MAX, CLASS_LOGS, CORE_LOGS_MAX, ENTRY_MAX, KEY_MAX, LOGS_PER_MASTER_MAX,
    PARTITION_BYTES_MAX, PARTITION_BYTES_MIN, PARTITION_CROWD_MAX, PARTITION_ENTRIES_MAX,
    SEGLET_BYTES, SEGLETS_PER_SEGMENT, SEGMENT_BYTES, SMALL_ENTRY_MAX, TABLE_NAME_MAX, VALUE_MAX,
    WHOLE_ENTRY_MAX,
};
pub use marks::{MarkCounts, Marks, mark};
pub use operation::{
    Acknowledged, DECISION, KeyPlace, LOCKED_LONG, OperationId, Share, VOTES_KEPT,
};
pub use pace::Pace;
pub use position::{EntryRef, LogPosition};
pub use size::{ParseSizeError, Size};
pub use slots::{HashKind, KeySlot, Rank, SLOTS, TableHash};
pub use spread::TimeSpread;
pub use trace::{ParseTraceError, TraceContext};
pub use waits::Waits;
