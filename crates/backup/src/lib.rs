//! The backup: replicas of other servers' segments, in frames on this server's disk.
//!
//! A [`Backup`] answers the operations of role `Backup`. Masters write, close and free replicas.
//! After a crash the coordinator asks which replicas it has, and recovery masters fetch the
//! entries, sorted by partition. `docs/backup.md` tells the whole story.
//!
//! Invariants
//! - BACKUP-1: the certified length of a frame covers only bytes that were written before or with
//!   it, and only grows. Bytes that count are never written over. A write that fails half way, for
//!   a full disk or a crash, changes nothing that counts.
//! - BACKUP-2: a replica that replaces a lost one is invisible until its first write without
//!   `rewriting`. It grows in a file of its own, which is renamed when complete and thrown away at
//!   a restart.
//! - BACKUP-3: writes are idempotent, and late copies of them do no harm. Bytes are compared by
//!   position, an older replication epoch is refused, and a freed replica stays freed.
//! - BACKUP-4: once recovery of a master has started here, none of its writes and frees changes
//!   anything.
//! - BACKUP-5: only masters that the server list shows as up may write.
//! - BACKUP-6: nothing is freed before a server list is known; then only replicas of masters that
//!   left the cluster, and those whose master says so.
//! - BACKUP-7: recovery data was checked entry by entry; a damaged replica gives none at all.
//! - BACKUP-8: whoever waits for recovery data gets it from the read it waits for, even when the
//!   buffer is too small to keep it. So a small buffer makes recovery slow, never stuck.
//! - BACKUP-9: open frames, frame bytes, recovery data and remembered frees are bounded.
//! - BACKUP-10: a `synced` write is answered when its data is on the device, and the certificate or
//!   header that counts it. A header that closes or completes a replica is written after its data
//!   is there.
//! - BACKUP-11: an open head is doubtful if what certifies its end was not synced and comes from an
//!   earlier start of the machine. It is offered with the number of its replicas that recovery must
//!   find.
//! - BACKUP-12: the last write to an open, synced frame is left out only when a part of it never
//!   reached the device. A write that is complete and damaged makes the frame damaged, and so does
//!   one that lacks a part and is not the last.
//! - BACKUP-13: a backup whose disk hangs, or whose data directory is gone, says so, and its server
//!   ends. So the others take it for dead, and no master waits for it or counts on it.
//! - BACKUP-14: a data directory that is gone, or whose device fails or hangs, is left, if another
//!   one works. Its frames are lost until the process is started again: they are offered to no
//!   recovery, and written no more. The masters are told of each. Of a replica that a start finds
//!   in two data directories, the one that recovery can do more with is kept.
//! - BACKUP-15: each data directory is tried every few seconds. So one that hangs, fails or is gone
//!   is found out while nobody uses it. One trial of it is under way at most. It lasts until the
//!   disk has answered, or the directory is left.
//! - BACKUP-16: the recovery of a master may have a replica of it copied here from another backup.
//!   Such a copy is synced, and takes the place of nothing that is here.
//! - BACKUP-17: a frame whose file was removed or exchanged is lost as soon as that is noticed. It
//!   is written no more, and offered to no recovery. Its master is told. Files are looked at in
//!   turn, a bounded number of them each second. Those that are open for writing have their own
//!   turn.
//!
//! Threads: a [`Backup`] is a cheap handle, used from every core. One lock guards the catalogue
//! and is never held over an await; each frame has a turn (an async lock), held over its I/O. A
//! holder of a turn may take the catalogue's lock, never the other way round.
//!
//! Not here: listening, the limit of requests, and whether a request is meant for this life of the
//! server (its header's target). Those belong to the server.

mod admit;
mod backup;
mod buckets;
mod catalogue;
mod copies;
mod directory;
mod error;
mod frame;
mod garbage;
mod lost;
mod misplaced;
mod options;
mod plan;
mod recovery;
mod scan;
mod speed;
mod stats;
mod syncer;
mod write;

pub use backup::Backup;
pub use error::BackupError;
pub use options::{BackupOptions, DataDirectory, FirstDirectory};
pub use stats::{BackupStats, DirectoryStats};
