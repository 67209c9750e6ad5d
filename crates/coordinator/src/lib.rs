//! The coordinator: the members of the cluster, the owners of tablets, and crash recovery.
//!
//! It is not on the way of reads and writes. Everything it knows is one state, which is stored in a
//! [`MetadataStore`] before anybody hears of a change. The work to do follows from that state
//! alone. `docs/coordinator.md`, `docs/membership.md` and `docs/recovery.md` tell the whole story.
//!
//! Invariants
//! - COORD-1: a state is published (to requests, servers, other tasks) only after the store has
//!   it, and changes are stored one after the other. See `ledger`.
//! - COORD-2: unfinished work is found by looking at the state, in operation as at start: a crash
//!   between any two stored changes loses no work. See `work`.
//! - COORD-3: every message to a server may be sent again.
//! - COORD-4: a server id that was declared crashed is never up again. A server is removed from
//!   the list only when it has no tablets, and nobody needs it for COORD-14 or COORD-15.
//! - COORD-5: the tablets of a table that is not being dropped cover every hash exactly once.
//! - LEAD-1 to LEAD-5: of several coordinators on one store one leads, and only that one changes
//!   anything. See `lead`.
//! - COORD-6: a recovered partition changes owner once, unless it comes back before it is durable.
//!   A question that is repeated, even to another incarnation of the coordinator, gets the same
//!   answer. So does a tablet that moves.
//! - COORD-7: a tablet is in at most one migration that has not ended for everybody. While it is
//!   copied, its owner is up and serves it, and the receiver is up. A change that ends one of these
//!   ends the migration, too.
//! - COORD-8: an open head is not taken for the end of its log when anything on any backup shows
//!   that it was durably closed. See `work::recover`.
//! - COORD-9: answers of backups about a log count as far as they can be true. An answer that
//!   contradicts itself or others makes the log incomplete, never another one.
//! - COORD-10: the replicas of a head may all be on machines that lost power since. Such a head
//!   ends the log only if as many of them are found as an acknowledgement needed.
//! - COORD-11: only a member hears that it does not own the tablets that it replayed or received. A
//!   server that is no member may own them, by an answer that was lost; then its log is recovered.
//! - COORD-12: each stored change has a number, one more than the one before it, whichever
//!   coordinator leads. An order about a table (take tablets, cut one, drop all) carries the number
//!   of the state it follows from. So a server knows which orders came late (MASTER-6). Recoveries,
//!   migrations, server lists and replication epochs have numbers of their own.
//! - COORD-13: what was read once from a crashed server's replicas is read for ever. All of its
//!   partitions end at one place, for a group of entries may lie in several. The ends of its logs
//!   are stored before the first partition is given away. Each later attempt replays exactly as
//!   much. They are where each replica that was found can still give it, and as many as an
//!   acknowledgement needed. Where fewer can, the end is copied to others before.
//! - COORD-14: a tablet may *stand* on a crashed server: its owner answers reads from memory and
//!   takes no changes. So that server's replicas alone have all of it. Until it is durable at its
//!   owner that server stays in the list, and the tablet is not cut or moved. If its owner crashes
//!   or gives up, it is the crashed server's again.
//! - COORD-15: one server answers. A crashed server may have answered reads of such a tablet. Then
//!   backups have fenced it, and its lease has ended, before the tablet is given away again.
//! - COORD-16: a server that is drained gets no new tablet, moved tablet or recovered tablet while
//!   another server can have it.
//! - COORD-17: a server leaves in order only when it owns no tablet and none moves from it or to
//!   it. Nobody is recovered at that moment, so no recovery loses its replicas. The same stored
//!   change takes it out of the list.
//! - COORD-18: tablets are joined only when their owner serves all of them and says so. Therefore
//!   nobody asks again by which recovery or migration it got them (COORD-6). Its log of all of them
//!   begins at one place (JOIN-1).
//!
//! COORD-19 is stated in `work::recover::give_up`, COORD-20 in `work::quotas::plan`, COORD-21 in
//! `work::recover`, COORD-22 in `state::classes`, COORD-23 and COORD-24 in `work::recover::anew`.
//!
//! Threads: everything runs on event loop 0; the types are `Send + Sync` because tasks are.
//!
//! Not here: reading replicas (backups), replaying (masters), placing replicas (masters).

mod candidate;
mod context;
mod lead;
mod ledger;
mod members;
mod options;
mod refusals;
mod service;
mod state;
mod status;
mod store;
mod suspicion;
mod tasks;
#[cfg(test)]
mod testing;
mod work;

pub use candidate::{Candidate, Standing};
pub use options::{BalanceOptions, CoordinatorOptions};
pub use service::{Coordinator, CoordinatorError};
pub use store::{
    Change, Condition, FileDoor, Limits, MemoryStore, MetadataStore, Outcome, RedbStore, Stop,
    StoreError, conformance,
};
