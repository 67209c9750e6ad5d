//! Rates of a server between two looks at its counters.

use pluvio_client::ServerStatus;
use std::time::Duration;

/// Averages between two looks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rates {
    /// Requests for objects answered in a second.
    pub operations: f64,
    /// Redis commands in a second, without those of transactions.
    pub commands: f64,
    /// The times that half and 99 of 100 of those commands took at most; up to twice the true ones.
    /// None without commands.
    pub latency: Option<(Duration, Duration)>,
    /// The part of the time for which event loops worked, 0 to 1.
    pub busy: Option<f64>,
}

impl Rates {
    /// The rates between an older look at a server and a newer one. None if they are too close, or
    /// the server is another one.
    pub fn between(older: &ServerStatus, newer: &ServerStatus) -> Option<Self> {
        let millis = newer.uptime_ms.checked_sub(older.uptime_ms)?;
        if millis == 0 || older.id != newer.id {
            return None;
        }
        let seconds = millis as f64 / 1e3;
        let times = newer.command_times.since(&older.command_times);
        let median = times.quantile(0.5);
        let loops = newer.loops_busy_us.iter().zip(&older.loops_busy_us);
        let busy: u64 = loops.map(|(new, old)| new.saturating_sub(*old)).sum();
        let count = newer.loops_busy_us.len() as f64;
        Some(Self {
            operations: newer.requests.saturating_sub(older.requests) as f64 / seconds,
            commands: times.count() as f64 / seconds,
            latency: median.zip(times.quantile(0.99)),
            busy: (count > 0.0).then(|| (busy as f64 / 1e6 / seconds / count).min(1.0)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_units::ServerId;

    #[test]
    fn rates_are_what_happened_between_two_looks() {
        let older = ServerStatus {
            id: ServerId(4),
            uptime_ms: 10_000,
            requests: 100,
            loops_busy_us: vec![0, 500_000],
            ..ServerStatus::default()
        };
        let mut newer = ServerStatus {
            uptime_ms: 12_000,
            requests: 500,
            loops_busy_us: vec![1_000_000, 500_000],
            ..older.clone()
        };
        newer.command_times.add(Duration::from_micros(100), 10);
        let rates = Rates::between(&older, &newer).unwrap();
        assert_eq!((rates.operations, rates.commands), (200.0, 5.0));
        let micros = Duration::from_micros(128);
        assert_eq!(rates.latency, Some((micros, micros)));
        assert_eq!(rates.busy, Some(0.25));
        assert_eq!(Rates::between(&newer, &older), None);
        newer.id = ServerId(5);
        assert_eq!(Rates::between(&older, &newer), None);
    }
}
