//! Watches a connection for the two ways of keeping it busy without progress: sending part of a
//! frame, and not taking what is sent.
//!
//! A timer is set only while there is something to watch, and at most about once per limit. Frames
//! that always come in pieces set none anew.

use core::task::{Context, Poll};
use core::time::Duration;
use pluvio_env::{BoxFuture, Clock, Moment};
use std::sync::Arc;

/// The slow part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Overdue {
    /// The rest of a frame.
    Frame,
    /// The peer's taking of bytes.
    Stalled,
}

pub(crate) struct Watch {
    clock: Arc<dyn Clock>,
    frame_limit: Duration,
    stall_limit: Duration,
    /// The time since which a part of a frame is here.
    inside_since: Option<Moment>,
    /// The time since which bytes wait that the socket does not take.
    stalled_since: Option<Moment>,
    timer: Option<(Moment, BoxFuture<'static, ()>)>,
}

impl Watch {
    pub(crate) fn new(clock: Arc<dyn Clock>, frame_limit: Duration, stall_limit: Duration) -> Self {
        Self {
            clock,
            frame_limit,
            stall_limit,
            inside_since: None,
            stalled_since: None,
            timer: None,
        }
    }

    /// `inside`: reading waits for the rest of a frame. `progress`: a frame was completed since
    /// the last call.
    pub(crate) fn note_reading(&mut self, inside: bool, progress: bool) {
        Self::note(&*self.clock, &mut self.inside_since, inside, progress);
    }

    /// `waiting`: bytes wait for the socket. `progress`: it has taken some since the last call.
    pub(crate) fn note_writing(&mut self, waiting: bool, progress: bool) {
        Self::note(&*self.clock, &mut self.stalled_since, waiting, progress);
    }

    fn note(clock: &dyn Clock, since: &mut Option<Moment>, busy: bool, progress: bool) {
        if !busy {
            *since = None;
        } else if progress || since.is_none() {
            *since = Some(clock.now());
        }
    }

    /// Ready when a limit is over; otherwise the task is woken when the next one may be.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Overdue> {
        loop {
            let frame = self.inside_since.map(|since| since + self.frame_limit);
            let stall = self.stalled_since.map(|since| since + self.stall_limit);
            let Some(next) = [frame, stall].into_iter().flatten().min() else {
                // A timer that still runs does no harm; it is used again or ends once.
                return Poll::Pending;
            };
            let now = self.clock.now();
            let (_, timer) = match &mut self.timer {
                Some(timer) if timer.0 <= next => timer,
                timer => timer.insert((next, self.clock.sleep(next.since(now)))),
            };
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.timer = None;
            let now = self.clock.now();
            if frame.is_some_and(|at| at <= now) {
                return Poll::Ready(Overdue::Frame);
            }
            if stall.is_some_and(|at| at <= now) {
                return Poll::Ready(Overdue::Stalled);
            }
        }
    }
}
