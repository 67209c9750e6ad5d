//! Virtual time and the loop that moves it.

use super::{FakeCluster, State};
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use pluvio_env::{BoxFuture, Clock, Moment};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

pub(super) struct FakeClock(pub(super) FakeCluster);

/// The wall clock when the other one shows `now`.
pub(super) fn unix_time(now: Duration) -> Duration {
    Duration::from_secs(1_700_000_000) + now
}

impl Clock for FakeClock {
    fn now(&self) -> Moment {
        Moment(self.0.state().now)
    }
    fn unix_seconds(&self) -> u64 {
        self.unix_time().as_secs()
    }
    fn unix_time(&self) -> Duration {
        unix_time(self.0.state().now)
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let until = self.0.state().now + duration;
        Box::pin(Sleep {
            cluster: self.0.clone(),
            until,
            timer: None,
        })
    }
}

struct Sleep {
    cluster: FakeCluster,
    until: Duration,
    timer: Option<(Duration, u64)>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let cluster = self.cluster.clone();
        let mut state = cluster.state();
        if let Some(timer) = self.timer.take() {
            state.timers.remove(&timer);
        }
        if state.now >= self.until {
            return Poll::Ready(());
        }
        state.timer_last += 1;
        let timer = (self.until, state.timer_last);
        state.timers.insert(timer, context.waker().clone());
        self.timer = Some(timer);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            self.cluster.state().timers.remove(&timer);
        }
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl State {
    /// Moves time to the next timer.
    fn next_timer(&mut self) -> Option<Waker> {
        let ((at, _), waker) = self.timers.pop_first()?;
        self.now = self.now.max(at);
        Some(waker)
    }
}

impl FakeCluster {
    /// Runs a future to its end. Time passes only while it waits, and then at once.
    ///
    /// # Panics
    /// When the future waits for something that cannot happen.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let flag = Arc::new(Flag(AtomicBool::new(false)));
        let waker = Waker::from(flag.clone());
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                return value;
            }
            self.poll_tasks(&mut context);
            while !flag.0.swap(false, Ordering::SeqCst) {
                let timer = self.state().next_timer();
                timer
                    .expect("the future waits, and no timer is left that could wake it")
                    .wake();
            }
        }
    }
}

impl crate::blocking::BlockOn for FakeCluster {
    fn block_on<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        self.run(future)
    }
}
