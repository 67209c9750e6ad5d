//! The memory that a worker and its caller share, and how one waits for the other.
//!
//! ```text
//! line 0       turn       whose turn it is: the caller's, or the worker's
//! line 1       sleeps     whether the caller sleeps
//! line 2       sleeps     whether the worker does
//! line 3       the call: two addresses; the answer: its kind, and the length of its text
//! line 4 to    slot       the arguments, then the answer or the text of an error
//! ```
//!
//! All but the first three lines belong to the one whose turn it is. One that waits looks for some
//! microseconds. Then it says that it sleeps, looks again, and reads a pipe. The other one changes
//! the turn, and writes a byte if that one sleeps. These steps have one order, so one of the two
//! sees the other. A byte that comes too late wakes a later sleep for nothing.
//!
//! The caller waits for the worker's death as well. The worker's pipe ends when its caller is gone.

use crate::error::SpaceError;
use crate::lock::{Patience, now};
use crate::space::Space;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, Ordering};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::pipe::{PipeFlags, pipe_with};

/// Bytes of the arguments of a call of a worker, and of its answer.
pub const CALL_BYTES_MAX: usize = 4096;
/// Highest alignment of arguments and answers: that of all types in heaps.
pub(super) const ALIGN: usize = 16;

/// Looks before a sleep: some microseconds, about the time that a sleep takes.
const LOOKS: u32 = 200;

const CALLER: u32 = 0;
const WORKER: u32 = 1;

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// The answer is in the slot.
const DONE: u32 = 0;
/// The text of an error is; its number follows.
const ERROR: u32 = 1;

#[derive(Debug)]
#[repr(C, align(64))]
struct Line(AtomicU32);

/// What is shared. It begins as zeros.
#[derive(Debug)]
#[repr(C)]
struct Shared {
    turn: Line,
    caller: Line,
    worker: Line,
    paper: UnsafeCell<Paper>,
    slot: UnsafeCell<Slot>,
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Paper {
    call: Option<Call>,
    kind: u32,
    number: u32,
    length: usize,
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Slot([MaybeUninit<u8>; CALL_BYTES_MAX]);

const BYTES: usize = size_of::<Shared>();
const _: () = assert!(align_of::<Slot>() >= ALIGN);

/// Knows the types of a function, of its arguments and of its answer.
pub(super) type Run = fn(&mut Space, NonNull<()>, NonNull<u8>) -> crate::error::Result<()>;

/// What the worker is to call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) run: Run,
    pub(super) function: NonNull<()>,
}

/// How a call has ended.
#[derive(Debug)]
pub(super) enum Answer {
    /// Its answer is in the slot.
    Done,
    Error(SpaceError),
}

/// Why a wait has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Waited {
    Answered,
    Late,
    Dead,
}

/// A pipe for bytes that wake.
#[derive(Debug)]
struct Bell {
    hear: OwnedFd,
    ring: OwnedFd,
}

impl Bell {
    fn new() -> Result<Self, Errno> {
        let (hear, ring) = pipe_with(PipeFlags::CLOEXEC)?;
        // One that is full wakes already.
        fcntl_setfl(&ring, OFlags::NONBLOCK)?;
        Ok(Self { hear, ring })
    }

    fn ring(&self) {
        // A full pipe wakes already. Where the other process is gone, there is no need to wake it.
        let _rings_already = rustix::io::write(&self.ring, &[0]);
    }

    /// Takes the bytes out, and waits for one. False: nobody can ring any longer.
    fn hear(&self) -> bool {
        let mut bytes = [0; 64];
        !matches!(rustix::io::read(&self.hear, &mut bytes), Ok(0))
    }
}

/// See the module. Until the fork both processes have both sides.
#[derive(Debug)]
pub(super) struct Desk {
    shared: NonNull<Shared>,
    for_worker: Bell,
    for_caller: Bell,
}

