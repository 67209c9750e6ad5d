//! Why an experiment ends without a result.

use pluvio_spacejmp::SpaceError;
use std::io;

/// Why an experiment ends without a result. None is worth a retry.
#[derive(Debug, thiserror::Error)]
pub enum JumpError {
    /// A span or a space refused.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// The operating system refused.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was tried.
        doing: String,
        /// What it said.
        source: io::Error,
    },
    /// A process of the experiment failed, or gave another answer than the others.
    #[error("{who}: {problem}")]
    Process {
        /// Which one.
        who: String,
        /// What is wrong.
        problem: String,
    },
    /// The given numbers make no experiment.
    #[error("{0}")]
    Parameters(String),
}

impl JumpError {
    /// The system's refusal of something.
    pub(crate) fn system(doing: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System {
            doing: doing.into(),
            source: source.into(),
        }
    }

    /// The failure of a process, or of a contestant.
    pub(crate) fn of(who: impl Into<String>, problem: impl std::fmt::Display) -> Self {
        Self::Process {
            who: who.into(),
            problem: problem.to_string(),
        }
    }
}

/// What an experiment gives.
pub type Result<T> = std::result::Result<T, JumpError>;
