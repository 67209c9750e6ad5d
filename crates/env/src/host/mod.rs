//! The machine under a library that has no event loops: threads, seconds, processors.
//!
//! The embedded store runs inside somebody else's program, where there is no `env`: the program's
//! threads call it, and it only needs a few workers, the date, and to know on which processor a
//! thread runs. This crate is the door to the operating system for that (rule A): the trait
//! [`Host`], and [`ThisMachine`] behind it. Tests give a host of their own.
//!
//! What it does not do: no I/O, no event loops (crate `env_os` has those), no binding of the
//! program's threads.

mod machine;
mod topology;
mod worker;

pub use machine::ThisMachine;
pub use topology::{Nodes, TopologyError};
pub use worker::Worker;

use crate::Pace;

/// The machine as a library sees it.
pub trait Host: Send + Sync {
    /// Seconds since 1970 by the wall clock. May jump; nothing correct may depend on it.
    fn unix_seconds(&self) -> u32;

    /// A number that nobody outside can foresee.
    fn random(&self) -> u64;

    /// The processors this process may use, by memory node.
    ///
    /// # Errors
    /// See [`TopologyError`].
    fn nodes(&self) -> Result<Nodes, TopologyError>;

    /// Whether the system gives huge pages to those of this process who ask.
    ///
    /// # Errors
    /// It does not, and why, for people.
    fn huge_pages(&self) -> Result<(), String> {
        Ok(())
    }

    /// The processor that the calling thread runs on at this moment.
    fn processor(&self) -> usize;

    /// Calls `step` again and again in a thread of its own until the [`Worker`] is dropped.
    ///
    /// # Errors
    /// When the system refuses the thread.
    fn work(
        &self,
        name: String,
        step: Box<dyn FnMut() -> Pace + Send>,
    ) -> Result<Worker, std::io::Error>;

    /// [`Self::work`] in a thread that stays on these processors, where that can be had: of those
    /// that this process may not use none counts, and with none left, or when the system refuses,
    /// it runs anywhere.
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
