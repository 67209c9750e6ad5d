//! Latencies of operations, by quantile.

use core::time::Duration;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The quantiles that are kept: enough to draw the distribution with its tail.
const QUANTILES: [f64; 20] = [
    0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999,
    0.99999, 0.999999, 1.0,
];

/// A distribution of latencies.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Latencies {
    /// How many were measured.
    pub count: u64,
    /// Quantile, and nanoseconds that this part took at most.
    pub quantiles: Vec<(f64, u64)>,
}

impl Latencies {
    /// Microseconds that this part of the operations took at most. Only quantiles that are kept.
    #[must_use]
    pub fn us(&self, quantile: f64) -> f64 {
        let found = self.quantiles.iter().find(|(known, _)| *known == quantile);
        found.map_or(f64::NAN, |(_, ns)| *ns as f64 / 1e3)
    }
}

/// Latencies while they are collected: nanoseconds up to 100 s with three digits.
#[derive(Clone, Debug)]
pub struct Collector(Histogram<u64>);

impl Default for Collector {
    fn default() -> Self {
        Self::new()
    }
}

impl Collector {
    /// One without latencies.
    #[must_use]
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, 100_000_000_000, 3);
        Self(histogram.expect("the bounds and digits are valid"))
    }

    /// Adds one.
    #[inline]
    pub fn record(&mut self, took: Duration) {
        self.0
            .saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds all of another one.
    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    /// What was collected.
    #[must_use]
    pub fn latencies(&self) -> Latencies {
        let at = |quantile| (quantile, self.0.value_at_quantile(quantile));
        Latencies {
            count: self.0.len(),
            quantiles: QUANTILES.into_iter().map(at).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_what_was_recorded() {
        let mut collector = Collector::new();
        for us in 1..=1000 {
            collector.record(Duration::from_micros(us));
        }
        let latencies = collector.latencies();
        assert_eq!(latencies.count, 1000);
        assert!((latencies.us(0.5) - 500.0).abs() < 1.0);
        assert!((latencies.us(0.999) - 999.0).abs() < 2.0);
        assert!(latencies.us(0.123).is_nan());
    }
}
