//! The deadline of one operation and the pauses between its attempts.

use crate::error::ClientError;
use crate::options::{ClientOptions, OnDelay, Parts};
use core::time::Duration;
use pluvio_env::Moment;
use pluvio_wire::RetryReason;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The first pause that doubles. Long against a round trip, short against a recovery.
const PAUSE_FIRST: Duration = Duration::from_millis(1);
/// Pauses do not grow beyond this, so that a recovered tablet is noticed soon; ten requests a
/// second from each waiting operation are no load.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Longest pause of a transaction that asks for locks: its servers keep keys for those that ask all
/// the time.
const LOCK_PAUSE_MAX: Duration = Duration::from_millis(5);
/// Such pauses are this part of the time that it has waited.
const LOCK_PAUSE_PART: u32 = 64;
/// The same of other operations on locked keys, and of those that are to come again at once, as
/// something is in progress. Transactions lock a key for some milliseconds, and another one may
/// follow. An operation that asks seldom would hardly ever find it free.
const LOCKED_PAUSE_MAX: Duration = Duration::from_millis(10);
const LOCKED_PAUSE_PART: u32 = 4;

/// Attempts of this long are told to [`ClientOptions::on_delay`]: people begin to wonder.
const DELAY: Duration = Duration::from_secs(1);

/// Counts the attempts of one operation and knows when its time is up.
#[derive(Clone)]
pub(crate) struct Attempts<'a> {
    parts: &'a Parts,
    deadline: Moment,
    limit: Duration,
    per_attempt: Duration,
    full_limit: Duration,
    /// Whom to tell, until somebody was told: of all parts of the operation together.
    on_delay: Option<(&'a OnDelay, Arc<AtomicBool>)>,
    /// Since when every refusal said that memory is full, or a quota.
    full_since: Option<Moment>,
    pauses: u32,
    /// Whether locks are asked for.
    asks_for_locks: bool,
    /// Since when every refusal said that keys are locked, or something is in progress.
    locked_since: Option<Moment>,
    reason: Option<RetryReason>,
    last: Option<String>,
    /// Whether that attempt had no time for an answer.
    is_cut_short: bool,
    maybe_executed: bool,
}

impl<'a> Attempts<'a> {
    /// `full_limit` is the time while all it hears is that memory is full, or a quota.
    pub(crate) fn new(parts: &'a Parts, options: &'a ClientOptions, full_limit: Duration) -> Self {
        Self {
            parts,
            deadline: parts.clock.now() + options.timeout,
            limit: options.timeout,
            per_attempt: options.attempt_timeout,
            full_limit,
            on_delay: { options.on_delay.as_ref() }.map(|tell| (tell, Arc::default())),
            full_since: None,
            pauses: 0,
            asks_for_locks: false,
            locked_since: None,
            reason: None,
            last: None,
            is_cut_short: false,
            maybe_executed: false,
        }
    }

    /// The same, with no more time than this.
    pub(crate) fn at_most(mut self, limit: Duration) -> Self {
        self.limit = self.limit.min(limit);
        self.deadline = self.deadline.min(self.parts.clock.now() + limit);
        self
    }

    /// The same, as a request for locks: pauses start small, and grow with the time that others
    /// have them.
    pub(crate) fn for_locks(mut self) -> Self {
        self.asks_for_locks = true;
        self.pauses = 0;
        self
    }

    /// The rest of the operation's time.
    pub(crate) fn remaining(&self) -> Duration {
        let deadline = match self.full_since {
            Some(since) => self.deadline.min(since + self.full_limit),
            None => self.deadline,
        };
        deadline.since(self.parts.clock.now())
    }

    /// How much longer attempts may be made, whatever they meet: what servers are told. Never less
    /// than [`Attempts::remaining`], which is shorter while memory is full, until an attempt meets
    /// something else.
    pub(crate) fn until_deadline(&self) -> Duration {
        self.deadline.since(self.parts.clock.now())
    }

    /// The time for the next attempt.
    pub(crate) fn next_limit(&self) -> Duration {
        self.remaining().min(self.per_attempt)
    }

