//! Objects that expire: none is seen after its deadline, none is missing before it.
//!
//! A deadline is known as a window: owners make it by clocks of which only bounds are known
//! ([`Clocks`]). An expiry is no operation of a client, and may take effect at any time from the
//! window's beginning on. The search needs no place for it. An answer that there is no object says
//! that the object had expired, if it could; any other answer says that it had not.
//!
//! ```text
//!            written        first      last
//! ─────────────┼──────────────┼──────────┼──────────────►  a clock
//!   absent: a lost write      │   both   │  there: late
//! ```
//!
//! That an object stays gone, and that versions grow over an expiry, is checked as for deletes
//! (`going_back`, `versions`).

use super::linear::{End, Operation};
use super::register::Object;
use super::{Check, Subject, Violation};
use crate::history::{Answer, Change, Clocks, Exchange, KeyKind, Request, Want};
use bytes::Bytes;
use core::time::Duration;
use pluvio_mutation::{Lifetime, Outcome, Output, TouchIf};
use std::collections::BTreeMap;

/// When an object expires, as far as that is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Window {
    /// The earliest deadline that is possible.
    pub first: u64,
    /// The latest. [`Window::NEVER`] counts as later than all others.
    pub last: u64,
}

impl Window {
    const END: u64 = u64::MAX;

    /// There is no deadline.
    pub const NEVER: Self = Self {
        first: Self::END,
        last: Self::END,
    };

    fn exactly(ms: u64) -> Self {
        Self {
            first: ms,
            last: ms,
        }
    }

    /// What is possible by both.
    fn and(self, other: Self) -> Option<Self> {
        let both = Self {
            first: self.first.max(other.first),
            last: self.last.min(other.last),
        };
        (both.first <= both.last).then_some(both)
    }

    /// What is possible by either.
    fn or(self, other: Self) -> Self {
        Self {
            first: self.first.min(other.first),
            last: self.last.max(other.last),
        }
    }

    /// Whether it says that there is a deadline, and whether there may be one.
    fn is_bounded(self) -> (bool, bool) {
        (self.last < Self::END, self.first < Self::END)
    }

    /// Whether this deadline is surely later than the other, and whether it may be.
    fn is_later(self, other: Self) -> (bool, bool) {
        (self.first > other.last, self.last > other.first)
    }

    /// Whether the rule surely allows to replace this deadline, and whether it may.
    fn allows(self, when: TouchIf, new: Self) -> (bool, bool) {
        let (bounded, may_be_bounded) = self.is_bounded();
        let (earlier, may_be_earlier) = self.is_later(new);
        match when {
            TouchIf::Always => (true, true),
            TouchIf::Endless => (!may_be_bounded, !bounded),
            TouchIf::Bounded => (bounded, may_be_bounded),
            TouchIf::Later => new.is_later(self),
            TouchIf::Earlier => (earlier, may_be_earlier),
            TouchIf::BoundedAndEarlier => (bounded && earlier, may_be_bounded && may_be_earlier),
        }
    }
}

/// An object with its deadline.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Mortal {
    /// The object; its value is there until it is known that it has expired.
    pub object: Object<Bytes>,
    /// Its deadline.
    pub window: Window,
}

impl Default for Mortal {
    fn default() -> Self {
        Self {
            object: Object::default(),
            window: Window::NEVER,
        }
    }
}

impl Mortal {
    fn gone(object: &Object<Bytes>) -> Self {
        Self {
            object: object.deleted(),
            window: Window::NEVER,
        }
    }
}

/// An operation on an object that expires, with what clocks can have shown.
pub struct Timed<'a> {
    exchange: &'a Exchange,
    /// All deadlines up to this were past while it was under way.
    past: u64,
    /// The owner's clock showed at least this.
    earliest: u64,
    /// And at most this.
    latest: u64,
}

impl core::fmt::Display for Timed<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self {
            exchange,
            past,
            earliest,
            latest,
        } = self;
        write!(f, "{exchange}, clocks {earliest} to {latest}, past {past}")
    }
}

impl Operation for Timed<'_> {
    type Object = Mortal;

    fn times(&self) -> (u64, u64) {
        self.exchange.times()
    }

    fn end(&self) -> End {
        self.exchange.end()
    }

    fn after(&self, mortal: &Mortal) -> Option<Mortal> {
        match &self.exchange.answer {
            Answer::Given(outcome) => self.after_answer(mortal, outcome),
            Answer::Unknown => self.after_unknown(mortal),
            Answer::NotDone => None,
        }
    }
}

