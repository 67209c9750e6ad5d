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

/// Retired memory rests as long as this while there are readers of other processes. It is ten
/// thousand times as long as a read takes, and some megabytes of appends.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch::ReclaimEpochs;
    use crate::gate::{GatePage, GateView, NotCounted};
    use core::sync::atomic::AtomicU64;

    const GRACE_US: u64 = 5_000;

    /// Epochs with a reader in another process, and their clock in microseconds.
    struct Stepped {
        epochs: ReclaimEpochs,
        view: GateView,
        us: Arc<AtomicU64>,
    }

    impl Stepped {
        fn new() -> Self {
            let gate = GatePage::new(1).unwrap();
            let us = Arc::new(AtomicU64::new(77_000_000));
            let clock = Arc::clone(&us);
            let now = move || Duration::from_micros(clock.load(Ordering::Relaxed));
            let epochs = ReclaimEpochs::in_gate(&gate, 1, GraceClock::new(now));
            let view = GateView::open(gate.file(), gate.bytes()).unwrap();
            epochs.foreign_readers(true);
            Self { epochs, view, us }
        }

        fn pass(&self, us: u64) {
            self.us.fetch_add(us, Ordering::Relaxed);
        }

        /// Looks every `pause`, some times, and retires something `phase` after the last look.
        /// Gives how long it rests, while a reader that has begun before stands still for ever.
        fn rest(&self, pause: u64, looks: u64, phase: u64) -> u64 {
            for _look in 0..looks {
                let _others = self.epochs.frontier();
                self.pass(pause);
            }
            let _look = self.epochs.frontier();
            self.pass(phase);
            let (stopped, version) = (self.view.begin(), self.view.version());
            let stamp = self.epochs.retire_epoch();
            let mut rested = 0;
            let mut until_look = pause - phase;
            loop {
                self.pass(until_look);
                rested += until_look;
                until_look = pause;
                if self.epochs.is_quiesced(stamp) {
                    // It reads on at last: what it has copied does not count.
                    let counts = self.view.check(stopped, version);
                    assert_eq!(counts, Err(NotCounted::Reused), "{pause} {phase}");
                    return rested;
                }
                assert_eq!(self.view.check(stopped, version), Ok(()), "{pause} {phase}");
                assert!(rested < 100 * GRACE_US, "it never comes back");
            }
        }
    }

    #[test]
    fn a_reader_that_is_dead_or_stands_still_holds_memory_back_5_to_10_ms() {
        assert_eq!(GRACE, Duration::from_micros(GRACE_US));
        let stepped = Stepped::new();
        let (mut least, mut most) = (u64::MAX, 0);
        for pause in [100, 500, 1_000, 2_500, 5_000] {
            // The looks begin at any moment of those that count.
            for more in 0..GRACE_US / pause {
                for phase in (0..pause).step_by(50) {
                    let rested = stepped.rest(pause, 2 * GRACE_US / pause + more, phase);
                    assert!(
                        (GRACE_US..=2 * GRACE_US).contains(&rested),
                        "{rested} µs with looks every {pause}, {phase} after one"
                    );
                    (least, most) = (least.min(rested), most.max(rested));
                }
            }
        }
        assert_eq!((least, most), (5_050, 10_000), "the bounds are reached");
    }

    #[test]
    fn looks_that_come_seldom_find_what_has_rested_since_the_last_but_one() {
        let stepped = Stepped::new();
        for pause in [7_000, 50_000] {
            for phase in [0, 1, pause - 1] {
                let rested = stepped.rest(pause, 3, phase);
                assert_eq!(rested, 2 * pause - phase, "{pause} {phase}");
            }
        }
    }

    #[test]
    fn without_readers_nothing_rests_and_later_ones_take_nothing_back() {
        let stepped = Stepped::new();
        let held_back = stepped.epochs.retire_epoch();
        assert!(!stepped.epochs.is_quiesced(held_back));
        stepped.epochs.foreign_readers(false);
        assert!(stepped.epochs.is_quiesced(held_back));
        let free = stepped.epochs.retire_epoch();
        assert!(stepped.epochs.is_quiesced(free));
        stepped.epochs.foreign_readers(true);
        assert!(
            stepped.epochs.is_quiesced(free),
            "an earlier look covers it"
        );
        let held_back = stepped.epochs.retire_epoch();
        assert!(!stepped.epochs.is_quiesced(held_back));
    }
}
