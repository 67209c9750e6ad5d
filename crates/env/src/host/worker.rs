//! A thread that does steps until its step says it is done, or its owner drops it.

use crate::Pace;
use core::time::Duration;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// A running worker. Dropping it ends the thread after its current step and waits for that.
pub struct Worker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// [`Worker::wake`] was called since the last sleep.
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Shared {
    fn woken(&self) -> MutexGuard<'_, bool> {
        // Only a flag: no half-done state is possible.
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep(&self, at_most: Duration) {
        let mut woken = self.woken();
        if !*woken {
            (woken, _) = self
                .changed
                .wait_timeout(woken, at_most)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *woken = false;
    }

    fn wake(&self) {
        // A caller that set the flag has also notified the worker. While the flag is still set, a
        // further call need not make that system call again.
        if !std::mem::replace(&mut *self.woken(), true) {
            self.changed.notify_one();
        }
    }
}

impl Worker {
    pub(crate) fn start(
        name: String,
        mut step: Box<dyn FnMut() -> Pace + Send>,
    ) -> Result<Self, std::io::Error> {
        let shared = Arc::<Shared>::default();
        let own = Arc::clone(&shared);
        let thread = Builder::new().name(name).spawn(move || {
            while !own.stop.load(Ordering::Acquire) {
                match step() {
                    Pace::Again => {}
                    Pace::After(pause) => own.sleep(pause),
                    Pace::Done => return,
                }
            }
        })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Ends the worker's pause, or its next one.
    pub fn wake(&self) {
        self.shared.wake();
    }

    /// Whether the thread has ended: its step said so, or panicked.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            // The thread has reported a panic of its step. The owner goes on.
            let _panicked = thread.join();
        }
    }
}

impl core::fmt::Debug for Worker {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Worker")
            .field("dead", &self.is_dead())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_worker_steps_until_it_is_dropped_and_wakes_when_told() {
        let (told, heard) = mpsc::channel();
        let step = Box::new(move || {
            told.send(()).unwrap();
            Pace::After(Duration::from_secs(3600))
        });
        let worker = Worker::start("test".into(), step).unwrap();
        heard.recv().unwrap();
        worker.wake();
        heard.recv().unwrap();
        assert!(!worker.is_dead());
        drop(worker);
        assert!(heard.recv().is_err(), "the step is gone with its thread");
    }
}
