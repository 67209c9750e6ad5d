//! Refusals that several parts of the coordinator give.

use core::time::Duration;
use pluvio_units::ServerId;
use pluvio_wire::{FatalKind, Refusal, RetryReason, TableRef};

/// The longest a request waits for servers to follow before its caller is asked to come again.
pub(crate) const FOLLOW_MAX: Duration = Duration::from_secs(1);
/// When to come again for what servers have not followed yet.
pub(crate) const COME_AGAIN: Duration = Duration::from_millis(50);

/// The refusal of a coordinator that is ending.
pub(crate) fn stopping() -> Refusal {
    Refusal::retry(Duration::from_millis(100), RetryReason::NotLeader)
}

/// The refusal of a coordinator that does not lead.
pub(crate) fn not_leader() -> Refusal {
    Refusal::retry(Duration::from_millis(50), RetryReason::NotLeader)
}

/// The refusal of requests by servers that are not members (any more).
pub(crate) fn not_a_member(server: ServerId) -> Refusal {
    Refusal::fatal(
        FatalKind::NotInCluster,
        format!("server {server} is not, or no longer, a member: start it again, it gets a new id"),
    )
}

/// The refusal of requests for a table that does not exist.
pub(crate) fn no_such_table(table: &TableRef) -> Refusal {
    let which = match table {
        TableRef::Id(id) => format!("with id {id}"),
        TableRef::Name(name) => format!("{name:?}"),
    };
    Refusal::fatal(FatalKind::NoSuchTable, format!("there is no table {which}"))
}
