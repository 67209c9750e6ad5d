//! Judges a mutation or a read by the object that it names.

use crate::compute::{self, NewValue, Step};
use crate::value::{Change, Get, Mutation, Outcome, Output, Projection, TouchIf};
use pluvio_units::{Deadline, ObjectVersion, UnixMs};

/// The time of an owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// Deadlines are judged by it: an object that is gone stays so whoever owns it next.
    pub judged: UnixMs,
    /// The owner's clock: lifetimes begin with it. Not before `judged`.
    pub shown: UnixMs,
}

impl From<UnixMs> for Now {
    fn from(now: UnixMs) -> Self {
        Self {
            judged: now,
            shown: now,
        }
    }
}

/// An object as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Current<'a> {
    /// Its version; never 0.
    pub version: ObjectVersion,
    /// Its value.
    pub value: &'a [u8],
    /// When it expires, if it does.
    pub deadline: Option<Deadline>,
}

impl Current<'_> {
    /// Whether its deadline is past.
    #[must_use]
    #[inline]
    pub fn is_gone(&self, now: Now) -> bool {
        self.deadline
            .is_some_and(|deadline| deadline.is_past(now.judged))
    }
}

/// The decision on a mutation.
#[derive(PartialEq, Eq, Debug)]
pub enum Verdict<'m> {
    /// Write this value, with this deadline; the outcome has this output.
    Put(NewValue<'m>, Option<Deadline>, Output),
    /// Delete the object, which exists; the outcome has this output.
    Delete(Output),
    /// Change nothing; this is the outcome.
    Keep(Outcome),
}

/// Decides what is done to an object, and the outcome of that. `now` counts where the object has a
/// deadline or the mutation names a time.
///
/// 1. An object whose deadline is past counts as absent.
/// 2. The reject rules are judged.
/// 3. The value is compared with the expected one.
/// 4. The change is computed, and the deadline.
#[inline]
pub fn judge<'m>(mutation: &Mutation<'m>, current: Option<Current<'_>>, now: Now) -> Verdict<'m> {
    let current = current.filter(|current| !current.is_gone(now));
    let version = current.map_or(ObjectVersion(0), |current| current.version);
    let old = || match current {
        Some(current) if mutation.returns_old => Output::Bytes(current.value.to_vec().into()),
        Some(_) | None => Output::Nothing,
    };
    let is_other = |value: &[u8]| current.is_none_or(|current| current.value != value);
    if mutation
        .rules
        .reject(current.map(|current| current.version))
        || mutation.value_is.is_some_and(is_other)
    {
        let output = old();
        return Verdict::Keep(Outcome::Rejected { version, output });
    }
    if let Change::Touch(rule) = mutation.change {
        return touch(mutation, rule, current, now);
    }
    let known = current.and_then(|current| current.deadline);
    let deadline = || mutation.lifetime.deadline(known, now.shown);
    match compute::change(&mutation.change, current.map(|current| current.value)) {
        Ok(Step::Put(value, output)) => match mutation.returns_old {
            true => Verdict::Put(value, deadline(), old()),
            false => Verdict::Put(value, deadline(), output),
        },
        Ok(Step::Delete) if current.is_none() => Verdict::Keep(Outcome::Deleted {
            version,
            output: Output::Nothing,
        }),
        Ok(Step::Delete) => Verdict::Delete(old()),
        Ok(Step::Keep(output)) => Verdict::Keep(Outcome::Unchanged { version, output }),
        Err(unfit) => Verdict::Keep(Outcome::Refused(unfit)),
    }
}

/// Decides what [`Change::Touch`] does.
fn touch<'m>(
    mutation: &Mutation<'m>,
    rule: TouchIf,
    current: Option<Current<'_>>,
    now: Now,
) -> Verdict<'m> {
    let output = |done: bool| match (mutation.returns_old, current) {
        (true, Some(current)) => Output::Bytes(current.value.to_vec().into()),
        (true, None) => Output::Nothing,
        (false, _) => Output::Integer(i64::from(done)),
    };
    let kept = |version| {
        Verdict::Keep(Outcome::Unchanged {
            version,
            output: output(false),
        })
    };
    let Some(Current {
        version,
        value,
        deadline: known,
    }) = current
    else {
        return kept(ObjectVersion(0));
    };
    let deadline = mutation.lifetime.deadline(known, now.shown);
    if deadline == known && !mutation.lifetime.is_bounded() || !rule.allows(known, deadline) {
        return kept(version);
    }
    // A delete is one for good, whatever may be judged.
    if deadline.is_some_and(|deadline| deadline.is_past(now.shown)) {
        return Verdict::Delete(output(true));
    }
    Verdict::Put(NewValue::Built(value.to_vec()), deadline, output(true))
}

