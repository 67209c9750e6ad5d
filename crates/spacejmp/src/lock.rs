//! The kernel's lock of a span, among processes, and a gate among the threads of one. (`robust` has
//! the other kind of lock.)
//!
//! The kernel's lock belongs to the open file, so all threads of a process share it. A gate in
//! front of it counts the threads. A reader's lock needs a file that
//! may be read, a writer's lock one that may be written. The kernel enforces that. The kernel frees
//! the lock when its holder dies, however it dies.
//!
//! Limits: readers that follow each other without a gap keep writers waiting. A holder that is
//! stopped keeps all others waiting; they can give a time.

use crate::error::SpaceError;
use crate::files::step;
use core::time::Duration;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The pause between two looks at a lock that another process has, at first and at most.
const PAUSE: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(5)];

/// Bytes of the file that stand for places begin here, behind every span.
const PLACES_FROM: libc::off_t = 1 << 62;

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    None,
    /// Until then, on the monotonic clock.
    Until(Duration),
    ForEver,
}

impl Patience {
    pub(crate) fn of(time: Duration) -> Self {
        Self::Until(now().saturating_add(time))
    }
}

/// Why a lock was not taken, or a window not entered. It does not know the span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotEntered {
    /// Another thread or process is inside, and the caller does not wait.
    WouldBlock,
    /// Another one was inside for all the time given.
    TimedOut,
    /// The system refused to do this: "lock" or "map".
    System(&'static str, Errno),
}

impl NotEntered {
    /// The error of the span with this name.
    pub(crate) fn of(self, span: &str) -> SpaceError {
        match self {
            Self::WouldBlock => SpaceError::WouldBlock(span.to_owned()),
            Self::TimedOut => SpaceError::TimedOut(span.to_owned()),
            Self::System(doing, errno) => SpaceError::of(doing, Path::new(span), errno),
        }
    }
}

type Result<T> = std::result::Result<T, NotEntered>;

pub(crate) fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

/// Waits until `changed` is told, or for as long as `patience` allows.
///
/// # Errors
/// [`NotEntered::WouldBlock`], [`NotEntered::TimedOut`].
pub(crate) fn wait_for<'a, T>(
    changed: &Condvar,
    state: MutexGuard<'a, T>,
    patience: Patience,
) -> Result<MutexGuard<'a, T>> {
    let state = match patience {
        Patience::None => return Err(NotEntered::WouldBlock),
        Patience::ForEver => changed.wait(state),
        Patience::Until(end) => {
            let left = end.saturating_sub(now());
            if left.is_zero() {
                return Err(NotEntered::TimedOut);
            }
            let waited = changed.wait_timeout(state, left);
            return Ok(waited.unwrap_or_else(PoisonError::into_inner).0);
        }
    };
    Ok(state.unwrap_or_else(PoisonError::into_inner))
}

/// Whether [`set`] waits.
#[derive(Clone, Copy)]
enum Wait {
    No,
    Yes,
}

/// Sets the kernel's lock of the open file: `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
fn set(file: BorrowedFd<'_>, kind: i32, wait: Wait) -> std::result::Result<(), Errno> {
    let command = match wait {
        Wait::No => libc::F_OFD_SETLK,
        Wait::Yes => libc::F_OFD_SETLKW,
    };
    // One byte stands for the span, so that a lock does not depend on the length.
    call(file, command, kind, 0).map(drop)
}

/// Takes the kernel's lock on the byte of that place in a robust lock, for as long as the file is
/// open. False: another process has it.
pub(crate) fn take_place(file: BorrowedFd<'_>, place: u64) -> std::result::Result<bool, Errno> {
    let byte = PLACES_FROM + place as libc::off_t;
    match call(file, libc::F_OFD_SETLK, libc::F_WRLCK, byte) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether no other process has the place.
pub(crate) fn place_is_free(file: BorrowedFd<'_>, place: u64) -> std::result::Result<bool, Errno> {
    let byte = PLACES_FROM + place as libc::off_t;
    let found = call(file, libc::F_OFD_GETLK, libc::F_WRLCK, byte)?;
    Ok(found == libc::F_UNLCK)
}

/// One call for a lock on a byte of the file; gives the kind that the system has left.
#[allow(unsafe_code)] // one system call
fn call(
    file: BorrowedFd<'_>,
    command: i32,
    kind: i32,
    byte: libc::off_t,
) -> std::result::Result<i32, Errno> {
    let mut range = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    };
    loop {
        // SAFETY: the descriptor is open as long as its borrow, and `range` is ours.
        let done = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut range) };
        if done != -1 {
            return Ok(i32::from(range.l_type));
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            code => return Err(Errno::from_raw_os_error(code.unwrap_or(libc::EIO))),
        }
    }
}