impl<'a> Timed<'a> {
    /// The operation, with what clocks can have shown while it was under way.
    #[must_use]
    pub fn new(exchange: &'a Exchange, clocks: &Clocks) -> Self {
        // It may take effect at any later time.
        let is_open = exchange.effect_end() == u64::MAX;
        let (until, latest) = match is_open {
            true => (Duration::MAX, Window::END),
            false => (exchange.until, clocks.latest(exchange.until)),
        };
        Self {
            exchange,
            past: clocks.past(exchange.at, exchange.until),
            earliest: clocks.earliest(exchange.at, until),
            latest,
        }
    }

    /// The object that it met, if that had this version (0: nothing).
    fn met(&self, mortal: &Mortal, version: u64) -> Option<Mortal> {
        let Mortal { object, window } = mortal;
        if version == 0 {
            let may_be_gone = object.content.is_none() || window.first <= self.latest;
            return may_be_gone.then(|| Mortal::gone(object));
        }
        let living = Window {
            first: self.past.saturating_add(1),
            last: Window::END,
        };
        Some(Mortal {
            object: object.known(version)?,
            window: window.and(living)?,
        })
    }

    /// The deadline that it gives to an object which had `window`.
    fn deadline(&self, lifetime: Lifetime, window: Window) -> Window {
        match lifetime {
            Lifetime::Keep => window,
            Lifetime::Endless => Window::NEVER,
            Lifetime::Until(deadline) => Window::exactly(deadline.ms()),
            Lifetime::For(ms) => Window {
                first: self.earliest.saturating_add(ms),
                last: self.latest.saturating_add(ms),
            },
        }
    }

    fn after_answer(&self, mortal: &Mortal, outcome: &Outcome) -> Option<Mortal> {
        let version = match outcome {
            Outcome::Written { replaced, .. } => replaced.0,
            Outcome::Unchanged { version, .. }
            | Outcome::Deleted { version, .. }
            | Outcome::Rejected { version, .. } => version.0,
            // Nothing is asked for here that may be refused.
            Outcome::Refused(_) | Outcome::Together { .. } => return None,
        };
        let met = self.met(mortal, version)?;
        let window = match &self.exchange.request {
            Request::Get { want, .. } => {
                if let Want::Deadline | Want::TimeLeft = want {
                    return self.after_times(met, outcome);
                }
                met.window
            }
            Request::Mutate { change, .. } => {
                let lifetime = self.exchange.request.mutation(b"")?.lifetime;
                let window = self.deadline(lifetime, met.window);
                if let Change::Touch(when) = change {
                    return self.after_touch(met, *when, window, outcome);
                }
                match outcome {
                    Outcome::Written { .. } => window,
                    Outcome::Deleted { .. } => Window::NEVER,
                    Outcome::Unchanged { .. }
                    | Outcome::Rejected { .. }
                    | Outcome::Refused(_)
                    | Outcome::Together { .. } => met.window,
                }
            }
        };
        let object = self.exchange.after_answer(&met.object, outcome)?;
        Some(Mortal { object, window })
    }

    /// After a read of the deadline.
    fn after_times(&self, met: Mortal, outcome: &Outcome) -> Option<Mortal> {
        let condition = self.exchange.request.condition();
        let version = met
            .object
            .content
            .as_ref()
            .map_or(0, |_| met.object.version);
        let (told, output) = match outcome {
            Outcome::Unchanged { output, .. } => (true, output),
            Outcome::Rejected { output, .. } => (false, output),
            Outcome::Written { .. }
            | Outcome::Deleted { .. }
            | Outcome::Refused(_)
            | Outcome::Together { .. } => return None,
        };
        if told != condition.holds(version) {
            return None;
        }
        match output {
            Output::Nothing if !told || version == 0 => Some(met),
            Output::Integer(told) if version > 0 => {
                let window = met.window.and(self.told(*told)?)?;
                Some(Mortal { window, ..met })
            }
            Output::Nothing | Output::Bytes(_) | Output::Integer(_) | Output::Integers(_) => None,
        }
    }

    /// The deadline that an answer to [`Want::Deadline`] or [`Want::TimeLeft`] tells.
    fn told(&self, number: i64) -> Option<Window> {
        if number == -1 {
            return Some(Window::NEVER);
        }
        let number = u64::try_from(number).ok()?;
        let is_left = matches!(
            self.exchange.request,
            Request::Get {
                want: Want::TimeLeft,
                ..
            }
        );
        Some(match is_left {
            // An object without time left may still be shown: see `Now`.
            true if number == 0 => Window {
                first: 0,
                last: self.latest,
            },
            true => Window {
                first: self.earliest.saturating_add(number),
                last: self.latest.saturating_add(number),
            },
            false => Window::exactly(number),
        })
    }

