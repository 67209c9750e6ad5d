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

#[cfg(test)]
mod model;
mod protocol;

use crate::error::{Result, SpaceError};
use crate::files::step;
use crate::header::HEADER_BYTES;
use crate::lock::{Patience, now, place_is_free, take_place};
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use protocol::{POISONED, Protocol, Word};
use rustix::fd::{AsFd, OwnedFd};
use rustix::mm::{Advice, MapFlags, ProtFlags};
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
        let page = page.map_err(failed)?;
        // A mapping keeps the file open, and so the place taken: children are to have none.
        // SAFETY: the whole of the new mapping.
        let hidden = unsafe { rustix::mm::madvise(page, len, Advice::LinuxDontFork) };
        let page = NonNull::new(page.cast()).expect("nothing is mapped at zero");
        let mut lock = Self {
            file,
            name: name.to_owned(),
            page,
            place: PLACES,
            is_heap,
        };
        hidden.map_err(failed)?;
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
        lock.clear_place();
        Ok(lock)
    }

    #[allow(unsafe_code)] // a reference to mapped memory
    fn word(&self, at: u64) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8) && at < HEADER_BYTES);
        // SAFETY: aligned and inside the mapping, which lives as long as `self`. All who map the
        // header use atomics there.
        unsafe { AtomicU64::from_ptr(self.page.as_ptr().add(at as usize).cast()) }
    }

    /// Takes the lock for a reader.
    ///
    /// # Errors
    /// [`SpaceError::Poisoned`], [`SpaceError::WouldBlock`], [`SpaceError::TimedOut`], or
    /// [`SpaceError::Damaged`].
    #[inline]
    pub(crate) fn enter_shared(&self, patience: Patience) -> Result<()> {
        Protocol::enter_shared(self, patience)
    }

    /// Takes the lock for a writer; a poisoned one if `recovers`.
    ///
    /// # Errors
    /// As of [`Self::enter_shared`].
    pub(crate) fn enter_exclusive(&self, patience: Patience, recovers: bool) -> Result<()> {
        Protocol::enter_exclusive(self, patience, recovers)
    }

    /// The poison is gone: the writer that is inside has made the data right.
    pub(crate) fn heal(&self) {
        Protocol::heal(self);
    }

    /// A thread of this process leaves, whatever it was.
    #[inline]
    pub(crate) fn leave(&self) {
        Protocol::leave(self);
    }
}

impl Word for AtomicU64 {
    #[inline(always)]
    fn load(&self) -> u64 {
        self.load(Ordering::SeqCst)
    }

    #[inline(always)]
    fn store(&self, value: u64) {
        self.store(value, Ordering::SeqCst);
    }

    #[inline(always)]
    fn add_one(&self) -> u64 {
        self.fetch_add(1, Ordering::SeqCst)
    }

    #[inline(always)]
    fn subtract_one(&self) -> u64 {
        self.fetch_sub(1, Ordering::SeqCst)
    }

    fn raise(&self, to: u64) {
        self.fetch_max(to, Ordering::SeqCst);
    }

    fn clear(&self, bits: u64) {
        self.fetch_and(!bits, Ordering::SeqCst);
    }

    fn replace(&self, from: u64, to: u64) -> core::result::Result<(), u64> {
        let order = Ordering::SeqCst;
        self.compare_exchange(from, to, order, order).map(drop)
    }
}

impl Protocol for RobustLock {
    type Word = AtomicU64;
    type Patience = Patience;
    type Refused = SpaceError;
    const PLACES: u64 = PLACES;

    #[inline(always)]
    fn owner(&self) -> &AtomicU64 {
        self.word(OWNER_AT)
    }

    fn waiting(&self) -> &AtomicU64 {
        self.word(WAITING_AT)
    }

    fn used(&self) -> &AtomicU64 {
        self.word(USED_AT)
    }

    #[inline(always)]
    fn count(&self, place: u64) -> &AtomicU64 {
        self.word(PLACES_AT + place * LINE)
    }

    #[inline(always)]
    fn place(&self) -> u64 {
        self.place
    }

    #[inline(always)]
    fn poison(&self) -> u64 {
        match self.is_heap {
            true => 0,
            false => POISONED,
        }
    }

    fn is_free(&self, place: u64) -> Result<bool> {
        place_is_free(self.file.as_fd(), place)
            .map_err(|errno| SpaceError::of("lock", Path::new(&self.name), errno))
    }

    fn sleep(&self, word: &AtomicU64, found: u64, patience: Patience) -> Result<()> {
        wait(word, found, patience.slice(LOOK, &self.name)?);
        Ok(())
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

    fn poisoned(&self) -> SpaceError {
        SpaceError::Poisoned(self.name.clone())
    }

    fn wild(&self, place: u64) -> SpaceError {
        let why = format!("its lock belongs to place {place} of {PLACES}");
        SpaceError::damaged(&PathBuf::from(&self.name), why)
    }

    #[inline(always)]
    fn step(&self) {
        step();
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
