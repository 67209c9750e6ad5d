//! Identities of operations that change data.
//!
//! Owns the numbers of the operations under way, at most 2048 of a client; more wait for their
//! turn, because servers remember the results of a bounded number of operations of a client. Invariant CLIENT-1: an operation keeps its number
//! over all its retries, and `acknowledged_below` never passes the number of an operation whose
//! result the client still waits for.

use pluvio_units::{ClientId, SequenceNumber};
use pluvio_wire::OperationId;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Most operations of one client that change data and are under way: half of what servers remember.
pub(crate) const UNDER_WAY_MAX: usize = 2048;

/// Gives out operation numbers of one client.
pub(crate) struct Sequence {
    client: ClientId,
    turns: Semaphore,
    state: Mutex<State>,
}

struct State {
    next: SequenceNumber,
    under_way: BTreeSet<SequenceNumber>,
}

impl Sequence {
    pub(crate) fn new(client: ClientId) -> Self {
        Self {
            client,
            turns: Semaphore::new(UNDER_WAY_MAX),
            state: Mutex::new(State {
                next: SequenceNumber(1),
                under_way: BTreeSet::new(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of the state is one step, so a panic elsewhere leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new operation, once fewer than [`UNDER_WAY_MAX`] are under way.
    pub(crate) async fn begin(&self) -> Ticket<'_> {
        let turn = self.turns.acquire().await;
        self.ticket(turn.expect("the semaphore is never closed"))
    }

    /// A new operation, if fewer than [`UNDER_WAY_MAX`] are under way.
    pub(crate) fn try_begin(&self) -> Option<Ticket<'_>> {
        Some(self.ticket(self.turns.try_acquire().ok()?))
    }

    fn ticket<'a>(&'a self, turn: SemaphorePermit<'a>) -> Ticket<'a> {
        let mut state = self.state();
        let number = state.next;
        state.next = number.next();
        state.under_way.insert(number);
        Ticket {
            sequence: self,
            number,
            _turn: turn,
        }
    }
}

/// An operation under way; its result is acknowledged when this is dropped.
pub(crate) struct Ticket<'a> {
    sequence: &'a Sequence,
    number: SequenceNumber,
    _turn: SemaphorePermit<'a>,
}

impl Ticket<'_> {
    /// The operation's identity, for one attempt.
    pub(crate) fn id(&self) -> OperationId {
        let state = self.sequence.state();
        OperationId {
            client: self.sequence.client,
            sequence: self.number,
            acknowledged_below: state.under_way.first().copied().unwrap_or(state.next),
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.sequence.state().under_way.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn acknowledgement_stops_at_the_oldest_operation_under_way() {
        let sequence = Sequence::new(ClientId(7));
        let begin = || sequence.try_begin().expect("there is room");
        let first = begin();
        let second = begin();
        assert_eq!(second.id().sequence, SequenceNumber(2));
        assert_eq!(second.id().acknowledged_below, SequenceNumber(1));
        drop(first);
        assert_eq!(second.id().acknowledged_below, SequenceNumber(2));
        drop(second);
        assert_eq!(begin().id().acknowledged_below, SequenceNumber(3));
    }

    #[test]
    fn operations_under_way_are_bounded() {
        let sequence = Sequence::new(ClientId(7));
        let mut under_way: Vec<_> = (0..UNDER_WAY_MAX)
            .map(|_| sequence.try_begin().expect("there is room"))
            .collect();
        assert!(sequence.try_begin().is_none());
        let mut waiting = Box::pin(sequence.begin());
        assert!(waiting.as_mut().now_or_never().is_none());
        under_way.pop();
        assert!(waiting.now_or_never().is_some());
    }
}
