//! Looks at the rings of one core for a while after each arrival, before they sleep.
//!
//! How it works:
//! 1. A connection that finds its ring empty gives it to the poller. The other side sees no
//!    sleeper, and makes no system call to wake it.
//! 2. The poller's task looks at all such rings in turn. It wakes the task of a connection for
//!    which something has come, and looks at that ring no more until it is given anew. It gives way
//!    to the other tasks all the time, and so keeps the event loop from sleeping.
//! 3. When nothing has come for the length of the window, all rings are marked as asleep, and the
//!    poller rests.
//!
//! The window adapts itself between two bounds ([`Window`]).
//!
//! Threads: used by the tasks of one core. Its lock is for the compiler; nobody waits for it.

use crate::lock;
use crate::ring::halves::{Place, is_news, say_asleep_at};
use crate::window::Window;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use core::task::Waker;
use core::time::Duration;
use pluvio_env::{Clock, Moment};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// Looks at all rings before other tasks have their turn: together about a microsecond, so that
/// timers and sockets wait no longer than that.
const LOOKS: u32 = 16;

/// A ring that a connection reads, as the poller sees it.
#[derive(Debug)]
pub(super) struct Watched {
    place: Place,
    /// The offset of the next record's word.
    next: AtomicU64,
    is_listed: AtomicBool,
    waker: Mutex<Option<Waker>>,
    /// Since when the ring sleeps, if it does.
    asleep_since: Mutex<Option<Moment>>,
}

impl Watched {
    pub(super) fn new(place: Place) -> Arc<Self> {
        Arc::new(Self {
            place,
            next: AtomicU64::new(0),
            is_listed: AtomicBool::new(false),
            waker: Mutex::new(None),
            asleep_since: Mutex::new(None),
        })
    }

    fn has_news(&self) -> bool {
        is_news(&self.place, self.next.load(Relaxed))
    }

    /// Puts the connection's task into the queue of this core.
    fn wake(&self) {
        if let Some(waker) = &*lock(&self.waker) {
            waker.wake_by_ref();
        }
    }
}

/// The rings of one core that are looked at.
pub(crate) struct Poller {
    clock: Arc<dyn Clock>,
    /// The window changes at all.
    is_adaptive: bool,
    state: Mutex<State>,
    begun: Notify,
}

struct State {
    watched: Vec<Arc<Watched>>,
    window: Window,
    is_resting: bool,
}

impl Poller {
    /// The window is never shorter than `window_min`, and adapts itself up to `window_max`.
    pub(crate) fn new(clock: Arc<dyn Clock>, window_min: Duration, window_max: Duration) -> Self {
        let window = Window::new(window_min, window_max);
        Self {
            clock,
            is_adaptive: window.is_adaptive(),
            state: Mutex::new(State {
                watched: Vec::new(),
                window,
                is_resting: true,
            }),
            begun: Notify::new(),
        }
    }

    /// Has `waker` woken when something comes at `next`. Gives whether the poller looks; if not,
    /// the ring must sleep.
    pub(super) fn watch(&self, watched: &Arc<Watched>, next: u64, waker: &Waker) -> bool {
        let mut state = lock(&self.state);
        if state.window.length().is_zero() {
            return false;
        }
        watched.next.store(next, Relaxed);
        {
            let mut there = lock(&watched.waker);
            if !there.as_ref().is_some_and(|old| old.will_wake(waker)) {
                *there = Some(waker.clone());
            }
        }
        if !watched.is_listed.swap(true, Relaxed) {
            state.watched.push(Arc::clone(watched));
        }
        if core::mem::replace(&mut state.is_resting, false) {
            self.begun.notify_one();
        }
        true
    }

    /// Looks at a ring no more.
    pub(super) fn forget(&self, watched: &Arc<Watched>) {
        if watched.is_listed.swap(false, Relaxed) {
            let mut state = lock(&self.state);
            state.watched.retain(|other| !Arc::ptr_eq(other, watched));
        }
    }

    /// Notes that a ring is about to sleep.
    pub(super) fn note_sleep(&self, watched: &Watched) {
        if self.is_adaptive {
            *lock(&watched.asleep_since) = Some(self.clock.now());
        }
    }

    /// Notes that something has come for a ring. If it slept, the window adapts itself.
    pub(super) fn note_news(&self, watched: &Watched) {
        let Some(since) = lock(&watched.asleep_since).take() else {
            return;
        };
        let slept = self.clock.now().since(since);
        lock(&self.state).window.note_news(slept);
    }

    /// Looks until nothing has come for the length of the window; then begins again. Never ends.
    pub(crate) async fn run(&self) {
        loop {
            self.begun.notified().await;
            let mut since = self.clock.now();
            loop {
                let found = self.look();
                let now = self.clock.now();
                if found {
                    since = now;
                } else if self.rest_if_over(now.since(since)) {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
    }

    /// Looks at all rings some times, until something is found. Wakes those that have it.
    fn look(&self) -> bool {
        let mut state = lock(&self.state);
        for _ in 0..LOOKS {
            let before = state.watched.len();
            state.watched.retain(|watched| {
                let has_news = watched.has_news();
                if has_news {
                    watched.is_listed.store(false, Relaxed);
                    watched.wake();
                }
                !has_news
            });
            if state.watched.len() < before {
                return true;
            }
            core::hint::spin_loop();
        }
        false
    }

    /// Puts all rings to sleep when the window is over. Gives whether it was.
    fn rest_if_over(&self, idle: Duration) -> bool {
        let mut state = lock(&self.state);
        if idle < state.window.length() {
            return false;
        }
        state.is_resting = true;
        let watched = core::mem::take(&mut state.watched);
        drop(state);
        for watched in watched {
            watched.is_listed.store(false, Relaxed);
            self.note_sleep(&watched);
            say_asleep_at(&watched.place);
            // RING-3: it looks once more. Otherwise the other side wakes its task by the socket.
            if watched.has_news() {
                watched.wake();
            }
        }
        true
    }
}