// SAFETY: the mapping belongs to no thread. Access to lines is atomic; the rest belongs to the one
// whose turn it is.
#[allow(unsafe_code)]
unsafe impl Send for Desk {}
// SAFETY: as above. Of the caller's threads, one is at the desk at a time.
#[allow(unsafe_code)]
unsafe impl Sync for Desk {}

impl Desk {
    /// A new one. It is the worker's turn, which has to attach its space.
    #[allow(unsafe_code)] // maps memory
    pub(super) fn new() -> Result<Self, Errno> {
        let for_worker = Bell::new()?;
        let for_caller = Bell::new()?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let place = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), BYTES, protection, MapFlags::SHARED)
        }?;
        let desk = Self {
            shared: NonNull::new(place.cast()).expect("nothing is mapped at zero"),
            for_worker,
            for_caller,
        };
        desk.shared().turn.0.store(WORKER, Ordering::SeqCst);
        Ok(desk)
    }

    /// The files that the worker needs: it hears its calls, and rings for its caller.
    pub(super) fn of_worker(&self) -> [RawFd; 2] {
        [
            self.for_worker.hear.as_raw_fd(),
            self.for_caller.ring.as_raw_fd(),
        ]
    }

    /// The side of the caller, after the fork: no other child gets the memory.
    #[allow(unsafe_code)] // advice about a mapping
    pub(super) fn into_caller(self) -> Result<Self, Errno> {
        let place = self.shared.as_ptr().cast::<c_void>();
        // SAFETY: the whole of our own mapping, which stays as it is in this process.
        unsafe { rustix::mm::madvise(place, BYTES, Advice::LinuxDontFork) }?;
        Ok(self)
    }

    #[allow(unsafe_code)] // a reference to mapped memory
    fn shared(&self) -> &Shared {
        // SAFETY: mapped as long as `self`, and made of zeros and of what this module writes.
        unsafe { self.shared.as_ref() }
    }

    /// Where arguments and answers lie. It may be used by the one whose turn it is.
    pub(super) fn slot(&self) -> NonNull<u8> {
        NonNull::from(&self.shared().slot).cast()
    }

    /// Changes the turn, after all that was written before, and wakes the other one.
    fn pass(&self, to: u32, line: &Line, bell: &Bell) {
        self.shared().turn.0.store(to, Ordering::SeqCst);
        if line.0.swap(AWAKE, Ordering::SeqCst) == ASLEEP {
            bell.ring();
        }
    }

    fn is_turn(&self, of: u32) -> bool {
        self.shared().turn.0.load(Ordering::SeqCst) == of
    }

    /// Looks for a while, and then says that this one sleeps. Whether it is its turn, so that it
    /// does not sleep.
    fn comes_soon(&self, turn: u32, line: &Line) -> bool {
        for _ in 0..LOOKS {
            if self.is_turn(turn) {
                return true;
            }
            core::hint::spin_loop();
        }
        self.comes_before_sleep(turn, line)
    }

    fn comes_before_sleep(&self, turn: u32, line: &Line) -> bool {
        line.0.store(ASLEEP, Ordering::SeqCst);
        let comes = self.is_turn(turn);
        if comes {
            line.0.store(AWAKE, Ordering::SeqCst);
        }
        comes
    }

    /// The caller passes a call to the worker. It is the caller's turn.
    #[allow(unsafe_code)] // writes shared memory
    pub(super) fn call(&self, call: Call) {
        assert!(self.is_turn(CALLER), "a call before the last answer");
        // SAFETY: it is our turn.
        unsafe { (*self.shared().paper.get()).call = Some(call) };
        self.pass(WORKER, &self.shared().worker, &self.for_worker);
    }

    /// The worker waits for its turn. None: its caller is gone.
    #[allow(unsafe_code)] // reads shared memory
    pub(super) fn await_call(&self) -> Option<Call> {
        let line = &self.shared().worker;
        let mut comes = self.comes_soon(WORKER, line);
        while !comes {
            if !self.for_worker.hear() {
                return None;
            }
            comes = self.comes_before_sleep(WORKER, line);
        }
        // SAFETY: it is our turn.
        unsafe { (*self.shared().paper.get()).call }
    }

    /// The worker answers. It is the worker's turn.
    #[allow(unsafe_code)] // writes shared memory
    pub(super) fn answer(&self, answer: &Answer) {
        assert!(self.is_turn(WORKER), "an answer without a call");
        let (kind, number, text) = match answer {
            Answer::Done => (DONE, 0, String::new()),
            Answer::Error(error) => {
                let (number, text) = error.tell();
                (ERROR, number, text)
            }
        };
        let mut length = text.len().min(CALL_BYTES_MAX);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        // SAFETY: it is our turn, and the slot has as many bytes. Its arguments and its answer are
        // not used any longer, if there is a text.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), self.slot().as_ptr(), length);
            let paper = self.shared().paper.get();
            (*paper).kind = kind;
            (*paper).number = number;
            (*paper).length = length;
        }
        self.pass(CALLER, &self.shared().caller, &self.for_caller);
    }

    /// The caller waits for its turn, for the worker's death, or until its patience ends.
    pub(super) fn await_answer(
        &self,
        worker: BorrowedFd<'_>,
        patience: Patience,
    ) -> Result<Waited, Errno> {
        let line = &self.shared().caller;
        let mut comes = self.comes_soon(CALLER, line);
        while !comes {
            let woken = self.sleep(worker, patience)?;
            comes = self.comes_before_sleep(CALLER, line);
            if !comes && woken != Waited::Answered {
                return Ok(woken);
            }
        }
        Ok(Waited::Answered)
    }

    /// Sleeps until the bell rings or a signal comes, which may both mean an answer.
    fn sleep(&self, worker: BorrowedFd<'_>, patience: Patience) -> Result<Waited, Errno> {
        let left = match patience {
            Patience::None => Some(Timespec::default()),
            Patience::ForEver => None,
            Patience::Until(end) => {
                let left = end.saturating_sub(now());
                // A time that the kernel cannot count is for ever.
                Timespec::try_from(left).ok()
            }
        };
        let mut files = [
            PollFd::from_borrowed_fd(self.for_caller.hear.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(worker, PollFlags::IN),
        ];
        match poll(&mut files, left.as_ref()) {
            Ok(0) => return Ok(Waited::Late),
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Waited::Answered),
            Err(errno) => return Err(errno),
        }
        if !files[1].revents().is_empty() {
            return Ok(Waited::Dead);
        }
        self.for_caller.hear();
        Ok(Waited::Answered)
    }

    /// What the worker has answered. It is the caller's turn.
    #[allow(unsafe_code)] // reads shared memory
    pub(super) fn take_answer(&self) -> Answer {
        assert!(self.is_turn(CALLER), "an answer is taken when it is there");
        // SAFETY: it is our turn, and the worker has written all of these. A text has `length`
        // bytes.
        let (kind, number, text) = unsafe {
            let paper = self.shared().paper.get();
            let (kind, number, length) = ((*paper).kind, (*paper).number, (*paper).length);
            let length = match kind {
                DONE => 0,
                _ => length.min(CALL_BYTES_MAX),
            };
            let text = core::slice::from_raw_parts(self.slot().as_ptr(), length);
            (kind, number, String::from_utf8_lossy(text).into_owned())
        };
        match kind {
            DONE => Answer::Done,
            _ => Answer::Error(SpaceError::told((number, text))),
        }
    }
}

impl Drop for Desk {
    #[allow(unsafe_code)] // unmaps
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference outlives `self`.
        let done = unsafe { rustix::mm::munmap(self.shared.as_ptr().cast(), BYTES) };
        debug_assert!(done.is_ok(), "munmap of an own mapping: {done:?}");
    }
}
