//! What one object is allowed to do: the sequential specification behind the linearizability
//! checker.

use crate::history::{Action, Content, Outcome, Plain};

/// One object at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Object {
    /// Its value; `None`: there is no object.
    pub content: Option<Content>,
    /// Its version; without an object, the highest version it ever had as far as is known.
    pub version: u64,
    /// Whether `version` is exact. Otherwise it is the least that is possible: an operation whose
    /// reply nobody got has made it.
    pub exact: bool,
}

impl Object {
    /// A key that nobody has used yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            content: None,
            version: 0,
            exact: true,
        }
    }

    /// Whether the object may have this version (0: may be missing).
    fn may_be(&self, version: u64) -> bool {
        match (self.content, self.exact) {
            (None, _) => version == 0,
            (Some(_), true) => version == self.version,
            (Some(_), false) => version >= self.version,
        }
    }

    /// The object, known to have this version.
    fn known(&self, version: u64) -> Option<Self> {
        if !self.may_be(version) {
            return None;
        }
        Some(match self.content {
            None => *self,
            Some(_) => Self {
                version,
                exact: true,
                ..*self
            },
        })
    }

    fn put(&self, content: Content, version: u64) -> Option<Self> {
        (version > self.version).then_some(Self {
            content: Some(content),
            version,
            exact: true,
        })
    }

    /// The object after a write that gave it a higher version, which nobody was told.
    fn put_blindly(&self, content: Content) -> Self {
        Self {
            content: Some(content),
            version: self.version + 1,
            exact: false,
        }
    }

    fn number(&self) -> Option<i64> {
        match self.content {
            None => Some(0),
            Some(Content::Number(number)) => Some(number),
            Some(Content::Empty | Content::Bytes(_) | Content::Damaged(_)) => None,
        }
    }

    /// The object after an operation that ended so; `None`: it cannot have ended so here.
    #[must_use]
    pub fn after(&self, action: Action, outcome: Outcome) -> Option<Self> {
        match (action, outcome) {
            (Action::Read, Outcome::Found { version, content }) => {
                self.known(version).filter(|o| o.content == Some(content))
            }
            (Action::Read, Outcome::Missing) => self.known(0),
            (Action::Write { content, condition }, Outcome::Wrote { version, replaced }) => {
                if condition.is_some_and(|c| c != replaced) {
                    return None;
                }
                self.known(replaced)?.put(content, version)
            }
            (Action::Delete { condition }, Outcome::Deleted { version }) => {
                if condition.is_some_and(|c| c != version) {
                    return None;
                }
                let known = self.known(version)?;
                Some(Self {
                    content: None,
                    ..known
                })
            }
            (Action::Add { by }, Outcome::Added { version, sum }) => {
                let correct = self.number()?.checked_add(by) == Some(sum);
                correct.then_some(())?;
                self.put(Content::Number(sum), version)
            }
            (_, Outcome::Rejected { version }) => {
                let condition = action.condition()?;
                (condition != version).then_some(())?;
                self.known(version)
            }
            (_, Outcome::Plain(plain)) => self.after_plain(action, plain),
            (_, Outcome::Unknown) => self.after_unknown(action),
            // What was not done has no place in the order; the rest are wrong answers.
            (
                Action::Read | Action::Write { .. } | Action::Delete { .. } | Action::Add { .. },
                Outcome::Found { .. }
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
                let known = match condition {
                    Some(condition) => self.known(condition)?,
                    None => *self,
                };
                Some(known.put_blindly(content))
            }
            (
                Action::Write {
                    content,
                    condition: None,
                },
                Plain::Replaced { old },
            ) => (self.content == old).then(|| self.put_blindly(content)),
            (Action::Delete { condition: None }, Plain::Deleted) => {
                self.content?;
                Some(Self {
                    content: None,
                    ..*self
                })
            }
            (Action::Add { by }, Plain::Added { sum }) => {
                let correct = self.number()?.checked_add(by) == Some(sum);
                correct.then(|| self.put_blindly(Content::Number(sum)))
            }
            (Action::Write { .. } | Action::Delete { .. }, Plain::Refused) => {
                let condition = action.condition()?;
                let surely_held = self.may_be(condition) && (self.exact || condition == 0);
                (!surely_held).then_some(*self)
            }
            // Wrong answers.
            (
                Action::Read | Action::Write { .. } | Action::Delete { .. } | Action::Add { .. },
                Plain::Found { .. }
                | Plain::Wrote
                | Plain::Replaced { .. }
                | Plain::Deleted
                | Plain::Added { .. }
                | Plain::Refused,
            ) => None,
        }
    }

    /// The object after an operation took effect whose reply nobody got; `None` when it has none
    /// here.
    fn after_unknown(&self, action: Action) -> Option<Self> {
        let known = match action.condition() {
            Some(condition) => self.known(condition)?,
            None => *self,
        };
        Some(match action {
            Action::Read => return None,
            Action::Write { content, .. } => known.put_blindly(content),
            Action::Delete { .. } => {
                known.content?;
                Self {
                    content: None,
                    ..known
                }
            }
            Action::Add { by } => {
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
            condition: Some(version),
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
            condition: Some(0),
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
        let gone = plain(swapped, delete, Plain::Deleted).unwrap();
        assert_eq!(plain(gone, delete, Plain::Deleted), None);
        assert_eq!(gone.after(write(A), wrote(2, 0)), None);
        let add = |sum| plain(gone, Action::Add { by: 4 }, Plain::Added { sum });
        assert!(add(4).is_some() && add(5).is_none());
    }

    #[test]
    fn sums_are_exact() {
        let add = |by| Action::Add { by };
        let one = Object::new()
            .after(add(1), Outcome::Added { version: 1, sum: 1 })
            .unwrap();
        let three = Outcome::Added { version: 2, sum: 3 };
        assert!(one.after(add(2), three).is_some());
        assert_eq!(one.after(add(3), three), None);
    }
}
