//! How long a script may run.

use core::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Instructions between two looks at the budget.
pub(crate) const SLICE: u32 = 10_000;

/// A flag that stops scripts from another thread.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Stops them, for good.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether they are to stop.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a script may use. Instructions of Lua count, and steps of pattern matching.
#[derive(Debug)]
pub struct Budget {
    left: Cell<u64>,
    stop: Stop,
    is_over: Cell<bool>,
    is_full: Cell<bool>,
}

impl Budget {
    /// This number of instructions, in steps of 10 000, unless `stop` ends the script before.
    #[must_use]
    pub fn new(instructions: u64, stop: Stop) -> Self {
        Self {
            left: Cell::new(instructions),
            stop,
            is_over: Cell::new(false),
            is_full: Cell::new(false),
        }
    }

    /// Takes a part of it. False: the script must end.
    pub(crate) fn spend(&self, instructions: u64) -> bool {
        let left = self.left.get().saturating_sub(instructions);
        self.left.set(left);
        if left == 0 || self.stop.is_stopped() {
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
