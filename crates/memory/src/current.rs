//! A value that threads read all the time, and that is replaced now and then.
//!
//! Owns the value of now, and earlier ones that somebody may still read. A reader pins the
//! epochs of the process, as one of a store does. So it stores to a line of its own, and to no
//! other. It waits for nobody, and the processor may begin what follows before that store is done.
//!
//! Invariants:
//! - M6: what [`Current::load`] has given stays as it is as long as it is held.
//!
//! Threads: any. A thread that replaces the value waits a moment for those that read the one
//! before. Those that stay longer keep it; it goes with the next one, or with the whole.
//!
//! Limits: a forked child whose parent had a reading thread keeps what it replaces, up to
//! [`KEPT_MAX`].

use crate::epoch::{EpochGuard, ReclaimEpochs, ReclaimStamp};
use crate::region::RegionError;
use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Threads that read without a mutex.
const THREADS: u32 = 1_000;

/// Looks for readers of the value before, with a turn for others after each. A reader that has its
/// processor is done within the first ones.
const LOOKS_MAX: u32 = 100;

/// Earlier values that are kept. Each reader holds back what it may have found, and reads end; so
/// there are more only where a reader is gone that never ended.
const KEPT_MAX: usize = 64;

/// Too many earlier values may still be read. Nothing was replaced. Retryable where readers end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("readers that do not end keep {KEPT_MAX} values")]
pub struct StillRead;

/// See the module.
pub struct Current<T> {
    epochs: &'static ReclaimEpochs,
    /// Of `Arc::into_raw`, with one count of it.
    value: AtomicPtr<T>,
    before: Mutex<Vec<(ReclaimStamp, Arc<T>)>>,
    owns: PhantomData<Arc<T>>,
}

/// The value as it was when it was loaded. It stays in its thread: keep it short.
pub struct Held<'a, T> {
    value: &'a T,
    _guard: EpochGuard<'a>,
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.value
    }
}

/// The epochs of all values of the process: a thread that reads several of them is known to one
/// table.
fn epochs() -> Result<&'static ReclaimEpochs, RegionError> {
    static EPOCHS: OnceLock<ReclaimEpochs> = OnceLock::new();
    match EPOCHS.get() {
        Some(epochs) => Ok(epochs),
        None => {
            let made = ReclaimEpochs::new(THREADS)?;
            Ok(EPOCHS.get_or_init(|| made))
        }
    }
}

impl<T: Send + Sync> Current<T> {
    /// Begins with that value.
    ///
    /// # Errors
    /// As of [`crate::Region::anonymous`], at the first one of a process.
    pub fn new(value: Arc<T>) -> Result<Self, RegionError> {
        Ok(Self::with(epochs()?, value))
    }

    fn with(epochs: &'static ReclaimEpochs, value: Arc<T>) -> Self {
        Self {
            epochs,
            value: AtomicPtr::new(Arc::into_raw(value).cast_mut()),
            before: Mutex::default(),
            owns: PhantomData,
        }
    }

