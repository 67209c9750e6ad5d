//! Why an experiment failed.

use core::fmt::Display;
use core::ops::RangeInclusive;

/// Why an experiment failed. What was measured before is lost.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// The parameters make no sense.
    #[error("{0}")]
    Parameters(String),
    /// A parameter is outside of its range.
    #[error("--{option} {value}: {first} to {last} are possible")]
    OutOfRange {
        /// The option of the command line, without its dashes.
        option: &'static str,
        /// What was asked for.
        value: String,
        /// The least that is possible.
        first: String,
        /// The most.
        last: String,
    },
    /// The contestant cannot take part here: it is not built in, not installed, or refused its
    /// options.
    #[error("{contestant}: {problem}")]
    Contestant {
        /// Who.
        contestant: String,
        /// Why not, and what helps.
        problem: String,
    },
    /// A run could not go on: the store refused for too long, or gave what was never stored.
    #[error("{0}")]
    Run(String),
    /// A contestant's process could not be started, or ended.
    #[error("the process of {contestant}: {problem}")]
    Process {
        /// Who.
        contestant: String,
        /// What happened.
        problem: String,
    },
    /// A file cannot be used.
    #[error("{path}: {problem}")]
    File {
        /// Which one.
        path: String,
        /// Why, and where in it.
        problem: String,
    },
}

/// That a parameter is in its range.
pub(crate) fn within<T: PartialOrd + Display>(
    option: &'static str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), ExperimentError> {
    match range.contains(&value) {
        true => Ok(()),
        false => Err(ExperimentError::OutOfRange {
            option,
            value: value.to_string(),
            first: range.start().to_string(),
            last: range.end().to_string(),
        }),
    }
}
