//! The threads' half of the door: the machine under a library that has no event loops.
//!
//! The embedded store runs inside another program, whose threads call it. It needs a few workers,
//! two clocks, and the processor that a thread runs on. The trait [`Host`] gives these, and
//! [`ThisMachine`] is the real one behind it. Tests give a host of their own.
//!
//! Limits: no I/O, no event loops (crate `env_os` has those), no binding of the program's threads.

mod machine;
mod topology;
mod worker;

pub use machine::ThisMachine;
pub use topology::{Nodes, TopologyError};
pub use worker::Worker;

use crate::Pace;
use core::time::Duration;

/// The machine as a library sees it.
pub trait Host: Send + Sync {
    /// The time since some moment that stays the same while the process lives. Never goes back, and
    /// goes on while the machine sleeps.
    fn monotonic(&self) -> Duration;

    /// The time since 1970 by the wall clock. May jump; nothing correct may depend on its steps.
    fn unix_time(&self) -> Duration;

    /// Whole seconds of [`Self::unix_time`].
    fn unix_seconds(&self) -> u32 {
        u32::try_from(self.unix_time().as_secs()).unwrap_or(u32::MAX)
    }

    /// A number that is unpredictable from outside the process.
    fn random(&self) -> u64;

    /// The processors this process may use, by memory node.
    ///
    /// # Errors
    /// See [`TopologyError`].
    fn nodes(&self) -> Result<Nodes, TopologyError>;

    /// Whether the system gives huge pages to a mapping of this process that asks for them.
    ///
    /// # Errors
    /// The reason why it does not, for people.
    fn huge_pages(&self) -> Result<(), String> {
        Ok(())
    }

    /// The processor that the calling thread runs on at this moment.
    fn processor(&self) -> usize;

    /// Calls `step` again and again in a thread of its own, until the step says [`Pace::Done`] or
    /// the [`Worker`] is dropped.
    ///
    /// # Errors
    /// When the system refuses the thread.
    fn work(
        &self,
        name: String,
        step: Box<dyn FnMut() -> Pace + Send>,
    ) -> Result<Worker, std::io::Error>;

    /// [`Self::work`] in a thread that stays on these processors, as far as possible. Processors
    /// that this process may not use are ignored. The thread runs anywhere if none is left, or if
    /// the system refuses.
    ///
    /// # Errors
    /// As [`Self::work`].
    fn work_near(
        &self,
        name: String,
        processors: Vec<usize>,
        step: Box<dyn FnMut() -> Pace + Send>,
    ) -> Result<Worker, std::io::Error> {
        let _anywhere = processors;
        self.work(name, step)
    }
}
