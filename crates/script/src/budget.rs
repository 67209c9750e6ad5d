//! How long a script may run.

use crate::interpreter::{MEMORY_MAX, Shared};
use core::cell::Cell;
use core::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Instructions between two looks at the budget. An instruction may call a function of a library,
/// or join long strings, so few of them can take long.
pub(crate) const SLICE: u32 = 500;

/// A flag that stops scripts from another thread.
#[derive(Clone, Debug)]
pub struct Stop(Option<Arc<AtomicBool>>);

impl Default for Stop {
    fn default() -> Self {
        Self(Some(Arc::default()))
    }
}

impl Stop {
    /// One that stops nothing.
    pub const NEVER: Self = Self(None);

    /// Stops them, for good.
    pub fn stop(&self) {
        if let Some(flag) = &self.0 {
            flag.store(true, Ordering::Relaxed);
        }
    }

    /// Whether they are to stop.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        let flag = self.0.as_ref();
        flag.is_some_and(|flag| flag.load(Ordering::Relaxed))
    }
}

/// What a script may use. Instructions of Lua count, and steps of pattern matching.
pub struct Budget {
    left: Cell<u64>,
    stop: Stop,
    is_late: Option<Box<dyn Fn() -> bool>>,
    memory: usize,
    is_over: Cell<bool>,
    is_full: Cell<bool>,
}

impl Budget {
    /// This number of instructions, in steps of 500, unless `stop` ends the script before, and
    /// [`MEMORY_MAX`].
    #[must_use]
    pub fn new(instructions: u64, stop: Stop) -> Self {
        Self {
            left: Cell::new(instructions),
            stop,
            is_late: None,
            memory: MEMORY_MAX,
            is_over: Cell::new(false),
            is_full: Cell::new(false),
        }
    }

    /// The script ends, too, when `is_late` says so, which is asked at each step. Between two steps
    /// there may be some hundred operations on strings as large as memory lets them be.
    #[must_use]
    pub fn until(self, is_late: impl Fn() -> bool + 'static) -> Self {
        Self {
            is_late: Some(Box::new(is_late)),
            ..self
        }
    }

    /// With this number of bytes of memory beyond what the interpreter has. More than that is
    /// [`Ended::OutOfMemory`](crate::Ended::OutOfMemory).
    #[must_use]
    pub fn memory(self, bytes: usize) -> Self {
        Self {
            memory: bytes,
            ..self
        }
    }

    pub(crate) fn memory_max(&self) -> usize {
        self.memory
    }

    /// Takes a part of it. False: the script must end.
    pub(crate) fn spend(&self, instructions: u64) -> bool {
        let left = self.left.get().saturating_sub(instructions);
        self.left.set(left);
        let is_late = || self.is_late.as_ref().is_some_and(|is_late| is_late());
        if left == 0 || self.stop.is_stopped() || is_late() {
            self.is_over.set(true);
        }
        !self.is_over.get()
    }

    /// The script must end for another reason.
    pub(crate) fn end(&self) {
        self.is_over.set(true);
    }

    /// The script must end, because its memory is used up.
    pub(crate) fn end_full(&self) {
        self.is_full.set(true);
        self.end();
    }

    /// Whether memory is used up.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.get()
    }

    /// Whether it must end.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.get()
    }

    /// Whether all of it is used.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.left.get() == 0
    }
}

/// What a function of a library uses. Lua counts neither its steps nor its memory (SCRIPT-2,
/// SCRIPT-3).
pub(crate) struct Meter<'m> {
    shared: &'m Shared,
    steps: u32,
}

impl<'m> Meter<'m> {
    pub(crate) fn new(shared: &'m Shared) -> Self {
        Self { shared, steps: 0 }
    }

    /// A step, of about the length of an instruction.
    pub(crate) fn step(&mut self) -> mlua::Result<()> {
        self.steps += 1;
        if self.steps < SLICE {
            return Ok(());
        }
        self.steps = 0;
        self.shared.spend(u64::from(SLICE))
    }

    /// A result has this number of bytes by now.
    pub(crate) fn room(&self, bytes: usize) -> mlua::Result<()> {
        self.shared.room(bytes)
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget")
            .field("left", &self.left.get())
            .field("is_over", &self.is_over.get())
            .field("is_full", &self.is_full.get())
            .finish_non_exhaustive()
    }
}
