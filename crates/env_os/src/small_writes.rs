//! Where the small writes of a data directory are done: on the event loop, or on a blocking thread.
//!
//! A write to the page cache takes microseconds, less than handing it to another thread. It may
//! also wait for the device: when too many pages are dirty, or for the file system's journal. Where
//! the file system can say so instead (`RWF_NOWAIT`), it is asked, as on XFS. Many cannot for
//! buffered writes: ext4, tmpfs, and overlay over any of them. There a write that took long sends
//! those after it to blocking threads for a pause, until they are quick again (FILE-3).
//!
//! The first writes behind a pause are trials, one at a time over all event loops. Each looks
//! whether the thread slept meanwhile. A long one that did not sleep only waited for a processor,
//! so it counts as quick. A trial that was long and slept doubles the pause, so a device that stays
//! slow holds up event loops ever more seldom. After [`TRIALS`] quick ones the next pause is half
//! as long. A long write on a blocking thread may just have waited for a processor, so it puts
//! trials off by the shortest pause.
//!
//! All fields are hints between threads, so their order does not matter.

// This is the door that the rest of the workspace is sent to.
#![allow(clippy::disallowed_methods)]

use core::time::Duration;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// A write that takes longer has waited for something. Copying 64 KiB takes some ten microseconds.
const LONG: Duration = Duration::from_millis(1);
/// For how long after a long write none is tried on an event loop.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The same while the device stays slow.
const PAUSE_MAX: Duration = Duration::from_secs(64);
/// Writes behind a pause that are trials. Each costs a look at the kernel's counts, some 30 µs.
const TRIALS: u32 = 16;

/// Where a small write is done that might wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// On the event loop.
    Here,
    /// There, too, with a look whether its thread slept.
    Trial,
    /// On a blocking thread.
    Elsewhere,
}

#[derive(Debug)]
pub(crate) struct SmallWrites {
    start: Instant,
    /// The file system refuses `RWF_NOWAIT`.
    must_wait: AtomicBool,
    /// Until when writes go to blocking threads, in milliseconds since `start`.
    away_until_ms: AtomicU64,
    /// The next pause, in milliseconds.
    pause_ms: AtomicU64,
    /// Trials to come before the device counts as quick.
    trials: AtomicU32,
    /// Whether one is under way.
    is_trying: AtomicBool,
}

impl SmallWrites {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            must_wait: AtomicBool::new(false),
            away_until_ms: AtomicU64::new(0),
            pause_ms: AtomicU64::new(ms(PAUSE_MIN)),
            trials: AtomicU32::new(0),
            is_trying: AtomicBool::new(false),
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

    /// Where a write that may wait is done now. Behind [`Place::Trial`], [`Self::tried`] must come.
    pub(crate) fn place(&self, now: Duration) -> Place {
        if ms(now) < self.away_until_ms.load(Ordering::Relaxed) {
            return Place::Elsewhere;
        }
        if self.trials.load(Ordering::Relaxed) == 0 {
            return Place::Here;
        }
        match self.is_trying.swap(true, Ordering::Relaxed) {
            true => Place::Elsewhere,
            false => Place::Trial,
        }
    }

    /// A write on an event loop that might wait began and ended at these times.
    pub(crate) fn took(&self, began: Duration, ended: Duration) {
        if ended.saturating_sub(began) >= LONG {
            self.go_away(ended, self.pause_ms.load(Ordering::Relaxed));
        }
    }

    /// A write on a blocking thread began and ended at these times.
    pub(crate) fn took_elsewhere(&self, began: Duration, ended: Duration) {
        if ended.saturating_sub(began) >= LONG {
            self.go_away(ended, ms(PAUSE_MIN));
        }
    }

    fn go_away(&self, ended: Duration, pause_ms: u64) {
        let until = ms(ended).saturating_add(pause_ms);
        self.away_until_ms.fetch_max(until, Ordering::Relaxed);
        self.trials.store(TRIALS, Ordering::Relaxed);
    }

