//! Time.

use crate::BoxFuture;
use core::fmt;
use core::time::Duration;
use futures_util::future::{Either, select};
use std::pin::pin;

/// A point of the process's monotonic clock. Comparable only within one process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Moment(pub Duration);

impl Moment {
    /// The time from `earlier` to this moment, zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl core::ops::Add<Duration> for Moment {
    type Output = Self;
    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}s", self.0.as_secs_f64())
    }
}

/// The clocks of one process.
pub trait Clock: Send + Sync {
    /// The monotonic clock: never goes back, unrelated to the date.
    fn now(&self) -> Moment;
    /// Seconds since 1970 by the wall clock. May jump; nothing correct may depend on it.
    fn unix_seconds(&self) -> u64;
    /// The time since 1970 by the wall clock, as exactly as this clock knows it. May jump.
    fn unix_time(&self) -> Duration {
        Duration::from_secs(self.unix_seconds())
    }
    /// Ends when `duration` has passed on the monotonic clock.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// The time of [`timeout`] was up. Whatever the future did before stays done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimedOut;

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("timed out")
    }
}

impl std::error::Error for TimedOut {}

/// Runs `future` for at most `limit`, then drops it.
///
/// # Errors
/// [`TimedOut`] when the limit passes first.
pub async fn timeout<T>(
    clock: &dyn Clock,
    limit: Duration,
    future: impl Future<Output = T>,
) -> Result<T, TimedOut> {
    match select(pin!(future), clock.sleep(limit)).await {
        Either::Left((value, _)) => Ok(value),
        Either::Right(((), _)) => Err(TimedOut),
    }
}
