//! Running: nothing panics, hangs, or refuses to start.

use crate::check::{Check, Violation};
use core::any::Any;
use core::fmt;

fn violation(message: String) -> Violation {
    Violation {
        check: Check::KeepsRunning,
        message,
        evidence: Vec::new(),
    }
}

/// Code under test panicked with this.
#[must_use]
pub fn panicked(payload: &(dyn Any + Send)) -> Violation {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    violation(text.unwrap_or("a panic without words").to_owned())
}

/// A process that should run ended, or did not start.
#[must_use]
pub fn not_running(what: &str, problem: impl fmt::Display) -> Violation {
    violation(format!("{what} does not run: {problem}"))
}

/// Operations that should have ended have not.
#[must_use]
pub fn hangs(what: &str, problem: impl fmt::Display) -> Violation {
    violation(format!("{what} do not end within {problem}"))
}
