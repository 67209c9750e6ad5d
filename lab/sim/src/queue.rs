//! The event queue: what happens next, ordered by (time, sequence number).
//!
//! Events whose owner is gone (a sleep that was dropped, a call that got its reply) stay in the
//! heap and are skipped; [`EventQueue::forget`] throws them out once they are the majority.

use crate::packets::Packet;
use crate::slab::Key;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What may happen.
pub(crate) enum Event {
    /// A sleep ends.
    Timer(Key),
    /// A call's limit is reached.
    CallLimit(Key),
    /// A packet arrives.
    Packet(Box<Packet>),
    /// A background worker makes its next step.
    Step(Key),
    /// A piece of blocking work runs.
    Job(Key),
    /// A disk operation completes.
    Disk(Key),
}

struct Scheduled {
    time: u64,
    sequence: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.time, self.sequence).cmp(&(other.time, other.sequence))
    }
}

/// Below this many forgotten events a clean-up is not worth its scan.
const STALE_MIN: usize = 4096;

pub(crate) struct EventQueue {
    heap: BinaryHeap<Reverse<Scheduled>>,
    sequence: u64,
    stale: usize,
}

impl EventQueue {
    pub(crate) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            sequence: 0,
            stale: 0,
        }
    }

    /// Puts `event` at `time`, after everything that is already there for that time.
    pub(crate) fn push(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.heap.push(Reverse(Scheduled {
            time,
            sequence: self.sequence,
            event,
        }));
    }

    pub(crate) fn peek(&self) -> Option<(u64, &Event)> {
        self.heap
            .peek()
            .map(|Reverse(next)| (next.time, &next.event))
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.heap.pop().map(|Reverse(next)| next.event)
    }

    /// Notes that one event in the queue has lost its owner; true when a clean-up is due.
    pub(crate) fn note_stale(&mut self) -> bool {
        self.stale += 1;
        self.stale > STALE_MIN && self.stale * 2 > self.heap.len()
    }

    /// Notes that a stale event has left the queue.
    pub(crate) fn note_skipped(&mut self) {
        self.stale = self.stale.saturating_sub(1);
    }

    /// Removes the events that `is_live` does not want.
    pub(crate) fn forget(&mut self, is_live: impl Fn(&Event) -> bool) {
        self.heap.retain(|Reverse(next)| is_live(&next.event));
        self.stale = 0;
    }

    /// Takes all events out, so that the caller can drop them where no lock is held.
    pub(crate) fn take_all(&mut self) -> Vec<Event> {
        self.heap.drain().map(|Reverse(next)| next.event).collect()
    }
}
