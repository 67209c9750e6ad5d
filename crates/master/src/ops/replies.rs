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
use bytes::Bytes;
use core::ops::Range;
use pluvio_log::{Appended, Awaited, Durable};
use pluvio_mutation::{Outcome, Output};
use pluvio_units::{LogId, ObjectVersion, Waits};
use pluvio_wire::{Answer, Outcomes, Refusal, Results};
use std::sync::Arc;

/// Most bytes that are asked for at once for values yet to be read.
const GUESS_MAX: usize = 64 << 10;

/// The results of a request's items, in their order.
#[derive(Default)]
pub struct Replies {
    /// Items of the request.
    items: usize,
    results: Results,
    /// Items that are not durable yet, by their places in `results`.
    waiting: Vec<(usize, Appended<Outcome>)>,
    /// Bytes of values in the outcomes.
    bytes: usize,
    /// Values that were read together, one behind the other.
    values: Vec<u8>,
    /// The items whose values these are, by their places in `results`.
    shown: Vec<Shown>,
}

/// An item whose value lies in [`Replies::values`]. A refusal stands in its place in `results`
/// until [`Replies::tell_shown`] replaces it.
struct Shown {
    place: usize,
    version: ObjectVersion,
    value: Range<usize>,
}

impl Replies {
    /// For a request of this many items.
    pub(crate) fn of_items(items: usize) -> Self {
        Self {
            items,
            results: Results::with_capacity(items),
            ..Self::default()
        }
    }

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

    /// Keeps the value of the next item behind those before it, so that all need one buffer.
    /// [`Replies::shown`] tells the rest of the item.
    pub(crate) fn keep_value(&mut self, value: &[u8]) {
        if self.values.capacity() == 0 {
            let guess = value.len().saturating_mul(self.items);
            self.values.reserve(guess.min(GUESS_MAX));
        }
        self.values.extend_from_slice(value);
    }

    /// The next item was read, and is durable. With a version, its value is all that
    /// [`Replies::keep_value`] took since the last item. Without one there is no object.
    pub(crate) fn shown(&mut self, version: Durable<Option<ObjectVersion>>) {
        let version = version.into_value();
        let Some(version) = version else {
            let (version, output) = (ObjectVersion(0), Output::Nothing);
            self.results
                .push(Ok(Outcome::Unchanged { version, output }));
            return;
        };
        let start = self.shown.last().map_or(0, |before| before.value.end);
        let value = start..self.values.len();
        self.bytes += value.len();
        let place = self.take_place();
        if self.shown.is_empty() {
            self.shown.reserve(self.items);
        }
        self.shown.push(Shown {
            place,
            version,
            value,
        });
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
        let place = self.take_place();
        self.waiting.push((place, waiting));
    }

    /// The place of an item whose outcome is told at the end; until then a refusal stands there.
    fn take_place(&mut self) -> usize {
        self.results.push(Err(Refusal::Refresh));
        self.results.len() - 1
    }

    /// Gives the items that were shown their values. All of these are returned if no other item
    /// has bytes.
    fn tell_shown(&mut self) -> Option<Bytes> {
        if self.shown.is_empty() {
            return None;
        }
        let mut values = core::mem::take(&mut self.values);
        // The reply may wait for its peer, and is counted by its length.
        if values.capacity() > 2 * values.len() {
            values.shrink_to_fit();
        }
        let values = Bytes::from(values);
        for shown in self.shown.drain(..) {
            let (version, value) = (shown.version, values.slice(shown.value));
            let output = Output::Bytes(value);
            self.results[shown.place] = Ok(Outcome::Unchanged { version, output });
        }
        (values.len() == self.bytes).then_some(values)
    }

    /// The results, and what they rest on. If nothing is waited for ([`Replies::is_waiting`]), all
    /// of them are durable and may be told. Otherwise some have no proof: the caller tells nobody
    /// before the positions are durable.
    pub(crate) fn into_early(mut self) -> Outcomes {
        let rests_on = self.rests_on();
        let joined = self.tell_shown();
        for (place, waiting) in self.waiting {
            let (_, outcome) = waiting.into_parts();
            self.results[place] = Ok(outcome);
        }
        let mut outcomes = Outcomes::from(self.results);
        outcomes.rests_on = rests_on.iter().flat_map(Waits::iter).collect();
        match joined {
            Some(joined) => outcomes.with_joined(joined),
            None => outcomes,
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
        self.tell_shown();
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
