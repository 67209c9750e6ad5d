//! What one object is allowed to do: the sequential specification behind the linearizability
//! checker.

use crate::history::{Action, Condition, Content, Outcome, Plain};

/// One object at one moment, with what a checker knows of its value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Object<C = Content> {
    /// Its value; `None`: there is no object.
    pub content: Option<C>,
    /// Its version; without an object, the highest version it ever had as far as is known.
    pub version: u64,
    /// Whether `version` is exact. Otherwise it is the least that is possible: an operation whose
    /// reply nobody got has made it.
    pub exact: bool,
}

impl<C> Default for Object<C> {
    fn default() -> Self {
        Self {
            content: None,
            version: 0,
            exact: true,
        }
    }
}

impl<C: Clone> Object<C> {
    /// A key that nobody has used yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the object may have this version (0: may be missing).
    fn may_be(&self, version: u64) -> bool {
        match (&self.content, self.exact) {
            (None, _) => version == 0,
            (Some(_), true) => version == self.version,
            (Some(_), false) => version >= self.version,
        }
    }

    /// The object, known to have this version.
    pub(super) fn known(&self, version: u64) -> Option<Self> {
        if !self.may_be(version) {
            return None;
        }
        Some(match self.content {
            None => self.clone(),
            Some(_) => Self {
                version,
                exact: true,
                content: self.content.clone(),
            },
        })
    }

    /// The object, known to fulfil this condition; `None`: it cannot.
    pub(super) fn held(&self, condition: Option<Condition>) -> Option<Self> {
        let Some(condition) = condition else {
            return Some(self.clone());
        };
        if self.content.is_none() || self.exact {
            let version = self.content.as_ref().map_or(0, |_| self.version);
            return condition.holds(version).then(|| self.clone());
        }
        if let Some(version) = condition.is {
            return self.known(version).filter(|_| condition.holds(version));
        }
        let mut version = self.version.max(condition.at_least.unwrap_or(0));
        if condition.is_not == Some(version) {
            version += 1;
        }
        (!condition.absent).then(|| Self {
            version,
            ..self.clone()
        })
    }

    /// Whether the condition holds, whichever version it has of those that are possible.
    fn surely_holds(&self, condition: Condition) -> bool {
        if self.content.is_none() || self.exact {
            return self.held(Some(condition)).is_some();
        }
        !condition.absent
            && condition.is.is_none()
            && condition.is_not.is_none_or(|v| v < self.version)
            && condition.at_least.is_none_or(|v| v <= self.version)
    }

    /// The object after a write that gave it this version.
    pub(super) fn put(&self, content: C, version: u64) -> Option<Self> {
        (version > self.version).then_some(Self {
            content: Some(content),
            version,
            exact: true,
        })
    }

    /// The object after a write that gave it a higher version, which nobody was told.
    pub(super) fn put_blindly(&self, content: C) -> Self {
        Self {
            content: Some(content),
            version: self.version + 1,
            exact: false,
        }
    }

    /// The key after a delete.
    pub(super) fn deleted(&self) -> Self {
        Self {
            content: None,
            ..self.clone()
        }
    }
}

impl Object {
    fn number(&self) -> Option<i64> {
        match self.content {
            None => Some(0),
            Some(Content::Number(number)) => Some(number),
            Some(Content::Empty | Content::Bytes(_) | Content::Hash(_) | Content::Damaged(_)) => {
                None
            }
        }
    }

    /// The object after an operation that ended so; `None`: it cannot have ended so here.
    #[must_use]
    pub fn after(&self, action: Action, outcome: Outcome) -> Option<Self> {
        let condition = action.condition();
        let holds = |version| condition.is_none_or(|c| c.holds(version));
        match (action, outcome) {
            (Action::Read | Action::ReadIf { .. }, Outcome::Found { version, content }) => {
                holds(version).then_some(())?;
                self.known(version).filter(|o| o.content == Some(content))
            }
            (Action::Read | Action::ReadIf { .. }, Outcome::Missing) => {
                holds(0).then_some(())?;
                self.known(0)
            }
            (Action::Write { content, .. }, Outcome::Wrote { version, replaced }) => {
                holds(replaced).then_some(())?;
                self.known(replaced)?.put(content, version)
            }
            (Action::Delete { .. }, Outcome::Deleted { version }) => {
                holds(version).then_some(())?;
                Some(self.known(version)?.deleted())
            }
            (Action::Add { by, .. }, Outcome::Added { version, sum }) => {
                let correct = self.number()?.checked_add(by) == Some(sum);
                correct.then_some(())?;
                self.held(condition)?.put(Content::Number(sum), version)
            }
            (_, Outcome::Rejected { version }) => {
                (!condition?.holds(version)).then_some(())?;
                self.known(version)
            }
            (_, Outcome::Plain(plain)) => self.after_plain(action, plain),
            (_, Outcome::Unknown) => self.after_unknown(action),
            // What was not done has no place in the order; the rest are wrong answers.
            (
                Action::Read
                | Action::ReadIf { .. }
                | Action::Write { .. }
                | Action::Delete { .. }
                | Action::Add { .. }
                | Action::Mutate { .. },
                Outcome::Found { .. }
                | Outcome::Seen { .. }
                | Outcome::Missing
                | Outcome::Wrote { .. }
                | Outcome::Deleted { .. }
                | Outcome::Added { .. }
                | Outcome::NotDone,
            ) => None,
        }
    }

