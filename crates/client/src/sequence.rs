//! Identities of operations that change data.
//!
//! Owns the numbers of the operations under way, at most [`UNDER_WAY_MAX`] of a client. More wait
//! for their turn, because servers keep the results of a bounded number of operations of a client.
//! An item of a batch is an operation of its own. A holder of a place of a window never waits for a
//! turn (CLIENT-6).
//!
//! CLIENT-1 is kept here: an operation keeps its number over all its retries, to whichever server.
//! And `acknowledged_below` never passes the number of an operation whose result the client still
//! waits for. CLIENT-5 is kept here too, by `retry_ms`.

use core::time::Duration;
use pluvio_units::{ClientId, OperationId, SequenceNumber};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Most operations of one client that change data and are under way: half of what servers keep.
pub(crate) const UNDER_WAY_MAX: usize = 8 << 10;
/// Most items of a batch that are under way: so that several batches and single operations are,
/// too.
pub(crate) const BATCH_UNDER_WAY_MAX: usize = pluvio_units::BATCH_UNDER_WAY_MAX;

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

    pub(crate) fn client(&self) -> ClientId {
        self.client
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of the state is one step, so a panic elsewhere leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins `count` new operations, once few enough are under way. They take their turn at once,
    /// so that none waits for others that hold half of theirs.
    pub(crate) async fn begin(&self, count: u32) -> Ticket<'_> {
        let turn = self.turns.acquire_many(count).await;
        self.ticket(count, turn.expect("the semaphore is never closed"))
    }

    /// Begins `count` new operations, if few enough are under way.
    pub(crate) fn try_begin(&self, count: u32) -> Option<Ticket<'_>> {
        Some(self.ticket(count, self.turns.try_acquire_many(count).ok()?))
    }

    fn ticket<'a>(&'a self, count: u32, turn: SemaphorePermit<'a>) -> Ticket<'a> {
        let mut state = self.state();
        let first = state.next;
        state.next = SequenceNumber(first.0 + u64::from(count));
        state.under_way.insert(first);
        Ticket {
            sequence: self,
            first,
            oldest: first,
            count,
            _turn: turn,
        }
    }
}

/// Operations under way; their results are acknowledged when this is dropped.
pub(crate) struct Ticket<'a> {
    sequence: &'a Sequence,
    first: SequenceNumber,
    /// The first of them whose result the client waits for.
    oldest: SequenceNumber,
    count: u32,
    _turn: SemaphorePermit<'a>,
}

impl Ticket<'_> {
    /// The first operation's identity, for one attempt: `retry` is the longest for which it may be
    /// repeated (CLIENT-5).
    pub(crate) fn id(&self, retry: Duration) -> OperationId {
        let state = self.sequence.state();
        let retry_ms = retry.as_nanos().div_ceil(1_000_000);
        OperationId {
            client: self.sequence.client,
            sequence: self.first,
            acknowledged_below: state.under_way.first().copied().unwrap_or(state.next),
            retry_ms: u32::try_from(retry_ms).unwrap_or(u32::MAX),
        }
    }

    /// The client has the results of the first `count` of the operations. The next message
    /// acknowledges them, so that servers need not keep them.
    pub(crate) fn finished(&mut self, count: usize) {
        let oldest = self.number(count);
        // The number behind the last one is another's. That all are finished is told by dropping.
        if oldest > self.oldest && count < self.count as usize {
            let mut state = self.sequence.state();
            state.under_way.remove(&self.oldest);
            state.under_way.insert(oldest);
            self.oldest = oldest;
        }
    }

    /// The number of one of the operations.
    pub(crate) fn number(&self, index: usize) -> SequenceNumber {
        SequenceNumber(self.first.0 + index as u64)
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.sequence.state().under_way.remove(&self.oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn acknowledgement_stops_at_the_oldest_operation_under_way() {
        let sequence = Sequence::new(ClientId(7));
        let begin = |count| sequence.try_begin(count).expect("there is room");
        let id = |ticket: &Ticket<'_>| ticket.id(Duration::from_secs(1));
        let first = begin(1);
        let batch = begin(10);
        assert_eq!(id(&batch).sequence, SequenceNumber(2));
        assert_eq!(batch.number(9), SequenceNumber(11));
        assert_eq!(id(&batch).acknowledged_below, SequenceNumber(1));
        drop(first);
        assert_eq!(id(&batch).acknowledged_below, SequenceNumber(2));
        let mut batch = batch;
        batch.finished(4);
        assert_eq!(id(&batch).acknowledged_below, SequenceNumber(6));
        assert_eq!(id(&batch).sequence, SequenceNumber(2), "numbers stay");
        let next = begin(1);
        batch.finished(10);
        drop(batch);
        assert_eq!(id(&next).acknowledged_below, SequenceNumber(12));
        assert_eq!(id(&begin(1)).acknowledged_below, SequenceNumber(12));
        drop(next);
        assert_eq!(id(&begin(1)).acknowledged_below, SequenceNumber(14));
    }

    #[test]
    fn operations_under_way_are_bounded() {
        let sequence = Sequence::new(ClientId(7));
        let mut under_way: Vec<_> = (0..UNDER_WAY_MAX)
            .map(|_| sequence.try_begin(1).expect("there is room"))
            .collect();
        assert!(sequence.try_begin(1).is_none());
        let mut waiting = Box::pin(sequence.begin(1));
        assert!(waiting.as_mut().now_or_never().is_none());
        under_way.pop();
        assert!(waiting.now_or_never().is_some());
    }
}
