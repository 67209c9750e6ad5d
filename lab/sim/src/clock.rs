//! Virtual time as one process sees it.

use crate::executor::Shared;
use crate::queue::Event;
use crate::slab::Key;
use crate::state::Owner;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use pluvio_env::{BoxFuture, Clock, Moment};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const MILLION: i128 = 1_000_000;

/// Nanoseconds of `duration`, saturating after 584 years.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// How the monotonic clock of one incarnation relates to virtual time: it starts somewhere and
/// runs a little too fast or too slow.
#[derive(Clone, Copy)]
pub(crate) struct ProcessClock {
    pub(crate) offset: u64,
    pub(crate) drift_ppm: i32,
}

impl ProcessClock {
    /// What the clock shows at `virtual_time`.
    fn reading(self, virtual_time: u64) -> u64 {
        if self.drift_ppm == 0 {
            return self.offset.saturating_add(virtual_time);
        }
        let scaled = i128::from(virtual_time) * (MILLION + i128::from(self.drift_ppm)) / MILLION;
        self.offset
            .saturating_add(u64::try_from(scaled).unwrap_or(u64::MAX))
    }

    /// The first virtual time, not before `now`, at which the clock shows at least `duration`
    /// more than it does at `now`.
    pub(crate) fn later(self, now: u64, duration: Duration) -> u64 {
        let duration = nanos(duration);
        if self.drift_ppm == 0 {
            return now.saturating_add(duration);
        }
        let target = self.reading(now).saturating_add(duration) - self.offset;
        let rate = u128::try_from(MILLION + i128::from(self.drift_ppm))
            .expect("the options bound the drift below one million");
        let virtual_time = (u128::from(target) * 1_000_000).div_ceil(rate);
        u64::try_from(virtual_time).unwrap_or(u64::MAX).max(now)
    }
}

/// The clock of one incarnation.
pub(crate) struct SimClock {
    pub(crate) shared: Arc<Shared>,
    pub(crate) owner: Owner,
    pub(crate) clock: ProcessClock,
    /// What the wall clock showed at virtual time zero, in seconds. Shared with the process, so
    /// that a test can make it jump.
    pub(crate) unix: Arc<AtomicU64>,
}

impl Clock for SimClock {
    fn now(&self) -> Moment {
        Moment(Duration::from_nanos(self.clock.reading(self.shared.now())))
    }

    fn unix_seconds(&self) -> u64 {
        let passed = self.shared.now() / 1_000_000_000;
        self.unix.load(Ordering::Relaxed).saturating_add(passed)
    }

    fn unix_time(&self) -> Duration {
        let zero = Duration::from_secs(self.unix.load(Ordering::Relaxed));
        zero.saturating_add(Duration::from_nanos(self.shared.now()))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(Sleep {
            shared: Arc::clone(&self.shared),
            owner: self.owner,
            deadline: self.clock.later(self.shared.now(), duration),
            key: Key::NONE,
        })
    }
}

/// A timer that somebody waits for.
pub(crate) struct Timer {
    pub(crate) owner: Owner,
    pub(crate) task: Option<Key>,
    pub(crate) deadline: u64,
    pub(crate) waker: Waker,
}

struct Sleep {
    shared: Arc<Shared>,
    owner: Owner,
    deadline: u64,
    key: Key,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.shared.now() >= self.deadline {
            return Poll::Ready(());
        }
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        if !state.is_alive(self.owner) {
            return Poll::Pending;
        }
        if let Some(timer) = state.timers.get_mut(self.key) {
            let old = (!timer.waker.will_wake(context.waker()))
                .then(|| std::mem::replace(&mut timer.waker, context.waker().clone()));
            drop(state);
            drop(old);
            return Poll::Pending;
        }
        let timer = Timer {
            owner: self.owner,
            task: state.current.as_ref().and_then(|current| current.task),
            deadline: self.deadline,
            waker: context.waker().clone(),
        };
        self.key = state.timers.insert(timer);
        state.queue.push(self.deadline, Event::Timer(self.key));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if self.key == Key::NONE {
            return;
        }
        let mut state = self.shared.lock();
        let timer = state.timers.remove(self.key);
        if timer.is_some() {
            state.note_stale();
        }
        drop(state);
        drop(timer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drifting_clock_has_passed_the_duration_when_its_sleep_ends_and_not_much_earlier() {
        for drift_ppm in [-900_000, -200, -1, 0, 1, 200, 500_000] {
            let clock = ProcessClock {
                offset: 12_345,
                drift_ppm,
            };
            for now in [0, 1, 999_999, 86_400_000_000_000] {
                for duration in [0, 1, 7, 1_000_003, 5_000_000_000] {
                    let end = clock.later(now, Duration::from_nanos(duration));
                    assert!(clock.reading(end) - clock.reading(now) >= duration);
                    assert!(
                        end == now || clock.reading(end - 1) - clock.reading(now) < duration,
                        "drift {drift_ppm} now {now} duration {duration}"
                    );
                }
            }
        }
    }
}
