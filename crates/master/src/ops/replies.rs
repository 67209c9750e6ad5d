//! Replies to items: the one door through which an outcome becomes a success (rule C).
//!
//! - ANSWER-1: a success is made from a [`Durable`] outcome and nothing else. That includes a read
//!   that met a pending entry, a retry, and a change that changed nothing.
//!
//! ```compile_fail,E0308
//! use pluvio_mutation::{Outcome, Unfit};
//! # let mut replies = pluvio_master::Replies::default();
//! // What only came out of a computation is no answer yet.
//! replies.done(Outcome::Refused(Unfit::Overflow));
//! ```
//!
//! Used by the event loop that executes a request, and by the future that waits for its items.

use crate::master::Master;
use pluvio_log::{Appended, Awaited, Durable};
use pluvio_mutation::Outcome;
use pluvio_units::{LogId, Waits};
use pluvio_wire::{Answer, Outcomes, Refusal, Results};
use std::sync::Arc;

/// The results of a request's items, in their order.
#[derive(Default)]
pub struct Replies {
    results: Results,
    /// Items that are not durable yet, by their places in `results`.
    waiting: Vec<(usize, Appended<Outcome>)>,
    /// Bytes of values in the outcomes.
    bytes: usize,
}

impl Replies {
    /// Bytes of values in the outcomes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether an item is not durable yet.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The next item is done.
    pub fn done(&mut self, outcome: Durable<Outcome>) {
        self.bytes += outcome.value().bulk_len();
        self.results.push(Ok(outcome.into_value()));
    }

    /// The next item was not done.
    pub(crate) fn refused(&mut self, refusal: Refusal) {
        self.results.push(Err(refusal));
    }

    /// The next item is done once its outcome is durable.
    pub(crate) fn awaited(&mut self, master: &Master, outcome: Awaited<Outcome>) {
        match outcome {
            Awaited::Now(outcome) => self.done(outcome),
            Awaited::Later(outcome) => match master.store().space().confirm(outcome) {
                Ok(outcome) => self.done(outcome),
                Err(outcome) => self.wait(outcome),
            },
        }
    }

    /// Whether the last item waits for another log than this one.
    pub(crate) fn last_rests_elsewhere(&self, log: LogId) -> bool {
        let last = self.results.len().checked_sub(1);
        let waiting = self
            .waiting
            .last()
            .filter(|(place, _)| Some(*place) == last);
        waiting.is_some_and(|(_, waiting)| waiting.waits().any(|(of, _)| of != log))
    }

    fn wait(&mut self, waiting: Appended<Outcome>) {
        self.bytes += waiting.pending().bulk_len();
        // The place is taken by a refusal until the outcome may be told.
        self.waiting.push((self.results.len(), waiting));
        self.results.push(Err(Refusal::Refresh));
    }

    /// The results without any proof, and what they rest on: for a caller that tells nobody of them
    /// before that is durable.
    pub(crate) fn into_early(mut self) -> Outcomes {
        let rests_on = self.rests_on();
        for (place, waiting) in self.waiting {
            let (_, outcome) = waiting.into_parts();
            self.results[place] = Ok(outcome);
        }
        Outcomes {
            items: self.results,
            rests_on: rests_on.iter().flat_map(Waits::iter).collect(),
        }
    }

    /// The positions on which [`Replies::into_early`] rests, if they are not durable.
    pub(crate) fn rests_on(&self) -> Option<Waits> {
        let mut all: Option<Waits> = None;
        for (_, waiting) in &self.waiting {
            for (log, position) in waiting.waits() {
                match &mut all {
                    Some(all) => all.also(log, position),
                    None => all = Some(Waits::new(log, position)),
                }
            }
        }
        all
    }

    /// The answer: at once if nothing is waited for.
    pub(crate) fn into_answer(mut self, master: &Arc<Master>) -> Answer<Results> {
        if self.waiting.is_empty() {
            return Answer::Now(Ok(self.results));
        }
        let master = Arc::clone(master);
        Answer::Later(Box::pin(async move {
            for (place, waiting) in self.waiting {
                let outcome = master.durable(waiting).await;
                self.results[place] = Ok(outcome.into_value());
            }
            Ok(self.results)
        }))
    }
}