    /// Remembers why the last attempt failed.
    pub(crate) fn failed(&mut self, why: String, reason: Option<RetryReason>) {
        let was_cut_short = self.is_cut_short;
        self.is_cut_short = reason.is_none() && self.until_deadline().is_zero();
        let told = self.last.take().filter(|_| !was_cut_short);
        self.last = Some(match told.filter(|_| self.is_cut_short) {
            // The last try had no time for an answer. The one before it says more.
            Some(told) => format!("{told}; then {why}"),
            None => why,
        });
        self.reason = reason;
        let is_full = reason.is_some_and(RetryReason::is_full);
        let is_short = matches!(reason, Some(RetryReason::Locked | RetryReason::InProgress));
        if !is_short {
            self.locked_since = None;
        } else if self.locked_since.is_none() {
            self.locked_since = Some(self.parts.clock.now());
        }
        if !is_full {
            self.full_since = None;
        } else if self.full_since.is_none() {
            self.full_since = Some(self.parts.clock.now());
        }
    }

    /// Remembers that the last attempt was not answered: why those before were refused says nothing
    /// of it.
    pub(crate) fn unanswered(&mut self) {
        self.locked_since = None;
        self.reason = None;
        self.last = None;
        self.is_cut_short = false;
    }

    /// Remembers that the operation may have been executed.
    pub(crate) fn ambiguous(&mut self) {
        self.maybe_executed = true;
    }

    /// Whether an attempt ended without a reply, so that the operation may have been executed.
    pub(crate) fn is_ambiguous(&self) -> bool {
        self.maybe_executed
    }

    /// From now on it is about operations that were not sent yet.
    pub(crate) fn begin_unsent(&mut self) {
        self.maybe_executed = false;
    }

    /// Something was done: pauses start small again, and not all refusals are of a full memory.
    pub(crate) fn progressed(&mut self) {
        self.pauses = 0;
        self.full_since = None;
    }

    /// Takes over what a part of the operation has met.
    pub(crate) fn absorb(&mut self, part: Self) {
        if part.last.is_some() {
            self.last = part.last;
            self.is_cut_short = part.is_cut_short;
            self.reason = part.reason;
            self.full_since = part.full_since;
            self.locked_since = part.locked_since;
        }
        self.maybe_executed |= part.maybe_executed;
        self.pauses = self.pauses.max(part.pauses);
    }

    /// Whether the time is up.
    pub(crate) fn is_over(&self) -> bool {
        self.remaining().is_zero()
    }

    /// The error of an operation whose time is up.
    pub(crate) fn timed_out(&self) -> ClientError {
        let limit = match self.full_since {
            Some(_) => self.limit.min(self.full_limit),
            None => self.limit,
        };
        ClientError::TimedOut {
            limit,
            reason: self.reason,
            last: self
                .last
                .clone()
                .unwrap_or_else(|| "no reply came".to_owned()),
            maybe_executed: self.maybe_executed,
        }
    }

    /// Tells once why it takes so long.
    fn tell_of_delay(&mut self) {
        let took = self.limit.saturating_sub(self.until_deadline());
        if took >= DELAY
            && let Some(why) = &self.last
            && let Some((on_delay, was_told)) = self.on_delay.take()
            && !was_told.swap(true, Ordering::Relaxed)
        {
            on_delay.call(why);
        }
    }

    /// Waits before the next attempt: at least `asked`, growing with every pause, with jitter.
    /// The first pause is none unless one was asked for.
    ///
    /// # Errors
    /// The time is up.
    pub(crate) async fn pause(&mut self, asked: Duration) -> Result<(), ClientError> {
        if self.is_over() {
            return Err(self.timed_out());
        }
        self.tell_of_delay();
        let pauses = self.pauses;
        self.pauses = self.pauses.saturating_add(1);
        if pauses == 0 && asked.is_zero() {
            return Ok(());
        }
        let grown = match self.locked_since {
            Some(since) => {
                let (part, most) = match self.asks_for_locks {
                    true => (LOCK_PAUSE_PART, LOCK_PAUSE_MAX),
                    false => (LOCKED_PAUSE_PART, LOCKED_PAUSE_MAX),
                };
                let waited = self.parts.clock.now().since(since);
                (waited / part).min(most).max(asked)
            }
            None => PAUSE_FIRST
                .max(asked)
                .saturating_mul(1 << pauses.min(10))
                .min(PAUSE_MAX.max(asked)),
        };
        let jitter = Duration::from_nanos(
            self.parts.rng.below(
                u64::try_from(grown.as_nanos() / 2)
                    .unwrap_or(u64::MAX)
                    .max(1),
            ),
        );
        self.parts
            .clock
            .sleep((grown + jitter).min(self.remaining()))
            .await;
        if self.is_over() {
            Err(self.timed_out())
        } else {
            Ok(())
        }
    }
}
