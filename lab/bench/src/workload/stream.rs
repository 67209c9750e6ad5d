//! Streams of operations, one a thread, each a function of its plan.

use super::phases::{Phase, Phases};
use super::postmark::{Postmark, PostmarkStream};
use super::profile::{ProfilePlan, ProfileStream};
use super::trace::{TracePlan, TraceStream};
use crate::error::ExperimentError;
use serde::{Deserialize, Serialize};

/// One thing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Write a value of this size.
    Put {
        /// The key.
        key: u64,
        /// Bytes.
        size: u32,
    },
    /// Read.
    Get {
        /// The key.
        key: u64,
    },
    /// Read, and write with `by` bytes more.
    Append {
        /// The key.
        key: u64,
        /// Bytes to add.
        more: u32,
    },
    /// Delete.
    Delete {
        /// The key.
        key: u64,
    },
    /// Nothing: a part of the stream has ended, memory is to be looked at.
    Mark(&'static str),
}

/// The mark behind what is written first, because it is there before the load begins: it does not
/// count.
pub const LOADED: &str = "loaded";

/// The live objects after the operations so far, as the stream knows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Live {
    /// Objects.
    pub objects: u64,
    /// Bytes of their values.
    pub bytes: u64,
}

/// Keys that a thread has for itself where threads share none.
pub(super) const KEYS_OF_THREAD: u64 = 1 << 40;

/// A stream of operations.
pub trait Stream: Send {
    /// The next one.
    fn next(&mut self) -> Option<Operation>;

    /// What is live.
    fn live(&self) -> Live;
}

/// Which stream.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Plan {
    /// Phases of allocation with changing sizes. One thread.
    Phases(Vec<Phase>),
    /// A file. Threads share its keys.
    Trace(TracePlan),
    /// A production cluster. Every thread has keys of its own.
    Profile(ProfilePlan),
    /// Files that are created, read, appended to and deleted. Every thread has files of its own.
    Postmark(Postmark),
}

impl Plan {
    /// The stream of thread `thread` of `threads`.
    ///
    /// # Errors
    /// A trace file cannot be read; several threads where only one can be.
    pub fn stream(
        &self,
        seed: u64,
        thread: usize,
        threads: usize,
    ) -> Result<Box<dyn Stream>, ExperimentError> {
        let own = thread as u64 * KEYS_OF_THREAD;
        Ok(match self {
            Self::Phases(phases) if threads == 1 => Box::new(Phases::new(phases, seed)),
            Self::Phases(_) => {
                let problem = "phases of allocation run in one thread";
                return Err(ExperimentError::Parameters(problem.into()));
            }
            Self::Trace(plan) => Box::new(TraceStream::read(plan, thread, threads)?),
            Self::Profile(plan) => Box::new(ProfileStream::new(plan, seed, thread, own)),
            Self::Postmark(plan) => Box::new(PostmarkStream::new(plan, seed, thread, own)),
        })
    }
}
