//! A value that others follow: they see the latest one, and wake when it changes.
//!
//! It works like `tokio::sync::watch` but for the order of waking. Tokio's receivers wait in one of
//! eight queues, chosen by a random number of the thread, so the order differs from run to run.
//! Here receivers wake in the order in which they began to wait (ENV-2).
//!
//! - WATCH-1: every change after the value that a receiver saw last wakes it. Changes may be passed
//!   over, the latest never is.
//!
//! Locks: the value's lock is held while it is borrowed and while it is changed. Borrow briefly,
//! and never over an await.

use core::fmt;
use core::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::Notify;

struct Shared<T> {
    /// The value, and the number of its changes.
    value: RwLock<(T, u64)>,
    closed: AtomicBool,
    changed: Notify,
}

impl<T> Shared<T> {
    fn read(&self) -> RwLockReadGuard<'_, (T, u64)> {
        // A writer changes the value in one step, or panics before the change.
        self.value.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, (T, u64)> {
        self.value.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Changes the value. Dropping it ends all waiting.
pub struct Sender<T>(Arc<Shared<T>>);

/// Follows the value.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

/// The value, as long as this is held.
pub struct Ref<'a, T>(RwLockReadGuard<'a, (T, u64)>);

impl<T> Deref for Ref<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0.0
    }
}

/// The sender is gone: the value changes no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the value's owner is gone")
    }
}

impl std::error::Error for Closed {}

/// A value and its first follower, which has seen it.
pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let sender = Sender::new(value);
    let receiver = sender.subscribe();
    (sender, receiver)
}

impl<T> Sender<T> {
    /// A value without followers.
    pub fn new(value: T) -> Self {
        Self(Arc::new(Shared {
            value: RwLock::new((value, 0)),
            closed: AtomicBool::new(false),
            changed: Notify::new(),
        }))
    }

    /// A follower that has seen the current value.
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver {
            seen: self.0.read().1,
            shared: Arc::clone(&self.0),
        }
    }

    /// The value.
    pub fn borrow(&self) -> Ref<'_, T> {
        Ref(self.0.read())
    }

    /// Changes the value and gives the old one.
    pub fn send_replace(&self, value: T) -> T {
        let mut current = self.0.write();
        let old = std::mem::replace(&mut current.0, value);
        current.1 += 1;
        drop(current);
        self.0.changed.notify_waiters();
        old
    }

    /// Lets `modify` change the value; its answer says whether it did. Gives that answer.
    pub fn send_if_modified(&self, modify: impl FnOnce(&mut T) -> bool) -> bool {
        let mut current = self.0.write();
        let modified = modify(&mut current.0);
        current.1 += u64::from(modified);
        drop(current);
        if modified {
            self.0.changed.notify_waiters();
        }
        modified
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // Release: with the load in `Receiver::news`, so that its look at the value comes after
        // every change of this sender.
        self.0.closed.store(true, Ordering::Release);
        self.0.changed.notify_waiters();
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            seen: self.seen,
        }
    }
}

impl<T> Receiver<T> {
    /// The value. It does not count as seen.
    pub fn borrow(&self) -> Ref<'_, T> {
        Ref(self.shared.read())
    }

    /// The value; it counts as seen.
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        let value = self.shared.read();
        self.seen = value.1;
        Ref(value)
    }

    /// Counts the value as seen.
    pub fn mark_unchanged(&mut self) {
        self.seen = self.shared.read().1;
    }

    /// Waits until the value differs from the one seen last; the new one counts as seen. The future
    /// may be dropped at any time.
    ///
    /// # Errors
    /// [`Closed`] if the sender is gone and the last value was seen.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        self.news().await?;
        self.mark_unchanged();
        Ok(())
    }

    /// Waits until `wanted` accepts the value, which then counts as seen. The future may be dropped
    /// at any time.
    ///
    /// # Errors
    /// [`Closed`] if the sender is gone and `wanted` refuses the last value.
    pub async fn wait_for(&mut self, mut wanted: impl FnMut(&T) -> bool) -> Result<(), Closed> {
        loop {
            {
                let value = self.shared.read();
                self.seen = value.1;
                if wanted(&value.0) {
                    return Ok(());
                }
            }
            self.news().await?;
        }
    }

    async fn news(&self) -> Result<(), Closed> {
        loop {
            let mut notified = pin!(self.shared.changed.notified());
            // In the queue before the look, so that no change falls between.
            notified.as_mut().enable();
            let closed = self.shared.closed.load(Ordering::Acquire);
            if self.shared.read().1 != self.seen {
                return Ok(());
            }
            if closed {
                return Err(Closed);
            }
            notified.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::task::{Context, Poll, Waker};
    use futures_util::task::noop_waker;
    use std::sync::Mutex;
    use std::task::Wake;

    fn poll<F: Future>(future: core::pin::Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(waker))
    }

    // shows: WATCH-1
    #[test]
    fn the_latest_value_is_never_passed_over() {
        let (sender, mut receiver) = channel(1);
        let waker = noop_waker();
        {
            let mut changed = pin!(receiver.changed());
            assert!(poll(changed.as_mut(), &waker).is_pending());
            sender.send_replace(2);
            sender.send_replace(3);
            assert_eq!(poll(changed, &waker), Poll::Ready(Ok(())));
        }
        assert_eq!(*receiver.borrow(), 3);
        assert!(poll(pin!(receiver.changed()), &waker).is_pending());
        assert!(!sender.send_if_modified(|_| false));
        assert!(poll(pin!(receiver.changed()), &waker).is_pending());
        drop(sender);
        assert_eq!(
            poll(pin!(receiver.changed()), &waker),
            Poll::Ready(Err(Closed))
        );
    }

    #[test]
    fn a_wanted_value_is_waited_for() {
        let (sender, mut receiver) = channel(1);
        let waker = noop_waker();
        let mut wait = pin!(receiver.wait_for(|v| *v > 2));
        assert!(poll(wait.as_mut(), &waker).is_pending());
        sender.send_replace(2);
        assert!(poll(wait.as_mut(), &waker).is_pending());
        sender.send_replace(3);
        assert_eq!(poll(wait, &waker), Poll::Ready(Ok(())));
    }

    struct Note(usize, Arc<Mutex<Vec<usize>>>);

    impl Wake for Note {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    #[test]
    fn receivers_wake_in_the_order_in_which_they_wait() {
        let sender = Sender::new(0);
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut receivers: Vec<_> = (0..40).map(|_| sender.subscribe()).collect();
        let mut waits: Vec<_> = receivers
            .iter_mut()
            .map(|r| Box::pin(r.changed()))
            .collect();
        for (number, wait) in waits.iter_mut().enumerate() {
            let waker = Waker::from(Arc::new(Note(number, Arc::clone(&order))));
            assert!(poll(wait.as_mut(), &waker).is_pending());
        }
        sender.send_replace(1);
        let order = order.lock().unwrap();
        assert_eq!(*order, (0..40).collect::<Vec<_>>());
    }
}
