//! Adaptive polling: after some activity, an event loop looks for more for a short time before it
//! sleeps in the kernel. This about halves the latency of a request, and takes a whole processor
//! while requests come. It is off by default.
//!
//! How it works:
//! 1. A task that yields again and again keeps tokio's loop from sleeping; the loop then polls the
//!    sockets in every round without waiting.
//! 2. The task stops once the loop's other tasks have not been polled for the given time.
//! 3. The task starts again when the loop wakes from a sleep.
//!
//! Threads: an `Activity` is written by its own loop only; its atomics are for the compiler.

use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use core::task::{Context, Poll};
use core::time::Duration;
use pluvio_env::{BoxFuture, Clock};
use std::sync::Arc;
use tokio::sync::Notify;

/// The activity of one event loop.
#[derive(Default, Debug)]
pub(crate) struct Activity {
    /// Number of polls of tasks. Relaxed: read by the same thread.
    polls: AtomicU64,
    /// Whether the spinning task waits for `woken`. Relaxed: as above.
    resting: AtomicBool,
    woken: Notify,
}

impl Activity {
    /// The loop came back from the kernel.
    pub(crate) fn loop_woke(&self) {
        if self.resting.swap(false, Relaxed) {
            self.woken.notify_one();
        }
    }
}

/// Keeps the loop awake for `spin` after each activity. Never ends.
pub(crate) async fn keep_awake(activity: Arc<Activity>, clock: Arc<dyn Clock>, spin: Duration) {
    loop {
        let mut seen = activity.polls.load(Relaxed);
        let mut since = clock.now();
        loop {
            tokio::task::yield_now().await;
            let polls = activity.polls.load(Relaxed);
            let now = clock.now();
            if polls != seen {
                seen = polls;
                since = now;
            } else if now.since(since) >= spin {
                break;
            }
        }
        activity.resting.store(true, Relaxed);
        activity.woken.notified().await;
    }
}

/// A task whose polls are counted.
pub(crate) struct Counted {
    pub(crate) task: BoxFuture<'static, ()>,
    pub(crate) activity: Arc<Activity>,
}

impl Future for Counted {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let polls = self.activity.polls.load(Relaxed);
        self.activity.polls.store(polls.wrapping_add(1), Relaxed);
        self.task.as_mut().poll(cx)
    }
}
