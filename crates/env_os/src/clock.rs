//! The clocks of the operating system. Owns nothing but the point it counts from.

// This is the door that the rest of the workspace is sent to.
#![allow(clippy::disallowed_methods)]

use crate::runtime::current_core;
use core::time::Duration;
use pluvio_env::{BoxFuture, Clock, Moment};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Handle;

/// `CLOCK_MONOTONIC`, counted from the start of the runtime, and the wall clock.
#[derive(Debug)]
pub struct OsClock {
    /// By `CLOCK_MONOTONIC`.
    start: Duration,
    /// The event loop that keeps the timers of threads that have none.
    fallback: Handle,
}

impl OsClock {
    pub(crate) fn new(fallback: Handle) -> Self {
        Self {
            start: read(ClockId::Monotonic),
            fallback,
        }
    }
}

/// What a clock shows. One set before 1970 is as good as any other wrong one.
fn read(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

impl Clock for OsClock {
    fn now(&self) -> Moment {
        Moment(read(ClockId::Monotonic).saturating_sub(self.start))
    }

    fn unix_seconds(&self) -> u64 {
        // Read for every change; a kernel's tick more or less is nothing to a second.
        read(ClockId::RealtimeCoarse).as_secs()
    }

    fn unix_time(&self) -> Duration {
        read(ClockId::Realtime)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        // A timer belongs to the event loop it is made on, wherever it is polled.
        if current_core().is_some() {
            Box::pin(tokio::time::sleep(duration))
        } else {
            let _inside = self.fallback.enter();
            Box::pin(tokio::time::sleep(duration))
        }
    }
}
