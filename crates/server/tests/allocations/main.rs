//! How often the event loop of a server allocates for an operation.
//!
//! Coordinator, servers and clients each have event loops of their own, in this process. Only what
//! the loop of the asked server allocates is counted, with all that it does beside operations:
//! pings, leases, timers. That is 0.01 to 0.1 for an operation, and more on a slow machine. Bounds
//! are above what was counted by at least a third, and by at least 0.2 where they are small. Where
//! an operation allocates nothing, the bound is below one.
//!
//! A test that fails tells the stacks of the allocations.

#![allow(clippy::unwrap_used)] // a test that fails shall say where

mod native;
mod redis;
mod rig;

/// Counts for every thread of this process.
#[global_allocator]
static ALLOCATOR: pluvio_allocs::Counting = pluvio_allocs::Counting;
