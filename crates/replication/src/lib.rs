//! The master's side of replication: where replicas go, what is sent to them, and when a write is
//! durable [RAMCloud §4.1, §7.1, §8].
//!
//! [`Replication`] follows the logs of one master, with one task per log on that log's core, and
//! moves their durable positions. `docs/replication.md` tells the whole story.
//!
//! Invariants
//! - REP-1: the durable position of a log covers only bytes that every replica which recovery
//!   might use has certified, and at least the needed number of such replicas.
//! - REP-2: a head is opened on its replicas only when the head before the last one is durably
//!   closed; heads are opened in their order.
//! - REP-3: a head is closed on a replica only when its successor is durably open.
//! - REP-4: nothing behind a head's opening group is sent before the head before it is durably
//!   closed. With REP-3: there is always an open head with a digest, and of two the older one
//!   lacks nothing that was acknowledged.
//! - REP-5: when an open head loses a replica that recovery might find, its replication epoch
//!   grows, every remaining replica gets the new one, then the coordinator records it, and only
//!   then does the head's durable position move again.
//! - REP-6: the coordinator records an epoch of a head only once the head before it is durably
//!   closed, because the record makes open replicas of all earlier heads stale.
//! - REP-7: a replica that is added later is invisible until it has everything that is durable.
//! - REP-8: one life of a backup holds a replica of a segment at most once: a place that was given
//!   up is not used again for this segment, so late messages do no harm.
//! - REP-9: a place that was given up is freed only when enough others have the segment.
//! - REP-10: one write at a time is under way to each replica, of at most [`WRITE_BYTES_MAX`]; all
//!   that is appended meanwhile goes into the next one.
//! - REP-11: a wait for a position ends when the position is durable, also when that happens while
//!   the wait begins.
//! - REP-12: one replica is written from one kind of bytes. The log may exchange a closed segment's
//!   bytes for fewer that are as good, so it holds them from the segment's birth until all wanted
//!   replicas are closed, or no backup is there for those that lack, and again while one is
//!   replaced. One that was begun with bytes that are gone is given up.
//! - REP-13: a replica that is written anew counts only when every entry that it was sent has been
//!   compared with its checksum. A bit that turned over in memory stops the server, and reaches no
//!   replica beside those that are right.
//!
//! Threads: what to do is decided by code that touches nothing (the machine); it stands behind a
//! lock that its log's task takes for short, and others to look. The task does the rest.
//!
//! Not here: appending, closing and freeing segments is the log's; finding out who is dead is the
//! coordinator's: a backup that does not answer is waited for until the server list drops it.

mod frees;
mod machine;
#[cfg(test)]
mod model_tests;
mod options;
mod placement;
mod replica;
mod replication;
mod segment;
mod status;
mod task;
mod waiters;

pub use options::ReplicationOptions;
pub use replication::Replication;
pub use segment::WRITE_BYTES_MAX;
pub use status::{Places, ReplicationStatus};
pub use waiters::Synced;
