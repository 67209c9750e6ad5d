//! Whole values: the pure functions that a cluster judges mutations and reads by are the sequential
//! specification behind the linearizability checker, too.
//!
//! An error in these functions does not show here (the tests of crate `mutation` are for that).
//! What the cluster makes of them does: what is lost, done twice, done in part, or answered
//! wrongly.

use super::linear::{End, Operation};
use super::register::Object;
use crate::history::{Answer, Exchange};
use bytes::Bytes;
use pluvio_mutation::{Current, NewValue, Now, Outcome, Verdict, judge, look};
use pluvio_units::{ObjectVersion, UnixMs};

/// Objects of these histories have no deadlines: it does not matter what time it is.
const NO_TIME: Now = Now {
    judged: UnixMs(0),
    shown: UnixMs(0),
};

/// An object whose bytes are known.
pub type ValueObject = Object<Bytes>;

impl Operation for Exchange {
    type Object = ValueObject;

    fn times(&self) -> (u64, u64) {
        (self.invoked, self.returned)
    }

    fn end(&self) -> End {
        match &self.answer {
            Answer::Given(outcome) => End::Answered(match outcome {
                Outcome::Written { version, .. }
                | Outcome::Unchanged { version, .. }
                | Outcome::Deleted { version, .. }
                | Outcome::Rejected { version, .. } => version.0,
                Outcome::Refused(_) | Outcome::Together { .. } => 0,
            }),
            Answer::Unknown if !self.request.is_read() => End::Unknown,
            Answer::Unknown | Answer::NotDone => End::None,
        }
    }

    fn after(&self, object: &ValueObject) -> Option<ValueObject> {
        match &self.answer {
            Answer::Given(outcome) => self.after_answer(object, outcome),
            Answer::Unknown => self.after_unknown(object),
            Answer::NotDone => None,
        }
    }
}

impl Exchange {
    pub(super) fn after_answer(
        &self,
        object: &ValueObject,
        outcome: &Outcome,
    ) -> Option<ValueObject> {
        let met = match outcome {
            Outcome::Written { replaced, .. } => object.known(replaced.0)?,
            Outcome::Unchanged { version, .. }
            | Outcome::Deleted { version, .. }
            | Outcome::Rejected { version, .. } => object.known(version.0)?,
            // It tells no version; that it came so far says that the condition held.
            Outcome::Refused(_) => object.held(Some(self.request.condition()))?,
            // No answer to one operation.
            Outcome::Together { .. } => return None,
        };
        let current = current(&met);
        if let Some(get) = self.request.get(b"") {
            return (look(&get, current, NO_TIME) == *outcome).then_some(met);
        }
        let mutation = self.request.mutation(b"")?;
        match (judge(&mutation, current, NO_TIME), outcome) {
            (Verdict::Keep(kept), outcome) => (kept == *outcome).then_some(met),
            (
                Verdict::Put(value, _, gives),
                Outcome::Written {
                    version, output, ..
                },
            ) => (gives == *output && *version >= mutation.change.least_version())
                .then(|| met.put(shared(value), version.0))
                .flatten(),
            (Verdict::Delete(gives), Outcome::Deleted { output, .. }) => {
                (gives == *output).then(|| met.deleted())
            }
            (Verdict::Put(..) | Verdict::Delete(_), _) => None,
        }
    }

    /// The object after a mutation took effect whose reply nobody got; `None` when it has none
    /// here.
    pub(super) fn after_unknown(&self, object: &ValueObject) -> Option<ValueObject> {
        let met = object.held(Some(self.request.condition()))?;
        let mutation = self.request.mutation(b"")?;
        match judge(&mutation, current(&met), NO_TIME) {
            Verdict::Put(value, _, _) => Some(met.put_blindly(shared(value))),
            Verdict::Delete(_) => Some(met.deleted()),
            Verdict::Keep(_) => None,
        }
    }
}

fn current(object: &ValueObject) -> Option<Current<'_>> {
    object.content.as_ref().map(|value| Current {
        version: ObjectVersion(object.version),
        value,
        deadline: None,
    })
}

fn shared(value: NewValue<'_>) -> Bytes {
    match value {
        NewValue::Given(bytes) => Bytes::copy_from_slice(bytes),
        NewValue::Built(bytes) => bytes.into(),
    }
}
