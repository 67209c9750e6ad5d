//! The commands of one connection that are executed, or are just being executed, and the order of
//! their replies.
//!
//! A command in the queue is in one of three states:
//! - *Done*: its reply waits for those before it.
//! - *Held*: executed at once, and not durable yet. It is a record, not a task, and costs no
//!   allocation and no timer.
//! - *Running*: one of a run of commands that a future executes. The future asks other servers, or
//!   waits for something else.
//!
//! Invariants
//! - QUEUE-1: replies leave in the order in which their commands came, whenever they are ready.
//! - QUEUE-2: a command is executed after all that came before it. One run is under way at a time,
//!   and nothing is executed beside it. The commands of a run are executed in their order.
//! - QUEUE-3: the number of commands in the queue is bounded, and so is the number of values that a
//!   run reads. That shrinks while replies are large, because their size is only known when they
//!   are there.
//! - QUEUE-4: a held outcome becomes a reply once it is durable ([`Client::open`]). If its time is
//!   over first, a failure replaces it. That of a change says that it is not known whether it
//!   was executed. That of a read says to try again.

use crate::commands::{Ran, Shape, is_there};
use crate::failure::not_durable;
use crate::reply::Reply;
use crate::spare::{self, Spare};
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use pluvio_client::{Client, HeldOutcome};
use pluvio_env::Moment;
use pluvio_trace::{Span, within};
use std::collections::VecDeque;

/// Most commands of a run.
pub(crate) const RUN_MAX: usize = 64;
/// Bytes of replies that a run is expected to give, at most, unless it has fewer than
/// [`RUN_MIN`] commands.
const REPLIES_BYTES: usize = 8 << 20;
/// A run may always have this number of commands.
const RUN_MIN: usize = 4;
/// The assumed size of values before there was one. It is large enough that the first commands of a
/// connection cannot take much memory, and small enough that some dozens may be under way.
const REPLY_BYTES_FIRST: usize = REPLIES_BYTES / 32;

thread_local! {
    /// Queues of places, of at most [`PLACES_BYTES`]. A connection needs one while it waits for
    /// replicas.
    static SPARE_PLACES: Spare<Place> = const { Spare::new(PLACES_BYTES / size_of::<Place>(), 16) };
}
/// Longest queue of places whose memory is kept for other connections, in bytes. It has room for
/// some hundred commands. A core keeps at most 16 of them.
const PLACES_BYTES: usize = 32 << 10;

/// An executed command that is not durable yet.
pub(crate) struct HeldReply {
    pub(crate) begun: Begun,
    pub(crate) held: HeldOutcome,
    pub(crate) answer: Answer,
    pub(crate) is_change: bool,
    /// When it is given up.
    pub(crate) until: Moment,
}

/// What is answered when an outcome is durable.
pub(crate) enum Answer {
    /// The outcome in this shape.
    Shaped(Shape),
    /// This.
    Reply(Reply),
}

impl HeldReply {
    /// Bytes that wait.
    fn bytes(&self) -> usize {
        match &self.answer {
            Answer::Shaped(_) => self.held.bytes(),
            Answer::Reply(reply) => reply.size(),
        }
    }
}

/// A command that has begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    /// Its row of the table.
    pub(crate) spec: u16,
    pub(crate) started: Moment,
}

/// A reply on its way out.
pub(crate) struct Leaving {
    pub(crate) reply: Reply,
    pub(crate) answered: bool,
    /// Of a command that was held.
    pub(crate) held: Option<Begun>,
    /// Whether it is a read, and found its key.
    pub(crate) found: Option<bool>,
}

/// The state of a command.
enum State {
    Done(Reply),
    Held(HeldReply),
    Running,
}

/// The place of a command in the order of replies.
struct Place {
    /// Whether its reply is wanted.
    answered: bool,
    state: State,
}

/// See the module. `F` is the future of a run.
pub(crate) struct Queue<F> {
    places_max: usize,
    /// Oldest first; the first has number `first`.
    places: VecDeque<Place>,
    first: u64,
    /// The run under way. The box is used again.
    run: Pin<Box<Option<F>>>,
    /// Its span, if it is sampled.
    span: Option<Span>,
    /// The number of the first place of the run.
    run_first: u64,
    bytes_waiting: usize,
    /// It is not known whether a command was executed.
    in_doubt: bool,
    /// A command has waited in vain for memory.
    is_full: bool,
    /// About the largest reply of late; of a reply with several values, their mean.
    largest_reply: usize,
}

impl<F: Future<Output = Ran>> Queue<F> {
    pub(crate) fn new(places_max: usize) -> Self {
        Self {
            places_max,
            places: VecDeque::new(),
            first: 0,
            run: Box::pin(None),
            span: None,
            run_first: 0,
            bytes_waiting: 0,
            in_doubt: false,
            is_full: false,
            largest_reply: REPLY_BYTES_FIRST,
        }
    }

    /// Whether every reply has left.
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Bytes of replies that wait for earlier ones.
    pub(crate) fn bytes_waiting(&self) -> usize {
        self.bytes_waiting
    }

    /// Whether a command that needs no order may be answered.
    pub(crate) fn has_place(&self) -> bool {
        self.places.is_empty() || self.places.len() < self.places_max
    }

    /// Whether a command may be executed (QUEUE-2, QUEUE-3).
    pub(crate) fn may_execute(&self) -> bool {
        self.run.is_none() && self.has_place()
    }

    /// How many commands the next run may have.
    pub(crate) fn run_max(&self) -> usize {
        let expected = REPLIES_BYTES / self.largest_reply.max(1);
        let places = self.places_max.saturating_sub(self.places.len());
        expected.clamp(RUN_MIN, RUN_MAX).min(places.max(1))
    }