    /// After a change of the deadline alone.
    fn after_touch(
        &self,
        met: Mortal,
        when: TouchIf,
        new: Window,
        outcome: &Outcome,
    ) -> Option<Mortal> {
        let request = &self.exchange.request;
        let mutation = request.mutation(b"")?;
        let version = met
            .object
            .content
            .as_ref()
            .map_or(0, |_| met.object.version);
        let goes = request.condition().holds(version) && self.has_expected(&met.object);
        if let Outcome::Rejected { output, .. } = outcome {
            return (!goes && *output == self.old(&met.object)).then_some(met);
        }
        let output = |done: bool| match mutation.returns_old {
            true => self.old(&met.object),
            false => Output::Integer(i64::from(done)),
        };
        let keeps = mutation.lifetime == Lifetime::Keep;
        let (sure, possible) = match mutation.lifetime {
            _ if version == 0 || keeps => (false, false),
            // Where there is no deadline, none is taken away.
            Lifetime::Endless => {
                let (bounded, may_be) = met.window.is_bounded();
                let (sure, possible) = met.window.allows(when, new);
                (sure && bounded, possible && may_be)
            }
            Lifetime::Keep | Lifetime::Until(_) | Lifetime::For(_) => met.window.allows(when, new),
        };
        let (over, may_be_over) = (new.last <= self.earliest, new.first <= self.latest);
        let now = matches!(mutation.lifetime, Lifetime::For(0));
        match outcome {
            _ if !goes => None,
            Outcome::Unchanged { output: told, .. } => {
                (!sure && *told == output(false)).then_some(met)
            }
            Outcome::Written {
                version,
                output: told,
                ..
            } => {
                let fits = possible && !over && !now && *told == output(true);
                let content = met.object.content.clone()?;
                let object = met.object.put(content, version.0).filter(|_| fits)?;
                Some(Mortal {
                    object,
                    window: new,
                })
            }
            Outcome::Deleted { output: told, .. } => {
                let is_relative = matches!(mutation.lifetime, Lifetime::For(_));
                let may_be_over = if is_relative { now } else { may_be_over };
                let fits = possible && may_be_over && *told == output(true);
                fits.then(|| Mortal::gone(&met.object))
            }
            Outcome::Rejected { .. } | Outcome::Refused(_) | Outcome::Together { .. } => None,
        }
    }

    fn old(&self, object: &Object<Bytes>) -> Output {
        match (&self.exchange.request, &object.content) {
            (
                Request::Mutate {
                    returns_old: true, ..
                },
                Some(value),
            ) => Output::Bytes(value.clone()),
            (Request::Mutate { .. } | Request::Get { .. }, _) => Output::Nothing,
        }
    }

    fn has_expected(&self, object: &Object<Bytes>) -> bool {
        match &self.exchange.request {
            Request::Mutate {
                value_is: Some(expected),
                ..
            } => object.content.as_ref() == Some(expected),
            Request::Mutate { .. } | Request::Get { .. } => true,
        }
    }

    /// The object after a mutation took effect whose reply nobody got; `None` when it has none
    /// here. Whether the object had expired before is not known: what follows fits both.
    fn after_unknown(&self, mortal: &Mortal) -> Option<Mortal> {
        let Mortal { object, window } = mortal;
        let request = &self.exchange.request;
        let lifetime = request.mutation(b"")?.lifetime;
        if let Request::Mutate {
            change: Change::Touch(when),
            ..
        } = request
        {
            let new = self.deadline(lifetime, *window);
            let held = object.held(Some(request.condition()))?;
            held.content.as_ref()?;
            let possible = self.has_expected(object) && window.allows(*when, new).1;
            // Whether it made a version or deleted the last one is open.
            let touched = Object {
                exact: false,
                ..held
            };
            let first = if new.first <= self.latest {
                0
            } else {
                new.first
            };
            return possible.then_some(Mortal {
                object: touched,
                window: Window { first, ..new },
            });
        }
        let there = self.exchange.after_unknown(object).map(|after| Mortal {
            window: match after.content {
                Some(_) => self.deadline(lifetime, *window),
                None => Window::NEVER,
            },
            object: after,
        });
        let may_be_gone = object.content.is_some() && window.first <= self.latest;
        let gone = may_be_gone.then(|| Mortal::gone(object)).and_then(|gone| {
            let after = self.exchange.after_unknown(&gone.object)?;
            let window = self.deadline(lifetime, Window::NEVER);
            Some(Mortal {
                object: after,
                window,
            })
        });
        match (there, gone) {
            (Some(there), Some(gone)) => Some(Mortal {
                window: there.window.or(gone.window),
                // The lower version of both is possible.
                object: Object {
                    version: there.object.version.min(gone.object.version),
                    ..there.object
                },
            }),
            (there, gone) => there.or(gone),
        }
    }
}