    /// [`Object::after`] an answer that tells no version.
    fn after_plain(&self, action: Action, plain: Plain) -> Option<Self> {
        match (action, plain) {
            (Action::Read, Plain::Found { content }) => {
                (self.content == Some(content)).then_some(*self)
            }
            (Action::Write { content, condition }, Plain::Wrote) => {
                Some(self.held(condition)?.put_blindly(content))
            }
            (
                Action::Write {
                    content,
                    condition: None,
                },
                Plain::Replaced { old },
            ) => (self.content == old).then(|| self.put_blindly(content)),
            (Action::Delete { condition: None }, Plain::Replaced { old }) => {
                (old.is_some() && self.content == old).then(|| self.deleted())
            }
            (Action::Delete { condition: None }, Plain::Deleted) => {
                self.content?;
                Some(self.deleted())
            }
            (Action::Add { by, condition }, Plain::Added { sum }) => {
                let correct = self.number()?.checked_add(by) == Some(sum);
                let held = self.held(condition).filter(|_| correct)?;
                Some(held.put_blindly(Content::Number(sum)))
            }
            (_, Plain::Refused) => (!self.surely_holds(action.condition()?)).then_some(*self),
            // Wrong answers.
            (
                Action::Read
                | Action::ReadIf { .. }
                | Action::Write { .. }
                | Action::Delete { .. }
                | Action::Add { .. }
                | Action::Mutate { .. },
                Plain::Found { .. }
                | Plain::Wrote
                | Plain::Replaced { .. }
                | Plain::Deleted
                | Plain::Added { .. },
            ) => None,
        }
    }