    /// Whether a run is under way.
    pub(crate) fn is_running(&self) -> bool {
        self.run.is_some()
    }

    /// Begins a run, under a span if it is sampled. `answered` says of each of its commands whether
    /// its reply is wanted.
    pub(crate) fn begin(
        &mut self,
        run: F,
        answered: impl IntoIterator<Item = bool>,
        span: Option<Span>,
    ) {
        debug_assert!(self.run.is_none(), "QUEUE-2: one run at a time");
        self.run.as_mut().set(Some(run));
        self.span = span;
        spare::take(&SPARE_PLACES, &mut self.places);
        self.run_first = self.first + self.places.len() as u64;
        self.places
            .extend(answered.into_iter().map(|answered| Place {
                answered,
                state: State::Running,
            }));
    }

    /// Takes a reply that is ready; gives it back if it may leave at once and is wanted.
    pub(crate) fn answer(&mut self, reply: Reply, answered: bool) -> Option<Reply> {
        if self.places.is_empty() {
            return answered.then_some(reply);
        }
        self.bytes_waiting += reply.size();
        let state = State::Done(reply);
        self.places.push_back(Place { answered, state });
        None
    }

    /// Takes an executed command whose outcome is not durable yet.
    pub(crate) fn hold(&mut self, reply: HeldReply, answered: bool) {
        self.bytes_waiting += reply.bytes();
        let state = State::Held(reply);
        spare::take(&SPARE_PLACES, &mut self.places);
        self.places.push_back(Place { answered, state });
    }

    /// The outcome that the first reply waits for, and until when.
    pub(crate) fn first_held(&self) -> Option<(&HeldOutcome, Moment)> {
        match &self.places.front()?.state {
            State::Held(reply) => Some((&reply.held, reply.until)),
            State::Done(_) | State::Running => None,
        }
    }

    /// Whether it is not known if a command was executed: those that have arrived behind it must
    /// not be executed.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Whether a command has waited in vain for memory: those that have arrived behind it do not
    /// wait as well.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Everything that had arrived was answered.
    pub(crate) fn all_answered(&mut self) {
        debug_assert!(self.is_empty());
        self.in_doubt = false;
        self.is_full = false;
    }

    /// Gives up the first reply, whose time is over (QUEUE-4).
    pub(crate) fn give_up(&mut self, limit: Duration) -> Option<Begun> {
        let place = self.places.front_mut()?;
        if let State::Held(reply) = &place.state {
            let given_up = reply.begun;
            self.in_doubt |= reply.is_change;
            let failure = Reply::Error(not_durable(limit, reply.is_change));
            self.bytes_waiting -= reply.bytes();
            self.bytes_waiting += failure.size();
            place.state = State::Done(failure);
            return Some(given_up);
        }
        None
    }

    /// Drives the run under way; ready when it has ended.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(run) = self.run.as_mut().as_pin_mut() else {
            return Poll::Pending;
        };
        let polled = match &self.span {
            None => run.poll(context),
            Some(span) => within(span.context(), || run.poll(context)),
        };
        let Poll::Ready(ran) = polled else {
            return Poll::Pending;
        };
        self.run.as_mut().set(None);
        if let Some(mut span) = self.span.take()
            && let Some(Reply::Error(failure)) = ran.replies.first()
        {
            span.fail(|| String::from_utf8_lossy(failure.prefix()).into_owned());
        }
        let at = usize::try_from(self.run_first - self.first).expect("the queue fits memory");
        for (place, reply) in self.places.range_mut(at..).zip(ran.replies) {
            let size = reply.size();
            let faded = self.largest_reply - self.largest_reply / 16;
            self.largest_reply = faded.max(size / reply.values().max(1));
            self.bytes_waiting += size;
            self.is_full |= matches!(&reply, Reply::Error(failure) if failure.is_of_full_memory());
            place.state = State::Done(reply);
        }
        self.in_doubt |= ran.in_doubt;
        Poll::Ready(())
    }

    /// Changes the reply of the run that has just ended. Nothing has come behind it.
    pub(crate) fn amend(&mut self, change: impl FnOnce(&mut Reply)) {
        if let Some(State::Done(reply)) = self.places.back_mut().map(|place| &mut place.state) {
            self.bytes_waiting -= reply.size();
            change(reply);
            self.bytes_waiting += reply.size();
        }
    }

    /// The next reply that may leave, oldest first.
    pub(crate) fn next_reply(&mut self, client: &Client) -> Option<Leaving> {
        if matches!(self.places.front()?.state, State::Running) {
            return None;
        }
        let Place { answered, state } = self.places.pop_front()?;
        let leaving = match state {
            State::Done(reply) => {
                self.bytes_waiting -= reply.size();
                Leaving {
                    reply,
                    answered,
                    held: None,
                    found: None,
                }
            }
            State::Held(reply) => {
                let bytes = reply.bytes();
                match client.open(reply.held) {
                    Ok(outcome) => {
                        self.bytes_waiting -= bytes;
                        Leaving {
                            found: (!reply.is_change).then(|| is_there(&outcome)),
                            reply: match reply.answer {
                                Answer::Shaped(shape) => shape.reply(outcome),
                                Answer::Reply(reply) => reply,
                            },
                            answered,
                            held: Some(reply.begun),
                        }
                    }
                    Err(held) => {
                        let state = State::Held(HeldReply { held, ..reply });
                        self.places.push_front(Place { answered, state });
                        return None;
                    }
                }
            }
            State::Running => unreachable!("looked at a moment ago"),
        };
        self.first += 1;
        Some(leaving)
    }

    /// Gives back memory that an idle connection does not need.
    pub(crate) fn shrink(&mut self) {
        if self.places.is_empty() {
            spare::give(&SPARE_PLACES, &mut self.places);
        }
    }
}