/// A version that somebody made with a lifetime.
struct Made<'a> {
    window: Window,
    exchange: &'a Exchange,
}

/// No version is seen after its deadline, and none is missing before it, unless somebody removed
/// it. Words about a deadline fit, and are the same each time.
pub(super) fn expires_in_time(subject: &Subject<'_>, clocks: &Clocks) -> Vec<Violation> {
    if subject.key.kind != KeyKind::Volatile {
        return Vec::new();
    }
    let timed: Vec<Timed<'_>> = { subject.key.exchanges.iter() }
        .map(|exchange| Timed::new(exchange, clocks))
        .collect();
    let mut made: BTreeMap<u64, Made<'_>> = BTreeMap::new();
    for one in &timed {
        if let (Answer::Given(Outcome::Written { version, .. }), Some(mutation)) =
            (&one.exchange.answer, one.exchange.request.mutation(b""))
            && mutation.lifetime != Lifetime::Keep
        {
            let window = one.deadline(mutation.lifetime, Window::NEVER);
            let exchange = one.exchange;
            made.insert(version.0, Made { window, exchange });
        }
    }
    let complain = |message: &str, evidence: &[&Exchange]| {
        vec![Violation {
            check: Check::ExpiresInTime,
            message: format!("key {}: {message}", subject.key.name),
            evidence: evidence.iter().map(ToString::to_string).collect(),
        }]
    };
    let mut told: BTreeMap<u64, (i64, &Exchange)> = BTreeMap::new();
    for one in &timed {
        let Some((version, number)) = seen(one.exchange) else {
            continue;
        };
        if version == 0 {
            let early = made.values().find(|made| {
                made.exchange.returned < one.exchange.invoked
                    && made.window.first > one.latest
                    && !removed(subject, made.exchange, one.exchange)
            });
            if let Some(early) = early {
                let evidence = [early.exchange, one.exchange];
                return complain("it is gone before its deadline", &evidence);
            }
            continue;
        }
        if let Some(made) = made.get(&version)
            && made.window.last <= one.past
        {
            let evidence = [made.exchange, one.exchange];
            return complain("it is there after its deadline", &evidence);
        }
        let Some(number) = number else { continue };
        let window = one.told(number);
        if let (Some(made), Some(window)) = (made.get(&version), window)
            && made.window.and(window).is_none()
        {
            let evidence = [made.exchange, one.exchange];
            return complain("it is told another deadline", &evidence);
        }
        if let Request::Get {
            want: Want::Deadline,
            ..
        } = one.exchange.request
        {
            let (known, first) = *told.entry(version).or_insert((number, one.exchange));
            if known != number {
                return complain("a version has two deadlines", &[first, one.exchange]);
            }
        }
    }
    Vec::new()
}

/// The version that was there (0: none), and what was told of its deadline.
fn seen(exchange: &Exchange) -> Option<(u64, Option<i64>)> {
    let Answer::Given(outcome) = &exchange.answer else {
        return None;
    };
    let version = match outcome {
        Outcome::Written { replaced, .. } => replaced.0,
        Outcome::Unchanged { version, .. }
        | Outcome::Deleted { version, .. }
        | Outcome::Rejected { version, .. } => version.0,
        Outcome::Refused(_) | Outcome::Together { .. } => return None,
    };
    let number = match (&exchange.request, outcome) {
        (
            Request::Get {
                want: Want::Deadline | Want::TimeLeft,
                ..
            },
            Outcome::Unchanged {
                output: Output::Integer(number),
                ..
            },
        ) => Some(*number),
        _ => None,
    };
    Some((version, number))
}

/// Whether some other change may have removed what `made` wrote, or replaced it, before `after`
/// ended.
fn removed(subject: &Subject<'_>, made: &Exchange, after: &Exchange) -> bool {
    subject.key.exchanges.iter().any(|other| {
        other.invoked != made.invoked
            && other.invoked != after.invoked
            && other.may_change()
            && other.effect_end() > made.invoked
            && other.invoked < after.returned
    })
}
