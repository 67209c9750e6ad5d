//! Workers: processes that have a space attached, and call functions inside for this one.
//!
//! A process cannot attach two spaces whose ranges overlap, and copies of a span take turns at
//! their addresses. A worker has addresses of its own. It is a fork of this process, made while
//! that has one thread. So a function has one address in both, and a call passes two addresses and
//! the arguments through shared memory (`desk`).
//!
//! ```
//! use pluvio_spacejmp::{Access, Kind, Registry};
//! use std::sync::atomic::Ordering::Relaxed;
//!
//! # fn main() -> pluvio_spacejmp::Result<()> {
//! # let directory = tempfile::tempdir().unwrap();
//! # let root = directory.path();
//! let registry = Registry::open(root)?;
//! registry.span("tally").kind(Kind::Words).size(1 << 16).create()?;
//! registry.create_space("tally", &[("tally", Access::Write)])?;
//!
//! // Early in main, while there is one thread.
//! // SAFETY: nothing but this program writes the directory. All of its code is loaded.
//! let worker = unsafe { registry.find_space("tally")?.start_worker()? };
//!
//! let sum = worker.call([3, 4], |space, [a, b]: [u64; 2]| {
//!     let mut inside = space.enter()?;
//!     let part = inside.part("tally")?;
//!     Ok(part.words()?[0].fetch_add(a + b, Relaxed) + a + b)
//! })?;
//! assert_eq!(sum, 7);
//! # Ok(())
//! # }
//! ```
//!
//! Arguments and answers are plain values. Variables of this process are not in the worker:
//!
//! ```compile_fail,E0308
//! # use pluvio_spacejmp::{Result, Worker};
//! fn capture(worker: &Worker, more: u64) -> Result<u64> {
//!     worker.call(1, |_, number: u64| Ok(number + more))
//! }
//! ```
//!
//! ```compile_fail,E0277
//! # use pluvio_spacejmp::{Result, Worker};
//! fn refer(worker: &Worker) -> Result<()> {
//!     worker.call("text", |_, _| Ok(()))
//! }
//! ```
//!
//! Invariants
//! - JUMP-10: a call ends when the worker has answered, has died, or the time is over.
//! - JUMP-11: a worker ends with its [`Worker`], and with the process that made it.
//! - JUMP-12: a worker has nothing of this process's files and spans, but its output.
//!
//! Threads: any, one call at a time.
//!
//! Limits: a function that never ends keeps the worker for ever. A worker that has died is replaced
//! only while the process has one thread.

mod desk;
mod process;

use crate::definition::SpaceDefinition;
use crate::error::{Result, SpaceError};
use crate::layout::SegSafe;
use crate::lock::{Patience, wait_for};
use crate::space::{self, Space};
use core::any::Any;
use core::mem;
use core::ptr::NonNull;
use core::time::Duration;
use desk::{Answer, Call, Desk, Waited};
use process::{Child, Forked};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, PoisonError};

pub use desk::CALL_BYTES_MAX;

/// A process that has a space attached, and calls functions for this one. Dropping it ends the
/// process, also one that is still busy with a call that was too late.
#[derive(Debug)]
pub struct Worker {
    space: String,
    desk: Desk,
    child: Child,
    /// Whether a thread is at the desk.
    taken: Mutex<bool>,
    left: Condvar,
}

/// Calls a function of these types with the arguments in the slot, and puts its answer there.
#[allow(unsafe_code)] // what another process has passed
fn run<A: SegSafe, R: SegSafe>(
    space: &mut Space,
    function: NonNull<()>,
    slot: NonNull<u8>,
) -> Result<()> {
    // SAFETY: `Worker::call_by` has put both there, of these types, from code that both processes
    // have at one address. The slot is aligned and long enough, and this process's turn.
    let (function, args) = unsafe {
        let function = mem::transmute::<NonNull<()>, fn(&mut Space, A) -> Result<R>>(function);
        (function, slot.cast::<A>().read())
    };
    let answer = function(space, args)?;
    // SAFETY: as above; the arguments were read.
    unsafe { slot.cast::<R>().write(answer) };
    Ok(())
}

/// What a panic says.
fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("it does not say why")
}

/// Works until the process that made this one is gone.
fn work(definition: &SpaceDefinition, desk: &Desk) {
    let mut space = match definition.attach_trusted() {
        Ok(space) => space,
        Err(error) => return desk.answer(&Answer::Error(error)),
    };
    desk.answer(&Answer::Done);
    while let Some(Call { run, function }) = desk.await_call() {
        // A panic leaves a space that is whole: what it guards is checked when it is entered.
        let call = AssertUnwindSafe(|| run(&mut space, function, desk.slot()));
        let answer = match catch_unwind(call) {
            Ok(Ok(())) => Answer::Done,
            Ok(Err(error)) => Answer::Error(error),
            Err(panic) => {
                let text = text_of(&*panic).to_owned();
                // Dropping it could panic again.
                mem::forget(panic);
                Answer::Error(SpaceError::WorkerPanicked(text))
            }
        };
        desk.answer(&answer);
    }
}

