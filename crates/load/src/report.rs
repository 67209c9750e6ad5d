//! What was measured.

use crate::machine::Machine;
use crate::plan::Workload;
use core::time::Duration;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;

/// A measurement with everything one needs to read or repeat it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The kind of measurement: `load`, `latency`, `throughput`.
    pub command: String,
    /// Whom was measured.
    pub target: String,
    /// On what machine the load ran (and often the servers).
    pub machine: Machine,
    /// The results.
    pub rows: Vec<Row>,
    /// Medians over those of bare round trips, where these were measured.
    pub ratios: BTreeMap<String, f64>,
}

impl Report {
    /// The median of each row over that of the round trips it cannot do without: one for reads, two
    /// for writes to a replicated store. The rows of round trips come first.
    pub fn compare_with(&mut self, one: &Row, two: &Row) {
        for row in &self.rows {
            let (bare, what) = match row.workload.get_percent {
                100 => (one, "a bare round trip"),
                0 => (two, "two bare round trips"),
                _ => continue,
            };
            let ratio = row.latency_us.p50 / bare.latency_us.p50;
            if ratio.is_finite() {
                let name = format!(
                    "{} of {} B: median / {what}",
                    row.name, row.workload.value_size
                );
                self.ratios.insert(name, ratio);
            }
        }
        self.rows.splice(0..0, [one.clone(), two.clone()]);
    }
}

/// The result of one load.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// `GET`, `SET`, `GET 90%`, …
    pub name: String,
    /// The load.
    pub workload: Workload,
    /// Operations answered without an error.
    pub operations: u64,
    /// Reads that found nothing.
    pub misses: u64,
    /// Operations refused.
    pub errors: u64,
    /// The first refusal's text.
    pub first_error: Option<String>,
    /// How long it was measured.
    pub seconds: f64,
    /// Operations in a second.
    pub ops_per_s: f64,
    /// Values' bytes in a second, in millions.
    pub mb_per_s: f64,
    /// Latencies in microseconds.
    pub latency_us: LatencyUs,
}

/// Latencies in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct LatencyUs {
    /// The least.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// 90 of 100 were at most this.
    pub p90: f64,
    /// 99 of 100.
    pub p99: f64,
    /// 999 of 1000.
    pub p999: f64,
    /// The most.
    pub max: f64,
}

/// Latencies and counts while they are collected. Nanoseconds up to 100 s with three digits.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    latencies: Histogram<u64>,
    pub(crate) misses: u64,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            latencies: Histogram::new_with_bounds(1, 100_000_000_000, 3)
                .expect("the bounds and digits are valid"),
            misses: 0,
            errors: 0,
            first_error: None,
        }
    }

    pub(crate) fn record(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.latencies.saturating_record(ns);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.latencies
            .add(&other.latencies)
            .expect("all have the same bounds");
        self.count_refusals(other);
    }

    /// All of it but the latencies.
    pub(crate) fn count_refusals(&mut self, other: &Self) {
        self.misses += other.misses;
        self.errors += other.errors;
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
    }

    pub(crate) fn row(&self, name: String, workload: &Workload, took: Duration) -> Row {
        let seconds = took.as_secs_f64();
        let operations = self.latencies.len();
        let ops_per_s = operations as f64 / seconds.max(1e-9);
        let at = |quantile| self.latencies.value_at_quantile(quantile) as f64 / 1e3;
        Row {
            name,
            workload: workload.clone(),
            operations,
            misses: self.misses,
            errors: self.errors,
            first_error: self.first_error.clone(),
            seconds,
            ops_per_s,
            mb_per_s: ops_per_s * workload.value_size as f64 / 1e6,
            latency_us: LatencyUs {
                min: self.latencies.min() as f64 / 1e3,
                mean: self.latencies.mean() / 1e3,
                p50: at(0.5),
                p90: at(0.9),
                p99: at(0.99),
                p999: at(0.999),
                max: self.latencies.max() as f64 / 1e3,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, get_percent: u8, us: u64) -> Row {
        let mut tally = Tally::new();
        tally.record(Duration::from_micros(us));
        let workload = Workload {
            connections: 1,
            pipeline: 1,
            keys: 1,
            value_size: 100,
            get_percent,
            seconds: 1.0,
            warmup_seconds: 0.0,
            seed: 0,
        };
        tally.row(name.into(), &workload, Duration::from_secs(1))
    }

    #[test]
    fn reads_are_compared_with_one_round_trip_and_writes_with_two() {
        let mut report = Report {
            command: "latency".into(),
            target: String::new(),
            machine: Machine::this(),
            rows: vec![
                row("GET", 100, 30),
                row("SET", 0, 90),
                row("GET 50%", 50, 60),
            ],
            ratios: BTreeMap::new(),
        };
        report.compare_with(&row("PING", 0, 20), &row("2 x PING", 0, 45));
        let ratios: Vec<_> = report.ratios.iter().collect();
        let near = |(name, ratio): (&String, &f64), wanted: &str, value: f64| {
            assert_eq!(name, wanted);
            assert!((ratio - value).abs() < 0.01, "{name}: {ratio}");
        };
        assert_eq!(ratios.len(), 2);
        near(ratios[0], "GET of 100 B: median / a bare round trip", 1.5);
        near(
            ratios[1],
            "SET of 100 B: median / two bare round trips",
            2.0,
        );
        let names: Vec<_> = report.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["PING", "2 x PING", "GET", "SET", "GET 50%"]);
    }

    #[test]
    fn rows_hold_what_was_recorded() {
        let mut tally = Tally::new();
        for us in 1..=1000 {
            tally.record(Duration::from_micros(us));
        }
        let mut all = Tally::new();
        all.add(&tally);
        all.add(&tally);
        let workload = Workload {
            connections: 1,
            pipeline: 1,
            keys: 1,
            value_size: 1000,
            get_percent: 0,
            seconds: 2.0,
            warmup_seconds: 0.0,
            seed: 0,
        };
        let row = all.row("SET".into(), &workload, Duration::from_secs(2));
        assert_eq!(row.operations, 2000);
        assert!((row.ops_per_s - 1000.0).abs() < 1e-6);
        assert!((row.mb_per_s - 1.0).abs() < 1e-6);
        assert!((row.latency_us.p50 - 500.0).abs() < 1.0, "{row:?}");
        assert!((row.latency_us.p99 - 990.0).abs() < 2.0, "{row:?}");
    }
}
