//! Readers of other processes: they have no slot, and nobody waits for one of them.
//!
//! A reader copies, and then sees whether memory was used again meanwhile (`protocol::counts`). If
//! memory were used again at once, slow readers would have to begin anew all the time. So while
//! there are such readers, retired memory rests for [`GRACE`] at least. With looks that follow each
//! other closely it rests for twice as long at most, whatever the readers do.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};

/// Retired memory rests as long as this while there are readers of other processes: ten thousand
/// times as long as a read takes, and some megabytes of appends.
pub const GRACE: Duration = Duration::from_millis(5);

/// A clock that never goes back.
#[derive(Clone)]
pub struct GraceClock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl GraceClock {
    /// The time since some moment.
    pub fn new(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }
}

impl fmt::Debug for GraceClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GraceClock")
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Foreign {
    clock: GraceClock,
    are_there: AtomicBool,
    seen: Mutex<Seen>,
}

/// Epochs that were current.
#[derive(Debug, Default)]
struct Seen {
    /// The epoch at some moment, and that moment.
    epoch: u64,
    at: Duration,
    /// An epoch that was current [`GRACE`] before `at`, or earlier.
    rested: u64,
}

impl Foreign {
    pub(super) fn new(clock: GraceClock) -> Self {
        Self {
            clock,
            are_there: AtomicBool::new(false),
            seen: Mutex::default(),
        }
    }

    /// Whether there are any. Only the time that memory rests depends on it.
    pub(super) fn are_there(&self, are_there: bool) {
        self.are_there.store(are_there, Ordering::Relaxed);
    }

    /// Memory with stamps below this has rested long enough; `epoch` is the current one.
    pub(super) fn rested_below(&self, epoch: u64) -> u64 {
        if !self.are_there.load(Ordering::Relaxed) {
            return u64::MAX;
        }
        let now = (self.clock.0)();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_sub(seen.at) >= GRACE {
            *seen = Seen {
                rested: seen.epoch,
                epoch,
                at: now,
            };
        }
        seen.rested
    }
}
