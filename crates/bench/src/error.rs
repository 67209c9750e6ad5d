//! Why an experiment failed.

/// Why an experiment failed. What was measured before is lost.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// The parameters make no sense.
    #[error("{0}")]
    Parameters(String),
    /// The contestant cannot take part here: it is not built in, not installed, or refused its options.
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
