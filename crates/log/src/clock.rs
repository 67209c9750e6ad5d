//! The log's time: seconds of the cluster, as appends and the cleaner's driver tell it.
//!
//! It never goes back: new segments are created "then", and the cleaner goes by their ages.

use core::sync::atomic::{AtomicU32, Ordering};

/// Entries of other servers, whose clocks differ, may be this many seconds ahead of ours. A time
/// further ahead means that our clock was set back.
const AHEAD_MAX_S: u32 = 60;

/// See the module.
pub(crate) struct LogClock {
    /// The newest time seen.
    newest_s: AtomicU32,
    /// Seconds by which the clock of the machine was set back, in all.
    behind_s: AtomicU32,
}

impl LogClock {
    pub(crate) fn new(now_s: u32) -> Self {
        Self {
            newest_s: AtomicU32::new(now_s),
            behind_s: AtomicU32::new(0),
        }
    }

    #[inline]
    pub(crate) fn now_s(&self) -> u32 {
        self.newest_s.load(Ordering::Relaxed)
    }

    /// An earlier time than the one known changes nothing.
    #[inline]
    pub(crate) fn set(&self, now_s: u32) {
        // The load keeps the line shared; the time changes once a second.
        if self.newest_s.load(Ordering::Relaxed) < now_s {
            self.newest_s.fetch_max(now_s, Ordering::Relaxed);
        }
    }

    /// Tells it what the clock of this machine shows. When that was set back, the log's time goes
    /// on from where it was. Otherwise no time would pass until the clock has caught up, and all
    /// segments would be equally young.
    pub(crate) fn follow(&self, now_s: u32) {
        let behind_s = self.behind_s.load(Ordering::Relaxed);
        let time_s = now_s.saturating_add(behind_s);
        let more_s = self.now_s().saturating_sub(time_s);
        if more_s > AHEAD_MAX_S {
            // Another cleaner may have seen it first.
            let _first = self.behind_s.compare_exchange(
                behind_s,
                behind_s.saturating_add(more_s),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        } else {
            self.set(time_s);
        }
    }
}