impl SpaceDefinition {
    /// Starts a process that attaches the space and calls functions inside. This process itself
    /// need not be able to attach it. The worker ends when the thread that has started it does.
    ///
    /// # Errors
    /// [`SpaceError::Threads`], [`SpaceError::Nested`], or the system's. What [`Self::attach`]
    /// refuses comes as from [`Worker::call`].
    ///
    /// # Safety
    /// As of [`Self::attach`]. And as long as the worker lives, functions that it is to call are of
    /// code that is loaded now. They use nothing that this process shares with its forks, keeps in
    /// files, has attached, or has started as a worker. The worker has memory as it is now.
    #[allow(unsafe_code)] // forks
    pub unsafe fn start_worker(&self) -> Result<Worker> {
        if space::is_inside() {
            return Err(SpaceError::Nested);
        }
        let failed = |errno| SpaceError::of("start a worker of", self.name().as_ref(), errno);
        process::check_threads()?;
        let desk = Desk::new().map_err(failed)?;
        // SAFETY: there is one thread, so what it finds in the fork is whole. The caller's promise
        // is about the rest.
        let child = match unsafe { process::fork() }.map_err(failed)? {
            Forked::Child { parent } => process::end_after(parent, desk.of_worker(), || {
                crate::map::forget_all();
                work(self, &desk);
            }),
            Forked::Parent(child) => child,
        };
        let worker = Worker {
            space: self.name().to_owned(),
            desk: desk.into_caller().map_err(failed)?,
            child,
            taken: Mutex::new(false),
            left: Condvar::new(),
        };
        worker.await_answer(Patience::ForEver, SpaceError::WorkerLate)?;
        match worker.desk.take_answer() {
            Answer::Done => Ok(worker),
            Answer::Error(error) => Err(error),
        }
    }
}

impl Worker {
    /// The space that it has attached.
    #[must_use]
    pub fn space(&self) -> &str {
        &self.space
    }

    /// The number of its process.
    #[must_use]
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Calls `function` in the worker, with its space, and waits for the answer as long as it
    /// takes. Arguments and answer have at most [`CALL_BYTES_MAX`] bytes each.
    ///
    /// # Errors
    /// That of the function: a variant with no more than a text comes as it is, others as
    /// [`SpaceError::WorkerFailed`]. [`SpaceError::WorkerPanicked`], [`SpaceError::WorkerDied`], or
    /// the system's.
    pub fn call<A, R>(&self, args: A, function: fn(&mut Space, A) -> Result<R>) -> Result<R>
    where
        A: SegSafe + Copy + 'static,
        R: SegSafe + Copy + 'static,
    {
        self.call_by(Patience::ForEver, args, function)
    }

    /// [`Self::call`] that gives up when `time` is over.
    ///
    /// # Errors
    /// [`SpaceError::WorkerBusy`]: nothing was called. [`SpaceError::WorkerLate`]: the call goes
    /// on. And as of [`Self::call`].
    pub fn call_within<A, R>(
        &self,
        time: Duration,
        args: A,
        function: fn(&mut Space, A) -> Result<R>,
    ) -> Result<R>
    where
        A: SegSafe + Copy + 'static,
        R: SegSafe + Copy + 'static,
    {
        self.call_by(Patience::of(time), args, function)
    }

    #[allow(unsafe_code)] // writes and reads shared memory
    fn call_by<A, R>(
        &self,
        patience: Patience,
        args: A,
        function: fn(&mut Space, A) -> Result<R>,
    ) -> Result<R>
    where
        A: SegSafe + Copy + 'static,
        R: SegSafe + Copy + 'static,
    {
        const {
            assert!(
                size_of::<A>() <= CALL_BYTES_MAX && align_of::<A>() <= desk::ALIGN,
                "too long for an argument"
            );
            assert!(
                size_of::<R>() <= CALL_BYTES_MAX && align_of::<R>() <= desk::ALIGN,
                "too long for an answer"
            );
        }
        let _turn = self.take_turn(patience)?;
        // A call that was too late may go on.
        self.await_answer(patience, SpaceError::WorkerBusy)?;
        let function = function as *mut ();
        let function = NonNull::new(function).expect("no function lies at zero");
        // SAFETY: the worker has answered, so the slot is this thread's, which has the turn. It is
        // aligned and long enough, as was looked at above.
        unsafe { self.desk.slot().cast::<A>().write(args) };
        self.desk.call(Call {
            run: run::<A, R>,
            function,
        });
        self.await_answer(patience, SpaceError::WorkerLate)?;
        match self.desk.take_answer() {
            // SAFETY: `run` has written it, and the worker has nothing to do with it any longer.
            Answer::Done => Ok(unsafe { self.desk.slot().cast::<R>().read() }),
            Answer::Error(error) => Err(error),
        }
    }

    /// Waits until no other thread is at the desk.
    fn take_turn(&self, patience: Patience) -> Result<Turn<'_>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken {
            taken = wait_for(&self.left, taken, patience)
                .map_err(|_late| SpaceError::WorkerBusy(self.space.clone()))?;
        }
        *taken = true;
        Ok(Turn(self))
    }

    fn await_answer(&self, patience: Patience, late: fn(String) -> SpaceError) -> Result<()> {
        match self.desk.await_answer(self.child.handle(), patience) {
            Ok(Waited::Answered) => Ok(()),
            Ok(Waited::Late) => Err(late(self.space.clone())),
            Ok(Waited::Dead) => Err(SpaceError::WorkerDied {
                space: self.space.clone(),
                how: self.child.how_it_died().to_owned(),
            }),
            Err(errno) => Err(SpaceError::of(
                "wait for the worker of",
                self.space.as_ref(),
                errno,
            )),
        }
    }
}

/// A thread that is at the desk.
struct Turn<'w>(&'w Worker);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        *taken = false;
        drop(taken);
        self.0.left.notify_one();
    }
}
