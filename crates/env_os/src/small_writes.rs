//! Where the small writes of a data directory are done: on the event loop, or on a blocking thread.
//!
//! A write to the page cache takes microseconds, less than handing it to another thread. It may
//! also wait for the device: when too many pages are dirty, or for the file system's journal. Where
//! the file system can say so instead (`RWF_NOWAIT`), it is asked, as on XFS. Many cannot for
//! buffered writes: ext4, tmpfs, and overlay over any of them. There a write that took long sends
//! those after it to blocking threads, until they are quick again (FILE-3).
//!
//! All fields are hints between threads, so their order does not matter.

// This is the door that the rest of the workspace is sent to.
#![allow(clippy::disallowed_methods)]

use core::time::Duration;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// A write that takes longer has waited for something. Copying 64 KiB takes some ten microseconds.
const LONG: Duration = Duration::from_millis(1);
/// For how long after a long write none is tried on an event loop.
const AWAY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct SmallWrites {
    start: Instant,
    /// The file system refuses `RWF_NOWAIT`.
    must_wait: AtomicBool,
    /// Until when writes go to blocking threads, in milliseconds since `start`.
    away_until_ms: AtomicU64,
}

impl SmallWrites {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            must_wait: AtomicBool::new(false),
            away_until_ms: AtomicU64::new(0),
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Whether to ask the file system for a write that does not wait.
    pub(crate) fn may_ask(&self) -> bool {
        !self.must_wait.load(Ordering::Relaxed)
    }

    /// The file system does not know of such writes.
    pub(crate) fn cannot_ask(&self) {
        self.must_wait.store(true, Ordering::Relaxed);
    }

    /// Whether a write that may wait is done on the event loop.
    pub(crate) fn are_quick(&self, now: Duration) -> bool {
        now.as_millis() >= u128::from(self.away_until_ms.load(Ordering::Relaxed))
    }

    /// A write that might wait began and ended at these times.
    pub(crate) fn took(&self, began: Duration, ended: Duration) {
        if ended.saturating_sub(began) < LONG {
            return;
        }
        let until = u64::try_from((ended + AWAY).as_millis()).unwrap_or(u64::MAX);
        self.away_until_ms.fetch_max(until, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // shows: FILE-3
    #[test]
    fn after_a_long_write_others_go_elsewhere_until_none_was_long_for_a_second() {
        let ms = Duration::from_millis;
        let writes = SmallWrites::new();
        writes.took(ms(10), ms(10) + LONG / 2);
        assert!(writes.are_quick(ms(11)));
        writes.took(ms(11), ms(31));
        assert!(!writes.are_quick(ms(31)) && !writes.are_quick(ms(1_030)));
        assert!(writes.are_quick(ms(1_031)));
        // On another thread meanwhile.
        writes.took(ms(500), ms(502));
        assert!(!writes.are_quick(ms(1_501)));
        assert!(writes.are_quick(ms(1_502)));
        // One that had begun before ends with old news.
        writes.took(ms(400), ms(450));
        assert!(writes.are_quick(ms(1_502)));
    }
}