    /// The object after an operation took effect whose reply nobody got; `None` when it has none
    /// here.
    fn after_unknown(&self, action: Action) -> Option<Self> {
        let known = self.held(action.condition())?;
        Some(match action {
            // `exchanges` judges mutations.
            Action::Read | Action::ReadIf { .. } | Action::Mutate { .. } => return None,
            Action::Write { content, .. } => known.put_blindly(content),
            Action::Delete { .. } => {
                known.content?;
                known.deleted()
            }
            Action::Add { by, .. } => {
                known.put_blindly(Content::Number(known.number()?.checked_add(by)?))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Content = Content::Bytes(1);
    const B: Content = Content::Bytes(2);

    fn write(content: Content) -> Action {
        Action::Write {
            content,
            condition: None,
        }
    }

    fn add_of(by: i64) -> Action {
        Action::Add {
            by,
            condition: None,
        }
    }

    fn wrote(version: u64, replaced: u64) -> Outcome {
        Outcome::Wrote { version, replaced }
    }

    #[test]
    fn versions_grow_also_over_a_delete() {
        let object = Object::new().after(write(A), wrote(5, 0)).unwrap();
        assert_eq!(object.after(write(B), wrote(5, 5)), None);
        let delete = Action::Delete { condition: None };
        let gone = object
            .after(delete, Outcome::Deleted { version: 5 })
            .unwrap();
        assert_eq!(gone.after(write(B), wrote(5, 0)), None);
        assert!(gone.after(write(B), wrote(6, 0)).is_some());
    }

    #[test]
    fn an_unknown_write_gets_its_version_from_the_first_reader() {
        let object = Object::new().after(write(A), Outcome::Unknown).unwrap();
        let read = |version| {
            object.after(
                Action::Read,
                Outcome::Found {
                    version,
                    content: A,
                },
            )
        };
        assert_eq!(read(0), None);
        let seen = read(9).unwrap();
        assert!(seen.exact && seen.version == 9);
    }

    #[test]
    fn conditions_decide() {
        let object = Object::new().after(write(A), wrote(3, 0)).unwrap();
        let only_if = |version| Action::Write {
            content: B,
            condition: Some(Condition::version(version)),
        };
        assert!(object.after(only_if(3), wrote(4, 3)).is_some());
        assert_eq!(object.after(only_if(2), wrote(4, 3)), None);
        assert_eq!(object.after(only_if(2), Outcome::Unknown), None);
        let rejected = Outcome::Rejected { version: 3 };
        assert!(object.after(only_if(2), rejected).is_some());
        assert_eq!(object.after(only_if(3), rejected), None);
        assert_eq!(object.after(write(B), rejected), None);
    }

    #[test]
    fn answers_without_versions_fix_contents_and_leave_versions_open() {
        let plain = |object: Object, action, plain| object.after(action, Outcome::Plain(plain));
        let refused = |object, action| plain(object, action, Plain::Refused);
        let new = Action::Write {
            content: B,
            condition: Some(Condition::version(0)),
        };
        let old = plain(Object::new(), write(A), Plain::Wrote).unwrap();
        assert!(plain(old, Action::Read, Plain::Found { content: A }).is_some());
        assert_eq!(plain(old, Action::Read, Plain::Found { content: B }), None);
        assert_eq!(plain(old, new, Plain::Wrote), None);
        assert!(refused(old, new).is_some());
        assert_eq!(refused(Object::new(), new), None);
        assert_eq!(plain(old, write(B), Plain::Replaced { old: None }), None);
        let swapped = plain(old, write(B), Plain::Replaced { old: Some(A) }).unwrap();
        // Two writes: at least version 2.
        let found = |version| Outcome::Found {
            version,
            content: B,
        };
        assert_eq!(swapped.after(Action::Read, found(1)), None);
        assert!(swapped.after(Action::Read, found(2)).is_some());
        let delete = Action::Delete { condition: None };
        let taken = |old| plain(swapped, delete, Plain::Replaced { old });
        assert!(taken(Some(B)).is_some());
        assert_eq!((taken(Some(A)), taken(None)), (None, None));
        let gone = plain(swapped, delete, Plain::Deleted).unwrap();
        assert_eq!(plain(gone, delete, Plain::Deleted), None);
        assert_eq!(gone.after(write(A), wrote(2, 0)), None);
        let add = |sum| plain(gone, add_of(4), Plain::Added { sum });
        assert!(add(4).is_some() && add(5).is_none());
    }

    #[test]
    fn sums_are_exact() {
        let one = Object::new()
            .after(add_of(1), Outcome::Added { version: 1, sum: 1 })
            .unwrap();
        let three = Outcome::Added { version: 2, sum: 3 };
        assert!(one.after(add_of(2), three).is_some());
        assert_eq!(one.after(add_of(3), three), None);
    }

    /// Every rule alone, and what it says of no object, of version 3 and of version 5.
    #[test]
    fn each_rule_says_what_goes_ahead_and_what_an_open_version_may_be() {
        let any = Condition::default();
        let rules = [
            (any, [true, true, true]),
            (
                Condition {
                    absent: true,
                    ..any
                },
                [true, false, false],
            ),
            (
                Condition {
                    present: true,
                    ..any
                },
                [false, true, true],
            ),
            (Condition { is: Some(3), ..any }, [true, true, false]),
            (
                Condition {
                    is_not: Some(3),
                    ..any
                },
                [true, false, true],
            ),
            (
                Condition {
                    at_least: Some(4),
                    ..any
                },
                [true, false, true],
            ),
            (Condition::version(5), [false, false, true]),
            (Condition::version(0), [true, false, false]),
        ];
        let open = |version| Object {
            content: Some(A),
            version,
            exact: false,
        };
        for (condition, expected) in rules {
            let read = Action::ReadIf { condition };
            let objects = [0, 3, 5].map(|version| match version {
                0 => Object::new(),
                _ => Object {
                    exact: true,
                    ..open(version)
                },
            });
            for ((object, version), goes) in objects.into_iter().zip([0, 3, 5]).zip(expected) {
                let found = match version {
                    0 => Outcome::Missing,
                    _ => Outcome::Found {
                        version,
                        content: A,
                    },
                };
                let answered = object.after(read, found).is_some();
                let rejected = object.after(read, Outcome::Rejected { version }).is_some();
                let shown = (answered, rejected, object.surely_holds(condition));
                assert_eq!(shown, (goes, !goes, goes), "{condition} at {version}");
                assert_eq!(object.held(Some(condition)).is_some(), goes, "{condition}");
            }
            // Of an object of version 3 or more, nothing is sure that a version decides.
            let object = open(3);
            let sure = expected[1] && expected[2];
            assert_eq!(object.surely_holds(condition), sure, "{condition}");
            let may = expected[1] || expected[2];
            assert_eq!(object.held(Some(condition)).is_some(), may, "{condition}");
        }
        // What is known of an open version afterwards.
        let least = |condition| open(3).held(Some(condition)).expect("it may hold");
        let from = |at_least| Condition {
            at_least: Some(at_least),
            ..any
        };
        assert_eq!(least(from(7)), open(7));
        assert_eq!(least(from(2)), open(3));
        let not = |version| Condition {
            is_not: Some(version),
            ..any
        };
        assert_eq!((least(not(3)), least(not(4))), (open(4), open(3)));
        assert!(least(Condition::version(9)).exact);
        assert_eq!(open(3).held(Some(Condition::version(2))), None);
    }
}
