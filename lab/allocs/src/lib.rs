//! Counts the allocations of each thread, for tests that say how many a path makes.
//!
//! A test binary makes [`Counting`] its global allocator. A thread's own count is [`made_here`]: a
//! test that asks about an event loop takes it in a task there, before and after. Other threads do
//! not disturb it, so clients may allocate in the same process, and tests run side by side.
//!
//! [`note_places`] tells where a thread allocates. A test that finds too many prints them.

#[allow(unsafe_code)] // the allocator of the process
mod counting;
mod places;

pub use counting::{Counting, made_here};
pub use places::{Places, note_places, places_here};
