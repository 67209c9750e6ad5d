//! What one caller does: random reads and writes of some keys, one at a time, until its time is
//! over.

use crate::error::{JumpError, Result};
use crate::turns::{now, ns_since};
use pluvio_load::Random;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Bytes of a value.
const VALUE_BYTES: usize = 100;
/// Operations between two looks at the clock.
const LOOK: u64 = 64;
/// One of this number of operations is timed by itself: the clock costs as much as a read in
/// memory.
const TIMED: u64 = 16;

/// A read or a write of [`Load::key`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    Get,
    /// Of [`Load::value`].
    Set,
}

/// The stream of operations of a caller.
pub(super) struct Load {
    random: Random,
    keys: u64,
    set_percent: u64,
    time: Duration,
    begin: Instant,
    count: u64,
    timed: Option<Instant>,
    samples: Vec<u32>,
    pub(super) key: String,
    pub(super) value: String,
}

/// What a caller has done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Done {
    /// Operations a second.
    pub(super) rate: f64,
    /// Microseconds of one, of which as many take less as more.
    pub(super) p50_us: f64,
    /// Microseconds of one, of which one in a hundred takes more.
    pub(super) p99_us: f64,
}

/// The key of a number.
pub(super) fn key_of(number: u64, key: &mut String) {
    key.clear();
    // A text takes every letter.
    let _whole = write!(key, "key:{number:012}");
}

/// The value of a key, which begins with it: its version, and letters.
pub(super) fn value_of(key: &str, version: u64, value: &mut String) {
    value.clear();
    let _whole = write!(value, "{key}:{version:016}:{:x<1$}", "", VALUE_BYTES - 34);
}

impl Load {
    pub(super) fn new(keys: u64, set_percent: u64, time: Duration, number: u64) -> Self {
        Self {
            random: Random::new(0x6a75_6d70, number),
            keys: keys.max(1),
            set_percent,
            time,
            begin: now(),
            count: 0,
            timed: None,
            samples: Vec::with_capacity(1 << 20),
            key: String::new(),
            value: String::new(),
        }
    }

    /// The time begins.
    pub(super) fn begin(&mut self) {
        self.begin = now();
    }

    /// The next operation; none when the time is over.
    pub(super) fn next(&mut self) -> Option<Operation> {
        if self.count.is_multiple_of(LOOK) && self.begin.elapsed() >= self.time {
            return None;
        }
        key_of(self.random.below(self.keys), &mut self.key);
        let is_set = self.random.below(100) < self.set_percent;
        if is_set {
            let version = self.random.next() % 1_000_000_000;
            value_of(&self.key, version, &mut self.value);
        }
        if self.count.is_multiple_of(TIMED) {
            self.timed = Some(now());
        }
        Some(match is_set {
            true => Operation::Set,
            false => Operation::Get,
        })
    }

    /// The operation is done.
    pub(super) fn done(&mut self) {
        self.count += 1;
        if let Some(begin) = self.timed.take() {
            self.samples.push(ns_since(begin) as u32);
        }
    }

    /// Compares what a read found with what any write of the key writes.
    pub(super) fn check(&self, found: Option<&[u8]>) -> Result<()> {
        let is_its =
            |value: &[u8]| value.len() == VALUE_BYTES && value.starts_with(self.key.as_bytes());
        match found {
            Some(value) if is_its(value) => Ok(()),
            Some(_) => Err(JumpError::of(&self.key, "it has the value of another key")),
            None => Err(JumpError::of(&self.key, "it is not there")),
        }
    }

    /// What was done.
    pub(super) fn end(mut self) -> Done {
        let seconds = self.begin.elapsed().as_secs_f64();
        self.samples.sort_unstable();
        let part = |percent: usize| {
            let at = self.samples.len() * percent / 100;
            let ns = self.samples.get(at).copied().unwrap_or(0);
            f64::from(ns) / 1e3
        };
        Done {
            rate: self.count as f64 / seconds,
            p50_us: part(50),
            p99_us: part(99),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_begin_with_their_keys() {
        let mut load = Load::new(100, 50, Duration::from_secs(60), 1);
        let mut sets = 0;
        for _ in 0..200 {
            if load.next() == Some(Operation::Set) {
                sets += 1;
                assert!(load.check(Some(load.value.as_bytes())).is_ok());
            }
            load.done();
        }
        assert!((50..150).contains(&sets), "{sets} sets");
        let wrong = "y".repeat(VALUE_BYTES);
        assert!(load.check(Some(wrong.as_bytes())).is_err());
        assert!(load.check(None).is_err());
    }
}
