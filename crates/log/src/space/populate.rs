//! Fetching all of the log's memory from the system before it is used. Otherwise each page comes
//! when it is written first, and a write waits for that.

use super::LogSpace;
use pluvio_memory::RegionError;
use pluvio_units::SEGLET_BYTES;

/// Bytes that a step fetches: some milliseconds.
const STEP_BYTES: u64 = 16 << 20;
/// Seglets whose pages a step notes: some hundred microseconds, in which no other seglet is taken.
const STEP_SEGLETS: usize = 4096;

/// How far the memory of a log was fetched. The log may be used meanwhile. Its cleaner should give
/// no memory back ([`CleanerOptions::waste_percent`](crate::CleanerOptions::waste_percent)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Populating {
    /// Up to this offset.
    Fetches(u64),
    /// All of it, and part of it counts as resident.
    Counts,
    /// All of it. It counts as resident, where no other process reads it.
    Done,
}

impl Default for Populating {
    fn default() -> Self {
        Self::Fetches(0)
    }
}

impl Populating {
    /// Takes one of the steps, which lead to [`Self::Done`].
    ///
    /// # Errors
    /// The system refuses: too little memory, or Linux older than 5.14. The log works without.
    pub fn step(self, space: &LogSpace) -> Result<Self, RegionError> {
        Ok(match self {
            Self::Fetches(from) => match space.memory().raw().populate(from, STEP_BYTES)? {
                Some(end) => Self::Fetches(end),
                // Seglets that others read are asked for pages when they are taken (R4).
                None if space.memory().raw().is_read() => Self::Done,
                None => Self::Counts,
            },
            Self::Counts => match space.storage().seglets.note_pages(STEP_SEGLETS) {
                true => Self::Done,
                false => self,
            },
            Self::Done => self,
        })
    }
}

impl LogSpace {
    /// Takes all steps of [`Populating`].
    ///
    /// # Errors
    /// See [`Populating::step`].
    pub fn populate(&self) -> Result<(), RegionError> {
        let mut populating = Populating::default();
        while populating != Populating::Done {
            populating = populating.step(self)?;
        }
        Ok(())
    }
}

const _: () = assert!(
    STEP_BYTES.is_multiple_of(SEGLET_BYTES as u64),
    "a step is whole seglets"
);
