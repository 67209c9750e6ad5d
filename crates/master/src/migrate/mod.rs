//! Moving a tablet to another server while it is served (003 fig. 2). `docs/migration.md` tells the
//! whole way and why it survives crashes; here are the two ends of it: the tablet *leaves* its
//! owner and *arrives* at the receiver.
//!
//! The receiver asks for everything: objects in the order of their hashes, what was changed
//! meanwhile, and when little is left it lets the owner freeze the tablet, takes the rest and the
//! results of operations, makes all of it durable in its own log, and reports to the coordinator.
//! What comes is replayed as in a recovery.
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
//!   refused with "retry", so whoever changes faster than the receiver copies is slowed down.
//! - MOVE-5: when the end of a migration is acknowledged, nothing is left to do for it: of a tablet
//!   that has moved nothing is in the index, and no forgetting is under way that could meet it when
//!   it comes back.

mod arriving;
mod change_notes;
mod ended;
mod leaving;

pub(crate) use arriving::Arrivals;
pub(crate) use leaving::Leavings;

/// Keys with changes that the receiver does not have yet.
pub(crate) const NOTES_MAX: usize = 256 << 10;
/// Bytes of those keys.
pub(crate) const NOTES_BYTES_MAX: usize = 32 << 20;
