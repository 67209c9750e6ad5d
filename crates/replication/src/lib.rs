//! The master's side of replication: where replicas go, what is sent to them, and when a write is
//! durable [RAMCloud §4.1, §7.1, §8].
//!
//! [`Replication`] follows the logs of one master, with one task per log on that log's core, and
//! moves their durable positions. `docs/replication.md` tells the whole story.
//!
//! Invariants
//! - REP-1: the durable position of a log covers only bytes that every replica has certified which
//!   recovery might use. Those replicas are at least the needed number.
//! - REP-2: a head is opened on its replicas only when the head before the last one is durably
//!   closed; heads are opened in their order.
//! - REP-3: a head is closed on a replica only when its successor is durably open.
//! - REP-4: nothing behind a head's opening group is sent before the head before it is durably
//!   closed. With REP-3: there is always an open head with a digest, and of two the older one
//!   lacks nothing that was acknowledged.
//! - REP-5: when an open head loses a replica that recovery might find, its replication epoch
//!   grows. Every remaining replica gets the new one, then the coordinator records it. Only then
//!   does the head's durable position move again.
//! - REP-6: the coordinator records an epoch of a head only once the head before it is durably
//!   closed. The record makes open replicas of all earlier heads stale.
//! - REP-7: a replica that is added later is invisible until it has everything that is durable.
//! - REP-8: one life of a backup holds a replica of a segment at most once. A place that was given
//!   up is not used again for this segment, so late messages do no harm.
//! - REP-9: a place that was given up is freed only when enough others have the segment.
//! - REP-10: the writes under way to a replica are at most four, of [`WRITE_BYTES_MAX`] together.
//!   Only those to open heads, where replicas are not synced, are several. All bytes
//!   that are appended meanwhile go into the next one.
//! - REP-11: a wait for a position ends when the position is durable, also when that happens while
//!   the wait begins.
//! - REP-12: one replica is written from one kind of bytes. The log may exchange a closed segment's
//!   bytes for fewer that are as good. So it holds them from the segment's birth until all wanted
//!   replicas are closed, or no backup is there for missing ones. It holds them again while a
//!   replica is replaced. A replica that was begun with bytes that are gone is given up.
//! - REP-13: a replica that is written anew counts only when every entry that it was sent has been
//!   compared with its checksum. A bit that turned over in memory stops the server, and reaches no
//!   replica beside those that are right.
//! - REP-14: a replica is left behind that for some seconds does not make the progress that as many
//!   others as needed have made. So a backup that hangs, or is much slower than others, holds up
//!   writers for that time only. It gets no new replicas for a while, unless nothing else is left.
//! - REP-15: the writes under way to one replica are one stream. Each begins where the one before
//!   it ends, and all have one epoch; opening, closing and a new epoch go alone. A backup refuses a
//!   write that lacks one before it. So an answer to one answers all before it. When one fails,
//!   nothing is sent until all have ended; the next begins where the last good answer left it.
//! - REP-16: a backup that goes on without some replicas says so, and each of them is lost then,
//!   whatever stage it is in. By REP-8 it is not there again in this life of the backup, so such a
//!   message may come twice, or late.
//! - REP-17: with strict racks a segment has at most one replica in a rack, and none in its
//!   master's. A replica that finds no such place is missing. So what was acknowledged outlives the
//!   loss of any rack.
//! - REP-18: a log of a durability class has the replicas that the class asks for, synced before
//!   they count if it asks for that. In all else it is like other logs.
//! - REP-19: a head that has too few replicas because backups gave one up (REP-8) is followed by
//!   a new one at once. So is one that would have too few after one more loss. The new one may
//!   have replicas on such a backup. So it is of use again when the former head is closed on as
//!   many others as needed. The order of heads stays as it is (REP-2 to REP-4), so it changes
//!   nothing for recovery.
//! - REP-20: a log of a volatile class has no replicas, and is durable as far as it is appended. So
//!   it waits for no backup, and nobody can recover it. No other log is without replicas.
//!
//! Threads: the machine decides the next steps and touches nothing. It stands behind a lock that
//! its log's task takes for short, and others take to look. The task does the rest.
//!
//! Not here: the log appends, closes and frees segments. The coordinator finds dead servers. A
//! backup that does not answer is waited for until the server list drops it, where too few others
//! have what it lacks.

mod answers;
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
mod traced;
mod waiters;

pub use options::ReplicationOptions;
pub use replication::Replication;
pub use segment::WRITE_BYTES_MAX;
pub use status::{Places, ReplicationStatus};
pub use waiters::Synced;
