//! Conditions of operations, as histories have them.
//!
//! They say the same as the rules of the client library, and are judged here by themselves: an
//! error in how the cluster understands a rule shows.

#[cfg(any(test, feature = "cluster"))]
use crate::random::Stream;
use core::fmt;
use pluvio_mutation::RejectRules;
use pluvio_units::ObjectVersion;
use serde::{Deserialize, Serialize};

/// When an operation goes ahead, rule by rule; otherwise it is rejected. A version 0 stands for no
/// object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// Not when there is an object.
    pub absent: bool,
    /// Not when there is none.
    pub present: bool,
    /// Of objects, only one of this version.
    pub is: Option<u64>,
    /// Of objects, only one of another version.
    pub is_not: Option<u64>,
    /// Of objects, only one of this version or a later one.
    pub at_least: Option<u64>,
}

impl Condition {
    /// Exactly this version; 0: there is no object.
    #[must_use]
    pub fn version(version: u64) -> Self {
        Self {
            absent: version == 0,
            present: version > 0,
            is: (version > 0).then_some(version),
            ..Self::default()
        }
    }

    /// The rules of the cluster that say the same.
    #[must_use]
    pub fn rules(&self) -> RejectRules {
        RejectRules {
            exists: self.absent,
            does_not_exist: self.present,
            version_equal: self.is_not.map(ObjectVersion),
            version_not_equal: self.is.map(ObjectVersion),
            version_less: self.at_least.map(ObjectVersion),
        }
    }

    /// Whether an operation goes ahead that meets this version.
    #[must_use]
    pub fn holds(&self, version: u64) -> bool {
        if version == 0 {
            return !self.present;
        }
        !self.absent
            && self.is.is_none_or(|v| version == v)
            && self.is_not.is_none_or(|v| version != v)
            && self.at_least.is_none_or(|v| version >= v)
    }

    /// A condition that says something of this version (0: of no object), not only that it must be
    /// met.
    #[cfg(any(test, feature = "cluster"))]
    pub(crate) fn draw(draw: &mut Stream, version: u64) -> Self {
        let any = Self::default();
        let some = Some(version);
        match draw.below(9) {
            0 => Self {
                absent: true,
                ..any
            },
            1 => Self {
                present: true,
                ..any
            },
            2 => Self { is: some, ..any },
            3 => Self {
                is_not: some,
                ..any
            },
            4 => Self {
                at_least: some,
                ..any
            },
            5 => Self {
                present: true,
                is_not: some,
                ..any
            },
            6 => Self {
                present: true,
                at_least: Some(version + 1),
                ..any
            },
            7 => Self {
                is_not: some,
                at_least: Some(version.saturating_sub(1)),
                ..any
            },
            // Whatever comes together, also what nothing fulfils.
            _ => {
                let mut near = || (draw.below(2) == 0).then(|| version + draw.below(3));
                Self {
                    is: near(),
                    is_not: near(),
                    at_least: near(),
                    absent: draw.below(2) == 0,
                    present: draw.below(2) == 0,
                }
            }
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = |words: &str, version: Option<u64>| version.map(|v| format!("{words}{v}"));
        let word = |word: &str, asked: bool| asked.then(|| word.to_owned());
        let rules = [
            word("absent", self.absent),
            word("present", self.present),
            version("version = ", self.is),
            version("version != ", self.is_not),
            version("version >= ", self.at_least),
        ];
        let rules: Vec<String> = rules.into_iter().flatten().collect();
        f.write_str(&rules.join(", "))
    }
}
