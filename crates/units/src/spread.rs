//! How long things took, counted in powers of two: small enough for each status message.

use core::time::Duration;
use serde::{Deserialize, Serialize};

/// Counts of times by powers of two of microseconds.
///
/// The first count is of times below 2 us. Each further one reaches twice as far. The last one has
/// all times from 8 s on. A quantile is told as the end of its count: up to twice the true time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TimeSpread {
    counts: [u64; TimeSpread::COUNTS],
    micros: u64,
}

impl TimeSpread {
    /// How many counts there are.
    pub const COUNTS: usize = 24;

    /// Counts `count` things that took `each`.
    pub fn add(&mut self, each: Duration, count: u64) {
        let micros = u64::try_from(each.as_micros()).unwrap_or(u64::MAX);
        let at = (micros.max(1).ilog2() as usize).min(Self::COUNTS - 1);
        self.counts[at] = self.counts[at].saturating_add(count);
        self.micros = (self.micros).saturating_add(micros.saturating_mul(count));
    }

    fn with(self, other: &Self, join: fn(u64, u64) -> u64) -> Self {
        let mut joined = self;
        for (count, more) in joined.counts.iter_mut().zip(other.counts) {
            *count = join(*count, more);
        }
        joined.micros = join(joined.micros, other.micros);
        joined
    }

    /// These and the others.
    #[must_use]
    pub fn plus(self, other: &Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    /// Those counted since `before`.
    #[must_use]
    pub fn since(self, before: &Self) -> Self {
        self.with(before, u64::saturating_sub)
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// How long all took together.
    #[must_use]
    pub fn total(&self) -> Duration {
        Duration::from_micros(self.micros)
    }

    /// The counts with the time below which theirs are; `None` for the last one.
    pub fn counts(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let last = Self::COUNTS - 1;
        let ends = (0..Self::COUNTS).map(move |at| (at < last).then(|| end(at)));
        ends.zip(self.counts)
    }

    /// The time that a part `of_all` of them (0 to 1) took at most; `None` if there are none. Up to
    /// twice the true time; of times in the last count, where that begins.
    #[must_use]
    pub fn quantile(&self, of_all: f64) -> Option<Duration> {
        let all = self.count();
        let wanted = ((all as f64 * of_all).ceil() as u64).clamp(1, all.max(1));
        let mut sum = 0_u64;
        for (at, count) in self.counts.iter().enumerate() {
            sum = sum.saturating_add(*count);
            if sum >= wanted {
                return Some(end(at.min(Self::COUNTS - 2)));
            }
        }
        None
    }
}

/// The time below which those of a count are.
fn end(at: usize) -> Duration {
    Duration::from_micros(2 << at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_by_powers_of_two() {
        let mut spread = TimeSpread::default();
        assert_eq!(spread.quantile(0.5), None);
        let before = spread;
        spread.add(Duration::ZERO, 1);
        spread.add(Duration::from_micros(3), 97);
        spread.add(Duration::from_millis(1), 1);
        spread.add(Duration::from_secs(1_000_000), 1);
        let micros = |n| Some(Duration::from_micros(n));
        assert_eq!(spread.count(), 100);
        assert_eq!(spread.quantile(0.01), micros(2));
        assert_eq!(spread.quantile(0.5), micros(4));
        assert_eq!(spread.quantile(0.99), micros(1024));
        assert_eq!(spread.quantile(1.0), micros(2 << 22));
        assert_eq!(spread.since(&before), spread);
        assert_eq!(spread.since(&spread).count(), 0);
        assert_eq!(spread.plus(&spread).count(), 200);
        assert_eq!(spread.counts().count(), TimeSpread::COUNTS);
        assert_eq!(spread.counts().last().unwrap(), (None, 1));
        assert_eq!(before.total(), Duration::ZERO);
    }
}