/// The outcome of a read at that time.
#[inline]
pub fn look(get: &Get<'_>, current: Option<Current<'_>>, now: Now) -> Outcome {
    let current = current.filter(|current| !current.is_gone(now));
    let version = current.map_or(ObjectVersion(0), |current| current.version);
    if get.rules.reject(current.map(|current| current.version)) {
        let output = Output::Nothing;
        return Outcome::Rejected { version, output };
    }
    let time = |ms: Option<u64>| {
        let ms = ms.and_then(|ms| i64::try_from(ms).ok());
        Output::Integer(ms.unwrap_or(-1))
    };
    let output = match (current, get.projection) {
        (Some(current), Projection::Deadline) => time(current.deadline.map(Deadline::ms)),
        (Some(current), Projection::TimeLeft) => {
            time(current.deadline.map(|deadline| deadline.left(now.shown)))
        }
        (Some(current), projection) => compute::project(&projection, current.value),
        // Behind the end of nothing, too, everything is 0.
        (None, Projection::BitPosition { bit, .. }) => Output::Integer(if bit { -1 } else { 0 }),
        (
            None,
            projection @ (Projection::Length | Projection::Bits(_) | Projection::BitCount(_)),
        ) => compute::project(&projection, &[]),
        (
            None,
            Projection::Value
            | Projection::Nothing
            | Projection::Range(_)
            | Projection::Deadline
            | Projection::TimeLeft,
        ) => Output::Nothing,
    };
    Outcome::Unchanged { version, output }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{Lifetime, RejectRules};
    use pluvio_units::TableId;

    const HELD: Option<Current<'static>> = Some(Current {
        version: ObjectVersion(7),
        value: b"held",
        deadline: None,
    });
    /// The time, unless a test says another.
    const NOW: Now = Now {
        judged: UnixMs(1000),
        shown: UnixMs(1000),
    };

    fn held_until(ms: u64) -> Option<Current<'static>> {
        HELD.map(|held| Current {
            deadline: Deadline::new(ms),
            ..held
        })
    }

    fn put<'m>() -> Mutation<'m> {
        Mutation::new(TableId(1), b"k", Change::Put(b"new".as_slice().into()))
    }

    #[test]
    fn a_value_that_is_expected_is_compared_and_absence_is_no_value() {
        let expecting = |value| Mutation {
            value_is: Some(value),
            ..put()
        };
        assert!(matches!(
            judge(&expecting(b"held"), HELD, NOW),
            Verdict::Put(..)
        ));
        for (mutation, current, version) in [
            (expecting(b"other"), HELD, ObjectVersion(7)),
            (expecting(b""), None, ObjectVersion(0)),
        ] {
            let output = Output::Nothing;
            let rejected = Outcome::Rejected { version, output };
            assert_eq!(judge(&mutation, current, NOW), Verdict::Keep(rejected));
        }
    }

    #[test]
    fn the_old_value_comes_with_writes_deletes_and_rejections() {
        let held = || Output::Bytes(b"held".as_slice().into());
        let old = Mutation {
            returns_old: true,
            ..put()
        };
        assert!(matches!(judge(&old, HELD, NOW), Verdict::Put(_, _, output) if output == held()));
        assert!(matches!(
            judge(&old, None, NOW),
            Verdict::Put(_, _, Output::Nothing)
        ));
        let delete = Mutation {
            change: Change::Delete,
            ..old
        };
        assert_eq!(judge(&delete, HELD, NOW), Verdict::Delete(held()));
        let rejected = Mutation {
            rules: RejectRules::EXISTS,
            ..old
        };
        let (version, output) = (ObjectVersion(7), held());
        let expected = Verdict::Keep(Outcome::Rejected { version, output });
        assert_eq!(judge(&rejected, HELD, NOW), expected);
    }

    #[test]
    fn what_is_computed_from_an_absent_value_is_what_redis_says() {
        let get = |projection| Get {
            projection,
            ..Get::new(TableId(1), b"k")
        };
        let output = |projection| look(&get(projection), None, NOW).into_output();
        let span = crate::Span::ALL;
        let position = |bit| Projection::BitPosition { bit, span };
        assert_eq!(output(position(false)), Output::Integer(0));
        assert_eq!(output(position(true)), Output::Integer(-1));
        assert_eq!(output(Projection::Length), Output::Integer(0));
        assert_eq!(output(Projection::BitCount(span)), Output::Integer(0));
        assert_eq!(output(Projection::Value), Output::Nothing);
    }
    #[test]
    fn an_object_whose_deadline_is_past_is_absent_to_every_rule_and_read() {
        let gone = held_until(1000);
        let get = |projection| Get {
            projection,
            ..Get::new(TableId(1), b"k")
        };
        let absent = |output| Outcome::Unchanged {
            version: ObjectVersion(0),
            output,
        };
        assert_eq!(
            look(&get(Projection::Value), gone, NOW),
            absent(Output::Nothing)
        );
        assert_eq!(
            look(&get(Projection::TimeLeft), gone, NOW),
            absent(Output::Nothing)
        );
        assert_eq!(
            look(&get(Projection::Length), gone, NOW),
            absent(Output::Integer(0))
        );
        let new = Mutation {
            rules: RejectRules::EXISTS,
            returns_old: true,
            ..put()
        };
        assert!(matches!(
            judge(&new, gone, NOW),
            Verdict::Put(_, None, Output::Nothing)
        ));
        let there = Mutation {
            rules: RejectRules::ABSENT,
            ..put()
        };
        let (version, output) = (ObjectVersion(0), Output::Nothing);
        let rejected = Verdict::Keep(Outcome::Rejected { version, output });
        assert_eq!(judge(&there, gone, NOW), rejected);
        let delete = Mutation::new(TableId(1), b"k", Change::Delete);
        let deleted = Outcome::Deleted {
            version,
            output: Output::Nothing,
        };
        assert_eq!(judge(&delete, gone, NOW), Verdict::Keep(deleted));
        let append = Mutation::new(TableId(1), b"k", Change::Append(b"x".as_slice().into()));
        let length = Output::Integer(1);
        let value = NewValue::Given(b"x");
        assert_eq!(judge(&append, gone, NOW), Verdict::Put(value, None, length));
        // A millisecond before, it is there.
        let seen = look(&get(Projection::TimeLeft), held_until(1001), NOW);
        assert_eq!(seen.into_output(), Output::Integer(1));
        let seen = look(&get(Projection::Deadline), held_until(1001), NOW);
        assert_eq!(seen.into_output(), Output::Integer(1001));
        assert_eq!(
            look(&get(Projection::TimeLeft), HELD, NOW).into_output(),
            Output::Integer(-1)
        );
    }

    #[test]
    fn a_put_ends_a_lifetime_and_other_changes_keep_it() {
        let deadline = |mutation: &Mutation<'_>| match judge(mutation, held_until(5000), NOW) {
            Verdict::Put(_, deadline, _) => deadline.map(Deadline::ms),
            other => panic!("{other:?}"),
        };
        let append = Mutation::new(TableId(1), b"k", Change::Append(b"x".as_slice().into()));
        assert_eq!(deadline(&put()), None);
        assert_eq!(deadline(&append), Some(5000));
        for (lifetime, expected) in [
            (Lifetime::Keep, Some(5000)),
            (Lifetime::Endless, None),
            (Lifetime::For(7), Some(1007)),
            (Lifetime::Until(Deadline::new(3).unwrap()), Some(3)),
        ] {
            for mutation in [put(), append] {
                assert_eq!(
                    deadline(&Mutation {
                        lifetime,
                        ..mutation
                    }),
                    expected
                );
            }
        }
    }

    #[test]
    fn lifetimes_begin_with_the_clock_and_not_with_what_may_be_judged() {
        let behind = Now {
            judged: UnixMs(0),
            ..NOW
        };
        let lasting = Mutation {
            lifetime: Lifetime::For(7),
            ..put()
        };
        let verdict = judge(&lasting, HELD, behind);
        assert!(matches!(verdict, Verdict::Put(_, Some(at), _) if at.ms() == 1007));
        let over = Mutation {
            lifetime: Lifetime::For(0),
            ..Mutation::new(TableId(1), b"k", Change::Touch(TouchIf::Always))
        };
        let deleted = Verdict::Delete(Output::Integer(1));
        assert_eq!(judge(&over, HELD, behind), deleted);
        let left = Get {
            projection: Projection::TimeLeft,
            ..Get::new(TableId(1), b"k")
        };
        let seen = look(&left, held_until(999), behind);
        assert_eq!(seen.into_output(), Output::Integer(0));
    }

    #[test]
    fn a_touch_changes_the_deadline_alone_and_one_that_is_past_deletes() {
        let touch = |lifetime, rule| Mutation {
            lifetime,
            ..Mutation::new(TableId(1), b"k", Change::Touch(rule))
        };
        let longer = touch(Lifetime::For(9000), TouchIf::Later);
        let value = || NewValue::Built(b"held".to_vec());
        let expected = Verdict::Put(value(), Deadline::new(10_000), Output::Integer(1));
        assert_eq!(judge(&longer, held_until(5000), NOW), expected);
        let kept = |version, number| {
            Verdict::Keep(Outcome::Unchanged {
                version: ObjectVersion(version),
                output: Output::Integer(number),
            })
        };
        assert_eq!(judge(&longer, HELD, NOW), kept(7, 0));
        assert_eq!(judge(&longer, None, NOW), kept(0, 0));
        assert_eq!(judge(&longer, held_until(999), NOW), kept(0, 0));
        let endless = touch(Lifetime::Endless, TouchIf::Always);
        assert_eq!(judge(&endless, HELD, NOW), kept(7, 0));
        let expected = Verdict::Put(value(), None, Output::Integer(1));
        assert_eq!(judge(&endless, held_until(5000), NOW), expected);
        let over = touch(Lifetime::For(0), TouchIf::Always);
        assert_eq!(judge(&over, HELD, NOW), Verdict::Delete(Output::Integer(1)));
        let shown = Mutation {
            returns_old: true,
            ..endless
        };
        let held = Output::Bytes(b"held".as_slice().into());
        let output = held.clone();
        let version = ObjectVersion(7);
        let unchanged = Verdict::Keep(Outcome::Unchanged { version, output });
        assert_eq!(judge(&shown, HELD, NOW), unchanged);
        let expected = Verdict::Put(value(), None, held);
        assert_eq!(judge(&shown, held_until(5000), NOW), expected);
    }
}
