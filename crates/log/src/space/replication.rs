//! The side of replication: segments for it, its reports, and the segments of committed side logs.

use super::LogSpace;
use crate::append::LogState;
use crate::durable::{Appended, Durable, PendingMarks};
use crate::segments::Segment;
use core::sync::atomic::Ordering;
use pluvio_units::{LogId, LogPosition, SegmentId};
use std::sync::Arc;

impl LogSpace {
    /// Whether `log` is durable up to `position`.
    #[must_use]
    pub fn is_durable(&self, log: LogId, position: LogPosition) -> bool {
        self.heads.log(log).durable.covers(position)
    }

    /// The durable position of a log; `None` when everything is durable at once.
    #[must_use]
    pub fn durable_position(&self, log: LogId) -> Option<LogPosition> {
        self.heads.log(log).durable.get()
    }

    /// The right to say what pending marks mean, for the owner of the index over this space; `None`
    /// when it was given away before (DURABLE-1).
    #[must_use]
    pub fn pending_marks(&self) -> Option<PendingMarks> {
        let given = self.marks_given.swap(true, Ordering::Relaxed);
        (!given).then(PendingMarks::new)
    }

    /// The proof that `appended` is durable.
    ///
    /// # Errors
    /// Gives `appended` back when it is not durable yet: try again after the durable hook.
    pub fn confirm<T>(&self, appended: Appended<T>) -> Result<Durable<T>, Appended<T>> {
        let has = |(log, position)| self.is_durable(log, position);
        if appended.waits().all(has) {
            Ok(appended.into_durable())
        } else {
            Err(appended)
        }
    }

    /// Replication: everything in the heads of `log` before `position` is on all replicas. Never
    /// moves back. A position in a head may be reported only after the digest of that head is
    /// durable and all older heads are durably closed.
    pub fn advance_durable(&self, log: LogId, position: LogPosition) {
        let log = self.heads.log(log);
        if log.durable.advance(position) {
            LogState::call(&log.durable_hook);
        }
    }

    /// Replication: head `head` of `log` is open with its digest on all replicas, and the head
    /// before it is durably closed. So recovery will go by this digest: what it does not list any
    /// more is freed (LOG-4). To be called once for each head, in their order.
    pub fn digest_durable(&self, log: LogId, head: SegmentId) {
        let log = self.heads.log(log);
        self.heads.drop_published(&mut log.members(), head);
        LogState::call(&log.durable_hook);
    }

    /// Replication: the segments opened since the last call, heads and side segments, in the order
    /// of their ids. Those that were freed meanwhile are left out.
    #[must_use]
    pub fn take_new_segments(&self, log: LogId) -> Vec<Arc<Segment>> {
        let mut queue = self.heads.log(log).queue();
        queue.drain(..).filter(|s| !s.state().is_freed()).collect()
    }

    /// Replication: segments that left `log` for good since the last call; their replicas are to be
    /// freed.
    #[must_use]
    pub fn take_freeable(&self, log: LogId) -> Vec<SegmentId> {
        core::mem::take(&mut self.heads.log(log).members().freeable)
    }

    /// The segments of `log` at this moment, oldest id first: what the next digest would list. A
    /// segment may be freed while the caller holds it; its bytes are then gone.
    #[must_use]
    pub fn segments(&self, log: LogId) -> Vec<Arc<Segment>> {
        self.heads
            .log(log)
            .members()
            .in_log
            .values()
            .cloned()
            .collect()
    }

    /// Lets the cleaner have segments that were committed while they were held.
    pub fn release(&self, log: LogId, segments: &[SegmentId]) {
        self.heads.log(log).release(segments);
    }

    /// Removes whole segments that a side log had committed (a rejected recovery). The index must
    /// not point into them any more. They are freed after the next digest; [`LogSpace::roll`]
    /// hurries it. Returns the ids that are not in the log.
    ///
    /// Copies that the cleaner makes of their entries stay on disk in survivors. So hold the
    /// segments ([`SideLog::hold`](crate::SideLog::hold)) until it is clear that they stay.
    pub fn drop_committed(&self, log: LogId, segments: &[SegmentId]) -> Vec<SegmentId> {
        self.heads.log(log).drop_committed(segments)
    }
}
