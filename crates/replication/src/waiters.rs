//! Waiting for a position to become durable.

use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use pluvio_log::LogSpace;
use pluvio_units::{LogId, LogPosition};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The tasks that wait for one log, by the position that they wait for.
#[derive(Default)]
pub(crate) struct Waiters(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    wakers: BTreeMap<(LogPosition, u64), Waker>,
    last: u64,
}

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all that wait for a position up to `durable`; to be called after the log knows it.
    pub(crate) fn wake(&self, durable: LogPosition) {
        let ready = {
            let mut waiting = self.lock();
            let later = waiting.wakers.split_off(&(durable, u64::MAX));
            std::mem::replace(&mut waiting.wakers, later)
        };
        // Outside the lock: a waker may run the task at once.
        ready.into_values().for_each(Waker::wake);
    }

    /// A number for a party that waits again and again.
    pub(crate) fn number(&self) -> u64 {
        let mut waiting = self.lock();
        waiting.last += 1;
        waiting.last
    }

    /// Lets `waker` be woken when `position` is durable, in place of an earlier one of the same
    /// number for that position. The caller looks again afterwards (REP-11).
    pub(crate) fn enter(&self, position: LogPosition, number: u64, waker: &Waker) {
        let mut waiting = self.lock();
        waiting.wakers.insert((position, number), waker.clone());
    }

    /// Gives up waiting.
    pub(crate) fn leave(&self, position: LogPosition, number: u64) {
        self.lock().wakers.remove(&(position, number));
    }

    /// How many wait.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().wakers.len()
    }
}

/// Ends when a log is durable up to a position. Dropping it gives up waiting.
#[must_use = "nothing is durable before this was awaited"]
pub struct Synced {
    pub(crate) space: Arc<LogSpace>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) log: LogId,
    pub(crate) position: LogPosition,
    pub(crate) key: Option<u64>,
}

impl Future for Synced {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.space.is_durable(self.log, self.position) {
            return Poll::Ready(());
        }
        let key = self.key.unwrap_or_else(|| self.waiters.number());
        self.waiters.enter(self.position, key, context.waker());
        self.key = Some(key);
        // REP-11: the position may have become durable before the waker was there to be woken.
        if self.space.is_durable(self.log, self.position) {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Drop for Synced {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.waiters.leave(self.position, key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::task::Context;
    use futures_util::task::{ArcWake, waker};
    use pluvio_log::{Durability, LogOptions};
    use pluvio_units::Size;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Bell(AtomicUsize);

    impl ArcWake for Bell {
        fn wake_by_ref(bell: &Arc<Self>) {
            bell.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn space() -> Arc<LogSpace> {
        let mut options = LogOptions::new(Size::mib(32));
        options.durability = Durability::Replicated;
        LogSpace::new(options).expect("has memory")
    }

    // shows: REP-11
    #[test]
    fn those_who_wait_are_woken_when_their_position_is_durable_and_not_before() {
        let (space, waiters, log) = (space(), Arc::new(Waiters::default()), LogId(0));
        let head = space.end_position(log);
        let at = |offset| LogPosition { offset, ..head };
        let wait = |offset| Synced {
            space: Arc::clone(&space),
            waiters: Arc::clone(&waiters),
            log,
            position: at(offset),
            key: None,
        };
        let (bells, mut waits): (Vec<_>, Vec<_>) = (1..=100)
            .map(|offset| (Arc::new(Bell::default()), wait(offset)))
            .unzip();
        for (bell, wait) in bells.iter().zip(&mut waits) {
            for _ in 0..2 {
                let waker = waker(Arc::clone(bell));
                assert!(
                    Pin::new(&mut *wait)
                        .poll(&mut Context::from_waker(&waker))
                        .is_pending()
                );
            }
        }
        assert_eq!(waiters.len(), 100);
        drop(waits.pop());
        assert_eq!(
            waiters.len(),
            99,
            "a wait that is given up leaves nothing behind"
        );
        space.advance_durable(log, at(40));
        waiters.wake(at(40));
        for (i, (bell, wait)) in bells.iter().zip(&mut waits).enumerate() {
            let durable = i < 40;
            assert_eq!(
                bell.0.load(Ordering::Relaxed),
                usize::from(durable),
                "REP-11, waiter {i}"
            );
            let waker = waker(Arc::clone(bell));
            let poll = Pin::new(wait).poll(&mut Context::from_waker(&waker));
            assert_eq!(poll.is_ready(), durable);
        }
    }
}
