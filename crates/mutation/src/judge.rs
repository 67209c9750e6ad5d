//! Judges a mutation or a read by the object that it names.

use crate::compute::{self, NewValue, Step};
use crate::value::{Get, Mutation, Outcome, Output, Projection};
use pluvio_units::ObjectVersion;

/// An object as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Current<'a> {
    /// Its version; never 0.
    pub version: ObjectVersion,
    /// Its value.
    pub value: &'a [u8],
}

/// The decision on a mutation.
#[derive(PartialEq, Eq, Debug)]
pub enum Verdict<'m> {
    /// Write this value; the outcome has this output.
    Put(NewValue<'m>, Output),
    /// Delete the object, which exists; the outcome has this output.
    Delete(Output),
    /// Change nothing; this is the outcome.
    Keep(Outcome),
}

/// Decides what is done to an object, and the outcome of that.
///
/// 1. The reject rules are judged.
/// 2. The value is compared with the expected one.
/// 3. The change is computed.
#[inline]
pub fn judge<'m>(mutation: &Mutation<'m>, current: Option<Current<'_>>) -> Verdict<'m> {
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
    match compute::change(&mutation.change, current.map(|current| current.value)) {
        Ok(Step::Put(value, output)) => match mutation.returns_old {
            true => Verdict::Put(value, old()),
            false => Verdict::Put(value, output),
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

/// The outcome of a read.
#[inline]
pub fn look(get: &Get<'_>, current: Option<Current<'_>>) -> Outcome {
    let version = current.map_or(ObjectVersion(0), |current| current.version);
    if get.rules.reject(current.map(|current| current.version)) {
        let output = Output::Nothing;
        return Outcome::Rejected { version, output };
    }
    let output = match (current, get.projection) {
        (Some(current), projection) => compute::project(&projection, current.value),
        // Behind the end of nothing, too, everything is 0.
        (None, Projection::BitPosition { bit, .. }) => Output::Integer(if bit { -1 } else { 0 }),
        (
            None,
            projection @ (Projection::Length | Projection::Bits(_) | Projection::BitCount(_)),
        ) => compute::project(&projection, &[]),
        (None, Projection::Value | Projection::Nothing | Projection::Range(_)) => Output::Nothing,
    };
    Outcome::Unchanged { version, output }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{Change, RejectRules};
    use pluvio_units::TableId;

    const HELD: Option<Current<'static>> = Some(Current {
        version: ObjectVersion(7),
        value: b"held",
    });

    fn put<'m>() -> Mutation<'m> {
        Mutation::new(TableId(1), b"k", Change::Put(b"new".as_slice().into()))
    }

    #[test]
    fn a_value_that_is_expected_is_compared_and_absence_is_no_value() {
        let expecting = |value| Mutation {
            value_is: Some(value),
            ..put()
        };
        assert!(matches!(judge(&expecting(b"held"), HELD), Verdict::Put(..)));
        for (mutation, current, version) in [
            (expecting(b"other"), HELD, ObjectVersion(7)),
            (expecting(b""), None, ObjectVersion(0)),
        ] {
            let output = Output::Nothing;
            let rejected = Outcome::Rejected { version, output };
            assert_eq!(judge(&mutation, current), Verdict::Keep(rejected));
        }
    }

    #[test]
    fn the_old_value_comes_with_writes_deletes_and_rejections() {
        let held = || Output::Bytes(b"held".as_slice().into());
        let old = Mutation {
            returns_old: true,
            ..put()
        };
        assert!(matches!(judge(&old, HELD), Verdict::Put(_, output) if output == held()));
        assert!(matches!(
            judge(&old, None),
            Verdict::Put(_, Output::Nothing)
        ));
        let delete = Mutation {
            change: Change::Delete,
            ..old
        };
        assert_eq!(judge(&delete, HELD), Verdict::Delete(held()));
        let rejected = Mutation {
            rules: RejectRules::EXISTS,
            ..old
        };
        let (version, output) = (ObjectVersion(7), held());
        let expected = Verdict::Keep(Outcome::Rejected { version, output });
        assert_eq!(judge(&rejected, HELD), expected);
    }

    #[test]
    fn what_is_computed_from_an_absent_value_is_what_redis_says() {
        let get = |projection| Get {
            projection,
            ..Get::new(TableId(1), b"k")
        };
        let output = |projection| look(&get(projection), None).into_output();
        let span = crate::Span::ALL;
        let position = |bit| Projection::BitPosition { bit, span };
        assert_eq!(output(position(false)), Output::Integer(0));
        assert_eq!(output(position(true)), Output::Integer(-1));
        assert_eq!(output(Projection::Length), Output::Integer(0));
        assert_eq!(output(Projection::BitCount(span)), Output::Integer(0));
        assert_eq!(output(Projection::Value), Output::Nothing);
    }
}
