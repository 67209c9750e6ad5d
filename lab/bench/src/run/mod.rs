//! Runs workloads on a contestant, inside its process. It fills the contestant, and runs random
//! operations for a time, streams of operations to their end, and an idle spin to compare pauses
//! with.
//!
//! - LOAD-1: a value begins with its key, where it has room for it; a read compares them.
//! - LOAD-2: a write that was refused for want of memory is tried again until it is done, and
//!   counted once.

mod drawn;
mod fill;
mod random;
mod replay;
mod tally;
mod threads;

pub(crate) use drawn::Drawn;
pub(crate) use fill::load;
pub use fill::{LoadPlan, Loaded};
pub use random::{BATCH_MAX, Idle, IdlePlan, KEYS_MAX, Ran, RunPlan, THREADS_MAX};
pub(crate) use random::{idle, run};
pub(crate) use replay::replay;
pub use replay::{Mark, ReplayPlan, Replayed, SETTLED};
pub use tally::{Collector, Latencies};
pub(crate) use threads::side_by_side;

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

/// Deletes; says whether the key was there.
fn delete<S: KeyValue>(store: &S, key: u64) -> Result<bool, ExperimentError> {
    store.delete(key).map_err(|refusal| match refusal {
        Refusal::Fatal(problem) => ExperimentError::Run(problem),
        Refusal::Full(_) => ExperimentError::Run("a delete was refused for want of memory".into()),
    })
}

/// Writes all pairs in their order until they are done; gives how often one was refused. A refused
/// pair is tried again by itself, and the rest together.
fn put_all<S: KeyValue>(store: &S, pairs: &[(u64, &[u8])]) -> Result<u64, ExperimentError> {
    let mut left = pairs;
    let mut retries = 0;
    while let Err((stored, refusal)) = store.put_batch(left) {
        let (key, value) = left[stored];
        retries += put_again(store, key, value, refusal)?;
        left = &left[stored + 1..];
    }
    Ok(retries)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, MutexGuard};

    /// Refuses every third write; keeps the keys of the others.
    struct Refusing {
        asked: Mutex<(u64, Vec<u64>)>,
        with: Refusal,
    }

    impl Refusing {
        fn new(with: Refusal) -> Self {
            Self {
                asked: Mutex::default(),
                with,
            }
        }

        fn asked(&self) -> MutexGuard<'_, (u64, Vec<u64>)> {
            self.asked.lock().unwrap()
        }
    }

    impl KeyValue for Refusing {
        fn get(&self, _key: u64, _into: &mut Vec<u8>) -> bool {
            false
        }

        fn put(&self, key: u64, _value: &[u8]) -> Result<(), Refusal> {
            let mut asked = self.asked();
            asked.0 += 1;
            if asked.0.is_multiple_of(3) {
                return Err(self.with.clone());
            }
            asked.1.push(key);
            Ok(())
        }

        fn delete(&self, _key: u64) -> Result<bool, Refusal> {
            Ok(false)
        }
    }

    // shows: LOAD-2
    #[test]
    fn a_batch_goes_on_behind_what_was_refused() {
        let store = Refusing::new(Refusal::Full(Duration::ZERO));
        let keys: Vec<u64> = (0..10).collect();
        let pairs: Vec<(u64, &[u8])> = keys.iter().map(|&key| (key, &b"value"[..])).collect();
        assert_eq!(put_all(&store, &pairs).unwrap(), 4);
        assert_eq!(store.asked().1, keys);
        assert_eq!(put_all(&store, &[]).unwrap(), 0);
    }

    #[test]
    fn a_batch_that_will_not_work_ends() {
        let store = Refusing::new(Refusal::Fatal("broken".into()));
        let pairs: [(u64, &[u8]); 5] = [7, 8, 9, 10, 11].map(|key| (key, &b"value"[..]));
        let error = put_all(&store, &pairs).unwrap_err().to_string();
        assert_eq!(error, "broken");
        assert_eq!(store.asked().1, [7, 8]);
    }
}