    /// The value of now.
    #[must_use]
    #[inline(always)]
    pub fn load(&self) -> Held<'_, T> {
        let guard = self.epochs.pin();
        // Acquire: pairs with the release of the swap, so that the value is seen whole.
        let value = self.value.load(Ordering::Acquire);
        // SAFETY: the value is alive, because `self` had one count of it when the pointer was
        // loaded. That count goes to `before` when the value is replaced. It is given up when the
        // epochs say that no guard is left that could have found it (M3, M6). The last one goes
        // with `self`, which is borrowed.
        let value = unsafe { &*value };
        Held {
            value,
            _guard: guard,
        }
    }

    /// The value of now, to be kept.
    #[must_use]
    pub fn load_full(&self) -> Arc<T> {
        let guard = self.epochs.pin();
        let value = self.value.load(Ordering::Acquire);
        // SAFETY: it comes from `Arc::into_raw`, and the count of `self` lives as in `load`. Here
        // it gets one more, which the result owns.
        let kept = unsafe {
            Arc::increment_strong_count(value);
            Arc::from_raw(value)
        };
        drop(guard);
        kept
    }

    /// Replaces the value. The one before is given up when nobody reads it any more: before this
    /// returns, but for readers that take long.
    ///
    /// # Errors
    /// See [`StillRead`].
    pub fn replace(&self, next: Arc<T>) -> Result<(), StillRead> {
        let mut before = self.locked();
        if before.len() >= KEPT_MAX {
            self.give_up(&mut before);
        }
        if before.len() >= KEPT_MAX {
            return Err(StillRead);
        }
        // Release: as above. Acquire: what was done to the value before is seen by its destructor.
        let last = self
            .value
            .swap(Arc::into_raw(next).cast_mut(), Ordering::AcqRel);
        let stamp = self.epochs.retire_epoch();
        // SAFETY: of `Arc::into_raw`. The count was that of `self`, and is now that of the list.
        let last = unsafe { Arc::from_raw(last) };
        before.push((stamp, last));
        for _look in 0..LOOKS_MAX {
            self.give_up(&mut before);
            if before.is_empty() {
                break;
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn locked(&self) -> MutexGuard<'_, Vec<(ReclaimStamp, Arc<T>)>> {
        // Each change of the list is whole.
        self.before.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_up(&self, before: &mut Vec<(ReclaimStamp, Arc<T>)>) {
        let frontier = self.epochs.frontier();
        before.retain(|(stamp, _)| !frontier.covers(*stamp));
    }
}

impl<T> Drop for Current<T> {
    fn drop(&mut self) {
        // SAFETY: of `Arc::into_raw`, with the count of `self`. Nobody holds it: that borrows.
        drop(unsafe { Arc::from_raw(*self.value.get_mut()) });
    }
}

impl<T> fmt::Debug for Current<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Current").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Held<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicBool, AtomicU64};

    /// Says how many live, and is no more itself once it was given up.
    struct Counted<'a> {
        alive: &'a AtomicU64,
        words: [AtomicU64; 16],
    }

    impl<'a> Counted<'a> {
        fn new(alive: &'a AtomicU64, number: u64) -> Arc<Self> {
            alive.fetch_add(1, Ordering::SeqCst);
            let words = core::array::from_fn(|_| AtomicU64::new(number));
            Arc::new(Self { alive, words })
        }

        fn number(&self) -> u64 {
            let number = self.words[0].load(Ordering::Relaxed);
            assert_ne!(number, u64::MAX, "M6: it was given up");
            for word in &self.words {
                assert_eq!(word.load(Ordering::Relaxed), number, "M6");
            }
            number
        }
    }

    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            for word in &self.words {
                word.store(u64::MAX, Ordering::Relaxed);
            }
            self.alive.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// With epochs of its own: other tests pin those of the process.
    fn current<T: Send + Sync>(value: Arc<T>) -> Current<T> {
        Current::with(Box::leak(Box::new(ReclaimEpochs::new(8).unwrap())), value)
    }

    #[test]
    fn the_value_before_goes_when_it_is_replaced_and_the_last_one_with_the_whole() {
        let alive = AtomicU64::new(0);
        let current = current(Counted::new(&alive, 1));
        assert_eq!(current.load().number(), 1);
        for number in 2..100 {
            current.replace(Counted::new(&alive, number)).unwrap();
            assert_eq!(alive.load(Ordering::SeqCst), 1);
        }
        let kept = current.load_full();
        drop(current);
        assert_eq!((alive.load(Ordering::SeqCst), kept.number()), (1, 99));
        drop(kept);
        assert_eq!(alive.load(Ordering::SeqCst), 0);
    }

    // shows: M6
    #[test]
    fn what_is_held_stays_while_others_replace_it() {
        let alive = AtomicU64::new(0);
        let current = current(Counted::new(&alive, 1));
        let over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            for _thread in 0..3 {
                threads.spawn(|| {
                    let mut last = 0;
                    while !over.load(Ordering::Relaxed) {
                        let held = current.load();
                        let number = held.number();
                        assert!(number >= last, "it never goes back");
                        last = number;
                        let inner = current.load();
                        assert!(inner.number() >= number && held.number() == number);
                        drop((held, inner));
                        assert!(current.load_full().number() >= last);
                    }
                });
            }
            let mut number = 2;
            while number < 2_000 {
                if current.replace(Counted::new(&alive, number)).is_ok() {
                    number += 1;
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        drop(current);
        assert_eq!(alive.load(Ordering::SeqCst), 0);
    }

    // shows: M6
    #[test]
    fn a_reader_that_stays_keeps_its_value_and_in_the_end_the_next_ones() {
        let alive = AtomicU64::new(0);
        let current = current(Counted::new(&alive, 1));
        std::thread::scope(|threads| {
            let held = current.load();
            let replaced = threads.spawn(|| {
                let replaced = (2..).find(|number| {
                    let next = Counted::new(&alive, *number);
                    current.replace(next) == Err(StillRead)
                });
                replaced.unwrap()
            });
            assert_eq!(replaced.join().unwrap(), 2 + KEPT_MAX as u64);
            assert_eq!(held.number(), 1);
            assert_eq!(alive.load(Ordering::SeqCst), 1 + KEPT_MAX as u64);
        });
        current.replace(Counted::new(&alive, 1_000)).unwrap();
        assert_eq!(current.load().number(), 1_000);
        assert_eq!(alive.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_forked_child_reads_and_replaces_on() {
        let current = current(Arc::new(1));
        assert_eq!(*current.load(), 1);
        // SAFETY: the child uses what this thread alone uses, and ends. The allocator is whole in a
        // forked child.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "no process");
        if child == 0 {
            let all = (2..200).all(|next| {
                let is_done = current.replace(Arc::new(next)).is_ok();
                is_done && *current.load() == next && current.locked().is_empty()
            });
            // SAFETY: ends this process, and runs nothing else in it.
            unsafe { libc::_exit(i32::from(!all)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above; `status` is ours.
        let ended = unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!((ended, status), (child, 0));
        assert_eq!(*current.load(), 1);
    }
}
