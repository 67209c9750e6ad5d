//! The clock that deadlines are judged by. It never goes back.
//!
//! It starts with the wall clock and goes on at the rate of the monotonic clock. It follows the
//! wall clock at 1 %, whichever way that is: one that jumps by an hour moves it by 36 seconds an
//! hour. A time that another owner may have judged by moves it forward at once.

use core::ops::Deref;
use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use core::time::Duration;
use pluvio_memory::GateWord;
use pluvio_units::UnixMs;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The part of the time that passes by which the clock may come nearer to the wall clock.
const FOLLOWS_PER: i64 = 100;

/// The time that deadlines are judged by, as a process knows it.
pub trait DeadlineTime: Send + Sync {
    /// A clock that never goes back.
    fn monotonic(&self) -> Duration;
    /// The wall clock, since 1970. May jump.
    fn wall(&self) -> Duration;
}

/// See the module.
#[derive(Default)]
pub(super) struct DeadlineClock {
    time: OnceLock<Box<dyn DeadlineTime>>,
    /// Milliseconds that it is ahead of the monotonic clock.
    ahead: AtomicI64,
    /// When [`Self::follow`] was called last, by the monotonic clock.
    followed: Mutex<i64>,
    /// The latest time that was judged by.
    judged: Judged,
}

/// A word, which other processes may read.
enum Judged {
    Own(AtomicU64),
    Shown(GateWord),
}

impl Default for Judged {
    fn default() -> Self {
        Self::Own(AtomicU64::new(0))
    }
}

impl Deref for Judged {
    type Target = AtomicU64;

    fn deref(&self) -> &AtomicU64 {
        match self {
            Self::Own(word) => word,
            Self::Shown(word) => word,
        }
    }
}

fn ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

impl DeadlineClock {
    /// One that keeps [`Self::judged`] where other processes see it.
    pub(super) fn judging_in(judged: GateWord) -> Self {
        Self {
            judged: Judged::Shown(judged),
            ..Self::default()
        }
    }

    /// Starts it; only the first call counts.
    pub(super) fn start(&self, time: Box<dyn DeadlineTime>) {
        let (monotonic, wall) = (ms(time.monotonic()), ms(time.wall()));
        if self.time.set(time).is_ok() {
            self.ahead.fetch_max(wall - monotonic, Ordering::AcqRel);
            *self.followed.lock().unwrap_or_else(PoisonError::into_inner) = monotonic;
        }
    }

    /// What it shows: 0 before it is started, so that nothing expires.
    pub(super) fn shown(&self) -> UnixMs {
        let Some(time) = self.time.get() else {
            return UnixMs(0);
        };
        let shown = ms(time.monotonic()).saturating_add(self.ahead.load(Ordering::Acquire));
        UnixMs(u64::try_from(shown).unwrap_or(0))
    }

    /// Says that deadlines are judged by this time now; gives the latest such time.
    pub(super) fn judge(&self, time: UnixMs) -> UnixMs {
        let known = self.judged();
        if time <= known {
            return known;
        }
        UnixMs(self.judged.fetch_max(time.0, Ordering::AcqRel)).max(time)
    }

    /// The latest time that was judged by.
    pub(super) fn judged(&self) -> UnixMs {
        UnixMs(self.judged.load(Ordering::Acquire))
    }

    /// Goes on from this time, if it is behind.
    pub(super) fn not_before(&self, time: UnixMs) {
        if let Some(clock) = self.time.get() {
            let time = i64::try_from(time.0).unwrap_or(i64::MAX);
            let ahead = time.saturating_sub(ms(clock.monotonic()));
            self.ahead.fetch_max(ahead, Ordering::AcqRel);
        }
    }

    /// Comes nearer to the wall clock. To be called from time to time.
    pub(super) fn follow(&self) {
        let Some(time) = self.time.get() else {
            return;
        };
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        let monotonic = ms(time.monotonic());
        let step = (monotonic - *followed) / FOLLOWS_PER;
        if step <= 0 {
            return;
        }
        *followed = monotonic;
        let wanted = ms(time.wall()).saturating_sub(monotonic);
        let away = wanted.saturating_sub(self.ahead.load(Ordering::Acquire));
        self.ahead
            .fetch_add(away.clamp(-step, step), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Hands(Arc<(AtomicU64, AtomicU64)>);

    impl Hands {
        fn set(&self, monotonic: u64, wall: u64) {
            self.0.0.store(monotonic, Ordering::Relaxed);
            self.0.1.store(wall, Ordering::Relaxed);
        }
    }

    impl DeadlineTime for Hands {
        fn monotonic(&self) -> Duration {
            Duration::from_millis(self.0.0.load(Ordering::Relaxed))
        }

        fn wall(&self) -> Duration {
            Duration::from_millis(self.0.1.load(Ordering::Relaxed))
        }
    }

    // shows: EXPIRY-1
    #[test]
    fn a_wall_clock_that_jumps_is_followed_slowly_and_nothing_goes_back() {
        let hands = Hands::default();
        let clock = DeadlineClock::default();
        assert_eq!(clock.shown(), UnixMs(0));
        hands.set(1_000, 5_000_000);
        clock.start(Box::new(hands.clone()));
        assert_eq!(clock.shown(), UnixMs(5_000_000));
        // An hour back.
        hands.set(11_000, 1_410_000);
        assert_eq!(clock.judge(clock.shown()), UnixMs(5_010_000));
        clock.follow();
        assert_eq!(clock.shown(), UnixMs(5_009_900));
        assert_eq!(clock.judge(clock.shown()), UnixMs(5_010_000));
        // An hour ahead.
        hands.set(21_000, 8_620_000);
        clock.follow();
        assert_eq!(clock.shown(), UnixMs(5_020_000));
        assert_eq!(clock.judge(clock.shown()), UnixMs(5_020_000));
        // Right again, it stays there.
        hands.set(31_000, 5_030_001);
        clock.follow();
        assert_eq!(clock.shown(), UnixMs(5_030_001));
    }

    // shows: EXPIRY-2
    #[test]
    fn it_goes_on_from_the_time_of_another_owner() {
        let hands = Hands::default();
        let clock = DeadlineClock::default();
        hands.set(0, 1_000);
        clock.start(Box::new(hands.clone()));
        clock.not_before(UnixMs(500));
        assert_eq!(clock.shown(), UnixMs(1_000));
        clock.not_before(UnixMs(3_000));
        assert_eq!(clock.shown(), UnixMs(3_000));
        hands.set(100_000, 101_000);
        clock.follow();
        assert_eq!(
            clock.shown(),
            UnixMs(102_000),
            "the lead is given back at 1 %"
        );
    }
}
