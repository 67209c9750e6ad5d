//! Transactions of one owner: several operations that are done together or not at all.
//!
//! The owner of all the keys locks them, makes a [`Draft`] of each, and does the steps one after
//! the other on the drafts. It appends the drafts as they are in the end, in one group.
//!
//! - DRAFT-1: a step sees what the steps before it did, and nothing of it is seen by others.
//! - DRAFT-2: all writes of one object in one transaction give it one version: only the last of
//!   them is ever there.
//!
//! Pure functions and plain values; any thread. Not here: locks, appends (crate `store`).

use crate::compute::NewValue;
use crate::judge::{Current, Now, Verdict, judge, look};
use crate::value::{Get, Mutation, Outcome, Projection, RejectRules};
use pluvio_units::{Deadline, KeyHash, ObjectVersion, TableId};

/// Most steps of a transaction.
pub const TRANSACTION_STEPS_MAX: usize = 4096;

/// A read or a change of one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation<'a> {
    /// A read.
    Get(Get<'a>),
    /// A change.
    Mutate(Mutation<'a>),
}

impl<'a> Operation<'a> {
    /// The read that it is.
    #[must_use]
    pub fn get(&self) -> Option<Get<'a>> {
        match self {
            Self::Get(get) => Some(*get),
            Self::Mutate(_) => None,
        }
    }

    /// The change that it is.
    #[must_use]
    pub fn mutation(&self) -> Option<Mutation<'a>> {
        match self {
            Self::Get(_) => None,
            Self::Mutate(mutation) => Some(*mutation),
        }
    }

    /// Its table.
    #[must_use]
    pub fn table(&self) -> TableId {
        match self {
            Self::Get(get) => get.table,
            Self::Mutate(mutation) => mutation.table,
        }
    }

    /// Its key.
    #[must_use]
    pub fn key(&self) -> &'a [u8] {
        match self {
            Self::Get(get) => get.key,
            Self::Mutate(mutation) => mutation.key,
        }
    }

    /// The hash of its key, where this process has computed it.
    #[must_use]
    pub fn hash(&self) -> Option<KeyHash> {
        match self {
            Self::Get(get) => get.hash,
            Self::Mutate(mutation) => mutation.hash,
        }
    }

    /// The same of a table and a key with this hash.
    #[must_use]
    pub fn placed(self, table: TableId, hash: Option<KeyHash>) -> Self {
        match self {
            Self::Get(get) => Self::Get(Get { table, hash, ..get }),
            Self::Mutate(mutation) => Self::Mutate(Mutation {
                table,
                hash,
                ..mutation
            }),
        }
    }

    /// Bytes that it holds beside a fixed size.
    #[must_use]
    pub fn bulk_len(&self) -> usize {
        match self {
            Self::Get(get) => get.key.len(),
            Self::Mutate(mutation) => {
                let expected = mutation.value_is.map_or(0, <[u8]>::len);
                mutation.key.len() + expected + mutation.change.bulk_len()
            }
        }
    }
}

/// One operation of a transaction. It sees what the steps before it did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransactionStep<'a> {
    /// The read or the change. A change has no identity of its own.
    pub operation: Operation<'a>,
    /// Whether the transaction is given up when a condition of this step does not hold, or the
    /// value does not allow its change. Without it the others are done all the same.
    pub must_hold: bool,
}

impl<'a> TransactionStep<'a> {
    /// A step that may fail alone.
    #[must_use]
    pub fn new(operation: Operation<'a>) -> Self {
        Self {
            operation,
            must_hold: false,
        }
    }

    /// A step that all others depend on.
    #[must_use]
    pub fn must_hold(operation: Operation<'a>) -> Self {
        Self {
            operation,
            must_hold: true,
        }
    }

    /// A condition: the object of a key has this version; 0: there is no object.
    #[must_use]
    pub fn version_is(table: TableId, key: &'a [u8], version: ObjectVersion) -> Self {
        let rules = match version {
            ObjectVersion(0) => RejectRules::EXISTS,
            version => RejectRules::unless_version(version),
        };
        Self::must_hold(Operation::Get(Get {
            rules,
            projection: Projection::Nothing,
            ..Get::new(table, key)
        }))
    }
}

/// An object of a transaction under way: as it is, with the changes of the steps so far.
#[derive(Debug)]
pub struct Draft<'o, 'm> {
    base: Option<Current<'o>>,
    now: Now,
    next: ObjectVersion,
    state: State<'m>,
}

#[derive(PartialEq, Eq, Debug)]
enum State<'m> {
    Untouched,
    Put(NewValue<'m>, Option<Deadline>),
    Deleted,
}

/// What a transaction makes of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DraftChange<'d> {
    /// Nothing.
    Nothing,
    /// It has this value and this deadline.
    Put(&'d [u8], Option<Deadline>),
    /// There is no object any more, and there was one, which may have been past its deadline.
    Delete,
}

impl<'o, 'm> Draft<'o, 'm> {
    /// The object as it is; `next` is the version that a write gives it.
    #[must_use]
    pub fn new(base: Option<Current<'o>>, now: Now, next: ObjectVersion) -> Self {
        Self {
            base,
            now,
            next,
            state: State::Untouched,
        }
    }

