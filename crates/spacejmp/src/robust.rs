//! The robust lock of a span: words in its header, by which readers enter without a system call.
//!
//! ```text
//! line 0      owner      the writer's place + 1 (16 bits), poisoned, inside, a number (46 bits)
//! line 1      waiting    how many wait for the owner: a hint
//! line 2      used       places that were ever taken
//! line 3 + i  place i    threads of its process that read (32 bits), a number (32 bits)
//! ```
//!
//! Each process that has the span attached has a place. A lock of the kernel on a byte of the file
//! proves that it lives. The kernel frees it at the process's death, however it dies.
//!
//! A reader counts itself in, and then looks for an owner. A writer becomes the owner, and then
//! waits until nobody is counted. All of these steps have one order, so one of the two sees the
//! other. A reader that sees an owner takes itself out and waits. So readers that follow each other
//! do not keep a writer waiting.
//!
//! Whoever waits looks whether the other one lives. The count of a dead process becomes zero. A
//! dead owner is taken out by whoever finds it. If it was inside, the span is *poisoned*: nobody
//! enters before somebody has recovered it. Heaps need no poison: changes of them are whole.
//!
//! Invariants
//! - JUMP-7: while a writer is inside, no other thread is, of any process.
//! - JUMP-8: a death holds up nobody. After the death of a writer inside, words are poisoned.
//! - JUMP-9: the number of a word changes with each owner, and with each process that takes a
//!   place. So a process that has found another one dead changes the word of that one alone.
//!
//! Limits: all who attach the span may write its header, readers as well. They are trusted to use
//! this crate. A number that is none is an error; a wrong count keeps writers waiting. A holder
//! that is stopped keeps others waiting. So does one that has died and left a forked child, until
//! that ends. Writers that follow each other may starve readers.

use crate::error::{Result, SpaceError};
use crate::files::step;
use crate::header::HEADER_BYTES;
use crate::lock::{Patience, now, place_is_free, take_place};
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use rustix::fd::{AsFd, OwnedFd};
use rustix::mm::{MapFlags, ProtFlags};
use std::path::{Path, PathBuf};

/// Processes that may have a span attached at one time.
pub(crate) const PLACES: u64 = 255;

const LINE: u64 = 64;
/// Where the lock begins in the header.
const LOCK_AT: u64 = 4096;
const OWNER_AT: u64 = LOCK_AT;
const WAITING_AT: u64 = LOCK_AT + LINE;
const USED_AT: u64 = LOCK_AT + 2 * LINE;
const PLACES_AT: u64 = LOCK_AT + 3 * LINE;
const _: () = assert!(PLACES_AT + PLACES * LINE <= HEADER_BYTES);

/// The owner's place + 1.
const PLACE: u64 = 0xffff;
const POISONED: u64 = 1 << 16;
/// The owner has waited for all readers, and may have changed something.
const INSIDE: u64 = 1 << 17;
const NUMBER: u64 = 1 << 18;

/// The threads of a place.
const COUNT: u64 = 0xffff_ffff;
const PLACE_NUMBER: u64 = 1 << 32;

/// A waiter looks this often whether the other one lives.
const LOOK: Duration = Duration::from_millis(10);

/// See the module.
#[derive(Debug)]
pub(crate) struct RobustLock {
    /// Has the kernel's lock on the place.
    file: OwnedFd,
    name: String,
    page: NonNull<u8>,
    place: u64,
    /// Deaths do not poison it.
    is_heap: bool,
}

// SAFETY: the mapping belongs to no thread, and all access to it is atomic.
#[allow(unsafe_code)]
unsafe impl Send for RobustLock {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for RobustLock {}

fn is_owned(word: u64) -> bool {
    word & PLACE != 0
}

/// The word without an owner.
fn freed(word: u64) -> u64 {
    (word & !(PLACE | INSIDE)).wrapping_add(NUMBER)
}

impl RobustLock {
    /// Takes a place for this process at the span whose file, opened for writing, is `file`.
    ///
    /// # Errors
    /// All places are taken; the header holds rubbish; the system's.
    #[allow(unsafe_code)] // maps the header
    pub(crate) fn open(file: OwnedFd, name: &str, is_heap: bool) -> Result<Self> {
        let failed = |errno| SpaceError::of("lock", Path::new(name), errno);
        let len = HEADER_BYTES as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses. The file has a header.
        let page = unsafe {
            rustix::mm::mmap(
                core::ptr::null_mut(),
                len,
                protection,
                MapFlags::SHARED,
                &file,
                0,
            )
        };
        let page = NonNull::new(page.map_err(failed)?.cast()).expect("nothing is mapped at zero");
        let mut lock = Self {
            file,
            name: name.to_owned(),
            page,
            place: PLACES,
            is_heap,
        };
        for place in 0..PLACES {
            if take_place(lock.file.as_fd(), place).map_err(failed)? {
                lock.place = place;
                break;
            }
        }
        if lock.place == PLACES {
            return Err(SpaceError::Crowded(name.to_owned()));
        }
        step();
        lock.clear_place()?;
        Ok(lock)
    }

