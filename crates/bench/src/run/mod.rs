//! Runs workloads on a contestant, inside its process: fills it, random operations for a time, streams of
//! operations to their end, and an idle spin to compare pauses with.
//!
//! - RUN-1: a value begins with its key, where it has room for it; a read compares them.
//! - RUN-2: a write that was refused for want of memory is tried again until it is done, and counted once.

mod fill;
mod random;
mod replay;
mod tally;
mod threads;

pub(crate) use fill::load;
pub use fill::{LoadPlan, Loaded};
pub use random::{BATCH_MAX, Idle, IdlePlan, KEYS_MAX, Ran, RunPlan, THREADS_MAX};
pub(crate) use random::{Drawn, idle, run};
pub(crate) use replay::replay;
pub use replay::{Mark, ReplayPlan, Replayed, SETTLED};
pub use tally::Latencies;

use crate::contestant::{KeyValue, Refusal};
use crate::error::ExperimentError;
use core::time::Duration;

/// Bytes at the beginning of a value that name its key.
const STAMP: usize = 8;
/// Retries of a refused write before the thread gives up: with the longest pauses, 40 seconds.
const RETRIES_MAX: u64 = 200_000;
/// Retries that only give the processor away.
const YIELDS: u64 = 64;
/// Longest pause between two retries.
const PAUSE_MAX: Duration = Duration::from_micros(200);

/// Writes the key into its value.
#[inline]
fn stamp(key: u64, value: &mut [u8]) {
    if let Some(place) = value.first_chunk_mut::<STAMP>() {
        *place = key.to_le_bytes();
    }
}

/// Whether the value is that of the key.
#[inline]
fn is_of(key: u64, value: &[u8]) -> bool {
    match value.first_chunk::<STAMP>() {
        Some(place) => *place == key.to_le_bytes(),
        None => true,
    }
}

/// Writes until it is done; gives how often it was refused.
#[inline]
fn put<S: KeyValue>(store: &S, key: u64, value: &[u8]) -> Result<u64, ExperimentError> {
    match store.put(key, value) {
        Ok(()) => Ok(0),
        Err(refusal) => put_again(store, key, value, refusal),
    }
}

#[cold]
fn put_again<S: KeyValue>(
    store: &S,
    key: u64,
    value: &[u8],
    first: Refusal,
) -> Result<u64, ExperimentError> {
    let mut refusal = first;
    for retries in 1..=RETRIES_MAX {
        match refusal {
            Refusal::Full(_) if retries <= YIELDS => std::thread::yield_now(),
            Refusal::Full(pause) => std::thread::park_timeout(pause.min(PAUSE_MAX)),
            Refusal::Fatal(problem) => return Err(ExperimentError::Run(problem)),
        }
        match store.put(key, value) {
            Ok(()) => return Ok(retries),
            Err(again) => refusal = again,
        }
    }
    let problem = "memory stays full: give more memory, or a lower utilization";
    Err(ExperimentError::Run(problem.into()))
}
