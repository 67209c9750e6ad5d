//! The clocks of the operating system. Owns nothing but the point it counts from.

// This is the door that the rest of the workspace is sent to.
#![allow(clippy::disallowed_methods)]

use crate::runtime::current_core;
use core::time::Duration;
use pluvio_env::{BoxFuture, Clock, Moment};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::runtime::Handle;

/// `CLOCK_MONOTONIC`, counted from the start of the runtime, and the wall clock.
#[derive(Debug)]
pub struct OsClock {
    start: Instant,
    /// The event loop that keeps the timers of threads that have none.
    fallback: Handle,
}

impl OsClock {
    pub(crate) fn new(fallback: Handle) -> Self {
        Self {
            start: Instant::now(),
            fallback,
        }
    }
}

impl Clock for OsClock {
    fn now(&self) -> Moment {
        Moment(self.start.elapsed())
    }

    fn unix_seconds(&self) -> u64 {
        // A clock set before 1970 is as good as any other wrong one.
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs())
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
