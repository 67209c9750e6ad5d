//! Answers to writes, on their way from the network to the task of a log.

use pluvio_env::{CallError, Frame, Replies};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// An answer, with the number of its write.
type Answer = (u64, Result<Frame, CallError>);

/// See the module. Bounded by the writes under way (REP-10).
pub(crate) struct Answers {
    came: Mutex<Vec<Answer>>,
    notify: Arc<Notify>,
}

impl Answers {
    /// `notify` wakes the task.
    pub(crate) fn new(notify: Arc<Notify>) -> Arc<Self> {
        Arc::new(Self {
            came: Mutex::default(),
            notify,
        })
    }

    /// Exchanges what has come for `empty`.
    pub(crate) fn take(&self, empty: &mut Vec<Answer>) {
        core::mem::swap(&mut *self.lock(), empty);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Answer>> {
        self.came.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Replies for Answers {
    fn replied(&self, number: u64, outcome: Result<Frame, CallError>) {
        self.lock().push((number, outcome));
        self.notify.notify_one();
    }
}