    #[allow(unsafe_code)] // a reference to mapped memory
    fn word(&self, at: u64) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8) && at < HEADER_BYTES);
        // SAFETY: aligned and inside the mapping, which lives as long as `self`. All who map the
        // header use atomics there.
        unsafe { AtomicU64::from_ptr(self.page.as_ptr().add(at as usize).cast()) }
    }

    fn owner(&self) -> &AtomicU64 {
        self.word(OWNER_AT)
    }

    fn count(&self, place: u64) -> &AtomicU64 {
        self.word(PLACES_AT + place * LINE)
    }

    /// Takes away what a dead process has left in the place of this one.
    fn clear_place(&self) -> Result<()> {
        // Before the first count: a writer that does not see this is seen by the readers.
        self.word(USED_AT)
            .fetch_max(self.place + 1, Ordering::SeqCst);
        let count = self.count(self.place);
        let mut found = count.load(Ordering::SeqCst);
        while let Err(now) = count.compare_exchange(
            found,
            (found & !COUNT).wrapping_add(PLACE_NUMBER),
            Ordering::SeqCst,
            Ordering::SeqCst,
        ) {
            found = now;
        }
        self.wake(self.count(self.place));
        step();
        let owner = self.owner().load(Ordering::SeqCst);
        if owner & PLACE == self.place + 1 {
            self.bury(owner);
        }
        Ok(())
    }

    /// The bit by which this span is poisoned; none of a heap.
    #[inline]
    fn poison(&self) -> u64 {
        match self.is_heap {
            true => 0,
            false => POISONED,
        }
    }

    /// Takes a dead owner out. Does nothing if somebody else has.
    fn bury(&self, owner: u64) {
        let poison = match owner & INSIDE != 0 {
            true => self.poison(),
            false => 0,
        };
        let next = freed(owner) | poison;
        let order = Ordering::SeqCst;
        let _somebody_else_has = self.owner().compare_exchange(owner, next, order, order);
        step();
        self.wake(self.owner());
    }

    /// Whether the process with that place has died.
    fn is_dead(&self, place: u64) -> Result<bool> {
        if place == self.place {
            return Ok(false);
        }
        place_is_free(self.file.as_fd(), place)
            .map_err(|errno| SpaceError::of("lock", Path::new(&self.name), errno))
    }

    /// Takes the lock for a reader.
    ///
    /// # Errors
    /// [`SpaceError::Poisoned`], [`SpaceError::WouldBlock`], [`SpaceError::TimedOut`], or
    /// [`SpaceError::Damaged`].
    #[inline]
    pub(crate) fn enter_shared(&self, patience: Patience) -> Result<()> {
        loop {
            self.count(self.place).fetch_add(1, Ordering::SeqCst);
            step();
            let owner = self.owner().load(Ordering::SeqCst);
            if owner & (PLACE | self.poison()) == 0 {
                return Ok(());
            }
            self.leave_shared();
            if !is_owned(owner) {
                return Err(SpaceError::Poisoned(self.name.clone()));
            }
            self.wait_for_owner(owner, patience)?;
        }
    }

    #[inline]
    pub(crate) fn leave_shared(&self) {
        let count = self.count(self.place);
        let before = count.fetch_sub(1, Ordering::SeqCst);
        step();
        if is_owned(self.owner().load(Ordering::SeqCst)) && before & COUNT == 1 {
            self.wake(count);
        }
    }

    /// Takes the lock for a writer; a poisoned one if `recovers`.
    ///
    /// # Errors
    /// As of [`Self::enter_shared`].
    pub(crate) fn enter_exclusive(&self, patience: Patience, recovers: bool) -> Result<()> {
        let order = Ordering::SeqCst;
        let own = loop {
            let owner = self.owner().load(order);
            if is_owned(owner) {
                self.wait_for_owner(owner, patience)?;
            } else if owner & self.poison() != 0 && !recovers {
                return Err(SpaceError::Poisoned(self.name.clone()));
            } else {
                let own = freed(owner) | (self.place + 1);
                let taken = self.owner().compare_exchange(owner, own, order, order);
                if taken.is_ok() {
                    break own;
                }
            }
        };
        step();
        let used = self.word(USED_AT).load(order).min(PLACES);
        for place in 0..used {
            if let Err(error) = self.wait_for_readers(place, patience) {
                self.release(own);
                return Err(error);
            }
        }
        step();
        self.owner().store(own | INSIDE, order);
        step();
        Ok(())
    }

    /// The poison is gone: the writer that is inside has made the data right.
    pub(crate) fn heal(&self) {
        self.owner().fetch_and(!POISONED, Ordering::SeqCst);
    }

    fn release(&self, owner: u64) {
        self.owner().store(freed(owner), Ordering::SeqCst);
        step();
        if self.word(WAITING_AT).load(Ordering::SeqCst) != 0 {
            self.wake(self.owner());
        }
    }

    /// A thread of this process leaves, whatever it was.
    #[inline]
    pub(crate) fn leave(&self) {
        let owner = self.owner().load(Ordering::SeqCst);
        step();
        // A writer inside is alone (JUMP-7), so it is this thread.
        match owner & (PLACE | INSIDE) == (self.place + 1) | INSIDE {
            true => self.release(owner),
            false => self.leave_shared(),
        }
    }

    /// Waits until the owner is another one, or has died.
    #[cold]
    fn wait_for_owner(&self, owner: u64, patience: Patience) -> Result<()> {
        let place = (owner & PLACE) - 1;
        if place >= PLACES {
            let why = format!("its lock belongs to place {place} of {PLACES}");
            return Err(SpaceError::damaged(&PathBuf::from(&self.name), why));
        }
        if self.is_dead(place)? {
            self.bury(owner);
            return Ok(());
        }
        let time = patience.slice(LOOK, &self.name)?;
        let waiting = self.word(WAITING_AT);
        waiting.fetch_add(1, Ordering::SeqCst);
        step();
        wait(self.owner(), owner, time);
        waiting.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }

    /// Waits until no living thread of that place reads.
    fn wait_for_readers(&self, place: u64, patience: Patience) -> Result<()> {
        let count = self.count(place);
        loop {
            let found = count.load(Ordering::SeqCst);
            if found & COUNT == 0 {
                return Ok(());
            }
            if self.is_dead(place)? {
                let next = (found & !COUNT).wrapping_add(PLACE_NUMBER);
                let order = Ordering::SeqCst;
                let _new_process_has = count.compare_exchange(found, next, order, order);
                step();
                continue;
            }
            wait(count, found, patience.slice(LOOK, &self.name)?);
        }
    }

    #[allow(unsafe_code)] // one system call
    fn wake(&self, word: &AtomicU64) {
        // SAFETY: the call reads nothing; it finds sleepers by the address.
        let _nobody_slept = unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAKE,
                i32::MAX,
                core::ptr::null::<c_void>(),
            )
        };
    }
}

impl Drop for RobustLock {
    #[allow(unsafe_code)] // unmaps
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference outlives `self`. The place is free for
        // others once the file is closed.
        let done = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), HEADER_BYTES as usize) };
        debug_assert!(done.is_ok(), "munmap of an own mapping: {done:?}");
    }
}

/// Sleeps until the word is woken, if its lower half is still that of `found`, and for `time` at
/// most. May end early.
#[allow(unsafe_code)] // one system call
fn wait(word: &AtomicU64, found: u64, time: Duration) {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: libc::c_long::from(time.subsec_nanos()),
    };
    // SAFETY: the kernel reads the lower half of the word, which comes first, and `time`.
    let _looks_again = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            found as u32,
            &raw const time,
        )
    };
}

impl Patience {
    /// How long to sleep, `most` at most.
    fn slice(self, most: Duration, name: &str) -> Result<Duration> {
        match self {
            Self::None => Err(SpaceError::WouldBlock(name.to_owned())),
            Self::ForEver => Ok(most),
            Self::Until(end) => match end.saturating_sub(now()) {
                Duration::ZERO => Err(SpaceError::TimedOut(name.to_owned())),
                left => Ok(left.min(most)),
            },
        }
    }
}