fn kind(exclusive: bool) -> i32 {
    match exclusive {
        true => libc::F_WRLCK,
        false => libc::F_RDLCK,
    }
}

/// The kernel's lock, held until drop.
pub(crate) struct KernelLock<'a>(BorrowedFd<'a>);

impl<'a> KernelLock<'a> {
    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// [`NotEntered::WouldBlock`], or the system's.
    pub(crate) fn at_once(file: BorrowedFd<'a>, exclusive: bool) -> Result<Self> {
        match set(file, kind(exclusive), Wait::No) {
            Ok(()) => Ok(Self(file)),
            Err(Errno::AGAIN | Errno::ACCESS) => Err(NotEntered::WouldBlock),
            Err(errno) => Err(NotEntered::System("lock", errno)),
        }
    }
}

impl Drop for KernelLock<'_> {
    fn drop(&mut self) {
        unlock(self.0);
    }
}

fn unlock(file: BorrowedFd<'_>) {
    let done = set(file, libc::F_UNLCK, Wait::No);
    debug_assert!(done.is_ok(), "unlocking needs no right: {done:?}");
}

/// The threads of this process that are inside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Inside {
    Nobody,
    /// A thread is taking or leaving the kernel's lock.
    Changing,
    Readers(usize),
    Writer,
}

/// The threads of this process at a span, in front of the kernel's lock.
#[derive(Debug)]
pub(crate) struct Gate {
    inside: Mutex<Inside>,
    changed: Condvar,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            inside: Mutex::new(Inside::Nobody),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, Inside> {
        // Every change of the state is one store.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, inside: Inside) {
        *self.state() = inside;
        self.changed.notify_all();
    }

    /// Takes the lock of the span whose file is `file`.
    ///
    /// # Errors
    /// [`NotEntered::WouldBlock`], [`NotEntered::TimedOut`], or the system's.
    pub(crate) fn enter(
        &self,
        file: BorrowedFd<'_>,
        exclusive: bool,
        patience: Patience,
    ) -> Result<()> {
        let mut inside = self.state();
        loop {
            match *inside {
                Inside::Nobody => break,
                Inside::Readers(count) if !exclusive => {
                    *inside = Inside::Readers(count + 1);
                    return Ok(());
                }
                Inside::Readers(_) | Inside::Writer | Inside::Changing => {
                    inside = wait_for(&self.changed, inside, patience)?;
                }
            }
        }
        *inside = Inside::Changing;
        drop(inside);
        let taken = self.take(file, exclusive, patience);
        step();
        self.put(match (&taken, exclusive) {
            (Err(_), _) => Inside::Nobody,
            (Ok(()), true) => Inside::Writer,
            (Ok(()), false) => Inside::Readers(1),
        });
        taken
    }

    /// Takes the kernel's lock, as the one thread that may.
    fn take(&self, file: BorrowedFd<'_>, exclusive: bool, patience: Patience) -> Result<()> {
        let failed = |errno| NotEntered::System("lock", errno);
        let kind = kind(exclusive);
        let end = match patience {
            Patience::ForEver => return set(file, kind, Wait::Yes).map_err(failed),
            Patience::None => Duration::ZERO,
            Patience::Until(end) => end,
        };
        let mut pause = PAUSE[0];
        loop {
            match set(file, kind, Wait::No) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN | Errno::ACCESS) => {}
                Err(errno) => return Err(failed(errno)),
            }
            if matches!(patience, Patience::None) {
                return Err(NotEntered::WouldBlock);
            }
            let left = end.saturating_sub(now());
            if left.is_zero() {
                return Err(NotEntered::TimedOut);
            }
            // The kernel tells nobody that a lock is free; only threads of this process are heard.
            let waited = self.changed.wait_timeout(self.state(), pause.min(left));
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            pause = (pause * 2).min(PAUSE[1]);
        }
    }

    /// Gives the lock back.
    pub(crate) fn leave(&self, file: BorrowedFd<'_>) {
        let mut inside = self.state();
        match *inside {
            Inside::Readers(count) if count > 1 => {
                *inside = Inside::Readers(count - 1);
            }
            Inside::Readers(_) | Inside::Writer => {
                *inside = Inside::Changing;
                drop(inside);
                unlock(file);
                step();
                self.put(Inside::Nobody);
            }
            Inside::Nobody | Inside::Changing => {
                debug_assert!(false, "left without having entered: {:?}", *inside);
            }
        }
    }
}