    /// A trial began and ended at these times; `slept` says whether its thread slept.
    pub(crate) fn tried(&self, began: Duration, ended: Duration, slept: bool) {
        let was_long = ended.saturating_sub(began) >= LONG;
        let pause = self.pause_ms.load(Ordering::Relaxed);
        if was_long && slept {
            let next = pause.saturating_mul(2).min(ms(PAUSE_MAX));
            self.pause_ms.store(next, Ordering::Relaxed);
            self.go_away(ended, next);
        } else {
            let left = self.trials.load(Ordering::Relaxed).saturating_sub(1);
            self.trials.store(left, Ordering::Relaxed);
            if left == 0 {
                let next = (pause / 2).max(ms(PAUSE_MIN));
                self.pause_ms.store(next, Ordering::Relaxed);
            }
        }
        self.is_trying.store(false, Ordering::Relaxed);
    }
}

/// How often this thread has slept; `None` where the kernel does not say.
pub(crate) fn sleeps() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let count = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count?.trim().parse().ok()
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    // shows: FILE-3
    #[test]
    fn after_a_long_write_others_go_elsewhere_for_a_pause() {
        let writes = SmallWrites::new();
        writes.took(at(10), at(10) + LONG / 2);
        assert_eq!(writes.place(at(11)), Place::Here);
        writes.took(at(11), at(31));
        assert_eq!(writes.place(at(31)), Place::Elsewhere);
        assert_eq!(writes.place(at(1_030)), Place::Elsewhere);
        // On another thread meanwhile.
        writes.took_elsewhere(at(500), at(502));
        assert_eq!(writes.place(at(1_501)), Place::Elsewhere);
        // One that had begun before ends with old news.
        writes.took_elsewhere(at(400), at(450));
        assert_eq!(writes.place(at(1_501)), Place::Elsewhere);
        assert_eq!(writes.place(at(1_502)), Place::Trial);
    }

    // shows: FILE-3
    #[test]
    fn a_device_that_stays_slow_is_tried_ever_more_seldom() {
        let writes = SmallWrites::new();
        let mut now = at(0);
        writes.took(now, now + LONG);
        let mut held_up = 0;
        while now < Duration::from_secs(1_000) {
            match writes.place(now) {
                Place::Elsewhere => {}
                Place::Trial => {
                    // Other loops write elsewhere meanwhile, and wait there.
                    assert_eq!(writes.place(now), Place::Elsewhere);
                    writes.took_elsewhere(now, now + at(5));
                    writes.tried(now, now + at(5), true);
                    held_up += 1;
                }
                Place::Here => panic!("a trial was quick at {now:?}"),
            }
            now += at(100);
        }
        // 2 + 4 + … + 64 s, then one in 64 s.
        assert!((19..=21).contains(&held_up), "{held_up}");
    }

    #[test]
    fn a_trial_that_waited_for_a_processor_lengthens_no_pause() {
        let writes = SmallWrites::new();
        writes.took(at(0), at(5));
        for _ in 0..TRIALS {
            assert_eq!(writes.place(at(2_000)), Place::Trial);
            writes.tried(at(2_000), at(2_020), false);
        }
        assert_eq!(writes.place(at(2_020)), Place::Here);
    }

    #[test]
    fn quick_trials_shorten_the_pause_again() {
        let writes = SmallWrites::new();
        writes.took(at(0), at(5));
        assert_eq!(writes.place(at(2_000)), Place::Trial);
        writes.tried(at(2_000), at(2_005), true);
        assert_eq!(writes.place(at(4_004)), Place::Elsewhere);
        // A long write elsewhere may have waited for a processor.
        writes.took_elsewhere(at(4_000), at(4_010));
        for _ in 0..TRIALS {
            assert_eq!(writes.place(at(5_010)), Place::Trial);
            writes.tried(at(5_010), at(5_010), true);
        }
        assert_eq!(writes.place(at(5_010)), Place::Here);
        writes.took(at(5_010), at(5_015));
        assert_eq!(writes.place(at(6_014)), Place::Elsewhere);
        assert_eq!(writes.place(at(6_015)), Place::Trial);
    }

    #[test]
    fn the_kernel_counts_how_often_a_thread_sleeps() {
        let before = sleeps().unwrap();
        std::thread::sleep(at(2));
        assert!(sleeps().unwrap() > before);
    }
}
