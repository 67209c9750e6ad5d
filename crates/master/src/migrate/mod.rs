//! Moves a tablet to another server while it is served [RAMCloud fig. 2]. `docs/migration.md` tells
//! the whole way and why it survives crashes. Here are its two ends: the tablet *leaves* its owner
//! and *arrives* at the receiver.
//!
//! The receiver:
//!
//! 1. asks for the objects in the order of their hashes;
//! 2. asks for the changes made meanwhile;
//! 3. lets the owner freeze the tablet when little is left, and takes the rest;
//! 4. takes the results of operations, once the owner's log is durable;
//! 5. makes all of it durable in its own log;
//! 6. reports to the coordinator.
//!
//! It replays everything as in a recovery.
//!
//! - MOVE-1: the owner serves the tablet until it freezes it, and from then on only if the
//!   coordinator says that it stays. The receiver serves it only if the coordinator says that it is
//!   its own.
//! - MOVE-2: every change that takes effect after the owner began to copy is noted, and every note
//!   is asked for after the change took effect. So objects and notes together are the tablet as it
//!   was frozen.
//! - MOVE-3: a migration that has ended here does not begin again, however late a request comes
//!   ([`ended`]).
//! - MOVE-4: notes are bounded ([`NOTES_MAX`], [`NOTES_BYTES_MAX`]); at the bound changes are
//!   refused with "retry". So clients that change faster than the receiver copies are slowed down.
//! - MOVE-5: when the end of a migration is acknowledged, nothing is left to do for it. The index
//!   has nothing of a tablet that has moved. No forgetting is under way that could meet the tablet
//!   when it comes back.
//! - MOVE-6: the receiver gets the last part of a tablet when all that the owner had executed at
//!   the freeze is durable there. A transaction or an ordered batch may have changed other tablets,
//!   too. Those changes outlive the owner as the receiver's do.
//!
//! These, the store's and the coordinator's together give:
//! - MIG-1: at no time do two servers serve the same key (MOVE-1).
//! - MIG-2: when the new owner is stored, the whole tablet is durable on the receiver's log, and
//!   the log's digest lists it (MASTER-3).
//! - MIG-3: objects, notes, results and safe version together are the tablet as it was frozen
//!   (MOVE-2, LEAVE-1).
//! - MIG-4: completion records go with their keys, so a retry is answered at the receiver (COMP-6).
//! - MIG-5: the receiver's safe version is at least that of the owner at the freeze before it
//!   serves.
//! - MIG-6: entries of an earlier stay of the tablet never come back (JOIN-1).
//! - MIG-7: a request of a migration that has ended neither freezes, nor unfreezes, nor forgets
//!   anything, however late it comes (MOVE-3).
//! - MIG-8: servers are told what the stored record says, again until they confirm it, by the next
//!   coordinator, too (COORD-2, MOVE-5).

mod arriving;
mod change_notes;
mod ended;
mod leaving;

pub(crate) use arriving::Arrivals;
pub(crate) use change_notes::ChangeNotes;
pub(crate) use leaving::{Leaving, Leavings};

/// Keys with changes that the receiver does not have yet.
pub(crate) const NOTES_MAX: usize = 256 << 10;
/// Bytes of those keys.
pub(crate) const NOTES_BYTES_MAX: usize = 32 << 20;