    /// Does the next operation on it.
    pub fn apply(&mut self, operation: &Operation<'m>) -> Outcome {
        let mutation = match operation {
            Operation::Get(get) => return look(get, self.current(), self.now),
            Operation::Mutate(mutation) => mutation,
        };
        let current = self.current();
        let version = current
            .filter(|current| !current.is_gone(self.now))
            .map_or(ObjectVersion(0), |current| current.version);
        match judge(mutation, current, self.now) {
            Verdict::Keep(outcome) => outcome,
            Verdict::Put(value, deadline, output) => {
                self.state = State::Put(value, deadline);
                Outcome::Written {
                    version: self.next,
                    replaced: version,
                    output,
                }
            }
            Verdict::Delete(output) => {
                self.state = State::Deleted;
                Outcome::Deleted { version, output }
            }
        }
    }

    /// What became of it.
    #[must_use]
    pub fn change(&self) -> DraftChange<'_> {
        match &self.state {
            State::Put(value, deadline) => DraftChange::Put(value, *deadline),
            State::Deleted if self.base.is_some() => DraftChange::Delete,
            State::Deleted | State::Untouched => DraftChange::Nothing,
        }
    }

    /// Whether a step has changed it, be it back.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        self.state != State::Untouched
    }

    /// The version that a write gives it.
    #[must_use]
    pub fn next_version(&self) -> ObjectVersion {
        self.next
    }

    fn current(&self) -> Option<Current<'_>> {
        match &self.state {
            State::Untouched => self.base,
            State::Put(value, deadline) => Some(Current {
                version: self.next,
                value,
                deadline: *deadline,
            }),
            State::Deleted => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{Addend, Change, Lifetime, Output};

    const TABLE: TableId = TableId(1);

    fn put(value: &[u8]) -> Operation<'_> {
        Operation::Mutate(Mutation::new(TABLE, b"k", Change::Put(value.into())))
    }

    fn change(change: Change<'_>) -> Operation<'_> {
        Operation::Mutate(Mutation::new(TABLE, b"k", change))
    }

    fn held(version: u64) -> Option<Current<'static>> {
        Some(Current {
            version: ObjectVersion(version),
            value: b"5",
            deadline: Deadline::new(2000),
        })
    }

    fn draft<'m>(base: Option<Current<'static>>, now: u64) -> Draft<'static, 'm> {
        let next = base.map_or(ObjectVersion(9), |base| base.version.next());
        Draft::new(base, pluvio_units::UnixMs(now).into(), next)
    }

    // shows: DRAFT-1
    #[test]
    fn a_step_sees_what_the_steps_before_it_did() {
        let mut draft = draft(held(3), 1000);
        let add = change(Change::Add(Addend::Integer(2)));
        assert_eq!(*draft.apply(&add).output(), Output::Integer(7));
        assert_eq!(*draft.apply(&add).output(), Output::Integer(9));
        let read = Operation::Get(Get::new(TABLE, b"k"));
        let bytes = Output::Bytes(bytes::Bytes::from_static(b"9"));
        assert_eq!(*draft.apply(&read).output(), bytes);
        assert_eq!(
            draft.change(),
            DraftChange::Put(b"9", Deadline::new(2000)),
            "a change of the value keeps the deadline"
        );
    }

    // shows: DRAFT-2
    #[test]
    fn all_writes_of_a_transaction_give_one_version() {
        let mut draft = draft(held(3), 1000);
        let written = |replaced| Outcome::Written {
            version: ObjectVersion(4),
            replaced: ObjectVersion(replaced),
            output: Output::Nothing,
        };
        assert_eq!(draft.apply(&put(b"a")), written(3));
        assert_eq!(draft.apply(&put(b"b")), written(4));
        let deleted = Outcome::Deleted {
            version: ObjectVersion(4),
            output: Output::Nothing,
        };
        assert_eq!(draft.apply(&change(Change::Delete)), deleted);
        assert_eq!(draft.apply(&put(b"c")), written(0));
        assert_eq!(draft.change(), DraftChange::Put(b"c", None));
    }

    #[test]
    fn what_came_and_went_leaves_nothing() {
        let mut new = draft(None, 1000);
        let _written = new.apply(&put(b"a"));
        let _deleted = new.apply(&change(Change::Delete));
        assert_eq!(new.change(), DraftChange::Nothing);
        // An object past its deadline is there for the log.
        let mut gone = draft(held(3), 3000);
        let rejected = Operation::Mutate(Mutation {
            rules: RejectRules::ABSENT,
            ..Mutation::new(TABLE, b"k", Change::Put(b"x".as_slice().into()))
        });
        assert!(gone.apply(&rejected).is_failure());
        assert_eq!(gone.change(), DraftChange::Nothing);
        let _written = gone.apply(&put(b"a"));
        let _deleted = gone.apply(&change(Change::Delete));
        assert_eq!(gone.change(), DraftChange::Delete);
    }

    #[test]
    fn a_value_whose_deadline_is_past_at_once_is_not_seen() {
        let mut draft = draft(None, 1000);
        let until = Mutation {
            lifetime: Lifetime::Until(Deadline::new(500).expect("a deadline")),
            ..Mutation::new(TABLE, b"k", Change::Put(b"x".as_slice().into()))
        };
        let _written = draft.apply(&Operation::Mutate(until));
        let there = TransactionStep::version_is(TABLE, b"k", ObjectVersion(0));
        assert!(!draft.apply(&there.operation).is_failure());
    }
}
