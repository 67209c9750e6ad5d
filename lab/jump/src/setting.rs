//! What all experiments need to know.

use crate::children::Program;
use std::path::PathBuf;

/// How often an experiment measures, where, and with which children.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Rounds, of which the median counts.
    pub rounds: u32,
    /// Where spans and files lie; in memory when `None`.
    pub folder: Option<PathBuf>,
    /// The program of children.
    pub program: Program,
}
