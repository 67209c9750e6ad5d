//! The roles of this program as a child of an experiment: `pluvio-jump child ROLE …`.

use crate::error::Result;
use crate::tools::{Step, Way};
use crate::{children, gups, redis, tools};
use std::path::PathBuf;

/// A role, with what it needs to know.
#[derive(clap::Subcommand, Clone, Debug)]
pub enum Role {
    /// Answers each byte with a byte
    Echo,
    /// Applies updates of GUPS that come by a pipe
    Window {
        /// The registry
        root: PathBuf,
        /// The window
        name: String,
        /// Updates of a message
        set: usize,
    },
    /// Applies updates of GUPS that come by a span
    BusyWindow {
        /// The registry
        root: PathBuf,
        /// The window
        name: String,
    },
    /// Does one step over alignments
    Tool {
        /// How they are kept
        #[arg(value_enum)]
        way: Way,
        /// What to do
        #[arg(value_enum)]
        step: Step,
        /// Where they lie
        folder: PathBuf,
    },
    /// Fills a store
    Fill(redis::Caller),
    /// Calls a store
    Caller(redis::Caller),
}

/// Plays a role until its input ends.
///
/// # Errors
/// A span or a pipe failed.
pub fn play(role: &Role) -> Result<()> {
    match role {
        Role::Echo => children::echo(),
        Role::Window { root, name, set } => gups::serve_pipe(root, name, *set),
        Role::BusyWindow { root, name } => gups::serve_busy(root, name),
        Role::Tool { way, step, folder } => tools::play(*way, *step, folder),
        Role::Fill(caller) => redis::fill(caller),
        Role::Caller(caller) => redis::call(caller),
    }
}
