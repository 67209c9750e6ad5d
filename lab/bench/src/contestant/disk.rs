//! A disk as our store's sink: it keeps nothing, counts everything, and takes no more than its
//! rate.

use super::setup::Disk;
use crate::clock;
use core::time::Duration;
use pluvio_store::{LogId, ReplicaSink, SegmentId, SinkAnswer, SinkError, SinkWrite};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// The bytes that an idle disk may take at once: the buffer in front of it.
const BURST_SECONDS: f64 = 0.01;
/// At least one write of the store's.
const BURST_MIN: f64 = (256 << 10) as f64;

/// Bytes that may pass, refilled by time. A taker may take more than there are: then the next one
/// waits longer.
#[derive(Debug)]
struct TokenBucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    /// When `tokens` was right.
    since: Duration,
}

impl TokenBucket {
    fn new(per_second: f64) -> Self {
        let burst = (per_second * BURST_SECONDS).max(BURST_MIN);
        Self {
            per_second,
            burst,
            tokens: burst,
            since: Duration::ZERO,
        }
    }

    /// Takes `bytes` at a time `now`, or says how long to wait.
    fn take(&mut self, now: Duration, bytes: usize) -> Result<(), Duration> {
        let passed = now.saturating_sub(self.since).as_secs_f64();
        self.since = self.since.max(now);
        self.tokens = (self.tokens + passed * self.per_second).min(self.burst);
        if self.tokens <= 0.0 {
            // Not shorter than a timer can wait, so that the store does not ask in vain.
            let wait = Duration::from_secs_f64(-self.tokens / self.per_second);
            return Err(wait.max(Duration::from_micros(20)));
        }
        self.tokens -= bytes as f64;
        Ok(())
    }
}

/// The meter of a disk, which the store and the experiment share.
#[derive(Default)]
pub(super) struct Meter {
    /// Bytes the disk was given.
    pub written: AtomicU64,
    /// Whether it keeps to its rate; while the store is filled and warms up it does not.
    pub limited: AtomicBool,
}

/// See the module.
pub(super) struct SimulatedDisk {
    bucket: Option<TokenBucket>,
    begin: Instant,
    meter: Arc<Meter>,
}

impl SimulatedDisk {
    /// `None` when the store has no disk.
    pub(super) fn new(disk: Disk, meter: &Arc<Meter>) -> Option<Self> {
        let bucket = match disk {
            Disk::None => return None,
            Disk::Unlimited => None,
            Disk::Limited(per_second) => Some(TokenBucket::new(per_second)),
        };
        Some(Self {
            bucket,
            begin: clock::now(),
            meter: Arc::clone(meter),
        })
    }
}

impl ReplicaSink for SimulatedDisk {
    fn write(&mut self, write: &SinkWrite<'_>) -> Result<SinkAnswer, SinkError> {
        if let Some(bucket) = &mut self.bucket
            && self.meter.limited.load(Ordering::Relaxed)
            && let Err(wait) = bucket.take(self.begin.elapsed(), write.bytes.len())
        {
            return Ok(SinkAnswer::After(wait));
        }
        let bytes = write.bytes.len() as u64;
        self.meter.written.fetch_add(bytes, Ordering::Relaxed);
        Ok(SinkAnswer::Taken)
    }

    fn close(&mut self, _: LogId, _: SegmentId) -> Result<(), SinkError> {
        Ok(())
    }

    fn free(&mut self, _: LogId, _: SegmentId) -> Result<(), SinkError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that pass in a time, by writes of one size that are tried again when they are told to.
    fn passed(per_second: f64, write: usize, end: Duration) -> f64 {
        let mut bucket = TokenBucket::new(per_second);
        let (mut now, mut bytes) = (Duration::ZERO, 0);
        while now < end {
            match bucket.take(now, write) {
                Ok(()) => bytes += write,
                Err(wait) => now += wait,
            }
        }
        bytes as f64
    }

    #[test]
    fn no_more_passes_than_the_rate_and_hardly_less() {
        let seconds = 10.0;
        for rate in [1e6, 100e6, 2e9] {
            for write in [100, 10_000, 256 << 10] {
                let share =
                    passed(rate, write, Duration::from_secs_f64(seconds)) / (rate * seconds);
                let burst = (BURST_MIN + write as f64) / (rate * seconds) + BURST_SECONDS / seconds;
                assert!(
                    (0.99..=1.001 + burst).contains(&share),
                    "{share} at {rate} in writes of {write}"
                );
            }
        }
    }

    #[test]
    fn time_that_was_not_used_is_lost_but_for_the_burst() {
        let mut bucket = TokenBucket::new(1e6);
        let later = Duration::from_secs(3600);
        let mut burst = 0;
        while bucket.take(later, 1000).is_ok() {
            burst += 1000;
        }
        assert!(f64::from(burst) <= BURST_MIN + 1000.0, "{burst}");
    }
}
